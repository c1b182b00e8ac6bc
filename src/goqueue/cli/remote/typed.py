"""Times, durations and numbers as they may be typed; what is none is refused by the name of its option."""

import time
from math import isfinite

from goqueue.model import limits
from goqueue.model.errors import InvalidRequest
from goqueue.model.times import parse_duration, parse_span, parse_time, show_duration, show_time


def typed_time(option: str, text: str | None) -> str | None:
    """As the API takes it. "-1h" is an hour ago, "+5m" is five minutes from now, "now" is now."""
    if text is None:
        return None
    now = time.time_ns() // 1_000_000
    try:
        if text == "now":
            return show_time(now)
        if text[:1] in ("-", "+"):
            distance = parse_duration(text[1:])
            return show_time(max(now - distance if text[0] == "-" else now + distance, 0))
        return show_time(parse_time(text))
    except InvalidRequest:
        raise InvalidRequest(
            f"{option}: {text!r} is no time; write RFC 3339 like 2026-01-31T12:00:00Z, Unix milliseconds, or -1h "
            "for an hour ago"
        ) from None


def typed_duration(option: str, text: str, *, least_ms: int = 0, most_ms: int = limits.MAX_DURATION_MS) -> int:
    """Milliseconds."""
    try:
        duration_ms = parse_span(text)
    except InvalidRequest as error:
        raise InvalidRequest(f"{option}: {error}") from None
    if not least_ms <= duration_ms <= most_ms:
        raise InvalidRequest(
            f"{option} is {text}; it must be from {show_duration(least_ms)} to {show_duration(most_ms)}"
        )
    return duration_ms


def check_number(option: str, number: float | None, *, least: int, most: int | None = None) -> None:
    if number is None:
        return
    if not isfinite(number) or number < least or (most is not None and number > most):
        wanted = f"at least {least}" if most is None else f"from {least} to {most}"
        if not isfinite(number):
            wanted = f"a number, {wanted}"
        raise InvalidRequest(f"{option} is {number}; it must be {wanted}")
