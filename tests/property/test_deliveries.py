"""The delivery machine against a model that keeps one word for every message of every group.

Three groups, one of each mode, are delivered what the real selection picks; they settle by handle and by commit, give
back, lose members and owners, are reset and deleted. Messages come, with and without delay, go by retention and are
lost in power cuts; time passes, and the wall's clock steps. Polls may be under way while all of that happens. Whatever
happens, each message is in exactly one place, the place the model says; nothing is delivered early, or too often;
handles are good exactly when the model says so; and a key is with one consumer at a time, in order.

Hypothesis looks for short stories that go wrong: a failure prints the steps that lead there, and a line that makes
them again. Seeded dice roll long ones, in which what matters comes often: a failure names its seed.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from random import Random
from typing import Any, Final, NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from pyroaring import BitMap64

from goqueue.base.offset_sets import unpack
from goqueue.delivery import records
from goqueue.delivery.commands import (
    Abandon,
    Ack,
    Bury,
    Cancel,
    Expire,
    Extend,
    Forget,
    GiveBack,
    GiveUp,
    Lapse,
    Move,
    Nack,
    Open,
    Reject,
    Release,
    ResetTo,
    Settle,
    Skip,
    Start,
)
from goqueue.delivery.deliveries import Deliveries
from goqueue.delivery.records import Delivered, Postponed, Reason
from goqueue.delivery.selection import Pick, Policy, Selection
from goqueue.model import limits
from goqueue.model.errors import Conflict
from goqueue.model.groups import Mode
from goqueue.model.names import GroupNumber
from tests.unit.delivery.partitions import ALL, RETRIES, A, B, C, MemoryPartition, message, offsets_of

MODES: Final = {A: Mode.PARTITION, B: Mode.SHARED, C: Mode.KEY}
KEYS: Final = (None, "k1", "k2", "k3")
HOLDERS: Final = ("a", "b", "c")
BY: Final = ("", "", *HOLDERS)
HISTORIES: Final = 240
STEPS: Final = 100
SLACK_MS: Final = 20
"""A delay is over a tick late at most, and a few milliseconds more when clocks step."""
STEP_MS: Final = 5
"""Clocks that differ by less have not stepped."""
SLICE: Final = 4
"""Offsets that are sorted at once; the product sorts more."""
WEIGHTS: Final = (5, 3, 2, 1, 1)
MOST: Final = RETRIES.most

groups = st.sampled_from([*MODES])
dice = st.integers(0, 10**6)
holders = st.sampled_from(HOLDERS)
counts = st.integers(1, 8)
spans = st.sampled_from([100, 1_000, 30_000])
claim_numbers = st.lists(st.integers(0, 14) | st.integers(0, 39), min_size=1, max_size=5)
delays_ms = st.sampled_from([None, None, None, 0, 50, 400, 2_000, 40_000])


class Kind(Enum):
    READY = "ready"
    """Unless it is delayed or cancelled."""
    LEASED = "leased"
    WAITING = "waiting"
    DEAD = "dead"
    SETTLED = "settled"


class Hold(NamedTuple):
    until: int
    span_ms: int
    due: int

    def again(self, wall: int, now: int) -> "Hold":
        """As it goes on in another life."""
        return self._replace(due=now + min(max(self.until - wall, 0), self.span_ms))


NO_HOLD: Final = Hold(0, 0, 0)


@dataclass(frozen=True)
class Place:
    """Where one message is for one group."""

    kind: Kind = Kind.READY
    deliveries: int = 0
    """That failed."""
    late: int = 0
    """The poll that may still settle it although its lease is over."""
    poll: int = 0
    holder: str = ""
    hold: Hold = NO_HOLD
    """Of a lease, of a wait, or of a wait that is over, which nobody wrote down."""

    def failed(self, late: int = 0) -> "Place":
        return Place(Kind.READY, self.deliveries + 1, late)

    @property
    def is_leased(self) -> bool:
        return self.kind is Kind.LEASED

    @property
    def is_ready(self) -> bool:
        return self.kind is Kind.READY

    @property
    def is_busy(self) -> bool:
        """Whether it keeps the group from resting, and its tries are remembered."""
        return self.kind is not Kind.SETTLED and (self.deliveries > 0 or self.is_leased)


NEW: Final = Place()
SETTLED: Final = Place(Kind.SETTLED)


class Message(NamedTuple):
    key: str | None
    lane: int
    deliver_at: int | None


@dataclass(frozen=True)
class Letter:
    group: GroupNumber
    offset: int
    reason: Reason
    deliveries: int
    void: bool = False


class Handle(NamedTuple):
    group: GroupNumber
    poll: int
    offset: int


@dataclass
class Visit:
    """A poll that has picked something and not leased it yet."""

    group: GroupNumber
    selection: Selection
    picks: list[Pick]
    poll: int
    holder: str
    epoch: int


@dataclass
class GroupModel:
    places: dict[int, Place] = field(default_factory=dict)
    """What is not in here is new."""
    epoch: int = 0
    """Of the last lease, or of the owner that opened since."""
    is_known: bool = False

    def at(self, offset: int) -> Place:
        return self.places.get(offset, NEW)

    def where(self, wanted: Callable[[Place], bool]) -> list[int]:
        return sorted(offset for offset, place in self.places.items() if wanted(place))

    @property
    def is_busy(self) -> bool:
        return any(place.is_busy for place in self.places.values())

    def change(self, offsets: Iterable[int], become: Callable[[Place], Place]) -> None:
        for offset in list(offsets):
            self.places[offset] = become(self.at(offset))

    def settle(self, offsets: Iterable[int]) -> None:
        self.change(offsets, lambda _: SETTLED)

    def open(self, epoch: int) -> None:
        self.change(self.where(lambda place: place.is_leased), Place.failed)
        self.change(list(self.places), lambda place: replace(place, late=0))
        self.epoch = epoch


class DeliveryMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self._sorted_at_once = limits.SORTED_AT_ONCE
        setattr(limits, "SORTED_AT_ONCE", SLICE)  # noqa: B010 (it is a constant to everybody else)
        self.partition = MemoryPartition()
        self.messages: dict[int, Message] = {}
        self.pending: dict[int, tuple[int, int]] = {}
        """When each is due: by the wall, and by the clock that never steps."""
        self.moved: dict[int, int] = {}
        self.cancelled: set[int] = set()
        self.fired: set[int] = set()
        self.models = {group: GroupModel() for group in MODES}
        self.owner_epoch = 1
        self.letters: list[Letter] = []
        self.last_poll = 0
        self.buried = 0
        self.handles: list[Handle] = []
        self.visits: list[Visit] = []

    def teardown(self) -> None:
        try:
            self.look_back()
        finally:
            self.close()

    def look_back(self) -> None:
        for group in MODES:
            self.look(group)
        self.restore()
        self.restart(0, 0)
        self.everything_is_where_the_model_says()
        for group in MODES:
            self.look(group)

    def close(self) -> None:
        setattr(limits, "SORTED_AT_ONCE", self._sorted_at_once)  # noqa: B010

    # --- the world

    @property
    def deliveries(self) -> Deliveries:
        return self.partition.deliveries

    @property
    def start(self) -> int:
        return self.partition.data.start_offset

    @property
    def end(self) -> int:
        return self.partition.data.end_offset

    @property
    def wall(self) -> int:
        return self.partition.wall

    @property
    def now(self) -> int:
        return self.partition.now

    def do(self, command: Any) -> Any:
        return self.partition.do(command)

    def hold(self, span_ms: int) -> Hold:
        return Hold(self.wall + span_ms, span_ms, self.now + span_ms)

    def is_available(self, group: GroupNumber, offset: int) -> bool:
        return (
            self.models[group].at(offset).is_ready
            and self.start <= offset < self.end
            and offset not in self.pending
            and offset not in self.cancelled
        )

    def reserved(self, group: GroupNumber) -> set[int]:
        """What polls under way have picked and can still lease."""
        picked = {offset for visit in self.current(group) for offset in offsets_of(visit.picks)}
        return {offset for offset in picked if self.is_available(group, offset)}

    def current(self, group: GroupNumber) -> list[Visit]:
        """Those that were not overtaken by a reset or the like."""
        found = self.deliveries.selections.get(group)
        return [visit for visit in self.visits if visit.group == group and visit.selection is found]

    # --- messages

    @rule(
        block=st.lists(
            st.tuples(st.sampled_from(KEYS), st.sampled_from([2, 2, 0, 1, 4]), delays_ms), min_size=1, max_size=6
        ),
        roll=st.sampled_from([False, False, False, True]),
    )
    def publish(self, block: list[tuple[str | None, int, int | None]], roll: bool) -> None:
        messages = [
            Message(key, lane, None if delay_ms is None else self.wall + delay_ms) for key, lane, delay_ms in block
        ]
        offsets = self.partition.publish(
            *(message(each.key, lane=each.lane, deliver_at=each.deliver_at) for each in messages)
        )
        self.messages.update(zip(offsets, messages, strict=True))
        for offset in offsets:
            self.hold_up(offset)
        if roll:
            self.partition.roll()

    def hold_up(self, offset: int) -> None:
        deliver_at = self.moved.get(offset, self.messages[offset].deliver_at)
        if deliver_at is not None and deliver_at > self.wall and offset not in self.cancelled:
            self.pending[offset] = (deliver_at, self.now + deliver_at - self.wall)
            self.fired.discard(offset)

    @rule(at=dice, forget=st.booleans())
    def retain(self, at: int, forget: bool) -> None:
        """The cleaner keeps what is delayed."""
        start = min(self.start + at % 6, self.end, *self.pending)
        if start > self.start:
            self.partition.retain(start)
        if forget:
            self.deliveries.forget_below(start)

    # --- polls

    # Each mode has a rule of its own, so that polls are many among all the other things.

    @precondition(lambda self: self.messages)
    @rule(count=counts, strict=st.booleans(), later=st.booleans(), span=spans)
    def poll_as_owner(self, count: int, strict: bool, later: bool, span: int) -> None:
        self.poll(A, "o", count, Policy(WEIGHTS, strict), later, span)

    @precondition(lambda self: self.messages)
    @rule(holder=holders, count=counts, strict=st.booleans(), later=st.booleans(), span=spans)
    def poll_shared(self, holder: str, count: int, strict: bool, later: bool, span: int) -> None:
        self.poll(B, holder, count, Policy(WEIGHTS, strict), later, span)

    @precondition(lambda self: self.messages)
    @rule(holder=holders, count=counts, strict=st.booleans(), later=st.booleans(), span=spans)
    def poll_by_key(self, holder: str, count: int, strict: bool, later: bool, span: int) -> None:
        self.poll(C, holder, count, Policy(WEIGHTS, strict), later, span)

    def poll(self, group: GroupNumber, holder: str, count: int, policy: Policy, later: bool, span: int) -> None:
        """At once, or with everything else in between."""
        epoch = self.owner_epoch if MODES[group] is Mode.PARTITION else 0
        if self.deliveries.needs_open(group, epoch):
            self.do(Open(group, epoch))
            self.models[group].open(epoch)
        selection = self.partition.staged(group, MODES[group], count)
        picks = selection.pick(count, policy, self.now)
        self.check_picks(group, picks)
        visit = Visit(group, selection, picks, self.partition.next_poll(), holder, epoch)
        self.visits.append(visit)
        self.give_up(visit)
        if not later or len(self.visits) > 3:
            self.take(visit, ALL, span)

    def check_picks(self, group: GroupNumber, picks: list[Pick]) -> None:
        offsets = offsets_of(picks)
        assert len(offsets) == sum(len(pick.offsets) for pick in picks)
        taken = self.reserved(group)
        keys = [self.messages[offset].key for offset in taken]
        for pick in picks:
            for offset in pick.offsets:
                assert self.is_available(group, offset), f"{offset} is not to be delivered"
                assert offset not in taken, f"{offset} was picked twice"
                assert self.messages[offset].lane == pick.lane
                if MODES[group] is Mode.KEY:
                    self.check_turn(group, offset, keys)

    def check_turn(self, group: GroupNumber, offset: int, keys: list[str | None]) -> None:
        """It is alone of its key, and no older one waits; delayed ones join when they are due."""
        key = self.messages[offset].key
        if key is None:
            return
        assert key not in keys, f"two of {key} are picked"
        keys.append(key)
        model = self.models[group]
        for other in self.of_key(key):
            place = model.at(other)
            if other == offset or other in self.cancelled or place.kind is Kind.SETTLED or other < self.start:
                assert other == offset or not place.is_leased or other in self.cancelled, f"two of {key} are out"
                continue
            assert place.kind not in (Kind.LEASED, Kind.WAITING), f"{other} of {key} is out, or to be tried again"
            is_first = model.at(offset).deliveries == 0
            assert not (place.is_ready and place.deliveries and is_first and other not in self.pending)
            if self.messages[other].deliver_at is None and self.messages[offset].deliver_at is None:
                assert not (place.is_ready and other < offset and is_first), f"{other} is older than {offset}"

    def of_key(self, key: str) -> list[int]:
        return [offset for offset, each in self.messages.items() if each.key == key]

    def give_up(self, visit: Visit) -> None:
        """What was delivered too often by consumers that died is not delivered again."""
        model = self.models[visit.group]
        worn = BitMap64([at for at in offsets_of(visit.picks) if model.at(at).deliveries > MOST])
        if worn:
            self.do(GiveUp(visit.group, worn, RETRIES.dead_letters))
            self.die(visit.group, worn, Reason.LAPSED)
            self.put_back(visit, worn)

    def put_back(self, visit: Visit, offsets: BitMap64) -> None:
        back = [Pick(pick.lane, pick.offsets & offsets) for pick in visit.picks]
        visit.picks = [Pick(pick.lane, pick.offsets - offsets) for pick in visit.picks]
        visit.selection.put_back(back, self.partition.delivery(visit.group), self.deliveries)

    @precondition(lambda self: self.visits)
    @rule(which=dice, count=st.sampled_from([0, 1, 2, ALL]), span=spans)
    def finish(self, which: int, count: int, span: int) -> None:
        """A poll under way leases what it picked, or less."""
        self.take(self.visits[which % len(self.visits)], count, span)

    def take(self, visit: Visit, count: int, span: int) -> None:
        is_current = visit in self.current(visit.group)
        self.visits.remove(visit)
        if not is_current:
            return  # the group was moved meanwhile
        group, model = visit.group, self.models[visit.group]
        offsets = offsets_of(visit.picks)[:count]
        if MODES[group] is Mode.PARTITION and visit.epoch < self.owner_epoch:
            offsets = BitMap64()  # another owns it by now
        picks = [Pick(pick.lane, pick.offsets & offsets) for pick in visit.picks if pick.offsets & offsets]
        if picks:
            fits = all(model.at(offset).is_ready and offset >= self.start for offset in offsets)
            poll, holder = visit.poll, visit.holder
            try:
                self.partition.lease(
                    group, visit.selection, picks, poll=poll, holder=holder, epoch=visit.epoch, span_ms=span
                )
                assert fits, "not all of it was ready"
            except Conflict:
                assert not fits
                picks, offsets = [], BitMap64()
        if picks:
            self.leased(visit, offsets, span)
        self.put_back(visit, offsets_of(visit.picks) - offsets)

    def leased(self, visit: Visit, offsets: BitMap64, span: int) -> None:
        model = self.models[visit.group]
        model.is_known = True
        if model.is_busy and model.epoch < visit.epoch:
            model.open(visit.epoch)
        model.epoch = visit.epoch
        model.settle(offset for offset in range(self.start) if model.at(offset).kind in (Kind.READY, Kind.WAITING))
        for offset in offsets:
            before = model.at(offset)
            assert before.deliveries <= MOST, "it is delivered too often"
            assert offset not in self.pending
            model.places[offset] = Place(
                Kind.LEASED, before.deliveries, before.late, visit.poll, visit.holder, self.hold(span)
            )
            self.handles.append(Handle(visit.group, visit.poll, offset))
        del self.handles[:-40]

    @precondition(lambda self: self.visits)
    @rule(which=dice, count=st.integers(1, 3), how=st.sampled_from(["skip", "expire", "dead letter"]))
    def pass_over(self, which: int, count: int, how: str) -> None:
        """What a poll picked turns out to be damaged, or too old."""
        visit = self.visits[which % len(self.visits)]
        group = visit.group
        offsets = offsets_of(visit.picks)[:count]
        if visit not in self.current(group) or not offsets:
            return
        fits = all(self.models[group].at(offset).is_ready for offset in offsets)
        if how == "skip":
            first = offsets.min()
            offsets, fits = BitMap64([first]), self.models[group].at(first).is_ready
            command: Any = Skip(group, first, first + 1)
        else:
            command = Expire(group, offsets, how == "dead letter")
        try:
            self.do(command)
            assert fits
        except Conflict:
            assert not fits
            return
        self.models[group].is_known = True
        if how == "dead letter":
            self.die(group, offsets, Reason.EXPIRED)
        else:
            self.models[group].settle(offsets)
        self.put_back(visit, offsets)

    # --- settling

    def die(self, group: GroupNumber, offsets: Iterable[int], reason: Reason) -> None:
        """With `deliveries` as they are by now."""
        model = self.models[group]
        for offset in offsets:
            place = model.at(offset)
            model.places[offset] = Place(Kind.DEAD, place.deliveries, place.late)
            self.letters.append(Letter(group, offset, reason, place.deliveries))

    def claimed(self, which: list[int]) -> tuple[GroupNumber, dict[int, BitMap64]]:
        """Some handles of one group, most of them young."""
        group = self.handles[-1 - which[0] % len(self.handles)].group
        mine = [handle for handle in self.handles if handle.group == group]
        claims: dict[int, BitMap64] = {}
        for number in which:
            handle = mine[-1 - number % len(mine)]
            claims.setdefault(handle.poll, BitMap64()).add(handle.offset)
        return group, claims

    def judge(
        self, group: GroupNumber, claims: dict[int, BitMap64], *, late: bool
    ) -> tuple[list[int], dict[int, BitMap64]]:
        """Which claims are good, and which are refused."""
        good: list[int] = []
        refused: dict[int, BitMap64] = {}
        for poll, offsets in claims.items():
            for offset in offsets:
                place = self.models[group].at(offset)
                is_good = (place.is_leased and place.poll == poll) or (late and place.is_ready and place.late == poll)
                if is_good:
                    good.append(offset)
                else:
                    refused.setdefault(poll, BitMap64()).add(offset)
        return sorted(good), refused

    @precondition(lambda self: self.handles)
    @rule(which=claim_numbers)
    def ack(self, which: list[int]) -> None:
        group, claims = self.claimed(which)
        good, refused = self.judge(group, claims, late=True)
        assert self.do(Ack(group, claims)) == refused
        self.models[group].settle(good)

    @precondition(lambda self: self.handles)
    @rule(behind=st.integers(0, 3))
    def ack_poll(self, behind: int) -> None:
        """All of it, if it is still good."""
        group, poll, _ = self.handles[max(len(self.handles) - 1 - 5 * behind, 0)]
        claims = {poll: BitMap64([handle.offset for handle in self.handles if handle[:2] == (group, poll)])}
        good, refused = self.judge(group, claims, late=True)
        assert self.do(Ack(group, claims)) == refused
        self.models[group].settle(good)

    @precondition(lambda self: self.handles)
    @rule(which=claim_numbers, delay_ms=st.sampled_from([None, None, 0, 300]))
    def nack(self, which: list[int], delay_ms: int | None) -> None:
        group, claims = self.claimed(which)
        good, refused = self.judge(group, claims, late=False)
        model = self.models[group]
        reply = self.do(Nack(group, claims, RETRIES, delay_ms))
        dead = [offset for offset in good if model.at(offset).deliveries + 1 > MOST]
        until: dict[int, int] = {}
        for offset in good:
            failed = model.at(offset).failed()
            if offset in dead:
                model.places[offset] = failed
                continue
            span_ms = RETRIES.backoff.delay_ms(failed.deliveries) if delay_ms is None else delay_ms
            model.places[offset] = Place(Kind.WAITING, failed.deliveries, hold=self.hold(span_ms))
            until[offset] = self.wall + span_ms
        assert reply == (refused, until, BitMap64(dead))
        self.die(group, dead, Reason.NACKED)

    @precondition(lambda self: self.handles)
    @rule(which=claim_numbers, dead_letters=st.booleans())
    def reject(self, which: list[int], dead_letters: bool) -> None:
        group, claims = self.claimed(which)
        good, refused = self.judge(group, claims, late=True)
        model = self.models[group]
        assert self.do(Reject(group, claims, dead_letters, "bad")) == refused
        model.change([at for at in good if model.at(at).is_leased], Place.failed)
        if dead_letters:
            self.die(group, good, Reason.REJECTED)
        else:
            model.settle(good)

    @precondition(lambda self: self.handles)
    @rule(which=claim_numbers, span=spans)
    def extend(self, which: list[int], span: int) -> None:
        group, claims = self.claimed(which)
        good, refused = self.judge(group, claims, late=False)
        assert self.do(Extend(group, claims, span)) == refused
        self.models[group].change(good, lambda place: replace(place, hold=self.hold(span)))

    @precondition(lambda self: self.handles)
    @rule(which=claim_numbers)
    def release(self, which: list[int]) -> None:
        """As if it had not been delivered: also a late handle of the delivery before is good again."""
        group, claims = self.claimed(which)
        good, refused = self.judge(group, claims, late=False)
        assert self.do(Release(group, claims)) == refused
        self.models[group].change(good, lambda place: Place(Kind.READY, place.deliveries, place.late))

    @precondition(lambda self: self.handles)
    @rule(group=groups, below=dice, behind=st.sampled_from([0, 0, 1, 2]), by_holder=st.sampled_from(BY))
    def commit(self, group: GroupNumber, below: int, behind: int, by_holder: str) -> None:
        model = self.models[group]
        below %= self.end + 2
        to = self.some_poll(group, behind)
        self.do(Settle(group, below, to, by_holder))
        model.settle(
            offset
            for offset, place in list(model.places.items())
            if offset < below
            and (
                (place.is_leased and place.poll <= to and by_holder in ("", place.holder))
                or (not by_holder and place.is_ready and 0 < place.late <= to)
            )
        )

    def some_poll(self, group: GroupNumber, behind: int) -> int:
        polls = sorted({handle.poll for handle in self.handles if handle.group == group})
        return polls[-1 - behind] if len(polls) > behind else limits.MAX_OFFSET

    @precondition(lambda self: self.handles)
    @rule(group=groups, behind=st.integers(0, 3), count=st.integers(1, 3), by_holder=st.sampled_from(BY))
    def give_back(self, group: GroupNumber, behind: int, count: int, by_holder: str) -> None:
        model = self.models[group]
        after = self.some_poll(group, behind) - 1
        to = after + count
        self.do(GiveBack(group, after, to, by_holder))
        for offset, place in list(model.places.items()):
            if place.is_leased and after < place.poll <= to and by_holder in ("", place.holder):
                place = model.places[offset] = Place(Kind.READY, place.deliveries, place.late)
            if not by_holder and place.is_ready and after < place.late <= to:
                model.places[offset] = Place(Kind.READY, place.deliveries - 1)

    @precondition(lambda self: self.handles)
    @rule(group=groups, holder=st.sampled_from(["o", *HOLDERS]))
    def abandon(self, group: GroupNumber, holder: str) -> None:
        self.do(Abandon(group, holder))
        model = self.models[group]
        model.change(model.where(lambda place: place.is_leased and place.holder == holder), Place.failed)

    @precondition(lambda self: self.handles)
    @rule()
    def change_owner(self) -> None:
        model = self.models[A]
        self.owner_epoch += 1
        is_stale = model.is_busy and model.epoch < self.owner_epoch
        assert self.deliveries.needs_open(A, self.owner_epoch) == is_stale

    # --- where a group is

    @rule(group=groups, low=dice, how=st.sampled_from(["start", "start", "reset", "forget"]))
    def operate(self, group: GroupNumber, low: int, how: str) -> None:
        low = self.start + low % (self.end - self.start + 1)
        if how == "forget":
            self.do(Forget(group))
            self.models[group] = GroupModel()
        elif how == "reset":
            self.do(ResetTo(group, low))
            self.move_to(group, low)
        else:
            self.do(Start(group, low))
            if not self.models[group].is_known:
                self.move_to(group, low)

    def move_to(self, group: GroupNumber, low: int) -> None:
        self.models[group] = GroupModel(dict.fromkeys(range(low), SETTLED), is_known=True)

    # --- time

    @rule(ms=st.sampled_from([1, 20, 120, 1_000, 2_500, 35_000]), rings=st.booleans())
    def pass_time(self, ms: int, rings: bool) -> None:
        """With or without whoever looks what is due."""
        self.partition.pass_time(ms)
        if rings:
            self.fire(ALL)
            self.lapse(written=True, dead_letters=True)

    @rule(ms=st.sampled_from([-50_000, -900, -60, 60, 900, 50_000]))
    def step_wall(self, ms: int) -> None:
        self.partition.step_wall(ms)

    @precondition(lambda self: self.pending)
    @rule(limit=st.sampled_from([2, ALL]))
    def fire(self, limit: int) -> None:
        """As often as there is something due."""
        while found := self.partition.fire(limit):
            assert len(found) <= limit
            for offset in found:
                deliver_at, due = self.pending.pop(offset)
                assert self.wall >= deliver_at, "early by the wall"
                assert self.now >= due - STEP_MS, "early by the time that has passed"
                self.fired.add(offset)
        for deliver_at, due in self.pending.values():
            assert self.wall < deliver_at + SLACK_MS or self.now < due + SLACK_MS, "it is late"
        following = self.partition.delays.next_due(wall=self.wall, now=self.now)
        assert (following is not None) == bool(self.pending)
        assert following is None or following > self.now, "whoever goes by that would look again and again"

    @rule(written=st.sampled_from([True, True, True, False]), dead_letters=st.booleans())
    def lapse(self, written: bool, dead_letters: bool) -> None:
        lapsed, woken = self.deliveries.lapse_due(self.now)
        due: set[tuple[int, int, int]] = set()
        over: set[int] = set()
        for group, model in self.models.items():
            for offset, place in list(model.places.items()):
                if place.is_leased and place.hold.due <= self.now:
                    due.add((group, place.poll, place.hold.until))
                elif place.kind is Kind.WAITING and place.hold.due <= self.now:
                    over.add(group)
                    model.places[offset] = replace(place, kind=Kind.READY)
        assert set(lapsed) == due
        assert woken == over
        if not written:  # the disk is full: later
            self.deliveries.rearm(lapsed, self.now, 1_000)
            for group, offset, place in self.held_until(due):
                hold = place.hold._replace(due=self.now + 1_000)
                if place.hold.due <= self.now or hold.due < place.hold.due:
                    self.models[group].places[offset] = replace(place, hold=hold)
            return
        retries = RETRIES._replace(dead_letters=dead_letters)
        for group in MODES:
            leases = tuple((each.poll, each.until) for each in lapsed if each.group == group)
            dead = self.do(Lapse(group, leases, retries))
            mine = [(offset, place) for of, offset, place in self.held_until(due) if of == group]
            model = self.models[group]
            for offset, place in mine:
                model.places[offset] = place.failed(place.poll)
            worn = sorted(offset for offset, _ in mine if model.at(offset).deliveries > MOST)
            assert list(dead) == worn
            if dead_letters:
                self.die(group, worn, Reason.LAPSED)
            else:
                model.settle(worn)

    def held_until(self, due: set[tuple[int, int, int]]) -> Iterator[tuple[GroupNumber, int, Place]]:
        for group, model in self.models.items():
            for offset, place in list(model.places.items()):
                if place.is_leased and (group, place.poll, place.hold.until) in due:
                    yield group, offset, place

    # --- dead letters, delayed messages

    @precondition(lambda self: len(self.letters) > self.buried)
    @rule(count=st.integers(0, 3))
    def bury(self, count: int) -> None:
        below = min(self.buried + count, len(self.letters))
        self.do(Bury(below))
        for letter in self.letters[self.buried : below]:
            if not letter.void and self.models[letter.group].at(letter.offset).kind is Kind.DEAD:
                self.models[letter.group].settle([letter.offset])
        self.buried = max(self.buried, below)

    def some_delayed(self, which: list[int]) -> BitMap64:
        """Messages that are delayed, most of them."""
        offsets = [*sorted(self.pending), self.end - 1]
        return BitMap64([offsets[number % len(offsets)] for number in which])

    @precondition(lambda self: self.pending)
    @rule(which=st.lists(dice, min_size=1, max_size=3))
    def cancel(self, which: list[int]) -> None:
        offsets = self.some_delayed(which)
        # After a clock went back across a restart, what was delivered may be delayed again.
        offsets -= BitMap64([at for model in self.models.values() for at in model.where(lambda place: place != NEW)])
        pending = {offset for offset in offsets if offset in self.pending}
        assert set(self.do(Cancel(offsets))) == set(offsets) - pending
        for offset in pending:
            del self.pending[offset]
            self.moved.pop(offset, None)
        self.cancelled |= pending

    @precondition(lambda self: self.pending)
    @rule(which=st.lists(dice, min_size=1, max_size=3), ms=st.sampled_from([-500, 0, 30, 600, 50_000]))
    def move(self, which: list[int], ms: int) -> None:
        offsets, deliver_at = self.some_delayed(which), self.wall + ms
        pending = {offset for offset in offsets if offset in self.pending}
        assert set(self.do(Move(offsets, deliver_at))) == set(offsets) - pending
        self.partition.delays.move(BitMap64(pending), deliver_at, wall=self.wall, now=self.now)
        for offset in pending:
            self.moved[offset] = deliver_at
            self.pending[offset] = (deliver_at, self.now + ms) if ms > 0 else (0, self.now)  # then it is due for good

    # --- starting again

    @rule(lost=st.sampled_from([0, 0, 0, 1, 3]), wall_ms=st.sampled_from([0, 500, 60_000, -700, -60_000]))
    def restart(self, lost: int, wall_ms: int) -> None:
        """After a kill, or after a power cut that took an end of the data log."""
        lost = min(lost, self.end - self.start)
        self.visits = []
        if lost:
            self.lose(self.end - lost)
        self.partition.restart(lost=lost, wall_ms=wall_ms)
        self.pending = {}
        for offset in self.messages:
            if offset >= self.start:
                self.hold_up(offset)
        for model in self.models.values():
            for offset, place in list(model.places.items()):
                hold = place.hold.again(self.wall, self.now)
                if place.is_leased or place.kind is Kind.WAITING:
                    model.places[offset] = replace(place, hold=hold)
                elif place.is_ready and place.hold != NO_HOLD:
                    model.places[offset] = replace(place, kind=Kind.WAITING, hold=hold)

    def lose(self, end: int) -> None:
        for group, model in self.models.items():
            beyond = [at for at, place in model.places.items() if at >= end and place != NEW]
            if beyond or (self.deliveries.low(group) or 0) > end:
                model.open(model.epoch)
            model.places = {offset: place for offset, place in model.places.items() if offset < end}
        self.letters[self.buried :] = [
            replace(letter, void=letter.void or letter.offset >= end) for letter in self.letters[self.buried :]
        ]
        self.messages = {offset: each for offset, each in self.messages.items() if offset < end}
        self.moved = {offset: each for offset, each in self.moved.items() if offset < end}
        self.cancelled = {offset for offset in self.cancelled if offset < end}

    @rule(forget=st.booleans())
    def snapshot(self, forget: bool) -> None:
        self.restore()
        host = self.partition.sidecar.host
        host.snapshot(self.wall)
        host.log.sync()
        if forget:
            host.forget()
        for model in self.models.values():  # that waits are over is known from here on
            model.change(model.where(lambda place: place.is_ready), lambda place: replace(place, hold=NO_HOLD))

    def restore(self) -> None:
        """A snapshot makes the same machine again."""
        other = Deliveries()
        for record in self.deliveries.snapshot():
            other.apply(record, 0)
        assert state_of(other) == state_of(self.deliveries)

    # --- what holds at any time

    @rule(group=groups)
    def look(self, group: GroupNumber) -> None:
        """Everything that may be delivered is found, once."""
        found = BitMap64()
        picks: list[Pick] = []
        while True:
            selection = self.partition.staged(group, MODES[group])
            more = selection.pick(ALL, Policy(WEIGHTS, True), self.now)
            if not more:
                break
            self.check_picks(group, more)
            assert not found.intersect(offsets_of(more))
            found |= offsets_of(more)
            picks += more
        reserved = self.reserved(group)
        available = {offset for offset in self.messages if self.is_available(group, offset) and offset not in reserved}
        if MODES[group] is not Mode.KEY:
            assert set(found) == available
        else:
            self.check_heads(group, set(found), available, reserved)
        if picks:
            selection.put_back(picks, self.partition.delivery(group), self.deliveries)

    def check_heads(self, group: GroupNumber, found: set[int], available: set[int], reserved: set[int]) -> None:
        assert {at for at in found if self.messages[at].key is None} == {
            at for at in available if self.messages[at].key is None
        }
        model = self.models[group]
        for key in filter(None, KEYS):
            kinds = {model.at(offset).kind for offset in self.of_key(key) if offset not in self.cancelled}
            mine = [offset for offset in found if self.messages[offset].key == key]
            waiting = [offset for offset in available if self.messages[offset].key == key]
            is_out = {Kind.LEASED, Kind.WAITING} & kinds or any(self.messages[at].key == key for at in reserved)
            # The wall went back across a restart: what was delivered is delayed again, and is still its key's head.
            is_out = is_out or any(model.at(at).deliveries and at in self.pending for at in self.of_key(key))
            if is_out:
                assert not mine
            elif Kind.DEAD not in kinds:  # one that died holds the others up until it is buried, in the same life
                assert bool(mine) == bool(waiting), f"{key} is not served"

    @invariant()
    def everything_is_where_the_model_says(self) -> None:
        machine = self.deliveries
        assert set(machine.groups) == {group for group, model in self.models.items() if model.is_known}
        assert set(machine.pending) == set(self.pending)
        assert {at for at in machine.cancelled if at >= self.start} == {at for at in self.cancelled if at >= self.start}
        assert {at: due for at, due in machine.moved.items() if at >= self.start} == {
            at: due for at, due in self.moved.items() if at >= self.start
        }
        for group, model in self.models.items():
            self.check_group(group, model)
            self.last_poll = max([self.last_poll, *(place.poll for place in model.places.values() if place.is_busy)])
        assert machine.last_poll >= self.last_poll
        assert (machine.outbox.first, machine.outbox.next) == (self.buried, len(self.letters))
        assert [
            Letter(death.group, death.offset, death.reason, death.deliveries, death.void) for death in machine.outbox
        ] == self.letters[self.buried :]

    def check_group(self, group: GroupNumber, model: GroupModel) -> None:
        machine, delivery = self.deliveries, self.partition.delivery(group)
        places = places_of(delivery)
        for offset in range(self.end + 2):
            found = places.get(offset, [])
            found += [SETTLED] if offset in delivery.settled else []
            expected = model.at(offset)
            if offset in self.cancelled and expected == NEW and found == [SETTLED]:
                continue  # it was passed over
            assert len(found) <= 1, f"offset {offset} of group {group} is in {found}"
            place = found[0] if found else NEW
            if not found and offset in delivery.tries:
                each = delivery.tries[offset]
                place = Place(Kind.READY, each.deliveries, each.poll)
            assert place == as_seen(expected), f"offset {offset} of group {group}"
            assert delivery.deliveries_of(offset) == expected.deliveries
        assert delivery.taken == BitMap64(
            [at for at, place in model.places.items() if place.kind in (Kind.LEASED, Kind.WAITING, Kind.DEAD)]
        )
        leased = model.where(lambda place: place.is_leased)
        assert (machine.in_flight(group), machine.has_in_flight(group)) == (len(leased), bool(leased))
        for holder in ("o", *HOLDERS):
            assert machine.held_by(group, holder) == sum(model.at(at).holder == holder for at in leased)
        left = [at for at in range(self.start, self.end) if model.at(at).kind is not Kind.SETTLED]
        assert machine.unsettled(group, self.start, self.end) == len(set(left) - self.cancelled)
        gone = [at for at in range(self.start) if model.at(at).is_ready]
        missed = machine.overtaken(group, self.start) if model.is_known else 0
        assert missed == 0 or len(set(gone) - self.cancelled) <= missed <= len(gone)
        if MODES[group] is Mode.KEY:
            keys = [self.messages[at].key for at in leased if at >= self.start]
            assert len(list(filter(None, keys))) == len(set(filter(None, keys))), "two of a key are out"


def as_seen(place: Place) -> Place:
    """Without what the machine does not keep, or keeps elsewhere: `lapse` says when holds are over."""
    match place.kind:
        case Kind.SETTLED:
            return SETTLED
        case Kind.READY:
            return Place(Kind.READY, place.deliveries, place.late)
        case Kind.DEAD:
            return Place(Kind.DEAD)
        case _:
            return Place(place.kind, poll=place.poll, holder=place.holder, hold=place.hold._replace(due=0))


def places_of(delivery: Any) -> dict[int, list[Place]]:
    found: dict[int, list[Place]] = {}
    for leases in delivery.leases.values():
        for lease in leases:
            hold = Hold(lease.until, lease.span_ms, 0)
            for offset in lease.offsets:
                found.setdefault(offset, []).append(Place(Kind.LEASED, poll=lease.poll, holder=lease.holder, hold=hold))
    for wait in delivery.waits:
        for offset in wait.offsets:
            hold = Hold(wait.until, wait.span_ms, 0)
            found.setdefault(offset, []).append(Place(Kind.WAITING, hold=hold))
    for offset in delivery.dead:
        found.setdefault(offset, []).append(Place(Kind.DEAD))
    return found


def state_of(machine: Deliveries) -> list[Any]:
    """What a snapshot says. Equal bitmaps may have different bytes."""
    found: list[Any] = []
    for record in machine.snapshot():
        event = records.decode(record)
        if isinstance(event, Delivered):
            leases = [(*each[:-1], set(unpack(each.offsets))) for each in event.leases]
            waits = [(*each[:-1], set(unpack(each.offsets))) for each in event.waits]
            settled = set(unpack(event.settled)) if event.settled else set()
            found.append((event.group, event.low, event.assignment_epoch, settled, leases, waits))
            found.append((sorted(event.tries), set(unpack(event.dead)), sorted(event.keys)))
        elif isinstance(event, Postponed):
            found.append((set(unpack(event.cancelled)), event.moved))
        else:
            found.append(event)
    return found


DeliveryMachine.TestCase.settings = settings(
    max_examples=210,
    stateful_step_count=50,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
test_every_message_is_where_the_model_says = DeliveryMachine.TestCase


# --- the same, rolled with dice that know what matters


def steps_of(machine: DeliveryMachine, rng: Random) -> list[Callable[[], None]]:
    """Each as often as it is to come."""
    some_span = partial(rng.choice, (100, 1_000, 30_000))

    def which() -> list[int]:
        return [rng.randrange(12) for _ in range(rng.randrange(1, 5))]

    def flip(often: float = 0.5) -> bool:
        return rng.random() < often

    def policy() -> Policy:
        return Policy(WEIGHTS, flip())

    def publish() -> None:
        delays = (None, None, None, 0, 50, 400, 2_000)
        block = [(rng.choice(KEYS), rng.choice((2, 2, 0, 4)), rng.choice(delays)) for _ in range(rng.randrange(1, 5))]
        machine.publish(block, flip(0.2))

    def poll() -> None:
        group = rng.choice((A, B, C, C))
        holder = "o" if group is A else rng.choice(HOLDERS)
        machine.poll(group, holder, rng.randrange(1, 8), policy(), flip(0.2), some_span())

    def operate() -> None:
        machine.operate(rng.choice((A, B, C)), rng.randrange(99), rng.choice(("start", "reset", "forget")))

    def settle() -> None:
        rng.choice(
            (
                lambda: machine.ack(which()),
                lambda: machine.ack_poll(rng.randrange(3)),
                lambda: machine.nack(which(), rng.choice((None, 0, 300))),
                lambda: machine.reject(which(), flip()),
                lambda: machine.extend(which(), some_span()),
                lambda: machine.release(which()),
                lambda: machine.commit(rng.choice((A, B, C)), rng.randrange(99), rng.randrange(3), rng.choice(BY)),
                lambda: machine.give_back(rng.choice((A, B, C)), rng.randrange(3), rng.randrange(1, 3), rng.choice(BY)),
            )
        )()

    def postpone() -> None:
        if machine.pending:
            numbers = [rng.randrange(99) for _ in range(2)]
            machine.cancel(numbers) if flip(0.4) else machine.move(numbers, rng.choice((-500, 0, 30, 600, 50_000)))

    def under_way() -> None:
        if machine.visits and flip(0.6):
            machine.finish(rng.randrange(9), rng.choice((0, 1, ALL)), some_span())
        elif machine.visits:
            machine.pass_over(rng.randrange(9), rng.randrange(1, 3), rng.choice(("skip", "expire", "dead letter")))

    often: list[tuple[int, Callable[[], None]]] = [
        (10, publish),
        (20, poll),
        (24, lambda: settle() if machine.handles else None),
        (10, lambda: machine.pass_time(rng.choice((1, 120, 1_000, 2_500, 35_000)), flip(0.8))),
        (6, under_way),
        (3, lambda: machine.change_owner()),
        (3, lambda: machine.abandon(rng.choice((A, B, C)), rng.choice(("o", *HOLDERS)))),
        (3, lambda: machine.retain(rng.randrange(99), flip())),
        (3, lambda: machine.bury(rng.randrange(3))),
        (3, postpone),
        (2, lambda: machine.lapse(flip(0.6), flip())),
        (2, lambda: machine.restart(rng.choice((0, 0, 1, 3)), rng.choice((0, 500, -700, 60_000)))),
        (2, lambda: machine.look(rng.choice((A, B, C)))),
        (1, lambda: machine.step_wall(rng.choice((-50_000, -60, 60, 50_000)))),
        (1, lambda: machine.snapshot(flip())),
        (1, operate),
    ]
    return [step for times, step in often for _ in range(times)]


@pytest.mark.parametrize("part", range(4))
def test_long_histories_end_where_the_model_says(part: int) -> None:
    for seed in range(part * HISTORIES // 4, (part + 1) * HISTORIES // 4):
        rng = Random(seed)
        machine = DeliveryMachine()
        steps = steps_of(machine, rng)
        try:
            for _ in range(STEPS):
                rng.choice(steps)()
                machine.everything_is_where_the_model_says()
            machine.look_back()
        except Exception as error:
            error.add_note(f"in the history of seed {seed}")
            raise
        finally:
            machine.close()
