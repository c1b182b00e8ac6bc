"""Whatever a group looks like: every partition has a right owner, the shares are even, and nothing moves in vain.

With equal subscriptions the fewest moves are known: the members that have most are left with the larger shares, and
all they have beyond that has to go. Trying every balanced assignment of small groups says the same.
"""

import random
from collections import Counter
from collections.abc import Generator, Iterator
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from goqueue.groups.assignors import Assignment, Partitions, Subscriptions, assign
from goqueue.model.groups import Assignor
from goqueue.model.names import TopicId

repeatable = settings(max_examples=200, deadline=None, derandomize=True, database=None)

NAMES = [f"m{number}" for number in range(8)]
TOPICS = [TopicId(number) for number in range(6)]
MISSING = TopicId(99)

partitions_of_any_group = st.dictionaries(
    st.sampled_from(TOPICS), st.lists(st.sampled_from([None, "stranger", *NAMES]), max_size=12), max_size=len(TOPICS)
)
topic_sets = st.sets(st.sampled_from([MISSING, *TOPICS]))
some_members = st.lists(st.sampled_from(NAMES), unique=True, max_size=len(NAMES))


@st.composite
def equal_subscriptions(draw: st.DrawFn) -> Subscriptions:
    return dict.fromkeys(draw(some_members), draw(topic_sets))


@st.composite
def any_subscriptions(draw: st.DrawFn) -> Subscriptions:
    return {name: draw(topic_sets) for name in draw(some_members)}


def pairs(before: Partitions, after: Partitions, subscriptions: Subscriptions) -> Iterator[tuple[str, str | None]]:
    """The owner of each partition that had a valid one, and the one it has now."""
    for topic, owners in before.items():
        for old, new in zip(owners, after[topic], strict=True):
            if old is not None and topic in subscriptions.get(old, ()):
                yield old, new


def moves(before: Partitions, after: Partitions, subscriptions: Subscriptions) -> int:
    return sum(old != new for old, new in pairs(before, after, subscriptions))


def shares(partitions: Partitions, subscriptions: Subscriptions) -> dict[str, int]:
    """How many partitions each member has."""
    owned = Counter(old for old, _ in pairs(partitions, partitions, subscriptions))
    return {name: owned[name] for name in subscriptions}


def fewest_moves(partitions: Partitions, subscriptions: Subscriptions) -> int:
    """To a balanced assignment, if all subscribe the same."""
    if not subscriptions:
        return 0
    wanted = next(iter(subscriptions.values()))
    total = sum(len(owners) for topic, owners in partitions.items() if topic in wanted)
    each, more = divmod(total, len(subscriptions))
    most_first = sorted(shares(partitions, subscriptions).values(), reverse=True)
    return sum(max(0, had - each - (place < more)) for place, had in enumerate(most_first))


def check_owners(partitions: Partitions, subscriptions: Subscriptions, after: Assignment) -> None:
    assert list(after) == list(partitions)
    for topic, owners in after.items():
        assert len(owners) == len(partitions[topic])
        subscribers: set[str | None] = {name for name, topics in subscriptions.items() if topic in topics}
        assert set(owners) <= (subscribers or {None})


def check_no_move_helps(subscriptions: Subscriptions, after: Assignment) -> None:
    having = shares(after, subscriptions)
    for topic, owners in after.items():
        fewest = min((having[name] for name, topics in subscriptions.items() if topic in topics), default=0)
        assert all(having[owner] - fewest < 2 for owner in owners if owner is not None)


def check_sticky(partitions: Partitions, subscriptions: Subscriptions) -> Assignment:
    """Everything that holds for any group."""
    after = assign(Assignor.STICKY, partitions, subscriptions)
    check_owners(partitions, subscriptions, after)
    check_no_move_helps(subscriptions, after)
    assert assign(Assignor.STICKY, after, subscriptions) == after, "a second run changes something"
    return after


