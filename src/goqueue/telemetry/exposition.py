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
from typing import Final, NamedTuple, Protocol, TypeVar

import msgspec
from prometheus_client import PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from goqueue.telemetry.meters import (
    ALL_PARTITIONS,
    LANES,
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
PART_LANE_LOOKS: Final = 16
"""Segments whose lanes are counted before the loop may do something else: about a millisecond, if a view is needed."""
MAX_LANE_LOOKS: Final = 20_000
"""Partitions of groups, and segments in them, that one scrape counts; the groups that come last are left out."""

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
    delayed: int = 0
    """Messages that are not due."""
    outbox: int = 0
    """Dead letters that are not written yet."""


class Standing(NamedTuple):
    """How many messages of a partition a group has not settled, and how many of those it has, or failed with."""

    partition: int
    lag: int
    in_flight: int = 0
    waiting: int = 0
    """Not tried again yet."""


class LagReading(msgspec.Struct, frozen=True):
    """How far a group is behind in the partitions of one topic."""

    topic: str
    lags: Iterable[Standing]
    """Each partition is looked at when it is its turn."""


class LaneReading(NamedTuple):
    """What a group has in each lane of a partition, or of a part of it, and how long each lane has waited."""

    ready: Sequence[int]
    waited_s: Sequence[float]


class GroupReading(msgspec.Struct, frozen=True):
    """What a group is like now. Its lags and lanes may be asked for some loop turns later."""

    group: str
    members: int
    lags: Iterable[LagReading]
    lanes: Iterable[LaneReading | None] = ()
    """Of all its partitions; None when that cannot be told without a disk."""


class GroupsReading(msgspec.Struct, frozen=True):
    """Every group, their meters, and how many polls wait."""

    meters: GroupMeterSet
    groups: Iterable[GroupReading]
    waiting_polls: int


class TransactionsReading(msgspec.Struct, frozen=True):
    """Those that are open, how long the oldest of them is, and how those that ended since the start did."""

    open: int
    oldest_s: float
    outcomes: Mapping[str, int]


class BrokerReading(msgspec.Struct, frozen=True, kw_only=True):
    """What the broker is like now. A histogram is None where nobody measures it."""

    ready: bool
    connections: Mapping[str, int]
    in_flight_bytes: int
    lost_bytes: int = 0
    """Of those that were in flight, what nobody gave back."""
    oldest_s: float = 0.0
    """How long the oldest of them are in flight."""
    fsync_latency: Histogram | None = None
    delay_lateness: Histogram | None = None
    transactions: TransactionsReading | None = None


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
_IN_FLIGHT_OLDEST: Final = Family(
    "goqueue_in_flight_oldest_seconds", (), "How long the oldest bytes in flight are; 0 when there are none."
)
_IN_FLIGHT_LOST: Final = Family(
    "goqueue_in_flight_lost_bytes_total",
    (),
    "Bytes in flight that were not given back, and were found; 0 without a bug.",
)
_REQUESTS: Final = Family("goqueue_requests_total", ("door", "operation", "code"), "Requests answered.")
_REQUEST_LATENCY: Final = Family(
    "goqueue_request_latency_seconds", ("door", "operation"), "From a request's arrival to its answer, waits included."
)
_FSYNC_LATENCY: Final = Family("goqueue_fsync_latency_seconds", (), "How long an fsync of a log took.")
_LATENESS: Final = Family(
    "goqueue_delay_lateness_seconds",
    (),
    "How late delayed messages became ready: of all that did so together, how late the first one was at most.",
)
_OPEN_TRANSACTIONS: Final = Family("goqueue_transactions_open", (), "Transactions that are not decided about.")
_OLDEST_TRANSACTION: Final = Family(
    "goqueue_transaction_oldest_seconds", (), "How long the oldest open transaction is open; 0 when there is none."
)
_TRANSACTIONS: Final = Family(
    "goqueue_transactions_total", ("outcome",), "Transactions that ended: committed, or why they were aborted."
)
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
        ("goqueue_dead_letters_total", "dead_letters", "Messages of a topic written to its dead-letter topic."),
    )
)
_TOPIC_GAUGES: Final = tuple(
    Family(name, _OF_A_TOPIC, text)
    for name, text in (
        ("goqueue_delayed_pending", "Delayed messages that are not due."),
        ("goqueue_dead_letters_pending", "Dead letters that are not written yet."),
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
        ("goqueue_acks_total", "acked", "Messages that a group settled by their handles."),
        ("goqueue_nacks_total", "nacked", "Messages that a group gave back, to be tried again."),
        ("goqueue_rejects_total", "rejected", "Messages that a group gave up."),
        ("goqueue_lapses_total", "lapsed", "Messages that a group was handed and did not settle in time."),
        ("goqueue_messages_expired_total", "expired", "Messages that were too old to be handed to a group."),
    )
)
_DEAD: Final = Family(
    "goqueue_messages_dead_total",
    ("group", "topic", "reason"),
    "Messages that a group is not handed any more, whether they become dead letters or not.",
)
_HELD: Final = tuple(
    Family(name, ("group", "topic"), text)
    for name, text in (
        ("goqueue_messages_in_flight", "Messages that a group was handed, has not settled, and has time for."),
        ("goqueue_retries_waiting", "Messages that failed in a group and are not tried again yet."),
    )
)
_LANE_SERVED: Final = Family("goqueue_lane_served_total", ("group", "lane"), "Messages of a lane handed to a group.")
_LANE_READY: Final = Family(
    "goqueue_lane_ready", ("group", "lane"), "Messages of a lane that a group could be handed now."
)
_LANE_WAITED: Final = Family(
    "goqueue_lane_waited_seconds",
    ("group", "lane"),
    "How long a lane has had something and was not served, in the partition where that is longest.",
)
_WITHOUT_LANES: Final = Family(
    "goqueue_groups_without_lanes",
    (),
    "Groups that goqueue_lane_ready leaves out, because there is too much to count or it is not in memory.",
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
        extents, sums = self._extents()
        topics = tuple(self._topics)
        requests = tuple(self._requests)
        groups = self._source.groups()
        group_meters = tuple(groups.meters)

        yield from _gauge(_BUILD, [(self._build, 1)])
        yield from _gauge(_READY, [((), int(broker.ready))])
        yield from _gauge(_CONNECTIONS, self._connections(broker))
        yield from _gauge(_IN_FLIGHT, [((), broker.in_flight_bytes)])
        yield from _gauge(_IN_FLIGHT_OLDEST, [((), broker.oldest_s)])
        yield from _counter(_IN_FLIGHT_LOST, [((), broker.lost_bytes)])
        yield from _counter(
            _REQUESTS,
            (((one.door, one.operation, code), count) for one in requests for code, count in _items(one.codes.counts)),
        )
        yield from _histogram(_REQUEST_LATENCY, (((one.door, one.operation), one.latency) for one in requests))
        if broker.fsync_latency is not None:
            yield from _histogram(_FSYNC_LATENCY, [((), broker.fsync_latency)])
        if broker.delay_lateness is not None:
            yield from _histogram(_LATENESS, [((), broker.delay_lateness)])
        if broker.transactions is not None:
            yield from _gauge(_OPEN_TRANSACTIONS, [((), broker.transactions.open)])
            yield from _gauge(_OLDEST_TRANSACTION, [((), broker.transactions.oldest_s)])
            ended = broker.transactions.outcomes
            yield from _counter(_TRANSACTIONS, (((outcome,), count) for outcome, count in ended.items()))

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
        for place, family in enumerate(_TOPIC_GAUGES):
            yield from _gauge(family, (((topic,), sum_[place]) for topic, sum_ in sums.items()))

        for family, count_of in _CONSUMPTION_COUNTERS:
            yield from _counter(
                family,
                (((one.group, topic), count_of(found)) for one in group_meters for topic, found in one.by_topic()),
            )
        yield from _counter(
            _DEAD,
            (
                ((one.group, topic, reason), count)
                for one in group_meters
                for topic, found in one.by_topic()
                for reason, count in _items(found.dead.counts)
            ),
        )
        yield from _counter(
            _LANE_SERVED,
            (((one.group, lane), count) for one in group_meters for lane, count in zip(LANES, one.served, strict=True)),
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

    def _extents(self) -> tuple[dict[tuple[str, str], tuple[int, int, int, int]], dict[str, tuple[int, int]]]:
        """By topic and partition, and by topic, in the order of the gauges; what shares labels is added up."""
        extents: dict[tuple[str, str], tuple[int, int, int, int]] = {}
        sums: dict[str, tuple[int, int]] = {}
        for topic in self._source.topics():
            meters = self._topics.shown_as(topic.meters)
            delayed, outbox = sums.get(meters.topic, (0, 0))
            sums[meters.topic] = delayed + topic.delayed, outbox + topic.outbox
            for one in topic.partitions:
                labels = meters.topic, meters.partition_label(one.partition)
                size, segments, start, end = extents.get(labels, (0, 0, 0, 0))
                extents[labels] = (
                    size + one.size_bytes,
                    segments + one.segments,
                    start + one.start_offset,
                    end + one.end_offset,
                )
        return extents, sums


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
    series, held, left_out = yield from _lags(by_label)
    yield from _gauge(_LAG, series.items())
    yield from _gauge(_WITHOUT_LAG, [((), left_out)])
    for place, family in enumerate(_HELD):
        yield from _gauge(family, ((labels, counts[place]) for labels, counts in held.items()))
    lanes, left_out = yield from _lanes(by_label)
    for place, family in enumerate((_LANE_READY, _LANE_WAITED)):
        yield from _gauge(
            family,
            (
                ((label, lane), value)
                for label, found in lanes.items()
                for lane, value in zip(LANES, found[place], strict=True)
            ),
        )
    yield from _gauge(_WITHOUT_LANES, [((), left_out)])


def _lags(
    by_label: Mapping[str, Sequence[GroupReading]],
) -> Generator[bytes, None, tuple[dict[tuple[str, str, str], int], dict[tuple[str, str], tuple[int, int]], int]]:
    """The series, by group and topic what is in flight and what waits, and how many groups are left out.

    Yields empty parts, so that the loop gets its turns. Of a label all series are there or none is: half a sum would
    look like a small lag.
    """
    series: dict[tuple[str, str, str], int] = {}
    held: dict[tuple[str, str], tuple[int, int]] = {}
    looks = 0
    free = MAX_SERIES_LAGS
    told = 0
    for label, groups in by_label.items():
        own: dict[tuple[str, str, str], int] = {}
        summed, in_flight, waiting = Tally(OTHER_TOPICS), Tally(OTHER_TOPICS), Tally(OTHER_TOPICS)
        for topic, lags in ((one.topic, one.lags) for group in groups for one in group.lags):
            found: list[Standing] = []
            for one in lags:
                found.append(one)
                looks += 1
                if looks % PART_LOOKS == 0:
                    yield b""
                if looks > MAX_LAG_LOOKS:
                    return series, held, sum(map(len, by_label.values())) - told
            if label != OTHER_GROUPS and len(own) + len(found) <= free:
                own.update(((label, topic, str(one.partition)), one.lag) for one in found)
            else:
                summed.add(topic, sum(one.lag for one in found))
            in_flight.add(topic, sum(one.in_flight for one in found))
            waiting.add(topic, sum(one.waiting for one in found))
        free -= len(own)
        told += len(groups)
        series |= own
        series.update(((label, topic, ALL_PARTITIONS), lag) for topic, lag in summed.counts.items())
        held.update(((label, topic), (count, waiting.counts[topic])) for topic, count in in_flight.counts.items())
    return series, held, 0


def _lanes(
    by_label: Mapping[str, Sequence[GroupReading]],
) -> Generator[bytes, None, tuple[dict[str, tuple[list[int], list[float]]], int]]:
    """What each label has in its lanes and how long those have waited, and how many groups are left out, as for lags.

    A label is told if everything of it is known.
    """
    found: dict[str, tuple[list[int], list[float]]] = {}
    everybody = sum(map(len, by_label.values()))
    looks = told = 0
    for label, groups in by_label.items():
        ready, waited = [0] * len(LANES), [0.0] * len(LANES)
        for one in (reading for group in groups for reading in group.lanes):
            looks += 1
            if looks % PART_LANE_LOOKS == 0:
                yield b""
            if looks > MAX_LANE_LOOKS:
                return found, everybody - told
            if one is None:
                break
            ready = [count + more for count, more in zip(ready, one.ready, strict=True)]
            waited = [max(pair) for pair in zip(waited, one.waited_s, strict=True)]
        else:
            found[label] = ready, waited
            told += len(groups)
    return found, everybody - told


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
