"""Reading a log's directory without opening it: no lock, no writer, nothing changed.

For `goqueue log cat|stats|verify` and for whoever reads a copy of the files. It goes by the same state file
and the same walk as the log itself. Beside a running writer the end it sees is that of a moment.
"""

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from goqueue.io.disk import Disk
from goqueue.model import limits
from goqueue.storage import derived as companions
from goqueue.storage import state as hard_state
from goqueue.storage.index import OffsetIndex
from goqueue.storage.recovery import clean_path, segment_bases
from goqueue.storage.segment import stem
from goqueue.storage.state import NOT_TRUNCATING, LogState, SealedSegment, Trait
from goqueue.storage.synced import Synced, SyncedMark
from goqueue.storage.walk import Damage, Extent, Run, walk


class SegmentFile(NamedTuple):
    """One segment as found: `entry` is None while it is not sealed."""

    base: int
    path: str
    size: int
    entry: SealedSegment | None
    following: int | None
    """The base of the segment after it."""

    @property
    def extent(self) -> Extent:
        """All of it, as far as the segment itself can say."""
        if self.entry is not None:
            contiguous = not self.entry.traits & Trait.CLEANED
            return Extent(self.base, self.entry.end, self.entry.size, contiguous)
        limit = self.following if self.following is not None else limits.MAX_OFFSET
        return Extent(self.base, limit, self.size, contiguous=True)


class Start(NamedTuple):
    """A place in a segment where a record begins."""

    position: int
    offset: int


class OfflineLog:
    """DamagedState when the directory's hard state cannot be read; FileNotFoundError when it is no log."""

    def __init__(self, directory: str, disk: Disk) -> None:
        self.directory = directory
        self._disk = disk
        state = hard_state.load(disk, directory)
        if state is None:
            raise FileNotFoundError(f"there is no log in {directory}")
        self.state: LogState = state
        self.synced: Synced | None = SyncedMark(disk, directory).load()

    @property
    def start_offset(self) -> int:
        return self.state.start_offset

    def segments(self, start: int = 0, end: int = limits.MAX_OFFSET) -> list[SegmentFile]:
        """In offset order, those that answer for offsets from `start` up to `end`.

        One that must be there and whose file is missing is listed with no bytes.
        """
        tail = {base for base in segment_bases(self._disk.list(self.directory)) if base >= self.state.tail_base}
        if self.synced is not None and self.synced.offset > self.state.tail_base:
            tail |= {self.state.tail_base, max(self.synced.base, self.state.tail_base)}
        if self.state.truncate_to != NOT_TRUNCATING:
            tail = {base for base in tail if base <= self.state.truncate_to}
        entries: list[tuple[int, SealedSegment | None]] = [(entry.base, entry) for entry in self.state.sealed]
        entries += [(base, None) for base in sorted(tail)]
        found = []
        for at, (base, entry) in enumerate(entries):
            following = entries[at + 1][0] if at + 1 < len(entries) else None
            if base < end and (following is None or following > start):
                path = self._path(base, entry)
                found.append(SegmentFile(base, path, self._size(path), entry, following))
        return found

    def _path(self, base: int, entry: SealedSegment | None) -> str:
        """A rewrite that the state speaks of and that has not taken its place yet is the segment."""
        if entry is not None and entry.traits & Trait.CLEANED:
            rewritten = clean_path(self.directory, base, entry.seal)
            if self._disk.exists(rewritten):
                return rewritten
        return stem(self.directory, base) + ".log"

    def _size(self, path: str) -> int:
        try:
            file = self._disk.open(path)
        except FileNotFoundError:
            return 0
        try:
            return file.size()
        finally:
            file.close()

    def start_of(self, segment: SegmentFile, offset: int) -> Start:
        """A place at most an index interval before an offset, if the segment has its index; else its beginning."""
        entry = segment.entry
        if entry is not None and offset > segment.base:
            saved = companions.load(
                self._disk, stem(self.directory, segment.base), base=entry.base, seal=entry.seal, kinds=()
            )
            if saved is not None:
                return _last_point(saved.index, segment.base, offset)
        return Start(0, segment.base)

    def walk(
        self, segment: SegmentFile, start: Start | None = None, piece: int | None = None
    ) -> Iterator[Run | Damage]:
        """The runs of records and the damaged ranges of one segment, or of what is left of it from `start` on."""
        extents = self._extents(segment)
        if start is not None:
            extents = [_from(extent, start) for extent in extents if start.position < extent.size]
            if not extents:
                return
        try:
            file = self._disk.open(segment.path)
        except FileNotFoundError:
            size, limit = extents[0].size, extents[0].limit
            if size:
                yield Damage(segment.base, limit, 0, size, "the file is missing")
            return
        try:
            for extent in extents:
                for item in walk(file, extent, piece):
                    is_end = isinstance(item, Damage) and item.position >= extent.size
                    if not is_end or extent.limit != limits.MAX_OFFSET:  # the last segment may end anywhere
                        yield item
        finally:
            file.close()

    def _extents(self, segment: SegmentFile) -> list[Extent]:
        """What must be in the segment: as sealed, or up to the synced mark, and after it what may be."""
        extent = segment.extent
        if segment.entry is not None or self.synced is None or self.synced.offset <= segment.base:
            return [extent]
        base, position, offset = self.synced
        if segment.base < base:
            return [extent._replace(limit=min(extent.limit, offset), contiguous=True)]
        below = Extent(base, offset, position, contiguous=True)
        if segment.size <= position and segment.following is None:
            return [below]
        return [below, extent._replace(first=offset, position=position, size=max(segment.size, position))]

    def is_torn(self, segment: SegmentFile, damage: Damage) -> bool:
        """Whether a bad end lies above the synced mark: it will be cut when the log is opened."""
        if segment.entry is not None:
            return False
        if self.synced is None:
            return segment.following is None and damage.end >= segment.size
        return (segment.base, damage.position) >= (self.synced.base, self.synced.position)


def _last_point(index: OffsetIndex, base: int, offset: int) -> Start:
    at = bisect_right(index.offsets, offset - base) - 1
    return Start(index.positions[at], base + index.offsets[at]) if at >= 0 else Start(0, base)


def _from(extent: Extent, start: Start) -> Extent:
    if start.position <= extent.position:
        return extent
    return extent._replace(first=start.offset, position=start.position)
