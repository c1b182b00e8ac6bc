"""Blocking work beside the event loop: disk calls that may take long run on threads of their own.

Never the loop's default executor, which others may fill: a cold read must not wait behind a name look-up.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Aside:
    """A few threads for one kind of work."""

    def __init__(self, kind: str, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=f"goqueue-{kind}")

    async def run(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.wrap_future(self._pool.submit(work, *args, **kwargs))

    def close(self) -> None:
        """Let what runs finish; drop what has not begun."""
        self._pool.shutdown(wait=True, cancel_futures=True)
