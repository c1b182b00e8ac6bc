"""What a log is, in numbers: from its hard state and its sealed segments' views, reading records only in the tail."""

import os
from typing import Final

import msgspec

from goqueue.cli.data_directory import DISK
from goqueue.cli.log.selection import Bounds, Unreadable, known_end, select
from goqueue.cli.output import printable
from goqueue.model import limits
from goqueue.model.record import Lane, Record
from goqueue.storage import derived as companions
from goqueue.storage.delays import DelayView
from goqueue.storage.derived import BUILT_IN, Derived
from goqueue.storage.lanes import LaneView
from goqueue.storage.offline import OfflineLog, SegmentFile
from goqueue.storage.state import LeaderEpoch, Trait
from goqueue.storage.walk import Run

_INTERVAL: Final = 64 * limits.KIB
"""Of an index that is built on the way and not used."""


class LogNumbers(msgspec.Struct, kw_only=True):
    """Offsets exclude their end; times are Unix milliseconds, None in an empty log."""

    name: str
    start_offset: int
    end_offset: int
    records: int = 0
    bytes: int = 0
    sealed_segments: int = 0
    unsealed_segments: int = 0
    first_timestamp: int | None = None
    last_timestamp: int | None = None
    synced_offset: int | None = None
    leader_epochs: tuple[LeaderEpoch, ...] = ()
    lanes: dict[str, int] = msgspec.field(default_factory=lambda: {lane.name.lower(): 0 for lane in Lane})
    delayed: int = 0
    """Records whose deliver-at time has not come."""
    cleaned: int = 0
    """Offsets that retention or compaction removed between start and end."""
    notes: list[str] = msgspec.field(default_factory=list)


def measure(name: str, log: OfflineLog, now: int) -> LogNumbers:
    numbers = LogNumbers(
        name=printable(name),
        start_offset=log.start_offset,
        end_offset=max(log.start_offset, log.state.tail_base),
        bytes=_bytes_in(log.directory),
        synced_offset=None if log.synced is None else log.synced.offset,
        leader_epochs=log.state.epochs,
    )
    for segment in log.segments():
        if segment.entry is not None:
            numbers.sealed_segments += 1
            if segment.entry.count:
                numbers.last_timestamp = segment.entry.last_timestamp
            _add_sealed(numbers, log, segment, now)
        else:
            numbers.unsealed_segments += 1
            _add(numbers, _scan(numbers, log, segment), segment, now)
    first = _first_record(log)
    numbers.first_timestamp = first.timestamp if first is not None else None
    if first is None:
        numbers.last_timestamp = None
    return numbers


def _bytes_in(directory: str) -> int:
    """Everything the log keeps: segments, indexes, views, state, cut ends."""
    with os.scandir(directory) as entries:
        return sum(entry.stat().st_size for entry in entries if entry.is_file())


def _first_record(log: OfflineLog) -> Record | None:
    found = select(log.directory, Bounds(limit=1))
    return next((item[0] for item in found if not isinstance(item, Unreadable)), None)


def _add_sealed(numbers: LogNumbers, log: OfflineLog, segment: SegmentFile, now: int) -> None:
    entry = segment.entry
    assert entry is not None
    stem = segment.path.removesuffix(".log")
    derived = companions.load(DISK, stem, base=entry.base, seal=entry.seal, kinds=BUILT_IN)
    before = numbers.records
    _add(numbers, derived or _scan(numbers, log, segment), segment, now)
    if entry.traits & Trait.CLEANED:
        span = entry.end - max(entry.base, numbers.start_offset)
        numbers.cleaned += max(span - (numbers.records - before), 0)


def _scan(numbers: LogNumbers, log: OfflineLog, segment: SegmentFile) -> Derived:
    """Derive from the records themselves: the tail, or a sealed segment whose view is missing."""
    derived = Derived(segment.base, _INTERVAL, BUILT_IN)
    for item in log.walk(segment):
        if isinstance(item, Run):
            derived.add(item.position, item.data, item.scan)
            numbers.last_timestamp = item.scan.timestamps[-1]
            numbers.end_offset = max(numbers.end_offset, item.next_offset)
        elif log.is_torn(segment, item):
            if item.position < segment.size:
                numbers.notes.append(f"the end from offset {item.first} on is not whole: being written now, or torn")
            break
        else:
            numbers.notes.append(f"damage was met at offset {item.first}")
            numbers.end_offset = max(numbers.end_offset, known_end(log, item.first, item.next_offset) or 0)
    return derived


def _add(numbers: LogNumbers, derived: Derived, segment: SegmentFile, now: int) -> None:
    """Count what the views of a segment know, leaving out what lies before the log's start."""
    lanes, delays = derived.views["lanes"], derived.views["delays"]
    assert isinstance(lanes, LaneView)
    assert isinstance(delays, DelayView)
    gone = max(numbers.start_offset - segment.base, 0)
    for lane, offsets in zip(Lane, lanes.lanes, strict=True):
        count = len(offsets) - (offsets.rank(gone - 1) if gone else 0)
        numbers.lanes[lane.name.lower()] += count
        numbers.records += count
    numbers.delayed += sum(1 for offset in delays.due_after(now) if offset >= numbers.start_offset)
