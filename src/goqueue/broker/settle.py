"""Settling messages that were delivered: ack, nack, reject, extend, release.

A claim names messages of one partition, a group, and the poll that was given them; whoever makes one has checked that
it was issued. It is good for a message as long as that poll is the last one that was given the message. Claims of one
request may be of different groups and partitions. They are bitmaps: what many messages of one poll cost is what one
costs. A receipt handle is a claim of one message; handles are gathered into claims, and each gets an answer of its own.

What is answered is as safe as the topic's messages are.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from pyroaring import BitMap64

from goqueue.broker.coordination import Coordination
from goqueue.broker.partition import Partition
from goqueue.broker.sidecars import Sidecars
from goqueue.broker.topics import TopicCatalogue
from goqueue.delivery.commands import Ack, Claims, Extend, Nack, Nacked, Pledge, Reject, Release
from goqueue.delivery.handles import Handle
from goqueue.groups.group import Group, Member, Part
from goqueue.model.errors import GoQueueError, StaleHandle, UnknownPartition, UnknownTopic
from goqueue.model.groups import Mode
from goqueue.model.names import GroupNumber, TopicId, dlq_name
from goqueue.model.settings import Fsync
from goqueue.telemetry.meters import GroupMeterSet

_STALE: Final = (
    "this handle is not good any more: its time is up, or the message was settled, given back or delivered again "
    "since; poll again"
)
_NONE: Final = BitMap64()


class Verdict(NamedTuple):
    """What is to become of messages."""

    command: Callable[[GroupNumber, Claims, Partition], Any]
    counter: str | None
    """Of the group's meters."""
    ends: bool = True
    """Whether a handle is good once: it names nothing any more when this was done."""


ACK: Final = Verdict(lambda group, claims, _: Ack(group, claims), "acked")


def nack(delay_ms: int | None) -> Verdict:
    """Try again, after so long or as the topic says."""
    return Verdict(lambda group, claims, partition: Nack(group, claims, partition.retries, delay_ms), "nacked")


def reject(detail: str) -> Verdict:
    return Verdict(
        lambda group, claims, partition: Reject(group, claims, partition.has_dead_letters, detail), "rejected"
    )


RELEASE: Final = Verdict(lambda group, claims, _: Release(group, claims), None)
"""Not tried: somebody else may have them, and they do not count as delivered."""


def pledge(transaction: int, on_pledged: Callable[[Partition], None]) -> Verdict:
    """An ack that counts if the transaction is committed; told of a partition before it is written there."""

    def command(group: GroupNumber, claims: Claims, partition: Partition) -> Pledge:
        on_pledged(partition)
        return Pledge(group, claims, transaction)

    return Verdict(command, None)


def extend(span_ms: int) -> Verdict:
    """Hold them for so long from now."""
    return Verdict(lambda group, claims, _: Extend(group, claims, span_ms), None, ends=False)


class Claim(msgspec.Struct, frozen=True, gc=False):
    """Messages of one partition that one poll was given."""

    group: GroupNumber
    topic_id: TopicId
    partition: int
    poll: int
    offsets: BitMap64


class Outcome(msgspec.Struct, frozen=True):
    """What became of a claim."""

    refused: BitMap64
    """Those that the claim is no longer good for."""
    error: GoQueueError | None = None
    """Why nothing of it was done: it cannot be good any more (StaleHandle), or could not be written down."""
    partition: Partition | None = None
    nacked: Nacked | None = None


class Fate(NamedTuple):
    """What became of one handle's message."""

    refusal: GoQueueError | None = None
    visible_at: int | None = None
    """When it is tried again, or how long it is held now."""
    dlq_topic: str | None = None
    """Where it went, if it is dead."""


class _Claimed:
    """The claims of one group on one partition."""

    __slots__ = ("claims", "group", "partition", "places")

    def __init__(self, group: Group, partition: Partition) -> None:
        self.group = group
        self.partition = partition
        self.claims: dict[int, BitMap64] = {}
        """By poll."""
        self.places: list[int] = []
        """Which claims of the request they are."""

    def add(self, place: int, claim: Claim) -> None:
        self.places.append(place)
        if claim.poll not in self.claims:
            self.claims[claim.poll] = BitMap64()
        self.claims[claim.poll] |= claim.offsets


