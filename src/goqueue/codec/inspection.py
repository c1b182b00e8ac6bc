"""Looking at one record: is it one, and where are its parts? Part of the Python reference.

A length is compared with its limit before it is used, and with the bytes there are before they are touched.
The order of the checks is part of the contract: the fixed header, the total length, the checksum, then what
is inside the extension and the headers. This module changes no byte and knows nothing of blocks as a whole.
"""

from typing import Final, NamedTuple

import mmh3

from goqueue.codec.encoding import LONG, SEQUENCE, SHORT, checksum
from goqueue.codec.layout import (
    BLOB_BIT,
    BLOB_LENGTH_BYTES,
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
    VERSION,
    Field,
    Flag,
    Problem,
)
from goqueue.model.limits import MAX_BLOB_BYTES, MAX_RECORD_BYTES

Block = bytes | bytearray | memoryview

ALL_FLAGS: Final = int(Flag.EXTENSION | Flag.NO_KEY | Flag.NO_VALUE | Flag.CONTROL | Flag.COMMIT)
EXTENSION_AT: Final = HEADER_BYTES
MASK_AT: Final = EXTENSION_AT + EXTENSION_LENGTH_BYTES
FIELDS_AT: Final = MASK_AT + MASK_BYTES


def view_of(block: Block) -> memoryview:
    view = memoryview(block)
    if not view.c_contiguous:
        raise BufferError("a block must be contiguous")
    if view.nbytes > 0xFFFF_FFFF:
        raise ValueError("a block must be smaller than 4 GiB: positions in it have four bytes")
    return view.cast("B")


