"""Selection in key mode: one message of a key at a time, in order; only that key waits."""

import pytest
from pyroaring import BitMap64

from goqueue import codec
from goqueue.base.offset_sets import pack
from goqueue.delivery import records
from goqueue.delivery.commands import Ack, Bury, Cancel, Expire, GiveBack, Nack, Reject, ResetTo, Skip
from goqueue.delivery.key_lines import KeyedSelection, ReadAhead
from goqueue.delivery.records import Cancelled
from goqueue.delivery.selection import Pick
from goqueue.model import limits
from goqueue.model.groups import Mode
from goqueue.model.record import Record
from tests.unit.delivery.partitions import (
    ALL,
    EVENLY,
    RETRIES,
    SPAN,
    STRICTLY,
    T0,
    A,
    MemoryPartition,
    message,
    offsets_of,
    some,
)
from tests.unit.storage.logs import stamped


def keyed(keys: str) -> MemoryPartition:
    """One message for each letter; a dot has no key."""
    return MemoryPartition(*(message(None if key == "." else key) for key in keys))


def poll(partition: MemoryPartition, count: int = ALL) -> list[int]:
    return partition.poll(A, count, mode=Mode.KEY)[1]


def ack(partition: MemoryPartition, *offsets: int) -> None:
    """Whoever has them."""
    delivery = partition.delivery(A)
    claims = {number: mine for number in delivery.leases if (mine := delivery.leased_to(number, some(*offsets)))}
    assert partition.do(Ack(A, claims)) == {}


# --- heads and lines


def test_of_each_key_the_oldest_is_delivered_and_the_others_wait() -> None:
    partition = keyed("abacab.a.")
    assert poll(partition) == [0, 1, 3, 6, 8]
    assert poll(partition) == []


def test_when_a_message_is_settled_the_next_of_its_key_comes() -> None:
    partition = keyed("abaab")
    assert poll(partition) == [0, 1]
    ack(partition, 0)
    assert poll(partition) == [2]
    ack(partition, 1, 2)
    assert poll(partition) == [3, 4]


def test_messages_without_a_key_never_wait() -> None:
    partition = keyed("......")
    assert (poll(partition, 4), poll(partition)) == ([0, 1, 2, 3], [4, 5])


def test_a_slow_key_holds_up_no_other() -> None:
    partition = keyed("a" * 50 + "b" + "a" * 50 + "c")
    assert poll(partition) == [0, 50, 101]


def test_lanes_are_served_among_the_heads() -> None:
    partition = MemoryPartition(
        message("a", lane=2), message("a", lane=0), message("b", lane=4), message("c", lane=0), message(lane=1)
    )
    selection = partition.staged(A, Mode.KEY)
    picks = selection.pick(3, STRICTLY, partition.now)
    assert [(pick.lane, list(pick.offsets)) for pick in picks] == [(0, [3]), (1, [4]), (2, [0])]
    partition.lease(A, selection, picks, poll=1)
    ack(partition, 0)
    assert poll(partition, 1) == [1], "it is at the head of its key, and in the best lane"


def test_two_polls_never_get_two_of_a_key() -> None:
    partition = keyed("aabb")
    selection = partition.staged(A, Mode.KEY)
    first = selection.pick(1, EVENLY, partition.now)
    assert poll(partition) == [2]
    partition.lease(A, selection, first, poll=99)
    assert poll(partition) == []


def test_a_key_whose_hash_is_0_is_a_key() -> None:
    selection = KeyedSelection(0, {}, BitMap64())
    block, _ = stamped(Record(key=b"a"), Record(key=b"b"), Record())
    scan = codec.scan(block)
    for at in range(2):
        scan.key_hashes[at] = 0
    partition = keyed("ab.")
    selection.feed(ReadAhead(0, 3, 0), scan, 3, (), partition.delivery(A), partition.deliveries)
    picks = selection.pick(ALL, EVENLY, 0)
    assert list(offsets_of(picks)) == [0, 2], "two keys of one hash share a line"
    assert selection.keys_of(BitMap64([0, 2])) == [1, 0]


# --- failing and coming again


def test_a_message_that_is_tried_again_holds_its_key_up() -> None:
    partition = keyed("aab")
    number, _ = partition.poll(A, 1, mode=Mode.KEY)
    partition.do(Nack(A, {number: some(0)}, RETRIES))
    assert poll(partition) == [2]
    partition.pass_time(1000)
    partition.lapse()
    assert poll(partition) == [0]
    ack(partition, 0)
    assert poll(partition) == [1]


