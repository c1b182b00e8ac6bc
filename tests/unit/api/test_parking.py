"""Requests that wait: they end with their client, hold nothing, and a reply nobody got is taken back, once."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from goqueue.api.http.connection import HttpConnection
from goqueue.model import limits
from goqueue.model.errors import UnknownTopic
from tests.support import hostile
from tests.support.hostile import until
from tests.support.loop import turns
from tests.unit.api.parking import REPLY_BYTES, Client, Doors, Run, doors, on_both_loops, through_both_doors

LARGE = 8 * limits.MIB
"""More than the system keeps of a reply that nobody reads."""
SMALL_WINDOW = 4096

leaving = pytest.mark.parametrize("leave", [Client.vanish, Client.close])
in_any_way = pytest.mark.parametrize("leave", [Client.vanish, Client.close, Client.finish])

# --- waiting


@on_both_loops
@through_both_doors
def test_a_parked_request_is_answered_when_there_is_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run, door: str
) -> None:
    async def scenario() -> None:
        async with doors(tmp_path, monkeypatch) as found, found.client(door) as client:
            for _ in range(2):
                await client.ask(chars=5)
                await found.waiting.until("parked")
                found.waiting.bell.set()
                assert await client.answer() == (True, {"text": "xxxxx"})
                assert found.waiting.events == ["parked", "begun", "done"]
                found.waiting.events.clear()
                found.waiting.bell.clear()

    run(scenario())


@through_both_doors
def test_what_waiting_finds_wrong_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, door: str) -> None:
    async def scenario() -> None:
        async with doors(tmp_path, monkeypatch) as found, found.client(door) as client:
            found.waiting.refusal = UnknownTopic("orders")
            found.waiting.bell.set()
            await client.ask()
            answer = await client.answer()
            assert (answer.good, answer.fields["code"]) == (False, "unknown_topic")
            found.waiting.refusal = None
            await client.ask()
            assert (await client.answer()).good

    hostile.run(scenario())


@through_both_doors
def test_a_parked_request_holds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, door: str) -> None:
    async def scenario() -> None:
        async with doors(tmp_path, monkeypatch) as found, found.client(door) as client:
            await client.ask(padding="p" * (limits.MAX_SMALL_BODY_BYTES - 100))
            await found.waiting.until("parked")
            found.sweep(limits.SWEEP_INTERVAL_S + 1)  # the wire's receive buffer has grown
            assert found.held == (0, 0)
            found.waiting.gate.clear()
            found.waiting.bell.set()
            await found.waiting.until("parked", "begun")
            assert found.held == (0, REPLY_BYTES)
            found.waiting.gate.set()
            assert (await client.answer()).good

    hostile.run(scenario())


@through_both_doors
def test_who_waits_long_is_not_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, door: str) -> None:
    async def scenario() -> None:
        async with doors(tmp_path, monkeypatch) as found, found.client(door) as client:
            await client.ask()
            await found.waiting.until("parked")
            for seconds in (61, 121, 3600):
                found.sweep(seconds)
            found.waiting.bell.set()
            assert (await client.answer()).good

    hostile.run(scenario())


# --- leaving


@on_both_loops
@through_both_doors
@in_any_way
def test_a_parked_request_ends_with_its_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run, door: str, leave: Callable[[Client], None]
) -> None:
    async def scenario() -> None:
        async with doors(tmp_path, monkeypatch) as found, found.client(door) as client:
            await client.ask()
            await found.waiting.until("parked")
            leave(client)
            await found.waiting.until("parked", "left")
            await until(lambda: not found.connections(door))
            if leave is Client.finish:
                assert await client.peer.read_to_the_end() == b""
            found.waiting.bell.set()
            await turns()
            assert found.waiting.events == ["parked", "left"]

    run(scenario())


@on_both_loops
@through_both_doors
def test_who_leaves_right_after_asking_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run, door: str
) -> None:
    async def scenario() -> None:
        async with doors(tmp_path, monkeypatch) as found:
            for _ in range(20):
                async with found.client(door) as client:
                    await client.ask()
                    client.finish()
                    assert await client.peer.read_to_the_end() == b""
            await until(lambda: not found.connections(door))
            assert found.waiting.events.count("parked") == found.waiting.events.count("left")
            assert "begun" not in found.waiting.events

    run(scenario())


@on_both_loops
def test_who_sends_no_more_is_still_answered_when_there_is_no_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    async def scenario() -> None:
        async with doors(tmp_path, monkeypatch) as found:
            found.waiting.bell.set()
            async with found.client("http") as client:
                await client.ask("wait")
                client.finish()
                assert (await client.answer()).good
                assert await client.peer.read_to_the_end() == b""
            found.waiting.bell.clear()
            found.waiting.gate.clear()
            found.waiting.events.clear()
            async with found.client("http") as client:
                await client.ask("plain")
                await found.waiting.until("begun")
                connection = await found.the_connection("http")
                client.finish()
                await until(lambda: connection._ended)
                found.waiting.gate.set()
                assert (await client.answer()).good
                assert await client.peer.read_to_the_end() == b""

    run(scenario())


@in_any_way
def test_leaving_is_noticed_though_more_requests_were_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leave: Callable[[Client], None]
) -> None:
    async def scenario() -> None:
        async with doors(tmp_path, monkeypatch) as found, found.client("http") as client:
            await client.peer.send(client.request("wait") + client.request("plain") * 3)
            await found.waiting.until("parked")
            await client.peer.send(client.request("plain") * 2)
            leave(client)
            await found.waiting.until("parked", "left")
            await until(lambda: not found.connections("http"))
            assert found.waiting.events == ["parked", "left"], "nothing behind it was carried out"

    hostile.run(scenario())


def test_what_is_sent_behind_a_parked_request_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with doors(tmp_path, monkeypatch) as found, found.client("http") as client:
            await client.ask("wait")
            await found.waiting.until("parked")
            sending = asyncio.ensure_future(client.peer.send(client.request("plain", padding="p" * 50_000) * 200))
            connection = await found.the_connection("http")
            assert isinstance(connection, HttpConnection)
            await until(lambda: not connection._reading)
            assert len(connection._waiting) < 40
            found.waiting.bell.set()
            for _ in range(201):
                assert (await client.answer()).good
            await sending

    hostile.run(scenario())


@through_both_doors
def test_a_door_that_closes_ends_what_is_parked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, door: str) -> None:
    async def scenario() -> None:
        async with doors(tmp_path, monkeypatch) as found, found.client(door) as client:
            await client.ask()
            await found.waiting.until("parked")
            found.listeners[door].drain()
            await found.listeners[door].close(0)
            await found.waiting.until("parked", "left")

    hostile.run(scenario())


def test_one_of_many_parked_requests_is_answered_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wire answers as it can; when the client leaves, all the others end."""

    async def scenario() -> None:
        async with doors(tmp_path, monkeypatch) as found, found.client("wire") as client:
            await client.peer.send(client.request("wait") * 50 + client.request("plain"))
            assert (await client.answer()).good
            await until(lambda: found.waiting.events.count("parked") == 50)
            client.vanish()
            await until(lambda: found.waiting.events.count("left") == 50)

    hostile.run(scenario())


