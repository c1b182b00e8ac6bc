"""Bytes in flight, bounded: the one ticket everything large must have on its way through the broker.

A door takes bytes before it holds them and gives them back when it no longer does. When none are left it
stops reading its sockets, or answers `busy`. Requests and replies have budgets of their own, so that clients who
do not read their replies cannot keep others from publishing.
"""

import asyncio
from collections import deque

from goqueue.model.errors import Busy


class Admission:
    """First come, first served. Used from one event loop."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def try_take(self, size: int) -> bool:
        """Take `size` bytes now, or none."""
        if size and (self._waiting or self.held + size > self.limit):
            return False
        self.held += size
        return True

    def take_anyway(self, size: int) -> None:
        """For bytes that are here already: others wait the longer."""
        self.held += size

    async def take(self, size: int, *, timeout_s: float) -> None:
        """Wait for `size` bytes; Busy when they do not come in time."""
        if self.try_take(size):
            return
        if size > self.limit:
            raise Busy(f"{size} bytes are more than the {self.limit} that may be in flight; send less at a time")
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, future))
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except BaseException as error:
            if future.done() and not future.cancelled():  # served, but nobody is here any more to take it
                self.give(size)
            self._waiting = deque(entry for entry in self._waiting if entry[1] is not future)
            self._serve()
            if isinstance(error, TimeoutError):
                raise Busy(f"{self.held} bytes are in flight already, the most there may be; try again") from None
            raise

    def give(self, size: int) -> None:
        self.held -= size
        if self._waiting:
            self._serve()

    def _serve(self) -> None:
        while self._waiting:
            size, future = self._waiting[0]
            if future.done():
                self._waiting.popleft()
                continue
            if self.held + size > self.limit:
                return
            self._waiting.popleft()
            self.held += size
            future.set_result(None)
