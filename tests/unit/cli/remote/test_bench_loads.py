"""The loads of a bench, cut short."""

import asyncio
import gc
from typing import Any, Self, cast

import pytest

from goqueue import AsyncClient
from goqueue.cli.remote.bench_gauge import Gauge
from goqueue.cli.remote.bench_loads import LOADS, Load
from goqueue.model.errors import Unavailable
from tests.support.loop import turns

LOAD = Load(messages=100, size=8, batch=10, in_flight=1000, partitions=1, keys=0, acks="leader", rate=0.0)


class SilentProducer:
    """Of a broker that does not answer: what it was given fails when it is closed."""

    def __init__(self) -> None:
        self.sent = 0
        self._closed = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closed.set()

    async def send(self, *_: Any, **options: Any) -> None:
        self.sent += 1
        await self._closed.wait()
        raise Unavailable("the producer was closed")

    def enqueue(self, *_: Any, **options: Any) -> None:
        return


class SilentConsumer:
    assigned = ("t-0",)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return

    async def poll(self, *_: Any, **options: Any) -> None:
        await asyncio.Event().wait()


class SilentClient:
    def __init__(self) -> None:
        self.made = SilentProducer()

    def producer(self, **options: Any) -> SilentProducer:
        return self.made

    def consumer(self, *_: Any, **options: Any) -> SilentConsumer:
        return SilentConsumer()


@pytest.mark.parametrize("name", LOADS)
def test_a_load_that_is_cancelled_leaves_no_task_and_no_error_that_nobody_retrieves(name: str) -> None:
    told: list[dict[str, Any]] = []

    async def go() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        client = SilentClient()
        working = asyncio.ensure_future(
            LOADS[name](cast(AsyncClient, client), "t", lambda: "g", LOAD, Gauge(name, LOAD.messages, LOAD.size))
        )
        await turns()
        assert not working.done()
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        del working
        await turns()
        gc.collect()
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(go())
    assert told == []
