"""The threads that sync: at once, on an interval, together, and never again after a failure."""

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from goqueue.io.waiting import wait_for
from goqueue.model import limits
from goqueue.model.errors import LogClosed, StorageFailed, Unavailable
from goqueue.model.settings import Fsync, LogSettings
from goqueue.storage.driver import SyncDriver
from goqueue.storage.log import Log
from tests.support.patience import PATIENCE_S
from tests.unit.storage.disks import Operation, WatchedDisk
from tests.unit.storage.logs import message, offsets, open_log, put, read_all

EVERY = LogSettings(segment_bytes=4096, fsync=Fsync.EVERY)


@contextmanager
def driving(*, threads: int = 2) -> Iterator[tuple[SyncDriver, list[StorageFailed]]]:
    failures: list[StorageFailed] = []
    driver = SyncDriver(failures.append, threads=threads)
    try:
        yield driver, failures
    finally:
        driver.stop()


def opened(path: Path, driver: SyncDriver, settings: LogSettings = EVERY, disk: WatchedDisk | None = None) -> Log:
    return Log.open(str(path), disk=disk or WatchedDisk(), settings=settings, on_dirty=driver.notify)


def used(path: Path, driver: SyncDriver, settings: LogSettings, disk: WatchedDisk) -> Log:
    """A log with one durable record: what the first append after opening costs is behind it."""
    log = opened(path, driver, settings, disk)
    put(log, message(0))
    log.sync()
    disk.operations.clear()
    return log


def no_fsync(operation: Operation) -> None:
    """A disk whose fsync fails for segments."""
    if operation.kind == "sync" and operation.path.endswith(".log"):
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_every_append_becomes_durable(tmp_path: Path) -> None:
    with driving() as (driver, failures):
        log = opened(tmp_path, driver)
        for number in range(50):
            put(log, message(number))
            wait_for(log.durable, number + 1, PATIENCE_S)
        assert log.durable.value == 50
    assert failures == []


def test_an_interval_makes_one_sync_of_many_appends(tmp_path: Path) -> None:
    disk = WatchedDisk()
    with driving() as (driver, _):
        log = opened(tmp_path, driver, LogSettings(fsync_interval_ms=200), disk)
        disk.operations.clear()
        for number in range(20):
            put(log, message(number))
        assert log.durable.value < 20
        wait_for(log.durable, 20, PATIENCE_S)
        assert len(disk.of_kind("sync", ".log")) < 20


def test_the_disk_begins_with_what_a_later_sync_will_wait_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BEGIN_SYNC_BYTES", 1)
    begun = threading.Event()

    def notice(operation: Operation) -> None:
        if operation.kind == "begin_sync":
            begun.set()

    disk = WatchedDisk()
    with driving() as (driver, failures):
        log = Log.open(
            str(tmp_path), disk=disk, settings=LogSettings(fsync_interval_ms=3_600_000), on_dirty=driver.notify,
            on_grown=driver.begin,
        )  # fmt: skip
        disk.before = notice
        put(log, message(0))
        assert begun.wait(PATIENCE_S)
        assert log.durable.value == 0
        log.close()
        driver.begin(log)  # asked for before it was closed
        another = opened(tmp_path / "another", driver, LogSettings(fsync_interval_ms=3_600_000), disk)
        begun.clear()
        driver.begin(another)
        assert begun.wait(PATIENCE_S)
    assert failures == []


def test_a_rolled_segment_is_sealed_at_once_whatever_the_interval(tmp_path: Path) -> None:
    with driving() as (driver, _):
        log = opened(tmp_path, driver, LogSettings(segment_bytes=4096, fsync_interval_ms=3_600_000))
        put(log, message(0))
        log.roll()
        wait_for(log.durable, 1, PATIENCE_S)
    assert [entry.base for entry in log.sealed] == [0]


def test_without_fsync_a_rolled_segment_is_sealed_too(tmp_path: Path) -> None:
    with driving() as (driver, _):
        log = opened(tmp_path, driver, LogSettings(segment_bytes=4096, fsync=Fsync.NONE))
        put(log, message(0))
        log.roll()
        wait_for(log.durable, 1, PATIENCE_S)


