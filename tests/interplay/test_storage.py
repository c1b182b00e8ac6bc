"""Where features of the log meet, a test per row of the interplay table whose features exist, named after the row."""

from pathlib import Path

import pytest

from goqueue import codec
from goqueue.model import limits
from goqueue.model.record import Extension, Lane, Record
from goqueue.model.settings import LogSettings
from goqueue.storage.cleaner import clean
from goqueue.storage.lanes import LaneView
from goqueue.storage.log import Log
from tests.unit.storage.disks import WatchedDisk
from tests.unit.storage.logs import (
    T0,
    answers,
    delayed,
    delays,
    drop_companions,
    fill,
    log_bytes,
    message,
    offsets,
    open_log,
    put,
    read_all,
    value,
)

DAY = 24 * 3600 * 1000


def seal(log: Log, *records: Record, now: int) -> None:
    put(log, *records, now=now)
    log.roll()
    log.sync()


def test_delay_x_retention(tmp_path: Path) -> None:
    """A 400-day delay under a 7-day retention: it is there at its offset on its day, and the disk stays bounded."""
    settings = LogSettings(segment_bytes=4096, segment_age_ms=DAY, retention_ms=7 * DAY)
    log = open_log(tmp_path, settings)
    due = T0 + 400 * DAY
    put(log, message(0), delayed(1, due), message(2), now=T0)
    expected: Record | None = None
    most = 0
    for day in range(1, 400):
        now = T0 + day * DAY
        fill(log, 20, now=now)
        log.tick(now)
        log.sync()
        clean(log, now)
        most = max(most, log_bytes(tmp_path))
        if day % 50 == 0:
            log.close()
            if day % 100 == 0:
                drop_companions(tmp_path)
            log = open_log(tmp_path, settings)
        (record,) = log.records(1, max_bytes=1, max_count=1)
        expected = expected or record
        assert record == expected
        assert (record.offset, record.value) == (1, value(1))
        assert [entry for entry in delays(log) if entry[1] > now] == [(1, due)]
    per_day = 20 * len(codec.encode([message(1000)]))
    assert most < 12 * per_day + 2 * settings.segment_bytes
    assert len(log.segments) < 20
    assert len(read_all(log)) < 12 * 20

    clean(log, due + 7 * DAY - 1)
    assert offsets(log.records(1, max_bytes=1)) == [1], "its age runs from its delivery"
    log.tick(due + 8 * DAY)
    log.sync()
    clean(log, due + 8 * DAY)
    assert 1 not in offsets(read_all(log))


def test_unacked_or_delayed_x_compaction(tmp_path: Path) -> None:
    """Compaction removes an older value; a delayed one stays until it is due, older or newer than its key's last."""
    log = open_log(tmp_path, LogSettings(segment_bytes=4096, compact=True))
    later = Extension(deliver_at=T0 + 30 * DAY)
    seal(log, Record(key=b"k", value=b"first"), Record(key=b"k", value=b"delayed", extension=later), now=T0)
    seal(log, Record(key=b"k", value=b"second"), now=T0 + 1)
    clean(log, T0 + DAY)
    assert offsets(read_all(log)) == [1, 2], "the older value goes, the delayed one stays"
    seal(log, Record(key=b"k", value=b"third"), now=T0 + 2)
    clean(log, T0 + 29 * DAY)
    assert offsets(read_all(log)) == [1, 3]
    clean(log, T0 + 30 * DAY)
    assert offsets(read_all(log)) == [3], "once due it is a value like any other, and superseded"


def test_a_delayed_value_does_not_remove_the_current_one_before_it_is_due(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogSettings(segment_bytes=4096, compact=True))
    seal(log, Record(key=b"k", value=b"current"), now=T0)
    seal(log, Record(key=b"k", value=b"next", extension=Extension(deliver_at=T0 + 30 * DAY)), now=T0 + 1)
    clean(log, T0 + DAY)
    assert offsets(read_all(log)) == [0, 1]
    clean(log, T0 + 30 * DAY)
    assert offsets(read_all(log)) == [1]


def pad(number: int) -> Record:
    """So large that no two segments fit into one together."""
    return Record(key=b"pad %d" % number, value=bytes(3000))


def of_key(log: Log, key: bytes, now: int) -> list[bytes | None]:
    """The values of a key that are due, in order: the last one is the current one."""
    return [
        record.value
        for record in read_all(log)
        if record.key == key and (record.extension is None or (record.extension.deliver_at or 0) <= now)
    ]


