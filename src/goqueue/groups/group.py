"""A group: its members, and who owns which partition.

Hard state comes from the groups log alone; `changes` says how. Soft state, marked as such, is about time and about what
members were told; it begins anew after a restart.
Invariants: a partition has at most one owner; it gets another only after it lost the one it had; its assignment epoch,
the generation in which its owner got it, only grows.
"""

from array import array
from collections.abc import Iterable
from typing import NamedTuple

from goqueue.groups.records import MemberJoined
from goqueue.model.errors import MemberFenced, NotOwner, UnknownMember
from goqueue.model.groups import Assignor, GroupState, Mode
from goqueue.model.names import GroupNumber, TopicId


class Part(NamedTuple):
    """A partition of a topic."""

    topic_id: TopicId
    partition: int


class DamagedRange(NamedTuple):
    """Offsets of a partition that cannot be read, from `first` up to `next_offset`."""

    topic: str
    partition: int
    first: int
    next_offset: int
    reason: str


class Member:
    """One consumer."""

    __slots__ = (
        "acknowledged",
        "answered",
        "auto_committed_at",
        "damage",
        "damage_told_at",
        "joined",
        "member_id",
        "owned",
        "parked",
        "passed_over",
        "poll",
        "seen_at",
        "told",
        "told_generation",
        "told_version",
        "took",
        "turn",
        "unreadable",
        "version",
    )

    def __init__(self, joined: MemberJoined, now: int) -> None:
        self.joined = joined
        self.member_id = joined.member_id
        self.owned: dict[TopicId, array[int]] = {}
        """Its partitions, in order; also those it is asked to give up."""
        self.version = now
        """Soft. Grows when what it owns, or is to give up, changes. After a restart it is another, because it begins
        with the time: the member is told again."""
        self.told_version = -1
        """Soft: the version its last reply was about."""
        self.told_generation = 0
        """Soft: the group's generation that its last reply named."""
        self.poll = 0
        """Soft: the number of its newest poll. An older one takes nothing any more."""
        self.took = 0
        """Soft: the last of its polls that took something; 0 is unknown."""
        self.answered = 0
        """Soft: the last of those whose reply was made."""
        self.unreadable: dict[Part, int] = {}
        """Soft: partitions that could not be read when they ended here. They are tried again when they have grown."""
        self.damage: tuple[DamagedRange, ...] = ()
        """Soft: what its group passed over and it is being told, until it says that it has heard."""
        self.damage_told_at = 0
        """Soft: by the answer to which of its polls, the first time."""
        self.seen_at = now
        """Soft: when it was last heard of."""
        self.parked = 0
        """Soft: polls that wait. While there is one the member is there; it is heard of when one ends."""
        self.told: frozenset[Part] = frozenset()
        """Soft: what its last reply told it to give up."""
        self.acknowledged: set[Part] = set()
        """Soft: what it was told to give up and has been heard of since."""
        self.turn = 0
        """Soft: which of its partitions is looked at first by the next poll."""
        self.passed_over: dict[Part, int] = {}
        """Soft: partitions its last polls did not come to, because others had something critical, and since when."""
        self.auto_committed_at = now
        """Soft: when what it was delivered was last settled without its asking."""

    @property
    def parts(self) -> list[Part]:
        return [Part(topic_id, number) for topic_id, numbers in self.owned.items() for number in numbers]


class Ownership:
    """Who owns the partitions of one topic. What nobody owns has no epoch: 0."""

    __slots__ = ("epochs", "owners", "revoking")

    def __init__(self) -> None:
        self.owners: list[Member | None] = []
        self.epochs: array[int] = array("q")
        self.revoking: dict[int, int] = {}
        """Partitions whose owner is asked to give them up, and until when it may take its time (soft)."""

    def owner(self, number: int) -> Member:
        """Of a partition that is owned."""
        owner = self.owners[number]
        assert owner is not None, f"nobody owns partition {number}"
        return owner

    def grow(self, count: int) -> None:
        missing = count - len(self.owners)
        if missing > 0:
            self.owners += [None] * missing
            self.epochs.extend([0] * missing)


