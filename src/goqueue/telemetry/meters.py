"""Counters and histograms that hot code moves with plain arithmetic: no lock, no look-up of labels per call.

Hot code asks for its meters once, keeps them, and from then on writes `meters.messages_produced += 1`. Meters are
moved and read in one thread, the loop's; what happens in another thread is told to the loop first.
Invariants: nothing here ever decreases; how many series there are is bounded whatever clients do, because meters
past a bound are shared ones that add up the rest, and shared ones are never thrown away.
Knows nothing of Prometheus, nor of where sizes and offsets come from: see `exposition`.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Final, Protocol

from goqueue.model.record import Lane

MAX_SERIES_TOPICS: Final = 200
"""Topics with labels of their own; those opened after them are added up under `OTHER_TOPICS`."""
MAX_SERIES_PARTITIONS: Final = 1000
"""Partitions of all those topics with labels of their own; the rest of a topic's are `OTHER_PARTITIONS`."""
MAX_SERIES_GROUPS: Final = 200
"""Groups with labels of their own; those opened after them are added up under `OTHER_GROUPS`."""
MAX_SERIES_NAMES: Final = 64
"""Different error types, or codes, that one tally tells apart; different topics that a group's meters do."""

OTHER_TOPICS: Final = "_other"
OTHER_PARTITIONS: Final = "_other"
OTHER_GROUPS: Final = "_other"
ALL_PARTITIONS: Final = "_all"
OTHER: Final = "other"
"""An operation, door, code or error type that has no label of its own."""

LANES: Final = tuple(lane.name.lower() for lane in Lane)
"""By number, the labels of the priority lanes."""

TOTALS: Final = ("messages_produced", "bytes_produced", "duplicates", "messages_read", "bytes_read", "dead_letters")
"""The counters of a topic that are added up for the whole broker."""

LATENCY_BOUNDS_S: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0,
)  # fmt: skip
"""For what a client waits for: from a write to the page cache to a long poll."""
APPEND_BOUNDS_S: Final = (0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.005, 0.025, 0.1, 1.0)
"""For an append alone. Few, because every partition has them."""
REBALANCE_BOUNDS_S: Final = (
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
)  # fmt: skip
"""For what is counted in milliseconds and may last as long as members take to give something up."""
LATENESS_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 300.0)
"""For what should happen at once, and happens late when a loop, a machine or a clock stood still."""


class Histogram:
    """How often something took how long. A bucket includes its bound."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        if not seconds > 0.0:  # a clock that stepped back, or no number at all: the sum may not decrease
            seconds = 0.0
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.sum += seconds

    def cumulative(self) -> list[int]:
        """For each bound how many were at most that, then how many there were."""
        return list(accumulate(self.counts))

    @property
    def count(self) -> int:
        return sum(self.counts)


class Tally:
    """Counts by name. Past `MAX_SERIES_NAMES` names, a new one counts as `rest`."""

    __slots__ = ("_rest", "counts")

    def __init__(self, rest: str = OTHER) -> None:
        self.counts: dict[str, int] = {}
        self._rest = rest

    def add(self, name: str, count: int = 1) -> None:
        counts = self.counts
        if name in counts:
            counts[name] += count
        elif len(counts) < MAX_SERIES_NAMES:
            counts[name] = count
        else:
            counts[self._rest] = counts.get(self._rest, 0) + count


class Slots:
    """How many partitions may still get labels of their own, over all topics."""

    __slots__ = ("free",)

    def __init__(self, free: int) -> None:
        self.free = free

    def take(self) -> bool:
        if self.free == 0:
            return False
        self.free -= 1
        return True


class TopicMeters:
    """What happened to one topic, or to all of `OTHER_TOPICS`. Partitions keep the label they got first."""

    __slots__ = (
        "_append_latency",
        "_rest",
        "_rest_label",
        "_slots",
        "bytes_produced",
        "bytes_read",
        "dead_letters",
        "duplicates",
        "errors",
        "messages_produced",
        "messages_read",
        "produce_latency",
        "topic",
    )

    def __init__(self, topic: str, slots: Slots, *, rest_label: str = OTHER_PARTITIONS) -> None:
        self.topic = topic
        """The label, which is not the name of every topic that counts here."""
        self.messages_produced = 0
        self.bytes_produced = 0
        self.duplicates = 0
        self.messages_read = 0
        self.bytes_read = 0
        self.dead_letters = 0
        """Of this topic, written to the topic for them."""
        self.errors = Tally()
        self.produce_latency = Histogram(LATENCY_BOUNDS_S)
        self._slots = slots
        self._rest_label = rest_label
        self._rest = Histogram(APPEND_BOUNDS_S)
        self._append_latency: dict[int, Histogram] = {}

    def append_latency(self, partition: int) -> Histogram:
        """The partition's own histogram, or the one for the rest. Ask once and keep it."""
        found = self._append_latency.get(partition)
        if found is None:
            found = Histogram(APPEND_BOUNDS_S) if self._slots.take() else self._rest
            self._append_latency[partition] = found
        return found

    def partition_label(self, partition: int) -> str:
        return self._rest_label if self.append_latency(partition) is self._rest else str(partition)

    def append_latencies(self) -> list[tuple[str, Histogram]]:
        """Every histogram of appends once, with its partition label."""
        own = [(str(number), found) for number, found in self._append_latency.items() if found is not self._rest]
        return [*own, (self._rest_label, self._rest)]

    def release(self) -> None:
        """Give the slots back: the topic is gone. Who still counts here counts for nobody."""
        self._slots.free += len(self.append_latencies()) - 1
        self._slots = Slots(0)


