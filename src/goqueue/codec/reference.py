"""The record format in plain Python: read this to learn it. `_compiled.pyx` is its twin, much faster.

A block is records back to back. Every function here walks one from its start and trusts nothing in it:
`codec.inspection` looks at one record, in an order that both twins keep, so that they name the same problem.

This module knows bytes only: no files, no clocks, no topics.
"""

import struct
from array import array
from collections.abc import Iterator
from typing import Final

import crc32c as crc32c_package

from goqueue.codec.columns import from_columns, to_columns
from goqueue.codec.counting import count_json, count_protobuf
from goqueue.codec.encoding import LONG, SEQUENCE, SHORT, checksum, encode, pack_into
from goqueue.codec.inspection import (
    FIELDS_AT,
    MASK_AT,
    Block,
    Broken,
    Parts,
    examine,
    field_bits,
    key_hash,
    locate,
    murmur3,
    read_mask,
    view_of,
)
from goqueue.codec.layout import (
    BLOB_BIT,
    BLOB_LENGTH_BYTES,
    CRC_AT,
    EMPTY_BLOCK,
    FIELD_BYTES,
    HEADER_BYTES,
    HEADER_COUNT_BYTES,
    HEADER_LENGTH_BYTES,
    MASK_BYTES,
    OFFSET_AT,
    REASONS,
    TIMESTAMP_AT,
    Field,
    Flag,
    Problem,
    Scan,
    Selection,
    Survey,
)
from goqueue.codec.picking import pick
from goqueue.codec.protobuf import from_protobuf
from goqueue.model.errors import InvalidRecord
from goqueue.model.record import Extension, Producer, Record

__all__ = [
    "count_json",
    "count_protobuf",
    "crc32c",
    "decode",
    "encode",
    "field_values",
    "from_columns",
    "from_protobuf",
    "milestones",
    "murmur3",
    "pack_into",
    "pick",
    "producer_runs",
    "scan",
    "select",
    "stamp",
    "survey",
    "to_columns",
    "transaction_runs",
    "values",
]

assert array("I").itemsize == 4
assert array("q").itemsize == 8

MAX_INT64: Final = 2**63 - 1
MAX_STAMP: Final = 2**62
"""Offsets and timestamps to stamp lie below this, so that adding to one cannot overflow."""
SEQUENCE_MASK: Final = 2**31 - 1
"""A producer's sequence goes on at 0 after this."""


# --- Stamping


def stamp(
    block: bytearray | memoryview,
    *,
    offset: int,
    timestamp: int,
    now: int | None = None,
    producer: Producer | None = None,
) -> Scan:
    """Give every record its offset, the append time and, if asked, its producer's fields; resolve relative times.

    Those count from `now`, what the clock shows, which may be before the append time: that never goes back. It is the
    append time if left out.

    The whole block is validated first: on any problem `InvalidRecord` is raised and no byte has changed. No length ever
    changes. A relative time too far away to be written becomes the last time there is, and
    a producer's sequence goes on at 0 after 2**31 - 1.
    """
    view = view_of(block)
    if view.readonly:
        raise BufferError("a block to stamp must be writable")
    now = timestamp if now is None else now
    _check_stamp(offset=offset, timestamp=timestamp, now=now, producer=producer)
    if not view:
        raise InvalidRecord(EMPTY_BLOCK, index=0, position=0)
    columns = _Columns()
    heads: list[bytearray] = []
    while columns.end < len(view):
        index = len(heads)
        try:
            parts = examine(view, columns.end)
            heads.append(_stamped_head(view, parts, index, offset + index, (timestamp, now), producer))
        except Broken as broken:
            raise InvalidRecord(REASONS[broken.problem], index=index, position=columns.end) from None
        columns.add(view, parts._replace(offset=offset + index, timestamp=timestamp))
    for position, head in zip(columns.positions, heads, strict=True):
        view[position : position + len(head)] = head
    return columns.scan(Problem.NONE)


