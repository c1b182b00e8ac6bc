"""Arguments as Python has them, brought to the fields that an operation has in JSON.

Nothing is checked here that the broker checks, but for what JSON would not carry as it was meant, and what the broker
would refuse by another name. What a message is made of is said in `outgoing`: a schedule's message is made of the same.
"""

from base64 import b64encode
from collections.abc import Iterable, Mapping
from datetime import timedelta
from math import isfinite
from typing import Any, Final, Literal, TypedDict

from msgspec import UNSET, UnsetType

from goqueue.client.arguments import Duration, check, rename, to_list, to_span_ms, wrong
from goqueue.client.outgoing import Content, Headers, Moment, to_bytes, to_headers, to_lane, to_moment, to_place_ms
from goqueue.model.errors import InvalidRequest
from goqueue.model.groups import Place
from goqueue.model.jobs import Missed
from goqueue.model.settings import Fsync
from goqueue.model.times import show_duration, show_time
from goqueue.model.topic import CleanupPolicy, LanePolicy, OnExpiry
from goqueue.wire import shapes

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


_ARGUMENTS: Final = {
    "deliverAt": "deliver_at",
    "num_partitions": "partitions",
    "receipt_handle": "handles",
    "receipt_handles": "handles",
    "timestamp": "time",
    "value": "offset",
}
"""Of fields that are called otherwise. The value of a reset is an offset: other places are checked here."""


class Backoff(TypedDict, total=False):
    """How long a message waits before it is tried again: `base` at first, then `factor` as long, at most `max`."""

    base: Duration
    factor: float
    max: Duration


def given(**fields: Any) -> dict[str, Any]:
    """Those that were given. None is as good as left out."""
    return {name: value for name, value in fields.items() if value is not None and value is not UNSET}


def settings_given(**fields: Any) -> dict[str, Any]:
    """Those that were given. None is a value: no limit."""
    return {name: value for name, value in fields.items() if value is not UNSET}


def as_fields(fields: Mapping[str, Any], inside: str = "") -> dict[str, Any]:
    """What JSON has no word for: spans of time are text. Bytes become base64, so they need an encoding beside them."""
    is_encoded = "encoding" in fields
    return {name: _as_field(f"{inside}{name}", value, is_encoded=is_encoded) for name, value in fields.items()}


def _as_field(name: str, value: Any, *, is_encoded: bool) -> Any:
    if isinstance(value, timedelta):
        return show_duration(to_span_ms(_argument(name), value))
    if isinstance(value, float) and not isfinite(value):
        raise wrong(_argument(name), value, "a number that is one, and not infinite")
    if isinstance(value, bytes | bytearray | memoryview) and not is_encoded:
        raise wrong(_argument(name), value, "text; decode it")
    if isinstance(value, Mapping):
        return as_fields(value, f"{name}.")
    if isinstance(value, list | tuple):
        return [_as_field(name, each, is_encoded=is_encoded) for each in value]
    return value


def by_argument(error: InvalidRequest, fields: Mapping[str, Any]) -> InvalidRequest:
    """The broker's refusal of a field, as one of the argument that became it."""
    if error.field is None:
        return error
    return rename(error, _argument(error.field), fields)


def _argument(field: str) -> str:
    """The argument that became this field."""
    return _ARGUMENTS.get(field) or field.removeprefix("message.").removeprefix("filter.")


def as_time(moment: Moment | None, name: str = "time") -> str | None:
    """A place in a log."""
    return None if moment is None else show_time(to_place_ms(moment, name))


def as_due(*, delay: Duration | None, deliver_at: Moment | None) -> dict[str, Any]:
    """When a delayed message is to be delivered."""
    if (delay is None) == (deliver_at is None):
        raise InvalidRequest("give either a delay, counted from now, or deliver_at")
    due = None if deliver_at is None else show_time(to_moment(deliver_at, "deliver_at"))
    return given(delay=delay, deliverAt=due)


def as_place(*, to: str | None, offset: int | None, time: Moment | None, ago: Duration | None) -> dict[str, Any]:
    """Where a reset goes."""
    if [to, offset, time, ago].count(None) != 3:
        raise InvalidRequest("name one place to go on from: to, offset, time or ago")
    if to is not None:
        check(to=to)
        return {"to": to}
    if offset is not None:
        check(offset=offset)
        return {"to": Place.OFFSET, "value": offset}
    if time is not None:
        return {"to": Place.TIMESTAMP, "value": as_time(time)}
    assert ago is not None
    return {"to": Place.DURATION, "value": show_duration(to_span_ms("ago", ago))}


def as_handles(handles: Handles) -> dict[str, Any]:
    """One is refused with an error, of many each has a result."""
    if isinstance(handles, str):
        return {"receipt_handle": handles}
    return {"receipt_handles": to_list("handles", handles, lambda each: isinstance(each, str), "a list of handles")}


def as_ids(ids: Iterable[tuple[int, int]]) -> list[tuple[int, ...]]:
    """Messages by partition and offset."""
    wanted = "a list of pairs: partition and offset"
    return to_list("ids", ids, lambda each: isinstance(each, list | tuple), wanted)


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
    if priority is not None:
        to_lane(priority)
    more = given(key=key, partition=partition, priority=priority, headers=pairs or None, ttl=ttl)
    if value is UNSET:
        if more:
            raise InvalidRequest(f"{', '.join(more)} without a value: the message is replaced as a whole, so give both")
        return None
    contents = [
        None if value is None else to_bytes(value, "value"),
        None if key is None else to_bytes(key, "key"),
        *(content for _, content in pairs),
    ]
    encoding = "utf-8"
    try:
        texts = [None if content is None else content.decode() for content in contents]
    except UnicodeDecodeError:
        encoding = "base64"
        texts = [None if content is None else b64encode(content).decode() for content in contents]
    more |= given(
        key=texts[1], headers=[(name, text) for (name, _), text in zip(pairs, texts[2:], strict=True)] or None
    )
    content = {"tombstone": True} if texts[0] is None else {"value": texts[0]}
    return {**content, "encoding": encoding, **more}


def as_filter(
    *,
    from_time: Moment | None,
    to_time: Moment | None,
    offsets: Mapping[int, Iterable[int]] | None,
    deleted: bool,
    **fields: str | Mapping[str, str] | None,
) -> dict[str, Any] | None:
    """Which dead letters are wanted; None if all are."""
    try:
        numbers = None if offsets is None else {str(partition): [*found] for partition, found in offsets.items()}
    except (AttributeError, TypeError):
        raise wrong("offsets", offsets, "a dict: by partition, offsets in it, like {0: [5, 8]}") from None
    times = given(from_time=as_time(from_time, "from_time"), to_time=as_time(to_time, "to_time"))
    return {**times, **given(offsets=numbers, deleted=deleted or None, **fields)} or None


def as_offsets(offsets: Mapping[str, Mapping[int, int]]) -> dict[str, dict[str, int]]:
    """By topic and partition."""
    try:
        return {topic: {str(number): at for number, at in places.items()} for topic, places in offsets.items()}
    except AttributeError:
        raise wrong("offsets", offsets, 'a dict of dicts: by topic and partition, like {"orders": {0: 5}}') from None
