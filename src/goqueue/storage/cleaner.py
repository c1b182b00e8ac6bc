"""The one cleaner: retention by time and bytes, compaction by key. Survivors keep their offsets.

It works on sealed segments only. A segment is removed whole, or consecutive ones are rewritten without the
records that may go and put in place of the old (`Log.replace`). A record whose deliver-at time has not come
is never removed; its age runs from the later of append and delivery. A segment with damage in it is not
rewritten: what cannot be read is not silently dropped.

A compaction pass remembers the newest offset of each key in the segments no pass has seen yet, then
rewrites everything up to there, oldest first: a tombstone outlives the values it deletes.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import msgspec

from goqueue import codec
from goqueue.codec import Scan
from goqueue.io.small_file import write_all
from goqueue.model import limits
from goqueue.model.record import Record
from goqueue.storage.delays import DelayView
from goqueue.storage.derived import Derived
from goqueue.storage.log import Log
from goqueue.storage.recovery import clean_path
from goqueue.storage.state import SealedSegment, Trait
from goqueue.storage.walk import Damage, Run, walk

_KEY_OVERHEAD_BYTES = 128
"""What remembering a key costs beside its bytes, about."""

Keep = Callable[[Run], list[bool]]


class CleanReport:
    """What a pass did."""

    def __init__(self) -> None:
        self.removed_segments = 0
        self.rewritten_segments = 0
        self.removed_records = 0
        self.removed_bytes = 0
        self.skipped: list[str] = []
        """Segments left as they are because of damage."""


class _Damaged(Exception):
    pass


class _Rewritten(NamedTuple):
    entry: SealedSegment
    derived: Derived
    path: str


def clean(log: Log, now: int) -> CleanReport:
    """Apply the log's retention and compaction settings as of `now`. May run beside the writer and readers."""
    report = CleanReport()
    _drop(log, [entry for entry in log.sealed if entry.end <= log.start_offset], report)
    _retain(log, now, report)
    if log.settings.compact:
        _compact(log, now, report)
    return report


# --- retention


def _retain(log: Log, now: int, report: CleanReport) -> None:
    """Remove or thin out the oldest segments that are too old, or too much."""
    keeping: list[SealedSegment] = []
    kept: set[int] = set()
    for entry, cutoff in list(_expired(log, now)):
        survivors = _delayed(log, entry, cutoff)
        if survivors:
            keeping.append(entry)
            kept.update(survivors)
        else:
            _drop(log, [entry], report)
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
        excess = sum(segment.size for segment in log.segments) - log.settings.retention_bytes
    for entry in log.sealed:
        if oldest is not None and entry.last_timestamp < oldest:
            yield entry, oldest
        elif excess is not None and excess >= entry.size:
            yield entry, now
        else:
            return
        if excess is not None:
            excess -= entry.size


def _delayed(log: Log, entry: SealedSegment, cutoff: int) -> list[int]:
    """Offsets of the segment's records that are to be delivered after `cutoff`."""
    segment = next((found for found in log.segments if found.base == entry.base), None)
    view = log.derived(segment).views["delays"] if segment is not None else None
    return view.due_after(cutoff) if isinstance(view, DelayView) else []


def _drop(log: Log, entries: list[SealedSegment], report: CleanReport) -> None:
    if entries and log.remove(entries):
        report.removed_segments += len(entries)
        report.removed_records += sum(entry.count for entry in entries)
        report.removed_bytes += sum(entry.size for entry in entries)


# --- compaction


def _compact(log: Log, now: int, report: CleanReport) -> None:
    sealed = log.sealed
    first = next((at for at, entry in enumerate(sealed) if not entry.traits & Trait.COMPACTED), None)
    if first is None:
        return
    newest: dict[bytes, int] = {}
    waiting: set[int] = set()
    budget = limits.MAX_CLEANER_BYTES
    last = first
    for last in range(first, len(sealed)):
        for run in _runs(log, sealed[last]):
            for record in codec.decode(run.data, verified=True):
                if _is_pending(record, now):
                    waiting.add(sealed[last].base)
                elif record.key is not None and not record.control:
                    if record.key not in newest:
                        budget -= len(record.key) + _KEY_OVERHEAD_BYTES
                    newest[record.key] = record.offset
        if budget <= 0:
            break
    horizon = now - log.settings.tombstone_retention_ms

    def keep(run: Run) -> list[bool]:
        return [_survives(record, newest, now, horizon) for record in codec.decode(run.data, verified=True)]

    for group in _groups(log, sealed[: last + 1]):
        done = Trait(0) if any(entry.base in waiting for entry in group) else Trait.COMPACTED
        _rewrite(log, group, keep, done, report)


def _runs(log: Log, entry: SealedSegment) -> Iterator[Run]:
    """The readable records of a segment."""
    segment = next((found for found in log.segments if found.base == entry.base), None)
    if segment is None:
        return
    with log.files.use(segment.key) as file:
        yield from (item for item in walk(file, segment.extent) if isinstance(item, Run))


def _is_pending(record: Record, now: int) -> bool:
    return record.extension is not None and (record.extension.deliver_at or 0) > now


def _survives(record: Record, newest: dict[bytes, int], now: int, horizon: int) -> bool:
    if record.key is None or record.control or _is_pending(record, now):
        return True
    if newest.get(record.key, record.offset) > record.offset:
        return False
    return record.value is not None or record.timestamp > horizon


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
    """Put one segment with the survivors in place of a group; nothing happens when nothing would go or merge."""
    try:
        rewritten = _write_survivors(log, group, keep, done)
    except _Damaged:
        report.skipped += [f"{entry.base:020d}.log" for entry in group]
        return
    if len(group) == 1 and rewritten.entry.count == group[0].count:
        log.disk.unlink(rewritten.path)
        log.replace(group, msgspec.structs.replace(group[0], traits=group[0].traits | done))
        return
    if rewritten.entry.count == 0:
        log.disk.unlink(rewritten.path)
        _drop(log, group, report)
        return
    if not log.replace(group, rewritten.entry, source=rewritten.path, derived=rewritten.derived):
        log.disk.unlink(rewritten.path)
        return
    report.rewritten_segments += len(group)
    report.removed_records += sum(entry.count for entry in group) - rewritten.entry.count
    report.removed_bytes += sum(entry.size for entry in group) - rewritten.entry.size


def _write_survivors(log: Log, group: list[SealedSegment], keep: Keep, done: Trait) -> _Rewritten:
    """Write the records of a group that survive to a file of their own, durably."""
    base, seal = group[0].base, log.take_seal()
    path = clean_path(log.directory, base, seal)
    derived = Derived(base, log.settings.index_interval_bytes, log.kinds)
    segments = {segment.base: segment for segment in log.segments}
    size = count = first = last = 0
    target = log.disk.open(path, create=True)
    try:
        for entry in group:
            segment = segments[entry.base]
            with log.files.use(segment.key) as file:
                for item in walk(file, segment.extent):
                    if isinstance(item, Damage):
                        raise _Damaged
                    block = _survivors(item, keep(item))
                    if block:
                        scan = codec.scan(block)
                        write_all(target, size, block)
                        derived.add(size, block, scan)
                        first = first if count else scan.timestamps[0]
                        last = scan.timestamps[-1]
                        size, count = size + len(block), count + len(scan)
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
