"""`audit`: a whole log verified offline, and compared with another copy of it: a replica, a lake, or a topic.

Every checksum and every offset of the files is looked at, and what producers' counts say about duplicates and order.
What is wrong goes to a file, a line each, with topic, partition, offsets and where it applies the place in a file; the
summary has some of it. Nothing is changed, no broker is needed, and one may run beside it.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f

from goqueue.model.errors import InvalidRequest
from goqueue.model.names import check_topic_name
from goqueue.spark import values
from goqueue.spark.log_damage import MISSING, TORN
from goqueue.spark.options import Bound, LogOptions, Subscription
from goqueue.spark.pipelines import findings
from goqueue.spark.pipelines import lake as lakes
from goqueue.spark.pipelines.frame import Option, Pipeline, Run, Summary, Table
from goqueue.spark.pipelines.hours import Hour, plot
from goqueue.spark.pipelines.report import page
from goqueue.spark.pipelines.sides import Finding, Place, comparable, look, look_at_copy, namesakes, one_sided
from goqueue.spark.pipelines.sizes import content_bytes
from goqueue.spark.pipelines.state import for_spark
from goqueue.spark.pipelines.watching import watched

FINDINGS: Final = "findings"
_SAMPLE: Final = 50
"""So many findings are shown; all of them are in the file."""
_WELL: Final = "well"
_COUNTED: Final = "topic string, partition int, offset bigint, producer_id bigint, producer_epoch int, sequence int"
_SIZED: Final = "topic string, partition int, offset bigint, timestamp timestamp, key binary, value binary"
_BOUNDS: Final = "topic string, partition int, start bigint, end bigint, ours_cleaned bigint, theirs_cleaned bigint"


class PartitionHour(NamedTuple):
    topic: str
    partition: int
    hour: datetime
    messages: int
    bytes: int
    last: int
    """The highest offset."""


class Found(NamedTuple):
    counts: list[Row]
    """How many findings there are of each kind, by partition."""
    sample: list[Row]


def run(run: Run) -> Summary:
    audit = _Audit(run)
    return audit.plan() if run.is_dry else audit.summary(audit.find())


class _Audit:
    def __init__(self, run: Run) -> None:
        self._run = run
        self._path: str = run.options["path"]
        self._side = look(self._path, _options(run))
        self._logs, self._unreadable = self._side.logs, self._side.unreadable
        self._topics = sorted(self._side.ids)
        if not self._topics:
            raise InvalidRequest(f"{self._path} has none of these topics")

    @property
    def _spark(self) -> SparkSession:
        """A dry run does without."""
        return self._run.spark

    def plan(self) -> Summary:
        rows = [
            (topic, number, each.start, each.end, len(each.segments), sum(part.size for part in each.segments))
            for (topic, number), each in self._logs.items()
        ]
        columns = ("topic", "partition", "from", "to", "segments", "bytes")
        return Summary(
            figures={"offsets at most": sum(row[3] - row[2] for row in rows), "path": self._path},
            tables=[Table("would be verified", columns, list(rows))],
        )

    # ------------------------------------------------------------------ finding

    def find(self) -> Found:
        """Everything that is wrong, written down."""
        frame = findings.damage(self._read(self._path, content="damage"))
        own = self._read(self._path, _COUNTED, isolation="read_uncommitted")
        frame = frame.unionByName(findings.sequences(own)).unionByName(self._partitions_gone())
        for other in self._comparisons():
            frame = frame.unionByName(other)
        offsets = sum(each.end - each.start for each in self._logs.values())
        self._run.progress.begin("verifying", offsets)
        at = self._run.state.path / FINDINGS
        ordered = frame.repartition(1).sortWithinPartitions("topic", "partition", "first_offset", "kind")
        write = ordered.write.mode("overwrite")
        watched(self._spark, self._run.progress, offsets, lambda: write.json(for_spark(at)))
        found = self._spark.read.schema(findings.SCHEMA).json(for_spark(at))
        counts = found.groupBy("topic", "partition", "kind").agg(f.count("*").alias("findings")).collect()
        return Found(counts, found.orderBy("topic", "partition", "first_offset").limit(_SAMPLE).collect())

    def _partitions_gone(self) -> DataFrame:
        return self._found(
            (topic, number, MISSING, 0, 0, path, 0, reason, None)
            for (topic, number), (path, reason) in self._unreadable.items()
        )

    def _found(self, rows: Iterable[Finding]) -> DataFrame:
        return self._spark.createDataFrame([*rows], findings.SCHEMA)

    def _comparisons(self) -> Iterable[DataFrame]:
        options = self._run.options
        if options["replica"] is not None:
            yield from self._against_replica(options["replica"])
        if options["lake"] is not None:
            yield from self._against_lake(options["lake"])
        for topic, copy in options["copies"] or ():
            ours, theirs = self._messages(self._path, topic), self._messages(self._path, copy)
            yield findings.compare_topics(ours, theirs, against=f"topic {copy}")

    def _against_replica(self, path: str) -> Iterable[DataFrame]:
        theirs = look_at_copy(path, _options(self._run))
        yield self._found(one_sided(self._side, theirs, against=path))
        yield self._found(namesakes(self._side, theirs.ids, against=path))
        latest = min if self._run.options["behind"] else max
        bounds = {}
        for place in comparable(self._side, theirs.ids) & theirs.logs.keys():
            ours, other = self._logs[place], theirs.logs[place]
            end = latest(ours.stable, other.stable)
            bounds[place] = (max(ours.start, other.start), end, ours.cleaned, other.cleaned)
        if bounds:
            topics = sorted({topic for topic, _ in bounds})
            messages, others = self._messages(self._path, *topics), self._messages(path, *topics)
            yield findings.compare(messages, others, self._bounds(bounds), against=path)

    def _against_lake(self, path: str) -> Iterable[DataFrame]:
        ids = lakes.topic_ids(self._spark, path, self._topics)
        yield self._found(namesakes(self._side, ids, against=path))
        theirs = lakes.read(self._spark, path, self._topics)
        by_partition = theirs.groupBy("topic", "partition").agg((f.max("offset") + 1).alias("end")).collect()
        ends = {(row.topic, row.partition): row.end for row in by_partition}
        bounds = {}
        for place in comparable(self._side, ids):
            ours, end = self._logs[place], ends.get(place, 0)
            end = end if self._run.options["behind"] else max(end, ours.stable)
            bounds[place] = (ours.start, end, ours.cleaned, 0)
        yield findings.compare(self._messages(self._path), theirs, self._bounds(bounds), against=path)

    def _bounds(self, rows: Mapping[Place, tuple[int, int, int, int]]) -> DataFrame:
        return self._spark.createDataFrame([(*place, *each) for place, each in rows.items()], _BOUNDS)

    def _messages(self, path: str, *topics: str) -> DataFrame:
        return self._read(path, subscribe=",".join(topics or self._topics), includeHeaders="true")

    def _read(self, path: str, schema: str | None = None, **options: str) -> DataFrame:
        reader = self._spark.read.format("goqueue-log").option("failOnDataLoss", "false")
        if schema is not None:
            reader = reader.schema(schema)
        for name, value in {"subscribe": ",".join(self._topics), **options}.items():
            reader = reader.option(name, value)
        return reader.load(path)

    # ------------------------------------------------------------------ telling

    def hours(self) -> list[PartitionHour]:
        by_hour = self._read(self._path, _SIZED).groupBy("topic", "partition", f.date_trunc("hour", "timestamp"))
        rows = by_hour.agg(f.count("*"), f.sum(content_bytes()), f.max("offset")).collect()
        return sorted(PartitionHour(*row) for row in rows)

    def summary(self, found: Found) -> Summary:
        run, sample = self._run, found.sample
        run.progress.begin("counting")
        hours = self.hours()
        partitions = self._partitions(hours, found.counts)
        wrong = Table(
            "what is wrong" if len(sample) < _SAMPLE else f"what is wrong, the first {_SAMPLE}",
            ("topic", "partition", "kind", "from", "to", "reason", "file", "byte", "against"),
            [_told(row) for row in sample],
        )
        total = sum(row.findings for row in found.counts)
        kinds: dict[str, int] = {}
        for row in found.counts:
            kinds[row.kind] = kinds.get(row.kind, 0) + row.findings
        figures: dict[str, str | int | float] = {
            "messages": sum(each.messages for each in hours),
            "bytes": sum(each.bytes for each in hours),
            "partitions": len(self._logs) + len(self._unreadable),
            "findings": total,
            "path": self._path,
        }
        problems = [f"{kind}: {count}" for kind, count in sorted(kinds.items()) if kind != TORN]
        run.tally("messages", sum(each.messages for each in hours))
        run.tally("findings", total)
        report = run.state.report
        tables = [partitions, *([wrong] if sample else [])]
        marked = [hour for row in sample if (hour := _hour_of(row, hours)) is not None]
        plots = {"Messages and bytes an hour": plot(_by_topic(hours), marked, "something is wrong")} if hours else {}
        what = f"{', '.join(self._topics)} in {self._path}"
        report.write_text(page("Audit", what, figures, tables, plots, problems))
        return Summary(
            figures=figures,
            tables=tables,
            bad_rows=total,
            bad_rows_at=str(run.state.path / FINDINGS) if total else None,
            report=str(report),
            problems=problems,
        )

    def _partitions(self, hours: Sequence[PartitionHour], counts: Sequence[Row]) -> Table:
        rows: list[tuple[str | int | float | None, ...]] = []
        for topic, number in sorted([*self._logs, *self._unreadable]):
            log = self._logs.get((topic, number))
            bounds = (None, None) if log is None else (log.start, log.end)
            own = [each for each in hours if (each.topic, each.partition) == (topic, number)]
            kinds = {row.kind: row.findings for row in counts if (row.topic, row.partition) == (topic, number)}
            verdict = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or _WELL
            messages, size = sum(each.messages for each in own), sum(each.bytes for each in own)
            rows.append((topic, number, *bounds, messages, size, verdict))
        return Table("partitions", ("topic", "partition", "from", "to", "messages", "bytes", "verdict"), rows)


def _options(run: Run) -> LogOptions:
    options = run.options
    return LogOptions(
        path=options["path"],
        subscription=Subscription(options["topics"] or (), options["pattern"]),
        start=Bound(),
        end=Bound(),
        max_records=None,
        fail_on_data_loss=False,
        include_headers=True,
        isolation="read_committed",
        content="messages",
    )


def _told(row: Row) -> tuple[str | int | None, ...]:
    last = row.next_offset - 1 if row.next_offset > row.first_offset else None
    return (row.topic, row.partition, row.kind, row.first_offset, last, row.reason, row.file, row.position, row.against)


def _hour_of(row: Row, hours: Sequence[PartitionHour]) -> datetime | None:
    """When the offset was appended: in the first hour that has a higher one, or in the last there is."""
    own = [each for each in hours if (each.topic, each.partition) == (row.topic, row.partition)]
    later = [each.hour for each in own if each.last >= row.first_offset]
    return later[0] if later else (own[-1].hour if own else None)


def _by_topic(hours: Sequence[PartitionHour]) -> list[Hour]:
    found: dict[tuple[datetime, str], Hour] = {}
    for each in hours:
        before = found.get((each.hour, each.topic), Hour(each.topic, each.hour, 0, 0))
        found[each.hour, each.topic] = before._replace(
            messages=before.messages + each.messages, bytes=before.bytes + each.bytes
        )
    return [found[key] for key in sorted(found)]


def _directory(value: str) -> str:
    return str(Path(values.text(value)).resolve())


def _copies(value: str) -> list[tuple[str, str]]:
    found = []
    for each in values.text(value).split(","):
        topic, equals, copy = each.strip().partition("=")
        if not equals:
            raise ValueError("TOPIC=COPY, with commas between several")
        check_topic_name(topic)
        check_topic_name(copy)
        found.append((topic, copy))
    return found


def _check(options: dict[str, Any]) -> list[str]:
    if options["topics"] is not None and options["pattern"] is not None:
        return ["topics and pattern are two answers to one question; leave one out, or both for every topic"]
    return []


PIPELINE: Final = Pipeline(
    "audit",
    "Verify a log offline, every record of it; compare it with a replica, a lake, or a copy of a topic.",
    (
        Option("path", _directory, "The data directory of a broker, or a copy of it.", required=True),
        Option("topics", values.topics, "Topics to verify, with commas between them; every one if none is named."),
        Option("pattern", values.pattern, "Those whose names match."),
        Option("replica", _directory, "Another data directory that should have the same messages."),
        Option("lake", values.path, "What the archive pipeline has written of these topics."),
        Option("copies", _copies, "Topics that should have the messages of others, like orders=orders-2."),
        Option("behind", values.yes_or_no, "The other copy may lack what came last.", default="false"),
    ),
    run,
    _check,
)
