"""One group on one partition: every offset is in exactly one place, and its failed deliveries are counted."""

from goqueue.base.offset_sets import pack, ranged
from goqueue.delivery.delivery import Delivery, pack_keys, unpack_keys
from goqueue.delivery.records import Leased
from goqueue.delivery.tries import Try
from goqueue.model import limits
from goqueue.model.names import GroupNumber
from tests.unit.delivery.partitions import SPAN, T0, some

GROUP = GroupNumber(7)
EVER = limits.MAX_OFFSET
UNTIL = T0 + SPAN


def lease(
    delivery: Delivery,
    *offsets: int,
    poll: int = 1,
    holder: str = "a",
    epoch: int = 1,
    until: int = UNTIL,
    key: int = 0,
) -> None:
    """As a poll does: what is asked for must be free."""
    wanted = some(*offsets)
    assert delivery.is_free(wanted)
    keys = pack_keys([key] * len(wanted)) if key else b""
    delivery.lease(Leased(GROUP, epoch, poll, holder, 0, until, SPAN, pack(wanted), keys))


def held(delivery: Delivery) -> list[tuple[int, list[int]]]:
    return [(poll, list(lease.offsets)) for poll, leases in delivery.leases.items() for lease in leases]


def settled(delivery: Delivery, end: int = 60) -> list[int]:
    """Above the low mark."""
    return [offset for offset in range(delivery.low, end) if offset in delivery.settled]


def again(delivery: Delivery) -> Delivery:
    return Delivery.from_record(delivery.to_record(GROUP))


def state(delivery: Delivery) -> tuple[object, ...]:
    return (
        delivery.low,
        delivery.assignment_epoch,
        list(delivery.settled.above),
        held(delivery),
        [(wait.until, wait.span_ms, list(wait.offsets)) for wait in delivery.waits],
        dict(delivery.tries),
        list(delivery.dead),
        list(delivery.taken),
        delivery.keys,
    )


# --- in order


def test_it_begins_at_its_low_mark_and_rests() -> None:
    delivery = Delivery(5)
    assert (delivery.low, delivery.end, delivery.is_resting, delivery.in_flight) == (5, 5, True, 0)
    assert [delivery.is_free(some(offset)) for offset in (4, 5, 99)] == [False, True, True]


def test_what_is_leased_is_not_free() -> None:
    delivery = Delivery(0)
    lease(delivery, *range(10))
    assert not delivery.is_free(some(9, 10))
    assert delivery.is_free(some(10))
    assert (delivery.low, delivery.in_flight, delivery.is_resting, delivery.end) == (0, 10, False, 10)


def test_settled_in_order_it_rests_again() -> None:
    delivery = Delivery(0)
    lease(delivery, *range(10))
    lease(delivery, *range(10, 15), poll=2)
    delivery.settle(delivery.below(15, EVER, ""))
    assert (delivery.low, delivery.is_resting) == (15, True)


def test_settled_one_by_one_it_remembers_which() -> None:
    delivery = Delivery(0)
    lease(delivery, 0, 1, 2, 3)
    delivery.settle(some(2))
    assert (delivery.low, settled(delivery), held(delivery)) == (0, [2], [(1, [0, 1, 3])])
    delivery.settle(some(0, 1))
    assert (delivery.low, settled(delivery), held(delivery)) == (3, [], [(1, [3])])


# --- commits


def test_a_commit_in_the_middle_of_a_lease_leaves_the_rest_of_it() -> None:
    delivery = Delivery(0)
    lease(delivery, *range(5))
    lease(delivery, *range(5, 9), poll=2)
    delivery.settle(delivery.below(3, EVER, ""))
    assert (delivery.low, held(delivery)) == (3, [(1, [3, 4]), (2, [5, 6, 7, 8])])
    delivery.settle(delivery.below(7, EVER, ""))
    assert (delivery.low, held(delivery), delivery.in_flight) == (7, [(2, [7, 8])], 2)


def test_a_commit_takes_only_what_was_delivered() -> None:
    delivery = Delivery(0)
    lease(delivery, 3, 4, 5)
    delivery.settle(delivery.below(100, EVER, ""))
    assert (delivery.low, settled(delivery)) == (0, [3, 4, 5])


def test_a_late_commit_settles_nothing_that_came_after_it() -> None:
    delivery = Delivery(0)
    lease(delivery, *range(5), poll=1)
    lease(delivery, *range(5, 9), poll=2)
    assert list(delivery.below(9, 1, "")) == [0, 1, 2, 3, 4]
    assert list(delivery.below(9, 2, "")) == list(range(9))


