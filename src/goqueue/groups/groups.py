"""The machine that knows every group: who is in it and who owns which partition.

Rebalancing is incremental, and there is no other way. Whenever members or topics change, the assignor says who should
own what. A partition that nobody owns is granted at once. One that is with another member is *revoked*: its owner is
asked to give it up, goes on settling what it was delivered, and loses it when it has, or when its time is up. Only
then is it granted, in a new generation, which is its assignment epoch. Nothing else is touched: whoever keeps a
partition does not notice. What is decided here is worked out in `rebalancing` and done by `changes`.

Time comes in as `now`, monotonic milliseconds. Sessions and the time members have to give something up are soft: a
restart begins them anew, so that a broker that was away does not blame its members.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol

import msgspec

from goqueue.base.deadlines import Deadlines
from goqueue.groups import changes, records
from goqueue.groups.commands import Create, Delete, Join, Leave, Rebalance, Release, Renew, StartTopics
from goqueue.groups.group import Group, Member, Part
from goqueue.groups.rebalancing import Catalogue, by_topic, reassign
from goqueue.groups.records import (
    AssignorChanged,
    Event,
    GroupCreated,
    GroupDeleted,
    GroupRestored,
    MemberJoined,
    MemberLeft,
    MemberReplaced,
    NumbersGiven,
    PartsRestored,
    Reassigned,
    Renewed,
    TopicsEnded,
    TopicsStarted,
)
from goqueue.machine.shape import Decision, Tick
from goqueue.model import limits
from goqueue.model.errors import Conflict, DamagedData, GroupActive, MemberFenced, UnknownGroup, UnknownTopic
from goqueue.model.groups import Assignor, Mode
from goqueue.model.names import GroupNumber, TopicId

_FIRST_NUMBER = GroupNumber(1)
_RETRY_MS = 1000
"""When something was due and could not be written down."""
_TICK_BYTES = 64 * limits.KIB
"""What one Tick writes, about. If there is more to do, another one is due at once; others get a turn before it."""


class Observer(Protocol):
    """Who counts what happens."""

    def moved(self, group: Group, pause_ms: int) -> None:
        """A partition got its next owner; nobody was delivered from it for so long."""

    def expired(self, group: Group, member_id: str) -> None:
        """A member was silent for too long."""

    def rebalanced(self, group: Group, duration_ms: int) -> None:
        """Everybody has what the assignor said, so long after the first partition was asked for."""


_DeadlineKey = tuple[GroupNumber, str | None]
"""A member's session, or without a member the time its group's members have to give something up."""


class Groups:
    """One for all groups of a broker."""

    name = "groups"

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._now = 0
        self.observer: Observer | None = None
        self._decisions: dict[type, Callable[[Any], Decision]] = {
            Join: self._decide_join,
            Create: self._decide_create,
            StartTopics: self._decide_start,
            Leave: self._decide_leave,
            Release: self._decide_release,
            Rebalance: self._decide_rebalance,
            Renew: self._decide_renew,
            Delete: self._decide_delete,
            Tick: self._decide_tick,
        }
        self._changes: dict[type, Callable[[Any], None]] = {
            GroupCreated: self._apply_created,
            GroupRestored: self._apply_restored,
            PartsRestored: self._apply_parts_restored,
            AssignorChanged: self._apply_assignor,
            GroupDeleted: self._apply_deleted,
            NumbersGiven: self._apply_numbers,
            TopicsStarted: self._apply_started,
            TopicsEnded: self._apply_ended,
            MemberJoined: self._apply_joined,
            MemberReplaced: self._apply_replaced,
            MemberLeft: self._apply_left,
            Reassigned: self._apply_reassigned,
            Renewed: lambda event: changes.renew(self.by_number[event.group], event),
        }
        self.reset()

    def reset(self) -> None:
        self.by_name: dict[str, Group] = {}
        self.by_number: dict[GroupNumber, Group] = {}
        self.next_number = _FIRST_NUMBER
        self._deadlines: Deadlines[_DeadlineKey] = Deadlines()

    def begin_life(self, now: int) -> None:
        """After a restart, before the first command: sessions begin anew.

        Then every group wants a `Rebalance`: topics may have changed, and a power cut may have taken the end of what
        was decided last.
        """
        self._now = now
        self._deadlines = Deadlines()
        for group in self.by_number.values():
            changes.begin_life(group, now)
            for member in group.members.values():
                self._arm_session(group, member)
            self._arm_window(group)

    # --- looking

    def group(self, name: str) -> Group:
        group = self.by_name.get(name)
        if group is None:
            raise UnknownGroup(f"there is no group {name[:80]!r}; join it to create it")
        return group

    def touch(self, member: Member, now: int) -> None:
        """The member was heard of."""
        member.seen_at = now

    def next_deadline(self) -> int | None:
        """When `Tick` has something to do, at the earliest."""
        return self._deadlines.earliest

    # --- deadlines

    def _arm_session(self, group: Group, member: Member) -> None:
        self._deadlines.arm((group.number, member.member_id), member.seen_at + member.joined.session_ms)

    def _arm_window(self, group: Group) -> None:
        key = (group.number, None)
        self._deadlines.disarm(key)
        if group.window_end is not None:
            self._deadlines.arm(key, group.window_end)

    # --- the shape of a machine

    def decide(self, command: Any, now: int) -> Decision:
        self._now = now
        return self._decisions[type(command)](command)

    def apply(self, record: bytes, offset: int) -> None:
        try:
            event = records.decode(record)
        except msgspec.DecodeError as error:
            raise DamagedData(
                f"offset {offset} of the groups log is not understood ({error}); start the version that wrote it"
            ) from error
        self._changes[type(event)](event)

    def snapshot(self) -> Iterable[bytes]:
        yield records.encode(NumbersGiven(below=self.next_number))
        for group in self.by_number.values():
            yield records.encode(
                GroupRestored(
                    group=group.number,
                    name=group.name,
                    mode=group.mode,
                    assignor=group.assignor,
                    generation=group.generation,
                    started=tuple(sorted(group.started)),
                )
            )
            for member in group.members.values():
                yield records.encode(member.joined)
            places = {member: place for place, member in enumerate(group.members.values())}
            for topic_id, ownership in group.ownerships.items():
                yield records.encode(
                    PartsRestored(
                        group=group.number,
                        topic_id=topic_id,
                        owners=tuple(None if owner is None else places[owner] for owner in ownership.owners),
                        epochs=tuple(ownership.epochs),
                        revoking=tuple(ownership.revoking),
                    )
                )

    # --- decisions about groups

    def _decide_create(self, command: Create) -> Decision:
        group = self.by_name.get(command.group)
        if group is not None:
            return Decision((), group)
        if len(self.by_number) >= limits.MAX_GROUPS:
            raise Conflict(f"there are {limits.MAX_GROUPS} groups, which is the most; delete one first")
        created = GroupCreated(
            group=self.next_number,
            name=command.group,
            mode=command.mode or Mode.PARTITION,
            assignor=command.assignor or Assignor.STICKY,
        )
        return _decided(None, created)

    def _decide_start(self, command: StartTopics) -> Decision:
        group = self.group(command.group)
        return _decided(None, *_newly_started(group, command.topic_ids))

    def _decide_delete(self, command: Delete) -> Decision:
        group = self.group(command.group)
        if group.members:
            raise GroupActive(
                f"group {group.name!r} has {len(group.members)} members; let them leave, or wait until their sessions "
                "have ended, before you delete it"
            )
        return _decided(group, GroupDeleted(group=group.number))

    # --- decisions about members

    def _decide_join(self, command: Join) -> Decision:
        group = self.group(command.group)
        known, replaced = self._find_known(group, command)
        self._check_join(group, command, known or replaced)
        member_id = command.new_id if known is None else known.member_id
        replaced_id = known.joined.replaced_id if known is not None else None
        joined = MemberJoined(
            group=group.number,
            member_id=member_id,
            client_id=command.client_id,
            topics=tuple(dict.fromkeys(command.topics)),
            session_ms=command.session_ms,
            rebalance_ms=command.rebalance_ms,
            instance_id=command.instance_id,
            auto_commit_ms=command.auto_commit_ms,
            replaced_id=replaced_id if replaced is None else replaced.member_id,
            visibility_ms=command.visibility_ms,
            max_unacked=command.max_unacked,
        )
        events: list[Event] = []
        if command.assignor is not None and command.assignor is not group.assignor:
            events.append(AssignorChanged(group=group.number, assignor=command.assignor))
        events += _newly_started(group, command.started)
        if replaced is not None:
            events.append(MemberReplaced(group=group.number, member_id=replaced.member_id, new_id=member_id))
        if known is None or known.joined != joined:
            events.append(joined)
        renamed = {} if replaced is None else {replaced.member_id: member_id}
        wanted = {renamed.get(name, name): topics for name, topics in _subscriptions(group).items()}
        wanted[member_id] = joined.topics
        # What the old process was to give up the new one was never delivered from: nobody has to wait for it.
        released = group.revoking(replaced) if replaced is not None else ()
        events += reassign(
            self._catalogue, group, wanted, assignor=command.assignor, released=released, renamed=renamed
        )
        if known is not None:
            self.touch(known, self._now)
        return _decided(member_id, *events)

    def _find_known(self, group: Group, command: Join) -> tuple[Member | None, Member | None]:
        """The member that joins again; or the one whose place the new one takes."""
        if command.member_id is None:
            return None, group.by_instance.get(command.instance_id) if command.instance_id is not None else None
        known = group.member(command.member_id)
        if known.joined.instance_id != command.instance_id:
            raise MemberFenced(
                f"{command.member_id!r} joined with another instance id; leave member_id out to join with this one"
            )
        return known, None

    def _check_join(self, group: Group, command: Join, place: Member | None) -> None:
        """`place` is the one it has already, or takes."""
        for topic in command.topics:
            if self._catalogue.shape_of(topic) is None:
                raise UnknownTopic(f"there is no topic {topic[: limits.MAX_TOPIC_NAME]!r}; create it first")
        if command.mode not in (None, group.mode):
            raise GroupActive(
                f"group {group.name!r} shares its topics by {group.mode}; join without a mode, or with that one, or "
                "delete the group first"
            )
        if command.assignor not in (None, group.assignor) and any(
            other is not place for other in group.members.values()
        ):
            raise GroupActive(
                f"the members of group {group.name!r} agreed on {group.assignor}; join without an assignor, or "
                "with that one"
            )
        if place is None and len(group.members) >= limits.MAX_MEMBERS:
            raise Conflict(f"group {group.name!r} has {limits.MAX_MEMBERS} members, which is the most")

    def _decide_leave(self, command: Leave) -> Decision:
        group = self.group(command.group)
        member = group.member(command.member_id)
        return _decided(None, *self._depart(group, [member], expired=False))

    def _depart(
        self, group: Group, members: list[Member], *, expired: bool, released: Collection[Part] = ()
    ) -> list[Event]:
        """Members go; what they had is others'."""
        wanted = _subscriptions(group)
        for member in members:
            del wanted[member.member_id]
        return [
            *reassign(self._catalogue, group, wanted, released=released),
            *(MemberLeft(group=group.number, member_id=member.member_id, expired=expired) for member in members),
        ]

    def _decide_release(self, command: Release) -> Decision:
        group = self.group(command.group)
        member = group.member(command.member_id)
        given_up = {part for part in command.parts if group.owner(part) is member and group.is_revoking(part)}
        if not given_up:
            return Decision((), None)
        return _decided(None, *reassign(self._catalogue, group, _subscriptions(group), released=given_up))

    def _decide_rebalance(self, command: Rebalance) -> Decision:
        group = self.group(command.group)
        ended = tuple(topic_id for topic_id in command.ended if topic_id in group.started)
        events: list[Event] = [TopicsEnded(group=group.number, topic_ids=ended)] if ended else []
        return _decided(None, *events, *reassign(self._catalogue, group, _subscriptions(group)))

    def _decide_renew(self, command: Renew) -> Decision:
        group = self.group(command.group)
        owned = sorted(part for part in set(command.parts) if group.owner(part) is not None)
        if not owned:
            return Decision((), None)
        return _decided(None, Renewed(group=group.number, parts=by_topic(owned)))

    def _decide_tick(self, command: Tick) -> Decision:
        """Replies with the groups that change."""
        due: dict[Group, list[Member]] = {}
        for number, member_id in self._deadlines.due(self._now):
            group = self.by_number[number]
            members = due.setdefault(group, [])
            if member_id is not None:
                members.append(group.members[member_id])
        changed: list[Group] = []
        written: list[bytes] = []
        size = 0
        for group, members in due.items():
            if size > _TICK_BYTES:
                for member in members:
                    self._arm_session(group, member)
                self._arm_window(group)
                continue
            encoded = [records.encode(event) for event in self._expire(group, members)]
            if encoded:
                changed.append(group)
                written += encoded
                size += sum(map(len, encoded))
        return Decision(written, changed)

    def _expire(self, group: Group, members: list[Member]) -> list[Event]:
        """What is due in a group: of these members' sessions, and of what was to be given up."""
        expired = []
        for member in members:
            if member.parked:
                self.touch(member, self._now)
            if member.seen_at + member.joined.session_ms <= self._now:
                expired.append(member)
                self._deadlines.arm((group.number, member.member_id), self._now + _RETRY_MS)
            else:
                self._arm_session(group, member)
        overdue = group.overdue(self._now)
        if overdue:
            self._deadlines.arm((group.number, None), self._now + _RETRY_MS)
        else:
            self._arm_window(group)
        return self._depart(group, expired, expired=True, released=overdue) if expired or overdue else []

    # --- changes to groups

    def _apply_created(self, event: GroupCreated) -> None:
        group = Group(event.group, event.name, event.mode, event.assignor)
        self.by_name[event.name] = self.by_number[event.group] = group
        self.next_number = max(self.next_number, GroupNumber(event.group + 1))

    def _apply_restored(self, event: GroupRestored) -> None:
        group = Group(event.group, event.name, event.mode, event.assignor)
        group.generation = event.generation
        group.started = set(event.started)
        self.by_name[event.name] = self.by_number[event.group] = group

    def _apply_assignor(self, event: AssignorChanged) -> None:
        self.by_number[event.group].assignor = event.assignor

    def _apply_deleted(self, event: GroupDeleted) -> None:
        group = self.by_number.pop(event.group)
        del self.by_name[group.name]

    def _apply_numbers(self, event: NumbersGiven) -> None:
        self.next_number = GroupNumber(event.below)

    def _apply_started(self, event: TopicsStarted) -> None:
        self.by_number[event.group].started.update(event.topic_ids)

    def _apply_ended(self, event: TopicsEnded) -> None:
        self.by_number[event.group].started.difference_update(event.topic_ids)

    # --- changes to members and what they own

    def _apply_joined(self, event: MemberJoined) -> None:
        group = self.by_number[event.group]
        changes.join(group, event, self._now)
        self._deadlines.disarm((group.number, event.member_id))  # the session may be shorter than it was
        self._arm_session(group, group.members[event.member_id])

    def _apply_replaced(self, event: MemberReplaced) -> None:
        group = self.by_number[event.group]
        changes.replace(group, event, self._now)
        self._deadlines.disarm((group.number, event.member_id))
        self._arm_session(group, group.members[event.new_id])

    def _apply_left(self, event: MemberLeft) -> None:
        group = self.by_number[event.group]
        changes.leave(group, event)
        if event.expired and self.observer is not None:
            self.observer.expired(group, event.member_id)
        self._deadlines.disarm((event.group, event.member_id))

    def _apply_reassigned(self, event: Reassigned) -> None:
        group = self.by_number[event.group]
        pauses_ms, duration_ms = changes.reassign(group, event, self._now)
        self._arm_window(group)
        if self.observer is not None:
            for pause_ms in pauses_ms:
                self.observer.moved(group, pause_ms)
            if duration_ms is not None and group.ownerships:
                self.observer.rebalanced(group, duration_ms)

    def _apply_parts_restored(self, event: PartsRestored) -> None:
        group = self.by_number[event.group]
        changes.restore(group, event, self._now)
        self._arm_window(group)


def _subscriptions(group: Group) -> dict[str, tuple[str, ...]]:
    return {member_id: member.joined.topics for member_id, member in group.members.items()}


def _newly_started(group: Group, topic_ids: Iterable[TopicId]) -> list[Event]:
    new = tuple(topic_id for topic_id in topic_ids if topic_id not in group.started)
    return [TopicsStarted(group=group.number, topic_ids=new)] if new else []


def _decided(reply: Any, *events: Event) -> Decision:
    return Decision([records.encode(event) for event in events], reply)
