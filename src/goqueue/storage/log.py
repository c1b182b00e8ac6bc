"""An append-only log: one writer, any number of readers, nothing lost.

The writer appends blocks to the active segment and publishes them by moving `written`; readers never look
past it, so they never see a torn record. `sync` makes what is written durable, moves the synced mark and
`durable`, and seals segments that rolled. Threads: one at a time appends, rolls or truncates (`_writing`); one at a
time syncs, truncates or exchanges segments (`_maintenance`, always taken second); any may read. The log knows
no clock and starts no thread: `on_dirty` asks whoever drives it to call `sync` in time, or at once when a segment
rolled or somebody waits (`hasten`); `on_grown` to call `begin_sync` meanwhile.

Order of a publication, which readers rely on: bytes in the file, indexes and views, segment size and end, `fresh`,
`written`.
"""

from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from threading import RLock
from typing import NamedTuple

import msgspec

from goqueue import codec
from goqueue.base.mark import Mark
from goqueue.codec import Scan
from goqueue.io.disk import Disk, File
from goqueue.io.reserve import Reserve
from goqueue.io.small_file import write_all
from goqueue.model import limits
from goqueue.model.errors import (
    DiskFull,
    InvalidRequest,
    OffsetOutOfRange,
    Unavailable,
)
from goqueue.model.record import Producer, Record
from goqueue.model.settings import Fsync, LogSettings
from goqueue.storage.cache import DerivedCache
from goqueue.storage.catalogue import Catalogue
from goqueue.storage.derived import BUILT_IN, Derived
from goqueue.storage.ending import Ending, Reason
from goqueue.storage.files import OpenFiles
from goqueue.storage.flushing import Flusher
from goqueue.storage.reading import Chunk, Fresh, Reader
from goqueue.storage.recovery import Recovered, clean_path, recover
from goqueue.storage.segment import Segment
from goqueue.storage.state import LeaderEpoch, SealedSegment
from goqueue.storage.synced import Synced
from goqueue.storage.views import ViewKind


class Appended(msgspec.Struct, frozen=True, gc=False):
    """Where a block went: offsets `first_offset` up to `next_offset`, all with one timestamp."""

    first_offset: int
    next_offset: int
    timestamp: int
    scan: Scan


class Rewrite(NamedTuple):
    """A segment that a cleaner is about to write, under seal number `seal`."""

    seal: int
    path: str
    file: File


class _Tail(msgspec.Struct, frozen=True, gc=False):
    """The end of the written log at one moment."""

    segment: Segment
    size: int
    end: int

    @property
    def synced(self) -> Synced:
        """The mark that says it is durable."""
        return Synced(self.segment.base, self.size, self.end)


OnDirty = Callable[["Log", bool], None]
"""Called when there is something to sync: with False in the time the settings allow, with True at once."""
OnGrown = Callable[["Log"], None]
"""Called when so much waits for a sync that it is time for `begin_sync`; once until that is called."""


def _nobody(log: "Log", urgent: bool) -> None:
    """For a log whose owner calls `sync` by itself."""


def _never_mind(log: "Log") -> None:
    """For a log whose syncs may take their time."""


