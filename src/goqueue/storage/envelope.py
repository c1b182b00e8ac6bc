"""The envelope of every small file beside a log: what it is, whose it is, and a checksum over all of it.

Companions of a segment (index, time index, views) carry the seal number of the segment they were made
from; one left over from another life of the same base offset is recognised by that and rebuilt. The CRC
covers every byte but its own four.
"""

import struct
from enum import IntEnum
from typing import Final

from goqueue import codec

MAGIC: Final = b"GQFS"
VERSION: Final = 1
HEADER: Final = struct.Struct(">4sBBHIqqQ")
"""magic, version, kind, reserved, crc32c, base offset, seal, payload length."""
CRC_AT: Final = 8


class Kind(IntEnum):
    STATE = 1
    INDEX = 2
    TIME_INDEX = 3
    VIEW = 4


def wrap(kind: Kind, payload: bytes, *, base: int = 0, seal: int = 0) -> bytes:
    data = bytearray(HEADER.pack(MAGIC, VERSION, kind, 0, 0, base, seal, len(payload)))
    data += payload
    struct.pack_into(">I", data, CRC_AT, _checksum(data))
    return bytes(data)


def unwrap(kind: Kind, data: bytes, *, base: int = 0, seal: int = 0) -> bytes | None:
    """The payload, or None when the bytes are damaged, of another kind, or made for something else."""
    if len(data) < HEADER.size:
        return None
    magic, version, found, reserved, crc, its_base, its_seal, length = HEADER.unpack_from(data)
    if (magic, version, found, reserved, its_base, its_seal) != (MAGIC, VERSION, kind, 0, base, seal):
        return None
    if length != len(data) - HEADER.size or crc != _checksum(data):
        return None
    return data[HEADER.size :]


def _checksum(data: bytes | bytearray) -> int:
    view = memoryview(data)
    return codec.crc32c(view[CRC_AT + 4 :], codec.crc32c(view[:CRC_AT]))
