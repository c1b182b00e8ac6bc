"""Writing to topics, exactly once.

Every task publishes in a transaction of its own, begun under one name, and leaves it open. When all tasks are done the
driver commits the transactions of those that count, all at once, under a number that grows: the same number again does
nothing. Then what is still open under the name is aborted. A streaming query's name is its id, which
outlives restarts, and its numbers are those of its batches; a batch write has a name of its own.
"""

import asyncio
import logging
import uuid
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from goqueue.client.client import AsyncClient
from goqueue.client.outgoing import OutgoingColumns
from goqueue.codec import Field
from goqueue.codec.layout import HeaderColumns, Numbers, Pieces
from goqueue.model import limits
from goqueue.model.errors import InvalidRequest
from goqueue.model.names import check_topic_name
from goqueue.model.record import Lane
from goqueue.spark import asking
from goqueue.spark.options import Address, SinkOptions

log = logging.getLogger("goqueue.spark")

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_BYTES: Final = 1 * limits.MIB
_LANES: Final = {lane.name.lower(): int(lane) for lane in Lane}
_TIMES: Final = {
    "deliver_at": Field.DELIVER_AT,
    "expires_at": Field.EXPIRES_AT,
    "event_time": Field.EVENT_TIME,
}
_IGNORED: Final = frozenset(
    {"offset", "timestamp", "message_id", "trace_id", "producer_id", "producer_epoch", "sequence"}
)
"""Columns of the source that say where a message was: the broker gives new ones."""
_KNOWN: Final = ("topic", "partition", "key", "value", "headers", "priority", *_TIMES)


class Staged(NamedTuple):
    """What a task left open."""

    transaction_id: str
    messages: int


class TaskDone(WriterCommitMessage):
    """`staged` is None when a task had nothing to write."""

    def __init__(self, name: str, staged: Staged | None) -> None:
        self.name = name
        self.staged = staged


def check_columns(schema: StructType, options: SinkOptions) -> None:
    names = schema.fieldNames()
    strange = [name for name in names if name not in _KNOWN and name not in _IGNORED]
    if strange:
        raise InvalidRequest(f"there is no column {strange[0]} in a message; there are {', '.join(_KNOWN)}")
    if "value" not in names:
        raise InvalidRequest("a message has a column value; for messages without one, make it null")
    if options.topic is None and "topic" not in names:
        raise InvalidRequest("where to write is said by the option topic, or by a column topic; there is neither")


# ---------------------------------------------------------------- from Arrow to columns


def _whole(column: pa.Array) -> pa.Array:
    """One that begins at its buffers' beginning."""
    return column if column.offset == 0 else pa.concat_arrays([column])


def _pieces(column: pa.Array) -> Pieces:
    column = _whole(column)
    present, bounds, data = column.buffers()
    return Pieces(present, bounds if bounds is not None else bytes(4), data if data is not None else b"")


def _bytes(column: pa.Array, name: str) -> pa.Array:
    if pa.types.is_binary(column.type) or pa.types.is_string(column.type):
        return column
    if pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type):
        return column.cast(pa.binary())
    raise InvalidRequest(f"the column {name} is {column.type}; it is text or bytes: cast it, or use to_json")


def _headers(column: pa.Array) -> HeaderColumns:
    if column.null_count:
        column = pc.if_else(column.is_valid(), column, pa.scalar([], column.type))
    column = _whole(column)
    pairs = column.values
    names, contents = pairs.field(0), pairs.field(1)
    for part, what in ((pairs, "header"), (names, "name of a header"), (contents, "value of a header")):
        if part.null_count:
            raise InvalidRequest(f"a {what} is null; leave the header out, or make it empty")
    return HeaderColumns(column.buffers()[1], _pieces(names), _pieces(_bytes(contents, "headers")))


