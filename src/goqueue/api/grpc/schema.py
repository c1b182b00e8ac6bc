"""What the calls and messages of the door are, derived from the table of operations and its shapes.

The rules, all there are:

- an operation `create_topic` is the call `CreateTopic`; it takes `CreateTopicRequest`, which has the fields of the path
  and of the request's shape; it gives the reply's shape under its own name (and `Reply`, if a call is called so);
- a field is called as in JSON. In requests every single value has presence: what is left out has its default, or is
  refused. In replies a value that may be null or left out has presence;
- text, names of things, times and durations are `string`, also where JSON allows a number; whole numbers are `int64`,
  those that stay small `int32`;
- where a shape has an `encoding`, its key, value and header values are `bytes` and the encoding is gone;
- what protobuf cannot nest (a map in a map) is wrapped.

This module knows no protobuf: `proto` writes it down, `translating` carries values over.
"""

from collections.abc import Iterable
from enum import Enum
from typing import Any, Final, NamedTuple

from msgspec import Struct, inspect

from goqueue.api.operations import OPERATIONS, PATH_FIELDS, Operation
from goqueue.wire import shapes

HEADER: Final = "Header"
PLACE: Final = "PartitionOffset"
FREE: Final = "google.protobuf.Struct"
ENTRIES: Final = "entries"
"""The one field of a message that wraps a map or a list."""

_CONTENT: Final = frozenset(("key", "value"))
_SMALL: Final = frozenset(
    (
        "delivery_count", "deliveries", "epoch", "lane_weights", "limit", "max_messages", "max_retries", "max_unacked",
        "min_insync_replicas", "new_partition_count", "num_partitions", "old_partition_count", "partition",
        "partitions", "partitions_added", "replication_factor", "wire_version",
    )
)  # fmt: skip
"""Numbers that stay small."""


class Label(Enum):
    ONE = ""
    OPTIONAL = "optional"
    MANY = "repeated"
    MAP = "map"


class Field(NamedTuple):
    name: str
    kind: str
    """A type of protobuf's, or a message's name."""
    label: Label = Label.ONE
    about: str = ""


class Message(NamedTuple):
    name: str
    fields: tuple[Field, ...]
    about: str = ""
    shape: type[Struct] | None = None
    """Where its fields come from."""
    has_content: bool = False
    """Whether it carries key, value and headers as bytes where its shape has text and an encoding."""
    wraps: bool = False


class Rpc(NamedTuple):
    name: str
    request: str
    reply: str
    about: str
    streams: bool = False
    """In both directions."""


class Schema(NamedTuple):
    messages: dict[str, Message]
    rpcs: tuple[Rpc, ...]


def rpc_name(operation: str) -> str:
    return "".join(part.capitalize() for part in operation.split("_"))


def request_name(operation: str) -> str:
    return f"{rpc_name(operation)}Request"


def message_name(shape: type[Struct]) -> str:
    """Of a shape that is no request of its own."""
    return f"{shape.__name__}Reply" if shape.__name__ in _RPC_NAMES else shape.__name__


def derive(messages: Iterable[Message] = (), rpcs: Iterable[Rpc] = ()) -> Schema:
    """Of all operations, in the order of the table; after them what is given."""
    found, calls = dict(_GIVEN), []
    for operation in OPERATIONS:
        name = request_name(operation.name)
        found[name] = _request(operation, found)
        reply = _struct(inspect.type_info(operation.reply), found, is_request=False)
        calls.append(Rpc(rpc_name(operation.name), name, reply, operation.summary))
    return Schema(found | {message.name: message for message in messages}, (*calls, *rpcs))


_GIVEN: Final = {
    message.name: message
    for message in (
        Message(HEADER, (Field("name", "string"), Field("value", "bytes")), "Of a message; names may repeat."),
        Message(PLACE, (Field("partition", "int32"), Field("offset", "int64")), "Names a message of a topic."),
    )
}

_RPC_NAMES: Final = frozenset(rpc_name(operation.name) for operation in OPERATIONS)


def _request(operation: Operation, messages: dict[str, Message]) -> Message:
    path = [
        Field(name, "string" if PATH_FIELDS[name] is str else _number(name), Label.OPTIONAL)
        for name in operation.path_fields
    ]
    fields, has_content = _fields(inspect.type_info(operation.request), messages, is_request=True)
    return Message(
        request_name(operation.name), (*path, *fields), _about(operation.request), operation.request, has_content
    )


def _struct(info: Any, messages: dict[str, Message], *, is_request: bool) -> str:
    shape: type[Struct] = info.cls
    name = message_name(shape)
    if name not in messages:
        messages[name] = Message(name, ())  # a shape may hold its like
        fields, has_content = _fields(info, messages, is_request=is_request)
        messages[name] = Message(name, fields, _about(shape), shape, has_content)
    return name


