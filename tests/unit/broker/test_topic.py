"""An open topic: its partitions, those that work and those that say why not."""

from pathlib import Path

import pytest

from goqueue.model.errors import DamagedState, UnknownPartition
from goqueue.model.names import TopicId
from goqueue.storage.store import log_name
from tests.support.loop import run
from tests.unit.broker.brokers import parts


def test_a_partition_is_found_by_its_number(tmp_path: Path) -> None:
    async def go() -> None:
        async with parts(tmp_path) as rig:
            topic = await rig.create("orders", 3)
            assert [topic.partition(number).number for number in range(3)] == [0, 1, 2]
            assert topic.partitions == topic.slots
            for number in (-1, 3):
                with pytest.raises(UnknownPartition, match="it has 3, counted from 0"):
                    topic.partition(number)

    run(go())


def test_a_partition_that_could_not_be_opened_says_why_each_time(tmp_path: Path) -> None:
    async def go() -> None:
        async with parts(tmp_path) as rig:
            topic = await rig.create("orders", 2)
            topic.slots[0] = DamagedState("log.state is damaged")
            lengths = []
            for _ in range(3):
                with pytest.raises(DamagedState, match=r"log\.state is damaged") as caught:
                    topic.partition(0)
                lengths.append(len(caught.traceback))
            assert lengths[0] == lengths[-1], "the error does not grow"
            assert [partition.number for partition in topic.partitions] == [1]

    run(go())


def test_a_log_lies_under_name_id_and_partition() -> None:
    assert log_name("orders", TopicId(255), 7) == "orders/00000000000000ff/7"
