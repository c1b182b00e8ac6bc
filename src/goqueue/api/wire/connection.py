"""One client of the wire door: bytes in, frames to `Requests`, replies out, and never more under way than allowed.

What keeps a client from growing the broker: its buffer grows only with a ticket; nothing more is read from it while it
does not take its replies, or has too much under way; and the listener's sweep cuts off who does not get on.
"""

import asyncio
from collections.abc import Coroutine, Iterable
from time import perf_counter
from typing import Any, Final

from goqueue.api.listening import ClientConnection, Listener, Undo
from goqueue.api.service import Service
from goqueue.api.wire.receiving import ReceiveBuffer
from goqueue.api.wire.requests import Requests
from goqueue.broker.admission import NOTHING, Admission, Ticket, take_both
from goqueue.model import limits
from goqueue.model.errors import Busy, Draining, GoQueueError, ProtocolError
from goqueue.telemetry import logs
from goqueue.telemetry.meters import OTHER, RequestMeters
from goqueue.wire import frames
from goqueue.wire.codes import NAMES
from goqueue.wire.failures import pack_error
from goqueue.wire.frames import Bytes, Preface

log = logs.get("wire")

_MAX_GATHERED: Final = 64
"""How many replies leave together at most."""
_MAX_GATHERED_BYTES: Final = 1 * limits.KIB
"""What a reply may have to wait for others."""


