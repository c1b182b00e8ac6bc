"""Batch reads: the same messages as the client reads, of everything there is or of a part."""

import json
import time

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from goqueue.model.errors import GoQueueError, InvalidRequest
from goqueue.spark.source import GoQueueSource
from tests.spark.desk import Desk, seen


def test_everything_of_a_message_is_there(desk: Desk) -> None:
    desk.create("whole", partitions=3)
    with desk.client.producer() as producer:
        for number in range(300):
            producer.enqueue(
                "whole",
                None if number % 7 == 0 else f"value {number}".encode(),
                key=None if number % 5 == 0 else f"key-{number % 11}",
                headers=[("n", str(number).encode()), ("empty", b"")] if number % 2 else [],
                priority=number % 5,
                delay=3600 if number % 13 == 0 else None,
                ttl=7200 if number % 3 == 0 else None,
                event_time=1_700_000_000_000 + number if number % 4 == 0 else None,
            )
    found = desk.read(subscribe="whole")
    assert found == desk.oracle("whole")
    assert len(found) == 300
    assert sum(each.deliver_at is not None for each in found) == 24


def test_several_topics_by_name_by_pattern_and_single_partitions(desk: Desk) -> None:
    desk.create("many-a", "many-b", "many-c")
    for topic, count in (("many-a", 50), ("many-b", 70), ("many-c", 30)):
        desk.fill(topic, count)
    assert desk.read(subscribe="many-a, many-b") == desk.oracle("many-a", "many-b")
    assert desk.read(subscribePattern="many-[bc]") == desk.oracle("many-b", "many-c")
    assert desk.read(assign=json.dumps({"many-a": [1]})) == desk.oracle("many-a", partitions=[1])
    assert desk.read(subscribePattern="nothing-.*") == []


def test_between_offsets_and_between_times(desk: Desk) -> None:
    desk.create("between")
    desk.fill("between", 200)
    time.sleep(0.02)
    middle = time.time_ns() // 1_000_000
    desk.fill("between", 100, first=200)
    all_of_it = desk.oracle("between")
    starts, ends = {"0": 10, "1": -2}, {"0": 60, "1": -1}
    found = desk.read(
        subscribe="between",
        startingOffsets=json.dumps({"between": starts}),
        endingOffsets=json.dumps({"between": ends}),
    )
    assert found == [each for each in all_of_it if each.partition == 1 or 10 <= each.offset < 60]
    late = [each for each in all_of_it if int(each.value or b"") >= 200]
    assert desk.read(subscribe="between", startingTimestamp=middle) == late == desk.oracle("between", from_time=middle)
    assert desk.read(subscribe="between", endingTimestamp=middle) == [each for each in all_of_it if each not in late]


@pytest.mark.parametrize("options", [{"minPartitions": 7}, {"maxRecordsPerPartition": 13}])
def test_partitions_are_split_for_more_tasks(desk: Desk, options: dict[str, int]) -> None:
    topic = f"split-{next(iter(options)).lower()}"
    desk.create(topic)
    desk.fill(topic, 100)
    frame = desk.frame(subscribe=topic, includeHeaders=True, **options)
    assert frame.rdd.getNumPartitions() >= 7
    assert seen(frame) == desk.oracle(topic)


def test_columns_that_are_chosen_are_all_that_is_read(desk: Desk) -> None:
    desk.create("chosen")
    desk.fill("chosen", 20)
    reader = desk.spark.read.format("goqueue").option("bootstrap.servers", desk.wire).option("subscribe", "chosen")
    frame = reader.schema("value binary, offset bigint, message_id string").load()
    assert frame.columns == ["value", "offset", "message_id"]
    wanted = sorted(
        (each.value, each.offset, f"chosen:{each.partition}:{each.offset}") for each in desk.oracle("chosen")
    )
    assert sorted((bytes(row[0]), row[1], row[2]) for row in frame.collect()) == wanted


def test_traces_are_told_by_their_header(desk: Desk) -> None:
    desk.create("traced", partitions=1)
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    with desk.client.producer() as producer:
        producer.enqueue("traced", b"a")
        producer.enqueue(
            "traced", b"b", headers=[("x", b"y"), ("traceparent", f"00-{trace}-00f067aa0ba902b7-01".encode())]
        )
        producer.enqueue("traced", b"c", headers=[("traceparent", b"\xff")])
        producer.enqueue("traced", b"d", headers=[("traceparent", b"00-short")])
    rows = desk.frame(subscribe="traced").orderBy("offset").collect()
    assert [row.trace_id for row in rows] == [None, trace, None, None]


