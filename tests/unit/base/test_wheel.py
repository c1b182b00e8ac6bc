"""The timer wheel: nothing early, nothing lost, nothing twice, whatever is cancelled or moved while it fires."""

import sys
from itertools import pairwise

import pytest
from pyroaring import BitMap64

from goqueue.base import wheel as wheel_module
from goqueue.base.wheel import TICK_MS, TimerWheel

DAY = 86_400_000
LEVELS = (10, 2560, 163_840, 10_485_760, 671_088_640, 42_949_672_960)
"""How long a slot of each level is; from the fifth on, of the overflow."""
EDGES = sorted(
    {edge + around for edge in LEVELS for around in (-11, -10, -1, 0, 1, 10, 11)} | {-5, 0, 1, 9, 10, 11, 19}
)
ALL = 10**9


def fire(wheel: TimerWheel, now: int, limit: int = ALL) -> list[int]:
    """What one `advance` fires."""
    keys: list[int] = []
    wheel.advance(now, keys.append, limit)
    return keys


def run(wheel: TimerWheel, end: int) -> list[tuple[int, int]]:
    """Go from one deadline to the next up to `end`, as a driver would: what fired, and when."""
    fired: list[tuple[int, int]] = []
    while (when := wheel.next_deadline) is not None and when <= end:
        fired += [(key, when) for key in fire(wheel, when)]
    return fired


def never(key: int) -> None:
    pytest.fail(f"{key} fired")


