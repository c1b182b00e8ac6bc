"""A crash may leave a file at any length. Whatever the length, every whole record before it is kept.

Each cut is a log of its own, opened anew, on a disk in memory: the closed log's small files, and as much of the
active segment as the cut leaves.
"""

import random
from bisect import bisect_right

import pytest

from goqueue import codec
from goqueue.model.errors import Quarantined
from goqueue.model.limits import KIB, MIB
from goqueue.model.record import Record
from goqueue.model.settings import Fsync, LogSettings
from goqueue.storage.log import Log
from goqueue.storage.synced import Synced, SyncedMark
from tests.support.memory_disk import MemoryDisk
from tests.support.reading import read_all

SETTINGS = LogSettings(segment_bytes=1 * MIB, fsync=Fsync.NONE)
LAST_BYTES = 64 * KIB
SEED = 20_240
STEP = 1 if codec.COMPILED else 11
"""Every byte with the compiled codec; the Python twin, ten times slower, takes every eleventh."""
DIRECTORY = "log"
SEGMENT = f"{DIRECTORY}/{0:020d}.log"


class Original:
    """A log of about 80 KiB whose last 64 KiB are cut at every byte."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.ends: list[int] = []
        """Where each record ends in the file."""
        rng = random.Random(SEED)
        disk = MemoryDisk()
        log = Log.open(DIRECTORY, disk=disk, settings=SETTINGS)
        while log.segments[-1].size < LAST_BYTES + 12 * KIB:
            sizes = rng.choice(((0,), (1, 2, 3), (300, 0, 40), (3000,), (9000, 1)))
            records = [Record(value=rng.randbytes(size), key=b"k" if size % 2 else None) for size in sizes]
            start = log.segments[-1].size
            appended = log.append(codec.encode(records), now=1000 + len(self.records))
            self.ends += [start + end for end in (*appended.scan.positions[1:], appended.scan.end)]
            self.records += log.records(appended.first_offset, max_bytes=1 * MIB)
        log.close()
        self.files = {path: bytes(data) for path, data in disk.files.items()}
        self.bytes = self.files[SEGMENT]
        assert self.ends[-1] == len(self.bytes)
        self.cuts = range(len(self.bytes) - LAST_BYTES, len(self.bytes), STEP)

    def whole_before(self, cut: int) -> int:
        """How many records are whole in the first `cut` bytes."""
        return bisect_right(self.ends, cut)

    def position(self, count: int) -> int:
        """Where the first `count` records end."""
        return self.ends[count - 1] if count else 0

    def marked(self, synced: Synced) -> "Original":
        """The same with another synced mark."""
        disk = MemoryDisk()
        SyncedMark(disk, DIRECTORY).reset(synced)
        self.files |= {path: bytes(data) for path, data in disk.files.items()}
        return self

    def cut(self, size: int) -> MemoryDisk:
        """A disk with this log on it, cut at `size`."""
        disk = MemoryDisk()
        disk.files = {path: bytearray(data) for path, data in self.files.items() if path != SEGMENT}
        disk.files[SEGMENT] = bytearray(memoryview(self.bytes)[:size])
        return disk


def open_log(disk: MemoryDisk) -> Log:
    return Log.open(DIRECTORY, disk=disk, settings=SETTINGS)


@pytest.fixture
def original() -> Original:
    return Original()


def test_an_end_that_was_never_synced_is_cut_after_the_last_whole_record_wherever_it_tears(original: Original) -> None:
    synced = original.whole_before(original.cuts.start)
    original.marked(Synced(0, original.position(synced), synced))
    for cut in original.cuts:
        disk = original.cut(cut)
        log = open_log(disk)
        whole = original.whole_before(cut)
        end = original.position(whole)
        assert log.end_offset == whole, f"cut at {cut}"
        report = log.recovery.cut
        if cut == end:
            assert report is None, f"cut at {cut}: nothing is torn, {report}"
        else:
            assert report is not None, f"cut at {cut}"
            assert (report.first_offset, report.size, report.valid_records) == (whole, cut - end, 0), f"cut at {cut}"
            (saved,) = report.saved_as
            assert disk.files[saved] == original.bytes[end:cut], f"cut at {cut}"
        assert len(disk.files[SEGMENT]) == end, f"cut at {cut}"
        assert not log.recovery.quarantined, f"cut at {cut}"
        check_end(log, cut, original.records[whole - 1], whole)
        if cut % 997 == 0:
            check_whole(log, disk, original.records[:whole], [])


def test_bytes_that_were_synced_are_never_cut_but_quarantined_wherever_the_file_ends(original: Original) -> None:
    everything = len(original.records)
    original.marked(Synced(0, len(original.bytes), everything))
    for cut in original.cuts:
        disk = original.cut(cut)
        log = open_log(disk)
        whole = original.whole_before(cut)
        assert log.recovery.cut is None, f"cut at {cut}"
        lost = [(found.damage.first, found.damage.next_offset) for found in log.recovery.quarantined]
        assert lost == [(whole, everything)], f"cut at {cut}"
        assert len(disk.files[SEGMENT]) == cut, f"cut at {cut}: the file was changed"
        with pytest.raises(Quarantined) as met:
            log.read(whole, max_bytes=64 * KIB)
        assert (met.value.first, met.value.next_offset) == (whole, everything), f"cut at {cut}"
        check_end(log, cut, original.records[whole - 1], everything)
        if cut % 997 == 0:
            check_whole(log, disk, original.records[:whole], [(whole, everything)])


def check_end(log: Log, cut: int, last: Record, end: int) -> None:
    """The record before the cut is read; appending goes on at `end`."""
    assert log.records(last.offset, max_bytes=64 * KIB) == [last], f"cut at {cut}"
    appended = log.append(codec.encode([Record(value=b"after")]), now=10_000)
    assert appended.first_offset == end, f"cut at {cut}"
    assert log.records(end, max_bytes=64 * KIB)[0].value == b"after", f"cut at {cut}"


def check_whole(log: Log, disk: MemoryDisk, kept: list[Record], damaged: list[tuple[int, int]]) -> None:
    """In this life and the next one everything is there: what was kept, and what was appended after the cut."""
    log.sync()
    for life in (log, open_log(disk)):
        contents = read_all(life)
        assert contents.records[:-1] == kept
        assert contents.records[-1].value == b"after"
        assert contents.damaged == damaged
        if life is not log:
            assert life.recovery.cut is None
