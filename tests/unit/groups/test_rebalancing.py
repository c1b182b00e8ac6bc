"""How partitions move: what is asked for, given up, kept, lost and granted, and what is counted of it."""

import pytest

from goqueue.groups.commands import Join, Rebalance, Release, StartTopics
from goqueue.groups.group import Group, Part
from goqueue.machine.shape import Tick
from goqueue.model.groups import GroupState
from goqueue.model.names import TopicId
from tests.unit.groups.script import GROUP, NOW, REBALANCE_MS, SESSION_MS, Script


@pytest.fixture
def script() -> Script:
    """A group without members; the topic `orders` has four partitions."""
    return Script()


# --- giving up


def test_of_what_is_asked_for_a_part_may_be_given_up_first(script: Script) -> None:
    script.join("m1")
    script.join("m2")
    script.release("m1", "orders-3")
    assert script.everybody() == {"m1": "orders-0 orders-1 ~orders-2", "m2": "orders-3"}
    script.release("m1", "orders-2")
    assert script.everybody() == {"m1": "orders-0 orders-1", "m2": "orders-2 orders-3"}


@pytest.mark.parametrize(("member_id", "name"), [("m1", "orders-0"), ("m2", "orders-3"), ("m1", "orders-9")])
def test_what_is_not_asked_of_a_member_it_cannot_give_up(script: Script, member_id: str, name: str) -> None:
    script.join("m1")
    script.join("m2")
    assert script.would_write(Release(GROUP, member_id, (script.part(name),))) == []


def test_what_was_given_up_cannot_be_given_up_again(script: Script) -> None:
    script.join("m1")
    script.join("m2")
    script.release("m1", "orders-3")
    assert script.would_write(Release(GROUP, "m1", (script.part("orders-3"),))) == []
    assert script.has("m2") == "orders-3"


def test_when_its_time_is_up_a_member_loses_what_it_was_asked_for(script: Script) -> None:
    script.join("m1")
    script.join("m2")
    assert script.machine.next_deadline() == NOW + REBALANCE_MS
    assert script.wait(REBALANCE_MS - 1) == []
    assert script.group.owns(script.group.members["m1"], script.part("orders-3"), 1), "it may still settle"
    assert script.wait(1) == [script.group]
    assert script.everybody() == {"m1": "orders-0 orders-1", "m2": "orders-2 orders-3"}
    assert not script.group.owns(script.group.members["m1"], script.part("orders-3"), 1)
    assert script.machine.next_deadline() == NOW + SESSION_MS


def test_each_partition_has_its_own_time_and_each_member_too() -> None:
    script = Script(orders=6)
    script.join("m1", rebalance_ms=5000)
    script.join("m2", rebalance_ms=9000)
    script.wait(5000)
    assert script.everybody() == {"m1": "orders-0 orders-1 orders-2", "m2": "orders-3 orders-4 orders-5"}
    script.join("m3")
    script.wait(5000)
    assert script.everybody() == {"m1": "orders-0 orders-1", "m2": "orders-3 orders-4 ~orders-5", "m3": "orders-2"}
    script.wait(3999)
    assert script.group.is_rebalancing
    script.wait(1)
    assert script.everybody() == {"m1": "orders-0 orders-1", "m2": "orders-3 orders-4", "m3": "orders-2 orders-5"}


def test_time_goes_on_when_others_join(script: Script) -> None:
    script.join("m1")
    script.join("m2")
    script.now += REBALANCE_MS - 1
    script.join("m3")
    script.wait(1)
    assert not set(script.group.revoking(script.group.members["m1"])) & {
        script.part("orders-2"),
        script.part("orders-3"),
    }


def test_what_nobody_needs_any_more_is_kept_although_its_time_is_up(script: Script) -> None:
    """The newcomer's session and the owner's time end together: whoever keeps a partition must not notice."""
    script.join("m1")
    script.join("m2", session_ms=REBALANCE_MS)
    script.now += REBALANCE_MS
    script.touch("m1")
    script.tick()
    assert script.everybody() == {"m1": "orders-0 orders-1 orders-2 orders-3"}
    assert script.epochs("m1") == [1, 1, 1, 1]


def test_what_could_not_be_taken_is_tried_again_a_little_later(script: Script) -> None:
    script.join("m1")
    script.join("m2")
    script.now += REBALANCE_MS
    for _ in range(3):
        assert script.machine.decide(Tick(), script.now).records
        assert script.machine.next_deadline() == script.now + 1000
        script.now += 1000
    script.tick()
    assert script.has("m2") == "orders-2 orders-3"


def test_members_are_told_only_of_changes_that_concern_them() -> None:
    script = Script(orders=4, bills=1)
    script.join("m1", "orders")
    script.join("m2", "bills")
    members = script.group.members
    m1, m2 = members["m1"].version, members["m2"].version
    script.join("m3", "orders")
    assert members["m1"].version > m1
    assert members["m2"].version == m2
    m1, m3 = members["m1"].version, members["m3"].version
    script.release("m1")
    assert members["m1"].version > m1
    assert members["m3"].version > m3
    assert members["m2"].version == m2


