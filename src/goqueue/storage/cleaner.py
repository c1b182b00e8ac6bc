"""The one cleaner: retention by time and bytes, compaction by key. Survivors keep their offsets.

It works on sealed segments only. A segment is removed whole, or consecutive ones are rewritten without the records
that may go and put in place of the old (`Log.replace`). A record whose deliver-at time has not come, or that is
pending although the wall's clock has passed that time, is never removed; its age runs from the later of append and
delivery. So is one of an open transaction; and of a transaction that has ended the marker that says how stays as long
as any of its records. A segment with damage in it is not rewritten: what cannot be read is not silently dropped. The
newest sealed segment, when its views carry what was inherited, is emptied instead of removed.

Compaction remembers the newest offset of each key in the segments it is not done with, as many at a time as
memory allows, and rewrites everything up to there, oldest first: a tombstone outlives the values it deletes. It
is done with a segment once nothing in it waits for its time (a delay, a young tombstone).
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

import msgspec

from goqueue import codec
from goqueue.codec import Scan
from goqueue.io.small_file import write_all
from goqueue.model import limits
from goqueue.model.errors import LogClosed
from goqueue.model.record import Record
from goqueue.storage.delays import AS_WRITTEN, DelayView, DueTimes
from goqueue.storage.derived import Derived
from goqueue.storage.log import Log
from goqueue.storage.segment import Retired, Segment
from goqueue.storage.state import SealedSegment, Trait
from goqueue.storage.transactions import Run as TransactionRun
from goqueue.storage.transactions import transactions
from goqueue.storage.walk import Damage, Run, walk

_NEVER = -1

Keep = Callable[[Run], list[bool]]
IsPending = Callable[[Record], bool]


class CleanReport:
    """What a pass did."""

    def __init__(self, truncations: int) -> None:
        self.truncations = truncations
        """How often the log had been truncated when the pass began: one more, and its conclusions are void."""
        self.removed_segments = 0
        self.rewritten_segments = 0
        self.removed_records = 0
        self.removed_bytes = 0
        self.skipped: list[str] = []
        """Segments left as they are because of damage."""
        self.interrupted = False
        """The log was truncated meanwhile, and the next pass goes on; or it was closed or removed."""


class _Damaged(Exception):
    pass


class _Rewritten(NamedTuple):
    entry: SealedSegment
    derived: Derived
    path: str


def clean(log: Log, now: int, times: DueTimes = AS_WRITTEN) -> CleanReport:
    """Apply the log's retention and compaction settings as of `now`. May run beside the writer and readers.

    `times` says which delayed records were moved or cancelled, and which are pending.
    """
    report = CleanReport(log.truncations)
    try:
        _drop(log, [entry for entry in log.sealed if entry.end <= log.start_offset], report)
        _retain(log, now, times, report)
        if log.settings.compact:
            _compact(log, now, times, report)
    except (Retired, LogClosed):
        report.interrupted = True
    return report


# --- retention


def _retain(log: Log, now: int, times: DueTimes, report: CleanReport) -> None:
    """Remove or thin out the oldest segments that are too old, or too much."""
    keeping: list[SealedSegment] = []
    kept: set[int] = set()
    living: set[int] = set()
    doomed: list[SealedSegment] = []
    for entry, cutoff in list(_expired(log, now)):
        if entry.end > times.end:  # sealed meanwhile
            break
        survivors = _awaited(log, entry, cutoff, times)
        if survivors or living:
            survivors += _markers(_transactions(log, entry), survivors, living)
        if not survivors and not _carries(log, entry):
            doomed.append(entry)
            continue
        _drop(log, doomed, report)
        doomed = []
        keeping.append(entry)
        kept.update(survivors)
    _drop(log, doomed, report)
    current = {entry.base: entry for entry in log.sealed}
    still_there = [current[entry.base] for entry in keeping if entry.base in current]
    for group in _groups(log, still_there):
        count = sum(entry.count for entry in group)
        remaining = sum(1 for offset in kept if group[0].base <= offset < group[-1].end)
        if remaining < count or len(group) > 1:
            _rewrite(log, group, lambda run: [offset in kept for offset in run.scan.offsets], Trait(0), report)


def _expired(log: Log, now: int) -> Iterator[tuple[SealedSegment, int]]:
    """Segments past retention, oldest first, each with the time its delayed records must be due by to go too."""
    oldest = None if log.settings.retention_ms is None else now - log.settings.retention_ms
    excess = None
    if log.settings.retention_bytes is not None:
        # What is not durable yet may be gone after a power cut: nothing is removed on its account.
        excess = sum(segment.synced_size for segment in log.segments) - log.settings.retention_bytes
    for entry, latest in zip(log.sealed, _latest(log), strict=False):
        if oldest is not None and latest < oldest:
            yield entry, oldest
        elif excess is not None and excess >= entry.size:
            yield entry, now
        else:
            return
        if excess is not None:
            excess -= entry.size


def _latest(log: Log) -> list[int]:
    """When each sealed segment had its last record. One of which nothing can be read is as young as what follows it."""
    known = log.last_timestamp or limits.MAX_OFFSET
    found = []
    for segment in reversed(log.segments):
        if segment.last_timestamp:
            known = segment.last_timestamp
        if segment.seal:
            found.append(known)
    return found[::-1]


def _awaited(log: Log, entry: SealedSegment, cutoff: int, times: DueTimes) -> list[int]:
    """Offsets of the segment's records that are to be delivered after `cutoff`, are pending, or not decided about."""
    view = log.derived(_segment(log, entry)).views["delays"]
    delayed = view.due_after(cutoff, times) if isinstance(view, DelayView) else []
    undecided = times.uncommitted(entry.base, entry.end)
    return sorted({*delayed, *undecided}) if undecided else delayed


