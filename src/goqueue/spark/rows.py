"""Messages as Spark sees them: which columns there are, and Arrow batches of them.

The codec lays columns out as Arrow does, so they are taken over as they are; nothing here looks at single messages.
"""

from array import array
from collections.abc import Callable
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from goqueue import codec
from goqueue.codec import Field
from goqueue.codec.layout import HeaderColumns, Numbers, Pieces, RecordColumns
from goqueue.model.errors import InvalidRequest
from goqueue.model.names import message_id
from goqueue.spark.json_values import BadValues, JsonValues

HEADERS: Final = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
_TRACEPARENT: Final = "^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$"
NOTHING_HIDDEN: Final = array("q")


class Place(NamedTuple):
    """Where messages are from."""

    topic: str
    partition: int


def _numbers(kind: pa.DataType, numbers: Numbers, count: int) -> pa.Array:
    present = None if numbers.present is None else pa.py_buffer(numbers.present)
    return pa.Array.from_buffers(kind, count, [present, pa.py_buffer(numbers.data)])


def _pieces(kind: pa.DataType, pieces: Pieces | None, count: int) -> pa.Array:
    assert pieces is not None
    present = None if pieces.present is None else pa.py_buffer(pieces.present)
    return pa.Array.from_buffers(kind, count, [present, pa.py_buffer(pieces.bounds), pa.py_buffer(pieces.data)])


def _moments(numbers: Numbers, count: int) -> pa.Array:
    """Milliseconds as Spark's microseconds; times that no calendar has become its last one."""
    found = _numbers(pa.int64(), numbers, count)
    if found.null_count == count:  # as most of them are
        return pa.nulls(count, pa.timestamp("us", tz="UTC"))
    found = pc.min_element_wise(pc.max_element_wise(found, -_LAST_MS, skip_nulls=False), _LAST_MS, skip_nulls=False)
    return pc.multiply(found, 1000).cast(pa.timestamp("us", tz="UTC"))


_LAST_MS: Final = 253_402_300_799_999
"""The end of the year 9999, in milliseconds."""


def _repeat(value: str | int, kind: pa.DataType, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), count)


def _headers(found: HeaderColumns | None, count: int) -> pa.Array:
    assert found is not None
    total = len(found.names.bounds) // 4 - 1
    pairs = pa.StructArray.from_arrays(
        [_pieces(pa.string(), found.names, total), _pieces(pa.binary(), found.contents, total)],
        fields=[pa.field("key", pa.string()), pa.field("value", pa.binary())],
    )
    kind = pa.list_(pa.field("element", pairs.type))
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(found.bounds)], children=[pairs])


def _message_ids(place: Place, found: RecordColumns) -> pa.Array:
    prefix = message_id(place.topic, place.partition, 0)[:-1]
    offsets = _numbers(pa.int64(), Numbers(None, found.offsets), found.rows)
    return pc.binary_join_element_wise(prefix, offsets.cast(pa.string()), "")


def _trace_ids(found: RecordColumns) -> pa.Array:
    """Of the header that W3C has for it; nothing without one."""
    headers = _headers(found.headers, found.rows)
    pairs = headers.flatten()
    if not len(pairs):
        return pa.nulls(found.rows, pa.string())
    parents = pc.list_parent_indices(headers)
    is_trace = pc.and_(
        pc.equal(pairs.field("key"), "traceparent"), pc.match_substring_regex(pairs.field("value"), _TRACEPARENT)
    )
    rows = parents.filter(is_trace)
    contents = pairs.field("value").filter(is_trace).cast(pa.string())
    ids = pc.utf8_slice_codeunits(contents, 3, 35)
    at = pc.index_in(pa.array(range(found.rows), rows.type), rows)
    return ids.take(at)


class Column(NamedTuple):
    """One of the columns there are, and what of a record it takes."""

    kind: DataType
    build: Callable[[Place, RecordColumns], pa.Array]
    fields: tuple[Field, ...] = ()
    keys: bool = False
    values: bool = False
    headers: bool = False


def _field(field: Field) -> Callable[[Place, RecordColumns], pa.Array]:
    return lambda _, found: _moments(found.fields[field], found.rows)


def _packed(found: RecordColumns) -> pa.Array:
    return _numbers(pa.int64(), found.fields[Field.PRODUCER_SEQUENCE], found.rows)


