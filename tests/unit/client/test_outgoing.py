"""What users say a message is made of, and what of it is refused."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from goqueue.client.outgoing import LANES, to_bytes, to_due, to_expiry, to_headers, to_lane, to_moment, to_ms, to_start
from goqueue.model import limits
from goqueue.model.errors import InvalidRequest
from goqueue.model.record import Lane

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
NEW_YEAR_MS = 1_767_225_600_000


@pytest.mark.parametrize("content", ["käse", "käse".encode(), bytearray("käse".encode()), memoryview("käse".encode())])
def test_text_and_whatever_holds_bytes_is_bytes(content: Any) -> None:
    found = to_bytes(content, "value")
    assert (type(found), found) == (bytes, b"k\xc3\xa4se")


@pytest.mark.parametrize("content", [5, None, [b"a"], object(), "\ud800"])
def test_other_content_is_refused(content: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"^value is "):
        to_bytes(content, "value")


def test_headers_are_pairs_or_a_dict_and_keep_their_order() -> None:
    mixed: dict[str, str | bytes] = {"b": "1", "a": b"2"}
    assert to_headers(mixed) == [("b", b"1"), ("a", b"2")]
    assert to_headers((name, name) for name in "bab") == [("b", b"b"), ("a", b"a"), ("b", b"b")]
    assert to_headers(()) == []


@pytest.mark.parametrize("headers", [5, ["a"], [("a", b"", b"")], {"a": None}, {5: b""}, [(b"a", b"")]])
def test_other_headers_are_refused(headers: Any) -> None:
    with pytest.raises(InvalidRequest):
        to_headers(headers)


def test_a_priority_is_a_lane_by_its_name_or_number() -> None:
    assert [to_lane(name) for name in ("critical", "high", "normal", "low", "background")] == list(Lane)
    assert [to_lane(lane) for lane in Lane] == list(Lane)
    assert [LANES[number] for number in range(len(Lane))] == list(Lane)


@pytest.mark.parametrize("priority", ["urgent", "NORMAL", 5, -1, None, [], 1.5, 1.0, True, False])
def test_other_priorities_are_refused(priority: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"^priority is .*; it is one of critical"):
        to_lane(priority)


@pytest.mark.parametrize(
    "moment",
    [
        NEW_YEAR,
        NEW_YEAR.astimezone(timezone(timedelta(hours=5, minutes=30))),
        NEW_YEAR + timedelta(microseconds=999),
        NEW_YEAR_MS,
        "2026-01-01T00:00:00Z",
        "2026-01-01T01:00:00+01:00",
    ],
)
def test_a_moment_is_the_millisecond_it_lies_in(moment: Any) -> None:
    assert to_ms(moment, "deliver_at") == NEW_YEAR_MS


def test_a_moment_before_1970_is_rounded_down_as_well() -> None:
    assert to_ms(datetime(1969, 12, 31, 23, 59, 59, 999_500, tzinfo=UTC), "event_time") == -1


@pytest.mark.parametrize("moment", [datetime(2026, 1, 1), 1e12, None, "tomorrow", timedelta(1), True])
def test_other_moments_are_refused(moment: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"^deliver_at"):
        to_ms(moment, "deliver_at")


@pytest.mark.parametrize("moment", [-1, limits.LAST_TIME_MS + 1, datetime(1969, 1, 1, tzinfo=UTC)])
def test_a_record_has_only_times_that_cannot_be_taken_for_a_delay_and_can_be_shown(moment: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"event_time is .* between the years 1970 and 9999"):
        to_moment(moment, "event_time")
    with pytest.raises(InvalidRequest, match="deliver_at is"):
        to_due(None, moment)


def test_a_delay_is_a_time_below_zero() -> None:
    assert to_due(1.5, None) == to_due("1s500ms", None) == to_due(timedelta(seconds=1.5), None) == -1500
    assert to_due(limits.MAX_DURATION_MS / 1000, None) == -limits.MAX_DURATION_MS
    assert to_due(0, None) is None
    assert to_due(0.0001, None) is None
    assert to_due(None, None) is None
    assert to_due(None, NEW_YEAR) == to_due(None, NEW_YEAR_MS) == NEW_YEAR_MS
    assert to_due(None, 0) == 0


def test_a_time_to_live_is_some_time() -> None:
    assert to_expiry(2) == to_expiry("2s") == to_expiry(timedelta(seconds=2)) == -2000
    assert to_expiry(0.0001) == -1


@pytest.mark.parametrize("ttl", [0, 0.0, "0", "0s", "0ms", timedelta(0)])
def test_a_message_without_time_to_live_is_refused(ttl: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"^ttl is .*; it is at least 1ms: a message without time to live"):
        to_expiry(ttl)


@pytest.mark.parametrize(
    "span", [-0.001, True, False, float("nan"), float("inf"), limits.MAX_DURATION_MS, "x", [], timedelta(-1)]
)
def test_spans_that_cannot_be_are_refused(span: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"^delay"):
        to_due(span, None)
    with pytest.raises(InvalidRequest, match=r"^ttl"):
        to_expiry(span)


def test_a_group_starts_at_an_offset_a_time_or_an_end() -> None:
    assert [to_start(start) for start in ("latest", 5, NEW_YEAR)] == ["latest", 5, "2026-01-01T00:00:00.000Z"]
    several: list[Any] = [None, 1.5, True, datetime(2026, 1, 1)]
    for start in several:
        with pytest.raises(InvalidRequest, match=r"^start is "):
            to_start(start)


def test_a_delay_and_a_time_are_not_for_one_message() -> None:
    with pytest.raises(InvalidRequest, match="not both"):
        to_due(0, NEW_YEAR)
