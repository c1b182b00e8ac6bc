"""Requests that do not fit their shape: what the validator found, in words, and what would be right.

Every door says the same: words here name fields and operations, no routes and no patterns. The field is among the
error's details, too.
"""

import re
from collections.abc import Callable
from difflib import get_close_matches
from functools import cache
from typing import Final

import msgspec

from goqueue.model import limits
from goqueue.model.errors import InvalidRequest, NotBuilt
from goqueue.wire.shapes import (
    AbortTransaction,
    BeginTransaction,
    CommitMany,
    CommitToken,
    CommitTransaction,
    LetterFilter,
    ListTransactions,
    PutReader,
    Request,
    ResetOffsets,
)

_SHOWN_LETTERS: Final = 300
"""How much of a refused request is repeated to whoever sent it."""
_UNKNOWN: Final = re.compile(r"unknown field `(.*?)`", re.DOTALL)
_MISSING: Final = re.compile(r"missing required field `(\w+)`")
_PLACE: Final = re.compile(r" - at (`key` in )?`\$\.?([\w.[\]]*)`$")
"""Where that is which is wrong: fields inside each other, and what number or key in them."""
_HALF: Final = re.compile(rb"(?<!\\)(?:\\\\)*\\u[dD][89abAB][0-9a-fA-F]{2}(?=[^\\]|\\[^u])")
"""The first half of a character in UTF-16, and not the second."""
_HEX_ESCAPE: Final = re.compile(r"end of hex escape \(byte (\d+)\)")
_HALF_BYTES: Final = 16
"""So close to the end the parser does not look for the second: it says that something is cut off."""
_KEY: Final = "[...]"
_NUMBER: Final = re.compile(r"\[[^\]]*\]")

PLANNED: Final = frozenset(("validation", "tracing"))
"""Fields whose feature is not here yet. They are refused like any other unknown field, with a better reason."""

