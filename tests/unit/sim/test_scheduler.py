"""The schedule: tasks take turns at random, and the seed decides everything."""

from random import Random

import pytest

from sim.clock import SimClock
from sim.scheduler import Scheduler, Task
from sim.trace import Trace


def run(seed: int) -> tuple[list[str], str, int]:
    clock, trace, order = SimClock(), Trace(), list[str]()
    scheduler = Scheduler(clock, Random(seed), trace)

    def task(name: str, sleep: int) -> Task:
        for _ in range(3):
            order.append(name)
            yield sleep

    scheduler.spawn("a", task("a", 0))
    scheduler.spawn("b", task("b", 0))
    scheduler.spawn("slow", task("slow", 50))
    scheduler.run()
    return order, trace.digest(), clock.elapsed


def test_same_seed_same_order_and_same_trace() -> None:
    assert run(7) == run(7)
    assert len({run(seed)[1] for seed in range(20)}) > 5


def test_chance_decides_among_tasks_that_are_due() -> None:
    assert {run(seed)[0][0] for seed in range(50)} == {"a", "b", "slow"}


def test_time_jumps_to_the_next_task_when_none_is_due() -> None:
    order, _, elapsed = run(1)
    assert order[-2:] == ["slow", "slow"]
    assert elapsed == 150


def test_stop_ends_every_task_without_another_turn() -> None:
    clock, ended = SimClock(), list[str]()
    scheduler = Scheduler(clock, Random(0), Trace())

    def task() -> Task:
        try:
            while True:
                yield 1
        finally:
            ended.append("ended")

    scheduler.spawn("a", task())
    assert scheduler.step()
    scheduler.stop()
    assert not scheduler.step()
    assert ended == ["ended"]


def test_clock_can_be_set_back_but_does_not_run_backwards() -> None:
    clock = SimClock(now=1000)
    clock.advance(5)
    clock.step(-100)
    assert (clock.now, clock.elapsed) == (905, 5)
    with pytest.raises(ValueError, match="backwards"):
        clock.advance(-1)
