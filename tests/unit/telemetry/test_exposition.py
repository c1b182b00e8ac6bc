"""The text of a scrape: what Prometheus reads is what was counted, each series once, and docs/metrics.md names it."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import Metric

from goqueue.telemetry import exposition, meters
from goqueue.telemetry.exposition import (
    BrokerReading,
    Exposition,
    GroupReading,
    GroupsReading,
    LagReading,
    LaneReading,
    PartitionReading,
    Standing,
    TopicReading,
    TransactionsReading,
)
from goqueue.telemetry.meters import (
    LATENCY_BOUNDS_S,
    LATENESS_BOUNDS_S,
    GroupMeters,
    GroupMeterSet,
    Histogram,
    RequestMeterSet,
    TopicMeters,
    TopicMeterSet,
)
from tests.unit.telemetry.scrapes import Labels, Scrape

READY = "goqueue_lane_ready"
PAGE = (Path(__file__).parents[3] / "docs/metrics.md").read_text(encoding="utf-8")


class Group(NamedTuple):
    """As the groups machine knows it, as far as it matters here."""

    name: str
    members: int
    lags: dict[str, list[int]]
    """By topic, of its partitions from 0 on."""


class Pending(NamedTuple):
    """What a topic has besides messages that could be delivered."""

    delayed: int = 0
    outbox: int = 0


class Broker:
    """A source whose topics, groups and readings a test sets, and all that is around it."""

    def __init__(self) -> None:
        self.open: dict[str, tuple[TopicMeters, list[PartitionReading]]] = {}
        self.pending: dict[str, Pending] = {}
        self.held: dict[tuple[str, str], list[tuple[int, int]]] = {}
        """By group and topic: in flight and waiting in its partitions."""
        self.lanes: dict[str, list[LaneReading | None]] = {}
        self.living: dict[str, Group] = {}
        self.waiting_polls = 0
        self.looks = 0
        self.lane_looks = 0
        self.group_meters = GroupMeterSet()
        self.reading = BrokerReading(ready=True, connections={}, in_flight_bytes=0)
        self.meters = TopicMeterSet()
        self.requests = RequestMeterSet(doors=["http", "wire"], operations=["publish", "fetch"])
        self.exposition = Exposition(
            self, topics=self.meters, requests=self.requests, version="1.2.3", codec="compiled"
        )

    def add(self, topic: str, *partitions: PartitionReading) -> TopicMeters:
        self.open[topic] = self.meters.open(topic), list(partitions)
        return self.open[topic][0]

    def remove(self, topic: str) -> None:
        self.meters.close(self.open.pop(topic)[0])

    def gather(self, group: str, members: int = 1, **lags: list[int]) -> GroupMeters:
        """A group comes, or changes."""
        self.living[group] = Group(group, members, lags)
        self.group_meters.open(group, lags)
        return self.group_meters.of(group)

    def disband(self, group: str) -> None:
        del self.living[group]
        self.lanes.pop(group, None)
        self.held = {labels: held for labels, held in self.held.items() if labels[0] != group}
        self.group_meters.close(group)

    # the port

    def topics(self) -> Iterable[TopicReading]:
        return [
            TopicReading(found, partitions, *self.pending.get(name, Pending()))
            for name, (found, partitions) in self.open.items()
        ]

    def groups(self) -> GroupsReading:
        groups = [
            GroupReading(one.name, one.members, self._lags_of(one), self._lanes_of(one)) for one in self.living.values()
        ]
        return GroupsReading(self.group_meters, groups, self.waiting_polls)

    def _lags_of(self, group: Group) -> Iterator[LagReading]:
        for topic, lags in group.lags.items():
            held = self.held.get((group.name, topic), [(0, 0)] * len(lags))
            yield LagReading(topic, self._looked_at(lags, held))

    def _looked_at(self, lags: list[int], held: list[tuple[int, int]]) -> Iterator[Standing]:
        for number, (lag, (in_flight, waiting)) in enumerate(zip(lags, held, strict=True)):
            self.looks += 1
            yield Standing(number, lag, in_flight, waiting)

    def _lanes_of(self, group: Group) -> Iterator[LaneReading | None]:
        for one in self.lanes.get(group.name, ()):
            self.lane_looks += 1
            yield one

    def broker(self) -> BrokerReading:
        return self.reading

    # what Prometheus sees

    def scrape(self) -> Scrape:
        return Scrape(self.exposition.render())

    def families(self) -> dict[str, Metric]:
        return self.scrape().families

    def value(self, name: str, **labels: str) -> float:
        return self.scrape().value(name, **labels)

    def series(self, name: str) -> dict[Labels, float]:
        return self.scrape().series(name)

    def lags(self) -> dict[tuple[str, ...], float]:
        return self.scrape().rows("goqueue_consumer_lag", "group", "topic", "partition")


@pytest.fixture
def broker() -> Broker:
    return Broker()


def fill(broker: Broker) -> None:
    """Something in every family."""
    orders = broker.add("orders", PartitionReading(0, 100, 2, 10, 30), PartitionReading(1, 50, 1, 0, 7))
    orders.messages_produced += 5
    orders.bytes_produced += 500
    orders.duplicates += 1
    orders.messages_read += 4
    orders.bytes_read += 400
    orders.dead_letters += 2
    orders.errors.add("disk_full")
    orders.produce_latency.observe(0.002)
    orders.append_latency(0).observe(0.00003)
    broker.requests.meters("http", "publish").done("ok", 0.002)
    billing = broker.gather("billing", 2, orders=[3, 0])
    broker.group_meters.consumed("billing", "orders", 40, 5, deliveries=1)
    broker.group_meters.consumed("billing", "orders", 2, 0, deliveries=3)
    broker.group_meters.moved(broker.living["billing"], 2)
    broker.group_meters.rebalanced(broker.living["billing"], 1500)
    assert billing.moves == 1
    for number, how in enumerate(("acked", "nacked", "rejected", "lapsed", "expired"), 11):
        broker.group_meters.settled("billing", "orders", how, number)
    broker.group_meters.died("billing", "orders", "rejected", 13)
    broker.group_meters.served("billing", (1, 0, 38, 2, 1))
    broker.pending["orders"] = Pending(delayed=8, outbox=1)
    broker.held["billing", "orders"] = [(2, 1), (0, 3)]
    broker.lanes["billing"] = [lanes(1, normal=2), lanes(0.5, normal=3, low=1)]
    lateness = Histogram(LATENESS_BOUNDS_S)
    lateness.observe(0.007)
    broker.waiting_polls = 7
    fsyncs = Histogram(LATENCY_BOUNDS_S)
    fsyncs.observe(0.004)
    broker.reading = BrokerReading(
        ready=True,
        connections={"http": 3, "wire": 2},
        in_flight_bytes=4096,
        fsync_latency=fsyncs,
        delay_lateness=lateness,
        transactions=TransactionsReading(3, 1.5, {"committed": 7, "timed_out": 2}),
    )


def lanes(waited_s: float = 0.0, **ready: int) -> LaneReading:
    """What is ready, by the names of the lanes; each of these has waited."""
    return LaneReading(
        [ready.get(lane, 0) for lane in meters.LANES], [waited_s if lane in ready else 0.0 for lane in meters.LANES]
    )


def test_what_was_counted_is_what_is_read(broker: Broker) -> None:
    fill(broker)
    assert broker.value("goqueue_messages_produced_total", topic="orders") == 5
    assert broker.value("goqueue_bytes_produced_total", topic="orders") == 500
    assert broker.value("goqueue_duplicates_total", topic="orders") == 1
    assert broker.value("goqueue_messages_read_total", topic="orders") == 4
    assert broker.value("goqueue_bytes_read_total", topic="orders") == 400
    assert broker.value("goqueue_produce_errors_total", topic="orders", error_type="disk_full") == 1
    assert broker.value("goqueue_log_size_bytes", topic="orders", partition="0") == 100
    assert broker.value("goqueue_log_segments_total", topic="orders", partition="0") == 2
    assert broker.value("goqueue_log_start_offset", topic="orders", partition="0") == 10
    assert broker.value("goqueue_log_end_offset", topic="orders", partition="1") == 7
    assert broker.value("goqueue_requests_total", door="http", operation="publish", code="ok") == 1
    assert broker.value("goqueue_connections", door="wire") == 2
    assert broker.value("goqueue_in_flight_bytes") == 4096
    assert broker.value("goqueue_ready") == 1
    assert broker.value("goqueue_build_info", version="1.2.3", codec="compiled") == 1
    assert broker.value("goqueue_fsync_latency_seconds_count") == 1
    assert broker.value("goqueue_request_latency_seconds_sum", door="http", operation="publish") == 0.002
    assert broker.value("goqueue_messages_consumed_total", group="billing", topic="orders") == 42
    assert broker.value("goqueue_redeliveries_total", group="billing", topic="orders") == 2
    assert broker.value("goqueue_messages_missed_total", group="billing", topic="orders") == 5
    assert broker.value("goqueue_consumer_lag", group="billing", topic="orders", partition="0") == 3
    assert broker.value("goqueue_consumer_lag", group="billing", topic="orders", partition="1") == 0
    assert broker.value("goqueue_group_members", group="billing") == 2
    assert broker.value("goqueue_waiting_polls") == 7
    assert broker.value("goqueue_groups_without_lag") == 0
    assert broker.value("goqueue_rebalance_moves_total", group="billing") == 1
    assert broker.value("goqueue_rebalance_duration_seconds_sum", group="billing") == 1.5
    assert broker.value("goqueue_rebalance_duration_seconds_bucket", group="billing", le="2.5") == 1
    assert broker.value("goqueue_partition_pause_seconds_sum", group="billing") == 0.002
    assert broker.value("goqueue_partition_pause_seconds_count", group="billing") == 1


def test_what_became_of_deliveries_is_what_is_read(broker: Broker) -> None:
    fill(broker)
    found = broker.scrape()
    for number, name in enumerate(("acks", "nacks", "rejects", "lapses", "messages_expired"), 11):
        assert found.value(f"goqueue_{name}_total", group="billing", topic="orders") == number
    assert found.rows("goqueue_messages_dead_total", "group", "topic", "reason") == {
        ("billing", "orders", "rejected"): 13
    }
    assert found.value("goqueue_dead_letters_total", topic="orders") == 2
    assert found.value("goqueue_dead_letters_pending", topic="orders") == 1
    assert found.value("goqueue_delayed_pending", topic="orders") == 8
    assert found.value("goqueue_delay_lateness_seconds_sum") == 0.007
    assert found.value("goqueue_delay_lateness_seconds_bucket", le="0.01") == 1
    assert found.value("goqueue_messages_in_flight", group="billing", topic="orders") == 2
    assert found.value("goqueue_retries_waiting", group="billing", topic="orders") == 4


def test_lanes_are_added_up_over_partitions_and_their_longest_wait_is_told(broker: Broker) -> None:
    fill(broker)
    found = broker.scrape()
    of_billing = {lane: count for (group, lane), count in found.rows(READY, "group", "lane").items() if count}
    assert of_billing == {"normal": 5, "low": 1}
    waits = {lane: wait for (lane,), wait in found.rows("goqueue_lane_waited_seconds", "lane").items() if wait}
    assert waits == {"normal": 1, "low": 0.5}
    served = found.rows("goqueue_lane_served_total", "group", "lane")
    assert [served["billing", lane] for lane in meters.LANES] == [1, 0, 38, 2, 1]
    assert found.value("goqueue_groups_without_lanes") == 0


def test_a_histogram_is_cumulative_and_ends_with_everything(broker: Broker) -> None:
    latency = broker.add("orders").append_latency(3)
    for seconds in (0.000005, 0.00003, 0.00003, 9.0):
        latency.observe(seconds)
    buckets = {
        dict(labels)["le"]: value
        for labels, value in broker.series("goqueue_log_append_latency_seconds_bucket").items()
    }
    assert buckets["1e-05"] == 1
    assert buckets["2.5e-05"] == 1
    assert buckets["5e-05"] == buckets["1.0"] == 3
    assert buckets["+Inf"] == 4
    assert len(buckets) == len(meters.APPEND_BOUNDS_S) + 1
    assert broker.value("goqueue_log_append_latency_seconds_count", topic="orders", partition="3") == 4


def test_the_segments_are_a_gauge_of_exactly_that_name(broker: Broker) -> None:
    fill(broker)
    text = broker.exposition.render().decode()
    assert "# TYPE goqueue_log_segments_total gauge\n" in text
    assert 'goqueue_log_segments_total{partition="0",topic="orders"} 2.0\n' in text
    assert "goqueue_log_segments_total_total" not in text


def test_every_family_has_a_help_and_a_type(broker: Broker) -> None:
    fill(broker)
    text = broker.exposition.render().decode()
    helped = re.findall(r"^# HELP (\S+) \S", text, re.MULTILINE)
    assert helped == re.findall(r"^# TYPE (\S+) \S", text, re.MULTILINE)
    assert len(helped) == len(set(helped))
    assert {one.type for one in broker.families().values()} <= {"counter", "gauge", "histogram"}


def test_a_broker_without_topics_tells_about_itself(broker: Broker) -> None:
    broker.reading = BrokerReading(ready=False, connections={}, in_flight_bytes=0)
    assert broker.value("goqueue_ready") == 0
    assert not broker.series("goqueue_log_size_bytes")
    assert not broker.series("goqueue_fsync_latency_seconds_count")
    assert "goqueue_fsync_latency_seconds" not in broker.families()


def test_transactions_that_are_open_and_how_others_ended(broker: Broker) -> None:
    fill(broker)
    assert broker.value("goqueue_transactions_open") == 3
    assert broker.value("goqueue_transaction_oldest_seconds") == 1.5
    assert broker.value("goqueue_transactions_total", outcome="timed_out") == 2


def test_a_topic_name_with_signs_is_read_back_as_it_is(broker: Broker) -> None:
    broker.add('a"b\\c}d e', PartitionReading(0, 1, 1, 0, 1)).messages_produced += 1
    assert broker.value("goqueue_messages_produced_total", topic='a"b\\c}d e') == 1


# --- bounds


def test_topics_past_the_bound_are_added_up(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meters, "MAX_SERIES_TOPICS", 2)
    for name in ("a", "b", "c", "d", "_other"):
        opened = broker.add(name, PartitionReading(0, 100, 2, 1, 5), PartitionReading(1, 10, 1, 0, 3))
        broker.pending[name] = Pending(delayed=4, outbox=5)
        opened.messages_produced += 1
        opened.append_latency(1).observe(0.001)
    assert broker.series("goqueue_messages_produced_total") == {
        frozenset({("topic", "a")}): 1,
        frozenset({("topic", "b")}): 1,
        frozenset({("topic", "_other")}): 3,
    }
    assert broker.value("goqueue_log_size_bytes", topic="_other", partition="_all") == 330
    assert broker.value("goqueue_log_segments_total", topic="_other", partition="_all") == 9
    assert broker.value("goqueue_log_start_offset", topic="_other", partition="_all") == 3
    assert broker.value("goqueue_log_end_offset", topic="_other", partition="_all") == 24
    assert broker.value("goqueue_log_append_latency_seconds_count", topic="_other", partition="_all") == 3
    assert len(broker.series("goqueue_log_size_bytes")) == 5
    found = broker.scrape()
    assert found.rows("goqueue_delayed_pending", "topic") == {("a",): 4, ("b",): 4, ("_other",): 12}
    assert found.rows("goqueue_dead_letters_pending", "topic") == {("a",): 5, ("b",): 5, ("_other",): 15}


def test_partitions_past_the_bound_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meters, "MAX_SERIES_PARTITIONS", 2)
    broker = Broker()
    broker.add("orders", *(PartitionReading(number, 100, 1, 0, 1) for number in range(5)))
    assert broker.series("goqueue_log_size_bytes") == {
        frozenset({("topic", "orders"), ("partition", "0")}): 100,
        frozenset({("topic", "orders"), ("partition", "1")}): 100,
        frozenset({("topic", "orders"), ("partition", "_other")}): 300,
    }


def test_a_source_cannot_make_labels_by_itself(broker: Broker) -> None:
    stray = TopicMeterSet().open("stray")
    broker.open["stray"] = stray, [PartitionReading(0, 1, 1, 0, 1)]
    assert set(broker.series("goqueue_log_size_bytes")) == {frozenset({("topic", "_other"), ("partition", "_all")})}


def test_operations_and_doors_nobody_knows_are_added_up(broker: Broker) -> None:
    for operation in ("/favicon.ico", "/admin.php"):
        broker.requests.meters("http", operation).done("unknown_operation", 0.001)
    broker.reading = BrokerReading(ready=True, connections={"http": 1, "x": 1, "y": 1}, in_flight_bytes=0)
    assert broker.value("goqueue_requests_total", door="http", operation="other", code="unknown_operation") == 2
    assert broker.value("goqueue_connections", door="other") == 2


# --- groups


def test_a_group_that_is_deleted_ends_its_series(broker: Broker) -> None:
    fill(broker)
    broker.disband("billing")
    left = [labels for _, labels in broker.scrape().samples if ("group", "billing") in labels]
    assert left == []


def test_a_group_of_that_name_begins_at_zero(broker: Broker) -> None:
    fill(broker)
    broker.disband("billing")
    broker.gather("billing", orders=[1])
    assert broker.value("goqueue_messages_consumed_total", group="billing", topic="orders") == 0
    assert broker.value("goqueue_rebalance_moves_total", group="billing") == 0


def test_counters_of_a_group_are_there_before_they_count(broker: Broker) -> None:
    """Who sees 5 as the first value of a counter sees no change."""
    broker.gather("billing", orders=[0])
    for lane in meters.LANES:
        assert broker.value("goqueue_lane_served_total", group="billing", lane=lane) == 0
    for name in (
        "messages_consumed", "messages_missed", "redeliveries",
        "acks", "nacks", "rejects", "lapses", "messages_expired",
    ):  # fmt: skip
        assert broker.value(f"goqueue_{name}_total", group="billing", topic="orders") == 0


def test_groups_past_the_bound_are_added_up(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meters, "MAX_SERIES_GROUPS", 2)
    for number, name in enumerate(("_other", "a", "b", "c", "d")):
        broker.gather(name, number, orders=[number, 1])
        broker.group_meters.consumed(name, "orders", 10, number)
        broker.group_meters.moved(broker.living[name], 1000)
    found = broker.scrape()
    assert found.rows("goqueue_messages_consumed_total", "group", "topic") == {
        ("a", "orders"): 10,
        ("b", "orders"): 10,
        ("_other", "orders"): 30,
    }
    assert found.rows("goqueue_messages_missed_total", "group") == {("a",): 1, ("b",): 2, ("_other",): 7}
    assert found.rows("goqueue_group_members", "group") == {("a",): 1, ("b",): 2, ("_other",): 7}
    assert found.rows("goqueue_rebalance_moves_total", "group") == {("a",): 1, ("b",): 1, ("_other",): 3}
    assert found.rows("goqueue_partition_pause_seconds_sum", "group") == {("a",): 1, ("b",): 1, ("_other",): 3}
    assert broker.lags() == {
        ("a", "orders", "0"): 1,
        ("a", "orders", "1"): 1,
        ("b", "orders", "0"): 2,
        ("b", "orders", "1"): 1,
        ("_other", "orders", "_all"): 10,
    }


def test_topics_of_a_group_past_the_bound_are_added_up(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meters, "MAX_SERIES_NAMES", 2)
    monkeypatch.setattr(exposition, "MAX_SERIES_LAGS", 0)
    broker.gather("billing", a=[1], b=[2], c=[3], d=[4])
    for topic in "abcd":
        broker.group_meters.consumed("billing", topic, 1, 0)
    assert broker.scrape().rows("goqueue_messages_consumed_total", "topic") == {("a",): 1, ("b",): 1, ("_other",): 2}
    assert broker.lags() == {
        ("billing", "a", "_all"): 1,
        ("billing", "b", "_all"): 2,
        ("billing", "_other", "_all"): 7,
    }


def test_lags_of_a_topic_that_does_not_fit_in_whole_are_added_up(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exposition, "MAX_SERIES_LAGS", 4)
    broker.gather("a", orders=[1, 2, 3], users=[4, 5])
    broker.gather("b", orders=[6, 7, 8], users=[9])
    broker.gather("c", users=[10])
    assert broker.lags() == {
        ("a", "orders", "0"): 1,
        ("a", "orders", "1"): 2,
        ("a", "orders", "2"): 3,
        ("a", "users", "_all"): 9,
        ("b", "orders", "_all"): 21,
        ("b", "users", "0"): 9,
        ("c", "users", "_all"): 10,
    }


def test_a_scrape_looks_at_so_many_lags_and_tells_whom_it_left_out(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meters, "MAX_SERIES_GROUPS", 3)
    monkeypatch.setattr(exposition, "MAX_LAG_LOOKS", 10)
    broker.gather("a", orders=[1] * 5)
    broker.gather("b", orders=[1] * 2, users=[1] * 3)
    assert len(broker.lags()) == 10
    assert broker.value("goqueue_groups_without_lag") == 0
    broker.gather("c", orders=[1])
    for name in "def":
        broker.gather(name, orders=[1])
    broker.looks = 0
    found = broker.scrape()
    assert broker.looks == 11
    assert {labels[0] for labels in found.rows("goqueue_consumer_lag", "group", "topic", "partition")} == {"a", "b"}
    assert found.value("goqueue_groups_without_lag") == 4
    assert found.value("goqueue_group_members", group="c") == 1


def test_half_a_sum_is_not_told_and_the_rest_is_left_out_first(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meters, "MAX_SERIES_GROUPS", 1)
    monkeypatch.setattr(exposition, "MAX_LAG_LOOKS", 3)
    for name in ("_other", "own", "a", "b"):
        broker.gather(name, orders=[1])
    assert broker.lags() == {("own", "orders", "0"): 1}
    assert broker.value("goqueue_groups_without_lag") == 3


def test_what_is_in_flight_is_added_up_where_the_lag_is_and_left_out_with_it(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meters, "MAX_SERIES_GROUPS", 1)
    monkeypatch.setattr(meters, "MAX_SERIES_NAMES", 1)
    monkeypatch.setattr(exposition, "MAX_SERIES_LAGS", 0)
    for name in ("own", "a", "b"):
        broker.gather(name, orders=[9], users=[9, 9])
        broker.held[name, "orders"] = [(1, 2)]
        broker.held[name, "users"] = [(3, 4), (5, 6)]
    found = broker.scrape()
    for name, numbers in (("messages_in_flight", (1, 8, 2, 16)), ("retries_waiting", (2, 10, 4, 20))):
        labels = ("own", "orders"), ("own", "_other"), ("_other", "orders"), ("_other", "_other")
        assert found.rows(f"goqueue_{name}", "group", "topic") == dict(zip(labels, numbers, strict=True))
    monkeypatch.setattr(exposition, "MAX_LAG_LOOKS", 4)
    found = broker.scrape()
    assert found.rows("goqueue_messages_in_flight", "group", "topic") == {("own", "orders"): 1, ("own", "_other"): 8}
    assert found.value("goqueue_groups_without_lag") == 2


def test_a_group_whose_lanes_are_not_in_memory_is_left_out(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meters, "MAX_SERIES_GROUPS", 2)
    for name in ("a", "b", "c", "d"):
        broker.gather(name)
    broker.lanes = {"a": [lanes(low=1), None, lanes(low=2)], "b": [lanes(low=3)], "c": [lanes(low=4)], "d": [None]}
    found = broker.scrape()
    assert {group for group, _ in found.rows(READY, "group", "lane")} == {"b"}, "half a sum would look like little"
    assert found.value(READY, group="b", lane="low") == 3
    assert found.value("goqueue_groups_without_lanes") == 3
    broker.lanes["d"] = [lanes(2, low=5)]
    found = broker.scrape()
    assert found.value(READY, group="_other", lane="low") == 9
    assert found.value("goqueue_lane_waited_seconds", group="_other", lane="low") == 2
    assert found.value("goqueue_groups_without_lanes") == 1


def test_a_scrape_counts_so_many_lanes_and_tells_whom_it_left_out(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exposition, "MAX_LANE_LOOKS", 5)
    for name in ("a", "b", "c"):
        broker.gather(name)
        broker.lanes[name] = [lanes(low=1)] * 3
    found = broker.scrape()
    assert broker.lane_looks == 6
    assert {group for group, _ in found.rows(READY, "group", "lane")} == {"a"}
    assert found.value("goqueue_groups_without_lanes") == 2


def test_many_lanes_do_not_hold_up_the_loop(broker: Broker) -> None:
    for number in range(10):
        broker.gather(f"g{number}")
        broker.lanes[f"g{number}"] = [lanes(low=1)] * 100
    most = before = 0
    for _ in broker.exposition.parts():
        most, before = max(most, broker.lane_looks - before), broker.lane_looks
    assert broker.lane_looks == 1000
    assert most <= exposition.PART_LANE_LOOKS


def test_many_groups_do_not_hold_up_the_loop(broker: Broker) -> None:
    """Between two parts only so many lags are looked at."""
    for number in range(50):
        broker.gather(f"g{number}", orders=[1] * 100)
    most = before = 0
    for _ in broker.exposition.parts():
        most, before = max(most, broker.looks - before), broker.looks
    assert broker.looks == 5000
    assert most <= exposition.PART_LOOKS


def test_groups_may_come_and_go_between_parts(broker: Broker) -> None:
    for number in range(2 * exposition.PART_SERIES):
        broker.gather(f"g{number}", orders=[1] * 20, users=[2])
    text = b""
    for number, part in enumerate(broker.exposition.parts()):
        text += part
        broker.gather(f"new{number}", orders=[1])
        broker.group_meters.consumed(f"new{number}", f"topic{number}", 1, 1)
        broker.group_meters.consumed("g1", f"topic{number}", 1, 1)
        broker.group_meters.close_topic(f"topic{number - 1}")
        if number < exposition.PART_SERIES:
            broker.disband(f"g{number + 2}")
            broker.gather(f"g{number + 2}", orders=[1])
    assert Scrape(text).samples


# --- a scrape in parts


def test_parts_are_the_whole_text_and_each_is_short(broker: Broker) -> None:
    for number in range(3 * exposition.PART_SERIES):
        opened = broker.add(f"t{number}", *(PartitionReading(one, 1, 1, 0, 1) for one in range(3)))
        opened.produce_latency.observe(0.001)
    parts = list(broker.exposition.parts())
    lines_of_a_series = len(LATENCY_BOUNDS_S) + 3
    assert max(part.count(b"\n") for part in parts) <= exposition.PART_SERIES * lines_of_a_series + 2
    assert len(broker.series("goqueue_produce_latency_seconds_count")) == 3 * exposition.PART_SERIES
    assert len(broker.series("goqueue_log_size_bytes")) == 9 * exposition.PART_SERIES


def test_topics_may_come_and_go_between_parts(broker: Broker) -> None:
    for number in range(2 * exposition.PART_SERIES):
        opened = broker.add(f"t{number}", PartitionReading(0, 1, 1, 0, 1))
        opened.append_latency(0).observe(0.001)
        opened.errors.add("busy")
    text = b""
    for number, part in enumerate(broker.exposition.parts()):
        text += part
        broker.add(f"new{number}").errors.add(f"error{number}")
        if number < exposition.PART_SERIES:
            kept = broker.open[f"t{number + 1}"][0]
            kept.errors.add(f"error{number}")
            kept.append_latency(number + 1).observe(0.001)
            broker.remove(f"t{number}")
            broker.requests.meters("http", "publish").done(f"code{number}", 0.001)
    assert Scrape(text).samples


# --- counters never decrease

_STEPS = st.lists(
    st.tuples(st.sampled_from(["open", "close", "count", "fail", "append", "request"]), st.integers(0, 4)), max_size=30
)
_GROUP_STEPS = st.lists(
    st.tuples(st.sampled_from(["gather", "disband", "consume", "miss", "move"]), st.integers(0, 4), st.integers(0, 4)),
    max_size=30,
)


@settings(deadline=None)
@given(steps=_STEPS)
def test_no_counter_decreases_while_its_topic_lives(steps: list[tuple[str, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(meters, "MAX_SERIES_TOPICS", 2)
        patch.setattr(meters, "MAX_SERIES_PARTITIONS", 3)
        patch.setattr(meters, "MAX_SERIES_NAMES", 2)
        broker = Broker()
        before = broker.scrape().counted()
        for step, number in steps:
            born = set()
            name = f"t{number}"
            if step == "open" and name not in broker.open:
                broker.add(name, PartitionReading(0, 1, 1, 0, 1), PartitionReading(1, 1, 1, 0, 1))
                born = {name}
            elif step == "request":
                broker.requests.meters("http", name).done(name, 0.001)
            elif name in broker.open and step == "close":
                broker.remove(name)
            elif name in broker.open:
                _count(broker.open[name][0], step, number)
            after = broker.scrape().counted()
            for series, value in before.items():
                topic = dict(series[1]).get("topic")
                if topic not in born and (topic is None or topic == "_other" or topic in broker.open):
                    assert after[series] >= value, series
            before = after


def _count(found: TopicMeters, step: str, number: int) -> None:
    if step == "count":
        found.messages_produced += 1
        found.produce_latency.observe(0.01 * number)
    elif step == "fail":
        found.errors.add(f"error{number}")
    else:
        found.append_latency(number).observe(0.0001 * number)


@settings(deadline=None)
@given(steps=_GROUP_STEPS)
def test_no_counter_decreases_while_its_group_lives_and_totals_never_do(steps: list[tuple[str, int, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(meters, "MAX_SERIES_GROUPS", 2)
        patch.setattr(meters, "MAX_SERIES_NAMES", 2)
        broker = Broker()
        before, totals = broker.scrape().counted(), _totals(broker.group_meters)
        for step, number, amount in steps:
            name = f"g{number}"
            _happen(broker, step, name, amount)
            after = broker.scrape().counted()
            for series, value in before.items():
                group = dict(series[1]).get("group")
                if group is None or group == "_other" or group in broker.living:
                    assert after[series] >= value, series
            before = after
            earlier, totals = totals, _totals(broker.group_meters)
            assert all(now >= then for now, then in zip(totals, earlier, strict=True))


def _happen(broker: Broker, step: str, name: str, amount: int) -> None:
    if step == "gather":
        broker.gather(name, orders=[amount])
    elif step == "disband" and name in broker.living:
        broker.disband(name)
    elif step == "consume":  # also by a poll of a group that was deleted meanwhile
        broker.group_meters.consumed(name, f"t{amount}", amount, amount, deliveries=amount)
        broker.group_meters.settled(name, f"t{amount}", "acked", amount)
        broker.group_meters.died(name, f"t{amount}", f"reason {amount}", amount)
        broker.group_meters.served(name, [amount] * len(meters.LANES))
    elif step == "miss":
        broker.group_meters.missed(name, f"t{amount}", amount)
    elif step == "move" and name in broker.living:
        broker.group_meters.moved(broker.living[name], 100 * amount + 1)
        broker.group_meters.rebalanced(broker.living[name], 700 * amount + 1)


def _totals(found: GroupMeterSet) -> tuple[float, ...]:
    total = found.total()
    return (
        found.moves,
        found.rebalance.count,
        found.rebalance.sum,
        found.pause.count,
        found.pause.sum,
        total.consumed,
        total.missed,
        total.acked,
        sum(total.dead.counts.values()),
    )


# --- the document


def rows() -> list[list[str]]:
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("| `")
    ]


def test_the_page_names_every_metric_with_its_type_and_labels(broker: Broker) -> None:
    fill(broker)
    emitted = {
        name: (family.type, {label for sample in family.samples for label in sample.labels} - {"le"})
        for name, family in broker.families().items()
    }
    assert all(family.samples for family in broker.families().values()), "a family shows no labels"
    described = {name.strip("`"): (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels, _ in rows()}
    assert described == emitted


def test_the_page_says_what_the_help_says(broker: Broker) -> None:
    """And may add to it."""
    fill(broker)
    families = broker.families()
    for name, _, _, meaning in rows():
        if name.startswith("`goqueue_"):
            told = families[name.strip("`")].documentation.rstrip(".")
            assert meaning.startswith(told[0].lower() + told[1:]), name


def test_the_page_has_the_bounds() -> None:
    for what, bound in (
        ("topics with labels", meters.MAX_SERIES_TOPICS),
        ("partitions with labels", meters.MAX_SERIES_PARTITIONS),
        ("groups with labels", meters.MAX_SERIES_GROUPS),
        ("partitions with a lag", exposition.MAX_SERIES_LAGS),
        ("lags looked at", exposition.MAX_LAG_LOOKS),
        ("partitions, and segments", exposition.MAX_LANE_LOOKS),
        ("error types", meters.MAX_SERIES_NAMES),
        ("topics per group", meters.MAX_SERIES_NAMES),
    ):
        assert re.search(rf"^\| {what}[^|]* \| {bound} \| ", PAGE, re.MULTILINE), what
    for label in (meters.OTHER_TOPICS, meters.ALL_PARTITIONS):
        assert f'="{label}"' in PAGE
