"""Small files replaced as a whole: after a crash a reader finds the old content or the new, never a mix."""

import posixpath

from goqueue.io.disk import Buffer, Disk, File
from goqueue.model.errors import DiskFull


def write_all(file: File, position: int, data: Buffer) -> None:
    """Write everything, however short the single writes are. DiskFull leaves a part behind."""
    done = file.write(position, data)
    if done == len(data):
        return
    view = memoryview(data)
    while done < len(view):
        written = file.write(position + done, view[done:])
        if written == 0:
            raise DiskFull("the disk takes no more bytes; free some space and try again")
        done += written


def read_file(disk: Disk, path: str) -> bytes | None:
    """The whole content, or None when there is no such file."""
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return None
    try:
        return file.read(0, file.size())
    finally:
        file.close()


def write_file(disk: Disk, path: str, data: Buffer, *, durably: bool = False) -> None:
    """Write a file that may be lost or torn in a crash: one that can be rebuilt, or whose name nobody uses yet.

    `durably` fsyncs it; its name still becomes durable with its directory.
    """
    file = disk.open(path, create=True)
    try:
        file.truncate(0)
        write_all(file, 0, data)
        if durably:
            file.sync()
    finally:
        file.close()


def replace_file(disk: Disk, path: str, data: Buffer) -> None:
    """Durably replace the content: temporary file, fsync, rename, directory fsync."""
    temporary = path + ".tmp"
    file = disk.open(temporary, create=True)
    try:
        file.truncate(0)
        write_all(file, 0, data)
        file.sync()
    finally:
        file.close()
    disk.rename(temporary, path)
    disk.sync_directory(posixpath.dirname(path))
