"""Producer ids as JSON."""

from pathlib import Path

import pytest

from goqueue.model.errors import InvalidRequest, NotBuilt, UnknownProducer
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


def test_transactions_are_not_built_yet(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            with pytest.raises(NotBuilt, match="transactional_id"):
                await broker.call("init_producer", transactional_id="t")

    run(go())
