"""A mark: a number that only grows while its owner is well, and that others can wait on.

The one way to wait in GoQueue: acks wait for *durable*, polls for *written*, replication for both. A mark
knows nothing of threads' or loops' ways of sleeping; it calls back, once, in the thread that moved it.
Invariant: every callback is called exactly once, with the error if the mark failed first.
"""

import heapq
from collections.abc import Callable
from itertools import count
from threading import Lock

Callback = Callable[[Exception | None], None]


class Mark:
    """Moved by one owner at a time; waited on from anywhere."""

    __slots__ = ("_lock", "_order", "_waiting", "failure", "value")

    def __init__(self, value: int = 0) -> None:
        self.value = value
        self.failure: Exception | None = None
        self._waiting: list[tuple[int, int, Callback]] = []
        self._order = count()
        self._lock = Lock()

    def when(self, threshold: int, callback: Callback) -> None:
        """Call back once `value >= threshold`, at once if it is already so."""
        with self._lock:
            failure = self.failure
            if failure is None:
                heapq.heappush(self._waiting, (threshold, next(self._order), callback))
        # Only now look at the value: `advance` sets it first and looks for who waits afterwards.
        if failure is None:
            self._wake(self.value)
        else:
            callback(failure if self.value < threshold else None)

    def advance(self, value: int) -> None:
        """Move to `value` (never back) and wake who waited for it."""
        if value <= self.value:
            return
        self.value = value
        if self._waiting:
            self._wake(value)

    def _wake(self, value: int) -> None:
        """Call back everybody whose threshold is reached."""
        woken = []
        with self._lock:
            while self._waiting and self._waiting[0][0] <= value:
                woken.append(heapq.heappop(self._waiting)[2])
        for callback in woken:
            callback(None)

    def rewind(self, value: int, error: Exception) -> None:
        """The positions above `value` are gone: who waits for them gets `error`."""
        with self._lock:
            self.value = min(self.value, value)
            gone = [entry for entry in self._waiting if entry[0] > value]
            self._waiting = [entry for entry in self._waiting if entry[0] <= value]
            heapq.heapify(self._waiting)
        for _, _, callback in sorted(gone, key=lambda entry: entry[:2]):
            callback(error)

    def fail(self, error: Exception) -> None:
        """Nothing moves any more: everybody waiting, now or later, gets `error`."""
        with self._lock:
            self.failure = error
            waiting, self._waiting = sorted(self._waiting, key=lambda entry: entry[:2]), []
        for _, _, callback in waiting:
            callback(error)
