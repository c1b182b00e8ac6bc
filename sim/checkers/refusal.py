"""A refused append changed nothing: not the log's end, not one byte that a reader or a recovery would find."""

from goqueue.storage.log import Log
from sim.checkers import require
from sim.disk import SimDisk

RULE = "refusal"


def before(log: Log) -> tuple[int, int]:
    return log.end_offset, sum(segment.size for segment in log.segments)


def check(log: Log, disk: SimDisk, earlier: tuple[int, int]) -> None:
    end, size = earlier
    require(log.end_offset == end, RULE, f"the log ends at {log.end_offset} after a refused append, before at {end}")
    require(log.written.value == end, RULE, f"`written` moved to {log.written.value} with a refused append")
    now = sum(segment.size for segment in log.segments)
    require(now == size, RULE, f"the segments grew from {size} to {now} bytes with a refused append")
    active = log.segments[-1]
    on_disk = len(disk.content(active.key.path))
    require(on_disk == active.size, RULE, f"{on_disk} bytes are in the file of {active.size} after a refused append")