def check_equal(partitions: Partitions, subscriptions: Subscriptions) -> Assignment:
    """And if all subscribe the same, also this."""
    after = check_sticky(partitions, subscriptions)
    having = shares(after, subscriptions).values()
    assert max(having, default=0) - min(having, default=0) <= 1
    assert moves(partitions, after, subscriptions) == fewest_moves(partitions, subscriptions)
    return after


# ---------------------------------------------------------------- any group


@repeatable
@given(assignor=st.sampled_from(Assignor), partitions=partitions_of_any_group, subscriptions=any_subscriptions())
def test_what_is_subscribed_is_owned_by_a_subscriber(
    assignor: Assignor, partitions: Partitions, subscriptions: Subscriptions
) -> None:
    after = assign(assignor, partitions, subscriptions)
    check_owners(partitions, subscriptions, after)
    assert after == assign(assignor, partitions, subscriptions)
    if assignor is not Assignor.STICKY:
        assert after == assign(
            assignor, {topic: [None] * len(partitions[topic]) for topic in partitions}, subscriptions
        )


@repeatable
@given(partitions=partitions_of_any_group, subscriptions=any_subscriptions())
def test_ranges_are_even_contiguous_and_in_the_order_of_joining(
    partitions: Partitions, subscriptions: Subscriptions
) -> None:
    for topic, owners in assign(Assignor.RANGE, partitions, subscriptions).items():
        subscribers = [name for name, topics in subscriptions.items() if topic in topics]
        if subscribers:
            assert owners == sorted(owners, key=lambda owner: subscribers.index(str(owner)))
            having = [owners.count(name) for name in subscribers]
            assert having == sorted(having, reverse=True)
            assert having[0] - having[-1] <= 1


@repeatable
@given(partitions=partitions_of_any_group, subscriptions=any_subscriptions())
def test_round_robin_does_what_going_around_would(partitions: Partitions, subscriptions: Subscriptions) -> None:
    names, turn = list(subscriptions), 0
    after = assign(Assignor.ROUND_ROBIN, partitions, subscriptions)
    for topic, owners in after.items():
        for owner in owners:
            if any(topic in topics for topics in subscriptions.values()):
                while topic not in subscriptions[names[turn % len(names)]]:
                    turn += 1
                assert owner == names[turn % len(names)]
                turn += 1
            else:
                assert owner is None


@repeatable
@given(partitions=partitions_of_any_group, subscriptions=any_subscriptions())
def test_sticky_leaves_no_move_that_would_help(partitions: Partitions, subscriptions: Subscriptions) -> None:
    check_sticky(partitions, subscriptions)


# ---------------------------------------------------------------- sticky, all subscribe the same


@repeatable
@given(partitions=partitions_of_any_group, subscriptions=equal_subscriptions())
def test_equal_members_get_equal_shares_with_the_fewest_moves(
    partitions: Partitions, subscriptions: Subscriptions
) -> None:
    check_equal(partitions, subscriptions)


@settings(repeatable, max_examples=60)
@given(
    owners=st.lists(st.sampled_from([None, *NAMES[:4]]), max_size=6),
    members=st.lists(st.sampled_from(NAMES[:4]), unique=True, min_size=1, max_size=3),
)
def test_no_balanced_assignment_moves_fewer(owners: list[str | None], members: list[str]) -> None:
    """Which also says that the formula the other tests use is right."""
    partitions, subscriptions = {TOPICS[0]: owners}, dict.fromkeys(members, TOPICS)
    balanced = (
        {TOPICS[0]: choice}
        for choice in product(members, repeat=len(owners))
        if max(map(choice.count, members)) - min(map(choice.count, members)) <= 1
    )
    fewest = min(moves(partitions, choice, subscriptions) for choice in balanced)
    assert fewest_moves(partitions, subscriptions) == fewest
    assert moves(partitions, assign(Assignor.STICKY, partitions, subscriptions), subscriptions) == fewest


