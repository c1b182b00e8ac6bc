"""Dead letters on their way: an outbox. Each has a number, which is its sequence when it is published.

The intent is written first; when it is durable the letter is published under its number, by a producer of the
partition's own, so that one published again is recognised; when that is durable the intent is done. Whatever happens in
between, a letter is written once. Numbers are never skipped: a letter whose message was lost is void, and something
else is published in its place.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from goqueue.delivery.records import MOST_BYTES, HeldDeath, Mourned, Reason
from goqueue.model.names import GroupNumber

_DEATH_BYTES: Final = 48
"""What one takes in a record, at most, beside its detail."""


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

    def to_records(self) -> Iterator[Mourned]:
        """As many as are needed for none to be too large; one, if there are no letters."""
        first, size = self.first, 0
        deaths: list[HeldDeath] = []
        for death in self._deaths:
            taken = _DEATH_BYTES + len(death.detail.encode())
            if deaths and size + taken > MOST_BYTES:
                yield Mourned(first, tuple(deaths))
                first, size = first + len(deaths), 0
                deaths = []
            deaths.append(HeldDeath(*death))
            size += taken
        yield Mourned(first, tuple(deaths))

    def restore(self, record: Mourned) -> None:
        """Add what one of them says. Raises a ValueError when one before it is missing."""
        if not self._deaths:
            self.first = record.first
        elif record.first != self.next:
            raise ValueError(f"the next dead letter has number {self.next}, not {record.first}")
        self._deaths.extend(Death(*held) for held in record.deaths)
