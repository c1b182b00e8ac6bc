"""The checkers of the group rigs: content with what a right broker does, and not with what a wrong one would do."""

from collections.abc import Sequence

import pytest

from tests.chaos.ledger import Lost, Violation
from tests.support.group_ledger import (
    DONE,
    LEFT,
    NO_ANSWER,
    Answered,
    AnyEvent,
    Committing,
    DeliveredAgain,
    Ended,
    History,
    Joined,
    Life,
    Received,
    Released,
    Told,
    TwoOwners,
    has_work,
    lives_of,
)
from tests.support.group_pauses import CLEAN, SILENT, Sample, measure


def received(at: int, first: int, end: int, *, epoch: int = 1, deliveries: int = 1) -> Received:
    return Received(at, 0, epoch, epoch, epoch, first, end, deliveries)


def committed(at: int, offset: int, code: str = DONE, refused: tuple[int, ...] = ()) -> list[AnyEvent]:
    return [Committing(at, at, {0: offset}), Answered(at + 1, at, code, refused)]


def life(name: str, *events: AnyEvent, how: str | None = LEFT) -> Life:
    found = lives_of(name, [Joined(0, name, 1), *events])[0]
    if how is not None:
        found.events.append(Ended(1000, how))
    return found


def check(lives: Sequence[Life], end: int) -> None:
    History(lives).check({0: end})


def test_work_that_was_received_and_settled_once_is_right() -> None:
    check([life("a", received(10, 0, 5), *committed(20, 5), received(30, 5, 7), *committed(40, 7))], 7)


def test_work_of_a_member_that_died_may_come_again() -> None:
    dead = life("a", received(10, 0, 5), how="killed")
    heir = life("b", received(50, 0, 5, epoch=2, deliveries=2), *committed(60, 5))
    check([dead, heir], 5)


@pytest.mark.parametrize("deliveries", [(), (received(50, 0, 5, epoch=2, deliveries=2),)])
def test_a_commit_without_an_answer_may_have_been_done_or_not(deliveries: tuple[Received, ...]) -> None:
    dead = life("a", received(10, 0, 5), Committing(20, 1, {0: 5}), how="killed")
    heir = life("b", *deliveries, *(committed(60, 5) if deliveries else ()))
    check([dead, heir], 5)


def test_settled_work_must_not_come_again() -> None:
    dead = life("a", received(10, 0, 5), *committed(20, 5), how="killed")
    heir = life("b", received(50, 4, 6, epoch=2, deliveries=2), *committed(60, 6))
    with pytest.raises(DeliveredAgain, match="offset 4"):
        check([dead, heir], 6)


def test_a_reply_of_an_earlier_owner_may_have_been_on_its_way_for_long() -> None:
    slow = life("a", received(40, 0, 5), how="silent")
    heir = life("b", received(20, 0, 5, epoch=2, deliveries=2), *committed(25, 5))
    History([slow, heir]).check_settled_work()


def test_work_of_a_member_that_lives_must_not_come_again() -> None:
    one = life("a", received(10, 0, 5), *committed(80, 5, "not_owner"))
    other = life("b", received(50, 0, 5, epoch=2, deliveries=2), *committed(60, 5))
    with pytest.raises(DeliveredAgain, match="which went on"):
        check([one, other], 5)


def test_work_of_a_member_that_was_too_late_may_come_again() -> None:
    one = life("a", received(10, 0, 5), *committed(80, 5, "not_owner", (0,)))
    other = life("b", received(50, 0, 5, epoch=2, deliveries=2), *committed(60, 5))
    check([one, other], 5)


def test_deliveries_must_be_counted() -> None:
    dead = life("a", received(10, 0, 5), how="killed")
    heir = life("b", received(50, 0, 5, epoch=2, deliveries=1), *committed(60, 5))
    with pytest.raises(Violation, match=r"delivered for the 1\. time"):
        check([dead, heir], 5)


def test_what_nobody_received_is_lost() -> None:
    with pytest.raises(Lost, match="nobody received offset 5"):
        check([life("a", received(10, 0, 5), *committed(20, 5))], 6)


@pytest.mark.parametrize("events", [[], committed(20, 4), committed(20, 5, "unknown_member")])
def test_what_nobody_committed_is_lost(events: list[AnyEvent]) -> None:
    with pytest.raises(Lost, match="nobody committed it"):
        check([life("a", received(10, 0, 5), *events)], 5)


def test_a_commit_settles_nothing_of_an_earlier_assignment_epoch() -> None:
    one = life("a", received(10, 0, 5), received(50, 5, 8, epoch=3), *committed(60, 8))
    with pytest.raises(Lost, match="offset 0 counts as settled"):
        check([one], 8)


