"""The load: 1 KB records with keys, in blocks of about 256 KB, values distinct."""

import os

from goqueue import codec
from goqueue.model.record import Record

VALUE_BYTES = 1024
BLOCK_BYTES = 256 * 1024
KEYS = 10_000


def records(count: int, value_bytes: int = VALUE_BYTES) -> list[Record]:
    return [Record(key=b"key-%06d" % (number % KEYS), value=os.urandom(value_bytes)) for number in range(count)]


def block(size: int = BLOCK_BYTES, value_bytes: int = VALUE_BYTES) -> tuple[bytearray, int]:
    """A block of at most `size` bytes, and how many records are in it."""
    one = len(codec.encode(records(1, value_bytes)))
    count = max(size // one, 1)
    return codec.encode(records(count, value_bytes)), count


def blocks(number: int, size: int = BLOCK_BYTES, value_bytes: int = VALUE_BYTES) -> tuple[list[bytearray], int]:
    """Several such blocks, each with other values, and how many records each holds."""
    made = [block(size, value_bytes) for _ in range(number)]
    return [data for data, _ in made], made[0][1]
