"""What a broker does for transactions, without a loop: the runner, partitions, publisher and reader are its own.

Only waiting is simulated: a request is a coroutine that is driven step by step, and whatever it waits for comes when
the schedule says so. `hazard` is called at every point of a walk where a process may die.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator, Sequence
from random import Random
from typing import Any, Final, NamedTuple, TypeVar, cast

from pyroaring import BitMap64

from goqueue import codec
from goqueue.base.offset_sets import column, ranged
from goqueue.broker.participants import Participants
from goqueue.broker.partition import Partition
from goqueue.broker.publish import Publisher
from goqueue.broker.read import PartitionReader
from goqueue.broker.sidecars import Sidecars
from goqueue.broker.timer import Timer
from goqueue.broker.topic import OpenTopic
from goqueue.broker.topics import TopicCatalogue
from goqueue.broker.transactions import TransactionRunner
from goqueue.delivery.commands import Lapse, Lease, Skip
from goqueue.delivery.delivery import pack_keys
from goqueue.delivery.key_lines import KeyedSelection, ReadAhead
from goqueue.delivery.running_holds import Due
from goqueue.delivery.selection import Policy, ready_of
from goqueue.io.aside import Aside
from goqueue.machine.host import Outcome
from goqueue.model import limits
from goqueue.model.groups import Mode
from goqueue.model.names import GroupNumber, TopicId
from goqueue.model.record import Record
from goqueue.model.settings import LogSettings
from goqueue.model.topic import Topic
from goqueue.model.transactions import AbortReason, TransactionState
from goqueue.producers.registry import ProducerRegistry
from goqueue.storage.lane_index import ViewMissing
from goqueue.storage.log import Log
from goqueue.storage.store import Store
from goqueue.storage.views import ViewKind
from goqueue.telemetry.meters import TopicMeterSet
from goqueue.transactions.ending import Durable
from goqueue.transactions.records import Participant
from sim.clock import SimClock
from sim.disk import SimDisk
from sim.rooms.exchanges import Steps
from sim.trace import Trace

T = TypeVar("T")

TRANSACTIONS_LOG: Final = "/data/meta/transactions"
_READ_AHEAD_BYTES: Final = 300
_POLICY: Final = Policy((50, 25, 15, 7, 3), strict=False)


class Pause:
    """Awaited by what runs in a broker: so many milliseconds."""

    def __init__(self, milliseconds: int) -> None:
        self._milliseconds = milliseconds

    def __await__(self) -> Generator[int, None, None]:
        yield self._milliseconds


def steps(work: Coroutine[Any, Any, T]) -> Steps[T]:
    """A coroutine of the broker as a task of the schedule. Where it only gives others a turn no time passes."""
    try:
        while True:
            wait = work.send(None)
            yield 0 if wait is None else wait
    except StopIteration as done:
        found: T = done.value
        return found
    finally:
        work.close()


class Shelf(Store):
    """The logs of one life, on a simulated disk: what is used of a store."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self.urgent: list[Log] = []
        """Logs somebody waits for."""
        self.logs: list[Log] = []

    def open(self, directory: str, settings: LogSettings | None, views: Sequence[ViewKind] = ()) -> Log:
        log = Log.open(directory, disk=self.disk, settings=settings, views=views, on_dirty=self._on_dirty)
        self.logs.append(log)
        return log

    def sync_urgent(self) -> None:
        while self.urgent:
            self.urgent.pop().sync()

    def _on_dirty(self, log: Log, urgent: bool) -> None:
        if urgent and log not in self.urgent:
            self.urgent.append(log)

    def open_log(
        self, name: str, settings: LogSettings | None = None, views: Sequence[ViewKind] = (), *, area: str = "logs"
    ) -> Log:
        return self.open(f"/data/{area}/{name}", settings, views)

    def has_log(self, name: str, *, area: str = "logs") -> bool:
        return bool(self.disk.list(f"/data/{area}/{name}"))

    def spending(self, work: Callable[[], T]) -> T:
        return work()


