"""Numbers about lanes: what was served and when, how long a lane has waited, what is ready and what is out."""

from goqueue.delivery.commands import Ack, Cancel, Extend, Forget, Lapse, Nack, ResetTo
from goqueue.delivery.selection import Policy, Selection
from goqueue.delivery.statistics import LaneTally, ServedCounts, waited_ms
from goqueue.model.names import GroupNumber
from goqueue.model.record import Lane
from goqueue.storage.lane_index import LaneIndex
from tests.unit.delivery.partitions import RETRIES, SPAN, STRICTLY, T0, A, B, MemoryPartition, message, some

NONE = ([0] * 5, [None] * 5)


def tally(partition: MemoryPartition, group: GroupNumber) -> LaneTally:
    data = partition.data
    found = LaneTally(
        LaneIndex(data), partition.delivery(group), partition.deliveries, start=data.start_offset, end=data.end_offset
    )
    while not found.is_over:
        found.step()
    return found


def serve(partition: MemoryPartition, group: GroupNumber, count: int, policy: Policy = STRICTLY) -> list[int]:
    """A poll, counted as the broker counts it."""
    selection = partition.staged(group, want=count)
    picks = selection.pick(count, policy, partition.now)
    partition.lease(group, selection, picks, poll=partition.next_poll())
    taken = [sum(len(pick.offsets) for pick in picks if pick.lane == lane) for lane in range(5)]
    partition.deliveries.served.serve(group, taken, partition.wall)
    return taken


def waited(partition: MemoryPartition, group: GroupNumber) -> list[int]:
    return waited_ms(tally(partition, group).ready, partition.deliveries.selections.get(group), partition.now)


# --- what was served


def test_what_is_served_is_counted_by_lane_with_the_time() -> None:
    counts = ServedCounts()
    counts.serve(A, [1, 0, 5, 0, 0], T0)
    counts.serve(B, [9, 9, 9, 9, 9], T0 + 8)
    counts.serve(A, [0, 0, 2, 3, 0], T0 + 7)
    assert counts.of(A) == ([1, 0, 7, 3, 0], [T0, None, T0 + 7, T0 + 7, None])
    assert counts.of(B) == ([9] * 5, [T0 + 8] * 5)


def test_a_group_has_numbers_from_its_first_poll_until_it_is_forgotten() -> None:
    partition = MemoryPartition(*(message() for _ in range(4)))
    served = partition.deliveries.served
    assert served.of(A) == NONE
    serve(partition, A, 3)
    serve(partition, B, 1)
    assert served.of(A).messages == [0, 0, 3, 0, 0]
    assert served.of(B).messages == [0, 0, 1, 0, 0]
    partition.do(ResetTo(A, 0))
    serve(partition, A, 1)
    assert served.of(A).messages == [0, 0, 4, 0, 0], "a reset ends nothing"
    partition.do(Forget(A))
    assert served.of(A) == NONE
    assert served.of(B).messages == [0, 0, 1, 0, 0]


def test_the_numbers_begin_anew_with_the_process() -> None:
    partition = MemoryPartition(message())
    serve(partition, A, 1)
    partition.restart()
    assert partition.deliveries.served.of(A) == NONE


# --- how long a lane has waited


def test_a_lane_that_is_passed_over_waits_from_when_a_poll_saw_it() -> None:
    partition = MemoryPartition(message(lane=Lane.HIGH), message(lane=Lane.HIGH), message(lane=Lane.LOW))
    assert waited(partition, A) == [0] * 5, "nobody has looked"
    serve(partition, A, 1)
    partition.pass_time(300)
    serve(partition, A, 1)
    partition.pass_time(200)
    assert waited(partition, A) == [0, 0, 0, 500, 0]


def test_a_lane_with_more_than_a_poll_wants_waits_from_when_it_was_served() -> None:
    partition = MemoryPartition(*(message() for _ in range(10)))
    serve(partition, A, 4)
    partition.pass_time(250)
    assert waited(partition, A) == [0, 0, 250, 0, 0]
    serve(partition, A, 4)
    partition.pass_time(50)
    assert waited(partition, A) == [0, 0, 50, 0, 0]


def test_a_lane_that_was_emptied_does_not_wait_and_what_comes_later_waits_from_when_it_is_seen() -> None:
    partition = MemoryPartition(message(), message(lane=Lane.LOW))
    serve(partition, A, 2)
    partition.pass_time(5000)
    assert waited(partition, A) == [0] * 5
    partition.publish(message())
    assert waited(partition, A) == [0] * 5
    serve(partition, A, 1)
    partition.pass_time(1000)
    assert waited(partition, A) == [0] * 5, "it was served"


def test_what_waits_for_its_retry_does_not_make_its_lane_wait() -> None:
    partition = MemoryPartition(message(), message(lane=Lane.LOW))
    poll, _ = partition.poll(A, 2, policy=STRICTLY)
    partition.do(Nack(A, {poll: some(0)}, RETRIES, 60_000))
    partition.pass_time(1000)
    assert waited(partition, A) == [0] * 5


