"""Removing a log that is not open: its own files, its directory, and the parents that became empty.

Repeatable: a crash leaves less of it, and the next call does the rest. What is not a log's own stays, and so does
the directory it is in. Nobody may make a directory under the same root meanwhile.
"""

import posixpath
from typing import Final

from goqueue.io.disk import Disk
from goqueue.model.names import LOG_FILE
from goqueue.storage import state

OWN_FILE: Final = LOG_FILE
"""Names of files inside a log's directory: no log may be called so, or one could lie inside another's files."""


def remove(disk: Disk, directory: str, *, root: str) -> None:
    """Durable when it returns. `root` stays."""
    own = [name for name in disk.list(directory) if OWN_FILE.fullmatch(name)]
    # The state first, segments last: what a crash leaves is no log that could be opened, nor can a new one begin
    # there with the companions of this one, whose seal numbers it will use again.
    for name in sorted(own, key=lambda name: (name != state.FILE_NAME, name.endswith(".log"))):
        disk.unlink(f"{directory}/{name}")
    while directory != root and disk.remove_directory(directory):
        directory = posixpath.dirname(directory)
    disk.sync_directory(directory)
