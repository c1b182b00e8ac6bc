"""The machine over a sidecar log: what it decides, what it refuses, and that only `apply` changes it."""

from typing import Any

import msgspec
import pytest

from goqueue.delivery import records
from goqueue.delivery.deliveries import (
    Deliveries,
    Fence,
    Forget,
    GiveBack,
    Lease,
    Open,
    ResetTo,
    Settle,
    Skip,
    Start,
)
from goqueue.delivery.records import Delivered, Event, Range, Resting
from goqueue.machine.host import Host
from goqueue.machine.shape import Machine
from goqueue.model import limits
from goqueue.model.errors import Conflict, DamagedData
from goqueue.model.names import GroupNumber
from tests.support.memory_disk import MemoryDisk
from tests.unit.delivery.test_records import GOLDEN
from tests.unit.machine.adders import open_log

NOW = 1_700_000_000_000
A, B, C = GroupNumber(1), GroupNumber(2), GroupNumber(3)


def do(machine: Deliveries, command: Any) -> Any:
    """Decide and apply, as a host does; deciding alone must change nothing."""
    before = list(machine.snapshot())
    try:
        decision = machine.decide(command, NOW)
    finally:
        assert list(machine.snapshot()) == before
    for record in decision.records:
        machine.apply(record, 0)
    return decision.reply


def lease(machine: Deliveries, group: GroupNumber, *spans: tuple[int, int], poll: int = 1, epoch: int = 1) -> Any:
    return do(machine, Lease(group, epoch, poll, 0, spans))


def restored(machine: Deliveries) -> Deliveries:
    """Another one, made from this one's snapshot."""
    other = Deliveries()
    for record in machine.snapshot():
        other.apply(record, 0)
    return other


def events(machine: Deliveries) -> list[Event]:
    return [records.decode(record) for record in machine.snapshot()]


@pytest.fixture
def machine() -> Deliveries:
    return Deliveries()


def test_it_has_the_shape_of_a_machine_and_a_name_that_never_changes(machine: Deliveries) -> None:
    held: Machine = machine
    assert held.name == "delivery", "its records in every sidecar log are found by it"


# --- beginning


def test_a_group_that_was_never_here_begins_where_the_partition_begins(machine: Deliveries) -> None:
    assert machine.next_ready(A, 40) == Range(40, 0, 0)
    assert (A in machine, machine.low(A), machine.groups) == (False, None, [])
    assert (machine.overtaken(A, 40), machine.unsettled(A, 40, 100)) == (0, 60)
    assert (machine.in_flight(A), machine.has_in_flight(A), machine.needs_open(A, 9)) == (0, False, False)


def test_a_group_begins_where_it_was_told_to_but_only_the_first_time(machine: Deliveries) -> None:
    do(machine, Start(A, 70))
    assert (machine.low(A), machine.next_ready(A, 40), machine.groups) == (70, Range(70, 0, 0), [A])
    assert machine.decide(Start(A, 10), NOW) == ((), None)
    lease(machine, A, (70, 80))
    assert machine.decide(Start(A, 10), NOW) == ((), None)


def test_a_group_may_begin_at_the_very_beginning(machine: Deliveries) -> None:
    do(machine, Start(A, 0))
    assert (A in machine, machine.low(A)) == (True, 0)
    assert machine.overtaken(A, 5) == 5, "unlike one that was never here"


# --- leasing and settling


def test_a_lease_replies_with_what_is_delivered_and_how_often(machine: Deliveries) -> None:
    assert lease(machine, A, (0, 10)) == (Range(0, 10, 1),)
    assert (machine.in_flight(A), machine.has_in_flight(A), machine.low(A)) == (10, True, 0)
    do(machine, Open(A, 2))
    assert (machine.in_flight(A), machine.has_in_flight(A)) == (0, False)
    assert lease(machine, A, (3, 5), (10, 12), poll=2, epoch=2) == (Range(3, 5, 2), Range(10, 12, 1))