def test_appends_during_an_fsync_share_the_next_one(tmp_path: Path) -> None:
    """Group commit, step by step: the first fsync is held while nine more appends arrive."""
    begun, go_on = threading.Event(), threading.Event()

    def hold(operation: Operation) -> None:
        if operation.kind == "sync" and operation.path.endswith(".log") and not begun.is_set():
            begun.set()
            go_on.wait(PATIENCE_S)

    disk = WatchedDisk()
    with driving() as (driver, _):
        log = opened(tmp_path, driver, LogSettings(fsync=Fsync.EVERY), disk)
        put(log, message(0))
        wait_for(log.durable, 1, PATIENCE_S)
        disk.operations.clear()
        disk.before = hold
        put(log, message(1))
        assert begun.wait(PATIENCE_S)
        for number in range(2, 11):
            put(log, message(number))
        assert log.durable.value == 1
        go_on.set()
        wait_for(log.durable, 11, PATIENCE_S)
        assert len(disk.of_kind("sync", ".log")) == 2


def test_eight_writers_each_on_its_own_log_all_become_durable(tmp_path: Path) -> None:
    count = 60
    with driving() as (driver, failures):
        logs = [opened(tmp_path / str(number), driver) for number in range(8)]

        def write(log: Log) -> None:
            for number in range(count):
                put(log, message(number))
                if number % 10 == 9:
                    wait_for(log.durable, number + 1, PATIENCE_S)

        writers = [threading.Thread(target=write, args=(log,)) for log in logs]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        assert [log.durable.value for log in logs] == [count] * 8
    assert failures == []
    for log in logs:
        log.close()
    for number in range(8):
        assert offsets(read_all(open_log(tmp_path / str(number)))) == list(range(count))


def test_waiters_of_many_threads_are_woken_by_shared_syncs(tmp_path: Path) -> None:
    """One writer, eight waiting: every waiter is called, with as many or fewer fsyncs than appends."""
    disk = WatchedDisk()
    called: list[int] = []
    done = threading.Event()
    with driving() as (driver, _):
        log = opened(tmp_path, driver, disk=disk)
        disk.operations.clear()

        def note(number: int) -> None:
            called.append(number)
            if len(called) == 200:
                done.set()

        for number in range(200):
            put(log, message(number, size=10))
            log.durable.when(number + 1, lambda _, number=number: note(number))  # type: ignore[misc]
        assert done.wait(PATIENCE_S)
        syncs = len(disk.of_kind("sync", ".log"))
    assert sorted(called) == list(range(200))
    assert 1 <= syncs <= 200 + len(log.segments)


