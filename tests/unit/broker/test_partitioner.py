"""Which partition a message goes to: the same everywhere, for ever."""

from collections import Counter

import mmh3
import pytest
from hypothesis import given
from hypothesis import strategies as st

from goqueue.broker.partitioner import RoundRobin
from goqueue.codec.partitioning import partition_of

# Keys that are in a partition one day must be looked for there the next: never change a line.
FROZEN = {b"": 0, b"a": 50, b"ab": 91, b"abc": 2, b"abcd": 78, b"user-1": 59, "ключ".encode(): 26, b"\xff" * 4: 48}


@pytest.mark.parametrize(("key", "partition"), FROZEN.items())
def test_a_key_has_its_partition_for_good(key: bytes, partition: int) -> None:
    assert partition_of(key, 100) == partition


@given(st.binary(max_size=300), st.integers(1, 1000))
def test_the_hash_is_murmur3_as_an_unsigned_number(key: bytes, partitions: int) -> None:
    assert partition_of(key, partitions) == mmh3.hash(key, 0, signed=False) % partitions


def test_a_topic_with_one_partition_has_no_choice() -> None:
    assert {partition_of(b"%d" % number, 1) for number in range(100)} == {0}


def test_keys_are_spread_over_the_partitions() -> None:
    found = Counter(partition_of(b"user-%d" % number, 12) for number in range(12_000))
    assert len(found) == 12
    assert all(800 < count < 1200 for count in found.values())


def test_batches_without_keys_take_turns() -> None:
    turns = RoundRobin()
    assert [turns.next(3) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_turns_go_on_over_partitions_that_were_added() -> None:
    turns = RoundRobin()
    assert [turns.next(2) for _ in range(3)] == [0, 1, 0]
    assert sorted(turns.next(5) for _ in range(5)) == [0, 1, 2, 3, 4]


def test_each_topic_has_turns_of_its_own() -> None:
    one, other = RoundRobin(), RoundRobin()
    one.next(3)
    assert other.next(3) == 0
