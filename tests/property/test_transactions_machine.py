"""Transactions over a host: any commands, any order, kills and power cuts at any point.

A model says what every command must lead to. The state at every end of the log is remembered; whatever a crash
leaves of the log, a start must find exactly the state that belongs to the end it found, no commit that was told to
anybody may be missing, and no number may be given out twice.
"""

from random import Random
from typing import Any, NamedTuple

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from goqueue.machine.host import Host, Outcome
from goqueue.model import limits
from goqueue.model.errors import Conflict, GoQueueError, ProducerFenced, StaleToken, UnknownTransaction
from goqueue.model.names import TopicId
from goqueue.model.settings import Fsync, LogSettings
from goqueue.model.transactions import AbortReason, TransactionState
from goqueue.storage.log import Log
from goqueue.transactions import coordinator
from goqueue.transactions.commands import (
    Abort,
    Begin,
    Commit,
    CommitMany,
    Complete,
    ForgetIdle,
    Former,
    Identify,
    Start,
    Stop,
)
from goqueue.transactions.coordinator import Transactions
from goqueue.transactions.records import Participant
from sim.disk import SimDisk

NOW = 1_700_000_000_000
DIRECTORY = "/meta/transactions"
HERE = (Participant(TopicId(1), 0),)

ids = st.sampled_from(["", "a", "b"])
names = st.sampled_from(["", "load", "other"])
ordinals = st.integers(0, 7)
tokens = st.integers(0, 4)
State = tuple[object, ...]


def state_of(machine: Transactions) -> State:
    transactions = {number: repr(found) for number, found in machine.by_number.items()}
    owners = {name: repr(owner) for name, owner in machine.owners.items()}
    return (
        transactions,
        owners,
        dict(machine.by_producer),
        dict(machine.tokens),
        dict(machine._epochs),
        list(machine._ended),
        machine.reserved,
    )


class Program:
    """One with a transactional id. It may not hear what it is answered; when it is replaced it is started anew."""

    def __init__(self, incarnation: str) -> None:
        self.incarnation = incarnation
        self.known: Former | None = None


class Holder(NamedTuple):
    """Who has a transactional id: nobody knows who, if its incarnation is empty."""

    incarnation: str
    known: Former | None
    """What that program knew when it asked."""
    displaced: tuple[str, ...]

    def next(self, incarnation: str, known: Former | None) -> "Holder":
        is_other = self.incarnation and incarnation != self.incarnation
        displaced = (*self.displaced, self.incarnation)[-limits.FENCED_REMEMBERED :] if is_other else self.displaced
        return Holder(incarnation, known, displaced)


