"""Opening a log after anything: finish what was begun, tell tear from damage, keep everything that can be kept.

Sealed segments are taken at the state file's word (their sizes are compared, nothing is read). The tail,
the segments not sealed yet, is walked once:
  - below the synced mark nothing is cut: bad bytes are quarantined and stay where they are;
  - above it the log ends at the first bad record: what follows is saved aside in `.cut` files, then cut.
When the mark itself is lost, everything up to the last valid record counts as below it. Recovery may die
at any point and be run again: each step is repeatable, and nothing is cut before it is saved aside.
"""

import re
from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

import msgspec

from goqueue.io.disk import Disk, File
from goqueue.io.small_file import read_file, write_all
from goqueue.model import limits
from goqueue.model.settings import LogSettings
from goqueue.storage import state as hard_state
from goqueue.storage.derived import Derived, companions
from goqueue.storage.segment import Segment, stem
from goqueue.storage.state import NOT_TRUNCATING, LogState
from goqueue.storage.synced import Synced, SyncedMark
from goqueue.storage.views import ViewKind
from goqueue.storage.walk import Damage, Extent, Run, walk

_SEGMENT = re.compile(r"(\d{20})\.log")
_CLEAN = re.compile(r"(\d{20})\.(\d+)\.clean")


class Cut(NamedTuple):
    """The end of the log that was cut: from `first_offset` on, with the records still whole in it."""

    first_offset: int
    size: int
    valid_records: int
    saved_as: tuple[str, ...]


class Quarantine(NamedTuple):
    """A damaged range that recovery met, and the file it is in."""

    path: str
    damage: Damage


class RecoveryReport:
    """What opening found and did; empty after a clean stop."""

    def __init__(self) -> None:
        self.cut: Cut | None = None
        self.quarantined: list[Quarantine] = []
        self.notes: list[str] = []

    def __bool__(self) -> bool:
        return bool(self.cut or self.quarantined or self.notes)

    def lines(self) -> list[str]:
        """The same in words, a line each."""
        found = list(self.notes)
        for path, damage in self.quarantined:
            last = damage.next_offset - 1
            named = f"offset {last}" if damage.first == last else f"offsets {damage.first} to {last}"
            found.append(f"quarantined {named} in {path}: {damage.reason}")
        if self.cut is not None:
            whole = "1 whole record" if self.cut.valid_records == 1 else f"{self.cut.valid_records} whole records"
            found.append(
                f"cut {self.cut.size} bytes from offset {self.cut.first_offset} on ({whole} among them), "
                f"saved as {', '.join(self.cut.saved_as)}"
            )
        return found


class Recovered(NamedTuple):
    state: LogState
    mark: SyncedMark
    segments: list[Segment]
    report: RecoveryReport


def recover(disk: Disk, directory: str, settings: LogSettings, kinds: Sequence[ViewKind]) -> Recovered:
    """Bring a log's directory into order and say what is in it. The last segment is the active one."""
    return _Recovery(disk, directory, settings, kinds).run()


def recover_tail(
    disk: Disk, directory: str, settings: LogSettings, kinds: Sequence[ViewKind], state: LogState, mark: SyncedMark
) -> list[Segment]:
    """The segments of a tail that was just truncated; nothing else in the directory is touched."""
    recovery = _Recovery(disk, directory, settings, kinds)
    recovery.mark = mark
    return recovery.tail(state)


def truncate_tail(disk: Disk, directory: str, mark: SyncedMark, state: LogState) -> LogState:
    """Finish the truncation that `state` names: the tail ends at that offset afterwards. Repeatable."""
    target = state.truncate_to
    bases = [base for base in segment_bases(disk, directory) if base >= state.tail_base]
    last = max((base for base in bases if base <= target), default=target)
    position = 0
    file = disk.open(stem(directory, last) + ".log", create=True)
    try:
        position = _position_of(file, last, target)
        file.truncate(position)
        file.sync()
    finally:
        file.close()
    for base in bases:
        if base > last:
            remove_segment(disk, directory, base)
    disk.sync_directory(directory)
    mark.load()
    mark.reset(Synced(last, position, target))  # always: an earlier try may have left a mark that is not durable
    done = msgspec.structs.replace(state, truncate_to=NOT_TRUNCATING)
    hard_state.save(disk, directory, done)
    return done


def segment_bases(disk: Disk, directory: str) -> list[int]:
    matches = (_SEGMENT.fullmatch(name) for name in disk.list(directory))
    return [int(match[1]) for match in matches if match]


def remove_segment(disk: Disk, directory: str, base: int) -> None:
    path = stem(directory, base)
    for companion in companions(path).values():
        disk.unlink(companion)
    disk.unlink(path + ".log")


def clean_path(directory: str, base: int, seal: int) -> str:
    """Where the cleaner writes the segment that will become `base` under seal number `seal`."""
    return f"{stem(directory, base)}.{seal}.clean"


