"""The bodies of settle_block: what is to become of messages that were delivered, and what of that was refused.

Messages are named by ranges of offsets, not one by one, so a reply of a poll that is settled as a whole costs the same
whatever it holds. Unpacking takes bytes nobody vouches for and refuses with `ProtocolError`; nothing is made of a count
before it is known to be within its limit and within the payload. Tokens are not understood here.
`docs/internals/wire.md` describes them, and golden bytes hold them.
"""

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from goqueue.model.errors import ProtocolError
from goqueue.model.limits import (
    MAX_BACKOFF_MS,
    MAX_HANDLES,
    MAX_OFFSET,
    MAX_REJECT_CHARS,
    MAX_VISIBILITY_MS,
    MIN_VISIBILITY_MS,
)
from goqueue.wire.frames import Bytes

SETTLE_REQUEST: Final = struct.Struct(">BqHHq")
"""action, argument, length of the reason, count of rows, group number; then the reason, then the rows."""
CLAIM: Final = struct.Struct(">QIqQI")
"""topic id, partition, poll number, token, count of ranges; then the ranges."""
OFFSETS: Final = struct.Struct(">qq")
"""first offset, end."""
REFUSED: Final = struct.Struct(">I")
"""Of each row of the request, in order: count of ranges; then the ranges."""
WRITER: Final = struct.Struct(">qh")
"""Where a pledge would have its reason: producer id, producer epoch."""

NO_ARGUMENT: Final = -1
_UTF_8_BYTES: Final = 4
"""Of one character, at most."""

OffsetRange = tuple[int, int]
"""First offset, and where it ends: that one does not belong to it."""


class Action(IntEnum):
    ACK = 1
    NACK = 2
    REJECT = 3
    EXTEND = 4
    RELEASE = 5
    ACK_AGAIN = 6
    """An ack whose first answer was lost: what is settled is not refused."""
    PLEDGE = 7
    """An ack that counts if a transaction is committed."""
    PLEDGE_AGAIN = 8
    """A pledge whose first answer was lost: what the transaction has is not refused."""


PLEDGES: Final = (Action.PLEDGE, Action.PLEDGE_AGAIN)


_ACTIONS: Final = {int(action): action for action in Action}
_ARGUMENTS: Final = {
    Action.ACK: (NO_ARGUMENT, NO_ARGUMENT),
    Action.NACK: (NO_ARGUMENT, MAX_BACKOFF_MS),
    Action.REJECT: (NO_ARGUMENT, NO_ARGUMENT),
    Action.EXTEND: (MIN_VISIBILITY_MS, MAX_VISIBILITY_MS),
    Action.RELEASE: (NO_ARGUMENT, NO_ARGUMENT),
    Action.ACK_AGAIN: (NO_ARGUMENT, NO_ARGUMENT),
    Action.PLEDGE: (0, MAX_OFFSET),
    Action.PLEDGE_AGAIN: (0, MAX_OFFSET),
}
"""What may be said beside an action: from, to."""


class Claim(NamedTuple):
    """A row: messages of one partition that one poll was delivered. Ranges ascend and do not overlap."""

    topic_id: int
    partition: int
    poll: int
    token: int
    ranges: tuple[OffsetRange, ...]

    @property
    def messages(self) -> int:
        return sum([end - first for first, end in self.ranges])


class Writer(NamedTuple):
    """Who says that a transaction is its own."""

    producer_id: int
    producer_epoch: int


class SettleRequest(NamedTuple):
    """`argument`: after how many milliseconds to try again, or -1 for what the topic says; how long to hold them; the
    number of the transaction of a pledge, whose `writer` is named too.
    """

    action: Action
    group: int
    claims: Sequence[Claim]
    argument: int = NO_ARGUMENT
    reason: str = ""
    writer: Writer | None = None

    @property
    def largest_reply(self) -> int:
        """Bytes the reply may have: a range for every message that is refused."""
        return len(self.claims) * REFUSED.size + OFFSETS.size * sum([claim.messages for claim in self.claims])

    def pack(self) -> bytes:
        try:
            reason = self.reason.encode() if self.writer is None else WRITER.pack(*self.writer)
            parts = [SETTLE_REQUEST.pack(self.action, self.argument, len(reason), len(self.claims), self.group), reason]
            for topic_id, partition, poll, token, ranges in self.claims:
                parts.append(CLAIM.pack(topic_id, partition, poll, token, len(ranges)))
                parts += [OFFSETS.pack(first, end) for first, end in ranges]
        except (struct.error, UnicodeEncodeError) as error:
            raise ProtocolError(f"what is to be settled does not fit its fields: {error}") from None
        return b"".join(parts)


