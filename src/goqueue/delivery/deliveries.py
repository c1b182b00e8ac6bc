"""The machine over a partition's sidecar log: every group's delivery on that partition.

A group that is resting costs sixteen bytes: its low mark in an array. The rest is made when it is delivered
something, and goes when everything is settled. A group that was never here begins where the partition begins.
"""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from goqueue.base.number_map import NumberMap
from goqueue.delivery import records
from goqueue.delivery.delivery import Delivery
from goqueue.delivery.records import (
    Delivered,
    Event,
    Fenced,
    Forgotten,
    Leased,
    Opened,
    Range,
    Reset,
    Resting,
    Returned,
    Settled,
    Skipped,
    Started,
)
from goqueue.machine.shape import Decision
from goqueue.model import limits
from goqueue.model.errors import Conflict, DamagedData
from goqueue.model.names import GroupNumber

_NOTHING = Decision((), None)
_BEGINNING = 0

# --- commands


class Fence(msgspec.Struct, frozen=True):
    """The data log is open and ends at `end`; nothing was appended to it yet."""

    end: int
    leader_epoch: int


class Start(msgspec.Struct, frozen=True):
    """Begin at `low`, unless the group was here before."""

    group: GroupNumber
    low: int


class Open(msgspec.Struct, frozen=True):
    """A new owner is about to be delivered something."""

    group: GroupNumber
    assignment_epoch: int


class Lease(msgspec.Struct, frozen=True):
    """Deliver these offsets, of what `next_ready` offers. Replies with the ranges and their deliveries.

    `start` is where the partition begins. Refused with a Conflict when somebody was faster, or moved the group.
    """

    group: GroupNumber
    assignment_epoch: int
    poll: int
    start: int
    spans: tuple[tuple[int, int], ...]
    """First offset and end, in the order in which they are delivered."""
    deadline: int = 0


class Settle(msgspec.Struct, frozen=True):
    """Done with what polls up to `to` were delivered below an offset."""

    group: GroupNumber
    below: int
    to: int = limits.MAX_OFFSET


class GiveBack(msgspec.Struct, frozen=True):
    """The replies of polls after `after`, up to `to`, did not arrive."""

    group: GroupNumber
    after: int
    to: int


class Skip(msgspec.Struct, frozen=True):
    """There is nothing at these offsets, which are ready. A Conflict when they are not, or no longer."""

    group: GroupNumber
    first: int
    end: int


class ResetTo(msgspec.Struct, frozen=True):
    group: GroupNumber
    low: int


class Forget(msgspec.Struct, frozen=True):
    """The group was deleted."""

    group: GroupNumber


# --- the machine


