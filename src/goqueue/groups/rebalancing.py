"""Who should own what, and which steps lead there: the one record that brings a group as near as it may get now.

Owners that stay are asked to give up what should be another's, and lose it only when they have, or when their time is
up. What nobody owns is granted. Nothing is taken from a member to be given back to it.
"""

from collections.abc import Collection, Iterable, Mapping
from itertools import zip_longest
from typing import Final, NamedTuple, Protocol

from goqueue.groups.assignors import assign
from goqueue.groups.group import Group, Ownership, Part
from goqueue.groups.records import Event, Grant, Parts, Reassigned
from goqueue.model.groups import Assignor, Mode
from goqueue.model.names import TopicId

_NOBODY: Final = Ownership()


class TopicShape(NamedTuple):
    """What a group needs to know of a topic."""

    topic_id: TopicId
    partitions: int


class Catalogue(Protocol):
    """Who knows the topics."""

    def shape_of(self, name: str) -> TopicShape | None: ...


def reassign(
    catalogue: Catalogue,
    group: Group,
    wanted: Mapping[str, Iterable[str]],
    *,
    assignor: Assignor | None = None,
    released: Collection[Part] = (),
    renamed: Mapping[str, str] | None = None,
) -> list[Event]:
    """What must change so that members who want these topics get what they should have. Nothing, or one record.

    `wanted` is by member id, in the order they joined; who is not in it goes. `released` is what owners were asked to
    give up and need no more time for; `renamed` are members whose place another one takes.
    """
    if group.mode is not Mode.PARTITION:  # nobody owns anything
        return []
    shapes, subscriptions = _find_topics(catalogue, wanted)
    owners = {
        topic_id: _eligible_owners(
            group.ownerships.get(topic_id, _NOBODY), topic_id, count, subscriptions, renamed or {}
        )
        for topic_id, count in sorted(shapes.items())
    }
    target = assign(assignor or group.assignor, owners, subscriptions)
    lost: list[Part] = []
    kept: list[Part] = []
    revoked: list[Part] = []
    granted: dict[tuple[str, TopicId], list[int]] = {}
    for topic_id in sorted(group.ownerships.keys() | target.keys()):
        ownership = group.ownerships.get(topic_id, _NOBODY)
        rows = zip_longest(ownership.owners, owners.get(topic_id, ()), target.get(topic_id, ()))
        for number, (owner, has, should) in enumerate(rows):
            if owner is not None and has is None:
                lost.append(Part(topic_id, number))  # it went, wants it no more, or there is no such partition
            if has == should:
                if has is not None and number in ownership.revoking:
                    kept.append(Part(topic_id, number))
                continue
            if has is not None:
                if number not in ownership.revoking:
                    revoked.append(Part(topic_id, number))
                    continue
                if Part(topic_id, number) not in released:
                    continue
                lost.append(Part(topic_id, number))
            assert should is not None, "who may keep a partition subscribes it, so that it is somebody's"
            granted.setdefault((should, topic_id), []).append(number)
    if not (lost or kept or revoked or granted):
        return []
    return [
        Reassigned(
            group=group.number,
            released=by_topic(lost),
            kept=by_topic(kept),
            revoked=by_topic(revoked),
            granted=tuple(
                Grant(member_id, topic_id, tuple(numbers)) for (member_id, topic_id), numbers in granted.items()
            ),
        )
    ]


def _find_topics(
    catalogue: Catalogue, wanted: Mapping[str, Iterable[str]]
) -> tuple[dict[TopicId, int], dict[str, set[TopicId]]]:
    """How many partitions the wanted topics have, and who wants which. Some may not be there (any more)."""
    shapes: dict[TopicId, int] = {}
    subscriptions: dict[str, set[TopicId]] = {}
    for member_id, names in wanted.items():
        found = [shape for shape in map(catalogue.shape_of, names) if shape is not None]
        subscriptions[member_id] = {shape.topic_id for shape in found}
        shapes.update(found)
    return shapes, subscriptions


def _eligible_owners(
    ownership: Ownership,
    topic_id: TopicId,
    count: int,
    subscriptions: Mapping[str, set[TopicId]],
    renamed: Mapping[str, str],
) -> list[str | None]:
    """Who owns the partitions of a topic, is to stay, and still wants it."""
    ids: list[str | None] = [None] * count
    for number, owner in enumerate(ownership.owners[:count]):
        if owner is not None:
            member_id = renamed.get(owner.member_id, owner.member_id)
            ids[number] = member_id if topic_id in subscriptions.get(member_id, ()) else None
    return ids


def by_topic(parts: Iterable[Part]) -> tuple[Parts, ...]:
    rows: dict[TopicId, list[int]] = {}
    for topic_id, number in parts:
        rows.setdefault(topic_id, []).append(number)
    return tuple(Parts(topic_id, tuple(numbers)) for topic_id, numbers in rows.items())
