"""Times, durations and numbers as they are typed."""

import time

import pytest

from goqueue.cli.remote.typed import check_number, typed_duration, typed_time
from goqueue.model.errors import InvalidRequest
from goqueue.model.times import parse_time


def test_a_time_is_rfc_3339_or_unix_milliseconds() -> None:
    assert typed_time("--at", "2026-01-31T12:00:00+01:00") == "2026-01-31T11:00:00.000Z"
    assert typed_time("--at", "1000") == "1970-01-01T00:00:01.000Z"
    assert typed_time("--at", None) is None


@pytest.mark.parametrize(("text", "distance_s"), [("-1h", -3600), ("+5m", 300), ("now", 0)])
def test_a_time_may_be_said_from_now(text: str, distance_s: int) -> None:
    before = time.time()
    found = typed_time("--at", text)
    assert found is not None
    assert before - 0.001 <= parse_time(found) / 1000 - distance_s <= time.time()


@pytest.mark.parametrize("text", ["yesterday", "-x", "2026-01-31", ""])
def test_what_is_no_time_is_refused_with_its_option(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^--at: .* is no time; write RFC 3339"):
        typed_time("--at", text)


def test_a_duration_names_its_option() -> None:
    assert typed_duration("--wait", "1m30s") == 90_000
    assert typed_duration("--wait", "2.5") == 2500
    with pytest.raises(InvalidRequest, match=r"^--wait: 'x' is no duration"):
        typed_duration("--wait", "x")
    assert typed_duration("--for", "12h", least_ms=1, most_ms=43_200_000) == 43_200_000
    for text in ("0", "13h"):
        with pytest.raises(InvalidRequest, match=f"^--for is {text}; it must be from 1ms to 12h$"):
            typed_duration("--for", text, least_ms=1, most_ms=43_200_000)


def test_a_number_out_of_its_range_is_refused_by_its_option() -> None:
    for number in (None, 1, 5):
        check_number("--limit", number, least=1, most=5)
    with pytest.raises(InvalidRequest, match="--limit is 0; it must be at least 1"):
        check_number("--limit", 0, least=1)
    with pytest.raises(InvalidRequest, match="--limit is 6; it must be from 1 to 5"):
        check_number("--limit", 6, least=1, most=5)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_what_is_no_finite_number_is_refused_by_its_option(number: float) -> None:
    with pytest.raises(InvalidRequest, match=f"^--rate is {number}; it must be a number, at least 0$"):
        check_number("--rate", number, least=0)
    with pytest.raises(InvalidRequest, match=f"^--rate is {number}; it must be a number, from 0 to 5$"):
        check_number("--rate", number, least=0, most=5)
