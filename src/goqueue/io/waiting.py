"""Sleeping on a mark: for threads and for asyncio tasks. Marks only call back; this is where they wait."""

import asyncio
import threading

from goqueue.base.mark import Mark


def wait_for(mark: Mark, threshold: int, timeout_s: float | None = None) -> None:
    """Block this thread until the mark reaches `threshold`. TimeoutError, or the mark's failure."""
    done = threading.Event()
    outcome: list[Exception | None] = []

    def wake(error: Exception | None) -> None:
        outcome.append(error)
        done.set()

    waiter = mark.when(threshold, wake)
    if not done.wait(timeout_s):
        waiter.cancel()
        raise TimeoutError(f"still waiting for {threshold}, the mark is at {mark.value}")
    if outcome[0] is not None:
        raise outcome[0].with_traceback(None)


async def reached(mark: Mark, threshold: int) -> None:
    """Wait in this task until the mark reaches `threshold`; raises the mark's failure."""
    if mark.failure is None and mark.value >= threshold:
        return
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def settle(error: Exception | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error.with_traceback(None))
        else:
            future.set_result(None)

    def wake(error: Exception | None) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, error)

    waiter = mark.when(threshold, wake)
    try:
        await future
    finally:
        waiter.cancel()
