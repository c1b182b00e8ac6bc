"""Settling single messages, and delayed ones."""

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from goqueue.model import limits
from goqueue.model.limits import MAX_HANDLE_CHARS
from goqueue.wire.shapes.fields import Duration, Incomplete, Offset, PartitionNumber, PriorityName, Reply, Request, Time

ReceiptHandle = Annotated[
    str,
    Meta(min_length=1, max_length=MAX_HANDLE_CHARS, description="As a poll answered it", examples=["orders:0:7:1:..."]),
]


class Ack(Request, frozen=True, kw_only=True):
    """One handle, or many."""

    receipt_handle: ReceiptHandle | UnsetType = UNSET
    receipt_handles: Annotated[list[ReceiptHandle], Meta(min_length=1, max_length=limits.MAX_HANDLES)] | UnsetType = (
        UNSET
    )
    consumer_id: Annotated[str, Meta(max_length=255)] | UnsetType = UNSET
    """Who asks, for the record; the handle says whose it is."""


class Nack(Ack, frozen=True, kw_only=True):
    delay: Duration | UnsetType = UNSET
    """Try again after so long; what the topic says if left out."""


class Reject(Ack, frozen=True, kw_only=True):
    reason: Annotated[str, Meta(max_length=limits.MAX_REJECT_CHARS)] = ""


class ExtendVisibility(Ack, frozen=True, kw_only=True):
    timeout: Duration
    """From now on."""


class Settled(Reply, frozen=True, kw_only=True, omit_defaults=True):
    """What became of one message; `error` and `code` instead if it was refused."""

    acknowledged: bool | UnsetType = UNSET
    requeued: bool | UnsetType = UNSET
    visible_at: str | UnsetType = UNSET
    rejected: bool | UnsetType = UNSET
    dlq_topic: str | UnsetType = UNSET
    extended: bool | UnsetType = UNSET
    released: bool | UnsetType = UNSET
    new_deadline: str | UnsetType = UNSET
    error: str | UnsetType = UNSET
    code: str | UnsetType = UNSET
    retriable: bool | UnsetType = UNSET
    results: "list[Settled] | UnsetType" = UNSET
    """For `receipt_handles`: one for each."""
    acks: int | UnsetType = UNSET
    """For a transaction's acks by offsets: how many messages those are, as its commit may say."""


class ListDelayed(Request, frozen=True, kw_only=True):
    limit: Annotated[int, Meta(ge=1, le=limits.MAX_READ_MESSAGES)] = 100
    skip: Annotated[int, Meta(ge=0, lt=limits.MAX_OFFSET)] = 0


class DelayedMessage(Reply, frozen=True, kw_only=True, omit_defaults=True):
    topic: str
    partition: int
    offset: int
    message_id: str
    deliver_at: str
    priority: PriorityName
    key: str | None
    state: str
    """pending, delivered, cancelled or expired."""


class DelayedList(Reply, frozen=True, kw_only=True, omit_defaults=True):
    messages: list[DelayedMessage]
    count: int
    """How many are pending in all."""
    incomplete: list[Incomplete] | UnsetType = UNSET
    """Partitions that are damaged; left out if there are none."""


class MoveDelayed(Request, frozen=True, kw_only=True):
    """One of the two."""

    delay: Duration | UnsetType = UNSET
    """From now on."""
    deliverAt: Time | Annotated[int, Meta(ge=0, le=limits.LAST_TIME_MS)] | UnsetType = UNSET  # noqa: N815


class DelayCancelled(Reply, frozen=True, kw_only=True):
    cancelled: bool


DelayedId = tuple[PartitionNumber, Offset]


class CancelDelayed(Request, frozen=True, kw_only=True):
    ids: Annotated[list[DelayedId], Meta(min_length=1, max_length=limits.MAX_CANCELLED)]
    """Partition and offset of each."""


class DelaysCancelled(Reply, frozen=True, kw_only=True, omit_defaults=True):
    cancelled: int
    failed: list[Annotated[list[int], Meta(min_length=2, max_length=2)]]
    """Those that were not pending: partition and offset of each."""
    incomplete: list[Incomplete] | UnsetType = UNSET
    """Partitions of those that failed which are damaged: there it may be because of that."""
