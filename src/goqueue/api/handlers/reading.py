"""Simple reads as JSON: by partition or over a whole topic, from an offset or a time."""

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext
from operator import itemgetter
from typing import NamedTuple

from msgspec import UNSET, UnsetType
from pyroaring import BitMap64

from goqueue import codec
from goqueue.api.handlers.showing import show_incomplete, show_read
from goqueue.api.service import Service
from goqueue.api.turns import in_turns
from goqueue.broker.partition import Partition
from goqueue.broker.topic import OpenTopic
from goqueue.model import limits
from goqueue.model.errors import InvalidRequest, Quarantined
from goqueue.model.record import Record
from goqueue.model.times import parse_time
from goqueue.wire import shapes

_Row = tuple[int, int, int, Record]
"""Time, partition, offset, and the record."""
_APPENDED = itemgetter(0, 1, 2)


class _Found(NamedTuple):
    """Records of a partition, and where to read on."""

    records: list[Record]
    next_offset: int
    cut_after: Record | None
    """The last record that was looked at, also if it is hidden, when the page ended before the records did."""
    damage: Quarantined | None
    """What begins at `next_offset`, when the page ended because of it."""


async def read_partition(
    service: Service, request: shapes.ReadPartition, topic: str, partition: int
) -> shapes.Messages:
    opened = service.broker.topics.named(topic)
    found = await _read(service, opened, opened.partition(partition), request, request.max_bytes)
    rows = [(partition, record) for record in _ordered(found.records, request)]
    return shapes.Messages(
        messages=await _shown(service, topic, rows),
        next_offset=found.next_offset,
        incomplete=show_incomplete(_damage_before(partition, found) | _unknown(opened, request, partition)),
    )


