"""What the records of the groups log do to a group. Nothing else changes its hard state.

Only two records change who owns what, `Reassigned` and `MemberReplaced`; `Renewed` changes since when. After each
record the group is whole, because a power cut may take the rest of what was decided with it.
"""

from array import array
from bisect import insort
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from goqueue.groups.group import Group, Member, Ownership, Part
from goqueue.groups.records import MemberJoined, MemberLeft, MemberReplaced, Parts, PartsRestored, Reassigned, Renewed
from goqueue.model import limits


def begin_life(group: Group, now: int) -> None:
    """After a restart: members are there, and have all their time again."""
    for member in group.members.values():
        member.seen_at = member.auto_committed_at = member.version = now
    for topic_id, ownership in group.ownerships.items():
        for number in list(ownership.revoking):
            _revoke(group, Part(topic_id, number), now)
    group.rebalancing_since = now if group.is_rebalancing else None


# --- members


def join(group: Group, event: MemberJoined, now: int) -> None:
    """A new member, or one that said something else."""
    member = group.members.get(event.member_id)
    if member is None:
        member = group.members[event.member_id] = Member(event, now)
    else:
        member.joined = event
        member.seen_at = now
    if event.instance_id is not None:
        group.by_instance[event.instance_id] = member


def replace(group: Group, event: MemberReplaced, now: int) -> None:
    """The place in the order stays, the partitions stay; the epochs are new: what was delivered is not settled."""
    group.generation += 1
    old = group.members[event.member_id]
    _tell_another(group, old)
    new = Member(msgspec.structs.replace(old.joined, member_id=event.new_id, replaced_id=event.member_id), now)
    new.owned, old.owned = old.owned, {}
    members = [new if member is old else member for member in group.members.values()]
    group.members = {member.member_id: member for member in members}
    if old.joined.instance_id is not None:
        group.by_instance[old.joined.instance_id] = new
    for part in new.parts:
        ownership = group.ownerships[part.topic_id]
        ownership.owners[part.partition] = new
        ownership.epochs[part.partition] = group.generation


def leave(group: Group, event: MemberLeft) -> None:
    """What it owned was released before."""
    member = group.members.pop(event.member_id)
    _tell_another(group, member)
    if member.joined.instance_id is not None:
        del group.by_instance[member.joined.instance_id]


def _tell_another(group: Group, member: Member) -> None:
    """Give back the damage that a member which goes was told of, without having said that it heard."""
    group.damage = [*member.damage, *group.damage][-limits.DAMAGE_TOLD :]
    member.damage = ()


# --- ownership


class Rebalanced(NamedTuple):
    """What a reassignment has come to."""

    pauses_ms: list[int]
    """Of each partition that got its next owner: for how long nobody was delivered from it."""
    duration_ms: int | None
    """Since the group began to change, if everybody has now what the assignor said."""


def reassign(group: Group, event: Reassigned, now: int) -> Rebalanced:
    """A new generation: owners lose, keep, are asked to give up, and get partitions."""
    group.generation += 1
    if group.rebalancing_since is None:
        group.rebalancing_since = now
    released = {part: _take(group, part, now) for part in _each(event.released)}
    for part in _each(event.kept):
        _keep(group, part)
    for part in _each(event.revoked):
        _revoke(group, part, now)
    pauses = []
    for grant in event.granted:
        member = group.members[grant.member_id]
        for number in grant.partitions:
            part = Part(grant.topic_id, number)
            _give(group, member, part, epoch=group.generation)
            if part in released:
                pauses.append(now - released[part])
    for topic_id in [topic_id for topic_id, each in group.ownerships.items() if not any(each.owners)]:
        del group.ownerships[topic_id]
    if group.is_rebalancing:
        return Rebalanced(pauses, None)
    duration_ms = now - group.rebalancing_since
    group.rebalancing_since = None
    return Rebalanced(pauses, duration_ms)


def renew(group: Group, event: Renewed) -> None:
    group.generation += 1
    for part in _each(event.parts):
        ownership = group.ownerships[part.topic_id]
        owner = ownership.owners[part.partition]
        assert owner is not None, "only what is owned is renewed"
        ownership.epochs[part.partition] = group.generation
        owner.version += 1


def restore(group: Group, event: PartsRestored, now: int) -> None:
    """As a snapshot has it. The members are there already."""
    members = list(group.members.values())
    group.ownerships[event.topic_id] = Ownership()
    group.ownerships[event.topic_id].grow(len(event.owners))
    for number, (place, epoch) in enumerate(zip(event.owners, event.epochs, strict=True)):
        if place is not None:
            _give(group, members[place], Part(event.topic_id, number), epoch=epoch)
    for number in event.revoking:
        _revoke(group, Part(event.topic_id, number), now)


def _give(group: Group, member: Member, part: Part, *, epoch: int) -> None:
    ownership = group.ownerships.setdefault(part.topic_id, Ownership())
    ownership.grow(part.partition + 1)
    ownership.owners[part.partition] = member
    ownership.epochs[part.partition] = epoch
    insort(member.owned.setdefault(part.topic_id, array("i")), part.partition)
    member.version += 1


def _take(group: Group, part: Part, now: int) -> int:
    """Returns since when its owner has not been delivered from it."""
    ownership = group.ownerships[part.topic_id]
    owner = ownership.owner(part.partition)
    ownership.owners[part.partition] = None
    ownership.epochs[part.partition] = 0
    ownership.revoking.pop(part.partition, None)
    numbers = owner.owned[part.topic_id]
    numbers.remove(part.partition)
    if not numbers:
        del owner.owned[part.topic_id]
    owner.acknowledged.discard(part)
    owner.version += 1
    return group.paused.pop(part, now)


def _revoke(group: Group, part: Part, now: int) -> None:
    """From now on its owner is not delivered from it, and has its time to settle what it was delivered."""
    ownership = group.ownerships[part.topic_id]
    owner = ownership.owner(part.partition)
    ownership.revoking[part.partition] = now + owner.joined.rebalance_ms
    group.paused[part] = now
    owner.version += 1


def _keep(group: Group, part: Part) -> None:
    """Its owner was asked to give it up, and need not any more."""
    ownership = group.ownerships[part.topic_id]
    owner = ownership.owner(part.partition)
    del ownership.revoking[part.partition]
    del group.paused[part]
    owner.acknowledged.discard(part)
    owner.version += 1


def _each(rows: Iterable[Parts]) -> Iterable[Part]:
    return (Part(row.topic_id, number) for row in rows for number in row.partitions)
