"""What the broker tests share: brokers and their parts with a clock and chance of the test's own."""

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

from goqueue import codec
from goqueue.broker.broker import Broker, BrokerSettings
from goqueue.broker.housekeeping import Housekeeping
from goqueue.broker.partition import Partition
from goqueue.broker.topic import OpenTopic
from goqueue.broker.topics import TopicCatalogue
from goqueue.io.aside import Aside
from goqueue.io.clock import monotonic_ms
from goqueue.io.disk import Disk
from goqueue.machine.host import Host
from goqueue.metadata.topics import Topics
from goqueue.model.errors import StorageFailed
from goqueue.model.names import format_topic_id
from goqueue.model.record import Extension, Producer, Record
from goqueue.model.settings import Fsync, LogSettings
from goqueue.model.topic import TopicSettings
from goqueue.storage.log import Log
from goqueue.storage.store import Store
from goqueue.telemetry.meters import TopicMeterSet

T0 = 1_700_000_000_000
SETTINGS = TopicSettings()
_ids = count(1)


class Clock:
    """Stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = T0

    def __call__(self) -> int:
        return self.now


def ids(size: int) -> int:
    """In place of chance: another number each time, in all tests."""
    return next(_ids)


@asynccontextmanager
async def opened(
    path: Path,
    *,
    disk: Disk | None = None,
    clock: Clock | None = None,
    monotonic: Callable[[], int] = monotonic_ms,
    **more: Any,
) -> AsyncIterator[Broker]:
    """A broker; closed at the end."""
    os.makedirs(path / "meta", exist_ok=True)  # the lock is a real file, whatever the disk is
    settings = BrokerSettings(data_dir=str(path), **more)
    broker = await Broker.open(settings, disk=disk, clock=clock or Clock(), monotonic=monotonic, entropy=ids)
    try:
        yield broker
    finally:
        await broker.close()


class Parts:
    """The catalogue of topics and what it stands on, without a broker around it."""

    def __init__(self, path: Path, *, disk: Disk | None = None, by_hand: bool = False) -> None:
        """With `by_hand` the metadata log is synced when the test calls `meta.sync()`, and only then."""
        os.makedirs(path / "meta", exist_ok=True)
        self.failures: list[StorageFailed] = []
        self.store = Store(str(path), disk=disk, on_failure=self.failures.append)
        self._by_hand = by_hand
        settings = LogSettings(fsync=Fsync.EVERY)
        if by_hand:
            self.meta = Log.open(f"{path}/meta/metadata", disk=self.store.disk, settings=settings)
        else:
            self.meta = self.store.open_log("metadata", settings, area="meta")
        self.aside = Aside("test", 4)
        self.clock = Clock()
        self.meters = TopicMeterSet()
        self.machine = Topics()
        self.host = Host(self.meta, [self.machine])
        self.catalogue = TopicCatalogue(
            store=self.store,
            host=self.host,
            machine=self.machine,
            base=LogSettings(),
            aside=self.aside,
            entropy=ids,
            clock=self.clock,
            monotonic=self.clock,
            meters=self.meters,
            on_failure=self.failures.append,
        )
        self.housekeeping = Housekeeping(
            self.store,
            self.catalogue,
            (self.host,),
            self.aside,
            self.clock,
            self.failures.append,
            monotonic=self.clock,
        )

    async def create(self, name: str, partitions: int = 1, settings: TopicSettings = SETTINGS) -> OpenTopic:
        return await self.catalogue.create(name, partitions, settings, self.clock())

    async def close(self) -> None:
        await self.catalogue.finish()
        if self._by_hand and self.meta.durable.failure is None:
            self.meta.close()
        self.store.close()
        self.aside.close()


@asynccontextmanager
async def parts(path: Path, *, disk: Disk | None = None, by_hand: bool = False) -> AsyncIterator[Parts]:
    """Opened as at a start; closed at the end."""
    found = Parts(path, disk=disk, by_hand=by_hand)
    try:
        await found.catalogue.open_all(found.clock())
        yield found
    finally:
        await found.close()


def open_names(catalogue: TopicCatalogue) -> list[str]:
    """Of the topics that can be used."""
    return sorted(catalogue.by_name)


def topic_directory(path: Path, topic: OpenTopic) -> Path:
    return path / "logs" / topic.meta.name / format_topic_id(topic.meta.topic_id)


def block(*records: Record) -> memoryview:
    return memoryview(codec.encode(records))


def messages(*values: str, producer: Producer | None = None) -> memoryview:
    """A block of messages without keys; with the fields that a producer's id is stamped into."""
    extension = None if producer is None else Extension(producer=producer)
    return block(*(Record(value=value.encode(), extension=extension) for value in values))


def values(partition: Partition) -> list[str]:
    """Everything in a partition."""
    found = []
    offset = partition.log.start_offset
    while offset < partition.log.end_offset:
        chunk = partition.log.read(offset, max_bytes=1 << 20)
        found += [(record.value or b"").decode() for record in codec.decode(chunk.data)]
        offset = chunk.next_offset
    return found
