"""Opening a log after anything: finish what was begun, tell tear from damage, keep everything that can be kept.

Sealed segments are taken at the state file's word (their sizes are compared, nothing is read). The tail,
the segments not sealed yet, is walked once:
  - below the synced mark nothing is cut: bad bytes are quarantined and stay where they are;
  - above it the log ends at the first bad record: what follows is saved aside in `.cut` files, then cut.
When the mark itself is lost, everything up to the last valid record counts as below it. Recovery may die
at any point and be run again: each step is repeatable, and nothing is cut before it is saved aside.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
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
_CLEAN = re.compile(r"(\d{20})\.(\d+)\.(clean|view)")
_ENDINGS = {"clean": ".log", "view": ".view"}


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
    created: bool
    """The active segment's file was made just now, and its name is not durable yet."""
    report: RecoveryReport


def recover(disk: Disk, directory: str, settings: LogSettings, kinds: Sequence[ViewKind]) -> Recovered:
    """Bring a log's directory into order and say what is in it. The last segment is the active one."""
    return _Recovery(disk, directory, settings, kinds).run()


def recover_tail(
    disk: Disk,
    directory: str,
    settings: LogSettings,
    kinds: Sequence[ViewKind],
    state: LogState,
    mark: SyncedMark,
    inherited: Mapping[int, Derived],
    before: Derived | None,
) -> list[Segment]:
    """The segments of a tail that was just truncated; nothing else in the directory is touched.

    A segment that was there before, by its base in `inherited`, keeps what its views had inherited; the first of
    others inherits from `before`.
    """
    recovery = _Recovery(disk, directory, settings, kinds)
    recovery.mark, recovery.inherited, recovery.before = mark, inherited, before
    tail = recovery.tail(state, segment_bases(disk.list(directory)))
    if recovery.created:
        disk.sync_directory(directory)
    return tail


def truncate_tail(disk: Disk, directory: str, mark: SyncedMark, state: LogState) -> LogState:
    """Finish the truncation that `state` names: the tail ends at that offset afterwards. Repeatable."""
    target = state.truncate_to
    bases = [base for base in segment_bases(disk.list(directory)) if base >= state.tail_base]
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


def segment_bases(names: Iterable[str]) -> list[int]:
    """Of the segments among the files of a directory."""
    matches = (_SEGMENT.fullmatch(name) for name in names)
    return [int(match[1]) for match in matches if match]


def remove_segment(disk: Disk, directory: str, base: int) -> None:
    path = stem(directory, base)
    for companion in companions(path).values():
        disk.unlink(companion)
    disk.unlink(path + ".log")


def clean_path(directory: str, base: int, seal: int) -> str:
    """Where the cleaner writes the segment that will become `base` under seal number `seal`."""
    return f"{stem(directory, base)}.{seal}.clean"


def view_path(directory: str, base: int, seal: int) -> str:
    """Where the views of that segment wait to take their place with it."""
    return f"{stem(directory, base)}.{seal}.view"


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


class _Walked(NamedTuple):
    """A segment of the tail."""

    segment: Segment
    was_cut: bool
    """The log ends in it: what followed was cut."""
    whole: bool
    """Its file has the bytes it must have, so that more can be appended."""


