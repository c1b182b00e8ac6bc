"""One client of the HTTP door: bytes in, whole requests to the door, answers out, one at a time and in order.

What is bounded here, beside what the parser bounds: the body, which is kept only with room in the broker's budget;
requests that wait for those before them, since what one read brought is parsed no further, and nothing more is read,
while they do; answers that are not taken, since the next request waits for that. The listener's sweep cuts off who does
not get on; nobody is for sending many requests.

A client that has nothing more to send still gets its answers; only a request that is parked ends with it.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable
from time import perf_counter
from typing import Final, Protocol

from goqueue.api.http.messages import CONTINUE, Answer, Park, Request
from goqueue.api.http.parsing import Head, RequestParser
from goqueue.api.listening import ClientConnection, Listener, T
from goqueue.broker.broker import Broker
from goqueue.model import limits
from goqueue.model.errors import Busy, GoQueueError
from goqueue.telemetry import logs

log = logs.get("http")

_IDLE_S: Final = 120.0
"""How long a connection may stay open without a request."""
_RESERVE_BYTES: Final = 1 * limits.MIB
"""How much room is taken for a body at a time; the first `_FREE_BYTES` of it need none."""
_FREE_BYTES: Final = 64 * limits.KIB
_BEHIND_PARKED: Final = 16
"""Requests that may wait behind one that is parked before no more is read, and with it the sight of the client is lost.
Behind any other it is one."""


class Door(Protocol):
    """What a connection sees of its door."""

    broker: Broker

    async def answer(self, request: Request, park: Park) -> Answer:
        """Raises nothing, unless `park` is cancelled."""

    def refuse(self, request: Request, error: GoQueueError) -> Answer: ...


class HttpConnection(ClientConnection, asyncio.Protocol):
    """Requests are answered in the order they came."""

    __slots__ = (
        "_allowed_s", "_at", "_body", "_body_bytes", "_broker", "_door", "_draining", "_expects", "_heard_at",
        "_incoming", "_lingered", "_lingering", "_lingers_until", "_parser", "_parses_on", "_reading", "_received",
        "_since", "_task", "_unread", "_waiting", "_waits_for_room",
    )  # fmt: skip

    def __init__(self, door: Door, listener: Listener) -> None:
        super().__init__(listener)
        self._door = door
        self._broker = door.broker
        self._parser = RequestParser(self)
        self._incoming: Request | None = None
        """The request that is arriving."""
        self._body: bytes | bytearray = b""
        self._body_bytes = 0
        self._expects = False
        """The client of the request that is arriving waits to be told to go on."""
        self._parses_on = False
        """It goes on to parse in the next turn of the loop."""
        self._unread, self._at = b"", 0
        """What a read brought, parsed up to there: the rest waits until fewer requests do."""
        self._waiting: deque[Request] = deque()
        self._task: asyncio.Task[None] | None = None
        self._reading = True
        self._received = 0
        """Bytes since others last had their turn for certain."""
        self._waits_for_room = False
        self._lingering = False
        """A request was refused: what comes behind its head is read and thrown away."""
        self._lingered = 0
        """Bytes thrown away since the refusal, or since it was answered."""
        self._lingers_until: asyncio.TimerHandle | None = None
        """Runs once the refusal was answered."""
        self._draining = False
        self._since, self._allowed_s = perf_counter(), _IDLE_S
        """What the connection waits for since when, and how long it may."""
        self._heard_at = self._since
        """When the client last sent anything, or was last listened to again."""

    # --- what asyncio calls

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        if self._lingers_until is not None:
            self._lingers_until.cancel()
        if self._incoming is not None:
            self._waiting.append(self._incoming)
            self._incoming = None
        self._drop_waiting()

    def data_received(self, data: bytes) -> None:
        self._see_written()
        self._heard_at = perf_counter()
        if self.closing:
            return
        self._received += len(data)
        if self._is_full and self._reading:  # the loop reads on for as long as there is more
            self._reading = False
            self._transport.pause_reading()
            self.loop.call_soon(self._read_on)
        if self._lingering:
            self._throw_away(len(data))
            return
        self._unread = self._unread[self._at :] + data if self._has_unread else data
        self._at = 0
        self._serve()

    def eof_received(self) -> bool:
        """Whether the connection stays open for the answers; a request that is parked closes it when it ends."""
        super().eof_received()
        self._draining = True
        return self.busy

    def resume_writing(self) -> None:
        super().resume_writing()
        self._begin_wait()
        self._serve()

    # --- what the parser calls

    def begin(self) -> None:
        self._incoming = Request()
        self._body, self._body_bytes = b"", 0
        self._since, self._allowed_s = perf_counter(), limits.BODY_GRACE_S

    def take_head(self, head: Head) -> None:
        request = self._incoming
        if request is None:
            return
        request.head = head
        self._allowed_s = limits.BODY_GRACE_S + (head.length or 0) / limits.BODY_BYTES_PER_S
        self._expects = head.expects

    def take_body(self, body: bytes) -> None:
        request = self._incoming
        if request is None:
            return
        self._body_bytes += len(body)
        self._expects = False
        self._allowed_s = max(self._allowed_s, limits.BODY_GRACE_S + self._body_bytes / limits.BODY_BYTES_PER_S)
        if not self._body:
            self._body = body
        elif isinstance(self._body, bytearray):
            self._body += body
        else:
            self._body = bytearray(self._body) + body
        missing = self._body_bytes - _FREE_BYTES - request.room.size
        if missing > 0 and not self._waits_for_room:
            size = max(missing, _RESERVE_BYTES)
            room = self._broker.requests.try_take(size)
            if room is not None:
                request.hold(room)
            else:
                self._waits_for_room = True
                self.loop.create_task(self._wait_for_room(request, size))

    def end(self) -> None:
        request, self._incoming = self._incoming, None
        if request is None:
            return
        request.body, self._body = self._body, b""
        self._expects = False
        self._waiting.append(request)

    # --- requests and answers

    def _serve(self) -> None:
        """Begin the next request if none is under way, parse what may be parsed, and read on or not."""
        if self.closing:
            return
        self._parse()
        if self._task is None and self._waiting and not self._write_paused and not self._waits_for_room:
            self._task = self.loop.create_task(self._answer(self._waiting.popleft()))
            self._parse()
        if self._expects and not (self.busy or self._lingering):
            self._expects = False
            self._write(CONTINUE)
        if self._lingering:
            wanted = self._lingered <= limits.LINGER_BYTES and not self._is_full
        else:
            wanted = not (
                self._has_unread or self._crowded or self._write_paused or self._waits_for_room or self._is_full
            )
        if wanted != self._reading:
            self._reading = wanted
            if wanted:
                self._heard_at = perf_counter()
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _read_on(self) -> None:
        """Others have had their turn."""
        self._received = 0
        self._serve()

    @property
    def _is_full(self) -> bool:
        """Whether so much was received that others get their turn before more is."""
        return self._received >= limits.RECEIVED_AT_ONCE_BYTES

    @property
    def _crowded(self) -> bool:
        """Whether enough requests wait for those before them."""
        return len(self._waiting) >= (_BEHIND_PARKED if self._parked else 1)

    @property
    def _has_unread(self) -> bool:
        return self._at < len(self._unread)

    @property
    def _behind(self) -> bool:
        """Whether there are requests behind the one that is under way."""
        return bool(self._waiting) or self._has_unread

    def _parse(self) -> None:
        while self._has_unread and not (self._crowded or self._waits_for_room or self._lingering):
            try:
                self._at = self._parser.feed(self._unread, self._at)
            except GoQueueError as error:
                self._refuse(error)
            if self._has_unread and self._incoming is not None:  # it takes long: others get their turn
                if not self._parses_on:
                    self._parses_on = True
                    self.loop.call_soon(self._parse_on)
                break
        if not self._has_unread or self._lingering:
            self._unread, self._at = b"", 0

    def _parse_on(self) -> None:
        self._parses_on = False
        self._serve()

    async def _answer(self, request: Request) -> None:
        try:
            if request.refusal is not None:
                answer = self._door.refuse(request, request.refusal)
            else:
                answer = await self._door.answer(request, self._park)
        except asyncio.CancelledError:  # the client left while it was parked
            self._end(linger=False)
            raise
        finally:
            request.room.give()
            self._task = None
        self._send(request, answer)
        self._serve()

    async def _park(self, request: Request, work: Awaitable[T]) -> T:
        """The body is not needed any more. Reading goes on: it shows when the client leaves."""
        request.body = b""
        request.room.give()
        if not self._reading:
            self.loop.call_soon(self._serve)
        return await self.park(work)

    def _send(self, request: Request, answer: Answer) -> None:
        last = not request.head.keep_alive or request.refusal is not None or (self._draining and not self._behind)
        head = answer.head(keep_alive=not last)
        parts = (head,) if request.head.method == "HEAD" else (head, answer.body)
        self._write(*parts, undo=answer.undo)
        self._hold(answer.room)
        if not self._write_paused:
            self._begin_wait()
        if last and not self.closing:
            self._end(linger=request.refusal is not None)

    def _begin_wait(self) -> None:
        """From now on the client is waited for: for its next request, or for the rest of one that has begun."""
        self._since = perf_counter()
        if self._incoming is None:
            self._allowed_s = _IDLE_S

    def _refuse(self, error: GoQueueError) -> None:
        """The request that is arriving is refused before it is whole; nothing after it is looked at."""
        if self.closing or self._lingering:
            return
        request, self._incoming = self._incoming or Request(), None
        request.refusal = error
        self._body = b""
        self._lingering = True
        self._waiting.append(request)

    async def _wait_for_room(self, request: Request, size: int) -> None:
        try:
            room = await self._broker.requests.take(size, timeout_s=limits.ADMISSION_WAIT_S)
        except Busy as error:
            if request is self._incoming:
                self._refuse(error)
            else:  # it is whole already, and waits
                request.refusal, self._lingering = error, True
        else:
            request.hold(room)
            if self.closing:
                request.room.give()
        self._waits_for_room = False
        self._serve()

    def _drop_waiting(self) -> None:
        for request in self._waiting:
            request.room.give()
        self._waiting.clear()
        self._unread, self._at = b"", 0

    def _end(self, *, linger: bool) -> None:
        """No request behind this one is answered, so none is carried out."""
        self._drop_waiting()
        if linger:
            self._transport.write_eof()
            self._lingered = 0
            self._lingers_until = self.loop.call_later(limits.LINGER_S, self._stop_lingering)
        else:
            self.hang_up()

    def _throw_away(self, count: int) -> None:
        """A client that reads nothing before it has sent everything gets its answer only if somebody takes all that."""
        self._lingered += count
        if self._lingered > limits.LINGER_BYTES:
            if self._lingers_until is None:  # it waits for its turn to be answered; so long nothing more is read
                self._serve()
            else:
                self._cut_off("a refused client went on sending")

    def _stop_lingering(self) -> None:
        if self._transport.get_write_buffer_size():  # a slow reader: nothing more is read, and the answer may leave
            self._since, self._allowed_s = perf_counter(), limits.REPLY_TIMEOUT_S
            self.hang_up()
        else:
            self._cut_off("a refused client did not hang up")

    # --- looked after by the listener

    @property
    def busy(self) -> bool:
        return self._task is not None or self._behind or self._write_paused

    def drain(self) -> None:
        self._draining = True
        if not self.busy:
            self.hang_up()

    def hang_up(self) -> None:
        if not self.closing:
            self.closing = True
            self._transport.close()

    def sweep(self, now: float) -> None:
        if self._stuck_s(now) > limits.REPLY_TIMEOUT_S:
            self._cut_off("replies were not taken in time")
        elif self._write_paused or (self._task is not None and not self.closing):
            pass  # it waits for us, or we for it
        elif now - self._since > self._allowed_s:
            self._cut_off("nothing came for too long")
        elif self._incoming is not None and self._reading and now - self._heard_at > limits.SILENCE_S:
            self._cut_off("the client fell silent in the middle of a request")

    def _cut_off(self, reason: str) -> None:
        log.debug("connection cut off", peer=str(self._transport.get_extra_info("peername")), reason=reason)
        self._abort()
