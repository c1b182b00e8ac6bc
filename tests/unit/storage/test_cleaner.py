"""The cleaner: what is too old, too much or superseded goes; everything else stays, at its offset."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pyroaring import BitMap64

from goqueue import codec
from goqueue.model import limits
from goqueue.model.errors import DiskFull
from goqueue.model.record import Extension, Record
from goqueue.model.settings import LogSettings
from goqueue.storage.cleaner import clean
from goqueue.storage.delays import DueTimes
from goqueue.storage.log import Log
from goqueue.storage.state import LeaderEpoch, Trait
from tests.unit.storage.disks import Operation, Stopped, WatchedDisk, once, stop_at
from tests.unit.storage.logs import (
    T0,
    answers,
    delayed,
    drop_companions,
    fill_segments,
    flip_record,
    log_bytes,
    message,
    offsets,
    open_log,
    put,
    read_all,
    read_around_damage,
    segment_path,
    value,
)

DAY = 24 * 3600 * 1000


def kept_for(**changes: object) -> LogSettings:
    return LogSettings(segment_bytes=4096, index_interval_bytes=256, **changes)  # type: ignore[arg-type]


def keyed(key: str, text: str | None, *, size: int = 100) -> Record:
    return Record(key=key.encode(), value=None if text is None else text.encode().ljust(size, b"."))


def seal(log: Log, *records: Record, now: int) -> None:
    """The records as one sealed segment."""
    put(log, *records, now=now)
    log.roll()
    log.sync()


def texts(log: Log) -> list[tuple[int, str, str | None]]:
    """Offset, key and value of every record."""
    return [
        (
            record.offset,
            (record.key or b"-").decode(),
            None if record.value is None else record.value.decode().rstrip("."),
        )
        for record in read_all(log)
    ]


# --- retention


def test_without_settings_nothing_is_cleaned(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill_segments(log, 3)
    before = answers(log)
    report = clean(log, T0 + 10**12)
    assert answers(log) == before
    assert (report.removed_segments, report.rewritten_segments, report.removed_records) == (0, 0, 0)


def test_segments_whose_last_record_is_too_old_are_removed(tmp_path: Path) -> None:
    log = open_log(tmp_path, kept_for(retention_ms=1000))
    fill_segments(log, 4)  # the last record of segment n is from T0 + 1000 n + 10
    sizes = [entry.size for entry in log.sealed]
    assert clean(log, T0 + 1010).removed_segments == 0
    report = clean(log, T0 + 2011)
    assert (report.removed_segments, report.removed_records, report.removed_bytes) == (2, 20, sum(sizes[:2]))
    assert (log.start_offset, offsets(read_all(log))) == (20, list(range(20, 40)))
    assert not segment_path(tmp_path, 0).exists()
    assert not segment_path(tmp_path, 10, ".index").exists()


def test_the_active_segment_is_never_removed(tmp_path: Path) -> None:
    log = open_log(tmp_path, kept_for(retention_ms=0, retention_bytes=0))
    fill_segments(log, 2)
    put(log, message(20), now=T0 + 5000)
    clean(log, T0 + 10**12)
    assert offsets(read_all(log)) == [20]
    assert log.end_offset == 21


def test_the_oldest_segments_go_while_the_rest_is_still_enough(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill_segments(log, 5)
    sizes = [segment.size for segment in log.segments]
    log.close()
    for removed in range(5):
        keep = sum(sizes[removed:])
        log = open_log(tmp_path, kept_for(retention_bytes=keep))
        clean(log, T0)
        assert log.start_offset == 10 * removed
        log.close()
        log = open_log(tmp_path, kept_for(retention_bytes=keep - 1))
        clean(log, T0)
        assert log.start_offset == 10 * removed
        log.close()


def test_retention_keeps_the_bytes_bounded_for_ever(tmp_path: Path) -> None:
    log = open_log(tmp_path, kept_for(retention_bytes=20_000))
    for round_number in range(20):
        fill_segments(log, 2, now=T0 + round_number * 10_000)
        clean(log, T0)
        written = 20 * (round_number + 1) * len(codec.encode([message(0)]))
        assert min(20_000, written) <= log_bytes(tmp_path) < 20_000 + 4096
    assert log.end_offset == 400
    assert len(list(tmp_path.glob("*.view"))) == len(log.sealed)


def test_retained_logs_give_the_same_answers_after_a_restart(tmp_path: Path) -> None:
    log = open_log(tmp_path, kept_for(retention_ms=1000))
    fill_segments(log, 4)
    clean(log, T0 + 2011)
    before = answers(log)
    log.close()
    assert answers(open_log(tmp_path)) == before


def test_many_segments_go_with_one_replacement_of_the_state(tmp_path: Path) -> None:
    for number, settings in enumerate((kept_for(retention_ms=1000), kept_for(retention_bytes=0))):
        disk = WatchedDisk()
        log = open_log(tmp_path / str(number), settings, disk)
        fill_segments(log, 8)
        disk.operations.clear()
        report = clean(log, T0 + 10**9)
        assert (report.removed_segments, report.removed_records, log.start_offset) == (8, 80, 80)
        assert len(disk.of_kind("rename", "/log.state")) == 1


def test_epochs_of_removed_records_are_forgotten(tmp_path: Path) -> None:
    log = open_log(tmp_path, kept_for(retention_bytes=0))
    for epoch in range(1, 21):
        log.begin_epoch(epoch)
        fill_segments(log, 1, now=T0 + epoch)
    put(log, message(200), now=T0 + 100_000)
    log.sync()
    clean(log, T0 + 10**6)
    assert log.start_offset == 200
    assert list(log.epochs) == [LeaderEpoch(20, 190)]
    assert list(open_log(tmp_path).epochs) == [LeaderEpoch(20, 190)]


def test_a_segment_of_which_nothing_can_be_read_is_not_taken_for_an_old_one(tmp_path: Path) -> None:
    """Nobody knows the time of its records, and it was sealed before the log was told any other (seed 1571)."""
    log = open_log(tmp_path, kept_for(retention_ms=1000))
    put(log, message(0), now=T0)
    log.close()
    flip_record(tmp_path, 0, 0)
    log = open_log(tmp_path, kept_for(retention_ms=1000))
    log.sync()
    put(log, message(1), now=T0 + 10)
    log.sync()
    assert clean(log, T0 + 20).removed_segments == 0
    assert read_around_damage(log) == ([1], [(0, 1)])


# --- retention and delays


def test_a_record_still_to_be_delivered_outlives_its_segment_at_its_offset(tmp_path: Path) -> None:
    log = open_log(tmp_path, kept_for(retention_ms=1000))
    for number in range(4):
        records = [message(10 * number + each) for each in range(9)]
        seal(log, *records, delayed(10 * number + 9, T0 + 10 * DAY + number), now=T0 + number)
    report = clean(log, T0 + 5 * DAY)
    assert offsets(read_all(log)) == [9, 19, 29, 39]
    assert report.removed_records == 36
    assert [record.value for record in read_all(log)] == [value(number) for number in (9, 19, 29, 39)]
    assert log.start_offset in range(10)
    clean(log, T0 + 5 * DAY)
    assert [(entry.base, entry.end, entry.count) for entry in log.sealed] == [(0, 40, 4)], "survivors are merged"
    before = answers(log)
    log.close()
    drop_companions(tmp_path)
    assert answers(open_log(tmp_path)) == before


def test_a_delivered_record_goes_when_it_is_old_enough_since_its_delivery(tmp_path: Path) -> None:
    log = open_log(tmp_path, kept_for(retention_ms=1000))
    seal(log, message(0), delayed(1, T0 + 5000), message(2), now=T0)
    for now, left in [(T0 + 4000, [1]), (T0 + 5999, [1]), (T0 + 6000, [])]:
        clean(log, now)
        assert offsets(read_all(log)) == left
    assert (log.start_offset, log.end_offset) == (3, 3)


def test_retention_by_bytes_spares_only_what_is_still_to_be_delivered(tmp_path: Path) -> None:
    log = open_log(tmp_path, kept_for(retention_bytes=0))
    seal(log, message(0), delayed(1, T0 + 500), delayed(2, T0 + 5000), now=T0)
    seal(log, message(3), message(4), now=T0)
    clean(log, T0 + 1000)
    assert offsets(read_all(log)) == [2]
    clean(log, T0 + 5000)
    assert offsets(read_all(log)) == []


@pytest.mark.parametrize("rule", ["retention_ms", "retention_bytes"])
def test_a_pending_record_stays_also_when_the_clock_says_it_is_due(tmp_path: Path, rule: str) -> None:
    log = open_log(tmp_path, kept_for(**{rule: 0}))
    seal(log, message(0), delayed(1, T0 + 500), delayed(2, T0 + 500), delayed(3, T0 + 500), now=T0)
    times = DueTimes({3: T0 + 700}, pending=BitMap64([2, 3]))
    for _ in range(2):
        clean(log, T0 + DAY, times)
        assert offsets(read_all(log)) == [2, 3]
    clean(log, T0 + DAY)
    assert offsets(read_all(log)) == []


def test_offsets_between_survivors_read_on_at_the_next_one(tmp_path: Path) -> None:
    log = open_log(tmp_path, kept_for(retention_ms=1000))
    for number in range(3):
        seal(log, *(message(each) for each in range(9)), delayed(9, T0 + 10 * DAY), now=T0 + number)
    put(log, message(30), now=T0 + 5 * DAY)
    clean(log, T0 + 5 * DAY)
    for offset in range(log.start_offset, 31):
        (record,) = log.records(offset, max_bytes=1, max_count=1)
        assert record.offset == next(kept for kept in (9, 19, 29, 30) if kept >= offset)
    chunk = log.read(10, max_bytes=1000, to_offset=15)
    assert (chunk.count, chunk.next_offset) == (0, 15)


def test_a_second_pass_over_survivors_does_nothing(tmp_path: Path) -> None:
    disk = WatchedDisk()
    log = open_log(tmp_path, kept_for(retention_ms=1000), disk)
    for number in range(3):
        seal(log, message(0), delayed(1, T0 + 10 * DAY), now=T0 + number)
    clean(log, T0 + DAY)
    disk.operations.clear()
    report = clean(log, T0 + DAY)
    assert (report.removed_records, report.rewritten_segments) == (0, 0)
    assert disk.of_kind("create") + disk.of_kind("write") == []


# --- compaction


def compacted(path: Path, **changes: object) -> Log:
    return open_log(path, kept_for(compact=True, **changes))


def test_compaction_keeps_the_newest_value_of_each_key_at_its_offset(tmp_path: Path) -> None:
    log = compacted(tmp_path)
    seal(log, keyed("a", "1"), keyed("b", "1"), keyed("c", "1"), now=T0)
    seal(log, keyed("a", "2"), keyed("d", "1"), now=T0 + 1)
    seal(log, keyed("b", "2"), keyed("a", "3"), now=T0 + 2)
    report = clean(log, T0 + 10)
    expected = [(2, "c", "1"), (4, "d", "1"), (5, "b", "2"), (6, "a", "3")]
    assert texts(log) == expected
    assert report.removed_records == 3
    assert (log.start_offset, log.end_offset) == (0, 7)
    log.close()
    assert texts(compacted(tmp_path)) == expected


def test_what_is_in_the_active_segment_neither_goes_nor_removes(tmp_path: Path) -> None:
    log = compacted(tmp_path)
    seal(log, keyed("a", "1"), now=T0)
    put(log, keyed("a", "2"), now=T0 + 1)
    clean(log, T0 + 10)
    assert texts(log) == [(0, "a", "1"), (1, "a", "2")]


def test_small_survivors_are_merged_into_one_segment(tmp_path: Path) -> None:
    log = compacted(tmp_path)
    for number in range(10):
        seal(log, keyed("same", str(number)), keyed(f"own {number}", "x"), now=T0 + number)
    report = clean(log, T0 + 100)
    assert report.rewritten_segments == 10
    assert [(entry.base, entry.end, entry.count) for entry in log.sealed] == [(0, 20, 11)]
    assert sorted(path.name for path in tmp_path.glob("*.log")) == [f"{0:020d}.log", f"{20:020d}.log"]
    assert len(texts(log)) == 11


def test_no_merged_segment_is_larger_than_a_segment_may_be(tmp_path: Path) -> None:
    log = compacted(tmp_path)
    for number in range(40):
        seal(log, keyed(f"own {number}", "x", size=500), now=T0 + number)
    clean(log, T0 + 100)
    assert all(entry.size <= 4096 for entry in log.sealed)
    assert 1 < len(log.sealed) < 40
    assert [offset for offset, _, _ in texts(log)] == list(range(40))


def test_control_and_keyless_records_stay(tmp_path: Path) -> None:
    log = compacted(tmp_path)
    control = Record(key=b"a", control=True, commit=True)
    seal(log, Record(value=b"no key"), control, keyed("a", "1"), now=T0)
    seal(log, Record(value=b"no key"), control, keyed("a", "2"), now=T0 + 1)
    clean(log, T0 + 10)
    assert offsets(read_all(log)) == [0, 1, 3, 4, 5]


def test_an_empty_key_is_a_key(tmp_path: Path) -> None:
    log = compacted(tmp_path)
    seal(log, keyed("", "1"), now=T0)
    seal(log, keyed("", "2"), now=T0 + 1)
    clean(log, T0 + 10)
    assert offsets(read_all(log)) == [1]


def test_a_tombstone_removes_older_values_at_once_and_goes_itself_later(tmp_path: Path) -> None:
    log = compacted(tmp_path, tombstone_retention_ms=1000)
    seal(log, keyed("a", "1"), keyed("b", "1"), now=T0)
    seal(log, keyed("a", None), now=T0 + 100)
    clean(log, T0 + 200)
    assert texts(log) == [(1, "b", "1"), (2, "a", None)]
    seal(log, keyed("c", "1"), now=T0 + 300)
    clean(log, T0 + 1099)
    assert texts(log) == [(1, "b", "1"), (2, "a", None), (3, "c", "1")]
    seal(log, keyed("d", "1"), now=T0 + 1100)
    clean(log, T0 + 1100)
    assert texts(log) == [(1, "b", "1"), (3, "c", "1"), (4, "d", "1")]


def test_a_tombstone_goes_in_time_also_from_a_log_nobody_writes_to(tmp_path: Path) -> None:
    log = compacted(tmp_path, tombstone_retention_ms=1000)
    seal(log, keyed("a", "1"), keyed("b", "1"), now=T0)
    seal(log, keyed("a", None), now=T0 + 100)
    clean(log, T0 + 200)
    clean(log, T0 + 1100)
    assert texts(log) == [(1, "b", "1")]


def test_a_tombstone_that_is_superseded_goes_at_once(tmp_path: Path) -> None:
    log = compacted(tmp_path)
    seal(log, keyed("a", None), now=T0)
    seal(log, keyed("a", "2"), now=T0 + 1)
    clean(log, T0 + 10)
    assert texts(log) == [(1, "a", "2")]


def test_a_tombstone_outlives_values_that_could_not_be_removed(tmp_path: Path) -> None:
    """The value is in a damaged segment, which is not rewritten: without the tombstone it would come back."""
    log = compacted(tmp_path, tombstone_retention_ms=1000)
    seal(log, keyed("a", "1"), keyed("x", "1"), now=T0)
    seal(log, *(keyed(f"fill {number}", "x", size=500) for number in range(8)), now=T0 + 1)
    seal(log, keyed("a", None), now=T0 + 2)
    flip_record(tmp_path, 0, 1)
    clean(log, T0 + 5000)
    seal(log, keyed("z", "1"), now=T0 + 6000)
    clean(log, T0 + 7000)
    found, refused = read_around_damage(log)
    assert refused == [(1, 2)]
    assert (0 in found, 10 in found) in [(True, True), (False, True), (False, False)]


def test_compaction_has_seen_each_segment_once(tmp_path: Path) -> None:
    disk = WatchedDisk()
    log = open_log(tmp_path, kept_for(compact=True), disk)
    fill_segments(log, 3)
    clean(log, T0 + 10_000)
    assert all(entry.traits & Trait.COMPACTED for entry in log.sealed)
    disk.operations.clear()
    report = clean(log, T0 + 20_000)
    assert disk.operations == []
    assert report.removed_records == 0


@pytest.mark.parametrize("budget", [1, 300, 1000, 10**6])
def test_a_log_with_more_keys_than_memory_is_compacted_a_part_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: int
) -> None:
    monkeypatch.setattr(limits, "MAX_CLEANER_BYTES", budget)
    log = compacted(tmp_path)
    newest: dict[str, int] = {}
    for number in range(12):
        keys = [f"key {(number * 5 + each) % 17}" for each in range(10)]
        for each, key in enumerate(keys):
            newest[key] = 10 * number + each
        seal(log, *(keyed(key, str(number)) for key in keys), now=T0 + number)
    passes = 0
    while not all(entry.traits & Trait.COMPACTED for entry in log.sealed):
        clean(log, T0 + 100)
        passes += 1
        assert passes <= 12
    assert [offset for offset, _, _ in texts(log)] == sorted(newest.values())


def test_compaction_spares_a_pending_record_also_when_the_clock_says_it_is_due(tmp_path: Path) -> None:
    log = compacted(tmp_path)
    late = Record(key=b"a", value=b"late", extension=Extension(deliver_at=T0 + 500))
    seal(log, keyed("a", "1"), late, keyed("a", "2"), now=T0)
    seal(log, keyed("a", "3"), now=T0 + 1)
    for _ in range(2):
        clean(log, T0 + DAY, DueTimes(pending=BitMap64([1])))
        assert texts(log) == [(1, "a", "late"), (3, "a", "3")]
    clean(log, T0 + DAY)
    assert texts(log) == [(3, "a", "3")], "its segment was not done with"


def test_a_delayed_record_does_not_keep_a_large_log_from_being_compacted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its segment waits for it, pass after pass; the segments after it must have their turn all the same."""
    monkeypatch.setattr(limits, "MAX_CLEANER_BYTES", 1500)
    log = compacted(tmp_path)
    seal(log, delayed(0, T0 + 400 * DAY), *(keyed(f"first {number}", "x") for number in range(9)), now=T0)
    for number in range(10):
        seal(log, *(keyed(f"key {each}", str(number), size=300) for each in range(10)), now=T0 + number)
    for _ in range(30):
        clean(log, T0 + DAY)
    assert [offset for offset, _, _ in texts(log)] == [*range(10), *range(100, 110)]


