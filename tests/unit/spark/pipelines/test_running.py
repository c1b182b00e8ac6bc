"""How a run goes is written down, whatever happens. None of these needs Spark."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from goqueue.model.errors import Conflict, InvalidRequest
from goqueue.spark import values
from goqueue.spark.pipelines import running
from goqueue.spark.pipelines.frame import Option, Pipeline, Run, Summary
from goqueue.spark.pipelines.running import RunFailed, run_pipeline
from goqueue.spark.pipelines.state import home, read_status

TRACE = "Traceback (most recent call last):\n  File x\n"


def pipeline(work: Callable[[Run], Summary]) -> Pipeline:
    return Pipeline("copy", "Copy something.", (Option("topic", values.topic, "Which one.", required=True),), work)


def well(run: Run) -> Summary:
    run.progress.begin("copying", 10)
    run.progress.advance(10)
    run.tally("rows", 10)
    return Summary(figures={"rows": 10})


def test_a_run_is_done_and_says_so(tmp_path: Path) -> None:
    ended = run_pipeline(pipeline(well), {"topic": "a"}, state=tmp_path / "s")
    status = read_status(tmp_path / "s")
    assert ended.summary == Summary(figures={"rows": 10})
    assert status is not None
    assert (status.state, status.done, status.total, status.counters) == ("done", 10, 10, {"rows": 10})
    assert status.summary is not None
    assert status.summary["figures"] == {"rows": 10}


def test_it_is_at_home_where_state_belongs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    first, same, other = (run_pipeline(pipeline(well), {"topic": topic}) for topic in "aab")
    assert first.state.parent == home() == tmp_path / "goqueue" / "pipelines"
    assert first.state == same.state != other.state


def test_options_that_are_wrong_leave_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="topic is missing"):
        run_pipeline(pipeline(well), {}, state=tmp_path / "s")
    assert not [*tmp_path.iterdir()]


def test_ctrl_c_while_spark_starts_stops_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object) -> None:
        raise KeyboardInterrupt  # as Spark does, which has its own handler then

    monkeypatch.setattr(running, "_session", start)
    ended = run_pipeline(pipeline(lambda run: Summary(figures={"": run.spark.version})), {"topic": "a"}, state=tmp_path)
    assert (ended.signal, ended.summary) == (signal.SIGINT, None)
    status = read_status(tmp_path)
    assert status is not None
    assert status.state == "stopped"


def test_a_dry_run_leaves_nothing_behind(tmp_path: Path) -> None:
    ended = run_pipeline(
        pipeline(lambda run: Summary(figures={"dry": int(run.is_dry)})),
        {"topic": "a"},
        is_dry=True,
        state=tmp_path / "s",
    )
    assert ended.summary == Summary(figures={"dry": 1})
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("error", "raised", "told"),
    [
        (Conflict("no"), Conflict, "no"),
        (ValueError("bad\n\tat org.apache.Spark"), RunFailed, "bad"),
        (
            RuntimeError(f"in a task:\n{TRACE}goqueue.a.DataLost: gone\n\nJVM stacktrace:\nx"),
            RunFailed,
            "gone",
        ),
    ],
)
def test_what_fails_is_told_and_written_down(
    tmp_path: Path, error: Exception, raised: type[Exception], told: str
) -> None:
    def fail(run: Run) -> Summary:
        raise error

    with pytest.raises(raised) as found:
        run_pipeline(pipeline(fail), {"topic": "a"}, state=tmp_path / "s")
    status = read_status(tmp_path / "s")
    assert status is not None
    assert (str(found.value), status.state, status.error) == (told, "failed", told)


def test_a_run_that_is_asked_to_stop_is_stopped_and_not_failed(tmp_path: Path) -> None:
    def cancelled(run: Run) -> Summary:
        signal.raise_signal(signal.SIGTERM)
        raise RuntimeError("its jobs were cancelled")

    ended = run_pipeline(pipeline(cancelled), {"topic": "a"}, state=tmp_path / "s")
    status = read_status(tmp_path / "s")
    assert (ended.summary, ended.signal) == (None, signal.SIGTERM)
    assert status is not None
    assert status.state == "stopped"
