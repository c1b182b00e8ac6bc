"""One timer for everything that becomes ready by itself: in time, for all partitions, also after what went wrong."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from goqueue.delivery.commands import Lapse
from goqueue.model import limits
from goqueue.model.errors import DiskFull
from tests.support.loop import turns
from tests.support.moved_time import run_timed
from tests.unit.broker.brokers import Clock
from tests.unit.broker.consumers import SESSION_MS, Consumers, consuming, deliveries_of, handles_of, numbered, texts
from tests.unit.broker.test_poll import consume

VISIBLE_MS = 5000
LONG_MS = limits.MAX_SESSION_MS


def test_while_nothing_is_due_there_is_no_timer(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        timer = to.broker.alarms._timer
        assert timer._armed is None
        to.put("a")
        assert timer._armed is None, "what can be delivered now waits for nobody"
        polled = await to.poll(member)
        assert timer._armed == to.time() + VISIBLE_MS
        await to.ack(*handles_of(polled))
        await to.pass_by(VISIBLE_MS)
        assert timer._armed is None

    consume(tmp_path, scenario, visibility_ms=VISIBLE_MS)


def test_it_rings_for_whatever_comes_first(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put("leased", "retried")
        to.delay("late", by_ms=3000)
        polled = await to.poll(member)
        await to.nack(handles_of(polled)[1], delay_ms=1000)
        for passed_ms, comes in ((1000, ["retried"]), (2000 + 10, ["late"]), (VISIBLE_MS - 3000 - 10, ["leased"])):
            waiting = await to.parked(member)
            await to.pass_by(passed_ms)
            assert texts(await waiting) == comes

    consume(tmp_path, scenario, visibility_ms=VISIBLE_MS)


def test_many_leases_lapse_together_each_in_its_own_group(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(visibility_ms=VISIBLE_MS, partitions=3)
            for partition in range(3):
                to.put(*numbered(4), partition=partition)
            members = {}
            for group in ("one", "two", "three"):
                members[group] = (await to.join(group=group, session_ms=LONG_MS)).member_id
                for _ in range(6):
                    await to.poll(members[group], group=group, max_messages=2)
            await to.pass_by(VISIBLE_MS)
            for group, member in members.items():
                polled = await to.poll(member, group=group)
                assert len(texts(polled)) == 12
                assert set(deliveries_of(polled)) == {2}

    run_timed(go())


def test_what_could_not_be_written_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        alarms, refusals = to.broker.alarms, 3
        write = alarms._write

        def refuse(partition: Any, command: Lapse) -> Any:
            nonlocal refusals
            if refusals:
                refusals -= 1
                raise DiskFull("no space left")
            return write(partition, command)

        monkeypatch.setattr(alarms, "_write", refuse)
        to.put("a")
        polled = await to.poll(member)
        await to.pass_by(VISIBLE_MS)
        assert refusals == 2
        assert await to.texts(member) == [], "it is still leased: that it lapsed is not written"
        for _ in range(3):
            await to.pass_by(1000)
        assert refusals == 0
        assert deliveries_of(await to.poll(member)) == [2]
        await to.ack(*handles_of(polled))

    consume(tmp_path, scenario, visibility_ms=VISIBLE_MS)


def test_one_partition_in_trouble_does_not_keep_the_others_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        alarms = to.broker.alarms
        write = alarms._write

        def refuse(partition: Any, command: Lapse) -> Any:
            if partition.number == 0:
                raise DiskFull("no space left")
            return write(partition, command)

        monkeypatch.setattr(alarms, "_write", refuse)
        for partition in (0, 1):
            to.put("a", partition=partition)
        await to.poll(member)
        await to.pass_by(VISIBLE_MS)
        polled = await to.poll(member)
        assert [row.partition for row in polled.rows] == [1]

    consume(tmp_path, scenario, partitions=2, visibility_ms=VISIBLE_MS)


def test_when_many_partitions_have_something_others_get_a_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TURN_S", 0.0)

    async def scenario(to: Consumers, member: str) -> None:
        for partition in range(7):
            to.delay("late", by_ms=1000, partition=partition)
        to.clock.now += 1010
        to.time.move(1010)
        left: list[int] = []
        while not left or left[-1]:
            await turns(1)
            left.append(sum(bool(to.partition(partition).delays.pending) for partition in range(7)))
        assert sorted(set(left) - {7}) == [0, 1, 2, 3, 4, 5, 6], "one partition at a time"
        assert len(await to.drain(member)) == 7

    consume(tmp_path, scenario, partitions=7)


def test_a_topic_that_is_deleted_rings_no_more(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put("a")
        to.delay("late", by_ms=1000)
        await to.poll(member)
        await to.delete()
        while tasks := list(to.broker.topics._tasks):  # its files go
            await asyncio.wait(tasks)
        await to.pass_by(VISIBLE_MS)
        assert to.broker.alarms._timer._armed is None
        assert await to.texts(member) == []

    consume(tmp_path, scenario, visibility_ms=VISIBLE_MS)


def test_what_fell_due_before_the_start_is_ready_at_once(tmp_path: Path) -> None:
    async def go() -> None:
        clock = Clock()
        async with consuming(tmp_path, clock=clock) as to:
            await to.create(visibility_ms=VISIBLE_MS)
            to.put("leased")
            to.delay("late", by_ms=2000)
            member = (await to.join(session_ms=LONG_MS)).member_id
            await to.poll(member)
        clock.now += SESSION_MS
        async with consuming(tmp_path, clock=clock) as to:
            await to.pass_by(0)
            assert sorted(await to.drain(member)) == ["late", "leased"]

    run_timed(go())
