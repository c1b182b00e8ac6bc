"""The bytes of one connection: the preface, calls going out in order, replies finding who asked.

Invariants: calls are sent in the order of `submit`, also those that had to wait for room. The bytes and the
number of calls without a reply stay within bounds. After a failure every call has an error, nothing is sent and
nothing that still comes in is looked at. A call whose future is done early (a timeout) stays in flight, because
the broker still holds it; its reply is dropped when it comes. It knows nothing of what payloads mean.
"""

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple, cast

from goqueue.model import limits
from goqueue.model.errors import GoQueueError, ProtocolError, TooLarge, Unavailable
from goqueue.wire import frames
from goqueue.wire.failures import repeat, unpack_error
from goqueue.wire.frames import Bytes, Frame, FrameParser, Welcome

WRITE_BUFFER_BYTES: Final = 256 * limits.KIB
"""What may wait in the transport before further calls wait here."""
_TOGETHER_BYTES: Final = 64 * limits.KIB
"""From so many on calls do not wait for others to leave with."""
_CORRELATIONS: Final = 2**32


class Reply(NamedTuple):
    """`status` is frames.OK or frames.ERROR. The payload was copied out of the receive buffer once."""

    status: int
    payload: bytes


class _Call:
    """One request: where it is in its life shows in which collection of the exchange holds it."""

    __slots__ = ("answered", "operation", "parts", "reply", "size")

    def __init__(
        self, operation: int, parts: Sequence[Bytes], size: int, answered: bool, reply: asyncio.Future[Reply]
    ) -> None:
        self.operation = operation
        self.parts = parts
        self.size = size
        self.answered = answered
        self.reply = reply


