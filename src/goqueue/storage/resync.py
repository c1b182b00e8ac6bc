"""Finding the next record of a log behind a damaged one.

A message's value may hold records too, with right checksums and plausible offsets: a copy of a block, or a
forgery. The damaged record's own lengths, if they are whole, say where it ends; otherwise the bytes are searched.
Either way a run of records is believed only if the first valid record after it does not contradict it by an
offset that is not higher. The work is bounded: bytes may be full of beginnings that each cost a checksum.
"""

import operator

from goqueue import codec
from goqueue.codec import Flag, Scan
from goqueue.codec.layout import (
    EXTENSION_LENGTH_BYTES,
    FLAGS_AT,
    HEADER_BYTES,
    KEY_LENGTH_AT,
    LENGTHS,
    MAGIC,
    OFFSET_AT,
    VERSION,
)
from goqueue.model import limits

_BEGINNING = MAGIC + bytes([VERSION])


def offset_of(data: memoryview, at: int) -> int:
    """The offset in the record header at `at`."""
    return int.from_bytes(data[at + OFFSET_AT : at + OFFSET_AT + 8], "big")


def in_order(scan: Scan, expected: int, *, limit: int, contiguous: bool) -> int:
    """How many records at the front of the scan have the offsets they should have."""
    offsets = scan.offsets
    if not offsets:
        return 0
    if offsets[0] >= expected and offsets[-1] < limit:
        if offsets[0] == expected and offsets[-1] - expected + 1 == len(offsets):
            return len(offsets)
        if not contiguous and all(map(operator.lt, offsets, offsets[1:])):
            return len(offsets)
    for ordinal, offset in enumerate(offsets):
        if offset < expected or offset >= limit or (contiguous and offset != expected):
            return ordinal
        expected = offset + 1
    return len(offsets)


class Search:
    """One search through `data`, which begins with the damaged record, of offset `expected`.

    `whole` says that the data reaches as far as the log does; otherwise what touches its end is not known.
    """

    def __init__(
        self, data: memoryview, expected: int, limit: int, *, contiguous: bool, whole: bool, budget: int
    ) -> None:
        self._data = data
        self._raw = bytes(data)
        self._expected = expected
        self._limit = limit
        self._contiguous = contiguous
        self._whole = whole
        self._budget = budget
        self.checked = 0
        """How many bytes went through a checksum."""

    def next_record(self) -> int | None:
        """The position of the next record of the log; None when there is none, or none to be sure of."""
        at = self._declared_end()
        if at is not None and self._contradiction(at) is None:
            return at
        at = self._candidate(1)
        while at is not None:
            contradiction = self._contradiction(at)
            if contradiction is None:
                return at
            at = contradiction if contradiction < len(self._data) else None
        return None

    def _contradiction(self, at: int) -> int | None:
        """A record after the run that begins at `at` which shows it to be none of the log's; None when there is none.

        The end of the data contradicts when it is not known what comes after it, or there is no time to look.
        """
        end, last = self._run(at)
        if end == len(self._data):
            return None
        following = self._candidate(end)
        if following is None:
            return None if self._whole and self.checked < self._budget else len(self._data)
        return following if offset_of(self._data, following) <= last else None

    def _declared_end(self) -> int | None:
        """Where the damaged record ends by its own lengths, if the record that must follow is exactly there."""
        if len(self._data) < HEADER_BYTES:
            return None
        end = self._claimed_size(0)
        if len(self._data) - end < HEADER_BYTES:
            return None
        offset = offset_of(self._data, end)
        follows = offset == self._expected + 1 or (not self._contiguous and self._expected < offset < self._limit)
        return end if follows and self._is_record(end) else None

    def _candidate(self, start: int) -> int | None:
        """The next valid record at or after `start` with an offset that the bytes skipped have room for."""
        at = self._raw.find(_BEGINNING, start)
        while 0 <= at <= len(self._data) - HEADER_BYTES and self.checked < self._budget:
            offset = offset_of(self._data, at)
            latest = self._expected + at // HEADER_BYTES + 1 if self._contiguous else self._limit
            if self._expected < offset < self._limit and offset <= latest and self._is_record(at):
                return at
            at = self._raw.find(_BEGINNING, at + 1)
        return None

    def _run(self, at: int) -> tuple[int, int]:
        """Where the records from `at` on, as far as they follow each other, end, and the last one's offset."""
        expected = offset_of(self._data, at)
        part = limits.KIB
        while True:
            part = min(2 * part, limits.SCAN_CHUNK_BYTES)
            scan = codec.scan(self._data[at : at + part])
            if not len(scan):
                scan = codec.scan(self._data[at : at + limits.MAX_RECORD_BYTES])
            self.checked += scan.end
            good = in_order(scan, expected, limit=self._limit, contiguous=self._contiguous)
            if not good:
                return at, expected - 1
            at += scan.end if good == len(scan) else scan.positions[good]
            expected = scan.offsets[good - 1] + 1
            if good < len(scan) or at == len(self._data):
                return at, expected - 1

    def _is_record(self, at: int) -> bool:
        """Whether a whole valid record begins there."""
        size = self._claimed_size(at)
        if size > min(len(self._data) - at, limits.MAX_RECORD_BYTES):
            return False
        self.checked += size
        return bool(len(codec.scan(self._data[at : at + size])))

    def _claimed_size(self, at: int) -> int:
        """How long the record there is by its own lengths, which may be wrong."""
        size: int = HEADER_BYTES + sum(LENGTHS.unpack_from(self._data, at + KEY_LENGTH_AT))
        if self._data[at + FLAGS_AT] & Flag.EXTENSION:
            extension = self._data[at + HEADER_BYTES : at + HEADER_BYTES + EXTENSION_LENGTH_BYTES]
            size += EXTENSION_LENGTH_BYTES + int.from_bytes(extension, "big")
        return size
