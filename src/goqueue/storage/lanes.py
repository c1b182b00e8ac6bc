"""The lane view: which offsets of a segment are in which priority lane, as five compressed bitmaps.

A lane reader skips through it instead of through the records: one critical message behind ten million
normal ones is one look-up away.
"""

from collections.abc import Sequence
from itertools import compress

from pyroaring import BitMap

from goqueue.codec import Scan
from goqueue.codec.layout import LANES
from goqueue.io.disk import Buffer
from goqueue.storage.views import View

_ONLY = [bytes(1 if byte == lane else 0 for byte in range(256)) for lane in range(LANES)]


class LaneView:
    """Offsets are relative to the segment's base."""

    def __init__(self, base: int, lanes: list[BitMap] | None = None) -> None:
        self._base = base
        self.lanes = lanes if lanes is not None else [BitMap() for _ in range(LANES)]

    def on_append(self, block: Buffer, scan: Scan) -> None:
        lanes = scan.lanes.tobytes()
        first = scan.offsets[0] - self._base
        end = scan.offsets[-1] - self._base + 1
        contiguous = end - first == len(lanes)
        if contiguous and lanes.count(lanes[0]) == len(lanes):
            self.lanes[lanes[0]].add_range(first, end)
            return
        offsets = range(first, end) if contiguous else [offset - self._base for offset in scan.offsets]
        for lane in set(lanes):
            self.lanes[lane].update(BitMap(compress(offsets, lanes.translate(_ONLY[lane]))))

    def on_damage(self, first: int, next_offset: int) -> None:
        """What nobody can read is in no view."""

    def inherit(self, older: Sequence[View]) -> None:
        """Nothing: a segment's lanes are those of its records."""

    def anew(self) -> "LaneView":
        return LaneView(self._base)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LaneView) and self.lanes == other.lanes

    @property
    def carries(self) -> bool:
        return False

    def to_bytes(self) -> bytes:
        parts = []
        for lane in self.lanes:
            lane.run_optimize()
            data = lane.serialize()
            parts += [len(data).to_bytes(4, "big"), data]
        return b"".join(parts)

    @property
    def counts(self) -> list[int]:
        return [len(lane) for lane in self.lanes]

    @property
    def size(self) -> int:
        return sum(_bytes_held(lane) for lane in self.lanes)


def _bytes_held(lane: BitMap) -> int:
    found = lane.get_statistics()
    return 64 + found["n_bytes_array_containers"] + found["n_bytes_run_containers"] + found["n_bytes_bitset_containers"]


class LaneViews:
    """Registers lane views with a log."""

    name = "lanes"

    def empty(self, base: int) -> LaneView:
        return LaneView(base)

    def load(self, base: int, data: bytes) -> LaneView:
        lanes = []
        position = 0
        for _ in range(LANES):
            end = position + 4 + int.from_bytes(data[position : position + 4], "big")
            lanes.append(BitMap.deserialize(data[position + 4 : end]))
            position = end
        return LaneView(base, lanes)