def unpack_settle_request(payload: Bytes) -> SettleRequest:
    """Nothing of it lies in the payload any more."""
    view = memoryview(payload)
    try:
        code, argument, length, count, group = SETTLE_REQUEST.unpack_from(view)
    except struct.error:
        raise ProtocolError(
            f"a settle_block request has at least {SETTLE_REQUEST.size} bytes, not {len(view)}"
        ) from None
    action = _ACTIONS.get(code)
    if action is None:
        known = ", ".join(f"{int(each)} ({each.name.lower()})" for each in Action)
        raise ProtocolError(f"the action is {code}; it is one of {known}")
    least, most = _ARGUMENTS[action]
    if not least <= argument <= most:
        raise ProtocolError(f"the argument of {action.name.lower()} is {argument}; it is from {least} to {most}")
    if not 0 <= group < MAX_OFFSET:
        raise ProtocolError(f"the group number is {group}; the reply of a poll has it")
    if not 1 <= count <= MAX_HANDLES:
        raise ProtocolError(f"{count} rows are to be settled; name from 1 to {MAX_HANDLES}")
    position = SETTLE_REQUEST.size + length
    said = view[SETTLE_REQUEST.size : position]
    writer = _unpack_writer(action, said, length) if action in PLEDGES else None
    reason = _unpack_reason(action, said, length) if length and writer is None else ""
    claims: list[Claim] = []
    left = MAX_HANDLES
    for _ in range(count):
        claim, position = _unpack_claim(view, position, left)
        left -= claim.messages
        claims.append(claim)
    if position != len(view):
        raise _not_its_length("request", view)
    return SettleRequest(action, group, claims, argument, reason, writer)


def _unpack_writer(action: Action, said: memoryview, length: int) -> Writer:
    if length != WRITER.size or len(said) != length:
        raise ProtocolError(f"{action.name.lower()} names its writer in {WRITER.size} bytes, not in {length}")
    writer = Writer._make(WRITER.unpack(said))
    if min(writer) < 0:
        raise ProtocolError(f"producer {writer.producer_id}, epoch {writer.producer_epoch}: none may be negative")
    return writer


def _unpack_reason(action: Action, reason: memoryview, length: int) -> str:
    if action is not Action.REJECT:
        raise ProtocolError(f"{action.name.lower()} has no reason; its length is 0, not {length}")
    if len(reason) != length:
        raise ProtocolError(f"the reason has {length} bytes, but there are {len(reason)}")
    try:
        text = str(reason, "utf-8") if length <= _UTF_8_BYTES * MAX_REJECT_CHARS else None
    except UnicodeDecodeError:
        raise ProtocolError("the reason is text in UTF-8") from None
    if text is None or len(text) > MAX_REJECT_CHARS:
        raise ProtocolError(f"the reason is too long; it has at most {MAX_REJECT_CHARS} characters")
    return text


def _unpack_claim(view: memoryview, position: int, left: int) -> tuple[Claim, int]:
    """The row at a position, and where it ends. It may name `left` messages."""
    try:
        topic_id, partition, poll, token, count = CLAIM.unpack_from(view, position)
    except struct.error:
        raise _not_its_length("request", view) from None
    if not 0 <= poll < MAX_OFFSET:
        raise ProtocolError(f"the poll number is {poll}; the reply of a poll has it")
    if not count:
        raise ProtocolError("a row without ranges asks for nothing")
    if count > left:
        raise _too_many()
    ranges, end = _unpack_ranges("request", view, position + CLAIM.size, count)
    claim = Claim(topic_id, partition, poll, token, ranges)
    if claim.messages > left:
        raise _too_many()
    return claim, end


def _unpack_ranges(what: str, view: memoryview, position: int, count: int) -> tuple[tuple[OffsetRange, ...], int]:
    """As many as there are said to be, and where they end. The count is bounded by what the payload can hold."""
    end = position + count * OFFSETS.size
    if end > len(view):
        raise _not_its_length(what, view)
    ranges: tuple[OffsetRange, ...] = tuple(OFFSETS.iter_unpack(view[position:end]))
    before = 0
    for first, following in ranges:
        if not before <= first < following:
            raise ProtocolError(
                f"a range of offsets from {first} up to {following}, behind one that ends at {before}: ranges ascend, "
                "do not overlap, and end behind their first offset"
            )
        before = following
    if before > MAX_OFFSET:
        raise ProtocolError(f"a range ends at {before}; no offset reaches {MAX_OFFSET}")
    return ranges, end


def pack_settle_reply(refused: Sequence[Sequence[OffsetRange]]) -> bytes:
    """The ranges refused of each row."""
    if not any(refused):
        return bytes(REFUSED.size * len(refused))
    parts: list[bytes] = []
    for ranges in refused:
        parts.append(REFUSED.pack(len(ranges)))
        parts += [OFFSETS.pack(first, end) for first, end in ranges]
    return b"".join(parts)


def unpack_settle_reply(payload: Bytes, rows: int) -> list[tuple[OffsetRange, ...]]:
    """The ranges refused of each of the rows of the request."""
    view = memoryview(payload)
    refused: list[tuple[OffsetRange, ...]] = []
    position = 0
    for _ in range(rows):
        try:
            (count,) = REFUSED.unpack_from(view, position)
        except struct.error:
            raise _not_its_length("reply", view) from None
        ranges, position = _unpack_ranges("reply", view, position + REFUSED.size, count)
        refused.append(ranges)
    if position != len(view):
        raise _not_its_length("reply", view)
    return refused


def _not_its_length(what: str, view: memoryview) -> ProtocolError:
    return ProtocolError(f"a settle_block {what} of {len(view)} bytes does not have the lengths it names")


def _too_many() -> ProtocolError:
    return ProtocolError(f"more than {MAX_HANDLES} messages are to be settled; send several requests")
