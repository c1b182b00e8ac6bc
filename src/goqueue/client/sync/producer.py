"""Publishing without a loop of one's own: messages are packed in the thread of the caller, and cross over by the batch.

A lock keeps the thread that packs apart from the loop that sends; it is held per message on one side and per batch on
the other. Everything else is `client.producer`'s and `client.sending`'s.
"""

import asyncio
import time
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from goqueue.client.arguments import Duration, to_seconds
from goqueue.client.outgoing import NORMAL, Content, Headers, Moment, to_topic
from goqueue.client.outlet import Outlet
from goqueue.client.producer import AsyncProducer
from goqueue.client.receipts import Receipt
from goqueue.client.routes import Route
from goqueue.client.sync.loop import LoopThread
from goqueue.client.sync.transaction import Transaction
from goqueue.model.errors import BufferFull, GoQueueError, RequestTimeout

DEFAULT_MAX_BLOCK_S: Final = 60.0
DEFAULT_LINGER_S: Final = 0.005
"""For what is enqueued. The thread that enqueues has the interpreter most of the time: without a linger the loop would
send what little is there whenever it gets a turn."""


class Producer:
    """Made by `Client.producer`; use it in `with`, which flushes at the end. Any number of threads."""

    def __init__(self, loop: LoopThread, inner: AsyncProducer, *, max_block: Duration) -> None:
        self._loop = loop
        self._inner = inner
        self._max_block_s = to_seconds("max_block", max_block)
        self._is_done = False

    def send(
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
        """Publish one message and wait for its receipt. `AsyncProducer.send` says what the arguments mean."""
        return self._loop.run(
            self._inner.send(
                topic,
                value,
                key=key,
                partition=partition,
                headers=headers,
                priority=priority,
                delay=delay,
                deliver_at=deliver_at,
                ttl=ttl,
                event_time=event_time,
            )
        )

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
        """Publish one message without waiting for its answer; `flush` does.

        Waits for up to `max_block` when as many bytes wait as may; `BufferFull` after that, and nothing was enqueued.
        The first message to a topic also waits until its partitions are known; `RequestTimeout` after that.
        """
        outlet = self._inner.outlet
        if self._loop.closed:
            self._loop.check_open()
        try:
            route = outlet.routes.get(topic)
        except TypeError:  # what cannot be looked up is no name
            to_topic(topic)
            raise
        if route is None:
            waited_in = outlet.sender.accumulator.transaction
            route = self._loop.run(self._find(outlet, topic))
            outlet.sender.check_transaction(waited_in)
        sender = outlet.sender
        waiting_since: float | None = None
        while True:
            try:
                with sender.lock:
                    if waiting_since is not None:
                        sender.check_transaction(waited_in)
                    if sender.closed:  # since the route was found: nobody would send it
                        sender.check_open()
                    batch = sender.put(
                        route, value, key, partition, headers, priority, delay, deliver_at, ttl, event_time
                    )
                break
            except BufferFull:  # other threads may be faster: the time to wait counts from the first try
                now = time.monotonic()
                if waiting_since is None:
                    waiting_since, waited_in = now, sender.accumulator.transaction
                self._loop.run(self._inner.wait_for_room(max(0.0, waiting_since + self._max_block_s - now), outlet))
        if batch.count == 1:
            time.sleep(0)  # a batch has begun, so another one is full: the loop that sends it needs the interpreter
        if not sender.pumping:
            sender.pumping = True
            self._loop.wake(sender.pump)

    async def _find(self, outlet: Outlet, topic: str) -> Route:
        try:
            async with asyncio.timeout(self._max_block_s):
                return await outlet.find(to_topic(topic))
        except TimeoutError:
            raise RequestTimeout(
                f"no broker said within {self._max_block_s} s which partitions {topic} has; nothing was enqueued"
            ) from None

    def flush(self) -> None:
        """Wait until everything enqueued so far has its answer; raises if some of it failed since the last flush."""
        self._loop.run(self._inner.flush())

    def transaction(self, *, name: str | None = None, timeout: Duration | None = None) -> Transaction:
        """What is sent or enqueued while it is open counts as a whole, with what is acked in it; use it in `with`.

        `AsyncProducer.transaction` says what the arguments mean.
        """
        return Transaction(self._loop, self._inner.transaction(name=name, timeout=timeout))

    def close(self) -> None:
        """Flush, and end. Raises if the client was closed before: nobody knows what was published."""
        if self._is_done:
            return
        self._loop.run(self._inner.close())
        self._is_done = True

    def __enter__(self) -> Self:
        self._loop.run(self._inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        if not isinstance(error, Exception):  # Ctrl-C: whoever wants to leave now does not wait for long
            self._is_done = True
            with suppress(GoQueueError):  # the client was closed before
                self._loop.run(self._inner.leave())
            return
        try:
            self.close()
        except GoQueueError as also:
            error.add_note(f"and the producer could not publish everything: {also}")