def _check_stamp(*, offset: int, timestamp: int, now: int, producer: Producer | None) -> None:
    if not (0 <= offset < MAX_STAMP and 0 <= timestamp < MAX_STAMP and 0 <= now < MAX_STAMP):
        raise ValueError("an offset and a timestamp to stamp must be at least 0 and below 2**62")
    if producer is not None and not (
        -MAX_INT64 - 1 <= producer.producer_id <= MAX_INT64
        and -(2**15) <= producer.producer_epoch < 2**15
        and 0 <= producer.sequence <= SEQUENCE_MASK
    ):
        raise ValueError("a producer to stamp must have an int64 id, an int16 epoch and a sequence from 0 to 2**31 - 1")


def _stamped_head(
    block: memoryview, parts: Parts, index: int, offset: int, times: tuple[int, int], producer: Producer | None
) -> bytearray:
    """The part of the record that stamping changes, as it will be: header and fixed-width fields.

    `times` are the append time and the one that relative times count from.
    """
    timestamp, now = times
    start = parts.start
    bits: list[int] = []
    head_bytes = HEADER_BYTES
    if parts.flags & Flag.EXTENSION:
        (mask,) = SHORT.unpack_from(block, start + MASK_AT)
        bits = field_bits(mask)
        head_bytes = FIELDS_AT + len(bits) * FIELD_BYTES
    at = {bit: FIELDS_AT + ordinal * FIELD_BYTES for ordinal, bit in enumerate(bits)}
    head = bytearray(block[start : start + head_bytes])
    LONG.pack_into(head, OFFSET_AT, offset)
    LONG.pack_into(head, TIMESTAMP_AT, timestamp)
    due = now
    if Field.DELIVER_AT in at:
        due = max(due, _resolve(head, at[Field.DELIVER_AT], now))
    if Field.EXPIRES_AT in at:
        _resolve(head, at[Field.EXPIRES_AT], due)
    if producer is not None:
        if Field.PRODUCER_ID not in at:
            raise Broken(Problem.PRODUCER)
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
    view = view_of(block)
    columns = _Columns()
    while columns.end < len(view):
        try:
            columns.add(view, examine(view, columns.end))
        except Broken as broken:
            return columns.scan(broken.problem)
    return columns.scan(Problem.NONE)


def select(block: Block, *, from_offset: int, to_offset: int, max_count: int, max_bytes: int) -> Selection:
    """The run of records from `from_offset` up to `to_offset` (not included), within the bounds.

    The first record is taken even if it is larger than `max_bytes`. The walk ends at `Selection.end`, and
    that is where `problem` is; a block that the caller cut short ends with INCOMPLETE like any other.
    """
    view = view_of(block)
    start = end = count = 0
    last_offset = -1
    problem = Problem.NONE
    while end < len(view) and count < max_count:
        try:
            parts = examine(view, end)
        except Broken as broken:
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


def survey(block: Block) -> Survey:
    """What the block's records have and how large they are, from headers and masks alone; no checksum is looked at.

    Never raises for what the bytes are. A record that `scan` accepts can be walked; not the other way round.
    """
    view = view_of(block)
    count = flags = fields = largest = headers = end = 0
    problem = Problem.NONE
    while end < len(view):
        try:
            parts = locate(view, end)
            mask = read_mask(view[end + MASK_AT : parts.key])[0] if parts.flags & Flag.EXTENSION else 0
        except Broken as broken:
            problem = broken.problem
            break
        count += 1
        flags |= parts.flags
        fields |= mask
        largest = max(largest, parts.end - parts.key)
        if parts.end - parts.headers >= HEADER_COUNT_BYTES:
            headers = max(headers, SHORT.unpack_from(view, parts.headers)[0])
        end = parts.end
    return Survey(count, flags, fields, largest, headers, end, problem)


def decode(block: Block, *, verified: bool = False) -> list[Record]:
    """Every record of the block; raises `InvalidRecord` at the first problem.

    `verified` leaves out the checksums, for bytes whose checksums were just looked at; nothing else.
    """
    view = view_of(block)
    records: list[Record] = []
    position = 0
    while position < len(view):
        try:
            parts = examine(view, position, verify=not verified)
        except Broken as broken:
            raise InvalidRecord(REASONS[broken.problem], index=len(records), position=position) from None
        records.append(_decode_one(view, parts))
        position = parts.end
    return records


def values(block: Block) -> list[bytes | None]:
    """The value of every record of the block; raises `InvalidRecord` at the first problem."""
    return [record.value for record in decode(block)]


