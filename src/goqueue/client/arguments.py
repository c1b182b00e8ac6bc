"""Arguments as Python has them, brought to the fields that an operation has in JSON, or a settlement on the wire.

Nothing is checked here that the broker checks, but for what would be refused together with the decisions of others.
What a message is made of is said in `outgoing`: a schedule's message is made of the same.
"""

from base64 import b64encode
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypedDict

from msgspec import UNSET, UnsetType

from goqueue.client.outgoing import Content, Headers, Moment, to_bytes, to_headers, to_ms
from goqueue.model import limits
from goqueue.model.errors import InvalidRequest
from goqueue.model.groups import Place
from goqueue.model.jobs import Missed
from goqueue.model.settings import Fsync
from goqueue.model.times import show_duration
from goqueue.model.topic import CleanupPolicy, LanePolicy, OnExpiry
from goqueue.wire import shapes
from goqueue.wire.settles import NO_ARGUMENT

Duration = float | str
"""Seconds, or text like "250ms", "30s" or "1h30m"."""
Priority = shapes.PriorityName | int
"""Its name, or the number of its lane."""
Handles = str | Iterable[str]
"""One receipt handle, or many."""
Reason = Literal["rejected", "nacked", "lapsed", "expired"]
"""Why a message died."""
CleanupPolicyName = CleanupPolicy | Literal["delete", "compact", "both"]
FsyncName = Fsync | Literal["none", "interval", "every"]
OnExpiryName = OnExpiry | Literal["drop", "dlq"]
LanePolicyName = LanePolicy | Literal["weighted", "strict"]
MissedName = Missed | Literal["skip", "once", "all"]


class Backoff(TypedDict, total=False):
    """How long a message waits before it is tried again: `base` at first, then `factor` as long, at most `max`."""

    base: Duration
    factor: float
    max: Duration


# ---------------------------------------------------------------- of operations


def given(**fields: Any) -> dict[str, Any]:
    """Those that were given. None is as good as left out."""
    return {name: value for name, value in fields.items() if value is not None and value is not UNSET}


def settings_given(**fields: Any) -> dict[str, Any]:
    """Those that were given. None is a value: no limit."""
    return {name: value for name, value in fields.items() if value is not UNSET}


def as_time(moment: Moment | None) -> str | None:
    """Text is for the broker to understand."""
    return moment if moment is None or isinstance(moment, str) else str(to_ms(moment))


def as_place(*, to: str | None, offset: int | None, time: Moment | None, ago: Duration | None) -> dict[str, Any]:
    """Where a reset goes."""
    if [to, offset, time, ago].count(None) != 3:
        raise InvalidRequest("name one place to go on from: to, offset, time or ago")
    if to is not None:
        return {"to": to}
    if offset is not None:
        return {"to": Place.OFFSET, "value": offset}
    if time is not None:
        return {"to": Place.TIMESTAMP, "value": as_time(time)}
    return {"to": Place.DURATION, "value": ago if isinstance(ago, str) else show_duration(round((ago or 0) * 1000))}


def as_handles(handles: Handles) -> dict[str, Any]:
    """One is refused with an error, of many each has a result."""
    return {"receipt_handle": handles} if isinstance(handles, str) else {"receipt_handles": list(handles)}


def as_message(
    value: Content | UnsetType | None,
    *,
    key: Content | None,
    partition: int | None,
    priority: Priority | None,
    headers: Headers,
    ttl: Duration | None,
) -> dict[str, Any] | None:
    """What a schedule publishes: text if all of it is, base64 if not. None without a value."""
    pairs = to_headers(headers)
    more = given(key=key, partition=partition, priority=priority, headers=pairs or None, ttl=ttl)
    if value is UNSET:
        if more:
            raise InvalidRequest(f"{', '.join(more)} without a value: the message is replaced as a whole, so give both")
        return None
    contents = [None if content is None else to_bytes(content) for content in (value, key)]
    contents += [content for _, content in pairs]
    encoding = "utf-8"
    try:
        texts = [None if content is None else content.decode() for content in contents]
    except UnicodeDecodeError:
        encoding = "base64"
        texts = [None if content is None else b64encode(content).decode() for content in contents]
    more |= given(
        key=texts[1], headers=[(name, text) for (name, _), text in zip(pairs, texts[2:], strict=True)] or None
    )
    return {"value": texts[0], "encoding": encoding, **more}


def as_filter(
    *,
    from_time: Moment | None,
    to_time: Moment | None,
    offsets: Mapping[int, Iterable[int]] | None,
    **fields: str | Mapping[str, str] | None,
) -> dict[str, Any] | None:
    """Which dead letters are wanted; None if all are."""
    numbers = None if offsets is None else {str(partition): list(found) for partition, found in offsets.items()}
    return given(from_time=as_time(from_time), to_time=as_time(to_time), offsets=numbers, **fields) or None


# ---------------------------------------------------------------- of settlements


def to_delay(delay: float | None) -> int:
    """As a settlement says it."""
    if delay is None:
        return NO_ARGUMENT
    if not 0 <= delay * 1000 <= limits.MAX_BACKOFF_MS:
        raise InvalidRequest(f"a delay is from 0 to {limits.MAX_BACKOFF_MS // 1000} seconds, not {delay}")
    return round(delay * 1000)


def to_reason(reason: str) -> str:
    """Too long, it would be refused, and those that are sent with it."""
    if len(reason) > limits.MAX_REJECT_CHARS:
        raise InvalidRequest(
            f"a reason has at most {limits.MAX_REJECT_CHARS} characters, not {len(reason)}; shorten it"
        )
    return reason


def to_extension(seconds: float) -> int:
    span_ms = round(seconds * 1000)
    if not limits.MIN_VISIBILITY_MS <= span_ms <= limits.MAX_VISIBILITY_MS:
        raise InvalidRequest(f"a message is kept for up to {limits.MAX_VISIBILITY_MS // 1000} seconds, not {seconds}")
    return span_ms
