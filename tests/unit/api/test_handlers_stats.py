"""Statistics as JSON: the names of all fields, what is added up, and what a request may say."""

from pathlib import Path
from typing import Any

import pytest

from goqueue.model.errors import InvalidRequest
from goqueue.model.limits import MAX_STAT_ROWS
from goqueue.telemetry.meters import LATENESS_BOUNDS_S
from tests.support.loop import run
from tests.support.moved_time import MovedTime, run_timed
from tests.unit.api.services import Served, served
from tests.unit.api.test_handlers_groups import join, poll
from tests.unit.broker.brokers import T0

LANES = ["critical", "high", "normal", "low", "background"]
EMPTY = {"ready": 0, "in_flight": 0, "served": 0, "waited_seconds": 0.0, "last_served": None}
ENDS = ["acked", "nacked", "rejected", "lapsed", "expired", "redelivered", "dead", "in_flight", "waiting"]


async def publish(to: Served, count: int, partition: int = 0, **fields: Any) -> None:
    messages = [{"value": "v", "partition": partition, **fields} for _ in range(count)]
    await to.call("publish_batch", topic="orders", messages=messages)


def test_a_broker_without_anything_has_all_fields(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as to:
            assert await to.call("priority_stats") == {
                "lanes": dict.fromkeys(LANES, EMPTY),
                "partitions": [],
                "left_out": 0,
            }
            found = await to.call("delay_stats")
            buckets = found["lateness"].pop("buckets")
            assert list(buckets) == [*map(str, LATENESS_BOUNDS_S), "+Inf"]
            assert set(buckets.values()) == {0}
            assert found == {
                "pending": 0, "scheduled": 0, "delivered": 0, "cancelled": 0, "moved": 0, "next_due": None,
                "lateness": {"count": 0, "sum_seconds": 0.0}, "topics": {}, "left_out": 0,
            }  # fmt: skip
            ended = await to.call("reliability_stats")
            assert list(ended) == [*ENDS, "dead_letters", "outbox", "groups", "left_out"]
            assert (ended["dead"], ended["groups"]) == ({}, [])
            assert sum(value for value in ended.values() if isinstance(value, int)) == 0

    run(go())


def test_lanes_are_added_up_over_the_rows(tmp_path: Path) -> None:
    async def go() -> None:
        time = MovedTime()
        async with served(tmp_path, monotonic=time) as to:
            await to.call("create_topic", name="orders", num_partitions=2, lane_policy="strict")
            for partition in (0, 1):
                await publish(to, 2 + partition, partition, priority="high")
                await publish(to, 1, partition, priority="low")
            member = await join(to)
            await poll(to, member, max_messages=1)
            time.move(1500)
            to.clock.now += 1500
            await poll(to, member, max_messages=1)
            time.move(500)
            found = await to.call("priority_stats", group="billing", topic="orders")
            assert found["left_out"] == 0
            assert [list(row) for row in found["partitions"]] == [["group", "topic", "partition", "lanes"]] * 2
            assert [list(row["lanes"]) for row in found["partitions"]] == [LANES] * 2
            high = [row["lanes"]["high"] for row in found["partitions"]]
            assert [lane["ready"] for lane in high] == [1, 2]
            assert [lane["waited_seconds"] for lane in high] == [2.0, 0.5]
            assert [lane["last_served"] for lane in high] == ["2023-11-14T22:13:20.000Z", "2023-11-14T22:13:21.500Z"]
            assert found["lanes"]["high"] == {
                "ready": 3, "in_flight": 2, "served": 2, "waited_seconds": 2.0,
                "last_served": "2023-11-14T22:13:21.500Z",
            }  # fmt: skip
            assert found["lanes"]["low"] == {**EMPTY, "ready": 2, "waited_seconds": 2.0}
            some = await to.call("priority_stats", limit=1)
            assert (some["left_out"], some["lanes"]) == (1, some["partitions"][0]["lanes"])

    run_timed(go())


def test_delays_are_told_in_all_and_by_topic(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as to:
            for name in ("orders", "users", "plain"):
                await to.call("create_topic", name=name, num_partitions=1)
            await publish(to, 3, delay="30s")
            await to.call("publish", topic="users", value="v", partition=0, delay="20s")
            await to.call("cancel_delayed", topic="orders", partition=0, offset=1)
            await to.call("move_delayed", topic="users", partition=0, offset=0, delay="10s")
            found = await to.call("delay_stats")
            numbers = ("pending", "scheduled", "delivered", "cancelled", "moved")
            assert [found[name] for name in numbers] == [3, 4, 0, 1, 1]
            assert {topic: [row[name] for name in numbers] for topic, row in found["topics"].items()} == {
                "orders": [2, 3, 0, 1, 0],
                "users": [1, 1, 0, 0, 1],
            }
            assert found["next_due"] == found["topics"]["users"]["next_due"] <= "2023-11-14T22:13:30.000Z"
            assert list((await to.call("delay_stats", topic="users"))["topics"]) == ["users"]
            one = await to.call("delay_stats", limit=1)
            assert (list(one["topics"]), one["left_out"], one["pending"]) == (["orders"], 1, 3)
            assert to.clock.now == T0

    run(go())


def test_ends_are_told_in_all_and_by_group_and_topic(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as to:
            await to.call("create_topic", name="orders", num_partitions=1)
            await publish(to, 4)
            for group in ("audit", "billing"):
                request = {"group": group, "client_id": "w", "topics": ["orders"]}
                member = (await to.call("join_group", **request))["member_id"]
                polled = await to.call("poll", group=group, member_id=member, timeout=0)
                handles = [message["receipt_handle"] for message in polled["messages"]]
                await to.call("ack", receipt_handle=handles[0])
                await to.call("nack", receipt_handle=handles[1], delay="1m")
                await to.call("reject", receipt_handle=handles[2])
            found = await to.call("reliability_stats")
            one = {
                "acked": 1, "nacked": 1, "rejected": 1, "lapsed": 0, "expired": 0, "redelivered": 0,
                "dead": {"rejected": 1}, "in_flight": 1, "waiting": 1,
            }  # fmt: skip
            assert found["groups"] == [{**one, "group": group, "topic": "orders"} for group in ("audit", "billing")]
            twice = {name: number * 2 for name, number in one.items() if isinstance(number, int)}
            assert {name: found[name] for name in ENDS} == {**twice, "dead": {"rejected": 2}}
            assert found["dead_letters"] + found["outbox"] == 2
            chosen = await to.call("reliability_stats", group="audit", topic="orders")
            assert (len(chosen["groups"]), chosen["acked"]) == (1, 2), "totals are of all"
            assert (await to.call("reliability_stats", limit=1))["left_out"] == 1
            assert (await to.call("reliability_stats", group="nobody"))["groups"] == []

    run(go())


@pytest.mark.parametrize("operation", ["priority_stats", "delay_stats", "reliability_stats"])
@pytest.mark.parametrize("limit", [0, MAX_STAT_ROWS + 1, "many"])
def test_a_limit_out_of_range_is_refused(tmp_path: Path, operation: str, limit: object) -> None:
    async def go() -> None:
        async with served(tmp_path) as to:
            with pytest.raises(InvalidRequest, match="limit"):
                await to.call(operation, limit=limit)
            await to.call(operation, limit=MAX_STAT_ROWS)

    run(go())
