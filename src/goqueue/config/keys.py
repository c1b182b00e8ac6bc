"""The one table of keys: what a file, the environment and the flags may set, and what each key is when nobody does.

To add a key, add its row here and its field to `Settings`. A key whose feature is not built, or that leaves no choice,
has `lacks`: it is known, so that files written for others are understood, and refused unless it has its default.
"""

from typing import Final

import msgspec

from goqueue.config.kinds import Choice, Directory, Door, Duration, Hosts, Kind, NodeName, Origins, Size, Switch, Whole
from goqueue.config.settings import LogFormat, LogLevel
from goqueue.model import limits
from goqueue.model.publishing import Acks
from goqueue.model.settings import Fsync

_MAX_HOURS: Final = limits.MAX_DURATION_MS // (3600 * 1000)
_NO_CLUSTER: Final = "several nodes are not built yet"
_ONE_WAY: Final = "consumers keep the partitions that do not move, there is no other way"
_BY_BYTES: Final = "the time index goes by bytes, with storage.indexIntervalBytes"
_MIN_HEARTBEAT_MS: Final = 100


class _Span(Duration):
    """A duration between two bounds, both included."""

    def __init__(self, low_ms: int, high_ms: int) -> None:
        self._low_ms, self._high_ms = low_ms, high_ms
        bounds = f"at least {self.show(low_ms)} and at most {self.show(high_ms)}"
        self.wanted = f"a duration like 250ms or 30s, or a number of seconds, {bounds}"

    def parse(self, text: str) -> int:
        value = super().parse(text)
        if not self._low_ms <= value <= self._high_ms:
            raise ValueError(text)
        return value


