"""Preface and frames: how a connection begins, and how requests and replies are told apart on it.

`docs/internals/wire.md` is the prose of this room and tests hold the two together. All numbers are big-endian.
A frame is the header and a payload that only the operation understands; nothing here looks into it. What is
wrong in a preface or a header leaves no way to find the next frame: whoever finds it closes the connection.

`FrameParser` is the client's; the broker parses in its own receive buffer, with `HEADER` and `unpack_header`.
"""

import struct
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec

from goqueue.model.errors import ProtocolError, TooLarge
from goqueue.model.limits import KIB, MAX_FRAME_BYTES, MIB

MAGIC: Final = b"GQWP"
VERSION: Final = 1

PREFACE: Final = struct.Struct(">4sBBH")
"""Client to broker, once: magic, lowest version, highest version, zero."""
WELCOME: Final = struct.Struct(">4sBBHII")
"""The broker's answer: magic, chosen version, zero, zero, most bytes of a frame, most bytes in flight."""
HEADER: Final = struct.Struct(">IHHI")
"""length, operation, status, correlation. The length counts everything behind its own four bytes."""

LENGTH_BYTES: Final = 4
MIN_FRAME_BYTES: Final = HEADER.size - LENGTH_BYTES
"""The length of a frame without payload."""
OK: Final = 0
"""The status of a request, and of a reply that is what was asked for."""
ERROR: Final = 1
"""The status of a reply whose payload says why not (`wire.failures`)."""
PATIENT: Final = 2
"""The status of a request that nobody waits for: its reply may leave with those to requests behind it."""

GOODBYE: Final = 0
"""The operation of an error that answers no request: why the broker closes the connection."""

RECEIVE_BYTES: Final = 64 * KIB
"""How large a parser's buffer is at first."""
KEPT_BYTES: Final = 1 * MIB
"""A buffer that grew beyond this for one frame goes with it."""

Bytes = bytes | bytearray | memoryview


class Preface(NamedTuple):
    """The versions a client speaks, both included."""

    lowest: int
    highest: int


class Welcome(NamedTuple):
    """What a broker answers; version 0: it speaks none of those, and closes."""

    version: int
    max_frame_bytes: int
    max_bytes_in_flight: int


class Frame(msgspec.Struct, frozen=True, gc=False):
    """A frame without its length. The payload is a part of the parser's buffer: copy what must last."""

    operation: int
    status: int
    correlation: int
    payload: memoryview


def pack_preface(lowest: int = VERSION, highest: int = VERSION) -> bytes:
    return PREFACE.pack(MAGIC, lowest, highest, 0)


def unpack_preface(data: Bytes) -> Preface:
    magic, lowest, highest, reserved = _unpack(PREFACE, data, "a preface")
    if magic != MAGIC:
        raise ProtocolError(f"the connection begins with {bytes(magic)!r}, not {MAGIC!r}; is it for another port?")
    if reserved or not 1 <= lowest <= highest:
        raise ProtocolError(f"a preface for versions {lowest} to {highest}, reserved {reserved}, makes no sense")
    return Preface(lowest, highest)


def choose_version(preface: Preface) -> int:
    """The version to speak with this client; 0 when there is none."""
    return VERSION if preface.lowest <= VERSION <= preface.highest else 0


def pack_welcome(welcome: Welcome) -> bytes:
    return WELCOME.pack(MAGIC, welcome.version, 0, 0, welcome.max_frame_bytes, welcome.max_bytes_in_flight)


def unpack_welcome(data: Bytes) -> Welcome:
    magic, version, zero, reserved, max_frame_bytes, max_bytes_in_flight = _unpack(WELCOME, data, "a broker's welcome")
    if magic != MAGIC:
        raise ProtocolError(f"the answer begins with {bytes(magic)!r}, not {MAGIC!r}; is this the broker's wire port?")
    if zero or reserved:
        raise ProtocolError("the broker's welcome has something where there must be zeros")
    return Welcome(version, max_frame_bytes, max_bytes_in_flight)


def pack_header(operation: int, status: int, correlation: int, payload_bytes: int) -> bytes:
    return HEADER.pack(MIN_FRAME_BYTES + payload_bytes, operation, status, correlation)


def unpack_header(
    buffer: Bytes, position: int = 0, *, max_frame_bytes: int = MAX_FRAME_BYTES
) -> tuple[int, int, int, int]:
    """length, operation, status, correlation of the header that stands, whole, at `position`."""
    header = HEADER.unpack_from(buffer, position)
    length = header[0]
    if length < MIN_FRAME_BYTES:
        raise ProtocolError(f"a frame's length is {length}; it is at least {MIN_FRAME_BYTES}")
    if length > max_frame_bytes:
        raise TooLarge(f"a frame's length is {length}; it is at most {max_frame_bytes}: send less at a time")
    return header


def _unpack(layout: struct.Struct, data: Bytes, what: str) -> tuple[Any, ...]:
    if len(data) != layout.size:
        raise ProtocolError(f"{what} has {layout.size} bytes, not {len(data)}")
    return layout.unpack(data)


class FrameParser:
    """Frames out of a stream of bytes that comes in any pieces.

    It owns the buffer: write into `room()`, then say with `wrote()` how much, and take the frames that are
    whole now before asking for room again. The buffer grows to the frame that is coming, once its length is
    known and allowed. After an error the stream is lost; nothing more comes out of it.
    """

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._buffer = memoryview(bytearray(RECEIVE_BYTES))
        self._start = 0
        self._end = 0
        self._wanted = HEADER.size
        """Bytes from `_start` on without which there is nothing to hand out."""

    def room(self) -> memoryview:
        """Where the next bytes go; never empty."""
        held = self._end - self._start
        buffer = self._buffer
        if not held:
            self._start = self._end = 0
            if len(buffer) > KEPT_BYTES:
                buffer = self._buffer = memoryview(bytearray(RECEIVE_BYTES))
        if self._start + self._wanted > len(buffer):
            target = buffer if self._wanted <= len(buffer) else memoryview(bytearray(self._wanted))
            target[:held] = buffer[self._start : self._end]
            buffer = self._buffer = target
            self._start, self._end = 0, held
        return buffer[self._end :]

    def wrote(self, count: int) -> Iterator[Frame]:
        """The frames that `count` more bytes in `room()` make whole; take them all, or drop the parser."""
        self._end += count
        while self._end - self._start >= self._wanted:
            length, operation, status, correlation = unpack_header(
                self._buffer, self._start, max_frame_bytes=self._max_frame_bytes
            )
            end = self._start + LENGTH_BYTES + length
            if end > self._end:
                self._wanted = LENGTH_BYTES + length
                return
            if status not in (OK, ERROR):
                raise ProtocolError(f"a reply's status is {status}; it is {OK} or {ERROR}")
            payload = self._buffer[self._start + HEADER.size : end].toreadonly()
            self._start = end
            self._wanted = HEADER.size
            yield Frame(operation, status, correlation, payload)
