"""A disk that is full, writes short, or fails to sync: nothing acknowledged is lost, nothing refused appears."""

import errno
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from goqueue import codec
from goqueue.io.disk import Disk, LocalDisk
from goqueue.model.errors import DiskFull, StorageFailed
from goqueue.model.limits import KIB
from goqueue.model.record import Record
from goqueue.model.settings import Fsync, LogSettings
from goqueue.storage.cleaner import clean
from goqueue.storage.log import Log
from goqueue.storage.store import Store
from goqueue.storage.verify import Severity, verify
from tests.chaos.ledger import Ledger
from tests.chaos.spawn import Ended, Spawner
from tests.chaos.writer import STORAGE_FAILED, Job, LogSpec, now_ms
from tests.support.faulty_disk import FaultyDisk
from tests.support.patience import PATIENCE_S
from tests.support.reading import read_all
from tests.support.records import Shape

SETTINGS = LogSettings(segment_bytes=4 * KIB, index_interval_bytes=256, fsync=Fsync.NONE)


def block(name: str, count: int = 4, size: int = 200) -> bytearray:
    """Records that carry their block's name."""
    return codec.encode([Record(value=f"{name} {number} ".encode().ljust(size, b".")) for number in range(count)])


def names(log: Log) -> list[str]:
    """Which blocks can be read, in order, each once per record of it."""
    contents = read_all(log)
    assert not contents.damaged
    assert contents.offsets == list(range(log.end_offset))
    return [(record.value or b"").split(b" ")[0].decode() for record in contents.records]


def reopened(directory: str) -> list[str]:
    """What the next process reads, on a disk that is well, after this one stopped without closing anything."""
    log = Log.open(directory, disk=LocalDisk(), settings=SETTINGS)
    assert not log.recovery.quarantined
    found = names(log)
    log.close()
    assert not [finding for finding in verify(directory, LocalDisk()) if finding.severity is not Severity.NOTE]
    return found


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def directory(tmp_path: Path) -> str:
    return str(tmp_path / "log")


def open_log(directory: str, disk: Disk) -> Log:
    return Log.open(directory, disk=disk, settings=SETTINGS)


# --- short writes


@pytest.mark.parametrize("limit", [1, 7, 35, 36, 37, 900])
def test_short_writes_are_carried_on(directory: str, disk: FaultyDisk, limit: int) -> None:
    log = open_log(directory, disk)
    disk.write_limit = limit
    for name in "abcdefgh":
        log.append(block(name), now=1)
    log.sync()
    assert disk.hits
    assert names(log) == [name for name in "abcdefgh" for _ in range(4)]
    log.close()
    assert reopened(directory) == [name for name in "abcdefgh" for _ in range(4)]


# --- a full disk


@pytest.mark.parametrize("limit", [None, 100])
@pytest.mark.parametrize("room", [0, 1, 35, 36, 235, 240, 500, 935])
@pytest.mark.parametrize("ending", ["closed", "abandoned"])
def test_a_block_that_does_not_fit_is_refused_and_leaves_nothing_behind(
    directory: str, disk: FaultyDisk, room: int, limit: int | None, ending: str
) -> None:
    log = open_log(directory, disk)
    log.append(block("a"), now=1)
    log.sync()
    refused = block("refused")
    assert len(refused) > room
    disk.free, disk.write_limit = room, limit
    with pytest.raises(DiskFull) as error:
        log.append(refused, now=2)
    assert error.value.retriable
    assert disk.hits
    assert (log.end_offset, log.written.value, log.durable.value) == (4, 4, 4)
    assert names(log) == ["a"] * 4
    if ending == "closed":
        log.close()
    assert reopened(directory) == ["a"] * 4


def test_writing_goes_on_at_the_same_offset_when_space_returns(directory: str, disk: FaultyDisk) -> None:
    log = open_log(directory, disk)
    log.append(block("a"), now=1)
    for attempt in range(3):
        disk.free = 300 * attempt
        with pytest.raises(DiskFull):
            log.append(block("refused"), now=2)
    disk.free = None
    assert log.append(block("b"), now=3).first_offset == 4
    log.close()
    assert reopened(directory) == ["a"] * 4 + ["b"] * 4


