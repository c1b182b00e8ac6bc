"""Dead letters on their way: an outbox. Each has a number, which is its sequence when it is published.

The intent is written first; when it is durable the letter is published under its number, by a producer of the
partition's own, so that one published again is recognised; when that is durable the intent is done. Whatever happens in
between, a letter is written once. Numbers are never skipped: a letter whose message was lost is void, and something
else is published in its place.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from goqueue.delivery.records import HeldDeath, Mourned, Reason
from goqueue.model.names import GroupNumber


class Death(NamedTuple):
    """A message that a group is not delivered any more, and why."""

    group: GroupNumber
    offset: int
    reason: Reason
    deliveries: int
    at: int
    detail: str
    void: bool = False


class Outbox:
    """Of one partition, over all groups."""

    __slots__ = ("_deaths", "first")

    def __init__(self) -> None:
        self.first = 0
        """The number of the first that is not done."""
        self._deaths: deque[Death] = deque()

    def __len__(self) -> int:
        return len(self._deaths)

    def __iter__(self) -> Iterator[Death]:
        """In the order of their numbers, from `first` on."""
        return iter(self._deaths)

    @property
    def next(self) -> int:
        """The number of the next one to come."""
        return self.first + len(self._deaths)

    def add(self, deaths: Iterable[Death]) -> None:
        self._deaths.extend(deaths)

    def done(self, below: int) -> list[Death]:
        """Those with numbers below `below` are published."""
        found = []
        while self.first < below and self._deaths:
            found.append(self._deaths.popleft())
            self.first += 1
        return found

    def void(self, end: int) -> None:
        """Messages from `end` on were lost."""
        self._deaths = deque(death._replace(void=death.void or death.offset >= end) for death in self._deaths)

    def to_record(self) -> Mourned:
        return Mourned(self.first, tuple(HeldDeath(*death) for death in self._deaths))

    def restore(self, record: Mourned) -> None:
        self.first = record.first
        self._deaths = deque(Death(*held) for held in record.deaths)
