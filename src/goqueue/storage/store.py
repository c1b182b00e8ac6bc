"""A data directory and the logs in it: one process, one lock, one budget of open files and memory."""

import re
from collections.abc import Sequence
from contextlib import ExitStack
from threading import Lock

from goqueue.io.directory_lock import DirectoryLock
from goqueue.io.disk import Disk, LocalDisk
from goqueue.io.reserve import Reserve
from goqueue.model import limits
from goqueue.model.errors import InvalidRequest, LogClosed, StorageFailed
from goqueue.model.settings import LogSettings
from goqueue.storage import state, synced
from goqueue.storage.cache import DerivedCache
from goqueue.storage.driver import OnFailure, SyncDriver
from goqueue.storage.files import OpenFiles
from goqueue.storage.log import Log
from goqueue.storage.views import ViewKind

_NAME_PART = re.compile(rf"[A-Za-z0-9._-]{{1,{limits.MAX_NAME_PART}}}")
_OWN_FILE = re.compile(rf"{re.escape(state.FILE_NAME)}(\.tmp)?|{synced.FILE_NAME}|\d{{20}}[.-].*")
"""Names of files inside a log's directory: no log may be called so, or one could lie inside another's files."""


def log_directory(data_dir: str, name: str) -> str:
    """Where the log `name` is kept. Names are parts joined by slashes; none of them can lead elsewhere."""
    parts = name.split("/")
    if not all(_NAME_PART.fullmatch(part) and part not in (".", "..") for part in parts):
        raise InvalidRequest(
            f"{name!r} is no name for a log: use letters, digits, '.', '_', '-', at most {limits.MAX_NAME_PART} "
            "between two slashes"
        )
    if reserved := [part for part in parts if _OWN_FILE.fullmatch(part)]:
        raise InvalidRequest(f"{name!r} is no name for a log: {reserved[0]!r} is one of a log's own files")
    return f"{data_dir}/logs/{name}"


def log_names(data_dir: str, disk: Disk) -> list[str]:
    """The logs of a data directory, damaged ones too."""
    found = []
    pending = [""]
    while pending:
        prefix = pending.pop()
        names = disk.list(f"{data_dir}/logs/{prefix}")
        if any(_OWN_FILE.fullmatch(name) for name in names):
            found.append(prefix.rstrip("/"))
        pending += [f"{prefix}{name}/" for name in names if not _OWN_FILE.fullmatch(name)]
    return sorted(found)


def _ignore(failure: StorageFailed) -> None:
    """Whoever appends or waits is told; nobody else needs to be."""


class Store:
    """Holds the data directory from construction until `close`."""

    def __init__(self, data_dir: str, *, disk: Disk | None = None, on_failure: OnFailure = _ignore) -> None:
        if not data_dir:
            raise InvalidRequest("the data directory has no name; say which one to use")
        self.data_dir = data_dir
        self.disk = disk or LocalDisk()
        self.disk.make_directory(f"{data_dir}/meta")
        self.disk.make_directory(f"{data_dir}/logs")
        self._lock = DirectoryLock(f"{data_dir}/meta/lock")
        self._reserve = Reserve(self.disk, f"{data_dir}/meta/reserve")
        self.files = OpenFiles(self.disk)
        self._cache = DerivedCache()
        self._driver = SyncDriver(on_failure)
        self._logs: dict[str, Log] = {}
        self._opening = Lock()
        self._closed = False

    def open_log(self, name: str, settings: LogSettings | None = None, views: Sequence[ViewKind] = ()) -> Log:
        """Open a log, or give back the one that is open under this name, as it is."""
        with self._opening:
            if self._closed:
                raise LogClosed(f"{self.data_dir} was closed; open the store again")
            log = self._logs.get(name)
            if log is None:
                log = self._logs[name] = Log.open(
                    log_directory(self.data_dir, name),
                    disk=self.disk,
                    files=self.files,
                    cache=self._cache,
                    reserve=self._reserve,
                    settings=settings,
                    views=views,
                    on_dirty=self._driver.notify,
                )
            return log

    def log_names(self) -> list[str]:
        return log_names(self.data_dir, self.disk)

    def close(self) -> None:
        """Sync and close every log, then give the directory back. Raises the first error, after all of that."""
        with self._opening:
            if self._closed:
                return
            self._closed = True
        self._driver.stop()
        with ExitStack() as rest:
            rest.callback(self._lock.release)
            rest.callback(self.files.close)
            for log in self._logs.values():
                rest.callback(log.close)

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
