"""Reading a directory without opening it: the same records, and not a byte changed."""

from pathlib import Path

import pytest

from goqueue.model.errors import DamagedState
from goqueue.model.settings import LogSettings
from goqueue.storage import state as hard_state
from goqueue.storage.cleaner import clean
from goqueue.storage.offline import OfflineLog
from goqueue.storage.walk import Damage, Run
from tests.unit.storage.disks import CHANGES, Stopped, WatchedDisk, stop_at
from tests.unit.storage.logs import (
    T0,
    fill,
    fill_segments,
    flip_record,
    message,
    offsets,
    open_log,
    positions,
    put,
    read_all,
    segment_path,
)


def found(log: OfflineLog) -> tuple[list[int], list[tuple[int, int]]]:
    """The offsets of whole records, and the damaged ranges."""
    items = [item for segment in log.segments() for item in log.walk(segment)]
    whole = [offset for item in items if isinstance(item, Run) for offset in item.scan.offsets]
    return whole, [(item.first, item.next_offset) for item in items if isinstance(item, Damage)]


def test_a_directory_without_a_log_is_no_log(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no log in"):
        OfflineLog(str(tmp_path), WatchedDisk())


def test_a_damaged_state_is_refused(tmp_path: Path) -> None:
    open_log(tmp_path).close()
    (tmp_path / hard_state.FILE_NAME).write_bytes(b"nothing")
    with pytest.raises(DamagedState):
        OfflineLog(str(tmp_path), WatchedDisk())


def test_every_record_is_found_and_nothing_is_changed(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 150)
    log.sync()
    fill(log, 50, now=T0 + 5000)
    disk = WatchedDisk()
    offline = OfflineLog(str(tmp_path), disk)
    assert found(offline) == (list(range(200)), [])
    assert [done for done in disk.operations if done.kind in CHANGES] == []
    assert disk.open_count == 0
    assert (offline.start_offset, offline.synced) == (0, offline.synced)


def test_segments_are_listed_with_what_the_state_says_of_them(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill_segments(log, 2)
    fill(log, 3)
    segments = OfflineLog(str(tmp_path), WatchedDisk()).segments()
    assert [(segment.base, segment.following) for segment in segments] == [(0, 10), (10, 20), (20, None)]
    assert [segment.entry for segment in segments] == [*log.sealed, None]
    assert [segment.size for segment in segments] == [segment.size for segment in log.segments]


def test_a_missing_sealed_file_is_damage_of_all_its_offsets(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill_segments(log, 3)
    log.close()
    segment_path(tmp_path, 10).unlink()
    offline = OfflineLog(str(tmp_path), WatchedDisk())
    assert found(offline) == ([*range(10), *range(20, 30)], [(10, 20)])
    assert [segment.size for segment in offline.segments()][1] == 0


def test_a_cleaned_log_has_gaps_and_no_damage(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogSettings(segment_bytes=4096, compact=True))
    for number in range(5):
        put(log, message(0), message(number + 1), now=T0 + number)
        log.roll()
        log.sync()
    clean(log, T0 + 100)
    kept = offsets(read_all(log))
    log.close()
    assert len(kept) == 6
    assert found(OfflineLog(str(tmp_path), WatchedDisk())) == (kept, [])


def test_a_bad_end_above_the_mark_is_torn_and_below_it_is_not(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 10, block=1)
    log.sync()
    fill(log, 5, block=1)
    path = segment_path(tmp_path, 0)
    spans = positions(path)
    whole = path.read_bytes()
    for victim, torn in [(12, True), (10, True), (9, False), (3, False)]:
        damaged = bytearray(whole)
        damaged[spans[victim][1] - 1] ^= 1
        path.write_bytes(damaged)
        offline = OfflineLog(str(tmp_path), WatchedDisk())
        (segment,) = offline.segments()
        (damage,) = [item for item in offline.walk(segment) if isinstance(item, Damage)]
        assert damage.first == victim
        assert offline.is_torn(segment, damage) is torn


def test_nothing_in_a_sealed_segment_is_ever_torn(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill_segments(log, 1)
    flip_record(tmp_path, 0, 5)
    offline = OfflineLog(str(tmp_path), WatchedDisk())
    segment = offline.segments()[0]
    (damage,) = [item for item in offline.walk(segment) if isinstance(item, Damage)]
    assert not offline.is_torn(segment, damage)


def test_segments_of_a_truncation_that_was_decided_are_not_listed(tmp_path: Path) -> None:
    """Stopped right after the decision: what lies above it is on disk still, but no longer of the log."""
    seen = []
    for change in range(12):
        disk = WatchedDisk()
        log = open_log(tmp_path / str(change), disk=disk)
        fill_segments(log, 3)
        disk.before = stop_at(change)
        try:
            log.truncate(10)
        except Stopped:
            pass
        seen.append(found(OfflineLog(str(tmp_path / str(change)), WatchedDisk()))[0])
    assert seen[0] == list(range(30))
    assert seen[-1] == list(range(10))
