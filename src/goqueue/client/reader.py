"""Reading without a group: from an offset or a time, to the end or on and on. Nothing is settled, nothing changes.

What was published in a transaction is read once that is committed; an open one holds up what came behind it in its
partition, and a reader that ends does so in front of it.

Every partition has a request under way ahead of what is handed out, bounded in bytes; a reader that is not read from
asks for nothing more. Messages of one partition come in order; partitions take turns. Partitions that are added to the
topic after a reader began are not read by it.

Where the broker's disk has damaged records a reader raises Quarantined, in their place and each time it comes there,
until somebody seeks past them; one that was told to skip them goes on, says so in the log, and counts them.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Iterable
from types import TracebackType
from typing import Final, Literal, Self

from goqueue import codec
from goqueue.client import topics
from goqueue.client.arguments import Duration, check, is_number, to_list, to_timeout
from goqueue.client.connection import Connection, Fetched
from goqueue.client.link import Link
from goqueue.client.messages import Message, ReadBatch
from goqueue.client.outgoing import Moment, to_place_ms
from goqueue.model import limits
from goqueue.model.errors import InvalidRequest, OffsetOutOfRange, Quarantined, Unavailable, UnknownPartition
from goqueue.model.names import partition_name, show_offsets
from goqueue.model.times import show_time
from goqueue.wire.codes import CODES

Isolation = Literal["read_committed", "read_uncommitted"]
OnDamage = Literal["raise", "skip"]

log = logging.getLogger("goqueue.client")

MAX_WAIT_MS: Final = 5000
"""How long a request waits for messages that are not there yet."""
DEFAULT_FETCH_BYTES: Final = 1 * limits.MIB
TURN: Final = 64
"""After how many messages in a row the loop gets a turn."""


class _Partition:
    """Where a reader is in one partition."""

    __slots__ = ("end", "number", "offset", "under_way")

    def __init__(self, number: int, offset: int, end: int | None) -> None:
        self.number = number
        self.offset = offset
        self.end = end
        """Where it stops; None: it goes on."""
        self.under_way: asyncio.Task[Fetched] | None = None

    @property
    def is_done(self) -> bool:
        return self.end is not None and self.offset >= self.end


class AsyncReader:
    """Made by `AsyncClient.reader`. Ends where the topic ended when it began, or never with `follow`."""

    def __init__(
        self,
        link: Link,
        topic: str,
        *,
        partitions: Iterable[int] | None = None,
        from_offset: int | None = None,
        from_time: Moment | None = None,
        to_time: Moment | None = None,
        follow: bool = False,
        fetch_bytes: int = DEFAULT_FETCH_BYTES,
        isolation: Isolation = "read_committed",
        on_damage: OnDamage = "raise",
    ) -> None:
        check(
            topic=topic,
            from_offset=from_offset,
            follow=follow,
            fetch_bytes=fetch_bytes,
            isolation=isolation,
            on_damage=on_damage,
        )
        if from_offset is not None and from_time is not None:
            raise InvalidRequest("name an offset or a time to read from, not both")
        if follow and to_time is not None:
            raise InvalidRequest("a reader that follows has no end; leave to_time or follow out")
        self.topic = topic
        self._link = link
        self._asked = None
        if partitions is not None:
            self._asked = to_list("partitions", partitions, is_number, "a list of numbers, or None", or_empty=True)
        self._from_offset = from_offset
        self._from_ms = None if from_time is None else to_place_ms(from_time, "from_time")
        self._to_ms = None if to_time is None else to_place_ms(to_time, "to_time")
        self._follow = follow
        self._fetch_bytes = fetch_bytes
        self._uncommitted = isolation == "read_uncommitted"
        self._skips = on_damage == "skip"
        self._skipped = 0
        self._topic_id = 0
        self._partitions: dict[int, _Partition] = {}
        self._turns: deque[_Partition] = deque()
        self._begun = False
        self._closed = False
        self._batch: ReadBatch | None = None
        """The one that is being handed out message by message, and how far."""
        self._rest: list[Message] = []
        self._next = 0
        self._turn = 0

    # ------------------------------------------------------------------ what users call

    async def read(self, timeout: Duration | None = None) -> ReadBatch | None:
        """The next messages of one partition; None at the end, or when none came within the timeout."""
        timeout_s = to_timeout(timeout)
        if self._batch is not None and self._next < len(self._rest):
            rest = self._batch.rest(self._rest[self._next].offset)
            self._drop()
            return rest
        try:
            async with asyncio.timeout(timeout_s):
                return await self._read()
        except TimeoutError:
            return None

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        self._turn += 1
        if self._turn >= TURN:
            self._turn = 0
            await asyncio.sleep(0)
        while self._next >= len(self._rest):
            batch = await self._read()
            if batch is None:
                raise StopAsyncIteration
            self._batch, self._rest, self._next = batch, [*batch], 0
        message = self._rest[self._next]
        self._next += 1
        return message

    async def seek(self, partition: int, offset: int) -> None:
        """Go on at this offset of a partition; what was read ahead of it is dropped."""
        check(partition=partition, offset=offset)
        await self._begin()
        found = self._partitions.get(partition)
        if found is None:
            raise UnknownPartition(f"this reader does not read partition {partition}")
        if found.under_way is not None:
            found.under_way.cancel()
            found.under_way = None
        found.offset = offset
        if self._batch is not None and self._batch.partition == partition:
            self._drop()
        if found not in self._turns:
            self._turns.append(found)

    async def positions(self) -> dict[int, int]:
        """By partition, the offset of the next message it will give."""
        await self._begin()
        found = {number: each.offset for number, each in self._partitions.items()}
        if self._next < len(self._rest):
            first = self._rest[self._next]
            found[first.partition] = first.offset
        return found

    @property
    def skipped(self) -> int:
        """How many messages it passed over because they are damaged."""
        return self._skipped

    def _drop(self) -> None:
        """What is left of the batch that is being handed out."""
        self._batch, self._rest, self._next = None, [], 0

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    async def close(self) -> None:
        self._link.check_loop()
        self._closed = True
        self._drop()
        tasks = [each.under_way for each in self._partitions.values() if each.under_way is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for each in self._partitions.values():
            each.under_way = None
        await self._link.close()

    async def __aenter__(self) -> Self:
        try:
            await self._begin()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    # ------------------------------------------------------------------ where to begin and end

    async def _begin(self) -> None:
        if self._begun:
            return
        topic = await topics.find(self._link, self.topic)
        numbers = range(topic.partitions) if self._asked is None else self._asked
        for number in numbers:
            if not 0 <= number < topic.partitions:
                raise UnknownPartition(f"{self.topic} has no partition {number}; it has {topic.partitions}, from 0 on")
        self._topic_id = topic.topic_id
        described = await self._link.ask(CODES["describe_topic"], {"topic": self.topic}, repeatable=True)
        bounds = described["partition_offsets"]
        bound = "latest" if self._uncommitted else "stable"
        starts = None if self._from_ms is None else await self._offsets_at(self._from_ms)
        ends = None if self._to_ms is None else await self._offsets_at(self._to_ms)
        if self._from_offset is not None and numbers:
            longest = max(numbers, key=lambda number: bounds[str(number)]["latest"])
            self._check_within(self._from_offset, longest, bounds[str(longest)])
        for number in numbers:
            earliest, last = bounds[str(number)]["earliest"], bounds[str(number)][bound]
            offset = earliest if self._from_offset is None else max(self._from_offset, earliest)
            if starts is not None:
                offset = starts[str(number)]
            end = None if self._follow else last
            if ends is not None:
                end = min(ends[str(number)], last)
            self._partitions[number] = _Partition(number, offset, end)
        self._turns = deque(self._partitions.values())
        self._begun = True

    def _check_within(self, offset: int, partition: int, bounds: dict[str, int]) -> None:
        """What is past the end of its longest partition is past them all."""
        if offset > bounds["latest"]:
            raise OffsetOutOfRange(
                offset,
                start=bounds["earliest"],
                end=bounds["latest"],
                where=partition_name(self.topic, partition),
            )

    async def _offsets_at(self, moment_ms: int) -> dict[str, int]:
        asked = {"topic": self.topic, "timestamp": show_time(moment_ms)}
        reply = await self._link.ask(CODES["offsets"], asked, repeatable=True)
        offsets: dict[str, int] = reply["offsets"]
        return offsets

    # ------------------------------------------------------------------ reading

    async def _read(self) -> ReadBatch | None:
        await self._begin()
        while True:
            if self._closed:
                raise Unavailable("this reader is closed; make another one")
            batch = self._arrived()
            if batch is not None:
                return batch
            fetching = []
            for each in [*self._turns]:
                if each.is_done:
                    self._turns.remove(each)
                    continue
                if each.under_way is None:
                    each.under_way = asyncio.get_running_loop().create_task(self._fetch(each.number, each.offset))
                fetching.append(each.under_way)
            if not fetching:
                return None
            await asyncio.wait(fetching, return_when=asyncio.FIRST_COMPLETED)

    def _arrived(self) -> ReadBatch | None:
        """What is there already, of the partition whose turn it is. It is the last one from now on."""
        for each in [*self._turns]:
            if each.under_way is not None and each.under_way.done():
                batch = self._take(each)
                if batch is not None:
                    self._turns.remove(each)
                    self._turns.append(each)
                    return batch
        return None

    def _take(self, each: _Partition) -> ReadBatch | None:
        """What came for a partition, less what is past its end; and the next request goes out at once."""
        assert each.under_way is not None
        task, each.under_way = each.under_way, None
        try:
            fetched = task.result()
        except Quarantined as damage:
            self._meet(damage, each)
            return None
        block, count, next_offset = fetched.block, fetched.records, max(fetched.next_offset, each.offset)
        if each.end is not None and next_offset > each.end:
            found = codec.select(
                block, from_offset=each.offset, to_offset=each.end, max_count=limits.MAX_READ_COUNT,
                max_bytes=len(block),
            )  # fmt: skip
            block, count, next_offset = block[found.start : found.end], found.count, each.end
        each.offset = next_offset
        if not each.is_done:
            each.under_way = asyncio.get_running_loop().create_task(self._fetch(each.number, next_offset))
        return ReadBatch(self.topic, each.number, block, count, next_offset) if count else None

    def _meet(self, damage: Quarantined, each: _Partition) -> None:
        """What comes next in a partition is damaged."""
        name = partition_name(self.topic, each.number)
        following = max(damage.next_offset, each.offset + 1)
        if not self._skips:
            self._turns.remove(each)  # who goes on all the same hears of the other partitions first
            self._turns.append(each)
            found = Quarantined(
                damage.first, following, where=name, reason=damage.reason, topic=self.topic, partition=each.number
            )
            found.args = (f"{found}: seek there, or read with on_damage='skip'",)
            raise found from damage
        end = following if each.end is None else min(following, each.end)
        log.warning(
            "messages of %s are damaged, at %s (%s): this reader goes on without them",
            name, show_offsets(each.offset, end), damage.reason,
        )  # fmt: skip
        self._skipped += end - each.offset
        each.offset = end

    async def _fetch(self, partition: int, offset: int) -> Fetched:
        async def once(connection: Connection) -> Fetched:
            return await connection.fetch_block(
                self._topic_id,
                partition,
                offset,
                max_bytes=self._fetch_bytes,
                max_wait_ms=MAX_WAIT_MS,
                uncommitted=self._uncommitted,
            )

        while True:
            try:
                return await self._link.insist(once, timeout_s=None)
            except OffsetOutOfRange as error:
                if offset < error.start:  # retention was faster
                    offset = error.start
                elif not self._follow:  # else it comes to that: the broker has waited for it, and does so again
                    raise
