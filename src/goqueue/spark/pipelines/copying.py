"""Messages from a source into a topic, exactly once, in order, a chunk at a time.

A chunk is a stretch of offsets of each partition. Which one comes next is written down before it is begun, under a
number; it is written to the topic under that number, which the broker takes once. So whatever happens, a chunk that was
begun is done again as it was, and what is in the topic already is not put there again. What a topic would not take goes
to the bad rows, with the reason.

What a chunk has is written down before its messages are: one that the broker has taken is done, also when what it was
made of has been cleaned away since.
"""

import shutil
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from goqueue.model.errors import Conflict
from goqueue.spark import asking
from goqueue.spark.fetching import DataLost
from goqueue.spark.options import Address
from goqueue.spark.pipelines.delays import CANCELLED, FATE, FORGOTTEN, Delays
from goqueue.spark.pipelines.failpoints import failpoint
from goqueue.spark.pipelines.frame import Run, Table
from goqueue.spark.pipelines.sizes import message_bytes
from goqueue.spark.pipelines.sources import Left, Source
from goqueue.spark.pipelines.state import for_spark
from goqueue.spark.places import Position, Stretch, admit, stretches

_KEPT: Final = "copy.json"
WRITTEN: Final = ("key", "value", "headers", "priority", "event_time")
"""What goes with a message; where it was, and who sent it, does not."""
_WHY: Final = "why"
_NOT_KNOWN: Final = "to be delivered later, and the broker does not have it any more: cancelled, or delivered earlier"
_PLACES: Final = ("topic", "partition", "from", "to", "offsets")


class Tally(msgspec.Struct):
    """Over all runs in the same directory."""

    rows: int = 0
    """That the filter kept."""
    written: int = 0
    bad: int = 0
    cancelled: int = 0
    """Delayed messages that never were to be delivered any more."""
    lost: int = 0
    """Offsets that were cleaned away before they were read."""

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(*(getattr(self, name) + getattr(other, name) for name in self.__struct_fields__))


class Kept(msgspec.Struct):
    """How far it is."""

    next: dict[str, Any]
    """The position up to which all is done."""
    number: int = 0
    """Of the chunk that was begun last."""
    chunk_end: dict[str, Any] | None = None
    """Where that one ends; None when it is done."""
    counted: Tally | None = None
    """What it has; None until that is known."""
    tally: Tally = msgspec.field(default_factory=Tally)


class Copy(NamedTuple):
    """What is to be done."""

    source: Source
    target: str
    max_message_bytes: int
    delays: Delays
    columns: tuple[str, ...] = WRITTEN
    keep: Callable[[DataFrame], DataFrame] = lambda rows: rows
    """Those that are wanted."""
    chunk: int = 100_000
    rate: float | None = None
    """Rows a second."""
    skips_lost: bool = False
    """Go on without what was cleaned away."""


def ahead(run: Run, copy: Copy) -> tuple[Position, Position]:
    """What is left to do: from where the last run was to where the source ends now."""
    start, end = copy.source.extent()
    kept: Kept | None = run.state.read(_KEPT, Kept)
    return (Position.from_json(kept.next) if kept is not None else start), end


def describe(run: Run, copy: Copy) -> list[Table]:
    """For a dry run: what would be read, and how much of it kept, without reading more than needed for that."""
    start, end = ahead(run, copy)
    left = copy.source.left(start, end)
    there = stretches(left.start, end)
    judged = _judged(copy, left.start, end) if there else None
    found = judged.groupBy(_WHY, _is_cancelled()).count().collect() if judged is not None else []
    kept = [
        ("cancelled" if is_cancelled else "would be written" if why is None else f"bad: {why}", count)
        for why, is_cancelled, count in found
    ]
    return [
        Table("would be read", _PLACES, [_place(each) for each in there]),
        *([Table("lost: cleaned away", _PLACES, [_place(each) for each in left.gone])] if left.gone else []),
        Table(f"into {copy.target}", ("what", "messages"), list(kept)),
    ]


def _place(each: Stretch) -> tuple[str | int, ...]:
    return each.topic, each.partition, each.start, each.end, each.size


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
        done = _known(run, kept) or _copy_chunk(run, copy, position, chunk_end, kept)
        failpoint("copy-written")
        kept.tally += done
        kept.next, kept.chunk_end, kept.counted = kept.chunk_end, None, None
        run.state.keep(_KEPT, kept)
        for name in Tally.__struct_fields__:
            run.tally(name, getattr(done, name))
        offsets = sum(each.size for each in stretches(position, chunk_end))
        run.progress.advance(offsets)
        run.stopping.wait(pace.pause_s(offsets, done.written))
    return kept.tally


