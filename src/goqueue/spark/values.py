"""What values of options may be: each reads text, or raises ValueError with what it should have been."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from goqueue.model.errors import InvalidRequest
from goqueue.model.names import check_topic_name
from goqueue.model.times import parse_span, parse_time

_SIZES: Final = {"": 1, "b": 1, "k": 1 << 10, "kb": 1 << 10, "m": 1 << 20, "mb": 1 << 20, "g": 1 << 30, "gb": 1 << 30}


def text(value: str) -> str:
    if not value.strip():
        raise ValueError("some text")
    return value.strip()


def count(value: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", value.strip()):
        raise ValueError("a whole number from 0 on")
    return int(value)


def whole(value: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", value.strip()) or int(value) < 1:
        raise ValueError("a whole number from 1 on")
    return int(value)


def number(value: str) -> float:
    try:
        found = float(value)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise ValueError("a number above 0")
    return found


def size(value: str) -> int:
    found = re.fullmatch(r"([0-9]{1,15})\s*([a-z]{0,2})", value.strip().lower())
    if found is None or found[2] not in _SIZES or not int(found[1]):
        raise ValueError("a number of bytes, like 67108864 or 64m")
    return int(found[1]) * _SIZES[found[2]]


def yes_or_no(value: str) -> bool:
    if value.strip().lower() not in ("true", "false"):
        raise ValueError("true or false")
    return value.strip().lower() == "true"


def seconds(value: str) -> float:
    try:
        return parse_span(value.strip()) / 1000
    except InvalidRequest:
        raise ValueError("a time span, like 500ms, 30s or 1h") from None


def time(value: str) -> int:
    """Unix milliseconds."""
    try:
        return parse_time(value.strip())
    except InvalidRequest:
        raise ValueError("a time, like 2026-01-31T12:00:00Z, or milliseconds since 1970") from None


def one_of(*words: str) -> Callable[[str], str]:
    def choose(value: str) -> str:
        if value.strip().lower() not in words:
            raise ValueError(" or ".join(words))
        return value.strip().lower()

    return choose


def topic(value: str) -> str:
    check_topic_name(value.strip())
    return value.strip()


def topics(value: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
    if not names:
        raise ValueError("names of topics, with commas between them")
    for name in names:
        check_topic_name(name)
    return names


def pair(value: str) -> tuple[str, str]:
    name, equals, rest = value.partition("=")
    if not name or not equals:
        raise ValueError("NAME=VALUE")
    return name, rest


def pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"a regular expression of Python's ({error})") from None
    return value


def path(value: str) -> str:
    """Absolute, or with a scheme of Hadoop's."""
    found = text(value)
    return found if ":" in found else str(Path(found).resolve())
