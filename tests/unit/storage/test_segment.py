"""A segment in memory: what it answers for, and how it grows."""

from goqueue.storage.segment import Segment, stem
from goqueue.storage.state import SealedSegment, Trait
from goqueue.storage.walk import Damage, Extent

ENTRY = SealedSegment(100, 200, 5000, 80, 1_000, 2_000, 7, int(Trait.CLEANED))


def test_a_segments_files_are_named_after_its_base() -> None:
    assert stem("logs/a", 42) == "logs/a/00000000000000000042"
    assert Segment("logs/a", 42).key.path == "logs/a/00000000000000000042.log"


def test_two_segments_at_one_path_are_two_lives() -> None:
    first, second = Segment("log", 0), Segment("log", 0)
    assert first.key.path == second.key.path
    assert first.key != second.key


def test_a_new_segment_is_empty_and_growing_keeps_its_first_time() -> None:
    segment = Segment("log", 100)
    assert (segment.base, segment.end, segment.size, segment.count, segment.seal) == (100, 100, 0, 0, 0)
    segment.grow(500, 105, 5, (1_000, 1_000))
    segment.grow(900, 109, 4, (1_500, 1_600))
    assert (segment.end, segment.size, segment.count) == (109, 900, 9)
    assert (segment.first_timestamp, segment.last_timestamp) == (1_000, 1_600)


def test_a_sealed_segment_comes_back_from_its_entry() -> None:
    segment = Segment.sealed("log", ENTRY)
    assert segment.entry(ENTRY.seal) == ENTRY
    assert (segment.synced_size, segment.derived, segment.damage) == (5000, None, None)


def test_gaps_are_expected_in_a_cleaned_segment_only() -> None:
    assert Segment.sealed("log", ENTRY).extent == Extent(100, 200, 5000, contiguous=False)
    plain = SealedSegment(100, 200, 5000, 100, 1_000, 2_000, 7, int(Trait.COMPACTED))
    assert Segment.sealed("log", plain).extent == Extent(100, 200, 5000, contiguous=True)


def test_traits_keep_their_bits() -> None:
    assert {trait.name: trait.value for trait in Trait} == {"CLEANED": 1, "COMPACTED": 2}


def test_damage_is_kept_in_the_order_it_was_found() -> None:
    segment = Segment("log", 0)
    assert segment.damage is None
    segment.damage = [Damage(1, 2, 10, 20, "a"), Damage(5, 6, 50, 60, "b")]
    assert [damage.first for damage in segment.damage] == [1, 5]
