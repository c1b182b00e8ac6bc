"""A broker without doors: everything between a request that was understood and the bytes on disk.

Lives on one event loop. `open` recovers everything and returns when it can serve; `close` refuses new work, wakes who
waits and makes everything durable. A disk that fails is final: every call raises from then on, and `failed` is set for
whoever must stop the process.
"""

import asyncio
import time
from collections.abc import Callable

import msgspec

from goqueue.base.entropy import Entropy
from goqueue.broker.admission import Admission
from goqueue.broker.alarms import Alarms
from goqueue.broker.attend import Attendant
from goqueue.broker.coordination import Coordination
from goqueue.broker.dead_letters import Undertaker
from goqueue.broker.delayed import DelayedMessages
from goqueue.broker.housekeeping import Housekeeping
from goqueue.broker.jobs import JobLog
from goqueue.broker.letters import Letters
from goqueue.broker.offsets import Offsets
from goqueue.broker.own_messages import OwnPublisher
from goqueue.broker.participants import Participants
from goqueue.broker.partition import Partition
from goqueue.broker.poll import Poller
from goqueue.broker.publish import Publisher
from goqueue.broker.read import PartitionReader
from goqueue.broker.readers import NamedReaders
from goqueue.broker.redrive import RedriveRunner
from goqueue.broker.schedules import ScheduleRunner, placing
from goqueue.broker.settle import Settlement
from goqueue.broker.sidecars import Sidecars
from goqueue.broker.statistics import Statistics
from goqueue.broker.topic import OpenTopic
from goqueue.broker.topics import TopicCatalogue
from goqueue.broker.transactions import TransactionRunner
from goqueue.broker.waiting import GONE
from goqueue.delivery.handles import HandleKey
from goqueue.io.aside import Aside
from goqueue.io.clock import monotonic_ms, wall_ms
from goqueue.io.disk import Disk
from goqueue.io.entropy import system_entropy
from goqueue.jobs.redrives import Redrives
from goqueue.jobs.schedules import Schedules
from goqueue.machine.host import Host
from goqueue.metadata.readers import Readers
from goqueue.metadata.topics import Topics
from goqueue.model import limits
from goqueue.model.errors import DiskFull, Draining, LogClosed, StorageFailed
from goqueue.model.names import GroupNumber
from goqueue.model.settings import Fsync, LogSettings
from goqueue.model.topic import DEFAULT_PARTITIONS, TopicSettings
from goqueue.producers.registry import InitProducer, ProducerRegistry
from goqueue.storage.store import METADATA_LOG, TRANSACTIONS_LOG, Store
from goqueue.telemetry import logs
from goqueue.telemetry.meters import LATENCY_BOUNDS_S, GroupMeterSet, Histogram, TopicMeterSet

log = logs.get("broker")

GROUPS_LOG = "groups"
JOBS_LOG = "jobs"


class BrokerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a broker is told at its start."""

    data_dir: str
    node_id: str = "node-1"
    logs: LogSettings = LogSettings()
    """What topics do not decide: intervals."""
    topic: TopicSettings = TopicSettings()
    """What a new topic gets where its creator says nothing."""
    partitions: int = DEFAULT_PARTITIONS


class Broker:
    """Make one with `Broker.open`."""

    @classmethod
    async def open(
        cls,
        settings: BrokerSettings,
        *,
        disk: Disk | None = None,
        clock: Callable[[], int] = wall_ms,
        monotonic: Callable[[], int] = monotonic_ms,
        entropy: Entropy = system_entropy,
        on_locked: Callable[[], None] = lambda: None,
    ) -> "Broker":
        """Recover everything. `on_locked` is called once the directory is this broker's, before that begins."""
        aside = Aside("disk", limits.COLD_READ_THREADS)
        failures: list[StorageFailed] = []
        loop = asyncio.get_running_loop()
        failed = asyncio.Event()

        def fail(failure: StorageFailed) -> None:
            failures.append(failure)
            loop.call_soon_threadsafe(failed.set)

        fsync_latency = Histogram(LATENCY_BOUNDS_S)

        def observe(seconds: float) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(fsync_latency.observe, seconds)

        try:
            store = await aside.run(Store, settings.data_dir, disk=disk, on_failure=fail, on_sync=observe)
        except BaseException:
            aside.close()
            raise
        try:
            on_locked()
            broker = cls(settings, store, aside, clock, monotonic, entropy, failed, failures)
            broker.fsync_latency = fsync_latency
            await broker._start()
        except BaseException:
            await aside.run(store.close)
            aside.close()
            raise
        return broker

    def __init__(
        self,
        settings: BrokerSettings,
        store: Store,
        aside: Aside,
        clock: Callable[[], int],
        monotonic: Callable[[], int],
        entropy: Entropy,
        failed: asyncio.Event,
        failures: list[StorageFailed],
    ) -> None:
        self.settings = settings
        self.store = store
        self.clock = clock
        self.failed = failed
        self.requests = Admission(limits.MAX_IN_FLIGHT_BYTES)
        self.replies = Admission(limits.MAX_IN_FLIGHT_BYTES)
        self.cluster_id = ""
        self.fsync_latency = Histogram(LATENCY_BOUNDS_S)
        self.started_s = time.monotonic()
        self._failures = failures
        self._draining = False
        self._full_at: float | None = None
        self._full_said_at = 0.0
        self._aside = aside
        self._entropy = entropy
        machine, self._registry, readers = Topics(), ProducerRegistry(), Readers()
        self._host = Host(
            store.open_log(METADATA_LOG, LogSettings(fsync=Fsync.EVERY), area="meta"),
            (machine, self._registry, readers),
        )
        self._registry.begin_life()
        self.meters = TopicMeterSet()
        self.topics = TopicCatalogue(
            store=store,
            host=self._host,
            machine=machine,
            base=settings.logs,
            aside=aside,
            entropy=entropy,
            clock=clock,
            monotonic=monotonic,
            meters=self.meters,
            on_failure=self.report_failure,
        )
        self.readers = NamedReaders(topics=self.topics, machine=readers, clock=clock)
        self.reader = PartitionReader(aside)
        self.group_meters = GroupMeterSet()
        self.sidecars = Sidecars(store, self.topics, aside, clock, monotonic, self.report_failure)
        self.transactions = TransactionRunner(
            store=store,
            log=store.open_log(TRANSACTIONS_LOG, LogSettings(), area="meta"),
            topics=self.topics,
            participants=Participants(
                store=store,
                topics=self.topics,
                sidecars=self.sidecars,
                clock=clock,
                on_ready=self._wake_ready,
                on_acked=self._count_acked,
                on_failure=self.report_failure,
            ),
            new_producer=self.init_producer,
            clock=clock,
            monotonic=monotonic,
            on_failure=self.report_failure,
        )
        self.publisher = Publisher(
            self._registry,
            self.transactions,
            clock,
            monotonic,
            self.report_failure,
            self.report_full,
            lambda: not store.reserve_spent,
        )
        self.alarms = Alarms(
            clock, monotonic, write=self.sidecars.write, on_ready=self._wake_ready, on_lapsed=self._count_lapsed
        )
        self.sidecars.on_written = self._written
        self.publisher.on_delayed = self.alarms.watch
        self.groups = Coordination(
            store=store,
            groups_log=store.open_log(GROUPS_LOG, LogSettings(fsync=Fsync.EVERY), area="meta"),
            topics=self.topics,
            sidecars=self.sidecars,
            clock=clock,
            monotonic=monotonic,
            entropy=entropy,
            meters=self.group_meters,
            on_failure=self.report_failure,
        )
        self.offsets = Offsets(
            coordination=self.groups,
            sidecars=self.sidecars,
            topics=self.topics,
            reader=self.reader,
            clock=clock,
            monotonic=monotonic,
        )
        attendant = Attendant(
            sidecars=self.sidecars,
            reader=self.reader,
            aside=aside,
            clock=clock,
            monotonic=monotonic,
            meters=self.group_meters,
        )
        self.poller = Poller(
            coordination=self.groups,
            offsets=self.offsets,
            sidecars=self.sidecars,
            topics=self.topics,
            attendant=attendant,
            clock=clock,
            monotonic=monotonic,
        )
        self.settlement = Settlement(
            coordination=self.groups, sidecars=self.sidecars, topics=self.topics, meters=self.group_meters
        )
        self.delayed = DelayedMessages(
            sidecars=self.sidecars,
            topics=self.topics,
            reader=self.reader,
            clock=clock,
            monotonic=monotonic,
            watch=self.alarms.watch,
        )
        self.statistics = Statistics(
            topics=self.topics,
            coordination=self.groups,
            reader=self.reader,
            clock=clock,
            monotonic=monotonic,
            meters=self.group_meters,
        )
        own_publisher = OwnPublisher(clock, self.report_failure, lambda: not store.reserve_spent)
        self._undertaker = Undertaker(
            sidecars=self.sidecars,
            topics=self.topics,
            reader=self.reader,
            publisher=own_publisher,
            clock=clock,
            group_name=self._group_name,
            on_failure=self.report_failure,
            on_buried=lambda partition, groups: self._wake_ready(partition, groups),
        )
        schedules, redrives = Schedules(placing(self.topics)), Redrives()
        jobs_log = store.open_log(JOBS_LOG, LogSettings(fsync=Fsync.EVERY), area="meta")
        jobs = JobLog(store, jobs_log, (schedules, redrives), clock, self.report_failure)
        self.schedules = ScheduleRunner(
            jobs=jobs, machine=schedules, topics=self.topics, publisher=own_publisher, clock=clock, entropy=entropy
        )
        self.letters = Letters(
            topics=self.topics, sidecars=self.sidecars, reader=self.reader, catch_up=self._undertaker.catch_up
        )
        self.redrives = RedriveRunner(
            jobs=jobs,
            machine=redrives,
            topics=self.topics,
            letters=self.letters,
            publisher=own_publisher,
            clock=clock,
            entropy=entropy,
        )
        self._housekeeping = Housekeeping(
            store,
            self.topics,
            (self._host, self.groups.host, jobs.host, self.transactions.host),
            aside,
            clock,
            self.report_failure,
            monotonic=monotonic,
            on_step=self.alarms.watch,
            retry=self._retry,
            budgets={"requests": self.requests, "replies": self.replies},
        )

    async def _start(self) -> None:
        self.cluster_id = await self.topics.name_cluster(self.clock())
        await self.topics.open_all(self.clock())
        self.handles = HandleKey(await self.topics.handle_key(self.clock()))
        await self.groups.start()
        self._groups_follow, self.topics.on_change = self.topics.on_change, self._follow
        self.poller.start()
        await self.transactions.start()
        for topic in self.topics.by_id.values():
            for partition in topic.partitions:
                self._written(partition)
        self.readers.start()
        self.schedules.start()
        self.redrives.start()
        self._housekeeping.start()
        log.info("broker ready", node=self.settings.node_id, cluster=self.cluster_id, topics=len(self.topics.by_id))

    # --- what happens by itself

    def _follow(self, topic: OpenTopic) -> None:
        """A topic was opened, has changed, or is gone."""
        self._groups_follow(topic)
        self.readers.follow(topic)
        self.schedules.follow(topic)
        self.transactions.follow(topic)
        is_gone = self.topics.name_of(topic.meta.topic_id) is None
        for partition in topic.partitions:
            if is_gone:
                self.alarms.forget(partition)
                partition.transactions.ended.fail(LogClosed(GONE))
            else:  # it may have been opened only now
                self._written(partition)

    async def _retry(self) -> None:
        """Once a second: what could not be done before."""
        self.readers.look()
        self.schedules.look()
        await self.transactions.look()
        await self.groups.retry()

    def _written(self, partition: Partition) -> None:
        """Something was written to a partition's sidecar."""
        self.alarms.watch(partition)
        self._undertaker.notice(partition)

    def _wake_ready(self, partition: Partition, groups: set[GroupNumber] | None) -> None:
        """Something is ready that no mark tells of."""
        self.groups.parks.rung += 1
        topic_id = partition.topic.topic_id
        for number in self.groups.parks.groups:
            group = self.groups.machine.by_number.get(number)
            if group is not None and topic_id in group.started and (groups is None or number in groups):
                self.groups.parks.wake_group(number)

    def _count_lapsed(self, partition: Partition, number: GroupNumber, lapsed: int, dead: int) -> None:
        group, topic = self._group_name(number), partition.topic.name
        if group:
            self.group_meters.settled(group, topic, "lapsed", lapsed)
            if dead:
                self.group_meters.died(group, topic, "lapsed", dead)

    def _count_acked(self, partition: Partition, number: GroupNumber, count: int) -> None:
        group = self._group_name(number)
        if group:
            self.group_meters.settled(group, partition.topic.name, "acked", count)

    def _group_name(self, number: GroupNumber) -> str:
        group = self.groups.machine.by_number.get(number)
        return "" if group is None else group.name

    # --- whether it works

    @property
    def failure(self) -> StorageFailed | None:
        return self._failures[0] if self._failures else None

    @property
    def draining(self) -> bool:
        return self._draining

    def check(self) -> None:
        """Raise when no new work is taken: the disk failed, or the broker is stopping."""
        if self._failures:
            raise self._failures[0].with_traceback(None)
        if self._draining:
            raise Draining("the broker is stopping; connect again in a moment, or to another one")

    @property
    def full(self) -> bool:
        """Whether something was refused for want of space in the last seconds."""
        return self._full_at is not None and time.monotonic() - self._full_at < limits.FULL_SHOWN_S

    def report_full(self, refusal: DiskFull) -> None:
        """Somebody was refused for want of space. Said once, and again when it has lasted."""
        now = time.monotonic()
        if self._full_at is None or now - self._full_said_at > limits.FULL_SAID_EVERY_S:
            log.warning("the disk is full: publishing is refused, reading goes on", reason=str(refusal))
            self._full_said_at = now
        self._full_at = now

    def report_failure(self, failure: StorageFailed) -> None:
        """Somebody met a failed disk: the whole broker stops."""
        if not self._failures:
            self._failures.append(failure)
        self.failed.set()

    # --- producers

    async def init_producer(self) -> int:
        producer_id: int = await self.topics.run(self._registry, InitProducer(), self.clock())
        return producer_id

    def knows_producer(self, producer_id: int) -> bool:
        return self._registry.knows(producer_id)

    # --- the end

    def drain(self) -> None:
        """From now on every new request is refused, and nobody waits for messages any more."""
        self._draining = True
        self.groups.parks.close()

    async def close(self) -> None:
        """Make everything durable and give the directory back."""
        self.drain()
        self.alarms.stop()
        await self._housekeeping.stop()
        await self.schedules.stop()
        await self.redrives.stop()
        await self._undertaker.stop()
        await self.transactions.stop()
        await self.groups.stop()
        await self.topics.finish()
        try:
            await self._aside.run(self.store.close_logs)
        except StorageFailed as failure:
            if not self._failures:
                raise
            log.error("the disk failed", reason=str(failure))
        finally:
            await asyncio.to_thread(self._aside.close)  # a cleaner may still be at work: it must not outlive the lock
            self.store.release()
