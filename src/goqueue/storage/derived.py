"""What is derived from one segment's records: offset index, time index and registered views, folded together.

One `add` serves appends, recovery's scan of the tail, rebuilding after a lost file, and the cleaner's
rewrites, so all of them agree. Saved beside the segment when it is sealed; lost or wrong files are rebuilt. Views that
carry what was inherited are the exception: nothing can build that again, so their file is fsynced before anybody counts
on it, and never overwritten in place.
"""

import errno
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
from goqueue.storage.transactions import TransactionViews
from goqueue.storage.views import View, ViewKind

_INTERVAL_BYTES = 4

BUILT_IN: tuple[ViewKind, ...] = (DelayViews(), LaneViews(), TransactionViews())
"""Views every log has: storage itself and its tools use them."""
_LATER = TransactionViews.name
"""A segment that was sealed before there were transactions has none of them."""


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

    def lose(self, first: int, next_offset: int) -> None:
        """Tell the views of a damaged range, where its records would have been folded."""
        for view in self.views.values():
            view.on_damage(first, next_offset)

    def inherit(self, older: Sequence["Derived"]) -> None:
        """Give each view what the same views of these segments, in offset order, know."""
        for name, view in self.views.items():
            view.inherit([derived.views[name] for derived in older])

    def anew(self) -> "Derived":
        """Of the same segment before any record of it: with what its views have inherited, and nothing folded."""
        derived = Derived(self._base, self.interval, ())
        derived.views = {name: view.anew() for name, view in self.views.items()}
        return derived

    def agrees(self, other: "Derived") -> bool:
        """Whether both say the same about the same records, as far as they have the same views."""
        return (
            (self.index.offsets, self.index.positions) == (other.index.offsets, other.index.positions)
            and (self.times.timestamps, self.times.offsets) == (other.times.timestamps, other.times.offsets)
            and all(self.views[name] == other.views[name] for name in self.views.keys() & other.views.keys())
        )

    @property
    def carries(self) -> bool:
        """Whether a view of it knows what the records cannot tell."""
        return any(view.carries for view in self.views.values())

    @property
    def size(self) -> int:
        """About how many bytes of memory it holds."""
        return self.index.size + self.times.size + sum(view.size for view in self.views.values())


def companions(stem: str) -> dict[Kind, str]:
    """The files beside the segment `stem` (path without ending)."""
    return {Kind.INDEX: stem + ".index", Kind.TIME_INDEX: stem + ".timeindex", Kind.VIEW: stem + ".view"}


def save(disk: Disk, stem: str, derived: Derived, *, base: int, seal: int) -> None:
    """Indexes and views. Durable, but for their names, when the views carry what cannot be built again."""
    save_indexes(disk, stem, derived, base=base, seal=seal)
    save_views(disk, companions(stem)[Kind.VIEW], derived, base=base, seal=seal)


def save_indexes(disk: Disk, stem: str, derived: Derived, *, base: int, seal: int) -> None:
    interval = derived.interval.to_bytes(_INTERVAL_BYTES, "big")
    contents = {Kind.INDEX: derived.index.to_bytes(), Kind.TIME_INDEX: derived.times.to_bytes()}
    for kind, content in contents.items():
        write_file(disk, companions(stem)[kind], envelope.wrap(kind, interval + content, base=base, seal=seal))


def save_views(disk: Disk, path: str, derived: Derived, *, base: int, seal: int) -> None:
    packed = envelope.wrap(Kind.VIEW, views.pack(derived.views), base=base, seal=seal)
    write_file(disk, path, packed, durably=derived.carries)


def load(disk: Disk, stem: str, *, base: int, seal: int, kinds: Sequence[ViewKind]) -> Derived | None:
    """What was saved, or None when any part of it is missing, unreadable, foreign or of an unknown shape."""
    saved = load_views(disk, stem, base=base, seal=seal, kinds=kinds)
    index = _load(disk, stem, Kind.INDEX, base=base, seal=seal)
    times = _load(disk, stem, Kind.TIME_INDEX, base=base, seal=seal)
    if saved is None or index is None or times is None:
        return None
    if index[:_INTERVAL_BYTES] != times[:_INTERVAL_BYTES]:  # the points of one must be points of the other
        return None
    derived = Derived(base, int.from_bytes(index[:_INTERVAL_BYTES], "big"), ())
    try:
        derived.index = OffsetIndex.from_bytes(index[_INTERVAL_BYTES:])
        derived.times = TimeIndex.from_bytes(times[_INTERVAL_BYTES:])
    except (ValueError, IndexError):
        return None
    derived.views = saved
    return derived


def load_views(disk: Disk, stem: str, *, base: int, seal: int, kinds: Sequence[ViewKind]) -> dict[str, View] | None:
    """The views alone: good also when the indexes are not, and they may know what the records do not tell."""
    payload = _load(disk, stem, Kind.VIEW, base=base, seal=seal)
    if payload is None:
        return None
    try:
        saved = views.unpack(payload)
        return {kind.name: _from_saved(kind, base, saved) for kind in kinds}
    except (ValueError, KeyError, IndexError):
        return None


def _from_saved(kind: ViewKind, base: int, saved: dict[str, bytes]) -> View:
    if kind.name == _LATER and _LATER not in saved:
        return kind.empty(base)
    return kind.load(base, saved[kind.name])


def _load(disk: Disk, stem: str, kind: Kind, *, base: int, seal: int) -> bytes | None:
    try:
        data = read_file(disk, companions(stem)[kind])
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return None
    return None if data is None else envelope.unwrap(kind, data, base=base, seal=seal)
