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
from goqueue.model.record import Extension, Record

_VARINT: Final = 0
_PIECE: Final = 2
_FIXED: Final = {1: 8, 5: 4}
"""How many bytes there are, by what follows a tag."""
_LARGEST: Final = 5
"""Bytes a number may have here; those of ours have no more."""
_MOST: Final = 0xFFFF


class _NotPlainError(Exception):
    pass


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
    key decides; all that have no key go to the one that `keyless` is asked for. If they are `numbered` they have room
    for their producer's fields, and no key decides.
    """
    if count > _MOST or (given is not None and not 0 <= given < partition_count):
        return None
    blocks: dict[int, SortedBlock] = {}
    extension = Extension(producer=TO_BE_NUMBERED) if numbered else None
    turn: int | None = None
    ordinal = 0
    try:
        for tag, content in _fields(memoryview(body).cast("B")):
            if tag >> 3 != messages:
                continue
            if tag & 7 != _PIECE or ordinal == count:
                return None
            plain = _read(content, value=value, key=key, partition=partition)
            if not plain.value or len(plain.value) + len(plain.key or b"") > max_bytes:
                return None
            target = given if plain.partition is None else plain.partition
            if target is None:
                if numbered:
                    return None
                if plain.key is None:
                    turn = keyless() if turn is None else turn
                    target = turn
                else:
                    target = murmur3(plain.key) % partition_count
            if target >= partition_count:
                return None
            sorted_block = blocks.setdefault(target, SortedBlock(target, array("H"), bytearray()))
            sorted_block.ordinals.append(ordinal)
            sorted_block.block.extend(encode_one(Record(key=plain.key, value=plain.value, extension=extension)))
            ordinal += 1
    except _NotPlainError:
        return None
    return [*blocks.values()] if ordinal == count else None


def _read(message: memoryview, *, value: int, key: int, partition: int) -> _Plain:
    """The last of each field counts."""
    plain = _Plain(None, b"", None)
    for tag, content in _fields(message):
        if tag == partition << 3 | _VARINT:
            number, _ = _varint(content, 0)
            plain = plain._replace(partition=number)
        elif tag == key << 3 | _PIECE:
            plain = plain._replace(key=bytes(content))
        elif tag == value << 3 | _PIECE:
            plain = plain._replace(value=bytes(content))
        else:
            raise _NotPlainError
    return plain


def _fields(body: memoryview) -> "list[tuple[int, memoryview]]":
    """Tags and contents, in their order."""
    found = []
    at = 0
    while at < len(body):
        tag, at = _varint(body, at)
        start = at
        if tag & 7 == _VARINT:
            while at < len(body) and body[at] & 0x80:
                at += 1
            at += 1
        elif tag & 7 == _PIECE:
            length, start = _varint(body, at)
            at = start + length
        elif tag & 7 in _FIXED:
            at += _FIXED[tag & 7]
        else:
            raise _NotPlainError
        if at > len(body):
            raise _NotPlainError
        found.append((tag, body[start:at]))
    return found


def _varint(body: memoryview, at: int) -> tuple[int, int]:
    """The number at a place, and the place behind it."""
    number = 0
    for shift in range(_LARGEST):
        if at + shift >= len(body):
            break
        number |= (body[at + shift] & 0x7F) << 7 * shift
        if not body[at + shift] & 0x80:
            return number, at + shift + 1
    raise _NotPlainError
