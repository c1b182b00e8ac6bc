"""docs/internals/sidecar.md says what the code does: its tables and examples are compared with it."""

import re
from pathlib import Path
from typing import Any

import msgspec

from goqueue.delivery import delivery
from goqueue.delivery.deliveries import Deliveries
from goqueue.delivery.records import Event, HeldLease, Range
from goqueue.delivery.sidecar import sidecar_settings
from goqueue.model import limits
from goqueue.model.settings import LogSettings
from goqueue.storage.store import sidecar_name
from tests.unit.delivery.test_records import GOLDEN

PAGE = (Path(__file__).parents[3] / "docs/internals/sidecar.md").read_text(encoding="utf-8")
EVENTS: tuple[Any, ...] = Event.__args__


def section(heading: str) -> str:
    assert f"\n## {heading}\n" in PAGE
    return PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def packed_type(found: Any) -> str:
    match found:
        case msgspec.inspect.IntType():
            return "integer"
        case msgspec.inspect.BytesType():
            return "bytes"
        case msgspec.inspect.VarTupleType(item_type=msgspec.inspect.NamedTupleType(cls=cls)):
            return {Range: "array of ranges", HeldLease: "array of leases"}[cls]
        case msgspec.inspect.VarTupleType(item_type=msgspec.inspect.TupleType(item_types=(_, _))):
            return "array of pairs"
    raise AssertionError(f"what is {found}?")


def described(event: Any) -> list[tuple[str, str]]:
    info = msgspec.inspect.type_info(event)
    assert isinstance(info, msgspec.inspect.StructType)
    assert info.array_like
    return [(field.name, packed_type(field.type)) for field in info.fields]


def test_every_field_of_every_record_is_there_in_order() -> None:
    found: dict[tuple[int, str], list[tuple[str, str]]] = {}
    kind = (0, "")
    rows = re.findall(r"^\| *(\d*) *\| *(\w*) *\| `(\w+)` \| ([a-z ]+) \|", section("Records"), re.MULTILINE)
    for number, name, field, is_a in rows:
        kind = (int(number), name) if number else kind
        found.setdefault(kind, []).append((field, is_a))
    assert found == {(event.__struct_config__.tag, event.__name__.lower()): described(event) for event in EVENTS}


def test_ranges_and_leases_are_arrays_of_what_the_page_says() -> None:
    text = " ".join(section("Records").split())
    assert Range._fields == ("first", "end", "deliveries")
    assert "A range is an array of `first`, `end` (not included) and `deliveries`" in text
    assert HeldLease._fields == ("poll", "deadline", "ranges")
    assert "A lease is an array of `poll`, `deadline` and an array of ranges." in text


def test_the_page_states_the_constants() -> None:
    text = " ".join(PAGE.split())
    settings = sidecar_settings(LogSettings(retention_ms=1, retention_bytes=1, compact=True))
    assert (settings.retention_ms, settings.retention_bytes, settings.compact) == (None, None, False)
    for stated in (
        f"`logs/{sidecar_name('{topic}/{topic id}/{partition}')}/`",
        f"segments have {settings.segment_bytes // limits.MIB} MiB",
        f"after each {limits.RECORDS_PER_SNAPSHOT} records",
        f"every record has the key `{Deliveries.name}`",
        f"The last {delivery._SEPARATE_LEASES} leases are told apart",
    ):
        assert stated in text, stated


def test_the_examples_are_the_golden_bytes() -> None:
    (block,) = re.findall(r"```text\n(.*?)```", section("Examples"), re.DOTALL)
    assert block.splitlines() == list(GOLDEN)
