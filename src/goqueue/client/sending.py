"""Messages into batches, and when these go out.

A batch is sent when it is full, when it has lingered, or, without a linger or if somebody waits for one of its
messages, as soon as nothing of its partition is under way: while an answer is on its way the next batch fills. A batch
without an answer by its deadline has failed.

Packing and bounds are the business of `client.accumulator`; blocks, order, retries and duplicates that of `client.line`
and `client.block_producer`. It does not know who hears what became of a batch, nor how topics are found.
"""

import asyncio
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from goqueue.client.accumulator import Accumulator, Batch, OnDone, OnDropped, Place
from goqueue.client.arguments import Duration
from goqueue.client.block_producer import BlockProducer
from goqueue.client.line import Line
from goqueue.client.outgoing import (
    LANES,
    Content,
    Headers,
    Moment,
    Outgoing,
    to_bytes,
    to_due,
    to_expiry,
    to_headers,
    to_lane,
    to_moment,
    to_partition,
)
from goqueue.client.receipts import Receiver
from goqueue.client.room import Room
from goqueue.client.routes import Route
from goqueue.client.topics import Topic
from goqueue.codec import murmur3
from goqueue.model.errors import GoQueueError, RequestTimeout, TransactionAborted, Unavailable, UnknownPartition
from goqueue.wire.blocks import PublishReply
from goqueue.wire.failures import repeat

SWEEP_S: Final = 0.5
"""How often batches are looked at for those whose time is up."""
_NO_BUFFER: Final = bytearray()
_AS_THEY_ARE: Final = nullcontext()


