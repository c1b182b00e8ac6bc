"""Blocking work beside the loop: results, errors, and the end."""

import asyncio
import threading

import pytest

from goqueue.io.aside import Aside
from goqueue.model.errors import DiskFull
from tests.support.loop import run, turns
from tests.support.patience import PATIENCE_S


def test_work_runs_on_a_thread_of_its_own_and_its_result_comes_back() -> None:
    async def go() -> None:
        aside = Aside("test", 1)
        name = await aside.run(lambda: threading.current_thread().name)
        assert name.startswith("goqueue-test")
        assert await aside.run(max, 3, 7, key=lambda number: -number) == 3
        aside.close()

    run(go())


def test_an_error_comes_back_to_who_asked() -> None:
    def fail() -> None:
        raise DiskFull("no space")

    async def go() -> None:
        aside = Aside("test", 1)
        with pytest.raises(DiskFull, match="no space"):
            await aside.run(fail)
        assert await aside.run(int, "5") == 5
        aside.close()

    run(go())


def test_the_loop_goes_on_while_work_runs() -> None:
    async def go() -> None:
        aside = Aside("test", 1)
        go_on = threading.Event()
        slow = asyncio.ensure_future(aside.run(go_on.wait, 30))
        await turns()
        assert not slow.done()
        go_on.set()
        assert await slow
        aside.close()

    run(go())


def test_there_are_only_so_many_threads() -> None:
    async def go() -> None:
        aside = Aside("test", 2)
        running, most, lock = 0, 0, threading.Lock()
        both = threading.Barrier(2)

        def work() -> None:
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
            both.wait(PATIENCE_S)
            with lock:
                running -= 1

        await asyncio.gather(*(aside.run(work) for _ in range(6)))
        assert most == 2
        aside.close()

    run(go())


def test_closing_waits_for_what_runs_and_drops_what_has_not_begun() -> None:
    async def go() -> None:
        aside = Aside("test", 1)
        begun, go_on, done = threading.Event(), threading.Event(), threading.Event()

        def work() -> None:
            begun.set()
            go_on.wait(PATIENCE_S)
            done.set()

        running = asyncio.ensure_future(aside.run(work))
        waiting = asyncio.ensure_future(aside.run(int))
        await turns()
        await asyncio.to_thread(begun.wait, 30)
        closing = threading.Thread(target=aside.close)
        closing.start()
        go_on.set()
        await running
        await asyncio.to_thread(closing.join, 30)
        assert done.is_set()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with pytest.raises(RuntimeError):
            await aside.run(int)

    run(go())


def test_who_stops_waiting_does_not_stop_the_work() -> None:
    async def go() -> None:
        aside = Aside("test", 1)
        begun, go_on, done = threading.Event(), threading.Event(), threading.Event()

        def work() -> None:
            begun.set()
            go_on.wait(PATIENCE_S)
            done.set()

        waiting = asyncio.ensure_future(aside.run(work))
        await turns()
        await asyncio.to_thread(begun.wait, 30)
        waiting.cancel()
        await asyncio.wait([waiting])
        go_on.set()
        assert await asyncio.to_thread(done.wait, 30)
        aside.close()

    run(go())
