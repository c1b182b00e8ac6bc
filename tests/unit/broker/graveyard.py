"""A broker with dead letters, and redrives of them, with time that a test moves."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from goqueue.broker.letters import Letter, Place
from goqueue.broker.partition import Partition
from goqueue.broker.poll import Polled
from goqueue.io.disk import Disk
from goqueue.jobs.letters import LetterFilter
from goqueue.jobs.redrive import Redrive
from goqueue.model.publishing import Acks
from goqueue.model.record import Record
from tests.support.loop import turns
from tests.unit.broker.brokers import Clock, block
from tests.unit.broker.consumers import GROUP, TOPIC, Consumers, consuming, handles_of, records_of

DLQ = f"{TOPIC}.dlq"
BEGINNING = Place(0, 0)


class Graveyard:
    """All is about the topic `orders` unless it is told otherwise."""

    def __init__(self, to: Consumers) -> None:
        self.to = to
        self.broker = to.broker
        self.runner = to.broker.redrives
        self.letters = to.broker.letters

    # --- dying

    async def kill(
        self, *values: str, partition: int = 0, group: str = GROUP, detail: str = "", key: str | None = None
    ) -> None:
        """Publish messages; a consumer rejects them all."""
        records = [Record(value=value.encode(), key=None if key is None else key.encode()) for value in values]
        await self.kill_records(records, partition=partition, group=group, detail=detail)

    async def kill_records(
        self, records: Sequence[Record], *, partition: int = 0, group: str = GROUP, detail: str = ""
    ) -> None:
        topic = self.broker.topics.named(TOPIC)
        self.broker.publisher.publish(topic, partition, block(*records), acks=Acks.LEADER)
        await self.reject_all(group=group, detail=detail)

    async def reject_all(self, *, group: str = GROUP, detail: str = "") -> None:
        member = (await self.to.join(group=group)).member_id
        while True:
            polled = await self.to.poll(member, group=group, max_messages=1000)
            if not polled.rows:
                break
            await self.reject(polled, detail)
        await self.to.leave(member, group=group)

    async def reject(self, polled: Polled, detail: str = "") -> None:
        """All that a poll brought. They are dead letters when it returns."""
        fates = await self.broker.settlement.reject(handles_of(polled), detail)
        assert all(fate.refusal is None for fate in fates)
        undertaker = self.broker._undertaker
        while undertaker._at_work:
            await asyncio.wait(list(undertaker._at_work.values()))

    # --- looking

    def partition(self, number: int = 0, topic: str = TOPIC) -> Partition:
        return self.to.partition(number, topic)

    def values(self, number: int = 0, topic: str = TOPIC) -> list[str]:
        return [(record.value or b"").decode() for record in messages_of(self.partition(number, topic))]

    async def dead(self, *, limit: int = 1000, begin: Place = BEGINNING, **wanted: Any) -> list[Letter]:
        """Those that are listed, on all pages."""
        found: list[Letter] = []
        at: Place | None = begin
        while at is not None:
            letters, at, _ = await self.letters.page(self.broker.topics.named(DLQ), LetterFilter(**wanted), at, limit)
            found += letters
        return found

    async def dead_values(self, **wanted: Any) -> list[str]:
        return [(letter.record.value or b"").decode() for letter in await self.dead(**wanted)]

    # --- redriving

    async def begin(self, *, target: str | None = None, rate: float | None = None, **wanted: Any) -> Redrive:
        redrive, matched, _ = await self.runner.begin(TOPIC, LetterFilter(**wanted), target=target, rate=rate)
        assert redrive is not None
        assert redrive.plan.matched == matched
        return redrive

    async def ended(self, redrive: Redrive) -> Redrive:
        """As it is when it no longer runs."""
        worker = self.runner._workers.get(redrive.redrive_id)
        if worker is not None and worker.task is not None:
            await asyncio.wait((worker.task,))
        return self.look(redrive)

    async def redrive(self, **more: Any) -> Redrive:
        return await self.ended(await self.begin(**more))

    def look(self, redrive: Redrive) -> Redrive:
        return self.runner.machine.redrive(redrive.redrive_id)

    async def quiet(self) -> None:
        """Until redrives have ended."""
        await turns()
        while self.runner._workers:
            await asyncio.wait([worker.task for worker in self.runner._workers.values() if worker.task is not None])


@asynccontextmanager
async def graveyard(
    path: Path, *, disk: Disk | None = None, clock: Clock | None = None, partitions: int | None = 1, **settings: Any
) -> AsyncIterator[Graveyard]:
    """Run it with `run_timed`. There is a new topic unless it has no `partitions`."""
    async with consuming(path, disk=disk, clock=clock) as to:
        if partitions is not None:
            await to.create(partitions=partitions, **settings)
        yield Graveyard(to)


def messages_of(partition: Partition) -> list[Record]:
    """Control records are left out."""
    return [record for record in records_of(partition) if not record.control]
