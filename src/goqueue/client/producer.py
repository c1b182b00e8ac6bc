"""Publishing messages: what users call.

A message of a known topic goes straight into a batch (`client.sending`); of an unknown one it is kept until the topic
was looked up (`client.early`, `client.routes`). Who hears of it, and what, is the business of `client.receipts`.
"""

import asyncio
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from goqueue.client.accumulator import Batch
from goqueue.client.arguments import Duration, check, to_seconds
from goqueue.client.block_producer import BlockProducer
from goqueue.client.connection import CLOSE_TIMEOUT_S
from goqueue.client.early import EarlyMessages
from goqueue.client.link import Link
from goqueue.client.outgoing import NORMAL, Content, Headers, Moment, Outgoing, to_topic
from goqueue.client.receipts import Outcome, Receipt, Receipts, Receiver
from goqueue.client.routes import Route, Routes
from goqueue.client.sending import Sender
from goqueue.model import limits
from goqueue.model.errors import (
    BufferFull,
    GoQueueError,
    Unavailable,
    UnknownPartition,
    UnknownTopic,
)
from goqueue.model.publishing import Acks
from goqueue.wire.blocks import PublishReply

log = logging.getLogger("goqueue.client")

LEAVE_S: Final = 1.0
"""How long one that is left in a hurry tries to publish what it has."""
_ACKS: Final = {"none": Acks.NONE, "leader": Acks.LEADER, "all": Acks.ALL}


