"""What the members of a group saw, and what the broker that served them must therefore have done.

A member writes down what it is told, what it receives, every commit before it goes out and after its answer, and how
it ends: in memory, or as lines of a file, which survive its kill. Times are those of the machine's monotonic clock in
nanoseconds, which all its processes share.

The demands: a partition has one owner per assignment epoch, and its epochs grow; work whose commit was answered is
never delivered again; every message was received and settled by who received it; only those who died, or were cut off,
leave work to be done again. A commit without an answer may have been done or not.
"""

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from tests.chaos.ledger import Lost, Violation

NO_ANSWER: Final = "?"
DONE: Final = ""
LEFT: Final = "left"
_FILLING: Final = b"/" + b"work " * 20


class DeliveredAgain(Violation):
    """Somebody was delivered what was settled, or what a member that lives has."""


class TwoOwners(Violation):
    """A partition was with two members in one assignment epoch, or its epochs did not grow."""


class Refused(Violation):
    """A commit was refused that had to be accepted, or the other way round."""


def value_of(partition: int, offset: int) -> bytes:
    """The message that belongs at an offset: one producer per partition numbers them."""
    return b"%d/%d" % (partition, offset) + _FILLING


# ---------------------------------------------------------------- events


class Event(msgspec.Struct, frozen=True, tag_field="event"):
    at: int


class Joined(Event, frozen=True, tag="joined"):
    member_id: str
    generation: int
    instance_id: str | None = None


class Told(Event, frozen=True, tag="told"):
    """What it has, and what it is to give up."""

    generation: int
    assigned: tuple[int, ...]
    revoke: tuple[int, ...]


class Released(Event, frozen=True, tag="released"):
    """It goes on, having been told to give these up, and has finished with them."""

    partitions: tuple[int, ...]


class Received(Event, frozen=True, tag="received"):
    """Offsets `first` up to `end`. The assignment epoch is from `low` to `high`: over HTTP it is not told."""

    partition: int
    low: int
    high: int
    generation: int
    """Of the group when it was delivered, at least."""
    first: int
    end: int
    deliveries: int


class Committing(Event, frozen=True, tag="committing"):
    number: int
    offsets: dict[int, int]


class Answered(Event, frozen=True, tag="answered"):
    """`code` is of the error, DONE, or NO_ANSWER; `refused` are the partitions that a NotOwner names."""

    number: int
    code: str
    refused: tuple[int, ...] = ()


class Ended(Event, frozen=True, tag="ended"):
    """LEFT, or something else that says how."""

    how: str


class Failed(Event, frozen=True, tag="failed"):
    """The member could not go on."""

    reason: str


AnyEvent = Joined | Told | Released | Received | Committing | Answered | Ended | Failed

_decoder: Final = msgspec.json.Decoder(AnyEvent)


class EventFile:
    """Lines that are there once `write` has returned, whatever happens to the process."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, event: AnyEvent) -> None:
        os.write(self._fd, msgspec.json.encode(event) + b"\n")


class Tail:
    """A file of events that grows; `read` brings `events` up to date."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events: list[AnyEvent] = []
        self._position = 0

    def read(self) -> list[AnyEvent]:
        if self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self._position)
                whole, newline, _ = file.read().rpartition(b"\n")
            self._position += len(whole) + len(newline)
            self.events += (_decoder.decode(line) for line in whole.splitlines())
        return self.events


# ---------------------------------------------------------------- lives


class Life:
    """One member id from its join to its end."""

    def __init__(self, name: str, joined: Joined) -> None:
        self.name = name
        self.joined = joined
        self.events: list[AnyEvent] = []

    @property
    def member_id(self) -> str:
        return self.joined.member_id

    @property
    def received(self) -> Iterator[Received]:
        return (event for event in self.events if isinstance(event, Received))

    @property
    def end(self) -> Ended | None:
        return next((event for event in self.events if isinstance(event, Ended)), None)

    @property
    def left(self) -> bool:
        return self.end is not None and self.end.how == LEFT

    @property
    def refusals(self) -> list[Answered]:
        return [event for event in self.events if isinstance(event, Answered) and event.code not in (DONE, NO_ANSWER)]

    @property
    def strange_refusals(self) -> list[Answered]:
        """Refusals of commits that nobody can have done already: one without an answer may have been the last."""
        offsets: dict[int, dict[int, int]] = {}
        doubtful: set[tuple[int, int]] = set()
        found = []
        for event in self.events:
            if isinstance(event, Committing):
                offsets[event.number] = event.offsets
            elif isinstance(event, Answered) and event.code == NO_ANSWER:
                doubtful.update(offsets[event.number].items())
            elif isinstance(event, Answered) and event.code != DONE:
                refused = {part: offset for part, offset in offsets[event.number].items() if part in event.refused}
                if not event.refused or not doubtful.issuperset(refused.items()):
                    found.append(event)
        return found

    def released_at(self, partition: int, after: int, before: int) -> int | None:
        """When it said for the last time in between that it is done with a partition: by going on, or by a commit."""
        moments = [
            event.at
            for event in self.events
            if after <= event.at <= before
            and (
                (isinstance(event, Released) and partition in event.partitions)
                or (isinstance(event, Committing) and partition in event.offsets)
            )
        ]
        if self.left and self.end is not None and after <= self.end.at <= before:
            moments.append(self.end.at)
        return max(moments, default=None)

    def __str__(self) -> str:
        return f"{self.name} ({self.member_id})"


