"""The rig that kills brokers and members as a test: a few kills in the suite, many on request; and a broken broker."""

import os
import sys
from pathlib import Path

import pytest

from tests.chaos.group_kill import kill_again_and_again, kill_members_and_broker
from tests.support import broker, group_forgetful
from tests.support.group_ledger import DeliveredAgain


def test_nothing_settled_comes_again_and_nothing_is_lost_when_brokers_and_members_are_killed(tmp_path: Path) -> None:
    outcomes = kill_again_and_again(tmp_path, 5, seed=int.from_bytes(os.urandom(3), "big"))
    counted = [kill for outcome in outcomes for kill in outcome.kills if kill.counts]
    assert len(counted) == 5
    assert sum("broker" in kill.killed for kill in counted) == 3
    assert sum(outcome.unanswered for outcome in outcomes), "no commit was cut off: little is shown"


def test_a_broker_that_answers_commits_and_does_not_write_them_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker, "GOQUEUE", [sys.executable, group_forgetful.__file__])
    with pytest.raises(DeliveredAgain):
        kill_members_and_broker(tmp_path, [("broker", "static")], fsync="interval", seed=1)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_nothing_settled_comes_again_and_nothing_is_lost_in_sixty_kills(tmp_path: Path) -> None:
    outcomes = kill_again_and_again(tmp_path, 60, seed=int.from_bytes(os.urandom(3), "big"))
    assert sum(outcome.repeated for outcome in outcomes), "no work had to be done again"
