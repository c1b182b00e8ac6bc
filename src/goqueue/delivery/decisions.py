"""What becomes of a command: which records are written, or why it is refused. One function for each command, one table.

They look at the deliveries and change nothing; what the records do is in `deliveries`. Two questions are answered here
and nowhere else. *Is it free?* Offsets that are to be leased, passed over or ended must be ready for the group; a
Conflict says that somebody was faster. *Whose handle is good?* Claims are taken one poll at a time, and those that are
stale are refused in the reply, not with an error. What a command asks for and is so already is written no second time.

`now` is Unix time: what it leads to must be true also after a restart.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

from pyroaring import BitMap64

from goqueue.base.offset_sets import column, pack, ranged
from goqueue.delivery import commands, records
from goqueue.delivery.dead import Outbox
from goqueue.delivery.delivery import Delivery
from goqueue.delivery.records import (
    Abandoned,
    Buried,
    Cancelled,
    Deferred,
    Done,
    Doomed,
    Event,
    Extended,
    Fenced,
    Forgotten,
    Lapsed,
    Leased,
    Moved,
    Opened,
    Pledged,
    Reason,
    Redeemed,
    Released,
    Reset,
    Returned,
    Settled,
    Skipped,
    Started,
)
from goqueue.machine.shape import Decision
from goqueue.model.errors import Conflict
from goqueue.model.names import GroupNumber
from goqueue.model.transactions import transaction_id

_NOTHING: Final = Decision((), None)
_EMPTY: Final = BitMap64()


class State(Protocol):
    """What is looked at: a partition's deliveries."""

    def __contains__(self, group: GroupNumber) -> bool: ...
    def delivery(self, group: GroupNumber) -> Delivery: ...
    def not_settled(self, group: GroupNumber, offsets: BitMap64) -> BitMap64: ...
    @property
    def outbox(self) -> Outbox: ...
    @property
    def pending(self) -> BitMap64: ...
    @property
    def cancelled(self) -> BitMap64: ...
    def pledged(self, transaction: int) -> dict[GroupNumber, int]: ...


def decide(state: State, command: Any, now: int) -> Decision:
    return _DECISIONS[type(command)](state, command, now)


# --- groups


def _fence(_state: State, command: commands.Fence, _now: int) -> Decision:
    return _decided(Fenced(command.end, command.leader_epoch))


def _start(state: State, command: commands.Start, _now: int) -> Decision:
    return _NOTHING if command.group in state else _decided(Started(command.group, command.low))


def _open(state: State, command: commands.Open, _now: int) -> Decision:
    if not state.delivery(command.group).has_stale_leases(command.assignment_epoch):
        return _NOTHING
    return _decided(Opened(command.group, command.assignment_epoch))


def _settle(state: State, command: commands.Settle, _now: int) -> Decision:
    if not state.delivery(command.group).below(command.below, command.to, command.holder):
        return _NOTHING
    return _decided(Settled(command.group, command.below, command.to, command.holder))


def _give_back(state: State, command: commands.GiveBack, _now: int) -> Decision:
    delivery = state.delivery(command.group)
    if not (
        delivery.leases_of(command.after, command.to, command.holder)
        or (not command.holder and delivery.lapsed_of(command.after, command.to))
    ):
        return _NOTHING
    return _decided(Returned(command.group, command.after, command.to, command.holder))


def _skip(state: State, command: commands.Skip, _now: int) -> Decision:
    first, end = command.first, command.end
    if first >= end or not state.delivery(command.group).is_free(ranged(first, end)):
        raise Conflict(f"offsets {first} to {end - 1} are not ready to be delivered; poll again")
    return _decided(Skipped(command.group, first, end))


def _reset_to(_state: State, command: commands.ResetTo, _now: int) -> Decision:
    return _decided(Reset(command.group, command.low))


def _forget(state: State, command: commands.Forget, _now: int) -> Decision:
    return _decided(Forgotten(command.group)) if command.group in state else _NOTHING


def _abandon(state: State, command: commands.Abandon, _now: int) -> Decision:
    if not state.delivery(command.group).held_by(command.holder):
        return _NOTHING
    return _decided(Abandoned(command.group, command.holder))


# --- single messages: what is free


