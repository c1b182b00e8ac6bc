"""One connection against brokers that behave, and brokers that do not."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from goqueue.client.connection import Connection
from goqueue.model import limits
from goqueue.model.errors import (
    Draining,
    GoQueueError,
    OffsetOutOfRange,
    ProtocolError,
    RequestTimeout,
    TooLarge,
    Unavailable,
    UnknownTopic,
)
from goqueue.model.publishing import Acks, Durability
from goqueue.model.record import Producer
from goqueue.wire import blocks, frames
from goqueue.wire.blocks import FetchReply, FetchRequest, PublishReply, PublishRequest, Range
from goqueue.wire.codes import CODES, FETCH_BLOCK, PUBLISH_BLOCK
from goqueue.wire.failures import pack_error
from goqueue.wire.frames import Welcome
from tests.support.patience import PATIENCE_S
from tests.unit.client.fake_broker import HOST, ROOMY, Peer, Request, Talk, serving
from tests.unit.client.watched import watch

METADATA = CODES["metadata"]
Use = Callable[[Connection], Awaitable[None]]


def converse(talk: Talk, use: Use, *, greeting: Welcome | None = ROOMY, call_timeout_s: float = 30.0) -> None:
    """Run both sides of a connection."""

    async def both() -> None:
        async with (
            serving(talk, greeting=greeting) as port,
            await Connection.connect(HOST, port, call_timeout_s=call_timeout_s) as connection,
        ):
            await use(connection)

    asyncio.run(both())


async def echo(peer: Peer) -> None:
    while True:
        request = await peer.read()
        peer.reply(request, request.payload)


async def idle(peer: Peer) -> None:
    await peer.read_all()


def refuse_to_connect(talk: Talk, error: type[GoQueueError], match: str, *, greeting: Welcome | None = None) -> None:
    async def both() -> None:
        async with serving(talk, greeting=greeting) as port:
            with pytest.raises(error, match=match):
                await Connection.connect(HOST, port, connect_timeout_s=0.2 if error is RequestTimeout else 30.0)

    asyncio.run(both())


# ---------------------------------------------------------------- connecting


def test_the_client_begins_with_its_preface_and_waits() -> None:
    async def talk(peer: Peer) -> None:
        assert await peer._reader.readexactly(8) == b"GQWP\x01\x01\x00\x00"
        peer.send(frames.pack_welcome(ROOMY)[:9])
        await peer._writer.drain()
        peer.send(frames.pack_welcome(ROOMY)[9:])
        await echo(peer)

    async def use(connection: Connection) -> None:
        assert await connection.call(METADATA, (b"hello",)) == b"hello"

    converse(talk, use, greeting=None)


def test_nobody_listening_is_unavailable() -> None:
    async def check() -> None:
        async with serving(idle) as port:
            pass
        with pytest.raises(Unavailable, match="is it running"):
            await Connection.connect(HOST, port)

    asyncio.run(check())


def test_a_broker_that_speaks_no_common_version_is_refused() -> None:
    refuse_to_connect(idle, ProtocolError, "no version", greeting=Welcome(0, 0, 0))


def test_a_broker_that_chooses_what_was_not_offered_is_refused() -> None:
    refuse_to_connect(idle, ProtocolError, "chose version 2", greeting=Welcome(2, 1 << 20, 1 << 20))


def test_another_kind_of_server_is_told_from_a_broker() -> None:
    async def talk(peer: Peer) -> None:
        peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await peer.read_all()

    refuse_to_connect(talk, ProtocolError, "wire port")


def test_a_broker_that_hangs_up_instead_of_a_welcome_is_unavailable() -> None:
    async def talk(peer: Peer) -> None:
        peer.send(b"GQWP")
        await peer.hang_up()

    refuse_to_connect(talk, Unavailable, "was lost")


def test_a_broker_that_says_nothing_is_not_waited_for_for_ever() -> None:
    refuse_to_connect(idle, RequestTimeout, "did not answer")


# ---------------------------------------------------------------- calls


def test_a_call_has_its_parts_in_one_frame_and_gets_its_reply() -> None:
    async def use(connection: Connection) -> None:
        parts = (b"one", bytearray(b"two"), memoryview(b"three"))
        assert await connection.call(METADATA, parts) == b"onetwothree"
        assert await connection.call(METADATA, ()) == b""

    converse(echo, use)


def test_replies_find_who_asked_in_any_order() -> None:
    async def talk(peer: Peer) -> None:
        requests = [await peer.read() for _ in range(5)]
        assert [request.payload for request in requests] == [b"0", b"1", b"2", b"3", b"4"]
        for request in (requests[3], requests[0], requests[4], requests[2], requests[1]):
            peer.reply(request, b"to " + request.payload)
        await idle(peer)

    async def use(connection: Connection) -> None:
        replies = await asyncio.gather(*(connection.call(METADATA, (b"%d" % number,)) for number in range(5)))
        assert replies == [b"to 0", b"to 1", b"to 2", b"to 3", b"to 4"]

    converse(talk, use)


def test_replies_that_come_byte_by_byte_are_replies() -> None:
    async def talk(peer: Peer) -> None:
        request = await peer.read()
        for byte in frames.pack_header(METADATA, frames.OK, request.correlation, 5) + b"hello":
            peer.send(bytes([byte]))
            await peer._writer.drain()
            await asyncio.sleep(0)
        await idle(peer)

    async def use(connection: Connection) -> None:
        assert await connection.call(METADATA, ()) == b"hello"

    converse(talk, use)


def test_large_payloads_go_and_come_whole() -> None:
    async def use(connection: Connection) -> None:
        payloads = [bytes([number]) * (400_000 + number) for number in range(6)]
        assert await asyncio.gather(*(connection.call(METADATA, (each,)) for each in payloads)) == payloads

    converse(echo, use, greeting=Welcome(1, 1 << 20, 1 << 30))


def test_an_error_of_the_broker_is_raised_as_what_it_was() -> None:
    async def talk(peer: Peer) -> None:
        peer.refuse(await peer.read(), OffsetOutOfRange(9, start=2, end=7))
        await echo(peer)

    async def use(connection: Connection) -> None:
        with pytest.raises(OffsetOutOfRange, match="outside this log") as caught:
            await connection.call(METADATA, ())
        assert caught.value.details == {"offset": 9, "earliest": 2, "latest": 7}
        assert await connection.call(METADATA, (b"still there",)) == b"still there"

    converse(talk, use)


def test_an_error_that_cannot_be_read_fails_its_call_alone() -> None:
    async def talk(peer: Peer) -> None:
        peer.reply(await peer.read(), b"not json", status=frames.ERROR)
        await echo(peer)

    async def use(connection: Connection) -> None:
        with pytest.raises(ProtocolError, match="cannot be read"):
            await connection.call(METADATA, ())
        assert await connection.call(METADATA, (b"still there",)) == b"still there"

    converse(talk, use)


def test_a_call_without_an_answer_in_time_is_given_up_and_its_late_reply_dropped() -> None:
    async def talk(peer: Peer) -> None:
        first = await peer.read()
        second = await peer.read()
        peer.reply(first, b"too late")
        peer.reply(second, b"in time")
        await idle(peer)

    async def use(connection: Connection) -> None:
        with pytest.raises(RequestTimeout, match="may have been done"):
            await connection.call(METADATA, (), timeout_s=0.01)
        assert await connection.call(METADATA, ()) == b"in time"
        assert connection.failure is None

    converse(talk, use)


# ---------------------------------------------------------------- the ends of a connection


@pytest.mark.parametrize(
    ("answer", "error", "match"),
    [
        (b"", Unavailable, "was lost"),
        (b"\x00\x00\x00\x20\x00\x03", Unavailable, "was lost"),
        (b"\x00\x00\x00\x07\x00\x03\x00\x00\x00\x00\x00\x01", ProtocolError, "at least 8"),
        (b"\xff\xff\xff\xff\x00\x03\x00\x00\x00\x00\x00\x01", ProtocolError, "at most 1048576"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", ProtocolError, "at most 1048576"),
        (frames.pack_header(METADATA, frames.OK, 77, 0), ProtocolError, "nobody asked for"),
        (frames.pack_header(METADATA + 1, frames.OK, 1, 0), ProtocolError, "nobody asked for"),
        (frames.pack_header(METADATA, 2, 1, 0), ProtocolError, "status is 2"),
    ],
    ids=["close", "half a frame", "too short", "too long", "garbage", "reply to nobody", "other operation", "status"],
)
def test_when_a_connection_fails_every_call_hears_it(answer: bytes, error: type[GoQueueError], match: str) -> None:
    async def talk(peer: Peer) -> None:
        for _ in range(3):
            await peer.read()
        peer.send(answer)
        await peer.hang_up()

    async def use(connection: Connection) -> None:
        calls = [asyncio.ensure_future(connection.call(METADATA, ())) for _ in range(3)]
        for call in calls:
            with pytest.raises(error, match=match):
                await call
        assert isinstance(connection.failure, error)
        with pytest.raises(error, match=match):
            await connection.call(METADATA, ())

    converse(talk, use)


def test_replies_before_the_end_of_a_connection_count() -> None:
    async def talk(peer: Peer) -> None:
        first = await peer.read()
        await peer.read()
        peer.reply(first, b"done")
        peer.send(b"\x00\x00\x00\x00garbage!")
        await peer.hang_up()

    async def use(connection: Connection) -> None:
        first, second = (asyncio.ensure_future(connection.call(METADATA, ())) for _ in range(2))
        assert await first == b"done"
        with pytest.raises(ProtocolError):
            await second

    converse(talk, use)


def test_a_broker_that_says_why_it_hangs_up_is_quoted() -> None:
    async def talk(peer: Peer) -> None:
        await peer.read()
        payload = pack_error(Draining("the broker is stopping; come back later"))
        peer.send(frames.pack_header(frames.GOODBYE, frames.ERROR, 0, len(payload)) + payload)
        await peer.hang_up()

    async def use(connection: Connection) -> None:
        with pytest.raises(Unavailable, match="hung up: the broker is stopping; come back later"):
            await connection.call(METADATA, ())

    converse(talk, use)


def test_closing_fails_what_is_in_flight() -> None:
    async def use(connection: Connection) -> None:
        call = asyncio.ensure_future(connection.call(METADATA, ()))
        await asyncio.sleep(0)
        await connection.close()
        with pytest.raises(Unavailable, match="closed here"):
            await call
        await connection.close()

    converse(idle, use)


def test_what_was_sent_without_an_answer_leaves_before_the_connection_closes() -> None:
    received: list[int] = []
    reading = asyncio.Event()
    block = bytes(24_000_000)

    async def talk(peer: Peer) -> None:
        await reading.wait()
        received.append(len(await peer.read_all()))

    async def use(connection: Connection) -> None:
        await connection.publish_block(1, 0, block, acks=Acks.NONE)
        closing = asyncio.ensure_future(connection.close())
        await asyncio.sleep(0)
        reading.set()
        await closing
        while not received:
            await asyncio.sleep(0)
        assert received == [frames.HEADER.size + blocks.PUBLISH_REQUEST.size + len(block)]

    converse(talk, use, greeting=Welcome(1, 1 << 25, 1 << 26))


def test_aborting_names_the_reason() -> None:
    async def use(connection: Connection) -> None:
        call = asyncio.ensure_future(connection.call(METADATA, ()))
        await asyncio.sleep(0)
        connection.abort("enough of this")
        with pytest.raises(Unavailable, match="enough of this"):
            await call

    converse(idle, use)


# ---------------------------------------------------------------- leaving together


def test_calls_made_together_leave_in_one_piece_and_in_their_order() -> None:
    async def use(connection: Connection) -> None:
        written = watch(connection)
        with connection.together():
            calls = [connection.submit(METADATA, (b"%d" % number,)) for number in range(3)]
            assert written == []
        assert written == [3 * (frames.HEADER.size + 1)]
        calls += [connection.submit(METADATA, (b"%d" % number,)) for number in range(3, 5)]
        assert written[1:] == [frames.HEADER.size + 1] * 2
        assert [(await call).payload for call in calls] == [b"0", b"1", b"2", b"3", b"4"]

    converse(echo, use)


def test_small_calls_made_together_say_that_nobody_waits_for_them() -> None:
    heard: list[int] = []

    async def listen(peer: Peer) -> None:
        while True:
            request = await peer.read()
            heard.append(request.status)
            peer.reply(request, b"")

    async def use(connection: Connection) -> None:
        await connection.call(METADATA, (b"alone",))
        with connection.together():
            calls = [connection.submit(METADATA, (bytes(size),)) for size in (1, 2, 64 * limits.KIB)]
        for call in calls:
            await call

    converse(listen, use)
    assert heard == [frames.OK, frames.PATIENT, frames.PATIENT, frames.OK]


def test_large_calls_do_not_wait_for_others_to_leave_with() -> None:
    size = 40 * limits.KIB

    async def use(connection: Connection) -> None:
        written = watch(connection)
        with connection.together():
            calls = [connection.submit(METADATA, (bytes(size),)) for _ in range(3)]
            assert written == [2 * (frames.HEADER.size + size)]
        assert [len((await call).payload) for call in calls] == [size] * 3

    converse(echo, use)


def test_what_was_to_leave_over_a_connection_that_failed_does_not() -> None:
    async def use(connection: Connection) -> None:
        written = watch(connection)
        with connection.together():
            call = connection.submit(METADATA, (b"never",))
            connection.abort("a test")
        with pytest.raises(Unavailable, match="a test"):
            await call
        assert written == []

    converse(idle, use)


# ---------------------------------------------------------------- bounds


def test_calls_wait_for_room_and_go_out_in_their_order() -> None:
    """The fourth is too large for what is left and holds back the small ones behind it, which would fit."""
    most = 3 * 112 + 30
    sizes = [100, 100, 100, 250, 1, 1, 100]
    seen: list[int] = []

    async def talk(peer: Peer) -> None:
        held: list[Request] = []
        in_flight = 0
        while len(seen) < len(sizes):
            held.append(await peer.read())
            seen.append(len(held[-1].payload))
            in_flight += len(held[-1].payload) + frames.HEADER.size
            assert in_flight <= most
            if len(seen) in (3, 6, 7):
                for request in held:
                    peer.reply(request, request.payload)
                held.clear()
                in_flight = 0
        await idle(peer)

    async def use(connection: Connection) -> None:
        replies = await asyncio.gather(*(connection.call(METADATA, (bytes(size),)) for size in sizes))
        assert [len(reply) for reply in replies] == sizes
        assert seen == sizes

    converse(talk, use, greeting=Welcome(1, 1 << 20, most))


def test_a_call_given_up_while_it_waits_for_room_makes_way() -> None:
    async def talk(peer: Peer) -> None:
        first, second = await peer.read(), await peer.read()
        assert len(second.payload) == 2
        peer.reply(first)
        peer.reply(second, b"small")
        await idle(peer)

    async def use(connection: Connection) -> None:
        first = connection.submit(METADATA, (bytes(50),))
        large = connection.submit(METADATA, (bytes(80),))
        small = connection.submit(METADATA, (bytes(2),))
        large.cancel()
        await first
        assert (await small).payload == b"small"

    converse(talk, use, greeting=Welcome(1, 1 << 20, 100))


def test_a_call_whose_answer_never_came_still_takes_room() -> None:
    async def talk(peer: Peer) -> None:
        given_up = await peer.read()
        peer.reply(given_up)
        await echo(peer)

    async def use(connection: Connection) -> None:
        with pytest.raises(RequestTimeout):
            await connection.call(METADATA, (bytes(60),), timeout_s=0)
        waiting = connection.submit(METADATA, (bytes(60),))
        assert (await waiting).payload == bytes(60)

    converse(talk, use, greeting=Welcome(1, 1 << 20, 100))


def test_no_more_calls_are_in_flight_than_a_broker_takes() -> None:
    most = limits.MAX_PENDING_REQUESTS

    async def talk(peer: Peer) -> None:
        held = [await peer.read() for _ in range(most)]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await peer.read()
        for request in held:
            peer.reply(request)
        await echo(peer)

    async def use(connection: Connection) -> None:
        await asyncio.gather(*(connection.call(METADATA, ()) for _ in range(most + 1)))

    converse(talk, use)


@pytest.mark.parametrize("welcome", [Welcome(1, 100, 1 << 20), Welcome(1, 1 << 20, 104)])
def test_a_request_the_broker_would_refuse_is_not_sent(welcome: Welcome) -> None:
    async def use(connection: Connection) -> None:
        assert await connection.call(METADATA, (bytes(92),)) == bytes(92)
        with pytest.raises(TooLarge, match="send less at a time"):
            await connection.call(METADATA, (bytes(93),))
        assert connection.failure is None

    converse(echo, use, greeting=welcome)


def test_a_client_that_sends_faster_than_the_broker_reads_waits() -> None:
    """Without answers nothing but the broker's reading makes room; only so much is buffered here."""
    reading = asyncio.Event()
    blocks_sent = 40
    size = 500_000

    async def talk(peer: Peer) -> None:
        await reading.wait()
        for _ in range(blocks_sent):
            assert len((await peer.read()).payload) == blocks.PUBLISH_REQUEST.size + size
        await echo(peer)

    async def use(connection: Connection) -> None:
        sending = [
            asyncio.ensure_future(connection.publish_block(1, 0, bytes(size), acks=Acks.NONE))
            for _ in range(blocks_sent)
        ]
        for _ in range(10):
            await asyncio.sleep(0)
        assert not all(task.done() for task in sending)
        reading.set()
        await asyncio.gather(*sending)
        assert await connection.call(METADATA, (b"x",)) == b"x"

    converse(talk, use)


