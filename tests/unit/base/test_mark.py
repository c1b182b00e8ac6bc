"""Marks: every waiter is called exactly once, in order, with the error if there was one."""

import sys
import threading
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from goqueue.base import mark as mark_module
from goqueue.base.mark import Mark

TraceFunction = Callable[[FrameType, str, Any], Any]


class Calls:
    """Callbacks that write down who was called, and with what."""

    def __init__(self) -> None:
        self.made: list[tuple[str, Exception | None]] = []

    def wait(self, mark: Mark, threshold: int, name: str = "") -> None:
        mark.when(threshold, lambda error: self.made.append((name or str(threshold), error)))


@pytest.fixture
def calls() -> Calls:
    return Calls()


def test_a_value_already_reached_calls_back_at_once(calls: Calls) -> None:
    mark = Mark(5)
    calls.wait(mark, 5)
    calls.wait(mark, 0)
    assert calls.made == [("5", None), ("0", None)]


def test_callbacks_come_once_in_the_order_of_their_thresholds_then_of_their_asking(calls: Calls) -> None:
    mark = Mark()
    calls.wait(mark, 3)
    calls.wait(mark, 1, "first at one")
    calls.wait(mark, 1, "second at one")
    calls.wait(mark, 2)
    mark.advance(2)
    assert [name for name, _ in calls.made] == ["first at one", "second at one", "2"]
    mark.advance(3)
    mark.advance(4)
    assert [name for name, _ in calls.made] == ["first at one", "second at one", "2", "3"]


def test_a_mark_never_moves_back_by_advancing(calls: Calls) -> None:
    mark = Mark(7)
    mark.advance(3)
    assert mark.value == 7
    calls.wait(mark, 7)
    assert calls.made == [("7", None)]


def test_a_rewind_fails_who_waits_above_it_and_nobody_else(calls: Calls) -> None:
    mark = Mark(10)
    gone = ValueError("gone")
    for threshold in (15, 12, 20):
        calls.wait(mark, threshold)
    mark.rewind(12, gone)
    assert (mark.value, calls.made) == (10, [("15", gone), ("20", gone)])
    mark.advance(12)
    assert calls.made[2:] == [("12", None)]


def test_a_rewind_below_the_value_moves_it_back_and_it_may_grow_again(calls: Calls) -> None:
    mark = Mark(10)
    mark.rewind(4, ValueError("gone"))
    assert mark.value == 4
    calls.wait(mark, 6)
    assert calls.made == []
    mark.advance(6)
    assert calls.made == [("6", None)]


def test_a_failure_reaches_who_waits_and_who_comes_later(calls: Calls) -> None:
    mark = Mark(3)
    failure = ValueError("no more")
    calls.wait(mark, 9)
    calls.wait(mark, 4)
    mark.fail(failure)
    assert calls.made == [("4", failure), ("9", failure)]
    calls.wait(mark, 5)
    assert calls.made[2:] == [("5", failure)]
    assert mark.failure is failure


def test_what_was_reached_before_a_failure_stays_reached(calls: Calls) -> None:
    mark = Mark(3)
    mark.fail(ValueError("no more"))
    calls.wait(mark, 3)
    assert calls.made == [("3", None)]


def test_a_callback_may_wait_again(calls: Calls) -> None:
    mark = Mark()
    mark.when(1, lambda _: calls.wait(mark, 2))
    mark.advance(1)
    assert calls.made == []
    mark.advance(2)
    assert calls.made == [("2", None)]


