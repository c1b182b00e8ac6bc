"""Offsets: committing them, by hand or by itself, looking at them, moving them, and how far behind a group is.

A commit at n settles what the group was delivered below n, and nothing else. It is answered when it is as safe as the
topic's messages are: written, or durable where every message is.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import NamedTuple

from goqueue import codec
from goqueue.base.offset_sets import first_gap, ranged
from goqueue.broker.coordination import Coordination
from goqueue.broker.partition import Partition
from goqueue.broker.read import PartitionReader
from goqueue.broker.sidecars import Sidecars
from goqueue.broker.topic import OpenTopic
from goqueue.broker.topics import TopicCatalogue
from goqueue.delivery.commands import Finish, PledgeBelow, ResetTo, Settle, Start
from goqueue.groups.group import Group, Member, Part
from goqueue.model import limits
from goqueue.model.errors import GoQueueError, InvalidRequest, OffsetOutOfRange
from goqueue.model.groups import Mode, Place, Position
from goqueue.model.names import partition_name
from goqueue.model.record import Record

ByPartition = Mapping[str, Mapping[int, int]]
"""By topic and partition."""


class Lag(NamedTuple):
    """How far a group is behind in one partition. Messages below `committed` are settled."""

    committed: int
    end: int
    lag: int
    lag_ms: int
    in_flight: int
    delayed: int


class Offsets:
    """Used from one event loop."""

    def __init__(
        self,
        *,
        coordination: Coordination,
        sidecars: Sidecars,
        topics: TopicCatalogue,
        reader: PartitionReader,
        clock: Callable[[], int],
        monotonic: Callable[[], int],
    ) -> None:
        self._coordination = coordination
        self._sidecars = sidecars
        self._topics = topics
        self._reader = reader
        self._clock = clock
        self._monotonic = monotonic

    # --- committing

    async def commit(
        self,
        group: Group,
        member: Member,
        offsets: ByPartition,
        *,
        generation: int | None = None,
        received: int | None = None,
        pledged_to: int | None = None,
        on_pledged: Callable[[Partition], None] = lambda _: None,
    ) -> int:
        """Settle what is this member's; NotOwner names the rest, also of topics that are gone, which is left alone.

        `received` is the last poll whose messages it is about: nothing that was delivered later is settled. What is
        `pledged_to` a transaction counts if that is committed; `on_pledged` hears of each partition that may have some.
        How many messages are pledged is returned.
        """
        to = limits.MAX_OFFSET if received is None else received
        self._coordination.touch(member)
        if generation is not None and generation > group.generation:
            raise InvalidRequest(f"group {group.name!r} is in generation {group.generation}; there is no {generation}")
        gone = [name for name in offsets if self._topics.shape_of(name) is None]
        wanted = self._parts({name: numbers for name, numbers in offsets.items() if name not in gone})
        damages = [self._sidecars.partition(part).sidecar_damage for part, _ in wanted]
        shares = group.mode is not Mode.PARTITION
        refused = {part for part, _ in wanted if not (shares or group.owns(member, part, generation))}
        settled, pledged = [], 0
        for part, offset in wanted:
            partition = self._sidecars.of(part)
            if part in refused or partition is None:
                continue
            if shares or not partition.deliveries.needs_open(group.number, group.epoch(part)):  # else nothing is its
                holder = member.member_id if shares else ""
                if pledged_to is None:
                    self._sidecars.write(partition, Settle(group.number, offset, to, holder))
                else:
                    on_pledged(partition)  # now: who asks may leave before all is said
                    command = PledgeBelow(group.number, offset, pledged_to, to, holder)
                    pledged += self._sidecars.write(partition, command)
                settled.append(partition)
        self._coordination.has_room(group, member.member_id)
        await self._coordination.release(group, member)
        for partition in settled:
            await self._sidecars.safe(partition)
        await self._coordination.sure(group)
        names = [self._coordination.part_name(part) for part in refused]
        names += [partition_name(name, number) for name in gone for number in offsets[name]]
        if names:
            raise group.refuse(names)
        for damage in filter(None, damages):
            raise damage.with_traceback(None)
        return pledged

    def _parts(self, offsets: ByPartition) -> list[tuple[Part, int]]:
        """Checked, before anything is settled."""
        found = []
        for name, numbers in offsets.items():
            topic = self._topics.named(name)
            for number, offset in numbers.items():
                partition = topic.partition(number)
                if offset > partition.log.end_offset:
                    raise OffsetOutOfRange(
                        offset,
                        start=partition.log.start_offset,
                        end=partition.log.end_offset,
                        where=partition_name(name, number),
                    )
                found.append((Part(topic.meta.topic_id, number), offset))
        return found

    async def auto_commit(self, group: Group, member: Member, arrived: int, *, leaving: bool = False) -> None:
        """Settle what polls up to `arrived` delivered, if the member wants that and it is time.

        What it is to give up is settled at once: it polls again, so it has done with it, and others wait.
        """
        interval_ms = member.joined.auto_commit_ms
        if interval_ms is None:
            return
        now = self._monotonic()
        is_time = leaving or now - member.auto_committed_at >= interval_ms
        if is_time:
            member.auto_committed_at = now
        settled = []
        shares = group.mode is not Mode.PARTITION
        holder = member.member_id if shares else ""
        parts = list(self._coordination.parts_of(group, member)) if is_time else list(member.acknowledged)
        for part in parts:
            partition = self._sidecars.of(part)
            if partition is not None and (shares or self._may_settle(group, member, part, partition)):
                self._sidecars.write(partition, Settle(group.number, limits.MAX_OFFSET, arrived, holder))
                settled.append(partition)
        for partition in settled:  # only now: while one waits, partitions may move to others
            await self._sidecars.safe(partition)

    def _may_settle(self, group: Group, member: Member, part: Part, partition: Partition) -> bool:
        return group.owner(part) is member and not partition.deliveries.needs_open(group.number, group.epoch(part))

    async def leave(self, group: Group, member: Member) -> None:
        await self.auto_commit(group, member, member.answered, leaving=True)
        await self._coordination.leave(group, member)

    # --- looking

    async def offsets(self, group: Group, topic: str | None) -> dict[str, dict[int, int]]:
        """Up to where the group has settled everything, where it was ever delivered something."""
        found: dict[str, dict[int, int]] = {}
        for opened in self._topics_of(group, topic):
            for partition in _known(opened):
                low = partition.deliveries.low(group.number) if partition.sidecar is not None else None
                await self._sidecars.safe(partition)
                if low is not None:
                    found.setdefault(opened.meta.name, {})[partition.number] = low
        return found

    async def lag(self, group: Group) -> dict[str, dict[int, Lag]]:
        return {
            opened.meta.name: {
                partition.number: await self._lag_in(group, opened, partition) for partition in _known(opened)
            }
            for opened in self._topics_of(group, None)
        }

    def damage(self, group: Group, topic: str | None = None) -> dict[str, dict[int, str]]:
        """Partitions of its topics that are left out, and why."""
        return {opened.meta.name: found for opened in self._topics_of(group, topic) if (found := opened.damage)}

    async def _lag_in(self, group: Group, topic: OpenTopic, partition: Partition) -> Lag:
        start, end = partition.log.start_offset, partition.log.end_offset
        committed, behind = self.standing(group, partition)
        in_flight = self._in_flight(group, Part(topic.meta.topic_id, partition.number), partition)
        delayed = self._delayed(partition, max(committed, start), end)
        await self._sidecars.safe(partition)
        if not behind:
            return Lag(committed, end, 0, 0, in_flight, delayed)
        lag_ms = 0
        try:
            first = self._first_behind(group, partition, max(committed, start))
            chunk = await self._reader.read(partition, first, max_bytes=1, max_count=1)
            if chunk.count:
                lag_ms = max(self._clock() - _ready_at(codec.decode(chunk.data, verified=True)[0], partition), 0)
        except GoQueueError:
            pass  # its first message is damaged, or just went: how old it was is not known
        return Lag(committed, end, behind, lag_ms, in_flight, delayed)

    def _first_behind(self, group: Group, partition: Partition, at: int) -> int:
        """The first offset from `at` on that could be delivered, or was, and is not settled."""
        passed = partition.delays.pending | partition.transactions.uncommitted | partition.transactions.hidden
        if partition.sidecar is not None:
            deliveries = partition.deliveries
            passed = passed | deliveries.cancelled | deliveries.delivery(group.number).settled.above
        return first_gap(passed, at)

    def _in_flight(self, group: Group, part: Part, partition: Partition) -> int:
        if partition.sidecar is None or (
            group.mode is Mode.PARTITION and not self._sidecars.has_in_flight(group, part)
        ):
            return 0
        return partition.deliveries.in_flight(group.number)

    def standing(self, group: Group, partition: Partition) -> tuple[int, int]:
        """Up to where everything is settled, and how many messages that could be delivered are not."""
        start, end = partition.log.start_offset, partition.log.end_offset
        if partition.sidecar is None:
            hidden = partition.transactions.hidden.range_cardinality(start, end) if start < end else 0
            held = self._delayed(partition, start, end) + self._undecided(partition, start, end)
            return start, end - start - held - hidden
        low = partition.deliveries.low(group.number)
        committed = start if low is None else low
        unsettled = partition.deliveries.unsettled(group.number, start, end)
        first = max(committed, start)
        return committed, unsettled - self._delayed(partition, first, end) - self._undecided(partition, first, end)

    def _undecided(self, partition: Partition, first: int, end: int) -> int:
        """Messages of open transactions that are not delayed besides."""
        uncommitted = partition.transactions.uncommitted
        if not uncommitted or first >= end:
            return 0
        return (uncommitted - partition.delays.pending).range_cardinality(first, end)

    def _delayed(self, partition: Partition, first: int, end: int) -> int:
        pending = partition.delays.pending
        return pending.range_cardinality(first, end) if pending and first < end else 0

    def _topics_of(self, group: Group, name: str | None) -> list[OpenTopic]:
        if name is not None:
            return [self._topics.named(name)]
        there = [topic_id for topic_id in group.started if self._topics.name_of(topic_id) is not None]
        return sorted(map(self._topics.identified, there), key=lambda topic: topic.meta.name)

    # --- moving

    async def begin(self, group: Group, topic: OpenTopic, position: Position) -> None:
        """Write down where a group begins in a topic that is new to it. Partitions that come later begin at 0."""
        if position.place is Place.EARLIEST:
            return
        partitions = topic.partitions
        last = max((partition.log.end_offset for partition in partitions), default=0)
        if position.place is Place.OFFSET and position.value > last:
            raise InvalidRequest(
                f"no partition of {topic.meta.name} has an offset {position.value}; a time is written as text"
            )
        await asyncio.gather(*map(self._sidecars.made, partitions))
        lows = [await self._resolve(partition, position) for partition in partitions]
        if topic.meta.topic_id in group.started:
            return  # another member was faster, and said where
        for partition, low in zip(partitions, lows, strict=True):
            if position.place is Place.LATEST:
                self._sidecars.write(partition, Start(group.number, partition.stable_end))
                self._pass_visible(group, partition)
            else:
                self._sidecars.write(partition, Start(group.number, low))
        await self._sidecars.durable(partitions)  # in every mode: the groups log is about to say that it is there

    async def reset(
        self, group: Group, topic: str, position: Position, *, partition: int | None = None, dry_run: bool = False
    ) -> dict[int, int]:
        """Where the group goes on in each partition: also while its members live."""
        opened = self._topics.named(topic)
        chosen = opened.partitions if partition is None else [opened.partition(partition)]
        targets = {each.number: await self._resolve(each, position) for each in chosen}
        if dry_run:
            return targets
        for each in chosen:
            await self._sidecars.made(each)
        await self._coordination.start_topic(group, opened)
        for each in chosen:
            if position.place is Place.LATEST:
                self._sidecars.write(each, ResetTo(group.number, each.stable_end))
                self._pass_visible(group, each)
            else:
                self._sidecars.write(each, ResetTo(group.number, targets[each.number]))
        await self._coordination.renew(group, opened, chosen)
        await self._sidecars.durable(chosen)  # in every mode: a reset that comes undone would settle what nobody saw
        self._coordination.parks.wake_group(group.number)
        return targets

    def _pass_visible(self, group: Group, partition: Partition) -> None:
        """At the end: what there is counts as settled, but not what is of open transactions: that is yet to come."""
        uncommitted = partition.transactions.uncommitted
        if uncommitted:
            visible = ranged(uncommitted.min(), partition.log.end_offset) - uncommitted
            self._sidecars.write(partition, Finish(group.number, visible))

    async def _resolve(self, partition: Partition, position: Position) -> int:
        """An offset that is there, or the end."""
        log = partition.log
        match position.place:
            case Place.EARLIEST:
                return log.start_offset
            case Place.LATEST:
                return log.end_offset
            case Place.OFFSET:
                return min(max(position.value, log.start_offset), log.end_offset)
            case Place.TIMESTAMP:
                return await self._reader.offset_at(partition, position.value)
            case Place.DURATION:
                return await self._reader.offset_at(partition, self._clock() - position.value)


def _known(topic: OpenTopic) -> list[Partition]:
    """Partitions of which it is known what groups did."""
    return [partition for partition in topic.partitions if partition.sidecar_damage is None]


def _ready_at(record: Record, partition: Partition) -> int:
    """Since when it could be delivered."""
    deliver_at = record.extension.deliver_at if record.extension is not None else None
    if deliver_at is None:
        return partition.appended_at(record)
    moved = None if partition.sidecar is None else partition.deliveries.moved.get(record.offset)
    return max(partition.appended_at(record), deliver_at if moved is None else moved)
