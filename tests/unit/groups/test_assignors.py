"""Three ways to share partitions, by example. What holds for any group is in tests/property."""

from collections import Counter

import pytest

from goqueue.groups.assignors import ASSIGNORS, Assignment, Partitions, Subscriptions, assign
from goqueue.model.groups import Assignor
from goqueue.model.names import TopicId

ORDERS, BILLS, MAILS, GONE = map(TopicId, (7, 3, 5, 99))


def unowned(count: int) -> list[str | None]:
    return [None] * count


def owners(text: str) -> list[str | None]:
    """One letter per partition; a dot is a partition that nobody owns."""
    return [None if letter == "." else letter for letter in text]


def everybody(names: str, *topics: TopicId) -> Subscriptions:
    """One letter per member; all want the same."""
    return dict.fromkeys(names, topics)


def letters(assignment: Assignment) -> list[str]:
    return ["".join(owner or "." for owner in owned) for owned in assignment.values()]


def counts(assignment: Partitions) -> dict[str | None, int]:
    return dict(Counter(owner for owned in assignment.values() for owner in owned))


def moved(before: Partitions, after: Partitions) -> int:
    return sum(
        old is not None and old != new for topic in before for old, new in zip(before[topic], after[topic], strict=True)
    )


# ---------------------------------------------------------------- all of them


def test_there_is_a_function_for_every_assignor() -> None:
    assert set(ASSIGNORS) == set(Assignor)


@pytest.mark.parametrize("assignor", Assignor)
def test_a_single_member_owns_everything_it_subscribes(assignor: Assignor) -> None:
    partitions = {ORDERS: unowned(3), BILLS: owners("x")}
    assert assign(assignor, partitions, {"a": [ORDERS, BILLS]}) == {ORDERS: ["a"] * 3, BILLS: ["a"]}


@pytest.mark.parametrize("assignor", Assignor)
def test_a_partition_that_nobody_subscribes_loses_its_owner(assignor: Assignor) -> None:
    partitions = {ORDERS: owners("aa"), BILLS: owners("ax.")}
    assert letters(assign(assignor, partitions, {"a": [ORDERS]})) == ["aa", "..."]
    assert letters(assign(assignor, partitions, {"a": []})) == ["..", "..."]
    assert letters(assign(assignor, partitions, {})) == ["..", "..."]


@pytest.mark.parametrize("assignor", Assignor)
def test_topics_that_are_not_there_or_have_no_partition_change_nothing(assignor: Assignor) -> None:
    subscriptions = {"a": [GONE, ORDERS, BILLS], "b": [BILLS, ORDERS, GONE, GONE]}
    assert letters(assign(assignor, {ORDERS: unowned(2), BILLS: []}, subscriptions)) == ["ab", ""]
    assert assign(assignor, {}, subscriptions) == {}


@pytest.mark.parametrize("assignor", Assignor)
def test_a_topic_named_twice_counts_once(assignor: Assignor) -> None:
    twice = assign(assignor, {ORDERS: unowned(4)}, {"a": [ORDERS, ORDERS], "b": [ORDERS]})
    assert counts(twice) == {"a": 2, "b": 2}


@pytest.mark.parametrize("assignor", Assignor)
def test_members_without_a_partition_are_left_over_when_there_are_too_many(assignor: Assignor) -> None:
    assert letters(assign(assignor, {ORDERS: unowned(2)}, everybody("abcd", ORDERS))) == ["ab"]


@pytest.mark.parametrize("assignor", Assignor)
def test_what_was_asked_is_not_changed(assignor: Assignor) -> None:
    partitions = {ORDERS: owners("aaa..x")}
    assign(assignor, partitions, {"a": [ORDERS], "b": [ORDERS]})
    assert partitions == {ORDERS: owners("aaa..x")}


# ---------------------------------------------------------------- range


def test_ranges_are_contiguous_and_the_first_members_get_one_more() -> None:
    partitions = {ORDERS: owners("bbbbbbbb"), BILLS: unowned(4), MAILS: unowned(3)}
    subscriptions = {"a": [ORDERS, BILLS], "b": [ORDERS], "c": [ORDERS, BILLS, MAILS]}
    assert letters(assign(Assignor.RANGE, partitions, subscriptions)) == ["aaabbbcc", "aacc", "ccc"]


def test_ranges_of_topics_with_as_many_partitions_go_together() -> None:
    partitions = {ORDERS: unowned(5), BILLS: unowned(5)}
    assert letters(assign(Assignor.RANGE, partitions, everybody("ab", BILLS, ORDERS))) == ["aaabb", "aaabb"]


# ---------------------------------------------------------------- round-robin


def test_round_robin_goes_on_with_the_next_topic_where_it_stopped() -> None:
    partitions = {ORDERS: owners("ccaa"), BILLS: unowned(4)}
    assert letters(assign(Assignor.ROUND_ROBIN, partitions, everybody("abc", BILLS, ORDERS))) == ["abca", "bcab"]


def test_round_robin_passes_over_who_does_not_subscribe() -> None:
    partitions = {ORDERS: unowned(2), BILLS: unowned(3), GONE: unowned(1), MAILS: unowned(4)}
    subscriptions = {"a": [ORDERS, MAILS], "b": [ORDERS, BILLS], "c": [BILLS, MAILS], "d": [BILLS]}
    # After b of ORDERS comes c; after c of BILLS, the last, comes d, who does not want MAILS, then a.
    dealt = assign(Assignor.ROUND_ROBIN, partitions, subscriptions)
    assert letters(dealt) == ["ab", "cdb", ".", "caca"]


