"""A log does what a list would: any order of appends, reads, rolls, truncations, cleanings and restarts.

The model is a dictionary of records by offset. Cleaning may be lazy, so the model does not say what goes; it
says what must not: whatever is gone had a reason, and it is gone for good.
"""

import shutil
import tempfile
from bisect import bisect_left

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from goqueue import codec
from goqueue.model.errors import OffsetOutOfRange
from goqueue.model.record import Extension, Record
from goqueue.model.settings import LogSettings
from goqueue.storage.cleaner import clean
from goqueue.storage.log import Log
from goqueue.storage.state import LeaderEpoch
from goqueue.storage.verify import Severity, verify
from tests.unit.storage.disks import WatchedDisk
from tests.unit.storage.logs import T0, delays, drop_companions, lane_counts, read_all

MINUTE = 60_000
RETENTION_MS = 30 * MINUTE
TOMBSTONE_MS = 20 * MINUTE

records = st.builds(
    Record,
    key=st.none() | st.sampled_from([b"a", b"b", b"c", b"d"]),
    value=st.none() | st.integers(0, 900).map(lambda size: b"v" * size),
    priority=st.integers(0, 4),
    extension=st.none() | st.integers(1, 3 * 60).map(lambda minutes: Extension(deliver_at=-minutes * MINUTE)),
    control=st.sampled_from([False] * 9 + [True]),
)
fractions = st.floats(0, 1)


