"""The catalogue: the state file decides, files and the published segments follow."""

from pathlib import Path

import msgspec

from goqueue.storage import state as hard_state
from goqueue.storage.log import Log
from goqueue.storage.state import SealedSegment, Trait
from tests.unit.storage.disks import WatchedDisk
from tests.unit.storage.logs import fill, fill_segments, message, offsets, open_log, put, read_all, segment_path


def sealed_log(directory: Path, disk: WatchedDisk | None = None) -> Log:
    """Four sealed segments of ten, and three more records."""
    log = open_log(directory, disk=disk)
    fill_segments(log, 4)
    fill(log, 3)
    return log


def ranges(log: Log) -> list[tuple[int, int]]:
    return [(segment.base, segment.end) for segment in log.segments]


def saved(directory: Path) -> tuple[SealedSegment, ...]:
    state = hard_state.load(WatchedDisk(), str(directory))
    assert state is not None
    return state.sealed


def test_removed_segments_in_front_move_the_start(tmp_path: Path) -> None:
    log = sealed_log(tmp_path)
    assert log.remove(log.sealed[:2], truncations=log.truncations)
    assert (log.start_offset, ranges(log)) == (20, [(20, 30), (30, 40), (40, 43)])
    assert not segment_path(tmp_path, 10).exists()


def test_the_range_of_segments_removed_in_the_middle_goes_to_the_one_before(tmp_path: Path) -> None:
    log = sealed_log(tmp_path)
    assert log.remove(log.sealed[1:3], truncations=log.truncations)
    assert (log.start_offset, ranges(log)) == (0, [(0, 30), (30, 40), (40, 43)])
    assert log.sealed[0].traits & Trait.CLEANED
    assert offsets(read_all(log)) == [*range(10), *range(30, 43)]
    assert offsets(log.records(15, max_bytes=1)) == [30]
    log.close()
    assert offsets(read_all(open_log(tmp_path))) == [*range(10), *range(30, 43)]


def test_what_is_no_longer_there_is_neither_removed_nor_replaced(tmp_path: Path) -> None:
    log = sealed_log(tmp_path)
    old = log.sealed
    other = msgspec.structs.replace(old[1], seal=99)
    assert not log.remove([other], truncations=log.truncations)
    log.truncate_prefix(20)
    assert not log.remove(old[:1], truncations=log.truncations)
    assert ranges(log) == [(20, 30), (30, 40), (40, 43)]


def test_what_was_concluded_before_a_truncation_is_neither_removed_nor_replaced(tmp_path: Path) -> None:
    log = sealed_log(tmp_path)
    before = log.truncations
    log.truncate(42)
    first, sealed = log.sealed[0], log.sealed
    assert not log.remove([first], truncations=before)
    assert not log.replace([first], msgspec.structs.replace(first, traits=int(Trait.COMPACTED)), truncations=before)
    assert log.sealed == sealed == saved(tmp_path)
    assert log.remove([first], truncations=log.truncations)


def test_seal_numbers_are_never_given_twice(tmp_path: Path) -> None:
    log = sealed_log(tmp_path)
    taken = []
    for _ in range(3):
        rewrite = log.begin_rewrite(0)
        rewrite.file.close()
        taken.append(rewrite.seal)
    put(log, message(43))
    log.roll()
    log.sync()
    seals = [entry.seal for entry in log.sealed] + taken
    assert len(set(seals)) == len(seals)


def test_the_state_is_saved_before_any_file_goes(tmp_path: Path) -> None:
    disk = WatchedDisk()
    log = sealed_log(tmp_path, disk)
    disk.operations.clear()
    log.remove(log.sealed[:2], truncations=log.truncations)
    kinds = [(done.kind, done.path.rpartition("/")[2]) for done in disk.operations]
    decided = kinds.index(("rename", "log.state"))
    gone = [at for at, (kind, name) in enumerate(kinds) if kind == "unlink" and name.endswith(".log")]
    assert len(gone) == 2
    assert decided < min(gone)


def test_what_is_published_is_what_is_saved(tmp_path: Path) -> None:
    log = sealed_log(tmp_path)
    assert saved(tmp_path) == log.sealed
    log.remove(log.sealed[1:2], truncations=log.truncations)
    assert saved(tmp_path) == log.sealed
    log.truncate(35)
    assert saved(tmp_path) == log.sealed
    assert [(segment.base, segment.end) for segment in log.segments if segment.seal] == [
        (entry.base, entry.end) for entry in log.sealed
    ]


def test_readers_keep_the_segments_they_hold(tmp_path: Path) -> None:
    """A change publishes a new tuple and retires the old segments; it does not touch the old tuple."""
    log = sealed_log(tmp_path)
    before = log.segments
    log.remove(log.sealed[:1], truncations=log.truncations)
    assert [segment.base for segment in before] == [0, 10, 20, 30, 40]
    assert [segment.retired for segment in before] == [True, False, False, False, False]
    assert [segment.base for segment in log.segments] == [10, 20, 30, 40]
