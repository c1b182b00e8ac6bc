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
        try:
            msgspec.structs.force_setattr(self, "fsync", Fsync(self.fsync))
        except ValueError:
            choices = ", ".join(Fsync)
            raise InvalidSetting(f"fsync is {self.fsync!r}; it must be one of {choices}") from None
        if not isinstance(self.compact, bool):
            raise InvalidSetting(f"compact is {self.compact!r}; it must be true or false")
        ranges = (
            ("segment_bytes", self.segment_bytes, limits.MIN_SEGMENT_BYTES, limits.MAX_SEGMENT_BYTES),
            ("segment_age_ms", self.segment_age_ms, 1, limits.MAX_DURATION_MS),
            ("index_interval_bytes", self.index_interval_bytes, 1, self.segment_bytes),
            ("fsync_interval_ms", self.fsync_interval_ms, 1, limits.MAX_DURATION_MS),
            ("retention_ms", self.retention_ms, 0, limits.MAX_DURATION_MS),
            ("retention_bytes", self.retention_bytes, 0, limits.MAX_OFFSET),
            ("tombstone_retention_ms", self.tombstone_retention_ms, 0, limits.MAX_DURATION_MS),
        )
        for name, value, low, high in ranges:
            if value is None and name.startswith("retention_"):
                continue
            if type(value) is not int or not low <= value <= high:
                raise InvalidSetting(f"{name} is {value!r}; it must be a whole number from {low} to {high}")
