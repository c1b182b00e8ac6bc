"""Making what is written durable: the segments' bytes, their names, and the synced mark that says how far.

The order is the promise: bytes and names first, the mark after them. The mark may lag behind what is durable, never
run ahead, so an fsync for the mark itself is needed now and then only. One thread at a time; an OSError out of
here means the disk can no longer be believed.
"""

from collections.abc import Sequence

from goqueue.io.disk import Disk
from goqueue.model import limits
from goqueue.model.errors import DiskFull
from goqueue.storage.files import OpenFiles
from goqueue.storage.segment import Segment
from goqueue.storage.synced import Synced, SyncedMark


class Flusher:
    """Flushes one log."""

    def __init__(self, directory: str, disk: Disk, files: OpenFiles, mark: SyncedMark, *, names_dirty: bool) -> None:
        self._directory = directory
        self._disk = disk
        self._files = files
        self._mark = mark
        self.names_dirty = names_dirty
        """A segment's file was made since the directory was last fsynced. The writer sets it at any time."""
        self._unmarked_bytes = self._unmarked_syncs = 0
        """Since the synced mark itself was last made durable."""

    def flush(self, segments: Sequence[Segment], end: Synced) -> None:
        """Make these segments, the unsealed ones, durable at least up to `end`."""
        for segment in segments:
            size = segment.size
            if segment.synced_size < size:
                with self._files.use(segment.key) as file:
                    file.sync()
                self._unmarked_bytes += size - segment.synced_size
                self._unmarked_syncs += 1
                segment.synced_size = size
        if self.names_dirty and any(segment.size for segment in segments):  # an empty one is made again if lost
            self.names_dirty = False
            self._disk.sync_directory(self._directory)
        due = (
            len(segments) > 1
            or self._unmarked_bytes >= limits.SYNCED_MARK_INTERVAL_BYTES
            or self._unmarked_syncs >= limits.SYNCED_MARK_INTERVAL_SYNCS
        )
        self.mark(end, durably=due)

    def mark(self, end: Synced, *, durably: bool) -> None:
        """Move the mark to `end`, up to which all is durable. On a full disk it stays where it is."""
        try:
            self._mark.store(end, durably=durably)
        except DiskFull:
            return
        if durably:
            self._unmarked_bytes = self._unmarked_syncs = 0