# --- replies that could not be written


@on_both_loops
@pytest.mark.parametrize(
    ("door", "leave"),
    [("http", Client.vanish), ("wire", Client.vanish), ("wire", Client.close), ("wire", Client.finish)],
)
def test_work_that_has_begun_is_finished_and_its_reply_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run, door: str, leave: Callable[[Client], None]
) -> None:
    """Over HTTP who sends no more may still read: its reply is written, and whether it arrives nobody knows."""

    async def scenario() -> None:
        async with doors(tmp_path, monkeypatch) as found, found.client(door) as client:
            found.waiting.bell.set()
            found.waiting.gate.clear()
            await client.ask()
            await found.waiting.until("parked", "begun")
            leave(client)
            await until(lambda: not found.connections(door))
            assert found.waiting.events == ["parked", "begun"]
            found.waiting.gate.set()
            await found.waiting.until("parked", "begun", "done", "undone")
            await turns()
            assert len(found.waiting.undone) == 1

    run(scenario())


async def stuck(found: Doors, client: Client, door: str) -> None:
    """A large reply is on its way, and the client does not read."""
    found.waiting.bell.set()
    await client.ask(chars=LARGE)
    connection = await found.the_connection(door)
    await until(lambda: connection._write_paused)
    assert found.waiting.events == ["parked", "begun", "done"]


