"""`deadletters`: why messages of a topic died, by reason, key and time, with samples; and those that are wanted again.

Publishing them again is the broker's own redrive, told which letters: it remembers what was redriven, so that none is
twice, whoever asks and however often, and everything of a message stays that a redrive keeps.
"""

import shutil
import time
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from goqueue.client.sync.client import Client
from goqueue.model import limits
from goqueue.model.errors import UnknownRedrive
from goqueue.spark import asking, values
from goqueue.spark.options import Address
from goqueue.spark.pipelines.filters import where
from goqueue.spark.pipelines.frame import ADDRESS, Option, Pipeline, Run, Summary, Table
from goqueue.spark.pipelines.letters import read_letters
from goqueue.spark.pipelines.running import RunFailed
from goqueue.spark.pipelines.state import for_spark

_KEPT: Final = "redrive.json"
_AT_ONCE: Final = limits.MAX_FILTER_OFFSETS
"""Letters of one redrive."""
_LOOK_AGAIN_S: Final = 0.2
_SAMPLE_LETTERS: Final = 80

Offsets = dict[int, list[int]]


class Kept(msgspec.Struct, frozen=True):
    """The redrive that was started last; it goes on in the broker when this process dies."""

    redrive: str | None
    """None: it has ended."""


def run(run: Run) -> Summary:
    options = run.options
    found = read_letters(run.spark, options["address"], options["topic"]).persist()
    try:
        bad = found.where("why is not null")
        strange = bad.count()
        if not run.is_dry:
            shutil.rmtree(run.state.bad_rows, ignore_errors=True)  # of an earlier run
        if strange and not run.is_dry:
            bad.write.parquet(for_spark(run.state.bad_rows))
        letters = where(found.where("why is null"), options["where"])
        figures: dict[str, str | int | float] = {"topic": options["topic"], "dead letters": letters.count()}
        tables = _tables(letters, options["top"], options["samples"])
        problems: list[str] = []
        if options["redrive"]:
            told, problems = _redrive(run, letters)
            figures |= told
    finally:
        found.unpersist()
    return Summary(
        figures=figures,
        tables=tables,
        bad_rows=strange,
        bad_rows_at=str(run.state.bad_rows) if strange and not run.is_dry else None,
        problems=problems,
    )


# ---------------------------------------------------------------- why they died


def _text(column: str) -> Column:
    """As much of it as can be read: what is not UTF-8 is shown by its bytes."""
    whole = f.col(column)
    readable = f.when(f.is_valid_utf8(whole.cast("string")), whole.cast("string")).otherwise(f.hex(whole))
    return f.substring(readable, 1, _SAMPLE_LETTERS)


def _hour(column: str) -> Column:
    return f.date_format(column, "yyyy-MM-dd HH:00")


def _tables(letters: DataFrame, top: int, samples: int) -> list[Table]:
    by = (
        ("by reason", "letters desc", {"reason": f.col("reason"), "detail": f.col("detail"), "group": f.col("group")}),
        ("by key", "letters desc", {"key": _text("key")}),
        ("by hour of death", "hour desc", {"hour": _hour("died_at")}),
    )
    tables = []
    for title, order, columns in by:
        grouped = letters.groupBy(*(column.alias(name) for name, column in columns.items()))
        rows = grouped.agg(f.count("*").alias("letters")).orderBy(f.expr(order), *columns).limit(top).collect()
        tables.append(Table(title, (*columns, "letters"), [tuple(row) for row in rows]))
    shown = ("partition", "offset", "died", "reason", "detail", "tries", "key", "value")
    latest = letters.orderBy(f.desc("died_at"), "partition", f.desc("offset")).limit(samples)
    rows = latest.select(
        "partition", "offset", f.col("died_at").cast("string"), "reason", "detail", "deliveries",
        _text("key"), _text("value"),
    ).collect()  # fmt: skip
    return [*tables, Table("the latest", shown, [tuple(row) for row in rows])]


# ---------------------------------------------------------------- those that are wanted again


def _redrive(run: Run, letters: DataFrame) -> tuple[dict[str, int], list[str]]:
    options, told = run.options, {"redriven": 0, "skipped": 0}
    with asking.connect(Address(options["address"])) as client:
        _wait_for_the_last(run, client)
        if run.is_dry:
            matched = [client.start_redrive(options["topic"], offsets=some, dry_run=True) for some in _slices(letters)]
            return {"would be redriven": sum(each.matched for each in matched)}, []
        run.progress.begin("redriving", letters.count())
        for some in _slices(letters):
            if run.stopping.is_asked:
                break
            started = client.start_redrive(options["topic"], offsets=some, rate=options["rate"])
            if started.id is None:
                continue  # all of them were redriven before
            run.state.keep(_KEPT, Kept(started.id))
            done = _watch(run, client, started.id)
            if done.state == "failed":
                raise RunFailed(f"the redrive {started.id} failed: {done.error}; run this again for what is left")
            told["redriven"] += done.redriven
            told["skipped"] += done.skipped
            run.tally("redriven", done.redriven)
    problems = [f"{told['skipped']} could not be redriven: gone since, or too large"] if told["skipped"] else []
    return told, problems


def _slices(letters: DataFrame) -> Iterator[Offsets]:
    """Which letters, by partition of the dead-letter topic, some at a time."""
    some: Offsets = {}
    count = 0
    for row in letters.select("partition", "offset").orderBy("partition", "offset").toLocalIterator():
        some.setdefault(row["partition"], []).append(row["offset"])
        count += 1
        if count == _AT_ONCE:
            yield some
            some, count = {}, 0
    if some:
        yield some


def _wait_for_the_last(run: Run, client: Client) -> None:
    """A run before this one may have been killed: its redrive goes on, and there is one of a topic at a time.

    However it ends: what it has not redriven, this run does.
    """
    kept: Kept | None = run.state.read(_KEPT, Kept)
    if kept is not None and kept.redrive is not None and not run.is_dry:
        try:
            _watch(run, client, kept.redrive)
        except UnknownRedrive:
            run.state.keep(_KEPT, Kept(None))  # it ended long ago


def _watch(run: Run, client: Client, redrive: str) -> Any:
    """Until it has ended, or this run is to: then it is cancelled. One that is known to have ended is forgotten."""
    done = 0
    while True:
        found = client.describe_redrive(redrive)
        if run.progress.doing:
            run.progress.advance(found.redriven + found.skipped - done)
        done = found.redriven + found.skipped
        if found.state == "running" and run.stopping.is_asked:
            return client.cancel_redrive(redrive)
        if found.state != "running":
            run.state.keep(_KEPT, Kept(None))
            return found
        time.sleep(_LOOK_AGAIN_S)


PIPELINE: Final = Pipeline(
    "deadletters",
    "Why messages of a topic died; and publish again those that are wanted.",
    (
        ADDRESS,
        Option("topic", values.topic, "Whose dead letters.", required=True),
        Option("where", values.text, "Only those for which this SQL expression over the columns is true."),
        Option("redrive", values.yes_or_no, "Publish them again where they came from.", default="false"),
        Option("rate", values.number, "At most so many a second.", steers=True),
        Option("top", values.whole, "Rows of a table.", default="20", steers=True),
        Option("samples", values.whole, "Letters that are shown.", default="10", steers=True),
    ),
    run,
)
