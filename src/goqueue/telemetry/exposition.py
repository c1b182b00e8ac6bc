"""Meters and readings as Prometheus text, format 0.0.4: the one place that knows metric names.

What is counted is in `meters`; what can be asked at any moment (sizes, offsets, lag) comes from a `Source`.
Every metric is described in docs/metrics.md, which a test compares with what is written here.
Invariants: a series appears once; a family is written in one piece, whole, with its HELP and TYPE.
Never OpenMetrics: there a name that ends in `_total` belongs to a counter, and `goqueue_log_segments_total` is a gauge.
"""

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from operator import attrgetter
from typing import Final, Protocol, TypeVar

import msgspec
from prometheus_client import PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from goqueue.telemetry.meters import (
    ALL_PARTITIONS,
    OTHER_GROUPS,
    OTHER_TOPICS,
    GroupMeterSet,
    Histogram,
    RequestMeterSet,
    Tally,
    TopicMeters,
    TopicMeterSet,
)

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
PART_SERIES: Final = 16
"""Series rendered at a time: a few hundred lines, a few milliseconds, before the loop may do something else."""
PART_LOOKS: Final = 256
"""Groups, or lags of a group in a partition, looked at before the loop may do something else: about a millisecond."""
MAX_LAG_LOOKS: Final = 100_000
"""Lags that one scrape looks at, each a few microseconds; the groups that come last are left out."""
MAX_SERIES_LAGS: Final = 1000
"""Partitions, over all groups, with a lag of their own; of a topic that does not fit in whole the lags are added up."""

_T = TypeVar("_T")


class PartitionReading(msgspec.Struct, frozen=True, gc=False):
    """What a partition's log is like now."""

    partition: int
    size_bytes: int
    segments: int
    start_offset: int
    end_offset: int


class TopicReading(msgspec.Struct, frozen=True):
    """A topic's meters, as its `TopicMeterSet` gave them out, and its partitions now."""

    meters: TopicMeters
    partitions: Iterable[PartitionReading]


class LagReading(msgspec.Struct, frozen=True):
    """How far a group is behind in the partitions of one topic."""

    topic: str
    lags: Iterable[tuple[int, int]]
    """Partition, and how many of its messages are not settled; each is looked at when it is this one's turn."""


class GroupReading(msgspec.Struct, frozen=True):
    """What a group is like now. Its lags may be asked for some loop turns later."""

    group: str
    members: int
    lags: Iterable[LagReading]


class GroupsReading(msgspec.Struct, frozen=True):
    """Every group, their meters, and how many polls wait."""

    meters: GroupMeterSet
    groups: Iterable[GroupReading]
    waiting_polls: int


class BrokerReading(msgspec.Struct, frozen=True, kw_only=True):
    """What the broker is like now. `fsync_latency` is None where nobody measures it."""

    ready: bool
    connections: Mapping[str, int]
    in_flight_bytes: int
    fsync_latency: Histogram | None = None


class Source(Protocol):
    """Whoever knows the topics, groups and broker. Asked in the loop's thread, once per scrape, at its beginning."""

    def topics(self) -> Iterable[TopicReading]: ...

    def groups(self) -> GroupsReading: ...

    def broker(self) -> BrokerReading: ...


class Family(msgspec.Struct, frozen=True):
    """A metric: what all its series have in common."""

    name: str
    labels: tuple[str, ...]
    help: str


_OF_A_TOPIC: Final = ("topic",)
_OF_A_PARTITION: Final = ("topic", "partition")
_OF_A_GROUP: Final = ("group",)

