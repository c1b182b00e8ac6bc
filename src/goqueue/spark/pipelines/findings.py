"""What is wrong with a log, found with Spark: in the log alone, and against another copy of its messages.

A finding has a kind, a range of offsets and a reason; where bytes are wrong also the file and the place in it. Every
function here takes rows as the sources have them and gives findings; none of them changes anything.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructField, StructType

from goqueue.spark.log_source import DAMAGE

SCHEMA: Final = StructType([*DAMAGE.fields, StructField("against", StringType(), True)])
"""`against` is what the log was compared with; nothing for what it shows by itself."""

REPEATED: Final = "repeated"
"""A producer's message is there twice: the same id, epoch and sequence."""
OUT_OF_ORDER: Final = "out of order"
"""A producer's message lies behind a later one."""
ABSENT: Final = "absent"
"""In the log, and not in the other copy."""
EXTRA: Final = "extra"
"""In the other copy, and not in the log."""
DUPLICATE: Final = "duplicate"
"""In the other copy more often than in the log."""
DIFFERENT: Final = "different"
"""In both, and not the same."""
REORDERED: Final = "reordered"
"""A key's messages are in another order there."""

_PLACE: Final = ("topic", "partition", "offset")
_HALF_WAY: Final = 1 << 30
"""A sequence that is so much lower than the one before has begun again at 0."""
_CONTENT: Final = ("key", "value", "headers", "priority")
_WHOLE: Final = (*_CONTENT, "timestamp", "deliver_at", "expires_at", "event_time")


def _findings(
    frame: DataFrame,
    kind: str | Column,
    reason: Column,
    *,
    first: str = "offset",
    end: Column | None = None,
    against: str | None = None,
) -> DataFrame:
    columns = {
        "topic": f.col("topic"),
        "partition": f.col("partition"),
        "kind": f.lit(kind) if isinstance(kind, str) else kind,
        "first_offset": f.col(first),
        "next_offset": f.col(first) + 1 if end is None else end,
        "file": f.lit(None),
        "position": f.lit(None),
        "reason": reason,
        "against": f.lit(against),
    }
    return frame.select([columns[field.name].cast(field.dataType).alias(field.name) for field in SCHEMA.fields])


def digest(columns: tuple[str, ...]) -> Column:
    """Of what a message says. What is null is told from what is empty, and from what is not there."""
    parts: list[Column] = []
    for name in columns:
        parts += [f.col(name), f.isnull(name)]
    return f.xxhash64(*parts)


# ---------------------------------------------------------------- the log by itself


def damage(frame: DataFrame) -> DataFrame:
    """What is read with `content` damage."""
    return frame.withColumn("against", f.lit(None).cast(StringType()))


def sequences(frame: DataFrame) -> DataFrame:
    """Messages that a producer's count shows to be there twice, or in another order than they were sent in."""
    sent = frame.where("producer_id is not null")
    of_producer = Window.partitionBy("topic", "partition", "producer_id").orderBy("offset")
    of_message = Window.partitionBy("topic", "partition", "producer_id", "producer_epoch", "sequence").orderBy("offset")
    before_epoch, before = f.lag("producer_epoch").over(of_producer), f.lag("sequence").over(of_producer)
    looked = (
        sent.withColumn("before_epoch", before_epoch)
        .withColumn("before", before)
        .withColumn("original", f.first("offset").over(of_message))
    )
    goes_back = (f.col("producer_epoch") < f.col("before_epoch")) | (
        (f.col("producer_epoch") == f.col("before_epoch"))
        & (f.col("sequence") < f.col("before"))
        & (f.col("before") - f.col("sequence") < _HALF_WAY)
    )
    who = f.format_string(
        "sequence %d of producer %d in epoch %d", f.col("sequence"), f.col("producer_id"), f.col("producer_epoch")
    )
    is_repeated = f.col("original") < f.col("offset")
    wrong = looked.where(is_repeated | goes_back)
    reason = f.when(is_repeated, f.concat(who, f.lit(" is at offset "), f.col("original").cast("string"))).otherwise(
        f.concat(who, f.lit(" lies behind sequence "), f.col("before").cast("string"))
    )
    return _findings(wrong, f.when(is_repeated, f.lit(REPEATED)).otherwise(f.lit(OUT_OF_ORDER)), reason)


# ---------------------------------------------------------------- against a copy with the same offsets