class Pending:
    """What has to be waited for before the outcomes may be told. It holds on to no messages."""

    __slots__ = ("_coordination", "_leaving", "_sidecars", "_unsafe")

    def __init__(self, coordination: Coordination, sidecars: Sidecars) -> None:
        self._coordination = coordination
        self._sidecars = sidecars
        self._leaving: list[tuple[Group, Member]] = []
        """Members that are giving partitions up, and may have finished."""
        self._unsafe: list[Partition] = []

    def __bool__(self) -> bool:
        return bool(self._leaving or self._unsafe)

    def add(self, group: Group, owner: Member | None, partition: Partition) -> None:
        if owner is not None and owner.acknowledged:
            self._leaving.append((group, owner))
        assert partition.sidecar is not None
        if partition.sidecar.log.settings.fsync is Fsync.EVERY:
            self._unsafe.append(partition)

    async def safe(self) -> None:
        for group, member in self._leaving:
            await self._coordination.release(group, member)
        for partition in self._unsafe:
            await self._sidecars.safe(partition)


class Settlement:
    """Used from one event loop."""

    def __init__(
        self, *, coordination: Coordination, sidecars: Sidecars, topics: TopicCatalogue, meters: GroupMeterSet
    ) -> None:
        self._coordination = coordination
        self._sidecars = sidecars
        self._topics = topics
        self._meters = meters

    # --- claims

    def nothing(self) -> Pending:
        """What has to be waited for when nothing was settled."""
        return Pending(self._coordination, self._sidecars)

    def settle(self, verdict: Verdict, claims: Sequence[Claim]) -> tuple[list[Outcome], Pending]:
        """What became of each claim, to be told once what is pending is safe. All is written when this returns."""
        outcomes = [Outcome(_NONE)] * len(claims)
        pending = Pending(self._coordination, self._sidecars)
        for claimed in self._gather(claims, outcomes):
            try:
                reply = self._write(verdict, claimed)
            except GoQueueError as error:
                for place in claimed.places:
                    outcomes[place] = Outcome(claims[place].offsets, error, claimed.partition)
                continue
            nacked = reply if isinstance(reply, Nacked) else None
            refused = _refused(reply)
            for place in claimed.places:
                claim = claims[place]
                mine = claim.offsets & refused[claim.poll] if claim.poll in refused else _NONE
                outcomes[place] = Outcome(mine, None, claimed.partition, nacked)
            pending.add(claimed.group, self._make_room(claimed), claimed.partition)
        return outcomes, pending

    def _gather(self, claims: Sequence[Claim], outcomes: list[Outcome]) -> Iterable[_Claimed]:
        """By group and partition; claims on what is not there are refused."""
        found: dict[tuple[GroupNumber, TopicId, int], _Claimed] = {}
        for place, claim in enumerate(claims):
            key = claim.group, claim.topic_id, claim.partition
            claimed = found.get(key)
            if claimed is None:
                try:
                    claimed = found[key] = self._find(claim)
                except GoQueueError as error:
                    outcomes[place] = Outcome(claim.offsets, error)
                    continue
            claimed.add(place, claim)
        return found.values()

    def _find(self, claim: Claim) -> _Claimed:
        group = self._coordination.machine.by_number.get(claim.group)
        if group is None:
            raise StaleHandle("the group this handle is of was deleted")
        try:
            partition = self._topics.identified(claim.topic_id).partition(claim.partition)
        except (UnknownTopic, UnknownPartition):
            raise StaleHandle("the topic this handle is of was deleted") from None
        if partition.sidecar is None or self._has_moved(group, Part(claim.topic_id, claim.partition), partition):
            raise StaleHandle(_STALE)
        return _Claimed(group, partition)

    def _has_moved(self, group: Group, part: Part, partition: Partition) -> bool:
        """Whether the partition was given to another member since."""
        if group.mode is not Mode.PARTITION or group.owner(part) is None:
            return False
        return partition.deliveries.needs_open(group.number, group.epoch(part))

    def _write(self, verdict: Verdict, claimed: _Claimed) -> Any:
        group, partition, claims = claimed.group, claimed.partition, claimed.claims
        self._touch(group, partition, claims)
        reply = self._sidecars.write(partition, verdict.command(group.number, claims, partition))
        if verdict.counter is not None:
            count = _count(claims) - _count(_refused(reply))
            self._meters.settled(group.name, partition.topic.name, verdict.counter, count)
            dead = len(reply.dead) if isinstance(reply, Nacked) else count if verdict.counter == "rejected" else 0
            if dead:
                self._meters.died(group.name, partition.topic.name, verdict.counter, dead)
        return reply

    def _touch(self, group: Group, partition: Partition, claims: Claims) -> None:
        """Who settles what it holds is there."""
        leases = partition.deliveries.delivery(group.number).leases
        for holder in {lease.holder for poll in claims for lease in leases.get(poll, ())}:
            member = group.members.get(holder)
            if member is not None:
                self._coordination.touch(member)

    def _make_room(self, claimed: _Claimed) -> Member | None:
        """Who held too much may be given more. The owner of the partition, if it has one."""
        group = claimed.group
        owner = group.owner(Part(claimed.partition.topic.topic_id, claimed.partition.number))
        if owner is not None:
            self._coordination.has_room(group, owner.member_id)
        else:
            self._coordination.parks.wake_group(group.number)
        return owner

    # --- handles

    async def ack(self, handles: Sequence[Handle]) -> list[Fate]:
        return await self._settle_handles(ACK, handles, lambda *_: Fate())

    async def pledge(
        self, transaction: int, handles: Sequence[Handle], on_pledged: Callable[[Partition], None]
    ) -> list[Fate]:
        """Acks that count if the transaction is committed. `on_pledged` hears of each partition that may have some."""
        return await self._settle_handles(pledge(transaction, on_pledged), handles, lambda *_: Fate())

    async def release(self, handles: Sequence[Handle]) -> list[Fate]:
        return await self._settle_handles(RELEASE, handles, lambda *_: Fate())

    async def nack(self, handles: Sequence[Handle], delay_ms: int | None) -> list[Fate]:
        def show(handle: Handle, outcome: Outcome) -> Fate:
            assert outcome.nacked is not None
            dlq_topic = _dlq_of(outcome.partition) if handle.offset in outcome.nacked.dead else None
            return Fate(None, outcome.nacked.until.get(handle.offset), dlq_topic)

        return await self._settle_handles(nack(delay_ms), handles, show)

    async def reject(self, handles: Sequence[Handle], detail: str) -> list[Fate]:
        def show(_: Handle, outcome: Outcome) -> Fate:
            return Fate(None, None, _dlq_of(outcome.partition))

        return await self._settle_handles(reject(detail), handles, show)

    async def extend(self, handles: Sequence[Handle], span_ms: int, now: int) -> list[Fate]:
        return await self._settle_handles(extend(span_ms), handles, lambda *_: Fate(None, now + span_ms))

    async def _settle_handles(
        self, verdict: Verdict, handles: Sequence[Handle], show: Callable[[Handle, Outcome], Fate]
    ) -> list[Fate]:
        """A handle that is named twice settles once: the second time it is as stale as in a later request."""
        by_poll: dict[tuple[GroupNumber, str, int, int], list[Handle]] = {}
        for handle in handles:
            by_poll.setdefault((handle.group, handle.topic, handle.partition, handle.lease), []).append(handle)
        found: dict[Handle, Fate] = {}
        claims: list[Claim] = []
        claimants: list[list[Handle]] = []
        for alike in by_poll.values():
            try:
                claims.append(self._claim_of(alike))
                claimants.append(alike)
            except GoQueueError as error:
                found.update(dict.fromkeys(alike, Fate(error)))
        outcomes, pending = self.settle(verdict, claims)
        for alike, outcome in zip(claimants, outcomes, strict=True):
            stale = Fate(outcome.error or StaleHandle(_STALE))
            for handle in alike:
                found[handle] = stale if handle.offset in outcome.refused else show(handle, outcome)
        await pending.safe()
        fates: list[Fate] = []
        for handle in handles:
            fate = found[handle]
            fates.append(fate)
            if fate.refusal is None and verdict.ends:
                found[handle] = Fate(StaleHandle(_STALE))
        return fates

    def _claim_of(self, alike: Sequence[Handle]) -> Claim:
        """Of handles of one poll on one partition."""
        of = alike[0]
        try:
            topic_id = self._topics.named(of.topic).meta.topic_id
        except UnknownTopic:
            raise StaleHandle(f"the topic {of.topic!r} this handle is of was deleted") from None
        return Claim(of.group, topic_id, of.partition, of.lease, BitMap64([handle.offset for handle in alike]))


def _refused(reply: Any) -> Claims:
    refused: Claims = reply.refused if isinstance(reply, Nacked) else reply
    return refused


def _count(claims: Claims) -> int:
    return sum([len(offsets) for offsets in claims.values()])


def _dlq_of(partition: Partition | None) -> str | None:
    return dlq_name(partition.topic.name) if partition is not None and partition.has_dead_letters else None
