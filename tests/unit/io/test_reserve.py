"""The reserve: a full disk can still be relieved by whoever removes something, and small state goes on."""

import threading
from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest

from goqueue import codec
from goqueue.io.reserve import Reserve
from goqueue.io.small_file import write_all
from goqueue.model.errors import DiskFull
from goqueue.model.record import Record
from goqueue.model.settings import LogSettings
from goqueue.storage.log import Log
from sim.disk import SimDisk
from tests.support.patience import PATIENCE_S

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
    disk.capacity += reserve_bytes
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
    assert disk.used == 0
    disk.capacity = 5000
    Reserve(disk, RESERVE, 1000)
    assert len(disk.content(RESERVE)) == 1000


# --- small state


class FullDisk:
    """A disk of 5000 bytes without one to spare: a reserve of 1000, half of it for commits, and 4000 of others."""

    def __init__(self) -> None:
        self.disk = SimDisk(Random(1), capacity=5000)
        self.disk.make_directory("/data")
        self.reserve = Reserve(self.disk, RESERVE, 1000)
        self.write("/data/bulk", 4000)
        assert self.disk.used == 5000

    def write(self, path: str, size: int) -> None:
        """Let a file grow, or leave it as it is."""
        file = self.disk.open(path, create=True)
        before = file.size()
        try:
            write_all(file, before, b"." * size)
        except DiskFull:
            file.truncate(before)
            raise

    def grow(self, size: int) -> None:
        assert self.disk.capacity is not None
        self.disk.capacity += size

    def commit(self, size: int = 100) -> None:
        self.reserve.spending(lambda: self.write("/data/commits", size))

    @property
    def committed(self) -> int:
        return len(self.disk.content("/data/commits"))

    @property
    def held(self) -> int:
        return len(self.disk.content(RESERVE))


def test_with_room_small_state_leaves_the_reserve_alone() -> None:
    full = FullDisk()
    full.grow(1000)
    full.commit()
    assert (full.committed, full.held, full.reserve.spent) == (100, 1000, False)


def test_on_a_full_disk_small_state_gets_the_space_of_the_reserve_and_keeps_it() -> None:
    full = FullDisk()
    for number in range(5):
        full.commit()
        assert (full.committed, full.held, full.reserve.spent) == (100 * (number + 1), 500, True)
    with pytest.raises(DiskFull):
        full.commit()
    assert (full.committed, full.held, full.reserve.spent) == (500, 500, True)


def test_small_state_never_takes_what_shrinking_needs() -> None:
    full = FullDisk()
    with suppress(DiskFull):
        while True:
            full.commit()

    def relieve() -> None:
        full.write("/data/state", 499)
        full.disk.unlink("/data/bulk")

    full.reserve.shrinking(relieve)
    assert (full.held, full.reserve.spent) == (500, True)
    assert full.reserve.refill()
    assert (full.held, full.reserve.spent) == (1000, False)


def test_a_refill_waits_until_the_disk_has_all_of_the_space() -> None:
    full = FullDisk()
    full.commit()
    assert not full.reserve.refill()
    assert (full.held, full.reserve.spent) == (500, True)
    full.commit()
    full.grow(199)
    assert not full.reserve.refill()
    full.grow(1)
    assert full.reserve.refill()
    assert (full.held, full.reserve.spent) == (1000, False)
    full.commit()
    assert (full.committed, full.reserve.spent) == (300, True), "it can be spent again"


def test_it_is_spent_all_the_time_until_a_refill_has_the_space() -> None:
    full = FullDisk()
    full.commit()
    seen: list[bool] = []
    full.disk.between = lambda _: seen.append(full.reserve.spent)
    assert not full.reserve.refill()
    full.disk.unlink("/data/bulk")
    assert full.reserve.refill()
    assert set(seen) == {True}


def test_a_reserve_that_is_all_there_is_not_written_again() -> None:
    full = FullDisk()
    changes = full.disk.changes
    assert full.reserve.refill()
    assert full.disk.changes == changes


def test_without_a_reserve_small_state_is_refused_and_nothing_is_spent() -> None:
    disk = SimDisk(Random(1), capacity=100)
    disk.make_directory("/data")
    reserve = Reserve(disk, RESERVE, 1000)
    assert not reserve.spent, "a disk that is too small never had one"
    tries = Tries(fail=9)
    with pytest.raises(DiskFull):
        reserve.spending(tries)
    assert (tries.count, reserve.spent) == (1, False)
    disk.capacity = 5000
    assert reserve.refill()
    assert len(disk.content(RESERVE)) == 1000


class Tries:
    """Work that meets a full disk the first times."""

    def __init__(self, fail: int, before: Callable[[], None] = lambda: None) -> None:
        self.count = 0
        self._fail = fail
        self._before = before

    def __call__(self) -> str:
        self.count += 1
        if self.count <= self._fail:
            raise DiskFull("no space")
        self._before()
        return "done"