def test_a_commit_of_one_holder_leaves_those_of_others() -> None:
    delivery = Delivery(0)
    lease(delivery, 0, 1, holder="a")
    lease(delivery, 2, 3, poll=2, holder="b")
    assert list(delivery.below(9, EVER, "b")) == [2, 3]
    assert [delivery.held_by(holder) for holder in "abc"] == [2, 2, 0]


def test_a_commit_settles_what_lapsed_and_was_not_delivered_again() -> None:
    delivery = Delivery(0)
    lease(delivery, 0, 1, 2)
    delivery.fail(some(0, 1, 2), 1)
    lease(delivery, 1, poll=2)
    assert list(delivery.below(9, 1, "")) == [0, 2]
    assert list(delivery.below(9, 0, "")) == [], "it came after the commit"
    assert list(delivery.below(9, 1, "a")) == [], "who had it is not known any more"


def test_a_commit_does_not_settle_what_was_given_back() -> None:
    delivery = Delivery(0)
    lease(delivery, 0, 1)
    delivery.defer(some(0), UNTIL, SPAN)
    assert list(delivery.below(9, EVER, "")) == [1]
    delivery.wait_over(delivery.waits[0])
    assert list(delivery.below(9, EVER, "")) == [1]


# --- handles


def test_a_handle_is_good_as_long_as_its_poll_has_the_message() -> None:
    delivery = Delivery(0)
    lease(delivery, 0, 1, poll=1)
    lease(delivery, 2, poll=2)
    assert list(delivery.of_poll(1, some(0, 1, 2, 3))) == [0, 1]
    assert list(delivery.of_poll(3, some(0))) == []
    delivery.settle(some(0))
    assert list(delivery.of_poll(1, some(0, 1))) == [1]


def test_a_handle_is_good_after_its_lease_lapsed_until_the_message_is_delivered_again() -> None:
    delivery = Delivery(0)
    lease(delivery, 0, 1, poll=1)
    delivery.fail(some(0, 1), 1)
    assert (list(delivery.of_poll(1, some(0, 1))), list(delivery.leased_to(1, some(0, 1)))) == ([0, 1], [])
    lease(delivery, 1, poll=2)
    assert (list(delivery.of_poll(1, some(0, 1))), list(delivery.of_poll(2, some(0, 1)))) == ([0], [1])


def test_a_handle_is_good_again_when_the_delivery_after_it_was_not_made() -> None:
    delivery = Delivery(0)
    lease(delivery, 0, poll=1)
    delivery.fail(some(0), 1)
    lease(delivery, 0, poll=2)
    delivery.give_back(some(0))
    assert list(delivery.of_poll(1, some(0))) == [0]
    assert delivery.tries == {0: Try(1, 1)}


def test_giving_a_message_back_ends_its_handle() -> None:
    delivery = Delivery(0)
    lease(delivery, 0)
    wait = delivery.defer(some(0), UNTIL, SPAN)
    assert not delivery.of_poll(1, some(0))
    delivery.wait_over(wait)
    assert not delivery.of_poll(1, some(0))


# --- deliveries that fail


def test_what_failed_is_free_and_counted() -> None:
    delivery = Delivery(0)
    for poll in (1, 2, 3):
        lease(delivery, 0, 1, poll=poll)
        assert delivery.deliveries_of(0) == poll - 1, "before this one"
        delivery.fail(some(0), poll)
        delivery.fail(some(1), poll)
    assert (delivery.tries, delivery.is_resting, delivery.end) == ({0: Try(3, 3), 1: Try(3, 3)}, False, 2)
    delivery.settle(some(0, 1))
    assert (delivery.tries, delivery.is_resting) == ({}, True)


def test_what_waits_is_taken_until_its_wait_is_over() -> None:
    delivery = Delivery(0)
    lease(delivery, 0, 1, 2)
    wait = delivery.defer(some(0, 2), UNTIL, SPAN)
    assert (wait.until, wait.span_ms, list(wait.offsets)) == (UNTIL, SPAN, [0, 2])
    assert (list(delivery.taken), delivery.in_flight, delivery.tries) == ([0, 1, 2], 1, {0: Try(1, 0), 2: Try(1, 0)})
    delivery.wait_over(wait)
    assert (list(delivery.taken), delivery.waits) == ([1], [])
    delivery.wait_over(wait)
    assert list(delivery.taken) == [1], "once"


