"""Meters: what hot code counts arrives, nothing decreases, and labels run out before memory does."""

import math
from typing import NamedTuple

import pytest

from goqueue.telemetry import meters
from goqueue.telemetry.meters import (
    ALL_PARTITIONS,
    APPEND_BOUNDS_S,
    LANES,
    LATENCY_BOUNDS_S,
    OTHER,
    OTHER_GROUPS,
    OTHER_PARTITIONS,
    OTHER_TOPICS,
    REBALANCE_BOUNDS_S,
    GroupMeterSet,
    Histogram,
    RequestMeterSet,
    Tally,
    TopicMeterSet,
)


@pytest.fixture
def topics() -> TopicMeterSet:
    return TopicMeterSet()


# --- histograms


def test_a_bucket_includes_its_bound() -> None:
    histogram = Histogram((0.1, 1.0))
    for seconds in (0.05, 0.1, 0.11, 1.0, 1.01):
        histogram.observe(seconds)
    assert histogram.counts == [2, 2, 1]
    assert histogram.cumulative() == [2, 4, 5]
    assert histogram.count == 5
    assert histogram.sum == pytest.approx(2.27)


@pytest.mark.parametrize("seconds", [-1.0, math.nan, -math.inf, 0.0])
def test_a_clock_that_steps_back_does_not_decrease_the_sum(seconds: float) -> None:
    histogram = Histogram((0.1, 1.0))
    histogram.observe(0.5)
    histogram.observe(seconds)
    assert histogram.counts == [1, 1, 0]
    assert histogram.sum == 0.5


@pytest.mark.parametrize("bounds", [LATENCY_BOUNDS_S, APPEND_BOUNDS_S, REBALANCE_BOUNDS_S])
def test_bounds_grow(bounds: tuple[float, ...]) -> None:
    assert list(bounds) == sorted(set(bounds))
    assert bounds[0] > 0


# --- tallies


def test_a_tally_past_its_bound_counts_the_rest_as_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meters, "MAX_SERIES_NAMES", 2)
    tally = Tally()
    for name in ("busy", "disk_full", "busy", "third", "fourth", "disk_full"):
        tally.add(name)
    assert tally.counts == {"busy": 2, "disk_full": 2, OTHER: 2}


def test_a_tally_may_call_the_rest_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meters, "MAX_SERIES_NAMES", 1)
    tally = Tally(OTHER_TOPICS)
    for name in ("orders", "other", "users"):
        tally.add(name)
    assert tally.counts == {"orders": 1, OTHER_TOPICS: 2}


# --- topics


def test_a_topic_has_meters_of_its_own(topics: TopicMeterSet) -> None:
    orders, users = topics.open("orders"), topics.open("users")
    orders.messages_produced += 3
    assert (orders.topic, orders.messages_produced, users.messages_produced) == ("orders", 3, 0)
    assert [one.topic for one in topics] == ["orders", "users", OTHER_TOPICS]


def test_topics_past_the_bound_share_meters(topics: TopicMeterSet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meters, "MAX_SERIES_TOPICS", 1)
    first = topics.open("first")
    assert topics.open("second") is topics.open("third") is topics.other
    topics.close(first)
    assert topics.open("fourth").topic == "fourth", "a deleted topic makes room"


def test_a_topic_named_like_the_rest_is_part_of_the_rest(topics: TopicMeterSet) -> None:
    assert topics.open(OTHER_TOPICS) is topics.other


def test_closing_a_topic_of_the_rest_keeps_what_was_counted(topics: TopicMeterSet) -> None:
    meters_of_rest = topics.open(OTHER_TOPICS)
    meters_of_rest.messages_produced += 1
    topics.close(meters_of_rest)
    assert [one.messages_produced for one in topics] == [1]


def test_a_topic_created_again_begins_at_zero_and_outlives_the_end_of_the_former(topics: TopicMeterSet) -> None:
    former = topics.open("orders")
    former.messages_produced += 5
    latter = topics.open("orders")
    assert latter.messages_produced == 0
    topics.close(former)
    assert latter in list(topics)
    assert topics.shown_as(latter) is latter
    assert topics.shown_as(former) is topics.other


# --- partitions


def test_a_partition_has_one_histogram_of_appends(topics: TopicMeterSet) -> None:
    orders = topics.open("orders")
    orders.append_latency(7).observe(0.001)
    assert orders.append_latency(7) is not orders.append_latency(8)
    assert orders.append_latency(7).count == 1
    assert orders.partition_label(7) == "7"
    assert [(label, found.count) for label, found in orders.append_latencies()] == [
        ("7", 1),
        ("8", 0),
        (OTHER_PARTITIONS, 0),
    ]


