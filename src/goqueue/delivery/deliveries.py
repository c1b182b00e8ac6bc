"""The machine over a partition's sidecar log: every group's delivery on that partition, and what is the same for all.

A group that is resting costs sixteen bytes: its low mark in an array. The rest is made when it is delivered something,
and goes when everything is settled. A group that was never here begins where the partition begins.

What commands lead to is decided in `decisions`; here is the state they look at, and what each record does to it.
Beside this hard state, which the log tells, there is soft state: what is selected next (`selection`), and when holds
are over by a clock that never steps (`running_holds`).
"""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from pyroaring import BitMap64

from goqueue.base.number_map import NumberMap
from goqueue.base.offset_sets import column, cut_below, cut_from, first_gap, ranged, unpack
from goqueue.delivery import decisions, records
from goqueue.delivery.dead import Death, Outbox
from goqueue.delivery.delays import Delays
from goqueue.delivery.delivery import Delivery
from goqueue.delivery.holds import Lease, Wait
from goqueue.delivery.key_lines import KeyedSelection
from goqueue.delivery.records import (
    Abandoned,
    Buried,
    Cancelled,
    Deferred,
    Delivered,
    Done,
    Doomed,
    Extended,
    Fenced,
    Forgotten,
    Lapsed,
    Leased,
    Mourned,
    Moved,
    Numbered,
    Opened,
    Pledged,
    Postponed,
    Redeemed,
    Released,
    Reset,
    Resting,
    Returned,
    Settled,
    Skipped,
    Started,
)
from goqueue.delivery.running_holds import Due, RunningHolds
from goqueue.delivery.selection import Selection, ready_of
from goqueue.delivery.statistics import ServedCounts
from goqueue.machine.shape import Decision
from goqueue.model import limits
from goqueue.model.errors import DamagedData
from goqueue.model.groups import Mode
from goqueue.model.names import GroupNumber

_BEGINNING = 0


