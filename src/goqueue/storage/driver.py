"""Threads that call `Log.sync` when it is time: at once, on an interval, or when a segment has rolled.

While one fsync runs, further appends gather behind it and share the next: that is group commit. An fsync
that fails is not tried again; `on_failure` is told, once, and the logs refuse everything from then on.
"""

import heapq
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from itertools import count

from goqueue.model import limits
from goqueue.model.errors import LogClosed, StorageFailed, Unavailable
from goqueue.model.settings import Fsync
from goqueue.storage.log import Log

OnFailure = Callable[[StorageFailed], None]


class SyncDriver:
    """Give `notify` to logs as their `on_dirty`."""

    def __init__(self, on_failure: OnFailure, *, threads: int = limits.SYNC_THREADS) -> None:
        self._on_failure = on_failure
        self._changed = threading.Condition()
        self._ready: OrderedDict[Log, None] = OrderedDict()
        self._later: list[tuple[float, int, Log]] = []
        self._order = count()
        self._busy: set[Log] = set()
        self._failed: set[Log] = set()
        self._stopping = False
        self._threads = [
            threading.Thread(target=self._work, name=f"goqueue-sync-{number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def notify(self, log: Log, rolled: bool) -> None:
        with self._changed:
            if rolled or log.settings.fsync is Fsync.EVERY:
                self._ready[log] = None
            else:
                self._postpone(log)
            self._changed.notify()

    def stop(self) -> None:
        """Let running syncs finish; what is only due later is left to `Log.close`."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (log := self._next()) is not None:
            try:
                log.sync()
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

    def _again(self, log: Log) -> None:
        """Something was short, not broken: another try after the interval."""
        with self._changed:
            self._postpone(log)

    def _postpone(self, log: Log) -> None:
        due = time.monotonic() + log.settings.fsync_interval_ms / 1000
        heapq.heappush(self._later, (due, next(self._order), log))

    def _tell(self, log: Log, failure: StorageFailed) -> None:
        """Once per log, however often a sync of it was asked for."""
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
                    self._ready[heapq.heappop(self._later)[2]] = None
                log = next((log for log in self._ready if log not in self._busy), None)
                if log is not None:
                    del self._ready[log]
                    self._busy.add(log)
                    return log
                wait = self._later[0][0] - now if self._later else threading.TIMEOUT_MAX
                self._changed.wait(min(wait, threading.TIMEOUT_MAX))
        return None
