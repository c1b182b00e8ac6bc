"""A lake takes each batch in once and makes few files of many, whenever it is cut short."""

import shutil
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from goqueue.model.errors import Conflict, NotFound, Unavailable
from goqueue.spark.pipelines import lake as lakes
from goqueue.spark.pipelines.lake import Lake
from tests.spark.pipelines.stage import counts, once_at

IDS = {"orders": "0a"}


class Crash(BaseException):
    """In place of kill -9: what comes after it does not happen."""


def crash_at(monkeypatch: pytest.MonkeyPatch, wanted: str) -> None:
    def failpoint(name: str) -> None:
        if name == wanted:
            raise Crash(name)

    monkeypatch.setattr(lakes, "failpoint", failpoint)


def batch(spark: SparkSession, number: int) -> DataFrame:
    """Ten messages, in two partitions, on two days."""
    return spark.range(10).selectExpr(
        "'orders' topic", "int(id % 2) partition", f"{number} * 5 + id div 2 offset",
        "timestamp_seconds(1700000000 + id * 10000) timestamp", "binary(string(id)) key", "binary('v') value",
    )  # fmt: skip


def files(root: Path) -> int:
    return len([*root.glob("topic=*/*/*.parquet")])


@pytest.mark.parametrize("point", ["archive-staged", "lake-decided", "lake-moved"])
def test_a_batch_that_is_cut_short_is_in_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    Lake(spark, str(tmp_path), "a").publish(0, batch(spark, 0), IDS)
    with monkeypatch.context() as patched:
        crash_at(patched, point)
        with pytest.raises(Crash):
            Lake(spark, str(tmp_path), "a").publish(1, batch(spark, 1), IDS)
    lake = Lake(spark, str(tmp_path), "a")
    lake.recover()
    assert lake.batch == (0 if point == "archive-staged" else 1)
    lake.publish(1, batch(spark, 1), IDS)
    assert counts(tmp_path) == (20, 20)
    assert not [*(tmp_path / "_goqueue" / "staging").glob("**/*.parquet")]


def test_what_is_moved_away_hides_nothing_of_other_topics(spark: SparkSession, tmp_path: Path) -> None:
    both = batch(spark, 0).union(batch(spark, 0).selectExpr("'others' topic", "* except (topic)"))
    Lake(spark, str(tmp_path), "a").publish(0, both, {**IDS, "others": "0b"})
    shutil.rmtree(tmp_path / "topic=orders")
    assert lakes.read(spark, str(tmp_path), ["others"]).count() == 10


@pytest.fixture(scope="module")
def two_batches(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, set[str]]:
    """A lake that is only copied, and the days that are in it."""
    root = tmp_path_factory.mktemp("two")
    lake = Lake(spark, str(root), "a")
    return root, {day for number in (0, 1) for day in lake.publish(number, batch(spark, number), IDS).directories}


@pytest.fixture
def days(two_batches: tuple[Path, set[str]], tmp_path: Path) -> set[str]:
    """Of a lake with two batches, in the test's own directory."""
    shutil.copytree(two_batches[0], tmp_path, dirs_exist_ok=True)
    return two_batches[1]


