"""Between protobuf's messages and the shapes of the API, by the schema alone: no operation is named here.

A request becomes plain values that the shape checks, as it checks JSON. A field that is not known is refused like one
in JSON: a broker that is older than its client must not do half of what it was asked.
"""

from base64 import b64decode, b64encode
from collections.abc import Callable
from importlib import import_module
from itertools import islice
from typing import Any, Final, TypeVar

import msgspec
from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Struct
from google.protobuf.unknown_fields import UnknownFieldSet
from msgspec import UNSET

from goqueue.api.grpc.schema import (
    EMPTY_IS_NULL,
    ENTRIES,
    FREE,
    HEADER,
    INSTEAD_OF,
    NUMBERS_TOO,
    PLACE,
    Field,
    Label,
    Message,
    as_message,
    message_name,
    request_name,
)
from goqueue.api.grpc.streams import SCHEMA
from goqueue.api.grpc.weighing import count_values
from goqueue.api.later import EntryReader, Later, check_values, fields_of
from goqueue.api.operations import OPERATIONS, Operation
from goqueue.api.refusals import refuse
from goqueue.api.turns import FEW, Turns, in_turns
from goqueue.model import limits
from goqueue.model.errors import InvalidRequest, TooLarge
from goqueue.wire.shapes import Poll, Reply, Request

pb: Final[Any] = import_module("goqueue.api.grpc.generated.goqueue_pb2")
"""The classes of the messages. They have no types that are worth checking."""

T = TypeVar("T", bound=Request)

Converter = Callable[[Any], Any]

_LATER: Final = {
    request_name(operation.name): operation.later for operation in OPERATIONS if operation.later is not None
}
_NAMED_FIELDS: Final = 10
"""Of those that are not known, in a refusal."""
_SCALARS: Final = frozenset(("bool", "bytes", "double", "int32", "int64", "string"))
_NUMBERS: Final = {str(number): number for number in range(10)}
"""In JSON they would be no text."""


def read_request(operation: Operation, message: Any) -> tuple[Request, dict[str, Any]]:
    """The request, and the fields that would stand in its path."""
    fields = _READERS[request_name(operation.name)](message)
    path = operation.path_of(fields)
    for name in path:
        del fields[name]
    unbounded = "max_bytes" in operation.request.__struct_fields__ and "max_bytes" not in fields
    try:
        if operation.later is None:
            request = msgspec.convert(fields, operation.request)
        else:
            request = _LISTS[operation.name].convert(fields)
    except msgspec.ValidationError as error:
        raise refuse(error, operation.request) from None
    return fitting(request, limits.GRPC_READ_BYTES) if unbounded else request, path


class _List:
    """Makes requests for an operation that has a list to be read later."""

    def __init__(self, operation: Operation, later: str) -> None:
        self._request = operation.request
        self._name = later
        self._reader = EntryReader(operation.request, later)
        self._shape = msgspec.defstruct(
            f"{operation.name}_message",
            fields_of(operation.request, later, Any),
            kw_only=True,
            forbid_unknown_fields=True,
        )

    def convert(self, fields: dict[str, Any]) -> Any:
        items = fields.get(self._name, ())
        if items:
            fields[self._name] = [None] * len(items)
        found = msgspec.convert(fields, self._shape)
        own = {name: getattr(found, name) for name in self._request.__struct_fields__}
        own[self._name] = Later(items, self._read)
        return self._request(**own)

    def _read(self, number: int, message: Any) -> Any:
        check_weight(message)
        return self._reader.from_values(number, read_message(message))


def fitting(request: T, max_bytes: int) -> T:
    """The same read or poll, whose reply is one that any client takes: each message has names beside its record."""
    changed = {"max_bytes": max_bytes}
    if isinstance(request, Poll):
        changed["max_messages"] = min(request.max_messages, limits.GRPC_READ_MESSAGES)
    return msgspec.structs.replace(request, **changed)


def read_message(message: Any) -> Any:
    """Plain values of any message, as JSON has them."""
    return _READERS[message.DESCRIPTOR.name](message)


def write_reply(reply: Reply) -> Any:
    """The message that a reply is here."""
    return _WRITERS[message_name(type(reply))](reply)


async def write_in_turns(turns: Turns, reply: Reply) -> Any:
    """The message that a reply is here; others get their turns while its long lists are written."""
    lists = {name: one for name, one in _LONG.get(type(reply), {}).items() if len(getattr(reply, name) or ()) > FEW}
    if not lists:
        return write_reply(reply)
    made = {name: await in_turns(turns, getattr(reply, name), one) for name, one in lists.items()}
    async with turns.turn():
        message = write_reply(msgspec.structs.replace(reply, **{name: [] for name in lists}))
        for name, entries in made.items():
            getattr(message, name).extend(entries)
        return message


def check_weight(message: Any) -> None:
    """Refuse one of many messages of a request if it has more values than a message may, known or not."""
    if message.ByteSize() > limits.MAX_MESSAGE_VALUES:
        check_values(count_values(message.DESCRIPTOR.name, message.SerializeToString(), limits.MAX_MESSAGE_VALUES))


def check_known(message: Any) -> None:
    """Refuse fields that this broker does not know. Those of messages within are not looked at."""
    unknown = UnknownFieldSet(message)
    if len(unknown):
        numbers = dict.fromkeys([unknown[place].field_number for place in range(len(unknown))])
        named = ", ".join(map(str, islice(numbers, _NAMED_FIELDS))) + (", ..." if len(numbers) > _NAMED_FIELDS else "")
        raise InvalidRequest(
            f"{message.DESCRIPTOR.name} has fields that this broker does not know ({named}); is the client newer?"
        )