def test_what_lapsed_comes_again_before_what_is_behind_it() -> None:
    partition = keyed("aa")
    number, _ = partition.poll(A, mode=Mode.KEY)
    partition.pass_time(SPAN)
    partition.lapse()
    assert poll(partition) == [0]
    partition.pass_time(SPAN)
    partition.lapse()
    partition.staged(A, Mode.KEY)
    assert partition.do(Ack(A, {number: some(0)})) == {number: some(0)}, "it was delivered again"
    assert partition.do(Ack(A, {2: some(0)})) == {}, "a late handle"
    assert poll(partition) == [1]


def test_what_was_not_delivered_after_all_comes_again() -> None:
    partition = keyed("aa..")
    number, offsets = partition.poll(A, mode=Mode.KEY)
    assert offsets == [0, 2, 3]
    partition.do(GiveBack(A, number - 1, number))
    assert poll(partition) == [0, 2, 3]


def test_a_dead_message_holds_its_key_up_until_its_letter_is_written() -> None:
    partition = keyed("aa")
    number, _ = partition.poll(A, mode=Mode.KEY)
    partition.do(Reject(A, {number: some(0)}, True))
    assert poll(partition) == []
    partition.do(Bury(1))
    assert poll(partition) == [1]


def test_what_is_passed_over_lets_the_next_one_come() -> None:
    partition = keyed("aaaa")
    selection = partition.staged(A, Mode.KEY)
    for command in (Skip(A, 0, 1), Expire(A, some(1), False)):
        picks = selection.pick(ALL, EVENLY, partition.now)
        partition.do(command)
        selection.put_back(picks, partition.delivery(A), partition.deliveries)
    assert poll(partition) == [2]


def test_what_is_put_back_is_still_the_head_of_its_key() -> None:
    partition = keyed("ab.")
    selection = partition.staged(A, Mode.KEY)
    picks = selection.pick(ALL, EVENLY, partition.now)
    partition.lease(A, selection, [Pick(2, some(1))], poll=1)
    selection.put_back([Pick(2, offsets_of(picks) - some(1))], partition.delivery(A), partition.deliveries)
    assert poll(partition) == [0, 2]


# --- delayed messages


def test_a_delayed_message_joins_its_keys_line_when_it_is_due() -> None:
    partition = MemoryPartition(
        message("a", deliver_at=T0 + 1000), message("a"), message("a"), message(deliver_at=T0 + 1000), message("b")
    )
    assert poll(partition) == [1, 4]
    partition.pass_time(1020)
    partition.fire()
    assert poll(partition) == [3]
    ack(partition, 1)
    assert poll(partition) == [2]
    ack(partition, 2)
    assert poll(partition) == [0]


def test_a_cancelled_message_holds_nobody_up() -> None:
    partition = MemoryPartition(message("a", deliver_at=T0 + 1000), message("a"))
    partition.do(Cancel(some(0)))
    partition.pass_time(2000)
    partition.fire()
    assert poll(partition) == [1]


@pytest.mark.parametrize("when", ["held", "lapsed"])
def test_nor_does_one_that_was_delivered_before_a_clock_went_back_and_was_cancelled_then(when: str) -> None:
    partition = keyed("aab")
    assert poll(partition, 1) == [0]
    if when == "held":
        cancel_anyway(partition, 0)
    partition.pass_time(SPAN)
    partition.lapse()
    if when == "lapsed":
        cancel_anyway(partition, 0)
    assert poll(partition) == [1, 2]


def cancel_anyway(partition: MemoryPartition, offset: int) -> None:
    partition.deliveries.apply(records.encode(Cancelled(pack(some(offset)))), 0)


# --- how much is read ahead


def test_only_as_much_is_read_as_it_takes() -> None:
    partition = keyed("abcdefgh" * 4)
    selection = partition.deliveries.selection(A, Mode.KEY)
    with pytest.raises(ReadAhead) as wanted:
        partition.sidecar.stage(A, Mode.KEY, 3)
    assert (wanted.value.first, wanted.value.end) == (0, 32)
    assert partition.staged(A, Mode.KEY, 3) is selection
    with pytest.raises(ReadAhead) as wanted:
        partition.sidecar.stage(A, Mode.KEY, ALL)
    assert 0 < wanted.value.first < 8


