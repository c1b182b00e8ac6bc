"""What the machine of groups can be told to do."""

import msgspec

from goqueue.groups.group import Part
from goqueue.model import limits
from goqueue.model.groups import Assignor, Mode
from goqueue.model.names import TopicId


class Join(msgspec.Struct, frozen=True, kw_only=True):
    """Replies with the member id."""

    group: str
    client_id: str
    topics: tuple[str, ...]
    new_id: str
    """For a member that is not known yet."""
    session_ms: int
    rebalance_ms: int
    member_id: str | None = None
    instance_id: str | None = None
    assignor: Assignor | None = None
    mode: Mode | None = None
    """None: what the group has; by partition, if it is new."""
    auto_commit_ms: int | None = None
    visibility_ms: int | None = None
    """How long it may take for a message; None: what the topic says."""
    max_unacked: int = limits.DEFAULT_UNACKED
    started: tuple[TopicId, ...] = ()
    """Topics of which it is written down where the group begins."""


class Create(msgspec.Struct, frozen=True, kw_only=True):
    """Replies with the group if there was one of that name; otherwise it is made, and the reply is None."""

    group: str
    mode: Mode | None = None
    assignor: Assignor | None = None


class StartTopics(msgspec.Struct, frozen=True):
    """Where the group begins in these topics is written down with their partitions."""

    group: str
    topic_ids: tuple[TopicId, ...]


class Leave(msgspec.Struct, frozen=True):
    group: str
    member_id: str


class Release(msgspec.Struct, frozen=True):
    """A member has settled what it was delivered from partitions it was asked to give up. Others are passed over."""

    group: str
    member_id: str
    parts: tuple[Part, ...]


class Rebalance(msgspec.Struct, frozen=True):
    """Topics that the group wants have come, grown or gone for ever; or the broker was away."""

    group: str
    ended: tuple[TopicId, ...] = ()


class Renew(msgspec.Struct, frozen=True):
    """What these offsets mean has changed: owners keep the partitions, but commits of before are void."""

    group: str
    parts: tuple[Part, ...]


class Delete(msgspec.Struct, frozen=True):
    """Replies with the group."""

    group: str
