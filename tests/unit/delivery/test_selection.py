"""What is delivered next: lanes in their shares, nothing that is held, nothing twice, nothing forgotten."""

from collections.abc import Callable

import pytest

from goqueue.delivery.commands import Ack, Cancel, Expire, Nack, Open, Reject, Release, ResetTo
from goqueue.delivery.selection import Pick, Policy, Selection, ready_of
from goqueue.model import limits
from goqueue.model.errors import Conflict
from goqueue.model.groups import Mode
from goqueue.storage.lane_index import LaneIndex
from tests.unit.delivery.partitions import (
    ALL,
    EVENLY,
    RETRIES,
    SPAN,
    STRICTLY,
    T0,
    A,
    B,
    MemoryPartition,
    message,
    offsets_of,
    some,
)


def lanes(*numbers: int) -> MemoryPartition:
    return MemoryPartition(*(message(lane=lane) for lane in numbers))


def picked(picks: list[Pick]) -> list[tuple[int, list[int]]]:
    return [(pick.lane, list(pick.offsets)) for pick in picks]


# --- lanes


def test_lower_lanes_come_first_where_they_are_strict() -> None:
    partition = lanes(2, 2, 4, 0, 2, 1, 0)
    selection = partition.staged(A)
    assert picked(selection.pick(4, STRICTLY, partition.now)) == [(0, [3, 6]), (1, [5]), (2, [0])]
    assert picked(selection.pick(4, STRICTLY, partition.now)) == [(2, [1, 4]), (4, [2])]
    assert not selection.has_staged


