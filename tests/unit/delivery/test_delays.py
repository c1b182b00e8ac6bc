"""Delayed messages: never early by either clock, not late when the wall steps, and gone when they are dropped."""

from random import Random

import pytest
from pyroaring import BitMap64

from goqueue.delivery.delays import Delays
from tests.unit.delivery.partitions import ALL, T0, some

TICK_MS = 10
HOUR = 3_600_000


class Clocked:
    """Delays with their two clocks."""

    def __init__(self) -> None:
        self.delays = Delays()
        self.wall = T0
        self.now = 77_000

    def add(self, *messages: tuple[int, int]) -> None:
        """Offsets, and in how many milliseconds each is due."""
        offsets, after = zip(*messages, strict=True)
        self.delays.add(offsets, [self.wall + ms for ms in after], wall=self.wall, now=self.now)

    def move(self, offset: int, after_ms: int) -> None:
        self.delays.move(some(offset), self.wall + after_ms, wall=self.wall, now=self.now)

    def pass_time(self, ms: int, limit: int = ALL) -> list[int]:
        """What fires."""
        self.wall += ms
        self.now += ms
        return list(self.delays.fire(wall=self.wall, now=self.now, limit=limit))

    @property
    def next_in(self) -> int | None:
        due = self.delays.next_due(wall=self.wall, now=self.now)
        return None if due is None else due - self.now


@pytest.fixture
def clocked() -> Clocked:
    return Clocked()


def test_nothing_is_never_due(clocked: Clocked) -> None:
    assert (clocked.next_in, clocked.pass_time(HOUR), len(clocked.delays)) == (None, [], 0)


def test_a_message_is_due_when_its_time_has_come_and_once(clocked: Clocked) -> None:
    clocked.add((5, 100), (6, 2_000))
    assert list(clocked.delays.pending) == [5, 6]
    assert clocked.pass_time(99) == []
    assert clocked.pass_time(1 + TICK_MS) == [5]
    assert (clocked.pass_time(50), list(clocked.delays.pending)) == ([], [6])
    assert clocked.pass_time(2_000) == [6]
    assert (clocked.next_in, len(clocked.delays)) == (None, 0)


def test_messages_that_are_due_already_are_left_out(clocked: Clocked) -> None:
    clocked.add((5, 0), (6, -HOUR), (7, 1))
    assert list(clocked.delays.pending) == [7]
    clocked.add((8, -1))
    assert list(clocked.delays.pending) == [7]


def test_whoever_goes_by_the_next_time_finds_everything_on_time(clocked: Clocked) -> None:
    rng = Random(7)
    due = {offset: rng.choice((5, 300, 70_000, 5 * HOUR)) + rng.randrange(1000) for offset in range(200)}
    clocked.add(*due.items())
    began, looks = clocked.now, 0
    while (wait := clocked.next_in) is not None:
        assert wait > 0, "it would look again and again"
        looks += 1
        for offset in clocked.pass_time(wait):
            assert due[offset] <= clocked.now - began <= due[offset] + TICK_MS
    assert looks < 2 * len(due)


def test_a_burst_comes_in_slices(clocked: Clocked) -> None:
    clocked.add(*((offset, 50) for offset in range(10)))
    assert len(clocked.pass_time(100, limit=4)) == 4
    assert clocked.next_in is not None
    assert clocked.next_in <= 0
    assert [len(clocked.pass_time(0, limit=4)) for _ in range(3)] == [4, 2, 0]


# --- clocks that step


def test_a_wall_that_steps_forward_makes_nothing_early(clocked: Clocked) -> None:
    clocked.add((5, 10_000))
    clocked.wall += HOUR
    assert clocked.pass_time(0) == []
    assert clocked.next_in is not None
    assert 0 < clocked.next_in <= 10_000
    assert clocked.pass_time(9_990) == []
    assert clocked.pass_time(10 + TICK_MS) == [5]


def test_a_wall_that_steps_back_makes_nothing_early(clocked: Clocked) -> None:
    clocked.add((5, 10_000))
    clocked.wall -= HOUR
    assert clocked.pass_time(11_000) == []
    assert clocked.pass_time(HOUR - 1_001) == []
    assert clocked.pass_time(1 + TICK_MS) == [5]


@pytest.mark.parametrize("step", [-HOUR, -5, HOUR, 5])
def test_messages_that_come_after_a_step_are_on_time(clocked: Clocked, step: int) -> None:
    clocked.add((5, 10 * HOUR))
    clocked.pass_time(1_000)
    clocked.wall += step
    clocked.add((6, 1_000))
    assert clocked.next_in is not None
    assert 0 < clocked.next_in <= 1_000 + TICK_MS
    assert clocked.pass_time(999) == []
    assert clocked.pass_time(1 + TICK_MS) == [6]
    assert list(clocked.delays.pending) == [5]


