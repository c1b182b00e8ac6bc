"""docs/internals/groups.md says what the code does: its tables and examples are compared with it."""

import re
from pathlib import Path
from typing import Any, get_args

import msgspec

from goqueue.broker.broker import GROUPS_LOG
from goqueue.groups.groups import Groups
from goqueue.groups.records import Event, Grant, GroupRestored, NumbersGiven, Parts, PartsRestored, Reassigned
from tests.unit.groups.test_records import GOLDEN

PAGE = (Path(__file__).parents[3] / "docs/internals/groups.md").read_text(encoding="utf-8")
IN_SNAPSHOTS = {NumbersGiven, GroupRestored, PartsRestored}
Table = list[list[str]]


def section(heading: str) -> str:
    assert f"\n## {heading}\n" in PAGE
    return PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def tables(text: str) -> list[Table]:
    """The cells of its tables, without the heads."""
    blocks = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    return [
        [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()[2:]] for block in blocks
    ]


def json_type(found: Any) -> str:
    match found:
        case msgspec.inspect.StructType(cls=cls):
            return f"`{cls.__name__.lower()}`"
        case msgspec.inspect.VarTupleType(item_type=item):
            return f"array of {json_type(item)}"
        case msgspec.inspect.EnumType(cls=cls):
            choices = [f"`{each.value}`" for each in cls]
            return " or ".join([", ".join(choices[:-1]), choices[-1]] if len(choices) > 1 else choices)
        case msgspec.inspect.UnionType(types=types):
            return " or ".join(map(json_type, types))
    names: dict[type, str] = {
        msgspec.inspect.StrType: "string",
        msgspec.inspect.IntType: "integer",
        msgspec.inspect.BoolType: "boolean",
        msgspec.inspect.NoneType: "null",
    }
    return names[type(found)]


def fields(struct: type) -> tuple[msgspec.inspect.Field, ...]:
    info = msgspec.inspect.type_info(struct)
    assert isinstance(info, msgspec.inspect.StructType)
    return info.fields


def described(struct: type) -> list[tuple[str, str]]:
    return [
        (field.name, json_type(field.type) + ("" if field.required else ", may be left out"))
        for field in fields(struct)
    ]


def read_records(table: Table) -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    kind = ""
    for name, field, is_a, _ in table:
        kind = name.strip("`") or kind
        found.setdefault(kind, []).append((field.strip("`"), is_a))
    return found


def tags(events: Any) -> dict[str, list[tuple[str, str]]]:
    return {event.__struct_config__.tag: described(event) for event in events}


def test_the_log_and_the_machine_are_those_of_the_code() -> None:
    before_sections = PAGE.partition("\n## ")[0]
    assert f"`meta/{GROUPS_LOG}`" in before_sections
    assert f"has the key `{Groups.name}`" in before_sections


def test_every_field_of_every_record_is_there() -> None:
    recorded, rows = tables(section("Records"))
    assert read_records(recorded) == tags(set(get_args(Event)) - IN_SNAPSHOTS)
    assert read_records(tables(section("Snapshots"))[0]) == tags(IN_SNAPSHOTS)
    assert rows == [
        [f"`{row.__name__.lower()}`", f"`[{', '.join(field.name for field in fields(row))}]`"] for row in (Parts, Grant)
    ]


def test_what_happens_to_a_partition_is_written_in_fields_that_are_there() -> None:
    (table,) = tables(section("The life of a partition"))
    written = {name for cells in table for name in re.findall(r"`(\w+)`", cells[3])}
    changes = {field.name for field in fields(Reassigned)} - {"group"}
    assert written == changes | {"member_replaced"}


def test_the_examples_are_the_golden_bytes() -> None:
    (block,) = re.findall(r"```text\n(.*?)```", section("Examples"), re.DOTALL)
    assert [line.encode() for line in block.splitlines()] == list(GOLDEN)
