"""Any history of a group: members come, go, fall silent and come back, topics change, the broker starts again.

A checker follows what happens with a memory of its own: who was heard of when, what was asked for until when, and who
ever held which assignment epoch. After every step it says what must be so. A failure names its seed. Planted bugs show
that it would notice: a partition given before it was given up, no fence or half of one, and time that is forgotten.
"""

from collections import Counter
from collections.abc import Iterable
from random import Random
from typing import Any, NamedTuple

import pytest

from goqueue.groups import groups as groups_module
from goqueue.groups.assignors import assign
from goqueue.groups.commands import Create, Delete, Join, Leave, Rebalance, Release
from goqueue.groups.group import Group, Member, Part
from goqueue.groups.groups import Groups
from goqueue.groups.rebalancing import reassign
from goqueue.groups.records import Reassigned
from goqueue.machine.shape import Tick
from goqueue.model.errors import GroupActive, MemberFenced, UnknownMember
from goqueue.model.groups import Assignor
from goqueue.model.names import TopicId
from tests.unit.groups.script import Topics

HISTORIES = 2000
STEPS = 24
NAMES = ("a", "b", "c")
GROUP = "g"
RETRY_MS = 1000


class Held(NamedTuple):
    """Who has a partition."""

    member_id: str
    epoch: int


# --- what can be seen of a group


def holders(group: Group) -> dict[Part, Held]:
    """Everybody's partitions, as members see them. That each has one owner is checked on the way."""
    found: dict[Part, Held] = {}
    for member in group.members.values():
        for part in member.parts:
            assert part not in found, f"{part} has two owners"
            found[part] = Held(member.member_id, group.epoch(part))
            assert group.owner(part) is member
    owned = {
        Part(topic_id, number): owner
        for topic_id, ownership in group.ownerships.items()
        for number, owner in enumerate(ownership.owners)
        if owner is not None
    }
    assert owned.keys() == found.keys()
    instances = group.by_instance.values()
    assert all(group.members.get(member.member_id) is member for member in instances)
    return found


def asked_for(group: Group) -> set[Part]:
    asked = [part for member in group.members.values() for part in group.revoking(member)]
    assert len(asked) == sum(len(ownership.revoking) for ownership in group.ownerships.values())
    return set(asked)


def counts(group: Group) -> dict[str, int]:
    held = Counter(held.member_id for held in holders(group).values())
    return {member_id: held[member_id] for member_id in group.members}


def wanted_ids(group: Group, topics: Topics) -> dict[str, set[TopicId]]:
    return {
        member_id: {topics.by_name[name].topic_id for name in member.joined.topics if name in topics.by_name}
        for member_id, member in group.members.items()
    }


def wanted_parts(group: Group, topics: Topics) -> set[Part]:
    wanted = set().union(*wanted_ids(group, topics).values())
    return {
        Part(shape.topic_id, number)
        for shape in topics.by_name.values()
        if shape.topic_id in wanted
        for number in range(shape.partitions)
    }


def fewest_moves(group: Group, topics: Topics) -> int | None:
    """What has to move until shares are even, if the group is sticky and all want the same; otherwise unknown."""
    wants = list(wanted_ids(group, topics).values())
    if group.assignor is not Assignor.STICKY or not wants or any(each != wants[0] for each in wants):
        return None
    shares = sorted(counts(group).values(), reverse=True)
    each, more = divmod(sum(shares), len(shares))
    return sum(max(0, share - each - (place < more)) for place, share in enumerate(shares))


def check_quiet(group: Group, topics: Topics) -> None:
    """Everything asked for was given up: everybody has what the assignor would say, and all is owned."""
    assert not asked_for(group)
    held = holders(group)
    assert held.keys() == wanted_parts(group, topics)
    wants = wanted_ids(group, topics)
    assert all(part.topic_id in wants[owner.member_id] for part, owner in held.items())
    if group.assignor is Assignor.STICKY:
        shares = counts(group)
        for part, owner in held.items():
            poorest = min(shares[member_id] for member_id, each in wants.items() if part.topic_id in each)
            assert shares[owner.member_id] - poorest < 2, "it would be more even if this one moved"
    else:
        sizes = {shape.topic_id: shape.partitions for shape in topics.by_name.values()}
        known = set().union(*wants.values())
        nobody: dict[TopicId, list[str | None]] = {topic_id: [None] * sizes[topic_id] for topic_id in sorted(known)}
        for topic_id, owners in assign(group.assignor, nobody, wants).items():
            for number, should in enumerate(owners):
                assert held[Part(topic_id, number)].member_id == should