def test_lanes_share_by_weight_over_polls_of_any_size() -> None:
    weights = (3, 0, 2, 0, 1)
    for size in (1, 2, 5, 60):
        partition = lanes(*[0] * 200, *[2] * 200, *[4] * 200)
        served = [0] * 5
        for _ in range(120 // size):
            selection = partition.staged(A, want=size)
            picks = selection.pick(size, Policy(weights, False), partition.now)
            partition.lease(A, selection, picks, poll=partition.next_poll())
            for pick in picks:
                served[pick.lane] += len(pick.offsets)
        assert served == [60, 0, 40, 0, 20], size


def test_within_a_lane_the_oldest_come_first() -> None:
    partition = lanes(2, 2, 2, 2, 2)
    assert [partition.poll(A, 2)[1] for _ in range(3)] == [[0, 1], [2, 3], [4]]


def test_one_critical_message_behind_many_others_is_next() -> None:
    partition = lanes(*[2] * 500, 0)
    partition.roll()
    partition.publish(*[message()] * 100)
    assert partition.poll(A, 1, policy=STRICTLY)[1] == [500]


def test_a_lane_that_starves_is_served_where_lanes_are_strict() -> None:
    partition = lanes(*[0] * 50, 4)
    assert partition.poll(A, 3, policy=STRICTLY)[1] == [0, 1, 2]
    partition.pass_time(limits.STARVING_MS)
    assert partition.poll(A, 3, policy=STRICTLY)[1] == [3, 4, 50]


def test_no_more_is_found_than_is_wanted() -> None:
    partition = lanes(*[2] * 300)
    selection = partition.staged(A, want=10)
    assert len(offsets_of(selection.pick(ALL, EVENLY, partition.now))) < 20


# --- reserving


def test_what_is_picked_is_not_picked_again_until_it_is_put_back() -> None:
    partition = lanes(2, 0, 2)
    selection = partition.staged(A)
    first = selection.pick(2, STRICTLY, partition.now)
    assert picked(first) == [(0, [1]), (2, [0])]
    assert picked(partition.staged(A).pick(ALL, STRICTLY, partition.now)) == [(2, [2])]
    selection.put_back(first, partition.delivery(A), partition.deliveries)
    assert picked(partition.staged(A).pick(ALL, STRICTLY, partition.now)) == [(0, [1]), (2, [0])]


def test_what_is_put_back_is_picked_again_only_if_it_is_still_ready() -> None:
    partition = lanes(2, 2, 2, 2)
    selection = partition.staged(A)
    picks = selection.pick(ALL, STRICTLY, partition.now)
    partition.do(Expire(A, some(0, 2), False))
    selection.put_back(picks, partition.delivery(A), partition.deliveries)
    assert partition.poll(A)[1] == [1, 3]


def test_a_poll_may_lease_less_than_it_picked() -> None:
    partition = lanes(2, 2, 2, 2)
    selection = partition.staged(A)
    (pick,) = selection.pick(ALL, EVENLY, partition.now)
    partition.lease(A, selection, [Pick(2, some(1, 2))], poll=1)
    selection.put_back([Pick(2, pick.offsets - some(1, 2))], partition.delivery(A), partition.deliveries)
    assert partition.poll(A)[1] == [0, 3]


def test_groups_do_not_take_from_each_other() -> None:
    partition = lanes(2, 2)
    assert (partition.poll(A)[1], partition.poll(B)[1], partition.poll(A)[1]) == ([0, 1], [0, 1], [])


# --- coming again


def test_messages_that_come_later_are_found() -> None:
    partition = lanes(2)
    partition.poll(A)
    assert not partition.staged(A).has_staged
    partition.publish(message(lane=4), message())
    assert partition.poll(A)[1] == [1, 2]


def test_what_lapsed_comes_again_in_its_lane() -> None:
    partition = lanes(2, 0, 2, 2)
    partition.poll(A, 3, policy=STRICTLY)
    partition.pass_time(SPAN)
    partition.lapse()
    assert picked(partition.staged(A).pick(ALL, STRICTLY, partition.now)) == [(0, [1]), (2, [0, 2, 3])]


def test_what_was_given_back_comes_when_its_wait_is_over() -> None:
    partition = lanes(2, 2)
    poll, _ = partition.poll(A)
    partition.do(Nack(A, {poll: some(1)}, RETRIES))
    partition.pass_time(999)
    assert (partition.lapse(), partition.poll(A)[1]) == (set(), [])
    partition.pass_time(1)
    assert (partition.lapse(), partition.poll(A)[1]) == ({A}, [1])


def test_what_a_new_owner_finds_is_what_the_old_one_had() -> None:
    partition = lanes(2, 2, 2)
    partition.poll(A, 2, mode=Mode.PARTITION, epoch=1)
    partition.do(Open(A, 2))
    assert partition.poll(A, mode=Mode.PARTITION, epoch=2)[1] == [0, 1, 2]


@pytest.mark.parametrize("dead_letters", [True, False])
def test_what_a_late_handle_settles_is_not_picked_any_more(dead_letters: bool) -> None:
    """It lapsed, so it is ready; it may even be found already."""
    for found in (True, False):
        partition = lanes(2, 2, 2)
        poll, _ = partition.poll(A)
        partition.pass_time(SPAN)
        partition.lapse()
        if found:
            partition.staged(A)
        partition.do(Ack(A, {poll: some(0)}))
        partition.do(Reject(A, {poll: some(1)}, dead_letters))
        assert partition.poll(A)[1] == [2]


def test_what_lapsed_once_too_often_is_not_picked_any_more() -> None:
    partition = lanes(2, 2)
    for _ in range(RETRIES.most + 1):
        assert partition.poll(A, 1)[1] == [0]
        partition.pass_time(SPAN)
        partition.lapse()
    assert partition.poll(A)[1] == [1]


def test_a_late_handle_is_faster_than_a_poll_that_reads() -> None:
    partition = lanes(2, 2)
    poll, _ = partition.poll(A)
    partition.pass_time(SPAN)
    partition.lapse()
    selection = partition.staged(A)
    picks = selection.pick(ALL, EVENLY, partition.now)
    partition.do(Ack(A, {poll: some(0)}))
    with pytest.raises(Conflict):
        partition.lease(A, selection, picks, poll=9)
    selection.put_back(picks, partition.delivery(A), partition.deliveries)
    assert partition.poll(A)[1] == [1]


# --- held


def test_what_is_delayed_or_cancelled_is_not_picked() -> None:
    partition = MemoryPartition(message(), message(deliver_at=T0 + 1000), message(deliver_at=T0 + 1000))
    assert partition.poll(A)[1] == [0]
    partition.do(Cancel(some(1)))
    partition.pass_time(1020)
    partition.fire()
    assert (partition.poll(A)[1], partition.poll(B)[1]) == ([2], [0, 2])


def test_a_burst_is_sorted_in_slices_and_none_is_lost_or_picked_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SORTED_AT_ONCE", 10)
    partition = MemoryPartition(*(message(lane=number % 5, deliver_at=T0 + 50) for number in range(95)))
    partition.staged(A)
    partition.pass_time(100)
    assert len(partition.fire()) == 95
    found: list[int] = []
    while some_more := offsets_of(partition.staged(A, want=3).pick(7, EVENLY, partition.now)):
        found += some_more
    assert sorted(found) == list(range(95))


def test_what_is_found_on_the_way_is_not_picked_again_when_its_slice_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A burst may lie ahead of where the lanes were looked through."""
    monkeypatch.setattr(limits, "SORTED_AT_ONCE", 10)
    partition = MemoryPartition(*[message()] * 20, *[message(deliver_at=T0 + 50)] * 30)
    partition.staged(A, want=1)
    partition.pass_time(100)
    partition.fire()
    first = offsets_of(partition.staged(A).pick(ALL, EVENLY, partition.now))
    assert len(first) == 50
    assert not partition.staged(A).has_staged


def test_a_slice_of_which_nothing_is_left_does_not_hide_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SORTED_AT_ONCE", 2)
    partition = lanes(*[2] * 6)
    selection = Selection(6)
    selection.free(some(0, 1, 2, 3, 4, 5))
    partition.do(Expire(A, some(0, 1, 2, 3), False))
    delivery = partition.delivery(A)
    selection.stage(partition.sidecar._lanes, delivery, partition.deliveries, start=0, end=6, want=1)
    assert selection.has_staged


def test_only_what_may_be_delivered_is_ready() -> None:
    partition = MemoryPartition(*[message()] * 6, message(deliver_at=T0 + 9), message(deliver_at=T0 + 9))
    poll, _ = partition.poll(A, 4)
    partition.do(Ack(A, {poll: some(0, 2)}))
    partition.do(Cancel(some(7)))
    assert list(ready_of(some(*range(9)), partition.delivery(A), partition.deliveries)) == [4, 5, 8]


# --- retention, restarts, resets


def test_what_retention_took_is_not_picked() -> None:
    partition = lanes(*[2] * 10)
    partition.poll(A, 2)
    partition.staged(A)
    partition.retain(5)
    partition.pass_time(SPAN)
    partition.lapse()
    assert partition.poll(A)[1] == [5, 6, 7, 8, 9]


def test_after_a_restart_everything_that_is_ready_is_found_again() -> None:
    partition = lanes(2, 0, 2, 2, 2)
    poll, _ = partition.poll(A, 3)
    partition.do(Ack(A, {poll: some(1)}))
    partition.pass_time(SPAN)
    partition.lapse()
    partition.restart()
    assert partition.poll(A)[1] == [0, 2, 3, 4]


def test_after_a_reset_it_begins_there() -> None:
    partition = lanes(*[2] * 5)
    partition.poll(A)
    partition.do(ResetTo(A, 3))
    assert partition.poll(A)[1] == [3, 4]


def test_a_selection_goes_when_its_group_rests_and_nothing_is_left_in_it() -> None:
    partition = lanes(2, 2, 2)
    poll, _ = partition.poll(A, 2)
    partition.do(Ack(A, {poll: some(0, 1)}))
    assert A in partition.deliveries.selections, "it has found the third"
    poll, _ = partition.poll(A)
    partition.do(Ack(A, {poll: some(2)}))
    assert A not in partition.deliveries.selections
    partition.publish(message())
    assert partition.poll(A)[1] == [3]


def test_a_group_that_has_too_much_under_way_is_delivered_only_what_it_had_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    partition = lanes(*[2] * 10)
    monkeypatch.setattr(limits, "MAX_UNSETTLED", 4)
    selection = partition.staged(A, want=3)
    picks = selection.pick(4, EVENLY, partition.now)
    partition.lease(A, selection, picks, poll=1)
    assert partition.poll(A)[1] == []
    partition.do(Ack(A, {1: some(0)}))
    assert partition.poll(A, 1)[1] == [4]


# --- going along at the end of a log


def ahead(partition: MemoryPartition) -> tuple[int, int, int] | None:
    found = partition.sidecar.ahead(A, Mode.SHARED)
    return None if found is None else (found.lane, found.first, found.end)


def test_who_has_had_everything_finds_what_came_since_in_a_row() -> None:
    partition = lanes(2, 2, 2)
    assert ahead(partition) == (2, 0, 3)
    poll, _ = partition.poll(A)
    assert ahead(partition) is None, "there is nothing"
    partition.publish(message(lane=4), message(lane=4))
    assert ahead(partition) == (4, 3, 5)
    partition.do(Ack(A, {poll: some(0, 1, 2)}))
    assert ahead(partition) == (4, 3, 5)
    assert partition.poll(A)[1] == [3, 4]


def test_nothing_is_looked_for_while_all_is_settled_or_what_was_delivered_last_is_not_settled_yet() -> None:
    partition = lanes(2, 2)

    def is_drained(epoch: int = 0) -> bool:
        return partition.deliveries.is_drained(A, epoch, partition.data.end_offset)

    assert not is_drained(), "nothing was delivered"
    poll, _ = partition.poll(A)
    assert is_drained()
    assert not is_drained(epoch=1), "who has the partition now is given what an earlier owner holds"
    partition.publish(message())
    assert not is_drained(), "one is new"
    later, _ = partition.poll(A)
    assert is_drained()
    partition.do(Nack(A, {later: some(2)}, RETRIES, 0))
    partition.lapse()
    assert not is_drained(), "one is to be tried again"
    later, _ = partition.poll(A)
    partition.do(Ack(A, {later: some(2)}))
    assert not is_drained(), "who looks may find that there is a hole below what is settled"
    partition.do(Ack(A, {poll: some(0, 1)}))
    assert is_drained(), "all is settled"


def test_what_was_taken_in_a_row_has_not_waited() -> None:
    partition = lanes(4, 4)
    selection = partition.staged(A)
    selection.pick(1, STRICTLY, partition.now)
    assert selection.waiting_since[4] == partition.now
    partition.deliveries.selections.pop(A)
    selection = partition.deliveries.selection(A)
    selection.pick(0, STRICTLY, partition.now)
    row = partition.sidecar.ahead(A, Mode.SHARED)
    assert row is not None
    selection.take(row)
    assert selection.waiting_since == [None] * 5


def _of_two_lanes() -> MemoryPartition:
    return lanes(2, 0, 2)


def _with_some_left() -> MemoryPartition:
    partition = lanes(2, 2, 2)
    partition.poll(A, 1)
    return partition


def _with_some_picked() -> MemoryPartition:
    partition = lanes(2, 2)
    partition.staged(A).pick(ALL, EVENLY, partition.now)
    partition.publish(message())
    return partition


def _with_lanes_looked_at_unequally_far() -> MemoryPartition:
    partition = lanes(2, 0, 2, 2, 2, 2)
    selection = partition.staged(A, want=1)
    partition.lease(A, selection, selection.pick(ALL, EVENLY, partition.now), poll=1)
    partition.publish(message())
    return partition


def _with_one_delayed() -> MemoryPartition:
    partition = lanes(2)
    partition.publish(message(deliver_at=T0 + 1000))
    return partition


def _with_one_cancelled() -> MemoryPartition:
    partition = _with_one_delayed()
    partition.do(Cancel(some(1)))
    return partition


def _with_one_tried_in_an_earlier_life() -> MemoryPartition:
    partition = lanes(2, 2)
    partition.poll(A)
    partition.pass_time(SPAN)
    partition.lapse()
    partition.restart()
    return partition


def _with_one_leased_in_an_earlier_life() -> MemoryPartition:
    partition = lanes(2, 2)
    partition.poll(A, 1)
    partition.restart()
    return partition


def _with_one_settled_out_of_order() -> MemoryPartition:
    partition = lanes(2, 2, 2)
    poll, _ = partition.poll(A)
    partition.do(Ack(A, {poll: some(1)}))
    partition.do(Release(A, {poll: some(0, 2)}))
    partition.restart()
    return partition


def _after_retention() -> MemoryPartition:
    partition = lanes(2, 2, 2)
    partition.roll()
    partition.publish(message(), message())
    selection = partition.deliveries.selection(A)
    assert (
        selection.ahead(LaneIndex(partition.data), partition.delivery(A), partition.deliveries, start=4, end=5) is None
    )
    partition.retain(4)
    return partition


@pytest.mark.parametrize(
    "prepared",
    [
        _of_two_lanes,
        _with_some_left,
        _with_some_picked,
        _with_lanes_looked_at_unequally_far,
        _with_one_delayed,
        _with_one_cancelled,
        _with_one_tried_in_an_earlier_life,
        _with_one_leased_in_an_earlier_life,
        _with_one_settled_out_of_order,
        _after_retention,
    ],
)
def test_nothing_lies_ahead_where_something_has_to_be_chosen(prepared: Callable[[], MemoryPartition]) -> None:
    assert ahead(prepared()) is None


def test_in_key_mode_nothing_lies_ahead() -> None:
    assert lanes(2, 2).sidecar.ahead(A, Mode.KEY) is None
