"""Reading a stretch of a partition from the broker, block by block: what a task does.

One request is always under way ahead of what is handed out. A stretch that is no longer all there is an error, or is
read as far as it is there, as was asked for. Gaps between messages are no loss: what was compacted is gone by design,
and where a delayed message holds the beginning of a log, what retention took around it looks the same.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import closing
from typing import Final

from goqueue.client.connection import Connection, Fetched
from goqueue.client.link import Link, parse_endpoint
from goqueue.client.sync.loop import LoopThread
from goqueue.model import limits
from goqueue.model.errors import DamagedData, OffsetOutOfRange, Quarantined, UnknownTopic
from goqueue.spark.options import Address
from goqueue.spark.places import Stretch

log = logging.getLogger("goqueue.spark")

FETCH_BYTES: Final = 4 * limits.MIB


class DataLost(DamagedData):
    """Messages that were to be read are gone."""

    code = "data_lost"


def fetch(
    address: Address,
    stretch: Stretch,
    *,
    uncommitted: bool,
    fail_on_data_loss: bool,
    on_loss: Callable[[int, str], None] = lambda _offset, _text: None,
) -> Iterator[memoryview]:
    """The blocks that have the stretch's messages, in order; they may begin before it and end behind it.

    `on_loss` hears what is left out: its first offset, and what is said of it.
    """
    blocks = _fetch(address, stretch, uncommitted, fail_on_data_loss, on_loss)

    async def following() -> memoryview | None:
        return await anext(blocks, None)

    with closing(LoopThread()) as loop:  # it goes on while Spark is busy with a block, for however long
        try:
            while (block := loop.run(following())) is not None:
                yield block
        finally:
            loop.run(blocks.aclose())


async def _fetch(
    address: Address,
    stretch: Stretch,
    uncommitted: bool,
    fail_on_data_loss: bool,
    on_loss: Callable[[int, str], None],
) -> AsyncGenerator[memoryview, None]:
    link = Link(
        parse_endpoint(
            address.servers, connect_timeout_s=address.connect_timeout_s, call_timeout_s=address.request_timeout_s
        )
    )
    where = f"partition {stretch.partition} of {stretch.topic}"

    async def ask(offset: int) -> Fetched:
        async def once(connection: Connection) -> Fetched:
            return await connection.fetch_block(
                int(stretch.topic_id, 16),
                stretch.partition,
                offset,
                max_bytes=FETCH_BYTES,
                max_wait_ms=0,
                uncommitted=uncommitted,
            )

        return await link.insist(once, timeout_s=address.request_timeout_s)

    def lose(first: int, end: int, why: str) -> None:
        text = f"offsets {first} to {end - 1} of {where} are gone: {why}"
        if fail_on_data_loss:
            raise DataLost(f"{text}; set failOnDataLoss to false to go on without them")
        log.warning("%s", text)
        on_loss(first, text)

    offset = stretch.start
    ahead: asyncio.Task[Fetched] | None = None
    try:
        while offset < stretch.end:
            if ahead is None:
                ahead = asyncio.get_running_loop().create_task(ask(offset))
            try:
                fetched = await ahead
            except OffsetOutOfRange as error:
                ahead = None
                if offset < error.start:
                    if not stretch.is_new:
                        lose(offset, min(error.start, stretch.end), "they were cleaned away")
                    offset = error.start
                    continue
                lose(offset, stretch.end, f"the partition ends at {error.end}")
                return
            except Quarantined as error:
                ahead = None
                following = max(error.next_offset, offset + 1)
                lose(offset, min(following, stretch.end), "they are damaged on the broker's disk")
                offset = following
                continue
            except UnknownTopic:
                lose(offset, stretch.end, "the topic was deleted")
                return
            next_offset = fetched.next_offset
            ahead = None
            if next_offset <= offset:
                lose(offset, stretch.end, "the partition ends there, or a transaction in it is not decided about")
                return
            if next_offset < stretch.end:
                ahead = asyncio.get_running_loop().create_task(ask(next_offset))
                await asyncio.sleep(0)  # it leaves now, and is answered while this block is used
            if fetched.records:
                yield fetched.block
            offset = next_offset
    finally:
        if ahead is not None:
            ahead.cancel()
            await asyncio.gather(ahead, return_exceptions=True)
        await link.close()
