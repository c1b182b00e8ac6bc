"""The directory of a run: whose it is, what it remembers, and how it looks to others."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO

import pytest

from goqueue.model.errors import Conflict, DamagedState, InvalidRequest, Unavailable
from goqueue.spark.pipelines.state import STATUS, known_runs, opened, read_status, run_name
from tests.support.patience import PATIENCE_S

OPTIONS = {"topic": "orders"}


def test_a_run_goes_on_under_the_same_id_and_its_counters_add_up(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with opened(path, "copy", OPTIONS) as first:
        first.status.counters["rows"] = 5
        first.save()
    with opened(path, "copy", OPTIONS) as second:
        assert (second.id, second.status.starts, second.status.counters) == (first.id, 2, {"rows": 5})


def test_only_one_process_at_a_time_is_at_work_in_it(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with (
        opened(path, "copy", OPTIONS),
        pytest.raises(Unavailable, match="another process"),
        opened(path, "copy", OPTIONS),
    ):
        pass


def test_a_directory_of_other_work_is_refused_with_the_difference(tmp_path: Path) -> None:
    with opened(tmp_path / "run", "copy", OPTIONS):
        pass
    other = {"topic": "payments"}
    with pytest.raises(Conflict, match="topic was orders, is payments"), opened(tmp_path / "run", "copy", other):
        pass
    with pytest.raises(Conflict, match="a run of copy"), opened(tmp_path / "run", "move", OPTIONS):
        pass


def test_a_directory_of_somebody_elses_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years")
    with pytest.raises(InvalidRequest, match="empty directory"), opened(tmp_path, "copy", OPTIONS):
        pass


def test_a_run_that_was_killed_before_it_said_what_it_is_does_not_stand_in_the_way(tmp_path: Path) -> None:
    (tmp_path / f".{STATUS}.abc").touch()
    with opened(tmp_path, "archive", {}) as directory:
        assert directory.status.starts == 1


def test_a_dry_run_leaves_nothing_behind(tmp_path: Path) -> None:
    with opened(tmp_path / "run", "copy", OPTIONS, is_dry=True) as directory:
        directory.save()
        with pytest.raises(AssertionError):
            directory.keep("plan.json", {})
    assert list(tmp_path.iterdir()) == []


def test_what_is_kept_is_found_again(tmp_path: Path) -> None:
    with opened(tmp_path / "run", "copy", OPTIONS) as directory:
        assert directory.read("plan.json", dict) is None
        directory.keep("plan.json", {"a": 1})
        assert directory.read("plan.json", dict) == {"a": 1}
        (directory.path / "plan.json").write_text("{")
        with pytest.raises(DamagedState):
            directory.read("plan.json", dict)


def test_a_run_that_was_killed_does_not_look_as_if_it_ran(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from goqueue.spark.pipelines.state import opened\n"
        "with opened(Path(sys.argv[1]), 'copy', {}):\n    print('in', flush=True); sys.stdin.read()"
    )
    path = tmp_path / "run"
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        running = read_status(path)
        process.send_signal(signal.SIGKILL)
    killed = read_status(path)
    assert running is not None
    assert killed is not None
    assert (running.state, killed.state) == ("running", "killed")


def test_a_run_that_starts_while_somebody_looks_is_not_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run"
    with opened(path, "copy", OPTIONS) as first:
        pass
    first.status.state = "running"  # as if it had been killed
    first.save()
    flock, tried, states = fcntl.flock, threading.Event(), list[str]()

    def start() -> None:
        try:
            with opened(path, "copy", OPTIONS) as second:
                states.append(second.status.state)
        except Unavailable as error:
            states.append(str(error))

    starting = threading.Thread(target=start)

    def flock_with_a_start_in_between(file: IO[bytes], how: int) -> None:
        try:
            flock(file, how)
        finally:
            if how & fcntl.LOCK_EX:
                tried.set()
        if how & fcntl.LOCK_SH and starting.ident is None:
            starting.start()
            assert tried.wait(PATIENCE_S)

    monkeypatch.setattr(fcntl, "flock", flock_with_a_start_in_between)
    looked = read_status(path)
    starting.join(PATIENCE_S)
    assert looked is not None
    assert (looked.state, states) == ("killed", ["running"])


def test_runs_are_listed_the_latest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", iter(range(1, 100)).__next__)
    for name in ("a", "b"):
        with opened(tmp_path / name, "copy", OPTIONS):
            pass
    (tmp_path / "no-run").mkdir()
    assert list(known_runs(tmp_path)) == ["b", "a"]
    assert known_runs(tmp_path / "nowhere") == {}


def test_the_same_work_has_the_same_name() -> None:
    assert run_name("copy", {"a": "1", "b": "2"}) == run_name("copy", {"b": "2", "a": "1"})
    assert run_name("copy", {"a": "1"}) != run_name("copy", {"a": "2"})


def test_metrics_are_beside_it_for_prometheus(tmp_path: Path) -> None:
    with opened(tmp_path / "run", "copy", OPTIONS) as directory:
        directory.status.counters["rows"] = 7
        directory.save()
    text = (tmp_path / "run" / "metrics.prom").read_text()
    assert 'goqueue_pipeline_rows_total{run="run",pipeline="copy"} 7\n' in text
    assert json.loads((tmp_path / "run" / "status.json").read_bytes())["counters"] == {"rows": 7}