@on_both_loops
@through_both_doors
@leaving
def test_a_reply_is_taken_back_when_its_client_leaves_before_all_of_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run, door: str, leave: Callable[[Client], None]
) -> None:
    async def scenario() -> None:
        async with (
            doors(tmp_path, monkeypatch) as found,
            found.client(door, receive_bytes=SMALL_WINDOW) as client,
        ):
            await stuck(found, client, door)
            leave(client)
            await until(lambda: not found.connections(door))
            assert found.waiting.events == ["parked", "begun", "done", "undone"]
            assert [len(reply.text) for reply in found.waiting.undone] == [LARGE]

    run(scenario())


@on_both_loops
@through_both_doors
def test_a_reply_is_taken_back_when_its_client_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run, door: str
) -> None:
    async def scenario() -> None:
        async with (
            doors(tmp_path, monkeypatch) as found,
            found.client(door, receive_bytes=SMALL_WINDOW) as client,
        ):
            await stuck(found, client, door)
            found.sweep(limits.REPLY_TIMEOUT_S + 1)
            await until(lambda: not found.connections(door))
            assert found.waiting.events == ["parked", "begun", "done", "undone"]

    run(scenario())


@on_both_loops
@through_both_doors
@in_any_way
def test_a_reply_that_was_taken_is_never_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run, door: str, leave: Callable[[Client], None]
) -> None:
    async def scenario() -> None:
        async with (
            doors(tmp_path, monkeypatch) as found,
            found.client(door, receive_bytes=SMALL_WINDOW) as client,
        ):
            found.waiting.bell.set()
            for chars in (1, LARGE, 1):
                await client.ask(chars=chars)
                assert len((await client.answer()).fields["text"]) == chars
            leave(client)
            await until(lambda: not found.connections(door))
            assert "undone" not in found.waiting.events

    run(scenario())


@on_both_loops
@through_both_doors
def test_a_client_that_closes_its_side_may_still_take_its_reply(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run, door: str
) -> None:
    async def scenario() -> None:
        async with (
            doors(tmp_path, monkeypatch) as found,
            found.client(door, receive_bytes=SMALL_WINDOW) as client,
        ):
            await stuck(found, client, door)
            client.finish()
            assert len((await client.answer()).fields["text"]) == LARGE
            assert await client.peer.read_to_the_end() == b""
            await until(lambda: not found.connections(door))
            assert "undone" not in found.waiting.events

    run(scenario())


@on_both_loops
@through_both_doors
def test_only_replies_that_cannot_be_written_are_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run, door: str
) -> None:
    async def scenario() -> None:
        async with (
            doors(tmp_path, monkeypatch) as found,
            found.client(door, receive_bytes=SMALL_WINDOW) as client,
        ):
            found.waiting.bell.set()
            await client.ask(chars=3)
            assert (await client.answer()).good
            found.waiting.events.clear()
            await stuck(found, client, door)
            client.vanish()
            await until(lambda: not found.connections(door))
            assert [len(reply.text) for reply in found.waiting.undone] == [LARGE]

    run(scenario())
