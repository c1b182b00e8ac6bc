"""Delayed messages are counted: each that was scheduled is pending, fired or dropped; and how late they fired."""

from pyroaring import BitMap64

from goqueue.delivery.commands import Cancel
from goqueue.delivery.delays import Delays
from tests.unit.delivery.partitions import T0, MemoryPartition, message, some

NOW = 5_000


def delays(*times: int) -> Delays:
    """Messages from offset 0 on, due so many ms from the beginning."""
    found = Delays()
    found.add(range(len(times)), [T0 + time for time in times], wall=T0, now=NOW)
    return found


def fire(found: Delays, ms: int, limit: int = 100) -> list[int]:
    """So many ms from the beginning."""
    return list(found.fire(wall=T0 + ms, now=NOW + ms, limit=limit))


def fire_when_due(found: Delays) -> list[int]:
    """As an alarm does: whenever there is something to do."""
    while True:
        due = found.next_due(wall=T0, now=NOW)
        assert due is not None
        fired = fire(found, due - NOW)
        if fired:
            return fired


def counts(found: Delays) -> tuple[int, int, int, int, int]:
    assert found.scheduled == len(found.pending) + found.fired + found.dropped
    return len(found.pending), found.scheduled, found.fired, found.dropped, found.moved


def test_what_is_scheduled_is_pending_then_fired_or_dropped() -> None:
    found = delays(1000, 2000, 3000, 0)
    assert counts(found) == (3, 3, 0, 0, 0), "what is due already is not delayed"
    found.drop(some(1, 2, 77))
    assert counts(found) == (1, 3, 0, 2, 0)
    found.move(some(0, 1), T0 + 5000, wall=T0, now=NOW)
    assert counts(found) == (1, 3, 0, 2, 1)
    assert fire(found, 2000) == []
    assert counts(found) == (1, 3, 0, 2, 1)
    assert fire(found, 5000) == [0]
    assert counts(found) == (0, 3, 1, 2, 1)


def test_what_is_found_after_a_restart_is_scheduled_anew_but_for_what_was_cancelled() -> None:
    partition = MemoryPartition(*(message(deliver_at=T0 + 60_000) for _ in range(5)))
    partition.do(Cancel(some(0, 3)))
    assert counts(partition.delays) == (3, 5, 0, 2, 0)
    partition.restart()
    assert counts(partition.delays) == (3, 3, 0, 0, 0)


# --- how late


def test_what_fires_in_time_is_not_late() -> None:
    found = delays(1000)
    assert fire(found, 1000) == [0]
    assert found.late_ms == 0


def test_lateness_is_that_of_the_first_in_the_slice() -> None:
    found = delays(1000, 1400)
    assert fire(found, 1500) == [0, 1]
    assert found.late_ms == 500


def test_it_counts_from_the_tick_not_from_the_time() -> None:
    found = delays(1001)
    assert fire(found, 1009) == []
    assert fire(found, 1010) == [0]
    assert found.late_ms == 0


def test_what_a_burst_leaves_for_later_slices_was_due_with_the_first() -> None:
    found = delays(*[1000] * 5)
    late = []
    for ms in (1000, 1100, 1200):
        assert fire(found, ms, limit=2)
        late.append(found.late_ms)
    assert late == [0, 100, 200]


def test_what_is_left_of_a_burst_and_cancelled_makes_nobody_late() -> None:
    found = delays(*[1000] * 4, 1050)
    assert fire(found, 1000, limit=2)
    found.drop(BitMap64(found.pending - some(4)))
    assert fire(found, 1050) == [4]
    assert found.late_ms == 0


def test_a_call_that_fires_nothing_leaves_the_lateness_as_it_was() -> None:
    found = delays(1000, 400_000)
    assert fire(found, 1300) == [0]
    for ms in (1400, 163_840, 399_000):
        assert fire(found, ms) == []
        assert found.late_ms == 300


def test_a_far_delay_that_is_waited_for_step_by_step_is_not_late() -> None:
    """Slots of the wheel's higher levels fall before anything in them is due."""
    found = delays(10_000_000)
    assert fire_when_due(found) == [0]
    assert found.late_ms == 0


def test_who_comes_late_may_seem_later_than_he_is_but_by_no_more_than_he_is_late() -> None:
    """The slot of 2.56 s begins 1320 ms before the message is due: nobody looked into it then."""
    found = delays(9000)
    due = found.next_due(wall=T0, now=NOW)
    assert due is not None
    assert fire(found, 9000) == [0]
    assert found.late_ms == NOW + 9000 - due > 0


def test_a_clock_that_went_back_makes_nobody_late() -> None:
    found = delays(1000)
    behind_ms = 600
    assert list(found.fire(wall=T0 + 1000 - behind_ms, now=NOW + 1000, limit=10)) == []
    assert list(found.fire(wall=T0 + 1000, now=NOW + 1000 + behind_ms, limit=10)) == [0]
    assert found.late_ms == 0
