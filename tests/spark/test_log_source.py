"""`format("goqueue-log")` against what a client reads from the broker that wrote the files."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

import goqueue
from goqueue.model.errors import GoQueueError
from goqueue.model.settings import LogSettings
from goqueue.spark.log_source import GoQueueLogSource
from goqueue.spark.rows import COLUMNS
from goqueue.storage.cleaner import clean
from tests.support.broker import RunningBroker, running_broker
from tests.unit.storage.logs import flip, offsets, open_log, positions, read_all

SEGMENT_BYTES = 16 * 1024
LANES = ("critical", "high", "normal", "low", "background")


class Message(NamedTuple):
    """What must be the same, whoever reads it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    lane: str


def from_client(client: goqueue.Client, *topics: str, **how: Any) -> list[Message]:
    found = []
    for topic in topics:
        with client.reader(topic, **how) as reader:
            for each in reader:
                headers = tuple((name, bytes(value)) for name, value in each.headers)
                place = (each.topic, each.partition, each.offset)
                found.append(Message(*place, each.key, each.value, headers, LANES[each.priority]))
    return sorted(found, key=lambda each: each[:3])


def load(spark: SparkSession, data: Path, **options: object) -> DataFrame:
    reader = spark.read.format("goqueue-log").option("includeHeaders", "true")
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load(str(data))


def read_without_spark(data: Path, **options: str) -> None:
    """As its tasks do, which Spark would try again when they fail."""
    source = GoQueueLogSource({"path": str(data), **options})
    reader = source.reader(source.schema())
    for partition in reader.partitions():
        for _ in reader.read(partition):
            pass


def from_rows(rows: list[Row]) -> list[Message]:
    found = [
        Message(
            row.topic,
            row.partition,
            row.offset,
            _bytes(row.key),
            _bytes(row.value),
            tuple((header.key, bytes(header.value)) for header in row.headers),
            LANES[row.priority],
        )
        for row in rows
    ]
    return sorted(found, key=lambda each: each[:3])


def _bytes(found: bytearray | None) -> bytes | None:
    return None if found is None else bytes(found)


def publish(client: goqueue.Client, topic: str, count: int, *, partitions: int = 2, size: int = 40) -> None:
    client.create_topic(topic, partitions=partitions, segment_bytes=SEGMENT_BYTES, exist_ok=True)
    with client.producer(batch_messages=50) as producer:
        for number in range(count):
            producer.enqueue(
                topic,
                None if number % 60 == 59 else f"{number}.".ljust(size, "v"),
                key=None if number % 50 == 49 else f"key {number % 11}",
                headers={"number": str(number)} if number % 3 == 0 else (),
                priority=LANES[number % 5],
                delay="1h" if number % 97 == 96 else None,
            )


def transact(client: goqueue.Client, topic: str, count: int, *, commits: bool) -> None:
    with client.producer() as producer:
        transaction = producer.transaction()
        transaction.__enter__()
        for number in range(count):
            producer.enqueue(topic, f"{'committed' if commits else 'aborted'} {number}", key=f"key {number % 3}")
        producer.flush()
        if commits:
            transaction.commit()
        else:
            transaction.abort()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    with running_broker(tmp_path) as found:
        yield found


@pytest.fixture
def client(broker: RunningBroker) -> Iterator[goqueue.Client]:
    with goqueue.Client(broker.wire) as found:
        yield found


def segments(data: Path, topic: str, partition: int = 0) -> list[Path]:
    return sorted(data.glob(f"logs/{topic}/*/{partition}/*.log"))


def test_what_the_client_reads_is_in_the_files_while_it_runs_after_it_stopped_and_after_a_kill(
    spark: SparkSession, broker: RunningBroker, client: goqueue.Client
) -> None:
    publish(client, "orders", 1500)
    publish(client, "events", 300, partitions=3)
    transact(client, "orders", 50, commits=True)
    transact(client, "orders", 70, commits=False)
    publish(client, "orders", 200)
    client.create_topic("gone", partitions=1)
    client.delete_topic("gone")
    expected = from_client(client, "events", "orders")
    assert len(expected) == 1500 + 300 + 50 + 200
    assert len(segments(broker.data_dir, "orders")) > 2
    assert from_rows(load(spark, broker.data_dir).collect()) == expected
    broker.stop()
    assert from_rows(load(spark, broker.data_dir).collect()) == expected
    broker.start()
    with goqueue.Client(broker.wire) as again:
        publish(again, "orders", 100)
        expected = from_client(again, "orders")
    broker.kill()
    frame = load(spark, broker.data_dir, subscribe="orders")
    assert frame.columns == list(COLUMNS)
    assert from_rows(frame.collect()) == expected


