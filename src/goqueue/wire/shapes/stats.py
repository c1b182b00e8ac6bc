"""Numbers about deliveries: lanes, delayed messages, how deliveries ended. Counted since the broker started."""

from typing import Annotated

from msgspec import Meta

from goqueue.model.limits import MAX_STAT_ROWS
from goqueue.wire.shapes.fields import PriorityName, Reply, Request


class AskStats(Request, frozen=True, kw_only=True):
    """Of one topic, of one group, or of all there are."""

    topic: str | None = None
    group: str | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_STAT_ROWS)] = 100
    """How many rows there may be at most."""


class AskDelayStats(Request, frozen=True, kw_only=True):
    """Of one topic, or of all there are."""

    topic: str | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_STAT_ROWS)] = 100


class LaneNumbers(Reply, frozen=True, kw_only=True):
    """A lane has waited since a poll took from it and left something, or found something and took nothing."""

    ready: int
    in_flight: int
    served: int
    waited_seconds: float
    last_served: str | None


class PartitionLanes(Reply, frozen=True, kw_only=True):
    group: str
    topic: str
    partition: int
    lanes: dict[PriorityName, LaneNumbers]


class PriorityStats(Reply, frozen=True, kw_only=True):
    """`lanes` is the sum of `partitions`: of waits the longest, of times the last."""

    lanes: dict[PriorityName, LaneNumbers]
    partitions: list[PartitionLanes]
    left_out: int
    """Rows for which there was no room."""


class TopicDelays(Reply, frozen=True, kw_only=True):
    """Each of those scheduled is pending, delivered or cancelled."""

    pending: int
    scheduled: int
    delivered: int
    """Due by now: groups get them, or got them."""
    cancelled: int
    moved: int
    next_due: str | None
    """None is due before."""


class Lateness(Reply, frozen=True, kw_only=True):
    """Messages that came due together count once, with the first of them."""

    count: int
    sum_seconds: float
    buckets: dict[str, int]
    """How many were at most so many seconds late."""


class DelayStats(TopicDelays, frozen=True, kw_only=True):
    """Of all topics there are, and of each that has or had delayed messages."""

    lateness: Lateness
    topics: dict[str, TopicDelays]
    left_out: int


class DeliveryNumbers(Reply, frozen=True, kw_only=True):
    acked: int
    nacked: int
    rejected: int
    lapsed: int
    expired: int
    redelivered: int
    dead: dict[str, int]
    """By reason: expired, rejected, nacked or lapsed too often."""
    in_flight: int
    waiting: int
    """For their next try."""


class GroupDeliveries(DeliveryNumbers, frozen=True, kw_only=True):
    group: str
    topic: str


class ReliabilityStats(DeliveryNumbers, frozen=True, kw_only=True):
    """Of all groups there ever were, and of those that have counters of their own."""

    dead_letters: int
    """Written to dead-letter topics."""
    outbox: int
    """Dead letters that are not written yet."""
    groups: list[GroupDeliveries]
    left_out: int