def test_a_step_that_is_made_up_again_makes_nothing_early(clocked: Clocked) -> None:
    clocked.add((5, 10 * HOUR))
    clocked.wall -= HOUR
    clocked.add((6, 10_000))
    clocked.pass_time(1_000)
    clocked.wall += HOUR  # the wall has passed its time, but one second has passed, not ten
    assert clocked.pass_time(8_000) == []
    assert clocked.pass_time(1_000 + TICK_MS) == [6]


def test_a_wall_that_wavers_a_little_has_not_stepped(clocked: Clocked) -> None:
    clocked.add((1, 5_000))
    for offset, waver in enumerate((4, -8, 7, -3), 2):
        clocked.wall += waver
        clocked.add((offset, 5_000))
    assert clocked.pass_time(4_980) == []
    assert clocked.pass_time(40) == [1, 2, 3, 4, 5]


def test_a_wall_that_went_back_less_than_a_tick_makes_nothing_early(clocked: Clocked) -> None:
    clocked.add((1, HOUR))
    clocked.pass_time(1_000)
    clocked.wall -= 4
    clocked.add((2, 1))
    assert clocked.pass_time(0) == []
    assert clocked.next_in is not None
    assert clocked.next_in > 0
    assert clocked.pass_time(5 + TICK_MS) == [2]


def test_any_steps_and_nothing_is_early_or_late() -> None:
    for seed in range(60):
        rng = Random(seed)
        clocked = Clocked()
        due: dict[int, tuple[int, int]] = {}
        for offset in range(60):
            clocked.wall += rng.choice((0, 0, 0, 7, -7, 500, -500, 60_000, -60_000))
            after_ms = rng.choice((1, 40, 900, 30_000))
            clocked.add((offset, after_ms))
            due[offset] = (clocked.wall + after_ms, clocked.now + after_ms)
            for fired in clocked.pass_time(rng.choice((0, 20, 500, 20_000))):
                by_wall, by_now = due.pop(fired)
                assert clocked.wall >= by_wall, seed
                assert clocked.now >= by_now - 4, seed
            late = [each for each, (by_wall, by_now) in due.items() if clocked.wall > by_wall + 20]
            assert all(clocked.now <= due[each][1] + 20 for each in late), seed
            assert set(clocked.delays.pending) == set(due)


def test_what_was_due_stays_due_when_the_wall_steps_back_before_it_fires(clocked: Clocked) -> None:
    clocked.add((1, HOUR), (2, 50), (3, 50), (4, 5_000))
    clocked.move(4, -10)
    assert clocked.pass_time(60, limit=1) == [4]
    clocked.wall -= HOUR
    assert (clocked.next_in, clocked.pass_time(0)) == (0, [2, 3])
    assert clocked.next_in is not None
    assert clocked.next_in > HOUR


# --- dropping, moving, losing


def test_dropped_messages_do_not_fire(clocked: Clocked) -> None:
    clocked.add((5, 100), (6, 100))
    clocked.wall += HOUR
    clocked.add((7, 100), (8, 100))
    clocked.delays.drop(some(5, 8, 99))
    assert list(clocked.delays.pending) == [6, 7]
    assert clocked.pass_time(500) == [6, 7]


def test_a_moved_message_fires_at_its_new_time_only(clocked: Clocked) -> None:
    clocked.add((5, 100), (6, 100), (7, 100))
    clocked.move(5, 5_000)
    clocked.move(6, 20)
    clocked.move(7, -HOUR)
    assert clocked.pass_time(0) == [7], "that has passed"
    assert clocked.pass_time(20 + TICK_MS) == [6]
    assert clocked.pass_time(4_000) == []
    assert clocked.pass_time(1_000) == [5]


def test_a_message_that_is_not_pending_is_not_moved(clocked: Clocked) -> None:
    clocked.move(5, 100)
    clocked.add((6, 50))
    clocked.pass_time(100)
    clocked.move(6, 100)
    assert (list(clocked.delays.pending), clocked.pass_time(HOUR)) == ([], [])


def test_a_message_that_is_moved_after_a_step_is_on_time(clocked: Clocked) -> None:
    clocked.add((5, 10 * HOUR), (6, 10 * HOUR))
    clocked.wall -= HOUR
    clocked.move(5, 1_000)
    assert clocked.pass_time(999) == []
    assert clocked.pass_time(1 + TICK_MS) == [5]
    assert clocked.pass_time(12 * HOUR) == [6]


def test_what_was_lost_at_the_end_is_not_pending_any_more(clocked: Clocked) -> None:
    clocked.add((5, 100), (6, 100), (7, 100))
    clocked.delays.clip(6)
    assert list(clocked.delays.pending) == [5]
    clocked.add((6, 300))
    assert (clocked.pass_time(150), clocked.pass_time(500)) == ([5], [6])


def test_after_everything_fired_it_begins_anew(clocked: Clocked) -> None:
    for offset in range(5):
        clocked.wall += 10_000
        clocked.add((offset, 100))
        assert clocked.pass_time(200) == [offset]
    assert clocked.delays.pending == BitMap64()