# --- the checker


class Checker:
    """What it was told, and what it saw last."""

    def __init__(self) -> None:
        self.generation = 0
        self.held: dict[Part, Held] = {}
        self.until: dict[Part, int] = {}
        """What is asked for, and until when its owner has time."""
        self.ends: dict[str, int | None] = {}
        """By member: when its session ends; None while a poll waits."""
        self.first_holder: dict[tuple[Part, int], str] = {}
        self.last_epoch: dict[Part, int] = {}
        self.former: dict[tuple[Member, Part], int] = {}
        """Who lost a partition, and the epoch it had it in; members by identity, also those that are gone."""
        self.fenced: dict[str, str] = {}
        """Ids of replaced members, and who took over."""

    def look(self, group: Group, now: int, *, excused: Iterable[Part], renamed: tuple[str, str] | None = None) -> None:
        """`excused` are partitions that their owners may lose in this step."""
        assert group.generation >= self.generation
        held, asked = holders(group), asked_for(group)
        may_go = set(excused)
        for part, old in self.held.items():
            new = held.get(part)
            if new == old:
                continue
            if new is not None and new.member_id == old.member_id:
                raise AssertionError(f"{part} stayed with {old.member_id}, but its epoch did not stay")
            assert part in may_go or (new is not None and renamed == (old.member_id, new.member_id)), (
                f"{part} was taken silently"
            )
        for part, new in held.items():
            if new != self.held.get(part):
                assert new.epoch > self.last_epoch.get(part, 0), "an epoch only grows"
                assert self.generation < new.epoch <= group.generation
                self.last_epoch[part] = new.epoch
            assert self.first_holder.setdefault((part, new.epoch), new.member_id) == new.member_id
        for part in asked:
            if part not in self.until or held[part] != self.held[part]:
                self.until[part] = now + group.members[held[part].member_id].joined.rebalance_ms
        self.until = {part: until for part, until in self.until.items() if part in asked}
        self.held, self.generation = held, group.generation

    def check_fence(self, group: Group) -> None:
        for part, (member_id, epoch) in self.held.items():
            member = group.members[member_id]
            assert group.owns(member, part, None)
            assert group.owns(member, part, epoch), "who keeps a partition is never refused"
            assert group.owns(member, part, group.generation)
            assert not group.owns(member, part, epoch - 1), "what it was delivered before it had it"
        for (member, part), epoch in self.former.items():
            if group.owner(part) is not member:
                assert not group.owns(member, part, None), "a zombie settles"
                assert not group.owns(member, part, group.generation)
            else:
                assert not group.owns(member, part, epoch), "it had it, lost it, and got it again"

    def check_deadlines(self, machine: Groups) -> None:
        """Nothing that will be due is forgotten."""
        due = [*self.until.values(), *(ends for ends in self.ends.values() if ends is not None)]
        deadline = machine.next_deadline()
        if due:
            assert deadline is not None
            assert deadline <= min(due)
        assert (deadline is None) == (not self.ends)


# --- histories


