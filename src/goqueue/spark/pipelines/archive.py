"""`archive`: topics to a lake, as Parquet by topic and date; once, or for as long as it runs; every message once.

A streaming query reads; `pipelines.lake` takes each of its batches in, once. Small files are made into large ones on
the way. Everything a topic can hold has a column, so there are no bad rows.
"""

from typing import Any, Final

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from goqueue.model.errors import InvalidRequest
from goqueue.spark import asking, values
from goqueue.spark.asking import Extents
from goqueue.spark.options import Address, Subscription
from goqueue.spark.pipelines.checkpoint import committed_position, planned_position
from goqueue.spark.pipelines.frame import ADDRESS, LOST, Option, Pipeline, Run, Summary, Table
from goqueue.spark.pipelines.hours import hours_of, plot
from goqueue.spark.pipelines.lake import Lake
from goqueue.spark.pipelines.report import page
from goqueue.spark.pipelines.state import for_spark
from goqueue.spark.places import stretches

_COMPACT_EVERY: Final = 16
"""Batches, while it follows."""
_GLANCE_S: Final = 1


def run(run: Run) -> Summary:
    options = run.options
    extents = _survey(run)
    end = extents.end
    ahead = stretches(committed_position(run.state.checkpoint) or extents.start, end)
    if run.is_dry:
        rows = [(each.topic, each.partition, each.start, each.end, each.size) for each in ahead]
        return Summary(
            figures={"messages at most": sum(each.size for each in ahead), "lake": options["lake"]},
            tables=[Table("would be archived", ("topic", "partition", "from", "to", "offsets"), list(rows))],
        )
    lake = Lake(run.spark, options["lake"], run.state.id, str(run.state.path))
    lake.recover()
    lake.claim(end.ids)
    archiving = _Archiving(run, lake)
    run.progress.begin("archiving", None if options["follow"] else sum(each.size for each in ahead))
    archiving.stream()
    if not run.stopping.is_asked:
        archiving.compact()
    summary = _summary(run, lake, archiving)
    if not extents.undecided:
        return summary
    table = Table("not archived yet", ("where",), [(each,) for each in extents.undecided.values()])
    return msgspec.structs.replace(summary, tables=[*summary.tables, table])


def _survey(run: Run) -> Extents:
    """What there is now."""
    options = run.options
    subscription = Subscription(options["topics"] or (), options["pattern"])
    with asking.connect(Address(options["address"])) as client:
        extents = asking.survey(client, subscription, "read_committed", missing=options["lost"] == "skip")
    if not extents.ids:
        raise InvalidRequest(f"there is no topic {options['pattern'] or ', '.join(options['topics'])}")
    return extents


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
        writer = writer.option("checkpointLocation", for_spark(run.state.checkpoint))
        every = f"{options['every']} seconds"
        writer = writer.trigger(processingTime=every) if options["follow"] else writer.trigger(availableNow=True)
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
            while not query.awaitTermination(_GLANCE_S):  # raises what ended it
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
            ids = planned_position(self._run.state.checkpoint, number).ids
            found = self._lake.publish(number, frame, ids)
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
    hours = hours_of(run.spark, lake, archiving.directories)
    by_topic: dict[str, tuple[int, int]] = {}
    for hour in hours:
        before = by_topic.get(hour.topic, (0, 0))
        by_topic[hour.topic] = (before[0] + hour.messages, before[1] + hour.bytes)
    table = Table(
        "in the lake, of the days that were added to",
        ("topic", "messages", "bytes"),
        [(topic, *both) for topic, both in sorted(by_topic.items())],
    )
    report = run.state.report
    days = sorted({directory.rpartition("=")[2] for directory in archiving.directories})
    what = f"{', '.join(by_topic)}; {days[0]}" + (f" to {days[-1]}" if len(days) > 1 else "")
    report.write_text(page("Archived", what, figures, [table], {"Messages and bytes an hour": plot(hours)}))
    return Summary(figures=figures, tables=[table], report=str(report))


def _check(options: dict[str, Any]) -> list[str]:
    if (options["topics"] is None) == (options["pattern"] is None):
        return ["what is archived is said by topics or by pattern, one of the two"]
    return []


PIPELINE: Final = Pipeline(
    "archive",
    "Topics to a lake: Parquet by topic and date, every message once.",
    (
        ADDRESS,
        Option("topics", values.topics, "Topics to archive, with commas between them."),
        Option("pattern", values.pattern, "Those whose names match, also ones created later."),
        Option("lake", values.path, "Where the files go: any path Spark can write.", required=True),
        Option("follow", values.yes_or_no, "Go on with what comes, until it is stopped.", default="false", steers=True),
        Option("every", values.seconds, "How often, while it follows.", default="10s", steers=True),
        Option("batch", values.whole, "At most so many messages at once.", default="500000", steers=True),
        Option("small", values.size, "Files below this are small.", default="32m", steers=True),
        Option("compact", values.whole, "So many small files of a day become one.", default="8", steers=True),
        LOST,
    ),
    run,
    _check,
)
