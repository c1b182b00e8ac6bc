"""What a partition's deliveries can be told to do."""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec
from pyroaring import BitMap64

from goqueue.model import limits
from goqueue.model.names import GroupNumber
from goqueue.model.topic import Backoff

Claims = Mapping[int, BitMap64]
"""What handles name: offsets, by the poll that was given them."""


class Retries(NamedTuple):
    """How a topic treats failed deliveries."""

    most: int
    backoff: Backoff
    dead_letters: bool
    """Whether what failed too often is written to the dead-letter topic; otherwise it is dropped."""


# --- groups


class Fence(msgspec.Struct, frozen=True):
    """The data log is open and ends at `end`; nothing was appended to it yet."""

    end: int
    leader_epoch: int


class Start(msgspec.Struct, frozen=True):
    """Begin at `low`, unless the group was here before."""

    group: GroupNumber
    low: int


class Open(msgspec.Struct, frozen=True):
    """A new owner is about to be delivered something."""

    group: GroupNumber
    assignment_epoch: int


class Settle(msgspec.Struct, frozen=True):
    """A commit: done with what polls up to `to` were delivered below an offset, all of them or those of one holder."""

    group: GroupNumber
    below: int
    to: int = limits.MAX_OFFSET
    holder: str = ""


class GiveBack(msgspec.Struct, frozen=True):
    """The replies of polls after `after`, up to `to`, did not arrive."""

    group: GroupNumber
    after: int
    to: int
    holder: str = ""


class Skip(msgspec.Struct, frozen=True):
    """There is nothing at these offsets, which are ready. A Conflict when they are not, or no longer."""

    group: GroupNumber
    first: int
    end: int


class ResetTo(msgspec.Struct, frozen=True):
    group: GroupNumber
    low: int


class Forget(msgspec.Struct, frozen=True):
    """The group was deleted."""

    group: GroupNumber


class Abandon(msgspec.Struct, frozen=True):
    """A member that shares partitions with others is gone."""

    group: GroupNumber
    holder: str


# --- single messages


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """Deliver these offsets. Refused with a Conflict when somebody was faster, or moved the group.

    `start` is where the partition begins.
    """

    group: GroupNumber
    poll: int
    holder: str
    start: int
    offsets: BitMap64
    span_ms: int
    assignment_epoch: int = 0
    keys: bytes = b""


class Ack(msgspec.Struct, frozen=True):
    """Replies with the claims that were refused."""

    group: GroupNumber
    claims: Claims


class Nack(msgspec.Struct, frozen=True):
    """Try again, after `delay_ms` or what the topic says. Replies with what becomes of them."""

    group: GroupNumber
    claims: Claims
    retries: Retries
    delay_ms: int | None = None


class Reject(msgspec.Struct, frozen=True):
    """Do not try again. Replies with the claims that were refused."""

    group: GroupNumber
    claims: Claims
    dead_letters: bool
    detail: str = ""


class Extend(msgspec.Struct, frozen=True):
    """Hold them for another `span_ms` from now. Replies with the claims that were refused."""

    group: GroupNumber
    claims: Claims
    span_ms: int


class Release(msgspec.Struct, frozen=True):
    """They were not tried: ready again, and not counted as delivered. Replies with the claims that were refused."""

    group: GroupNumber
    claims: Claims


class Lapse(msgspec.Struct, frozen=True):
    """The time of these leases is over: polls, and until when they were held."""

    group: GroupNumber
    leases: tuple[tuple[int, int], ...]
    retries: Retries


class Expire(msgspec.Struct, frozen=True):
    """These offsets, which are ready, are too old to be delivered."""

    group: GroupNumber
    offsets: BitMap64
    dead_letters: bool


class GiveUp(msgspec.Struct, frozen=True):
    """These offsets, which are ready, were delivered as often as they may be, and nobody wrote down that they are dead:
    their consumers died."""

    group: GroupNumber
    offsets: BitMap64
    dead_letters: bool


class Finish(msgspec.Struct, frozen=True):
    """Done with these offsets without a delivery. Those that are settled are passed over."""

    group: GroupNumber
    offsets: BitMap64


class Bury(msgspec.Struct, frozen=True):
    """The dead letters numbered below `below` are published, durably."""

    below: int


# --- transactions


class Pledge(msgspec.Struct, frozen=True):
    """Done with, if a transaction commits. Replies with the claims that were refused."""

    group: GroupNumber
    claims: Claims
    transaction: int


class PledgeBelow(msgspec.Struct, frozen=True):
    """The same for what a commit would settle; see `Settle`. Replies with how many messages that are."""

    group: GroupNumber
    below: int
    transaction: int
    to: int = limits.MAX_OFFSET
    holder: str = ""


class Redeem(msgspec.Struct, frozen=True):
    """A transaction has ended. Replies with how many messages each group is done with, or tries again.

    With `retries` they are tried again as if they had been given back: after a backoff, and not more often than that.
    """

    transaction: int
    commits: bool
    retries: Retries | None = None


class Hide(msgspec.Struct, frozen=True):
    """There are no messages at these offsets, for anybody: they were aborted, or are markers of transactions."""

    offsets: BitMap64


# --- delayed messages


class Cancel(msgspec.Struct, frozen=True):
    """Pending offsets are never to be delivered. Replies with those that were not pending."""

    offsets: BitMap64


class Move(msgspec.Struct, frozen=True):
    """Pending offsets are due at another time. Replies with those that were not pending."""

    offsets: BitMap64
    deliver_at: int


# --- replies


class Nacked(NamedTuple):
    refused: dict[int, BitMap64]
    until: dict[int, int]
    """By offset, when it is tried again."""
    dead: BitMap64
    """Those that failed too often."""
