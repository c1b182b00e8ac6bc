"""The record format in plain Python: read this to learn it. `_compiled.pyx` is its twin, much faster.

A block is records back to back. Every function here walks one from its start and trusts nothing in it:
a length is compared with its limit before it is used, and with the bytes there are before they are
touched. The order of the checks is part of the contract, so that both twins name the same problem:
the fixed header, the total length, the checksum, then what is inside the extension and the headers.

This module knows bytes only: no files, no clocks, no topics.
"""

import struct
from array import array
from collections.abc import Iterator
from typing import Final, NamedTuple

import crc32c as crc32c_package
import mmh3

from goqueue.codec.encoding import LONG, SEQUENCE, SHORT, checksum, encode
from goqueue.codec.layout import (
    BLOB_BIT,
    BLOB_LENGTH_BYTES,
    CRC_AT,
    EMPTY_BLOCK,
    EXTENSION_LENGTH_BYTES,
    FIELD_BYTES,
    HEADER,
    HEADER_BYTES,
    HEADER_COUNT_BYTES,
    HEADER_LENGTH_BYTES,
    LANES,
    MAGIC,
    MASK_BYTES,
    MAX_EXTENSION_BYTES,
    OFFSET_AT,
    REASONS,
    TIMESTAMP_AT,
    VERSION,
    Field,
    Flag,
    Problem,
    Scan,
    Selection,
)
from goqueue.model.errors import InvalidRecord
from goqueue.model.limits import MAX_BLOB_BYTES, MAX_RECORD_BYTES
from goqueue.model.record import Extension, Producer, Record

__all__ = ["crc32c", "decode", "encode", "field_values", "milestones", "murmur3", "scan", "select", "stamp"]

Block = bytes | bytearray | memoryview
assert array("I").itemsize == 4
assert array("q").itemsize == 8

ALL_FLAGS: Final = int(Flag.EXTENSION | Flag.NO_KEY | Flag.NO_VALUE | Flag.CONTROL | Flag.COMMIT)
EXTENSION_AT: Final = HEADER_BYTES
MASK_AT: Final = EXTENSION_AT + EXTENSION_LENGTH_BYTES
FIELDS_AT: Final = MASK_AT + MASK_BYTES
MAX_INT64: Final = 2**63 - 1
MAX_STAMP: Final = 2**62
"""Offsets and timestamps to stamp lie below this, so that adding to one cannot overflow."""
SEQUENCE_MASK: Final = 2**31 - 1
"""A producer's sequence goes on at 0 after this."""


class _Broken(Exception):
    """The bytes looked at are not a record."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.problem = problem


class _Parts(NamedTuple):
    """One record's fixed values, and where its parts begin, as positions in its block."""

    start: int
    flags: int
    checksum: int
    offset: int
    timestamp: int
    priority: int
    key: int
    value: int
    headers: int
    end: int


# --- Looking at one record


def _locate(block: memoryview, start: int) -> _Parts:
    """Check the fixed header and the total length: after this every part lies inside the block."""
    available = len(block) - start
    if available < HEADER_BYTES:
        raise _Broken(_problem_of_beginning(bytes(block[start:])))
    magic, version, flags, checksum, offset, timestamp, priority, reserved, key_bytes, value_bytes, headers_bytes = (
        HEADER.unpack_from(block, start)
    )
    if magic != MAGIC:
        raise _Broken(Problem.MAGIC)
    if version != VERSION:
        raise _Broken(Problem.VERSION)
    if flags & ~ALL_FLAGS or (flags & Flag.COMMIT and not flags & Flag.CONTROL):
        raise _Broken(Problem.FLAGS)
    if reserved:
        raise _Broken(Problem.RESERVED)
    if priority >= LANES:
        raise _Broken(Problem.PRIORITY)
    if (flags & Flag.NO_KEY and key_bytes) or (flags & Flag.NO_VALUE and value_bytes):
        raise _Broken(Problem.LENGTHS)
    extension_bytes = EXTENSION_LENGTH_BYTES if flags & Flag.EXTENSION else 0
    if HEADER_BYTES + extension_bytes + key_bytes + value_bytes + headers_bytes > MAX_RECORD_BYTES:
        raise _Broken(Problem.TOO_LARGE)
    if flags & Flag.EXTENSION:
        if available < MASK_AT:
            raise _Broken(Problem.INCOMPLETE)
        (length,) = SHORT.unpack_from(block, start + EXTENSION_AT)
        if length > MAX_EXTENSION_BYTES:
            raise _Broken(Problem.TOO_LARGE)
        extension_bytes += length
    key = start + HEADER_BYTES + extension_bytes
    value = key + key_bytes
    headers = value + value_bytes
    end = headers + headers_bytes
    if end - start > MAX_RECORD_BYTES:
        raise _Broken(Problem.TOO_LARGE)
    if end > len(block):
        raise _Broken(Problem.INCOMPLETE)
    return _Parts(start, flags, checksum, offset, timestamp, priority, key, value, headers, end)


