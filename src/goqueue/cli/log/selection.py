"""Which records of a log a reader asked for, found without holding the log.

Segments outside the bounds are not opened; in a sealed one the search begins at the index point before the
first record wanted. Only what is handed out is decoded. Damage inside the bounds is handed out in its place; so
is a segment that cannot be opened at all.

A cleaner may exchange a file while it is read. What looks like damage is therefore believed only while the
hard state still speaks of the same segment; otherwise reading goes on from the same offset in the new one.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from goqueue import codec
from goqueue.cli.data_directory import DISK, LenientDisk
from goqueue.io.disk import Disk
from goqueue.model import limits
from goqueue.model.record import Record
from goqueue.storage import derived as companions
from goqueue.storage.offline import OfflineLog, SegmentFile
from goqueue.storage.state import NOT_TRUNCATING
from goqueue.storage.walk import Damage, Extent, Run, walk

ENDLESS = limits.MAX_OFFSET
"""Offsets and times are below this. As the end of a damaged range: nobody knows where it ends."""


class Bounds(NamedTuple):
    """Offsets and append times from `from_` up to `to_`, the latter not included; at most `limit` records."""

    from_offset: int = 0
    to_offset: int = ENDLESS
    from_time: int = 0
    to_time: int = ENDLESS
    limit: int = ENDLESS


class Unreadable(NamedTuple):
    """Offsets `first` up to `next_offset` (None: the end, wherever that was) cannot be read."""

    first: int
    next_offset: int | None
    path: str
    position: int
    reason: str
    torn: bool
    """Never synced: opening the log cuts it. Or a writer is in the middle of it."""
    opened: bool
    """False when the file could not even be opened."""


class _Met(NamedTuple):
    segment: SegmentFile
    item: Run | Damage


def select(directory: str, bounds: Bounds) -> Iterator[list[Record] | Unreadable]:
    """The records within the bounds, in offset order, a run at a time."""
    offset, left = bounds.from_offset, bounds.limit
    while left > 0:
        disk = LenientDisk()
        log = OfflineLog(directory, disk)
        offset = max(offset, log.start_offset)
        if log.state.truncate_to != NOT_TRUNCATING:
            bounds = bounds._replace(to_offset=min(bounds.to_offset, log.state.truncate_to))
        for segment, item in _walk(log, disk, offset, bounds):
            if isinstance(item, Run):
                records = _within(item, offset, left, bounds)
                if records:
                    yield records
                left -= len(records)
                offset = max(offset, item.next_offset)
                if left <= 0 or offset >= bounds.to_offset or item.scan.timestamps[-1] >= bounds.to_time:
                    return
                continue
            unopened = disk.unreadable.get(segment.path)
            torn = unopened is None and log.is_torn(segment, item)
            if not torn and _was_exchanged(directory, segment):
                break
            if item.next_offset > offset and item.first < bounds.to_offset:
                yield _unreadable(log, segment, item, torn=torn, unopened=unopened)
            if torn:
                return
            offset = max(offset, item.next_offset)
        else:
            return


def _walk(log: OfflineLog, disk: LenientDisk, offset: int, bounds: Bounds) -> Iterator[_Met]:
    """The runs and damaged ranges of the segments that may hold what is wanted."""
    for segment in log.segments():
        entry = segment.entry
        if segment.base >= bounds.to_offset:
            return
        if entry is not None and entry.count and entry.first_timestamp >= bounds.to_time:
            return
        if segment.extent.limit <= offset or (entry is not None and entry.last_timestamp < bounds.from_time):
            continue
        if segment.path in disk.unreadable:
            yield _Met(segment, Damage(segment.base, segment.extent.limit, 0, 0, ""))
            continue
        extent = _narrowed(segment, disk, offset, bounds.from_time)
        if extent is None:
            yield from (_Met(segment, item) for item in log.walk(segment))
            continue
        file = disk.open(segment.path)
        try:
            yield from (_Met(segment, item) for item in walk(file, extent))
        finally:
            file.close()


def _narrowed(segment: SegmentFile, disk: Disk, offset: int, from_time: int) -> Extent | None:
    """The part of a sealed segment that begins at the last index point before what is wanted."""
    entry = segment.entry
    if entry is None or (offset <= entry.base and from_time <= entry.first_timestamp) or not disk.exists(segment.path):
        return None
    stem = segment.path.removesuffix(".log")
    derived = companions.load(disk, stem, base=entry.base, seal=entry.seal, kinds=())
    if derived is None or not derived.index.offsets:
        return None
    points = derived.index.offsets
    by_offset = bisect_right(points, max(offset - entry.base, 0)) - 1
    later = derived.times.find(from_time)
    by_time = (len(points) if later is None else bisect_left(points, later)) - 1
    point = max(by_offset, by_time)
    if point <= 0:
        return None
    return segment.extent._replace(first=entry.base + points[point], position=derived.index.positions[point])


def _within(run: Run, offset: int, left: int, bounds: Bounds) -> list[Record]:
    """The records of a run that are wanted, decoded."""
    scan = run.scan
    first = max(bisect_left(scan.offsets, offset), bisect_left(scan.timestamps, bounds.from_time))
    end = min(bisect_left(scan.offsets, bounds.to_offset), bisect_left(scan.timestamps, bounds.to_time))
    end = min(end, first + left)
    if first >= end:
        return []
    stop = scan.positions[end] if end < len(scan) else scan.end
    return codec.decode(run.data[scan.positions[first] : stop], verified=True)


def _was_exchanged(directory: str, segment: SegmentFile) -> bool:
    """Whether the hard state no longer speaks of the segment as it was found."""
    now = next((entry for entry in OfflineLog(directory, DISK).state.sealed if entry.base == segment.base), None)
    return now != segment.entry


def _unreadable(
    log: OfflineLog, segment: SegmentFile, damage: Damage, *, torn: bool, unopened: str | None
) -> Unreadable:
    return Unreadable(
        damage.first,
        known_end(log, damage.first, damage.next_offset),
        segment.path,
        damage.position,
        unopened or damage.reason,
        torn,
        unopened is None,
    )


def known_end(log: OfflineLog, first: int, next_offset: int) -> int | None:
    """Where a damaged range ends. At the end of the log only the synced mark may know."""
    if next_offset < ENDLESS:
        return next_offset
    return log.synced.offset if log.synced is not None and log.synced.offset > first else None
