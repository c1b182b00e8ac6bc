"""Checking a whole log against itself, offline: every checksum, every offset, every companion file.

Names what it finds and where; changes nothing. Damage means records are lost or unreadable; the rest is
repaired by opening the log.
"""

from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import NamedTuple

from goqueue.io.disk import Disk
from goqueue.model import limits
from goqueue.model.errors import DamagedState
from goqueue.storage import derived as companions
from goqueue.storage import synced
from goqueue.storage.derived import BUILT_IN, Derived
from goqueue.storage.offline import OfflineLog, SegmentFile
from goqueue.storage.state import FILE_NAME
from goqueue.storage.walk import Run


class Severity(StrEnum):
    DAMAGE = "damage"
    """Records that were durable cannot be read."""
    TEAR = "tear"
    """An end that was never synced; opening the log cuts it and saves it aside."""
    REPAIR = "repair"
    """A file that can be rebuilt; opening the log does so."""
    NOTE = "note"


class Finding(NamedTuple):
    severity: Severity
    path: str
    position: int
    first_offset: int
    next_offset: int
    reason: str


Progress = Callable[[int], None]
"""Told how many bytes were just checked."""


def verify(directory: str, disk: Disk, progress: Progress = lambda _: None) -> Iterator[Finding]:
    """Everything that is wrong with a log, as it is found."""
    try:
        log = OfflineLog(directory, disk)
    except DamagedState as error:
        yield Finding(Severity.DAMAGE, f"{directory}/{FILE_NAME}", 0, 0, 0, str(error))
        return
    if log.synced is None:
        yield Finding(
            Severity.REPAIR, f"{directory}/{synced.FILE_NAME}", 0, 0, 0, "the synced mark is missing or damaged"
        )
    known = {FILE_NAME, synced.FILE_NAME}
    for segment in log.segments():
        yield from _verify_segment(log, disk, segment, progress)
        stem = segment.path.removesuffix(".log")
        known |= {path.rpartition("/")[2] for path in (segment.path, *companions.companions(stem).values())}
    for name in disk.list(directory):
        if name.endswith(".cut"):
            yield Finding(Severity.NOTE, f"{directory}/{name}", 0, 0, 0, "the end of the log as it was cut once")
        elif name not in known and "." in name:
            yield Finding(Severity.NOTE, f"{directory}/{name}", 0, 0, 0, "does not belong to this log")


def _verify_segment(log: OfflineLog, disk: Disk, segment: SegmentFile, progress: Progress) -> Iterator[Finding]:
    entry = segment.entry
    saved = None
    if entry is not None:
        stem = segment.path.removesuffix(".log")
        saved = companions.load(disk, stem, base=entry.base, seal=entry.seal, kinds=BUILT_IN)
    rebuilt = Derived(segment.base, saved.interval if saved is not None else 4 * limits.KIB, BUILT_IN)
    damaged = False
    count = 0
    for item in log.walk(segment):
        if isinstance(item, Run):
            rebuilt.add(item.position, item.data, item.scan)
            count += len(item.scan)
            progress(item.scan.end)
            continue
        damaged = True
        progress(item.end - item.position)
        severity = Severity.TEAR if log.is_torn(segment, item) else Severity.DAMAGE
        yield Finding(severity, segment.path, item.position, item.first, item.next_offset, item.reason)
    if entry is None or damaged:
        return
    if segment.size > entry.size:
        reason = f"{segment.size - entry.size} bytes after its last record belong to nobody"
        yield Finding(Severity.NOTE, segment.path, entry.size, entry.end, entry.end, reason)
    whole = segment.extent.contiguous and count == entry.end - entry.base
    if count != entry.count and not whole:
        reason = f"it holds {count} records, the state file says {entry.count}"
        yield Finding(Severity.DAMAGE, segment.path, 0, entry.base, entry.end, reason)
    if saved is None:
        reason = "its index, time index or view is missing or damaged"
        yield Finding(Severity.REPAIR, segment.path, 0, entry.base, entry.end, reason)
    elif not saved.agrees(rebuilt):
        reason = "its index or view disagrees with its records"
        yield Finding(Severity.REPAIR, segment.path, 0, entry.base, entry.end, reason)
