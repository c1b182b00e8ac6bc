"""The machine of groups: who joins, comes back, falls silent and goes, and what becomes of their partitions."""

from typing import Any

import pytest

from goqueue.groups import groups as groups_module
from goqueue.groups import records
from goqueue.groups.commands import Create, Delete, Join, Leave, Rebalance, Release, Renew, StartTopics
from goqueue.groups.groups import Groups
from goqueue.groups.records import Reassigned
from goqueue.machine.shape import Tick, Timed
from goqueue.model import limits
from goqueue.model.errors import Conflict, GroupActive, UnknownGroup, UnknownMember, UnknownTopic
from goqueue.model.groups import Assignor, GroupState, Mode
from tests.unit.groups.script import GROUP, NOW, REBALANCE_MS, SESSION_MS, Script


@pytest.fixture
def script() -> Script:
    """A group without members; the topic `orders` has four partitions."""
    return Script()


def test_it_has_the_shape_of_a_machine_and_a_name_that_never_changes(script: Script) -> None:
    held: Timed = script.machine
    assert held.name == "groups", "its records in every groups log are found by it"


# --- joining


def test_the_first_member_gets_everything_at_once(script: Script) -> None:
    assert script.join("m1") == "m1"
    assert script.has("m1") == "orders-0 orders-1 orders-2 orders-3"
    assert script.state() is GroupState.STABLE
    assert script.group.generation == 1
    assert script.epochs("m1") == [1, 1, 1, 1]


def test_the_second_member_waits_until_the_first_has_given_up_its_share(script: Script) -> None:
    script.join("m1")
    script.join("m2")
    assert script.everybody() == {"m1": "orders-0 orders-1 ~orders-2 ~orders-3", "m2": ""}
    assert script.state() is GroupState.REBALANCING
    script.release("m1")
    assert script.everybody() == {"m1": "orders-0 orders-1", "m2": "orders-2 orders-3"}
    assert script.state() is GroupState.STABLE


def test_whoever_keeps_a_partition_keeps_its_epoch(script: Script) -> None:
    script.join("m1")
    script.join("m2")
    script.release("m1")
    assert script.group.generation == 3
    assert script.epochs("m1") == [1, 1]
    assert script.epochs("m2") == [3, 3]


def test_a_third_member_gets_a_share_of_both() -> None:
    script = Script(orders=6)
    script.join("m1")
    script.join("m2")
    script.release("m1")
    script.join("m3")
    script.release("m1")
    script.release("m2")
    assert sorted(len(script.has(member_id).split()) for member_id in ("m1", "m2", "m3")) == [2, 2, 2]
    assert script.has("m1") == "orders-0 orders-1"
    assert script.has("m2") == "orders-3 orders-4"


def test_a_member_for_whom_nothing_is_left_waits_and_the_generation_stays() -> None:
    script = Script(orders=1)
    script.join("m1")
    script.join("m2")
    assert script.everybody() == {"m1": "orders-0", "m2": ""}
    assert script.group.generation == 1


def test_the_first_to_come_is_the_leader(script: Script) -> None:
    assert script.group.leader is None
    for member_id in ("m1", "m2"):
        script.join(member_id)
    assert script.group.leader is script.group.members["m1"]
    script.leave("m1")
    assert script.group.leader is script.group.members["m2"]


def test_a_member_may_name_a_topic_twice(script: Script) -> None:
    script.join("m1", "orders", "orders")
    assert script.group.members["m1"].joined.topics == ("orders",)


def test_a_topic_that_is_not_there_is_refused(script: Script) -> None:
    with pytest.raises(UnknownTopic, match="there is no topic 'nope'; create it first"):
        script.join("m1", "orders", "nope")
    assert not script.group.members


def test_a_long_name_that_is_not_there_is_not_repeated_at_length(script: Script) -> None:
    with pytest.raises(UnknownTopic) as caught:
        script.join("m1", "x" * 1_000_000)
    assert len(str(caught.value)) < 400
    with pytest.raises(UnknownGroup) as unknown:
        script.run(Delete("x" * 1_000_000))
    assert len(str(unknown.value)) < 400


# --- joining again


def test_joining_again_unchanged_writes_nothing_and_renews_the_session(script: Script) -> None:
    script.join("m1")
    script.now += SESSION_MS - 1
    length = len(script.log)
    assert script.join("m1", again=True) == "m1"
    assert len(script.log) == length
    script.wait(SESSION_MS - 1)
    assert "m1" in script.group.members


