"""What a topic is and how it is kept. Every setting may be changed while the topic is in use."""

from enum import StrEnum
from typing import Final

import msgspec

from goqueue.model import limits
from goqueue.model.errors import InvalidSetting
from goqueue.model.names import TopicId
from goqueue.model.settings import Fsync, LogSettings

DEFAULT_PARTITIONS: Final = 3
_HOUR_MS: Final = 3600 * 1000
_MAX_RETENTION_HOURS: Final = limits.MAX_DURATION_MS // _HOUR_MS
MAX_MESSAGE_BYTES: Final = limits.MAX_RECORD_BYTES - 8 * limits.KIB
"""The most a topic may allow for key, value and headers: what is left of a record beside its fixed fields."""


class CleanupPolicy(StrEnum):
    """What the cleaner does: removes what is old, keeps the newest of each key, or both."""

    DELETE = "delete"
    COMPACT = "compact"
    BOTH = "both"


class TopicSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`None` for a retention means no limit."""

    retention_hours: float | None = 168
    retention_bytes: int | None = None
    cleanup_policy: CleanupPolicy = CleanupPolicy.DELETE
    segment_bytes: int = 64 * limits.MIB
    fsync: Fsync = Fsync.INTERVAL
    max_message_bytes: int = 1 * limits.MIB

    def check(self) -> None:
        """InvalidSetting for the first one out of range."""
        ranges = (
            ("retention_hours", self.retention_hours, 0, _MAX_RETENTION_HOURS),
            ("retention_bytes", self.retention_bytes, 0, limits.MAX_OFFSET),
            ("segment_bytes", self.segment_bytes, limits.MIN_SEGMENT_BYTES, limits.MAX_SEGMENT_BYTES),
            ("max_message_bytes", self.max_message_bytes, 1, MAX_MESSAGE_BYTES),
        )
        for name, value, low, high in ranges:
            if value is not None and not low <= value <= high:
                raise InvalidSetting(f"{name} is {value}; it must be from {low} to {high}")

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
