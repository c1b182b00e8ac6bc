"""Values in JSON as structs: the type a JSON schema describes, and values read into it.

A schema gives the types; whether values keep to the rest of it (what is required, ranges, patterns) is not looked at.
One by one: Arrow's own reader takes all at once and is no faster, and cannot say which of them are bad.
"""

import datetime
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from goqueue.model.errors import InvalidRequest

BadValues = Literal["fail", "null"]
_DEEPEST: Final = 32

# ---------------------------------------------------------------- what a schema describes

_FORMATS: Final[dict[str, type[DataType]]] = {"date-time": TimestampType, "date": DateType}
_SIMPLE: Final[dict[str, type[DataType]]] = {"integer": LongType, "number": DoubleType, "boolean": BooleanType}
_OF_PYTHON: Final = {str: "string", bool: "boolean", int: "integer", float: "number"}


def struct_of(text: str) -> StructType:
    """The type of values of a JSON schema: its text, or the path of a file that has it."""
    if not text.lstrip().startswith("{"):
        try:
            text = Path(text).read_text()
        except OSError as error:
            raise InvalidRequest(
                f"value.schema is neither a JSON schema nor a file that can be read: {error}"
            ) from None
    try:
        schema = json.loads(text)
    except ValueError as error:
        raise InvalidRequest(f"value.schema is no JSON: {error}") from None
    found = _type_of(schema, schema, "value", 0)
    if not isinstance(found, StructType):
        raise InvalidRequest("value.schema describes no object with properties; values become structs only of those")
    return found


def _type_of(schema: Any, root: Mapping[str, Any], where: str, depth: int) -> DataType:
    if not isinstance(schema, dict):
        raise InvalidRequest(f"value.schema says nothing of {where}; give it a type")
    if depth > _DEEPEST:
        raise InvalidRequest(f"value.schema goes deeper than {_DEEPEST} levels at {where}; a struct cannot hold itself")
    if "$ref" in schema:
        return _type_of(_referred(schema["$ref"], root, where), root, where, depth + 1)
    for word in ("anyOf", "oneOf"):
        if word in schema:
            kinds = [each for each in schema[word] if each != {"type": "null"}]
            if len(kinds) != 1:
                raise InvalidRequest(f"value.schema has {word} at {where}; a column has one type (and null)")
            return _type_of(kinds[0], root, where, depth + 1)
    word = _word_of(schema, where)
    if word == "object":
        return _object_of(schema, root, where, depth)
    if word == "array":
        return ArrayType(_type_of(schema.get("items"), root, f"{where}[]", depth + 1))
    if word == "string":
        return _FORMATS.get(schema.get("format", ""), StringType)()
    if word in _SIMPLE:
        return _SIMPLE[word]()
    raise InvalidRequest(f"value.schema has the type {word!r} at {where}, which JSON schema does not know")


def _word_of(schema: Mapping[str, Any], where: str) -> Any:
    """The one type it names, beside null; else that of the values it lists."""
    words = schema.get("type")
    if words is None and "properties" in schema:
        return "object"
    if words is None:
        listed = schema.get("enum", [schema["const"]] if "const" in schema else [])
        words = list(dict.fromkeys(_OF_PYTHON.get(type(each), "null") for each in listed))
    left = [word for word in (words if isinstance(words, list) else [words]) if word != "null"]
    if len(left) != 1:
        raise InvalidRequest(f"value.schema has {len(left) or 'no'} types at {where}; a column has one (and null)")
    return left[0]


def _object_of(schema: Mapping[str, Any], root: Mapping[str, Any], where: str, depth: int) -> DataType:
    properties = schema.get("properties")
    if properties:
        return StructType(
            [StructField(name, _type_of(each, root, f"{where}.{name}", depth + 1)) for name, each in properties.items()]
        )
    others = schema.get("additionalProperties")
    if isinstance(others, dict) and others:
        return MapType(StringType(), _type_of(others, root, f"{where}.*", depth + 1))
    raise InvalidRequest(f"value.schema has an object at {where} of which it names no properties")


