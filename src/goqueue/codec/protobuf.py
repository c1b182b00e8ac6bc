"""Plain messages of protobuf as blocks of records, in plain Python: part of the reference.

A frame of messages would cost a Python object for each of them, and several calls. Most have a key and a value only:
those are found in the frame's bytes and go into records from there. Whatever is not plain is not read here at all;
protobuf's own classes know better what to make of it. Nor does this module know which number a field has.
"""

from array import array
from collections.abc import Callable
from typing import Final, NamedTuple

from goqueue.codec.encoding import TO_BE_NUMBERED, encode_one
from goqueue.codec.inspection import Block, murmur3
from goqueue.codec.layout import SortedBlock
from goqueue.model.limits import MAX_KEY_BYTES
from goqueue.model.record import Extension, Record

_VARINT: Final = 0
_PIECE: Final = 2
_FIXED: Final = {1: 8, 5: 4}
"""How many bytes there are, by what follows a tag."""
_LARGEST: Final = 5
"""Bytes a number may have here; those of ours have no more."""
_MOST: Final = 0xFFFF


class NotPlainError(Exception):
    """These bytes are cut short, or are not among those that are read here."""


class _Plain(NamedTuple):
    key: bytes | None
    value: bytes
    partition: int | None


def from_protobuf(
    body: Block,
    *,
    messages: int,
    value: int,
    key: int,
    partition: int,
    count: int,
    partition_count: int,
    given: int | None,
    keyless: Callable[[], int],
    max_bytes: int,
    numbered: bool,
) -> list[SortedBlock] | None:
    """The messages of a frame as blocks of their partitions; None if one of them is not plain.

    `messages` is the number of the frame's field they are in, and there are `count` of them; `value`, `key` and
    `partition` are fields of a message. Plain is a message that has no others, a value that is not empty, no more than
    `max_bytes` of key and value, and a partition there is. One that names none goes to the one that is `given`, or its
    key decides; all that have no key go to the one that `keyless` is asked for, once. If they are `numbered` they have
    room for their producer's fields, no key decides, and all are for one partition.
    """
    if partition_count < 1 or not 0 <= count <= _MOST or max_bytes > MAX_KEY_BYTES:
        return None
    if given is not None and not 0 <= given < partition_count:
        return None
    try:
        rows = [
            _read(content, value=value, key=key, partition=partition)
            for content in _messages(memoryview(body).cast("B"), messages)
        ]
    except NotPlainError:
        return None
    if len(rows) != count:
        return None
    for at, row in enumerate(rows):
        if not row.value or len(row.value) + len(row.key or b"") > max_bytes:
            return None
        target = given if row.partition is None else row.partition
        if target is None and row.key is not None and not numbered:
            target = murmur3(row.key) % partition_count
        if target is not None and target >= partition_count:
            return None
        rows[at] = row._replace(partition=target)
    if numbered and (None in [row.partition for row in rows] or len({row.partition for row in rows}) > 1):
        return None
    turn: int | None = None
    blocks: dict[int, SortedBlock] = {}
    extension = Extension(producer=TO_BE_NUMBERED) if numbered else None
    for ordinal, row in enumerate(rows):
        target = row.partition
        if target is None:
            target = turn = keyless() if turn is None else turn
            if not 0 <= target < partition_count:
                raise ValueError("messages without a key were given a partition that is not there")
        found = blocks.setdefault(target, SortedBlock(target, array("H"), bytearray()))
        found.ordinals.append(ordinal)
        found.block.extend(encode_one(Record(key=row.key, value=row.value, extension=extension)))
    return [*blocks.values()]


def _messages(body: memoryview, number: int) -> list[memoryview]:
    """Those of a frame that are in the field of that number."""
    fields = [field for field in _fields(body) if field[0] >> 3 == number]
    if any(tag & 7 != _PIECE for tag, _ in fields):
        raise NotPlainError
    return [content for _, content in fields]


def _read(message: memoryview, *, value: int, key: int, partition: int) -> _Plain:
    """The last of each field counts."""
    plain = _Plain(None, b"", None)
    for tag, content in _fields(message):
        if tag == partition << 3 | _VARINT:
            number, _ = varint(content, 0)
            plain = plain._replace(partition=number)
        elif tag == key << 3 | _PIECE:
            plain = plain._replace(key=bytes(content))
        elif tag == value << 3 | _PIECE:
            plain = plain._replace(value=bytes(content))
        else:
            raise NotPlainError
    return plain


def _fields(body: memoryview) -> list[tuple[int, memoryview]]:
    """Tags and contents, in their order."""
    found = []
    at = 0
    while at < len(body):
        tag, at = varint(body, at)
        start = at
        if tag & 7 == _VARINT:
            while at < len(body) and body[at] & 0x80:
                at += 1
            at += 1
        elif tag & 7 == _PIECE:
            length, start = varint(body, at)
            at = start + length
        elif tag & 7 in _FIXED:
            at += _FIXED[tag & 7]
        else:
            raise NotPlainError
        if at > len(body):
            raise NotPlainError
        found.append((tag, body[start:at]))
    return found


def varint(body: memoryview, at: int) -> tuple[int, int]:
    """The number at a place, and the place behind it; NotPlainError if it is cut short, or none of ours is so large."""
    number = 0
    for shift in range(_LARGEST):
        if at + shift >= len(body):
            break
        number |= (body[at + shift] & 0x7F) << 7 * shift
        if not body[at + shift] & 0x80:
            return number, at + shift + 1
    raise NotPlainError
