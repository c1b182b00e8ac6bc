"""Disks that tests can look into: every operation is noted, and a test may step in before any of them.

They keep real files but leave the machine's fsync out: what counts here is which operations come in which
order, not when a device obeys.
"""

import errno
import os
from collections.abc import Callable
from typing import NamedTuple

from goqueue.io.disk import Buffer, File, LocalDisk

CHANGES = frozenset(
    {
        "create",
        "write",
        "truncate",
        "sync",
        "rename",
        "unlink",
        "sync_directory",
        "make_directory",
        "remove_directory",
    }
)


class Operation(NamedTuple):
    """One call at the disk port; `position` and `size` are 0 where they mean nothing."""

    kind: str
    path: str
    position: int = 0
    size: int = 0


Before = Callable[[Operation], None]


class Stopped(BaseException):
    """The process ends here: nobody may catch it and go on."""


class WatchedFile:
    def __init__(self, disk: "WatchedDisk", file: File, path: str) -> None:
        self._disk = disk
        self._file = file
        self._path = path

    def read(self, position: int, size: int) -> bytes:
        self._disk.note(Operation("read", self._path, position, size))
        return self._file.read(position, size)

    def write(self, position: int, data: Buffer) -> int:
        operation = Operation("write", self._path, position, len(data))
        self._disk.note(operation)
        written = self._file.write(position, data)
        if self._disk.after is not None:
            self._disk.after(operation)
        return written

    def is_cached(self, position: int) -> bool:
        return True

    def size(self) -> int:
        return self._file.size()

    def truncate(self, size: int) -> None:
        self._disk.note(Operation("truncate", self._path, 0, size))
        self._file.truncate(size)

    def begin_sync(self, position: int) -> None:
        self._disk.note(Operation("begin_sync", self._path, position))

    def sync(self) -> None:
        self._disk.note(Operation("sync", self._path))

    def close(self) -> None:
        self._disk.open_count -= 1
        self._file.close()


class WatchedDisk:
    """`before`, when set, is called with each operation before it happens, `after` with each write that is done.

    What they raise goes to the caller.
    """

    def __init__(self, before: Before | None = None) -> None:
        self._disk = LocalDisk()
        self.before = before
        self.after: Before | None = None
        self.operations: list[Operation] = []
        self.open_count = 0

    def note(self, operation: Operation) -> None:
        self.operations.append(operation)
        if self.before is not None:
            self.before(operation)

    def of_kind(self, kind: str, ending: str = "") -> list[Operation]:
        return [done for done in self.operations if done.kind == kind and done.path.endswith(ending)]

    def open(self, path: str, *, create: bool = False) -> File:
        kind = "create" if create and not self._disk.exists(path) else "open"
        self.note(Operation(kind, path))
        file = self._disk.open(path, create=create)
        self.open_count += 1
        return WatchedFile(self, file, path)

    def exists(self, path: str) -> bool:
        return self._disk.exists(path)

    def list(self, directory: str) -> list[str]:
        return self._disk.list(directory)

    def make_directory(self, path: str) -> None:
        self.note(Operation("make_directory", path))
        self._disk.make_directory(path)

    def remove_directory(self, path: str) -> bool:
        self.note(Operation("remove_directory", path))
        return self._disk.remove_directory(path)

    def rename(self, source: str, target: str) -> None:
        self.note(Operation("rename", target))
        self._disk.rename(source, target)

    def unlink(self, path: str) -> None:
        self.note(Operation("unlink", path))
        self._disk.unlink(path)

    def sync_directory(self, path: str) -> None:
        self.note(Operation("sync_directory", path))


def stop_at(change: int) -> Before:
    """Let that many changes happen and end the process at the next."""
    left = [change]

    def before(operation: Operation) -> None:
        if operation.kind in CHANGES:
            if left[0] == 0:
                raise Stopped
            left[0] -= 1

    return before


def at_most(count: int) -> Before:
    """Work that asks for more operations than that goes on for ever: it ends here, as a failure."""
    left = [count]

    def before(operation: Operation) -> None:
        left[0] -= 1
        assert left[0] >= 0, f"more than {count} operations, the last one {operation}"

    return before


def once(operation_is: Callable[[Operation], bool], work: Callable[[], object]) -> Before:
    """Do something at the first operation that fits, and never again."""
    done: list[Operation] = []

    def before(operation: Operation) -> None:
        if not done and operation_is(operation):
            done.append(operation)
            work()

    return before


def unreadable(path: str, start: int, end: int) -> Before:
    """A medium that gives back an error for every read that touches these bytes of a file."""

    def before(operation: Operation) -> None:
        if operation.kind == "read" and operation.path == path:
            if operation.position < end and start < operation.position + operation.size:
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    return before