def test_work_is_tried_once_more_and_no_oftener() -> None:
    full = FullDisk()
    for fail, tried in ((0, 1), (1, 2)):
        tries = Tries(fail)
        assert full.reserve.spending(tries) == "done"
        assert tries.count == tried
    tries = Tries(fail=9)
    with pytest.raises(DiskFull):
        full.reserve.spending(tries)
    assert (tries.count, full.reserve.spent) == (2, True)


def test_other_errors_do_not_touch_the_reserve() -> None:
    full = FullDisk()

    def work() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        full.reserve.spending(work)
    assert (full.held, full.reserve.spent) == (1000, False)


def test_a_spent_reserve_is_still_spent_after_a_restart_and_comes_back_with_room() -> None:
    full = FullDisk()
    full.commit()
    again = Reserve(full.disk, RESERVE, 1000)
    assert again.spent
    again.spending(lambda: full.write("/data/commits", 100))
    full.disk.unlink("/data/bulk")
    assert Reserve(full.disk, RESERVE, 1000).spent is False
    assert again.refill()
    assert (full.held, again.spent) == (1000, False)


def test_a_small_disk_does_not_look_spent_after_a_restart() -> None:
    disk = SimDisk(Random(1), capacity=100)
    disk.make_directory("/data")
    for _ in range(3):
        assert not Reserve(disk, RESERVE, 1000).spent


def test_space_that_shrinking_could_not_give_back_counts_as_spent() -> None:
    """What it left belongs to small state: bulk written now would keep the reserve from coming back."""
    full = FullDisk()
    full.reserve.shrinking(lambda: full.write("/data/note", 10))
    assert (full.held, full.reserve.spent) == (500, True)
    full.commit()
    full.disk.unlink("/data/bulk")
    assert full.reserve.refill()
    assert not full.reserve.spent


def test_while_it_is_spent_shrinking_works_with_what_is_left_and_gives_its_part_back() -> None:
    full = FullDisk()
    full.commit()
    full.reserve.shrinking(lambda: full.write("/data/note", 700))
    assert (full.held, full.reserve.spent) == (0, True)
    assert full.reserve.shrinking(Tries(fail=1)) == "done", "space may have been given up meanwhile"
    with pytest.raises(DiskFull):
        full.reserve.shrinking(lambda: full.write("/data/note", 300))
    full.grow(300)
    assert not full.reserve.refill()
    assert (full.held, full.reserve.spent) == (500, True), "first the part that frees space"


def elsewhere(work: Callable[[], object]) -> None:
    """Do it in another thread, now."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "it waits for what is under way here"


def test_what_is_spent_while_another_shrinks_is_not_taken_back_at_its_end() -> None:
    full = FullDisk()
    full.reserve.shrinking(Tries(fail=1, before=lambda: elsewhere(full.commit)))
    assert (full.committed, full.held, full.reserve.spent) == (100, 500, True)


def test_a_shrinking_that_ends_while_another_spends_leaves_it_the_space() -> None:
    full = FullDisk()

    def commit() -> None:
        elsewhere(lambda: full.reserve.shrinking(Tries(fail=1)))
        assert not full.reserve.refill(), "not while somebody works with it"
        full.write("/data/commits", 500)

    full.reserve.spending(Tries(fail=1, before=commit))
    assert (full.committed, full.held, full.reserve.spent) == (500, 500, True)


def test_two_may_shrink_at_once() -> None:
    full = FullDisk()
    full.reserve.shrinking(Tries(fail=1, before=lambda: elsewhere(lambda: full.reserve.shrinking(Tries(fail=1)))))
    assert (full.held, full.reserve.spent) == (1000, False)


def test_a_log_on_a_full_disk_takes_small_records_from_the_reserve() -> None:
    disk = SimDisk(Random(1), capacity=40_000)
    disk.make_directory("/data")
    reserve = Reserve(disk, RESERVE, 2000)
    bulk = Log.open("/data/log", disk=disk, reserve=reserve, settings=LogSettings(segment_bytes=4096))
    commits = Log.open("/data/log/sidecar", disk=disk, reserve=reserve)
    with pytest.raises(DiskFull):
        fill(bulk)
    disk.capacity = disk.used

    def commit() -> None:
        commits.append(codec.encode([Record(value=b"commit")]), now=2000)

    with pytest.raises(DiskFull):
        commit()
    for _ in range(10):
        reserve.spending(commit)
    with suppress(DiskFull):
        while True:
            reserve.spending(commit)
    commits.sync()
    assert reserve.spent
    assert {record.value for record in commits.records(0, max_bytes=10_000)} == {b"commit"}
    assert not reserve.refill()
    bulk.truncate_prefix(40)
    assert reserve.refill()
    assert bulk.append(codec.encode([Record(value=b"again")]), now=2000).next_offset == bulk.end_offset
