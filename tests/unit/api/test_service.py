"""What a scrape finds out about a broker with groups: real numbers, from memory, at any moment."""

import asyncio
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import goqueue
from goqueue.api.operations import BY_NAME
from goqueue.api.service import Readings, Service
from goqueue.broker.read import PartitionReader
from goqueue.model.record import Lane
from goqueue.server.embedded import EmbeddedBroker
from goqueue.storage.log import Log
from goqueue.storage.reading import Reader
from goqueue.telemetry import meters
from goqueue.telemetry.exposition import Exposition
from goqueue.telemetry.meters import RequestMeterSet
from tests.support.loop import turns
from tests.support.moved_time import run_timed
from tests.unit.broker.brokers import topic_directory
from tests.unit.broker.consumers import GROUP, LATEST, TOPIC, Consumers, consuming, handles_of, message, numbered
from tests.unit.storage.logs import flip_record
from tests.unit.telemetry.scrapes import Scrape

LAG = "goqueue_consumer_lag"


class Scraped(Consumers):
    """Consumers, and somebody who scrapes their broker."""

    def __init__(self, consumers: Consumers) -> None:
        super().__init__(consumers.broker, consumers.clock, consumers.time)
        requests = RequestMeterSet(doors=("test",), operations=())
        self.service = Service(self.broker, requests=requests, client_defaults={})
        self._exposition = Exposition(
            Readings(self.service), topics=self.broker.meters, requests=requests, version="1", codec="python"
        )

    def parts(self) -> Iterator[bytes]:
        return self._exposition.parts()

    def scrape(self) -> Scrape:
        return Scrape(b"".join(self.parts()))

    def lags(self) -> dict[tuple[str, ...], float]:
        return self.scrape().rows(LAG, "group", "topic", "partition")

    async def stats(self) -> Any:
        return await BY_NAME["rebalance_stats"].call(self.service, {})

    async def delete_group(self, group: str = GROUP) -> None:
        await self.broker.groups.delete(group)


@asynccontextmanager
async def scraped(path: Path, **more: Any) -> AsyncIterator[Scraped]:
    async with consuming(path, **more) as consumers:
        yield Scraped(consumers)


# --- messages


def test_what_a_group_was_handed_and_has_not_settled(tmp_path: Path) -> None:
    async def go() -> None:
        async with scraped(tmp_path) as broker:
            await broker.create(partitions=2)
            broker.put(*numbered(10), partition=0)
            broker.put(*numbered(4), partition=1)
            member = (await broker.join()).member_id
            assert broker.lags() == {(GROUP, TOPIC, "0"): 10, (GROUP, TOPIC, "1"): 4}
            assert broker.scrape().value("goqueue_messages_consumed_total", group=GROUP, topic=TOPIC) == 0
            await broker.poll(member)
            assert broker.lags() == {(GROUP, TOPIC, "0"): 10, (GROUP, TOPIC, "1"): 4}, "delivered is not settled"
            await broker.commit(member, 7)
            found = broker.scrape()
            assert found.rows(LAG, "partition") == {("0",): 3, ("1",): 4}
            assert found.value("goqueue_messages_consumed_total", group=GROUP, topic=TOPIC) == 14
            assert found.value("goqueue_redeliveries_total", group=GROUP, topic=TOPIC) == 0
            assert found.value("goqueue_messages_missed_total", group=GROUP, topic=TOPIC) == 0
            assert found.value("goqueue_group_members", group=GROUP) == 1

    run_timed(go())


def test_what_the_next_owner_is_handed_again_counts_as_redelivered(tmp_path: Path) -> None:
    async def go() -> None:
        async with scraped(tmp_path) as broker:
            await broker.create()
            broker.put(*numbered(5))
            first = (await broker.join("first")).member_id
            await broker.poll(first)
            await broker.commit(first, 2)
            await broker.leave(first)
            second = (await broker.join("second")).member_id
            broker.put("new")
            await broker.poll(second)
            found = broker.scrape()
            assert found.value("goqueue_messages_consumed_total", group=GROUP, topic=TOPIC) == 9
            assert found.value("goqueue_redeliveries_total", group=GROUP, topic=TOPIC) == 3

    run_timed(go())


