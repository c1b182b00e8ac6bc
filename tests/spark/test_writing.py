"""Writes: everything of a row arrives, all rows or none, once however often tasks and drivers die."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StringType, StructType

from goqueue.model import limits
from goqueue.spark.options import sink_options
from goqueue.spark.source import GoQueueSource
from goqueue.spark.writing import LAST_TASKS_S, BatchWriter, StreamWriter
from tests.spark.desk import Desk

ROWS = StructType().add("value", StringType())


def test_everything_of_a_row_arrives(desk: Desk) -> None:
    desk.create("row-in", "row-out", partitions=3)
    with desk.client.producer() as producer:
        for number in range(200):
            producer.enqueue(
                "row-in",
                None if number % 7 == 0 else f"value {number}".encode(),
                key=None if number % 5 == 0 else f"key-{number % 11}",
                headers=[("n", str(number).encode())] if number % 2 else [],
                priority=number % 5,
                delay=3600 if number % 13 == 0 else None,
            )
    desk.write(desk.frame(subscribe="row-in", includeHeaders=True).drop("topic"), topic="row-out")
    old, new = desk.oracle("row-in"), desk.oracle("row-out")
    assert [each._replace(topic="", timestamp=0) for each in old] == [
        each._replace(topic="", timestamp=0) for each in new
    ]


def test_topics_and_partitions_are_chosen_by_row(desk: Desk) -> None:
    desk.create("to-a", "to-b", partitions=2)
    frame = desk.spark.range(100).selectExpr(
        "if(id % 2 = 0, 'to-a', 'to-b') as topic",
        "cast(id % 2 as int) as partition",
        "cast(id as string) as value",
        "'high' as priority",
    )
    desk.write(frame)
    assert [(each.partition, each.priority) for each in desk.oracle("to-a")] == [(0, 1)] * 50
    assert {each.value for each in desk.oracle("to-b", partitions=[1])} == {str(n).encode() for n in range(1, 100, 2)}


def test_headers_are_known_by_their_names(desk: Desk) -> None:
    desk.create("swapped", partitions=1)
    headers = "array(named_struct('value', cast('v' as binary), 'key', 'k')) as headers"
    desk.write(desk.spark.range(1).selectExpr("'x' as value", headers), topic="swapped")
    assert [each.headers for each in desk.oracle("swapped")] == [(("k", b"v"),)]


def test_a_key_decides_as_it_does_for_the_client(desk: Desk) -> None:
    desk.create("keyed-client", "keyed-spark", partitions=5)
    desk.fill("keyed-client", 100)
    desk.write(desk.frame(subscribe="keyed-client").select("key", "value"), topic="keyed-spark")
    by_client = {(each.key, each.value): each.partition for each in desk.oracle("keyed-client")}
    assert {(each.key, each.value): each.partition for each in desk.oracle("keyed-spark")} == by_client


def test_a_write_that_fails_leaves_nothing(desk: Desk) -> None:
    desk.create("none", partitions=2)
    frame = desk.spark.range(1000).selectExpr("cast(id as string) as value", "cast(id as int) as partition")
    with pytest.raises(PySparkException, match="its partition is not one of its topic"):
        desk.write(frame, topic="none")
    assert desk.oracle("none") == []
    assert desk.client.call("list_transactions", state="ongoing")["transactions"] == []
    desk.write(frame.selectExpr("value"), topic="none")
    assert len(desk.oracle("none")) == 1000


def test_a_task_that_is_at_work_when_its_write_has_failed_leaves_nothing(desk: Desk) -> None:
    """It begins its transaction when the driver has dropped those of the others already."""
    writer = BatchWriter(sink_options({"bootstrap.servers": desk.wire, "topic": "none"}, is_stream=False), ROWS)
    producer_id = desk.client.call("init_producer")["producer_id"]
    aborting = threading.Thread(target=writer.abort, args=([],))
    aborting.start()
    time.sleep(LAST_TASKS_S / 2)
    late = desk.client.call("begin_transaction", producer_id=producer_id, name=writer._name)["transaction_id"]
    aborting.join()
    assert desk.client.describe_transaction(late).state == "aborted"


def test_a_batch_with_a_name_and_a_number_is_written_once(desk: Desk) -> None:
    desk.create("once")
    frame = desk.spark.range(100).selectExpr("cast(id as string) as value")
    for number in (0, 0, 1, 1):
        desk.write(frame, topic="once", transactionalId="nightly", batchId=number)
    assert len(desk.oracle("once")) == 200
    with pytest.raises(PySparkException, match="nightly"):
        desk.write(frame, topic="once", transactionalId="nightly", batchId=0)
    for rows in (0, 100):
        desk.write(frame.limit(rows), topic="once", transactionalId="nightly", batchId=2)
    assert len(desk.oracle("once")) == 200, "a batch may have nothing to write, and counts all the same"


class FailsAfterSending(GoQueueSource):
    """Every first attempt of a task dies when all its rows are with the broker."""

    @classmethod
    def name(cls) -> str:
        return "goqueue-fails"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return FailingBatch(sink_options(self.options, is_stream=False), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        return FailingStream(sink_options(self.options, is_stream=True), schema)


def _fail_at_first() -> None:
    context = TaskContext.get()
    if context is not None and context.attemptNumber() == 0:
        raise ZeroDivisionError("the first attempt")


class FailingBatch(BatchWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        done = super().write(iterator)
        _fail_at_first()
        return done


class FailingStream(StreamWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        done = super().write(iterator)
        _fail_at_first()
        return done


def test_tasks_that_fail_after_sending_do_not_double_anything(desk: Desk, tmp_path: Path) -> None:
    desk.spark.dataSource.register(FailsAfterSending)
    desk.create("retried-in", "retried-batch", "retried-stream", partitions=1)
    desk.fill("retried-in", 300)
    given = sorted(each.value or b"" for each in desk.oracle("retried-in"))
    options = {"bootstrap.servers": desk.wire}
    batch = desk.frame(subscribe="retried-in").select("key", "value").write.format("goqueue-fails")
    batch.options(**options, topic="retried-batch").mode("append").save()
    stream = desk.stream(subscribe="retried-in", maxOffsetsPerTrigger=200).load().select("key", "value").writeStream
    stream = stream.format("goqueue-fails").options(**options, topic="retried-stream")
    stream.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination()
    for topic in ("retried-batch", "retried-stream"):
        assert sorted(each.value or b"" for each in desk.oracle(topic)) == given
        dirty = desk.oracle(topic, isolation="read_uncommitted")
        assert len(dirty) == 600, "no attempt failed after it had sent: nothing is shown"
    assert desk.client.call("list_transactions", state="ongoing")["transactions"] == []


def test_a_task_may_take_longer_than_transactions_usually_do(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three times as long as the broker lets transactions live that say nothing of it."""
    monkeypatch.setattr(limits, "DEFAULT_TRANSACTION_MS", 5000)
    desk.create("slow", partitions=1)

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import time

        for batch in batches:
            yield batch
            time.sleep(5)

    rows = desk.spark.range(0, 3000, 1, 1).selectExpr("rpad(cast(id as string), 300, ' ') as value")
    producer_id = desk.client.call("init_producer")["producer_id"]
    usual = desk.client.call("begin_transaction", producer_id=producer_id)["transaction_id"]
    desk.spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1000")
    try:
        desk.write(rows.mapInArrow(wait, "value string"), topic="slow")
    finally:
        desk.spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert len(desk.oracle("slow")) == 3000
    assert desk.client.describe_transaction(usual).state == "aborted"


