"""How large requests share the event loop: one of them works at a time, a moment each, and everybody else between them.

What is large is cut into steps by whoever knows it: reading a message of a request, showing one in a reply. A step that
cannot be cut has a turn for itself.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Final, TypeVar

from goqueue.model import limits

S = TypeVar("S")
T = TypeVar("T")

FEW: Final = 64
"""Lists up to this length are worked on without giving others a turn."""


class Turns:
    """First come, first served, also among the turns of one request. Used from one event loop."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """For what cannot be cut: nothing else that is large works before the loop has gone round."""
        async with self._lock:
            yield
            await asyncio.sleep(0)

    async def take(self, steps: Iterable[object]) -> None:
        """Do all steps, in as many turns as they need; at once if nobody else has a turn and they are few."""
        left = iter(steps)
        if not self._lock.locked() and _work(left):
            return
        while True:
            async with self.turn():
                if _work(left):
                    return


async def in_turns(turns: Turns, entries: Sequence[S], convert: Callable[[S], T]) -> list[T]:
    """Each of them converted; where they are many, others get their turns meanwhile."""
    if len(entries) <= FEW:
        return [convert(entry) for entry in entries]
    made: list[T] = []

    def steps() -> Iterator[None]:
        for entry in entries:
            made.append(convert(entry))
            yield

    await turns.take(steps())
    return made


def exhaust(steps: Iterable[object]) -> None:
    """Do all steps now, without a pause."""
    deque(steps, maxlen=0)


def _work(steps: Iterable[object]) -> bool:
    """Do steps for a moment; whether there are none left."""
    until = perf_counter() + limits.TURN_S
    return all(perf_counter() <= until for _ in steps)
