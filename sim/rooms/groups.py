"""Consumer groups on a disk that forgets: a few lives of one broker's group core, with members that outlive it.

Partitions with their sidecars and dead letters, and the machine of groups over its own log, lie on one simulated disk.
In each life consumers, publishers, a syncer, clocks, an undertaker and an operator take turns; while a sync waits for
the disk, others go on. A life ends with a kill or a power cut, between two operations or inside any call to the disk.
At each opening, and now and then while it lives, every checker compares what the sidecars show with the ledger. In the
end everybody does its best for a while, and everything that survived must have been delivered and settled.
"""

from collections import Counter
from functools import partial
from random import Random
from typing import Any, Final

import msgspec

from goqueue import codec
from goqueue.delivery.deliveries import Deliveries
from goqueue.groups.group import Part
from goqueue.groups.groups import Groups
from goqueue.machine.host import Host
from goqueue.model import limits
from goqueue.model.errors import GoQueueError, Quarantined
from goqueue.model.groups import Mode
from goqueue.model.names import GroupNumber
from goqueue.model.record import Record
from goqueue.model.settings import Fsync, LogSettings
from goqueue.model.topic import Backoff, LanePolicy, OnExpiry, TopicSettings
from goqueue.storage.cleaner import clean
from goqueue.storage.log import Log
from sim.checkers import (
    attempts,
    cancelled,
    drained,
    early,
    handover,
    kept,
    leases,
    letters,
    marks,
    one_owner,
    remembered,
    replayed,
    survivors,
    windows,
    worked,
)
from sim.checkers.delivered import Shown, Sight, show
from sim.clock import SimClock
from sim.disk import CRASH_KINDS, Crashed, CrashKind, SimDisk
from sim.rooms.broker import GroupBroker, Post
from sim.rooms.consumers import Consumer, World
from sim.rooms.ledger import Ledger, Value
from sim.rooms.rot import rot
from sim.rooms.tenures import Key, Tenures, stand
from sim.rooms.topics import Partition, Topics
from sim.scheduler import Scheduler, Task
from sim.trace import Trace

