"""The bodies of publish_block and fetch_block: fixed fields in front of a block of records.

A block stays where it is: callers cut it off behind the fixed fields (`payload[PUBLISH_REQUEST.size :]`) and
send it behind them. Each direction is one struct call. Unpacking takes bytes nobody vouches for and refuses
with `ProtocolError`; such a request can be answered, and the connection goes on. Records are the codec's.
"""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from goqueue.model.errors import ProtocolError
from goqueue.model.limits import MAX_BLOCK_BYTES, MAX_READ_COUNT, MAX_WAIT_MS
from goqueue.model.publishing import Acks, Durability
from goqueue.model.record import Producer
from goqueue.wire.frames import Bytes

PUBLISH_REQUEST: Final = struct.Struct(">QIBBhqi")
"""topic id, partition, acks, flags, producer epoch, producer id, sequence; then the block."""
HAS_PRODUCER: Final = 1
"""The one flag there is. Without it the producer's three fields are zero."""

PUBLISH_REPLY: Final = struct.Struct(">BBH")
"""durability, zero, count of ranges; then the ranges."""
RANGE: Final = struct.Struct(">IqqB")
"""count, first offset, timestamp, duplicate."""
ONE_RANGE_REPLY: Final = struct.Struct(">BBHIqqB")
"""Both at once: nearly every reply has one range."""

FETCH_REQUEST: Final = struct.Struct(">QIqIII")
"""topic id, partition, offset, most bytes, most records, longest wait in milliseconds; then one byte of flags, which
may be left out when none is set."""
UNCOMMITTED: Final = 1
"""The one flag of a fetch: also messages of transactions that are open, or were aborted."""
MAX_FETCH_BYTES: Final = MAX_BLOCK_BYTES // 2
"""Bytes of records in one reply, unless a single one is larger: to read and send them keeps others waiting."""
FETCH_REPLY: Final = struct.Struct(">qqqI")
"""next offset, earliest offset, latest (the end), count of records; then the block."""

_ACKS: Final = tuple(Acks)
_DURABILITIES: Final = tuple(Durability)


class PublishRequest(NamedTuple):
    """`producer.sequence` is that of the block's first record."""

    topic_id: int
    partition: int
    acks: Acks
    producer: Producer | None = None

    def pack(self) -> bytes:
        topic_id, partition, acks, producer = self
        try:
            if producer is None:
                return PUBLISH_REQUEST.pack(topic_id, partition, acks, 0, 0, 0, 0)
            return PUBLISH_REQUEST.pack(
                topic_id, partition, acks, HAS_PRODUCER,
                producer.producer_epoch, producer.producer_id, producer.sequence,
            )  # fmt: skip
        except struct.error as error:
            raise ProtocolError(f"{self} does not fit its fields: {error}") from None


class Range(NamedTuple):
    """Records that got offsets in a row at one time; `duplicate`: they had been appended before."""

    records: int
    first_offset: int
    timestamp: int
    duplicate: bool = False


class PublishReply(NamedTuple):
    """What became of a block, first record to last."""

    durability: Durability
    ranges: tuple[Range, ...]

    def pack(self) -> bytes:
        return pack_publish_reply(*self)


class FetchRequest(NamedTuple):
    """The three bounds are the most a client will take; a broker may always give less."""

    topic_id: int
    partition: int
    offset: int
    max_bytes: int
    max_count: int
    max_wait_ms: int = 0
    uncommitted: bool = False

    def pack(self) -> bytes:
        try:
            return FETCH_REQUEST.pack(*self[:-1]) + (bytes([UNCOMMITTED]) if self.uncommitted else b"")
        except struct.error as error:
            raise ProtocolError(f"{self} does not fit its fields: {error}") from None


class FetchReply(NamedTuple):
    """Where to go on, what the partition holds, and how many records follow.

    `latest` is its end, as far as it can be read: the first message of an open transaction, unless uncommitted ones
    were asked for.
    """

    next_offset: int
    earliest: int
    latest: int
    records: int

    def pack(self) -> bytes:
        try:
            return FETCH_REPLY.pack(*self)
        except struct.error as error:
            raise ProtocolError(f"{self} does not fit its fields: {error}") from None


def pack_publish_reply(durability: Durability, ranges: Sequence[tuple[int, int, int, bool]]) -> bytes:
    """Ranges as in `Range`."""
    try:
        if len(ranges) == 1:
            return ONE_RANGE_REPLY.pack(durability, 0, 1, *ranges[0])
        return PUBLISH_REPLY.pack(durability, 0, len(ranges)) + b"".join([RANGE.pack(*each) for each in ranges])
    except struct.error as error:
        raise ProtocolError(f"a publish reply of {len(ranges)} ranges does not fit its fields: {error}") from None


