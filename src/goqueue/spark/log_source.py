"""What `format("goqueue-log")` is: topics read from the files of a data directory, without a broker."""

import logging
import os
import re
from array import array
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple

import pyarrow as pa
from pyroaring import BitMap64
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from goqueue.base.offset_sets import pack, runs, unpack
from goqueue.io.read_only import ReadOnlyDisk
from goqueue.model.errors import DamagedState, UnknownTopic
from goqueue.model.names import format_topic_id
from goqueue.spark.asking import Extents, locate
from goqueue.spark.fetching import DataLost
from goqueue.spark.log_damage import examine
from goqueue.spark.log_directory import DataDirectory, PartitionLog
from goqueue.spark.log_reading import LogPart, Loss, PartReader, cut
from goqueue.spark.options import LogOptions, Subscription, log_options
from goqueue.spark.places import Stretch, stretches
from goqueue.spark.rows import Place, Rows, full_schema

log = logging.getLogger("goqueue.spark")

DAMAGE: Final = StructType(
    [
        StructField("topic", StringType(), True),
        StructField("partition", IntegerType(), True),
        StructField("kind", StringType(), True),
        StructField("first_offset", LongType(), True),
        StructField("next_offset", LongType(), True),
        StructField("file", StringType(), True),
        StructField("position", LongType(), True),
        StructField("reason", StringType(), True),
    ]
)
"""What is read with `content` damage: a row for each range of offsets that something is wrong with."""


class Part(InputPartition):
    """What one task reads."""

    def __init__(self, part: LogPart) -> None:
        super().__init__(part)
        self.part = part


