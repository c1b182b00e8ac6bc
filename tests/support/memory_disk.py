"""A disk in memory: for tests that open a log tens of thousands of times. Everything counts as synced at once."""

from goqueue.io.disk import Buffer, File


class MemoryFile:
    """An open file; all handles of a path share its bytes."""

    __slots__ = ("_data",)

    def __init__(self, data: bytearray) -> None:
        self._data = data

    def read(self, position: int, size: int) -> bytes:
        return bytes(memoryview(self._data)[position : position + size])

    def write(self, position: int, data: Buffer) -> int:
        if position > len(self._data):
            self._data.extend(bytes(position - len(self._data)))
        self._data[position : position + len(data)] = data
        return len(data)

    def is_cached(self, position: int) -> bool:
        return True

    def size(self) -> int:
        return len(self._data)

    def truncate(self, size: int) -> None:
        del self._data[size:]
        self._data.extend(bytes(size - len(self._data)))

    def begin_sync(self, position: int) -> None: ...

    def sync(self) -> None:
        pass

    def close(self) -> None:
        pass


class MemoryDisk:
    """Fills the `Disk` port. `files` holds everything there is, by path."""

    def __init__(self) -> None:
        self.files: dict[str, bytearray] = {}

    def open(self, path: str, *, create: bool = False) -> File:
        data = self.files.get(path)
        if data is None:
            if not create:
                raise FileNotFoundError(path)
            data = self.files[path] = bytearray()
        return MemoryFile(data)

    def exists(self, path: str) -> bool:
        return path in self.files

    def list(self, directory: str) -> list[str]:
        prefix = directory + "/"
        return sorted(path[len(prefix) :] for path in self.files if path.startswith(prefix))

    def make_directory(self, path: str) -> None:
        pass

    def remove_directory(self, path: str) -> bool:
        return not self.list(path)

    def rename(self, source: str, target: str) -> None:
        self.files[target] = self.files.pop(source)

    def unlink(self, path: str) -> None:
        self.files.pop(path, None)

    def sync_directory(self, path: str) -> None:
        pass
