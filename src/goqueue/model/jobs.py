"""What there is to say about schedules and redrives, in words that a request or a reply may use."""

from enum import StrEnum


class Missed(StrEnum):
    """What becomes of runs that were missed: none of them, the last one, or all of them is made up for."""

    SKIP = "skip"
    ONCE = "once"
    ALL = "all"


class RedriveState(StrEnum):
    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"
