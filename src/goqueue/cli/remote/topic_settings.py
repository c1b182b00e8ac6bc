"""The settings of a topic as options, and what becomes of them in a request."""

from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from goqueue.cli.remote.broker import NULL
from goqueue.cli.remote.names import option
from goqueue.cli.remote.typed import check_number, typed_duration
from goqueue.model import limits
from goqueue.model.errors import InvalidRequest
from goqueue.model.record import Lane
from goqueue.model.settings import Fsync
from goqueue.model.topic import CleanupPolicy, LanePolicy, OnExpiry

_NONE: Final = "none"


def _duration(name: str, help: str) -> Any:
    return Annotated[str | None, option(name, "DURATION", help)]


def _one_of(kind: type[StrEnum], name: str, help: str) -> Any:
    return Annotated[kind | None, typer.Option(name, help=help)]


SETTINGS: Final[dict[str, Any]] = {
    "retention": _duration("--retention", "Keep messages this long, like 7d; or none, for no limit."),
    "retention_bytes": Annotated[
        str | None, option("--retention-bytes", "BYTES", "Keep at most this much of a partition; or none.")
    ],
    "cleanup_policy": _one_of(CleanupPolicy, "--cleanup-policy", "Remove old messages, superseded ones, or both."),
    "segment_bytes": Annotated[int | None, option("--segment-bytes", "BYTES", "Begin a new file at this size.")],
    "fsync": _one_of(Fsync, "--fsync", "When messages are made durable."),
    "max_message_bytes": Annotated[int | None, option("--max-message-bytes", "BYTES", "Refuse larger messages.")],
    "visibility_timeout": _duration("--visibility-timeout", "How long a consumer may take for a message."),
    "max_retries": Annotated[int | None, option("--max-retries", "COUNT", "Try a message so often again.")],
    "backoff_base": _duration("--backoff-base", "Wait this long before the first retry."),
    "backoff_factor": Annotated[
        float | None, option("--backoff-factor", "NUMBER", "Wait so many times longer before each further one.")
    ],
    "backoff_max": _duration("--backoff-max", "Never wait longer than this before a retry."),
    "dlq": Annotated[
        bool | None, typer.Option("--dlq/--no-dlq", help="Whether dead messages go to a dead-letter topic.")
    ],
    "message_ttl": _duration("--message-ttl", "Do not deliver messages later than this; or none."),
    "on_expiry": _one_of(OnExpiry, "--on-expiry", "What becomes of messages past their time."),
    "lane_weights": Annotated[
        str | None, option("--lane-weights", "A,B,C,D,E", "Shares of the five lanes, critical first: 50,25,15,7,3.")
    ],
    "lane_policy": _one_of(LanePolicy, "--lane-policy", "How lanes share polls."),
}


_SPANS: Final = {
    "visibility_timeout": (limits.MIN_VISIBILITY_MS, limits.MAX_VISIBILITY_MS),
    "backoff_base": (0, limits.MAX_BACKOFF_MS),
    "backoff_max": (0, limits.MAX_BACKOFF_MS),
    "message_ttl": (limits.MIN_TTL_MS, limits.MAX_DURATION_MS),
}
"""How long each may be, in milliseconds."""


def asked_settings(given: dict[str, Any]) -> dict[str, Any]:
    """The fields of the request; "none" is how the API says that there is no limit."""
    fields = {name: value for name, value in given.items() if value is not None}
    check_number("--backoff-factor", fields.get("backoff_factor"), least=1, most=limits.MAX_BACKOFF_FACTOR)
    check_number("--max-retries", fields.get("max_retries"), least=0, most=limits.MAX_RETRIES)
    for name, (least_ms, most_ms) in _SPANS.items():
        text = fields.get(name)
        if text is not None and not (name == "message_ttl" and text == _NONE):
            typed_duration(f"--{name.replace('_', '-')}", text, least_ms=least_ms, most_ms=most_ms)
    retention = fields.pop("retention", None)
    if retention is not None:
        fields["retention_hours"] = -1 if retention == _NONE else typed_duration("--retention", retention) / 3_600_000
    if "retention_bytes" in fields:
        fields["retention_bytes"] = _bytes(fields["retention_bytes"])
    backoff = {part: fields.pop(f"backoff_{part}") for part in ("base", "factor", "max") if f"backoff_{part}" in fields}
    if backoff:
        fields["backoff"] = backoff
    if "dlq" in fields:
        fields["dlq_enabled"] = fields.pop("dlq")
    if fields.get("message_ttl") == _NONE:
        fields["message_ttl"] = NULL
    if "lane_weights" in fields:
        fields["lane_weights"] = _weights(fields["lane_weights"])
    return fields


def _bytes(text: str) -> int:
    if text == _NONE:
        return -1
    if not text.isdecimal():
        raise InvalidRequest(f"--retention-bytes is {text!r}; it must be a whole number of bytes, or none")
    return int(text)


def _weights(text: str) -> list[int]:
    parts = text.split(",")
    weights = [int(part) if part.strip().isdecimal() else 0 for part in parts]
    if len(weights) != len(Lane) or not all(0 < weight <= limits.MAX_LANE_WEIGHT for weight in weights):
        raise InvalidRequest(
            f"--lane-weights is {text!r}; write five whole numbers from 1 to {limits.MAX_LANE_WEIGHT}, critical first, "
            "like 50,25,15,7,3"
        )
    return weights
