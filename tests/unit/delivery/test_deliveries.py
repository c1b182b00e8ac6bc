"""The machine over a sidecar log: what becomes of groups and messages, and that only `apply` changes it."""

from typing import Any

import msgspec
import pytest
from pyroaring import BitMap64

from goqueue.base.offset_sets import pack, ranged, unpack
from goqueue.delivery import records
from goqueue.delivery.commands import (
    Abandon,
    Ack,
    Bury,
    Cancel,
    Expire,
    Extend,
    Fence,
    Finish,
    Forget,
    GiveBack,
    GiveUp,
    Hide,
    Lapse,
    Move,
    Nack,
    Open,
    Pledge,
    PledgeBelow,
    Redeem,
    Reject,
    Release,
    ResetTo,
    Settle,
    Skip,
    Start,
)
from goqueue.delivery.dead import Death
from goqueue.delivery.deliveries import Deliveries
from goqueue.delivery.records import Delivered, Mourned, Numbered, Postponed, Reason, Resting
from goqueue.delivery.running_holds import Due
from goqueue.machine.host import Host
from goqueue.machine.shape import Machine
from goqueue.model import limits
from goqueue.model.errors import DamagedData
from goqueue.model.groups import Mode
from goqueue.model.names import GroupNumber
from tests.support.memory_disk import MemoryDisk
from tests.unit.delivery.machines import CLOCK, NOW, UNTIL, do, events, lapse, lease, leasing, live, ready
from tests.unit.delivery.partitions import RETRIES, SPAN, STRICTLY, A, B, C, MemoryPartition, message, some
from tests.unit.delivery.test_records import GOLDEN
from tests.unit.machine.adders import open_log
from tests.unit.storage.logs import read_all

EMPTY = Mourned(0, ())


def restored(machine: Deliveries) -> Deliveries:
    """Another one, made from this one's snapshot."""
    other = Deliveries()
    for record in machine.snapshot():
        other.apply(record, 0)
    return other


@pytest.fixture
def machine() -> Deliveries:
    return live()


def test_it_has_the_shape_of_a_machine_and_a_name_that_never_changes(machine: Deliveries) -> None:
    held: Machine = machine
    assert held.name == "delivery", "its records in every sidecar log are found by it"


# --- beginning


def test_a_group_that_was_never_here_begins_where_the_partition_begins(machine: Deliveries) -> None:
    assert (A in machine, machine.low(A), machine.groups) == (False, None, [])
    assert (machine.overtaken(A, 40), machine.unsettled(A, 40, 100)) == (0, 60)
    assert (machine.in_flight(A), machine.has_in_flight(A), machine.needs_open(A, 9)) == (0, False, False)


def test_a_group_begins_where_it_was_told_to_but_only_the_first_time(machine: Deliveries) -> None:
    do(machine, Start(A, 70))
    assert (machine.low(A), machine.groups) == (70, [A])
    assert machine.decide(Start(A, 10), NOW) == ((), None)
    lease(machine, A, 70, 71)
    assert machine.decide(Start(A, 10), NOW) == ((), None)


def test_a_group_may_begin_at_the_very_beginning(machine: Deliveries) -> None:
    do(machine, Start(A, 0))
    assert (A in machine, machine.low(A)) == (True, 0)
    assert machine.overtaken(A, 5) == 5, "unlike one that was never here"


def test_a_group_that_is_told_where_to_begin_is_not_picked_what_lies_before() -> None:
    partition = MemoryPartition(*[message()] * 5)
    partition.staged(A)
    partition.do(Start(A, 3))
    assert partition.poll(A)[1] == [3, 4]


# --- leasing and committing


def test_what_is_leased_is_in_flight_until_it_is_settled(machine: Deliveries) -> None:
    lease(machine, A, *range(10))
    assert (machine.in_flight(A), machine.has_in_flight(A), machine.low(A)) == (10, True, 0)
    assert (machine.held_by(A, "a"), machine.held_by(A, "b"), machine.held_by(B, "a")) == (10, 0, 0)
    do(machine, Settle(A, 10))
    assert (machine.in_flight(A), machine.has_in_flight(A), machine.low(A)) == (0, False, 10)


def test_groups_do_not_touch_each_other(machine: Deliveries) -> None:
    lease(machine, A, *range(10))
    lease(machine, B, 0, 1, 2)
    do(machine, Settle(B, 2))
    assert (machine.low(A), machine.low(B)) == (0, 2)
    assert (machine.in_flight(A), machine.in_flight(B)) == (10, 1)
    do(machine, Forget(B))
    assert (machine.groups, ready(machine, B, 4)) == ([A], [0, 1, 2, 3])