def test_spark_tells_tasks_which_query_and_batch_they_are_of(desk: Desk, tmp_path: Path) -> None:
    """What the sink stands on; Spark does not promise it."""
    desk.create("told", partitions=1)
    desk.fill("told", 10)
    names: list[Any] = []
    for _ in range(2):
        writer = desk.stream(subscribe="told").load().select("value").writeStream.format("goqueue")
        writer = writer.option("bootstrap.servers", desk.wire).option("topic", "told-out")
        if not names:
            desk.create("told-out", partitions=1)
        query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        query.awaitTermination()
        names.append(query.id)
        desk.fill("told", 10)
    assert names[0] == names[1]
    assert desk.client.call("transaction_token", name=str(names[0]))["number"] == 1
    assert len(desk.oracle("told-out")) == 20


@pytest.mark.parametrize(
    ("columns", "options", "complaint"),
    [
        ("'x' as value; -1 as partition", {"topic": "refused"}, "a partition is below 0"),
        ("'x' as value", {"topic": "refused", "transactionTimeout": "25h"}, "transactionTimeout is not from 1s to 24h"),
        ("id as value", {"topic": "refused"}, "the column value is bigint; it is text or bytes"),
        (
            "'x' as value; 'soon' as deliver_at",
            {"topic": "refused"},
            "the column deliver_at is string; it is a timestamp",
        ),
        ("'x' as value; 1.5 as partition", {"topic": "refused"}, "the column partition is .*; it is a whole number"),
        (
            "'x' as value; array(named_struct('name', 'n', 'value', 'v')) as headers",
            {"topic": "refused"},
            "an array of structs with a key",
        ),
        ("cast(id as string) as vlue", {"topic": "refused"}, "there is no column vlue"),
        ("cast(id as string) as key", {"topic": "refused"}, "a message has a column value"),
        ("cast(id as string) as value", {}, "there is neither"),
        ("cast(id as string) as value", {"topic": "nobody-made-this"}, "nobody-made-this"),
        ("cast(id as string) as value", {"topic": "refused", "batchId": "1"}, "set transactionalId"),
    ],
)
def test_what_cannot_be_written_is_told(desk: Desk, columns: str, options: dict[str, str], complaint: str) -> None:
    if "refused" not in desk.client.call("list_topics")["topics"]:
        desk.create("refused")
    with pytest.raises(PySparkException, match=complaint):
        desk.write(desk.spark.range(10).selectExpr(*columns.split("; ")), **options)
    assert desk.oracle("refused") == []
