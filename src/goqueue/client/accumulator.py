"""Messages on their way out: packed into the buffer of their partition's open batch, batch after batch.

Per message there is no object: a message is bytes in a buffer, and a count. What waits is bounded by the buffers, not
by the messages. Buffers begin small and grow with what their partition gets; those of batches that were answered are
used again. It sends nothing and knows no clock or loop; a lock of the caller's may keep a thread that adds apart from
one that takes.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from goqueue import codec
from goqueue.client.line import Block, Line
from goqueue.client.receipts import Receiver
from goqueue.codec import pack_into
from goqueue.model import limits
from goqueue.model.errors import BufferFull, GoQueueError, InvalidRecord
from goqueue.wire.blocks import PublishReply

FIRST_BUFFER_BYTES: Final = 16 * limits.KIB

OnDone = Callable[["Batch", PublishReply | GoQueueError], None]
"""Hears of a batch, once, when it is done."""
OnDropped = Callable[["Batch", GoQueueError, list[Receiver]], None]
"""Hears that a batch goes on without a message, why, and who waits for that message."""


class Flusher(Protocol):
    """Who waits until a batch is done, whatever became of it."""

    def done(self) -> bool: ...
    def set_result(self, nothing: None, /) -> None: ...


class Buffers:
    """Memory for batches, never more than the limit; but one buffer may always be taken, whatever its size."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self.wanted = 0
        """The largest buffer that was refused since somebody waited for one."""
        self._idle: dict[int, list[bytearray]] = {}
        self._idle_bytes = 0

    def has_room(self, size: int) -> bool:
        return not self.held or self.held + size <= self.limit

    def _check_room(self, size: int) -> None:
        if not self.has_room(size):
            self.wanted = max(self.wanted, size)
            raise BufferFull(
                f"{self.held} bytes of messages wait to be published, and {self.limit} may; wait for room, or give "
                "the producer a larger buffer"
            )

    def take(self, size: int) -> bytearray:
        """BufferFull when there is no room."""
        self._check_room(size)
        self.held += size
        idle = self._idle.get(size)
        if idle:
            self._idle_bytes -= size
            return idle.pop()
        if self.held + self._idle_bytes > self.limit:
            self._idle.clear()
            self._idle_bytes = 0
        return bytearray(size)

    def adopt(self, buffer: bytearray) -> None:
        """The same for one that was made elsewhere."""
        self._check_room(len(buffer))
        self.held += len(buffer)

    def give(self, buffer: bytearray, *, again: bool) -> None:
        """`again`: nobody reads it any more, so it can be used again."""
        size = len(buffer)
        self.held -= size
        if again and self.held + self._idle_bytes + size <= self.limit:
            self._idle.setdefault(size, []).append(buffer)
            self._idle_bytes += size


class Batch(Block):
    """Messages of one partition. `receivers` want to hear of single ones: index, and whom to tell."""

    __slots__ = ("_on_done", "adopted", "buffer", "deadline", "flushers", "opened_at", "place", "receivers", "used")

    def __init__(self, place: "Place", buffer: bytearray, on_done: OnDone, *, adopted: bool = False) -> None:
        super().__init__(b"", 0)
        self.place = place
        self.buffer = buffer
        self.adopted = adopted
        """The buffer was made elsewhere, of a size of its own: it is of no use to another batch."""
        self.used = 0
        self.opened_at = 0.0
        self.deadline = 0.0
        self.receivers: list[tuple[int, Receiver]] = []
        self.flushers: list[Flusher] = []
        self._on_done = on_done

    def seal(self) -> None:
        """Nothing is added any more."""
        self.records = memoryview(self.buffer)[: self.used]

    def finish(self, outcome: PublishReply | GoQueueError) -> None:
        self._on_done(self, outcome)

    def drop(self, error: GoQueueError) -> bool:
        """The broker refused one message: the others go without it, and only its receiver hears of the error."""
        index = error.index
        if index is None or not 0 <= index < self.count or self.count == 1:
            return False
        positions = [*codec.scan(self.records).positions, len(self.records)]
        if len(positions) != self.count + 1:
            return False
        start, end = positions[index], positions[index + 1]
        # Another copy: the former bytes may still be on their way out of an old connection.
        self.records = bytearray(self.records[:start]) + self.records[end:]
        self.count -= 1
        self.freed += 1
        told = [receiver for at, receiver in self.receivers if at == index]
        self.receivers = [(at - (at > index), receiver) for at, receiver in self.receivers if at != index]
        self.place.on_dropped(self, error, told)
        return True