class Sender:
    """`put` may be called from another thread, with the lock; everything else belongs to the loop.

    `on_done` hears of every batch that is done, `on_dropped` of messages that batches lost, `on_ended` that nothing can
    be published any more.
    """

    def __init__(
        self,
        blocks: BlockProducer,
        *,
        batch_bytes: int,
        batch_messages: int,
        buffer_bytes: int,
        linger_s: float,
        delivery_timeout_s: float,
        on_done: OnDone,
        on_dropped: OnDropped,
        on_ended: Callable[[], None],
    ) -> None:
        self._blocks = blocks
        blocks.on_answered = self._on_answered
        self._linger_s = linger_s
        self._delivery_timeout_s = delivery_timeout_s
        self._tell_done = on_done
        self._on_dropped = on_dropped
        self._on_ended = on_ended
        self.lock = threading.RLock()
        """Held while batches are taken from those who add messages in another thread."""
        self.accumulator = Accumulator(
            batch_bytes=batch_bytes,
            batch_messages=batch_messages,
            buffer_bytes=buffer_bytes,
            numbered=blocks.is_answered,
            on_done=self._on_done,
        )
        self._add: Callable[..., Batch] = self.accumulator.add
        self.room = Room(self.accumulator.buffers, batch_bytes, on_wanted=self.schedule)
        self._places: dict[Line, Place] = {}
        self._retired: set[Line] = set()
        """Of topics that are gone, and not done yet."""
        self._dirty: dict[Place, None] = {}
        """Where something may have to be sent."""
        self._loop = asyncio.get_running_loop()
        self.pumping = False
        """Whether `pump` will be called soon."""
        self._pump_at: asyncio.TimerHandle | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._outstanding = 0
        """Batches that were sent and are not done."""
        self.closed = False
        self._shut: GoQueueError | None = None
        """Why nothing may be put, for now or for good."""

    def open_for(self, transaction: int) -> None:
        """What is put from now on belongs to it. Nothing may be left of what was put before."""
        with self.lock:
            self.accumulator.transaction = transaction
            self._shut = None
            self._add = self.accumulator.add

    def shut(self, why: GoQueueError) -> None:
        """Nothing may be put from now on; what was put goes on."""
        with self.lock:
            self._shut = why
            self._add = self._refuse

    def _refuse(self, *_: object) -> Batch:
        assert self._shut is not None
        raise repeat(self._shut)

    def check_transaction(self, began_in: int | None) -> None:
        """For who waited: what was to be put into a transaction is not put into the next one."""
        if self.accumulator.transaction != began_in:
            raise TransactionAborted("its transaction has ended while this message waited; it was not enqueued")

    def check_open(self) -> None:
        if self._shut is not None:
            raise repeat(self._shut)
        if self.closed:
            raise Unavailable("this producer is closed; make another one")
        if self._blocks.failure is not None:
            raise repeat(self._blocks.failure)

    def place(self, topic: Topic, partition: int) -> Place:
        line = self._blocks.line(topic.topic_id, partition)
        place = self._places.get(line)
        if place is None:
            place = self._places[line] = Place(topic.name, line, self._on_dropped)
        return place

    def retire(self, places: Iterable[Place]) -> None:
        """Their topic is gone: they go too, once nothing of them has to be answered."""
        for place in places:
            self._retired.add(place.line)
            self._drop_retired(place)

    def _drop_retired(self, place: Place) -> None:
        line = place.line
        if place.open is None and not place.sealed and not line.under_way and not line.waiting:
            self._retired.discard(line)
            self._places.pop(line, None)
            self._blocks.forget(line)

    # ------------------------------------------------------------------ from messages to batches

    def put(
        self,
        route: Route,
        value: Content | None,
        key: Content | None,
        partition: int | None,
        headers: Headers,
        priority: str | int,
        delay: Duration | None,
        deliver_at: Moment | None,
        ttl: Duration | None,
        event_time: Moment | None,
    ) -> Batch:
        """Into the batch of its partition; raises when it cannot be a message, or there is no room."""
        if value.__class__ is not bytes and value is not None:
            value = to_bytes(value, "value")
        if key.__class__ is not bytes and key is not None:
            key = to_bytes(key, "key")
        if partition is not None:
            if partition.__class__ is not int:
                partition = to_partition(partition)
            if not 0 <= partition < route.count:
                raise UnknownPartition(f"there is no partition {partition}; the topic has {route.count}, from 0 on")
            place = route.places[partition]
        elif key is not None:
            place = route.places[murmur3(key) % route.count]
        else:
            place = route.places[route.partition]
            if place.open is None:  # its last batch is on its way: the next one goes elsewhere
                place = route.places[route.turn()]
        try:
            lane = LANES[priority]
        except (KeyError, TypeError):
            lane = to_lane(priority)
        if delay is None and deliver_at is None and ttl is None and event_time is None and not headers:
            batch = self._add(place, value, key, lane)
        else:
            batch = self._add(
                place, value, key, lane,
                to_headers(headers),
                to_due(delay, deliver_at),
                None if ttl is None else to_expiry(ttl),
                None if event_time is None else to_moment(event_time, "event_time"),
            )  # fmt: skip
        if batch.count == 1:
            batch.opened_at = now = self._loop.time()
            batch.deadline = now + self._delivery_timeout_s
            self._dirty[place] = None
        return batch

    def put_block(self, place: Place, block: bytearray, count: int) -> None:
        """Messages that are packed already; sent at once. BufferFull when there is no room."""
        if self._shut is not None:
            raise repeat(self._shut)
        with self.lock:
            batch = self.accumulator.add_block(place, block, count)
        batch.opened_at = now = self._loop.time()
        batch.deadline = now + self._delivery_timeout_s
        self.submit(place)

    def put_for(self, receiver: Receiver | None, route: Route, message: Outgoing) -> None:
        """The same, for somebody who waits for it."""
        with self.lock:
            batch = self.put(route, *message)
            if receiver is not None:
                batch.receivers.append((batch.count - 1, receiver))

    # ------------------------------------------------------------------ sending

    def schedule(self) -> None:
        """Look soon, after whoever else has a turn now, whether something is to be sent."""
        if not self.pumping:
            self._loop.call_soon(self.pump)
            self.pumping = True

    def pump(self) -> None:
        """Send what may go now; come back when the next batch has lingered."""
        self.pumping = False
        now = self._loop.time()
        earliest: float | None = None
        places = [*self._dirty]
        with self._together(places):
            for place in places:
                at = self._pump_place(place, now)
                if at is not None:
                    earliest = at if earliest is None else min(at, earliest)
        if earliest is not None and self._pump_at is None:
            self._pump_at = self._loop.call_at(earliest, self._pump_later)

    def _together(self, places: list[Place]) -> AbstractContextManager[None]:
        """Batches of several places leave in one piece, unless somebody waits for one of their messages."""
        if len(places) < 2:
            return _AS_THEY_ARE
        with self.lock:
            batches = [batch for place in places for batch in (*place.sealed, place.open) if batch is not None]
        if any(batch.receivers for batch in batches):
            return _AS_THEY_ARE
        return self._blocks.together()

    def _pump_later(self) -> None:
        self._pump_at = None
        self.pump()

    def _pump_place(self, place: Place, now: float) -> float | None:
        """When to come back for what lingers."""
        with self.lock:
            batch = place.open
            if batch is not None and batch.count:
                if self._linger_s and not batch.receivers and self._blocks.failure is None:
                    if now < batch.opened_at + self._linger_s and not self.room.is_wanted:
                        if place.sealed:
                            self.submit(place)
                        return batch.opened_at + self._linger_s
                    self.accumulator.seal(place)
                elif self._is_idle(place.line) and not place.sealed:
                    self.accumulator.seal(place)
            self.submit(place)
            if place.open is None:
                self._dirty.pop(place, None)
            return None

    def _is_idle(self, line: Line) -> bool:
        """Whether the next batch of a partition need not wait to become larger."""
        return not (line.under_way or line.waiting) or self._blocks.failure is not None

    def submit(self, place: Place) -> None:
        """Send the batches of a place that nothing is added to any more."""
        if place.sealed and place.line not in self._places:  # it was added by the route of a topic that is gone
            self._places[place.line] = place
            self._retired.add(place.line)
        while place.sealed:
            self._outstanding += 1
            self._blocks.submit(place.line, place.sealed.popleft())
        if self._sweeper is None and not self.closed:
            self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)

    def _submit_open(self, place: Place) -> None:
        with self.lock:
            self.accumulator.seal(place)
        self.submit(place)

    # ------------------------------------------------------------------ answers, or none

    def _on_answered(self, line: Line) -> None:
        """A partition has less under way than a moment ago."""
        if self._blocks.failure is not None:
            self._on_ended()  # so that nobody adds to batches that go nowhere
        place = self._places.get(line)
        if place is None:
            return
        if line in self._retired:
            self._drop_retired(place)
        if place.sealed or (place.open is not None and self._is_idle(line)):
            self.schedule()  # not now: who has just got a receipt may have the next message for this batch

    def _on_done(self, batch: Batch, outcome: PublishReply | GoQueueError) -> None:
        self._outstanding -= 1
        buffer, batch.buffer = batch.buffer, _NO_BUFFER
        # An answer says that the broker has read all of what it answers. Without one, or when the same bytes went out
        # before over a connection that was lost, they may still be on their way out from where they are.
        answered = isinstance(outcome, PublishReply) and self._blocks.is_answered
        if answered:
            batch.records = b""
        with self.lock:
            self.accumulator.buffers.give(buffer, again=answered and batch.sends == 1 and not batch.adopted)
        self._tell_done(batch, outcome)
        for flusher in batch.flushers:
            if not flusher.done():
                flusher.set_result(None)
        self.room.on_returned()

    def _sweep(self) -> None:
        """Fail what has waited for too long."""
        self._sweeper = None
        if not self._outstanding:
            return
        now = self._loop.time()
        for place in [*self._places.values()]:
            line = place.line
            if not line.under_way and not line.waiting:
                continue
            filling = place.open
            if filling is not None and filling.count and filling.deadline <= now:  # behind others for so long
                self._submit_open(place)
            for batch in (*line.under_way, *line.waiting):
                if isinstance(batch, Batch) and not batch.done and batch.deadline <= now:
                    batch.fail(self._too_late(batch, line))
            line.forget_unsent()
        self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)

    def _too_late(self, batch: Batch, line: Line) -> RequestTimeout:
        known = "they may have been appended" if batch.may_be_appended else "they were not appended"
        trouble = f"; the last trouble: {line.last_trouble}" if line.last_trouble is not None else ""
        return RequestTimeout(
            f"{batch.count} messages had no answer within {self._delivery_timeout_s} s; {known}{trouble}"
        )

    # ------------------------------------------------------------------ all of it, and the end

    async def flush(self) -> None:
        """Send everything now, and wait until it is done."""
        waits: list[asyncio.Future[None]] = []
        places = dict.fromkeys([*self._places.values(), *self._dirty])
        with self._blocks.together():
            for place in places:
                self._submit_open(place)
        for place in places:
            for batch in (*place.line.under_way, *place.line.waiting):
                if isinstance(batch, Batch) and not batch.done:
                    future: asyncio.Future[None] = self._loop.create_future()
                    batch.flushers.append(future)
                    waits.append(future)
        if waits:
            await asyncio.wait(waits)
        else:
            await asyncio.sleep(0)  # what was answered a moment ago is told first

    def stop(self) -> None:
        """Nothing more may be put, and no timer goes off."""
        self.closed = True
        for timer in (self._pump_at, self._sweeper):
            if timer is not None:
                timer.cancel()
        self._pump_at = self._sweeper = None

    async def close(self, patience_s: float) -> None:
        """What has no answer yet fails. What was sent has so long to leave."""
        self.room.wake()
        await self._blocks.close(patience_s)
        for place in dict.fromkeys([*self._places.values(), *self._dirty]):
            self._submit_open(place)
