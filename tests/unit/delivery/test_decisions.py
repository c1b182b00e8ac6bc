"""What commands become: what is written, what is refused, and whose handle is good."""

import pytest

from goqueue.delivery.commands import (
    Ack,
    Expire,
    Extend,
    Fence,
    GiveUp,
    Lapse,
    Nack,
    Nacked,
    Open,
    Reject,
    Release,
    ResetTo,
    Settle,
    Skip,
    Start,
)
from goqueue.delivery.dead import Death
from goqueue.delivery.deliveries import Deliveries
from goqueue.delivery.records import Reason
from goqueue.model.errors import Conflict
from tests.unit.delivery.machines import CLOCK, NOW, UNTIL, do, events, lapse, lease, leasing, live, ready
from tests.unit.delivery.partitions import RETRIES, SPAN, A, B, some


@pytest.fixture
def machine() -> Deliveries:
    return live()


# --- leasing and passing over


@pytest.mark.parametrize("offsets", [(), (5,), (9, 10), (2, 20), (3,)])
def test_what_is_not_free_is_refused(machine: Deliveries, offsets: tuple[int, ...]) -> None:
    lease(machine, A, *range(4, 10))
    do(machine, Skip(A, 0, 4))
    with pytest.raises(Conflict, match="not what the group is to be delivered next; poll again"):
        lease(machine, A, *offsets)


def test_offsets_that_went_are_refused(machine: Deliveries) -> None:
    with pytest.raises(Conflict):
        do(machine, leasing(A, range(19, 30), start=20))
    do(machine, leasing(A, range(20, 30), start=20))
    assert machine.low(A) == 20


def test_a_lease_of_what_an_operator_has_moved_away_from_is_refused(machine: Deliveries) -> None:
    """A poll reads between picking and leasing."""
    do(machine, Start(A, 10))
    do(machine, ResetTo(A, 50))
    with pytest.raises(Conflict):
        lease(machine, A, *range(10, 60))


def test_what_is_passed_over_must_be_ready(machine: Deliveries) -> None:
    lease(machine, A, *range(10))
    for first, end in ((5, 8), (9, 11), (10, 10)):
        with pytest.raises(Conflict, match=f"offsets {first} to {end - 1} are not ready"):
            do(machine, Skip(A, first, end))
    do(machine, Skip(A, 10, 12))
    assert machine.unsettled(A, 0, 20) == 18


# --- commits and fences


def test_a_commit_of_nothing_writes_nothing(machine: Deliveries) -> None:
    assert machine.decide(Settle(A, 100), NOW) == ((), None)
    lease(machine, A, *range(10))
    do(machine, Settle(A, 5))
    assert machine.decide(Settle(A, 5), NOW) == ((), None)
    assert machine.decide(Settle(A, 6), NOW).records
    assert machine.decide(Settle(A, 6, 0), NOW) == ((), None)
    assert machine.decide(Settle(A, 6, 9, "b"), NOW) == ((), None)


def test_a_fence_is_always_written(machine: Deliveries) -> None:
    for _ in range(2):
        assert len(machine.decide(Fence(5, 1), NOW).records) == 1


# --- handles


def test_an_ack_settles_what_its_poll_was_given_and_says_what_it_may_not(machine: Deliveries) -> None:
    lease(machine, A, 0, 1, poll=1)
    lease(machine, A, 2, 3, poll=2)
    refused = do(machine, Ack(A, {1: some(1, 2), 2: some(3), 9: some(0)}))
    assert refused == {1: some(2), 9: some(0)}
    assert (machine.in_flight(A), machine.unsettled(A, 0, 4)) == (2, 2)
    assert do(machine, Ack(A, {1: some(1)})) == {1: some(1)}, "it is settled"
    assert do(machine, Ack(B, {1: some(0)})) == {1: some(0)}, "another group's"


def test_a_handle_that_is_refused_writes_nothing(machine: Deliveries) -> None:
    lease(machine, A, 0)
    claims = {7: some(0)}
    for command in (
        Ack(A, claims),
        Nack(A, claims, RETRIES),
        Reject(A, claims, True),
        Extend(A, claims, SPAN),
        Release(A, claims),
    ):
        assert not machine.decide(command, NOW).records, command


