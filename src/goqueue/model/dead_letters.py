"""What a dead letter says of itself: where it comes from and why it is dead. It travels in the record's extension.

MessagePack, a map with names, so that fields can be added. A copy of the message beside it is the record itself.
"""

import msgspec

from goqueue.model import limits

_SHORTENED = "..."


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Times are Unix milliseconds."""

    topic: str
    topic_id: int
    partition: int
    offset: int
    group: str
    """Its name when the message died; empty if it was deleted since."""
    group_number: int
    reason: str
    """rejected, nacked, lapsed or expired."""
    deliveries: int
    published_at: int
    died_at: int
    detail: str = ""
    """What the consumer said when it rejected the message."""


_decoder = msgspec.msgpack.Decoder(DeadLetter)
_encode = msgspec.msgpack.Encoder().encode


def pack_dead_letter(letter: DeadLetter) -> bytes:
    """Small enough for a record: of a long detail only the beginning."""
    packed = _encode(letter)
    while len(packed) > limits.MAX_BLOB_BYTES:
        kept = len(letter.detail) // 2
        letter = msgspec.structs.replace(letter, detail=letter.detail[:kept] + _SHORTENED if kept else "")
        packed = _encode(letter)
    return packed


def unpack_dead_letter(blob: bytes) -> DeadLetter | None:
    """None when it is no dead letter."""
    try:
        return _decoder.decode(blob)
    except msgspec.MsgspecError:
        return None
