"""The delivery machine against a model that keeps one word for every offset of every group.

Groups start, are delivered what is offered in any cuts, settle, lose replies, change owners, are reset and deleted;
messages come, go by retention, turn out to be damaged, and are lost in power cuts, behind fences. Whatever happens,
each offset is in exactly one place, the place the model says; a snapshot makes the same machine again at any time; and
all records from the beginning add up to it.
"""

from random import Random
from typing import Any, NamedTuple

import pytest

from goqueue.delivery import delivery, records
from goqueue.delivery.deliveries import (
    Deliveries,
    Fence,
    Forget,
    GiveBack,
    Lease,
    Open,
    ResetTo,
    Settle,
    Skip,
    Start,
)
from goqueue.delivery.records import Delivered, HeldLease, Range, Resting
from goqueue.delivery.settled import SettledSet
from goqueue.model.errors import Conflict
from goqueue.model.names import GroupNumber

HISTORIES = 2000
STEPS = 40
SEPARATE = 3
"""Leases that are told apart; the product has more."""
GROUPS = (GroupNumber(1), GroupNumber(2), GroupNumber(5))
NOW = 1_700_000_000_000


class Place(NamedTuple):
    """Where an offset is. A poll of -1: nobody has it."""

    settled: bool = False
    poll: int = -1
    deliveries: int = 0

    @property
    def is_leased(self) -> bool:
        return self.poll >= 0

    @property
    def is_ready(self) -> bool:
        return not self.settled and self.poll < 0


NEW = Place()
SETTLED = Place(settled=True)


class Model:
    """One group. What is not in `places` is new."""

    def __init__(self, low: int = 0) -> None:
        self.places = dict.fromkeys(range(low), SETTLED)
        self.epoch = 0
        self.fenced_poll = 0
        self.polls: list[int] = []
        """The leases, oldest first, by the number of the first poll in them."""

    def at(self, offset: int) -> Place:
        return self.places.get(offset, NEW)

    @property
    def low(self) -> int:
        return next(offset for offset in range(len(self.places) + 1) if not self.at(offset).settled)

    @property
    def cursor(self) -> int:
        return max((offset + 1 for offset, place in self.places.items() if place != NEW), default=0)

    def leased(self) -> list[int]:
        return [offset for offset, place in self.places.items() if place.is_leased]

    def is_row(self, first: int, end: int) -> bool:
        """Whether these are ready and were delivered equally often."""
        return first < end and self.at(first).is_ready and len({self.at(offset) for offset in range(first, end)}) == 1

    @property
    def is_resting(self) -> bool:
        return self.low == self.cursor

    # --- what happens

    def open(self, epoch: int) -> None:
        if self.leased() and epoch > self.epoch:
            for offset in self.leased():
                self.places[offset] = Place(deliveries=self.at(offset).deliveries)
            self.epoch = epoch
            self.polls = []

    def lease(self, epoch: int, poll: int, start: int, spans: tuple[tuple[int, int], ...]) -> None:
        self.open(epoch)
        self.epoch = epoch
        for offset in range(start):
            if self.at(offset).is_ready:
                self.places[offset] = SETTLED
        for first, end in spans:
            for offset in range(first, end):
                self.places[offset] = Place(poll=poll, deliveries=self.at(offset).deliveries + 1)
        if self.polls[-1:] != [poll]:
            self.polls.append(poll)
        at = sum(each <= self.fenced_poll for each in self.polls)
        if len(self.polls) - at > SEPARATE:
            older, old = self.polls[at : at + 2]
            self.polls[at : at + 2] = [older]
            for offset in self.leased():
                if self.at(offset).poll == old:
                    self.places[offset] = self.at(offset)._replace(poll=older)

    def settle(self, below: int, to: int) -> None:
        for offset in self.leased():
            if offset < below and self.at(offset).poll <= to:
                self.places[offset] = SETTLED

    def give_back(self, after: int, to: int) -> None:
        for offset in self.leased():
            if after < self.at(offset).poll <= to:
                self.places[offset] = Place(deliveries=self.at(offset).deliveries - 1)

    def skip(self, first: int, end: int) -> None:
        self.places.update(dict.fromkeys(range(first, end), SETTLED))

    def clip(self, end: int) -> None:
        self.fenced_poll = self.polls[-1] if self.polls else 0
        if end < self.cursor:
            for offset in self.leased():
                self.places[offset] = Place(deliveries=self.at(offset).deliveries)
            self.polls = []
        self.places = {offset: place for offset, place in self.places.items() if offset < end}

    def tidy(self) -> None:
        held = {self.at(offset).poll for offset in self.leased()}
        self.polls = [poll for poll in self.polls if poll in held]


