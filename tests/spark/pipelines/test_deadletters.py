"""`deadletters` with a broker and Spark: why messages died, and publishing them again."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from goqueue.model.errors import UnknownTopic
from tests.spark.pipelines.stage import Stage, staged


@pytest.fixture(scope="module")
def stage(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(spark, tmp_path_factory.mktemp("letters")) as found:
        yield found


def test_dead_letters_are_told_and_redriven_once(stage: Stage) -> None:
    stage.publish("jobs", 60, partitions=2, keys=4)
    assert stage.run("deadletters", state="none", topic="jobs").figures["dead letters"] == 0
    with pytest.raises(UnknownTopic):
        stage.run("deadletters", state="nowhere", topic="nowhere")
    with stage.client.consumer("workers", ["jobs"]) as consumer:
        for _, message in zip(range(60), consumer, strict=False):
            message.reject("too odd" if ("kind", b"odd") in message.headers else "too even")
        consumer.flush()
    while stage.written("jobs.dlq") < 60:  # the broker does that by itself
        time.sleep(0.05)
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
