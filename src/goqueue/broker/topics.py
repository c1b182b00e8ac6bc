"""The open topics, kept in step with the metadata: what the log says is made so, in order, and only once it is durable.

A command goes to the machine; when its record is durable, `_follow` opens, changes or closes what differs. The same
`_follow` opens everything at a start. Files are removed only for topics the metadata calls deleted; when they are gone
the metadata is told.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from goqueue.base.entropy import Entropy
from goqueue.broker.partition import Partition
from goqueue.broker.topic import OpenTopic
from goqueue.broker.waiting import until, while_open
from goqueue.io.aside import Aside
from goqueue.machine.host import Host, Outcome
from goqueue.machine.shape import Machine
from goqueue.metadata.topics import (
    AddPartitions,
    ChangeTopic,
    CreateTopic,
    DeletedTopic,
    DeleteTopic,
    FinishRemoval,
    MakeHandleKey,
    NameCluster,
    Topics,
)
from goqueue.model.errors import DiskFull, GoQueueError, StorageFailed, Unavailable, UnknownTopic
from goqueue.model.names import TopicId
from goqueue.model.settings import LogSettings
from goqueue.model.topic import Topic, TopicSettings
from goqueue.storage.driver import OnFailure
from goqueue.storage.store import Store, log_name, sidecar_name
from goqueue.telemetry import logs
from goqueue.telemetry.meters import Histogram, TopicMeterSet

log = logs.get("topics")

T = TypeVar("T")


class TopicCatalogue:
    """Used from one event loop; disk work goes aside."""

    def __init__(
        self,
        *,
        store: Store,
        host: Host,
        machine: Topics,
        base: LogSettings,
        aside: Aside,
        entropy: Entropy,
        clock: Callable[[], int],
        monotonic: Callable[[], int],
        meters: TopicMeterSet,
        on_failure: OnFailure,
    ) -> None:
        self._store = store
        self._host = host
        self._machine = machine
        self._base = base
        self._aside = aside
        self._entropy = entropy
        self._clock = clock
        self._monotonic = monotonic
        self._meters = meters
        self._on_failure = on_failure
        self._following = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.by_name: dict[str, OpenTopic] = {}
        self.by_id: dict[TopicId, OpenTopic] = {}
        self.on_change: Callable[[OpenTopic], None] = lambda _: None
        """Told of every topic that was opened, changed or closed; it is in `by_id` or no longer."""

    # --- looking

    async def names(self) -> list[str]:
        """All there are, also those that wait to be opened, once that is sure."""
        names = sorted(self._machine.by_name)
        await self.sure()
        return names

    async def sure(self) -> None:
        """Until all that the metadata log says by now is durable: only then may it be told."""
        await until(self._host.log.durable, self._host.log.end_offset)

    @property
    def lagging(self) -> list[TopicId]:
        """Those that are not yet what the metadata says."""
        return [topic_id for topic_id, topic in self._machine.by_id.items() if self._lags(topic)]

    @property
    def is_whole(self) -> bool:
        """Whether every partition there is works, for groups too."""
        return not self.lagging and all(
            isinstance(slot, Partition) and slot.sidecar_damage is None
            for topic in self.by_id.values()
            for slot in topic.slots
        )

    def shape_of(self, name: str) -> tuple[TopicId, int] | None:
        """Id and partitions of a topic, also of one that waits to be opened."""
        topic = self._machine.by_name.get(name)
        return None if topic is None else (topic.topic_id, topic.partitions)

    def name_of(self, topic_id: TopicId) -> str | None:
        """None for a topic that was deleted."""
        topic = self._machine.by_id.get(topic_id)
        return None if topic is None else topic.name

    def named(self, name: str) -> OpenTopic:
        topic = self.by_name.get(name)
        if topic is not None:
            return topic
        if name in self._machine.by_name:
            raise Unavailable(f"topic {name!r} is being opened; try again")
        raise UnknownTopic(f"there is no topic {name[:80]!r}; create it first")

    def identified(self, topic_id: TopicId) -> OpenTopic:
        topic = self.by_id.get(topic_id)
        if topic is not None:
            return topic
        if topic_id in self._machine.by_id:
            raise Unavailable(f"the topic with id {topic_id:016x} is being opened; try again")
        raise UnknownTopic(
            f"there is no topic with id {topic_id:016x}; it may have been deleted: look its name up again"
        )

    # --- changing

    async def run(self, machine: Machine, command: Any, now: int) -> Any:
        """A command's reply, or its refusal, once both are sure."""
        outcome = self.submit(machine, command, now)
        try:
            await until(self._host.log.durable, outcome.position)
        except StorageFailed as failure:
            self._on_failure(failure)
            raise
        if outcome.refusal is not None:
            raise outcome.refusal
        return outcome.reply

    def submit(self, machine: Machine, command: Any, now: int) -> Outcome:
        """Decide and write down, to a machine over the metadata log."""
        try:
            with while_open():
                if isinstance(command, DeleteTopic):  # how a full disk gets space back
                    return self._store.shrinking(lambda: self._host.submit(machine, command, now))
                return self._host.submit(machine, command, now)
        except StorageFailed as failure:
            self._on_failure(failure)
            raise

    async def create(self, name: str, partitions: int, settings: TopicSettings, now: int) -> OpenTopic:
        topic_id = TopicId(self._entropy(8))
        topic = await self._change(CreateTopic(name, topic_id, partitions, settings), now)
        log.info("topic created", topic=name, topic_id=f"{topic_id:016x}", partitions=partitions)
        return self.identified(topic.topic_id)

    async def change(self, name: str, changes: dict[str, Any], now: int) -> OpenTopic:
        topic = await self._change(ChangeTopic(name, changes), now)
        log.info("topic changed", topic=name, **changes)
        return self.identified(topic.topic_id)

    async def add_partitions(self, name: str, total: int, now: int) -> int:
        """How many there were before."""
        before, _ = await self._change(AddPartitions(name, total), now)
        log.info("partitions added", topic=name, partitions=total)
        return int(before.partitions)

    async def delete(self, name: str, now: int, *, dead_letters: bool = False) -> list[str]:
        """What was deleted: the topic, and with `dead_letters` the topic that has its letters, if there is one."""
        gone = [topic.name for topic in await self._change(DeleteTopic(name, dead_letters), now)]
        for each in gone:
            log.info("topic deleted", topic=each)
        return gone

    async def name_cluster(self, now: int) -> str:
        cluster_id: str = await self.run(self._machine, NameCluster(f"{self._entropy(8):016x}"), now)
        return cluster_id

    async def handle_key(self, now: int) -> bytes:
        """What receipt handles are signed with, made at the first start."""
        key: str = await self.run(self._machine, MakeHandleKey(f"{self._entropy(32):064x}"), now)
        return bytes.fromhex(key)

    async def _change(self, command: CreateTopic | ChangeTopic | AddPartitions | DeleteTopic, now: int) -> Any:
        """Goes through to its end, also when whoever asked has left."""
        return await asyncio.shield(self._keep(asyncio.ensure_future(self._decide_and_follow(command, now))))

    async def _decide_and_follow(self, command: Any, now: int) -> Any:
        reply = await self.run(self._machine, command, now)
        topics: tuple[Topic, ...] = reply if isinstance(reply, tuple) else (reply,)
        topic = topics[-1]
        try:
            await self._follow([each.topic_id for each in topics], now)
        except DiskFull as error:
            if isinstance(command, CreateTopic):  # a refusal means that nothing has changed
                await self.run(self._machine, DeleteTopic(topic.name), now)
                await self._follow([topic.topic_id], now)
                raise
            log.warning("decided, and done as soon as there is space", topic=topic.name, reason=str(error))
        return reply

    # --- following the metadata

    async def open_all(self, now: int) -> None:
        """At the start: open what there is, go on removing what was deleted."""
        await self._follow_each(self._machine.by_id, now)
        for gone in list(self._machine.deleted.values()):
            self._remove_soon(gone, now)

    async def retry(self, now: int) -> None:
        """Whatever could not be opened or closed before, for instance because the disk was full."""
        lagging = self.lagging
        lagging += [topic_id for topic_id in self.by_id if topic_id not in self._machine.by_id]
        await self._follow_each(lagging, now)

    async def _follow_each(self, topic_ids: Iterable[TopicId], now: int) -> None:
        """One that cannot be opened does not keep the others closed."""
        for topic_id in list(topic_ids):
            try:
                await self._follow([topic_id], now)
            except Unavailable as error:
                log.warning("topic cannot be opened now", topic_id=f"{topic_id:016x}", reason=str(error))

    def _lags(self, topic: Topic) -> bool:
        opened = self.by_id.get(topic.topic_id)
        return opened is None or len(opened.slots) < topic.partitions or opened.meta != topic

    async def _follow(self, topic_ids: Iterable[TopicId], now: int) -> None:
        """Make the open topics what the metadata says of them."""
        async with self._following:
            wanted = {topic_id: self._machine.by_id.get(topic_id) for topic_id in topic_ids}
            await self.sure()
            for topic_id, topic in wanted.items():
                if topic is None:
                    self._close(topic_id, now)
                else:
                    await self._open(topic, now)

    async def _open(self, meta: Topic, now: int) -> None:
        topic = self.by_id.get(meta.topic_id) or OpenTopic(meta, self._meters.open(meta.name))
        settings = meta.settings.log_settings(self._base)
        if topic.meta.settings != meta.settings:
            for partition in topic.partitions:
                partition.change_settings(meta, settings)
        missing = range(len(topic.slots), meta.partitions)
        if missing:
            latencies = [topic.meters.append_latency(number) for number in missing]
            times = self._clock(), self._monotonic()  # together: what one has more than the other is counted on
            topic.slots += await self._aside.run(self._open_partitions, meta, missing, settings, latencies, times)
        topic.meta = meta
        self.by_name[meta.name] = self.by_id[meta.topic_id] = topic
        self.on_change(topic)

    def _open_partitions(
        self,
        meta: Topic,
        numbers: Iterable[int],
        settings: LogSettings,
        latencies: list[Histogram],
        times: tuple[int, int],
    ) -> list[Partition | GoQueueError]:
        """Runs aside. A partition whose files are damaged does not keep the others from opening."""
        opened: list[Partition | GoQueueError] = []
        for number, latency in zip(numbers, latencies, strict=True):
            try:
                partition = Partition.open(self._store, meta, number, settings, latency, wall=times[0], now=times[1])
                if partition.sidecar_damage is not None:
                    reason = str(partition.sidecar_damage)
                    log.error("groups cannot use this partition", topic=meta.name, partition=number, reason=reason)
                for line in partition.log.recovery.lines():
                    log.warning("recovery", topic=meta.name, partition=number, found=line)
                opened.append(partition)
            except (Unavailable, StorageFailed):
                raise
            except GoQueueError as error:
                log.error("partition cannot be opened", topic=meta.name, partition=number, reason=str(error))
                opened.append(error)
        return opened

    def _close(self, topic_id: TopicId, now: int) -> None:
        topic = self.by_id.pop(topic_id, None)
        if topic is not None and self.by_name.get(topic.meta.name) is topic:
            del self.by_name[topic.meta.name]
            self._meters.close(topic.meters)
        if topic is not None:
            self.on_change(topic)
        gone = self._machine.deleted.get(topic_id)
        if gone is not None:
            self._remove_soon(gone, now)

    # --- removing

    def _remove_soon(self, gone: DeletedTopic, now: int) -> None:
        self._keep(asyncio.ensure_future(self._remove(gone, now)))

    def _keep(self, task: "asyncio.Task[T]") -> "asyncio.Task[T]":
        self._tasks.add(task)
        task.add_done_callback(self._let_go)
        return task

    def _let_go(self, task: "asyncio.Task[Any]") -> None:
        """Whoever asked may have left: then nobody else looks at how it ended."""
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()

    async def _remove(self, gone: DeletedTopic, now: int) -> None:
        try:
            await self._aside.run(self._remove_files, gone)
            await self.run(self._machine, FinishRemoval(gone.topic_id), now)
        except (GoQueueError, OSError) as error:
            log.warning(
                "files of a deleted topic remain; the next start tries again", topic=gone.name, reason=str(error)
            )

    def _remove_files(self, gone: DeletedTopic) -> None:
        for number in range(gone.partitions):
            name = log_name(gone.name, gone.topic_id, number)
            self._store.remove_log(sidecar_name(name))
            self._store.remove_log(name)

    async def finish(self) -> None:
        """Before the store closes: let changes and removals that run come to their end."""
        while self._tasks:
            await asyncio.wait(self._tasks)