def test_joining_again_keeps_the_place_and_the_partitions(script: Script) -> None:
    script.join("m1")
    script.join("m2")
    script.release("m1")
    before = script.everybody(), script.epochs("m1"), script.group.generation
    script.join("m1", again=True, session_ms=5000)
    assert (script.everybody(), script.epochs("m1"), script.group.generation) == before
    assert script.group.leader is script.group.members["m1"]
    assert script.group.members["m1"].joined.session_ms == 5000


def test_a_shorter_session_counts_at_once(script: Script) -> None:
    script.join("m1")
    script.join("m1", again=True, session_ms=5000)
    assert script.machine.next_deadline() == NOW + 5000
    script.wait(5000)
    assert not script.group.members


def test_what_a_member_no_longer_wants_is_lost_and_granted_at_once() -> None:
    script = Script(orders=2, bills=2)
    script.join("m1", "orders", "bills")
    script.join("m2", "orders", "bills")
    script.release("m1")
    assert script.everybody() == {"m1": "orders-0 bills-0", "m2": "orders-1 bills-1"}
    script.join("m1", "bills", again=True)
    assert script.everybody()["m2"].startswith("orders-0 orders-1"), "nobody else wants them"
    assert "orders" not in script.has("m1")


def test_what_a_member_wants_in_addition_is_asked_for() -> None:
    script = Script(orders=1, bills=5)
    script.join("m1", "orders")
    script.join("m2", "bills")
    script.join("m1", "orders", "bills", again=True)
    assert script.everybody() == {"m1": "orders-0", "m2": "bills-0 bills-1 bills-2 ~bills-3 ~bills-4"}
    script.join("m1", "orders", again=True)
    assert script.everybody() == {"m1": "orders-0", "m2": "bills-0 bills-1 bills-2 bills-3 bills-4"}
    assert script.epochs("m2") == [2] * 5


def test_a_member_that_is_not_there_cannot_join_again(script: Script) -> None:
    with pytest.raises(UnknownMember, match=r"group 'billing' has no member 'm1'; .* join again"):
        script.join("m1", again=True)


# --- leaving


def test_what_a_member_leaves_behind_goes_to_the_others_at_once(script: Script) -> None:
    script.join("m1")
    script.join("m2")
    script.release("m1")
    script.leave("m2")
    assert script.everybody() == {"m1": "orders-0 orders-1 orders-2 orders-3"}
    assert script.epochs("m1") == [1, 1, 4, 4], "what it had it keeps"


def test_when_the_last_one_leaves_the_group_stays_and_is_empty(script: Script) -> None:
    script.join("m1")
    script.leave("m1")
    assert script.state() is GroupState.EMPTY
    assert script.group.ownerships == {}
    generation = script.group.generation
    script.join("m2")
    assert script.group.generation > generation
    assert min(script.epochs("m2")) > generation, "an epoch is never used twice"


def test_when_the_newcomer_leaves_before_it_got_anything_everything_is_kept(script: Script) -> None:
    script.join("m1")
    script.join("m2")
    member = script.group.members["m1"]
    member.acknowledged = set(script.group.revoking(member))
    script.leave("m2")
    assert script.everybody() == {"m1": "orders-0 orders-1 orders-2 orders-3"}
    assert script.epochs("m1") == [1, 1, 1, 1]
    assert member.acknowledged == set(), "it has to be told anew if they are asked for again"
    assert script.group.paused == {}
    script.touch("m1")
    assert script.wait(REBALANCE_MS) == []


def test_a_release_that_comes_after_all_was_kept_is_passed_over(script: Script) -> None:
    script.join("m1")
    script.join("m2")
    asked = tuple(script.group.revoking(script.group.members["m1"]))
    script.leave("m2")
    assert script.would_write(Release(GROUP, "m1", asked)) == []


def test_leaving_twice_is_refused(script: Script) -> None:
    script.join("m1")
    script.leave("m1")
    with pytest.raises(UnknownMember):
        script.leave("m1")


# --- sessions


def test_a_silent_member_expires_when_its_session_is_over_and_not_before(script: Script) -> None:
    script.join("m1")
    assert script.machine.next_deadline() == NOW + SESSION_MS
    assert script.wait(SESSION_MS - 1) == []
    assert script.wait(1) == [script.group]
    assert script.state() is GroupState.EMPTY
    assert script.machine.next_deadline() is None


def test_a_member_that_was_heard_of_lives_on_and_is_looked_at_again(script: Script) -> None:
    script.join("m1")
    script.now += 20_000
    script.touch("m1")
    assert script.wait(SESSION_MS - 20_000) == []
    assert script.machine.next_deadline() == NOW + 20_000 + SESSION_MS
    script.wait(20_000)
    assert not script.group.members


