"""Groups as JSON: the names of all fields, what a request may say, and what is refused before anything is changed."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from goqueue.api.errors import status_of
from goqueue.api.handlers.groups import undo_poll
from goqueue.api.operations import BY_NAME
from goqueue.model.errors import (
    GoQueueError,
    GroupActive,
    InvalidRequest,
    MemberFenced,
    NotOwner,
    OffsetOutOfRange,
    UnknownGroup,
    UnknownMember,
    UnknownPartition,
    UnknownTopic,
)
from tests.support.loop import run, turns
from tests.support.moved_time import MovedTime, run_timed
from tests.unit.api.services import Served, served
from tests.unit.broker.brokers import T0

ALL_FIELDS = {
    "join_group": [
        "member_id", "generation", "state", "leader", "rebalance_required", "assigned_partitions", "revoke",
    ],
    "heartbeat": [
        "member_id", "generation", "state", "leader", "rebalance_required", "assigned_partitions", "revoke",
    ],
    "poll": [
        "group_id", "member_id", "poll", "messages", "generation", "state", "rebalance_required",
        "assigned_partitions", "revoke",
    ],
    "describe_group": ["group_id", "state", "generation", "protocol", "mode", "assignor", "members"],
}  # fmt: skip
"""In their order. Published clients know these names: some may be added, none changed."""


async def join(to: Served, *topics: str, **fields: Any) -> str:
    request = {"group": "billing", "client_id": "worker", "topics": list(topics or ("orders",)), **fields}
    member_id: str = (await to.call("join_group", **request))["member_id"]
    return member_id


async def poll(to: Served, member_id: str, **fields: Any) -> Any:
    return await to.call("poll", **{"group": "billing", "member_id": member_id, "timeout": 0, **fields})


async def commit(to: Served, member_id: str, offsets: Any, **fields: Any) -> Any:
    return await to.call("commit", group="billing", member_id=member_id, offsets=offsets, **fields)


async def publish(to: Served, *values: str, topic: str = "orders", partition: int = 0) -> None:
    messages = [{"value": value, "partition": partition, "key": "k"} for value in values]
    await to.call("publish_batch", topic=topic, messages=messages)


def values(polled: Any) -> list[str]:
    return [message["value"] for message in polled["messages"]]


# --- what replies look like


def test_replies_have_the_fields_that_clients_know(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as to:
            await to.call("create_topic", name="orders", num_partitions=1)
            joined = await to.call("join_group", group="billing", client_id="worker", topics=["orders"])
            assert list(joined) == ALL_FIELDS["join_group"]
            member = joined["member_id"]
            assert joined == {
                "member_id": member,
                "generation": 1,
                "state": "stable",
                "leader": member,
                "rebalance_required": False,
                "assigned_partitions": ["orders-0"],
                "revoke": [],
            }
            beat = await to.call("heartbeat", group="billing", member_id=member, generation=1)
            assert (list(beat), beat) == (ALL_FIELDS["heartbeat"], joined)
            await to.call("publish", topic="orders", key="k", value="v", headers={"a": "b"}, priority="high")
            polled = await poll(to, member)
            assert list(polled) == ALL_FIELDS["poll"]
            assert polled["messages"] == [
                {
                    "offset": 0,
                    "partition": 0,
                    "timestamp": "2023-11-14T22:13:20.000Z",
                    "key": "k",
                    "value": "v",
                    "headers": {"a": "b"},
                    "priority": "high",
                    "message_id": "orders:0:0",
                    "topic": "orders",
                    "delivery_count": 1,
                    "receipt_handle": polled["messages"][0]["receipt_handle"],
                }
            ]
            assert polled["messages"][0]["receipt_handle"].startswith("orders:0:0:1:")
            to.clock.now += 1500
            lag = await to.call("group_lag", group="billing")
            assert lag == {
                "group_id": "billing",
                "total_lag": 1,
                "topics": {
                    "orders": {
                        "0": {"committed": 0, "end": 1, "lag": 1, "lag_seconds": 1.5, "delayed": 0, "in_flight": 1}
                    }
                },
            }
            assert await commit(to, member, {"orders": {"0": 1}}) == {"committed": True}
            assert await to.call("group_offsets", group="billing") == {"offsets": {"orders": {"0": 1}}}
            described = await to.call("describe_group", group="billing")
            assert list(described) == ALL_FIELDS["describe_group"]
            assert described == {
                "group_id": "billing",
                "state": "stable",
                "generation": 1,
                "protocol": "cooperative",
                "mode": "partition",
                "assignor": "sticky",
                "members": [
                    {
                        "member_id": member,
                        "client_id": "worker",
                        "instance_id": None,
                        "topics": ["orders"],
                        "assigned_partitions": ["orders-0"],
                        "revoke": [],
                    }
                ],
            }
            reset = await to.call("reset_offsets", group="billing", topic="orders", to="earliest")
            assert reset == {"offsets": {"orders": {"0": 0}}}
            assert await to.call("leave_group", group="billing", member_id=member) == {"left": True}
            assert await to.call("list_groups") == {"groups": ["billing"]}
            assert await to.call("delete_group", group="billing") == {"deleted": True, "group_id": "billing"}
            assert await to.call("list_groups") == {"groups": []}

    run(go())


def test_a_group_that_rebalances_says_so(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as to:
            await to.call("create_topic", name="orders", num_partitions=2)
            first = await join(to)
            second = await to.call("join_group", group="billing", client_id="other", topics=["orders"])
            assert (second["state"], second["rebalance_required"], second["leader"]) == ("rebalancing", True, first)
            described = (await to.call("describe_group", group="billing"))["members"][0]
            assert sorted(described["assigned_partitions"] + described["revoke"]) == ["orders-0", "orders-1"]
            told = await poll(to, first)
            assert (told["rebalance_required"], told["revoke"]) == (True, described["revoke"])
            assert (await poll(to, first))["state"] == "stable"

    run(go())


def test_what_is_not_text_is_base64_in_a_poll_too(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as to:
            await to.call("create_topic", name="orders", num_partitions=1)
            await to.call("publish", topic="orders", value="gICA", encoding="base64")
            (message,) = (await poll(to, await join(to)))["messages"]
            assert (message["value"], message["encoding"]) == ("gICA", "base64")

    run(go())


# --- joining


@pytest.mark.parametrize("word", ["sticky", "range", "round-robin"])
def test_a_group_has_the_assignor_its_first_member_names(tmp_path: Path, word: str) -> None:
    async def go() -> None:
        async with served(tmp_path) as to:
            await to.call("create_topic", name="orders", num_partitions=1)
            await join(to, assignor=word)
            assert (await to.call("describe_group", group="billing"))["assignor"] == word
            other = "range" if word == "sticky" else "sticky"
            with pytest.raises(GroupActive, match=f"agreed on {word}"):
                await join(to, assignor=other)

    run(go())


@pytest.mark.parametrize(
    ("start", "found"),
    [
        ("earliest", ["a", "b", "new"]),
        ("latest", ["new"]),
        (1, ["b", "new"]),
        ("2023-11-14T22:13:21Z", ["b", "new"]),
        (str(T0 + 1000), ["b", "new"]),
        ("0001-01-01T00:00:00Z", ["a", "b", "new"]),
        ("9999-12-31T23:59:59Z", ["new"]),
    ],
)
def test_a_group_begins_where_it_says(tmp_path: Path, start: Any, found: list[str]) -> None:
    async def go() -> None:
        async with served(tmp_path) as to:
            await to.call("create_topic", name="orders", num_partitions=1)
            await publish(to, "a")
            to.clock.now += 1000
            await publish(to, "b")
            member = await join(to, start=start)
            await publish(to, "new")
            assert values(await poll(to, member)) == found

    run(go())


def test_a_session_is_as_long_as_the_member_says_or_else_the_configuration(tmp_path: Path) -> None:
    async def go() -> None:
        time = MovedTime()
        async with served(tmp_path, monotonic=time) as to:
            await to.call("create_topic", name="orders", num_partitions=1)
            for group, session, lasts_ms in (("a", "2s", 2000), ("b", 1.5, 1500), ("c", None, 30_000)):
                more = {} if session is None else {"session_timeout": session}
                await join(to, group=group, **more)
                time.move(lasts_ms - 1)
                await turns()
                assert len((await to.call("describe_group", group=group))["members"]) == 1
                time.move(1)
                await turns()
                assert (await to.call("describe_group", group=group))["state"] == "empty"

    run_timed(go())


def test_a_member_commits_by_itself_if_it_asked_for_that(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as to:
            await to.call("create_topic", name="orders", num_partitions=1)
            await publish(to, "a")
            member = await join(to, auto_commit=True, auto_commit_interval="0s")
            await poll(to, member)
            await poll(to, member)
            assert await to.call("group_offsets", group="billing") == {"offsets": {"orders": {"0": 1}}}

    run(go())


# --- polling


def test_a_poll_waits_as_long_as_it_says(tmp_path: Path) -> None:
    async def go() -> None:
        time = MovedTime()
        async with served(tmp_path, monotonic=time) as to:
            await to.call("create_topic", name="orders", num_partitions=1)
            member = await join(to)
            for timeout, lasts_ms in (("20s", 20_000), ("2", 2000), (1.5, 1500), ("250ms", 250)):
                waiting = asyncio.ensure_future(poll(to, member, timeout=timeout))
                await turns()
                assert not waiting.done()
                time.move(lasts_ms)
                assert values(await waiting) == []
            waiting = asyncio.ensure_future(to.call("poll", group="billing", member_id=member))
            await turns()
            time.move(29_000)
            await turns()
            assert not waiting.done(), "thirty seconds if nothing is said"
            await publish(to, "a")
            assert values(await waiting) == ["a"]

    run_timed(go())


def test_a_poll_brings_a_hundred_messages_unless_it_says_otherwise(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as to:
            await to.call("create_topic", name="orders", num_partitions=1)
            await publish(to, *map(str, range(150)))
            member = await join(to)
            assert len((await poll(to, member))["messages"]) == 100
            assert len((await poll(to, member, max_messages=3))["messages"]) == 3
            assert len((await poll(to, member, max_bytes=1))["messages"]) == 1

    run(go())


def test_a_reply_that_could_not_be_written_is_taken_back(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as to:
            await to.call("create_topic", name="orders", num_partitions=1)
            await publish(to, "a", "b")
            member = await join(to)
            operation = BY_NAME["poll"]
            fields = {"group": "billing", "member_id": member, "max_messages": 1, "timeout": 0}
            for _ in range(3):
                lost = await operation.call(to.service, dict(fields))
                undo_poll(to.service, lost)
            undo_poll(to.service, await operation.call(to.service, {**fields, "group": "billing"}))
            polled = await poll(to, member)
            assert [(message["value"], message["delivery_count"]) for message in polled["messages"]] == [
                ("a", 1),
                ("b", 1),
            ]

    run(go())


def test_an_empty_reply_is_nothing_to_take_back(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as to:
            await to.call("create_topic", name="orders", num_partitions=1)
            member = await join(to)
            undo_poll(to.service, await BY_NAME["poll"].call(to.service, {
                "group": "billing", "member_id": member, "timeout": 0,
            }))  # fmt: skip

    run(go())


def test_received_is_the_poll_of_the_last_reply_that_arrived(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as to:
            await to.call("create_topic", name="orders", num_partitions=1)
            await publish(to, "a", "b")
            member = await join(to)
            first = await poll(to, member, max_messages=1, received=0)
            await poll(to, member, max_messages=1, received=first["poll"])
            assert values(await poll(to, member, received=first["poll"])) == ["b"]

    run(go())


# --- moving


@pytest.mark.parametrize(
    ("place", "value", "target"),
    [
        ("earliest", None, 0),
        ("latest", None, 4),
        ("offset", 2, 2),
        ("offset", "2", 2),
        ("offset", 10**15, 4),
        ("timestamp", "2023-11-14T22:13:22Z", 2),
        ("timestamp", T0 + 2000, 2),
        ("timestamp", str(T0 + 2000), 2),
        ("timestamp", "0001-01-01T00:00:00Z", 0),
        ("duration", "2s", 1),
        ("duration", "2", 1),
        ("duration", 2, 1),
        ("duration", 2**61, 0),
        ("duration", "900000d", None),
    ],
)
def test_a_reset_says_where_in_many_ways(tmp_path: Path, place: str, value: Any, target: int | None) -> None:
    async def go() -> None:
        async with served(tmp_path) as to:
            await to.call("create_topic", name="orders", num_partitions=1)
            for number in range(4):
                to.clock.now = T0 + number * 1000
                await publish(to, str(number))
            await join(to)
            more = {} if value is None else {"value": value}
            reset = {"group": "billing", "topic": "orders", "to": place, **more}
            if target is None:
                with pytest.raises(InvalidRequest, match="too long"):
                    await to.call("reset_offsets", **reset)
                return
            for dry_run in (True, False):
                found = await to.call("reset_offsets", dry_run=dry_run, **reset)
                assert found == {"offsets": {"orders": {"0": target}}}
                offsets = await to.call("group_offsets", group="billing", topic="orders")
                assert offsets["offsets"] == ({} if dry_run else {"orders": {"0": target}})

    run(go())


@pytest.mark.parametrize(
    ("place", "value", "reason"),
    [
        ("earliest", 5, "has no value; leave it out"),
        ("latest", "now", "has no value; leave it out"),
        ("offset", None, "a reset to offset needs a value"),
        ("timestamp", None, "a reset to timestamp needs a value"),
        ("duration", None, "a reset to duration needs a value"),
        ("offset", "five", "is no offset: write a whole number"),
        ("offset", "-5", "is no offset: write a whole number"),
        ("offset", "9" * 30, "is no offset: write a whole number"),
        ("timestamp", "yesterday", "is no time: write RFC 3339"),
        ("timestamp", "2023-11-14T22:13:22", "is no time: write RFC 3339"),
        ("duration", "a while", "is no duration: write a number and a unit"),
        ("duration", "-5s", "is no duration: write a number and a unit"),
        ("beginning", None, "it is earliest, latest, offset, timestamp or duration"),
        ("offset", -1, "it is an offset, a time or a duration, as `to` says"),
        ("offset", 1.5, "it is an offset, a time or a duration, as `to` says"),
    ],
)
def test_a_reset_to_nowhere_is_told_what_would_be_right(tmp_path: Path, place: str, value: Any, reason: str) -> None:
    async def go() -> None:
        async with served(tmp_path) as to:
            await to.call("create_topic", name="orders", num_partitions=1)
            await publish(to, "a")
            await join(to)
            with pytest.raises(InvalidRequest, match=reason):
                await to.call("reset_offsets", group="billing", topic="orders", to=place, value=value)
            assert await to.call("group_offsets", group="billing") == {"offsets": {}}

    run(go())


# --- refusals


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"session_timeout": "10ms"}, "session_timeout is '10ms'; write from 1s to 3600s"),
        ({"session_timeout": "2h"}, "session_timeout is '2h'"),
        ({"session_timeout": "soon"}, "write a number and a unit"),
        ({"rebalance_timeout": "2h"}, "rebalance_timeout is '2h'"),
        ({"auto_commit_interval": "2h"}, "auto_commit_interval is '2h'"),
        ({"client_id": "a b"}, "use letters, digits"),
        ({"client_id": ""}, "use letters, digits"),
        ({"instance_id": "x" * 65}, "use letters, digits"),
        ({"topics": []}, "a list of the names of one or more topics"),
        ({"topics": "orders"}, "a list of the names of one or more topics"),
        ({"start": "soon"}, "it is earliest, latest, an offset as a number, or a time"),
        ({"start": -1}, "it is earliest, latest, an offset as a number, or a time"),
        ({"start": "2023-13-41T99:00:00Z"}, "is no time"),
        ({"assignor": "fair"}, "it is sticky, range or round-robin"),
        ({"auto_commit": "yes"}, "it is true or false"),
        ({"group": "a b"}, "cannot name a group: use letters, digits"),
        ({"group": "x" * 256}, "cannot name a group"),
        ({"group": ""}, "cannot name a group"),
        ({"colour": "red"}, "there is no field 'colour'"),
        ({"session_timout": "1s"}, "did you mean session_timeout?"),
    ],
)
def test_a_join_that_cannot_be_right_is_told_so_and_makes_no_group(
    tmp_path: Path, fields: dict[str, Any], reason: str
) -> None:
    async def go() -> None:
        async with served(tmp_path) as to:
            await to.call("create_topic", name="orders", num_partitions=1)
            with pytest.raises(InvalidRequest, match=reason):
                await join(to, **fields)
            assert await to.call("list_groups") == {"groups": []}

    run(go())


@pytest.mark.parametrize(
    ("operation", "fields", "kind", "status"),
    [
        ("join_group", {"client_id": "a", "topics": ["nope"]}, UnknownTopic, 404),
        ("join_group", {"client_id": "a", "topics": ["orders"], "member_id": "nobody"}, UnknownMember, 404),
        ("join_group", {"client_id": "a", "topics": ["orders"], "assignor": "range"}, GroupActive, 409),
        ("poll", {"member_id": "nobody"}, UnknownMember, 404),
        ("poll", {"member_id": "{member}", "timeout": "2m"}, InvalidRequest, 400),
        ("poll", {"member_id": "{member}", "max_messages": 0}, InvalidRequest, 400),
        ("poll", {"member_id": "{member}", "max_messages": 10_001}, InvalidRequest, 400),
        ("poll", {"member_id": "{member}", "max_bytes": 0}, InvalidRequest, 400),
        ("poll", {"member_id": "{member}", "received": -1}, InvalidRequest, 400),
        ("poll", {"member_id": "{member}", "received": 2**61}, InvalidRequest, 400),
        ("heartbeat", {"member_id": "nobody"}, UnknownMember, 404),
        ("heartbeat", {"member_id": "{member}", "revoked": "orders-0"}, InvalidRequest, 400),
        ("heartbeat", {"member_id": "{member}", "finishing": "orders-0"}, InvalidRequest, 400),
        ("leave_group", {"member_id": "nobody"}, UnknownMember, 404),
        ("commit", {"member_id": "nobody", "offsets": {}}, UnknownMember, 404),
        ("commit", {"member_id": "{member}", "offsets": {"nope": {"0": 0}}}, NotOwner, 409),
        ("commit", {"member_id": "{member}", "offsets": {"orders": {"7": 0}}}, UnknownPartition, 404),
        ("commit", {"member_id": "{member}", "offsets": {"orders": {"0": 5}}}, OffsetOutOfRange, 400),
        ("commit", {"member_id": "{member}", "offsets": {"orders": {"0": -1}}}, InvalidRequest, 400),
        ("commit", {"member_id": "{member}", "offsets": {"orders": {"zero": 1}}}, InvalidRequest, 400),
        ("commit", {"member_id": "{member}", "offsets": {"orders": {"00": 1}}}, InvalidRequest, 400),
        ("commit", {"member_id": "{member}", "offsets": {"orders": 1}}, InvalidRequest, 400),
        ("commit", {"member_id": "{member}", "offsets": {"bills": {"0": 0}}}, NotOwner, 409),
        ("commit", {"member_id": "{member}", "offsets": {"orders": {"0": 0}}, "generation": 0}, NotOwner, 409),
        ("group_offsets", {"topic": "nope"}, UnknownTopic, 404),
        ("reset_offsets", {"topic": "nope", "to": "earliest"}, UnknownTopic, 404),
        ("reset_offsets", {"topic": "orders", "to": "earliest", "partition": 7}, UnknownPartition, 404),
        ("delete_group", {}, GroupActive, 409),
    ],
)
def test_a_refusal_has_its_status_and_changes_nothing(
    tmp_path: Path, operation: str, fields: dict[str, Any], kind: type[GoQueueError], status: int
) -> None:
    async def go() -> None:
        async with served(tmp_path) as to:
            for topic in ("orders", "bills"):
                await to.call("create_topic", name=topic, num_partitions=1)
            await publish(to, "a")
            member = await join(to)
            await poll(to, member)
            before = await state_of(to)
            filled = {name: member if value == "{member}" else value for name, value in fields.items()}
            with pytest.raises(kind) as caught:
                await to.call(operation, group="billing", **filled)
            assert status_of(caught.value) == status
            assert await state_of(to) == before

    run(go())


async def state_of(to: Served) -> list[Any]:
    about = [await to.call(name, group="billing") for name in ("describe_group", "group_offsets", "group_lag")]
    return [await to.call("list_groups"), *about]


@pytest.mark.parametrize(
    ("operation", "fields"),
    [
        ("poll", {"member_id": "a"}),
        ("heartbeat", {"member_id": "a"}),
        ("leave_group", {"member_id": "a"}),
        ("commit", {"member_id": "a", "offsets": {}}),
        ("group_offsets", {}),
        ("reset_offsets", {"topic": "orders", "to": "earliest"}),
        ("group_lag", {}),
        ("describe_group", {}),
        ("delete_group", {}),
    ],
)
@pytest.mark.parametrize("name", ["nope", "../../etc", "a b", "x" * 10_000])
def test_a_group_that_is_not_there_is_not_made_by_asking(
    tmp_path: Path, operation: str, fields: dict[str, Any], name: str
) -> None:
    async def go() -> None:
        async with served(tmp_path) as to:
            await to.call("create_topic", name="orders", num_partitions=1)
            with pytest.raises(UnknownGroup) as caught:
                await to.call(operation, group=name, **fields)
            assert len(str(caught.value)) < 400
            assert await to.call("list_groups") == {"groups": []}

    run(go())


def test_a_member_that_was_replaced_is_told_so_whatever_it_asks(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as to:
            await to.call("create_topic", name="orders", num_partitions=1)
            old = await join(to, instance_id="pod-1")
            await join(to, instance_id="pod-1")
            for operation, fields in (
                ("poll", {}),
                ("heartbeat", {}),
                ("leave_group", {}),
                ("commit", {"offsets": {"orders": {"0": 0}}}),
            ):
                with pytest.raises(MemberFenced) as caught:
                    await to.call(operation, group="billing", member_id=old, **fields)
                assert status_of(caught.value) == 409

    run(go())
