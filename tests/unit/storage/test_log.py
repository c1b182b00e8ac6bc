"""The log: what is appended is read, in order, once, within the bounds, whatever the segments are."""

import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from goqueue import codec
from goqueue.codec import Scan
from goqueue.io.disk import Buffer
from goqueue.model import limits
from goqueue.model.errors import (
    InvalidRecord,
    InvalidRequest,
    LogClosed,
    OffsetOutOfRange,
    Quarantined,
    StaleEpoch,
    StorageFailed,
    Unavailable,
)
from goqueue.model.record import Extension, Lane, Producer, Record
from goqueue.model.settings import Fsync, LogSettings
from goqueue.storage.cleaner import clean
from goqueue.storage.index import TimeIndex
from goqueue.storage.log import Log
from goqueue.storage.segment import Segment
from goqueue.storage.state import LeaderEpoch
from goqueue.storage.views import View
from tests.support.patience import PATIENCE_S
from tests.unit.storage.disks import CHANGES, Operation, Stopped, WatchedDisk, at_most, once, stop_at
from tests.unit.storage.logs import (
    SMALL,
    T0,
    answers,
    delayed,
    delays,
    drop_companions,
    fill,
    fill_segments,
    flip,
    flip_record,
    lane_counts,
    message,
    offsets,
    open_log,
    positions,
    put,
    read_all,
    read_around_damage,
    segment_path,
    value,
)

RECORD = len(codec.encode([message(0)]))
"""The size of a message with a one-digit number."""


# --- appending and reading


def test_a_new_log_is_empty(tmp_path: Path) -> None:
    log = open_log(tmp_path / "new")
    assert (log.start_offset, log.end_offset, log.written.value, log.durable.value) == (0, 0, 0, 0)
    chunk = log.read(0, max_bytes=100)
    assert (bytes(chunk.data), chunk.count, chunk.next_offset) == (b"", 0, 0)
    assert log.offset_at(0) == 0
    assert not log.recovery
    assert (log.epochs, log.sealed, len(log.segments)) == ((), (), 1)


