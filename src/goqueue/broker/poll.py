"""Polling: wait until there is something for a member, then lease it and hand it out.

In two steps, so that a poll that waits holds no memory for a reply: `park` says the member is there, settles and
releases what is due, and waits; `take` reads and leases. What was taken and could not be told is given back.

A member has one poll at a time: a newer one ends those before it, and they take nothing any more. Else an old one
could lease messages for a connection that is dead, and `received` of the newer would say that they arrived.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Final

import msgspec

from goqueue.broker.attend import Attendant, Row, Visit
from goqueue.broker.coordination import Coordination, View
from goqueue.broker.offsets import Offsets
from goqueue.broker.partition import Partition
from goqueue.broker.passed_over import tell
from goqueue.broker.sidecars import Sidecars
from goqueue.broker.topic import OpenTopic
from goqueue.broker.topics import TopicCatalogue
from goqueue.delivery.commands import GiveBack
from goqueue.groups.group import DamagedRange, Group, Member, Part
from goqueue.model import limits
from goqueue.model.errors import DiskFull, GoQueueError, InvalidRequest, StorageFailed, Unavailable
from goqueue.model.groups import Mode
from goqueue.model.names import GroupNumber
from goqueue.telemetry import logs

log = logs.get("poll")

_POLLS_PER_MS: Final = 1000
"""Numbers of polls grow with the clock, so that they go on growing after a restart."""
_NUMBERS_AHEAD: Final = 24 * 3600 * 1000 * _POLLS_PER_MS
"""How far a clock may have been ahead when it gave a number out."""
_NO_EPOCH: Final = 0
"""Where members share partitions nobody owns one."""


class Polled(msgspec.Struct, frozen=True):
    """What one poll took. `number` is what the member says it received when it polls next."""

    group: Group
    number: int
    view: View
    rows: list[Row]
    damage: tuple[DamagedRange, ...] = ()
    """What its group passed over, and nobody was told of yet."""
    incomplete: dict[str, dict[int, str]] = {}
    """By topic: the member's partitions from which nobody is delivered anything, because what groups did there is
    damaged, and why."""


class Turn(msgspec.Struct, frozen=True):
    """A poll between its two steps."""

    group: Group
    member: Member
    number: int

    @property
    def is_newest(self) -> bool:
        return self.member.poll == self.number


class _Place(msgspec.Struct, frozen=True):
    """A partition that a member is delivered from, as it was found when somebody looked."""

    part: Part
    epoch: int
    """Of its assignment."""
    topic: OpenTopic
    partition: Partition
    is_revoking: bool

    @property
    def is_deliverable(self) -> bool:
        """Whether it is worth waiting for: nobody is delivered from what is given up, is damaged, or has failed."""
        partition = self.partition
        return not self.is_revoking and partition.sidecar_damage is None and partition.log.written.failure is None


_Entry = tuple[int, _Place]
"""Where in its turn a member is after a partition, and the partition."""


class _Taking:
    """What a poll has taken so far, and how much more it may take."""

    __slots__ = ("_since", "bytes_left", "messages_left", "rows")

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self._since = perf_counter()
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

    async def give_way(self) -> None:
        """Others get a turn when this has taken long."""
        if perf_counter() - self._since > limits.TURN_S:
            await asyncio.sleep(0)
            self._since = perf_counter()


class Poller:
    """Used from one event loop."""

    def __init__(
        self,
        *,
        coordination: Coordination,
        offsets: Offsets,
        sidecars: Sidecars,
        topics: TopicCatalogue,
        attendant: Attendant,
        clock: Callable[[], int],
        monotonic: Callable[[], int],
    ) -> None:
        self._coordination = coordination
        self._offsets = offsets
        self._sidecars = sidecars
        self._topics = topics
        self._attendant = attendant
        self._clock = clock
        self._monotonic = monotonic
        self._last_number = 0
        self._given_back: dict[GroupNumber, dict[Partition, int]] = {}
        """Where a lease was given back that a power cut could bring back: durable before the next reply."""

    def start(self) -> None:
        """Once the topics are open: go on counting where an earlier life ended, also if the clock went back."""
        for topic in self._topics.by_id.values():
            for partition in topic.partitions:
                if partition.sidecar is not None:
                    self._last_number = max(self._last_number, partition.deliveries.last_poll)

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
        turn = Turn(group, member, self._next_number(member, received))
        arrived = member.answered if received is None else received
        member.poll = turn.number
        self._coordination.parks.send_home(group, member)
        if received is not None and (received < member.took or not member.took):
            self._give_back(group, member, received, turn.number - 1)
        await self._keep_given_back(group)
        has_heard = known_version is None or known_version == member.told_version
        self._coordination.acknowledge(group, member, has_heard=has_heard)
        if has_heard and (known_version is not None or received is None or received >= member.damage_told_at):
            member.damage = ()
        await self._offsets.auto_commit(group, member, arrived)
        await self._coordination.release(group, member)
        await self._coordination.sure(group)
        known = member.told_version if known_version is None else known_version
        deadline: float | None = None
        while self._is_there(turn) and member.version == known:
            rung = self._coordination.parks.rung
            places = self._places(group, member)
            there = [place for place in places if place.is_deliverable]
            logs = [place.partition.log for place in there]
            marks = [(each.written, each.end_offset + 1) for each in logs]
            has_credit = self._credit(group, member, places, 1) > 0
            has_messages = has_credit and await self._has_messages(group, member, there)
            if has_messages or group.damage or not self._is_there(turn) or member.version != known:
                break
            if deadline is None:
                deadline = self._coordination.parks.deadline(timeout_ms / 1000)
            try:
                if not await self._coordination.parks.wait(group, member, marks, deadline, rung):
                    break
            finally:  # also when whoever asked has left
                self._coordination.touch(member)
        return turn

    def _is_there(self, turn: Turn) -> bool:
        """Whether the poll is still its member's newest, and the member is still in the group."""
        return turn.is_newest and turn.group.members.get(turn.member.member_id) is turn.member

    def _check_received(self, received: int | None) -> None:
        given = max(self._last_number, self._clock() * _POLLS_PER_MS)
        if received is not None and received > given + _NUMBERS_AHEAD:
            raise InvalidRequest(
                f"received is {received}, and no poll has that number; it is that of the last poll whose answer "
                "arrived, or join again"
            )

    def _next_number(self, member: Member, received: int | None) -> int:
        """Larger than all before; larger than what one member says it received only for that member."""
        self._last_number = max(self._last_number + 1, self._clock() * _POLLS_PER_MS)
        return max(self._last_number, (received or 0) + 1, member.poll + 1)

    async def _has_messages(self, group: Group, member: Member, places: list[_Place]) -> bool:
        """Whether one of these partitions has a message that the member may be given."""
        for place in places:
            partition, sidecar = place.partition, place.partition.sidecar
            end = partition.log.end_offset
            if member.unreadable and member.unreadable.get(place.part) == end:
                continue
            if sidecar is None:
                if partition.log.start_offset == end:
                    continue  # nobody was ever here, and there is nothing: that needs no sidecar
                if not partition.holds_back:
                    return True
            elif sidecar.deliveries.is_drained(group.number, place.epoch, end):
                continue
            try:
                if sidecar is None:
                    sidecar = await self._sidecars.made(partition)
                if sidecar.deliveries.needs_open(group.number, place.epoch):
                    return True  # an earlier owner holds something that is about to be taken from it
                if sidecar.ahead(group.number, group.mode) is not None:
                    return True
                if (await self._attendant.staged(group, partition, 1)).has_staged:
                    return True
            except (StorageFailed, DiskFull):
                raise
            except GoQueueError as error:
                self._pass_over(group, member, place, error)
        return False

    def _places(self, group: Group, member: Member) -> list[_Place]:
        """Where it is delivered from, as far as it is open."""
        places = []
        for part in self._coordination.parts_of(group, member):
            topic = self._topics.by_id.get(part.topic_id)
            partition = None if topic is None else topic.opened(part.partition)
            if topic is not None and partition is not None:
                epoch = self._epoch(group, part)
                places.append(_Place(part, epoch, topic, partition, group.is_revoking(part)))
        return places

    def _epoch(self, group: Group, part: Part) -> int:
        return group.epoch(part) if group.mode is Mode.PARTITION else _NO_EPOCH

    def _credit(self, group: Group, member: Member, places: list[_Place], enough: int) -> int:
        """How many more messages the member may hold, which is delivered from there; not exact when there are `enough`.

        Who commits by itself has done with what it has.
        """
        most = limits.MAX_UNACKED if member.joined.auto_commit_ms is not None else member.joined.max_unacked
        sidecars = [place.partition.sidecar for place in places]
        there = [sidecar.deliveries for sidecar in sidecars if sidecar is not None]
        at_least = most - sum([deliveries.taken_of(group.number) for deliveries in there])
        if at_least >= enough:
            return at_least
        return most - sum([deliveries.held_by(group.number, member.member_id) for deliveries in there])

    # --- taking

    async def take(
        self,
        turn: Turn,
        *,
        max_messages: int,
        max_bytes: int,
        known_version: int | None = None,
        visibility_ms: int | None = None,
    ) -> Polled:
        """Lease what there is now, at most so much, at least one message."""
        group, member = turn.group, turn.member
        await self._coordination.sure(group)
        self._check_there(turn)
        places = self._places(group, member)
        incomplete = _closed(places)
        taking = _Taking(min(max_messages, self._credit(group, member, places, max_messages)), max_bytes)
        places = [place for place in places if not place.is_revoking]
        first = member.turn % len(places) if places else 0
        rotated = list(enumerate((*places[first:], *places[:first]), first + 1))
        urgent = [entry for entry in rotated if len(places) > 1 and _is_urgent(group, entry[1].partition)]
        before = [*self._starving(member, rotated), *urgent]
        visited: set[Part] = set()
        for ordinal, (count, place) in enumerate([*before, *rotated]):
            if taking.is_full:
                break
            had = len(taking.rows)
            share = -(-taking.messages_left // max(len(before) - ordinal, 1))
            visited.add(place.part)
            try:
                await self._take_from(turn, place, taking, share, visibility_ms)
            except (StorageFailed, DiskFull):
                if not taking.rows:
                    raise
                break
            except GoQueueError as error:
                self._pass_over(group, member, place, error)
            if len(taking.rows) > had:
                member.turn = count
        if urgent or member.passed_over:
            left_out = [place.part for place in places if place.part not in visited] if urgent else []
            member.passed_over = {part: member.passed_over.get(part, self._monotonic()) for part in left_out}
        await self._coordination.sure(group)
        self._check_there(turn)
        if taking.rows and turn.is_newest:
            member.answered = turn.number
        tell(group, member, turn.number)
        view = self._coordination.view(group, member, known_version)
        return Polled(group, turn.number, view, taking.rows, member.damage, incomplete)

    def _starving(self, member: Member, entries: list[_Entry]) -> list[_Entry]:
        """Partitions that were left out for long, because others had something critical: they come first now."""
        if not member.passed_over:
            return []
        since = self._monotonic() - limits.STARVING_MS
        return [entry for entry in entries if member.passed_over.get(entry[1].part, since + 1) <= since]

    def _check_there(self, turn: Turn) -> None:
        """While a poll waited its group may have been deleted, or its member may have gone."""
        self._coordination.machine.group(turn.group.name).member(turn.member.member_id)

    def _pass_over(self, group: Group, member: Member, place: _Place, error: GoQueueError) -> None:
        """It cannot be read, or was just deleted; others can be. Said once, and tried again when it has grown."""
        part, end = place.part, place.partition.log.end_offset
        if self._is_gone(place):
            return
        if member.unreadable.get(part) != end:
            name = self._coordination.part_name(part)
            log.warning("a partition cannot be read", group=group.name, partition=name, reason=str(error))
            member.unreadable[part] = end

    async def _take_from(
        self, turn: Turn, place: _Place, taking: _Taking, share: int, visibility_ms: int | None
    ) -> None:
        """From one partition, only while its assignment epoch is the one that was durable when the poll began."""
        if self._is_gone(place):  # while another partition was waited for
            return
        least = taking.messages_left - share
        group, member = turn.group, turn.member
        topic, partition, epoch = place.topic, place.partition, place.epoch
        data = partition.log
        if partition.sidecar is None and data.start_offset == data.end_offset:
            return  # nobody was ever here, and there is nothing: that needs no sidecar
        sidecar = partition.sidecar or await self._sidecars.made(partition)
        deliveries = sidecar.deliveries
        if deliveries.is_drained(group.number, epoch, data.end_offset):
            return
        span_ms = visibility_ms or member.joined.visibility_ms or topic.meta.settings.visibility_ms
        still = partial(self._may_serve, turn, place.part, epoch)
        visit = Visit(group, member.member_id, turn.number, epoch, span_ms, still)
        while not taking.is_full and taking.messages_left > least and still():
            rows = await self._attendant.serve(
                visit,
                topic,
                partition,
                count=taking.messages_left - least,
                size=taking.bytes_left,
                at_least_one=not taking.rows,
            )
            if not rows:
                if not still():  # what it had picked is ready again, and no mark tells of that
                    self._coordination.parks.wake_group(group.number)
                break
            member.took = turn.number
            for row in rows:
                taking.add(row)
            selection = deliveries.selections.get(group.number)
            if selection is None or selection.is_spent(data.end_offset):
                break
            await taking.give_way()

    def _is_gone(self, place: _Place) -> bool:
        """Whether its topic was deleted since somebody looked."""
        return self._topics.by_id.get(place.part.topic_id) is not place.topic

    def _may_serve(self, turn: Turn, part: Part, epoch: int) -> bool:
        if not self._is_there(turn):
            return False
        return turn.group.mode is not Mode.PARTITION or turn.group.is_serving(part, epoch)

    # --- giving back

    def give_back(self, group_name: str, member_id: str, number: int) -> None:
        """The reply of a poll could not be written: what it took is ready again, and was not delivered."""
        group = self._coordination.machine.by_name.get(group_name)
        member = group.members.get(member_id) if group is not None else None
        if group is not None and member is not None:
            self._give_back(group, member, number - 1, number)
            self._coordination.parks.wake_group(group.number)

    def _give_back(self, group: Group, member: Member, after: int, to: int) -> None:
        holder = "" if group.mode is Mode.PARTITION else member.member_id
        for part in self._coordination.parts_of(group, member):
            partition = self._sidecars.of(part)
            if partition is None or partition.deliveries.needs_open(group.number, self._epoch(group, part)):
                continue
            assert partition.sidecar is not None
            before = partition.sidecar.log.end_offset
            try:
                self._sidecars.write(partition, GiveBack(group.number, after, to, holder))
            except Unavailable as error:  # `received` of the next poll gives it back
                log.warning("a lease is not given back yet", group=group.name, reason=str(error))
            if partition.sidecar.log.end_offset > before:
                self._given_back.setdefault(group.number, {})[partition] = partition.sidecar.log.end_offset

    async def _keep_given_back(self, group: Group) -> None:
        """A power cut must not bring a lease back, once its member has heard of later ones."""
        while positions := self._given_back.get(group.number):
            partition, position = next(iter(positions.items()))
            try:
                await self._sidecars.durable((partition,))
            except Unavailable:  # its topic is gone
                positions.pop(partition, None)
            if positions.get(partition) == position:  # else something was given back meanwhile: once more
                del positions[partition]
        self._given_back.pop(group.number, None)


def _closed(places: list[_Place]) -> dict[str, dict[int, str]]:
    found: dict[str, dict[int, str]] = {}
    for place in places:
        if place.partition.sidecar_damage is not None:
            reasons = found.setdefault(place.topic.meta.name, {})
            reasons[place.partition.number] = str(place.partition.sidecar_damage)
    return found


def _is_urgent(group: Group, partition: Partition) -> bool:
    """Whether a partition may have something critical: it is looked at first, and shares the poll with its like."""
    return partition.sidecar is not None and partition.sidecar.is_urgent(group.number)
