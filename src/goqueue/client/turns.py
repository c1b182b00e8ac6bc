"""Giving the event loop a turn when it has had none for a while.

Handing out what is in stock and queueing decisions never have to wait. So a handler that works without awaiting would
keep the loop from sending its acks and extending its leases until the stock is empty, by which time they are late.
"""

import asyncio
from time import monotonic
from typing import Final

TURN_S: Final = 0.005
"""After how long the loop gets a turn."""
_LONG_S: Final = 0.05
_SEVERAL: Final = 6
"""After so long it gets as many turns as a decision, or an extension, needs to be on its way."""


class Turns:
    """Of one consumer."""

    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last = monotonic()

    async def give(self) -> None:
        now = monotonic()
        for _ in range(_SEVERAL if now - self.last > _LONG_S else 1):
            await asyncio.sleep(0)
        self.last = monotonic()
