"""Publishing and reading messages, and the ids of producers."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from goqueue.model import limits
from goqueue.model.names import INCARNATION_PATTERN, TRANSACTION_NAME_PATTERN, TRANSACTION_PATTERN
from goqueue.wire.shapes.fields import (
    DurabilityName,
    Duration,
    Incomplete,
    Offset,
    PartitionNumber,
    PriorityName,
    Reply,
    Request,
    Time,
)


class Message(Request, frozen=True, kw_only=True):
    """One message. Values, keys and header values are text, or base64 if `encoding` says so."""

    value: str | None = None
    """Left out, or null, for a tombstone only."""
    tombstone: bool = False
    """It has no value: where its topic is compacted it deletes its key."""
    key: str | None = None
    partition: PartitionNumber | None = None
    priority: Literal["critical", "high", "normal", "low", "background", 0, 1, 2, 3, 4] = "normal"
    headers: dict[str, str] | list[tuple[str, str]] | None = None
    event_time: Time | Annotated[int, Meta(ge=0, le=limits.LAST_TIME_MS)] | None = None
    encoding: Literal["utf-8", "base64"] = "utf-8"
    delay: Duration | None = None
    """Deliver it after so long."""
    deliverAt: Time | Annotated[int, Meta(ge=0, le=limits.LAST_TIME_MS)] | None = None  # noqa: N815
    """Deliver it at this time; at once if that has passed."""
    ttl: Duration | None = None
    """Do not deliver it later than so long after it could be delivered."""


AcksName = Literal["none", "leader", "all"]
ProducerId = Annotated[int, Meta(ge=1, lt=limits.MAX_OFFSET)]
ProducerEpoch = Annotated[int, Meta(ge=0, lt=2**15)]
Sequence = Annotated[int, Meta(ge=0, lt=2**31)]
TransactionId = Annotated[str, Meta(pattern=TRANSACTION_PATTERN, examples=["txn-17"])]
TransactionalId = Annotated[str, Meta(pattern=TRANSACTION_NAME_PATTERN, examples=["billing-1"])]


class Publish(Message, frozen=True, kw_only=True):
    """One message, and how to publish it."""

    acks: AcksName = "leader"
    producer_id: ProducerId | None = None
    epoch: ProducerEpoch | None = None
    sequence: Sequence | None = None
    transaction_id: TransactionId | None = None
    """Publish in this transaction of the producer's."""


class PublishBatch(Request, frozen=True, kw_only=True):
    """With a producer id: one partition, named by every message; `sequence` is that of the first."""

    messages: Annotated[list[Message], Meta(min_length=1, max_length=limits.MAX_MESSAGES_PER_REQUEST)]
    acks: AcksName = "leader"
    producer_id: ProducerId | None = None
    epoch: ProducerEpoch | None = None
    sequence: Sequence | None = None
    transaction_id: TransactionId | None = None
    """Publish in this transaction of the producer's; then `sequence` may be left out, and any partitions named."""


class PublishResult(Reply, frozen=True, kw_only=True, omit_defaults=True):
    """Where a message went; `error` and `code` instead if it was refused."""

    partition: int | UnsetType = UNSET
    offset: int | UnsetType = UNSET
    message_id: str | UnsetType = UNSET
    timestamp: str | UnsetType = UNSET
    priority: PriorityName | UnsetType = UNSET
    durability: DurabilityName | UnsetType = UNSET
    duplicate: bool | UnsetType = UNSET
    delayed: bool | UnsetType = UNSET
    deliverAt: str | UnsetType = UNSET  # noqa: N815
    error: str | UnsetType = UNSET
    code: str | UnsetType = UNSET
    retriable: bool | UnsetType = UNSET


class PublishResults(Reply, frozen=True, kw_only=True):
    results: list[PublishResult]


class ReadPartition(Request, frozen=True, kw_only=True):
    """From an offset or a time, up to a time; from the earliest message if nothing is said."""

    offset: Offset | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=limits.MAX_READ_MESSAGES)] = 100
    max_bytes: Annotated[int, Meta(ge=1, le=limits.MAX_JSON_READ_BYTES)] = limits.MAX_JSON_READ_BYTES
    from_time: Time | UnsetType = UNSET
    to_time: Time | UnsetType = UNSET
    isolation: Literal["read_committed", "read_uncommitted"] = "read_committed"
    """read_uncommitted: also messages of open transactions, and of aborted ones."""
    order: Literal["offset", "priority"] = "offset"
    """priority: the messages of this page by lane, the most urgent first."""
    include: Literal["delayed"] | UnsetType = UNSET
    """delayed: also messages that are not due yet."""


class ReadMessage(Reply, frozen=True, kw_only=True, omit_defaults=True):
    offset: int
    partition: int
    timestamp: str
    key: str | None
    value: str | None
    headers: dict[str, str] | list[tuple[str, str]]
    priority: PriorityName
    message_id: str
    event_time: str | UnsetType = UNSET
    deliver_at: str | UnsetType = UNSET
    """When it is, or was, to be delivered, if it was delayed."""
    encoding: Literal["base64"] | UnsetType = UNSET
    """Says how key, value and header values are encoded when they are not all text."""


class Messages(Reply, frozen=True, kw_only=True, omit_defaults=True):
    messages: list[ReadMessage]
    next_offset: int
    """Where to read on."""
    incomplete: list[Incomplete] | UnsetType = UNSET
    """Where it ends because what comes next is damaged, or delayed messages are left out, because nobody knows which
    were cancelled."""


class TopicMessages(Reply, frozen=True, kw_only=True, omit_defaults=True):
    messages: list[ReadMessage]
    next_offsets: dict[str, int]
    next_offset: int | UnsetType = UNSET
    """For a topic with one partition."""
    incomplete: list[Incomplete] | UnsetType = UNSET


class FindOffsets(Request, frozen=True, kw_only=True):
    timestamp: Time | UnsetType = UNSET
    """The first offset at or after this time; the end of each partition if left out."""


class Offsets(Reply, frozen=True, kw_only=True):
    offsets: dict[str, int]


class InitProducer(Request, frozen=True, kw_only=True):
    """Asks for a producer id: a new one, or that of the transactional id, in a new epoch.

    Whoever had the transactional id before is fenced off, and what it left open is aborted. With `incarnation`, and
    with `producer_id` and `epoch` from the second time on, a request that is sent again is answered as the first was.
    """

    transactional_id: TransactionalId | UnsetType = UNSET
    transaction_timeout: Duration | UnsetType = UNSET
    """How long its transactions may be open, unless they say so themselves; 60 seconds if left out."""
    incarnation: Annotated[str, Meta(pattern=INCARNATION_PATTERN)] | UnsetType = UNSET
    """This life of the program: a name that it makes up when it starts, like a UUID, and keeps until it ends."""
    producer_id: ProducerId | UnsetType = UNSET
    """With `epoch`: as whom this program wrote until now. It is refused when somebody else has taken over since."""
    epoch: ProducerEpoch | UnsetType = UNSET


class ProducerReply(Reply, frozen=True, kw_only=True):
    producer_id: int
    epoch: int


class ProducerHeartbeat(Request, frozen=True, kw_only=True):
    epoch: ProducerEpoch
