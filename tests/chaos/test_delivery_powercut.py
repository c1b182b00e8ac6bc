"""Power cuts under deliveries as a test, on request only. Skipped where they cannot run."""

import pytest

from tests.chaos.cutting import cut_power


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_nothing_settled_or_cancelled_comes_and_nothing_is_lost_in_sixty_power_cuts() -> None:
    said = cut_power("delivery_powercut", "--cycles", "60", timeout_s=1800)
    assert "60/60 cuts" in said
    assert said.count("was caught") == 1