def _transactions(log: Log, entry: SealedSegment) -> list[TransactionRun]:
    return list(transactions(log.derived(_segment(log, entry)).views).runs())


def _markers(runs: list[TransactionRun], survivors: list[int], living: set[int]) -> list[int]:
    """Those of transactions that keep a record here or, as `living` says, before; it learns those here."""
    if not runs:
        return []
    at = 0
    markers = []
    for run in runs:
        if run.is_marker:
            markers += [run.first] if run.transaction in living else []
            continue
        while at < len(survivors) and survivors[at] < run.first:
            at += 1
        if at < len(survivors) and survivors[at] < run.first + run.records:
            living.add(run.transaction)
    return markers


def _carries(log: Log, entry: SealedSegment) -> bool:
    """Whether this is the newest sealed segment, and its views know what is nowhere else on disk."""
    sealed = log.sealed
    if not sealed:  # truncated meanwhile
        raise Retired
    if entry.end < sealed[-1].end:
        return False
    return any(view.carries for view in log.derived(_segment(log, entry)).views.values())


def _segment(log: Log, entry: SealedSegment) -> Segment:
    found = next((segment for segment in log.segments if segment.base == entry.base), None)
    if found is None:
        raise Retired
    return found


def _drop(log: Log, entries: list[SealedSegment], report: CleanReport) -> None:
    if not entries:
        return
    if not log.remove(entries, truncations=report.truncations):
        raise Retired
    report.removed_segments += len(entries)
    report.removed_records += sum(entry.count for entry in entries)
    report.removed_bytes += sum(entry.size for entry in entries)


# --- compaction


class _Window(NamedTuple):
    """What compaction knows about some segments: newest offsets by key, and who cannot be done with yet."""

    newest: dict[bytes, int]
    waiting: set[int]
    pending: set[bytes]
    """Keys with a value still to be delivered: what deletes or replaces it must stay until then."""
    living: set[int]
    """Transactions that have records: the markers that end them must stay."""
    end: int


