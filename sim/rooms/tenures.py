"""The model beside simulated groups: who owned which partition, in which assignment epoch, and why that ended.

A tenure counts for good once the groups log is durable up to it; before that a power cut may take it back.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from goqueue.groups.group import Part
from goqueue.groups.groups import Groups
from goqueue.groups.records import MemberJoined
from goqueue.model.names import GroupNumber

Key = tuple[GroupNumber, Part]
MemberKey = tuple[GroupNumber, str]


class Tenure(NamedTuple):
    """A member owns a partition."""

    epoch: int
    member_id: str


@dataclass(slots=True)
class Standing:
    """What the machine of groups shows at one moment."""

    tenures: dict[Key, Tenure] = field(default_factory=dict)
    revoking: set[Key] = field(default_factory=set)
    members: dict[MemberKey, MemberJoined] = field(default_factory=dict)
    names: dict[str, GroupNumber] = field(default_factory=dict)
    topics: dict[Key, str] = field(default_factory=dict)


class Tenures:
    """Of all groups of one simulated broker, over all its lives."""

    def __init__(self) -> None:
        self.standing = Standing()
        self.durable: dict[tuple[Key, int], str] = {}
        """Who owned a partition in an assignment epoch, as far as that is durable."""
        self.newest: dict[Key, int] = {}
        """The newest durable assignment epoch."""
        self.seen: dict[MemberKey, int] = {}
        """When each member was last heard of."""
        self.revoked: dict[Key, int] = {}
        """Since when a member is asked to give a partition up, or has all its time again."""
        self.doubt: Any = None
        """The command that is under way."""
        self._pending: list[tuple[int, Key, Tenure]] = []

    def follow(self, standing: Standing, position: int, now: int) -> None:
        """This is so once the groups log is durable up to `position`."""
        before, self.standing = self.standing, standing
        for key, tenure in standing.tenures.items():
            if before.tenures.get(key) != tenure:
                self._pending.append((position, key, tenure))
        for member in standing.members.keys() - before.members.keys():
            self.seen[member] = now
        for key in standing.revoking:
            if key not in before.revoking or before.tenures[key].member_id != standing.tenures[key].member_id:
                self.revoked[key] = now

    def begin_life(self, standing: Standing, now: int) -> None:
        """What was found in the log is durable, and all members have all their time again."""
        self.standing = standing
        self.doubt = None
        self._pending = [(0, key, tenure) for key, tenure in standing.tenures.items()]
        self.seen = dict.fromkeys(standing.members, now)
        self.revoked = dict.fromkeys(standing.revoking, now)

    def confirm(self, durable: int) -> Iterator[tuple[Key, Tenure]]:
        """Tenures that have become durable."""
        while self._pending and self._pending[0][0] <= durable:
            _, key, tenure = self._pending.pop(0)
            yield key, tenure
            self.durable[key, tenure.epoch] = tenure.member_id
            self.newest[key] = max(self.newest.get(key, 0), tenure.epoch)


def stand(groups: Groups, names: dict[Any, str]) -> Standing:
    """What the machine shows now. `names` are those of the topics by their ids."""
    standing = Standing()
    for number, group in groups.by_number.items():
        standing.names[group.name] = number
        for member_id, member in group.members.items():
            standing.members[number, member_id] = member.joined
        for topic_id, ownership in group.ownerships.items():
            for partition, owner in enumerate(ownership.owners):
                if owner is not None:
                    key = number, Part(topic_id, partition)
                    standing.tenures[key] = Tenure(ownership.epochs[partition], owner.member_id)
                    standing.topics[key] = names[topic_id]
            standing.revoking |= {(number, Part(topic_id, partition)) for partition in ownership.revoking}
    return standing