def test_a_damaged_segment_is_left_as_it_is_and_reported(tmp_path: Path) -> None:
    log = compacted(tmp_path)
    seal(log, *(keyed(f"key {number}", "1", size=400) for number in range(9)), now=T0)
    seal(log, *(keyed(f"key {number}", "2", size=400) for number in range(9)), now=T0 + 1)
    seal(log, *(keyed(f"key {number}", "3", size=400) for number in range(9)), now=T0 + 2)
    before = segment_path(tmp_path, 9).read_bytes()
    flip_record(tmp_path, 9, 12)
    damaged = segment_path(tmp_path, 9).read_bytes()
    assert damaged != before
    report = clean(log, T0 + 10)
    assert report.skipped == [f"{9:020d}.log"]
    assert segment_path(tmp_path, 9).read_bytes() == damaged
    found, refused = read_around_damage(log)
    assert refused == [(12, 13)]
    assert found == [*range(9, 12), *range(13, 27)]
    assert not list(tmp_path.glob("*.clean"))


def test_a_damaged_segment_with_records_to_deliver_is_not_thinned_out(tmp_path: Path) -> None:
    log = open_log(tmp_path, kept_for(retention_ms=1000))
    seal(log, message(0), delayed(1, T0 + 10 * DAY), message(2), now=T0)
    flip_record(tmp_path, 0, 0)
    report = clean(log, T0 + DAY)
    assert report.skipped == [f"{0:020d}.log"]
    assert read_around_damage(log) == ([1, 2], [(0, 1)])


