"""What is derived from one segment's records: offset index, time index and registered views, folded together.

One `add` serves appends, recovery's scan of the tail, rebuilding after a lost file, and the cleaner's
rewrites, so all of them agree. Saved beside the segment when it is sealed; lost or wrong files are rebuilt.
"""

from collections.abc import Sequence

from goqueue import codec
from goqueue.codec import Scan
from goqueue.io.disk import Buffer, Disk
from goqueue.io.small_file import read_file, write_file
from goqueue.storage import envelope, views
from goqueue.storage.delays import DelayViews
from goqueue.storage.envelope import Kind
from goqueue.storage.index import OffsetIndex, TimeIndex
from goqueue.storage.lanes import LaneViews
from goqueue.storage.views import View, ViewKind

_INTERVAL_BYTES = 4

BUILT_IN: tuple[ViewKind, ...] = (DelayViews(), LaneViews())
"""Views every log has: storage itself and its tools use them."""


class Derived:
    """Grows with its segment; never read past what the segment has published."""

    __slots__ = ("_base", "index", "interval", "times", "views")

    def __init__(self, base: int, interval: int, kinds: Sequence[ViewKind]) -> None:
        self._base = base
        self.interval = interval
        self.index = OffsetIndex()
        self.times = TimeIndex()
        self.views: dict[str, View] = {kind.name: kind.empty(base) for kind in kinds}

    def add(self, position: int, block: Buffer, scan: Scan) -> None:
        """Fold a block of valid records that begins at `position` of the segment."""
        last = self.index.last_position
        since = last if last is not None else -self.interval
        points = codec.milestones(scan, base=self._base, start=position, since=since, interval=self.interval)
        if points[0]:
            self.times.extend(points[2], points[0])  # before the index: a reader may look between the two
            self.index.extend(points[0], points[1])
        for view in self.views.values():
            view.on_append(block, scan)

    def agrees(self, other: "Derived") -> bool:
        """Whether both say the same about the same records, as far as they have the same views."""
        return (
            (self.index.offsets, self.index.positions) == (other.index.offsets, other.index.positions)
            and (self.times.timestamps, self.times.offsets) == (other.times.timestamps, other.times.offsets)
            and all(self.views[name] == other.views[name] for name in self.views.keys() & other.views.keys())
        )

    @property
    def size(self) -> int:
        """About how many bytes of memory it holds."""
        return self.index.size + self.times.size + sum(view.size for view in self.views.values())


def companions(stem: str) -> dict[Kind, str]:
    """The files beside the segment `stem` (path without ending)."""
    return {Kind.INDEX: stem + ".index", Kind.TIME_INDEX: stem + ".timeindex", Kind.VIEW: stem + ".view"}


def save(disk: Disk, stem: str, derived: Derived, *, base: int, seal: int) -> None:
    interval = derived.interval.to_bytes(_INTERVAL_BYTES, "big")
    contents = {
        Kind.INDEX: interval + derived.index.to_bytes(),
        Kind.TIME_INDEX: interval + derived.times.to_bytes(),
        Kind.VIEW: views.pack(derived.views),
    }
    for kind, path in companions(stem).items():
        write_file(disk, path, envelope.wrap(kind, contents[kind], base=base, seal=seal))


def load(disk: Disk, stem: str, *, base: int, seal: int, kinds: Sequence[ViewKind]) -> Derived | None:
    """What was saved, or None when any part of it is missing, damaged, foreign or of an unknown shape."""
    contents: dict[Kind, bytes] = {}
    for kind, path in companions(stem).items():
        data = read_file(disk, path)
        payload = None if data is None else envelope.unwrap(kind, data, base=base, seal=seal)
        if payload is None:
            return None
        contents[kind] = payload
    interval, other = (contents[kind][:_INTERVAL_BYTES] for kind in (Kind.INDEX, Kind.TIME_INDEX))
    if interval != other:  # the points of one must be points of the other
        return None
    derived = Derived(base, int.from_bytes(interval, "big"), ())
    try:
        derived.index = OffsetIndex.from_bytes(contents[Kind.INDEX][_INTERVAL_BYTES:])
        derived.times = TimeIndex.from_bytes(contents[Kind.TIME_INDEX][_INTERVAL_BYTES:])
        saved = views.unpack(contents[Kind.VIEW])
        derived.views = {kind.name: kind.load(base, saved[kind.name]) for kind in kinds}
    except (ValueError, KeyError, IndexError):
        return None
    return derived