def test_one_logs_slow_fsync_does_not_hold_up_another(tmp_path: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def hold(operation: Operation) -> None:
        if operation.kind == "sync" and operation.path.endswith(".log"):
            begun.set()
            go_on.wait(PATIENCE_S)

    with driving(threads=2) as (driver, _):
        disk = WatchedDisk()
        slow = used(tmp_path / "slow", driver, EVERY, disk)
        quick = used(tmp_path / "quick", driver, EVERY, WatchedDisk())
        disk.before = hold
        put(slow, message(1))
        assert begun.wait(PATIENCE_S)
        put(quick, message(1))
        wait_for(quick.durable, 2, PATIENCE_S)
        assert slow.durable.value == 1
        go_on.set()
        wait_for(slow.durable, 2, PATIENCE_S)


def test_a_failed_fsync_is_told_once_and_never_tried_again(tmp_path: Path) -> None:
    """With a sync asked for at once and another due later, and with more asked for after the failure."""
    disk = WatchedDisk()
    with driving(threads=1) as (driver, failures):
        log = used(tmp_path / "bad", driver, LogSettings(segment_bytes=4096, fsync_interval_ms=1), disk)
        after = used(tmp_path / "good", driver, LogSettings(fsync_interval_ms=50), WatchedDisk())
        disk.before = no_fsync
        put(log, message(1))
        driver.notify(log, True)
        with pytest.raises(StorageFailed, match="Input/output error"):
            wait_for(log.durable, 2, PATIENCE_S)
        driver.notify(log, False)
        driver.notify(log, True)
        put(after, message(1))
        wait_for(after.durable, 2, PATIENCE_S)
        with pytest.raises(StorageFailed):
            put(log, message(2))
    assert [type(failure) for failure in failures] == [StorageFailed]
    assert len(disk.of_kind("sync", ".log")) == 1
    assert log.durable.value == 1


def test_a_closed_log_that_is_still_due_is_passed_over(tmp_path: Path) -> None:
    with driving(threads=1) as (driver, failures):
        log = opened(tmp_path / "closed", driver, LogSettings(fsync_interval_ms=20))
        put(log, message(0))
        log.close()
        other = opened(tmp_path / "other", driver, LogSettings(fsync_interval_ms=40))
        put(other, message(0))
        wait_for(other.durable, 1, PATIENCE_S)
    assert failures == []


def test_stopping_ends_the_threads_and_leaves_later_syncs_to_close(tmp_path: Path) -> None:
    before = threading.active_count()
    driver = SyncDriver(lambda _: None, threads=3)
    log = opened(tmp_path, driver, LogSettings(fsync_interval_ms=3_600_000))
    put(log, message(0))
    assert threading.active_count() == before + 3 + 1  # one begins ahead of them
    driver.stop()
    assert threading.active_count() == before
    assert log.durable.value == 0
    log.close()
    assert log.durable.value == 1


@pytest.mark.parametrize("settings", [EVERY, LogSettings(segment_bytes=4096, fsync_interval_ms=20)])
def test_a_sync_that_finds_no_free_file_handle_is_tried_again(tmp_path: Path, settings: LogSettings) -> None:
    disk = WatchedDisk()
    refused: list[Operation] = []

    def none_left(operation: Operation) -> None:
        syncing = threading.current_thread().name.startswith("goqueue-sync")
        if syncing and operation.kind == "open" and len(refused) < 3:
            refused.append(operation)
            raise Unavailable("no more files can be opened; raise the limit")

    with driving() as (driver, failures):
        log = opened(tmp_path, driver, settings, disk)
        disk.before = none_left
        put(log, message(0))
        wait_for(log.durable, 1, PATIENCE_S)
        assert len(refused) == 3
        put(log, message(1))
        wait_for(log.durable, 2, PATIENCE_S)
    assert failures == []
    log.close()
    assert offsets(read_all(open_log(tmp_path))) == [0, 1]


# --- hastened


LATE = LogSettings(segment_bytes=4096, fsync_interval_ms=3_600_000)
NEVER = LogSettings(segment_bytes=4096, fsync=Fsync.NONE)


def holding(disk: WatchedDisk) -> tuple[threading.Event, threading.Event]:
    """The next fsync of a segment begins, says so, and goes on when it is told to."""
    begun, go_on = threading.Event(), threading.Event()

    def hold(operation: Operation) -> None:
        if operation.kind == "sync" and operation.path.endswith(".log") and not begun.is_set():
            begun.set()
            go_on.wait(PATIENCE_S)

    disk.before = hold
    return begun, go_on


@pytest.mark.parametrize("settings", [LATE, NEVER], ids=["interval", "none"])
def test_who_waits_does_not_wait_for_the_interval_nor_for_ever(tmp_path: Path, settings: LogSettings) -> None:
    with driving() as (driver, failures):
        log = opened(tmp_path, driver, settings)
        for number in range(20):
            put(log, message(number, size=10))
            log.hasten()
            wait_for(log.durable, number + 1, PATIENCE_S)
    assert failures == []


@pytest.mark.parametrize("settings", [LATE, NEVER], ids=["interval", "none"])
def test_many_who_come_while_one_fsync_runs_share_the_next(tmp_path: Path, settings: LogSettings) -> None:
    disk = WatchedDisk()
    with driving() as (driver, _):
        log = used(tmp_path, driver, settings, disk)
        begun, go_on = holding(disk)
        put(log, message(1))
        log.hasten()
        assert begun.wait(PATIENCE_S)
        for number in range(2, 100):
            put(log, message(number, size=1))
            for _ in range(3):
                log.hasten()
        assert log.durable.value == 1
        go_on.set()
        wait_for(log.durable, 100, PATIENCE_S)
        assert len(disk.of_kind("sync", ".log")) == 2 + len(log.segments) - 1


def test_no_append_that_was_hastened_is_forgotten_whatever_the_others_do(tmp_path: Path) -> None:
    """Four threads take turns appending; each waits for its own without anybody appending for it."""
    with driving() as (driver, failures):
        log = opened(tmp_path, driver, NEVER)
        turn = threading.Lock()
        late: list[int] = []

        def publish() -> None:
            for _ in range(100):
                with turn:
                    end = put(log, message(0, size=10)).next_offset
                log.hasten()
                try:
                    wait_for(log.durable, end, PATIENCE_S)
                except TimeoutError:
                    late.append(end)

        writers = [threading.Thread(target=publish, daemon=True) for _ in range(4)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        assert late == []
        assert log.durable.value == 400
    assert failures == []


def test_being_asked_again_and_again_does_not_fill_the_drivers_lists(tmp_path: Path) -> None:
    with driving(threads=1) as (driver, _):
        log = opened(tmp_path, driver, LATE)
        for number in range(300):
            put(log, message(number, size=10))
            log.hasten()
            driver.notify(log, False)
            driver.notify(log, True)
            wait_for(log.durable, number + 1, PATIENCE_S)
        assert len(driver._later) <= 1
        for interval in range(3_000_000, 2_000_000, -1000):
            log.settings = LogSettings(segment_bytes=4096, fsync_interval_ms=interval)
            driver.notify(log, False)
        assert len(driver._later) < 20
        assert len(driver._ready) <= 1


def test_a_hastened_sync_that_was_short_of_something_is_tried_again_soon(tmp_path: Path) -> None:
    disk = WatchedDisk()
    refused: list[Operation] = []

    def none_left(operation: Operation) -> None:
        if threading.current_thread().name.startswith("goqueue-sync") and operation.kind == "open" and not refused:
            refused.append(operation)
            raise Unavailable("no more files can be opened; raise the limit")

    with driving() as (driver, failures):
        log = used(tmp_path, driver, LATE, disk)
        disk.before = none_left
        put(log, message(1))
        log.hasten()
        wait_for(log.durable, 2, PATIENCE_S)
    assert len(refused) == 1
    assert failures == []


def test_who_waits_on_a_disk_that_fails_is_told_so(tmp_path: Path) -> None:
    disk = WatchedDisk()
    with driving() as (driver, failures):
        log = used(tmp_path, driver, NEVER, disk)
        disk.before = no_fsync
        put(log, message(1))
        log.hasten()
        with pytest.raises(StorageFailed):
            wait_for(log.durable, 2, PATIENCE_S)
        log.hasten()
    assert [type(failure) for failure in failures] == [StorageFailed]


# --- settings changed while a log is open


@pytest.mark.parametrize("before", [LATE, NEVER], ids=["interval", "none"])
@pytest.mark.parametrize("after", [EVERY, LogSettings(fsync_interval_ms=20)], ids=["every", "interval"])
def test_what_is_not_synced_yet_is_synced_as_the_new_settings_say(
    tmp_path: Path, before: LogSettings, after: LogSettings
) -> None:
    with driving() as (driver, _):
        log = opened(tmp_path, driver, before)
        put(log, message(0))
        log.settings = after
        wait_for(log.durable, 1, PATIENCE_S)
        put(log, message(1))
        wait_for(log.durable, 2, PATIENCE_S)


# --- a log that is removed


def test_a_forgotten_log_is_neither_due_nor_held(tmp_path: Path) -> None:
    with driving(threads=1) as (driver, failures):
        gone = opened(tmp_path / "gone", driver, LATE)
        other = opened(tmp_path / "other", driver, LATE)
        put(gone, message(0))
        put(other, message(0))
        gone.abandon()
        driver.forget(gone)
        assert [log for _, _, log in driver._later] == [other]
        driver.forget(gone)
        other.hasten()
        wait_for(other.durable, 1, PATIENCE_S)
    assert failures == []


@pytest.mark.parametrize("fails", [False, True])
def test_an_fsync_that_runs_while_its_log_is_abandoned_is_nobodys_failure(tmp_path: Path, fails: bool) -> None:
    disk = WatchedDisk()
    with driving(threads=1) as (driver, failures):
        log = used(tmp_path / "gone", driver, EVERY, disk)
        begun, go_on = holding(disk)
        hold = disk.before
        assert hold is not None

        def then_fail(operation: Operation) -> None:
            hold(operation)
            if fails:
                no_fsync(operation)

        disk.before = then_fail
        stopped = threading.Event()
        put(log, message(1))
        assert begun.wait(PATIENCE_S)
        log.durable.when(2, lambda _: stopped.set())
        remover = threading.Thread(target=log.abandon, daemon=True)
        remover.start()
        assert stopped.wait(PATIENCE_S)
        go_on.set()
        remover.join(PATIENCE_S)
        with pytest.raises(LogClosed):
            log.sync()
        other = opened(tmp_path / "other", driver, EVERY)
        put(other, message(0))
        wait_for(other.durable, 1, PATIENCE_S)
    assert failures == []
    assert isinstance(log.durable.failure, LogClosed)
    assert disk.open_count == 0
