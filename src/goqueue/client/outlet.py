"""One way out for messages: where they go, those that came early, their batches, and who hears what became of them.

A producer has one for messages in no transaction, and another one for those that are in one: so what was put into one
of them stays there, whatever happens to the other. It knows no transactions: it counts what was published and what
failed, and whoever wants to know for a while sets that back.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from goqueue.client.accumulator import Batch
from goqueue.client.block_producer import BlockProducer
from goqueue.client.early import EarlyMessages
from goqueue.client.link import Link
from goqueue.client.receipts import Outcome, Receipts, Receiver
from goqueue.client.routes import Route, Routes
from goqueue.client.sending import Sender
from goqueue.model.errors import GoQueueError, Unavailable, UnknownPartition, UnknownTopic
from goqueue.wire.blocks import PublishReply


class Bounds(NamedTuple):
    """Of batches, and of what waits."""

    batch_bytes: int
    batch_messages: int
    buffer_bytes: int
    linger_s: float
    delivery_timeout_s: float


class Outlet:
    """Made inside its loop; parts are used directly by who publishes."""

    def __init__(
        self, link: Link, blocks: BlockProducer, bounds: Bounds, on_batch: Callable[[Outcome], None] | None
    ) -> None:
        self.blocks = blocks
        self.receipts = Receipts(asyncio.get_running_loop(), on_batch)
        self.sender = Sender(
            blocks,
            batch_bytes=bounds.batch_bytes,
            batch_messages=bounds.batch_messages,
            buffer_bytes=bounds.buffer_bytes,
            linger_s=bounds.linger_s,
            delivery_timeout_s=bounds.delivery_timeout_s,
            on_done=self._on_done,
            on_dropped=self._on_dropped,
            on_ended=self._on_ended,
        )
        self._routes = Routes(link, self.sender.place, self.sender.retire, timeout_s=bounds.delivery_timeout_s)
        self.routes = self._routes.known
        """Topics that can be published to at once; none when nothing can be published any more."""
        self.early = EarlyMessages(self._routes, self.sender, self.receipts)
        self.published = 0
        """Messages that were appended."""

    @property
    def is_quiet(self) -> bool:
        """Whether everything has its answer."""
        return not self.sender.accumulator.buffers.held and not self.early.held

    async def find(self, topic: str) -> Route:
        """The partitions of a topic; asked for if they are not known."""
        self.sender.check_open()
        return self.routes.get(topic) or await self.early.wait_for(topic)

    async def flush(self) -> None:
        """Wait until everything so far has its answer."""
        await self.early.flush()
        await self.sender.flush()

    async def end(self, patience_s: float, why: GoQueueError | None = None) -> None:
        """What has no answer yet fails. What was sent, and takes no answer, has so long to leave."""
        if why is not None:
            self.sender.shut(why)
            self.blocks.end(why)
        self.sender.stop()
        tasks = [*self._routes.close(), *self.early.close(why or Unavailable("the producer was closed"))]
        await self.sender.close(patience_s)
        if tasks:
            await asyncio.wait(tasks)

    def _on_done(self, batch: Batch, outcome: PublishReply | GoQueueError) -> None:
        topic, line = batch.place.topic, batch.place.line
        if isinstance(outcome, PublishReply):
            self.published += batch.count
            self.receipts.succeed(topic, line.partition, batch.count, batch.receivers, outcome)
            return
        if isinstance(outcome, UnknownTopic | UnknownPartition):
            self._routes.forget(topic, line.topic_id)
        if isinstance(outcome, UnknownTopic):
            outcome = UnknownTopic(
                f"topic {topic!r} was deleted, with what was published to it; publish again: it goes to the new one of "
                "that name, if there is one"
            )
        receivers = [receiver for _, receiver in batch.receivers]
        self.receipts.fail(topic, line.partition, batch.count, receivers, outcome)

    def _on_dropped(self, batch: Batch, error: GoQueueError, told: list[Receiver]) -> None:
        """One message of a batch was refused, and the others go on."""
        self.receipts.fail(batch.place.topic, batch.place.line.partition, 1, told, error)

    def _on_ended(self) -> None:
        self.routes.clear()