def test_messages_that_retention_takes_first_are_missed_and_no_lag(tmp_path: Path) -> None:
    async def go() -> None:
        async with scraped(tmp_path) as broker:
            await broker.create()
            broker.put(*numbered(10))
            member = (await broker.join()).member_id
            await broker.poll(member, max_messages=2)
            await broker.commit(member, 2)
            broker.partition().log.truncate_prefix(6)
            found = broker.scrape()
            assert found.value(LAG, group=GROUP, topic=TOPIC, partition="0") == 4
            assert found.value("goqueue_messages_missed_total", group=GROUP, topic=TOPIC) == 0, "it may still be reset"
            await broker.poll(member)
            found = broker.scrape()
            assert found.value("goqueue_messages_missed_total", group=GROUP, topic=TOPIC) == 4
            assert found.value("goqueue_messages_consumed_total", group=GROUP, topic=TOPIC) == 6

    run_timed(go())


def test_damaged_messages_are_missed(tmp_path: Path) -> None:
    async def go() -> None:
        async with scraped(tmp_path) as broker:
            await broker.create()
            broker.put(*numbered(5))
            flip_record(topic_directory(tmp_path, broker.broker.topics.named(TOPIC)) / "0", 0, 2)
            member = (await broker.join()).member_id
            polled = [text for _ in range(3) for text in await broker.texts(member)]
            assert polled == ["m0", "m1", "m3", "m4"]
            found = broker.scrape()
            assert found.value("goqueue_messages_missed_total", group=GROUP, topic=TOPIC) == 1
            assert found.value("goqueue_messages_consumed_total", group=GROUP, topic=TOPIC) == 4
            assert found.value(LAG, group=GROUP, topic=TOPIC, partition="0") == 4

    run_timed(go())


def test_a_group_that_begins_at_the_end_has_no_lag(tmp_path: Path) -> None:
    async def go() -> None:
        async with scraped(tmp_path) as broker:
            await broker.create()
            broker.put(*numbered(5))
            await broker.join(start=LATEST)
            assert broker.lags() == {(GROUP, TOPIC, "0"): 0}
            broker.put("new")
            assert broker.lags() == {(GROUP, TOPIC, "0"): 1}

    run_timed(go())


def test_polls_that_wait_are_counted(tmp_path: Path) -> None:
    async def go() -> None:
        async with scraped(tmp_path) as broker:
            await broker.create()
            member = (await broker.join()).member_id
            waiting = asyncio.ensure_future(broker.park(member))
            await turns()
            assert broker.scrape().value("goqueue_waiting_polls") == 1
            broker.put("new")
            await waiting
            assert broker.scrape().value("goqueue_waiting_polls") == 0

    run_timed(go())


# --- how deliveries end


def test_a_scrape_has_the_numbers_of_deliveries_lanes_and_delays(tmp_path: Path) -> None:
    async def go() -> None:
        async with scraped(tmp_path) as broker:
            await broker.create(lane_policy="strict")
            broker.send(*(message("x", lane=Lane.HIGH) for _ in range(4)), message("y", lane=Lane.LOW))
            broker.delay("late", by_ms=1000)
            member = (await broker.join()).member_id
            handles = handles_of(await broker.poll(member, max_messages=3))
            await broker.ack(handles[0])
            await broker.nack(handles[1], delay_ms=60_000)
            await broker.reject(handles[2])
            await broker.letters()
            await broker.pass_by(1500)
            found = broker.scrape()
            labels = {"group": GROUP, "topic": TOPIC}
            for name in ("acks", "nacks", "rejects"):
                assert found.value(f"goqueue_{name}_total", **labels) == 1
            for name in ("lapses", "messages_expired"):
                assert found.value(f"goqueue_{name}_total", **labels) == 0
            assert found.value("goqueue_messages_dead_total", **labels, reason="rejected") == 1
            assert found.value("goqueue_dead_letters_total", topic=TOPIC) == 1
            assert found.value("goqueue_dead_letters_pending", topic=TOPIC) == 0
            assert found.value("goqueue_messages_in_flight", **labels) == 0
            assert found.value("goqueue_retries_waiting", **labels) == 1
            assert found.value("goqueue_delayed_pending", topic=TOPIC) == 0
            assert found.value("goqueue_delay_lateness_seconds_sum") == 0.5
            assert found.rows("goqueue_lane_ready", "lane") == {
                ("critical",): 0, ("high",): 1, ("normal",): 1, ("low",): 1, ("background",): 0,
            }  # fmt: skip
            assert found.value("goqueue_lane_served_total", group=GROUP, lane="high") == 3
            assert found.value("goqueue_lane_waited_seconds", group=GROUP, lane="low") == 1.5
            assert found.value("goqueue_groups_without_lanes") == 0
            await broker.poll(member)
            assert broker.scrape().value("goqueue_messages_in_flight", **labels) == 3

    run_timed(go())


