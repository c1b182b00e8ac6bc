"""Arguments as fields: times, places, messages of schedules, and what JSON would not carry as it was meant."""

from datetime import UTC, datetime, timedelta, timezone
from enum import StrEnum
from typing import Any, Literal, get_args, get_origin

import pytest
from msgspec import UNSET

from goqueue.client import fields
from goqueue.client.fields import as_fields, as_filter, as_handles, as_ids, as_message, as_place, as_time, by_argument
from goqueue.model.errors import InvalidRequest, InvalidSetting
from goqueue.model.jobs import Missed
from goqueue.model.record import Lane
from goqueue.model.settings import Fsync
from goqueue.model.topic import CleanupPolicy, LanePolicy, OnExpiry

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
NEW_YEAR_MS = 1_767_225_600_000


@pytest.mark.parametrize(
    ("alias", "enum"),
    [
        (fields.CleanupPolicyName, CleanupPolicy),
        (fields.FsyncName, Fsync),
        (fields.OnExpiryName, OnExpiry),
        (fields.LanePolicyName, LanePolicy),
        (fields.MissedName, Missed),
    ],
)
def test_a_choice_may_be_written_as_text(alias: Any, enum: type[StrEnum]) -> None:
    (words,) = (each for each in get_args(alias) if get_origin(each) is Literal)
    assert get_args(words) == tuple(enum)
    assert enum in get_args(alias)


def test_a_time_may_be_written_in_every_way() -> None:
    tokyo = timezone(timedelta(hours=9))
    said = "2026-01-01T00:00:00.000Z"
    assert as_time(NEW_YEAR) == as_time(NEW_YEAR.astimezone(tokyo)) == as_time(NEW_YEAR_MS) == said
    assert as_time("2026-01-01T00:00:00Z") == as_time("2026-01-01T09:00:00+09:00") == as_time(str(NEW_YEAR_MS)) == said
    assert as_time(NEW_YEAR + timedelta(microseconds=1999)) == "2026-01-01T00:00:00.001Z"
    assert as_time(None) is None
    with pytest.raises(InvalidRequest, match="no time zone"):
        as_time(datetime(2026, 1, 1))
    assert as_time("1960-01-01T00:00:00Z") == as_time(-1) == "1970-01-01T00:00:00.000Z"
    for junk in ("tomorrow", True, 1 << 60):
        with pytest.raises(InvalidRequest, match=r"^to_time(:| is) "):
            as_time(junk, "to_time")


def test_a_reset_goes_to_one_place() -> None:
    nowhere: dict[str, Any] = {"to": None, "offset": None, "time": None, "ago": None}
    assert as_place(**{**nowhere, "to": "latest"}) == {"to": "latest"}
    assert as_place(**{**nowhere, "offset": 0}) == {"to": "offset", "value": 0}
    assert as_place(**{**nowhere, "time": NEW_YEAR}) == {"to": "timestamp", "value": "2026-01-01T00:00:00.000Z"}
    assert as_place(**{**nowhere, "ago": 90.25}) == {"to": "duration", "value": "1m30s250ms"}
    assert as_place(**{**nowhere, "ago": 0}) == {"to": "duration", "value": "0s"}
    assert as_place(**{**nowhere, "ago": "2h"}) == {"to": "duration", "value": "2h"}
    for places in (nowhere, {**nowhere, "to": "latest", "offset": 0}):
        with pytest.raises(InvalidRequest, match="one place"):
            as_place(**places)
    for name, junk in (
        ("to", "offset"),
        ("offset", -1),
        ("offset", True),
        ("offset", "5"),
        ("time", "x"),
        ("ago", "x"),
        ("ago", ""),
        ("ago", False),
    ):
        with pytest.raises(InvalidRequest, match=rf"^{name}(:| is) "):
            as_place(**{**nowhere, name: junk})


@pytest.mark.parametrize(
    ("said", "field", "renamed"),
    [
        (
            "num_partitions is less than 1; from 1 on",
            "num_partitions",
            "partitions is 0, which is less than 1; from 1 on",
        ),
        ("message.priority is a number", "message.priority", "priority is 1.5, which is a number"),
        ("mode cannot be 'x'; it is key", "mode", "mode cannot be 'x'; it is key"),
        ("filter.offsets[0] is less than 0", "filter.offsets", "offsets[0] is less than 0"),
        ("a key of filter.offsets is not right", "filter.offsets", "a key of offsets is not right"),
        ("a value of filter.offsets is 5", "filter.offsets", "a value of offsets is 5"),
        ("deliverAt is not right", "deliverAt", "deliver_at is not right"),
        ("unknown field `x`", "x", "x: unknown field `x`"),
        ("there is no group", None, "there is no group"),
    ],
)
def test_a_field_that_was_refused_is_called_as_its_argument_with_what_that_was(
    said: str, field: str | None, renamed: str
) -> None:
    refused = InvalidSetting(said)
    refused.field = field
    given = {"num_partitions": 0, "message": {"priority": 1.5}, "filter": {"offsets": {"0": [-1]}}, "mode": "x"}
    found = by_argument(refused, given)
    assert (type(found), str(found)) == (InvalidSetting, renamed)


