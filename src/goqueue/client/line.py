"""The blocks of one partition in line for their answers: who is sent next, with which sequence, and who has failed.

Up to `WINDOW` blocks are under way. When one comes back with anything but success the line is troubled: no further
one is sent until all under way have their answer. Then `settle` puts the line in order and it goes on:

- A block is *in doubt* once an attempt of it had no answer, or an error that does not say nothing changed. It is
  sent again under the same producer id with the same sequence, or not at all.
- A block that is not in doubt may get other sequences. So when a block is refused for good its sequences are free:
  those behind it, refused as out of sequence, move up and are sent again, in order.
- When a block in doubt leaves the line, nobody can say whether its sequences are used. The line goes on under a
  new producer id, which nothing sent before can collide with; other blocks in doubt fail as well.

The reason for the last rule: an attempt nobody answered may still reach the broker later, over the old connection.
Had another block got its sequences, the broker would take one of the two for a repetition and drop it.

It sends nothing itself and knows no connection, timer or backoff.
"""

import asyncio
from collections import deque
from typing import Annotated, Final

import msgspec

from goqueue.model import limits
from goqueue.model.errors import (
    Busy,
    Conflict,
    DiskFull,
    GoQueueError,
    InvalidRequest,
    OutOfSequence,
    Unavailable,
    UnknownProducer,
)
from goqueue.model.record import Producer
from goqueue.wire.blocks import PublishReply
from goqueue.wire.failures import repeat
from goqueue.wire.frames import Bytes

WINDOW: Final = limits.REMEMBERED_RUNS
"""Blocks of one partition under way. The broker recognises as many when they all come again, and no more."""
SEQUENCES: Final = 2**31
NOTHING_CHANGED: Final = (InvalidRequest, Conflict, UnknownProducer, Busy, DiskFull)
"""Refusals that say that this attempt has not appended the block, and never will. An unknown topic is not among them:
it may have gone while the answer waited for an fsync."""

IN_DOUBT: Final = (
    "the block may have been appended, and the broker can no longer tell; look before you publish it again"
)


class Identity(msgspec.Struct, frozen=True):
    """As whom a line publishes; what init_producer answers."""

    producer_id: Annotated[int, msgspec.Meta(ge=0)]
    epoch: Annotated[int, msgspec.Meta(ge=0)]


class Block:
    """A block of records and what became of it. `outcome` is done when its publisher has, or wants, no more to hear."""

    __slots__ = ("answer", "count", "in_doubt", "outcome", "records", "sequence")

    def __init__(self, records: Bytes, count: int, outcome: asyncio.Future[PublishReply]) -> None:
        self.records = records
        self.count = count
        self.outcome = outcome
        self.sequence: int | None = None
        """Of its first record; None until it is sent under the line's present identity."""
        self.answer: PublishReply | GoQueueError | None = None
        """To the last attempt; None while that is under way."""
        self.in_doubt = False

    @property
    def may_be_appended(self) -> bool:
        return self.in_doubt or (self.sequence is not None and self.answer is None)

    def fail(self, error: GoQueueError) -> None:
        """With this error; not with one that says nothing changed while an earlier attempt may have appended it."""
        if not self.outcome.done():
            certain = not self.may_be_appended or not isinstance(error, NOTHING_CHANGED)
            self.outcome.set_exception(error if certain else Unavailable(f"{IN_DOUBT} ({error})"))


class Line:
    """`identity` is None when a producer id other than the `former` is needed before anything can be sent."""

    def __init__(self, topic_id: int, partition: int) -> None:
        self.topic_id = topic_id
        self.partition = partition
        self.identity: Identity | None = None
        self.former: Identity | None = None
        self.under_way: deque[Block] = deque()
        self.waiting: deque[Block] = deque()
        self.last_trouble: GoQueueError | None = None
        self.failures = 0
        """Attempts in a row after which every block was still in line."""
        self._next_sequence = 0
        self._troubled = False

    @property
    def troubled(self) -> bool:
        return self._troubled

    @property
    def to_settle(self) -> bool:
        """Whether a troubled line has all its answers."""
        return self._troubled and all(block.answer is not None for block in self.under_way)

    def take(self) -> tuple[Block, Producer] | None:
        """The next block to send, which is then under way; None when nothing may be sent now."""
        if self._troubled or self.identity is None or len(self.under_way) >= WINDOW:
            return None
        while self.waiting:
            block = self.waiting.popleft()
            if block.sequence is None:
                if block.outcome.done():  # given up before anybody but us has seen it
                    continue
                block.sequence = self._next_sequence
                self._next_sequence = (block.sequence + block.count) % SEQUENCES
            block.answer = None
            self.under_way.append(block)
            return block, Producer(self.identity.producer_id, self.identity.epoch, block.sequence)
        return None

    def on_answer(self, block: Block, answer: PublishReply | GoQueueError) -> None:
        """What came back for a block under way; no answer at all is `Unavailable`."""
        block.answer = answer
        if isinstance(answer, GoQueueError):
            self._troubled = True
            self.last_trouble = answer
            block.in_doubt = block.in_doubt or not isinstance(answer, NOTHING_CHANGED)
        else:
            self.failures = 0
            if not block.outcome.done():
                block.outcome.set_result(answer)
        while self.under_way and isinstance(self.under_way[0].answer, PublishReply):
            self.under_way.popleft()

    def settle(self) -> None:
        """Put a troubled line in order, now that everything under way has its answer."""
        back: list[Block] = []
        renew = False
        for block in self.under_way:
            answer = block.answer
            if not isinstance(answer, GoQueueError):
                # Appended behind a block that was not: these sequences are past trusting.
                renew = renew or not all(earlier.in_doubt for earlier in back)
                continue
            if isinstance(answer, OutOfSequence | UnknownProducer):
                if not back:  # not because of one before it: the broker and this line disagree, or it was forgotten
                    renew = True
                    if isinstance(answer, OutOfSequence):
                        block.fail(answer)
            elif not answer.retriable:
                block.fail(answer)
            back.append(block)
        self.under_way.clear()
        self.waiting.extendleft(reversed(back))
        self._troubled = False
        self.tidy()
        if renew:
            self._renew()
        self.failures = self.failures + 1 if all(not block.outcome.done() for block in back) else 0

    def tidy(self) -> None:
        """Take out blocks that are done with; those behind them move up to the sequences that are free now."""
        kept: deque[Block] = deque()
        free = 0
        renew = False
        for block in self.waiting:
            if block.outcome.done():
                if block.sequence is not None:
                    renew = renew or block.in_doubt
                    free += block.count
                continue
            kept.append(block)
            if block.sequence is not None and free:
                renew = renew or block.in_doubt
                block.sequence = (block.sequence - free) % SEQUENCES
        self.waiting = kept
        self._next_sequence = (self._next_sequence - free) % SEQUENCES
        if renew:
            self._renew()

    def fail(self, error: GoQueueError) -> None:
        """Every block fails with this error; what is under way stays so until its answer comes."""
        for block in (*self.under_way, *self.waiting):
            block.fail(repeat(error))

    def _renew(self) -> None:
        """Begin again under a new producer id, with the blocks that are certainly not in the log."""
        for block in self.waiting:
            block.sequence = None
            if block.in_doubt:
                block.fail(Unavailable(IN_DOUBT))
        self.waiting = deque(block for block in self.waiting if not block.in_doubt)
        if self.identity is not None:
            self.former, self.identity = self.identity, None
        self._next_sequence = 0
