"""What requests and replies look like as JSON. The same definitions validate, encode, and describe the API.

Field names are a contract: they may be added, never renamed. A request with a field that is not here is refused by
name. `UNSET` is a field that was left out; `null` is one that was set to nothing.
"""

from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from goqueue.model import limits
from goqueue.model.names import TOPIC_PATTERN
from goqueue.model.settings import Fsync
from goqueue.model.topic import MAX_MESSAGE_BYTES, CleanupPolicy

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


class Nothing(Request, frozen=True, kw_only=True):
    """A request without fields."""


# --- topics


class TopicSettingsFields(Request, frozen=True, kw_only=True):
    """The settings of a topic; null or -1 for a retention means no limit."""

    retention_hours: Annotated[float, Meta(ge=-1, le=876_000)] | UnsetType | None = UNSET
    retention_bytes: Annotated[int, Meta(ge=-1, le=limits.MAX_OFFSET)] | UnsetType | None = UNSET
    cleanup_policy: CleanupPolicy | UnsetType = UNSET
    segment_bytes: Annotated[int, Meta(ge=limits.MIN_SEGMENT_BYTES, le=limits.MAX_SEGMENT_BYTES)] | UnsetType = UNSET
    fsync: Fsync | UnsetType = UNSET
    max_message_bytes: Annotated[int, Meta(ge=1, le=MAX_MESSAGE_BYTES)] | UnsetType = UNSET
    replication_factor: Annotated[int, Meta(ge=1, le=1)] | UnsetType = UNSET
    min_insync_replicas: Annotated[int, Meta(ge=1, le=1)] | UnsetType = UNSET


class CreateTopic(TopicSettingsFields, frozen=True, kw_only=True):
    name: TopicName
    num_partitions: PartitionCount | UnsetType = UNSET


class TopicCreated(Reply, frozen=True, kw_only=True):
    name: str
    partitions: int
    created: bool
    topic_id: str


class ListTopics(Request, frozen=True, kw_only=True):
    internal: bool = False


class TopicList(Reply, frozen=True, kw_only=True):
    topics: list[str]


class OffsetRange(Reply, frozen=True, kw_only=True):
    earliest: int
    latest: int


class TopicConfig(Reply, frozen=True, kw_only=True):
    retention_hours: float | None
    retention_bytes: int | None
    cleanup_policy: CleanupPolicy
    segment_bytes: int
    fsync: Fsync
    max_message_bytes: int
    replication_factor: int
    min_insync_replicas: int


class TopicDescription(Reply, frozen=True, kw_only=True):
    name: str
    topic_id: str
    partitions: int
    total_messages: int
    total_size_bytes: int
    partition_offsets: dict[str, OffsetRange]
    unavailable: dict[str, str] | UnsetType = UNSET
    """Partitions that could not be opened, and why."""
    config: TopicConfig
    created: str


class TopicDeleted(Reply, frozen=True, kw_only=True):
    deleted: bool
    name: str


class AddPartitions(Request, frozen=True, kw_only=True):
    count: PartitionCount
    """The new total."""


class PartitionsAdded(Reply, frozen=True, kw_only=True):
    success: bool
    topic_name: str
    old_partition_count: int
    new_partition_count: int
    partitions_added: int


# --- publishing


class Message(Request, frozen=True, kw_only=True):
    """One message. Values, keys and header values are text, or base64 if `encoding` says so; a null value deletes."""

    value: str | None
    key: str | None = None
    partition: PartitionNumber | None = None
    priority: Literal["critical", "high", "normal", "low", "background", 0, 1, 2, 3, 4] = "normal"
    headers: dict[str, str] | list[tuple[str, str]] | None = None
    event_time: Time | Annotated[int, Meta(ge=0, le=limits.LAST_TIME_MS)] | None = None
    encoding: Literal["utf-8", "base64"] = "utf-8"


AcksName = Literal["none", "leader", "all"]
ProducerId = Annotated[int, Meta(ge=1, lt=limits.MAX_OFFSET)]
ProducerEpoch = Annotated[int, Meta(ge=0, lt=2**15)]
Sequence = Annotated[int, Meta(ge=0, lt=2**31)]


class Publish(Message, frozen=True, kw_only=True):
    """One message, and how to publish it."""

    acks: AcksName = "leader"
    producer_id: ProducerId | None = None
    epoch: ProducerEpoch | None = None
    sequence: Sequence | None = None


