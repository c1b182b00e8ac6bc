"""Consuming from Python, with a real broker inside this process: what is delivered how often, and to whom."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from goqueue.client import leases as leases_module
from goqueue.client import membership, topics
from goqueue.client.client import AsyncClient
from goqueue.client.connection import Connection
from goqueue.client.consumer import AsyncConsumer, AsyncMessage
from goqueue.client.member import Member
from goqueue.client.settling import Refused
from goqueue.model.errors import (
    GoQueueError,
    InvalidRequest,
    MemberFenced,
    StaleHandle,
    Unavailable,
    UnknownTopic,
)
from goqueue.server.server import Server
from goqueue.wire.codes import CODES
from goqueue.wire.settles import Action
from tests.support.broker_server import running_server
from tests.support.loop import run, turns
from tests.support.patience import PATIENCE_S


@pytest.fixture(autouse=True)
def nobody_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is: a test that wants a consumer to fall asleep makes it."""
    monkeypatch.setattr(leases_module, "MIN_IDLE_S", PATIENCE_S)


class Calls:
    """What the members of all consumers asked for. What they extend is held for long, however busy the machine is."""

    def __init__(self) -> None:
        self.polls: Counter[str] = Counter()
        self.beats: list[tuple[str, list[str]]] = []
        self.settled: list[tuple[Action, int]] = []
        self.extended: list[list[int]] = []
        self._changed = asyncio.Condition()

    async def note(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with self._changed:
            await self._changed.wait_for(is_so)

    def count(self, action: Action) -> int:
        return len([each for each, _ in self.settled if each is action])


def watch(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Inside the test's loop."""
    calls = Calls()
    poll, beat, settle = Member.poll, Member.heartbeat, Member.settle

    async def watched_poll(self: Member, **options: Any) -> Any:
        calls.polls[self.member_id] += 1
        await calls.note()
        return await poll(self, **options)

    async def watched_beat(self: Member, revoked: Sequence[str] = (), *, finishing: Sequence[str] = ()) -> None:
        await beat(self, revoked, finishing=finishing)
        calls.beats.append((self.member_id, [*revoked]))
        await calls.note()

    async def watched_settle(self: Member, action: Action, what: Any, *rest: Any) -> Any:
        asked = [(delivered, [*offsets]) for delivered, offsets in what]
        if action is Action.EXTEND:
            calls.extended.append([offset for _, offsets in asked for offset in offsets])
            rest = (60_000, *rest[1:])
        refused = await settle(self, action, asked, *rest)
        calls.settled.append((action, sum(len(offsets) for _, offsets in asked)))
        await calls.note()
        return refused

    monkeypatch.setattr(Member, "poll", watched_poll)
    monkeypatch.setattr(Member, "heartbeat", watched_beat)
    monkeypatch.setattr(Member, "settle", watched_settle)
    return calls


class Stage:
    """A broker, and a client of it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.client = AsyncClient(server.endpoints["wire"], request_timeout=PATIENCE_S)

    async def publish(self, *values: str, topic: str = "orders", partition: int | None = 0, **options: Any) -> None:
        async with self.client.producer() as producer:
            await asyncio.gather(*(producer.send(topic, value, partition=partition, **options) for value in values))

    def consumer(self, group: str = "billing", topics: Sequence[str] = ("orders",), **options: Any) -> AsyncConsumer:
        return self.client.consumer(group, topics, **options)

    async def lag(self, group: str = "billing") -> int:
        return (await self.client.group_lag(group)).total_lag

    async def kick(self, consumer: AsyncConsumer) -> None:
        """As if it had been silent for too long."""
        assert consumer._membership.member is not None
        await self.client.call("leave_group", group=consumer.group, member_id=consumer._membership.member.member_id)


@asynccontextmanager
async def staged(data_dir: Path, *, partitions: int = 1, **settings: Any) -> AsyncIterator[Stage]:
    async with running_server(data_dir) as server:
        stage = Stage(server)
        await stage.client.create_topic("orders", partitions=partitions, **settings)
        try:
            yield stage
        finally:
            await stage.client.close()


async def take(consumer: AsyncConsumer, count: int) -> list[AsyncMessage]:
    messages: list[AsyncMessage] = []
    while len(messages) < count:
        messages.append(await anext(consumer))
    return messages


def texts(messages: Sequence[Any]) -> list[str]:
    return [each.value.decode() for each in messages]


def numbers(first: int, end: int) -> list[str]:
    return [str(number) for number in range(first, end)]


def counts(messages: Sequence[AsyncMessage]) -> set[int]:
    return {each.delivery_count for each in messages}


async def stocked(consumer: AsyncConsumer, count: int) -> None:
    """Until it has so many in stock."""
    while consumer.stock.messages < count:
        await asyncio.sleep(0)


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    while not await is_so():
        await asyncio.sleep(0)


def often(consumer: AsyncConsumer) -> AsyncConsumer:
    """Have it send heartbeats all the time."""
    consumer._membership.session_s = 0.04
    return consumer


def eager(consumer: AsyncConsumer) -> AsyncConsumer:
    """Have it extend what it looks after all the time."""
    consumer._leases.visibility_s = 0.15
    return consumer


# --- handing out and settling


def test_every_message_comes_once_and_in_order(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path, partitions=3) as stage:
            for partition in range(3):
                await stage.publish(*numbers(0, 200), partition=partition)
            got: dict[int, list[str]] = {0: [], 1: [], 2: []}
            async with stage.consumer(prefetch=50) as consumer:
                async for message in consumer:
                    assert message.value is not None
                    assert (message.topic, message.delivery_count) == ("orders", 1)
                    got[message.partition].append(message.value.decode())
                    await message.ack()
                    if sum(map(len, got.values())) == 600:
                        break
                assert sorted(consumer.assigned) == ["orders-0", "orders-1", "orders-2"]
            assert got == dict.fromkeys(range(3), numbers(0, 200))
            assert await stage.lag() == 0

    run(go())


def test_an_ack_that_is_waited_for_is_done(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage:
            await stage.publish("a", "b")
            async with stage.consumer() as consumer:
                first, second = await take(consumer, 2)
                await first.ack(wait=True)
                assert await stage.lag() == 1
                with pytest.raises(StaleHandle):
                    await first.ack(wait=True)
                await second.ack()
                await consumer.flush()
                assert await stage.lag() == 0

    run(go())


def test_a_consumer_says_of_its_own_what_is_wrong(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage:
            for visibility in (0, -1, "13h"):
                with pytest.raises(InvalidRequest, match=r"^visibility is .*; it is from 1ms to 12h$"):
                    stage.client.consumer("billing", ["orders"], visibility=visibility)
            async with stage.consumer() as consumer:
                with pytest.raises(InvalidRequest, match=r"^to is 'end'; it is earliest or latest"):
                    await consumer.seek("orders", to="end")
            with pytest.raises(Unavailable, match=r"^this consumer is closed"):
                await consumer.seek("orders", to="earliest")

    run(go())


def test_nobody_waits_for_a_settlement_in_another_event_loop(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage:
            await stage.publish("a", "b")
            async with stage.consumer() as consumer:
                batch = await consumer.poll(2)
                waits: list[Callable[[], Coroutine[Any, Any, object]]] = [
                    consumer.flush,
                    partial(consumer.poll, timeout=PATIENCE_S),
                ]
                for one in (batch[0], batch):
                    waits += [partial(each, wait=True) for each in (one.ack, one.nack, one.reject, one.release)]
                    waits.append(partial(one.extend, 5))

                def elsewhere() -> None:
                    for wait in waits:
                        with pytest.raises(InvalidRequest, match="a consumer belongs to one event loop"):
                            asyncio.run(wait())

                await asyncio.to_thread(elsewhere)
                await batch.ack(wait=True)
            assert await stage.lag() == 0

    run(go())


@pytest.mark.parametrize("between", [False, True])
def test_who_acks_twice_hears_of_it(tmp_path: Path, caplog: pytest.LogCaptureFixture, between: bool) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage:
            await stage.publish("a", "b")
            refused: list[Refused] = []
            async with stage.consumer(on_ack_error=refused.append) as consumer:
                (first,) = await take(consumer, 1)
                await first.ack()
                if between:
                    await consumer.flush()
                await first.ack()
                await consumer.flush()
                assert [(each.message_id, each.action) for each in refused] == [("orders:0:0", "ack")]
                assert isinstance(refused[0].error, StaleHandle)
            assert caplog.text == ""
            async with stage.consumer() as consumer:
                (second,) = await take(consumer, 1)
                await second.ack()
                await second.ack()

    with caplog.at_level(logging.WARNING, "goqueue.client"):
        run(go())
    assert "ack of orders:0:1 was refused" in caplog.text


def test_what_is_nacked_comes_again_and_dies_when_it_failed_too_often(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path, max_retries=2, backoff={"base": "1ms", "factor": 1, "max": "1ms"}) as stage:
            await stage.publish("a", "b")
            async with stage.consumer(prefetch=1) as consumer:
                first, second = await take(consumer, 2)
                await second.ack()
                seen = [first.delivery_count]
                await first.nack()
                for delay in (0, 0.001):
                    (again,) = await take(consumer, 1)
                    assert again.offset == first.offset
                    seen.append(again.delivery_count)
                    await again.nack(delay, wait=True)
                assert seen == [1, 2, 3]
                await until(lambda: _has_letters(stage, 1))
                assert (await stage.client.list_dead_letters("orders")).messages[0].value == "a"
                assert not await consumer.poll(timeout=0)
                with pytest.raises(InvalidRequest):
                    await first.nack(-1)
            assert await stage.lag() == 0

    run(go())


async def _has_letters(stage: Stage, count: int) -> bool:
    return len((await stage.client.list_dead_letters("orders")).messages) == count


def test_what_is_rejected_is_dead_with_its_reason(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage:
            await stage.publish("a", "b")
            async with stage.consumer() as consumer:
                first, second = await take(consumer, 2)
                with pytest.raises(InvalidRequest, match="1000 characters"):
                    await first.reject("x" * 1001)
                await first.reject("no good")
                await second.reject(wait=True)
                await until(lambda: _has_letters(stage, 2))
            letters = (await stage.client.list_dead_letters("orders")).messages
            assert [(each.value, each.reason) for each in letters] == [("a", "rejected"), ("b", "rejected")]
            assert letters[0].detail == "no good"

    run(go())


def test_what_is_released_was_not_delivered(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path, max_retries=0) as stage:
            await stage.publish("a")
            async with stage.consumer() as consumer:
                for _ in range(3):
                    (message,) = await take(consumer, 1)
                    assert message.delivery_count == 1
                    await message.release()

    run(go())


def test_what_is_extended_stays_and_the_rest_comes_again(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path, visibility_timeout="1h") as stage:
            await stage.publish("a", "b")
            async with stage.consumer() as consumer:
                kept, lost = await take(consumer, 2)
                await kept.extend(3600)
                await lost.extend(0.001)
                (again,) = await take(consumer, 1)
                assert (again.value, again.delivery_count) == (b"b", 2)
                with pytest.raises(StaleHandle):
                    await lost.extend(60)
                with pytest.raises(InvalidRequest):
                    await kept.extend(0)
                await kept.ack(wait=True)
                assert await stage.lag() == 1

    run(go())


def test_batches_are_settled_as_a_whole(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path, partitions=2) as stage:
            for partition in range(2):
                await stage.publish(*numbers(0, 5), partition=partition)
            async with stage.consumer() as consumer:

                async def batch() -> Any:
                    await stocked(consumer, 10)
                    found = await consumer.poll(10)
                    assert len(found) == 10
                    return found

                found = await batch()
                await found.release(wait=True)
                found = await batch()
                assert counts(found) == {1}
                await found.nack(0, wait=True)
                found = await batch()
                assert counts(found) == {2}
                await found.extend(60)
                await found[0].ack()
                with pytest.raises(StaleHandle):
                    await found.ack(wait=True)
                assert await stage.lag() == 0
                await stage.publish("bad")
                await (await consumer.poll()).reject("worse", wait=True)
                await until(lambda: _has_letters(stage, 1))
                empty = await consumer.poll(timeout=0)
                await empty.ack(wait=True)

    run(go())


def test_different_decisions_keep_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        calls = watch(monkeypatch)
        async with staged(tmp_path) as stage:
            await stage.publish(*numbers(0, 6))
            async with stage.consumer() as consumer:
                a, b, c, d, e, f = await take(consumer, 6)
                await a.ack()
                await b.ack()
                await c.nack(60)
                await d.reject("x")
                await e.reject("y")
                await f.ack()
                await consumer.flush()
        assert [each for each in calls.settled if each[0] is not Action.RELEASE] == [
            (Action.ACK, 2),
            (Action.NACK, 1),
            (Action.REJECT, 1),
            (Action.REJECT, 1),
            (Action.ACK, 1),
        ]

    run(go())


def test_many_acks_are_few_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        calls = watch(monkeypatch)
        async with staged(tmp_path) as stage:
            async with stage.client.producer() as producer:
                for number in range(10_000):
                    producer.enqueue("orders", str(number), partition=0)
            async with stage.consumer(max_unacked=10_000) as consumer:
                count = 0
                async for message in consumer:
                    await message.ack()
                    count += 1
                    if count == 10_000:
                        break
            assert await stage.lag() == 0
        assert sum([count for action, count in calls.settled if action is Action.ACK]) == 10_000
        assert calls.count(Action.ACK) <= 200

    run(go())


# --- polling


def test_a_poll_gives_what_there_is_and_goes_on_with_the_rest(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage, stage.consumer() as consumer:
            assert len(await consumer.poll(timeout=0)) == 0
            assert len(await consumer.poll(timeout=0.01)) == 0
            await stage.publish(*numbers(0, 10))
            await stocked(consumer, 10)
            assert texts(await consumer.poll(3)) == ["0", "1", "2"]
            assert (await consumer.poll(2, timeout=0)).values() == [b"3", b"4"]
            assert texts(await take(consumer, 2)) == ["5", "6"]
            assert texts(await consumer.poll(timeout=0)) == ["7", "8", "9"]
            assert len(await consumer.poll(timeout=0)) == 0
            with pytest.raises(InvalidRequest):
                await consumer.poll(0)

    run(go())


@pytest.mark.parametrize(("prefetch", "is_first"), [(8, True), (7, False)])
def test_who_waits_for_a_little_has_it_before_more_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefetch: int, is_first: bool
) -> None:
    async def go() -> None:
        calls = watch(monkeypatch)
        async with staged(tmp_path) as stage, stage.consumer(prefetch=prefetch) as consumer:
            assert consumer._membership.member is not None
            member_id = consumer._membership.member.member_id

            async def polls_when_it_comes() -> int:
                assert texts(await consumer.poll()) == ["a"]
                return calls.polls[member_id]

            waiting = asyncio.ensure_future(polls_when_it_comes())
            await calls.until(lambda: calls.polls[member_id] > 0)
            await turns()
            asked = calls.polls[member_id]
            await stage.publish("a")
            assert await waiting == (asked if is_first else asked + 1)
            await turns()
            assert calls.polls[member_id] == asked + 1

    run(go())


def test_who_gives_up_waiting_loses_nothing(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage, stage.consumer() as consumer:
            for waiting in (consumer.poll(), consumer.poll(timeout=PATIENCE_S), anext(consumer)):
                task = asyncio.ensure_future(waiting)
                await turns()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            late = asyncio.ensure_future(anext(consumer))
            await turns()
            await stage.publish("a", "b")
            await stocked(consumer, 1)
            late.cancel()
            await asyncio.wait([late])
            got = [] if late.cancelled() else [late.result()]
            got += await take(consumer, 2 - len(got))
            assert texts(got) == ["a", "b"]
            assert counts(got) == {1}

    run(go())


# --- the stock


@pytest.mark.parametrize("bound", [{"prefetch": 10}, {"prefetch_bytes": 1000}])
def test_the_stock_is_bounded_and_full_ones_do_not_poll(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: dict[str, Any]
) -> None:
    async def go() -> None:
        calls = watch(monkeypatch)
        async with staged(tmp_path) as stage:
            await stage.publish(*["x" * 60] * 100)
            async with often(stage.consumer(**bound)) as consumer:
                assert consumer._membership.member is not None
                member_id = consumer._membership.member.member_id
                await calls.until(lambda: len(calls.beats) > 1)
                polls = calls.polls[member_id]
                await calls.until(lambda: len(calls.beats) > 5)
                assert calls.polls[member_id] == polls <= 3
                assert _is_within(consumer, bound)
                assert consumer.stock.messages >= 5
                (lag,) = (await stage.client.group_lag("billing")).topics["orders"].values()
                assert lag.in_flight == consumer.stock.messages
                got = 0
                async for message in consumer:
                    got += 1
                    assert _is_within(consumer, bound)
                    await message.ack()
                    if got == 100:
                        break

    run(go())


def _is_within(consumer: AsyncConsumer, bound: dict[str, Any]) -> bool:
    most, most_bytes = bound.get("prefetch", 500), bound.get("prefetch_bytes", 2**23)
    return bool(consumer.stock.messages <= most and consumer.stock.bytes <= most_bytes)


def test_one_that_is_larger_than_the_stock_comes_all_the_same(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage:
            await stage.publish("x" * 5000, "y" * 5000)
            async with stage.consumer(prefetch_bytes=100) as consumer:
                assert [each[0] for each in texts(await take(consumer, 2))] == ["x", "y"]

    run(go())


@pytest.mark.parametrize("mode", ["partition", "shared", "key"])
def test_what_was_not_handed_out_is_given_back_untried(tmp_path: Path, mode: str) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage:
            await stage.publish(*numbers(0, 20))
            async with stage.consumer(mode=mode) as consumer:
                (first,) = await take(consumer, 1)
                await first.ack()
                await stocked(consumer, 0)
            async with stage.consumer(mode=mode) as consumer:
                got = await take(consumer, 19)
                assert texts(got) == numbers(1, 20)
                assert counts(got) == {1}

    run(go())


def test_a_poll_that_waits_when_its_consumer_closes_takes_nothing(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage:
            await stage.publish(*numbers(0, 4))
            for _ in range(3):
                consumer = await stage.consumer(prefetch=10).__aenter__()
                await stocked(consumer, 4)
                await turns()  # it polls again: there is room for more
                assert consumer._membership._is_polling
                await consumer.close()
            async with stage.consumer() as last:
                got = await take(last, 4)
                assert (texts(got), counts(got)) == (numbers(0, 4), {1})

    run(go())


def test_what_is_in_stock_is_kept_and_not_delivered_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        calls = watch(monkeypatch)
        async with staged(tmp_path) as stage:
            await stage.publish(*numbers(0, 4))
            async with eager(stage.consumer(mode="shared", prefetch=4, visibility=60)) as holder:
                await stocked(holder, 4)
                async with stage.consumer(mode="shared") as other:
                    await calls.until(lambda: len(calls.extended) >= 3)
                    assert calls.extended == [[0, 1, 2, 3]] * len(calls.extended)
                    assert len(await other.poll(timeout=0)) == 0
                    await holder.close()
                    got = await take(other, 4)
                    assert counts(got) == {1}

    run(go())


def test_the_rest_of_a_row_is_kept_while_its_first_message_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go() -> None:
        calls = watch(monkeypatch)
        async with staged(tmp_path) as stage:
            await stage.publish(*numbers(0, 4))
            async with eager(stage.consumer(visibility=60)) as consumer:
                await stocked(consumer, 4)
                await take(consumer, 1)
                before = len(calls.extended)
                await calls.until(lambda: len(calls.extended) >= before + 3)
                assert calls.extended[-1] == [1, 2, 3]
                await take(consumer, 2)
                before = len(calls.extended)
                await calls.until(lambda: len(calls.extended) >= before + 2)
                assert calls.extended[-1] == [3]

    run(go())


def test_with_auto_extend_what_was_handed_out_is_kept_until_it_is_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go() -> None:
        calls = watch(monkeypatch)
        async with staged(tmp_path) as stage:
            await stage.publish(*numbers(0, 4))
            async with eager(stage.consumer(visibility=60, auto_extend=True)) as consumer:
                held = await take(consumer, 4)
                await calls.until(lambda: len(calls.extended) >= 2)
                assert calls.extended[-1] == [0, 1, 2, 3]
                await held[1].ack(wait=True)
                before = len(calls.extended)
                await calls.until(lambda: len(calls.extended) >= before + 2)
                assert calls.extended[-1] == [0, 2, 3]
                assert len(consumer.stock._kept) > 0
                for message in held:
                    if message is not held[1]:
                        await message.ack(wait=True)
                assert consumer.stock._kept == {}
            assert await stage.lag() == 0

    run(go())


def test_what_was_lost_while_it_was_in_stock_is_not_handed_out(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage:
            await stage.publish(*numbers(0, 4))
            async with stage.consumer(prefetch=4, visibility=60) as consumer:
                await stocked(consumer, 4)
                await stage.client.reset_offsets("billing", topic="orders", offset=2)  # behind its back
                eager(consumer)
                looking = asyncio.ensure_future(consumer._leases.keep())
                while any(offsets for _, offsets in consumer.stock.held()):  # until an extension is refused
                    await asyncio.sleep(0)
                looking.cancel()
                got = await take(consumer, 2)
                assert texts(got) == ["2", "3"]
                for message in got:
                    await message.ack(wait=True)

    run(go())


@pytest.mark.parametrize("auto_extend", [False, True])
def test_rows_that_are_done_with_are_forgotten(tmp_path: Path, auto_extend: bool) -> None:
    async def go() -> None:
        async with staged(tmp_path, visibility_timeout=0.05 if not auto_extend else 60, max_retries=1000) as stage:
            await stage.publish(*numbers(0, 50))
            async with stage.consumer(auto_extend=auto_extend, prefetch=5) as consumer:
                if auto_extend:
                    for message in await take(consumer, 50):
                        await message.ack()
                    await consumer.flush()
                else:
                    await take(consumer, 100)  # nobody settles them, they come again
                assert consumer.stock._kept == {}

    run(go())


# --- pausing


def test_who_pauses_is_handed_nothing_and_gives_back_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go() -> None:
        calls = watch(monkeypatch)
        async with staged(tmp_path) as stage:
            await stage.publish(*numbers(0, 20))
            async with often(stage.consumer(prefetch=10)) as consumer:
                (first,) = await take(consumer, 1)
                consumer.pause()
                assert len(await consumer.poll(timeout=0)) == 0
                waiting = asyncio.ensure_future(anext(consumer))
                await stage.publish(*numbers(20, 25))
                beats = len(calls.beats)
                await calls.until(lambda: len(calls.beats) > beats + 2)
                await consumer.flush()
                (lag,) = (await stage.client.group_lag("billing")).topics["orders"].values()
                assert lag.in_flight == 1
                await first.ack()
                assert not waiting.done()
                consumer.resume()
                got = [await waiting, *await take(consumer, 23)]
                assert (sorted(map(int, texts(got))), counts(got)) == ([*range(1, 25)], {1})

    run(go())


# --- rebalancing


class Heard:
    """What the callbacks were told."""

    def __init__(self) -> None:
        self.log: list[tuple[str, list[str]]] = []

    def assigned(self, names: list[str]) -> None:
        self.log.append(("assigned", sorted(names)))

    async def revoked(self, names: list[str]) -> None:
        await asyncio.sleep(0)
        self.log.append(("revoked", sorted(names)))


def test_who_is_cancelled_while_it_joins_leaves_nobody_in_the_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    join = Member.join

    async def go() -> None:
        joined = asyncio.Event()

        async def join_slowly(*given: Any, **fields: Any) -> Member:
            member = await join(*given, **fields)
            joined.set()
            await asyncio.sleep(0.01)
            return member

        monkeypatch.setattr(Member, "join", join_slowly)
        async with staged(tmp_path, partitions=1) as stage:
            joining = asyncio.ensure_future(stage.consumer().__aenter__())
            await joined.wait()
            joining.cancel()
            with pytest.raises(asyncio.CancelledError):
                await joining
            described = await stage.client.describe_group("billing")
            assert described.members == []

    run(go())


def test_users_hear_of_a_partition_before_they_get_its_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    join = Member.join

    async def join_for_nothing(*given: Any, **fields: Any) -> Member:
        member = await join(*given, **fields)
        member.news = msgspec.structs.replace(member.news, assigned_partitions=[])
        return member

    async def go() -> None:
        monkeypatch.setattr(Member, "join", join_for_nothing)  # so that they come in one reply
        async with staged(tmp_path, partitions=1) as stage:
            await stage.publish(*numbers(0, 3))
            heard = Heard()
            async with stage.consumer(on_assigned=heard.assigned) as consumer:
                assert consumer.assigned == []
                await anext(consumer)
                assert consumer.assigned == ["orders-0"]
                assert heard.log == [("assigned", ["orders-0"])]

    run(go())


def test_partitions_move_and_what_is_under_way_is_finished(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path, partitions=2) as stage:
            for partition in range(2):
                await stage.publish(*numbers(0, 10), partition=partition)
            heard = Heard()
            refused: list[Refused] = []
            async with stage.consumer(
                on_assigned=heard.assigned, on_revoked=heard.revoked, on_ack_error=refused.append, prefetch=20
            ) as first:
                await stocked(first, 20)
                held = await take(first, 3)
                async with stage.consumer() as second:
                    while not second.assigned:
                        (_, revoked) = heard.log[-1] if len(heard.log) > 1 else ("", [])
                        if revoked:  # it is finished, then it moves
                            for message in held:
                                if f"orders-{message.partition}" in revoked:
                                    await message.ack(wait=True)
                        await asyncio.sleep(0)
                    for message in held:
                        await message.ack()
                    (moved,) = second.assigned
                    (kept,) = first.assigned
                    assert {moved, kept} == {"orders-0", "orders-1"}
                    assert heard.log == [("assigned", ["orders-0", "orders-1"]), ("revoked", [moved])]
                    done = Counter(message.partition for message in held)
                    got: dict[str, list[AsyncMessage]] = {}
                    for consumer, name in ((first, kept), (second, moved)):
                        got[name] = await take(consumer, 10 - done[int(name[-1])])
                        for message in got[name]:
                            assert f"orders-{message.partition}" == name
                            await message.ack(wait=True)
                    for name, messages in got.items():
                        assert [int(text) for text in texts(messages)] == [*range(done[int(name[-1])], 10)]
                        assert counts(messages) == {1}
                for _ in range(1000):
                    if len(first.assigned) == 2:
                        break
                    await asyncio.sleep(0.001)
                assert heard.log[2:] == [("assigned", [moved])]
            assert refused == []
            assert await stage.lag() == 0

    run(go())


@pytest.mark.parametrize("why", ["paused", "full"])
def test_one_that_does_not_poll_holds_up_no_rebalance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    async def go() -> None:
        calls = watch(monkeypatch)
        async with staged(tmp_path, partitions=2) as stage:
            for partition in range(2):
                await stage.publish(*numbers(0, 20), partition=partition)
            heard = Heard()
            consumer = often(stage.consumer(on_assigned=heard.assigned, on_revoked=heard.revoked, prefetch=40))
            async with consumer as first:
                await stocked(first, 40)
                if why == "paused":
                    first.pause()
                    await calls.until(lambda: calls.count(Action.RELEASE) >= 1)
                    await turns(100)
                assert first._membership.member is not None
                polls = calls.polls[first._membership.member.member_id]
                async with stage.consumer() as second:
                    got = await take(second, 20)
                    assert (texts(got), counts(got)) == (numbers(0, 20), {1})
                    assert second.assigned == [heard.log[1][1][0]]
                    assert len(first.assigned) == 1
                if why == "paused":
                    assert (first._membership.member.member_id, second.assigned) in calls.beats
                    assert calls.polls[first._membership.member.member_id] == polls
                await calls.until(lambda: len(first.assigned) == 2)  # heard of by a heartbeat, too

    run(go())


@pytest.mark.parametrize("why", ["paused", "polling"])
def test_a_partition_is_kept_until_users_have_heard_that_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    async def go() -> None:
        calls = watch(monkeypatch)
        async with staged(tmp_path, partitions=2) as stage:
            begun, may_end = asyncio.Event(), asyncio.Event()

            async def revoked(_: list[str]) -> None:
                begun.set()
                await may_end.wait()

            async with often(stage.consumer(on_revoked=revoked)) as first:
                if why == "paused":
                    first.pause()
                async with stage.consumer() as second:
                    await begun.wait()
                    before = len(calls.beats)
                    await calls.until(lambda: len(calls.beats) > before + 5)
                    assert second.assigned == []
                    assert (await stage.client.describe_group("billing")).state == "rebalancing"
                    may_end.set()
                    while not second.assigned:
                        await asyncio.sleep(0)
                    assert not {*first.assigned} & {*second.assigned}

    run(go())


@pytest.mark.parametrize("mode", ["shared", "key"])
def test_where_members_share_partitions_each_has_all_and_a_message_goes_to_one(tmp_path: Path, mode: str) -> None:
    async def go() -> None:
        async with staged(tmp_path, partitions=2) as stage:
            heard = Heard()
            options: dict[str, Any] = {"mode": mode, "prefetch": 4, "on_revoked": heard.revoked}
            async with stage.consumer(**options) as first, stage.consumer(**options) as second:
                assert first.assigned == second.assigned == ["orders-0", "orders-1"]
                for number in range(100):
                    await stage.publish(str(number), partition=None, key=str(number % 7))
                got: list[AsyncMessage] = []

                async def consume(consumer: AsyncConsumer) -> None:
                    while len(got) < 100:
                        batch = await consumer.poll(2, timeout=0.05)
                        got.extend(batch)
                        await batch.ack(wait=True)

                await asyncio.gather(consume(first), consume(second))
                assert sorted(map(int, texts(got))) == [*range(100)]
                assert counts(got) == {1}
                if mode == "key":
                    for key in range(7):
                        mine = [int(text) for text in texts([each for each in got if each.key == b"%d" % key])]
                        assert mine == sorted(mine)
            assert heard.log == []
            assert await stage.lag() == 0

    run(go())


# --- what passes


def test_a_consumer_goes_on_when_the_broker_was_away(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage:
            await stage.publish(*numbers(0, 10))
            address = stage.server.endpoints["wire"]
            refused: list[Refused] = []
            client = AsyncClient(address)
            made = client.consumer("billing", ["orders"], prefetch=10, on_ack_error=refused.append)
            consumer = await made.__aenter__()
            before = await take(consumer, 3)
        for message in before:
            await message.ack()
        async with running_server(tmp_path, wire=address) as server:
            stage = Stage(server)
            await consumer.flush()
            got = await take(consumer, 7)
            await stage.publish(*numbers(10, 15))
            got += await take(consumer, 5)
            assert (texts(got), counts(got)) == (numbers(3, 15), {1})
            for message in got:
                await message.ack()
            await client.close()
            assert refused == []
            assert await stage.lag() == 0
            await stage.client.close()

    run(go())


@pytest.mark.parametrize("auto_extend", [False, True])
def test_several_tasks_may_share_a_consumer(tmp_path: Path, auto_extend: bool) -> None:
    """Each message goes to one of them, and none is lost between them."""

    async def go() -> None:
        async with staged(tmp_path, partitions=3) as stage:
            await stage.publish(*numbers(0, 400))
            got: list[str] = []
            async with stage.consumer(prefetch=40, auto_extend=auto_extend) as consumer:

                async def work() -> None:
                    while len(got) < 400:
                        for message in await consumer.poll(3, timeout=0.01):
                            got.append(texts([message])[0])
                            await message.ack()

                async def iterate() -> None:
                    async for message in consumer:
                        got.append(texts([message])[0])
                        await asyncio.sleep(0)
                        await message.ack()

                others = [asyncio.create_task(iterate()) for _ in range(4)]
                await asyncio.gather(work(), work())
                for other in others:
                    other.cancel()
            assert sorted(got, key=int) == numbers(0, 400)
            assert await stage.lag() == 0

    run(go())


def test_a_handler_that_never_awaits_has_its_acks_sent_meanwhile(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage:
            await stage.publish(*numbers(0, 30))
            async with stage.consumer() as consumer:
                left = set[int]()
                done = 0
                async for message in consumer:
                    time.sleep(0.006)
                    await message.ack()
                    left.add(await stage.lag() if done == 25 else 30)
                    done += 1
                    if done == 30:
                        break
            assert min(left) < 30

    run(go())


@pytest.mark.parametrize("gone", ["member", "group"])
@pytest.mark.parametrize("is_full", [False, True])
def test_one_that_was_forgotten_joins_again(tmp_path: Path, gone: str, is_full: bool) -> None:
    async def go() -> None:
        async with staged(tmp_path, partitions=2) as stage:
            await stage.publish(*numbers(0, 10))
            heard = Heard()
            consumer = often(
                stage.consumer(prefetch=10 if is_full else 100, on_assigned=heard.assigned, on_revoked=heard.revoked)
            )
            async with consumer:
                await stocked(consumer, 10)
                before = consumer._membership.member
                await stage.kick(consumer)
                if gone == "group":
                    await stage.client.delete_group("billing")
                while consumer._membership.member is before:
                    await asyncio.sleep(0.001)
                got = await take(consumer, 10)
                assert texts(got) == numbers(0, 10)
                for message in got:
                    await message.ack(wait=True)
            names = ["orders-0", "orders-1"]
            assert heard.log == [("assigned", names), ("revoked", names), ("assigned", names)]
            assert await stage.lag() == 0

    run(go())


def test_a_session_is_kept_by_heartbeats_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        calls = watch(monkeypatch)
        async with staged(tmp_path) as stage, stage.consumer(session_timeout="1h") as consumer:
            often(consumer).pause()
            member = consumer._membership.member
            assert member is not None
            group = stage.server.broker.groups.machine.group("billing")
            await calls.until(lambda: len(calls.beats) >= 5)
            seen_at = group.member(member.member_id).seen_at
            await calls.until(lambda: group.member(member.member_id).seen_at > seen_at)
            assert consumer._membership.member is member
            consumer.resume()
            await stage.publish("a")
            assert texts(await take(consumer, 1)) == ["a"]
            assert consumer._membership.member is member

    run(go())


def test_a_topic_that_was_created_again_is_gone_on_with(tmp_path: Path) -> None:
    async def go() -> None:
        for mode in ("shared", "partition"):
            async with staged(tmp_path / mode) as stage:
                await stage.publish("a")
                async with stage.consumer(mode=mode) as consumer:
                    (first,) = await take(consumer, 1)
                    await first.ack(wait=True)
                    await stage.client.delete_topic("orders")
                    await stage.client.create_topic("orders", partitions=2)
                    await stage.publish("b", partition=1)
                    assert texts(await take(consumer, 1)) == ["b"]

    run(go())


def test_it_is_said_once_that_a_topic_was_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(membership, "LOOK_S", 0.0)
    looks: list[None] = []
    look_up = topics.look_up

    async def counted(*args: Any, **named: Any) -> Any:
        found = await look_up(*args, **named)
        looks.append(None)
        return found

    def warned() -> list[str]:
        return [each.getMessage() for each in caplog.records if "was deleted" in each.getMessage()]

    async def looked() -> None:
        """Twice since now, at least."""
        end = len(looks) + 3
        while len(looks) < end:
            await asyncio.sleep(0)

    async def go() -> None:
        async with staged(tmp_path) as stage:
            await stage.client.create_topic("bills", partitions=1)
            monkeypatch.setattr(topics, "look_up", counted)
            async with stage.consumer(topics=["orders", "bills"], mode="shared") as consumer:
                await looked()
                assert warned() == []
                for count in (1, 2):
                    await stage.client.delete_topic("orders")
                    await looked()
                    said = "topic orders was deleted: a consumer of group billing gets nothing from it"
                    assert [said in each for each in warned()] == [True] * count
                    await stage.client.create_topic("orders", partitions=1)
                    await looked()
                await stage.publish("a")
                assert texts(await take(consumer, 1)) == ["a"]

    run(go())


# --- what does not pass


def test_a_consumer_is_entered_once_and_used_inside(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage:
            await stage.publish("a")
            consumer = stage.consumer()
            with pytest.raises(InvalidRequest, match="has not joined its group"):
                await consumer.seek("orders", offset=0)
            async with consumer:
                with pytest.raises(InvalidRequest, match="has joined its group already"):
                    await consumer.__aenter__()
                assert texts(await take(consumer, 1)) == ["a"], "the first time still holds"
            with pytest.raises(Unavailable, match="this consumer is closed"):
                await consumer.__aenter__()

    run(go())


def test_spans_and_times_are_said_in_every_way(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage:
            await stage.publish("a", delay=timedelta(0), ttl="1h")
            await stage.publish("gone", ttl=timedelta(milliseconds=1))
            start = datetime.now(UTC) - timedelta(hours=1)
            spans: dict[str, Any] = {"session_timeout": timedelta(minutes=1), "visibility": "1m30s"}
            async with stage.consumer(start=start, **spans) as consumer:
                (message,) = await consumer.poll(1, timeout="30s")
                assert message.text == "a"
                await message.extend("2m")
                await message.nack(timedelta(0), wait=True)
                (again,) = await consumer.poll(1, timeout=timedelta(seconds=30))
                assert (again.text, again.delivery_count) == ("a", 2)
            assert consumer._membership.session_s == 60
            assert consumer._leases.visibility_s == 90

    run(go())


def test_another_process_of_the_same_name_ends_it(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage:
            await stage.publish(*numbers(0, 5))
            async with stage.consumer(instance_id="left", prefetch=5) as first:
                await take(first, 1)
                async with often(stage.consumer(instance_id="left")) as second:
                    with pytest.raises(MemberFenced):
                        await take(first, 100)
                    with pytest.raises(MemberFenced):
                        await first.poll()
                    assert len(await take(second, 5)) == 5

    run(go())


def test_a_topic_that_is_not_there_is_told_at_once(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage:
            consumer = stage.consumer(topics=["nope"])
            with pytest.raises(UnknownTopic):
                async with consumer:
                    pytest.fail("it joined")
            with pytest.raises(Unavailable, match="closed"):
                await consumer._link.get()
            with pytest.raises(InvalidRequest, match=r"topics is 'orders'; it is a list of names"):
                stage.client.consumer("billing", "orders")
            with pytest.raises(InvalidRequest):
                stage.consumer(prefetch=0)
            with pytest.raises(InvalidRequest, match="async with"):
                await stage.consumer().poll()

    run(go())


def test_a_callback_that_raises_ends_the_consumer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fail(names: list[str]) -> None:
        raise Unavailable(f"no {names}")

    async def go() -> None:
        async with staged(tmp_path, partitions=2) as stage:
            with pytest.raises(GoQueueError, match=r"on_assigned .* Unavailable: no \['orders-0', 'orders-1'\]"):
                async with stage.consumer(on_assigned=fail):
                    pytest.fail("it joined")
            await stage.publish(*numbers(0, 5), partition=0)
            await stage.publish(*numbers(0, 5), partition=1)
            async with stage.consumer(on_revoked=fail, prefetch=10) as consumer:
                (first,) = await take(consumer, 1)
                async with stage.consumer() as other:
                    with pytest.raises(GoQueueError, match="on_revoked") as caught:
                        await take(consumer, 100)
                    assert isinstance(caught.value.__cause__, Unavailable)
                    await first.ack(wait=True)
                    await consumer.close()
                    got = await take(other, 9)  # what it had was given back
                    assert counts(got) <= {1, 2}
                    assert len({(each.partition, each.offset) for each in got}) == 9

    run(go())


# --- closing


def test_closing_wakes_who_waits_and_may_be_done_twice(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage, stage.consumer() as consumer:
            waits = [asyncio.ensure_future(consumer.poll()), asyncio.ensure_future(anext(consumer))]
            await turns()
            await asyncio.gather(consumer.close(), consumer.close())
            await consumer.close()
            for wait in waits:
                with pytest.raises(Unavailable, match="closed"):
                    await wait
            assert (await stage.client.describe_group("billing")).members == []

    run(go())


def test_closing_that_was_given_up_can_be_waited_for_again(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage:
            await stage.publish("a")
            consumer = await stage.consumer().__aenter__()
            message = await anext(consumer)
            closing = asyncio.ensure_future(consumer.close())
            await asyncio.sleep(0)
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
            await consumer.close()
            assert (await stage.client.describe_group("billing")).members == []
            assert consumer._link._connection is not None
            assert consumer._link._connection.failure is not None
            with pytest.raises(Unavailable):
                await message.ack(wait=True)

    run(go())


def test_what_is_decided_after_closing_is_refused(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage:
            await stage.publish("a")
            refused: list[Refused] = []
            consumer = stage.consumer(on_ack_error=refused.append)
            message = None
            try:
                async with consumer:
                    (message,) = await take(consumer, 1)
                    raise ZeroDivisionError
            except ZeroDivisionError:
                pass
            assert message is not None
            with pytest.raises(Unavailable):
                await message.ack(wait=True)
            await message.nack()
            await consumer.flush()
            await turns()
            assert [each.action for each in refused] == ["nack"]
            with pytest.raises(Unavailable, match="closed"):
                await anext(consumer)
            async with stage.consumer() as other:
                (again,) = await take(other, 1)
                assert again.delivery_count == 2

    run(go())


def test_a_callback_may_close_it(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path, partitions=2) as stage:

            async def close(_: list[str]) -> None:
                await first.close()

            async with stage.consumer(on_revoked=close) as first, stage.consumer() as second:
                while len(second.assigned) < 2:
                    await asyncio.sleep(0.001)
                assert len((await stage.client.describe_group("billing")).members) == 1

    run(go())


# --- seeking


def test_a_move_whose_answer_was_lost_is_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = Connection.ask
    asked = 0

    async def lost(self: Connection, operation: int, *given: Any, **named: Any) -> dict[str, Any]:
        nonlocal asked
        reply = await ask(self, operation, *given, **named)
        if operation == CODES["reset_offsets"]:
            asked += 1
            raise Unavailable("the answer was lost")
        return reply

    async def go() -> None:
        async with staged(tmp_path) as stage:
            await stage.publish("a")
            async with stage.consumer() as consumer:
                monkeypatch.setattr(Connection, "ask", lost)
                with pytest.raises(Unavailable, match="the answer was lost"):
                    await consumer.seek("orders", to="latest")
                assert asked == 1

    run(go())


def test_a_group_is_moved_with_all_that_it_holds(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path, partitions=2) as stage:
            for partition in range(2):
                await stage.publish(*numbers(0, 10), partition=partition)
            refused: list[Refused] = []
            async with stage.consumer(prefetch=20, on_ack_error=refused.append) as consumer:
                await stocked(consumer, 20)
                held = await consumer.poll(3)
                side = held[0].partition
                other = 1 - side
                await held[0].ack()
                assert await consumer.seek("orders", side, offset=8) == {str(side): 8}
                got = await take(consumer, 12)
                assert texts([each for each in got if each.partition == side]) == ["8", "9"]
                assert texts([each for each in got if each.partition == other]) == numbers(0, 10)
                assert counts(got) == {1}
                await held[1].ack()
                await consumer.flush()
                assert [each.offset for each in refused] == [1]
                assert await consumer.seek("orders", to="earliest") == {"0": 0, "1": 0}
                got = await take(consumer, 20)
                assert Counter(texts(got)) == dict.fromkeys(numbers(0, 10), 2)
                assert await consumer.seek("orders", to="latest") == {"0": 10, "1": 10}
                assert len(await consumer.poll(timeout=0)) == 0
                await stage.publish("new", partition=other)
                assert texts(await take(consumer, 1)) == ["new"]
                timestamp = got[0].timestamp
                assert await consumer.seek("orders", got[0].partition, time=timestamp) == {
                    str(got[0].partition): got[0].offset
                }
                assert (await anext(consumer)).timestamp >= timestamp
                for wrong in ({}, {"offset": 1, "to": "latest"}, {"to": "middle"}):
                    with pytest.raises(InvalidRequest):
                        await consumer.seek("orders", **wrong)
                for name, junk in (("offset", -1), ("offset", True), ("time", True), ("partition", -1)):
                    place: dict[str, Any] = {"to": "latest"} if name == "partition" else {}
                    with pytest.raises(InvalidRequest, match=rf"^{name} is {junk}; it is "):
                        await consumer.seek("orders", **{**place, name: junk})

    run(go())


# --- programs that do not come for messages


def look_late(consumer: AsyncConsumer) -> None:
    """Have it look whether somebody has come, when that could have been for very long."""
    consumer._leases._came_at = float("-inf")
    consumer._leases._look(asyncio.get_running_loop().time())


async def fall_asleep(consumer: AsyncConsumer) -> None:
    """It has something in stock, and nobody comes for it."""
    while not consumer.stock.is_asleep:
        look_late(consumer)
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("mode", ["shared", "key"])
def test_what_is_in_stock_of_a_program_that_hangs_goes_to_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    async def go() -> None:
        async with staged(tmp_path, visibility_timeout="1h") as stage:
            await stage.publish(*numbers(0, 100))
            async with stage.consumer(mode=mode) as hanging:
                (first,) = await take(hanging, 1)  # before anybody else could have them all
                async with stage.consumer(mode=mode) as working:
                    await fall_asleep(hanging)
                    others = await take(working, 99)
                    assert sorted(texts([first, *others]), key=int) == numbers(0, 100)
                    assert "99 that wait in its stock go back" in caplog.text
                    for message in (first, *others):
                        await message.ack()
                    await hanging.flush()
                await stage.publish("last")
                (message,) = await take(hanging, 1)
                assert (message.value, message.delivery_count) == (b"last", 1), "it was asleep, and comes again"

    run(go())


def test_who_waits_or_takes_messages_is_not_taken_for_one_that_hangs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage, stage.consumer() as consumer:
            waiting = asyncio.ensure_future(take(consumer, 1))
            while not consumer.stock.waiting:
                await asyncio.sleep(0)
            look_late(consumer)
            await stage.publish(*numbers(0, 30))
            assert texts(await waiting) == ["0"]
            while consumer.stock.left < 29:
                await asyncio.sleep(0)
            for number in range(1, 29):
                assert texts(await take(consumer, 1)) == [str(number)]
                look_late(consumer)
            assert "nobody has taken messages" not in caplog.text
            look_late(consumer)
            assert "nobody has taken messages" in caplog.text, "one that hangs is taken for one"

    run(go())


@pytest.mark.parametrize("extended", ["by nobody", "by hand", "automatically"])
def test_a_program_that_hangs_says_no_longer_that_it_is_there_unless_it_has_something_to_look_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extended: str
) -> None:
    async def go() -> None:
        calls = watch(monkeypatch)
        async with staged(tmp_path) as stage:
            await stage.publish(*numbers(0, 10))
            async with stage.consumer(auto_extend=extended == "automatically", prefetch=2) as consumer:
                (message,) = await take(often(consumer), 1)
                if extended == "by hand":
                    await message.extend(3600)
                if extended == "automatically":
                    eager(consumer)
                    consumer._leases._shorter.set()
                await fall_asleep(consumer)
                while consumer._membership._is_polling:
                    await asyncio.sleep(0.001)
                polls, beats = calls.polls.total(), len(calls.beats)
                if extended != "by nobody":
                    await calls.until(lambda: len(calls.beats) > beats + 2)
                else:
                    await asyncio.sleep(0.02)  # of one that is under way the answer may be still to come
                    beats = len(calls.beats)
                    await asyncio.sleep(0.3)  # many times what lies between two
                    assert len(calls.beats) == beats
                assert calls.polls.total() == polls
                await message.ack(wait=True)
                assert texts(await take(consumer, 9)) == numbers(1, 10)

    run(go())


def test_who_looks_now_and_then_without_waiting_gets_messages(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage, stage.consumer() as consumer:
            for _ in range(5):
                assert not await consumer.poll(timeout=0)
                look_late(consumer)
            await stage.publish("at last")
            while not (batch := await consumer.poll(timeout=0)):
                look_late(consumer)
                await asyncio.sleep(0)
            assert batch.values() == [b"at last"]

    run(go())


def test_who_pauses_or_resumes_is_awake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        calls = watch(monkeypatch)
        async with staged(tmp_path) as stage:
            await stage.publish(*numbers(0, 10))
            async with stage.consumer(prefetch=2) as consumer:
                (message,) = await take(often(consumer), 1)
                await message.ack(wait=True)
                await fall_asleep(consumer)
                await asyncio.sleep(0.2)
                beats = len(calls.beats)
                consumer.pause()
                async with asyncio.timeout(PATIENCE_S):
                    await calls.until(lambda: len(calls.beats) > beats)
                polls = calls.polls.total()
                consumer.resume()
                async with asyncio.timeout(PATIENCE_S):
                    await calls.until(lambda: calls.polls.total() > polls)

    run(go())


def test_who_is_forgotten_has_left(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage:
            await stage.publish(*numbers(0, 10))
            async with stage.consumer(prefetch=2, session_timeout="1s") as consumer:
                await take(consumer, 1)
                await fall_asleep(consumer)
                async with asyncio.timeout(PATIENCE_S):
                    while (await stage.client.describe_group("billing")).members:
                        await asyncio.sleep(0.05)
            assert "could not leave" not in caplog.text

    run(go())


def test_a_consumer_that_has_enough_soon_hears_what_it_is_to_give_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "BEAT_S", 0.05)

    async def go() -> None:
        async with staged(tmp_path, partitions=2) as stage:
            for partition in range(2):
                await stage.publish(*numbers(0, 10), partition=partition)
            async with stage.consumer(prefetch=4, session_timeout="10m") as first:
                await take(first, 1)
                async with asyncio.timeout(PATIENCE_S), stage.consumer(session_timeout="10m") as second:
                    assert len(await take(second, 10)) == 10

    run(go())
