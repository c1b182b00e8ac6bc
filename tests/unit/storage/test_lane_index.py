"""A log's lanes across its segments: in order, in pieces of any size, and whose views are needed is said."""

from collections.abc import Sequence
from random import Random

import pytest
from pyroaring import BitMap64

from goqueue.model.record import Record
from goqueue.model.settings import LogSettings
from goqueue.storage.cleaner import clean
from goqueue.storage.lane_index import LaneIndex, ViewMissing, remember
from goqueue.storage.log import Log
from tests.support.memory_disk import MemoryDisk
from tests.unit.storage.logs import T0, put, stamped

HOUR = 3_600_000


def open_log(settings: LogSettings | None = None) -> Log:
    return Log.open("/logs/lanes", disk=MemoryDisk(), settings=settings or LogSettings())


def lanes_of(*segments: Sequence[int]) -> Log:
    """A log with a sealed segment for each row of lanes but the last."""
    log = open_log()
    for number, lanes in enumerate(segments):
        if number:
            log.roll()
            log.sync()
        if lanes:
            put(log, *(Record(value=b"v", priority=lane) for lane in lanes))
    return log


def forget_views(log: Log) -> None:
    for segment in log.segments[:-1]:
        segment.derived = None


def all_after(index: LaneIndex, lane: int, first: int, count: int, end: int) -> list[int]:
    """What a reader finds that goes on where it was told to."""
    found: list[int] = []
    at = first
    while at < end:
        some, following = index.after(lane, at, count)
        assert len(some) <= count
        assert following > at
        assert all(at <= offset < following for offset in some)
        found += some
        at = following
    return found


# --- after


def test_the_first_so_many_of_a_lane_are_found_across_segments() -> None:
    index = LaneIndex(lanes_of([2, 0, 2, 2], [0, 0, 2], [2, 0]))
    assert index.after(0, 0, 3) == (BitMap64([1, 4, 5]), 6)
    assert index.after(0, 6, 3) == (BitMap64([8]), 9)
    assert index.after(2, 1, 2) == (BitMap64([2, 3]), 4)
    assert index.after(4, 0, 3) == (BitMap64(), 9)
    assert index.after(2, 9, 3) == (BitMap64(), 9)


def test_a_first_in_the_middle_of_a_segment_leaves_out_what_is_before_it() -> None:
    index = LaneIndex(lanes_of([1] * 10, [1] * 10))
    assert [list(index.after(1, first, 1)[0]) for first in (0, 5, 9, 10, 19)] == [[0], [5], [9], [10], [19]]
    assert list(index.after(1, 7, 6)[0]) == [7, 8, 9, 10, 11, 12]


def test_every_offset_is_in_one_lane_however_one_asks() -> None:
    for seed in range(60):
        rng = Random(seed)
        lanes = [rng.choice((0, 1, 2, 2, 2, 4)) for _ in range(rng.randrange(1, 60))]
        segments: list[list[int]] = [[]]
        for lane in lanes:
            if rng.random() < 0.1:
                segments.append([])
            segments[-1].append(lane)
        index = LaneIndex(lanes_of(*segments))
        for lane in range(5):
            first = rng.randrange(len(lanes))
            expected = [offset for offset in range(first, len(lanes)) if lanes[offset] == lane]
            assert all_after(index, lane, first, rng.randrange(1, 9), len(lanes)) == expected, seed


def test_what_is_not_written_is_not_found_and_not_passed_over() -> None:
    """A view is folded before the written mark moves."""
    log = lanes_of([0, 2, 0])
    active = log.segments[-1]
    assert active.derived is not None
    block, scan = stamped(Record(priority=0), Record(priority=0), offset=3)
    active.derived.add(active.size, block, scan)
    index = LaneIndex(log)
    assert index.after(0, 0, 10) == (BitMap64([0, 2]), 3)
    assert index.after(0, 1, 2) == (BitMap64([2]), 3), "it goes on at the end, where the others will be"
    assert index.after(0, 3, 1) == (BitMap64(), 3)


# --- views that are not in memory


def test_a_view_that_is_not_in_memory_is_named() -> None:
    log = lanes_of([2, 2], [0, 2], [2])
    forget_views(log)
    index = LaneIndex(log)
    for ask in (
        lambda: index.after(2, 2, 5),
        lambda: index.sort(BitMap64([3])),
        lambda: index.next_present(2),
    ):
        with pytest.raises(ViewMissing) as missing:
            ask()
        assert missing.value.segment is log.segments[1]


