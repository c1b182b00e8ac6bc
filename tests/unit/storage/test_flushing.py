"""Making things durable: bytes, then names, then the mark; and nothing that is not needed."""

from pathlib import Path

import pytest

from goqueue.model import limits
from goqueue.model.errors import DiskFull
from goqueue.storage.files import OpenFiles
from goqueue.storage.flushing import Flusher
from goqueue.storage.segment import Segment
from goqueue.storage.synced import Synced, SyncedMark
from tests.unit.storage.disks import Operation, WatchedDisk


class Bench:
    """Segments without a log, and what flushing them does to the disk."""

    def __init__(self, directory: Path, *, names_dirty: bool = False) -> None:
        self.disk = WatchedDisk()
        self.directory = str(directory)
        self.mark = SyncedMark(self.disk, self.directory)
        self.files = OpenFiles(self.disk)
        self.flusher = Flusher(self.directory, self.disk, self.files, self.mark, names_dirty=names_dirty)

    def segment(self, base: int, size: int) -> Segment:
        segment = Segment(self.directory, base)
        segment.size = size
        self.disk.open(segment.key.path, create=True).close()
        return segment

    def flush(self, *segments: Segment) -> list[tuple[str, str]]:
        """What was done, as kinds and the ends of paths."""
        self.disk.operations.clear()
        self.flusher.flush(segments, Synced(segments[-1].base, segments[-1].size, segments[-1].base + 1))
        done = ((operation.kind, operation.path.rpartition("/")[2]) for operation in self.disk.operations)
        return [step for step in done if step[0] in ("sync", "sync_directory", "write")]


def test_bytes_come_before_names_and_names_before_the_mark(tmp_path: Path) -> None:
    bench = Bench(tmp_path, names_dirty=True)
    first, second = bench.segment(0, 100), bench.segment(1, 50)
    assert bench.flush(first, second) == [
        ("sync", "00000000000000000000.log"),
        ("sync", "00000000000000000001.log"),
        ("sync_directory", tmp_path.name),
        ("write", "synced"),
        ("sync", "synced"),
    ]
    assert (first.synced_size, second.synced_size) == (100, 50)
    assert bench.mark.load() == Synced(1, 50, 2)


def test_what_is_durable_already_is_not_touched(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    segment = bench.segment(0, 100)
    assert len(bench.flush(segment)) == 2
    assert bench.flush(segment) == []


def test_the_name_of_an_empty_segment_can_wait_for_its_first_bytes(tmp_path: Path) -> None:
    bench = Bench(tmp_path, names_dirty=True)
    segment = bench.segment(0, 0)
    assert ("sync_directory", tmp_path.name) not in bench.flush(segment)
    segment.size = 10
    assert ("sync_directory", tmp_path.name) in bench.flush(segment)
    segment.size = 20
    assert ("sync_directory", tmp_path.name) not in bench.flush(segment)


def test_the_name_of_a_segment_with_bytes_does_not_wait_for_those_of_an_empty_one_after_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path, names_dirty=True)
    assert ("sync_directory", tmp_path.name) in bench.flush(bench.segment(0, 10), bench.segment(1, 0))


@pytest.mark.parametrize(
    ("size", "syncs"),
    [(1, limits.SYNCED_MARK_INTERVAL_SYNCS), (limits.SYNCED_MARK_INTERVAL_BYTES // 4, 4)],
    ids=["by count", "by bytes"],
)
def test_the_mark_itself_is_made_durable_now_and_then(tmp_path: Path, size: int, syncs: int) -> None:
    bench = Bench(tmp_path)
    segment = bench.segment(0, 0)
    durable = []
    for _ in range(3 * syncs):
        segment.size += size
        durable.append(("sync", "synced") in bench.flush(segment))
    assert durable == ([False] * (syncs - 1) + [True]) * 3


def test_a_mark_for_which_there_is_no_space_stays_where_it_is(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    segment = bench.segment(0, 100)
    bench.flush(segment)

    def full(operation: Operation) -> None:
        if operation.kind == "write":
            raise DiskFull("no space")

    bench.disk.before = full
    segment.size = 200
    bench.flush(segment)
    assert segment.synced_size == 200
    assert bench.mark.load() == Synced(0, 100, 1)
    bench.disk.before = None
    segment.size = 300
    bench.flush(segment)
    assert bench.mark.load() == Synced(0, 300, 1)
