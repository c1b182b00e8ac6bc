"""Named readers: where somebody who reads without a group began, kept in the metadata log.

A put is checked against the topics and their logs, and then decided without a wait: of two that come at the same time
one is first, and the other hears what that one said. Once a topic is gone nobody is told its offsets any more; they are
dropped after that.
"""

from collections.abc import Callable, Mapping

from goqueue.broker.topic import OpenTopic
from goqueue.broker.topics import TopicCatalogue
from goqueue.metadata.reader_records import Offsets
from goqueue.metadata.readers import DeleteReader, FindReader, Put, PutReader, Reader, Readers, TopicGone
from goqueue.model.errors import GoQueueError, OffsetOutOfRange, UnknownTopic
from goqueue.model.names import TopicId, partition_name
from goqueue.telemetry import logs

log = logs.get("readers")


class NamedReaders:
    """Used from one event loop."""

    def __init__(self, *, topics: TopicCatalogue, machine: Readers, clock: Callable[[], int]) -> None:
        self._topics = topics
        self._machine = machine
        self._clock = clock
        self._gone: set[TopicId] = set()
        """Topics that were deleted, whose offsets are to be dropped."""

    # --- what happens by itself

    def start(self) -> None:
        """Once the topics are known."""
        self._gone = {topic_id for topic_id in self._machine.topic_ids if self._topics.name_of(topic_id) is None}
        self.look()

    def follow(self, topic: OpenTopic) -> None:
        """A topic was opened, has changed, or is gone."""
        if self._topics.name_of(topic.meta.topic_id) is None:
            self._gone.add(topic.meta.topic_id)
            self.look()

    def look(self) -> None:
        """Drop what is to be dropped. Once a second or so: what could not be written may be possible now."""
        for topic_id in sorted(self._gone):
            try:
                outcome = self._topics.submit(self._machine, TopicGone(topic_id), self._clock())
            except GoQueueError as error:
                log.warning("readers keep offsets of a deleted topic for now", reason=str(error))
                return
            self._gone.discard(topic_id)
            if outcome.reply:
                log.info("offsets of a deleted topic dropped", topic_id=f"{topic_id:016x}", readers=outcome.reply)

    # --- what users do

    async def put(self, name: str, offsets: Mapping[str, Mapping[int, int]], *, if_absent: bool) -> Put:
        """What is kept from now on, once that is durable."""
        command = PutReader(name=name, offsets=self._checked(offsets), if_absent=if_absent)
        put: Put = await self._topics.run(self._machine, command, self._clock())
        if put.created:
            log.info("reader created", reader=name)
        return put

    async def delete(self, name: str) -> None:
        await self._topics.run(self._machine, DeleteReader(name), self._clock())
        log.info("reader deleted", reader=name)

    async def get(self, name: str) -> Reader:
        reader: Reader = await self._topics.run(self._machine, FindReader(name), self._clock())
        return reader

    async def list(self) -> list[Reader]:
        """By name."""
        readers = sorted(self._machine.by_name.values(), key=lambda reader: reader.name)
        await self._topics.sure()
        return readers

    def by_topic(self, reader: Reader) -> dict[str, dict[int, int]]:
        """What it has, by the names of topics, in their order. Those that are gone have none."""
        named = ((self._topics.name_of(topic_id), numbers) for topic_id, numbers in reader.offsets.items())
        return dict(sorted((name, numbers) for name, numbers in named if name is not None))

    def _checked(self, offsets: Mapping[str, Mapping[int, int]]) -> Offsets:
        """By the ids of topics. An offset may lie before the start of its log: retention goes on meanwhile anyway."""
        found: Offsets = {}
        for name, numbers in offsets.items():
            shape = self._topics.shape_of(name)
            if shape is None:
                raise UnknownTopic(f"there is no topic {name[:80]!r}; create it first")
            topic = self._topics.identified(shape[0])
            for number, offset in numbers.items():
                log_of = topic.partition(number).log
                if offset > log_of.end_offset:
                    raise OffsetOutOfRange(
                        offset,
                        start=log_of.start_offset,
                        end=log_of.end_offset,
                        where=partition_name(name, number),
                    )
            found[topic.meta.topic_id] = dict(numbers)
        return found
