"""What takes long and leaves a processor idle: begun with the session, over by the time its test comes.

Each has a broker of its own. What other tests notice of the slow one: until it has begun, transactions that do not say
how long they may take end after 5 s.
"""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import goqueue
from goqueue.model import limits
from tests.chaos.spark_kill import Copying, kill_drivers
from tests.spark.desk import Desk, open_desk
from tests.support.broker import DOORS, running_broker

KILLS = 3
_ROWS_AT_ONCE = "spark.sql.execution.arrow.maxRecordsPerBatch"


@contextmanager
def killing(folder: Path) -> Iterator["Future[Copying]"]:
    """Drivers that are killed one after the other, and what is left of their query."""
    with running_broker(folder, *DOORS) as broker, ThreadPoolExecutor(1) as pool:
        killed = pool.submit(kill_drivers, Copying(folder, broker.wire), KILLS)
        yield killed
        killed.result()  # also if the test that asks is not run


class Slow(NamedTuple):
    desk: Desk
    query: StreamingQuery
    usual: str
    """A transaction that says nothing of how long it may take."""


@contextmanager
def writing_slowly(spark: SparkSession, folder: Path) -> Iterator[Slow]:
    """One task that takes three times as long as the broker lets transactions live that say nothing of it."""

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import time

        for batch in batches:
            yield batch
            time.sleep(5)

    with open_desk(spark, folder / "broker") as desk, ThreadPoolExecutor(1) as pool:
        desk.create("slow-in", "slow", partitions=1)
        desk.fill("slow-in", 3000, size=300)
        spark.conf.set(_ROWS_AT_ONCE, "1000")
        frame = desk.stream(subscribe="slow-in").load().select("value").mapInArrow(wait, "value binary")
        writer = frame.writeStream.format("goqueue").option("bootstrap.servers", desk.wire).option("topic", "slow")
        writer = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
        patched = pytest.MonkeyPatch()
        patched.setattr(limits, "DEFAULT_TRANSACTION_MS", 5000)
        try:
            producer_id = desk.client.call("init_producer")["producer_id"]
            usual = desk.client.call("begin_transaction", producer_id=producer_id)["transaction_id"]
            query = writer.start()  # with the settings of now
        except BaseException:
            patched.undo()
            raise
        finally:
            spark.conf.unset(_ROWS_AT_ONCE)
        over = threading.Event()
        undone = pool.submit(_undo_when_begun, patched, desk.wire, str(query.id), over)
        yield Slow(desk, query, usual)
        query.stop()
        over.set()
        undone.result()


def _undo_when_begun(patched: pytest.MonkeyPatch, wire: str, name: str, over: threading.Event) -> None:
    """Transactions of other tests may take longer. Java is not asked for the query: it would be from another thread."""
    try:
        with goqueue.Client(wire) as client:
            while not over.is_set() and all(each.name != name for each in client.transactions().transactions):
                time.sleep(0.05)
    finally:
        patched.undo()
