"""Transactions folded into runs: what extends one, what ends one, and scans that do not fit the block."""

from array import array
from collections.abc import Iterable
from types import ModuleType

import pytest

from goqueue.codec.layout import HEADER_BYTES, Flag, Problem, Scan
from goqueue.model.record import Extension, Producer, Record

RECORDS, ABORT, COMMIT = 0, int(Flag.CONTROL), int(Flag.CONTROL | Flag.COMMIT)


def record(transaction: int | None, offset: int, *, control: bool = False, commit: bool = False) -> Record:
    return Record(offset, extension=Extension(event_time=3, transaction=transaction), control=control, commit=commit)


def runs(codec: ModuleType, records: Iterable[Record]) -> list[tuple[int, int, int, int]]:
    block = codec.encode(records)
    found: list[tuple[int, int, int, int]] = codec.transaction_runs(block, codec.scan(block))
    return found


def test_a_block_of_one_transaction_is_one_run(codec: ModuleType) -> None:
    block = codec.encode([Record(extension=Extension(producer=Producer(0, 0, 0), transaction=9))] * 40)
    scan = codec.stamp(block, offset=50, timestamp=1, producer=Producer(7, 1, 100))
    assert codec.transaction_runs(block, scan) == [(9, 50, 40, RECORDS)]


def test_a_run_ends_at_another_transaction_a_gap_and_a_message_without_one(codec: ModuleType) -> None:
    records = [record(1, 0), record(1, 1), record(2, 2), record(2, 4), Record(5), record(2, 6), record(None, 7)]
    assert runs(codec, records) == [(1, 0, 2, 0), (2, 2, 1, 0), (2, 4, 1, 0), (2, 6, 1, 0)]


def test_markers_are_runs_of_their_own(codec: ModuleType) -> None:
    records = [record(1, 0), record(1, 1, control=True, commit=True), record(2, 2, control=True), record(2, 3)]
    assert runs(codec, records) == [(1, 0, 1, RECORDS), (1, 1, 1, COMMIT), (2, 2, 1, ABORT), (2, 3, 1, RECORDS)]


def test_none_where_nothing_has_a_transaction(codec: ModuleType) -> None:
    assert runs(codec, [Record(0), record(None, 1)]) == []


def test_a_scan_that_is_not_of_the_block_is_refused(codec: ModuleType) -> None:
    block = codec.encode([record(1, 0)])
    scan = codec.scan(block)
    short = Scan(
        scan.positions, array("q"), scan.timestamps, scan.flags, scan.lanes, scan.key_hashes, scan.end, Problem.NONE
    )
    with pytest.raises(ValueError, match="columns of different lengths"):
        codec.transaction_runs(block, short)
    with pytest.raises(ValueError, match="not of this block"):
        codec.transaction_runs(block[:HEADER_BYTES], scan)
