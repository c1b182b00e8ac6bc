"""The offsets a group is done with: everything below a low mark, and single ones above it in a compressed bitmap.

Invariants: the offset at the low mark is not settled, so there is no bitmap when everything was settled in order; a
bitmap that is there is not empty.
"""

from pyroaring import BitMap64


class SettledSet:
    """Offsets only come in, except by `clip` and by making a new one."""

    __slots__ = ("_above", "low")

    def __init__(self, low: int, above: bytes = b"") -> None:
        """Raises a ValueError when `above` is not what `to_bytes` gave."""
        self.low = low
        self._above: BitMap64 | None = (BitMap64.deserialize(above) or None) if above else None

    def __contains__(self, offset: int) -> bool:
        return offset < self.low or (self._above is not None and offset in self._above)

    def count(self, first: int, end: int) -> int:
        """How many there are from `first` up to `end`."""
        below = max(min(end, self.low) - first, 0)
        return below + self._above.range_cardinality(first, end) if self._above is not None and first < end else below

    def to_bytes(self) -> bytes:
        """The bitmap; empty when there is none."""
        return b"" if self._above is None else bytes(self._above.serialize())

    def add(self, first: int, end: int) -> None:
        if first <= self.low:
            self._lift(end)
        elif first < end:
            if self._above is None:
                self._above = BitMap64()
            self._above.add_range(first, end)

    def clip(self, end: int) -> None:
        """Nothing from `end` on is settled."""
        self.low = min(self.low, end)
        if self._above is not None:
            self._above.remove_range(end, 2**64 - 1)
            self._above = self._above or None

    def _lift(self, low: int) -> None:
        """Everything below `low` is settled, and what follows it without a gap."""
        if low <= self.low:
            return
        self.low = low
        if self._above is not None:
            self.low = _first_gap(self._above, low)
            self._above.remove_range(0, self.low)
            self._above = self._above or None


def _first_gap(offsets: BitMap64, at: int) -> int:
    """The first from `at` on that is not among them. It looks near first: a bitmap may be large, a commit small."""
    step = 1
    while offsets.contains_range(at, at + step):
        at += step
        step *= 2
    while step > 1:
        step //= 2
        if offsets.contains_range(at, at + step):
            at += step
    return at