class LogMachine(RuleBasedStateMachine):
    """The last record of a model's list is the newest; `start` and `end` are the log's."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.mkdtemp(prefix="goqueue-model-")
        self.now = T0
        self.start = self.end = 0
        self.model: dict[int, Record] = {}
        self.epochs: list[LeaderEpoch] = []
        self.next_epoch = 1

    @initialize(
        interval=st.sampled_from([1, 200, 1000, 4096]),
        retention=st.booleans(),
        compact=st.booleans(),
        age=st.sampled_from([MINUTE, 10**9]),
    )
    def create(self, interval: int, retention: bool, compact: bool, age: int) -> None:
        self.settings = LogSettings(
            segment_bytes=4096,
            segment_age_ms=age,
            index_interval_bytes=interval,
            retention_ms=RETENTION_MS if retention else None,
            compact=compact,
            tombstone_retention_ms=TOMBSTONE_MS,
        )
        self.log = self.opened()

    def opened(self) -> Log:
        return Log.open(self.directory, disk=WatchedDisk(), settings=self.settings)

    def between(self, fraction: float) -> int:
        """An offset from the log's start to its end."""
        return self.start + round(fraction * (self.end - self.start))

    # --- writing

    @rule(block=st.lists(records, min_size=1, max_size=8), later=st.integers(-5, 5))
    def append(self, block: list[Record], later: int) -> None:
        now = self.now + later * 1000
        appended = self.log.append(codec.encode(block), now=now)
        assert (appended.first_offset, appended.next_offset) == (self.end, self.end + len(block))
        newest = max((record.timestamp for record in self.model.values()), default=0)
        assert appended.timestamp >= max(now, newest)
        for record in block:
            extension = record.extension
            if extension is not None and extension.deliver_at is not None:
                extension = Extension(deliver_at=now - extension.deliver_at)
            self.model[self.end] = Record(
                self.end, appended.timestamp, record.key, record.value, record.priority, (), extension, record.control
            )
            self.end += 1

    @rule(minutes=st.integers(1, 60))
    def pass_time(self, minutes: int) -> None:
        self.now += minutes * MINUTE
        self.log.tick(self.now)

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule()
    def sync(self) -> None:
        self.log.sync()
        assert self.log.durable.value == self.end

    @rule()
    def begin_epoch(self) -> None:
        self.log.begin_epoch(self.next_epoch)
        self.epochs = [entry for entry in self.epochs if entry.start_offset < self.end]
        self.epochs.append(LeaderEpoch(self.next_epoch, self.end))
        self.next_epoch += 1

    # --- removing

    @rule(fraction=fractions)
    def truncate(self, fraction: float) -> None:
        offset = self.between(fraction)
        if offset == self.end:
            return
        self.log.truncate(offset)
        self.end = offset
        self.model = {at: record for at, record in self.model.items() if at < offset}
        self.epochs = [entry for entry in self.epochs if entry.start_offset < offset]

    @rule(fraction=fractions)
    def truncate_prefix(self, fraction: float) -> None:
        offset = self.between(fraction)
        self.log.truncate_prefix(offset)
        self.start = offset
        self.model = {at: record for at, record in self.model.items() if at >= offset}

    @precondition(lambda self: self.settings.retention_ms is not None or self.settings.compact)
    @rule()
    def clean(self) -> None:
        active = self.log.segments[-1].base
        clean(self.log, self.now)
        left = {record.offset: record for record in read_all(self.log)}
        gone = [record for offset, record in self.model.items() if offset not in left]
        newest = {record.key: record.offset for record in self.model.values() if record.key is not None}
        for record in gone:
            assert record.offset < active
            assert self.is_expired(record) or self.is_superseded(record, newest), f"{record} is gone for no reason"
        assert left == {offset: self.model[offset] for offset in left}
        assert self.log.start_offset >= self.start
        self.model, self.start = left, self.log.start_offset

    def is_expired(self, record: Record) -> bool:
        if self.settings.retention_ms is None:
            return False
        due = record.extension.deliver_at if record.extension is not None else None
        return max(record.timestamp, due or 0) <= self.now - self.settings.retention_ms

    def is_superseded(self, record: Record, newest: dict[bytes, int]) -> bool:
        if not self.settings.compact or record.key is None or record.control:
            return False
        if record.extension is not None and (record.extension.deliver_at or 0) > self.now:
            return False
        old_tombstone = record.value is None and record.timestamp <= self.now - TOMBSTONE_MS
        return newest[record.key] > record.offset or old_tombstone

    # --- restarting

    @rule(cleanly=st.booleans(), companions=st.booleans())
    def reopen(self, cleanly: bool, companions: bool) -> None:
        """After a stop, or after the process died with everything written; with or without indexes and views."""
        if cleanly:
            self.log.close()
        if not companions:
            drop_companions(self.directory)
        self.log = self.opened()
        assert not self.log.recovery, self.log.recovery.lines()
        assert self.log.durable.value == self.end

    @rule()
    def verify(self) -> None:
        bad = (Severity.DAMAGE, Severity.TEAR)
        assert [found for found in verify(self.directory, WatchedDisk()) if found.severity in bad] == []

    # --- reading

    @rule(fraction=fractions, max_bytes=st.sampled_from([1, 300, 5000]), max_count=st.sampled_from([1, 3, 10**6]))
    def read(self, fraction: float, max_bytes: int, max_count: int) -> None:
        offset = self.between(fraction)
        chunk = self.log.read(offset, max_bytes=max_bytes, max_count=max_count)
        found = codec.decode(chunk.data)
        following = sorted(at for at in self.model if at >= offset)
        assert [record.offset for record in found] == following[: len(found)]
        assert found == [self.model[record.offset] for record in found]
        assert bool(found) == bool(following)
        assert len(found) <= max_count
        assert len(found) <= 1 or len(chunk.data) <= max_bytes
        assert chunk.next_offset == (found[-1].offset + 1 if found else self.end)

    @rule()
    def read_outside(self) -> None:
        for offset in (self.start - 1, self.end + 1):
            with pytest.raises(OffsetOutOfRange):
                self.log.read(offset, max_bytes=1)

    @rule(fraction=fractions, around=st.integers(-1, 1))
    def find_by_time(self, fraction: float, around: int) -> None:
        kept = sorted(self.model)
        times = [self.model[offset].timestamp for offset in kept]
        moment = (times[round(fraction * (len(times) - 1))] if times else self.now) + around
        at = bisect_left(times, moment)
        found = self.log.offset_at(moment)
        expected = kept[at] if at < len(kept) else self.end
        before = kept[at - 1] + 1 if at else self.start
        assert before <= found <= expected, "between the last record before the moment and the first after it"

    @rule()
    def read_everything(self) -> None:
        assert read_all(self.log, max_bytes=2000) == [self.model[offset] for offset in sorted(self.model)]

    @rule()
    def views(self) -> None:
        """A view may still know what lies before the start; from there on it is exact."""
        due = [
            (offset, record.extension.deliver_at)
            for offset, record in sorted(self.model.items())
            if record.extension is not None
        ]
        assert [entry for entry in delays(self.log) if entry[0] >= self.start] == due
        counts = [sum(1 for record in self.model.values() if record.priority == lane) for lane in range(5)]
        hidden = sum(lane_counts(self.log)) - len(self.model)
        assert hidden >= 0
        if hidden == 0:
            assert lane_counts(self.log) == counts

    @invariant()
    def bounds(self) -> None:
        if not hasattr(self, "log"):
            return
        assert (self.log.start_offset, self.log.end_offset) == (self.start, self.end)
        assert self.log.written.value == self.end
        past = [entry for entry in self.epochs if entry.start_offset <= self.log.start_offset]
        forgotten = len(self.epochs) - len(self.log.epochs)
        assert list(self.log.epochs) == self.epochs[forgotten:]
        assert forgotten <= max(len(past) - 1, 0)
        self.epochs = list(self.log.epochs)
        segments = self.log.segments
        assert [segment.end for segment in segments[:-1]] == [segment.base for segment in segments[1:]]

    def teardown(self) -> None:
        try:
            if hasattr(self, "log"):
                self.read_everything()
                self.reopen(cleanly=True, companions=False)
                self.read_everything()
        finally:
            shutil.rmtree(self.directory)


LogMachine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
test_a_log_does_what_a_list_would = LogMachine.TestCase
