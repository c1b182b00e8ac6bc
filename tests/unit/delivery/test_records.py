"""The records of a sidecar log: golden bytes, and what another version may have written."""

from typing import Any

import msgspec
import pytest
from pyroaring import BitMap64

from goqueue.base.offset_sets import pack, unpack
from goqueue.delivery import records
from goqueue.delivery.records import (
    Abandoned,
    Buried,
    Cancelled,
    Deferred,
    Delivered,
    Done,
    Doomed,
    Event,
    Extended,
    Fenced,
    Forgotten,
    HeldDeath,
    HeldLease,
    HeldPledge,
    HeldTry,
    HeldWait,
    Lapsed,
    Leased,
    Mourned,
    Moved,
    Numbered,
    Opened,
    Pledged,
    Postponed,
    Reason,
    Redeemed,
    Released,
    Reset,
    Resting,
    Returned,
    Settled,
    Skipped,
    Started,
)
from goqueue.model.names import GroupNumber

GROUP = GroupNumber(3)
POLL = 1_700_000_000_000_000
UNTIL = 1_700_000_030_000
SPAN = 30_000
KEYS = bytes.fromhex("0000002a 00000000 deadbeef")

SOME = "0100000000000000 00000000 3a300000 01000000 00000200 10000000 0700 0800 1400"
"""Offsets 7, 8 and 20."""
ONE = "0100000000000000 00000000 3a300000 01000000 00000000 10000000 0900"
"""Offset 9."""
ROW = "0100000000000000 00000000 3b300000 01 0000 6300 0100 e803 6300"
"""Offsets 1000 to 1099."""
NONE = "0000000000000000"


def bitmap(encoded: str) -> bytes:
    return bytes.fromhex(encoded)


# What is in a log one day must be readable for good: a line may be added here, never changed.
GOLDEN: dict[str, Event] = {
    "93 01 cd03e8 07": Fenced(1000, 7),
    "93 02 03 cd01f4": Started(GROUP, 500),
    "93 03 03 0c": Opened(GROUP, 12),
    "95 05 03 cd041a cd270f a36d2d31": Settled(GROUP, 1050, 9999, "m-1"),
    "95 06 03 cf00060a24181e4000 cf4000000000000000 a0": Returned(GROUP, POLL, 2**62),
    "94 07 03 cd044c cd044f": Skipped(GROUP, 1100, 1103),
    "93 08 03 00": Reset(GROUP, 0),
    "92 09 03": Forgotten(GROUP),
    "92 0a 92 92 01 cd03e8 92 02 cf0000010000000000": Resting(((GroupNumber(1), 1000), (GroupNumber(2), 2**40))),
    "93 0c 03 a36d2d31": Abandoned(GROUP, "m-1"),
    f"9a 0d 03 00 cf00060a24181e4000 a36d2d31 00 cf0000018bcfe5dd30 cd7530 c41b {ROW} c400": Leased(
        GROUP, 0, POLL, "m-1", 0, UNTIL, SPAN, bitmap(ROW)
    ),
    f"9a 0d 03 0c cf00060a24181e4000 a36d2d31 64 cf0000018bcfe5dd30 cd7530 c422 {SOME} "
    "c40c 0000002a 00000000 deadbeef": Leased(GROUP, 12, POLL, "m-1", 100, UNTIL, SPAN, bitmap(SOME), KEYS),
    f"94 0e 03 c422 {SOME} 00": Done(GROUP, bitmap(SOME), Reason.ACKED),
    f"95 0f 03 c41e {ONE} cf0000018bcfe5dd30 cd7530": Deferred(GROUP, bitmap(ONE), UNTIL, SPAN),
    "94 10 03 cf00060a24181e4000 cf0000018bcfe5dd30": Lapsed(GROUP, POLL, UNTIL),
    f"96 11 03 cf00060a24181e4000 c41e {ONE} cf0000018bcfe5dd30 cd7530": Extended(
        GROUP, POLL, bitmap(ONE), UNTIL, SPAN
    ),
    f"96 12 03 c41e {ONE} 02 cf0000018bcfe5dd30 ad6e6f2073756368206f72646572": Doomed(
        GROUP, bitmap(ONE), Reason.REJECTED, UNTIL, "no such order"
    ),
    "92 13 12": Buried(18),
    f"92 14 c41e {ONE}": Cancelled(bitmap(ONE)),
    f"93 15 c41e {ONE} cf0000018bcfe5dd30": Moved(bitmap(ONE), UNTIL),
    f"9b 16 03 03 0c c422 {SOME} 91 95 cf00060a24181e4000 a36d2d31 cf0000018bcfe5dd30 cd7530 c41e {ONE} "
    f"91 93 cf0000018bcfe5dd30 cd7530 c41e {ONE} 92 93 09 02 cf00060a24181e4000 93 0a 01 00 c408 {NONE} "
    f"91 92 09 2a 91 93 07 c422 {SOME} c41e {ONE}": Delivered(
        GROUP,
        3,
        12,
        bitmap(SOME),
        (HeldLease(POLL, "m-1", UNTIL, SPAN, bitmap(ONE)),),
        (HeldWait(UNTIL, SPAN, bitmap(ONE)),),
        (HeldTry(9, 2, POLL), HeldTry(10, 1, 0)),
        bitmap(NONE),
        ((9, 42),),
        (HeldPledge(7, bitmap(SOME), bitmap(ONE)),),
    ),
    "93 17 11 92 97 03 09 04 04 cf0000018bcfe5dd30 a0 c2 97 03 cd044c 01 00 cf0000018bcfe5dd30 a0 c3": Mourned(
        17,
        (
            HeldDeath(GROUP, 9, Reason.LAPSED, 4, UNTIL, "", False),
            HeldDeath(GROUP, 1100, Reason.EXPIRED, 0, UNTIL, "", True),
        ),
    ),
    f"93 18 c41e {ONE} 91 92 14 cf0000018bcfe5dd30": Postponed(bitmap(ONE), ((20, UNTIL),)),
    f"93 19 03 c41e {ONE}": Released(GROUP, bitmap(ONE)),
    "92 1a 07": Numbered(7),
    f"94 1b 03 07 c422 {SOME}": Pledged(GROUP, 7, bitmap(SOME)),
    "93 1c 07 c3": Redeemed(7, True),
}
EARLIER: dict[str, Event] = {
    "94 05 03 cd041a cd270f": Settled(GROUP, 1050, 9999),
    "94 06 03 cf00060a24181e4000 cf4000000000000000": Returned(GROUP, POLL, 2**62),
    f"9a 16 03 03 0c c400 90 90 90 c408 {NONE} 91 92 09 2a": Delivered(
        GROUP, 3, 12, b"", (), (), (), bitmap(NONE), ((9, 42),)
    ),
}
"""What an earlier version wrote, when these had fewer fields."""
NO_LONGER_USED = {4, 11}