async def read_topic(service: Service, request: shapes.ReadPartition, topic: str) -> shapes.TopicMessages:
    """All partitions together, in the order of their append times; nothing is left out in between."""
    opened = service.broker.topics.named(topic)
    count = len(opened.slots)
    if request.offset is not UNSET and count > 1:
        raise InvalidRequest(
            f"{topic} has {count} partitions and an offset belongs to one: "
            f"read /topics/{topic}/partitions/0/messages, or use from_time"
        )
    page = _Page(request)
    share = max(request.max_bytes // count, 1)
    for number in range(count):
        try:
            found = await _read(service, opened, opened.partition(number), request, share)
        except Quarantined as damage:
            raise _singly(topic, number, damage) from None
        page.add(number, found)
        await asyncio.sleep(0)  # many partitions take long together: others get their turn
    next_offsets = {str(number): offset for number, offset in page.next_offsets.items()}
    rows = sorted(((number, record) for _, number, _, record in page.rows), key=lambda row: _rank(row[1], request))
    return shapes.TopicMessages(
        messages=await _shown(service, topic, rows),
        next_offsets=next_offsets,
        next_offset=next_offsets["0"] if count == 1 else UNSET,
        incomplete=show_incomplete(page.incomplete | _unknown(opened, request)),
    )


def _singly(topic: str, number: int, damage: Quarantined) -> Quarantined:
    """The refusal of a read of all partitions, which cannot go on behind the damage of one: it names that one."""
    found = Quarantined(
        damage.first, damage.next_offset, where=damage.where, reason=damage.reason, topic=topic, partition=number
    )
    path = f"/topics/{topic}/partitions/{number}/messages?offset={damage.next_offset}"
    found.args = (f"partition {number}: {damage}; read the partitions singly, and this one with {path}",)
    return found


def _damage_before(number: int, found: _Found) -> dict[int, str]:
    return {} if found.damage is None else {number: str(found.damage)}


async def _shown(service: Service, topic: str, rows: Sequence[tuple[int, Record]]) -> list[shapes.ReadMessage]:
    """Partition and record each, as JSON has them."""
    return await in_turns(service.turns, rows, lambda row: show_read(topic, *row))


def _rank(record: Record, request: shapes.ReadPartition) -> int:
    return record.priority if request.order == "priority" else 0


def _ordered(records: list[Record], request: shapes.ReadPartition) -> list[Record]:
    return sorted(records, key=lambda record: _rank(record, request))


class _Page:
    """The earliest records of several partitions, never more of them than the page may have.

    Nothing later than `_horizon` is in it: from there on a partition was cut short, or records were let go.
    """

    def __init__(self, request: shapes.ReadPartition) -> None:
        self._request = request
        self._horizon: tuple[int, ...] = (limits.MAX_OFFSET,)
        self.rows: list[_Row] = []
        self.next_offsets: dict[int, int] = {}
        self._damage: dict[int, tuple[int, Quarantined]] = {}
        """By partition: where it could not be read any further, and why."""

    @property
    def incomplete(self) -> dict[int, str]:
        """Partitions of which the page ends where they are damaged, and why."""
        return {
            number: str(damage)
            for number, (offset, damage) in self._damage.items()
            if self.next_offsets[number] == offset
        }

    def add(self, number: int, found: _Found) -> None:
        self.next_offsets[number] = found.next_offset
        if found.damage is not None:
            self._damage[number] = found.next_offset, found.damage
        self.rows += [(record.timestamp, number, record.offset, record) for record in found.records]
        if found.cut_after is not None:
            self._horizon = min(self._horizon, (found.cut_after.timestamp, number, found.cut_after.offset))
        self.rows.sort(key=_APPENDED)
        kept = self._fitting()
        for _, partition, offset, _ in self.rows[kept:]:
            self.next_offsets[partition] = min(self.next_offsets[partition], offset)
        if kept < len(self.rows):
            del self.rows[kept:]
            if self.rows:
                self._horizon = min(self._horizon, _APPENDED(self.rows[-1]))

    def _fitting(self) -> int:
        """How many rows may stay: at least one of those that are not beyond the horizon."""
        left = self._request.max_bytes
        for count, row in enumerate(self.rows):
            left -= len(row[3].key or b"") + len(row[3].value or b"")
            if _APPENDED(row) > self._horizon or (count and (count >= self._request.limit or left < 0)):
                return count
        return len(self.rows)


async def offsets(service: Service, request: shapes.FindOffsets, topic: str) -> shapes.Offsets:
    opened = service.broker.topics.named(topic)
    time = _time(request.timestamp)
    found = {}
    for number in range(len(opened.slots)):
        partition = opened.partition(number)
        at = partition.log.end_offset if time is None else await service.broker.reader.offset_at(partition, time)
        found[str(number)] = at
    return shapes.Offsets(offsets=found)


async def _read(
    service: Service, topic: OpenTopic, partition: Partition, request: shapes.ReadPartition, max_bytes: int
) -> _Found:
    """As much as was asked for; a log gives out what lies in one segment at a time, and always one record."""
    reader = service.broker.reader
    from_time, to_time = _time(request.from_time), _time(request.to_time)
    start = partition.log.start_offset
    if request.offset is not UNSET:
        start = request.offset
    if from_time is not None:
        start = max(start, await reader.offset_at(partition, from_time))
    end = None if to_time is None else await reader.offset_at(partition, to_time)
    committed = request.isolation == "read_committed"
    records: list[Record] = []
    last: Record | None = None
    met: Quarantined | None = None
    headers_left = limits.MAX_READ_HEADERS
    while len(records) < request.limit and max_bytes > 0 and headers_left > 0:
        stop = end
        if committed:
            stop = partition.stable_end if end is None else min(end, partition.stable_end)
        try:
            chunk = await reader.read(
                partition,
                start,
                max_bytes=min(max_bytes, limits.READ_AT_ONCE_BYTES),
                max_count=request.limit - len(records),
                to_offset=stop,
            )
        except Quarantined as damage:
            if not records:
                raise
            met = damage.with_traceback(None)
            break  # what lies before the damage is given out; the next read meets it
        if not chunk.count:
            last = None  # there is no more: nothing was cut
            start = max(start, chunk.next_offset)
            break
        if records and len(chunk.data) > max_bytes:
            break
        start = chunk.next_offset
        max_bytes -= len(chunk.data)
        async with service.turns.turn() if len(chunk.data) >= limits.READ_AT_ONCE_BYTES // 2 else nullcontext():
            decoded = codec.decode(chunk.data, verified=True)
        last = decoded[-1]
        headers_left -= sum([len(record.headers) for record in decoded])
        # Only now, because others had their turn meanwhile. What was cleaned then may have been hidden before.
        hidden = _hidden(partition) if request.include is UNSET else ()
        if committed:
            hidden = (*hidden, partition.transactions.hidden)
        kept_from = partition.log.start_offset
        records += [
            record
            for record in decoded
            if record.offset >= kept_from
            and not record.control
            and not any(record.offset in offsets for offsets in hidden)
        ]
        topic.meters.messages_read += chunk.count
        topic.meters.bytes_read += len(chunk.data)
    return _Found(records, start, last, met)


def _hidden(partition: Partition) -> tuple[BitMap64, ...]:
    """What is not due, or never will be."""
    if partition.sidecar is None:
        return partition.delays.pending, partition.unknown_delays
    cancelled, aborted = partition.deliveries.cancelled, partition.transactions.hidden
    return partition.delays.pending, cancelled - aborted if aborted else cancelled


def _unknown(topic: OpenTopic, request: shapes.ReadPartition, number: int | None = None) -> dict[int, str]:
    """Where delayed messages are left out: of all partitions, or of one."""
    if request.include is not UNSET:
        return {}
    partitions = topic.partitions if number is None else [topic.partition(number)]
    return {each.number: str(each.sidecar_damage) for each in partitions if each.unknown_delays}


def _time(text: str | UnsetType) -> int | None:
    """A plus sign in a query arrives as a space unless it was escaped."""
    return None if text is UNSET else parse_time(text.replace(" ", "+"))