def test_partitions_past_the_bound_share_a_histogram_and_stay_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meters, "MAX_SERIES_PARTITIONS", 2)
    topics = TopicMeterSet()
    orders, users = topics.open("orders"), topics.open("users")
    assert [orders.partition_label(0), users.partition_label(0)] == ["0", "0"]
    assert [orders.partition_label(1), orders.partition_label(2)] == [OTHER_PARTITIONS, OTHER_PARTITIONS]
    assert orders.append_latency(1) is orders.append_latency(2)

    topics.close(users)
    assert orders.partition_label(1) == OTHER_PARTITIONS, "a label, once given, does not change"
    assert orders.partition_label(3) == "3", "a deleted topic makes room"
    assert orders.partition_label(4) == OTHER_PARTITIONS


def test_a_topic_that_is_gone_takes_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meters, "MAX_SERIES_PARTITIONS", 1)
    topics = TopicMeterSet()
    gone = topics.open("gone")
    gone.append_latency(0)
    topics.close(gone)
    topics.close(gone)
    assert gone.partition_label(1) == OTHER_PARTITIONS
    orders = topics.open("orders")
    assert [orders.partition_label(0), orders.partition_label(1)] == ["0", OTHER_PARTITIONS]


def test_partitions_of_the_rest_have_one_label(topics: TopicMeterSet) -> None:
    assert {topics.other.partition_label(number) for number in range(3)} == {ALL_PARTITIONS}


# --- groups


class Group(NamedTuple):
    name: str


def counts(groups: GroupMeterSet, group: str) -> dict[str, tuple[int, int, int]]:
    """By topic: consumed, missed, redelivered."""
    found = groups.of(group).by_topic()
    return {topic: (counted.consumed, counted.missed, counted.redelivered) for topic, counted in found}


@pytest.fixture
def groups() -> GroupMeterSet:
    return GroupMeterSet()


def test_a_group_counts_by_topic(groups: GroupMeterSet) -> None:
    groups.open("billing")
    groups.consumed("billing", "orders", 3, 0)
    groups.consumed("billing", "orders", 4, 10, deliveries=2)
    groups.consumed("billing", "users", 1, 0, deliveries=1)
    groups.missed("billing", "users", 5)
    assert counts(groups, "billing") == {"orders": (7, 10, 4), "users": (1, 5, 0)}
    assert counts(groups, OTHER_GROUPS) == {}


def test_groups_past_the_bound_share_meters_until_there_is_room(
    groups: GroupMeterSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meters, "MAX_SERIES_GROUPS", 1)
    for name in ("first", "second", "third"):
        groups.open(name, ["orders"])
        groups.consumed(name, "orders", 1, 0)
    assert [one.group for one in groups] == ["first", OTHER_GROUPS]
    assert groups.of("second") is groups.of("third") is groups.other
    assert counts(groups, OTHER_GROUPS) == {"orders": (2, 0, 0)}

    groups.close("second")
    assert counts(groups, OTHER_GROUPS) == {"orders": (2, 0, 0)}, "what is added up stays"
    groups.close("first")
    groups.open("third")
    groups.consumed("third", "orders", 1, 0)
    assert counts(groups, "third") == {"orders": (1, 0, 0)}
    assert counts(groups, OTHER_GROUPS) == {"orders": (2, 0, 0)}


def test_opening_a_group_again_keeps_what_it_counted(groups: GroupMeterSet) -> None:
    groups.open("billing", ["orders"])
    groups.consumed("billing", "orders", 1, 0)
    groups.open("billing", ["orders", "users"])
    assert counts(groups, "billing") == {"orders": (1, 0, 0), "users": (0, 0, 0)}


def test_a_group_named_like_the_rest_is_part_of_the_rest(groups: GroupMeterSet) -> None:
    groups.open(OTHER_GROUPS)
    assert groups.of(OTHER_GROUPS) is groups.other
    groups.close(OTHER_GROUPS)
    assert [one.group for one in groups] == [OTHER_GROUPS]


