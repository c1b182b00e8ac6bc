"""The broker's own producer ids."""

from random import Random

import pytest

from goqueue.model import limits
from goqueue.model.errors import ProducerFenced
from goqueue.model.record import Producer
from goqueue.producers.own import Work, own_producer, run_producer
from goqueue.producers.registry import ProducerRegistry
from goqueue.producers.sequences import ProducerTable, Run


@pytest.mark.parametrize("number", [0, 1, 2**59 - 1, 2**59, 2**64 - 1])
def test_ids_of_different_work_are_apart_and_none_is_a_clients(number: int) -> None:
    found = {own_producer(work, number) for work in Work}
    assert len(found) == len(Work)
    for producer_id in found:
        assert limits.OWN_PRODUCERS <= producer_id < limits.MAX_OFFSET
        assert not ProducerRegistry().knows(producer_id)


def test_the_kind_of_work_is_in_its_bits() -> None:
    chance = Random(5)
    for work in Work:
        number = chance.getrandbits(64)
        assert own_producer(work, number) == 1 << 61 | work << 59 | number & (1 << 59) - 1


def test_every_run_is_another_producer_or_another_epoch() -> None:
    number = 0xFEDCBA9876543210
    runs = [0, 1, 2**15 - 1, 2**15, 2**15 + 1, 2**16, 2**31]
    found = [run_producer(number, run) for run in runs]
    assert len({(each.producer_id, each.producer_epoch) for each in found}) == len(runs)
    assert {each.sequence for each in found} == {0}
    assert found[2] == Producer(own_producer(Work.SCHEDULES, number), 2**15 - 1, 0)
    assert found[3] == Producer(own_producer(Work.SCHEDULES, number + 1), 0, 0)


def test_a_run_that_comes_again_is_recognised_and_one_left_out_is_no_gap() -> None:
    table = ProducerTable()
    for offset, run in enumerate([0, 1, 4, 2**15 - 1, 2**15, 2**15 + 7]):
        producer = run_producer(9, run)
        assert table.check(producer, 1).known == ()
        table.add(Run(producer.producer_id, producer.producer_epoch, 0, offset, 1, 0))
        assert table.check(producer, 1).known == ((offset, 1),)
    with pytest.raises(ProducerFenced):
        table.check(run_producer(9, 2**15 + 6), 1)