def test_what_is_lost_on_the_way_is_given_back(machine: Deliveries) -> None:
    lease(machine, A, 0, 1, poll=5)
    assert machine.decide(GiveBack(A, 5, 9), NOW) == ((), None)
    assert machine.decide(GiveBack(B, 0, 9), NOW) == ((), None)
    assert machine.decide(GiveBack(A, 4, 5, "b"), NOW) == ((), None)
    do(machine, GiveBack(A, 4, 5))
    assert (machine.in_flight(A), machine.delivery(A).deliveries_of(0)) == (0, 0)


def test_what_lapsed_and_never_arrived_is_not_settled_by_the_next_commit(machine: Deliveries) -> None:
    lease(machine, A, 5, poll=1)
    lapse(machine, A, 1)
    do(machine, GiveBack(A, 0, 1))
    lease(machine, A, 6, poll=2)
    do(machine, Settle(A, 10, 2))
    assert ready(machine, A, 8) == [0, 1, 2, 3, 4, 5, 7], "nobody has seen it"
    assert machine.delivery(A).deliveries_of(5) == 0


def test_the_last_poll_is_the_highest_number_that_was_ever_given_something(machine: Deliveries) -> None:
    assert machine.last_poll == 0
    lease(machine, A, 0, poll=5)
    lease(machine, B, 0, poll=9)
    lease(machine, A, 1, poll=7)
    lapse(machine, B, 9)
    assert machine.last_poll == restored(machine).last_poll == 9, "or a new poll could take its handles over"
    do(machine, Settle(B, 1))
    do(machine, Release(A, {7: some(1)}))
    assert machine.last_poll == restored(machine).last_poll == 9, "a handle of then is somewhere"


def test_only_a_new_owner_opens(machine: Deliveries) -> None:
    assert machine.decide(Open(A, 1), NOW) == ((), None)
    lease(machine, A, *range(4), epoch=3)
    assert [machine.needs_open(A, epoch) for epoch in (2, 3, 4)] == [False, False, True]
    assert machine.decide(Open(A, 3), NOW) == ((), None)
    do(machine, Open(A, 4))
    assert (machine.in_flight(A), ready(machine, A, 4), machine.delivery(A).deliveries_of(0)) == (0, [0, 1, 2, 3], 1)


def test_a_lease_of_a_new_owner_opens_by_itself_and_frees_what_the_old_one_had() -> None:
    partition = MemoryPartition(*[message()] * 6)
    partition.poll(A, 3, mode=Mode.PARTITION, epoch=1)
    assert partition.poll(A, 1, mode=Mode.PARTITION, epoch=2)[1] == [3]
    assert partition.delivery(A).assignment_epoch == 2
    assert partition.poll(A, mode=Mode.PARTITION, epoch=2)[1] == [0, 1, 2, 4, 5]


def test_a_group_rests_as_soon_as_nothing_is_under_way(machine: Deliveries) -> None:
    do(machine, Start(A, 4))
    lease(machine, A, *range(4, 9), poll=5)
    assert isinstance(events(machine)[0], Delivered)
    do(machine, GiveBack(A, 4, 5))
    assert events(machine) == [Resting(((A, 4),)), EMPTY, Numbered(5)]
    lease(machine, A, *range(4, 9), poll=6)
    do(machine, Fence(4, 2))
    assert events(machine) == [Resting(((A, 4),)), EMPTY, Numbered(6)]
    lease(machine, A, *range(4, 9), poll=7)
    do(machine, Settle(A, 9))
    assert events(machine) == [Resting(((A, 9),)), EMPTY, Numbered(7)]
    do(machine, Skip(A, 9, 12))
    assert events(machine) == [Resting(((A, 12),)), EMPTY, Numbered(7)]


# --- what was not tried


def test_what_is_released_is_ready_at_once_and_was_not_delivered(machine: Deliveries) -> None:
    lease(machine, A, 0, 1, 2)
    assert do(machine, Release(A, {1: some(0, 2)})) == {}
    assert (ready(machine, A, 4), machine.in_flight(A), machine.delivery(A).tries) == ([0, 2, 3], 1, {})
    assert machine.lapse_due(CLOCK) == ([], set()), "nothing waits"
    assert do(machine, Ack(A, {1: some(0, 1, 2)})) == {1: some(0, 2)}, "their handles are gone with them"


