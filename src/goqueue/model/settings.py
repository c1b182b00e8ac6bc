"""Settings a user may change, with their defaults and the check that refuses bad ones."""

from enum import StrEnum

import msgspec

from goqueue.model import limits
from goqueue.model.errors import InvalidSetting


class Fsync(StrEnum):
    """When written records are made durable: by the kernel alone, on an interval, or before each answer."""

    NONE = "none"
    INTERVAL = "interval"
    EVERY = "every"


class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How one log is kept. `None` for a retention means no limit."""

    segment_bytes: int = 64 * limits.MIB
    segment_age_ms: int = 7 * 24 * 3600 * 1000
    index_interval_bytes: int = 4 * limits.KIB
    fsync: Fsync = Fsync.INTERVAL
    fsync_interval_ms: int = 1000
    retention_ms: int | None = None
    retention_bytes: int | None = None
    compact: bool = False
    tombstone_retention_ms: int = 24 * 3600 * 1000

    def __post_init__(self) -> None:
        ranges = (
            ("segment_bytes", self.segment_bytes, limits.MIN_SEGMENT_BYTES, limits.MAX_SEGMENT_BYTES),
            ("segment_age_ms", self.segment_age_ms, 1, None),
            ("index_interval_bytes", self.index_interval_bytes, 1, self.segment_bytes),
            ("fsync_interval_ms", self.fsync_interval_ms, 1, None),
            ("retention_ms", self.retention_ms, 0, None),
            ("retention_bytes", self.retention_bytes, 0, None),
            ("tombstone_retention_ms", self.tombstone_retention_ms, 0, None),
        )
        for name, value, low, high in ranges:
            if value is not None and (value < low or (high is not None and value > high)):
                bounds = f"at least {low}" if high is None else f"{low} to {high}"
                raise InvalidSetting(f"{name} is {value}; it must be {bounds}")