# ---------------------------------------------------------------- sticky


def test_a_first_assignment_spreads_every_topic() -> None:
    partitions = {ORDERS: unowned(4), BILLS: unowned(3), MAILS: unowned(2)}
    shared = assign(Assignor.STICKY, partitions, everybody("abc", ORDERS, BILLS, MAILS))
    assert letters(shared) == ["abca", "bca", "bc"]


def test_a_balanced_assignment_stays_whatever_the_order_of_joining() -> None:
    partitions = {ORDERS: owners("cabbacc"), BILLS: owners("ab")}
    for order in ("abc", "cba", "bca"):
        assert assign(Assignor.STICKY, partitions, everybody(order, ORDERS, BILLS)) == partitions


def test_a_newcomer_takes_only_its_share_and_from_who_has_most() -> None:
    partitions = {ORDERS: owners("aaaabbbbccc")}
    after = assign(Assignor.STICKY, partitions, everybody("abcd", ORDERS))
    assert letters(after) == ["aaadbbbdccc"]


def test_what_a_leaver_had_is_all_that_moves() -> None:
    partitions = {ORDERS: owners("abcdabcdab")}
    after = assign(Assignor.STICKY, partitions, everybody("acd", ORDERS))
    assert letters(after) == ["accdadcdaa"]


def test_new_partitions_go_to_who_has_fewest() -> None:
    partitions = {ORDERS: owners("aabbc..."), BILLS: owners("..")}
    after = assign(Assignor.STICKY, partitions, everybody("abc", ORDERS, BILLS))
    assert letters(after) == ["aabbccab", "ca"]


def test_who_has_most_keeps_the_extra_ones() -> None:
    partitions = {ORDERS: owners("abbccccc")}
    after = assign(Assignor.STICKY, partitions, everybody("abc", ORDERS))
    assert letters(after) == ["abbcccaa"]


def test_of_a_topic_of_which_it_has_many_a_member_gives_first() -> None:
    partitions = {ORDERS: owners("aaa"), BILLS: owners("a"), MAILS: owners("aa")}
    after = assign(Assignor.STICKY, partitions, everybody("ab", ORDERS, BILLS, MAILS))
    assert letters(after) == ["abb", "a", "ab"]


def test_a_member_that_drops_a_topic_loses_its_partitions_and_gets_others() -> None:
    partitions = {ORDERS: owners("aabb"), BILLS: owners("aabb")}
    after = assign(Assignor.STICKY, partitions, {"a": [BILLS], "b": [ORDERS, BILLS]})
    assert letters(after) == ["bbbb", "aaaa"]


def test_members_with_nothing_in_common_take_nothing_from_each_other() -> None:
    partitions = {ORDERS: owners("aaaaaaab"), BILLS: owners("cdc")}
    subscriptions = {"a": [ORDERS], "b": [ORDERS], "c": [BILLS], "d": [BILLS], "e": [BILLS]}
    after = assign(Assignor.STICKY, partitions, subscriptions)
    assert counts(after) == {"a": 4, "b": 4, "c": 1, "d": 1, "e": 1}
    assert moved(partitions, after) == 4


def test_what_only_few_may_take_is_given_out_first() -> None:
    """Else b gets the order, a the bill, and a has to give its own order to c."""
    partitions = {ORDERS: owners("a."), BILLS: owners(".")}
    after = assign(Assignor.STICKY, partitions, {"a": [ORDERS, BILLS], "b": [ORDERS, BILLS], "c": [ORDERS]})
    assert letters(after) == ["ac", "b"]


def test_a_gift_that_makes_room_is_passed_on() -> None:
    """At first only c can give, to d. Then b has somebody to give to, then a: each has one more than the next."""
    partitions = {ORDERS: owners("aaaaaaa"), BILLS: owners("bbbbbb"), MAILS: owners("ccccc")}
    subscriptions = {"a": [ORDERS], "b": [ORDERS, BILLS], "c": [BILLS, MAILS], "d": [MAILS]}
    after = assign(Assignor.STICKY, partitions, subscriptions)
    assert counts(after) == {"a": 6, "b": 5, "c": 4, "d": 3}


def test_the_order_of_a_collection_of_topics_does_not_matter() -> None:
    topics = [TopicId(number) for number in range(40)]
    partitions = {topic: unowned(topic % 5) for topic in topics}
    lists = {name: topics[start:] for start, name in enumerate("abcdefg")}
    backwards = {name: frozenset(reversed(wanted)) for name, wanted in lists.items()}
    for assignor in Assignor:
        assert assign(assignor, partitions, lists) == assign(assignor, partitions, backwards)


@pytest.mark.parametrize(("partitions", "members"), [(1000, 1000), (1000, 7), (10_000, 100)])
def test_large_groups_are_balanced_too(partitions: int, members: int) -> None:
    topics = [TopicId(number) for number in range(10)]
    names = [f"member-{number}" for number in range(members)]
    crowded = {topic: ["member-0"] * (partitions // 10) for topic in topics}
    after = assign(Assignor.STICKY, crowded, dict.fromkeys(names, topics))
    assert set(counts(after).values()) <= {partitions // members, partitions // members + 1}
    assert moved(crowded, after) == partitions - -(-partitions // members)
    assert assign(Assignor.STICKY, after, dict.fromkeys(names, topics)) == after
