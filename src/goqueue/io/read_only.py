"""The machine's disk for those who only look: beside a running broker, on a copy, and without write permission."""

import errno
import os
import stat
from typing import NoReturn

from goqueue.io.disk import File, LocalDisk, LocalFile


class ReadOnlyDisk(LocalDisk):
    """The machine's own file system, for looking only."""

    def open(self, path: str, *, create: bool = False) -> File:
        if create:
            self._refuse(path)
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        mode = os.fstat(fd).st_mode
        if stat.S_ISREG(mode):
            return LocalFile(fd)
        os.close(fd)
        number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise OSError(number, "is not a regular file", path)

    def make_directory(self, path: str) -> None:
        self._refuse(path)

    def rename(self, source: str, target: str) -> None:
        self._refuse(target)

    def unlink(self, path: str) -> None:
        self._refuse(path)

    def remove_directory(self, path: str) -> bool:
        self._refuse(path)

    def _refuse(self, path: str) -> NoReturn:
        raise PermissionError(f"whoever only reads was about to change {path}; nothing was changed")
