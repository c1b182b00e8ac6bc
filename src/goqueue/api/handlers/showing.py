"""Records and members as JSON, and pages of a list. Of a record, text where it is text, base64 where it is not."""

from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from goqueue.api.turns import Turns
from goqueue.broker.attend import Row
from goqueue.broker.coordination import View
from goqueue.broker.poll import Polled
from goqueue.delivery.handles import Handle, HandleKey
from goqueue.groups.group import DamagedRange
from goqueue.model import limits
from goqueue.model.names import message_id
from goqueue.model.record import Extension, Record
from goqueue.model.times import show_time
from goqueue.wire import shapes

_NO_EXTENSION: Final = Extension()

T = TypeVar("T", bound=shapes.Reply)


async def fit_page(turns: Turns, shown: Iterable[T], headers_of: Callable[[T], int] = lambda _: 0) -> list[T]:
    """Those that fit into one reply, and the first in any case. Others get their turns while they are made.

    `headers_of` says how many headers one of them has.
    """
    page: list[T] = []

    def steps() -> Iterator[None]:
        left, headers_left = limits.MAX_PAGE_BYTES, limits.MAX_READ_HEADERS
        for each in shown:
            left -= len(msgspec.json.encode(each))
            headers_left -= headers_of(each)
            if page and (left < 0 or headers_left < 0):
                return
            page.append(each)
            yield

    await turns.take(steps())
    return page


def show_read(topic: str, partition: int, record: Record) -> shapes.ReadMessage:
    """For a simple read."""
    return shapes.ReadMessage(**_fields(topic, partition, record))


def show_polled(row: Row, record: Record, handles: HandleKey, polled: Polled) -> shapes.PolledMessage:
    """For a member of a group, with a handle to settle it by."""
    topic = row.topic.meta
    handle = Handle(topic.name, row.partition, record.offset, row.deliveries, polled.group.number, polled.number)
    return shapes.PolledMessage(
        topic=topic.name,
        delivery_count=row.deliveries,
        receipt_handle=handles.issue(topic.topic_id, handle),
        **_fields(topic.name, row.partition, record),
    )


def show_member(view: View) -> shapes.MemberReply:
    """To itself."""
    return shapes.MemberReply(**_member_fields(view))


def show_news(
    view: View, topics: dict[str, str], damage: Sequence[DamagedRange], incomplete: dict[str, dict[int, str]]
) -> shapes.MemberNews:
    """A member, to itself: with the ids of its topics, the damage its group passed over, what is closed to groups."""
    return shapes.MemberNews(
        topics=topics,
        damage=show_damage(damage),
        incomplete=show_incomplete_topics(incomplete),
        **_member_fields(view),
    )


def show_damage(damage: Sequence[DamagedRange]) -> list[shapes.DamagedRange] | UnsetType:
    """Left out if there is none."""
    return [shapes.DamagedRange(**each._asdict()) for each in damage] or UNSET


def show_incomplete(damage: dict[int, str], topic: str | UnsetType = UNSET) -> list[shapes.Incomplete] | UnsetType:
    """Partitions that may have more, and why; nothing if all is there."""
    return [
        shapes.Incomplete(partition=number, reason=reason, topic=topic) for number, reason in sorted(damage.items())
    ] or UNSET


def show_incomplete_topics(damage: dict[str, dict[int, str]]) -> list[shapes.Incomplete] | UnsetType:
    """Partitions of several topics that may have more messages, and why; nothing if all is there."""
    return [one for topic, found in damage.items() for one in show_incomplete(found, topic) or ()] or UNSET


def _fields(topic: str, partition: int, record: Record) -> dict[str, Any]:
    extension = record.extension or _NO_EXTENSION
    event_time, deliver_at = extension.event_time, extension.deliver_at
    return {
        "offset": record.offset,
        "partition": partition,
        "timestamp": show_time(record.timestamp),
        "message_id": message_id(topic, partition, record.offset),
        "event_time": UNSET if event_time is None else show_time(event_time),
        "deliver_at": UNSET if deliver_at is None else show_time(deliver_at),
        **show_content(record),
    }


def show_content(record: Record) -> dict[str, Any]:
    """What its publisher said: key, value, headers and priority, and how they are encoded."""
    try:
        key = None if record.key is None else record.key.decode()
        value = None if record.value is None else record.value.decode()
        pairs = [(name, text.decode()) for name, text in record.headers]
        encoding = None
    except UnicodeDecodeError:
        key, value = _base64(record.key), _base64(record.value)
        pairs = [(name, b64encode(text).decode()) for name, text in record.headers]
        encoding = "base64"
    pairs = [(_readable(name), text) for name, text in pairs]
    headers: dict[str, str] | list[tuple[str, str]] = dict(pairs)
    if len(headers) < len(pairs):
        headers = pairs
    return {
        "key": key,
        "value": value,
        "headers": headers,
        "priority": shapes.LANE_NAMES[record.priority],
        "encoding": UNSET if encoding is None else "base64",
    }


def _member_fields(view: View) -> dict[str, Any]:
    return {
        "member_id": view.member_id,
        "generation": view.generation,
        "state": view.state,
        "leader": view.leader,
        "rebalance_required": view.is_rebalancing,
        "assigned_partitions": view.assigned,
        "revoke": view.revoke,
    }


def _base64(data: bytes | None) -> str | None:
    return None if data is None else b64encode(data).decode()


def _readable(name: str) -> str:
    """A header name that is no text, as a client on the wire may send it, with its odd bytes spelled out."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
