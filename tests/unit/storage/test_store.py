"""A data directory: names, one process, and many logs on few open files."""

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from goqueue import codec
from goqueue.codec import Scan
from goqueue.io.disk import Buffer, LocalDisk
from goqueue.io.waiting import wait_for
from goqueue.model.errors import DamagedState, DirectoryLocked, InvalidRequest, LogClosed, StorageFailed
from goqueue.model.names import TopicId
from goqueue.model.record import Record
from goqueue.model.settings import Fsync, LogSettings
from goqueue.storage.cleaner import CleanReport, clean
from goqueue.storage.files import OpenFiles
from goqueue.storage.log import Log
from goqueue.storage.removal import OWN_FILE
from goqueue.storage.store import SIDECAR, Store, is_sidecar, log_directory, log_name, log_names, sidecar_name
from goqueue.storage.verify import verify
from goqueue.storage.views import View
from tests.support.faulty_disk import FaultyDisk
from tests.support.patience import PATIENCE_S
from tests.unit.storage.disks import WatchedDisk, once
from tests.unit.storage.logs import T0, fill, message, offsets, open_descriptors, put, read_all, value


def test_a_log_is_kept_under_its_name() -> None:
    assert log_directory("data", "orders/7f/0") == "data/logs/orders/7f/0"


@pytest.mark.parametrize("where", ["/proc/x", "file", "file/below"])
def test_a_data_directory_that_cannot_be_made_is_named_with_what_to_do(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    path = str(tmp_path / where)
    with pytest.raises(OSError, match=r"cannot be the data directory \(.*\); choose another one") as caught:
        Store(path)
    assert (caught.value.strerror or "").startswith(f"{path} cannot be")
    assert caught.value.errno in (errno.ENOENT, errno.ENOTDIR)


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
    refused = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert refused.returncode != 0
    assert "DirectoryLocked" in refused.stderr
    store.close()
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, timeout=PATIENCE_S)


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
        wait_for(log.durable, 1, timeout_s=PATIENCE_S)
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
        first.join(PATIENCE_S)
        second.join(PATIENCE_S)
        disk.before = None
        assert set(found) == {"first", "second"}
        assert found["first"] is found["second"] is store.open_log("x")
        fill(found["first"], 5)
        assert offsets(read_all(found["second"])) == list(range(5))


class Total:
    """A view that adds up the sizes of blocks."""

    def __init__(self, total: int = 0) -> None:
        self.total = total

    def on_damage(self, first: int, next_offset: int) -> None:
        pass

    def on_append(self, block: Buffer, scan: Scan) -> None:
        self.total += scan.end

    def inherit(self, older: Sequence[View]) -> None: ...

    def anew(self) -> View:
        return Total()

    @property
    def carries(self) -> bool:
        return False

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
            assert set(log.derived(log.segments[0]).views) == {"lanes", "delays", "transactions", "total"}
            assert "total" not in store.open_log("b").derived(store.open_log("b").segments[0]).views


# --- the area of the process itself


def test_a_log_of_the_process_itself_is_kept_beside_those_of_topics(tmp_path: Path) -> None:
    with Store(str(tmp_path)) as store:
        own = store.open_log("metadata", area="meta")
        topic = store.open_log("metadata")
        assert own is not topic
        assert store.open_log("metadata", area="meta") is own
        fill(own, 5)
        fill(topic, 3)
        assert own.directory == f"{tmp_path}/meta/metadata"
        assert store.log_names() == ["metadata"]
    with Store(str(tmp_path)) as store:
        assert store.log_names() == ["metadata"]
        assert store.open_log("metadata", area="meta").end_offset == 5
        store.remove_log("metadata")
        assert store.log_names() == []
        assert offsets(read_all(store.open_log("metadata", area="meta"))) == list(range(5))


@pytest.mark.parametrize("name", ["lock", "reserve", "lock/0"])
def test_names_that_the_store_needs_itself_are_refused_in_its_own_area(tmp_path: Path, name: str) -> None:
    with Store(str(tmp_path)) as store:
        with pytest.raises(InvalidRequest, match="is taken there"):
            store.open_log(name, area="meta")
        fill(store.open_log(name), 2)
        assert store.log_names() == [name]


