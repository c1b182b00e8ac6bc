"""The lane view: every offset in its lane, however the blocks came, live or read back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from goqueue import codec
from goqueue.model.record import Record
from goqueue.storage.lanes import LaneView, LaneViews
from tests.unit.storage.logs import stamped

# Per lane: length, then a portable roaring bitmap: offset 1, none, offsets 0 2 3, none, a run of 4 to 9.
GOLDEN = bytes.fromhex(
    "00000012 3a300000 01000000 00000000 10000000 0100"
    "00000008 3a300000 00000000"
    "00000016 3a300000 01000000 00000200 10000000 0000 0200 0300"
    "00000008 3a300000 00000000"
    "0000000f 3b300000 01 0000 0500 0100 0400 0500".replace(" ", "")
)


def fold(lanes: list[int], *, base: int = 0, first: int = 0, block: int = 1000) -> LaneView:
    view = LaneViews().empty(base)
    for start in range(0, len(lanes), block):
        records = [Record(priority=lane) for lane in lanes[start : start + block]]
        view.on_append(*stamped(*records, offset=first + start))
    return view


def contents(view: LaneView) -> list[list[int]]:
    return [list(lane) for lane in view.lanes]


def test_the_bytes_are_the_golden_ones() -> None:
    view = fold([2, 0, 2, 2, 4, 4, 4, 4, 4, 4])
    assert view.to_bytes() == GOLDEN
    assert contents(LaneViews().load(0, GOLDEN)) == [[1], [], [0, 2, 3], [], [4, 5, 6, 7, 8, 9]]


def test_a_uniform_block_is_one_range() -> None:
    view = fold([3] * 500, base=1000, first=1200)
    assert contents(view) == [[], [], [], list(range(200, 700)), []]
    assert view.counts == [0, 0, 0, 500, 0]


@pytest.mark.parametrize("block", [1, 2, 7, 1000])
def test_mixed_lanes_are_the_same_in_blocks_of_any_size(block: int) -> None:
    lanes = [number * number % 5 for number in range(100)]
    assert contents(fold(lanes, block=block)) == [
        [number for number in range(100) if lanes[number] == lane] for lane in range(5)
    ]


@pytest.mark.parametrize("uniform", [True, False])
def test_gaps_in_the_offsets_stay_gaps(uniform: bool) -> None:
    blocks = [
        stamped(Record(priority=2 if uniform else offset % 5), offset=offset)[0] for offset in (100, 103, 104, 109)
    ]
    joined = b"".join(blocks)
    view = LaneViews().empty(100)
    view.on_append(joined, codec.scan(joined))
    expected: list[list[int]] = [[], [], [0, 3, 4, 9], [], []] if uniform else [[0], [], [], [3], [4, 9]]
    assert contents(view) == expected


def test_a_view_that_was_saved_equals_one_that_was_kept() -> None:
    view = fold([number % 3 for number in range(5000)])
    read = LaneViews().load(0, view.to_bytes())
    assert read == view
    assert read.counts == [1667, 1667, 1666, 0, 0]
    assert read != fold([number % 3 for number in range(4999)])
    assert view != object()


def test_a_view_read_back_goes_on_growing() -> None:
    whole = fold([1, 2, 3, 1, 2, 3])
    half = LaneViews().load(0, fold([1, 2, 3]).to_bytes())
    half.on_append(*stamped(*(Record(priority=lane) for lane in (1, 2, 3)), offset=3))
    assert half == whole


@pytest.mark.parametrize("data", [b"", b"\0\0\0\0", b"\0\0\0\5hello" * 5, GOLDEN[:-1]])
def test_bytes_that_are_no_lanes_are_refused(data: bytes) -> None:
    with pytest.raises((ValueError, IndexError)):
        LaneViews().load(0, data)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=300), st.integers(1, 50))
def test_every_record_is_in_exactly_its_lane(lanes: list[int], block: int) -> None:
    view = LaneViews().load(0, fold(lanes, block=block).to_bytes())
    assert sum(view.counts) == len(lanes)
    for offset, lane in enumerate(lanes):
        assert [offset in one for one in view.lanes] == [number == lane for number in range(5)]


def test_its_size_counts_every_kind_of_container() -> None:
    """What the cache is bounded by must grow with the memory: bitmaps and runs too, not only small lists."""
    alternating = LaneView(0, [BitMap(range(lane, 200_000, 5)) for lane in range(5)])
    assert alternating.size >= len(alternating.to_bytes()) // 2