def test_what_was_received_must_be_there() -> None:
    with pytest.raises(Violation, match="not there"):
        check([life("a", received(10, 0, 5), *committed(20, 5))], 4)


def test_one_assignment_epoch_has_one_owner() -> None:
    lives = [life("a", received(10, 0, 5), how="killed"), life("b", received(20, 5, 6))]
    with pytest.raises(TwoOwners, match="assignment epoch 1"):
        History(lives).check_owners()


def test_assignment_epochs_grow() -> None:
    lives = [life("a", received(10, 0, 5, epoch=2)), life("b", received(20, 5, 6, epoch=1))]
    with pytest.raises(TwoOwners, match="later assignment epoch"):
        History(lives).check_owners()


def test_who_is_not_told_its_epoch_owns_what_it_was_told_to_have() -> None:
    http = life("a", Received(10, 0, 2, 4, 6, 0, 5, 1), how="killed")
    History([http, life("b", received(20, 5, 6, epoch=7))]).check_owners()
    with pytest.raises(TwoOwners, match="from generation 4 at the latest to 6"):
        History([http, life("b", received(20, 5, 6, epoch=5))]).check_owners()


def test_a_process_that_joins_again_begins_another_life() -> None:
    again = received(30, 0, 5, epoch=2, deliveries=2)
    events: list[AnyEvent] = [Joined(0, "a", 1), received(10, 0, 5), Joined(20, "b", 2), again]
    assert [each.member_id for each in lives_of("process", events)] == ["a", "b"]


@pytest.mark.parametrize(
    ("events", "is_busy"),
    [
        ([], False),
        ([received(10, 0, 5)], True),
        ([received(10, 0, 5), Committing(20, 1, {0: 5})], True),
        ([received(10, 0, 5), *committed(20, 5)], False),
        ([received(10, 0, 5), *committed(20, 5, NO_ANSWER)], True),
        ([received(10, 0, 5), *committed(20, 3)], True),
        ([received(90, 0, 5)], False),
    ],
)
def test_whether_a_member_is_at_work(events: list[AnyEvent], is_busy: bool) -> None:
    assert has_work([Joined(0, "a", 1), *events], 50) is is_busy


@pytest.mark.parametrize(
    ("events", "strange"),
    [
        ([*committed(20, 5)], 0),
        ([*committed(20, 5, "not_owner", (0,))], 1),
        ([*committed(20, 5, NO_ANSWER), *committed(30, 5, "not_owner", (0,))], 0),
        ([*committed(20, 4, NO_ANSWER), *committed(30, 5, "not_owner", (0,))], 1),
        ([*committed(20, 5, NO_ANSWER), *committed(30, 5, "unknown_member")], 1),
    ],
)
def test_a_refusal_is_strange_unless_the_same_commit_had_no_answer_before(events: list[AnyEvent], strange: int) -> None:
    assert len(life("a", received(10, 0, 5), *events).strange_refusals) == strange


# --- pauses


def test_a_pause_begins_when_the_old_owner_has_given_up() -> None:
    old = life("a", received(10, 0, 5), Told(20, 2, (), (0,)), *committed(25, 5), Released(30, (0,)))
    new = life("b", received(50, 5, 6, epoch=2), received(65, 6, 7, epoch=2))
    pauses = measure(History([old, new]), [], 0, 100)
    assert [(move.kind, move.pause_ns, move.silence_ns) for move in pauses.moves] == [(CLEAN, 20, 40)]
    assert [gap.ns for gap in pauses.stays] == [15]


def test_a_pause_is_told_apart_when_somebody_died_who_had_the_partition_unseen() -> None:
    old = life("a", received(10, 0, 5), Released(12, (0,)))
    dead = lives_of("x", [Joined(0, "x", 1), Ended(5, SILENT)])[0]
    new = life("b", received(50, 5, 6, epoch=4))
    samples = [Sample(at, {0: owner}) for at, owner in ((5, "a"), (20, "x"), (30, "x"), (60, "b"))]
    (move,) = measure(History([old, dead, new]), samples, 0, 100).moves
    assert (move.kind, move.pause_ns) == (SILENT, 38)


def test_a_partition_that_was_asked_for_and_kept_did_not_stay_all_the_time() -> None:
    owner = life("a", received(10, 0, 5), Told(20, 2, (), (0,)), Told(30, 3, (0,), ()), received(50, 5, 6))
    pauses = measure(History([owner]), [], 0, 100)
    assert (pauses.stays, [gap.ns for gap in pauses.taken_back]) == ([], [40])
