"""Power cuts under a consumer group as a test: a few in the suite, many on request. Skipped where they cannot run."""

import pytest

from tests.chaos.cutting import cut_power
from tests.chaos.ledger import Violation
from tests.chaos.sidecar_powercut import Ledger, Undelivered
from tests.support.patience import PATIENCE_S


def test_no_new_message_is_taken_for_a_lost_one_and_a_build_without_fences_is_caught() -> None:
    said = cut_power("sidecar_powercut", "--cycles", "3", "--seed", "1", timeout_s=PATIENCE_S)
    assert "3/3 cuts" in said
    assert said.count("was caught") == 1


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_no_new_message_is_taken_for_a_lost_one_in_two_hundred_power_cuts() -> None:
    said = cut_power("sidecar_powercut", "--cycles", "200", timeout_s=1200)
    assert "200/200 cuts" in said
    assert said.count("was caught") == 1


# ---------------------------------------------------------------- what the ledger demands


def heard(*lines: str) -> Ledger:
    ledger = Ledger()
    for line in lines:
        kind, *words = line.split(" ")
        ledger.hear(kind, words)
    return ledger


LIVED = ("P 0 1,2,3", "A 1,2", "M w-1", "D 0 41 3 1,2,3", "T 1,2", "S 1,2 0")
"""Three messages, of which the third is not acknowledged and not committed."""


def test_what_is_there_and_not_committed_must_be_delivered() -> None:
    assert heard(*LIVED, "R 0 1,2,3", "M w-2", "N", "D 0 42 3 3", "Q").checks == 1
    with pytest.raises(Undelivered, match=r": 3$"):
        heard(*LIVED, "R 0 1,2,3", "M w-2", "N", "Q")


def test_a_new_message_at_the_offset_of_a_lost_one_must_be_delivered() -> None:
    cut = (*LIVED, "T 3", "S 3 1", "R 0 1,2", "P 0 7", "A 7", "M w-2", "N")
    assert heard(*cut, "D 0 42 3 7", "Q").checks == 1
    with pytest.raises(Undelivered, match=r": 7$"):
        heard(*cut, "Q")


def test_a_late_commit_speaks_for_what_the_member_was_delivered_and_for_nothing_else() -> None:
    cut = heard(*LIVED, "R 0 1,2")
    (late,) = cut.late
    assert (late.partition, late.next_offset, late.poll, late.ids) == (0, 3, 41, [3])
    for line in ("P 0 7", "A 7", "D 0 42 3 7", "L 3", "M w-2", "N"):
        kind, *words = line.split(" ")
        cut.hear(kind, words)
    with pytest.raises(Undelivered, match=r": 7$"):
        cut.hear("Q", [])


def test_a_commit_that_was_sent_and_not_answered_may_have_been_made_or_not() -> None:
    for delivered in ((), ("D 0 42 3 3",)):
        assert heard(*LIVED, "T 3", "R 0 1,2,3", "M w-2", "N", *delivered, "Q").checks == 1


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (("R 0 1",), "which were acknowledged"),
        (("R 0 1,3",), "that were appended"),
        (("R 0 1,2,3,4",), "that were appended"),
        (("R 0 1,2", "M w-2", "N", "D 0 42 3 3"), "does not hold"),
        (("R 0 1,2,3", "M w-2", "N", "D 0 42 3 2,3", "Q"), "delivered again: 2"),
        (("R 0 1,2,3", "M w-2", "N", "D 0 42 3 3", "D 0 43 3 3", "Q"), "twice"),
        (("W it broke",), "it broke"),
    ],
)
def test_whatever_else_must_not_happen_is_noticed(lines: tuple[str, ...], reason: str) -> None:
    with pytest.raises(Violation, match=reason) as found:
        heard(*LIVED, *lines)
    assert not isinstance(found.value, Undelivered)
