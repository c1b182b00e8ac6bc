"""A seeded event queue: the tasks of a simulated process take turns, and chance decides among those that are due.

A task is a generator that yields how many milliseconds it sleeps. Between two yields it runs alone.
"""

import heapq
from collections.abc import Generator
from random import Random

from sim.clock import SimClock
from sim.trace import Trace

Task = Generator[int, None, None]


class Scheduler:
    """Runs tasks until all have ended or `stop` was called."""

    def __init__(self, clock: SimClock, rng: Random, trace: Trace) -> None:
        self._clock = clock
        self._rng = rng
        self._trace = trace
        self._queue: list[tuple[int, float, int, str, Task]] = []
        self._spawned = 0

    def __len__(self) -> int:
        return len(self._queue)

    def spawn(self, name: str, task: Task, *, after: int = 0) -> None:
        self._spawned += 1
        self._push(self._clock.elapsed + after, self._spawned, name, task)

    def step(self) -> bool:
        """Give one task its turn; False when there is none."""
        if not self._queue:
            return False
        due, _, number, name, task = heapq.heappop(self._queue)
        if due > self._clock.elapsed:
            self._clock.advance(due - self._clock.elapsed)
        self._trace.event("turn", name, self._clock.elapsed)
        try:
            sleep = next(task)
        except StopIteration:
            return True
        self._push(self._clock.elapsed + sleep, number, name, task)
        return True

    def run(self) -> None:
        while self.step():
            pass

    def stop(self) -> None:
        """The process died: no task gets another turn."""
        tasks = [entry[4] for entry in self._queue]
        self._queue.clear()
        for task in tasks:
            task.close()

    def _push(self, due: int, number: int, name: str, task: Task) -> None:
        heapq.heappush(self._queue, (due, self._rng.random(), number, name, task))