def rounded_up(deadline: int) -> int:
    return -(-deadline // TICK_MS) * TICK_MS


# --- when it fires


def test_an_empty_wheel_has_nothing_to_do() -> None:
    wheel = TimerWheel(5)
    assert (len(wheel), 1 in wheel, wheel.next_deadline) == (0, False, None)
    assert wheel.advance(400 * DAY, never, ALL) is False
    assert wheel.due(500 * DAY, ALL) == BitMap64()


@pytest.mark.parametrize("start", [0, 3, 10, 2555, 2560, 163_835, 10_485_755, 671_088_635, 1_700_000_000_007])
@pytest.mark.parametrize("delay", [*EDGES, 8 * DAY, 400 * DAY, 2**62])
def test_a_delay_ends_at_its_tick(start: int, delay: int) -> None:
    """Not a millisecond earlier, and not a turn later, wherever the wheel stands."""
    wheel = TimerWheel(start)
    deadline = start + delay
    wheel.insert(7, deadline)
    assert (len(wheel), 7 in wheel) == (1, True)
    when = start if delay <= 0 else rounded_up(deadline)
    if when > start:
        assert fire(wheel, start) == []
        assert fire(wheel, when - 1) == []
    assert (wheel.next_deadline or 0) <= when
    assert fire(wheel, when) == [7]
    assert (len(wheel), 7 in wheel) == (0, False)
    assert wheel.next_deadline is None
    assert fire(wheel, when + 400 * DAY) == []


@pytest.mark.parametrize("start", [0, 7, 2559, 12_345_678])
def test_going_from_one_deadline_to_the_next_fires_each_at_its_tick(start: int) -> None:
    wheel = TimerWheel(start)
    deadlines = {key: start + delay for key, delay in enumerate([*EDGES, 8 * DAY, 400 * DAY, 400 * DAY + 1])}
    for key, deadline in deadlines.items():
        wheel.insert(key, deadline)
    fired = run(wheel, start + 500 * DAY)
    assert sorted(key for key, _ in fired) == sorted(deadlines)
    for key, now in fired:
        assert now == (start if deadlines[key] <= start else rounded_up(deadlines[key]))


def test_the_next_deadline_is_exact_within_the_nearest_level() -> None:
    wheel = TimerWheel(0)
    for key, deadline in ((1, 900), (2, 555), (3, 1200)):
        wheel.insert(key, deadline)
    assert wheel.next_deadline == 560
    assert fire(wheel, 560) == [2]
    assert wheel.next_deadline == 900


def test_a_call_before_the_tick_of_a_far_deadline_only_moves_it_down() -> None:
    wheel = TimerWheel(0)
    wheel.insert(1, 400 * DAY)
    steps = []
    while (when := wheel.next_deadline) is not None and when < 400 * DAY:
        steps.append(when)
        assert fire(wheel, when) == []
    assert 1 <= len(steps) <= 5, "once per level at most"
    assert all(before < after for before, after in pairwise(steps))
    assert fire(wheel, 400 * DAY) == [1]


@pytest.mark.parametrize("delay", [0, -1, -10, -12_345, -(2**62)])
@pytest.mark.parametrize("now", [1000, 1001, 1009])
def test_a_deadline_that_has_passed_fires_at_the_next_call(now: int, delay: int) -> None:
    wheel = TimerWheel(0)
    fire(wheel, now)
    wheel.insert(1, now + delay)
    assert wheel.next_deadline == now
    assert fire(wheel, now) == [1]


def test_a_delay_below_one_tick_waits_for_the_next_tick_only() -> None:
    for now in range(2500, 2600):
        wheel = TimerWheel(now)
        wheel.insert(1, now + 1)
        assert fire(wheel, now) == []
        assert fire(wheel, now + TICK_MS) == [1]


def test_a_clock_that_goes_back_is_taken_as_standing() -> None:
    wheel = TimerWheel(1000)
    wheel.insert(1, 1500)
    assert fire(wheel, 0) == []
    wheel.insert(2, 900)
    assert fire(wheel, 0) == [2]
    assert fire(wheel, 1500) == [1]


def test_an_empty_wheel_comes_along_with_the_clock() -> None:
    wheel = TimerWheel(0)
    assert fire(wheel, 10**9 + 3) == []
    wheel.insert(1, 10**9 + 25)
    assert wheel.next_deadline == 10**9 + 30, "not when a slot would have to fall"


def test_a_wheel_that_stood_still_for_long_places_keys_where_they_belong() -> None:
    wheel = TimerWheel(0)
    wheel.insert(1, 400 * DAY + 5)
    assert fire(wheel, 400 * DAY - 1) == []
    wheel.insert(2, 400 * DAY)
    wheel.insert(3, 400 * DAY + 2560)
    assert run(wheel, 401 * DAY) == [
        (2, 400 * DAY),
        (1, 400 * DAY + 10),
        (3, 400 * DAY + 2560),
    ]


@pytest.mark.parametrize("jump", [1 * DAY, 400 * DAY, 2**62])
def test_a_jump_of_the_clock_fires_everything_in_order(jump: int) -> None:
    wheel = TimerWheel(12_345)
    deadlines = {key: 12_345 + (key * 7919 * 7919) % jump for key in range(500)}
    wheel.extend(list(deadlines), list(deadlines.values()))
    fired = fire(wheel, 12_345 + jump)
    assert sorted(fired) == sorted(deadlines)
    ticks = [max(rounded_up(deadlines[key]), 12_345) for key in fired]
    assert ticks == sorted(ticks)


# --- cancelling and moving


def test_a_cancelled_key_does_not_fire() -> None:
    wheel = TimerWheel(0)
    wheel.insert(1, 100)
    wheel.insert(2, 100)
    assert (wheel.cancel(1), wheel.cancel(1), wheel.cancel(3)) == (True, False, False)
    assert (len(wheel), 1 in wheel, 2 in wheel) == (1, False, True)
    assert fire(wheel, 10_000) == [2]


def test_nothing_is_due_when_all_was_cancelled() -> None:
    wheel = TimerWheel(1000)
    for key, deadline in ((1, 500), (2, 1200), (3, DAY), (4, 400 * DAY)):
        wheel.insert(key, deadline)
        assert wheel.cancel(key)
    assert (len(wheel), wheel.next_deadline) == (0, None)
    assert fire(wheel, 500 * DAY) == []


def test_many_are_cancelled_at_once() -> None:
    wheel = TimerWheel(0)
    wheel.extend(range(1000), [10 * key for key in range(1000)])
    wheel.move(10, 77)
    wheel.move(500, 77)
    assert wheel.cancel_all(BitMap64(range(500, 2000))) == BitMap64(range(500, 1000))
    assert wheel.cancel_all(BitMap64(range(500, 2000))) == BitMap64()
    assert wheel.cancel_all(BitMap64()) == BitMap64()
    assert len(wheel) == 500
    wheel.insert(500, 20)
    assert sorted(fire(wheel, 10**6)) == list(range(501))


@pytest.mark.parametrize("first", [50, 5000, 500_000, DAY, 30 * DAY])
@pytest.mark.parametrize("second", [-5, 50, 5001, 500_000, 2 * DAY, 31 * DAY])
def test_a_moved_key_fires_at_its_new_time_only(first: int, second: int) -> None:
    wheel = TimerWheel(1000)
    wheel.insert(1, 1000 + first)
    assert wheel.move(1, 1000 + second) is True
    assert len(wheel) == 1
    assert run(wheel, 100 * DAY) == [(1, rounded_up(1000 + max(second, 0)))]


def test_a_key_that_is_not_armed_cannot_be_moved() -> None:
    wheel = TimerWheel(0)
    assert wheel.move(1, 100) is False
    assert (len(wheel), wheel.next_deadline) == (0, None)


def test_a_key_that_was_cancelled_and_armed_again_has_its_new_time() -> None:
    for first, second in ((100, 300), (300, 100), (100, 100), (100, 9000), (9000, 100)):
        wheel = TimerWheel(0)
        wheel.insert(1, first)
        wheel.cancel(1)
        wheel.insert(1, second)
        assert len(wheel) == 1
        assert run(wheel, DAY) == [(1, second)]


def test_a_key_that_fired_can_be_armed_again() -> None:
    wheel = TimerWheel(0)
    wheel.insert(1, 100)
    wheel.move(1, 50)
    assert fire(wheel, 50) == [1]
    wheel.insert(1, 2000)
    assert fire(wheel, 1999) == [], "what is left of the first time does not count"
    assert fire(wheel, 2000) == [1]


def test_the_same_time_again_fires_once() -> None:
    wheel = TimerWheel(0)
    for _ in range(1000):
        wheel.insert(1, 70)
    assert (len(wheel), wheel._entries) == (1, 2)
    assert fire(wheel, 70) == [1]
    wheel.insert(1, 500)
    assert fire(wheel, 499) == []


def test_a_key_that_was_moved_to_the_tick_it_had_is_not_left_there_twice() -> None:
    """Twice in a slot that is swept, it would look like armed there after it fired and was armed for later."""
    wheel = TimerWheel(0)
    wheel.extend(range(200), [3000] * 200)
    for key in range(200):
        wheel.move(key, 3000)
    wheel.insert(1000, 100)
    assert len(wheel) == 201
    assert sorted(fire(wheel, 3000)) == [*range(200), 1000]
    wheel.extend(range(200), [9000] * 200)
    assert fire(wheel, 8999) == []
    assert sorted(fire(wheel, 9000)) == list(range(200))


def test_the_largest_keys_fit() -> None:
    wheel = TimerWheel(0)
    wheel.extend([0, 2**62], [100, 50])
    wheel.insert(2**62 - 1, 70)
    assert fire(wheel, 100) == [2**62, 2**62 - 1, 0]


# --- in bulk


def test_many_inserted_at_once_are_as_if_one_by_one() -> None:
    deadlines = [5 * edge + 1000 for edge in EDGES] + [400 * DAY, 8 * DAY, 999, 1000, 1001]
    bulk, single = TimerWheel(1000), TimerWheel(1000)
    bulk.extend(range(len(deadlines)), deadlines)
    for key, deadline in enumerate(deadlines):
        single.insert(key, deadline)
    assert len(bulk) == len(single)
    assert sorted(run(bulk, 900 * DAY)) == sorted(run(single, 900 * DAY))


def test_known_keys_inserted_at_once_are_moved() -> None:
    wheel = TimerWheel(0)
    wheel.extend([1, 2, 3, 4], [100, 200, 300, 400])
    wheel.cancel(4)
    wheel.extend([2, 3, 4, 5, 6], [5000, 20, 6000, 40, 0])
    assert len(wheel) == 6
    assert run(wheel, DAY) == [(6, 0), (3, 20), (5, 40), (1, 100), (2, 5000), (4, 6000)]


def test_of_a_key_named_twice_the_last_time_counts() -> None:
    wheel = TimerWheel(0)
    wheel.extend([1, 2, 1], [100, 200, 300])
    assert run(wheel, DAY) == [(2, 200), (1, 300)]


def test_nothing_inserted_at_once_is_nothing() -> None:
    wheel = TimerWheel(0)
    wheel.extend([], [])
    assert len(wheel) == 0


def test_those_due_come_in_slices_earlier_ticks_first() -> None:
    wheel = TimerWheel(0)
    wheel.extend(range(1000), [1000 - key for key in range(1000)])
    slices = []
    while found := wheel.due(5000, 64):
        slices.append(found)
    assert [len(found) for found in slices] == [64] * 15 + [40]
    assert sorted(key for found in slices for key in found) == list(range(1000))
    for earlier, later in pairwise(slices):
        assert rounded_up(1000 - min(earlier)) <= rounded_up(1000 - max(later))
    assert (len(wheel), wheel.next_deadline) == (0, None)


def test_cancelled_and_moved_keys_are_not_due() -> None:
    wheel = TimerWheel(0)
    wheel.extend(range(10), [100] * 10)
    wheel.cancel(1)
    wheel.move(2, 5000)
    wheel.move(3, 20)
    wheel.cancel(4)
    wheel.insert(4, 100)
    assert wheel.due(20, ALL) == BitMap64([3])
    wheel.insert(3, 6000)
    assert wheel.due(100, 3) | wheel.due(100, ALL) == BitMap64([0, 4, 5, 6, 7, 8, 9])
    assert wheel.due(5999, ALL) == BitMap64([2])
    assert wheel.due(6000, ALL) == BitMap64([3])
    assert len(wheel) == 0


# --- slices


def test_a_limit_fires_that_many_and_says_whether_there_are_more() -> None:
    wheel = TimerWheel(0)
    wheel.extend(range(10), [100 * (key + 1) for key in range(10)])
    fired: list[int] = []
    more = [wheel.advance(1000, fired.append, 3) for _ in range(4)]
    assert (more, fired) == ([True, True, True, False], list(range(10)))


def test_there_is_no_more_when_the_limit_was_just_enough() -> None:
    wheel = TimerWheel(0)
    wheel.extend([1, 2, 3], [100, 100, 5000])
    fired: list[int] = []
    assert wheel.advance(4000, fired.append, 2) is False
    assert sorted(fired) == [1, 2]
    assert wheel.next_deadline is not None
    assert 4000 < wheel.next_deadline <= 5000


def test_there_is_no_more_when_the_rest_was_cancelled() -> None:
    wheel = TimerWheel(0)
    wheel.extend([1, 2, 3], [100, 100, 100])
    fired: list[int] = []
    assert wheel.advance(100, fired.append, 1) is True
    assert wheel.next_deadline == 100
    wheel.cancel_all(BitMap64([1, 2, 3]))
    assert wheel.next_deadline is None
    assert wheel.advance(100, fired.append, 1) is False
    assert len(fired) == 1


def test_a_limit_of_none_fires_none_but_says_that_there_are_some() -> None:
    wheel = TimerWheel(0)
    wheel.insert(1, 10)
    assert wheel.advance(9, never, 0) is False
    assert wheel.advance(10, never, 0) is True
    assert wheel.due(10, 0) == BitMap64()
    assert fire(wheel, 10) == [1]


def test_what_is_armed_between_slices_has_its_place_in_the_order() -> None:
    wheel = TimerWheel(0)
    wheel.extend([1, 2, 3, 4], [100, 100, 300, 500])
    fired: list[int] = []
    assert wheel.advance(1000, fired.append, 1)
    wheel.insert(5, 400)
    wheel.insert(6, 50)
    assert wheel.advance(1000, fired.append, ALL) is False
    assert sorted(fired[:3]) == [1, 2, 6]
    assert fired[3:] == [3, 5, 4]


def test_a_large_slot_moves_down_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel_module, "_STRIDE", 100)
    wheel = TimerWheel(0)
    wheel.extend(range(1000), [5000 + key % 97 for key in range(1000)])
    wheel.extend(range(1000, 1010), [20_000] * 10)
    assert wheel.next_deadline == 2560
    calls = 0
    fired: list[int] = []
    while wheel.advance(5050, fired.append, ALL):
        assert wheel.next_deadline == 5050, "call again now"
        calls += 1
        if calls == 5:  # whatever happens in between holds
            assert wheel.cancel(40)
            assert wheel.move(41, 6000)
            wheel.insert(1010, 5040)
    assert calls >= 9
    assert sorted(fired) == sorted({key for key in range(1000) if key % 97 <= 50} - {40, 41} | {1010})
    assert run(wheel, 6000)[-1] == (41, 6000)
    assert len(wheel) == 10


