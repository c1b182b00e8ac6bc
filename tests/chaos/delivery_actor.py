"""Somebody who takes part in the load of the delivery rigs, the topic it is about, and the book all write into."""

import asyncio
import random
import time
from collections.abc import Awaitable
from typing import Any, Final, NamedTuple

from goqueue.model.errors import Draining, LogClosed, RequestTimeout, StorageFailed, Unavailable
from tests.support.delivery_doors import Caller
from tests.support.delivery_ledger import DONE, Answered, AnyEvent, Asking, Place, Verb

TOPIC: Final = "load"
PARTITIONS: Final = 3
MAX_RETRIES: Final = 2
VISIBILITY_MS: Final = 400
SETTINGS: Final[dict[str, Any]] = {
    "segment_bytes": 32 * 1024,
    "max_retries": MAX_RETRIES,
    "visibility_timeout": f"{VISIBILITY_MS}ms",
    "backoff": {"base": "40ms", "factor": 2, "max": "200ms"},
}
"""Of the topic."""

NO_ANSWER: Final = (Unavailable, RequestTimeout, StorageFailed)
"""Then it may have been done or not."""
IN_DOUBT: Final = {error.code for error in (*NO_ANSWER, Draining, LogClosed)}
_RETRY_S: Final = 0.02


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Pending(NamedTuple):
    """A delayed message that somebody may still cancel or move."""

    number: int
    place: Place
    deliver_at: int


class Book:
    """What everybody writes down."""

    def __init__(self) -> None:
        self.events: list[AnyEvent] = []
        self.under_way = 0
        """Requests without an answer, polls not counted."""
        self.delayed: list[Pending] = []
        self._numbers = self._requests = 0

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def ask(self, verb: Verb, number: int, place: Place, **fields: Any) -> int:
        """The number of the request."""
        self._requests += 1
        self.events.append(Asking(now_ms(), self._requests, verb, number, place, **fields))
        return self._requests

    def answer(self, request: int, code: str = DONE, visible_at: int | None = None) -> None:
        self.events.append(Answered(now_ms(), request, code, visible_at))


class Actor:
    """Somebody who does one thing after the other, on a new connection whenever the old one is lost."""

    def __init__(self, book: Book, caller: Caller, dice: random.Random) -> None:
        self._book = book
        self._caller = caller
        self._dice = dice
        self.is_stopped = False

    async def run(self) -> None:
        try:
            await self._go_on()
        finally:
            await self._caller.close()

    async def _go_on(self) -> None:
        is_open = False
        while not self.is_stopped:
            try:
                if not is_open:
                    await self._caller.open()
                    is_open = True
                await self.step()
            except NO_ANSWER:
                is_open = False
                await asyncio.sleep(_RETRY_S)

    async def step(self) -> None:
        raise NotImplementedError

    async def _under_way(self, work: Awaitable[Any]) -> Any:
        self._book.under_way += 1
        try:
            return await work
        finally:
            self._book.under_way -= 1
