"""One group on one partition: every offset is in exactly one place, and what is delivered next."""

import msgspec

from goqueue.delivery.delivery import Delivery
from goqueue.delivery.records import Leased, Range
from goqueue.model.names import GroupNumber

GROUP = GroupNumber(7)
SEPARATE = 8
"""Of so many polls it is known which was given what."""


def lease(
    delivery: Delivery, *spans: tuple[int, int], poll: int = 1, epoch: int = 1, start: int = 0, deadline: int = 0
) -> None:
    """As a poll does: what is asked for must be ready, and is delivered once more."""
    assert delivery.may_lease(start, spans)
    ranges = tuple(Range(first, end, delivery.deliveries_of(first) + 1) for first, end in spans)
    delivery.lease(Leased(GROUP, epoch, poll, deadline, start, ranges))


def held(delivery: Delivery) -> list[tuple[int, list[Range]]]:
    return [(each.poll, each.ranges) for each in delivery.leases]


def settled(delivery: Delivery, end: int = 60) -> list[int]:
    """Above the low mark."""
    return [offset for offset in range(delivery.low, end) if offset in delivery.settled]


def again(delivery: Delivery) -> Delivery:
    return Delivery.from_record(delivery.to_record(GROUP))


# --- in order


def test_it_begins_at_its_low_mark_and_rests() -> None:
    delivery = Delivery(5)
    assert (delivery.low, delivery.cursor, delivery.is_resting, delivery.in_flight) == (5, 5, True, 0)
    assert delivery.next_ready(0) == Range(5, 0, 0)


def test_what_is_leased_is_not_offered_again() -> None:
    delivery = Delivery(0)
    lease(delivery, (0, 10))
    assert delivery.next_ready(0) == Range(10, 0, 0)
    assert (delivery.low, delivery.in_flight, delivery.is_resting) == (0, 10, False)


def test_settled_in_order_it_rests_again() -> None:
    delivery = Delivery(0)
    lease(delivery, (0, 10))
    lease(delivery, (10, 15), poll=2)
    delivery.settle(15)
    assert (delivery.low, delivery.is_resting) == (15, True)


def test_a_settle_in_the_middle_of_a_lease_leaves_the_rest_of_it() -> None:
    delivery = Delivery(0)
    lease(delivery, (0, 10))
    lease(delivery, (10, 20), poll=2)
    delivery.settle(4)
    assert (delivery.low, held(delivery)) == (4, [(1, [Range(4, 10, 1)]), (2, [Range(10, 20, 1)])])
    delivery.settle(12)
    assert (delivery.low, held(delivery), delivery.in_flight) == (12, [(2, [Range(12, 20, 1)])], 8)


def test_a_settle_takes_only_what_is_leased() -> None:
    delivery = Delivery(0)
    lease(delivery, (0, 10))
    delivery.open(2)
    lease(delivery, (3, 6), epoch=2)
    delivery.settle(100)
    assert (delivery.low, settled(delivery)) == (0, [3, 4, 5])
    assert delivery.ready_again == [Range(0, 3, 1), Range(6, 10, 1)]
    assert delivery.cursor == 10


def test_it_knows_whether_a_settle_would_settle_anything() -> None:
    delivery = Delivery(0)
    lease(delivery, (0, 5))
    delivery.settle(3)
    assert [delivery.has_leased_below(offset) for offset in (0, 3, 4, 9)] == [False, False, True, True]


# --- another owner


def test_a_new_owner_gets_what_the_old_one_had_before_anything_new() -> None:
    delivery = Delivery(0)
    lease(delivery, (0, 5))
    lease(delivery, (5, 10), poll=2)
    delivery.settle(2)
    assert [delivery.has_stale_leases(epoch) for epoch in (0, 1, 2)] == [False, False, True]
    delivery.open(2)
    assert (delivery.next_ready(0), delivery.leases, delivery.cursor) == (Range(2, 10, 1), [], 10)
    assert not delivery.has_stale_leases(3), "nobody holds anything"
    lease(delivery, (2, 6), (6, 10), (10, 12), poll=3, epoch=2)
    assert held(delivery) == [(3, [Range(2, 6, 2), Range(6, 10, 2), Range(10, 12, 1)])]
    assert (delivery.ready_again, delivery.cursor) == ([], 12)


def test_a_lease_of_a_new_owner_opens_by_itself() -> None:
    delivery = Delivery(0)
    lease(delivery, (0, 5))
    lease(delivery, (5, 8), poll=2, epoch=2)
    assert (delivery.ready_again, held(delivery)) == ([Range(0, 5, 1)], [(2, [Range(5, 8, 1)])])
    assert (delivery.assignment_epoch, delivery.cursor) == (2, 8)


