"""Those who wait until there is room for more messages."""

import asyncio
from collections.abc import Callable

from goqueue.client.accumulator import Buffers


class Room:
    """There is some when a buffer of `size` can be taken, and one as large as the last that was refused.

    `on_wanted` hears that somebody waits.
    """

    def __init__(self, buffers: Buffers, size: int, *, on_wanted: Callable[[], None]) -> None:
        self._buffers = buffers
        self._size = size
        self._on_wanted = on_wanted
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def is_wanted(self) -> bool:
        return bool(self._waiters)

    @property
    def is_there(self) -> bool:
        return self._buffers.has_room(max(self._size, self._buffers.wanted))

    async def wait(self) -> None:
        """Until buffers come back, even if there is room now. Whoever is woken may find it taken again."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(future)
        self._on_wanted()
        await future

    def on_returned(self) -> None:
        """A buffer came back, or something that stood in the way is gone."""
        if self._waiters and self.is_there:
            self.wake()

    def forget_wanted(self) -> None:
        """Whoever was refused tries again, or does not want it any more."""
        self._buffers.wanted = 0

    def wake(self) -> None:
        """Everybody, room or not."""
        self.forget_wanted()
        waiters, self._waiters = self._waiters, []
        for future in waiters:
            if not future.done():
                future.set_result(None)
