"""A timer wheel does what a plain table of times would, whatever is armed, cancelled and moved, and when.

The table holds for each key its deadline and when that is due: at the end of its tick, or at once if it had passed
when it was armed. Checked at every single firing: it is armed, it is due, it is never early, it is in order.
"""

from typing import NamedTuple
from unittest import mock

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from pyroaring import BitMap64

from goqueue.base import wheel as wheel_module
from goqueue.base.wheel import TICK_MS, TimerWheel

DAY = 86_400_000
SLOTS = (10, 2560, 163_840, 10_485_760, 671_088_640)
ALL = 10**9

keys = st.integers(0, 12) | st.sampled_from([2**32, 2**62 - 1, 2**62])
edges = st.builds(lambda slot, times, around: slot * times + around, st.sampled_from(SLOTS), st.integers(0, 65),
                  st.sampled_from([-11, -10, -9, -1, 0, 1, 9, 10, 11]))  # fmt: skip
delays = st.integers(-30, 30) | edges | st.integers(0, 3000) | st.integers(0, 10**6) | st.integers(0, 500 * DAY)
steps = st.integers(0, 30) | edges.map(abs) | st.integers(0, 3000) | st.integers(0, 10**6) | st.integers(0, 500 * DAY)
limits = st.sampled_from([0, 1, 2, 5, ALL, ALL])


class Timer(NamedTuple):
    deadline: int
    due: int
    passed: bool
    """It had passed when it was armed: then it has no place in the order."""


class Action(NamedTuple):
    """What a callback does."""

    verb: str
    key: int
    delay: int


actions = st.builds(
    Action, st.sampled_from(["insert", "move", "cancel", "cancel all but", "extend", "raise"]), keys, delays
)


class Broken(Exception):
    pass


