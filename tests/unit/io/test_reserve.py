"""The reserve: a full disk can still be relieved by whoever removes something."""

from random import Random

import pytest

from goqueue import codec
from goqueue.io.reserve import Reserve
from goqueue.model.errors import DiskFull
from goqueue.model.record import Record
from goqueue.model.settings import LogSettings
from goqueue.storage.log import Log
from sim.disk import SimDisk

RESERVE = "/data/reserve"


def fill(log: Log) -> None:
    for number in range(1000):
        log.append(codec.encode([Record(value=b"v" * 500)]), now=number)
        log.sync()


def full_log(reserve_bytes: int) -> tuple[SimDisk, Log]:
    """A log of several segments on a disk without a byte to spare."""
    disk = SimDisk(Random(1), capacity=40_000)
    disk.make_directory("/data")
    reserve = Reserve(disk, RESERVE, reserve_bytes)
    log = Log.open("/data/log", disk=disk, reserve=reserve, settings=LogSettings(segment_bytes=4096))
    with pytest.raises(DiskFull):
        fill(log)
    disk.capacity = sum(len(disk.content(f"/data/log/{name}")) for name in disk.list("/data/log"))
    disk.capacity += len(disk.content(RESERVE))
    return disk, log


def test_a_full_log_is_shortened_with_the_reserve_and_takes_records_again() -> None:
    disk, log = full_log(2000)
    end = log.end_offset
    log.truncate_prefix(20)
    assert (log.start_offset, log.end_offset) == (20, end)
    assert len(disk.content(RESERVE)) == 2000
    log.append(codec.encode([Record(value=b"again")]), now=2000)
    assert log.records(end, max_bytes=1)[0].value == b"again"


def test_without_a_reserve_a_full_log_stays_as_it_is() -> None:
    _, log = full_log(0)
    with pytest.raises(DiskFull):
        log.truncate_prefix(20)
    assert log.start_offset == 0
    assert log.records(0, max_bytes=1)[0].offset == 0


def test_a_reserve_does_not_fill_a_disk_that_is_too_small_for_it() -> None:
    disk = SimDisk(Random(1), capacity=100)
    disk.make_directory("/data")
    Reserve(disk, RESERVE, 1000)
    assert len(disk.content(RESERVE)) == 0
    disk.capacity = 5000
    Reserve(disk, RESERVE, 1000)
    assert len(disk.content(RESERVE)) == 1000
