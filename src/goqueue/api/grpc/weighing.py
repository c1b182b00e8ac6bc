"""How many values a request has in protobuf, counted by the codec: it is told which fields have others in them."""

from array import array
from functools import cache
from importlib import import_module
from typing import Any, Final

from goqueue import codec
from goqueue.codec.counting import FIELD_NUMBERS, NOT_NESTED, PACKED
from goqueue.model import limits
from goqueue.model.errors import TooLarge

_pb: Final[Any] = import_module("goqueue.api.grpc.generated.goqueue_pb2")
_MOST_FIELDS: Final = limits.MAX_MESSAGES_PER_REQUEST + FIELD_NUMBERS
"""Of a request with many messages, not counting those of the messages."""
_NOTHING_NESTED: Final = array("h", [NOT_NESTED]) * FIELD_NUMBERS


def count_values(name: str, body: bytes, most: int) -> int:
    """Those of a message of that name, before anything is made of it; no more than one above `most`."""
    return codec.count_protobuf(body, most, _nested_in(name))


def check_fields(name: str, body: bytes) -> None:
    """Refuse a request with many messages that has more fields than these and its own: some are unknown, or repeated,
    and to find out which takes long."""
    if codec.count_protobuf(body, _MOST_FIELDS, _NOTHING_NESTED) > _MOST_FIELDS:
        raise TooLarge(
            f"{name} has more fields than it may; it has at most {limits.MAX_MESSAGES_PER_REQUEST} messages, and every "
            "other field once"
        )


@cache
def _nested_in(name: str) -> "array[int]":
    kinds: dict[str, int] = {}
    waiting = [getattr(_pb, name).DESCRIPTOR]
    table = array("h")
    while waiting:
        kind = waiting.pop(0)
        kinds.setdefault(kind.full_name, len(kinds))
        row = array("h", [NOT_NESTED]) * FIELD_NUMBERS
        for field in kind.fields:
            if field.number >= FIELD_NUMBERS:
                continue
            if field.message_type is not None:
                within = field.message_type
                if within.full_name not in kinds:
                    kinds[within.full_name] = len(kinds)
                    waiting.append(within)
                row[field.number] = kinds[within.full_name]
            elif field.is_packed:
                row[field.number] = PACKED
        table += row
    return table
