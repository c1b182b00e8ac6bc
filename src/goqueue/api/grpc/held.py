"""What clients make this door hold: replies they have not read, streams and calls that wait, work that goes on.

gRPC keeps what was written until its client has read it, and nothing takes it back while the connection lives. So a
reply counts until gRPC has let go of it, also when the call that wrote it has ended: in the broker's budget, and in
that of its connection, which gets `busy` beyond it. Knows nothing of operations.
"""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import grpc

from goqueue.api.grpc.failures import Context
from goqueue.broker.admission import Admission
from goqueue.model import limits
from goqueue.model.errors import Busy, GoQueueError, RequestTimeout
from goqueue.telemetry import logs

log = logs.get("grpc")

T = TypeVar("T")


class _Peer(Admission):
    """Bytes that one connection was written and has not read."""

    def __init__(self, name: str) -> None:
        super().__init__(limits.MAX_CONNECTION_BYTES)
        self.name = name
        self.replies = 0


class Held:
    """Of one door. Used from one event loop."""

    def __init__(self, replies: Admission) -> None:
        self.drained = asyncio.Event()
        """Set when the door is to close."""
        self._replies = replies
        self._begun: set[asyncio.Task[Any]] = set()
        self._places = 0
        self._peers: dict[str, _Peer] = {}
        self._unread: dict[Context, asyncio.Task[None]] = {}
        self._patience: set[asyncio.Timeout] = set()
        """Of those who wait for a client to read."""

    @property
    def busy(self) -> bool:
        """Whether something goes on. What only waits for a client to read is nothing."""
        return bool(self._begun) or self._places > 0

    def drain(self) -> None:
        """Nobody is waited for any longer than it takes to say so."""
        self.drained.set()
        deadline = asyncio.get_running_loop().time() + limits.GRPC_LAST_WORDS_S
        for patience in self._patience:
            if not patience.expired():
                patience.reschedule(min(deadline, patience.when() or deadline))

    # --- work

    def begin(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Work that a door which closes waits for, whoever else does or does not."""
        task = asyncio.get_running_loop().create_task(work)
        self._begun.add(task)
        task.add_done_callback(self._begun.discard)
        return task

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Its result. When whoever waits for it leaves, it goes on by itself."""
        task = self.begin(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(forget)
            raise

    @contextmanager
    def place(self) -> Iterator[None]:
        """For a stream, or a call that waits: there may be so many at a time."""
        if self._places >= limits.GRPC_PLACES:
            raise Busy(f"{self._places} streams and polls are open already, the most there may be; try again")
        self._places += 1
        try:
            yield
        finally:
            self._places -= 1

    # --- replies

    async def take(self, context: Context, size: int) -> None:
        """Room for a reply that is not made yet, of its connection and of the broker; Busy if there is none in time."""
        if not size:
            return
        peer = await self._room(context, size)
        try:
            await self._replies.take(size, timeout_s=limits.ADMISSION_WAIT_S)
        except BaseException:
            self._let_go(peer, size, 0)
            raise

    def give(self, context: Context, size: int) -> None:
        """What was taken, for a reply that is not written."""
        if size:
            self._let_go(self._peers[context.peer()], size, size)

    async def write(self, context: Context, message: Any, *, taken: int = 0) -> None:
        """To a client that takes it in time; CancelledError if it has left.

        What was taken for it is given back for the caller, as soon as the bytes are no longer here.
        """
        data: bytes = message.SerializeToString()
        del message
        if taken:
            peer, size = self._peers[context.peer()], taken
        else:
            size = len(data)
            peer = await self._room(context, size)
        loop = asyncio.get_running_loop()
        writing: asyncio.Task[None] = loop.create_task(_write(context, data))
        self._unread[context] = writing
        writing.add_done_callback(partial(self._written, context, peer, size, taken))
        del data
        wait_s = limits.GRPC_LAST_WORDS_S if self.drained.is_set() else limits.REPLY_TIMEOUT_S
        patience = asyncio.timeout(wait_s)
        try:
            async with patience:
                self._patience.add(patience)
                await asyncio.shield(writing)
        except TimeoutError:
            raise RequestTimeout("the reply was not taken in time") from None
        except (grpc.aio.InternalError, grpc.aio.UsageError) as error:
            raise asyncio.CancelledError from error
        finally:
            self._patience.discard(patience)

    def unread(self, context: Context) -> "asyncio.Task[None] | None":
        """The reply that a call was written and its client has not read."""
        return self._unread.get(context)

    def _written(self, context: Context, peer: _Peer, size: int, taken: int, writing: "asyncio.Task[None]") -> None:
        if self._unread.get(context) is writing:
            del self._unread[context]
        if not writing.cancelled():
            writing.exception()  # that the client has left is known to whoever waits for it
        self._let_go(peer, size, taken)

    async def _room(self, context: Context, size: int) -> _Peer:
        name = context.peer()
        peer = self._peers.get(name)
        if peer is None:
            peer = self._peers[name] = _Peer(name)
        peer.replies += 1
        try:
            await peer.take(size, timeout_s=limits.ADMISSION_WAIT_S)
        except BaseException:
            self._let_go(peer, 0, 0)
            raise
        return peer

    def _let_go(self, peer: _Peer, size: int, taken: int) -> None:
        peer.give(size)
        self._replies.give(taken)
        peer.replies -= 1
        if not peer.replies:
            del self._peers[peer.name]


async def _write(context: Context, data: bytes) -> None:
    await context.write(data)


def forget(task: "asyncio.Task[Any]") -> None:
    """What became of it nobody wants to know; a bug is told all the same."""
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, GoQueueError):
        log.error("a request broke", error=error)
