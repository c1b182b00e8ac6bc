"""What the groups log says: one struct per thing that can happen, as JSON with a `type`.

To change the format: add optional fields, or a new struct; never change the meaning of one.
`docs/internals/groups.md` lists them, and golden bytes hold them.
"""

import msgspec

from goqueue.model import limits
from goqueue.model.groups import Assignor, Mode
from goqueue.model.names import GroupNumber, TopicId


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """The base of all."""


class Parts(msgspec.Struct, frozen=True, array_like=True):
    """Partitions of one topic."""

    topic_id: TopicId
    partitions: tuple[int, ...]


class Grant(msgspec.Struct, frozen=True, array_like=True):
    """Partitions of one topic that a member gets."""

    member_id: str
    topic_id: TopicId
    partitions: tuple[int, ...]


class GroupCreated(_Event, frozen=True, kw_only=True, tag="group_created"):
    group: GroupNumber
    name: str
    mode: Mode
    assignor: Assignor


class GroupRestored(_Event, frozen=True, kw_only=True, tag="group_restored"):
    """In a snapshot: a group with everything but its members."""

    group: GroupNumber
    name: str
    mode: Mode
    assignor: Assignor
    generation: int
    started: tuple[TopicId, ...]


class PartsRestored(_Event, frozen=True, kw_only=True, tag="partitions_restored"):
    """In a snapshot: who owns a topic's partitions, since which generation, and which of them are to be given up."""

    group: GroupNumber
    topic_id: TopicId
    owners: tuple[int | None, ...]
    """By partition: its owner's place among the members, counted from 0 in the order in which they were written."""
    epochs: tuple[int, ...]
    revoking: tuple[int, ...]


class AssignorChanged(_Event, frozen=True, kw_only=True, tag="assignor_changed"):
    group: GroupNumber
    assignor: Assignor


class GroupDeleted(_Event, frozen=True, kw_only=True, tag="group_deleted"):
    group: GroupNumber


class NumbersGiven(_Event, frozen=True, kw_only=True, tag="group_numbers_given"):
    """In a snapshot: numbers below `below` belonged to groups, living or deleted."""

    below: int


class TopicsStarted(_Event, frozen=True, kw_only=True, tag="topics_started"):
    """Where the group begins in these topics has been written down with their partitions."""

    group: GroupNumber
    topic_ids: tuple[TopicId, ...]


class TopicsEnded(_Event, frozen=True, kw_only=True, tag="topics_ended"):
    """These topics were deleted."""

    group: GroupNumber
    topic_ids: tuple[TopicId, ...]


class MemberJoined(_Event, frozen=True, kw_only=True, omit_defaults=True, tag="member_joined"):
    """A new member, or one that joined again and said something else."""

    group: GroupNumber
    member_id: str
    client_id: str
    topics: tuple[str, ...]
    session_ms: int
    rebalance_ms: int
    instance_id: str | None = None
    auto_commit_ms: int | None = None
    """How often what it was delivered is settled without its asking; None: never."""
    replaced_id: str | None = None
    """Of the process before it with the same instance id."""
    visibility_ms: int | None = None
    """How long it may take for a message; None: what the topic says."""
    max_unacked: int = limits.DEFAULT_UNACKED
    """How many messages it may hold."""


class MemberReplaced(_Event, frozen=True, kw_only=True, tag="member_replaced"):
    """Another process with the same instance id takes the place and the partitions of a member, in a new generation."""

    group: GroupNumber
    member_id: str
    new_id: str


class MemberLeft(_Event, frozen=True, kw_only=True, tag="member_left"):
    """It owns nothing: that was released before."""

    group: GroupNumber
    member_id: str
    expired: bool
    """It was silent for too long."""


class Reassigned(_Event, frozen=True, kw_only=True, omit_defaults=True, tag="reassigned"):
    """A new generation. In this order: owners lose, keep, are asked to give up, and get partitions."""

    group: GroupNumber
    released: tuple[Parts, ...] = ()
    kept: tuple[Parts, ...] = ()
    """They were asked to give them up and need not any more."""
    revoked: tuple[Parts, ...] = ()
    granted: tuple[Grant, ...] = ()


class Renewed(_Event, frozen=True, kw_only=True, tag="renewed"):
    """A new generation in which owners got these partitions anew, so that commits of before are refused."""

    group: GroupNumber
    parts: tuple[Parts, ...]


Event = (
    GroupCreated
    | GroupRestored
    | PartsRestored
    | AssignorChanged
    | GroupDeleted
    | NumbersGiven
    | TopicsStarted
    | TopicsEnded
    | MemberJoined
    | MemberReplaced
    | MemberLeft
    | Reassigned
    | Renewed
)

_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)
encode = msgspec.json.Encoder().encode
decode = _decoder.decode
