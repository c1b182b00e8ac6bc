"""A broker whose syncs complete one by one, with something of everything that operations are about in it.

Topic `orders` has two partitions, with messages that group `g` took and did not settle, some that are delayed, and a
dead letter; group `idle` has begun in it and has no members. Everything is durable when the stage is set.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from goqueue.model.errors import GoQueueError
from goqueue.model.settings import Fsync, LogSettings
from tests.support.quiet import quiet
from tests.support.watched_disk import WatchedDisk
from tests.unit.api.services import Served, served
from tests.unit.broker.brokers import Clock

ANSWER: Final = "answer"
LOGS: Final = LogSettings(fsync_interval_ms=3_600_000)
"""Nothing is made durable by and by."""
_TAKEN: Final = 3
"""Messages of each partition that were taken and are not settled."""
_SOON_S: Final = 0.002


class Stage:
    """Calls operations by name, and keeps what later calls need."""

    def __init__(self, to: Served, disk: WatchedDisk, monotonic: Clock) -> None:
        self.call = to.call
        self.broker = to.broker
        self.clock = to.clock
        self.monotonic = monotonic
        self.disk = disk
        self.handles: dict[int, list[str]] = {0: [], 1: []}
        self.kept: dict[str, Any] = {}
        """What preparing a call has found out."""

    async def set(self, fsync: Fsync) -> None:
        call = self.call
        await call("create_topic", name="orders", num_partitions=2, fsync=fsync.value)
        for number in (0, 1):
            batch = [{"value": str(at), "partition": number} for at in range(_TAKEN + 1)]
            await call("publish_batch", topic="orders", messages=batch)
            await call("publish", topic="orders", value="delayed", delay="1h", partition=number)
        self.member = await self.join("g")
        found = await call("poll", group="g", member_id=self.member, timeout=0)
        self.poll = found["poll"]
        for message in found["messages"]:
            self.handles[message["partition"]].append(message["receipt_handle"])
        await call("leave_group", group="idle", member_id=await self.join("idle"))
        await call("reject", receipt_handle=self.handles[0].pop())
        await self.until(self.has_no_deaths)
        await self.everything_durable()

    async def join(self, group: str, **more: Any) -> str:
        member: str = (await self.call("join_group", group=group, client_id="w", topics=["orders"], **more))[
            "member_id"
        ]
        return member

    def has_no_deaths(self) -> bool:
        """Whether every dead letter is written, and the partition has heard of it."""
        partitions = self.broker.topics.named("orders").partitions
        return not any(partition.sidecar and partition.deliveries.outbox for partition in partitions)

    async def until(self, done: Callable[[], bool]) -> None:
        while not done():
            await asyncio.sleep(_SOON_S)

    async def everything_durable(self) -> None:
        """Syncs of what was written so far are over, so that none of them can stand for one that is left out."""
        for log in list(self.broker.store._logs.values()):
            log.hasten()
        await self.until(lambda: not self.disk.dirty)
        await quiet()

    # --- while syncs are held

    async def ask(self, work: Callable[["Stage"], Awaitable[Any]]) -> Any:
        """The answer; the moment when it leaves is a step."""
        try:
            return await work(self)
        except GoQueueError as error:
            return repr(error)
        finally:
            self.disk.say(ANSWER)


async def let_go_one_by_one(disk: WatchedDisk, done: Callable[[], bool]) -> None:
    """Let one sync complete when nothing else happens any more, then the next, until it is done."""
    while True:
        await quiet()
        if done():
            return
        if not disk.let_one_go():
            await asyncio.sleep(_SOON_S)


@asynccontextmanager
async def staged(path: Path, fsync: Fsync) -> AsyncIterator[Stage]:
    disk, monotonic = WatchedDisk(path), Clock()
    async with served(path, disk=disk, logs=LOGS, monotonic=monotonic) as to:
        stage = Stage(to, disk, monotonic)
        await stage.set(fsync)
        try:
            yield stage
        finally:
            disk.let_all_go()


def op(operation: str, **fields: Any) -> Callable[[Stage], Awaitable[Any]]:
    """Ask for an operation. A field that is a function is told the stage."""

    async def work(stage: Stage) -> Any:
        found = {name: value(stage) if callable(value) else value for name, value in fields.items()}
        return await stage.call(operation, **found)

    return work


def in_turn(*works: Callable[[Stage], Awaitable[Any]]) -> Callable[[Stage], Awaitable[Any]]:
    async def work(stage: Stage) -> Any:
        for each in works:
            found = await each(stage)
        return found

    return work


def kept(name: str, work: Callable[[Stage], Awaitable[Any]]) -> Callable[[Stage], Awaitable[Any]]:
    """What it answers is kept."""

    async def keep(stage: Stage) -> Any:
        stage.kept[name] = await work(stage)

    return keep


def of(name: str, field: str) -> Callable[[Stage], Any]:
    """A field of an answer that was kept."""
    return lambda stage: stage.kept[name][field]


def handles(*numbers: int) -> Callable[[Stage], Sequence[str]]:
    """Of the first message that is held in each of these partitions."""
    return lambda stage: [stage.handles[number][0] for number in numbers]
