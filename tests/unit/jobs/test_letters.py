"""Which dead letters a filter means."""

from typing import Any

import msgspec
import pytest

from goqueue.jobs.letters import LetterFilter
from goqueue.model.dead_letters import DeadLetter
from goqueue.model.record import Record

DIED = 1_700_000_000_000
STORY = DeadLetter(
    topic="orders",
    topic_id=1,
    partition=2,
    offset=40,
    group="billing",
    group_number=1,
    reason="rejected",
    deliveries=3,
    published_at=DIED - 5,
    died_at=DIED,
)
RECORD = Record(
    offset=7,
    key=b"caf\xc3\xa9",
    value=b"x",
    headers=(("trace", b"1"), ("trace", b"2"), ("odd", b"\xff"), ("none", b"")),
)


@pytest.mark.parametrize(
    "wanted",
    [
        {},
        {"reason": "rejected"},
        {"group": "billing"},
        {"key": "café"},
        {"from_ms": DIED},
        {"to_ms": DIED + 1},
        {"from_ms": DIED - 1, "to_ms": DIED + 1},
        {"headers": {"trace": "1"}},
        {"headers": {"trace": "2", "none": ""}},
        {"offsets": {2: (3, 7, 9)}},
        {"reason": "rejected", "group": "billing", "key": "café", "from_ms": 0, "offsets": {0: (1,), 2: (7,)}},
    ],
    ids=str,
)
def test_a_letter_is_meant(wanted: dict[str, Any]) -> None:
    assert LetterFilter(**wanted).matches(STORY, RECORD, 2)


@pytest.mark.parametrize(
    "wanted",
    [
        {"reason": "lapsed"},
        {"group": "Billing"},
        {"group": ""},
        {"key": "cafe"},
        {"key": ""},
        {"from_ms": DIED + 1},
        {"to_ms": DIED},
        {"headers": {"trace": "3"}},
        {"headers": {"Trace": "1"}},
        {"headers": {"trace": "1", "other": ""}},
        {"offsets": {}},
        {"offsets": {2: ()}},
        {"offsets": {2: (6, 8)}},
        {"offsets": {0: (7,)}},
        {"reason": "rejected", "group": "shipping"},
    ],
    ids=str,
)
def test_a_letter_is_not_meant(wanted: dict[str, Any]) -> None:
    assert not LetterFilter(**wanted).matches(STORY, RECORD, 2)


def test_a_message_without_a_key_has_no_empty_one() -> None:
    without = msgspec.structs.replace(RECORD, key=None)
    assert not LetterFilter(key="").matches(STORY, without, 2)
    assert LetterFilter().matches(STORY, without, 2)


def test_where_to_look_next_is_where_it_could_mean_something() -> None:
    assert LetterFilter(reason="lapsed").next_offset(0, 5) == 5
    wanted = LetterFilter(offsets={1: (3, 8)})
    assert [wanted.next_offset(1, offset) for offset in (0, 3, 4, 8)] == [3, 3, 8, 8]
    assert wanted.next_offset(1, 9) is wanted.next_offset(0, 0) is None
