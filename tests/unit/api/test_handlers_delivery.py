"""Handles and delayed messages as JSON: the names of all fields, what a request may say, and what is refused."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from goqueue.api.errors import status_of
from goqueue.model import limits
from goqueue.model.errors import (
    AlreadyDelivered,
    Conflict,
    GoQueueError,
    InvalidRequest,
    StaleHandle,
    UnknownDelay,
    UnknownGroup,
    UnknownPartition,
    UnknownTopic,
)
from tests.support.loop import turns
from tests.support.moved_time import MovedTime, run_timed
from tests.unit.api.services import Served, served

T0_TEXT = "2023-11-14T22:13:20.000Z"
LATER = "2023-11-14T22:14:20.000Z"


class Rig:
    """A topic with a member of a group, and time that a test moves."""

    def __init__(self, to: Served, time: MovedTime) -> None:
        self.to = to
        self.call = to.call
        self.time = time
        self.member = ""

    async def pass_by(self, ms: int) -> None:
        self.to.clock.now += ms
        self.time.move(ms)
        await turns()

    async def publish(self, *values: str, **fields: Any) -> None:
        messages = [{"value": value, "partition": 0, **fields} for value in values]
        await self.call("publish_batch", topic="orders", messages=messages)

    async def poll(self, **fields: Any) -> list[dict[str, Any]]:
        asked = {"group": "billing", "member_id": self.member, "timeout": 0, **fields}
        messages: list[dict[str, Any]] = (await self.call("poll", **asked))["messages"]
        return messages

    async def handles(self) -> list[str]:
        return [message["receipt_handle"] for message in await self.poll()]


@asynccontextmanager
async def rigged(path: Path, **settings: Any) -> AsyncIterator[Rig]:
    time = MovedTime()
    async with served(path, monotonic=time) as to:
        rig = Rig(to, time)
        await to.call("create_topic", **{"name": "orders", "num_partitions": 1, **settings})
        joined = await to.call("join_group", group="billing", client_id="worker", topics=["orders"])
        rig.member = joined["member_id"]
        await rig.poll()
        yield rig


# --- handles


def test_replies_have_the_fields_that_clients_know(tmp_path: Path) -> None:
    async def go() -> None:
        async with rigged(tmp_path) as rig:
            await rig.publish("a", "b", "c", "d", "e")
            a, b, c, d, e = await rig.handles()
            assert await rig.call("ack", receipt_handle=a) == {"acknowledged": True}
            assert await rig.call("nack", receipt_handle=b, delay="1m") == {"requeued": True, "visible_at": LATER}
            assert await rig.call("reject", receipt_handle=c, reason="no") == {
                "rejected": True,
                "dlq_topic": "orders.dlq",
            }
            assert await rig.call("extend_visibility", receipt_handle=d, timeout="1m") == {
                "extended": True,
                "new_deadline": LATER,
            }
            assert await rig.call("release", receipt_handle=e) == {"released": True}

    run_timed(go())


def test_what_is_released_comes_again_with_the_same_count_and_another_handle(tmp_path: Path) -> None:
    async def go() -> None:
        async with rigged(tmp_path, max_retries=0) as rig:
            await rig.publish("a", "b", "c")
            a, b, c = await rig.handles()
            await rig.call("ack", receipt_handle=b)
            reply = await rig.call("release", receipt_handles=[c, b, "nonsense", a, c])
            assert [list(result) for result in reply["results"]] == [
                ["released"], ["error", "code", "retriable"], ["error", "code", "retriable"], ["released"],
                ["error", "code", "retriable"],
            ]  # fmt: skip
            assert [result.get("code") for result in reply["results"]] == [
                None, "stale_handle", "invalid_request", None, "stale_handle",
            ]  # fmt: skip
            with pytest.raises(StaleHandle):
                await rig.call("release", receipt_handle=a)
            again = await rig.poll()
            assert [(message["value"], message["delivery_count"]) for message in again] == [("a", 1), ("c", 1)]
            assert not {a, c} & {message["receipt_handle"] for message in again}

    run_timed(go())


def test_many_handles_have_a_result_each_in_their_order(tmp_path: Path) -> None:
    async def go() -> None:
        async with rigged(tmp_path) as rig:
            await rig.publish("a", "b", "c")
            a, b, c = await rig.handles()
            await rig.call("ack", receipt_handle=b)
            reply = await rig.call("ack", receipt_handles=[c, b, "nonsense", a])
            assert [list(result) for result in reply["results"]] == [
                ["acknowledged"], ["error", "code", "retriable"], ["error", "code", "retriable"], ["acknowledged"],
            ]  # fmt: skip
            assert [result.get("code") for result in reply["results"]] == [
                None, "stale_handle", "invalid_request", None,
            ]  # fmt: skip
            assert not reply["results"][1]["retriable"]
            reply = await rig.call("ack", receipt_handles=[a])
            assert reply["results"][0]["code"] == "stale_handle", "one in a list is still a list"

    run_timed(go())


def test_a_message_that_failed_too_often_says_where_it_went(tmp_path: Path) -> None:
    async def go() -> None:
        async with rigged(tmp_path, max_retries=0) as rig:
            await rig.publish("a", "b")
            a, b = await rig.handles()
            assert await rig.call("nack", receipt_handle=a) == {"requeued": False, "dlq_topic": "orders.dlq"}
            await rig.call("change_topic", topic="orders", dlq_enabled=False)
            assert await rig.call("nack", receipt_handles=[b]) == {"results": [{"requeued": False}]}

    run_timed(go())


def test_a_poll_says_how_long_its_messages_are_its_own(tmp_path: Path) -> None:
    async def go() -> None:
        async with rigged(tmp_path) as rig:
            await rig.publish("a")
            (first,) = await rig.poll(visibility="2s")
            assert first["delivery_count"] == 1
            await rig.pass_by(1999)
            assert await rig.poll() == []
            await rig.pass_by(1)
            (again,) = await rig.poll(visibility=1.5)
            assert again["delivery_count"] == 2
            assert again["receipt_handle"] != first["receipt_handle"]
            with pytest.raises(StaleHandle):
                await rig.call("ack", receipt_handle=first["receipt_handle"])

    run_timed(go())


@pytest.mark.parametrize("operation", ["ack", "nack", "reject", "extend_visibility", "release"])
def test_one_handle_or_many_are_named_and_not_both(tmp_path: Path, operation: str) -> None:
    async def go() -> None:
        more = {"timeout": "1s"} if operation == "extend_visibility" else {}
        async with rigged(tmp_path) as rig:
            await rig.publish("a")
            (handle,) = await rig.handles()
            unclear: list[dict[str, Any]] = [{}, {"receipt_handle": handle, "receipt_handles": [handle]}]
            for fields in unclear:
                with pytest.raises(InvalidRequest, match="name receipt_handle for one message, or receipt_handles"):
                    await rig.call(operation, **fields, **more)
            wrong: list[dict[str, Any]] = [
                {"receipt_handles": []},
                {"receipt_handle": ""},
                {"receipt_handle": None},
                {"receipt_handles": [handle] * (limits.MAX_HANDLES + 1)},
            ]
            for fields in wrong:
                with pytest.raises(InvalidRequest):
                    await rig.call(operation, **fields, **more)
            assert await rig.call(operation, receipt_handle=handle, consumer_id="worker-7", **more)

    run_timed(go())


@pytest.mark.parametrize(
    "change",
    [
        lambda handle: handle[:-1] + ("A" if handle[-1] != "A" else "B"),
        lambda handle: handle.replace("orders:0:0:1:", "orders:0:1:1:"),
        lambda handle: handle.replace("orders:0:0:1:", "orders:0:0:2:"),
        lambda handle: handle.replace("orders:0:0:1:", "bills:0:0:1:"),
        lambda handle: handle.replace("orders:0:0:1:", "nope:0:0:1:"),
        lambda handle: handle.replace("orders:0:0:1:", "orders:7:0:1:"),
        lambda _: "orders:0:0:1:" + "A" * 32,
    ],
    ids=["mac", "offset", "count", "topic", "no topic", "partition", "invented"],
)
def test_a_forged_handle_settles_nothing(tmp_path: Path, change: Any) -> None:
    async def go() -> None:
        async with rigged(tmp_path) as rig:
            await rig.call("create_topic", name="bills", num_partitions=1)
            await rig.publish("a", "b")
            handle = (await rig.handles())[0]
            forged = change(handle)
            assert forged != handle
            for operation in ("ack", "nack", "reject", "extend_visibility", "release"):
                more = {"timeout": 1} if operation == "extend_visibility" else {}
                with pytest.raises(StaleHandle) as refused:
                    await rig.call(operation, receipt_handle=forged, **more)
                assert status_of(refused.value) == 409
            assert (await rig.call("group_lag", group="billing"))["total_lag"] == 2

    run_timed(go())


@pytest.mark.parametrize(
    "text", ["x", ":", "a:b:c:d:e", "orders:0:0:1:", "orders:0:0:1:" + "!" * 32, "orders:-1:0:1:" + "A" * 32, "ü" * 50]
)
def test_what_is_no_handle_is_not_a_valid_request(tmp_path: Path, text: str) -> None:
    async def go() -> None:
        async with rigged(tmp_path) as rig:
            with pytest.raises(InvalidRequest, match="is not a receipt handle"):
                await rig.call("ack", receipt_handle=text)

    run_timed(go())


def test_a_handle_of_a_topic_that_was_created_again_is_refused(tmp_path: Path) -> None:
    async def go() -> None:
        async with rigged(tmp_path) as rig:
            await rig.publish("old")
            (old,) = await rig.handles()
            await rig.call("delete_topic", topic="orders")
            with pytest.raises(StaleHandle):
                await rig.call("ack", receipt_handle=old)
            await rig.call("create_topic", name="orders", num_partitions=1)
            await rig.publish("new")
            while tasks := list(rig.to.broker.groups._tasks):
                await asyncio.wait(tasks)
            found = await rig.poll() or await rig.poll()
            assert [message["value"] for message in found] == ["new"]
            with pytest.raises(StaleHandle):
                await rig.call("ack", receipt_handle=old)
            lag = (await rig.call("group_lag", group="billing"))["topics"]["orders"]["0"]
            assert (lag["lag"], lag["in_flight"]) == (1, 1)

    run_timed(go())


def test_a_handle_is_good_after_a_restart(tmp_path: Path) -> None:
    async def go() -> None:
        async with rigged(tmp_path) as rig:
            await rig.publish("a")
            (handle,) = await rig.handles()
        async with served(tmp_path, monotonic=MovedTime()) as to:
            assert await to.call("ack", receipt_handle=handle) == {"acknowledged": True}

    run_timed(go())


def test_the_handles_of_another_broker_mean_nothing(tmp_path: Path) -> None:
    async def go() -> None:
        async with rigged(tmp_path / "one") as one, rigged(tmp_path / "two") as two:
            for rig in (one, two):
                await rig.publish("a")
            (handle,) = await one.handles()
            await two.handles()
            with pytest.raises(StaleHandle):
                await two.call("ack", receipt_handle=handle)

    run_timed(go())


def test_a_group_settles_its_own_handles_by_its_own_route(tmp_path: Path) -> None:
    async def go() -> None:
        async with rigged(tmp_path) as rig:
            await rig.publish("a", "b", "c")
            a, b, c = await rig.handles()
            await rig.call("join_group", group="other", client_id="worker", topics=["orders"])
            with pytest.raises(StaleHandle, match="of another group"):
                await rig.call("group_ack", group="other", receipt_handle=a)
            reply = await rig.call("group_nack", group="other", receipt_handles=[a, b])
            assert [result["code"] for result in reply["results"]] == ["stale_handle"] * 2
            with pytest.raises(UnknownGroup):
                await rig.call("group_ack", group="nope", receipt_handle=a)
            assert await rig.call("group_ack", group="billing", receipt_handle=a) == {"acknowledged": True}
            assert (await rig.call("group_nack", group="billing", receipt_handle=b, delay=60))["visible_at"] == LATER
            assert await rig.call("group_ack", group="billing", receipt_handles=[c]) == {
                "results": [{"acknowledged": True}]
            }

    run_timed(go())


@pytest.mark.parametrize(
    ("operation", "fields", "reason"),
    [
        ("nack", {"delay": "8d"}, r"delay is '8d'; write from 0s to 7d"),
        ("nack", {"delay": "soon"}, "a number and a unit"),
        ("nack", {"delay": -1}, "a number and a unit"),
        ("extend_visibility", {"timeout": 0}, r"timeout is 0(\.0)?; write from 1ms to 12h"),
        ("extend_visibility", {"timeout": "13h"}, "write from 1ms to 12h"),
        ("extend_visibility", {}, "timeout is missing"),
        ("reject", {"reason": "x" * 1001}, "at most 1000"),
        ("ack", {"delay": "1s"}, "there is no field 'delay'"),
        ("release", {"delay": "1s"}, "there is no field 'delay'"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(
    tmp_path: Path, operation: str, fields: dict[str, Any], reason: str
) -> None:
    async def go() -> None:
        async with rigged(tmp_path) as rig:
            await rig.publish("a")
            (handle,) = await rig.handles()
            with pytest.raises(InvalidRequest, match=reason):
                await rig.call(operation, receipt_handle=handle, **fields)
            assert await rig.call("ack", receipt_handle=handle) == {"acknowledged": True}

    run_timed(go())


# --- joining


def test_a_member_says_how_it_shares_and_how_much_it_may_hold(tmp_path: Path) -> None:
    async def go() -> None:
        async with rigged(tmp_path) as rig:
            await rig.publish(*(f"m{number}" for number in range(6)))
            fields = {"group": "mails", "topics": ["orders"], "mode": "shared", "max_unacked": 2, "visibility": "2s"}
            members = [(await rig.call("join_group", client_id=name, **fields))["member_id"] for name in ("one", "two")]
            described = await rig.call("describe_group", group="mails")
            assert described["mode"] == "shared"
            found = []
            for member in members:
                asked = {"group": "mails", "member_id": member, "timeout": 0}
                found += [message["value"] for message in (await rig.call("poll", **asked))["messages"]]
            assert sorted(found) == ["m0", "m1", "m2", "m3"], "two for each"

    run_timed(go())


@pytest.mark.parametrize(
    "fields",
    [
        {"mode": "queue"}, {"mode": "SHARED"}, {"max_unacked": 0}, {"max_unacked": limits.MAX_UNACKED + 1},
        {"visibility": 0}, {"visibility": "13h"}, {"visibility": "x"},
    ],
)  # fmt: skip
def test_what_a_member_cannot_say_is_refused(tmp_path: Path, fields: dict[str, Any]) -> None:
    async def go() -> None:
        async with rigged(tmp_path) as rig:
            with pytest.raises(InvalidRequest):
                await rig.call("join_group", group="new", client_id="w", topics=["orders"], **fields)
            assert "new" not in (await rig.call("list_groups"))["groups"]

    run_timed(go())


# --- delayed messages


def test_a_delayed_message_has_the_fields_that_clients_know(tmp_path: Path) -> None:
    async def go() -> None:
        async with rigged(tmp_path) as rig:
            await rig.publish("a", delay="1m", key="k", priority="high")
            shown = {
                "topic": "orders",
                "partition": 0,
                "offset": 0,
                "message_id": "orders:0:0",
                "deliver_at": LATER,
                "priority": "high",
                "key": "k",
                "state": "pending",
            }
            assert await rig.call("list_delayed", topic="orders") == {"messages": [shown], "count": 1}
            assert await rig.call("get_delayed", topic="orders", partition=0, offset=0) == shown
            assert await rig.call("find_delayed", topic="orders", offset=0) == shown
            moved = await rig.call("move_delayed", topic="orders", partition=0, offset=0, delay="30s")
            assert moved == {**shown, "deliver_at": "2023-11-14T22:13:50.000Z"}
            for time in (LATER, "2023-11-14T23:14:20 01:00", "1700000060000", 1_700_000_060_000):
                moved = await rig.call("move_delayed", topic="orders", partition=0, offset=0, deliverAt=time)
                assert moved == shown
            assert await rig.call("cancel_delayed", topic="orders", partition=0, offset=0) == {"cancelled": True}
            assert await rig.call("list_delayed", topic="orders") == {"messages": [], "count": 0}
            assert (await rig.call("find_delayed", topic="orders", offset=0))["state"] == "cancelled"

    run_timed(go())


def test_a_key_that_is_no_text_is_shown_as_far_as_it_is(tmp_path: Path) -> None:
    async def go() -> None:
        async with rigged(tmp_path) as rig:
            await rig.publish("/w==", key="/2E=", encoding="base64", delay=60)
            assert (await rig.call("find_delayed", topic="orders", offset=0))["key"] == "\\xffa"

    run_timed(go())


def test_many_are_cancelled_at_once(tmp_path: Path) -> None:
    async def go() -> None:
        async with rigged(tmp_path) as rig:
            await rig.publish("now")
            await rig.publish("a", "b", "c", delay="1m")
            ids = [[0, 1], [0, 3], [0, 0], [0, 99], [5, 0], [0, 1]]
            reply = await rig.call("cancel_many_delayed", topic="orders", ids=ids)
            assert reply == {"cancelled": 2, "failed": [[0, 0], [0, 99], [5, 0]]}
            assert (await rig.call("list_delayed", topic="orders"))["count"] == 1

    run_timed(go())


def test_a_topic_with_several_partitions_needs_to_know_which(tmp_path: Path) -> None:
    async def go() -> None:
        async with rigged(tmp_path, num_partitions=3) as rig:
            await rig.publish("a", delay="1m")
            with pytest.raises(InvalidRequest, match=r"orders has 3 partitions .* write /topics/orders/delayed/0/0"):
                await rig.call("find_delayed", topic="orders", offset=0)

    run_timed(go())


@pytest.mark.parametrize(
    ("operation", "fields", "kind", "status"),
    [
        ("list_delayed", {"topic": "nope"}, UnknownTopic, 404),
        ("get_delayed", {"partition": 0, "offset": 7}, UnknownDelay, 404),
        ("get_delayed", {"partition": 0, "offset": 0}, UnknownDelay, 404),
        ("get_delayed", {"partition": 3, "offset": 0}, UnknownPartition, 404),
        ("cancel_delayed", {"partition": 0, "offset": 0}, UnknownDelay, 404),
        ("cancel_delayed", {"partition": 0, "offset": 1}, AlreadyDelivered, 409),
        ("cancel_delayed", {"partition": 0, "offset": 3}, Conflict, 409),
        ("move_delayed", {"partition": 0, "offset": 0, "delay": 1}, UnknownDelay, 404),
        ("move_delayed", {"partition": 0, "offset": 1, "delay": 1}, AlreadyDelivered, 409),
        ("move_delayed", {"partition": 0, "offset": 3, "delay": 1}, Conflict, 409),
        ("move_delayed", {"partition": 0, "offset": 2}, InvalidRequest, 400),
        ("move_delayed", {"partition": 0, "offset": 2, "delay": 1, "deliverAt": T0_TEXT}, InvalidRequest, 400),
        ("move_delayed", {"partition": 0, "offset": 2, "deliverAt": "tomorrow"}, InvalidRequest, 400),
        ("move_delayed", {"partition": 0, "offset": 2, "deliverAt": limits.LAST_TIME_MS + 1}, InvalidRequest, 400),
        ("move_delayed", {"partition": 0, "offset": 2, "delay": "99999d"}, InvalidRequest, 400),
        ("list_delayed", {"limit": 0}, InvalidRequest, 400),
        ("list_delayed", {"limit": 1001}, InvalidRequest, 400),
        ("list_delayed", {"skip": -1}, InvalidRequest, 400),
        ("cancel_many_delayed", {"ids": []}, InvalidRequest, 400),
        ("cancel_many_delayed", {"ids": [[0]]}, InvalidRequest, 400),
        ("cancel_many_delayed", {"ids": [[0, 1, 2]]}, InvalidRequest, 400),
        ("cancel_many_delayed", {"ids": [[0, 2]] * (limits.MAX_CANCELLED + 1)}, InvalidRequest, 400),
    ],
)
def test_what_cannot_be_done_with_a_delayed_message_is_told(
    tmp_path: Path, operation: str, fields: dict[str, Any], kind: type[GoQueueError], status: int
) -> None:
    async def go() -> None:
        async with rigged(tmp_path) as rig:
            await rig.publish("now")
            await rig.publish("due", delay="1s")
            await rig.publish("late", delay="1h")
            await rig.publish("cancelled", delay="1h")
            await rig.call("cancel_delayed", topic="orders", partition=0, offset=3)
            await rig.pass_by(1010)
            with pytest.raises(kind) as refused:
                await rig.call(operation, **{"topic": "orders", **fields})
            assert status_of(refused.value) == status
            assert ("was cancelled" in str(refused.value)) == (kind is Conflict)
            assert (await rig.call("list_delayed", topic="orders"))["count"] == 1

    run_timed(go())