def _compact(log: Log, now: int, times: DueTimes, report: CleanReport) -> None:
    if all(entry.traits & Trait.COMPACTED for entry in log.sealed):
        return
    young = now - log.settings.tombstone_retention_ms
    is_pending = partial(_is_pending, now, times)
    pending = _pending_keys(log, now, times)
    living = _living(log)
    waiting: set[int] = set()
    start = 0
    while dirty := [
        entry
        for entry in log.sealed
        if entry.base >= start and entry.end <= times.end and not entry.traits & Trait.COMPACTED
    ]:
        window = _gather(log, dirty, pending, living, times, is_pending, young)
        waiting |= window.waiting
        for group in _groups(log, [entry for entry in log.sealed if entry.end <= window.end]):
            # A value in a segment that could not be rewritten is still deleted by its tombstone.
            horizon = young if not report.skipped else _NEVER
            done = Trait.COMPACTED
            if any(entry.base in waiting for entry in group):
                done = Trait(0)
                waiting.add(group[0].base)  # the one that takes the group's place waits too
            _rewrite(log, group, _survivors_of(window, times, is_pending, horizon), done, report)
        start = window.end


def _living(log: Log) -> set[int]:
    """Transactions that have records; looked up only when something is to be compacted."""
    if all(entry.traits & Trait.COMPACTED for entry in log.sealed):
        return set()
    return {run.transaction for entry in log.sealed for run in _transactions(log, entry) if not run.is_marker}


def _gather(
    log: Log,
    dirty: list[SealedSegment],
    pending: set[bytes],
    living: set[int],
    times: DueTimes,
    is_pending: IsPending,
    young: int,
) -> _Window:
    """Read segments until there is no more room for keys."""
    newest: dict[bytes, int] = {}
    waiting: set[int] = set()
    budget = limits.MAX_CLEANER_BYTES
    end = 0
    for entry in dirty:
        segment = _segment(log, entry)
        with log.use(segment) as file:
            runs = (item for item in walk(file, segment.extent) if isinstance(item, Run))
            for record in (record for run in runs for record in codec.decode(run.data, verified=True)):
                tombstone = record.value is None and record.timestamp > young
                if tombstone or record.key in pending or is_pending(record) or times.is_held(record.offset):
                    waiting.add(entry.base)
                counts = not record.control and not is_pending(record) and not times.is_cancelled(record.offset)
                if record.key is not None and counts:
                    budget -= 0 if record.key in newest else len(record.key) + limits.REMEMBERED_KEY_BYTES
                    newest[record.key] = record.offset
        end = entry.end
        if budget <= 0:
            break
    return _Window(newest, waiting, pending, living, end)


def _pending_keys(log: Log, now: int, times: DueTimes) -> set[bytes]:
    """Keys of the records that are still to be delivered; the delay views tell where there are any."""
    keys = set()
    for entry in log.sealed:
        if entry.traits & Trait.COMPACTED or not _awaited(log, entry, now, times):
            continue
        segment = _segment(log, entry)
        with log.use(segment) as file:
            runs = (item for item in walk(file, segment.extent) if isinstance(item, Run))
            for record in (record for run in runs for record in codec.decode(run.data, verified=True)):
                if record.key is not None and _is_pending(now, times, record):
                    keys.add(record.key)
    return keys


def _survivors_of(window: _Window, times: DueTimes, is_pending: IsPending, horizon: int) -> Keep:
    def keep(run: Run) -> list[bool]:
        return [
            times.is_held(record.offset)
            or (_survives(record, window, is_pending, horizon) and not _is_void(record, times))
            for record in codec.decode(run.data, verified=True)
        ]

    return keep


def _is_pending(now: int, times: DueTimes, record: Record) -> bool:
    if times.is_uncommitted(record.offset):
        return True
    deliver_at = None if record.extension is None else record.extension.deliver_at
    return deliver_at is not None and not times.is_due(record.offset, deliver_at, now)


def _is_void(record: Record, times: DueTimes) -> bool:
    """A value that was cancelled is none: it replaces no older one, and goes."""
    return record.key is not None and not record.control and times.is_cancelled(record.offset)


def _survives(record: Record, window: _Window, is_pending: IsPending, horizon: int) -> bool:
    if record.control:
        transaction = None if record.extension is None else record.extension.transaction
        return transaction is None or transaction in window.living
    if record.key is None or is_pending(record):
        return True
    if window.newest.get(record.key, record.offset) > record.offset:
        return False
    return record.value is not None or record.timestamp > horizon or record.key in window.pending


