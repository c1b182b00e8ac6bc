"""Times and durations as a person types and reads them. Inside, both are milliseconds."""

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

from goqueue.model import limits
from goqueue.model.errors import InvalidRequest

_DAY_MS: Final = 86_400_000
_UNITS_MS: Final = {"d": _DAY_MS, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
"""Longest first."""
_PART: Final = re.compile(r"(\d{1,15})(ms|[dhms])")
_DURATION: Final = re.compile(r"(?:\d{1,15}(?:ms|[dhms]))+")
_SECONDS: Final = re.compile(r"\d{1,9}(?:\.\d{1,6})?")
_UNIX_MS: Final = re.compile(r"\d{1,15}")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def parse_duration(text: str) -> int:
    """Milliseconds of "30s", "1h30m", "7d", "250ms"."""
    if not _DURATION.fullmatch(text):
        raise InvalidRequest(f"{text!r} is no duration: write a number and a unit, like 250ms, 30s, 1h30m or 7d")
    total = sum(int(number) * _UNITS_MS[unit] for number, unit in _PART.findall(text))
    if total > limits.MAX_DURATION_MS:
        longest = limits.MAX_DURATION_MS // _DAY_MS
        raise InvalidRequest(f"{text!r} is too long: write a duration of at most {longest}d, 100 years")
    return total


def parse_span(span: str | float) -> int:
    """Milliseconds of a duration that is written as for `parse_duration`, or in seconds, as a number or as text."""
    if isinstance(span, str):
        if not _SECONDS.fullmatch(span):
            return parse_duration(span)
        span = float(span)
    return round(span * 1000)


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


def show_duration(duration_ms: int) -> str:
    """As "30s", "1h30m", "250ms", the largest units first; `parse_duration` reads it back."""
    if duration_ms < 0:
        return f"-{show_duration(-duration_ms)}"
    parts = []
    for unit, unit_ms in _UNITS_MS.items():
        number, duration_ms = divmod(duration_ms, unit_ms)
        if number:
            parts.append(f"{number}{unit}")
    return "".join(parts) or "0s"


def show_time(unix_ms: int) -> str:
    """RFC 3339 in UTC; `parse_time` reads it back."""
    day = show_day(unix_ms)
    return f"{day}T{show_clock(unix_ms)}" if day else f"{unix_ms} ms"


def show_day(unix_ms: int) -> str:
    """The first part of `show_time`: the day in UTC; empty when no calendar has it."""
    return _name_day(unix_ms // _DAY_MS)


@lru_cache
def _name_day(day: int) -> str:
    try:
        return f"{_EPOCH + timedelta(days=day):%Y-%m-%d}"
    except OverflowError:
        return ""


def show_clock(unix_ms: int) -> str:
    """The second part of `show_time`: the time of that day, in UTC."""
    seconds, milliseconds = divmod(unix_ms % _DAY_MS, 1000)
    return f"{_name_second(seconds)}.{milliseconds:03d}Z"


@lru_cache(maxsize=1024)
def _name_second(of_the_day: int) -> str:
    minutes, seconds = divmod(of_the_day, 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{seconds:02d}"