def test_offsets_that_were_delivered_more_often_stay_apart() -> None:
    delivery = Delivery(0)
    lease(delivery, (0, 6))
    delivery.open(2)
    lease(delivery, (0, 3), epoch=2)
    delivery.open(3)
    assert delivery.ready_again == [Range(0, 3, 2), Range(3, 6, 1)]
    assert [delivery.deliveries_of(offset) for offset in (0, 2, 3, 5, 6)] == [2, 2, 1, 1, 0]
    lease(delivery, (0, 3), (3, 6), epoch=3)
    assert held(delivery) == [(1, [Range(0, 3, 3), Range(3, 6, 2)])]


# --- replies that did not arrive


def test_what_is_given_back_was_not_delivered() -> None:
    delivery = Delivery(0)
    lease(delivery, (0, 5), poll=1)
    lease(delivery, (5, 9), poll=2)
    lease(delivery, (9, 12), poll=3)
    assert [delivery.has_leased_to(after, 9) for after in (0, 2, 3)] == [True, True, False]
    delivery.give_back(1, 3)
    assert (held(delivery), delivery.ready_again, delivery.cursor) == ([(1, [Range(0, 5, 1)])], [], 5)
    assert delivery.next_ready(0) == Range(5, 0, 0)


def test_a_reply_in_the_middle_that_did_not_arrive_comes_next_and_counts_as_new() -> None:
    delivery = Delivery(0)
    lease(delivery, (0, 5), poll=1)
    lease(delivery, (5, 9), poll=2)
    delivery.give_back(0, 1)
    assert (delivery.ready_again, delivery.cursor) == ([Range(0, 5, 0)], 9)
    lease(delivery, (0, 5), poll=3)
    assert held(delivery)[-1] == (3, [Range(0, 5, 1)])


def test_when_nothing_is_left_under_way_it_rests_where_it_was() -> None:
    delivery = Delivery(0)
    lease(delivery, (0, 5), poll=1)
    delivery.give_back(0, 9)
    assert (delivery.is_resting, delivery.low, delivery.cursor) == (True, 0, 0)


def test_the_cursor_goes_back_over_everything_that_was_never_delivered() -> None:
    delivery = Delivery(0)
    lease(delivery, (0, 5), poll=1)
    lease(delivery, (5, 9), poll=2)
    delivery.give_back(0, 1)
    delivery.give_back(1, 2)
    assert (delivery.is_resting, delivery.cursor) == (True, 0)


def test_what_was_delivered_before_keeps_its_count_when_it_is_given_back() -> None:
    delivery = Delivery(0)
    lease(delivery, (0, 5), poll=1)
    delivery.open(2)
    lease(delivery, (0, 5), (5, 7), poll=2, epoch=2)
    delivery.give_back(1, 2)
    assert (delivery.ready_again, delivery.cursor) == ([Range(0, 5, 1)], 5)


def test_a_poll_that_takes_several_times_is_one_lease() -> None:
    delivery = Delivery(0)
    lease(delivery, (0, 2), poll=1)
    lease(delivery, (2, 4), poll=2)
    lease(delivery, (4, 6), poll=2)
    lease(delivery, (6, 7), poll=2)
    assert held(delivery) == [(1, [Range(0, 2, 1)]), (2, [Range(2, 7, 1)])]
    delivery.give_back(1, 2)
    assert (held(delivery), delivery.cursor) == ([(1, [Range(0, 2, 1)])], 2)


def test_the_last_polls_are_told_apart_and_those_before_are_one() -> None:
    delivery = Delivery(0)
    for poll in range(1, 101):
        lease(delivery, (poll * 10 - 10, poll * 10), poll=poll)
    assert len(delivery.leases) == SEPARATE
    assert held(delivery)[0] == (1, [Range(0, (101 - SEPARATE) * 10, 1)])
    assert [poll for poll, _ in held(delivery)[1:]] == list(range(102 - SEPARATE, 101))
    assert delivery.in_flight == 1000
    delivery.give_back(98, 99)
    assert delivery.ready_again == [Range(980, 990, 0)]


def test_polls_that_were_answered_in_another_order_are_found_by_the_earlier_number() -> None:
    delivery = Delivery(0)
    for poll in (2, 1, *range(3, 10)):
        lease(delivery, (delivery.cursor, delivery.cursor + 1), poll=poll)
    assert held(delivery)[0] == (1, [Range(0, 2, 1)])


