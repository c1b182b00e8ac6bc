"""What a tally of lanes says is ready is what a poll without a limit is given, whatever happened before."""

from collections.abc import Callable, Iterable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from goqueue.delivery.commands import Ack, Cancel, Nack, Reject, ResetTo
from goqueue.delivery.statistics import LaneTally
from goqueue.model.names import GroupNumber
from goqueue.storage.lane_index import LaneIndex, ViewMissing
from tests.unit.delivery.partitions import RETRIES, A, B, MemoryPartition, message

_GROUPS = st.sampled_from([A, B])
_STEPS = st.one_of(
    st.tuples(st.just("publish"), st.lists(st.integers(0, 4), min_size=1, max_size=12), st.booleans()),
    st.tuples(st.just("roll")),
    st.tuples(st.just("poll"), _GROUPS, st.integers(1, 9)),
    st.tuples(st.just("settle"), _GROUPS, st.sampled_from(["ack", "nack", "reject"]), st.integers(0, 4)),
    st.tuples(st.just("pass"), st.sampled_from([5, 1500, 40_000])),
    st.tuples(st.just("cancel"), st.integers(0, 3)),
    st.tuples(st.just("retain"), st.integers(0, 3)),
    st.tuples(st.just("reset"), _GROUPS, st.integers(0, 40)),
    st.tuples(st.just("restart")),
)


class Told:
    """A partition, and what is known of its messages from outside."""

    def __init__(self) -> None:
        self.partition = MemoryPartition()
        self.lanes: dict[int, int] = {}
        self.held: dict[GroupNumber, list[tuple[int, list[int]]]] = {A: [], B: []}
        """Polls and what they were given, newest last."""

    def publish(self, lanes: list[int], delayed: bool) -> None:
        deliver_at = self.partition.wall + 1000 if delayed else None
        offsets = self.partition.publish(*(message(lane=lane, deliver_at=deliver_at) for lane in lanes))
        self.lanes.update(zip(offsets, lanes, strict=True))

    def poll(self, group: GroupNumber, count: int) -> None:
        self.held[group].append(self.partition.poll(group, count))

    def settle(self, group: GroupNumber, how: str, every: int) -> None:
        if not self.held[group]:
            return
        poll, offsets = self.held[group].pop()
        claims = {poll: BitMap64(offsets[:: every + 1])}
        match how:
            case "ack":
                self.partition.do(Ack(group, claims))
            case "nack":
                self.partition.do(Nack(group, claims, RETRIES))
            case _:
                self.partition.do(Reject(group, claims, dead_letters=True))

    def move_on(self, ms: int) -> None:
        self.partition.pass_time(ms)
        self.partition.fire()
        self.partition.lapse()

    def cancel(self, every: int) -> None:
        pending = list(self.partition.delays.pending)
        self.partition.do(Cancel(BitMap64(pending[:: every + 1])))

    def retain(self, segments: int) -> None:
        bases = [segment.base for segment in self.partition.data.segments]
        self.partition.retain(bases[min(segments, len(bases) - 1)])

    def reset(self, group: GroupNumber, low: int) -> None:
        self.partition.do(ResetTo(group, min(low, self.partition.data.end_offset)))
        self.held[group].clear()

    def by_lane(self, offsets: Iterable[int]) -> list[int]:
        found = [0] * 5
        for offset in offsets:
            found[self.lanes[offset]] += 1
        return found


def tally(partition: MemoryPartition, group: GroupNumber) -> LaneTally:
    data = partition.data
    found = LaneTally(
        LaneIndex(data),
        partition.delivery(group),
        partition.deliveries,
        start=data.start_offset,
        end=data.written.value,
    )
    while not found.is_over:
        try:
            found.step()
        except ViewMissing as missing:
            data.derived(missing.segment)
    return found


@settings(deadline=None)
@given(steps=st.lists(_STEPS, max_size=40))
def test_what_is_ready_is_what_a_poll_is_given_and_what_it_was_given_is_in_flight(
    steps: list[tuple[Any, ...]],
) -> None:
    told = Told()
    work: dict[str, Callable[..., object]] = {
        "publish": told.publish,
        "roll": told.partition.roll,
        "poll": told.poll,
        "settle": told.settle,
        "pass": told.move_on,
        "cancel": told.cancel,
        "retain": told.retain,
        "reset": told.reset,
        "restart": told.partition.restart,
    }
    for name, *arguments in steps:
        work[name](*arguments)
    for group in (A, B):
        before = tally(told.partition, group)
        _, given_out = told.partition.poll(group)
        assert before.ready == told.by_lane(given_out)
        after = tally(told.partition, group)
        assert after.ready == [0] * 5
        assert after.in_flight == [sum(pair) for pair in zip(before.in_flight, before.ready, strict=True)]