def test_a_smaller_block_may_fit_where_a_larger_one_was_refused(directory: str, disk: FaultyDisk) -> None:
    log = open_log(directory, disk)
    disk.free = 500
    with pytest.raises(DiskFull):
        log.append(block("refused"), now=1)
    assert disk.free == 500, "what the refused block had taken was not given back"
    assert log.append(block("small", 1), now=1).first_offset == 0
    assert reopened(directory) == ["small"]


@pytest.mark.parametrize("fault", ["the write fails", "the write cannot be undone"])
def test_a_write_whose_outcome_is_unknown_stops_the_log_and_loses_nothing(
    directory: str, disk: FaultyDisk, fault: str
) -> None:
    log = open_log(directory, disk)
    log.append(block("a"), now=1)
    log.sync()
    if fault == "the write fails":
        disk.write_error = errno.EIO
    else:
        disk.free, disk.truncate_error = 700, errno.EIO
    with pytest.raises(StorageFailed):
        log.append(block("unknown"), now=2)
    assert disk.hits
    assert names(log) == ["a"] * 4
    disk.write_error = disk.free = disk.truncate_error = None
    with pytest.raises(StorageFailed):
        log.append(block("b"), now=3)
    log.close()
    found = reopened(directory)
    assert found[:4] == ["a"] * 4
    assert set(found[4:]) <= {"unknown"}


def fill_segment(log: Log) -> int:
    """Append until the next block needs a new segment; how many blocks there are."""
    blocks = 0
    while log.segments[-1].size + len(block("a")) <= SETTINGS.segment_bytes:
        log.append(block("a"), now=1)
        blocks += 1
    return blocks


@pytest.mark.parametrize("fault", ["no room for the file", "no room for the block"])
@pytest.mark.parametrize("ending", ["closed", "abandoned"])
def test_a_full_disk_at_a_roll_refuses_the_block_and_nothing_else(
    directory: str, disk: FaultyDisk, fault: str, ending: str
) -> None:
    log = open_log(directory, disk)
    blocks = fill_segment(log)
    if fault == "no room for the file":
        disk.new_file_error = errno.ENOSPC
    else:
        disk.free = 500
    for _ in range(3):
        with pytest.raises(DiskFull):
            log.append(block("refused"), now=2)
    assert disk.hits
    assert names(log) == ["a"] * 4 * blocks
    disk.new_file_error, disk.free = None, None
    assert log.append(block("b"), now=3).first_offset == 4 * blocks
    if ending == "closed":
        log.close()
    assert reopened(directory) == ["a"] * 4 * blocks + ["b"] * 4


def test_a_full_disk_at_a_roll_leaves_a_log_that_opens_with_what_was_there(directory: str, disk: FaultyDisk) -> None:
    log = open_log(directory, disk)
    blocks = fill_segment(log)
    disk.free = 500
    with pytest.raises(DiskFull):
        log.append(block("refused"), now=2)
    assert reopened(directory) == ["a"] * 4 * blocks


@pytest.mark.parametrize("only", [".index", ".timeindex", ".view", "log.state.tmp"])
@pytest.mark.parametrize("room", [0, 50])
@pytest.mark.parametrize("ending", ["closed", "abandoned"])
def test_a_full_disk_while_sealing_loses_nothing_and_sealing_is_made_up_for(
    directory: str, disk: FaultyDisk, only: str, room: int, ending: str
) -> None:
    log = open_log(directory, disk)
    for _ in range(12):
        log.append(block("a"), now=1)
    assert len(log.segments) > 2
    disk.only, disk.free = only, room
    log.sync()
    assert disk.hits
    assert log.durable.value == log.end_offset == 48, "the records are durable all the same"
    assert only != "log.state.tmp" or not log.sealed
    assert names(log) == ["a"] * 48
    if ending == "abandoned":
        assert reopened(directory) == ["a"] * 48
        return
    disk.free = None
    log.append(block("b"), now=2)
    log.sync()
    assert len(log.sealed) == len(log.segments) - 1
    log.close()
    assert reopened(directory) == ["a"] * 48 + ["b"] * 4


