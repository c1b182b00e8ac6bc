"""Streams: what is there and what comes, batch by batch, also when a query dies and goes on."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.streaming.query import StreamingQuery

from goqueue.model.errors import InvalidRequest
from goqueue.spark import reading
from goqueue.spark.fetching import DataLost
from goqueue.spark.options import source_options
from goqueue.spark.places import Position, stretches
from goqueue.spark.rows import full_schema
from tests.spark.desk import Desk, Seen, seen


class Query:
    """A query that is run again and again with one checkpoint, and what each of its batches had."""

    def __init__(self, desk: Desk, checkpoint: Path, **options: Any) -> None:
        self._desk = desk
        self._checkpoint = checkpoint
        self.options = {"includeHeaders": True, **options}
        self.batches: list[list[Seen]] = []

    def run(self, fail: Callable[[int], bool] = lambda _: False) -> StreamingQuery:
        """All that is there now. `fail` says of which batch it dies, after it was seen."""

        def take(frame: DataFrame, batch: int) -> None:
            if fail(batch):
                frame.count()
                raise ZeroDivisionError("as was asked for")
            self.batches.append(seen(frame))

        writer = self._desk.stream(**self.options).load().writeStream.foreachBatch(take)
        query = writer.option("checkpointLocation", str(self._checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    @property
    def rows(self) -> list[Seen]:
        return [each for batch in self.batches for each in batch]


def test_a_query_goes_on_where_it_was(desk: Desk, tmp_path: Path) -> None:
    desk.create("stream-a", "stream-b", partitions=3)
    desk.fill("stream-a", 250)
    desk.fill("stream-b", 150)
    query = Query(desk, tmp_path, subscribePattern="stream-[ab]", maxOffsetsPerTrigger=100)
    progress = query.run().lastProgress
    assert progress is not None
    assert [len(batch) for batch in query.batches] == [100, 100, 100, 100]
    for batch in query.batches[:-1]:
        assert {each.topic for each in batch} == {"stream-a", "stream-b"}, "one topic waits for the other"
    latest = json.loads(progress["sources"][0]["latestOffset"])
    assert sum(sum(place["offsets"].values()) for place in latest.values()) == 400
    desk.fill("stream-a", 30, first=250)
    query.run()
    assert len(query.rows) == 430
    assert sorted(query.rows) == desk.oracle("stream-a", "stream-b")


def test_batches_are_bounded_by_bytes(desk: Desk, tmp_path: Path) -> None:
    desk.create("weighed", partitions=1)
    for first in range(0, 100, 10):
        desk.fill("weighed", 10, first=first, size=1000)
    query = Query(desk, tmp_path, subscribe="weighed", maxBytesPerTrigger="30k")
    query.run()
    assert 3 <= len(query.batches) <= 5
    assert query.rows == desk.oracle("weighed")


def test_a_first_batch_that_fails_begins_again_where_it_began(desk: Desk, tmp_path: Path) -> None:
    """Spark asks where to begin again when batch 0 is replayed; what came meanwhile is not lost by that."""
    desk.create("latest", partitions=2)
    desk.fill("latest", 50)
    query = Query(desk, tmp_path / "named", subscribe="latest", startingOffsets="latest", readerName="latest-test")
    query.run()
    assert query.rows == []
    other = Query(desk, tmp_path / "other", subscribe="latest", startingOffsets="latest", readerName="latest-test")
    desk.fill("latest", 20, first=50)
    with pytest.raises(PySparkException, match="as was asked for"):
        other.run(fail=lambda batch: batch == 0)
    desk.fill("latest", 10, first=70)
    other.run()
    assert sorted(int(each.value or b"") for each in other.rows) == list(range(50, 80))


def test_what_comes_after_a_stream_began_at_the_end_is_read_from_its_beginning(desk: Desk, tmp_path: Path) -> None:
    """Also if it has had no batch yet, so that Spark asks where it began again."""
    desk.create("end", partitions=1)
    desk.fill("end", 10)
    options = {"subscribe": "end", "startingOffsets": "latest", "readerName": "end-test"}
    Query(desk, tmp_path / "first", **options).run()
    desk.client.call("add_partitions", topic="end", count=2)
    desk.fill("end", 40, first=10)
    query = Query(desk, tmp_path / "again", **options)
    query.run()
    assert sorted(query.rows) == [each for each in desk.oracle("end") if int(each.value or b"") >= 10]


def test_what_retention_took_ends_a_query_or_is_left_out(desk: Desk, tmp_path: Path) -> None:
    desk.create("passing", partitions=1, segment_bytes=4096)
    desk.fill("passing", 2, size=1000)
    query = Query(desk, tmp_path, subscribe="passing")
    query.run()
    for first in range(2, 40, 2):
        desk.fill("passing", 2, first=first, size=1000)
    desk.client.call("change_topic", topic="passing", retention_bytes=8192)
    desk.clean()
    kept = desk.oracle("passing")
    assert 0 < len(kept) < 38
    with pytest.raises(PySparkException, match=r"offsets 2 to .* are gone: they were cleaned away"):
        query.run()
    query.options["failOnDataLoss"] = False
    query.run()
    assert query.rows[2:] == kept


def test_partitions_and_topics_that_come_later_are_read_from_their_beginning(desk: Desk, tmp_path: Path) -> None:
    desk.create("later-a", partitions=1)
    desk.fill("later-a", 10)
    query = Query(desk, tmp_path, subscribePattern="later-.*")
    query.run()
    desk.client.call("add_partitions", topic="later-a", count=3)
    desk.create("later-b")
    desk.fill("later-a", 30, first=10)
    desk.fill("later-b", 20)
    query.run()
    assert sorted(query.rows) == desk.oracle("later-a", "later-b")


def test_a_topic_that_comes_later_and_was_cleaned_is_read_in_bounded_batches(desk: Desk, tmp_path: Path) -> None:
    desk.create("bounded-a", partitions=1)
    desk.fill("bounded-a", 5)
    query = Query(desk, tmp_path, subscribePattern="bounded-.*", maxOffsetsPerTrigger=4)
    query.run()
    desk.create("bounded-b", partitions=1, segment_bytes=4096)
    for first in range(0, 40, 2):
        desk.fill("bounded-b", 2, first=first, size=1000)
    desk.client.call("change_topic", topic="bounded-b", retention_bytes=8192)
    desk.clean()
    kept = desk.oracle("bounded-b")
    assert 4 < len(kept) < 36
    query.run()
    assert query.rows[5:] == kept


def test_a_topic_made_again_is_another_topic(desk: Desk, tmp_path: Path) -> None:
    desk.create("again", partitions=1)
    desk.fill("again", 10)
    query = Query(desk, tmp_path, subscribe="again")
    query.run()
    desk.client.call("delete_topic", topic="again")
    desk.create("again", partitions=1)
    desk.fill("again", 20)
    with pytest.raises(PySparkException, match="deleted and created again"):
        query.run()
    query.options["failOnDataLoss"] = False
    query.run()
    assert query.rows[10:] == desk.oracle("again")


def test_a_topic_that_is_deleted_ends_a_query_or_is_left_out(desk: Desk, tmp_path: Path) -> None:
    desk.create("going", "staying", partitions=1)
    desk.fill("going", 10)
    query = Query(desk, tmp_path, subscribe="going,staying")
    query.run()
    desk.client.call("delete_topic", topic="going")
    desk.fill("staying", 5)
    with pytest.raises(PySparkException, match="the topic going was deleted since this query read it"):
        query.run()
    query.options["failOnDataLoss"] = False
    query.run()
    assert query.rows[10:] == desk.oracle("staying")


def stream_reader(desk: Desk, **options: str) -> reading.StreamReader:
    """As Spark makes it."""
    given = source_options({"bootstrap.servers": desk.wire, **options}, is_stream=True)
    return reading.StreamReader(given, full_schema(include_headers=False))


def test_a_topic_that_is_named_wrongly_ends_a_query_that_goes_on(desk: Desk) -> None:
    desk.create("spelled", partitions=1)
    first, again = stream_reader(desk, subscribe="spelled"), stream_reader(desk, subscribe="spelled,speled")
    try:
        with pytest.raises(DataLost, match="there is no topic speled"):
            again.latestOffset(first.initialOffset(), ReadAllAvailable())
    finally:
        first.stop()
        again.stop()


@pytest.mark.parametrize("latest", ["latest", '{"latest": {"0": -1, "1": 0}}'])
def test_the_end_is_no_beginning_without_a_name(desk: Desk, latest: str) -> None:
    with pytest.raises(InvalidRequest, match="set readerName"):
        stream_reader(desk, subscribe="latest", startingOffsets=latest)


def test_a_batch_waits_until_it_is_worth_it(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.create("few", partitions=2)
    reader = stream_reader(desk, subscribe="few", minOffsetsPerTrigger="10", maxTriggerDelay="1h")
    at, everything = reader.initialOffset(), ReadAllAvailable()

    def advance(count: int) -> int:
        nonlocal at
        desk.fill("few", count)
        start, at = at, reader.latestOffset(at, everything)
        return sum(each.size for each in stretches(Position.from_json(start), Position.from_json(at)))

    try:
        assert advance(3) == 3, "the first one waits for nothing"
        assert advance(6) == 0
        assert advance(4) == 10
        assert advance(1) == 0
        later = time.monotonic() + 3600
        monkeypatch.setattr(reading, "time", SimpleNamespace(monotonic=lambda: later))
        assert advance(1) == 2, "it has waited for long enough"
    finally:
        reader.stop()


def test_a_stream_that_waits_gets_what_comes(desk: Desk, tmp_path: Path) -> None:
    desk.create("coming", partitions=1)
    frame = desk.stream(subscribe="coming").load().selectExpr("cast(value as string) as value")
    writer = frame.writeStream.format("memory").queryName("coming").option("checkpointLocation", str(tmp_path))
    query = writer.start()
    try:
        for first in (0, 10):
            desk.fill("coming", 10, first=first)
            query.processAllAvailable()
            assert desk.spark.table("coming").count() == first + 10
    finally:
        query.stop()