def _problem_of_beginning(beginning: bytes) -> Problem:
    """Less than a header: could it still become a record?"""
    if not MAGIC.startswith(beginning[: len(MAGIC)]):
        return Problem.MAGIC
    if beginning[len(MAGIC) : len(MAGIC) + 1] not in (b"", bytes([VERSION])):
        return Problem.VERSION
    return Problem.INCOMPLETE


def _examine(block: memoryview, start: int, *, verify: bool = True) -> _Parts:
    """Check everything about the record at `start`."""
    parts = _locate(block, start)
    if verify and checksum(block[start : parts.end]) != parts.checksum:
        raise _Broken(Problem.CHECKSUM)
    if parts.flags & Flag.EXTENSION:
        _check_extension(block[start + MASK_AT : parts.key])
    if parts.end > parts.headers:
        _check_headers(block[parts.headers : parts.end])
    return parts


def _field_bits(mask: int) -> list[int]:
    """The bits of `mask` that stand for a fixed-width field, in the order of their fields."""
    return [bit for bit in range(BLOB_BIT) if mask >> bit & 1]


def _check_extension(body: memoryview) -> None:
    """`body` is what follows the extension's length: the mask, its fields, and the blob if there is one."""
    if len(body) < MASK_BYTES:
        raise _Broken(Problem.EXTENSION)
    (mask,) = SHORT.unpack_from(body)
    bits = _field_bits(mask)
    expected = MASK_BYTES + len(bits) * FIELD_BYTES
    if not mask or (Field.PRODUCER_ID in bits) != (Field.PRODUCER_SEQUENCE in bits) or expected > len(body):
        raise _Broken(Problem.EXTENSION)
    if Field.PRODUCER_SEQUENCE in bits:
        _, zero, _ = SEQUENCE.unpack_from(body, MASK_BYTES + bits.index(Field.PRODUCER_SEQUENCE) * FIELD_BYTES)
        if zero:
            raise _Broken(Problem.EXTENSION)
    if mask >> BLOB_BIT:
        if expected + BLOB_LENGTH_BYTES > len(body):
            raise _Broken(Problem.EXTENSION)
        (length,) = SHORT.unpack_from(body, expected)
        if length > MAX_BLOB_BYTES:
            raise _Broken(Problem.EXTENSION)
        expected += BLOB_LENGTH_BYTES + length
    if expected != len(body):
        raise _Broken(Problem.EXTENSION)


def _check_headers(section: memoryview) -> None:
    """A count of at least one, then names and values that end exactly where the section does."""
    if len(section) < HEADER_COUNT_BYTES:
        raise _Broken(Problem.HEADERS)
    (count,) = SHORT.unpack_from(section)
    at = HEADER_COUNT_BYTES
    for _ in range(2 * count):
        if at + HEADER_LENGTH_BYTES > len(section):
            raise _Broken(Problem.HEADERS)
        (length,) = SHORT.unpack_from(section, at)
        at += HEADER_LENGTH_BYTES + length
    if not count or at != len(section):
        raise _Broken(Problem.HEADERS)


