"""Numbers about the lanes of one group on one partition: what is ready, what is out, what was served and what waits.

All of it is soft, or counted anew each time. What is ready is said by the segments' views, less what is settled, taken,
delayed or cancelled; in key mode that is also what stands behind another message of its key. What turns out to be too
old, or no message, when it is read counts until then.
"""

from collections.abc import Sequence
from typing import NamedTuple

from pyroaring import BitMap64

from goqueue.base.number_map import NumberMap
from goqueue.delivery.delivery import Delivery
from goqueue.delivery.selection import LANES, Held, Selection
from goqueue.model.names import GroupNumber
from goqueue.storage.lane_index import LaneIndex


class Served(NamedTuple):
    """By lane."""

    messages: list[int]
    last: list[int | None]
    """In Unix time."""


class ServedCounts:
    """What each group was served of each lane since the broker started. There may be many groups, so it is small."""

    __slots__ = ("_last", "_messages")

    def __init__(self) -> None:
        self._messages = NumberMap()
        self._last = NumberMap()

    def of(self, group: GroupNumber) -> Served:
        keys = [_key(group, lane) for lane in range(LANES)]
        return Served([self._messages.get(key) or 0 for key in keys], [self._last.get(key) for key in keys])

    def serve(self, group: GroupNumber, taken: Sequence[int], wall: int) -> None:
        """A poll was given so many of each lane."""
        for lane, count in enumerate(taken):
            if count:
                key = _key(group, lane)
                self._messages.add(key, count)
                self._last.set(key, wall)

    def forget(self, group: GroupNumber) -> None:
        for lane in range(LANES):
            self._messages.pop(_key(group, lane))
            self._last.pop(_key(group, lane))


def _key(group: GroupNumber, lane: int) -> int:
    return group * LANES + lane


def waited_ms(ready: Sequence[int], selection: Selection | None, now: int) -> list[int]:
    """How long each lane has had something, as polls saw it, and was not served. `now` is of a clock that never steps.

    It counts from when a poll took from the lane and left something, or found something and took nothing.
    """
    if selection is None:
        return [0] * LANES  # nobody has polled, or there was nothing left
    since = selection.waiting_since
    return [max(now - at, 0) if count and at is not None else 0 for count, at in zip(ready, since, strict=True)]


class LaneTally:
    """Counts the lanes of one group as they were when it began, a segment at a time: until `is_over`, `step`.

    A view that is not in memory is loaded between two steps; and a long log does not hold up others.
    """

    __slots__ = ("_end", "_lanes", "_leased", "_unready", "at", "in_flight", "ready")

    def __init__(self, lanes: LaneIndex, delivery: Delivery, held: Held, *, start: int, end: int) -> None:
        """Of a log that has messages from `start` up to `end`."""
        self.ready = [0] * LANES
        """What the group could be delivered."""
        self.in_flight = [0] * LANES
        """What it was delivered and has not settled, as far as retention has not taken it."""
        self.at = max(delivery.low, start)
        """Where the next step begins."""
        self._end = end
        self._lanes = lanes
        self._leased = BitMap64()
        for leases in delivery.leases.values():
            for lease in leases:
                self._leased |= lease.offsets
        self._unready = BitMap64()
        for offsets in (delivery.settled.above, delivery.taken, held.pending, held.uncommitted, held.cancelled):
            if offsets:
                self._unready |= offsets

    @property
    def is_over(self) -> bool:
        return self.at >= self._end

    def step(self) -> None:
        """One segment. Raises ViewMissing."""
        found = self._lanes.count(self.at, self._end, without=self._unready, among=self._leased)
        for lane, count in enumerate(found.others):
            self.ready[lane] += count
        for lane, count in enumerate(found.among):
            self.in_flight[lane] += count
        self.at = found.end
