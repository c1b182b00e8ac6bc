"""A power cut rig as a test: run in a process of its own, because it moves into a mount namespace of its own."""

import subprocess
import sys

import pytest

from tests.chaos.powercut import CannotRun, demand_a_machine_for_it
from tests.chaos.spawn import ROOT


def cut_power(rig: str, *arguments: str, timeout_s: float) -> str:
    """What the rig printed; skips where it cannot run."""
    try:
        demand_a_machine_for_it()
    except CannotRun as reason:
        pytest.skip(str(reason))
    done = subprocess.run(
        [sys.executable, "-m", f"tests.chaos.{rig}", *arguments],
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