class Here(Aside):
    """Work aside that is done at once."""

    def __init__(self) -> None:
        pass

    async def run(self, work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        return work(*args, **kwargs)


class Catalogue(TopicCatalogue):
    """Topics that are all open: metadata, which is not simulated here."""

    def __init__(self) -> None:
        self.by_id: dict[TopicId, OpenTopic] = {}

    def name_of(self, topic_id: TopicId) -> str | None:
        found = self.by_id.get(topic_id)
        return None if found is None else found.meta.name

    @property
    def lagging(self) -> list[TopicId]:
        return []


class Registry(ProducerRegistry):
    def knows(self, producer_id: int) -> bool:
        return True


class Watch(Timer):
    """A timer that does not run by itself: somebody looks at it."""

    def arm(self) -> None:
        self._armed = self._next_deadline()

    def stop(self) -> None:
        self._armed = None

    def ring(self) -> None:
        if self._armed is not None and self._armed <= self._clock():
            self._armed = None
            self._fire()


class Told(Participants):
    """The broker's own, but that a crash may come before each marker."""

    hazard: Callable[[str], None]

    def tell(self, partition: Partition, number: int, commits: bool, marker: Record) -> list[Durable]:
        self.hazard("before marker")
        return super().tell(partition, number, commits, marker)


class Runner(TransactionRunner):
    """The broker's own, but for who waits how."""

    watch: Watch
    pause: Callable[[], int]
    spawn: Callable[[Steps[Any]], None]
    hazard: Callable[[str], None]

    def simulate(self, rng: Random, spawn: Callable[[Steps[Any]], None], hazard: Callable[[str], None]) -> None:
        self.pause = lambda: rng.choice((1, 3, 10))
        self.spawn = spawn
        self.hazard = hazard
        assert isinstance(self._participants, Told)
        self._participants.hazard = hazard
        self.begun: list[Coroutine[Any, Any, Any]] = []
        self._timer = self.watch = Watch(lambda: self._deadlines.earliest, self._monotonic, self._time_out)

    def die(self) -> None:
        """Nothing that was begun goes on."""
        for work in self.begun:
            work.close()

    async def _finished(self, work: Coroutine[Any, Any, T]) -> T:
        self.begun.append(work)
        await Pause(0)
        return await work

    def _spawn(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        self.begun.append(work)
        self.spawn(steps(work))
        return cast("asyncio.Task[T]", None)

    async def _durable(self, step: Sequence[Durable]) -> None:
        self.hazard("before durable")
        for each in step:
            each.log.hasten()
        for each in step:
            while not each.is_so:
                await Pause(self.pause())
        self.hazard("durable")

    def _submit(self, command: Any) -> Outcome:
        outcome = super()._submit(command)
        self.hazard(type(command).__name__)
        return outcome

    def _count_aborted(self, numbers: Sequence[int], reason: AbortReason) -> None:
        """Without a word in the broker's log."""
        self.counts[reason] += len(numbers)

    @property
    def closing(self) -> set[int]:
        return set(self._closing)

    @property
    def heard(self) -> dict[int, bool]:
        """Transactions that have ended, and how, once the partitions were told."""
        ended = (TransactionState.COMMITTED, TransactionState.ABORTED)
        found = self.machine.by_number.values()
        return {each.number: each.is_committed for each in found if each.number in self._told or each.state in ended}


class Delivered(NamedTuple):
    """Messages of one partition that one poll was given."""

    group: GroupNumber
    part: Participant
    poll: int
    values: dict[int, int]
    """By offset."""


class TransactionBroker:
    """One life. Made with everything opened and recovered, as the broker does it."""

    def __init__(
        self,
        disk: SimDisk,
        clock: SimClock,
        monotonic: Callable[[], int],
        topics: Sequence[Topic],
        new_producer: Callable[[], Coroutine[Any, Any, int]],
        rng: Random,
        trace: Trace,
    ) -> None:
        self.clock = clock
        self.monotonic = monotonic
        self.trace = trace
        self.new_producer = new_producer
        self.shelf = shelf = Shelf(disk)
        self.topics = Catalogue()
        aside = Here()
        self.sidecars = Sidecars(shelf, self.topics, aside, self._wall, monotonic, _fails)
        log = shelf.open(TRANSACTIONS_LOG, LogSettings(segment_bytes=4096))
        participants = Told(
            store=shelf,
            topics=self.topics,
            sidecars=self.sidecars,
            clock=self._wall,
            on_ready=lambda *_: None,
            on_acked=lambda *_: None,
            on_failure=_fails,
        )
        self.runner = Runner(
            store=shelf,
            log=log,
            topics=self.topics,
            participants=participants,
            new_producer=new_producer,
            clock=self._wall,
            monotonic=monotonic,
            on_failure=_fails,
        )
        self.machine = self.runner.machine
        self.partitions: dict[Participant, Partition] = {}
        meters = TopicMeterSet()
        for topic in topics:
            opened = OpenTopic(topic, meters.open(topic.name))
            settings = topic.settings.log_settings(LogSettings())
            for number in range(topic.partitions):
                latency = opened.meters.append_latency(number)
                partition = Partition.open(shelf, topic, number, settings, latency, wall=clock.now, now=monotonic())
                opened.slots.append(partition)
                self.partitions[Participant(topic.topic_id, number)] = partition
            self.topics.by_id[topic.topic_id] = opened
        self.publisher = Publisher(Registry(), self.runner, self._wall, monotonic, _fails)
        self.reader = PartitionReader(aside)

    def _wall(self) -> int:
        return self.clock.now

    # --- what happens by itself

    def ring(self) -> None:
        """Everything that is due by now."""
        self.runner.watch.ring()
        for partition in self.partitions.values():
            wall, now = self.clock.now, self.monotonic()
            if partition.sidecar is None:
                partition.delays.fire(wall=wall, now=now, limit=limits.FIRED_AT_ONCE)
                continue
            deliveries = partition.deliveries
            deliveries.fire(wall=wall, now=now, limit=limits.FIRED_AT_ONCE)
            by_group: dict[GroupNumber, list[Due]] = {}
            for due in deliveries.lapse_due(now)[0]:
                by_group.setdefault(due.group, []).append(due)
            for group, mine in by_group.items():
                leases = tuple((due.poll, due.until) for due in mine)
                self.sidecars.write(partition, Lapse(group, leases, partition.retries))

    # --- delivering

    def make_sidecar(self, partition: Partition) -> Steps[None]:
        if partition.sidecar is None:
            yield from steps(self.sidecars._make(partition))

    def lease(self, group: GroupNumber, mode: Mode, part: Participant, poll: int, want: int) -> Delivered:
        """What there is for a group. What was cleaned away is passed over."""
        partition = self.partitions[part]
        sidecar, deliveries = partition.sidecar, partition.deliveries
        assert sidecar is not None
        self._pass_hole(group, partition)
        while True:
            try:
                selection = sidecar.stage(group, mode, want)
                break
            except ViewMissing as missing:
                partition.log.derived(missing.segment)
            except ReadAhead as wanted:
                self._read_ahead(group, partition, wanted)
        picks = selection.pick(want, _POLICY, self.monotonic())
        offsets = BitMap64().union(*(pick.offsets for pick in picks))
        found = {offset: value for offset in column(offsets) if (value := value_at(partition, offset)) is not None}
        there = BitMap64(found)
        for offset in column(offsets - there):
            self.sidecars.write(partition, Skip(group, offset, offset + 1))
        if there:
            command = Lease(
                group=group,
                poll=poll,
                holder="",
                start=partition.log.start_offset,
                offsets=there,
                keys=pack_keys(selection.keys_of(there)) if isinstance(selection, KeyedSelection) else b"",
                span_ms=partition.topic.settings.visibility_ms,
            )
            self.sidecars.write(partition, command)
        if deliveries.selections.get(group) is selection:
            selection.keep(picks, self.monotonic())
        return Delivered(group, part, poll, found)

    def _read_ahead(self, group: GroupNumber, partition: Partition, wanted: ReadAhead) -> None:
        """The keys of what comes next."""
        deliveries = partition.deliveries
        delivery, selection = deliveries.delivery(group), deliveries.selection(group, Mode.KEY)
        assert isinstance(selection, KeyedSelection)
        chunk = partition.log.read(wanted.first, max_bytes=_READ_AHEAD_BYTES, to_offset=wanted.end)
        following = max(chunk.next_offset, wanted.first + 1)
        scan = codec.scan(chunk.data)
        runs = codec.transaction_runs(chunk.data, scan)
        selection.feed(wanted, scan, following, runs, delivery, deliveries)

    def _pass_hole(self, group: GroupNumber, partition: Partition) -> None:
        sidecar, deliveries = partition.sidecar, partition.deliveries
        assert sidecar is not None
        while True:
            try:
                hole = sidecar.hole_at(deliveries.low(group) or 0)
                break
            except ViewMissing as missing:
                partition.log.derived(missing.segment)
        if hole is not None:
            for offset in column(ready_of(ranged(*hole), deliveries.delivery(group), deliveries)):
                self.sidecars.write(partition, Skip(group, offset, offset + 1))

    # --- the end

    def snapshot(self, partition: Partition | None) -> Steps[None]:
        """Of the coordinator's log, or of a sidecar's."""
        host = self.runner.host if partition is None or partition.sidecar is None else partition.sidecar.host
        end = host.snapshot(self.clock.now)
        while host.log.durable.value < end:
            yield 3
        host.forget()

    def close(self) -> None:
        """A clean stop: everything is durable."""
        work = steps(self.runner.stop())
        for _ in work:
            while self.shelf.urgent:
                self.shelf.urgent.pop().sync()
        for log in self.shelf.logs:
            log.close()


def value_at(partition: Partition, offset: int) -> int | None:
    """None if there is no record any more."""
    log = partition.log
    if not log.start_offset <= offset < log.end_offset:
        return None
    records = log.records(offset, max_bytes=1, max_count=1, to_offset=offset + 1)
    return int(records[0].value or b"0") if records else None


def _fails(failure: Exception) -> None:
    raise failure
