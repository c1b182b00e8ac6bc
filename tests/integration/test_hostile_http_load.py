"""The HTTP door against clients that are too slow, too many, or do not take what they asked for.

Each time somebody else is served meanwhile, and when they have gone nothing of the broker's budgets is left taken.
"""

import asyncio
import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from goqueue.api.http import connection as http_connection
from goqueue.model import limits
from goqueue.server.server import Server
from tests.support.hostile import Peer, run, sweep, until, watched_server
from tests.support.moved_time import MovedTime, run_timed
from tests.support.patience import PATIENCE_S
from tests.support.raw_http import Said, one_answer, post, publish, request

ORDERS = {"name": "orders", "num_partitions": 1}


async def ask(server: Server, data: bytes, *, count: int = 1) -> list[Said]:
    """The answers to well-behaved requests, on a connection of their own."""
    async with Peer(server.endpoints["http"]) as peer:
        await peer.send(data)
        return [await one_answer(peer) for _ in range(count)]


async def is_served(server: Server) -> bool:
    (answer,) = await ask(server, request("GET", "/topics"))
    return answer == (200, {"topics": ["orders"]})


def connections(server: Server) -> list[Any]:
    (door,) = (door for door in server._doors if door._name == "http")
    return list(door._connections)


def has_arrived(connection: Any, size: int) -> bool:
    return bool(connection._body_bytes == size)


def messages_in(server: Server) -> int:
    (partition,) = server.broker.topics.named("orders").partitions
    return partition.log.end_offset


SLOW = {
    "nothing": b"",
    "a method": b"GET",
    "a head": b"GET /topics HTTP/1.1\r\nHost: localhost",
    "a body": publish(b"", "Content-Length: 100") + b'{"value":',
    "chunks": publish(b"", "Transfer-Encoding: chunked") + b"2\r\n{ \r\n",
    "trailers": publish(b"", "Transfer-Encoding: chunked") + b"0\r\nX: y\r\n",
    "the next request": request("GET", "/livez") + b"GET /top",
    "the rest of what was refused": b"GET topics HTTP/1.1\r\n\r\n and more",
}


@pytest.mark.parametrize("what", SLOW)
def test_a_client_that_does_not_get_on_is_cut_off_in_time(tmp_path: Path, what: str) -> None:
    async def scenario() -> None:
        async with watched_server(tmp_path) as server:
            await ask(server, post("/topics", ORDERS))
            async with Peer(server.endpoints["http"]) as slow:
                await slow.send(SLOW[what])
                await until(lambda: server.service.connections["http"] == 1)
                assert await is_served(server)
                sweep(server, after_s=1)
                await until(lambda: server.service.connections["http"] == 1)
                sweep(server, after_s=http_connection._IDLE_S + 1)
                await slow.read_to_the_end()
            assert await is_served(server)

    run(scenario())


