"""The offsets a group is done with: a low mark and a bitmap above it."""

from random import Random

import pytest
from pyroaring import BitMap64

from goqueue.base.offset_sets import ranged
from goqueue.delivery.settled import SettledSet

MILLION = 1_000_000


def made(low: int, *spans: tuple[int, int]) -> SettledSet:
    settled = SettledSet(low)
    for first, end in spans:
        settled.add(ranged(first, end))
    return settled


def above(settled: SettledSet, end: int = 100) -> list[int]:
    return [offset for offset in range(settled.low, end) if offset in settled]


def test_everything_below_the_low_mark_is_settled_and_nothing_else() -> None:
    settled = SettledSet(5)
    assert [offset in settled for offset in (0, 4, 5, 6)] == [True, True, False, False]
    assert settled.to_bytes() == b""


def test_what_is_settled_in_order_needs_no_bitmap() -> None:
    settled = made(0, (0, 10), (10, 11), (11, 500))
    assert (settled.low, settled.to_bytes()) == (500, b"")


def test_what_is_settled_out_of_order_waits_for_what_is_before_it() -> None:
    settled = made(0, (5, 8), (10, 12))
    assert (settled.low, above(settled)) == (0, [5, 6, 7, 10, 11])
    settled.add(ranged(0, 5))
    assert (settled.low, above(settled)) == (8, [10, 11])
    settled.add(ranged(8, 10))
    assert (settled.low, above(settled), settled.to_bytes()) == (12, [], b"")


def test_it_may_be_told_twice() -> None:
    settled = made(0, (5, 8), (6, 9), (0, 3), (0, 2), (2, 4))
    assert (settled.low, above(settled)) == (4, [5, 6, 7, 8])


def test_nothing_is_nothing() -> None:
    settled = made(5, (5, 5), (9, 9), (3, 3), (8, 7))
    assert (settled.low, settled.to_bytes()) == (5, b"")


def test_a_low_mark_that_is_lifted_into_the_middle_of_a_row_goes_to_its_end() -> None:
    settled = made(0, (5, 50), (0, 20))
    assert (settled.low, settled.to_bytes()) == (50, b"")


@pytest.mark.parametrize("length", [1, 2, 3, 63, 64, 65, 1000, 65_535, 65_536, 65_537, 3 * MILLION])
def test_a_row_of_any_length_is_passed_to_its_end(length: int) -> None:
    settled = made(0, (1, 1 + length), (length + 2, length + 3))
    settled.add(ranged(0, 1))
    assert settled.low == 1 + length
    assert settled.count(0, 2 * length + 10) == length + 2


def test_counting_takes_both_sides_of_the_low_mark() -> None:
    settled = made(10, (15, 18), (20, 21))
    assert settled.count(0, 100) == 14
    assert settled.count(5, 16) == 6
    assert settled.count(16, 21) == 3
    assert settled.count(10, 15) == settled.count(30, 40) == settled.count(7, 7) == settled.count(20, 15) == 0
    assert SettledSet(10).count(0, 100) == 10


def test_offsets_that_are_added_stay_the_callers_own() -> None:
    settled = SettledSet(0)
    offsets = BitMap64([5, 6])
    settled.add(offsets)
    settled.add(BitMap64(range(5)))
    assert (list(offsets), settled.low) == ([5, 6], 7)


def test_its_end_is_behind_the_last_that_is_settled() -> None:
    assert [made(5).end, made(5, (7, 9)).end, made(5, (5, 9)).end] == [5, 9, 9]


def test_it_is_plain_as_long_as_the_low_mark_says_it_all() -> None:
    settled = made(5, (7, 9))
    assert (settled.is_plain, list(settled.above)) == (False, [7, 8])
    settled.add(ranged(5, 7))
    assert (settled.is_plain, list(settled.above)) == (True, [])


def test_it_says_whether_one_of_some_is_settled() -> None:
    settled = made(5, (7, 9))
    for some, found in (
        ([4], True),
        ([5, 6], False),
        ([6, 8, 12], True),
        ([9, 2**40], False),
        ([0, 99], True),
        ([], False),
    ):
        assert settled.holds_any(BitMap64(some)) == found, some
    assert [SettledSet(5).holds_any(BitMap64([offset])) for offset in (4, 5)] == [True, False]


