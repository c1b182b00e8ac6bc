"""docs/internals/metadata.md says what the code does: its tables and examples are compared with it."""

import re
from enum import StrEnum
from pathlib import Path
from typing import Any, get_args

import msgspec

from goqueue.machine.replay import SNAPSHOT_BEGINS, SNAPSHOT_ENDS
from goqueue.metadata.reader_records import Event as ReaderEvent
from goqueue.metadata.readers import Readers
from goqueue.metadata.records import Event
from goqueue.metadata.topics import Topics
from goqueue.model import limits
from goqueue.model.settings import Fsync
from goqueue.model.topic import CleanupPolicy, LanePolicy, OnExpiry, TopicSettings
from goqueue.producers.registry import IdsReserved, ProducerRegistry
from goqueue.storage.store import METADATA_LOG
from tests.unit.metadata.test_reader_records import GOLDEN as GOLDEN_READERS
from tests.unit.metadata.test_records import GOLDEN
from tests.unit.producers.test_registry import GOLDEN as GOLDEN_IDS

PAGE = (Path(__file__).parents[3] / "docs/internals/metadata.md").read_text(encoding="utf-8")
EVENTS: tuple[Any, ...] = (*get_args(Event), IdsReserved, *get_args(ReaderEvent))


def section(heading: str) -> str:
    assert f"\n## {heading}\n" in PAGE
    return PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    """The cells of its tables, without the heads."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    heads = {number - 1 for number, cells in enumerate(found) if set(cells[0]) == {"-"}}
    return [cells for number, cells in enumerate(found) if number not in heads and number - 1 not in heads]


def json_type(found: Any) -> str:
    if isinstance(found, msgspec.inspect.StructType | msgspec.inspect.DictType):
        return "object"
    if isinstance(found, msgspec.inspect.EnumType):
        choices = [f"`{each.value}`" for each in found.cls]
        return f"{', '.join(choices[:-1])} or {choices[-1]}"
    if isinstance(found, msgspec.inspect.UnionType):
        return " or ".join(json_type(each) for each in found.types)
    if isinstance(found, msgspec.inspect.TupleType):
        (kind,) = {json_type(each) for each in found.item_types}
        return f"array of {len(found.item_types)} {kind}s"
    names: dict[type, str] = {
        msgspec.inspect.BoolType: "boolean",
        msgspec.inspect.StrType: "string",
        msgspec.inspect.IntType: "integer",
        msgspec.inspect.FloatType: "number",
        msgspec.inspect.NoneType: "null",
    }
    return names[type(found)]


def described(struct: type) -> list[tuple[str, str]]:
    info = msgspec.inspect.type_info(struct)
    assert isinstance(info, msgspec.inspect.StructType)
    return [(field.name, json_type(field.type)) for field in info.fields]


def test_the_machines_are_those_of_the_code() -> None:
    before_sections = PAGE.partition("\n## ")[0]
    assert [cells[0] for cells in rows(before_sections)] == [
        f"`{machine.name}`" for machine in (Topics, ProducerRegistry, Readers)
    ]
    assert f"`meta/{METADATA_LOG}`" in before_sections


def test_every_field_of_every_record_is_there() -> None:
    found: dict[str, list[tuple[str, str]]] = {}
    kind = ""
    for name, field, is_a, _ in rows(section("Records")):
        kind = name.strip("`") or kind
        found.setdefault(kind, []).append((field.strip("`"), is_a))
    assert found == {event.__struct_config__.tag: described(event) for event in EVENTS}


def test_every_setting_is_there_with_its_default() -> None:
    found = [(name.strip("`"), is_a, default.strip("`")) for name, is_a, default in rows(section("Settings"))]
    defaults = msgspec.structs.asdict(TopicSettings())

    def show(value: object) -> str:
        return str(value) if isinstance(value, StrEnum) else msgspec.json.encode(value).decode()

    assert found == [(name, is_a, show(defaults[name])) for name, is_a in described(TopicSettings)]
    for kind in (Fsync, CleanupPolicy, OnExpiry, LanePolicy):
        assert issubclass(kind, StrEnum), "written by value"


def test_the_framing_of_a_snapshot_is_that_of_the_code() -> None:
    keys = [cells[1] for cells in rows(section("Snapshots"))]
    assert keys == [f"`{SNAPSHOT_BEGINS.decode()}`", "as above", f"`{SNAPSHOT_ENDS.decode()}`"]


def test_the_page_states_the_constants() -> None:
    assert f"each {limits.RECORDS_PER_SNAPSHOT} records" in section("Snapshots")
    assert f"reserved {limits.PRODUCER_IDS_RESERVED} at a time" in section("Records")


def test_the_examples_are_the_golden_bytes() -> None:
    (block,) = re.findall(r"```text\n(.*?)```", section("Examples"), re.DOTALL)
    assert [line.encode() for line in block.splitlines()] == [*GOLDEN, GOLDEN_IDS, *GOLDEN_READERS]