class Place:
    """One partition of one topic, as a producer sees it."""

    __slots__ = ("buffer_bytes", "line", "on_dropped", "open", "sealed", "topic")

    def __init__(self, topic: str, line: Line, on_dropped: OnDropped) -> None:
        self.topic = topic
        self.line = line
        self.open: Batch | None = None
        """Where messages are added now."""
        self.sealed: deque[Batch] = deque()
        """Those that are to be sent next."""
        self.buffer_bytes = FIRST_BUFFER_BYTES
        """How large its batches have become."""
        self.on_dropped = on_dropped


class Accumulator:
    """`on_done` hears of every batch that is done."""

    def __init__(
        self, *, batch_bytes: int, batch_messages: int, buffer_bytes: int, numbered: bool, on_done: OnDone
    ) -> None:
        self.buffers = Buffers(buffer_bytes)
        self.batch_bytes = batch_bytes
        self._batch_messages = batch_messages
        self._numbered = numbered
        self._on_done = on_done
        self.transaction: int | None = None
        """The number of the one that what is added belongs to."""

    def add(
        self,
        place: Place,
        value: bytes | None,
        key: bytes | None,
        priority: int,
        headers: Sequence[tuple[str, bytes]] = (),
        deliver_at: int | None = None,
        expires_at: int | None = None,
        event_time: int | None = None,
    ) -> Batch:
        """The batch that the message is in now, as its last one. When it raises nothing was added."""
        batch = place.open
        if batch is None:
            batch = self._open(place, min(place.buffer_bytes, self.batch_bytes))
        numbered, transaction = self._numbered, self.transaction
        try:
            end = pack_into(
                batch.buffer, batch.used, value, key, priority, headers, deliver_at, expires_at, event_time, numbered,
                transaction,
            )  # fmt: skip
        except BaseException as error:
            self._close_empty(place, batch)
            if isinstance(error, InvalidRecord):  # which record of what is nothing that its sender knows
                error.args = (f"this message is not valid: {error.reason}",)
            raise
        if end < 0:
            batch = self._make_room(place, batch, -end)
            end = pack_into(
                batch.buffer, batch.used, value, key, priority, headers, deliver_at, expires_at, event_time, numbered,
                transaction,
            )  # fmt: skip
        batch.used = end
        batch.count += 1
        if batch.count >= self._batch_messages:
            self.seal(place)
        return batch

    def add_block(self, place: Place, block: bytearray, count: int) -> Batch:
        """Messages that are packed already, as a batch of their own behind what was added before."""
        self.buffers.adopt(block)
        self.seal(place)
        batch = Batch(place, block, self._on_done, adopted=True)
        batch.used, batch.count = len(block), count
        batch.seal()
        place.sealed.append(batch)
        return batch

    def seal(self, place: Place) -> None:
        """What was added up to now is one batch."""
        batch = place.open
        if batch is not None and batch.count:
            place.open = None
            if batch.used < len(batch.buffer) // 4:
                place.buffer_bytes = max(FIRST_BUFFER_BYTES, place.buffer_bytes // 2)
            batch.seal()
            place.sealed.append(batch)

    def _open(self, place: Place, size: int) -> Batch:
        batch = place.open = Batch(place, self.buffers.take(size), self._on_done)
        return batch

    def _close_empty(self, place: Place, batch: Batch) -> None:
        """Nothing is in it and nobody knows of it: its buffer would be held by nobody."""
        if not batch.count:
            place.open = None
            self.buffers.give(batch.buffer, again=True)

    def _make_room(self, place: Place, batch: Batch, needed: int) -> Batch:
        """A batch that has room for so many bytes more."""
        wanted = batch.used + needed
        if wanted <= self.batch_bytes or not batch.count:
            size = len(batch.buffer)
            while size < wanted:
                size *= 2
            size = max(wanted, min(size, self.batch_bytes))
            if not batch.count or self.buffers.has_room(size):
                self._grow(batch, size)
                place.buffer_bytes = min(size, self.batch_bytes)
                return batch
        self.seal(place)
        return self._open(place, max(needed, min(place.buffer_bytes, self.batch_bytes)))

    def _grow(self, batch: Batch, size: int) -> None:
        """Into a larger buffer. An empty batch gives its own back first, and is gone when there is none for it."""
        old = batch.buffer
        if not batch.count:
            batch.place.open = None
            self.buffers.give(old, again=True)
            batch.buffer = self.buffers.take(size)
            batch.place.open = batch
        else:
            batch.buffer = self.buffers.take(size)
            batch.buffer[: batch.used] = memoryview(old)[: batch.used]
            self.buffers.give(old, again=True)
