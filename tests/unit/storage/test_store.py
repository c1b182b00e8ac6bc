"""A data directory: names, one process, and many logs on few open files."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from goqueue import codec
from goqueue.codec import Scan
from goqueue.io.disk import Buffer, LocalDisk
from goqueue.io.waiting import wait_for
from goqueue.model.errors import DirectoryLocked, InvalidRequest, LogClosed
from goqueue.model.settings import Fsync, LogSettings
from goqueue.storage.files import OpenFiles
from goqueue.storage.log import Log
from goqueue.storage.store import Store, log_directory, log_names
from tests.unit.storage.disks import WatchedDisk, once
from tests.unit.storage.logs import T0, fill, message, offsets, open_descriptors, put, read_all, value


def test_a_log_is_kept_under_its_name() -> None:
    assert log_directory("data", "orders/7f/0") == "data/logs/orders/7f/0"


@pytest.mark.parametrize("name", ["a", "A-b_c.d", "orders/0", "a/b/c/d", "x" * 255])
def test_good_names_are_taken(name: str) -> None:
    assert log_directory("data", name) == f"data/logs/{name}"


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/..", "../a", "/a", "a/", "a//b", "a b", "é", "a\0", "a\n", "x" * 256, "a/./b"]
)
def test_names_that_could_lead_elsewhere_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="is no name for a log"):
        log_directory("data", name)


def test_logs_are_listed_by_name(tmp_path: Path) -> None:
    wanted = ["a", "b.c", "orders/7f/0", "orders/7f/1", "z-1"]
    with Store(str(tmp_path)) as store:
        assert store.log_names() == []
        for name in reversed(wanted):
            store.open_log(name)
        assert store.log_names() == wanted
    assert log_names(str(tmp_path), LocalDisk()) == wanted


def test_a_log_below_another_one_is_listed_too(tmp_path: Path) -> None:
    with Store(str(tmp_path)) as store:
        fill(store.open_log("orders"), 5)
        fill(store.open_log("orders/0"), 3)
        assert store.log_names() == ["orders", "orders/0"]
    with Store(str(tmp_path)) as store:
        assert (store.open_log("orders").end_offset, store.open_log("orders/0").end_offset) == (5, 3)


def test_a_name_gives_the_same_log_while_it_is_open(tmp_path: Path) -> None:
    with Store(str(tmp_path)) as store:
        log = store.open_log("a", LogSettings(segment_bytes=4096))
        assert store.open_log("a") is log
        assert store.open_log("b") is not log


def test_logs_are_synced_and_closed_with_the_store(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    logs = [store.open_log(name) for name in ("a", "b")]
    for log in logs:
        fill(log, 10)
    store.close()
    assert [log.durable.value for log in logs] == [10, 10]
    with pytest.raises(LogClosed):
        put(logs[0], message(10))
    assert open_descriptors(tmp_path) == []
    with Store(str(tmp_path)) as again:
        assert offsets(read_all(again.open_log("a"))) == list(range(10))
        assert not again.open_log("a").recovery


def test_a_second_store_on_the_same_directory_is_refused_until_the_first_closes(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    with pytest.raises(DirectoryLocked, match=f"{tmp_path} is in use by process {os.getpid()};"):
        Store(str(tmp_path))
    script = "import sys; from goqueue.storage.store import Store; Store(sys.argv[1]).close()"
    refused = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert refused.returncode != 0
    assert "DirectoryLocked" in refused.stderr
    store.close()
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, timeout=60)


def test_a_refused_store_leaves_no_thread_behind(tmp_path: Path) -> None:
    with Store(str(tmp_path)):
        before = threading.active_count()
        with pytest.raises(DirectoryLocked):
            Store(str(tmp_path))
        assert threading.active_count() == before


def test_the_store_makes_appends_durable_by_itself(tmp_path: Path) -> None:
    with Store(str(tmp_path)) as store:
        log = store.open_log("a", LogSettings(fsync=Fsync.EVERY))
        put(log, message(0))
        wait_for(log.durable, 1, timeout_s=60)
        assert log.durable.value == 1


def test_hundreds_of_logs_share_a_few_open_files(tmp_path: Path) -> None:
    count, limit = 300, 20
    most = 0
    with Store(str(tmp_path), disk=WatchedDisk()) as store:
        store.files = OpenFiles(store.disk, limit=limit)
        settings = LogSettings(segment_bytes=4096, fsync=Fsync.NONE)
        logs = [store.open_log(f"topic/{number}", settings) for number in range(count)]
        own = 1  # the lock
        for round_number in range(3):
            for number, log in enumerate(logs):
                block = codec.encode([message(1000 * number + round_number, size=30)] * 2)
                assert log.append(block, now=T0).first_offset == 2 * round_number
                if number % 10 == 0:
                    most = max(most, len(open_descriptors(tmp_path)))
        for number, log in enumerate(logs):
            assert [record.value for record in read_all(log)] == [
                value(1000 * number + round_number, 30) for round_number in range(3) for _ in range(2)
            ]
            if number % 10 == 0:
                most = max(most, len(open_descriptors(tmp_path)))
        assert limit // 2 < most <= limit + own
    assert open_descriptors(tmp_path) == []


def test_a_closed_store_opens_nothing(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    log = store.open_log("a")
    fill(log, 5)
    store.close()
    for name in ("a", "b"):
        with pytest.raises(LogClosed):
            store.open_log(name)
    with pytest.raises(LogClosed):
        log.read(0, max_bytes=100)
    assert open_descriptors(tmp_path) == []
    assert log_names(str(tmp_path), LocalDisk()) == ["a"]


def test_two_threads_that_open_one_name_get_the_same_log(tmp_path: Path) -> None:
    """The second one asks while the first is in the middle of opening."""
    disk = WatchedDisk()
    with Store(str(tmp_path), disk=disk) as store:
        found: dict[str, Log] = {}

        def opens() -> None:
            found[threading.current_thread().name] = store.open_log("x")

        first = threading.Thread(target=opens, name="first", daemon=True)
        second = threading.Thread(target=opens, name="second", daemon=True)

        def overtake() -> None:
            second.start()
            second.join(0.5)  # it may have to wait for the first

        disk.before = once(
            lambda done: done.path.endswith("/log.state.tmp") and threading.current_thread() is first, overtake
        )
        first.start()
        first.join(30)
        second.join(30)
        disk.before = None
        assert set(found) == {"first", "second"}
        assert found["first"] is found["second"] is store.open_log("x")
        fill(found["first"], 5)
        assert offsets(read_all(found["second"])) == list(range(5))


class Total:
    """A view that adds up the sizes of blocks."""

    def __init__(self, total: int = 0) -> None:
        self.total = total

    def on_append(self, block: Buffer, scan: Scan) -> None:
        self.total += scan.end

    def to_bytes(self) -> bytes:
        return self.total.to_bytes(8, "big")

    @property
    def size(self) -> int:
        return 8


class Totals:
    name = "total"

    def empty(self, base: int) -> Total:
        return Total()

    def load(self, base: int, data: bytes) -> Total:
        return Total(int.from_bytes(data, "big"))


def test_a_store_gives_its_logs_the_views_that_are_asked_for(tmp_path: Path) -> None:
    settings = LogSettings(segment_bytes=4096)
    for _ in range(2):
        with Store(str(tmp_path)) as store:
            log = store.open_log("a", settings, views=[Totals()])
            fill(log, 60)
            log.sync()
            totals = [log.derived(segment).views["total"] for segment in log.segments]
            assert [view.total for view in totals if isinstance(view, Total)] == [
                segment.size for segment in log.segments
            ]
            assert set(log.derived(log.segments[0]).views) == {"lanes", "delays", "total"}
            assert "total" not in store.open_log("b").derived(store.open_log("b").segments[0]).views
