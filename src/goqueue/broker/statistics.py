"""Numbers that somebody asks for: what lies in the lanes, what is delayed, and how deliveries ended.

Nothing here is on a message's way, and nothing is changed. There may be many groups and partitions, so others get a
turn while they are gone through; what is answered is exact, each partition as it was when its turn came. A view that
must be loaded is loaded aside.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from pyroaring import BitMap64

from goqueue.broker.coordination import Coordination
from goqueue.broker.partition import Partition
from goqueue.broker.read import PartitionReader
from goqueue.broker.topic import OpenTopic
from goqueue.broker.topics import TopicCatalogue
from goqueue.delivery.delivery import Delivery
from goqueue.delivery.selection import LANES
from goqueue.delivery.statistics import LaneTally, Served, ServedCounts, waited_ms
from goqueue.groups.group import Group
from goqueue.model.errors import DamagedData, OffsetOutOfRange, Quarantined, Unavailable
from goqueue.storage.lane_index import LaneIndex, ViewMissing
from goqueue.storage.segment import Segment
from goqueue.telemetry.meters import OTHER_TOPICS, Consumption, GroupMeterSet

_LOOKS: Final = 256
"""Partitions, or topics of groups, that are looked at before others get a turn."""
_SEGMENTS: Final = 16
"""The same for segments that are counted."""
_LOADS: Final = 100
"""How often a view is loaded that is not there when it is looked at: others may need the memory more."""

_NONE_SERVED: Final = ServedCounts()


class LaneStanding(NamedTuple):
    """A lane of one group on one partition."""

    ready: int
    in_flight: int
    served: int
    waited_ms: int
    last_served: int | None


class LaneRow(NamedTuple):
    group: str
    topic: str
    partition: int
    lanes: list[LaneStanding]


class DelayRow(NamedTuple):
    """The delayed messages of a topic. Those that were scheduled are pending, fired or cancelled."""

    topic: str
    pending: int
    scheduled: int
    fired: int
    cancelled: int
    moved: int
    next_due: int | None
    """Nothing is due before; on the wall's clock."""


class DeliveryRow(NamedTuple):
    """How the deliveries of a topic to a group ended, by the labels these have in the metrics; and what is open."""

    group: str
    topic: str
    counted: Consumption
    in_flight: int
    waiting: int


class Reliability(NamedTuple):
    """Of all groups, and how many dead letters are not written yet."""

    rows: list[DeliveryRow]
    outbox: int


class _Unheld(NamedTuple):
    """What is held back where no group ever was."""

    pending: BitMap64
    cancelled: BitMap64
    uncommitted: BitMap64