def named(events: dict[str, Event]) -> list[str]:
    return [type(event).__name__ for event in events.values()]


@pytest.mark.parametrize(("encoded", "event"), GOLDEN.items(), ids=named(GOLDEN))
def test_the_bytes_are_the_golden_ones(encoded: str, event: Event) -> None:
    assert records.encode(event) == bytes.fromhex(encoded)
    assert records.decode(bytes.fromhex(encoded)) == event


@pytest.mark.parametrize(("encoded", "event"), EARLIER.items(), ids=named(EARLIER))
def test_records_with_fewer_fields_are_understood(encoded: str, event: Event) -> None:
    assert records.decode(bytes.fromhex(encoded)) == event


def test_every_kind_of_record_has_golden_bytes_and_a_number_that_was_never_used_before() -> None:
    kinds: tuple[Any, ...] = Event.__args__
    assert {type(event) for event in GOLDEN.values()} == set(kinds)
    numbers = [kind.__struct_config__.tag for kind in kinds]
    assert len(numbers) == len(set(numbers))
    assert set(numbers) == set(range(1, 29)) - NO_LONGER_USED


@pytest.mark.parametrize(
    ("encoded", "offsets"), [(SOME, [7, 8, 20]), (ONE, [9]), (ROW, list(range(1000, 1100))), (NONE, [])]
)
def test_the_bitmaps_mean_what_they_meant(encoded: str, offsets: list[int]) -> None:
    assert list(unpack(bitmap(encoded))) == offsets
    assert pack(BitMap64(offsets)) == bitmap(encoded)


def test_the_reasons_keep_their_numbers() -> None:
    assert {reason.name: int(reason) for reason in Reason} == {
        "ACKED": 0,
        "EXPIRED": 1,
        "REJECTED": 2,
        "NACKED": 3,
        "LAPSED": 4,
    }


def test_fields_of_a_later_version_are_passed_over() -> None:
    assert records.decode(msgspec.msgpack.encode([9, 3, "because", [1]])) == Forgotten(GROUP)


@pytest.mark.parametrize(
    "strange",
    [
        9,
        {},
        [],
        [0, 3],
        [25, 3],
        [27, 3],
        [29, 3],
        [28, 3],
        [4, 3, 12, 1, 0, 100, []],
        [11, 3, 3, 1100, 12, b"", [], [], 5],
        ["9", 3],
        [9],
        [9, "3"],
        [1, 1000],
        [10, [[1, 2, 3]]],
        [14, 3, b"", 99],
        [22, 3, 3, 12, b"", [[1, 2]], [], [], b"", []],
        [23, 17, [[3, 9, 0, 4, 1, ""]]],
    ],
    ids=str,
)
def test_what_is_no_record_is_refused(strange: Any) -> None:
    with pytest.raises(msgspec.DecodeError):
        records.decode(msgspec.msgpack.encode(strange))


@pytest.mark.parametrize("encoded", GOLDEN, ids=named(GOLDEN))
def test_a_record_that_is_cut_or_too_long_is_refused(encoded: str) -> None:
    whole = bytes.fromhex(encoded)
    for strange in (*(whole[:size] for size in range(len(whole))), whole + b"\0"):
        with pytest.raises(msgspec.DecodeError):
            records.decode(strange)