# --- topics that come, grow and go


def test_new_partitions_go_to_who_has_fewest_and_nothing_else_moves(script: Script) -> None:
    script.join("m1")
    script.join("m2")
    script.release("m1")
    script.topics.grow("orders", 7)
    script.rebalance()
    assert script.everybody() == {"m1": "orders-0 orders-1 orders-4 orders-6", "m2": "orders-2 orders-3 orders-5"}
    assert script.epochs("m1")[:2] == [1, 1]
    assert script.state() is GroupState.STABLE


def test_a_deleted_topic_is_gone_for_everybody_at_once() -> None:
    script = Script(orders=2, bills=2)
    script.join("m1", "orders", "bills")
    script.join("m2", "orders", "bills")
    deleted = script.topics.delete("bills")
    script.rebalance(deleted)
    assert "gone" not in " ".join(script.everybody().values())
    assert deleted not in script.group.ownerships
    script.release("m1")
    assert script.everybody() == {"m1": "orders-0", "m2": "orders-1"}


def test_a_topic_created_again_is_another_one(script: Script) -> None:
    script.join("m1")
    before = Part(script.topics.by_name["orders"].topic_id, 0)
    script.run(StartTopics(GROUP, (before.topic_id,)))
    script.topics.delete("orders")
    script.topics.create("orders", 2)
    script.rebalance(before.topic_id)
    assert script.has("m1") == "orders-0 orders-1"
    assert script.group.owner(before) is None
    assert not script.group.owns(script.group.members["m1"], before, None)
    assert script.group.started == set()


def test_a_topic_that_comes_back_is_found_under_its_name(script: Script) -> None:
    script.join("m1")
    script.rebalance(script.topics.delete("orders"))
    assert script.has("m1") == ""
    script.topics.create("orders", 1)
    script.rebalance()
    assert script.has("m1") == "orders-0"


def test_a_rebalance_that_changes_nothing_writes_nothing(script: Script) -> None:
    script.join("m1")
    script.join("m2")
    assert script.would_write(Rebalance(GROUP)) == []
    script.release("m1")
    assert script.would_write(Rebalance(GROUP, (TopicId(99),))) == []


def test_where_a_group_begins_is_written_down_once(script: Script) -> None:
    command = StartTopics(GROUP, (TopicId(1), TopicId(2)))
    assert script.would_write(command) == ["TopicsStarted"]
    script.run(command)
    assert script.group.started == {1, 2}
    assert script.would_write(command) == []
    assert script.would_write(Rebalance(GROUP, (TopicId(2), TopicId(3)))) == ["TopicsEnded"]
    script.rebalance(TopicId(2))
    assert script.group.started == {1}


def test_a_join_says_what_was_started_for_it(script: Script) -> None:
    command = Join(
        group=GROUP,
        client_id="c",
        topics=("orders",),
        new_id="m1",
        session_ms=SESSION_MS,
        rebalance_ms=REBALANCE_MS,
        started=(TopicId(1),),
    )
    assert script.would_write(command) == ["TopicsStarted", "MemberJoined", "Reassigned"]


# --- what is counted


class Counted:
    """An observer that remembers."""

    def __init__(self, script: Script) -> None:
        script.machine.observer = self
        self.pauses: list[int] = []
        self.durations: list[int] = []

    def moved(self, group: Group, pause_ms: int) -> None:
        self.pauses.append(pause_ms)

    def rebalanced(self, group: Group, duration_ms: int) -> None:
        self.durations.append(duration_ms)

    def expired(self, group: Group, member_id: str) -> None:
        """Not counted here."""


def test_a_partition_that_moves_pauses_from_when_it_was_asked_for_until_it_is_granted(script: Script) -> None:
    counted = Counted(script)
    script.join("m1")
    assert (counted.pauses, counted.durations) == ([], [0]), "a first owner is no move"
    script.join("m2")
    script.now += 300
    script.release("m1", "orders-2")
    script.now += 400
    script.release("m1", "orders-3")
    assert counted.pauses == [300, 700]
    assert counted.durations == [0, 700]


def test_what_a_leaver_had_moves_without_a_pause(script: Script) -> None:
    script.join("m1")
    script.join("m2")
    script.release("m1")
    counted = Counted(script)
    script.leave("m2")
    assert (counted.pauses, counted.durations) == ([0, 0], [0])
    script.leave("m1")
    assert counted.durations == [0], "nobody is left to have anything"


def test_what_nobody_wanted_for_a_while_did_not_move() -> None:
    script = Script(orders=1, bills=1)
    script.join("m1", "orders")
    script.join("m2", "bills")
    script.leave("m2")
    counted = Counted(script)
    script.now += 9000
    script.join("m3", "bills")
    assert counted.pauses == []


def test_the_time_a_broker_was_away_is_not_counted(script: Script) -> None:
    script.join("m1")
    script.join("m2")
    for records_before in (None, list(script.machine.snapshot())):
        script.restart(records_before)
        counted = Counted(script)
        script.now += 50
        script.release("m1")
        assert (counted.pauses, counted.durations) == ([50, 50], [50])
