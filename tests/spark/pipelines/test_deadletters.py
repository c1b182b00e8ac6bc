"""`deadletters` with a broker and Spark: why messages died, and publishing them again."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from goqueue.client.sync.client import Client
from goqueue.model.errors import Unavailable, UnknownTopic
from goqueue.spark.pipelines.running import RunFailed
from tests.spark.pipelines.stage import Stage, staged
from tests.support.planted_directory import segment_files
from tests.unit.storage.logs import flip, positions


@pytest.fixture(scope="module")
def stage(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(spark, tmp_path_factory.mktemp("letters")) as found:
        yield found


def reject(stage: Stage, topic: str, count: int) -> None:
    with stage.client.consumer("workers", [topic]) as consumer:
        for _, message in zip(range(count), consumer, strict=False):
            message.reject("too odd" if ("kind", b"odd") in message.headers else "too even")
        consumer.flush()
    while stage.written(f"{topic}.dlq") < count:  # the broker does that by itself
        time.sleep(0.05)


def test_dead_letters_are_told_and_redriven_once(stage: Stage) -> None:
    stage.publish("jobs", 60, partitions=2, keys=4)
    assert stage.run("deadletters", state="none", topic="jobs").figures["dead letters"] == 0
    with pytest.raises(UnknownTopic):
        stage.run("deadletters", state="nowhere", topic="nowhere")
    reject(stage, "jobs", 60)
    with stage.client.producer() as producer:
        producer.send("jobs.dlq", "by hand")

    summary = stage.run("deadletters", topic="jobs", samples=3)
    reasons, keys, hours, samples = summary.tables
    assert (summary.figures["dead letters"], summary.bad_rows) == (60, 1)
    assert sorted(reasons.rows) == [("rejected", "too even", "workers", 30), ("rejected", "too odd", "workers", 30)]
    assert {row[0]: row[1] for row in keys.rows} == {None: 1, "key 0": 15, "key 1": 14, "key 2": 15, "key 3": 15}
    assert sum(int(row[1] or 0) for row in hours.rows) == 60
    assert len(samples.rows) == 3
    (bad,) = stage.spark.read.parquet(str(summary.bad_rows_at)).collect()
    assert bytes(bad["value"]) == b"by hand"

    odd: dict[str, Any] = {"topic": "jobs", "where": "detail = 'too odd' and string(key) = 'key 1'", "redrive": "true"}
    assert stage.run("deadletters", state="odd", dry=True, **odd).figures["would be redriven"] == 14
    assert len(stage.read("jobs")) == 60
    assert stage.run("deadletters", state="odd", **odd).figures["redriven"] == 14
    assert stage.run("deadletters", state="odd", **odd).figures["redriven"] == 0
    again = stage.by_key("jobs")[b"key 1"]
    assert len(again) == 28
    assert sorted(again[:14]) == sorted(again[14:])


def test_letters_that_cannot_be_read_are_bad_rows(stage: Stage) -> None:
    stage.publish("worn", 30, partitions=1)
    reject(stage, "worn", 30)
    (segment,) = segment_files(stage.directory / "data", "worn.dlq")
    flip(segment, positions(segment)[7][1] - 1)
    summary = stage.run("deadletters", state="worn", topic="worn")
    assert (summary.figures["dead letters"], summary.bad_rows) == (29, 1)
    (bad,) = stage.spark.read.parquet(str(summary.bad_rows_at)).collect()
    assert (bad["partition"], bad["offset"]) == (0, 7)
    assert bad["why"] == "offsets 7 to 7 of partition 0 of worn.dlq are gone: they are damaged on the broker's disk"


@pytest.mark.long
def test_a_redrive_that_failed_does_not_stand_in_the_way_of_the_next(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.publish("tasks", 12, partitions=1)
    reject(stage, "tasks", 12)
    options: dict[str, Any] = {"topic": "tasks", "redrive": "true"}
    kept = stage.directory / "failing" / "redrive.json"

    start = Client.start_redrive

    def start_in_vain(client: Client, topic: str, **asked: Any) -> Any:
        client.create_topic("elsewhere", partitions=1)
        started = start(client, topic, **{**asked, "target": "elsewhere", "rate": 1})
        client.delete_topic("elsewhere")
        return started

    def be_away(*_: object) -> None:
        raise Unavailable("the broker is away")

    with monkeypatch.context() as patched:
        patched.setattr(Client, "start_redrive", start_in_vain)
        with pytest.raises(RunFailed, match="the topic elsewhere was deleted; run this again"):
            stage.run("deadletters", state="failing", **options)
        assert json.loads(kept.read_text()) == {"redrive": None}
        patched.setattr(Client, "describe_redrive", be_away)
        with pytest.raises(Unavailable):
            stage.run("deadletters", state="failing", **options)
        assert json.loads(kept.read_text())["redrive"]
    assert int(stage.run("deadletters", state="failing", **options).figures["redriven"]) > 0
    assert stage.run("deadletters", state="failing", **options).figures["redriven"] == 0
