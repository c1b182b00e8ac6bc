"""A disk in memory that forgets the way real ones do. It implements `goqueue.io.disk.Disk`.

A file is an inode: what programs see (`data`), what the medium holds (`synced`), and the changes between the
two in order (`pending`). A directory is the same with names. `crash` decides what is left:

* "kill": the process died, the page cache did not. All is kept, and what was not synced is still not synced.
* "power": sizes and truncations survive as a prefix in journal order; of each 512-byte sector any version
  since the last sync survives (hence torn writes, and sizes without their data: zeros); names survive as a
  prefix of each directory's operations, so a file may lose its name although its bytes were synced, and a
  directory that was removed may be back, with what was in it.

Faults are planned on the disk: `crash_at`, `short_writes`, `capacity`, `fail_sync_at`. A crash inside a call
raises `Crashed`, and so does every later call until `crash` is called: a dead process does nothing more.
Nothing here knows what the files mean. Everything random comes from the `random.Random` it is given.
"""

import errno
from collections.abc import Callable
from functools import lru_cache
from operator import itemgetter
from posixpath import basename, dirname, join, normpath
from random import Random
from typing import Final, Literal, NamedTuple

from goqueue.io.disk import Buffer
from goqueue.model.errors import DiskFull
from sim.trace import Trace

SECTOR_BYTES: Final = 512
_NAME = itemgetter(0)

CrashKind = Literal["kill", "power"]
CRASH_KINDS: Final[tuple[CrashKind, ...]] = ("kill", "power")


class Crashed(BaseException):
    """The simulated process is dead. Not an `Exception`: a program cannot handle its own power cut."""


class _Change(NamedTuple):
    """A write of `data` at `position`, or (without data) a truncation to `position`."""

    position: int
    data: bytes | None
    size: int
    """The file's size after it."""


class _Inode:
    __slots__ = ("data", "linked", "pending", "synced")

    def __init__(self) -> None:
        self.data = bytearray()
        self.synced = bytearray()
        self.pending: list[_Change] = []
        self.linked = True

    def write(self, position: int, data: bytes) -> None:
        _put(self.data, position, data)
        self.pending.append(_Change(position, data, len(self.data)))

    def truncate(self, size: int) -> None:
        _resize(self.data, size)
        self.pending.append(_Change(size, None, size))

    def sync(self, count: int) -> None:
        """Make the first `count` pending changes durable."""
        for change in self.pending[:count]:
            if change.data is None:
                _resize(self.synced, change.position)
            else:
                _put(self.synced, change.position, change.data)
        del self.pending[:count]

    def lose_power(self, rng: Random) -> None:
        luck = rng.random() if self.pending else 0.0
        if luck < 0.25:
            self.data = bytearray(self.synced)
        elif luck > 0.4:
            self.data = self._torn(rng)
        self.synced = bytearray(self.data)
        self.pending.clear()

    def _torn(self, rng: Random) -> bytearray:
        pending = self.pending
        committed = rng.randint(0, len(pending))
        size = pending[committed - 1].size if committed else len(self.synced)
        left = bytearray(size)
        for start in range(0, size, SECTOR_BYTES):
            end = min(start + SECTOR_BYTES, size)
            sector = bytearray(SECTOR_BYTES)
            old = self.synced[start : start + SECTOR_BYTES]
            sector[: len(old)] = old
            touching = self._touching(start, committed)
            version = rng.randint(0, len(touching))
            for number, index in enumerate(touching):
                change = pending[index]
                if change.data is None:
                    if number < version or index < committed:
                        cut = max(change.position - start, 0)
                        sector[cut:] = bytes(SECTOR_BYTES - cut)
                elif number < version:
                    first = max(change.position, start)
                    last = min(change.position + len(change.data), start + SECTOR_BYTES)
                    sector[first - start : last - start] = change.data[first - change.position : last - change.position]
            left[start:end] = sector[: end - start]
        return left

    def _touching(self, start: int, committed: int) -> list[int]:
        """The changes that this sector may show, in order: a truncation that was not committed hides all later."""
        found = []
        for index, change in enumerate(self.pending):
            if change.data is None:
                if change.position < start + SECTOR_BYTES:
                    if index >= committed:
                        break
                    found.append(index)
            elif change.position < start + SECTOR_BYTES and change.position + len(change.data) > start:
                found.append(index)
        return found


