"""What a sidecar log says: one struct per thing that can happen, as a MessagePack array whose first item tells which.

Sets of offsets are 64-bit roaring bitmaps in their portable form. To change the format: add fields with defaults at the
end of a struct, or a new struct with a new number; never change the meaning of one, and never use a number again (4 and
11 were used). `docs/internals/sidecar.md` lists them, and golden bytes hold them.
"""

from collections.abc import Iterator
from enum import IntEnum
from itertools import islice, zip_longest
from typing import Final, NamedTuple

import msgspec
from pyroaring import BitMap64

from goqueue.base.offset_sets import pack, within
from goqueue.model import limits
from goqueue.model.names import GroupNumber

MOST_BYTES: Final = 1 * limits.MIB
"""What a snapshot puts into one field: more is spread over several records of the same kind."""
MOST_MOVED: Final = 50_000
"""As many pairs, of up to 19 bytes each, are less than that."""


class Reason(IntEnum):
    """Why a message is done with, or died."""

    ACKED = 0
    EXPIRED = 1
    """Its time to live was over before it was delivered."""
    REJECTED = 2
    NACKED = 3
    """Given back more often than its topic allows."""
    LAPSED = 4
    """Not settled in time more often than its topic allows."""


class _Event(msgspec.Struct, frozen=True, array_like=True, tag_field="type"):
    """The base of all."""


# --- what happens to groups


class Fenced(_Event, frozen=True, array_like=True, tag=1):
    """The data log was opened and ended at `end`: what was said before of offsets from there on is void."""

    end: int
    leader_epoch: int


class Started(_Event, frozen=True, array_like=True, tag=2):
    """A group that was never here begins at `low`."""

    group: GroupNumber
    low: int


class Opened(_Event, frozen=True, array_like=True, tag=3):
    """The partition has a new owner: what earlier ones were delivered and did not settle is to be delivered again."""

    group: GroupNumber
    assignment_epoch: int


class Settled(_Event, frozen=True, array_like=True, tag=5):
    """What polls up to `to`, of one holder or of all, were delivered below an offset is done with."""

    group: GroupNumber
    below: int
    to: int
    holder: str = ""


class Returned(_Event, frozen=True, array_like=True, tag=6):
    """The replies of polls after `after`, up to `to`, did not arrive: as if they had not been made."""

    group: GroupNumber
    after: int
    to: int
    holder: str = ""


class Skipped(_Event, frozen=True, array_like=True, tag=7):
    """There is nothing to deliver at the offsets from `first` up to `end`: damaged, or cleaned away."""

    group: GroupNumber
    first: int
    end: int


class Reset(_Event, frozen=True, array_like=True, tag=8):
    """An operator said where the group goes on: everything below counts as settled, nothing from there on."""

    group: GroupNumber
    low: int


class Forgotten(_Event, frozen=True, array_like=True, tag=9):
    """The group was deleted."""

    group: GroupNumber


class Abandoned(_Event, frozen=True, array_like=True, tag=12):
    """A holder is gone: what it was delivered and did not settle is to be delivered again."""

    group: GroupNumber
    holder: str


# --- what happens to single messages


class Leased(_Event, frozen=True, array_like=True, tag=13):
    """A poll's reply took these offsets, for `span_ms`, which ends at `until`. Below `start` nothing is left."""

    group: GroupNumber
    assignment_epoch: int
    poll: int
    holder: str
    start: int
    until: int
    span_ms: int
    offsets: bytes
    keys: bytes = b""
    """In key mode: the hash of each one's key, four bytes, in the order of their offsets."""


class Done(_Event, frozen=True, array_like=True, tag=14):
    """These offsets are settled."""

    group: GroupNumber
    offsets: bytes
    reason: Reason


class Deferred(_Event, frozen=True, array_like=True, tag=15):
    """Delivery of these failed; they are not delivered again before `until`, which is `span_ms` from when this was
    written."""

    group: GroupNumber
    offsets: bytes
    until: int
    span_ms: int


class Lapsed(_Event, frozen=True, array_like=True, tag=16):
    """What one poll held until that time was not settled in time."""

    group: GroupNumber
    poll: int
    until: int


class Extended(_Event, frozen=True, array_like=True, tag=17):
    """These offsets of a poll are held until another time."""

    group: GroupNumber
    poll: int
    offsets: bytes
    until: int
    span_ms: int


class Doomed(_Event, frozen=True, array_like=True, tag=18):
    """These offsets are dead for the group and are to be written to the dead-letter topic, in their order."""

    group: GroupNumber
    offsets: bytes
    reason: Reason
    at: int
    detail: str = ""