def test_open_transactions_end_a_read_that_is_committed_and_not_one_that_is_not(
    spark: SparkSession, broker: RunningBroker, client: goqueue.Client
) -> None:
    publish(client, "orders", 100, partitions=1)
    transact(client, "orders", 20, commits=False)
    with client.producer() as producer, producer.transaction(name="stage", timeout="1h") as transaction:
        producer.enqueue("orders", "open", key="k")
        transaction_id, messages = transaction.prepare()
    publish(client, "orders", 30, partitions=1)
    committed = from_client(client, "orders")
    everything = from_client(client, "orders", isolation="read_uncommitted")
    assert (len(committed), len(everything)) == (100, 151)
    broker.kill()
    assert from_rows(load(spark, broker.data_dir).collect()) == committed
    assert from_rows(load(spark, broker.data_dir, isolation="read_uncommitted").collect()) == everything
    broker.start()
    with goqueue.Client(broker.wire) as again:
        again.commit_many("stage", 1, [transaction_id], messages={transaction_id: messages})
        expected = from_client(again, "orders")
    assert len(expected) == 131
    assert from_rows(load(spark, broker.data_dir).collect()) == expected


def test_times_offsets_and_columns_are_chosen(
    spark: SparkSession, broker: RunningBroker, client: goqueue.Client
) -> None:
    publish(client, "orders", 600, partitions=2)
    publish(client, "events", 100, partitions=1)
    data = broker.data_dir
    everything = load(spark, data, subscribe="orders").orderBy("timestamp").collect()
    middle = everything[300].timestamp
    text = middle.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    late = load(spark, data, subscribe="orders", startingTimestamp=text).collect()
    early = load(spark, data, subscribePattern="ord.*", endingTimestamp=text).collect()
    assert sorted(row.offset for row in late) == sorted(row.offset for row in everything if row.timestamp >= middle)
    assert len(late) + len(early) == 600
    places = '{"orders": {"0": 10, "1": -2}}'
    part = load(spark, data, subscribe="orders", startingOffsets=places, maxRecordsPerPartition=50)
    assert part.count() == 590
    assert part.rdd.getNumPartitions() >= 12
    chosen = spark.read.format("goqueue-log").schema("offset bigint, value binary").load(str(data))
    assert chosen.columns == ["offset", "value"]
    assert chosen.count() == 700


def test_damage_is_an_error_with_its_place_or_a_gap(
    spark: SparkSession, broker: RunningBroker, client: goqueue.Client, tmp_path: Path
) -> None:
    publish(client, "orders", 1000, partitions=1)
    broker.stop()
    copy = tmp_path / "copy"
    shutil.copytree(broker.data_dir, copy)
    second = segments(copy, "orders")[1]
    base = int(second.stem)
    position, end = positions(second)[base + 5]
    flip(second, end - 1)
    with pytest.raises(PySparkException) as raised:
        load(spark, copy).collect()
    text = f"offset {base + 5} of partition 0 of orders cannot be read: its checksum does not match"
    assert text in str(raised.value)
    assert f"(bytes {position} to {end} of {second})" in str(raised.value)
    assert "set failOnDataLoss to false" in str(raised.value)
    found = {row.offset for row in load(spark, copy, failOnDataLoss="false").collect()}
    assert found == set(range(1000)) - {base + 5}
    last = segments(copy, "orders")[-2]
    last.unlink()
    with pytest.raises(GoQueueError, match="the file is missing"):
        read_without_spark(copy, startingOffsets=json.dumps({"orders": {"0": base + 6}}))
    assert load(spark, broker.data_dir).count() == 1000
    shutil.rmtree(second.parent)
    with pytest.raises(GoQueueError, match="partition 0 of orders cannot be read: there is no log in"):
        read_without_spark(copy)
    assert load(spark, copy, failOnDataLoss="false").count() == 0


def test_a_compacted_topic_has_gaps_that_are_no_damage(
    spark: SparkSession, broker: RunningBroker, client: goqueue.Client
) -> None:
    client.create_topic("settings", partitions=1, cleanup_policy="compact", segment_bytes=SEGMENT_BYTES)
    publish(client, "settings", 1000, partitions=1)
    broker.stop()
    expected = compact(broker.data_dir, "settings")
    rows = load(spark, broker.data_dir).collect()
    assert sorted(row.offset for row in rows) == expected
    assert len(expected) < 800


def compact(data: Path, topic: str) -> list[int]:
    """As housekeeping would. The offsets that are left."""
    (directory,) = data.glob(f"logs/{topic}/*/0")
    log = open_log(directory, LogSettings(compact=True))
    clean(log, now=log.last_timestamp)
    found = offsets(read_all(log))
    log.close()
    return found


def test_what_is_not_there_is_said(spark: SparkSession, broker: RunningBroker, client: goqueue.Client) -> None:
    publish(client, "orders", 10)
    with pytest.raises(PySparkException, match=r"there is no topic bills in .*; there are orders"):
        load(spark, broker.data_dir, subscribe="bills").collect()
    with pytest.raises(PySparkException, match="is no data directory"):
        load(spark, broker.data_dir / "logs").collect()
    with pytest.raises(PySparkException, match="there is no option subscribed; do you mean subscribe"):
        load(spark, broker.data_dir, subscribed="orders").collect()
