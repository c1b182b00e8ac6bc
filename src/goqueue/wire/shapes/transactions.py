"""Transactions: beginning, taking part, committing, aborting, and looking at them."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType, field

from goqueue.model import limits
from goqueue.model.names import TRANSACTION_NAME_PATTERN
from goqueue.wire.shapes.delivery import ReceiptHandle
from goqueue.wire.shapes.fields import Duration, GroupName, Offset, PartitionNumber, Reply, Request, TopicName
from goqueue.wire.shapes.groups import MemberId, PartitionKey, PollNumber
from goqueue.wire.shapes.messages import Message, ProducerEpoch, ProducerId, Sequence, TransactionalId, TransactionId

TransactionName = Annotated[str, Meta(pattern=TRANSACTION_NAME_PATTERN, examples=["nightly-load"])]
StateName = Literal["ongoing", "committing", "aborting", "committed", "aborted"]
Count = Annotated[int, Meta(ge=0, lt=limits.MAX_OFFSET)]


class Writer(Request, frozen=True, kw_only=True):
    """Whose transaction it is: the producer's open one, unless `transaction_id` names another."""

    producer_id: ProducerId
    epoch: ProducerEpoch = 0
    transactional_id: TransactionalId | None = None
    transaction_id: TransactionId | None = None


class BeginTransaction(Request, frozen=True, kw_only=True):
    producer_id: ProducerId
    epoch: ProducerEpoch = 0
    transactional_id: TransactionalId | None = None
    name: TransactionName | None = None
    """For transactions that are committed together, by a token of that name."""
    timeout: Duration | None = None
    """It is aborted when it is open for longer; what its producer was initialised with if left out, or 60 seconds."""


class TransactionBegun(Reply, frozen=True, kw_only=True):
    transaction_id: str
    expires_at: str


class TransactionPublish(Message, frozen=True, kw_only=True):
    """One message in a transaction. With a `sequence` it names its partition, and is recognised if it comes again."""

    topic: TopicName
    producer_id: ProducerId
    epoch: ProducerEpoch = 0
    transactional_id: TransactionalId | None = None
    transaction_id: TransactionId | None = None
    sequence: Sequence | None = None


class AddPartition(Writer, frozen=True, kw_only=True):
    topic: TopicName
    partition: PartitionNumber


class PartitionAdded(Reply, frozen=True, kw_only=True):
    transaction_id: str
    topic: str
    partition: int


class TransactionAck(Writer, frozen=True, kw_only=True):
    """Acks that count if the transaction is committed: by handles, or as a commit of a group's offsets."""

    receipt_handle: ReceiptHandle | UnsetType = UNSET
    receipt_handles: Annotated[list[ReceiptHandle], Meta(min_length=1, max_length=limits.MAX_HANDLES)] | UnsetType = (
        UNSET
    )
    group: GroupName | UnsetType = UNSET
    member_id: MemberId | UnsetType = UNSET
    received: PollNumber | UnsetType = UNSET
    offsets: dict[TopicName, dict[PartitionKey, Offset]] | UnsetType = UNSET


class CommitTransaction(Writer, frozen=True, kw_only=True):
    messages: Count | None = None
    """How many were published in it: nothing is committed when there are not so many."""
    acks: Count | None = None


class TransactionCommitted(Reply, frozen=True, kw_only=True):
    transaction_id: str
    committed: bool
    duplicate: bool
    """It was committed before."""


class AbortTransaction(Request, frozen=True, kw_only=True):
    """By its writer; by `transaction_id` alone, for operators; or by `name`, all that are open under it."""

    producer_id: ProducerId | None = None
    epoch: ProducerEpoch = 0
    transactional_id: TransactionalId | None = None
    transaction_id: TransactionId | None = None
    name: TransactionName | None = None


class TransactionsAborted(Reply, frozen=True, kw_only=True):
    aborted: list[str]
    """Those that were open."""


class CommitToken(Request, frozen=True, kw_only=True):
    """Numbers of one name only grow."""

    name: TransactionName
    number: Count


class CommitMany(Request, frozen=True, kw_only=True):
    token: CommitToken
    transactions: Annotated[list[TransactionId], Meta(max_length=limits.MAX_COMMITTED_TOGETHER)] = field(
        default_factory=list
    )
    """None of them: the number is committed for a batch that has nothing."""
    messages: dict[TransactionId, Count] | None = None
    """By transaction, how many were published in it: none is committed when some were lost."""
    acks: dict[TransactionId, Count] | None = None
    """The same of acks."""


class ManyCommitted(Reply, frozen=True, kw_only=True):
    committed: bool
    duplicate: bool
    """That number was committed before: nothing was done, and what was listed and open is dropped."""
    transactions: list[str]
    aborted: list[str]


class ListTransactions(Request, frozen=True, kw_only=True):
    name: TransactionName | None = None
    state: StateName | None = None
    limit: Annotated[int, Meta(ge=1, le=limits.MAX_READ_MESSAGES)] = 100


class TransactionPart(Reply, frozen=True, kw_only=True):
    topic: str
    partition: int
    messages: int
    acks: int


class ShownTransaction(Reply, frozen=True, kw_only=True, omit_defaults=True):
    transaction_id: str
    state: StateName
    producer_id: int
    epoch: int
    began_at: str
    transactional_id: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    expires_at: str | UnsetType = UNSET
    """While it is ongoing."""
    ended_at: str | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    """Why it was aborted."""
    producer_silent: bool | UnsetType = UNSET
    """Its producer was not heard of for long. That alone aborts nothing."""
    partitions: list[TransactionPart] | UnsetType = UNSET
    """What it has and where, while it is ongoing; lists leave it out."""


class TransactionList(Reply, frozen=True, kw_only=True):
    transactions: list[ShownTransaction]
    """Ongoing ones first, the oldest first; then those that ended, the last ones first."""
    total: int


class TransactionStats(Reply, frozen=True, kw_only=True):
    ongoing: int
    ending: int
    """Decided about; some partitions may not have it durably yet."""
    oldest_seconds: float
    """How long the oldest of the ongoing ones is open."""
    transactional_ids: int
    begun: int
    """Since the start, as all that follow."""
    committed: int
    aborted: dict[str, int]
    """By reason."""


class TokenReply(Reply, frozen=True, kw_only=True):
    name: str
    number: int | None
    """The last that was committed; null if none ever was."""
