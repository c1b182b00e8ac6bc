"""Waiting on a mark, from a thread and from a task."""

import asyncio
import sys
import threading
import traceback

import pytest

from goqueue.base.mark import Mark
from goqueue.io.waiting import reached, wait_for
from tests.support.patience import PATIENCE_S


def test_a_thread_does_not_wait_for_what_is_reached() -> None:
    wait_for(Mark(5), 5, timeout_s=0)


def test_a_thread_wakes_when_another_moves_the_mark() -> None:
    mark = Mark()

    def move() -> None:
        for value in range(1, 4):
            mark.advance(value)

    mover = threading.Thread(target=move)
    mover.start()
    wait_for(mark, 3, timeout_s=PATIENCE_S)
    assert mark.value == 3
    mover.join()


def test_a_thread_that_waited_too_long_is_told_where_the_mark_is() -> None:
    with pytest.raises(TimeoutError, match="still waiting for 9, the mark is at 4"):
        wait_for(Mark(4), 9, timeout_s=0)


def test_a_thread_gets_the_marks_failure() -> None:
    mark = Mark()
    failure = ValueError("lost")
    mark.fail(failure)
    with pytest.raises(ValueError, match="lost"):
        wait_for(mark, 1, timeout_s=PATIENCE_S)


def test_a_task_wakes_when_a_thread_moves_the_mark() -> None:
    async def wait() -> int:
        mark = Mark()
        mover = threading.Thread(target=mark.advance, args=(3,))
        waiting = asyncio.ensure_future(reached(mark, 3))
        await asyncio.sleep(0)
        assert not waiting.done()
        mover.start()
        await asyncio.wait_for(waiting, PATIENCE_S)
        mover.join()
        await reached(mark, 3)
        return mark.value

    assert asyncio.run(wait()) == 3


def test_a_task_gets_the_marks_failure() -> None:
    async def wait() -> None:
        mark = Mark()
        waiting = asyncio.ensure_future(reached(mark, 3))
        await asyncio.sleep(0)
        mark.fail(ValueError("lost"))
        await asyncio.wait_for(waiting, PATIENCE_S)

    with pytest.raises(ValueError, match="lost"):
        asyncio.run(wait())


def test_a_task_that_gave_up_is_not_disturbed_by_the_mark() -> None:
    async def wait() -> bool:
        mark = Mark()
        waiting = asyncio.ensure_future(reached(mark, 3))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        mark.advance(3)
        await asyncio.sleep(0)
        return waiting.cancelled()

    assert asyncio.run(wait())


def test_a_thread_that_waited_too_long_leaves_nothing_at_the_mark() -> None:
    mark = Mark()
    for _ in range(100):
        with pytest.raises(TimeoutError):
            wait_for(mark, 1, timeout_s=0)
    assert mark.waiting == 0


def test_a_task_that_gave_up_leaves_nothing_at_the_mark() -> None:
    async def wait() -> None:
        for _ in range(100):
            waiting = asyncio.ensure_future(reached(mark, 3))
            await asyncio.sleep(0)
            assert mark.waiting == 1
            waiting.cancel()
            await asyncio.wait([waiting])
            assert mark.waiting == 0

    mark = Mark()
    asyncio.run(wait())


def test_a_loop_that_was_closed_does_not_keep_the_mark_from_moving(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tasks wait for ever, in vain; the owner of the mark and all others are not disturbed."""
    noticed: list[BaseException | None] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: noticed.append(found.exc_value))
    mark = Mark()
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # that a task was left waiting is what is wanted here
    waiting = loop.create_task(reached(mark, 3))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    called: list[Exception | None] = []
    mark.when(3, called.append)
    mark.advance(3)
    assert (mark.value, called, noticed) == (3, [None], [])
    assert not waiting.done()


def test_the_failure_of_a_mark_does_not_grow_with_each_wait() -> None:
    mark = Mark()
    mark.fail(ValueError("lost"))
    lengths = []
    for _ in range(50):
        with pytest.raises(ValueError, match="lost") as caught:
            wait_for(mark, 1, timeout_s=PATIENCE_S)
        lengths.append(sum(1 for _ in traceback.walk_tb(caught.value.__traceback__)))
    assert lengths[-1] == lengths[0]
