"""Arguments as fields: times, places, messages of schedules, and what a settlement says."""

from datetime import UTC, datetime, timedelta, timezone
from enum import StrEnum
from typing import Any, Literal, get_args, get_origin

import pytest
from msgspec import UNSET

from goqueue.client import arguments
from goqueue.client.arguments import as_message, as_place, as_time, to_delay, to_extension, to_reason
from goqueue.model import limits
from goqueue.model.errors import InvalidRequest
from goqueue.model.jobs import Missed
from goqueue.model.record import Lane
from goqueue.model.settings import Fsync
from goqueue.model.topic import CleanupPolicy, LanePolicy, OnExpiry
from goqueue.wire.settles import NO_ARGUMENT

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
NEW_YEAR_MS = 1_767_225_600_000

# --- of operations


@pytest.mark.parametrize(
    ("alias", "enum"),
    [
        (arguments.CleanupPolicyName, CleanupPolicy),
        (arguments.FsyncName, Fsync),
        (arguments.OnExpiryName, OnExpiry),
        (arguments.LanePolicyName, LanePolicy),
        (arguments.MissedName, Missed),
    ],
)
def test_a_choice_may_be_written_as_text(alias: Any, enum: type[StrEnum]) -> None:
    (words,) = (each for each in get_args(alias) if get_origin(each) is Literal)
    assert get_args(words) == tuple(enum)
    assert enum in get_args(alias)


def test_a_time_may_be_written_in_every_way() -> None:
    tokyo = timezone(timedelta(hours=9))
    assert as_time(NEW_YEAR) == as_time(NEW_YEAR.astimezone(tokyo)) == as_time(NEW_YEAR_MS) == str(NEW_YEAR_MS)
    assert as_time(NEW_YEAR + timedelta(microseconds=1999)) == str(NEW_YEAR_MS + 1)
    assert as_time("2026-01-01T00:00:00Z") == "2026-01-01T00:00:00Z"
    assert as_time(None) is None
    with pytest.raises(InvalidRequest, match="no time zone"):
        as_time(datetime(2026, 1, 1))


def test_a_reset_goes_to_one_place() -> None:
    nowhere: dict[str, Any] = {"to": None, "offset": None, "time": None, "ago": None}
    assert as_place(**{**nowhere, "to": "latest"}) == {"to": "latest"}
    assert as_place(**{**nowhere, "offset": 0}) == {"to": "offset", "value": 0}
    assert as_place(**{**nowhere, "time": NEW_YEAR}) == {"to": "timestamp", "value": str(NEW_YEAR_MS)}
    assert as_place(**{**nowhere, "ago": 90.25}) == {"to": "duration", "value": "1m30s250ms"}
    assert as_place(**{**nowhere, "ago": 0}) == {"to": "duration", "value": "0s"}
    assert as_place(**{**nowhere, "ago": "2h"}) == {"to": "duration", "value": "2h"}
    for places in (nowhere, {**nowhere, "to": "latest", "offset": 0}):
        with pytest.raises(InvalidRequest, match="one place"):
            as_place(**places)


def message(value: Any, **named: Any) -> Any:
    return as_message(value, **{"key": None, "partition": None, "priority": None, "headers": (), "ttl": None, **named})


def test_a_message_is_text_when_all_of_it_is() -> None:
    assert message("é") == message("é".encode()) == {"value": "é", "encoding": "utf-8"}
    assert message(None, key=b"k") == {"value": None, "key": "k", "encoding": "utf-8"}
    assert message("v", headers=[("a", b"1"), ("a", "2")], priority=Lane.CRITICAL) == {
        "value": "v",
        "headers": [("a", "1"), ("a", "2")],
        "priority": 0,
        "encoding": "utf-8",
    }


def test_a_message_is_base64_as_soon_as_some_of_it_is_not_text() -> None:
    assert message("v", key=b"\xff", headers={"a": "b"}) == {
        "value": "dg==",
        "key": "/w==",
        "headers": [("a", "Yg==")],
        "encoding": "base64",
    }
    assert message(None, key=b"\xff") == {"value": None, "key": "/w==", "encoding": "base64"}


def test_a_part_of_a_message_is_not_changed_without_its_value() -> None:
    assert message(UNSET) is None
    with pytest.raises(InvalidRequest, match="key, ttl without a value"):
        message(UNSET, key="k", ttl=5)


def test_a_message_that_cannot_be_is_refused_as_one_that_is_published() -> None:
    for named in ({"value": 5}, {"value": "\ud800"}, {"value": "v", "key": 5}, {"value": "v", "headers": ["a"]}):
        with pytest.raises(InvalidRequest):
            message(**named)
    assert message(bytearray(b"v"), key=memoryview(b"k")) == {"value": "v", "key": "k", "encoding": "utf-8"}


# --- of settlements


def test_a_settlement_says_milliseconds() -> None:
    assert (to_delay(None), to_delay(0), to_delay(1.5)) == (NO_ARGUMENT, 0, 1500)
    assert to_extension(1.5) == 1500


@pytest.mark.parametrize("seconds", [-1, limits.MAX_BACKOFF_MS / 1000 + 1])
def test_a_delay_has_bounds(seconds: float) -> None:
    with pytest.raises(InvalidRequest, match="a delay is from 0"):
        to_delay(seconds)


@pytest.mark.parametrize("seconds", [-1, 0, limits.MAX_VISIBILITY_MS / 1000 + 1])
def test_an_extension_has_bounds(seconds: float) -> None:
    with pytest.raises(InvalidRequest, match="is kept for up to"):
        to_extension(seconds)


def test_a_reason_has_a_length() -> None:
    longest = "x" * limits.MAX_REJECT_CHARS
    assert to_reason(longest) == longest
    with pytest.raises(InvalidRequest, match="shorten it"):
        to_reason(longest + "x")
