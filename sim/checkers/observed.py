"""What a log shows to somebody who reads all of it: the input of every checker."""

from dataclasses import dataclass, field
from typing import NamedTuple

from goqueue import codec
from goqueue.model.errors import Quarantined
from goqueue.storage.log import Log


class Seen(NamedTuple):
    """A record as it was read."""

    offset: int
    timestamp: int
    raw: bytes


@dataclass(slots=True)
class Observed:
    start: int
    end: int
    durable: int
    epochs: list[tuple[int, int]]
    read: list[Seen] = field(default_factory=list)
    """In the order of reading, from `start` on."""
    quarantined: list[tuple[int, int]] = field(default_factory=list)

    def by_offset(self) -> dict[int, Seen]:
        return {seen.offset: seen for seen in self.read}

    def is_quarantined(self, offset: int) -> bool:
        return any(first <= offset < after for first, after in self.quarantined)


def split(data: bytes | memoryview) -> list[Seen]:
    """The records of a block; all of it must be records."""
    scan = codec.scan(data)
    if scan.end != len(data):
        raise ValueError(f"a read handed out bytes that are no record: {scan.problem!r} at {scan.end}")
    ends = [*scan.positions[1:], scan.end] if len(scan) else []
    return [
        Seen(offset, timestamp, bytes(data[start:end]))
        for offset, timestamp, start, end in zip(scan.offsets, scan.timestamps, scan.positions, ends, strict=True)
    ]


def observe(log: Log, *, max_bytes: int = 1 << 20) -> Observed:
    """Read everything, from the start to the end."""
    observed = Observed(
        log.start_offset, log.end_offset, log.durable.value, [(entry.epoch, entry.start_offset) for entry in log.epochs]
    )
    offset = observed.start
    while offset < observed.end:
        try:
            chunk = log.read(offset, max_bytes=max_bytes)
        except Quarantined as damage:
            observed.quarantined.append((damage.first, damage.next_offset))
            if damage.next_offset <= offset:
                raise ValueError(f"a quarantined read at {offset} leads back to {damage.next_offset}") from None
            offset = damage.next_offset
            continue
        if chunk.next_offset <= offset:
            raise ValueError(f"a read at {offset} of {observed.end} does not get on: next is {chunk.next_offset}")
        observed.read += split(chunk.data)
        offset = chunk.next_offset
    return observed
