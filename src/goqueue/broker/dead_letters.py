"""Writing dead letters: from a partition's outbox to the same partition of the dead-letter topic, each exactly once.

The intent is durable first; then the letters are published under their numbers, by a producer of the partition's own,
so that those that are there already are recognised; when that is durable the outbox is told. A crash anywhere in
between makes the same letters be published again, and recognised.
"""

import asyncio
import contextlib
from array import array
from collections.abc import Callable
from typing import Any, Final

import msgspec

from goqueue import codec
from goqueue.broker.own_messages import OwnPublisher
from goqueue.broker.partition import Partition
from goqueue.broker.read import PartitionReader
from goqueue.broker.sidecars import Sidecars
from goqueue.broker.topic import OpenTopic
from goqueue.broker.topics import TopicCatalogue
from goqueue.delivery.commands import Bury
from goqueue.delivery.dead import Death
from goqueue.model import limits
from goqueue.model.dead_letters import DeadLetter, pack_dead_letter
from goqueue.model.errors import GoQueueError, OffsetOutOfRange, Quarantined, StorageFailed, TopicExists
from goqueue.model.names import GroupNumber, dlq_name
from goqueue.model.record import Extension, Producer, Record
from goqueue.model.topic import CleanupPolicy
from goqueue.producers.own import Work, own_producer
from goqueue.storage.driver import OnFailure
from goqueue.telemetry import logs

log = logs.get("dead letters")

_AT_ONCE: Final = 100
_LETTER_BYTES: Final = limits.MAX_HEADERS_BYTES + limits.MAX_BLOB_BYTES
"""What a letter may have beside its key and value."""
_RETRY_S: Final = 1.0
_PATIENCE_S: Final = 1.0
_SEQUENCE_MASK: Final = 2**31 - 1


