"""Consumer groups on a disk that forgets: a few lives of one broker's group core, with members that outlive it.

Partitions with their sidecars, and the machine of groups over its own log, lie on one simulated disk. In each life
consumers, publishers, a syncer, a clock and an operator take turns; while a sync waits for the disk, others go on. A
life ends with a kill or a power cut, between two operations or inside any call to the disk. At each opening, and now
and then while it lives, every checker compares what the sidecars show with the ledger. In the end everybody does its
best for a while, and everything that survived must have been delivered and committed.
"""

from random import Random
from typing import Final

from goqueue.delivery.deliveries import Deliveries
from goqueue.groups.group import Part
from goqueue.groups.groups import Groups
from goqueue.machine.host import Host
from goqueue.model import limits
from goqueue.model.errors import GoQueueError
from goqueue.model.names import GroupNumber
from goqueue.model.settings import Fsync, LogSettings
from goqueue.storage.log import Log
from sim.checkers import drained, handover, kept, leases, marks, one_owner, replayed, windows, worked
from sim.checkers.delivered import Shown, show
from sim.clock import SimClock
from sim.disk import CRASH_KINDS, Crashed, CrashKind, SimDisk
from sim.rooms.broker import GroupBroker
from sim.rooms.consumers import Consumer, World
from sim.rooms.ledger import Ledger, Value
from sim.rooms.tenures import Tenures, stand
from sim.rooms.topics import Partition, Topics
from sim.scheduler import Scheduler, Task
from sim.trace import Trace

MAX_PARTITIONS: Final = 4
STEPS_TO_DRAIN: Final = 6000
UNSEALED_BEFORE_WRITER_WAITS: Final = limits.MAX_UNSEALED_SEGMENTS - 1


def run(rng: Random, trace: Trace) -> None:
    """One seed."""
    GroupsRoom(rng, trace).run()


