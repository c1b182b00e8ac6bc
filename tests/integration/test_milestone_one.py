"""Milestone one, a test per sentence: a log of a million messages that rolls, finds, restarts, heals and forgets."""

import os
import random
import subprocess
import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from goqueue import codec
from goqueue.model import limits
from goqueue.model.record import Record
from goqueue.model.settings import LogSettings
from goqueue.storage.cleaner import clean
from goqueue.storage.log import Log
from tests.support.patience import PATIENCE_S
from tests.unit.storage.disks import WatchedDisk
from tests.unit.storage.logs import flip, log_bytes, offsets, open_log, positions, read_around_damage, segment_path

T0 = 1_700_000_000_000
BLOCK = 1000
VALUE_BYTES = 100
INTERVAL = 4096
RECORD = len(codec.encode([Record(value=bytes(VALUE_BYTES))]))
ROOT = Path(__file__).parents[2]
SETTINGS = LogSettings(segment_bytes=8 * limits.MIB, index_interval_bytes=INTERVAL)


def value(offset: int) -> bytes:
    return b"%0100d" % offset


def write(log: Log, count: int) -> None:
    """Blocks of a thousand, a millisecond after another, each value naming its offset."""
    for first in range(0, count, BLOCK):
        block = codec.encode([Record(value=value(offset)) for offset in range(first, first + BLOCK)])
        appended = log.append(block, now=T0 + first // BLOCK)
        assert (appended.first_offset, appended.next_offset) == (first, first + BLOCK)


def check_all(log: Log, count: int) -> None:
    """Every message, in order, with its value and its time."""
    offset = 0
    while offset < count:
        chunk = log.read(offset, max_bytes=limits.MIB)
        records = codec.decode(chunk.data, verified=True)
        assert [record.offset for record in records] == list(range(offset, chunk.next_offset))
        assert [record.value for record in records] == [value(at) for at in range(offset, chunk.next_offset)]
        assert [record.timestamp for record in records] == [T0 + at // BLOCK for at in range(offset, chunk.next_offset)]
        offset = chunk.next_offset
    assert (offset, log.end_offset) == (count, count)


def check_sample(log: Log, count: int, size: int = 2000) -> None:
    """Some messages by offset, and some moments in time."""
    rng = random.Random(count)
    for offset in [0, count - 1, *(rng.randrange(count) for _ in range(size))]:
        (record,) = log.records(offset, max_bytes=1)
        assert (record.offset, record.value) == (offset, value(offset))
    blocks = count // BLOCK
    for block in [0, blocks - 1, *(rng.randrange(blocks) for _ in range(size // 4))]:
        assert log.offset_at(T0 + block) == block * BLOCK
    assert (log.offset_at(0), log.offset_at(T0 + blocks)) == (0, count)


def write_and_check(directory: str, count: int) -> None:
    """The whole of it: written, read in order, found by offset and time, and again after a restart."""
    log = open_log(directory, SETTINGS)
    write(log, count)
    check_all(log, count)
    check_sample(log, count, size=300)
    log.close()
    log = open_log(directory, SETTINGS)
    check_sample(log, count, size=300)
    log.close()


@pytest.fixture(scope="module")
def million(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, int]]:
    """A closed log of a million messages; a tenth of that where the codec is not compiled."""
    count = 1_000_000 if codec.COMPILED else 100_000
    directory = tmp_path_factory.mktemp("million")
    log = open_log(directory, SETTINGS)
    write(log, count)
    log.close()
    yield directory, count
    for path in directory.iterdir():
        path.unlink()


# --- 1: a million messages


def test_a_million_messages_are_written_and_all_readable_in_order(million: tuple[Path, int]) -> None:
    directory, count = million
    log = open_log(directory, SETTINGS)
    assert not log.recovery
    check_all(log, count)


def test_any_of_a_million_messages_is_found_by_offset_and_by_time(million: tuple[Path, int]) -> None:
    directory, count = million
    check_sample(open_log(directory, SETTINGS), count)


@pytest.mark.skipif(not codec.COMPILED, reason="the tests above have just run with the Python codec")
def test_the_python_codec_does_the_same_with_a_hundred_thousand(tmp_path: Path) -> None:
    script = (
        "import sys; from goqueue import codec; assert not codec.COMPILED; "
        "from tests.integration.test_milestone_one import write_and_check; "
        "write_and_check(sys.argv[1], 100_000); print('done')"
    )
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "log")],
        env=os.environ | {"GOQUEUE_CODEC": "python", "PYTHONPATH": path},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


# --- 2: segments


def test_segments_roll_at_the_size_limit(million: tuple[Path, int]) -> None:
    directory, count = million
    log = open_log(directory, SETTINGS)
    sizes = [segment.size for segment in log.segments]
    blocks_in_one = SETTINGS.segment_bytes // (BLOCK * RECORD)
    assert sizes[:-1] == [blocks_in_one * BLOCK * RECORD] * (len(sizes) - 1)
    assert len(sizes) == -(-count // (blocks_in_one * BLOCK))
    assert log_bytes(directory) == sum(sizes) == count * RECORD
    assert [segment.end for segment in log.segments[:-1]] == [segment.base for segment in log.segments[1:]]


def test_segments_roll_by_age_at_an_append_and_at_a_tick(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogSettings(segment_age_ms=60_000))
    log.append(codec.encode([Record(value=b"a")]), now=T0)
    log.append(codec.encode([Record(value=b"b")]), now=T0 + 59_999)
    log.tick(T0 + 59_999)
    assert len(log.segments) == 1
    log.append(codec.encode([Record(value=b"c")]), now=T0 + 60_000)
    assert [segment.base for segment in log.segments] == [0, 2]
    log.tick(T0 + 120_000)
    assert [segment.base for segment in log.segments] == [0, 2, 3]


# --- 3: sparse indexes


def warm(directory: Path) -> tuple[Log, WatchedDisk]:
    """An open log whose indexes are in memory, on a disk that counts."""
    disk = WatchedDisk()
    log = open_log(directory, SETTINGS, disk)
    for segment in log.segments:
        log.derived(segment)
    disk.operations.clear()
    return log, disk


def test_an_offset_look_up_begins_less_than_one_interval_before_its_record(million: tuple[Path, int]) -> None:
    """What is guaranteed for one record no larger than an interval: the first read begins at the index point, less
    than an interval before the record; there are at most two reads, each of at most interval + max_bytes; and what
    is read before the record comes to at most one interval."""
    directory, count = million
    log, disk = warm(directory)
    bases = {segment.key.path: segment.base for segment in log.segments}
    rng = random.Random(3)
    for offset in [0, 1, count - 1, *(rng.randrange(count) for _ in range(3000))]:
        disk.operations.clear()
        (record,) = log.records(offset, max_bytes=1)
        assert record.offset == offset
        reads = disk.of_kind("read")
        assert 1 <= len(reads) <= 2
        position = (offset - bases[reads[0].path]) * RECORD
        assert 0 <= position - reads[0].position < INTERVAL
        assert all(read.size <= INTERVAL + 1 for read in reads)
        assert sum(read.size for read in reads[:-1]) <= INTERVAL + 1
        assert {read.path for read in reads} == {str(segment_path(directory, bases[reads[0].path]))}


def test_a_time_look_up_reads_less_than_one_interval_and_one_record(million: tuple[Path, int]) -> None:
    directory, count = million
    log, disk = warm(directory)
    for block in range(0, count // BLOCK, 7):
        disk.operations.clear()
        assert log.offset_at(T0 + block) == block * BLOCK
        reads = disk.of_kind("read")
        assert len(reads) <= 1
        assert sum(read.size for read in reads) < INTERVAL + RECORD


def test_an_index_is_a_fraction_of_its_log(million: tuple[Path, int]) -> None:
    directory, _ = million
    for log in sorted(directory.glob("*.log"))[:-1]:
        index = log.with_suffix(".index").stat().st_size + log.with_suffix(".timeindex").stat().st_size
        assert index < 100 + 20 * (log.stat().st_size // INTERVAL + 1)


# --- 4: points in time


def test_a_moment_finds_the_first_message_at_or_after_it(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogSettings(segment_bytes=65_536))
    times = []
    rng = random.Random(4)
    now = T0
    for _ in range(400):
        now += rng.choice((0, 0, 1, 5, 100))
        times += [now] * 10
        log.append(codec.encode([Record(value=bytes(50))] * 10), now=now)
    assert len(log.segments) > 4
    for moment in range(T0 - 1, now + 2):
        expected = bisect_left(times, moment)
        assert log.offset_at(moment) == expected
        if expected < len(times):
            (record,) = log.records(expected, max_bytes=1)
            assert record.timestamp == times[expected]


# --- 5: restart


def test_a_restart_reads_nothing_of_sealed_segments(million: tuple[Path, int]) -> None:
    directory, count = million
    disk = WatchedDisk()
    log = open_log(directory, SETTINGS, disk)
    assert log.end_offset == count
    active = log.segments[-1].key.path
    assert len(log.sealed) >= 1
    read = Counter(done.path for done in disk.of_kind("read", ".log"))
    assert set(read) <= {active}
    assert sum(done.size for done in disk.of_kind("read", ".log")) <= 2 * (
        log.segments[-1].size + limits.SCAN_CHUNK_BYTES
    )
    opened = Counter(done.path for done in disk.of_kind("open", ".log"))
    assert all(opened[entry_path(directory, entry.base)] <= 1 for entry in log.sealed)
    assert disk.of_kind("read", ".index") == []


def entry_path(directory: Path, base: int) -> str:
    return str(segment_path(directory, base))


def test_a_restart_of_many_segments_reads_as_little_as_of_few(tmp_path: Path) -> None:
    read = []
    for segments in (2, 60):
        directory = tmp_path / str(segments)
        log = open_log(directory, LogSettings(segment_bytes=4096))
        for number in range(segments):
            log.append(codec.encode([Record(value=value(number))] * 20), now=T0 + number)
            log.roll()
            log.sync()
        log.append(codec.encode([Record(value=b"tail")]), now=T0 + 1000)
        log.close()
        disk = WatchedDisk()
        again = open_log(directory, LogSettings(segment_bytes=4096), disk)
        assert (again.end_offset, len(again.segments)) == (20 * segments + 1, segments + 1)
        read.append(sum(done.size for done in disk.of_kind("read", ".log")))
    assert read[0] == read[1] > 0


def test_answers_are_the_same_after_any_restart(million: tuple[Path, int]) -> None:
    directory, count = million
    log = open_log(directory, SETTINGS)
    moments = [T0 + block for block in range(0, count // BLOCK, 50)]
    before = ([log.offset_at(moment) for moment in moments], log.start_offset, log.end_offset, log.sealed)
    log.close()
    again = open_log(directory, SETTINGS)
    assert (
        [again.offset_at(moment) for moment in moments],
        again.start_offset,
        again.end_offset,
        again.sealed,
    ) == before


# --- 6: damage


def test_a_single_flipped_bit_costs_exactly_its_record(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogSettings(segment_bytes=16_384))
    for first in range(0, 1000, 10):
        log.append(codec.encode([Record(value=value(offset)) for offset in range(first, first + 10)]), now=T0 + first)
    log.close()
    rng = random.Random(6)
    sealed = log.sealed
    assert len(sealed) > 5
    for round_number in range(25):
        entry = rng.choice(sealed)
        path = segment_path(tmp_path, entry.base)
        offset = rng.randrange(entry.base, entry.end)
        start, end = positions(path)[offset]
        position, bit = rng.randrange(start, end), rng.randrange(8)
        flip(path, position, bit)
        found, refused = read_around_damage(open_log(tmp_path, LogSettings(segment_bytes=16_384)))
        assert refused == [(offset, offset + 1)], f"round {round_number}: byte {position - start}, bit {bit}"
        assert found == [each for each in range(1000) if each != offset]
        flip(path, position, bit)
    assert read_around_damage(open_log(tmp_path)) == (list(range(1000)), [])


# --- 7: retention


def segments_of_ten(directory: Path, settings: LogSettings) -> Log:
    log = open_log(directory, settings)
    for number in range(10):
        log.append(
            codec.encode([Record(value=value(10 * number + each)) for each in range(10)]), now=T0 + 1000 * number
        )
        log.roll()
    log.sync()
    return log


def test_retention_by_time_removes_old_segments(tmp_path: Path) -> None:
    log = segments_of_ten(tmp_path, LogSettings(retention_ms=5000))
    report = clean(log, T0 + 9001)
    assert (report.removed_segments, report.removed_records) == (5, 50)
    assert (log.start_offset, offsets(log.records(50, max_bytes=100_000))[0]) == (50, 50)
    assert log_bytes(tmp_path) == 50 * RECORD
    log.close()
    again = open_log(tmp_path)
    assert (again.start_offset, again.end_offset, again.offset_at(0)) == (50, 100, 50)


def test_retention_by_bytes_removes_old_segments(tmp_path: Path) -> None:
    log = segments_of_ten(tmp_path, LogSettings(retention_bytes=35 * RECORD))
    clean(log, T0)
    assert log.start_offset == 60
    assert log_bytes(tmp_path) == 40 * RECORD
    log.close()
    assert open_log(tmp_path).start_offset == 60
