"""`audit` over planted data directories: a clean log has no findings, whatever is done to one is found and named."""

import shutil
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f

from goqueue.model.errors import InvalidRequest
from goqueue.model.names import format_topic_id
from goqueue.model.record import Producer, Record
from goqueue.spark.log_damage import DAMAGED, DISPLACED, DUPLICATED, MISSING
from goqueue.spark.log_directory import DataDirectory
from goqueue.spark.pipelines import audit
from goqueue.spark.pipelines.findings import (
    ABSENT,
    DIFFERENT,
    DUPLICATE,
    EXTRA,
    OUT_OF_ORDER,
    REORDERED,
    REPEATED,
)
from goqueue.spark.pipelines.frame import Summary
from goqueue.spark.pipelines.lake import Lake
from goqueue.spark.pipelines.running import run_pipeline
from tests.support.planted_directory import HOUR_MS, T0, PlantedDirectory, copied, messages, segment_files
from tests.unit.storage.logs import flip, positions

ORDERS, EVENTS = 1500, 300


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two topics over some hours, with a producer's count in them, and transactions; nothing is wrong with them."""
    data = tmp_path_factory.mktemp("audit") / "data"
    with PlantedDirectory(data) as made:
        made.topic("orders", 2)
        made.topic("events")
        for hour in range(3):
            for partition in (0, 1):
                numbers = range(hour * 250, hour * 250 + 250)
                producer = Producer(7, 0, hour * 250)
                at = T0 + hour * HOUR_MS
                made.append("orders", messages(numbers), partition=partition, now=at, producer=producer)
            made.append("events", messages(range(100)), now=T0 + hour * HOUR_MS)
        for commits in (True, False):
            number = made.begin(9)
            made.append("events", messages(range(10), transaction=number), now=T0 + 2 * HOUR_MS)
            made.decide(number, commits=commits)
            made.mark(number, "events")
    return data


@pytest.fixture
def data(planted: Path, tmp_path: Path) -> Path:
    """One to break."""
    return copied(planted, tmp_path / "data")


Audit = Callable[..., Summary]


@pytest.fixture
def audited(spark: SparkSession, tmp_path: Path) -> Audit:
    runs = 0

    def run(path: Path, *, dry: bool = False, **options: object) -> Summary:
        nonlocal runs
        runs += 1
        given = {"path": str(path), **{name: str(value) for name, value in options.items()}}
        state = tmp_path / f"state-{runs}"
        summary = run_pipeline(audit.PIPELINE, given, is_dry=dry, state=state, spark=spark).summary
        assert summary is not None
        return summary

    return run


def wrong(summary: Summary) -> list[tuple[Any, ...]]:
    """Topic, partition, kind, first and last offset of each finding that is shown."""
    tables = [table for table in summary.tables if table.title.startswith("what is wrong")]
    return [row[:5] for table in tables for row in table.rows]


def named(summary: Summary, kind: str) -> tuple[Any, Any]:
    """File and byte of the only finding of a kind."""
    (row,) = [row for table in summary.tables[1:] for row in table.rows if row[2] == kind]
    return row[6], row[7]