def test_a_group_rests_when_all_it_had_is_released(machine: Deliveries) -> None:
    do(machine, Start(A, 4))
    lease(machine, A, 4, 5)
    do(machine, Release(A, {1: some(4, 5)}))
    assert (machine.active_groups, machine.low(A), machine.next_deadline()) == ([], 4, None)


def test_a_release_leaves_the_count_of_the_tries_before(machine: Deliveries) -> None:
    lease(machine, A, 0, 1, poll=1)
    do(machine, Nack(A, {1: some(0)}, RETRIES, 0))
    machine.lapse_due(CLOCK)
    lapse(machine, A, 1)
    for poll in range(2, 12):
        lease(machine, A, 0, 1, poll=poll)
        assert do(machine, Release(A, {poll: some(0, 1)})) == {}
        assert [machine.delivery(A).deliveries_of(offset) for offset in (0, 1)] == [1, 1]
    lease(machine, A, 0, poll=12)
    assert do(machine, Nack(A, {12: some(0)}, RETRIES)).until == {0: NOW + 2000}, "the backoff of the second try"
    assert len(machine.outbox) == 0


def test_what_is_released_of_an_extended_lease_is_waited_for_no_longer(machine: Deliveries) -> None:
    lease(machine, A, 0, 1)
    do(machine, Extend(A, {1: some(1)}, SPAN), NOW + 10_000)
    do(machine, Release(A, {1: some(0)}))
    assert machine.next_deadline() == CLOCK + SPAN + 10_000
    do(machine, Release(A, {1: some(1)}))
    assert machine.next_deadline() is None


def test_a_commit_does_not_settle_what_was_released(machine: Deliveries) -> None:
    lease(machine, A, 0, 1, 2)
    do(machine, Release(A, {1: some(1)}))
    do(machine, Settle(A, 3))
    assert (machine.low(A), ready(machine, A, 4)) == (1, [1, 3])


def test_what_is_released_goes_back_to_its_lane() -> None:
    partition = MemoryPartition(message(lane=2), message(lane=0), message(lane=2), message(lane=4))
    poll, offsets = partition.poll(A, policy=STRICTLY)
    assert offsets == [0, 1, 2, 3]
    partition.do(Release(A, {poll: some(1, 2, 3)}))
    picks = partition.staged(A).pick(9, STRICTLY, partition.now)
    assert [(pick.lane, list(pick.offsets)) for pick in picks] == [(0, [1]), (2, [2]), (4, [3])]


def test_the_order_of_a_key_holds_when_its_head_is_released() -> None:
    partition = MemoryPartition(message("k"), message("k"), message("j"), message("k"))
    poll, offsets = partition.poll(A, mode=Mode.KEY)
    assert offsets == [0, 2]
    partition.do(Release(A, {poll: some(0)}))
    assert partition.poll(A, mode=Mode.KEY, holder="b") == (2, [0]), "not the one behind it"
    assert partition.poll(A, mode=Mode.KEY, holder="c") == (3, []), "and it is out alone"
    partition.do(Release(A, {2: some(0)}))
    partition.restart()
    assert partition.poll(A, mode=Mode.KEY) == (4, [0])
    partition.do(Ack(A, {4: some(0)}))
    assert partition.poll(A, mode=Mode.KEY) == (5, [1])


def test_a_head_that_failed_before_is_still_its_keys_head_when_it_is_released() -> None:
    partition = MemoryPartition(message("k"), message("k"))
    poll, _ = partition.poll(A, mode=Mode.KEY)
    partition.do(Nack(A, {poll: some(0)}, RETRIES, 0))
    partition.lapse()
    poll, offsets = partition.poll(A, mode=Mode.KEY)
    assert offsets == [0]
    partition.do(Release(A, {poll: some(0)}))
    assert list(partition.delivery(A).keys) == [0], "it was delivered before, and holds up its key"
    partition.restart()
    assert partition.poll(A, mode=Mode.KEY)[1] == [0]
    assert partition.delivery(A).deliveries_of(0) == 1