# --- together with others


def test_compaction_leaves_times_lanes_and_delays_right(tmp_path: Path) -> None:
    log = compacted(tmp_path)
    for number in range(10):
        seal(
            log,
            Record(key=b"same", value=b"x" * 50, priority=number % 5),
            Record(key=b"own %d" % number, value=b"y" * 50, priority=4 - number % 5),
            now=T0 + 10 * number,
        )
    clean(log, T0 + 1000)
    found = read_all(log)
    assert offsets(found) == [1, 3, 5, 7, 9, 11, 13, 15, 17, 18, 19]
    before = answers(log)
    lanes = [sum(1 for record in found if record.priority == lane) for lane in range(5)]
    assert before["lanes"] == lanes
    assert [log.offset_at(T0 + 10 * number) for number in range(10)] == [1, 3, 5, 7, 9, 11, 13, 15, 17, 18]
    log.close()
    drop_companions(tmp_path)
    assert answers(open_log(tmp_path)) == before


def test_a_cleaned_log_can_be_truncated_at_any_offset(tmp_path: Path) -> None:
    for offset in range(21):
        log = compacted(tmp_path / str(offset))
        for number in range(10):
            seal(log, keyed("same", str(number)), keyed(f"own {number}", "x"), now=T0 + number)
        clean(log, T0 + 1000)
        left = [kept for kept in offsets(read_all(log)) if kept < offset]
        log.truncate(offset)
        assert (log.end_offset, offsets(read_all(log))) == (offset, left)
        assert put(log, message(0), now=T0 + 2000).first_offset == offset
        log.close()
        again = compacted(tmp_path / str(offset))
        assert offsets(read_all(again)) == [*left, offset]
        assert not again.recovery