# ---------------------------------------------------------------- operations


def test_publishing_a_block_sends_these_fields_and_gets_its_ranges() -> None:
    reply = PublishReply(Durability.DURABLE, (Range(2, 100, 5, True), Range(1, 103, 6)))

    async def talk(peer: Peer) -> None:
        request = await peer.read()
        assert request.operation == PUBLISH_BLOCK
        expected = PublishRequest(7, 3, Acks.LEADER, Producer(1000, 2, 41))
        assert request.payload == expected.pack() + b"records"
        peer.reply(request, reply.pack())
        await idle(peer)

    async def use(connection: Connection) -> None:
        producer = Producer(1000, 2, 41)
        assert await connection.publish_block(7, 3, b"records", acks=Acks.LEADER, producer=producer) == reply

    converse(talk, use)


def test_publishing_without_acks_waits_for_nothing() -> None:
    async def talk(peer: Peer) -> None:
        request = await peer.read()
        assert blocks.unpack_publish_request(request.payload).acks is Acks.NONE
        await echo(peer)

    async def use(connection: Connection) -> None:
        assert await connection.publish_block(7, 3, b"records", acks=Acks.NONE) == PublishReply(Durability.NONE, ())
        assert await connection.call(METADATA, (b"x",)) == b"x"

    converse(talk, use)