def test_what_is_released_after_a_restart_counts_as_before() -> None:
    partition = MemoryPartition(message(), message())
    poll, _ = partition.poll(A)
    partition.do(Nack(A, {poll: some(0)}, RETRIES, 0))
    partition.lapse()
    poll, _ = partition.poll(A)
    partition.restart()
    assert partition.do(Release(A, {poll: some(0)})) == {}
    for _ in range(2):
        assert [partition.delivery(A).deliveries_of(offset) for offset in (0, 1)] == [1, 0]
        partition.restart()
    assert partition.poll(A)[1] == [0], "and it is ready; the other one is still held"


# --- time


def test_a_lapsed_lease_makes_its_messages_ready_at_once(machine: Deliveries) -> None:
    lease(machine, A, 0, 1)
    assert machine.lapse_due(CLOCK + SPAN - 1) == ([], set())
    assert machine.lapse_due(CLOCK + SPAN) == ([Due(A, 1, UNTIL)], set())
    assert machine.lapse_due(CLOCK + SPAN) == ([], set()), "said once"
    assert lapse(machine, A, 1) == some()
    assert (ready(machine, A, 3), machine.delivery(A).deliveries_of(0), machine.next_deadline()) == ([0, 1, 2], 1, None)


def test_an_extended_message_lapses_later_than_the_others(machine: Deliveries) -> None:
    lease(machine, A, 0, 1, 2)
    assert do(machine, Extend(A, {1: some(1)}, SPAN), NOW + 10_000) == {}
    assert machine.next_deadline() == CLOCK + SPAN
    assert machine.lapse_due(CLOCK + SPAN) == ([Due(A, 1, UNTIL)], set())
    lapse(machine, A, 1)
    assert (ready(machine, A, 3), machine.in_flight(A)) == ([0, 2], 1)
    assert machine.lapse_due(CLOCK + SPAN + 10_000) == ([Due(A, 1, UNTIL + 10_000)], set())


def test_a_lapse_that_could_not_be_written_is_tried_again(machine: Deliveries) -> None:
    lease(machine, A, 0)
    lapsed, _ = machine.lapse_due(CLOCK + SPAN)
    machine.rearm(lapsed, CLOCK + SPAN, 1000)
    assert machine.lapse_due(CLOCK + SPAN + 999) == ([], set())
    assert machine.lapse_due(CLOCK + SPAN + 1000) == (lapsed, set())


def test_what_is_over_is_waited_for_no_longer(machine: Deliveries) -> None:
    lease(machine, A, 0, 1)
    lease(machine, B, 0, holder="b")
    lease(machine, C, 0)
    do(machine, Ack(A, {1: some(0)}))
    do(machine, Nack(A, {1: some(1)}, RETRIES))
    assert machine.next_deadline() == CLOCK + 1000
    do(machine, ResetTo(A, 0))
    do(machine, Abandon(B, "b"))
    do(machine, Forget(C))
    assert machine.next_deadline() is None


def test_in_another_life_holds_last_as_long_as_they_have_left_and_no_longer(machine: Deliveries) -> None:
    lease(machine, A, 0, 1)
    do(machine, Nack(A, {1: some(1)}, RETRIES))
    for wall, lease_ms, wait_ms in ((NOW + 400, SPAN - 400, 600), (NOW + 9**9, 0, 0), (NOW - 9**9, SPAN, 1000)):
        other = restored(machine)
        assert other.next_deadline() is None
        other.begin_life(wall=wall, now=77)
        assert other.next_deadline() == 77 + wait_ms
        assert other.lapse_due(77 + wait_ms)[1] == {A}
        if lease_ms:
            assert other.lapse_due(77 + lease_ms - 1) == ([], set())
            assert other.lapse_due(77 + lease_ms) == ([Due(A, 1, UNTIL)], set())


def test_an_abandoned_members_messages_are_ready_and_the_others_stay(machine: Deliveries) -> None:
    lease(machine, A, 0, 1, poll=1, holder="a", epoch=0)
    lease(machine, A, 2, poll=2, holder="b", epoch=0)
    assert machine.decide(Abandon(A, "c"), NOW) == machine.decide(Abandon(B, "a"), NOW) == ((), None)
    do(machine, Abandon(A, "a"))
    assert (ready(machine, A, 4), machine.held_by(A, "b")) == ([0, 1, 3], 1)
    assert do(machine, Ack(A, {1: some(0)})) == {1: some(0)}, "its handles are gone with it"
    assert machine.delivery(A).deliveries_of(0) == 1


# --- dead letters