def test_segments_that_have_none_of_a_lane_need_no_view_once_somebody_looked() -> None:
    log = lanes_of([2, 2], [2, 2], [0, 2], [2])
    for segment in log.segments:
        remember(segment, log.derived(segment))
    assert [segment.lane_counts for segment in log.segments] == [
        (0, 0, 2, 0, 0),
        (0, 0, 2, 0, 0),
        (1, 0, 1, 0, 0),
        None,  # it grows
    ]
    forget_views(log)
    assert LaneIndex(log).after(0, 0, 5) == (BitMap64(), 4), "up to where the next view is missing"
    with pytest.raises(ViewMissing) as missing:
        LaneIndex(log).after(0, 4, 5)
    assert missing.value.segment is log.segments[2]
    assert LaneIndex(log).after(1, 0, 5) == (BitMap64(), 7)
    log.derived(log.segments[2])
    assert LaneIndex(log).after(0, 0, 5) == (BitMap64([4]), 7)


def test_looking_is_enough_to_remember() -> None:
    log = lanes_of([2, 2], [0])
    assert log.segments[0].lane_counts is None
    LaneIndex(log).after(0, 0, 5)
    assert log.segments[0].lane_counts == (0, 0, 2, 0, 0)


# --- sort


def sort(index: LaneIndex, *offsets: int) -> tuple[list[list[int]], int]:
    by_lane, end = index.sort(BitMap64(offsets))
    return [list(lane) for lane in by_lane], end


def test_offsets_are_sorted_into_their_lanes() -> None:
    index = LaneIndex(lanes_of([2, 0, 4], [0, 1, 2], [2]))
    assert sort(index, 0, 1, 3, 4, 6) == ([[1], [], [0], [], []], 3)
    assert sort(index, 3, 4, 6) == ([[3], [4], [], [], []], 6)
    assert sort(index, 5) == ([[], [], [5], [], []], 6)
    assert sort(index, 99) == ([[], [], [], [], []], 100)


def test_only_the_segment_of_the_first_is_looked_at() -> None:
    log = lanes_of([2, 2], [2, 2], [2, 2], [2])
    log.segments[0].derived = log.segments[2].derived = None
    index = LaneIndex(log)
    assert sort(index, 2, 4)[0][2] == [2]
    assert sort(index, 3)[0][2] == [3]


def test_offsets_that_are_no_longer_there_are_in_no_lane() -> None:
    log = lanes_of([2, 2], [2, 2])
    log.truncate_prefix(2)
    assert sort(LaneIndex(log), 0, 1, 2, 9) == ([[], [], [2], [], []], 4)


# --- next_present


def test_the_next_record_is_the_offset_itself_where_nothing_is_missing() -> None:
    index = LaneIndex(lanes_of([2, 0], [1, 4], [3]))
    assert [index.next_present(offset) for offset in range(7)] == [0, 1, 2, 3, 4, 5, 5]


def test_what_was_cleaned_away_is_passed_to_the_next_record() -> None:
    log = open_log(LogSettings(compact=True))
    for keys in ("abab", "acba", "b"):
        put(log, *(Record(key=key.encode(), value=b"v") for key in keys))
        log.roll()
        log.sync()
    clean(log, T0 + HOUR)
    for segment in log.segments:
        log.derived(segment)
    index = LaneIndex(log)
    assert [index.next_present(offset) for offset in range(10)] == [5, 5, 5, 5, 5, 5, 7, 7, 8, 9]
    assert all_after(index, 2, 0, 2, 9) == [5, 7, 8]
    assert sort(index, 4, 5, 6, 7)[0][2] == [5, 7]


def test_an_empty_log_has_nothing() -> None:
    index = LaneIndex(open_log())
    assert (index.next_present(0), index.after(2, 0, 5)) == (0, (BitMap64(), 0))
    assert sort(index, 0) == ([[], [], [], [], []], 1)


def test_a_piece_out_of_the_middle_of_many_is_found() -> None:
    log = open_log()
    put(log, *(Record(priority=number % 2) for number in range(100_000)))
    assert LaneIndex(log).after(1, 50_000, 3) == (BitMap64([50_001, 50_003, 50_005]), 50_006)


# --- at the end of a log


def test_the_lane_of_all_that_is_new_is_seen_at_a_glance() -> None:
    index = LaneIndex(lanes_of([2, 2], [0, 2, 2, 2]))
    assert index.sole(3, 6) == 2
    assert index.sole(2, 3) == 0
    assert index.sole(2, 4) is None, "there are two"
    assert index.sole(1, 6) is None, "it lies in two segments"
    assert index.sole(6, 6) is None, "there is nothing"
    assert index.sole(5, 7) is None, "there is no such offset"


def test_whether_a_lane_has_one_from_here_on() -> None:
    index = LaneIndex(lanes_of([2, 0], [2, 1, 2]))
    assert [index.has(0, first) for first in (0, 1, 2, 5)] == [True, True, False, False]
    assert [index.has(1, first) for first in (0, 3, 4)] == [True, True, False]
