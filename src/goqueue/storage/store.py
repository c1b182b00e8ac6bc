"""A data directory and the logs in it: one process, one lock, one budget of open files and memory."""

import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from threading import Lock
from typing import Final, Literal

from goqueue.io.directory_lock import DirectoryLock
from goqueue.io.disk import Disk, LocalDisk
from goqueue.io.reserve import Reserve, Result
from goqueue.model import limits
from goqueue.model.errors import InvalidRequest, LogClosed, StorageFailed
from goqueue.model.names import TopicId, format_topic_id
from goqueue.model.settings import LogSettings
from goqueue.storage.cache import DerivedCache
from goqueue.storage.driver import OnFailure, OnSync, SyncDriver, untold
from goqueue.storage.files import OpenFiles
from goqueue.storage.log import Log
from goqueue.storage.removal import OWN_FILE, remove
from goqueue.storage.views import ViewKind

_NAME_PART = re.compile(rf"[A-Za-z0-9._-]{{1,{limits.MAX_NAME_PART}}}")

Area = Literal["logs", "meta"]
"""Topics' logs, or those of the process itself."""
_TAKEN: Final = {"logs": frozenset[str](), "meta": frozenset({"lock", "reserve"})}
"""First parts of names that something else in the area has."""
METADATA_LOG: Final = "metadata"
TRANSACTIONS_LOG: Final = "transactions"
"""Logs of the process itself: what others read besides the broker."""
SIDECAR: Final = "sidecar"
"""Last part of the name of the log beside a partition. Partitions are numbers, so none of them is called so."""


def log_name(name: str, topic_id: TopicId, partition: int) -> str:
    """Where a partition's log lies under the data directory's logs."""
    return f"{name}/{format_topic_id(topic_id)}/{partition}"


def sidecar_name(name: str) -> str:
    """The log beside a partition's log: what consumer groups have done with its messages."""
    return f"{name}/{SIDECAR}"


def is_sidecar(name: str) -> bool:
    return name.endswith(f"/{SIDECAR}")


def log_directory(data_dir: str, name: str, area: Area = "logs") -> str:
    """Where the log `name` is kept. Names are parts joined by slashes; none of them can lead elsewhere."""
    parts = name.split("/")
    if not all(_NAME_PART.fullmatch(part) and part not in (".", "..") for part in parts):
        raise InvalidRequest(
            f"{name!r} is no name for a log: use letters, digits, '.', '_', '-', at most {limits.MAX_NAME_PART} "
            "between two slashes"
        )
    if reserved := [part for part in parts if OWN_FILE.fullmatch(part)]:
        raise InvalidRequest(f"{name!r} is no name for a log: {reserved[0]!r} is one of a log's own files")
    if parts[0] in _TAKEN[area]:
        raise InvalidRequest(f"{name!r} is no name for a log in {area}/: {parts[0]!r} is taken there; use another")
    return f"{data_dir}/{area}/{name}"


def log_names(data_dir: str, disk: Disk) -> list[str]:
    """The logs of a data directory, damaged ones and sidecars too; not those in `meta/`."""
    found = []
    pending = [""]
    while pending:
        prefix = pending.pop()
        names = disk.list(f"{data_dir}/logs/{prefix}")
        if any(OWN_FILE.fullmatch(name) for name in names):
            found.append(prefix.rstrip("/"))
        pending += [f"{prefix}{name}/" for name in names if not OWN_FILE.fullmatch(name)]
    return sorted(found)


def _ignore(failure: StorageFailed) -> None:
    """Whoever appends or waits is told; nobody else needs to be."""