def test_the_dead_are_settled_when_their_letters_are_written(machine: Deliveries) -> None:
    lease(machine, A, 0, 1)
    lease(machine, B, 0)
    do(machine, Reject(A, {1: some(0)}, True))
    do(machine, Reject(B, {1: some(0)}, True))
    do(machine, Reject(A, {1: some(1)}, True))
    assert [(death.group, death.offset) for death in machine.outbox] == [(A, 0), (B, 0), (A, 1)]
    do(machine, Bury(2))
    assert (machine.low(A), machine.low(B), machine.outbox.first) == (1, 1, 2)
    assert machine.decide(Bury(2), NOW) == ((), None)
    do(machine, Bury(3))
    expected = [Resting(((A, 2), (B, 1))), Mourned(3, ()), Numbered(1)]
    assert events(machine) == expected, "the next one has another number"


def test_letters_of_one_record_are_numbered_in_the_order_of_their_offsets(machine: Deliveries) -> None:
    lease(machine, A, 5, 3, 9)
    do(machine, Reject(A, {1: some(9, 5, 3)}, True))
    assert [death.offset for death in machine.outbox] == [3, 5, 9]


def test_a_message_in_the_place_of_a_lost_one_is_not_settled_by_the_others_letter(machine: Deliveries) -> None:
    lease(machine, A, 0, 5)
    do(machine, Reject(A, {1: some(5)}, True))
    do(machine, Fence(5, 2))
    assert [death.void for death in machine.outbox] == [True]
    lease(machine, A, 5, poll=2, epoch=2)
    do(machine, Reject(A, {2: some(5)}, True))
    do(machine, Bury(1))
    assert (machine.outbox.first, list(machine.delivery(A).dead)) == (1, [5]), "its own letter is not written"
    do(machine, Bury(2))
    assert not machine.delivery(A).dead


def test_what_a_group_was_reset_over_is_not_settled_by_its_letter(machine: Deliveries) -> None:
    lease(machine, A, 0)
    do(machine, Reject(A, {1: some(0)}, True))
    do(machine, ResetTo(A, 0))
    do(machine, Bury(1))
    assert (machine.low(A), ready(machine, A, 1)) == (0, [0])


# --- moving and forgetting groups


def test_a_reset_goes_anywhere_and_ends_what_was_under_way(machine: Deliveries) -> None:
    lease(machine, A, *range(10))
    do(machine, Settle(A, 5))
    do(machine, Nack(A, {1: some(6)}, RETRIES))
    for low in (0, 500, 3):
        do(machine, ResetTo(A, low))
        assert (machine.low(A), machine.in_flight(A), machine.delivery(A).is_resting) == (low, 0, True)
    assert machine.decide(Settle(A, 10), NOW) == ((), None), "it was delivered before the reset"
    assert do(machine, Ack(A, {1: some(7)})) == {1: some(7)}
    do(machine, ResetTo(B, 7))
    assert machine.low(B) == 7


def test_a_forgotten_group_was_never_here(machine: Deliveries) -> None:
    assert machine.decide(Forget(A), NOW) == ((), None)
    do(machine, Start(A, 70))
    lease(machine, B, 0, 1)
    for group in (A, B):
        do(machine, Forget(group))
        assert (group in machine, machine.low(group), machine.in_flight(group)) == (False, None, 0)
    assert events(machine) == [EMPTY, Numbered(1)]


# --- retention


def test_offsets_that_went_before_they_were_delivered_are_counted_until_the_next_lease(machine: Deliveries) -> None:
    do(machine, Start(A, 10))
    lease(machine, B, *range(10))
    do(machine, Open(B, 2))
    assert (machine.overtaken(A, 30), machine.overtaken(B, 30)) == (20, 30)
    assert (machine.unsettled(A, 30, 40), machine.unsettled(B, 30, 40)) == (10, 10)
    for group in (A, B):
        do(machine, leasing(group, [30], poll=2, epoch=2, start=30))
        assert (machine.overtaken(group, 30), machine.low(group)) == (0, 30)


def test_a_wait_that_retention_overtook_is_over(machine: Deliveries) -> None:
    lease(machine, A, 0, 1)
    do(machine, Nack(A, {1: some(0)}, RETRIES))
    do(machine, Ack(A, {1: some(1)}))
    do(machine, leasing(A, [30], poll=2, start=30))
    assert (machine.low(A), machine.next_deadline()) == (30, CLOCK + SPAN)
    assert machine.lapse_due(CLOCK + 1000) == ([], set())


# --- delayed messages


def delayed(machine: Deliveries, *offsets: int) -> None:
    machine.delays.add(offsets, [NOW + 1000] * len(offsets), wall=NOW, now=CLOCK)