def _lanes(column: pa.Array | None, count: int) -> Any:
    if column is None:
        return bytes([Lane.NORMAL]) * count
    if pa.types.is_string(column.type):
        words = pa.array([*_LANES])
        found = pc.index_in(column, value_set=words)
        bad = pc.and_(pc.is_null(found), column.is_valid())
        if pc.any(bad).as_py():
            raise InvalidRequest(f"a priority is {column.filter(bad)[0].as_py()!r}; it is one of {', '.join(_LANES)}")
        column = pa.array([*_LANES.values()], pa.uint8()).take(found)
    column = pc.fill_null(column.cast(pa.int64()), int(Lane.NORMAL))
    outside = pc.or_(pc.less(column, 0), pc.greater(column, 4))
    if pc.any(outside).as_py():
        raise InvalidRequest(f"a priority is {column.filter(outside)[0].as_py()}; it is from 0 to 4")
    return _whole(column.cast(pa.uint8())).buffers()[1]


def _partitions(column: pa.Array | None, count: int) -> Any:
    if column is None:
        return array("i", [-1]) * count
    return _whole(pc.fill_null(column.cast(pa.int32()), -1)).buffers()[1]


def _moments(column: pa.Array, name: str) -> Numbers:
    if not pa.types.is_timestamp(column.type):
        raise InvalidRequest(f"the column {name} is {column.type}; it is a timestamp")
    column = _whole(pc.floor_temporal(column, unit="millisecond").cast(pa.timestamp("ms", tz=column.type.tz)))
    present, data = column.buffers()
    return Numbers(present, data)


def to_rows(batch: pa.RecordBatch) -> OutgoingColumns:
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    count = batch.num_rows
    return OutgoingColumns(
        count,
        keys=_pieces(_bytes(columns["key"], "key")) if "key" in columns else None,
        values=_pieces(_bytes(columns["value"], "value")),
        headers=_headers(columns["headers"]) if "headers" in columns else None,
        lanes=_lanes(columns.get("priority"), count),
        fields={field: _moments(columns[name], name) for name, field in _TIMES.items() if name in columns},
        partitions=_partitions(columns.get("partition"), count),
    )


def by_topic(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each topic; the option wins over the column."""
    if topic is not None:
        yield topic, batch
        return
    names = batch.column("topic")
    if names.null_count:
        raise InvalidRequest("a row has no topic; name one in its column topic, or in the option topic for all rows")
    distinct = names.unique().to_pylist()
    for name in distinct:
        check_topic_name(name)
        yield name, batch if len(distinct) == 1 else batch.filter(pc.equal(names, name))


# ---------------------------------------------------------------- what a task does


async def _stage(options: SinkOptions, name: str, batches: Iterator[pa.RecordBatch]) -> Staged | None:
    first = next((batch for batch in batches if batch.num_rows), None)
    if first is None:
        return None
    address = options.address
    async with (
        AsyncClient(
            address.servers,
            client_id=address.client_id,
            connect_timeout=address.connect_timeout_s,
            request_timeout=address.request_timeout_s,
        ) as client,
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


def commit(address: Address, messages: Sequence[WriterCommitMessage | None], number: int) -> None:
    """What counts, as one; then what failed attempts left open under the name is dropped, lest readers wait for it."""
    done = [each for each in messages if isinstance(each, TaskDone)]
    staged = [each.staged for each in done if each.staged is not None]
    if not done:
        return
    with asking.connect(address) as client:
        if staged:
            committed = client.commit_many(
                done[0].name,
                number,
                [each.transaction_id for each in staged],
                messages={each.transaction_id: each.messages for each in staged},
            )
            if committed.duplicate:
                log.warning("batch %d of %s was written before: nothing was written again", number, done[0].name)
        client.abort_transactions(done[0].name)


def abort(address: Address, name: str) -> None:
    with asking.connect(address) as client:
        client.abort_transactions(name)


class BatchWriter(DataSourceArrowWriter):
    """All rows, or none. Made on the driver, and handed to tasks with its name."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_columns(schema, options)
        self._options = options
        self._name = options.name or f"batch-{uuid.uuid4()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return stage(self._options, self._name, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        commit(self._options.address, messages, self._options.number)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        abort(self._options.address, self._name)


class StreamWriter(DataSourceStreamArrowWriter):
    """Every micro-batch once."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_columns(schema, options)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return stage(self._options, self._options.name or _query_id(), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        commit(self._options.address, messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        done = [each for each in messages if isinstance(each, TaskDone)]
        name = self._options.name or (done[0].name if done else None)
        if name is not None:
            abort(self._options.address, name)


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
