"""Deliveries that failed: how often, and which poll may still settle the message, by offset.

Nearly all messages succeed, so this is small; but it is looked at with every poll, hence the bitmap beside it.
Invariant: `offsets` are the keys.
"""

from collections.abc import Mapping
from typing import NamedTuple

from pyroaring import BitMap64

from goqueue.base.offset_sets import column


class Try(NamedTuple):
    """Deliveries that failed, and the last poll among them if it may still settle the message."""

    deliveries: int
    poll: int


class Tries(dict[int, Try]):
    """Changed only by the methods named here."""

    __slots__ = ("offsets",)

    def __init__(self, tries: Mapping[int, Try] | None = None) -> None:
        super().__init__(tries or {})
        self.offsets = BitMap64(self)

    def __setitem__(self, offset: int, each: Try) -> None:
        super().__setitem__(offset, each)
        self.offsets.add(offset)

    def __delitem__(self, offset: int) -> None:
        super().__delitem__(offset)
        self.offsets.discard(offset)

    def forget(self, offsets: BitMap64) -> None:
        """Those of them that are here."""
        for offset in column(offsets & self.offsets):
            super().__delitem__(offset)
        self.offsets -= offsets

    def fail(self, offsets: BitMap64, poll: int) -> None:
        """One more delivery of each failed."""
        for offset in column(offsets):
            known = self.get(offset)
            self[offset] = Try(1 if known is None else known.deliveries + 1, poll)
