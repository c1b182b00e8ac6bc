"""Members of groups that work with a broker as a door would, with time that a test moves."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from goqueue import codec
from goqueue.broker.broker import Broker
from goqueue.broker.coordination import View
from goqueue.broker.offsets import ByPartition, Lag
from goqueue.broker.parks import Park
from goqueue.broker.partition import Partition
from goqueue.broker.poll import Polled, Turn
from goqueue.broker.settle import Fate
from goqueue.delivery.deliveries import Deliveries
from goqueue.delivery.handles import Handle
from goqueue.groups.commands import Join
from goqueue.groups.group import Group, Member
from goqueue.io.disk import Disk
from goqueue.model.dead_letters import DeadLetter, unpack_dead_letter
from goqueue.model.errors import StaleHandle
from goqueue.model.groups import Place, Position
from goqueue.model.names import dlq_name
from goqueue.model.publishing import Acks
from goqueue.model.record import Extension, Lane, Record
from goqueue.model.topic import TopicSettings
from tests.support.loop import turns
from tests.support.moved_time import MovedTime
from tests.unit.broker.brokers import Clock, block, messages, opened

SESSION_MS = 30_000
REBALANCE_MS = 30_000
GROUP = "billing"
TOPIC = "orders"
EARLIEST = Position(Place.EARLIEST)
LATEST = Position(Place.LATEST)


class Consumers:
    """All methods are about the group `billing` and the topic `orders` unless they are told otherwise."""

    def __init__(self, broker: Broker, clock: Clock, time: MovedTime) -> None:
        self.broker = broker
        self.clock = clock
        self.time = time

    async def pass_by(self, ms: int) -> None:
        """Both clocks go on."""
        self.clock.now += ms
        self.time.move(ms)
        await self.followed()

    # --- topics

    async def create(self, topic: str = TOPIC, partitions: int = 1, **settings: Any) -> None:
        await self.broker.topics.create(topic, partitions, TopicSettings(**settings), self.clock())

    async def delete(self, topic: str = TOPIC) -> None:
        await self.broker.topics.delete(topic, self.clock())
        await self.followed()

    async def grow(self, partitions: int, topic: str = TOPIC) -> None:
        await self.broker.topics.add_partitions(topic, partitions, self.clock())
        await self.followed()

    async def followed(self) -> None:
        """Until what happens by itself, because topics changed or time has passed, has happened."""
        await turns()
        while self.broker.groups._tasks:
            await asyncio.wait(list(self.broker.groups._tasks))
            await turns()

    def put(self, *texts: str, topic: str = TOPIC, partition: int = 0) -> None:
        opened_topic = self.broker.topics.named(topic)
        self.broker.publisher.publish(opened_topic, partition, messages(*texts), acks=Acks.LEADER)

    def send(self, *records: Record, topic: str = TOPIC, partition: int = 0) -> None:
        self.broker.publisher.publish(self.broker.topics.named(topic), partition, block(*records), acks=Acks.LEADER)

    def delay(self, *texts: str, by_ms: int, topic: str = TOPIC, partition: int = 0) -> None:
        """Publish messages that are due so much later."""
        self.send(*(message(text, deliver_at=-by_ms) for text in texts), topic=topic, partition=partition)

    async def change(self, topic: str = TOPIC, **changes: Any) -> None:
        """Settings of a topic."""
        await self.broker.topics.change(topic, changes, self.clock())

    def partition(self, number: int = 0, topic: str = TOPIC) -> Partition:
        return self.broker.topics.named(topic).partition(number)

    # --- members

    async def join(
        self,
        client: str = "worker",
        *topics: str,
        group: str = GROUP,
        start: Position = EARLIEST,
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        **more: Any,
    ) -> View:
        groups = self.broker.groups
        command = Join(
            group=group,
            client_id=client,
            topics=topics or (TOPIC,),
            new_id=groups.new_member_id(client),
            session_ms=session_ms,
            rebalance_ms=rebalance_ms,
            **more,
        )
        return await groups.join(command, partial(self.broker.offsets.begin, position=start))

    async def heartbeat(
        self,
        member_id: str,
        *given_up: str,
        finishing: Iterable[str] = (),
        generation: int | None = None,
        group: str = GROUP,
    ) -> View:
        member = self.member(member_id, group)
        return await self.broker.groups.heartbeat(self.group(group), member, given_up, finishing, generation)

    async def leave(self, member_id: str, *, group: str = GROUP) -> None:
        await self.broker.offsets.leave(self.group(group), self.member(member_id, group))

    def group(self, name: str = GROUP) -> Group:
        return self.broker.groups.machine.group(name)

    def member(self, member_id: str, group: str = GROUP) -> Member:
        return self.group(group).member(member_id)

    def owned(self, member_id: str) -> list[int]:
        """The numbers of its partitions, of one topic."""
        return [part.partition for part in self.member(member_id).parts]

    # --- messages

    async def park(self, member_id: str, timeout_ms: int = 60_000, *, group: str = GROUP, **more: Any) -> Turn:
        return await self.broker.poller.park(group, member_id, timeout_ms=timeout_ms, **more)

    async def take(
        self,
        member_id: str,
        turn: Turn | None = None,
        *,
        group: str = GROUP,
        max_messages: int = 100,
        max_bytes: int = 1 << 20,
        visibility_ms: int | None = None,
    ) -> Polled:
        """Without a turn: that of its newest poll."""
        if turn is None:
            member = self.member(member_id, group)
            turn = Turn(self.group(group), member, member.poll)
        return await self.broker.poller.take(
            turn, max_messages=max_messages, max_bytes=max_bytes, visibility_ms=visibility_ms
        )

    async def poll(
        self, member_id: str, *, group: str = GROUP, timeout_ms: int = 0, received: int | None = None, **limits: int
    ) -> Polled:
        turn = await self.park(member_id, timeout_ms, group=group, received=received)
        return await self.take(member_id, turn, group=group, **limits)

    async def parked(
        self, member_id: str, timeout_ms: int = 3600 * 1000, *, group: str = GROUP
    ) -> "asyncio.Task[Polled]":
        """A poll that waits, and does wait by now."""
        parks, number = self.broker.groups.parks, self.group(group).number

        def park() -> Park | None:
            return parks._by_group.get(number, {}).get(member_id)

        earlier = park()
        waiting = asyncio.ensure_future(self.poll(member_id, group=group, timeout_ms=timeout_ms))
        while park() is earlier and not waiting.done():
            await asyncio.sleep(0)
        assert not waiting.done(), "it was answered at once"
        return waiting

    async def texts(self, member_id: str, **more: Any) -> list[str]:
        """What a poll brings."""
        return texts(await self.poll(member_id, **more))

    async def drain(self, member_id: str, **more: Any) -> list[str]:
        """What polls bring until there is no more; news may come before messages."""
        found: list[str] = []
        for _ in range(3):
            while part := await self.texts(member_id, **more):
                found += part
        return found

    # --- settling by handles

    async def ack(self, *handles: Handle) -> list[Fate]:
        return await self.broker.settlement.ack(handles)

    async def nack(self, *handles: Handle, delay_ms: int | None = None) -> list[Fate]:
        return await self.broker.settlement.nack(handles, delay_ms)

    async def reject(self, *handles: Handle, reason: str = "") -> list[Fate]:
        return await self.broker.settlement.reject(handles, reason)

    async def extend(self, *handles: Handle, by_ms: int) -> list[Fate]:
        return await self.broker.settlement.extend(handles, by_ms, self.clock())

    # --- dead letters

    async def buried(self) -> None:
        """Until all dead letters that can be written are."""
        await turns()
        while tasks := list(self.broker._undertaker._at_work.values()):
            await asyncio.wait(tasks)
            await turns()

    async def letters(self, topic: str = TOPIC, partition: int = 0) -> list[tuple[Record, DeadLetter]]:
        """Of one partition of a topic: each with its story."""
        await self.buried()
        name = dlq_name(topic)
        if self.broker.topics.shape_of(name) is None:
            return []
        found = []
        for record in records_of(self.partition(partition, name)):
            story = None
            if record.extension is not None and record.extension.blob is not None:
                story = unpack_dead_letter(record.extension.blob)
            if not record.control:
                assert story is not None
                found.append((record, story))
        return found

    # --- offsets

    async def commit(
        self,
        member_id: str,
        below: int | ByPartition,
        *,
        partition: int = 0,
        group: str = GROUP,
        generation: int | None = None,
        received: int | None = None,
    ) -> None:
        offsets = {TOPIC: {partition: below}} if isinstance(below, int) else below
        found, member = self.group(group), self.member(member_id, group)
        await self.broker.offsets.commit(found, member, offsets, generation=generation, received=received)

    async def reset(self, place: Place, value: int = 0, *, group: str = GROUP, **more: Any) -> dict[int, int]:
        return await self.broker.offsets.reset(self.group(group), TOPIC, Position(place, value), **more)

    async def offsets(self, group: str = GROUP) -> dict[str, dict[int, int]]:
        return await self.broker.offsets.offsets(self.group(group), None)

    async def lag(self, group: str = GROUP, *, topic: str = TOPIC) -> dict[int, Lag]:
        return (await self.broker.offsets.lag(self.group(group)))[topic]

    def deliveries(self, partition: int = 0, topic: str = TOPIC) -> Deliveries:
        sidecar = self.partition(partition, topic).sidecar
        assert sidecar is not None, "no group was ever here"
        return sidecar.deliveries


@asynccontextmanager
async def consuming(
    path: Path, *, disk: Disk | None = None, clock: Clock | None = None, **more: Any
) -> AsyncIterator[Consumers]:
    """Run it with `run_timed`. At its end the broker is closed."""
    clock, time = clock or Clock(), MovedTime()
    async with opened(path, disk=disk, clock=clock, monotonic=time, **more) as broker:
        yield Consumers(broker, clock, time)


def texts(polled: Polled) -> list[str]:
    records = (record for row in polled.rows for record in codec.decode(row.chunk.data))
    return [(record.value or b"").decode() for record in records]


def places(polled: Polled) -> list[tuple[str, int, int]]:
    """Topic, partition and offset of each message."""
    return [
        (row.topic.meta.name, row.partition, record.offset)
        for row in polled.rows
        for record in codec.decode(row.chunk.data)
    ]


def deliveries_of(polled: Polled) -> list[int]:
    """How often each message was delivered by now."""
    return [row.deliveries for row in polled.rows for _ in range(row.chunk.count)]


def handles_of(polled: Polled) -> list[Handle]:
    """By which its messages are settled, in their order."""
    return [
        Handle(row.topic.meta.name, row.partition, record.offset, row.deliveries, polled.group.number, polled.number)
        for row in polled.rows
        for record in codec.decode(row.chunk.data)
    ]


def handle_of(polled: Polled, text: str) -> Handle:
    """Of the message with that text."""
    return dict(zip(texts(polled), handles_of(polled), strict=True))[text]


def refused(fates: Iterable[Fate]) -> list[bool]:
    """Which of them were refused; anything but a stale handle is raised."""
    found = []
    for fate in fates:
        if fate.refusal is not None and not isinstance(fate.refusal, StaleHandle):
            raise fate.refusal
        found.append(fate.refusal is not None)
    return found


def message(
    text: str,
    *,
    key: str | None = None,
    lane: Lane = Lane.NORMAL,
    deliver_at: int | None = None,
    expires_at: int | None = None,
    headers: tuple[tuple[str, bytes], ...] = (),
) -> Record:
    """Times below zero are from when it is appended."""
    extension = None
    if deliver_at is not None or expires_at is not None:
        extension = Extension(deliver_at=deliver_at, expires_at=expires_at)
    return Record(
        value=text.encode(),
        key=None if key is None else key.encode(),
        priority=lane,
        headers=headers,
        extension=extension,
    )


def records_of(partition: Partition) -> list[Record]:
    """Everything in a partition."""
    found: list[Record] = []
    offset = partition.log.start_offset
    while offset < partition.log.end_offset:
        chunk = partition.log.read(offset, max_bytes=1 << 20)
        found += codec.decode(chunk.data)
        offset = chunk.next_offset
    return found


def numbered(count: int, first: int = 0) -> Iterable[str]:
    """Texts to publish: m0, m1, ..."""
    return [f"m{number}" for number in range(first, first + count)]


def read_slowly(to: Consumers, monkeypatch: pytest.MonkeyPatch, read: Callable[..., Awaitable[Any]]) -> None:
    """As if a disk had to be asked: a poll that reads lets others in between."""
    monkeypatch.setattr(to.broker.reader, "read_now", lambda *_, **__: None)
    monkeypatch.setattr(to.broker.reader, "read", read)
