"""What a client knows about topics: their ids and how many partitions they have. Asked for once, and again later."""

import msgspec

from goqueue.client.link import Link
from goqueue.model.errors import ProtocolError, UnknownTopic
from goqueue.wire import shapes
from goqueue.wire.codes import CODES


class Topic(msgspec.Struct, frozen=True):
    name: str
    topic_id: int
    partitions: int


async def look_up(link: Link, names: list[str], *, timeout_s: float | None = None) -> dict[str, Topic]:
    """Those of the topics that exist."""
    reply = await link.ask(CODES["metadata"], {"topics": names}, repeatable=True, timeout_s=timeout_s)
    try:
        found = msgspec.convert(reply, shapes.Metadata)
        return {each.name: Topic(each.name, int(each.topic_id, 16), each.partitions) for each in found.topics}
    except ValueError as error:  # msgspec's are ValueErrors
        raise ProtocolError(f"what the broker says about topics is not understood: {error}") from error


async def find(link: Link, name: str, *, timeout_s: float | None = None) -> Topic:
    topic = (await look_up(link, [name], timeout_s=timeout_s)).get(name)
    if topic is None:
        raise UnknownTopic(f"there is no topic {name!r}; create it first")
    return topic