_BUILD: Final = Family("goqueue_build_info", ("version", "codec"), "Always 1; the labels say what is running.")
_READY: Final = Family("goqueue_ready", (), "1 while the broker takes requests, 0 while it starts or stops.")
_CONNECTIONS: Final = Family("goqueue_connections", ("door",), "Open connections.")
_IN_FLIGHT: Final = Family("goqueue_in_flight_bytes", (), "Bytes of requests and replies that are not finished.")
_REQUESTS: Final = Family("goqueue_requests_total", ("door", "operation", "code"), "Requests answered.")
_REQUEST_LATENCY: Final = Family(
    "goqueue_request_latency_seconds", ("door", "operation"), "From a request's arrival to its answer, waits included."
)
_FSYNC_LATENCY: Final = Family("goqueue_fsync_latency_seconds", (), "How long an fsync of a log took.")
_ERRORS: Final = Family(
    "goqueue_produce_errors_total", ("topic", "error_type"), "Publish requests that failed, by the code of the error."
)
_PRODUCE_LATENCY: Final = Family(
    "goqueue_produce_latency_seconds", _OF_A_TOPIC, "From a publish request's arrival to its answer."
)
_APPEND_LATENCY: Final = Family(
    "goqueue_log_append_latency_seconds", _OF_A_PARTITION, "How long appending a block to a log took, fsync excluded."
)
_TOPIC_COUNTERS: Final = tuple(
    (Family(name, _OF_A_TOPIC, text), attrgetter(attribute))
    for name, attribute, text in (
        ("goqueue_messages_produced_total", "messages_produced", "Messages appended; duplicates are not."),
        ("goqueue_bytes_produced_total", "bytes_produced", "Bytes of the records appended."),
        ("goqueue_duplicates_total", "duplicates", "Messages that came again and were recognised, so not appended."),
        ("goqueue_messages_read_total", "messages_read", "Messages handed to readers."),
        ("goqueue_bytes_read_total", "bytes_read", "Bytes of the records handed to readers."),
    )
)
_PARTITION_GAUGES: Final = tuple(
    Family(name, _OF_A_PARTITION, text)
    for name, text in (
        ("goqueue_log_size_bytes", "Bytes of a log's segments."),
        ("goqueue_log_segments_total", "Segments of a log now: a gauge, in spite of its name."),
        ("goqueue_log_start_offset", "The first offset of a log."),
        ("goqueue_log_end_offset", "The offset after the last record of a log."),
    )
)
_GROUP_MEMBERS: Final = Family("goqueue_group_members", _OF_A_GROUP, "Members of a group.")
_WAITING_POLLS: Final = Family("goqueue_waiting_polls", (), "Polls that wait for messages, or for news of their group.")
_LAG: Final = Family(
    "goqueue_consumer_lag", ("group", "topic", "partition"), "Messages that a group has not settled, delivered or not."
)
_WITHOUT_LAG: Final = Family(
    "goqueue_groups_without_lag",
    (),
    "Groups that goqueue_consumer_lag leaves out, because there is too much to add up.",
)
_MOVES: Final = Family(
    "goqueue_rebalance_moves_total", _OF_A_GROUP, "Partitions that went from one member of a group to another."
)
_REBALANCE: Final = Family(
    "goqueue_rebalance_duration_seconds", _OF_A_GROUP, "From a change in a group until all its members had their share."
)
_PAUSE: Final = Family(
    "goqueue_partition_pause_seconds", _OF_A_GROUP, "How long nobody was delivered from a partition while it moved."
)
_CONSUMPTION_COUNTERS: Final = tuple(
    (Family(name, ("group", "topic"), text), attrgetter(attribute))
    for name, attribute, text in (
        ("goqueue_messages_consumed_total", "consumed", "Messages handed to members of a group, redelivered ones too."),
        ("goqueue_redeliveries_total", "redelivered", "Messages handed to a group that it had been handed before."),
        (
            "goqueue_messages_missed_total",
            "missed",
            "Messages that retention or damage took before a group was handed them.",
        ),
    )
)


