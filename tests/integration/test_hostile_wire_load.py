"""The wire door against clients that are too slow, too many, or do not take what they asked for.

Each time somebody else is served meanwhile, and when they have gone nothing of the broker's budgets is left taken.
"""

import asyncio
from functools import partial
from pathlib import Path

import pytest

from goqueue import codec
from goqueue.model import limits
from goqueue.model.record import Record
from goqueue.wire import frames
from goqueue.wire.blocks import FETCH_REPLY, FetchRequest
from goqueue.wire.codes import FETCH_BLOCK, POLL_BLOCK, PUBLISH_BLOCK
from goqueue.wire.polls import PollRequest, unpack_poll_reply
from tests.support.broker import running_broker
from tests.support.hostile import Peer, resident_bytes, run, sweep, until
from tests.support.patience import PATIENCE_S
from tests.support.raw_wire import Target, a_target, block, call, frame, greet, read_reply

MIB = limits.MIB


def has_arrived(target: Target, size: int) -> bool:
    return any(one._buffer.held == size for one in target.connections())


async def join(target: Target, group: str = "billing") -> str:
    """The id of a new member."""
    reply = await target.ask(call("join_group", group=group, client_id="w", topics=["orders"], session_timeout="1h"))
    return str(reply.fields["member_id"])


def poll(member_id: str, *, received: int = 0, most: int = MIB, wait_ms: int = 0, group: str = "billing") -> bytes:
    return frame(POLL_BLOCK, PollRequest(group, member_id, most, 10_000, wait_ms, received).pack())


async def take(target: Target, member_id: str, *, received: int = 0) -> list[tuple[int, int]]:
    """Poll as somebody who behaves: of each row where to go on, and how often it was delivered."""
    _, rows = unpack_poll_reply((await target.ask(poll(member_id, received=received, most=16 * MIB))).payload)
    return [(row.next_offset, row.deliveries) for row in rows]