# --- Stamping


def stamp(block: bytearray | memoryview, *, offset: int, timestamp: int, producer: Producer | None = None) -> Scan:
    """Give every record its offset, the append time and, if asked, its producer's fields; resolve relative times.

    The whole block is validated first: on any problem `InvalidRecord` is raised and no byte has changed.
    No length ever changes. A relative time too far away to be written becomes the last time there is, and
    a producer's sequence goes on at 0 after 2**31 - 1.
    """
    view = _view(block)
    if view.readonly:
        raise BufferError("a block to stamp must be writable")
    _check_stamp(offset=offset, timestamp=timestamp, producer=producer)
    if not view:
        raise InvalidRecord(EMPTY_BLOCK, index=0, position=0)
    columns = _Columns()
    heads: list[bytearray] = []
    while columns.end < len(view):
        index = len(heads)
        try:
            parts = _examine(view, columns.end)
            heads.append(_stamped_head(view, parts, index, offset + index, timestamp, producer))
        except _Broken as broken:
            raise InvalidRecord(REASONS[broken.problem], index=index, position=columns.end) from None
        columns.add(view, parts._replace(offset=offset + index, timestamp=timestamp))
    for position, head in zip(columns.positions, heads, strict=True):
        view[position : position + len(head)] = head
    return columns.scan(Problem.NONE)


def _check_stamp(*, offset: int, timestamp: int, producer: Producer | None) -> None:
    if not (0 <= offset < MAX_STAMP and 0 <= timestamp < MAX_STAMP):
        raise ValueError("an offset and a timestamp to stamp must be at least 0 and below 2**62")
    if producer is not None and not (
        -MAX_INT64 - 1 <= producer.producer_id <= MAX_INT64
        and -(2**15) <= producer.producer_epoch < 2**15
        and 0 <= producer.sequence <= SEQUENCE_MASK
    ):
        raise ValueError("a producer to stamp must have an int64 id, an int16 epoch and a sequence from 0 to 2**31 - 1")


def _stamped_head(
    block: memoryview, parts: _Parts, index: int, offset: int, timestamp: int, producer: Producer | None
) -> bytearray:
    """The part of the record that stamping changes, as it will be: header and fixed-width fields."""
    start = parts.start
    bits: list[int] = []
    head_bytes = HEADER_BYTES
    if parts.flags & Flag.EXTENSION:
        (mask,) = SHORT.unpack_from(block, start + MASK_AT)
        bits = _field_bits(mask)
        head_bytes = FIELDS_AT + len(bits) * FIELD_BYTES
    at = {bit: FIELDS_AT + ordinal * FIELD_BYTES for ordinal, bit in enumerate(bits)}
    head = bytearray(block[start : start + head_bytes])
    LONG.pack_into(head, OFFSET_AT, offset)
    LONG.pack_into(head, TIMESTAMP_AT, timestamp)
    due = timestamp
    if Field.DELIVER_AT in at:
        due = max(due, _resolve(head, at[Field.DELIVER_AT], timestamp))
    if Field.EXPIRES_AT in at:
        _resolve(head, at[Field.EXPIRES_AT], due)
    if producer is not None:
        if Field.PRODUCER_ID not in at:
            raise _Broken(Problem.PRODUCER)
        LONG.pack_into(head, at[Field.PRODUCER_ID], producer.producer_id)
        sequence = (producer.sequence + index) & SEQUENCE_MASK
        SEQUENCE.pack_into(head, at[Field.PRODUCER_SEQUENCE], producer.producer_epoch, 0, sequence)
    crc = crc32c(block[start + head_bytes : parts.end], checksum(head))
    head[CRC_AT:OFFSET_AT] = crc.to_bytes(4, "big")
    return head


