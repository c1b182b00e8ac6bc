"""The event loop of a consumer: giving it a turn when it has had none for a while, and waiting in it and in no other.

Handing out what is in stock and queueing decisions never have to wait. So a handler that works without awaiting would
keep the loop from sending its acks and extending its leases until the stock is empty, by which time they are late.
"""

import asyncio
from time import monotonic
from typing import Final

from goqueue.model.errors import InvalidRequest

TURN_S: Final = 0.005
"""After how long the loop gets a turn."""
_LONG_S: Final = 0.05
_SEVERAL: Final = 6
"""After so long it gets as many turns as a decision, or an extension, needs to be on its way."""


class LoopTurns:
    """Turns of the event loop that a consumer lives in (`loop`)."""

    __slots__ = ("last", "loop")

    def __init__(self) -> None:
        self.last = monotonic()
        self.loop: asyncio.AbstractEventLoop | None = None

    def check_loop(self) -> asyncio.AbstractEventLoop:
        """The running one. InvalidRequest when the consumer lives in another: what it tells would not be heard here."""
        running = asyncio.get_running_loop()
        if self.loop is not None and self.loop is not running:
            raise InvalidRequest(
                "a consumer belongs to one event loop, and its messages with it; poll and wait for them there, or "
                "settle without wait"
            )
        return running

    async def give(self) -> None:
        now = monotonic()
        for _ in range(_SEVERAL if now - self.last > _LONG_S else 1):
            await asyncio.sleep(0)
        self.last = monotonic()
