"""Waiting on a mark, from a thread and from a task."""

import asyncio
import threading

import pytest

from goqueue.base.mark import Mark
from goqueue.io.waiting import reached, wait_for


def test_a_thread_does_not_wait_for_what_is_reached() -> None:
    wait_for(Mark(5), 5, timeout_s=0)


def test_a_thread_wakes_when_another_moves_the_mark() -> None:
    mark = Mark()

    def move() -> None:
        for value in range(1, 4):
            mark.advance(value)

    mover = threading.Thread(target=move)
    mover.start()
    wait_for(mark, 3, timeout_s=30)
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
        wait_for(mark, 1, timeout_s=30)


def test_a_task_wakes_when_a_thread_moves_the_mark() -> None:
    async def wait() -> int:
        mark = Mark()
        mover = threading.Thread(target=mark.advance, args=(3,))
        waiting = asyncio.ensure_future(reached(mark, 3))
        await asyncio.sleep(0)
        assert not waiting.done()
        mover.start()
        await asyncio.wait_for(waiting, 30)
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
        await asyncio.wait_for(waiting, 30)

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
