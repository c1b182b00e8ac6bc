"""Delayed messages that are not due: looking at them, cancelling them, moving them to another time."""

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from pyroaring import BitMap64

from goqueue import codec
from goqueue.base.offset_sets import column
from goqueue.broker.partition import Partition
from goqueue.broker.read import PartitionReader
from goqueue.broker.sidecars import Sidecars
from goqueue.broker.topic import OpenTopic
from goqueue.broker.topics import TopicCatalogue
from goqueue.delivery.commands import Cancel, Move
from goqueue.model.errors import AlreadyDelivered, Conflict, GoQueueError, OffsetOutOfRange, Quarantined, UnknownDelay
from goqueue.model.names import show_offsets
from goqueue.model.record import Record
from goqueue.storage.walk import Damage

_SAID: Final = 10
"""Damaged ranges that are named."""


class DelayState(StrEnum):
    """What is true of a message for a group that has not had it yet. What groups did with it is not looked at."""

    PENDING = "pending"
    DELIVERED = "delivered"
    """It is due: groups get it, or got it."""
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    """It was due for longer than it may wait: groups that have not had it do not get it any more."""


class Delayed(NamedTuple):
    topic: str
    partition: int
    record: Record
    deliver_at: int
    state: DelayState


class DelayedPage(NamedTuple):
    found: list[Delayed]
    total: int
    """How many are pending in all, as far as is known."""
    incomplete: dict[int, str]
    """Partitions of which nobody knows all that are delayed, and why."""


