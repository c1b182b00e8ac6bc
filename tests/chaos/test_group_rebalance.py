"""The rebalance rig as a test: counts, order and ownership in the suite, the clock only on request."""

import os
from pathlib import Path

import pytest

from tests.chaos.group_rebalance import Plan, rebalance, report
from tests.support.group_pauses import CLEAN, RESTARTED, SILENT


def test_nothing_is_lost_doubled_or_refused_while_members_come_and_go(tmp_path: Path) -> None:
    seed = int.from_bytes(os.urandom(3), "big")
    print(f"seed {seed}")
    outcome = rebalance(tmp_path, Plan(seconds=5, change_s=0.6, seed=seed))
    print(report(outcome))
    assert outcome.churned.changes["joined"] >= 6
    assert outcome.churned.changes["left"] >= 4
    for kind in (CLEAN, SILENT, RESTARTED):
        assert outcome.churned.pauses.of(kind), f"no partition moved because of a member that was {kind}"
    assert outcome.churned.pauses.stays
    assert outcome.churned.history.repetitions, "nobody who died had work under way: little is shown"
    assert outcome.late_commits == 3


@pytest.mark.long
def test_partitions_that_stay_do_not_pause_and_those_that_move_do_so_shortly(tmp_path: Path) -> None:
    outcome = rebalance(tmp_path, Plan(seconds=60))
    print(report(outcome))
    outcome.check_times()
