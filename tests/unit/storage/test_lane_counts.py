"""How many offsets the lanes of a log have, less some: a segment at a time, and without a view where none is needed."""

from collections.abc import Iterable
from random import Random

import pytest
from pyroaring import BitMap64

from goqueue.model.record import Record
from goqueue.model.settings import LogSettings
from goqueue.storage.cleaner import clean
from goqueue.storage.lane_index import LaneIndex, ViewMissing
from goqueue.storage.log import Log
from tests.unit.storage.logs import T0, put
from tests.unit.storage.test_lane_index import forget_views, lanes_of, open_log

NONE = BitMap64()


def totals(
    log: Log, first: int, end: int, *, without: BitMap64 = NONE, among: BitMap64 = NONE, load: bool = False
) -> tuple[list[int], list[int]]:
    """Over all segments. With `load`, views that are missing are loaded, one at a time, and all others forgotten."""
    index, others, chosen = LaneIndex(log), [0] * 5, [0] * 5
    at = first
    while at < end:
        try:
            found = index.count(at, end, without=without, among=among)
        except ViewMissing as missing:
            assert load, "a view is needed"
            forget_views(log)
            log.derived(missing.segment)
            continue
        assert found.end > at
        others = [sum(pair) for pair in zip(others, found.others, strict=True)]
        chosen = [sum(pair) for pair in zip(chosen, found.among, strict=True)]
        at = found.end
    return others, chosen


def by_lane(lanes: list[int], offsets: Iterable[int]) -> list[int]:
    found = [0] * 5
    for offset in offsets:
        found[lanes[offset]] += 1
    return found


def test_each_segment_is_counted_by_itself() -> None:
    index = LaneIndex(lanes_of([2, 0, 2, 2], [0, 0, 2], [2, 0]))
    assert index.count(0, 9, without=NONE, among=NONE) == ([1, 0, 3, 0, 0], [0] * 5, 4)
    assert index.count(4, 9, without=NONE, among=NONE) == ([2, 0, 1, 0, 0], [0] * 5, 7)
    assert index.count(7, 9, without=NONE, among=NONE) == ([1, 0, 1, 0, 0], [0] * 5, 9)


def test_a_range_begins_and_ends_within_segments() -> None:
    log = lanes_of([2, 0, 2, 2], [0, 0, 2], [2, 0])
    assert totals(log, 1, 8) == ([3, 0, 4, 0, 0], [0] * 5)
    assert totals(log, 5, 6) == ([1, 0, 0, 0, 0], [0] * 5)
    assert totals(log, 6, 6) == ([0] * 5, [0] * 5)


def test_what_is_left_out_is_not_counted_and_what_is_asked_for_is_told() -> None:
    log = lanes_of([2, 0, 2, 2], [0, 0, 2], [2, 0])
    left_out, asked = BitMap64([0, 1, 4, 8, 100]), BitMap64([1, 8])
    assert totals(log, 0, 9, without=left_out, among=asked) == ([1, 0, 4, 0, 0], [2, 0, 0, 0, 0])


def test_beyond_the_log_there_is_nothing() -> None:
    index = LaneIndex(lanes_of([1, 1]))
    assert index.count(2, 50, without=NONE, among=NONE) == ([0] * 5, [0] * 5, 50)


def test_a_segment_that_is_counted_whole_or_not_at_all_needs_no_view() -> None:
    log = lanes_of([2] * 10, [1] * 10, [0] * 10, [3])
    totals(log, 0, 31, without=BitMap64([0, 10, 20]))  # somebody has looked, so how many there are is remembered
    forget_views(log)
    done = BitMap64(range(10, 20))
    assert totals(log, 0, 31, without=done) == ([10, 0, 10, 1, 0], [0] * 5)
    assert all(segment.derived is None for segment in log.segments[:-1])


@pytest.mark.parametrize(
    ("first", "without", "among"),
    [(0, [3], []), (1, [], []), (0, [], [3]), (0, range(10), [3])],
    ids=["in part", "from the middle", "asked for", "all of it, and asked for"],
)
def test_a_view_that_is_needed_is_named(first: int, without: Iterable[int], among: Iterable[int]) -> None:
    log = lanes_of([2] * 10, [1] * 10)
    totals(log, 0, 20, without=BitMap64([0]))
    forget_views(log)
    with pytest.raises(ViewMissing) as caught:
        LaneIndex(log).count(first, 20, without=BitMap64(without), among=BitMap64(among))
    assert caught.value.segment is log.segments[0]


def test_where_offsets_were_cleaned_away_nothing_is_counted() -> None:
    log = open_log(LogSettings(compact=True))
    for round_ in range(3):
        put(log, *(Record(key=b"%d" % key, value=b"v", priority=round_) for key in range(4)))
    log.roll()
    log.sync()
    put(log, Record(key=b"last", value=b"v", priority=4))
    clean(log, now=T0 + 10**9)
    there = [record.offset for record in log.records(0, max_bytes=10**6)]
    assert there == [8, 9, 10, 11], "the test needs a segment with holes"
    assert totals(log, 0, 13, load=True) == ([0, 0, 4, 0, 1], [0] * 5)
    assert totals(log, 0, 13, without=BitMap64([0, 9]), among=BitMap64([1, 9]), load=True) == (
        [0, 0, 3, 0, 1],
        [0, 0, 1, 0, 0],
    )


def test_it_is_the_same_as_counting_one_by_one_whatever_is_in_memory() -> None:
    for seed in range(100):
        rng = Random(seed)
        lanes = [rng.choice((0, 1, 2, 2, 2, 4)) for _ in range(rng.randrange(1, 80))]
        segments: list[list[int]] = [[]]
        for lane in lanes:
            if rng.random() < 0.1:
                segments.append([])
            segments[-1].append(lane)
        log = lanes_of(*segments)
        first = rng.randrange(len(lanes))
        end = rng.randrange(first, len(lanes)) + 1
        left_out = {offset for offset in range(len(lanes)) if rng.random() < rng.choice((0.0, 0.3, 1.0))}
        asked = {offset for offset in left_out if rng.random() < 0.5}
        if rng.random() < 0.5:
            totals(log, 0, len(lanes), without=BitMap64([0]))
        forget_views(log)
        expected = (
            by_lane(lanes, set(range(first, end)) - left_out),
            by_lane(lanes, set(range(first, end)) & asked),
        )
        found = totals(log, first, end, without=BitMap64(left_out), among=BitMap64(asked), load=True)
        assert found == expected, seed
