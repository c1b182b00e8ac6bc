"""The power cut rig as a test: a few cuts in the suite, many on request. Skipped where it cannot run."""

import pytest

from tests.chaos.cutting import cut_power
from tests.support.patience import PATIENCE_S


def test_nothing_acknowledged_is_lost_in_a_power_cut_and_builds_that_do_not_sync_are_caught() -> None:
    said = cut_power("powercut", "--cycles", "5", "--seed", "1", timeout_s=PATIENCE_S)
    assert "5/5 cuts" in said
    assert said.count("was caught") == 2


@pytest.mark.long
@pytest.mark.timeout(900)
def test_nothing_acknowledged_is_lost_in_five_hundred_power_cuts() -> None:
    said = cut_power("powercut", "--cycles", "500", timeout_s=900)
    assert "500/500 cuts" in said
    assert said.count("was caught") == 2
