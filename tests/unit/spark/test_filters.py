"""Conditions that spare reading."""

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from goqueue.spark.filters import narrow
from goqueue.spark.places import Stretch

WHOLE = [Stretch(topic, "01", number, 10, 20) for topic in ("a", "b") for number in (0, 1)]


def left(*filters: Filter) -> list[tuple[str, int, int, int]]:
    return [(each.topic, each.partition, each.start, each.end) for each in narrow(filters).of(WHOLE)]


def test_what_is_not_understood_spares_nothing() -> None:
    assert len(left(IsNotNull(("offset",)), EqualTo(("value",), b"x"), GreaterThan(("partition",), 0))) == 4


def test_topics_and_partitions() -> None:
    assert left(EqualTo(("topic",), "a"), In(("partition",), (1, 5))) == [("a", 1, 10, 20)]
    assert left(In(("topic",), ("a", "b")), EqualTo(("topic",), "c")) == []


def test_offsets() -> None:
    only = EqualTo(("topic",), "a"), EqualTo(("partition",), 0)
    assert left(*only, GreaterThanOrEqual(("offset",), 12), LessThan(("offset",), 15)) == [("a", 0, 12, 15)]
    assert left(*only, GreaterThan(("offset",), 12), LessThanOrEqual(("offset",), 15)) == [("a", 0, 13, 16)]
    assert left(*only, EqualTo(("offset",), 14)) == [("a", 0, 14, 15)]
    assert left(*only, In(("offset",), (12, 17))) == [("a", 0, 12, 18)]
    assert left(*only, In(("offset",), (12, None))) == [("a", 0, 12, 13)]
    assert left(*only, GreaterThan(("offset",), 19)) == []