def test_what_another_poll_has_read_meanwhile_is_not_fed_twice() -> None:
    partition = keyed("aab")
    selection = partition.deliveries.selection(A, Mode.KEY)
    assert isinstance(selection, KeyedSelection)
    scan = codec.scan(partition.data.read(0, max_bytes=10**6).data)
    for _ in range(2):
        selection.feed(ReadAhead(0, 3, 0), scan, 3, (), partition.delivery(A), partition.deliveries)
    assert poll(partition) == [0, 2]
    ack(partition, 0)
    assert poll(partition) == [1]
    ack(partition, 1, 2)
    assert (poll(partition), partition.deliveries.low(A)) == ([], 3)


def test_reading_ahead_stops_when_too_many_stand_in_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_IN_LINE", 5)
    partition = keyed("a" * 20 + "b")
    assert poll(partition) == [0]
    served = [0]
    while 20 not in served:
        ack(partition, *served)
        served = poll(partition)
        assert served, "it goes on as soon as some are settled"
    assert partition.deliveries.low(A) is not None


# --- retention


def test_what_retention_took_holds_nobody_up() -> None:
    partition = keyed("aabab")
    partition.staged(A, Mode.KEY)
    partition.retain(2)
    assert poll(partition) == [2, 3]


@pytest.mark.parametrize("how", ["lapsed", "given back"])
def test_a_key_goes_on_when_retention_took_its_head_while_somebody_had_it(how: str) -> None:
    partition = keyed("aab")
    number, offsets = partition.poll(A, mode=Mode.KEY)
    assert offsets == [0, 2]
    ack(partition, 2)
    partition.retain(1)
    assert poll(partition) == [], "it may still be settled"
    if how == "lapsed":
        partition.pass_time(SPAN)
    else:
        partition.do(Nack(A, {number: some(0)}, RETRIES))
        partition.pass_time(1000)
    partition.lapse()
    assert poll(partition) == [1]


def test_a_key_goes_on_when_a_lease_says_that_its_head_is_gone() -> None:
    """It waits for its retry, and somebody else's lease says where the partition begins by now."""
    partition = keyed("aab")
    number, _ = partition.poll(A, 1, mode=Mode.KEY)
    partition.do(Nack(A, {number: some(0)}, RETRIES))
    partition.retain(1)
    assert poll(partition) == [2]
    assert poll(partition) == [1]


def test_a_delay_that_ends_below_the_beginning_of_the_log_is_not_looked_for() -> None:
    partition = MemoryPartition(message("b"), message("a", deliver_at=T0 + 1000), message("a"))
    assert poll(partition) == [0, 2]
    partition.retain(2)
    assert poll(partition) == []
    partition.pass_time(1020)
    assert partition.fire() == [1]
    assert poll(partition) == [], "and it ends"


# --- restarts and resets


def test_after_a_restart_what_was_delivered_is_still_the_head_of_its_key() -> None:
    partition = keyed("aabbcc")
    number, _ = partition.poll(A, mode=Mode.KEY)
    partition.do(Ack(A, {number: some(4)}))
    partition.do(Nack(A, {number: some(2)}, RETRIES))
    for _ in range(2):
        partition.restart()
        assert not {0, 1, 2, 3} & set(poll(partition))
        partition.sidecar.host.snapshot(partition.wall)
    partition.pass_time(SPAN)
    partition.lapse()
    assert poll(partition) == [0, 2, 5]
    ack(partition, 0, 2)
    assert poll(partition) == [1, 3]


def test_a_key_that_has_two_heads_after_a_restart_goes_on_when_both_are_settled() -> None:
    partition = keyed("aaab")
    selection = KeyedSelection(0, {0: 9, 1: 9}, BitMap64())
    scan = codec.scan(partition.data.read(0, max_bytes=10**6).data)
    for at in range(3):
        scan.key_hashes[at] = 9
    partition.do(Skip(A, 0, 2))
    selection.feed(ReadAhead(0, 4, 0), scan, 4, (), partition.delivery(A), partition.deliveries)
    assert list(offsets_of(selection.pick(ALL, EVENLY, 0))) == [3]
    selection.settle(some(0))
    assert not selection.has_staged
    selection.settle(some(1))
    assert list(offsets_of(selection.pick(ALL, EVENLY, 0))) == [2]


def test_after_a_reset_its_lines_are_made_anew() -> None:
    partition = keyed("aabb")
    poll(partition)
    partition.do(ResetTo(A, 1))
    assert poll(partition) == [1, 2]


def test_a_selection_with_somebody_in_line_is_not_idle() -> None:
    partition = keyed("aa")
    number, _ = partition.poll(A, mode=Mode.KEY)
    assert not partition.deliveries.selections[A].is_idle
    partition.do(Ack(A, {number: some(0)}))
    assert poll(partition) == [1]
    ack(partition, 1)
    assert A not in partition.deliveries.selections
