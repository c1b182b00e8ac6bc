"""What the driver asks the broker: which topics there are, where they begin and end, what was at a time."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from goqueue.client.client import AsyncClient
from goqueue.client.sync.client import Client
from goqueue.model.errors import InvalidRequest, UnknownPartition, UnknownReader, UnknownTopic
from goqueue.model.times import show_time
from goqueue.model.transactions import show_undecided
from goqueue.spark.options import EARLIEST, LATEST, Address, Bound, Isolation, Subscription
from goqueue.spark.places import Offsets, Position


class Extents(NamedTuple):
    """What there is to read of the topics that are subscribed to."""

    ids: dict[str, str]
    earliest: Offsets
    latest: Offsets
    bytes_per_offset: dict[str, float]
    """About how large messages of each topic are."""
    undecided: dict[tuple[str, int], str]
    """By topic and partition, where it ends before the log does, because of transactions that are open."""

    @property
    def start(self) -> Position:
        return Position(self.ids, self.earliest)

    @property
    def end(self) -> Position:
        return Position(self.ids, self.latest)


def connect(address: Address) -> Client:
    return Client(address.servers, **_settings(address))


def connect_async(address: Address) -> AsyncClient:
    """For tasks, which have a loop of their own."""
    return AsyncClient(address.servers, **_settings(address))


def _settings(address: Address) -> dict[str, Any]:
    return {
        "client_id": address.client_id,
        "connect_timeout": address.connect_timeout_s,
        "request_timeout": address.request_timeout_s,
    }


def survey(client: Client, subscription: Subscription, isolation: Isolation, *, missing: bool = False) -> Extents:
    """UnknownTopic when a topic that is named does not exist, unless it may be `missing`: then it is not found.

    A pattern that matches nothing finds nothing.
    """
    found = Extents({}, {}, {}, {}, {})
    bound = "stable" if isolation == "read_committed" else "latest"
    for name in _names(client, subscription):
        try:
            described = client.call("describe_topic", topic=name)
        except UnknownTopic:
            if missing or subscription.pattern is not None:  # it was there a moment ago
                continue
            raise
        closed = {
            number: reason  # one that has offsets is closed to groups only
            for number, reason in (described.get("unavailable") or {}).items()
            if number not in described["partition_offsets"]
        }
        if closed:
            raise InvalidRequest(f"partitions of {name} could not be opened by the broker: {closed}")
        offsets = {int(number): each for number, each in described["partition_offsets"].items()}
        if subscription.partitions is not None:
            for number in subscription.partitions[name]:
                if number not in offsets:
                    raise UnknownPartition(f"{name} has no partition {number}; it has {len(offsets)}, from 0 on")
            offsets = {number: offsets[number] for number in subscription.partitions[name]}
        found.ids[name] = described["topic_id"]
        found.earliest[name] = {number: each["earliest"] for number, each in offsets.items()}
        found.latest[name] = {number: each[bound] for number, each in offsets.items()}
        found.bytes_per_offset[name] = described["total_size_bytes"] / max(1, described["total_messages"])
        for number, each in offsets.items():
            if each[bound] < each["latest"]:
                found.undecided[name, number] = show_undecided(name, number, each[bound], each["latest"])
    return found


def named(subscription: Subscription) -> list[str]:
    """The topics it names."""
    return sorted(subscription.partitions or subscription.names)


def _names(client: Client, subscription: Subscription) -> list[str]:
    if subscription.pattern is not None:
        pattern = re.compile(subscription.pattern)
        return sorted(name for name in client.call("list_topics")["topics"] if pattern.fullmatch(name))
    return named(subscription)


def resolve(client: Client, extents: Extents, bound: Bound, *, what: str) -> Position:
    """Where a bound is, in every partition there is."""

    def at_time(topic: str, time_ms: int) -> dict[int, int]:
        found = client.call("offsets", topic=topic, timestamp=show_time(time_ms))["offsets"]
        return {int(number): offset for number, offset in found.items()}

    return locate(extents, bound, at_time, what=what)


def locate(extents: Extents, bound: Bound, at_time: Callable[[str, int], dict[int, int]], *, what: str) -> Position:
    """The same, for who knows by other means which offsets of a topic were the first at or after a time."""
    ends = {EARLIEST: extents.earliest, LATEST: extents.latest}
    if bound.word is not None:
        return Position(extents.ids, ends[bound.word])
    offsets: Offsets = {}
    for topic, latest in extents.latest.items():
        if bound.time_ms is not None:
            found = at_time(topic, bound.time_ms)
            offsets[topic] = {number: min(found[number], end) for number, end in latest.items()}
            continue
        assert bound.offsets is not None
        given = bound.offsets.get(topic)
        if given is None or given.keys() != latest.keys():
            raise InvalidRequest(
                f"{what} has to name every partition of every topic: {topic} has {', '.join(map(str, sorted(latest)))}"
            )
        offsets[topic] = {
            number: ends[place][topic][number] if isinstance(place, str) else place for number, place in given.items()
        }
    if bound.offsets is not None:
        for topic in bound.offsets:
            if topic not in extents.ids:
                raise UnknownTopic(f"{what} names {topic}, which is not among the topics that are read")
    return Position(extents.ids, offsets)


def check_start(extents: Extents, start: Position) -> None:
    """InvalidRequest when there is nothing yet where it is to begin."""
    for topic, places in start.offsets.items():
        for number, place in places.items():
            end = extents.latest[topic][number]
            if place > end:
                why = extents.undecided.get((topic, number), f"it ends at {end}")
                raise InvalidRequest(f"startingOffsets has {place} for partition {number} of {topic}: {why}")


def keep_start(client: Client, name: str, start: Position, earliest: Position) -> Position:
    """Where the reader of this name began: what is said now, or what was said first.

    What came since then is read from its beginning, wherever the others began.
    """
    if not start.offsets:  # nothing matches its pattern yet
        return start
    try:
        client.call("get_reader", name=name)
    except UnknownReader:
        first = start
    else:
        first = earliest
    offsets = {topic: {str(number): at for number, at in places.items()} for topic, places in first.offsets.items()}
    kept = client.call("put_reader", name=name, offsets=offsets, if_absent=True)["offsets"]
    return Position(
        start.ids,
        {topic: {number: kept[topic][str(number)] for number in places} for topic, places in start.offsets.items()},
    )