class Store:
    """Holds the data directory from construction until `close`."""

    def __init__(
        self,
        data_dir: str,
        *,
        disk: Disk | None = None,
        on_failure: OnFailure = _ignore,
        on_sync: OnSync = untold,
    ) -> None:
        if not data_dir:
            raise InvalidRequest("the data directory has no name; say which one to use")
        self.data_dir = data_dir
        self.disk = disk or LocalDisk()
        try:
            self.disk.make_directory(f"{data_dir}/meta")
            self.disk.make_directory(f"{data_dir}/logs")
            self._lock = DirectoryLock(f"{data_dir}/meta/lock")
        except OSError as error:
            why = f"{error.filename or data_dir}: {error.strerror or error}"
            raise OSError(
                error.errno,
                f"{data_dir} cannot be the data directory ({why}); choose another one, or let this user write there",
            ) from error
        self._reserve = Reserve(self.disk, f"{data_dir}/meta/reserve")
        self.files = OpenFiles(self.disk)
        self._cache = DerivedCache()
        self._driver = SyncDriver(on_failure, on_sync)
        self._logs: dict[str, Log] = {}
        self._opening = Lock()
        """Held while logs and their directories come and go."""
        self._closed = False

    def open_log(
        self,
        name: str,
        settings: LogSettings | None = None,
        views: Sequence[ViewKind] = (),
        *,
        area: Area = "logs",
    ) -> Log:
        """Open a log, or give back the one that is open under this name, as it is."""
        directory = log_directory(self.data_dir, name, area)
        with self._opening:
            self._check()
            log = self._logs.get(directory)
            if log is None:
                log = self._logs[directory] = Log.open(
                    directory,
                    disk=self.disk,
                    files=self.files,
                    cache=self._cache,
                    reserve=self._reserve,
                    settings=settings,
                    views=views,
                    on_dirty=self._driver.notify,
                    on_grown=self._driver.begin,
                )
            return log

    def has_log(self, name: str, *, area: Area = "logs") -> bool:
        """Whether a log was made here, damaged or not: its state file, or any of its own files, is there."""
        directory = log_directory(self.data_dir, name, area)
        return any(OWN_FILE.fullmatch(file) for file in self.disk.list(directory))

    def remove_log(self, name: str) -> None:
        """Remove a topic's log with all its files, durably. Again, or after a crash half way, it does the rest.

        If it is open it stops at once: whoever waits for it, or uses it later, gets LogClosed. A log inside its
        directory, like a partition's sidecar, stays: remove both, and nothing is left of either.
        """
        self._remove_log(log_directory(self.data_dir, name))
        if self.reserve_spent:
            self.refill_reserve()

    def _remove_log(self, directory: str) -> None:
        stopped: Log | None = None
        while True:
            with self._opening:
                self._check()
                log = self._logs.get(directory)
                if log is None or log is stopped:
                    self._logs.pop(directory, None)
                    remove(self.disk, directory, root=f"{self.data_dir}/logs")
                    return
            log.abandon()  # not under the lock: it calls back whoever waits
            self._driver.forget(log)
            stopped = log

    def shrinking(self, work: Callable[[], Result]) -> Result:
        """Do work that frees space in the end; on a full disk with the space kept back for that."""
        return self._reserve.shrinking(work)

    def spending(self, work: Callable[[], Result]) -> Result:
        """Do work that adds a little that must not wait; on a full disk with the same space, which stays given up.

        The work is done again when it meets DiskFull.
        """
        return self._reserve.spending(work)

    @property
    def reserve_spent(self) -> bool:
        """Whether what is left of a full disk is for `spending` alone, so that nothing else may be appended."""
        return self._reserve.spent

    def refill_reserve(self) -> bool:
        """Keep the space back again if the disk has it; whether it is all there now. Writes and syncs it."""
        return self._reserve.refill()

    def _check(self) -> None:
        if self._closed:
            raise LogClosed(f"{self.data_dir} was closed; open the store again")

    def log_names(self) -> list[str]:
        return log_names(self.data_dir, self.disk)

    def close(self) -> None:
        """Sync and close every log, then give the directory back. Raises the first error, after all of that."""
        try:
            self.close_logs()
        finally:
            self.release()

    def close_logs(self) -> None:
        """Who still works on a log meets LogClosed. Raises the first error, after all are closed."""
        with self._opening:
            if self._closed:
                return
            self._closed = True
        self._driver.stop()
        with ExitStack() as rest:
            for log in self._logs.values():
                rest.callback(log.close)

    def release(self) -> None:
        """Give the directory back, once nobody works on the logs any more."""
        self.files.close()
        self._lock.release()

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
