"""`archive` with a broker and Spark: every message is in the lake once, also when it is killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from goqueue.spark.pipelines import lake as lakes
from goqueue.spark.pipelines.failpoints import VARIABLE
from goqueue.spark.pipelines.state import read_status
from tests.chaos.spark_driver import QUICK_JAVA
from tests.spark.pipelines.stage import Stage, staged


@pytest.fixture
def stage(spark: SparkSession, tmp_path: Path) -> Iterator[Stage]:
    with staged(spark, tmp_path) as found:
        yield found


def in_lake(stage: Stage) -> tuple[int, int]:
    """How many rows there are, and how many different messages, as any reader of Parquet finds them."""
    rows = stage.spark.read.parquet(str(stage.directory / "lake"))
    return rows.count(), rows.select("topic", "partition", "offset").distinct().count()


def test_topics_are_in_the_lake_with_all_their_columns(stage: Stage) -> None:
    stage.publish("orders", 200)
    stage.publish("events", 100, partitions=1)
    lake = stage.directory / "lake"
    would = stage.run("archive", dry=True, topics="orders,events", lake=lake)
    assert sum(int(row[-1] or 0) for row in would.tables[0].rows) == 300
    assert not lake.exists()

    summary = stage.run("archive", topics="orders,events", lake=lake, batch=150)
    assert in_lake(stage) == (300, 300)
    assert stage.run("archive", dry=True, topics="orders,events", lake=lake).tables[0].rows == []
    (row,) = lakes.read(stage.spark, str(lake), ["orders"]).where("partition = 0 and offset = 0").collect()
    first = next(each for each in stage.read("orders") if each.partition == 0)
    assert (row["key"], row["value"], row["offset"]) == (first.key, first.value, first.offset)
    assert [(each["key"], bytes(each["value"])) for each in row["headers"]] == [*first.headers]
    assert row["message_id"] == first.message_id
    page = Path(summary.report or "").read_text()
    assert "data:image/png;base64," in page
    assert "<td>events" in page


@pytest.mark.long
def test_every_message_is_there_once_also_when_a_run_is_killed(stage: Stage) -> None:
    """A process of its own, with a Spark of its own, dies of kill -9 while files of its second batch are moved in."""
    stage.publish("orders", 200)
    stage.publish("events", 100, partitions=1)
    lake, state = stage.directory / "lake", stage.directory / "state"
    words = ["archive", "--address", stage.address, "--topics", "orders,events", "--lake", str(lake)]
    killed = subprocess.run(
        [sys.executable, "-m", "goqueue.spark.pipelines", *words, "--batch", "100", "--state", str(state)],
        env={**os.environ, VARIABLE: "lake-moved:4", "JDK_JAVA_OPTIONS": QUICK_JAVA, "SPARK_MASTER": "local[2]"},
        check=False,
        timeout=120,
    )
    assert killed.returncode == -signal.SIGKILL
    status = read_status(state)
    assert status is not None
    assert status.state == "killed"
    assert 100 < in_lake(stage)[0] < 200
    stage.run("archive", topics="orders,events", lake=lake, batch=150)
    assert in_lake(stage) == (300, 300)