# --- rewriting


def _groups(log: Log, entries: Iterable[SealedSegment]) -> Iterator[list[SealedSegment]]:
    """Consecutive segments that fit into one together: small ones left by earlier passes are merged."""
    group: list[SealedSegment] = []
    size = 0
    for entry in entries:
        fits = size + entry.size <= log.settings.segment_bytes
        follows = bool(group) and group[-1].end == entry.base
        if group and not (fits and follows and entry.end - group[0].base <= limits.MAX_SEGMENT_SPAN):
            yield group
            group, size = [], 0
        group.append(entry)
        size += entry.size
    if group:
        yield group


def _rewrite(log: Log, group: list[SealedSegment], keep: Keep, done: Trait, report: CleanReport) -> None:
    """Put one segment with the survivors in place of a group."""
    try:
        if len(group) == 1 and not _loses_any(log, group[0], keep):
            traits = group[0].traits | done
            if traits != group[0].traits:
                changed = msgspec.structs.replace(group[0], traits=traits)
                if not log.replace(group, changed, truncations=report.truncations):
                    raise Retired
            return
        rewritten = _write_survivors(log, group, keep, done)
    except _Damaged:
        report.skipped += [f"{entry.base:020d}.log" for entry in group]
        return
    replaced = False
    try:
        replaced = log.replace(
            group,
            rewritten.entry,
            truncations=report.truncations,
            source=rewritten.path,
            derived=rewritten.derived,
        )
    finally:
        if not replaced:
            log.disk.unlink(rewritten.path)
    if not replaced:
        raise Retired
    report.rewritten_segments += len(group)
    report.removed_records += sum(entry.count for entry in group) - rewritten.entry.count
    report.removed_bytes += sum(entry.size for entry in group) - rewritten.entry.size


def _loses_any(log: Log, entry: SealedSegment, keep: Keep) -> bool:
    segment = _segment(log, entry)
    with log.use(segment) as file:
        for item in walk(file, segment.extent):
            if isinstance(item, Damage):
                raise _Damaged if not segment.retired else Retired
            if not all(keep(item)):
                return True
    return False


def _write_survivors(log: Log, group: list[SealedSegment], keep: Keep, done: Trait) -> _Rewritten:
    """Write the records of a group that survive to a file of their own, durably."""
    base = group[0].base
    derived = Derived(base, log.settings.index_interval_bytes, log.kinds)
    derived.inherit([log.derived(_segment(log, entry)) for entry in group])
    size = count = 0
    first, last = group[0].first_timestamp, group[-1].last_timestamp
    seal, path, target = log.begin_rewrite(base)
    try:
        for entry in group:
            segment = _segment(log, entry)
            with log.use(segment) as file:
                for item in walk(file, segment.extent):
                    if isinstance(item, Damage):
                        raise _Damaged if not segment.retired else Retired
                    block = _survivors(item, keep(item))
                    if block:
                        scan = codec.scan(block)
                        with log.or_fail("writing a cleaned segment"):
                            write_all(target, size, block)
                        derived.add(size, block, scan)
                        first = first if count else scan.timestamps[0]
                        last = scan.timestamps[-1]
                        size, count = size + len(block), count + len(scan)
        with log.or_fail("syncing a cleaned segment"):
            target.sync()
            log.disk.sync_directory(log.directory)  # the state file must not name a file that may vanish
    except BaseException:
        log.disk.unlink(path)
        raise
    finally:
        target.close()
    traits = Trait.CLEANED | done
    entry = SealedSegment(base, group[-1].end, size, count, first, last, seal, int(traits))
    return _Rewritten(entry, derived, path)


def _survivors(run: Run, keeps: list[bool]) -> bytes:
    """The bytes of the records to keep, as they are."""
    if all(keeps):
        return bytes(run.data)
    parts = []
    scan: Scan = run.scan
    ends = [*scan.positions[1:], scan.end]
    for start, end, kept in zip(scan.positions, ends, keeps, strict=True):
        if kept:
            parts.append(run.data[start:end])
    return b"".join(parts)