def test_records_before_the_start_are_gone_for_the_cleaner_too(tmp_path: Path) -> None:
    log = compacted(tmp_path)
    for number in range(4):
        seal(log, keyed("a", str(number)), keyed(f"own {number}", "x"), now=T0 + number)
    log.truncate_prefix(3)
    clean(log, T0 + 100)
    assert [offset for offset, _, _ in texts(log)] == [3, 5, 6, 7]
    assert log.start_offset == 3


@pytest.mark.parametrize("change", ["truncate", "truncate_prefix", "append"])
def test_the_log_may_change_while_a_rewrite_is_written(tmp_path: Path, change: str) -> None:
    """The writer truncates or appends just when the cleaner has begun its file: the writer wins."""
    disk = WatchedDisk()
    log = open_log(tmp_path, kept_for(compact=True), disk)
    for number in range(6):
        seal(log, keyed("same", str(number)), keyed(f"own {number}", "x"), now=T0 + number)
    meddled: list[str] = []

    def meddle(operation: Operation) -> None:
        if operation.kind == "create" and operation.path.endswith(".clean") and not meddled:
            meddled.append(operation.path)
            if change == "truncate":
                log.truncate(5)
            elif change == "truncate_prefix":
                log.truncate_prefix(5)
            else:
                seal(log, keyed("same", "new"), now=T0 + 50)

    disk.before = meddle
    clean(log, T0 + 1000)
    disk.before = None
    assert meddled
    expected = {
        "truncate": (0, 5, {1, 3, 4}),
        "truncate_prefix": (5, 12, {5, 7, 9, 10, 11}),
        "append": (0, 13, {1, 3, 5, 7, 9, 11, 12}),
    }[change]
    assert (log.start_offset, log.end_offset) == expected[:2]
    assert expected[2] <= set(offsets(read_all(log)))
    clean(log, T0 + 2000)
    put(log, keyed("later", "x"), now=T0 + 3000)
    before = answers(log)
    log.close()
    assert answers(open_log(tmp_path)) == before
    assert not list(tmp_path.glob("*.clean"))