def test_a_head_may_take_its_grace_time_and_no_longer(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with watched_server(tmp_path) as server, Peer(server.endpoints["http"]) as slow:
            await slow.send(b"GET /livez HTTP/1.1\r\n")
            await until(lambda: any(one._incoming for one in connections(server)))
            sweep(server, after_s=limits.BODY_GRACE_S - 1)
            await slow.send(b"Host: localhost\r\n\r\n")
            assert (await one_answer(slow)).status == 200
            sweep(server, after_s=limits.BODY_GRACE_S + 1)  # it owes nothing now
            await slow.send(b"GET /livez HTTP/1.1\r\n")
            await until(lambda: any(one._incoming for one in connections(server)))
            sweep(server, after_s=limits.BODY_GRACE_S + 1)
            assert await slow.read_to_the_end() == b""

    run(scenario())


PROMISED = {
    "nothing of it": b"",
    "a piece of it": b"x" * 1000,
    "so much that room was taken for it": b"x" * 2_000_000,
}


@pytest.mark.parametrize("what", PROMISED)
def test_a_large_body_that_was_promised_and_falls_silent_keeps_no_place(tmp_path: Path, what: str) -> None:
    """Its allowance is minutes, for what comes slowly; nothing at all comes for half a minute at most."""

    async def scenario() -> None:
        async with watched_server(tmp_path) as server:
            await ask(server, post("/topics", ORDERS))
            async with Peer(server.endpoints["http"]) as silent:
                await silent.send(publish(b"", f"Content-Length: {limits.MAX_BODY_BYTES}") + PROMISED[what])
                await until(lambda: any(one._body_bytes == len(PROMISED[what]) for one in connections(server)))
                await until(lambda: any(one._incoming for one in connections(server)))
                sweep(server, after_s=limits.SILENCE_S - 1)
                (connection,) = connections(server)
                sweep(server, after_s=limits.SILENCE_S + 1)
                assert connection.closing
                assert await silent.read_to_the_end() == b""

    run(scenario())


def test_a_body_that_comes_slowly_but_steadily_is_taken_and_not_for_longer_than_its_allowance(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with watched_server(tmp_path) as server:
            await ask(server, post("/topics", ORDERS))
            body = json.dumps({"value": "x" * 1_000_000}).encode()
            for takes_s, served in ((1.4 * limits.SILENCE_S, True), (3600.0, False)):
                async with Peer(server.endpoints["http"]) as slow:
                    await slow.send(publish(b"", f"Content-Length: {len(body)}"))
                    await until(lambda: any(one._incoming for one in connections(server)))
                    (connection,) = connections(server)
                    for at in range(10):
                        connection._since -= takes_s / 10
                        connection._heard_at -= limits.SILENCE_S - 1
                        await slow.send(body[at : at + 1])
                        await until(partial(has_arrived, connection, at + 1))
                        sweep(server, after_s=0)
                        if connection.closing:
                            break
                    if not served:
                        assert await slow.read_to_the_end() == b""
                        continue
                    await slow.send(body[10:])
                    assert (await one_answer(slow)).status == 200

    run(scenario())


def test_the_sweep_comes_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SWEEP_INTERVAL_S", 0.01)
    monkeypatch.setattr(limits, "BODY_GRACE_S", 0.0)

    async def scenario() -> None:
        async with watched_server(tmp_path) as server, Peer(server.endpoints["http"]) as slow:
            await slow.send(b"GET /topics HTTP/1.1\r\n")
            assert await slow.read_to_the_end() == b""

    run(scenario())


def test_there_is_room_for_so_many_connections_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_CONNECTIONS", 3)

    async def scenario() -> None:
        async with watched_server(tmp_path) as server:
            peers = [await Peer(server.endpoints["http"]).__aenter__() for _ in range(3)]
            for peer in peers:
                await peer.send(request("GET", "/livez"))
                assert (await one_answer(peer)).status == 200
            async with Peer(server.endpoints["http"]) as one_more:
                assert await one_more.read_to_the_end() == b""
            peers.pop().vanish()
            await until(lambda: server.service.connections["http"] == 2)
            assert (await ask(server, request("GET", "/livez")))[0].status == 200
            for peer in peers:
                peer.vanish()

    run(scenario())


def test_pipelined_requests_are_answered_in_their_order(tmp_path: Path) -> None:
    """An honest client may send on without waiting: small and large ones in one go, also ones that fail."""

    async def scenario() -> None:
        async with watched_server(tmp_path) as server:
            await ask(server, post("/topics", ORDERS))
            large = "x" * 200_000
            burst = b"".join(
                post("/topics/orders/publish", {"value": large if number % 10 == 0 else str(number)})
                + request("GET", f"/topics/nowhere-{number}")
                for number in range(50)
            )
            said = await ask(server, burst, count=100)
            assert [one.status for one in said] == [200, 404] * 50
            assert [one.body["offset"] for one in said[::2]] == list(range(50))
            assert all(f"nowhere-{number}" in one.body["error"] for number, one in enumerate(said[1::2]))

    run(scenario())


@pytest.mark.parametrize("count", [3_000, 20_000])
@pytest.mark.parametrize("receive_bytes", [None, 4096])
def test_however_many_requests_come_in_one_write_they_are_answered_in_order_and_not_kept(
    tmp_path: Path, count: int, receive_bytes: int | None
) -> None:
    async def scenario() -> None:
        async with (
            watched_server(tmp_path) as server,
            Peer(server.endpoints["http"], receive_bytes=receive_bytes) as peer,
        ):
            burst = b"".join(b"GET /topics/t%d HTTP/1.1\r\nHost: localhost\r\n\r\n" % number for number in range(count))
            sending = asyncio.ensure_future(peer.send(burst + request("GET", "/livez", b"", "Connection: close")))
            received, answered = bytearray(), 0
            while part := await peer.some():
                received += part
                end = 0
                for found in re.finditer(rb"there is no topic 't(\d+)'", received):
                    assert int(found[1]) == answered
                    answered, end = answered + 1, found.end()
                del received[:end]
                for one in connections(server):
                    assert len(one._waiting) <= 16
                    assert len(one._unread) <= limits.MIB
                    assert one._transport.get_write_buffer_size() <= limits.MIB
            await sending
            assert answered == count
            assert b"HTTP/1.1 200 OK" in received, "the last one, which asked to end the connection"

    run(scenario())


def test_many_requests_behind_a_poll_that_waits_are_answered_after_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with watched_server(tmp_path) as server:
            await ask(server, post("/topics", ORDERS))
            joined = await ask(server, post("/groups/g/join", {"client_id": "a", "topics": ["orders"]}))
            poll = request("GET", f"/groups/g/poll?member_id={joined[0].body['member_id']}&timeout=60s")
            async with Peer(server.endpoints["http"]) as peer:
                await peer.send(poll + request("GET", "/livez") * 3_000)
                await until(lambda: any(one._parked and len(one._waiting) == 16 for one in connections(server)))
                await ask(server, post("/topics/orders/publish", {"value": "wakes the poll"}))
                said = [await one_answer(peer) for _ in range(3_001)]
                assert len(said[0].body["messages"]) == 1
                assert {one.status for one in said} == {200}

    run(scenario())


def test_a_client_that_leaves_with_requests_under_way_leaves_nothing_behind(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with watched_server(tmp_path) as server:
            await ask(server, post("/topics", ORDERS))
            filled = await ask(server, post("/topics/orders/publish", {"value": "x" * 900_000}) * 8, count=8)
            assert [one.status for one in filled] == [200] * 8
            read = request("GET", "/topics/orders/messages")
            safe = post("/topics/orders/publish", {"value": "x", "acks": "all"})
            for burst in (
                read,
                read * 100,
                safe * 20,
                safe + read,
                read + safe,
                read[:-5],
                safe[:-5],
                safe + read[:-5],
            ):
                for leave in (Peer.vanish, Peer.finish):
                    async with Peer(server.endpoints["http"], receive_bytes=4096) as peer:
                        await peer.send(burst)
                        await asyncio.sleep(0)
                        leave(peer)
                    async with Peer(server.endpoints["http"], receive_bytes=4096) as peer:
                        await peer.send(burst)
                        await until(lambda: server.broker.replies.held or not server.service.connections["http"] - 1)
                        leave(peer)
                    assert await is_served(server)

    run(scenario())


# ---------------------------------------------------------------- the budgets


def test_replies_nobody_takes_are_bounded_and_others_go_on(tmp_path: Path) -> None:
    """Each connection holds one reply; the next request on it waits. Those who take their replies are served."""

    async def scenario() -> None:
        async with watched_server(tmp_path) as server:
            broker = server.broker
            await ask(server, post("/topics", ORDERS))
            await ask(server, post("/topics/orders/publish", {"value": "x" * 900_000}) * 8, count=8)
            peers = [await Peer(server.endpoints["http"], receive_bytes=4096).__aenter__() for _ in range(4)]
            for peer in peers:
                await peer.send(request("GET", "/topics/orders/messages") * 50)
            await until(lambda: broker.replies.held == 4 * limits.MAX_JSON_READ_BYTES)
            stats = (await ask(server, request("GET", "/stats")))[0].body
            assert stats["in_flight_bytes"] == 4 * limits.MAX_JSON_READ_BYTES
            assert (await ask(server, post("/topics/orders/publish", {"value": "x"})))[0].status == 200
            assert (await ask(server, request("GET", "/topics/orders/messages")))[0].status == 200
            assert broker.replies.held == 4 * limits.MAX_JSON_READ_BYTES
            sweep(server, after_s=limits.REPLY_TIMEOUT_S + 1)
            await until(lambda: broker.replies.held == 0)
            for peer in peers:
                peer.vanish()

    run(scenario())


def test_a_client_that_takes_its_reply_slowly_is_not_cut_off(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with watched_server(tmp_path) as server:
            await ask(server, post("/topics", ORDERS))
            await ask(server, post("/topics/orders/publish", {"value": "x" * 900_000}) * 8, count=8)
            async with Peer(server.endpoints["http"], receive_bytes=4096) as slow:
                await until(lambda: len(connections(server)) == 1)
                (connection,) = connections(server)
                await slow.send(request("GET", "/topics/orders/messages"))
                await until(lambda: connection._write_paused)
                for times in range(1, 5):
                    left = connection._transport.get_write_buffer_size()
                    while connection._transport.get_write_buffer_size() == left:
                        await slow.read(limits.MIB // 2)
                    sweep(server, after_s=times * (limits.REPLY_TIMEOUT_S - 1))
                assert connections(server) == [connection]
                sweep(server, after_s=6 * limits.REPLY_TIMEOUT_S)  # nothing more was taken since
                await until(lambda: not connections(server))

    run(scenario())


def test_a_read_that_finds_no_room_is_told_so_and_publishing_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ADMISSION_WAIT_S", 0.01)

    async def scenario() -> None:
        async with watched_server(tmp_path) as server:
            replies = server.broker.replies
            await ask(server, post("/topics", ORDERS))
            full = replies.take_anyway(replies.limit)
            for _ in range(3):
                (answer,) = await ask(server, request("GET", "/topics/orders/messages"))
                assert (answer.status, answer.body["code"], answer.body["retriable"]) == (429, "busy", True)
            assert (await ask(server, post("/topics/orders/publish", {"value": "x"})))[0].status == 200
            assert replies.held == replies.limit
            full.give()
            assert (await ask(server, request("GET", "/topics/orders/messages")))[0].status == 200

    run(scenario())


LARGE = post("/topics/orders/publish", {"value": "x" * 300_000})


@pytest.mark.parametrize("pieces", [1, 2, 5])
def test_a_body_waits_for_room_and_is_then_taken_once(tmp_path: Path, pieces: int) -> None:
    async def scenario() -> None:
        async with watched_server(tmp_path) as server:
            requests = server.broker.requests
            await ask(server, post("/topics", ORDERS))
            full = requests.take_anyway(requests.limit)
            async with Peer(server.endpoints["http"]) as peer:
                size = -(-len(LARGE) // pieces)
                sending = asyncio.ensure_future(send_in_pieces(peer, LARGE, size))
                await until(lambda: any(one._waits_for_room for one in connections(server)))
                assert await is_served(server)
                assert messages_in(server) == 0
                full.give()
                await sending
                assert (await one_answer(peer)).status == 200
                await peer.send(LARGE)
                assert (await one_answer(peer)).status == 200, "the connection goes on"
            assert messages_in(server) == 2

    run(scenario())


async def send_in_pieces(peer: Peer, data: bytes, size: int) -> None:
    for start in range(0, len(data), size):
        await peer.send(data[start : start + size])
        await asyncio.sleep(0)


@pytest.mark.parametrize("behind", [b"", LARGE, request("DELETE", "/topics/orders")])
def test_a_body_that_finds_no_room_is_refused_once_and_nothing_behind_it_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behind: bytes
) -> None:
    monkeypatch.setattr(limits, "ADMISSION_WAIT_S", 0.01)
    small = post("/topics/orders/publish", {"value": "x" * 70_000})  # whole in the read that finds no room

    async def scenario() -> None:
        async with watched_server(tmp_path) as server:
            requests = server.broker.requests
            await ask(server, post("/topics", ORDERS))
            full = requests.take_anyway(requests.limit)
            for body in (small, LARGE):
                async with Peer(server.endpoints["http"]) as peer:
                    await peer.send(body + behind)
                    answer = await one_answer(peer)
                    assert (answer.status, answer.body["code"]) == (429, "busy")
                    assert await peer.read_to_the_end() == b""
                assert await is_served(server)
            assert messages_in(server) == 0
            full.give()
            assert (await ask(server, LARGE))[0].status == 200

    run(scenario())


def test_a_client_that_leaves_while_its_body_waits_for_room_leaves_nothing_behind(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with watched_server(tmp_path) as server:
            requests = server.broker.requests
            await ask(server, post("/topics", ORDERS))
            taken = requests.limit - limits.MIB
            full = requests.take_anyway(taken)
            async with Peer(server.endpoints["http"]) as peer:
                sending = asyncio.ensure_future(peer.send(post("/topics/orders/publish", {"value": "x" * 4_000_000})))
                await until(lambda: any(one._waits_for_room for one in connections(server)))
                sweep(server, after_s=http_connection._IDLE_S + 1)
                await asyncio.gather(sending, return_exceptions=True)
            full.give()
            assert messages_in(server) == 0
            assert await is_served(server)

    run(scenario())


def test_a_client_that_leaves_while_its_read_waits_for_room_stands_in_front_of_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ADMISSION_WAIT_S", 10 * PATIENCE_S)

    async def scenario() -> None:
        async with watched_server(tmp_path) as server:
            replies = server.broker.replies
            await ask(server, post("/topics", ORDERS))
            full = replies.take_anyway(replies.limit)
            async with Peer(server.endpoints["http"]) as peer:
                await peer.send(post("/topics/orders/messages").replace(b"POST", b"GET", 1))
                await until(lambda: bool(replies._waiting))
            await until(lambda: not replies._waiting)
            assert replies.held == replies.limit
            full.give()
            assert replies.held == 0
            assert await is_served(server)

    run(scenario())


def test_a_refused_client_that_has_nothing_more_to_say_is_let_go_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with watched_server(tmp_path) as server, Peer(server.endpoints["http"]) as peer:
            await peer.send(b"hello\r\n\r\n")
            peer.finish()
            assert (await one_answer(peer)).status == 400
            assert await peer.read_to_the_end() == b""
            await until(lambda: not server.service.connections["http"])

    run(scenario())


# ---------------------------------------------------------------- what comes behind a refusal

REFUSED = publish(b"", "Transfer-Encoding: chunked") + b"no size\r\n"


async def send_for_ever(peer: Peer) -> int:
    """Until the broker has had enough; how much that was."""
    sent = 0
    try:
        while True:
            await peer.send(b"x" * limits.MIB)
            sent += limits.MIB
    except ConnectionError:
        return sent


def test_a_refused_client_that_never_stops_sending_hears_why_and_is_cut_off_by_what_it_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LINGER_S", PATIENCE_S)
    monkeypatch.setattr(limits, "LINGER_BYTES", 8 * limits.MIB)

    async def scenario() -> None:
        async with watched_server(tmp_path) as server, Peer(server.endpoints["http"]) as peer:
            await peer.send(REFUSED)
            sending = asyncio.ensure_future(send_for_ever(peer))
            assert (await one_answer(peer)).status == 400
            assert 4 * limits.MIB < await sending < 32 * limits.MIB, "what is read, and what fits into sockets"

    run(scenario())


def test_a_refused_client_that_never_stops_sending_is_cut_off_after_five_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert limits.LINGER_S == 5
    monkeypatch.setattr(limits, "LINGER_S", 10 * PATIENCE_S)  # so long that only the moved time gets there

    async def scenario() -> None:
        async with watched_server(tmp_path) as server, Peer(server.endpoints["http"]) as peer:
            await peer.send(REFUSED)
            assert (await one_answer(peer)).status == 400
            (connection,) = connections(server)
            for _ in range(9):
                MovedTime().move(int(PATIENCE_S * 1000))
                await peer.send(b"more")
            await until(lambda: connection._lingered >= 9 * 4)
            assert not connection.closing
            MovedTime().move(int(PATIENCE_S * 1000))
            await until(lambda: connection.closing)

    run_timed(scenario())


def test_a_refused_client_that_waits_for_its_turn_is_not_read_from_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A poll before it waits for minutes, and so does its answer: what may come meanwhile is bounded as well."""
    monkeypatch.setattr(limits, "LINGER_BYTES", 4 * limits.MIB)

    async def scenario() -> None:
        async with watched_server(tmp_path) as server:
            await ask(server, post("/topics", ORDERS))
            joined = await ask(server, post("/groups/g/join", {"client_id": "a", "topics": ["orders"]}))
            member = joined[0].body["member_id"]
            async with Peer(server.endpoints["http"]) as peer:
                await peer.send(request("GET", f"/groups/g/poll?member_id={member}&timeout=60s") + REFUSED)
                sending = asyncio.ensure_future(send_for_ever(peer))
                await until(lambda: any(one._lingered > limits.LINGER_BYTES for one in connections(server)))
                (connection,) = connections(server)
                assert (connection._reading, connection.closing) == (False, False)
                await ask(server, post("/topics/orders/publish", {"value": "wakes the poll"}))
                assert (await one_answer(peer)).status == 200
                assert (await one_answer(peer)).status == 400
                await sending

    run(scenario())


def test_a_refused_client_that_is_slow_to_read_gets_the_answers_before_its_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LINGER_S", 0.0)

    async def scenario() -> None:
        async with watched_server(tmp_path) as server:
            await ask(server, post("/topics", ORDERS))
            await ask(server, post("/topics/orders/publish", {"value": "x" * 200_000}))
            async with Peer(server.endpoints["http"], receive_bytes=4096) as slow:
                await slow.send(request("GET", "/topics/orders/messages") * 30 + REFUSED)
                answers = [await one_answer(slow) for _ in range(31)]
                assert [one.status for one in answers] == [200] * 30 + [400]
                assert await slow.read_to_the_end() == b""

    run(scenario())
