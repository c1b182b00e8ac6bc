"""Topics, and what clients on the wire ask about them."""

from typing import Annotated, Any

from msgspec import UNSET, Meta, UnsetType

from goqueue.model import limits
from goqueue.model.settings import Fsync
from goqueue.model.topic import MAX_MESSAGE_BYTES, CleanupPolicy, LanePolicy, LaneWeights, OnExpiry
from goqueue.wire.shapes.fields import Duration, LaneWeight, PartitionCount, Reply, Request, TopicName


class BackoffFields(Request, frozen=True, kw_only=True):
    """How long a message waits before it is tried again; what is left out stays as it is."""

    base: Duration | UnsetType = UNSET
    factor: Annotated[float, Meta(ge=1, le=limits.MAX_BACKOFF_FACTOR)] | UnsetType = UNSET
    max: Duration | UnsetType = UNSET


class TopicSettingsFields(Request, frozen=True, kw_only=True):
    """The settings of a topic; null or -1 for a retention means no limit, and so does null for the TTL."""

    retention_hours: Annotated[float, Meta(ge=-1, le=876_000)] | UnsetType | None = UNSET
    retention_bytes: Annotated[int, Meta(ge=-1, le=limits.MAX_OFFSET)] | UnsetType | None = UNSET
    cleanup_policy: CleanupPolicy | UnsetType = UNSET
    segment_bytes: Annotated[int, Meta(ge=limits.MIN_SEGMENT_BYTES, le=limits.MAX_SEGMENT_BYTES)] | UnsetType = UNSET
    fsync: Fsync | UnsetType = UNSET
    max_message_bytes: Annotated[int, Meta(ge=1, le=MAX_MESSAGE_BYTES)] | UnsetType = UNSET
    visibility_timeout: Duration | UnsetType = UNSET
    max_retries: Annotated[int, Meta(ge=0, le=limits.MAX_RETRIES)] | UnsetType = UNSET
    backoff: BackoffFields | UnsetType = UNSET
    dlq_enabled: bool | UnsetType = UNSET
    message_ttl: Duration | UnsetType | None = UNSET
    on_expiry: OnExpiry | UnsetType = UNSET
    lane_weights: tuple[LaneWeight, LaneWeight, LaneWeight, LaneWeight, LaneWeight] | UnsetType = UNSET
    lane_policy: LanePolicy | UnsetType = UNSET
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
    stable: int
    """As far as it can be read in order: the first message of an open transaction, or the latest offset."""


class BackoffConfig(Reply, frozen=True, kw_only=True):
    base: str
    factor: float
    max: str


class TopicConfig(Reply, frozen=True, kw_only=True):
    """Durations are written as requests may have them."""

    retention_hours: float | None
    retention_bytes: int | None
    cleanup_policy: CleanupPolicy
    segment_bytes: int
    fsync: Fsync
    max_message_bytes: int
    visibility_timeout: str
    max_retries: int
    backoff: BackoffConfig
    dlq_enabled: bool
    message_ttl: str | None
    on_expiry: OnExpiry
    lane_weights: LaneWeights
    lane_policy: LanePolicy
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
    """Partitions that could not be opened, and why. Those that have offsets are closed to groups only."""
    config: TopicConfig
    created: str


class DeleteTopic(Request, frozen=True, kw_only=True):
    dead_letters: bool = False
    """Also its dead letters, with the topic they are in; otherwise they stay and can be read."""


class TopicDeleted(Reply, frozen=True, kw_only=True, omit_defaults=True):
    deleted: bool
    name: str
    dlq_topic: str | UnsetType = UNSET
    """The topic of the dead letters, if it was deleted too."""


class AddPartitions(Request, frozen=True, kw_only=True):
    count: PartitionCount
    """The new total."""


class PartitionsAdded(Reply, frozen=True, kw_only=True):
    success: bool
    topic_name: str
    old_partition_count: int
    new_partition_count: int
    partitions_added: int


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