def test_a_handle_is_stale_once_its_message_was_delivered_again(machine: Deliveries) -> None:
    lease(machine, A, 0, 1, poll=1)
    lapse(machine, A, 1)
    lease(machine, A, 1, poll=2)
    assert do(machine, Ack(A, {1: some(0, 1)})) == {1: some(1)}
    assert do(machine, Ack(A, {2: some(1)})) == {}
    assert machine.low(A) == 2


def test_after_a_lapse_a_handle_may_settle_but_neither_give_back_nor_extend(machine: Deliveries) -> None:
    lease(machine, A, 0, 1)
    lapse(machine, A, 1)
    assert do(machine, Nack(A, {1: some(0)}, RETRIES)).refused == {1: some(0)}
    assert do(machine, Extend(A, {1: some(0)}, SPAN)) == {1: some(0)}
    assert do(machine, Release(A, {1: some(0)})) == {1: some(0)}
    assert do(machine, Ack(A, {1: some(0)})) == {}
    assert do(machine, Reject(A, {1: some(1)}, False)) == {}
    assert machine.low(A) == 2


def test_two_handles_of_one_message_are_told_apart(machine: Deliveries) -> None:
    """A stale one beside a good one: only the good one counts, whatever is asked."""
    lease(machine, A, 0, poll=1)
    lapse(machine, A, 1)
    lease(machine, A, 0, poll=2)
    claims = {1: some(0), 2: some(0)}
    assert do(machine, Extend(A, claims, 99)) == {1: some(0)}
    assert [(each.poll, each.span_ms) for each in machine.delivery(A).leases[2]] == [(2, 99)]
    assert do(machine, Nack(A, claims, RETRIES)).refused == {1: some(0)}
    assert machine.delivery(A).deliveries_of(0) == 2


def test_a_late_handle_is_good_again_when_the_delivery_after_it_is_released(machine: Deliveries) -> None:
    lease(machine, A, 0, poll=1)
    lapse(machine, A, 1)
    lease(machine, A, 0, poll=2)
    assert do(machine, Ack(A, {1: some(0)})) == {1: some(0)}
    do(machine, Release(A, {2: some(0)}))
    assert do(machine, Release(A, {1: some(0)})) == {1: some(0)}, "it is for anybody"
    assert do(machine, Ack(A, {1: some(0)})) == {}
    assert machine.low(A) == 1


def test_what_its_poll_does_not_hold_is_not_released(machine: Deliveries) -> None:
    lease(machine, A, 0, 1, 2, 3, 4, 5, poll=1)
    do(machine, Ack(A, {1: some(0)}))
    do(machine, Nack(A, {1: some(1)}, RETRIES))
    do(machine, Reject(A, {1: some(2)}, True))
    do(machine, Release(A, {1: some(3)}))
    lease(machine, A, 3, poll=2)
    before = events(machine)
    assert do(machine, Release(A, {1: some(0, 1, 2, 3, 9), 7: some(4)})) == {1: some(0, 1, 2, 3, 9), 7: some(4)}
    assert do(machine, Release(B, {1: some(4)})) == {1: some(4)}, "another group's"
    assert events(machine) == before
    lapse(machine, A, 1)
    assert do(machine, Release(A, {1: some(4), 2: some(3)})) == {1: some(4)}, "it lapsed"


# --- failing


def test_a_nack_waits_as_long_as_its_topic_says_each_time_longer(machine: Deliveries) -> None:
    lease(machine, A, 0, 1, poll=1)
    assert do(machine, Nack(A, {1: some(0)}, RETRIES)) == Nacked({}, {0: NOW + 1000}, some())
    do(machine, Settle(A, 9))
    machine.lapse_due(CLOCK + 1000)
    lease(machine, A, 0, 2, poll=2)
    assert do(machine, Nack(A, {2: some(0, 2)}, RETRIES)) == Nacked({}, {0: NOW + 2000, 2: NOW + 1000}, some())
    assert ready(machine, A, 4) == [3]


