"""What a topic is, how it is kept and how it is delivered. Every setting may be changed while the topic is in use."""

from enum import StrEnum
from typing import Final

import msgspec

from goqueue.model import limits
from goqueue.model.errors import InvalidSetting
from goqueue.model.names import TopicId
from goqueue.model.record import Lane
from goqueue.model.settings import Fsync, LogSettings
from goqueue.model.times import show_duration

DEFAULT_PARTITIONS: Final = 3
_HOUR_MS: Final = 3600 * 1000
_MAX_RETENTION_HOURS: Final = limits.MAX_DURATION_MS // _HOUR_MS
MAX_MESSAGE_BYTES: Final = limits.MAX_RECORD_BYTES - 8 * limits.KIB
"""The most a topic may allow for key, value and headers: what is left of a record beside its fixed fields."""

LaneWeights = tuple[int, int, int, int, int]
"""By the lane's number."""


class CleanupPolicy(StrEnum):
    """What the cleaner does: removes what is old, keeps the newest of each key, or both."""

    DELETE = "delete"
    COMPACT = "compact"
    BOTH = "both"


class OnExpiry(StrEnum):
    """What becomes of a message that nobody got in time."""

    DROP = "drop"
    DLQ = "dlq"


class LanePolicy(StrEnum):
    """Which lane is next: each gets its share, or the most urgent one that has something."""

    WEIGHTED = "weighted"
    STRICT = "strict"


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """How long a message waits before it is tried again: each time `factor` as long, never longer than `max_ms`."""

    base_ms: int = 1000
    factor: float = 2.0
    max_ms: int = 60_000

    def delay_ms(self, retry: int) -> int:
        """Before the `retry`-th retry; the first one is 1."""
        if not self.base_ms:
            return 0
        try:
            delay_ms = self.base_ms * self.factor ** (retry - 1)
        except OverflowError:
            return self.max_ms
        return round(min(delay_ms, self.max_ms))

    def check(self) -> None:
        """InvalidSetting for the first part out of range."""
        _check_span("backoff.base", self.base_ms, 0, limits.MAX_BACKOFF_MS)
        _check_range("backoff.factor", self.factor, 1, limits.MAX_BACKOFF_FACTOR)
        _check_span("backoff.max", self.max_ms, 0, limits.MAX_BACKOFF_MS)
        if self.max_ms < self.base_ms:
            raise InvalidSetting(
                f"backoff.max is {show_duration(self.max_ms)}; it must be at least backoff.base, which is "
                f"{show_duration(self.base_ms)}"
            )


class TopicSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`None` for a retention or the TTL means no limit."""

    retention_hours: float | None = 168
    retention_bytes: int | None = None
    cleanup_policy: CleanupPolicy = CleanupPolicy.DELETE
    segment_bytes: int = 64 * limits.MIB
    fsync: Fsync = Fsync.INTERVAL
    max_message_bytes: int = 1 * limits.MIB
    visibility_ms: int = 30_000
    """How long a consumer may keep a message that it does not settle."""
    max_retries: int = 3
    """Deliveries after the first one."""
    backoff: Backoff = Backoff()
    dlq_enabled: bool = True
    message_ttl_ms: int | None = None
    on_expiry: OnExpiry = OnExpiry.DROP
    lane_weights: LaneWeights = (50, 25, 15, 7, 3)
    lane_policy: LanePolicy = LanePolicy.WEIGHTED

    def check(self) -> None:
        """InvalidSetting for the first one out of range, under the name that users know."""
        _check_range("retention_hours", self.retention_hours, 0, _MAX_RETENTION_HOURS)
        _check_range("retention_bytes", self.retention_bytes, 0, limits.MAX_OFFSET)
        _check_range("segment_bytes", self.segment_bytes, limits.MIN_SEGMENT_BYTES, limits.MAX_SEGMENT_BYTES)
        _check_range("max_message_bytes", self.max_message_bytes, 1, MAX_MESSAGE_BYTES)
        _check_span("visibility_timeout", self.visibility_ms, limits.MIN_VISIBILITY_MS, limits.MAX_VISIBILITY_MS)
        _check_range("max_retries", self.max_retries, 0, limits.MAX_RETRIES)
        self.backoff.check()
        _check_span("message_ttl", self.message_ttl_ms, limits.MIN_TTL_MS, limits.MAX_DURATION_MS)
        weights = self.lane_weights
        if len(weights) != len(Lane) or not all(1 <= weight <= limits.MAX_LANE_WEIGHT for weight in weights):
            raise InvalidSetting(
                f"lane_weights is {list(weights)}; it must be {len(Lane)} whole numbers from 1 to "
                f"{limits.MAX_LANE_WEIGHT}, that of the lane critical first"
            )

    def log_settings(self, base: LogSettings) -> LogSettings:
        """How a partition's log is kept: what the topic does not decide comes from `base`, the broker's own."""
        deletes = self.cleanup_policy is not CleanupPolicy.COMPACT
        hours = self.retention_hours if deletes else None
        retention_ms = None if hours is None else int(hours * _HOUR_MS)
        return msgspec.structs.replace(
            base,
            segment_bytes=self.segment_bytes,
            segment_age_ms=base.segment_age_ms
            if retention_ms is None
            else min(base.segment_age_ms, max(retention_ms, 1)),
            index_interval_bytes=min(base.index_interval_bytes, self.segment_bytes),
            fsync=self.fsync,
            retention_ms=retention_ms,
            retention_bytes=self.retention_bytes if deletes else None,
            compact=self.cleanup_policy is not CleanupPolicy.DELETE,
        )


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """One topic, as the metadata has it."""

    name: str
    topic_id: TopicId
    partitions: int
    settings: TopicSettings
    created_ms: int


def _check_range(name: str, value: float | None, low: int, high: int) -> None:
    if value is not None and not low <= value <= high:
        raise InvalidSetting(f"{name} is {value}; it must be from {low} to {high}")


def _check_span(name: str, value_ms: int | None, low_ms: int, high_ms: int) -> None:
    if value_ms is not None and not low_ms <= value_ms <= high_ms:
        low, high = show_duration(low_ms), show_duration(high_ms)
        raise InvalidSetting(f"{name} is {show_duration(value_ms)}; it must be from {low} to {high}")