class TopicMeterSet:
    """The meters of all topics. `other` also takes errors about topics that do not exist."""

    def __init__(self) -> None:
        self._slots = Slots(MAX_SERIES_PARTITIONS)
        self._own: dict[str, TopicMeters] = {}
        self._gone = dict.fromkeys(TOTALS, 0)
        """What was counted for topics that were deleted."""
        self.other = TopicMeters(OTHER_TOPICS, Slots(0), rest_label=ALL_PARTITIONS)

    def open(self, topic: str) -> TopicMeters:
        """Meters for a topic that was created or loaded; a former topic of that name is forgotten."""
        self._forget(topic)
        if topic == OTHER_TOPICS or len(self._own) >= MAX_SERIES_TOPICS:
            return self.other
        self._own[topic] = TopicMeters(topic, self._slots)
        return self._own[topic]

    def close(self, meters: TopicMeters) -> None:
        """The topic was deleted: its series end. What was counted in `other` stays counted."""
        if self._own.get(meters.topic) is meters:
            self._forget(meters.topic)

    def _forget(self, topic: str) -> None:
        forgotten = self._own.pop(topic, None)
        if forgotten is not None:
            for name in TOTALS:
                self._gone[name] += getattr(forgotten, name)
            forgotten.release()

    def total(self, name: str) -> int:
        """One of `TOTALS` over all topics there ever were."""
        counted: int = sum(getattr(meters, name) for meters in self)
        return self._gone[name] + counted

    def shown_as(self, meters: TopicMeters) -> TopicMeters:
        """`meters` while its topic is open, else `other`: nobody gets a label by himself."""
        return meters if self._own.get(meters.topic) is meters else self.other

    def __iter__(self) -> Iterator[TopicMeters]:
        """As they are now: topics may come and go while somebody goes through them."""
        return iter((*self._own.values(), self.other))


class Named(Protocol):
    """A group, as far as it matters here."""

    @property
    def name(self) -> str: ...