# --- sidecars


def test_a_sidecar_is_a_log_inside_the_directory_of_its_partition(tmp_path: Path) -> None:
    name = sidecar_name("orders/7f/0")
    assert (name, log_directory("data", name)) == ("orders/7f/0/sidecar", "data/logs/orders/7f/0/sidecar")
    with Store(str(tmp_path)) as store:
        fill(store.open_log("orders/7f/0"), 5)
        fill(store.open_log(name), 3)
        assert store.log_names() == ["orders/7f/0", name]
    with Store(str(tmp_path)) as store:
        for opened, count in (("orders/7f/0", 5), (name, 3)):
            log = store.open_log(opened)
            assert (log.end_offset, bool(log.recovery)) == (count, False)
    assert list(verify(f"{tmp_path}/logs/orders/7f/0", LocalDisk())) == []


def test_only_what_lies_beside_a_partition_is_a_sidecar() -> None:
    assert is_sidecar("orders/7f/0/sidecar")
    assert not any(map(is_sidecar, ("sidecar", "sidecar/7f/0", "orders/7f/0", "orders/7f/0/asidecar")))


def test_neither_a_partition_nor_a_file_of_a_log_is_called_like_a_sidecar() -> None:
    names = {log_name("orders", TopicId(0x7F), number).rpartition("/")[2] for number in range(1000)}
    assert all(name.isdecimal() for name in names)
    assert not OWN_FILE.fullmatch(SIDECAR)


def test_whether_there_is_a_log_is_told_without_making_one(tmp_path: Path) -> None:
    with Store(str(tmp_path)) as store:
        name = sidecar_name("orders/7f/0")
        assert not store.has_log(name)
        fill(store.open_log("orders/7f/0"), 5)
        assert not store.has_log(name)
        assert not store.has_log("orders/7f"), "a directory is no log"
        store.open_log(name)
        assert store.has_log(name)
        assert store.has_log("orders/7f/0")
        store.remove_log(name)
        assert not store.has_log(name)
        store.open_log("own", area="meta")
        assert (store.has_log("own", area="meta"), store.has_log("own")) == (True, False)
        with pytest.raises(InvalidRequest):
            store.has_log("../meta")


@pytest.mark.parametrize("left", ["log.state", "synced", "00000000000000000000.log", "log.state.tmp"])
def test_any_file_of_a_log_says_that_there_is_one(tmp_path: Path, left: str) -> None:
    with Store(str(tmp_path)) as store:
        (tmp_path / "logs" / "a").mkdir()
        (tmp_path / "logs" / "a" / "notes.txt").touch()
        assert not store.has_log("a")
        (tmp_path / "logs" / "a" / left).touch()
        assert store.has_log("a")


# --- removing


@pytest.mark.parametrize("order", [("a/7f/0/sidecar", "a/7f/0"), ("a/7f/0", "a/7f/0/sidecar")])
@pytest.mark.parametrize("opened", [True, False])
def test_removing_a_partition_and_its_sidecar_leaves_nothing(
    tmp_path: Path, order: tuple[str, str], opened: bool
) -> None:
    with Store(str(tmp_path)) as store:
        for name in order:
            fill(store.open_log(name), 5)
    with Store(str(tmp_path)) as store:
        if opened:
            for name in order:
                fill(store.open_log(name), 5)
        first, last = order
        store.remove_log(first)
        assert store.log_names() == [last]
        assert store.open_log(last).end_offset == (10 if opened else 5)
        store.remove_log(last)
        assert store.log_names() == []
    assert list((tmp_path / "logs").iterdir()) == []


def test_a_sidecar_that_never_was_keeps_no_partition_from_going(tmp_path: Path) -> None:
    with Store(str(tmp_path)) as store:
        fill(store.open_log("a/7f/0"), 5)
        store.remove_log("a/7f/0/sidecar")
        assert store.open_log("a/7f/0").end_offset == 5
        store.remove_log("a/7f/0")
        store.remove_log("a/7f/0/sidecar")
    assert list((tmp_path / "logs").iterdir()) == []


