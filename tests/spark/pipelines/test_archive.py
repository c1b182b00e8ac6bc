"""`archive` with a broker and Spark: every message is in the lake once, also when it is killed."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from goqueue.model.errors import Conflict, UnknownTopic
from goqueue.spark.pipelines import lake as lakes
from goqueue.spark.pipelines import running
from goqueue.spark.pipelines.failpoints import VARIABLE
from goqueue.spark.pipelines.state import read_status
from goqueue.spark.pipelines.stopping import Stopping
from tests.chaos.spark_driver import QUICK_JAVA
from tests.spark.pipelines.stage import Stage, counts, once_at, staged
from tests.support.patience import PATIENCE_S, wait_until


@pytest.fixture
def stage(spark: SparkSession, tmp_path: Path) -> Iterator[Stage]:
    with staged(spark, tmp_path) as found:
        yield found


def in_lake(stage: Stage) -> tuple[int, int]:
    return counts(stage.directory / "lake")


def rows(lake: Path) -> int:
    """By the footers of the files: whoever waits for rows asks often."""
    return sum(pq.read_metadata(path).num_rows for path in lake.glob("topic=*/*/*.parquet"))


class Following:
    """An archive that runs in a thread, until it is asked to stop."""

    def __init__(self, stage: Stage, **options: Any) -> None:
        self.failure: BaseException | None = None
        self.signal: int | None = None
        self._thread = threading.Thread(target=self._run, args=(stage, options))
        self._stoppings: list[Stopping] = []

    def _run(self, stage: Stage, options: dict[str, Any]) -> None:
        try:
            self.signal = stage.run_anyhow("archive", follow="true", every="100ms", **options).signal
        except BaseException as error:
            self.failure = error

    def start(self) -> None:
        self._thread.start()

    def made(self) -> Stopping:
        """What the run asks whether it is to stop."""
        self._stoppings.append(Stopping())
        return self._stoppings[-1]

    @property
    def stopping(self) -> Stopping:
        return self._stoppings[0]

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def end(self) -> None:
        if self._stoppings:
            self.stopping.ask(signal.SIGTERM)
        self._thread.join(PATIENCE_S)


@contextmanager
def following(stage: Stage, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Iterator[Following]:
    run = Following(stage, **options)
    monkeypatch.setattr(running, "Stopping", run.made)
    run.start()
    try:
        yield run
    finally:
        run.end()


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


def test_a_topic_that_was_created_again_is_not_mixed_with_the_one_before(stage: Stage) -> None:
    """Topic delete x archive."""
    lake = stage.directory / "lake"
    stage.publish("orders", 50)
    stage.run("archive", lake=lake, topics="orders")
    before = {path: path.read_bytes() for path in lake.glob("topic=*/*/*.parquet")}
    assert before
    stage.client.delete_topic("orders")
    stage.publish("orders", 20, keys=3)
    for lost in ("fail", "skip"):
        with pytest.raises(Conflict, match="orders was deleted and created again"):
            stage.run("archive", lake=lake, topics="orders", lost=lost)
    assert before == {path: path.read_bytes() for path in lake.glob("topic=*/*/*.parquet")}


@pytest.mark.long
def test_a_topic_that_was_created_again_has_a_lake_of_its_own_or_the_place_of_the_one_before(stage: Stage) -> None:
    lake = stage.directory / "lake"
    stage.publish("orders", 50)
    stage.run("archive", lake=lake, topics="orders")
    stage.client.delete_topic("orders")
    stage.publish("orders", 20, keys=3)
    assert in_lake(stage) == (50, 50)
    assert (
        stage.run("archive", state="other", lake=stage.directory / "lake-2", topics="orders").figures["messages"] == 20
    )

    (lake / "topic=orders").rename(stage.directory / "topic=orders")
    (lake / "_goqueue" / "owners" / "orders").unlink()
    stage.run("archive", lake=lake, topics="orders", lost="skip")
    assert in_lake(stage) == (20, 20)


@pytest.mark.long
def test_the_other_topics_go_on_when_one_is_deleted(stage: Stage) -> None:
    lake = stage.directory / "lake"
    stage.publish("orders", 30)
    stage.publish("others", 30)
    stage.run("archive", lake=lake, topics="orders,others")
    stage.client.delete_topic("others")
    stage.publish("orders", 10)
    with pytest.raises(UnknownTopic):
        stage.run("archive", lake=lake, topics="orders,others")
    assert stage.run("archive", lake=lake, topics="orders,others", lost="skip").figures["messages"] == 10
    assert in_lake(stage) == (70, 70)


@pytest.mark.long
def test_a_topic_that_is_created_again_while_it_is_followed_ends_the_run(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def create_again() -> None:
        stage.client.delete_topic("orders")
        stage.publish("orders", 20)

    stage.publish("orders", 50)
    once_at(monkeypatch, "archive-staged", create_again)  # while the query waits for its batch
    with following(stage, monkeypatch, topics="orders", lake=stage.directory / "lake", lost="skip") as run:
        wait_until(lambda: not run.is_alive)
    assert isinstance(run.failure, Conflict)
    assert in_lake(stage) == (50, 50)


@pytest.mark.long
def test_an_archive_follows_until_it_is_asked_to_stop_and_goes_on_later(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = stage.directory / "lake"
    stage.publish("orders", 50)
    with following(stage, monkeypatch, topics="orders", lake=lake) as run:
        wait_until(lambda: rows(lake) == 50)
        stage.publish("orders", 30)
        wait_until(lambda: rows(lake) == 80)
        run.stopping.ask(signal.SIGTERM)
        wait_until(lambda: not run.is_alive)
    assert (run.failure, run.signal) == (None, signal.SIGTERM)
    status = read_status(stage.directory / "state")
    assert status is not None
    assert (status.state, status.counters["messages"]) == ("stopped", 80)
    stage.publish("orders", 20)
    assert stage.run("archive", topics="orders", lake=lake).figures["messages"] == 20
    assert in_lake(stage) == (100, 100)


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
        timeout=PATIENCE_S,
    )
    assert killed.returncode == -signal.SIGKILL
    status = read_status(state)
    assert status is not None
    assert status.state == "killed"
    assert 100 < in_lake(stage)[0] < 200
    stage.run("archive", topics="orders,events", lake=lake, batch=150)
    assert in_lake(stage) == (300, 300)