class Undertaker:
    """Used from one event loop."""

    def __init__(
        self,
        *,
        sidecars: Sidecars,
        topics: TopicCatalogue,
        reader: PartitionReader,
        publisher: OwnPublisher,
        clock: Callable[[], int],
        group_name: Callable[[GroupNumber], str],
        on_failure: OnFailure,
        on_buried: Callable[[Partition, set[GroupNumber]], None],
    ) -> None:
        self._sidecars = sidecars
        self._topics = topics
        self._reader = reader
        self._publisher = publisher
        self._clock = clock
        self._group_name = group_name
        self._on_failure = on_failure
        self._on_buried = on_buried
        self._at_work: dict[Partition, asyncio.Task[None]] = {}
        self._some_written = asyncio.Condition()

    def notice(self, partition: Partition) -> None:
        """There may be dead letters to write."""
        if partition.sidecar is not None and partition.deliveries.outbox and partition not in self._at_work:
            self._at_work[partition] = asyncio.get_running_loop().create_task(self._work(partition))

    async def catch_up(self, topic: OpenTopic) -> None:
        """Wait until what died in a topic before now is written, but not for long."""
        wanted = {partition: partition.deliveries.outbox.next for partition in topic.partitions if partition.sidecar}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S), self._some_written:
                await self._some_written.wait_for(
                    lambda: all(partition.deliveries.outbox.first >= number for partition, number in wanted.items())
                )

    async def stop(self) -> None:
        """What is not written is written after the next start."""
        tasks = list(self._at_work.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self, partition: Partition) -> None:
        try:
            while partition.deliveries.outbox and partition.log.written.failure is None:
                try:
                    await asyncio.sleep(limits.DEAD_LETTER_LINGER_S)
                    await self._bury_some(partition)
                except StorageFailed as failure:
                    self._on_failure(failure)
                    return
                except GoQueueError as error:
                    log.warning("dead letters wait", topic=partition.topic.name, reason=str(error))
                    await asyncio.sleep(_RETRY_S)
                except Exception as error:  # nobody else would go on with them
                    log.error("dead letters wait", topic=partition.topic.name, reason=repr(error))
                    await asyncio.sleep(_RETRY_S)
        finally:
            del self._at_work[partition]

    async def _bury_some(self, partition: Partition) -> None:
        outbox = partition.deliveries.outbox
        first = outbox.first
        deaths = [death for _, death in zip(range(_AT_ONCE), outbox, strict=False)]
        await self._sidecars.durable((partition,))
        topic = await self._dead_letter_topic(partition)
        records = await self._letters(partition, deaths)
        deaths = deaths[: len(records)]
        producer = Producer(own_producer(Work.DEAD_LETTERS, partition.topic.topic_id), 0, first & _SEQUENCE_MASK)
        await self._publisher.append(topic, partition.number, records, producer).durable()
        self._sidecars.write(partition, Bury(first + len(deaths)))
        self._count(partition, sum(not record.control for record in records))
        self._on_buried(partition, {death.group for death in deaths})
        async with self._some_written:
            self._some_written.notify_all()

    def _count(self, partition: Partition, letters: int) -> None:
        topic = self._topics.by_id.get(partition.topic.topic_id)
        if topic is not None:  # else it was deleted meanwhile
            topic.meters.dead_letters += letters

    async def _dead_letter_topic(self, partition: Partition) -> OpenTopic:
        """It is made when it is first needed, and has as many partitions."""
        name, count = dlq_name(partition.topic.name), partition.number + 1
        shape = self._topics.shape_of(name)
        if shape is None:
            settings = msgspec.structs.replace(
                partition.topic.settings,
                message_ttl_ms=None,
                cleanup_policy=CleanupPolicy.DELETE,  # each is a story of its own, also of the same key
            )
            try:
                partitions = len(self._topics.identified(partition.topic.topic_id).slots)
                return await self._topics.create(name, partitions, settings, self._clock())
            except TopicExists:
                pass
        elif shape[1] < count:
            await self._topics.add_partitions(name, count, self._clock())
        return self._topics.named(name)

    async def _letters(self, partition: Partition, deaths: list[Death]) -> list[Record]:
        """Of the first of them: as many as fit into a block, and one at least."""
        originals = await self._gather(partition, sorted({death.offset for death in deaths if not death.void}))
        records: list[Record] = []
        size = 0
        for death in deaths:
            original = None if death.void else originals.get(death.offset) or await self._read(partition, death.offset)
            letter = self._letter(partition, death, original)
            size += len(letter.key or b"") + len(letter.value or b"") + _LETTER_BYTES
            if records and size > limits.APPENDED_AT_ONCE_BYTES:
                break
            records.append(letter)
        return records

    def _letter(self, partition: Partition, death: Death, original: Record | None) -> Record:
        """What died, with its story; a control record in its place when it is not there any more."""
        if original is None:
            log.error("a dead message is gone", topic=partition.topic.name, offset=death.offset)
            return Record(key=b"gone", control=True)
        extension = original.extension or Extension()
        story = DeadLetter(
            topic=partition.topic.name,
            topic_id=partition.topic.topic_id,
            partition=partition.number,
            offset=death.offset,
            group=self._group_name(death.group),
            group_number=death.group,
            reason=death.reason.name.lower(),
            detail=death.detail,
            deliveries=death.deliveries,
            published_at=original.timestamp,
            died_at=death.at,
        )
        return msgspec.structs.replace(
            original,
            offset=0,
            timestamp=0,
            extension=Extension(event_time=extension.event_time, blob=pack_dead_letter(story)),
        )

    async def _gather(self, partition: Partition, offsets: list[int]) -> dict[int, Record]:
        """The records at these offsets, or some of them, or others: whatever one read brings."""
        wanted = array("q", offsets)
        block = (
            await self._reader.gather(partition, wanted, max_bytes=limits.APPENDED_AT_ONCE_BYTES) if offsets else None
        )
        return {record.offset: record for record in codec.decode(block, verified=True)} if block else {}

    async def _read(self, partition: Partition, offset: int) -> Record | None:
        try:
            chunk = await self._reader.read(partition, offset, max_bytes=1, max_count=1, to_offset=offset + 1)
        except (OffsetOutOfRange, Quarantined):
            return None
        found: list[Any] = codec.decode(chunk.data, verified=True)
        return found[0] if found else None
