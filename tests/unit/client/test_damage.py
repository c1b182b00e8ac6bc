"""What is damaged on the broker's disk, as consumers, the broker's log, HTTP polls and health tell of it."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

import goqueue
from goqueue.client.consumer import AsyncConsumer
from goqueue.client.member import Member, Missed
from goqueue.model.errors import DamagedState
from goqueue.model.groups import Mode
from tests.support.loop import run
from tests.unit.client.test_reader import Stage, damage, numbers, staged

every_mode = pytest.mark.parametrize("mode", Mode)


async def drain(consumer: AsyncConsumer, count: int) -> list[int]:
    got: list[int] = []
    while len(got) < count:
        batch = await consumer.poll()
        got += [message.offset for message in batch]
        await batch.ack(wait=True)
    return sorted(got)


async def settled(stage: Stage, group: str) -> None:
    """The group has nothing left: it went past the damage too."""
    while (await stage.client.group_lag(group)).total_lag:
        await asyncio.sleep(0)


async def damaged_topic(stage: Stage, path: Path) -> int:
    await stage.fill(0, 20)
    return damage(path)


@every_mode
def test_a_consumer_is_told_once_what_its_group_passed_over(tmp_path: Path, mode: Mode) -> None:
    async def go() -> None:
        async with staged(tmp_path, segment_bytes=4096) as stage:
            damaged = await damaged_topic(stage, tmp_path)
            end = 20
            for group in ("billing", "search"):
                heard: list[Missed] = []
                async with stage.client.consumer(group, ["orders"], mode=mode, on_missed=heard.append) as consumer:
                    assert await drain(consumer, end - 1) == [each for each in range(end) if each != damaged]
                    while not heard:
                        await asyncio.sleep(0)
                    await settled(stage, group)
                (missed,) = heard
                assert (missed.topic, missed.partition) == ("orders", 0)
                assert (missed.first, missed.next_offset) == (damaged, damaged + 1)
                heard.clear()
                async with stage.client.consumer(group, ["orders"], mode=mode, on_missed=heard.append) as consumer:
                    await stage.publish("more")
                    end += 1
                    await drain(consumer, 1)
                assert heard == [], "once"

    run(go())


def test_who_does_not_hear_the_answer_that_tells_is_told_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    poll, lost = Member.poll, 0

    async def lose(self: Member, **options: object) -> list[object]:
        nonlocal lost
        before = self._version, self._received, self.news
        found = await poll(self, **options)  # type: ignore[arg-type]
        if self.news.damage and not lost:
            lost += 1
            self._version, self._received, self.news = before
            return []
        return [*found]

    async def go() -> None:
        monkeypatch.setattr(Member, "poll", lose)
        async with staged(tmp_path, segment_bytes=4096) as stage:
            await damaged_topic(stage, tmp_path)
            heard: list[Missed] = []
            async with stage.client.consumer("billing", ["orders"], on_missed=heard.append) as consumer:
                await drain(consumer, 19)
                while not heard:
                    await asyncio.sleep(0)
            assert lost == len(heard) == 1

    run(go())


def test_the_log_of_a_program_says_it_if_nobody_listens_and_a_listener_that_breaks_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Missed) -> None:
        raise ZeroDivisionError

    async def go() -> None:
        async with staged(tmp_path, segment_bytes=4096) as stage:
            damaged = await damaged_topic(stage, tmp_path)
            for group, listener in (("billing", None), ("search", fail)):
                async with stage.client.consumer(group, ["orders"], on_missed=listener) as consumer:
                    await drain(consumer, 19)
                    await settled(stage, group)
                    assert consumer._membership.member is not None
                    while not consumer._membership.member.news.assigned_partitions:
                        await asyncio.sleep(0)
        said = [each.getMessage() for each in caplog.records if each.name == "goqueue.client"]
        expected = f"messages of orders-0 are damaged, at offset {damaged} ("
        assert len([each for each in said if expected in each and "group billing goes on" in each]) == 1
        assert "what was told of damaged messages broke" in said

    run(go())


def test_a_consumer_says_once_that_a_partition_of_its_own_is_closed_to_groups(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def go() -> None:
        async with staged(tmp_path, partitions=2) as stage:
            partition = stage.server.broker.topics.named("orders").partition(1)
            partition.sidecar_damage = DamagedState("it was eaten")
            async with stage.client.consumer("billing", ["orders"]) as consumer:
                for _ in range(3):
                    await stage.publish("more")
                    await drain(consumer, 1)
        said = [record.getMessage() for record in caplog.records if "nothing comes from" in record.getMessage()]
        assert said == ["nothing comes from orders-1 until it is repaired on the broker: it was eaten"]

    run(go())


def test_the_brokers_log_says_each_range_once_and_health_names_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def go() -> None:
        async with staged(tmp_path, segment_bytes=4096) as stage:
            damaged = await damaged_topic(stage, tmp_path)
            checks = (await stage.client.call("health", verbose=True))["checks"]
            assert checks["partitions"] == "ok", "nobody was there yet"
            for _ in range(3):
                async with stage.client.reader("orders", on_damage="skip") as reader:
                    assert len([message async for message in reader]) == 19
            checks = (await stage.client.call("health", verbose=True))["checks"]
            assert checks["partitions"] == f"damaged: orders-0 offset {damaged}; goqueue log verify looks for more"
            said = [each for each in caplog.records if "messages are damaged" in each.getMessage()]
            assert len(said) == 1
            assert said[0].levelname == "ERROR"

    run(go())


def test_a_poll_over_http_tells_what_the_group_passed_over(tmp_path: Path) -> None:
    with goqueue.embedded(str(tmp_path), grpc="off") as broker:
        broker.call("create_topic", name="orders", num_partitions=1, segment_bytes=4096)
        for number in numbers(0, 20):
            broker.call("publish", topic="orders", value=number.ljust(1000, "."))
        damaged = damage(tmp_path)
        member = broker.call("join_group", group="billing", client_id="desk", topics=["orders"])["member_id"]
        told: list[dict[str, Any]] = []
        messages, received = 0, 0
        while messages < 19 or not told:
            reply = broker.call(
                "poll", group="billing", member_id=member, received=received, timeout="0s", max_messages=100
            )
            told += reply.get("damage", [])
            messages, received = messages + len(reply["messages"]), reply["poll"]
        assert [(each["topic"], each["partition"], each["first"], each["next_offset"]) for each in told] == [
            ("orders", 0, damaged, damaged + 1)
        ]
        again = broker.call("poll", group="billing", member_id=member, received=received, timeout="0s")
        assert "damage" not in again


def test_the_same_without_async(tmp_path: Path) -> None:
    heard: list[Missed] = []
    with (
        goqueue.embedded(str(tmp_path), grpc="off") as broker,
        goqueue.Client(broker.endpoints["wire"]) as client,
    ):
        client.create_topic("orders", partitions=1, segment_bytes=4096)
        with client.producer() as producer:
            for number in range(20):
                producer.send("orders", str(number).ljust(1000, "."))
        damaged = damage(tmp_path)
        with client.consumer("billing", ["orders"], on_missed=heard.append) as consumer:
            got = 0
            while got < 19 or not heard:
                got += len(consumer.poll(timeout=0.05))
    assert [(each.first, each.next_offset) for each in heard] == [(damaged, damaged + 1)]
