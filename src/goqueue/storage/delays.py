"""The delay view: a segment's records that carry a deliver-at time.

The cleaner keeps the pending ones; delayed delivery will find its due records here after a restart.
"""

import sys
from array import array
from collections.abc import Sequence

from goqueue import codec
from goqueue.codec import Field, Scan
from goqueue.io.disk import Buffer
from goqueue.storage.views import View


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

    def inherit(self, older: Sequence[View]) -> None:
        """Nothing: a segment's delays are those of its records."""

    def anew(self) -> "DelayView":
        return DelayView(self._base)

    def due_after(self, time: int) -> list[int]:
        """Offsets (absolute) of the records that are delivered later than `time`."""
        return [self._base + offset for offset, due in zip(self.offsets, self.deliver_at, strict=True) if due > time]

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
