"""Walking a segment file record by record, in chunks of bounded memory, past damage if there is some.

The one scanner: recovery, verification, rebuilding, cleaning and offline readers all go through `walk`. It
yields runs of valid records and, where bytes are not what was written, a `Damage` naming the exact range,
then goes on at the next record it can believe. It changes nothing.
"""

import operator
from collections.abc import Iterator
from typing import NamedTuple

from goqueue import codec
from goqueue.codec import Flag, Problem, Scan
from goqueue.codec.layout import (
    EXTENSION_LENGTH_BYTES,
    FLAGS_AT,
    HEADER_BYTES,
    KEY_LENGTH_AT,
    LENGTHS,
    MAGIC,
    OFFSET_AT,
    REASONS,
    VERSION,
)
from goqueue.io.disk import File
from goqueue.model import limits

_BEGINNING = MAGIC + bytes([VERSION])


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
    `contiguous` part every offset between is there; in a cleaned one there may be gaps.
    """

    first: int
    limit: int
    size: int
    contiguous: bool
    position: int = 0


def walk(file: File, extent: Extent) -> Iterator[Run | Damage]:
    expected, position = extent.first, extent.position
    size = min(extent.size, file.size())
    want = limits.SCAN_CHUNK_BYTES
    while position < size:
        data = memoryview(file.read(position, min(want, size - position)))
        scan = codec.scan(data)
        good = _in_order(scan, expected, extent)
        if good:
            if good < len(scan):
                scan = codec.scan(data[: scan.positions[good]])
            run = Run(position, data[: scan.end], scan)
            yield run
            expected, position, want = run.next_offset, run.end, limits.SCAN_CHUNK_BYTES
            continue
        if scan.problem is Problem.INCOMPLETE and not len(scan) and position + len(data) < size:
            want = 2 * len(data)
            continue
        reason = "its offset does not follow" if len(scan) else REASONS[scan.problem]
        damage = _damage(file, position, expected, extent, reason)
        yield damage
        position, expected = damage.end, damage.next_offset
    if expected < extent.limit and (extent.contiguous or size < extent.size):
        yield Damage(expected, extent.limit, position, extent.size, "the file ends before its records do")


def _in_order(scan: Scan, expected: int, extent: Extent) -> int:
    """How many records at the front of the scan have the offsets they should have."""
    offsets = scan.offsets
    if not offsets:
        return 0
    if offsets[0] >= expected and offsets[-1] < extent.limit:
        if offsets[0] == expected and offsets[-1] - expected + 1 == len(offsets):
            return len(offsets)
        if not extent.contiguous and all(map(operator.lt, offsets, offsets[1:])):
            return len(offsets)
    for ordinal, offset in enumerate(offsets):
        if offset < expected or offset >= extent.limit or (extent.contiguous and offset != expected):
            return ordinal
        expected = offset + 1
    return len(offsets)


def _damage(file: File, position: int, expected: int, extent: Extent, reason: str) -> Damage:
    """The damaged range that begins at `position`: it ends where the next record that can be believed begins."""
    data = memoryview(file.read(position, extent.size - position))
    at = _declared_end(data, expected, extent)
    if at is None:
        at = _search(data, expected, extent)
    if at is None or at == len(data):
        return Damage(expected, extent.limit, position, extent.size, reason)
    return Damage(expected, _offset(data[at:]), position, position + at, reason)


def _declared_end(data: memoryview, expected: int, extent: Extent) -> int | None:
    """Where the damaged record ends by its own lengths, if another record, or the end, is exactly there."""
    if len(data) < HEADER_BYTES:
        return None
    end: int = HEADER_BYTES + sum(LENGTHS.unpack_from(data, KEY_LENGTH_AT))
    if data[FLAGS_AT] & Flag.EXTENSION:
        extension = data[HEADER_BYTES : HEADER_BYTES + EXTENSION_LENGTH_BYTES]
        end += EXTENSION_LENGTH_BYTES + int.from_bytes(extension, "big")
    if end >= len(data):
        return end if end == len(data) == extent.size else None
    scan = _record_at(data[end:])
    follows = len(scan) and expected < scan.offsets[0] < extent.limit
    if follows and (scan.offsets[0] == expected + 1 or not extent.contiguous):
        return end
    return None


def _search(data: memoryview, expected: int, extent: Extent) -> int | None:
    """The next place that looks like a record: a right checksum, an offset the skipped bytes have room for, and
    after it the end or what may be another record. A record all alone may be part of a damaged message's value."""
    raw = bytes(data)
    at = raw.find(_BEGINNING, 1)
    while at >= 0:
        scan = _record_at(data[at:])
        if len(scan):
            first = scan.offsets[0]
            latest = expected + max(at // HEADER_BYTES, 1) if extent.contiguous else extent.limit - 1
            if expected < first <= min(latest, extent.limit - 1) and _continues(data[at:], scan):
                return at
        at = raw.find(_BEGINNING, at + 1)
    return None


def _continues(data: memoryview, scan: Scan) -> bool:
    """Whether the first record of the scan is the last of the data, or something like a record follows it."""
    end = scan.positions[1] if len(scan) > 1 else scan.end
    return end == len(data) or bytes(data[end : end + len(_BEGINNING)]) == _BEGINNING


def _record_at(data: memoryview) -> Scan:
    """A scan of the beginning of `data` that has its first record, if that is valid."""
    scan = codec.scan(data[: limits.SCAN_CHUNK_BYTES])
    if not len(scan) and scan.problem is Problem.INCOMPLETE:
        scan = codec.scan(data[: limits.MAX_RECORD_BYTES])
    return scan


def _offset(data: memoryview) -> int:
    return int.from_bytes(data[OFFSET_AT : OFFSET_AT + 8], "big")
