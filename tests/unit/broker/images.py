"""What a crash could leave of a data directory at every step, while the broker that is watched runs on undisturbed.

A broker has threads, and a simulated disk that dies under them would take them along. So nothing dies here: before
each change the disk is copied, and afterwards every copy is crashed, opened and looked at by itself.
"""

import copy
from collections.abc import Iterator
from pathlib import Path
from random import Random
from threading import RLock

from goqueue.io.disk import Buffer
from sim.disk import CRASH_KINDS, SimDisk, SimFile


class _File:
    """A file of a photographed disk: one thread at a time."""

    def __init__(self, file: SimFile, lock: RLock) -> None:
        self._file = file
        self._lock = lock

    def read(self, position: int, size: int) -> bytes:
        with self._lock:
            return self._file.read(position, size)

    def is_cached(self, position: int) -> bool:
        return True

    def write(self, position: int, data: Buffer) -> int:
        with self._lock:
            return self._file.write(position, data)

    def size(self) -> int:
        with self._lock:
            return self._file.size()

    def truncate(self, size: int) -> None:
        with self._lock:
            self._file.truncate(size)

    def begin_sync(self, position: int) -> None: ...

    def sync(self) -> None:
        with self._lock:
            self._file.sync()

    def close(self) -> None:
        with self._lock:
            self._file.close()


class PhotographedDisk:
    """Fills the `Disk` port over a simulated disk, for several threads. Images are taken while `recording`."""

    def __init__(self, disk: SimDisk | None = None) -> None:
        self.disk = disk or SimDisk(Random(0))
        self.disk.between = self._photograph
        self.recording = False
        self.images: list[SimDisk] = []
        self._lock = RLock()

    def _photograph(self, kind: str) -> None:
        if self.recording:
            self.disk.between = None
            self.images.append(copy.deepcopy(self.disk))
            self.disk.between = self._photograph

    def begin(self, data_dir: Path) -> None:
        """Record from here on. The reserve plays no part in it, and would make every image large."""
        file = self.open(f"{data_dir}/meta/reserve")
        file.truncate(0)
        file.sync()
        file.close()
        self.recording = True

    def crashed(self, seeds: range = range(3)) -> Iterator[tuple[str, "PhotographedDisk"]]:
        """Every image after a kill and after power cuts, ready to be opened; with a word on which one it is."""
        for number, image in enumerate(self.images):
            for kind in CRASH_KINDS:
                for seed in seeds if kind == "power" else range(1):
                    disk = copy.deepcopy(image)
                    disk.crash(Random(seed * 1000 + number), kind)
                    yield f"{kind} before change {number}, seed {seed}", PhotographedDisk(disk)

    # --- the port

    def open(self, path: str, *, create: bool = False) -> _File:
        with self._lock:
            return _File(self.disk.open(path, create=create), self._lock)

    def exists(self, path: str) -> bool:
        with self._lock:
            return self.disk.exists(path)

    def list(self, directory: str) -> list[str]:
        with self._lock:
            return self.disk.list(directory)

    def make_directory(self, path: str) -> None:
        with self._lock:
            self.disk.make_directory(path)

    def remove_directory(self, path: str) -> bool:
        with self._lock:
            return self.disk.remove_directory(path)

    def rename(self, source: str, target: str) -> None:
        with self._lock:
            self.disk.rename(source, target)

    def unlink(self, path: str) -> None:
        with self._lock:
            self.disk.unlink(path)

    def sync_directory(self, path: str) -> None:
        with self._lock:
            self.disk.sync_directory(path)