@pytest.mark.parametrize("budget", [1, limits.MAX_CLEANER_BYTES])
@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_delay_x_tombstone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, padded: bool, restarts: bool, budget: int
) -> None:
    """A deleted key does not come back when an older, delayed value of it is due, however old the tombstone is."""
    monkeypatch.setattr(limits, "MAX_CLEANER_BYTES", budget)
    settings = LogSettings(segment_bytes=4096, compact=True, tombstone_retention_ms=DAY)
    log = open_log(tmp_path, settings)
    later = Extension(deliver_at=T0 + 100 * DAY)
    seal(log, Record(key=b"k", value=b"old", extension=later), *([pad(-1)] if padded else []), now=T0)
    seal(log, Record(key=b"k", value=None), *([pad(0)] if padded else []), now=T0 + 1)
    for day in (1, 10, 11, 99, 100, 101, 102, 103):
        now = T0 + day * DAY
        seal(log, Record(key=b"other %d" % day, value=b""), *([pad(day)] if padded else []), now=now)
        assert of_key(log, b"k", now)[-1:] in ([], [None]), f"day {day}"
        clean(log, now)
        assert of_key(log, b"k", now)[-1:] in ([], [None]), f"day {day}"
        values = [record.value for record in read_all(log) if record.key == b"k"]
        if day < 100:
            assert values == [b"old", None], f"day {day}"
        if restarts:
            log.close()
            log = open_log(tmp_path, settings)
    assert values == []


@pytest.mark.parametrize("budget", [1, limits.MAX_CLEANER_BYTES])
@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_delay_x_newer_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, padded: bool, restarts: bool, budget: int
) -> None:
    """A delayed value that a newer one supersedes goes in the first pass after it was due, wherever the newer one is.

    The newer one's segment was compacted long before, and nothing in it waits for anything.
    """
    monkeypatch.setattr(limits, "MAX_CLEANER_BYTES", budget)
    settings = LogSettings(segment_bytes=4096, compact=True)
    log = open_log(tmp_path, settings)
    later = Extension(deliver_at=T0 + 100 * DAY)
    seal(log, Record(key=b"k", value=b"old", extension=later), *([pad(-1)] if padded else []), now=T0)
    seal(log, Record(key=b"k", value=b"new"), *([pad(0)] if padded else []), now=T0 + 1)
    for day in (1, 10, 99, 100):
        now = T0 + day * DAY
        seal(log, Record(key=b"other %d" % day, value=b""), *([pad(day)] if padded else []), now=now)
        clean(log, now)
        values = [record.value for record in read_all(log) if record.key == b"k"]
        assert values == ([b"old", b"new"] if day < 100 else [b"new"]), f"day {day}"
        if restarts:
            log.close()
            log = open_log(tmp_path, settings)


def test_delay_x_simple_reads(tmp_path: Path) -> None:
    """Raw reads return delayed records in their place, with their deliver-at."""
    log = open_log(tmp_path)
    put(log, message(0), Record(value=b"x", extension=Extension(deliver_at=-5000)), message(2), now=T0)
    found = read_all(log)
    assert offsets(found) == [0, 1, 2]
    assert found[1].extension == Extension(deliver_at=T0 + 5000)


def test_delay_x_ttl(tmp_path: Path) -> None:
    """TTL counts from deliver-at, and both stay as they are through restart and cleaning."""
    log = open_log(tmp_path, LogSettings(segment_bytes=4096, retention_ms=DAY))
    seal(log, message(0), Record(value=b"x", extension=Extension(deliver_at=-10 * DAY, expires_at=-60_000)), now=T0)
    due = T0 + 10 * DAY
    clean(log, T0 + 5 * DAY)
    log.close()
    (record,) = read_all(open_log(tmp_path))
    assert (record.offset, record.extension) == (1, Extension(deliver_at=due, expires_at=due + 60_000))


def test_lanes_x_huge_backlog(tmp_path: Path) -> None:
    """One critical message behind a backlog of normal ones is found in the lane lists, without reading the backlog."""
    disk = WatchedDisk()
    settings = LogSettings(segment_bytes=1_000_000)
    log = open_log(tmp_path, settings, disk)
    for _ in range(100):
        put(log, *([Record(value=b"normal")] * 1000), now=T0)
    urgent = put(log, Record(value=b"urgent", priority=Lane.CRITICAL), now=T0).first_offset
    put(log, *([Record(value=b"normal")] * 1000), now=T0)
    log.close()
    log = open_log(tmp_path, settings, disk)
    disk.operations.clear()
    found = []
    for segment in log.segments:
        view = log.derived(segment).views["lanes"]
        assert isinstance(view, LaneView)
        found += [segment.base + offset for offset in view.lanes[Lane.CRITICAL]]
    assert found == [urgent] == [100_000]
    assert disk.of_kind("read", ".log") == []
    assert [record.value for record in log.records(urgent, max_bytes=1)] == [b"urgent"]
    assert len(disk.of_kind("read", ".log")) <= 2


