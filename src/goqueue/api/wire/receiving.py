"""A connection's receive buffer: frames are parsed where they arrived and handed out uncopied.

Idle connections are many, so it begins small; one that is in use gets `FREE_BYTES`. Beyond these it grows with the
bytes that arrive, not with those a frame promises, and never by itself: whoever owns it asks with `lacks` how much more
it needs, and gives it with `grow`. A payload is valid until the next byte is received.
"""

from typing import Final

from goqueue.model import limits
from goqueue.wire import frames
from goqueue.wire.frames import HEADER, LENGTH_BYTES, PREFACE, Frame, Preface

FIRST_BYTES: Final = 2 * limits.KIB
"""How large it is to begin with, and when nothing comes."""
FREE_BYTES: Final = 64 * limits.KIB
"""How large it becomes by itself when more comes at a time."""
_GROWTH_BYTES: Final = 1 * limits.MIB
"""How much it grows at a time, ahead of the bytes that fill it, unless it is larger already."""


class ReceiveBuffer:
    """Bytes `_start` up to `_end` have arrived and were not handed out."""

    __slots__ = ("_end", "_start", "_view", "wanted")

    def __init__(self) -> None:
        self._view = memoryview(bytearray(FIRST_BYTES))
        self._start = self._end = 0
        self.wanted = PREFACE.size
        """Bytes without which there is nothing to hand out."""

    @property
    def held(self) -> int:
        return self._end - self._start

    @property
    def large(self) -> bool:
        return len(self._view) > FIRST_BYTES

    @property
    def grown(self) -> int:
        """Bytes it was given."""
        return max(len(self._view) - FREE_BYTES, 0)

    def room(self) -> memoryview:
        """Where the next bytes go. Not beyond a large frame's end, so that the next one begins at the front."""
        end = len(self._view)
        if self.wanted > FREE_BYTES:
            end = min(end, self._start + self.wanted)
        return self._view[self._end : end]

    def wrote(self, count: int) -> bool:
        """Whether there is something to do now: to hand out what is whole, or to make room."""
        self._end += count
        return self._end - self._start >= self.wanted or self._end == len(self._view)

    def take_preface(self) -> Preface | None:
        if self.held < PREFACE.size:
            return None
        preface = frames.unpack_preface(self._view[self._start : self._start + PREFACE.size])
        self._start += PREFACE.size
        self.wanted = HEADER.size
        return preface

    def take_frame(self) -> Frame | None:
        """The next frame, or None while it is not whole. Raises when what comes cannot be a frame."""
        start = self._start
        if self._end - start < self.wanted:
            return None
        length, operation, status, correlation = frames.unpack_header(self._view, start)
        end = start + LENGTH_BYTES + length
        if end > self._end:
            self.wanted = LENGTH_BYTES + length
            return None
        self._start = end
        self.wanted = HEADER.size
        return Frame(operation, status, correlation, self._view[start + HEADER.size : end])

    def lacks(self) -> int:
        """How many bytes it must grow by before anything more can arrive; 0 when there is room, made if need be."""
        size, held = len(self._view), self.held
        if size < FREE_BYTES and (self._end == size or self.wanted > size):  # there is more where that came from
            self.grow(FREE_BYTES - size)
            size = FREE_BYTES
        if not held:
            self._start = self._end = 0
        elif self._start and self._start + self.wanted > size:
            self._view[:held] = self._view[self._start : self._end]
            self._start, self._end = 0, held
        if self._end < size:
            return 0
        return min(self.wanted - size, max(size, _GROWTH_BYTES))

    def grow(self, more: int) -> None:
        grown = memoryview(bytearray(len(self._view) + more))
        grown[: self._end] = self._view[: self._end]
        self._view = grown

    def shrink(self) -> None:
        """Back to how it was, if it is empty."""
        if not self.held:
            self._view = memoryview(bytearray(FIRST_BYTES))
            self._start = self._end = 0
