"""Walking a segment file record by record, a bounded part at a time, past damage if there is some.

The one scanner: recovery, verification, rebuilding, cleaning and offline readers all go through `walk`. It
yields runs of valid records and, where bytes are not what was written, a `Damage` naming the exact range,
then goes on at the next record it can believe. It changes nothing.
"""

import errno
from collections.abc import Iterator
from typing import NamedTuple

from goqueue import codec
from goqueue.codec import Problem, Scan
from goqueue.codec.layout import REASONS
from goqueue.io.disk import File
from goqueue.model import limits
from goqueue.storage.resync import Search, in_order, offset_of


class Run(NamedTuple):
    """Valid records, back to back: `data` begins at `position` of the file."""

    position: int
    data: memoryview
    scan: Scan

    @property
    def end(self) -> int:
        return self.position + self.scan.end

    @property
    def next_offset(self) -> int:
        return self.scan.offsets[-1] + 1


class Damage(NamedTuple):
    """Offsets `first` up to `next_offset` are unreadable: bytes `position` up to `end` of the file."""

    first: int
    next_offset: int
    position: int
    end: int
    reason: str


class Extent(NamedTuple):
    """Which part of a file to walk and what must be in it.

    From byte `position`, where offset `first` comes next, up to byte `size`, where `limit` does. In a
    `contiguous` part every offset between is there; in a cleaned one there may be gaps. Without `resync` the walk
    ends with the first damage, whatever may lie behind it.
    """

    first: int
    limit: int
    size: int
    contiguous: bool
    position: int = 0
    resync: bool = True


def read_around(file: File, position: int, size: int) -> bytes:
    """Read, with zeros in place of what the disk cannot read: zeros are no record, so they are found as damage."""
    try:
        return file.read(position, size)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
    sector_end = position - position % limits.UNREADABLE_BYTES + limits.UNREADABLE_BYTES
    if position + size <= sector_end:
        return bytes(max(min(size, file.size() - position), 0))
    middle = position + size // 2
    middle = max(middle - middle % limits.UNREADABLE_BYTES, sector_end)
    return read_around(file, position, middle - position) + read_around(file, middle, position + size - middle)


def walk(file: File, extent: Extent, piece: int | None = None) -> Iterator[Run | Damage]:
    """`piece` is how many bytes are read at once, unless a record is larger."""
    piece = piece or limits.SCAN_CHUNK_BYTES
    expected, position = extent.first, extent.position
    size = min(extent.size, file.size())
    want = piece
    while position < size:
        asked = min(want, size - position)
        data = memoryview(read_around(file, position, asked))
        if len(data) < asked:  # it became shorter meanwhile
            size = position + len(data)
            if not data:
                break
        scan = codec.scan(data)
        good = in_order(scan, expected, limit=extent.limit, contiguous=extent.contiguous)
        if good:
            if good < len(scan):
                scan = codec.scan(data[: scan.positions[good]])
            run = Run(position, data[: scan.end], scan)
            yield run
            expected, position, want = run.next_offset, run.end, piece
            continue
        if scan.problem is Problem.INCOMPLETE and not len(scan) and position + len(data) < size:
            want = 2 * len(data)
            continue
        reason = "its offset does not follow" if len(scan) else REASONS[scan.problem]
        damage = _damage(file, position, expected, extent, reason)
        yield damage
        if not extent.resync:
            return
        position, expected = damage.end, damage.next_offset
    if expected < extent.limit and (extent.contiguous or size < extent.size):
        yield Damage(expected, extent.limit, position, extent.size, "the file ends before its records do")


def _damage(file: File, position: int, expected: int, extent: Extent, reason: str) -> Damage:
    """The damaged range that begins at `position`: it ends where the next record that can be believed begins."""
    left = max(min(extent.size, file.size()) - position, 0)
    window = min(2 * limits.SCAN_CHUNK_BYTES, left)
    budget = limits.RESYNC_BYTES
    while extent.resync and budget > 0:
        data = memoryview(read_around(file, position, window))
        search = Search(data, expected, extent.limit, contiguous=extent.contiguous, whole=window == left, budget=budget)
        at = search.next_record()
        if at is not None:
            return Damage(expected, offset_of(data, at), position, position + at, reason)
        if window == left:
            break
        budget -= search.checked
        window = min(4 * window, left)
    return Damage(expected, extent.limit, position, extent.size, reason)
