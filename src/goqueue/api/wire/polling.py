"""poll_block: what a member is delivered, as it lies in the log."""

from typing import Final

import msgspec

from goqueue.api.handlers.showing import show_news
from goqueue.broker.broker import Broker
from goqueue.broker.poll import Polled, Turn
from goqueue.model.names import format_topic_id
from goqueue.wire.frames import Bytes
from goqueue.wire.polls import UNKNOWN, PollReply, PollRequest, Row
from goqueue.wire.shapes import MemberNews

_encode: Final = msgspec.json.Encoder().encode


async def park(broker: Broker, request: PollRequest) -> Turn:
    """Until there is something to answer."""
    return await broker.poller.park(
        request.group,
        request.member_id,
        timeout_ms=request.max_wait_ms,
        received=None if request.received == UNKNOWN else request.received,
        known_version=None if request.version == UNKNOWN else request.version,
    )


async def take(broker: Broker, request: PollRequest, turn: Turn) -> Polled:
    return await broker.poller.take(
        turn,
        max_messages=request.max_count,
        max_bytes=request.max_bytes,
        known_version=request.version,
        visibility_ms=request.visibility_ms or None,
    )


def pack(broker: Broker, request: PollRequest, polled: Polled) -> list[Bytes]:
    """The parts of a reply."""
    view, group = polled.view, polled.group.number
    news = b"" if view.version == request.version else _encode(_news(broker, polled))
    head = PollReply(polled.number, view.version, view.generation, group, news, len(polled.rows)).pack()
    parts: list[Bytes] = [head]
    for taken in polled.rows:
        topic_id, chunk = taken.topic.meta.topic_id, taken.chunk
        token = broker.handles.token(topic_id, taken.partition, group, polled.number)
        row = Row(
            topic_id, taken.partition, token, taken.epoch, chunk.next_offset, taken.deliveries, chunk.count, chunk.data
        )
        parts += (row.pack_head(), chunk.data)
    return parts


def _news(broker: Broker, polled: Polled) -> MemberNews:
    view = polled.view
    member = polled.group.member(view.member_id)
    shapes = {name: broker.groups.shape_of(name) for name in member.joined.topics}
    topics = {name: format_topic_id(shape.topic_id) for name, shape in shapes.items() if shape is not None}
    return show_news(view, topics, polled.damage, polled.incomplete)