class Exposition:
    """Renders all there is to know for one scrape."""

    def __init__(
        self, source: Source, *, topics: TopicMeterSet, requests: RequestMeterSet, version: str, codec: str
    ) -> None:
        self._source = source
        self._topics = topics
        self._requests = requests
        self._build = (version, codec)
        self._process = ProcessCollector(registry=None)
        self._platform = PlatformCollector(registry=None)

    def render(self) -> bytes:
        return b"".join(self.parts())

    def parts(self) -> Iterator[bytes]:
        """The text piece by piece. The loop may do other work between two pieces, and move meters meanwhile."""
        broker = self._source.broker()
        extents = self._extents()
        topics = tuple(self._topics)
        requests = tuple(self._requests)
        groups = self._source.groups()
        group_meters = tuple(groups.meters)

        yield from _gauge(_BUILD, [(self._build, 1)])
        yield from _gauge(_READY, [((), int(broker.ready))])
        yield from _gauge(_CONNECTIONS, self._connections(broker))
        yield from _gauge(_IN_FLIGHT, [((), broker.in_flight_bytes)])
        yield from _counter(
            _REQUESTS,
            (((one.door, one.operation, code), count) for one in requests for code, count in _items(one.codes.counts)),
        )
        yield from _histogram(_REQUEST_LATENCY, (((one.door, one.operation), one.latency) for one in requests))
        if broker.fsync_latency is not None:
            yield from _histogram(_FSYNC_LATENCY, [((), broker.fsync_latency)])

        for family, count_of in _TOPIC_COUNTERS:
            yield from _counter(family, (((one.topic,), count_of(one)) for one in topics))
        yield from _counter(
            _ERRORS, (((one.topic, code), count) for one in topics for code, count in _items(one.errors.counts))
        )
        yield from _histogram(_PRODUCE_LATENCY, (((one.topic,), one.produce_latency) for one in topics))
        yield from _histogram(
            _APPEND_LATENCY,
            (((one.topic, label), latency) for one in topics for label, latency in one.append_latencies()),
        )
        for place, family in enumerate(_PARTITION_GAUGES):
            yield from _gauge(family, ((labels, extent[place]) for labels, extent in extents.items()))

        for family, count_of in _CONSUMPTION_COUNTERS:
            yield from _counter(
                family,
                (((one.group, topic), count_of(found)) for one in group_meters for topic, found in one.by_topic()),
            )
        yield from _counter(_MOVES, (((one.group,), one.moves) for one in group_meters))
        yield from _histogram(_REBALANCE, (((one.group,), one.rebalance) for one in group_meters))
        yield from _histogram(_PAUSE, (((one.group,), one.pause) for one in group_meters))
        yield from _group_gauges(groups)

        for metric in (*self._process.collect(), *self._platform.collect()):
            yield generate_latest(_Only(metric))

    def _connections(self, broker: BrokerReading) -> list[tuple[Sequence[str], float]]:
        by_label: dict[str, int] = {}
        for door, count in broker.connections.items():
            label = self._requests.door_label(door)
            by_label[label] = by_label.get(label, 0) + count
        return [((label,), count) for label, count in by_label.items()]

    def _extents(self) -> dict[tuple[str, str], tuple[int, int, int, int]]:
        """By topic and partition label, in the order of the gauges; what shares labels is added up."""
        extents: dict[tuple[str, str], tuple[int, int, int, int]] = {}
        for topic in self._source.topics():
            meters = self._topics.shown_as(topic.meters)
            for one in topic.partitions:
                labels = meters.topic, meters.partition_label(one.partition)
                size, segments, start, end = extents.get(labels, (0, 0, 0, 0))
                extents[labels] = (
                    size + one.size_bytes,
                    segments + one.segments,
                    start + one.start_offset,
                    end + one.end_offset,
                )
        return extents


# --- groups, a few at a time


def _group_gauges(reading: GroupsReading) -> Iterator[bytes]:
    by_label: dict[str, list[GroupReading]] = {}
    for count, one in enumerate(reading.groups, 1):
        by_label.setdefault(reading.meters.of(one.group).group, []).append(one)
        if count % PART_LOOKS == 0:
            yield b""
    if OTHER_GROUPS in by_label:  # last: it is the first to be left out
        by_label[OTHER_GROUPS] = by_label.pop(OTHER_GROUPS)
    yield from _gauge(_WAITING_POLLS, [((), reading.waiting_polls)])
    yield from _gauge(
        _GROUP_MEMBERS, (((label,), sum(one.members for one in found)) for label, found in by_label.items())
    )
    series, left_out = yield from _lags(by_label)
    yield from _gauge(_LAG, series.items())
    yield from _gauge(_WITHOUT_LAG, [((), left_out)])


