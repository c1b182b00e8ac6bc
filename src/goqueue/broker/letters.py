"""Dead letters: finding them in their topic, and remembering which were redriven.

What was redriven is settled for a group that is the broker's own, in the sidecar of the dead-letter topic's partition.
That is a mark like any other there: as safe, fenced after a power cut, and no business of the groups that users have.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import msgspec
from pyroaring import BitMap64

from goqueue import codec
from goqueue.base.offset_sets import first_gap, ranged
from goqueue.broker.partition import Partition
from goqueue.broker.read import PartitionReader
from goqueue.broker.sidecars import Sidecars
from goqueue.broker.topic import OpenTopic
from goqueue.broker.topics import TopicCatalogue
from goqueue.delivery.commands import Finish, Start
from goqueue.delivery.settled import SettledSet
from goqueue.jobs.letters import LetterFilter
from goqueue.model import limits
from goqueue.model.dead_letters import DeadLetter, unpack_dead_letter
from goqueue.model.errors import OffsetOutOfRange, Quarantined
from goqueue.model.names import DLQ_SUFFIX, GroupNumber, dlq_name, is_dlq
from goqueue.model.record import Record

REDRIVEN: Final = GroupNumber(limits.MAX_OFFSET - 1)
"""The group for which redriven letters are settled. Those of users are counted up from 1, and never get there. At a
start, groups are forgotten whose numbers were given out and which are not there any more: this one never was."""
_NONE: Final = SettledSet(0)


class Letter(NamedTuple):
    """Where it lies in the dead-letter topic, the message as it was, and its story."""

    partition: int
    record: Record
    story: DeadLetter

    @property
    def size(self) -> int:
        record = self.record
        headers = sum(len(name) + len(value) for name, value in record.headers)
        return len(record.key or b"") + len(record.value or b"") + headers


class Place(NamedTuple):
    """In a dead-letter topic."""

    partition: int
    offset: int


class Found(NamedTuple):
    letters: list[Letter]
    next_offset: int
    """Where to look on."""
    damage: str = ""
    """What could not be read on the way."""


class LetterPage(NamedTuple):
    letters: list[Letter]
    following: Place | None
    """Where there may be more."""
    incomplete: dict[int, str]
    """Partitions that were looked at and may have more letters than were found, and why."""


class Letters:
    """Used from one event loop."""

    def __init__(
        self,
        *,
        topics: TopicCatalogue,
        sidecars: Sidecars,
        reader: PartitionReader,
        catch_up: Callable[[OpenTopic], Awaitable[None]],
    ) -> None:
        self._topics = topics
        self._sidecars = sidecars
        self._reader = reader
        self._catch_up = catch_up

    # --- finding

    async def topic_of(self, name: str) -> tuple[str, OpenTopic | None]:
        """Whose dead letters are meant, by its own name or theirs; and their topic, if any have died.

        Whoever rejected a message finds it there: letters that are being written are waited for.
        """
        origin = name.removesuffix(DLQ_SUFFIX) if is_dlq(name) else name
        if origin in self._topics.by_name:
            await self._catch_up(self._topics.by_name[origin])
        if self._topics.shape_of(dlq_name(origin)) is not None:
            return origin, self._topics.named(dlq_name(origin))
        self._topics.named(origin)
        return origin, None

    def meant(self, origin: str, wanted: LetterFilter, *, deleted: bool) -> LetterFilter:
        """Only letters of the topic that has the name now, or only those of `deleted` ones that had it before.

        Where nothing has the name any more, all are of deleted ones.
        """
        shape = self._topics.shape_of(origin)
        if shape is None:
            return msgspec.structs.replace(wanted, deleted=True)
        return msgspec.structs.replace(wanted, topic_id=shape[0], deleted=deleted)

    async def written(self, name: str) -> None:
        """Wait, but not for long, until what died in a topic is written: it is about to be deleted."""
        if name in self._topics.by_name:
            await self._catch_up(self._topics.by_name[name])

    async def page(self, topic: OpenTopic, wanted: LetterFilter, begin: Place, limit: int) -> LetterPage:
        """Those that were not redriven, by partition and offset; and where there may be more."""
        found: list[Letter] = []
        number, offset = begin
        damaged = topic.damage
        incomplete: dict[int, str] = {}
        left, size = limits.MAX_LETTERS_LOOKED_AT, limits.MAX_JSON_READ_BYTES
        while number < len(topic.slots):
            if number in damaged:
                incomplete[number] = damaged[number]
                number, offset = number + 1, 0
                continue
            partition = topic.partition(number)
            end = partition.log.written.value
            if offset >= end:
                number, offset = number + 1, 0
                continue
            if len(found) >= limit or left <= 0 or size <= 0:
                return LetterPage(found, Place(number, offset), incomplete)
            some = await self.look(partition, offset, end, wanted, limit - len(found), size)
            taken = sum(letter.size for letter in some.letters)
            if found and taken > size:
                return LetterPage(found, Place(number, some.letters[0].record.offset), incomplete)
            if some.damage:
                incomplete.setdefault(number, some.damage)
            left -= limits.LETTERS_AT_ONCE
            size -= taken
            found += some.letters
            offset = some.next_offset
            await asyncio.sleep(0)
        return LetterPage(found, None, incomplete)

    async def look(
        self, partition: Partition, offset: int, end: int, wanted: LetterFilter, most: int, size: int
    ) -> Found:
        """A few letters from an offset on, before `end`: at most so many, and so many bytes unless it is only one."""
        start = self._next(partition, max(offset, partition.log.start_offset), wanted)
        if start is None or start >= end:
            return Found([], end)
        try:
            chunk = await self._reader.read(
                partition, start, max_bytes=limits.MIB, max_count=limits.LETTERS_AT_ONCE, to_offset=end
            )
        except OffsetOutOfRange:  # the cleaner was faster
            return Found([], min(max(partition.log.start_offset, offset + 1), end))
        except Quarantined as damage:
            return Found([], min(damage.next_offset, end), str(damage))
        redriven = self._redriven(partition)
        found: list[Letter] = []
        for record in codec.decode(chunk.data, verified=True):
            letter = None if record.offset in redriven else _read(partition.number, record)
            if letter is None or not wanted.matches(letter.story, record, partition.number):
                continue
            if found and (len(found) >= most or letter.size > size):
                return Found(found, record.offset)
            found.append(letter)
            size -= letter.size
        return Found(found, chunk.next_offset if chunk.count else end)

    def _next(self, partition: Partition, offset: int, wanted: LetterFilter) -> int | None:
        """The first offset from there on that could be meant."""
        redriven = self._redriven(partition)
        offset = max(offset, redriven.low)
        if offset in redriven:
            offset = first_gap(redriven.above, offset)
        return wanted.next_offset(partition.number, offset)

    async def read(self, partition: Partition, offset: int) -> Record | None:
        """One record; None when it is not there any more."""
        try:
            chunk = await self._reader.read(partition, offset, max_bytes=1, max_count=1, to_offset=offset + 1)
        except (OffsetOutOfRange, Quarantined):
            return None
        records = codec.decode(chunk.data, verified=True)
        return records[0] if records else None

    # --- remembering

    def _redriven(self, partition: Partition) -> SettledSet:
        return _NONE if partition.sidecar is None else partition.deliveries.delivery(REDRIVEN).settled

    async def prepare(self, partition: Partition) -> None:
        """So that `mark` can be written."""
        await self._sidecars.made(partition)
        if REDRIVEN not in partition.deliveries:
            self._sidecars.write(partition, Start(REDRIVEN, partition.log.start_offset))

    async def mark(self, partition: Partition, offsets: list[int]) -> None:
        """They were redriven. Durable when it returns."""
        await self.prepare(partition)
        start, low = partition.log.start_offset, self._redriven(partition).low
        gone = ranged(low, start)  # nobody will look for these again
        self._sidecars.write(partition, Finish(REDRIVEN, gone | BitMap64(offsets)))
        await self._sidecars.durable((partition,))


def _read(partition: int, record: Record) -> Letter | None:
    """None for what is no dead letter."""
    blob = None if record.control or record.extension is None else record.extension.blob
    story = None if blob is None else unpack_dead_letter(blob)
    return None if story is None else Letter(partition, record, story)