def test_topics_of_a_group_past_the_bound_share_meters_until_one_is_deleted(
    groups: GroupMeterSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meters, "MAX_SERIES_NAMES", 2)
    groups.open("billing")
    for topic in ("a", "b", "c", "d", OTHER_TOPICS, "a"):
        groups.consumed("billing", topic, 1, 0)
    assert counts(groups, "billing") == {"a": (2, 0, 0), "b": (1, 0, 0), OTHER_TOPICS: (3, 0, 0)}
    groups.close_topic("c")
    groups.close_topic(OTHER_TOPICS)
    assert counts(groups, "billing") == {"a": (2, 0, 0), "b": (1, 0, 0), OTHER_TOPICS: (3, 0, 0)}
    groups.close_topic("a")
    groups.close_topic("b")
    groups.consumed("billing", "a", 1, 0)
    assert counts(groups, "billing") == {"a": (1, 0, 0), OTHER_TOPICS: (3, 0, 0)}


def test_what_a_deleted_group_went_through_stays_in_the_totals(groups: GroupMeterSet) -> None:
    for name, pause_ms in (("billing", 250), ("audit", 750)):
        groups.open(name)
        groups.moved(Group(name), pause_ms)
        groups.rebalanced(Group(name), 2 * pause_ms)
    groups.close("billing")
    groups.moved(Group("billing"), 1000)
    audit = groups.of("audit")
    assert (audit.moves, audit.pause.sum, audit.rebalance.sum) == (1, 0.75, 1.5)
    assert (groups.moves, groups.pause.count, groups.pause.sum) == (3, 3, 2.0)
    assert (groups.rebalance.count, groups.rebalance.sum) == (2, 2.0)
    assert [one.group for one in groups] == ["audit", OTHER_GROUPS]


def test_how_deliveries_ended_is_counted_by_topic_and_deaths_by_reason(groups: GroupMeterSet) -> None:
    groups.open("billing", ["orders"])
    groups.settled("billing", "orders", "acked", 3)
    groups.settled("billing", "orders", "acked", 2)
    groups.settled("billing", "users", "lapsed", 1)
    groups.died("billing", "orders", "rejected", 2)
    groups.died("billing", "orders", "rejected", 1)
    groups.died("billing", "orders", "lapsed", 4)
    found = dict(groups.of("billing").by_topic())
    assert (found["orders"].acked, found["orders"].dead.counts) == (5, {"rejected": 3, "lapsed": 4})
    assert (found["users"].lapsed, found["users"].dead.counts) == (1, {})


def test_what_was_served_is_counted_by_lane(groups: GroupMeterSet) -> None:
    groups.open("billing")
    groups.served("billing", [1, 0, 2, 0, 0])
    groups.served("billing", [0, 0, 3, 0, 4])
    groups.served("nobody", [0, 1, 0, 0, 0])
    assert dict(zip(LANES, groups.of("billing").served, strict=True)) == {
        "critical": 1, "high": 0, "normal": 5, "low": 0, "background": 4,
    }  # fmt: skip
    assert groups.other.served == [0, 1, 0, 0, 0]


def test_totals_have_what_groups_and_topics_counted_that_are_gone(groups: GroupMeterSet) -> None:
    for name in ("billing", "audit"):
        groups.open(name)
        for topic in ("orders", "users"):
            groups.consumed(name, topic, 10, 1, deliveries=2)
            groups.settled(name, topic, "acked", 5)
            groups.died(name, topic, "expired", 2)

    def totals() -> tuple[int, int, int, int, dict[str, int]]:
        total = groups.total()
        return total.consumed, total.missed, total.redelivered, total.acked, total.dead.counts

    expected = (40, 4, 40, 20, {"expired": 8})
    assert totals() == expected
    groups.close("billing")
    assert totals() == expected
    groups.close_topic("users")
    assert totals() == expected
    groups.close("billing")
    groups.close_topic("users")
    assert totals() == expected, "once is enough"
    groups.settled("billing", "users", "acked", 1)
    assert totals() == (40, 4, 40, 21, {"expired": 8})


# --- requests


def test_a_request_counts_its_code_and_its_time() -> None:
    requests = RequestMeterSet(doors=["http"], operations=["publish"])
    requests.meters("http", "publish").done("ok", 0.002)
    requests.meters("http", "publish").done("busy", 0.003)
    (found,) = requests
    assert (found.door, found.operation, found.codes.counts) == ("http", "publish", {"ok": 1, "busy": 1})
    assert found.latency.count == 2


def test_operations_and_doors_nobody_knows_are_other() -> None:
    requests = RequestMeterSet(doors=["http"], operations=["publish"])
    assert requests.meters("http", "a") is requests.meters("http", "b")
    assert {(one.door, one.operation) for one in requests} == {("http", OTHER)}
    assert requests.meters("window", "publish").door == requests.door_label("window") == OTHER