def test_fetching_gives_the_block_as_memory_of_its_own() -> None:
    async def talk(peer: Peer) -> None:
        request = await peer.read()
        assert request.operation == FETCH_BLOCK
        assert blocks.unpack_fetch_request(request.payload) == FetchRequest(7, 3, 10, 4096, 100, 500)
        peer.reply(request, FetchReply(12, 1, 13, 2).pack() + b"the records")
        peer.reply(await peer.read(), FetchReply(13, 1, 13, 0).pack())
        await idle(peer)

    async def use(connection: Connection) -> None:
        fetched = await connection.fetch_block(7, 3, 10, max_bytes=4096, max_count=100, max_wait_ms=500)
        empty = await connection.fetch_block(7, 3, 12)
        assert fetched[:4] == (12, 1, 13, 2)
        assert bytes(fetched.block) == b"the records"
        assert empty[:4] == (13, 1, 13, 0)
        assert not empty.block

    converse(talk, use)


def test_a_fetch_may_wait_longer_than_another_call() -> None:
    async def talk(peer: Peer) -> None:
        fetch, other = await peer.read(), await peer.read()
        assert other.operation == METADATA
        peer.reply(await peer.read())
        peer.reply(fetch, FetchReply(0, 0, 0, 0).pack())
        await idle(peer)

    async def use(connection: Connection) -> None:
        fetching = asyncio.ensure_future(connection.fetch_block(7, 3, 0, max_wait_ms=60_000))
        await asyncio.sleep(0)
        with pytest.raises(RequestTimeout):
            await connection.call(METADATA, ())
        await connection.call(METADATA, (), timeout_s=PATIENCE_S)
        assert (await fetching).records == 0

    converse(talk, use, call_timeout_s=0.01)


