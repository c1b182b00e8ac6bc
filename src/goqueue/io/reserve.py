"""Space kept back for a full disk: for the writes that free space, and for small state that must go on.

A file of real bytes. Work that frees space gets all of it, for as long as it runs. Small state, like the commits of
consumer groups, gets half of it, for good: the reserve is `spent` then, until `refill` finds the room to take it back.
Nothing else may be written meanwhile, or it would eat what is left: whoever writes the bulk asks `spent` first. The
other half stays for the work that frees space, or commits could fill a disk that nobody can relieve any more.

A reserve that was held once and cannot be taken back is spent, also after a restart. A disk that never had the room
for one is only small. The lock is never held while work runs: work takes locks of its own.
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
    """One per data directory; any thread may use it."""

    def __init__(self, disk: Disk, path: str, size: int = limits.DISK_RESERVE_BYTES) -> None:
        self._disk = disk
        self._path = path
        self._size = size
        self._for_shrinking = size // 2
        self._lock = Lock()
        self._held = 0
        """Bytes that are kept back now."""
        self._users = 0
        """Pieces of work that run with the space."""
        self._spent = False
        if disk.exists(path):
            self._settle()
        else:
            self._begin()

    @property
    def spent(self) -> bool:
        """Whether space was given up and is not back yet: what is left is for small state alone."""
        return self._spent

    def shrinking(self, work: Callable[[], Result]) -> Result:
        """Do work that frees space in the end; with the reserve's space if there is no other.

        The work is done again when it meets DiskFull.
        """
        return self._do(work, keep=False)

    def spending(self, work: Callable[[], Result]) -> Result:
        """The same for work that adds a little: its space stays given up, and `spent` says so."""
        return self._do(work, keep=True)

    def refill(self) -> bool:
        """Take the space back if the disk has it; whether it is all there now."""
        with self._lock:
            if self._users:
                return False
            if not self._held and not self._spent:
                return self._begin()
            if self._fill(self._size):
                self._spent = False  # not before: others look at it at any moment
                return True
            self._fill(self._for_shrinking)
            return False

    def _begin(self) -> bool:
        """Take the space for the first time."""
        if self._fill(self._size):
            return True
        self._disk.unlink(self._path)  # or the next start would take it for one that was spent
        return False

    def _do(self, work: Callable[[], Result], *, keep: bool) -> Result:
        try:
            return work()
        except DiskFull:
            with self._lock:
                if not self._give_up(self._for_shrinking if keep else 0):
                    raise
                self._spent = self._spent or keep
                self._users += 1
        try:
            return work()
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._settle()

    def _give_up(self, rest: int) -> bool:
        """Free all but `rest`; False when nothing was freed, now or before, so that trying again is in vain."""
        if self._held <= rest:
            return self._spent or self._users > 0
        file = self._disk.open(self._path, create=True)
        try:
            file.truncate(rest)
            file.sync()
        finally:
            file.close()
        self._held = rest
        return True

    def _settle(self) -> None:
        """Nobody works with the space any more: take back what is not spent, or else what frees space."""
        if self._spent or not self._fill(self._size):
            self._spent = True
            self._fill(self._for_shrinking)

    def _fill(self, size: int) -> bool:
        """Hold at least this much, or what is held now: a small disk is not to be filled by its own reserve."""
        if self._held >= size:
            return True
        try:
            file = self._disk.open(self._path, create=True)
        except DiskFull:
            return False
        try:
            self._held = file.size()
            if self._held < size:
                write_all(file, self._held, bytes(size - self._held))
                file.sync()
                self._held = size
        except DiskFull:
            file.truncate(self._held)
            return False
        finally:
            file.close()
        return True
