"""A partition's sidecar: the log beside its data log, and the deliveries of all groups that lie in it.

Two files have two times of fsync, so after a power cut the sidecar may know of messages that the data log lost; new
ones would be born settled. Therefore a fence: before the first append to a data log that was opened, its leader epoch
is raised and where it ends is written down here, durably; what was said before of offsets from there on is void.
"""

from typing import Any

import msgspec

from goqueue.delivery.deliveries import Deliveries, Fence
from goqueue.machine.host import Host, Outcome
from goqueue.model import limits
from goqueue.model.names import GroupNumber
from goqueue.model.settings import LogSettings
from goqueue.storage.log import Log

_FIRST_EPOCH = 0


class Sidecar:
    """Make one with `Sidecar.open`."""

    __slots__ = ("deliveries", "host", "voided")

    def __init__(self, log: Log) -> None:
        """Replays the log. Without a fence it must not be used."""
        self.deliveries = Deliveries()
        self.host = Host(log, (self.deliveries,))
        self.voided: list[GroupNumber] = []
        """Groups of which the fence voided something: what they were delivered is lost, and offsets come again."""

    @classmethod
    def open(cls, log: Log, data: Log, now: int) -> "Sidecar":
        """Unless the sidecar is new, nothing may be appended to the data log meanwhile. It waits for the disk."""
        sidecar = cls(log)
        if log.end_offset:  # else there is nothing a fence could void
            sidecar.fence(data, now)
        return sidecar

    def fence(self, data: Log, now: int) -> None:
        epoch = data.epochs[-1].epoch + 1 if data.epochs else _FIRST_EPOCH
        data.begin_epoch(epoch)
        self.voided = self.deliveries.beyond(data.end_offset)
        self.submit(Fence(data.end_offset, epoch), now)
        self.host.log.sync()

    @property
    def log(self) -> Log:
        return self.host.log

    def submit(self, command: Any, now: int) -> Outcome:
        return self.host.submit(self.deliveries, command, now)


def sidecar_settings(data: LogSettings) -> LogSettings:
    """It is made durable as its data log is; nothing in it is cleaned but what a snapshot replaces."""
    return msgspec.structs.replace(
        data, segment_bytes=limits.SIDECAR_SEGMENT_BYTES, retention_ms=None, retention_bytes=None, compact=False
    )