class Consumption:
    """What a group was handed out of one topic, or of all its `OTHER_TOPICS`."""

    __slots__ = ("acked", "consumed", "dead", "expired", "lapsed", "missed", "nacked", "redelivered", "rejected")

    def __init__(self) -> None:
        self.consumed = 0
        """Messages handed out, also those that were handed out before."""
        self.missed = 0
        """Offsets that retention or damage took before they were handed out."""
        self.redelivered = 0
        """Messages handed out that had been handed out before."""
        self.acked = 0
        """Messages settled by their handles."""
        self.nacked = 0
        self.rejected = 0
        self.lapsed = 0
        """Messages that were not settled in time."""
        self.expired = 0
        """Messages too old to be handed out."""
        self.dead = Tally()
        """Messages that are not handed out any more, by reason: rejected, expired, nacked or lapsed too often."""

    def add(self, other: "Consumption") -> None:
        """Count what the other one counted, too."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for reason, count in other.dead.counts.items():
            self.dead.add(reason, count)


_COUNTS: Final = tuple(name for name in Consumption.__slots__ if name != "dead")


class GroupMeters:
    """What happened to one group, or to all of `OTHER_GROUPS`."""

    __slots__ = ("_topics", "group", "moves", "pause", "rebalance", "served")

    def __init__(self, group: str) -> None:
        self.group = group
        """The label, which is not the name of every group that counts here."""
        self.served = [0] * len(LANES)
        """Messages handed out, by lane."""
        self.moves = 0
        """Partitions that went from one member to another."""
        self.rebalance = Histogram(REBALANCE_BOUNDS_S)
        """From a change until everybody had what it should."""
        self.pause = Histogram(REBALANCE_BOUNDS_S)
        """How long a partition that moved was with nobody."""
        self._topics: dict[str, Consumption] = {}

    def consumption(self, topic: str) -> Consumption:
        """Of that topic. Past `MAX_SERIES_NAMES` topics, a new one is one of `OTHER_TOPICS`."""
        found = self._topics.get(topic)
        if found is None:
            label = topic if len(self._topics) < MAX_SERIES_NAMES else OTHER_TOPICS
            found = self._topics.setdefault(label, Consumption())
        return found

    def by_topic(self) -> list[tuple[str, Consumption]]:
        """As they are now, each with its topic label."""
        return list(self._topics.items())

    def forget(self, topic: str) -> Consumption | None:
        """Make room for another; what is added up stays."""
        return self._topics.pop(topic, None) if topic != OTHER_TOPICS else None


class GroupMeterSet:
    """The meters of all groups. A group without meters of its own, or deleted meanwhile, counts in `other`."""

    def __init__(self) -> None:
        self._own: dict[str, GroupMeters] = {}
        self.other = GroupMeters(OTHER_GROUPS)
        self._gone = Consumption()
        """What was counted of groups, and of topics of groups, that were deleted."""
        self.moves = 0
        """Of all groups there ever were, and so are the next two."""
        self.rebalance = Histogram(REBALANCE_BOUNDS_S)
        self.pause = Histogram(REBALANCE_BOUNDS_S)

    def open(self, group: str, topics: Iterable[str] = ()) -> None:
        """A group was created or loaded, or somebody joined it; it has meters from now on, if there is room.

        Its counters of these topics are there before they count, because who sees only the first value sees no change.
        """
        if group not in self._own and group != OTHER_GROUPS and len(self._own) < MAX_SERIES_GROUPS:
            self._own[group] = GroupMeters(group)
        meters = self.of(group)
        for topic in topics:
            meters.consumption(topic)

    def close(self, group: str) -> None:
        """It was deleted: its series end. What was counted in `other` stays counted."""
        closed = self._own.pop(group, None)
        for _, counted in closed.by_topic() if closed is not None else ():
            self._gone.add(counted)

    def close_topic(self, topic: str) -> None:
        """It was deleted: what groups have of it ends."""
        for meters in self:
            forgotten = meters.forget(topic)
            if forgotten is not None:
                self._gone.add(forgotten)

    def total(self) -> Consumption:
        """Of all groups and topics there ever were."""
        total = Consumption()
        total.add(self._gone)
        for meters in self:
            for _, counted in meters.by_topic():
                total.add(counted)
        return total

    def of(self, group: str) -> GroupMeters:
        return self._own.get(group, self.other)

    def consumed(self, group: str, topic: str, messages: int, missed: int, deliveries: int = 1) -> None:
        """Messages were handed out, this time included `deliveries` times; `missed` went before they could be."""
        counted = self.of(group).consumption(topic)
        counted.consumed += messages
        counted.missed += missed
        if deliveries > 1:
            counted.redelivered += messages

    def missed(self, group: str, topic: str, messages: int) -> None:
        """Messages cannot be handed out: they are damaged, and passed over."""
        self.of(group).consumption(topic).missed += messages

    def settled(self, group: str, topic: str, how: str, messages: int) -> None:
        """`how` is the name of a counter."""
        counted = self.of(group).consumption(topic)
        setattr(counted, how, getattr(counted, how) + messages)

    def died(self, group: str, topic: str, reason: str, messages: int) -> None:
        """Messages are not handed out any more, whether they become dead letters or not."""
        self.of(group).consumption(topic).dead.add(reason, messages)

    def served(self, group: str, taken: Sequence[int]) -> None:
        """Messages were handed out, so many of each lane."""
        served = self.of(group).served
        for lane, count in enumerate(taken):
            served[lane] += count

    def moved(self, group: Named, pause_ms: int) -> None:
        meters = self.of(group.name)
        meters.moves += 1
        meters.pause.observe(pause_ms / 1000)
        self.moves += 1
        self.pause.observe(pause_ms / 1000)

    def rebalanced(self, group: Named, duration_ms: int) -> None:
        self.of(group.name).rebalance.observe(duration_ms / 1000)
        self.rebalance.observe(duration_ms / 1000)

    def __iter__(self) -> Iterator[GroupMeters]:
        """As they are now: groups may come and go while somebody goes through them."""
        return iter((*self._own.values(), self.other))


class RequestMeters:
    """What was asked at one door for one operation, and how it ended."""

    __slots__ = ("codes", "door", "latency", "operation")

    def __init__(self, door: str, operation: str) -> None:
        self.door = door
        self.operation = operation
        self.codes = Tally()
        self.latency = Histogram(LATENCY_BOUNDS_S)

    def done(self, code: str, seconds: float) -> None:
        self.codes.add(code)
        self.latency.observe(seconds)


class RequestMeterSet:
    """The meters of all requests, for the doors and operations there are."""

    def __init__(self, *, doors: Iterable[str], operations: Iterable[str]) -> None:
        self._doors = frozenset(doors)
        self._operations = frozenset(operations)
        self._meters: dict[tuple[str, str], RequestMeters] = {}

    def meters(self, door: str, operation: str) -> RequestMeters:
        """Ask once per operation and keep it. What is not known counts as `OTHER`."""
        key = self.door_label(door), operation if operation in self._operations else OTHER
        if key not in self._meters:
            self._meters[key] = RequestMeters(*key)
        return self._meters[key]

    def door_label(self, door: str) -> str:
        return door if door in self._doors else OTHER

    def __iter__(self) -> Iterator[RequestMeters]:
        return iter(tuple(self._meters.values()))