def test_waiters_from_many_threads_are_all_called_exactly_once() -> None:
    mark = Mark()
    last = 2_000
    called: list[tuple[int, int]] = []
    ready = threading.Barrier(5)

    def wait(thread: int) -> None:
        ready.wait()
        for threshold in range(1, last + 1):
            mark.when(threshold, lambda _, it=(thread, threshold): called.append(it))  # type: ignore[misc]

    threads = [threading.Thread(target=wait, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    ready.wait()
    for value in range(1, last + 1):
        mark.advance(value)
    for thread in threads:
        thread.join()
    assert sorted(called) == [(thread, threshold) for thread in range(4) for threshold in range(1, last + 1)]


def move_at(step: int) -> list[tuple[str, Exception | None]] | None:
    """Who is called when the mark moves just before the given line of `when`; None when there is no such line."""
    mark = Mark()
    calls = Calls()
    mover = threading.Thread(target=mark.advance, args=(5,))
    left = step

    def trace(frame: FrameType, event: str, argument: object) -> TraceFunction | None:
        nonlocal left
        if frame.f_code is not Mark.when.__code__:
            return None
        if event == "line":
            left -= 1
            if left == 0:
                mover.start()
                mover.join(0.05)  # it may have to wait for a lock that is held here
        return trace

    def wait() -> None:
        sys.settrace(trace)
        calls.wait(mark, 5)

    waiter = threading.Thread(target=wait)
    waiter.start()
    waiter.join()
    if left > 0:
        return None
    mover.join()
    return calls.made


def test_a_mark_that_moves_at_any_step_of_beginning_to_wait_wakes_who_waits() -> None:
    step = 1
    while (made := move_at(step)) is not None:
        assert made == [("5", None)], f"the mark moved at step {step}"
        step += 1
    assert step > 3


# --- giving up


def test_a_cancelled_wait_is_never_called_whatever_happens_to_the_mark(calls: Calls) -> None:
    def reached(mark: Mark) -> None:
        mark.advance(5)

    def rewound(mark: Mark) -> None:
        mark.rewind(0, ValueError("gone"))

    def failed(mark: Mark) -> None:
        mark.fail(ValueError("no more"))

    for happens in (reached, rewound, failed):
        mark = Mark()
        mark.when(5, lambda _: calls.made.append(("cancelled", None))).cancel()
        happens(mark)
    assert calls.made == []


def test_cancelling_one_wait_leaves_the_others(calls: Calls) -> None:
    mark = Mark()
    calls.wait(mark, 1)
    middle = mark.when(2, lambda _: calls.made.append(("cancelled", None)))
    calls.wait(mark, 2, "at two")
    calls.wait(mark, 3)
    middle.cancel()
    assert mark.waiting == 3
    mark.advance(3)
    assert [name for name, _ in calls.made] == ["1", "at two", "3"]
    assert mark.waiting == 0


def test_a_wait_may_be_cancelled_twice_and_after_it_was_called(calls: Calls) -> None:
    mark = Mark()
    twice = mark.when(5, lambda error: calls.made.append(("twice", error)))
    twice.cancel()
    twice.cancel()
    called = mark.when(6, lambda error: calls.made.append(("called", error)))
    at_once = mark.when(0, lambda error: calls.made.append(("at once", error)))
    calls.wait(mark, 9)
    mark.advance(6)
    called.cancel()
    at_once.cancel()
    assert mark.waiting == 1
    mark.fail(ValueError("no more"))
    late = mark.when(10, lambda _: None)
    late.cancel()
    assert [name for name, _ in calls.made] == ["at once", "called", "9"]
    assert mark.waiting == 0


def test_the_mark_counts_who_waits(calls: Calls) -> None:
    mark = Mark()
    waits = [mark.when(threshold, lambda _: None) for threshold in (1, 2, 3, 4, 5)]
    assert mark.waiting == 5
    waits[3].cancel()
    assert mark.waiting == 4
    mark.advance(2)
    assert mark.waiting == 2
    mark.rewind(2, ValueError("gone"))
    assert mark.waiting == 0


def test_a_thousand_waits_that_were_cancelled_leave_nothing_behind() -> None:
    """Beside one that stays, and that is due before all of them, or after."""
    for staying in (1, 10**9):
        mark = Mark()
        mark.when(staying, lambda _: None)
        tracemalloc.start()
        try:
            for number in range(1000):
                mark.when(1000 + number, lambda _: None).cancel()
            snapshot = tracemalloc.take_snapshot()
        finally:
            tracemalloc.stop()
        grown = snapshot.filter_traces([tracemalloc.Filter(True, mark_module.__file__)])
        assert mark.waiting == 1
        assert sum(trace.size for trace in grown.traces) < 20_000


# --- callbacks that raise


@pytest.mark.parametrize("happens", ["advance", "rewind", "fail"])
def test_a_callback_that_raises_keeps_nobody_else_from_being_called(
    calls: Calls, monkeypatch: pytest.MonkeyPatch, happens: str
) -> None:
    noticed: list[BaseException | None] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: noticed.append(found.exc_value))
    broken = RuntimeError("a bug of somebody else")

    def breaks(error: Exception | None) -> None:
        raise broken

    mark = Mark()
    calls.wait(mark, 1, "before")
    mark.when(2, breaks)
    calls.wait(mark, 2, "beside")
    calls.wait(mark, 3, "after")
    if happens == "advance":
        mark.advance(3)
    elif happens == "rewind":
        mark.rewind(0, ValueError("gone"))
    else:
        mark.fail(ValueError("no more"))
    assert [name for name, _ in calls.made] == ["before", "beside", "after"]
    assert noticed == [broken]
    assert mark.waiting == 0