def test_a_group_whose_views_are_not_in_memory_is_left_out_and_no_disk_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go() -> None:
        async with scraped(tmp_path) as broker:
            await broker.create()
            broker.put(*numbered(5))
            log = broker.partition().log
            log.roll()
            log.sync()
            member = (await broker.join()).member_id
            await broker.poll(member, max_messages=2)
            assert broker.scrape().value("goqueue_lane_ready", group=GROUP, lane="normal") == 3
            log.segments[0].derived = None

            def refuse(*_: Any, **__: Any) -> None:
                pytest.fail("a scrape loads a view")

            with monkeypatch.context() as patch:
                patch.setattr(Reader, "derived", refuse)
                found = broker.scrape()
            assert not found.series("goqueue_lane_ready")
            assert found.value("goqueue_groups_without_lanes") == 1
            assert found.value("goqueue_messages_in_flight", group=GROUP, topic=TOPIC) == 2
            await BY_NAME["priority_stats"].call(broker.service, {})
            assert broker.scrape().value("goqueue_lane_ready", group=GROUP, lane="normal") == 3

    run_timed(go())


# --- rebalances


def test_a_rebalance_counts_its_moves_and_its_times(tmp_path: Path) -> None:
    async def go() -> None:
        async with scraped(tmp_path) as broker:
            await broker.create(partitions=4)
            first = (await broker.join("first")).member_id
            await broker.join("second")
            assert (await broker.stats()).in_progress == [GROUP]
            await broker.pass_by(250)
            await broker.heartbeat(first)  # is told what to give up
            await broker.heartbeat(first)  # and has given it up
            found = broker.scrape()
            assert found.value("goqueue_group_members", group=GROUP) == 2
            assert found.value("goqueue_rebalance_moves_total", group=GROUP) == 2
            assert found.value("goqueue_partition_pause_seconds_count", group=GROUP) == 2
            assert found.value("goqueue_partition_pause_seconds_sum", group=GROUP) == 0.5
            assert found.value("goqueue_rebalance_duration_seconds_sum", group=GROUP) == 0.25
            stats = await broker.stats()
            assert (stats.moves, stats.pause_seconds, stats.rebalance_seconds) == (2, 0.5, 0.25)
            assert stats.rebalances == found.value("goqueue_rebalance_duration_seconds_count", group=GROUP)
            assert (stats.in_progress, stats.groups[GROUP].moves) == ([], 2)

    run_timed(go())


def test_deleting_a_group_ends_its_series_and_keeps_the_totals(tmp_path: Path) -> None:
    async def go() -> None:
        async with scraped(tmp_path) as broker:
            await broker.create(partitions=2)
            first = (await broker.join("first")).member_id
            second = (await broker.join("second")).member_id
            await broker.pass_by(100)
            for _ in range(2):
                await broker.heartbeat(first)
            for member in (second, first):
                await broker.leave(member)
            before = await broker.stats()
            assert (before.moves, before.pause_seconds) == (2, 0.1)
            assert broker.scrape().value("goqueue_group_members", group=GROUP) == 0
            await broker.delete_group()
            after = await broker.stats()
            assert GROUP not in after.groups
            for total in ("rebalances", "moves", "rebalance_seconds", "pause_seconds"):
                assert getattr(after, total) == getattr(before, total) > 0
            assert not [labels for _, labels in broker.scrape().samples if ("group", GROUP) in labels]
            await broker.join("third")
            assert broker.scrape().value("goqueue_rebalance_moves_total", group=GROUP) == 0

    run_timed(go())


# --- what a scrape costs, and what happens meanwhile


def test_a_scrape_reads_nothing_from_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        async with scraped(tmp_path) as broker:
            await broker.create(partitions=3)
            broker.put(*numbered(5))
            await broker.poll((await broker.join()).member_id, max_messages=2)

            def refuse(*_: Any, **__: Any) -> None:
                pytest.fail("a scrape reads messages")

            monkeypatch.setattr(PartitionReader, "read", refuse)
            monkeypatch.setattr(Log, "read", refuse)
            assert broker.lags() == {(GROUP, TOPIC, str(number)): lag for number, lag in enumerate((5, 0, 0))}

    run_timed(go())


