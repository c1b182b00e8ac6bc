"""How large messages are, as expressions over their columns."""

from pyspark.sql import Column
from pyspark.sql import functions as f

from goqueue.codec.layout import HEADER_COUNT_BYTES, HEADER_LENGTH_BYTES


def content_bytes() -> Column:
    """Key and value."""
    return f.coalesce(f.octet_length("key"), f.lit(0)) + f.coalesce(f.octet_length("value"), f.lit(0))


def message_bytes() -> Column:
    """As the broker counts it: key, value and headers."""
    beside = 2 * HEADER_LENGTH_BYTES
    headers = f.aggregate(
        f.col("headers"),
        f.lit(HEADER_COUNT_BYTES),
        lambda total, each: total + beside + f.octet_length(each["key"]) + f.octet_length(each["value"]),
    )
    return content_bytes() + f.when(f.size("headers") > 0, headers).otherwise(0)
