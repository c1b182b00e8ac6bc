"""Producers at a steady rate, one per partition: message n of a partition is the one that belongs at offset n."""

import asyncio
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from goqueue import codec
from goqueue.client.block_producer import BlockProducer
from goqueue.model.publishing import Acks
from goqueue.model.record import Extension, Producer, Record
from tests.chaos.broker_load import split
from tests.chaos.ledger import Violation
from tests.support.group_ledger import value_of

T = TypeVar("T")
_NUMBERED_LATER = Extension(producer=Producer(0, 0, 0))


class Publishers:
    """They go on over the broker's deaths: what has no answer is sent again, and appended once."""

    def __init__(
        self,
        wire: str,
        topic_id: int,
        *,
        partitions: int,
        every_s: float,
        messages: int = 1,
        limit: int | None = None,
    ) -> None:
        """Each partition gets so many messages at a time, this often; `limit` is for all of it."""
        self._wire = split(wire)
        self._topic_id = topic_id
        self._every_s = every_s
        self._messages = messages
        self._limit = limit
        self._stopped = False
        self.ends = dict.fromkeys(range(partitions), 0)
        """By partition: how many messages are acknowledged."""
        self.in_flight = 0

    async def run(self) -> None:
        """Until `stop`, or the limit; then everything is acknowledged."""
        async with BlockProducer(*self._wire, acks=Acks.LEADER) as producer, asyncio.TaskGroup() as group:
            for partition in self.ends:
                group.create_task(self._publish(producer, partition))

    async def _publish(self, producer: BlockProducer, partition: int) -> None:
        due = time.monotonic() + self._every_s * partition / len(self.ends)
        while True:
            await asyncio.sleep(max(due - time.monotonic(), 0))
            if self._stopped or self.ends[partition] == self._limit:
                return
            due = max(due + self._every_s, time.monotonic())
            await self._publish_next(producer, partition)

    async def _publish_next(self, producer: BlockProducer, partition: int) -> None:
        first = self.ends[partition]
        offsets = range(first, first + self._messages)
        block = codec.encode([Record(value=value_of(partition, at), extension=_NUMBERED_LATER) for at in offsets])
        self.in_flight += 1
        reply = await producer.publish(self._topic_id, partition, block)
        self.in_flight -= 1
        found = [each.first_offset + at for each in reply.ranges for at in range(each.records)]
        if found != list(offsets):
            raise Violation(f"partition {partition}: {offsets} were appended at {found}")
        self.ends[partition] = offsets.stop

    def stop(self) -> None:
        self._stopped = True


class LoopThread:
    """An event loop beside whoever starts it, for what goes on while brokers and members are dealt with."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="beside")

    def run(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def __enter__(self) -> "LoopThread":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """What has not ended is cancelled."""
        self.run(self._cancel_all()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _cancel_all(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
