"""The rig for a busy machine: what it stops goes on, what it runs says how it ended, and what it starts is gone."""

import os
import random
import subprocess
import sys

import pytest

from tests.chaos.busy_machine import burning, disturb
from tests.support.patience import PATIENCE_S

BESIDE_A_CHILD = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; [time.sleep(0.01) for _ in range(100)]"])
for _ in range(100):
    time.sleep(0.01)
sys.exit(child.wait() + 3)
"""


def test_a_command_that_is_stopped_again_and_again_comes_to_its_end_and_its_exit_code_counts() -> None:
    outcome = disturb([sys.executable, "-c", BESIDE_A_CHILD], random.Random(1), 0.1)
    assert outcome.code == 3
    assert outcome.stops > 0


def test_it_is_not_stopped_where_that_is_not_wanted() -> None:
    assert disturb([sys.executable, "-c", ""], random.Random(1), 0.0) == (0, 0)


def test_burners_end_with_it() -> None:
    before = children()
    with burning(2):
        burners = children() - before
        assert len(burners) == 2
    assert not burners & children()


@pytest.mark.parametrize(("text", "code"), [("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 137)])
def test_the_exit_code_is_that_of_the_first_run_that_failed(text: str, code: int) -> None:
    words = [sys.executable, "-m", "tests.chaos.busy_machine", "--burners", "1", "--times", "3", "--", sys.executable]
    done = subprocess.run([*words, "-c", text], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == code
    assert done.stdout.count("exit code") == 1


def children() -> set[int]:
    with open(f"/proc/{os.getpid()}/task/{os.getpid()}/children") as file:
        return {int(each) for each in file.read().split()}
