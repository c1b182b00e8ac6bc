"""A Spark session that knows GoQueue, with settings that fit: Java found, workers of this Python, local by default."""

import os
import sys
from typing import Any, Final

from pyspark.sql import SparkSession

from goqueue.spark.java import find_java
from goqueue.spark.log_source import GoQueueLogSource
from goqueue.spark.source import GoQueueSource

_LOCAL: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
_ALWAYS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
}


def session(app: str = "goqueue", *, master: str | None = None, **settings: Any) -> SparkSession:
    """One for this process; the one there is, if there is one.

    `master` is local[*] unless it is given here, by spark-submit or by SPARK_MASTER. Settings are Spark's, with a
    double underscore for a dot: `session(spark__sql__shuffle__partitions=8)`.
    """
    if SparkSession.getActiveSession() is None:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        os.environ["JAVA_HOME"] = find_java().home
    builder: SparkSession.Builder = SparkSession.builder.appName(app)
    master = master or os.environ.get("SPARK_MASTER") or ("local[*]" if "spark.master" not in _submitted() else None)
    if master is not None:
        builder = builder.master(master)
        if master.startswith("local["):
            cores = str(os.cpu_count() or 1)
            for name, value in {**_LOCAL, "spark.sql.shuffle.partitions": cores}.items():
                builder = builder.config(name, value)
    given = {name.replace("__", "."): value for name, value in settings.items()}
    for name, value in {**_ALWAYS, **given}.items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    register(made)
    return made


def register(spark: SparkSession) -> None:
    """For sessions that are made elsewhere, and where packages are not looked through for sources."""
    spark.dataSource.register(GoQueueSource)
    spark.dataSource.register(GoQueueLogSource)


def _submitted() -> str:
    """What spark-submit was told."""
    return os.environ.get("PYSPARK_SUBMIT_ARGS", "")
