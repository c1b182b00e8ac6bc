"""Messages that came before it was known which partitions their topic has.

They are looked at when they come, so that what cannot be a message is refused at once; kept in order; and put into
batches when the topic is known, before any later message of it.
"""

import asyncio
import logging
from collections import deque
from typing import Final

from goqueue.client.outgoing import (
    Outgoing,
    to_bytes,
    to_due,
    to_expiry,
    to_headers,
    to_lane,
    to_moment,
    to_partition,
    to_topic,
)
from goqueue.client.receipts import NO_PARTITION, Receipts, Receiver
from goqueue.client.routes import Route, Routes
from goqueue.client.sending import Sender
from goqueue.model.errors import BufferFull, GoQueueError
from goqueue.wire.failures import repeat

log = logging.getLogger("goqueue.client")

_MESSAGE_BYTES: Final = 200
"""What a message takes beside its content while its topic is looked up; and a header."""
_TURN: Final = 1000
"""Messages that are put into batches before others get a turn."""


class _Queue:
    """Of one topic."""

    __slots__ = ("messages", "task", "waiters")

    def __init__(self) -> None:
        self.messages: deque[tuple[Outgoing, Receiver | None, int]] = deque()
        """The message, who waits for it, how large it is."""
        self.waiters: list[asyncio.Future[Route]] = []
        self.task: asyncio.Task[None] | None = None


class EarlyMessages:
    """Their bytes count against the same limit as the sender's buffers; one message may always be kept."""

    def __init__(self, routes: Routes, sender: Sender, receipts: Receipts) -> None:
        self._routes = routes
        self._sender = sender
        self._receipts = receipts
        self._queues: dict[str, _Queue] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.held = 0
        """Bytes."""

    def add(self, topic: str, message: Outgoing, receiver: Receiver | None) -> None:
        """BufferFull when too much is kept already."""
        self._sender.check_open()
        to_topic(topic)
        value, key, partition, headers, priority, delay, deliver_at, ttl, event_time = message
        value = None if value is None else to_bytes(value, "value")
        key = None if key is None else to_bytes(key, "key")
        pairs = to_headers(headers)
        lane = to_lane(priority)
        partition = None if partition is None else to_partition(partition)
        to_due(delay, deliver_at)
        if ttl is not None:
            to_expiry(ttl)
        if event_time is not None:
            to_moment(event_time, "event_time")
        size = len(value or b"") + len(key or b"") + _MESSAGE_BYTES
        size += sum(len(name) + len(content) + _MESSAGE_BYTES for name, content in pairs)
        buffers = self._sender.accumulator.buffers
        if self.held and buffers.held + self.held + size > buffers.limit:
            raise BufferFull(f"too many messages wait until it is known which partitions {topic} has; wait for room")
        message = (value, key, partition, pairs, lane, delay, deliver_at, ttl, event_time)
        self._queue(topic).messages.append((message, receiver, size))
        self.held += size

    async def wait_for(self, topic: str) -> Route:
        """The topic's partitions; looked up if nobody does that yet."""
        future: asyncio.Future[Route] = asyncio.get_running_loop().create_future()
        self._queue(topic).waiters.append(future)
        return await future

    async def flush(self) -> None:
        """Until everything kept so far is in a batch, or has failed."""
        for queue in [*self._queues.values()]:
            if queue.messages and queue.task is not None:
                await asyncio.wait([queue.task])

    def close(self, error: GoQueueError) -> list[asyncio.Task[None]]:
        """Everything kept fails. What is left to wait for."""
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        for topic in [*self._queues]:
            self._give_up(topic, error)
        return tasks

    def _queue(self, topic: str) -> _Queue:
        queue = self._queues.get(topic)
        if queue is None:
            queue = self._queues[topic] = _Queue()
            task = queue.task = asyncio.create_task(self._look_up(topic, queue), name="look up")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return queue

    async def _look_up(self, topic: str, queue: _Queue) -> None:
        """Find its partitions, publish what has waited for them, and only then let others go past."""
        try:
            route = await self._routes.find(topic)
            await self._put_all(topic, route, queue)
            self._sender.check_open()  # a known topic is one that can be published to
        except GoQueueError as error:
            self._give_up(topic, error)
            return
        except Exception as error:  # whoever waits hears of it, and the topic can be looked up again
            log.exception("looking up topic %r broke", topic)
            self._give_up(topic, GoQueueError(f"looking up the topic broke: {type(error).__name__}: {error}"))
            return
        del self._queues[topic]
        self._routes.add(topic, route)
        for waiter in queue.waiters:
            if not waiter.done():
                waiter.set_result(route)
        self._sender.schedule()
        self._sender.room.on_returned()

    async def _put_all(self, topic: str, route: Route, queue: _Queue) -> None:
        put = 0
        while queue.messages:
            message, receiver, size = queue.messages[0]
            try:
                if receiver is None or not receiver.done():
                    self._sender.put_for(receiver, route, message)
            except BufferFull:
                await self._sender.room.wait()
                self._sender.check_open()
                continue
            except GoQueueError as error:
                if receiver is not None:
                    self._receipts.refuse((receiver,), error)
                else:
                    self._receipts.fail(topic, NO_PARTITION, 1, (), error)
            queue.messages.popleft()
            self.held -= size
            put += 1
            if not put % _TURN:
                self._sender.schedule()
                await asyncio.sleep(0)

    def _give_up(self, topic: str, error: GoQueueError) -> None:
        queue = self._queues.pop(topic, None)
        if queue is None:
            return
        self.held -= sum(size for _, _, size in queue.messages)
        receivers = [receiver for _, receiver, _ in queue.messages if receiver is not None]
        enqueued = len(queue.messages) - len(receivers)
        queue.messages.clear()
        self._receipts.refuse(receivers, error)
        for waiter in queue.waiters:
            if not waiter.done():
                waiter.set_exception(repeat(error))
        if enqueued:
            self._receipts.fail(topic, NO_PARTITION, enqueued, (), error)
        self._sender.room.on_returned()
