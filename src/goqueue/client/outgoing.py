"""What a message may be made of, as users say it, brought to what the codec packs."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from operator import index
from typing import Any, Final

from goqueue.model import limits
from goqueue.model.errors import InvalidRequest
from goqueue.model.record import Lane
from goqueue.model.times import parse_time

Content = bytes | bytearray | memoryview | str
"""Text is sent as UTF-8."""
Headers = Iterable[tuple[str, Content]] | Mapping[str, Content]
Moment = datetime | int | str
"""A datetime with a zone, Unix milliseconds, or RFC 3339."""
Outgoing = tuple[
    Content | None,
    Content | None,
    int | None,
    Headers,
    str | int,
    float | None,
    Moment | None,
    float | None,
    Moment | None,
]
"""A message as users say it: value, key, partition, headers, priority, delay, deliver_at, ttl, event_time."""
NORMAL: Final = "normal"

LANES: Final[dict[Any, int]] = {lane.name.lower(): int(lane) for lane in Lane} | {int(lane): int(lane) for lane in Lane}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def to_bytes(content: Content) -> bytes:
    if isinstance(content, str):
        try:
            return content.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(f"{content!r} is no text that UTF-8 can carry ({error.reason}); send bytes") from None
    if isinstance(content, bytes | bytearray | memoryview):
        return bytes(content)
    raise InvalidRequest(f"keys, values and headers are bytes or text, not {type(content).__name__}; encode it first")


def to_headers(headers: Headers) -> list[tuple[str, bytes]]:
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    try:
        found = [(name, to_bytes(content)) for name, content in pairs]
    except (TypeError, ValueError):
        raise InvalidRequest(
            f"headers are pairs of a name and its content, or a dict of them, not {headers!r}"
        ) from None
    for name, _ in found:
        if not isinstance(name, str):
            raise InvalidRequest(f"the name of a header is text, not {name!r}")
    return found


def to_lane(priority: Any) -> int:
    try:
        return LANES[priority]
    except (KeyError, TypeError):
        raise InvalidRequest(f"a priority is one of {', '.join(map(str, LANES))}, not {priority!r}") from None


def to_partition(partition: Any) -> int:
    """Whether there is such a one is for who knows the topic."""
    try:
        if not isinstance(partition, bool):
            return index(partition)
    except TypeError:
        pass
    raise InvalidRequest(f"a partition is a whole number, from 0 on, not {partition!r}")


def to_ms(moment: Moment) -> int:
    """Unix milliseconds."""
    if isinstance(moment, str):
        return parse_time(moment)
    if isinstance(moment, int):
        return moment
    if not isinstance(moment, datetime):
        raise InvalidRequest(f"a time is a datetime, Unix milliseconds (a whole number) or RFC 3339, not {moment!r}")
    if moment.tzinfo is None:
        raise InvalidRequest(f"{moment!r} has no time zone; use datetime.now(timezone.utc), or .astimezone()")
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def to_moment(moment: Moment, what: str) -> int:
    """Unix milliseconds of a time that a record can have. Below zero a record says how long after its append."""
    moment_ms = to_ms(moment)
    if not 0 <= moment_ms <= limits.LAST_TIME_MS:
        raise InvalidRequest(f"{what} is {moment!r}; it must lie between the years 1970 and 9999")
    return moment_ms


def to_due(delay: float | None, deliver_at: Moment | None) -> int | None:
    """As a record says it: a negative time is that long after the append."""
    if delay is not None:
        if deliver_at is not None:
            raise InvalidRequest("a message has a delay or a time to be delivered at, not both")
        return -_span_ms(delay, "a delay") or None
    return None if deliver_at is None else to_moment(deliver_at, "deliver_at")


def to_expiry(ttl: float) -> int:
    """A negative time: that long after it is due."""
    return -max(1, _span_ms(ttl, "a time to live"))


def _span_ms(span_s: float, what: str) -> int:
    if not 0 <= span_s * 1000 <= limits.MAX_DURATION_MS:
        raise InvalidRequest(f"{what} is from 0 to {limits.MAX_DURATION_MS // 1000} seconds, not {span_s}")
    return round(span_s * 1000)
