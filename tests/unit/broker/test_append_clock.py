"""When records were appended at the latest, where append times are ahead of the clock."""

import pytest

from goqueue.broker.append_clock import AppendClock
from goqueue.model import limits

HOUR = 3_600_000


def test_it_says_nothing_where_the_clock_was_never_ahead() -> None:
    clock = AppendClock()
    assert clock.of(7, 1000) == 1000
    assert not clock.knows(0)


def test_what_was_there_by_a_time_was_appended_by_then() -> None:
    clock = AppendClock()
    clock.tell(5, 1000)
    clock.tell(9, 4000)
    assert [clock.of(offset, HOUR) for offset in (0, 4, 5, 8, 9)] == [1000, 1000, 4000, 4000, HOUR]
    assert clock.of(4, 500) == 500, "its append time was right"
    assert (clock.knows(8), clock.knows(9)) == (True, False)


def test_a_clock_that_goes_back_further_says_more() -> None:
    clock = AppendClock()
    clock.tell(5, 4000)
    clock.tell(9, 1000)
    assert [clock.of(offset, HOUR) for offset in (0, 5, 8)] == [1000, 1000, 1000]


def test_points_that_are_close_are_one_and_never_too_early() -> None:
    clock = AppendClock()
    for number in range(5000):
        clock.tell(number + 1, 10 * number)
    assert len(clock._ends) <= 10 * 5000 // limits.APPEND_CLOCK_MS * 2 + 2
    assert all(10 * offset <= clock.of(offset, HOUR) <= 10 * offset + limits.APPEND_CLOCK_MS for offset in range(5000))


def test_it_is_bounded_and_what_it_leaves_out_counts_as_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "APPEND_CLOCK_POINTS", 8)
    clock = AppendClock()
    for number in range(1000):
        clock.tell(number + 1, number * limits.APPEND_CLOCK_MS)
        assert len(clock._ends) <= 8
    found = [clock.of(offset, 10**12) for offset in range(1000)]
    assert all(time >= offset * limits.APPEND_CLOCK_MS for offset, time in enumerate(found))
    assert found[-1] == 999 * limits.APPEND_CLOCK_MS
    assert found == sorted(found)
