"""How a log ends: its disk failed, or it was closed. From then on it takes nothing and tells everybody why.

Being closed is the last word: the files may be gone then, and no error about them means anything any more. Any
thread may end a log.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from goqueue.base.mark import Mark
from goqueue.model.errors import LogClosed, StorageFailed

Reason = StorageFailed | LogClosed


class Ending:
    """Of one log; `marks` are what others wait on."""

    def __init__(self, directory: str, *marks: Mark) -> None:
        self._directory = directory
        self._marks = marks
        self._lock = Lock()
        self.reason: Reason | None = None
        """Why it has ended; None while it is well."""

    def check(self) -> None:
        """Raise when nothing is taken any more."""
        if self.reason is not None:
            raise self.reason.with_traceback(None)

    def check_open(self) -> None:
        """Raise when nothing can be read any more: a log whose disk failed may still be."""
        if isinstance(self.reason, LogClosed):
            raise self.reason.with_traceback(None)

    @contextmanager
    def or_fail(self, doing: str) -> Iterator[None]:
        """An OSError in here means the disk can no longer be believed: nothing is acknowledged from then on."""
        try:
            yield
        except OSError as error:
            raise self.fail(f"{doing} failed: {error}") from error

    def fail(self, why: str) -> Reason:
        """Every call and everybody waiting gets the error that is returned."""
        return self._end(StorageFailed(f"{self._directory}: {why}; stop, check the disk, start again"))

    def close(self, how: str) -> None:
        self._end(LogClosed(f"{self._directory} {how}"))

    def _end(self, reason: Reason) -> Reason:
        with self._lock:
            if isinstance(self.reason, LogClosed):
                reason = self.reason
            self.reason = reason
        for mark in self._marks:
            mark.fail(reason)
        return reason