def _fields(info: Any, messages: dict[str, Message], *, is_request: bool) -> tuple[tuple[Field, ...], bool]:
    names = {field.name for field in info.fields}
    has_content = "encoding" in names
    fields = []
    for field in info.fields:
        if has_content and field.name == "encoding":
            continue
        if has_content and field.name in _CONTENT:
            fields.append(Field(field.name, "bytes", Label.OPTIONAL))
        elif has_content and field.name == "headers":
            fields.append(Field(field.name, HEADER, Label.MANY))
        else:
            inside = as_message(info.cls, field.name)
            found = field.type if inside is None else inspect.type_info(inside)
            kind, label = _kind(field.name, found, messages, is_request=is_request)
            may_lack = is_request or not field.required or _is_nullable(field.type)
            if label is Label.ONE and may_lack and kind not in messages and kind != FREE:
                label = Label.OPTIONAL
            fields.append(Field(field.name, kind, label))
    extra = _EXTRA.get(info.cls, ())
    return (*fields, *extra), has_content


_EXTRA: Final[dict[type[Struct], tuple[Field, ...]]] = {
    shapes.JoinGroup: (Field("start_offset", "int64", Label.OPTIONAL, "An offset to start at, instead of `start`."),),
}
"""Where JSON tells a text from a number and protobuf would not."""
INSTEAD_OF: Final = {"start_offset": "start"}
"""Extra fields, and those of the shape that they are."""
NUMBERS_TOO: Final = frozenset(("priority",))
"""Texts that may be a number, which the shape wants as one."""
EMPTY_IS_NULL: Final = frozenset(("message_ttl",))
"""Texts that JSON has as null besides leaving them out."""
_AS_MESSAGE: Final[dict[tuple[type[Struct], str], type[Struct]]] = {
    (shapes.ListDeadLetters, "filter"): shapes.LetterFilter,
}
"""Text that holds JSON, because it stands in a query: here it is what it holds."""


def as_message(shape: type[Struct] | None, field: str) -> type[Struct] | None:
    return None if shape is None else _AS_MESSAGE.get((shape, field))


def _kind(name: str, info: Any, messages: dict[str, Message], *, is_request: bool) -> tuple[str, Label]:
    info = _plain(info)
    if isinstance(info, inspect.StructType):
        return _struct(info, messages, is_request=is_request), Label.ONE
    if isinstance(info, inspect.DictType):
        if isinstance(info.value_type, inspect.AnyType):
            return FREE, Label.ONE
        return _wrapped(name, info.value_type, messages, is_request=is_request), Label.MAP
    if isinstance(info, inspect.ListType):
        if _is_place(info.item_type):
            return PLACE, Label.MANY
        return _wrapped(name, info.item_type, messages, is_request=is_request), Label.MANY
    if isinstance(info, inspect.TupleType | inspect.VarTupleType):
        item = info.item_types[0] if isinstance(info, inspect.TupleType) else info.item_type
        return _wrapped(name, item, messages, is_request=is_request), Label.MANY
    return _scalar(name, info), Label.ONE


def _wrapped(name: str, info: Any, messages: dict[str, Message], *, is_request: bool) -> str:
    """A kind that may stand in a map or a list: those within are wrapped."""
    kind, label = _kind(name, info, messages, is_request=is_request)
    if label is Label.ONE:
        return kind
    wrapper = f"{kind[0].upper()}{kind[1:]}{'Map' if label is Label.MAP else 'List'}"
    messages.setdefault(wrapper, Message(wrapper, (Field(ENTRIES, kind, label),), wraps=True))
    return wrapper


def _scalar(name: str, info: Any) -> str:
    if isinstance(info, inspect.BoolType):
        return "bool"
    if isinstance(info, inspect.IntType):
        return _number(name)
    if isinstance(info, inspect.FloatType):
        return "double"
    return "string"


def _number(name: str) -> str:
    return "int32" if name in _SMALL else "int64"


def _plain(info: Any) -> Any:
    """What a field is when it is there: of several, the one that can say most."""
    if isinstance(info, inspect.Metadata):
        return _plain(info.type)
    if isinstance(info, inspect.UnionType):
        choices = [_plain(each) for each in info.types if not isinstance(each, inspect.NoneType)]
        text = [each for each in choices if isinstance(each, inspect.StrType)]
        return text[0] if text else choices[0]
    return info


def _is_nullable(info: Any) -> bool:
    return isinstance(info, inspect.UnionType) and any(isinstance(each, inspect.NoneType) for each in info.types)


def _is_place(info: Any) -> bool:
    """Partition and offset, as a pair."""
    info = _plain(info)
    if isinstance(info, inspect.TupleType):
        return len(info.item_types) == 2
    return isinstance(info, inspect.ListType) and info.min_length == info.max_length == 2


_ABOUT: Final[dict[type[Struct], str]] = {
    shapes.Message: "One message; one without a value deletes.",
    shapes.ScheduleMessage: "What each run publishes.",
}
"""Where the words about JSON would mislead."""


def _about(shape: type[Struct]) -> str:
    return _ABOUT.get(shape) or str(shape.__dict__.get("__doc__") or "")
