"""What producers sent and a broker acknowledged, and what readers must therefore find.

Messages know who they are: from producer, partition and number everything in one can be made again, so a reader
can tell a right message from a wrong one. Acknowledged messages must be there, each once, at the offset that was
answered. Messages in doubt (sent, without an answer) may be there, once. Nothing else may be there; offsets have no
gaps; of every producer the messages of a key are in the order they were published in.
"""

import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from goqueue.codec.partitioning import partition_of
from goqueue.model.publishing import Durability
from goqueue.wire.blocks import Range
from tests.chaos.ledger import Lost, Phantom, Violation
from tests.support.patience import PATIENCE_S

PARTITIONS: Final = 3
KEYS: Final = [
    [key for key in (f"key-{number}" for number in range(60)) if partition_of(key.encode(), PARTITIONS) == partition]
    for partition in range(PARTITIONS)
]
"""Of each partition the keys that belong there. All producers use all of them."""
_FILLING: Final = "Whoever sends a message wants to know that it has arrived, and that it arrives once. " * 4


class Duplicated(Violation):
    """A message is there twice."""


class Disordered(Violation):
    """Messages of one producer and key are not in the order they were published in."""


class Identity(NamedTuple):
    """The `number`-th message that a producer sends to a partition."""

    producer: int
    partition: int
    number: int


class Message(NamedTuple):
    """A message as a reader found it."""

    offset: int
    timestamp: int
    key: str | None
    value: str | None


def make(identity: Identity) -> tuple[str, str]:
    """Key and value."""
    producer, partition, number = identity
    keys = KEYS[partition]
    filling = _FILLING[: 20 + (number * 37 + producer * 11) % 200]
    return keys[(number * 7 + producer) % len(keys)], f"{producer}/{partition}/{number}/{filling}"


def identify(partition: int, message: Message) -> Identity | None:
    """Whose message this is; None when it is not exactly what that identity stands for."""
    words = (message.value or "").split("/", 3)
    if len(words) != 4 or not all(word.isdecimal() for word in words[:3]):
        return None
    identity = Identity(*map(int, words[:3]))
    if identity.partition != partition or make(identity) != (message.key, message.value):
        return None
    return identity


class Sent(NamedTuple):
    """A block that was given to a producer: messages `first` up to `first + messages`."""

    producer: int
    partition: int
    first: int
    messages: int
    sent_ms: int


class Answered(NamedTuple):
    """A block and its answer."""

    sent: Sent
    durability: Durability
    ranges: tuple[Range, ...]
    answered_ms: int

    def needed_another_try(self, *, killed_ms: int, dead_ms: int) -> bool:
        """Whether the answer proves that it was sent again after a kill: only the next life can have given it."""
        if self.sent.sent_ms >= killed_ms or self.answered_ms <= dead_ms:
            return False
        return any(each.duplicate or each.timestamp > dead_ms for each in self.ranges)


class Ledger:
    """Written by producers on one thread or several, watched from others."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._sent: Counter[tuple[int, int]] = Counter()
        self._open: set[Sent] = set()
        self.answers: list[Answered] = []
        self._offsets: list[dict[int, Identity]] = [{} for _ in range(PARTITIONS)]
        self._messages = 0
        self._over = False

    # --- what producers say

    def send(self, producer: int, partition: int, messages: int, *, now_ms: int) -> Sent:
        """The next block of a producer for a partition."""
        with self._changed:
            sent = Sent(producer, partition, self._sent[producer, partition], messages, now_ms)
            self._sent[producer, partition] += messages
            self._open.add(sent)
            return sent

    def answer(self, sent: Sent, durability: Durability, ranges: Sequence[Range], *, now_ms: int) -> None:
        offsets = [offset for each in ranges for offset in range(each.first_offset, each.first_offset + each.records)]
        if len(offsets) != sent.messages:
            raise Violation(f"{sent} was answered with {ranges}")
        with self._changed:
            self._open.remove(sent)
            taken = self._offsets[sent.partition]
            for number, offset in enumerate(offsets, sent.first):
                identity = Identity(sent.producer, sent.partition, number)
                if offset in taken:
                    raise Phantom(f"offset {offset} was answered to {taken[offset]} and to {identity}")
                taken[offset] = identity
            self.answers.append(Answered(sent, durability, tuple(ranges), now_ms))
            self._messages += sent.messages
            self._changed.notify_all()

    def finish(self) -> None:
        """No producer has anything more to say."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    # --- watching

    @property
    def acknowledged(self) -> int:
        """Messages."""
        return self._messages

    @property
    def in_doubt(self) -> int:
        """Blocks without an answer."""
        return len(self._open)

    def wait_for(self, messages: int) -> bool:
        """Wait until so many are acknowledged while more are under way; False when it came to its end before."""
        with self._changed:
            return (
                self._changed.wait_for(
                    lambda: self._over or (self._messages >= messages and bool(self._open)), PATIENCE_S
                )
                and not self._over
            )

    # --- what must be there

    def check(self, partition: int, messages: Sequence[Message]) -> None:
        """Everything a reader found from offset 0 on; raises the first violation."""
        offsets = [message.offset for message in messages]
        if offsets != list(range(len(offsets))):
            wrong = next(at for at, offset in enumerate(offsets) if at != offset)
            raise Violation(f"partition {partition}: where offset {wrong} belongs a reader found {offsets[wrong]}")
        found: dict[Identity, int] = {}
        for message in messages:
            identity = identify(partition, message)
            if identity is None or identity.number >= self._sent[identity.producer, partition]:
                raise Phantom(f"partition {partition}: nobody sent {message}")
            if identity in found:
                raise Duplicated(f"{identity} is at offset {found[identity]} and at {message.offset}")
            found[identity] = message.offset
        for offset, identity in self._offsets[partition].items():
            if found.get(identity) != offset:
                raise Lost(f"{identity} was acknowledged at offset {offset} and is at {found.get(identity)}")
        self._check_order(partition, messages)

    def _check_order(self, partition: int, messages: Iterable[Message]) -> None:
        newest: dict[tuple[str | None, int], int] = {}
        for message in messages:
            identity = identify(partition, message)
            assert identity is not None
            where = message.key, identity.producer
            if newest.get(where, -1) > identity.number:
                raise Disordered(f"{message.key}: {identity} comes after number {newest[where]}")
            newest[where] = identity.number

    def check_all(self, reading: Sequence[Sequence[Message]]) -> None:
        """The same for every partition."""
        for partition, messages in enumerate(reading):
            self.check(partition, messages)