def test_asking_carries_json_both_ways() -> None:
    async def talk(peer: Peer) -> None:
        request = await peer.read()
        assert (request.operation, request.payload) == (METADATA, b'{"topics":["orders"]}')
        peer.reply(request, b'{"topics":[{"name":"orders","id":7}]}')
        request = await peer.read()
        assert request.payload == b"{}"
        peer.reply(request)
        peer.refuse(await peer.read(), UnknownTopic("no such topic"))
        await idle(peer)

    async def use(connection: Connection) -> None:
        assert await connection.ask(METADATA, {"topics": ["orders"]}) == {"topics": [{"name": "orders", "id": 7}]}
        assert await connection.ask(METADATA) == {}
        with pytest.raises(UnknownTopic, match="no such topic"):
            await connection.ask(METADATA)

    converse(talk, use)


@pytest.mark.parametrize("payload", [b"[]", b"nonsense", b'{"a":"\xff"}', b'{"a":' + b"[" * 100_000], ids=range(4))
def test_an_answer_that_is_no_json_object_is_refused(payload: bytes) -> None:
    async def talk(peer: Peer) -> None:
        peer.reply(await peer.read(), payload)
        await idle(peer)

    async def use(connection: Connection) -> None:
        with pytest.raises(ProtocolError, match="not a JSON object"):
            await connection.ask(METADATA)

    converse(talk, use)


@pytest.mark.parametrize("operation", [PUBLISH_BLOCK, FETCH_BLOCK])
def test_a_body_that_makes_no_sense_fails_its_call(operation: int) -> None:
    async def talk(peer: Peer) -> None:
        peer.reply(await peer.read(), b"nonsense")
        await idle(peer)

    async def use(connection: Connection) -> None:
        publishing = operation == PUBLISH_BLOCK
        with pytest.raises(ProtocolError):
            await (connection.publish_block(1, 0, b"records") if publishing else connection.fetch_block(1, 0, 0))

    converse(talk, use)
