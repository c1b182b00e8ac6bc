"""The bytes of the transactions log."""

from typing import Any

import msgspec
import pytest

from goqueue.model.names import TopicId
from goqueue.model.transactions import AbortReason, TransactionState
from goqueue.transactions import records
from goqueue.transactions.records import (
    AbortDecided,
    Begun,
    CommitDecided,
    Completed,
    Event,
    Forgotten,
    Identified,
    Kept,
    NumbersReserved,
    Participant,
    Spent,
    Started,
    Stopped,
    Token,
)

NOW = 1_700_000_000_000
AT = "cf0000018bcfe56800"
HERE = (Participant(TopicId(2**63 + 5), 3),)
PART = "91 92 cf8000000000000005 03"

# What is in a log one day must be readable for good: a line may be added here, never changed.
GOLDEN: dict[str, Event] = {
    "92 01 cd03e9": NumbersReserved(1001),
    f"9a 02 a36a6f62 07 02 cdea60 {AT} a0 00 00 90": Identified("job", 7, 2, 60_000, NOW),
    f"9a 02 a36a6f62 07 02 cdea60 {AT} a461316232 07 01 91 a463336434": Identified(
        "job", 7, 2, 60_000, NOW, "a1b2", 7, 1, ("c3d4",)
    ),
    f"98 03 11 07 02 a36a6f62 a46c6f6164 {AT} cdea60": Begun(17, 7, 2, "job", "load", NOW, 60_000),
    f"96 04 91 11 {PART} {AT} a0 00": CommitDecided((17,), HERE, NOW),
    f"96 04 92 11 12 {PART} {AT} a46c6f6164 05": CommitDecided((17, 18), HERE, NOW, "load", 5),
    f"94 05 91 11 a974696d65645f6f7574 {AT}": AbortDecided((17,), AbortReason.TIMED_OUT, NOW),
    "92 06 92 11 12": Completed((17, 18)),
    "92 07 91 a36a6f62": Forgotten(("job",)),
    "91 08": Stopped(),
    "91 09": Started(),
    f"9c 0a 11 07 02 a36a6f62 a46c6f6164 {AT} cdea60 aa636f6d6d697474696e67 {AT} c0 {PART}": Kept(
        17, 7, 2, "job", "load", NOW, 60_000, TransactionState.COMMITTING, NOW, None, HERE
    ),
    "93 0b a46c6f6164 05": Token("load", 5),
    "92 0c 07": Spent(7),
}


# As earlier versions wrote them: without the fields that came later.
EARLIER: dict[str, Event] = {
    f"96 02 a36a6f62 07 02 cdea60 {AT}": Identified("job", 7, 2, 60_000, NOW),
}


@pytest.mark.parametrize(("encoded", "event"), EARLIER.items(), ids=lambda given: type(given).__name__)
def test_what_earlier_versions_wrote_is_read_as_it_is(encoded: str, event: Event) -> None:
    assert records.decode(bytes.fromhex(encoded)) == event


@pytest.mark.parametrize(("encoded", "event"), GOLDEN.items(), ids=lambda given: type(given).__name__)
def test_the_bytes_are_the_golden_ones(encoded: str, event: Event) -> None:
    assert records.encode(event) == bytes.fromhex(encoded)
    assert records.decode(bytes.fromhex(encoded)) == event


def test_every_kind_of_record_has_golden_bytes_and_a_number_of_its_own() -> None:
    kinds: tuple[Any, ...] = Event.__args__
    assert {type(event) for event in GOLDEN.values()} == set(kinds)
    assert sorted(kind.__struct_config__.tag for kind in kinds) == list(range(1, 13))


def test_the_words_are_frozen() -> None:
    assert [state.value for state in TransactionState] == ["ongoing", "committing", "aborting", "committed", "aborted"]
    assert [reason.value for reason in AbortReason] == ["asked", "timed_out", "reinitialised", "lost", "replaced"]


def test_fields_of_a_later_version_are_passed_over() -> None:
    assert records.decode(msgspec.msgpack.encode([6, [17], "more"])) == Completed((17,))


@pytest.mark.parametrize("strange", [6, [], [0], [13], ["6", [17]], [6], [6, 17], [5, [1], "because", 3]], ids=str)
def test_what_is_no_record_is_refused(strange: Any) -> None:
    with pytest.raises(msgspec.DecodeError):
        records.decode(msgspec.msgpack.encode(strange))
