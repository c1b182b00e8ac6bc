"""Listening at an address and looking after the connections: the same for every door.

One sweep finds whoever does not get on; there are no timers per connection.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any, Final, Protocol, TypeVar, cast

from goqueue.broker.admission import Ticket
from goqueue.model import limits
from goqueue.telemetry import logs

log = logs.get("api")

_KEEP_IDLE_S: Final = 60
"""After so much silence the system asks whether anybody is there."""
_WRITE_HIGH_BYTES: Final = 256 * limits.KIB
"""Replies waiting in a connection from which on nothing more is read from it."""

T = TypeVar("T")
Undo = Callable[[], None]
"""Takes back what a reply gave away, when nobody got that reply."""


class Connection(Protocol):
    """What a listener sees of a connection."""

    __slots__ = ()

    @property
    def busy(self) -> bool:
        """Whether something is under way that deserves to be waited for."""

    def drain(self) -> None:
        """Take no new work; answer who waits for what may never come."""

    def give_up(self) -> None:
        """The process is about to end: what could not be written by now never will be."""

    def hang_up(self) -> None: ...

    def sweep(self, now: float) -> None:
        """Cut it off if it does not get on; give back what it does not need."""


class Listener:
    """One address. `connect` makes the protocol of a new connection."""

    def __init__(
        self, name: str, counts: dict[str, int], connect: Callable[["Listener"], asyncio.BaseProtocol]
    ) -> None:
        self._name = name
        self._counts = counts
        self._connect = connect
        self._draining = False
        self._connections: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None

    async def open(self, host: str, port: int) -> str:
        """The address it listens at."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: self._connect(self), host, port, backlog=1024)
        self._sweeper = loop.create_task(self._sweep())
        bound, number = self._server.sockets[0].getsockname()[:2]
        return f"[{bound}]:{number}" if ":" in bound else f"{bound}:{number}"

    def drain(self) -> None:
        """Let nobody in, answer whoever waits, finish what is under way."""
        self._draining = True
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.drain()

    async def close(self, grace_s: float) -> None:
        """After `drain`: wait for what is under way, then hang up."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        deadline = perf_counter() + grace_s
        while any(connection.busy for connection in self._connections) and perf_counter() < deadline:
            await asyncio.sleep(limits.DRAIN_POLL_S)
        for connection in list(self._connections):
            connection.give_up()
            connection.hang_up()

    def join(self, connection: Connection) -> bool:
        """Whether there is a place for one more."""
        if self._draining or len(self._connections) >= limits.MAX_CONNECTIONS:
            return False
        self._connections.add(connection)
        self._counts[self._name] = len(self._connections)
        return True

    def leave(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._counts[self._name] = len(self._connections)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(limits.SWEEP_INTERVAL_S)
            now = perf_counter()
            for connection in list(self._connections):
                connection.sweep(now)


class ClientConnection(asyncio.BaseProtocol, Connection):
    """What the connections of all doors do alike: wait for a client that is slow, notice one that leaves.

    A reply may come with an `undo`. It is called once if the reply cannot be written: the connection is closing, or it
    is lost while bytes of the reply are still in the transport's buffer. Once it is lost the buffer no longer says, so
    it is looked at whenever there is an occasion; what was not seen to have left it by then counts as not written.
    """

    __slots__ = (
        "_aborted", "_ended", "_left", "_listener", "_parked", "_paused_at", "_sent", "_transport", "_unsure",
        "_untaken", "_write_paused", "closing", "loop",
    )  # fmt: skip

    loop: asyncio.AbstractEventLoop
    _transport: asyncio.Transport

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self.closing = False
        """Nothing more is written."""
        self._aborted = False
        self._ended = False
        """The client sends nothing more."""
        self._write_paused = False
        self._paused_at = 0.0
        """When the client last stopped taking replies."""
        self._left = 0
        """Bytes it had not taken when it was last looked at."""
        self._untaken: list[Ticket] = []
        """For replies that it has not taken."""
        self._sent = 0
        """Bytes given to the transport, all in all."""
        self._unsure: list[tuple[int, Undo]] = []
        """Replies to undo unless they leave the buffer: each with where it ends among the bytes sent."""
        self._parked: set[asyncio.Task[Any]] = set()
        """Work that waits, and ends when the client leaves."""

    # --- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.loop = asyncio.get_running_loop()
        sock = self._transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # finds who has vanished without a word
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEP_IDLE_S)
        self._transport.set_write_buffer_limits(high=_WRITE_HIGH_BYTES, low=0)
        if not self._listener.join(self):
            self._abort()

    def connection_lost(self, error: Exception | None) -> None:
        self.closing = self._ended = True
        self._write_paused = False
        self._listener.leave(self)
        self._leave()
        self._all_taken()
        if error is not None or self._aborted:  # else it was closed, which writes everything first
            self._undo_unsure()

    def eof_received(self) -> bool:
        self._ended = True
        self._see_written()
        self._leave()
        return False

    def pause_writing(self) -> None:
        self._write_paused = True
        self._left = self._transport.get_write_buffer_size()
        self._paused_at = perf_counter()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._see_written()
        self._all_taken()

    # --- replies

    def _write(self, *parts: bytes | bytearray | memoryview, undo: Undo | None = None) -> None:
        if self.closing or (undo is not None and self._transport.is_closing()):
            if undo is not None:
                _take_back(undo)
            return
        if len(parts) == 1:
            self._transport.write(parts[0])
            self._sent += len(parts[0])
        else:
            self._transport.writelines(parts)
            self._sent += sum(map(len, parts))
        if undo is not None:
            self._unsure.append((self._sent, undo))
            self._see_written()

    def _see_written(self) -> None:
        """Forget the replies that have left the buffer. When the transport closes, its size need not be true."""
        if self._unsure and not self._transport.is_closing():
            gone = self._sent - self._transport.get_write_buffer_size()
            self._unsure = [(end, undo) for end, undo in self._unsure if end > gone]

    def give_up(self) -> None:
        self._see_written()
        self._undo_unsure()

    def _undo_unsure(self) -> None:
        unsure, self._unsure = self._unsure, []
        for _, undo in unsure:
            _take_back(undo)

    def _hold(self, room: Ticket) -> None:
        """Room for a reply that was just written: given back once the client has taken it."""
        if self._write_paused:
            self._untaken.append(room)
        else:
            room.give()

    def _all_taken(self) -> None:
        untaken, self._untaken = self._untaken, []
        for room in untaken:
            room.give()

    # --- waiting

    async def park(self, work: Awaitable[T]) -> T:
        """Wait for it as `while_here` does. It holds nothing: what it found is dropped if the client left meanwhile."""
        with self.while_here():
            found = await work
        if self._transport.is_closing():  # it ended in the same moment
            raise asyncio.CancelledError
        return found

    @contextmanager
    def while_here(self) -> Iterator[None]:
        """For a wait. CancelledError when the client leaves meanwhile; also when it left before, if there is a wait.

        Nothing after this is cancelled.
        """
        task = cast(asyncio.Task[Any], asyncio.current_task())
        leaving = self.loop.call_soon(self._leave) if self._ended else None
        self._parked.add(task)
        try:
            yield
        finally:
            self._parked.discard(task)
            if leaving is not None:
                leaving.cancel()

    def _leave(self) -> None:
        for task in self._parked:
            task.cancel()

    # --- clients that do not get on

    def _stuck_s(self, now: float) -> float:
        """How long the client has taken nothing of what waits for it; 0 when that is little. Ask in every sweep."""
        self._see_written()
        if not self._write_paused:
            return 0.0
        left = self._transport.get_write_buffer_size()
        if left < self._left:  # slow, but it takes its replies
            self._paused_at = now
        self._left = left
        return now - self._paused_at

    def _abort(self) -> None:
        self._see_written()
        self.closing = self._aborted = True
        self._transport.abort()


def _take_back(undo: Undo) -> None:
    try:
        undo()
    except Exception as error:
        log.error("a reply that was not written could not be taken back", error=error)
