"""The delay view: a segment's records that carry a deliver-at time.

The cleaner keeps the pending ones; after a restart delayed delivery finds here what is not due yet.
"""

import sys
from array import array
from collections.abc import Mapping, Sequence
from typing import Final

from pyroaring import BitMap64

from goqueue import codec
from goqueue.base.offset_sets import column, within
from goqueue.codec import Field, Scan
from goqueue.io.disk import Buffer
from goqueue.model import limits
from goqueue.storage.views import View


class DueTimes:
    """What records do not say themselves: which were moved to another time or cancelled, which are pending, and held.

    One that is pending is not due, whatever the wall's clock shows: that clock may have stepped. One that is held was
    delivered to somebody, and can still be given back or become a dead letter. Of one that is uncommitted nobody knows
    yet whether it counts. What was aborted is cancelled. Nothing is known of records from `end` on.
    """

    __slots__ = ("_cancelled", "_held", "_moved", "_pending", "_uncommitted", "end")

    def __init__(
        self,
        moved: Mapping[int, int] | None = None,
        cancelled: BitMap64 | None = None,
        pending: BitMap64 | None = None,
        held: BitMap64 | None = None,
        uncommitted: BitMap64 | None = None,
        end: int = limits.MAX_OFFSET,
    ) -> None:
        self._moved = {} if moved is None else moved
        self._cancelled = BitMap64() if cancelled is None else cancelled
        self._pending = BitMap64() if pending is None else pending
        self._held = BitMap64() if held is None else held
        self._uncommitted = BitMap64() if uncommitted is None else uncommitted
        self.end = end

    def of(self, offset: int, deliver_at: int) -> int:
        """By the wall's clock. 0 for one that is never delivered: then it need not be kept for that."""
        return 0 if offset in self._cancelled else self._moved.get(offset, deliver_at)

    def is_cancelled(self, offset: int) -> bool:
        return offset in self._cancelled

    def is_held(self, offset: int) -> bool:
        return offset in self._held

    def is_uncommitted(self, offset: int) -> bool:
        return offset in self._uncommitted

    def uncommitted(self, first: int, end: int) -> list[int]:
        """From `first` up to `end`."""
        return list(column(within(self._uncommitted, first, end))) if self._uncommitted else []

    def is_due(self, offset: int, deliver_at: int, time: int) -> bool:
        """Whether it need not be kept for its delivery any more, when the wall's clock shows `time`."""
        return offset not in self._pending and self.of(offset, deliver_at) <= time


AS_WRITTEN: Final = DueTimes()


class DelayView:
    """Two columns in offset order: offset relative to the base, deliver-at in Unix ms."""

    def __init__(self, base: int) -> None:
        self._base = base
        self.offsets = array("I")
        self.deliver_at = array("q")

    def on_append(self, block: Buffer, scan: Scan) -> None:
        ordinals, times = codec.field_values(block, scan, Field.DELIVER_AT)
        if ordinals:
            offsets = scan.offsets
            self.offsets.extend([offsets[ordinal] - self._base for ordinal in ordinals])
            self.deliver_at.extend(times)

    def on_damage(self, first: int, next_offset: int) -> None:
        """What nobody can read is in no view."""

    def inherit(self, older: Sequence[View]) -> None:
        """Nothing: a segment's delays are those of its records."""

    def anew(self) -> "DelayView":
        return DelayView(self._base)

    def due_after(self, time: int, times: DueTimes = AS_WRITTEN) -> list[int]:
        """Offsets (absolute) of the records that are delivered later than `time`, or are pending."""
        return [
            self._base + offset
            for offset, due in zip(self.offsets, self.deliver_at, strict=True)
            if not times.is_due(self._base + offset, due, time)
        ]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DelayView) and (self.offsets, self.deliver_at) == (other.offsets, other.deliver_at)

    @property
    def carries(self) -> bool:
        return False

    def to_bytes(self) -> bytes:
        offsets, times = self.offsets[:], self.deliver_at[:]
        if sys.byteorder == "little":
            offsets.byteswap()
            times.byteswap()
        return offsets.tobytes() + times.tobytes()

    @property
    def size(self) -> int:
        return 64 + 12 * len(self.offsets)


def delayed(views: Mapping[str, View], base: int) -> tuple[list[int], list[int]]:
    """Offsets of the records of a segment that have a time to be delivered at, and those times."""
    view = views[DelayViews.name]
    assert isinstance(view, DelayView)
    return [base + offset for offset in view.offsets], list(view.deliver_at)


class DelayViews:
    """Registers delay views with a log."""

    name = "delays"

    def empty(self, base: int) -> DelayView:
        return DelayView(base)

    def load(self, base: int, data: bytes) -> DelayView:
        view = DelayView(base)
        count, rest = divmod(len(data), 12)
        if rest:
            raise ValueError("a delay view whose columns differ in length")
        view.offsets.frombytes(data[: 4 * count])
        view.deliver_at.frombytes(data[4 * count :])
        if sys.byteorder == "little":
            view.offsets.byteswap()
            view.deliver_at.byteswap()
        return view
