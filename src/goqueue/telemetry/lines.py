"""An event as one line, whatever is in it.

Fields hold other people's bytes and objects: nothing in them can end a line, look like another field, act on a
terminal, or raise. Fields whose name looks like a secret are masked, also inside of mappings. Sizes are bounded.
"""

import json
import re
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import Enum
from itertools import islice
from math import isfinite
from typing import Final, NamedTuple

MAX_TEXT_CHARS: Final = 4096
"""What is shown of a message, of a text in a field, and of a field in all in text form."""
MAX_TRACEBACK_CHARS: Final = 16 * 1024
"""What is shown of a traceback: its end, where the error is."""
MAX_ITEMS: Final = 64
"""Items of collections shown per event."""
MAX_DEPTH: Final = 4
"""Collections within collections; what is deeper is left out, because nobody has masked it."""
MAX_INT_BITS: Final = 128
"""A larger number is shown in hexadecimal, which has no limit of its own."""

MASK: Final = "***"
_SECRET: Final = re.compile(r"token|secret|passw|api[_-]?key|private[_-]?key|authorization|credential|cookie", re.I)
_BARE: Final = re.compile(r'[^\s"=\\]+')
_UNDER_A_LINE: Final = "    | "
"""Begins every line of a traceback, so that none can be taken for an event."""

Plain = bool | int | float | str | list["Plain"] | dict[str, "Plain"] | None
"""What JSON knows."""


class Event(NamedTuple):
    unix_s: float
    level: str
    logger: str
    message: str
    fields: Mapping[str, object]
    error: BaseException | None


def as_json(event: Event) -> str:
    """One object; ASCII alone, so that no letter has a meaning of its own on the way."""
    shown: dict[str, Plain] = {
        "time": _time(event.unix_s),
        "level": event.level,
        "logger": event.logger,
        "message": _cut(event.message),
        "fields": dict(_plain_fields(event.fields)),
    }
    if event.error is not None:
        shown["error"] = show(event.error)
        if trace := _traceback(event.error):
            shown["traceback"] = trace
    return json.dumps(shown, separators=(",", ":"))


def as_text(event: Event) -> str:
    """`TIME level logger: message name=value`, and under it the traceback if there is one."""
    parts = [f"{_time(event.unix_s)} {event.level:<5} {_escape(event.logger)}: {_escape(_cut(event.message))}"]
    parts += (f"{_quote(name)}={_value(value)}" for name, value in _plain_fields(event.fields))
    if event.error is None:
        return " ".join(parts)
    parts.append(f"error={_quote(show(event.error))}")
    trace = _traceback(event.error)
    return "\n".join([" ".join(parts), *(_UNDER_A_LINE + _escape(line) for line in trace.split("\n") if trace)])


def show(value: object) -> str:
    """Any object as a text of bounded length."""
    try:
        if isinstance(value, BaseException):
            text = str(value)
            return _cut(f"{type(value).__name__}: {text}" if text else type(value).__name__)
        if isinstance(value, bytes | bytearray | memoryview):
            text = bytes(value[:MAX_TEXT_CHARS]).decode("utf-8", "backslashreplace")
            return text if len(value) <= MAX_TEXT_CHARS else f"{text}... ({len(value)} bytes)"
        return _cut(str.__str__(value if isinstance(value, str) else str(value)))
    except Exception:
        return f"<unprintable {type(value).__name__}>"


# --- values


class _Room:
    """How many items of collections may still be shown."""

    def __init__(self) -> None:
        self.left = MAX_ITEMS


def _plain_fields(fields: Mapping[str, object]) -> list[tuple[str, Plain]]:
    room = _Room()
    return [(show(name), _masked(name, value, MAX_DEPTH, room)) for name, value in fields.items()]


def _masked(name: object, value: object, depth: int, room: _Room) -> Plain:
    return MASK if _SECRET.search(show(name)) else _plain(value, depth, room)


def _plain(value: object, depth: int, room: _Room) -> Plain:
    """As JSON has it. Only exact types come out, so that nothing of the object's own runs afterwards."""
    try:
        if isinstance(value, Enum):
            value = value.value
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int):
            number = int.__int__(value)
            return number if number.bit_length() <= MAX_INT_BITS else _cut(hex(number))
        if isinstance(value, float):
            return float.__float__(value) if isfinite(value) else str(float.__float__(value))
        if isinstance(value, Mapping | list | tuple | set | frozenset) and not depth:
            return "..."
        if isinstance(value, Mapping):
            taken = list(islice(value.items(), room.left))
            room.left -= len(taken)
            members = {show(key): _masked(key, item, depth - 1, room) for key, item in taken}
            return members if len(taken) == len(value) else members | {"...": f"{len(value) - len(taken)} more"}
        if isinstance(value, list | tuple | set | frozenset):
            items = list(islice(value, room.left))
            room.left -= len(items)
            shown = [_plain(item, depth - 1, room) for item in items]
            return shown if len(items) == len(value) else [*shown, f"... {len(value) - len(items)} more"]
    except Exception:
        return f"<unprintable {type(value).__name__}>"
    return show(value)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT_CHARS else f"{text[:MAX_TEXT_CHARS]}... ({len(text)} characters)"


def _traceback(error: BaseException) -> str:
    """Empty for an error that was never raised."""
    if error.__traceback__ is None:
        return ""
    try:
        text = "".join(traceback.format_exception(error)).rstrip("\n")
    except Exception:
        return f"<unprintable traceback of {type(error).__name__}>"
    return text if len(text) <= MAX_TRACEBACK_CHARS else f"... {text[-MAX_TRACEBACK_CHARS:]}"


# --- text


def _time(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def _value(value: Plain) -> str:
    return _quote(value if isinstance(value, str) else _cut(json.dumps(value, ensure_ascii=False)))


def _quote(text: str) -> str:
    """As it is when it can only be read as one value; else in quotes."""
    if _BARE.fullmatch(text) and text.isprintable():
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{_escape(escaped)}"'


def _escape(text: str) -> str:
    """Letters that are not printable as escapes: line ends of every kind, terminal codes, changes of direction."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else _code(letter) for letter in text)


def _code(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")
