"""What `goqueue-cli bench` removes, and what it says, when it is cut short."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import typer

from goqueue import AsyncClient
from goqueue.cli.failures import BY_SIGNAL
from goqueue.cli.remote import bench
from goqueue.cli.remote.bench_gauge import Gauge
from goqueue.cli.remote.bench_loads import Load, NewGroup
from goqueue.cli.remote.broker import Broker
from goqueue.model.errors import RequestTimeout
from tests.support.loop import turns
from tests.unit.cli.remote.terminal import NOBODY, Terminal

LOAD = Load(messages=100, size=8, batch=10, in_flight=1000, partitions=1, keys=0, acks="leader", rate=0.0)


class NotingBroker(Broker):
    """Notes what it is asked, and answers to deleting a topic when it may."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answered: list[str] = []
        self.may_delete = asyncio.Event()

    async def call_plainly(self, operation: str, fields: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(operation)
        if operation == "delete_topic":
            await self.may_delete.wait()
        self.answered.append(operation)
        return {}

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[AsyncClient]:
        yield cast(AsyncClient, None)

    def client(self) -> Any:
        return self._client()


@pytest.mark.parametrize("names_group", [False, True])
def test_a_group_is_removed_only_if_the_load_had_one(names_group: bool) -> None:
    async def go() -> list[str]:
        async def fail(_: AsyncClient, topic: str, new_group: NewGroup, load: Load, gauge: Gauge) -> None:
            if names_group:
                new_group()
            raise RequestTimeout("no answer")

        broker = NotingBroker()
        broker.may_delete.set()
        with pytest.raises(RequestTimeout):
            await bench._measure(broker, fail, LOAD, Gauge("consume", 100, 8), "t", own=True)
        return broker.asked

    removed = ["delete_group", "delete_topic"] if names_group else ["delete_topic"]
    assert asyncio.run(go()) == ["create_topic", *removed]


def test_a_signal_while_the_topic_is_removed_waits_until_it_is_gone() -> None:
    async def go() -> None:
        async def work(*_: Any) -> None:
            return

        broker = NotingBroker()
        measuring = asyncio.create_task(bench._measure(broker, work, LOAD, Gauge("produce", 100, 8), "t", own=True))
        while "delete_topic" not in broker.asked:
            await asyncio.sleep(0)
        measuring.cancel()
        await turns()
        assert not measuring.done()
        broker.may_delete.set()
        await asyncio.gather(measuring, return_exceptions=True)
        assert broker.answered[-1] == "delete_topic"

    asyncio.run(go())


@pytest.mark.parametrize(("done", "code"), [(99, BY_SIGNAL + 2), (100, 0)])
def test_who_interrupts_it_after_the_last_message_is_told_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: int, code: int
) -> None:
    async def measure(_: Broker, work: object, load: Load, gauge: Gauge, topic: str, *, own: bool) -> None:
        gauge.begin()
        gauge.add(done)
        raise typer.Exit(BY_SIGNAL + 2)

    def run(work: Callable[[Broker], Any]) -> None:
        asyncio.run(work(cast(Broker, None)))

    monkeypatch.setattr(bench, "_measure", measure)
    monkeypatch.setattr(bench, "run", run)
    result = Terminal(NOBODY, tmp_path / "cli.yaml").type("bench", "produce", "-n", "100")
    assert result.exit_code == code
    assert ("stopped after 99 of 100 messages" in result.stderr) is (code != 0)
    assert ("100 of 100 bytes in" in result.stdout) is (code == 0)
