"""A log's lanes: which offsets are in which priority lane, across its segments, without a look at their records.

Each segment has a view of its own lanes; how many it has of each is remembered beside the segment, so that segments
without any are passed over. A view that is not in memory is not fetched here: whoever asks is told to load it, off the
loop, and to ask again.
"""

from bisect import bisect_right
from operator import attrgetter
from typing import NamedTuple

from pyroaring import BitMap, BitMap64

from goqueue.base.offset_sets import cut_from, ranged, to_absolute, to_relative
from goqueue.codec.layout import LANES
from goqueue.storage.derived import Derived
from goqueue.storage.lanes import LaneView, LaneViews
from goqueue.storage.log import Log
from goqueue.storage.segment import Segment

_BASE = attrgetter("base")


class ViewMissing(Exception):
    """A segment's view is needed and not in memory: load it with `Log.derived`."""

    def __init__(self, segment: Segment) -> None:
        super().__init__(segment.stem)
        self.segment = segment


class LaneCounts(NamedTuple):
    """How many offsets each lane has in one segment, or in what was asked of it."""

    others: list[int]
    """That are not among those to be left out."""
    among: list[int]
    end: int
    """Where to go on counting."""


class LaneIndex:
    """Looks at one log; keeps nothing."""

    __slots__ = ("_log",)

    def __init__(self, log: Log) -> None:
        self._log = log

    def after(self, lane: int, first: int, count: int) -> tuple[BitMap64, int]:
        """The first `count` offsets of a lane from `first` on, and up to where there are no others.

        Fewer when a view is missing further on: what was found is not lost while that one is loaded.
        """
        found = BitMap64()
        end = self._log.written.value
        at = first
        for segment in self._from(first):
            if segment.base >= end or len(found) >= count:
                break
            counts = segment.lane_counts
            if counts is None or counts[lane]:
                if segment.derived is None and at > first:
                    break
                members = self._lanes(segment)[lane]
                begin = members.rank(at - segment.base - 1) if at > segment.base else 0
                piece = members[begin : begin + count - len(found)]
                if piece:
                    found |= to_absolute(piece, segment.base)
            at = min(segment.end, end)
        cut_from(found, end)  # a view may be ahead of what is written
        if len(found) >= count:
            at = found.max() + 1
        return found, max(at, first)

    def sole(self, first: int, end: int) -> int | None:
        """The lane that has all offsets from `first` up to `end`, where that is seen at a glance: at the log's end."""
        segment = self._log.segments[-1]
        base = segment.base
        if segment.derived is not None and base <= first < end:
            for lane, members in enumerate(self._lanes(segment)):
                if members.contains_range(first - base, end - base):
                    return lane
        return None

    def has(self, lane: int, first: int) -> bool:
        """Whether there is one of a lane from `first` on."""
        segment = self._log.segments[-1]
        if segment.derived is None or first < segment.base:
            return bool(self.after(lane, first, 1)[0])
        members = self._lanes(segment)[lane]
        return bool(members) and members.max() >= first - segment.base

    def sort(self, offsets: BitMap64) -> tuple[list[BitMap64], int]:
        """By lane those that lie in the segment of the first of them, and where that ends.

        Those that are no longer there are in no lane.
        """
        first = offsets.min()
        segment = self._at(first)
        relative = to_relative(offsets & ranged(segment.base, segment.end), segment.base)
        by_lane = [to_absolute(members & relative, segment.base) for members in self._lanes(segment)]
        return by_lane, max(segment.end, first + 1)

    def count(self, first: int, end: int, *, without: BitMap64, among: BitMap64) -> LaneCounts:
        """In the segment of `first`, from there up to `end`: offsets that are not in `without`, and those in `among`.

        A view is needed only where these two do not settle it, and how many there are is not remembered.
        """
        segment = self._at(first)
        at, stop = max(first, segment.base), min(segment.end, end)
        if at >= stop:
            return LaneCounts([0] * LANES, [0] * LANES, end)
        return LaneCounts(self._others(segment, without, at, stop), self._shared(segment, among, at, stop), stop)

    def _others(self, segment: Segment, without: BitMap64, at: int, stop: int) -> list[int]:
        shared = without.range_cardinality(at, stop)
        if shared == stop - at:
            return [0] * LANES
        if not shared and segment.lane_counts is not None and (at, stop) == (segment.base, segment.end):
            return list(segment.lane_counts)
        there = [lane.range_cardinality(at - segment.base, stop - segment.base) for lane in self._lanes(segment)]
        return [count - less for count, less in zip(there, self._shared(segment, without, at, stop), strict=True)]

    def _shared(self, segment: Segment, offsets: BitMap64, at: int, stop: int) -> list[int]:
        if not offsets.range_cardinality(at, stop):
            return [0] * LANES
        relative = to_relative(offsets & ranged(at, stop), segment.base)
        return [lane.intersection_cardinality(relative) for lane in self._lanes(segment)]

    def next_present(self, offset: int) -> int:
        """The first offset from there on that has a record; the log's end when there is none."""
        end = self._log.written.value
        if self.sole(offset, offset + 1) is not None:
            return min(offset, end)
        for segment in self._from(offset):
            at = max(offset - segment.base, 0)
            found = [following for lane in self._lanes(segment) if (following := _next(lane, at)) is not None]
            if found:
                return min(segment.base + min(found), end)
        return end

    def _from(self, offset: int) -> tuple[Segment, ...]:
        segments = self._log.segments
        return segments[max(bisect_right(segments, offset, key=_BASE) - 1, 0) :]

    def _at(self, offset: int) -> Segment:
        segments = self._log.segments
        return segments[max(bisect_right(segments, offset, key=_BASE) - 1, 0)]

    def _lanes(self, segment: Segment) -> list[BitMap]:
        derived = segment.derived
        if derived is None:
            raise ViewMissing(segment)
        if segment.seal:
            return remember(segment, self._log.derived(segment)).lanes
        return _view(derived).lanes


def remember(segment: Segment, derived: Derived) -> LaneView:
    """A segment's view of its lanes; how many each has is kept beside the segment once that cannot change."""
    view = _view(derived)
    if segment.seal and segment.lane_counts is None:
        segment.lane_counts = tuple(view.counts)
    return view


def _view(derived: Derived) -> LaneView:
    view = derived.views[LaneViews.name]
    assert isinstance(view, LaneView)
    return view


def _next(members: BitMap, at: int) -> int | None:
    """The first member from `at` on."""
    if not members or members.max() < at:
        return None
    return members[members.rank(at - 1)] if at > 0 else members.min()
