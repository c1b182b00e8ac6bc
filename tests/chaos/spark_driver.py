"""A streaming query as a program of its own: from one topic to another, until all that is there is copied.

Told to, its driver dies between what the sink commits and what Spark writes down about it: the moment at which a batch
was written and nobody knows. `python -m tests.chaos.spark_driver SETTINGS` with settings as JSON gets ready, and begins
when it is given a line: starting Spark takes longer than the query does, and another one may be at work meanwhile.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from goqueue.spark.options import sink_options
from goqueue.spark.sessions import session
from goqueue.spark.source import GoQueueSource
from goqueue.spark.writing import StreamWriter

MARKS = "GOQUEUE_TEST_MARKS"
"""Where the driver says which processes it is, and is told at which batch it dies."""
FAILPOINT = "sink-committed"
WRITER = "writer"
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
"""For programs that live for seconds: nothing is optimised that will not be run again, and what Spark's jars have is
taken for valid."""
SMALL = {
    "spark__sql__codegen__wholeStage": "false",
    "spark__sql__codegen__factoryMode": "NO_CODEGEN",
    "spark__sql__adaptive__enabled": "false",
    "spark__python__sql__dataFrameDebugging__enabled": "false",
}
"""For frames of some hundred rows: compiling a query takes longer than running it, and writing down which line made
each of its columns longer than making them."""


def link_spark(folder: Path, **settings: str) -> str:
    """A SPARK_HOME without the zip of PySpark: every Python that Spark starts would compile all of it again.

    Settings are for programs that do not say them: as for `session()`.
    """
    (folder / "conf").mkdir(parents=True)
    lines = [f"{name.replace('__', '.')} {value}\n" for name, value in settings.items()]
    (folder / "conf" / "spark-defaults.conf").write_text("".join(lines))
    for part in ("bin", "jars"):
        (folder / part).symlink_to(Path(pyspark.__file__).parent / part)
    return str(folder)


class DyingSource(GoQueueSource):
    @classmethod
    def name(cls) -> str:
        return "goqueue-dying"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        return DyingWriter(sink_options(self.options, is_stream=True), schema)


class DyingWriter(StreamWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Every executor has a process that starts its others: so many of them write."""
        (Path(os.environ[MARKS]) / f"{WRITER}-{os.getppid()}").touch()
        return super().write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        super().commit(messages, batchId)
        marks = Path(os.environ[MARKS])
        wanted = marks / FAILPOINT
        if wanted.exists() and batchId >= int(wanted.read_text()):
            (marks / f"{FAILPOINT}-{batchId}").touch()
            for pid in (marks / "pids").read_text().split():
                os.kill(int(pid), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)


def copy_query(spark: SparkSession, settings: dict[str, Any], sink: str = "goqueue") -> DataStreamWriter:
    """The query: all that is there, in batches, by so many tasks each."""
    options = {"bootstrap.servers": settings["wire"]}
    reader = spark.readStream.format("goqueue").options(**options, subscribe=settings["from"])
    frame = reader.option("maxOffsetsPerTrigger", str(settings["batch"])).load().select("key", "value")
    pause_s = settings.get("pause_s", 0)

    def wait(batches: Any) -> Any:
        """When the sink has the first of them: Spark hands one on when it is asked for the next."""
        for number, batch in enumerate(batches):
            if number == 2:
                time.sleep(pause_s)
            yield batch

    frame = frame.repartition(settings["partitions"], "key")
    if pause_s:
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10")
        frame = frame.mapInArrow(wait, "key binary, value binary")
    writer = frame.writeStream.format(sink).trigger(availableNow=True)
    return writer.options(**options, topic=settings["to"], checkpointLocation=settings["checkpoint"])


def main(settings: dict[str, Any]) -> None:
    spark = session(
        "copy",
        master=settings["master"],
        spark__ui__enabled="false",
        spark__driver__host="127.0.0.1",
        spark__driver__bindAddress="127.0.0.1",
        spark__executor__memory="512m",
        spark__scheduler__minRegisteredResourcesRatio="1.0",
        spark__driver__extraJavaOptions=QUICK_JAVA,
        spark__executor__extraJavaOptions=QUICK_JAVA,
        spark__executorEnv__PYTHONPATH=os.environ.get("PYTHONPATH", ""),
        **SMALL,
        **{f"spark__executorEnv__{MARKS}": os.environ[MARKS]},
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(DyingSource)
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    writer = copy_query(spark, settings, sink="goqueue-dying")
    if sys.stdin.readline():
        pids = f"{os.getpid()} {jvm.java.lang.ProcessHandle.current().pid()}"
        (Path(os.environ[MARKS]) / "pids").write_text(pids)
        writer.start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