COLUMNS: Final[dict[str, Column]] = {
    "topic": Column(StringType(), lambda place, found: _repeat(place.topic, pa.string(), found.rows)),
    "partition": Column(IntegerType(), lambda place, found: _repeat(place.partition, pa.int32(), found.rows)),
    "offset": Column(LongType(), lambda _, found: _numbers(pa.int64(), Numbers(None, found.offsets), found.rows)),
    "timestamp": Column(TimestampType(), lambda _, found: _moments(Numbers(None, found.timestamps), found.rows)),
    "key": Column(BinaryType(), lambda _, found: _pieces(pa.binary(), found.keys, found.rows), keys=True),
    "value": Column(BinaryType(), lambda _, found: _pieces(pa.binary(), found.values, found.rows), values=True),
    "headers": Column(HEADERS, lambda _, found: _headers(found.headers, found.rows), headers=True),
    "priority": Column(
        IntegerType(),
        lambda _, found: pa.Array.from_buffers(pa.uint8(), found.rows, [None, pa.py_buffer(found.lanes)]).cast(
            pa.int32()
        ),
    ),
    "message_id": Column(StringType(), _message_ids),
    "trace_id": Column(StringType(), lambda _, found: _trace_ids(found), headers=True),
    "deliver_at": Column(TimestampType(), _field(Field.DELIVER_AT), (Field.DELIVER_AT,)),
    "expires_at": Column(TimestampType(), _field(Field.EXPIRES_AT), (Field.EXPIRES_AT,)),
    "event_time": Column(TimestampType(), _field(Field.EVENT_TIME), (Field.EVENT_TIME,)),
    "producer_id": Column(
        LongType(),
        lambda _, found: _numbers(pa.int64(), found.fields[Field.PRODUCER_ID], found.rows),
        (Field.PRODUCER_ID,),
    ),
    "producer_epoch": Column(
        IntegerType(), lambda _, found: pc.shift_right(_packed(found), 48).cast(pa.int32()), (Field.PRODUCER_SEQUENCE,)
    ),
    "sequence": Column(
        IntegerType(),
        lambda _, found: pc.bit_wise_and(_packed(found), 0x7FFF_FFFF).cast(pa.int32()),
        (Field.PRODUCER_SEQUENCE,),
    ),
}
"""Every column of the source, in the order in which it has them."""


def full_schema(*, include_headers: bool, value: DataType | None = None) -> StructType:
    """What is read unless columns are chosen; `value` is what values are parsed to."""
    return StructType(
        [
            StructField(name, value if name == "value" and value is not None else column.kind, True)
            for name, column in COLUMNS.items()
            if include_headers or name != "headers"
        ]
    )


def _name_of(place: Place, found: RecordColumns, row: int) -> str:
    return message_id(place.topic, place.partition, memoryview(found.offsets).cast("q")[row])


def _check(field: StructField, json: BadValues | None) -> None:
    if field.name not in COLUMNS:
        raise InvalidRequest(f"there is no column {field.name}; there are {', '.join(COLUMNS)}")
    if field.name == "value" and isinstance(field.dataType, StructType):
        if json is None:
            raise InvalidRequest("values are bytes; to read them into a struct, set value.format to json")
    elif field.dataType != COLUMNS[field.name].kind:
        raise InvalidRequest(
            f"the column {field.name} is {COLUMNS[field.name].kind.simpleString()}, not "
            f"{field.dataType.simpleString()}; give .schema() columns as they are, and cast them afterwards"
        )


class Rows:
    """Makes batches of a schema: some of the columns, in any order. InvalidRequest for a schema that cannot be."""

    def __init__(self, schema: StructType, json: BadValues | None = None) -> None:
        self._parsed: dict[int, JsonValues] = {}
        for at, field in enumerate(schema.fields):
            _check(field, json)
            if json is not None and isinstance(field.dataType, StructType):
                self._parsed[at] = JsonValues(field.dataType, json)
        self.schema = to_arrow_schema(schema, timezone="UTC")
        self._columns = [COLUMNS[name] for name in schema.fieldNames()]
        self._keys = any(column.keys for column in self._columns)
        self._values = any(column.values for column in self._columns)
        self._headers = any(column.headers for column in self._columns)
        self._fields = sorted({field for column in self._columns for field in column.fields})

    def batch(
        self, place: Place, block: memoryview, start: int, end: int, hidden: "array[int]" = NOTHING_HIDDEN
    ) -> pa.RecordBatch:
        """The block's messages from one offset up to another, without those hidden (pairs of offsets: from, to)."""
        found = codec.to_columns(
            block,
            from_offset=start,
            to_offset=end,
            hidden=hidden,
            keys=self._keys,
            values=self._values,
            headers=self._headers,
            fields=self._fields,
        )
        arrays = [column.build(place, found) for column in self._columns]
        for at, values in self._parsed.items():
            arrays[at] = values.read(arrays[at], lambda row: _name_of(place, found, row))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)
