"""Reading a stretch of a partition from its files: what a task does, and how a partition is cut into tasks.

A part is offsets, not bytes: a broker may put other files in place of those that were there when the part was made.
So damage is believed only if the log's state still says what it said before it was read; otherwise it is looked up
again where the offset is now. Nothing here knows Spark.
"""

from bisect import bisect_right
from collections.abc import Generator, Iterator
from typing import Final, NamedTuple

from goqueue.base.offset_sets import pack, within
from goqueue.io.disk import Disk
from goqueue.model import limits
from goqueue.spark.log_directory import PartitionLog
from goqueue.spark.places import Stretch, split
from goqueue.storage.offline import OfflineLog, SegmentFile, Start
from goqueue.storage.state import Trait
from goqueue.storage.walk import Damage, Run

PIECE_BYTES: Final = 4 * limits.MIB
"""What is read, checked and handed on at once."""
PART_BYTES: Final = 32 * limits.MIB
"""About what a task reads."""


class Loss(NamedTuple):
    """What of a part cannot be read, and where it is, or should be."""

    path: str
    damage: Damage


class LogPart(NamedTuple):
    """Offsets of one partition, and what is known about where they are."""

    directory: str
    stretch: Stretch
    hidden: bytes
    """Offsets between that nobody may see, as a compressed bitmap."""
    base: int
    start: Start | None
    """A place to begin in the segment `base`, for one that has no index."""
    whole_segments: bool = False
    """Segments are walked from their beginning to their end, whatever the indexes say; a loss is told as it is there,
    also where it reaches out of the part."""
    torn: Loss | None = None
    """Bytes behind the end of the log."""


# ---------------------------------------------------------------- on the driver


def cut(
    found: PartitionLog, stretch: Stretch, *, most_records: int | None = None, whole_segments: bool = False
) -> list[LogPart]:
    """A stretch in parts for tasks: several small segments in one, a large one in several."""
    parts = []
    firsts = [segment.first for segment in found.segments]
    for each in split(_by_segment(found, stretch, whole_segments), least=None, most_records=most_records):
        segment = found.segments[bisect_right(firsts, each.start) - 1]
        starts = [start for start in segment.starts if start.offset <= each.start]
        hidden = within(found.hidden, each.start, each.end)
        parts.append(
            LogPart(
                directory=found.log.directory,
                stretch=each,
                hidden=pack(hidden),
                base=segment.file.base,
                start=starts[-1] if starts and not whole_segments else None,
                whole_segments=whole_segments,
            )
        )
    return parts


def _by_segment(found: PartitionLog, stretch: Stretch, whole_segments: bool) -> Iterator[Stretch]:
    start, gathered = stretch.start, 0
    for segment in found.segments:
        first, end = max(segment.first, stretch.start), min(segment.end, stretch.end)
        if first >= end:
            continue
        if gathered and gathered + segment.size > PART_BYTES:
            yield stretch._replace(start=start, end=first)
            start, gathered = first, 0
        gathered += segment.size
        # What of a cleaned one is there is known for all of it, so it stays whole.
        if gathered > 2 * PART_BYTES and not whole_segments and not segment.is_cleaned:
            yield from split(
                [stretch._replace(start=start, end=end)], least=-(-gathered // PART_BYTES), most_records=None
            )
            start, gathered = end, 0
    if start < stretch.end:
        yield stretch._replace(start=start)


# ---------------------------------------------------------------- in a task


class Piece(NamedTuple):
    """Records back to back; those from `start` on are wanted."""

    data: memoryview
    start: int


class PartReader:
    """Reads one part once."""

    def __init__(self, part: LogPart, disk: Disk) -> None:
        self._part = part
        self._disk = disk
        self._offset = part.stretch.start
        """Everything before it was handed out, or said to be lost."""
        self._end = part.stretch.end

    def read(self) -> Iterator[Piece | Loss]:
        """In order. Pieces may begin before the part, and end behind it."""
        while self._offset < self._end:
            try:
                log = OfflineLog(self._part.directory, self._disk)
            except FileNotFoundError:
                yield self._lose("the files of the partition are gone", self._end)
                return
            if self._offset < log.start_offset:
                yield self._lose("they were cleaned away since the read was planned", log.start_offset)
                continue
            is_same = yield from self._read(log)
            if is_same and self._offset < self._end:
                yield self._lose(f"the log ends at {self._offset}", self._end)

    def _read(self, log: OfflineLog) -> Generator[Piece | Loss, None, bool]:
        """As far as the part goes, or until the files turn out to be others than the log's state said: then False."""
        for segment in log.segments(self._offset, self._end):
            if self._offset >= self._end:
                break
            start = self._start(log, segment)
            count = 0
            for item in log.walk(segment, start, PIECE_BYTES):
                if isinstance(item, Run):
                    count += len(item.scan)
                    if item.next_offset > self._offset:
                        yield Piece(item.data, self._offset)
                else:
                    count = -limits.MAX_OFFSET
                    first, end = max(item.first, self._offset), min(item.next_offset, self._end)
                    if first < end:
                        if self._has_changed(log, segment):
                            return False
                        is_whole = self._part.whole_segments
                        yield Loss(segment.path, item if is_whole else item._replace(first=first, next_offset=end))
                self._offset = max(self._offset, item.next_offset)
                if self._offset >= self._end and not self._part.whole_segments:
                    break
            else:
                entry = segment.entry
                if entry is None:
                    continue
                if start.position == 0 and entry.traits & Trait.CLEANED and 0 <= count != entry.count:
                    if self._has_changed(log, segment):
                        return False
                    reason = f"the segment holds {count} records, the log's state says {entry.count}"
                    yield Loss(segment.path, Damage(entry.base, entry.end, 0, entry.size, reason))
                self._offset = max(self._offset, entry.end)
        return True

    def _start(self, log: OfflineLog, segment: SegmentFile) -> Start:
        part = self._part
        if part.whole_segments:
            return Start(0, segment.base)
        if segment.entry is None and segment.base == part.base and part.start is not None:
            return part.start
        return log.start_of(segment, self._offset)

    def _has_changed(self, log: OfflineLog, segment: SegmentFile) -> bool:
        """Whether the file that was read is no longer the one of that segment."""
        try:
            now = OfflineLog(log.directory, self._disk).segments(segment.base, segment.base + 1)
        except FileNotFoundError:
            return True
        return (segment.path, segment.entry) not in [(each.path, each.entry) for each in now]

    def _lose(self, reason: str, end: int) -> Loss:
        first, self._offset = self._offset, min(end, self._end)
        return Loss(self._part.directory, Damage(first, self._offset, 0, 0, reason))
