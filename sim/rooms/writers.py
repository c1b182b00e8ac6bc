"""Programs that write in transactions. They outlive brokers, forget what they were doing, and come back too late.

One has a transactional id or none; a team commits several transactions as one, under a name and with tokens.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Final, NamedTuple

import msgspec
from pyroaring import BitMap64

from goqueue import codec
from goqueue.broker.partition import Placed
from goqueue.delivery.commands import Pledge
from goqueue.model.errors import Conflict, GoQueueError, ProducerFenced, TransactionAborted
from goqueue.model.publishing import Acks
from goqueue.model.record import Extension, Producer, Record
from goqueue.model.settings import Fsync
from goqueue.transactions.commands import Begin, Former, Identity
from goqueue.transactions.coordinator import Writer as Who
from goqueue.transactions.records import Participant
from sim.checkers import fenced, require, tokens
from sim.rooms.deeds import Ack, Deed, Deeds, Message, Value
from sim.rooms.exchanges import Steps
from sim.rooms.transaction_broker import Delivered, TransactionBroker, steps
from sim.scheduler import Scheduler, Task
from sim.trace import Trace

KEYS: Final = (None, b"a", b"b")
_OLD: Final = 6


class World:
    """What all of them share."""

    def __init__(
        self, rng: Random, trace: Trace, deeds: Deeds, scheduler: Scheduler, uptime: Callable[[], int]
    ) -> None:
        self.rng = rng
        self.trace = trace
        self.deeds = deeds
        self.scheduler = scheduler
        self.uptime = uptime
        self.handles: list[Delivered] = []
        """Messages that somebody may acknowledge in a transaction."""
        self.polls = 0

    def some_records(self, part: Participant, number: int, now: int) -> tuple[list[Value], list[Record]]:
        rng = self.rng
        values, records = [], []
        for _ in range(rng.choice((1, 1, 2, 4))):
            deliver_at = now + rng.choice((50, 400, 3000)) if rng.random() < 0.12 else None
            key = rng.choice(KEYS)
            value = self.deeds.new_value(Message(part, number, key, deliver_at))
            extension = Extension(deliver_at=deliver_at) if deliver_at is not None else None
            values.append(value)
            records.append(Record(key=key, value=b"%d" % value, extension=extension))
        return values, records


class Block(NamedTuple):
    """What was sent; it may be sent again."""

    part: Participant
    producer: Producer | None
    values: list[Value]
    records: Sequence[Record]


class Attempt(NamedTuple):
    """A transaction, and who it is of."""

    deed: Deed
    who: Who


class Program:
    """What every writer can do; each is one request to the broker."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.rng = world.rng

    def live(self, broker: TransactionBroker) -> Task:
        """In one life of a broker."""
        raise NotImplementedError

    def begin(self, broker: TransactionBroker, who: Who, name: str = "") -> Steps[Deed]:
        timeout_ms = self.rng.choice((700, 3000, 3000, 20_000))
        command = Begin(
            producer_id=who.producer_id,
            epoch=who.epoch,
            transactional_id=who.transactional_id,
            name=name,
            timeout_ms=timeout_ms,
        )
        last = self.world.deeds.epochs.get(who.transactional_id, 0)
        found = yield from steps(broker.runner.begin(command))
        fenced.check(last, who, "a begin")
        known = self.world.deeds.by_number.get(found.number)
        require(known is None, "numbers", f"number {found.number} was given out twice")
        deed = Deed(found.number, began=self.world.uptime(), timeout_ms=timeout_ms, name=name)
        self.world.deeds.by_number[found.number] = deed
        self.world.trace.event("begun", self.name, found.number, who, timeout_ms)
        return deed

    def send(self, broker: TransactionBroker, attempt: Attempt, block: Block) -> Steps[None]:
        """A block in a transaction. Raises when it is refused, and then nothing has changed."""
        deed, who = attempt
        deeds, runner = self.world.deeds, broker.runner
        partition = broker.partitions[block.part]
        before = fenced.state(partition)
        again = deed.unsure.issuperset(block.values) or deed.written.issuperset(block.values)
        self.world.trace.event("send", self.name, deed.number, *block.part, *block.values)
        deed.unsure.update(block.values)
        stamped = [_in(record, deed.number, block.producer) for record in block.records]
        topic = broker.topics.by_id[block.part.topic_id]
        try:
            number = None if block.producer else runner.writing(runner.machine.of(who, deed.number)).number
            receipt = broker.publisher.publish(
                topic,
                block.part.partition,
                memoryview(codec.encode(stamped)),
                acks=Acks.LEADER,
                producer=block.producer,
                transaction=number,
            )
        except GoQueueError:
            fenced.check_refused(before, partition)
            if not again:
                deed.unsure.difference_update(block.values)
            raise
        found = runner.machine.by_number.get(deed.number)
        is_open = found is not None and found.is_open
        fenced.check_open(deed, closing=deed.number in runner.closing, is_open=is_open)
        fenced.check(deeds.epochs.get(who.transactional_id, 0), who, "a block")
        _check_placed(block, receipt.placed)
        self.taken(attempt, block)
        while receipt.durable_at is not None and partition.log.durable.value < receipt.durable_at:
            yield self.rng.choice((1, 3, 10))
        deed.unsure.difference_update(block.values)
        deed.written.update(block.values)

    def taken(self, attempt: Attempt, block: Block) -> None:
        """The broker has the block, durable or not."""

    def pledge(self, broker: TransactionBroker, attempt: Attempt, given: Delivered) -> Steps[None]:
        deed, who = attempt
        deeds, runner = self.world.deeds, broker.runner
        partition = broker.partitions[given.part]
        if partition.sidecar is None:
            return
        runner.writing(runner.machine.of(who, deed.number))
        acks = {offset: Ack(given.group, given.part, value) for offset, value in given.values.items()}
        deed.unsure_acks.update(acks.values())
        claims = {given.poll: BitMap64(acks)}
        self.world.trace.event("pledge", self.name, deed.number, *given)
        refused = broker.sidecars.write(partition, Pledge(given.group, claims, deed.number)).get(given.poll, ())
        taken = {ack for offset, ack in acks.items() if offset not in refused}
        if taken:
            runner.take_part(deed.number, partition)
            fenced.check_open(deed, closing=deed.number in runner.closing, is_open=True)
            fenced.check(deeds.epochs.get(who.transactional_id, 0), who, "an ack")
        assert partition.sidecar is not None
        log, end = partition.sidecar.log, partition.sidecar.log.end_offset
        while log.settings.fsync is Fsync.EVERY and log.durable.value < end:
            yield self.rng.choice((1, 3, 10))
        deed.unsure_acks.difference_update(acks.values())
        deed.acks |= taken

    def commit(self, broker: TransactionBroker, attempt: Attempt, *, counted: bool) -> Steps[None]:
        """Whatever comes of it is remembered; also that nobody knows."""
        deed, who = attempt
        last = self.world.deeds.epochs.get(who.transactional_id, 0)
        self.world.trace.event("commit", self.name, deed.number, counted)
        try:
            found = broker.machine.of(who, deed.number)
            messages, acks = (len(deed.written), len(deed.acks)) if counted else (None, None)
            if counted and self.rng.random() < 0.2:
                acks = None
            yield from steps(broker.runner.commit(found, messages=messages, acks=acks))
        except TransactionAborted:
            self.world.deeds.tell(deed.number, False)
            raise
        fenced.check(last, who, "a commit")
        self.world.deeds.tell(deed.number, True)
        self.world.trace.event("committed", self.name, deed.number)

    def abort(self, broker: TransactionBroker, attempt: Attempt) -> Steps[None]:
        deed, who = attempt
        found = broker.machine.of(who, deed.number)
        aborted = yield from steps(broker.runner.abort((found.number,)))
        if deed.number in aborted:
            self.world.deeds.tell(deed.number, False)
            self.world.trace.event("aborted", self.name, deed.number)


