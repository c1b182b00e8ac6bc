"""Messages from a source into a topic, exactly once, in order, a chunk at a time.

A chunk is a stretch of offsets of each partition. Which one comes next is written down before it is begun, under a
number; it is written to the topic under that number, which the broker takes once. So whatever happens, a chunk that was
begun is done again as it was, and what is in the topic already is not put there again. What a topic would not take goes
to the bad rows, with the reason.
"""

import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from goqueue.codec.layout import HEADER_COUNT_BYTES, HEADER_LENGTH_BYTES
from goqueue.spark.pipelines.failpoints import failpoint
from goqueue.spark.pipelines.frame import Run, Table
from goqueue.spark.pipelines.sources import Source
from goqueue.spark.pipelines.state import for_spark
from goqueue.spark.places import Position, admit, stretches

_KEPT: Final = "copy.json"
WRITTEN: Final = ("key", "value", "headers", "priority", "event_time")
"""What goes with a message; where it was, and who sent it, does not."""
_WHY: Final = "why"


class Tally(msgspec.Struct):
    """Over all runs in the same directory."""

    rows: int = 0
    """That the filter kept."""
    written: int = 0
    bad: int = 0


class Kept(msgspec.Struct):
    """How far it is."""

    next: dict[str, Any]
    """The position up to which all is done."""
    number: int = 0
    """Of the chunk that was begun last."""
    chunk_end: dict[str, Any] | None = None
    """Where that one ends; None when it is done."""
    tally: Tally = msgspec.field(default_factory=Tally)


class Copy(NamedTuple):
    """What is to be done."""

    source: Source
    target: str
    max_message_bytes: int
    columns: tuple[str, ...] = WRITTEN
    keep: Callable[[DataFrame], DataFrame] = lambda rows: rows
    """Those that are wanted."""
    chunk: int = 100_000
    rate: float | None = None
    """Rows a second."""


def ahead(run: Run, copy: Copy) -> tuple[Position, Position]:
    """What is left to do: from where the last run was to where the source ends now."""
    start, end = copy.source.extent()
    kept: Kept | None = run.state.read(_KEPT, Kept)
    return (Position.from_json(kept.next) if kept is not None else start), end


def describe(run: Run, copy: Copy) -> list[Table]:
    """For a dry run: what would be read, and how much of it kept, without reading more than needed for that."""
    start, end = ahead(run, copy)
    left = stretches(start, end)
    rows = [(each.topic, each.partition, each.start, each.end, each.size) for each in left]
    judged = _judged(copy, copy.source.rows(start, end)) if left else None
    found = judged.groupBy(_WHY).count().collect() if judged is not None else []
    kept = [("would be written" if row[0] is None else f"bad: {row[0]}", row[1]) for row in found]
    return [
        Table("would be read", ("topic", "partition", "from", "to", "offsets"), list(rows)),
        Table(f"into {copy.target}", ("what", "messages"), list(kept)),
    ]


def carry_out(run: Run, copy: Copy) -> Tally:
    """Everything up to where the source ends now."""
    position, end = ahead(run, copy)
    kept: Kept = run.state.read(_KEPT, Kept) or Kept(position.to_json())
    run.state.keep(_KEPT, kept)
    run.progress.begin("copying", sum(each.size for each in stretches(position, end)))
    pace = _Pace(copy)
    while not run.stopping.is_asked:
        position = Position.from_json(kept.next)
        if kept.chunk_end is None:
            if not stretches(position, end):
                break
            kept.number += 1
            kept.chunk_end = admit(position, end, pace.offsets()).to_json()
            run.state.keep(_KEPT, kept)
        chunk_end = Position.from_json(kept.chunk_end)
        done = _copy_chunk(run, copy, position, chunk_end, kept.number)
        failpoint("copy-written")
        before = kept.tally
        kept.tally = Tally(before.rows + done.rows, before.written + done.written, before.bad + done.bad)
        kept.next, kept.chunk_end = kept.chunk_end, None
        run.state.keep(_KEPT, kept)
        for name in Tally.__struct_fields__:
            run.tally(f"rows_{name}" if name != "rows" else "rows", getattr(done, name))
        offsets = sum(each.size for each in stretches(position, chunk_end))
        run.progress.advance(offsets)
        run.stopping.wait(pace.pause_s(offsets, done.written))
    return kept.tally


def _copy_chunk(run: Run, copy: Copy, start: Position, end: Position, number: int) -> Tally:
    judged = _judged(copy, copy.source.rows(start, end)).persist()
    try:
        rows, bad = judged.agg(f.count("*"), f.count(_WHY)).collect()[0]
        if bad:
            left_out = judged.where(f.col(_WHY).isNotNull())
            left_out.write.mode("overwrite").parquet(for_spark(run.state.bad_rows / f"chunk={number}"))
        if rows > bad:
            good = judged.where(f.col(_WHY).isNull()).select(*copy.columns)
            writer = good.write.format("goqueue").option("bootstrap.servers", run.options["address"])
            writer = writer.option("topic", copy.target).option("transactionalId", f"pipeline-{run.state.id}")
            writer.option("batchId", number).mode("append").save()
    finally:
        judged.unpersist()
    return Tally(rows, rows - bad, bad)


# ---------------------------------------------------------------- rows a topic would not take


def _size() -> Column:
    """As the broker counts it: key, value and headers."""
    lengths = f.coalesce(f.octet_length("key"), f.lit(0)) + f.coalesce(f.octet_length("value"), f.lit(0))
    beside = 2 * HEADER_LENGTH_BYTES
    headers = f.aggregate(
        f.col("headers"),
        f.lit(HEADER_COUNT_BYTES),
        lambda total, each: total + beside + f.octet_length(each["key"]) + f.octet_length(each["value"]),
    )
    return lengths + f.when(f.size("headers") > 0, headers).otherwise(0)


def _judged(copy: Copy, rows: DataFrame) -> DataFrame:
    """The rows that are wanted, with why they are bad, if they are."""
    limit = copy.max_message_bytes
    reasons = (
        (_size() > limit, f.concat(_size().cast("string"), f.lit(f" bytes; {copy.target} takes {limit}"))),
        (~f.coalesce(f.col("priority"), f.lit(2)).between(0, 4), f.lit("a priority that is not from 0 to 4")),
    )
    why = f.lit(None).cast("string")
    for is_so, reason in reversed(reasons):
        why = f.when(is_so, reason).otherwise(why)
    return copy.keep(rows).withColumn(_WHY, why)


# ---------------------------------------------------------------- how fast


class _Pace:
    """How many offsets to take next, and how long to rest, so that rows come at a rate.

    What is written under one number is seen at once; with a rate that is about a second's worth.
    """

    def __init__(self, copy: Copy, clock: Callable[[], float] = time.monotonic) -> None:
        self._chunk = copy.chunk
        self._rate = copy.rate
        self._clock = clock
        self._begun: float | None = None
        self._offsets = self._rows = 0

    def offsets(self) -> int:
        if self._begun is None:
            self._begun = self._clock()
        if self._rate is None:
            return self._chunk
        kept = (self._rows + 1) / (self._offsets + 1)  # of the offsets, by what was seen
        return max(1, min(self._chunk, int(self._rate / kept)))

    def pause_s(self, offsets: int, rows: int) -> float:
        """After so many more."""
        self._offsets += offsets
        self._rows += rows
        if self._rate is None or self._begun is None:
            return 0.0
        return max(0.0, self._begun + self._rows / self._rate - self._clock())
