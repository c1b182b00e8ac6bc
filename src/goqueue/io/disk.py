"""The disk port: every byte GoQueue keeps goes through these two protocols, so a test can own the disk.

`LocalDisk` is the real one. `sim.disk` has one with synced and unsynced images, tests have one that fails.
Nothing here decides anything; durability rules live with the callers. Paths are plain strings.
"""

import ctypes
import errno
import os
from collections.abc import Callable
from typing import Final, Protocol

from goqueue.model.errors import DiskFull, Unavailable

Buffer = bytes | bytearray | memoryview
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_NOT_EMPTY = frozenset({errno.ENOTEMPTY, errno.EEXIST})
_TOO_MANY = frozenset({errno.EMFILE, errno.ENFILE})

_TO_THE_END: Final = 0
_BEGIN: Final = 2
"""Linux calls it SYNC_FILE_RANGE_WRITE: what is dirty is submitted, and not waited for."""


def _sync_file_range() -> Callable[[int, int, int, int], int] | None:
    """The system's own, which Python does not offer; None where there is none."""
    function = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if function is not None:
        function.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
        function.restype = ctypes.c_int
    return function


_SYNC_FILE_RANGE: Final = _sync_file_range()


class File(Protocol):
    """An open file, used by position only."""

    def read(self, position: int, size: int) -> bytes:
        """Up to `size` bytes at `position`; fewer only at the end of the file."""

    def write(self, position: int, data: Buffer) -> int:
        """Write at `position` and return how much was written: possibly less. DiskFull when there is no space."""

    def is_cached(self, position: int) -> bool:
        """Whether the byte at `position` can be read without waiting for a device, as far as can be told."""

    def size(self) -> int: ...

    def truncate(self, size: int) -> None: ...

    def begin_sync(self, position: int) -> None:
        """Have the device begin with the bytes from `position` on, so that `sync` finds less left. Promises nothing:
        what goes wrong with them is told by `sync`.
        """

    def sync(self) -> None:
        """Make the bytes (and the size) durable. An OSError here is final: see `StorageFailed`."""

    def close(self) -> None: ...


class Disk(Protocol):
    """The directory side. Names become durable with `sync_directory`, not before."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing. FileNotFoundError unless `create`."""

    def exists(self, path: str) -> bool: ...

    def list(self, directory: str) -> list[str]:
        """The names in a directory, sorted; empty when there is no directory there."""

    def make_directory(self, path: str) -> None:
        """Make it and its parents, durably."""

    def remove_directory(self, path: str) -> bool:
        """Remove an empty directory: False when something is in it. True also when it is not there."""

    def rename(self, source: str, target: str) -> None:
        """Atomic, replacing the target."""

    def unlink(self, path: str) -> None:
        """Remove a file; no error when it is not there."""

    def sync_directory(self, path: str) -> None: ...


class LocalFile:
    """A file descriptor behind the `File` port."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def read(self, position: int, size: int) -> bytes:
        data = os.pread(self._fd, size, position)
        if len(data) == size or not data:
            return data
        parts = [data]
        while data:
            position += len(data)
            size -= len(data)
            data = os.pread(self._fd, size, position) if size else b""
            parts.append(data)
        return b"".join(parts)

    def is_cached(self, position: int) -> bool:
        try:
            return os.preadv(self._fd, [bytearray(1)], position, os.RWF_NOWAIT) == 1
        except OSError:  # it would wait, or this file system cannot tell
            return False

    def write(self, position: int, data: Buffer) -> int:
        try:
            return os.pwrite(self._fd, data, position)
        except OSError as error:
            if error.errno in _FULL:
                raise DiskFull(f"no space left on the disk: {error}; free some and try again") from error
            raise

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def begin_sync(self, position: int) -> None:
        if _SYNC_FILE_RANGE is not None:
            _SYNC_FILE_RANGE(self._fd, position, _TO_THE_END, _BEGIN)

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


class LocalDisk:
    """The machine's own file system."""

    def open(self, path: str, *, create: bool = False) -> File:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        try:
            return LocalFile(os.open(path, flags, 0o644))
        except OSError as error:
            if error.errno in _FULL:
                raise DiskFull(f"no space left to create {path}; free some and try again") from error
            if error.errno in _TOO_MANY:
                raise Unavailable(f"no more files can be opened ({error}); raise the limit (ulimit -n)") from error
            raise

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def list(self, directory: str) -> list[str]:
        try:
            return sorted(os.listdir(directory))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def make_directory(self, path: str) -> None:
        if os.path.isdir(path):
            return
        parent = os.path.dirname(os.path.abspath(path))
        self.make_directory(parent)
        try:
            os.mkdir(path)
        except FileExistsError:
            return
        except OSError as error:
            if error.errno in _FULL:
                raise DiskFull(f"no space for {path}: {error.strerror}") from error
            raise
        self.sync_directory(parent)

    def remove_directory(self, path: str) -> bool:
        try:
            os.rmdir(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno in _NOT_EMPTY:
                return False
            raise
        return True

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def unlink(self, path: str) -> None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass

    def sync_directory(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
