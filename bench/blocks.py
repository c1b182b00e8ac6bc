"""The load: 1 KB records with keys, in blocks of about 256 KB, values distinct."""

import os
from functools import cache
from typing import Any

from goqueue import codec
from goqueue.model.record import Extension, Producer, Record

VALUE_BYTES = 1024
BLOCK_BYTES = 256 * 1024
KEYS = 10_000
_PRODUCER = Extension(producer=Producer(0, 0, 0))


def records(count: int, value_bytes: int = VALUE_BYTES, extension: Extension | None = None) -> list[Record]:
    return [
        Record(key=b"key-%06d" % (number % KEYS), value=os.urandom(value_bytes), extension=extension)
        for number in range(count)
    ]


def block(
    size: int = BLOCK_BYTES, value_bytes: int = VALUE_BYTES, extension: Extension | None = None
) -> tuple[bytearray, int]:
    """A block of at most `size` bytes, and how many records are in it."""
    one = len(codec.encode(records(1, value_bytes, extension)))
    count = max(size // one, 1)
    return codec.encode(records(count, value_bytes, extension)), count


def blocks(
    number: int, size: int = BLOCK_BYTES, value_bytes: int = VALUE_BYTES, extension: Extension | None = None
) -> tuple[list[bytearray], int]:
    """Several such blocks, each with other values, and how many records each holds."""
    made = [block(size, value_bytes, extension) for _ in range(number)]
    return [data for data, _ in made], made[0][1]


@cache
def producer_blocks(number: int, size: int) -> tuple[list[bytearray], int]:
    """Blocks whose records have room for their producer's fields. Nobody may change them."""
    return blocks(number, size, extension=_PRODUCER)


def texts(count: int) -> list[dict[str, Any]]:
    """The same messages for a JSON body: values are text of 1 KB."""
    return [{"key": f"key-{number % KEYS:06d}", "value": os.urandom(VALUE_BYTES // 2).hex()} for number in range(count)]