def _lease(state: State, command: commands.Lease, now: int) -> Decision:
    offsets = command.offsets
    if not offsets or offsets.min() < command.start or not state.delivery(command.group).is_free(offsets):
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


def _expire(state: State, command: commands.Expire, now: int) -> Decision:
    return _end_free(state, command, Reason.EXPIRED, now)


def _give_up(state: State, command: commands.GiveUp, now: int) -> Decision:
    return _end_free(state, command, Reason.LAPSED, now)


def _end_free(state: State, command: commands.Expire | commands.GiveUp, reason: Reason, now: int) -> Decision:
    if not state.delivery(command.group).is_free(command.offsets):
        raise Conflict("these offsets are not ready to be delivered; poll again")
    events = _end(command.group, command.offsets, reason, now, dead_letters=command.dead_letters)
    return Decision(list(map(records.encode, events)), None)


def _finish(state: State, command: commands.Finish, _now: int) -> Decision:
    offsets = state.not_settled(command.group, command.offsets)
    return _decided(Done(command.group, pack(offsets), Reason.ACKED)) if offsets else _NOTHING


# --- single messages: whose handle is good


def _ack(state: State, command: commands.Ack, _now: int) -> Decision:
    good, refused = _check(state.delivery(command.group), command.claims, Delivery.of_poll)
    events = [Done(command.group, pack(good), Reason.ACKED)] if good else []
    return Decision(list(map(records.encode, events)), refused)


def _nack(state: State, command: commands.Nack, now: int) -> Decision:
    delivery, retries = state.delivery(command.group), command.retries
    good, refused = _check(delivery, command.claims, Delivery.leased_to)
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
        Deferred(command.group, pack(BitMap64(offsets)), now + span_ms, span_ms) for span_ms, offsets in by_span.items()
    ]
    events += _end(command.group, dead, Reason.NACKED, now, dead_letters=retries.dead_letters)
    return Decision(list(map(records.encode, events)), commands.Nacked(refused, until, dead))


def _reject(state: State, command: commands.Reject, now: int) -> Decision:
    good, refused = _check(state.delivery(command.group), command.claims, Delivery.of_poll)
    events = _end(command.group, good, Reason.REJECTED, now, dead_letters=command.dead_letters, detail=command.detail)
    return Decision(list(map(records.encode, events)), refused)


def _extend(state: State, command: commands.Extend, now: int) -> Decision:
    _, refused = _check(state.delivery(command.group), command.claims, Delivery.leased_to)
    until = now + command.span_ms
    events = [
        Extended(command.group, poll, pack(mine), until, command.span_ms)
        for poll, offsets in command.claims.items()
        if (mine := offsets - refused.get(poll, _EMPTY))
    ]
    return Decision(list(map(records.encode, events)), refused)


def _release(state: State, command: commands.Release, _now: int) -> Decision:
    good, refused = _check(state.delivery(command.group), command.claims, Delivery.leased_to)
    events = [Released(command.group, pack(good))] if good else []
    return Decision(list(map(records.encode, events)), refused)


def _check(
    delivery: Delivery, claims: commands.Claims, look: Callable[[Delivery, int, BitMap64], BitMap64]
) -> tuple[BitMap64, dict[int, BitMap64]]:
    """What the handles may settle, and by poll what they may not."""
    good = BitMap64()
    refused: dict[int, BitMap64] = {}
    for poll, offsets in claims.items():
        mine = look(delivery, poll, offsets)
        good |= mine
        if len(mine) < len(offsets):
            refused[poll] = offsets - mine
    return good, refused


# --- single messages: what happens by itself


def _lapse(state: State, command: commands.Lapse, now: int) -> Decision:
    delivery, retries = state.delivery(command.group), command.retries
    events: list[Event] = []
    dead = BitMap64()
    for poll, until in command.leases:
        mine = [lease for lease in delivery.leases.get(poll, ()) if lease.until == until]
        if mine:
            events.append(Lapsed(command.group, poll, until))
        for lease in mine:
            dead.update(
                [offset for offset in column(lease.offsets) if delivery.deliveries_of(offset) + 1 > retries.most]
            )
    events += _end(command.group, dead, Reason.LAPSED, now, dead_letters=retries.dead_letters)
    return Decision(list(map(records.encode, events)), dead)


def _bury(state: State, command: commands.Bury, _now: int) -> Decision:
    return _decided(Buried(command.below)) if command.below > state.outbox.first else _NOTHING