def state_of(machine: Deliveries) -> list[Any]:
    """What a snapshot says. Equal bitmaps may have different bytes."""
    found: list[Any] = []
    for record in machine.snapshot():
        event = records.decode(record)
        if isinstance(event, Delivered):
            found.append((*_fields(event), _above(event)))
        else:
            found.append(event)
    return found


def _fields(event: Delivered) -> tuple[Any, ...]:
    return event.group, event.low, event.cursor, event.assignment_epoch, event.leases, event.ready_again


def _above(event: Delivered) -> list[int]:
    settled = SettledSet(event.low, event.settled)
    return [offset for offset in range(event.low, event.cursor + 10) if offset in settled]


class History:
    """One random history, checked after every step."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.machine = Deliveries()
        self.models: dict[GroupNumber, Model] = {}
        self.written: list[bytes] = []
        self.start = 0
        self.end = self.rng.randrange(20)
        self.poll = 0
        self.leader_epoch = 0

    def run(self) -> None:
        steps = [
            *[self.take] * 8,
            *[self.settle] * 5,
            *[self.give_back] * 3,
            *[self.change_owner] * 2,
            *[self.append] * 3,
            *[self.pass_over] * 2,
            self.take_anything,
            self.retain,
            self.reset,
            self.begin,
            self.forget,
            self.fence,
            self.restore,
        ]
        for _ in range(STEPS):
            group = self.rng.choice(GROUPS)
            lows = {each: self.machine.low(each) or 0 for each in GROUPS}
            step = self.rng.choice(steps)
            step(group)
            for each, model in self.models.items():
                model.tidy()
                if step not in (self.reset, self.fence, self.forget):
                    assert (self.machine.low(each) or 0) >= lows[each], "the low mark went back"
            self.check(GROUPS if step in (self.fence, self.restore) else (group,))
        self.check(GROUPS)
        self.replay()

    def do(self, command: Any) -> list[bytes]:
        """What was written for it."""
        before = list(self.machine.snapshot())
        decision = self.machine.decide(command, NOW)
        assert list(self.machine.snapshot()) == before
        for record in decision.records:
            self.machine.apply(record, len(self.written))
            self.written.append(record)
        return list(decision.records)

    def model(self, group: GroupNumber) -> Model:
        return self.models.get(group) or Model()

    # --- polls

    def take(self, group: GroupNumber) -> None:
        """As a poll does: several times, as much as is offered or less, in one span or in two."""
        self.poll += 1
        model = self.model(group)
        epoch = model.epoch + self.rng.choice((0, 0, 0, 1))
        if self.rng.random() < 0.7 and self.machine.needs_open(group, epoch):
            self.do(Open(group, epoch))
            model.open(epoch)
        for _ in range(self.rng.randrange(1, 4)):
            offered = self.machine.next_ready(group, self.start)
            self.check_offer(model, offered)
            end = min(offered.end or self.end, self.end)
            if offered.first >= end:
                return
            end = self.rng.randint(offered.first + 1, end)
            middle = self.rng.randint(offered.first + 1, end)
            spans = ((offered.first, end),) if middle == end else ((middle, end), (offered.first, middle))
            decision = self.machine.decide(Lease(group, epoch, self.poll, self.start, spans), NOW)
            assert decision.reply == tuple(Range(*span, offered.deliveries + 1) for span in spans)
            assert self.do(Lease(group, epoch, self.poll, self.start, spans))
            model.lease(epoch, self.poll, self.start, spans)
            self.models[group] = model

    def check_offer(self, model: Model, offered: Range) -> None:
        first = next(offset for offset in range(self.start, 10**6) if model.at(offset).is_ready)
        assert (offered.first, offered.deliveries) == (first, model.at(first).deliveries)
        if offered.end:
            assert model.is_row(offered.first, offered.end)
            assert model.at(offered.end) != model.at(first)._replace(deliveries=offered.deliveries)
        else:
            assert first >= model.cursor

    def take_anything(self, group: GroupNumber) -> None:
        """Leased if it is ready, in order where it is new; else refused."""
        self.poll += 1
        model = self.model(group)
        first = self.rng.randrange(self.end + 3)
        end = first + self.rng.randrange(4)
        is_next = first == max(model.cursor, self.start) or end <= model.cursor
        command = Lease(group, model.epoch, self.poll, self.start, ((first, end),))
        if first >= self.start and model.is_row(first, end) and is_next:
            self.do(command)
            self.end = max(self.end, end)
            model.lease(model.epoch, self.poll, self.start, ((first, end),))
            self.models[group] = model
        else:
            with pytest.raises(Conflict):
                self.do(command)

    def pass_over(self, group: GroupNumber) -> None:
        model = self.model(group)
        first = self.rng.randrange(self.end + 3)
        end = first + self.rng.randrange(4)
        if model.is_row(first, end) and (first >= model.cursor or end <= model.cursor):
            self.do(Skip(group, first, end))
            self.end = max(self.end, end)
            model.skip(first, end)
            self.models[group] = model
        else:
            with pytest.raises(Conflict):
                self.do(Skip(group, first, end))

    # --- settling and giving back

    def settle(self, group: GroupNumber) -> None:
        model = self.model(group)
        below = self.rng.randrange(self.end + 2)
        to = self.rng.choice([*model.polls, self.poll, 10**12])
        written = self.do(Settle(group, below, to))
        assert bool(written) == any(offset < below and model.at(offset).poll <= to for offset in model.leased())
        model.settle(below, to)

    def give_back(self, group: GroupNumber) -> None:
        model = self.model(group)
        after = self.rng.choice([*model.polls, self.poll, 0]) - self.rng.randrange(2)
        to = self.rng.choice((after + 1, self.poll, 10**12))
        written = self.do(GiveBack(group, after, to))
        assert bool(written) == any(after < poll <= to for poll in model.polls)
        model.give_back(after, to)

    def change_owner(self, group: GroupNumber) -> None:
        model = self.model(group)
        epoch = model.epoch + self.rng.randrange(-1, 3)
        stale = bool(model.leased()) and epoch > model.epoch
        assert self.machine.needs_open(group, epoch) == stale
        assert bool(self.do(Open(group, epoch))) == stale
        model.open(epoch)

    # --- where a group is

    def begin(self, group: GroupNumber) -> None:
        low = self.rng.randint(self.start, self.end)
        assert bool(self.do(Start(group, low))) == (group not in self.models)
        self.models.setdefault(group, Model(low))

    def reset(self, group: GroupNumber) -> None:
        low = self.rng.randint(self.start, self.end)
        self.do(ResetTo(group, low))
        self.models[group] = Model(low)

    def forget(self, group: GroupNumber) -> None:
        assert bool(self.do(Forget(group))) == (group in self.models)
        self.models.pop(group, None)

    # --- the data log

    def append(self, _: GroupNumber) -> None:
        self.end += self.rng.randrange(8)

    def retain(self, _: GroupNumber) -> None:
        self.start = min(self.start + self.rng.randrange(10), self.end)

    def fence(self, _: GroupNumber) -> None:
        """A power cut took an end of the data log, perhaps an empty one."""
        self.leader_epoch += 1
        self.end = self.rng.randint(max(self.start, self.end - 8), self.end)
        self.do(Fence(self.end, self.leader_epoch))
        for model in self.models.values():
            model.clip(self.end)

    # --- starting again

    def restore(self, _: GroupNumber) -> None:
        other = Deliveries()
        for record in self.machine.snapshot():
            other.apply(record, 0)
        assert state_of(other) == state_of(self.machine)
        self.machine = other

    def replay(self) -> None:
        other = Deliveries()
        for offset, record in enumerate(self.written):
            other.apply(record, offset)
        assert state_of(other) == state_of(self.machine)

    # --- what holds at any time

    def check(self, groups: tuple[GroupNumber, ...]) -> None:
        """All that are there, and some of them offset by offset."""
        assert self.machine.groups == sorted(self.models)
        assert self.machine.last_poll == max(
            (poll for model in self.models.values() for poll in model.polls), default=0
        )
        for record in self.machine.snapshot():
            event = records.decode(record)
            if isinstance(event, Resting):
                for group, low in event.lows:
                    assert self.models[group].is_resting
                    assert self.machine.low(group) == low
                    if group in groups:
                        self.check_group(group, Delivered(group, low, low, 0, b"", (), (), 0))
            else:
                assert isinstance(event, Delivered)
                assert not self.models[event.group].is_resting
                if event.group in groups:
                    self.check_group(event.group, event)

    def check_group(self, group: GroupNumber, event: Delivered) -> None:
        model, machine = self.models[group], self.machine
        settled = SettledSet(event.low, event.settled)
        for offset in range(self.end + 4):
            places = [SETTLED] if offset in settled else []
            places += [Place(poll=lease.poll, deliveries=piece.deliveries) for lease, piece in _held(event, offset)]
            places += [Place(deliveries=piece.deliveries) for piece in event.ready_again if _has(piece, offset)]
            places += [NEW] if offset >= event.cursor else []
            assert places == [model.at(offset)], f"group {group}, offset {offset}"
        assert [lease.poll for lease in event.leases] == model.polls
        assert sum(lease.poll > event.fenced_poll for lease in event.leases) <= SEPARATE
        assert (machine.low(group), event.cursor) == (model.low, model.cursor)
        assert machine.in_flight(group) == len(model.leased())
        assert machine.has_in_flight(group) == bool(model.leased())
        assert not event.leases or event.assignment_epoch == model.epoch
        assert machine.unsettled(group, self.start, self.end) == sum(
            not model.at(offset).settled for offset in range(self.start, self.end)
        )
        assert machine.overtaken(group, self.start) == sum(model.at(offset).is_ready for offset in range(self.start))


def _has(piece: Range, offset: int) -> bool:
    return piece.first <= offset < piece.end


def _held(event: Delivered, offset: int) -> list[tuple[HeldLease, Range]]:
    return [(lease, piece) for lease in event.leases for piece in lease.ranges if _has(piece, offset)]


@pytest.mark.parametrize("part", range(10))
def test_every_offset_is_where_the_model_says(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "_SEPARATE_LEASES", SEPARATE)
    for seed in range(part * HISTORIES // 10, (part + 1) * HISTORIES // 10):
        try:
            History(seed).run()
        except Exception as error:
            error.add_note(f"in the history of seed {seed}")
            raise


def test_a_consumer_that_never_commits_costs_a_bounded_number_of_leases() -> None:
    machine = Deliveries()
    group = GROUPS[0]
    for poll in range(2000):
        first = machine.next_ready(group, 0).first
        for step in range(3):
            span = (first + step * 10, first + step * 10 + 10)
            for record in machine.decide(Lease(group, 1, poll, 0, (span,)), NOW).records:
                machine.apply(record, poll)
    (record,) = machine.snapshot()
    assert machine.in_flight(group) == 60_000
    assert len(record) < 300