def _position_of(file: File, base: int, offset: int) -> int:
    """The byte position of `offset`, or of the first record after it."""
    position = 0
    for item in walk(file, Extent(base, limits.MAX_OFFSET, file.size(), contiguous=True)):
        if isinstance(item, Run):
            if item.next_offset > offset:
                first = item.scan.offsets[0]
                return item.position + item.scan.positions[max(offset - first, 0)]
            position = item.end
        elif item.next_offset >= offset:
            break
    return position


class _Recovery:
    """One pass over one directory."""

    def __init__(self, disk: Disk, directory: str, settings: LogSettings, kinds: Sequence[ViewKind]) -> None:
        self.disk = disk
        self.directory = directory
        self.settings = settings
        self.kinds = kinds
        self.mark = SyncedMark(disk, directory)
        self.report = RecoveryReport()

    def run(self) -> Recovered:
        loaded = hard_state.load(self.disk, self.directory)
        if loaded is None:
            self.disk.make_directory(self.directory)
            loaded = LogState()
            hard_state.save(self.disk, self.directory, loaded)
            self.mark.reset(Synced(0, 0, 0))
        # A killed process may have left names that the page cache shows and the disk does not have yet. They come
        # before anything that is removed because of them.
        self.disk.sync_directory(self.directory)
        if loaded.truncate_to != NOT_TRUNCATING:
            loaded = truncate_tail(self.disk, self.directory, self.mark, loaded)
        self._finish_cleaning(loaded)
        sealed = [Segment.sealed(self.directory, entry) for entry in loaded.sealed]
        for segment in sealed:
            self._check_sealed(segment)
        tail = self.tail(loaded)
        return Recovered(loaded, self.mark, sealed + tail, self.report)

    # --- what the cleaner left behind

    def _finish_cleaning(self, state: LogState) -> None:
        """Put rewrites that the state speaks of in place; drop what it no longer lists."""
        seals = {entry.base: entry.seal for entry in state.sealed}
        changed = False
        for name in self.disk.list(self.directory):
            path = f"{self.directory}/{name}"
            if match := _CLEAN.fullmatch(name):
                base, seal = int(match[1]), int(match[2])
                if seals.get(base) == seal:
                    self.disk.rename(path, stem(self.directory, base) + ".log")
                else:
                    self.disk.unlink(path)
                changed = True
            elif name == hard_state.FILE_NAME + ".tmp":
                self.disk.unlink(path)
        for base in segment_bases(self.disk, self.directory):
            if base < state.tail_base and base not in seals:
                remove_segment(self.disk, self.directory, base)
                changed = True
        if changed:
            self.disk.sync_directory(self.directory)

    def _check_sealed(self, segment: Segment) -> None:
        path = segment.key.path
        if not self.disk.exists(path):
            self.report.notes.append(f"{path} is missing; an empty file takes its place")
            self.disk.open(path, create=True).close()
        file = self.disk.open(path)
        try:
            if file.size() < segment.size:
                self._survey(segment, file)
        finally:
            file.close()

    def _survey(self, segment: Segment, file: File) -> None:
        segment.damage = [item for item in walk(file, segment.extent) if isinstance(item, Damage)]
        self.report.quarantined += [Quarantine(segment.key.path, damage) for damage in segment.damage]

    # --- the tail

    def tail(self, state: LogState) -> list[Segment]:
        bases = [base for base in segment_bases(self.disk, self.directory) if base >= state.tail_base]
        on_disk = self.mark.load()
        synced = on_disk
        if synced is None:
            synced = self._last_valid(bases, state.tail_base)
            if synced.offset > state.tail_base:
                self.report.notes.append(f"the synced mark is lost; taking {synced.offset} as synced")
        if synced.offset < state.tail_base:
            synced = Synced(state.tail_base, 0, state.tail_base)
        tail: list[Segment] = []
        expected = state.tail_base
        ended = False
        while not ended:
            following = min((base for base in bases if base > expected), default=None)
            if expected not in bases:
                if expected > synced.base or (expected == synced.base and synced.position == 0):
                    break
                self.report.notes.append(f"{stem(self.directory, expected)}.log is missing")
            segment, ended = self._recover_segment(expected, following, synced, bases)
            tail.append(segment)
            assert segment.end > expected or ended or following is None
            expected = segment.end
            ended = ended or (following is None and expected >= synced.offset and segment.base >= synced.base)
        if not tail or tail[-1].end != tail[-1].base + tail[-1].count or self._is_short(tail[-1]):
            tail.append(self._new_segment(expected))
        self._drop_unexpected(bases, tail)
        self._sync_tail(tail, on_disk)
        return tail

    def _recover_segment(
        self, base: int, following: int | None, synced: Synced, bases: list[int]
    ) -> tuple[Segment, bool]:
        """Walk one segment of the tail; True when the log was cut in it."""
        segment = self._new_segment(base)
        file = self.disk.open(segment.key.path, create=True)
        try:
            size = file.size()
            if base < synced.base:
                limit = following if following is not None else synced.offset
                self._fold(segment, file, Extent(base, limit, size, contiguous=True))
                segment.end = limit
                return segment, False
            position = 0
            if base == synced.base and synced.offset > base:
                position = synced.position
                self._fold(segment, file, Extent(base, synced.offset, position, contiguous=True))
                segment.end, segment.size = synced.offset, position
            limit = following if following is not None else limits.MAX_OFFSET
            above = Extent(segment.end, limit, max(size, position), True, position, resync=False)
            torn = self._fold(segment, file, above, until_damage=True)
            if torn is None or (torn.position >= size and following is None):
                return segment, False
            self._cut(segment, file, torn, [other for other in bases if other > base])
            return segment, True
        finally:
            file.close()

    def _fold(self, segment: Segment, file: File, extent: Extent, *, until_damage: bool = False) -> Damage | None:
        """Add a part of the file to the segment: runs are indexed, damage is quarantined, or returned."""
        assert segment.derived is not None
        for item in walk(file, extent):
            if isinstance(item, Run):
                segment.derived.add(item.position, item.data, item.scan)
                times = item.scan.timestamps
                segment.grow(item.end, item.next_offset, len(item.scan), (times[0], times[-1]))
            elif until_damage:
                return item
            else:
                segment.damage = [*(segment.damage or ()), item]
                segment.size, segment.end = item.end, item.next_offset
                self.report.quarantined.append(Quarantine(segment.key.path, item))
        return None

    def _cut(self, segment: Segment, file: File, torn: Damage, later: list[int]) -> None:
        """Save everything from the tear on aside, then make the log end there."""
        saved = []
        total = valid = 0
        for base, position in [(segment.base, torn.position), *((base, 0) for base in later)]:
            source = file if base == segment.base else self.disk.open(stem(self.directory, base) + ".log")
            size = source.size()
            if size > position:
                path = self._cut_path(f"{stem(self.directory, base)}-{position}", source, position, size)
                valid += self._save_aside(source, position, size, path, torn.first)
                saved.append(path)
                total += size - position
            if source is not file:
                source.close()
        self.disk.sync_directory(self.directory)
        for base in reversed(later):
            remove_segment(self.disk, self.directory, base)
        if later:
            self.disk.sync_directory(self.directory)
        if file.size() > torn.position:
            file.truncate(torn.position)
            file.sync()
        if total:
            self.report.cut = Cut(torn.first, total, valid, tuple(saved))

    def _cut_path(self, start: str, source: File, position: int, size: int) -> str:
        """A name that no earlier cut has, unless it saved the same bytes: then it was this one, interrupted."""
        for number in count(1):
            path = f"{start}.cut" if number == 1 else f"{start}-{number}.cut"
            saved = read_file(self.disk, path)
            if saved is None or source.read(position, size - position).startswith(saved):
                return path
        raise AssertionError("unreachable")

    def _save_aside(self, source: File, position: int, size: int, path: str, first: int) -> int:
        """Copy a part of a segment to `path`, durably; the count of whole records in it."""
        target = self.disk.open(path, create=True)
        try:
            target.truncate(0)
            for start in range(position, size, limits.SCAN_CHUNK_BYTES):
                write_all(target, start - position, source.read(start, min(limits.SCAN_CHUNK_BYTES, size - start)))
            target.sync()
        finally:
            target.close()
        part = Extent(first, limits.MAX_OFFSET, size, contiguous=False, position=position)
        return sum(len(item.scan) for item in walk(source, part) if isinstance(item, Run))

    def _last_valid(self, bases: list[int], tail_base: int) -> Synced:
        """The end of the last valid record of the tail."""
        last = Synced(tail_base, 0, tail_base)
        for base in bases:
            file = self.disk.open(stem(self.directory, base) + ".log")
            try:
                for item in walk(file, Extent(base, limits.MAX_OFFSET, file.size(), contiguous=False)):
                    if isinstance(item, Run):
                        last = Synced(base, item.end, item.next_offset)
            finally:
                file.close()
        return last

    def _is_short(self, segment: Segment) -> bool:
        """Whether the file lacks bytes the segment must have, so that nothing can be appended to it."""
        file = self.disk.open(segment.key.path)
        try:
            return file.size() != segment.size
        finally:
            file.close()

    def _new_segment(self, base: int) -> Segment:
        derived = Derived(base, self.settings.index_interval_bytes, self.kinds)
        return Segment(self.directory, base, derived)

    def _drop_unexpected(self, bases: list[int], tail: list[Segment]) -> None:
        known = {segment.base for segment in tail}
        for base in bases:
            if base not in known and self.disk.exists(stem(self.directory, base) + ".log"):
                self.report.notes.append(f"{stem(self.directory, base)}.log does not belong to this log; left alone")

    def _sync_tail(self, tail: list[Segment], on_disk: Synced | None) -> None:
        """Everything kept becomes durable before anybody builds on it, also what looks as if it were already."""
        for segment in tail:
            file = self.disk.open(segment.key.path, create=True)
            try:
                file.sync()
            finally:
                file.close()
            segment.synced_size = segment.size
        self.disk.sync_directory(self.directory)
        end = Synced(tail[-1].base, tail[-1].size, tail[-1].end)
        if end != on_disk:
            self.mark.store(end, durably=True)
