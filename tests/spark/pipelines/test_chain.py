"""The pipelines one after the other: what was archived and replayed is what was published, says the audit."""

from pathlib import Path

from pyspark.sql import SparkSession

from goqueue.spark.pipelines.running import run_pipeline
from goqueue.spark.pipelines.table import PIPELINES
from tests.spark.pipelines.stage import LANES, staged

COUNT = 240


def test_a_topic_archived_and_replayed_from_the_lake_is_the_same_by_audit(spark: SparkSession, tmp_path: Path) -> None:
    """Key, value, headers and lane, and the order of each key, over another number of partitions."""
    with staged(spark, tmp_path) as stage:
        stage.publish("orders", COUNT, partitions=3)
        stage.client.create_topic("again", partitions=5)
        lake = tmp_path / "lake"
        assert stage.run("archive", state="archive", topics="orders", lake=lake).figures["messages"] == COUNT
        would = stage.run("replay", state="replay", dry=True, topic="orders", lake=lake, into="again")
        assert would.tables[1].rows == [("would be written", COUNT)]
        assert stage.read("again") == []
        replayed = stage.run("replay", state="replay", topic="orders", lake=lake, into="again", chunk=150)
        assert replayed.figures["messages written"] == COUNT
        published = stage.by_key("orders")
        assert stage.by_key("again") == published
        assert {each.lane for found in published.values() for each in found} == {*LANES}

        given = {"path": str(tmp_path / "data"), "topics": "orders", "lake": str(lake), "copies": "orders=again"}
        audited = run_pipeline(PIPELINES["audit"], given, state=tmp_path / "audit", spark=spark).summary
    assert audited is not None
    assert audited.is_well
    assert (audited.figures["messages"], audited.figures["findings"]) == (COUNT, 0)
    assert [row[-1] for row in audited.tables[0].rows] == ["well"] * 3
    assert audited.report is not None
    assert "data:image/png;base64," in Path(audited.report).read_text()
