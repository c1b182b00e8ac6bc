"""Acks inside transactions: held until the transaction ends, then settled or tried again; and what nobody may see."""

from typing import Any

import pytest

from goqueue.base.offset_sets import pack
from goqueue.delivery.commands import (
    Abandon,
    Ack,
    Extend,
    Fence,
    Forget,
    Hide,
    Nack,
    Open,
    Pledge,
    PledgeBelow,
    Redeem,
    Reject,
    Release,
    ResetTo,
    Settle,
)
from goqueue.delivery.deliveries import Deliveries
from goqueue.model.groups import Mode
from tests.unit.delivery.machines import NOW, UNTIL, do, events, lapse, lease, live, ready
from tests.unit.delivery.partitions import RETRIES, A, B, MemoryPartition, message, some

TXN, OTHER = 7, 8


@pytest.fixture
def machine() -> Deliveries:
    """Poll 1 of group A has offsets 0 to 3."""
    made = live()
    lease(made, A, 0, 1, 2, 3)
    return made


def refused(machine: Deliveries, *offsets: int, poll: int = 1, transaction: int = TXN) -> list[int]:
    found = do(machine, Pledge(A, {poll: some(*offsets)}, transaction))
    return [offset for offsets in found.values() for offset in offsets]


def pledged(machine: Deliveries, transaction: int = TXN) -> list[int]:
    return list(machine.delivery(A).pledged(transaction))


# --- pledging


def test_what_is_pledged_is_settled_when_the_transaction_is_committed(machine: Deliveries) -> None:
    assert refused(machine, 0, 1) == []
    assert refused(machine, 3, transaction=OTHER) == []
    assert (machine.pledged(TXN), machine.pledged(OTHER), machine.pledged_to) == ({A: 2}, {A: 1}, {TXN, OTHER})
    assert machine.low(A) == 0, "not before"
    assert do(machine, Redeem(TXN, True)) == {A: 2}
    assert machine.low(A) == 2
    assert machine.pledged_to == {OTHER}


def test_what_is_pledged_is_ready_when_it_is_aborted_and_the_delivery_counts(machine: Deliveries) -> None:
    refused(machine, 0, 1)
    assert do(machine, Redeem(TXN, False)) == {A: 2}
    assert ready(machine, A, 4) == [0, 1]
    assert [machine.delivery(A).deliveries_of(offset) for offset in range(4)] == [1, 1, 0, 0]
    assert refused(machine, 0) == [0], "no handle of before is good"
    assert machine.low(A) == 0


def test_no_handle_and_no_commit_reaches_what_is_pledged(machine: Deliveries) -> None:
    refused(machine, 0, 1)
    claims = {1: some(0)}
    for command in (Ack(A, claims), Reject(A, claims, True), Release(A, claims), Extend(A, claims, 99)):
        assert list(do(machine, command)[1]) == [0], command
    assert list(do(machine, Nack(A, claims, RETRIES)).refused[1]) == [0]
    assert refused(machine, 0, transaction=OTHER) == [0]
    do(machine, Settle(A, 4))
    assert (machine.low(A), pledged(machine)) == (0, [0, 1])
    assert list(machine.delivery(A).settled.above) == [2, 3]


def test_a_handle_that_is_not_good_pledges_nothing(machine: Deliveries) -> None:
    before = events(machine)
    assert refused(machine, 9) == [9]
    assert refused(machine, 0, poll=2) == [0]
    assert events(machine) == before


def test_a_lease_that_lapsed_can_be_pledged_and_counts_once(machine: Deliveries) -> None:
    lapse(machine, A, 1)
    assert refused(machine, 0, 1) == []
    assert ready(machine, A, 4) == [2, 3], "they are taken again"
    lease(machine, A, 2, 3, poll=2)
    assert refused(machine, 2, poll=2) == []
    do(machine, Redeem(TXN, False))
    assert [machine.delivery(A).deliveries_of(offset) for offset in range(4)] == [1, 1, 2, 1]