class History:
    """One broker with one group, and chance."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.topics = Topics()
        for name in NAMES[: self.chance.randint(1, 3)]:
            self.topics.create(name, self.chance.randint(1, 6))
        self.equal = self.chance.random() < 0.6
        self.assignor = self.chance.choice((Assignor.STICKY, Assignor.STICKY, Assignor.RANGE, Assignor.ROUND_ROBIN))
        self.log: list[bytes] = []
        self.last_size = 0
        self.now = 5000
        self.joined = 0
        self.synced = True
        """Whether the group knows the topics as they are."""
        self.machine = Groups(self.topics)
        self.machine.begin_life(self.now)
        self.create()

    def create(self) -> None:
        self.checker = Checker()
        self.run(Create(group=GROUP, assignor=self.assignor))

    @property
    def group(self) -> Group:
        return self.machine.by_name[GROUP]

    def run(self, command: Any, *, excused: Iterable[Part] = (), renamed: tuple[str, str] | None = None) -> Any:
        """Tell the machine, and look. What the topics no longer have may go at any time."""
        decision = self.machine.decide(command, self.now)
        checker = self.checker
        group = self.machine.by_name.get(GROUP)
        members = dict(group.members) if group is not None else {}
        for record in decision.records:
            self.machine.apply(record, 0)
        self.log += decision.records
        self.last_size = len(decision.records)
        if isinstance(command, Delete):
            return decision.reply
        there = {shape.topic_id for shape in self.topics.by_name.values()}
        gone = {part for part in checker.held if part.topic_id not in there}
        before = checker.held
        checker.look(self.group, self.now, excused=gone | set(excused), renamed=renamed)
        for part, old in before.items():
            if checker.held.get(part) != old:
                checker.former[members[old.member_id], part] = old.epoch
        while len(checker.former) > 12:
            del checker.former[next(iter(checker.former))]
        self.check()
        return decision.reply

    def check(self) -> None:
        checker, group = self.checker, self.group
        assert group.members.keys() == checker.ends.keys()
        assert group.paused.keys() == checker.until.keys()
        assert (group.rebalancing_since is not None) == bool(checker.until)
        checker.check_fence(group)
        checker.check_deadlines(self.machine)
        for old in checker.fenced:
            with pytest.raises(MemberFenced if checker.fenced[old] in group.members else UnknownMember):
                group.member(old)
        if self.synced:
            assert checker.held.keys() == wanted_parts(group, self.topics), "what is free is granted at once"
            moves = fewest_moves(group, self.topics)
            assert moves is None or len(checker.until) == moves, "asked for more than has to move, or less"

    # --- steps

    def step(self) -> None:
        steps = (
            [self.join] * 5
            + [self.leave, self.rejoin, self.replace, self.replace]
            + [self.release] * 5
            + [self.release_strangely, self.poll, self.pass_time, self.pass_time, self.jump, self.jump]
            + [self.change_topics, self.change_topics, self.fail, self.restart, self.tear, self.settle, self.delete]
        )
        self.chance.choice(steps)()
        if not self.synced and self.chance.random() < 0.7:
            self.rebalance()

    def some_member(self) -> str | None:
        return self.chance.choice([*self.group.members, None])

    def wants(self) -> tuple[str, ...]:
        names = sorted(self.topics.by_name)
        return tuple(names) if self.equal else tuple(self.chance.sample(names, self.chance.randint(0, len(names))))

    def command(self, **fields: Any) -> Join:
        self.joined += 1
        return Join(
            group=GROUP,
            client_id="c",
            topics=self.wants(),
            new_id=f"m{self.joined}",
            session_ms=self.chance.choice((3000, 10_000)),
            rebalance_ms=self.chance.choice((2000, 5000)),
            **fields,
        )

    def heard(self, member_id: str, session_ms: int) -> None:
        self.checker.ends[member_id] = self.now + session_ms

    def parts_of(self, member_id: str) -> set[Part]:
        return {part for part, held in self.checker.held.items() if held.member_id == member_id}

    def join(self) -> None:
        if len(self.group.members) < 6:
            command = self.command()
            self.heard(command.new_id, command.session_ms)
            assert self.run(command) == command.new_id

    def replace(self) -> None:
        """A process with an instance id comes: the first of that name, or the next."""
        command = self.command(instance_id=self.chance.choice(("left", "right")))
        old = self.group.by_instance.get(command.instance_id or "")
        if old is None:
            if len(self.group.members) < 6:
                self.heard(command.new_id, command.session_ms)
                self.run(command)
            return
        place = list(self.group.members).index(old.member_id)
        del self.checker.ends[old.member_id]
        self.heard(command.new_id, command.session_ms)
        self.checker.fenced = {member_id: by for member_id, by in self.checker.fenced.items() if by != old.member_id}
        self.checker.fenced[old.member_id] = command.new_id
        excused = set(self.checker.until) | self.unwanted(old.member_id, command.topics)
        self.run(command, excused=excused & self.parts_of(old.member_id), renamed=(old.member_id, command.new_id))
        assert list(self.group.members)[place] == command.new_id

    def unwanted(self, member_id: str, topics: tuple[str, ...]) -> set[Part]:
        ids = {self.topics.by_name[name].topic_id for name in topics}
        return {part for part in self.parts_of(member_id) if part.topic_id not in ids}

    def rejoin(self) -> None:
        member_id = self.some_member()
        if member_id is not None:
            command = self.command(member_id=member_id, instance_id=self.group.members[member_id].joined.instance_id)
            if self.checker.ends[member_id] is not None:
                self.heard(member_id, command.session_ms)
            assert self.run(command, excused=self.unwanted(member_id, command.topics)) == member_id

    def leave(self) -> None:
        member_id = self.some_member()
        if member_id is not None:
            del self.checker.ends[member_id]
            self.run(Leave(GROUP, member_id), excused=self.parts_of(member_id))
            with pytest.raises(UnknownMember):
                self.machine.decide(Leave(GROUP, member_id), self.now)

    def release(self) -> None:
        """Some or all of what a member is asked for, perhaps with more that it is not."""
        member_id = self.some_member()
        if member_id is not None:
            own = self.parts_of(member_id)
            asked = own & self.checker.until.keys()
            given = {part for part in asked if self.chance.random() < 0.7}
            also = {part for part in own if self.chance.random() < 0.2}
            self.run(Release(GROUP, member_id, (*given, *also)), excused=asked & (given | also))

    def release_strangely(self) -> None:
        """What is another's, nobody's, or was given up long ago: nothing happens."""
        member_id = self.some_member()
        if member_id is not None:
            strange = {*self.checker.held, *(part for _, part in self.checker.former), Part(TopicId(999), 0)}
            strange -= self.parts_of(member_id)
            length = len(self.log)
            self.run(Release(GROUP, member_id, (*strange, Part(TopicId(1), -1), Part(TopicId(1), 99))))
            assert len(self.log) == length

    def poll(self) -> None:
        """A member is heard of, and perhaps waits from now on, or has waited until now."""
        member_id = self.some_member()
        if member_id is not None:
            member = self.group.members[member_id]
            member.parked = self.chance.randint(0, 1)
            self.machine.touch(member, self.now)
            self.checker.ends[member_id] = None if member.parked else self.now + member.joined.session_ms

    def pass_time(self) -> None:
        self.now += self.chance.randint(0, 2500)
        self.tick()

    def jump(self) -> None:
        """To when something is due."""
        deadline = self.machine.next_deadline()
        if deadline is not None:
            self.now = max(deadline, self.now)
            self.tick()

    def tick(self) -> None:
        checker = self.checker
        silent = {member_id for member_id, ends in checker.ends.items() if ends is not None and ends <= self.now}
        late = {part for part, until in checker.until.items() if until <= self.now}
        for member_id in silent:
            del checker.ends[member_id]
        changed = self.run(Tick(), excused=late.union(*map(self.parts_of, silent)))
        assert all(until > self.now for until in checker.until.values()), "nobody has more time than it was given"
        assert changed == ([self.group] if silent or late else [])
        deadline = self.machine.next_deadline()
        assert deadline is None or deadline > self.now, "another tick would find nothing to do"

    def fail(self) -> None:
        """The disk is full: what is decided is not written. Time passes, and it is decided again."""
        self.now += self.chance.randint(0, 2000)
        before = list(self.machine.snapshot())
        decision = self.machine.decide(self.chance.choice((Tick(), Tick(), self.command())), self.now)
        assert list(self.machine.snapshot()) == before
        deadline = self.machine.next_deadline()
        assert deadline is None or not decision.records or self.now < deadline or deadline <= self.now + RETRY_MS
        if deadline is not None and deadline <= self.now + RETRY_MS:
            self.now += RETRY_MS
        self.tick()

    def change_topics(self) -> None:
        """A topic comes, grows, goes, or is created again. The group hears of it now or later."""
        name = self.chance.choice(NAMES)
        shape = self.topics.by_name.get(name)
        if shape is None:
            self.topics.create(name, self.chance.randint(1, 6))
        elif self.chance.random() < 0.5:
            self.topics.grow(name, shape.partitions + self.chance.randint(1, 3))
        elif len(self.topics.by_name) > 1:
            self.topics.delete(name)
            if self.chance.random() < 0.5:
                self.topics.create(name, self.chance.randint(1, 6))
        self.synced = False

    def rebalance(self) -> None:
        self.synced = True
        self.run(Rebalance(GROUP))

    def delete(self) -> None:
        if self.group.members:
            with pytest.raises(GroupActive):
                self.machine.decide(Delete(GROUP), self.now)
        else:
            self.run(Delete(GROUP))
            self.create()

    # --- other lives

    def restart(self) -> None:
        """From a snapshot or from the first record on: the same group, with all its time before it."""
        self.now += self.chance.randint(0, 20_000)
        before = list(self.machine.snapshot())
        self.machine = self.revived(self.chance.choice((self.log, before)))
        assert list(self.machine.snapshot()) == before
        members = self.group.members.values()
        self.checker.ends = {member.member_id: self.now + member.joined.session_ms for member in members}
        self.checker.former.clear()
        self.checker.until.clear()
        self.checker.look(self.group, self.now, excused=())
        self.synced = False
        self.check()
        self.rebalance()

    def revived(self, records: Iterable[bytes]) -> Groups:
        machine = Groups(self.topics)
        for record in records:
            machine.apply(record, 0)
        machine.begin_life(self.now)
        return machine

    def tear(self) -> None:
        """A power cut takes the end of what was decided last. In a life that is not told on, all is put right."""
        if self.last_size < 2:
            return
        machine = self.revived(self.log[: len(self.log) - self.chance.randint(1, self.last_size - 1)])
        group = machine.by_name[GROUP]
        for _ in range(20):
            for member in list(group.members.values()):
                command = Release(GROUP, member.member_id, tuple(group.revoking(member)))
                for record in machine.decide(command, self.now).records:
                    machine.apply(record, 0)
            for record in machine.decide(Rebalance(GROUP), self.now).records:
                machine.apply(record, 0)
        check_quiet(group, self.topics)

    # --- the end

    def settle(self) -> None:
        """Everything asked for is given up, one way or the other, until nothing is asked for."""
        if not self.synced:
            self.rebalance()
        moves, before = fewest_moves(self.group, self.topics), dict(self.checker.held)
        give = self.release_all if self.chance.random() < 0.5 else self.outwait
        for _ in range(30):
            if not self.checker.until:
                break
            give()
        check_quiet(self.group, self.topics)
        moved = sum(before[part].member_id != held.member_id for part, held in self.checker.held.items())
        assert moves is None or moved == moves

    def release_all(self) -> None:
        for member_id in list(self.group.members):
            asked = self.parts_of(member_id) & self.checker.until.keys()
            self.run(Release(GROUP, member_id, tuple(asked)), excused=asked)

    def outwait(self) -> None:
        """Members live, and give nothing up: their time passes."""
        self.now = max(self.checker.until.values())
        for member in self.group.members.values():
            self.machine.touch(member, self.now)
            if not member.parked:
                self.heard(member.member_id, member.joined.session_ms)
        self.tick()


def run_histories() -> None:
    for seed in range(HISTORIES):
        history = History(seed)
        try:
            for _ in range(STEPS):
                history.step()
            history.settle()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error


def test_whatever_happens_to_a_group_its_partitions_are_safe() -> None:
    run_histories()


# --- planted bugs


def hasty(catalogue: Any, group: Group, wanted: Any, **how: Any) -> Any:
    """Assigns before it revokes: what is to be asked for counts as given up."""
    for event in reassign(catalogue, group, wanted, **how):
        for row in event.revoked if isinstance(event, Reassigned) else ():
            group.ownerships[row.topic_id].revoking.update(dict.fromkeys(row.partitions, 0))
    return reassign(catalogue, group, wanted, **how | {"released": asked_for(group)})


class Unfenced(Group):
    """Everybody may settle everything."""

    def owns(self, member: Member, part: Part, generation: int | None) -> bool:
        return True


class UnfencedInTime(Group):
    """Nobody asks in which generation a member got a partition."""

    def owns(self, member: Member, part: Part, generation: int | None) -> bool:
        return self.owner(part) is member


class UnfencedAmongMembers(Group):
    """Nobody asks whose a partition is."""

    def owns(self, member: Member, part: Part, generation: int | None) -> bool:
        return self.owner(part) is not None and (generation is None or generation >= self.epoch(part))


class Forgetful(Group):
    """Nobody minds how long a member takes to give something up."""

    def overdue(self, now: int) -> set[Part]:
        return set()


@pytest.mark.parametrize(
    ("name", "planted", "noticed"),
    [
        ("reassign", hasty, "taken silently"),
        ("Group", Unfenced, "before it had it"),
        ("Group", UnfencedInTime, "before it had it"),
        ("Group", UnfencedAmongMembers, "a zombie settles"),
        ("Group", Forgetful, "nobody has more time"),
    ],
)
def test_a_planted_bug_is_noticed(monkeypatch: pytest.MonkeyPatch, name: str, planted: Any, noticed: str) -> None:
    monkeypatch.setattr(groups_module, name, planted)
    with pytest.raises(AssertionError, match=noticed):
        run_histories()