class Group:
    """Looked at by anybody, changed by `changes`."""

    __slots__ = (
        "assignor",
        "by_instance",
        "changed_at",
        "damage",
        "generation",
        "members",
        "met_damage",
        "mode",
        "name",
        "number",
        "ownerships",
        "paused",
        "rebalancing_since",
        "started",
    )

    def __init__(self, number: GroupNumber, name: str, mode: Mode, assignor: Assignor) -> None:
        self.number = number
        self.name = name
        self.mode = mode
        self.assignor = assignor
        self.generation = 0
        self.changed_at = 0
        """Soft: up to where the groups log must be durable before any of this may be told. Set by who writes it."""
        self.members: dict[str, Member] = {}
        """In the order in which they joined."""
        self.by_instance: dict[str, Member] = {}
        self.ownerships: dict[TopicId, Ownership] = {}
        self.started: set[TopicId] = set()
        """Topics in which it is written down where the group begins."""
        self.paused: dict[Part, int] = {}
        """Soft: partitions that are to be given up, and since when their owners are not delivered from them."""
        self.rebalancing_since: int | None = None
        """Soft: when the first partition was asked for of those that are on their way."""
        self.met_damage: dict[tuple[TopicId, int, int, int], None] = {}
        """Soft: what it passed over, by topic, partition and offsets; the last ones."""
        self.damage: list[DamagedRange] = []
        """Soft: the same, as long as no member was told."""

    @property
    def state(self) -> GroupState:
        if not self.members:
            return GroupState.EMPTY
        return GroupState.REBALANCING if self.is_rebalancing else GroupState.STABLE

    @property
    def is_rebalancing(self) -> bool:
        """Whether a partition is on its way from one member to another."""
        return any(ownership.revoking for ownership in self.ownerships.values())

    @property
    def leader(self) -> Member | None:
        """Who is here longest."""
        return next(iter(self.members.values()), None)

    def member(self, member_id: str) -> Member:
        member = self.members.get(member_id)
        if member is not None:
            return member
        if any(other.joined.replaced_id == member_id for other in self.by_instance.values()):
            raise MemberFenced(
                f"{member_id!r} was replaced: another process joined group {self.name!r} with the same instance id"
            )
        raise UnknownMember(
            f"group {self.name!r} has no member {member_id[:80]!r}; it may have been silent for too long: join again"
        )

    def owner(self, part: Part) -> Member | None:
        ownership = self.ownerships.get(part.topic_id)
        if ownership is None or not 0 <= part.partition < len(ownership.owners):
            return None
        return ownership.owners[part.partition]

    def epoch(self, part: Part) -> int:
        """The assignment epoch of a partition that is owned."""
        return self.ownerships[part.topic_id].epochs[part.partition]

    def is_revoking(self, part: Part) -> bool:
        ownership = self.ownerships.get(part.topic_id)
        return ownership is not None and part.partition in ownership.revoking

    def is_serving(self, part: Part, epoch: int) -> bool:
        """Whether the owner that got a partition in this epoch still has it and is not asked to give it up."""
        ownership, number = self.ownerships.get(part.topic_id), part.partition
        return (
            ownership is not None
            and number < len(ownership.owners)
            and ownership.owners[number] is not None
            and ownership.epochs[number] == epoch
            and number not in ownership.revoking
        )

    def revoking(self, member: Member) -> list[Part]:
        """What a member is asked to give up."""
        return [
            Part(topic_id, number)
            for topic_id, numbers in member.owned.items()
            if (asked := self.ownerships[topic_id].revoking)
            for number in numbers
            if number in asked
        ]

    @property
    def window_end(self) -> int | None:
        """When the first of those who are asked to give something up has to have done so."""
        return min((end for each in self.ownerships.values() for end in each.revoking.values()), default=None)

    def overdue(self, now: int) -> set[Part]:
        """What members had to give up by now."""
        return {
            Part(topic_id, number)
            for topic_id, ownership in self.ownerships.items()
            for number, end in ownership.revoking.items()
            if end <= now
        }

    def owns(self, member: Member, part: Part, generation: int | None) -> bool:
        """The fence: whether a member may settle what it was delivered from a partition.

        It owns it, or has not given it up yet, and did not get it after the generation it speaks of.
        """
        return self.owner(part) is member and (generation is None or generation >= self.epoch(part))

    def refuse(self, names: Iterable[str]) -> NotOwner:
        refused = sorted(names)
        return NotOwner(
            f"these partitions are no longer, or not yet, this member's: {', '.join(refused)}; poll to see what it has",
            refused=refused,
        )