class Buried(_Event, frozen=True, array_like=True, tag=19):
    """The dead letters numbered below `below` are in the dead-letter topic: their offsets are settled."""

    below: int


# --- what happens to delayed messages, for all groups


class Cancelled(_Event, frozen=True, array_like=True, tag=20):
    offsets: bytes


class Moved(_Event, frozen=True, array_like=True, tag=21):
    """They are delivered at another time."""

    offsets: bytes
    deliver_at: int


# --- in snapshots


class Resting(_Event, frozen=True, array_like=True, tag=10):
    """Groups that are settled up to an offset and have nothing under way."""

    lows: tuple[tuple[GroupNumber, int], ...]


class HeldLease(NamedTuple):
    poll: int
    holder: str
    until: int
    span_ms: int
    offsets: bytes


class HeldWait(NamedTuple):
    until: int
    span_ms: int
    offsets: bytes


class HeldTry(NamedTuple):
    """An offset that was delivered `deliveries` times before; `poll` is the last of them if it may still settle it."""

    offset: int
    deliveries: int
    poll: int


class HeldPledge(NamedTuple):
    """Done with if a transaction commits. The last delivery of those that are `counted` is among the tries."""

    transaction: int
    offsets: bytes
    counted: bytes


class Delivered(_Event, frozen=True, array_like=True, tag=22):
    """All there is to know about one group that is not resting."""

    group: GroupNumber
    low: int
    assignment_epoch: int
    settled: bytes
    """Above `low`; empty for none."""
    leases: tuple[HeldLease, ...]
    waits: tuple[HeldWait, ...]
    tries: tuple[HeldTry, ...]
    dead: bytes
    """On their way to the dead-letter topic."""
    keys: tuple[tuple[int, int], ...]
    """Offset and hash of the key of what is not settled, in key mode."""
    pledges: tuple[HeldPledge, ...] = ()


class HeldDeath(NamedTuple):
    group: GroupNumber
    offset: int
    reason: Reason
    deliveries: int
    at: int
    detail: str
    void: bool


class Mourned(_Event, frozen=True, array_like=True, tag=23):
    """Dead letters that are not written yet; the first has number `first`. If many, the next record goes on."""

    first: int
    deaths: tuple[HeldDeath, ...]


class Postponed(_Event, frozen=True, array_like=True, tag=24):
    """What was cancelled, and what was moved to which time. If that is much, the next record has more of it."""

    cancelled: bytes
    moved: tuple[tuple[int, int], ...]


class Released(_Event, frozen=True, array_like=True, tag=25):
    """Their holder gave these offsets back untried: as if they had not been delivered."""

    group: GroupNumber
    offsets: bytes


class Numbered(_Event, frozen=True, array_like=True, tag=26):
    """Polls were given numbers up to this one: no other poll may have them."""

    poll: int


class Pledged(_Event, frozen=True, array_like=True, tag=27):
    """The group is done with these if a transaction commits; until it ends nobody is delivered them."""

    group: GroupNumber
    transaction: int
    offsets: bytes


class Redeemed(_Event, frozen=True, array_like=True, tag=28):
    """A transaction has ended: what was pledged to it is settled, or is to be delivered again."""

    transaction: int
    commits: bool


Event = (
    Fenced | Started | Opened | Settled | Returned | Skipped | Reset | Forgotten | Abandoned
    | Leased | Done | Deferred | Lapsed | Extended | Doomed | Buried | Cancelled | Moved
    | Resting | Delivered | Mourned | Postponed | Released | Numbered | Pledged | Redeemed
)  # fmt: skip

_decoder: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event)
encode = msgspec.msgpack.Encoder().encode
decode = _decoder.decode


def postponed(cancelled: BitMap64, moved: dict[int, int]) -> Iterator[Postponed]:
    """In as many records as are needed for none to be too large for a snapshot."""
    if cancelled or moved:
        for offsets, pairs in zip_longest(_packed(cancelled), _pairs(moved)):
            yield Postponed(offsets or pack(BitMap64()), pairs or ())


def _packed(offsets: BitMap64) -> Iterator[bytes]:
    packed = pack(offsets)
    if len(packed) <= MOST_BYTES:
        yield packed
        return
    half = within(offsets, 0, offsets[len(offsets) // 2])
    yield from _packed(half)
    yield from _packed(offsets - half)


def _pairs(moved: dict[int, int]) -> Iterator[tuple[tuple[int, int], ...]]:
    """Offsets and times."""
    rest = iter(moved.items())
    while pairs := tuple(islice(rest, MOST_MOVED)):
        yield pairs
