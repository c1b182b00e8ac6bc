"""Finding logs in a data directory without holding it: for commands that only look.

Nothing here can change a file, so it works beside a running broker, on a copy, and without write permission.
"""

import errno
import os
import re
from typing import Final

from goqueue.io.disk import Buffer, File
from goqueue.io.read_only import ReadOnlyDisk
from goqueue.model.errors import InvalidRequest
from goqueue.storage.offline import OfflineLog
from goqueue.storage.state import FILE_NAME as STATE_FILE
from goqueue.storage.store import is_sidecar, log_directory, log_names

_SEGMENT_FILE: Final = re.compile(r"\d{20}\..*")
OWN_MARK: Final = "@"
"""Begins the names of logs that a broker keeps for itself, such as @metadata; no other log can be called so."""
_LEFTOVER: Final = f"{STATE_FILE}.tmp"
_LONGEST_PATH_BYTES: Final = 4095
_LONGEST_FILE_BYTES: Final = 64
"""More than the name of any file of a log."""


DISK = ReadOnlyDisk()


class LenientDisk(ReadOnlyDisk):
    """Goes on where a segment or companion cannot be opened: it seems empty, and `unreadable` has the reason."""

    def __init__(self) -> None:
        self.unreadable: dict[str, str] = {}

    def open(self, path: str, *, create: bool = False) -> File:
        try:
            return super().open(path, create=create)
        except FileNotFoundError:
            raise
        except OSError as error:
            if not _SEGMENT_FILE.fullmatch(os.path.basename(path)):
                raise
            self.unreadable[path] = error.strerror or str(error)
            return _Nothing()


class _Nothing:
    """A file without bytes."""

    def read(self, position: int, size: int) -> bytes:
        return b""

    def write(self, position: int, data: Buffer) -> int:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    def is_cached(self, position: int) -> bool:
        return True

    def size(self) -> int:
        return 0

    def truncate(self, size: int) -> None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    def begin_sync(self, position: int) -> None:
        return

    def sync(self) -> None:
        return

    def close(self) -> None:
        return


class _Listing(ReadOnlyDisk):
    """Remembers the directories that could not be listed, and goes on."""

    def __init__(self) -> None:
        self.failed: list[tuple[str, OSError]] = []

    def list(self, directory: str) -> list[str]:
        try:
            return super().list(directory)
        except OSError as error:
            self.failed.append((directory, error))
            return []


def _files(data_dir: str, name: str) -> list[str]:
    path = f"{data_dir}/meta/{name}"
    return DISK.list(path) if os.path.isdir(path) else []


def names_in(data_dir: str) -> list[str]:
    """The logs of a data directory, unreadable ones too; FileNotFoundError when there is no such directory."""
    if not os.path.isdir(data_dir):
        raise FileNotFoundError(
            f"there is no data directory {data_dir}: name one with --data-dir, "
            "or make one with goqueue log append NAME --value hello"
        )
    disk = _Listing()
    names = set(log_names(data_dir, disk))
    names |= {f"{OWN_MARK}{name}" for name in disk.list(f"{data_dir}/meta") if STATE_FILE in _files(data_dir, name)}
    for directory, error in disk.failed:
        name = directory.removeprefix(f"{data_dir}/logs/").rstrip("/")
        if not name:
            raise error
        names.add(name)
    return sorted(names)


def chosen(data_dir: str, names: list[str]) -> list[str]:
    """The logs a command was asked about: those named, all of them there, or every one."""
    found = names_in(data_dir)
    for name in names:
        try:
            check_exists(data_dir, name)
        except FileNotFoundError:
            raise
        except OSError:
            continue  # it is there; what is wrong with it is said where it is read
    return list(dict.fromkeys(names)) or found


def log_path(data_dir: str, name: str) -> str:
    """The directory of a log, whether it is there or not; InvalidRequest for a name that cannot be one."""
    own = name.startswith(OWN_MARK)
    directory = log_directory(data_dir, name.removeprefix(OWN_MARK), "meta" if own else "logs")
    longest = _LONGEST_PATH_BYTES - _LONGEST_FILE_BYTES
    if len(os.fsencode(os.path.abspath(directory))) > longest:
        raise InvalidRequest(f"the name of this log is too long: with its directory it may have {longest} bytes")
    return directory


def check_writable(name: str) -> None:
    """Refuse a log that only a broker may change: what it decided is in there, not messages."""
    if name.startswith(OWN_MARK) or is_sidecar(name):
        raise InvalidRequest(
            f"{name!r} is a log that a broker keeps for itself: it can be read and verified, not changed from here"
        )


def check_exists(data_dir: str, name: str) -> str:
    """The directory of a log; FileNotFoundError, saying which logs there are, when it is not there."""
    directory = log_path(data_dir, name)
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
        left = "what a creation that failed has left" if is_leftover(directory) else f"a directory without {STATE_FILE}"
        raise FileNotFoundError(f"there is no log {name!r} in {data_dir}, only {left}: {directory}") from error


def is_leftover(directory: str) -> bool:
    """Whether all there is was left by a creation that failed before there was a log."""
    return DISK.list(directory) == [_LEFTOVER]
