"""Polling: wait until there is something for a member, then lease it and hand it out.

In two steps, so that a poll that waits holds no memory for a reply: `park` says the member is there, settles and
releases what is due, and waits; `take` reads and leases. What was taken and could not be told is given back.

A member has one poll at a time: a newer one ends those before it, and they take nothing any more. Else an old one
could lease messages for a connection that is dead, and `received` of the newer would say that they arrived.
"""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from goqueue.base.mark import Mark
from goqueue.broker.coordination import Coordination, View
from goqueue.broker.partition import Partition
from goqueue.broker.read import PartitionReader
from goqueue.broker.settle import Settlement
from goqueue.broker.sidecars import Sidecars
from goqueue.broker.topic import OpenTopic
from goqueue.broker.topics import TopicCatalogue
from goqueue.delivery.deliveries import GiveBack, Lease, Open, Skip
from goqueue.delivery.records import Range
from goqueue.delivery.sidecar import Sidecar
from goqueue.groups.group import Group, Member, Part
from goqueue.model import limits
from goqueue.model.errors import (
    Conflict,
    DiskFull,
    GoQueueError,
    InvalidRequest,
    OffsetOutOfRange,
    Quarantined,
    StorageFailed,
    Unavailable,
)
from goqueue.model.names import GroupNumber
from goqueue.storage.reading import Chunk
from goqueue.telemetry import logs
from goqueue.telemetry.meters import GroupMeterSet

log = logs.get("poll")

_POLLS_PER_MS: Final = 1000
"""Numbers of polls grow with the clock, so that they go on growing after a restart."""
_NUMBERS_AHEAD: Final = 24 * 3600 * 1000 * _POLLS_PER_MS
"""How far a clock may have been ahead when it gave a number out."""


class Row(NamedTuple):
    """Messages of one partition that were delivered equally often, this time included."""

    topic: OpenTopic
    partition: int
    epoch: int
    deliveries: int
    chunk: Chunk


class Polled(NamedTuple):
    """What one poll took. `number` is what the member says it received when it polls next."""

    group: str
    number: int
    view: View
    rows: list[Row]


class Turn(NamedTuple):
    """A poll between its two steps."""

    group: Group
    member: Member
    number: int

    @property
    def is_newest(self) -> bool:
        return self.member.poll == self.number


class _Taking:
    """What a poll has taken so far, and how much more it may take."""

    __slots__ = ("bytes_left", "messages_left", "rows")

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self.messages_left = max_messages
        self.bytes_left = max_bytes
        self.rows: list[Row] = []

    @property
    def is_full(self) -> bool:
        return self.messages_left <= 0 or self.bytes_left <= 0 or len(self.rows) >= limits.MAX_POLL_BLOCKS

    def add(self, row: Row) -> None:
        self.rows.append(row)
        self.messages_left -= row.chunk.count
        self.bytes_left -= len(row.chunk.data)