def test_groups_do_not_touch_each_other(machine: Deliveries) -> None:
    lease(machine, A, (0, 10))
    lease(machine, B, (0, 3))
    do(machine, Settle(B, 2))
    assert (machine.low(A), machine.low(B)) == (0, 2)
    assert (machine.in_flight(A), machine.in_flight(B)) == (10, 1)
    do(machine, Forget(B))
    assert (machine.groups, machine.next_ready(B, 0)) == ([A], Range(0, 0, 0))


@pytest.mark.parametrize("spans", [(), ((5, 8),), ((10, 10),), ((11, 12),), ((10, 12), (11, 13))])
def test_what_is_not_next_is_refused(machine: Deliveries, spans: tuple[tuple[int, int], ...]) -> None:
    lease(machine, A, (0, 10))
    with pytest.raises(Conflict, match="not what the group is to be delivered next; poll again"):
        lease(machine, A, *spans)


def test_offsets_that_went_are_refused(machine: Deliveries) -> None:
    with pytest.raises(Conflict):
        do(machine, Lease(A, 1, 1, 20, ((0, 30),)))
    assert do(machine, Lease(A, 1, 1, 20, ((20, 30),))) == (Range(20, 30, 1),)
    assert machine.low(A) == 20


def test_a_lease_of_what_an_operator_has_moved_away_from_is_refused(machine: Deliveries) -> None:
    """A poll reads between looking and leasing."""
    do(machine, Start(A, 50))
    ready = machine.next_ready(A, 0)
    do(machine, ResetTo(A, 10))
    with pytest.raises(Conflict):
        lease(machine, A, (ready.first, 60))


def test_a_settle_of_nothing_writes_nothing(machine: Deliveries) -> None:
    assert machine.decide(Settle(A, 100), NOW) == ((), None)
    lease(machine, A, (0, 10))
    do(machine, Settle(A, 5))
    assert machine.decide(Settle(A, 5), NOW) == ((), None)
    assert machine.decide(Settle(A, 6), NOW).records


def test_what_is_lost_on_the_way_is_given_back(machine: Deliveries) -> None:
    lease(machine, A, (0, 10), poll=5)
    assert machine.decide(GiveBack(A, 5, 9), NOW) == ((), None)
    assert machine.decide(GiveBack(B, 0, 9), NOW) == ((), None)
    do(machine, GiveBack(A, 4, 5))
    assert lease(machine, A, (0, 10), poll=6) == (Range(0, 10, 1),)


def test_polls_that_took_several_times_are_given_back_alone(machine: Deliveries) -> None:
    lease(machine, A, (0, 10), poll=5)
    for first in (10, 11, 12):
        lease(machine, A, (first, first + 1), poll=6)
    do(machine, GiveBack(A, 5, limits.MAX_OFFSET))
    assert (machine.in_flight(A), machine.next_ready(A, 0)) == (10, Range(10, 0, 0))


def test_the_last_poll_is_the_highest_number_that_holds_something(machine: Deliveries) -> None:
    assert machine.last_poll == 0
    lease(machine, A, (0, 10), poll=5)
    lease(machine, B, (0, 10), poll=9)
    lease(machine, A, (10, 20), poll=7)
    assert machine.last_poll == restored(machine).last_poll == 9
    do(machine, Settle(B, 10))
    assert machine.last_poll == 7


def test_only_a_new_owner_opens(machine: Deliveries) -> None:
    assert machine.decide(Open(A, 1), NOW) == ((), None)
    lease(machine, A, (0, 10), epoch=3)
    assert [machine.needs_open(A, epoch) for epoch in (2, 3, 4)] == [False, False, True]
    assert machine.decide(Open(A, 3), NOW) == ((), None)
    do(machine, Open(A, 4))
    assert (machine.needs_open(A, 5), machine.next_ready(A, 0)) == (False, Range(0, 10, 1))


