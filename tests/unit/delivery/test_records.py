"""The records of a sidecar log: golden bytes, and what another version may have written."""

from typing import Any

import msgspec
import pytest

from goqueue.delivery import records
from goqueue.delivery.records import (
    Delivered,
    Event,
    Fenced,
    Forgotten,
    HeldLease,
    Leased,
    Opened,
    Range,
    Reset,
    Resting,
    Returned,
    Settled,
    Skipped,
    Started,
)
from goqueue.delivery.settled import SettledSet
from goqueue.model.names import GroupNumber

GROUP = GroupNumber(3)
POLL = 1_700_000_000_000_000
BITMAP = "0100000000000000 00000000 3b300000 0100 00 0200 0200 0700 0100 1400 0000"
"""Offsets 7, 8 and 20."""

# What is in a log one day must be readable for good: a line may be added here, never changed.
GOLDEN: dict[str, Event] = {
    "93 01 cd03e8 07": Fenced(1000, 7),
    "93 02 03 cd01f4": Started(GROUP, 500),
    "93 03 03 0c": Opened(GROUP, 12),
    "97 04 03 0c cf00060a24181e4000 00 64 92 93 cd0258 cd028a 02 93 cd03e8 cd044c 01": Leased(
        GROUP, 12, POLL, 0, 100, (Range(600, 650, 2), Range(1000, 1100, 1))
    ),
    "94 05 03 cd041a cd270f": Settled(GROUP, 1050, 9999),
    "94 06 03 cf00060a24181e4000 cf4000000000000000": Returned(GROUP, POLL, 2**62),
    "94 07 03 cd044c cd044f": Skipped(GROUP, 1100, 1103),
    "93 08 03 00": Reset(GROUP, 0),
    "92 09 03": Forgotten(GROUP),
    "92 0a 92 92 01 cd03e8 92 02 cf0000010000000000": Resting(((GroupNumber(1), 1000), (GroupNumber(2), 2**40))),
    "99 0b 03 03 cd044c 0c c41f "
    + BITMAP
    + " 91 93 cf00060a24181e4000 00 91 93 03 07 01 92 93 09 14 02 93 15 cd044c 01 05": Delivered(
        GROUP,
        3,
        1100,
        12,
        bytes.fromhex(BITMAP),
        (HeldLease(POLL, 0, (Range(3, 7, 1),)),),
        (Range(9, 20, 2), Range(21, 1100, 1)),
        5,
    ),
}


@pytest.mark.parametrize(("encoded", "event"), GOLDEN.items(), ids=[type(event).__name__ for event in GOLDEN.values()])
def test_the_bytes_are_the_golden_ones(encoded: str, event: Event) -> None:
    assert records.encode(event) == bytes.fromhex(encoded)
    assert records.decode(bytes.fromhex(encoded)) == event


def test_every_kind_of_record_has_golden_bytes_and_a_number_of_its_own() -> None:
    kinds: tuple[Any, ...] = Event.__args__
    assert {type(event) for event in GOLDEN.values()} == set(kinds)
    assert [kind.__struct_config__.tag for kind in kinds] == list(range(1, len(kinds) + 1))


def test_the_bitmap_means_what_it_meant() -> None:
    settled = SettledSet(3, bytes.fromhex(BITMAP))
    assert [offset for offset in range(3, 30) if offset in settled] == [7, 8, 20]


def test_the_size_of_a_range_is_how_many_offsets_it_has() -> None:
    assert Range(5, 8, 1).size == 3


def test_fields_of_a_later_version_are_passed_over() -> None:
    assert records.decode(msgspec.msgpack.encode([9, 3, "because", [1]])) == Forgotten(GROUP)


@pytest.mark.parametrize(
    "strange",
    [9, {}, [], [0, 3], [12, 3], ["9", 3], [9], [9, "3"], [1, 1000], [10, [[1, 2, 3]]], [4, 3, 1, 1, 0, 0, [[1, 2]]]],
    ids=str,
)
def test_what_is_no_record_is_refused(strange: Any) -> None:
    with pytest.raises(msgspec.DecodeError):
        records.decode(msgspec.msgpack.encode(strange))


@pytest.mark.parametrize("encoded", GOLDEN, ids=[type(event).__name__ for event in GOLDEN.values()])
def test_a_record_that_is_cut_or_too_long_is_refused(encoded: str) -> None:
    whole = bytes.fromhex(encoded)
    for strange in (*(whole[:size] for size in range(len(whole))), whole + b"\0"):
        with pytest.raises(msgspec.DecodeError):
            records.decode(strange)