def test_a_late_commit_settles_nothing_that_came_after_it() -> None:
    delivery = Delivery(0)
    lease(delivery, (0, 5), poll=1)
    lease(delivery, (5, 9), poll=2)
    delivery.settle(9, to=1)
    assert (delivery.low, held(delivery)) == (5, [(2, [Range(5, 9, 1)])])
    assert not delivery.has_leased_below(9, to=1)
    delivery.settle(9, to=2)
    assert delivery.is_resting


def test_leases_of_before_a_fence_and_after_it_do_not_become_one() -> None:
    delivery = Delivery(0)
    lease(delivery, (0, 10), poll=1)
    delivery.clip(10)
    for poll in range(3, 100):
        lease(delivery, (poll * 10 - 20, poll * 10 - 10), poll=poll)
    assert len(delivery.leases) == SEPARATE + 1
    assert held(delivery)[0] == (1, [Range(0, 10, 1)])
    delivery.settle(1000, to=2)
    assert delivery.low == 10, "a late commit for a poll whose lease was lost settles nothing that came after it"


def test_leases_of_other_deadlines_are_not_one() -> None:
    delivery = Delivery(0)
    for poll in range(2 * SEPARATE):
        lease(delivery, (poll, poll + 1), poll=poll, deadline=1000 + poll)
    assert len(delivery.leases) == 2 * SEPARATE


# --- what may be leased


def test_only_what_is_ready_may_be_leased() -> None:
    delivery = Delivery(0)
    lease(delivery, (0, 10))
    delivery.open(2)
    lease(delivery, (4, 6), epoch=2)  # ready again: 0 to 3 and 6 to 9; new from 10 on
    for ready in ([(0, 4)], [(1, 3)], [(6, 10)], [(10, 99)], [(6, 8), (0, 2), (10, 11)], [(0, 2), (2, 4)]):
        assert delivery.may_lease(0, ready), ready
    assert delivery.may_lease(0, [(11, 12), (10, 11)]), "in any order"
    for other in (
        [(4, 6)],  # leased
        [(3, 5)],
        [(0, 6)],
        [(9, 11)],  # partly again, partly new
        [(11, 12)],  # leaves one out
        [(10, 11), (12, 13)],
        [(0, 2), (1, 3)],  # twice
        [(10, 12), (11, 13)],
        [(0, 0)],  # nothing
        [(10, 10)],
        [(3, 1)],
    ):
        assert not delivery.may_lease(0, other), other


def test_nothing_below_the_beginning_of_the_partition_may_be_leased() -> None:
    delivery = Delivery(0)
    lease(delivery, (0, 10))
    delivery.open(2)
    assert not delivery.may_lease(3, [(2, 5)])
    assert delivery.may_lease(3, [(3, 5)])
    assert not delivery.may_lease(20, [(10, 30)])
    assert delivery.may_lease(20, [(20, 30)])


# --- offsets that went


def test_what_went_before_it_was_delivered_counts_as_settled() -> None:
    delivery = Delivery(5)
    assert (delivery.next_ready(20), delivery.overtaken(20)) == (Range(20, 0, 0), 15)
    lease(delivery, (20, 22), start=20)
    assert (delivery.low, delivery.cursor, delivery.overtaken(20)) == (20, 22, 0)
    delivery.settle(22)
    assert delivery.is_resting


def test_what_is_leased_may_still_be_settled_when_it_is_gone() -> None:
    delivery = Delivery(0)
    lease(delivery, (0, 10), poll=1)
    delivery.settle(3)
    lease(delivery, (20, 25), poll=2, start=20)
    assert (delivery.low, settled(delivery), delivery.in_flight) == (3, list(range(10, 20)), 12)
    delivery.settle(10)
    assert (delivery.low, held(delivery)) == (20, [(2, [Range(20, 25, 1)])])


def test_what_was_ready_again_and_went_is_passed_over_and_counted() -> None:
    delivery = Delivery(0)
    lease(delivery, (0, 10))
    delivery.open(2)
    assert delivery.next_ready(4) == Range(4, 10, 1)
    assert delivery.next_ready(10) == delivery.next_ready(9)._replace(first=10, end=0, deliveries=0)
    assert [delivery.overtaken(start) for start in (0, 4, 10, 12)] == [0, 4, 10, 12]
    lease(delivery, (4, 6), epoch=2, start=4)
    assert (delivery.low, delivery.ready_again) == (4, [Range(6, 10, 1)])


def test_offsets_with_nothing_in_them_are_settled_without_a_lease() -> None:
    delivery = Delivery(0)
    delivery.skip(0, 3)
    assert (delivery.low, delivery.is_resting) == (3, True)
    lease(delivery, (3, 6))
    delivery.skip(6, 8)
    assert (delivery.low, settled(delivery), delivery.cursor) == (3, [6, 7], 8)
    delivery.settle(6)
    assert (delivery.low, delivery.is_resting) == (8, True)


