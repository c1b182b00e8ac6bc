"""What publishers hear of their messages: a receipt or an error each, an outcome per batch, failures at the flush.

It knows topics, partitions and replies, but no batches, lines or connections. What receivers and callbacks do with
what they hear happens later, in a turn of the loop of its own.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from goqueue.model.errors import GoQueueError
from goqueue.model.names import message_id
from goqueue.model.publishing import Durability
from goqueue.wire.blocks import PublishReply
from goqueue.wire.failures import repeat

NO_PARTITION: Final = -1
"""Of messages that failed before it was known which partition they belong to."""
_DURABILITIES: Final = tuple(level.name.lower() for level in Durability)


class Receipt(NamedTuple):
    """Where a message is. With acks "none" nobody knows: offset and timestamp are None."""

    topic: str
    partition: int
    offset: int | None
    timestamp: int | None
    """When it was appended, in Unix milliseconds."""
    durability: str
    """What it had reached when the answer was sent: none, written, replicated or durable."""
    duplicate: bool = False
    """It was appended by an earlier attempt whose answer was lost."""

    @property
    def message_id(self) -> str | None:
        return None if self.offset is None else message_id(self.topic, self.partition, self.offset)


class Outcome(NamedTuple):
    """What became of a batch of messages, or of those of a batch that were refused and went no further."""

    topic: str
    partition: int
    messages: int
    first_offset: int | None
    error: GoQueueError | None


class Receiver(Protocol):
    """Who waits for one message: a future, of asyncio or of threads."""

    def done(self) -> bool: ...
    def set_result(self, receipt: Receipt, /) -> None: ...
    def set_exception(self, error: GoQueueError, /) -> None: ...


def refuse(receivers: Iterable[Receiver], error: GoQueueError) -> None:
    """Each its own copy of the error."""
    for receiver in receivers:
        if not receiver.done():
            receiver.set_exception(repeat(error))


class Receipts:
    """Messages without a receiver that failed are counted until `take_failure`, which a flush calls."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_batch: Callable[[Outcome], None] | None) -> None:
        self._loop = loop
        self._on_batch = on_batch
        self.unheard = 0
        """Messages that failed, and nobody waited for them; all there ever were."""
        self._failed = 0
        self._failure: GoQueueError | None = None
        """Why the first one did."""
        self.trouble: GoQueueError | None = None
        """Why the first message failed since this was last None, whoever has heard of it."""

    def succeed(
        self,
        topic: str,
        partition: int,
        messages: int,
        receivers: Sequence[tuple[int, Receiver]],
        reply: PublishReply,
    ) -> None:
        """A batch was appended. Receivers come with the index of their message, in ascending order."""
        if receivers:
            _hand_out(topic, partition, receivers, reply)
        if self._on_batch is not None:
            first = reply.ranges[0].first_offset if reply.ranges else None
            self._tell(Outcome(topic, partition, messages, first, None))

    def fail(
        self, topic: str, partition: int, messages: int, receivers: Sequence[Receiver], error: GoQueueError
    ) -> None:
        """So many messages failed, and these want to hear of their own."""
        self.trouble = self.trouble or repeat(error)
        self.unheard += messages - sum([not receiver.done() for receiver in receivers])
        refuse(receivers, error)
        enqueued = messages - len(receivers)
        if enqueued:
            self._failed += enqueued
            self._failure = self._failure or repeat(error)
        self._tell(Outcome(topic, partition, messages, None, error))

    def refuse(self, receivers: Sequence[Receiver], error: GoQueueError) -> None:
        """Messages that got no further, and these want to hear of them."""
        if receivers:
            self.trouble = self.trouble or repeat(error)
        refuse(receivers, error)

    def take_failure(self) -> GoQueueError | None:
        """Of what was enqueued since it was last asked for."""
        failed, self._failed = self._failed, 0
        failure, self._failure = self._failure, None
        if failure is not None:
            failure.add_note(f"{failed} enqueued messages failed since the last flush; this is the first one's error")
        return failure

    def _tell(self, outcome: Outcome) -> None:
        """Soon, not now: what users do then, and what goes wrong there, must not meet a line that is being settled."""
        if self._on_batch is not None:
            self._loop.call_soon(self._on_batch, outcome)


def _hand_out(topic: str, partition: int, receivers: Sequence[tuple[int, Receiver]], reply: PublishReply) -> None:
    """Each receiver its own receipt."""
    durability = _DURABILITIES[reply.durability]
    if not reply.ranges:
        for _, receiver in receivers:
            if not receiver.done():
                receiver.set_result(Receipt(topic, partition, None, None, durability))
        return
    ranges = iter(reply.ranges)
    records, first, timestamp, duplicate = next(ranges)
    begin = 0
    for index, receiver in receivers:
        while index >= begin + records:
            begin += records
            records, first, timestamp, duplicate = next(ranges)
        if not receiver.done():
            receiver.set_result(Receipt(topic, partition, first + index - begin, timestamp, durability, duplicate))
