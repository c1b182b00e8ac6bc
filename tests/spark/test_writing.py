"""Writes: everything of a row arrives, all rows or none, once however often tasks and drivers die."""

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StringType, StructType

from goqueue.model.errors import GoQueueError
from goqueue.spark import writing
from goqueue.spark.options import sink_options
from goqueue.spark.writing import BatchWriter, TaskDone
from tests.chaos.spark_kill import Copying
from tests.spark.ahead import KILLS, Slow
from tests.spark.desk import Desk
from tests.spark.failing import FailsAfterSending

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


class Waiting:
    """Time as `writing` knows it: it passes when somebody waits, and something happens meanwhile."""

    def __init__(self, happens: Callable[[], None]) -> None:
        self.waits = 0
        self._happens = happens

    def monotonic(self) -> float:
        return self.waits * writing.LAST_TASKS_S

    def sleep(self, _: float) -> None:
        self.waits += 1
        self._happens()


@pytest.mark.parametrize("messages", [[], [None], [TaskDone("n", None), None]])
def test_a_task_that_is_at_work_when_its_write_has_failed_leaves_nothing(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, messages: list[WriterCommitMessage | None]
) -> None:
    """It begins its transaction when the driver has dropped those of the others already."""
    writer = BatchWriter(sink_options({"bootstrap.servers": desk.wire, "topic": "none"}, is_stream=False), ROWS)
    producer_id = desk.client.call("init_producer")["producer_id"]
    begun: list[str] = []

    def begin() -> None:
        late = desk.client.call("begin_transaction", producer_id=producer_id, name=writer._name)
        begun.append(late["transaction_id"])

    waiting = Waiting(begin)
    monkeypatch.setattr(writing, "time", waiting)
    writer.abort(messages)
    assert waiting.waits == 1
    assert desk.client.describe_transaction(begun[0]).state == "aborted"


def test_when_all_tasks_were_done_nobody_waits_for_others(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = Waiting(lambda: None)
    monkeypatch.setattr(writing, "time", waiting)
    writer = BatchWriter(sink_options({"bootstrap.servers": desk.wire, "topic": "none"}, is_stream=False), ROWS)
    writer.abort([TaskDone("n", None), TaskDone("n", None)])
    assert waiting.waits == 0


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


def test_a_driver_killed_when_the_sink_has_committed_doubles_nothing(
    spark: SparkSession, killed: "Future[Copying]"
) -> None:
    copying = killed.result()
    copying.run_in(spark, partitions=2)
    outcome = copying.outcome(KILLS)
    assert outcome.sent == outcome.found == outcome.distinct == 400
    assert outcome.staged == 700, "a batch was not written again: nothing is shown"


def test_a_task_may_take_longer_than_transactions_usually_do(slow: Slow) -> None:
    slow.query.awaitTermination()
    progress = slow.query.lastProgress
    assert progress is not None
    assert progress["durationMs"]["addBatch"] > 15_000
    given, found = slow.desk.oracle("slow-in"), slow.desk.oracle("slow")
    assert sorted(each.value or b"" for each in found) == sorted(each.value or b"" for each in given)
    dirty = slow.desk.oracle("slow", isolation="read_uncommitted")
    assert len(dirty) == len(given), "its transaction was over before it was, and it was done again"
    assert slow.desk.client.describe_transaction(slow.usual).state == "aborted"


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


def test_what_cannot_be_written_is_told_before_anything_is(desk: Desk) -> None:
    """The rest of it is told without Spark: `tests/unit/spark/test_columns.py` and `test_options.py`."""
    desk.create("refused")
    with pytest.raises(PySparkException, match="there is no column vlue"):
        desk.write(desk.spark.range(10).selectExpr("cast(id as string) as vlue"), topic="refused")
    assert desk.oracle("refused") == []


def test_a_task_tells_what_the_broker_does_not_take(desk: Desk) -> None:
    """As Spark runs it, without Spark, which would try it again."""
    options = sink_options({"bootstrap.servers": desk.wire, "topic": "nobody-made-this"}, is_stream=False)
    with pytest.raises(GoQueueError, match="nobody-made-this"):
        BatchWriter(options, ROWS).write(iter([pa.RecordBatch.from_pydict({"value": ["x"]})]))
    assert desk.client.call("list_transactions", state="ongoing")["transactions"] == []
