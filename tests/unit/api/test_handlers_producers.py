"""Producer ids as JSON."""

from pathlib import Path

import pytest

from goqueue.model.errors import InvalidRequest, ProducerFenced, UnknownProducer
from tests.support.loop import run
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


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"transaction_timeout": "5s"}, "transaction_timeout belongs to a transactional_id"),
        ({"transactional_id": "job", "transaction_timeout": "999ms"}, "transaction_timeout"),
        ({"transactional_id": "job", "transaction_timeout": "25h"}, "transaction_timeout"),
        ({"transactional_id": ""}, "transactional_id"),
        ({"transactional_id": "a/b"}, "transactional_id"),
        ({"transactional_id": "a" * 256}, "transactional_id"),
    ],
)
def test_what_is_wrong_with_a_transactional_id_is_said(tmp_path: Path, asked: dict[str, str], said: str) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            with pytest.raises(InvalidRequest, match=said):
                await broker.call("init_producer", **asked)

    run(go())
