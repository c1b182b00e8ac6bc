"""The session and the sources it knows."""

from pyspark.sql import SparkSession


def test_session_runs_workers_of_this_python(spark: SparkSession) -> None:
    assert [row.id for row in spark.range(3).collect()] == [0, 1, 2]
