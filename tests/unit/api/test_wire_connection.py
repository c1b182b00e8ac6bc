"""A connection of the wire door: what it costs while nothing comes, what it gives back, replies, when they leave."""

import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from goqueue.api.listening import Listener
from goqueue.api.wire.connection import _MAX_GATHERED, WireConnection, wire_meters
from goqueue.model import limits
from goqueue.wire.frames import OK, PATIENT
from tests.support.hostile import run, until
from tests.support.raw_wire import frame, read_reply
from tests.unit.api.parking import WAIT, Doors, doors

IDLE_BYTES = 6 * limits.KIB
UNKNOWN = 59_999
"""An operation that is refused at once."""


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


class Watched:
    """A transport, and how often it was written to."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.writes = 0

    def write(self, data: bytes) -> None:
        self.writes += 1
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


@pytest.mark.parametrize(
    ("statuses", "writes"),
    [
        ([OK], 1),
        ([OK] * 2, 2),
        ([OK] * 5, 2),
        ([OK] * (2 + _MAX_GATHERED), 3),
        ([PATIENT] * 5, 1),
        ([PATIENT] * (1 + _MAX_GATHERED), 2),
        ([PATIENT, OK, OK], 1),
        ([OK, PATIENT, PATIENT], 2),
    ],
)
def test_the_first_reply_leaves_at_once_unless_its_request_is_patient_and_those_to_further_frames_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statuses: list[int], writes: int
) -> None:
    async def scenario() -> None:
        async with doors(tmp_path, monkeypatch) as found, found.client("wire") as client:
            connection = await the_connection(found)
            watched: Any = Watched(connection._transport)
            connection._transport = watched
            requests = enumerate(statuses)
            await client.peer.send(b"".join(frame(UNKNOWN, correlation=at, status=status) for at, status in requests))
            replies = [await read_reply(client.peer) for _ in statuses]
            assert [reply.correlation for reply in replies] == list(range(len(statuses)))
            assert {reply.code for reply in replies} == {"unknown_operation"}
            assert watched.writes == writes

    run(scenario())


def test_replies_that_wait_for_each_other_leave_before_the_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with doors(tmp_path, monkeypatch) as found, found.client("wire") as client:
            good = b"".join(frame(UNKNOWN, correlation=number) for number in range(3))
            await client.peer.send(good + frame(UNKNOWN, correlation=3, status=9))
            replies = [await read_reply(client.peer) for _ in range(4)]
            assert [reply.code for reply in replies] == [*["unknown_operation"] * 3, "protocol_error"]
            assert await client.peer.read_to_the_end() == b""

    run(scenario())


def test_what_is_large_has_reserved_bytes_or_can_be_undone_does_not_wait_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with doors(tmp_path, monkeypatch) as found, found.client("wire") as client:
            connection = await the_connection(found)
            connection._gathered = []
            connection.send(WAIT, 1, b"small")
            connection.send(WAIT, 2, bytes(2 * limits.KIB))
            room = connection.try_reserve(10)
            assert room is not None
            connection.send(WAIT, 3, b"reserved", room=room)
            connection.send(WAIT, 4, b"undone", undo=lambda: None)
            assert [(await read_reply(client.peer)).correlation for _ in range(3)] == [2, 3, 4]
            assert connection._own.held == 0
            connection._send_gathered()
            assert (await read_reply(client.peer)).payload == b"small"

    run(scenario())


def test_replies_that_wait_for_others_leave_also_when_a_frame_breaks_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with doors(tmp_path, monkeypatch) as found, found.client("wire") as client:
            connection = await the_connection(found)
            sent = [b"small"]

            def step() -> bool:
                if not sent:
                    raise RuntimeError("planted")
                connection._gathered = []
                connection.send(WAIT, 1, sent.pop())
                return True

            monkeypatch.setattr(WireConnection, "_step", lambda _: step())
            with pytest.raises(RuntimeError, match="planted"):
                connection._advance()
            assert connection._gathered is None
            assert (await read_reply(client.peer)).payload == b"small"

    run(scenario())
