"""docs/internals/sidecar.md says what the code does: its tables and examples are compared with it."""

import re
from pathlib import Path
from typing import Any

import msgspec

from goqueue.delivery.deliveries import Deliveries
from goqueue.delivery.records import MOST_BYTES, Event, HeldDeath, HeldLease, HeldPledge, HeldTry, HeldWait, Reason
from goqueue.delivery.sidecar import sidecar_settings
from goqueue.model import limits
from goqueue.model.settings import LogSettings
from goqueue.storage.store import sidecar_name
from tests.unit.delivery.test_records import GOLDEN, NO_LONGER_USED

PAGE = (Path(__file__).parents[3] / "docs/internals/sidecar.md").read_text(encoding="utf-8")
EVENTS: tuple[Any, ...] = Event.__args__
ARRAYS: dict[Any, str] = {
    HeldLease: "lease",
    HeldWait: "wait",
    HeldTry: "try",
    HeldPledge: "pledge",
    HeldDeath: "death",
}
PLURALS = {"lease": "leases", "wait": "waits", "try": "tries", "pledge": "pledges", "death": "deaths"}
PLAIN_BYTES = {"keys"}
"""Fields of bytes that are no bitmap."""


def section(heading: str) -> str:
    assert f"\n## {heading}\n" in PAGE
    return PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def packed_type(name: str, found: Any) -> str:
    match found:
        case msgspec.inspect.IntType():
            return "integer"
        case msgspec.inspect.BoolType():
            return "boolean"
        case msgspec.inspect.StrType():
            return "string"
        case msgspec.inspect.BytesType():
            return "bytes" if name in PLAIN_BYTES else "bitmap"
        case msgspec.inspect.EnumType():
            return "reason"
        case msgspec.inspect.VarTupleType(item_type=msgspec.inspect.NamedTupleType(cls=cls)):
            return f"array of {PLURALS[ARRAYS[cls]]}"
        case msgspec.inspect.VarTupleType(item_type=msgspec.inspect.TupleType(item_types=(_, _))):
            return "array of pairs"
    raise AssertionError(f"what is {found}?")


def described(event: Any) -> list[tuple[str, str]]:
    info = msgspec.inspect.type_info(event)
    assert isinstance(info, msgspec.inspect.StructType)
    assert info.array_like
    return [(field.name, packed_type(field.name, field.type)) for field in info.fields]


def test_every_field_of_every_record_is_there_in_order() -> None:
    found: dict[tuple[int, str], list[tuple[str, str]]] = {}
    kind = (0, "")
    rows = re.findall(r"^\| *(\d*) *\| *(\w*) *\| `(\w+)` \| ([a-z ]+) \|", section("Records"), re.MULTILINE)
    for number, name, field, is_a in rows:
        kind = (int(number), name) if number else kind
        found.setdefault(kind, []).append((field, is_a))
    assert found == {(event.__struct_config__.tag, event.__name__.lower()): described(event) for event in EVENTS}


def test_arrays_have_the_items_the_page_says() -> None:
    rows = re.findall(r"^\| (\w+) \| ((?:`\w+`(?:, )?)+) \|$", section("Records"), re.MULTILINE)
    assert {name: re.findall(r"`(\w+)`", items) for name, items in rows} == {
        name: list(array._fields) for array, name in ARRAYS.items()
    }


def test_the_reasons_have_the_numbers_the_page_says() -> None:
    table = section("Records").partition("\n| reason |")[2]
    rows = re.findall(r"^\| (\d) \| ([a-z]+) \|", table, re.MULTILINE)
    assert {int(number): name for number, name in rows} == {int(reason): reason.name.lower() for reason in Reason}


def test_the_page_states_the_constants() -> None:
    text = " ".join(PAGE.split())
    settings = sidecar_settings(LogSettings(retention_ms=1, retention_bytes=1, compact=True))
    assert (settings.retention_ms, settings.retention_bytes, settings.compact) == (None, None, False)
    before = " and ".join(map(str, sorted(NO_LONGER_USED)))
    for stated in (
        f"`logs/{sidecar_name('{topic}/{topic id}/{partition}')}/`",
        f"segments have {settings.segment_bytes // limits.MIB} MiB",
        f"after each {limits.RECORDS_PER_SNAPSHOT} records",
        f"every record has the key `{Deliveries.name}`",
        f"Numbers {before} were used before",
        f"takes more than {MOST_BYTES // limits.MIB} MiB is spread over several records",
    ):
        assert stated in text, stated


def test_the_examples_are_the_golden_bytes() -> None:
    (block,) = re.findall(r"```text\n(.*?)```", section("Examples"), re.DOTALL)
    assert block.splitlines() == list(GOLDEN)