async def publish_large(target: Target, count: int) -> None:
    for _ in range(count // 4):
        data = target.publish(block(*[Record(value=b"x" * 900_000)] * 4))
        assert (await target.ask(data)).status == frames.OK


def test_a_frame_that_does_not_arrive_in_time_is_given_up(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with a_target(tmp_path) as target:
            for beginning in (b"", b"GQWP"):
                async with Peer(target.server.endpoints["wire"]) as silent:
                    await silent.send(beginning)
                    await until(lambda: target.server.service.connections["wire"] == 1)
                    sweep(target.server, after_s=limits.BODY_GRACE_S - 1)
                    sweep(target.server, after_s=limits.BODY_GRACE_S + 1)
                    assert await silent.read_to_the_end() == b""
            large = target.publish(b"x" * (4 * MIB))
            for begun in (1, frames.HEADER.size, frames.HEADER.size + 1, 2 * MIB):
                async with target.client() as slow:
                    await slow.send(large[:begun])
                    await until(lambda: any(one._buffer.held for one in target.connections()))
                    sweep(target.server, after_s=limits.BODY_GRACE_S - 1)
                    assert await target.is_served()
                    sweep(target.server, after_s=limits.BODY_GRACE_S + len(large) / limits.BODY_BYTES_PER_S + 1)
                    assert await slow.read_to_the_end() == b""
            assert await target.is_served()

    run(scenario())


def test_a_large_frame_that_was_begun_and_falls_silent_keeps_no_place(tmp_path: Path) -> None:
    """Its allowance is minutes, for what comes slowly; nothing at all comes for half a minute at most."""

    async def scenario() -> None:
        async with a_target(tmp_path) as target:
            header = frames.HEADER.pack(30 * MIB, PUBLISH_BLOCK, 0, 1)
            for begun in (header, header + b"x" * 1000, header + b"x" * (2 * MIB)):
                async with target.client() as silent:
                    await silent.send(begun)
                    await until(partial(has_arrived, target, len(begun)))
                    sweep(target.server, after_s=limits.SILENCE_S - 1)
                    (connection,) = target.connections()
                    sweep(target.server, after_s=limits.SILENCE_S + 1)
                    assert connection.closing
                    assert await silent.read_to_the_end() == b""
            assert await target.is_served()

    run(scenario())


def test_a_frame_that_comes_slowly_but_steadily_is_taken_and_not_for_longer_than_its_allowance(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with a_target(tmp_path) as target:
            large = target.publish(block(*[Record(value=b"x" * 900_000)] * 2))
            for takes_s, served in ((1.5 * limits.SILENCE_S, True), (3600.0, False)):
                async with target.client() as slow:
                    await until(lambda: len(target.connections()) == 1)
                    (connection,) = target.connections()
                    for at in range(10):
                        connection._heard_at -= takes_s / 10
                        connection._arrived_at -= limits.SILENCE_S - 1
                        await slow.send(large[50 * at : 50 * at + 50])
                        await until(partial(has_arrived, target, 50 * at + 50))
                        sweep(target.server, after_s=0)
                        if connection.closing:
                            break
                    if not served:
                        assert await slow.read_to_the_end() == b""
                        continue
                    await slow.send(large[500:])
                    assert (await read_reply(slow)).status == frames.OK

    run(scenario())


def test_a_client_may_be_silent_for_long_and_then_take_its_time_for_a_frame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with a_target(tmp_path) as target, target.client() as peer:
            await until(lambda: len(target.connections()) == 1)
            (connection,) = target.connections()
            connection._heard_at -= 3600  # an hour of silence
            sweep(target.server, after_s=0)
            data = call("version")
            await peer.send(data[:-1])
            await until(lambda: connection._buffer.held)
            sweep(target.server, after_s=1)
            await peer.send(data[-1:])
            assert (await read_reply(peer)).status == frames.OK

    run(scenario())


def test_there_is_room_for_so_many_connections_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_CONNECTIONS", 3)

    async def scenario() -> None:
        async with a_target(tmp_path) as target:
            await until(lambda: not target.connections())
            peers = [await Peer(target.server.endpoints["wire"]).__aenter__() for _ in range(3)]
            for peer in peers:
                await greet(peer)
            async with Peer(target.server.endpoints["wire"]) as one_more:
                assert await one_more.read_to_the_end() == b""
            peers.pop().vanish()
            await until(lambda: len(target.connections()) == 2)
            assert (await target.ask(call("version"))).status == frames.OK
            for peer in peers:
                peer.vanish()

    run(scenario())


def test_requests_that_wait_are_bounded_per_connection(tmp_path: Path) -> None:
    """The broker stops reading; when something comes that they wait for, all are answered."""

    async def scenario() -> None:
        async with a_target(tmp_path) as target, target.client() as peer:
            count = 3 * limits.MAX_PENDING_REQUESTS
            parked = b"".join(target.fetch(1, wait_ms=60_000, correlation=number, most=1) for number in range(count))
            await peer.send(parked)
            await until(lambda: sum(one._pending for one in target.connections()) >= limits.MAX_PENDING_REQUESTS)
            assert await target.is_served()
            assert sum(one._pending for one in target.connections()) == limits.MAX_PENDING_REQUESTS
            assert (await target.ask(target.publish(block()))).status == frames.OK
            replies = [await read_reply(peer) for _ in range(count)]
            assert sorted(reply.correlation for reply in replies) == list(range(count))
            assert {reply.status for reply in replies} == {frames.OK}

    run(scenario())


def test_polls_that_wait_are_bounded_per_connection(tmp_path: Path) -> None:
    """One member each, so that none sends another home; when something comes, all but the first are answered too."""

    async def scenario() -> None:
        async with a_target(tmp_path) as target, target.client() as peer:
            members = [await join(target, f"group-{number}") for number in range(8)]
            ends = {}
            for number, member in enumerate(members):
                reply = await target.ask(poll(member, group=f"group-{number}"))
                ends[number] = unpack_poll_reply(reply.payload)[0].number
            waiting = [
                poll(member, group=f"group-{number}", received=ends[number], wait_ms=60_000)
                for number, member in enumerate(members)
            ]
            await peer.send(b"".join(waiting) * limits.MAX_PENDING_REQUESTS)
            answered = len(waiting) * (limits.MAX_PENDING_REQUESTS - 1)
            for _ in range(answered):
                assert (await read_reply(peer)).status == frames.OK
            assert len(target.broker.groups.parks) == len(waiting)
            assert sum(one._pending for one in target.connections()) == len(waiting)
            assert await target.is_served()
            assert (await target.ask(target.publish(block()))).status == frames.OK
            last = [unpack_poll_reply((await read_reply(peer)).payload)[1] for _ in waiting]
            assert [[row.next_offset for row in rows] for rows in last] == [[2]] * len(waiting)

    run(scenario())


def test_a_wait_is_never_longer_than_a_broker_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("goqueue.wire.blocks.MAX_WAIT_MS", 10)
    monkeypatch.setattr("goqueue.wire.polls.MAX_WAIT_MS", 10)

    async def scenario() -> None:
        async with a_target(tmp_path) as target:
            reply = await target.ask(target.fetch(1, wait_ms=2**32 - 1))
            assert FETCH_REPLY.unpack(reply.payload) == (1, 0, 1, 0)
            member = await join(target)
            assert await take(target, member) == [(1, 1)]
            received = target.broker.groups.machine.group("billing").members[member].took
            reply = await target.ask(poll(member, received=received, wait_ms=2**32 - 1))
            assert unpack_poll_reply(reply.payload)[1] == []

    run(scenario())


def test_replies_nobody_takes_are_bounded_and_others_go_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with a_target(tmp_path) as target:
            await publish_large(target, 2 * 16)
            peers = [await Peer(target.server.endpoints["wire"], receive_bytes=4096).__aenter__() for _ in range(4)]
            for peer in peers:
                await greet(peer)
                await peer.send(target.fetch(1, most=16 * MIB) * 100)
            await until(lambda: sum(one._write_paused for one in target.connections()) == 4)
            held = target.broker.replies.held
            assert held <= 4 * limits.MAX_CONNECTION_BYTES
            assert await target.is_served()
            assert (await target.ask(target.publish(block()))).status == frames.OK
            assert (await target.ask(target.fetch(1, most=16 * MIB))).status == frames.OK
            assert target.broker.replies.held == held, "none of them got any further"
            sweep(target.server, after_s=limits.REPLY_TIMEOUT_S - 1)
            assert target.broker.replies.held == held
            sweep(target.server, after_s=limits.REPLY_TIMEOUT_S + 1)
            await until(lambda: target.broker.replies.held == 0)
            for peer in peers:
                peer.vanish()

    run(scenario())


def test_polls_nobody_takes_are_bounded_and_what_they_took_comes_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with a_target(tmp_path) as target:
            groups = [f"group-{number}" for number in range(4)]
            members = [await join(target, group) for group in groups]
            await publish_large(target, 2 * 16)
            peers = [await Peer(target.server.endpoints["wire"], receive_bytes=4096).__aenter__() for _ in groups]
            for peer, group, member in zip(peers, groups, members, strict=True):
                await greet(peer)
                await peer.send(poll(member, group=group, most=16 * MIB) * 100)
            await until(lambda: sum(one._write_paused for one in target.connections()) == 4)
            assert target.broker.replies.held <= 4 * limits.MAX_CONNECTION_BYTES
            assert await target.is_served()
            assert len(await take(target, await join(target))) == 1
            sweep(target.server, after_s=limits.REPLY_TIMEOUT_S + 1)
            await until(lambda: target.broker.replies.held == 0)
            for peer in peers:
                peer.vanish()
            await until(lambda: not target.connections())
            for group, member in zip(groups, members, strict=True):
                reply = await target.ask(poll(member, group=group, most=16 * MIB))
                (row, *_) = unpack_poll_reply(reply.payload)[1]
                assert (row.deliveries, codec.decode(bytes(row.block))[0].offset) == (1, 0)

    run(scenario())


def test_a_client_that_takes_its_replies_slowly_is_not_cut_off(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with a_target(tmp_path) as target:
            await publish_large(target, 16)
            async with target.client(receive_bytes=4096) as slow:
                await slow.send(target.fetch(1, most=16 * MIB))
                await until(lambda: any(one._write_paused for one in target.connections()))
                (connection,) = target.connections()
                for times in range(1, 6):
                    left = connection._transport.get_write_buffer_size()
                    while connection._transport.get_write_buffer_size() == left:
                        await slow.read(MIB)
                    sweep(target.server, after_s=times * (limits.REPLY_TIMEOUT_S - 1))
                assert target.connections() == [connection]
                sweep(target.server, after_s=6 * limits.REPLY_TIMEOUT_S)  # nothing more was taken since
                await until(lambda: not target.connections())

    run(scenario())


def test_who_finds_no_room_for_a_reply_is_told_so_and_publishing_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ADMISSION_WAIT_S", 0.01)

    async def scenario() -> None:
        async with a_target(tmp_path) as target:
            replies = target.broker.replies
            member = await join(target)
            full = replies.take_anyway(replies.limit)
            polls = poll(member), call("poll", group="billing", member_id=member, timeout=0)
            for data in (target.fetch(), call("read_topic", topic="orders"), *polls):
                assert (await target.ask(data)).code == "busy"
            assert (await target.ask(target.publish(block()))).status == frames.OK
            assert replies.held == replies.limit
            full.give()
            assert await target.is_served()
            assert await take(target, member) == [(2, 1)], "a poll without room took nothing"

    run(scenario())


@pytest.mark.parametrize("what", ["fetch_block", "poll_block", "read_topic", "poll"])
def test_a_client_that_leaves_while_it_waits_for_room_stands_in_front_of_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(limits, "ADMISSION_WAIT_S", 10 * PATIENCE_S)

    async def scenario() -> None:
        async with a_target(tmp_path) as target:
            replies = target.broker.replies
            member = await join(target)
            full = replies.take_anyway(replies.limit)
            asked = {
                "fetch_block": target.fetch(),
                "poll_block": poll(member),
                "read_topic": call("read_topic", topic="orders"),
                "poll": call("poll", group="billing", member_id=member, timeout=0),
            }
            async with target.client() as peer:
                await peer.send(asked[what])
                await until(lambda: bool(replies._waiting))
            await until(lambda: not replies._waiting)
            assert replies.held == replies.limit
            full.give()
            assert replies.held == 0
            assert await take(target, member) == [(1, 1)], "it took nothing"

    run(scenario())


def test_a_large_frame_waits_for_room_and_is_then_taken_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with a_target(tmp_path) as target, target.client() as peer:
            requests = target.broker.requests
            full = requests.take_anyway(requests.limit)
            data = target.publish(block(*[Record(value=b"x" * 900_000)] * 3))
            sending = asyncio.ensure_future(peer.send(data))
            await until(lambda: any(one._waits_for_room for one in target.connections()))
            assert await target.is_served()
            full.give()
            await sending
            assert (await read_reply(peer)).status == frames.OK
            assert target.state()[1] == 4
            await peer.send(target.publish(block()))
            assert (await read_reply(peer)).status == frames.OK
            sweep(target.server, after_s=limits.SWEEP_INTERVAL_S + 1)
            assert requests.held == 0, "a buffer nobody needs is given back"

    run(scenario())


@pytest.mark.parametrize("gone", [True, False])
def test_a_large_frame_that_finds_no_room_ends_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    monkeypatch.setattr(limits, "BODY_GRACE_S", 0.05)

    async def scenario() -> None:
        async with a_target(tmp_path) as target:
            requests = target.broker.requests
            full = requests.take_anyway(requests.limit)
            async with target.client() as peer:
                sending = asyncio.ensure_future(peer.send(target.publish(block(*[Record(value=b"x" * 900_000)] * 3))))
                await until(lambda: any(one._waits_for_room for one in target.connections()))
                if gone:
                    sending.cancel()
                    peer.vanish()
                else:
                    assert (await read_reply(peer)).code == "busy"
                    await peer.read_to_the_end()
                await asyncio.gather(sending, return_exceptions=True)
            assert await target.is_served()
            full.give()
            assert target.state()[1] == 1

    run(scenario())


# ---------------------------------------------------------------- a process, and its memory


def test_hostile_clients_do_not_grow_a_broker(tmp_path: Path) -> None:
    """Promised frames, half frames, parked fetches and polls, replies nobody takes, all at once, on a real broker."""
    with running_broker(tmp_path) as broker:
        created = broker.request("POST", "/topics", {"name": "orders", "num_partitions": 1}).body
        for _ in range(16):
            assert broker.request("POST", "/topics/orders/publish", {"value": "x" * 1_000_000}).status == 200
        topic_id = int(created["topic_id"], 16)
        joining = {"client_id": "w", "topics": ["orders"], "start": "latest"}
        members = [
            broker.request("POST", f"/groups/g-{number}/join", joining).body["member_id"] for number in range(50)
        ]
        memory = resident_bytes(broker.pid)

        async def attack() -> int:
            fetch = frame(FETCH_BLOCK, FetchRequest(topic_id, 0, 0, 16 * MIB, 10**6, 0).pack())
            parked = frame(FETCH_BLOCK, FetchRequest(topic_id, 0, 16, 16 * MIB, 10**6, 60_000).pack())
            promised = frames.HEADER.pack(limits.MAX_FRAME_BYTES, PUBLISH_BLOCK, 0, 1)
            peers = [await Peer(broker.wire, receive_bytes=4096).__aenter__() for _ in range(204)]
            for number, peer in enumerate(peers):
                await greet(peer)
                if number < 4:
                    await peer.send(fetch * 50)
                elif number < 104:
                    await peer.send(promised + b"x" * 10_000)
                elif number < 154:
                    await peer.send(parked * 100)
                else:
                    group = number - 154
                    await peer.send(poll(members[group], group=f"g-{group}", most=16 * MIB, wait_ms=60_000) * 100)
            async with Peer(broker.wire) as honest:
                await greet(honest)
                await honest.send(fetch)
                assert len((await read_reply(honest)).payload) > 15 * MIB
            grown = resident_bytes(broker.pid) - memory
            for peer in peers:
                peer.vanish()
            return grown

        assert run(attack()) < 256 * MIB, "four times 16 MiB, copied once on the way, and small change"
        assert broker.request("POST", "/topics/orders/publish", {"value": "still here"}).status == 200

        async def calm() -> None:
            await until(lambda: broker.request("GET", "/stats").body["in_flight_bytes"] == 0)

        run(calm())
