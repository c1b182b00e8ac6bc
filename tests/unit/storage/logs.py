"""What the storage tests share: records to write, ways to read a whole log, and the damage they do to it."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from goqueue import codec
from goqueue.codec import Scan
from goqueue.io.disk import Disk
from goqueue.model.errors import Quarantined
from goqueue.model.record import Extension, Record
from goqueue.model.settings import LogSettings
from goqueue.storage.delays import DelayView
from goqueue.storage.lanes import LaneView
from goqueue.storage.log import Appended, Log
from tests.unit.storage.disks import WatchedDisk

T0 = 1_700_000_000_000
COMPANIONS = (".index", ".timeindex", ".view")
SMALL = LogSettings(segment_bytes=4096, index_interval_bytes=256)


def value(number: int, size: int = 100) -> bytes:
    return (b"%d." % number).ljust(size, b"v")


def message(number: int, size: int = 100) -> Record:
    return Record(key=b"key %d" % number, value=value(number, size))


def delayed(number: int, deliver_at: int, size: int = 100) -> Record:
    return Record(key=b"key %d" % number, value=value(number, size), extension=Extension(deliver_at=deliver_at))


def open_log(path: Path | str, settings: LogSettings = SMALL, disk: Disk | None = None) -> Log:
    return Log.open(str(path), disk=disk or WatchedDisk(), settings=settings)


def put(log: Log, *records: Record, now: int = T0) -> Appended:
    return log.append(codec.encode(records), now=now)


def fill(log: Log, count: int, *, now: int = T0, step: int = 10, block: int = 5, size: int = 100) -> None:
    """Append `count` messages numbered by their offsets, a block at a time, each block `step` ms later."""
    end = log.end_offset + count
    while log.end_offset < end:
        first = log.end_offset
        put(log, *(message(number, size) for number in range(first, min(first + block, end))), now=now)
        now += step


def fill_segments(log: Log, segments: int, *, per_segment: int = 10, now: int = T0, size: int = 100) -> None:
    """Append that many sealed segments of `per_segment` messages, an active one after them."""
    for number in range(segments):
        fill(log, per_segment, now=now + number * 1000, size=size)
        log.roll()
        log.sync()


def read_all(log: Log, *, max_bytes: int = 4096, max_count: int = 10**6) -> list[Record]:
    """Every record from start to end, in reads of bounded size."""
    found: list[Record] = []
    offset = log.start_offset
    while offset < log.end_offset:
        chunk = log.read(offset, max_bytes=max_bytes, max_count=max_count)
        records = codec.decode(chunk.data)
        assert len(records) == chunk.count
        assert chunk.next_offset > offset
        found += records
        offset = chunk.next_offset
    return found


def read_around_damage(log: Log) -> tuple[list[int], list[tuple[int, int]]]:
    """The offsets that can be read, and the ranges that are refused as quarantined."""
    offsets: list[int] = []
    refused: list[tuple[int, int]] = []
    offset = log.start_offset
    while offset < log.end_offset:
        try:
            chunk = log.read(offset, max_bytes=1000)
        except Quarantined as error:
            if not error.first <= offset < error.next_offset:
                raise
            refused.append((error.first, error.next_offset))
            offset = error.next_offset
            continue
        offsets += [record.offset for record in codec.decode(chunk.data)]
        offset = chunk.next_offset
    return offsets, refused


def offsets(records: Iterable[Record]) -> list[int]:
    return [record.offset for record in records]


def answers(log: Log) -> dict[str, object]:
    """Everything a log can be asked, to compare before and after something that must not matter."""
    records = read_all(log)
    times = sorted({record.timestamp for record in records})
    return {
        "range": (log.start_offset, log.end_offset),
        "records": records,
        "singly": [log.records(record.offset, max_bytes=1, max_count=1) for record in records],
        "times": [(time, log.offset_at(time)) for moment in times for time in (moment - 1, moment, moment + 1)],
        "lanes": lane_counts(log),
        "delays": delays(log),
        "epochs": log.epochs,
    }


def lane_counts(log: Log) -> list[int]:
    totals = [0] * 5
    for segment in log.segments:
        view = log.derived(segment).views["lanes"]
        assert isinstance(view, LaneView)
        totals = [total + count for total, count in zip(totals, view.counts, strict=True)]
    return totals


def delays(log: Log) -> list[tuple[int, int]]:
    """Offset and deliver-at of every record that has one, as the views have them."""
    found: list[tuple[int, int]] = []
    for segment in log.segments:
        view = log.derived(segment).views["delays"]
        assert isinstance(view, DelayView)
        found += [(segment.base + offset, due) for offset, due in zip(view.offsets, view.deliver_at, strict=True)]
    return found


def stamped(*records: Record, offset: int = 0, timestamp: int = T0) -> tuple[bytes, Scan]:
    """A block as the log would write it."""
    block = codec.encode(records)
    scan = codec.stamp(block, offset=offset, timestamp=timestamp)
    return bytes(block), scan


def positions(path: Path | str) -> dict[int, tuple[int, int]]:
    """Where each record of a segment file begins and ends, by offset."""
    scan = codec.scan(Path(path).read_bytes())
    ends = [*scan.positions[1:], scan.end]
    return {offset: (start, end) for offset, start, end in zip(scan.offsets, scan.positions, ends, strict=True)}


def flip(path: Path | str, position: int, bit: int = 0) -> None:
    """Turn one bit of a file over."""
    with open(path, "r+b", buffering=0) as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ (1 << bit)]))


def segment_path(directory: Path | str, base: int, ending: str = ".log") -> Path:
    return Path(directory) / f"{base:020d}{ending}"


def flip_record(directory: Path | str, base: int, offset: int) -> None:
    """Damage one record of one segment, in the last byte of its value."""
    path = segment_path(directory, base)
    flip(path, positions(path)[offset][1] - 1)


def drop_companions(directory: Path | str) -> int:
    """Delete every index, time index and view of a log; how many there were."""
    found = [path for path in Path(directory).iterdir() if path.suffix in COMPANIONS]
    for path in found:
        path.unlink()
    return len(found)


def log_bytes(directory: Path | str) -> int:
    """What the segment files of a log take on disk."""
    return sum(path.stat().st_size for path in Path(directory).glob("*.log"))


def open_descriptors(under: Path | str) -> list[str]:
    """The files below a directory that this process has open."""
    return [path for path in _descriptors() if path.startswith(f"{under}/")]


def _descriptors() -> Iterator[str]:
    for name in os.listdir("/proc/self/fd"):
        try:
            yield os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