def test_what_is_passed_over_must_be_ready(machine: Deliveries) -> None:
    lease(machine, A, (0, 10))
    for first, end in ((5, 8), (9, 11), (10, 10)):
        with pytest.raises(Conflict, match=f"offsets {first} to {end - 1} are not ready"):
            do(machine, Skip(A, first, end))
    do(machine, Skip(A, 10, 12))
    assert machine.next_ready(A, 0) == Range(12, 0, 0)
    assert machine.unsettled(A, 0, 20) == 18


def test_a_group_rests_as_soon_as_nothing_is_under_way(machine: Deliveries) -> None:
    do(machine, Start(A, 4))
    lease(machine, A, (4, 9), poll=5)
    assert isinstance(events(machine)[0], Delivered)
    do(machine, GiveBack(A, 4, 5))
    assert events(machine) == [Resting(((A, 4),))]
    lease(machine, A, (4, 9), poll=6)
    do(machine, Fence(4, 2))
    assert events(machine) == [Resting(((A, 4),))]
    lease(machine, A, (4, 9), poll=7)
    do(machine, Settle(A, 9))
    assert events(machine) == [Resting(((A, 9),))]


def test_a_group_that_only_passed_over_something_rests(machine: Deliveries) -> None:
    do(machine, Skip(A, 0, 12))
    assert events(machine) == [Resting(((A, 12),))]


# --- moving and forgetting


def test_a_reset_goes_anywhere_and_ends_what_was_under_way(machine: Deliveries) -> None:
    lease(machine, A, (0, 10))
    do(machine, Settle(A, 5))
    for low in (0, 500, 3):
        do(machine, ResetTo(A, low))
        assert (machine.low(A), machine.in_flight(A), machine.next_ready(A, 0)) == (low, 0, Range(low, 0, 0))
    assert machine.decide(Settle(A, 10), NOW) == ((), None), "it was delivered before the reset"
    do(machine, ResetTo(B, 7))
    assert machine.low(B) == 7


def test_a_forgotten_group_was_never_here(machine: Deliveries) -> None:
    assert machine.decide(Forget(A), NOW) == ((), None)
    do(machine, Start(A, 70))
    lease(machine, B, (0, 5))
    for group in (A, B):
        do(machine, Forget(group))
        assert (group in machine, machine.low(group), machine.in_flight(group)) == (False, None, 0)
    assert list(machine.snapshot()) == []


# --- retention


def test_offsets_that_went_before_they_were_delivered_are_counted_until_the_next_lease(machine: Deliveries) -> None:
    do(machine, Start(A, 10))
    lease(machine, B, (0, 10))
    do(machine, Open(B, 2))
    assert (machine.overtaken(A, 30), machine.overtaken(B, 30)) == (20, 30)
    assert (machine.unsettled(A, 30, 40), machine.unsettled(B, 30, 40)) == (10, 10)
    for group in (A, B):
        do(machine, Lease(group, 2, 2, 30, ((30, 31),)))
        assert (machine.overtaken(group, 30), machine.low(group)) == (0, 30)


# --- fences


def test_a_fence_is_always_written(machine: Deliveries) -> None:
    for _ in range(2):
        assert len(machine.decide(Fence(5, 1), NOW).records) == 1


def test_after_a_fence_nothing_is_known_of_the_offsets_behind_it(machine: Deliveries) -> None:
    do(machine, Start(A, 70))
    lease(machine, B, (0, 100))
    do(machine, Settle(B, 60))
    lease(machine, C, (0, 20))
    do(machine, Settle(C, 10))
    do(machine, Fence(50, 2))
    assert [machine.next_ready(group, 0) for group in (A, B, C)] == [Range(50, 0, 0), Range(50, 0, 0), Range(20, 0, 0)]
    assert [machine.unsettled(group, 0, 80) for group in (A, B, C)] == [30, 30, 70]
    assert [machine.in_flight(group) for group in (A, B, C)] == [0, 0, 10]
    assert machine.groups == [A, B, C]


def test_a_message_that_takes_the_place_of_a_lost_one_is_not_born_settled(machine: Deliveries) -> None:
    lease(machine, A, (0, 100))
    do(machine, Settle(A, 100))
    do(machine, Fence(99, 2))
    assert lease(machine, A, (99, 100)) == (Range(99, 100, 1),)


