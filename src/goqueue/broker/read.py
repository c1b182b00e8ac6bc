"""Simple reads: by partition, from an offset or a time, without a group; they change nothing.

Records that were just written are read on the loop, from the page cache; older ones aside, because a disk may be slow.
"""

import asyncio
from array import array
from typing import Final

from goqueue.broker.partition import GONE, Partition
from goqueue.io.aside import Aside
from goqueue.io.waiting import reached
from goqueue.model.errors import LogClosed, Unavailable
from goqueue.storage.reading import Chunk

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
        return partition.log.read(offset, max_bytes=max_bytes, max_count=max_count, to_offset=to_offset)

    async def read(
        self, partition: Partition, offset: int, *, max_bytes: int, max_count: int, to_offset: int | None = None
    ) -> Chunk:
        try:
            chunk = self.read_now(partition, offset, max_bytes=max_bytes, max_count=max_count, to_offset=to_offset)
            if chunk is not None:
                return chunk
            return await self._aside.run(
                partition.log.read, offset, max_bytes=max_bytes, max_count=max_count, to_offset=to_offset
            )
        except LogClosed:
            raise Unavailable(GONE) from None

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

    async def wait(self, partition: Partition, offset: int, timeout_s: float) -> None:
        """Return when there is a record at `offset`, or the time is up."""
        try:
            async with asyncio.timeout(timeout_s):
                await reached(partition.log.written, offset + 1)
        except TimeoutError:
            return
        except LogClosed:
            raise Unavailable(GONE) from None
