"""Progress by the tasks Spark has done: it never goes back, and all of it is told in the end."""

import io

import pytest
from pyspark.sql import SparkSession

from goqueue.spark.pipelines import watching
from goqueue.spark.pipelines.progress import Progress
from goqueue.spark.pipelines.watching import watched


def test_all_rows_are_told_and_never_fewer_than_before(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_GLANCE_S", 0.02)
    seen: list[int] = []
    progress = Progress(lambda each: seen.append(each.done), stream=io.StringIO())
    progress.begin("counting", 1000)

    def work() -> int:
        found: int = spark.range(0, 100_000, 1, 12).selectExpr("id % 7 as n").groupBy("n").count().count()
        seen.append(progress.done)
        return found

    assert watched(spark, progress, 1000, work) == 7
    assert progress.done == 1000
    assert seen == sorted(seen)


def test_what_goes_wrong_is_raised(spark: SparkSession) -> None:
    progress = Progress(lambda _: None, stream=io.StringIO())

    def work() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        watched(spark, progress, 10, work)
