"""delete and re-create x dead letters: letters belong to a topic id; the new topic neither lists nor redrives the old
one's, and what becomes of those is said and done."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from goqueue.broker.dead_letters import Undertaker
from goqueue.broker.partition import Partition
from goqueue.broker.redrive import RedriveRunner
from goqueue.broker.topic import OpenTopic
from goqueue.wire.shapes import DeadLetterList
from tests.support.loop import run
from tests.unit.api.test_handlers_jobs import Rig, rigged

DELETED = {"deleted": True}


async def listed(rig: Rig, **wanted: Any) -> list[str]:
    found = await rig.call("list_dead_letters", topic="orders", filter=json.dumps(wanted))
    return [letter["value"] for letter in found["messages"]]


async def make_again(rig: Rig) -> None:
    await rig.call("delete_topic", topic="orders")
    await rig.call("create_topic", name="orders", num_partitions=1)


async def redriven(rig: Rig, **fields: Any) -> Any:
    started = await rig.call("start_redrive", topic="orders", **fields)
    return started["matched"] if started["id"] is None else await rig.ended(started["id"])


def test_delete_and_recreate_x_dead_letters_the_new_topic_has_none_of_the_old_ones(tmp_path: Path) -> None:
    async def go() -> None:
        async with rigged(tmp_path) as rig:
            await rig.kill({"value": "old"})
            await make_again(rig)
            assert await listed(rig) == []
            assert await redriven(rig) == 0
            assert await rig.values() == [], "the old topic's letters were published into the new one"
            await rig.kill({"value": "new"})
            assert await listed(rig) == ["new"]
            assert await listed(rig, **DELETED) == ["old"]
            assert (await redriven(rig))["redriven"] == 1
            assert await rig.values() == ["new", "new"]

    run(go())


def test_delete_and_recreate_x_dead_letters_those_of_a_deleted_topic_go_to_a_named_target(tmp_path: Path) -> None:
    async def go() -> None:
        async with rigged(tmp_path) as rig:
            await rig.kill({"value": "old"})
            await make_again(rig)
            status, code, said = await rig.refused("start_redrive", topic="orders", filter=DELETED)
            assert (status, code) == (400, "invalid_request")
            assert "name one" in said
            done = await redriven(rig, filter=DELETED, target="orders")
            assert (done["state"], done["redriven"], done["filter"]) == ("done", 1, DELETED)
            assert await rig.values() == ["old"]
            assert await redriven(rig, filter=DELETED, target="orders") == 0

    run(go())


def test_delete_and_recreate_x_dead_letters_without_a_topic_of_the_name_they_can_be_read(tmp_path: Path) -> None:
    async def go() -> None:
        async with rigged(tmp_path) as rig:
            await rig.kill({"value": "old"})
            old = (await rig.call("describe_topic", topic="orders"))["topic_id"]
            await rig.call("delete_topic", topic="orders")
            found: dict[str, Any] = await rig.call("list_dead_letters", topic="orders")
            assert set(found) <= set(DeadLetterList.__struct_fields__)
            assert [letter["origin"]["topic_id"] for letter in found["messages"]] == [old]
            assert (await rig.refused("start_redrive", topic="orders"))[:2] == (400, "invalid_request")
            await rig.call("create_topic", name="elsewhere")
            assert (await redriven(rig, target="elsewhere"))["redriven"] == 1
            assert await listed(rig) == []

    run(go())


def test_delete_and_recreate_x_dead_letters_they_are_deleted_with_the_topic_when_asked(tmp_path: Path) -> None:
    async def go() -> None:
        async with rigged(tmp_path) as rig:
            await rig.kill({"value": "old"})
            gone = await rig.call("delete_topic", topic="orders", dead_letters=True)
            assert gone == {"deleted": True, "name": "orders", "dlq_topic": "orders.dlq"}
            assert (await rig.call("list_topics"))["topics"] == []
            assert (await rig.refused("list_dead_letters", topic="orders"))[:2] == (404, "unknown_topic")
            await rig.call("create_topic", name="orders")
            assert await listed(rig, **DELETED) == []
            gone = await rig.call("delete_topic", topic="orders", dead_letters=True)
            assert gone == {"deleted": True, "name": "orders"}, "there was no topic for them"

    run(go())


def test_delete_and_recreate_x_dead_letters_a_dead_letter_topic_has_none_of_its_own(tmp_path: Path) -> None:
    async def go() -> None:
        async with rigged(tmp_path) as rig:
            await rig.kill({"value": "old"})
            refusal = await rig.refused("delete_topic", topic="orders.dlq", dead_letters=True)
            assert refusal[:2] == (400, "invalid_request")
            assert await listed(rig) == ["old"]

    run(go())


def test_delete_and_recreate_x_dead_letters_what_was_on_its_way_is_written_first(tmp_path: Path) -> None:
    """The reject was answered: a topic that is deleted right after it takes no letter along."""

    async def go() -> None:
        async with rigged(tmp_path) as rig:
            await rig.call("publish", topic="orders", value="old")
            member = (await rig.call("join_group", group="g", client_id="w", topics=["orders"]))["member_id"]
            polled = await rig.call("poll", group="g", member_id=member, timeout=0)
            await rig.call("reject", receipt_handle=polled["messages"][0]["receipt_handle"])
            await rig.call("delete_topic", topic="orders")
            assert await listed(rig) == ["old"]

    run(go())


def test_delete_and_recreate_x_dead_letters_a_redrive_under_way_fails_and_spares_the_new_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = asyncio.Event()
    right = RedriveRunner._deliver

    async def slowly(*given: Any) -> None:
        await held.wait()
        await right(*given)

    async def go() -> None:
        async with rigged(tmp_path) as rig:
            await rig.kill({"value": "a"}, {"value": "b"})
            monkeypatch.setattr(RedriveRunner, "_deliver", slowly)
            started = await rig.call("start_redrive", topic="orders")
            while rig.broker.redrives.machine.redrive(started["id"]).batch is None:
                await asyncio.sleep(0)
            await make_again(rig)
            held.set()
            ended = await rig.ended(started["id"])
            assert (ended["state"], ended["error"]) == ("failed", "the topic orders was deleted")
            assert await rig.values() == []
            assert await listed(rig) == []
            assert await listed(rig, **DELETED) == ["a", "b"]

    run(go())


@pytest.mark.parametrize("has_letters", [True, False])
def test_delete_and_recreate_x_dead_letters_an_outbox_under_way_writes_them_as_the_old_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_letters: bool
) -> None:
    held, at_work = asyncio.Event(), asyncio.Event()
    right = Undertaker._dead_letter_topic

    async def slowly(undertaker: Undertaker, partition: Partition) -> OpenTopic:
        at_work.set()
        await held.wait()
        return await right(undertaker, partition)

    async def go() -> None:
        async with rigged(tmp_path) as rig:
            if has_letters:
                await rig.kill({"value": "first"})
            monkeypatch.setattr(Undertaker, "_dead_letter_topic", slowly)
            await rig.call("publish", topic="orders", value="old")
            member = (await rig.call("join_group", group="g", client_id="w", topics=["orders"]))["member_id"]
            polled = await rig.call("poll", group="g", member_id=member, timeout=0)
            handles = [row["receipt_handle"] for row in polled["messages"]]
            await rig.call("reject", receipt_handles=handles)
            await at_work.wait()
            await rig.broker.topics.delete("orders", rig.clock())
            await rig.call("create_topic", name="orders", num_partitions=1)
            held.set()
            while rig.broker._undertaker._at_work:
                await asyncio.wait(list(rig.broker._undertaker._at_work.values()))
            assert await listed(rig) == []
            assert await redriven(rig) == 0
            await rig.kill({"value": "new"})
            assert await listed(rig) == ["new"]

    run(go())
