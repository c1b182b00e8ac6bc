"""What a message may be made of, as users say it, brought to what the codec packs."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from operator import index
from typing import Any, Final, NamedTuple

from goqueue.client.arguments import Duration, to_span_ms, wrong
from goqueue.codec import Field
from goqueue.codec.inspection import Block
from goqueue.codec.layout import HeaderColumns, Numbers, Pieces
from goqueue.model import limits
from goqueue.model.errors import InvalidRequest
from goqueue.model.record import Lane
from goqueue.model.times import parse_time, show_time

Content = bytes | bytearray | memoryview | str
"""Text is sent as UTF-8."""
Headers = Iterable[tuple[str, Content]] | Mapping[str, Content]
Moment = datetime | int | str
"""A datetime with a zone, Unix milliseconds, or RFC 3339."""
Start = datetime | int | str
"""Where a group begins: earliest, latest, an offset as a number, or a time: a datetime with a zone, or text."""


class OutgoingColumns(NamedTuple):
    """Messages column by column, laid out as the codec's `from_columns` takes them."""

    rows: int
    keys: Pieces | None
    values: Pieces | None
    headers: HeaderColumns | None
    lanes: Block
    fields: Mapping[Field, Numbers]
    partitions: Block


Outgoing = tuple[
    Content | None,
    Content | None,
    int | None,
    Headers,
    str | int,
    Duration | None,
    Moment | None,
    Duration | None,
    Moment | None,
]
"""A message as users say it: value, key, partition, headers, priority, delay, deliver_at, ttl, event_time."""
NORMAL: Final = "normal"

_NUMBERS: Final = frozenset(Lane)


class _Lanes(dict[Any, int]):
    """Lanes by their names, and by their numbers; True, which is 1 where Python looks it up, is no number of a lane."""

    def __missing__(self, priority: Any) -> int:
        if isinstance(priority, bool) or not hasattr(priority, "__index__") or priority not in _NUMBERS:
            raise KeyError(priority)
        return int(priority)


LANES: Final = _Lanes({lane.name.lower(): int(lane) for lane in Lane})
_MAX_SPAN_S: Final = limits.MAX_DURATION_MS // 1000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def to_bytes(content: Content, what: str) -> bytes:
    if isinstance(content, str):
        try:
            return content.encode()
        except UnicodeEncodeError as error:
            raise wrong(what, content, f"text that UTF-8 can carry ({error.reason}), or bytes") from None
    if isinstance(content, bytes | bytearray | memoryview):
        return bytes(content)
    raise wrong(what, content, f"bytes or text, not {type(content).__name__}; encode it first")


def to_topic(topic: Any) -> str:
    if isinstance(topic, str):
        return topic
    raise wrong("topic", topic, "the name of a topic, as text")


def to_headers(headers: Headers) -> list[tuple[str, bytes]]:
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    try:
        found = [(name, to_bytes(content, "the content of a header")) for name, content in pairs]
    except (TypeError, ValueError):
        raise wrong("headers", headers, "pairs of a name and its content, or a dict of them") from None
    for name, _ in found:
        if not isinstance(name, str):
            raise wrong("the name of a header", name, "text")
    return found


def to_lane(priority: Any) -> int:
    try:
        return LANES[priority]
    except (KeyError, TypeError):
        raise wrong("priority", priority, f"one of {', '.join(LANES)}, or 0 to {max(Lane)}") from None


def to_partition(partition: Any) -> int:
    """Whether there is such a one is for who knows the topic."""
    try:
        if not isinstance(partition, bool):
            return index(partition)
    except TypeError:
        pass
    raise wrong("partition", partition, "a whole number, from 0 on")


def to_ms(moment: Moment, what: str) -> int:
    """Unix milliseconds."""
    if isinstance(moment, str):
        try:
            return parse_time(moment)
        except InvalidRequest as error:
            raise InvalidRequest(f"{what}: {error}") from None
    if isinstance(moment, int) and not isinstance(moment, bool):
        return moment
    if not isinstance(moment, datetime):
        raise wrong(what, moment, "a datetime, Unix milliseconds (a whole number) or RFC 3339")
    if moment.utcoffset() is None:
        raise InvalidRequest(f"{what} is {moment!r}, with no time zone; use datetime.now(UTC), or .astimezone()")
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def to_start(start: Start) -> str | int:
    """As it is joined with. What text says is for the broker to understand."""
    if isinstance(start, datetime):
        return show_time(to_ms(start, "start"))
    if isinstance(start, bool) or not isinstance(start, int | str):
        raise wrong("start", start, "earliest, latest, an offset (a number), or a time: a datetime or RFC 3339")
    return start


def to_moment(moment: Moment, what: str) -> int:
    """Unix milliseconds of a time that a record can have. Below zero a record says how long after its append."""
    moment_ms = to_ms(moment, what)
    if not 0 <= moment_ms <= limits.LAST_TIME_MS:
        raise wrong(what, moment, "a time between the years 1970 and 9999")
    return moment_ms


def to_place_ms(moment: Moment, what: str) -> int:
    """Unix milliseconds of a time that is a place in a log. Before 1970 is its beginning."""
    moment_ms = to_ms(moment, what)
    if moment_ms > limits.LAST_TIME_MS:
        raise wrong(what, moment, "a time before the year 10000")
    return max(moment_ms, 0)


def to_due(delay: Duration | None, deliver_at: Moment | None) -> int | None:
    """As a record says it: a negative time is that long after the append."""
    if delay is not None:
        if deliver_at is not None:
            raise InvalidRequest("a message has a delay or a time to be delivered at, not both")
        return -_span_ms(delay, "delay") or None
    return None if deliver_at is None else to_moment(deliver_at, "deliver_at")


def to_expiry(ttl: Duration) -> int:
    """A negative time: that long after it is due."""
    ttl_ms = _span_ms(ttl, "ttl")
    if not ttl_ms and (not ttl or isinstance(ttl, str)):
        raise wrong("ttl", ttl, "at least 1ms: a message without time to live would never be delivered")
    return -max(1, ttl_ms)


def _span_ms(span: Any, what: str) -> int:
    """Seconds are what there is most of: anything else is found out when they are not."""
    try:
        if 0 <= span <= _MAX_SPAN_S and not isinstance(span, bool):
            span_ms: int = round(span * 1000)
            return span_ms
    except TypeError:
        pass
    return to_span_ms(what, span)
