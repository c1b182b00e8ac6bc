"""Errors of the broker in the words of whoever typed the command: names that were meant, options instead of fields.

What is wrong is told by an error's class, its details and its cause, never by its words.
"""

import errno
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Final

from goqueue.client.arguments import rename
from goqueue.config.nearness import alike
from goqueue.model.errors import (
    GoQueueError,
    InvalidRequest,
    ProtocolError,
    RequestTimeout,
    UnknownGroup,
    UnknownMember,
    UnknownReader,
    UnknownRedrive,
    UnknownSchedule,
    UnknownTopic,
    UnknownTransaction,
)

LookUp = Callable[[str], Awaitable[dict[str, Any]]]

_SHOWN_NAMES: Final = 8
_TYPED: Final = {
    "count": "COUNT",
    "deliverAt": "--at",
    "dlq_enabled": "--dlq",
    "group": "GROUP",
    "name": "TOPIC",
    "num_partitions": "--partitions",
    "receipt_handle": "HANDLE",
    "receipt_handles": "HANDLE",
    "redrive": "ID",
    "retention_hours": "--retention",
    "schedule": "ID",
    "timeout": "--for",
    "timestamp": "--time",
    "topic": "TOPIC",
    "topics": "TOPIC",
    "value": "--to",
}
"""Of fields that are called otherwise than their options, or are typed without one."""
_TYPED_IN: Final = {
    ("abort_transaction", "name"): "--name",
    ("abort_transaction", "transaction_id"): "ID",
    ("describe_transaction", "transaction"): "ID",
    ("list_transactions", "name"): "--name",
    ("put_reader", "offsets"): "TOPIC:PARTITION:OFFSET",
    ("transaction_token", "name"): "NAME",
}
"""The same, where it depends on the operation."""


def unreachable(error: GoQueueError, address: str, source: str) -> GoQueueError:
    said = f"{address} ({source})"
    if isinstance(error, ProtocolError):
        return type(error)(f"what listens at {said} is no wire port of a broker; say where one is with --address")
    return type(error)(
        f"no broker answers at {said}{_why(error)}; start one with `goqueue serve`, "
        "or say where it is with --address HOST:PORT"
    )


def _why(error: GoQueueError) -> str:
    cause = error.__cause__
    if isinstance(error, RequestTimeout):
        return " within the time given"
    if isinstance(cause, socket.gaierror):
        return ": no such host"
    if not isinstance(cause, OSError):
        return ""
    return ": nothing listens there" if cause.errno == errno.ECONNREFUSED else f": {cause.strerror or cause}"


async def explain(error: GoQueueError, fields: dict[str, Any], look_up: LookUp, operation: str = "") -> GoQueueError:
    """A better error of the same class, or the same one. Never fails itself."""
    try:
        if isinstance(error, UnknownTopic):
            return await _unknown(error, _asked_topic(fields), "topic", look_up, "list_topics", "topics")
        if isinstance(error, UnknownGroup) and not isinstance(error, UnknownMember):
            return await _unknown(error, str(fields.get("group", "")), "group", look_up, "list_groups", "groups")
    except GoQueueError:
        return error
    if isinstance(error, UnknownSchedule):
        return type(error)(f"{error}; goqueue-cli schedule list shows those there are")
    if isinstance(error, UnknownReader):
        return type(error)(f"{error}; goqueue-cli reader list shows those there are")
    if isinstance(error, UnknownRedrive):
        return type(error)(f"{error}; the id is what dlq redrive answered")
    if isinstance(error, UnknownTransaction):
        return type(error)(f"{error}; goqueue-cli txn list shows those there are")
    if isinstance(error, InvalidRequest) and error.field is not None:
        return rename(error, _TYPED_IN.get((operation, error.field)) or _typed_as(error.field), fields)
    return error


def _asked_topic(fields: dict[str, Any]) -> str:
    """Nothing if it may be one of several: the broker's words say which."""
    offsets = fields.get("offsets")
    if offsets and not fields.get("topic"):
        return str(next(iter(offsets))) if len(offsets) == 1 else ""
    return str(fields.get("topic") or (fields.get("topics") or [""])[0] or fields.get("name") or "")


def _typed_as(field: str) -> str:
    """What a field is called on the command line; those of a message or a filter are options like others."""
    inner = field.removeprefix("message.").removeprefix("filter.")
    return _TYPED.get(field) or f"--{inner.replace('_', '-').replace('.', '-')}"


async def _unknown(
    error: GoQueueError, asked: str, noun: str, look_up: LookUp, operation: str, field: str
) -> GoQueueError:
    if not asked:
        return error
    known = [str(name) for name in (await look_up(operation))[field]]
    near = alike(asked, known) or alike(asked.lower(), [name.lower() for name in known])
    if near is not None:
        instead = f"did you mean {next(name for name in known if near in (name, name.lower()))}?"
    elif asked in known:
        return error
    elif known:
        more = "" if len(known) <= _SHOWN_NAMES else f" and {len(known) - _SHOWN_NAMES} more"
        instead = f"there {'is' if len(known) == 1 else 'are'}: {', '.join(known[:_SHOWN_NAMES])}{more}"
    else:
        make = f"topic create {asked}" if noun == "topic" else f"consume TOPIC --group {asked}"
        instead = f"there are none yet: goqueue-cli {make}"
    return type(error)(f"there is no {noun} {asked[:80]!r}; {instead}")
