"""Another life: the same groups from the log or from a snapshot, with all their time before them."""

import pytest

from goqueue.groups import records
from goqueue.groups.commands import Create, Delete, StartTopics
from goqueue.groups.groups import Groups
from goqueue.model.errors import DamagedData
from goqueue.model.groups import Assignor, GroupState
from goqueue.model.names import TopicId
from tests.unit.groups.script import GROUP, REBALANCE_MS, SESSION_MS, Script, Topics


@pytest.fixture
def script() -> Script:
    """A group without members; the topic `orders` has four partitions."""
    return Script()


def state(machine: Groups) -> object:
    """What must be the same whichever way it was come by."""
    return list(machine.snapshot())


def busy_script() -> Script:
    """Every kind of thing that a machine remembers."""
    script = Script(orders=6, bills=2)
    script.run(Create(group="gone"))
    script.run(Delete("gone"))
    script.run(StartTopics(GROUP, (TopicId(7), TopicId(1))))
    script.join("m1", "orders", instance_id="left", session_ms=5000)
    script.join("m2", "orders", "bills", instance_id="left")
    script.join("m3", "orders")
    script.run(Create(group="other", assignor=Assignor.RANGE))
    return script


def test_a_replay_and_a_snapshot_make_the_same_machine_again() -> None:
    script = busy_script()
    before = script.everybody(), state(script.machine)
    script.restart()
    assert (script.everybody(), state(script.machine)) == before
    script.restart(list(script.machine.snapshot()))
    assert (script.everybody(), state(script.machine)) == before
    assert script.machine.next_number == 4
    assert script.state() is GroupState.REBALANCING
    script.release("m2")
    assert script.state() is GroupState.STABLE


def test_a_snapshot_of_nothing_says_only_which_number_is_next() -> None:
    assert list(Groups(Topics()).snapshot()) == [b'{"type":"group_numbers_given","below":1}']


def test_a_reset_forgets_everything() -> None:
    script = busy_script()
    script.machine.reset()
    assert state(script.machine) == state(Groups(script.topics))
    assert script.machine.next_deadline() is None


def test_after_a_restart_sessions_and_times_to_give_up_begin_anew(script: Script) -> None:
    script.join("m1")
    script.join("m2")
    script.now += SESSION_MS - 1
    script.restart()
    assert script.machine.next_deadline() == script.now + REBALANCE_MS
    assert script.wait(REBALANCE_MS - 1) == []
    script.wait(1)
    assert script.has("m2") == "orders-2 orders-3"
    assert script.machine.next_deadline() == script.now + SESSION_MS - REBALANCE_MS
    script.wait(SESSION_MS - REBALANCE_MS)
    assert not script.group.members


def test_after_a_restart_members_are_told_again_what_they_have(script: Script) -> None:
    script.join("m1")
    script.join("m2")
    before = {member_id: member.version for member_id, member in script.group.members.items()}
    script.restart()
    for member_id, member in script.group.members.items():
        assert member.version > before[member_id]
        assert member.told_version != member.version


def test_epochs_go_on_after_a_restart(script: Script) -> None:
    script.join("m1")
    script.join("m2")
    script.release("m1")
    epochs = {member_id: script.epochs(member_id) for member_id in script.group.members}
    script.restart()
    assert {member_id: script.epochs(member_id) for member_id in script.group.members} == epochs
    assert script.group.generation == 3
    script.leave("m1")
    assert script.epochs("m2") == [4, 4, 3, 3]


def test_what_changed_while_the_broker_was_away_is_found_by_a_rebalance(script: Script) -> None:
    script.join("m1")
    script.topics.grow("orders", 5)
    script.restart()
    script.rebalance()
    assert script.has("m1") == "orders-0 orders-1 orders-2 orders-3 orders-4"


@pytest.mark.parametrize("last", ["join", "leave", "replace", "tick"])
def test_a_power_cut_between_the_records_of_a_decision_is_made_good_by_a_rebalance(last: str) -> None:
    """A block may lose its end. Whatever is left of it is a group that can go on."""
    script = Script(orders=6)
    script.join("m1", instance_id="left")
    script.join("m2")
    script.release("m1")
    if last in ("tick", "replace"):
        script.join("m3")
    start = len(script.log)
    if last == "join":
        script.join("m3", assignor=None)
    elif last == "leave":
        script.leave("m2")
    elif last == "replace":
        script.join("m4", instance_id="left")
    else:
        script.now += SESSION_MS
        script.touch("m1")
        script.tick()
    log = list(script.log)
    assert len(log) - start > 1
    for end in range(start + 1, len(log)):
        script.restart(log[:end])
        script.rebalance()
        while script.group.is_rebalancing:
            script.wait(script.group.window_end - script.now if script.group.window_end else 0)
            script.touch(*script.group.members)
        counts = [sum(map(len, member.owned.values())) for member in script.group.members.values()]
        assert sum(counts) == 6
        assert max(counts) - min(counts) <= 1
        script.join("m9", instance_id="left")
        assert script.group.by_instance["left"] is script.group.members["m9"]


@pytest.mark.parametrize("record", [b'{"type":"group_renamed","group":1}', b'{"type":"group_deleted"}', b"", b"\xff{"])
def test_a_record_it_does_not_understand_is_refused_with_its_offset(script: Script, record: bytes) -> None:
    with pytest.raises(DamagedData, match=r"offset 77 of the groups log is not understood .*start the version that"):
        script.machine.apply(record, 77)


def test_every_event_but_those_of_snapshots_comes_from_a_command() -> None:
    script = busy_script()
    script.join("m2", "orders", again=True, instance_id="left")
    script.leave("m3")
    script.join("m2", "orders", again=True, instance_id="left", assignor=Assignor.RANGE)
    script.rebalance(TopicId(7))
    script.renew("orders-0")
    found = {type(records.decode(record)) for record in script.log}
    restored = {type(records.decode(record)) for record in script.machine.snapshot()}
    assert found | restored == set(records.Event.__args__)
    assert found & restored == {records.MemberJoined}
