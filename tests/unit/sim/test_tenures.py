"""Who owned what, and whether it ended rightly: the model of the groups room and the checkers that use it."""

from typing import Any

import pytest

from goqueue.groups.commands import Create, Join, Leave, Release
from goqueue.groups.group import Part
from goqueue.groups.groups import Groups
from goqueue.machine.shape import Tick
from goqueue.model.names import GroupNumber, TopicId
from sim.checkers import Violation, handover, one_owner, windows, zombies
from sim.rooms.tenures import Tenure, Tenures, stand
from sim.rooms.topics import Topics

GROUP = GroupNumber(1)
PARTS = [Part(TopicId(1), number) for number in range(2)]
SESSION_MS, WINDOW_MS = 1000, 200


class Followed:
    """A machine of groups, and the model that follows it as the room's broker does."""

    def __init__(self) -> None:
        self.topics = Topics()
        self.topics.make("a", 2)
        self.groups = Groups(self.topics)
        self.tenures = Tenures()
        self.position = 0
        self.run(Create(group="g"))

    def run(self, command: Any, *, now: int = 0, said: Any = None) -> None:
        """`said` is the command that the checkers are told of instead."""
        for record in self.groups.decide(command, now).records:
            self.groups.apply(record, self.position)
            self.position += 1
        standing = stand(self.groups, self.topics.names)
        handover.check(self.tenures, standing, said or command, now)
        self.tenures.follow(standing, self.position, now)

    def join(self, name: str, **more: Any) -> None:
        self.run(
            Join(
                group="g",
                client_id=name,
                topics=("a",),
                new_id=name,
                session_ms=SESSION_MS,
                rebalance_ms=WINDOW_MS,
                **more,
            )
        )

    def asked(self) -> Part:
        """What the first member is to give up."""
        return self.groups.group("g").revoking(self.groups.group("g").member("m1"))[0]


def two_members() -> Followed:
    followed = Followed()
    followed.join("m1")
    followed.join("m2")
    return followed


def test_a_partition_moves_when_it_was_released() -> None:
    followed = two_members()
    part = followed.asked()
    followed.run(Release("g", "m1", (part,)))
    assert followed.tenures.standing.tenures[GROUP, part].member_id == "m2"


@pytest.mark.parametrize("said", [Leave("g", "m2"), Release("g", "m1", ()), Tick(), None])
def test_a_partition_that_moves_for_no_reason_is_seen(said: Any) -> None:
    followed = two_members()
    release = Release("g", "m1", (followed.asked(),))
    with pytest.raises(Violation, match="handover"):
        followed.run(release, said=said or Create(group="g"))


def test_time_that_is_up_is_a_reason_and_time_that_is_not_is_none() -> None:
    followed = two_members()
    windows.check(followed.tenures, followed.groups, WINDOW_MS - 1)
    with pytest.raises(Violation, match="was to be given up by m1"):
        windows.check(followed.tenures, followed.groups, WINDOW_MS)
    followed.run(Tick(), now=WINDOW_MS)
    windows.check(followed.tenures, followed.groups, WINDOW_MS)


def test_a_silent_member_must_go() -> None:
    followed = Followed()
    followed.join("m1")
    with pytest.raises(Violation, match="session ended"):
        windows.check(followed.tenures, followed.groups, SESSION_MS)
    followed.run(Tick(), now=SESSION_MS)
    assert not followed.tenures.standing.tenures


def test_a_replaced_member_loses_everything_to_its_successor() -> None:
    followed = Followed()
    followed.join("m1", instance_id="i")
    followed.join("m2", instance_id="i")
    assert {tenure.member_id for tenure in followed.tenures.standing.tenures.values()} == {"m2"}


def test_one_epoch_has_one_owner_for_ever() -> None:
    followed = Followed()
    followed.join("m1")
    tenures = followed.tenures
    key = GROUP, PARTS[0]
    with pytest.raises(Violation, match="before it is durable"):
        one_owner.check_served(tenures, key, tenures.standing.tenures[key])
    one_owner.confirm(tenures, followed.position)
    one_owner.check_served(tenures, key, tenures.standing.tenures[key])
    with pytest.raises(Violation, match="which was m1's"):
        one_owner.check_told(tenures, key, Tenure(tenures.standing.tenures[key].epoch, "m2"))


def test_what_is_not_durable_may_be_taken_back_and_what_is_may_not() -> None:
    followed, other = Followed(), Followed()
    followed.join("m1")
    other.join("m2")
    followed.tenures.begin_life(other.tenures.standing, 0)
    one_owner.confirm(followed.tenures, 0)
    followed.tenures.begin_life(Followed().tenures.standing, 0)
    followed.join("m3")
    with pytest.raises(Violation, match="which was m2's"):
        one_owner.confirm(followed.tenures, followed.position)


def test_a_commit_is_taken_in_its_tenure_only() -> None:
    followed = two_members()
    part = followed.asked()
    key = GROUP, part
    before = followed.tenures.standing.tenures[key]
    zombies.check(followed.tenures, key, before, fenced=True, accepted=True)
    with pytest.raises(Violation, match="still its"):
        zombies.check(followed.tenures, key, before, fenced=True, accepted=False)
    followed.run(Release("g", "m1", (part,)))
    zombies.check(followed.tenures, key, before, fenced=True, accepted=False)
    for fenced in (True, False):
        with pytest.raises(Violation, match="was taken"):
            zombies.check(followed.tenures, key, before, fenced=fenced, accepted=True)
