"""A topic, a group, and members that work for themselves in this process; what the broker says about them.

Whoever starts one can let it leave in order, stop it silently, or look at what it wrote down.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from goqueue.client.connection import Connection
from goqueue.wire.codes import CODES
from tests.chaos.broker_load import split
from tests.chaos.ledger import Violation
from tests.support.group_consumer import Consumer, now
from tests.support.group_doors import DOORS
from tests.support.group_ledger import AnyEvent, Ended, History, lives_of
from tests.support.group_pauses import Sample
from tests.support.group_publisher import Publishers
from tests.support.patience import PATIENCE_S

PARTITIONS: Final = 6
SAMPLE_S: Final = 0.025


class Actor:
    """A member and what it does on its own."""

    def __init__(self, name: str, consumer: Consumer, events: list[AnyEvent]) -> None:
        self.name = name
        self.consumer = consumer
        self.events = events
        self._until = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.consumer.join()
        self._task = asyncio.create_task(self.consumer.run(self._until))

    async def halt(self) -> None:
        """It does not poll any more."""
        self._until.set()
        if self._task is not None:
            await self._task

    @property
    def has_ended(self) -> bool:
        return any(isinstance(event, Ended) for event in self.events)

    def check(self) -> None:
        """Raises what kept it from going on."""
        if self._task is not None and self._task.done():
            self._task.result()

    async def leave(self) -> None:
        await self.halt()
        await self.consumer.leave()

    async def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.consumer.close()


class Stage:
    """A topic, a group, and all who ever took part."""

    def __init__(self, wire: str, http: str, connection: Connection, name: str) -> None:
        self._addresses = {"wire": wire, "http": http}
        self._connection = connection
        self.name = name
        self.topic_id = 0
        self.actors: list[Actor] = []
        self.samples: list[Sample] = []
        self.oversleeps: list[int] = []
        """How much later than it wanted this process, which asked nobody, went on."""

    async def prepare(self, **settings: Any) -> None:
        request = {"name": self.name, "num_partitions": PARTITIONS, **settings}
        self.topic_id = int((await self._connection.ask(CODES["create_topic"], request))["topic_id"], 16)

    def add(self, name: str, *, door: str = "wire", **options: Any) -> Actor:
        events: list[AnyEvent] = []
        consumer = Consumer(DOORS[door](self._addresses[door], self.name, self.name), events.append, **options)
        self.actors.append(Actor(name, consumer, events))
        return self.actors[-1]

    def publishers(self, *, every_s: float, limit: int | None = None) -> Publishers:
        wire = self._addresses["wire"]
        return Publishers(wire, self.topic_id, partitions=PARTITIONS, every_s=every_s, limit=limit)

    # --- looking

    async def describe(self) -> dict[str, Any]:
        return await self._connection.ask(CODES["describe_group"], {"group": self.name})

    async def sample(self) -> None:
        """Write down who has what, for ever."""
        while True:
            described = await self.describe()
            owners = {
                int(name.rpartition("-")[2]): member["member_id"]
                for member in described["members"]
                for name in (*member["assigned_partitions"], *member["revoke"])
            }
            self.samples.append(Sample(now(), owners))
            slept = now()
            await asyncio.sleep(SAMPLE_S)
            self.oversleeps.append(now() - slept - int(SAMPLE_S * 1e9))

    async def lag(self) -> dict[str, Any]:
        """By partition."""
        reply = await self._connection.ask(CODES["group_lag"], {"group": self.name})
        return {
            number: (each["committed"], each["lag"], each["in_flight"])
            for number, each in reply["topics"].get(self.name, {}).items()
        }

    async def until(self, what: str, is_so: Callable[[], Awaitable[bool]]) -> None:
        """Wait for something; it fails at once when a member has failed."""
        deadline = time.monotonic() + PATIENCE_S
        while not await is_so():
            for actor in self.actors:
                actor.check()
            if time.monotonic() > deadline:
                raise Violation(f"{what}: not within {PATIENCE_S} s; {await self.describe()}; {await self.lag()}")
            await asyncio.sleep(0.02)

    async def is_even(self) -> bool:
        """Every member has one partition, and nothing is on its way."""
        described = await self.describe()
        counts = [len(member["assigned_partitions"]) for member in described["members"]]
        return described["state"] == "stable" and counts == [1] * PARTITIONS

    async def is_gone(self, member_id: str) -> bool:
        """Whether this one is no member any more."""
        return all(member["member_id"] != member_id for member in (await self.describe())["members"])

    def history(self) -> History:
        return History([life for actor in self.actors for life in lives_of(actor.name, actor.events)])


@asynccontextmanager
async def staged(wire: str, http: str, name: str) -> AsyncIterator[Stage]:
    """At its end nobody runs any more."""
    async with await Connection.connect(*split(wire)) as connection:
        stage = Stage(wire, http, connection, name)
        await stage.prepare()
        try:
            yield stage
        finally:
            for actor in stage.actors:
                await actor.cancel()