def _put(image: bytearray, position: int, data: bytes) -> None:
    if position > len(image):
        image.extend(bytes(position - len(image)))
    image[position : position + len(data)] = data


def _resize(image: bytearray, size: int) -> None:
    if size < len(image):
        del image[size:]
    else:
        image.extend(bytes(size - len(image)))


class _Naming(NamedTuple):
    """What a directory operation did: these names now mean these files or directories, or nothing."""

    names: tuple[tuple[str, "_Inode | _Directory | None"], ...]


class _Directory:
    __slots__ = ("entries", "pending", "synced")

    def __init__(self) -> None:
        self.entries: _Entries = {}
        self.synced: _Entries = {}
        self.pending: list[_Naming] = []

    def change(self, *names: tuple[str, "_Inode | _Directory | None"]) -> None:
        naming = _Naming(names)
        _name(self.entries, naming)
        self.pending.append(naming)

    def sync(self, count: int) -> None:
        """Make the first `count` pending operations durable."""
        for naming in self.pending[:count]:
            _name(self.synced, naming)
        del self.pending[:count]

    def files(self) -> list[_Inode]:
        """In the order of their names."""
        nodes = (self.entries[name] for name in sorted(self.entries))
        return [node for node in nodes if isinstance(node, _Inode)]

    def lose_power(self, rng: Random) -> None:
        entries = dict(self.synced)
        if self.pending:
            for naming in self.pending[: rng.randint(0, len(self.pending))]:
                _name(entries, naming)
            self.pending.clear()
        self.entries = entries
        self.synced = dict(entries)


_Entries = dict[str, _Inode | _Directory]


def _name(entries: _Entries, naming: _Naming) -> None:
    for name, node in naming.names:
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node


@lru_cache(maxsize=4096)
def _split(path: str) -> tuple[str, str]:
    return normpath(dirname(path)), basename(path)


class SimFile:
    """An open file: it stays usable after a rename or an unlink, and dies with its process."""

    __slots__ = ("_disk", "_inode", "_life", "_name", "_open")

    def __init__(self, disk: "SimDisk", inode: _Inode, name: str) -> None:
        self._disk = disk
        self._inode = inode
        self._name = name
        self._life = disk.life
        self._open = True

    def read(self, position: int, size: int) -> bytes:
        self._check()
        self._disk.reads += 1
        return bytes(self._inode.data[position : position + size])

    def write(self, position: int, data: Buffer) -> int:
        self._check()
        return self._disk.write_inode(self._inode, self._name, position, bytes(data))

    def is_cached(self, position: int) -> bool:
        return True

    def size(self) -> int:
        self._check()
        return len(self._inode.data)

    def truncate(self, size: int) -> None:
        self._check()
        self._disk.truncate_inode(self._inode, self._name, size)

    def begin_sync(self, position: int) -> None:
        """What is not synced may be lost all the same."""

    def sync(self) -> None:
        self._check()
        self._disk.sync_inode(self._inode, self._name)

    def close(self) -> None:
        self._open = False

    def _check(self) -> None:
        if self._disk.dead or self._life != self._disk.life:
            raise Crashed
        if not self._open:
            raise OSError(errno.EBADF, "the file is closed", self._name)


