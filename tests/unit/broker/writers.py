"""Producers that write in transactions, as a door would have them, beside the consumers of the same broker."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from goqueue import codec
from goqueue.broker.offsets import ByPartition
from goqueue.broker.publish import Receipt
from goqueue.broker.settle import Fate
from goqueue.delivery.handles import Handle
from goqueue.groups.group import Group, Member
from goqueue.model.publishing import Acks
from goqueue.model.record import Extension, Producer, Record
from goqueue.transactions.commands import Begin, Committed
from goqueue.transactions.coordinator import Transaction
from goqueue.transactions.coordinator import Writer as Who
from tests.unit.broker.brokers import block
from tests.unit.broker.consumers import TOPIC, Consumers, message, records_of

TIMEOUT_MS = 60_000


class Writer:
    """One producer. Messages are numbered per partition, as a client does it."""

    def __init__(self, to: Consumers, producer_id: int, epoch: int = 0, transactional_id: str = "") -> None:
        self.to = to
        self.producer_id = producer_id
        self.epoch = epoch
        self.transactional_id = transactional_id
        self.number = 0
        """Of its last transaction."""
        self.published = 0
        """In it."""
        self._sequences: dict[tuple[str, int], int] = {}

    @classmethod
    async def make(cls, to: Consumers, transactional_id: str = "", timeout_ms: int = TIMEOUT_MS) -> "Writer":
        if not transactional_id:
            return cls(to, await to.broker.init_producer())
        identity = await to.broker.transactions.identify(transactional_id, timeout_ms)
        return cls(to, identity.producer_id, identity.epoch, transactional_id)

    def to_broker(self, to: Consumers) -> "Writer":
        """The same program, with a broker that was started again."""
        self.to = to
        return self

    @property
    def who(self) -> Who:
        return Who(self.producer_id, self.epoch, self.transactional_id)

    @property
    def transaction(self) -> Transaction:
        return self.to.broker.transactions.machine.of(self.who, self.number)

    async def begin(self, name: str = "", timeout_ms: int | None = None) -> "Writer":
        command = Begin(
            producer_id=self.producer_id,
            epoch=self.epoch,
            transactional_id=self.transactional_id,
            name=name,
            timeout_ms=timeout_ms,
        )
        self.number = (await self.to.broker.transactions.begin(command)).number
        self.published = 0
        return self

    def send(self, *records: Record, topic: str = TOPIC, partition: int = 0, number: int | None = None) -> Receipt:
        """In its transaction, or in another one."""
        number = self.number if number is None else number
        sequence = self._sequences.get((topic, partition), 0)
        producer = Producer(self.producer_id, self.epoch, sequence)
        stamped = [_in(record, number, producer) for record in records]
        opened = self.to.broker.topics.named(topic)
        receipt = self.to.broker.publisher.publish(
            opened, partition, block(*stamped), acks=Acks.LEADER, producer=producer
        )
        self._sequences[topic, partition] = sequence + len(records)
        self.published += len(records)
        return receipt

    def put(self, *texts: str, key: str | None = None, topic: str = TOPIC, partition: int = 0) -> Receipt:
        return self.send(*(message(text, key=key) for text in texts), topic=topic, partition=partition)

    async def ack(self, *handles: Handle) -> list[Fate]:
        runner, number = self.to.broker.transactions, self.number
        runner.writing(self.transaction)
        return await self.to.broker.settlement.pledge(
            number, handles, lambda partition: runner.take_part(number, partition)
        )

    async def ack_below(self, group: Group, member: Member, offsets: ByPartition) -> None:
        take_part = partial(self.to.broker.transactions.take_part, self.number)
        await self.to.broker.offsets.commit(group, member, offsets, pledged_to=self.number, on_pledged=take_part)

    async def commit(self, **counts: Any) -> Committed:
        return await self.to.broker.transactions.commit(self.transaction, **counts)

    async def abort(self) -> tuple[int, ...]:
        return await self.to.broker.transactions.abort((self.transaction.number,))


def _in(record: Record, number: int, producer: Producer) -> Record:
    extension = msgspec.structs.replace(record.extension or Extension(), transaction=number, producer=producer)
    return msgspec.structs.replace(record, extension=extension)


async def time_out(to: Consumers, ms: int = TIMEOUT_MS + 1) -> None:
    """So much time passes, and what is open for too long is aborted, everywhere."""
    await to.pass_by(ms)
    while tasks := list(to.broker.transactions._tasks):
        await asyncio.wait(tasks)
        await to.followed()


async def visible(to: Consumers, *, topic: str = TOPIC, partition: int = 0, uncommitted: bool = False) -> list[str]:
    """What an ordered read finds, from the beginning to where it stops."""
    found, log = to.partition(partition, topic), to.partition(partition, topic).log
    offset, texts = log.start_offset, list[str]()
    while True:
        chunk = await to.broker.reader.ordered(
            found, offset, max_bytes=1 << 20, max_count=1000, uncommitted=uncommitted
        )
        texts += _texts(chunk.data)
        if chunk.next_offset <= offset:
            return texts
        offset = chunk.next_offset


def _texts(data: memoryview) -> Sequence[str]:
    return [(record.value or b"").decode() for record in codec.decode(data)]


def markers(to: Consumers, *, topic: str = TOPIC, partition: int = 0) -> list[tuple[int | None, bool]]:
    """Transaction and whether it commits, of each marker in a partition."""
    return [
        (record.extension.transaction if record.extension else None, record.commit)
        for record in records_of(to.partition(partition, topic))
        if record.control
    ]
