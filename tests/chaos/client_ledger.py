"""What a program that uses the client wrote down, and what it may therefore demand of the log and of its deliveries.

A message is a key and a number; the numbers of a key ascend in the order in which it was published. A program writes a
message down before it hands it to the client, a decision about a delivery before it makes it, and a promise when it has
it. In the end, over whatever brokers died meanwhile:
- the client raised nothing, and refused no decision;
- everything published was acknowledged, and is in the log once, where its receipt says, in the order of its key;
- every group got every message and settled it. A message came again only after it was nacked, and with every delivery
  counted: leases and attempts survive a kill, and an answer that was lost with it is taken back uncounted;
- where a mode keeps order, a key's messages came in order the first time; in mode key, each after the one before it was
  settled.

Knows no broker, client or clock. Each publisher and each group is written by one thread.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from tests.chaos.ledger import Lost, Phantom, Violation

SEPARATOR: Final = b"/"


class Raised(Violation):
    """A program saw an error that the client was to keep from it."""


class Duplicated(Violation):
    """Something published once is in the log more than once."""


class OutOfOrder(Violation):
    """Messages of a key are not in the order they were published in, or did not come in it."""


class DeliveredAgain(Violation):
    """A message came that somebody has, or has settled."""


class Miscounted(Violation):
    """A delivery does not say how often its message was delivered."""


class Stuck(Lost):
    """Something is there, and nobody is delivered it, or nobody can settle it."""


class Name(NamedTuple):
    """Of a message: there is one of each."""

    key: bytes
    number: int

    @property
    def value(self) -> bytes:
        return SEPARATOR.join((self.key, b"%d" % self.number))

    @classmethod
    def of(cls, value: bytes | None) -> "Name":
        key, separator, number = (value or b"").rpartition(SEPARATOR)
        if not separator or not number.isdigit():
            raise Phantom(f"nobody published {value!r}")
        return cls(key, int(number))


class Place(NamedTuple):
    partition: int
    offset: int


Found = tuple[Place, bytes | None, bytes | None]
"""A message of the log: where it is, its key, its value."""


class Mode(StrEnum):
    """How a group shares its messages."""

    PARTITION = "partition"
    SHARED = "shared"
    KEY = "key"


class Decision(StrEnum):
    HELD = "held"
    """None yet: it was delivered, and is this consumer's."""
    NACKED = "nacked"
    ACKED = "acked"


class Publisher:
    """What one producer was given, and what it promised."""

    def __init__(self, ledger: "Ledger") -> None:
        self._ledger = ledger
        self._in_line: dict[int, deque[Name]] = {}
        """By partition: what was enqueued there and has no outcome."""

    def offer(self, name: Name, partition: int | None = None) -> None:
        """It is given to the client now; with a partition, to be told of by the batch."""
        self._ledger.offered.append(name)
        if partition is not None:
            self._in_line.setdefault(partition, deque()).append(name)

    def has_receipt(self, name: Name, place: Place, *, duplicate: bool) -> None:
        self._ledger.promise(name, place)
        self._ledger.repeated += duplicate

    def has_outcome(self, partition: int, first_offset: int | None, messages: int) -> None:
        """The next messages of this partition are there, from this offset on."""
        line = self._in_line.get(partition, deque())
        if first_offset is None or messages > len(line):
            raise Violation(f"{messages} messages at {first_offset} of partition {partition}; {len(line)} have none")
        for offset in range(first_offset, first_offset + messages):
            self._ledger.promise(line.popleft(), Place(partition, offset))

    @property
    def waiting(self) -> int:
        """Enqueued, without an outcome."""
        return sum(map(len, self._in_line.values()))

    def check_flushed(self) -> None:
        """After a flush that nothing was enqueued beside."""
        if self.waiting:
            raise Violation(f"{self.waiting} messages were flushed, and have no outcome")


class Delivery(NamedTuple):
    name: Name
    place: Place
    number: int
    """What it says: how often it was delivered, this time included."""


