"""Acks and durability: the numbers are on the wire, the names are in JSON."""

from goqueue.model.publishing import Acks, Durability


def test_the_numbers_are_frozen() -> None:
    assert {each.name: each.value for each in Acks} == {"NONE": 0, "LEADER": 1, "ALL": 2}
    assert {each.name: each.value for each in Durability} == {"NONE": 0, "WRITTEN": 1, "REPLICATED": 2, "DURABLE": 3}


def test_more_is_a_larger_number() -> None:
    assert sorted(Durability) == [Durability.NONE, Durability.WRITTEN, Durability.REPLICATED, Durability.DURABLE]
