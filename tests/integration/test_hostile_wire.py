"""The wire door against clients that mean harm, or know no better: raw bytes in, a clear refusal or a closed door out.

Each time nothing has changed afterwards, nothing is left behind, and somebody else is served meanwhile.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from goqueue.codec.layout import FLAGS_AT, HEADER_BYTES
from goqueue.model import limits
from goqueue.model.publishing import Acks
from goqueue.model.record import Extension, Producer, Record
from goqueue.telemetry import logs
from goqueue.wire import frames
from goqueue.wire.blocks import FETCH_REPLY, FETCH_REQUEST, PUBLISH_REQUEST
from goqueue.wire.codes import CODES, FETCH_BLOCK, POLL_BLOCK, PUBLISH_BLOCK, SETTLE_BLOCK
from goqueue.wire.polls import POLL_REQUEST, PollRequest, unpack_poll_reply
from goqueue.wire.settles import SETTLE_REQUEST, Action, Claim, OffsetRange, SettleRequest, unpack_settle_reply
from tests.support.hostile import Peer, run, until
from tests.support.raw_wire import Target, a_target, block, call, frame, read_reply, resealed

MIB = limits.MIB

# ---------------------------------------------------------------- no wire protocol

NO_PREFACE = {
    "HTTP": b"GET /topics HTTP/1.1\r\nHost: broker\r\n\r\n",
    "a TLS hello": bytes.fromhex("16030100c8010000c40303") + b"\x5a" * 200,
    "zeros": b"\x00" * 1000,
    "text": b"hello, is this a broker?\r\n",
    "another magic": b"GQWQ\x01\x01\x00\x00",
    "a record": block(),
    "version 0": b"GQWP\x00\x00\x00\x00",
    "version 0 to 1": b"GQWP\x00\x01\x00\x00",
    "versions the wrong way round": b"GQWP\x02\x01\x00\x00",
    "something where there must be zeros": b"GQWP\x01\x01\x00\x01",
}


@pytest.mark.parametrize("what", NO_PREFACE)
def test_who_does_not_begin_with_a_preface_is_hung_up_on(tmp_path: Path, what: str) -> None:
    async def scenario() -> None:
        async with a_target(tmp_path) as target:
            before = target.state()
            async with Peer(target.server.endpoints["wire"]) as peer:
                await peer.send(NO_PREFACE[what])
                assert await target.is_served()
                assert await peer.read_to_the_end() == b""
            assert target.state() == before

    run(scenario())


def test_a_version_that_is_not_spoken_is_answered_and_ends_the_connection(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with a_target(tmp_path) as target, Peer(target.server.endpoints["wire"]) as peer:
            await peer.send(frames.pack_preface(9, 9) + call("delete_topic", topic="orders"))
            welcome = frames.unpack_welcome(await peer.read_to_the_end())
            assert welcome.version == 0
            assert list(target.broker.topics.by_name) == ["orders"]

    run(scenario())


# ---------------------------------------------------------------- frames that leave no way to go on

NO_FRAME = {
    "length 0": frames.HEADER.pack(0, PUBLISH_BLOCK, 0, 1),
    "length 7": frames.HEADER.pack(7, PUBLISH_BLOCK, 0, 1),
    "length over the maximum": frames.HEADER.pack(limits.MAX_FRAME_BYTES + 1, PUBLISH_BLOCK, 0, 1),
    "length 2**32 - 1": frames.HEADER.pack(2**32 - 1, PUBLISH_BLOCK, 0, 1),
    "a reply": frame(CODES["version"], b"{}", status=frames.ERROR),
    "a status nobody knows": frame(CODES["version"], b"{}", status=0xFFFF),
    "a second preface": frames.pack_preface() + b"\x00" * 4,
    "text": b"hello, is this a broker?",
}


@pytest.mark.parametrize("what", NO_FRAME)
def test_a_frame_that_cannot_be_one_ends_the_connection_with_a_reason(
    tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "SELDOM_PER_S", 1000)

    async def scenario() -> None:
        async with a_target(tmp_path) as target:
            before = target.state()
            async with target.client() as peer:
                await peer.send(target.fetch() + NO_FRAME[what] + call("delete_topic", topic="orders"))
                assert (await read_reply(peer)).status == frames.OK
                goodbye = await read_reply(peer)
                assert await peer.read_to_the_end() == b""
            assert (goodbye.operation, goodbye.correlation) == (frames.GOODBYE, 0)
            assert goodbye.code in ("protocol_error", "too_large")
            assert await target.is_served()
            assert target.state() == before

    run(scenario())
    assert "connection closed" in caplog.messages


def test_half_a_frame_is_in_the_log_and_a_publisher_beside_sees_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "SELDOM_PER_S", 1000)

    async def scenario() -> None:
        async with a_target(tmp_path) as target, target.client() as beside:
            async with target.client() as peer:
                await peer.send(frames.HEADER.pack(2**20, PUBLISH_BLOCK, 0, 1) + b"half of it")
                await beside.send(target.fetch())
                assert (await read_reply(beside)).status == frames.OK
            await until(lambda: "client left in the middle of a frame" in caplog.messages)
            await beside.send(target.fetch())
            assert (await read_reply(beside)).status == frames.OK

    run(scenario())


# ---------------------------------------------------------------- requests that are refused, and the connection goes on


def with_flags(flags: int) -> bytes:
    data = bytearray(block())
    data[FLAGS_AT] |= flags
    return resealed(bytes(data))


def extended(**fields: Any) -> bytes:
    return block(extension=Extension(**fields))


def forged(position: int, value: int) -> bytes:
    data = bytearray(block(extension=Extension(event_time=1)))
    data[position] = value
    return resealed(bytes(data))


SOMEBODY = Producer(1, 0, 0)

BAD_BLOCKS: dict[str, tuple[bytes, str]] = {
    "no block": (b"", "invalid_request"),
    "a byte": (b"G", "invalid_record"),
    "garbage": (b"garbage" * 20, "invalid_record"),
    "a record without its end": (block()[:-1], "invalid_record"),
    "a record and a byte": (block() + b"G", "invalid_record"),
    "a record and half another": (block() + block()[:HEADER_BYTES], "invalid_record"),
    "a wrong checksum": (block()[:-1] + b"y", "invalid_record"),
    "a wrong checksum in the last of many": (block() * 99 + block()[:-1] + b"y", "invalid_record"),
    "an unknown flag": (with_flags(0x80), "invalid_record"),
    "an unknown version": (b"GQ\x02" + block()[3:], "invalid_record"),
    "a priority of no lane": (forged(24, 9), "invalid_record"),
    "a value length beyond the block": (resealed(block()[:28] + b"\x00\xff\xff\xff" + block()[32:]), "invalid_record"),
    "a value length of 4 GiB": (block()[:28] + b"\xff\xff\xff\xff" + block()[32:], "invalid_record"),
    "a control record": (block(control=True), "invalid_request"),
    "a commit": (block(control=True, commit=True), "invalid_request"),
    "a control record among others": (block() + block(control=True) + block(), "invalid_request"),
    "somebody's producer fields": (extended(producer=SOMEBODY), "invalid_request"),
    "a blob": (extended(blob=b"broker's own"), "invalid_request"),
    "a transaction": (extended(transaction=7), "invalid_request"),
    "all of it": (extended(deliver_at=1, expires_at=1, producer=SOMEBODY, transaction=1, blob=b"x"), "invalid_request"),
    "an extension field nobody knows": (
        resealed(block(extension=Extension(event_time=1)).replace(b"\x00\x0a\x00\x04", b"\x00\x0a\x01\x00")),
        "invalid_request",
    ),
    "more than the topic allows": (block(Record(value=b"x" * (MIB + 1))), "too_large"),
}


def test_a_block_that_may_not_be_published_is_refused_and_the_connection_goes_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with a_target(tmp_path) as target, target.client() as peer:
            before = target.state()
            for what, (data, code) in BAD_BLOCKS.items():
                for acks in (Acks.LEADER, Acks.ALL):
                    await peer.send(target.publish(data, acks=acks))
                    assert (await read_reply(peer)).code == code, what
                await peer.send(target.publish(data, acks=Acks.NONE) + frame(CODES["version"], correlation=77))
                assert (await read_reply(peer)).correlation == 77, "nobody who wants no answer gets one"
                assert target.state() == before, what
            assert await target.is_served()

    run(scenario())


def test_producer_fields_without_a_producer_we_know_are_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with a_target(tmp_path) as target, target.client() as peer:
            before = target.state()
            stamped = extended(producer=Producer(0, 0, 0))
            for who in (Producer(0, 0, 0), Producer(1, 0, 0), Producer(2**62, 2**15 - 1, 2**31 - 1)):
                await peer.send(target.publish(stamped, producer=who))
                assert (await read_reply(peer)).code == "unknown_producer"
            await peer.send(call("init_producer"))
            producer_id = (await read_reply(peer)).fields["producer_id"]
            for data, who, code in (
                (block(), Producer(producer_id, 0, 0), "invalid_record"),  # no fields to write them into
                (stamped, Producer(producer_id, 0, 5), "unknown_producer"),
                (stamped, Producer(producer_id + 1, 0, 0), "unknown_producer"),
                (stamped + block(), Producer(producer_id, 0, 0), "invalid_record"),
            ):
                await peer.send(target.publish(data, producer=who))
                assert (await read_reply(peer)).code == code, (data, who)
            assert target.state()[:2] == before[:2]
            await peer.send(target.publish(extended(producer=Producer(9, 9, 9)), producer=Producer(producer_id, 0, 0)))
            assert (await read_reply(peer)).status == frames.OK
            (_, ours) = target.broker.topics.named("orders").partition(0).log.records(0, max_bytes=MIB, max_count=9)
            assert ours.extension == Extension(producer=Producer(producer_id, 0, 0)), "the broker writes who it was"

    run(scenario())


def bad_requests(target: Target) -> dict[str, tuple[bytes, str]]:
    publish, fetch = target.publish(block()), target.fetch()
    payload = fetch[frames.HEADER.size :]

    def fetch_like(*, topic: int = target.topic_id, partition: int = 0, offset: int = 0, size: int = 1, count: int = 1,
                   wait_ms: int = 0) -> bytes:  # fmt: skip
        return frame(FETCH_BLOCK, FETCH_REQUEST.pack(topic, partition, offset, size, count, wait_ms))

    def publish_like(topic: int = target.topic_id, acks: int = 1, flags: int = 0, epoch: int = 0, producer_id: int = 0,
                     sequence: int = 0) -> bytes:  # fmt: skip
        head = PUBLISH_REQUEST.pack(topic, 0, acks, flags, epoch, producer_id, sequence)
        return frame(PUBLISH_BLOCK, head + block(extension=Extension(producer=SOMEBODY)))

    poll = PollRequest("billing", "w-1", 1, 1).pack()

    def poll_like(group: bytes = b"billing", member: bytes = b"w-1", *, received: int = 0, version: int = 0,
                  size: int = 1, count: int = 1, lengths: tuple[int, int] | None = None) -> bytes:  # fmt: skip
        head = POLL_REQUEST.pack(received, version, size, count, 0, 0, *(lengths or (len(group), len(member))))
        return frame(POLL_BLOCK, head + group + member)

    def settle_like(*ranges: OffsetRange, poll: int = 1, **fields: Any) -> bytes:
        claim = Claim(target.topic_id, 0, poll, 0, ranges)
        return frame(SETTLE_BLOCK, SettleRequest(Action.ACK, 1, [claim])._replace(**fields).pack())

    settle = settle_like((0, 1))[frames.HEADER.size :]

    return {
        "operation 0": (frame(0), "unknown_operation"),
        "an operation nobody knows": (frame(999, b"{}"), "unknown_operation"),
        "the last operation": (frame(0xFFFF, b"\xff" * 100), "unknown_operation"),
        "a publish without anything": (frame(PUBLISH_BLOCK), "protocol_error"),
        "a publish without its last byte": (
            frame(PUBLISH_BLOCK, publish[frames.HEADER.size :][: PUBLISH_REQUEST.size - 1]),
            "protocol_error",
        ),
        "acks 3": (publish_like(acks=3), "protocol_error"),
        "acks 255": (publish_like(acks=255), "protocol_error"),
        "a flag nobody knows": (publish_like(flags=2), "protocol_error"),
        "all flags": (publish_like(flags=255), "protocol_error"),
        "a producer id without the flag": (publish_like(producer_id=1), "protocol_error"),
        "an epoch without the flag": (publish_like(epoch=1), "protocol_error"),
        "a sequence without the flag": (publish_like(sequence=1), "protocol_error"),
        "a negative producer id": (publish_like(flags=1, producer_id=-1), "protocol_error"),
        "a negative epoch": (publish_like(flags=1, producer_id=1, epoch=-1), "protocol_error"),
        "a negative sequence": (publish_like(flags=1, producer_id=1, sequence=-1), "protocol_error"),
        "a publish to a foreign topic": (publish_like(topic=target.topic_id ^ 1), "unknown_topic"),
        "a publish to topic 0": (publish_like(topic=0), "unknown_topic"),
        "a publish to partition 1": (target.publish(block(), partition=1), "unknown_partition"),
        "a publish to the last partition": (target.publish(block(), partition=2**32 - 1), "unknown_partition"),
        "a fetch without anything": (frame(FETCH_BLOCK), "protocol_error"),
        "a fetch without its last byte": (frame(FETCH_BLOCK, payload[:-1]), "protocol_error"),
        "a fetch with flags nobody knows": (frame(FETCH_BLOCK, payload + b"\x02"), "protocol_error"),
        "a fetch with two bytes more": (frame(FETCH_BLOCK, payload + b"\x00\x00"), "protocol_error"),
        "a fetch from a foreign topic": (fetch_like(topic=target.topic_id ^ 1), "unknown_topic"),
        "a fetch from partition 1": (fetch_like(partition=1), "unknown_partition"),
        "a fetch from the last partition": (fetch_like(partition=2**32 - 1), "unknown_partition"),
        "a fetch from a negative offset": (fetch_like(offset=-1), "protocol_error"),
        "a fetch from the most negative offset": (fetch_like(offset=-(2**63)), "protocol_error"),
        "a fetch behind the end": (fetch_like(offset=2), "offset_out_of_range"),
        "a fetch from the last offset": (fetch_like(offset=2**63 - 1), "offset_out_of_range"),
        "a fetch from the last offset that waits": (fetch_like(offset=2**63 - 1, wait_ms=1), "offset_out_of_range"),
        "a fetch of no bytes": (fetch_like(size=0), "protocol_error"),
        "a fetch of no records": (fetch_like(count=0), "protocol_error"),
        "a poll without anything": (frame(POLL_BLOCK), "protocol_error"),
        "a poll without names": (frame(POLL_BLOCK, poll[: POLL_REQUEST.size]), "protocol_error"),
        "a poll without its last byte": (frame(POLL_BLOCK, poll[:-1]), "protocol_error"),
        "a poll with one byte more": (frame(POLL_BLOCK, poll + b"\x00"), "protocol_error"),
        "a poll with names that are not there": (poll_like(lengths=(255, 255)), "protocol_error"),
        "a poll with names in a foreign code": (poll_like(member=b"w\xff"), "protocol_error"),
        "a poll cut within a letter": (poll_like(b"billing\xc3", b"\xbcw"), "protocol_error"),
        "a poll of no bytes": (poll_like(size=0), "protocol_error"),
        "a poll of no messages": (poll_like(count=0), "protocol_error"),
        "a poll that received less than nothing": (poll_like(received=-2), "protocol_error"),
        "a poll that received what there cannot be": (poll_like(received=2**63 - 1), "protocol_error"),
        "a poll that knows less than nothing": (poll_like(version=-(2**63)), "protocol_error"),
        "a settle without anything": (frame(SETTLE_BLOCK), "protocol_error"),
        "a settle without rows": (frame(SETTLE_BLOCK, settle[: SETTLE_REQUEST.size]), "protocol_error"),
        "a settle without its last byte": (frame(SETTLE_BLOCK, settle[:-1]), "protocol_error"),
        "a settle with one byte more": (frame(SETTLE_BLOCK, settle + b"\x00"), "protocol_error"),
        "a settle of 65535 rows": (frame(SETTLE_BLOCK, settle[:11] + b"\xff\xff" + settle[13:]), "protocol_error"),
        "a settle of 2**32 - 1 ranges": (
            frame(SETTLE_BLOCK, settle[:-20] + b"\xff" * 4 + settle[-16:]),
            "protocol_error",
        ),
        "action 0": (frame(SETTLE_BLOCK, b"\x00" + settle[1:]), "protocol_error"),
        "action 255": (frame(SETTLE_BLOCK, b"\xff" + settle[1:]), "protocol_error"),
        "an ack with a delay": (settle_like((0, 1), argument=5), "protocol_error"),
        "an ack with a reason": (settle_like((0, 1), reason="because"), "protocol_error"),
        "an extension for ever": (
            settle_like((0, 1), action=Action.EXTEND, argument=2**63 - 1),
            "protocol_error",
        ),
        "a settle of a negative group": (settle_like((0, 1), group=-1), "protocol_error"),
        "a settle of a negative poll": (settle_like((0, 1), poll=-(2**63)), "protocol_error"),
        "a settle of all offsets": (settle_like((0, limits.MAX_OFFSET)), "protocol_error"),
        "a settle from a negative offset": (settle_like((-1, 1)), "protocol_error"),
        "a settle to the last number": (settle_like((2**63 - 2, 2**63 - 1)), "protocol_error"),
        "a settle of nothing": (settle_like((1, 1)), "protocol_error"),
        "a settle of overlapping ranges": (settle_like((0, 2), (1, 3)), "protocol_error"),
        "a poll of a group nobody made": (poll_like(), "unknown_group"),
        "a poll of a group without a name": (poll_like(b"", b""), "unknown_group"),
        "a poll of a path": (poll_like(b"../../etc"), "unknown_group"),
        "a poll of a group of 255 zeros": (poll_like(bytes(255), bytes(255)), "unknown_group"),
        "a group of 1 MB": (call("describe_group", group="g" * 1_000_000), "unknown_group"),
        "a new member of a group of 1 MB": (
            call("join_group", group="g" * 1_000_000, client_id="w", topics=["orders"]),
            "invalid_request",
        ),
        "an old member of a group of 1 MB": (
            call("join_group", group="g" * 1_000_000, client_id="w", topics=["orders"], member_id="w-0123456789abcdef"),
            "invalid_request",
        ),
        "a commit of a group nobody made": (
            call("commit", group="billing", member_id="w-1", offsets={"orders": {"0": 1}}),
            "unknown_group",
        ),
        "a path for a group": (call("join_group", group="../etc", client_id="w", topics=["orders"]), "invalid_request"),
        "a member without a topic": (call("join_group", group="billing", client_id="w", topics=[]), "invalid_request"),
        "a member of a topic nobody made": (
            call("join_group", group="billing", client_id="w", topics=["orders", "payments"]),
            "unknown_topic",
        ),
        "a member that was never there": (
            call("join_group", group="billing", client_id="w", topics=["orders"], member_id="w-0123456789abcdef"),
            "unknown_member",
        ),
        "a member that may sleep for ever": (
            call("join_group", group="billing", client_id="w", topics=["orders"], session_timeout="9999h"),
            "invalid_request",
        ),
        "no JSON": (frame(CODES["metadata"], b"\xff\xfe"), "invalid_request"),
        "an array": (frame(CODES["metadata"], b"[]"), "invalid_request"),
        "a number": (frame(CODES["list_topics"], b"5"), "invalid_request"),
        "half an object": (frame(CODES["metadata"], b'{"topics":'), "invalid_request"),
        "90,000 brackets": (frame(CODES["metadata"], b'{"topics":' + b"[" * 90_000), "invalid_request"),
        "90,000 brackets, well closed": (
            frame(CODES["metadata"], b'{"topics":' + b"[" * 90_000 + b"]" * 90_000 + b"}"),
            "invalid_request",
        ),
        "2 MiB of JSON": (frame(CODES["metadata"], b'{"topics":[' + b"[]," * 700_000 + b"[]]}"), "too_large"),
        "a field nobody knows": (call("list_topics", nope=1), "invalid_request"),
        "a field name of 100 KB": (call("list_topics", **{"n" * 100_000: 1}), "invalid_request"),
        "a topic that is a number": (call("describe_topic", topic=5), "invalid_request"),
        "no topic": (call("describe_topic"), "invalid_request"),
        "a topic of 1 MB": (call("describe_topic", topic="t" * 1_000_000), "unknown_topic"),
        "a path for a topic": (call("delete_topic", topic="../../etc"), "unknown_topic"),
        "half of a surrogate pair": (frame(CODES["delete_topic"], rb'{"topic":"\ud800 and more"}'), "invalid_request"),
        "a path to create": (call("create_topic", name="../../etc"), "invalid_request"),
        "our own name to create": (call("create_topic", name="__metadata"), "invalid_request"),
        "partition -1": (call("read_partition", topic="orders", partition=-1), "invalid_request"),
        "partition true": (call("read_partition", topic="orders", partition=True), "invalid_request"),
        "partition 10**60": (call("read_partition", topic="orders", partition=10**60), "invalid_request"),
        "a partition of 4,000 digits": (
            frame(CODES["read_partition"], b'{"topic":"orders","partition":' + b"9" * 4000 + b"}"),
            "invalid_request",
        ),
        "a partition of 40,000 digits": (
            frame(CODES["read_partition"], b'{"topic":"orders","partition":' + b"9" * 40_000 + b"}"),
            "invalid_request",
        ),
        "a producer of 60 digits": (call("producer_heartbeat", producer_id=10**59, epoch=0), "invalid_request"),
        "a time that is none": (call("offsets", topic="orders", timestamp="tomorrow"), "invalid_request"),
        "a 1,001st message": (call("read_topic", topic="orders", limit=1001), "invalid_request"),
    }  # fmt: skip


def test_a_request_that_makes_no_sense_is_refused_and_the_connection_goes_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with a_target(tmp_path) as target, target.client() as peer:
            before = target.state()
            for what, (data, code) in bad_requests(target).items():
                await peer.send(data)
                reply = await read_reply(peer)
                assert (reply.code, reply.correlation) == (code, 1), what
                assert target.state() == before, what
            assert await target.is_served()

    run(scenario())


def test_every_answer_finds_its_request_whatever_came_between(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with a_target(tmp_path) as target, target.client() as peer:
            bad = [data for data, _ in bad_requests(target).values()]
            await peer.send(b"".join(bad) + frame(CODES["version"], correlation=2))
            replies = [await read_reply(peer) for _ in range(len(bad) + 1)]
            assert sorted(reply.correlation for reply in replies) == [1] * len(bad) + [2]

    run(scenario())


# ---------------------------------------------------------------- bytes in any pieces, and not all of them


def test_everything_may_come_byte_by_byte(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with a_target(tmp_path) as target, Peer(target.server.endpoints["wire"]) as peer:
            stream = frames.pack_preface() + target.publish(block()) + target.fetch(1) + call("version")
            for byte in stream:
                await peer.send(bytes([byte]))
                await asyncio.sleep(0)
            await peer.read(frames.WELCOME.size)
            replies = sorted([await read_reply(peer) for _ in range(3)])
            assert [reply.status for reply in replies] == [frames.OK] * 3
            assert replies[1].payload[FETCH_REPLY.size :].endswith(block()[HEADER_BYTES:])

    run(scenario())


def test_a_frame_that_is_promised_takes_no_memory_until_it_comes(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with a_target(tmp_path) as target:
            before = target.state()
            async with target.client() as peer:
                await peer.send(frames.HEADER.pack(limits.MAX_FRAME_BYTES, PUBLISH_BLOCK, 0, 1))
                assert await target.is_served()
                assert target.broker.requests.held == 0
                for sent in (MIB, 3 * MIB, 9 * MIB):
                    await peer.send(b"x" * sent)
                    await until(lambda: target.broker.requests.held)
                    assert await target.is_served()
                    assert target.broker.requests.held <= 2 * 13 * MIB + MIB, "what came, and as much ahead of it"
            await until(lambda: target.broker.requests.held == 0)
            assert target.state() == before

    run(scenario())


@pytest.mark.parametrize("leave", [Peer.vanish, Peer.finish])
def test_a_client_that_leaves_in_the_middle_leaves_nothing_behind(
    tmp_path: Path, leave: Callable[[Peer], None]
) -> None:
    async def scenario() -> None:
        async with a_target(tmp_path) as target:
            publish, safe = target.publish(block()), target.publish(block(), acks=Acks.ALL)
            parked = target.fetch(10**6, wait_ms=60_000)
            large = target.publish(b"x" * (5 * MIB))
            streams = {
                "half a header": publish[:5],
                "half a frame": publish[:-1],
                "half a large frame": large[: 3 * MIB],
                "a parked fetch": parked,
                "a hundred parked fetches": parked * 100,
                "a parked fetch and half a frame": parked + publish[:-1],
                "a publish that waits for the disk": safe,
                "many that do": safe * 50,
                "calls": call("describe_topic", topic="orders") * 50,
                "calls that wait for the disk": call("init_producer") * 50,
                "a bit of everything": parked
                + safe
                + call("describe_topic", topic="orders")
                + target.fetch()
                + large[:MIB],
            }
            for data in streams.values():
                async with target.client() as peer:
                    await peer.send(data)
                    leave(peer)
                async with target.client() as peer:
                    await peer.send(data)
                    for _ in range(5):
                        await asyncio.sleep(0)
                    leave(peer)
                assert await target.is_served()
            await until(lambda: target.server.service.connections["wire"] == 0)
            assert (target.broker.requests.held, target.broker.replies.held) == (0, 0)

    run(scenario())


def test_a_publish_counts_whether_or_not_its_answer_could_be_sent(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with a_target(tmp_path) as target:
            log = target.broker.topics.named("orders").partition(0).log
            async with target.client() as peer:
                await peer.send(target.publish(block(), acks=Acks.ALL))
                await until(lambda: log.end_offset == 2)
                peer.vanish()
            await until(lambda: log.durable.value == 2)
            assert await target.is_served()

    run(scenario())


# ---------------------------------------------------------------- members of groups


async def join(target: Target, group: str = "billing") -> str:
    """The id of a new member."""
    reply = await target.ask(call("join_group", group=group, client_id="w", topics=["orders"], session_timeout="1h"))
    return str(reply.fields["member_id"])


def poll(
    member_id: str, *, group: str = "billing", received: int = 0, most: int = MIB, wait_ms: int = 0, version: int = -1
) -> bytes:
    return frame(POLL_BLOCK, PollRequest(group, member_id, most, 10_000, wait_ms, received, version).pack())


async def delivered(target: Target, data: bytes) -> tuple[int, list[tuple[int, int]]]:
    """The number of the reply; of each row where to go on and how often it was delivered."""
    reply, rows = unpack_poll_reply((await target.ask(data)).payload)
    return reply.number, [(row.next_offset, row.deliveries) for row in rows]


@pytest.mark.parametrize("received", [1, 2**53, limits.MAX_OFFSET - 1])
def test_a_member_that_says_it_received_what_nobody_sent_harms_nobody_else(tmp_path: Path, received: int) -> None:
    async def scenario() -> None:
        async with a_target(tmp_path) as target:
            liar, honest = await join(target, "liars"), await join(target)
            for _ in range(3):
                await target.ask(poll(liar, group="liars", received=received))
            number, rows = await delivered(target, poll(honest))
            assert rows == [(1, 1)]
            assert number < 2**53, "a number that every JSON client can carry"
            for end in (2, 3):
                assert (await target.ask(target.publish(block()))).status == frames.OK
                number, rows = await delivered(target, poll(honest, received=number))
                assert rows == [(end, 1)]

    run(scenario())


def test_nobody_is_delivered_anything_in_the_name_of_another_groups_member(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with a_target(tmp_path) as target:
            member, stranger = await join(target), await join(target, "another")
            before = target.state()
            assert (await target.ask(poll(stranger))).code == "unknown_member"
            assert (await target.ask(poll(member, group="another"))).code == "unknown_member"
            offsets = {"orders": {"0": 1}}
            reply = await target.ask(call("commit", group="billing", member_id=stranger, offsets=offsets))
            assert reply.code == "unknown_member"
            assert target.state() == before
            assert (await delivered(target, poll(member)))[1] == [(1, 1)]

    run(scenario())


@pytest.mark.parametrize("leave", [Peer.vanish, Peer.finish])
def test_what_a_poll_took_for_a_client_that_left_comes_again(tmp_path: Path, leave: Callable[[Peer], None]) -> None:
    async def scenario() -> None:
        async with a_target(tmp_path) as target:
            member = await join(target)
            streams = {
                "a poll": poll(member),
                "a poll that waits": poll(member, wait_ms=60_000),
                "many polls": poll(member, wait_ms=60_000) * 50,
                "a poll and half another": poll(member) + poll(member)[:-1],
                "a poll among others": target.fetch() + poll(member) + call("group_lag", group="billing"),
            }
            for data in streams.values():
                for turns in (0, 1, 3, 20):
                    async with target.client() as peer:
                        await peer.send(data)
                        for _ in range(turns):
                            await asyncio.sleep(0)
                        leave(peer)
                    await until(lambda: not target.connections())
                    await until(lambda: (target.broker.requests.held, target.broker.replies.held) == (0, 0))
            assert len(target.broker.groups.parks) == 0
            number, rows = await delivered(target, poll(member, received=0))
            assert rows == [(1, 1)], "nothing was received, so nothing was delivered"
            assert (await delivered(target, poll(member, received=number)))[1] == []

    run(scenario())


def test_a_newer_poll_of_a_member_sends_the_older_one_home(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with a_target(tmp_path) as target, target.client() as peer:
            member = await join(target)
            number, _ = await delivered(target, poll(member))
            version = target.broker.groups.machine.group("billing").members[member].version
            waiting = poll(member, received=number, version=version, wait_ms=60_000)
            await peer.send(waiting * 20)
            for _ in range(19):
                assert (await read_reply(peer)).status == frames.OK
            assert len(target.broker.groups.parks) == 1
            assert (await target.ask(target.publish(block()))).status == frames.OK
            _, rows = unpack_poll_reply((await read_reply(peer)).payload)
            assert [row.next_offset for row in rows] == [2]

    run(scenario())


def test_nobody_settles_what_he_was_not_delivered(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with a_target(tmp_path) as target:
            member = await join(target)
            reply, (row, *_) = unpack_poll_reply((await target.ask(poll(member))).payload)
            true = Claim(row.topic_id, row.partition, reply.number, row.token, ((0, 1),))
            before = target.state()

            async def refused(*claims: Claim, group: int = reply.group) -> list[tuple[OffsetRange, ...]]:
                for action, argument in ((Action.ACK, -1), (Action.NACK, 0), (Action.REJECT, -1), (Action.EXTEND, 1)):
                    request = SettleRequest(action, group, claims, argument).pack()
                    answer = await target.ask(frame(SETTLE_BLOCK, request))
                    assert answer.status == frames.OK
                    ranges = unpack_settle_reply(answer.payload, len(claims))
                    assert ranges == [claim.ranges for claim in claims]
                return ranges

            tokens = [0, 1, row.token - 1, row.token + 1, row.token ^ 1 << 62, 2**63, 2**64 - 1]
            await refused(*(true._replace(token=token) for token in tokens))
            for group in (0, reply.group + 1, limits.MAX_OFFSET - 1):
                await refused(true, group=group)
            await refused(
                true._replace(poll=reply.number - 1),
                true._replace(poll=0),
                true._replace(poll=limits.MAX_OFFSET - 1),
                true._replace(partition=1),
                true._replace(partition=2**32 - 1),
                true._replace(topic_id=0),
                true._replace(topic_id=2**64 - 1),
                true._replace(ranges=((1, limits.MAX_HANDLES - 1000),)),
            )
            assert target.state() == before
            assert (target.broker.requests.held, target.broker.replies.held) == (0, 0)
            answer = await target.ask(frame(SETTLE_BLOCK, SettleRequest(Action.ACK, reply.group, [true]).pack()))
            assert unpack_settle_reply(answer.payload, 1) == [()]
            assert await target.is_served()

    run(scenario())