class Writer(Program):
    """One producer; with a transactional id it begins a new life now and then, and its former self may go on."""

    def __init__(self, world: World, name: str, transactional_id: str = "", *, numbered: bool = True) -> None:
        super().__init__(world, name)
        self.transactional_id = transactional_id
        self.numbered = numbered
        """Whether its blocks carry a sequence, so that they may be sent again."""
        self.who: Who | None = None
        self.life = 0
        self.known: Former | None = None
        """The last identity that this life of it was told."""
        self.deed: Deed | None = None
        self.doubtful: Block | None = None
        """A block that was sent and not answered."""
        self.decided = False
        """It has asked for a commit, and does not know what came of it."""
        self.spoiled = False
        """It does not know what is in its transaction: it can only abort it."""
        self.sequences: dict[Participant, int] = {}
        self.last: Block | None = None
        self.old: list[Attempt] = []

    def live(self, broker: TransactionBroker) -> Task:
        while True:
            yield self.rng.choice((1, 10, 40, 150))
            try:
                yield from self._turn(broker)
            except GoQueueError as refusal:
                self.world.trace.event("refused", self.name, type(refusal).__name__)
                if not isinstance(refusal, Conflict):
                    self._leave()
                    self.who = None

    def _leave(self) -> None:
        """Do something else; what was open stays so until its time is over."""
        if self.deed is not None and self.who is not None:
            self.old = [*self.old, Attempt(self.deed, self.who)][-_OLD:]
        self.deed = self.doubtful = self.last = None
        self.decided = self.spoiled = False

    def _turn(self, broker: TransactionBroker) -> Steps[None]:
        rng = self.rng
        if self.who is None or (self.transactional_id and rng.random() < 0.04):
            yield from self._identify(broker)
        assert self.who is not None
        if self.old and rng.random() < 0.12:
            yield from self._come_late(broker)
            return
        if self.deed is None:
            self.deed = yield from self.begin(broker, self.who)
            return
        attempt = Attempt(self.deed, self.who)
        if self.decided:
            yield from self._commit(broker, attempt)
        elif self.doubtful is not None:
            if self.numbered and rng.random() < 0.7:
                yield from self._send(broker, attempt, self.doubtful)
            else:
                self.spoiled, self.doubtful = True, None
        elif self.spoiled or rng.random() < 0.05:
            yield from self.abort(broker, attempt)
            self._leave()
        else:
            yield from self._go_on(broker, attempt)

    def _go_on(self, broker: TransactionBroker, attempt: Attempt) -> Steps[None]:
        rng, world = self.rng, self.world
        luck = rng.random()
        if luck < 0.5:
            part = rng.choice(list(broker.partitions))
            yield from self._send(broker, attempt, self._new_block(broker, attempt, part))
        elif luck < 0.55 and self.last is not None and self.numbered:
            yield from self.send(broker, attempt, self.last)
        elif luck < 0.72:
            if world.handles:
                given = world.handles.pop(rng.randrange(len(world.handles)))
                self.spoiled = True
                yield from self.pledge(broker, attempt, given)
                self.spoiled = False
        elif luck < 0.96:
            if rng.random() < 0.15:
                world.scheduler.spawn(self.name, self._meddle(broker, attempt), after=rng.choice((0, 2, 6)))
            yield from self._commit(broker, attempt)
        else:
            self._leave()
            if not self.transactional_id:
                self.who = None

    def _new_block(self, broker: TransactionBroker, attempt: Attempt, part: Participant) -> Block:
        values, records = self.world.some_records(part, attempt.deed.number, broker.clock.now)
        if not self.numbered:
            return Block(part, None, values, records)
        sequence = self.sequences.get(part, 0)
        return Block(part, Producer(attempt.who.producer_id, attempt.who.epoch, sequence), values, records)

    def _send(self, broker: TransactionBroker, attempt: Attempt, block: Block) -> Steps[None]:
        self.doubtful = block
        try:
            yield from self.send(broker, attempt, block)
        except GoQueueError:
            self.doubtful = None
            self.spoiled = bool(attempt.deed.unsure)
            raise
        self.doubtful, self.last = None, block

    def taken(self, attempt: Attempt, block: Block) -> None:
        if block.producer is not None and attempt.who == self.who:
            following = block.producer.sequence + len(block.records)
            self.sequences[block.part] = max(self.sequences.get(block.part, 0), following)

    def _commit(self, broker: TransactionBroker, attempt: Attempt) -> Steps[None]:
        counted = self.rng.random() < 0.7 or self.decided
        self.decided = True
        yield from self.commit(broker, attempt, counted=counted)
        self._leave()

    def _identify(self, broker: TransactionBroker) -> Steps[None]:
        before = self.deed
        self._leave()
        self.sequences = {}
        self.who = None
        if not self.transactional_id:
            producer_id = yield from steps(broker.new_producer())
            self.who = Who(producer_id, 0)
            return
        if self.rng.random() < 0.3:
            self.life, self.known = self.life + 1, None
        identity = yield from self._ask(broker)
        if self.rng.random() < 0.3:  # the first answer got lost
            again = yield from self._ask(broker)
            fenced.check_again(identity[:2], again[:2], self.transactional_id)
        self.known = Former(identity.producer_id, identity.epoch)
        self.who = Who(identity.producer_id, identity.epoch, self.transactional_id)
        deeds = self.world.deeds
        deeds.epochs[self.transactional_id] = identity.epoch
        left = [found for found in broker.machine.open if found.transactional_id == self.transactional_id]
        fenced.check_left([found.number for found in left if found.epoch < identity.epoch], self.transactional_id)
        for number in identity.aborted:
            if number in deeds.by_number:
                deeds.tell(number, False)
        self.world.trace.event("identified", self.name, *identity, before.number if before else 0)

    def _ask(self, broker: TransactionBroker) -> Steps[Identity]:
        """The id is its own, whatever answers were lost in crashes: it is not refused."""
        incarnation = f"{self.name}-{self.life}"
        try:
            asked = broker.runner.identify(self.transactional_id, 3000, incarnation=incarnation, former=self.known)
            identity = yield from steps(asked)
        except ProducerFenced as refusal:
            fenced.check_refused_itself(self.transactional_id, refusal)
            raise
        return identity

    # --- too late

    def _come_late(self, broker: TransactionBroker) -> Steps[None]:
        """In a transaction that it left, or that has ended; perhaps as who it was before."""
        attempt = self.rng.choice(self.old)
        try:
            luck = self.rng.random()
            if luck < 0.2 and attempt.who != self.who:
                deed = yield from self.begin(broker, attempt.who)
                self.old = [*self.old, Attempt(deed, attempt.who)][-_OLD:]
            elif luck < 0.75:
                yield from self._late_block(broker, attempt)
            elif attempt.deed.unsure or attempt.deed.unsure_acks:
                yield from self.abort(broker, attempt)
            else:
                yield from self.commit(broker, attempt, counted=True)
        except GoQueueError as refusal:
            self.world.trace.event("too late", self.name, attempt.deed.number, type(refusal).__name__)

    def _late_block(self, broker: TransactionBroker, attempt: Attempt) -> Steps[None]:
        part = self.rng.choice(list(broker.partitions))
        yield from self.send(broker, attempt, self._new_block(broker, attempt, part))

    def _meddle(self, broker: TransactionBroker, attempt: Attempt) -> Task:
        """While it commits: it asks again, or sends something more."""
        try:
            if self.rng.random() < 0.5:
                yield from self.commit(broker, attempt, counted=False)
            else:
                yield from self._late_block(broker, attempt)
        except GoQueueError as refusal:
            self.world.trace.event("meddled", self.name, attempt.deed.number, type(refusal).__name__)


