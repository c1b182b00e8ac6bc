"""A process is killed in the middle of something; the next one builds on what it finds; then the power goes.

What an opening finds after a kill is in the page cache and may never have reached the disk. Each of these once
lost acknowledged records, or brought back records that were gone: opening must make durable what it keeps.
"""

from collections.abc import Callable
from random import Random

import pytest

from goqueue import codec
from goqueue.model.record import Record
from goqueue.model.settings import Fsync, LogSettings
from goqueue.storage.log import Log
from sim.disk import Crashed, SimDisk

DIRECTORY = "/log"
SETTINGS = LogSettings(segment_bytes=4096, index_interval_bytes=256, fsync=Fsync.EVERY)
LAST_CHANGE = 200
"""More changes than any of the operations interrupted here makes on the disk."""


def open_log(disk: SimDisk) -> Log:
    return Log.open(DIRECTORY, disk=disk, settings=SETTINGS)


def append(log: Log, count: int, text: str) -> None:
    for number in range(count):
        log.append(codec.encode([Record(value=f"{text} {log.end_offset} {number}".encode() * 8)]), now=1)


def values(log: Log) -> list[bytes | None]:
    found: list[bytes | None] = []
    while len(found) + log.start_offset < log.end_offset:
        records = log.records(log.start_offset + len(found), max_bytes=4096)
        found += [record.value for record in records]
    return found


def interrupted(disk: SimDisk, change: int, work: Callable[[], object]) -> bool:
    """Do it, but kill the process inside the `change`-th change it makes; False when it was done before that."""
    disk.crash_at(change)
    try:
        work()
    except Crashed:
        disk.crash(Random(change), "kill")
        return True
    disk.crash_at(None)
    return False


def a_log_after_a_power_cut(seed: int) -> SimDisk:
    disk = SimDisk(Random(seed))
    log = open_log(disk)
    append(log, 30, "old")
    log.sync()
    append(log, 20, "in doubt")
    disk.crash(Random(seed), "power")
    return disk


def acknowledged_then_powerless(disk: SimDisk, seed: int) -> tuple[list[bytes | None], list[bytes | None]]:
    """What is there once new records were acknowledged, and what is there after the power went."""
    log = open_log(disk)
    append(log, 5, "new")
    log.sync()
    before = values(log)
    assert log.durable.value == log.end_offset
    disk.crash(Random(seed + 1000), "power")
    return before, values(open_log(disk))


@pytest.mark.parametrize("seed", range(4))
def test_an_opening_that_was_killed_anywhere_leaves_nothing_the_next_one_mistakes_for_durable(seed: int) -> None:
    for change in range(1, LAST_CHANGE):
        disk = a_log_after_a_power_cut(seed)
        was_killed = interrupted(disk, change, lambda: open_log(disk))  # noqa: B023
        before, after = acknowledged_then_powerless(disk, seed)
        assert after == before, f"killed in change {change}"
        if not was_killed:
            return
    raise AssertionError("opening makes more changes than expected")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("offset", [0, 10, 25])
def test_a_truncation_that_was_killed_anywhere_is_done_once(offset: int, seed: int) -> None:
    for change in range(1, LAST_CHANGE):
        disk = SimDisk(Random(seed))
        log = open_log(disk)
        append(log, 30, "old")
        log.sync()
        was_killed = interrupted(disk, change, lambda: log.truncate(offset))  # noqa: B023
        before, after = acknowledged_then_powerless(disk, seed)
        assert after == before, f"killed in change {change}"
        assert len(before) in (offset + 5, 35)
        if not was_killed:
            return
    raise AssertionError("truncating makes more changes than expected")


@pytest.mark.parametrize("seed", range(8))
def test_records_found_without_a_synced_mark_are_made_durable(seed: int) -> None:
    disk = SimDisk(Random(seed))
    append(open_log(disk), 60, "written")
    disk.crash(Random(seed), "kill")
    disk.unlink(f"{DIRECTORY}/synced")
    before, after = acknowledged_then_powerless(disk, seed)
    assert after == before
    assert len(before) == 65
