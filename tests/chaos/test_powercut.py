"""The power cut rig as a test: a few cuts in the suite, many on request. Skipped where the machine does not allow it.

It runs in a process of its own, because it moves into a mount namespace of its own.
"""

import subprocess
import sys

import pytest

from tests.chaos.powercut import CannotRun, demand_a_machine_for_it
from tests.chaos.spawn import ROOT


def cut_power(*arguments: str, timeout_s: int) -> str:
    """What the rig printed; skips where it cannot run."""
    try:
        demand_a_machine_for_it()
    except CannotRun as reason:
        pytest.skip(str(reason))
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos.powercut", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    if done.stdout.startswith("skipped: "):
        pytest.skip(done.stdout.removeprefix("skipped: ").strip())
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_nothing_acknowledged_is_lost_in_a_power_cut_and_builds_that_do_not_sync_are_caught() -> None:
    said = cut_power("--cycles", "5", "--seed", "1", timeout_s=120)
    assert "5/5 cuts" in said
    assert said.count("was caught") == 2


@pytest.mark.long
@pytest.mark.timeout(900)
def test_nothing_acknowledged_is_lost_in_five_hundred_power_cuts() -> None:
    said = cut_power("--cycles", "500", timeout_s=900)
    assert "500/500 cuts" in said
    assert said.count("was caught") == 2