sizes = st.lists(st.integers(0, 30), min_size=1, max_size=5)


def balanced_group(sizes: list[int], names: list[str]) -> Partitions:
    return assign(
        Assignor.STICKY,
        {TopicId(number): [None] * size for number, size in enumerate(sizes)},
        dict.fromkeys(names, TOPICS),
    )


@repeatable
@given(sizes=sizes, members=st.integers(1, 12), place=st.integers(0, 12))
def test_a_newcomer_gets_what_it_needs_and_nothing_else_moves(sizes: list[int], members: int, place: int) -> None:
    names = [f"old{number}" for number in range(members)]
    before = balanced_group(sizes, names)
    names.insert(min(place, members), "new")
    subscriptions = dict.fromkeys(names, TOPICS)
    after = check_equal(before, subscriptions)
    assert all(new in (old, "new") for old, new in pairs(before, after, subscriptions))
    assert shares(after, subscriptions)["new"] == sum(sizes) // (members + 1)


@repeatable
@given(sizes=sizes, members=st.integers(2, 12), leavers=st.sets(st.integers(0, 11), min_size=1))
def test_when_members_leave_the_others_keep_what_they_have(sizes: list[int], members: int, leavers: set[int]) -> None:
    names = [f"m{number}" for number in range(members)]
    before = balanced_group(sizes, names)
    subscriptions = {name: TOPICS for number, name in enumerate(names) if number not in leavers}
    after = check_equal(before, subscriptions)
    assert moves(before, after, subscriptions) == 0


# ---------------------------------------------------------------- histories


def history(chance: random.Random, *, equal: bool) -> Generator[tuple[Partitions, Subscriptions], Assignment, None]:
    """A group over time. Whoever takes a step sends back what was assigned."""
    topics = {topic: chance.randint(1, 8) for topic in chance.sample(TOPICS, chance.randint(1, 4))}
    subscriptions: dict[str, set[TopicId]] = {}
    owned: Assignment = {}
    joined = 0

    def wanted() -> set[TopicId]:
        return set(TOPICS) if equal else {topic for topic in TOPICS if chance.random() < 0.5}

    while True:
        match chance.choice(("join", "join", "leave", "grow", "create", "delete", "change")):
            case "join":
                for _ in range(chance.choice((1, 1, 1, 3))):
                    subscriptions[f"m{joined}"] = wanted()
                    joined += 1
            case "leave" if subscriptions:
                for name in chance.sample(sorted(subscriptions), chance.choice((1, 1, len(subscriptions) // 2))):
                    del subscriptions[name]
            case "grow" if topics:
                topics[chance.choice(list(topics))] += chance.randint(1, 5)
            case "create" if absent := [topic for topic in TOPICS if topic not in topics]:
                topics[chance.choice(absent)] = chance.randint(1, 8)
            case "delete" if len(topics) > 1:
                del topics[chance.choice(list(topics))]
            case "change" if subscriptions:
                subscriptions[chance.choice(list(subscriptions))] = wanted()
        there: dict[TopicId, list[str | None]] = {}
        for topic, size in topics.items():
            kept = owned.get(topic, [])[:size]
            there[topic] = kept + [None] * (size - len(kept))
        owned = yield there, subscriptions


@pytest.mark.parametrize("equal", [True, False])
def test_a_group_stays_balanced_through_any_history(equal: bool) -> None:
    moved = stayed = 0
    for seed in range(1000):
        story = history(random.Random(seed), equal=equal)
        partitions, subscriptions = next(story)
        for _ in range(12):
            try:
                after = (check_equal if equal else check_sticky)(partitions, subscriptions)
            except AssertionError as error:
                raise AssertionError(f"seed {seed}: {partitions} {subscriptions}") from error
            went = moves(partitions, after, subscriptions)
            moved, stayed = moved + went, stayed + len(list(pairs(partitions, after, subscriptions))) - went
            partitions, subscriptions = story.send(after)
    assert 0 < moved < stayed / 5
