"""Reading a log: find the segment, find the interval, hand out whole checked records.

Readers run in any thread beside the writer and the cleaner. They hold no lock: a reader takes the segments
as they are published, and when the file under one was exchanged meanwhile (`retired`) it looks again.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from operator import attrgetter
from typing import Final, NamedTuple, Protocol

import msgspec

from goqueue import codec
from goqueue.base.mark import Mark
from goqueue.codec import Problem
from goqueue.io.disk import Disk, File
from goqueue.model import limits
from goqueue.model.errors import DamagedData, DiskFull, OffsetOutOfRange, Quarantined
from goqueue.model.settings import LogSettings
from goqueue.storage import derived as companions
from goqueue.storage.cache import DerivedCache
from goqueue.storage.derived import Derived
from goqueue.storage.files import OpenFiles
from goqueue.storage.segment import Retired, Segment
from goqueue.storage.state import Trait
from goqueue.storage.views import ViewKind
from goqueue.storage.walk import Damage, Run, read_around, walk

_BASE = attrgetter("base")
_TOGETHER: Final = 64
"""Offsets far apart that may be read with what lies between them."""
_NEAR: Final = 3
"""How many index intervals for each of them may be read at most, rather than one around each."""


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """Whole records, back to back, and the offset to read at next."""

    data: memoryview
    count: int
    next_offset: int


class Fresh(msgspec.Struct, frozen=True, gc=False):
    """A block that was just written, as it lies in the file."""

    first: int
    end: int
    data: bytes


class Readable(Protocol):
    """What a reader sees of its log."""

    fresh: Fresh | None
    """The last block, while whoever waited for it has probably not read it yet."""

    @property
    def segments(self) -> tuple[Segment, ...]: ...
    @property
    def start_offset(self) -> int: ...
    @property
    def end_offset(self) -> int: ...
    @property
    def written(self) -> Mark: ...
    @property
    def settings(self) -> LogSettings: ...
    def settled(self) -> AbstractContextManager[None]:
        """No exchange of segments is under way in here; LogClosed when there will be none any more."""


class _Span(NamedTuple):
    """Bytes of a segment to read in one go, with the offsets up to `bound` in a row of them."""

    start: int
    stop: int
    bound: int


def _span(segment: Segment, derived: Derived, offsets: "array[int]", at: int, end: int) -> _Span:
    """For the next offsets from `at` on: several, if there are not much more bytes between them than around each."""
    index, base = derived.index, segment.base
    first, bound = index.find(offsets[at] - base), min(at + _TOGETHER, end)
    last = index.find(offsets[bound - 1] - base)
    stop = segment.size if last.end is None else last.end
    if stop - first.start <= (bound - at) * _NEAR * derived.interval:
        return _Span(first.start, stop, bound)
    point = index.following(offsets[at] - base)
    bound = end if point is None else bisect_left(offsets, base + point, at, end)
    return _Span(first.start, segment.size if first.end is None else first.end, bound)


class Reader:
    """Reads one log."""

    def __init__(
        self, log: Readable, disk: Disk, files: OpenFiles, cache: DerivedCache, kinds: Sequence[ViewKind]
    ) -> None:
        self._log = log
        self._disk = disk
        self._files = files
        self._cache = cache
        self._kinds = kinds

    def read(self, offset: int, max_bytes: int, max_count: int, to_offset: int | None) -> Chunk:
        log, max_bytes = self._log, min(max_bytes, limits.MAX_READ_BYTES)
        while True:
            limit = log.written.value
            if to_offset is not None and to_offset < limit:
                limit = to_offset
            if not log.start_offset <= offset <= log.end_offset:
                raise OffsetOutOfRange(offset, start=log.start_offset, end=log.end_offset)
            if offset >= limit:
                return Chunk(memoryview(b""), 0, offset)
            fresh = log.fresh
            if fresh is not None and (fresh.first, fresh.end) == (offset, limit):
                if len(fresh.data) <= max_bytes and limit - offset <= max_count:
                    return Chunk(memoryview(fresh.data), limit - offset, limit)
            segment = self._segment(offset)
            try:
                chunk = self._read_segment(segment, offset, limit, max_bytes, max_count)
            except Retired:
                with self._log.settled():
                    continue
            if chunk is not None:
                return chunk
            offset = min(segment.end, limit)

    def gather(self, offsets: "array[int]", max_bytes: int) -> bytearray | None:
        """The records at these offsets, which ascend, and others between them, checked, back to back.

        For offsets that are far apart: what lies between is read only where that is cheaper. At least one record, and
        up to about `max_bytes`, or so many that others had to wait for long. None when something is in the way (damage,
        a hole, another file): `read` finds out.
        """
        offsets = offsets[: limits.GATHERED_AT_ONCE]
        gathered = bytearray()
        at = 0
        while at < len(offsets) and (len(gathered) < max_bytes or not gathered):
            segment = self._segment(offsets[at])
            end = bisect_left(offsets, segment.end, at)
            if segment.damage or end == at:
                return None
            try:
                derived = self.derived(segment)
                with self.use(segment) as file:
                    while at < end and (len(gathered) < max_bytes or not gathered):
                        span = _span(segment, derived, offsets, at, end)
                        data = read_around(file, span.start, span.stop - span.start)
                        found = codec.select(
                            data,
                            from_offset=offsets[at],
                            to_offset=offsets[span.bound - 1] + 1,
                            max_count=limits.MAX_READ_COUNT,
                            max_bytes=limits.MAX_READ_BYTES,
                        )
                        if found.problem is not Problem.NONE or not found.count:
                            return None
                        gathered += memoryview(data)[found.start : found.end]
                        at = span.bound
            except Retired:
                return None
        return gathered

    def is_cached(self, offset: int, size: int) -> bool:
        """By the first and the last byte. A segment whose indexes are not in memory counts as not cached."""
        segment = self._segment(offset)
        derived = segment.derived
        if derived is None:
            return False
        start = derived.index.find(max(offset - segment.base, 0)).start
        end = min(start + size, segment.size) - 1
        if end < start:
            return True
        try:
            with self.use(segment) as file:
                return file.is_cached(start) and file.is_cached(end)
        except (Retired, OSError):
            return False

    def _segment(self, offset: int) -> Segment:
        segments = self._log.segments
        last = segments[-1]
        if offset >= last.base:
            return last
        return segments[max(bisect_right(segments, offset, key=_BASE) - 1, 0)]

    def _read_segment(self, segment: Segment, offset: int, limit: int, max_bytes: int, max_count: int) -> Chunk | None:
        """Records of one segment, or None when it has none from `offset` up to `limit`."""
        file = self._acquire(segment)
        try:
            return self._read_file(segment, file, offset, limit, max_bytes, max_count)
        finally:
            self._files.release(segment.key, file)

    def _read_file(
        self, segment: Segment, file: File, offset: int, limit: int, max_bytes: int, max_count: int
    ) -> Chunk | None:
        derived = self.derived(segment)
        start, stop = self._bounds(segment, derived, offset, limit)
        want = derived.interval + max_bytes
        while start < stop:
            asked = min(want, stop - start)
            data = read_around(file, start, asked)
            if len(data) < asked:
                break
            found = codec.select(data, from_offset=offset, to_offset=limit, max_count=max_count, max_bytes=max_bytes)
            if found.count:
                first = found.last_offset - found.count + 1
                if first != offset:
                    self._check_first(segment, offset, first)
                return Chunk(memoryview(data)[found.start : found.end], found.count, found.last_offset + 1)
            cut_short = start + len(data) < stop
            if found.problem is Problem.NONE and (found.end < len(data) or not cut_short):
                break
            if found.problem not in (Problem.NONE, Problem.INCOMPLETE) or not cut_short:
                return self._meet_damage(segment, file, offset, limit, max_bytes, max_count)
            if found.end == 0:
                want *= 2
            start += found.end
        if segment.traits & Trait.CLEANED:
            return None
        return self._meet_damage(segment, file, offset, limit, max_bytes, max_count)

    def _bounds(self, segment: Segment, derived: Derived, offset: int, limit: int) -> tuple[int, int]:
        """The bytes to look in: between the index points around the offsets, around ranges known to be damaged."""
        start, stop = derived.index.find(offset - segment.base).start, segment.size
        if limit < segment.end:
            last = derived.index.find(limit - 1 - segment.base).end
            stop = stop if last is None else min(stop, last)
        for damage in segment.damage or ():
            if damage.first <= offset < damage.next_offset:
                raise Quarantined(damage.first, damage.next_offset, where=segment.key.path, reason=damage.reason)
            if damage.next_offset <= offset:
                start = max(start, damage.end)
            elif damage.position >= start:
                stop = min(stop, damage.position)
        return start, stop

    def _check_first(self, segment: Segment, offset: int, first: int) -> None:
        """Another record than the one that was looked for is right only where some were cleaned away."""
        if not segment.traits & Trait.CLEANED:
            if segment.retired:
                raise Retired
            raise DamagedData(
                f"looking for offset {offset} in {segment.key.path} led to {first}; stop, delete the .index file "
                "beside it if there is one, and start again"
            )

    def _meet_damage(
        self, segment: Segment, file: File, offset: int, limit: int, max_bytes: int, max_count: int
    ) -> Chunk | None:
        """Bytes that are no record: find out exactly which offsets that costs, then read around them."""
        if segment.retired or offset >= self._log.written.value:
            raise Retired
        damage = [item for item in walk(file, segment.extent) if isinstance(item, Damage)]
        if damage == (segment.damage or []):
            raise DamagedData(
                f"offset {offset} cannot be found in {segment.key.path}, although its records are whole; stop, delete "
                "the .index file beside it if there is one, and start again"
            )
        segment.damage = damage
        return self._read_segment(segment, offset, limit, max_bytes, max_count)

    # --- by time

    def offset_at(self, timestamp: int) -> int:
        while True:
            segment = next(
                (found for found in self._log.segments if found.count and found.last_timestamp >= timestamp), None
            )
            if segment is None:
                return self._log.end_offset
            try:
                found = self._offset_in(segment, timestamp)
            except Retired:
                with self._log.settled():
                    continue
            return max(found, self._log.start_offset)

    def _offset_in(self, segment: Segment, timestamp: int) -> int:
        """The first offset of the segment at or after `timestamp`: it has one.

        Size and end first, then the time index: a point that is not there yet then has no record before `size`.
        """
        derived = self.derived(segment)
        size, end = segment.size, segment.end
        point = derived.times.find(timestamp)
        if point is None:
            interval, otherwise = derived.index.last(size), end
        else:
            interval, otherwise = derived.index.before(point), segment.base + point
        stop = size if interval.end is None else min(interval.end, size)
        with self.use(segment) as file:
            scan = codec.scan(read_around(file, interval.start, stop - interval.start))
            if scan.problem is not Problem.NONE:
                return self._offset_around_damage(segment, file, timestamp)
        at = bisect_left(scan.timestamps, timestamp)
        return scan.offsets[at] if at < len(scan) else otherwise

    def _offset_around_damage(self, segment: Segment, file: File, timestamp: int) -> int:
        """A damaged record may be the one looked for: then its offset, where a reader is told what is missing."""
        damaged = None
        for item in walk(file, segment.extent):
            if isinstance(item, Damage):
                damaged = item.first if damaged is None else damaged
            elif item.scan.timestamps[-1] < timestamp:
                damaged = None
            elif damaged is not None and item.scan.timestamps[0] >= timestamp:
                return damaged
            else:
                return item.scan.offsets[bisect_left(item.scan.timestamps, timestamp)]
        return segment.end if damaged is None else damaged

    @contextmanager
    def use(self, segment: Segment) -> Iterator[File]:
        """The segment's file, or Retired when it is no longer the one at its path."""
        file = self._acquire(segment)
        try:
            yield file
        finally:
            self._files.release(segment.key, file)

    def _acquire(self, segment: Segment) -> File:
        """The same, until it is released."""
        try:
            file = self._files.acquire(segment.key)
        except FileNotFoundError:
            if not segment.retired:
                raise
            raise Retired from None
        if segment.retired:
            self._files.forget(segment.key)  # it may have been opened just now
            self._files.release(segment.key, file)
            raise Retired
        return file

    # --- indexes and views

    def derived(self, segment: Segment) -> Derived:
        """In memory, from the files beside the segment, or built anew from its records."""
        derived = segment.derived
        if not segment.seal:
            assert derived is not None
            return derived
        if derived is None:
            derived = companions.load(
                self._disk, segment.stem, base=segment.base, seal=segment.seal, kinds=self._kinds
            ) or self._rebuild(segment)
            segment.derived = derived
        self._cache.touch(segment)
        return derived

    def _rebuild(self, segment: Segment) -> Derived:
        """From the records of a sealed segment, and saved beside it again. Views that can be read stay as they are."""
        derived = self.rebuild(segment, Derived(segment.base, self._log.settings.index_interval_bytes, self._kinds))
        saved = companions.load_views(self._disk, segment.stem, base=segment.base, seal=segment.seal, kinds=self._kinds)
        save = companions.save
        if saved is not None:
            derived.views, save = saved, companions.save_indexes
        with self._log.settled():  # or files would come back that somebody has just removed
            if segment.retired:
                raise Retired
            try:
                save(self._disk, segment.stem, derived, base=segment.base, seal=segment.seal)
            except DiskFull:
                pass
        return derived

    def rebuild(self, segment: Segment, derived: Derived) -> Derived:
        """Fold a segment's records, as far as it has published them, into indexes and views that have none yet."""
        damage = []
        with self.use(segment) as file:
            for item in walk(file, segment.extent):
                if isinstance(item, Run):
                    derived.add(item.position, item.data, item.scan)
                else:
                    derived.lose(item.first, item.next_offset)
                    damage.append(item)
        segment.damage = damage
        return derived

    def measure(self, segment: Segment, offset: int) -> tuple[int, int, int]:
        """Size, count and last timestamp of the segment's records before `offset`; damage before it stays in it."""
        size = count = last = 0
        with self.use(segment) as file:
            for item in walk(file, segment.extent):
                if isinstance(item, Damage):
                    if item.first < offset:
                        size = item.end
                    if item.next_offset >= offset:
                        break
                    continue
                scan = item.scan
                before = bisect_left(scan.offsets, offset)
                if before:
                    size = item.position + (scan.positions[before] if before < len(scan) else scan.end)
                    count, last = count + before, scan.timestamps[before - 1]
                if before < len(scan):
                    break
        return size, count, last
