"""clock step x relative delay, TTL, schedule: they follow the clock that is right now; only append times never go
back."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from goqueue.broker.delayed import DelayState
from goqueue.model.record import Extension, Record
from goqueue.model.times import show_time
from tests.support.loop import run
from tests.support.moved_time import run_timed
from tests.unit.api.test_handlers_jobs import rigged
from tests.unit.broker.brokers import T0, Clock
from tests.unit.broker.consumers import TOPIC, Consumers, consuming, records_of, texts
from tests.unit.broker.test_schedules import staged

SECOND, HOUR = 1000, 3_600_000


@asynccontextmanager
async def after_a_step(path: Path, *, restart: bool, **settings: Any) -> AsyncIterator[Consumers]:
    """The wall's clock was an hour ahead, a message was published then, and the clock is right again."""
    clock = Clock()
    async with consuming(path, clock=clock) as to:
        await to.create(**settings)
        clock.now += HOUR
        to.put("ahead")
        clock.now -= HOUR
        if not restart:
            yield to
            return
    async with consuming(path, clock=clock) as to:
        yield to


async def polled(to: Consumers) -> list[str]:
    member = (await to.join()).member_id
    found = texts(await to.poll(member))
    await to.leave(member)
    return found


either = pytest.mark.parametrize("restart", [False, True])


@either
def test_clock_step_x_relative_delay(tmp_path: Path, restart: bool) -> None:
    async def go() -> None:
        async with after_a_step(tmp_path, restart=restart) as to:
            to.delay("later", by_ms=2 * SECOND)
            (_, later) = records_of(to.partition())
            assert later.extension is not None
            assert later.extension.deliver_at == T0 + 2 * SECOND, "it counts from an append time that is ahead"
            assert later.timestamp == T0 + HOUR, "append times never go back"
            assert await polled(to) == ["ahead"]
            await to.pass_by(2 * SECOND)
            assert await polled(to) == ["ahead", "later"]

    run_timed(go())


@either
def test_clock_step_x_relative_delay_found_again_after_a_start(tmp_path: Path, restart: bool) -> None:
    """A time to be delivered at that lies before the append time is still to come."""

    async def go() -> None:
        async with after_a_step(tmp_path, restart=restart) as to:
            to.delay("later", by_ms=2 * SECOND)
            clock = to.clock
        async with consuming(tmp_path, clock=clock) as to:
            assert list(to.partition().delays.pending) == [1]
            assert (await to.broker.delayed.get(to.broker.topics.named(TOPIC), 0, 1)).state is DelayState.PENDING
            await to.pass_by(2 * SECOND)
            assert await polled(to) == ["ahead", "later"]

    run_timed(go())


@either
def test_clock_step_x_ttl(tmp_path: Path, restart: bool) -> None:
    """A message's own, and one that counts from when its delay is over."""

    async def go() -> None:
        async with after_a_step(tmp_path, restart=restart) as to:
            to.send(Record(value=b"short", extension=Extension(expires_at=-2 * SECOND)))
            to.send(Record(value=b"delayed", extension=Extension(deliver_at=-SECOND, expires_at=-2 * SECOND)))
            await to.pass_by(SECOND)
            assert await polled(to) == ["ahead", "short", "delayed"]
            await to.pass_by(SECOND)
            assert await polled(to) == ["ahead", "delayed"]
            await to.pass_by(SECOND)
            assert await polled(to) == ["ahead"]

    run_timed(go())


@either
def test_clock_step_x_ttl_of_the_topic(tmp_path: Path, restart: bool) -> None:
    """It counts from when the message was appended by the right clock; of earlier ones, from when that is known."""

    async def go() -> None:
        async with after_a_step(tmp_path, restart=restart, message_ttl_ms=10 * SECOND) as to:
            await to.pass_by(5 * SECOND)
            to.put("plain")
            to.delay("later", by_ms=2 * SECOND)
            await to.pass_by(2 * SECOND)
            assert await polled(to) == ["ahead", "plain", "later"]
            await to.pass_by(8 * SECOND)
            assert await polled(to) == ["later"]
            await to.pass_by(2 * SECOND)
            assert await polled(to) == []

    run_timed(go())


def test_clock_step_x_schedule(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage:
            clock = stage.to.clock
            await stage.create(partition=0, every_ms=SECOND)
            await stage.wait(SECOND)
            assert len(stage.values()) == 1
            clock.now += HOUR
            stage.runner.look()
            await stage.quiet()
            ahead = len(stage.values())
            clock.now -= HOUR
            stage.runner.look()
            for _ in range(3):
                await stage.wait(SECOND)
            assert len(stage.values()) == ahead + 3, "it sleeps until the clock has caught up"

    run_timed(go())


@pytest.mark.parametrize("plan", [{"every_ms": SECOND}, {"cron": "* * * * *"}])
def test_clock_step_x_schedule_after_a_start(tmp_path: Path, plan: dict[str, Any]) -> None:
    """Also one that was made while the clock was ahead."""

    async def go() -> None:
        clock = Clock()
        clock.now += HOUR
        async with staged(tmp_path, clock=clock) as stage:
            await stage.create(partition=0, **plan)
            await stage.wait(60 * SECOND)
            before = len(stage.values())
            assert before
        clock.now -= HOUR
        async with staged(tmp_path, clock=clock, topic=False) as stage:
            stage.runner.look()
            await stage.wait(60 * SECOND)
            assert len(stage.values()) == before + 1, "a minute's run, or the last of a minute's"

    run_timed(go())


def test_clock_step_x_relative_delay_the_answer_of_a_publish_says_when_it_is_due(tmp_path: Path) -> None:
    async def go() -> None:
        async with rigged(tmp_path) as rig:
            rig.clock.now += HOUR
            await rig.call("publish", topic="orders", value="ahead")
            rig.clock.now -= HOUR
            answer = await rig.call("publish", topic="orders", value="later", delay="2s")
            assert (answer["delayed"], answer["deliverAt"]) == (True, show_time(T0 + 2 * SECOND))
            assert answer["timestamp"] == show_time(T0 + HOUR)
            answer = await rig.call("publish", topic="orders", value="later", deliverAt=T0 + 5 * SECOND)
            assert (answer["delayed"], answer["deliverAt"]) == (True, show_time(T0 + 5 * SECOND))

    run(go())


def test_clock_step_x_relative_delay_a_message_that_comes_again_is_answered_the_same(tmp_path: Path) -> None:
    async def go() -> None:
        async with rigged(tmp_path) as rig:
            rig.clock.now += HOUR
            await rig.call("publish", topic="orders", value="ahead")
            rig.clock.now -= HOUR
            producer = await rig.call("init_producer")
            messages = [{"value": "a", "delay": "2s", "partition": 0}, {"value": "b", "delay": "5s", "partition": 0}]
            batch = {"producer_id": producer["producer_id"], "epoch": 0, "sequence": 0, "messages": messages}
            first = (await rig.call("publish_batch", topic="orders", **batch))["results"]
            rig.clock.now += 1500
            again = (await rig.call("publish_batch", topic="orders", **batch))["results"]
            assert [one["deliverAt"] for one in again] == [one["deliverAt"] for one in first]
            assert [one["deliverAt"] for one in first] == [show_time(T0 + 2 * SECOND), show_time(T0 + 5 * SECOND)]

    run(go())
