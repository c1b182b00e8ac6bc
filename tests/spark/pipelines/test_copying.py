"""What `replay` and `repartition` make of a source that is not as it was: delays that were cancelled or moved, messages
that retention took."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from goqueue.spark.fetching import DataLost
from goqueue.spark.pipelines import copying
from goqueue.spark.pipelines.running import RunFailed
from tests.spark.desk import Desk, open_desk
from tests.spark.pipelines.stage import Stage
from tests.support.planted_directory import segment_files
from tests.unit.storage.logs import flip, positions

HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("copying")


@pytest.fixture(scope="module")
def own_desk(spark: SparkSession, data: Path) -> Iterator[Desk]:
    """A broker in this process, so that it cleans when it is told to."""
    with open_desk(spark, data) as made:
        yield made


@pytest.fixture
def stage(own_desk: Desk, tmp_path: Path) -> Iterator[Stage]:
    made = Stage(own_desk.spark, own_desk.wire, tmp_path)
    with made.client:
        yield made


class Crash(Exception):
    """In place of kill -9: what comes after it does not happen."""


def crash(name: str) -> None:
    raise Crash(name)


def values(stage: Stage, topic: str) -> list[str]:
    return sorted(message.value.decode() for message in stage.read(topic))


def times(stage: Stage, topic: str) -> dict[str, tuple[int | None, int | None]]:
    return {message.value.decode(): (message.deliver_at, message.expires_at) for message in stage.read(topic)}


# ---------------------------------------------------------------- delays


def remind(stage: Stage, topic: str) -> int:
    """Delayed messages, one of which was cancelled, one moved, and one cancelled before a time that has passed."""
    now = int(time.time() * 1000)
    stage.client.create_topic(topic, partitions=1)
    with stage.client.producer() as producer:
        producer.send(topic, "cancelled, and past", delay="1s")
        producer.send(topic, "at once")
        producer.send(topic, "later", deliver_at=now + HOUR_MS)
        producer.send(topic, "cancelled", deliver_at=now + HOUR_MS)
        producer.send(topic, "moved", deliver_at=now + HOUR_MS, ttl="1h")
    for offset in (0, 3):
        stage.client.cancel_delayed(topic, partition=0, offset=offset)
    stage.client.move_delayed(topic, partition=0, offset=4, deliver_at=now + 2 * HOUR_MS)
    time.sleep(1.1)  # the first one's time has passed
    return now


def test_a_cancelled_delay_is_left_out_and_a_moved_one_has_its_new_time(stage: Stage) -> None:
    now = remind(stage, "reminders")
    stage.client.create_topic("reminders-replay", partitions=1)
    options: dict[str, dict[str, Any]] = {
        "replay": {"topic": "reminders", "into": "reminders-replay", "expiry": "keep"},
        "repartition": {"topic": "reminders", "into": "reminders-repartition", "partitions": 2},
    }
    would = stage.run("replay", state="replay", dry=True, **options["replay"])
    assert sorted(would.tables[-1].rows) == [("cancelled", 2), ("would be written", 3)]
    for pipeline, given in options.items():
        summary = stage.run(pipeline, state=pipeline, **given)
        assert summary.is_well
        figures = ("messages read", "messages written", "cancelled")
        assert [summary.figures[name] for name in figures] == [5, 3, 2]
        assert times(stage, given["into"]) == {
            "at once": (None, None),
            "later": (now + HOUR_MS, None),
            "moved": (now + 2 * HOUR_MS, now + 3 * HOUR_MS),
        }


@pytest.mark.long
def test_of_a_lake_the_broker_is_asked_as_long_as_it_has_the_topic(stage: Stage) -> None:
    now = remind(stage, "kept")
    lake = stage.directory / "lake"
    stage.run("archive", state="archive", topics="kept", lake=lake)
    options: dict[str, Any] = {"topic": "kept", "lake": lake, "delays": "drop"}
    stage.client.create_topic("kept-1", partitions=1)
    stage.client.create_topic("kept-2", partitions=1)
    assert stage.run("replay", state="one", into="kept-1", **options).figures["cancelled"] == 2
    assert values(stage, "kept-1") == ["at once", "later", "moved"]

    stage.client.delete_topic("kept")
    stage.client.create_topic("kept", partitions=1)  # another one: what it has at these offsets is not the same
    with stage.client.producer() as producer:
        for _ in range(5):
            producer.send("kept", "a stranger's", deliver_at=now + HOUR_MS)
    stage.client.cancel_delayed("kept", partition=0, offset=2)
    assert stage.run("replay", state="two", into="kept-2", **options).figures["cancelled"] == 0
    assert len(values(stage, "kept-2")) == 5


@pytest.mark.long
def test_a_delay_the_broker_has_forgotten_is_a_bad_row(stage: Stage, own_desk: Desk) -> None:
    """Cancelled, and cleaned away; the lake still has it."""
    topic = "forgotten"
    stage.client.create_topic(topic, partitions=1, segment_bytes=4096)
    with stage.client.producer() as producer:
        producer.send(topic, "reminder", delay="1h")
    lake = stage.directory / "lake"
    stage.run("archive", state="archive", topics=topic, lake=lake)
    stage.client.cancel_delayed(topic, partition=0, offset=0)
    take_away(own_desk, topic)
    stage.client.create_topic("remembered", partitions=1)
    summary = stage.run("replay", topic=topic, lake=lake, into="remembered")
    assert (summary.figures["messages written"], summary.bad_rows) == (0, 1)
    (bad,) = stage.spark.read.parquet(str(summary.bad_rows_at)).collect()
    assert "the broker does not have it any more" in bad["why"]


# ---------------------------------------------------------------- retention


def take_away(desk: Desk, topic: str) -> int:
    """Retention takes the beginning of it; where it begins now."""
    for first in range(0, 20, 2):
        desk.fill(topic, 2, first=100 + first, size=1000)
    desk.client.change_topic(topic, retention_bytes=8192)
    desk.clean()
    begin = desk.client.describe_topic(topic).partition_offsets["0"].earliest
    assert begin > 0
    return begin


def fill(desk: Desk, topic: str) -> None:
    desk.create(topic, partitions=1, segment_bytes=4096)
    for first in range(0, 20, 2):
        desk.fill(topic, 2, first=first, size=1000)


def test_what_retention_took_is_an_error_or_is_skipped_and_told(stage: Stage, own_desk: Desk) -> None:
    fill(own_desk, "passing")
    stage.client.create_topic("passed", partitions=1)
    options: dict[str, Any] = {"topic": "passing", "into": "passed"}
    assert stage.run("replay", **options).figures["messages written"] == 20
    for first in range(20, 40, 2):
        own_desk.fill("passing", 2, first=first, size=1000)
    begin = take_away(own_desk, "passing")
    assert begin > 20
    with pytest.raises(DataLost, match=rf"offsets 20 to {begin - 1} of partition 0 of passing .* set lost=skip"):
        stage.run("replay", **options)
    would = stage.run("replay", dry=True, lost="skip", **options)
    assert would.tables[1].rows == [("passing", 0, 20, begin, begin - 20)]
    summary = stage.run("replay", lost="skip", chunk=5, **options)  # some of its chunks have nothing left
    assert summary.figures["offsets lost"] == begin - 20
    assert summary.problems == [f"{begin - 20} offsets were cleaned away before they were read"]
    kept = [message.value for message in stage.read("passing")]
    assert [message.value for message in stage.read("passed")][20:] == kept


@pytest.mark.long
def test_what_is_damaged_is_an_error_that_says_what_to_do_or_is_skipped(
    stage: Stage, own_desk: Desk, data: Path
) -> None:
    fill(own_desk, "worn")
    own_desk.clean()  # and so synced
    segment = segment_files(data, "worn")[0]
    flip(segment, positions(segment)[1][1] - 1)
    stage.client.create_topic("mended", partitions=1)
    options: dict[str, Any] = {"topic": "worn", "into": "mended"}
    with pytest.raises(RunFailed, match=r"offsets 1 to 1 of .* are gone: they are damaged .*; set lost=skip to go on"):
        stage.run("replay", **options)
    assert stage.run("replay", lost="skip", **options).figures["messages written"] == 19


def test_a_chunk_that_was_written_is_known_although_its_messages_are_gone(
    stage: Stage, own_desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(own_desk, "brief")
    options: dict[str, Any] = {"topic": "brief", "into": "brief-2", "partitions": 2}
    with monkeypatch.context() as patched:
        patched.setattr(copying, "failpoint", crash)
        with pytest.raises(Exception, match="copy-written"):
            stage.run("repartition", chunk=20, **options)
    begin = take_away(own_desk, "brief")
    assert begin >= 20
    stage.client.change_topic("brief", retention_bytes=None)
    summary = stage.run("repartition", lost="skip", **options)
    assert summary.figures["offsets lost"] == begin - 20
    assert summary.figures["messages written"] == 20 + stage.written("brief")
    assert len(stage.read("brief-2")) == 20 + stage.written("brief")


@pytest.mark.long
def test_a_new_topic_that_is_cleaned_may_have_less_than_was_written(stage: Stage, own_desk: Desk) -> None:
    fill(own_desk, "wide")
    options: dict[str, Any] = {"topic": "wide", "into": "narrow", "partitions": 1}
    assert stage.run("repartition", **options).figures["messages there"] == 20
    stage.client.change_topic("narrow", retention_bytes=4096)
    take_away(own_desk, "wide")
    stage.run("repartition", lost="skip", chunk=2, **options)
    own_desk.clean()
    summary = stage.run("repartition", lost="skip", **options)
    assert int(summary.figures["messages there"]) < int(summary.figures["messages written"])
    assert not [each for each in summary.problems if each.startswith("narrow has")]
