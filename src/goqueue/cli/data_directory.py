"""Finding logs in a data directory without holding it: for commands that only look.

Nothing here can change a file, so it works beside a running broker, on a copy, and without write permission.
"""

import os
from typing import NoReturn

from goqueue.io.disk import File, LocalDisk, LocalFile
from goqueue.storage.offline import OfflineLog
from goqueue.storage.store import log_directory, log_names


class ReadOnlyDisk(LocalDisk):
    """The machine's own file system, for looking only."""

    def open(self, path: str, *, create: bool = False) -> File:
        if create:
            self._refuse(path)
        return LocalFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def list(self, directory: str) -> list[str]:
        try:
            return super().list(directory)
        except NotADirectoryError:
            return []

    def make_directory(self, path: str) -> None:
        self._refuse(path)

    def rename(self, source: str, target: str) -> None:
        self._refuse(target)

    def unlink(self, path: str) -> None:
        self._refuse(path)

    def _refuse(self, path: str) -> NoReturn:
        raise PermissionError(f"a command that only reads was about to change {path}; nothing was changed")


DISK = ReadOnlyDisk()


def names_in(data_dir: str) -> list[str]:
    """The logs of a data directory; FileNotFoundError when there is no such directory."""
    if not os.path.isdir(data_dir):
        raise FileNotFoundError(
            f"there is no data directory {data_dir}: name one with --data-dir, "
            "or make one with goqueue log append NAME --value hello"
        )
    return log_names(data_dir, DISK)


def chosen(data_dir: str, names: list[str]) -> list[str]:
    """The logs a command was asked about: those named, all of them there, or every one."""
    found = names_in(data_dir)
    for name in names:
        check_exists(data_dir, name)
    return names or found


def check_exists(data_dir: str, name: str) -> str:
    """The directory of a log; FileNotFoundError, saying which logs there are, when it is not there."""
    directory = log_directory(data_dir, name)
    if DISK.list(directory):
        return directory
    there = names_in(data_dir)
    has = f"it has {', '.join(there[:5])}{' and more' if len(there) > 5 else ''}" if there else "it has none"
    raise FileNotFoundError(f"there is no log {name!r} in {data_dir}: {has}")


def open_offline(data_dir: str, name: str) -> OfflineLog:
    directory = check_exists(data_dir, name)
    try:
        return OfflineLog(directory, DISK)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"there is no log {name!r} in {data_dir}, only a directory") from error