def test_delayed_messages_are_read_with_their_time_and_aborted_ones_are_not(desk: Desk) -> None:
    desk.create("mixed", partitions=1)
    with desk.client.producer() as producer:
        producer.send("mixed", b"plain")
        producer.send("mixed", b"delayed", delay=3600)
        with producer.transaction():
            producer.enqueue("mixed", b"committed")
        with producer.transaction() as given_up:
            producer.send("mixed", b"aborted")
            given_up.abort()
        producer.send("mixed", b"after")
        with producer.transaction():
            producer.enqueue("mixed", b"open")
            producer.flush()
            with desk.client.producer() as other:
                other.send("mixed", b"behind")
            values = [each.value for each in desk.read(subscribe="mixed")]
            dirty = [each.value for each in desk.read(subscribe="mixed", isolation="read_uncommitted")]
            assert values == [each.value for each in desk.oracle("mixed")]
            undecided = {"subscribe": "mixed", "endingOffsets": json.dumps({"mixed": {"0": 8}})}
            with pytest.raises(PySparkException, match="a transaction in it is not decided about"):
                desk.read(**undecided)
            assert [each.value for each in desk.read(**undecided, failOnDataLoss=False)] == values
            beyond = {"subscribe": "mixed", "startingOffsets": json.dumps({"mixed": {"0": 8}})}
            with pytest.raises(
                PySparkException, match="read up to offset 7, and ends at 9: a transaction is not decided"
            ):
                desk.read(**beyond)
    assert values == [b"plain", b"delayed", b"committed", b"after"]
    assert dirty == [b"plain", b"delayed", b"committed", b"aborted", b"after", b"open", b"behind"]
    assert [each.value for each in desk.read(subscribe="mixed")] == [*values, b"open", b"behind"]


def test_what_retention_took_is_an_error_or_is_left_out(desk: Desk) -> None:
    desk.create("expiring", partitions=1, segment_bytes=4096)
    for first in range(0, 40, 2):
        desk.fill("expiring", 2, first=first, size=1000)
    desk.client.call("change_topic", topic="expiring", retention_bytes=8192)
    desk.clean()
    kept = desk.oracle("expiring")
    assert 0 < len(kept) < 40
    from_the_start = {"subscribe": "expiring", "startingOffsets": json.dumps({"expiring": {"0": 0}})}
    with pytest.raises(PySparkException, match=r"offsets 0 to .* of partition 0 of expiring are gone"):
        desk.read(**from_the_start)
    assert desk.read(**from_the_start, failOnDataLoss=False) == kept
    assert desk.read(subscribe="expiring") == kept


def test_values_in_json_become_structs(desk: Desk) -> None:
    desk.create("typed", partitions=1)
    schema = json.dumps(
        {
            "type": "object",
            "properties": {
                "id": {"type": "integer"},
                "when": {"type": "string", "format": "date-time"},
                "items": {"type": "array", "items": {"type": "object", "properties": {"sku": {"type": "string"}}}},
            },
        }
    )
    with desk.client.producer() as producer:
        producer.enqueue(
            "typed", b'{"id": 1, "when": "2026-01-31T12:00:00+02:00", "items": [{"sku": "a"}, {}], "x": 1}'
        )
        producer.enqueue("typed", None)
        producer.enqueue("typed", b'{"id": "two"}')
    options = {"subscribe": "typed", "value__format": "json", "value__schema": schema}
    with pytest.raises(PySparkException, match=r'typed:0:2 .* id: "two" is not a whole number'):
        desk.frame(**options).collect()
    frame = desk.frame(**options, value__bad="null")
    assert frame.select(f.col("value.id"), f.unix_timestamp("value.when"), "value.items.sku").collect() == [
        (1, 1_769_853_600, ["a", None]),
        (None, None, None),
        (None, None, None),
    ]
    reader = desk.spark.read.format("goqueue").option("bootstrap.servers", desk.wire).option("subscribe", "typed")
    given = reader.option("value.format", "json").option("value.bad", "null").schema("value struct<id bigint>").load()
    assert [row.value and row.value.id for row in given.collect()] == [1, None, None]


def test_conditions_spare_reading_where_the_session_enables_it(desk: Desk) -> None:
    desk.create("narrowed", partitions=4)
    desk.fill("narrowed", 400)
    wanted = [each for each in desk.oracle("narrowed") if each.partition == 2 and 5 <= each.offset < 20]
    condition = "topic = 'narrowed' and partition = 2 and offset >= 5 and offset < 20 and length(value) > 0"
    assert seen(desk.frame(subscribe="narrowed", includeHeaders=True).where(condition)) == wanted
    desk.spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = desk.frame(subscribe="narrowed", includeHeaders=True, pushFilters=True).where(condition)
        assert frame.rdd.getNumPartitions() == 1
        assert seen(frame) == wanted
    finally:
        desk.spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_what_cannot_be_read_is_told(desk: Desk) -> None:
    """By Spark; the rest of it, without: `tests/unit/spark/test_options.py`."""
    with pytest.raises(PySparkException, match="nobody-made-this"):
        desk.frame(subscribe="nobody-made-this").collect()
    with pytest.raises(PySparkException, match="do you mean startingOffsets"):
        desk.frame(subscribe="a", startingOfsets="earliest")


def test_a_source_tells_what_is_missing() -> None:
    with pytest.raises(InvalidRequest, match=r"set value\.schema"):
        GoQueueSource({"subscribe": "a", "value.format": "json"}).schema()
    nobody = GoQueueSource({"subscribe": "a", "bootstrap.servers": "127.0.0.1:1", "goqueue.request.timeout": "200ms"})
    with pytest.raises(GoQueueError, match=r"127\.0\.0\.1:1"):
        nobody.reader(nobody.schema()).partitions()