class Team(Program):
    """Workers of one name: each has a transaction, all are committed by a token, or none."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.token = 1
        self.attempts: list[Attempt] = []
        self.asked = False
        """It wanted to commit, and does not know what came of it."""
        self.old: list[Attempt] = []

    def live(self, broker: TransactionBroker) -> Task:
        while True:
            yield self.rng.choice((1, 20, 100))
            try:
                yield from self._turn(broker)
            except GoQueueError as refusal:
                self.world.trace.event("refused", self.name, type(refusal).__name__)
                if not isinstance(refusal, Conflict):
                    self._leave()

    def _leave(self) -> None:
        self.old = self.attempts or self.old
        self.attempts = []
        self.asked = False

    def _turn(self, broker: TransactionBroker) -> Steps[None]:
        rng = self.rng
        luck = rng.random()
        if self.asked:
            if luck < 0.3:
                self._leave()  # it begins anew, and does the same work under the same token
            else:
                yield from self._commit(broker, self.token)
        elif len(self.attempts) < 2:
            producer_id = yield from steps(broker.new_producer())
            deed = yield from self.begin(broker, Who(producer_id, 0), self.name)
            self.attempts.append(Attempt(deed, Who(producer_id, 0)))
        elif luck < 0.6:
            yield from self._send(broker)
        elif luck < 0.9:
            yield from self._commit(broker, self.token)
        elif luck < 0.95:
            yield from self._commit(broker, max(self.token - rng.choice((1, 1, 2)), 1), again=True)
        else:
            self._leave()

    def _send(self, broker: TransactionBroker) -> Steps[None]:
        attempt = self.rng.choice(self.attempts)
        part = self.rng.choice(list(broker.partitions))
        values, records = self.world.some_records(part, attempt.deed.number, broker.clock.now)
        try:
            yield from self.send(broker, attempt, Block(part, None, values, records))
        except GoQueueError:
            self._leave()
            raise

    def _commit(self, broker: TransactionBroker, token: int, *, again: bool = False) -> Steps[None]:
        """`again`: a token of before, which is answered as it was, and drops what is new."""
        deeds, attempts = self.world.deeds, self.attempts
        if any(attempt.deed.unsure for attempt in attempts):
            self._leave()
            return
        counted = self.asked or self.rng.random() < 0.7
        self.asked = not again
        numbers = tuple(attempt.deed.number for attempt in attempts)
        messages = {attempt.deed.number: len(attempt.deed.written) for attempt in attempts}
        if not again:
            deeds.batches.setdefault((self.name, token), []).append(frozenset(numbers))
        self.world.trace.event("commit many", self.name, token, *numbers)
        try:
            committed = yield from steps(
                broker.runner.commit_many(self.name, token, numbers, messages if counted else None)
            )
        except TransactionAborted:
            self._leave()
            raise
        tokens.check_answer(deeds, self.name, token, duplicate=committed.duplicate)
        for number in committed.numbers:
            deeds.tell(number, True)
        for number in committed.aborted:
            deeds.tell(number, False)
        self.world.trace.event("committed many", self.name, token, *committed)
        self._leave()
        if not again:
            self.token += 1


def _in(record: Record, number: int, producer: Producer | None) -> Record:
    extension = msgspec.structs.replace(record.extension or Extension(), transaction=number, producer=producer)
    return msgspec.structs.replace(record, extension=extension)


def _check_placed(block: Block, placed: Sequence[Placed]) -> None:
    """The messages are where the broker says."""
    offsets = [place.first_offset + at for place in placed for at in range(place.messages)]
    assert len(offsets) == len(block.values), f"{block.values} are at {offsets}"