def test_a_nack_may_say_how_long(machine: Deliveries) -> None:
    lease(machine, A, 0, 1)
    assert do(machine, Nack(A, {1: some(0)}, RETRIES, 5)).until == {0: NOW + 5}
    assert do(machine, Nack(A, {1: some(1)}, RETRIES, 0)).until == {1: NOW}
    assert (ready(machine, A, 3), machine.lapse_due(CLOCK)) == ([2], ([], {A}))
    assert ready(machine, A, 3) == [1, 2]


def test_a_message_that_fails_once_more_than_it_may_be_tried_again_is_dead(machine: Deliveries) -> None:
    for poll in range(1, RETRIES.most + 1):
        lease(machine, A, 0, poll=poll)
        assert do(machine, Nack(A, {poll: some(0)}, RETRIES, 0)).dead == some()
        machine.lapse_due(CLOCK)
    last = RETRIES.most + 1
    lease(machine, A, 0, poll=last)
    assert do(machine, Nack(A, {last: some(0)}, RETRIES, 0)) == Nacked({}, {}, some(0))
    assert list(machine.outbox) == [Death(A, 0, Reason.NACKED, last, NOW, "")]
    assert (ready(machine, A, 2), machine.in_flight(A), machine.low(A)) == ([1], 0, 0)


def test_without_dead_letters_it_is_dropped(machine: Deliveries) -> None:
    dropping = RETRIES._replace(most=0, dead_letters=False)
    lease(machine, A, 0, 1, 2)
    assert do(machine, Nack(A, {1: some(0)}, dropping)).dead == some(0)
    assert do(machine, Lapse(A, ((1, UNTIL),), dropping)) == some(1, 2)
    assert (machine.low(A), len(machine.outbox)) == (3, 0)


def test_a_rejected_message_is_dead_at_once_with_what_its_consumer_said(machine: Deliveries) -> None:
    lease(machine, A, 0, 1)
    assert do(machine, Reject(A, {1: some(0, 7)}, True, "no such order")) == {1: some(7)}
    assert list(machine.outbox) == [Death(A, 0, Reason.REJECTED, 1, NOW, "no such order")]
    do(machine, Reject(A, {1: some(1)}, False))
    assert (len(machine.outbox), machine.unsettled(A, 0, 2)) == (1, 1)


def test_a_lapse_that_is_too_late_writes_nothing(machine: Deliveries) -> None:
    lease(machine, A, 0)
    do(machine, Ack(A, {1: some(0)}))
    for group in (A, B):
        assert not machine.decide(Lapse(group, ((1, UNTIL),), RETRIES), NOW).records
    lease(machine, A, 1, poll=2)
    assert not machine.decide(Lapse(A, ((2, UNTIL + 1),), RETRIES), NOW).records


def test_what_lapses_too_often_is_dead(machine: Deliveries) -> None:
    for poll in (1, 2):
        lease(machine, A, 0, poll=poll)
        assert lapse(machine, A, poll) == some()
    lease(machine, A, 0, 1, poll=3)
    assert lapse(machine, A, 3) == some(0)
    assert list(machine.outbox) == [Death(A, 0, Reason.LAPSED, 3, NOW, "")]
    assert ready(machine, A, 3) == [1, 2]


# --- ending without a delivery


def test_what_is_too_old_is_dropped_or_dead_without_a_delivery(machine: Deliveries) -> None:
    lease(machine, A, 3)
    with pytest.raises(Conflict):
        do(machine, Expire(A, some(2, 3), True))
    do(machine, Expire(A, some(0, 1), False))
    do(machine, Expire(A, some(2), True))
    assert (machine.low(A), list(machine.outbox)) == (2, [Death(A, 2, Reason.EXPIRED, 0, NOW, "")])


def test_what_killed_its_consumers_too_often_is_given_up(machine: Deliveries) -> None:
    for epoch in (1, 2, 3):
        lease(machine, A, 0, poll=epoch, epoch=epoch)
        do(machine, Open(A, epoch + 1))
    lease(machine, A, 1, epoch=4)
    with pytest.raises(Conflict):
        do(machine, GiveUp(A, some(0, 1), True))
    do(machine, GiveUp(A, some(0), True))
    assert list(machine.outbox) == [Death(A, 0, Reason.LAPSED, 3, NOW, "")]