class Exchange(asyncio.BufferedProtocol):
    """`peer` names the broker in errors. `welcomed` and `closed` are done when that has happened."""

    def __init__(self, peer: str) -> None:
        loop = asyncio.get_running_loop()
        self.peer = peer
        self.welcomed: asyncio.Future[Welcome] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        self.failure: GoQueueError | None = None
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._limits = Welcome(0, 0, 0)
        self._parser: FrameParser | None = None
        self._welcome = bytearray(frames.WELCOME.size)
        self._welcome_bytes = 0
        self._sent: dict[int, _Call] = {}
        self._bytes_in_flight = 0
        self._waiting: deque[_Call] = deque()
        self._correlation = 0
        self._paused = False
        self._gathers = False
        self._leaving: list[Bytes] = []
        self._leaving_bytes = 0

    # ------------------------------------------------------------------ sending

    def submit(self, operation: int, parts: Sequence[Bytes], *, answered: bool = True) -> asyncio.Future[Reply]:
        """Send now, or as soon as there is room. Without an answer the future is done once it is sent.

        The future's exception means that the connection failed; an error from the broker is a reply.
        """
        if self.failure is not None:
            raise repeat(self.failure)
        size = frames.HEADER.size + sum(map(len, parts))
        most = min(frames.LENGTH_BYTES + self._limits.max_frame_bytes, self._limits.max_bytes_in_flight)
        if size > most:
            raise TooLarge(f"a request of {size} bytes is over the {most} that {self.peer} takes; send less at a time")
        call = _Call(operation, parts, size, answered, self._loop.create_future())
        if self._waiting or not self._fits(call):
            self._waiting.append(call)
            call.reply.add_done_callback(self._on_done_early)
        else:
            self._send(call)
        return call.reply

    def _fits(self, call: _Call) -> bool:
        if self._paused or self._transport is None or self._transport.is_closing():
            return False  # of one that is closing `connection_lost` comes next, and fails who waits
        return not call.answered or (
            self._bytes_in_flight + call.size <= self._limits.max_bytes_in_flight
            and len(self._sent) < limits.MAX_PENDING_REQUESTS
        )

    def _send(self, call: _Call) -> None:
        assert self._transport is not None
        while True:
            self._correlation = correlation = (self._correlation + 1) % _CORRELATIONS
            if correlation not in self._sent:
                break
        status = frames.PATIENT if self._gathers and call.size < _TOGETHER_BYTES else frames.OK
        header = frames.pack_header(call.operation, status, correlation, call.size - frames.HEADER.size)
        if call.answered:
            self._sent[correlation] = call
            self._bytes_in_flight += call.size
        self._leaving += (header, *call.parts)
        self._leaving_bytes += call.size
        if not self._gathers or self._leaving_bytes >= _TOGETHER_BYTES:
            self._leave()
        call.parts = ()
        if not call.answered:
            call.reply.set_result(Reply(frames.OK, b""))

    @contextmanager
    def together(self) -> Iterator[None]:
        """Small calls submitted in here leave in one piece: cheaper for both, where nobody waits for the first.

        What takes no answer counts as sent when it is submitted, here too.
        """
        self._gathers = True
        try:
            yield
        finally:
            self._gathers = False
            self._leave()

    def _leave(self) -> None:
        parts, self._leaving, self._leaving_bytes = self._leaving, [], 0
        if parts and self.failure is None:
            assert self._transport is not None
            # Where the loop can, the parts go to the kernel from where they are (Python 3.12, uvloop).
            self._transport.writelines(parts)

    def _send_waiting(self) -> None:
        while self._waiting and self.failure is None:
            call = self._waiting[0]
            if not call.reply.done():
                if not self._fits(call):
                    return
                call.reply.remove_done_callback(self._on_done_early)
                self._send(call)
            self._waiting.popleft()

    def _on_done_early(self, _: asyncio.Future[Reply]) -> None:
        """Whoever stood behind a call that was given up may have room."""
        self._send_waiting()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._send_waiting()

    # ------------------------------------------------------------------ receiving

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self._transport.write(frames.pack_preface())

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._parser is None:
            return memoryview(self._welcome)[self._welcome_bytes :]
        return self._parser.room()

    def buffer_updated(self, nbytes: int) -> None:
        if self.failure is not None:
            return
        try:
            if self._parser is None:
                self._greet(nbytes)
                return
            for frame in self._parser.wrote(nbytes):
                if frame.operation == frames.GOODBYE:
                    self.fail(Unavailable(f"{self.peer} hung up: {unpack_error(frame.payload)}"))
                    return
                self._answer(frame)
        except GoQueueError as error:
            self.fail(ProtocolError(f"{self.peer} broke the protocol: {error}"))
        self._send_waiting()

    def _greet(self, count: int) -> None:
        self._welcome_bytes += count
        if self._welcome_bytes < frames.WELCOME.size:
            return
        welcome = frames.unpack_welcome(self._welcome)
        if welcome.version != frames.VERSION:
            raise ProtocolError(
                f"it speaks no version of the protocol that this client does ({frames.VERSION})"
                if not welcome.version
                else f"it chose version {welcome.version} where {frames.VERSION} was offered"
            )
        self._limits = welcome
        self._parser = FrameParser(welcome.max_frame_bytes)
        if not self.welcomed.done():
            self.welcomed.set_result(welcome)

    def _answer(self, frame: Frame) -> None:
        call = self._sent.get(frame.correlation)
        if call is None or call.operation != frame.operation:
            raise ProtocolError(f"it answered operation {frame.operation}, {frame.correlation}, which nobody asked for")
        del self._sent[frame.correlation]
        self._bytes_in_flight -= call.size
        if not call.reply.done():
            call.reply.set_result(Reply(frame.status, bytes(frame.payload)))

    # ------------------------------------------------------------------ ending

    def connection_lost(self, exc: Exception | None) -> None:
        reason = f" ({exc})" if exc is not None else ""
        self.fail(Unavailable(f"the connection to {self.peer} was lost{reason}; calls in flight may have been done"))
        self.closed.set_result(None)

    def fail(self, error: GoQueueError, *, flush: bool = False) -> None:
        """Give everybody waiting this error and end the connection, at once or when what was sent has left."""
        if self.failure is not None:
            return
        self.failure = error
        calls = [*self._sent.values(), *self._waiting]
        self._sent.clear()
        self._waiting.clear()
        for call in calls:
            if not call.reply.done():
                call.reply.set_exception(repeat(error))
        if not self.welcomed.done():
            self.welcomed.set_exception(repeat(error))
        if self._transport is not None:
            if flush:
                self._transport.close()
            else:
                self._transport.abort()

    def abort(self) -> None:
        """Do not wait for what has not left yet."""
        if self._transport is not None:
            self._transport.abort()
