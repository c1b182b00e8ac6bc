"""Transactions as JSON: beginning, publishing, acking, ending and looking at them."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from goqueue.model.errors import (
    Conflict,
    InvalidRequest,
    NotOwner,
    ProducerFenced,
    StaleHandle,
    StaleToken,
    UnknownPartition,
    UnknownProducer,
    UnknownTopic,
    UnknownTransaction,
)
from tests.support.loop import run
from tests.unit.api.services import Served, served

AT = "2023-11-14T22:13:20.000Z"


class Writer:
    """A producer, a topic `orders` with two partitions, and calls in its name."""

    def __init__(self, broker: Served, me: dict[str, Any]) -> None:
        self.broker = broker
        self.me = me

    async def begin(self, **more: Any) -> str:
        begun: str = (await self.call("begin_transaction", **more))["transaction_id"]
        return begun

    async def call(self, operation: str, **fields: Any) -> Any:
        return await self.broker.call(operation, **self.me, **fields)

    async def put(self, value: str, **fields: Any) -> Any:
        return await self.call("transaction_publish", **{"topic": "orders", "value": value, "partition": 0, **fields})

    async def read(self, **fields: Any) -> list[str]:
        found = await self.broker.call("read_partition", topic="orders", partition=0, **fields)
        return [message["value"] for message in found["messages"]]


def scenario(path: Path, work: Callable[[Writer], Awaitable[None]]) -> None:
    async def go() -> None:
        async with served(path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=2)
            await work(Writer(broker, await broker.call("init_producer")))

    run(go())


async def other(writer: Writer, transactional_id: str | None = None) -> Writer:
    named = {} if transactional_id is None else {"transactional_id": transactional_id}
    return Writer(writer.broker, {**await writer.broker.call("init_producer", **named), **named})


# --- beginning


def test_a_transaction_is_begun_and_described(tmp_path: Path) -> None:
    async def work(to: Writer) -> None:
        begun = await to.call("begin_transaction", name="load", timeout="90s")
        assert begun == {"transaction_id": "txn-1", "expires_at": "2023-11-14T22:14:50.000Z"}
        await to.put("a")
        assert await to.broker.call("describe_transaction", transaction="txn-1") == {
            "transaction_id": "txn-1",
            "state": "ongoing",
            "producer_id": 1,
            "epoch": 0,
            "began_at": AT,
            "name": "load",
            "expires_at": "2023-11-14T22:14:50.000Z",
            "producer_silent": False,
            "partitions": [{"topic": "orders", "partition": 0, "messages": 1, "acks": 0}],
        }
        await to.call("abort_transaction")
        assert await to.broker.call("describe_transaction", transaction="txn-1") == {
            "transaction_id": "txn-1",
            "state": "aborted",
            "producer_id": 1,
            "epoch": 0,
            "began_at": AT,
            "name": "load",
            "ended_at": AT,
            "reason": "asked",
        }

    scenario(tmp_path, work)


@pytest.mark.parametrize(
    ("fields", "kind", "said"),
    [
        ({"producer_id": 9}, UnknownProducer, "no producer has the id 9; initialise one"),
        ({"transactional_id": "none"}, UnknownProducer, "nobody has the transactional id 'none'"),
        ({"timeout": "10ms"}, InvalidRequest, "timeout"),
        ({"timeout": "25h"}, InvalidRequest, "timeout"),
        ({"name": "a b"}, InvalidRequest, "use letters, digits"),
        ({"producer_id": 0}, InvalidRequest, "producer_id"),
    ],
)
def test_what_is_wrong_with_a_begin_is_said(
    tmp_path: Path, fields: dict[str, Any], kind: type[Exception], said: str
) -> None:
    async def work(to: Writer) -> None:
        with pytest.raises(kind, match=said):
            await to.broker.call("begin_transaction", **{**to.me, **fields})

    scenario(tmp_path, work)


# --- publishing


def test_messages_are_seen_when_it_is_committed(tmp_path: Path) -> None:
    async def work(to: Writer) -> None:
        await to.begin()
        assert (await to.put("a"))["offset"] == 0
        await to.broker.call("publish", topic="orders", value="plain", partition=0)
        described = (await to.broker.call("describe_topic", topic="orders"))["partition_offsets"]["0"]
        assert described == {"earliest": 0, "latest": 2, "stable": 0}
        assert await to.read() == []
        assert await to.read(isolation="read_uncommitted") == ["a", "plain"]
        assert await to.call("commit_transaction", messages=1, acks=0) == {
            "transaction_id": "txn-1",
            "committed": True,
            "duplicate": False,
        }
        assert await to.read() == ["a", "plain"]
        assert (await to.call("commit_transaction", transaction_id="txn-1"))["duplicate"] is True

    scenario(tmp_path, work)


def test_an_aborted_message_is_read_by_those_who_want_it_and_a_marker_by_nobody(tmp_path: Path) -> None:
    async def work(to: Writer) -> None:
        await to.begin()
        await to.put("a")
        assert await to.call("abort_transaction") == {"aborted": ["txn-1"]}
        await to.broker.call("publish", topic="orders", value="plain", partition=0)
        assert await to.read() == ["plain"]
        assert await to.read(isolation="read_uncommitted") == ["a", "plain"]
        assert await to.read(limit=1) == ["plain"]
        assert await to.read(offset=3, isolation="read_uncommitted") == []

    scenario(tmp_path, work)


def test_a_read_from_behind_the_stable_offset_finds_nothing_and_stays_there(tmp_path: Path) -> None:
    async def work(to: Writer) -> None:
        await to.begin()
        for value in ("a", "b", "c"):
            await to.put(value)
        found = await to.broker.call("read_partition", topic="orders", partition=0, offset=2)
        assert (found["messages"], found["next_offset"]) == ([], 2)

    scenario(tmp_path, work)


def test_one_that_comes_again_is_recognised(tmp_path: Path) -> None:
    async def work(to: Writer) -> None:
        await to.begin()
        first = await to.put("a", sequence=0)
        again = await to.put("a", sequence=0)
        assert (again["offset"], again["duplicate"]) == (first["offset"], True)
        await to.call("commit_transaction", messages=1)

    scenario(tmp_path, work)


def test_the_ordinary_routes_publish_in_a_transaction_as_well(tmp_path: Path) -> None:
    async def work(to: Writer) -> None:
        begun = await to.begin()
        publish = {"topic": "orders", "producer_id": 1, "epoch": 0, "transaction_id": begun}
        await to.broker.call("publish", value="a", partition=0, **publish)
        await to.broker.call("publish", value="b", partition=0, sequence=0, **publish)
        batch = [{"value": "c", "partition": 0}, {"value": "d", "partition": 1}, {"value": "e", "key": "k"}]
        results = (await to.broker.call("publish_batch", messages=batch, **publish))["results"]
        assert all("offset" in result for result in results)
        sequenced = [{"value": "f", "partition": 0}, {"value": "g", "partition": 0}]
        await to.broker.call("publish_batch", messages=sequenced, sequence=1, **publish)
        assert await to.read() == []
        await to.call("commit_transaction", messages=7)
        assert [value for value in await to.read() if value != "e"] == ["a", "b", "c", "f", "g"]
        with pytest.raises(Conflict, match="txn-1 was committed"):
            await to.broker.call("publish", value="late", **publish)
        with pytest.raises(InvalidRequest, match="transaction_id belongs to a producer_id"):
            await to.broker.call("publish", topic="orders", value="x", transaction_id=begun)

    scenario(tmp_path, work)


def test_where_nothing_can_be_published_that_is_said(tmp_path: Path) -> None:
    async def work(to: Writer) -> None:
        with pytest.raises(Conflict, match="producer 1 has no open transaction; begin one"):
            await to.put("a")
        await to.begin()
        with pytest.raises(UnknownTopic):
            await to.put("a", topic="none")
        with pytest.raises(UnknownPartition):
            await to.put("a", partition=7)
        with pytest.raises(UnknownTransaction, match="txn-9"):
            await to.put("a", transaction_id="txn-9")
        with pytest.raises(InvalidRequest, match="like txn-17"):
            await to.put("a", transaction_id="9")
        stranger = await other(to)
        with pytest.raises(Conflict, match="begun by another producer"):
            await stranger.put("a", transaction_id="txn-1")

    scenario(tmp_path, work)


def test_a_partition_can_be_named_before_there_is_anything(tmp_path: Path) -> None:
    async def work(to: Writer) -> None:
        begun = await to.begin()
        wanted = {"transaction_id": begun, "topic": "orders", "partition": 1}
        assert await to.call("add_partition", topic="orders", partition=1) == wanted
        (part,) = (await to.broker.call("describe_transaction", transaction=begun))["partitions"]
        assert part == {"topic": "orders", "partition": 1, "messages": 0, "acks": 0}
        with pytest.raises(UnknownPartition):
            await to.call("add_partition", topic="orders", partition=2)
        await to.call("commit_transaction", messages=0, acks=0)
        with pytest.raises(Conflict):
            await to.call("add_partition", topic="orders", partition=1)

    scenario(tmp_path, work)


# --- acks


async def polled(to: Writer, *values: str) -> tuple[str, list[str]]:
    """A member of the group `billing`, and the handles of what it was given."""
    for value in values:
        await to.broker.call("publish", topic="orders", value=value, partition=0)
    member = (await to.broker.call("join_group", group="billing", client_id="w", topics=["orders"]))["member_id"]
    found: list[str] = []
    while len(found) < len(values):
        reply = await to.broker.call("poll", group="billing", member_id=member, timeout=0)
        found += [message["receipt_handle"] for message in reply["messages"]]
    return member, found


async def committed(to: Writer) -> int:
    offset: int = (await to.broker.call("group_offsets", group="billing"))["offsets"]["orders"]["0"]
    return offset


def test_acks_by_handle_count_when_it_is_committed(tmp_path: Path) -> None:
    async def work(to: Writer) -> None:
        _, handles = await polled(to, "a", "b", "c")
        await to.begin()
        assert await to.call("transaction_ack", receipt_handle=handles[0]) == {"acknowledged": True}
        results = (await to.call("transaction_ack", receipt_handles=[*handles[:2], "A" * 32]))["results"]
        assert [result.get("code") for result in results] == ["stale_handle", None, "invalid_request"]
        with pytest.raises(StaleHandle):
            await to.call("transaction_ack", receipt_handle=handles[0])
        with pytest.raises(StaleHandle):
            await to.broker.call("ack", receipt_handle=handles[0])
        assert await committed(to) == 0
        await to.call("commit_transaction", messages=0, acks=2)
        assert await committed(to) == 2

    scenario(tmp_path, work)


def test_acks_by_offsets_count_when_it_is_committed(tmp_path: Path) -> None:
    async def work(to: Writer) -> None:
        member, _ = await polled(to, "a", "b", "c")
        mine = {"group": "billing", "member_id": member}
        await to.begin()
        await to.call("transaction_ack", offsets={"orders": {"0": 2}}, **mine)
        assert await committed(to) == 0
        with pytest.raises(InvalidRequest, match="name the group and the member_id whose they are"):
            await to.call("transaction_ack", offsets={"orders": {"0": 2}}, group="billing")
        with pytest.raises(NotOwner):
            await to.call("transaction_ack", offsets={"gone": {"0": 2}}, **mine)
        with pytest.raises(InvalidRequest, match="name receipt_handle for one message"):
            await to.call("transaction_ack")
        await to.call("commit_transaction", messages=0, acks=2)
        assert await committed(to) == 2

    scenario(tmp_path, work)


def test_an_aborted_ack_is_none(tmp_path: Path) -> None:
    async def work(to: Writer) -> None:
        member, handles = await polled(to, "a")
        await to.begin()
        await to.call("transaction_ack", receipt_handle=handles[0])
        await to.call("abort_transaction")
        reply = await to.broker.call("poll", group="billing", member_id=member, timeout="5s")
        assert [(message["value"], message["delivery_count"]) for message in reply["messages"]] == [("a", 2)]

    scenario(tmp_path, work)


# --- ending


def test_a_commit_that_misses_something_is_refused(tmp_path: Path) -> None:
    async def work(to: Writer) -> None:
        await to.begin()
        await to.put("a")
        with pytest.raises(Conflict, match="has 1 messages and 0 acks, its writer says 2 and 0; add what is missing"):
            await to.call("commit_transaction", messages=2)
        await to.put("b")
        await to.call("commit_transaction", messages=2)
        assert await to.read() == ["a", "b"]

    scenario(tmp_path, work)


def test_who_was_replaced_can_do_nothing(tmp_path: Path) -> None:
    async def work(to: Writer) -> None:
        zombie = await other(to, "job")
        await zombie.begin()
        heir = await other(to, "job")
        for operation, fields in (
            ("begin_transaction", {}),
            ("transaction_publish", {"topic": "orders", "value": "a"}),
            ("add_partition", {"topic": "orders", "partition": 0}),
            ("transaction_ack", {"receipt_handle": "A" * 32}),
            ("commit_transaction", {}),
            ("abort_transaction", {}),
        ):
            with pytest.raises(ProducerFenced, match="taken over by epoch 1"):
                await zombie.call(operation, **fields)
        shown = await to.broker.call("describe_transaction", transaction="txn-1")
        assert (shown["reason"], shown["transactional_id"]) == ("reinitialised", "job")
        assert await heir.begin() == "txn-2"

    scenario(tmp_path, work)


def test_it_is_aborted_by_its_writer_by_its_id_and_by_name(tmp_path: Path) -> None:
    async def work(to: Writer) -> None:
        writers = [await other(to) for _ in range(4)]
        begun = [await writer.begin(name="load" if number > 1 else "x") for number, writer in enumerate(writers)]
        abort = to.broker.call
        assert await writers[0].call("abort_transaction", transaction_id=begun[0]) == {"aborted": [begun[0]]}
        assert await writers[0].call("abort_transaction", transaction_id=begun[0]) == {"aborted": []}
        assert await abort("abort_transaction", transaction_id=begun[1]) == {"aborted": [begun[1]]}
        assert await abort("abort_transaction", name="load") == {"aborted": begun[2:]}
        assert await abort("abort_transaction", name="load") == {"aborted": []}
        with pytest.raises(InvalidRequest, match=r"name the producer_id .* a transaction_id, or a name"):
            await abort("abort_transaction")
        with pytest.raises(InvalidRequest, match="leave out producer_id to abort by name"):
            await writers[0].call("abort_transaction", name="load")
        await to.begin()
        await to.call("commit_transaction")
        with pytest.raises(Conflict, match="was committed"):
            await to.call("abort_transaction", transaction_id="txn-5")

    scenario(tmp_path, work)


def test_several_are_committed_as_one(tmp_path: Path) -> None:
    async def work(to: Writer) -> None:
        writers = [await other(to) for _ in range(3)]
        begun = [await writer.begin(name="load") for writer in writers]
        for writer in writers:
            await writer.put("a")
        asked: dict[str, Any] = {"token": {"name": "load", "number": 7}, "transactions": begun[:2]}
        assert await to.broker.call("transaction_token", name="load") == {"name": "load", "number": None}
        done = await to.broker.call("commit_many", **asked, messages={begun[0]: 1, begun[1]: 1})
        assert done == {"committed": True, "duplicate": False, "transactions": begun[:2], "aborted": []}
        asked["transactions"] = begun
        again = await to.broker.call("commit_many", **asked)
        assert again == {"committed": True, "duplicate": True, "transactions": [], "aborted": begun[2:]}
        assert await to.broker.call("transaction_token", name="load") == {"name": "load", "number": 7}
        asked["token"]["number"] = 6
        with pytest.raises(StaleToken):
            await to.broker.call("commit_many", **asked)
        assert await to.read() == ["a", "a"]
        for wrong in ({"name": "a b", "number": 1}, {"name": "load", "number": -1}, {"name": "load"}, "load"):
            with pytest.raises(InvalidRequest, match="token"):
                await to.broker.call("commit_many", token=wrong, transactions=[])

    scenario(tmp_path, work)


def test_one_that_lost_something_is_not_committed_with_others(tmp_path: Path) -> None:
    async def work(to: Writer) -> None:
        begun = await to.begin(name="load")
        await to.put("a")
        asked = {"token": {"name": "load", "number": 1}, "transactions": [begun]}
        with pytest.raises(Conflict, match="its writer says 2 and 0"):
            await to.broker.call("commit_many", **asked, messages={begun: 2})
        assert (await to.broker.call("transaction_token", name="load"))["number"] is None

    scenario(tmp_path, work)


# --- looking


def test_they_are_listed_by_name_and_state_the_ongoing_first(tmp_path: Path) -> None:
    async def work(to: Writer) -> None:
        writers = [await other(to) for _ in range(4)]
        begun = [await writer.begin(name="load" if number % 2 else "x") for number, writer in enumerate(writers)]
        await writers[0].call("commit_transaction")
        await writers[1].call("abort_transaction")

        async def listed(**query: Any) -> list[str]:
            found = await to.broker.call("list_transactions", **query)
            assert found["total"] >= len(found["transactions"])
            return [shown["transaction_id"] for shown in found["transactions"]]

        assert await listed() == [begun[2], begun[3], begun[1], begun[0]]
        assert await listed(name="load") == [begun[3], begun[1]]
        assert await listed(state="ongoing") == [begun[2], begun[3]]
        assert await listed(state="committed") == [begun[0]]
        assert await listed(state="aborted", name="load") == [begun[1]]
        assert await listed(limit=1) == [begun[2]]
        with pytest.raises(InvalidRequest, match="it is ongoing, committing"):
            await listed(state="open")

    scenario(tmp_path, work)


def test_they_are_counted(tmp_path: Path) -> None:
    async def work(to: Writer) -> None:
        job, plain = await other(to, "job"), await other(to)
        for writer in (job, plain, to):
            await writer.begin()
        to.broker.clock.now += 1500
        await plain.call("commit_transaction")
        await to.call("abort_transaction")
        assert await to.broker.call("transaction_stats") == {
            "ongoing": 1,
            "ending": 2,
            "oldest_seconds": 1.5,
            "transactional_ids": 1,
            "begun": 3,
            "committed": 1,
            "aborted": {"asked": 1, "timed_out": 0, "reinitialised": 0, "lost": 0, "replaced": 0},
        }

    scenario(tmp_path, work)


@pytest.mark.parametrize("name", ["", "a b", "x" * 256, "a\n", "\x84"])
def test_a_token_is_asked_for_by_a_name_that_can_be(tmp_path: Path, name: str) -> None:
    async def work(to: Writer) -> None:
        with pytest.raises(InvalidRequest, match="cannot name transactions"):
            await to.broker.call("transaction_token", name=name)

    scenario(tmp_path, work)


@pytest.mark.parametrize("text", ["txn-", "17", "txn-x", "txn-17 ", "txn-²", "x" * 1000, "txn-99999999999999999999"])
def test_what_is_no_transaction_is_not_found(tmp_path: Path, text: str) -> None:
    async def work(to: Writer) -> None:
        with pytest.raises(UnknownTransaction) as refused:
            await to.broker.call("describe_transaction", transaction=text)
        assert len(str(refused.value)) < 200

    scenario(tmp_path, work)
