"""Work that is cancelled where it waits, at each of its waits in turn.

What is under way when a task is cancelled goes on elsewhere: a request was written, and its answer is heard by nobody.
"""

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any


class _Counted:
    """Awaits a coroutine, and cancels the task that it is in at its n-th suspension."""

    def __init__(self, work: Coroutine[Any, Any, Any], at: int) -> None:
        self._work = work
        self._at = at

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._work.__await__()
        left = self._at
        thrown: BaseException | None = None
        while True:
            try:
                waits_for = steps.send(None) if thrown is None else steps.throw(thrown)
            except StopIteration as end:
                return end.value
            left -= 1
            if not left:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            thrown = None
            try:
                yield waits_for
            except BaseException as error:
                thrown = error


async def cancelled_at(work: Coroutine[Any, Any, Any], at: int) -> bool:
    """Whether it waited so often, and was cancelled there; else it ended by itself. Errors of its own are raised."""

    async def counted() -> None:
        await _Counted(work, at)

    task = asyncio.create_task(counted())
    await asyncio.wait([task])
    if task.cancelled():
        return True
    task.result()
    return False