def test_a_removed_log_is_gone_and_its_name_is_free(tmp_path: Path) -> None:
    with Store(str(tmp_path)) as store:
        log = store.open_log("orders/7f/0")
        fill(log, 20)
        fill(store.open_log("orders/7f/1"), 3)
        store.remove_log("orders/7f/0")
        assert store.log_names() == ["orders/7f/1"]
        assert open_descriptors(tmp_path / "logs" / "orders" / "7f" / "0") == []
        with pytest.raises(LogClosed, match="was removed"):
            put(log, message(20))
        with pytest.raises(LogClosed, match="was removed"):
            log.read(0, max_bytes=100)
        again = store.open_log("orders/7f/0")
        assert again is not log
        assert again.end_offset == 0
        fill(again, 2)
        assert log.durable.value <= 20
    with Store(str(tmp_path)) as store:
        assert offsets(read_all(store.open_log("orders/7f/0"))) == [0, 1]


def test_a_log_that_is_not_open_is_removed_too_and_one_that_never_was_is_no_error(tmp_path: Path) -> None:
    with Store(str(tmp_path)) as store:
        fill(store.open_log("a/0"), 5)
    with Store(str(tmp_path)) as store:
        store.remove_log("a/0")
        store.remove_log("a/0")
        store.remove_log("b/0")
        assert store.log_names() == []
    assert list((tmp_path / "logs").iterdir()) == []


def test_a_name_that_could_lead_elsewhere_removes_nothing(tmp_path: Path) -> None:
    with Store(str(tmp_path)) as store, pytest.raises(InvalidRequest):
        store.remove_log("../meta")


def test_a_closed_store_removes_nothing(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    fill(store.open_log("a"), 5)
    store.close()
    with pytest.raises(LogClosed):
        store.remove_log("a")
    assert log_names(str(tmp_path), LocalDisk()) == ["a"]


def test_who_waits_for_a_removed_log_may_ask_the_store_for_another(tmp_path: Path) -> None:
    with Store(str(tmp_path)) as store:
        log = store.open_log("a", LogSettings(fsync=Fsync.NONE))
        put(log, message(0))
        found: list[Log] = []
        log.durable.when(1, lambda _: found.append(store.open_log("b")))
        store.remove_log("a")
        assert found == [store.open_log("b")]
        assert store.log_names() == ["b"]


def test_a_removal_that_the_disk_refuses_is_finished_by_the_next(tmp_path: Path) -> None:
    disk = FaultyDisk()
    failures: list[StorageFailed] = []
    with Store(str(tmp_path), disk=disk, on_failure=failures.append) as store:
        log = store.open_log("a/0")
        fill(log, 20)

        def refuse(operation: str, path: str) -> None:
            if operation == "unlink" and path.endswith(".log"):
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)

        disk.before = refuse
        with pytest.raises(OSError, match="Input/output error"):
            store.remove_log("a/0")
        disk.before = lambda *_: None
        with pytest.raises(LogClosed):
            put(log, message(20))
        assert store.log_names() == ["a/0"]
        with pytest.raises(DamagedState):
            store.open_log("a/0")
        store.remove_log("a/0")
        assert store.log_names() == []
        disk.sync_error_at = 1
        with pytest.raises(OSError, match="Input/output error"):
            store.remove_log("a/0")
    assert list((tmp_path / "logs").iterdir()) == []
    assert failures == []