def test_a_group_that_is_deleted_during_a_scrape_does_not_seem_to_have_settled_nothing(tmp_path: Path) -> None:
    async def go() -> None:
        async with scraped(tmp_path) as broker:
            await broker.create()
            broker.put(*numbered(5))
            member = (await broker.join()).member_id
            await broker.poll(member)
            await broker.commit(member, 5)
            await broker.leave(member)
            parts = broker.parts()
            text = next(parts)
            await broker.delete_group()
            found = Scrape(text + b"".join(parts))
            assert not found.series(LAG)

    run_timed(go())


def test_a_topic_that_is_deleted_during_a_scrape_does_no_harm(tmp_path: Path) -> None:
    async def go() -> None:
        async with scraped(tmp_path) as broker:
            for name in ("orders", "users"):
                await broker.create(name)
                broker.put("x", topic=name)
            await broker.join("worker", "orders", "users")
            text = b""
            for part in broker.parts():
                text += part
                if b"goqueue_waiting_polls" in part:  # lags come after it
                    await broker.delete("users")
            assert Scrape(text).rows(LAG, "topic") == {("orders",): 1}
            assert broker.lags() == {(GROUP, "orders", "0"): 1}

    run_timed(go())


def test_groups_without_labels_of_their_own_are_added_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meters, "MAX_SERIES_GROUPS", 1)

    async def go() -> None:
        async with scraped(tmp_path) as broker:
            await broker.create(partitions=2)
            broker.put(*numbered(3))
            for name in ("a", "b", "c"):
                member = (await broker.join(group=name)).member_id
                await broker.poll(member, group=name)
            found = broker.scrape()
            assert found.rows("goqueue_messages_consumed_total", "group") == {("a",): 3, ("_other",): 6}
            assert found.rows("goqueue_group_members", "group") == {("a",): 1, ("_other",): 2}
            assert broker.lags() == {
                ("a", TOPIC, "0"): 3,
                ("a", TOPIC, "1"): 0,
                ("_other", TOPIC, "_all"): 6,
            }
            assert sorted((await broker.stats()).groups) == ["_other", "a"]

    run_timed(go())


# --- through the door


def test_the_numbers_arrive_at_whoever_scrapes(tmp_path: Path) -> None:
    with goqueue.embedded(str(tmp_path)) as broker:
        broker.call("create_topic", name="orders", num_partitions=2)
        messages = [{"value": "x", "partition": number} for number in range(2) for _ in range(10)]
        broker.call("publish_batch", topic="orders", messages=messages)
        first = join(broker, "first")
        assert len(broker.call("poll", group="billing", member_id=first)["messages"]) == 20
        broker.call("commit", group="billing", member_id=first, offsets={"orders": {"0": 10, "1": 4}})
        second = join(broker, "second")
        (given,) = broker.call("heartbeat", group="billing", member_id=first)["revoke"]
        broker.call("commit", group="billing", member_id=first, offsets={"orders": {"0": 10, "1": 10}})
        broker.call("heartbeat", group="billing", member_id=first)
        assert broker.call("heartbeat", group="billing", member_id=second)["assigned_partitions"] == [given]

        found = Scrape(fetch(broker, "/metrics"))
        assert found.rows("goqueue_consumer_lag", "group", "topic", "partition") == {
            ("billing", "orders", "0"): 0,
            ("billing", "orders", "1"): 0,
        }
        assert found.value("goqueue_messages_consumed_total", group="billing", topic="orders") == 20
        assert found.value("goqueue_group_members", group="billing") == 2
        assert found.value("goqueue_rebalance_moves_total", group="billing") == 1
        assert found.value("goqueue_partition_pause_seconds_count", group="billing") == 1
        stats = broker.call("rebalance_stats")
        assert stats["moves"] == 1
        assert stats["rebalances"] == found.value("goqueue_rebalance_duration_seconds_count", group="billing")

        for member in (first, second):
            broker.call("leave_group", group="billing", member_id=member)
        broker.call("delete_group", group="billing")
        assert not Scrape(fetch(broker, "/metrics")).series("goqueue_consumer_lag")
        assert broker.call("rebalance_stats")["moves"] >= stats["moves"]


def join(broker: EmbeddedBroker, client_id: str) -> str:
    reply = broker.call("join_group", group="billing", client_id=client_id, topics=["orders"])
    return str(reply["member_id"])


def fetch(broker: EmbeddedBroker, path: str) -> bytes:
    with urllib.request.urlopen(f"http://{broker.endpoints['http']}{path}") as reply:
        body: bytes = reply.read()
        return body
