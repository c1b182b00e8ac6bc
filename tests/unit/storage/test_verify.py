"""Verification: each thing that can be wrong, by its severity, place and offsets; nothing changed."""

from pathlib import Path

import msgspec
import pytest

from goqueue.model.settings import LogSettings
from goqueue.storage import derived as companions
from goqueue.storage import state as hard_state
from goqueue.storage.cleaner import clean
from goqueue.storage.derived import BUILT_IN
from goqueue.storage.log import Log
from goqueue.storage.verify import Finding, Severity, verify
from tests.unit.storage.disks import CHANGES, WatchedDisk, unreadable
from tests.unit.storage.logs import (
    T0,
    fill,
    fill_segments,
    flip,
    flip_record,
    open_log,
    positions,
    segment_path,
)


def findings(directory: Path) -> list[Finding]:
    disk = WatchedDisk()
    found = list(verify(str(directory), disk))
    assert [done for done in disk.operations if done.kind in CHANGES] == []
    assert disk.open_count == 0
    return found


@pytest.fixture
def closed(tmp_path: Path) -> Log:
    """Three sealed segments of ten and five more records, closed."""
    log = open_log(tmp_path)
    fill_segments(log, 3)
    fill(log, 5, now=T0 + 5000)
    log.close()
    return log


def test_a_whole_log_has_nothing_to_find(closed: Log, tmp_path: Path) -> None:
    assert findings(tmp_path) == []


def test_a_log_that_is_running_or_was_killed_has_nothing_to_find(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 100)
    log.sync()
    fill(log, 17, now=T0 + 5000)
    assert findings(tmp_path) == []


