"""`archive`: topics to a lake, as Parquet by topic and date; once, or for as long as it runs; every message once.

A streaming query reads; `pipelines.lake` takes each of its batches in, once. Small files are made into large ones on
the way. Everything a topic can hold has a column, so there are no bad rows.
"""

from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from goqueue.model.errors import InvalidRequest
from goqueue.spark import asking
from goqueue.spark.options import Address, Subscription
from goqueue.spark.pipelines import lake as lakes
from goqueue.spark.pipelines import values
from goqueue.spark.pipelines.checkpoint import committed_position
from goqueue.spark.pipelines.frame import ADDRESS, Option, Pipeline, Run, Summary, Table
from goqueue.spark.pipelines.lake import Lake
from goqueue.spark.pipelines.report import page, png
from goqueue.spark.places import Position, stretches

REPORT: Final = "report.html"
_COMPACT_EVERY: Final = 16
"""Batches, while it follows."""
_GLANCE_S: Final = 0.25
_PLOTTED_TOPICS: Final = 6


def run(run: Run) -> Summary:
    options = run.options
    start, end = _extent(run)
    ahead = stretches(start, end)
    if run.is_dry:
        rows = [(each.topic, each.partition, each.start, each.end, each.size) for each in ahead]
        return Summary(
            figures={"messages at most": sum(each.size for each in ahead), "lake": options["lake"]},
            tables=[Table("would be archived", ("topic", "partition", "from", "to", "offsets"), list(rows))],
        )
    lake = Lake(run.spark, options["lake"], run.state.id)
    lake.recover()
    lake.claim(end.offsets, str(run.state.path))
    archiving = _Archiving(run, lake)
    run.progress.begin("archiving", None if options["follow"] else sum(each.size for each in ahead))
    archiving.stream()
    if not run.stopping.is_asked:
        archiving.compact()
    return _summary(run, lake, archiving)


def _extent(run: Run) -> tuple[Position, Position]:
    """Where it goes on, and how far there is something now."""
    options = run.options
    subscription = Subscription(options["topics"] or (), options["pattern"])
    with asking.connect(Address(options["address"])) as client:
        extents = asking.survey(client, subscription, "read_committed")
    if not extents.ids:
        raise InvalidRequest(f"no topic matches {options['pattern']}")
    return committed_position(run.state.checkpoint) or extents.start, extents.end


class _Archiving:
    """The stream, and what becomes of its batches."""

    def __init__(self, run: Run, lake: Lake) -> None:
        self._run = run
        self._lake = lake
        self._failure: BaseException | None = None
        self._batches = 0
        self.messages = self.files = self.compacted = 0
        self.directories: set[str] = set()
        """Those it has put something into."""

    def stream(self) -> None:
        """Until everything is in, or somebody asks for the end."""
        run, options = self._run, self._run.options
        source = run.spark.readStream.format("goqueue").option("includeHeaders", "true")
        source = source.option("bootstrap.servers", options["address"]).option("maxOffsetsPerTrigger", options["batch"])
        source = source.option("failOnDataLoss", str(options["lost"] == "fail").lower())
        if options["topics"] is not None:
            source = source.option("subscribe", ",".join(options["topics"]))
        else:
            source = source.option("subscribePattern", options["pattern"])
        writer = source.load().writeStream.foreachBatch(self._take)
        writer = writer.option("checkpointLocation", run.state.checkpoint.as_uri())
        writer = (
            writer.trigger(processingTime=options["every"]) if options["follow"] else writer.trigger(availableNow=True)
        )
        query = writer.start()
        run.stopping.instead(query.stop)
        try:
            self._watch(query)
        finally:
            query.stop()
            run.stopping.instead(lambda: None)

    def _watch(self, query: StreamingQuery) -> None:
        done = 0
        try:
            while not query.awaitTermination(_GLANCE_S):
                self._run.progress.advance(self.messages - done)
                done = self.messages
        except Exception:
            if self._failure is not None:
                raise self._failure from None  # as it was, before Spark told it in words of its own
            raise
        self._run.progress.advance(self.messages - done)

    def _take(self, frame: DataFrame, number: int) -> None:
        """A batch. In a thread of its own."""
        try:
            found = self._lake.publish(number, frame)
            self.messages += found.rows
            self.files += found.files
            self.directories |= found.directories
            self._batches += 1
            self._run.tally("messages", found.rows)
            self._run.tally("batches")
            if self._batches % _COMPACT_EVERY == 0:
                self.compact()
        except BaseException as error:
            self._failure = error
            raise

    def compact(self) -> None:
        options = self._run.options
        fewer = self._lake.compact(self.directories, small_bytes=options["small"], least=options["compact"])
        self.compacted += fewer
        self._run.tally("files_compacted", fewer)


# ---------------------------------------------------------------- what is told at the end


