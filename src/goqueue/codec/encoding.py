"""Records to bytes, in plain Python: the writing half of the reference. A record that breaks a limit is refused."""

import struct
from collections.abc import Iterable
from typing import Final

import crc32c

from goqueue.codec.layout import (
    BLOB_BIT,
    CRC_AT,
    HEADER,
    HEADER_BYTES,
    HEADER_COUNT_BYTES,
    HEADER_LENGTH_BYTES,
    LANES,
    MAGIC,
    MASK_BYTES,
    OFFSET_AT,
    VERSION,
    Field,
    Flag,
    Refusal,
)
from goqueue.model.errors import InvalidRecord
from goqueue.model.limits import MAX_BLOB_BYTES, MAX_HEADERS_BYTES, MAX_KEY_BYTES, MAX_RECORD_BYTES
from goqueue.model.record import Extension, Producer, Record

SHORT: Final = struct.Struct(">H")
LONG: Final = struct.Struct(">q")
SEQUENCE: Final = struct.Struct(">hHi")
"""The PRODUCER_SEQUENCE field: epoch, zero, sequence."""


TO_BE_NUMBERED: Final = Producer(0, 0, 0)


class Refused(Exception):
    """The record cannot be encoded; the message says why."""


def encode(records: Iterable[Record]) -> bytearray:
    """The records as one block; raises `InvalidRecord` for the first one that breaks a limit."""
    block = bytearray()
    for index, record in enumerate(records):
        try:
            block += encode_one(record)
        except Refused as refused:
            raise InvalidRecord(str(refused), index=index, position=len(block)) from None
    return block


def pack_into(
    buffer: bytearray | memoryview,
    position: int,
    value: bytes | None,
    key: bytes | None,
    priority: int,
    headers: Iterable[tuple[str, bytes]] = (),
    deliver_at: int | None = None,
    expires_at: int | None = None,
    event_time: int | None = None,
    numbered: bool = True,
    transaction: int | None = None,
) -> int:
    """Write a message to `position`; gives where it ends. One that is `numbered` has room for its producer's fields.

    When it does not fit, gives minus the bytes it needs, and nothing is written; `InvalidRecord` if it breaks a limit.
    """
    for content in (value, key):
        if content is not None and not isinstance(content, bytes):
            raise TypeError(f"a key and a value are bytes, not {type(content).__name__}")
    producer = TO_BE_NUMBERED if numbered else None
    extension = Extension(
        deliver_at=deliver_at,
        expires_at=expires_at,
        event_time=event_time,
        producer=producer,
        transaction=transaction,
    )
    record = Record(key=key, value=value, priority=priority, headers=tuple(headers), extension=extension)
    try:
        encoded = encode_one(record)
    except Refused as refused:
        raise InvalidRecord(str(refused), index=0, position=max(0, position)) from None
    end = position + len(encoded)
    if position < 0 or end > len(buffer):
        return -len(encoded)
    buffer[position:end] = encoded
    return end


def encode_one(record: Record) -> bytearray:
    flags = 0
    if not 0 <= record.priority < LANES:
        raise Refused(Refusal.PRIORITY)
    if record.commit and not record.control:
        raise Refused(Refusal.COMMIT)
    if record.control:
        flags |= Flag.COMMIT | Flag.CONTROL if record.commit else Flag.CONTROL
    if record.key is None:
        flags |= Flag.NO_KEY
    if record.value is None:
        flags |= Flag.NO_VALUE
    key = record.key or b""
    value = record.value or b""
    if len(key) > MAX_KEY_BYTES:
        raise Refused(Refusal.KEY)
    headers = _encode_headers(record.headers)
    _check_number(record.offset, bits=64)
    _check_number(record.timestamp, bits=64)
    extension = _encode_extension(record.extension) if record.extension is not None else b""
    if extension:
        flags |= Flag.EXTENSION
    if HEADER_BYTES + len(extension) + len(key) + len(value) + len(headers) > MAX_RECORD_BYTES:
        raise Refused(Refusal.RECORD)
    encoded = bytearray(
        HEADER.pack(
            MAGIC, VERSION, flags, 0, record.offset, record.timestamp, record.priority, 0,
            len(key), len(value), len(headers),
        )
    )  # fmt: skip
    encoded += extension
    encoded += key
    encoded += value
    encoded += headers
    encoded[CRC_AT:OFFSET_AT] = checksum(encoded).to_bytes(4, "big")
    return encoded


def _check_number(number: int, *, bits: int) -> None:
    if not -(1 << (bits - 1)) <= number < 1 << (bits - 1):
        raise Refused(Refusal.NUMBER)


def _encode_headers(headers: tuple[tuple[str, bytes], ...]) -> bytes:
    if not headers:
        return b""
    pieces: list[bytes] = []
    for name, value in headers:
        try:
            pieces.append(name.encode("utf-8", "surrogateescape"))
        except UnicodeEncodeError:
            raise Refused(Refusal.HEADER_NAME) from None
        pieces.append(value)
    if HEADER_COUNT_BYTES + sum(HEADER_LENGTH_BYTES + len(piece) for piece in pieces) > MAX_HEADERS_BYTES:
        raise Refused(Refusal.HEADERS)
    return SHORT.pack(len(headers)) + b"".join(SHORT.pack(len(piece)) + piece for piece in pieces)


def _encode_extension(extension: Extension) -> bytes:
    """Empty when nothing is set: a mask of zero is not a record's to carry."""
    fields: dict[Field, bytes] = {}
    for field, number in (
        (Field.DELIVER_AT, extension.deliver_at),
        (Field.EXPIRES_AT, extension.expires_at),
        (Field.EVENT_TIME, extension.event_time),
        (Field.TRANSACTION, extension.transaction),
    ):
        if number is not None:
            _check_number(number, bits=64)
            fields[field] = LONG.pack(number)
    if extension.producer is not None:
        _check_number(extension.producer.producer_id, bits=64)
        _check_number(extension.producer.producer_epoch, bits=16)
        _check_number(extension.producer.sequence, bits=32)
        fields[Field.PRODUCER_ID] = LONG.pack(extension.producer.producer_id)
        fields[Field.PRODUCER_SEQUENCE] = SEQUENCE.pack(
            extension.producer.producer_epoch, 0, extension.producer.sequence
        )
    mask = sum(1 << field for field in fields)
    body = b"".join(fields[field] for field in sorted(fields))
    if extension.blob is not None:
        if len(extension.blob) > MAX_BLOB_BYTES:
            raise Refused(Refusal.BLOB)
        mask |= 1 << BLOB_BIT
        body += SHORT.pack(len(extension.blob)) + extension.blob
    if not mask:
        return b""
    return SHORT.pack(MASK_BYTES + len(body)) + SHORT.pack(mask) + body


def checksum(record: bytes | bytearray | memoryview) -> int:
    """Over every byte of a record but the checksum's own four."""
    return crc32c.crc32c(record[OFFSET_AT:], crc32c.crc32c(record[:CRC_AT]))