def message(value: Any, **named: Any) -> Any:
    return as_message(value, **{"key": None, "partition": None, "priority": None, "headers": (), "ttl": None, **named})


def test_a_message_is_text_when_all_of_it_is() -> None:
    assert message("é") == message("é".encode()) == {"value": "é", "encoding": "utf-8"}
    assert message(None, key=b"k") == {"tombstone": True, "key": "k", "encoding": "utf-8"}
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
    assert message(None, key=b"\xff") == {"tombstone": True, "key": "/w==", "encoding": "base64"}


def test_a_part_of_a_message_is_not_changed_without_its_value() -> None:
    assert message(UNSET) is None
    with pytest.raises(InvalidRequest, match="key, ttl without a value"):
        message(UNSET, key="k", ttl=5)


def test_a_message_that_cannot_be_is_refused_as_one_that_is_published() -> None:
    for named in ({"value": 5}, {"value": "\ud800"}, {"value": "v", "key": 5}, {"value": "v", "headers": ["a"]}):
        with pytest.raises(InvalidRequest):
            message(**named)
    assert message(bytearray(b"v"), key=memoryview(b"k")) == {"value": "v", "key": "k", "encoding": "utf-8"}


# --- what JSON would not carry as it was meant


def test_spans_of_time_are_text_wherever_they_are() -> None:
    backoff = {"base": timedelta(seconds=1.5), "factor": 2, "max": "1m"}
    assert as_fields({"delay": timedelta(minutes=90), "backoff": backoff, "ttl": 5, "every": "5s"}) == {
        "delay": "1h30m",
        "backoff": {"base": "1s500ms", "factor": 2, "max": "1m"},
        "ttl": 5,
        "every": "5s",
    }
    ago = as_place(to=None, offset=None, time=None, ago=timedelta(hours=2))
    assert ago == {"to": "duration", "value": "2h"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"message_ttl": float("nan")}, "message_ttl is nan; it is a number"),
        ({"message_ttl": float("inf")}, "message_ttl is inf; it is a number"),
        ({"delay": timedelta(-1)}, "delay is datetime.timedelta.*; it is from 0s to 36500d"),
        ({"backoff": {"base": float("nan")}}, "backoff.base is nan"),
        ({"name": b"orders"}, "name is b'orders'; it is text; decode it"),
        ({"topics": ["orders", b"bills"]}, "topics is b'bills'; it is text"),
    ],
)
def test_what_would_become_something_else_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        as_fields(given)


def test_bytes_are_base64_where_an_encoding_says_so() -> None:
    messages = [{"value": b"v", "encoding": "base64"}]
    assert as_fields({"messages": messages}) == {"messages": messages}


def test_lists_and_dicts_that_are_none_are_refused_by_name() -> None:
    assert as_handles(each for each in "ab") == {"receipt_handles": ["a", "b"]}
    assert as_ids([(0, 5)]) == [(0, 5)]
    everything: dict[str, Any] = {"from_time": None, "to_time": None, "offsets": None, "deleted": False}
    assert as_filter(**everything) is None
    wrong: Any = 5
    asked: list[tuple[str, Any]] = [
        ("handles is 5; it is a list of handles", lambda: as_handles(wrong)),
        ("handles is \\[5\\]", lambda: as_handles([wrong])),
        ("handles is \\[\\]", lambda: as_handles([])),
        ("ids is 5; it is a list of pairs", lambda: as_ids(wrong)),
        ("ids is \\[5\\]", lambda: as_ids([wrong])),
        ("offsets is 5; it is a dict", lambda: as_filter(**everything | {"offsets": 5})),
        ("offsets is {0: 5}", lambda: as_filter(**everything | {"offsets": {0: 5}})),
        ("to_time is 1.5", lambda: as_filter(**everything | {"to_time": 1.5})),
    ]
    for said, ask in asked:
        with pytest.raises(InvalidRequest, match=said):
            ask()
