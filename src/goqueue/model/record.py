"""A message as Python sees it: light, frozen, no bytes of layout in it.

The byte layout is `codec.layout`'s business. Absent and empty differ: `None` is absent. Times are Unix
milliseconds. In a record that no broker has stamped yet, a negative `deliver_at` or `expires_at` means
"that many milliseconds from now" (`expires_at`: after delivery is due); stamping resolves it, by what the clock
shows then.
"""

from enum import IntEnum

import msgspec


class Lane(IntEnum):
    """A record's priority; part of the record for good, also across retries and redrive."""

    CRITICAL = 0
    HIGH = 1
    NORMAL = 2
    LOW = 3
    BACKGROUND = 4


class Producer(msgspec.Struct, frozen=True, gc=False):
    """Who published, and where in its own count: `sequence` is that of one record."""

    producer_id: int
    producer_epoch: int
    sequence: int


class Extension(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The optional fields of a record; the broker writes them in place, never changing a length."""

    deliver_at: int | None = None
    expires_at: int | None = None
    event_time: int | None = None
    producer: Producer | None = None
    transaction: int | None = None
    blob: bytes | None = None


class Record(msgspec.Struct, frozen=True, gc=False):
    """One message. `offset` and `timestamp` are the broker's; 0 until it stamps them."""

    offset: int = 0
    timestamp: int = 0
    key: bytes | None = None
    value: bytes | None = None
    priority: int = Lane.NORMAL
    headers: tuple[tuple[str, bytes], ...] = ()
    extension: Extension | None = None
    control: bool = False
    commit: bool = False
