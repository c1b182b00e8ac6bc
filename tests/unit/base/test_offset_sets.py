"""Sets of offsets: what is cut, counted, packed and shifted is what a plain set would have."""

from array import array
from itertools import pairwise
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyroaring import BitMap, BitMap64

from goqueue.base.offset_sets import (
    column,
    cut_below,
    cut_from,
    first_gap,
    gathered,
    pack,
    ranged,
    runs,
    to_absolute,
    to_relative,
    unpack,
    within,
)

FAR = 2**62
small_sets = st.sets(st.integers(0, 60)) | st.sets(st.integers(0, 2**33)) | st.sets(st.integers(0, FAR))
bounds = st.integers(0, 70) | st.integers(0, FAR)


def test_a_range_has_its_first_and_not_its_end() -> None:
    assert list(ranged(3, 6)) == [3, 4, 5]
    assert list(ranged(2**32 - 1, 2**32 + 1)) == [2**32 - 1, 2**32]
    assert [len(ranged(first, end)) for first, end in ((3, 3), (5, 2))] == [0, 0]


@given(small_sets)
@example(set())
@example({2**32 - 1, 2**32, 2**32 + 1})
def test_a_column_makes_a_set_and_a_set_a_column(offsets: set[int]) -> None:
    made = gathered(array("q", sorted(offsets)))
    assert set(made) == offsets
    assert column(made) == array("q", sorted(offsets))


@given(small_sets, bounds, bounds)
def test_what_is_cut_is_gone_and_the_rest_stays(offsets: set[int], first: int, end: int) -> None:
    whole = BitMap64(offsets)
    assert set(within(whole, first, end)) == {offset for offset in offsets if first <= offset < end}
    assert set(whole) == offsets, "it is another one"
    above, below = whole.copy(), whole.copy()
    cut_below(above, first)
    cut_from(below, end)
    assert set(above) == {offset for offset in offsets if offset >= first}
    assert set(below) == {offset for offset in offsets if offset < end}


# --- bytes


@given(small_sets)
def test_packed_and_unpacked_it_is_the_same(offsets: set[int]) -> None:
    assert set(unpack(pack(BitMap64(offsets)))) == offsets


def test_a_long_row_is_packed_into_a_few_bytes() -> None:
    assert len(pack(ranged(10**12, 10**12 + 60_000))) < 40


@pytest.mark.parametrize("strange", [b"", b"x", b"\1" + bytes(7), b"\1" + bytes(20), b"\xff" * 64])
def test_bytes_that_are_no_set_are_refused(strange: bytes) -> None:
    with pytest.raises(ValueError, match=r"deserialize|no set of offsets"):
        unpack(strange)


# --- segments


@given(
    base=st.sampled_from([0, 1, 5, 2**16, 2**32 - 10, 2**32, 2**32 + 7, 5 * 2**32 - 1, 2**61]) | st.integers(0, 2**61),
    relative=st.sets(st.integers(0, 40), min_size=1) | st.sets(st.integers(0, 2**32 - 1)),
)
def test_offsets_of_a_segment_become_offsets_of_the_log_and_back(base: int, relative: set[int]) -> None:
    absolute = to_absolute(BitMap(relative), base)
    assert set(absolute) == {base + offset for offset in relative}
    assert set(to_relative(absolute, base)) == relative


def test_a_row_across_four_billion_is_split_where_the_bytes_are() -> None:
    base = 2**32 - 100
    assert list(to_absolute(BitMap(range(90, 110)), base)) == list(range(base + 90, base + 110))
    gaps = BitMap([0, 99, 100, 150])
    assert list(to_absolute(gaps, base)) == [base, base + 99, base + 100, base + 150]
    assert to_relative(to_absolute(gaps, base), base) == gaps


# --- looking


@given(small_sets)
@example(set())
@example({0})
@example({2**32 - 1, 2**32})
def test_runs_are_the_rows_without_a_gap(offsets: set[int]) -> None:
    found = list(runs(BitMap64(offsets)))
    assert all(first < end for first, end in found)
    assert [offset for first, end in found for offset in range(first, end)] == sorted(offsets)
    assert all(end < following for (_, end), (following, _) in pairwise(found))


def test_the_first_gap_is_the_first_that_is_not_there() -> None:
    for seed in range(300):
        rng = Random(seed)
        offsets = {offset for offset in range(80) if rng.random() < rng.choice((0.5, 0.9, 0.99))}
        for at in range(81):
            expected = next(offset for offset in range(at, 82) if offset not in offsets)
            assert first_gap(BitMap64(offsets), at) == expected, seed


@pytest.mark.parametrize("length", [1, 2, 3, 4, 63, 64, 65, 65_535, 65_536, 65_537, 3_000_000])
@pytest.mark.parametrize("first", [0, 1, 2**32 - 5])
def test_the_first_gap_behind_a_row_of_any_length(first: int, length: int) -> None:
    row = ranged(first, first + length)
    row.add(first + length + 1)
    assert first_gap(row, first) == first + length
    assert first_gap(row, first + length) == first + length
