"""The delay view: who is to be delivered when, live or read back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from goqueue import codec
from goqueue.model.record import Extension, Record
from goqueue.storage.delays import DelayView, DelayViews, DueTimes
from tests.unit.storage.logs import T0, stamped

GOLDEN = bytes.fromhex("00000001 00000005 0000018bcfe56800 0000018bcfe56801".replace(" ", ""))
"""Offsets 1 and 5 after the base, due at 1,700,000,000,000 ms and one later."""


def due(time: int | None) -> Record:
    return Record(value=b"x", extension=None if time is None else Extension(deliver_at=time))


def fold(times: list[int | None], *, base: int = 0, first: int = 0, block: int = 1000) -> DelayView:
    view = DelayViews().empty(base)
    for start in range(0, len(times), block):
        view.on_append(*stamped(*map(due, times[start : start + block]), offset=first + start))
    return view


def contents(view: DelayView) -> list[tuple[int, int]]:
    return list(zip(view.offsets, view.deliver_at, strict=True))


def test_the_bytes_are_the_golden_ones() -> None:
    view = fold([None, T0, None, None, None, T0 + 1], base=100, first=100)
    assert view.to_bytes() == GOLDEN
    assert contents(DelayViews().load(100, GOLDEN)) == [(1, T0), (5, T0 + 1)]


def test_a_relative_time_is_kept_as_the_stamp_resolved_it() -> None:
    assert contents(fold([-5000])) == [(0, T0 + 5000)]


def test_only_later_ones_are_due_after_a_time_in_offset_order() -> None:
    view = fold([T0 + 30, None, T0 + 10, T0 + 20], base=50, first=60)
    assert view.due_after(T0) == [60, 62, 63]
    assert view.due_after(T0 + 10) == [60, 63]
    assert view.due_after(T0 + 30) == []


def test_what_was_moved_is_due_then_and_what_was_cancelled_at_once() -> None:
    view = fold([T0 + 10] * 4, base=50, first=60)
    times = DueTimes({61: T0 + 5, 62: T0 + 30}, BitMap64([63]))
    assert view.due_after(T0, times) == [60, 61, 62]
    assert view.due_after(T0 + 10, times) == [62]


def test_what_is_pending_is_not_due_whatever_the_clock_shows() -> None:
    view = fold([T0 + 10] * 4, base=50, first=60)
    times = DueTimes({62: T0 + 5}, BitMap64(), BitMap64([61, 62]))
    assert view.due_after(T0 + 10**9, times) == [61, 62]
    assert [times.is_due(offset, T0 + 10, T0 + 10) for offset in range(60, 64)] == [True, False, False, True]


def test_gaps_in_the_offsets_stay_gaps() -> None:
    joined = b"".join(stamped(due(T0 + offset), offset=offset)[0] for offset in (100, 103, 109))
    view = DelayViews().empty(100)
    view.on_append(joined, codec.scan(joined))
    assert contents(view) == [(0, T0 + 100), (3, T0 + 103), (9, T0 + 109)]


def test_other_extension_fields_make_no_delay() -> None:
    view = DelayViews().empty(0)
    view.on_append(*stamped(Record(extension=Extension(expires_at=T0, event_time=T0, transaction=1, blob=b"b"))))
    assert contents(view) == []
    assert view.to_bytes() == b""


def test_a_view_that_was_saved_equals_one_that_was_kept() -> None:
    view = fold([T0, None, T0 + 5])
    assert DelayViews().load(0, view.to_bytes()) == view
    assert fold([T0, None, T0 + 6]) != view
    assert view != object()


def test_columns_of_different_length_are_refused() -> None:
    for size in set(range(len(GOLDEN))) - {0, 12}:
        with pytest.raises(ValueError, match="differ in length"):
            DelayViews().load(0, GOLDEN[:size])


@given(st.lists(st.none() | st.integers(0, 2**40), min_size=1, max_size=100), st.integers(1, 20), st.integers(0, 2**40))
def test_any_delays_are_found_in_blocks_of_any_size(times: list[int | None], block: int, wanted: int) -> None:
    view = DelayViews().load(0, fold(times, block=block).to_bytes())
    assert contents(view) == [(offset, time) for offset, time in enumerate(times) if time is not None]
    assert view.due_after(wanted) == [offset for offset, time in enumerate(times) if time is not None and time > wanted]


def test_its_size_grows_with_it() -> None:
    assert fold([T0] * 100).size - fold([T0] * 50).size == 50 * 12