def _summary(run: Run, lake: Lake, archiving: _Archiving) -> Summary:
    figures: dict[str, str | int | float] = {
        "messages": archiving.messages,
        "files written": archiving.files,
        "files compacted away": archiving.compacted,
        "lake": lake.files.root,
    }
    if not archiving.directories:
        return Summary(figures=figures)
    hours = _hours(run, lake, archiving.directories)
    by_topic: dict[str, tuple[int, int]] = {}
    for topic, _, messages, size in hours:
        before = by_topic.get(topic, (0, 0))
        by_topic[topic] = (before[0] + messages, before[1] + size)
    table = Table(
        "in the lake, of the days that were added to",
        ("topic", "messages", "bytes"),
        [(topic, *both) for topic, both in sorted(by_topic.items())],
    )
    report = run.state.path / REPORT
    days = sorted({directory.rpartition("=")[2] for directory in archiving.directories})
    what = f"{', '.join(by_topic)}; {days[0]}" + (f" to {days[-1]}" if len(days) > 1 else "")
    report.write_text(page("Archived", what, figures, [table], {"Messages and bytes an hour": _plot(hours)}))
    return Summary(figures=figures, tables=[table], report=str(report))


def _hours(run: Run, lake: Lake, directories: set[str]) -> list[tuple[str, Any, int, int]]:
    """Topic, hour, messages and bytes, of the days in these directories."""
    paths = [each.path for directory in sorted(directories) for each in lake.files.list(directory)]
    size = f.coalesce(f.octet_length("key"), f.lit(0)) + f.coalesce(f.octet_length("value"), f.lit(0))
    hour = f.date_trunc("hour", "timestamp").alias("hour")
    found = lakes.load(run.spark, lake.files, paths).groupBy("topic", hour)
    rows = found.agg(f.count("*").alias("messages"), f.sum(size).alias("bytes")).orderBy("hour").collect()
    return [(row["topic"], row["hour"], row["messages"], row["bytes"]) for row in rows]


def _plot(hours: list[tuple[str, Any, int, int]]) -> bytes:
    """Two rows of bars, stacked by topic; small topics are one."""
    from datetime import timedelta

    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    totals: dict[str, int] = {}
    for topic, _, messages, _ in hours:
        totals[topic] = totals.get(topic, 0) + messages
    large = sorted(totals, key=lambda topic: -totals[topic])[:_PLOTTED_TOPICS]
    names = [*large, *(["others"] if len(totals) > len(large) else [])]
    first, last = min(row[1] for row in hours), max(row[1] for row in hours)
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots(2, 1, sharex=True)
    for axis, at, label, unit in ((axes[0], 2, "messages", ""), (axes[1], 3, "bytes", "B")):
        below: dict[Any, int] = {}
        for name in names:
            heights: dict[Any, int] = {}
            for row in hours:
                if (row[0] if row[0] in large else "others") == name:
                    heights[row[1]] = heights.get(row[1], 0) + row[at]
            bottoms = [below.get(hour, 0) for hour in heights]
            axis.bar(list(heights), list(heights.values()), width=1 / 26, bottom=bottoms, label=name, align="edge")
            for hour, height in heights.items():
                below[hour] = below.get(hour, 0) + height
        axis.set_ylabel(label)
        axis.yaxis.set_major_formatter(EngFormatter(unit=unit))
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", alpha=0.3)
        axis.set_axisbelow(True)
    axes[0].legend(loc="upper left", frameon=False, ncols=3)
    axes[1].set_xlim(first - timedelta(hours=1), last + timedelta(hours=2))
    locator = AutoDateLocator()
    axes[1].xaxis.set_major_locator(locator)
    axes[1].xaxis.set_major_formatter(ConciseDateFormatter(locator))
    axes[1].set_xlabel("hour of append, UTC")
    return png(figure)


def _check(options: dict[str, Any]) -> list[str]:
    if (options["topics"] is None) == (options["pattern"] is None):
        return ["what is archived is said by topics or by pattern, one of the two"]
    return []


def _path(value: str) -> str:
    """Absolute, or with a scheme of Hadoop's."""
    found = values.text(value)
    return found if ":" in found else str(Path(found).resolve())


PIPELINE: Final = Pipeline(
    "archive",
    "Topics to a lake: Parquet by topic and date, every message once.",
    (
        ADDRESS,
        Option("topics", values.topics, "Topics to archive, with commas between them."),
        Option("pattern", values.pattern, "Those whose names match, also ones created later."),
        Option("lake", _path, "Where the files go: any path Spark can write.", required=True),
        Option("follow", values.yes_or_no, "Go on with what comes, until it is stopped.", default="false", steers=True),
        Option("every", values.text, "How often, while it follows.", default="10 seconds", steers=True),
        Option("batch", values.whole, "At most so many messages at once.", default="500000", steers=True),
        Option("small", values.size, "Files below this are small.", default="32m", steers=True),
        Option("compact", values.whole, "So many small files of a day become one.", default="8", steers=True),
        Option(
            "lost", values.one_of("fail", "skip"), "Messages that are gone: fail or skip.", default="fail", steers=True
        ),
    ),
    run,
    _check,
)