class GroupsRoom:
    def __init__(self, rng: Random, trace: Trace) -> None:
        self.rng = rng
        self.trace = trace
        self.clock = SimClock()
        self.booted_at = 0
        self.disk = SimDisk(Random(rng.getrandbits(64)), trace=trace)
        self.ledger = Ledger()
        self.tenures = Tenures()
        self.topics = Topics()
        self.scheduler = Scheduler(self.clock, rng, trace)
        self.world = World(rng, trace, self.ledger, self.scheduler)
        self.settings = LogSettings(
            segment_bytes=4096, fsync=rng.choice((Fsync.EVERY, Fsync.EVERY, Fsync.INTERVAL, Fsync.NONE))
        )
        self.consumers: list[Consumer] = []
        self.broker: GroupBroker | None = None
        self.durable: dict[Part, int] = {}
        """Up to where each sidecar had called itself durable when the broker last died."""
        self.nested = False
        self._found()

    def _found(self) -> None:
        """Who and what there is."""
        rng = self.rng
        names = ("a", "b")[: rng.randint(1, 2)]
        for name in names:
            self.topics.make(name, rng.randint(1, 3))
        for group in ("g", "h")[: rng.choice((1, 1, 2))]:
            if rng.random() < 0.25:
                self.world.latest.add(group)
            for number in range(rng.randint(2, 4)):
                self.consumers.append(Consumer(self.world, f"{group}{number}", group, names))

    def monotonic(self) -> int:
        """It begins anew when the machine does."""
        return self.clock.elapsed - self.booted_at

    # Lives

    def run(self) -> None:
        for _ in range(self.rng.randint(2, 4)):
            try:
                self._live()
                kind = self.rng.choice(CRASH_KINDS)
            except Crashed:
                kind = self.rng.choice(CRASH_KINDS)
            self._crash(kind)
        self._drain()

    def _live(self) -> None:
        broker = self._open(faults=True)
        rng = self.rng
        if rng.random() < 0.6:
            self.disk.crash_at(rng.randint(1, 250))
        self.disk.between = self._others_go_on
        for consumer in self.consumers:
            self.scheduler.spawn(consumer.name, consumer.live(broker), after=rng.choice((0, 10, 300)))
        self.scheduler.spawn("publish", self._publish(broker))
        self.scheduler.spawn("sync", self._sync(broker))
        self.scheduler.spawn("tick", self._tick(broker))
        self.scheduler.spawn("operate", self._operate(broker))
        for _ in range(rng.choice((100, 300, 600))):
            self.scheduler.step()

    def _crash(self, kind: CrashKind) -> None:
        self.trace.event("crash", kind)
        self.scheduler.stop()
        self.disk.between = None
        self.nested = False
        broker, self.broker = self.broker, None
        if broker is not None:
            sidecars = [(part, each.sidecar) for part, each in broker.partitions.items() if each.sidecar is not None]
            self.durable = {part: sidecar.log.durable.value for part, sidecar in sidecars}
        self.ledger.crashed(kind, self.durable)
        if kind == "power":
            self.booted_at = self.clock.elapsed - self.rng.choice((0, 5, 1000))
            self.clock.step(self.rng.choice((0, 0, 0, -5000)))
        self.disk.crash(self.rng, kind)
        self.clock.advance(self.rng.choice((0, 100, 3000)))

    def _open(self, *, faults: bool) -> GroupBroker:
        """Until it succeeds: an opening may crash as well."""
        while True:
            if faults and self.rng.random() < 0.15:
                self.disk.crash_at(self.rng.randint(1, 40))
            self.trace.event("open")
            try:
                broker = GroupBroker(
                    self.disk,
                    self.clock,
                    self.monotonic,
                    self.topics,
                    self.settings,
                    self.ledger,
                    self.tenures,
                    self.rng,
                    self.trace,
                )
                self.disk.crash_at(None)
                break
            except Crashed:
                self._crash(self.rng.choice(CRASH_KINDS))
        self.broker = broker
        self._meet(broker)
        broker.start()
        return broker

    def _meet(self, broker: GroupBroker) -> None:
        """Look at what the crashes have left, before anything changes it."""
        killed = "power" not in self.ledger.crashes
        for part, partition in broker.partitions.items():
            data = partition.data
            values: dict[int, Value] = {}
            while (offset := max(values, default=data.start_offset - 1) + 1) < data.end_offset:
                for record in data.records(offset, max_bytes=1 << 20):
                    values[record.offset] = Value(int(record.value or b""))
            self.trace.event("found", *part, data.start_offset, data.end_offset)
            self.ledger.reread(part, data.start_offset, values, data.end_offset)
            shown = self._look(broker, partition, held=killed)
            leased = {group: each.leased for group, each in shown.items()}
            self.ledger.adopt(part, leased, {group: each.low for group, each in shown.items()})
        self.ledger.crashes.clear()
        if killed and self.tenures.standing.members:
            standing = stand(broker.groups, self.topics.names)
            handover.check(self.tenures, standing, self.tenures.doubt, self.monotonic())

    # Looking

    def _look(self, broker: GroupBroker, partition: Partition, *, held: bool = True) -> dict[GroupNumber, Shown]:
        part = partition.part
        shown = show(partition.sidecar.deliveries) if partition.sidecar is not None else {}
        for group in broker.groups.by_number:
            each = shown.get(group)
            marks.check(self.ledger, group, part, each)
            kept.check(self.ledger, group, part, each)
            if each is not None:
                worked.check(self.ledger, group, part, each)
            if held:
                leases.check(self.ledger, group, part, each)
        return shown

    def _look_at_all(self, broker: GroupBroker) -> None:
        self.trace.event("look")
        for partition in broker.partitions.values():
            self._look(broker, partition)
            if partition.sidecar is not None:
                log, deliveries = partition.sidecar.log, partition.sidecar.deliveries
                replayed.check(log, deliveries, Deliveries(), Deliveries())
        one_owner.check(broker.groups)
        replayed.check(broker.host.log, broker.groups, Groups(self.topics), Groups(self.topics))

    # Tasks

    def _publish(self, broker: GroupBroker) -> Task:
        while True:
            yield self.rng.choice((0, 10, 100, 400))
            part = self.rng.choice(list(broker.partitions))
            data = broker.partitions[part].data
            if sum(1 for segment in data.segments if not segment.seal) < UNSEALED_BEFORE_WRITER_WAITS:
                broker.publish(part, self.rng.choice((1, 1, 3, 6)))

    def _sync(self, broker: GroupBroker) -> Task:
        while True:
            yield self.rng.choice((0, 1, 5, 40) if broker.urgent else (5, 20, 80))
            if broker.syncing is not None:
                continue
            if broker.urgent and self.rng.random() < 0.9:
                log = broker.urgent.pop(self.rng.randrange(len(broker.urgent)))
            elif self.settings.fsync is not Fsync.NONE and self.rng.random() < 0.3:
                dirty = [log for log in broker.logs if log.durable.value < log.written.value]
                if not dirty:
                    continue
                log = self.rng.choice(dirty)
            else:
                continue
            self._sync_log(broker, log)

    def _sync_log(self, broker: GroupBroker, log: Log) -> None:
        broker.syncing = log
        try:
            log.sync()
        finally:
            broker.syncing = None
        self.trace.event("synced", log.directory, log.durable.value)

    def _tick(self, broker: GroupBroker) -> Task:
        while True:
            yield self.rng.choice((10, 50, 150))
            deadline = broker.groups.next_deadline()
            if deadline is not None and deadline <= self.monotonic():
                steps = broker.tick()
                wait = next(steps, None)
                windows.check(self.tenures, broker.groups, self.monotonic())
                while wait is not None:
                    yield wait
                    wait = next(steps, None)
            else:
                windows.check(self.tenures, broker.groups, self.monotonic())

    def _operate(self, broker: GroupBroker) -> Task:
        while True:
            yield self.rng.choice((10, 100, 500))
            luck = self.rng.random()
            try:
                if luck < 0.25:
                    self._look_at_all(broker)
                elif broker.syncing is not None:
                    continue  # what follows would have to wait for the sync
                elif luck < 0.5:
                    yield from self._snapshot(broker)
                elif luck < 0.6:
                    self._retain(broker)
                elif luck < 0.7:
                    self._grow(broker)
                elif luck < 0.85:
                    yield from self._reset(broker)
                elif broker.groups.by_name:
                    yield from broker.delete(self.rng.choice(list(broker.groups.by_name)))
            except GoQueueError as refusal:
                self.trace.event("refused", "operator", str(refusal))

    def _snapshot(self, broker: GroupBroker) -> Task:
        hosts = [each.sidecar.host for each in broker.partitions.values() if each.sidecar is not None]
        host: Host = self.rng.choice([broker.host, *hosts])
        position = host.snapshot(self.monotonic() if host is broker.host else self.clock.now)
        self.trace.event("snapshot", host.log.directory, position)
        while host.log.durable.value < position or broker.syncing is not None:
            yield 5
        host.forget()
        self.trace.event("forgot", host.log.directory, host.log.start_offset)

    def _retain(self, broker: GroupBroker) -> None:
        partition = self.rng.choice(list(broker.partitions.values()))
        data = partition.data
        start = self.rng.randint(data.start_offset, data.end_offset)
        self.trace.event("retain", *partition.part, start)
        data.truncate_prefix(start)
        self.ledger.contents[partition.part].forget(start)

    def _grow(self, broker: GroupBroker) -> None:
        name = self.rng.choice(list(self.topics.shapes))
        if self.topics.shapes[name].partitions < MAX_PARTITIONS:
            broker.grow(name)
            self.trace.event("grown", name, self.topics.shapes[name].partitions)

    def _reset(self, broker: GroupBroker) -> Task:
        if broker.groups.by_name:
            group = self.rng.choice(list(broker.groups.by_name.values()))
            partition = self.rng.choice(list(broker.partitions.values()))
            low = self.rng.randint(partition.data.start_offset, partition.data.end_offset)
            yield from broker.reset(group, partition.part, low)

    def _others_go_on(self, kind: str) -> None:
        """A sync has its own thread: while it is inside a call to the disk, others may go on."""
        broker = self.broker
        if broker is None or broker.syncing is None or self.nested or self.rng.random() > 0.3:
            return
        self.nested = True
        try:
            self.scheduler.step()
        finally:
            self.nested = False

    # The end

    def _drain(self) -> None:
        broker = self._open(faults=False)
        self.world.steady = True
        for part in broker.partitions:
            broker.publish(part, 1)  # its commit settles also what a power cut made of a commit before it: leased again
        for consumer in self.consumers:
            self.scheduler.spawn(consumer.name, consumer.live(broker))
        self.scheduler.spawn("sync", self._sync(broker))
        self.scheduler.spawn("tick", self._tick(broker))
        for step in range(STEPS_TO_DRAIN):
            self.scheduler.step()
            if step % 50 == 0 and self._is_drained(broker):
                break
        self._look_at_all(broker)
        for group in broker.groups.by_number:
            for part, partition in broker.partitions.items():
                drained.check_owned(self.tenures, group, part)
                drained.check(self.ledger, group, part, self._look(broker, partition).get(group))

    def _is_drained(self, broker: GroupBroker) -> bool:
        standing = self.tenures.standing
        names = {consumer.group for consumer in self.consumers}
        if standing.revoking or names != standing.names.keys() or broker.urgent:
            return False
        return all(
            (group, part) in standing.tenures and self._unsettled(partition, group) == 0
            for group in broker.groups.by_number
            for part, partition in broker.partitions.items()
        )

    def _unsettled(self, partition: Partition, group: GroupNumber) -> int:
        start, end = partition.data.start_offset, partition.data.end_offset
        if partition.sidecar is None:
            return end - start
        return partition.sidecar.deliveries.unsettled(group, start, end)
