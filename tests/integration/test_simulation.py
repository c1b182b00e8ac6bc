"""The simulation of the log room: two thousand seeds hold, planted bugs do not get through, a seed is a fact."""

import pytest

from sim.__main__ import main
from sim.planted import BUGS
from sim.run import run_seed, run_seeds

SEEDS = range(2000)
SEEDS_TO_CATCH_A_BUG = range(300)


@pytest.mark.timeout(300)
def test_two_thousand_seeds_hold() -> None:
    failed = [
        f"seed {result.seed}: {result.failure}\nto see it again: {result.command}"
        for result in run_seeds(SEEDS, jobs=2)
        if result.failure
    ]
    assert not failed, "\n".join([f"{len(failed)} seeds failed", *failed[:5]])


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bug_is_caught(bug: str) -> None:
    caught = next((result for result in run_seeds(SEEDS_TO_CATCH_A_BUG, bug=bug) if result.failure), None)
    assert caught is not None, f"no seed sees it: python -m sim --seeds 0..{len(SEEDS_TO_CATCH_A_BUG)} --bug {bug}"
    assert run_seed(caught.seed, bug=bug) == caught


def test_same_seed_same_trace_in_any_process() -> None:
    here = list(run_seeds(range(40)))
    elsewhere = list(run_seeds(range(40), jobs=2))
    assert here == elsewhere
    assert len({result.digest for result in here}) == len(here)


def test_a_failure_prints_the_seed_and_one_command_that_shows_it_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "0..300", "--bug", "skip-fsync"]) == 1
    printed = capsys.readouterr().out
    command = next(line for line in printed.splitlines() if line.startswith("to see it again: python -m sim "))
    arguments = command.removeprefix("to see it again: python -m sim ").split()
    assert main(arguments) == 1
    assert "FAILED" in capsys.readouterr().out


def test_a_good_seed_exits_zero_and_shows_its_trace(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "1", "--trace"]) == 0
    first = capsys.readouterr().out
    assert main(["--seed", "1", "--trace"]) == 0
    assert capsys.readouterr().out == first
    assert " opened " in first