def compare(log: DataFrame, other: DataFrame, bounds: DataFrame, *, against: str) -> DataFrame:
    """Message by message: the same topic, partition and offset has to be the same message, once.

    `bounds` has topic, partition, the offsets `start` up to `end` that are compared, and up to where each side was
    cleaned: there it need not have what the other has.
    """
    ours = log.select(*_PLACE, digest(_WHOLE).alias("ours"))
    theirs = (
        other.select(*_PLACE, digest(_WHOLE).alias("digest"))
        .groupBy(*_PLACE)
        .agg(f.count("*").alias("times"), f.min("digest").alias("theirs"), f.max("digest").alias("theirs_too"))
    )
    both = ours.join(theirs, list(_PLACE), "full_outer").join(f.broadcast(bounds), ["topic", "partition"])
    both = both.where((f.col("offset") >= f.col("start")) & (f.col("offset") < f.col("end")))
    kind = (
        f.when(f.col("theirs").isNull(), f.when(f.col("offset") >= f.col("theirs_cleaned"), f.lit(ABSENT)))
        .when(f.col("ours").isNull(), f.when(f.col("offset") >= f.col("ours_cleaned"), f.lit(EXTRA)))
        .when((f.col("ours") != f.col("theirs")) | (f.col("ours") != f.col("theirs_too")), f.lit(DIFFERENT))
        .when(f.col("times") > 1, f.lit(DUPLICATE))
    )
    wrong = _in_rows(both.withColumn("kind", kind).where("kind is not null").select(*_PLACE, "kind"))
    reasons = {
        ABSENT: "not in the other copy",
        EXTRA: "in the other copy only",
        DIFFERENT: "not the same in the other copy",
        DUPLICATE: "more than once in the other copy",
    }
    reason = f.create_map(*[f.lit(each) for pair in reasons.items() for each in pair])[f.col("kind")]
    return _findings(wrong, f.col("kind"), reason, first="first", end=f.col("end"), against=against)


def _in_rows(frame: DataFrame) -> DataFrame:
    """Offsets in a row that have the same fault as one."""
    ordered = Window.partitionBy("topic", "partition", "kind").orderBy("offset")
    row = f.col("offset") - f.row_number().over(ordered)
    rows = frame.withColumn("row", row).groupBy("topic", "partition", "kind", "row")
    return rows.agg(f.min("offset").alias("first"), (f.max("offset") + 1).alias("end"))


# ---------------------------------------------------------------- against a topic with other offsets


def compare_topics(log: DataFrame, copy: DataFrame, *, against: str) -> DataFrame:
    """Every message is in the copy as often as in the log, and a key's messages have the same order in both.

    Messages without a key have no order.
    """
    ours, theirs = _placed(log, "ours"), _placed(copy, "theirs")
    return _by_count(ours, theirs, against).unionByName(_by_order(ours, theirs, against))


def _placed(frame: DataFrame, side: str) -> DataFrame:
    """Each message with its digest, how many equal ones of its key come before it, and where it is."""
    name = f.coalesce(f.concat(f.lit("key "), f.hex("key")), f.lit("no key"))
    order = f.struct("timestamp", "partition", "offset")
    placed = frame.select(
        name.alias("name"), digest(_CONTENT).alias("digest"), order.alias(side), f.col("topic").alias(f"{side}_topic")
    )
    equal_ones = Window.partitionBy("name", "digest").orderBy(side)
    return placed.withColumn("occurrence", f.row_number().over(equal_ones))


def _by_count(ours: DataFrame, theirs: DataFrame, against: str) -> DataFrame:
    both = ours.join(theirs, ["name", "digest", "occurrence"], "full_outer")
    wrong = both.where("ours is null or theirs is null").select(
        f.coalesce("ours_topic", "theirs_topic").alias("topic"),
        f.coalesce("ours.partition", "theirs.partition").alias("partition"),
        f.coalesce("ours.offset", "theirs.offset").alias("offset"),
        f.when(f.col("theirs").isNull(), f.lit(ABSENT))
        .when(f.col("occurrence") > 1, f.lit(DUPLICATE))
        .otherwise(f.lit(EXTRA))
        .alias("kind"),
    )
    reason = (
        f.when(f.col("kind") == ABSENT, f.lit("this message of the log is not in the copy"))
        .when(f.col("kind") == DUPLICATE, f.lit("this message of the copy is more often there than in the log"))
        .otherwise(f.lit("this message of the copy is not in the log"))
    )
    return _findings(wrong, f.col("kind"), reason, against=against)


def _by_order(ours: DataFrame, theirs: DataFrame, against: str) -> DataFrame:
    """Of every key the first message that lies in the copy before one it followed in the log."""
    both = ours.where("name != 'no key'").join(theirs, ["name", "digest", "occurrence"])
    of_key = Window.partitionBy("name").orderBy("ours")
    back = both.withColumn("before", f.lag("theirs").over(of_key)).where("theirs < before")
    first = back.groupBy("name", "ours_topic").agg(f.min_by(f.struct("ours", "theirs"), "ours").alias("first"))
    wrong = first.select(
        f.col("ours_topic").alias("topic"),
        f.col("first.ours.partition").alias("partition"),
        f.col("first.ours.offset").alias("offset"),
        "first",
    )
    reason = f.format_string(
        "in the copy it is at partition %d, offset %d, before a message of its key that it followed",
        f.col("first.theirs.partition"),
        f.col("first.theirs.offset"),
    )
    return _findings(wrong, REORDERED, reason, against=against)