# --- records of other versions


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"\x93\x01",
        b"{}",
        msgspec.msgpack.encode([99, 1]),
        msgspec.msgpack.encode([1, 5]),
        msgspec.msgpack.encode([11, 3, 0, 9, 1, b"no bitmap", [], []]),
    ],
)
def test_a_record_it_does_not_understand_is_refused_with_its_offset(machine: Deliveries, record: bytes) -> None:
    with pytest.raises(DamagedData, match=r"offset 77 of a sidecar log is not understood .*start the version that"):
        machine.apply(record, 77)


# --- snapshots


def test_a_snapshot_of_nothing_is_empty(machine: Deliveries) -> None:
    assert list(machine.snapshot()) == []


def test_groups_that_rest_share_a_record_and_the_others_have_one_each(machine: Deliveries) -> None:
    do(machine, Start(B, 70))
    lease(machine, C, (0, 10))
    lease(machine, A, (0, 10))
    do(machine, Settle(A, 10))
    resting, delivered = events(machine)
    assert resting == Resting(((A, 10), (B, 70)))
    assert isinstance(delivered, Delivered)
    assert (delivered.group, delivered.low, delivered.cursor) == (C, 0, 10)


def test_a_snapshot_makes_the_same_machine_again(machine: Deliveries) -> None:
    do(machine, Start(B, 70))
    lease(machine, A, (0, 10))
    do(machine, Open(A, 2))
    lease(machine, A, (2, 5), (7, 8), poll=2, epoch=2)
    do(machine, Settle(A, 4))
    do(machine, Skip(A, 10, 12))
    other = restored(machine)
    assert events(other) == events(machine)
    for command in (Settle(A, 99), Open(A, 3), Fence(9, 3), Forget(B)):
        do(machine, command)
        do(other, command)
        assert events(other) == events(machine)


def test_a_reset_of_the_machine_forgets_everything(machine: Deliveries) -> None:
    do(machine, Start(B, 70))
    lease(machine, A, (0, 10))
    machine.reset()
    assert (machine.groups, list(machine.snapshot())) == ([], [])


def test_the_largest_snapshot_of_groups_that_rest_fits_into_a_block() -> None:
    """It is appended as one."""
    lows = tuple((GroupNumber(2**31 + number), limits.MAX_OFFSET - 1) for number in range(limits.MAX_GROUPS))
    assert len(records.encode(Resting(lows))) < limits.MAX_RECORD_BYTES / 50


def test_a_host_finds_it_as_it_was_with_and_without_a_snapshot() -> None:
    disk = MemoryDisk()
    machine = Deliveries()
    host = Host(open_log(disk), [machine])
    commands: list[Any] = [
        Start(B, 7),
        Lease(A, 1, 1, 0, ((0, 9),)),
        Settle(A, 4),
        Fence(6, 1),
        Lease(B, 1, 2, 0, ((6, 8),)),
    ]
    for number, command in enumerate(commands):
        host.submit(machine, command, NOW)
        again = Deliveries()
        Host(open_log(disk), [again])
        assert events(again) == events(machine), command
        if number == 2:
            host.snapshot(NOW)
    assert (machine.in_flight(A), machine.in_flight(B)) == (0, 2)


def test_every_command_has_an_event_of_its_own(machine: Deliveries) -> None:
    commands: list[Any] = [
        Fence(0, 1),
        Start(A, 0),
        Lease(A, 1, 1, 0, ((0, 9),)),
        Open(A, 2),
        Lease(A, 2, 2, 0, ((0, 9),)),
        Settle(A, 5),
        GiveBack(A, 1, 2),
        Skip(A, 9, 12),
        ResetTo(A, 3),
        Forget(A),
    ]
    found = []
    for command in commands:
        (record,) = machine.decide(command, NOW).records
        found.append(type(records.decode(record)))
        machine.apply(record, 0)
    assert {*found, Resting, Delivered} == {type(event) for event in GOLDEN.values()}