class SimDisk:
    """The disk of one simulated machine. `rng` decides what a crash in the middle of a call leaves of that call."""

    def __init__(self, rng: Random, *, trace: Trace | None = None, capacity: int | None = None) -> None:
        self._rng = rng
        self._trace = trace
        self._directories: dict[str, _Directory] = {"/": _Directory()}
        self._crash_in: int | None = None
        self._fail_sync_in: int | None = None
        self.capacity = capacity
        """Bytes all files may hold together; None is no bound. May be changed at any time."""
        self.used = 0
        self.short_writes = 0.0
        """The chance that a write writes less than it was asked to."""
        self.between: Callable[[str], None] | None = None
        """Called before each change with its kind: where a schedule lets another task take its turn."""
        self.life = 0
        """How often the machine was started again; files of an earlier life are dead."""
        self.dead = False
        self.changes = 0
        self.reads = 0
        self.counts: dict[str, int] = {}

    # Faults

    def crash_at(self, change: int | None) -> None:
        """Crash inside the `change`-th change from now (1 is the next one); None forgets the plan."""
        self._crash_in = change

    def fail_sync_at(self, sync: int | None) -> None:
        """The `sync`-th sync from now (file or directory) raises EIO, and what it should have kept stays lost."""
        self._fail_sync_in = sync

    def crash(self, rng: Random, kind: CrashKind) -> None:
        """End the process (and with "power" the page cache); the disk is ready for the next one."""
        self.life += 1
        self.dead = False
        self._crash_in = self._fail_sync_in = None
        if kind == "power":
            self._find_directories(rng)
        self.used = 0
        for path in sorted(self._directories):
            for inode in self._directories[path].files():
                if kind == "power":
                    inode.lose_power(rng)
                inode.linked = True
                self.used += len(inode.data)

    def _find_directories(self, rng: Random) -> None:
        """Lose the names that were not synced; what can still be reached from the root is there."""
        root = self._directories["/"]
        self._directories = {}
        pending = [("/", root)]
        while pending:
            path, directory = pending.pop(0)
            directory.lose_power(rng)
            self._directories[path] = directory
            below = ((name, node) for name, node in directory.entries.items() if isinstance(node, _Directory))
            pending += [(join(path, name), node) for name, node in sorted(below, key=_NAME)]

    def flip(self, path: str, position: int, mask: int) -> None:
        """Damage a byte on the medium: the bits of `mask` change under every image of it."""
        inode = self._inode(path)
        inode.data[position] ^= mask
        if position < len(inode.synced):
            inode.synced[position] ^= mask

    def content(self, path: str) -> bytes:
        """What programs would read; not an operation of the disk."""
        return bytes(self._inode(path).data)

    def unsynced(self, path: str) -> int:
        """How many changes of a file, or names of a directory, wait for their sync."""
        directory = self._directories.get(normpath(path))
        return len(directory.pending if directory is not None else self._inode(path).pending)

    # The port

    def open(self, path: str, *, create: bool = False) -> SimFile:
        self._alive()
        directory, name = self._place(path)
        inode = self._file(directory, name, path)
        if inode is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            crash = self._step("create", path)
            if not crash and self.capacity is not None and self.used >= self.capacity:
                raise DiskFull(f"no space left to create {path}; free some and try again")
            inode = _Inode()
            if self._happens(crash):
                directory.change((name, inode))
            self._end(crash)
        return SimFile(self, inode, path)

    def exists(self, path: str) -> bool:
        self._alive()
        parent, name = _split(path)
        directory = self._directories.get(parent)
        return normpath(path) == "/" or (directory is not None and name in directory.entries)

    def list(self, directory: str) -> list[str]:
        self._alive()
        found = self._directories.get(normpath(directory))
        return [] if found is None else sorted(found.entries)

    def make_directory(self, path: str) -> None:
        self._alive()
        path = normpath(path)
        if path in self._directories:
            return
        parent = dirname(path)
        self.make_directory(parent)
        crash = self._step("mkdir", path)
        if self._happens(crash):
            self._directories[path] = _Directory()
            self._directories[parent].change((basename(path), self._directories[path]))
            self._directories[parent].sync(len(self._directories[parent].pending))
        self._end(crash)

    def remove_directory(self, path: str) -> bool:
        self._alive()
        path = normpath(path)
        directory = self._directories.get(path)
        if directory is None:
            return True
        if directory.entries:
            return False
        crash = self._step("rmdir", path)
        if self._happens(crash):
            self._directories[dirname(path)].change((basename(path), None))
            del self._directories[path]
        self._end(crash)
        return True

    def rename(self, source: str, target: str) -> None:
        self._alive()
        directory, name = self._place(source)
        target_directory, new_name = self._place(target)
        if target_directory is not directory:
            raise OSError(errno.EXDEV, "the product renames within a directory only", source)
        inode, replaced = self._file(directory, name, source), self._file(directory, new_name, target)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", source)
        crash = self._step("rename", source, new_name)
        if self._happens(crash) and name != new_name:
            directory.change((name, None), (new_name, inode))
            self._unlinked(replaced)
        self._end(crash)

    def unlink(self, path: str) -> None:
        self._alive()
        parent, name = _split(path)
        directory = self._directories.get(parent)
        inode = None if directory is None else self._file(directory, name, path)
        if directory is None or inode is None:
            return
        crash = self._step("unlink", path)
        if self._happens(crash):
            directory.change((name, None))
            self._unlinked(inode)
        self._end(crash)

    def sync_directory(self, path: str) -> None:
        self._alive()
        directory = self._directories.get(normpath(path))
        if directory is None:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        count = len(directory.pending)
        crash = self._step("sync_directory", path)
        if not crash:
            self._may_fail(path)
        if self._happens(crash):
            directory.sync(count)
        self._end(crash)

    # What open files do

    def write_inode(self, inode: _Inode, name: str, position: int, data: bytes) -> int:
        crash = self._step("write", name, position, len(data))
        if crash:
            data = data[: self._rng.randint(0, len(data))]
        elif self.short_writes and len(data) > 1 and self._rng.random() < self.short_writes:
            data = data[: self._rng.randrange(1, len(data))]
        growth = position + len(data) - len(inode.data)
        if self.capacity is not None and inode.linked and growth > max(self.capacity - self.used, 0):
            fits = len(data) - (growth - max(self.capacity - self.used, 0))
            if fits <= 0:
                self._end(crash)
                raise DiskFull(f"no space left for {len(data)} bytes in {name}; free some and publish again")
            data = data[:fits]
        if data:
            before = len(inode.data)
            inode.write(position, data)
            if inode.linked:
                self.used += len(inode.data) - before
        self._end(crash)
        return len(data)

    def truncate_inode(self, inode: _Inode, name: str, size: int) -> None:
        crash = self._step("truncate", name, size)
        if self._happens(crash):
            if inode.linked:
                self.used += size - len(inode.data)
            inode.truncate(size)
        self._end(crash)

    def sync_inode(self, inode: _Inode, name: str) -> None:
        count = len(inode.pending)  # what another task writes while the sync is under way, it does not cover
        crash = self._step("sync", name, count)
        if not crash:
            try:
                self._may_fail(name)
            except OSError:
                del inode.pending[:count]  # the kernel marks the pages clean: a second sync would "succeed"
                raise
        if self._happens(crash):
            inode.sync(count)
        self._end(crash)

    # Inside

    def _alive(self) -> None:
        if self.dead:
            raise Crashed

    def _inode(self, path: str) -> _Inode:
        directory, name = self._place(path)
        inode = self._file(directory, name, path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return inode

    def _file(self, directory: _Directory, name: str, path: str) -> _Inode | None:
        node = directory.entries.get(name)
        if isinstance(node, _Directory):
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        return node

    def _place(self, path: str) -> tuple[_Directory, str]:
        parent, name = _split(path)
        directory = self._directories.get(parent)
        if directory is None:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        return directory, name

    def _unlinked(self, inode: _Inode | None) -> None:
        if inode is not None:
            inode.linked = False
            self.used -= len(inode.data)

    def _step(self, kind: str, *about: object) -> bool:
        """Count a change; True when the crash is to happen inside it."""
        if self.between is not None:
            self.between(kind)
            self._alive()
        self.changes += 1
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if self._trace is not None:
            self._trace.event(kind, *about)
        if self._crash_in is None:
            return False
        self._crash_in -= 1
        return self._crash_in == 0

    def _happens(self, crash: bool) -> bool:
        """Whether a change that cannot be half done is done at all."""
        return not crash or self._rng.random() < 0.5

    def _end(self, crash: bool) -> None:
        if crash:
            self.dead = True
            self._crash_in = None
            if self._trace is not None:
                self._trace.event("crashed")
            raise Crashed

    def _may_fail(self, name: str) -> None:
        if self._fail_sync_in is not None:
            self._fail_sync_in -= 1
            if self._fail_sync_in == 0:
                self._fail_sync_in = None
                raise OSError(errno.EIO, "the sync failed", name)
