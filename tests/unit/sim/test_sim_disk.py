"""The simulated disk: every rule of what a crash leaves, and every fault, by itself."""

import errno
from collections.abc import Callable
from random import Random

import pytest

from goqueue.model.errors import DiskFull
from sim.disk import SECTOR_BYTES, Crashed, SimDisk, SimFile
from sim.trace import Trace

SEEDS = range(200)


def make(seed: int = 0) -> SimDisk:
    disk = SimDisk(Random(seed))
    disk.make_directory("/d")
    return disk


def durable_file(disk: SimDisk, data: bytes, path: str = "/d/f") -> SimFile:
    file = disk.open(path, create=True)
    file.write(0, data)
    file.sync()
    disk.sync_directory("/d")
    return file


def test_read_back_is_what_was_written_and_short_only_at_the_end() -> None:
    disk = make()
    file = disk.open("/d/f", create=True)
    assert file.write(3, b"abc") == 3
    assert file.read(0, 100) == b"\0\0\0abc"
    assert file.read(4, 1) == b"b"
    assert file.read(6, 5) == b""
    file.truncate(4)
    assert (file.size(), file.read(0, 9)) == (4, b"\0\0\0a")


def test_open_without_create_needs_the_file_and_its_directory() -> None:
    disk = make()
    with pytest.raises(FileNotFoundError):
        disk.open("/d/f")
    with pytest.raises(FileNotFoundError):
        disk.open("/e/f", create=True)
    assert not disk.exists("/d/f")
    assert disk.exists("/d")


def test_list_has_files_and_directories_sorted_and_nothing_for_no_directory() -> None:
    disk = make()
    disk.make_directory("/d/z/y")
    disk.open("/d/m", create=True)
    disk.open("/d/a", create=True)
    assert disk.list("/d") == ["a", "m", "z"]
    assert disk.list("/nowhere") == []


def test_kill_keeps_unsynced_bytes_but_does_not_make_them_durable() -> None:
    lost = 0
    for seed in SEEDS:
        disk = make()
        durable_file(disk, b"old").write(0, b"new")
        disk.crash(Random(seed), "kill")
        assert disk.content("/d/f") == b"new"
        assert disk.unsynced("/d/f") == 1
        disk.crash(Random(seed), "power")
        lost += disk.content("/d/f") == b"old"
    assert 0 < lost < len(SEEDS)


def test_power_cut_keeps_what_was_synced() -> None:
    for seed in SEEDS:
        disk = make()
        durable_file(disk, b"x" * 2000)
        disk.crash(Random(seed), "power")
        assert disk.content("/d/f") == b"x" * 2000


def test_power_cut_tears_a_write_at_sectors_only() -> None:
    torn = 0
    for seed in SEEDS:
        disk = make()
        durable_file(disk, b"o" * 4 * SECTOR_BYTES).write(0, b"n" * 4 * SECTOR_BYTES)
        disk.crash(Random(seed), "power")
        left = disk.content("/d/f")
        sectors = {left[at : at + SECTOR_BYTES] for at in range(0, len(left), SECTOR_BYTES)}
        assert sectors <= {b"o" * SECTOR_BYTES, b"n" * SECTOR_BYTES}
        torn += len(sectors) == 2
    assert torn


def test_power_cut_may_keep_a_later_write_and_lose_an_earlier_one() -> None:
    seen = set()
    for seed in SEEDS:
        disk = make()
        file = durable_file(disk, bytes(2 * SECTOR_BYTES))
        file.write(0, b"a" * SECTOR_BYTES)
        file.write(SECTOR_BYTES, b"b" * SECTOR_BYTES)
        disk.crash(Random(seed), "power")
        left = disk.content("/d/f")
        seen.add((left[0], left[SECTOR_BYTES]))
    assert seen == {(0, 0), (97, 0), (0, 98), (97, 98)}


def test_a_sector_shows_one_of_its_versions_never_a_later_write_without_an_earlier() -> None:
    seen = set()
    for seed in SEEDS:
        disk = make()
        file = durable_file(disk, b"....")
        file.write(0, b"ab")
        file.write(2, b"cd")
        disk.crash(Random(seed), "power")
        seen.add(disk.content("/d/f"))
    assert seen == {b"....", b"ab..", b"abcd"}


def test_power_cut_may_leave_the_size_without_the_data() -> None:
    seen = set()
    for seed in SEEDS:
        disk = make()
        durable_file(disk, b"").write(0, b"a" * SECTOR_BYTES)
        disk.crash(Random(seed), "power")
        seen.add(disk.content("/d/f"))
    assert seen == {b"", bytes(SECTOR_BYTES), b"a" * SECTOR_BYTES}


