"""The sidecars of open partitions: found, made when the first group comes by, written to, waited for."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from goqueue.broker.partition import Partition
from goqueue.broker.topics import TopicCatalogue
from goqueue.broker.waiting import GONE, until
from goqueue.delivery.commands import Hide
from goqueue.delivery.sidecar import Sidecar, sidecar_settings
from goqueue.groups.group import Group, Part
from goqueue.io.aside import Aside
from goqueue.model.errors import DiskFull, LogClosed, StorageFailed, Unavailable
from goqueue.model.settings import Fsync
from goqueue.storage.driver import OnFailure
from goqueue.storage.store import Store, sidecar_name


class Sidecars:
    """Used from one event loop."""

    def __init__(
        self,
        store: Store,
        topics: TopicCatalogue,
        aside: Aside,
        clock: Callable[[], int],
        monotonic: Callable[[], int],
        on_failure: OnFailure,
    ) -> None:
        self._store = store
        self._topics = topics
        self._aside = aside
        self._clock = clock
        self._monotonic = monotonic
        self._on_failure = on_failure
        self.on_written: Callable[[Partition], None] = lambda _: None
        """Told of every partition whose deliveries may end a hold at another time than before."""
        self._making: dict[str, asyncio.Task[Sidecar]] = {}
        """By the name of the partition's log."""

    # --- finding and making

    def partition(self, part: Part) -> Partition:
        return self._topics.identified(part.topic_id).partition(part.partition)

    def of(self, part: Part) -> Partition | None:
        """The partition if it is open and has a sidecar."""
        topic = self._topics.by_id.get(part.topic_id)
        partition = None if topic is None else topic.opened(part.partition)
        return partition if partition is not None and partition.sidecar is not None else None

    async def made(self, partition: Partition) -> Sidecar:
        """The partition's sidecar, made if it is the first time that a group comes by."""
        if partition.sidecar is not None:
            return partition.sidecar
        if partition.sidecar_damage is not None:
            raise partition.sidecar_damage.with_traceback(None)
        task = self._making.get(partition.log_name)
        if task is None:
            task = self._making[partition.log_name] = asyncio.ensure_future(self._make(partition))
            task.add_done_callback(lambda done: self._made(partition, done))
        return await asyncio.shield(task)

    async def _make(self, partition: Partition) -> Sidecar:
        sidecar = await self._aside.run(partition.make_sidecar, self._store, self._clock(), self._monotonic())
        if partition.log.written.failure is not None:  # its topic was deleted meanwhile: nobody else removes this one
            await self._aside.run(self._store.remove_log, sidecar_name(partition.log_name))
            raise Unavailable(GONE)
        sidecar.log.settings = sidecar_settings(partition.log.settings)  # they may have changed meanwhile
        partition.sidecar = sidecar
        if partition.transactions.hidden:
            try:
                self.write(partition, Hide(partition.transactions.hidden))
            except BaseException:
                partition.sidecar = None  # groups would be delivered what was aborted
                raise
        return sidecar

    def _made(self, partition: Partition, done: "asyncio.Task[Sidecar]") -> None:
        self._making.pop(partition.log_name, None)
        if not done.cancelled():
            done.exception()  # whoever asked may have left

    # --- looking

    def has_in_flight(self, group: Group, part: Part) -> bool:
        """Whether the owner of a partition was delivered something that it has not settled."""
        partition = self.of(part)
        if partition is None or group.owner(part) is None:
            return False
        deliveries = partition.deliveries
        return deliveries.has_in_flight(group.number) and not deliveries.needs_open(group.number, group.epoch(part))

    # --- writing and waiting

    def write(self, partition: Partition, command: Any) -> Any:
        """Have a partition's deliveries decide, and write it down; on a full disk with what is kept back for it."""
        sidecar = partition.sidecar
        assert sidecar is not None, "whoever writes has made it"
        try:
            try:
                outcome = sidecar.submit(command, wall=self._clock(), now=self._monotonic())
            except DiskFull:
                outcome = self._store.spending(
                    lambda: sidecar.submit(command, wall=self._clock(), now=self._monotonic())
                )
        except StorageFailed as failure:
            self._on_failure(failure)
            raise
        except LogClosed:
            raise Unavailable(GONE) from None
        self.on_written(partition)
        if outcome.refusal is not None:
            raise outcome.refusal
        return outcome.reply

    async def safe(self, partition: Partition) -> None:
        """Until what was written is as safe as the partition's messages."""
        if partition.sidecar is not None and partition.sidecar.log.settings.fsync is Fsync.EVERY:
            await self._durable(partition.sidecar)

    async def durable(self, partitions: Iterable[Partition]) -> None:
        """What was written to them by now, whatever the mode."""
        waiting = [partition.sidecar for partition in partitions if partition.sidecar is not None]
        for sidecar in waiting:
            sidecar.log.hasten()
        for sidecar in waiting:
            await self._durable(sidecar)

    async def _durable(self, sidecar: Sidecar) -> None:
        await until(sidecar.log.durable, sidecar.log.end_offset)