def test_pledged_messages_do_not_lapse(machine: Deliveries) -> None:
    refused(machine, 0, 1, 2, 3)
    due, _ = machine.lapse_due(10**9)
    assert due == []
    assert pledged(machine) == [0, 1, 2, 3]


def test_a_commit_of_offsets_pledges_what_it_would_settle(machine: Deliveries) -> None:
    lease(machine, A, 4, poll=2, holder="b")
    do(machine, PledgeBelow(A, 10, TXN, 1))
    assert pledged(machine) == [0, 1, 2, 3], "poll 2 is not meant"
    do(machine, PledgeBelow(A, 10, OTHER, 9, "a"))
    assert pledged(machine, OTHER) == [], "that one is another's"
    do(machine, PledgeBelow(A, 10, OTHER, 9, "b"))
    assert pledged(machine, OTHER) == [4]
    do(machine, Redeem(TXN, True))
    do(machine, Redeem(OTHER, True))
    assert machine.low(A) == 5


def test_a_transaction_that_has_nothing_here_changes_nothing(machine: Deliveries) -> None:
    before = events(machine)
    for commits in (True, False):
        assert do(machine, Redeem(TXN, commits)) == {}
    do(machine, PledgeBelow(A, 0, TXN))
    assert events(machine) == before


def test_groups_pledge_to_one_transaction_each_its_own(machine: Deliveries) -> None:
    lease(machine, B, 0, poll=2)
    refused(machine, 0)
    do(machine, Pledge(B, {2: some(0)}, TXN))
    assert machine.pledged(TXN) == {A: 1, B: 1}
    do(machine, Redeem(TXN, True))
    assert (machine.low(A), machine.low(B)) == (1, 1)


# --- what may happen meanwhile


@pytest.mark.parametrize("command", [Open(A, 2), Abandon(A, "a")], ids=["opened", "abandoned"])
def test_who_has_the_partition_does_not_matter(machine: Deliveries, command: Any) -> None:
    refused(machine, 0, 1)
    do(machine, command)
    assert ready(machine, A, 4) == [2, 3]
    do(machine, Redeem(TXN, True))
    assert machine.low(A) == 2


@pytest.mark.parametrize("command", [ResetTo(A, 0), Forget(A)], ids=["reset", "forgotten"])
def test_a_group_that_was_moved_or_deleted_has_pledged_nothing(machine: Deliveries, command: Any) -> None:
    refused(machine, 0, 1)
    do(machine, command)
    assert machine.pledged_to == set()
    assert do(machine, Redeem(TXN, True)) == {}
    assert not machine.low(A)


def test_what_the_data_log_lost_is_not_pledged(machine: Deliveries) -> None:
    refused(machine, 0, 3)
    do(machine, Fence(2, 1))
    assert pledged(machine) == [0]
    do(machine, Redeem(TXN, True))
    assert machine.low(A) == 1


def test_a_message_that_was_lost_and_came_again_counts_for_itself(machine: Deliveries) -> None:
    """Whether a delivery is among the tries is known of what is pledged, not of what was."""
    lapse(machine, A, 1)
    refused(machine, 0, 3)
    do(machine, Fence(2, 1))
    lease(machine, A, 3, poll=2)
    refused(machine, 3, poll=2)
    do(machine, Redeem(TXN, False))
    assert machine.delivery(A).deliveries_of(3) == 1


def test_a_snapshot_has_it_all(machine: Deliveries) -> None:
    lapse(machine, A, 1)
    lease(machine, A, 2, poll=2)
    refused(machine, 0)
    refused(machine, 2, poll=2)
    other = Deliveries()
    for record in machine.snapshot():
        other.apply(record, 0)
    assert events(other) == events(machine)
    for each in (machine, other):
        do(each, Redeem(TXN, False))
    assert events(other) == events(machine)
    assert [other.delivery(A).deliveries_of(offset) for offset in (0, 2)] == [1, 2]


# --- what nobody may see


