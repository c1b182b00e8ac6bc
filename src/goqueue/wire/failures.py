"""Errors as JSON and back: the payload of a frame whose status is ERROR, the same object as over HTTP.

`{"error": message, "code": code, "retriable": bool, "details": {...}}`. What comes back is of the same class,
with the same message and details; a code this version does not know becomes the nearest thing it does know.
"""

from typing import Any, Final

import msgspec

from goqueue.model import errors
from goqueue.model.errors import (
    GoQueueError,
    InvalidRecord,
    MethodNotAllowed,
    NotOwner,
    OffsetOutOfRange,
    OutOfSequence,
    ProtocolError,
    Quarantined,
    Unavailable,
)
from goqueue.wire.frames import Bytes


class ErrorBody(msgspec.Struct, frozen=True):
    """An error as a reply carries it."""

    error: str
    code: str
    retriable: bool = False
    details: dict[str, Any] = {}


CLASSES: Final[dict[str, type[GoQueueError]]] = {
    found.code: found for found in vars(errors).values() if isinstance(found, type) and issubclass(found, GoQueueError)
}

ATTRIBUTES: Final[dict[type[GoQueueError], dict[str, tuple[str, type]]]] = {
    InvalidRecord: {"index": ("index", int), "reason": ("reason", str)},
    NotOwner: {"refused": ("refused", list)},
    OffsetOutOfRange: {"offset": ("offset", int), "earliest": ("start", int), "latest": ("end", int)},
    OutOfSequence: {"expected": ("expected", int)},
    Quarantined: {"first": ("first", int), "next_offset": ("next_offset", int), "reason": ("reason", str)},
}
"""Which attribute of an error each of its details stands for."""
UNTOLD: Final[dict[type[GoQueueError], dict[str, Any]]] = {
    InvalidRecord: {"position": -1},
    MethodNotAllowed: {"allowed": ""},
    Quarantined: {"where": "on the broker", "topic": None, "partition": None},
}
"""Attributes that stay on the broker's side."""

_DECODER: Final = msgspec.json.Decoder(ErrorBody)


def pack_error(error: GoQueueError) -> bytes:
    details = {name: _clean(value) if isinstance(value, str) else value for name, value in error.details.items()}
    return msgspec.json.encode(ErrorBody(_clean(str(error)), error.code, error.retriable, details))


def unpack_error(payload: Bytes) -> GoQueueError:
    """The error, not raised yet; `ProtocolError` is raised when there is none to be read."""
    try:
        body = _DECODER.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"the broker answered with an error that cannot be read ({error})") from error
    kind = CLASSES.get(body.code)
    if kind is not None:
        rebuilt = kind.__new__(kind, body.error)
        index = body.details.get("index")
        if type(index) is int:
            rebuilt.index = index
        field = body.details.get("field")
        if type(field) is str:
            rebuilt.field = field
        for name, (attribute, expected) in ATTRIBUTES.get(kind, {}).items():
            value = body.details.get(name)
            if type(value) is not expected:
                break
            setattr(rebuilt, attribute, value)
        else:
            for attribute, value in UNTOLD.get(kind, {}).items():
                setattr(rebuilt, attribute, value)
            return rebuilt
    return (Unavailable if body.retriable else GoQueueError)(f"{body.error} ({body.code})")


def repeat(error: GoQueueError) -> GoQueueError:
    """The same error for one more waiter: a traceback belongs to one raise."""
    again = type(error).__new__(type(error), *error.args)
    again.__dict__.update(error.__dict__)
    return again


def _clean(text: str) -> str:
    """Text that may have come from bytes that are not UTF-8, as JSON can carry it."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
