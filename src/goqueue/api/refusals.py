"""Requests that do not fit their shape: what the validator found, and what would be right."""

import re
from difflib import get_close_matches
from typing import Final

import msgspec

from goqueue.api.shapes import Request
from goqueue.model.errors import InvalidRequest, NotBuilt

_SHOWN_LETTERS: Final = 300
"""How much of a refused request is repeated to whoever sent it."""
_UNKNOWN: Final = re.compile(r"unknown field `(.*?)`")
_PLACE: Final = re.compile(r" - at `\$(?:\..*)?\.(\w+)`$")

PLANNED: Final = frozenset(
    (
        "delay", "deliverAt", "ttl", "transactional_id", "transaction_timeout", "visibility_timeout", "max_retries",
        "backoff", "dlq_enabled", "message_ttl", "on_expiry", "validation", "tracing", "lane_weights", "lane_policy",
        "include",
    )
)  # fmt: skip
"""Fields whose feature is not here yet. They are refused like any other unknown field, with a better reason."""

_TIME: Final = "write RFC 3339 with a zone, like 2026-01-31T12:00:00Z, or Unix milliseconds"
_ONE_NODE: Final = "several nodes are not available in this version; 1 is the only value"
HINTS: Final[dict[str, str]] = {
    "acks": "it is none, leader or all",
    "cleanup_policy": "it is delete, compact or both",
    "encoding": "it is utf-8 or base64",
    "event_time": _TIME,
    "from_time": _TIME,
    "fsync": "it is none, interval or every",
    "headers": 'write {"name": "value"} or [["name", "value"]], with text as values',
    "min_insync_replicas": _ONE_NODE,
    "name": "use letters, digits, '.', '_' and '-', at most 241 of them",
    "num_partitions": "it is a whole number from 1 to 1000",
    "offset": "it is a whole number; GET /topics/{topic}/offsets says where a partition ends",
    "priority": "it is critical, high, normal, low or background, or 0 to 4",
    "replication_factor": _ONE_NODE,
    "timestamp": _TIME,
    "to_time": _TIME,
    "value": "it is text: send JSON as a string, and bytes as base64 with an encoding",
}
"""What to write instead, by the name of the field."""


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
    place = _PLACE.search(text)
    hint = HINTS.get(place[1]) if place is not None else None
    return InvalidRequest(f"{text}; {hint}" if hint is not None else text)