def lives_of(name: str, events: Iterable[AnyEvent]) -> list[Life]:
    """A process may have joined several times, one after the other."""
    lives: list[Life] = []
    for event in events:
        if isinstance(event, Failed):
            raise Violation(f"{name} could not go on: {event.reason}")
        if isinstance(event, Joined):
            lives.append(Life(name, event))
        if lives:
            lives[-1].events.append(event)
    return lives


class Open(NamedTuple):
    """Offsets that a member received and may settle."""

    received: Received
    first: int
    end: int


class Settlement(NamedTuple):
    """Offsets that a commit settled, or may have settled if it has no answer."""

    at: int
    life: Life
    received: Received
    first: int
    end: int


class _Work:
    """What one life has under way, event after event."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._open: dict[int, list[Open]] = {}
        self._sent: dict[int, list[Open]] = {}
        self.settled: list[Settlement] = []
        self.doubtful: list[Settlement] = []

    def add(self, event: AnyEvent) -> None:
        if isinstance(event, Received):
            held = self._open.setdefault(event.partition, [])
            if held and held[-1].received.high != event.high:  # it had lost the partition meanwhile
                held.clear()
            held.append(Open(event, event.first, event.end))
        elif isinstance(event, Committing):
            self._sent[event.number] = [
                each._replace(end=min(each.end, offset))
                for partition, offset in event.offsets.items()
                for each in self._open.get(partition, ())
                if each.first < offset
            ]
        elif isinstance(event, Answered):
            pieces = self._sent.pop(event.number)
            if event.code == NO_ANSWER:
                self.doubtful += (Settlement(event.at, self._life, *each) for each in pieces)
            elif event.code == DONE or event.refused:
                done = [each for each in pieces if each.received.partition not in event.refused]
                self.settled += (Settlement(event.at, self._life, *each) for each in done)
                for each in done:
                    held = self._open[each.received.partition]
                    held[:] = [other for other in held if other.end > each.end]

    def finish(self) -> None:
        for pieces in self._sent.values():
            self.doubtful += (Settlement(each.received.at, self._life, *each) for each in pieces)

    @property
    def is_busy(self) -> bool:
        return bool(self._sent) or any(self._open.values())


def has_work(events: Iterable[AnyEvent], at: int) -> bool:
    """Whether a member had at that time received something, and no answer that it is settled."""
    work = None
    for event in events:
        if event.at > at:
            break
        if isinstance(event, Joined):
            work = _Work(Life("", event))
        if work is not None:
            work.add(event)
    return work is not None and work.is_busy


# ---------------------------------------------------------------- what must be true


class Delivery(NamedTuple):
    """What a life received, in the order of time over all lives."""

    at: int
    life: Life
    received: Received


class History:
    """Everything that all lives of a group saw of one topic."""

    def __init__(self, lives: Sequence[Life]) -> None:
        self.lives = lives
        self.settled: list[Settlement] = []
        self.doubtful: list[Settlement] = []
        self.deliveries: dict[int, list[Delivery]] = defaultdict(list)
        """By partition."""
        for life in lives:
            work = _Work(life)
            for event in life.events:
                work.add(event)
                if isinstance(event, Received):
                    self.deliveries[event.partition].append(Delivery(event.at, life, event))
            work.finish()
            self.settled += work.settled
            self.doubtful += work.doubtful
        for found in self.deliveries.values():
            found.sort(key=lambda delivery: delivery.at)

    def check(self, ends: Mapping[int, int]) -> None:
        """`ends` says where each partition ends; everything below is to be settled."""
        self.check_owners()
        self.check_settled_work()
        self.check_repetitions()
        self.check_completeness(ends)

    def check_owners(self) -> None:
        """One owner in one assignment epoch; epochs grow."""
        for partition, deliveries in self.deliveries.items():
            owners: dict[int, Life] = {}
            vague: list[Delivery] = []
            newest: Delivery | None = None
            for delivery in deliveries:
                received = delivery.received
                if newest is not None and received.high < newest.received.low:
                    raise TwoOwners(
                        f"partition {partition}: {delivery.life} received {received} after {newest.received}, "
                        f"which is of a later assignment epoch"
                    )
                newest = delivery
                if received.low != received.high:
                    vague.append(delivery)
                elif owners.setdefault(received.high, delivery.life) is not delivery.life:
                    raise TwoOwners(
                        f"partition {partition}, assignment epoch {received.high}: "
                        f"{owners[received.high]} and {delivery.life}"
                    )
            for _, life, received in vague:
                for epoch in range(received.high, received.generation + 1):
                    if owners.get(epoch, life) is not life:
                        raise TwoOwners(
                            f"partition {partition} was with {life} from generation {received.high} at the latest to "
                            f"{received.generation}, and with {owners[epoch]} in assignment epoch {epoch}"
                        )

    def check_settled_work(self) -> None:
        """What was settled, and answered, is not delivered again."""
        settled: dict[tuple[int, int], Settlement] = {}
        for each in self.settled:
            for offset in range(each.first, each.end):
                known = settled.get((each.received.partition, offset))
                if known is None or each.at < known.at:
                    settled[each.received.partition, offset] = each
        for partition, deliveries in self.deliveries.items():
            for at, life, received in deliveries:
                for offset in range(received.first, received.end):
                    done = settled.get((partition, offset))
                    # A reply of an earlier owner's may have been on its way for long.
                    if done is not None and at > done.at and received.high >= done.received.high:
                        raise DeliveredAgain(
                            f"partition {partition}: {done.life} committed offset {offset} and had the answer; "
                            f"{(at - done.at) // 1_000_000} ms later {life} received it, as delivery "
                            f"{received.deliveries}, in assignment epoch {received.low} to {received.high}, after "
                            f"{done.received.low} to {done.received.high}"
                        )

    def check_repetitions(self) -> None:
        """Whoever lives and does what it is told is the only one to receive its work, once; deliveries are counted."""
        for partition, deliveries in self.deliveries.items():
            seen: dict[int, list[Delivery]] = {}
            for delivery in deliveries:
                for offset in range(delivery.received.first, delivery.received.end):
                    earlier = seen.setdefault(offset, [])
                    if delivery.received.deliveries <= len(earlier):
                        raise Violation(
                            f"partition {partition}: {delivery.life} was told that offset {offset} is delivered for "
                            f"the {delivery.received.deliveries}. time; {len(earlier)} received it before"
                        )
                    if earlier and not self._is_cut_off(earlier[-1].life, partition):
                        raise DeliveredAgain(
                            f"partition {partition}: offset {offset} was with {earlier[-1].life}, which went on, and "
                            f"{delivery.life} received it as well, {(delivery.at - earlier[-1].at) // 1_000_000} ms "
                            f"later; {earlier[-1].received} and {delivery.received}"
                        )
                    earlier.append(delivery)

    @staticmethod
    def _is_cut_off(life: Life, partition: int) -> bool:
        """Whether a life was ended without leaving, or was too late with a partition."""
        return not life.left or any(partition in answer.refused for answer in life.refusals)

    def check_completeness(self, ends: Mapping[int, int]) -> None:
        """Every message was received, and settled by who received it."""
        received = {
            (partition, offset)
            for partition, deliveries in self.deliveries.items()
            for delivery in deliveries
            for offset in range(delivery.received.first, delivery.received.end)
        }
        settled = {
            (each.received.partition, offset)
            for each in (*self.settled, *self.doubtful)
            for offset in range(each.first, each.end)
        }
        for partition, end in ends.items():
            for offset in range(end):
                if (partition, offset) not in received:
                    raise Lost(f"partition {partition}: nobody received offset {offset}; it ends at {end}")
                if (partition, offset) not in settled:
                    raise Lost(f"partition {partition}: offset {offset} counts as settled, and nobody committed it")
        beyond = [where for where in received if where[1] >= ends.get(where[0], 0)]
        if beyond:
            raise Violation(f"received, but not there (partition, offset): {sorted(beyond)[:10]}")

    # --- counting

    @property
    def messages(self) -> int:
        """Received, repetitions included."""
        return sum(
            each.received.end - each.received.first for deliveries in self.deliveries.values() for each in deliveries
        )

    @property
    def repetitions(self) -> int:
        """Messages that somebody had received before."""
        count = 0
        for deliveries in self.deliveries.values():
            seen: set[int] = set()
            for delivery in deliveries:
                offsets = range(delivery.received.first, delivery.received.end)
                count += sum(offset in seen for offset in offsets)
                seen.update(offsets)
        return count
