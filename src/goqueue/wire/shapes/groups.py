"""Groups, their members and their offsets."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType, field

from goqueue.model import limits
from goqueue.model.groups import Assignor, GroupState, Mode, Place
from goqueue.model.names import CLIENT_PATTERN
from goqueue.wire.shapes.fields import Duration, Incomplete, Offset, PartitionNumber, Reply, Request, TopicName
from goqueue.wire.shapes.messages import ReadMessage

MemberId = Annotated[str, Meta(min_length=1, max_length=255)]
Start = (
    Annotated[
        str,
        Meta(
            description="earliest, latest, or a time: RFC 3339 with a zone, or Unix milliseconds as text",
            pattern=r"^(earliest|latest|\d{1,14}|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+ -]\d\d:\d\d))$",
            examples=["latest"],
        ),
    ]
    | Offset
)
"""A number is an offset."""


class JoinGroup(Request, frozen=True, kw_only=True):
    """Without an assignor: the one the group has, or sticky. `start` matters where the group has never been."""

    client_id: Annotated[str, Meta(pattern=CLIENT_PATTERN, examples=["worker"])]
    topics: Annotated[list[TopicName], Meta(min_length=1, max_length=limits.MAX_SUBSCRIBED_TOPICS)]
    session_timeout: Duration | UnsetType = UNSET
    rebalance_timeout: Duration = "30s"
    member_id: MemberId | None = None
    instance_id: Annotated[str, Meta(pattern=CLIENT_PATTERN)] | None = None
    mode: Mode | None = None
    assignor: Assignor | None = None
    start: Start = "earliest"
    auto_commit: bool = False
    auto_commit_interval: Duration = "5s"
    visibility: Duration | None = None
    """How long it may take for a message; what the topic says if left out."""
    max_unacked: Annotated[int, Meta(ge=1, le=limits.MAX_UNACKED)] = limits.DEFAULT_UNACKED
    """How many messages it may hold."""


class MemberReply(Reply, frozen=True, kw_only=True):
    """What a member has, and what it is to give up."""

    member_id: str
    generation: int
    state: GroupState
    leader: str
    rebalance_required: bool
    """Whether partitions are on their way from one member to another."""
    assigned_partitions: list[str]
    revoke: list[str]


class DamagedRange(Reply, frozen=True, kw_only=True):
    """Messages that are damaged on the broker's disk: the group goes on without them."""

    topic: str
    partition: int
    first: int
    next_offset: int
    """Where it goes on."""
    reason: str


class MemberNews(MemberReply, frozen=True, kw_only=True):
    """The same in a poll_block, with the ids of the topics the member wants."""

    topics: dict[str, str]
    damage: list[DamagedRange] | UnsetType = UNSET
    """What the group passed over, and no member was told of yet."""
    incomplete: list[Incomplete] | UnsetType = UNSET
    """Partitions of the member that are closed to groups, because what groups did there is damaged."""


class Heartbeat(Request, frozen=True, kw_only=True):
    """Of the partitions it was told to give up, `revoked` names those it is done with, and `finishing` the others."""

    member_id: MemberId
    generation: Annotated[int, Meta(ge=0)] | None = None
    revoked: Annotated[list[str], Meta(max_length=limits.MAX_PARTITIONS)] = field(default_factory=list)
    finishing: Annotated[list[str], Meta(max_length=limits.MAX_PARTITIONS)] = field(default_factory=list)


PollNumber = Annotated[int, Meta(ge=0, lt=limits.MAX_OFFSET)]
"""The `poll` of a reply."""


class LeaveGroup(Request, frozen=True, kw_only=True):
    member_id: MemberId


class Left(Reply, frozen=True, kw_only=True):
    left: bool


class Poll(Request, frozen=True, kw_only=True):
    """`received`: the `poll` of the last reply that arrived. Later replies are taken to be lost and come again."""

    member_id: MemberId
    max_messages: Annotated[int, Meta(ge=1, le=limits.MAX_POLL_MESSAGES)] = 100
    max_bytes: Annotated[int, Meta(ge=1, le=limits.MAX_JSON_READ_BYTES)] = limits.MAX_JSON_READ_BYTES
    timeout: Duration = "30s"
    received: PollNumber | None = None
    visibility: Duration | None = None
    """How long these messages are the member's alone."""