def test_an_append_says_where_its_records_went(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    first = put(log, message(0), message(1), now=T0)
    second = put(log, message(2), now=T0 + 5)
    assert (first.first_offset, first.next_offset, first.timestamp) == (0, 2, T0)
    assert (second.first_offset, second.next_offset, second.timestamp) == (2, 3, T0 + 5)
    assert list(first.scan.offsets) == [0, 1]
    assert log.end_offset == log.written.value == 3


def test_records_come_back_as_they_were_with_offset_and_time(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    sent = [
        Record(key=b"k", value=b"v", priority=Lane.CRITICAL, headers=(("h", b"1"), ("h", b"2"))),
        Record(key=None, value=None),
        Record(key=b"", value=b"", extension=Extension(deliver_at=-500, expires_at=-100, blob=b"b")),
    ]
    put(log, *sent, now=T0)
    assert log.records(0, max_bytes=10_000) == [
        Record(0, T0, b"k", b"v", Lane.CRITICAL, (("h", b"1"), ("h", b"2"))),
        Record(1, T0, None, None),
        Record(2, T0, b"", b"", extension=Extension(deliver_at=T0 + 500, expires_at=T0 + 600, blob=b"b")),
    ]


def test_the_producers_fields_are_stamped(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    blank = Extension(producer=Producer(0, 0, 0))
    block = codec.encode([Record(value=b"a", extension=blank), Record(value=b"b", extension=blank)])
    log.append(block, now=T0, producer=Producer(9, 2, 40))
    found = [record.extension.producer for record in read_all(log) if record.extension is not None]
    assert found == [Producer(9, 2, 40), Producer(9, 2, 41)]


def test_a_chunk_is_the_bytes_as_they_were_written(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    block = codec.encode([message(0), message(1)])
    log.append(block, now=T0)
    assert bytes(log.read(0, max_bytes=10_000).data) == bytes(block)


def test_a_read_is_bounded_by_bytes(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 10)
    for max_bytes, count in [(1, 1), (RECORD, 1), (2 * RECORD - 1, 1), (2 * RECORD, 2), (5 * RECORD + 7, 5)]:
        chunk = log.read(2, max_bytes=max_bytes)
        assert (chunk.count, chunk.next_offset) == (count, 2 + count)
        assert len(chunk.data) == count * RECORD


def test_a_read_is_bounded_by_count_and_by_offset(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 10)
    assert offsets(log.records(3, max_bytes=10_000, max_count=4)) == [3, 4, 5, 6]
    assert offsets(log.records(3, max_bytes=10_000, to_offset=5)) == [3, 4]
    assert offsets(log.records(3, max_bytes=10_000, to_offset=99)) == list(range(3, 10))
    chunk = log.read(3, max_bytes=10_000, to_offset=3)
    assert (chunk.count, chunk.next_offset) == (0, 3)
    assert log.read(3, max_bytes=10_000, to_offset=1).next_offset == 3


def test_the_first_record_is_read_even_if_it_is_larger_than_the_bound(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogSettings(segment_bytes=4096, index_interval_bytes=64))
    put(log, message(0), message(1, size=50_000), message(2))
    (record,) = log.records(1, max_bytes=1)
    assert (record.offset, record.value) == (1, value(1, 50_000))
    assert offsets(log.records(2, max_bytes=1)) == [2]


def test_a_read_at_the_end_is_empty_and_outside_it_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 10)
    chunk = log.read(10, max_bytes=100)
    assert (chunk.count, chunk.next_offset, bytes(chunk.data)) == (0, 10, b"")
    for offset in (11, -1):
        with pytest.raises(OffsetOutOfRange) as caught:
            log.read(offset, max_bytes=100)
        assert (caught.value.offset, caught.value.start, caught.value.end) == (offset, 0, 10)


@pytest.mark.parametrize(("max_bytes", "max_count"), [(1, 10**6), (700, 10**6), (10**6, 10**6), (10**6, 3)])
def test_all_is_read_in_order_across_segments(tmp_path: Path, max_bytes: int, max_count: int) -> None:
    log = open_log(tmp_path)
    fill(log, 300)
    assert len(log.segments) > 5
    found = read_all(log, max_bytes=max_bytes, max_count=max_count)
    assert offsets(found) == list(range(300))
    assert [record.value for record in found] == [value(number) for number in range(300)]


def test_every_offset_can_be_read_alone(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 300)
    for offset in range(300):
        (record,) = log.records(offset, max_bytes=1)
        assert (record.offset, record.value) == (offset, value(offset))


@pytest.mark.parametrize("interval", [1, 50, 256, 4096])
def test_any_index_interval_gives_the_same_answers(tmp_path: Path, interval: int) -> None:
    log = open_log(tmp_path, LogSettings(segment_bytes=4096, index_interval_bytes=interval))
    fill(log, 100)
    assert [offsets(log.records(offset, max_bytes=1)) for offset in range(100)] == [[offset] for offset in range(100)]
    assert [log.offset_at(T0 + 10 * block) for block in range(20)] == [5 * block for block in range(20)]


def test_a_refused_block_changes_nothing(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 5)
    before = (tmp_path / f"{0:020d}.log").read_bytes()
    bad = codec.encode([message(5), message(6)])
    bad[RECORD] ^= 0xFF
    with pytest.raises(InvalidRecord) as caught:
        log.append(bad, now=T0)
    assert caught.value.index == 1
    with pytest.raises(InvalidRecord):
        log.append(bytearray(), now=T0)
    with pytest.raises(InvalidRequest, match="send less at a time"):
        log.append(bytearray(limits.MAX_BLOCK_BYTES + 1), now=T0)
    assert (log.end_offset, (tmp_path / f"{0:020d}.log").read_bytes()) == (5, before)
    assert put(log, message(5)).first_offset == 5


def test_timestamps_never_decrease(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    stamps = [put(log, message(number), now=now).timestamp for number, now in enumerate((50, 40, 60, 10, 60, 61))]
    assert stamps == [50, 50, 60, 60, 60, 61]
    assert [record.timestamp for record in read_all(log)] == stamps
    assert log.last_timestamp == 61


def test_timestamps_never_decrease_across_a_restart_even_if_the_records_are_gone(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 100, now=T0)
    log.roll()
    log.sync()
    last = log.last_timestamp
    log.truncate_prefix(100)
    log.close()
    log = open_log(tmp_path)
    assert put(log, message(100), now=1).timestamp == last


@pytest.mark.parametrize("bounds", [{"max_count": 0}, {"max_count": -1}, {"max_bytes": 0}, {"max_bytes": -10_000}])
def test_a_read_of_nothing_is_refused(tmp_path: Path, bounds: dict[str, int]) -> None:
    log = open_log(tmp_path)
    fill(log, 10)
    asked = {"max_bytes": 100, "max_count": 5, **bounds}
    for offset in (0, 5, 10):
        with pytest.raises(InvalidRequest):
            log.read(offset, **asked)
        with pytest.raises(InvalidRequest):
            log.records(offset, **asked)


def test_a_block_may_be_a_view_of_larger_items(tmp_path: Path) -> None:
    """Its size is that of its bytes, however its owner counts them."""
    log = open_log(tmp_path)
    block = codec.encode([Record(value=b"x" * 30)])
    assert len(block) == 64
    for number, form in enumerate("BHIQ"):
        appended = log.append(memoryview(bytearray(block)).cast("B").cast(form), now=T0)  # type: ignore[call-overload]
        assert (appended.first_offset, appended.next_offset) == (number, number + 1)
    assert segment_path(tmp_path, 0).stat().st_size == log.segments[-1].size == 4 * 64
    assert [record.value for record in read_all(log)] == [b"x" * 30] * 4
    before = answers(log)
    assert answers(open_log(tmp_path)) == before


# --- an append that breaks


class Tally:
    """A view that counts records, and breaks when it is told to."""

    broken = False

    def __init__(self) -> None:
        self.count = 0

    def on_damage(self, first: int, next_offset: int) -> None:
        pass

    def on_append(self, block: Buffer, scan: Scan) -> None:
        if Tally.broken:
            raise ValueError("a bug in a view")
        self.count += len(scan)

    def inherit(self, older: Sequence[View]) -> None: ...

    def anew(self) -> View:
        return Tally()

    @property
    def carries(self) -> bool:
        return False

    def to_bytes(self) -> bytes:
        return self.count.to_bytes(8, "big")

    @property
    def size(self) -> int:
        return 8


class Tallies:
    name = "tally"

    def empty(self, base: int) -> Tally:
        return Tally()

    def load(self, base: int, data: bytes) -> Tally:
        tally = Tally()
        tally.count = int.from_bytes(data, "big")
        return tally


def tallied(directory: Path, disk: WatchedDisk | None = None) -> Log:
    return Log.open(str(directory), disk=disk or WatchedDisk(), settings=SMALL, views=[Tallies()])


def tally(log: Log) -> int:
    total = 0
    for segment in log.segments:
        view = log.derived(segment).views["tally"]
        assert isinstance(view, Tally)
        total += view.count
    return total


def is_segment_write(operation: Operation) -> bool:
    return operation.kind == "write" and operation.path.endswith(".log")


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.fixture(params=["a view breaks", "interrupted before the write", "interrupted after the write"])
def broken_append(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes one append of a log break."""

    def append(log: Log, disk: WatchedDisk, *records: Record) -> None:
        expected: type[BaseException] = KeyboardInterrupt
        if request.param == "a view breaks":
            monkeypatch.setattr(Tally, "broken", True)
            expected = ValueError
        elif request.param == "interrupted before the write":
            disk.before = once(is_segment_write, interrupt)
        else:
            disk.after = once(is_segment_write, interrupt)
        with pytest.raises((expected, StorageFailed)):
            put(log, *records, now=T0 + 50)
        monkeypatch.setattr(Tally, "broken", False)
        disk.before = disk.after = None

    return append


REFUSED = (delayed(500, T0 + 10**9), Record(value=b"refused", priority=0))


@pytest.mark.parametrize("kept", [0, 5])
def test_nothing_of_a_block_whose_append_broke_is_there_after_a_kill(
    tmp_path: Path, broken_append: Callable[..., None], kept: int
) -> None:
    disk = WatchedDisk()
    log = tallied(tmp_path, disk)
    fill(log, kept)
    broken_append(log, disk, *REFUSED)
    assert (log.end_offset, log.written.value) == (kept, kept)
    again = tallied(tmp_path)
    assert (again.end_offset, tally(again)) == (kept, kept)
    assert [record.value for record in read_all(again)] == [value(number) for number in range(kept)]


@pytest.mark.parametrize("ending", ["closed", "killed"])
@pytest.mark.parametrize("kept", [0, 5])
def test_after_an_append_that_broke_the_next_one_takes_its_place(
    tmp_path: Path, broken_append: Callable[..., None], kept: int, ending: str
) -> None:
    disk = WatchedDisk()
    log = tallied(tmp_path, disk)
    fill(log, kept)
    broken_append(log, disk, *REFUSED)
    try:
        appended = put(log, message(kept, size=10), now=T0 + 60)
    except StorageFailed:
        again = tallied(tmp_path)
        assert offsets(read_all(again)) == list(range(kept))
        return
    assert (appended.first_offset, appended.next_offset) == (kept, kept + 1)
    expected = [*(value(number) for number in range(kept)), value(kept, 10)]
    assert [record.value for record in read_all(log)] == expected
    assert (tally(log), sum(lane_counts(log)), delays(log)) == (kept + 1, kept + 1, [])
    before = answers(log)
    if ending == "closed":
        log.close()
    again = tallied(tmp_path)
    assert answers(again) == before
    assert tally(again) == kept + 1
    assert not again.recovery


def test_the_views_of_a_segment_sealed_after_an_append_broke_are_those_of_its_records(
    tmp_path: Path, broken_append: Callable[..., None]
) -> None:
    disk = WatchedDisk()
    log = tallied(tmp_path, disk)
    fill(log, 5)
    broken_append(log, disk, *REFUSED)
    try:
        fill(log, 5, now=T0 + 100)
        log.roll()
        log.sync()
    except StorageFailed:
        return
    before = answers(log)
    assert (tally(log), before["lanes"], before["delays"]) == (10, [0, 0, 10, 0, 0], [])
    log.close()
    drop_companions(tmp_path)
    assert answers(tallied(tmp_path)) == before


# --- by time


def test_a_time_finds_the_first_record_at_or_after_it(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 200, now=1000, step=10, block=5)
    for block in range(40):
        for time in range(1000 + 10 * block - 9, 1000 + 10 * block + 1):
            assert log.offset_at(time) == 5 * block
    assert log.offset_at(0) == 0
    assert log.offset_at(1391) == log.offset_at(10**15) == 200


def test_equal_times_over_several_segments_give_the_first_of_them(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    put(log, message(0), now=T0 - 1)
    fill(log, 200, now=T0, step=0)
    assert len(log.segments) > 3
    assert (log.offset_at(T0 - 1), log.offset_at(T0), log.offset_at(T0 + 1)) == (0, 1, 201)


def test_a_time_before_the_start_gives_the_start(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 100)
    log.truncate_prefix(42)
    assert log.offset_at(0) == 42


def test_a_time_look_up_that_an_append_overtakes_is_still_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer goes on, new index points included, between two steps of the look-up."""
    log = open_log(tmp_path, LogSettings(index_interval_bytes=256))
    fill(log, 6, now=1000, step=100, block=1)
    times = log.segments[-1].derived.times  # type: ignore[union-attr]
    assert times.timestamps[-1] == 1400
    find = type(times).find

    def overtaken(self: object, timestamp: int) -> int | None:
        answer = find(times, timestamp)
        monkeypatch.undo()
        fill(log, 50, now=2000, step=100, block=5)
        return answer

    monkeypatch.setattr(type(times), "find", overtaken)
    assert log.offset_at(1500) == 5


def look_up_at(step: int, directory: Path, monkeypatch: pytest.MonkeyPatch) -> int | None:
    """What a look-up finds that begins just before the given line of `Segment.grow`, the writer going on under it.

    None when there is no such line.
    """
    log = open_log(directory, LogSettings(index_interval_bytes=4096))
    fill(log, 5, now=1000, step=100, block=1)
    held, go_on = threading.Event(), threading.Event()
    left = step

    def trace(frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
        nonlocal left
        if frame.f_code is Segment.grow.__code__ and event == "line":
            left -= 1
            if left == 0:
                held.set()
                go_on.wait(PATIENCE_S)
        return trace

    def append() -> None:
        sys.settrace(trace)
        put(log, message(5), now=2000)

    writer = threading.Thread(target=append)
    find = TimeIndex.find

    def overtaken(self: TimeIndex, timestamp: int) -> int | None:
        go_on.set()
        writer.join()
        return find(self, timestamp)

    writer.start()
    while writer.is_alive() and not held.wait(0.01):
        pass
    if not held.is_set():
        return None
    with monkeypatch.context() as patch:
        patch.setattr(TimeIndex, "find", overtaken)
        found = log.offset_at(2000)
    go_on.set()
    writer.join()
    return found


def test_a_time_look_up_at_any_step_of_a_publication_does_not_skip_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = 1
    while (found := look_up_at(step, tmp_path / str(step), monkeypatch)) is not None:
        assert found == 5, f"held at step {step} of the publication"
        step += 1
    assert step > 4


# --- rolling


def test_a_segment_rolls_before_it_would_pass_its_size(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 300)
    assert all(segment.size <= SMALL.segment_bytes for segment in log.segments)
    assert all(segment.size + 5 * (RECORD + 10) > SMALL.segment_bytes for segment in log.segments[:-1])
    assert [segment.base for segment in log.segments[1:]] == [segment.end for segment in log.segments[:-1]]


def test_a_block_larger_than_a_segment_has_one_for_itself(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    put(log, message(0))
    put(log, *(message(number) for number in range(1, 101)))
    put(log, message(101))
    assert [(segment.base, segment.end) for segment in log.segments] == [(0, 1), (1, 101), (101, 102)]


def test_a_segment_rolls_by_age_at_an_append_or_a_tick(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogSettings(segment_age_ms=1000))
    put(log, message(0), now=T0)
    put(log, message(1), now=T0 + 999)
    log.tick(T0 + 999)
    assert len(log.segments) == 1
    put(log, message(2), now=T0 + 1000)
    assert [segment.base for segment in log.segments] == [0, 2]
    log.tick(T0 + 1999)
    assert len(log.segments) == 2
    log.tick(T0 + 2000)
    log.tick(T0 + 9000)
    assert [segment.base for segment in log.segments] == [0, 2, 3]


def test_an_empty_segment_does_not_roll(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.roll()
    log.tick(T0)
    fill(log, 1)
    log.roll()
    log.roll()
    assert [segment.base for segment in log.segments] == [0, 1]


def test_no_more_rolled_segments_wait_for_their_fsync_than_may(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for number in range(3 * limits.MAX_UNSEALED_SEGMENTS):
        put(log, message(number))
        log.roll()
        assert sum(1 for segment in log.segments if not segment.seal) <= limits.MAX_UNSEALED_SEGMENTS + 2
    assert offsets(read_all(log)) == list(range(3 * limits.MAX_UNSEALED_SEGMENTS))


# --- durability


def test_durable_moves_with_a_sync_and_written_with_an_append(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    told: list[str] = []
    log.written.when(3, lambda error: told.append(f"written {error}"))
    log.durable.when(3, lambda error: told.append(f"durable {error}"))
    put(log, *map(message, range(3)))
    assert (log.written.value, log.durable.value, told) == (3, 0, ["written None"])
    log.sync()
    assert (log.durable.value, told) == (3, ["written None", "durable None"])


def test_a_sync_seals_what_rolled_with_all_its_companions(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 100)
    before = len(log.sealed)
    assert before == 0
    log.sync()
    assert [entry.base for entry in log.sealed] == [segment.base for segment in log.segments[:-1]]
    assert [entry.seal for entry in log.sealed] == list(range(1, len(log.segments)))
    for entry in log.sealed:
        for ending in (".index", ".timeindex", ".view"):
            assert segment_path(tmp_path, entry.base, ending).exists()
    assert not segment_path(tmp_path, log.segments[-1].base, ".index").exists()


def test_a_segments_bytes_are_synced_before_anything_speaks_of_them(tmp_path: Path) -> None:
    disk = WatchedDisk()
    log = open_log(tmp_path, disk=disk)
    fill(log, 60)
    disk.operations.clear()
    log.sync()
    assert len(log.sealed) >= 1
    order = [done.path.rpartition("/")[2] for done in disk.operations if done.kind in ("sync", "rename")]
    data = [at for at, name in enumerate(order) if name.endswith(".log")]
    mark, state = order.index("synced"), order.index("log.state")
    assert len(data) == len(log.segments)
    assert max(data) < mark < state
    directory = next(at for at, done in enumerate(disk.operations) if done.kind == "sync_directory")
    written = next(at for at, done in enumerate(disk.operations) if done.path.endswith("/synced"))
    assert directory < written


def test_a_sync_with_nothing_new_fsyncs_no_segment(tmp_path: Path) -> None:
    disk = WatchedDisk()
    log = open_log(tmp_path, disk=disk)
    fill(log, 10)
    log.sync()
    disk.operations.clear()
    log.sync()
    assert disk.of_kind("sync", ".log") == []


def test_somebody_is_asked_to_sync_once_and_again_after_the_sync(tmp_path: Path) -> None:
    asked: list[bool] = []
    log = Log.open(str(tmp_path), disk=WatchedDisk(), settings=SMALL, on_dirty=lambda _, urgent: asked.append(urgent))
    put(log, message(0))
    put(log, message(1))
    assert asked == [False]
    log.sync()
    put(log, message(2))
    assert asked == [False, False]
    log.roll()
    assert asked == [False, False, True]


def test_without_fsync_nobody_is_asked_before_a_segment_rolls(tmp_path: Path) -> None:
    asked: list[bool] = []
    log = Log.open(
        str(tmp_path),
        disk=WatchedDisk(),
        settings=LogSettings(segment_bytes=4096, fsync=Fsync.NONE),
        on_dirty=lambda _, urgent: asked.append(urgent),
    )
    put(log, message(0))
    assert asked == []
    fill(log, 40)
    assert asked == [True]


def asking(path: Path, settings: LogSettings = SMALL, disk: WatchedDisk | None = None) -> tuple[Log, list[bool]]:
    """A log and what its driver is asked, True for an urgent sync."""
    asked: list[bool] = []
    log = Log.open(
        str(path), disk=disk or WatchedDisk(), settings=settings, on_dirty=lambda _, urgent: asked.append(urgent)
    )
    return log, asked


NEVER = LogSettings(segment_bytes=4096, fsync=Fsync.NONE)
EVERY = LogSettings(segment_bytes=4096, fsync=Fsync.EVERY)


@pytest.mark.parametrize("fsync", Fsync)
def test_what_waits_for_the_next_interval_is_begun_with_in_pieces(
    tmp_path: Path, fsync: Fsync, monkeypatch: pytest.MonkeyPatch
) -> None:
    grown: list[int] = []

    def begin(log: Log) -> None:
        grown.append(log.segments[-1].size)
        log.begin_sync()

    disk = WatchedDisk()
    settings = LogSettings(segment_bytes=1_000_000, fsync=fsync)
    log = Log.open(str(tmp_path), disk=disk, settings=settings, on_grown=begin)
    monkeypatch.setattr(limits, "BEGIN_SYNC_BYTES", 10_000)
    fill(log, 101)
    assert bool(grown) == (fsync is Fsync.INTERVAL)
    log.sync()
    synced = log.segments[-1].size
    disk.operations.clear()
    grown.clear()
    fill(log, 505)
    if fsync is Fsync.INTERVAL:
        assert len(grown) >= 5
        assert all(after - before >= 10_000 for before, after in pairwise(grown))
    assert [each.position for each in disk.of_kind("begin_sync", ".log")] == [synced] * len(grown)
    assert log.durable.value < log.written.value


def test_who_is_slow_to_begin_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Log] = []
    log = Log.open(str(tmp_path), disk=WatchedDisk(), on_grown=asked.append)
    monkeypatch.setattr(limits, "BEGIN_SYNC_BYTES", 1_000)
    fill(log, 101)
    assert asked == [log]
    log.begin_sync()
    put(log, message(101))
    assert asked == [log, log]


def waited_for(log: Log, *records: Record) -> None:
    """Append them while somebody waits for them."""
    log.written.when(log.end_offset + 1, lambda _: None)
    put(log, *records)


def test_who_waited_for_a_block_reads_it_from_memory(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    waited_for(log, message(0), message(1))
    chunk = log.read(0, max_bytes=limits.MIB)
    assert chunk.data.obj is log.fresh.data  # type: ignore[union-attr]
    log.sync()
    again = log.read(0, max_bytes=limits.MIB)
    assert log.fresh is None
    assert (bytes(again.data), again.count, again.next_offset) == (bytes(chunk.data), 2, 2)


@pytest.mark.parametrize(
    ("offset", "bounds"),
    [(0, {"max_count": 1}), (0, {"max_bytes": 200}), (0, {"to_offset": 1}), (1, {}), (2, {})],
)
def test_from_memory_comes_the_whole_block_or_nothing(tmp_path: Path, offset: int, bounds: dict[str, int]) -> None:
    log = open_log(tmp_path)
    waited_for(log, message(0), message(1))
    asked = {"max_bytes": limits.MIB, **bounds}
    found = log.read(offset, **asked)
    log.fresh = None
    assert log.read(offset, **asked) == found


def test_what_nobody_waited_for_or_is_large_or_never_synced_is_not_kept(tmp_path: Path) -> None:
    log = open_log(tmp_path / "one")
    put(log, message(0))
    assert log.fresh is None
    waited_for(log, message(1, limits.FRESH_BLOCK_BYTES))
    assert log.fresh is None
    waited_for(log, message(2))
    assert log.fresh is not None
    put(log, message(3))
    assert log.fresh is None
    unsynced = Log.open(str(tmp_path / "two"), disk=WatchedDisk(), settings=NEVER)
    waited_for(unsynced, message(0))
    assert unsynced.fresh is None


def test_a_block_that_was_dropped_or_cleaned_away_is_not_read_from_memory(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    put(log, message(0))
    waited_for(log, message(1))
    log.truncate(1)
    assert log.read(1, max_bytes=limits.MIB).count == 0
    waited_for(log, message(7))
    assert [record.value for record in log.records(1, max_bytes=limits.MIB)] == [message(7).value]
    log.roll()
    log.sync()
    log.truncate_prefix(2)
    with pytest.raises(OffsetOutOfRange):
        log.read(1, max_bytes=limits.MIB)


@pytest.mark.parametrize("error", [OSError("planted"), Unavailable("planted")])
def test_a_file_that_cannot_be_opened_to_begin_with_it_fails_nothing(
    tmp_path: Path, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise error

    log = open_log(tmp_path)
    put(log, message(0))
    with monkeypatch.context() as patch:
        patch.setattr(log.files, "acquire", refuse)
        log.begin_sync()
    put(log, message(1))
    log.sync()
    assert log.durable.value == 2


def test_of_a_log_that_is_closed_nothing_is_begun(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    put(log, message(0))
    log.close()
    with pytest.raises(LogClosed):
        log.begin_sync()


@pytest.mark.parametrize("settings", [SMALL, NEVER], ids=["interval", "none"])
def test_who_waits_asks_for_an_urgent_sync_once_and_again_after_it(tmp_path: Path, settings: LogSettings) -> None:
    log, asked = asking(tmp_path, settings)
    log.hasten()
    assert asked == []
    put(log, message(0))
    asked.clear()
    for _ in range(5):
        log.hasten()
    assert asked == [True]
    put(log, message(1))
    assert asked == [True]
    log.sync()
    log.hasten()
    assert asked == [True]
    put(log, message(2))
    log.hasten()
    assert asked[-1] is True
    assert log.durable.value == 2


def test_an_append_that_must_be_synced_at_once_is_urgent_by_itself(tmp_path: Path) -> None:
    log, asked = asking(tmp_path, EVERY)
    put(log, message(0))
    log.hasten()
    assert asked == [True]


def test_a_roll_is_urgent_enough_for_who_waits(tmp_path: Path) -> None:
    log, asked = asking(tmp_path, NEVER)
    put(log, message(0))
    log.roll()
    log.hasten()
    assert asked == [True]


@pytest.mark.parametrize("late", ["sync", "mark"])
def test_who_waits_for_what_was_appended_while_a_sync_runs_asks_again(tmp_path: Path, late: str) -> None:
    """The running one has looked at the end already: it does not cover what comes now."""
    disk = WatchedDisk()
    log, asked = asking(tmp_path, NEVER, disk)
    put(log, message(0))
    log.hasten()

    def overtake() -> None:
        put(log, message(1))
        log.hasten()
        log.hasten()

    kind, ending = ("sync", ".log") if late == "sync" else ("write", "/synced")
    disk.before = once(lambda done: done.kind == kind and done.path.endswith(ending), overtake)
    log.sync()
    assert log.durable.value == 1
    assert asked == [True, True]
    log.sync()
    assert log.durable.value == 2


def test_a_sync_with_nothing_to_do_touches_no_file(tmp_path: Path) -> None:
    disk = WatchedDisk()
    log, _ = asking(tmp_path, NEVER, disk)
    put(log, message(0))
    log.sync()
    disk.operations.clear()
    log.sync()
    assert disk.operations == []


# --- settings changed while it is open


@pytest.mark.parametrize(("fsync", "urgent"), [(Fsync.INTERVAL, False), (Fsync.EVERY, True)])
def test_what_was_never_to_be_synced_is_synced_once_the_mode_says_so(
    tmp_path: Path, fsync: Fsync, urgent: bool
) -> None:
    log, asked = asking(tmp_path, NEVER)
    put(log, message(0))
    assert asked == []
    log.settings = LogSettings(segment_bytes=4096, fsync=fsync)
    assert asked == [urgent]
    assert log.settings.fsync is fsync


def test_what_waits_for_its_interval_is_synced_at_once_when_the_mode_says_so(tmp_path: Path) -> None:
    log, asked = asking(tmp_path, SMALL)
    put(log, message(0))
    log.settings = EVERY
    put(log, message(1))
    assert asked == [False, True]


def test_a_mode_without_fsync_and_one_with_nothing_to_sync_ask_for_nothing(tmp_path: Path) -> None:
    log, asked = asking(tmp_path, SMALL)
    log.settings = EVERY
    log.settings = NEVER
    put(log, message(0))
    assert asked == []
    log.settings = NEVER
    assert asked == []


def test_a_sync_asked_for_under_the_old_mode_does_not_stand_in_for_one_under_the_new(tmp_path: Path) -> None:
    """A sync that had seen the append before it was asked for: all is durable, and the request still waits."""
    disk = WatchedDisk()
    log, asked = asking(tmp_path, SMALL, disk)
    real = log._on_dirty

    def sync_first(which: Log, urgent: bool) -> None:
        which._requested = False
        which.sync()
        which._requested = True
        real(which, urgent)

    log._on_dirty = sync_first
    put(log, message(0))
    log._on_dirty = real
    assert log.durable.value == 1
    log.settings = EVERY
    assert asked == [False, True]


def test_a_changed_segment_size_and_age_hold_from_the_next_append_on(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogSettings(segment_bytes=1 << 20))
    fill(log, 100)
    assert len(log.segments) == 1
    log.settings = SMALL
    fill(log, 5, now=T0 + 1000)
    assert [segment.base for segment in log.segments] == [0, 100]
    log.settings = LogSettings(segment_bytes=1 << 20, segment_age_ms=50)
    log.tick(T0 + 1049)
    assert len(log.segments) == 2
    log.tick(T0 + 1050)
    assert [segment.base for segment in log.segments] == [0, 100, 105]
    assert offsets(read_all(log)) == list(range(105))


def test_a_changed_retention_holds_from_the_next_pass_on(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill_segments(log, 3)
    assert clean(log, T0 + 10**6).removed_segments == 0
    log.settings = LogSettings(segment_bytes=4096, retention_ms=1000)
    assert clean(log, T0 + 10**6).removed_segments == 3


def test_a_changed_index_interval_holds_for_new_segments_and_changes_no_answer(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 50)
    log.settings = LogSettings(segment_bytes=4096, index_interval_bytes=2048)
    fill(log, 50, now=T0 + 1000)
    before = answers(log)
    intervals = [log.derived(segment).interval for segment in log.segments]
    assert intervals[0] == 256
    assert intervals[-1] == 2048
    log.close()
    drop_companions(tmp_path)
    assert answers(open_log(tmp_path)) == before


def test_settings_may_change_while_another_thread_appends(tmp_path: Path) -> None:
    """Under each mode what is written becomes durable as that mode says, without a further append."""
    log, asked = asking(tmp_path, NEVER)
    done = threading.Event()

    def append() -> None:
        for number in range(300):
            put(log, message(number, size=10))
        done.set()

    writer = threading.Thread(target=append, daemon=True)
    writer.start()
    while not done.is_set():
        for settings in (SMALL, NEVER, EVERY):
            log.settings = settings
            log.sync()
    writer.join()
    log.sync()
    put(log, message(300))
    log.settings = NEVER
    asked.clear()
    log.settings = EVERY
    assert asked == [True]
    log.sync()
    assert log.durable.value == 301


# --- a log that is removed


def test_an_abandoned_log_stops_at_once_and_syncs_nothing(tmp_path: Path) -> None:
    disk = WatchedDisk()
    log = open_log(tmp_path, disk=disk)
    fill_segments(log, 2)
    fill(log, 5)
    told: list[Exception | None] = []
    log.durable.when(25, told.append)
    log.written.when(26, told.append)
    disk.operations.clear()
    log.abandon()
    assert [type(error) for error in told] == [LogClosed, LogClosed]
    assert disk.operations == []
    assert disk.open_count == 0
    for work in (
        lambda: put(log, message(25)),
        log.sync,
        log.roll,
        lambda: log.truncate(3),
        lambda: log.truncate_prefix(3),
        lambda: log.begin_epoch(1),
        lambda: log.begin_rewrite(0),
        lambda: log.remove(log.sealed),
        lambda: log.read(0, max_bytes=100),
        lambda: log.records(20, max_bytes=100),
        lambda: log.offset_at(T0),
        lambda: log.offset_at(T0 + 2000),
    ):
        with pytest.raises(LogClosed, match="was removed"):
            work()
    log.hasten()
    log.close()
    log.abandon()
    assert disk.operations == []


def test_a_log_that_failed_can_be_abandoned(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 5)
    log.fail("the disk is gone")
    log.abandon()
    with pytest.raises(LogClosed):
        log.read(0, max_bytes=100)


def test_a_log_that_was_abandoned_does_not_fail_any_more(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 5)
    log.abandon()
    assert isinstance(log.fail("its files are gone"), LogClosed)
    with pytest.raises(LogClosed), log.or_fail("reading"):
        raise FileNotFoundError
    assert isinstance(log.durable.failure, LogClosed)


def test_a_reader_in_the_middle_of_a_look_up_is_told_that_the_log_is_gone(tmp_path: Path) -> None:
    """At each operation of a read that must rebuild the indexes first; no file comes back."""
    answered = []
    for number in range(100):
        directory = tmp_path / str(number)
        log = open_log(directory)
        fill_segments(log, 1)
        log.close()
        drop_companions(directory)
        disk = WatchedDisk()
        log = open_log(directory, disk=disk)
        stopped = threading.Event()
        log.durable.when(100, lambda _, stopped=stopped: stopped.set())  # type: ignore[misc]

        def remove(log: Log = log, directory: Path = directory) -> None:
            log.abandon()
            for path in directory.iterdir():
                path.unlink()

        remover = threading.Thread(target=remove, daemon=True)

        def begin(remover: threading.Thread = remover, stopped: threading.Event = stopped) -> None:
            remover.start()
            assert stopped.wait(PATIENCE_S)

        disk.operations.clear()
        disk.before = once(lambda _, number=number, disk=disk: len(disk.operations) > number, begin)  # type: ignore[misc]
        try:
            log.read(3, max_bytes=100)
            answered.append(number)
        except LogClosed:
            pass
        if not stopped.is_set():
            break
        remover.join(PATIENCE_S)
        assert list(directory.iterdir()) == []
        assert disk.open_count == 0
    assert number > 5
    assert answered == list(range(answered[0], number + 1))


def test_a_failure_reaches_everybody_who_waits(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 5)
    told: list[tuple[str, Exception | None]] = []
    log.written.when(100, lambda error: told.append(("written", error)))
    log.durable.when(5, lambda error: told.append(("durable", error)))
    failure = log.fail("a test")
    assert sorted(name for name, _ in told) == ["durable", "written"]
    assert all(type(error) is StorageFailed and str(error) == str(failure) for _, error in told)
    log.written.when(101, lambda error: told.append(("later", error)))
    assert isinstance(told[2][1], StorageFailed)


def test_closing_reaches_everybody_who_still_waits(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 5)
    told: dict[str, Exception | None] = {}
    log.durable.when(5, lambda error: told.update(all_of_it=error))
    log.durable.when(6, lambda error: told.update(durable=error))
    log.written.when(6, lambda error: told.update(written=error))
    log.close()
    assert told.pop("all_of_it") is None, "closing makes everything durable first"
    assert {name: type(error) for name, error in told.items()} == {"durable": LogClosed, "written": LogClosed}
    log.written.when(7, lambda error: told.update(later=error))
    assert isinstance(told["later"], LogClosed)


def refusals(log: Log) -> list[Callable[[], object]]:
    return [lambda: put(log, message(0)), log.sync, log.roll, lambda: log.truncate(0), lambda: log.begin_epoch(9)]


@pytest.mark.parametrize("ending", ["failed", "closed"])
def test_an_error_raised_again_and_again_does_not_grow(tmp_path: Path, ending: str) -> None:
    log = open_log(tmp_path)
    fill(log, 5)
    if ending == "failed":
        log.fail("a test")
    else:
        log.close()
    for refused in refusals(log):
        lengths = []
        for _ in range(50):
            try:
                refused()
            except (StorageFailed, LogClosed) as error:
                lengths.append(sum(1 for _ in traceback.walk_tb(error.__traceback__)))
        assert lengths == [lengths[0]] * 50


# --- restart


def test_a_restart_gives_the_same_answers(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.begin_epoch(3)
    fill(log, 150)
    put(log, delayed(150, T0 + 10**9), Record(priority=0), now=T0 + 10_000)
    log.sync()
    put(log, message(152), Record(priority=4), now=T0 + 20_000)
    before = answers(log)
    log.close()
    again = open_log(tmp_path)
    assert answers(again) == before
    assert not again.recovery
    assert put(again, message(154), now=T0 + 30_000).first_offset == 154


def test_every_index_and_view_may_be_deleted_while_stopped(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.begin_epoch(1)
    for number in range(30):
        put(
            log,
            *(Record(value=value(number), priority=(number + each) % 5) for each in range(7)),
            delayed(number, T0 + 10**6 - number),
            now=T0 + number,
        )
    log.sync()
    before = answers(log)
    log.close()
    assert drop_companions(tmp_path) == 3 * len(log.sealed) > 20
    again = open_log(tmp_path)
    assert answers(again) == before
    assert not again.recovery
    assert len(list(tmp_path.glob("*.index"))) == len(log.sealed)


def test_companions_that_answer_for_another_segment_are_not_believed(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 150)
    log.sync()
    before = answers(log)
    first, second = (entry.base for entry in log.sealed[:2])
    log.close()
    for ending in (".index", ".timeindex", ".view"):
        segment_path(tmp_path, first, ending).write_bytes(segment_path(tmp_path, second, ending).read_bytes())
    assert answers(open_log(tmp_path)) == before


def test_a_log_kept_with_another_interval_can_be_opened(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 150)
    before = answers(log)
    log.close()
    assert answers(open_log(tmp_path, LogSettings(segment_bytes=8192, index_interval_bytes=1000))) == before


# --- damage


def test_a_damaged_record_is_refused_by_its_offset_and_reading_goes_on_after_it(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill_segments(log, 3)
    flip_record(tmp_path, 10, 14)
    found, refused = read_around_damage(log)
    assert refused == [(14, 15)]
    assert found == [offset for offset in range(30) if offset != 14]
    with pytest.raises(Quarantined, match="offset 14 is damaged"):
        log.read(14, max_bytes=1)


def test_damage_that_comes_after_a_first_look_is_found_too(tmp_path: Path) -> None:
    """A segment that was surveyed once may rot later: then too, exactly the bad offsets are refused."""
    log = open_log(tmp_path)
    fill_segments(log, 3)
    path = segment_path(tmp_path, 10)
    ends = {offset: end for offset, (_, end) in positions(path).items()}
    flip(path, ends[14] - 1)
    assert read_around_damage(log)[1] == [(14, 15)]
    flip(path, ends[17] - 1)
    assert read_around_damage(log)[1] == [(14, 15), (17, 18)]


def test_damage_in_a_segment_whose_index_was_rebuilt_is_found_too(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill_segments(log, 3)
    log.close()
    drop_companions(tmp_path)
    log = open_log(tmp_path)
    assert offsets(read_all(log)) == list(range(30))
    flip_record(tmp_path, 10, 14)
    found, refused = read_around_damage(log)
    assert (refused, len(found)) == ([(14, 15)], 29)


def test_a_time_look_up_goes_around_damage(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill_segments(log, 1, per_segment=20)
    flip_record(tmp_path, 0, 10)
    found = [log.offset_at(T0 + 10 * block) for block in range(4)]
    assert (found[0], found[1], found[3]) == (0, 5, 15)
    assert found[2] in (10, 11)  # the damaged record itself, or the first that can be read


# --- the end


def test_after_close_everything_that_changes_the_log_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 10)
    log.close()
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    changes = [
        lambda: put(log, message(10)),
        lambda: log.truncate(5),
        lambda: log.truncate_prefix(5),
        lambda: log.begin_epoch(5),
        log.sync,
        log.roll,
    ]
    for change in changes:
        with pytest.raises(LogClosed):
            change()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == files
    assert log.end_offset == 10


def test_after_close_nothing_is_read(tmp_path: Path) -> None:
    disk = WatchedDisk()
    log = open_log(tmp_path, disk=disk)
    fill_segments(log, 2)
    fill(log, 5)
    log.close()
    for offset in (0, 12, 24, 25):
        with pytest.raises(LogClosed):
            log.read(offset, max_bytes=100)
        with pytest.raises(LogClosed):
            log.records(offset, max_bytes=100)
    assert disk.open_count == 0


def test_closing_makes_all_durable_and_leaves_no_file_open(tmp_path: Path) -> None:
    disk = WatchedDisk()
    log = open_log(tmp_path, disk=disk)
    fill(log, 100)
    read_all(log)
    log.close()
    assert log.durable.value == 100
    assert disk.open_count == 0
    log.close()


# --- epochs


def test_an_epoch_ends_where_the_next_begins(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 5)
    log.begin_epoch(2)
    fill(log, 5)
    log.begin_epoch(7)
    fill(log, 3)
    assert log.epochs == (LeaderEpoch(2, 5), LeaderEpoch(7, 10))
    assert [log.epoch_end(epoch) for epoch in (0, 1, 2, 3, 6, 7, 8)] == [
        LeaderEpoch(-1, 0),
        LeaderEpoch(-1, 0),
        LeaderEpoch(2, 10),
        LeaderEpoch(2, 10),
        LeaderEpoch(2, 10),
        LeaderEpoch(7, 13),
        LeaderEpoch(7, 13),
    ]


def test_an_epoch_that_is_not_newer_is_stale(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.begin_epoch(4)
    for epoch in (4, 3, 0):
        with pytest.raises(StaleEpoch, match=f"leader epoch {epoch} is not newer than 4"):
            log.begin_epoch(epoch)
    assert log.epochs == (LeaderEpoch(4, 0),)


def test_an_epoch_without_records_leaves_no_trace_but_its_number_counts(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 5)
    log.begin_epoch(2)
    log.begin_epoch(3)
    assert log.epochs == (LeaderEpoch(3, 5),)


def test_an_epoch_is_durable_when_it_has_begun(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 5)
    log.begin_epoch(2)
    assert open_log(tmp_path).epochs == (LeaderEpoch(2, 5),)
    with pytest.raises(StaleEpoch):
        open_log(tmp_path).begin_epoch(2)


def test_epochs_wholly_before_the_start_are_forgotten_and_the_one_in_force_stays(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for epoch in (1, 2, 3):
        log.begin_epoch(epoch)
        fill(log, 10)
    first, second, third = LeaderEpoch(1, 0), LeaderEpoch(2, 10), LeaderEpoch(3, 20)
    for start, kept in [(9, [first, second, third]), (10, [second, third]), (19, [second, third]), (20, [third])]:
        log.truncate_prefix(start)
        assert list(log.epochs) == kept
        assert list(open_log(tmp_path).epochs) == kept
    log.truncate_prefix(30)
    assert list(log.epochs) == [third]
    with pytest.raises(StaleEpoch):
        log.begin_epoch(3)
    assert log.epoch_end(3) == LeaderEpoch(3, 30)


# --- truncation


def truncation_subject(directory: Path, disk: WatchedDisk | None = None) -> Log:
    """Three sealed segments of ten (0, 10, 20), one rolled (30), one active (40 to 44)."""
    log = open_log(directory, disk=disk)
    fill_segments(log, 3)
    fill(log, 10, now=T0 + 3000)
    log.roll()
    fill(log, 4, now=T0 + 4000, block=1)
    assert [segment.base for segment in log.segments] == [0, 10, 20, 30, 40]
    return log


EDGES = [0, 1, 5, 9, 10, 11, 15, 20, 25, 29, 30, 31, 35, 39, 40, 41, 43, 44]


@pytest.mark.parametrize("offset", EDGES)
def test_a_truncated_log_ends_there_goes_on_there_and_stays_so(tmp_path: Path, offset: int) -> None:
    log = truncation_subject(tmp_path)
    whole = read_all(log)
    log.truncate(offset)
    assert log.end_offset == log.written.value == offset
    assert log.durable.value == (offset if offset < 44 else 30)
    assert read_all(log) == whole[:offset]
    assert log.offset_at(10**15) == offset
    assert put(log, message(1000), now=T0 + 9000).first_offset == offset
    before = answers(log)
    assert [record.value for record in read_all(log)[offset:]] == [value(1000)]
    log.close()
    again = open_log(tmp_path)
    assert answers(again) == before
    assert not again.recovery
    drop_companions(tmp_path)
    assert answers(open_log(tmp_path)) == before


@pytest.mark.parametrize("offset", [-1, 45])
def test_a_truncation_outside_the_log_is_refused(tmp_path: Path, offset: int) -> None:
    log = truncation_subject(tmp_path)
    with pytest.raises(OffsetOutOfRange):
        log.truncate(offset)
    log.truncate_prefix(12)
    with pytest.raises(OffsetOutOfRange):
        log.truncate(11)
    assert (log.start_offset, log.end_offset) == (12, 44)


def test_truncated_segments_leave_no_files(tmp_path: Path) -> None:
    log = truncation_subject(tmp_path)
    log.truncate(5)
    log.close()
    names = {path.name for path in tmp_path.iterdir() if path.suffix == ".log"}
    assert names == {f"{base:020d}.log" for base in (0, 5)}
    assert {path.name[:20] for path in tmp_path.iterdir() if path.suffix == ".index"} <= {f"{0:020d}", f"{5:020d}"}


def test_who_waits_for_truncated_offsets_is_told(tmp_path: Path) -> None:
    log = truncation_subject(tmp_path)
    told: list[Exception | None] = []
    log.durable.when(50, told.append)
    log.written.when(45, told.append)
    log.truncate(7)
    assert [type(error) for error in told] == [OffsetOutOfRange, OffsetOutOfRange]


def test_epochs_of_truncated_records_are_gone(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for epoch in range(1, 4):
        log.begin_epoch(epoch)
        fill(log, 10)
    log.truncate(10)
    assert list(log.epochs) == [LeaderEpoch(1, 0)]
    log.begin_epoch(9)
    assert list(log.epochs) == [LeaderEpoch(1, 0), LeaderEpoch(9, 10)]


def test_truncating_twice_and_writing_between_keeps_only_the_last_life(tmp_path: Path) -> None:
    log = truncation_subject(tmp_path)
    for life, offset in enumerate((33, 12, 12, 3)):
        log.truncate(offset)
        put(log, *(Record(value=b"life %d" % life) for _ in range(20)))
        log.roll()
        log.sync()
    assert log.end_offset == 23
    found = [record.value for record in read_all(log)]
    assert found == [value(number) for number in range(3)] + [b"life 3"] * 20
    log.close()
    assert [record.value for record in read_all(open_log(tmp_path))] == found


@pytest.mark.parametrize("offset", [15, 20, 35, 42])
def test_a_truncation_stopped_anywhere_is_done_or_not_begun_after_the_next_opening(tmp_path: Path, offset: int) -> None:
    outcomes: list[int] = []
    change = 0
    stopped = True
    while stopped:
        directory = tmp_path / str(change)
        disk = WatchedDisk()
        log = truncation_subject(directory, disk)
        log.sync()
        whole = read_all(log)
        disk.before = stop_at(change)
        stopped = False
        try:
            log.truncate(offset)
        except Stopped:
            stopped = True
        again = open_log(directory)
        assert again.end_offset in (offset, 44)
        assert read_all(again) == whole[: again.end_offset]
        assert put(again, message(1000), now=T0 + 9000).first_offset == again.end_offset - 1
        assert not again.recovery.quarantined
        assert again.recovery.cut is None
        outcomes.append(again.end_offset - 1)
        change += 1
    assert outcomes == sorted(outcomes, reverse=True)
    assert set(outcomes) == {44, offset}
    assert outcomes.count(offset) > 5


def test_a_truncation_above_a_damaged_record_keeps_what_is_whole_between(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill_segments(log, 2)
    flip_record(tmp_path, 10, 13)
    log.truncate(17)
    found, refused = read_around_damage(log)
    assert refused == [(13, 14)]
    assert found == [*range(13), 14, 15, 16]


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("damaged", [0, 4, 9])
@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_truncation_at_or_after_a_damaged_record_ends_and_forgets_no_damage(
    tmp_path: Path, damaged: int, after: int, sealed: bool
) -> None:
    disk = WatchedDisk()
    log = open_log(tmp_path, disk=disk)
    fill(log, 14, block=1)
    if sealed:
        log.roll()
    log.sync()
    flip_record(tmp_path, 0, damaged)
    offset = damaged + after
    disk.before = at_most(2000)
    log.truncate(offset)
    assert log.end_offset == log.written.value == offset
    expected = [number for number in range(offset) if number != damaged]
    refused = [(damaged, damaged + 1)] if after else []
    assert read_around_damage(log) == (expected, refused)
    assert put(log, message(offset), now=T0 + 9000).first_offset == offset
    log.sync()
    assert read_around_damage(log) == ([*expected, offset], refused)
    log.close()
    for _ in range(2):
        again = open_log(tmp_path, disk=WatchedDisk(at_most(2000)))
        assert again.end_offset == offset + 1
        assert read_around_damage(again) == ([*expected, offset], refused)
        again.close()


@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_truncation_in_a_cleaned_segment_forgets_no_damage(tmp_path: Path, after: int) -> None:
    """Offsets may be missing there for good reasons: a damaged one must not pass for one of them."""
    settings = LogSettings(segment_bytes=4096, index_interval_bytes=256, compact=True)
    log = open_log(tmp_path, settings)
    put(log, message(0), *map(message, range(1, 10)), message(0))
    log.roll()
    put(log, message(11), now=T0 + 1)
    log.sync()
    clean(log, T0 + 10)
    assert offsets(read_all(log)) == list(range(1, 12))
    flip_record(tmp_path, 0, 5)
    log.truncate(5 + after)
    refused = [(5, 6)] if after else []
    expected = [number for number in range(1, 5 + after) if number != 5]
    assert read_around_damage(log) == (expected, refused)
    put(log, message(77), now=T0 + 20)
    log.close()
    again = open_log(tmp_path, settings)
    assert read_around_damage(again) == ([*expected, 5 + after], refused)
    if after:
        with pytest.raises(Quarantined):
            again.read(5, max_bytes=1)


def test_the_start_moves_to_any_offset_and_stays_there(tmp_path: Path) -> None:
    for number, offset in enumerate(EDGES):
        log = truncation_subject(tmp_path / str(number))
        whole = read_all(log)
        log.truncate_prefix(offset)
        assert (log.start_offset, log.end_offset) == (offset, 44)
        assert read_all(log) == whole[offset:]
        if offset:
            with pytest.raises(OffsetOutOfRange):
                log.read(offset - 1, max_bytes=1)
        before = answers(log)
        log.close()
        again = open_log(tmp_path / str(number))
        assert answers(again) == before
        assert put(again, message(44), now=T0 + 9000).first_offset == 44


def test_segments_wholly_before_the_start_are_removed(tmp_path: Path) -> None:
    log = truncation_subject(tmp_path)
    log.sync()
    log.truncate_prefix(20)
    assert sorted(path.name for path in tmp_path.glob("*.log")) == [f"{base:020d}.log" for base in (20, 30, 40)]
    assert {path.name[:20] for path in tmp_path.glob("*.view")} == {f"{base:020d}" for base in (20, 30)}


def test_the_start_does_not_move_back_or_past_the_end(tmp_path: Path) -> None:
    log = truncation_subject(tmp_path)
    log.truncate_prefix(12)
    for offset in (11, 45):
        with pytest.raises(OffsetOutOfRange):
            log.truncate_prefix(offset)
    log.truncate_prefix(12)
    assert log.start_offset == 12


def test_moving_the_start_stopped_anywhere_is_done_or_not_begun(tmp_path: Path) -> None:
    outcomes = []
    change = 0
    stopped = True
    while stopped:
        disk = WatchedDisk()
        log = truncation_subject(tmp_path / str(change), disk)
        log.sync()
        whole = read_all(log)
        disk.before = stop_at(change)
        stopped = False
        try:
            log.truncate_prefix(25)
        except Stopped:
            stopped = True
        again = open_log(tmp_path / str(change))
        assert again.start_offset in (0, 25)
        assert read_all(again) == whole[again.start_offset :]
        kept = {path.name for path in (tmp_path / str(change)).glob("*.log")}
        assert kept == {f"{segment.base:020d}.log" for segment in again.segments}
        outcomes.append(again.start_offset)
        change += 1
    assert outcomes == sorted(outcomes)
    assert set(outcomes) == {0, 25}


# --- what it costs


def test_an_append_is_one_write_and_nothing_else(tmp_path: Path) -> None:
    disk = WatchedDisk()
    log = open_log(tmp_path, disk=disk)
    put(log, message(0))
    disk.operations.clear()
    block = codec.encode([message(1), message(2)])
    log.append(block, now=T0)
    assert [done for done in disk.operations if done.kind in CHANGES] == [
        Operation("write", str(segment_path(tmp_path, 0)), RECORD, len(block))
    ]
    assert len(disk.operations) == 1


def test_a_read_beside_the_writer_opens_no_file_twice(tmp_path: Path) -> None:
    disk = WatchedDisk()
    log = open_log(tmp_path, disk=disk)
    fill(log, 30)
    disk.operations.clear()
    for _ in range(5):
        log.read(0, max_bytes=1000)
        put(log, message(0, size=10))
    assert disk.of_kind("open") == []
