"""A disk that fails on demand, over a real one: what `goqueue.io.disk` allows a disk to do, it can be told to do.

Faults are plain attributes, set and cleared between calls:
  - `sync_error_at`: the n-th sync from now on (of a file or a directory) fails with EIO;
  - `write_limit`: no single write takes more bytes than this (short writes);
  - `free`: bytes the disk still has; growing beyond takes what fits, then DiskFull. Shrinking gives back;
  - `new_file_error`, `truncate_error`, `write_error`: an errno for creating, truncating, writing;
  - `only`: faults other than sync errors and lies hit only paths that end with it;
  - `lies`: syncs of these kinds do nothing and say they did.
`before` is called before every operation with its name and path; it may raise, block or kill.
"""

import errno
import os
import threading
from collections.abc import Callable
from enum import Flag, auto

from goqueue.io.disk import Buffer, Disk, File, LocalDisk
from goqueue.model.errors import DiskFull

Before = Callable[[str, str], None]


class Lie(Flag):
    """Which syncs are only pretended."""

    NONE = 0
    FILES = auto()
    DIRECTORIES = auto()


def _nothing(operation: str, path: str) -> None:
    """The default `before`."""


class FaultyDisk:
    """Fills the `Disk` port; safe to use from several threads."""

    def __init__(self, disk: Disk | None = None) -> None:
        self._disk = disk or LocalDisk()
        self._lock = threading.Lock()
        self.before: Before = _nothing
        self.sync_error_at: int | None = None
        self.write_limit: int | None = None
        self.free: int | None = None
        self.new_file_error: int | None = None
        self.truncate_error: int | None = None
        self.write_error: int | None = None
        self.only = ""
        self.lies = Lie.NONE
        self.syncs = 0
        """Syncs asked for so far."""
        self.hits = 0
        """Faults that struck so far: a test whose fault never struck shows nothing."""

    # --- the port

    def open(self, path: str, *, create: bool = False) -> File:
        self.before("open", path)
        if create and self.new_file_error is not None and path.endswith(self.only) and not self._disk.exists(path):
            self.hits += 1
            _raise(self.new_file_error, path)
        return _FaultyFile(self, self._disk.open(path, create=create), path)

    def exists(self, path: str) -> bool:
        return self._disk.exists(path)

    def list(self, directory: str) -> list[str]:
        return self._disk.list(directory)

    def make_directory(self, path: str) -> None:
        self.before("make_directory", path)
        if self.lies & Lie.DIRECTORIES:
            os.makedirs(path, exist_ok=True)
        else:
            self._disk.make_directory(path)

    def remove_directory(self, path: str) -> bool:
        self.before("remove_directory", path)
        return self._disk.remove_directory(path)

    def rename(self, source: str, target: str) -> None:
        self.before("rename", target)
        self._give_back(target)
        self._disk.rename(source, target)

    def unlink(self, path: str) -> None:
        self.before("unlink", path)
        self._give_back(path)
        self._disk.unlink(path)

    def sync_directory(self, path: str) -> None:
        self.before("sync_directory", path)
        if not self.lies & Lie.DIRECTORIES:
            self.count_sync(path)
            self._disk.sync_directory(path)

    # --- faults, also for the files

    def applies(self, path: str) -> bool:
        return path.endswith(self.only)

    def count_sync(self, path: str) -> None:
        with self._lock:
            self.syncs += 1
            if self.sync_error_at is None:
                return
            self.sync_error_at -= 1
            if self.sync_error_at > 0:
                return
            self.sync_error_at = None
            self.hits += 1
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    def reserve(self, growth: int) -> int:
        """Take up to `growth` bytes of what is free; how many there were."""
        with self._lock:
            if self.free is None:
                return growth
            taken = min(self.free, growth)
            self.free -= taken
            self.hits += taken < growth
            return taken

    def release(self, size: int) -> None:
        with self._lock:
            if self.free is not None:
                self.free += size

    def _give_back(self, path: str) -> None:
        if self.free is not None and self._disk.exists(path):
            file = self._disk.open(path)
            self.release(file.size())
            file.close()


class _FaultyFile:
    """A file of a FaultyDisk."""

    def __init__(self, disk: FaultyDisk, file: File, path: str) -> None:
        self._disk = disk
        self._file = file
        self._path = path

    def read(self, position: int, size: int) -> bytes:
        return self._file.read(position, size)

    def write(self, position: int, data: Buffer) -> int:
        disk = self._disk
        disk.before("write", self._path)
        if not disk.applies(self._path):
            return self._file.write(position, data)
        if disk.write_error is not None:
            disk.hits += 1
            _raise(disk.write_error, self._path)
        view = memoryview(data)
        if disk.write_limit is not None and len(view) > disk.write_limit:
            disk.hits += 1
            view = view[: disk.write_limit]
        growth = max(position + len(view) - max(self._file.size(), position), 0)
        fits = disk.reserve(growth)
        if fits < growth:
            view = view[: len(view) - growth + fits]
            if not view:
                raise DiskFull(f"no space left for {self._path}; free some and try again")
        return self._file.write(position, view)

    def is_cached(self, position: int) -> bool:
        return True

    def size(self) -> int:
        return self._file.size()

    def truncate(self, size: int) -> None:
        disk = self._disk
        disk.before("truncate", self._path)
        if disk.truncate_error is not None and disk.applies(self._path):
            disk.hits += 1
            raise OSError(disk.truncate_error, os.strerror(disk.truncate_error), self._path)
        disk.release(max(self._file.size() - size, 0))
        self._file.truncate(size)

    def begin_sync(self, position: int) -> None: ...

    def sync(self) -> None:
        self._disk.before("sync", self._path)
        if not self._disk.lies & Lie.FILES:
            self._disk.count_sync(self._path)
            self._file.sync()

    def close(self) -> None:
        self._file.close()


def _raise(number: int, path: str) -> None:
    if number == errno.ENOSPC:
        raise DiskFull(f"no space left for {path}; free some and try again")
    raise OSError(number, os.strerror(number), path)
