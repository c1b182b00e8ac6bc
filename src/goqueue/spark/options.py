"""What can be said about reading and writing, as Spark hands it over: names in any case, values as text.

Names are those of Spark's Kafka source where it has one. Every option is in one table, so that a name nobody knows is
refused with the one it may have been meant to be. Nothing here knows Spark.
"""

import json
import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, Final, Literal, NamedTuple

from goqueue.client.client import DEFAULT_ADDRESS
from goqueue.model import limits
from goqueue.model.errors import InvalidRequest
from goqueue.model.names import check_topic_name
from goqueue.spark import values

Isolation = Literal["read_committed", "read_uncommitted"]

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
_NAMED: Final = {-2: EARLIEST, -1: LATEST}
"""What Kafka's offsets below 0 mean, in the offsets of single partitions."""


class Address(NamedTuple):
    """Where the broker is, and how long it may take."""

    servers: str = DEFAULT_ADDRESS
    connect_timeout_s: float = 10.0
    request_timeout_s: float = 30.0
    client_id: str = "spark"


class Subscription(NamedTuple):
    """Which topics: by name, by a pattern, or single partitions of them. One of the three."""

    names: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: dict[str, tuple[int, ...]] | None = None


class Bound(NamedTuple):
    """Where to begin or to end: a word for all partitions, a time, or offsets by partition."""

    word: str | None = None
    time_ms: int | None = None
    offsets: dict[str, dict[int, int | str]] | None = None

    @property
    def has_latest(self) -> bool:
        """Whether it is somewhere else when it is asked for again."""
        return self.word == LATEST or any(LATEST in places.values() for places in (self.offsets or {}).values())


class SourceOptions(NamedTuple):
    address: Address
    subscription: Subscription
    start: Bound
    end: Bound
    max_offsets: int | None
    max_bytes: int | None
    min_offsets: int | None
    max_delay_s: float
    min_partitions: int | None
    max_records: int | None
    fail_on_data_loss: bool
    include_headers: bool
    isolation: Isolation
    reader_name: str | None
    push_filters: bool
    json_values: Literal["fail", "null"] | None
    """What becomes of values that are not what was said; None: values are bytes."""
    value_schema: str | None


class SinkOptions(NamedTuple):
    address: Address
    topic: str | None
    name: str | None
    """What transactions are begun under, instead of the id of the query."""
    number: int
    """Of a batch write under a name: the same again does nothing, a lower one is refused."""
    timeout_s: float


class LogOptions(NamedTuple):
    path: str
    subscription: Subscription
    """None of the three: every topic there is."""
    start: Bound
    end: Bound
    max_records: int | None
    fail_on_data_loss: bool
    include_headers: bool
    isolation: Isolation
    content: Literal["messages", "damage"]
    """What is read: messages, or where there are none any more."""


# ---------------------------------------------------------------- what values may be


