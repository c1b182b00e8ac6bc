"""Holds that run: each from when it is armed until it ends; a lease goes on until it is written down that it lapsed."""

import pytest

from goqueue.delivery.delivery import Delivery
from goqueue.delivery.holds import Hold, Lease, Wait
from goqueue.delivery.running_holds import Due, RunningHolds
from goqueue.model.names import GroupNumber
from tests.unit.delivery.partitions import SPAN, T0, A, B, some

CLOCK = 5_000
"""The clock that never steps, when the wall's says T0."""
OVER = CLOCK + SPAN
UNTIL = T0 + SPAN


@pytest.fixture
def holds() -> RunningHolds:
    """After a replay that found none."""
    made = RunningHolds()
    made.begin_life([], wall=T0, now=CLOCK)
    return made


def lease(*offsets: int, poll: int = 1, span_ms: int = SPAN) -> Lease:
    return Lease(poll, "a", some(*offsets), T0 + span_ms, span_ms)


def wait(*offsets: int, span_ms: int = SPAN) -> Wait:
    return Wait(some(*offsets), T0 + span_ms, span_ms)


def run(holds: RunningHolds, group: GroupNumber, *made: Hold) -> None:
    for hold in made:
        holds.add(group, hold)
    holds.arm(CLOCK)


def end(holds: RunningHolds, *ended: Hold) -> None:
    """As a group that is forgotten ends them: with what they hold."""
    delivery = Delivery(0)
    delivery.ended += ended
    holds.drop_ended(delivery)
    assert delivery.ended == [], "they are said once"


# --- beginning


def test_a_hold_runs_from_when_it_is_armed(holds: RunningHolds) -> None:
    held = lease(0)
    holds.add(A, held)
    assert holds.next_deadline() is None
    holds.arm(CLOCK + 7)
    holds.arm(CLOCK + 3)  # it is armed once: this is for others
    assert holds.next_deadline() == OVER + 7
    assert (holds.due(OVER + 6), holds.due(OVER + 7)) == ([], [(A, held)])


def test_those_of_all_groups_are_due_earliest_first(holds: RunningHolds) -> None:
    late, early, middle = lease(0, span_ms=900), wait(1, span_ms=300), lease(0, poll=2, span_ms=600)
    run(holds, A, late, early)
    run(holds, B, middle)
    assert holds.next_deadline() == CLOCK + 300
    assert holds.due(CLOCK + 600) == [(A, early), (B, middle)]
    assert holds.next_deadline() == CLOCK + 900


def test_nothing_runs_before_life_begins() -> None:
    holds, replayed = RunningHolds(), [lease(0), wait(1, span_ms=900)]
    run(holds, A, *replayed)
    assert (holds.next_deadline(), holds.due(10**18)) == (None, [])
    holds.begin_life(replayed, wall=T0 + 400, now=CLOCK)
    assert holds.next_deadline() == CLOCK + 500, "what is left of it"
    assert holds.due(OVER - 401) == [(A, replayed[1])]
    assert holds.due(OVER - 400) == [(A, replayed[0])]


def test_one_that_is_empty_before_it_is_armed_never_runs(holds: RunningHolds) -> None:
    held, other = lease(0, 1), wait(2)
    holds.add(A, held)
    holds.add(A, other)
    for hold in (held, other):
        hold.offsets.clear()
    end(holds, held, other)
    holds.arm(CLOCK)
    assert holds.next_deadline() is None


def test_one_that_is_forgotten_before_it_is_armed_is_never_due(holds: RunningHolds) -> None:
    held = lease(0)
    holds.add(A, held)
    end(holds, held)
    holds.arm(CLOCK)
    assert holds.due(OVER) == []


# --- being over


def test_a_lease_is_due_again_only_after_it_was_rearmed(holds: RunningHolds) -> None:
    held = lease(0)
    run(holds, A, held)
    assert holds.due(OVER) == [(A, held)]
    assert (holds.next_deadline(), holds.due(10**18)) == (None, [])
    for now in (OVER, OVER + 1000):  # as often as it cannot be written
        holds.rearm([Due(A, 1, UNTIL)], now, 1000)
        assert (holds.next_deadline(), holds.due(now + 999)) == (now + 1000, [])
        assert holds.due(now + 1000) == [(A, held)]


def test_only_the_leases_that_are_named_are_rearmed(holds: RunningHolds) -> None:
    mine = lease(0)
    run(holds, A, lease(1, poll=2), mine, lease(2, span_ms=SPAN - 1), wait(3, span_ms=2 * SPAN))
    run(holds, B, lease(0))
    assert len(holds.due(OVER)) == 4, "all but the wait"
    holds.rearm([Due(A, 1, UNTIL), Due(B, 2, UNTIL)], OVER, 1000)
    assert holds.due(OVER + 1000) == [(A, mine)]


def test_a_wait_is_due_once_and_then_forgotten(holds: RunningHolds) -> None:
    held = wait(0)
    run(holds, A, held)
    assert holds.due(OVER) == [(A, held)]
    assert (holds.next_deadline(), holds.due(10**18)) == (None, [])
    assert not holds._group_of, "nobody says later that it ended"


def test_an_empty_hold_is_not_due_even_if_it_was_not_said_to_have_ended(holds: RunningHolds) -> None:
    settled, other = lease(0, 1), lease(2, poll=2)
    run(holds, A, settled, other)
    settled.offsets.clear()
    assert holds.due(OVER) == [(A, other)]
    end(holds, settled)
    holds.rearm([Due(A, 1, UNTIL)], OVER, 1000)
    assert holds.next_deadline() is None


# --- ending


def test_what_has_ended_is_waited_for_no_longer_and_the_others_are(holds: RunningHolds) -> None:
    early, late = lease(0, span_ms=300), wait(1)
    run(holds, A, early, late)
    end(holds, early)
    assert holds.next_deadline() == OVER
    end(holds, late, early)  # which is known no longer
    assert (holds.next_deadline(), holds.due(10**18)) == (None, [])


def test_a_lease_that_has_ended_is_not_rearmed(holds: RunningHolds) -> None:
    held = lease(0)
    run(holds, A, held)
    holds.due(OVER)
    end(holds, held)
    holds.rearm([Due(A, 1, UNTIL)], OVER, 1000)
    assert holds.next_deadline() is None


def test_after_a_reset_it_is_as_new(holds: RunningHolds) -> None:
    run(holds, A, lease(0))
    holds.add(A, wait(1))
    holds.reset()
    assert holds.next_deadline() is None
    holds.arm(CLOCK)
    assert holds.next_deadline() is None, "what was not armed is not armed later"
    holds.rearm([Due(A, 1, UNTIL)], CLOCK, 1000)
    assert holds.next_deadline() is None, "whose leases there were is not known"
    run(holds, A, lease(2))
    assert holds.next_deadline() is None, "and life has not begun"
