"""Sparse indexes of one segment: offset to byte position, and append time to offset.

Both hold a point per index interval, appended in offset order by the single writer, so a look-up reads at
most one interval of the log. Invariant: offsets, positions and times never decrease along an index.
"""

import sys
from array import array
from bisect import bisect_left, bisect_right
from typing import NamedTuple

_COUNT = 4


class Interval(NamedTuple):
    """The bytes of a segment that hold what is looked for; `end` None means up to the segment's end."""

    start: int
    end: int | None


class OffsetIndex:
    """Points (offset relative to the segment's base, position)."""

    __slots__ = ("offsets", "positions")

    def __init__(self) -> None:
        self.offsets = array("I")
        self.positions = array("I")

    def extend(self, offsets: "array[int]", positions: "array[int]") -> None:
        """Add points, in offset order."""
        self.offsets.extend(offsets)
        self.positions.extend(positions)

    @property
    def last_position(self) -> int | None:
        return self.positions[-1] if self.positions else None

    def find(self, offset: int) -> Interval:
        """Where the first record at or after `offset` (relative) lies, if the segment has it."""
        return self._interval(bisect_right(self.offsets, offset))

    def following(self, offset: int) -> int | None:
        """The offset (relative) of the first point after `offset`."""
        after = bisect_right(self.offsets, offset)
        return self.offsets[after] if after < len(self.offsets) else None

    def last(self, size: int) -> Interval:
        """The interval that begins with the last point before byte `size`, and ends there."""
        after = bisect_left(self.positions, size)
        return Interval(self.positions[after - 1] if after else 0, size)

    def before(self, offset: int) -> Interval:
        """The interval that ends at the point of exactly `offset`."""
        return self._interval(bisect_left(self.offsets, offset))

    def _interval(self, after: int) -> Interval:
        start = self.positions[after - 1] if after else 0
        return Interval(start, self.positions[after] if after < len(self.positions) else None)

    @property
    def size(self) -> int:
        return 8 * len(self.offsets)

    def to_bytes(self) -> bytes:
        return _pack(self.offsets, self.positions)

    @classmethod
    def from_bytes(cls, data: bytes) -> "OffsetIndex":
        index = cls()
        _unpack(data, index.offsets, index.positions)
        return index


class TimeIndex:
    """Points (append time, offset relative to the base), one where an index point has a new time."""

    __slots__ = ("offsets", "timestamps")

    def __init__(self) -> None:
        self.timestamps = array("q")
        self.offsets = array("I")

    def extend(self, timestamps: "array[int]", offsets: "array[int]") -> None:
        """Add the points, in offset order, that bring a new time."""
        last = self.timestamps[-1] if self.timestamps else -1
        if timestamps[-1] == last:
            return
        for timestamp, offset in zip(timestamps, offsets, strict=True):
            if timestamp > last:
                self.timestamps.append(timestamp)
                self.offsets.append(offset)
                if timestamp == timestamps[-1]:
                    return
                last = timestamp

    def find(self, timestamp: int) -> int | None:
        """Offset of the first point at or after `timestamp`; the answer is at it or in the interval before it."""
        at = bisect_left(self.timestamps, timestamp)
        return self.offsets[at] if at < len(self.offsets) else None

    @property
    def size(self) -> int:
        return 12 * len(self.offsets)

    def to_bytes(self) -> bytes:
        return _pack(self.timestamps, self.offsets)

    @classmethod
    def from_bytes(cls, data: bytes) -> "TimeIndex":
        index = cls()
        _unpack(data, index.timestamps, index.offsets)
        return index


def _big_endian(values: "array[int]") -> "array[int]":
    if sys.byteorder == "little":
        values = values[:]
        values.byteswap()
    return values


def _pack(first: "array[int]", second: "array[int]") -> bytes:
    """count(4), the first column, the second column; big-endian."""
    return len(first).to_bytes(_COUNT, "big") + _big_endian(first).tobytes() + _big_endian(second).tobytes()


def _unpack(data: bytes, first: "array[int]", second: "array[int]") -> None:
    count = int.from_bytes(data[:_COUNT], "big")
    middle = _COUNT + count * first.itemsize
    first.frombytes(data[_COUNT:middle])
    second.frombytes(data[middle:])
    if len(first) != count or len(second) != count:
        raise ValueError("an index whose columns differ in length")
    if sys.byteorder == "little":
        first.byteswap()
        second.byteswap()