def test_a_removal_on_a_full_disk_frees_its_space(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with Store(str(tmp_path), disk=disk) as store:
        fill(store.open_log("a"), 20)
        disk.free = 0
        store.remove_log("a")
        assert disk.free > 2000


def test_a_log_is_removed_while_another_thread_appends_and_waits(tmp_path: Path) -> None:
    failures: list[StorageFailed] = []
    with Store(str(tmp_path), on_failure=failures.append) as store:
        for number in range(10):
            log = store.open_log(f"a/{number}", LogSettings(segment_bytes=4096, fsync=Fsync.EVERY))
            first = threading.Event()
            ended: list[type[Exception]] = []

            def publish(log: Log = log, first: threading.Event = first, ended: list[type[Exception]] = ended) -> None:
                try:
                    while True:
                        wait_for(log.durable, put(log, message(0)).next_offset, PATIENCE_S)
                        first.set()
                except (LogClosed, TimeoutError) as error:
                    ended.append(type(error))

            writer = threading.Thread(target=publish, daemon=True)
            writer.start()
            assert first.wait(PATIENCE_S)
            store.remove_log(f"a/{number}")
            writer.join(PATIENCE_S)
            assert ended == [LogClosed]
            assert list((tmp_path / "logs").iterdir()) == []
    assert failures == []


class Rounds:
    """Steps a removal into the work of a cleaner, at one operation after the other."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.failures: list[StorageFailed] = []

    def play(self, at: int) -> CleanReport:
        disk = WatchedDisk()
        with Store(f"{self.root}/{at}", disk=disk, on_failure=self.failures.append) as store:
            log = store.open_log("a/0", LogSettings(segment_bytes=4096, compact=True))
            for number in range(40):
                put(log, Record(key=b"key %d" % (number % 7), value=value(number)))
            log.roll()
            log.sync()
            stopped = threading.Event()
            log.durable.when(1000, lambda _: stopped.set())
            remover = threading.Thread(target=store.remove_log, args=("a/0",), daemon=True)

            def begin() -> None:
                remover.start()
                assert stopped.wait(PATIENCE_S)

            disk.operations.clear()
            disk.before = once(lambda _: len(disk.operations) > at, begin)
            report = clean(log, T0 + 1000)
            self.reached = stopped.is_set()
            if self.reached:
                remover.join(PATIENCE_S)
                assert store.log_names() == []
                assert not list(Path(f"{self.root}/{at}/logs").iterdir())
        assert disk.open_count == 0
        return report


def test_a_log_is_removed_at_any_moment_of_its_cleaning(tmp_path: Path) -> None:
    rounds = Rounds(tmp_path)
    interrupted = 0
    for at in range(1000):
        interrupted += rounds.play(at).interrupted
        if not rounds.reached:
            break
    assert at > 20
    assert interrupted > 10
    assert rounds.failures == []


def test_a_log_opens_while_the_last_one_beside_it_is_removed(tmp_path: Path) -> None:
    """At each operation of the removal another thread opens a log under the same parents."""
    for at in range(100):
        disk = WatchedDisk()
        with Store(f"{tmp_path}/{at}", disk=disk) as store:
            fill(store.open_log("a/b/0"), 5)
            opened: list[Log] = []
            asked = threading.Event()

            def opens(store: Store = store, opened: list[Log] = opened, asked: threading.Event = asked) -> None:
                asked.set()
                opened.append(store.open_log("a/b/1"))

            opener = threading.Thread(target=opens, daemon=True)

            def begin(opener: threading.Thread = opener, asked: threading.Event = asked) -> None:
                opener.start()
                assert asked.wait(PATIENCE_S)

            disk.operations.clear()
            remover = threading.current_thread()
            disk.before = once(
                lambda _, at=at, disk=disk, remover=remover: (  # type: ignore[misc]
                    threading.current_thread() is remover and len(disk.operations) > at
                ),
                begin,
            )
            store.remove_log("a/b/0")
            disk.before = None
            if not asked.is_set():
                break
            opener.join(PATIENCE_S)
            fill(opened[0], 3)
            assert store.log_names() == ["a/b/1"]
        with Store(f"{tmp_path}/{at}") as store:
            assert offsets(read_all(store.open_log("a/b/1"))) == [0, 1, 2]
    assert at > 5


def test_two_threads_may_remove_and_open_the_same_names_for_long(tmp_path: Path) -> None:
    errors: list[BaseException] = []
    with Store(str(tmp_path), on_failure=errors.append) as store:

        def play(own: int) -> None:
            try:
                for number in range(60):
                    name = f"a/b/{(number + own) % 3}"
                    if (number + own) % 2:
                        store.remove_log(name)
                        continue
                    try:
                        put(store.open_log(name, LogSettings(fsync=Fsync.EVERY)), message(number))
                    except LogClosed:
                        continue
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=play, args=(own,), daemon=True) for own in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        for number in range(3):
            store.remove_log(f"a/b/{number}")
    assert errors == []
    assert list((tmp_path / "logs").iterdir()) == []