# --- reading


def _reader(message: Message) -> Converter:
    converters = {field.name: _read_field(message, field) for field in message.fields}
    extra = [(name, other) for name, other in INSTEAD_OF.items() if name in converters]

    def read(found: Any) -> Any:
        check_known(found)
        fields = {each.name: converters[each.name](value) for each, value in found.ListFields()}
        for name, other in extra:
            if name in fields:
                if other in fields:
                    raise InvalidRequest(f"{name} stands for {other}; say one of them")
                fields[other] = fields.pop(name)
        if message.has_content:
            _read_content(fields)
        return fields

    def unwrap(found: Any) -> Any:
        return converters[ENTRIES](getattr(found, ENTRIES))

    return unwrap if message.wraps else read


def _read_content(fields: dict[str, Any]) -> None:
    """Text where all of it is text, as a shape has it; base64 where it is not."""
    fields.setdefault("value", None)
    headers = fields.get("headers", [])
    try:
        text = {name: fields[name].decode() for name in ("key", "value") if fields.get(name) is not None}
        pairs = [(name, value.decode()) for name, value in headers]
    except UnicodeDecodeError:
        text = {name: _base64(fields[name]) for name in ("key", "value") if fields.get(name) is not None}
        pairs = [(name, _base64(value)) for name, value in headers]
        fields["encoding"] = "base64"
    fields |= text
    if pairs:
        fields["headers"] = pairs


def _base64(data: bytes) -> str:
    return b64encode(data).decode()


def _read_field(message: Message, field: Field) -> Converter:
    one = _read_one(field.kind)
    if field.name == _LATER.get(message.name):
        return _same
    if field.kind == HEADER:
        return _read_headers
    if field.name in NUMBERS_TOO:
        return lambda text: _NUMBERS.get(text, text)
    if field.name in EMPTY_IS_NULL:
        return _or_null
    if as_message(message.shape, field.name) is not None:
        return lambda value: msgspec.json.encode(one(value)).decode()
    if field.label is Label.MANY:
        return list if field.kind in _SCALARS else lambda values: [one(value) for value in values]
    if field.label is Label.MAP:
        return dict if field.kind in _SCALARS else lambda values: {key: one(value) for key, value in values.items()}
    return one


def _read_one(kind: str) -> Converter:
    if kind == PLACE:
        return lambda place: (place.partition, place.offset)
    if kind in _SCALARS:
        return _same
    return lambda message: _READERS[kind](message)


def _read_headers(headers: Any) -> list[tuple[str, bytes]]:
    if len(headers) > limits.MAX_HEADERS:
        raise TooLarge(f"the message has {len(headers)} headers; it may have {limits.MAX_HEADERS}")
    return [(header.name, header.value) for header in headers]


def _same(value: Any) -> Any:
    return value


def _or_null(text: str) -> str | None:
    """Where JSON has null besides leaving out: an empty text."""
    return text or None


# --- writing


def _writer(message: Message) -> Converter:
    make = getattr(pb, message.name)
    fields = [
        (field.name, _write_field(field))
        for field in message.fields
        if not (message.has_content and field.name in ("key", "value", "headers"))
    ]

    def write(reply: Any) -> Any:
        values = {}
        for name, convert in fields:
            value = getattr(reply, name)
            if value is not None and value is not UNSET:
                values[name] = convert(value)
        if message.has_content:
            values |= _written_content(reply)
        return make(**values)

    def wrap(values: Any) -> Any:
        return make(**{ENTRIES: fields[0][1](values)})

    return wrap if message.wraps else write


def _written_content(reply: Any) -> dict[str, Any]:
    decode = b64decode if reply.encoding == "base64" else str.encode
    pairs = reply.headers.items() if isinstance(reply.headers, dict) else reply.headers
    content: dict[str, Any] = {"headers": [pb.Header(name=name, value=decode(value)) for name, value in pairs]}
    if reply.key is not None:
        content["key"] = decode(reply.key)
    if reply.value is not None:
        content["value"] = decode(reply.value)
    return content


def _write_field(field: Field) -> Converter:
    one = _write_one(field.kind)
    if one is _same:
        return _same
    if field.label is Label.MANY:
        return lambda values: [one(value) for value in values]
    if field.label is Label.MAP:
        return lambda values: {key: one(value) for key, value in values.items()}
    return one


def _write_one(kind: str) -> Converter:
    if kind in _SCALARS:
        return _same
    if kind == PLACE:
        return lambda pair: pb.PartitionOffset(partition=pair[0], offset=pair[1])
    if kind == FREE:
        return _write_free
    return lambda value: _WRITERS[kind](value)


def _write_free(values: dict[str, Any]) -> Any:
    return ParseDict(values, Struct())


_DERIVED: Final = [message for message in SCHEMA.messages.values() if message.shape is not None or message.wraps]
_READERS: Final = {message.name: _reader(message) for message in _DERIVED}
_WRITERS: Final = {
    message.name: _writer(message)
    for message in _DERIVED
    if message.shape is None or not issubclass(message.shape, Request)
}
_LONG: Final = {
    message.shape: {
        field.name: _write_one(field.kind)
        for field in message.fields
        if field.label is Label.MANY and field.kind not in _SCALARS and field.kind != HEADER
    }
    for message in _DERIVED
    if message.shape is not None and message.name in _WRITERS
}
"""Of replies, what writes an entry of each list of messages."""
_LISTS: Final = {
    operation.name: _List(operation, operation.later) for operation in OPERATIONS if operation.later is not None
}
