"""Every `sh` block of docs/pipelines.md, typed in order: with Spark, which all of them share here.

The `bash` blocks run with those of all documents; a pipeline that had to start Spark there would take too long.
"""

import shlex
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from goqueue.spark.pipelines.table import PIPELINES
from tests.docs.markdown import ROOT, blocks
from tests.spark.pipelines.stage import staged
from tests.unit.cli.remote.terminal import Terminal

PAGE = (ROOT / "docs" / "pipelines.md").read_text(encoding="utf-8")


def commands() -> list[list[str]]:
    typed = "\n".join(block.text for block in blocks(PAGE) if block.language == "sh").replace("\\\n", " ")
    return [shlex.split(line) for line in typed.splitlines() if line]


def test_every_command_of_the_page_runs(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with staged(spark, tmp_path) as stage:
        stage.client.create_topic("orders", partitions=3)
        with stage.client.producer() as producer:
            for number in range(1, 61):
                value, key = f'{{"number": {number}}}', f"customer-{number % 7}"
                producer.enqueue("orders", value, key=key, headers={"source": "docs"})
        terminal = Terminal(stage.address, tmp_path / "cli.yaml")
        ran = []
        for program, *words in commands():
            assert program == "goqueue-cli"
            terminal.good(*words)
            ran += words[2:3] if words[:2] == ["pipeline", "run"] else []
        assert sorted(ran) == sorted(PIPELINES)
        assert len(stage.read("orders-again")) == 20
        assert len(stage.read("orders-8")) == len(stage.read("orders")) > 60
        report = (tmp_path / "archive-state" / "report.html").read_text()
        assert "data:image/png;base64," in report
