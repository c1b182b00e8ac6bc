"""Threads that call `Log.sync` when it is time: on an interval, or at once when that is the mode or it is urgent.

While one fsync runs, further appends gather behind it and share the next: that is group commit. An fsync
that fails is not tried again; `on_failure` is told, once, and the logs refuse everything from then on.
"""

import heapq
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from itertools import count
from queue import SimpleQueue
from typing import Final

from goqueue.model import limits
from goqueue.model.errors import LogClosed, StorageFailed, Unavailable
from goqueue.storage.ending import Reason
from goqueue.storage.log import Log

_RETRY_S: Final = 1.0
"""After a sync for which something was short."""

OnFailure = Callable[[StorageFailed], None]


OnSync = Callable[[float], None]
"""Told how many seconds a sync took, in the thread that did it."""


def untold(seconds: float) -> None:
    """Nobody measures."""


class SyncDriver:
    """Give `notify` to logs as their `on_dirty`, and `begin` as their `on_grown`."""

    def __init__(self, on_failure: OnFailure, on_sync: OnSync = untold, *, threads: int = limits.SYNC_THREADS) -> None:
        self._on_failure = on_failure
        self._on_sync = on_sync
        self._changed = threading.Condition()
        self._ready: OrderedDict[Log, None] = OrderedDict()
        self._due: dict[Log, float] = {}
        self._later: list[tuple[float, int, Log]] = []
        """A heap of when logs are due; of a log's entries only the one in `_due` counts."""
        self._order = count()
        self._busy: set[Log] = set()
        self._failed: set[Log] = set()
        self._stopping = False
        self._threads = [
            threading.Thread(target=self._work, name=f"goqueue-sync-{number}", daemon=True) for number in range(threads)
        ]
        self._grown: SimpleQueue[Log | None] = SimpleQueue()
        self.begin: Callable[[Log], None] = self._grown.put
        """Have the disk begin with what the log's next sync will wait for. Each log asks once at a time."""
        self._threads.append(threading.Thread(target=self._begin, name="goqueue-begin-sync", daemon=True))
        for thread in self._threads:
            thread.start()

    def notify(self, log: Log, urgent: bool) -> None:
        with self._changed:
            if urgent:
                self._ready[log] = None
            else:
                self._postpone(log, log.settings.fsync_interval_ms / 1000)
            self._changed.notify()

    def forget(self, log: Log) -> None:
        """The log is gone: what was asked for it is not done."""
        with self._changed:
            self._ready.pop(log, None)
            self._failed.discard(log)
            if self._due.pop(log, None) is not None:
                self._prune()

    def stop(self) -> None:
        """Let running syncs finish; what is only due later is left to `Log.close`."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._grown.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (log := self._next()) is not None:
            begun = time.perf_counter()
            try:
                log.sync()
                self._on_sync(time.perf_counter() - begun)
            except StorageFailed as failure:
                self._tell(log, failure)
            except LogClosed:
                pass
            except Unavailable:
                self._again(log)
            except Exception as error:  # nobody may go on waiting for a sync that will not come
                self._tell(log, log.fail(f"sync broke: {error!r}"))
            finally:
                with self._changed:
                    self._busy.discard(log)
                    self._changed.notify()

    def _begin(self) -> None:
        """In a thread of its own, so that asking costs next to nothing."""
        while (log := self._grown.get()) is not None:
            try:
                log.begin_sync()
            except (LogClosed, StorageFailed):
                pass  # whoever appends or syncs is told

    def _again(self, log: Log) -> None:
        """Something was short, not broken: another try soon."""
        with self._changed:
            self._postpone(log, min(log.settings.fsync_interval_ms / 1000, _RETRY_S))

    def _postpone(self, log: Log, delay_s: float) -> None:
        """One that is due sooner already stays so: its sync covers everything."""
        due = time.monotonic() + delay_s
        if due < self._due.get(log, math.inf):
            self._due[log] = due
            heapq.heappush(self._later, (due, next(self._order), log))
            if len(self._later) > 2 * len(self._due) + 16:
                self._prune()

    def _prune(self) -> None:
        """Drop the entries that no longer count."""
        self._later = [entry for entry in self._later if self._due.get(entry[2]) == entry[0]]
        heapq.heapify(self._later)

    def _tell(self, log: Log, failure: Reason) -> None:
        """Once per log, however often a sync of it was asked for; not of one that was closed."""
        if isinstance(failure, LogClosed):
            return
        with self._changed:
            first = log not in self._failed
            self._failed.add(log)
        if first:
            self._on_failure(failure)

    def _next(self) -> Log | None:
        """The next log to sync; waits for one. None when stopping."""
        with self._changed:
            while not self._stopping:
                now = time.monotonic()
                while self._later and self._later[0][0] <= now:
                    due, _, waiting = heapq.heappop(self._later)
                    if self._due.get(waiting) == due:
                        del self._due[waiting]
                        self._ready[waiting] = None
                log = next((log for log in self._ready if log not in self._busy), None)
                if log is not None:
                    del self._ready[log]
                    self._busy.add(log)
                    return log
                wait = self._later[0][0] - now if self._later else threading.TIMEOUT_MAX
                self._changed.wait(min(wait, threading.TIMEOUT_MAX))
        return None
