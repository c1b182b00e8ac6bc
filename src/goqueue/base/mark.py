"""A mark: a number that only grows while its owner is well, and that others can wait on.

The one way to wait in GoQueue: acks wait for *durable*, polls for *written*, replication for both. A mark
knows nothing of threads' or loops' ways of sleeping; it calls back, once, in the thread that moved it.
Invariant: every callback is called exactly once, with the error if the mark failed first, unless its waiter
was cancelled before; what one callback does to itself is nobody else's trouble.
"""

import heapq
import sys
from collections.abc import Callable, Iterable
from itertools import count
from threading import Lock
from types import SimpleNamespace

Callback = Callable[[Exception | None], None]


class Waiter:
    """Somebody who waits. `cancel` may come at any time, also when it is too late."""

    __slots__ = ("_callback", "_mark", "_number")

    def __init__(self, mark: "Mark", number: int, callback: Callback) -> None:
        self._mark = mark
        self._number = number
        self._callback = callback

    def cancel(self) -> None:
        self._mark.forget(self._number)

    def call(self, error: Exception | None) -> None:
        try:
            self._callback(error)
        except Exception as broken:
            sys.unraisablehook(
                SimpleNamespace(
                    exc_type=type(broken),
                    exc_value=broken,
                    exc_traceback=broken.__traceback__,
                    err_msg="a callback of a mark failed",
                    object=self._callback,
                )
            )


class Mark:
    """Moved by one owner at a time; waited on from anywhere."""

    __slots__ = ("_lock", "_numbers", "_thresholds", "_waiters", "failure", "value")

    def __init__(self, value: int = 0) -> None:
        self.value = value
        self.failure: Exception | None = None
        self._waiters: dict[int, Waiter] = {}
        self._thresholds: list[tuple[int, int]] = []
        """A heap of (threshold, number); numbers of waiters that were cancelled may linger."""
        self._numbers = count()
        self._lock = Lock()

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiters)

    def when(self, threshold: int, callback: Callback) -> Waiter:
        """Call back once `value >= threshold`, at once if it is already so."""
        with self._lock:
            waiter = Waiter(self, next(self._numbers), callback)
            failure = self.failure
            if failure is None:
                self._waiters[waiter._number] = waiter
                heapq.heappush(self._thresholds, (threshold, waiter._number))
        # Only now look at the value: `advance` sets it first and looks for who waits afterwards.
        if failure is None:
            if self.value >= threshold:
                self._wake(self.value)
        else:
            waiter.call(failure if self.value < threshold else None)
        return waiter

    def advance(self, value: int) -> None:
        """Move to `value` (never back) and wake who waited for it."""
        if value <= self.value:
            return
        self.value = value
        if self._waiters:
            self._wake(value)

    def _wake(self, value: int) -> None:
        with self._lock:
            woken = []
            while self._thresholds and self._thresholds[0][0] <= value:
                woken.append(self._waiters.pop(heapq.heappop(self._thresholds)[1], None))
        _call(woken, None)

    def rewind(self, value: int, error: Exception) -> None:
        """The positions above `value` are gone: who waits for them gets `error`."""
        with self._lock:
            self.value = min(self.value, value)
            gone = sorted(entry for entry in self._thresholds if entry[0] > value)
            self._thresholds = [entry for entry in self._thresholds if entry[0] <= value]
            heapq.heapify(self._thresholds)
            waiters = [self._waiters.pop(number, None) for _, number in gone]
        _call(waiters, error)

    def fail(self, error: Exception) -> None:
        """Nothing moves any more: everybody waiting, now or later, gets `error`."""
        with self._lock:
            self.failure = error
            waiters = [self._waiters.pop(number, None) for _, number in sorted(self._thresholds)]
            self._thresholds = []
        _call(waiters, error)

    def forget(self, number: int) -> None:
        """The waiter of that number no longer wants to be called."""
        with self._lock:
            self._waiters.pop(number, None)
            if len(self._thresholds) > 2 * len(self._waiters) + 16:
                self._thresholds = [entry for entry in self._thresholds if entry[1] in self._waiters]
                heapq.heapify(self._thresholds)


def _call(waiters: Iterable[Waiter | None], error: Exception | None) -> None:
    for waiter in waiters:
        if waiter is not None:
            waiter.call(error)
