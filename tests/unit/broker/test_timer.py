"""One timer for a machine with deadlines."""

from goqueue.broker.timer import Timer
from tests.support.loop import turns
from tests.support.moved_time import START_MS, MovedTime, run_timed


class Rig:
    """A timer whose deadline a test sets."""

    def __init__(self) -> None:
        self.time = MovedTime()
        self.deadline: int | None = None
        self.fired: list[int] = []
        self.timer = Timer(lambda: self.deadline, self.time, lambda: self.fired.append(self.time()))

    def set(self, after_ms: int | None) -> None:
        self.deadline = None if after_ms is None else START_MS + after_ms
        self.timer.arm()

    async def move(self, by_ms: int) -> None:
        self.time.move(by_ms)
        await turns()


def test_it_fires_when_the_deadline_has_come_and_not_before() -> None:
    async def go() -> None:
        rig = Rig()
        rig.set(10_000)
        await rig.move(9_000)
        assert rig.fired == []
        await rig.move(1_000)
        assert rig.fired == [START_MS + 10_000]
        await rig.move(100_000)
        assert len(rig.fired) == 1, "it is armed anew by whoever has a new deadline"

    run_timed(go())


def test_an_earlier_deadline_brings_it_forward_and_a_later_one_puts_it_off() -> None:
    async def go() -> None:
        rig = Rig()
        rig.set(60_000)
        rig.set(10_000)
        rig.set(20_000)
        await rig.move(19_000)
        assert rig.fired == []
        await rig.move(1_000)
        assert len(rig.fired) == 1

    run_timed(go())


def test_a_deadline_that_has_passed_fires_in_the_next_turn_and_not_at_once() -> None:
    async def go() -> None:
        rig = Rig()
        rig.set(-5_000)
        assert rig.fired == []
        await turns()
        assert len(rig.fired) == 1

    run_timed(go())


def test_without_a_deadline_it_rests() -> None:
    async def go() -> None:
        rig = Rig()
        rig.set(10_000)
        rig.set(None)
        await rig.move(100_000)
        assert rig.fired == []

    run_timed(go())


def test_a_timer_that_was_stopped_can_be_armed_again() -> None:
    async def go() -> None:
        rig = Rig()
        rig.set(10_000)
        rig.timer.stop()
        await rig.move(10_000)
        assert rig.fired == []
        rig.set(10_000)
        await turns()
        assert len(rig.fired) == 1

    run_timed(go())