class GoQueueLogSource(DataSource):
    """Topics of a data directory, or of a copy of it, with a broker beside it or without. Batches only."""

    @classmethod
    def name(cls) -> str:
        return "goqueue-log"

    def schema(self) -> StructType:
        options = log_options(self.options)
        return DAMAGE if options.content == "damage" else full_schema(include_headers=options.include_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = log_options(self.options)
        options = options._replace(path=os.path.abspath(options.path))
        return DamageReader(options, schema) if options.content == "damage" else LogReader(options, schema)


class LogReader(DataSourceReader):
    """The messages, every record's checksum compared."""

    def __init__(self, options: LogOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        return [Part(part) for part in plan(self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Part):  # Spark's own, when there is nothing to read
            return
        part, rows = partition.part, Rows(self._schema)
        stretch = part.stretch
        place = Place(stretch.topic, stretch.partition)
        hidden = array("q", chain.from_iterable(runs(unpack(part.hidden))))
        for item in PartReader(part, ReadOnlyDisk()).read():
            if isinstance(item, Loss):
                lose(stretch.topic, stretch.partition, item, fail=self._options.fail_on_data_loss)
                continue
            batch = rows.batch(place, item.data, item.start, stretch.end, hidden)
            if batch.num_rows:
                yield batch


class DamageReader(DataSourceReader):
    """What is wrong with the log, instead of what is in it."""

    def __init__(self, options: LogOptions, schema: StructType) -> None:
        self._options = options._replace(isolation="read_uncommitted", fail_on_data_loss=False)
        self._schema = to_arrow_schema(schema, timezone="UTC")

    def partitions(self) -> Sequence[InputPartition]:
        return [Part(part) for part in plan(self._options, whole_segments=True)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Part):
            return
        part = partition.part
        rows = [
            {
                "topic": part.stretch.topic,
                "partition": part.stretch.partition,
                "kind": each.kind,
                "first_offset": each.first,
                "next_offset": each.end,
                "file": each.path,
                "position": each.position,
                "reason": each.reason,
            }
            for each in examine(part, ReadOnlyDisk())
        ]
        if rows:
            yield pa.RecordBatch.from_pylist(rows, schema=self._schema)


def lose(topic: str, partition: int, loss: Loss, *, fail: bool) -> None:
    path, (first, end, position, behind, reason) = loss
    offsets = f"offset {first}" if end == first + 1 else f"offsets {first} to {end - 1}"
    where = f"bytes {position} to {behind} of {path}" if behind else path
    _lose(f"{offsets} of partition {partition} of {topic} cannot be read: {reason} ({where})", fail=fail)


def _lose(text: str, *, fail: bool) -> None:
    if fail:
        raise DataLost(f"{text}; set failOnDataLoss to false to go on without it")
    log.warning("%s", text)


# ---------------------------------------------------------------- on the driver


def plan(options: LogOptions, *, whole_segments: bool = False) -> list[LogPart]:
    directory = DataDirectory(options.path)
    logs, unreadable = survey(directory, options)
    for (topic, number), (_, reason) in unreadable.items():
        _lose(f"partition {number} of {topic} cannot be read: {reason}", fail=options.fail_on_data_loss)
    ends = {key: each.stable if options.isolation == "read_committed" else each.end for key, each in logs.items()}
    extents = Extents({}, {}, {}, {}, {})
    for (topic, number), found in logs.items():
        extents.ids[topic] = format_topic_id(directory.topics[topic].topic_id)
        extents.earliest.setdefault(topic, {})[number] = found.start
        extents.latest.setdefault(topic, {})[number] = ends[topic, number]

    def at_time(topic: str, time_ms: int) -> dict[int, int]:
        return {number: logs[topic, number].offset_at(time_ms) for number in extents.latest[topic]}

    start = locate(extents, options.start, at_time, what="startingOffsets")
    end = locate(extents, options.end, at_time, what="endingOffsets")
    parts: list[LogPart] = []
    for each in stretches(start, end):
        found = logs[each.topic, each.partition]
        within = _within(each, found.start, ends[each.topic, each.partition], fail=options.fail_on_data_loss)
        if within.size > 0:
            parts += cut(found, within, most_records=options.max_records, whole_segments=whole_segments)
    if whole_segments:
        parts += [
            _torn(topic, number, found)
            for (topic, number), found in logs.items()
            if found.torn is not None and end.offsets[topic][number] >= found.end
        ]
    return parts


class Survey(NamedTuple):
    """By topic and partition."""

    logs: dict[tuple[str, int], PartitionLog]
    unreadable: dict[tuple[str, int], tuple[str, str]]
    """Where those are that should be there, and what is wrong with them."""


def _torn(topic: str, number: int, found: PartitionLog) -> LogPart:
    """What lies behind the end of a log."""
    assert found.torn is not None
    nothing = Stretch(topic, "", number, found.end, found.end)
    torn = Loss(found.segments[-1].file.path, found.torn)
    return LogPart(found.log.directory, nothing, pack(BitMap64()), base=0, start=None, torn=torn)


def survey(directory: DataDirectory, options: LogOptions) -> Survey:
    """What there is of every partition of the topics that are read."""
    found = Survey({}, {})
    committed = options.isolation == "read_committed"
    for name in _names(directory, options.subscription):
        topic = directory.topics[name]
        for number in range(topic.partitions):
            path = directory.directory(topic, number)
            try:
                found.logs[name, number] = directory.partition(topic, number, committed=committed)
            except FileNotFoundError:
                found.unreadable[name, number] = path, f"there is no log in {path}"
            except DamagedState as error:
                found.unreadable[name, number] = path, str(error)
    return found


def _names(directory: DataDirectory, subscription: Subscription) -> list[str]:
    """UnknownTopic when a topic that is named does not exist. A pattern that matches nothing finds nothing."""
    if subscription.pattern is not None:
        pattern = re.compile(subscription.pattern)
        return sorted(name for name in directory.topics if pattern.fullmatch(name))
    for name in subscription.names:
        if name not in directory.topics:
            there = ", ".join(sorted(directory.topics)[:5]) or "none"
            raise UnknownTopic(f"there is no topic {name} in {directory.path}; there are {there}")
    return sorted(subscription.names or directory.topics)


def _within(stretch: Stretch, start: int, end: int, *, fail: bool) -> Stretch:
    """As much of it as there is."""
    where = f"partition {stretch.partition} of {stretch.topic}"
    for lost, why in (
        ((stretch.start, min(stretch.end, start)), f"{where} begins at {start}"),
        ((max(stretch.start, end), stretch.end), f"{where} ends at {end}"),
    ):
        if lost[0] < lost[1]:
            _lose(f"offsets {lost[0]} to {lost[1] - 1} are not there: {why}", fail=fail)
    return stretch._replace(start=max(stretch.start, start), end=min(stretch.end, end))
