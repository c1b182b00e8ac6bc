"""Which columns a frame may have that is written to a topic; and what tasks refuse of their rows."""

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, BinaryType, DataType, DecimalType, LongType, StringType, StructType

from goqueue.model.errors import InvalidRequest
from goqueue.spark.columns import check_columns, to_rows
from goqueue.spark.options import sink_options
from goqueue.spark.rows import full_schema


def check(columns: dict[str, DataType], **options: str) -> None:
    schema = StructType()
    for name, kind in columns.items():
        schema.add(name, kind)
    check_columns(schema, sink_options(options, is_stream=False))


TEXT = StringType()
PAIR = StructType().add("name", TEXT).add("value", TEXT)


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ({"value": LongType()}, "the column value is bigint; it is text or bytes"),
        ({"value": TEXT, "deliver_at": TEXT}, "the column deliver_at is string; it is a timestamp"),
        (
            {"value": TEXT, "partition": DecimalType(2, 1)},
            r"the column partition is decimal\(2,1\); it is a whole number",
        ),
        ({"value": TEXT, "headers": ArrayType(PAIR)}, "an array of structs with a key"),
        ({"value": TEXT, "headers": ArrayType(TEXT)}, "an array of structs with a key"),
        ({"vlue": TEXT}, "there is no column vlue"),
        ({"key": TEXT}, "a message has a column value"),
    ],
)
def test_what_cannot_be_a_message_is_refused(columns: dict[str, DataType], complaint: str) -> None:
    with pytest.raises(InvalidRequest, match=complaint):
        check(columns, topic="orders")


def test_a_topic_is_named_by_an_option_or_by_a_column() -> None:
    with pytest.raises(InvalidRequest, match="there is neither"):
        check({"value": TEXT})
    check({"value": TEXT}, topic="orders")
    check({"value": BinaryType(), "topic": TEXT})


def test_what_was_read_can_be_written() -> None:
    check_columns(full_schema(include_headers=True), sink_options({}, is_stream=True))


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ({"value": ["x"], "partition": [-1]}, "a partition is below 0"),
        ({"value": ["x"], "priority": ["urgent"]}, "a priority is 'urgent'; it is one of critical, high"),
        ({"value": ["x"], "priority": [5]}, "a priority is 5; it is from 0 to 4"),
        ({"value": ["x"], "headers": [[{"key": "k", "value": None}]]}, "a value of a header is null"),
    ],
)
def test_what_a_row_cannot_have_is_refused(columns: dict[str, list[object]], complaint: str) -> None:
    with pytest.raises(InvalidRequest, match=complaint):
        to_rows(pa.RecordBatch.from_pydict(columns))