class PolledMessage(ReadMessage, frozen=True, kw_only=True, omit_defaults=True):
    topic: str
    delivery_count: int
    """How often it was delivered to this group, this time included."""
    receipt_handle: str
    """Names this delivery, to ack, nack, reject, extend or release it."""


class Polled(Reply, frozen=True, kw_only=True):
    group_id: str
    member_id: str
    poll: int
    messages: list[PolledMessage]
    generation: int
    state: GroupState
    rebalance_required: bool
    assigned_partitions: list[str]
    revoke: list[str]
    damage: list[DamagedRange] | UnsetType = UNSET
    """What the group passed over, and no member was told of yet."""
    incomplete: list[Incomplete] | UnsetType = UNSET
    """Partitions of the member that are closed to groups, because what groups did there is damaged."""


PartitionKey = Annotated[str, Meta(pattern=r"^(0|[1-9]\d{0,3})$")]


class Commit(Request, frozen=True, kw_only=True):
    """By topic and partition: everything delivered below this offset is settled, up to the poll in `received`."""

    member_id: MemberId
    generation: Annotated[int, Meta(ge=0)] | None = None
    received: PollNumber | None = None
    offsets: dict[TopicName, dict[PartitionKey, Offset]]


class Committed(Reply, frozen=True, kw_only=True):
    committed: bool


class AskOffsets(Request, frozen=True, kw_only=True):
    topic: str | None = None


class GroupOffsets(Reply, frozen=True, kw_only=True, omit_defaults=True):
    offsets: dict[str, dict[str, int]]
    incomplete: list[Incomplete] | UnsetType = UNSET
    """Partitions that are damaged: what the group settled there is not known."""


class ResetOffsets(Request, frozen=True, kw_only=True):
    """`value` is an offset, a time, or a duration, as `to` says. An offset outside a partition means its nearer end."""

    topic: TopicName
    to: Place
    value: str | Annotated[int, Meta(ge=0, lt=limits.MAX_OFFSET)] | None = None
    partition: PartitionNumber | None = None
    dry_run: bool = False


class PartitionLag(Reply, frozen=True, kw_only=True):
    """Below `committed` everything is settled; `lag` messages are not, the oldest of them `lag_seconds` old."""

    committed: int
    end: int
    lag: int
    lag_seconds: float
    delayed: int
    in_flight: int


class GroupLag(Reply, frozen=True, kw_only=True, omit_defaults=True):
    group_id: str
    total_lag: int
    topics: dict[str, dict[str, PartitionLag]]
    incomplete: list[Incomplete] | UnsetType = UNSET
    """Partitions that are damaged, and not in the total."""


class GroupList(Reply, frozen=True, kw_only=True):
    groups: list[str]


class MemberDescription(Reply, frozen=True, kw_only=True):
    member_id: str
    client_id: str
    instance_id: str | None
    topics: list[str]
    assigned_partitions: list[str]
    revoke: list[str]


class GroupDescription(Reply, frozen=True, kw_only=True):
    group_id: str
    state: GroupState
    generation: int
    protocol: Literal["cooperative"] = "cooperative"
    mode: Mode
    assignor: Assignor
    members: list[MemberDescription]


class GroupDeleted(Reply, frozen=True, kw_only=True):
    deleted: bool
    group_id: str


class GroupRebalances(Reply, frozen=True, kw_only=True):
    """Times are in seconds and cover all that happened since the broker started."""

    rebalances: int
    moves: int
    rebalance_seconds: float
    pause_seconds: float


class RebalanceStats(Reply, frozen=True, kw_only=True):
    """Of all groups together, and of those that have counters of their own."""

    rebalances: int
    moves: int
    rebalance_seconds: float
    pause_seconds: float
    in_progress: list[str]
    waiting_polls: int
    groups: dict[str, GroupRebalances]