class WheelMachine(RuleBasedStateMachine):
    """Every call does all there is to do, up to its limit."""

    stride = 1 << 16
    exact = True

    def __init__(self) -> None:
        super().__init__()
        self.small = [
            mock.patch.object(wheel_module, "_SPARE", 2),
            mock.patch.object(wheel_module, "_STRIDE", self.stride),
        ]
        for each in self.small:
            each.start()
        self.wheel = TimerWheel(0)
        self.now = 0
        self.table: dict[int, Timer] = {}
        self.last = 0
        """When the latest one that fired in this call was due."""
        self.armed_inside: set[int] = set()

    def teardown(self) -> None:
        try:
            self.advance(later=600 * DAY, limit=ALL)
            assert not self.table
            assert self.wheel.next_deadline is None
        finally:
            for each in self.small:
                each.stop()

    @initialize(now=steps)
    def start(self, now: int) -> None:
        self.wheel = TimerWheel(now)
        self.now = now

    # --- arming

    def arm(self, key: int, deadline: int) -> None:
        if deadline > self.now:
            self.table[key] = Timer(deadline, -(-deadline // TICK_MS) * TICK_MS, passed=False)
        else:
            self.table[key] = Timer(deadline, self.now, passed=True)

    @rule(key=keys, delay=delays)
    def insert(self, key: int, delay: int) -> None:
        self.wheel.insert(key, self.now + delay)
        self.arm(key, self.now + delay)

    @rule(entries=st.lists(st.tuples(keys, delays), max_size=12))
    def extend(self, entries: list[tuple[int, int]]) -> None:
        self.wheel.extend([key for key, _ in entries], [self.now + delay for _, delay in entries])
        for key, delay in entries:
            self.arm(key, self.now + delay)

    @rule(first=st.integers(20, 60), count=st.integers(1, 60), delay=delays, apart=st.sampled_from([0, 1, 10, 2560]))
    def extend_a_run(self, first: int, count: int, delay: int, apart: int) -> None:
        deadlines = [self.now + delay + each * apart for each in range(count)]
        self.wheel.extend(range(first, first + count), deadlines)
        for key, deadline in enumerate(deadlines, first):
            self.arm(key, deadline)

    @rule(key=keys | st.integers(20, 120), delay=delays)
    def move(self, key: int, delay: int) -> None:
        assert self.wheel.move(key, self.now + delay) is (key in self.table)
        if key in self.table:
            self.arm(key, self.now + delay)

    @rule(key=keys | st.integers(20, 120))
    def cancel(self, key: int) -> None:
        assert self.wheel.cancel(key) is (key in self.table)
        self.table.pop(key, None)

    @rule(some=st.sets(keys | st.integers(20, 120)))
    def cancel_all(self, some: set[int]) -> None:
        assert set(self.wheel.cancel_all(BitMap64(some))) == some & self.table.keys()
        self.table = {key: timer for key, timer in self.table.items() if key not in some}

    @rule(first=st.integers(20, 60), count=st.integers(1, 60))
    def cancel_a_run(self, first: int, count: int) -> None:
        self.cancel_all(set(range(first, first + count)))

    # --- firing

    def due(self) -> set[int]:
        return {key for key, timer in self.table.items() if timer.due <= self.now}

    def fired(self, key: int) -> None:
        timer = self.table.pop(key)
        assert timer.deadline <= self.now, "it is early"
        assert timer.due <= self.now
        assert key not in self.wheel
        if not timer.passed:
            assert timer.due >= self.last, "it is out of order"
            self.last = timer.due

    def nothing_earlier_is_left(self) -> None:
        left = [timer.due for timer in self.table.values() if not timer.passed]
        assert self.last <= min(left, default=self.last)

    @rule(later=steps, limit=limits)
    def advance(self, later: int, limit: int) -> None:
        self.now += later
        self.last = 0
        before = len(self.table)
        expected = min(limit, len(self.due()))
        more = self.wheel.advance(self.now, self.fired, limit)
        while not self.exact and more and before - len(self.table) < expected:
            more = self.wheel.advance(self.now, self.fired, limit - (before - len(self.table)))
        assert before - len(self.table) == expected
        assert more or not self.due()
        if self.exact:
            assert more == bool(self.due())
        self.nothing_earlier_is_left()

    @rule(later=steps, limit=limits)
    def take_due(self, later: int, limit: int) -> None:
        self.now += later
        self.last = 0
        expected = min(limit, len(self.due()))
        found = self.wheel.due(self.now, limit)
        while not self.exact and len(found) < expected:
            assert self.wheel.next_deadline is not None
            assert self.wheel.next_deadline <= self.now, "there is more"
            found |= self.wheel.due(self.now, limit - len(found))
        assert len(found) == expected
        for key in sorted(found, key=lambda key: self.table[key].due):
            self.fired(key)
        self.nothing_earlier_is_left()

    @rule(later=steps, limit=limits, script=st.lists(st.lists(actions, max_size=3), max_size=5))
    def advance_with_callbacks(self, later: int, limit: int, script: list[list[Action]]) -> None:
        """The first that fires does what the first line says, and so on."""
        self.now += later
        self.last = 0
        self.armed_inside = set()
        count = 0

        def on_fire(key: int) -> None:
            nonlocal count
            self.fired(key)
            count += 1
            for action in script[count - 1] if count <= len(script) else []:
                self.act(action)

        while True:
            try:
                more = self.wheel.advance(self.now, on_fire, limit - count)
            except Broken:
                continue
            if self.exact:
                assert more == bool(self.due())
                # What was there before has fired; only what was armed inside may be left.
                assert count == limit or self.due() <= self.armed_inside
            if not more or count == limit:
                break
        assert count == limit or not self.due()

    def act(self, action: Action) -> None:
        verb, key, delay = action
        if verb in ("insert", "move", "extend") and (verb != "move" or key in self.table):
            self.armed_inside.add(key)
        match verb:
            case "insert":
                self.insert(key, delay)
            case "move":
                self.move(key, delay)
            case "cancel":
                self.cancel(key)
            case "cancel all but":
                self.cancel_all(self.table.keys() - {key})
            case "extend":
                self.extend([(key, delay)])
            case "raise":
                raise Broken
        self.books()

    # --- at any time

    @invariant()
    def the_table_and_the_wheel_agree(self) -> None:
        assert len(self.wheel) == len(self.table)
        assert all(key in self.wheel for key in self.table)

    @invariant()
    def the_next_deadline_is_never_too_late(self) -> None:
        when = self.wheel.next_deadline
        if not self.table:
            assert when is None
            return
        assert when is not None
        assert when <= max(self.now, min(timer.due for timer in self.table.values()))
        if when <= self.now and not self.due():
            # Something has to fall, that is all there is to do; a driver does not spin.
            while self.wheel.advance(self.now, self.fired, ALL):
                assert not self.exact
            assert (self.wheel.next_deadline or 0) > self.now

    @invariant()
    def books(self) -> None:
        wheel = self.wheel
        columns = [wheel._ready, wheel._late, wheel._falling[0]]
        columns += [slot[0] for level in wheel._levels for slot in level.values()]
        assert sum(map(len, columns)) == wheel._entries >= wheel._count == len(wheel._armed)
        assert set(wheel._ticks) == set(wheel._armed & wheel._doubtful)
        assert wheel._doubts >= len(wheel._doubtful)
        assert (wheel._doubts == 0) == (not wheel._doubtful)


class SteppingWheelMachine(WheelMachine):
    """A call moves at most three entries down, so that much happens while a slot is half-way."""

    stride = 3
    exact = False


WheelMachine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
SteppingWheelMachine.TestCase.settings = WheelMachine.TestCase.settings
test_a_wheel_does_what_a_table_would = WheelMachine.TestCase
test_a_wheel_does_what_a_table_would_step_by_step = SteppingWheelMachine.TestCase


@settings(max_examples=200, deadline=None)
@given(start=steps, entries=st.lists(delays, min_size=1, max_size=20))
def test_a_driver_that_follows_the_next_deadline_fires_everything_on_time(start: int, entries: list[int]) -> None:
    """Each at its tick, to the millisecond, with few calls in which slots only fall."""
    wheel = TimerWheel(start)
    wheel.extend(range(len(entries)), [start + delay for delay in entries])
    calls = 0
    now = start
    while (when := wheel.next_deadline) is not None:
        assert when > now or calls == 0, "it did nothing"
        now = when
        calls += 1
        fired: list[int] = []
        assert wheel.advance(now, fired.append, ALL) is False
        for key in fired:
            deadline = start + entries[key]
            assert now == (start if deadline <= start else -(-deadline // TICK_MS) * TICK_MS)
    assert len(wheel) == 0
    assert calls <= 6 * len(entries)