def test_what_is_hidden_counts_as_settled_for_every_group(machine: Deliveries) -> None:
    lease(machine, B, 0, poll=2)
    do(machine, Hide(some(4, 5)))
    do(machine, Ack(A, {1: some(0, 1, 2, 3)}))
    assert (machine.low(A), machine.low(B)) == (6, 0)
    before = events(machine)
    do(machine, Hide(some(4, 5)))
    assert events(machine) == before, "it is written down once"
    assert pack(machine.cancelled) == pack(some(4, 5))


# --- beside messages that are held


def held(*records: Any, offsets: Any) -> MemoryPartition:
    """Some of its messages belong to an open transaction."""
    partition = MemoryPartition(*records)
    partition.deliveries.uncommitted.update(offsets)
    return partition


def is_drained(partition: MemoryPartition) -> bool:
    return partition.deliveries.is_drained(A, 0, partition.data.end_offset)


def commit(partition: MemoryPartition, *offsets: int) -> None:
    partition.deliveries.uncommitted.difference_update(some(*offsets))
    partition.deliveries.end_transaction(TXN, some(*offsets))


def test_a_group_that_waits_for_a_transaction_alone_has_nothing_to_look_for() -> None:
    partition = held(message(), message(), message(), offsets=[0])
    poll, found = partition.poll(A)
    assert found == [1, 2]
    assert is_drained(partition)
    partition.do(Ack(A, {poll: some(1, 2)}))
    assert is_drained(partition), "it is known what keeps it from going on"
    assert partition.deliveries.is_in_order(A)
    commit(partition, 0)
    assert not is_drained(partition)
    assert partition.poll(A)[1] == [0]


def test_what_came_since_is_found_in_a_row_beside_an_open_transaction() -> None:
    partition = held(message(), message(), offsets=[0])
    poll, _ = partition.poll(A)
    partition.do(Ack(A, {poll: some(1)}))
    partition.publish(message(), message())
    found = partition.sidecar.ahead(A, Mode.SHARED)
    assert found is not None
    assert (found.first, found.end) == (2, 4)
    partition.deliveries.uncommitted.add(3)
    assert partition.sidecar.ahead(A, Mode.SHARED) is None, "one of them is held"


def test_a_hole_that_is_nobodys_is_looked_at() -> None:
    partition = MemoryPartition(message(), message())
    poll, _ = partition.poll(A)
    partition.do(Ack(A, {poll: some(1)}))
    assert not partition.deliveries.is_in_order(A)


@pytest.mark.parametrize("commits", [True, False])
def test_a_key_waits_for_a_pledge(commits: bool) -> None:
    partition = MemoryPartition(message("k"), message("k"), message("l"))
    poll, found = partition.poll(A, mode=Mode.KEY)
    assert found == [0, 2]
    partition.do(Pledge(A, {poll: some(0)}, TXN))
    assert partition.poll(A, mode=Mode.KEY)[1] == [], "1 is behind it"
    partition.do(Redeem(TXN, commits))
    assert partition.poll(A, mode=Mode.KEY)[1] == ([1] if commits else [0])


def test_a_key_is_blocked_from_an_open_transactions_first_message_on_also_after_a_restart() -> None:
    partition = held(message("k", transaction=TXN), message("k"), message(), offsets=[0])
    for _ in range(2):
        assert partition.poll(A, mode=Mode.KEY, span_ms=1)[1] == [2]
        partition.restart(wall_ms=10)
        partition.deliveries.uncommitted.add(0)
        partition.lapse()
    commit(partition, 0)
    assert partition.poll(A, mode=Mode.KEY)[1] == [0, 2]


def test_times_are_those_of_before(machine: Deliveries) -> None:
    """A pledge has no time of its own: its transaction has."""
    refused(machine, 0)
    do(machine, Redeem(TXN, False), now=NOW + 10)
    lease(machine, A, 0, poll=2)
    assert {hold.until for hold in machine.delivery(A).holds} == {UNTIL}