def _resolve(head: bytearray, at: int, base: int) -> int:
    """The time at `at`; a negative one, "that long after `base`", is made absolute first."""
    time: int = LONG.unpack_from(head, at)[0]
    if time < 0:
        time = min(base - time, MAX_INT64)
        LONG.pack_into(head, at, time)
    return time


# --- Reading


def scan(block: Block) -> Scan:
    """The block's valid prefix; never raises for what the bytes are."""
    view = _view(block)
    columns = _Columns()
    while columns.end < len(view):
        try:
            columns.add(view, _examine(view, columns.end))
        except _Broken as broken:
            return columns.scan(broken.problem)
    return columns.scan(Problem.NONE)


def select(block: Block, *, from_offset: int, to_offset: int, max_count: int, max_bytes: int) -> Selection:
    """The run of records from `from_offset` up to `to_offset` (not included), within the bounds.

    The first record is taken even if it is larger than `max_bytes`. The walk ends at `Selection.end`, and
    that is where `problem` is; a block that the caller cut short ends with INCOMPLETE like any other.
    """
    view = _view(block)
    start = end = count = 0
    last_offset = -1
    problem = Problem.NONE
    while end < len(view) and count < max_count:
        try:
            parts = _examine(view, end)
        except _Broken as broken:
            problem = broken.problem
            break
        if not count and parts.offset < from_offset:
            start = end = parts.end
            continue
        if parts.offset >= to_offset or (count and parts.end - start > max_bytes):
            break
        end = parts.end
        count += 1
        last_offset = parts.offset
    return Selection(start, end, count, last_offset, problem)


def decode(block: Block, *, verified: bool = False) -> list[Record]:
    """Every record of the block; raises `InvalidRecord` at the first problem.

    `verified` leaves out the checksums, for bytes whose checksums were just looked at; nothing else.
    """
    view = _view(block)
    records: list[Record] = []
    position = 0
    while position < len(view):
        try:
            parts = _examine(view, position, verify=not verified)
        except _Broken as broken:
            raise InvalidRecord(REASONS[broken.problem], index=len(records), position=position) from None
        records.append(_decode_one(view, parts))
        position = parts.end
    return records


def _decode_one(block: memoryview, parts: _Parts) -> Record:
    return Record(
        offset=parts.offset,
        timestamp=parts.timestamp,
        key=None if parts.flags & Flag.NO_KEY else bytes(block[parts.key : parts.value]),
        value=None if parts.flags & Flag.NO_VALUE else bytes(block[parts.value : parts.headers]),
        priority=parts.priority,
        headers=tuple(_decode_headers(block[parts.headers : parts.end])),
        extension=(
            _decode_extension(block[parts.start + MASK_AT : parts.key]) if parts.flags & Flag.EXTENSION else None
        ),
        control=bool(parts.flags & Flag.CONTROL),
        commit=bool(parts.flags & Flag.COMMIT),
    )


def _decode_headers(section: memoryview) -> Iterator[tuple[str, bytes]]:
    pieces: list[bytes] = []
    at = HEADER_COUNT_BYTES
    while at < len(section):
        (length,) = SHORT.unpack_from(section, at)
        at += HEADER_LENGTH_BYTES
        pieces.append(bytes(section[at : at + length]))
        at += length
    for name, value in zip(pieces[::2], pieces[1::2], strict=True):
        yield name.decode("utf-8", "surrogateescape"), value