@pytest.mark.parametrize("kind", ["write", "sync"])
@pytest.mark.parametrize("change", ["truncate the end", "truncate sealed segments", "truncate_prefix"])
def test_truncating_while_a_rewrite_is_written_loses_nothing_and_fails_nothing(
    tmp_path: Path, change: str, kind: str
) -> None:
    disk = WatchedDisk()
    log = open_log(tmp_path, kept_for(compact=True), disk)
    for number in range(6):
        seal(log, keyed("same", str(number)), keyed(f"own {number}", "x"), now=T0 + number)
    put(log, keyed("late", "1"), keyed("late", "2"), now=T0 + 10)
    log.sync()
    everything = {record.offset: record for record in read_all(log)}
    meddled: list[str] = []

    def meddle() -> None:
        meddled.append(change)
        if change == "truncate the end":
            log.truncate(13)
        elif change == "truncate sealed segments":
            log.truncate(9)
        else:
            log.truncate_prefix(5)

    disk.before = once(lambda done: done.kind == kind and done.path.endswith(".clean"), meddle)
    clean(log, T0 + 1000)
    disk.before = None
    assert meddled
    start, end = {"truncate the end": (0, 13), "truncate sealed segments": (0, 9), "truncate_prefix": (5, 14)}[change]
    assert (log.start_offset, log.end_offset) == (start, end)
    newest = {record.key: offset for offset, record in everything.items() if offset < end}
    keep = {offset for offset in newest.values() if offset >= start}
    for _ in range(2):
        left = {record.offset: record for record in read_all(log)}
        assert keep <= set(left), "what the cleaner read was not what the log has now"
        assert left.items() <= everything.items()
        clean(log, T0 + 2000)
    assert put(log, keyed("later", "x"), now=T0 + 3000).first_offset == end
    log.sync()
    before = answers(log)
    again = open_log(tmp_path, kept_for(compact=True))
    assert not again.recovery
    assert answers(again) == before
    assert not list(tmp_path.glob("*.clean"))


