"""The result: every value a broker needs to start, checked, and where each came from.

Field names carry their unit. `None` for a door means closed, for a retention no limit.
"""

from enum import StrEnum

import msgspec

from goqueue.config.addresses import Address
from goqueue.model.publishing import Acks
from goqueue.model.settings import Fsync


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARN = "warn"
    ERROR = "error"


class LogFormat(StrEnum):
    JSON = "json"
    TEXT = "text"


class Listeners(msgspec.Struct, frozen=True, kw_only=True):
    """The doors, each with the host it really binds."""

    http: Address | None
    grpc: Address | None
    wire: Address | None
    metrics: Address | None


class HttpAccess(msgspec.Struct, frozen=True, kw_only=True):
    """Who may use the HTTP doors beside those who always may."""

    allowed_hosts: tuple[str, ...]
    """Names of hosts; with a dot before it a domain; `*` for any."""
    allowed_origins: tuple[str, ...]
    """As browsers say them; `*` for any."""


class TopicDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """How a topic is kept and delivered whose creator did not say otherwise."""

    partitions: int
    retention_hours: int | None
    retention_bytes: int | None
    segment_bytes: int
    index_interval_bytes: int
    fsync: Fsync
    fsync_interval_ms: int
    visibility_ms: int
    max_retries: int
    dlq_enabled: bool


class ProducerDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """What the broker tells producers to do unless they know better."""

    batch_bytes: int
    linger_ms: int
    acks: Acks


class ConsumerDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """What the broker tells consumers to do unless they know better."""

    session_timeout_ms: int
    """Also what the broker takes for a consumer that does not name its own."""
    heartbeat_interval_ms: int
    """Less than the session timeout."""
    max_poll_records: int
    rebalance_protocol: str


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    node_id: str
    data_dir: str
    bind_all: bool
    listeners: Listeners
    http: HttpAccess
    topic: TopicDefaults
    producer: ProducerDefaults
    consumer: ConsumerDefaults
    metrics_enabled: bool
    log_level: LogLevel
    log_format: LogFormat
    warnings: tuple[str, ...]
    """What an operator should be told, loudly, though nothing is refused."""
    sources: dict[str, str]
    """Of every key where its value came from."""