def test_a_lease_of_what_waited_needs_no_word_that_the_wait_was_over() -> None:
    """After a restart nobody knows that."""
    delivery = Delivery(0)
    lease(delivery, 0, 1)
    delivery.defer(some(0, 1), UNTIL, SPAN)
    delivery.lease(Leased(GROUP, 1, 2, "a", 0, UNTIL, SPAN, pack(some(1))))
    assert (held(delivery), [list(wait.offsets) for wait in delivery.waits]) == ([(2, [1])], [[0]])
    assert delivery.deliveries_of(1) == 1


def test_the_holds_that_ended_are_told() -> None:
    delivery = Delivery(0)
    lease(delivery, 0, 1)
    (first,) = delivery.leases[1]
    delivery.settle(some(0))
    assert delivery.ended == []
    wait = delivery.defer(some(1), UNTIL, SPAN)
    assert delivery.ended == [first]
    delivery.settle(some(1))
    assert delivery.ended == [first, wait]


def test_an_extended_part_has_a_lease_of_its_own() -> None:
    delivery = Delivery(0)
    lease(delivery, 0, 1, 2)
    extended = delivery.extend(1, some(1, 2, 9), UNTIL + 5, SPAN)
    assert (extended.poll, extended.holder, list(extended.offsets)) == (1, "a", [1, 2])
    assert held(delivery) == [(1, [0]), (1, [1, 2])]
    assert (delivery.in_flight, delivery.held_by("a"), list(delivery.of_poll(1, some(0, 1, 2)))) == (3, 3, [0, 1, 2])
    delivery.extend(1, some(0), UNTIL + 5, SPAN)
    assert [(lease.until, list(lease.offsets)) for lease in delivery.leases[1]] == [
        (UNTIL + 5, [1, 2]),
        (UNTIL + 5, [0]),
    ]


# --- the dead


def test_a_delivery_that_kills_counts_and_the_dead_are_taken() -> None:
    delivery = Delivery(0)
    lease(delivery, 0, 1)
    delivery.doom(some(0))
    assert (list(delivery.dead), list(delivery.taken), held(delivery)) == ([0], [0, 1], [(1, [1])])
    assert (delivery.deliveries_of(0), delivery.of_poll(1, some(0))) == (1, some())
    delivery.settle(some(0))
    assert (list(delivery.dead), delivery.low, delivery.tries) == ([], 1, {})


def test_what_dies_without_being_delivered_again_counts_no_delivery() -> None:
    delivery = Delivery(0)
    lease(delivery, 0, 1)
    delivery.fail(some(0), 1)
    wait = delivery.defer(some(1), UNTIL, SPAN)
    delivery.wait_over(wait)
    delivery.doom(some(0, 1, 2))
    assert [delivery.deliveries_of(offset) for offset in (0, 1, 2)] == [1, 1, 0]


def test_it_counts_the_same_where_nobody_knows_that_a_wait_was_over() -> None:
    """After a restart the wait is there again, and the record is the same."""
    delivery = Delivery(0)
    lease(delivery, 0)
    delivery.defer(some(0), UNTIL, SPAN)
    delivery.doom(some(0))
    assert (delivery.deliveries_of(0), delivery.waits, list(delivery.dead)) == (1, [], [0])


# --- another owner


def test_a_new_owner_finds_everything_free_that_the_old_one_had() -> None:
    delivery = Delivery(0)
    lease(delivery, *range(5))
    lease(delivery, *range(5, 10), poll=2)
    delivery.settle(some(0, 1))
    assert [delivery.has_stale_leases(epoch) for epoch in (0, 1, 2)] == [False, False, True]
    assert list(delivery.open(2)) == list(range(2, 10))
    assert (held(delivery), delivery.assignment_epoch, list(delivery.taken)) == ([], 2, [])
    assert {delivery.deliveries_of(offset) for offset in range(2, 10)} == {1}
    assert not delivery.has_stale_leases(2)


def test_no_handle_is_good_with_a_new_owner() -> None:
    delivery = Delivery(0)
    lease(delivery, 0, 1)
    delivery.fail(some(0), 1)
    assert delivery.has_stale_leases(2)
    delivery.open(2)
    assert not delivery.of_poll(1, some(0, 1))
    assert delivery.tries == {0: Try(1, 0), 1: Try(1, 0)}


