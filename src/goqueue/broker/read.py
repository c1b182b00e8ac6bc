"""Simple reads: by partition, from an offset or a time, without a group; they change nothing.

Ordered reads see what was committed, in the order of offsets: they stop at the first message of an open transaction,
and leave out what was aborted. Markers of transactions are never seen.

Records that were just written are read on the loop, from the page cache; older ones aside, because a disk may be slow.
"""

import asyncio
from array import array
from typing import Final

from goqueue import codec
from goqueue.broker.partition import Partition
from goqueue.broker.passed_over import meet
from goqueue.broker.waiting import GONE, until
from goqueue.codec import Flag
from goqueue.io.aside import Aside
from goqueue.model.errors import LogClosed, OffsetOutOfRange, Quarantined, Unavailable
from goqueue.storage.reading import Chunk

_CONTROL: Final = int(Flag.CONTROL)
_SAMPLES: Final = 8
"""Of offsets that are far apart, so many are looked at to tell whether the page cache has them."""


class PartitionReader:
    """Used from one event loop."""

    def __init__(self, aside: Aside) -> None:
        self._aside = aside

    def read_now(
        self, partition: Partition, offset: int, *, max_bytes: int, max_count: int, to_offset: int | None = None
    ) -> Chunk | None:
        """Records that are in memory; None when a disk must be asked and `read` must be used."""
        if not partition.reads_warm(offset, max_bytes):
            return None
        try:
            return partition.log.read(offset, max_bytes=max_bytes, max_count=max_count, to_offset=to_offset)
        except Quarantined as damage:
            meet(partition, damage)
            raise

    async def read(
        self, partition: Partition, offset: int, *, max_bytes: int, max_count: int, to_offset: int | None = None
    ) -> Chunk:
        try:
            chunk = self.read_now(partition, offset, max_bytes=max_bytes, max_count=max_count, to_offset=to_offset)
            if chunk is not None:
                return chunk
            chunk = await self._aside.run(
                partition.log.read, offset, max_bytes=max_bytes, max_count=max_count, to_offset=to_offset
            )
        except LogClosed:
            raise Unavailable(GONE) from None
        except Quarantined as damage:
            meet(partition, damage)
            raise
        start = partition.log.start_offset
        if offset < start:  # cleaned meanwhile: what of it was aborted may be forgotten by now
            raise OffsetOutOfRange(offset, start=start, end=partition.log.end_offset)
        return chunk

    def ordered_now(
        self, partition: Partition, offset: int, *, max_bytes: int, max_count: int, uncommitted: bool = False
    ) -> Chunk:
        """Messages as readers may see them, for who knows that they are in memory."""
        end = None if uncommitted else partition.stable_end
        try:
            chunk = partition.log.read(offset, max_bytes=max_bytes, max_count=max_count, to_offset=end)
        except Quarantined as damage:
            meet(partition, damage)
            raise
        return _visible(partition, offset, chunk, uncommitted)

    async def ordered(
        self, partition: Partition, offset: int, *, max_bytes: int, max_count: int, uncommitted: bool = False
    ) -> Chunk:
        """Messages as readers may see them; with `uncommitted` also those of which nobody knows whether they count."""
        end = None if uncommitted else partition.stable_end
        chunk = await self.read(partition, offset, max_bytes=max_bytes, max_count=max_count, to_offset=end)
        return _visible(partition, offset, chunk, uncommitted)

    async def gather(self, partition: Partition, offsets: "array[int]", *, max_bytes: int) -> bytearray | None:
        """Records at offsets that are far apart, with others between them; None: `read` them one by one."""
        log = partition.log
        try:
            samples = (*offsets[:: max(len(offsets) // _SAMPLES, 1)], offsets[-1])
            if all(partition.reads_warm(offset, 1) for offset in samples):
                return log.gather(offsets, max_bytes=max_bytes)
            return await self._aside.run(log.gather, offsets, max_bytes=max_bytes)
        except LogClosed:
            raise Unavailable(GONE) from None

    async def offset_at(self, partition: Partition, timestamp: int) -> int:
        """The first offset appended at or after a time."""
        try:
            return await self._aside.run(partition.log.offset_at, timestamp)
        except LogClosed:
            raise Unavailable(GONE) from None

    async def wait(self, partition: Partition, offset: int, timeout_s: float, *, uncommitted: bool = False) -> None:
        """Return when an ordered read has something at `offset`, or the time is up."""
        transactions = partition.transactions
        try:
            async with asyncio.timeout(timeout_s):
                await until(partition.log.written, offset + 1)
                while not uncommitted and offset >= partition.stable_end:
                    await until(transactions.ended, transactions.ended.value + 1)
        except TimeoutError:
            return


def _visible(partition: Partition, offset: int, chunk: Chunk, uncommitted: bool) -> Chunk:
    """Without markers, and without what was aborted."""
    hidden = partition.transactions.hidden
    if not hidden or not chunk.count or not hidden.range_cardinality(offset, chunk.next_offset):
        return chunk
    scan = codec.scan(chunk.data)
    wanted = array(
        "q",
        [
            at
            for at, flags in zip(scan.offsets, scan.flags, strict=True)
            if not flags & _CONTROL and (uncommitted or at not in hidden)
        ],
    )
    if not wanted:
        return Chunk(memoryview(b""), 0, chunk.next_offset)
    picked = codec.pick(chunk.data, wanted, max_bytes=len(chunk.data))
    return Chunk(picked.data, len(picked), chunk.next_offset)