def test_due_says_by_the_next_deadline_that_a_large_slot_is_not_down_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel_module, "_STRIDE", 100)
    wheel = TimerWheel(0)
    wheel.extend(range(1000), [5000 + key % 97 for key in range(1000)])
    found = BitMap64()
    while (when := wheel.next_deadline) is not None and when <= 5100:
        found |= wheel.due(5100, 300)
    assert found == BitMap64(range(1000))


def test_keys_moved_to_the_tick_they_had_while_it_is_half_way_down_are_not_left_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wheel_module, "_STRIDE", 100)
    wheel = TimerWheel(0)
    wheel.extend(range(1000), [5000] * 1000)
    assert wheel.advance(5000, never, 0) is True
    for key in range(1000):
        wheel.move(key, 5000)  # enough to sweep what is dead
    assert wheel._entries < 1500
    first = list(wheel.due(5000, 400))
    wheel.extend(first, [20_000] * len(first))
    assert sorted(key for key, _ in run(wheel, 19_999)) == sorted(set(range(1000)) - set(first))
    assert sorted(run(wheel, 20_000)) == [(key, 20_000) for key in first]


# --- while it fires


def test_a_key_cancelled_while_its_slot_fires_does_not_fire_and_the_rest_does() -> None:
    wheel = TimerWheel(0)
    wheel.extend(range(100), [50] * 100)
    fired: list[int] = []

    def on_fire(key: int) -> None:
        assert key not in wheel
        fired.append(key)
        assert wheel.cancel(99 - key) is (99 - key not in fired)

    assert wheel.advance(50, on_fire, ALL) is False
    assert len(fired) == 50
    assert {99 - key for key in fired}.isdisjoint(fired)
    assert len(wheel) == 0