def is_answered(log: Log, offset: int) -> bool:
    """Whether who waits for `offset` to be durable hears of it, or of a failure, in time."""
    answered = threading.Event()
    log.durable.when(offset, lambda _: answered.set())
    return answered.wait(PATIENCE_S)


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE])
def test_a_companion_file_that_cannot_be_written_does_not_stop_the_sync_threads(
    tmp_path: Path, disk: FaultyDisk, number: int
) -> None:
    failures: list[StorageFailed] = []
    settings = LogSettings(segment_bytes=4 * KIB, fsync=Fsync.EVERY)
    disk.only, disk.new_file_error = ".index", number
    with Store(str(tmp_path / "data"), disk=disk, on_failure=failures.append) as store:
        log = store.open_log("log", settings)
        for _ in range(12):
            try:
                appended = log.append(block("a"), now=1)
            except StorageFailed:
                break
            assert is_answered(log, appended.next_offset), "an append was neither made durable nor refused"
        assert disk.hits
        disk.new_file_error = None


def full_for_state(disk: FaultyDisk) -> None:
    disk.only, disk.free = "log.state.tmp", 10


def test_a_full_disk_while_the_state_is_replaced_changes_nothing(directory: str, disk: FaultyDisk) -> None:
    log = open_log(directory, disk)
    for _ in range(12):
        log.append(block("a"), now=1)
    log.begin_epoch(1)
    log.sync()
    sealed = log.sealed
    assert len(sealed) >= 2
    full_for_state(disk)
    for change, argument in (
        (log.begin_epoch, 2),
        (log.truncate_prefix, sealed[0].end),
        (log.truncate, sealed[1].base + 1),
        (log.truncate, 47),
    ):
        hits = disk.hits
        with pytest.raises(DiskFull):
            change(argument)
        assert disk.hits > hits
        assert [entry.epoch for entry in log.epochs] == [1]
        assert (log.start_offset, log.end_offset) == (0, 48)
        assert names(log) == ["a"] * 48
    assert reopened(directory) == ["a"] * 48
    disk.free = None
    log.append(block("b"), now=2)
    log.begin_epoch(2)
    log.truncate(50)
    log.close()
    assert reopened(directory) == ["a"] * 48 + ["b"] * 2


@pytest.mark.parametrize("failing", [1, 2])
def test_a_truncation_that_finds_the_disk_full_half_way_never_loses_what_is_appended_later(
    directory: str, disk: FaultyDisk, failing: int
) -> None:
    log = open_log(directory, disk)
    for _ in range(12):
        log.append(block("a"), now=1)
    log.sync()
    replaced = 0

    def fill_at_state(operation: str, path: str) -> None:
        nonlocal replaced
        if operation == "truncate" and path.endswith("log.state.tmp"):
            replaced += 1
            disk.free = 10 if replaced == failing else None

    disk.only = "log.state.tmp"
    disk.before = fill_at_state
    try:
        log.truncate(30)
    except (DiskFull, StorageFailed):
        assert disk.hits
    disk.before = lambda *_: None
    disk.free = None
    try:
        first = log.append(block("b"), now=2).first_offset
        log.sync()
    except (DiskFull, StorageFailed):
        assert reopened(directory) in (["a"] * 30, ["a"] * 48)
        return
    assert first in (30, 48)
    assert names(log) == ["a"] * first + ["b"] * 4
    assert reopened(directory) == ["a"] * first + ["b"] * 4


