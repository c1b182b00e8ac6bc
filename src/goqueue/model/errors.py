"""Every error GoQueue raises, in one tree. A class carries a frozen `code` and whether retrying helps.

GoQueueError
├── InvalidRequest            what was asked cannot be right; nothing changed
│   ├── InvalidRecord         a record or block that breaks the format
│   ├── InvalidSetting        a setting out of range
│   ├── OffsetOutOfRange      before the start of a log, or past its end where that matters
│   └── StaleEpoch            a leader epoch older than the log has seen
├── Unavailable               right request, wrong moment
│   ├── DiskFull              no space: refused, nothing changed, try again when there is space
│   ├── DirectoryLocked       another process has the data directory
│   └── LogClosed             the log was closed or lost its disk
├── DamagedData               bytes on disk are not what was written
│   ├── Quarantined           a range of offsets cannot be read; others can
│   └── DamagedState          a small file that is hard state fails its checksum
└── StorageFailed             writing or syncing failed; the process must stop
"""

from typing import ClassVar


class GoQueueError(Exception):
    """The root. The message says what was wrong and what to do."""

    code: ClassVar[str] = "internal"
    retriable: ClassVar[bool] = False


class InvalidRequest(GoQueueError):
    code = "invalid_request"


class InvalidRecord(InvalidRequest):
    """A record that breaks the format: which one in its block, where, and why."""

    code = "invalid_record"

    def __init__(self, reason: str, *, index: int, position: int) -> None:
        super().__init__(f"record {index} of the block (byte {position}) is not valid: {reason}")
        self.reason = reason
        self.index = index
        self.position = position


class InvalidSetting(InvalidRequest):
    code = "invalid_setting"


class OffsetOutOfRange(InvalidRequest):
    code = "offset_out_of_range"

    def __init__(self, offset: int, *, start: int, end: int) -> None:
        super().__init__(f"offset {offset} is outside this log, which holds {start} up to {end} (not included)")
        self.offset = offset
        self.start = start
        self.end = end


class StaleEpoch(InvalidRequest):
    code = "stale_epoch"


class Unavailable(GoQueueError):
    code = "unavailable"
    retriable = True


class DiskFull(Unavailable):
    code = "disk_full"


class DirectoryLocked(Unavailable):
    code = "directory_locked"


class LogClosed(Unavailable):
    code = "log_closed"


class DamagedData(GoQueueError):
    code = "damaged_data"


class Quarantined(DamagedData):
    """Offsets `first` up to `next_offset` (not included) cannot be read; reading goes on at `next_offset`."""

    code = "quarantined"

    def __init__(self, first: int, next_offset: int, *, where: str, reason: str) -> None:
        damaged = f"offset {first} is" if next_offset == first + 1 else f"offsets {first} to {next_offset - 1} are"
        super().__init__(f"{damaged} damaged ({reason}, {where}); reading goes on at {next_offset}")
        self.first = first
        self.next_offset = next_offset
        self.where = where
        self.reason = reason


class DamagedState(DamagedData):
    code = "damaged_state"


class StorageFailed(GoQueueError):
    code = "storage_failed"
