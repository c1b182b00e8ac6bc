"""Removing a log's files: all of its own, nothing else, in an order that a crash may interrupt anywhere."""

from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from goqueue.io.disk import LocalDisk
from goqueue.model.errors import DamagedState
from goqueue.storage.log import Log
from goqueue.storage.removal import remove
from sim.disk import CRASH_KINDS, Crashed, CrashKind, SimDisk
from tests.unit.storage.disks import CHANGES, Operation, Stopped, WatchedDisk, stop_at
from tests.unit.storage.logs import SMALL, fill, fill_segments, message, open_log, put, read_all


def written(directory: Path, disk: WatchedDisk | None = None) -> None:
    """A log with two sealed segments and an active one, and whatever else a log may have beside them."""
    log = open_log(directory, disk=disk)
    fill_segments(log, 2)
    fill(log, 5)
    log.close()
    for name in ("00000000000000000020-77.cut", "00000000000000000010.7.clean", "log.state.tmp"):
        (directory / name).write_bytes(b"left over")


def removed(root: Path, name: str, disk: WatchedDisk | None = None) -> None:
    remove(disk or WatchedDisk(), f"{root}/{name}", root=str(root))


def test_all_files_of_a_log_go_with_its_directory_and_the_empty_parents(tmp_path: Path) -> None:
    written(tmp_path / "orders" / "7f" / "0")
    removed(tmp_path, "orders/7f/0")
    assert list(tmp_path.iterdir()) == []


def test_the_directory_that_stays_is_synced_last(tmp_path: Path) -> None:
    written(tmp_path / "orders" / "7f" / "0")
    (tmp_path / "orders" / "other").mkdir()
    disk = WatchedDisk()
    removed(tmp_path, "orders/7f/0", disk)
    assert disk.operations[-1] == Operation("sync_directory", f"{tmp_path}/orders")
    assert len(disk.of_kind("sync_directory")) == 1


def test_parents_with_something_else_in_them_stay(tmp_path: Path) -> None:
    for name in ("orders/0", "orders/1"):
        written(tmp_path / name)
    removed(tmp_path, "orders/0")
    assert [path.name for path in (tmp_path / "orders").iterdir()] == ["1"]
    assert len(read_all(open_log(tmp_path / "orders" / "1"))) == 25


def test_a_log_inside_and_a_log_around_stay(tmp_path: Path) -> None:
    for name in ("a", "a/b", "a/b/c"):
        written(tmp_path / name)
    removed(tmp_path, "a/b")
    for name in ("a", "a/b/c"):
        assert len(read_all(open_log(tmp_path / name))) == 25
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["c"]


def test_files_that_are_not_a_logs_own_stay_where_they_are(tmp_path: Path) -> None:
    written(tmp_path / "a" / "b")
    (tmp_path / "a" / "b" / "notes.txt").write_text("mine")
    disk = WatchedDisk()
    removed(tmp_path, "a/b", disk)
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["notes.txt"]
    assert disk.operations[-1] == Operation("sync_directory", f"{tmp_path}/a/b")


def test_removing_it_again_changes_nothing(tmp_path: Path) -> None:
    written(tmp_path / "a" / "0")
    for _ in range(3):
        removed(tmp_path, "a/0")
    removed(tmp_path, "never/was/there")
    assert list(tmp_path.iterdir()) == []


def test_parents_that_a_crash_left_empty_are_removed_the_next_time(tmp_path: Path) -> None:
    (tmp_path / "orders" / "7f").mkdir(parents=True)
    removed(tmp_path, "orders/7f/0")
    assert list(tmp_path.iterdir()) == []


def test_the_state_goes_first_and_the_segments_go_last(tmp_path: Path) -> None:
    written(tmp_path / "0")
    disk = WatchedDisk()
    removed(tmp_path, "0", disk)
    names = [done.path.rpartition("/")[2] for done in disk.of_kind("unlink")]
    assert names[0] == "log.state"
    assert [name.endswith(".log") for name in names] == sorted(name.endswith(".log") for name in names)


