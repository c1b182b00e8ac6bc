"""A data directory on a full disk: small state goes on with the space that is kept back, and the rest comes back."""

from contextlib import suppress
from pathlib import Path

import pytest

from goqueue import codec
from goqueue.model import limits
from goqueue.model.errors import DiskFull
from goqueue.model.limits import KIB
from goqueue.model.record import Record
from goqueue.model.settings import Fsync, LogSettings
from goqueue.storage.log import Log
from goqueue.storage.store import Store, sidecar_name
from tests.integration.test_disk_faults import file_system
from tests.support.faulty_disk import FaultyDisk
from tests.unit.storage.logs import T0, fill, message, put, read_all, value

ORDERS = "orders/7f/0"
SETTINGS = LogSettings(segment_bytes=64 * KIB, fsync=Fsync.NONE)


def commit(store: Store, log: Log, text: str) -> None:
    store.spending(lambda: log.append(codec.encode([Record(value=text.encode())]), now=T0))


def committed(log: Log) -> list[str]:
    return [(record.value or b"").decode() for record in read_all(log)]


def test_commits_go_on_when_a_partition_finds_no_space(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with Store(str(tmp_path), disk=disk) as store:
        data = store.open_log(ORDERS, SETTINGS)
        fill(data, 10)
        commits = store.open_log(sidecar_name(ORDERS), SETTINGS)
        disk.free = 0
        with pytest.raises(DiskFull):
            put(data, message(10))
        assert not store.reserve_spent, "who publishes does not get it"
        commit(store, commits, "a")
        assert store.reserve_spent
        commit(store, commits, "b")
        assert not store.refill_reserve()
        assert disk.free < limits.DISK_RESERVE_BYTES
        disk.free += 1000
        assert store.refill_reserve()
        assert not store.reserve_spent
        put(data, message(10))
    disk.free = None
    with Store(str(tmp_path), disk=disk) as store:
        assert not store.reserve_spent
        assert len(read_all(store.open_log(ORDERS, SETTINGS))) == 11
        assert committed(store.open_log(sidecar_name(ORDERS), SETTINGS)) == ["a", "b"]


def test_a_sidecar_can_be_made_on_a_full_disk(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with Store(str(tmp_path), disk=disk) as store:
        fill(store.open_log(ORDERS, SETTINGS), 10)
        disk.free = 0
        commits = store.spending(lambda: store.open_log(sidecar_name(ORDERS), SETTINGS))
        commit(store, commits, "a")
        commits.sync()
        assert committed(commits) == ["a"]


def test_a_first_start_on_a_disk_too_small_for_the_reserve_spends_nothing(tmp_path: Path) -> None:
    disk = FaultyDisk()
    disk.free = 100_000
    for _ in range(2):
        with Store(str(tmp_path), disk=disk) as store:
            assert not store.reserve_spent
            log = store.open_log("a", SETTINGS)
            commit(store, log, "a")
            with pytest.raises(DiskFull):
                commit(store, log, "b" * 100_000)
            assert not store.reserve_spent
            assert not store.refill_reserve()
    disk.free = None
    with Store(str(tmp_path), disk=disk) as store:
        assert store.refill_reserve()


def test_removing_a_log_brings_a_spent_reserve_back(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with Store(str(tmp_path), disk=disk) as store:
        fill(store.open_log(ORDERS, SETTINGS), 100)
        commits = store.open_log("other/7f/0/sidecar", SETTINGS)
        disk.free = 0
        commit(store, commits, "a")
        assert store.reserve_spent
        store.remove_log(ORDERS)
        assert not store.reserve_spent


def test_commits_go_on_on_a_really_full_disk_and_publishing_returns_with_the_space(
    tmp_path: Path,
) -> None:
    with file_system(tmp_path / "small", "4m") as path, Store(str(path / "data")) as store:
        data = store.open_log(ORDERS, SETTINGS)
        commits = store.open_log(sidecar_name(ORDERS), SETTINGS)
        kept = 0
        with suppress(DiskFull):
            while True:
                put(data, message(kept, size=700))
                kept += 1
        ballast = path / "ballast"
        with suppress(OSError), ballast.open("wb", buffering=0) as file:
            while file.write(b"." * KIB):
                pass
        assert not store.reserve_spent
        done: list[str] = []
        with suppress(DiskFull):
            for number in range(10_000):
                commit(store, commits, f"{number} ".ljust(200, "."))
                done.append(f"{number} ".ljust(200, "."))
        assert len(done) * 200 > limits.DISK_RESERVE_BYTES // 4, "the reserve was hardly used"
        assert store.reserve_spent
        assert not store.refill_reserve()
        commits.sync()
        assert committed(commits) == done
        data.truncate_prefix(kept - 100)
        assert store.refill_reserve()
        assert not store.reserve_spent
        put(data, message(kept, size=700))
        assert read_all(data)[-1].value == value(kept, 700)
        commit(store, commits, "after")
        assert not store.reserve_spent
