"""Writing to topics, exactly once.

Every task publishes in a transaction of its own, begun under one name, and leaves it open. When all tasks are done the
driver commits the transactions of those that count, all at once, under a number that grows: the same number again does
nothing. Then what is still open under the name is aborted. A streaming query's name is its id, which outlives restarts,
and its numbers are those of its batches; a batch write has a name of its own.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from goqueue.model import limits
from goqueue.model.errors import InvalidRequest
from goqueue.spark import asking
from goqueue.spark.columns import by_topic, check_columns, to_rows
from goqueue.spark.options import Address, SinkOptions

log = logging.getLogger("goqueue.spark")

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_BYTES: Final = 1 * limits.MIB
LAST_TASKS_S: Final = 4.0
"""For so long tasks of a write that has failed may be at work: Spark kills them after 2 s."""
_LOOK_AGAIN_S: Final = 0.25


class Staged(NamedTuple):
    """What a task left open."""

    transaction_id: str
    messages: int


class TaskDone(WriterCommitMessage):
    """`staged` is None when a task had nothing to write."""

    def __init__(self, name: str, staged: Staged | None) -> None:
        self.name = name
        self.staged = staged


# ---------------------------------------------------------------- what a task does


async def _stage(options: SinkOptions, name: str, batches: Iterator[pa.RecordBatch]) -> Staged | None:
    first = next((batch for batch in batches if batch.num_rows), None)
    if first is None:
        return None
    async with (
        asking.connect_async(options.address) as client,
        client.producer(acks="all", batch_bytes=BATCH_BYTES) as producer,
        producer.transaction(name=name, timeout=options.timeout_s) as transaction,
    ):
        batch: pa.RecordBatch | None = first
        while batch is not None:
            if batch.num_rows:
                for topic, rows in by_topic(batch, options.topic):
                    await producer.enqueue_columns(topic, to_rows(rows))
            batch = await asyncio.to_thread(next, batches, None)  # minutes, perhaps: answers come in meanwhile
        return Staged(*await transaction.prepare())


def stage(options: SinkOptions, name: str, batches: Iterator[pa.RecordBatch]) -> TaskDone:
    return TaskDone(name, asyncio.run(_stage(options, name, batches)))


# ---------------------------------------------------------------- what the driver does


def commit(address: Address, name: str, messages: Sequence[WriterCommitMessage | None], number: int) -> None:
    """What counts, as one; then what failed attempts left open under the name is dropped, lest readers wait for it."""
    staged = [each.staged for each in _done(messages) if each.staged is not None]
    if len(staged) > limits.MAX_COMMITTED_TOGETHER:
        raise InvalidRequest(
            f"{len(staged)} tasks had something to write, and {limits.MAX_COMMITTED_TOGETHER} may have; coalesce the "
            "rows first"
        )
    with asking.connect(address) as client:
        committed = client.commit_many(
            name,
            number,
            [each.transaction_id for each in staged],
            messages={each.transaction_id: each.messages for each in staged},
        )
        if committed.duplicate:
            log.warning("batch %d of %s was written before: nothing was written again", number, name)
        client.abort_transactions(name)


def abort(address: Address, name: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Spark says that a write has failed while some of its tasks are still at work: until it has ended them all.

    When all of them were done, and the commit failed, nothing is at work any more, but for copies of tasks that Spark
    has started on speculation.
    """
    is_done = bool(messages) and all(each is not None for each in messages)
    end = time.monotonic() + (0.0 if is_done else LAST_TASKS_S)
    with asking.connect(address) as client:
        while True:
            client.abort_transactions(name)
            if time.monotonic() >= end:
                return
            time.sleep(_LOOK_AGAIN_S)


def _done(messages: Sequence[WriterCommitMessage | None]) -> list[TaskDone]:
    return [each for each in messages if isinstance(each, TaskDone)]


class BatchWriter(DataSourceArrowWriter):
    """All rows, or none. Made on the driver, and handed to tasks with its name."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_columns(schema, options)
        self._options = options
        self._name = options.name or f"batch-{uuid.uuid4()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return stage(self._options, self._name, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if messages or self._options.name is not None:
            commit(self._options.address, self._name, messages, self._options.number)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        abort(self._options.address, self._name, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """Every micro-batch once."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_columns(schema, options)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return stage(self._options, self._options.name or _query_id(), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        name = self._name(messages)
        if name is not None:
            commit(self._options.address, name, messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        name = self._name(messages)
        if name is not None:
            abort(self._options.address, name, messages)

    def _name(self, messages: Sequence[WriterCommitMessage | None]) -> str | None:
        """Only tasks know which query it is. None if none of them was done: then the next batch drops what is left."""
        return self._options.name or next((each.name for each in _done(messages)), None)


def _query_id() -> str:
    """What Spark calls the query, the same after every restart from its checkpoint."""
    context = TaskContext.get()
    query_id = None if context is None else context.getLocalProperty(QUERY_ID)
    if not query_id:
        raise InvalidRequest(
            f"Spark does not say which query this is ({QUERY_ID}), so nothing can be written exactly once; set the "
            "option transactionalId to a name of the query's own"
        )
    return query_id
