"""What clients make this door hold: replies they have not read, streams and calls that wait, work that goes on.

gRPC keeps what was written until its client has read it, and nothing takes it back while the connection lives. So a
reply counts until gRPC has let go of it, also when the call that wrote it has ended: in the broker's budget, and in
that of its connection, which gets `busy` beyond it. Knows nothing of operations.
"""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from goqueue.api.grpc.caller import Caller, Context, peer_of
from goqueue.broker.admission import NOTHING, Admission, Ticket, take_both
from goqueue.model import limits
from goqueue.model.errors import Busy, GoQueueError, RequestTimeout
from goqueue.telemetry import logs

log = logs.get("grpc")

T = TypeVar("T")


class Held:
    """Of one door. Used from one event loop."""

    def __init__(self, replies: Admission) -> None:
        self.drained = asyncio.Event()
        """Set when the door is to close."""
        self._replies = replies
        self._begun: set[asyncio.Task[Any]] = set()
        self._places = 0
        self._budgets: WeakValueDictionary[str, Admission] = WeakValueDictionary()
        """Of connections that have a call, or a reply that is not read."""
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

    def caller(self, context: Context) -> Caller:
        """For a call that begins. Those whose deadline is over share a budget, whatever connection they came by: nobody
        waits for their replies, and they take no room from those that somebody waits for."""
        peer = peer_of(context)
        budget = self._budgets.get(peer)
        if budget is None:
            budget = self._budgets[peer] = Admission(limits.MAX_CONNECTION_BYTES)
        budget.reclaim()
        return Caller(context, budget)

    async def take(self, budget: Admission, size: int) -> Ticket:
        """Room for a reply that is not made yet, of its connection and of the broker; Busy if there is none in time."""
        wait_s = limits.ADMISSION_WAIT_S
        return await take_both(budget, self._replies, size, own_timeout_s=wait_s, shared_timeout_s=wait_s)

    async def write(self, caller: Caller, message: Any, *, room: Ticket = NOTHING) -> None:
        """To a client that takes it in time; CancelledError if it has left.

        What was taken for it is given back as soon as the bytes are no longer here.
        """
        data: bytes = message.SerializeToString()
        del message
        if room is NOTHING:
            room = await caller.budget.take(len(data), timeout_s=limits.ADMISSION_WAIT_S)
        writing = caller.begin_writing(data)
        writing.add_done_callback(lambda _: room.give())
        del data
        wait_s = limits.GRPC_LAST_WORDS_S if self.drained.is_set() else limits.REPLY_TIMEOUT_S
        patience = asyncio.timeout(wait_s)
        try:
            async with patience:
                self._patience.add(patience)
                await asyncio.shield(writing)
        except TimeoutError:
            raise RequestTimeout("the reply was not taken in time") from None
        finally:
            self._patience.discard(patience)


def forget(task: "asyncio.Task[Any]") -> None:
    """What became of it nobody wants to know; a bug is told all the same."""
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, GoQueueError):
        log.error("a request broke", error=error)
