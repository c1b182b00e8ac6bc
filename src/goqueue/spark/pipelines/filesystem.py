"""Files wherever Spark can write them: Hadoop's FileSystem, by way of the JVM. Paths are relative to a root.

A rename to a name that is free, and taking a name that only one of several can have, happen as a whole on local disks
and HDFS; whoever uses this relies on nothing else. What is gone when it is looked for is a FileNotFoundError.
"""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from goqueue.model.errors import StorageFailed

_GONE: Final = "java.io.FileNotFoundException"


class FileFound(NamedTuple):
    path: str
    size: int


class Files:
    """What is under a root. It need not be there yet."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self._jvm: Any = spark._jvm
        configuration = spark._jsc.hadoopConfiguration()
        path = self._path_of(root)
        self._fs = path.getFileSystem(configuration)
        self._root = self._fs.makeQualified(path)
        self.root = str(self._root.toString())

    def at(self, path: str) -> str:
        """The whole path, for Spark."""
        return f"{self.root}/{path}" if path else self.root

    def exists(self, path: str) -> bool:
        return bool(self._fs.exists(self._path(path)))

    def list(self, under: str) -> list[FileFound]:
        """Every file below a directory, however deep; none if it is not there."""
        if not self.exists(under):
            return []
        found = []
        with _told_if_gone():
            walk = self._fs.listFiles(self._path(under), True)
            while walk.hasNext():
                status = walk.next()
                whole = str(status.getPath().toString())
                found.append(FileFound(whole[len(self.root) + 1 :], int(status.getLen())))
        return sorted(found)

    def names(self, under: str) -> set[str]:
        """What is in a directory itself; nothing if it is not there."""
        if not self.exists(under):
            return set()
        with _told_if_gone():
            return {str(status.getPath().getName()) for status in self._fs.listStatus(self._path(under))}

    def read(self, path: str) -> bytes:
        with _told_if_gone():
            stream = self._fs.open(self._path(path))
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def create(self, path: str, data: bytes) -> None:
        """A new file with this in it, under its name only when it is whole."""
        made = f"{path}.tmp"
        self._write(made, data)
        self.move(made, path)

    def create_first(self, path: str, data: bytes) -> bool:
        """The same, for one of all who try, whenever they do. False for the others: there is a file of that name."""
        made = f"{path}.{uuid.uuid4().hex}.tmp"
        self._write(made, data)
        try:
            if self._fs.getUri().getScheme() != "file":
                return bool(self._fs.rename(self._path(made), self._path(path)))
            os.link(self._local(made), self._local(path))  # Hadoop's rename looks first, and renames then
        except FileExistsError:
            return False
        finally:
            self.delete(made)
        return True

    def _write(self, path: str, data: bytes) -> None:
        stream = self._fs.create(self._path(path), True)
        try:
            stream.write(bytearray(data))
        finally:
            stream.close()

    def move(self, source: str, target: str) -> None:
        """To a name that is free."""
        to = self._path(target)
        self._fs.mkdirs(to.getParent())
        if not self._fs.rename(self._path(source), to):
            raise StorageFailed(f"{self.at(source)} could not be moved to {self.at(target)}")

    def delete(self, path: str) -> None:
        """A file, or a directory with what is in it; nothing happens if it is not there."""
        self._fs.delete(self._path(path), True)

    def _local(self, path: str) -> str:
        return str(self._path(path).toUri().getPath())

    def _path(self, path: str) -> Any:
        return self._path_of(self.at(path))

    def _path_of(self, whole: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(whole)


@contextmanager
def _told_if_gone() -> Iterator[None]:
    try:
        yield
    except Py4JJavaError as error:
        if error.java_exception.getClass().getName() == _GONE:
            raise FileNotFoundError(str(error.java_exception.getMessage())) from None
        raise
