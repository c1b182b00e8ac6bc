"""Transactions on a disk that forgets: a few lives of one broker's coordinator and partitions, with writers that
outlive it.

Partitions with their views and sidecars, and the coordinator over its own log, lie on one simulated disk. In each life
writers, teams, groups, a syncer, alarms and an operator take turns. A life ends with a clean stop, a kill or a power
cut: between two operations, inside any call to the disk, or between any two steps of a walk. At each opening, and now
and then while it lives, every checker compares what the partitions show with what the writers know. In the end every
transaction is over, and every group is delivered what is left.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, Final

from pyroaring import BitMap64

from goqueue import codec
from goqueue.broker.partition import Partition
from goqueue.delivery.commands import Ack as AckClaims
from goqueue.model import limits
from goqueue.model.errors import GoQueueError
from goqueue.model.groups import Mode
from goqueue.model.names import GroupNumber, TopicId
from goqueue.model.publishing import Acks
from goqueue.model.settings import Fsync
from goqueue.model.topic import CleanupPolicy, Topic, TopicSettings
from goqueue.storage.cleaner import clean
from goqueue.transactions.records import Participant
from sim.checkers import (
    all_or_nothing,
    derived,
    key_holds,
    outlived,
    read_committed,
    require,
    survivors_of_cleaning,
    tokens,
)
from sim.checkers.sighted import Sighted, look_at
from sim.clock import SimClock
from sim.disk import CRASH_KINDS, Crashed, CrashKind, SimDisk
from sim.rooms.deeds import Ack, Deeds, Value
from sim.rooms.exchanges import Steps
from sim.rooms.transaction_broker import Delivered, TransactionBroker, steps
from sim.rooms.writers import Program, Team, World, Writer
from sim.scheduler import Scheduler, Task
from sim.trace import Trace

GROUPS: Final = (GroupNumber(1), GroupNumber(2))
COMPANIONS: Final = (".index", ".timeindex", ".view")
STEPS_TO_END: Final = 3000


def run(rng: Random, trace: Trace) -> None:
    """One seed."""
    with _small_limits(rng):
        TransactionsRoom(rng, trace).run()


@contextmanager
def _small_limits(rng: Random) -> Iterator[None]:
    """What is met after thousands of transactions is met after a few."""
    usual = {name: getattr(limits, name) for name in ("TRANSACTIONS_REMEMBERED", "TRANSACTION_NUMBERS_RESERVED")}
    small = dict.fromkeys(usual, 3) if rng.random() < 0.5 else usual
    for name, value in small.items():
        setattr(limits, name, value)
    try:
        yield
    finally:
        for name, value in usual.items():
            setattr(limits, name, value)


class TransactionsRoom:
    def __init__(self, rng: Random, trace: Trace) -> None:
        self.rng = rng
        self.trace = trace
        self.clock = SimClock()
        self.booted_at = 0
        self.started_at = 0
        self.up_before = 0
        """How long brokers ran before this one."""
        self.disk = SimDisk(Random(rng.getrandbits(64)), trace=trace)
        self.deeds = Deeds()
        self.scheduler = Scheduler(self.clock, rng, trace)
        self.world = World(rng, trace, self.deeds, self.scheduler, self.uptime)
        self.broker: TransactionBroker | None = None
        self.stable: dict[Participant, int] = {}
        self.leasing = False
        self.dies_in: int | None = None
        """How many points of walks are left until the process dies at one."""
        self.stepped = False
        """The wall's clock was set."""
        self.producers = 0
        self.topics = self._some_topics()
        self.writers = [Writer(self.world, f"plain{number}") for number in range(rng.randint(1, 2))]
        self.writers.append(Writer(self.world, "bare", numbered=False))
        self.writers += [Writer(self.world, f"owner{number}", f"id{number}") for number in range(rng.randint(1, 2))]
        self.teams = [Team(self.world, f"team{number}") for number in range(rng.randint(0, 2))]
        self.groups = {group: rng.choice((Mode.SHARED, Mode.KEY)) for group in GROUPS[: rng.randint(1, 2)]}

    def _some_topics(self) -> list[Topic]:
        rng = self.rng
        topics = []
        for number in range(1, 3):
            settings = TopicSettings(
                segment_bytes=4096,
                retention_bytes=rng.choice((None, None, 3000)),
                cleanup_policy=rng.choice((CleanupPolicy.DELETE, CleanupPolicy.COMPACT)),
                fsync=rng.choice((Fsync.EVERY, Fsync.INTERVAL, Fsync.INTERVAL, Fsync.NONE)),
                visibility_ms=rng.choice((150, 1000, 10_000)),
                max_retries=1000,
            )
            partitions = 2 if number == 1 else 1
            topics.append(
                Topic(
                    name=f"t{number}", topic_id=TopicId(number), partitions=partitions, settings=settings, created_ms=0
                )
            )
        return topics

    def monotonic(self) -> int:
        """It begins anew when the machine does."""
        return self.clock.elapsed - self.booted_at

    def uptime(self) -> int:
        return self.up_before + self.clock.elapsed - self.started_at

    async def _new_producer(self) -> int:
        self.producers += 1
        return self.producers

    # Lives

    def run(self) -> None:
        try:
            for _ in range(self.rng.randint(2, 4)):
                try:
                    kind = self._live()
                except Crashed:
                    kind = self.rng.choice(CRASH_KINDS)
                self._crash(kind)
            self._end()
        finally:
            self._die()

    def _die(self) -> None:
        """Nobody gets another turn."""
        self.scheduler.stop()
        if self.broker is not None:
            self.broker.runner.die()
        self.broker = None

    def _live(self) -> CrashKind:
        rng = self.rng
        broker = self._open(faults=True)
        plan = rng.random()
        if plan < 0.3:
            self.disk.crash_at(rng.randint(1, 200))
        elif plan < 0.7:
            self.dies_in = rng.randint(1, 60)
        programs: list[Program] = [*self.writers, *self.teams]
        for writer in programs:
            self.scheduler.spawn(writer.name, writer.live(broker), after=rng.choice((0, 10, 100)))
        for group in self.groups:
            self.scheduler.spawn(f"group{group}", self._consume(broker, group))
        self.scheduler.spawn("publish", self._publish(broker))
        self._spawn_by_itself(broker)
        self.scheduler.spawn("operate", self._operate(broker))
        for _ in range(rng.choice((60, 150, 250))):
            self._step(broker)
        if rng.random() < 0.3:
            self._close(broker)
        return rng.choice(CRASH_KINDS)

    def _spawn_by_itself(self, broker: TransactionBroker, pace: int = 1) -> None:
        self.scheduler.spawn("sync", self._sync(broker, pace))
        self.scheduler.spawn("alarm", self._alarm(broker, pace))
        self.scheduler.spawn("look", self._look_often(broker))

    def _step(self, broker: TransactionBroker) -> None:
        self.scheduler.step()
        for part, partition in broker.partitions.items():
            stable = partition.stable_end
            if stable != self.stable.get(part):
                read_committed.check_stable(part, self.stable.get(part, 0), stable)
                self.stable[part] = stable

    def _close(self, broker: TransactionBroker) -> None:
        """A clean stop; what was known then is known after it."""
        self.scheduler.stop()
        broker.runner.die()
        broker.runner.begun.clear()
        self.dies_in = None
        self.disk.crash_at(None)
        self.trace.event("close")
        broker.close()

    def _crash(self, kind: CrashKind) -> None:
        self.trace.event("crash", kind)
        self._die()
        self.dies_in = None
        self.up_before = self.uptime()
        self.stable = {}
        if kind == "power" or self.leasing:
            self.deeds.fuzzy.update(self.deeds.messages)
        self.leasing = False
        if kind == "power":
            self.booted_at = self.clock.elapsed - self.rng.choice((0, 5, 1000))
            if self.rng.random() < 0.2:
                self._set_clock(-5000)
        self.disk.crash(self.rng, kind)
        self.clock.advance(self.rng.choice((0, 100, 3000)))
        self.started_at = self.clock.elapsed

    def _set_clock(self, milliseconds: int) -> None:
        self.clock.step(milliseconds)
        self.stepped = True
        for deed in self.deeds.by_number.values():
            deed.stepped = True

    def _hazard(self, point: str) -> None:
        """The process may die here."""
        self.trace.event("point", point)
        if self.dies_in is not None:
            self.dies_in -= 1
            if not self.dies_in:
                raise Crashed

    def _open(self, *, faults: bool) -> TransactionBroker:
        """Until it succeeds: an opening may crash as well."""
        while True:
            if self.rng.random() < 0.3:
                self._forget_companions()
            if faults and self.rng.random() < 0.15:
                self.disk.crash_at(self.rng.randint(1, 60))
            elif faults and self.rng.random() < 0.15:
                self.dies_in = self.rng.randint(1, 4)
            self.trace.event("open")
            try:
                broker = TransactionBroker(
                    self.disk, self.clock, self.monotonic, self.topics, self._new_producer, self.rng, self.trace
                )
                broker.runner.simulate(self.rng, self._spawn, self._hazard)
                self.broker = broker
                self._meet(broker)
                for _ in steps(broker.runner.start()):
                    broker.shelf.sync_urgent()
                self.disk.crash_at(None)
                self.dies_in = None
                break
            except Crashed:
                self._crash(self.rng.choice(CRASH_KINDS))
        for deed in self.deeds.by_number.values():
            deed.lives_at = self.uptime()
        self._look(broker)
        return broker

    def _spawn(self, work: Steps[Any]) -> None:
        self.scheduler.spawn("runner", _until_over(work))

    def _forget_companions(self) -> None:
        """Views are never the truth: without them all is as before."""
        for topic in self.topics:
            for number in range(topic.partitions):
                directory = f"/data/logs/{topic.name}/{topic.topic_id:016x}/{number}"
                for name in self.disk.list(directory):
                    if name.endswith(COMPANIONS):
                        self.disk.unlink(f"{directory}/{name}")

    def _meet(self, broker: TransactionBroker) -> None:
        """What passes of the cleaner took that the broker did not survive."""
        for part, partition in broker.partitions.items():
            if part in self.deeds.cleaning:
                seen = look_at(part, partition)
                there = {seen.value(offset) for offset in seen.records}
                self.deeds.cleaned |= self.deeds.cleaning.pop(part) - there

    # Looking

    def _look(self, broker: TransactionBroker) -> list[Sighted]:
        sights = [look_at(part, partition) for part, partition in broker.partitions.items()]
        for seen in sights:
            partition = broker.partitions[seen.part]
            derived.check(partition, seen)
            read_committed.check(seen, self._read(broker, partition))
        all_or_nothing.check(self.deeds, broker.runner.heard, sights, broker.partitions)
        tokens.check(self.deeds, broker.machine.tokens)
        left = {number for seen in sights for number in seen.open}.union(broker.machine.by_producer.values())
        for number in left & self.deeds.by_number.keys():
            outlived.check(self.deeds.by_number[number], self.uptime())
        self.trace.event("looked", *(len(seen.records) for seen in sights), len(broker.machine.open))
        return sights

    def _read(self, broker: TransactionBroker, partition: Partition) -> list[int]:
        """As a reader does, from the beginning on."""
        offsets: list[int] = []
        offset = partition.log.start_offset
        while True:
            chunk = broker.reader.ordered_now(partition, offset, max_bytes=1 << 20, max_count=1000)
            assert chunk is not None
            offsets += codec.scan(chunk.data).offsets if chunk.count else ()
            if chunk.next_offset <= offset:
                return offsets
            offset = chunk.next_offset

    # Tasks

    def _publish(self, broker: TransactionBroker) -> Task:
        """Outside of transactions."""
        while True:
            yield self.rng.choice((10, 50, 200))
            part = self.rng.choice(list(broker.partitions))
            values, records = self.world.some_records(part, 0, self.clock.now)
            self.trace.event("publish", *part, *values)
            block = memoryview(codec.encode(records))
            broker.publisher.publish(broker.topics.by_id[part.topic_id], part.partition, block, acks=Acks.LEADER)

    def _consume(self, broker: TransactionBroker, group: GroupNumber) -> Task:
        while True:
            yield self.rng.choice((5, 40, 150))
            part = self.rng.choice(list(broker.partitions))
            yield from broker.make_sidecar(broker.partitions[part])
            given = self._lease(broker, group, part, self.rng.choice((1, 2, 5)))
            luck = self.rng.random()
            if not given.values or luck < 0.2:
                continue
            if luck < 0.5:
                yield from self._ack(broker, given)
            else:
                self.world.handles = [*self.world.handles, given][-20:]

    def _lease(self, broker: TransactionBroker, group: GroupNumber, part: Participant, want: int) -> Delivered:
        deliveries = broker.partitions[part].deliveries
        tries = dict(deliveries.delivery(group).tries.items())
        self.world.polls += 1
        self.leasing = True
        seen = look_at(part, broker.partitions[part]) if self.groups[group] is Mode.KEY else None
        held = set(deliveries.delivery(group).taken)
        given = broker.lease(group, self.groups[group], part, self.world.polls, want)
        if seen is not None:
            key_holds.check(seen, held, given.values)
        self.leasing = False
        self.trace.event("leased", *given)
        all_or_nothing.check_outcomes(self.deeds, broker.runner.heard)
        for offset, value in given.values.items():
            told = tries[offset].deliveries if offset in tries else 0
            all_or_nothing.check_delivery(self.deeds, Ack(group, part, value), told)
            self.deeds.leases[group, value] += 1
            due = self.deeds.messages[value].deliver_at
            early = due is not None and due > self.clock.now and not self.stepped
            require(not early, "early", f"{value} is not due")
        return given

    def _ack(self, broker: TransactionBroker, given: Delivered) -> Steps[None]:
        acks = {offset: Ack(given.group, given.part, value) for offset, value in given.values.items()}
        self.deeds.acked.update(acks.values())
        sidecar = broker.partitions[given.part].sidecar
        assert sidecar is not None
        claims = {given.poll: BitMap64(acks)}
        refused = broker.sidecars.write(broker.partitions[given.part], AckClaims(given.group, claims))
        end = sidecar.log.end_offset
        taken = {ack for offset, ack in acks.items() if offset not in refused.get(given.poll, ())}
        while sidecar.log.settings.fsync is Fsync.EVERY and sidecar.log.durable.value < end:
            yield self.rng.choice((1, 3, 10))
        if sidecar.log.settings.fsync is Fsync.EVERY:
            self.deeds.kept |= taken

    def _sync(self, broker: TransactionBroker, pace: int) -> Task:
        shelf, rng = broker.shelf, self.rng
        while True:
            yield pace * rng.choice((0, 1, 5, 15) if shelf.urgent else (5, 20, 80))
            if shelf.urgent:
                log = shelf.urgent.pop(rng.randrange(len(shelf.urgent)))
            else:
                dirty = [
                    log
                    for log in shelf.logs
                    if log.durable.value < log.written.value and log.settings.fsync is not Fsync.NONE
                ]
                if not dirty or rng.random() < 0.7:
                    continue
                log = rng.choice(dirty)
            log.sync()
            self.trace.event("synced", log.directory, log.durable.value)

    def _alarm(self, broker: TransactionBroker, pace: int) -> Task:
        while True:
            yield pace * self.rng.choice((5, 20, 60))
            broker.ring()

    def _look_often(self, broker: TransactionBroker) -> Task:
        """What a broker does once a second, and what we do."""
        while True:
            yield self.rng.choice((200, 1000))
            yield from steps(broker.runner.look())
            self._look(broker)

    def _operate(self, broker: TransactionBroker) -> Task:
        while True:
            yield self.rng.choice((10, 50, 200))
            luck = self.rng.random()
            part, partition = self.rng.choice(list(broker.partitions.items()))
            if luck < 0.3:
                yield from broker.snapshot(self.rng.choice((None, partition)))
            elif luck < 0.6:
                self.scheduler.spawn("clean", self._clean(part, partition))
            elif luck < 0.85:
                partition.log.roll()
            elif luck < 0.9:
                self._set_clock(self.rng.choice((-700, 700)))
            else:
                self._look(broker)

    def _clean(self, part: Participant, partition: Partition) -> Steps[None]:
        """It runs aside: what it is told may be a little old when it begins."""
        now, times = self.clock.now, partition.due_times
        yield self.rng.choice((0, 0, 5, 100, 300))
        before = look_at(part, partition)
        sealed = partition.log.segments[-1].base
        values: dict[int, Value] = {offset: before.value(offset) for offset in before.records if offset < sealed}
        self.deeds.cleaning[part] = set(values.values())
        report = clean(partition.log, now, times)
        partition.transactions.forget_below(partition.log.start_offset)
        if partition.sidecar is not None:
            partition.deliveries.forget_below(partition.log.start_offset)
        del self.deeds.cleaning[part]
        after = look_at(part, partition)
        gone = values.keys() - after.records.keys()
        self.deeds.cleaned.update(values[offset] for offset in gone)
        self.trace.event("cleaned", *part, report.removed_records)
        compacts = partition.log.settings.compact
        survivors_of_cleaning.check(before, gone, after, compacts=compacts)

    # The end

    def _end(self) -> None:
        """Writers are gone, and time passes."""
        broker = self._open(faults=False)
        self._spawn_by_itself(broker, pace=5)
        for _ in range(STEPS_TO_END):
            self._step(broker)
            if not broker.machine.open and not broker.machine.deciding:
                break
        sights = self._look(broker)
        left = {number for seen in sights for number in seen.open}
        require(not left and not broker.machine.open, "all or nothing", f"{left} are open in the end")
        for deed in self.deeds.by_number.values():
            if deed.told:
                require(deed.shown is True, "all or nothing", f"transaction {deed.number} is not committed in the end")
        self._drain(broker)

    def _drain(self, broker: TransactionBroker) -> None:
        """Every group is delivered what is left, and is done with it."""
        for part, partition in broker.partitions.items():
            for _ in broker.make_sidecar(partition):
                pass
            for group in self.groups:
                self._drain_group(broker, group, part)
        self._look(broker)

    def _drain_group(self, broker: TransactionBroker, group: GroupNumber, part: Participant) -> None:
        partition = broker.partitions[part]
        for _ in range(60):
            before = partition.deliveries.low(group)
            given = self._lease(broker, group, part, 50)
            if given.values:
                self.deeds.acked.update(Ack(group, part, value) for value in given.values.values())
                broker.sidecars.write(partition, AckClaims(group, {given.poll: BitMap64(given.values)}))
            elif not partition.delays.pending and not partition.deliveries.delivery(group).taken:
                if partition.deliveries.low(group) == before:
                    break
                continue  # a hole was passed over, and there may be another
            self.clock.advance(1000)
            broker.ring()
        low, end = partition.deliveries.low(group), partition.log.end_offset
        seen = look_at(part, partition)
        done = low == end if low is not None else not seen.records.keys() - seen.hidden
        require(done, "drained", f"group {group} is at {low} of {part}, which ends at {end}")


def _until_over(work: Steps[Any]) -> Task:
    try:
        yield from work
    except GoQueueError:
        return