class PublishBatch(Request, frozen=True, kw_only=True):
    """With a producer id: one partition, named by every message; `sequence` is that of the first."""

    messages: Annotated[list[Message], Meta(min_length=1, max_length=limits.MAX_MESSAGES_PER_REQUEST)]
    acks: AcksName = "leader"
    producer_id: ProducerId | None = None
    epoch: ProducerEpoch | None = None
    sequence: Sequence | None = None


class PublishResult(Reply, frozen=True, kw_only=True, omit_defaults=True):
    """Where a message went; `error` and `code` instead if it was refused."""

    partition: int | UnsetType = UNSET
    offset: int | UnsetType = UNSET
    message_id: str | UnsetType = UNSET
    timestamp: str | UnsetType = UNSET
    priority: PriorityName | UnsetType = UNSET
    durability: DurabilityName | UnsetType = UNSET
    duplicate: bool | UnsetType = UNSET
    error: str | UnsetType = UNSET
    code: str | UnsetType = UNSET
    retriable: bool | UnsetType = UNSET


class PublishResults(Reply, frozen=True, kw_only=True):
    results: list[PublishResult]


# --- reading


class ReadPartition(Request, frozen=True, kw_only=True):
    """From an offset or a time, up to a time; from the earliest message if nothing is said."""

    offset: Offset | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=limits.MAX_READ_MESSAGES)] = 100
    max_bytes: Annotated[int, Meta(ge=1, le=limits.MAX_JSON_READ_BYTES)] = limits.MAX_JSON_READ_BYTES
    from_time: Time | UnsetType = UNSET
    to_time: Time | UnsetType = UNSET
    isolation: Literal["read_committed"] = "read_committed"
    order: Literal["offset"] = "offset"


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
    encoding: Literal["base64"] | UnsetType = UNSET
    """Says how key, value and header values are encoded when they are not all text."""


class Messages(Reply, frozen=True, kw_only=True):
    messages: list[ReadMessage]
    next_offset: int
    """Where to read on."""


class TopicMessages(Reply, frozen=True, kw_only=True):
    messages: list[ReadMessage]
    next_offsets: dict[str, int]
    next_offset: int | UnsetType = UNSET
    """For a topic with one partition."""


class FindOffsets(Request, frozen=True, kw_only=True):
    timestamp: Time | UnsetType = UNSET
    """The first offset at or after this time; the end of each partition if left out."""


class Offsets(Reply, frozen=True, kw_only=True):
    offsets: dict[str, int]


# --- producers


class InitProducer(Request, frozen=True, kw_only=True):
    """Asks for a producer id."""


class ProducerReply(Reply, frozen=True, kw_only=True):
    producer_id: int
    epoch: int


class ProducerHeartbeat(Request, frozen=True, kw_only=True):
    epoch: ProducerEpoch


# --- metadata, for clients on the wire


class AskMetadata(Request, frozen=True, kw_only=True):
    topics: Annotated[list[str], Meta(max_length=limits.MAX_TOPICS)] | None = None
    """Names to look up; all if left out. Names that are not there are left out of the reply."""


class TopicMetadata(Reply, frozen=True, kw_only=True):
    name: str
    topic_id: str
    partitions: int
    max_message_bytes: int


class Metadata(Reply, frozen=True, kw_only=True):
    cluster_id: str
    node_id: str
    topics: list[TopicMetadata]
    producer: dict[str, Any]
    """Defaults for clients that publish."""
    consumer: dict[str, Any]
    """Defaults for clients that consume."""


# --- the broker itself


class Health(Reply, frozen=True, kw_only=True, omit_defaults=True):
    status: HealthStatus
    checks: dict[str, str] | UnsetType = UNSET


class AskHealth(Request, frozen=True, kw_only=True):
    verbose: bool = False


class Version(Reply, frozen=True, kw_only=True):
    version: str
    codec: Literal["compiled", "python"]
    python: str
    wire_version: int


class Stats(Reply, frozen=True, kw_only=True):
    node_id: str
    cluster_id: str
    uptime_seconds: float
    topics: int
    partitions: int
    messages: int
    size_bytes: int
    messages_produced: int
    bytes_produced: int
    duplicates: int
    messages_read: int
    in_flight_bytes: int


class NodeView(Reply, frozen=True, kw_only=True):
    node_id: str
    state: str
    endpoints: dict[str, str]


class ClusterView(Reply, frozen=True, kw_only=True):
    cluster_id: str
    nodes: list[NodeView]
