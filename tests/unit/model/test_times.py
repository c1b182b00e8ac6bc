"""Times and durations as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goqueue.model import limits
from goqueue.model.errors import InvalidRequest
from goqueue.model.times import parse_duration, parse_span, parse_time, show_duration, show_time


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [("30s", 30_000), ("1h30m", 5_400_000), ("7d", 604_800_000), ("250ms", 250), ("1m250ms", 60_250), ("0s", 0)],
)
def test_a_duration_is_numbers_with_units(text: str, expected_ms: int) -> None:
    assert parse_duration(text) == expected_ms


@pytest.mark.parametrize("text", ["", "30", "s", "-5s", "1.5h", "5 s", "5w", "999999999999999d"])
def test_a_duration_that_is_none_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidRequest, match="write a"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("duration_ms", "expected"),
    [
        (30_000, "30s"), (5_400_000, "1h30m"), (250, "250ms"), (0, "0s"), (1, "1ms"), (1500, "1s500ms"), (60_000, "1m"),
        (43_200_000, "12h"), (604_800_000, "7d"), (90_061_001, "1d1h1m1s1ms"), (-1500, "-1s500ms"),
    ],
)  # fmt: skip
def test_a_duration_is_shown_in_the_largest_units_that_fit(duration_ms: int, expected: str) -> None:
    assert show_duration(duration_ms) == expected


@given(st.integers(0, limits.MAX_DURATION_MS))
def test_a_shown_duration_can_be_typed_back(duration_ms: int) -> None:
    assert parse_duration(show_duration(duration_ms)) == parse_span(show_duration(duration_ms)) == duration_ms


@pytest.mark.parametrize(
    "text", ["2026-01-31T12:00:00Z", "2026-01-31T12:00:00.000+00:00", "2026-01-31T14:00:00+02:00", "1769860800000"]
)
def test_one_moment_can_be_written_in_several_ways(text: str) -> None:
    assert parse_time(text) == 1769860800000


@pytest.mark.parametrize("text", ["2026-01-31T12:00:00", "2026-01-31", "yesterday", "-5", "12:00Z"])
def test_a_time_without_a_zone_or_a_day_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="RFC 3339"):
        parse_time(text)


@pytest.mark.parametrize("unix_ms", [0, 1, 999, 1769860800123])
def test_a_shown_time_can_be_typed_back(unix_ms: int) -> None:
    assert parse_time(show_time(unix_ms)) == unix_ms


def test_a_time_no_calendar_has_is_shown_as_a_number() -> None:
    assert show_time(2**62) == f"{2**62} ms"
