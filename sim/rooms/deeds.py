"""What the world knows of transactions and messages, whatever becomes of the broker: what was sent, what was answered.

A transaction is a deed. Its writer was told that messages are in it, or does not know; in the end it was told that it
is committed, or aborted, or does not know that either. What partitions show of it is remembered: it may never change.
"""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from goqueue.model.names import GroupNumber
from goqueue.transactions.records import Participant

Value = int
"""What is in a message; no two have the same."""


class Message(NamedTuple):
    part: Participant
    number: int
    """Of its transaction; 0 for none."""
    key: bytes | None
    deliver_at: int | None


class Ack(NamedTuple):
    group: GroupNumber
    part: Participant
    value: Value


class Deed:
    """One transaction."""

    def __init__(self, number: int, *, began: int, timeout_ms: int, name: str = "") -> None:
        self.number = number
        self.name = name
        self.began = began
        """On a clock that runs while a broker does."""
        self.lives_at = began
        """When it began, or its broker was started again."""
        self.timeout_ms = timeout_ms
        self.stepped = False
        """The wall's clock was set meanwhile: after a restart nobody knows how long it was open."""
        self.written: set[Value] = set()
        self.unsure: set[Value] = set()
        """Sent, without an answer."""
        self.acks: set[Ack] = set()
        self.unsure_acks: set[Ack] = set()
        self.told: bool | None = None
        """Whether it is committed, as somebody was told."""
        self.shown: bool | None = None
        """The same, as partitions or the coordinator have shown it."""


class Deeds:
    def __init__(self) -> None:
        self.by_number: dict[int, Deed] = {}
        self.messages: dict[Value, Message] = {}
        self.cleaned: set[Value] = set()
        self.cleaning: dict[Participant, set[Value]] = {}
        """Those that a pass of the cleaner may take: of passes under way when the broker died."""
        self.acked: set[Ack] = set()
        """Outside of transactions, answered or not."""
        self.kept: set[Ack] = set()
        """Of those, the ones that no crash can undo any more."""
        self.leases: Counter[tuple[GroupNumber, Value]] = Counter()
        self.fuzzy: set[Value] = set()
        """Of these the broker may have forgotten a lease, or has one that nobody was told of."""
        self.epochs: dict[str, int] = {}
        """By transactional id, the last epoch that was answered."""
        self.tokens: dict[str, int] = {}
        """By name, the last token that was answered."""
        self.batches: dict[tuple[str, int], list[frozenset[int]]] = {}
        """By name and token, what somebody wanted to commit under it."""
        self._last = 0

    def new_value(self, message: Message) -> Value:
        self._last += 1
        self.messages[self._last] = message
        return self._last

    def tell(self, number: int, committed: bool) -> None:
        deed = self.by_number[number]
        deed.told = committed
        if committed and deed.shown is None:
            deed.shown = True

    def of(self, values: Iterable[Value]) -> dict[int, set[Value]]:
        """By transaction."""
        found: dict[int, set[Value]] = {}
        for value in values:
            found.setdefault(self.messages[value].number, set()).add(value)
        return found

    def counts(self, ack: Ack) -> bool:
        """Whether a group may be done with a message: it said so, or in a transaction that is committed."""
        if ack in self.acked:
            return True
        deeds = self.by_number.values()
        return any(deed.shown is True and (ack in deed.acks or ack in deed.unsure_acks) for deed in deeds)