_TIME: Final = "write RFC 3339 with a zone, like 2026-01-31T12:00:00Z, or Unix milliseconds"
_DURATION: Final = "write a number and a unit, like 250ms, 30s or 1h30m, or seconds as a number"
_WORD: Final = "use letters, digits, '.', '_' and '-', at most 64 of them"
_SWITCH: Final = "it is true or false"
_TRANSACTION: Final = "it is what beginning the transaction answered, like txn-17"
_TRANSACTION_NAME: Final = f"use letters, digits, '.', '_', ':' and '-', at most {limits.MAX_TRANSACTIONAL_ID} of them"
_ONE_NODE: Final = "several nodes are not available in this version; 1 is the only value"
HINTS: Final[dict[str, str]] = {
    "acks": "it is none, leader or all",
    "assignor": "it is sticky, range or round-robin",
    "auto_commit": _SWITCH,
    "auto_commit_interval": _DURATION,
    "backoff": 'write {"base": "1s", "factor": 2, "max": "1m"}, or the parts of it that are to change',
    "base": _DURATION,
    "cleanup_policy": "it is delete, compact or both",
    "client_id": _WORD,
    "cron": "write minute, hour, day of the month, month and day of the week, like '30 3 * * MON-FRI', or @daily",
    "delay": _DURATION,
    "deliverAt": _TIME,
    "dlq_enabled": _SWITCH,
    "dry_run": _SWITCH,
    "encoding": "it is utf-8 or base64",
    "event_time": _TIME,
    "every": _DURATION,
    "factor": f"it is a number from 1 to {limits.MAX_BACKOFF_FACTOR}",
    "filter": "write an object with reason, group, key, from_time, to_time, header or offsets",
    "finishing": 'write ["topic-0"]: partitions that are to be given up, and not yet',
    "from_time": _TIME,
    "fsync": "it is none, interval or every",
    "generation": "it is the whole number that a poll, a heartbeat or joining answered last",
    "header": 'write {"name": "value"}, with text as values',
    "headers": 'write {"name": "value"} or [["name", "value"]], with text as values',
    "if_absent": _SWITCH,
    "ids": "write [[partition, offset], ...]",
    "include": "it is delayed, or left out",
    "instance_id": _WORD,
    "isolation": "it is read_committed or read_uncommitted",
    "lane_policy": "it is weighted or strict",
    "lane_weights": f"write five whole numbers from 1 to {limits.MAX_LANE_WEIGHT}, like [50, 25, 15, 7, 3]",
    "max": _DURATION,
    "max_bytes": f"it is a whole number from 1 to {limits.MAX_JSON_READ_BYTES}",
    "max_messages": f"it is a whole number from 1 to {limits.MAX_POLL_MESSAGES}",
    "max_retries": f"it is a whole number from 0 to {limits.MAX_RETRIES}",
    "max_unacked": f"it is a whole number from 1 to {limits.MAX_UNACKED}",
    "member_id": "it is what joining the group answered",
    "message": 'write {"value": "text"}, and key, headers, priority, partition, ttl or encoding where they are wanted',
    "message_ttl": f"{_DURATION}, or null for none",
    "min_insync_replicas": _ONE_NODE,
    "missed": "it is skip, once or all",
    "mode": "it is partition, shared or key",
    "name": "use letters, digits, '.', '_' and '-', at most 241 of them",
    "next": "it is what the page before it said as `next`",
    "num_partitions": "it is a whole number from 1 to 1000",
    "offset": "it is a whole number, from 0 on; the topic's offsets say where a partition ends",
    "offsets": 'write {"topic": {"0": 5}}: by topic and partition, the offset below which all is done',
    "on_expiry": "it is drop or dlq",
    "order": "it is offset or priority",
    "partition": f"it is a whole number from 0 to {limits.MAX_PARTITIONS_PER_TOPIC - 1}, below the topic's partitions",
    "paused": _SWITCH,
    "priority": "it is critical, high, normal, low or background, or 0 to 4",
    "rate": f"it is a number of messages per second, above 0 and at most {limits.MAX_REDRIVE_RATE}",
    "reason": f"it is text, at most {limits.MAX_REJECT_CHARS} letters",
    "rebalance_timeout": _DURATION,
    "receipt_handle": "it is what a poll answered with the message",
    "receipt_handles": "it is a list of what polls answered with the messages",
    "received": "it is the whole number that the last poll whose answer arrived has as `poll`",
    "replication_factor": _ONE_NODE,
    "revoked": 'write ["topic-0"]: partitions that were to be given up',
    "session_timeout": _DURATION,
    "state": "it is ongoing, committing, aborting, committed or aborted",
    "start": "it is earliest, latest, an offset as a number, or a time as text: RFC 3339 with a zone",
    "time_zone": "write an IANA name, like Europe/Berlin or UTC",
    "timeout": _DURATION,
    "timestamp": _TIME,
    "to": "it is earliest, latest, offset, timestamp or duration",
    "to_time": _TIME,
    "token": 'write {"name": "nightly-load", "number": 7}',
    "transaction_id": _TRANSACTION,
    "transaction_timeout": _DURATION,
    "transactional_id": _TRANSACTION_NAME,
    "transactions": 'write ["txn-17"]: a list of what beginning transactions answered',
    "topics": 'write ["name"]: a list of the names of one or more topics',
    "ttl": _DURATION,
    "value": "it is text: send JSON as a string, and bytes as base64 with an encoding",
    "visibility": _DURATION,
    "visibility_timeout": _DURATION,
}
"""What to write instead, by the name of the field."""
OTHER_HINTS: Final[dict[tuple[type[Request], str], str]] = {
    (ResetOffsets, "value"): "it is an offset, a time or a duration, as `to` says",
    (AbortTransaction, "name"): _TRANSACTION_NAME,
    (BeginTransaction, "name"): _TRANSACTION_NAME,
    (CommitMany, "acks"): 'write {"txn-17": 3}: by transaction, how many messages were acknowledged in it',
    (CommitTransaction, "acks"): "it is how many messages were acknowledged in the transaction, as a whole number",
    (CommitTransaction, "messages"): "it is how many messages were published in the transaction, as a whole number",
    (CommitMany, "messages"): 'write {"txn-17": 3}: by transaction, how many were published in it',
    (CommitToken, "name"): _TRANSACTION_NAME,
    (ListTransactions, "name"): _TRANSACTION_NAME,
    (PutReader, "offsets"): 'write {"topic": {"0": 5}}: by topic and partition, the offset to begin at',
    (LetterFilter, "offsets"): 'write {"0": [5, 8]}: by partition of the dead-letter topic, offsets in it',
    (LetterFilter, "reason"): "it is rejected, nacked, lapsed or expired",
}
"""Where a field of that name means something else."""

_KINDS: Final = {
    "array": "a list",
    "bool": "true or false",
    "float": "a number",
    "int": "a whole number",
    "object": "an object",
    "str": "text",
}
_PARTS: Final = {"array": "entries", "object": "entries", "str": "letters"}
_BOUNDS: Final = {">=": "less than", ">": "not more than", "<=": "more than", "<": "not less than"}
_LENGTHS: Final = {">=": "fewer than", "<=": "more than"}
_PHRASES: Final[tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], str]], ...]] = (
    (re.compile(r"Expected `([^`]*)`, got `([^`]*)`"), lambda found: f"is {_kinds(found[2])}, not {_kinds(found[1])}"),
    (re.compile(r"Expected `str` matching regex"), lambda _: "is not written as it may be"),
    (
        re.compile(r"Expected `(\w+)` of length (>=|<=) (\d+)"),
        lambda found: f"has {_LENGTHS[found[2]]} {found[3]} {_PARTS[found[1]]}",
    ),
    (
        re.compile(r"Expected `array` of length (\d+), got (\d+)"),
        lambda found: f"has {found[2]} entries, not {found[1]}",
    ),
    (re.compile(r"Expected `\w+` (>=|>|<=|<) (-?\d+)"), lambda found: f"is {_BOUNDS[found[1]]} {found[2]}"),
    (re.compile(r"Invalid enum value (.*)", re.DOTALL), lambda found: f"cannot be {found[1][:_SHOWN_LETTERS]}"),
)
"""What the validator says of a value, and the same in words."""