class TransactionsMachine(RuleBasedStateMachine):
    """`machine` is under test. The model: what is `open`, how what ended was decided, who has which id, and tokens."""

    @initialize(seed=st.integers(0, 2**32))
    def create(self, seed: int) -> None:
        self.rng = Random(seed)
        self.disk = SimDisk(Random(seed + 1))
        self.disk.make_directory("/meta")
        self.history: dict[int, State] = {}
        self.models: dict[int, Any] = {}
        self.open: dict[int, tuple[int, str]] = {}
        """By producer: number and name."""
        self.commits: dict[int, bool] = {}
        """Of those that are decided about: whether they are committed."""
        self.owners: dict[str, tuple[int, int]] = {}
        self.fences: dict[int, int] = {}
        """Of producer ids that belong to an id, or did: the epoch that is good."""
        self.last: dict[str, int] = {}
        self.holders: dict[str, Holder] = {}
        self.programs: dict[tuple[str, int], Program] = {}
        self.asked: list[Identify] = []
        """What programs asked and were given."""
        self.fresh = 10
        self.answered: set[int] = set()
        """Numbers that somebody was told."""
        self.told: dict[int, int] = {}
        """Commits somebody was told of: where they are in the log."""
        self.start()
        self.remember()

    def start(self) -> None:
        self.machine = Transactions()
        log = Log.open(DIRECTORY, disk=self.disk, settings=LogSettings(fsync=Fsync.EVERY, segment_bytes=4096))
        self.host = Host(log, [self.machine])
        self.machine.begin_life()

    def remember(self) -> None:
        end = self.host.log.end_offset
        self.history[end] = state_of(self.machine)
        self.models[end] = (
            dict(self.open), dict(self.commits), dict(self.owners), dict(self.fences), dict(self.last),
            dict(self.holders),
        )  # fmt: skip

    def submit(self, command: Any) -> Outcome:
        before, end = state_of(self.machine), self.host.log.end_offset
        outcome = self.host.submit(self.machine, command, NOW)
        if outcome.refusal is not None or self.host.log.end_offset == end:
            assert state_of(self.machine) == before, "a refusal or a look changes nothing"
        return outcome

    def end(self, number: int, commits: bool) -> None:
        self.open = {producer: found for producer, found in self.open.items() if found[0] != number}
        self.commits[number] = commits

    def is_open(self, number: int) -> bool:
        return number in {found for found, _ in self.open.values()}

    def number(self, ordinal: int) -> int:
        """Mostly of one that is open."""
        known = [number for number, _ in self.open.values()] + list(self.commits)[-2:] + [10**6]
        return known[min(ordinal, len(known) - 1)]

    # --- commands

    @rule(name=st.sampled_from(["a", "b"]))
    def identify(self, name: str) -> None:
        self.fresh += 1
        outcome = self.submit(Identify(transactional_id=name, producer_id=self.fresh, timeout_ms=5))
        self.take_over(name, outcome)
        self.holders[name] = self.holders.get(name, Holder("", None, ())).next("", None)
        self.remember()

    @rule(name=st.sampled_from(["a", "b"]), which=st.integers(0, 1), hears=st.booleans())
    def ask(self, name: str, which: int, hears: bool) -> None:
        """Only another program fences: one that asks again, because it heard nothing, is given the same again."""
        self.fresh += 1
        program = self.programs.setdefault((name, which), Program(f"first-{which}"))
        command = Identify(
            transactional_id=name,
            producer_id=self.fresh,
            timeout_ms=5,
            incarnation=program.incarnation,
            former=program.known,
        )
        end, holder = self.host.log.end_offset, self.holders.get(name)
        outcome = self.submit(command)
        is_holder = holder is not None and holder.incarnation == program.incarnation
        if holder is not None and is_holder and holder.known == program.known:
            assert outcome.refusal is None, outcome.refusal
            assert outcome.reply[:2] == self.owners[name]
            assert self.host.log.end_offset == end
        elif holder is None or is_holder or (program.known is None and program.incarnation not in holder.displaced):
            self.take_over(name, outcome)
            self.holders[name] = (holder or Holder("", None, ())).next(program.incarnation, program.known)
            self.asked.append(command)
        else:
            assert isinstance(outcome.refusal, ProducerFenced)
            self.programs[name, which] = Program(f"again-{self.fresh}")
        if hears and outcome.refusal is None:
            self.host.log.sync()
            program.known = Former(*self.owners[name])
        self.remember()

    @rule(ordinal=ordinals)
    def arrive_twice(self, ordinal: int) -> None:
        """What was done before changes nothing, whoever has the id now."""
        for command in self.asked[-ordinal - 1 :][:1]:
            holder = self.holders.get(command.transactional_id)
            if holder is None or command.incarnation not in (holder.incarnation, *holder.displaced):
                return  # lost in a crash, or forgotten
            if command.former is not None and holder.known != command.former == self.owners[command.transactional_id]:
                return  # lost in a crash: it was not done
            end = self.host.log.end_offset
            self.submit(command)
            assert self.host.log.end_offset == end
            self.remember()

    def take_over(self, name: str, outcome: Outcome) -> None:
        """What becomes of an init_producer that is not refused."""
        assert outcome.refusal is None, outcome.refusal
        before = self.owners.get(name)
        expected = (self.fresh, 0)
        if before is not None:
            if before[1] < coordinator._LAST_EPOCH:
                expected = (before[0], before[1] + 1)
            else:
                self.fences[before[0]] = coordinator._LAST_EPOCH + 1
            if before[0] in self.open:
                number, _ = self.open[before[0]]
                assert outcome.reply.aborted == (number,)
                self.end(number, False)
        assert outcome.reply[:2] == expected
        self.owners[name] = expected
        self.fences[expected[0]] = expected[1]

    @rule(producer=st.integers(1, 4), name=names)
    def begin(self, producer: int, name: str) -> None:
        self.try_to_begin(producer, 0, "", name)

    @rule(
        transactional_id=ids, epoch=st.none() | st.integers(0, 3), name=names, producer=st.none() | st.integers(11, 14)
    )
    def begin_for(self, transactional_id: str, epoch: int | None, name: str, producer: int | None) -> None:
        """As who has the id now, or as somebody else."""
        mine, current = self.owners.get(transactional_id, (1, 0))
        epoch = current if epoch is None else epoch
        self.try_to_begin(mine if producer is None else producer, epoch, transactional_id, name)

    def try_to_begin(self, producer: int, epoch: int, transactional_id: str, name: str) -> None:
        command = Begin(producer_id=producer, epoch=epoch, transactional_id=transactional_id, name=name)
        reserved = self.machine.reserved
        outcome = self.submit(command)
        if self.fences.get(producer, epoch) != epoch:
            assert outcome.refusal is not None
            assert isinstance(outcome.refusal, ProducerFenced) == (epoch < self.fences[producer])
        elif transactional_id and self.owners.get(transactional_id, (0, 0))[0] != producer:
            assert outcome.refusal is not None
        elif producer in self.open:
            assert isinstance(outcome.refusal, Conflict)
        else:
            assert outcome.refusal is None, outcome.refusal
            number = outcome.reply
            if self.machine.reserved != reserved:
                self.host.log.sync()  # as whoever answers does
            assert number not in self.answered, "no number is given out twice"
            self.answered.add(number)
            self.open[producer] = (number, name)
        self.remember()

    @rule(ordinal=ordinals, sync=st.booleans())
    def commit(self, ordinal: int, sync: bool) -> None:
        number = self.number(ordinal)
        outcome = self.submit(Commit(number, HERE))
        if self.is_open(number):
            assert outcome.reply == ((number,), False, ())
            self.end(number, True)
        elif number in self.commits and outcome.refusal is None:
            assert outcome.reply == ((number,), True, ())
            assert self.commits[number]
        else:
            assert isinstance(outcome.refusal, UnknownTransaction | Conflict)
        if sync:
            self.host.log.sync()
            if outcome.refusal is None:
                self.told[number] = outcome.position
        self.remember()

    @rule(name=st.sampled_from(["load", "other"]), token=tokens, others=st.lists(ordinals, max_size=1))
    def commit_many(self, name: str, token: int, others: list[int]) -> None:
        numbers = [number for number, given in self.open.values() if given == name]
        numbers = list(dict.fromkeys([*numbers, *map(self.number, others)]))
        outcome = self.submit(CommitMany(name=name, token=token, numbers=tuple(numbers), participants=HERE))
        last = self.last.get(name, -1)
        ours = {number for number, given in self.open.values() if given == name}
        if token < last:
            assert isinstance(outcome.refusal, StaleToken)
        elif token == last:
            left = tuple(number for number in numbers if number in ours)
            assert outcome.reply == ((), True, left)
            for number in left:
                self.end(number, False)
        elif set(numbers) <= ours:
            assert outcome.reply == (tuple(numbers), False, ())
            self.last[name] = token
            for number in numbers:
                self.end(number, True)
        else:
            assert outcome.refusal is not None
        self.remember()

    @rule(some=st.lists(ordinals, max_size=2), reason=st.sampled_from(AbortReason))
    def abort(self, some: list[int], reason: AbortReason) -> None:
        numbers = list(dict.fromkeys(map(self.number, some)))
        outcome = self.submit(Abort(tuple(numbers), reason))
        assert outcome.reply == tuple(number for number in numbers if self.is_open(number))
        for number in outcome.reply:
            self.end(number, False)
        self.remember()

    @rule(share=st.floats(0, 1))
    def complete(self, share: float) -> None:
        undone = [found.number for found in self.machine.deciding]
        self.submit(Complete(tuple(undone[: int(share * len(undone) + 1)])))
        self.remember()

    @rule(is_time=st.integers(0, 3))
    def forget_idle(self, is_time: int) -> None:
        if is_time:
            return
        self.submit(ForgetIdle(NOW + 1))
        for name, (producer, _) in list(self.owners.items()):
            if producer not in self.open:
                del self.owners[name], self.fences[producer], self.holders[name]
        self.remember()

    # --- the log

    @rule()
    def sync(self) -> None:
        self.host.log.sync()

    @rule()
    def snapshot(self) -> None:
        self.host.snapshot(NOW)
        self.host.log.sync()
        self.host.forget()
        self.remember()

    @rule()
    def stop_and_start(self) -> None:
        self.submit(Stop())
        self.host.log.close()
        self.start()
        assert self.machine.is_stopped
        self.submit(Start())
        self.host.log.sync()
        assert not self.machine.is_stopped
        self.remember()

    @rule(kind=st.sampled_from(["kill", "power"]))
    def crash(self, kind: Any) -> None:
        self.disk.crash(self.rng, kind)
        self.start()
        end = self.host.log.end_offset
        assert state_of(self.machine) == self.history[end]
        assert not self.machine.is_stopped
        self.open, self.commits, self.owners, self.fences, self.last, self.holders = map(dict, self.models[end])
        for later in [each for each in self.history if each > end]:
            del self.history[later], self.models[later]
        for number, position in self.told.items():
            assert position <= end, "what was told is durable"
            assert self.commits[number]

    # --- always

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "machine"):
            return
        machine = self.machine
        assert machine.by_producer == {producer: number for producer, (number, _) in self.open.items()}
        assert {name: owner[:2] for name, owner in self.owners.items()} == {
            name: (owner.producer_id, owner.epoch) for name, owner in machine.owners.items()
        }
        assert machine.tokens == self.last
        assert len(machine._ended) <= limits.TRANSACTIONS_REMEMBERED
        for number, found in machine.by_number.items():
            assert found.is_open == self.is_open(number)
            assert found.is_open or found.is_committed == self.commits[number]
            assert (number in machine._ended) == (found.state in (TransactionState.COMMITTED, TransactionState.ABORTED))
        for producer, epoch in self.fences.items():
            if epoch <= coordinator._LAST_EPOCH:
                machine.check_epoch(producer, epoch)
            try:
                machine.check_epoch(producer, epoch - 1)
            except GoQueueError:
                continue
            raise AssertionError(f"epoch {epoch - 1} of producer {producer} is not fenced")


class SmallLimits(TransactionsMachine):
    """With bounds that are reached."""

    def __init__(self) -> None:
        self.real = coordinator._LAST_EPOCH, limits.TRANSACTIONS_REMEMBERED, limits.TRANSACTION_NUMBERS_RESERVED
        self._set(2, 3, 2)
        super().__init__()

    def _set(self, epoch: int, remembered: int, reserved: int) -> None:
        for where, name, value in (
            (coordinator, "_LAST_EPOCH", epoch),
            (limits, "TRANSACTIONS_REMEMBERED", remembered),
            (limits, "TRANSACTION_NUMBERS_RESERVED", reserved),
        ):
            setattr(where, name, value)

    def teardown(self) -> None:
        self._set(*self.real)


test_transactions_do_what_the_model_says = SmallLimits.TestCase
test_transactions_do_what_the_model_says.settings = settings(
    max_examples=80, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