class Key(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    """Where it stands in a file: its sections, then its name, with dots between."""
    variable: str
    flag: str | None = None
    kind: Kind
    default: str
    root_default: str | None = None
    """What it is for root, where that differs."""
    field: str | None = None
    """Where in `Settings` its value goes; nowhere as long as nothing can use it."""
    lacks: str | None = None
    """Why nothing but the default is accepted."""
    about: str

    @property
    def built(self) -> bool:
        return self.lacks is None

    @property
    def wanted(self) -> str:
        """What would be right, to go on after "it is so and so; "."""
        if self.lacks is not None:
            return f"{self.lacks}, so it must be {self.default}"
        return f"it must be {self.kind.wanted}"

    def default_for(self, *, is_root: bool) -> str:
        return self.root_default if is_root and self.root_default is not None else self.default


KEYS: Final = (
    Key(
        path="broker.nodeId",
        variable="GOQUEUE_NODE_ID",
        flag="--node-id",
        kind=NodeName(),
        default="node-1",
        field="node_id",
        about="The name of this broker.",
    ),
    Key(
        path="broker.dataDir",
        variable="GOQUEUE_DATA_DIR",
        flag="--data-dir",
        kind=Directory(),
        default="./data",
        root_default="/var/lib/goqueue",
        field="data_dir",
        about="Where everything is kept.",
    ),
    Key(
        path="broker.bindAll",
        variable="GOQUEUE_BIND_ALL",
        flag="--bind-all",
        kind=Switch(),
        default="false",
        field="bind_all",
        about="Let an address without a host, like :8080, mean every interface instead of this machine only.",
    ),
    Key(
        path="broker.listeners.http",
        variable="GOQUEUE_HTTP_ADDR",
        flag="--http",
        kind=Door(),
        default=":8080",
        field="listeners.http",
        about="Where HTTP is answered.",
    ),
    Key(
        path="broker.listeners.grpc",
        variable="GOQUEUE_GRPC_ADDR",
        flag="--grpc",
        kind=Door(),
        default=":9000",
        field="listeners.grpc",
        about="Where gRPC is answered.",
    ),
    Key(
        path="broker.listeners.wire",
        variable="GOQUEUE_WIRE_ADDR",
        flag="--wire",
        kind=Door(),
        default=":9001",
        field="listeners.wire",
        about="Where clients are answered that speak the binary protocol.",
    ),
    Key(
        path="broker.listeners.internal",
        variable="GOQUEUE_PEERS_ADDR",
        flag="--peers",
        kind=Door(),
        default="off",
        lacks=_NO_CLUSTER,
        about="Where other nodes are answered.",
    ),
    Key(
        path="http.allowedHosts",
        variable="GOQUEUE_HTTP_ALLOWED_HOSTS",
        kind=Hosts(),
        default="none",
        field="http.allowed_hosts",
        about="Names by which HTTP is asked, beside addresses, localhost and the host that was bound.",
    ),
    Key(
        path="http.allowedOrigins",
        variable="GOQUEUE_HTTP_ALLOWED_ORIGINS",
        kind=Origins(),
        default="none",
        field="http.allowed_origins",
        about="Web pages of other origins that may use the broker over HTTP.",
    ),
    Key(
        path="storage.segmentSize",
        variable="GOQUEUE_STORAGE_SEGMENT_SIZE",
        kind=Size(limits.MIN_SEGMENT_BYTES, limits.MAX_SEGMENT_BYTES),
        default="64MiB",
        field="topic.segment_bytes",
        about="A log begins a new segment file at this size.",
    ),
    Key(
        path="storage.indexIntervalBytes",
        variable="GOQUEUE_STORAGE_INDEX_INTERVAL_BYTES",
        kind=Size(1, limits.MAX_SEGMENT_BYTES),
        default="4KiB",
        field="topic.index_interval_bytes",
        about="How far apart the entries of the offset and time indexes are; at most a segment.",
    ),
    Key(
        path="storage.timeIndexIntervalMs",
        variable="GOQUEUE_STORAGE_TIME_INDEX_INTERVAL_MS",
        kind=Whole(1, limits.MAX_DURATION_MS),
        default="1000",
        lacks=_BY_BYTES,
        about="How far apart in time the entries of the time index are.",
    ),
    Key(
        path="storage.fsync.mode",
        variable="GOQUEUE_STORAGE_FSYNC_MODE",
        kind=Choice({mode.value: mode for mode in Fsync}),
        default="interval",
        field="topic.fsync",
        about="When written messages are made durable: by the kernel alone, on an interval, before every answer.",
    ),
    Key(
        path="storage.fsync.intervalMs",
        variable="GOQUEUE_STORAGE_FSYNC_INTERVAL_MS",
        kind=Whole(1, limits.MAX_DURATION_MS),
        default="1000",
        field="topic.fsync_interval_ms",
        about="How often, in milliseconds, in the mode interval.",
    ),
    Key(
        path="defaults.topic.partitions",
        variable="GOQUEUE_DEFAULTS_TOPIC_PARTITIONS",
        kind=Whole(1, limits.MAX_PARTITIONS_PER_TOPIC),
        default="3",
        field="topic.partitions",
        about="Partitions of a topic whose creator does not say.",
    ),
    Key(
        path="defaults.topic.replicationFactor",
        variable="GOQUEUE_DEFAULTS_TOPIC_REPLICATION_FACTOR",
        kind=Whole(1),
        default="1",
        lacks=_NO_CLUSTER,
        about="Nodes that keep a copy of each partition.",
    ),
    Key(
        path="defaults.topic.retention.hours",
        variable="GOQUEUE_DEFAULTS_TOPIC_RETENTION_HOURS",
        kind=Whole(1, _MAX_HOURS, may_be_unlimited=True),
        default="168",
        field="topic.retention_hours",
        about="Hours after which messages are removed; -1 for never.",
    ),
    Key(
        path="defaults.topic.retention.bytes",
        variable="GOQUEUE_DEFAULTS_TOPIC_RETENTION_BYTES",
        kind=Size(1, may_be_unlimited=True),
        default="-1",
        field="topic.retention_bytes",
        about="Size of a partition beyond which its oldest messages are removed; -1 for no limit.",
    ),
    Key(
        path="defaults.delivery.visibilityTimeout",
        variable="GOQUEUE_DEFAULTS_DELIVERY_VISIBILITY_TIMEOUT",
        kind=_Span(limits.MIN_VISIBILITY_MS, limits.MAX_VISIBILITY_MS),
        default="30s",
        field="topic.visibility_ms",
        about="How long a consumer may keep a message before it is delivered again.",
    ),
    Key(
        path="defaults.delivery.maxRetries",
        variable="GOQUEUE_DEFAULTS_DELIVERY_MAX_RETRIES",
        kind=Whole(0, limits.MAX_RETRIES),
        default="3",
        field="topic.max_retries",
        about="Deliveries after the first one before a message is a dead letter.",
    ),
    Key(
        path="defaults.delivery.dlqEnabled",
        variable="GOQUEUE_DEFAULTS_DELIVERY_DLQ_ENABLED",
        kind=Switch(),
        default="true",
        field="topic.dlq_enabled",
        about="Keep dead letters in a topic of their own.",
    ),
    Key(
        path="consumer.sessionTimeout",
        variable="GOQUEUE_CONSUMER_SESSION_TIMEOUT",
        kind=_Span(limits.MIN_SESSION_MS, limits.MAX_SESSION_MS),
        default="30s",
        field="consumer.session_timeout_ms",
        about="How long a consumer that does not say may be silent before its partitions go to others.",
    ),
    Key(
        path="consumer.heartbeatInterval",
        variable="GOQUEUE_CONSUMER_HEARTBEAT_INTERVAL",
        kind=_Span(_MIN_HEARTBEAT_MS, limits.MAX_SESSION_MS),
        default="3s",
        field="consumer.heartbeat_interval_ms",
        about="For clients: how often a consumer says that it is there; less than the session timeout.",
    ),
    Key(
        path="consumer.maxPollRecords",
        variable="GOQUEUE_CONSUMER_MAX_POLL_RECORDS",
        kind=Whole(1, limits.MAX_POLL_MESSAGES),
        default="500",
        field="consumer.max_poll_records",
        about="For clients: messages one poll brings at most.",
    ),
    Key(
        path="consumer.rebalanceProtocol",
        variable="GOQUEUE_CONSUMER_REBALANCE_PROTOCOL",
        kind=Choice({"cooperative": "cooperative"}),
        default="cooperative",
        field="consumer.rebalance_protocol",
        lacks=_ONE_WAY,
        about="For clients: how partitions move between consumers.",
    ),
    Key(
        path="producer.batchSize",
        variable="GOQUEUE_PRODUCER_BATCH_SIZE",
        kind=Size(1, limits.APPENDED_AT_ONCE_BYTES),
        default="64KiB",
        field="producer.batch_bytes",
        about="For clients: bytes at which a batch is sent.",
    ),
    Key(
        path="producer.lingerMs",
        variable="GOQUEUE_PRODUCER_LINGER_MS",
        kind=Whole(0, limits.MAX_DURATION_MS),
        default="0",
        field="producer.linger_ms",
        about="For clients: milliseconds a batch waits for more; 0 sends what came while the last was on its way.",
    ),
    Key(
        path="producer.acks",
        variable="GOQUEUE_PRODUCER_ACKS",
        kind=Choice({acks.name.lower(): acks for acks in Acks}),
        default="leader",
        field="producer.acks",
        about="For clients: what a publish waits for.",
    ),
    Key(
        path="metrics.enabled",
        variable="GOQUEUE_METRICS_ENABLED",
        kind=Switch(),
        default="true",
        field="metrics_enabled",
        about="Whether there is a metrics door; /metrics at the HTTP door stays.",
    ),
    Key(
        path="metrics.listen",
        variable="GOQUEUE_METRICS_ADDR",
        flag="--metrics",
        kind=Door(),
        default=":9090",
        field="listeners.metrics",
        about="Where metrics are read.",
    ),
    Key(
        path="logging.level",
        variable="GOQUEUE_LOG_LEVEL",
        flag="--log-level",
        kind=Choice({level.value: level for level in LogLevel}),
        default="info",
        field="log_level",
        about="What is logged: this and what is graver.",
    ),
    Key(
        path="logging.format",
        variable="GOQUEUE_LOG_FORMAT",
        flag="--log-format",
        kind=Choice({form.value: form for form in LogFormat}),
        default="json",
        field="log_format",
        about="How a line of the log looks.",
    ),
)
BY_PATH: Final = {key.path: key for key in KEYS}
BY_VARIABLE: Final = {key.variable: key for key in KEYS}
BY_FLAG: Final = {key.flag: key for key in KEYS if key.flag is not None}
DOORS: Final = tuple(key for key in KEYS if isinstance(key.kind, Door))
SECTIONS: Final = frozenset(path[:at] for path in BY_PATH for at, letter in enumerate(path) if letter == ".")
"""What is written above keys in a file: broker, broker.listeners, ..."""