@pytest.mark.long
def test_a_clean_log_has_no_findings_and_a_report_that_says_so(planted: Path, audited: Audit) -> None:
    summary = audited(planted, replica=planted)
    assert summary.is_well
    assert (summary.figures["messages"], summary.figures["findings"]) == (ORDERS + EVENTS + 10, 0)
    (partitions,) = summary.tables
    assert [(row[0], row[1], row[4], row[-1]) for row in partitions.rows] == [
        ("events", 0, EVENTS + 10, "well"),
        ("orders", 0, ORDERS // 2, "well"),
        ("orders", 1, ORDERS // 2, "well"),
    ]
    assert summary.report is not None
    text = Path(summary.report).read_text()
    assert "data:image/png;base64," in text
    assert "<td>orders" in text


def test_a_dry_run_says_what_would_be_verified(planted: Path, audited: Audit) -> None:
    summary = audited(planted, dry=True, topics="orders")
    assert [row[:4] for row in summary.tables[0].rows] == [("orders", 0, 0, 750), ("orders", 1, 0, 750)]


def test_flipped_removed_copied_and_missing_are_named_with_their_places(data: Path, audited: Audit) -> None:
    first, second, third, fourth = segment_files(data, "orders", 0)[:4]
    flipped = int(first.stem) + 5
    flipped_at, end = positions(first)[flipped]
    flip(first, end - 2)
    removed = int(second.stem) + 5
    removed_at, end = positions(second)[removed]
    content = second.read_bytes()
    second.write_bytes(content[:removed_at] + content[end:])
    doubled = int(third.stem) + 5
    doubled_at, end = positions(third)[doubled]
    last = max(positions(third))
    content = third.read_bytes()
    third.write_bytes(content[:end] + content[doubled_at:end] + content[end:])
    gone = positions(fourth)
    fourth.unlink()
    (partition,) = data.glob("logs/events/*/0")
    shutil.rmtree(partition)

    summary = audited(data)
    assert wrong(summary) == [
        ("events", 0, MISSING, 0, None),
        ("orders", 0, DAMAGED, flipped, flipped),
        ("orders", 0, MISSING, removed, removed),
        ("orders", 0, DISPLACED, removed + 1, removed + 1),
        ("orders", 0, DUPLICATED, doubled, doubled),
        ("orders", 0, DISPLACED, doubled + 1, doubled + 1),
        ("orders", 0, DISPLACED, last, last),
        ("orders", 0, MISSING, min(gone), max(gone)),
    ]
    assert named(summary, DAMAGED) == (str(first), flipped_at)
    assert named(summary, DUPLICATED) == (str(third), end)
    assert not summary.is_well
    assert summary.problems == ["damaged: 1", "displaced: 3", "duplicated: 1", "missing: 3"]
    assert summary.bad_rows == 8
    lines = [line for path in Path(str(summary.bad_rows_at)).glob("*.json") for line in path.read_text().splitlines()]
    assert len(lines) == 8
    verdicts = {(row[0], row[1]): row[-1] for row in summary.tables[0].rows}
    assert verdicts["orders", 0] == "1 damaged, 3 displaced, 1 duplicated, 2 missing"
    assert (verdicts["orders", 1], verdicts["events", 0]) == ("well", "1 missing")


def reasons(summary: Summary) -> set[Any]:
    return {row[5] for table in summary.tables[1:] for row in table.rows}


@pytest.mark.long
def test_what_only_one_of_two_replicas_has_is_named(tmp_path: Path, audited: Audit) -> None:
    def plant(name: str, topics: dict[str, int]) -> Path:
        with PlantedDirectory(tmp_path / name) as made:
            for topic, partitions in topics.items():
                made.topic(topic, partitions)
                for number in range(partitions):
                    made.append(topic, messages(range(10)), partition=number)
        return tmp_path / name

    first = plant("first", {"both": 2, "more": 1, "ours": 1})
    second = plant("second", {"both": 1, "more": 2, "theirs": 1})
    summary = audited(first, replica=second)
    assert wrong(summary) == [
        ("both", 1, ABSENT, 0, 9),
        ("more", 1, EXTRA, 0, 9),
        ("ours", 0, ABSENT, 0, 9),
        ("theirs", 0, EXTRA, 0, 9),
    ]
    assert reasons(summary) == {
        "the other copy has no such partition",
        "the other copy has no such topic",
        "the log has no such partition, the other copy has",
        "the log has no such topic, the other copy has",
    }
    assert {row[-1] for row in summary.tables[1].rows} == {str(second)}
    assert "the other copy has no such topic" in Path(summary.report or "").read_text()

    summary = audited(first, topics="ours", replica=second)
    assert wrong(summary) == [("ours", 0, ABSENT, 0, 9)]

    (gone,) = second.glob("logs/both/*/0")
    shutil.rmtree(gone)
    summary = audited(first, topics="both", replica=second)
    assert reasons(summary) == {f"there is no log in {gone}", "the other copy has no such partition"}


@pytest.mark.long
def test_a_copy_of_another_topic_of_the_same_name_is_no_copy(
    spark: SparkSession, tmp_path: Path, audited: Audit
) -> None:
    """Topic delete x audit."""
    for name, topics in (("first", ["orders"]), ("second", ["other", "orders"])):
        with PlantedDirectory(tmp_path / name) as made:
            for topic in topics:  # ids are given out one after the other
                made.topic(topic)
            made.append("orders", messages(range(10)))
    lake = lake_of(spark, tmp_path / "second", tmp_path / "lake", lambda frame: frame)
    summary = audited(tmp_path / "first", replica=tmp_path / "second", lake=lake, topics="orders")
    assert wrong(summary) == [("orders", 0, DIFFERENT, 0, 9)] * 2
    (reason,) = reasons(summary)
    assert reason.startswith("another topic of that name:")


def lake_of(spark: SparkSession, data: Path, root: Path, change: Callable[[DataFrame], DataFrame]) -> Path:
    frame = spark.read.format("goqueue-log").option("includeHeaders", "true").load(str(data))
    ids = {topic: format_topic_id(found.topic_id) for topic, found in DataDirectory(str(data)).topics.items()}
    Lake(spark, str(root), "test").publish(0, change(frame), ids)
    return root


class Compared(NamedTuple):
    """One audit of a log with a damaged record, beside a replica without, and a lake that has other rows."""

    summary: Summary
    damaged: int
    """Its offset, in the second partition of orders."""
    replica: str
    lake: str

    def beside(self, copy: str) -> list[tuple[Any, ...]]:
        """Topic, partition, kind, first and last offset of what was found with that copy."""
        return [row[:5] for row in self.summary.tables[1].rows if row[-1] == copy]


@pytest.fixture(scope="module")
def compared(spark: SparkSession, planted: Path, tmp_path_factory: pytest.TempPathFactory) -> Compared:
    folder = tmp_path_factory.mktemp("compared")
    data = copied(planted, folder / "data")
    path = segment_files(data, "orders", 1)[1]
    damaged = int(path.stem) + 9
    flip(path, positions(path)[damaged][1] - 2)

    def change(frame: DataFrame) -> DataFrame:
        row = "topic = 'orders' and partition = 0 and offset"
        kept = frame.where(f"not ({row} in (11, 12)) and not (topic = 'orders' and partition = 1 and offset >= 700)")
        value = f.when(f.expr(f"{row} = 20"), f.lit(b"other")).otherwise(f.col("value"))
        doubled = frame.where(f"{row} = 30")
        added = frame.where("topic = 'events' and offset = 0").withColumn("offset", f.lit(5000).cast("bigint"))
        return kept.withColumn("value", value).unionByName(doubled).unionByName(added)

    lake = lake_of(spark, planted, folder / "lake", change)
    given = {"path": str(data), "replica": str(planted), "lake": str(lake)}
    summary = run_pipeline(audit.PIPELINE, given, state=folder / "state", spark=spark).summary
    assert summary is not None
    return Compared(summary, damaged, str(planted), str(lake))


@pytest.mark.long
def test_replicas_differ_where_they_do(compared: Compared) -> None:
    damaged = compared.damaged
    assert ("orders", 1, DAMAGED, damaged, damaged) in wrong(compared.summary)
    assert compared.beside(compared.replica) == [("orders", 1, EXTRA, damaged, damaged)]


@pytest.mark.long
def test_a_lake_is_compared_row_by_row(compared: Compared) -> None:
    damaged = compared.damaged
    assert compared.beside(compared.lake) == [
        ("events", 0, EXTRA, 5000, 5000),
        ("orders", 0, ABSENT, 11, 12),
        ("orders", 0, DIFFERENT, 20, 20),
        ("orders", 0, DUPLICATE, 30, 30),
        ("orders", 1, EXTRA, damaged, damaged),
        ("orders", 1, ABSENT, 700, 749),
    ]


@pytest.mark.long
def test_a_lake_may_be_behind(spark: SparkSession, planted: Path, audited: Audit, tmp_path: Path) -> None:
    lake = lake_of(spark, planted, tmp_path / "lake", lambda frame: frame.where("topic = 'events' or offset < 700"))
    assert audited(planted, lake=lake, behind="true").is_well


@pytest.fixture(scope="module")
def judged(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Summary:
    """One audit of topics with copies, and of one with a producer's count, that says different things of each."""
    folder = tmp_path_factory.mktemp("judged")
    rows = messages(range(300))
    by_key: dict[bytes | None, list[Record]] = {}
    for row in rows:
        by_key.setdefault(row.key, []).append(row)
    with PlantedDirectory(folder / "data") as made:
        for name in ("orders", "good", "bad"):
            made.topic(name, 3)
        made.append("orders", rows, partition=1)
        for at, keyed in enumerate(by_key.values()):
            made.append("good", keyed, partition=at % 3)
            changed = list(keyed)
            if at == 0:
                del changed[4]  # number 28
            if at == 1:
                changed[5], changed[6] = changed[6], changed[5]  # numbers 36 and 43
            if at == 2:
                changed.insert(8, changed[3])
            made.append("bad", changed, partition=at % 3, now=T0 + at)
        made.topic("counted")
        for sequence in (0, 1, 2, 1, 3, 5, 4):
            made.append("counted", messages([sequence]), producer=Producer(7, 0, sequence))
        made.append("counted", messages([0]), producer=Producer(7, 1, 0))  # an epoch begins anew
    given = {"path": str(folder / "data"), "topics": "orders,counted", "copies": "orders=good,orders=bad"}
    summary = run_pipeline(audit.PIPELINE, given, state=folder / "state", spark=spark).summary
    assert summary is not None
    return summary


def test_a_copy_of_a_topic_has_the_same_messages_in_the_order_of_each_key(judged: Summary) -> None:
    found = [row for row in judged.tables[1].rows if row[0] != "counted"]
    assert {row[-1] for row in found} == {"topic bad"}
    assert [row[:5] for row in found if row[2] != DUPLICATE] == [
        ("orders", 1, ABSENT, 28, 28),
        ("orders", 1, REORDERED, 43, 43),
    ]
    (doubled,) = [row for row in found if row[2] == DUPLICATE]
    assert doubled[:3] == ("bad", 2, DUPLICATE)


def test_a_producers_count_tells_what_is_there_twice_and_what_is_out_of_order(judged: Summary) -> None:
    assert [row for row in wrong(judged) if row[0] == "counted"] == [
        ("counted", 0, REPEATED, 3, 3),
        ("counted", 0, OUT_OF_ORDER, 6, 6),
    ]


def test_what_cannot_be_audited_is_refused(tmp_path: Path, planted: Path, audited: Audit) -> None:
    with pytest.raises(InvalidRequest, match="is no data directory"):
        audited(tmp_path)
    with pytest.raises(InvalidRequest, match="has none of these topics"):
        audited(planted, pattern="none-.*")


def test_damage_is_marked_in_the_hour_it_was_appended_in() -> None:
    start = datetime(2026, 1, 1, 10)
    hours = [audit.PartitionHour("orders", 0, start + timedelta(hours=n), 100, 1000, 100 * n + 99) for n in range(3)]
    finding = Row(topic="orders", partition=0, first_offset=150)
    assert audit._hour_of(finding, hours) == start + timedelta(hours=1)