@pytest.mark.parametrize("only", [".clean", "log.state.tmp", ".index"])
def test_a_full_disk_while_cleaning_loses_nothing_and_leaves_nothing(
    directory: str, disk: FaultyDisk, only: str
) -> None:
    settings = LogSettings(segment_bytes=4 * KIB, fsync=Fsync.NONE, compact=True)
    log = Log.open(directory, disk=disk, settings=settings)
    for number in range(120):
        key = b"k%d" % (number % 9) if number % 10 else b"only %d" % number
        log.append(codec.encode([Record(key=key, value=b"%d" % number + b"." * 100)]), now=1)
    log.sync()
    before = read_all(log).records
    newest = {record.key: record for record in before}
    disk.only, disk.write_error = only, errno.ENOSPC
    with suppress(DiskFull):
        clean(log, 2)
    assert disk.hits
    assert not [name for name in os.listdir(directory) if name.endswith(".clean")]
    for check in (log, None):
        current = check or Log.open(directory, disk=LocalDisk(), settings=settings)
        contents = read_all(current)
        assert not contents.damaged
        assert {record.key: record for record in contents.records} == newest
        assert all(record in before for record in contents.records)
    disk.write_error = None
    clean(log, 2)
    assert {record.key: record for record in read_all(log).records} == newest
    log.close()
    assert not [name for name in os.listdir(directory) if name.endswith((".clean", ".tmp"))]


# --- syncs that fail


def test_after_a_sync_error_nothing_is_accepted_and_nobody_is_told_it_is_durable(
    directory: str, disk: FaultyDisk
) -> None:
    log = open_log(directory, disk)
    log.append(block("a"), now=1)
    log.sync()
    log.append(block("b"), now=2)
    told: list[Exception | None] = []
    log.durable.when(8, told.append)
    disk.sync_error_at = 1
    with pytest.raises(StorageFailed):
        log.sync()
    assert [type(error) for error in told] == [StorageFailed]
    with pytest.raises(StorageFailed):
        log.append(block("c"), now=3)
    with pytest.raises(StorageFailed):
        log.sync()
    log.durable.when(8, told.append)
    assert [type(error) for error in told] == [StorageFailed] * 2
    log.durable.when(4, told.append)
    assert told[-1] is None, "what was durable before still is"
    assert log.durable.value == 4
    log.close()
    assert reopened(directory)[:4] == ["a"] * 4


@pytest.mark.parametrize("at", range(1, 16))
def test_whichever_sync_fails_what_was_durable_is_there_and_the_log_stops(
    directory: str, disk: FaultyDisk, at: int
) -> None:
    log = open_log(directory, disk)
    disk.sync_error_at = at
    durable = 0
    try:
        for number in range(40):
            log.append(block(f"b{number}"), now=1)
            if number % 3 == 0:
                log.sync()
                durable = log.durable.value
        pytest.fail("no sync failed")
    except StorageFailed:
        assert disk.hits == 1
    assert log.durable.failure is not None
    assert log.durable.value >= durable
    with pytest.raises(StorageFailed):
        log.append(block("after"), now=1)
    found = reopened(directory)
    assert found[:durable] == [f"b{number // 4}" for number in range(durable)]
    assert "after" not in found


def test_a_new_segments_name_is_durable_before_its_records_are_whenever_a_sync_falls_in(
    directory: str, disk: FaultyDisk
) -> None:
    log = open_log(directory, disk)
    blocks = fill_segment(log)
    done: list[str] = []

    def sync_between(operation: str, path: str) -> None:
        done.append(operation)
        if operation == "open" and path.endswith(f"{4 * blocks:020d}.log") and "sync between" not in done:
            done.append("sync between")
            thread = threading.Thread(target=log.sync)
            thread.start()
            thread.join()
            done.clear()
            done.append("sync between")

    disk.before = sync_between
    log.append(block("b"), now=2)
    assert "sync between" in done
    log.durable.when(log.end_offset, lambda _: done.append("durable"))
    log.sync()
    assert "sync_directory" in done[: done.index("durable")]