class DelayedMessages:
    """Used from one event loop."""

    def __init__(
        self,
        *,
        sidecars: Sidecars,
        topics: TopicCatalogue,
        reader: PartitionReader,
        clock: Callable[[], int],
        monotonic: Callable[[], int],
        watch: Callable[[Partition], None],
    ) -> None:
        self._sidecars = sidecars
        self._topics = topics
        self._reader = reader
        self._clock = clock
        self._monotonic = monotonic
        self._watch = watch

    # --- looking

    async def list(self, topic: OpenTopic, *, skip: int, limit: int) -> DelayedPage:
        """Those that are pending, by partition and offset, and how many there are in all."""
        found: list[Delayed] = []
        met: dict[int, str] = {}
        count = sum(len(_decided(partition)) for partition in topic.partitions)
        for partition in topic.partitions:
            pending = _decided(partition)
            wanted = pending[skip : skip + limit - len(found)] if skip < len(pending) else BitMap64()
            skip = max(skip - len(pending), 0)
            for offset in column(wanted):
                try:
                    one = await self._look(topic, partition, offset)
                except Quarantined as damage:
                    met[partition.number] = str(damage)
                    continue
                if one is not None and one.state is DelayState.PENDING:  # else it was cancelled, or came due, meanwhile
                    found.append(one)
            if len(found) >= limit:
                break
        for partition in topic.partitions:
            await self._sidecars.safe(partition)
        return DelayedPage(found, count, met | damage_of(topic))  # what was read for this is among it

    async def get(self, topic: OpenTopic, number: int, offset: int) -> Delayed:
        partition = topic.partition(number)
        one = await self._look(topic, partition, offset)
        await self._sidecars.safe(partition)  # it may have been cancelled or moved just now
        if one is None:
            raise UnknownDelay(f"{topic.meta.name} has no delayed message at offset {offset} of partition {number}")
        return one

    async def _look(self, topic: OpenTopic, partition: Partition, offset: int) -> Delayed | None:
        """None when there is no such message, or it was never delayed. Quarantined when it cannot be read."""
        if not partition.log.start_offset <= offset < partition.log.end_offset:
            return None
        if offset in partition.unknown_delays and partition.sidecar_damage is not None:
            raise partition.sidecar_damage.with_traceback(None)
        transactions = partition.transactions
        if offset in transactions.uncommitted or offset in transactions.hidden:
            return None
        try:
            chunk = await self._reader.read(partition, offset, max_bytes=1, max_count=1, to_offset=offset + 1)
        except OffsetOutOfRange:
            return None
        records = codec.decode(chunk.data, verified=True)
        extension = records[0].extension if records else None
        if extension is None or extension.deliver_at is None:
            return None
        moved = None if partition.sidecar is None else partition.deliveries.moved.get(offset)
        deliver_at = extension.deliver_at if moved is None else moved
        expires_at = extension.expires_at
        if expires_at is not None:  # it was counted from the first time
            expires_at += deliver_at - extension.deliver_at
        elif partition.topic.settings.message_ttl_ms is not None:
            expires_at = max(partition.appended_at(records[0]), deliver_at) + partition.topic.settings.message_ttl_ms
        state = self._state(partition, offset, expires_at)
        return Delayed(topic.meta.name, partition.number, records[0], deliver_at, state)

    def _state(self, partition: Partition, offset: int, expires_at: int | None) -> DelayState:
        """`expires_at` goes by when it is due now, and by the topic if it has no time to live of its own."""
        if offset in partition.delays.pending:
            return DelayState.PENDING
        if partition.sidecar is not None and offset in partition.deliveries.cancelled:
            return DelayState.CANCELLED
        if expires_at is not None and expires_at <= self._clock():
            return DelayState.EXPIRED
        return DelayState.DELIVERED

    # --- changing

    async def cancel(self, topic: OpenTopic, number: int, offset: int) -> None:
        """Raises UnknownDelay, AlreadyDelivered when it is due, or a Conflict when it was cancelled before."""
        one = await self.get(topic, number, offset)
        if one.state is DelayState.PENDING:
            if not await self.cancel_all(topic, [(number, offset)]):
                return
            one = await self.get(topic, number, offset)  # somebody was faster, or its time has come meanwhile
        raise _too_late(one)

    async def cancel_all(self, topic: OpenTopic, ids: Iterable[tuple[int, int]]) -> set[tuple[int, int]]:
        """Those that are not known to be pending, and were left alone. What is cancelled never fires."""
        by_partition: dict[int, BitMap64] = {}
        for number, offset in ids:
            by_partition.setdefault(number, BitMap64()).add(offset)
        failed: set[tuple[int, int]] = set()
        written = []
        for number, offsets in by_partition.items():
            try:
                partition = topic.partition(number)
                if partition.sidecar_damage is not None:
                    raise partition.sidecar_damage.with_traceback(None)
            except GoQueueError:
                failed |= {(number, offset) for offset in column(offsets)}
                continue
            await self._sidecars.made(partition)
            left = self._sidecars.write(partition, Cancel(offsets))
            failed |= {(number, offset) for offset in column(left)}
            written.append(partition)
        for partition in written:
            await self._sidecars.safe(partition)
        return failed

    async def move(self, topic: OpenTopic, number: int, offset: int, deliver_at: int) -> Delayed:
        """Refused as in `cancel`. A time that has passed is now: its time to live counts from there."""
        deliver_at = max(deliver_at, self._clock())
        await self.get(topic, number, offset)
        partition = topic.partition(number)
        await self._sidecars.made(partition)
        offsets = BitMap64([offset])
        if self._sidecars.write(partition, Move(offsets, deliver_at)):
            raise _too_late(await self.get(topic, number, offset))
        partition.delays.move(offsets, deliver_at, wall=self._clock(), now=self._monotonic())
        self._watch(partition)
        await self._sidecars.safe(partition)
        return await self.get(topic, number, offset)


def damage_of(topic: OpenTopic) -> dict[int, str]:
    """Partitions in which there may be delayed messages that nobody knows of, as far as somebody met that, and why."""
    found = topic.damage
    for partition in topic.partitions:
        ranges = [each for segment in partition.log.segments for each in segment.damage or ()]
        if ranges:
            found.setdefault(partition.number, _say(ranges))
    return found


def _say(damage: Sequence[Damage]) -> str:
    """Which messages cannot be read: they may be delayed ones."""
    ranges = ", ".join([show_offsets(each.first, each.next_offset) for each in damage[:_SAID]])
    more = "" if len(damage) <= _SAID else f" and {len(damage) - _SAID} more ranges"
    is_one = len(damage) == 1 and damage[0].next_offset == damage[0].first + 1
    return f"{ranges}{more} {'is' if is_one else 'are'} damaged"


def _decided(partition: Partition) -> BitMap64:
    """Those that are pending and do not belong to an open transaction."""
    pending, uncommitted = partition.delays.pending, partition.transactions.uncommitted
    return pending - uncommitted if uncommitted else pending


def _too_late(one: Delayed) -> Conflict:
    name = f"the message at offset {one.record.offset} of partition {one.partition} of {one.topic}"
    if one.state is DelayState.CANCELLED:
        return Conflict(f"{name} was cancelled: it is never delivered; publish it again if it is wanted")
    return AlreadyDelivered(f"{name} is due: groups get it, or got it")