class Broken(Exception):
    """The bytes looked at are not a record."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.problem = problem


class Parts(NamedTuple):
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


def locate(block: memoryview, start: int) -> Parts:
    """Check the fixed header and the total length: after this every part lies inside the block."""
    available = len(block) - start
    if available < HEADER_BYTES:
        raise Broken(_problem_of_beginning(bytes(block[start:])))
    magic, version, flags, checksum, offset, timestamp, priority, reserved, key_bytes, value_bytes, headers_bytes = (
        HEADER.unpack_from(block, start)
    )
    if magic != MAGIC:
        raise Broken(Problem.MAGIC)
    if version != VERSION:
        raise Broken(Problem.VERSION)
    if flags & ~ALL_FLAGS or (flags & Flag.COMMIT and not flags & Flag.CONTROL):
        raise Broken(Problem.FLAGS)
    if reserved:
        raise Broken(Problem.RESERVED)
    if priority >= LANES:
        raise Broken(Problem.PRIORITY)
    if (flags & Flag.NO_KEY and key_bytes) or (flags & Flag.NO_VALUE and value_bytes):
        raise Broken(Problem.LENGTHS)
    extension_bytes = EXTENSION_LENGTH_BYTES if flags & Flag.EXTENSION else 0
    if HEADER_BYTES + extension_bytes + key_bytes + value_bytes + headers_bytes > MAX_RECORD_BYTES:
        raise Broken(Problem.TOO_LARGE)
    if flags & Flag.EXTENSION:
        if available < MASK_AT:
            raise Broken(Problem.INCOMPLETE)
        (length,) = SHORT.unpack_from(block, start + EXTENSION_AT)
        if length > MAX_EXTENSION_BYTES:
            raise Broken(Problem.TOO_LARGE)
        extension_bytes += length
    key = start + HEADER_BYTES + extension_bytes
    value = key + key_bytes
    headers = value + value_bytes
    end = headers + headers_bytes
    if end - start > MAX_RECORD_BYTES:
        raise Broken(Problem.TOO_LARGE)
    if end > len(block):
        raise Broken(Problem.INCOMPLETE)
    return Parts(start, flags, checksum, offset, timestamp, priority, key, value, headers, end)


def _problem_of_beginning(beginning: bytes) -> Problem:
    """Less than a header: could it still become a record?"""
    if not MAGIC.startswith(beginning[: len(MAGIC)]):
        return Problem.MAGIC
    if beginning[len(MAGIC) : len(MAGIC) + 1] not in (b"", bytes([VERSION])):
        return Problem.VERSION
    return Problem.INCOMPLETE


def examine(block: memoryview, start: int, *, verify: bool = True) -> Parts:
    """Check everything about the record at `start`."""
    parts = locate(block, start)
    if verify and checksum(block[start : parts.end]) != parts.checksum:
        raise Broken(Problem.CHECKSUM)
    if parts.flags & Flag.EXTENSION:
        _check_extension(block[start + MASK_AT : parts.key])
    if parts.end > parts.headers:
        _check_headers(block[parts.headers : parts.end])
    return parts


def field_bits(mask: int) -> list[int]:
    """The bits of `mask` that stand for a fixed-width field, in the order of their fields."""
    return [bit for bit in range(BLOB_BIT) if mask >> bit & 1]


def read_mask(body: memoryview) -> tuple[int, int]:
    """The extension's mask, and how many bytes it needs for itself, its fields and a blob's length."""
    if len(body) < MASK_BYTES:
        raise Broken(Problem.EXTENSION)
    (mask,) = SHORT.unpack_from(body)
    needed = MASK_BYTES + len(field_bits(mask)) * FIELD_BYTES + (BLOB_LENGTH_BYTES if mask >> BLOB_BIT else 0)
    if needed > len(body):
        raise Broken(Problem.EXTENSION)
    return mask, needed


def read_field(block: memoryview, parts: Parts, field: Field) -> int | None:
    """A fixed-width field of a record whose extension was checked; None if it has no such field."""
    if not parts.flags & Flag.EXTENSION:
        return None
    (mask,) = SHORT.unpack_from(block, parts.start + MASK_AT)
    if not mask >> field & 1:
        return None
    before = len(field_bits(mask & ((1 << field) - 1)))
    value: int = LONG.unpack_from(block, parts.start + FIELDS_AT + before * FIELD_BYTES)[0]
    return value


def key_hash(block: memoryview, parts: Parts) -> int:
    return 0 if parts.flags & Flag.NO_KEY else murmur3(block[parts.key : parts.value])


def murmur3(data: Block) -> int:
    """MurmurHash3, x86, 32 bit, seed 0, unsigned."""
    return mmh3.hash(bytes(data), 0, signed=False)


def _check_extension(body: memoryview) -> None:
    """`body` is what follows the extension's length: the mask, its fields, and the blob if there is one."""
    mask, expected = read_mask(body)
    bits = field_bits(mask)
    if not mask or (Field.PRODUCER_ID in bits) != (Field.PRODUCER_SEQUENCE in bits):
        raise Broken(Problem.EXTENSION)
    if Field.PRODUCER_SEQUENCE in bits:
        _, zero, _ = SEQUENCE.unpack_from(body, MASK_BYTES + bits.index(Field.PRODUCER_SEQUENCE) * FIELD_BYTES)
        if zero:
            raise Broken(Problem.EXTENSION)
    if mask >> BLOB_BIT:
        (length,) = SHORT.unpack_from(body, expected - BLOB_LENGTH_BYTES)
        if length > MAX_BLOB_BYTES:
            raise Broken(Problem.EXTENSION)
        expected += length
    if expected != len(body):
        raise Broken(Problem.EXTENSION)


def _check_headers(section: memoryview) -> None:
    """A count of at least one, then names and values that end exactly where the section does."""
    if len(section) < HEADER_COUNT_BYTES:
        raise Broken(Problem.HEADERS)
    (count,) = SHORT.unpack_from(section)
    at = HEADER_COUNT_BYTES
    for _ in range(2 * count):
        if at + HEADER_LENGTH_BYTES > len(section):
            raise Broken(Problem.HEADERS)
        (length,) = SHORT.unpack_from(section, at)
        at += HEADER_LENGTH_BYTES + length
    if not count or at != len(section):
        raise Broken(Problem.HEADERS)