def test_a_wait_is_never_negative() -> None:
    partition = MemoryPartition(message(), message())
    serve(partition, A, 1)
    selection = partition.deliveries.selections[A]
    assert waited_ms([0, 1, 1, 0, 0], selection, partition.now - 10) == [0] * 5
    assert waited_ms([0, 1, 1, 0, 0], selection, partition.now + 30) == [0, 0, 30, 0, 0]
    assert waited_ms([0] * 5, selection, partition.now + 30) == [0] * 5, "nothing is there"
    assert waited_ms([1] * 5, Selection(0), partition.now) == waited_ms([1] * 5, None, partition.now) == [0] * 5


# --- what is ready and what is out


def test_what_is_settled_taken_delayed_or_cancelled_is_not_ready() -> None:
    later = T0 + 60_000
    partition = MemoryPartition(
        *(message(lane=Lane.HIGH) for _ in range(6)),
        *(message(lane=Lane.LOW, deliver_at=later) for _ in range(3)),
        message(lane=Lane.LOW),
    )
    assert (tally(partition, A).ready, tally(partition, A).in_flight) == ([0, 6, 0, 1, 0], [0] * 5)
    poll, _ = partition.poll(A, 4, policy=STRICTLY)
    assert (tally(partition, A).ready, tally(partition, A).in_flight) == ([0, 2, 0, 1, 0], [0, 4, 0, 0, 0])
    partition.do(Ack(A, {poll: some(0, 2)}))
    partition.do(Nack(A, {poll: some(1)}, RETRIES, 60_000))
    assert (tally(partition, A).ready, tally(partition, A).in_flight) == ([0, 2, 0, 1, 0], [0, 1, 0, 0, 0])
    partition.do(Cancel(some(6)))
    assert tally(partition, A).ready == [0, 2, 0, 1, 0]
    partition.pass_time(60_010)
    partition.fire()
    partition.lapse()
    assert (tally(partition, A).ready, tally(partition, A).in_flight) == ([0, 4, 0, 3, 0], [0] * 5)
    assert tally(partition, B).ready == [0, 6, 0, 3, 0], "another group has settled nothing"


def test_a_tally_tells_of_when_it_began() -> None:
    partition = MemoryPartition(*(message() for _ in range(3)))
    partition.data.roll()
    partition.publish(*(message() for _ in range(3)))
    data = partition.data
    found = LaneTally(LaneIndex(data), partition.delivery(A), partition.deliveries, start=0, end=data.end_offset)
    found.step()
    partition.poll(A)
    partition.publish(message())
    found.step()
    assert found.is_over
    assert (found.ready, found.in_flight) == ([0, 0, 6, 0, 0], [0] * 5)


def test_what_retention_took_is_in_no_lane() -> None:
    partition = MemoryPartition(*(message() for _ in range(4)))
    partition.poll(A, 2)
    partition.roll()
    partition.publish(message(lane=Lane.LOW))
    partition.retain(4)
    assert (tally(partition, A).ready, tally(partition, A).in_flight) == ([0, 0, 0, 1, 0], [0] * 5)


# --- what is held


def test_what_is_held_is_counted_by_why() -> None:
    partition = MemoryPartition(*(message() for _ in range(9)))
    first, _ = partition.poll(A, 3)
    second, _ = partition.poll(A, 4)
    partition.do(Nack(A, {first: some(0, 1)}, RETRIES, 60_000))
    partition.do(Nack(A, {second: some(5)}, RETRIES, 10_000))
    deliveries = partition.deliveries
    assert (deliveries.in_flight(A), deliveries.waiting(A)) == (4, 3)
    assert (deliveries.in_flight(B), deliveries.waiting(B)) == (0, 0)
    assert deliveries.active_groups == [A]
    partition.pass_time(10_010)
    partition.lapse()
    assert deliveries.waiting(A) == 2


def test_leases_are_counted_before_they_lapse_also_when_some_of_a_poll_was_extended() -> None:
    partition = MemoryPartition(*(message() for _ in range(5)))
    poll, _ = partition.poll(A, 5)
    until = partition.wall + SPAN
    partition.do(Extend(A, {poll: some(0, 1)}, 2 * SPAN))
    later = partition.wall + 2 * SPAN
    leased_in = partition.deliveries.leased_in
    assert leased_in(A, [(poll, until)]) == 3
    assert leased_in(A, [(poll, later)]) == 2
    assert leased_in(A, [(poll, until), (poll, later)]) == 5
    assert leased_in(A, [(poll, until + 1), (poll + 1, until)]) == 0
    assert leased_in(B, [(poll, until)]) == 0
    partition.do(Lapse(A, ((poll, until),), RETRIES))
    assert leased_in(A, [(poll, until)]) == 0