class Statistics:
    """Used from one event loop."""

    def __init__(
        self,
        *,
        topics: TopicCatalogue,
        coordination: Coordination,
        reader: PartitionReader,
        monotonic: Callable[[], int],
        clock: Callable[[], int],
        meters: GroupMeterSet,
    ) -> None:
        self._topics = topics
        self._coordination = coordination
        self._reader = reader
        self._clock = clock
        self._monotonic = monotonic
        self._meters = meters

    # --- lanes

    async def lanes(self, *, group: str | None, topic: str | None, limit: int) -> tuple[list[LaneRow], int]:
        """By group, topic and partition, and how many there are besides."""
        rows: list[LaneRow] = []
        left_out = 0
        for looks, (found, opened) in enumerate(self._begun(group, topic), 1):
            if looks % _LOOKS == 0:
                await asyncio.sleep(0)
            if len(rows) >= limit:
                left_out += len(opened.slots)
                continue
            for partition in opened.partitions:
                if len(rows) >= limit:
                    left_out += 1
                    continue
                lanes = await self._count(found, partition)
                if lanes is not None:
                    rows.append(LaneRow(found.name, opened.meta.name, partition.number, lanes))
        return rows, left_out

    def _begun(self, group: str | None, topic: str | None) -> Iterator[tuple[Group, OpenTopic]]:
        """The groups and the topics they ever began, of those that are wanted."""
        by_name = self._coordination.machine.by_name
        for name in sorted(by_name) if group is None else [group]:
            found = by_name.get(name)  # it may be gone by now
            if found is not None:
                yield from ((found, opened) for opened in self._topics_of(found) if topic in (None, opened.meta.name))

    def _topics_of(self, group: Group) -> list[OpenTopic]:
        by_id = self._topics.by_id
        found = [by_id[topic_id] for topic_id in group.started if topic_id in by_id]
        return sorted(found, key=lambda topic: topic.meta.name)

    async def _count(self, group: Group, partition: Partition) -> list[LaneStanding] | None:
        """None when the group or the topic went meanwhile, or what it takes cannot be read."""
        tally = self._tally(group, partition)
        steps = loads = 0
        while not tally.is_over:
            try:
                tally.step()
                steps, loads = steps + 1, 0
            except ViewMissing as missing:
                loads += 1
                if loads > _LOADS or not await self._load(partition, missing.segment, tally.at):
                    return None
            if steps % _SEGMENTS == 0:
                await asyncio.sleep(0)
        if not self._is_there(group):
            return None
        waited = self._waited(group, partition, tally)
        served = self._served(group, partition)
        return list(map(LaneStanding, tally.ready, tally.in_flight, served.messages, waited, served.last))

    async def _load(self, partition: Partition, segment: Segment, first: int) -> bool:
        """A segment's views: reading a record there brings them into memory, aside. False when that cannot be."""
        offset = max(segment.base, first, partition.log.start_offset)
        try:
            await self._reader.read(partition, offset, max_bytes=1, max_count=1, to_offset=offset + 1)
        except (OffsetOutOfRange, Quarantined):
            pass  # retention went past it, and then there is another segment; or it is damaged, which views know
        except (Unavailable, DamagedData):
            return False
        return True

    def counted_lanes(self, group: Group) -> Iterator[tuple[list[int], list[int]] | None]:
        """What is ready in each lane and how long that has waited (ms), partition by partition, from memory alone.

        None: it would take a disk to tell. Empty ones come between, so that others can be given a turn.
        """
        nothing = [0] * LANES
        for opened in self._topics_of(group):
            for partition in opened.partitions:
                if not self._is_there(group):
                    return
                tally = self._tally(group, partition)
                while not tally.is_over:
                    try:
                        tally.step()
                    except ViewMissing:
                        yield None
                        return
                    yield nothing, nothing
                yield tally.ready, self._waited(group, partition, tally)

    def _tally(self, group: Group, partition: Partition) -> LaneTally:
        log, lanes = partition.log, LaneIndex(partition.log)
        start, end = log.start_offset, log.written.value
        if partition.sidecar is None:
            transactions = partition.transactions
            unheld = _Unheld(partition.delays.pending, transactions.hidden, transactions.uncommitted)
            return LaneTally(lanes, Delivery(start), unheld, start=start, end=end)
        deliveries = partition.deliveries
        return LaneTally(lanes, deliveries.delivery(group.number), deliveries, start=start, end=end)

    def _served(self, group: Group, partition: Partition) -> Served:
        counts = partition.deliveries.served if partition.sidecar is not None else _NONE_SERVED
        return counts.of(group.number)

    def _waited(self, group: Group, partition: Partition, tally: LaneTally) -> list[int]:
        selection = partition.deliveries.selections.get(group.number) if partition.sidecar is not None else None
        return waited_ms(tally.ready, selection, self._monotonic())

    def _is_there(self, group: Group) -> bool:
        """A group that was deleted has settled nothing: its partitions have forgotten it."""
        return self._coordination.machine.by_number.get(group.number) is group

    # --- delays

    async def delays(self) -> list[DelayRow]:
        """Of each topic that has or had delayed messages, by name."""
        rows = []
        looks = 0
        for opened in sorted(self._topics.by_id.values(), key=lambda topic: topic.meta.name):
            row = self._delays_of(opened)
            if row.scheduled:
                rows.append(row)
            looks += len(opened.slots)
            if looks >= _LOOKS:
                looks = 0
                await asyncio.sleep(0)
        return rows

    def _delays_of(self, topic: OpenTopic) -> DelayRow:
        wall, now = self._clock(), self._monotonic()
        found = [partition.delays for partition in topic.partitions]
        dues = [due for delays in found if (due := delays.next_due(wall=wall, now=now)) is not None]
        return DelayRow(
            topic.meta.name,
            pending=sum(map(len, found)),
            scheduled=sum(delays.scheduled for delays in found),
            fired=sum(delays.fired for delays in found),
            cancelled=sum(delays.dropped for delays in found),
            moved=sum(delays.moved for delays in found),
            next_due=wall + min(dues) - now if dues else None,
        )

    # --- deliveries

    async def reliability(self) -> Reliability:
        """By group and topic."""
        held: dict[tuple[str, str], tuple[int, int]] = {}
        outbox = looks = 0
        for opened in list(self._topics.by_id.values()):
            for partition in opened.partitions:
                if partition.sidecar is not None:
                    outbox += len(partition.deliveries.outbox)
                    self._add_held(opened, partition, held)
            looks += len(opened.slots)
            if looks >= _LOOKS:
                looks = 0
                await asyncio.sleep(0)
        return Reliability(self._rows(held), outbox)

    def _add_held(self, topic: OpenTopic, partition: Partition, held: dict[tuple[str, str], tuple[int, int]]) -> None:
        for number in partition.deliveries.active_groups:
            group = self._coordination.machine.by_number.get(number)
            if group is not None:
                in_flight, waiting = held.get((group.name, topic.meta.name), (0, 0))
                held[group.name, topic.meta.name] = (
                    in_flight + partition.deliveries.in_flight(number),
                    waiting + partition.deliveries.waiting(number),
                )

    def _rows(self, held: dict[tuple[str, str], tuple[int, int]]) -> list[DeliveryRow]:
        """What was counted, and what is held, where it was counted."""
        counted = {(each.group, topic): found for each in self._meters for topic, found in each.by_topic()}
        open_: dict[tuple[str, str], tuple[int, int]] = {}
        for (group, topic), (in_flight, waiting) in held.items():
            label = self._meters.of(group).group
            key = (label, topic) if (label, topic) in counted else (label, OTHER_TOPICS)
            before = open_.get(key, (0, 0))
            open_[key] = before[0] + in_flight, before[1] + waiting
        return [
            DeliveryRow(*key, counted.get(key) or Consumption(), *open_.get(key, (0, 0)))
            for key in sorted(counted.keys() | open_.keys())
        ]
