"""The offsets a group is done with: everything below a low mark, and single ones above it in a compressed bitmap.

Invariants: the offset at the low mark is not settled, so there is no bitmap when everything was settled in order; a
bitmap that is there is not empty.
"""

from collections.abc import Sequence

from pyroaring import BitMap64

from goqueue.base.offset_sets import cut_below, cut_from, first_from, first_gap, pack, unpack

_NONE = BitMap64()


class SettledSet:
    """Offsets only come in, except by `clip` and by making a new one."""

    __slots__ = ("_above", "low")

    def __init__(self, low: int, above: bytes = b"") -> None:
        """Raises a ValueError when `above` is not what `to_bytes` gave."""
        self.low = low
        self._above: BitMap64 | None = (unpack(above) or None) if above else None

    def __contains__(self, offset: int) -> bool:
        return offset < self.low or (self._above is not None and offset in self._above)

    @property
    def above(self) -> BitMap64:
        """Those above the low mark, to look at."""
        return _NONE if self._above is None else self._above

    @property
    def end(self) -> int:
        """Nothing from here on is settled."""
        return self.low if self._above is None else self._above.max() + 1

    @property
    def is_plain(self) -> bool:
        """Whether the low mark says it all."""
        return self._above is None

    def count(self, first: int, end: int) -> int:
        """How many there are from `first` up to `end`."""
        below = max(min(end, self.low) - first, 0)
        return below + self._above.range_cardinality(first, end) if self._above is not None and first < end else below

    def holds_any(self, offsets: BitMap64) -> bool:
        """Whether one of them is settled."""
        return bool(offsets) and (offsets.min() < self.low or offsets.intersect(self.above))

    def to_bytes(self) -> bytes:
        """The bitmap; empty when there is none."""
        return b"" if self._above is None else pack(self._above)

    def add(self, offsets: BitMap64) -> None:
        if self._above is None:
            self._above = offsets.copy()
        else:
            self._above |= offsets
        self._lift()

    def raise_to(self, low: int) -> None:
        """Everything below `low` is settled."""
        if low > self.low:
            self.low = low
            self._lift()

    def pass_over(self, others: BitMap64, kept: Sequence[BitMap64] = ()) -> None:
        """Offsets right at the low mark that are among `others` count as settled, unless they are `kept`."""
        while self.low in others:
            end = min([first_gap(others, self.low), *(first_from(offsets, self.low) for offsets in kept if offsets)])
            if end <= self.low:
                return
            self.raise_to(end)

    def clip(self, end: int) -> None:
        """Nothing from `end` on is settled."""
        self.low = min(self.low, end)
        if self._above is not None:
            cut_from(self._above, end)
            self._above = self._above or None

    def _lift(self) -> None:
        """Bring the low mark to the first offset that is not settled."""
        if self._above is not None:
            self.low = first_gap(self._above, self.low)
            cut_below(self._above, self.low)
            self._above = self._above or None
