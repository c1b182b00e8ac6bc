"""Reading a whole log back by every path it has, and demanding that they agree."""

from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple

from goqueue import codec
from goqueue.io.disk import Disk
from goqueue.model.errors import Quarantined
from goqueue.model.record import Record
from goqueue.storage.log import Log
from goqueue.storage.offline import OfflineLog
from goqueue.storage.walk import Run


class Contents(NamedTuple):
    """Everything a reader gets from start to end: records, and the ranges it was told are damaged."""

    records: list[Record]
    damaged: list[tuple[int, int]]

    @property
    def offsets(self) -> list[int]:
        return [record.offset for record in self.records]


def read_all(log: Log, *, max_bytes: int = 1 << 20) -> Contents:
    """From the start to the end, around what is quarantined."""
    contents = Contents([], [])
    offset = log.start_offset
    while offset < log.end_offset:
        try:
            chunk = log.read(offset, max_bytes=max_bytes)
        except Quarantined as error:
            contents.damaged.append((max(offset, error.first), error.next_offset))
            offset = max(offset, error.next_offset)
            continue
        found = codec.decode(chunk.data)
        assert len(found) == chunk.count, f"a chunk of {chunk.count} records holds {len(found)}"
        assert chunk.next_offset > offset, f"reading at {offset} leads to {chunk.next_offset}"
        contents.records.extend(found)
        offset = chunk.next_offset
    return contents


def check_paths_agree(log: Log, disk: Disk, sample: Iterable[int]) -> Contents:
    """Read sequentially in large and small steps, by offset, by time, and offline; AssertionError when two differ."""
    whole = read_all(log)
    small = read_all(log, max_bytes=600)
    assert small == whole, "small reads and large reads differ"
    offsets = whole.offsets
    assert offsets == sorted(set(offsets)), "a read returned offsets out of order"
    offline = offline_records(log, disk)
    assert offline == whole.records, f"offline {len(offline)} records, online {len(whole.records)}"
    times = [record.timestamp for record in whole.records]
    assert times == sorted(times), "timestamps go back"
    for number in sample:
        if not offsets:
            break
        at = number % len(offsets)
        record = whole.records[at]
        point = log.records(record.offset, max_bytes=1, max_count=1)
        assert point == [record], f"reading offset {record.offset} alone gives {point}, reading through gives {record}"
        by_time = log.offset_at(record.timestamp)
        first = offsets[bisect_left(times, record.timestamp)]
        # It may name an offset before the record, where nothing is any more; reading on from there leads to it.
        from_there = offsets[bisect_left(offsets, by_time)]
        assert from_there == first, f"offset_at({record.timestamp}) is {by_time}, the first such record is {first}"
    assert log.offset_at(times[-1] + 1 if times else 0) >= (offsets[-1] + 1 if offsets else log.start_offset)
    return whole


def offline_records(log: Log, disk: Disk) -> list[Record]:
    """The same records by the offline reader, from the log's start on."""
    offline = OfflineLog(log.directory, disk)
    return [
        record
        for segment in offline.segments()
        for item in offline.walk(segment)
        if isinstance(item, Run)
        for record in codec.decode(item.data)
        if log.start_offset <= record.offset < log.end_offset
    ]
