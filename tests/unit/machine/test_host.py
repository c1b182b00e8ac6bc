"""The host: decide, append, apply, the same at restart; snapshots, and what may be told to others when."""

from collections.abc import Iterator

import pytest

from goqueue import codec
from goqueue.machine.host import Host
from goqueue.machine.replay import SNAPSHOT_BEGINS, SNAPSHOT_ENDS
from goqueue.model import limits
from goqueue.model.errors import DamagedData, DiskFull, InvalidRequest, StorageFailed
from goqueue.model.record import Record
from goqueue.storage.log import Log
from tests.support.faulty_disk import FaultyDisk
from tests.support.memory_disk import MemoryDisk
from tests.unit.machine.adders import NOW, Adder, open_log, started


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk()


def rows(log: Log) -> Iterator[tuple[bytes | None, bytes | None, bool]]:
    """Key, value and whether it is a control record, of everything in a log."""
    offset = log.start_offset
    while offset < log.end_offset:
        chunk = log.read(offset, max_bytes=1 << 20)
        yield from ((record.key, record.value, record.control) for record in codec.decode(chunk.data))
        offset = chunk.next_offset


def newest_segment(disk: MemoryDisk) -> bytearray:
    return disk.files[max(path for path in disk.files if path.endswith(".log"))]


# --- commands


def test_a_command_is_decided_appended_and_applied(disk: MemoryDisk) -> None:
    adder = Adder()
    host = started(disk, adder)
    outcome = host.submit(adder, 3, NOW)
    assert (outcome.reply, outcome.refusal, outcome.position) == (3, None, 3)
    assert adder.applied == [(b"1", 0), (b"1", 1), (b"1", 2)]
    assert list(rows(host.log)) == [(b"adder", b"1", False)] * 3
    assert host.log.last_timestamp == NOW


def test_a_refusal_appends_nothing_and_names_the_position_it_was_decided_at(disk: MemoryDisk) -> None:
    adder = Adder()
    host = started(disk, adder)
    host.submit(adder, 2, NOW)
    outcome = host.submit(adder, -1, NOW)
    assert isinstance(outcome.refusal, InvalidRequest)
    assert (outcome.reply, outcome.position, host.log.end_offset) == (None, 2, 2)


def test_a_look_appends_nothing_and_names_the_position_it_was_taken_at(disk: MemoryDisk) -> None:
    adder = Adder()
    host = started(disk, adder)
    host.submit(adder, 2, NOW)
    assert host.submit(adder, 0, NOW) == (2, None, 2)
    assert host.log.end_offset == 2


def test_nothing_is_sure_before_the_sync(disk: MemoryDisk) -> None:
    adder = Adder()
    host = started(disk, adder)
    for command in (2, -1, 0):
        assert host.submit(adder, command, NOW).position > host.log.durable.value
    host.log.sync()
    for command in (-1, 0):
        assert host.submit(adder, command, NOW).position <= host.log.durable.value


def test_a_sync_is_asked_for_at_once_and_only_when_something_was_written(disk: MemoryDisk) -> None:
    asked: list[bool] = []
    adder = Adder()
    host = Host(open_log(disk, lambda _, urgent: asked.append(urgent)), [adder])
    host.submit(adder, -1, NOW)
    host.submit(adder, 0, NOW)
    assert asked == []
    host.submit(adder, 1, NOW)
    assert asked
    assert asked[0] is True


def test_each_machine_gets_its_own_records(disk: MemoryDisk) -> None:
    first, second = Adder("first"), Adder("second")
    host = started(disk, first, second)
    host.submit(first, 1, NOW)
    host.submit(second, 2, NOW)
    host.submit(first, 3, NOW)
    again_first, again_second = Adder("first"), Adder("second")
    started(disk, again_second, again_first)
    assert (again_first.applied, again_second.applied) == (first.applied, second.applied)
    assert (first.total, second.total) == (4, 2)


def test_a_full_disk_refuses_the_command_and_changes_nothing() -> None:
    disk = FaultyDisk(MemoryDisk())
    adder = Adder()
    host = Host(open_log(disk), [adder])
    host.submit(adder, 1, NOW)
    disk.free = 10
    with pytest.raises(DiskFull):
        host.submit(adder, 5, NOW)
    assert (adder.total, host.log.end_offset) == (1, 1)
    assert host.submit(adder, 0, NOW).reply == 1
    disk.free = None
    assert host.submit(adder, 5, NOW).reply == 6
    assert disk.hits


