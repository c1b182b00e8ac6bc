"""A consumer whose group forgot it while its topics are not there: it says so, and goes on when they are there."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import goqueue
from goqueue.client import membership
from goqueue.client.client import AsyncClient
from goqueue.client.consumer import AsyncConsumer
from goqueue.client.member import Member
from goqueue.client.membership import Membership
from goqueue.client.settling import Refused
from goqueue.model.errors import StaleHandle, Unavailable, UnknownTopic
from goqueue.server.server import Server
from tests.support.broker_server import settings_for
from tests.support.loop import run, turns
from tests.support.patience import PATIENCE_S


class Stage:
    """A broker, which may be started again with nothing, and a client of it."""

    def __init__(self, path: Path, server: Server) -> None:
        self._path = path
        self.server = server
        self.client = AsyncClient(server.endpoints["wire"], request_timeout=PATIENCE_S)

    async def publish(self, *values: str, topic: str = "orders") -> None:
        async with self.client.producer() as producer:
            for value in values:
                await producer.send(topic, value, partition=0)

    async def forget(self, consumer: AsyncConsumer) -> None:
        """As if its process had been stopped for longer than its session."""
        member = consumer._membership.member
        assert member is not None
        await self.client.call("leave_group", group=consumer.group, member_id=member.member_id)

    async def lose_everything(self) -> None:
        """The broker comes back at the same address, with an empty directory."""
        address = self.server.endpoints["wire"]
        await self.server.stop()
        self.server = await Server.start(settings_for(self._path.with_name("empty"), wire=address))


@asynccontextmanager
async def staged(path: Path, *topics: str) -> AsyncIterator[Stage]:
    stage = Stage(path, await Server.start(settings_for(path)))
    try:
        async with stage.client:
            for topic in topics or ("orders",):
                await stage.client.create_topic(topic, partitions=1)
            yield stage
    finally:
        await stage.server.stop()


async def is_absent(consumer: AsyncConsumer) -> None:
    while consumer._membership.absence.reason is None:
        await asyncio.sleep(0)


@pytest.mark.parametrize("gone", ["its session is over", "the directory is empty"])
def test_a_consumer_whose_topic_was_made_again_while_it_was_forgotten_goes_on(tmp_path: Path, gone: str) -> None:
    async def go() -> None:
        async with staged(tmp_path / "broker") as stage:
            await stage.publish("old")
            async with stage.client.consumer("billing", ["orders"]) as consumer:
                (old,) = await consumer.poll()
                for round_ in range(2):
                    if gone == "its session is over":
                        await stage.client.delete_topic("orders")
                        await stage.forget(consumer)
                    elif not round_:
                        await stage.lose_everything()
                    else:
                        break
                    await is_absent(consumer)
                    tasks = len(asyncio.all_tasks())
                    for timeout in (None, "10ms", 0, PATIENCE_S):
                        with pytest.raises(UnknownTopic, match="there is no topic 'orders'"):
                            await consumer.poll(timeout=timeout)
                    assert len(asyncio.all_tasks()) <= tasks
                    await stage.client.create_topic("orders", partitions=1)
                    await stage.publish(f"new-{round_}")
                    batch = await consumer.poll()
                    assert batch.values() == [f"new-{round_}".encode()]
                    with pytest.raises(StaleHandle):
                        await old.ack(wait=True)
                    await batch.ack(wait=True)
                    old = batch[0]

    run(go())


def test_who_iterates_waits_for_the_topic_to_be_made_again(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage, stage.client.consumer("billing", ["orders"]) as consumer:
            waiting = asyncio.ensure_future(anext(consumer))
            await stage.client.delete_topic("orders")
            await stage.forget(consumer)
            await is_absent(consumer)
            await turns()
            assert not waiting.done()
            await stage.client.create_topic("orders", partitions=1)
            await stage.publish("new")
            assert (await waiting).text == "new"

    run(go())


def test_what_was_in_stock_of_the_old_topic_is_dropped_and_acks_of_it_are_stale(tmp_path: Path) -> None:
    async def go() -> None:
        refused: list[Refused] = []
        async with (
            staged(tmp_path) as stage,
            stage.client.consumer("billing", ["orders"], on_ack_error=refused.append) as consumer,
        ):
            await stage.publish(*map(str, range(10)))
            message = await anext(consumer)
            while consumer.stock.left < 9:
                await asyncio.sleep(0)
            await stage.client.delete_topic("orders")
            await stage.forget(consumer)
            await is_absent(consumer)
            assert consumer.stock.left == 0
            await message.ack()
            await consumer.flush()
            assert [(each.offset, type(each.error)) for each in refused] == [(0, StaleHandle)]
            assert "or deleted with its topic; if it took too long, extend it in time" in str(refused[0].error)
            await stage.client.create_topic("orders", partitions=1)
            await stage.publish("new")
            assert (await consumer.poll()).values() == [b"new"]

    run(go())


def test_what_is_in_stock_of_a_topic_that_is_made_again_under_a_member_is_dropped_too(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage, stage.client.consumer("billing", ["orders"]) as consumer:
            await stage.publish(*map(str, range(10)))
            await anext(consumer)
            while consumer.stock.left < 9:
                await asyncio.sleep(0)
            await stage.client.delete_topic("orders")
            await stage.client.create_topic("orders", partitions=1)
            await stage.publish("new")
            while consumer.stock.left != 1:
                await asyncio.sleep(0)
            assert (await consumer.poll()).values() == [b"new"]

    run(go())


def test_with_one_of_its_topics_gone_it_goes_on_with_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "LOOK_S", 0.0)
    monkeypatch.setattr(membership, "MAX_WAIT_MS", 10)  # it is seen between two polls

    async def go() -> None:
        async with (
            staged(tmp_path, "orders", "bills") as stage,
            stage.client.consumer("billing", ["orders", "bills"]) as consumer,
        ):
            before = consumer._membership.member
            await stage.client.delete_topic("orders")
            await stage.forget(consumer)
            while consumer._membership.member is before:
                await asyncio.sleep(0)
            await stage.publish("a", topic="bills")
            assert (await consumer.poll()).values() == [b"a"]
            await stage.client.create_topic("orders", partitions=1)
            await stage.publish("new")
            assert (await consumer.poll()).values() == [b"new"]
            assert sorted(consumer.assigned) == ["bills-0", "orders-0"]

    run(go())


async def forgotten_without(stage: Stage, consumer: AsyncConsumer, *names: str) -> None:
    """Its group forgets it while these topics are not there, and it joins with the others."""
    for name in names:
        await stage.client.delete_topic(name)
    await stage.forget(consumer)
    while consumer._membership._left_out != {*names}:
        await asyncio.sleep(0)


def test_a_topic_that_comes_back_is_taken_up_while_another_one_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "LOOK_S", 0.0)
    monkeypatch.setattr(membership, "MAX_WAIT_MS", 10)

    async def go() -> None:
        async with (
            staged(tmp_path, "orders", "bills", "refunds") as stage,
            stage.client.consumer("billing", ["orders", "bills", "refunds"]) as consumer,
        ):
            await forgotten_without(stage, consumer, "orders", "refunds")
            for name, assigned in (
                ("orders", ["bills-0", "orders-0"]),
                ("refunds", ["bills-0", "orders-0", "refunds-0"]),
            ):
                await stage.client.create_topic(name, partitions=1)
                await stage.publish("again", topic=name)
                (message,) = await consumer.poll()
                assert (message.topic, message.text) == (name, "again")
                assert sorted(consumer.assigned) == assigned

    run(go())


@pytest.mark.parametrize("seen", ["before it is looked up", "before it joins"])
def test_a_topic_that_is_deleted_again_before_it_is_taken_up_fails_no_poll(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: str
) -> None:
    monkeypatch.setattr(membership, "LOOK_S", 0.0)
    monkeypatch.setattr(membership, "MAX_WAIT_MS", 10)
    widen, join_again = Membership._widen, Member.join_again
    tried = asyncio.Event()

    async def go() -> None:
        async with (
            staged(tmp_path, "orders", "bills") as stage,
            stage.client.consumer("billing", ["orders", "bills"]) as consumer,
        ):

            async def late_widen(self: Membership) -> None:
                if seen == "before it is looked up" and not tried.is_set():
                    await stage.client.delete_topic("orders")
                try:
                    await widen(self)
                finally:
                    tried.set()

            async def late_join(self: Member, *args: Any, **fields: Any) -> None:
                if seen == "before it joins" and not tried.is_set():
                    await stage.client.delete_topic("orders")
                await join_again(self, *args, **fields)

            monkeypatch.setattr(Membership, "_widen", late_widen)
            monkeypatch.setattr(Member, "join_again", late_join)
            await forgotten_without(stage, consumer, "orders")
            await stage.client.create_topic("orders", partitions=1)
            await tried.wait()
            for value in ("a", "b"):
                await stage.publish(value, topic="bills")
                assert (await consumer.poll()).values() == [value.encode()]
            await stage.client.create_topic("orders", partitions=1)
            await stage.publish("again")
            assert (await consumer.poll()).values() == [b"again"]

    run(go())


def test_a_consumer_that_waits_for_its_topic_can_be_closed(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage:
            async with stage.client.consumer("billing", ["orders"]) as consumer:
                await stage.client.delete_topic("orders")
                await stage.forget(consumer)
                await is_absent(consumer)
                waiting = [asyncio.ensure_future(consumer.poll()), asyncio.ensure_future(anext(consumer))]
                await turns()
            ends = await asyncio.gather(*waiting, return_exceptions=True)
            assert {type(end) for end in ends} <= {Unavailable, UnknownTopic}
            assert isinstance(ends[1], Unavailable)

    run(go())


def test_the_same_without_async(tmp_path: Path) -> None:
    with (
        goqueue.embedded(str(tmp_path), grpc="off") as broker,
        goqueue.Client(broker.endpoints["wire"]) as client,
    ):
        client.create_topic("orders", partitions=1)

        def publish(value: str) -> None:
            with client.producer() as producer:
                producer.send("orders", value)

        with client.consumer("billing", ["orders"]) as consumer:
            publish("old")
            (old,) = consumer.poll()
            for round_ in range(2):
                client.delete_topic("orders")
                member: Any = consumer._core._membership.member
                client.call("leave_group", group="billing", member_id=member.member_id)
                while True:
                    try:
                        consumer.poll(timeout=0.01)
                    except UnknownTopic:
                        break
                with pytest.raises(UnknownTopic):
                    consumer.poll()
                client.create_topic("orders", partitions=1)
                publish(f"new-{round_}")
                batch = consumer.poll()
                assert batch.values() == [f"new-{round_}".encode()]
                with pytest.raises(StaleHandle):
                    old.ack(wait=True)
                (old,) = batch
