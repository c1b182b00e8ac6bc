"""From the columns of a frame to those of messages: what they have to be, and how tasks lay them out."""

from array import array
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegralType,
    StringType,
    StructType,
    TimestampType,
)

from goqueue.client.outgoing import OutgoingColumns
from goqueue.codec import Field
from goqueue.codec.layout import HeaderColumns, Numbers, Pieces
from goqueue.model.errors import InvalidRequest
from goqueue.model.names import check_topic_name
from goqueue.model.record import Lane
from goqueue.spark.options import SinkOptions

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


class _Column(NamedTuple):
    types: tuple[type[DataType], ...]
    wanted: str


_BYTES: Final = _Column((StringType, BinaryType), "text or bytes: cast it, or use to_json")
_TIME: Final = _Column((TimestampType,), "a timestamp: cast it")
_COLUMNS: Final = {
    "topic": _Column((StringType,), "text"),
    "partition": _Column((IntegralType,), "a whole number: cast it"),
    "key": _BYTES,
    "value": _BYTES,
    "headers": _Column((ArrayType,), "an array of structs with a key, which is text, and a value, text or bytes"),
    "priority": _Column((StringType, IntegralType), "the name of a lane, or 0 to 4"),
    **dict.fromkeys(_TIMES, _TIME),
}
_HEADER: Final[dict[str, tuple[type[DataType], ...]]] = {"key": (StringType,), "value": _BYTES.types}


def check_columns(schema: StructType, options: SinkOptions) -> None:
    """On the driver: what tasks find is as it should be."""
    names = schema.fieldNames()
    for field in schema.fields:
        if field.name in _IGNORED:
            continue
        column = _COLUMNS.get(field.name)
        if column is None:
            raise InvalidRequest(f"there is no column {field.name} in a message; there are {', '.join(_COLUMNS)}")
        fits = isinstance(field.dataType, column.types)
        if not fits or (isinstance(field.dataType, ArrayType) and not _is_header(field.dataType.elementType)):
            raise InvalidRequest(f"the column {field.name} is {field.dataType.simpleString()}; it is {column.wanted}")
    if "value" not in names:
        raise InvalidRequest("a message has a column value; for messages without one, make it null")
    if options.topic is None and "topic" not in names:
        raise InvalidRequest("where to write is said by the option topic, or by a column topic; there is neither")


def _is_header(element: DataType) -> bool:
    if not isinstance(element, StructType):
        return False
    types = {field.name: field.dataType for field in element.fields}
    return types.keys() == _HEADER.keys() and all(isinstance(types[name], kinds) for name, kinds in _HEADER.items())


# ---------------------------------------------------------------- from Arrow to columns


def _whole(column: pa.Array) -> pa.Array:
    """One that begins at its buffers' beginning."""
    return column if column.offset == 0 else pa.concat_arrays([column])


def _pieces(column: pa.Array) -> Pieces:
    if pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type):
        column = column.cast(pa.binary())
    present, bounds, data = _whole(column).buffers()
    return Pieces(present, bounds if bounds is not None else bytes(4), data if data is not None else b"")


def _headers(column: pa.Array) -> HeaderColumns:
    if column.null_count:
        column = pc.if_else(column.is_valid(), column, pa.scalar([], column.type))
    column = _whole(column)
    pairs = column.values
    names, contents = pairs.field("key"), pairs.field("value")
    for part, what in ((pairs, "header"), (names, "name of a header"), (contents, "value of a header")):
        if part.null_count:
            raise InvalidRequest(f"a {what} is null; leave the header out, or make it empty")
    return HeaderColumns(column.buffers()[1], _pieces(names), _pieces(contents))


def _lanes(column: pa.Array | None, count: int) -> Any:
    if column is None:
        return bytes([Lane.NORMAL]) * count
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        words = pa.array([*_LANES], column.type)
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
    if pc.any(pc.less(column, 0)).as_py():
        raise InvalidRequest("a partition is below 0; make it null for rows that go where their key says")
    return _whole(pc.fill_null(column.cast(pa.int32()), -1)).buffers()[1]


def _moments(column: pa.Array) -> Numbers:
    column = _whole(pc.floor_temporal(column, unit="millisecond").cast(pa.timestamp("ms", tz=column.type.tz)))
    present, data = column.buffers()
    return Numbers(present, data)


def to_rows(batch: pa.RecordBatch) -> OutgoingColumns:
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    count = batch.num_rows
    return OutgoingColumns(
        count,
        keys=_pieces(columns["key"]) if "key" in columns else None,
        values=_pieces(columns["value"]),
        headers=_headers(columns["headers"]) if "headers" in columns else None,
        lanes=_lanes(columns.get("priority"), count),
        fields={field: _moments(columns[name]) for name, field in _TIMES.items() if name in columns},
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