class Poller:
    """Used from one event loop."""

    def __init__(
        self,
        *,
        coordination: Coordination,
        settlement: Settlement,
        sidecars: Sidecars,
        topics: TopicCatalogue,
        reader: PartitionReader,
        clock: Callable[[], int],
        meters: GroupMeterSet,
    ) -> None:
        self._coordination = coordination
        self._settlement = settlement
        self._sidecars = sidecars
        self._topics = topics
        self._reader = reader
        self._clock = clock
        self._meters = meters
        self._last_number = 0
        self._given_back: dict[GroupNumber, dict[Sidecar, int]] = {}
        """Where a lease was given back that a power cut could bring back: durable before the next reply."""

    def start(self) -> None:
        """Once the topics are open: go on counting where an earlier life ended, also if the clock went back."""
        for topic in self._topics.by_id.values():
            for partition in topic.partitions:
                if partition.sidecar is not None:
                    self._last_number = max(self._last_number, partition.sidecar.deliveries.last_poll)

    # --- waiting

    async def park(
        self,
        group_name: str,
        member_id: str,
        *,
        timeout_ms: int,
        received: int | None = None,
        known_version: int | None = None,
    ) -> Turn:
        """Return when there are messages or news for the member, or the time is up.

        `received` is the number of the last poll whose reply arrived: later ones did not, and are given back.
        `known_version` is the version of the view the member has, if it keeps track.
        """
        group = self._coordination.machine.group(group_name)
        member = group.member(member_id)
        self._check_received(received)
        self._coordination.touch(member)
        turn = Turn(group, member, self._next_number(received))
        arrived = member.answered if received is None else received
        member.poll = turn.number
        self._coordination.parks.send_home(group, member)
        if received is not None and (received < member.took or not member.took):
            self._give_back(group, member, received, turn.number - 1)
        await self._keep_given_back(group)
        self._coordination.acknowledge(group, member)
        await self._settlement.auto_commit(group, member, arrived)
        await self._coordination.release(group, member)
        await self._coordination.sure(group)
        known = member.told_version if known_version is None else known_version
        if turn.is_newest and member.version == known and not self._has_messages(group, member):
            try:
                await self._coordination.parks.wait(group, member, self._marks(group, member), timeout_ms / 1000)
            finally:  # also when whoever asked has left
                self._coordination.touch(member)
        return turn

    def _check_received(self, received: int | None) -> None:
        given = max(self._last_number, self._clock() * _POLLS_PER_MS)
        if received is not None and received > given + _NUMBERS_AHEAD:
            raise InvalidRequest(
                f"received is {received}, and no poll has that number; it is that of the last poll whose answer "
                "arrived, or join again"
            )

    def _next_number(self, received: int | None) -> int:
        """Larger than all before; larger than what one member says it received only for that member."""
        self._last_number = max(self._last_number + 1, self._clock() * _POLLS_PER_MS)
        return max(self._last_number, (received or 0) + 1)

    def _has_messages(self, group: Group, member: Member) -> bool:
        for part, partition in self._deliverable(group, member):
            first, end = partition.log.start_offset, partition.log.end_offset
            if member.unreadable.get(part) == end:
                continue
            if partition.sidecar is not None:
                deliveries = partition.sidecar.deliveries
                if deliveries.needs_open(group.number, group.epoch(part)):
                    return True  # an earlier owner holds something that is about to be taken from it
                first = deliveries.next_ready(group.number, first).first
            if first < end:
                return True
        return False

    def _marks(self, group: Group, member: Member) -> list[tuple[Mark, int]]:
        """What moves when there is a message."""
        return [
            (partition.log.written, partition.log.end_offset + 1) for _, partition in self._deliverable(group, member)
        ]

    def _deliverable(self, group: Group, member: Member) -> Iterator[tuple[Part, Partition]]:
        for part in member.parts:
            if group.is_revoking(part):
                continue
            try:
                partition = self._sidecars.partition(part)
            except GoQueueError:
                continue  # it cannot be read; those that can are
            if partition.sidecar_damage is None:
                yield part, partition

    # --- taking

    async def take(self, turn: Turn, *, max_messages: int, max_bytes: int, known_version: int | None = None) -> Polled:
        """Lease what there is now, at most so much, at least one message."""
        group, member = turn.group, turn.member
        await self._coordination.sure(group)
        self._check_there(turn)
        taking = _Taking(max_messages, max_bytes)
        parts = [(part, group.epoch(part)) for part in member.parts if not group.is_revoking(part)]
        first = member.turn % len(parts) if parts else 0
        for count, (part, epoch) in enumerate((*parts[first:], *parts[:first]), first + 1):
            had = len(taking.rows)
            try:
                await self._take_from(turn, part, epoch, taking)
            except (StorageFailed, DiskFull):
                if not taking.rows:
                    raise
                break
            except GoQueueError as error:
                self._pass_over(turn, part, error)
            if len(taking.rows) > had:
                member.turn = count
            if taking.is_full:
                break
        await self._coordination.sure(group)
        self._check_there(turn)
        if taking.rows and turn.is_newest:
            member.answered = turn.number
        return Polled(group.name, turn.number, self._coordination.view(group, member, known_version), taking.rows)

    def _check_there(self, turn: Turn) -> None:
        """While a poll waited its group may have been deleted, or its member may have gone."""
        self._coordination.machine.group(turn.group.name).member(turn.member.member_id)

    def _pass_over(self, turn: Turn, part: Part, error: GoQueueError) -> None:
        """It cannot be read, or was just deleted; others can be. Said once, and tried again when it has grown."""
        try:
            end = self._sidecars.partition(part).log.end_offset
        except GoQueueError:
            return
        if turn.member.unreadable.get(part) != end:
            name = self._coordination.part_name(part)
            log.warning("a partition cannot be read", group=turn.group.name, partition=name, reason=str(error))
            turn.member.unreadable[part] = end

    async def _take_from(self, turn: Turn, part: Part, epoch: int, taking: _Taking) -> None:
        """From one partition: first what was delivered before, then what is new.

        Only while its assignment epoch is the one that was durable when the poll began.
        """
        group = turn.group
        partition = self._sidecars.partition(part)
        if partition.sidecar is None and partition.log.start_offset == partition.log.end_offset:
            return  # nobody was ever here, and there is nothing: that needs no sidecar
        sidecar = await self._sidecars.made(partition)
        topic = self._topics.identified(part.topic_id)
        while not taking.is_full and turn.is_newest and group.is_serving(part, epoch):
            if sidecar.deliveries.needs_open(group.number, epoch):
                self._sidecars.write(sidecar, Open(group.number, epoch))
            start = partition.log.start_offset
            ready = sidecar.deliveries.next_ready(group.number, start)
            if ready.first >= (ready.end or partition.log.end_offset):
                break
            chunk = await self._read(group, topic, partition, sidecar, ready, taking)
            if chunk is None:
                if sidecar.deliveries.next_ready(group.number, partition.log.start_offset) == ready:
                    break
                continue
            if taking.rows and len(chunk.data) > taking.bytes_left:
                break
            if not (turn.is_newest and group.is_serving(part, epoch)):
                break
            missed = sidecar.deliveries.overtaken(group.number, start)
            span = (ready.first, chunk.next_offset)
            try:
                leased = self._sidecars.write(sidecar, Lease(group.number, epoch, turn.number, start, (span,)))
            except Conflict:  # an operator moved the group
                break
            turn.member.took = turn.number
            taking.add(Row(topic, part.partition, epoch, leased[0].deliveries, chunk))
            self._meters.consumed(group.name, topic.meta.name, chunk.count, missed, leased[0].deliveries)
            topic.meters.messages_read += chunk.count
            topic.meters.bytes_read += len(chunk.data)

    async def _read(
        self, group: Group, topic: OpenTopic, partition: Partition, sidecar: Sidecar, ready: Range, taking: _Taking
    ) -> Chunk | None:
        """What there is to deliver; None when it turned out to be nothing, and is passed over."""
        to_offset = ready.end or None
        try:
            chunk = await self._reader.read(
                partition,
                ready.first,
                max_bytes=taking.bytes_left,
                max_count=taking.messages_left,
                to_offset=to_offset,
            )
        except OffsetOutOfRange:  # retention went past it meanwhile: look again
            return None
        except Quarantined as damage:
            log.error("a group passes over damaged messages", group=group.name, log=partition.log_name, found=damage)
            end = damage.next_offset if to_offset is None else min(damage.next_offset, to_offset)
            if self._skip(group, sidecar, ready.first, end):
                self._meters.missed(group.name, topic.meta.name, end - ready.first)
            return None
        if not chunk.count:
            self._skip(group, sidecar, ready.first, chunk.next_offset)
            return None
        return chunk

    def _skip(self, group: Group, sidecar: Sidecar, first: int, end: int) -> bool:
        """False when it is no longer ready: somebody else was faster."""
        try:
            self._sidecars.write(sidecar, Skip(group.number, first, end))
        except Conflict:
            return False
        return True

    # --- giving back

    def give_back(self, group_name: str, member_id: str, number: int) -> None:
        """The reply of a poll could not be written: what it took is ready again, and was not delivered."""
        group = self._coordination.machine.by_name.get(group_name)
        member = group.members.get(member_id) if group is not None else None
        if group is not None and member is not None:
            self._give_back(group, member, number - 1, number)
            self._coordination.parks.wake_group(group.number)

    def _give_back(self, group: Group, member: Member, after: int, to: int) -> None:
        for part in member.parts:
            sidecar = self._sidecars.of(part)
            if sidecar is None or sidecar.deliveries.needs_open(group.number, group.epoch(part)):
                continue
            before = sidecar.log.end_offset
            try:
                self._sidecars.write(sidecar, GiveBack(group.number, after, to))
            except Unavailable as error:  # `received` of the next poll gives it back
                log.warning("a lease is not given back yet", group=group.name, reason=str(error))
            if sidecar.log.end_offset > before:
                self._given_back.setdefault(group.number, {})[sidecar] = sidecar.log.end_offset

    async def _keep_given_back(self, group: Group) -> None:
        """A power cut must not bring a lease back, once its member has heard of later ones."""
        while positions := self._given_back.get(group.number):
            sidecar, position = next(iter(positions.items()))
            try:
                await self._sidecars.durable((sidecar,))
            except Unavailable:  # its topic is gone
                positions.pop(sidecar, None)
            if positions.get(sidecar) == position:  # else something was given back meanwhile: once more
                del positions[sidecar]
        self._given_back.pop(group.number, None)
