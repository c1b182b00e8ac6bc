"""Files wherever Spark can write them: Hadoop's FileSystem, by way of the JVM. Paths are relative to a root.

A rename to a name that is free happens as a whole on local disks and HDFS; whoever uses this relies on nothing else.
"""

from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from goqueue.model.errors import StorageFailed


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
        walk = self._fs.listFiles(self._path(under), True)
        found = []
        while walk.hasNext():
            status = walk.next()
            whole = str(status.getPath().toString())
            found.append(FileFound(whole[len(self.root) + 1 :], int(status.getLen())))
        return sorted(found)

    def read(self, path: str) -> bytes:
        stream = self._fs.open(self._path(path))
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def create(self, path: str, data: bytes) -> None:
        """A new file with this in it, under its name only when it is whole."""
        made = f"{path}.tmp"
        stream = self._fs.create(self._path(made), True)
        try:
            stream.write(bytearray(data))
        finally:
            stream.close()
        self.move(made, path)

    def move(self, source: str, target: str) -> None:
        """To a name that is free."""
        to = self._path(target)
        self._fs.mkdirs(to.getParent())
        if not self._fs.rename(self._path(source), to):
            raise StorageFailed(f"{self.at(source)} could not be moved to {self.at(target)}")

    def delete(self, path: str) -> None:
        """A file, or a directory with what is in it; nothing happens if it is not there."""
        self._fs.delete(self._path(path), True)

    def _path(self, path: str) -> Any:
        return self._path_of(self.at(path))

    def _path_of(self, whole: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(whole)
