"""Publishing messages: what users call.

A message of a known topic goes straight into a batch (`client.sending`); of an unknown one it is kept until the topic
was looked up (`client.early`, `client.routes`). Who hears of it, and what, is the business of `client.receipts`. All of
that is an outlet (`client.outlet`): the usual one, or that of a transaction (`client.transaction`) while one is open.
"""

import asyncio
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from goqueue import codec
from goqueue.client.arguments import Duration, check, to_seconds, to_transaction_ms
from goqueue.client.block_producer import BlockProducer
from goqueue.client.connection import CLOSE_TIMEOUT_S
from goqueue.client.line import Identity
from goqueue.client.link import Link, check_loop
from goqueue.client.outgoing import NORMAL, Content, Headers, Moment, Outgoing, OutgoingColumns, to_topic
from goqueue.client.outlet import Bounds, Outlet
from goqueue.client.receipts import Outcome, Receipt, Receiver
from goqueue.client.routes import Route
from goqueue.client.transaction import AsyncTransaction, TransactionStage
from goqueue.client.writer import TransactionWriter
from goqueue.model import limits
from goqueue.model.errors import BufferFull, GoQueueError, InvalidRecord, InvalidRequest
from goqueue.model.publishing import Acks

log = logging.getLogger("goqueue.client")

