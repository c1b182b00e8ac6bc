"""The kill rig as a test: a few kills in the suite, many on request; and a broken broker that it must catch."""

import itertools
import os
from pathlib import Path

import pytest

from goqueue.model.publishing import Acks
from tests.chaos.broker_kill import kill_under_load, kill_until_it_counts, plans
from tests.chaos.broker_load import Plan
from tests.support.broker import RunningBroker
from tests.support.broker_ledger import Duplicated

FORGETFUL = """
from goqueue.producers.sequences import ProducerTable, Verdict
ProducerTable.check = lambda *_: Verdict(())
"""
"""Python runs this before the broker: for its producers nothing was ever there before."""


@pytest.mark.parametrize("acks", [Acks.LEADER, Acks.ALL], ids=["leader", "all"])
def test_nothing_is_lost_or_doubled_when_the_broker_is_killed_under_load(tmp_path: Path, acks: Acks) -> None:
    """A hundred thousand messages; written, which is all that acks leader promises, survives kill -9 as well."""
    plan = Plan(acks=acks)
    outcome = kill_until_it_counts(tmp_path, plan, kills=3, every_path=acks is Acks.ALL)
    assert outcome.acknowledged == plan.messages >= 100_000
    assert len(outcome.kills) == 3


def test_nothing_is_lost_or_doubled_when_the_broker_is_restarted_in_order_under_load(tmp_path: Path) -> None:
    """Whoever is refused because it stops, or cut off, comes back."""
    plan = Plan(acks=Acks.ALL, wire_messages=5000, http_messages=2000)
    outcome = kill_until_it_counts(tmp_path, plan, kills=2, every_path=False, end=RunningBroker.stop)
    assert outcome.acknowledged == plan.messages


def test_a_broker_that_forgets_what_its_producers_sent_is_caught(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(FORGETFUL)
    plan = Plan(acks=Acks.ALL, wire_messages=3000, http_messages=1000)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    with pytest.raises(Duplicated):
        kill_under_load(tmp_path, plan, kills=2, env={"PYTHONPATH": path})


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_nothing_is_lost_or_doubled_in_sixty_kills(tmp_path: Path) -> None:
    repeated = 0
    for plan, fsync in itertools.islice(plans(int.from_bytes(os.urandom(3), "big"), 40_000), 20):
        outcome = kill_until_it_counts(tmp_path, plan, kills=3, fsync=fsync)
        repeated += sum(kill.repeated for kill in outcome.kills)
    assert repeated, "nothing that was sent again was there already"
