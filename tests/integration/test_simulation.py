"""The simulation: many seeds of each room hold, planted bugs do not get through, a seed is a fact."""

import pytest

from sim.__main__ import main
from sim.planted import BUGS
from sim.rooms import ROOMS
from sim.run import run_seed, run_seeds

SEEDS = {"log": range(1000), "groups": range(200), "transactions": range(200)}
SEEDS_TO_CATCH_A_BUG = range(300)


def test_every_room_is_run_here() -> None:
    assert SEEDS.keys() == ROOMS.keys()


@pytest.mark.parametrize("room", SEEDS)
def test_many_seeds_hold(room: str) -> None:
    failed = [
        f"seed {result.seed}: {result.failure}\nto see it again: {result.command}"
        for result in run_seeds(SEEDS[room], room=room, jobs=2)
        if result.failure
    ]
    assert not failed, "\n".join([f"{len(failed)} seeds failed", *failed[:5]])


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bug_is_caught_by_the_checker_that_is_there_for_it(bug: str) -> None:
    room, rule = BUGS[bug].room, BUGS[bug].rule
    results = run_seeds(SEEDS_TO_CATCH_A_BUG, room=room, bug=bug)
    failures = ((result, result.failure) for result in results if result.failure)
    caught = next((result for result, failure in failures if rule is None or failure.startswith(f"{rule}: ")), None)
    assert caught is not None, f"no seed sees it: python -m sim --seeds 0..{len(SEEDS_TO_CATCH_A_BUG)} --bug {bug}"
    assert run_seed(caught.seed, room=room, bug=bug) == caught


@pytest.mark.parametrize(("room", "seeds"), [("log", 40), ("groups", 20), ("transactions", 20)])
def test_same_seed_same_trace_in_any_process(room: str, seeds: int) -> None:
    here = list(run_seeds(range(seeds), room=room))
    elsewhere = list(run_seeds(range(seeds), room=room, jobs=2))
    assert here == elsewhere
    assert len({result.digest for result in here}) == len(here)


@pytest.mark.parametrize("bug", ["skip-fsync", "grant-early", "presumed-abort"])
def test_a_failure_prints_the_seed_and_one_command_that_shows_it_again(
    bug: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--seeds", "0..300", "--bug", bug]) == 1
    printed = capsys.readouterr().out
    command = next(line for line in printed.splitlines() if line.startswith("to see it again: python -m sim "))
    arguments = command.removeprefix("to see it again: python -m sim ").split()
    assert main(arguments) == 1
    assert "FAILED" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("room", "event"), [("log", " opened "), ("groups", " receive "), ("transactions", " committed ")]
)
def test_a_good_seed_exits_zero_and_shows_its_trace(room: str, event: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--room", room, "--seed", "1", "--trace"]) == 0
    first = capsys.readouterr().out
    assert main(["--room", room, "--seed", "1", "--trace"]) == 0
    assert capsys.readouterr().out == first
    assert event in first


def test_bugs_are_listed_with_their_room(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--bugs"]) == 0
    listed = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    assert listed == [[bug.room, bug.name] for bug in BUGS.values()]


def test_a_bug_is_planted_in_its_own_room_only(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--room", "log", "--bug", "grant-early"])
    assert "grant-early is a bug of room groups" in capsys.readouterr().err