class Deliveries:
    """Refuses to lease what is not ready; everything else is decided by who asks."""

    name = "delivery"

    def __init__(self) -> None:
        self._decisions: dict[type, Callable[[Any], Decision]] = {
            Fence: lambda command: _decided(Fenced(command.end, command.leader_epoch)),
            Start: self._decide_start,
            Open: self._decide_open,
            Lease: self._decide_lease,
            Settle: self._decide_settle,
            GiveBack: self._decide_give_back,
            Skip: self._decide_skip,
            ResetTo: lambda command: _decided(Reset(command.group, command.low)),
            Forget: self._decide_forget,
        }
        self._changes: dict[type, Callable[[Any], None]] = {
            Fenced: self._apply_fenced,
            Started: self._apply_started,
            Opened: self._apply_opened,
            Leased: self._apply_leased,
            Settled: self._apply_settled,
            Returned: self._apply_returned,
            Reset: self._apply_reset,
            Skipped: self._apply_skipped,
            Forgotten: self._apply_forgotten,
            Resting: self._apply_resting,
            Delivered: self._apply_delivered,
        }
        self.reset()

    def reset(self) -> None:
        self._resting = NumberMap()
        self._active: dict[GroupNumber, Delivery] = {}

    # --- looking

    def __contains__(self, group: GroupNumber) -> bool:
        """Whether the group was ever here."""
        return group in self._active or self._resting.get(group) is not None

    @property
    def groups(self) -> list[GroupNumber]:
        return sorted([*self._active, *(GroupNumber(group) for group, _ in self._resting)])

    def low(self, group: GroupNumber) -> int | None:
        """Up to where the group has settled everything; None if it was never here."""
        active = self._active.get(group)
        return active.low if active is not None else self._resting.get(group)

    def in_flight(self, group: GroupNumber) -> int:
        """How many offsets the group was delivered and has not settled."""
        return self._delivery(group).in_flight

    def has_in_flight(self, group: GroupNumber) -> bool:
        active = self._active.get(group)
        return active is not None and bool(active.leases)

    def beyond(self, end: int) -> list[GroupNumber]:
        """The groups that were delivered, or have settled, something at or after `end`."""
        resting = [GroupNumber(group) for group, low in self._resting if low > end]
        return resting + [group for group, active in self._active.items() if active.cursor > end]

    @property
    def last_poll(self) -> int:
        """The highest number of a poll that holds something here; 0 for none."""
        return max((lease.poll for delivery in self._active.values() for lease in delivery.leases), default=0)

    def needs_open(self, group: GroupNumber, assignment_epoch: int) -> bool:
        """Whether an earlier owner still holds something."""
        active = self._active.get(group)
        return active is not None and active.has_stale_leases(assignment_epoch)

    def next_ready(self, group: GroupNumber, start: int) -> Range:
        """What the group is delivered next; an end of 0 is none. `start` is where the partition begins by now."""
        active = self._active.get(group)
        if active is not None:
            return active.next_ready(start)
        return Range(max(self._resting.get(group) or _BEGINNING, start), 0, 0)

    def overtaken(self, group: GroupNumber, start: int) -> int:
        """How many offsets went before the group was delivered them, or again, in a partition that begins at `start`.

        They count until the next lease. A group that was never here begins where the partition does: none.
        """
        return self._delivery(group).overtaken(start) if group in self else 0

    def unsettled(self, group: GroupNumber, start: int, end: int) -> int:
        """How many offsets of a partition that holds `start` up to `end` the group has not settled."""
        return self._delivery(group).unsettled(start, end)

    def _delivery(self, group: GroupNumber) -> Delivery:
        """To look at, not to change."""
        return self._active.get(group) or Delivery(self._resting.get(group) or _BEGINNING)

    # --- the shape of a machine

    def decide(self, command: Any, now: int) -> Decision:
        return self._decisions[type(command)](command)

    def apply(self, record: bytes, offset: int) -> None:
        try:
            event = records.decode(record)
            self._changes[type(event)](event)
        except (msgspec.DecodeError, ValueError) as error:
            raise DamagedData(
                f"offset {offset} of a sidecar log is not understood ({error}); start the version that wrote it"
            ) from error

    def snapshot(self) -> Iterable[bytes]:
        lows = tuple((GroupNumber(group), low) for group, low in self._resting)
        if lows:
            yield records.encode(Resting(lows))
        for group, delivery in self._active.items():
            yield records.encode(delivery.to_record(group))

    # --- decisions

    def _decide_start(self, command: Start) -> Decision:
        return _NOTHING if command.group in self else _decided(Started(command.group, command.low))

    def _decide_open(self, command: Open) -> Decision:
        if not self.needs_open(command.group, command.assignment_epoch):
            return _NOTHING
        return _decided(Opened(command.group, command.assignment_epoch))

    def _decide_lease(self, command: Lease) -> Decision:
        delivery = self._delivery(command.group)
        if not command.spans or not delivery.may_lease(command.start, command.spans):
            raise Conflict("these offsets are not what the group is to be delivered next; poll again")
        ranges = tuple(Range(first, end, delivery.deliveries_of(first) + 1) for first, end in command.spans)
        event = Leased(command.group, command.assignment_epoch, command.poll, command.deadline, command.start, ranges)
        return Decision([records.encode(event)], ranges)

    def _decide_skip(self, command: Skip) -> Decision:
        if not self._delivery(command.group).is_ready(command.first, command.end):
            raise Conflict(f"offsets {command.first} to {command.end - 1} are not ready to be delivered; poll again")
        return _decided(Skipped(command.group, command.first, command.end))

    def _decide_settle(self, command: Settle) -> Decision:
        if not self._delivery(command.group).has_leased_below(command.below, command.to):
            return _NOTHING
        return _decided(Settled(command.group, command.below, command.to))

    def _decide_give_back(self, command: GiveBack) -> Decision:
        if not self._delivery(command.group).has_leased_to(command.after, command.to):
            return _NOTHING
        return _decided(Returned(command.group, command.after, command.to))

    def _decide_forget(self, command: Forget) -> Decision:
        return _decided(Forgotten(command.group)) if command.group in self else _NOTHING

    # --- changes

    def _apply_fenced(self, event: Fenced) -> None:
        for group, low in self._resting:
            self._resting.set(group, min(low, event.end))
        for group, delivery in list(self._active.items()):
            delivery.clip(event.end)
            self._rest(group, delivery)

    def _apply_started(self, event: Started) -> None:
        self._resting.set(event.group, event.low)

    def _apply_opened(self, event: Opened) -> None:
        self._active[event.group].open(event.assignment_epoch)

    def _apply_leased(self, event: Leased) -> None:
        self._activate(event.group).lease(event)

    def _activate(self, group: GroupNumber) -> Delivery:
        delivery = self._active.get(group)
        if delivery is None:
            delivery = self._active[group] = Delivery(self._resting.pop(group) or _BEGINNING)
        return delivery

    def _apply_skipped(self, event: Skipped) -> None:
        delivery = self._activate(event.group)
        delivery.skip(event.first, event.end)
        self._rest(event.group, delivery)

    def _apply_settled(self, event: Settled) -> None:
        delivery = self._active[event.group]
        delivery.settle(event.below, event.to)
        self._rest(event.group, delivery)

    def _apply_returned(self, event: Returned) -> None:
        delivery = self._active[event.group]
        delivery.give_back(event.after, event.to)
        self._rest(event.group, delivery)

    def _apply_reset(self, event: Reset) -> None:
        self._active.pop(event.group, None)
        self._resting.set(event.group, event.low)

    def _apply_forgotten(self, event: Forgotten) -> None:
        self._active.pop(event.group, None)
        self._resting.pop(event.group)

    def _apply_resting(self, event: Resting) -> None:
        for group, low in event.lows:
            self._resting.set(group, low)

    def _apply_delivered(self, event: Delivered) -> None:
        self._active[event.group] = Delivery.from_record(event)

    def _rest(self, group: GroupNumber, delivery: Delivery) -> None:
        if delivery.is_resting:
            del self._active[group]
            self._resting.set(group, delivery.low)


def _decided(event: Event) -> Decision:
    return Decision([records.encode(event)], None)