class _Recovery:
    """One pass over one directory."""

    def __init__(self, disk: Disk, directory: str, settings: LogSettings, kinds: Sequence[ViewKind]) -> None:
        self.disk = disk
        self.directory = directory
        self.settings = settings
        self.kinds = kinds
        self.mark = SyncedMark(disk, directory)
        self.inherited: Mapping[int, Derived] = {}
        self.before: Derived | None = None
        """Of the segment before the one that comes next; views of the first of a tail have nobody to inherit from."""
        self.created = False
        """The active segment's file was made just now."""
        self.report = RecoveryReport()

    def run(self) -> Recovered:
        loaded = hard_state.load(self.disk, self.directory)
        if loaded is None:
            self.disk.make_directory(self.directory)
            loaded = LogState()
            self.mark.reset(Synced(0, 0, 0))
            hard_state.save(self.disk, self.directory, loaded)  # last: it makes both names durable
        else:
            # A killed process may have left names that the page cache shows and the disk does not have yet. They come
            # before anything that is removed because of them.
            self.disk.sync_directory(self.directory)
        if loaded.truncate_to != NOT_TRUNCATING:
            loaded = truncate_tail(self.disk, self.directory, self.mark, loaded)
        names = self.disk.list(self.directory)
        self._finish_cleaning(loaded, names)
        sealed = [Segment.sealed(self.directory, entry) for entry in loaded.sealed]
        for segment in sealed:
            self._check_sealed(segment)
        tail = self.tail(loaded, segment_bases(names))
        return Recovered(loaded, self.mark, sealed + tail, self.created, self.report)

    # --- what the cleaner left behind

    def _finish_cleaning(self, state: LogState, names: list[str]) -> None:
        """Put rewrites that the state speaks of in place; drop what it no longer lists."""
        seals = {entry.base: entry.seal for entry in state.sealed}
        unlisted = [base for base in segment_bases(names) if base < state.tail_base and base not in seals]
        rewrites = [match for match in map(_CLEAN.fullmatch, names) if match]
        for match in rewrites:
            base, seal = int(match[1]), int(match[2])
            path = f"{self.directory}/{match[0]}"
            if seals.get(base) == seal:
                self.disk.rename(path, stem(self.directory, base) + _ENDINGS[match[3]])
            else:
                self.disk.unlink(path)
        if hard_state.FILE_NAME + ".tmp" in names:
            self.disk.unlink(f"{self.directory}/{hard_state.FILE_NAME}.tmp")
        for base in unlisted:
            remove_segment(self.disk, self.directory, base)
        if rewrites or unlisted:
            self.disk.sync_directory(self.directory)

    def _check_sealed(self, segment: Segment) -> None:
        path = segment.key.path
        try:
            file = self.disk.open(path)
        except FileNotFoundError:
            self.report.notes.append(f"{path} is missing; an empty file takes its place")
            file = self.disk.open(path, create=True)
        try:
            if file.size() < segment.size:
                self._survey(segment, file)
        finally:
            file.close()

    def _survey(self, segment: Segment, file: File) -> None:
        segment.damage = [item for item in walk(file, segment.extent) if isinstance(item, Damage)]
        self.report.quarantined += [Quarantine(segment.key.path, damage) for damage in segment.damage]

    # --- the tail

    def tail(self, state: LogState, bases: Iterable[int]) -> list[Segment]:
        """The unsealed ones among the segments that have files. All that is kept of them is durable afterwards."""
        bases = [base for base in bases if base >= state.tail_base]
        on_disk = self.mark.stored or self.mark.load()
        synced = on_disk
        if synced is None:
            synced = self._last_valid(bases, state.tail_base)
            if synced.offset > state.tail_base:
                self.report.notes.append(f"the synced mark is lost; taking {synced.offset} as synced")
        if synced.offset < state.tail_base:
            synced = Synced(state.tail_base, 0, state.tail_base)
        tail: list[Segment] = []
        expected = state.tail_base
        ended = whole = False
        while not ended:
            following = min((base for base in bases if base > expected), default=None)
            if expected not in bases:
                if expected > synced.base or (expected == synced.base and synced.position == 0):
                    break
                self.report.notes.append(f"{stem(self.directory, expected)}.log is missing")
            segment, ended, whole = self._recover_segment(expected, following, synced, bases)
            tail.append(segment)
            assert segment.end > expected or ended or following is None
            expected = segment.end
            ended = ended or (following is None and expected >= synced.offset and segment.base >= synced.base)
        if not whole or tail[-1].end != tail[-1].base + tail[-1].count:
            tail.append(self._new_segment(expected))
            self.created = not self.disk.exists(tail[-1].key.path)
            self.disk.open(tail[-1].key.path, create=True).close()
        self._drop_unexpected(bases, tail)
        end = Synced(tail[-1].base, tail[-1].size, tail[-1].end)
        if end != on_disk:
            self.mark.store(end, durably=True)
        return tail

    def _recover_segment(self, base: int, following: int | None, synced: Synced, bases: list[int]) -> _Walked:
        """Walk one segment of the tail, and make durable what is kept of it."""
        segment = self._new_segment(base)
        file = self.disk.open(segment.key.path, create=True)
        try:
            was_cut = self._walk_segment(segment, file, following, synced, bases)
            file.sync()  # also what looks as if it were durable already
            segment.synced_size = segment.size
            return _Walked(segment, was_cut, whole=file.size() == segment.size)
        finally:
            file.close()

    def _walk_segment(
        self, segment: Segment, file: File, following: int | None, synced: Synced, bases: list[int]
    ) -> bool:
        """Fold its records; True when the log was cut in it."""
        base, size = segment.base, file.size()
        if base < synced.base:
            limit = following if following is not None else synced.offset
            self._fold(segment, file, Extent(base, limit, size, contiguous=True))
            segment.end = limit
            return False
        position = 0
        if base == synced.base and synced.offset > base:
            position = synced.position
            self._fold(segment, file, Extent(base, synced.offset, position, contiguous=True))
            segment.end, segment.size = synced.offset, position
        limit = following if following is not None else limits.MAX_OFFSET
        above = Extent(segment.end, limit, max(size, position), True, position, resync=False)
        torn = self._fold(segment, file, above, until_damage=True)
        if torn is None or (torn.position >= size and following is None):
            return False
        self._cut(segment, file, torn, [other for other in bases if other > base])
        return True

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
                segment.derived.lose(item.first, item.next_offset)
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

    def _new_segment(self, base: int) -> Segment:
        known = self.inherited.get(base)
        if known is not None:
            derived = known.anew()
        else:
            derived = Derived(base, self.settings.index_interval_bytes, self.kinds)
            if self.before is not None:
                derived.inherit([self.before])
        self.before = derived
        return Segment(self.directory, base, derived)

    def _drop_unexpected(self, bases: list[int], tail: list[Segment]) -> None:
        known = {segment.base for segment in tail}
        for base in bases:
            if base not in known and self.disk.exists(stem(self.directory, base) + ".log"):
                self.report.notes.append(f"{stem(self.directory, base)}.log does not belong to this log; left alone")
