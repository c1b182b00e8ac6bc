"""A bounded set of open files shared by many logs: the least recently used one is closed first.

A file in use is never closed under its user. Keys name a file's content, not its path: after a cleaner has
put a new file in place of an old one, readers of the old one keep the old handle.
"""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from threading import Lock
from typing import NamedTuple

from goqueue.io.disk import Disk, File
from goqueue.model import limits


class FileKey(NamedTuple):
    path: str
    life: int
    """Different for each segment that ever stood at the path."""


class _Entry:
    __slots__ = ("file", "users")

    def __init__(self, file: File) -> None:
        self.file = file
        self.users = 0


class OpenFiles:
    """Invariant: at most `limit` open files, or as many as are in use at this moment."""

    def __init__(self, disk: Disk, limit: int = limits.MAX_OPEN_FILES) -> None:
        self._disk = disk
        self._limit = limit
        self._entries: OrderedDict[FileKey, _Entry] = OrderedDict()
        self._forgotten: dict[int, _Entry] = {}
        """Still in use, by the identity of their files: closed by the last user."""
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._entries)

    @contextmanager
    def use(self, key: FileKey) -> Iterator[File]:
        file = self.acquire(key)
        try:
            yield file
        finally:
            self.release(key, file)

    def acquire(self, key: FileKey) -> File:
        """Open for this user until it calls `release`; `use` does both, and costs a microsecond more."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                self._shrink(self._limit - 1)
                entry = self._entries[key] = _Entry(self._disk.open(key.path))
            else:
                self._entries.move_to_end(key)
            entry.users += 1
            return entry.file

    def release(self, key: FileKey, file: File) -> None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None or entry.file is not file:
                entry = self._forgotten[id(file)]
            entry.users -= 1
            if self._forgotten and entry.users == 0 and self._forgotten.pop(id(file), None) is not None:
                file.close()
            elif len(self._entries) > self._limit:
                self._shrink(self._limit)

    def _shrink(self, limit: int) -> None:
        excess = len(self._entries) - limit
        if excess <= 0:
            return
        idle = (key for key, entry in self._entries.items() if entry.users == 0)
        for key in list(islice(idle, excess)):
            self._entries.pop(key).file.close()

    def forget(self, key: FileKey) -> None:
        """Close it now, or when its last user is done: the file is gone from its path."""
        with self._lock:
            entry = self._entries.pop(key, None)
            if entry is None:
                return
            if entry.users == 0:
                entry.file.close()
            else:
                self._forgotten[id(entry.file)] = entry

    def close(self) -> None:
        with self._lock:
            for entry in self._entries.values():
                entry.file.close()
            self._entries.clear()