def test_all_others_cancelled_while_the_first_fires() -> None:
    wheel = TimerWheel(0)
    wheel.extend(range(1000), [50 + key for key in range(1000)])
    fired: list[int] = []

    def on_fire(key: int) -> None:
        fired.append(key)
        wheel.cancel_all(BitMap64(range(1000)))
        if key == 0:
            wheel.insert(5000, 70)
            wheel.insert(5001, 9000)

    assert wheel.advance(1050, on_fire, ALL) is False
    assert fired == [0, 5000]
    assert run(wheel, DAY) == [(5001, 9000)]


def test_a_key_moved_while_its_slot_fires_fires_at_its_new_time_only() -> None:
    wheel = TimerWheel(0)
    wheel.extend(range(10), [50] * 10)
    fired: list[int] = []

    def on_fire(key: int) -> None:
        fired.append(key)
        for other in range(10):
            wheel.move(other, 5000)

    assert wheel.advance(50, on_fire, ALL) is False
    assert len(fired) == 1
    assert fire(wheel, 4999) == []
    assert sorted(fired + fire(wheel, 5000)) == list(range(10))


def test_a_key_moved_to_the_past_while_its_slot_fires_fires_once() -> None:
    wheel = TimerWheel(0)
    wheel.extend(range(10), [50] * 10)
    fired: list[int] = []

    def on_fire(key: int) -> None:
        fired.append(key)
        for other in range(10):
            wheel.move(other, 20)

    while wheel.advance(50, on_fire, ALL):
        pass
    assert sorted(fired) == list(range(10))


