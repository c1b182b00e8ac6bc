"""The types fields have, and what every request and every reply is."""

from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from goqueue.model import limits
from goqueue.model.names import GROUP_PATTERN, TOPIC_PATTERN

UNLIMITED: Final = -1
"""As good as null for a retention."""

TopicName = Annotated[str, Meta(pattern=TOPIC_PATTERN, examples=["orders"])]
PartitionNumber = Annotated[int, Meta(ge=0, lt=limits.MAX_PARTITIONS_PER_TOPIC)]
PartitionCount = Annotated[int, Meta(ge=1, le=limits.MAX_PARTITIONS_PER_TOPIC)]
Offset = Annotated[int, Meta(ge=0, lt=limits.MAX_OFFSET)]
Time = Annotated[
    str,
    Meta(
        description="RFC 3339 with a zone, or Unix milliseconds",
        pattern=r"^(\d{1,14}|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+ -]\d\d:\d\d))$",
        examples=["2026-01-31T12:00:00Z"],
    ),
]
Duration = (
    Annotated[
        str,
        Meta(
            description='A number and a unit, like "250ms", "30s" or "1h30m"; without a unit it is seconds',
            pattern=r"^(\d{1,9}(\.\d{1,6})?|(\d{1,9}(ms|[dhms])){1,8})$",
            examples=["30s"],
        ),
    ]
    | Annotated[float, Meta(ge=0, le=1e9)]
)
LaneWeight = Annotated[int, Meta(ge=1, le=limits.MAX_LANE_WEIGHT)]
GroupName = Annotated[str, Meta(pattern=GROUP_PATTERN, examples=["billing"])]
PriorityName = Literal["critical", "high", "normal", "low", "background"]
DurabilityName = Literal["none", "written", "replicated", "durable"]
DURABILITY_NAMES: Final[tuple[DurabilityName, ...]] = ("none", "written", "replicated", "durable")
"""By the byte the wire carries."""
HealthStatus = Literal["ok", "draining", "failing"]
LANE_NAMES: Final[tuple[PriorityName, ...]] = ("critical", "high", "normal", "low", "background")
"""By the lane's number."""


class Request(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The base of every request."""


class Reply(Struct, frozen=True, kw_only=True):
    """The base of every reply."""


class Incomplete(Reply, frozen=True, kw_only=True, omit_defaults=True):
    """A partition that may have more than the list shows."""

    partition: int
    reason: str
    topic: str | UnsetType = UNSET
    """Where the list is about several topics."""


class Nothing(Request, frozen=True, kw_only=True):
    """A request without fields."""
