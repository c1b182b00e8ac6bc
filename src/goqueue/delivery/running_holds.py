"""The holds that run: whose they are, and when each is over by a clock that never steps.

All of it is soft. A record makes a hold, and records know no clock: so it waits here to be armed, by whoever applied
the record and knows the time. While a log is replayed nothing runs; when life begins, what is left of each hold does.

Invariant: a hold is known from when it was made until it ends; a wait also ends when its time is over, a lease only
when a record says that it lapsed.
"""

from collections.abc import Iterable
from typing import NamedTuple

from goqueue.base.deadlines import Deadlines
from goqueue.delivery.delivery import Delivery
from goqueue.delivery.holds import Hold, Lease
from goqueue.model.names import GroupNumber


class Due(NamedTuple):
    """A lease whose time is over, with the group it is of."""

    group: GroupNumber
    poll: int
    until: int


class RunningHolds:
    """Of all groups on one partition."""

    __slots__ = ("_deadlines", "_group_of", "_is_live", "_unarmed")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._deadlines: Deadlines[Hold] = Deadlines()
        self._group_of: dict[Hold, GroupNumber] = {}
        self._unarmed: list[Hold] = []
        self._is_live = False
        """Whether the log was replayed; only then do holds run."""

    def begin_life(self, holds: Iterable[Hold], *, wall: int, now: int) -> None:
        """After a restart: these, which are all there are, last as long as they have left."""
        for hold in holds:
            self._deadlines.arm(hold, hold.end_again(now, wall))
        self._is_live = True

    def add(self, group: GroupNumber, hold: Hold) -> None:
        """It was just made."""
        self._group_of[hold] = group
        if self._is_live:
            self._unarmed.append(hold)

    def arm(self, now: int) -> None:
        """Those that were just made begin to run."""
        for hold in self._unarmed:
            if hold.offsets:
                self._deadlines.arm(hold, hold.end(now))
        self._unarmed = []

    def drop_ended(self, delivery: Delivery) -> None:
        """Nobody waits for them any more."""
        for hold in delivery.ended:
            self._deadlines.disarm(hold)
            self._group_of.pop(hold, None)
        delivery.ended = []

    def next_deadline(self) -> int | None:
        """When one is over, at the earliest."""
        return self._deadlines.earliest

    def due(self, now: int) -> list[tuple[GroupNumber, Hold]]:
        """Those whose time is over, each once."""
        found: list[tuple[GroupNumber, Hold]] = []
        for hold in self._deadlines.due(now):
            group = self._group_of.pop(hold, None)
            if group is None or not hold.offsets:
                continue
            found.append((group, hold))
            if isinstance(hold, Lease):  # until it is written down that it lapsed
                self._group_of[hold] = group
        return found

    def rearm(self, due: Iterable[Due], now: int, after_ms: int) -> None:
        """That these lapsed could not be written: try again later."""
        wanted = set(due)
        for hold, group in self._group_of.items():
            if isinstance(hold, Lease) and Due(group, hold.poll, hold.until) in wanted:
                self._deadlines.arm(hold, now + after_ms)
