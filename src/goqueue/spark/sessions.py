"""A Spark session that knows GoQueue, with settings that fit: Java found, workers of this Python, local by default."""

import os
import sys
from importlib.util import find_spec
from typing import Any, Final

from pyspark import SparkContext
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
    """One for this process; the one there is, as it is, if there is one.

    In another thread than the one that made it, ask for it here before anything is written: Spark looks for sources
    like ours in the session that is active in the thread, and a thread begins with none.

    `master` is local[*] unless it is given here, by spark-submit or by SPARK_MASTER. Settings are Spark's, with a
    double underscore for a dot: `session(spark__sql__shuffle__partitions=8)`.
    """
    there = SparkSession.getActiveSession() or _made_elsewhere()
    if there is not None:
        return there
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ["JAVA_HOME"] = find_java().home
    chosen: dict[str, bool | float | int | str | None] = {**_ALWAYS}
    if master is None and "PYSPARK_GATEWAY_PORT" not in os.environ:  # then spark-submit says it
        master = os.environ.get("SPARK_MASTER") or "local[*]"
    if master is not None:
        chosen["spark.master"] = master
        if master == "local" or master.startswith("local["):
            chosen |= {**_LOCAL, "spark.sql.shuffle.partitions": str(os.cpu_count() or 1)}
    chosen |= {name.replace("__", "."): str(value) for name, value in settings.items()}
    made = SparkSession.builder.appName(app).config(map=chosen).getOrCreate()
    if find_spec("pyspark_goqueue") is None:  # else Spark has found it
        register(made)
    return made


def _made_elsewhere() -> SparkSession | None:
    """The session that another thread has made, active in this one from now on."""
    context = SparkContext._active_spark_context
    if context is None or context._jvm is None:
        return None
    sessions = SparkSession._get_j_spark_session_class(context._jvm)
    found = sessions.getDefaultSession()
    if not found.isDefined():
        return None
    sessions.setActiveSession(found.get())
    return SparkSession.getActiveSession()


def register(spark: SparkSession) -> None:
    """For sessions that are made elsewhere, and where packages are not looked through for sources."""
    spark.dataSource.register(GoQueueSource)
    spark.dataSource.register(GoQueueLogSource)
