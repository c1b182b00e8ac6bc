"""What a sidecar log says: one struct per thing that can happen, as a MessagePack array whose first item tells which.

To change the format: add fields with defaults at the end of a struct, or a new struct with a new number; never change
the meaning of one. `docs/internals/sidecar.md` lists them, and golden bytes hold them.
"""

from typing import NamedTuple

import msgspec

from goqueue.model.names import GroupNumber


class Range(NamedTuple):
    """Offsets `first` up to `end` (not included). `deliveries` says how often they were delivered."""

    first: int
    end: int
    deliveries: int

    @property
    def size(self) -> int:
        return self.end - self.first


class _Event(msgspec.Struct, frozen=True, array_like=True, tag_field="type"):
    """The base of all."""


# --- what happens


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


class Leased(_Event, frozen=True, array_like=True, tag=4):
    """A poll's reply took `ranges`. Below `start` there is nothing left to deliver. A deadline of 0: none."""

    group: GroupNumber
    assignment_epoch: int
    poll: int
    deadline: int
    start: int
    ranges: tuple[Range, ...]


class Settled(_Event, frozen=True, array_like=True, tag=5):
    """What polls up to `to` were delivered below an offset is done with."""

    group: GroupNumber
    below: int
    to: int


class Returned(_Event, frozen=True, array_like=True, tag=6):
    """The replies of polls after `after`, up to `to`, did not arrive: as if they had not been made."""

    group: GroupNumber
    after: int
    to: int


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


# --- in snapshots


class Resting(_Event, frozen=True, array_like=True, tag=10):
    """Groups that are settled up to an offset and have nothing under way."""

    lows: tuple[tuple[GroupNumber, int], ...]


class HeldLease(NamedTuple):
    """What one poll, or several that were long ago, was given and has not settled."""

    poll: int
    deadline: int
    ranges: tuple[Range, ...]


class Delivered(_Event, frozen=True, array_like=True, tag=11):
    """All there is to know about one group that is not resting."""

    group: GroupNumber
    low: int
    cursor: int
    assignment_epoch: int
    settled: bytes
    """A serialised 64-bit roaring bitmap of offsets above `low`; empty for none."""
    leases: tuple[HeldLease, ...]
    ready_again: tuple[Range, ...]
    fenced_poll: int
    """Polls up to this one were before the last fence."""


Event = Fenced | Started | Opened | Leased | Settled | Returned | Skipped | Reset | Forgotten | Resting | Delivered

_decoder: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event)
encode = msgspec.msgpack.Encoder().encode
decode = _decoder.decode
