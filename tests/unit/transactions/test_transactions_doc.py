"""docs/internals/transactions.md says what the code does: its tables and examples are compared with it."""

import re
from pathlib import Path
from typing import Any

import msgspec

from goqueue.model import limits
from goqueue.model.times import show_duration
from goqueue.model.transactions import AbortReason, TransactionState
from goqueue.storage.store import TRANSACTIONS_LOG
from goqueue.transactions import coordinator
from goqueue.transactions.coordinator import Transactions
from goqueue.transactions.ending import VERSION, MarkerValue
from goqueue.transactions.records import Event, Participant
from tests.unit.transactions.test_ending import GOLDEN as GOLDEN_MARKERS
from tests.unit.transactions.test_records import GOLDEN

PAGE = (Path(__file__).parents[3] / "docs/internals/transactions.md").read_text(encoding="utf-8")
EVENTS: tuple[Any, ...] = Event.__args__
DAY_MS = 24 * 3600 * 1000


def section(heading: str) -> str:
    assert f"\n## {heading}\n" in PAGE
    return PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def packed_type(found: Any) -> str:
    match found:
        case msgspec.inspect.IntType():
            return "integer"
        case msgspec.inspect.StrType():
            return "string"
        case msgspec.inspect.EnumType(cls=cls):
            return "state" if cls is TransactionState else "reason"
        case msgspec.inspect.UnionType(types=(msgspec.inspect.EnumType(), msgspec.inspect.NoneType())):
            return "reason or null"
        case msgspec.inspect.VarTupleType(item_type=msgspec.inspect.NamedTupleType(cls=cls)) if cls is Participant:
            return "array of participants"
        case msgspec.inspect.VarTupleType(item_type=item):
            return f"array of {packed_type(item)}s"
    raise AssertionError(f"what is {found}?")


def described(event: Any) -> list[tuple[str, str]]:
    info = msgspec.inspect.type_info(event)
    assert isinstance(info, msgspec.inspect.StructType)
    assert info.array_like
    return [(field.name, packed_type(field.type)) for field in info.fields]


def test_every_field_of_every_record_is_there_in_order() -> None:
    found: dict[tuple[int, str], list[tuple[str, str]]] = {}
    kind = (0, "")
    rows = re.findall(
        r"^\| *(\d*) *\| *(\w*) *\| *(?:`(\w+)`)? *\| *([a-z ]*?) *\|", section("The coordinator's log"), re.MULTILINE
    )
    for number, name, field, is_a in rows:
        kind = (int(number), name) if number else kind
        if kind[0]:
            found.setdefault(kind, []).extend([(field, is_a)] if field else [])
    assert found == {(event.__struct_config__.tag, event.__name__.lower()): described(event) for event in EVENTS}
    assert f"A participant is an array: {', '.join(f'`{name}`' for name in Participant._fields)}" in PAGE


def test_every_state_and_every_reason_is_there() -> None:
    states, reasons = section("The coordinator's log").split("\n| state |")[1].split("\n| reason |")
    assert re.findall(r"^\| `(\w+)` \|", states, re.MULTILINE) == [state.value for state in TransactionState]
    assert re.findall(r"^\| `(\w+)` \|", reasons, re.MULTILINE) == [reason.value for reason in AbortReason]


def test_the_page_states_the_constants() -> None:
    text = " ".join(PAGE.split())
    for stated in (
        f"the log `{TRANSACTIONS_LOG}`",
        f"every record has the key `{Transactions.name}`",
        f"version ({VERSION}), producer id, producer epoch, transactional id",
        f"{limits.TRANSACTION_NUMBERS_RESERVED} at a time are reserved",
        f"epoch {coordinator._LAST_EPOCH} is used up",
        f"| how long a transaction may be open | {show_duration(limits.MAX_TRANSACTION_MS)}, and "
        f"{show_duration(limits.DEFAULT_TRANSACTION_MS)} unless",
        f"| open transactions | {limits.MAX_OPEN_TRANSACTIONS} |",
        f"| transactional ids | {limits.MAX_TRANSACTIONAL_IDS}; one that was not used for "
        f"{limits.TRANSACTIONAL_ID_EXPIRY_MS // DAY_MS} days",
        f"| transactions that one token commits | {limits.MAX_COMMITTED_TOGETHER} |",
        f"| names of tokens | the last {limits.MAX_TOKENS} that were used |",
        f"| ended transactions that are remembered | {limits.TRANSACTIONS_REMEMBERED} |",
        f"| bytes of a transactional id, or a name | {limits.MAX_TRANSACTIONAL_ID} |",
        f"| bytes of an incarnation | {limits.MAX_INCARNATION} |",
        f"remembered, for each transactional id | {limits.FENCED_REMEMBERED} |",
        f"silent for {show_duration(limits.PRODUCER_SESSION_MS)} is shown so",
    ):
        assert stated in text, stated
    assert MarkerValue.__struct_fields__ == ("version", "producer_id", "epoch", "transactional_id")


def test_the_examples_are_the_golden_bytes() -> None:
    records, markers = re.findall(r"```text\n(.*?)```", section("Examples"), re.DOTALL)
    assert records.splitlines() == list(GOLDEN)
    assert markers.splitlines() == list(GOLDEN_MARKERS.values())