def _token(run: Run) -> str:
    """The name under which the numbers of chunks count."""
    return f"pipeline-{run.state.id}"


def _known(run: Run, kept: Kept) -> Tally | None:
    """What the chunk has, if it was counted and all of it is written."""
    if kept.counted is None:
        return None
    if kept.counted.written:
        with asking.connect(Address(run.options["address"])) as client:
            last = client.transaction_token(_token(run)).number
        if last is None and kept.tally.written:
            raise Conflict(
                "the broker does not know any more how far this copy is, because too many others came since; look at "
                f"what the topic has, and begin anew, with another --state (chunk {kept.number} may be there)"
            )
        if last is None or last < kept.number:
            return None
    return kept.counted


def _copy_chunk(run: Run, copy: Copy, start: Position, end: Position, kept: Kept) -> Tally:
    judged, tally = _counted(copy, start, end)
    bad_rows = run.state.bad_rows / f"chunk={kept.number}"
    try:
        shutil.rmtree(bad_rows, ignore_errors=True)  # an attempt before this one may have judged otherwise
        if tally.bad:
            judged.where(f.col(_WHY).isNotNull()).drop(FATE).write.parquet(for_spark(bad_rows))
        kept.counted = tally
        run.state.keep(_KEPT, kept)
        if tally.written:
            good = judged.where(f.col(_WHY).isNull() & ~_is_cancelled()).select(*copy.columns)
            writer = good.write.format("goqueue").option("bootstrap.servers", run.options["address"])
            writer = writer.option("topic", copy.target).option("transactionalId", _token(run))
            writer.option("batchId", kept.number).mode("append").save()
    finally:
        judged.unpersist()
    return tally


def _counted(copy: Copy, start: Position, end: Position) -> tuple[DataFrame, Tally]:
    """What is left of a chunk, judged, and what it has. Read again when some was lost meanwhile that is to be told.

    If Spark has to read rows again that it has counted, delays may be others by then: the tally is then off by these.
    """
    left = _left(copy, start, end)
    while True:
        judged = _judged(copy, left.start, end).persist()
        try:
            rows, bad, cancelled = judged.agg(f.count("*"), f.count(_WHY), f.count_if(_is_cancelled())).collect()[0]
            before, left = left, _left(copy, start, end) if copy.skips_lost else left
        except BaseException:
            judged.unpersist()
            raise
        if left == before:
            lost = sum(each.size for each in left.gone)
            return judged, Tally(rows, rows - bad - cancelled, bad, cancelled, lost)
        judged.unpersist()


def _left(copy: Copy, start: Position, end: Position) -> Left:
    """DataLost if something is gone that is not to be skipped."""
    left = copy.source.left(start, end)
    if left.gone and not copy.skips_lost:
        first = left.gone[0]
        raise DataLost(
            f"offsets {first.start} to {first.end - 1} of partition {first.partition} of {first.topic} were cleaned "
            "away before they were read; set lost=skip to go on without them"
        )
    return left


# ---------------------------------------------------------------- rows that are not written


def _is_cancelled() -> Column:
    return f.col(FATE).eqNullSafe(CANCELLED)


def _judged(copy: Copy, start: Position, end: Position) -> DataFrame:
    """The rows between two positions that are wanted, with their fate, and why they are bad, if they are."""
    limit, size = copy.max_message_bytes, message_bytes()
    is_later = f.col("deliver_at") > f.current_timestamp()
    reasons = (
        (_is_cancelled(), f.lit(None)),
        (size > limit, f.concat(size.cast("string"), f.lit(f" bytes; {copy.target} takes {limit}"))),
        (~f.coalesce(f.col("priority"), f.lit(2)).between(0, 4), f.lit("a priority that is not from 0 to 4")),
        (f.col(FATE).eqNullSafe(FORGOTTEN) & is_later, f.lit(_NOT_KNOWN)),
    )
    why = f.lit(None).cast("string")
    for is_so, reason in reversed(reasons):
        why = f.when(is_so, reason).otherwise(why)
    rows = copy.keep(copy.source.rows(start, end))
    return copy.delays.as_of_now(rows, end.ids).withColumn(_WHY, why)


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
