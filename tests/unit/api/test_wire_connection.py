"""A connection of the wire door: what it costs while nothing comes, what it gives back, replies that can be undone."""

import tracemalloc
from pathlib import Path

import pytest

from goqueue.api.listening import Listener
from goqueue.api.wire.connection import WireConnection, wire_meters
from goqueue.model import limits
from tests.support.hostile import run, until
from tests.support.raw_wire import read_reply
from tests.unit.api.parking import WAIT, Doors, doors

IDLE_BYTES = 6 * limits.KIB


def test_an_idle_connection_costs_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with doors(tmp_path, monkeypatch) as found:
            meters, listener = wire_meters(found.service), Listener("idle", {}, lambda _: connections[0])
            connections = [WireConnection(found.service, meters, listener)]
            tracemalloc.start()
            try:
                before, _ = tracemalloc.get_traced_memory()
                connections += [WireConnection(found.service, meters, listener) for _ in range(100)]
                after, _ = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert (after - before) / 100 < IDLE_BYTES
            assert not hasattr(connections[0], "__dict__")

    run(scenario())


async def the_connection(found: Doors) -> WireConnection:
    connection = await found.the_connection("wire")
    assert isinstance(connection, WireConnection)
    return connection


def test_a_buffer_nobody_needs_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with doors(tmp_path, monkeypatch) as found, found.client("wire") as client:
            connection = await the_connection(found)
            for size in (10_000, 500_000):
                await client.ask("plain", padding="p" * size)
                assert (await client.answer()).good
                assert connection._buffer.large
                found.sweep(limits.SWEEP_INTERVAL_S / 2)
                assert connection._buffer.large, "it may be needed again soon"
                found.sweep(limits.SWEEP_INTERVAL_S + 1)
                assert not connection._buffer.large
                assert found.held == (0, 0)
            half = client.request("plain", padding="p" * 10_000)
            await client.peer.send(half[:5000])
            await until(lambda: connection._buffer.held == 5000)
            found.sweep(limits.SWEEP_INTERVAL_S + 1)
            await client.peer.send(half[5000:])
            assert (await client.answer()).good

    run(scenario())


def test_a_reply_in_parts_is_undone_once_when_it_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        undone: list[str] = []
        async with doors(tmp_path, monkeypatch) as found, found.client("wire", receive_bytes=4096) as client:
            connection = await the_connection(found)
            connection.send(WAIT, 7, b"head", b"data", undo=lambda: undone.append("taken"))
            assert (await read_reply(client.peer)).payload == b"headdata"
            connection.send(WAIT, 8, b"head", b"x" * (8 * limits.MIB), undo=lambda: undone.append("large"))
            connection.send(WAIT, 9, b"small", undo=lambda: undone.append("behind it"))
            assert undone == []
            client.vanish()
            await until(lambda: connection.closing)
            assert undone == ["large", "behind it"]
            connection.send(WAIT, 10, b"late", undo=lambda: undone.append("late"))
            assert undone == ["large", "behind it", "late"]

    run(scenario())


def test_a_reply_after_the_last_words_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        undone: list[str] = []
        async with doors(tmp_path, monkeypatch) as found, found.client("wire"):
            connection = await the_connection(found)
            connection.hang_up()
            connection.send(WAIT, 1, b"late", undo=lambda: undone.append("late"))
            assert undone == ["late"]

    run(scenario())
