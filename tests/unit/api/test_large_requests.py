"""Publishing and settling much at once, in turns with others: the same results, whatever happens between two turns."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from goqueue.api.batch import STEP
from goqueue.api.operations import BY_NAME
from goqueue.model import limits
from goqueue.model.errors import GoQueueError, InvalidRequest, TooLarge
from tests.support.faulty_disk import FaultyDisk
from tests.support.held_syncs import syncs_held
from tests.support.loop import run, turns
from tests.unit.api.services import Served, served
from tests.unit.broker.brokers import values

COUNT = 300


@pytest.fixture(autouse=True)
def one_step_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TURN_S", -1.0)


async def publish(rig: Served, between: Any = None, **fields: Any) -> Any:
    """`between` is called when the messages are sorted, before the first of them is stored."""
    turns, taken = rig.service.turns, 0

    class Between:
        async def take(self, steps: Any) -> None:
            nonlocal taken
            taken += 1
            if taken == 2 and between is not None:
                await between()
            await turns.take(steps)

    rig.service.turns = Between()  # type: ignore[assignment]
    try:
        request = {"topic": "orders", "messages": [{"value": str(number)} for number in range(COUNT)], **fields}
        return (await rig.call("publish_batch", **request))["results"]
    finally:
        rig.service.turns = turns


def stored(rig: Served) -> list[str]:
    return [text for partition in rig.broker.topics.named("orders").partitions for text in values(partition)]


def test_a_request_that_is_cut_into_blocks_is_stored_once_and_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "APPENDED_AT_ONCE_BYTES", 500)

    async def go() -> None:
        async with served(tmp_path) as rig:
            await rig.call("create_topic", name="orders", num_partitions=2)
            messages = [{"value": str(number), "partition": number % 2} for number in range(COUNT)]
            results = await publish(rig, messages=messages)
            assert [(result["partition"], result["offset"]) for result in results] == [
                (number % 2, number // 2) for number in range(COUNT)
            ]
            assert stored(rig) == [*map(str, range(0, COUNT, 2)), *map(str, range(1, COUNT, 2))]

    run(go())


def test_a_message_that_is_larger_than_a_block_stands_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "APPENDED_AT_ONCE_BYTES", 500)

    async def go() -> None:
        async with served(tmp_path) as rig:
            await rig.call("create_topic", name="orders", num_partitions=1)
            values = [str(number) for number in range(COUNT)]
            values[17], values[18], values[COUNT - 1] = "x" * 900, "y" * 900, "z" * 900
            results = await publish(rig, messages=[{"value": value} for value in values])
            assert [result["offset"] for result in results] == [*range(COUNT)]
            assert stored(rig) == values

    run(go())


def test_numbered_messages_that_are_too_many_for_one_block_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "APPENDED_AT_ONCE_BYTES", 500)

    async def go() -> None:
        async with served(tmp_path) as rig:
            await rig.call("create_topic", name="orders", num_partitions=1)
            producer = (await rig.call("init_producer"))["producer_id"]
            messages = [{"value": str(number), "partition": 0} for number in range(COUNT)]
            with pytest.raises(TooLarge, match="bytes together, and are appended at once; send 500 at a time"):
                await publish(rig, messages=messages, producer_id=producer, epoch=0, sequence=0)
            assert stored(rig) == []
            await publish(rig, messages=messages[:5], producer_id=producer, epoch=0, sequence=0)
            assert stored(rig) == [*map(str, range(5))]

    run(go())


def test_messages_that_are_numbered_stay_in_one_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        async with served(tmp_path) as rig:
            await rig.call("create_topic", name="orders", num_partitions=1)
            producer = (await rig.call("init_producer"))["producer_id"]
            log, appended = rig.broker.topics.named("orders").partition(0).log, list[int]()
            append = log.append

            def counted(block: Any, **more: Any) -> Any:
                appended.append(len(block))
                return append(block, **more)

            monkeypatch.setattr(log, "append", counted)
            messages = [{"value": str(number), "partition": 0} for number in range(COUNT)]
            for duplicate in (False, True):
                results = await publish(rig, messages=messages, producer_id=producer, epoch=0, sequence=0)
                assert all(result.get("duplicate", False) is duplicate for result in results)
            assert len(appended) == 1
            assert stored(rig) == [*map(str, range(COUNT))]

    run(go())


def test_a_bad_message_fails_alone_among_many_that_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "APPENDED_AT_ONCE_BYTES", 500)

    async def go() -> None:
        async with served(tmp_path) as rig:
            await rig.call("create_topic", name="orders", num_partitions=1, max_message_bytes=1000)
            messages: list[dict[str, Any]] = [{"value": str(number)} for number in range(COUNT)]
            messages[17]["value"] = "x" * 1001
            messages[201]["headers"] = {f"h{number}": "v" for number in range(limits.MAX_HEADERS + 1)}
            results = await publish(rig, messages=messages)
            codes = {number: result["code"] for number, result in enumerate(results) if "code" in result}
            assert codes == {17: "too_large", 201: "too_large"}
            assert "1001 headers; it may have 1000" in results[201]["error"]
            assert stored(rig) == [str(number) for number in range(COUNT) if number not in codes]

    run(go())


def test_messages_that_are_refused_take_turns_like_those_that_are_good(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as rig:
            await rig.call("create_topic", name="orders", num_partitions=1)
            others = 0

            async def other() -> None:
                nonlocal others
                while True:
                    others += 1
                    await asyncio.sleep(0)

            meanwhile = asyncio.ensure_future(other())
            results = await publish(rig, messages=[{}] * COUNT)
            meanwhile.cancel()
            assert others >= COUNT // STEP
            assert ({result["code"] for result in results}, len(results)) == ({"invalid_request"}, COUNT)
            counted = rig.broker.topics.named("orders").meters.errors.counts
            assert counted == {"invalid_request": COUNT}

    run(go())


def test_refusals_that_differ_are_reported_in_turns_too(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as rig:
            await rig.call("create_topic", name="orders", num_partitions=1)
            steps: list[int] = []
            take = rig.service.turns.take

            async def counted(taken: Any) -> None:
                steps.append(0)

                def each() -> Any:
                    for step in taken:
                        steps[-1] += 1
                        yield step

                await take(each())

            rig.service.turns.take = counted  # type: ignore[assignment, method-assign]
            messages = [{"value": "", "encoding": "base64", "headers": {f"h{number}": "!"}} for number in range(COUNT)]
            results = await publish(rig, messages=messages)
            assert [f"header 'h{number}'" in result["error"] for number, result in enumerate(results)] == [True] * COUNT
            looked_at, appended, reported = steps
            assert (looked_at >= COUNT // STEP, appended, reported >= COUNT // STEP) == (True, 0, True)

    run(go())


def test_nothing_is_stored_of_a_request_whose_last_message_is_none(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as rig:
            await rig.call("create_topic", name="orders", num_partitions=1)
            with pytest.raises(InvalidRequest):
                await publish(rig, messages=[*[{"value": "x"}] * COUNT, {"value": 5}])
            assert stored(rig) == []

    run(go())


def test_a_transaction_that_ends_between_two_turns_gets_nothing_more(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as rig:
            await rig.call("create_topic", name="orders", num_partitions=1)
            producer = (await rig.call("init_producer"))["producer_id"]
            begun = (await rig.call("begin_transaction", producer_id=producer))["transaction_id"]

            async def abort() -> None:
                await rig.call("abort_transaction", producer_id=producer, transaction_id=begun)

            with pytest.raises(GoQueueError, match="txn-1 was aborted"):
                await publish(rig, between=abort, producer_id=producer, transaction_id=begun)
            assert stored(rig) == []

    run(go())


def test_a_topic_that_is_deleted_between_two_turns_refuses_the_messages(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as rig:
            await rig.call("create_topic", name="orders", num_partitions=1)

            async def delete() -> None:
                await rig.call("delete_topic", topic="orders")
                await rig.call("create_topic", name="orders", num_partitions=1)

            results = await publish(rig, between=delete)
            assert {result["code"] for result in results} == {"unavailable"}
            assert stored(rig) == []

    run(go())


def test_one_message_has_as_many_headers_as_it_may_and_no_more(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as rig:
            await rig.call("create_topic", name="orders", num_partitions=1)
            headers = [[f"h{number}", "v"] for number in range(limits.MAX_HEADERS)]
            await rig.call("publish", topic="orders", value="x", headers=headers)
            with pytest.raises(TooLarge, match="1001 headers; it may have 1000"):
                await rig.call("publish", topic="orders", value="x", headers=[*headers, ["one", "more"]])
            assert BY_NAME["publish"].request_values >= 3 * limits.MAX_HEADERS + 100

    run(go())


def test_many_messages_are_answered_when_the_last_of_them_is_durable(tmp_path: Path) -> None:
    async def go() -> None:
        disk = FaultyDisk()
        async with served(tmp_path, disk=disk) as rig:
            await rig.call("create_topic", name="orders", num_partitions=1, fsync="every")
            with syncs_held(disk, "/logs/") as held:
                publishing = asyncio.ensure_future(publish(rig))
                await held.reached()
                await turns(2 * COUNT)
                assert not publishing.done()
                held.release()
                assert {result["durability"] for result in await publishing} == {"durable"}

    run(go())


# --- settling


async def settle(rig: Served, between: Any, operation: str, **fields: Any) -> Any:
    """`between` is called when the handles were looked at."""
    many = rig.service.turns

    class Between:
        async def take(self, steps: Any) -> None:
            await many.take(steps)
            rig.service.turns = many
            await between()

    rig.service.turns = Between()  # type: ignore[assignment]
    return await rig.call(operation, **fields)


async def polled(rig: Served) -> list[str]:
    await rig.call("create_topic", name="orders", num_partitions=1)
    await publish(rig)
    joined = await rig.call("join_group", group="g", client_id="c", topics=["orders"])
    messages: list[dict[str, Any]] = []
    while len(messages) < COUNT:
        asked = {"group": "g", "member_id": joined["member_id"], "timeout": 0, "max_messages": COUNT}
        messages += (await rig.call("poll", **asked))["messages"]
    return [message["receipt_handle"] for message in messages]


def test_handles_of_a_topic_that_is_made_again_between_two_turns_settle_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go() -> None:
        async with served(tmp_path) as rig:
            handles, given = await polled(rig), list[int]()
            ack = rig.broker.settlement.ack

            async def counted(found: Any) -> Any:
                given.append(len(found))
                return await ack(found)

            monkeypatch.setattr(rig.broker.settlement, "ack", counted)

            async def make_again() -> None:
                await rig.call("delete_topic", topic="orders")
                await rig.call("create_topic", name="orders", num_partitions=1)

            results = (await settle(rig, make_again, "ack", receipt_handles=handles))["results"]
            assert ({result["code"] for result in results}, len(results)) == ({"stale_handle"}, COUNT)
            assert given == [0]

    run(go())


def test_a_transaction_that_ends_between_two_turns_gets_no_acks(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as rig:
            handles = await polled(rig)
            producer = (await rig.call("init_producer"))["producer_id"]
            begun = (await rig.call("begin_transaction", producer_id=producer))["transaction_id"]

            async def abort() -> None:
                await rig.call("abort_transaction", producer_id=producer, transaction_id=begun)

            named = {"producer_id": producer, "transaction_id": begun}
            with pytest.raises(GoQueueError, match="txn-1 was aborted"):
                await settle(rig, abort, "transaction_ack", receipt_handles=handles, **named)
            results = (await rig.call("ack", receipt_handles=handles))["results"]
            assert results == [{"acknowledged": True}] * COUNT, "none of them is pledged"

    run(go())
