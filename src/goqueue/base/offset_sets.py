"""Sets of offsets as compressed bitmaps: 64 bits wide for a whole log, 32 bits relative to the base of a segment.

The step from one to the other is made on the serialised form, whose 64-bit kind is a row of 32-bit ones: no Python
work per offset.
"""

import struct
from array import array
from collections.abc import Iterator
from typing import Final

from pyroaring import BitMap, BitMap64

_HEAD: Final = struct.Struct("<Q")
"""How many 32-bit bitmaps follow."""
_HIGH: Final = struct.Struct("<I")
"""The high half of their offsets."""
_HALF: Final = 32
_ALL: Final = 2**64 - 1


def ranged(first: int, end: int) -> BitMap64:
    """The offsets from `first` up to `end`. It costs the more the farther they are apart."""
    offsets = BitMap64()
    if first < end:
        offsets.add_range(first, end)
    return offsets


def gathered(column: "array[int]") -> BitMap64:
    """From a column of offsets in ascending order."""
    if len(column) and column[-1] - column[0] + 1 == len(column):
        return ranged(column[0], column[-1] + 1)
    return BitMap64(array("Q", column.tobytes()))


def column(offsets: BitMap64) -> "array[int]":
    """The inverse. Iterate over this: an empty `BitMap64` that is iterated itself loses 216 bytes for ever."""
    return array("q", offsets.to_array().tobytes())


def within(offsets: BitMap64, first: int, end: int) -> BitMap64:
    """Those from `first` up to `end`, which may be far."""
    found = offsets.copy()
    cut_below(found, first)
    cut_from(found, end)
    return found


def cut_below(offsets: BitMap64, first: int) -> None:
    """Take out those before `first`."""
    if first > 0:
        offsets.remove_range(0, first)


def cut_from(offsets: BitMap64, end: int) -> None:
    """Take out those from `end` on."""
    offsets.remove_range(end, _ALL)


def pack(offsets: BitMap64) -> bytes:
    """As the sidecar's records hold them: the portable 64-bit roaring format."""
    offsets.run_optimize()
    return bytes(offsets.serialize())


def unpack(data: bytes) -> BitMap64:
    """Raises a ValueError when `pack` did not make it."""
    if not data:
        raise ValueError("no bytes are no set of offsets")
    return BitMap64.deserialize(data)


def to_absolute(relative: BitMap, base: int) -> BitMap64:
    """Offsets of a segment that begins at `base`, as offsets of the log."""
    if not relative:
        return BitMap64()
    first, last = relative.min(), relative.max()
    if last - first + 1 == len(relative):
        return ranged(base + first, base + last + 1)
    high = (base + first) >> _HALF
    if high == (base + last) >> _HALF:
        low = relative.shift(base - (high << _HALF))
        return BitMap64.deserialize(_HEAD.pack(1) + _HIGH.pack(high) + bytes(low.serialize()))
    return BitMap64([base + offset for offset in relative])


def to_relative(offsets: BitMap64, base: int) -> BitMap:
    """The inverse: offsets of the log that all lie in a segment that begins at `base`."""
    if not offsets:
        return BitMap()
    first, last = offsets.min(), offsets.max()
    if last - first + 1 == len(offsets):
        return BitMap(range(first - base, last - base + 1))
    if first >> _HALF == last >> _HALF:
        low = BitMap.deserialize(bytes(offsets.serialize())[_HEAD.size + _HIGH.size :])
        return low.shift((first >> _HALF << _HALF) - base)
    return BitMap([offset - base for offset in column(offsets)])


def runs(offsets: BitMap64) -> Iterator[tuple[int, int]]:
    """First offset and end of each row of offsets without a gap."""
    first = end = -1
    for offset in column(offsets):
        if offset != end:
            if end >= 0:
                yield first, end
            first = offset
        end = offset + 1
    if end >= 0:
        yield first, end


def first_from(offsets: BitMap64, at: int) -> int:
    """The first of them that is not before `at`; past all when there is none."""
    before = offsets.rank(at - 1) if at > 0 else 0
    return offsets[before] if before < len(offsets) else _ALL


def first_gap(offsets: BitMap64, at: int) -> int:
    """The first from `at` on that is not among them. It looks near first: a bitmap may be large, a step small."""
    step = 1
    while offsets.contains_range(at, at + step):
        at += step
        step *= 2
    while step > 1:
        step //= 2
        if offsets.contains_range(at, at + step):
            at += step
    return at
