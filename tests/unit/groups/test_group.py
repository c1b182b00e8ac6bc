"""The fence, and looking at a group."""

import pytest

from goqueue.groups.group import Part
from goqueue.model.errors import NotOwner, UnknownMember
from goqueue.model.names import TopicId
from tests.unit.groups.script import REBALANCE_MS, Script


@pytest.fixture
def script() -> Script:
    """m1 has orders-0 and 1 since generation 1, m2 has orders-2 and 3 since generation 3."""
    made = Script()
    made.join("m1")
    made.join("m2")
    made.release("m1")
    return made


def owns(script: Script, member_id: str, name: str, generation: int | None) -> bool:
    return script.group.owns(script.group.members[member_id], script.part(name), generation)


# --- the fence


@pytest.mark.parametrize("generation", [None, 3, 4, 1000])
def test_an_owner_may_settle_since_the_generation_in_which_it_got_the_partition(
    script: Script, generation: int | None
) -> None:
    assert owns(script, "m2", "orders-2", generation)


@pytest.mark.parametrize("generation", [0, 1, 2, -1])
def test_who_speaks_of_an_older_generation_may_not(script: Script, generation: int) -> None:
    assert not owns(script, "m2", "orders-2", generation)


@pytest.mark.parametrize("generation", [None, 1, 3, 1000])
def test_who_is_not_the_owner_may_not_whatever_it_says(script: Script, generation: int | None) -> None:
    assert not owns(script, "m1", "orders-2", generation)
    assert not owns(script, "m2", "orders-0", generation)


def test_generations_that_pass_do_not_shut_out_who_stayed(script: Script) -> None:
    for number in range(5):
        script.join(f"n{number}")
        script.leave(f"n{number}")
    assert script.group.generation > 10
    for generation in (1, 3, script.group.generation, None):
        assert owns(script, "m1", "orders-0", generation)


def test_until_it_is_given_up_a_partition_may_be_settled(script: Script) -> None:
    script.join("m3")
    (asked,) = script.group.revoking(script.group.members["m2"]) or script.group.revoking(script.group.members["m1"])
    owner = script.group.owner(asked)
    assert owner is not None
    assert script.group.owns(owner, asked, 3)
    script.release(owner.member_id)
    assert not script.group.owns(owner, asked, None)


def test_who_got_a_partition_again_may_not_settle_what_it_was_delivered_before(script: Script) -> None:
    script.leave("m1")
    script.join("m4")
    script.release("m2")
    script.leave("m4")
    again = [part for part in script.group.members["m2"].parts if script.group.epoch(part) > 3]
    assert again
    assert not any(script.group.owns(script.group.members["m2"], part, 3) for part in again)


def test_a_replaced_process_owns_nothing_any_more() -> None:
    script = Script()
    script.join("m1", instance_id="left")
    old = script.group.members["m1"]
    script.join("m2", instance_id="left")
    assert not any(script.group.owns(old, part, None) for part in script.group.members["m2"].parts)
    assert not owns(script, "m2", "orders-0", 1), "nor may the new one settle what the old one was delivered"
    assert owns(script, "m2", "orders-0", script.group.generation)


@pytest.mark.parametrize("part", [Part(TopicId(1), 4), Part(TopicId(1), -1), Part(TopicId(99), 0)])
def test_what_is_not_there_belongs_to_nobody(script: Script, part: Part) -> None:
    assert script.group.owner(part) is None
    assert not any(script.group.owns(member, part, None) for member in script.group.members.values())
    assert not script.group.is_revoking(part)


def test_a_refusal_names_the_partitions_in_order(script: Script) -> None:
    refusal = script.group.refuse(["orders-3", "bills-0"])
    assert isinstance(refusal, NotOwner)
    assert list(refusal.refused) == ["bills-0", "orders-3"]
    assert "not yet, this member's: bills-0, orders-3; poll to see what it has" in str(refusal)


# --- looking


def test_a_stranger_with_a_long_name_is_not_repeated_at_length(script: Script) -> None:
    with pytest.raises(UnknownMember) as caught:
        script.group.member("x" * 1_000_000)
    assert len(str(caught.value)) < 400


def test_a_members_partitions_are_in_order() -> None:
    script = Script(orders=12)
    script.join("m1")
    script.join("m2")
    script.release("m1")
    script.leave("m2")
    assert [part.partition for part in script.group.members["m1"].parts] == list(range(12))


def test_what_is_overdue_is_what_was_asked_for_long_enough_ago(script: Script) -> None:
    group = script.group
    assert group.window_end is None
    script.join("m3")
    end = group.window_end
    assert end == script.now + REBALANCE_MS
    assert group.overdue(end - 1) == set()
    asked = [part for member in group.members.values() for part in group.revoking(member)]
    assert group.overdue(end) == set(asked)
    assert len(asked) == 1
