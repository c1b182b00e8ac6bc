"""Time that a test moves on: for a broker's monotonic clock and for the timers of the loop it runs on, together."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

START_MS = 5_000_000


class _Loop(asyncio.SelectorEventLoop):
    moved_ms = 0

    def time(self) -> float:
        return super().time() + self.moved_ms / 1000


class MovedTime:
    """Monotonic milliseconds. They stand still until a test moves them."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, _Loop), "run the test with `run_timed`"
        self._loop = loop

    def __call__(self) -> int:
        return START_MS + self._loop.moved_ms

    def move(self, by_ms: int) -> None:
        """Timers that fall due meanwhile fire in the next turn of the loop."""
        self._loop.moved_ms += by_ms


async def when_late(waiting: Awaitable[T], is_so: Callable[[], object], by_ms: int) -> T:
    """What comes of something that has waited for so long from when something else is so."""
    task = asyncio.ensure_future(waiting)
    while not is_so():
        await asyncio.sleep(0)
    MovedTime().move(by_ms)
    return await task


def run_timed(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine on a loop whose time can be moved."""
    with asyncio.Runner(loop_factory=_Loop) as runner:
        return runner.run(work)
