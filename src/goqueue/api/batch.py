"""The messages of one request on their way to the broker: records in, blocks by partition out.

For every door that has messages one by one. Without a producer id a bad message fails alone. With one, all messages are
for one partition and a bad one refuses them all, because a gap in the sequence would make the next request fail.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from goqueue import codec
from goqueue.broker.publish import Publisher, Receipt
from goqueue.broker.topic import OpenTopic
from goqueue.codec.layout import SortedBlock
from goqueue.codec.partitioning import partition_of
from goqueue.model import limits
from goqueue.model.errors import GoQueueError, InvalidRecord, InvalidRequest
from goqueue.model.publishing import Acks
from goqueue.model.record import Producer, Record

STEP: Final = 16
"""Messages that are looked at without a pause."""
_ENCODED_AT_ONCE: Final = 256
_ENCODED_AT_ONCE_BYTES: Final = 256 * limits.KIB
"""How much of a partition is gathered before it is encoded."""
_HEADER_BYTES: Final = 64
"""What a header counts for: many small objects would be many for the garbage collector, too."""


def partition_for(record: Record, ordinal: int, topic: OpenTopic, producer: Producer | None) -> int:
    """Where a message goes that names no partition, and has a key or stands alone."""
    if producer is not None:
        raise InvalidRequest(f"message {ordinal} names no partition; with producer_id every message must")
    count = len(topic.slots)
    return topic.round_robin.next(count) if record.key is None else partition_of(record.key, count)


Made = tuple[int, int | None, Record] | None
"""A good message: which of its request it is, the partition it names, and what is stored. None: it was refused."""


class Sent(NamedTuple):
    """Messages that went to one partition: which of the request they are, and where they are now."""

    partition: int
    ordinals: Sequence[int]
    receipt: Receipt


class Refused(NamedTuple):
    """Messages that were refused for the same reason, and how often that counts as a failure."""

    ordinals: Sequence[int]
    error: GoQueueError
    failures: int


class _PartitionShare:
    """The messages of a request that are for one partition, on their way into blocks.

    They go into several when they are many, unless the share has to stay whole: messages that are numbered are stored
    all or none.
    """

    __slots__ = ("_blocks", "_is_whole", "_open", "_ordinals", "_partition", "_records", "_size")

    def __init__(self, partition: int, *, is_whole: bool) -> None:
        self._partition = partition
        self._is_whole = is_whole
        self._blocks: list[SortedBlock] = []
        self._open: SortedBlock | None = None
        """The block that is not full."""
        self._ordinals: list[int] = []
        self._records: list[Record] = []
        """Those that are not in a block yet, and which messages of the request they are."""
        self._size = 0
        """Of their values and headers, about."""

    def add(self, ordinal: int, record: Record) -> bool:
        """Whether there are so many that they should be encoded."""
        self._ordinals.append(ordinal)
        self._records.append(record)
        self._size += _HEADER_BYTES * len(record.headers) + (0 if record.value is None else len(record.value))
        return self._size > _ENCODED_AT_ONCE_BYTES or len(self._records) >= _ENCODED_AT_ONCE

    def encode(self, refuse: Callable[[int, InvalidRecord], None]) -> None:
        """What was added; `refuse` is told of a message that breaks a limit, and may raise."""
        ordinals, records = self._ordinals, self._records
        self._ordinals, self._records, self._size = [], [], 0
        while records:
            try:
                self._append(array("H", ordinals), codec.encode(records))
                return
            except InvalidRecord as error:
                bad = error.index or 0
                del records[bad]
                refuse(ordinals.pop(bad), error)

    def _append(self, ordinals: "array[int]", encoded: bytearray) -> None:
        last = self._open
        if last is not None and (self._is_whole or len(last.block) + len(encoded) <= limits.APPENDED_AT_ONCE_BYTES):
            last.ordinals.extend(ordinals)
            last.block.extend(encoded)
        else:
            self._open = SortedBlock(self._partition, ordinals, encoded)
            self._blocks.append(self._open)

    def take(self) -> list[SortedBlock]:
        """All blocks, which it has no longer."""
        found, self._blocks, self._open = self._blocks, [], None
        return found


class Batch:
    """The messages of one request on their way: sorted by partition, and each partition's appended as one block.

    With a producer a refusal is raised; its error says by itself if it is about one message.
    """

    __slots__ = (
        "_acks", "_publisher", "_refused_alone", "_refused_together", "_shares", "producer", "sent", "topic",
        "transaction",
    )  # fmt: skip

    def __init__(
        self,
        publisher: Publisher,
        topic: OpenTopic,
        acks: Acks,
        producer: Producer | None,
        transaction: int | None = None,
    ) -> None:
        """`transaction` is one that the one who asks may write in, and that the messages carry."""
        self._publisher = publisher
        self._acks = acks
        self.transaction = transaction
        self.topic = topic
        self.producer = producer
        self._shares: dict[int, _PartitionShare] = {}
        """What was sorted, by partition."""
        self.sent: list[Sent] = []
        self._refused_together: list[Refused] = []
        """What went to one partition, and was refused as a whole."""
        self._refused_alone: dict[tuple[str, str, str | None], tuple[array[int], GoQueueError]] = {}
        """Messages that were refused each for itself, by what is said of them: often that is the same."""

    @property
    def is_refused_in_part(self) -> bool:
        return bool(self._refused_alone or self._refused_together)

    @property
    def refused(self) -> list[Refused]:
        alone = [Refused(ordinals, error, len(ordinals)) for ordinals, error in self._refused_alone.values()]
        return alone + self._refused_together

    def sort(self, made: Iterable[Made], given: int | None = None) -> Iterator[None]:
        """Into blocks by partition, in steps of a few messages, good or bad. None is stored before all are read."""
        topic, producer, shares = self.topic, self.producer, self._shares
        count = len(topic.slots)
        turn: int | None = None
        for looked_at, message in enumerate(made, 1):
            if not looked_at % STEP:
                yield
            if message is None:
                continue
            ordinal, partition, record = message
            if partition is None:
                if given is not None:
                    partition = given
                elif producer is None and record.key is not None:
                    partition = partition_of(record.key, count)
                elif record.key is None and turn is not None:
                    partition = turn
                else:
                    partition = partition_for(record, ordinal, topic, producer)
                    turn = partition if record.key is None else turn
            share = shares.get(partition)
            if share is None:
                share = shares[partition] = _PartitionShare(partition, is_whole=producer is not None)
            if share.add(ordinal, record):
                share.encode(self.refuse_one)
        for share in shares.values():
            share.encode(self.refuse_one)
            yield
        if producer is not None and len(shares) > 1:
            raise InvalidRequest(
                "the messages name different partitions; with producer_id send one partition at a time"
            )

    def append(self, check: Callable[[], None] | None = None) -> Iterator[None]:
        """What was sorted: a step for each block. `check` raises if it may not be stored any more."""
        for share in self._shares.values():
            yield from self.append_blocks(share.take(), check)

    def append_blocks(self, blocks: Iterable[SortedBlock], check: Callable[[], None] | None = None) -> Iterator[None]:
        """Messages that are sorted; with a producer they are for one partition. A step for each block."""
        for block in blocks:
            for part in (block,) if self.producer is not None else _cut(block):
                if check is not None:
                    check()
                self._publish_block(part)
                yield

    def refuse_one(self, ordinal: int, error: GoQueueError) -> None:
        """Refuse one message; with a producer, raise and so refuse the request. Reasons that repeat are kept once."""
        if self.producer is not None:
            error.index = ordinal
            raise error
        reason = error.code, str(error), error.field
        found = self._refused_alone.get(reason)
        if found is None:
            self._refused_alone[reason] = array("H", (ordinal,)), error.bare()
        else:
            found[0].append(ordinal)

    async def safe(self) -> None:
        """Until the answer may go out. What was lost meanwhile is refused."""
        for sent in tuple(self.sent):
            try:
                await sent.receipt.safe()
            except GoQueueError as error:
                self.sent.remove(sent)
                self._refuse(sent.ordinals, error)

    def _publish_block(self, sorted_block: SortedBlock) -> None:
        partition, ordinals, block = sorted_block
        try:
            receipt = self._publisher.publish(
                self.topic,
                partition,
                memoryview(block),
                acks=self._acks,
                producer=self.producer,
                transaction=self.transaction,
            )
        except GoQueueError as error:
            self._refuse(ordinals, error)
        else:
            self.sent.append(Sent(partition, ordinals, receipt))  # it may wait, and there may be many

    def _refuse(self, ordinals: Sequence[int], error: GoQueueError) -> None:
        if self.producer is not None:  # a gap in the sequence would make the next request fail
            raise error
        self._refused_together.append(Refused(ordinals, error, 1))


def _cut(block: SortedBlock) -> Iterator[SortedBlock]:
    """Into blocks that are appended at once."""
    partition, ordinals, records = block
    if len(records) <= limits.APPENDED_AT_ONCE_BYTES:
        yield block
        return
    ends = [*codec.scan(records).positions[1:], len(records)]
    first = start = 0
    for place, end in enumerate(ends, 1):
        if end == len(records) or ends[place] - start > limits.APPENDED_AT_ONCE_BYTES:
            yield SortedBlock(partition, ordinals[first:place], records[start:end])
            first, start = place, end
