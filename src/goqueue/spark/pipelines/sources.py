"""Where messages to be written again come from: a topic, or what a lake has of one.

A source says which offsets it has, and gives the rows between two positions: those of one partition in one task, in the
order of their offsets. What it had before it may have lost since, and says so.
"""

import json
from datetime import UTC, datetime
from typing import NamedTuple, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from goqueue.client.sync.client import Client
from goqueue.model.errors import DamagedData
from goqueue.spark import asking
from goqueue.spark.options import EARLIEST, LATEST, Address, Bound, Subscription
from goqueue.spark.pipelines import lake as lakes
from goqueue.spark.places import Offsets, Position, Stretch, stretches


class Left(NamedTuple):
    """What is still there, of what lies between two positions."""

    start: Position
    """Where it begins."""
    gone: list[Stretch]
    """What lay before that and was promised."""


class Source(Protocol):
    undecided: tuple[str, ...]
    """Where it ended before its log did, when that was last looked at."""

    def extent(self) -> tuple[Position, Position]:
        """Its beginning and its end, as it is now."""

    def left(self, start: Position, end: Position) -> Left:
        """What is there of it now."""

    def rows(self, start: Position, end: Position) -> DataFrame:
        """With every column a message has; from where there is something."""


class TopicSource:
    """What a topic has, or had and will have between two times."""

    def __init__(
        self,
        spark: SparkSession,
        address: str,
        topic: str,
        from_ms: int | None = None,
        to_ms: int | None = None,
        *,
        skips_lost: bool = False,
    ) -> None:
        self._spark = spark
        self._address = address
        self._topic = topic
        self._skips_lost = skips_lost
        self.undecided: tuple[str, ...] = ()
        self._start = Bound(word=EARLIEST) if from_ms is None else Bound(time_ms=from_ms)
        self._end = Bound(word=LATEST) if to_ms is None else Bound(time_ms=to_ms)

    def extent(self) -> tuple[Position, Position]:
        with asking.connect(Address(self._address)) as client:
            extents = asking.survey(client, Subscription((self._topic,)), "read_committed")
            self.undecided = tuple(extents.undecided.values()) if self._end.word == LATEST else ()
            return (
                asking.resolve(client, extents, self._start, what="from"),
                asking.resolve(client, extents, self._end, what="to"),
            )

    def left(self, start: Position, end: Position) -> Left:
        """Retention may have taken the beginning. Of partitions that came since nothing was promised."""
        with asking.connect(Address(self._address)) as client:
            extents = asking.survey(client, Subscription((self._topic,)), "read_committed")
        for then in (start, end):
            _check_same(then, extents.end, self._topic)
        begin, gone = {**end.offsets[self._topic]}, []
        for each in stretches(start, end):
            first = min(max(each.start, extents.earliest[self._topic][each.partition]), each.end)
            begin[each.partition] = first
            if first > each.start and not each.is_new:
                gone.append(each._replace(end=first))
        return Left(Position(end.ids, {self._topic: begin}), gone)

    def rows(self, start: Position, end: Position) -> DataFrame:
        """Read by offsets, so that the same are read again when they have to be."""
        first, last = start.offsets[self._topic], end.offsets[self._topic]
        reader = self._spark.read.format("goqueue").option("bootstrap.servers", self._address)
        reader = reader.option("includeHeaders", "true").option("assign", json.dumps({self._topic: [*last]}))
        reader = reader.option("failOnDataLoss", str(not self._skips_lost).lower())
        reader = reader.option("startingOffsets", json.dumps({self._topic: first}))
        return reader.option("endingOffsets", json.dumps({self._topic: last})).load()


class LakeSource:
    """What `archive` has put into a lake of a topic."""

    def __init__(
        self, spark: SparkSession, lake: str, topic: str, from_ms: int | None = None, to_ms: int | None = None
    ) -> None:
        self._spark = spark
        self._lake = lake
        self._topic = topic
        self._from_ms = from_ms
        self._to_ms = to_ms
        self.undecided: tuple[str, ...] = ()

    def extent(self) -> tuple[Position, Position]:
        found = self._all().groupBy("partition").agg(f.min("offset"), f.max("offset")).collect()
        ids = {self._topic: "unknown", **lakes.topic_ids(self._spark, self._lake, [self._topic])}
        start: Offsets = {self._topic: {row[0]: row[1] for row in found}}
        return Position(ids, start), Position(ids, {self._topic: {row[0]: row[2] + 1 for row in found}})

    def left(self, start: Position, end: Position) -> Left:
        _check_same(start, end, self._topic)
        return Left(start, [])

    def _all(self) -> DataFrame:
        """As its files are now: an archive may be at work beside it."""
        rows = lakes.read(self._spark, self._lake, [self._topic])
        if self._from_ms is not None:
            begin = datetime.fromtimestamp(self._from_ms / 1000, UTC)
            rows = rows.where((f.col("date") >= begin.date()) & (f.col("timestamp") >= begin))
        if self._to_ms is not None:
            end = datetime.fromtimestamp(self._to_ms / 1000, UTC)
            rows = rows.where((f.col("date") <= end.date()) & (f.col("timestamp") < end))
        return rows

    def rows(self, start: Position, end: Position) -> DataFrame:
        wanted = f.lit(False)
        for each in stretches(start, end):
            inside = (f.col("offset") >= each.start) & (f.col("offset") < each.end)
            wanted = wanted | ((f.col("partition") == each.partition) & inside)
        return self._all().where(wanted).repartition("partition").sortWithinPartitions("partition", "offset")


def _check_same(start: Position, end: Position, topic: str) -> None:
    if start.ids[topic] != end.ids[topic]:
        raise DamagedData(f"the topic {topic} was deleted and created again since; begin anew, with another --state")


def largest_message(client: Client, topic: str) -> int:
    """How many bytes of key, value and headers a topic takes."""
    limit: int = client.describe_topic(topic).config.max_message_bytes
    return limit
