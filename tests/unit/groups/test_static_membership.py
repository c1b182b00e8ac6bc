"""Members with an instance id: the next process with that name takes the place of the one before it."""

import pytest

from goqueue.groups.commands import Release
from goqueue.model import limits
from goqueue.model.errors import MemberFenced, UnknownMember
from goqueue.model.groups import GroupState
from tests.unit.groups.script import GROUP, Script


@pytest.fixture
def script() -> Script:
    """A group without members; the topic `orders` has four partitions."""
    return Script()


def test_a_newcomer_with_the_same_instance_id_takes_place_and_partitions(script: Script) -> None:
    script.join("m1", instance_id="left")
    script.join("m2", instance_id="right")
    script.release("m1")
    others = script.epochs("m2")
    assert script.join("m3", instance_id="left") == "m3"
    assert script.everybody() == {"m3": "orders-0 orders-1", "m2": "orders-2 orders-3"}
    assert list(script.group.members) == ["m3", "m2"]
    assert script.epochs("m2") == others
    assert script.epochs("m3") == [4, 4], "what the old process was delivered it cannot settle any more"
    assert script.state() is GroupState.STABLE


def test_the_old_process_is_fenced(script: Script) -> None:
    script.join("m1", instance_id="left")
    script.join("m2", instance_id="left")
    for refused in (
        lambda: script.leave("m1"),
        lambda: script.join("m1", again=True, instance_id="left"),
        lambda: script.run(Release(GROUP, "m1", ())),
    ):
        with pytest.raises(MemberFenced, match=r"'m1' was replaced: another process joined group 'billing'"):
            refused()


def test_it_is_fenced_as_long_as_the_new_one_lives(script: Script) -> None:
    script.join("m1", instance_id="left")
    script.join("m2", instance_id="left")
    script.join("m2", again=True, instance_id="left", session_ms=5000)
    script.restart()
    with pytest.raises(MemberFenced):
        script.group.member("m1")
    script.restart(list(script.machine.snapshot()))
    with pytest.raises(MemberFenced):
        script.group.member("m1")
    script.leave("m2")
    with pytest.raises(UnknownMember):
        script.group.member("m1")


def test_the_session_is_the_new_ones(script: Script) -> None:
    script.join("m1", instance_id="left")
    script.now += 20_000
    script.join("m2", instance_id="left", session_ms=40_000)
    assert script.machine.next_deadline() == script.now + 40_000
    assert script.wait(39_999) == []
    assert script.wait(1) == [script.group]
    assert script.group.by_instance == {}


def test_what_the_old_process_was_to_give_up_goes_on_at_once(script: Script) -> None:
    """The new one was never delivered from it: there is nothing to wait for. Nor can a member that starts again and
    again hold a partition for ever."""
    script.join("m1", instance_id="left")
    script.join("m2")
    assert script.has("m1") == "orders-0 orders-1 ~orders-2 ~orders-3"
    script.join("m3", instance_id="left")
    assert script.everybody() == {"m3": "orders-0 orders-1", "m2": "orders-2 orders-3"}


def test_the_newcomer_may_want_other_topics() -> None:
    script = Script(orders=2, bills=2)
    script.join("m1", "orders", instance_id="left")
    script.join("m2", "bills", instance_id="left")
    assert script.everybody() == {"m2": "bills-0 bills-1"}


def test_a_static_member_joins_again_with_its_own_id_and_nothing_moves(script: Script) -> None:
    script.join("m1", instance_id="left")
    epochs = script.epochs("m1")
    assert script.join("m1", again=True, instance_id="left") == "m1"
    assert script.epochs("m1") == epochs


@pytest.mark.parametrize(("first", "then"), [("left", "right"), ("left", None), (None, "left")])
def test_a_member_keeps_its_instance_id(script: Script, first: str | None, then: str | None) -> None:
    script.join("m1", instance_id=first)
    with pytest.raises(MemberFenced, match="'m1' joined with another instance id; leave member_id out"):
        script.join("m1", again=True, instance_id=then)


def test_a_full_group_lets_a_replacement_in(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_MEMBERS", 1)
    script.join("m1", instance_id="left")
    script.join("m2", instance_id="left")
    assert list(script.group.members) == ["m2"]
