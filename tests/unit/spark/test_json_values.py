"""Structs of JSON schemas, and values read into them."""

import datetime
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from goqueue.model.errors import InvalidRequest
from goqueue.spark.json_values import BadValues, JsonValues, struct_of

ORDER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "price": {"type": ["number", "null"]},
        "paid": {"type": "boolean"},
        "name": {"enum": ["a", "b", None]},
        "when": {"type": "string", "format": "date-time"},
        "day": {"type": "string", "format": "date"},
        "items": {"type": "array", "items": {"$ref": "#/$defs/item"}},
        "tags": {"type": "object", "additionalProperties": {"type": "integer"}},
        "note": {"anyOf": [{"type": "null"}, {"type": "string"}]},
    },
    "required": ["id"],
    "$defs": {"item": {"properties": {"sku": {"const": "x"}}}},
}


def test_a_schema_becomes_a_struct(tmp_path: Path) -> None:
    found = struct_of(json.dumps(ORDER))
    assert found.simpleString() == (
        "struct<id:bigint,price:double,paid:boolean,name:string,when:timestamp,day:date,"
        "items:array<struct<sku:string>>,tags:map<string,bigint>,note:string>"
    )
    (tmp_path / "order.json").write_text(json.dumps(ORDER))
    assert struct_of(str(tmp_path / "order.json")) == found


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        ("no/such/file", "neither a JSON schema nor a file"),
        ("{", "is no JSON"),
        ('{"type": "string"}', "no object with properties"),
        ('{"type": "object"}', "names no properties"),
        ('{"properties": {"a": {"type": ["string", "integer"]}}}', "2 types at value.a"),
        ('{"properties": {"a": {}}}', "no types at value.a"),
        ('{"properties": {"a": true}}', "says nothing of value.a"),
        ('{"properties": {"a": {"type": "text"}}}', "'text' at value.a"),
        ('{"properties": {"a": {"type": "array"}}}', r"says nothing of value.a\[\]"),
        ('{"properties": {"a": {"oneOf": [{"type": "string"}, {"type": "integer"}]}}}', "oneOf at value.a"),
        ('{"properties": {"a": {"$ref": "#/$defs/b"}}}', "no such part"),
        ('{"properties": {"a": {"$ref": "other.json"}}}', "its own parts"),
        ('{"properties": {"a": {"$ref": "#"}}}', "its own parts"),
        ('{"properties": {"a": {"$ref": "#/properties/a"}}}', "deeper than 32"),
    ],
)
def test_a_schema_that_describes_no_columns_is_refused(schema: str, complaint: str) -> None:
    with pytest.raises(InvalidRequest, match=complaint):
        struct_of(schema)


def read(values: list[bytes | None], bad: BadValues = "fail") -> list[Any]:
    found = JsonValues(struct_of(json.dumps(ORDER)), bad).read(
        pa.array(values, pa.binary()), lambda row: f"orders:0:{row}"
    )
    return list(found.to_pylist())


def test_values_are_read() -> None:
    whole = {
        "id": 1.0, "price": 2, "paid": True, "name": "a", "when": "2026-01-31T12:00:00.5+02:00", "day": "2026-02-01",
        "items": [{"sku": "x", "y": 1}, None], "tags": {"k": 1, "l": None}, "note": None, "more": [1],
    }  # fmt: skip
    first, none, least = read([json.dumps(whole, indent=1).encode(), None, b"{}"])
    assert first == {
        "id": 1, "price": 2.0, "paid": True, "name": "a",
        "when": datetime.datetime(2026, 1, 31, 10, 0, 0, 500_000, tzinfo=datetime.UTC),
        "day": datetime.date(2026, 2, 1),
        "items": [{"sku": "x"}, None], "tags": [("k", 1), ("l", None)], "note": None,
    }  # fmt: skip
    assert none is None
    assert set(least.values()) == {None}


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (b"", "orders:0:1"),
        (b"[]", "is not an object"),
        (b'{"id": 1} x', "orders:0:1"),
        (b'{"id": "1"}', 'id: "1" is not a whole number'),
        (b'{"id": 9223372036854775808}', "whole number of 64 bits"),
        (b'{"id": true}', "whole number"),
        (b'{"price": 1' + b"0" * 400 + b"}", "orders:0:1"),
        (b'{"more": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "orders:0:1"),
        (b'{"price": "x"}', "is not a number"),
        (b'{"paid": 1}', "true or false"),
        (b'{"note": 1}', "is not a string"),
        (b'{"when": "noon"}', "is not a time"),
        (b'{"day": 5}', "is not a date"),
        (b'{"items": {}}', "is not an array"),
        (b'{"items": [{"sku": 1}]}', "items: sku: 1 is not a string"),
        (b'{"tags": []}', "is not an object"),
        (b"\xff", "orders:0:1"),
    ],
)
def test_a_bad_value_is_told_or_is_null(value: bytes, complaint: str) -> None:
    with pytest.raises(InvalidRequest, match=complaint):
        read([b"{}", value])
    good, bad = read([b"{}", value], "null")
    assert good is not None
    assert bad is None