def test_while_a_poll_waits_the_member_is_there(script: Script) -> None:
    script.join("m1")
    script.group.members["m1"].parked = 1
    for _ in range(5):
        assert script.wait(SESSION_MS) == []
    deadline = script.machine.next_deadline()
    assert deadline is not None
    assert deadline > script.now
    script.group.members["m1"].parked = 0
    script.touch("m1")
    assert script.wait(SESSION_MS - 1) == []
    assert script.wait(SESSION_MS) == [script.group]


def test_the_partitions_of_those_who_expire_go_to_the_others(script: Script) -> None:
    for member_id in ("m1", "m2", "m3"):
        script.join(member_id)
        script.touch(*script.group.members)
    for member_id in ("m1", "m2"):
        script.release(member_id)
    kept = script.has("m2")
    script.now += SESSION_MS
    script.touch("m2")
    script.tick()
    assert script.has("m2").split() == ["orders-0", "orders-1", "orders-2", "orders-3"]
    assert set(kept.split()) <= set(script.has("m2").split())
    expired = [event for event in map(records.decode, script.log) if isinstance(event, records.MemberLeft)]
    assert [(event.member_id, event.expired) for event in expired] == [("m1", True), ("m3", True)]


def test_an_expired_member_is_told_to_join_again(script: Script) -> None:
    script.join("m1")
    script.wait(SESSION_MS)
    with pytest.raises(UnknownMember, match="it may have been silent for too long: join again"):
        script.group.member("m1")


def test_a_session_that_could_not_be_ended_is_tried_again_a_little_later(script: Script) -> None:
    """The disk is full: a decision comes to nothing. Neither is it forgotten, nor does it keep a processor busy."""
    script.join("m1")
    script.now += SESSION_MS
    for _ in range(3):
        assert script.machine.decide(Tick(), script.now).records
        assert script.machine.next_deadline() == script.now + 1000
        script.now += 1000
    script.tick()
    assert script.machine.next_deadline() is None


def test_when_much_is_due_it_is_done_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups_module, "_TICK_BYTES", 0)
    script = Script()
    names = [f"group-{number}" for number in range(3)]
    for name in names:
        script.run(Create(group=name))
        script.run(Join(group=name, client_id="c", topics=("orders",), new_id="m", session_ms=5000, rebalance_ms=5000))
    script.now += 5000
    for left in (2, 1, 0):
        assert len(script.tick()) == 1
        assert sum(bool(script.machine.group(name).members) for name in names) == left
        assert (script.machine.next_deadline() == script.now) is (left > 0), "the rest is due at once"


# --- assignors


def test_members_agree_on_the_assignor_of_the_first(script: Script) -> None:
    script.join("m1", assignor=Assignor.RANGE)
    assert script.group.assignor is Assignor.RANGE
    with pytest.raises(GroupActive, match="the members of group 'billing' agreed on range; join without an assignor"):
        script.join("m2", assignor=Assignor.STICKY)
    script.join("m2", assignor=Assignor.RANGE)
    script.join("m3")
    assert list(script.group.members) == ["m1", "m2", "m3"]


def test_the_only_member_may_change_the_assignor(script: Script) -> None:
    script.join("m1", assignor=Assignor.RANGE)
    script.join("m1", again=True, assignor=Assignor.ROUND_ROBIN)
    assert script.group.assignor is Assignor.ROUND_ROBIN
    script.join("m2")
    with pytest.raises(GroupActive):
        script.join("m1", again=True, assignor=Assignor.RANGE)


def test_who_takes_the_place_of_the_only_member_may_change_the_assignor(script: Script) -> None:
    script.join("m1", instance_id="left")
    script.join("m2", instance_id="left", assignor=Assignor.RANGE)
    assert script.group.assignor is Assignor.RANGE


def test_an_empty_group_takes_the_assignor_of_the_next(script: Script) -> None:
    script.join("m1", assignor=Assignor.RANGE)
    script.leave("m1")
    script.join("m2", assignor=Assignor.STICKY)
    assert script.group.assignor is Assignor.STICKY


def test_round_robin_deals_in_turn_and_revokes_before_it_assigns(script: Script) -> None:
    script.join("m1", assignor=Assignor.ROUND_ROBIN)
    script.join("m2")
    assert script.everybody() == {"m1": "orders-0 ~orders-1 orders-2 ~orders-3", "m2": ""}
    script.release("m1")
    assert script.everybody() == {"m1": "orders-0 orders-2", "m2": "orders-1 orders-3"}


# --- groups


def test_creating_a_group_that_is_there_is_a_look_at_it(script: Script) -> None:
    assert script.run(Create(group=GROUP, assignor=Assignor.RANGE)) is script.group
    assert script.group.assignor is Assignor.STICKY
    assert script.run(Create(group="other", mode=Mode.PARTITION, assignor=Assignor.RANGE)) is None
    assert script.machine.group("other").assignor is Assignor.RANGE


