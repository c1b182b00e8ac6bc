"""What is delivered next, for any messages and any consumers: everything once, in its order, and nothing early.

Consumers poll in pieces of any size and settle in any order; polls may be under way at the same time. Whoever looks at
what they were given finds each message once, lanes in their order, and each key settled in the order of its messages.
"""

from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from goqueue.delivery.commands import Ack, Nack, Reject
from goqueue.delivery.selection import Pick, Policy
from goqueue.model import limits
from goqueue.model.groups import Mode
from tests.unit.delivery.partitions import ALL, RETRIES, T0, A, MemoryPartition, message, offsets_of

LANES = 5
WEIGHTS = (50, 25, 15, 7, 3)
TICK_MS = 10

lanes = st.integers(0, LANES - 1)
keys = st.sampled_from([None, "a", "b", "c", "d"])
sizes = st.integers(1, 9)
seeds = st.integers(0, 2**32)
thorough = settings(max_examples=150, deadline=None, print_blob=True)


@pytest.fixture(scope="module", autouse=True)
def small_limits() -> Iterator[None]:
    """So that slices end and windows are full after a few messages."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(limits, "SORTED_AT_ONCE", 5)
        patched.setattr(limits, "MAX_IN_LINE", 6)
        yield


def published(messages: list[tuple[str | None, int, int]], rng: Random) -> MemoryPartition:
    """Keys, lanes and delays, over several segments."""
    partition = MemoryPartition()
    for key, lane, delay_ms in messages:
        partition.publish(message(key, lane=lane, deliver_at=T0 + delay_ms if delay_ms else None))
        if rng.random() < 0.1:
            partition.roll()
    return partition


@thorough
@given(st.lists(lanes, max_size=60), st.lists(sizes, min_size=1, max_size=10), seeds)
def test_strict_lanes_come_in_their_order_and_in_them_the_oldest_first(
    of_lanes: list[int], counts: list[int], seed: int
) -> None:
    partition = published([(None, lane, 0) for lane in of_lanes], Random(seed))
    expected = sorted(range(len(of_lanes)), key=lambda offset: (of_lanes[offset], offset))
    found: list[int] = []
    for at in range(len(of_lanes) + 1):
        count = counts[at % len(counts)]
        picks = partition.staged(A, want=count).pick(count, Policy(WEIGHTS, True), partition.now)
        found += [offset for pick in picks for offset in pick.offsets]
        assert len(found) == min(sum(counts[each % len(counts)] for each in range(at + 1)), len(of_lanes))
    assert found == expected


@thorough
@given(st.lists(lanes, max_size=60), sizes, st.tuples(*[st.integers(0, 20)] * LANES).filter(any), st.booleans(), seeds)
def test_whatever_the_shares_every_message_is_delivered_once(
    of_lanes: list[int], count: int, weights: tuple[int, ...], keyed: bool, seed: int
) -> None:
    rng = Random(seed)
    partition = published([(None, lane, 0) for lane in of_lanes], rng)
    mode = Mode.KEY if keyed else Mode.SHARED
    found: list[int] = []
    under_way: list[list[Pick]] = []
    while len(found) < len(of_lanes):
        selection = partition.staged(A, mode, count)
        picks = selection.pick(count, Policy(weights, False), partition.now)
        under_way.append(picks)
        if not picks or rng.random() < 0.6:
            rng.shuffle(under_way)
            picks = under_way.pop()
            mine = offsets_of(picks)
            taken = BitMap64([offset for offset in mine if rng.random() < 0.8])
            part = [Pick(pick.lane, pick.offsets & taken) for pick in picks if pick.offsets & taken]
            if part:
                partition.lease(A, selection, part, poll=partition.next_poll())
            rest = [Pick(pick.lane, pick.offsets - taken) for pick in picks]
            selection.put_back(rest, partition.delivery(A), partition.deliveries)
            found += taken
    assert sorted(found) == list(range(len(of_lanes)))
    assert partition.poll(A, mode=mode)[1] == []


@thorough
@given(st.lists(st.tuples(keys, lanes, st.just(0)), max_size=60), sizes, seeds)
@example([("a", 2, 0)] * 30 + [("b", 2, 0)], 3, 0)
def test_each_key_is_settled_in_order_and_is_with_one_consumer_at_a_time(
    messages: list[tuple[str | None, int, int]], count: int, seed: int
) -> None:
    """As long as nothing fails: acked or rejected, in any order, by any number of consumers; also across restarts."""
    rng = Random(seed)
    partition = published(messages, rng)
    out: dict[int, int] = {}
    settled: list[int] = []
    for _ in range(40 * len(messages) + 1):
        if len(settled) == len(messages):
            break
        if rng.random() < 0.1:
            partition.restart()
        elif rng.random() < 0.5 or not out:
            poll, offsets = partition.poll(A, count, mode=Mode.KEY, policy=Policy(WEIGHTS, rng.random() < 0.5))
            assert offsets or out, "nobody has anything, and nothing comes"
            out.update(dict.fromkeys(offsets, poll))
            held = [messages[offset][0] for offset in out if messages[offset][0] is not None]
            assert len(held) == len(set(held))
        else:
            offset = rng.choice(list(out))
            claims = {out.pop(offset): BitMap64([offset])}
            assert partition.do(rng.choice((Ack(A, claims), Reject(A, claims, False)))) == {}
            settled.append(offset)
    assert sorted(settled) == list(range(len(messages)))
    assert partition.deliveries.low(A) == (len(messages) or None)
    for key in ("a", "b", "c", "d"):
        mine = [offset for offset in settled if messages[offset][0] == key]
        assert mine == sorted(mine)


@thorough
@given(
    st.lists(st.tuples(keys, lanes, st.sampled_from([0, 0, 30, 500, 2_000])), max_size=50),
    st.sampled_from([Mode.SHARED, Mode.KEY]),
    seeds,
)
def test_delayed_messages_come_when_they_are_due_and_never_before(
    messages: list[tuple[str | None, int, int]], mode: Mode, seed: int
) -> None:
    rng = Random(seed)
    partition = published(messages, rng)
    settled: list[int] = []
    while partition.now < 5_000 + 2_000 + 60 * TICK_MS or len(settled) < len(messages):
        partition.pass_time(rng.choice((TICK_MS, 40, 300)))
        partition.fire(rng.choice((1, ALL)))
        poll, offsets = partition.poll(A, rng.randrange(1, 20), mode=mode)
        assert all(partition.wall >= T0 + messages[offset][2] for offset in offsets)
        if offsets:
            assert partition.do(Ack(A, {poll: BitMap64(offsets)})) == {}
        settled += offsets
        assert partition.now < 10**6, "some do not come"
    assert sorted(settled) == list(range(len(messages)))


@thorough
@given(st.lists(st.tuples(st.integers(0, 9), sizes), max_size=60), seeds)
@example([(0, 3), (4, 1)] * 8, 0)
def test_what_lies_ahead_is_what_would_be_picked_and_taking_it_loses_nothing(
    steps: list[tuple[int, int]], seed: int
) -> None:
    """Whoever goes the short way and whoever goes the long one find the same, whatever happened before."""
    rng = Random(seed)
    partition = MemoryPartition()
    out: dict[int, int] = {}
    settled: list[int] = []

    def poll(count: int) -> None:
        number, ahead = partition.next_poll(), partition.sidecar.ahead(A, Mode.SHARED)
        if partition.deliveries.is_drained(A, 0, partition.data.end_offset):
            assert ahead is None, "a poll would pass it by"
            assert partition.poll(A, ALL)[1] == []
            return
        if ahead is not None and rng.random() < 0.5:
            offsets = list(range(ahead.first, ahead.end))
            partition.hold(A, BitMap64(offsets), poll=number)
            partition.deliveries.selection(A).take(ahead)
        elif ahead is not None:
            selection = partition.staged(A)
            picks = selection.pick(ALL, Policy(WEIGHTS, rng.random() < 0.5), partition.now)
            assert [(pick.lane, [*pick.offsets]) for pick in picks] == [(ahead.lane, [*range(ahead.first, ahead.end)])]
            partition.lease(A, selection, picks, poll=number)
            offsets = [*offsets_of(picks)]
        else:
            number, offsets = partition.poll(A, count)
        assert not out.keys() & set(offsets), "somebody has it"
        assert not set(settled) & set(offsets)
        out.update(dict.fromkeys(offsets, number))

    def settle(offset: int, command: type[Ack] | type[Nack]) -> None:
        claims = {out.pop(offset): BitMap64([offset])}
        if command is Ack:
            assert partition.do(Ack(A, claims)) == {}
            settled.append(offset)
        else:
            partition.do(Nack(A, claims, RETRIES._replace(most=10**6), TICK_MS))

    for kind, count in steps:
        if kind < 4:
            lane = 2 if kind < 3 else rng.randrange(LANES)
            due = T0 + rng.choice((30, 500)) if kind == 3 and rng.random() < 0.5 else None
            partition.publish(*[message(lane=lane, deliver_at=due)] * count)
        elif kind < 7:
            poll(count)
        elif kind == 9 and rng.random() < 0.3:
            partition.restart()
        else:
            partition.pass_time(TICK_MS)
            partition.fire()
            partition.lapse()
            for offset in rng.sample([*out], min(count, len(out))):
                settle(offset, Nack if rng.random() < 0.2 else Ack)
    partition.pass_time(10**4)
    partition.fire()
    partition.lapse(RETRIES._replace(most=10**6))
    for offset in [*out]:
        settle(offset, Ack)
    while len(settled) < partition.data.end_offset:
        poll(ALL)
        assert out, "some do not come"
        for offset in [*out]:
            settle(offset, Ack)
    assert sorted(settled) == [*range(partition.data.end_offset)]