def test_part_of_what_is_ready_again_may_turn_out_to_be_nothing() -> None:
    delivery = Delivery(0)
    lease(delivery, (0, 10))
    delivery.open(2)
    assert [delivery.is_ready(*span) for span in ((3, 5), (0, 10), (10, 12), (15, 20))] == [True] * 4
    assert [delivery.is_ready(*span) for span in ((9, 11), (3, 3), (12, 12))] == [False] * 3
    delivery.skip(3, 5)
    assert delivery.ready_again == [Range(0, 3, 1), Range(5, 10, 1)]
    assert (delivery.low, settled(delivery)) == (0, [3, 4])


def test_what_is_passed_over_comes_next() -> None:
    delivery = Delivery(0)
    delivery.skip(4, 6)
    assert (delivery.next_ready(0), delivery.low, delivery.cursor) == (Range(0, 4, 0), 0, 6)
    assert delivery.next_ready(4) == Range(6, 0, 0)
    lease(delivery, (0, 4))
    delivery.settle(4)
    assert (delivery.low, delivery.is_resting) == (6, True)


# --- how much is left


def test_what_is_not_settled_is_counted_between_the_partitions_ends() -> None:
    delivery = Delivery(2)
    assert delivery.unsettled(0, 10) == 8
    lease(delivery, (2, 10))
    delivery.open(2)
    lease(delivery, (4, 6), epoch=2)
    delivery.settle(10)  # all but 2, 3 and from 6 on
    assert [delivery.unsettled(start, 20) for start in (0, 3, 5, 6, 15)] == [16, 15, 14, 14, 5]
    assert (delivery.unsettled(0, 5), delivery.unsettled(7, 7), delivery.unsettled(9, 7)) == (2, 0, 0)


# --- a fence


def test_a_fence_voids_everything_from_its_end_on() -> None:
    delivery = Delivery(0)
    lease(delivery, (0, 10), poll=1)
    delivery.open(2)
    lease(delivery, (3, 5), (8, 10), poll=2, epoch=2)
    delivery.settle(9)
    lease(delivery, (10, 20), poll=3, epoch=2)
    delivery.clip(9)
    assert (delivery.low, settled(delivery), delivery.cursor) == (0, [3, 4, 8], 9)
    assert (delivery.ready_again, delivery.leases) == ([Range(0, 3, 1), Range(5, 8, 1)], [])


def test_a_late_commit_finds_nothing_to_settle_behind_a_fence() -> None:
    delivery = Delivery(0)
    lease(delivery, (0, 5), poll=1)
    lease(delivery, (5, 10), poll=2)
    delivery.clip(5)
    assert (delivery.leases, delivery.ready_again, delivery.cursor) == ([], [Range(0, 5, 1)], 5)
    lease(delivery, (0, 5), poll=3)
    lease(delivery, (5, 10), poll=4)
    delivery.settle(10, to=2)
    assert delivery.low == 0, "what it was delivered before the fence was something else"


def test_a_fence_below_the_low_mark_leaves_it_resting_there() -> None:
    delivery = Delivery(0)
    lease(delivery, (0, 10))
    delivery.settle(6)
    delivery.clip(4)
    assert (delivery.low, delivery.cursor, delivery.is_resting) == (4, 4, True)


def test_a_fence_where_only_undelivered_offsets_are_left_leaves_it_resting() -> None:
    delivery = Delivery(0)
    lease(delivery, (0, 5), poll=1)
    lease(delivery, (5, 9), poll=2)
    delivery.give_back(0, 1)
    delivery.clip(5)
    assert (delivery.low, delivery.cursor, delivery.is_resting) == (0, 0, True)


def test_a_fence_above_everything_changes_nothing() -> None:
    delivery = Delivery(0)
    lease(delivery, (0, 10))
    before = delivery.to_record(GROUP)
    delivery.clip(10)
    assert delivery.to_record(GROUP) == msgspec.structs.replace(before, fenced_poll=1)


# --- snapshots


def test_its_record_makes_it_again() -> None:
    delivery = Delivery(0)
    lease(delivery, (0, 10), poll=1)
    delivery.open(2)
    lease(delivery, (3, 5), (8, 9), poll=2, epoch=2, deadline=77)
    delivery.settle(4)
    lease(delivery, (10, 20), poll=3, epoch=2)
    other = again(delivery)
    assert other.to_record(GROUP) == delivery.to_record(GROUP)
    other.settle(99)
    assert held(delivery) == [(2, [Range(4, 5, 2), Range(8, 9, 2)]), (3, [Range(10, 20, 1)])], "it is another one"
