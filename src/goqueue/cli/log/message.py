"""A message as it is typed: priority, headers and delay from words to the fields of a record."""

import os

from goqueue.model.errors import InvalidRequest
from goqueue.model.record import Extension, Lane, Record
from goqueue.model.times import parse_duration


def parse_priority(text: str) -> Lane:
    """A lane by its name or number."""
    for lane in Lane:
        if text.lower() in (lane.name.lower(), str(lane.value)):
            return lane
    names = ", ".join(f"{lane.name.lower()} ({lane.value})" for lane in Lane)
    raise InvalidRequest(f"{text!r} is no priority: use one of {names}")


def parse_header(text: str) -> tuple[str, bytes]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise InvalidRequest(f"{text!r} is no header: write NAME=VALUE, like source=web")
    return name, os.fsencode(value)


def typed_message(
    *, key: str | None, value: str | None, priority: str, headers: list[str], delay: str | None
) -> Record:
    """Arguments come from the shell as bytes; `fsencode` gives those bytes back, whatever they are."""
    delay_ms = parse_duration(delay) if delay is not None else 0
    return Record(
        key=os.fsencode(key) if key is not None else None,
        value=os.fsencode(value) if value is not None else None,
        priority=parse_priority(priority),
        headers=tuple(parse_header(header) for header in headers),
        extension=Extension(deliver_at=-delay_ms) if delay_ms else None,
    )
