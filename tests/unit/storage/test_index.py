"""Sparse indexes: golden bytes, and look-ups that agree with a plain sorted list."""

from array import array
from bisect import bisect_left, bisect_right

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goqueue.storage.index import Interval, OffsetIndex, TimeIndex

OFFSETS_GOLDEN = bytes.fromhex("00000002 0000000000000007 0000000000000400".replace(" ", ""))
"""Two points: offset 0 at byte 0, offset 7 at byte 1024."""
TIMES_GOLDEN = bytes.fromhex("00000002 0000018bcfe56800 0000018bcfe56805 00000000 00000007".replace(" ", ""))
"""Two points: offset 0 at 1,700,000,000,000 ms, offset 7 five milliseconds later."""


def offset_index(*points: tuple[int, int]) -> OffsetIndex:
    index = OffsetIndex()
    for offset, position in points:
        index.extend(array("I", [offset]), array("I", [position]))
    return index


def time_index(*points: tuple[int, int]) -> TimeIndex:
    index = TimeIndex()
    if points:
        index.extend(array("q", [time for time, _ in points]), array("I", [offset for _, offset in points]))
    return index


def test_the_offset_index_has_its_golden_bytes() -> None:
    index = offset_index((0, 0), (7, 1024))
    assert index.to_bytes() == OFFSETS_GOLDEN
    read = OffsetIndex.from_bytes(OFFSETS_GOLDEN)
    assert (read.offsets.tolist(), read.positions.tolist()) == ([0, 7], [0, 1024])


def test_the_time_index_has_its_golden_bytes() -> None:
    index = time_index((1_700_000_000_000, 0), (1_700_000_000_000, 3), (1_700_000_000_005, 7))
    assert index.to_bytes() == TIMES_GOLDEN
    read = TimeIndex.from_bytes(TIMES_GOLDEN)
    assert (read.timestamps.tolist(), read.offsets.tolist()) == ([1_700_000_000_000, 1_700_000_000_005], [0, 7])


@pytest.mark.parametrize("golden", [OFFSETS_GOLDEN, TIMES_GOLDEN], ids=["offsets", "times"])
def test_bytes_that_do_not_add_up_are_refused(golden: bytes) -> None:
    read = OffsetIndex.from_bytes if golden is OFFSETS_GOLDEN else TimeIndex.from_bytes
    for size in range(4, len(golden)):
        with pytest.raises(ValueError, match=r"columns differ|bytes length"):
            read(golden[:size])
    with pytest.raises(ValueError, match="columns differ"):
        read(golden + bytes(8))


def test_an_empty_index_says_the_whole_segment() -> None:
    assert OffsetIndex().find(5) == Interval(0, None)
    assert OffsetIndex().last_position is None
    assert TimeIndex().find(0) is None


def test_an_offset_lies_between_the_point_at_or_before_it_and_the_next() -> None:
    index = offset_index((0, 0), (10, 500), (20, 1000))
    assert [index.find(offset) for offset in (0, 9, 10, 19, 20, 99)] == [
        Interval(0, 500),
        Interval(0, 500),
        Interval(500, 1000),
        Interval(500, 1000),
        Interval(1000, None),
        Interval(1000, None),
    ]
    assert [index.before(offset) for offset in (0, 10, 20)] == [Interval(0, 0), Interval(0, 500), Interval(500, 1000)]


def test_a_time_is_at_or_before_the_first_point_that_has_it() -> None:
    index = time_index((100, 0), (100, 5), (200, 10), (200, 15), (300, 20))
    assert [index.find(time) for time in (0, 100, 101, 200, 201, 300, 301)] == [0, 0, 10, 10, 20, 20, None]


steps = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 5000)), max_size=60)


@given(steps, st.integers(0, 4000))
def test_offset_lookups_agree_with_a_sorted_list(steps: list[tuple[int, int]], wanted: int) -> None:
    points = []
    offset = position = 0
    for by_offset, by_position in steps:
        points.append((offset, position))
        offset, position = offset + by_offset, position + by_position
    index = OffsetIndex.from_bytes(offset_index(*points).to_bytes())
    after = bisect_right([point[0] for point in points], wanted)
    start = points[after - 1][1] if after else 0
    assert index.find(wanted) == Interval(start, points[after][1] if after < len(points) else None)
    for point, (own, at) in enumerate(points):
        assert index.before(own) == Interval(points[point - 1][1] if point else 0, at)
    assert index.last_position == (points[-1][1] if points else None)


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), max_size=20),
    st.integers(-1, 70),
)
def test_time_lookups_agree_with_a_sorted_list(batches: list[list[int]], wanted: int) -> None:
    """However the points arrive in batches, with equal times within and between them."""
    index = TimeIndex()
    points: list[tuple[int, int]] = []
    time = 0
    for batch in batches:
        added: list[tuple[int, int]] = []
        for step in batch:
            time += step
            added.append((time, 10 * (len(points) + len(added))))
        index.extend(array("q", [point[0] for point in added]), array("I", [point[1] for point in added]))
        points += added
    at = bisect_left([point[0] for point in points], wanted)
    expected = points[at][1] if at < len(points) else None
    assert index.find(wanted) == expected
    assert TimeIndex.from_bytes(index.to_bytes()).find(wanted) == expected
    assert len(index.timestamps) == len({point[0] for point in points})