@pytest.mark.parametrize("kind", ["create", "write", "sync"])
def test_a_value_whose_successor_is_truncated_meanwhile_is_not_superseded_any_more(tmp_path: Path, kind: str) -> None:
    """The cleaner has seen the newer value, and rewrites only the older one's segment when the newer one goes."""
    disk = WatchedDisk()
    log = open_log(tmp_path, kept_for(compact=True), disk)
    seal(log, keyed("a", "1"), keyed("b", "1"), keyed("b", "2"), keyed("x", "1", size=3000), now=T0)
    seal(log, keyed("a", "2"), keyed("y", "1", size=3000), now=T0 + 1)
    meddled: list[int] = []

    def meddle() -> None:
        log.truncate(4)
        meddled.append(log.end_offset)

    disk.before = once(lambda done: done.kind == kind and done.path.endswith(".clean"), meddle)
    clean(log, T0 + DAY)
    disk.before = None
    assert meddled == [4]
    for _ in range(2):
        assert {(0, "a", "1"), (2, "b", "2"), (3, "x", "1")} <= set(texts(log))
        clean(log, T0 + 2 * DAY)
    assert texts(open_log(tmp_path)) == [(0, "a", "1"), (2, "b", "2"), (3, "x", "1")]


def test_a_full_disk_at_the_exchange_leaves_no_rewrite_behind(tmp_path: Path) -> None:
    disk = WatchedDisk()
    log = open_log(tmp_path, kept_for(compact=True), disk)
    superseded(log)
    before = answers(log)

    def full(operation: Operation) -> None:
        if operation.kind == "write" and operation.path.endswith("log.state.tmp"):
            raise DiskFull("no space left")

    disk.before = full
    for _ in range(3):
        with pytest.raises(DiskFull):
            clean(log, T0 + DAY)
        assert not list(tmp_path.glob("*.clean"))
        assert answers(log) == before
    disk.before = None
    assert clean(log, T0 + DAY).removed_records > 0
    log.close()
    assert not open_log(tmp_path).recovery