class AsyncProducer:
    """Made by `AsyncClient.producer`; use it in `async with`, which flushes at the end. For one event loop."""

    def __init__(
        self,
        link: Link,
        *,
        acks: str = "leader",
        batch_bytes: int = 256 * limits.KIB,
        batch_messages: int = 10_000,
        linger: Duration = 0.0,
        buffer_bytes: int = 64 * limits.MIB,
        delivery_timeout: Duration = 120.0,
        on_batch: Callable[[Outcome], None] | None = None,
    ) -> None:
        check(
            acks=acks,
            batch_bytes=batch_bytes,
            batch_messages=batch_messages,
            buffer_bytes=buffer_bytes,
            on_batch=on_batch,
        )
        linger_s = to_seconds("linger", linger)
        delivery_timeout_s = to_seconds("delivery_timeout", delivery_timeout, least_ms=1)
        host, port, connect_timeout_s, call_timeout_s = link.endpoint
        blocks = BlockProducer(
            host, port, acks=_ACKS[acks], connect_timeout_s=connect_timeout_s, call_timeout_s=call_timeout_s
        )
        self._loop = asyncio.get_running_loop()
        self._receipts = Receipts(self._loop, on_batch)
        self.sender = Sender(
            blocks,
            batch_bytes=batch_bytes,
            batch_messages=batch_messages,
            buffer_bytes=buffer_bytes,
            linger_s=linger_s,
            delivery_timeout_s=delivery_timeout_s,
            on_done=self._on_done,
            on_dropped=self._on_dropped,
            on_ended=self._on_ended,
        )
        self._routes = Routes(link, self.sender.place, self.sender.retire, timeout_s=delivery_timeout_s)
        self.routes = self._routes.known
        """Topics that can be published to at once; none when nothing can be published any more."""
        self._early = EarlyMessages(self._routes, self.sender, self._receipts)
        self._turn = asyncio.Lock()
        """Whose turn it is among those that send and have to wait for room; `_queued` is how many they are."""
        self._queued = 0

    async def send(
        self,
        topic: str,
        value: Content | None,
        *,
        key: Content | None = None,
        partition: int | None = None,
        headers: Headers = (),
        priority: str | int = NORMAL,
        delay: Duration | None = None,
        deliver_at: Moment | None = None,
        ttl: Duration | None = None,
        event_time: Moment | None = None,
    ) -> Receipt:
        """Publish one message and wait for its receipt. Messages sent side by side share batches.

        `value` None is a tombstone. `delay` and `ttl` are seconds, text like "1m30s" or a timedelta. What it raises is
        about this message alone.
        """
        sender = self.sender
        future: asyncio.Future[Receipt] = self._loop.create_future()
        try:
            route = None if self._queued else self.routes.get(topic)
        except TypeError:  # what cannot be looked up is no name
            to_topic(topic)
            raise
        if route is not None:
            try:
                with sender.lock:
                    batch = sender.put(
                        route, value, key, partition, headers, priority, delay, deliver_at, ttl, event_time
                    )
                    batch.receivers.append((batch.count - 1, future))
            except BufferFull:
                route = None
        if route is None:
            message = (value, key, partition, headers, priority, delay, deliver_at, ttl, event_time)
            await self._put_in_turn(topic, message, future)
        if not sender.pumping:
            sender.schedule()
        return await future

    def enqueue(
        self,
        topic: str,
        value: Content | None,
        *,
        key: Content | None = None,
        partition: int | None = None,
        headers: Headers = (),
        priority: str | int = NORMAL,
        delay: Duration | None = None,
        deliver_at: Moment | None = None,
        ttl: Duration | None = None,
        event_time: Moment | None = None,
    ) -> None:
        """Publish one message without waiting. `flush` waits for what was enqueued, `on_batch` is told batch by batch.

        `BufferFull` when as many bytes wait as may, or sends wait for room: nothing was enqueued; `await room()` and
        try again.
        """
        if self._queued:
            raise BufferFull("messages that were sent before wait for room; wait for it behind them")
        try:
            route = self.routes.get(topic)
        except TypeError:  # what cannot be looked up is no name
            to_topic(topic)
            raise
        if route is None:
            message = (value, key, partition, headers, priority, delay, deliver_at, ttl, event_time)
            self._early.add(topic, message, None)
            return
        sender = self.sender
        batch = sender.put(route, value, key, partition, headers, priority, delay, deliver_at, ttl, event_time)
        if batch.place.sealed:
            sender.submit(batch.place)
        if not sender.pumping:
            sender.schedule()

    async def room(self) -> None:
        """Wait until there is room for another batch, and for what was refused; behind sends that wait for it too."""
        if self._queued:
            async with self._turn:
                pass
        await self._room()

    async def _room(self) -> None:
        self.sender.check_open()
        if self.sender.room.is_there and not self._early.held:
            self.sender.room.forget_wanted()
            await asyncio.sleep(0)
            return
        await self.sender.room.wait()
        self.sender.check_open()

    async def wait_for_room(self, timeout: float) -> None:
        """The same, for so long; BufferFull after that."""
        try:
            async with asyncio.timeout(timeout):
                await self.room()
        except TimeoutError:
            raise BufferFull(f"there was no room for more messages within {timeout} s; is the broker there?") from None

    async def flush(self) -> None:
        """Wait until everything enqueued so far has its answer; raises if some of it failed since the last flush."""
        await self._early.flush()
        await self.sender.flush()
        failure = self._receipts.take_failure()
        if failure is not None:
            raise failure

    async def close(self) -> None:
        """Flush, and end. What has no answer by the delivery timeout has failed.

        Who is cancelled here does not wait for the flush: what was not published is discarded, and the log says so.
        """
        if self.sender.closed:
            return
        try:
            await self.flush()
        finally:
            await self._discard(self._receipts.unheard, CLOSE_TIMEOUT_S)

    async def leave(self) -> None:
        """Flush for a second at most, and end. What was not published by then is discarded, and the log says so."""
        if self.sender.closed:
            return
        failed_before = self._receipts.unheard
        loop = asyncio.get_running_loop()
        end = loop.time() + LEAVE_S
        try:
            async with asyncio.timeout_at(end):
                await self._early.flush()
                await self.sender.flush()
        except TimeoutError:
            pass
        finally:
            await self._discard(failed_before, max(0.0, end - loop.time()))

    async def _discard(self, failed_before: int, patience_s: float) -> None:
        """End. So many had failed when it was decided to end; the log says how many more they are then."""
        try:
            await self.abort(patience_s)
        finally:
            discarded = self._receipts.unheard - failed_before
            if discarded:
                log.warning(
                    "a producer ended, and what the broker had not confirmed was discarded: %d messages", discarded
                )

    async def abort(self, patience_s: float = 0.0) -> None:
        """End now: what has no answer yet fails. What was sent, and takes no answer, has so long to leave."""
        self.sender.stop()
        tasks = [*self._routes.close(), *self._early.close(Unavailable("the producer was closed"))]
        await self.sender.close(patience_s)
        if tasks:
            await asyncio.wait(tasks)
        await asyncio.sleep(0)  # `on_batch` has been told of everything

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
            return
        if not isinstance(error, Exception):  # cancelled, or Ctrl-C: whoever wants to leave now does not wait for long
            await self.leave()
            return
        try:
            await self.close()
        except GoQueueError as also:
            error.add_note(f"and the producer could not publish everything: {also}")

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self.sender.closed

    async def prepare(self, topic: str) -> Route:
        """The partitions of a topic; asked for if they are not known."""
        self.sender.check_open()
        return self.routes.get(to_topic(topic)) or await self._early.wait_for(topic)

    async def _put_in_turn(self, topic: str, message: Outgoing, receiver: Receiver) -> None:
        """As soon as there is room, and not before those that have waited for longer."""
        self.sender.check_open()
        self._queued += 1
        try:
            async with self._turn:
                while True:
                    route = self.routes.get(topic)
                    try:
                        if route is None:
                            self._early.add(topic, message, receiver)
                        else:
                            self.sender.put_for(receiver, route, message)
                        return
                    except BufferFull:
                        await self._room()
        finally:
            self._queued -= 1

    def _on_done(self, batch: Batch, outcome: PublishReply | GoQueueError) -> None:
        topic, line = batch.place.topic, batch.place.line
        if isinstance(outcome, PublishReply):
            self._receipts.succeed(topic, line.partition, batch.count, batch.receivers, outcome)
            return
        if isinstance(outcome, UnknownTopic | UnknownPartition):
            self._routes.forget(topic, line.topic_id)
        receivers = [receiver for _, receiver in batch.receivers]
        self._receipts.fail(topic, line.partition, batch.count, receivers, outcome)

    def _on_dropped(self, batch: Batch, error: GoQueueError, told: list[Receiver]) -> None:
        """One message of a batch was refused, and the others go on."""
        self._receipts.fail(batch.place.topic, batch.place.line.partition, 1, told, error)

    def _on_ended(self) -> None:
        self.routes.clear()
