"""What a partition shows of transactions: its bytes, read through, and what they mean by the simplest rules."""

from typing import NamedTuple

from goqueue import codec
from goqueue.broker.partition import Partition
from goqueue.model.record import Record
from goqueue.transactions.records import Participant
from sim.checkers import Violation
from sim.rooms.deeds import Value

RULE = "markers"


class Sighted(NamedTuple):
    part: Participant
    records: dict[int, Record]
    """By offset."""
    open: dict[int, set[int]]
    """By transaction, the offsets of its records."""
    committed: dict[int, set[int]]
    aborted: dict[int, set[int]]
    markers: dict[int, int]
    """Where each transaction ends."""
    end: int

    def value(self, offset: int) -> Value:
        return int(self.records[offset].value or b"0")

    @property
    def uncommitted(self) -> set[int]:
        return set().union(*self.open.values())

    @property
    def hidden(self) -> set[int]:
        return set().union(self.markers.values(), *self.aborted.values())

    @property
    def stable(self) -> int:
        return min(self.uncommitted, default=self.end)

    @property
    def outcomes(self) -> dict[int, bool]:
        return dict.fromkeys(self.committed, True) | dict.fromkeys(self.aborted, False)


def look_at(part: Participant, partition: Partition) -> Sighted:
    log = partition.log
    seen = Sighted(part, {}, {}, {}, {}, {}, log.end_offset)
    offset = log.start_offset
    while offset < log.end_offset:
        chunk = log.read(offset, max_bytes=1 << 20)
        for record in codec.decode(chunk.data, verified=True):
            _fold(seen, record)
        offset = chunk.next_offset
    return seen


def _fold(seen: Sighted, record: Record) -> None:
    number = record.extension.transaction if record.extension is not None else None
    if record.control:
        if number is None or number in seen.markers:
            raise Violation(
                RULE, f"offset {record.offset} of {seen.part} ends {number}, which is nothing, or has ended"
            )
        seen.markers[number] = record.offset
        (seen.committed if record.commit else seen.aborted)[number] = seen.open.pop(number, set())
        return
    seen.records[record.offset] = record
    if number is not None:
        if number in seen.markers:
            raise Violation(RULE, f"offset {record.offset} of {seen.part} came after the end of transaction {number}")
        seen.open.setdefault(number, set()).add(record.offset)