def test_what_waits_goes_on_waiting_with_a_new_owner() -> None:
    delivery = Delivery(0)
    lease(delivery, 0, 1)
    delivery.defer(some(0), UNTIL, SPAN)
    delivery.open(2)
    assert (list(delivery.taken), delivery.deliveries_of(0)) == ([0], 1)


# --- replies that did not arrive


def test_what_is_given_back_was_not_delivered() -> None:
    delivery = Delivery(0)
    lease(delivery, 0, 1, poll=1)
    lease(delivery, 2, 3, poll=2)
    lease(delivery, 4, poll=3)
    assert [len(delivery.leases_of(after, 9, "")) for after in (0, 1, 2, 3)] == [3, 2, 1, 0]
    delivery.give_back(some(2, 3, 4))
    assert (held(delivery), delivery.tries, list(delivery.taken)) == ([(1, [0, 1])], {}, [0, 1])


def test_some_of_a_poll_is_given_back_and_it_holds_the_rest() -> None:
    delivery = Delivery(0)
    lease(delivery, 0, 1, 2, poll=1)
    delivery.extend(1, some(1), UNTIL + 5, SPAN)
    delivery.give_back(some(0, 1))
    assert (held(delivery), list(delivery.taken), delivery.tries) == ([(1, [2])], [2], {})
    assert [list(hold.offsets) for hold in delivery.ended] == [[]], "nobody waits for the extended one to lapse"


def test_only_those_of_one_holder_are_given_back() -> None:
    delivery = Delivery(0)
    lease(delivery, 0, poll=1, holder="a")
    lease(delivery, 1, poll=2, holder="b")
    assert [lease.poll for lease in delivery.leases_of(0, 9, "b")] == [2]


def test_when_nothing_is_left_under_way_it_rests_where_it_was() -> None:
    delivery = Delivery(4)
    lease(delivery, 4, 5)
    delivery.give_back(some(4, 5))
    assert (delivery.is_resting, delivery.low) == (True, 4)


def test_what_was_delivered_before_keeps_its_count_when_it_is_given_back() -> None:
    delivery = Delivery(0)
    lease(delivery, 0, 1, poll=1)
    delivery.open(2)
    lease(delivery, 0, 2, poll=2, epoch=2)
    delivery.give_back(some(0, 2))
    assert [delivery.deliveries_of(offset) for offset in (0, 1, 2)] == [1, 1, 0]


def test_what_lapsed_and_was_never_seen_is_forgiven() -> None:
    delivery = Delivery(0)
    lease(delivery, 0, 1, poll=1)
    delivery.fail(some(0, 1), 1)
    lease(delivery, 1, poll=2)
    delivery.fail(some(1), 2)
    assert (delivery.lapsed_of(0, 1), delivery.lapsed_of(1, 2)) == ([0], [1])
    delivery.forgive([0, 1])
    assert delivery.tries == {1: Try(1, 0)}
    assert not delivery.of_poll(2, some(1)), "nor may a commit settle them"


# --- offsets that went


def test_what_went_before_it_was_delivered_counts_as_settled() -> None:
    delivery = Delivery(5)
    assert (delivery.overtaken(20, some()), delivery.overtaken(20, some(7, 8, 30)), delivery.overtaken(3, some())) == (
        15,
        13,
        0,
    )
    assert list(delivery.raise_to(20)) == []
    assert (delivery.low, delivery.overtaken(20, some()), delivery.is_resting) == (20, 0, True)


def test_what_is_leased_or_dead_may_still_be_settled_when_it_is_gone() -> None:
    delivery = Delivery(0)
    lease(delivery, 2, 3, 4)
    delivery.doom(some(4))
    delivery.raise_to(10)
    assert (delivery.low, settled(delivery), list(delivery.taken)) == (2, list(range(5, 10)), [2, 3, 4])
    delivery.settle(some(2, 3, 4))
    assert (delivery.low, delivery.is_resting) == (10, True)


def test_what_failed_or_waits_and_went_is_over_and_said() -> None:
    delivery = Delivery(0)
    lease(delivery, 0, 1, 2, 3, key=9)
    delivery.fail(some(0, 3), 1)
    delivery.defer(some(1), UNTIL, SPAN)
    assert delivery.overtaken(3, some()) == 1, "what waits, or is leased, is not given up yet"
    assert list(delivery.raise_to(3)) == [0, 1]
    assert (delivery.low, delivery.waits, delivery.tries, delivery.keys) == (2, [], {3: Try(1, 1)}, {2: 9, 3: 9})


# --- a fence


