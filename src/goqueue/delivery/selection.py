"""What a group is delivered next from one partition: lane by lane, in fair shares, nothing that is held.

All of it is soft: cursors and what was found on the way may be lost at any time, and are found again from the settled
offsets and the views. What is ready is *staged*: taken out of the lanes' views, or freed by somebody (a retry whose
time has come, a delay that is over, a lease that lapsed), and not delivered yet. What is staged and picked for a poll
is *reserved* until it is leased or put back, so that two polls never pick the same.

Invariants: an offset of a lane below the lane's cursor is staged, unsorted, reserved, or not ready; not ready means it
is settled, taken, delayed, of an open transaction or cancelled, and whoever ends that frees it. What is staged or
unsorted is ready.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec
from pyroaring import BitMap64

from goqueue.base.fair_shares import FairShares
from goqueue.base.offset_sets import cut_below, cut_from
from goqueue.delivery.delivery import Delivery
from goqueue.model import limits
from goqueue.model.record import Lane
from goqueue.storage.lane_index import LaneIndex

LANES = len(Lane)


class Held(Protocol):
    """What no group of the partition is delivered, yet or ever."""

    @property
    def pending(self) -> BitMap64: ...
    @property
    def cancelled(self) -> BitMap64: ...
    @property
    def uncommitted(self) -> BitMap64: ...


class Policy(NamedTuple):
    """How lanes are served."""

    weights: Sequence[int]
    strict: bool


class Pick(NamedTuple):
    """Offsets of one lane that a poll is to be given."""

    lane: int
    offsets: BitMap64


class Ahead(msgspec.Struct, frozen=True, gc=False):
    """Offsets in a row, all of one lane."""

    lane: int
    first: int
    end: int


class Selection:
    """Of one group on one partition."""

    __slots__ = ("_cursors", "_reserved", "_shares", "_staged", "_unsorted")

    def __init__(self, low: int) -> None:
        self._cursors = [low] * LANES
        self._staged = [BitMap64() for _ in range(LANES)]
        self._unsorted = BitMap64()
        self._reserved = BitMap64()
        self._shares = FairShares(LANES)

    # --- what happens outside

    def free(self, offsets: BitMap64) -> None:
        """These are ready now, or again."""
        self._unsorted |= offsets

    def settle(self, offsets: BitMap64) -> None:
        """These are done with."""
        self.withdraw(offsets)

    def unblock(self, transaction: int) -> None:
        """It has ended. It held up nothing but its own messages."""

    def withdraw(self, offsets: BitMap64) -> None:
        """These are not ready any more. They may have been freed: a late handle is still good after that."""
        for waiting in (*self._staged, self._unsorted):
            if waiting:
                waiting.difference_update(offsets)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is lost when this is dropped."""
        return not self._unsorted and not self._reserved and not any(self._staged)

    def is_spent(self, end: int) -> bool:
        """Whether there is nothing to be found below `end`."""
        return self.is_idle and min(self._cursors) >= end

    # --- going along at the end of a log

    def ahead(self, lanes: LaneIndex, delivery: Delivery, held: Held, *, start: int, end: int) -> Ahead | None:
        """All there is for a group that was delivered everything before it; None when it is not as plain as that.

        Then nothing is to be chosen: what `stage` and `pick` would find is this row.
        """
        first = self._cursors[0]
        if not start <= first < end or self._cursors.count(first) != LANES or not self.is_idle:
            return None
        for unavailable in (delivery.taken, held.pending, held.uncommitted, held.cancelled):
            if unavailable and unavailable.max() >= first:
                return None
        if delivery.settled.end > first:
            return None
        lane = lanes.sole(first, end)
        return None if lane is None else Ahead(lane, first, end)

    def take(self, row: Ahead) -> None:
        """It was leased: nothing is left."""
        self._cursors = [row.end] * LANES
        self._shares.begin_afresh()

    # --- staging

    def stage(self, lanes: LaneIndex, delivery: Delivery, held: Held, *, start: int, end: int, want: int) -> None:
        """Find `want` of each lane, if there are so many; new ones below `end`. Raises ViewMissing."""
        self._drop_below(start)
        if self._unsorted:
            self._sort(lanes, delivery, held)
        for lane in range(LANES):
            staged = self._staged[lane]
            step = want - len(staged)
            while len(staged) < want and self._cursors[lane] < end:
                found, at = lanes.after(lane, self._cursors[lane], step)
                if found:
                    staged |= self._pickable(found, delivery, held)
                self._cursors[lane] = at
                step = min(4 * step, limits.STAGED_AT_ONCE)  # many may be settled or held: they are passed in strides

    def _pickable(self, offsets: BitMap64, delivery: Delivery, held: Held) -> BitMap64:
        """Those that are ready and that no poll has picked."""
        ready = ready_of(offsets, delivery, held)
        return ready - self._reserved if self._reserved else ready

    def _drop_below(self, start: int) -> None:
        """Retention went on."""
        if min(self._cursors) < start:
            self._cursors = [max(cursor, start) for cursor in self._cursors]
        for offsets in (*self._staged, self._unsorted):
            if offsets and offsets.min() < start:
                cut_below(offsets, start)

    def _sort(self, lanes: LaneIndex, delivery: Delivery, held: Held) -> None:
        """In slices, until there is something: a burst of delayed messages may be large, and a poll is not.

        A segment at a time: not all of their views may fit into memory at once.
        """
        count = 0
        while self._unsorted and (count < limits.SORTED_AT_ONCE or not self.has_staged):
            some = self._unsorted[: limits.SORTED_AT_ONCE]
            by_lane, end = lanes.sort(some)
            cut_from(some, end)
            for lane, offsets in enumerate(by_lane):
                if offsets:
                    self._staged[lane] |= self._pickable(offsets, delivery, held)
            self._unsorted -= some
            count += len(some)

    @property
    def has_staged(self) -> bool:
        return any(self._staged)

    def is_urgent(self, lanes: LaneIndex) -> bool:
        """Whether there may be something critical. Raises ViewMissing."""
        return bool(self._staged[Lane.CRITICAL]) or lanes.has(Lane.CRITICAL, self._cursors[Lane.CRITICAL])

    # --- picking

    def pick(self, budget: int, policy: Policy, now: int) -> list[Pick]:
        """Reserve what a poll is to be given, at most so many, in the order in which it is to be given."""
        ready = list(map(len, self._staged))
        shares = self._shares.share(
            budget, ready, policy.weights, strict=policy.strict, now=now, starving_ms=limits.STARVING_MS
        )
        picks = []
        for lane, count in enumerate(shares):
            if count:
                if count == ready[lane]:
                    offsets, self._staged[lane] = self._staged[lane], BitMap64()
                else:
                    offsets = self._staged[lane][:count]
                    self._staged[lane] -= offsets
                self._reserved |= offsets
                picks.append(Pick(lane, offsets))
        return picks

    def keep(self, picks: Sequence[Pick], now: int) -> list[int]:
        """These were leased, or are otherwise not to be picked again. How many of each lane."""
        taken = [0] * LANES
        for pick in picks:
            self._reserved -= pick.offsets
            taken[pick.lane] += len(pick.offsets)
        self._shares.served(taken, now)
        return taken

    def put_back(self, picks: Sequence[Pick], delivery: Delivery, held: Held) -> None:
        """These were not leased after all; some may have turned out to be gone."""
        for pick in picks:
            self._reserved -= pick.offsets
            self._staged[pick.lane] |= ready_of(pick.offsets, delivery, held)

    # --- statistics

    @property
    def waiting_since(self) -> list[int | None]:
        return self._shares.waiting_since


def ready_of(offsets: BitMap64, delivery: Delivery, held: Held) -> BitMap64:
    """Those of them that may be delivered."""
    found = lining_up(offsets, delivery, held)
    uncommitted = held.uncommitted
    return found - uncommitted if uncommitted and found.intersect(uncommitted) else found


def lining_up(offsets: BitMap64, delivery: Delivery, held: Held) -> BitMap64:
    """Those of them that may be delivered once their transactions are committed."""
    settled = delivery.settled
    if offsets and offsets.min() < settled.low:
        cut_below(offsets, settled.low)
    for unavailable in (settled.above, delivery.taken, held.pending, held.cancelled):
        if unavailable and offsets.intersect(unavailable):
            offsets = offsets - unavailable
    return offsets
