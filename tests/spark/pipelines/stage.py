"""What the tests of pipelines share: a broker with messages in it, runs of a pipeline, and what a topic has."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.dataset as parquet
import pytest
from pyspark.sql import SparkSession

import goqueue
from goqueue.spark.pipelines import lake as lakes
from goqueue.spark.pipelines.frame import Summary
from goqueue.spark.pipelines.running import Ended, run_pipeline
from goqueue.spark.pipelines.table import PIPELINES
from tests.support.broker import running_broker

LANES = ("critical", "high", "normal", "low", "background")


class Seen(NamedTuple):
    """What must be the same wherever a message is."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    lane: str


class Stage:
    def __init__(self, spark: SparkSession, address: str, directory: Path) -> None:
        self.spark = spark
        self.address = address
        self.directory = directory
        self.client = goqueue.Client(address)

    def publish(self, topic: str, count: int, *, partitions: int = 3, keys: int = 7) -> None:
        """Numbered messages, with keys, headers and lanes; every 50th has no key, every 60th no value."""
        self.client.create_topic(topic, partitions=partitions, exist_ok=True)
        with self.client.producer() as producer:
            for number in range(count):
                producer.enqueue(
                    topic,
                    None if number % 60 == 59 else f"{topic} {number}",
                    key=None if number % 50 == 49 else f"key {number % keys}",
                    headers={"number": str(number), "kind": "even" if number % 2 == 0 else "odd"},
                    priority=LANES[number % len(LANES)],
                )

    def written(self, topic: str) -> int:
        """How many messages it has; none if there is no such topic."""
        known = topic in self.client.list_topics(internal=True).topics
        return self.client.describe_topic(topic).total_messages if known else 0

    def read(self, topic: str) -> list[Any]:
        """Every message, each partition in its order."""
        with self.client.reader(topic) as reader:
            return list(reader)

    def by_key(self, topic: str) -> dict[bytes | None, list[Seen]]:
        """What a key has, in order. Those without one have no order."""
        found: dict[bytes | None, list[Seen]] = {}
        for message in self.read(topic):
            found.setdefault(message.key, []).append(seen(message))
        if None in found:
            found[None].sort(key=lambda each: each.headers)
        return found

    def run(self, pipeline: str, *, state: str = "state", dry: bool = False, **options: Any) -> Summary:
        ended = self.run_anyhow(pipeline, state=state, dry=dry, **options)
        assert ended.summary is not None
        return ended.summary

    def run_anyhow(self, pipeline: str, *, state: str = "state", dry: bool = False, **options: Any) -> Ended:
        given = {"address": self.address, **{name.rstrip("_"): str(value) for name, value in options.items()}}
        return run_pipeline(PIPELINES[pipeline], given, is_dry=dry, state=self.directory / state, spark=self.spark)


def seen(message: Any) -> Seen:
    headers = tuple(message.headers)
    return Seen(message.key, message.value, headers, message.priority.name.lower())


@contextmanager
def staged(spark: SparkSession, directory: Path) -> Iterator[Stage]:
    with running_broker(directory) as broker:
        stage = Stage(spark, broker.wire, directory)
        with stage.client:
            yield stage


def counts(lake: Path) -> tuple[int, int]:
    """How many rows there are, and how many different messages, as any reader of Parquet finds them."""
    rows = parquet.dataset(lake, partitioning="hive").to_table(["topic", "partition", "offset"]).to_pylist()
    return len(rows), len({(row["topic"], row["partition"], row["offset"]) for row in rows})


def once_at(monkeypatch: pytest.MonkeyPatch, wanted: str, work: Callable[[], object]) -> None:
    """Somebody else does this the first time that a lake passes the place."""
    passed: list[str] = []

    def failpoint(name: str) -> None:
        if name == wanted and not passed:
            passed.append(name)
            work()

    monkeypatch.setattr(lakes, "failpoint", failpoint)