def test_what_is_cancelled_counts_as_settled_for_every_group(machine: Deliveries) -> None:
    do(machine, Start(A, 3))
    lease(machine, B, 0, 1, 2)
    delayed(machine, 3, 4, 6)
    assert do(machine, Cancel(some(3, 4, 5, 6))) == some(5), "that one is not pending"
    assert (list(machine.cancelled), list(machine.pending)) == ([3, 4, 6], [])
    assert (machine.low(A), machine.unsettled(A, 0, 10)) == (5, 4)
    do(machine, Ack(B, {1: some(0, 1, 2)}))
    assert (machine.low(B), machine.delivery(B).is_resting) == (5, True)
    do(machine, Start(C, 4))
    assert machine.low(C) == 5
    do(machine, ResetTo(A, 3))
    assert machine.low(A) == 5, "also after a reset"
    assert not machine.decide(Cancel(some(3)), NOW).records


def test_what_is_cancelled_and_settled_is_counted_once(machine: Deliveries) -> None:
    delayed(machine, 2, 4, 12)
    lease(machine, A, 1)
    do(machine, Cancel(some(2, 4, 12)))
    do(machine, Skip(A, 3, 6))
    assert [machine.unsettled(A, start, 14) for start in (0, 3, 5, 6, 12)] == [9, 7, 7, 7, 1]


def test_what_is_moved_is_remembered_until_it_is_cancelled_or_goes(machine: Deliveries) -> None:
    delayed(machine, 3, 4, 6)
    assert do(machine, Move(some(3, 4, 5), NOW + 7)) == some(5)
    assert machine.moved == {3: NOW + 7, 4: NOW + 7}
    do(machine, Cancel(some(4)))
    assert machine.moved == {3: NOW + 7}
    assert events(machine)[-1] == Postponed(pack(some(4)), ((3, NOW + 7),))
    machine.forget_below(4)
    assert (machine.moved, list(machine.cancelled)) == ({}, [4])
    machine.forget_below(5)
    assert events(machine) == [EMPTY]


def test_a_delay_that_is_over_is_delivered_to_groups_that_have_passed_it() -> None:
    partition = MemoryPartition(message(), message(deliver_at=NOW + 1000), message())
    for group, mode in ((A, Mode.SHARED), (B, Mode.KEY)):
        assert partition.poll(group, mode=mode)[1] == [0, 2]
    partition.pass_time(1020)
    assert partition.fire() == [1]
    for group, mode in ((A, Mode.SHARED), (B, Mode.KEY), (C, Mode.SHARED)):
        assert 1 in partition.poll(group, mode=mode)[1]


def test_a_clock_that_went_back_across_a_restart_delivers_nothing_twice() -> None:
    """The message is delayed again; when it is due, the group has it already."""
    partition = MemoryPartition(message(deliver_at=NOW + 1000), message())
    partition.pass_time(1020)
    partition.fire()
    assert partition.poll(A, span_ms=9**9)[1] == [0, 1]
    partition.restart(wall_ms=-500)
    assert list(partition.deliveries.pending) == [0]
    partition.staged(A)
    partition.pass_time(1000)
    assert (partition.fire(), partition.poll(A)[1], partition.poll(B)[1]) == ([0], [], [0, 1])


# --- fences


def test_after_a_fence_nothing_is_known_of_the_offsets_behind_it(machine: Deliveries) -> None:
    delayed(machine, 40, 60)
    do(machine, Move(some(60), NOW + 5))
    do(machine, Cancel(some(40)))
    do(machine, Start(A, 70))
    lease(machine, B, *range(100))
    do(machine, Settle(B, 60))
    lease(machine, C, *range(20))
    do(machine, Settle(C, 10))
    assert sorted(machine.beyond(50)) == [A, B]
    do(machine, Fence(50, 2))
    assert [machine.low(group) for group in (A, B, C)] == [50, 50, 10]
    assert [machine.unsettled(group, 0, 80) for group in (A, B, C)] == [30, 30, 69]
    assert [machine.in_flight(group) for group in (A, B, C)] == [0, 0, 10]
    assert (machine.groups, list(machine.cancelled), machine.moved) == ([A, B, C], [40], {})


def test_a_message_that_takes_the_place_of_a_lost_one_is_not_born_settled(machine: Deliveries) -> None:
    lease(machine, A, *range(100))
    do(machine, Settle(A, 100))
    do(machine, Fence(99, 2))
    lease(machine, A, 99, poll=2)
    assert machine.in_flight(A) == 1