def test_a_disk_that_fails_is_final() -> None:
    disk = FaultyDisk(MemoryDisk())
    adder = Adder()
    host = Host(open_log(disk), [adder])
    host.submit(adder, 1, NOW)
    disk.sync_error_at = 1
    with pytest.raises(StorageFailed):
        host.log.sync()
    with pytest.raises(StorageFailed):
        host.submit(adder, 1, NOW)
    assert adder.total == 1


# --- restart


def test_a_restart_applies_the_same_records_at_the_same_offsets(disk: MemoryDisk) -> None:
    adder = Adder()
    host = started(disk, adder)
    for command in (1, 4, 0, -1, 2):
        host.submit(adder, command, NOW)
    again = Adder()
    started(disk, again)
    assert again.applied == adder.applied
    assert again.total == 7


def test_a_replay_goes_through_reads_of_any_size(disk: MemoryDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    adder = Adder()
    host = started(disk, adder)
    for _ in range(50):
        host.submit(adder, 3, NOW)
    host.snapshot(NOW)
    host.submit(adder, 1, NOW)
    monkeypatch.setattr(limits, "SCAN_CHUNK_BYTES", 1)
    again = Adder()
    started(disk, again)
    assert again.total == 151


def test_a_record_of_a_machine_that_is_not_there_is_refused(disk: MemoryDisk) -> None:
    stranger = Adder("stranger")
    started(disk, stranger).submit(stranger, 1, NOW)
    with pytest.raises(DamagedData, match=r"offset 0 belongs to b'stranger'.*start the version that wrote it"):
        started(disk, Adder())


@pytest.mark.parametrize("record", [Record(value=b"1"), Record(key=b"adder"), Record(key=b"adder", control=True)])
def test_a_record_that_no_host_wrote_is_refused(disk: MemoryDisk, record: Record) -> None:
    open_log(disk).append(codec.encode([record]), now=NOW)
    with pytest.raises(DamagedData, match="offset 0 belongs to"):
        started(disk, Adder())


def test_damage_is_refused_not_skipped(disk: MemoryDisk) -> None:
    adder = Adder()
    host = started(disk, adder)
    host.submit(adder, 3, NOW)
    host.log.close()
    newest_segment(disk)[60] ^= 1
    with pytest.raises(DamagedData, match="put a good copy of that directory in place"):
        started(disk, Adder())


# --- snapshots


def test_a_snapshot_is_a_row_of_records_between_two_control_records(disk: MemoryDisk) -> None:
    first, second = Adder("first"), Adder("second")
    host = started(disk, first, second)
    host.submit(first, 2, NOW)
    assert host.snapshot(NOW) == host.log.end_offset == 6
    assert list(rows(host.log))[2:] == [
        (SNAPSHOT_BEGINS, None, True),
        (b"first", b"2", False),
        (b"second", b"0", False),
        (SNAPSHOT_ENDS, None, True),
    ]


def test_a_snapshot_begins_a_segment_so_that_what_is_before_it_can_go(disk: MemoryDisk) -> None:
    adder = Adder()
    host = started(disk, adder)
    host.submit(adder, 2, NOW)
    host.snapshot(NOW)
    assert host.log.segments[-1].base == 2


def test_a_snapshot_asks_for_a_sync_at_once(disk: MemoryDisk) -> None:
    asked: list[bool] = []
    adder = Adder()
    host = Host(open_log(disk, lambda _, urgent: asked.append(urgent)), [adder])
    host.snapshot(NOW)
    assert True in asked


def test_a_restart_goes_on_from_the_snapshot(disk: MemoryDisk) -> None:
    adder = Adder()
    host = started(disk, adder)
    host.submit(adder, 5, NOW)
    host.snapshot(NOW)
    host.submit(adder, 2, NOW)
    again = Adder()
    started(disk, again)
    assert again.total == 7
    assert [record for record, _ in again.applied] == [b"5", b"1", b"1"], "the snapshot took the place of the five"


def test_a_snapshot_of_nothing_is_one_too(disk: MemoryDisk) -> None:
    host = started(disk)
    assert host.snapshot(NOW) == 2
    assert started(disk).log.end_offset == 2


def test_a_snapshot_is_wanted_once_enough_was_written_since_the_last_one(
    disk: MemoryDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RECORDS_PER_SNAPSHOT", 5)
    adder = Adder()
    host = started(disk, adder)
    host.submit(adder, 4, NOW)
    assert not host.wants_snapshot
    host.submit(adder, 1, NOW)
    assert host.wants_snapshot
    host.snapshot(NOW)
    assert not host.wants_snapshot
    host.submit(adder, 4, NOW)
    assert not host.wants_snapshot
    host.submit(adder, 1, NOW)
    assert host.wants_snapshot
    assert started(disk, Adder()).wants_snapshot, "a restart counts from the same snapshot"


def test_two_snapshots_are_kept_and_what_is_before_them_goes(disk: MemoryDisk) -> None:
    adder = Adder()
    host = started(disk, adder)
    begins = []
    for _ in range(4):
        host.submit(adder, 3, NOW)
        begins.append(host.log.end_offset)
        host.snapshot(NOW)
        host.log.sync()
        host.forget()
        assert host.log.start_offset == (begins[-2] if len(begins) > 1 else 0)
    again = Adder()
    host = started(disk, again)
    assert (again.total, host.log.start_offset) == (12, begins[-2])
    host.snapshot(NOW)
    host.log.sync()
    host.forget()
    assert host.log.start_offset == begins[-1], "a restart knows where the kept ones begin"


def test_a_single_snapshot_forgets_nothing(disk: MemoryDisk) -> None:
    adder = Adder()
    host = started(disk, adder)
    host.submit(adder, 3, NOW)
    host.snapshot(NOW)
    host.log.sync()
    host.forget()
    host.forget()
    assert host.log.start_offset == 0


def test_forgetting_twice_is_forgetting_once(disk: MemoryDisk) -> None:
    adder = Adder()
    host = started(disk, adder)
    for _ in range(2):
        host.submit(adder, 3, NOW)
        host.snapshot(NOW)
    host.log.sync()
    host.forget()
    start = host.log.start_offset
    host.forget()
    assert host.log.start_offset == start == 3


def test_a_full_disk_refuses_the_snapshot_and_the_next_try_works() -> None:
    disk = FaultyDisk(MemoryDisk())
    adder = Adder()
    host = Host(open_log(disk), [adder])
    host.submit(adder, 3, NOW)
    disk.free = 0
    for _ in range(3):
        with pytest.raises(DiskFull):
            host.snapshot(NOW)
    assert host.log.end_offset == 3
    disk.free = None
    assert host.snapshot(NOW) == 6
    host.log.sync()
    again = Adder()
    assert Host(open_log(disk), [again]).log.end_offset == 6
    assert again.total == 3


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_a_snapshot_that_did_not_end_never_was(disk: MemoryDisk, kept: int) -> None:
    """Of the row begins, first, second, ends only `kept` records came to the disk."""
    first, second = Adder("first"), Adder("second")
    host = started(disk, first, second)
    host.submit(first, 2, NOW)
    host.submit(second, 3, NOW)
    host.log.sync()
    host.snapshot(NOW)
    segment = newest_segment(disk)
    del segment[codec.scan(bytes(segment)).positions[kept] :]
    first, second = Adder("first"), Adder("second")
    started(disk, first, second)
    assert (first.total, second.total) == (2, 3)
    assert [record for record, _ in first.applied] == [b"1", b"1"], "by its own records, not by the snapshot's"


@pytest.mark.parametrize("kept", [1, 2])
def test_what_follows_a_torn_snapshot_is_not_taken_for_a_part_of_it(disk: MemoryDisk, kept: int) -> None:
    adder = Adder()
    host = started(disk, adder)
    host.submit(adder, 2, NOW)
    host.log.sync()
    host.snapshot(NOW)
    segment = newest_segment(disk)
    del segment[codec.scan(bytes(segment)).positions[kept] :]
    adder = Adder()
    host = started(disk, adder)
    host.submit(adder, 5, NOW)
    host.log.close()
    adder = Adder()
    host = started(disk, adder)
    assert adder.total == 7
    host.snapshot(NOW)
    host.submit(adder, 1, NOW)
    adder = Adder()
    started(disk, adder)
    assert adder.total == 8


def test_a_log_that_lost_its_beginning_and_has_no_snapshot_is_refused(disk: MemoryDisk) -> None:
    adder = Adder()
    host = started(disk, adder)
    host.submit(adder, 3, NOW)
    host.log.sync()
    host.log.truncate_prefix(2)
    with pytest.raises(DamagedData, match="no complete snapshot; restore it from a copy"):
        started(disk, Adder())


def test_a_torn_snapshot_does_not_stand_in_for_a_lost_beginning(disk: MemoryDisk) -> None:
    adder = Adder()
    host = started(disk, adder)
    host.submit(adder, 3, NOW)
    host.log.sync()
    host.log.truncate_prefix(3)
    host.snapshot(NOW)
    segment = newest_segment(disk)
    del segment[codec.scan(bytes(segment)).positions[2] :]
    with pytest.raises(DamagedData, match="no complete snapshot"):
        started(disk, Adder())