def _decode_one(block: memoryview, parts: Parts) -> Record:
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
    bits = field_bits(mask)
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
    view = view_of(block)
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
                before = len(field_bits(mask & ((1 << field) - 1)))
                (value,) = LONG.unpack_from(view, position + FIELDS_AT + before * FIELD_BYTES)
                ordinals.append(ordinal)
                values.append(value)
        except struct.error:
            raise ValueError("the scan is not of this block") from None
    return ordinals, values


def producer_runs(block: Block, scan: Scan) -> list[tuple[int, int, int, int, int, int]]:
    """The records with producer fields that `scan` found in `block`, in order, neighbours folded into runs.

    A run is (producer id, producer epoch, first sequence, first offset, count, last timestamp). A record extends
    the run of the record before it when it has the same id and epoch, and the next sequence and offset.
    """
    view = view_of(block)
    if not len(scan.positions) == len(scan.offsets) == len(scan.timestamps) == len(scan.flags):
        raise ValueError("a scan with columns of different lengths")
    runs: list[tuple[int, int, int, int, int, int]] = []
    expected: tuple[int, int, int, int] | None = None
    for ordinal, flags in enumerate(scan.flags):
        try:
            fields = _producer_fields(view, scan.positions[ordinal]) if flags & Flag.EXTENSION else None
        except struct.error:
            raise ValueError("the scan is not of this block") from None
        if fields is None:
            expected = None
            continue
        offset, timestamp = scan.offsets[ordinal], scan.timestamps[ordinal]
        if (*fields, offset) == expected:
            first, count = runs[-1][:4], runs[-1][4]
            runs[-1] = (*first, count + 1, timestamp)
        else:
            runs.append((*fields, offset, 1, timestamp))
        producer_id, producer_epoch, sequence = fields
        expected = (producer_id, producer_epoch, (sequence + 1) & SEQUENCE_MASK, offset + 1)
    return runs


def _producer_fields(block: memoryview, position: int) -> tuple[int, int, int] | None:
    """Id, epoch and sequence in the extension of the record at `position`, if they are there."""
    (mask,) = SHORT.unpack_from(block, position + MASK_AT)
    bits = field_bits(mask)
    if Field.PRODUCER_ID not in bits or Field.PRODUCER_SEQUENCE not in bits:
        return None
    at = position + FIELDS_AT + bits.index(Field.PRODUCER_ID) * FIELD_BYTES
    (producer_id,) = LONG.unpack_from(block, at)
    producer_epoch, _, sequence = SEQUENCE.unpack_from(block, at + FIELD_BYTES)
    return producer_id, producer_epoch, sequence


def transaction_runs(block: Block, scan: Scan) -> list[tuple[int, int, int, int]]:
    """The records with a transaction that `scan` found in `block`, in order, neighbours folded into runs.

    A run is (transaction, first offset, count, flags), of which flags only CONTROL and COMMIT. A record extends the run
    of the record before it when it has the same transaction and flags, and the next offset.
    """
    if not len(scan.positions) == len(scan.offsets) == len(scan.flags):
        raise ValueError("a scan with columns of different lengths")
    ordinals, transactions = field_values(block, scan, Field.TRANSACTION)
    runs: list[tuple[int, int, int, int]] = []
    expected: tuple[int, int, int, int] | None = None
    for ordinal, transaction in zip(ordinals, transactions, strict=True):
        offset, flags = scan.offsets[ordinal], int(scan.flags[ordinal] & (Flag.CONTROL | Flag.COMMIT))
        if (ordinal, transaction, offset, flags) == expected:
            _, first, count, _ = runs[-1]
            runs[-1] = (transaction, first, count + 1, flags)
        else:
            runs.append((transaction, offset, 1, flags))
        expected = (ordinal + 1, transaction, offset + 1, flags)
    return runs


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

    def add(self, block: memoryview, parts: Parts) -> None:
        self.positions.append(parts.start)
        self.offsets.append(parts.offset)
        self.timestamps.append(parts.timestamp)
        self.flags.append(parts.flags)
        self.lanes.append(parts.priority)
        self.key_hashes.append(key_hash(block, parts))
        self.end = parts.end

    def scan(self, problem: Problem) -> Scan:
        return Scan(
            self.positions, self.offsets, self.timestamps, self.flags, self.lanes, self.key_hashes, self.end, problem
        )
