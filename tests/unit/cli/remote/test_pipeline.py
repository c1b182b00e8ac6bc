"""`goqueue-cli pipeline` without Spark at work: what there is, what is refused, how runs went."""

import subprocess
import sys
from pathlib import Path

import pytest

from goqueue.spark.pipelines.frame import Run, Summary, Table
from goqueue.spark.pipelines.running import run_pipeline
from goqueue.spark.pipelines.state import home
from goqueue.spark.pipelines.table import PIPELINES
from tests.unit.cli.remote.terminal import NOBODY, Terminal

REPLAY = {"topic": "orders", "into": "again"}


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return Terminal(NOBODY, tmp_path / "cli.yaml")


def pretend(monkeypatch: pytest.MonkeyPatch, summary: Summary | Exception) -> list[Run]:
    """In place of what `replay` does."""
    runs: list[Run] = []

    def run(given: Run) -> Summary:
        runs.append(given)
        if isinstance(summary, Exception):
            raise summary
        return summary

    monkeypatch.setitem(PIPELINES, "replay", PIPELINES["replay"]._replace(run=run))
    return runs


def test_one_pipeline_is_listed_by_its_name(terminal: Terminal) -> None:
    (found,) = terminal.object("pipeline", "list", "audit")["pipelines"]
    assert found["name"] == "audit"
    assert "there is no pipeline 'audti'; did you mean audit?" in terminal.bad("pipeline", "list", "audti", code=2)


def test_every_pipeline_is_listed_with_its_options(terminal: Terminal) -> None:
    found = terminal.object("pipeline", "list")["pipelines"]
    assert [each["name"] for each in found] == list(PIPELINES)
    lake = found[0]["options"][3]
    assert (lake["name"], lake["default"], lake["required"]) == ("lake", None, True)
    page = terminal.good("pipeline", "list")
    assert "archive: Topics to a lake" in page
    assert "  lake     required" in page


def test_what_is_wrong_with_a_run_is_told_before_anything_begins(terminal: Terminal) -> None:
    assert "did you mean replay?" in terminal.bad("pipeline", "run", "repaly", code=2)
    assert "write OPTION=VALUE" in terminal.bad("pipeline", "run", "replay", "-s", "topic", code=2)
    told = terminal.bad("pipeline", "run", "replay", "--set", "topik=a", "--set", "rate=x", code=2)
    for part in ("did you mean topic?", "rate is 'x'", "topic is missing", "into is missing"):
        assert part in told
    assert not home().exists()


def test_a_run_is_summed_up_and_remembered(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table("by key", ("key", "count"), [("a", 1234), (None, 5)])
    runs = pretend(monkeypatch, Summary(figures={"rows": 1234}, tables=[table], bad_rows=2, bad_rows_at="/bad"))
    words = ("pipeline", "run", "replay", "-s", "topic=orders", "-s", "into=again")
    page = terminal.good(*words)
    assert "rows      1,234\nbad rows  2, in /bad\n\nby key\nkey  count\na    1,234\n-        5\n" in page
    assert runs[0].options["address"] == NOBODY
    reply = terminal.object(*words)
    assert reply["summary"]["figures"] == {"rows": 1234}

    (row,) = terminal.object("pipeline", "status")["runs"]
    assert (row["run"], row["state"], row["starts"]) == (reply["run"], "done", 2)
    assert terminal.rows("pipeline", "status")[1][:2] == [reply["run"], "done"]
    assert "for the 2. time" in terminal.good("pipeline", "status", reply["run"])
    assert "by key" in terminal.good("pipeline", "status", reply["state"])
    assert "no run 'nobody'" in terminal.bad("pipeline", "status", "nobody")


def test_a_run_that_is_not_well_or_fails_has_an_exit_code_that_says_so(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("pipeline", "run", "replay", "-s", "topic=orders", "-s", "into=again")
    pretend(monkeypatch, Summary(figures={"rows": 1}, problems=["one is missing"]))
    assert terminal.bad(*words) == "one is missing"
    pretend(monkeypatch, ValueError("out of cheese\n\tat Java"))
    assert terminal.bad(*words) == "out of cheese"
    (run,) = terminal.object("pipeline", "status")["runs"]
    assert (run["state"], run["error"]) == ("failed", "out of cheese")


def test_there_are_no_runs_at_first(terminal: Terminal) -> None:
    assert terminal.type("pipeline", "status").stderr == "note: there are no runs\n"
    assert terminal.object("pipeline", "status") == {"runs": []}


@pytest.mark.parametrize("words", [["list"], ["run", "archive"]], ids=" ".join)
def test_without_spark_it_says_what_to_install(words: list[str]) -> None:
    program = "import sys; sys.modules['pyspark'] = None; from goqueue.cli.remote.main import main; main()"
    done = subprocess.run([sys.executable, "-c", program, "pipeline", *words], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "error: pipelines need Spark (pyspark is missing); run: pip install 'goqueue[spark]'\n"


def test_the_command_is_there_without_importing_spark() -> None:
    program = (
        "import sys, goqueue.cli.remote.pipeline; print([n for n in sys.modules if 'spark' in n or n == 'pyarrow'])"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "[]\n"


def test_the_same_work_goes_on_from_any_door(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, Summary(figures={}))
    run = terminal.object("pipeline", "run", "replay", "-s", "topic=orders", "-s", "into=again")["run"]
    ended = run_pipeline(PIPELINES["replay"], {**REPLAY, "address": NOBODY})
    assert ended.name == run