def test_a_fence_voids_everything_from_its_end_on() -> None:
    delivery = Delivery(0)
    lease(delivery, *range(20), key=9)
    delivery.settle(some(3, 12))
    delivery.fail(some(4, 13), 1)
    delivery.defer(some(5, 14), UNTIL, SPAN)
    delivery.doom(some(6, 15))
    delivery.clip(10)
    assert (delivery.low, settled(delivery), held(delivery)) == (0, [3], [])
    assert ([list(wait.offsets) for wait in delivery.waits], list(delivery.dead), list(delivery.taken)) == (
        [[5]],
        [6],
        [5, 6],
    )
    assert {offset: each.deliveries for offset, each in delivery.tries.items()} == dict.fromkeys(
        (0, 1, 2, 4, 5, 6, 7, 8, 9), 1
    )
    assert set(delivery.keys) == set(range(10)) - {3}
    assert delivery.is_free(ranged(10, 30))


def test_whoever_comes_late_finds_nothing_to_settle_behind_a_fence() -> None:
    delivery = Delivery(0)
    lease(delivery, *range(5), poll=1)
    lease(delivery, *range(5, 10), poll=2)
    delivery.clip(5)
    assert (held(delivery), list(delivery.below(10, EVER, "")), list(delivery.of_poll(1, ranged(0, 10)))) == (
        [],
        [],
        [],
    )
    lease(delivery, *range(10), poll=3)
    assert list(delivery.below(10, 2, "")) == [], "what it was delivered before the fence was something else"


def test_a_fence_below_the_low_mark_leaves_it_resting_there() -> None:
    delivery = Delivery(0)
    lease(delivery, *range(10))
    delivery.settle(ranged(0, 6))
    delivery.clip(4)
    assert (delivery.low, delivery.end, delivery.is_resting) == (4, 4, True)


def test_a_fence_above_everything_changes_nothing() -> None:
    delivery = Delivery(0)
    lease(delivery, *range(10))
    delivery.fail(some(9), 1)
    before = state(delivery)
    delivery.clip(10)
    assert state(delivery) == before


# --- keys


def test_keys_are_kept_until_their_messages_are_settled() -> None:
    delivery = Delivery(0)
    delivery.lease(Leased(GROUP, 0, 1, "a", 0, UNTIL, SPAN, pack(some(1, 4, 7)), pack_keys([5, 0, 2**32 - 1])))
    assert delivery.keys == {1: 5, 7: 2**32 - 1}
    delivery.fail(some(1), 1)
    delivery.settle(some(7))
    assert delivery.keys == {1: 5}


def test_the_key_of_what_was_not_delivered_after_all_is_forgotten() -> None:
    delivery = Delivery(0)
    lease(delivery, 0, poll=1, key=5)
    delivery.fail(some(0), 1)
    lease(delivery, 0, poll=2, key=5)
    lease(delivery, 1, poll=2, key=6)
    delivery.give_back(some(0, 1))
    assert delivery.keys == {0: 5}


def test_keys_are_packed_in_four_bytes_each() -> None:
    assert pack_keys([1, 0, 0xDEADBEEF]).hex() == "0000000100000000deadbeef"
    assert list(unpack_keys(pack_keys([1, 0, 0xDEADBEEF]))) == [1, 0, 0xDEADBEEF]


# --- numbers of polls


def test_the_last_poll_is_the_highest_that_holds_something_or_may_settle_something() -> None:
    delivery = Delivery(0)
    assert delivery.last_poll == 0
    lease(delivery, 0, poll=5)
    lease(delivery, 1, poll=9)
    delivery.fail(some(1), 9)
    assert delivery.last_poll == again(delivery).last_poll == 9
    delivery.settle(some(1))
    assert delivery.last_poll == 5


# --- snapshots


def test_its_record_makes_it_again() -> None:
    delivery = Delivery(0)
    lease(delivery, *range(12), key=7)
    lease(delivery, 20, 21, poll=2, holder="b", epoch=3)
    delivery.settle(some(1, 2, 30))
    delivery.fail(some(3, 4), 1)
    delivery.defer(some(5), UNTIL + 1, 99)
    delivery.defer(some(6), UNTIL + 2, 98)
    delivery.extend(1, some(7, 8), UNTIL + 3, 97)
    delivery.doom(some(9))
    other = again(delivery)
    assert state(other) == state(delivery)
    before = state(delivery)
    other.settle(ranged(0, 99))
    assert state(delivery) == before, "it is another one"
