"""Reading beside a writer and a cleaner: never a torn record, never a wrong one, never an error."""

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from goqueue import codec
from goqueue.model.errors import OffsetOutOfRange
from goqueue.model.record import Record
from goqueue.model.settings import LogSettings
from goqueue.storage.cache import DerivedCache
from goqueue.storage.cleaner import clean
from goqueue.storage.files import OpenFiles
from goqueue.storage.log import Log
from tests.unit.storage.disks import WatchedDisk
from tests.unit.storage.logs import T0, drop_companions, fill_segments, offsets, open_log, put, read_all

BLOCKS = 1500
PER_BLOCK = 5
END = BLOCKS * PER_BLOCK


@pytest.fixture(autouse=True)
def _many_switches() -> Iterator[None]:
    """Threads change places often, so that few steps hide from the others."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def record(offset: int) -> Record:
    """Its key, value, lane and (by its block) time all follow from its offset."""
    return Record(key=b"key %d" % (offset % 40), value=b"%d|" % offset * 10, priority=offset % 5)


def check(found: Record) -> None:
    expected = record(found.offset)
    assert (found.key, found.value, found.priority) == (expected.key, expected.value, expected.priority)
    assert found.timestamp == T0 + found.offset // PER_BLOCK


class Crew:
    """Threads that run until the writer is done; the first error of any of them is raised at the end."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.errors: list[BaseException] = []
        self.rounds: dict[str, int] = {}
        self._threads: list[threading.Thread] = []

    def add(self, name: str, work: Callable[[], object]) -> None:
        """Call `work` until the writer is done, and once more after it."""

        def loop() -> None:
            try:
                last = False
                while not last:
                    last = self.done.is_set()
                    work()
                    self.rounds[name] = self.rounds.get(name, 0) + 1
            except BaseException as error:
                self.errors.append(error)

        self._threads.append(threading.Thread(target=loop, name=name))

    def run(self, write: Callable[[], object]) -> None:
        for thread in self._threads:
            thread.start()
        try:
            write()
        finally:
            self.done.set()
            for thread in self._threads:
                thread.join()
        if self.errors:
            raise self.errors[0]


def write(log: Log) -> None:
    for block in range(BLOCKS):
        first = block * PER_BLOCK
        put(log, *(record(offset) for offset in range(first, first + PER_BLOCK)), now=T0 + block)


def reader(log: Log, *, all_there: bool) -> Callable[[], None]:
    """Reads from start to end in small reads, checking each record and their order."""

    def read() -> None:
        end = log.written.value
        offset = log.start_offset
        seen = []
        while offset < end:
            try:
                chunk = log.read(offset, max_bytes=700, to_offset=end)
            except OffsetOutOfRange as error:
                if all_there or error.start <= offset:
                    raise
                offset = error.start  # everything before it was superseded
                continue
            for found in codec.decode(chunk.data):
                check(found)
                seen.append(found.offset)
            assert chunk.next_offset > offset
            offset = chunk.next_offset
        assert seen == sorted(set(seen))
        if all_there:
            assert seen == list(range(end))
        else:
            newest = {offset % 40: offset for offset in range(max(end - 40, 0), end)}
            assert set(newest.values()) <= set(seen)

    return read


def by_time(log: Log) -> Callable[[], None]:
    def look() -> None:
        end = log.written.value
        for offset in range(0, end, 97):
            found = log.offset_at(T0 + offset // PER_BLOCK)
            assert found >= offset // PER_BLOCK * PER_BLOCK
            assert found <= end or end < END

    return look


@pytest.mark.timeout(120)
def test_readers_beside_a_writer_see_whole_records_and_all_of_them(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogSettings(segment_bytes=16_384, index_interval_bytes=512))
    crew = Crew()
    crew.add("reader", reader(log, all_there=True))
    crew.add("times", by_time(log))
    crew.add("syncer", log.sync)
    crew.run(lambda: write(log))
    assert crew.rounds["reader"] > 1
    assert offsets(read_all(log)) == list(range(END))
    exact = [log.offset_at(T0 + block) for block in range(BLOCKS)]
    assert exact == [block * PER_BLOCK for block in range(BLOCKS)]


@pytest.mark.timeout(120)
def test_readers_beside_a_writer_and_a_cleaner_see_no_wrong_record(tmp_path: Path) -> None:
    """Few open files and hardly any memory, so that handles and indexes are dropped under the readers."""
    disk = WatchedDisk()
    log = Log.open(
        str(tmp_path),
        disk=disk,
        files=OpenFiles(disk, limit=2),
        cache=DerivedCache(1),
        settings=LogSettings(segment_bytes=8192, index_interval_bytes=512, compact=True),
    )
    crew = Crew()
    crew.add("reader", reader(log, all_there=False))
    crew.add("times", by_time(log))

    def maintain() -> None:
        log.sync()
        clean(log, T0 + BLOCKS)

    crew.add("cleaner", maintain)
    crew.run(lambda: write(log))
    assert crew.rounds["reader"] > 1
    log.roll()
    log.sync()
    clean(log, T0 + BLOCKS)
    assert offsets(read_all(log)) == list(range(END - 40, END))
    log.close()
    assert disk.open_count == 0


@pytest.mark.timeout(120)
def test_readers_beside_retention_only_lose_the_oldest(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogSettings(segment_bytes=8192, index_interval_bytes=512, retention_bytes=30_000))
    crew = Crew()

    def tail() -> None:
        """The newest records are there whatever the cleaner removes before them."""
        end = log.written.value
        first = max(end - 50, 0)
        seen = []
        offset = first
        while offset < end:
            chunk = log.read(offset, max_bytes=700, to_offset=end)
            for found in codec.decode(chunk.data):
                check(found)
                seen.append(found.offset)
            offset = chunk.next_offset
        assert seen == list(range(first, end))

    def maintain() -> None:
        log.sync()
        clean(log, T0)

    crew.add("tail", tail)
    crew.add("cleaner", maintain)
    crew.run(lambda: write(log))
    assert log.start_offset > 0
    assert offsets(read_all(log)) == list(range(log.start_offset, END))


def test_an_index_rebuilt_by_two_readers_at_once_is_right(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill_segments(log, 8)
    log.close()
    drop_companions(tmp_path)
    log = open_log(tmp_path)
    ready = threading.Barrier(4)
    found: list[list[int]] = []

    def read() -> None:
        ready.wait()
        found.append(offsets(read_all(log, max_bytes=300)))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [list(range(80))] * 4


def test_an_evicted_index_is_loaded_again_not_rebuilt(tmp_path: Path) -> None:
    disk = WatchedDisk()
    settings = LogSettings(segment_bytes=4096, index_interval_bytes=256)
    log = Log.open(str(tmp_path), disk=disk, cache=DerivedCache(1), settings=settings)
    fill_segments(log, 5)
    disk.operations.clear()
    for _ in range(2):
        for base in range(0, 50, 10):
            assert offsets(log.records(base + 3, max_bytes=1)) == [base + 3]
    assert len(disk.of_kind("read", ".index")) >= 9
    assert disk.of_kind("write") == []
    largest_read = max(done.size for done in disk.of_kind("read", ".log"))
    assert largest_read <= settings.index_interval_bytes + 1