def test_a_log_that_failed_does_not_keep_the_others_from_being_closed_in_order(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    data_dir = str(tmp_path / "data")
    store = Store(data_dir, disk=disk)
    logs = [store.open_log(name, SETTINGS) for name in ("first", "failing", "last")]
    for log in logs:
        log.append(block("a"), now=1)

    def fail_one(operation: str, path: str) -> None:
        if operation == "sync" and "/failing/" in path:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    disk.before = fail_one
    with pytest.raises(StorageFailed):
        store.close()
    assert [log.durable.value for log in logs] == [4, 0, 4]
    with Store(data_dir) as again:
        assert all(names(again.open_log(name, SETTINGS)) == ["a"] * 4 for name in ("first", "last"))


@pytest.fixture(scope="module")
def spawner() -> Iterator[Spawner]:
    with Spawner() as started:
        yield started


@pytest.mark.parametrize("at", [1, 2, 3, 7, 20, 45])
def test_a_process_whose_sync_fails_stops_and_keeps_what_it_acknowledged(
    tmp_path: Path, spawner: Spawner, at: int
) -> None:
    specs = [LogSpec(name="log", shape=Shape(0), settings=LogSettings(fsync=Fsync.EVERY, segment_bytes=8 * KIB))]
    ledger = Ledger(specs)
    after_failure: list[str] = []
    failed = False

    def listen(kind: str, words: list[str]) -> None:
        nonlocal failed
        failed = failed or kind == "S"
        if failed and kind == "A":
            after_failure.append(" ".join(words))
        ledger.hear(life, kind, words, now_ms())

    life = 1
    job = Job(data_dir=str(tmp_path / "data"), seed=f"sync error {at}", life=1, logs=specs, sync_error_at=at)
    ended = spawner.run(job, listen)
    assert ended == Ended(None, STORAGE_FAILED), f"the process must stop, it ended with {ended}"
    assert failed
    assert not after_failure
    promised = ledger.acknowledged
    assert promised or at < 4
    life = 2
    check = Job(data_dir=job.data_dir, seed=job.seed, life=2, logs=specs, write=False)
    assert spawner.run(check, listen) == Ended(None, 0)
    assert ledger.checks == 2


# --- a real full disk


@contextmanager
def file_system(path: Path, size: str) -> Iterator[Path]:
    """A real file system of that size, in memory."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a small file system needs root and the mount command")
    path.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "goqueue-test", str(path)], capture_output=True, text=True
    )
    if done.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with file_system(tmp_path / "small", "256k") as path:
        yield path


def test_retention_relieves_a_really_full_disk(tmp_path: Path) -> None:
    settings = LogSettings(segment_bytes=128 * KIB, fsync=Fsync.NONE, retention_bytes=256 * KIB)
    with file_system(tmp_path / "small", "3m") as path, Store(str(path / "data")) as store:
        log = store.open_log("log", settings)
        number = 0
        with suppress(DiskFull):
            for number in range(10_000):
                log.append(block(f"b{number}", 3, 700), now=1)
        log.sync()
        (path / "ballast").write_bytes(b"")
        with suppress(OSError), (path / "ballast").open("wb", buffering=0) as ballast:
            while ballast.write(b"." * KIB):
                pass
        with pytest.raises(DiskFull):  # more than what may be left of the last page
            log.append(block("refused", 3, 3000), now=1)
        assert clean(log, 2).removed_segments
        assert log.append(block("after", 3, 700), now=1).next_offset == log.end_offset
        found = [(record.value or b"").split(b" ")[0].decode() for record in read_all(log).records]
        kept = len(found) // 3 - 1
        assert found[:-3] == [f"b{at}" for at in range(number - kept, number) for _ in range(3)]
        assert found[-3:] == ["after"] * 3


def test_a_really_full_disk_refuses_then_takes_up_where_it_was(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"." * 64 * KIB)
    directory = str(small_disk / "log")
    settings = LogSettings(segment_bytes=32 * KIB, fsync=Fsync.NONE)
    log = Log.open(directory, disk=LocalDisk(), settings=settings)
    kept: list[str] = []
    refused = 0
    for number in range(400):
        try:
            log.append(block(f"b{number}", 3, 700), now=1)
            kept += [f"b{number}"] * 3
        except DiskFull:
            refused += 1
            if refused == 5:
                assert names(log) == kept
                log.sync()
                ballast.unlink()
        if refused > 8:
            break
        if number % 10 == 0:
            log.sync()
    assert refused > 8, "the disk never ran full"
    assert names(log) == kept
    log.close()
    again = Log.open(directory, disk=LocalDisk(), settings=settings)
    assert names(again) == kept
    again.close()