def test_raised_it_is_settled_up_to_there_and_over_what_was_settled_before() -> None:
    settled = made(5, (7, 9), (20, 22))
    settled.raise_to(3)
    assert settled.low == 5, "it never goes back"
    settled.raise_to(8)
    assert (settled.low, above(settled)) == (9, [20, 21])
    settled.raise_to(50)
    assert (settled.low, settled.is_plain) == (50, True)


def test_others_right_at_the_low_mark_are_passed_over() -> None:
    settled = made(5, (7, 9), (10, 11))
    settled.pass_over(BitMap64([6, 9]))
    assert (settled.low, above(settled)) == (5, [7, 8, 10]), "there is one before them"
    settled.pass_over(BitMap64([5, 6, 9, 12]))
    assert (settled.low, settled.is_plain) == (11, True)
    settled.pass_over(BitMap64())
    assert settled.low == 11


def test_what_is_kept_is_not_passed_over() -> None:
    settled = made(5)
    settled.pass_over(BitMap64([5, 6, 7, 8]), (BitMap64([3, 7, 20]), BitMap64()))
    assert settled.low == 7
    settled.pass_over(BitMap64([5, 6, 7, 8]), (BitMap64([7]),))
    assert settled.low == 7
    settled.pass_over(BitMap64([5, 6, 7, 8]), (BitMap64([1]),))
    assert settled.low == 9


# --- a fence


def test_clipped_above_everything_it_stays_as_it_is() -> None:
    settled = made(5, (7, 9))
    settled.clip(9)
    assert (settled.low, above(settled)) == (5, [7, 8])


def test_clipped_in_the_bitmap_it_loses_the_rest() -> None:
    settled = made(5, (7, 9), (20, 30))
    settled.clip(8)
    assert (settled.low, above(settled)) == (5, [7])
    settled.clip(7)
    assert (settled.low, settled.to_bytes()) == (5, b"")


def test_clipped_below_its_low_mark_the_mark_goes_back() -> None:
    settled = made(5, (7, 9))
    settled.clip(3)
    assert (settled.low, settled.to_bytes()) == (3, b"")
    assert [offset in settled for offset in (2, 3, 4)] == [True, False, False]


# --- bytes


def test_its_bytes_make_it_again() -> None:
    settled = made(3, (7, 9), (100, 10**6), (2**40, 2**40 + 5))
    again = SettledSet(3, settled.to_bytes())
    assert again.count(0, 2**41) == settled.count(0, 2**41) == 3 + 2 + (10**6 - 100) + 5
    again.add(ranged(3, 7))
    assert again.low == 9


def test_an_empty_bitmap_is_none() -> None:
    assert SettledSet(3, BitMap64().serialize()).to_bytes() == b""


@pytest.mark.parametrize("strange", [b"x", b"\1" + bytes(7), b"\1" + bytes(20), b"\xff" * 64])
def test_bytes_that_are_no_bitmap_are_refused(strange: bytes) -> None:
    with pytest.raises(ValueError, match="deserialize"):
        SettledSet(3, strange)


def test_a_million_offsets_that_alternate_cost_little() -> None:
    """Also when everything between comes afterwards, in order: each step looks only at what is near."""
    settled = SettledSet(0)
    for offset in range(1, MILLION, 2):
        settled.add(ranged(offset, offset + 1))
    assert (settled.low, settled.count(0, MILLION)) == (0, MILLION // 2)
    assert len(settled.to_bytes()) < MILLION / 7
    for offset in range(0, MILLION, 2):
        settled.add(ranged(offset, offset + 1))
        assert settled.low == offset + 2
    assert settled.to_bytes() == b""


def test_any_history_is_that_of_a_plain_set() -> None:
    for seed in range(300):
        rng = Random(seed)
        settled = SettledSet(rng.randrange(5))
        model = set(range(settled.low))
        for _ in range(40):
            first = rng.randrange(60)
            end = first + rng.randrange(12)
            if rng.random() < 0.1:
                settled.clip(first)
                model = {offset for offset in model if offset < first}
            elif rng.random() < 0.1:
                settled = SettledSet(settled.low, settled.to_bytes())
            else:
                settled.add(ranged(first, end))
                model.update(range(first, end))
            assert [offset for offset in range(80) if offset in settled] == sorted(model), seed
            assert settled.low == next(offset for offset in range(80) if offset not in model), seed
            assert settled.count(first, end) == len(model & set(range(first, end))), seed
            assert bool(settled.to_bytes()) == (settled.low < max(model, default=-1)), seed
