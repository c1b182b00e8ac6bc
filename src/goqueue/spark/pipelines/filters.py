"""Which rows are wanted, as it was typed: a key, a header, an SQL expression over the columns."""

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from goqueue.model.errors import InvalidRequest


def with_key(rows: DataFrame, key: str | None) -> DataFrame:
    return rows if key is None else rows.where(f.col("key") == f.lit(key.encode()))


def with_header(rows: DataFrame, header: tuple[str, str] | None) -> DataFrame:
    """Of headers that have the same name, one must have the value."""
    if header is None:
        return rows
    name, content = header[0], f.lit(header[1].encode())
    return rows.where(f.exists("headers", lambda each: (each["key"] == name) & (each["value"] == content)))


def where(rows: DataFrame, expression: str | None) -> DataFrame:
    """InvalidRequest, with what Spark says of it, if it cannot be right."""
    if expression is None:
        return rows
    try:
        return rows.where(expression)
    except AnalysisException as error:
        told = str(error).strip().splitlines()[0].partition(" SQLSTATE")[0]
        raise InvalidRequest(f"where is {expression!r}: {told}") from None