def unpack_publish_request(payload: Bytes) -> PublishRequest:
    """The fixed fields; the block is what stands behind them, and may be anything."""
    try:
        topic_id, partition, acks, flags, epoch, producer_id, sequence = PUBLISH_REQUEST.unpack_from(payload)
    except struct.error:
        raise _too_short("a publish_block request", PUBLISH_REQUEST, payload) from None
    if acks >= len(_ACKS):
        raise ProtocolError(f"acks is {acks}; it is 0 (none), 1 (leader) or 2 (all)")
    if flags == HAS_PRODUCER:
        if producer_id < 0 or epoch < 0 or sequence < 0:
            raise ProtocolError(f"producer {producer_id}, epoch {epoch}, sequence {sequence}: none may be negative")
        return PublishRequest(topic_id, partition, _ACKS[acks], Producer(producer_id, epoch, sequence))
    if flags:
        raise ProtocolError(f"the flags are {flags:#04x}; only bit 0 (has producer) means something")
    if producer_id or epoch or sequence:
        raise ProtocolError("a request without the producer flag has producer fields; set bit 0 of the flags")
    return PublishRequest(topic_id, partition, _ACKS[acks])


def unpack_publish_reply(payload: Bytes) -> PublishReply:
    try:
        durability, zero, count = PUBLISH_REPLY.unpack_from(payload)
    except struct.error:
        raise _too_short("a publish_block reply", PUBLISH_REPLY, payload) from None
    if durability >= len(_DURABILITIES) or zero or not count:
        raise ProtocolError(f"a publish_block reply says durability {durability}, zero {zero}, ranges {count}")
    if len(payload) != PUBLISH_REPLY.size + count * RANGE.size:
        raise ProtocolError(f"a publish_block reply of {count} ranges has {len(payload)} bytes")
    ranges = []
    for records, first_offset, timestamp, duplicate in RANGE.iter_unpack(payload[PUBLISH_REPLY.size :]):
        if not records or first_offset < 0 or duplicate > 1:
            raise ProtocolError(f"a range of {records} records at offset {first_offset}, duplicate {duplicate}")
        ranges.append(Range(records, first_offset, timestamp, duplicate == 1))
    return PublishReply(_DURABILITIES[durability], tuple(ranges))


def unpack_fetch_request(payload: Bytes) -> FetchRequest:
    """The request with its bounds brought down to what the product has: more than a limit means the limit."""
    flags = 0
    if len(payload) == FETCH_REQUEST.size + 1:
        flags = payload[FETCH_REQUEST.size]
    elif len(payload) != FETCH_REQUEST.size:
        size = FETCH_REQUEST.size
        raise ProtocolError(f"a fetch_block request has {size} or {size + 1} bytes, not {len(payload)}")
    if flags & ~UNCOMMITTED:
        raise ProtocolError(f"the flags are {flags:#04x}; only bit 0 (uncommitted) means something")
    topic_id, partition, offset, max_bytes, max_count, max_wait_ms = FETCH_REQUEST.unpack_from(payload)
    if offset < 0:
        raise ProtocolError(f"the offset is {offset}; ask the offsets operation where a partition begins and ends")
    if not max_bytes or not max_count:
        raise ProtocolError(f"a fetch of at most {max_bytes} bytes and {max_count} records asks for nothing")
    return FetchRequest(
        topic_id,
        partition,
        offset,
        max_bytes if max_bytes < MAX_FETCH_BYTES else MAX_FETCH_BYTES,
        max_count if max_count < MAX_READ_COUNT else MAX_READ_COUNT,
        max_wait_ms if max_wait_ms < MAX_WAIT_MS else MAX_WAIT_MS,
        bool(flags),
    )


def unpack_fetch_reply(payload: Bytes) -> FetchReply:
    """The fixed fields; the block is what stands behind them."""
    try:
        reply = FetchReply._make(FETCH_REPLY.unpack_from(payload))
    except struct.error:
        raise _too_short("a fetch_block reply", FETCH_REPLY, payload) from None
    if reply.next_offset < 0 or not 0 <= reply.earliest <= reply.latest:
        raise ProtocolError(f"a fetch_block reply makes no sense: {reply}")
    if (reply.records == 0) != (len(payload) == FETCH_REPLY.size):
        raise ProtocolError(f"a fetch_block reply of {reply.records} records has {len(payload)} bytes")
    return reply


def _too_short(what: str, layout: struct.Struct, payload: Bytes) -> ProtocolError:
    return ProtocolError(f"{what} has at least {layout.size} bytes, not {len(payload)}")
