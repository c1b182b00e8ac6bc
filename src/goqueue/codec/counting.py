"""How many values a request has, counted in its bytes before anything is made of them: part of the reference.

A value costs a request a byte or two and whoever reads it some hundred bytes and up to some microseconds. So the number
of values, not that of bytes, says what a request costs. Counting stops where there are more than the caller allows.
Bytes that are not what they should be are counted as far as they make sense: whoever reads them will refuse them.
"""

import re
from collections.abc import Sequence
from typing import Final

from goqueue.codec.inspection import Block
from goqueue.codec.protobuf import NotPlainError, varint

FIELD_NUMBERS: Final = 64
"""Of the fields of a message that a table of nested messages tells; others have nothing in them."""
NOT_NESTED: Final = -1
PACKED: Final = -2
"""Numbers one behind the other: each takes a byte at least."""
MAX_DEPTH: Final = 16
"""Of messages in each other; those further down are not looked into."""

_BEGINNING: Final = re.compile(rb'[,\[{"]')
_VARINT: Final = 0
_PIECE: Final = 2
_GROUP: Final = (3, 4)
_FIXED: Final = {1: 8, 5: 4}


def count_json(data: Block, most: int) -> int:
    """The values of a JSON text: texts, numbers, lists and objects, but not the names in an object.

    More than `most` are not counted on: then it is `most` and one.
    """
    text = bytes(data)
    count, at = int(bool(text.strip(b" \t\r\n"))), 0
    while count <= most:
        found = _BEGINNING.search(text, at)
        if found is None:
            break
        at = found.end()
        if found[0] != b'"':
            count += 1
            continue
        end = _end_of_text(text, at)
        if end < 0:
            break
        at = end
    return count


def _end_of_text(text: bytes, at: int) -> int:
    """Behind the quotation mark that ends a text; -1 if none does."""
    while True:
        quote = text.find(b'"', at)
        if quote < 0:
            return -1
        slashes = quote - 1
        while slashes >= at and text[slashes] == 0x5C:
            slashes -= 1
        if (quote - slashes) % 2:
            return quote + 1
        at = quote + 1


def count_protobuf(data: Block, most: int, nested: Sequence[int]) -> int:
    """The fields of a message of protobuf, and those of the messages in it.

    `nested` has `FIELD_NUMBERS` entries for each kind of message, the outermost first: by the number of a field, the
    kind of message that is in it, `NOT_NESTED`, or `PACKED`. More than `most` are not counted on.
    """
    return _count(memoryview(data).cast("B"), most, nested, 0, 0)


def _count(body: memoryview, most: int, nested: Sequence[int], kind: int, depth: int) -> int:
    count, at = 0, 0
    while at < len(body) and count <= most:
        try:
            tag, at = varint(body, at)
        except NotPlainError:
            break
        count += 1
        number, form = tag >> 3, tag & 7
        if form == _VARINT:
            while at < len(body) and body[at] & 0x80:
                at += 1
            at += 1
        elif form in _FIXED:
            at += _FIXED[form]
        elif form == _PIECE:
            try:
                length, at = varint(body, at)
            except NotPlainError:
                break
            if length > len(body) - at:
                break
            within = nested[kind * FIELD_NUMBERS + number] if number < FIELD_NUMBERS else NOT_NESTED
            if within == PACKED:
                count += length
            elif within >= 0 and depth < MAX_DEPTH:
                count += _count(body[at : at + length], most - count, nested, within, depth + 1)
            at += length
        elif form not in _GROUP:
            break
    return min(count, most + 1)