def test_truncate_waits_for_its_sync() -> None:
    seen = set()
    for seed in SEEDS:
        disk = make()
        file = durable_file(disk, b"a" * 2000)
        file.truncate(10)
        disk.crash(Random(seed), "power")
        seen.add(disk.content("/d/f"))
    assert seen == {b"a" * 2000, b"a" * 10}
    for seed in SEEDS:
        disk = make()
        file = durable_file(disk, b"a" * 2000)
        file.truncate(10)
        file.sync()
        disk.crash(Random(seed), "power")
        assert disk.content("/d/f") == b"a" * 10


def test_bytes_cut_by_a_truncate_that_survived_do_not_come_back_under_later_writes() -> None:
    for seed in SEEDS:
        disk = make()
        file = durable_file(disk, b"old" * 600)
        file.truncate(100)
        file.write(100, b"new" * 500)
        disk.crash(Random(seed), "power")
        left = disk.content("/d/f")
        assert len(left) in (1800, 100, 1600)
        if len(left) != 1800:
            assert b"old" not in left[102:]


def test_names_survive_as_a_prefix_of_their_order() -> None:
    seen = set()
    for seed in SEEDS:
        disk = make()
        durable_file(disk, b"", "/d/a")
        disk.open("/d/b", create=True)
        disk.unlink("/d/a")
        disk.rename("/d/b", "/d/c")
        disk.crash(Random(seed), "power")
        seen.add(tuple(disk.list("/d")))
    assert seen == {("a",), ("a", "b"), ("b",), ("c",)}


def test_a_file_may_lose_its_name_although_its_data_was_synced() -> None:
    seen = set()
    for seed in SEEDS:
        disk = make()
        file = disk.open("/d/f", create=True)
        file.write(0, b"data")
        file.sync()
        disk.crash(Random(seed), "power")
        seen.add(disk.content("/d/f") if disk.exists("/d/f") else None)
    assert seen == {None, b"data"}


def test_a_rename_that_survives_may_carry_unsynced_data_that_did_not() -> None:
    seen = set()
    for seed in SEEDS:
        disk = make()
        durable_file(disk, b"old")
        fresh = disk.open("/d/f.new", create=True)
        fresh.write(0, b"new")
        disk.rename("/d/f.new", "/d/f")
        disk.crash(Random(seed), "power")
        seen.add(disk.content("/d/f"))
    assert {b"old", b"new", b""} <= seen


def test_sync_directory_makes_names_durable() -> None:
    for seed in SEEDS:
        disk = make()
        durable_file(disk, b"data")
        disk.rename("/d/f", "/d/g")
        disk.sync_directory("/d")
        disk.crash(Random(seed), "power")
        assert disk.list("/d") == ["g"]


def test_open_files_follow_the_inode_through_rename_and_unlink() -> None:
    disk = make()
    file = durable_file(disk, b"one")
    disk.rename("/d/f", "/d/g")
    file.write(0, b"two")
    assert disk.content("/d/g") == b"two"
    disk.unlink("/d/g")
    assert file.read(0, 3) == b"two"
    assert disk.open("/d/g", create=True).size() == 0


def test_files_of_a_dead_process_do_nothing() -> None:
    disk = make()
    file = durable_file(disk, b"one")
    disk.crash(Random(0), "kill")
    with pytest.raises(Crashed):
        file.write(0, b"two")
    assert disk.content("/d/f") == b"one"


def test_crash_inside_a_write_leaves_a_part_of_it_and_a_dead_disk() -> None:
    lengths = set()
    for seed in SEEDS:
        disk = make(seed)
        file = disk.open("/d/f", create=True)
        disk.crash_at(2)
        file.write(0, b"1")
        with pytest.raises(Crashed):
            file.write(1, b"234567")
        with pytest.raises(Crashed):
            file.size()
        with pytest.raises(Crashed):
            disk.list("/d")
        disk.crash(Random(seed), "kill")
        assert b"1234567".startswith(disk.content("/d/f"))
        lengths.add(len(disk.content("/d/f")))
    assert lengths == set(range(1, 8))


