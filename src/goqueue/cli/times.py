"""Times and durations as a person types and reads them. Inside, both are milliseconds."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from goqueue.model.errors import InvalidRequest

_UNITS_MS: Final = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_PART: Final = re.compile(r"(\d{1,15})(ms|[dhms])")
_DURATION: Final = re.compile(r"(?:\d{1,15}(?:ms|[dhms]))+")
_UNIX_MS: Final = re.compile(r"\d{1,15}")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LONGEST_MS: Final = 2**53
"""Longer than any log will live, and far from what a field cannot hold."""


def parse_duration(text: str) -> int:
    """Milliseconds of "30s", "1h30m", "7d", "250ms"."""
    if not _DURATION.fullmatch(text):
        raise InvalidRequest(f"{text!r} is no duration: write a number and a unit, like 250ms, 30s, 1h30m or 7d")
    total = sum(int(number) * _UNITS_MS[unit] for number, unit in _PART.findall(text))
    if total > _LONGEST_MS:
        raise InvalidRequest(f"{text!r} is longer than any log will live; write a shorter duration")
    return total


def parse_time(text: str) -> int:
    """Unix milliseconds of an RFC 3339 time, or of Unix milliseconds."""
    if _UNIX_MS.fullmatch(text):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InvalidRequest(
            f"{text!r} is no time: write RFC 3339 with a zone, like 2026-01-31T12:00:00Z, or Unix milliseconds"
        )
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def show_time(unix_ms: int) -> str:
    """RFC 3339 in UTC; `parse_time` reads it back."""
    try:
        moment = _EPOCH + timedelta(milliseconds=unix_ms)
    except OverflowError:
        return f"{unix_ms} ms"
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"


def show_day(unix_ms: int) -> str:
    """The first part of `show_time`: the day in UTC."""
    return show_time(unix_ms).partition("T")[0]


def show_clock(unix_ms: int) -> str:
    """The second part of `show_time`: the time of that day, in UTC."""
    return show_time(unix_ms).rpartition("T")[2]
