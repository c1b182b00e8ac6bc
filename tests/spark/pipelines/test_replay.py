"""`replay` and `repartition` with a broker and Spark: what is written again is the same, once, and in order."""

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from goqueue.model.errors import Conflict, TooLarge
from goqueue.spark.pipelines import copying
from tests.spark.pipelines.stage import Stage, staged


@pytest.fixture(scope="module")
def stage(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(spark, tmp_path_factory.mktemp("replay")) as found:
        yield found


class Crash(Exception):
    """In place of kill -9: what comes after it does not happen."""


def crash(name: str) -> None:
    raise Crash(name)


def test_a_chunk_that_is_cut_short_is_written_once_and_filters_keep_what_they_say(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.publish("third", 200)
    stage.client.create_topic("fourth", partitions=5, max_message_bytes=64)
    options: dict[str, Any] = {
        "topic": "third",
        "into": "fourth",
        "header": "kind=odd",
        "where": "partition < 3 and priority <> 4",
    }
    with monkeypatch.context() as patched:
        patched.setattr(copying, "failpoint", crash)
        with pytest.raises(Exception, match="copy-written"):
            stage.run("replay", state="c", chunk=90, **options)
    large: dict[str, Any] = {"value": "x" * 100, "key": "key 1", "headers": {"kind": "odd"}}
    with stage.client.producer() as producer:
        producer.send("third", **large)
        with pytest.raises(TooLarge, match="118 bytes"):
            producer.send("fourth", **large)
    summary = stage.run("replay", state="c", chunk=150, rate=10_000, **options)
    kept = {
        key: [e for e in found if e.lane != "background" and ("kind", b"odd") in e.headers]
        for key, found in stage.by_key("third").items()
    }
    expected = {key: [e for e in found if len(e.value or b"") < 64] for key, found in kept.items() if found}
    assert stage.by_key("fourth") == expected
    assert summary.figures["messages written"] == sum(map(len, expected.values()))
    assert summary.bad_rows == 1
    (bad,) = stage.spark.read.parquet(str(summary.bad_rows_at)).collect()
    assert bad["why"] == "118 bytes; fourth takes 64"
    again = stage.run("replay", state="c", **options)
    assert again.figures == summary.figures


def test_a_topic_is_repartitioned_with_its_settings_and_keys_in_order(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.client.create_topic("narrow", partitions=3, max_retries=7, message_ttl="2h")
    stage.publish("narrow", 400)
    options: dict[str, Any] = {"topic": "narrow", "into": "wide", "partitions": 8}
    would = stage.run("repartition", state="d", dry=True, **options)
    assert would.tables[1].rows == [("would be written", 400)]
    assert "wide" not in stage.client.list_topics().topics
    with monkeypatch.context() as patched:
        patched.setattr(copying, "failpoint", crash)
        with pytest.raises(Exception, match="copy-written"):
            stage.run("repartition", state="d", chunk=250, **options)
    summary = stage.run("repartition", state="d", **options)
    assert summary.is_well
    assert summary.figures["messages there"] == 400
    assert stage.by_key("wide") == stage.by_key("narrow")
    config = stage.client.describe_topic("wide").config
    assert (config.max_retries, config.message_ttl) == (7, "2h")
    assert len({message.partition for message in stage.read("wide")}) > 3
    with pytest.raises(Conflict, match="there is a topic wide already"):
        stage.run("repartition", state="e", **options)

    with stage.client.producer() as producer, producer.transaction():
        producer.send("narrow", "undecided", key="key 0")
        problems = stage.run("repartition", state="d", **options).problems
        assert len(problems) == 1
        assert "of narrow is read up to offset" in problems[0]

    with stage.client.producer() as producer:
        producer.send("wide", "a stranger's")
    stage.publish("narrow", 10)
    summary = stage.run("repartition", state="d", **options)
    assert summary.problems == ["wide has 412 messages, and 411 were written"]
