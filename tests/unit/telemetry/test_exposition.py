"""The text of a scrape: what Prometheus reads is what was counted, each series once, and docs/metrics.md names it."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from goqueue.telemetry import exposition, meters
from goqueue.telemetry.exposition import BrokerReading, Exposition, PartitionReading, TopicReading
from goqueue.telemetry.meters import LATENCY_BOUNDS_S, Histogram, RequestMeterSet, TopicMeters, TopicMeterSet

PAGE = (Path(__file__).parents[3] / "docs/metrics.md").read_text(encoding="utf-8")
Labels = frozenset[tuple[str, str]]


class Broker:
    """A source whose topics and readings a test sets, and all that is around it."""

    def __init__(self) -> None:
        self.open: dict[str, tuple[TopicMeters, list[PartitionReading]]] = {}
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

    # the port

    def topics(self) -> Iterable[TopicReading]:
        return [TopicReading(found, partitions) for found, partitions in self.open.values()]

    def broker(self) -> BrokerReading:
        return self.reading

    # what Prometheus sees

    def families(self) -> dict[str, Metric]:
        """By the name in the text, which for a counter is not the one the parser gives."""
        found = list(text_string_to_metric_families(self.exposition.render().decode()))
        by_name = {one.name + ("_total" if one.type == "counter" else ""): one for one in found}
        assert len(by_name) == len(found), "a family stands in two places"
        return by_name

    def samples(self) -> dict[tuple[str, Labels], float]:
        found = [sample for family in self.families().values() for sample in family.samples]
        by_series = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in found}
        assert len(by_series) == len(found), "a series stands there twice"
        return by_series

    def value(self, name: str, **labels: str) -> float:
        return self.samples()[name, frozenset(labels.items())]

    def series(self, name: str) -> dict[Labels, float]:
        return {labels: value for (found, labels), value in self.samples().items() if found == name}


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
    orders.errors.add("disk_full")
    orders.produce_latency.observe(0.002)
    orders.append_latency(0).observe(0.00003)
    broker.requests.meters("http", "publish").done("ok", 0.002)
    fsyncs = Histogram(LATENCY_BOUNDS_S)
    fsyncs.observe(0.004)
    broker.reading = BrokerReading(
        ready=True, connections={"http": 3, "wire": 2}, in_flight_bytes=4096, fsync_latency=fsyncs
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


def test_a_topic_name_with_signs_is_read_back_as_it_is(broker: Broker) -> None:
    broker.add('a"b\\c}d e', PartitionReading(0, 1, 1, 0, 1)).messages_produced += 1
    assert broker.value("goqueue_messages_produced_total", topic='a"b\\c}d e') == 1


# --- bounds


def test_topics_past_the_bound_are_added_up(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meters, "MAX_SERIES_TOPICS", 2)
    for name in ("a", "b", "c", "d", "_other"):
        opened = broker.add(name, PartitionReading(0, 100, 2, 1, 5), PartitionReading(1, 10, 1, 0, 3))
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
    samples = [sample for family in text_string_to_metric_families(text.decode()) for sample in family.samples]
    assert len(samples) == len({(sample.name, frozenset(sample.labels.items())) for sample in samples})


# --- counters never decrease

_STEPS = st.lists(
    st.tuples(st.sampled_from(["open", "close", "count", "fail", "append", "request"]), st.integers(0, 4)), max_size=30
)


@given(steps=_STEPS)
def test_no_counter_decreases_while_its_topic_lives(steps: list[tuple[str, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(meters, "MAX_SERIES_TOPICS", 2)
        patch.setattr(meters, "MAX_SERIES_PARTITIONS", 3)
        patch.setattr(meters, "MAX_SERIES_NAMES", 2)
        broker = Broker()
        before = _counted(broker)
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
            after = _counted(broker)
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


def _counted(broker: Broker) -> Mapping[tuple[str, Labels], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for name, family in broker.families().items()
        if name.startswith("goqueue_") and family.type in ("counter", "histogram")
        for sample in family.samples
    }


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
    for bound in (meters.MAX_SERIES_TOPICS, meters.MAX_SERIES_PARTITIONS, meters.MAX_SERIES_NAMES):
        assert f" | {bound} | " in PAGE
    for label in (meters.OTHER_TOPICS, meters.ALL_PARTITIONS):
        assert f'="{label}"' in PAGE