# --- records of other versions


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"\x93\x01",
        b"{}",
        msgspec.msgpack.encode([99, 1]),
        msgspec.msgpack.encode([1, 5]),
        msgspec.msgpack.encode([14, 3, b"no bitmap", 0]),
        msgspec.msgpack.encode([14, 3, b"", 0]),
        msgspec.msgpack.encode([22, 3, 0, 1, b"no bitmap", [], [], [], pack(some()), []]),
        msgspec.msgpack.encode([13, 3, 0, 1, "a", 0, 9, 9, pack(some(1, 2)), b"\0\0\0\1"]),
    ],
)
def test_a_record_it_does_not_understand_is_refused_with_its_offset(machine: Deliveries, record: bytes) -> None:
    with pytest.raises(DamagedData, match=r"offset 77 of a sidecar log is not understood .*start the version that"):
        machine.apply(record, 77)


# --- snapshots


def test_a_snapshot_of_nothing_has_no_groups_and_the_number_of_the_next_letter(machine: Deliveries) -> None:
    assert events(machine) == [EMPTY]


def test_groups_that_rest_share_a_record_and_the_others_have_one_each(machine: Deliveries) -> None:
    do(machine, Start(B, 70))
    lease(machine, C, *range(10))
    lease(machine, A, *range(10))
    do(machine, Settle(A, 10))
    resting, delivered, _, _ = events(machine)
    assert resting == Resting(((A, 10), (B, 70)))
    assert isinstance(delivered, Delivered)
    assert (delivered.group, delivered.low, unpack(delivered.leases[0].offsets)) == (C, 0, ranged(0, 10))


def test_a_reset_of_the_machine_forgets_everything(machine: Deliveries) -> None:
    do(machine, Start(B, 70))
    lease(machine, A, *range(10))
    do(machine, Reject(A, {1: some(0)}, True))
    machine.reset()
    assert (machine.groups, events(machine), machine.next_deadline()) == ([], [EMPTY], None)


def test_the_largest_snapshot_of_groups_that_rest_fits_into_a_block() -> None:
    """It is appended as one."""
    lows = tuple((GroupNumber(2**31 + number), limits.MAX_OFFSET - 1) for number in range(limits.MAX_GROUPS))
    assert len(records.encode(Resting(lows))) < limits.MAX_RECORD_BYTES / 50


def test_the_largest_snapshot_of_one_group_fits_into_a_block(machine: Deliveries) -> None:
    far = limits.MAX_OFFSET - 4 * limits.MAX_UNSETTLED
    lease(machine, A, *range(far, far + 2 * limits.MAX_UNSETTLED, 2))
    do(machine, Lapse(A, ((1, UNTIL),), RETRIES))
    assert len(max(machine.snapshot(), key=len)) < limits.MAX_RECORD_BYTES / 2


def test_a_snapshot_of_very_many_letters_and_delays_has_no_large_record_and_gives_the_same_machine() -> None:
    disk = MemoryDisk()
    machine = Deliveries()
    host = Host(open_log(disk), [machine])
    reason = "x" * limits.MAX_REJECT_CHARS
    machine.outbox.add(Death(A, offset, Reason.REJECTED, 1, NOW, reason) for offset in range(17_000))
    machine.outbox.done(3)
    far = limits.MAX_OFFSET // 2
    machine.moved = {far + offset: NOW + offset for offset in range(900_000)}
    machine.cancelled = BitMap64(range(0, 40_000_000, 2)) | some(far - 1)
    assert max(map(len, machine.snapshot())) < 2 * records.MOST_BYTES + 100
    host.snapshot(NOW)
    other = Deliveries()
    Host(open_log(disk), [other])
    assert (other.outbox.first, list(other.outbox)) == (3, list(machine.outbox))
    assert (other.moved, other.cancelled) == (machine.moved, machine.cancelled)
    assert list(other.snapshot()) == list(machine.snapshot())