def _json(value: str, wanted: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        raise ValueError(wanted) from None


_ASSIGNMENT: Final = 'JSON like {"orders": [0, 1]}'


def _partitions(value: str) -> dict[str, tuple[int, ...]]:
    found = _json(value, _ASSIGNMENT)
    if not isinstance(found, dict) or not found:
        raise ValueError(_ASSIGNMENT)
    for numbers in found.values():
        if not isinstance(numbers, list) or not numbers or not all(type(n) is int and n >= 0 for n in numbers):
            raise ValueError(_ASSIGNMENT)
    return {topic: tuple(sorted({*numbers})) for topic, numbers in found.items()}


_PLACE: Final = 'earliest, latest, or JSON like {"orders": {"0": 23, "1": -2}} (-2 is earliest, -1 latest)'


def _bound(value: str) -> Bound:
    word = value.strip().lower()
    if word in (EARLIEST, LATEST):
        return Bound(word=word)
    found = _json(value, _PLACE)
    offsets: dict[str, dict[int, int | str]] = {}
    if not isinstance(found, dict) or not found:
        raise ValueError(_PLACE)
    for topic, places in found.items():
        if not isinstance(places, dict):
            raise ValueError(_PLACE)
        for number, offset in places.items():
            if not re.fullmatch("[0-9]{1,9}", number) or type(offset) is not int or offset < -2:
                raise ValueError(_PLACE)
            offsets.setdefault(topic, {})[int(number)] = _NAMED.get(offset, offset)
    return Bound(offsets=offsets)


class _Option(NamedTuple):
    name: str
    read: Callable[[str], Any]


_ADDRESS: Final = (
    _Option("bootstrap.servers", values.text),
    _Option("goqueue.connect.timeout", values.seconds),
    _Option("goqueue.request.timeout", values.seconds),
    _Option("goqueue.client.id", values.text),
)
_READING: Final = (
    _Option("subscribe", values.topics),
    _Option("subscribePattern", values.pattern),
    _Option("startingOffsets", _bound),
    _Option("endingOffsets", _bound),
    _Option("startingTimestamp", values.time),
    _Option("endingTimestamp", values.time),
    _Option("maxRecordsPerPartition", values.whole),
    _Option("failOnDataLoss", values.yes_or_no),
    _Option("includeHeaders", values.yes_or_no),
    _Option("isolation", values.one_of("read_committed", "read_uncommitted")),
)
"""From a broker or from its files."""
_SOURCE: Final = (
    *_ADDRESS,
    *_READING,
    _Option("assign", _partitions),
    _Option("maxOffsetsPerTrigger", values.whole),
    _Option("maxBytesPerTrigger", values.size),
    _Option("minOffsetsPerTrigger", values.whole),
    _Option("maxTriggerDelay", values.seconds),
    _Option("minPartitions", values.whole),
    _Option("readerName", values.text),
    _Option("pushFilters", values.yes_or_no),
    _Option("value.format", values.one_of("bytes", "json")),
    _Option("value.schema", values.text),
    _Option("value.bad", values.one_of("fail", "null")),
)
_SINK: Final = (
    *_ADDRESS,
    _Option("topic", values.text),
    _Option("transactionalId", values.text),
    _Option("batchId", values.count),
    _Option("transactionTimeout", values.seconds),
    _Option("checkpointLocation", values.text),
)
_LOG: Final = (
    *_READING,
    _Option("path", values.text),
    _Option("content", values.one_of("messages", "damage")),
)


def _read(table: tuple[_Option, ...], given: Mapping[str, str]) -> dict[str, Any]:
    """By their names as they are written; those that were not given are not there."""
    known = {option.name.lower(): option for option in table}
    found: dict[str, Any] = {}
    for name, value in given.items():
        option = known.get(name.lower())
        if option is None:
            close = get_close_matches(name.lower(), known, n=1)
            hint = (
                f"; do you mean {known[close[0]].name}?" if close else f"; there are {', '.join(o.name for o in table)}"
            )
            raise InvalidRequest(f"there is no option {name}{hint}")
        try:
            found[option.name] = option.read(value)
        except ValueError as error:
            raise InvalidRequest(f"{option.name} is {value!r}; it is {error}") from None
    return found


def _address(found: dict[str, Any]) -> Address:
    servers = found.get("bootstrap.servers", DEFAULT_ADDRESS)
    if "," in servers:
        raise InvalidRequest(f"bootstrap.servers is {servers!r}; name one broker, like 127.0.0.1:9001")
    return Address(
        servers,
        found.get("goqueue.connect.timeout", 10.0),
        found.get("goqueue.request.timeout", 30.0),
        found.get("goqueue.client.id", "spark"),
    )


def source_options(given: Mapping[str, str], *, is_stream: bool) -> SourceOptions:
    found = _read(_SOURCE, given)
    start = _either(found, "startingOffsets", "startingTimestamp", Bound(word=EARLIEST))
    end = _either(found, "endingOffsets", "endingTimestamp", Bound(word=LATEST))
    if is_stream:
        for name in ("endingOffsets", "endingTimestamp"):
            if name in found:
                raise InvalidRequest(f"{name} is for batch reads; a stream has no end")
    if end.word == EARLIEST:
        raise InvalidRequest("endingOffsets is earliest: nothing would be read; it is latest, or offsets")
    is_json = found.get("value.format") == "json"
    for name in ("value.schema", "value.bad"):
        if name in found and not is_json:
            raise InvalidRequest(f"{name} is for values in JSON; set value.format to json as well")
    if "minOffsetsPerTrigger" in found and found["minOffsetsPerTrigger"] > found.get(
        "maxOffsetsPerTrigger", limits.MAX_OFFSET
    ):
        raise InvalidRequest("minOffsetsPerTrigger is more than maxOffsetsPerTrigger; a batch cannot be both")
    return SourceOptions(
        address=_address(found),
        subscription=_subscription(found),
        start=start,
        end=end,
        max_offsets=found.get("maxOffsetsPerTrigger"),
        max_bytes=found.get("maxBytesPerTrigger"),
        min_offsets=found.get("minOffsetsPerTrigger"),
        max_delay_s=found.get("maxTriggerDelay", 900.0),
        min_partitions=found.get("minPartitions"),
        max_records=found.get("maxRecordsPerPartition"),
        fail_on_data_loss=found.get("failOnDataLoss", True),
        include_headers=found.get("includeHeaders", False),
        isolation=found.get("isolation", "read_committed"),
        reader_name=found.get("readerName"),
        push_filters=found.get("pushFilters", False),
        json_values=found.get("value.bad", "fail") if is_json else None,
        value_schema=found.get("value.schema"),
    )


def _either(found: dict[str, Any], offsets: str, time: str, otherwise: Bound) -> Bound:
    if offsets in found and time in found:
        raise InvalidRequest(f"{offsets} and {time} are two answers to one question; leave one out")
    if time in found:
        return Bound(time_ms=found[time])
    bound: Bound = found.get(offsets, otherwise)
    return bound


def _subscription(found: dict[str, Any]) -> Subscription:
    given = [name for name in ("subscribe", "subscribePattern", "assign") if name in found]
    if len(given) != 1:
        what = "none of them is given" if not given else f"{' and '.join(given)} are given"
        raise InvalidRequest(f"what is read is said by subscribe, subscribePattern or assign, one of them; {what}")
    return Subscription(found.get("subscribe", ()), found.get("subscribePattern"), found.get("assign"))


def sink_options(given: Mapping[str, str], *, is_stream: bool) -> SinkOptions:
    found = _read(_SINK, given)
    if "batchId" in found and is_stream:
        raise InvalidRequest("batchId is for batch writes; a stream has numbers of its own")
    if "batchId" in found and "transactionalId" not in found:
        raise InvalidRequest("batchId counts the writes under a name; set transactionalId to it as well")
    if "transactionalId" in found and "batchId" not in found and not is_stream:
        raise InvalidRequest("transactionalId is a name for many writes; set batchId to the number of this one")
    if not limits.MIN_TRANSACTION_MS <= found.get("transactionTimeout", 1) * 1000 <= limits.MAX_TRANSACTION_MS:
        raise InvalidRequest("transactionTimeout is not from 1s to 24h")
    if "topic" in found:
        check_topic_name(found["topic"])
    return SinkOptions(
        address=_address(found),
        topic=found.get("topic"),
        name=found.get("transactionalId"),
        number=found.get("batchId", 0),
        timeout_s=found.get("transactionTimeout", 3600.0),
    )


def log_options(given: Mapping[str, str]) -> LogOptions:
    found = _read(_LOG, given)
    if "path" not in found:
        raise InvalidRequest("path is not given; it is the data directory of a broker, or a copy of it: load(path)")
    if "subscribe" in found and "subscribePattern" in found:
        raise InvalidRequest("subscribe and subscribePattern are given; leave one out, or both for every topic")
    end = _either(found, "endingOffsets", "endingTimestamp", Bound(word=LATEST))
    if end.word == EARLIEST:
        raise InvalidRequest("endingOffsets is earliest: nothing would be read; it is latest, or offsets")
    return LogOptions(
        path=found["path"].removeprefix("file://").removeprefix("file:"),
        subscription=Subscription(found.get("subscribe", ()), found.get("subscribePattern")),
        start=_either(found, "startingOffsets", "startingTimestamp", Bound(word=EARLIEST)),
        end=end,
        max_records=found.get("maxRecordsPerPartition"),
        fail_on_data_loss=found.get("failOnDataLoss", True),
        include_headers=found.get("includeHeaders", False),
        isolation=found.get("isolation", "read_committed"),
        content=found.get("content", "messages"),
    )
