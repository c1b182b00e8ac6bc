"""A sink whose tasks fail. Every Python that Spark starts loads this, and so it knows nothing of tests."""

from collections.abc import Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from goqueue.spark.options import sink_options
from goqueue.spark.source import GoQueueSource
from goqueue.spark.writing import BatchWriter, StreamWriter


class FailsAfterSending(GoQueueSource):
    """Every first attempt of a task dies when all its rows are with the broker."""

    @classmethod
    def name(cls) -> str:
        return "goqueue-fails"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return FailingBatch(sink_options(self.options, is_stream=False), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        return FailingStream(sink_options(self.options, is_stream=True), schema)


def _fail_at_first() -> None:
    context = TaskContext.get()
    if context is not None and context.attemptNumber() == 0:
        raise ZeroDivisionError("the first attempt")


class FailingBatch(BatchWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        done = super().write(iterator)
        _fail_at_first()
        return done


class FailingStream(StreamWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        done = super().write(iterator)
        _fail_at_first()
        return done