def test_there_are_only_so_many_groups(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_GROUPS", 1)
    script.run(Create(group=GROUP))
    with pytest.raises(Conflict, match="there are 1 groups, which is the most; delete one first"):
        script.run(Create(group="other"))


def test_a_group_has_only_so_many_members(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_MEMBERS", 2)
    script.join("m1")
    script.join("m2")
    with pytest.raises(Conflict, match="group 'billing' has 2 members, which is the most"):
        script.join("m3")
    script.join("m2", again=True, session_ms=5000)


def test_a_group_with_members_is_not_deleted(script: Script) -> None:
    script.join("m1")
    with pytest.raises(GroupActive, match="group 'billing' has 1 members; let them leave"):
        script.delete()


def test_a_deleted_group_is_gone_and_one_of_the_same_name_is_another(script: Script) -> None:
    script.join("m1")
    script.leave("m1")
    deleted = script.group
    assert script.delete() is deleted
    with pytest.raises(UnknownGroup, match="there is no group 'billing'; join it to create it"):
        script.delete()
    script.run(Create(group=GROUP))
    assert script.group.number == deleted.number + 1
    assert script.group.generation == 0


@pytest.mark.parametrize(
    "command",
    [
        StartTopics("nope", ()),
        Leave("nope", "m1"),
        Release("nope", "m1", ()),
        Rebalance("nope"),
        Delete("nope"),
        Join(group="nope", client_id="c", topics=(), new_id="m", session_ms=1, rebalance_ms=1),
    ],
)
def test_a_group_that_is_not_there_is_refused(script: Script, command: Any) -> None:
    with pytest.raises(UnknownGroup):
        script.run(command)


def test_a_renewed_partition_stays_with_its_owner_and_refuses_commits_of_before(script: Script) -> None:
    script.join("m1")
    script.join("m2")
    script.release("m1")
    owner = script.group.owner(script.part("orders-0"))
    assert owner is not None
    before, others = script.group.generation, {part: script.group.epoch(part) for part in owner.parts}
    script.renew("orders-0")
    assert script.group.owner(script.part("orders-0")) is owner
    assert not script.group.owns(owner, script.part("orders-0"), before)
    assert script.group.owns(owner, script.part("orders-0"), script.group.generation)
    del others[script.part("orders-0")]
    assert all(script.group.epoch(part) == epoch for part, epoch in others.items())
    assert script.would_write(Renew(script.group.name, (script.part("orders-0")._replace(partition=99),))) == []


# --- modes


@pytest.mark.parametrize("mode", [Mode.SHARED, Mode.KEY])
def test_where_members_share_nobody_owns_anything(mode: Mode) -> None:
    script = Script(mode)
    for name in ("m1", "m2", "m3"):
        script.join(name)
    script.topics.grow("orders", 9)
    script.run(Rebalance(GROUP))
    script.leave("m2")
    script.now += SESSION_MS
    script.tick()
    assert not any(isinstance(records.decode(record), Reassigned) for record in script.log)
    assert script.group.state is GroupState.EMPTY


def test_a_group_is_by_partition_unless_its_first_member_says_otherwise() -> None:
    assert Script().group.mode is Mode.PARTITION
    assert Script(Mode.KEY).group.mode is Mode.KEY


@pytest.mark.parametrize("mode", Mode)
def test_a_group_keeps_its_mode_also_when_nobody_is_in_it(mode: Mode) -> None:
    script = Script(mode)
    script.join("m1", mode=mode)
    script.join("m2")
    script.leave("m1")
    script.leave("m2")
    for other in set(Mode) - {mode}:
        with pytest.raises(GroupActive, match=f"shares its topics by {mode}; join without a mode"):
            script.join("m3", mode=other)
    assert restored(script).group(GROUP).mode is mode


def test_what_a_member_says_of_its_messages_is_kept() -> None:
    script = Script()
    script.join("m1", visibility_ms=45_000, max_unacked=50)
    script.join("m2")
    for group in (script.group, restored(script).group(GROUP)):
        assert (group.member("m1").joined.visibility_ms, group.member("m1").joined.max_unacked) == (45_000, 50)
        assert group.member("m2").joined.visibility_ms is None
        assert group.member("m2").joined.max_unacked == limits.DEFAULT_UNACKED
    script.join("m1", again=True, max_unacked=60)
    assert (script.group.member("m1").joined.visibility_ms, script.group.member("m1").joined.max_unacked) == (None, 60)


def restored(script: Script) -> Groups:
    """Another machine, made from this one's snapshot."""
    other = Groups(script.topics)
    for offset, record in enumerate(script.machine.snapshot()):
        other.apply(record, offset)
    return other