# --- transactions


def _pledge(state: State, command: commands.Pledge, _now: int) -> Decision:
    good, refused = _check(state.delivery(command.group), command.claims, Delivery.of_poll)
    events = [Pledged(command.group, command.transaction, pack(good))] if good else []
    return Decision(list(map(records.encode, events)), refused)


def _pledge_below(state: State, command: commands.PledgeBelow, _now: int) -> Decision:
    offsets = state.delivery(command.group).below(command.below, command.to, command.holder)
    events = [Pledged(command.group, command.transaction, pack(offsets))] if offsets else []
    return Decision(list(map(records.encode, events)), len(offsets))


def _redeem(state: State, command: commands.Redeem, now: int) -> Decision:
    pledged = state.pledged(command.transaction)
    events: list[Event] = []
    if command.retries is not None and not command.commits:
        for group in pledged:
            events += _give_back_pledged(state.delivery(group), group, command.transaction, command.retries, now)
    if pledged:
        events.append(Redeemed(command.transaction, command.commits))
    return Decision(list(map(records.encode, events)), pledged)


def _give_back_pledged(
    delivery: Delivery, group: GroupNumber, transaction: int, retries: commands.Retries, now: int
) -> Iterator[Event]:
    """What was aborted waits, or is dead. What had lapsed before it was pledged did its waiting then."""
    pledge = delivery.pledges[transaction]
    dead = BitMap64()
    by_span: dict[int, list[int]] = {}
    for offset in column(pledge.offsets - pledge.counted):
        failed = delivery.deliveries_of(offset) + 1
        if failed > retries.most:
            dead.add(offset)
        else:
            by_span.setdefault(retries.backoff.delay_ms(failed), []).append(offset)
    for span_ms, offsets in by_span.items():
        yield Deferred(group, pack(BitMap64(offsets)), now + span_ms, span_ms)
    detail = f"{transaction_id(transaction)} was aborted"
    yield from _end(group, dead, Reason.NACKED, now, dead_letters=retries.dead_letters, detail=detail)


def _hide(state: State, command: commands.Hide, _now: int) -> Decision:
    offsets = command.offsets - state.cancelled
    return _decided(Cancelled(pack(offsets))) if offsets else _NOTHING


# --- delayed messages


def _cancel(state: State, command: commands.Cancel, _now: int) -> Decision:
    pending = command.offsets & state.pending
    events = [Cancelled(pack(pending))] if pending else []
    return Decision(list(map(records.encode, events)), command.offsets - pending)


def _move(state: State, command: commands.Move, _now: int) -> Decision:
    pending = command.offsets & state.pending
    events = [Moved(pack(pending), command.deliver_at)] if pending else []
    return Decision(list(map(records.encode, events)), command.offsets - pending)


_DECISIONS: Final[dict[type, Callable[[State, Any, int], Decision]]] = {
    commands.Fence: _fence,
    commands.Start: _start,
    commands.Open: _open,
    commands.Settle: _settle,
    commands.GiveBack: _give_back,
    commands.Skip: _skip,
    commands.ResetTo: _reset_to,
    commands.Forget: _forget,
    commands.Abandon: _abandon,
    commands.Lease: _lease,
    commands.Expire: _expire,
    commands.GiveUp: _give_up,
    commands.Finish: _finish,
    commands.Ack: _ack,
    commands.Nack: _nack,
    commands.Reject: _reject,
    commands.Extend: _extend,
    commands.Release: _release,
    commands.Lapse: _lapse,
    commands.Bury: _bury,
    commands.Pledge: _pledge,
    commands.PledgeBelow: _pledge_below,
    commands.Redeem: _redeem,
    commands.Hide: _hide,
    commands.Cancel: _cancel,
    commands.Move: _move,
}


def _decided(event: Event) -> Decision:
    return Decision([records.encode(event)], None)


def _end(
    group: GroupNumber, offsets: BitMap64, reason: Reason, now: int, *, dead_letters: bool, detail: str = ""
) -> Iterator[Event]:
    """They are not delivered any more: to the dead-letter topic, or dropped."""
    if offsets and dead_letters:
        yield Doomed(group, pack(offsets), reason, now, detail)
    elif offsets:
        yield Done(group, pack(offsets), reason)
