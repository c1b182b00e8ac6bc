"""The bodies of poll_block: fixed fields, two names, and rows of records as they lie in the log.

Unpacking takes bytes nobody vouches for and refuses with `ProtocolError`; such a request can be answered, and the
connection goes on. `docs/internals/wire.md` describes them, and golden bytes hold them.
"""

import struct
from typing import Final, NamedTuple

import msgspec

from goqueue.model.errors import ProtocolError
from goqueue.model.limits import MAX_BLOCK_BYTES, MAX_OFFSET, MAX_POLL_MESSAGES, MAX_VISIBILITY_MS, MAX_WAIT_MS
from goqueue.wire.frames import Bytes

POLL_REQUEST: Final = struct.Struct(">qqIIIIBB")
"""received, version, most bytes, most messages, longest wait and time to settle in milliseconds, lengths of two names;
then the names."""
POLL_REPLY: Final = struct.Struct(">qqqqIH")
"""number, version, generation, group number, length of the news, count of rows; then the news, then the rows."""
ROW: Final = struct.Struct(">QIQqqIII")
"""topic id, partition, token, assignment epoch, next offset, deliveries, count of records, length; then the records."""

UNKNOWN: Final = -1
"""For `received` or `version`: the client does not keep track."""
MAX_POLL_BYTES: Final = MAX_BLOCK_BYTES // 2
"""Bytes of records in one reply, unless a single one is larger: the news of the largest group still fits the frame."""


class PollRequest(msgspec.Struct, frozen=True, gc=False):
    """`received` is the number of the last poll whose reply arrived, `version` that of the last news.

    `visibility_ms` is how long the messages are held for the member; 0: as it said when it joined, or its topic says.
    """

    group: str
    member_id: str
    max_bytes: int
    max_count: int
    max_wait_ms: int = 0
    received: int = UNKNOWN
    version: int = UNKNOWN
    visibility_ms: int = 0

    def pack(self) -> bytes:
        try:
            group, member_id = self.group.encode(), self.member_id.encode()
            head = POLL_REQUEST.pack(
                self.received, self.version, self.max_bytes, self.max_count, self.max_wait_ms, self.visibility_ms,
                len(group), len(member_id),
            )  # fmt: skip
        except (struct.error, UnicodeEncodeError) as error:
            raise ProtocolError(f"{self} does not fit its fields: {error}") from None
        return head + group + member_id


class PollReply(NamedTuple):
    """`news` is JSON about the member, if its version is not the one the client named; else empty."""

    number: int
    version: int
    generation: int
    group: int
    news: bytes
    rows: int

    def pack(self) -> bytes:
        """The rows come behind it."""
        number, version, generation, group, news, rows = self
        try:
            return POLL_REPLY.pack(number, version, generation, group, len(news), rows) + news
        except struct.error as error:
            raise ProtocolError(f"a poll_block reply of {rows} rows does not fit its fields: {error}") from None


class Row(NamedTuple):
    """Records of one partition. `deliveries` counts how often they were delivered, this time included.

    `token` shows, when they are settled one by one, that they were delivered in this reply.
    """

    topic_id: int
    partition: int
    token: int
    epoch: int
    next_offset: int
    deliveries: int
    records: int
    block: Bytes

    def pack_head(self) -> bytes:
        """The records come behind it."""
        try:
            return ROW.pack(*self[:7], len(self.block))
        except struct.error as error:
            raise ProtocolError(f"a row of {self.records} records does not fit its fields: {error}") from None


def unpack_poll_request(payload: Bytes) -> PollRequest:
    """With its bounds brought down to what the product has: more than a limit means the limit."""
    try:
        (
            received, version, max_bytes, max_count, max_wait_ms, visibility_ms, group_length, member_length,
        ) = POLL_REQUEST.unpack_from(payload)  # fmt: skip
    except struct.error:
        raise ProtocolError(
            f"a poll_block request has at least {POLL_REQUEST.size} bytes, not {len(payload)}"
        ) from None
    names = bytes(payload[POLL_REQUEST.size :])
    if len(names) != group_length + member_length:
        raise ProtocolError(f"the names have {group_length} and {member_length} bytes, but there are {len(names)}")
    if not max_bytes or not max_count:
        raise ProtocolError(f"a poll of at most {max_bytes} bytes and {max_count} messages asks for nothing")
    if not UNKNOWN <= received < MAX_OFFSET or version < UNKNOWN:
        raise ProtocolError(f"received is {received}, version {version}: a number that was told, or {UNKNOWN}")
    try:
        group, member_id = names[:group_length].decode(), names[group_length:].decode()
    except UnicodeDecodeError:
        raise ProtocolError("the names of a group and a member are text in UTF-8") from None
    return PollRequest(
        group,
        member_id,
        min(max_bytes, MAX_POLL_BYTES),
        min(max_count, MAX_POLL_MESSAGES),
        min(max_wait_ms, MAX_WAIT_MS),
        received,
        version,
        min(visibility_ms, MAX_VISIBILITY_MS),
    )


def unpack_poll_reply(payload: Bytes) -> tuple[PollReply, list[Row]]:
    """The blocks lie in the payload."""
    view = memoryview(payload)
    rows: list[Row] = []
    try:
        number, version, generation, group, length, count = POLL_REPLY.unpack_from(view)
        position = POLL_REPLY.size + length
        news = bytes(view[POLL_REPLY.size : position])
        for _ in range(count):
            *head, size = ROW.unpack_from(view, position)
            position += ROW.size
            rows.append(Row._make((*head, view[position : position + size])))
            position += size
    except struct.error:
        position = -1
    if position != len(view):
        raise ProtocolError(f"a poll_block reply of {len(view)} bytes does not have the lengths it names")
    if min(number, version, generation, group) < 0:
        raise ProtocolError(
            f"a poll_block reply says number {number}, version {version}, generation {generation}, group {group}"
        )
    for row in rows:
        _check(row)
    return PollReply(number, version, generation, group, news, count), rows


def _check(row: Row) -> None:
    if row.epoch < 0 or row.next_offset < 1 or not row.deliveries or not row.records or not len(row.block):
        raise ProtocolError(
            f"a row of {row.records} records in {len(row.block)} bytes, delivered {row.deliveries} times at assignment "
            f"epoch {row.epoch}, to go on at {row.next_offset}, makes no sense"
        )