def _lags(
    by_label: Mapping[str, Sequence[GroupReading]],
) -> Generator[bytes, None, tuple[dict[tuple[str, str, str], int], int]]:
    """The series, and how many groups are left out. Yields empty parts, so that the loop gets its turns.

    Of a label all series are there or none is: half a sum would look like a small lag.
    """
    series: dict[tuple[str, str, str], int] = {}
    looks = 0
    free = MAX_SERIES_LAGS
    told = 0
    for label, groups in by_label.items():
        own: dict[tuple[str, str, str], int] = {}
        summed = Tally(OTHER_TOPICS)
        for topic, lags in ((one.topic, one.lags) for group in groups for one in group.lags):
            found: list[tuple[int, int]] = []
            for one in lags:
                found.append(one)
                looks += 1
                if looks % PART_LOOKS == 0:
                    yield b""
                if looks > MAX_LAG_LOOKS:
                    return series, sum(map(len, by_label.values())) - told
            if label != OTHER_GROUPS and len(own) + len(found) <= free:
                own.update(((label, topic, str(partition)), lag) for partition, lag in found)
            else:
                summed.add(topic, sum(lag for _, lag in found))
        free -= len(own)
        told += len(groups)
        series |= own
        series.update(((label, topic, ALL_PARTITIONS), lag) for topic, lag in summed.counts.items())
    return series, 0


# --- families, a few series at a time


class _Only:
    """A collector of one metric."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterable[Metric]:
        return (self._metric,)


def _gauge(family: Family, series: Iterable[tuple[Sequence[str], float]]) -> Iterator[bytes]:
    for first, batch in _batches(series):
        metric = GaugeMetricFamily(family.name, family.help, labels=family.labels)
        for labels, value in batch:
            metric.add_metric(labels, value)
        yield _text(metric, first=first)


def _counter(family: Family, series: Iterable[tuple[Sequence[str], float]]) -> Iterator[bytes]:
    for first, batch in _batches(series):
        metric = CounterMetricFamily(family.name, family.help, labels=family.labels)
        for labels, value in batch:
            metric.add_metric(labels, value)
        yield _text(metric, first=first)


def _histogram(family: Family, series: Iterable[tuple[Sequence[str], Histogram]]) -> Iterator[bytes]:
    """Histograms that have seen nothing are left out: with one per partition they would be most of the text."""
    for first, batch in _batches((labels, value) for labels, value in series if value.count):
        metric = HistogramMetricFamily(family.name, family.help, labels=family.labels)
        for labels, value in batch:
            metric.add_metric(labels, list(zip(_edges(value.bounds), value.cumulative(), strict=True)), value.sum)
        yield _text(metric, first=first)


def _batches(series: Iterable[_T]) -> Iterator[tuple[bool, list[_T]]]:
    """`PART_SERIES` at a time, and whether it is the first batch, which comes even when it is empty."""
    rest = iter(series)
    batch, first = list(islice(rest, PART_SERIES)), True
    while batch or first:
        yield first, batch
        batch, first = list(islice(rest, PART_SERIES)), False


def _text(metric: Metric, *, first: bool) -> bytes:
    """HELP and TYPE stand only before the first batch of a family."""
    text = generate_latest(_Only(metric))
    return text if first else text.split(b"\n", 2)[2]


def _items(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """As they are now: a new name may come between two parts."""
    return list(counts.items())


@lru_cache(maxsize=16)
def _edges(bounds: tuple[float, ...]) -> tuple[str, ...]:
    return (*(repr(bound) for bound in bounds), "+Inf")