def _referred(path: Any, root: Mapping[str, Any], where: str) -> Any:
    if not isinstance(path, str) or not path.startswith("#/"):
        raise InvalidRequest(
            f"value.schema refers to {path!r} at {where}; it can refer to its own parts, like #/$defs/a"
        )
    found: Any = root
    for step in path[2:].split("/"):
        found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
    if found is None:
        raise InvalidRequest(f"value.schema refers to {path} at {where}, and there is no such part")
    return found


# ---------------------------------------------------------------- values


class JsonValues:
    """Reads values into a struct."""

    def __init__(self, kind: StructType, bad: BadValues) -> None:
        self._arrow = to_arrow_type(kind, timezone="UTC")
        self._bad = bad
        self._convert = _converter(kind)

    def read(self, values: pa.Array, name: Callable[[int], str]) -> pa.Array:
        """`name` says which message a row is, for whom it may concern. InvalidRequest for a bad value, or null."""
        found: list[Any] = []
        for row, value in enumerate(values.to_pylist()):
            try:
                found.append(None if value is None else self._convert(msgspec.json.decode(value)))
            except (ValueError, msgspec.DecodeError, OverflowError, RecursionError) as error:
                if self._bad == "fail":
                    raise InvalidRequest(
                        f"the value of {name(row)} is not what value.schema says: {error}; set value.bad to null to "
                        "have null for such values"
                    ) from None
                found.append(None)
        return pa.array(found, self._arrow)


Convert = Callable[[Any], Any]


def _refuse(wanted: str, found: Any) -> ValueError:
    text = json.dumps(found)
    return ValueError(f"{text if len(text) < 60 else text[:60] + '...'} is not {wanted}")


def _long(value: Any) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not int or not -(2**63) <= value < 2**63:
        raise _refuse("a whole number of 64 bits", value)
    return value


def _double(value: Any) -> float:
    if type(value) not in (int, float):
        raise _refuse("a number", value)
    return float(value)


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise _refuse("true or false", value)
    return value


def _string(value: Any) -> str:
    if type(value) is not str:
        raise _refuse("a string", value)
    return value


def _timestamp(value: Any) -> datetime.datetime:
    try:
        found = datetime.datetime.fromisoformat(_string(value))
    except ValueError:
        raise _refuse("a time, like 2026-01-31T12:00:00Z", value) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=datetime.UTC)


def _date(value: Any) -> datetime.date:
    try:
        return datetime.date.fromisoformat(_string(value))
    except ValueError:
        raise _refuse("a date, like 2026-01-31", value) from None


_CONVERTERS: Final[dict[type[DataType], Convert]] = {
    LongType: _long,
    DoubleType: _double,
    BooleanType: _boolean,
    StringType: _string,
    TimestampType: _timestamp,
    DateType: _date,
}


def _converter(kind: DataType) -> Convert:
    if isinstance(kind, StructType):
        return _struct_converter({field.name: _or_null(_converter(field.dataType)) for field in kind.fields})
    if isinstance(kind, ArrayType):
        return _array_converter(_or_null(_converter(kind.elementType)))
    if isinstance(kind, MapType) and isinstance(kind.keyType, StringType):
        return _map_converter(_or_null(_converter(kind.valueType)))
    convert = _CONVERTERS.get(type(kind))
    if convert is None:
        known = ", ".join(sorted(each().simpleString() for each in _CONVERTERS))
        raise InvalidRequest(f"values in JSON are not read into {kind.simpleString()}; there are {known}")
    return convert


def _or_null(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _struct_converter(fields: dict[str, Convert]) -> Convert:
    def convert(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _refuse("an object", value)
        found = {}
        for name, read in fields.items():
            try:
                found[name] = read(value.get(name))
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        return found

    return convert


def _array_converter(read: Convert) -> Convert:
    def convert(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise _refuse("an array", value)
        return [read(each) for each in value]

    return convert


def _map_converter(read: Convert) -> Convert:
    def convert(value: Any) -> list[tuple[str, Any]]:
        if not isinstance(value, dict):
            raise _refuse("an object", value)
        return [(name, read(each)) for name, each in value.items()]

    return convert
