"""The delivery rig as a test: a few kills in the suite, many on request; and broken brokers that it must catch."""

import os
import random
from pathlib import Path

import pytest

from tests.chaos.broker_kill import free_doors
from tests.chaos.delivery_kill import kill_again_and_again, kill_under_load
from tests.chaos.ledger import Violation
from tests.support.broker import running_broker
from tests.support.delivery_ledger import DeliveredAgain, Early, Uncounted, Verb
from tests.support.delivery_planted import program


def test_nothing_settled_or_cancelled_comes_and_nothing_is_lost_when_the_broker_is_killed(tmp_path: Path) -> None:
    outcomes = kill_again_and_again(tmp_path, 5, seed=5)
    assert sum(kill.counts for outcome in outcomes for kill in outcome.kills) == 5
    for verb in Verb:
        assert any(outcome.history.done(verb) for outcome in outcomes), f"no {verb} was done: little is shown"
    assert any(outcome.history.letters for outcome in outcomes)
    assert any(outcome.history.redriven for outcome in outcomes)


@pytest.mark.parametrize(
    ("planted", "kills", "found"),
    [
        ("forgets-acks", 1, DeliveredAgain),
        ("forgets-cancels", 2, DeliveredAgain),
        ("uncounted", 1, Uncounted),
        ("early", 1, Early),
    ],
)
def test_a_broken_broker_is_caught(tmp_path: Path, planted: str, kills: int, found: type[Violation]) -> None:
    doors = free_doors(random.Random())
    with (
        pytest.raises(found),
        running_broker(tmp_path, *doors, program=program(planted)) as broker,
    ):
        kill_under_load(broker, kills, fsync="interval", seed=1)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_nothing_settled_or_cancelled_comes_and_nothing_is_lost_in_fifty_kills(tmp_path: Path) -> None:
    kill_again_and_again(tmp_path, 50, seed=int.from_bytes(os.urandom(3), "big"))