MAX_PARTITIONS: Final = 4
STEPS_TO_DRAIN: Final = 6000
UNSEALED_BEFORE_WRITER_WAITS: Final = limits.MAX_UNSEALED_SEGMENTS - 1
HOUR_MS: Final = 3_600_000
KEYS: Final = (b"a", b"b", b"c")


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
        self._rot, self._clocks = Random(repr(rng.getstate())), Random(repr(rng.getstate()))
        """Chance of its own: what else happens in a seed is as it would be without."""
        self.damaged: Counter[Part] = Counter()
        """Records in each partition's log of dead letters that rotted."""
        self.nested = False
        self.ahead_ms = 0
        """How far ahead the clock was set at most: a delay that was counted from there is over so much later."""
        self.has_delays = rng.random() < 0.6
        self.has_lanes = rng.random() < 0.6
        self._found()

    def _found(self) -> None:
        """Who and what there is."""
        rng = self.rng
        names = ("a", "b")[: rng.randint(1, 2)]
        for name in names:
            self.topics.make(name, rng.randint(1, 3), self._some_rules())
        for group in ("g", "h")[: rng.choice((1, 1, 2))]:
            self.world.modes[group] = rng.choice((Mode.PARTITION, Mode.PARTITION, Mode.SHARED, Mode.KEY))
            if rng.random() < 0.25:
                self.world.latest.add(group)
            for number in range(rng.randint(2, 4)):
                self.consumers.append(Consumer(self.world, f"{group}{number}", group, names))

    def _some_rules(self) -> TopicSettings:
        rng = self.rng
        return TopicSettings(
            visibility_ms=rng.choice((100, 500, 3000)),
            max_retries=rng.choice((0, 1, 3)),
            backoff=Backoff(base_ms=rng.choice((0, 50, 300)), factor=2.0, max_ms=1000),
            dlq_enabled=rng.random() < 0.7,
            message_ttl_ms=rng.choice((None, None, None, 2000)),
            on_expiry=rng.choice((OnExpiry.DROP, OnExpiry.DLQ)),
            lane_policy=rng.choice((LanePolicy.WEIGHTED, LanePolicy.STRICT)),
        )

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
        self._spawn_by_itself(broker)
        self.scheduler.spawn("operate", self._operate(broker))
        if self.has_delays:
            self.scheduler.spawn("postpone", self._postpone(broker))
        for _ in range(rng.choice((100, 300, 600))):
            self.scheduler.step()

    def _spawn_by_itself(self, broker: GroupBroker) -> None:
        """What nobody asks for."""
        self.scheduler.spawn("sync", self._sync(broker))
        self.scheduler.spawn("tick", self._tick(broker))
        self.scheduler.spawn("alarm", self._alarm(broker))
        self.scheduler.spawn("bury", self._bury(broker))

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
        if self._rot.random() < 0.5:
            self._rot_letters()
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

    def _rot_letters(self) -> None:
        """They are lost; those behind them are written all the same."""
        for part in self.topics.parts:
            offset = rot(self.disk, f"/data/logs/{self.topics.names[part.topic_id]}/{part.partition}.dlq", self._rot)
            if offset is not None:
                self.damaged[part] += 1
                self.trace.event("rot", *part, offset)

    def _meet(self, broker: GroupBroker) -> None:
        """Look at what the crashes have left, before anything changes it."""
        killed = "power" not in self.ledger.crashes
        for part, partition in broker.partitions.items():
            data = partition.data
            values = {record.offset: Value(int(record.value or b"")) for record in _all_records(data)}
            self.trace.event("found", *part, data.start_offset, data.end_offset)
            self.ledger.reread(part, data.start_offset, values, data.end_offset)
            sight = self._look(broker, partition, killed=killed)
            self.ledger.adopt(part, sight, broker.moment())
        self.ledger.crashes.clear()
        self.ledger.durable.clear()
        if killed and self.tenures.standing.members:
            standing = stand(broker.groups, self.topics.names)
            handover.check(self.tenures, standing, self.tenures.doubt, self.monotonic())

    # Looking

    def _look(self, broker: GroupBroker, partition: Partition, *, killed: bool = True) -> Sight:
        """Without a power cut since the last look everything is known."""
        ledger, part = self.ledger, partition.part
        sight = show(partition.sidecar.deliveries) if partition.sidecar is not None else Sight()
        durable = None if killed else ledger.durable.get(part, 0)
        cancelled.check(ledger, part, sight, durable=durable)
        early.check(ledger, part, sight, durable=durable)
        letters.check_outbox(ledger, part, sight, durable=durable)
        written = _all_records(partition.letters) if partition.letters is not None else []
        letters.check_log(ledger, part, written, sight.first_letter, damaged=self.damaged[part])
        for group in broker.groups.by_number:
            each = sight.groups.get(group)
            marks.check(ledger, group, part, each)
            kept.check(ledger, group, part, each)
            if each is not None:
                worked.check(ledger, group, part, each)
            attempts.check(ledger, group, part, each, exact=killed)
            if killed:
                leases.check(ledger, group, part, each)
                remembered.check(ledger, group, part, each, now=self.monotonic())
        return sight

    def _look_at_all(self, broker: GroupBroker) -> None:
        self.trace.event("look")
        for partition in broker.partitions.values():
            self._look(broker, partition)
            if partition.sidecar is not None:
                log, deliveries = partition.sidecar.log, partition.sidecar.deliveries
                see = partial(_show_from, partition.data.start_offset)
                replayed.check(log, deliveries, Deliveries(), Deliveries(), see=see, age=_age)
        one_owner.check(broker.groups)
        replayed.check(broker.host.log, broker.groups, Groups(self.topics), Groups(self.topics))

    # Tasks

    def _publish(self, broker: GroupBroker) -> Task:
        while True:
            yield self.rng.choice((0, 10, 100, 400))
            part = self.rng.choice(list(broker.partitions))
            data = broker.partitions[part].data
            if sum(1 for segment in data.segments if not segment.seal) < UNSEALED_BEFORE_WRITER_WAITS:
                broker.publish(part, [self._post() for _ in range(self.rng.choice((1, 1, 3, 6)))])

    def _post(self) -> Post:
        rng = self.rng
        return Post(
            key=rng.choice((None, *KEYS)),
            lane=rng.randrange(5) if self.has_lanes else 2,
            delay_ms=rng.choice((0, 50, 300, 1500)) if self.has_delays and rng.random() < 0.3 else None,
            ttl_ms=rng.choice((10, 500)) if rng.random() < 0.05 else None,
        )

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

    def _alarm(self, broker: GroupBroker) -> Task:
        while True:
            yield self.rng.choice((1, 10, 40))
            broker.alarms.ring()

    def _bury(self, broker: GroupBroker) -> Task:
        while True:
            yield self.rng.choice((1, 20, 100))
            partition = self.rng.choice(list(broker.partitions.values()))
            try:
                yield from broker.undertaker.bury(partition)
            except GoQueueError as error:  # tried again, as a broker does
                self.trace.event("letters wait", *partition.part, str(error))

    def _operate(self, broker: GroupBroker) -> Task:
        while True:
            yield self.rng.choice((10, 100, 500))
            luck = self.rng.random()
            try:
                if luck < 0.2:
                    self._look_at_all(broker)
                elif luck < 0.23:
                    self.ledger.step(broker.moment())
                    self.clock.step(self.rng.choice((-700, 700)))
                elif self._clocks.random() < 0.02:
                    self.ledger.step(broker.moment())
                    self.clock.step(HOUR_MS)
                    self.ahead_ms = HOUR_MS
                    yield self._clocks.choice((1, 50, 1500))
                    self.ledger.step(broker.moment())
                    self.clock.step(-HOUR_MS)
                elif broker.syncing is not None:
                    continue  # what follows would have to wait for the sync
                elif luck < 0.5:
                    yield from self._snapshot(broker)
                elif luck < 0.58:
                    self._retain(broker)
                elif luck < 0.7:
                    self._clean(broker)
                elif luck < 0.8:
                    self._grow(broker)
                elif luck < 0.9:
                    yield from self._reset(broker)
                elif broker.groups.by_name:
                    yield from broker.delete(self.rng.choice(list(broker.groups.by_name)))
            except GoQueueError as refusal:
                self.trace.event("refused", "operator", str(refusal))

    def _postpone(self, broker: GroupBroker) -> Task:
        """Cancel delayed messages, or move them to another time."""
        rng = self.rng
        while True:
            yield rng.choice((20, 100, 300))
            delayed = [partition for partition in broker.partitions.values() if partition.delays.pending]
            if not delayed:
                continue
            partition = rng.choice(delayed)
            offset = rng.choice(list(partition.delays.pending))
            if rng.random() < 0.3:
                yield from broker.alarms.cancel(partition, offset)
            else:
                yield from broker.alarms.move(partition, offset, self.clock.now + rng.choice((-10, 100, 2000)))

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
        self.ledger.retain(partition.part, start)

    def _clean(self, broker: GroupBroker) -> None:
        """As the cleaner does it: what is delayed stays behind."""
        delayed = [partition for partition in broker.partitions.values() if partition.delays.pending]
        partition = self.rng.choice(delayed or list(broker.partitions.values()))
        data, part = partition.data, partition.part
        data.roll()
        data.sync()
        data.settings = msgspec.structs.replace(self.settings, retention_ms=self.rng.choice((0, 100)))
        clean(data, self.clock.now, partition.due_times())
        data.settings = self.settings
        if partition.sidecar is not None:
            partition.sidecar.deliveries.forget_below(data.start_offset)
        left = {record.offset for record in _all_records(data)}
        self.trace.event("clean", *part, data.start_offset, *sorted(left))
        survivors.check(self.ledger, part, left, wall=self.clock.now)
        self.ledger.retain(part, data.start_offset, [at for at in self.ledger.contents[part].values if at not in left])

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
        self.clock.advance(self.ahead_ms)
        broker = self._open(faults=False)
        self.world.steady = True
        for part in broker.partitions:
            # its commit settles also what a power cut made of a commit before it: leased again
            broker.publish(part, [Post(None, 2, None, None)])
        for consumer in self.consumers:
            self.scheduler.spawn(consumer.name, consumer.live(broker))
        self._spawn_by_itself(broker)
        for step in range(STEPS_TO_DRAIN):
            self.scheduler.step()
            if step % 50 == 0 and self._is_drained(broker):
                break
        self._look_at_all(broker)
        for part, partition in broker.partitions.items():
            sight = self._look(broker, partition)
            drained.check_letters(part, sight)
            for group in broker.groups.by_number:
                drained.check(self.ledger, group, part, sight.groups.get(group))
        for group in broker.groups.by_number:
            for _, part in self._to_be_owned(broker, group):
                drained.check_owned(self.tenures, group, part)

    def _is_drained(self, broker: GroupBroker) -> bool:
        standing = self.tenures.standing
        names = {consumer.group for consumer in self.consumers}
        if standing.revoking or names != standing.names.keys() or broker.urgent:
            return False
        owned = {key for group in standing.names.values() for key in self._to_be_owned(broker, group)}
        return owned <= standing.tenures.keys() and not any(
            self._unsettled(partition, group)
            for group in broker.groups.by_number
            for partition in broker.partitions.values()
        )

    def _to_be_owned(self, broker: GroupBroker, group: GroupNumber) -> list[Key]:
        """What of a group needs an owner."""
        owned = broker.groups.by_number[group].mode is Mode.PARTITION
        return [(group, part) for part in broker.partitions] if owned else []

    def _unsettled(self, partition: Partition, group: GroupNumber) -> int:
        start, end = partition.data.start_offset, partition.data.end_offset
        if partition.sidecar is None:
            return end - start
        return partition.sidecar.deliveries.unsettled(group, start, end) + len(partition.sidecar.deliveries.outbox)


def _all_records(log: Log) -> list[Record]:
    records: list[Record] = []
    offset = log.start_offset
    while offset < log.end_offset:
        try:
            chunk = log.read(offset, max_bytes=1 << 20)
        except Quarantined as damage:
            offset = damage.next_offset
            continue
        records += codec.decode(chunk.data, verified=True)
        offset = chunk.next_offset
    return records


def _age(deliveries: Any) -> None:
    """Waits are over when their time has come, which is not written down."""
    deliveries.begin_life(wall=limits.MAX_OFFSET, now=0)
    deliveries.lapse_due(0)


def _show_from(start: int, deliveries: Any) -> Sight:
    """What is forgotten of messages that retention took is not written down either."""
    sight = show(deliveries)
    return sight._replace(
        groups={group: _from(start, shown) for group, shown in sight.groups.items()},
        cancelled=frozenset(offset for offset in sight.cancelled if offset >= start),
        moved={offset: time for offset, time in sight.moved.items() if offset >= start},
    )


def _from(start: int, shown: Shown) -> Shown:
    low, above = max(shown.low, start), set(shown.above)
    while low in above:
        low += 1
    return shown._replace(low=low, above=frozenset(offset for offset in above if offset > low))