def refuse(error: msgspec.ValidationError, request: type[Request]) -> InvalidRequest:
    text = str(error)
    place = _PLACE.search(text[-_SHOWN_LETTERS:])
    if place is None:
        said, path, where = text, "", "what was sent"
    else:
        said, path = text.removesuffix(place[0]), _NUMBER.sub("", place[2])
        part = "a key of " if place[1] else "a value of " if place[2].endswith(_KEY) else ""
        where = f"{part}{place[2].replace(_KEY, '')}"
    if path.startswith("filter"):
        request = LetterFilter
    elif path.startswith("token"):
        request = CommitToken
    unknown, missing = _UNKNOWN.search(said), _MISSING.search(said)
    if unknown is None and missing is None:
        return _misfit(f"{where} {_in_words(said)}", path, _hint(request, path))
    name = (unknown or missing or "")[1]
    inner = f"{path}.{name}".lstrip(".")[:_SHOWN_LETTERS]
    if missing is not None:
        said = f"{where}.{name} is missing" if path else f"{name} is missing"
        return _misfit(said, inner, _hint(request, path or name))
    if name in PLANNED:
        return NotBuilt(name)
    said = f"there is no field {name[:_SHOWN_LETTERS]!r} {f'in {where}' if path else 'here'}"
    if name == "num_partitions":
        return _misfit(said, inner, "the operation add_partitions gives a topic more of them")
    if path:
        return _misfit(said, inner, _hint(request, path))
    near = get_close_matches(name[:_SHOWN_LETTERS], request.__struct_fields__, n=1)
    return _misfit(said, inner, f"did you mean {near[0]}?" if near else None)


def unreadable(what: str, data: bytes | bytearray, error: Exception) -> InvalidRequest:
    """Of data that is no JSON."""
    if isinstance(error, RecursionError):
        return InvalidRequest(f"{what} is nested too deeply")
    said = str(error)
    if "surrogate" in said or _HALF.search(_around(data, said)) is not None:
        return InvalidRequest(
            f"{what} has text that is not valid Unicode: an escape like \\ud800 is half of a character; write both "
            "halves, or send bytes as base64 with an encoding"
        )
    return InvalidRequest(f"{what} is not valid JSON in UTF-8: {said}")


def _around(data: bytes | bytearray, said: str) -> bytes | bytearray:
    """Where half of a character may be, if that is what the parser means: it has three ways to say so."""
    place = _HEX_ESCAPE.search(said)
    if place is not None:
        return data[max(int(place[1]) - _HALF_BYTES, 0) : int(place[1]) + _HALF_BYTES]
    return data[-_HALF_BYTES:] if "truncated" in said else b""


def _misfit(said: str, field: str, hint: str | None) -> InvalidRequest:
    error = InvalidRequest(f"{said}; {hint}" if hint is not None else said)
    error.field = field or None
    return error


def _hint(request: type[Request], path: str) -> str | None:
    """Of the innermost field."""
    name = path.rpartition(".")[2]
    return OTHER_HINTS.get((request, name)) or HINTS.get(name) or _ranges(request).get(path)


@cache
def _ranges(request: type[Request]) -> dict[str, str]:
    """Of its fields that are numbers with two bounds, what to write: their shape says it."""
    shape = msgspec.inspect.type_info(request)
    assert isinstance(shape, msgspec.inspect.StructType)
    kinds = {field.name: field.type for field in shape.fields}
    return {
        name: f"it is a whole number from {kind.ge} to {kind.le}"
        for name, kind in kinds.items()
        if isinstance(kind, msgspec.inspect.IntType) and kind.ge is not None and kind.le is not None
    }


def _in_words(said: str) -> str:
    for phrase, words in _PHRASES:
        found = phrase.match(said)
        if found is not None:
            return words(found)
    return f"is not right ({said[:_SHOWN_LETTERS]})"


def _kinds(names: str) -> str:
    return " or ".join(_KINDS.get(name, name) for name in names.split(" | "))