def test_many_keys_moved_to_the_past_while_their_slot_fires_are_not_left_twice() -> None:
    """Enough for the dead to be swept there."""
    wheel = TimerWheel(0)
    wheel.extend(range(1000), [50] * 1000)
    fired: list[int] = []

    def on_fire(key: int) -> None:
        if not fired:
            for other in range(1000):
                wheel.move(other, 20)
            assert wheel._entries < 1200
        fired.append(key)
        wheel.insert(key, 9000)

    assert wheel.advance(50, on_fire, ALL) is False
    assert sorted(fired) == list(range(1000))
    assert fire(wheel, 8999) == []
    assert sorted(fire(wheel, 9000)) == list(range(1000))


def test_a_key_that_arms_itself_for_the_past_fires_once_per_call() -> None:
    wheel = TimerWheel(0)
    wheel.insert(1, 50)
    wheel.insert(2, 50)
    fired: list[int] = []

    def on_fire(key: int) -> None:
        fired.append(key)
        if key == 1:
            wheel.insert(1, 50)

    for calls in range(1, 5):
        assert wheel.advance(1000, on_fire, ALL) is True
        assert wheel.next_deadline == 1000
        assert fired.count(1) == calls
    assert fired.count(2) == 1


def test_a_key_that_arms_itself_for_later_fires_then() -> None:
    wheel = TimerWheel(0)
    wheel.insert(1, 100)
    fired: list[tuple[int, int]] = []

    def on_fire(key: int) -> None:
        fired.append((key, now))
        if len(fired) < 4:
            wheel.insert(key, now + 1000)

    for now in range(0, 20_000, 10):
        assert wheel.advance(now, on_fire, ALL) is False
    assert fired == [(1, 100), (1, 1100), (1, 2100), (1, 3100)]


