"""The programs of docs/spark.md, one after the other, with Spark, which all of them share here.

As a newcomer types them, with a Spark that they start, they run among the long ones.
"""

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.docs.markdown import ROOT, blocks
from tests.spark.pipelines.stage import staged

PAGE = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")


def test_every_program_of_the_page_runs(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They check by themselves how many rows there are."""
    programs = [block.text for block in blocks(PAGE) if block.language == "python"]
    assert len(programs) == 2
    with staged(spark, tmp_path) as stage:
        for topic in ("orders", "totals"):
            stage.client.create_topic(topic, partitions=4)
        with stage.client.producer() as producer:
            for number in range(1, 10):
                producer.enqueue("orders", f'{{"customer": "c{number % 3}", "amount": {number}}}', key="all")
        names: dict[str, object] = {}
        for program in programs:
            shared, stops = re.subn(r"(?m)^session\.stop\(\)$", "", program)
            assert stops == 1, "others need the session, too"
            here = shared.replace("127.0.0.1:9001", stage.address).replace('"data"', repr(str(tmp_path / "data")))
            exec(compile(here, "docs/spark.md", "exec"), names)
        assert names["session"] is spark
    assert '{"cents":800}' in capsys.readouterr().out
