"""Reading beside a writer and a cleaner: never a torn record, never a wrong one, never an error."""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from goqueue import codec
from goqueue.model.errors import OffsetOutOfRange, Quarantined
from goqueue.model.record import Record
from goqueue.model.settings import LogSettings
from goqueue.storage.cache import DerivedCache
from goqueue.storage.cleaner import clean
from goqueue.storage.files import OpenFiles
from goqueue.storage.log import Log
from goqueue.storage.reading import Chunk
from tests.support.patience import PATIENCE_S
from tests.unit.storage.disks import WatchedDisk, at_most
from tests.unit.storage.logs import (
    T0,
    drop_companions,
    fill,
    fill_segments,
    offsets,
    open_log,
    positions,
    put,
    read_all,
    read_around_damage,
    segment_path,
)

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
            newest = range(max(log.written.value - 40, 0), end)  # older ones may be superseded by now
            assert set(newest) <= set(seen)

    return read


def by_time(log: Log) -> Callable[[], None]:
    def look() -> None:
        end = log.written.value
        for offset in range(0, end, 97):
            found = log.offset_at(T0 + offset // PER_BLOCK)
            assert found >= offset // PER_BLOCK * PER_BLOCK
            assert found <= end or end < END

    return look


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
            try:
                chunk = log.read(offset, max_bytes=700, to_offset=end)
            except OffsetOutOfRange:
                assert log.written.value > end + 50, "these were among the newest"
                return
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


# --- a file that shrinks


@pytest.mark.parametrize("size", [0, 1, 300, 1000])
@pytest.mark.parametrize("base", [0, 10])
def test_a_file_that_shrinks_under_an_open_log_costs_its_lost_offsets_and_nothing_else(
    tmp_path: Path, base: int, size: int
) -> None:
    """Base 0 is a sealed segment, base 10 the active one."""
    disk = WatchedDisk()
    log = open_log(tmp_path, disk=disk)
    fill_segments(log, 1)
    fill(log, 10, now=T0 + 5000)
    log.sync()
    path = segment_path(tmp_path, base)
    whole = {offset for offset, (_, end) in positions(path).items() if end <= size}
    lost = set(range(base, base + 10)) - whole
    os.truncate(path, size)
    disk.before = at_most(2000)
    for offset in lost:
        with pytest.raises(Quarantined) as caught:
            log.read(offset, max_bytes=1000)
        assert caught.value.first <= offset < caught.value.next_offset
    found, refused = read_around_damage(log)
    assert found == [offset for offset in range(20) if offset not in lost]
    assert {offset for first, after in refused for offset in range(first, after)} == lost


# --- beside a truncation


TRUNCATED_TO = 50


def old_value(offset: int) -> bytes:
    return b"old %d" % offset * 10


def new_value(offset: int) -> bytes:
    return b"new %d" % offset * 10


def truncate_at(
    step: int, directory: Path, settings: LogSettings, *, again: int, read: Callable[[Log], object]
) -> tuple[object, bool]:
    """What a read gives when another thread truncates the log just before the given line of the reader.

    That thread then appends `again` records anew. False when the reader has no such line.
    """
    log = open_log(directory, settings)
    for offset in range(100):
        put(log, Record(value=old_value(offset)), now=T0 + offset)
    log.sync()
    left = step

    def change() -> None:
        log.truncate(TRUNCATED_TO)
        for offset in range(TRUNCATED_TO, TRUNCATED_TO + again):
            put(log, Record(value=new_value(offset)), now=T0 + 1000 + offset)

    other = threading.Thread(target=change)

    def trace(frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        nonlocal left
        if not frame.f_code.co_filename.endswith("storage/reading.py"):
            return None
        if event == "line":
            left -= 1
            if left == 0:
                other.start()
                other.join(0.5)  # it may have to wait for a lock that is held here
        return trace

    outcome: list[object] = []

    def work() -> None:
        sys.settrace(trace)
        try:
            outcome.append(read(log))
        except Exception as error:
            outcome.append(error)

    reader = threading.Thread(target=work, daemon=True)
    reader.start()
    reader.join(PATIENCE_S)
    assert outcome, f"truncated at step {step}, the read does not end"
    if left > 0:
        return outcome[0], False
    other.join()
    return outcome[0], True


@pytest.mark.parametrize("again", [0, 20, 60])
@pytest.mark.parametrize("offset", [20, 50, 80])
@pytest.mark.parametrize("segment_bytes", [4096, 1 << 20])
def test_a_read_beside_a_truncation_gives_records_or_says_that_there_are_none(
    tmp_path: Path, segment_bytes: int, offset: int, again: int
) -> None:
    settings = LogSettings(segment_bytes=segment_bytes, index_interval_bytes=256)
    step, more = 0, True
    while more:
        step += 1
        outcome, more = truncate_at(
            step,
            tmp_path / str(step),
            settings,
            again=again,
            read=lambda log: log.read(offset, max_bytes=1000),
        )
        if isinstance(outcome, OffsetOutOfRange):
            assert offset > TRUNCATED_TO, f"truncated at step {step}"
            continue
        assert isinstance(outcome, Chunk), f"truncated at step {step}: {outcome!r}"
        found = codec.decode(outcome.data)
        assert found or offset >= TRUNCATED_TO, f"truncated at step {step}"
        assert offsets(found) == list(range(offset, offset + len(found)))
        assert outcome.next_offset == offset + len(found)
        for each in found:
            allowed = [old_value(each.offset), *([new_value(each.offset)] if each.offset >= TRUNCATED_TO else [])]
            assert each.value in allowed
    assert step > 10
