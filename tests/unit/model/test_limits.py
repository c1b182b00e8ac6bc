"""Limits that depend on each other or on a format's field widths."""

from goqueue.codec.layout import HEADER_BYTES
from goqueue.model import limits


def test_a_block_holds_the_largest_record() -> None:
    assert limits.MAX_RECORD_BYTES <= limits.MAX_BLOCK_BYTES <= limits.MAX_READ_BYTES


def test_positions_and_relative_offsets_fit_the_indexes_four_bytes() -> None:
    assert limits.MAX_SEGMENT_BYTES + limits.MAX_BLOCK_BYTES < 2**32
    assert limits.MAX_SEGMENT_SPAN < 2**32


def test_a_segment_holds_no_more_records_than_its_span() -> None:
    assert limits.MAX_SEGMENT_BYTES // HEADER_BYTES < limits.MAX_SEGMENT_SPAN