class Log:
    """Open with `Log.open`."""

    @classmethod
    def open(
        cls,
        directory: str,
        *,
        disk: Disk,
        files: OpenFiles | None = None,
        cache: DerivedCache | None = None,
        reserve: Reserve | None = None,
        settings: LogSettings | None = None,
        views: Sequence[ViewKind] = (),
        on_dirty: OnDirty = _nobody,
        on_grown: OnGrown = _never_mind,
    ) -> "Log":
        """Open a log, creating it if there is none, and recover it from whatever happened to it."""
        settings = settings or LogSettings()
        kinds = (*BUILT_IN, *views)
        recovered = recover(disk, directory, settings, kinds)
        files = files if files is not None else OpenFiles(disk)
        cache = cache if cache is not None else DerivedCache()
        return cls(
            directory,
            disk=disk,
            files=files,
            cache=cache,
            reserve=reserve,
            settings=settings,
            kinds=kinds,
            on_dirty=on_dirty,
            on_grown=on_grown,
            recovered=recovered,
        )

    def __init__(
        self,
        directory: str,
        *,
        disk: Disk,
        files: OpenFiles,
        cache: DerivedCache,
        reserve: Reserve | None,
        settings: LogSettings,
        kinds: tuple[ViewKind, ...],
        on_dirty: OnDirty,
        on_grown: OnGrown,
        recovered: Recovered,
    ) -> None:
        self.directory = directory
        self._settings = settings
        self.recovery = recovered.report
        self.disk = disk
        self.files = files
        self.kinds = kinds
        self._on_dirty = on_dirty
        self._on_grown = on_grown
        self._appended_bytes = 0
        """Since somebody was last asked to have the disk begin with them."""
        self._asked_to_begin = False
        """And has not done so yet."""
        self.fresh: Fresh | None = None
        self._reserve = reserve
        self._catalogue = Catalogue(directory, disk, files, cache, kinds, recovered)
        self._reader = Reader(self, disk, files, cache, kinds)
        self._flusher = Flusher(directory, disk, files, recovered.mark, names_dirty=recovered.created)
        self._tail = self._end()
        times = (segment.last_timestamp for segment in recovered.segments)
        self._last_timestamp = max(recovered.state.last_timestamp, *times)
        self.written = Mark(self._tail.end)
        self.durable = Mark(self._tail.end)
        self._ending = Ending(directory, self.written, self.durable)
        self._writing = RLock()
        self._maintenance = RLock()
        """Held across disk calls; an append waits for it only when too many segments wait to be sealed."""
        self.truncations = 0
        """How often records at the end were dropped: what was concluded from them before is no longer so."""
        self._requested = False
        """Somebody has been asked to sync and has not begun yet."""
        self._urgent = False
        """The same, and was asked to do it at once."""
        self._torn = not recovered.created
        """What lies past the end of the active file is unknown: it must be cut before the next append.

        After a failed write, and once after opening a file that was there: bytes that an earlier life wrote but
        whose file size never became durable may still be in the last block, and would be records again once the
        file has grown over them.
        """
        self._unfinished = False
        """An append began and did not end: indexes and views may have seen records that are not published."""
        if len(self._catalogue.unsealed()) > 1:
            self._ask(urgent=True)

    # --- what it is

    @property
    def settings(self) -> LogSettings:
        return self._settings

    @settings.setter
    def settings(self, settings: LogSettings) -> None:
        """They hold from now on. What an earlier fsync mode left unsynced is synced as the new one says."""
        with self._writing:  # or an append could count on a sync that was asked for under the old ones
            self._settings = settings
            if settings.fsync is not Fsync.NONE and (self._requested or self._has_unsynced()):
                self._ask(urgent=settings.fsync is Fsync.EVERY)

    @property
    def start_offset(self) -> int:
        return self._catalogue.state.start_offset

    @property
    def end_offset(self) -> int:
        """The offset the next record gets."""
        return self._tail.end

    @property
    def last_timestamp(self) -> int:
        return self._last_timestamp

    @property
    def segments(self) -> tuple[Segment, ...]:
        """In offset order, each beginning where the one before ends; the last one is active."""
        return self._catalogue.segments

    @property
    def sealed(self) -> tuple[SealedSegment, ...]:
        """What the state file says of the sealed ones among them."""
        return self._catalogue.state.sealed

    # --- appending

    def append(self, block: bytearray | memoryview, *, now: int, producer: Producer | None = None) -> Appended:
        """Stamp a block of records in place and write it. All of it is written, or none.

        Append times never go back, `now` may: times that are relative count from it.

        A block that is refused may be stamped already; its relative times have then become absolute.
        """
        with self._writing:
            return self._append(memoryview(block).cast("B"), now, producer)

    def _append(self, block: memoryview, now: int, producer: Producer | None) -> Appended:
        self._ending.check()
        size = len(block)
        if size > limits.MAX_BLOCK_BYTES:
            raise InvalidRequest(f"a block of {size} bytes is more than {limits.MAX_BLOCK_BYTES}; send less at a time")
        if self._torn:
            self._mend()
        timestamp = max(now, self._last_timestamp)
        scan = codec.stamp(block, offset=self._tail.end, timestamp=timestamp, now=now, producer=producer)
        count = len(scan)
        segment = self._tail.segment
        if segment.count and self._is_full(segment, size, count, timestamp):
            self._roll()
            segment = self._tail.segment
        position, first = self._tail.size, self._tail.end
        self._write(segment, position, block, scan)
        end = first + count
        segment.grow(position + size, end, count, (timestamp, timestamp))
        self._tail = _Tail(segment, position + size, end)
        self._torn = self._unfinished = False
        self._last_timestamp = timestamp
        is_fresh = size <= limits.FRESH_BLOCK_BYTES and self.written.waiting and self._settings.fsync is not Fsync.NONE
        self.fresh = Fresh(first, end, bytes(block)) if is_fresh else None
        self.written.advance(end)
        if not self._requested and self._settings.fsync is not Fsync.NONE:
            self._ask(urgent=self._settings.fsync is Fsync.EVERY)
        self._appended_bytes += size
        if self._appended_bytes >= limits.BEGIN_SYNC_BYTES and not self._asked_to_begin:
            self._appended_bytes = 0
            if self._settings.fsync is Fsync.INTERVAL:
                self._asked_to_begin = True
                self._on_grown(self)
        return Appended(first, end, timestamp, scan)

    def _is_full(self, segment: Segment, size: int, count: int, now: int) -> bool:
        return (
            segment.size + size > self._settings.segment_bytes
            or now - segment.first_timestamp >= self._settings.segment_age_ms
            or segment.end + count - segment.base > limits.MAX_SEGMENT_SPAN
        )

    def _write(self, segment: Segment, position: int, block: memoryview, scan: Scan) -> None:
        """Bytes, indexes and views, or nothing: also when an interruption comes in the middle."""
        assert segment.derived is not None
        self._torn = True
        try:
            file = self.files.acquire(segment.key)
            try:
                write_all(file, position, block)
            finally:
                self.files.release(segment.key, file)
            self._unfinished = True
            segment.derived.add(position, block, scan)
        except OSError as error:
            raise self.fail(f"writing failed: {error}") from error
        except BaseException:
            self._mend()
            raise

    def _mend(self) -> None:
        """Durably cut what may lie past the end, so that it can never be taken for records."""
        with self.or_fail("cutting the active segment to its end"), self.files.use(self._tail.segment.key) as file:
            file.truncate(self._tail.size)
            file.sync()
        if self._unfinished:
            segment = self._tail.segment
            assert segment.derived is not None
            segment.derived = self._reader.rebuild(segment, segment.derived.anew())
        self._torn = self._unfinished = False

    def tick(self, now: int) -> None:
        """Roll the active segment once its first record is old enough, so that retention can reach it."""
        with self._writing:
            segment = self._tail.segment
            if segment.count and now - segment.first_timestamp >= self._settings.segment_age_ms:
                self._roll()

    def roll(self) -> None:
        """Begin a new active segment; the old one is sealed at the next sync."""
        with self._writing:
            self._roll()

    def _roll(self) -> None:
        self._ending.check()
        if self._torn:
            self._mend()
        segment, end = self._tail.segment, self._tail.end
        if not segment.count:
            return
        if len(self._catalogue.unsealed()) > limits.MAX_UNSEALED_SEGMENTS:
            self.sync()
        assert segment.derived is not None
        derived = Derived(end, self._settings.index_interval_bytes, self.kinds)
        derived.inherit([segment.derived])
        following = Segment(self.directory, end, derived)
        with self.or_fail("creating a segment"):
            file = self.disk.open(following.key.path, create=True)
            file.truncate(0)  # a file of that name may have been left alone by recovery
            file.close()
        self._flusher.names_dirty = True  # after the name is there, before anybody can sync what is in the file
        self._catalogue.add(following)
        self._tail = _Tail(following, 0, end)
        self._torn = False
        self._ask(urgent=True)

    def _ask(self, *, urgent: bool) -> None:
        self._requested = True
        if urgent:  # never cleared here: a sync may have begun meanwhile
            self._urgent = True
        self._on_dirty(self, urgent)

    # --- reading

    def read(
        self, offset: int, *, max_bytes: int, max_count: int = limits.MAX_READ_COUNT, to_offset: int | None = None
    ) -> Chunk:
        """Records from `offset` on as they lie on disk, checked: at least one if there is one, within the bounds."""
        self._ending.check_open()
        if max_bytes < 1 or max_count < 1:
            raise InvalidRequest(f"a read of {max_bytes} bytes and {max_count} records: ask for at least one of each")
        return self._reader.read(offset, max_bytes, max_count, to_offset)

    def gather(self, offsets: "array[int]", *, max_bytes: int) -> bytearray | None:
        """Records at offsets that are far apart, with others between them; None: use `read` to find out why not."""
        self._ending.check_open()
        if not len(offsets) or offsets[0] < self.start_offset or offsets[-1] >= self.written.value:
            return None
        return self._reader.gather(offsets, max_bytes)

    def records(
        self, offset: int, *, max_bytes: int, max_count: int = limits.MAX_READ_COUNT, to_offset: int | None = None
    ) -> list[Record]:
        """The same, decoded."""
        chunk = self.read(offset, max_bytes=max_bytes, max_count=max_count, to_offset=to_offset)
        return codec.decode(chunk.data, verified=True)

    def is_cached(self, offset: int, size: int) -> bool:
        """Whether reading `size` bytes from here would probably not wait for a disk."""
        return self._reader.is_cached(offset, size)

    def offset_at(self, timestamp: int) -> int:
        """The first offset appended at or after `timestamp`; the end when there is none."""
        self._ending.check_open()
        return self._reader.offset_at(timestamp)

    def derived(self, segment: Segment) -> Derived:
        """The indexes and views of one of this log's segments."""
        return self._reader.derived(segment)

    def use(self, segment: Segment) -> AbstractContextManager[File]:
        """A segment's file for reading; raises Retired when it is no longer the one at its path."""
        return self._reader.use(segment)

    @contextmanager
    def settled(self) -> Iterator[None]:
        """No exchange of segments is under way in here; LogClosed when there will be none any more."""
        with self._maintenance:
            self._ending.check_open()
            yield

    # --- durability

    def sync(self) -> None:
        """Make everything written so far durable, and seal the segments that rolled."""
        with self._maintenance:
            self._ending.check()
            self._requested = self._urgent = False  # before looking at the tail: who comes after it asks again
            tail = self._tail
            self.fresh = None  # after the look: what comes between the two may be sealed here, and cleaned after that
            unsealed = self._catalogue.unsealed()
            with self.or_fail("fsync"):
                self._flusher.flush(unsealed, tail.synced)
            self.durable.advance(tail.end)
            rolled = [segment for segment in unsealed if segment.base < tail.segment.base]
            if rolled:
                self._seal(rolled)

    def begin_sync(self) -> None:
        """Have the disk begin with what the next sync will wait for; that one tells if something is wrong with it."""
        self._asked_to_begin = False
        with self._maintenance:
            self._ending.check()
            segment = self._tail.segment
            try:
                with self.files.use(segment.key) as file:
                    file.begin_sync(segment.synced_size)
            except (OSError, Unavailable):  # it could not be opened now
                pass

    def hasten(self) -> None:
        """Somebody waits for what is written by now to become durable: ask for a sync at once, whatever the mode."""
        if not self._urgent and self._has_unsynced():
            self._ask(urgent=True)

    def _has_unsynced(self) -> bool:
        return self.durable.value < self.written.value

    def _seal(self, rolled: list[Segment]) -> None:
        """Without space for the state file they stay as they are: the next sync tries again."""
        with self.or_fail("sealing a segment"):
            try:
                self._catalogue.seal(rolled, self._last_timestamp)
            except DiskFull:
                return

    def or_fail(self, doing: str) -> AbstractContextManager[None]:
        """An OSError in here means the disk can no longer be believed: nothing is acknowledged from then on."""
        return self._ending.or_fail(doing)

    def fail(self, reason: str) -> Reason:
        """Stop here: every call and everybody waiting gets the error that is returned."""
        return self._ending.fail(reason)

    # --- leader epochs

    @property
    def epochs(self) -> tuple[LeaderEpoch, ...]:
        return self._catalogue.state.epochs

    def begin_epoch(self, epoch: int) -> None:
        """Records from here on belong to leader epoch `epoch`. Durable when it returns."""
        with self._maintenance:
            self.sync()  # an epoch that began past the end found after a power cut would claim what comes there
            with self.or_fail("saving a leader epoch"):
                self._catalogue.begin_epoch(epoch, self.end_offset)

    def epoch_end(self, epoch: int) -> LeaderEpoch:
        """The newest leader epoch not after `epoch`, with the offset where it ends (not where it starts)."""
        return self._catalogue.epoch_end(epoch, self.end_offset)

    # --- truncation and cleaning

    def truncate(self, offset: int) -> None:
        """Drop every record at or above `offset`; the next append gets it. Durable when it returns."""
        with self._writing, self._maintenance:
            self._check_range(offset)
            if self._torn:
                self._mend()
            end = self.end_offset
            if offset == end:
                return
            self.sync()
            gone = OffsetOutOfRange(offset, start=self.start_offset, end=offset)
            self.written.rewind(offset, gone)  # first: readers must not look for what is about to go
            try:
                with self.or_fail("truncating"):
                    self._catalogue.truncate(offset, self._reader, self._settings)
            except DiskFull:
                self.written.advance(end)
                raise
            self._tail = self._end()
            self._torn = True
            self.truncations += 1
            self.durable.rewind(offset, gone)

    def truncate_prefix(self, offset: int) -> None:
        """The log starts at `offset` from now on; sealed segments wholly before it are removed."""
        with self._maintenance:
            self._check_range(offset)
            self.sync()
            self._remove([entry for entry in self.sealed if entry.end <= offset], start_offset=offset)

    def remove(self, old: Sequence[SealedSegment], *, truncations: int | None = None) -> bool:
        """Remove consecutive sealed segments; False when they, or the log's `truncations`, are no longer those."""
        with self._maintenance:
            self._ending.check()
            return truncations in (None, self.truncations) and self._remove(old)

    def _remove(self, old: Sequence[SealedSegment], *, start_offset: int = 0) -> bool:
        def work() -> bool:
            return self._catalogue.remove(old, start_offset=start_offset)

        with self.or_fail("removing segments"):
            return work() if self._reserve is None else self._reserve.shrinking(work)

    def replace(
        self,
        old: Sequence[SealedSegment],
        new: SealedSegment,
        *,
        truncations: int | None = None,
        source: str | None = None,
        derived: Derived | None = None,
    ) -> bool:
        """Put a rewritten segment in place of consecutive sealed ones; False as for `remove`."""
        with self._maintenance, self.or_fail("replacing segments"):
            self._ending.check()
            return truncations in (None, self.truncations) and self._catalogue.replace(
                old, new, source=source, derived=derived
            )

    def begin_rewrite(self, base: int) -> Rewrite:
        """A file for a segment that is to take the place of `base` and others after it."""
        with self._maintenance:  # a log that is abandoned gets no new files
            self._ending.check()
            seal = self._catalogue.take_seal()
            path = clean_path(self.directory, base, seal)
            return Rewrite(seal, path, self.disk.open(path, create=True))

    def _check_range(self, offset: int) -> None:
        self._ending.check()
        if not self.start_offset <= offset <= self.end_offset:
            raise OffsetOutOfRange(offset, start=self.start_offset, end=self.end_offset)

    def _end(self) -> _Tail:
        active = self._catalogue.segments[-1]
        return _Tail(active, active.size, active.end)

    # --- the end

    def close(self) -> None:
        """Sync and let go of the files. A log that failed is let go as it is."""
        with self._writing, self._maintenance:
            if self._ending.reason is None:
                if self._unfinished:
                    self._mend()
                self.sync()
                with self.or_fail("closing"):
                    self._flusher.mark(self._tail.synced, durably=True)
                self._ending.close("is closed; open it again")
            for segment in self.segments:
                self.files.forget(segment.key)

    def abandon(self) -> None:
        """Stop at once and for good: nothing is synced, and nobody touches the files when it returns."""
        self._ending.close("was removed")
        with self._writing:
            pass  # who was in here is done, and who comes after is refused
        with self._maintenance:
            self._catalogue.retire_all()
