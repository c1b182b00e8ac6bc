"""What nobody asks for but has to be done: rolling idle segments, cleaning, forgetting producers, snapshots.

Each round goes through the partitions in slices, so that requests pass in between; cleaning runs aside.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any

from goqueue.broker.admission import Admission
from goqueue.broker.partition import Partition
from goqueue.broker.topics import TopicCatalogue
from goqueue.io.aside import Aside
from goqueue.io.waiting import reached
from goqueue.machine.host import Host
from goqueue.model import limits
from goqueue.model.errors import LogClosed, StorageFailed
from goqueue.storage.cleaner import clean
from goqueue.storage.driver import OnFailure
from goqueue.storage.store import Store
from goqueue.telemetry import logs

log = logs.get("housekeeping")


class Housekeeping:
    """Runs from `start` until `stop`."""

    def __init__(
        self,
        store: Store,
        catalogue: TopicCatalogue,
        hosts: Iterable[Host],
        aside: Aside,
        clock: Callable[[], int],
        on_failure: OnFailure,
        *,
        monotonic: Callable[[], int],
        on_step: Callable[[Partition], None] = lambda _: None,
        retry: Callable[[], Awaitable[None]] | None = None,
        budgets: Mapping[str, Admission] | None = None,
    ) -> None:
        self._store = store
        self._catalogue = catalogue
        self._hosts = tuple(hosts)
        self._aside = aside
        self._clock = clock
        self._on_failure = on_failure
        self._monotonic = monotonic
        self._on_step = on_step
        self._ahead_ms = clock() - monotonic()
        """What the wall's clock has more than one that never steps."""
        self._retry = retry
        """What could not be done before, for instance because the disk was full."""
        self._budgets = budgets or {}
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._every(limits.TICK_INTERVAL_S, self.tick)),
            loop.create_task(self._every(limits.CLEAN_INTERVAL_S, self.clean)),
        ]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _every(self, interval_s: float, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            await asyncio.sleep(interval_s)
            try:
                await work()
            except Exception as error:
                self._excuse(error)

    def _excuse(self, error: Exception) -> None:
        """One that is in trouble does not keep the others from being looked after."""
        if isinstance(error, StorageFailed):
            self._on_failure(error)
        elif not isinstance(error, LogClosed):  # of a topic that was just deleted
            log.warning("housekeeping will try again", error=error)

    def check_clock(self) -> None:
        """A step of the wall's clock is said, and delays are looked at again."""
        ahead_ms = self._clock() - self._monotonic()
        by_ms = ahead_ms - self._ahead_ms
        if abs(by_ms) >= limits.CLOCK_STEP_MS:
            log.warning("the wall clock stepped; what is delayed is never delivered early for it", by_ms=by_ms)
            self._ahead_ms = ahead_ms
            for partition in self._partitions():
                self._on_step(partition)

    def reclaim(self) -> None:
        """Bytes in flight that nobody gave back, and nobody ever will, are free again, and that is said."""
        for name, budget in self._budgets.items():
            found = budget.reclaim()
            if found:
                log.error("bytes in flight were not given back; this is a bug", budget=name, bytes=found)

    async def tick(self) -> None:
        """Once a second or so."""
        self.check_clock()
        self.reclaim()
        for count, partition in enumerate(self._partitions(), 1):
            try:
                partition.log.tick(self._clock())
                if partition.sidecar is not None and partition.sidecar.host.wants_snapshot:
                    await self.snapshot(partition.sidecar.host)
            except Exception as error:
                self._excuse(error)
            if count % limits.HOUSEKEEPING_SLICE == 0:
                await asyncio.sleep(0)
        await self._catalogue.retry(self._clock())
        if self._retry is not None:
            await self._retry()
        for host in self._hosts:
            if host.wants_snapshot:
                await self.snapshot(host)
        if self._store.reserve_spent:
            await self._aside.run(self._store.refill_reserve)

    async def snapshot(self, host: Host) -> None:
        """Shorten a machine's log."""
        await reached(host.log.durable, host.snapshot(self._clock()))
        await self._aside.run(host.forget)

    async def clean(self) -> None:
        """Apply retention and compaction to every partition, one at a time."""
        for partition in self._partitions():
            now = self._clock()
            partition.producers.expire(now - limits.PRODUCER_EXPIRY_MS)
            try:
                report = await self._aside.run(clean, partition.log, now, partition.due_times)
            except Exception as error:
                self._excuse(error)
                continue
            partition.transactions.forget_below(partition.log.start_offset)
            if partition.sidecar is not None:
                partition.deliveries.forget_below(partition.log.start_offset)
            if report.removed_records or report.skipped:
                log.info(
                    "partition cleaned",
                    log=partition.log_name,
                    records=report.removed_records,
                    bytes=report.removed_bytes,
                    damaged=report.skipped,
                )

    def _partitions(self) -> list[Partition]:
        return [partition for topic in list(self._catalogue.by_id.values()) for partition in topic.partitions]