def test_when_a_callback_fails_nothing_else_is_lost() -> None:
    wheel = TimerWheel(0)
    wheel.extend(range(20), [10 * (key // 4) for key in range(20)])
    fired: list[int] = []

    def on_fire(key: int) -> None:
        fired.append(key)
        if key % 3 == 0:
            raise RuntimeError("it broke")

    failures = 0
    while len(wheel):
        try:
            wheel.advance(1000, on_fire, ALL)
        except RuntimeError:
            failures += 1
            assert len(fired) + len(wheel) == 20
    assert sorted(fired) == list(range(20))
    assert failures == 7


def test_many_moves_while_it_fires_lose_nothing() -> None:
    """Enough for the dead to be swept in the middle of a slot."""
    wheel = TimerWheel(0)
    wheel.extend(range(2000), [50] * 2000)
    wheel.extend(range(2000, 4000), [60] * 2000)
    fired: list[int] = []

    def on_fire(key: int) -> None:
        fired.append(key)
        if key % 2 and key < 2000:
            for other in range(2000 + key - 1, 2000 + key + 1):
                wheel.move(other, 100_000 + key)
            wheel.cancel(key - 1)

    assert wheel.advance(60, on_fire, ALL) is False
    assert set(range(1, 2000, 2)) <= set(fired)
    assert len(fired) == len(set(fired))
    later = fire(wheel, 200_000)
    assert sorted(later) == list(range(2000, 4000))
    assert len(wheel) == 0


# --- what it costs


def test_dead_entries_do_not_pile_up() -> None:
    wheel = TimerWheel(0)
    wheel.extend(range(1000), [DAY] * 1000)
    for turn in range(50):
        for key in range(1000):
            wheel.move(key, 2 * DAY + turn * 1000 + key)
    assert wheel._entries < 1500
    for turn in range(50):
        wheel.extend(range(1000, 2000), [3 * DAY + turn] * 1000)
        wheel.cancel_all(BitMap64(range(1000, 2000)))
    assert wheel._entries < 2500
    assert len(wheel) == 1000
    wheel.cancel_all(BitMap64(range(1000)))
    assert wheel._entries < 200


def test_doubts_about_keys_that_are_gone_do_not_pile_up() -> None:
    """One key stays for ever; others come, are moved and fire, for ever."""
    wheel = TimerWheel(0)
    wheel.insert(0, 400 * DAY)
    wheel.insert(1, 300 * DAY)
    wheel.move(1, 301 * DAY)
    for key in range(2, 10_000):
        wheel.insert(key, 10 * key + 100)
        wheel.move(key, 10 * key)
        assert wheel.due(10 * key, ALL) == BitMap64([key])
    assert len(wheel._doubtful) < 200
    assert len(wheel._ticks) < 200
    assert wheel._entries < 200


def test_a_key_takes_less_than_forty_bytes() -> None:
    wheel = TimerWheel(0)
    count = 200_000
    wheel.extend(range(10**12, 10**12 + 5 * count, 5), [100 + (key * 7919) % (30 * DAY) for key in range(count)])
    for key in range(10**12, 10**12 + count, 5):
        wheel.move(key, key % DAY + 1000)
    columns = sum(sys.getsizeof(column) for level in wheel._levels for slot in level.values() for column in slot)
    bitmaps = len(wheel._armed.serialize()) + len(wheel._doubtful.serialize())
    moved = sys.getsizeof(wheel._ticks) + 64 * len(wheel._ticks)
    assert columns + bitmaps + moved < 40 * count


# --- arguments


def test_what_makes_no_sense_is_refused_and_changes_nothing() -> None:
    wheel = TimerWheel(0)
    wheel.insert(1, 100)
    with pytest.raises(ValueError, match="2 keys cannot have 1 deadlines"):
        wheel.extend([2, 3], [100])
    with pytest.raises(OverflowError):
        wheel.insert(-1, 100)
    with pytest.raises(OverflowError):
        wheel.extend([2, -1], [100, 100])
    with pytest.raises(ValueError, match="beyond the end of the clock"):
        wheel.insert(2, 10**20)
    with pytest.raises(ValueError, match="beyond the end of the clock"):
        wheel.insert(1, 10**20)
    with pytest.raises(ValueError, match="beyond the end of the clock"):
        wheel.extend([1, 2, 3], [70, 100, 10**20])
    with pytest.raises(ValueError, match="starts at 0 or later"):
        TimerWheel(-1)
    assert len(wheel) == 1
    assert run(wheel, 500 * DAY) == [(1, 100)]