# --- crashes


def retained(log: Log) -> None:
    for number in range(4):
        records = [message(10 * number + each) for each in range(9)]
        due = T0 + 10 * DAY if number % 2 else T0 + 1
        seal(log, *records, delayed(10 * number + 9, due), now=T0 + number)


def superseded(log: Log) -> None:
    for number in range(6):
        seal(
            log, keyed("same", str(number)), keyed(f"own {number}", "x", size=700), keyed("gone", None), now=T0 + number
        )


@pytest.mark.parametrize(
    ("settings", "build"),
    [
        (kept_for(retention_ms=1000), retained),
        (kept_for(retention_bytes=0), retained),
        (kept_for(compact=True, tombstone_retention_ms=0), superseded),
    ],
    ids=["retention by time", "retention by bytes", "compaction"],
)
def test_a_pass_stopped_anywhere_lost_nothing_that_it_had_to_keep(
    tmp_path: Path, settings: LogSettings, build: Callable[[Log], None]
) -> None:
    """After each single change on disk: what is left is between all and what a whole pass leaves, and it all fits."""
    complete = open_log(tmp_path / "complete", settings)
    build(complete)
    everything = {record.offset: record for record in read_all(complete)}
    clean(complete, T0 + DAY)
    keep = {record.offset for record in read_all(complete)}
    assert keep < set(everything)
    change = 0
    stopped = True
    while stopped:
        directory = tmp_path / str(change)
        disk = WatchedDisk()
        log = open_log(directory, settings, disk)
        build(log)
        disk.before = stop_at(change)
        stopped = False
        try:
            clean(log, T0 + DAY)
        except Stopped:
            stopped = True
        again = open_log(directory, settings)
        left = read_all(again)
        assert keep <= {record.offset for record in left} <= set(everything)
        assert left == [everything[record.offset] for record in left]
        assert not again.recovery
        assert again.end_offset == complete.end_offset
        names = {path.name for path in directory.iterdir() if path.suffix in (".log", ".clean")}
        assert names == {f"{segment.base:020d}.log" for segment in again.segments}
        clean(again, T0 + DAY)
        assert {record.offset for record in read_all(again)} == keep
        change += 1
    assert change > 10


def test_a_pass_that_finds_everything_truncated_away_ends_quietly(tmp_path: Path) -> None:
    disk = WatchedDisk()
    log = open_log(tmp_path, LogSettings(segment_bytes=4096, retention_ms=1), disk)
    fill_segments(log, 2)
    for segment in log.segments[:2]:
        segment.derived = None
    disk.before = once(lambda done: done.path.endswith(".view"), lambda: log.truncate(0))
    report = clean(log, T0 + 10**6)
    assert report.interrupted
    assert (log.start_offset, log.end_offset, report.removed_segments) == (0, 0, 0)
    put(log, message(0), now=T0 + 2000)
    assert not clean(log, T0 + 10**6).interrupted
