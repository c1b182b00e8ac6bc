"""Every example, and every program of the README, runs as it stands, against a broker that is really there."""

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import goqueue
from tests.docs.markdown import ROOT, blocks
from tests.support.broker import RunningBroker, running_broker
from tests.support.patience import PATIENCE_S

EXAMPLES = ROOT / "examples"
README = [
    block.text for block in blocks((ROOT / "README.md").read_text(encoding="utf-8")) if block.language == "python"
]
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


def run(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], cwd=directory, env={**os.environ, "PYTHONWARNINGS": "error"},
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip


def there(broker: RunningBroker) -> tuple[set[str], set[str]]:
    """Topics and groups."""
    with goqueue.Client(broker.wire) as client:
        return {*client.list_topics().topics}, {*client.list_groups().groups}


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_an_example_says_what_it_promises(broker: RunningBroker, tmp_path: Path, name: str) -> None:
    check_example(broker, tmp_path, name)


def check_example(broker: RunningBroker, directory: Path, name: str) -> None:
    before = there(broker)
    done = run(directory, str(EXAMPLES / name), broker.wire)
    assert there(broker) == before, "it cleans up after itself"
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for line in EXPECTED[name]:
        assert line in done.stdout, done.stdout
    if name == "reminders.py":
        assert "bob, you left" not in done.stdout


def test_programs_of_the_readme_and_examples_run_again_and_in_any_order(tmp_path: Path) -> None:
    """Beside the topic and the group that the README's first commands leave, with messages nobody came for."""
    seed = int.from_bytes(os.urandom(3), "big")
    programs = [*README, *EXPECTED] * 2
    random.Random(seed).shuffle(programs)
    with running_broker(tmp_path) as broker:
        with goqueue.Client(broker.wire) as client:
            client.create_topic("orders")
            with client.producer() as producer:
                for order in ("two apples", "one pear", "three figs"):
                    producer.send("orders", order)
            with client.consumer("billing", ["orders"]):
                pass
        for program in programs:
            if program in EXPECTED:
                check_example(broker, tmp_path, program)
            else:
                done = run(tmp_path, "-c", program.replace("127.0.0.1:9001", broker.wire))
                assert done.returncode == 0, f"seed {seed}: {done.stderr}"


BREAK = """
import runpy, sys
from goqueue.client import consumer, transaction
from goqueue.client.sync import consumer as sync_consumer

async def fail(*_, **__): raise RuntimeError("it broke")
def fail_at_once(*_, **__): raise RuntimeError("it broke")
for kind in (consumer.AsyncMessage, consumer.AsyncBatch, transaction.AsyncTransaction): kind.ack = fail
for kind in (sync_consumer.ConsumerMessage, sync_consumer.ConsumerBatch): kind.ack = fail_at_once
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_an_example_that_breaks_cleans_up_after_itself_too(broker: RunningBroker, tmp_path: Path, name: str) -> None:
    before = there(broker)
    done = run(tmp_path, "-c", BREAK, str(EXAMPLES / name), broker.wire)
    assert done.returncode != 0
    assert "it broke" in done.stderr
    assert there(broker) == before
