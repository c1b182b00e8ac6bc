"""What members of a group agree on, and where a group can begin."""

from enum import StrEnum
from typing import NamedTuple


class Assignor(StrEnum):
    """How partitions are dealt to the members of a group."""

    STICKY = "sticky"
    RANGE = "range"
    ROUND_ROBIN = "round-robin"


class Mode(StrEnum):
    """How members share a topic.

    Each partition is with one member at a time; or every member is delivered from every partition; or the same, but a
    key is with one member at a time, in order.
    """

    PARTITION = "partition"
    SHARED = "shared"
    KEY = "key"


class GroupState(StrEnum):
    """Of a whole group."""

    EMPTY = "empty"
    STABLE = "stable"
    REBALANCING = "rebalancing"


class Place(StrEnum):
    """Where a group begins, or goes on after a reset."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSET = "offset"
    TIMESTAMP = "timestamp"
    DURATION = "duration"


class Position(NamedTuple):
    """A place. `value` is an offset, Unix milliseconds, or how many milliseconds ago."""

    place: Place
    value: int = 0