def test_a_cleaned_and_truncated_log_has_nothing_to_find(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill_segments(log, 6)
    log.truncate(45)
    log.truncate_prefix(15)
    clean(log, T0)
    log.close()
    assert [found.severity for found in findings(tmp_path) if found.severity is not Severity.REPAIR] == []


def test_a_damaged_record_is_named_to_the_byte_and_the_offset(closed: Log, tmp_path: Path) -> None:
    path = segment_path(tmp_path, 10)
    start, _ = positions(path)[14]
    flip_record(tmp_path, 10, 14)
    assert findings(tmp_path) == [Finding(Severity.DAMAGE, str(path), start, 14, 15, "its checksum does not match")]


def test_damage_below_the_synced_mark_of_the_active_segment_is_damage(closed: Log, tmp_path: Path) -> None:
    flip_record(tmp_path, 30, 32)
    (found,) = findings(tmp_path)
    assert (found.severity, found.first_offset, found.next_offset) == (Severity.DAMAGE, 32, 33)


def test_a_bad_end_that_was_never_synced_is_a_tear(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 10)
    log.sync()
    fill(log, 5, now=T0 + 100)
    path = segment_path(tmp_path, 0)
    start, end = positions(path)[14]
    path.write_bytes(path.read_bytes()[: end - 3])
    (found,) = findings(tmp_path)
    assert (found.severity, found.position, found.first_offset) == (Severity.TEAR, start, 14)


def test_a_missing_segment_is_damage_of_all_its_offsets(closed: Log, tmp_path: Path) -> None:
    segment_path(tmp_path, 10).unlink()
    (found,) = findings(tmp_path)
    assert (found.severity, found.first_offset, found.next_offset) == (Severity.DAMAGE, 10, 20)
    assert found.reason == "the file is missing"


@pytest.mark.parametrize("content", [None, b"nothing"])
def test_a_missing_or_damaged_state_is_damage(closed: Log, tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / hard_state.FILE_NAME
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    (found,) = findings(tmp_path)
    assert (found.severity, found.path) == (Severity.DAMAGE, str(path))
    assert ("missing" if content is None else "damaged") in found.reason


@pytest.mark.parametrize("ending", [".index", ".timeindex", ".view"])
def test_a_missing_or_damaged_companion_is_repaired_by_opening(closed: Log, tmp_path: Path, ending: str) -> None:
    path = segment_path(tmp_path, 10, ending)
    flip(path, path.stat().st_size - 1)
    for _ in range(2):
        (found,) = findings(tmp_path)
        assert (found.severity, found.first_offset, found.next_offset) == (Severity.REPAIR, 10, 20)
        assert found.reason == "its index, time index or view is missing or damaged"
        path.unlink(missing_ok=True)
    again = open_log(tmp_path)
    again.read(10, max_bytes=1)
    assert findings(tmp_path) == []


def test_a_companion_that_disagrees_with_its_records_is_found(closed: Log, tmp_path: Path) -> None:
    disk = WatchedDisk()
    entry = closed.sealed[1]
    stem = str(segment_path(tmp_path, 10, ""))
    wrong = companions.load(disk, stem, base=10, seal=entry.seal, kinds=BUILT_IN)
    assert wrong is not None
    wrong.index.positions[1] += 1
    companions.save(disk, stem, wrong, base=10, seal=entry.seal)
    (found,) = findings(tmp_path)
    assert (found.severity, found.first_offset) == (Severity.REPAIR, 10)
    assert found.reason == "its index or view disagrees with its records"


def test_a_lost_mark_is_repaired_by_opening(closed: Log, tmp_path: Path) -> None:
    (tmp_path / "synced").unlink()
    (found,) = findings(tmp_path)
    assert (found.severity, found.path) == (Severity.REPAIR, f"{tmp_path}/synced")
    open_log(tmp_path).close()
    assert findings(tmp_path) == []


def test_cut_ends_and_strangers_are_notes(closed: Log, tmp_path: Path) -> None:
    (tmp_path / f"{0:020d}-77.cut").touch()
    (tmp_path / "notes.txt").touch()
    found = findings(tmp_path)
    assert [(each.severity, Path(each.path).name, each.reason) for each in found] == [
        (Severity.NOTE, f"{0:020d}-77.cut", "the end of the log as it was cut once"),
        (Severity.NOTE, "notes.txt", "does not belong to this log"),
    ]


def test_several_findings_come_in_the_order_of_the_log(closed: Log, tmp_path: Path) -> None:
    flip_record(tmp_path, 20, 27)
    flip_record(tmp_path, 0, 3)
    flip_record(tmp_path, 30, 31)
    assert [found.first_offset for found in findings(tmp_path)] == [3, 27, 31]


def test_progress_adds_up_to_the_size_of_the_log(closed: Log, tmp_path: Path) -> None:
    flip_record(tmp_path, 10, 14)
    told: list[int] = []
    list(verify(str(tmp_path), WatchedDisk(), told.append))
    assert sum(told) == sum(path.stat().st_size for path in tmp_path.glob("*.log"))
    assert all(size > 0 for size in told)


def test_a_wrong_count_in_the_state_is_found(closed: Log, tmp_path: Path) -> None:
    state = hard_state.load(WatchedDisk(), str(tmp_path))
    assert state is not None
    first = msgspec.structs.replace(state.sealed[0], count=9, traits=int(hard_state.Trait.CLEANED))
    hard_state.save(WatchedDisk(), str(tmp_path), msgspec.structs.replace(state, sealed=(first, *state.sealed[1:])))
    (found,) = findings(tmp_path)
    assert (found.severity, found.reason) == (Severity.DAMAGE, "it holds 10 records, the state file says 9")


def test_a_log_kept_with_any_interval_verifies(tmp_path: Path) -> None:
    for interval in (1, 100, 4096):
        log = open_log(tmp_path / str(interval), LogSettings(segment_bytes=4096, index_interval_bytes=interval))
        fill(log, 100)
        log.close()
        assert findings(tmp_path / str(interval)) == []


@pytest.mark.parametrize("base", [0, 300])
@pytest.mark.parametrize("sector", [0, 2])
def test_a_sector_that_cannot_be_read_is_damage_of_the_records_in_it(tmp_path: Path, base: int, sector: int) -> None:
    log = open_log(tmp_path, LogSettings(segment_bytes=1 << 20))
    fill(log, 300)
    log.roll()
    fill(log, 100)
    log.close()
    path = segment_path(tmp_path, base)
    start, end = sector * 4096, (sector + 1) * 4096
    lost = {offset for offset, (first, after) in positions(path).items() if first < end and start < after}
    found = list(verify(str(tmp_path), WatchedDisk(unreadable(str(path), start, end))))
    assert found
    assert {each.severity for each in found} == {Severity.DAMAGE}
    assert {each.path for each in found} == {str(path)}
    assert {offset for each in found for offset in range(each.first_offset, each.next_offset)} == lost
    assert found[0].position == positions(path)[min(lost)][0]


def test_a_tail_file_that_is_gone_is_damage_up_to_the_synced_mark(closed: Log, tmp_path: Path) -> None:
    """Nothing in the directory but the synced mark says that there was something."""
    (tmp_path / "00000000000000000030.log").unlink()
    (found,) = findings(tmp_path)
    assert (found.severity, found.first_offset, found.next_offset) == (Severity.DAMAGE, 30, 35)


def test_a_tail_file_that_is_gone_above_the_synced_mark_is_a_tear(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for number in range(3):
        fill(log, 5, now=T0 + number)
        log.roll()
    fill(log, 5, now=T0 + 9)
    (tmp_path / "00000000000000000005.log").unlink()
    found = findings(tmp_path)
    assert [(one.severity, one.first_offset) for one in found] == [(Severity.TEAR, 5)]
    assert open_log(tmp_path).end_offset == 5