LEAVE_S: Final = 1.0
"""How long one that is left in a hurry tries to publish what it has."""
_UNANSWERED: Final = "with acks none nobody knows what was published, so there are no transactions; use leader or all"
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
        transactional_id: str | None = None,
        transaction_timeout: Duration | None = None,
        on_batch: Callable[[Outcome], None] | None = None,
    ) -> None:
        check(
            acks=acks,
            batch_bytes=batch_bytes,
            batch_messages=batch_messages,
            buffer_bytes=buffer_bytes,
            transactional_id=transactional_id,
            on_batch=on_batch,
        )
        bounds = Bounds(
            batch_bytes,
            batch_messages,
            buffer_bytes,
            to_seconds("linger", linger),
            to_seconds("delivery_timeout", delivery_timeout, least_ms=1),
        )
        timeout_ms = (
            None if transaction_timeout is None else to_transaction_ms("transaction_timeout", transaction_timeout)
        )
        if transactional_id is not None and acks == "none":
            raise InvalidRequest(_UNANSWERED)
        host, port, connect_timeout_s, call_timeout_s = link.endpoint

        def make_outlet(identity: Identity | None = None) -> Outlet:
            blocks = BlockProducer(
                host,
                port,
                acks=_ACKS[acks],
                identity=identity,
                connect_timeout_s=connect_timeout_s,
                call_timeout_s=call_timeout_s,
            )
            return Outlet(link, blocks, bounds, on_batch)

        self._loop = asyncio.get_running_loop()
        self._usual = make_outlet()
        """For messages in no transaction."""
        self._use(None)
        self._stage = TransactionStage(
            TransactionWriter(
                link, transactional_id=transactional_id, timeout_ms=timeout_ms, patience_s=bounds.delivery_timeout_s
            ),
            self._usual,
            make_outlet=make_outlet,
            use=self._use,
            settle=self._settle,
            flush=self.flush,
        )
        self._turn = asyncio.Lock()
        """Whose turn it is among those that send and have to wait for room; `_queued` is how many they are."""
        self._queued = 0

    def _use(self, outlet: Outlet | None) -> None:
        """This is how messages go out from now on; None: as usual."""
        self.outlet = outlet = outlet or self._usual
        self.sender = outlet.sender
        self.routes = outlet.routes
        self._early = outlet.early

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
        check_loop(self._loop)
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
        if not self.sender.pumping:  # not each time: to ask for the loop costs as much as a third of all this
            check_loop(self._loop)
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

    async def enqueue_columns(self, topic: str, columns: OutgoingColumns) -> None:
        """Publish messages that are columns already, without one object per message.

        It waits for room, behind those that wait for it already, and not for answers.

        InvalidRecord, with its row as `index`, when one of them is no message: then none of them was enqueued.
        """
        if not self._usual.blocks.is_answered:
            raise InvalidRequest("with acks none nothing can be published by the column; use leader or all")
        to_topic(topic)
        check_loop(self._loop)
        outlet = self.outlet
        began_in = outlet.sender.accumulator.transaction
        self._queued += 1
        try:
            async with self._turn:
                route = await outlet.find(topic)
                await self._put_columns(outlet, began_in, route, columns)
        except InvalidRecord as error:
            error.args = (
                f"row {error.index} is no message for {topic}, which has {route.count} partitions: {error.reason}",
            )
            raise
        finally:
            self._queued -= 1

    async def _put_columns(self, outlet: Outlet, began_in: int | None, route: Route, columns: OutgoingColumns) -> None:
        sender = outlet.sender
        sender.check_transaction(began_in)
        blocks = codec.from_columns(
            columns.rows,
            keys=columns.keys,
            values=columns.values,
            headers=columns.headers,
            lanes=columns.lanes,
            fields=columns.fields,
            partitions=columns.partitions,
            partition_count=route.count,
            keyless=route.turn(),
            max_bytes=sender.accumulator.batch_bytes,
            transaction=sender.accumulator.transaction,
        )
        for partition, block, messages in blocks:
            while True:
                try:
                    sender.put_block(route.places[partition], block, messages)
                    break
                except BufferFull:
                    await self._room(outlet)
                    sender.check_transaction(began_in)

    async def room(self) -> None:
        """Wait until there is room for another batch, and for what was refused; behind sends that wait for it too."""
        check_loop(self._loop)
        await self._behind_sends()
        await self._room(self.outlet)

    async def _behind_sends(self) -> None:
        if self._queued:
            async with self._turn:
                pass

    async def _room(self, outlet: Outlet) -> None:
        sender = outlet.sender
        sender.check_open()
        if sender.room.is_there and not outlet.early.held:
            sender.room.forget_wanted()
            await asyncio.sleep(0)
            return
        await sender.room.wait()
        sender.check_open()

    async def wait_for_room(self, timeout: float, outlet: Outlet) -> None:
        """The same, for so long; BufferFull after that."""
        try:
            async with asyncio.timeout(timeout):
                await self._behind_sends()
                await self._room(outlet)
        except TimeoutError:
            raise BufferFull(f"there was no room for more messages within {timeout} s; is the broker there?") from None

    async def flush(self) -> None:
        """Wait until everything enqueued so far has its answer; raises if some of it failed since the last flush."""
        check_loop(self._loop)
        outlet = self.outlet
        await outlet.flush()
        failure = outlet.receipts.take_failure()
        if failure is not None:
            raise failure

    def transaction(self, *, name: str | None = None, timeout: Duration | None = None) -> AsyncTransaction:
        """What is sent or enqueued while it is open counts as a whole, and what is acked in it. Use it in `async with`.

        `name` is for transactions that are committed together (`commit_many`). After `timeout` the broker aborts it;
        what the producer says if left out, or 60 seconds. A producer has one at a time.
        """
        check(name=name)
        if not self._usual.blocks.is_answered:
            raise InvalidRequest(_UNANSWERED)
        timeout_ms = None if timeout is None else to_transaction_ms("timeout", timeout)
        return AsyncTransaction(self._stage, name=name, timeout_ms=timeout_ms)

    async def _settle(self, outlet: Outlet) -> None:
        """Until what was sent there is in a batch."""
        while self._queued or outlet.early.held:
            await self._behind_sends()
            await outlet.early.flush()
            await asyncio.sleep(0)

    async def close(self) -> None:
        """Flush, and end. What has no answer by the delivery timeout has failed; an open transaction is aborted.

        Who is cancelled here does not wait for the flush: what was not published is discarded, and the log says so.
        """
        if self.closed:
            return
        check_loop(self._loop)
        try:
            await self._stage.end(CLOSE_TIMEOUT_S)
            await self.flush()
        finally:
            await self._discard(self._usual.receipts.unheard, CLOSE_TIMEOUT_S)

    async def leave(self) -> None:
        """Flush for a second at most, and end. What was not published by then is discarded, and the log says so."""
        if self.closed:
            return
        check_loop(self._loop)
        failed_before = self._usual.receipts.unheard
        loop = asyncio.get_running_loop()
        end = loop.time() + LEAVE_S
        try:
            async with asyncio.timeout_at(end):
                await self._stage.end(LEAVE_S)
                await self._usual.flush()
        except TimeoutError:
            pass
        finally:
            await self._discard(failed_before, max(0.0, end - loop.time()))

    async def _discard(self, failed_before: int, patience_s: float) -> None:
        """End. So many had failed when it was decided to end; the log says how many more they are then."""
        try:
            await self.abort(patience_s)
        finally:
            discarded = self._usual.receipts.unheard - failed_before
            if discarded:
                log.warning(
                    "a producer ended, and what the broker had not confirmed was discarded: %d messages", discarded
                )

    async def abort(self, patience_s: float = 0.0) -> None:
        """End now: what has no answer yet fails. What was sent, and takes no answer, has so long to leave."""
        self._usual.sender.stop()
        try:
            await self._stage.end(patience_s)
        finally:
            await self._usual.end(patience_s)
        await asyncio.sleep(0)  # `on_batch` has been told of everything

    async def __aenter__(self) -> Self:
        """With a transactional id it becomes the one that has it: who had it before is fenced off from now on."""
        self._usual.sender.check_open()
        if self._stage.writer.transactional_id is not None:
            try:
                await self._stage.identify()
            except BaseException:
                await self.abort()
                raise
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
        return self._usual.sender.closed

    async def prepare(self, topic: str) -> Route:
        """The partitions of a topic; asked for if they are not known."""
        return await self.outlet.find(to_topic(topic))

    async def _put_in_turn(self, topic: str, message: Outgoing, receiver: Receiver) -> None:
        """As soon as there is room, and not before those that have waited for longer."""
        outlet = self.outlet
        outlet.sender.check_open()
        began_in = outlet.sender.accumulator.transaction
        self._queued += 1
        try:
            async with self._turn:
                while True:
                    outlet.sender.check_transaction(began_in)
                    route = outlet.routes.get(topic)
                    try:
                        if route is None:
                            outlet.early.add(topic, message, receiver)
                        else:
                            outlet.sender.put_for(receiver, route, message)
                        return
                    except BufferFull:
                        await self._room(outlet)
        finally:
            self._queued -= 1
