"""Records that know who they are: from a record's identity alone everything in it can be made again.

So whoever reads one can tell a right record from a wrong one without having seen it written.
"""

import hashlib
import struct
from typing import NamedTuple

from goqueue import codec
from goqueue.model.record import Extension, Record

_IDENTITY = struct.Struct(">IIHH")


class Identity(NamedTuple):
    """The `number`-th record of the `block`-th block that life number `life` wrote; `life` and `block` per log."""

    life: int
    block: int
    number: int

    def pack(self, log: int) -> bytes:
        return _IDENTITY.pack(self.life, self.block, self.number, log)


class Shape(NamedTuple):
    """What kind of records a log gets. Delays are in milliseconds after the append."""

    log: int
    keys: int = 0
    """How many different keys there are; 0 for records without."""
    max_value_bytes: int = 400
    delayed_one_in: int = 0
    max_delay_ms: int = 2000
    same_size: bool = False
    """Every record has as many bytes as every other: what is left of one can pass for another."""


def make(shape: Shape, identity: Identity) -> Record:
    """The record of this identity, as it is before a log stamps it."""
    name = identity.pack(shape.log)
    noise = hashlib.shake_128(name)
    dice = struct.unpack(">8H", noise.digest(16))
    length = dice[0] % 16 if dice[1] % 3 == 0 else dice[0] % (shape.max_value_bytes + 1)
    if shape.same_size:
        return Record(value=name + noise.digest(16 + shape.max_value_bytes)[16:])
    extension = None
    if shape.delayed_one_in and dice[2] % shape.delayed_one_in == 0:
        extension = Extension(deliver_at=-1 - dice[3] % shape.max_delay_ms)
    return Record(
        key=b"key-%d" % (dice[4] % shape.keys) if shape.keys else None,
        value=name + noise.digest(16 + length)[16:],
        priority=dice[5] % 5,
        headers=(("life", b"%d" % identity.life),) if dice[6] % 7 == 0 else (),
        extension=extension,
    )


def make_block(shape: Shape, life: int, block: int, count: int) -> bytearray:
    return codec.encode([make(shape, Identity(life, block, number)) for number in range(count)])


def identify(shape: Shape, record: Record) -> Identity | None:
    """Whose bytes these are; None when they are not exactly what that identity stands for."""
    value = record.value or b""
    if len(value) < _IDENTITY.size:
        return None
    life, block, number, log = _IDENTITY.unpack_from(value)
    identity = Identity(life, block, number)
    return identity if log == shape.log and stamped(make(shape, identity), record) == record else None


def stamped(made: Record, like: Record) -> Record:
    """A record as made, with the offset and time that `like` was stamped with."""
    extension = made.extension
    if extension is not None and extension.deliver_at is not None:
        extension = Extension(deliver_at=like.timestamp - extension.deliver_at)
    return Record(
        offset=like.offset,
        timestamp=like.timestamp,
        key=made.key,
        value=made.value,
        priority=made.priority,
        headers=made.headers,
        extension=extension,
    )