def test_clock_jump_x_timestamps(tmp_path: Path) -> None:
    """A clock that goes back never makes times decrease, within a process, across segments and restarts."""
    settings = LogSettings(segment_bytes=4096)
    log = open_log(tmp_path, settings)
    given = [T0, T0 + 500, T0 - DAY, T0 + 400, T0 + 501, 0, T0 + 502]
    for number, now in enumerate(given):
        put(log, message(number), now=now)
        if number == 2:
            log.roll()
        if number == 4:
            log.close()
            log = open_log(tmp_path, settings)
    times = [record.timestamp - T0 for record in read_all(log)]
    assert times == [0, 500, 500, 500, 501, 501, 502]
    assert [log.offset_at(T0 + moment) for moment in (0, 1, 500, 501, 502, 503)] == [0, 1, 1, 4, 6, 7]


def test_clock_jump_x_delays(tmp_path: Path) -> None:
    """A relative delay counts from the clock that is right now, also where append times are ahead of it."""
    log = open_log(tmp_path)
    put(log, message(0), now=T0)
    put(log, Record(value=b"x", extension=Extension(deliver_at=-1000)), now=T0 - DAY)
    assert delays(log) == [(1, T0 - DAY + 1000)]


def test_clock_jump_x_retention(tmp_path: Path) -> None:
    """A clock that is behind removes nothing early."""
    log = open_log(tmp_path, LogSettings(segment_bytes=4096, retention_ms=DAY))
    seal(log, message(0), now=T0)
    assert clean(log, T0 - 30 * DAY).removed_segments == 0
    assert clean(log, T0 + DAY).removed_segments == 0
    assert clean(log, T0 + DAY + 1).removed_segments == 1


def test_clock_jump_x_rolling(tmp_path: Path) -> None:
    """Nor does it roll segments, or keep them from rolling by size."""
    log = open_log(tmp_path, LogSettings(segment_bytes=4096, segment_age_ms=1000))
    put(log, message(0), now=T0)
    log.tick(T0 - DAY)
    put(log, message(1), now=T0 - DAY)
    assert len(log.segments) == 1
    fill(log, 100, now=0)
    assert len(log.segments) > 2


def by_offset(log: Log) -> dict[int, bytes]:
    """Each record's bytes, checksum included."""
    found = {}
    offset = log.start_offset
    while offset < log.end_offset:
        chunk = log.read(offset, max_bytes=10_000)
        scan = codec.scan(chunk.data)
        for at, start in enumerate(scan.positions):
            end = scan.positions[at + 1] if at + 1 < len(scan) else scan.end
            found[scan.offsets[at]] = bytes(chunk.data[start:end])
        offset = chunk.next_offset
    return found


def test_replicas_x_cleaner(tmp_path: Path) -> None:
    """Two copies, one cleaned: byte-equal above the cleaner's point, equal record by record below it."""
    plain = open_log(tmp_path / "plain", LogSettings(segment_bytes=4096))
    cleaned = open_log(tmp_path / "cleaned", LogSettings(segment_bytes=4096, compact=True))
    for log in (plain, cleaned):
        for number in range(40):
            put(log, *(message((number + each) % 7) for each in range(5)), now=T0 + number)
        log.sync()
    clean(cleaned, T0 + DAY)
    point = cleaned.sealed[-1].end
    kept, all_of_them = by_offset(cleaned), by_offset(plain)
    assert len(kept) < len(all_of_them) == 200
    assert all(all_of_them[offset] == data for offset, data in kept.items())
    assert {offset for offset in all_of_them if offset >= point} <= set(kept)
    assert (tmp_path / "plain" / f"{point:020d}.log").read_bytes() == (
        tmp_path / "cleaned" / f"{point:020d}.log"
    ).read_bytes()


def test_truncation_x_delays(tmp_path: Path) -> None:
    """A truncated delayed record is gone from the delay views too, in the tail and in sealed segments."""
    for number, offset in enumerate((0, 3, 5, 8, 12)):
        log = open_log(tmp_path / str(number), LogSettings(segment_bytes=4096))
        for segment in range(3):
            put(log, *(delayed(5 * segment + each, T0 + DAY + 5 * segment + each) for each in range(5)), now=T0)
            if segment < 2:
                log.roll()
                log.sync()
        log.truncate(offset)
        assert delays(log) == [(each, T0 + DAY + each) for each in range(offset)]
        before = answers(log)
        log.close()
        assert answers(open_log(tmp_path / str(number))) == before
