"""A broker, a client as the oracle, and Spark, for tests that compare what they say."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader

import goqueue
from goqueue.server.embedded import EmbeddedBroker


class Seen(NamedTuple):
    """A message, whoever read it."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    priority: int
    deliver_at: int | None
    expires_at: int | None
    event_time: int | None


class Desk:
    def __init__(self, spark: SparkSession, broker: EmbeddedBroker) -> None:
        self.spark = spark
        self.broker = broker
        self.wire = broker.endpoints["wire"]
        self.client = goqueue.Client(self.wire)

    def create(self, *topics: str, partitions: int = 2, **settings: Any) -> None:
        for topic in topics:
            self.client.call("create_topic", name=topic, num_partitions=partitions, **settings)

    def fill(self, topic: str, count: int, *, first: int = 0, size: int = 0) -> None:
        """Numbered values, over ten keys."""
        with self.client.producer() as producer:
            for number in range(first, first + count):
                producer.enqueue(topic, str(number).ljust(size).encode(), key=f"key-{number % 10}")

    def oracle(self, *topics: str, **reading: Any) -> list[Seen]:
        found = []
        for topic in topics:
            with self.client.reader(topic, **reading) as reader:
                found += [
                    Seen(
                        message.topic,
                        message.partition,
                        message.offset,
                        message.timestamp,
                        message.key,
                        message.value,
                        message.headers,
                        int(message.priority),
                        message.deliver_at,
                        message.expires_at,
                        message.event_time,
                    )
                    for message in reader
                ]
        return sorted(found)

    def frame(self, **options: Any) -> DataFrame:
        reader = self.spark.read.format("goqueue").option("bootstrap.servers", self.wire)
        return reader.options(**_texts(options)).load()

    def stream(self, **options: Any) -> DataStreamReader:
        reader = self.spark.readStream.format("goqueue").option("bootstrap.servers", self.wire)
        return reader.options(**_texts(options))

    def read(self, **options: Any) -> list[Seen]:
        return seen(self.frame(includeHeaders=True, **options))

    def write(self, frame: DataFrame, **options: Any) -> None:
        writer = frame.write.format("goqueue").option("bootstrap.servers", self.wire)
        writer.options(**_texts(options)).mode("append").save()

    def clean(self) -> None:
        """What the broker does by itself every half minute, once everything written is sealed."""

        async def work() -> None:
            broker = self.broker._running().broker
            for topic in broker.topics.by_id.values():
                for partition in topic.partitions:
                    await asyncio.to_thread(partition.log.sync)
            await broker._housekeeping.clean()

        self.broker._run(work())


def _texts(options: dict[str, Any]) -> dict[str, str]:
    """Names with a double underscore for a dot."""
    return {
        name.replace("__", "."): str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
    }


def seen(frame: DataFrame) -> list[Seen]:
    """By Spark, in the order of places. Times are asked for as numbers: Python's depend on where it runs."""
    times = ("timestamp", "deliver_at", "expires_at", "event_time")
    chosen = [f"unix_millis({name}) as {name}" if name in times else name for name in Seen._fields]
    return sorted(Seen._make(_plain(each) for each in row) for row in frame.selectExpr(*chosen).collect())


def _plain(value: Any) -> Any:
    """As the client has it."""
    if isinstance(value, list):
        return tuple((header.key, bytes(header.value)) for header in value)
    return bytes(value) if isinstance(value, bytearray) else value


@contextmanager
def open_desk(spark: SparkSession, path: Path) -> Iterator[Desk]:
    with EmbeddedBroker(str(path)) as broker:
        desk = Desk(spark, broker)
        with desk.client:
            yield desk
