"""Producer ids as JSON."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from goqueue.model.errors import InvalidRequest, ProducerFenced, UnknownProducer
from tests.support.faulty_disk import FaultyDisk
from tests.support.held_syncs import syncs_held
from tests.support.loop import run, turns
from tests.unit.api.services import served


def test_each_producer_gets_an_id_of_its_own(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            found = [await broker.call("init_producer") for _ in range(3)]
            assert found == [{"producer_id": number, "epoch": 0} for number in (1, 2, 3)]

    run(go())


def test_a_heartbeat_says_whether_the_id_is_good(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            me = await broker.call("init_producer")
            assert await broker.call("producer_heartbeat", **me) == me
            raised = {**me, "epoch": 1}
            assert await broker.call("producer_heartbeat", **raised) == raised, "the epoch is the producer's own"
            for stranger in (0, 2, 10**9):
                with pytest.raises(UnknownProducer, match=f"no producer has the id {stranger}; initialise one"):
                    await broker.call("producer_heartbeat", producer_id=stranger, epoch=0)
            with pytest.raises(InvalidRequest):
                await broker.call("producer_heartbeat", producer_id=1)

    run(go())


def test_a_transactional_id_keeps_its_producer_and_fences_who_had_it_before(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            first = await broker.call("init_producer", transactional_id="job", transaction_timeout="5m")
            other = await broker.call("init_producer", transactional_id="another")
            second = await broker.call("init_producer", transactional_id="job")
            assert second == {"producer_id": first["producer_id"], "epoch": first["epoch"] + 1}
            assert other["producer_id"] != first["producer_id"]
            assert await broker.call("producer_heartbeat", **second) == second
            with pytest.raises(ProducerFenced, match="taken over by epoch 1"):
                await broker.call("producer_heartbeat", **first)
            with pytest.raises(InvalidRequest, match="there is no epoch 2"):
                await broker.call("producer_heartbeat", **{**second, "epoch": 2})

    run(go())


def test_an_init_that_is_sent_again_is_answered_again_and_another_program_is_told_from_it(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            job = {"transactional_id": "job", "incarnation": "one"}
            first = await broker.call("init_producer", **job)
            assert await broker.call("init_producer", **job) == first
            second = await broker.call("init_producer", **job, **first)
            assert second == {**first, "epoch": first["epoch"] + 1}
            assert await broker.call("init_producer", **job, **first) == second
            await broker.call("begin_transaction", **second)
            assert await broker.call("init_producer", **job, **first) == second, "and what is open stays so"
            assert (await broker.call("list_transactions", state="ongoing"))["total"] == 1
            other = await broker.call("init_producer", transactional_id="job", incarnation="two")
            known: dict[str, Any]
            for known in ({}, first, second, other):
                with pytest.raises(ProducerFenced, match="initialised by another program, which is producer"):
                    await broker.call("init_producer", **job, **known)
            with pytest.raises(ProducerFenced):
                await broker.call("init_producer", transactional_id="job", **second)
            assert (await broker.call("init_producer", transactional_id="job", **other))["epoch"] == 3

    run(go())


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"transaction_timeout": "5s"}, "transaction_timeout belongs to a transactional_id"),
        ({"transactional_id": "job", "transaction_timeout": "999ms"}, "transaction_timeout"),
        ({"transactional_id": "job", "transaction_timeout": "25h"}, "transaction_timeout"),
        ({"transactional_id": ""}, "transactional_id"),
        ({"transactional_id": "a/b"}, "transactional_id"),
        ({"transactional_id": "a" * 256}, "transactional_id"),
        ({"incarnation": "a"}, "incarnation, producer_id and epoch belong to a transactional_id"),
        ({"producer_id": 1, "epoch": 0}, "incarnation, producer_id and epoch belong to a transactional_id"),
        ({"transactional_id": "job", "producer_id": 1}, "producer_id and epoch belong together"),
        ({"transactional_id": "job", "epoch": 0}, "producer_id and epoch belong together"),
        ({"transactional_id": "job", "producer_id": 0, "epoch": 0}, "producer_id"),
        ({"transactional_id": "job", "incarnation": ""}, "incarnation"),
        ({"transactional_id": "job", "incarnation": "a" * 65}, "incarnation"),
        ({"transactional_id": "job", "incarnation": "a b"}, "incarnation"),
    ],
)
def test_what_is_wrong_with_a_transactional_id_is_said(tmp_path: Path, asked: dict[str, Any], said: str) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            with pytest.raises(InvalidRequest, match=said):
                await broker.call("init_producer", **asked)

    run(go())


@pytest.mark.parametrize("again", [False, True])
def test_whoever_takes_a_transactional_id_hears_of_it_when_that_is_durable(tmp_path: Path, again: bool) -> None:
    """Also when it asks again while the first answer is on its way."""

    async def go() -> None:
        disk = FaultyDisk()
        async with served(tmp_path, disk=disk) as broker:
            await broker.call("init_producer")  # ids are reserved in another log
            job = {"transactional_id": "job", "incarnation": "one"}
            with syncs_held(disk, "meta/transactions") as held:
                asked = [asyncio.ensure_future(broker.call("init_producer", **job))]
                await held.reached()
                if again:
                    asked.append(asyncio.ensure_future(broker.call("init_producer", **job)))
                await turns(100)
                assert not any(each.done() for each in asked)
                held.release()
                assert len({each["epoch"] for each in await asyncio.gather(*asked)}) == 1

    run(go())
