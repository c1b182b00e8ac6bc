"""One process per data directory: an advisory lock the kernel drops when its holder dies, however it dies."""

import fcntl
import os

from goqueue.model.errors import DirectoryLocked


class DirectoryLock:
    """Held from construction until `release` or the end of the process."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._fd)
            raise DirectoryLocked(
                f"{os.path.dirname(os.path.dirname(os.path.abspath(path)))} is in use by process {holder}; "
                "stop that process or choose another data directory"
            ) from error
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        os.close(self._fd)