@pytest.mark.parametrize("point", ["compact-staged", "lake-decided", "lake-moved", "lake-deleted"])
def test_small_files_become_one_also_when_that_is_cut_short(
    spark: SparkSession, tmp_path: Path, days: set[str], monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    lake = Lake(spark, str(tmp_path), "a")
    before = files(tmp_path)
    assert len(days) == 2
    assert before > 2
    with monkeypatch.context() as patched:
        crash_at(patched, point)
        with pytest.raises(Crash):
            lake.compact(days, small_bytes=1 << 20, least=2)
    assert lakes.read(spark, str(tmp_path), ["orders"]).count() == 20  # each once, also while it is half done
    lake = Lake(spark, str(tmp_path), "a")
    lake.recover()
    assert lake.batch == 1
    lake.compact(days, small_bytes=1 << 20, least=2)
    assert counts(tmp_path) == (20, 20)
    assert files(tmp_path) == 2
    assert lake.compact(days, small_bytes=1, least=1) == 0


def test_a_topic_is_written_by_one_archive(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="nothing of orders"):
        lakes.read(spark, str(tmp_path), ["orders"])
    Lake(spark, str(tmp_path), "a", "/state/a").publish(0, batch(spark, 0), IDS)
    Lake(spark, str(tmp_path), "a", "/state/a").claim(IDS)
    other = Lake(spark, str(tmp_path), "b", "/state/b")
    with pytest.raises(Conflict, match=r"orders is archived in .* already, by the run whose state is /state/a on"):
        other.publish(0, batch(spark, 0), IDS)
    assert counts(tmp_path) == (10, 10)


def test_of_two_archives_that_start_together_one_has_the_topic(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Lake(spark, str(tmp_path), "a", "/state/a"), Lake(spark, str(tmp_path), "b", "/state/b")
    once_at(monkeypatch, "lake-unclaimed", lambda: second.claim(IDS))
    with pytest.raises(Conflict, match="by the run whose state is /state/b on"):
        first.claim(IDS)
    second.claim(IDS)
    assert [path.name for path in (tmp_path / "_goqueue" / "owners").iterdir()] == ["orders"]


def test_nothing_of_another_topic_of_the_same_name_is_taken_in(spark: SparkSession, tmp_path: Path) -> None:
    Lake(spark, str(tmp_path), "a").publish(0, batch(spark, 0), IDS)
    with pytest.raises(Conflict, match=r"orders was deleted and created again .* choose another lake"):
        Lake(spark, str(tmp_path), "a").publish(1, batch(spark, 0), {"orders": "0b"})
    assert counts(tmp_path) == (10, 10)
    assert lakes.topic_ids(spark, str(tmp_path), ["orders", "events"]) == IDS


def test_a_reader_that_listed_files_before_a_compaction_lists_them_again(
    spark: SparkSession, tmp_path: Path, days: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(spark, str(tmp_path), "a")
    earlier = lakes.read(spark, str(tmp_path), ["orders"])
    once_at(monkeypatch, "lake-listed", lambda: lake.compact(days, small_bytes=1 << 20, least=2))
    found = lakes.read(spark, str(tmp_path), ["orders"])
    assert len(found.inputFiles()) == 2
    assert found.count() == 20
    with pytest.raises(Exception, match="FILE_NOT_EXIST"):  # never less, as if it were all
        earlier.count()


def test_a_reader_sees_all_of_a_batch_that_comes_meanwhile_or_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(spark, str(tmp_path), "a")
    lake.publish(0, batch(spark, 0), IDS)

    def come_half_way() -> None:
        crash_at(monkeypatch, "lake-moved")
        with pytest.raises(Crash):
            lake.publish(1, batch(spark, 1), IDS)
        monkeypatch.undo()

    once_at(monkeypatch, "lake-listed", come_half_way)
    assert lakes.read(spark, str(tmp_path), ["orders"]).count() == 10
    once_at(monkeypatch, "lake-listed", lake.recover)
    assert lakes.read(spark, str(tmp_path), ["orders"]).count() == 20


def test_a_lake_that_never_stands_still_is_said_to_be_busy(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(spark, str(tmp_path), "a")
    lake.publish(0, batch(spark, 0), IDS)
    monkeypatch.setattr(lakes, "_TRIES", 2)
    numbers = iter(range(1, 10))

    def failpoint(name: str) -> None:
        if name == "lake-listed":
            lake.publish(next(numbers), batch(spark, 1), IDS)

    monkeypatch.setattr(lakes, "failpoint", failpoint)
    with pytest.raises(Unavailable, match="changes faster than it can be listed"):
        lakes.read(spark, str(tmp_path), ["orders"])
