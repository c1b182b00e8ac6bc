"""The cache of indexes and views: about as much memory as it may, the least recently used dropped first."""

from goqueue.storage.cache import DerivedCache
from goqueue.storage.derived import BUILT_IN, Derived
from goqueue.storage.segment import Segment
from tests.unit.storage.logs import message, stamped


def loaded(base: int) -> Segment:
    derived = Derived(base, 1, BUILT_IN)
    derived.add(0, *stamped(*map(message, range(20)), offset=base))
    return Segment("log", base, derived)


SIZE = loaded(0).derived.size if loaded(0).derived else 0  # type: ignore[union-attr]


def in_memory(segments: list[Segment]) -> list[int]:
    return [segment.base for segment in segments if segment.derived is not None]


def test_what_fits_stays() -> None:
    cache = DerivedCache(3 * SIZE)
    segments = [loaded(base) for base in range(3)]
    for segment in segments:
        cache.touch(segment)
    assert in_memory(segments) == [0, 1, 2]


def test_the_least_recently_used_goes_first() -> None:
    cache = DerivedCache(3 * SIZE)
    segments = [loaded(base) for base in range(4)]
    for segment in segments[:3]:
        cache.touch(segment)
    cache.touch(segments[0])
    cache.touch(segments[3])
    assert in_memory(segments) == [0, 2, 3]


def test_many_segments_keep_memory_flat() -> None:
    cache = DerivedCache(5 * SIZE)
    segments = [loaded(base) for base in range(100)]
    for segment in segments:
        cache.touch(segment)
        assert len(in_memory(segments[: segment.base + 1])) <= 5
    assert in_memory(segments) == [95, 96, 97, 98, 99]


def test_one_segment_larger_than_the_limit_is_still_kept() -> None:
    cache = DerivedCache(1)
    first, second = loaded(0), loaded(1)
    cache.touch(first)
    assert first.derived is not None
    cache.touch(second)
    assert in_memory([first, second]) == [1]


def test_a_dropped_segment_no_longer_counts() -> None:
    cache = DerivedCache(2 * SIZE)
    segments = [loaded(base) for base in range(3)]
    cache.touch(segments[0])
    cache.touch(segments[1])
    cache.drop(segments[0])
    cache.drop(segments[0])
    cache.touch(segments[2])
    assert in_memory(segments) == [0, 1, 2]


def test_an_evicted_segment_counts_again_once_it_is_loaded_again() -> None:
    cache = DerivedCache(2 * SIZE)
    segments = [loaded(base) for base in range(3)]
    for segment in segments:
        cache.touch(segment)
    segments[0].derived = loaded(0).derived
    cache.touch(segments[0])
    assert in_memory(segments) == [0, 2]