def test_a_removal_stopped_anywhere_leaves_no_log_to_open_and_is_done_by_the_next(tmp_path: Path) -> None:
    disk = WatchedDisk()
    written(tmp_path / "whole" / "0")
    removed(tmp_path / "whole", "0", disk)
    changes = sum(1 for done in disk.operations if done.kind in CHANGES)
    for stop in range(1, changes):
        root = tmp_path / str(stop)
        written(root / "0")
        with pytest.raises(Stopped):
            removed(root, "0", WatchedDisk(stop_at(stop)))
        if list((root / "0").glob("*.log")):
            with pytest.raises(DamagedState, match="although there are segments"):
                open_log(root / "0")
        removed(root, "0")
        assert list(root.iterdir()) == []


def test_a_power_cut_between_a_sidecar_and_its_partition_leaves_what_the_next_removal_finishes() -> None:
    """Sidecar first, then the partition, again from the beginning after each crash."""
    for seed in range(10):
        for stop in range(1, 40):
            disk = SimDisk(Random(seed))
            for directory in ("/logs/orders/0", "/logs/orders/0/sidecar"):
                log = Log.open(directory, disk=disk, settings=SMALL)
                fill_segments(log, 1)
                log.close()
            disk.crash_at(stop)
            with suppress(Crashed):
                remove(disk, "/logs/orders/0/sidecar", root="/logs")
                remove(disk, "/logs/orders/0", root="/logs")
            disk.crash(Random(1000 * seed + stop), "power")
            remove(disk, "/logs/orders/0/sidecar", root="/logs")
            remove(disk, "/logs/orders/0", root="/logs")
            disk.crash(Random(seed), "power")
            assert disk.list("/logs") == []


@pytest.mark.parametrize("kind", CRASH_KINDS)
def test_after_a_crash_there_is_the_whole_log_or_none_and_a_removal_that_returned_lasts(kind: CrashKind) -> None:
    """At every change of the removal, on a disk that forgets what was not synced."""
    outcomes = set()
    for seed in range(12):
        for stop in range(1, 30):
            disk = SimDisk(Random(seed))
            log = Log.open("/logs/orders/0", disk=disk, settings=SMALL)
            fill_segments(log, 2)
            put(log, message(20))
            log.close()
            disk.crash_at(stop)
            try:
                remove(disk, "/logs/orders/0", root="/logs")
                disk.crash_at(None)
                finished = True
            except Crashed:
                finished = False
            disk.crash(Random(1000 * seed + stop), kind)
            if finished:
                assert disk.list("/logs") == []
            outcomes.add(what_opens(disk))
            remove(disk, "/logs/orders/0", root="/logs")
            disk.crash(Random(seed), "power")
            assert disk.list("/logs") == []
            assert what_opens(disk) == "nothing"
    assert outcomes == {"whole", "refused", "nothing"}


def what_opens(disk: SimDisk) -> str:
    """Whether the log is all there, not there at all, or in between, which nobody may take for a log."""
    before = {name: disk.content(f"/logs/orders/0/{name}") for name in disk.list("/logs/orders/0")}
    try:
        log = Log.open("/logs/orders/0", disk=disk, settings=SMALL)
    except DamagedState:
        assert {name: disk.content(f"/logs/orders/0/{name}") for name in disk.list("/logs/orders/0")} == before
        return "refused"
    assert not log.recovery
    assert log.end_offset in (0, 21)
    assert log.end_offset == len(read_all(log))
    assert log.end_offset or not [name for name in before if name.endswith((".index", ".timeindex", ".view"))]
    return "whole" if log.end_offset else "nothing"


def test_a_full_disk_does_not_keep_a_log_from_going() -> None:
    disk = SimDisk(Random(1))
    log = Log.open("/logs/0", disk=disk, settings=SMALL)
    fill_segments(log, 2)
    log.close()
    disk.capacity = disk.used
    remove(disk, "/logs/0", root="/logs")
    assert disk.list("/logs") == []
    assert disk.used == 0


def test_the_real_disk_removes_what_the_watched_one_does(tmp_path: Path) -> None:
    written(tmp_path / "logs" / "a" / "0")
    remove(LocalDisk(), f"{tmp_path}/logs/a/0", root=f"{tmp_path}/logs")
    assert list((tmp_path / "logs").iterdir()) == []
