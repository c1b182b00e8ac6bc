"""The blocks of one partition in line for their answers: who is sent next, with which sequence, and who has failed.

Up to `WINDOW` blocks are under way. When one comes back with anything but success the line is troubled: no further
one is sent until all under way have their answer. Then `settle` puts the line in order and it goes on:

- A block is *in doubt* once an attempt of it had no answer, or an error that does not say nothing changed. It is
  sent again under the same producer id with the same sequence, or not at all.
- A block that is not in doubt may get other sequences. So when a block is refused for good its sequences are free:
  those behind it, refused as out of sequence, move up and are sent again, in order. The same when a block loses the one
  record it was refused for (`Block.drop`).
- When a block in doubt leaves the line, nobody can say whether its sequences are used. The line goes on under a
  new producer id, which nothing sent before can collide with; other blocks in doubt fail as well.

The reason for the last rule: an attempt nobody answered may still reach the broker later, over the old connection.
Had another block got its sequences, the broker would take one of the two for a repetition and drop it.

It sends nothing itself and knows no connection, timer or backoff.
"""

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
    TransactionAborted,
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
    """A block of records and what became of it. Whoever wants to hear of that overrides `finish`."""

    __slots__ = ("answer", "count", "done", "freed", "in_doubt", "records", "sends", "sequence")

    def __init__(self, records: Bytes, count: int) -> None:
        self.records = records
        self.count = count
        self.done = False
        """Whether its publisher has, or wants, no more to hear."""
        self.freed = 0
        """Sequences that a record it lost has left to those behind it."""
        self.sequence: int | None = None
        """Of its first record; None until it is sent under the line's present identity."""
        self.answer: PublishReply | GoQueueError | None = None
        """To the last attempt; None while that is under way."""
        self.in_doubt = False
        self.sends = 0
        """How often it was taken to be sent."""

    @property
    def may_be_appended(self) -> bool:
        return self.in_doubt or (self.sequence is not None and self.answer is None)

    def finish(self, outcome: PublishReply | GoQueueError) -> None:
        """Told once, when it is done."""

    def succeed(self, reply: PublishReply) -> None:
        if not self.done:
            self.done = True
            self.finish(reply)

    def fail(self, error: GoQueueError) -> None:
        """With this error; not with one that says nothing changed while an earlier attempt may have appended it.

        Of a transaction that was aborted nothing counts, whatever was appended.
        """
        if not self.done:
            in_doubt = self.may_be_appended and not isinstance(error, TransactionAborted)
            certain = not in_doubt or not isinstance(error, NOTHING_CHANGED)
            self.done = True
            self.finish(error if certain else Unavailable(f"{IN_DOUBT} ({error})"))

    def drop(self, error: GoQueueError) -> bool:
        """Go on without the record that the error is about, and count it in `freed`; False when that cannot be."""
        return False


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
        """Attempts in a row after which every block was still in line, with all its records."""
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
                if block.done:  # given up before anybody but us has seen it
                    continue
                block.sequence = self._next_sequence
                self._next_sequence = (block.sequence + block.count) % SEQUENCES
            block.answer = None
            block.sends += 1
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
            block.succeed(answer)
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
            elif not answer.retriable and (block.done or block.in_doubt or not block.drop(answer)):
                block.fail(answer)
            back.append(block)
        lost_some = any(block.freed for block in back)
        self.under_way.clear()
        self.waiting.extendleft(reversed(back))
        self._troubled = False
        self.tidy()
        if renew:
            self._renew()
        self.failures = 0 if lost_some or any(block.done for block in back) else self.failures + 1

    def tidy(self) -> None:
        """Take out blocks that are done with; those behind them move up to the sequences that are free now."""
        kept: deque[Block] = deque()
        free = 0
        renew = False
        for block in self.waiting:
            if block.done:
                if block.sequence is not None:
                    renew = renew or block.in_doubt
                    free += block.count
                continue
            kept.append(block)
            if block.sequence is not None and free:
                renew = renew or block.in_doubt
                block.sequence = (block.sequence - free) % SEQUENCES
            free += block.freed
            block.freed = 0
        self.waiting = kept
        self._next_sequence = (self._next_sequence - free) % SEQUENCES
        if renew:
            self._renew()

    def forget_unsent(self) -> None:
        """Take out blocks that are done with and have no sequence: at any time, since nobody else knows of them."""
        if any(block.done and block.sequence is None for block in self.waiting):
            self.waiting = deque(block for block in self.waiting if not block.done or block.sequence is not None)

    def fail(self, error: GoQueueError) -> None:
        """Every block fails with this error; what is under way stays so until its answer comes."""
        for block in (*self.under_way, *self.waiting):
            block.fail(repeat(error))

    def _renew(self) -> None:
        """Begin again under a new producer id, with the blocks that are certainly not in the log."""
        for block in [*self.waiting]:  # who hears of a failure may bring the next one
            block.sequence = None
            if block.in_doubt:
                block.fail(Unavailable(IN_DOUBT))
        self.waiting = deque(block for block in self.waiting if not block.in_doubt)
        if self.identity is not None:
            self.former, self.identity = self.identity, None
        self._next_sequence = 0
