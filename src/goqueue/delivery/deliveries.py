"""The machine over a partition's sidecar log: every group's delivery on that partition, and what is the same for all.

A group that is resting costs sixteen bytes: its low mark in an array. The rest is made when it is delivered something,
and goes when everything is settled. A group that was never here begins where the partition begins.

Beside the hard state, which the log tells, there is soft state: what is selected next (`selection`), and when holds
are over by a clock that never steps (`arm`, `lapse_due`).
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice, zip_longest
from typing import Any, NamedTuple

import msgspec
from pyroaring import BitMap64

from goqueue.base.deadlines import Deadlines
from goqueue.base.number_map import NumberMap
from goqueue.base.offset_sets import column, cut_below, cut_from, first_gap, pack, ranged, unpack, within
from goqueue.delivery import commands, records
from goqueue.delivery.dead import Death, Outbox
from goqueue.delivery.delays import Delays
from goqueue.delivery.delivery import Delivery
from goqueue.delivery.holds import Hold, Lease, Wait
from goqueue.delivery.key_lines import KeyedSelection
from goqueue.delivery.records import (
    Abandoned,
    Buried,
    Cancelled,
    Deferred,
    Delivered,
    Done,
    Doomed,
    Event,
    Extended,
    Fenced,
    Forgotten,
    Lapsed,
    Leased,
    Mourned,
    Moved,
    Numbered,
    Opened,
    Postponed,
    Reason,
    Released,
    Reset,
    Resting,
    Returned,
    Settled,
    Skipped,
    Started,
)
from goqueue.delivery.selection import Selection, ready_of
from goqueue.delivery.statistics import ServedCounts
from goqueue.machine.shape import Decision
from goqueue.model import limits
from goqueue.model.errors import Conflict, DamagedData
from goqueue.model.groups import Mode
from goqueue.model.names import GroupNumber

_NOTHING = Decision((), None)
_BEGINNING = 0
_EMPTY = BitMap64()


class Due(NamedTuple):
    """A lease whose time is over, with the group it is of."""

    group: GroupNumber
    poll: int
    until: int


class Deliveries:
    """Refuses to lease what is not free, and handles that are stale; everything else is decided by who asks."""

    name = "delivery"

    def __init__(self, delays: Delays | None = None) -> None:
        self.delays = Delays() if delays is None else delays
        """Soft: what is delayed and not due."""
        self._decisions: dict[type, Callable[[Any, int], Decision]] = {
            commands.Fence: lambda command, _: _decided(Fenced(command.end, command.leader_epoch)),
            commands.Start: self._decide_start,
            commands.Open: self._decide_open,
            commands.Settle: self._decide_settle,
            commands.GiveBack: self._decide_give_back,
            commands.Skip: self._decide_skip,
            commands.ResetTo: lambda command, _: _decided(Reset(command.group, command.low)),
            commands.Forget: self._decide_forget,
            commands.Abandon: self._decide_abandon,
            commands.Lease: self._decide_lease,
            commands.Ack: self._decide_ack,
            commands.Nack: self._decide_nack,
            commands.Reject: self._decide_reject,
            commands.Extend: self._decide_extend,
            commands.Release: self._decide_release,
            commands.Lapse: self._decide_lapse,
            commands.Expire: self._decide_expire,
            commands.GiveUp: self._decide_give_up,
            commands.Finish: self._decide_finish,
            commands.Bury: self._decide_bury,
            commands.Cancel: self._decide_cancel,
            commands.Move: self._decide_move,
        }
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
        self._deadlines: Deadlines[Hold] = Deadlines()
        """Soft: holds that end."""
        self._of_hold: dict[Hold, GroupNumber] = {}
        """Soft: whose they are."""
        self._unarmed: list[Hold] = []
        self._is_live = False
        """Soft: whether the log was replayed; only then do holds run."""

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

    def is_drained(self, group: GroupNumber, end: int) -> bool:
        """Whether everything up to `end` is settled: the common case, and nothing is made to find it out."""
        low = self._resting.get(group)
        return low is not None and low >= end and group not in self._selections

    def is_in_order(self, group: GroupNumber) -> bool:
        """Whether nothing is settled above what is not."""
        active = self._active.get(group)
        return active is None or active.settled.is_plain

    def delivery(self, group: GroupNumber) -> Delivery:
        """To look at, not to change."""
        active = self._active.get(group)
        if active is not None:
            return active
        low = self._resting.get(group) or _BEGINNING
        rested = self._rested
        if rested is None or rested.low != low:
            rested = self._rested = Delivery(low)
        return rested

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
            found = KeyedSelection(delivery.low, self._keys_of(delivery)) if keyed else Selection(delivery.low)
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
        if fired:
            for group, selection in self._selections.items():
                selection.free(ready_of(fired.copy(), self.delivery(group), self))
        return fired

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
        for delivery in self._active.values():
            for hold in delivery.holds:
                if hold.due is None:
                    self._deadlines.arm(hold, hold.arm_again(now, wall))
        self._is_live = True

    def arm(self, now: int) -> None:
        """Holds that were just made begin to run."""
        for hold in self._unarmed:
            if hold.offsets:
                self._deadlines.arm(hold, hold.arm(now))
        self._unarmed = []

    def _hold(self, group: GroupNumber, hold: Hold) -> None:
        self._of_hold[hold] = group
        if self._is_live:
            self._unarmed.append(hold)

    def next_deadline(self) -> int | None:
        """When a hold is over, at the earliest."""
        return self._deadlines.earliest

    def lapse_due(self, now: int) -> tuple[list[Due], set[GroupNumber]]:
        """Leases whose time is over, for `Lapse`; and groups for which something is ready because a wait is over."""
        lapsed: list[Due] = []
        woken: set[GroupNumber] = set()
        for hold in self._deadlines.due(now):
            group = self._of_hold.pop(hold, None)
            delivery = self._active.get(group) if group is not None else None
            if group is None or delivery is None or not hold.offsets:
                continue
            if isinstance(hold, Wait):
                delivery.wait_over(hold)
                self._free(group, hold.offsets)
                woken.add(group)
            elif isinstance(hold, Lease):
                self._of_hold[hold] = group
                lapsed.append(Due(group, hold.poll, hold.until))
        return lapsed, woken

    def rearm(self, due: Iterable[Due], now: int, after_ms: int) -> None:
        """That these lapsed could not be written: try again later."""
        wanted = set(due)
        for hold, group in self._of_hold.items():
            if isinstance(hold, Lease) and Due(group, hold.poll, hold.until) in wanted:
                self._deadlines.arm(hold, now + after_ms)

    # --- the shape of a machine

    def decide(self, command: Any, now: int) -> Decision:
        return self._decisions[type(command)](command, now)

    def apply(self, record: bytes, offset: int) -> None:
        try:
            event = records.decode(record)
            self._changes[type(event)](event)
        except (msgspec.DecodeError, ValueError, LookupError) as error:
            raise DamagedData(
                f"offset {offset} of a sidecar log is not understood ({error}); start the version that wrote it"
            ) from error

    def snapshot(self) -> Iterable[bytes]:
        lows = tuple((GroupNumber(group), low) for group, low in self._resting)
        if lows:
            yield records.encode(Resting(lows))
        for group, delivery in self._active.items():
            yield records.encode(delivery.to_record(group))
        for mourned in self.outbox.to_records():
            yield records.encode(mourned)
        if self.last_poll:
            yield records.encode(Numbered(self.last_poll))
        if self.cancelled or self.moved:
            for cancelled, moved in zip_longest(_packed(self.cancelled), _pairs(self.moved)):
                yield records.encode(Postponed(cancelled or pack(_EMPTY), moved or ()))

    # --- decisions about groups

    def _decide_start(self, command: commands.Start, now: int) -> Decision:
        return _NOTHING if command.group in self else _decided(Started(command.group, command.low))

    def _decide_open(self, command: commands.Open, now: int) -> Decision:
        if not self.needs_open(command.group, command.assignment_epoch):
            return _NOTHING
        return _decided(Opened(command.group, command.assignment_epoch))

    def _decide_settle(self, command: commands.Settle, now: int) -> Decision:
        active = self._active.get(command.group)
        if active is None or not active.below(command.below, command.to, command.holder):
            return _NOTHING
        return _decided(Settled(command.group, command.below, command.to, command.holder))

    def _decide_give_back(self, command: commands.GiveBack, now: int) -> Decision:
        active = self._active.get(command.group)
        if active is None or not (
            active.leases_of(command.after, command.to, command.holder)
            or (not command.holder and active.lapsed_of(command.after, command.to))
        ):
            return _NOTHING
        return _decided(Returned(command.group, command.after, command.to, command.holder))

    def _decide_skip(self, command: commands.Skip, now: int) -> Decision:
        first, end = command.first, command.end
        if first >= end or not self.delivery(command.group).is_free(ranged(first, end)):
            raise Conflict(f"offsets {first} to {end - 1} are not ready to be delivered; poll again")
        return _decided(Skipped(command.group, first, end))

    def _decide_forget(self, command: commands.Forget, now: int) -> Decision:
        return _decided(Forgotten(command.group)) if command.group in self else _NOTHING

    def _decide_abandon(self, command: commands.Abandon, now: int) -> Decision:
        active = self._active.get(command.group)
        if active is None or not active.held_by(command.holder):
            return _NOTHING
        return _decided(Abandoned(command.group, command.holder))

    # --- decisions about messages

    def _decide_lease(self, command: commands.Lease, now: int) -> Decision:
        offsets, delivery = command.offsets, self.delivery(command.group)
        if not offsets or offsets.min() < command.start or not delivery.is_free(offsets):
            raise Conflict("these offsets are not what the group is to be delivered next; poll again")
        event = Leased(
            command.group,
            command.assignment_epoch,
            command.poll,
            command.holder,
            command.start,
            now + command.span_ms,
            command.span_ms,
            pack(offsets),
            command.keys,
        )
        return Decision([records.encode(event)], None)

    def _decide_ack(self, command: commands.Ack, now: int) -> Decision:
        good, refused = self._check(command.group, command.claims, Delivery.of_poll)
        events = [Done(command.group, pack(good), Reason.ACKED)] if good else []
        return Decision([records.encode(event) for event in events], refused)

    def _check(
        self,
        group: GroupNumber,
        claims: commands.Claims,
        look: Callable[[Delivery, int, BitMap64], BitMap64],
    ) -> tuple[BitMap64, dict[int, BitMap64]]:
        """What the handles may settle, and by poll what they may not."""
        active = self._active.get(group)
        good = BitMap64()
        refused: dict[int, BitMap64] = {}
        for poll, offsets in claims.items():
            mine = _EMPTY if active is None else look(active, poll, offsets)
            good |= mine
            if len(mine) < len(offsets):
                refused[poll] = offsets - mine
        return good, refused

    def _decide_nack(self, command: commands.Nack, now: int) -> Decision:
        good, refused = self._check(command.group, command.claims, Delivery.leased_to)
        delivery, retries = self.delivery(command.group), command.retries
        dead = BitMap64()
        until: dict[int, int] = {}
        by_span: dict[int, list[int]] = {}
        for offset in column(good):
            failed = delivery.deliveries_of(offset) + 1
            if failed > retries.most:
                dead.add(offset)
                continue
            span_ms = retries.backoff.delay_ms(failed) if command.delay_ms is None else command.delay_ms
            by_span.setdefault(span_ms, []).append(offset)
            until[offset] = now + span_ms
        events: list[Event] = [
            Deferred(command.group, pack(BitMap64(offsets)), now + span_ms, span_ms)
            for span_ms, offsets in by_span.items()
        ]
        events += _end(command.group, dead, Reason.NACKED, now, dead_letters=retries.dead_letters)
        return Decision([records.encode(event) for event in events], commands.Nacked(refused, until, dead))

    def _decide_reject(self, command: commands.Reject, now: int) -> Decision:
        good, refused = self._check(command.group, command.claims, Delivery.of_poll)
        events = _end(
            command.group, good, Reason.REJECTED, now, dead_letters=command.dead_letters, detail=command.detail
        )
        return Decision([records.encode(event) for event in events], refused)

    def _decide_extend(self, command: commands.Extend, now: int) -> Decision:
        _, refused = self._check(command.group, command.claims, Delivery.leased_to)
        until = now + command.span_ms
        events = [
            Extended(command.group, poll, pack(mine), until, command.span_ms)
            for poll, offsets in command.claims.items()
            if (mine := offsets - refused.get(poll, _EMPTY))
        ]
        return Decision([records.encode(event) for event in events], refused)

    def _decide_release(self, command: commands.Release, now: int) -> Decision:
        good, refused = self._check(command.group, command.claims, Delivery.leased_to)
        events = [Released(command.group, pack(good))] if good else []
        return Decision([records.encode(event) for event in events], refused)

    def _decide_lapse(self, command: commands.Lapse, now: int) -> Decision:
        active = self._active.get(command.group)
        events: list[Event] = []
        dead = BitMap64()
        for poll, until in command.leases:
            mine = [] if active is None else [each for each in active.leases.get(poll, ()) if each.until == until]
            if active is None or not mine:
                continue
            events.append(Lapsed(command.group, poll, until))
            for lease in mine:
                most = command.retries.most
                failed = [offset for offset in column(lease.offsets) if active.deliveries_of(offset) + 1 > most]
                dead.update(failed)
        events += _end(command.group, dead, Reason.LAPSED, now, dead_letters=command.retries.dead_letters)
        return Decision([records.encode(event) for event in events], dead)

    def _decide_expire(self, command: commands.Expire, now: int) -> Decision:
        if not self.delivery(command.group).is_free(command.offsets):
            raise Conflict("these offsets are not ready to be delivered; poll again")
        events = _end(command.group, command.offsets, Reason.EXPIRED, now, dead_letters=command.dead_letters)
        return Decision([records.encode(event) for event in events], None)

    def _decide_give_up(self, command: commands.GiveUp, now: int) -> Decision:
        if not self.delivery(command.group).is_free(command.offsets):
            raise Conflict("these offsets are not ready to be delivered; poll again")
        events = _end(command.group, command.offsets, Reason.LAPSED, now, dead_letters=command.dead_letters)
        return Decision([records.encode(event) for event in events], None)

    def _decide_finish(self, command: commands.Finish, now: int) -> Decision:
        settled = self.delivery(command.group).settled
        offsets = command.offsets - settled.above
        cut_below(offsets, settled.low)
        return _decided(Done(command.group, pack(offsets), Reason.ACKED)) if offsets else _NOTHING

    def _decide_bury(self, command: commands.Bury, now: int) -> Decision:
        return _decided(Buried(command.below)) if command.below > self.outbox.first else _NOTHING

    def _decide_cancel(self, command: commands.Cancel, now: int) -> Decision:
        pending = command.offsets & self.delays.pending
        events = [Cancelled(pack(pending))] if pending else []
        return Decision([records.encode(event) for event in events], command.offsets - pending)

    def _decide_move(self, command: commands.Move, now: int) -> Decision:
        pending = command.offsets & self.delays.pending
        events = [Moved(pack(pending), command.deliver_at)] if pending else []
        return Decision([records.encode(event) for event in events], command.offsets - pending)

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
        self._disarm(delivery)

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
            self._disarm(active)
        self._resting.pop(group)

    def _apply_abandoned(self, event: Abandoned) -> None:
        delivery = self._active[event.group]
        held = BitMap64()
        for lease in delivery.leases_of(0, limits.MAX_OFFSET, event.holder):
            held |= lease.offsets
        delivery.fail(held, 0)
        self._disarm(delivery)
        self._free(event.group, held)

    def _activate(self, group: GroupNumber) -> Delivery:
        delivery = self._active.get(group)
        if delivery is None:
            delivery = self._active[group] = Delivery(self._resting.pop(group) or _BEGINNING)
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
            self._disarm(delivery)
        if delivery.low in self.cancelled:  # but what was delivered before a clock went back is not passed over
            delivery.settled.pass_over(self.cancelled - delivery.taken - delivery.tries.offsets)
        if delivery.is_resting:
            del self._active[group]
            self._resting.set(group, delivery.low)
            selection = self._selections.get(group)
            if selection is not None and selection.is_idle:
                del self._selections[group]

    def _disarm(self, delivery: Delivery) -> None:
        for hold in delivery.ended:
            self._deadlines.disarm(hold)
            self._of_hold.pop(hold, None)
        delivery.ended = []

    # --- changes to messages

    def _apply_leased(self, event: Leased) -> None:
        delivery = self._activate(event.group)
        self.last_poll = max(self.last_poll, event.poll)
        if delivery.has_stale_leases(event.assignment_epoch):
            self._free(event.group, delivery.open(event.assignment_epoch))
        if event.start > delivery.low:
            self._tell_settled(event.group, delivery.raise_to(event.start))
        self._hold(event.group, delivery.lease(event))
        if delivery.ended:
            self._disarm(delivery)

    def _apply_done(self, event: Done) -> None:
        self._settle(event.group, self._activate(event.group), unpack(event.offsets))

    def _apply_deferred(self, event: Deferred) -> None:
        delivery = self._active[event.group]
        self._hold(event.group, delivery.defer(unpack(event.offsets), event.until, event.span_ms))
        self._disarm(delivery)

    def _apply_lapsed(self, event: Lapsed) -> None:
        delivery = self._active[event.group]
        lapsed = BitMap64()
        for lease in delivery.leases.get(event.poll, ()):
            if lease.until == event.until:
                lapsed |= lease.offsets
        delivery.fail(lapsed, event.poll)
        self._disarm(delivery)
        self._free(event.group, lapsed)

    def _apply_extended(self, event: Extended) -> None:
        delivery = self._active[event.group]
        self._hold(event.group, delivery.extend(event.poll, unpack(event.offsets), event.until, event.span_ms))
        self._disarm(delivery)

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
        self._disarm(delivery)
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

    # --- changes to what is the same for all groups

    def _apply_cancelled(self, event: Cancelled) -> None:
        offsets = unpack(event.offsets)
        self.cancelled |= offsets
        self.delays.drop(offsets)
        for number, selection in self._selections.items():
            selection.settle(offsets - self.delivery(number).taken)
        for offset in [offset for offset in self.moved if offset in offsets] if self.moved else ():
            del self.moved[offset]
        for group, low in self._resting:
            if low in self.cancelled:
                self._resting.set(group, first_gap(self.cancelled, low))
        for group, delivery in list(self._active.items()):
            self._rest(group, delivery)

    def _apply_moved(self, event: Moved) -> None:
        self.moved.update((offset, event.deliver_at) for offset in column(unpack(event.offsets)))

    def forget_below(self, start: int) -> None:
        """The log begins there by now: what was cancelled or moved before is no longer needed."""
        if self.cancelled and self.cancelled.min() < start:
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
            self._of_hold[hold] = event.group

    def _apply_numbered(self, event: Numbered) -> None:
        self.last_poll = max(self.last_poll, event.poll)

    def _apply_postponed(self, event: Postponed) -> None:
        self.cancelled |= unpack(event.cancelled)
        self.moved.update(event.moved)


def _decided(event: Event) -> Decision:
    return Decision([records.encode(event)], None)


def _packed(offsets: BitMap64) -> Iterator[bytes]:
    """In as many parts as are needed for none to be too large for a snapshot."""
    packed = pack(offsets)
    if len(packed) <= records.MOST_BYTES:
        yield packed
        return
    half = within(offsets, 0, offsets[len(offsets) // 2])
    yield from _packed(half)
    yield from _packed(offsets - half)


def _pairs(moved: dict[int, int]) -> Iterator[tuple[tuple[int, int], ...]]:
    """Offsets and times, as many at once as fit."""
    rest = iter(moved.items())
    while pairs := tuple(islice(rest, records.MOST_MOVED)):
        yield pairs


def _end(
    group: GroupNumber, offsets: BitMap64, reason: Reason, now: int, *, dead_letters: bool, detail: str = ""
) -> Iterator[Event]:
    """They are not delivered any more: to the dead-letter topic, or dropped."""
    if offsets and dead_letters:
        yield Doomed(group, pack(offsets), reason, now, detail)
    elif offsets:
        yield Done(group, pack(offsets), reason)
