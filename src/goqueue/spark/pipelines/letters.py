"""Dead letters as rows: the message, and the story of how it died, which travels beside it in the record.

Tasks read stretches of the dead-letter topic and unpack each record. What is there and is no dead letter, because
somebody published it by hand, has a row as well, with `why` it is bad; so has each gap, where letters are damaged or
gone.
"""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from goqueue import codec
from goqueue.model.dead_letters import unpack_dead_letter
from goqueue.model.errors import UnknownTopic
from goqueue.model.names import dlq_name
from goqueue.model.record import Record
from goqueue.spark import asking
from goqueue.spark.fetching import fetch
from goqueue.spark.options import Address, Subscription
from goqueue.spark.places import Stretch, split, stretches

_STRETCHES: Final = "topic string, topic_id string, partition int, start long, end long, is_new boolean"
COLUMNS: Final = (
    "partition int, offset long, timestamp timestamp, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>, priority int, reason string, detail string, `group` string, "
    "deliveries int, published_at timestamp, died_at timestamp, origin_partition int, origin_offset long, why string"
)
"""Partition, offset and timestamp are those in the dead-letter topic."""


def read_letters(spark: SparkSession, address: str, topic: str) -> DataFrame:
    """Every dead letter of a topic that is still there. UnknownTopic when there is no such topic."""
    where, nothing = Address(address), spark.createDataFrame([], COLUMNS)
    with asking.connect(where) as client:
        client.list_dead_letters(topic, limit=1)  # it waits for those that have just died
        try:
            extents = asking.survey(client, Subscription((dlq_name(topic),)), "read_committed")
        except UnknownTopic:  # it is made when the first one dies
            return nothing
    found = split(stretches(extents.start, extents.end), least=spark.sparkContext.defaultParallelism, most_records=None)
    kind = to_arrow_schema(nothing.schema, timezone="UTC")

    def unpack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                yield from (pa.RecordBatch.from_pylist(rows, schema=kind) for rows in _unpacked(where, Stretch(**row)))

    if not found:
        return nothing
    parts = spark.createDataFrame(spark.sparkContext.parallelize(found, len(found)), _STRETCHES)
    return parts.mapInArrow(unpack, COLUMNS)


def _unpacked(where: Address, stretch: Stretch) -> Iterator[list[dict[str, object]]]:
    """The rows of a stretch, and of what cannot be read of it one for each gap."""
    gaps: list[dict[str, object]] = []

    def miss(offset: int, text: str) -> None:
        gaps.append({"partition": stretch.partition, "offset": offset, "why": text})

    for block in fetch(where, stretch, uncommitted=False, fail_on_data_loss=False, on_loss=miss):
        yield [_row(stretch, each) for each in codec.decode(block) if _counts(stretch, each)]
    yield gaps


def _counts(stretch: Stretch, record: Record) -> bool:
    return stretch.start <= record.offset < stretch.end and not record.control


def _row(stretch: Stretch, record: Record) -> dict[str, object]:
    row: dict[str, object] = {
        "partition": stretch.partition,
        "offset": record.offset,
        "timestamp": _moment(record.timestamp),
        "key": record.key,
        "value": record.value,
        "headers": [{"key": name, "value": value} for name, value in record.headers],
        "priority": int(record.priority),
    }
    blob = record.extension.blob if record.extension is not None else None
    letter = None if blob is None else unpack_dead_letter(blob)
    if letter is None:
        return {**row, "why": "no dead letter: it does not say how it died"}
    return {
        **row,
        "reason": letter.reason,
        "detail": letter.detail,
        "group": letter.group,
        "deliveries": letter.deliveries,
        "published_at": _moment(letter.published_at),
        "died_at": _moment(letter.died_at),
        "origin_partition": letter.partition,
        "origin_offset": letter.offset,
    }


def _moment(unix_ms: int) -> datetime:
    return datetime.fromtimestamp(unix_ms / 1000, UTC)
