"""What `format("goqueue")` is."""

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from goqueue.model.errors import InvalidRequest
from goqueue.spark.json_values import struct_of
from goqueue.spark.options import sink_options, source_options
from goqueue.spark.reading import BatchReader, FilteringReader, StreamReader
from goqueue.spark.rows import full_schema
from goqueue.spark.writing import BatchWriter, StreamWriter


class GoQueueSource(DataSource):
    """Topics of a broker, to read and to write, in batches and in streams."""

    @classmethod
    def name(cls) -> str:
        return "goqueue"

    def schema(self) -> StructType:
        options = source_options(self.options, is_stream=False)
        if options.json_values is None:
            return full_schema(include_headers=options.include_headers)
        if options.value_schema is None:
            raise InvalidRequest(
                "value.format is json; set value.schema to a JSON schema or the path of a file with one, or give "
                "the value's struct by .schema()"
            )
        return full_schema(include_headers=options.include_headers, value=struct_of(options.value_schema))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = source_options(self.options, is_stream=False)
        return (FilteringReader if options.push_filters else BatchReader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return StreamReader(source_options(self.options, is_stream=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise InvalidRequest("a topic is written to at its end; use mode append")
        return BatchWriter(sink_options(self.options, is_stream=False), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        if overwrite:
            raise InvalidRequest("a topic is written to at its end; use the output mode append")
        return StreamWriter(sink_options(self.options, is_stream=True), schema)
