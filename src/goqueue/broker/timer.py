"""One timer for a machine with deadlines: it fires when the machine says there is something to do, and not before."""

import asyncio
from collections.abc import Callable


class Timer:
    """`arm` is called whenever the next deadline may have changed; that costs little when it has not."""

    def __init__(
        self, next_deadline: Callable[[], int | None], clock: Callable[[], int], fire: Callable[[], None]
    ) -> None:
        self._next_deadline = next_deadline
        self._clock = clock
        self._fire = fire
        self._armed: int | None = None
        self._handle: asyncio.TimerHandle | None = None

    def arm(self) -> None:
        when = self._next_deadline()
        if when == self._armed:
            return
        self.stop()
        if when is not None:
            delay_s = max(when - self._clock(), 0) / 1000
            self._handle = asyncio.get_running_loop().call_later(delay_s, self._run)
            self._armed = when

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._armed = None

    def _run(self) -> None:
        self._handle = self._armed = None
        self._fire()
