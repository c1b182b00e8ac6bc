"""What conditions of a query spare reading: topics, partitions and offsets that cannot fulfil them.

Spark checks every row again, so a condition that is not understood here costs time and nothing else.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from goqueue.model import limits
from goqueue.spark.places import Stretch


class Narrowing(NamedTuple):
    """What may fulfil the conditions."""

    topics: frozenset[str] | None = None
    """None: any."""
    partitions: frozenset[int] | None = None
    first: int = 0
    end: int = limits.MAX_OFFSET

    def of(self, found: Iterable[Stretch]) -> list[Stretch]:
        return [
            each._replace(start=max(each.start, self.first), end=min(each.end, self.end))
            for each in found
            if (self.topics is None or each.topic in self.topics)
            and (self.partitions is None or each.partition in self.partitions)
            and min(each.end, self.end) > max(each.start, self.first)
        ]


def narrow(filters: Iterable[Filter]) -> Narrowing:
    """All of them have to be fulfilled."""
    found = Narrowing()
    for each in filters:
        column = ".".join(getattr(each, "attribute", ()))
        if column == "offset":
            first, end = _range_of(each)
            found = found._replace(first=max(found.first, first), end=min(found.end, end))
        elif column == "topic":
            found = found._replace(topics=_left_by(each, found.topics))
        elif column == "partition":
            found = found._replace(partitions=_left_by(each, found.partitions))
    return found


def _left_by(condition: Filter, before: frozenset[Any] | None) -> frozenset[Any] | None:
    if not isinstance(condition, EqualTo | In):
        return before
    listed = frozenset(condition.value if isinstance(condition, In) else [condition.value])
    return listed if before is None else before & listed


def _range_of(condition: Filter) -> tuple[int, int]:
    """The first offset, and the one after the last."""
    match condition:
        case EqualTo(_, value):
            return value, value + 1
        case GreaterThan(_, value):
            return value + 1, limits.MAX_OFFSET
        case GreaterThanOrEqual(_, value):
            return value, limits.MAX_OFFSET
        case LessThan(_, value):
            return 0, value
        case LessThanOrEqual(_, value):
            return 0, value + 1
        case In(_, values) if known := [each for each in values if each is not None]:
            return min(known), max(known) + 1
    return 0, limits.MAX_OFFSET