CHANGES: dict[str, Callable[[SimDisk], object]] = {
    "create": lambda disk: disk.open("/d/g", create=True),
    "rename": lambda disk: disk.rename("/d/f", "/d/g"),
    "unlink": lambda disk: disk.unlink("/d/f"),
    "truncate": lambda disk: disk.open("/d/f").truncate(1),
    "mkdir": lambda disk: disk.make_directory("/d/e"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_crash_inside_a_change_that_cannot_be_half_done_does_it_or_not(change: str) -> None:
    seen = set()
    for seed in SEEDS:
        disk = make(seed)
        durable_file(disk, b"data")
        disk.crash_at(1)
        with pytest.raises(Crashed):
            CHANGES[change](disk)
        disk.crash(Random(seed), "kill")
        seen.add((tuple(disk.list("/d")), disk.content("/d/f") if disk.exists("/d/f") else b""))
    assert len(seen) == 2


def test_full_disk_writes_what_fits_then_refuses_and_takes_more_once_there_is_space() -> None:
    disk = make()
    file = durable_file(disk, b"12345678")
    disk.capacity = 10
    assert file.write(8, b"abcd") == 2
    with pytest.raises(DiskFull):
        file.write(10, b"cd")
    with pytest.raises(DiskFull):
        disk.open("/d/g", create=True)
    assert file.write(0, b"over") == 4
    disk.capacity = 12
    assert file.write(10, b"cd") == 2
    assert file.read(0, 20) == b"over5678abcd"


def test_space_comes_back_with_truncate_unlink_and_replacing_rename() -> None:
    disk = make()
    file = durable_file(disk, b"12345678")
    file.truncate(3)
    assert disk.used == 3
    other = disk.open("/d/g", create=True)
    other.write(0, b"xx")
    disk.rename("/d/g", "/d/f")
    assert disk.used == 2
    disk.unlink("/d/f")
    assert disk.used == 0
    other.write(0, b"still usable")
    assert disk.used == 0


def test_short_writes_say_how_much_they_wrote() -> None:
    disk = make()
    file = disk.open("/d/f", create=True)
    disk.short_writes = 1.0
    written = file.write(0, b"abcdef")
    assert 0 < written < 6
    assert file.read(0, 9) == b"abcdef"[:written]


def test_failed_sync_loses_the_bytes_even_if_the_next_one_succeeds() -> None:
    disk = make()
    file = durable_file(disk, b"old")
    file.write(0, b"new")
    disk.fail_sync_at(1)
    with pytest.raises(OSError) as caught:
        file.sync()
    assert caught.value.errno == errno.EIO
    file.sync()
    assert file.read(0, 3) == b"new"
    disk.crash(Random(0), "power")
    assert disk.content("/d/f") == b"old"


def test_flipped_bits_are_on_the_medium() -> None:
    disk = make()
    file = durable_file(disk, b"abc")
    disk.flip("/d/f", 1, 0x01)
    assert file.read(0, 3) == b"acc"
    disk.crash(Random(0), "power")
    assert disk.content("/d/f") == b"acc"


def test_same_seed_same_crash() -> None:
    def left(seed: int) -> tuple[bytes, list[str], str]:
        trace = Trace()
        disk = SimDisk(Random(seed), trace=trace)
        disk.make_directory("/d")
        file = durable_file(disk, b"a" * 3000)
        file.write(100, b"b" * 3000)
        disk.open("/d/g", create=True)
        disk.crash(Random(seed), "power")
        return disk.content("/d/f"), disk.list("/d"), trace.digest()

    assert [left(seed) for seed in range(20)] == [left(seed) for seed in range(20)]
    assert len({left(seed)[0] for seed in range(20)}) > 5


def test_operations_are_counted() -> None:
    disk = make()
    durable_file(disk, b"a").read(0, 1)
    assert disk.counts == {"mkdir": 1, "create": 1, "write": 1, "sync": 1, "sync_directory": 1}
    assert (disk.changes, disk.reads) == (5, 1)


def test_another_task_may_take_its_turn_before_any_change() -> None:
    disk = make()
    kinds: list[str] = []
    disk.between = kinds.append
    durable_file(disk, b"a")
    assert kinds == ["create", "write", "sync", "sync_directory"]


def test_a_sync_does_not_cover_what_is_written_while_it_is_under_way() -> None:
    seen = set()
    for seed in SEEDS:
        disk = make()
        file = durable_file(disk, b"....")
        file.write(0, b"ab")

        def meanwhile(kind: str, disk: SimDisk = disk, file: SimFile = file) -> None:
            disk.between = None
            file.write(2, b"cd")

        disk.between = meanwhile
        file.sync()
        assert disk.unsynced("/d/f") == 1
        disk.crash(Random(seed), "power")
        seen.add(disk.content("/d/f"))
    assert seen == {b"ab..", b"abcd"}
