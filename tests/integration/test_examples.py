"""Every example runs as it stands, against a broker that is really there."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker import RunningBroker, running_broker
from tests.support.patience import PATIENCE_S

EXAMPLES = Path(__file__).parents[2] / "examples"
EXPECTED = {
    "orders.py": ["erin   rejected: no such customer: erin", "all paid: alice, bob, carol, dave, erin, frank"],
    "reminders.py": ["4 reminders wait", "bob has bought", "dave, you left", "carol, you left", "none for bob"],
    "fan_out.py": ["billing    apples, pears, plums, figs", "search     apples, pears", "statistics apples", "2 plums"],
    "transactions.py": ["order 3 broke", "the shop has 6 bills and 0 orders left", "each order was billed once"],
    "priorities.py": ["first: password reset", "background"],
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("examples")) as broker:
        yield broker


def test_every_example_is_run() -> None:
    assert sorted(EXPECTED) == sorted(path.name for path in EXAMPLES.glob("*.py"))


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_an_example_says_what_it_promises(broker: RunningBroker, name: str) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), broker.wire],
        capture_output=True, text=True, timeout=PATIENCE_S, env={**os.environ, "PYTHONWARNINGS": "error"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for line in EXPECTED[name]:
        assert line in done.stdout, done.stdout
    if name == "reminders.py":
        assert "bob, you left" not in done.stdout
