"""A machine small enough to see through: it adds numbers up, and remembers what it was told."""

from collections.abc import Iterable
from typing import Any

from goqueue.io.disk import Disk
from goqueue.machine.host import Host
from goqueue.machine.shape import Decision, Machine
from goqueue.model.errors import InvalidRequest
from goqueue.model.settings import Fsync, LogSettings
from goqueue.storage.log import Log, OnDirty
from tests.support.memory_disk import MemoryDisk

DIRECTORY = "/meta/test"
NOW = 1_700_000_000_000


class Adder:
    """A command is a number: below 0 it is refused, 0 is a look, n adds n in as many records. Replies: the total."""

    def __init__(self, name: str = "adder") -> None:
        self.name = name
        self.reset()

    def reset(self) -> None:
        self.total = 0
        self.applied: list[tuple[bytes, int]] = []

    def decide(self, command: Any, now: int) -> Decision:
        if command < 0:
            raise InvalidRequest(f"{command} is below 0")
        return Decision([b"1"] * command, self.total + command)

    def apply(self, record: bytes, offset: int) -> None:
        self.total += int(record)
        self.applied.append((record, offset))

    def snapshot(self) -> Iterable[bytes]:
        yield b"%d" % self.total


def open_log(disk: Disk, on_dirty: OnDirty | None = None) -> Log:
    """A log that is synced when the test says so, and only then."""
    settings = LogSettings(fsync=Fsync.EVERY, segment_bytes=4096)
    if on_dirty is None:
        return Log.open(DIRECTORY, disk=disk, settings=settings)
    return Log.open(DIRECTORY, disk=disk, settings=settings, on_dirty=on_dirty)


def started(disk: MemoryDisk, *machines: Machine) -> Host:
    """A host over what is on the disk, as after a start."""
    return Host(open_log(disk), machines)
