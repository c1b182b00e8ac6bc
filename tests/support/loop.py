"""Coroutines in plain tests: each test has a loop of its own, and nobody in it waits for ever."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from tests.support.patience import PATIENCE_S

T = TypeVar("T")

_TURNS: Final = 20


def run(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine; TimeoutError when it hangs."""

    async def watched() -> T:
        async with asyncio.timeout(PATIENCE_S):
            return await work

    return asyncio.run(watched())


async def turns(count: int = _TURNS) -> None:
    """Let every task that can go on do so, that many times."""
    for _ in range(count):
        await asyncio.sleep(0)