def test_of_two_snapshots_only_the_last_one_counts() -> None:
    """What the records of one say is added up; a start begins anew with each."""
    disk = MemoryDisk()
    machine = Deliveries()
    host = Host(open_log(disk), [machine])
    delayed(machine, 3, 4, 5)
    for command in (Cancel(some(3)), Move(some(4, 5), NOW + 7), leasing(A, [0, 1]), Reject(A, {1: some(0, 1)}, True)):
        host.submit(machine, command, NOW)
    host.snapshot(NOW)
    host.submit(machine, Bury(1), NOW)
    machine.forget_below(5)
    host.snapshot(NOW)
    other = Deliveries()
    Host(open_log(disk), [other])
    assert (list(other.cancelled), other.moved, other.outbox.first, len(other.outbox)) == ([], {5: NOW + 7}, 1, 1)


SCRIPT: list[Any] = [
    Start(B, 7),
    leasing(A, range(20)),
    Settle(A, 4),
    Ack(A, {1: some(6)}),
    Nack(A, {1: some(7, 8)}, RETRIES),
    Extend(A, {1: some(9)}, 99),
    Reject(A, {1: some(10)}, True, "bad"),
    Lapse(A, ((1, UNTIL),), RETRIES),
    Reject(A, {1: some(11)}, False),
    Pledge(A, {1: some(18)}, 7),
    Pledge(A, {1: some(17, 19)}, 8),
    Redeem(7, True),
    leasing(A, [12, 13], poll=2),
    GiveBack(A, 1, 2),
    leasing(A, [12, 13], poll=2),
    Release(A, {2: some(12)}),
    Release(A, {2: some(13)}),
    leasing(A, [12, 13], poll=3, holder="b"),
    Abandon(A, "b"),
    leasing(A, [12], poll=4),
    Open(A, 2),
    Expire(A, some(20), True),
    GiveUp(A, some(12), True),
    Skip(A, 21, 23),
    Bury(1),
    Cancel(some(30)),
    Move(some(31), NOW + 5),
    Hide(some(24)),
    Fence(32, 1),
    leasing(B, [7], poll=5),
    PledgeBelow(B, 8, 9),
    Redeem(9, False),
    leasing(B, [7], poll=6),
    Fence(6, 2),
    ResetTo(B, 3),
    Forget(B),
]
"""Everything that can be decided."""


def test_every_event_gives_the_same_machine_live_replayed_and_out_of_a_snapshot() -> None:
    disk = MemoryDisk()
    machine = Deliveries()
    host = Host(open_log(disk), [machine])
    machine.begin_life(wall=NOW, now=CLOCK)
    delayed(machine, 30, 31)
    for command in SCRIPT:
        before = host.log.end_offset
        assert host.submit(machine, command, NOW).refusal is None
        assert host.log.end_offset > before, f"{command} writes nothing"
        assert events(restored(machine)) == events(machine), command
        again = Deliveries()
        Host(open_log(disk), [again])
        assert events(again) == events(machine), command
        if isinstance(command, Abandon | Move):
            host.snapshot(NOW)
    written = {
        type(records.decode(record.value)) for record in read_all(open_log(disk)) if record.value and not record.control
    }
    assert written == {type(event) for event in GOLDEN.values()}


def test_offsets_are_settled_without_a_delivery(machine: Deliveries) -> None:
    do(machine, Finish(A, some(3, 5)))
    assert (machine.low(A), list(machine.delivery(A).settled.above)) == (0, [3, 5])
    do(machine, Finish(A, some(0, 1, 2, 3)))
    assert (machine.low(A), list(machine.delivery(A).settled.above)) == (4, [5])
    assert machine.decide(Finish(A, some(0, 3, 5)), NOW).records == (), "they were before"
    assert B not in machine
    do(machine, leasing(B, [2, 3]))
    do(machine, Finish(B, some(2)))
    assert list(machine.delivery(B).taken) == [3], "also what somebody has"
    do(machine, Fence(4, 1))
    assert (machine.low(A), machine.delivery(A).settled.is_plain) == (4, True)


def test_that_a_wait_is_over_changes_nothing_that_is_written_down() -> None:
    """Live it is known, replayed it is not."""
    live, replayed = Deliveries(), Deliveries()
    live.begin_life(wall=NOW, now=CLOCK)
    for command in (
        leasing(A, range(6)),
        Nack(A, {1: some(0, 1, 2, 3)}, RETRIES, 0),
        Expire(A, some(0), True),
        Skip(A, 1, 2),
        leasing(A, [2], poll=2),
        leasing(A, [9], poll=3, start=4),
    ):
        for record in live.decide(command, NOW).records:
            live.apply(record, 0)
            replayed.apply(record, 0)
        live.arm(CLOCK)
        live.lapse_due(CLOCK)
    assert events(live) == events(replayed)