def _decode_extension(body: memoryview) -> Extension | None:
    """None when all that is set is unknown to this version."""
    (mask,) = SHORT.unpack_from(body)
    bits = _field_bits(mask)
    at = {bit: MASK_BYTES + ordinal * FIELD_BYTES for ordinal, bit in enumerate(bits)}

    def number(field: Field) -> int | None:
        return LONG.unpack_from(body, at[field])[0] if field in at else None

    producer = None
    producer_id = number(Field.PRODUCER_ID)
    if producer_id is not None:
        producer_epoch, _, sequence = SEQUENCE.unpack_from(body, at[Field.PRODUCER_SEQUENCE])
        producer = Producer(producer_id, producer_epoch, sequence)
    blob = None
    if mask >> BLOB_BIT:
        blob = bytes(body[MASK_BYTES + len(bits) * FIELD_BYTES + BLOB_LENGTH_BYTES :])
    extension = Extension(
        deliver_at=number(Field.DELIVER_AT),
        expires_at=number(Field.EXPIRES_AT),
        event_time=number(Field.EVENT_TIME),
        producer=producer,
        transaction=number(Field.TRANSACTION),
        blob=blob,
    )
    return None if extension == Extension() else extension


def field_values(block: Block, scan: Scan, field: Field) -> "tuple[array[int], array[int]]":
    """Ordinals ('I') and values ('q') of one fixed-width field over the records that `scan` found in `block`."""
    view = _view(block)
    if not 0 <= field < BLOB_BIT or len(scan.positions) != len(scan.flags):
        raise ValueError("no such field, or a scan with columns of different lengths")
    ordinals = array("I")
    values = array("q")
    for ordinal, flags in enumerate(scan.flags):
        if not flags & Flag.EXTENSION:
            continue
        position = scan.positions[ordinal]
        try:
            (mask,) = SHORT.unpack_from(view, position + MASK_AT)
            if mask >> field & 1:
                before = len(_field_bits(mask & ((1 << field) - 1)))
                (value,) = LONG.unpack_from(view, position + FIELDS_AT + before * FIELD_BYTES)
                ordinals.append(ordinal)
                values.append(value)
        except struct.error:
            raise ValueError("the scan is not of this block") from None
    return ordinals, values


def milestones(
    scan: Scan, *, base: int, start: int, since: int, interval: int
) -> tuple["array[int]", "array[int]", "array[int]"]:
    """Index points: relative offsets ('I'), file positions ('I') and timestamps ('q') of some of the records.

    Record i lies at file position `start + positions[i]`. A record is a point when it lies at least `interval`
    bytes after the last one, which is at `since` to begin with. Offsets are relative to `base`.
    """
    points, places, times = array("I"), array("I"), array("q")
    for position, offset, timestamp in zip(scan.positions, scan.offsets, scan.timestamps, strict=True):
        if start + position - since >= interval:
            since = start + position
            points.append(offset - base)
            places.append(since)
            times.append(timestamp)
    return points, places, times


def murmur3(data: Block) -> int:
    """MurmurHash3, x86, 32 bit, seed 0, unsigned."""
    return mmh3.hash(bytes(data), 0, signed=False)


def crc32c(data: Block, crc: int = 0) -> int:
    """CRC-32C of `data`, going on from `crc`."""
    return crc32c_package.crc32c(data, crc)


class _Columns:
    """A `Scan` in the making."""

    def __init__(self) -> None:
        self.positions = array("I")
        self.offsets = array("q")
        self.timestamps = array("q")
        self.flags = array("B")
        self.lanes = array("B")
        self.key_hashes = array("I")
        self.end = 0

    def add(self, block: memoryview, parts: _Parts) -> None:
        self.positions.append(parts.start)
        self.offsets.append(parts.offset)
        self.timestamps.append(parts.timestamp)
        self.flags.append(parts.flags)
        self.lanes.append(parts.priority)
        self.key_hashes.append(0 if parts.flags & Flag.NO_KEY else murmur3(block[parts.key : parts.value]))
        self.end = parts.end

    def scan(self, problem: Problem) -> Scan:
        return Scan(
            self.positions, self.offsets, self.timestamps, self.flags, self.lanes, self.key_hashes, self.end, problem
        )


def _view(block: Block) -> memoryview:
    view = memoryview(block)
    if not view.c_contiguous:
        raise BufferError("a block must be contiguous")
    if view.nbytes > 0xFFFF_FFFF:
        raise ValueError("a block must be smaller than 4 GiB: positions in it have four bytes")
    return view.cast("B")
