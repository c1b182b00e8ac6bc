"""Space kept back for the writes that free space: a full disk must not keep a log from shrinking.

A file of real bytes. When shrinking meets a full disk its space is given up for that one piece of work and
taken back afterwards, as soon as there is room again.
"""

from collections.abc import Callable
from threading import Lock
from typing import TypeVar

from goqueue.io.disk import Disk
from goqueue.io.small_file import write_all
from goqueue.model import limits
from goqueue.model.errors import DiskFull

Result = TypeVar("Result")


class Reserve:
    """One per data directory."""

    def __init__(self, disk: Disk, path: str, size: int = limits.DISK_RESERVE_BYTES) -> None:
        self._disk = disk
        self._path = path
        self._size = size
        self._lock = Lock()
        self._fill()

    def shrinking(self, work: Callable[[], Result]) -> Result:
        """Do work that frees space in the end; with the reserve's space if there is no other."""
        try:
            return work()
        except DiskFull:
            with self._lock:
                if not self._give_up():
                    raise
                try:
                    return work()
                finally:
                    self._fill()

    def _give_up(self) -> bool:
        """Free the space; False when there is none to free."""
        file = self._disk.open(self._path, create=True)
        try:
            had = file.size()
            file.truncate(0)
            file.sync()
        finally:
            file.close()
        return had > 0

    def _fill(self) -> None:
        """Take the space if it is there; a small disk is not to be filled by its own reserve."""
        try:
            file = self._disk.open(self._path, create=True)
        except DiskFull:
            return
        try:
            missing = self._size - file.size()
            if missing > 0:
                write_all(file, file.size(), bytes(missing))
                file.sync()
        except DiskFull:
            file.truncate(0)
        finally:
            file.close()
