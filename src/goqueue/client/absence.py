"""Why a consumer is in no group for now: none of its topics is there. It goes on trying, and joins when one is.

Whoever polls meanwhile has an attempt made for it, and hears what came of that one: so a poll fails as long as there is
no topic, and the next one after it was created works. Attempts keep a distance, however often somebody polls.
"""

import asyncio
from typing import Final

from goqueue.client.link import backoff_s
from goqueue.model.errors import UnknownTopic
from goqueue.wire.failures import repeat

DISTANCE_S: Final = 0.1


class Absence:
    """Made inside its loop. `reason` is None for a consumer that is in its group."""

    def __init__(self) -> None:
        self.reason: UnknownTopic | None = None
        self._begun = 0
        self._ended = 0
        self._failures = 0
        self._wanted = asyncio.Event()
        self._news = asyncio.Event()

    def begin(self) -> None:
        """An attempt begins."""
        self._begun += 1

    def end(self, reason: UnknownTopic | None) -> None:
        """It ended: why there is nothing to join, or None."""
        self._ended = self._begun
        self._failures = 0 if reason is None else self._failures + 1
        self.reason = reason
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def pause(self) -> None:
        """Until the next attempt: somebody wants it, or it is time."""
        await asyncio.sleep(DISTANCE_S)
        try:
            async with asyncio.timeout(backoff_s(self._failures)):
                await self._wanted.wait()
        except TimeoutError:
            pass
        self._wanted.clear()

    async def look(self) -> None:
        """Have an attempt made, and raise why it failed."""
        due = self._begun + 1
        while self.reason is not None and self._ended < due:
            self._wanted.set()
            await self._news.wait()
        self.check()

    def check(self) -> None:
        if self.reason is not None:
            raise repeat(self.reason)
