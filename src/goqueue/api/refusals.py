"""Requests that do not fit their shape: what the validator found, and what would be right."""

import re
from difflib import get_close_matches
from typing import Final

import msgspec

from goqueue.api.shapes import Request, ResetOffsets
from goqueue.model import limits
from goqueue.model.errors import InvalidRequest, NotBuilt

_SHOWN_LETTERS: Final = 300
"""How much of a refused request is repeated to whoever sent it."""
_UNKNOWN: Final = re.compile(r"unknown field `(.*?)`")
_MISSING: Final = re.compile(r"missing required field `(\w+)`$")
_BAD_VALUE: Final = re.compile(r"Invalid enum value '(\w+)' - at `\$\.(\w+)`$")
_PLACE: Final = re.compile(r" - at (?:`key` in )?`\$\.(?:.*\.)?(\w+)(?:\[[^\]]*\])*`$")
"""The field that is wrong, or holds what is wrong."""

PLANNED: Final = frozenset(
    (
        "delay", "deliverAt", "ttl", "transactional_id", "transaction_timeout", "visibility_timeout", "max_retries",
        "backoff", "dlq_enabled", "message_ttl", "on_expiry", "validation", "tracing", "lane_weights", "lane_policy",
        "include", "visibility",
    )
)  # fmt: skip
"""Fields whose feature is not here yet. They are refused like any other unknown field, with a better reason."""
PLANNED_VALUES: Final = {"mode": ("shared", "key")}
"""The same for values of a field."""

_TIME: Final = "write RFC 3339 with a zone, like 2026-01-31T12:00:00Z, or Unix milliseconds"
_DURATION: Final = "write a number and a unit, like 250ms, 30s or 1h30m, or seconds as a number"
_WORD: Final = "use letters, digits, '.', '_' and '-', at most 64 of them"
_SWITCH: Final = "it is true or false"
_ONE_NODE: Final = "several nodes are not available in this version; 1 is the only value"
HINTS: Final[dict[str, str]] = {
    "acks": "it is none, leader or all",
    "assignor": "it is sticky, range or round-robin",
    "auto_commit": _SWITCH,
    "auto_commit_interval": _DURATION,
    "cleanup_policy": "it is delete, compact or both",
    "client_id": _WORD,
    "dry_run": _SWITCH,
    "encoding": "it is utf-8 or base64",
    "event_time": _TIME,
    "from_time": _TIME,
    "fsync": "it is none, interval or every",
    "generation": "it is the whole number that a poll, a heartbeat or joining answered last",
    "headers": 'write {"name": "value"} or [["name", "value"]], with text as values',
    "instance_id": _WORD,
    "max_bytes": f"it is a whole number from 1 to {limits.MAX_JSON_READ_BYTES}",
    "max_messages": f"it is a whole number from 1 to {limits.MAX_POLL_MESSAGES}",
    "member_id": "it is what joining the group answered",
    "min_insync_replicas": _ONE_NODE,
    "mode": "it is partition",
    "name": "use letters, digits, '.', '_' and '-', at most 241 of them",
    "num_partitions": "it is a whole number from 1 to 1000",
    "offset": "it is a whole number; GET /topics/{topic}/offsets says where a partition ends",
    "offsets": 'write {"topic": {"0": 5}}: by topic and partition, the offset below which all is done',
    "priority": "it is critical, high, normal, low or background, or 0 to 4",
    "rebalance_timeout": _DURATION,
    "received": "it is the whole number that the last poll whose answer arrived has as `poll`",
    "replication_factor": _ONE_NODE,
    "revoked": 'write ["topic-0"]: partitions that were to be given up',
    "session_timeout": _DURATION,
    "start": "it is earliest, latest, an offset as a number, or a time as text: RFC 3339 with a zone",
    "timeout": _DURATION,
    "timestamp": _TIME,
    "to": "it is earliest, latest, offset, timestamp or duration",
    "to_time": _TIME,
    "topics": 'write ["name"]: a list of the names of one or more topics',
    "value": "it is text: send JSON as a string, and bytes as base64 with an encoding",
}
"""What to write instead, by the name of the field."""
OTHER_HINTS: Final[dict[tuple[type[Request], str], str]] = {
    (ResetOffsets, "value"): "it is an offset, a time or a duration, as `to` says",
}
"""Where a field of that name means something else."""


def refuse(error: msgspec.ValidationError, request: type[Request]) -> InvalidRequest:
    text = str(error)[:_SHOWN_LETTERS]
    unknown = _UNKNOWN.search(text)
    if unknown is not None:
        name = unknown[1]
        if name in PLANNED:
            return NotBuilt(name)
        if name == "num_partitions":
            return InvalidRequest(f"{text}; POST /admin/topics/{{topic}}/partitions gives a topic more partitions")
        near = get_close_matches(name, request.__struct_fields__, n=1)
        return InvalidRequest(f"{text}; did you mean {near[0]}?" if near else text)
    bad_value = _BAD_VALUE.search(text)
    if bad_value is not None and bad_value[1] in PLANNED_VALUES.get(bad_value[2], ()):
        return NotBuilt(f"{bad_value[2]} {bad_value[1]}")
    place = _MISSING.search(text) or _PLACE.search(text)
    if place is None:
        return InvalidRequest(text)
    hint = OTHER_HINTS.get((request, place[1])) or HINTS.get(place[1])
    return InvalidRequest(f"{text}; {hint}" if hint is not None else text)
