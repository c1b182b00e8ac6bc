"""Leases are extended in time, each by what its own topic says, and by what it says now."""

import asyncio
from collections.abc import Iterator
from typing import Any, cast

import pytest

from goqueue import codec
from goqueue.client import leases as leases_module
from goqueue.client.leases import Leases
from goqueue.client.link import Link
from goqueue.client.member import Delivered
from goqueue.client.messages import Row
from goqueue.client.settling import SettleQueue
from goqueue.client.stock import Stock
from goqueue.model.errors import UnknownTopic
from goqueue.model.record import Record
from tests.support.loop import run


class Broker:
    """What topics say, as a link tells it."""

    def __init__(self, **spans: str) -> None:
        self.spans = spans
        self.asked: list[str] = []

    async def ask(self, operation: int, fields: dict[str, Any], *, repeatable: bool) -> dict[str, Any]:
        assert repeatable
        topic = fields["topic"]
        self.asked.append(topic)
        await asyncio.sleep(0)
        if topic not in self.spans:
            raise UnknownTopic("gone")
        return {"config": {"visibility_timeout": self.spans[topic]}}


class Extensions:
    """A settle queue that keeps what it is told."""

    def __init__(self) -> None:
        self.extended: list[tuple[str, int]] = []
        self.came = asyncio.Event()

    def extend(self, row: Row, offsets: list[int], span_ms: int) -> asyncio.Future[None]:
        self.extended.append((row.delivered.topic, span_ms))
        self.came.set()
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        answer.set_result(None)
        return answer


class Shelf:
    """A row of each topic, as old as is wanted. Somebody waits for more."""

    progress = (0, 0)
    waiting = 1
    left = 1

    def __init__(self, *topics: str, age_s: float) -> None:
        block = memoryview(codec.encode([Record(offset=0, value=b"v")]))
        now = asyncio.get_running_loop().time()
        self.rows = [
            Row(Delivered(topic, 0, 1, 1, 1, 1, 1, block, 7, 1, 99), cast(Any, None), now - age_s) for topic in topics
        ]

    def held(self) -> Iterator[tuple[Row, list[int]]]:
        for row in self.rows:
            yield row, [0]


def leases_of(extensions: Extensions, shelf: Shelf, visibility_s: float | None = None) -> Leases:
    return Leases(cast(SettleQueue, extensions), cast(Stock, shelf), visibility_s=visibility_s)


def test_each_row_is_extended_by_what_its_own_topic_says() -> None:
    async def go() -> None:
        extensions = Extensions()
        shelf = Shelf("fast", "slow", age_s=10.0)
        leases = leases_of(extensions, shelf)
        await leases.learn(cast(Link, Broker(fast="300ms", slow="1m")), ["fast", "slow"])
        keeping = asyncio.ensure_future(leases.keep())
        while extensions.extended.count(("fast", 300)) < 3:
            await extensions.came.wait()
            extensions.came.clear()
        keeping.cancel()
        assert extensions.extended.count(("slow", 60_000)) == 1, "it has most of its minute left"
        assert {span_ms for topic, span_ms in extensions.extended if topic == "slow"} == {60_000}

    run(go())


def test_what_a_topic_says_is_learned_again_and_a_shorter_time_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases_module, "MIN_LEARN_S", 0.01)
    monkeypatch.setattr(leases_module, "MAX_LEARN_S", 0.01)

    async def go() -> None:
        extensions, broker = Extensions(), Broker(orders="1h")
        link = cast(Link, broker)
        leases = leases_of(extensions, Shelf("orders", age_s=60.0))
        await leases.learn(link, ["orders"])
        tasks = [
            asyncio.ensure_future(leases.keep()),
            asyncio.ensure_future(leases.keep_learning(link, ["gone", "orders"])),
        ]
        while broker.asked.count("orders") < 3:
            await asyncio.sleep(0)
        assert extensions.extended == []
        broker.spans["orders"] = "1s"
        await extensions.came.wait()
        assert extensions.extended[0] == ("orders", 1000)
        assert "gone" in broker.asked
        for task in tasks:
            task.cancel()

    run(go())


def test_what_the_user_said_is_not_asked_for() -> None:
    async def go() -> None:
        extensions, broker = Extensions(), Broker(orders="1h")
        link = cast(Link, broker)
        leases = leases_of(extensions, Shelf("orders", age_s=60.0), visibility_s=0.2)
        await leases.learn(link, ["orders"])
        await leases.keep_learning(link, ["orders"])
        keeping = asyncio.ensure_future(leases.keep())
        await extensions.came.wait()
        keeping.cancel()
        assert (extensions.extended, broker.asked) == ([("orders", 200)], [])

    run(go())
