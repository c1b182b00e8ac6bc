"""Messages to publish: from words, lines or JSON lines, with what all of them have in common.

What stands before a line that is wrong is handed on before the error is raised.
"""

from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

import msgspec

from goqueue.cli.log.lines import Source, arrived_lines
from goqueue.model import limits
from goqueue.model.errors import InvalidRequest
from goqueue.model.times import parse_span, parse_time
from goqueue.wire.shapes.messages import Message

_NEARLY: Final = 4 * limits.MAX_RECORD_BYTES // 3 + limits.MIB
"""A line of JSON may be longer than what it says: base64, and names of fields."""


class Outgoing(NamedTuple):
    """`options` are what the client's producer takes beside the value."""

    value: bytes | None
    options: dict[str, Any]


class Batch(NamedTuple):
    """Messages that arrived together, and how many bytes of input they took."""

    messages: list[Outgoing]
    input_bytes: int


def from_contents(contents: Iterable[bytes | None], same: dict[str, Any]) -> Batch:
    messages = [Outgoing(content, same) for content in contents]
    return Batch(messages, sum(len(message.value or b"") for message in messages))


def from_lines(source: Source, same: dict[str, Any], *, separator: bytes | None) -> Iterator[Batch]:
    """Each line is a value; with a separator what stands before the first one is its key."""

    def read(line: bytes) -> Outgoing:
        if separator is None:
            return Outgoing(line, same)
        key, found, value = line.partition(separator)
        if not found:
            raise InvalidRequest(f"has no {separator.decode('utf-8', 'backslashreplace')!r} between a key and a value")
        return Outgoing(value, {**same, "key": key})

    return _batches(arrived_lines(source, limits.MAX_RECORD_BYTES), read)


def from_json_lines(source: Source, same: dict[str, Any]) -> Iterator[Batch]:
    """Each line is a message as over HTTP; what it does not say, the options say. Empty lines are passed over."""

    def read(line: bytes) -> Outgoing | None:
        try:
            return _outgoing(msgspec.json.decode(line, type=dict[str, Any]), same) if line.strip() else None
        except (msgspec.MsgspecError, UnicodeDecodeError, InvalidRequest) as error:
            raise InvalidRequest(f"is no message ({error})") from None

    return _batches(arrived_lines(source, _NEARLY), read)


def _batches(arrived: Iterable[list[bytes]], read: Callable[[bytes], Outgoing | None]) -> Iterator[Batch]:
    number = 0
    for lines in arrived:
        messages: list[Outgoing] = []
        size = 0
        for line in lines:
            number += 1
            try:
                message = read(line)
            except InvalidRequest as error:
                yield Batch(messages, size)
                raise InvalidRequest(f"line {number} {error}; neither it nor what follows it is published") from None
            size += len(line) + 1
            if message is not None:
                messages.append(message)
        yield Batch(messages, size)


def _outgoing(fields: dict[str, Any], same: dict[str, Any]) -> Outgoing:
    message = msgspec.convert(fields, Message)
    if message.value is None and not message.tombstone:
        raise InvalidRequest("value is missing; a message without one is a tombstone, and says so: tombstone is true")
    if message.value is not None and message.tombstone:
        raise InvalidRequest("a tombstone has no value; leave out one of the two")
    coded = message.encoding == "base64"
    options = dict(same)
    if message.key is not None:
        options["key"] = _content(message.key, coded)
    if message.headers:
        pairs = message.headers.items() if isinstance(message.headers, dict) else message.headers
        options["headers"] = [(name, _content(value, coded)) for name, value in pairs]
    if message.partition is not None:
        options["partition"] = message.partition
    if "priority" in fields:
        options["priority"] = message.priority
    if message.delay is not None or message.deliverAt is not None:
        options = {name: value for name, value in options.items() if name not in ("delay", "deliver_at")}
    for name, span in (("delay", message.delay), ("ttl", message.ttl)):
        if span is not None:
            options[name] = parse_span(span) / 1000
    for name, moment in (("deliver_at", message.deliverAt), ("event_time", message.event_time)):
        if moment is not None:
            options[name] = parse_time(str(moment))
    return Outgoing(None if message.value is None else _content(message.value, coded), options)


def _content(text: str, coded: bool) -> bytes:
    if not coded:
        return text.encode()
    try:
        return b64decode(text, validate=True)
    except (NotBase64, ValueError):
        raise InvalidRequest("its encoding is base64, and a part of it is not") from None