class Group:
    """What the members of one group got and decided."""

    def __init__(self, name: str, mode: Mode) -> None:
        self.name = name
        self.mode = mode
        self.deliveries = 0
        self.awaited = 0
        """Acks that somebody waited for and was told of."""
        self.late = 0
        """Those among them whose delivery was before a kill."""
        self.nacks = 0
        self.problems: list[Violation] = []
        self.unsettled = 0
        self._times: Counter[Name] = Counter()
        self._places: dict[Name, Place] = {}
        self._decisions: dict[Name, Decision] = {}
        self._last: dict[bytes, int] = {}
        """By key: the highest number that came."""

    def receive(self, delivery: Delivery) -> None:
        """Somebody was handed it."""
        name, place, number = delivery
        self.deliveries += 1
        self._times[name] += 1
        before = self._decisions.get(name)
        if before is None:
            self._receive_first(name, place)
        elif place != self._places[name]:
            self._complain(Duplicated(f"{self.name}: {name} came from {self._places[name]} and from {place}"))
        elif before is not Decision.NACKED:
            self._complain(
                DeliveredAgain(f"{self.name}: {name} at {place}, {before}, came again, as delivery {number}")
            )
        if number != self._times[name]:
            self._complain(
                Miscounted(f"{self.name}: {name} at {place} came for the {self._times[name]}. time, it says {number}.")
            )
        self._decisions[name] = Decision.HELD

    def _receive_first(self, name: Name, place: Place) -> None:
        self.unsettled += 1
        self._places[name] = place
        last = self._last.get(name.key, -1)
        self._last[name.key] = max(last, name.number)
        if self.mode is Mode.SHARED:
            return
        if name.number != last + 1:
            self._complain(OutOfOrder(f"{self.name}: {name} came after number {last}"))
        elif self.mode is Mode.KEY and last >= 0:
            before = self._decisions[Name(name.key, last)]
            if before is not Decision.ACKED:
                self._complain(OutOfOrder(f"{self.name}: {name} came while number {last} was {before}"))

    def decide(self, name: Name, decision: Decision) -> None:
        """Somebody who has it says so now."""
        self.unsettled -= decision is Decision.ACKED
        self.nacks += decision is Decision.NACKED
        self._decisions[name] = decision

    def confirm(self, *, late: bool) -> None:
        """An ack that somebody waited for was done; `late`: the message came in another life of the broker."""
        self.awaited += 1
        self.late += late

    @property
    def settled(self) -> int:
        return len(self._decisions) - self.unsettled

    def check(self, log: Mapping[Name, Place]) -> None:
        if self.problems:
            raise self.problems[0]
        for name, place in self._places.items():
            if log.get(name) != place:
                raise Phantom(f"{self.name}: {name} was delivered from {place}, and is at {log.get(name)}")
        missed = log.keys() - self._places.keys()
        if missed:
            raise Stuck(f"{self.name}: {len(missed)} messages never came, like {min(missed)} at {log[min(missed)]}")
        left = [name for name, decision in self._decisions.items() if decision is not Decision.ACKED]
        if left:
            raise Stuck(f"{self.name}: {len(left)} messages were not settled, like {left[0]} at {log[left[0]]}")

    def _complain(self, problem: Violation) -> None:
        self.problems.append(problem)


class Ledger:
    """All of it."""

    def __init__(self) -> None:
        self.offered: list[Name] = []
        self.promised: dict[Name, Place] = {}
        self.repeated = 0
        """Receipts that say that an earlier attempt had appended the message."""
        self.groups: dict[str, Group] = {}
        self.raised: list[Raised] = []

    def group(self, name: str, mode: Mode) -> Group:
        """The same for all its members."""
        return self.groups.setdefault(name, Group(name, mode))

    def deliveries(self, group: str) -> int:
        """Also of one that nobody has joined yet."""
        return self.groups[group].deliveries if group in self.groups else 0

    def promise(self, name: Name, place: Place) -> None:
        if name in self.promised:
            raise Violation(f"{name} was acknowledged at {self.promised[name]}, and then at {place}")
        self.promised[name] = place

    def hear_of(self, where: str, error: BaseException) -> None:
        """The client raised this, or told it to a callback."""
        raised = Raised(f"{where}: {type(error).__name__}: {error}")
        raised.__cause__ = error
        self.raised.append(raised)

    @property
    def in_doubt(self) -> int:
        """Messages the client was given, and has not promised anything about."""
        return len(self.offered) - len(self.promised)

    def check_so_far(self) -> None:
        for problem in (*self.raised, *(each for group in self.groups.values() for each in group.problems)):
            raise problem

    def check(self, found: Iterable[Found]) -> None:
        """When everything is said and done."""
        self.check_so_far()
        log = self.check_log(found)
        for group in self.groups.values():
            group.check(log)

    def check_log(self, found: Iterable[Found]) -> dict[Name, Place]:
        """When everything is published: what is there must be that, and nothing else."""
        log: dict[Name, Place] = {}
        last: dict[bytes, Name] = {}
        offered = set(self.offered)
        for place, key, value in sorted(found):
            name = Name.of(value)
            if name not in offered or key != name.key:
                raise Phantom(f"{place} holds {value!r} with key {key!r}, which nobody published")
            if name in log:
                raise Duplicated(f"{name} is at {log[name]} and at {place}; promised was {self.promised.get(name)}")
            before = last.get(name.key)
            if before is not None and (before.number > name.number or log[before].partition != place.partition):
                raise OutOfOrder(f"{name} at {place} is behind {before} at {log[before]}")
            log[name] = place
            last[name.key] = name
        for name, place in self.promised.items():
            if log.get(name) != place:
                raise Lost(f"{name} was promised at {place}, and is {f'at {log[name]}' if name in log else 'nowhere'}")
        if len(log) != len(self.offered):
            missing = next(name for name in self.offered if name not in log)
            raise Lost(f"{len(self.offered) - len(log)} messages were never appended, like {missing}")
        unpromised = len(log) - len(self.promised)
        if unpromised:
            raise Violation(f"{unpromised} messages are in the log without anybody being told")
        return log