class Deliveries:
    """Hard state is changed only by what the log says, soft state also by time and by whoever polls."""

    name = "delivery"

    def __init__(self, delays: Delays | None = None, uncommitted: BitMap64 | None = None) -> None:
        self.delays = Delays() if delays is None else delays
        """Soft: what is delayed and not due."""
        self.uncommitted = BitMap64() if uncommitted is None else uncommitted
        """Soft, and somebody else's: what belongs to open transactions."""
        self._running = RunningHolds()
        """Soft: when holds are over."""
        self._changes: dict[type, Callable[[Any], None]] = {
            Fenced: self._apply_fenced,
            Started: self._apply_started,
            Opened: self._apply_opened,
            Settled: self._apply_settled,
            Returned: self._apply_returned,
            Skipped: self._apply_skipped,
            Reset: self._apply_reset,
            Forgotten: self._apply_forgotten,
            Abandoned: self._apply_abandoned,
            Leased: self._apply_leased,
            Done: self._apply_done,
            Deferred: self._apply_deferred,
            Lapsed: self._apply_lapsed,
            Extended: self._apply_extended,
            Released: self._apply_released,
            Numbered: self._apply_numbered,
            Doomed: self._apply_doomed,
            Buried: self._apply_buried,
            Pledged: self._apply_pledged,
            Redeemed: self._apply_redeemed,
            Cancelled: self._apply_cancelled,
            Moved: self._apply_moved,
            Resting: self._apply_resting,
            Delivered: self._apply_delivered,
            Mourned: lambda event: self.outbox.restore(event),
            Postponed: self._apply_postponed,
        }
        self.reset()

    def reset(self) -> None:
        self._resting = NumberMap()
        self._active: dict[GroupNumber, Delivery] = {}
        self._rested: Delivery | None = None
        """Soft: how the group looks that rests and was looked at last. Groups that rest differ in nothing but `low`."""
        self.outbox = Outbox()
        self.cancelled = BitMap64()
        self.moved: dict[int, int] = {}
        """When messages are due that were moved to another time."""
        self.last_poll = 0
        """The highest number of a poll that was ever given something here: it is not given out again."""
        self._selections: dict[GroupNumber, Selection] = {}
        """Soft."""
        self.served = ServedCounts()
        """Soft: what groups were served since the start."""
        self._running.reset()

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
        return active.low if active is not None else self._rested_at(group)

    def is_drained(self, group: GroupNumber, assignment_epoch: int, end: int) -> bool:
        """Whether its owner finds nothing up to `end`: all is settled, or all was delivered, in order, and some is not.

        Those are the common cases, and nothing is made to find it out. Where something is settled above what is not,
        somebody has to look: there may be holes.
        """
        active, selection = self._active.get(group), self._selections.get(group)
        if active is None:
            low = self._rested_at(group)
            if low is None or selection is None:
                return low is not None and low >= end
            return self.is_held(low) and selection.is_spent(end)
        if selection is None or active.has_stale_leases(assignment_epoch):
            return False
        is_clear = self.is_held(active.low) or (active.settled.is_plain and bool(active.taken))
        return is_clear and selection.is_spent(end)

    def is_in_order(self, group: GroupNumber) -> bool:
        """Whether nothing is settled above what is not, or it is known what keeps the group from going on."""
        active = self._active.get(group)
        return active is None or active.settled.is_plain or self.is_held(active.low)

    def is_held(self, offset: int) -> bool:
        """Whether its time has not come, or its transaction is open: for all groups."""
        return offset in self.uncommitted or offset in self.delays.pending

    def pledged(self, transaction: int) -> dict[GroupNumber, int]:
        """How many messages groups are done with if it commits."""
        return {
            group: len(delivery.pledges[transaction].offsets)
            for group, delivery in self._active.items()
            if transaction in delivery.pledges
        }

    @property
    def pledged_to(self) -> set[int]:
        """Transactions that something is pledged to."""
        return {transaction for delivery in self._active.values() for transaction in delivery.pledges}

    def delivery(self, group: GroupNumber) -> Delivery:
        """To look at, not to change."""
        active = self._active.get(group)
        if active is not None:
            return active
        low = self._rested_at(group) or _BEGINNING
        rested = self._rested
        if rested is None or rested.low != low:
            rested = self._rested = Delivery(low)
        return rested

    def _rested_at(self, group: GroupNumber) -> int | None:
        """The low mark of a group that rests. What was cancelled there is passed over when somebody looks: groups are
        many, and so are the markers of transactions."""
        low = self._resting.get(group)
        return None if low is None else first_gap(self.cancelled, low)

    def not_settled(self, group: GroupNumber, offsets: BitMap64) -> BitMap64:
        """Those of them that the group is not done with."""
        settled = self.delivery(group).settled
        left = offsets - settled.above
        cut_below(left, settled.low)
        return left

    def in_flight(self, group: GroupNumber) -> int:
        """How many offsets the group was delivered and has not settled."""
        active = self._active.get(group)
        return 0 if active is None else active.in_flight

    @property
    def active_groups(self) -> list[GroupNumber]:
        """Those with more to say than a low mark: only they have something in flight, or waiting."""
        return list(self._active)

    @property
    def taken(self) -> BitMap64:
        """Offsets that any group was delivered and may still try again, or bury."""
        return BitMap64.union(BitMap64(), *(active.taken for active in self._active.values()))

    def waiting(self, group: GroupNumber) -> int:
        """How many offsets failed and are not tried again yet."""
        active = self._active.get(group)
        return 0 if active is None else sum(len(wait.offsets) for wait in active.waits)

    def leased_in(self, group: GroupNumber, leases: Iterable[tuple[int, int]]) -> int:
        """How many offsets these leases hold, named by their polls and until when they last."""
        wanted = set(leases)
        found = self.delivery(group).leases
        held = [lease for poll in {poll for poll, _ in wanted} for lease in found.get(poll, ())]
        return sum(len(lease.offsets) for lease in held if (lease.poll, lease.until) in wanted)

    def has_in_flight(self, group: GroupNumber) -> bool:
        active = self._active.get(group)
        return active is not None and bool(active.leases)

    def held_by(self, group: GroupNumber, holder: str) -> int:
        """How many offsets are leased to one holder."""
        active = self._active.get(group)
        return 0 if active is None else active.held_by(holder)

    def taken_of(self, group: GroupNumber) -> int:
        """How many offsets are leased to anybody, wait to be tried again, or are dead and not buried."""
        active = self._active.get(group)
        return 0 if active is None else len(active.taken)

    def beyond(self, end: int) -> list[GroupNumber]:
        """The groups that were delivered, or have settled, something at or after `end`."""
        resting = [GroupNumber(group) for group, low in self._resting if low > end]
        return resting + [group for group, active in self._active.items() if active.end > end]

    def needs_open(self, group: GroupNumber, assignment_epoch: int) -> bool:
        """Whether an earlier owner still holds something."""
        active = self._active.get(group)
        return active is not None and active.has_stale_leases(assignment_epoch)

    def overtaken(self, group: GroupNumber, start: int) -> int:
        """How many offsets went before the group was delivered them, or again, in a partition that begins at `start`.

        They count until the next lease. A group that was never here begins where the partition does: none.
        """
        low = self.low(group)
        return 0 if low is None or start <= low else self.delivery(group).overtaken(start, self.cancelled)

    def unsettled(self, group: GroupNumber, start: int, end: int) -> int:
        """How many offsets of a partition that holds `start` up to `end` the group has not settled."""
        settled = self.delivery(group).settled
        unsettled = max(end - start, 0) - settled.count(start, end)
        if self.cancelled and start < end:
            first = max(start, settled.low)
            unsettled -= self.cancelled.range_cardinality(first, end) if first < end else 0
            unsettled += (self.cancelled & settled.above).range_cardinality(first, end) if first < end else 0
        return unsettled

    # --- selecting (soft)

    def selection(self, group: GroupNumber, mode: Mode = Mode.PARTITION) -> Selection:
        """What the group is delivered next."""
        found = self._selections.get(group)
        if found is None:
            delivery = self.delivery(group)
            keyed = mode is Mode.KEY
            low = delivery.low
            found = KeyedSelection(low, self._keys_of(delivery), self.uncommitted) if keyed else Selection(low)
            self._selections[group] = found
        return found

    def _keys_of(self, delivery: Delivery) -> dict[int, int]:
        """Of what holds up its key: what was delivered, unless it was cancelled then, after a clock had gone back."""
        if not self.cancelled:
            return delivery.keys
        held = delivery.taken
        return {offset: key for offset, key in delivery.keys.items() if offset in held or offset not in self.cancelled}

    @property
    def selections(self) -> dict[GroupNumber, Selection]:
        """Those there are, to look at."""
        return self._selections

    @property
    def pending(self) -> BitMap64:
        return self.delays.pending

    def fire(self, *, wall: int, now: int, limit: int) -> BitMap64:
        """Delayed messages that are due from now on, for every group."""
        fired = self.delays.fire(wall=wall, now=now, limit=limit)
        self._free_all(fired)
        return fired

    def end_transaction(self, transaction: int, committed: BitMap64) -> None:
        """It holds nothing up any more, and these messages of it may be delivered, if they are due."""
        for selection in self._selections.values():
            selection.unblock(transaction)
        self._free_all(committed)

    def _free_all(self, offsets: BitMap64) -> None:
        """They may be delivered from now on, to every group."""
        if offsets:
            for group, selection in self._selections.items():
                selection.free(ready_of(offsets.copy(), self.delivery(group), self))

    def _free(self, group: GroupNumber, offsets: BitMap64) -> None:
        selection = self._selections.get(group)
        if selection is not None and offsets:
            if offsets.intersect(self.cancelled):  # they were delivered before a clock went back
                selection.settle(offsets & self.cancelled)
                offsets = offsets - self.cancelled
            selection.free(offsets)

    # --- time (soft)

    def begin_life(self, *, wall: int, now: int) -> None:
        """After a restart: holds last as long as they have left."""
        holds = [hold for delivery in self._active.values() for hold in delivery.holds]
        self._running.begin_life(holds, wall=wall, now=now)

    def arm(self, now: int) -> None:
        """Holds that were just made begin to run."""
        self._running.arm(now)

    def next_deadline(self) -> int | None:
        """When a hold is over, at the earliest."""
        return self._running.next_deadline()

    def lapse_due(self, now: int) -> tuple[list[Due], set[GroupNumber]]:
        """Leases whose time is over, for `Lapse`; and groups for which something is ready because a wait is over."""
        lapsed: list[Due] = []
        woken: set[GroupNumber] = set()
        for group, hold in self._running.due(now):
            delivery = self._active.get(group)
            if delivery is None:
                continue
            if isinstance(hold, Wait):
                delivery.wait_over(hold)
                self._free(group, hold.offsets)
                woken.add(group)
            elif isinstance(hold, Lease):
                lapsed.append(Due(group, hold.poll, hold.until))
        return lapsed, woken

    def rearm(self, due: Iterable[Due], now: int, after_ms: int) -> None:
        """That these leases lapsed could not be written: try again later."""
        self._running.rearm(due, now, after_ms)

    # --- the shape of a machine

    def decide(self, command: Any, now: int) -> Decision:
        return decisions.decide(self, command, now)

    def apply(self, record: bytes, offset: int) -> None:
        try:
            event = records.decode(record)
            self._changes[type(event)](event)
        except (msgspec.DecodeError, ValueError, LookupError) as error:
            raise DamagedData(
                f"offset {offset} of a sidecar log is not understood ({error}); start the version that wrote it"
            ) from error

    def snapshot(self) -> Iterable[bytes]:
        lows = tuple((GroupNumber(group), first_gap(self.cancelled, low)) for group, low in self._resting)
        if lows:
            yield records.encode(Resting(lows))
        for group, delivery in self._active.items():
            yield records.encode(delivery.to_record(group))
        for mourned in self.outbox.to_records():
            yield records.encode(mourned)
        if self.last_poll:
            yield records.encode(Numbered(self.last_poll))
        for postponed in records.postponed(self.cancelled, self.moved):
            yield records.encode(postponed)

    # --- changes to groups

    def _apply_fenced(self, event: Fenced) -> None:
        for group, low in self._resting:
            self._resting.set(group, min(low, event.end))
        self.outbox.void(event.end)
        cut_from(self.cancelled, event.end)
        self.moved = {offset: time for offset, time in self.moved.items() if offset < event.end}
        self._selections = {}
        for group, delivery in list(self._active.items()):
            delivery.clip(event.end)
            self._rest(group, delivery)

    def _apply_started(self, event: Started) -> None:
        self._selections.pop(event.group, None)
        self._resting.set(event.group, first_gap(self.cancelled, event.low))

    def _apply_opened(self, event: Opened) -> None:
        delivery = self._active[event.group]
        self._free(event.group, delivery.open(event.assignment_epoch))
        self._running.drop_ended(delivery)

    def _apply_settled(self, event: Settled) -> None:
        delivery = self._active[event.group]
        self._settle(event.group, delivery, delivery.below(event.below, event.to, event.holder))

    def _apply_returned(self, event: Returned) -> None:
        delivery = self._active[event.group]
        unread = BitMap64()
        for lease in delivery.leases_of(event.after, event.to, event.holder):
            unread |= lease.offsets
        delivery.give_back(unread)
        self._free(event.group, unread)
        if not event.holder:  # a commit would settle them
            delivery.forgive(delivery.lapsed_of(event.after, event.to))
        self._rest(event.group, delivery)

    def _apply_skipped(self, event: Skipped) -> None:
        self._settle(event.group, self._activate(event.group), ranged(event.first, event.end))

    def _apply_reset(self, event: Reset) -> None:
        self._drop(event.group)
        self._resting.set(event.group, first_gap(self.cancelled, event.low))

    def _apply_forgotten(self, event: Forgotten) -> None:
        self._drop(event.group)
        self.served.forget(event.group)

    def _drop(self, group: GroupNumber) -> None:
        self._selections.pop(group, None)
        active = self._active.pop(group, None)
        if active is not None:
            active.ended += active.holds
            self._running.drop_ended(active)
        self._resting.pop(group)

    def _apply_abandoned(self, event: Abandoned) -> None:
        delivery = self._active[event.group]
        held = BitMap64()
        for lease in delivery.leases_of(0, limits.MAX_OFFSET, event.holder):
            held |= lease.offsets
        delivery.fail(held, 0)
        self._running.drop_ended(delivery)
        self._free(event.group, held)

    def _activate(self, group: GroupNumber) -> Delivery:
        delivery = self._active.get(group)
        if delivery is None:
            delivery = self._active[group] = Delivery(self._rested_at(group) or _BEGINNING)
            self._resting.pop(group)
        return delivery

    def _settle(self, group: GroupNumber, delivery: Delivery, offsets: BitMap64) -> None:
        delivery.settle(offsets)
        self._tell_settled(group, offsets)
        self._rest(group, delivery)

    def _tell_settled(self, group: GroupNumber, offsets: BitMap64) -> None:
        selection = self._selections.get(group)
        if selection is not None and offsets:
            selection.settle(offsets)

    def _rest(self, group: GroupNumber, delivery: Delivery) -> None:
        if delivery.ended:
            self._running.drop_ended(delivery)
        if delivery.low in self.cancelled:  # but what was delivered before a clock went back is not passed over
            delivery.settled.pass_over(self.cancelled, (delivery.taken, delivery.tries.offsets))
        if delivery.is_resting:
            del self._active[group]
            self._resting.set(group, delivery.low)
            selection = self._selections.get(group)
            if selection is not None and selection.is_idle:
                del self._selections[group]

    # --- changes to messages

    def _apply_leased(self, event: Leased) -> None:
        delivery = self._activate(event.group)
        self.last_poll = max(self.last_poll, event.poll)
        if delivery.has_stale_leases(event.assignment_epoch):
            self._free(event.group, delivery.open(event.assignment_epoch))
        if event.start > delivery.low:
            self._tell_settled(event.group, delivery.raise_to(event.start))
        self._running.add(event.group, delivery.lease(event))
        if delivery.ended:
            self._running.drop_ended(delivery)

    def _apply_done(self, event: Done) -> None:
        self._settle(event.group, self._activate(event.group), unpack(event.offsets))

    def _apply_deferred(self, event: Deferred) -> None:
        delivery = self._active[event.group]
        self._running.add(event.group, delivery.defer(unpack(event.offsets), event.until, event.span_ms))
        self._running.drop_ended(delivery)

    def _apply_lapsed(self, event: Lapsed) -> None:
        delivery = self._active[event.group]
        lapsed = BitMap64()
        for lease in delivery.leases.get(event.poll, ()):
            if lease.until == event.until:
                lapsed |= lease.offsets
        delivery.fail(lapsed, event.poll)
        self._running.drop_ended(delivery)
        self._free(event.group, lapsed)

    def _apply_extended(self, event: Extended) -> None:
        delivery = self._active[event.group]
        self._running.add(event.group, delivery.extend(event.poll, unpack(event.offsets), event.until, event.span_ms))
        self._running.drop_ended(delivery)

    def _apply_released(self, event: Released) -> None:
        delivery = self._active[event.group]
        offsets = unpack(event.offsets)
        delivery.give_back(offsets)
        self._free(event.group, offsets)
        self._rest(event.group, delivery)

    def _apply_doomed(self, event: Doomed) -> None:
        delivery = self._activate(event.group)
        offsets = unpack(event.offsets)
        delivery.doom(offsets)
        self._running.drop_ended(delivery)
        selection = self._selections.get(event.group)
        if selection is not None:
            selection.withdraw(offsets)
        self.outbox.add(
            Death(event.group, offset, event.reason, delivery.deliveries_of(offset), event.at, event.detail)
            for offset in column(offsets)
        )

    def _apply_buried(self, event: Buried) -> None:
        by_group: dict[GroupNumber, BitMap64] = {}
        for death in self.outbox.done(event.below):
            if not death.void:  # else another message has its offset by now
                by_group.setdefault(death.group, BitMap64()).add(death.offset)
        for group, offsets in by_group.items():
            delivery = self._active.get(group)
            if delivery is not None and (mine := offsets & delivery.dead):
                self._settle(group, delivery, mine)

    def _apply_pledged(self, event: Pledged) -> None:
        delivery = self._active[event.group]
        offsets = unpack(event.offsets)
        delivery.pledge(event.transaction, offsets)
        self._running.drop_ended(delivery)
        selection = self._selections.get(event.group)
        if selection is not None:  # a handle is good until the message is delivered again
            selection.withdraw(offsets)

    def _apply_redeemed(self, event: Redeemed) -> None:
        for group, delivery in list(self._active.items()):
            if event.transaction not in delivery.pledges:
                continue
            if event.commits:
                self._settle(group, delivery, delivery.pledged(event.transaction))
            else:
                self._free(group, delivery.unpledge(event.transaction))

    # --- changes to what is the same for all groups

    def _apply_cancelled(self, event: Cancelled) -> None:
        offsets = unpack(event.offsets)
        self.cancelled |= offsets
        self.delays.drop(offsets)
        for number, selection in self._selections.items():
            selection.settle(offsets - self.delivery(number).taken)
        for offset in [offset for offset in self.moved if offset in offsets] if self.moved else ():
            del self.moved[offset]
        for group, delivery in [item for item in self._active.items() if item[1].low in offsets]:
            self._rest(group, delivery)

    def _apply_moved(self, event: Moved) -> None:
        self.moved.update((offset, event.deliver_at) for offset in column(unpack(event.offsets)))

    def forget_below(self, start: int) -> None:
        """The log begins there by now: what was cancelled or moved before is no longer needed."""
        if self.cancelled and self.cancelled.min() < start:
            for group, low in self._resting:
                self._resting.set(group, first_gap(self.cancelled, low))
            self.cancelled.remove_range(0, start)
        if self.moved and min(self.moved) < start:
            self.moved = {offset: time for offset, time in self.moved.items() if offset >= start}

    # --- snapshots

    def _apply_resting(self, event: Resting) -> None:
        for group, low in event.lows:
            self._resting.set(group, low)

    def _apply_delivered(self, event: Delivered) -> None:
        self._active[event.group] = delivery = Delivery.from_record(event)
        self.last_poll = max(self.last_poll, delivery.last_poll)  # earlier versions wrote no number
        for hold in delivery.holds:
            self._running.add(event.group, hold)

    def _apply_numbered(self, event: Numbered) -> None:
        self.last_poll = max(self.last_poll, event.poll)

    def _apply_postponed(self, event: Postponed) -> None:
        self.cancelled |= unpack(event.cancelled)
        self.moved.update(event.moved)
