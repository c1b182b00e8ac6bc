"""Producer fields folded into runs: what extends one, what ends one, and scans that do not fit the block."""

from array import array
from collections.abc import Iterable
from types import ModuleType

import pytest

from goqueue.codec.layout import HEADER_BYTES, Problem, Scan
from goqueue.model.record import Extension, Producer, Record
from tests.unit.codec.samples import SAMPLES, extended

LAST_SEQUENCE = 2**31 - 1
LAST_OFFSET = 2**63 - 1
Run = tuple[int, int, int, int, int, int]


def record(producer_id: int, epoch: int, sequence: int, offset: int, timestamp: int = 0) -> Record:
    return Record(offset, timestamp, extension=Extension(producer=Producer(producer_id, epoch, sequence)))


def runs(codec: ModuleType, records: Iterable[Record]) -> list[Run]:
    block = codec.encode(records)
    found: list[Run] = codec.producer_runs(block, codec.scan(block))
    return found


def test_a_block_of_one_producer_is_one_run(codec: ModuleType) -> None:
    records = [record(7, 1, 100 + at, 50 + at, 1_000 + at) for at in range(40)]
    assert runs(codec, records) == [(7, 1, 100, 50, 40, 1_039)]


def test_a_stamped_block_is_one_run_even_where_the_sequence_wraps(codec: ModuleType) -> None:
    block = codec.encode([record(0, 0, 0, 0)] * 5)
    scan = codec.stamp(block, offset=20, timestamp=9, producer=Producer(-3, -4, LAST_SEQUENCE - 1))
    assert codec.producer_runs(block, scan) == [(-3, -4, LAST_SEQUENCE - 1, 20, 5, 9)]


def test_the_last_timestamp_is_that_of_the_last_record_of_the_run(codec: ModuleType) -> None:
    records = [record(1, 1, 0, 0, 30), record(1, 1, 1, 1, 10), record(2, 1, 0, 2, 20)]
    assert runs(codec, records) == [(1, 1, 0, 0, 2, 10), (2, 1, 0, 2, 1, 20)]


@pytest.mark.parametrize(
    "second",
    [
        (8, 1, 11, 101),
        (7, 2, 11, 101),
        (7, 0, 11, 101),
        (7, 1, 12, 101),
        (7, 1, 10, 101),
        (7, 1, 0, 101),
        (7, 1, 11, 102),
        (7, 1, 11, 100),
        (7, 1, 11, 99),
    ],
    ids=["id", "next epoch", "last epoch", "gap", "again", "from 0", "offset gap", "same offset", "offset back"],
)
def test_whatever_is_not_next_begins_a_new_run(codec: ModuleType, second: tuple[int, int, int, int]) -> None:
    assert runs(codec, [record(7, 1, 10, 100), record(*second)]) == [(7, 1, 10, 100, 1, 0), (*second, 1, 0)]


@pytest.mark.parametrize("between", [Record(101), Record(101, extension=Extension(transaction=1))])
def test_a_record_without_producer_fields_ends_the_run(codec: ModuleType, between: Record) -> None:
    first, second = record(7, 1, 10, 100, 1), record(7, 1, 11, 101, 2)
    expected = [(7, 1, 10, 100, 1, 1), (7, 1, 11, 101, 1, 2)]
    assert runs(codec, [between, first, between, between, second, between]) == expected


def test_other_fields_and_lanes_do_not_matter(codec: ModuleType) -> None:
    producers = [Producer(7, 1, sequence) for sequence in range(3)]
    records = [
        Record(0, 5, b"k", b"v", 0, extension=Extension(deliver_at=1, event_time=2, producer=producers[0])),
        Record(1, 6, priority=4, headers=(("a", b"b"),), extension=Extension(producer=producers[1], blob=b"blob")),
        Record(2, 7, control=True, extension=Extension(expires_at=3, producer=producers[2], transaction=9)),
    ]
    assert runs(codec, records) == [(7, 1, 0, 0, 3, 7)]


def test_interleaved_producers_make_a_run_each_time(codec: ModuleType) -> None:
    records = [record(at % 2, 0, at // 2, at) for at in range(6)]
    assert runs(codec, records) == [(at % 2, 0, at // 2, at, 1, 0) for at in range(6)]


def test_numbers_at_their_limits_do_not_overflow(codec: ModuleType) -> None:
    low, high = -LAST_OFFSET - 1, LAST_OFFSET
    records = [
        record(low, -(2**15), LAST_SEQUENCE, high, high),
        record(low, -(2**15), 0, low, low),
        record(high, 2**15 - 1, -1, low, low),
        record(high, 2**15 - 1, 0, low + 1, low),
        record(high, 2**15 - 1, -(2**31), low + 2, high),
    ]
    assert runs(codec, records) == [
        (low, -(2**15), LAST_SEQUENCE, high, 1, high),
        (low, -(2**15), 0, low, 1, low),
        (high, 2**15 - 1, -1, low, 2, low),
        (high, 2**15 - 1, -(2**31), low + 2, 1, high),
    ]


def test_without_producers_there_are_no_runs(codec: ModuleType) -> None:
    assert runs(codec, []) == []
    assert runs(codec, [Record(), *SAMPLES[:4], Record(extension=Extension(blob=b"b"))]) == []


def one(position: int, flags: int = 1) -> Scan:
    long = array("q", [0])
    return Scan(
        array("I", [position]), long, long, array("B", [flags]), array("B", [0]), array("I", [0]), 0, Problem.NONE
    )


def test_a_scan_of_another_block_never_leads_outside_this_one(codec: ModuleType) -> None:
    block = codec.encode([record(1, 2, 3, 4)])
    assert codec.producer_runs(block, one(0)) == [(1, 2, 3, 0, 1, 0)]
    for position in (len(block) - HEADER_BYTES - 3, len(block), 2**32 - 1):
        with pytest.raises(ValueError, match="not of this block"):
            codec.producer_runs(block, one(position))
    for cut in range(len(block)):
        with pytest.raises(ValueError, match="not of this block"):
            codec.producer_runs(block[:cut], one(0))
    assert codec.producer_runs(b"", one(2**32 - 1, flags=0)) == []


def test_half_of_the_producer_fields_are_none(codec: ModuleType) -> None:
    """No scan of this block has such a record; one of another block may lead here."""
    for mask in (b"\x00\x08", b"\x00\x10"):
        assert codec.producer_runs(extended(mask + bytes(8)), one(0)) == []


def test_a_scan_with_columns_of_different_lengths_is_refused(codec: ModuleType) -> None:
    block = codec.encode([record(1, 2, 3, 4)])
    for column in ("positions", "offsets", "timestamps", "flags"):
        scan = codec.scan(block)
        getattr(scan, column).append(0)
        with pytest.raises(ValueError, match="columns of different lengths"):
            codec.producer_runs(block, scan)
