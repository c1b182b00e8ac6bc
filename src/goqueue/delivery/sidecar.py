"""A partition's sidecar: the log beside its data log, and the deliveries of all groups that lie in it.

Two files have two times of fsync, so after a power cut the sidecar may know of messages that the data log lost; new
ones would be born settled. Therefore a fence: before the first append to a data log that was opened, its leader epoch
is raised and where it ends is written down here, durably; what was said before of offsets from there on is void.
"""

from typing import Any

import msgspec
from pyroaring import BitMap64

from goqueue.delivery.commands import Fence
from goqueue.delivery.delays import Delays
from goqueue.delivery.deliveries import Deliveries
from goqueue.delivery.selection import Ahead, Selection
from goqueue.machine.host import Host, Outcome
from goqueue.model import limits
from goqueue.model.groups import Mode
from goqueue.model.names import GroupNumber
from goqueue.model.record import Lane
from goqueue.model.settings import LogSettings
from goqueue.storage.lane_index import LaneIndex, ViewMissing
from goqueue.storage.log import Log

_FIRST_EPOCH = 0


class Sidecar:
    """Make one with `Sidecar.open`. `wall` is Unix time, `now` that of a clock that never steps."""

    __slots__ = ("_data", "_lanes", "deliveries", "host", "voided")

    def __init__(self, log: Log, data: Log, delays: Delays | None = None, uncommitted: BitMap64 | None = None) -> None:
        """Replays the log. Without a fence it must not be used."""
        self.deliveries = Deliveries(delays, uncommitted)
        self.host = Host(log, (self.deliveries,))
        self.voided: list[GroupNumber] = []
        """Groups of which the fence voided something: what they were delivered is lost, and offsets come again."""
        self._data = data
        self._lanes = LaneIndex(data)

    @classmethod
    def open(
        cls,
        log: Log,
        data: Log,
        *,
        wall: int,
        now: int,
        delays: Delays | None = None,
        uncommitted: BitMap64 | None = None,
    ) -> "Sidecar":
        """Unless the sidecar is new, nothing may be appended to the data log meanwhile. It waits for the disk."""
        sidecar = cls(log, data, delays, uncommitted)
        if log.end_offset:  # else there is nothing a fence could void
            sidecar.fence(wall)
        sidecar.deliveries.begin_life(wall=wall, now=now)
        return sidecar

    def fence(self, wall: int) -> None:
        data = self._data
        epoch = data.epochs[-1].epoch + 1 if data.epochs else _FIRST_EPOCH
        data.begin_epoch(epoch)
        self.voided = self.deliveries.beyond(data.end_offset)
        self.host.submit(self.deliveries, Fence(data.end_offset, epoch), wall)
        self.host.log.sync()

    @property
    def log(self) -> Log:
        return self.host.log

    def submit(self, command: Any, *, wall: int, now: int) -> Outcome:
        outcome = self.host.submit(self.deliveries, command, wall)
        self.deliveries.arm(now)
        return outcome

    def stage(self, group: GroupNumber, mode: Mode, want: int) -> Selection:
        """Find out what there is for a group: of each lane more than `want`, if it can. Raises ViewMissing, ReadAhead.

        One more, so that a lane that gives all a poll wants is not taken for one that ran empty.
        """
        deliveries = self.deliveries
        delivery, selection = deliveries.delivery(group), deliveries.selection(group, mode)
        full = delivery.unsettled >= limits.MAX_UNSETTLED  # then only what was delivered before comes again
        end = 0 if full else self._data.written.value
        selection.stage(self._lanes, delivery, deliveries, start=self._data.start_offset, end=end, want=want + 1)
        return selection

    def ahead(self, group: GroupNumber, mode: Mode) -> Ahead | None:
        """What there is for a group that goes along at the end of the log, if that is all and nothing is special."""
        deliveries = self.deliveries
        delivery, selection = deliveries.delivery(group), deliveries.selection(group, mode)
        if delivery.tries or deliveries.moved or not deliveries.is_in_order(group):
            return None
        if len(delivery.taken) >= limits.MAX_UNSETTLED:
            return None
        start, end = self._data.start_offset, self._data.written.value
        return selection.ahead(self._lanes, delivery, deliveries, start=start, end=end)

    def is_urgent(self, group: GroupNumber) -> bool:
        """Whether there may be something critical for a group, as far as can be told without a look at the disk."""
        selection = self.deliveries.selections.get(group)
        try:
            if selection is not None:
                return selection.is_urgent(self._lanes)
            low = max(self.deliveries.low(group) or 0, self._data.start_offset)
            return self._lanes.has(Lane.CRITICAL, low)
        except ViewMissing:
            return False

    def hole_at(self, low: int) -> tuple[int, int] | None:
        """Offsets right where a group is that have no record: cleaned away, or damaged. Raises ViewMissing."""
        low = max(low, self._data.start_offset)
        if low >= self._data.written.value:
            return None
        present = self._lanes.next_present(low)
        return None if present == low else (low, present)


def sidecar_settings(data: LogSettings) -> LogSettings:
    """It is made durable as its data log is; nothing in it is cleaned but what a snapshot replaces."""
    return msgspec.structs.replace(
        data, segment_bytes=limits.SIDECAR_SEGMENT_BYTES, retention_ms=None, retention_bytes=None, compact=False
    )