class WireConnection(ClientConnection, asyncio.BufferedProtocol):
    """Frames are handled in the order they come; replies go out as they are ready."""

    __slots__ = (
        "_arrived_at", "_broker", "_buffer", "_gathered", "_greeted", "_heard_at", "_left_s", "_own", "_pending",
        "_reading", "_requests", "_rests", "_room", "_tasks", "_waits_for_room", "drained",
    )  # fmt: skip

    def __init__(self, service: Service, meters: dict[str, RequestMeters], listener: Listener) -> None:
        super().__init__(listener)
        self._broker = service.broker
        self._buffer = ReceiveBuffer()
        self._room = NOTHING
        """What was taken of the broker's budget for the buffer."""
        self._requests = Requests(service, meters, self)
        self._gathered: list[Bytes] | None = None
        """Small replies that leave with those to the next frames of the same read."""
        self._greeted = False
        self._waits_for_room = False
        self._reading = True
        self._left_s = limits.FRAMES_AT_ONCE_S
        """How long its frames may still be handled before others get a turn."""
        self._rests = False
        """No frame is handled until other connections had their turn."""
        self.drained = asyncio.Event()
        self._pending = 0
        """Requests without an answer yet."""
        self._own = Admission(limits.MAX_CONNECTION_BYTES)
        """Bytes of what is under way: bodies being worked on, replies being made or not taken yet."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._heard_at = perf_counter()
        """When a frame last began or was whole."""
        self._arrived_at = self._heard_at
        """When anything last arrived, or the client was last listened to again."""

    # --- what asyncio calls

    def connection_lost(self, error: Exception | None) -> None:
        if self._buffer.held and not self.closing:
            log.warning_seldom("client left in the middle of a frame", peer=self._peer, bytes=self._buffer.held)
        super().connection_lost(error)
        self._room.give()
        self._buffer = ReceiveBuffer()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer.room()

    def buffer_updated(self, count: int) -> None:
        self._see_written()
        self._arrived_at = perf_counter()
        if not self._buffer.held:
            self._heard_at = self._arrived_at
        if self._buffer.wrote(count):  # else more of a large frame is coming, and has room
            self._advance()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._advance()

    # --- reading

    @property
    def _stuffed(self) -> bool:
        """Whether so much is under way that nothing more is read."""
        return self._write_paused or self._pending >= limits.MAX_PENDING_REQUESTS or self._own.held >= self._own.limit

    def _advance(self) -> None:
        """Handle every frame that is whole, make room for the next, and read on or not.

        What answers the first of them leaves at once, so that a client that waits for it has something to do; small
        replies to the others leave together. A client that sends many keeps others waiting for a moment only.
        """
        if self._rests:
            return
        end = perf_counter() + self._left_s
        try:
            try:
                while not self.closing and not self._stuffed and self._heard_at < end and self._step():
                    if self._gathered is None:
                        self._gathered = []
                    elif len(self._gathered) >= _MAX_GATHERED:
                        self._send_gathered()
            finally:
                self._send_gathered()
        except GoQueueError as error:  # the stream cannot be followed any further
            self._say_goodbye(error)
        self._left_s = end - perf_counter()
        if self._left_s <= 0:
            self._rests = True
            self.loop.call_soon(self._go_on)
        if not self.closing:
            self._read_on(not self._rests and not self._stuffed and self._has_room())

    def _go_on(self) -> None:
        """Others have had their turn."""
        self._rests = False
        self._left_s = limits.FRAMES_AT_ONCE_S
        self._advance()

    def _step(self) -> bool:
        """Handle what comes next; False when it is not whole yet."""
        if not self._greeted:
            preface = self._buffer.take_preface()
            if preface is None:
                return False
            self._greet(preface)
            return True
        frame = self._buffer.take_frame()
        if frame is None:
            return False
        if frame.status == frames.PATIENT:
            self._gathered = self._gathered or []
        elif frame.status != frames.OK:
            raise ProtocolError(f"a request's status is {frame.status}; it is {frames.OK} or {frames.PATIENT}")
        self._heard_at = perf_counter()
        self._requests.handle(frame.operation, frame.correlation, frame.payload, self._heard_at)
        return True

    def _greet(self, preface: Preface) -> None:
        version = frames.choose_version(preface)
        welcome = frames.Welcome(version, limits.MAX_FRAME_BYTES, limits.MAX_CONNECTION_BYTES)
        self._write(frames.pack_welcome(welcome))
        self._greeted = True
        self._heard_at = perf_counter()
        if not version:
            self.closing = True
            self._transport.close()

    def _has_room(self) -> bool:
        """Room for more of the frame that is coming; False when the broker has none left and reading must wait."""
        more = self._buffer.lacks()
        if not more:
            return True
        if self._waits_for_room:
            return False
        room = self._broker.requests.try_take(more)
        if room is not None:
            self._grow(more, room)
            return True
        self._waits_for_room = True
        self.spawn(self._wait_for_room(more))
        return False

    async def _wait_for_room(self, more: int) -> None:
        try:
            room = await self._broker.requests.take(more, timeout_s=limits.BODY_GRACE_S)
        except Busy as error:
            self._say_goodbye(error)
            return
        finally:
            self._waits_for_room = False
        if self.closing:
            room.give()
            return
        self._grow(more, room)
        self._advance()

    def _grow(self, more: int, room: Ticket) -> None:
        self._buffer.grow(more)
        self._room = self._room.plus(room)

    def _read_on(self, wanted: bool) -> None:
        if wanted != self._reading:
            self._reading = wanted
            if wanted:
                self._arrived_at = perf_counter()
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    # --- what requests use

    def begin(self, size: int = 0) -> Ticket:
        """A request is under way that will be answered later, and holds `size` bytes until then."""
        self._pending += 1
        return self._own.take_anyway(size)

    def end(self, held: Ticket = NOTHING) -> None:
        self._pending -= 1
        held.give()
        if self._buffer.held or not self._reading:  # else there is nothing that could have waited for this
            self._advance()

    def try_reserve(self, size: int) -> Ticket | None:
        """Room for a reply, of this connection's and of the broker's budget; None when there is none now."""
        own = self._own.try_take(size)
        if own is None:
            return None
        shared = self._broker.replies.try_take(size)
        if shared is None:
            own.give()
            return None
        return own.plus(shared)

    async def reserve(self, size: int) -> Ticket:
        """Room for a reply, waited for; Busy when it does not come, CancelledError when the client leaves meanwhile."""
        room = self.try_reserve(size)
        if room is not None:
            return room
        with self.while_here():  # else it stands in front of others
            return await take_both(
                self._own,
                self._broker.replies,
                size,
                own_timeout_s=limits.REPLY_TIMEOUT_S,
                shared_timeout_s=limits.ADMISSION_WAIT_S,
            )

    def send(
        self,
        operation: int,
        correlation: int,
        *parts: Bytes,
        room: Ticket = NOTHING,
        status: int = frames.OK,
        undo: Undo | None = None,
    ) -> None:
        """A reply. The room reserved for it is given back once the client has taken it.

        `undo` is called, once, if it could not be written.
        """
        if len(parts) == 1:
            reply = frames.pack_header(operation, status, correlation, len(parts[0])) + parts[0]
            if self._gathered is not None and len(reply) <= _MAX_GATHERED_BYTES and room is NOTHING and undo is None:
                self._gathered.append(reply)
            else:
                self._write(reply, undo=undo)
        else:
            self._write(frames.pack_header(operation, status, correlation, sum(map(len, parts))), *parts, undo=undo)
        if room is not NOTHING:
            self._hold(room)

    def _send_gathered(self) -> None:
        gathered, self._gathered = self._gathered, None
        if gathered:
            self._write(b"".join(gathered))

    def spawn(self, work: Coroutine[Any, Any, None], *, parked: bool = False) -> None:
        """Work beside. What is parked ends when the client leaves; the rest is finished for its own sake."""
        among = self._parked if parked else self._tasks
        task = self.loop.create_task(work)
        among.add(task)
        task.add_done_callback(among.discard)

    # --- looked after by the listener

    @property
    def busy(self) -> bool:
        return bool(self._pending) or self._write_paused

    def drain(self) -> None:
        """Answer who waits for records that may never come."""
        self.drained.set()

    def hang_up(self) -> None:
        self._say_goodbye(Draining("the broker is stopping; connect again in a moment, or to another one"))

    def sweep(self, now: float) -> None:
        """Cut off a client that neither sends on nor takes its replies; give back a buffer nobody needs."""
        self._own.reclaim()
        stuck_s = self._stuck_s(now)
        held, waited_s = self._buffer.held, now - self._heard_at
        allowed_s = limits.BODY_GRACE_S + self._buffer.wanted / limits.BODY_BYTES_PER_S
        if (held or not self._greeted) and self._reading and waited_s > allowed_s:
            self._cut_off("a frame did not arrive in time")
        elif held and self._reading and now - self._arrived_at > limits.SILENCE_S:
            self._cut_off("the client fell silent in the middle of a frame")
        elif stuck_s > limits.REPLY_TIMEOUT_S:
            self._cut_off("replies were not taken in time")
        elif self.closing and waited_s > limits.REPLY_TIMEOUT_S:
            self._cut_off("the last words were not taken in time")
        elif self._buffer.large and not held and waited_s > limits.SWEEP_INTERVAL_S:
            self._room.give()
            self._buffer.shrink()

    @property
    def _peer(self) -> str:
        return str(self._transport.get_extra_info("peername"))

    def _say_goodbye(self, error: GoQueueError) -> None:
        if self.closing:
            return
        if not isinstance(error, Draining):
            log.warning_seldom("connection closed", peer=self._peer, code=error.code, reason=str(error))
        if self._greeted:
            payload = pack_error(error)
            self._write(*_goodbye(payload))
        self.closing = True
        self._transport.close()

    def _cut_off(self, reason: str) -> None:
        log.warning_seldom("connection cut off", peer=self._peer, reason=reason)
        self._abort()


def _goodbye(payload: bytes) -> Iterable[bytes]:
    """An error that answers no request: operation and correlation are 0."""
    return frames.pack_header(0, frames.ERROR, 0, len(payload)), payload


def wire_meters(service: Service) -> dict[str, RequestMeters]:
    """By the name of the operation; shared by all connections."""
    return {name: service.requests.meters("wire", name) for name in (*NAMES.values(), OTHER)}
