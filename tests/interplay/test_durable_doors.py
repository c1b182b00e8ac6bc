"""What `test_durable_answers` says of operations, for the ways to publish and to settle that doors have of their own:
the answer is not on its way before the logs are durable, as a client at a real socket sees it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import msgspec
import pytest

from goqueue.api.grpc.door import NAME
from goqueue.api.grpc.frames import Frame
from goqueue.api.grpc.translating import pb
from goqueue.broker.publish import Publisher
from goqueue.broker.settle import Pending
from goqueue.client.client import AsyncClient
from goqueue.model import limits
from goqueue.model.publishing import Acks
from goqueue.server.server import Server
from tests.support.broker_server import running_server
from tests.support.durable_stage import let_go_one_by_one
from tests.support.hostile import Peer
from tests.support.loop import run
from tests.support.quiet import quiet
from tests.support.raw_http import one_answer, post
from tests.support.raw_wire import Target, block, greet, read_reply
from tests.support.watched_disk import WatchedDisk

pytestmark = pytest.mark.one_codec

DATA, SIDE = "orders/0", "orders/0/sidecar"
MESSAGE = {"value": b"x", "partition": 0}


@pytest.fixture(autouse=True)
def no_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the broker does once a second it does not do."""
    for interval in ("TICK_INTERVAL_S", "CLEAN_INTERVAL_S"):
        monkeypatch.setattr(limits, interval, 3600.0)


class Doors:
    """A broker in this process, a topic of one partition, and a client at each door."""

    def __init__(self, server: Server, channel: grpc.aio.Channel, client: AsyncClient) -> None:
        self.server = server
        self.channel = channel
        self.client = client

    async def live(self) -> None:
        """A question and its answer, at each door: whatever was to leave before has left."""
        call: Any = self.channel.unary_unary(
            f"/{NAME}/Live", pb.LiveRequest.SerializeToString, pb.HealthReply.FromString
        )
        await call(pb.LiveRequest())
        async with Peer(self.server.endpoints["http"]) as peer:
            await peer.send(post("/livez").replace(b"POST", b"GET", 1))
            await one_answer(peer)

    async def call(self, name: str, request: Any, reply: Any) -> Any:
        call: Any = self.channel.unary_unary(f"/{NAME}/{name}", type(request).SerializeToString, reply.FromString)
        return await call(request)

    def stream(self, name: str, request: Any, reply: Any) -> Any:
        call: Any = self.channel.stream_stream(f"/{NAME}/{name}", request.SerializeToString, reply.FromString)
        return call()


@contextlib.asynccontextmanager
async def opened_doors(path: Path, disk: WatchedDisk, fsync: str) -> AsyncIterator[Doors]:
    async with (
        running_server(path, disk, grpc="127.0.0.1:0") as server,
        grpc.aio.insecure_channel(server.endpoints["grpc"]) as channel,
        AsyncClient(server.endpoints["wire"]) as client,
    ):
        await client.call("create_topic", name="orders", num_partitions=1, fsync=fsync)
        try:
            yield Doors(server, channel, client)
        finally:
            disk.let_all_go()


# ---------------------------------------------------------------- ways to publish


async def over_http(doors: Doors, acks: str) -> None:
    async with Peer(doors.server.endpoints["http"]) as peer:
        await peer.send(post("/topics/orders/messages", {"messages": [{"value": "x"}], "acks": acks}))
        assert (await one_answer(peer)).status == 200


async def over_the_wire(doors: Doors, acks: str) -> None:
    target = Target(doors.server)
    target.topic_id = doors.server.broker.topics.named("orders").meta.topic_id
    async with Peer(doors.server.endpoints["wire"]) as peer:
        await greet(peer)
        await peer.send(target.publish(block(), acks=Acks[acks.upper()]))
        assert (await read_reply(peer)).code is None


async def in_one_call(doors: Doors, acks: str) -> None:
    await doors.call("Publish", pb.PublishRequest(topic="orders", acks=acks, **MESSAGE), pb.PublishResult)


async def in_a_frame(doors: Doors, acks: str) -> None:
    await _in_a_frame(doors, acks, messages=[MESSAGE])


async def in_a_frame_as_a_block(doors: Doors, acks: str) -> None:
    await _in_a_frame(doors, acks, block=block(), partition=0)


async def _in_a_frame(doors: Doors, acks: str, **fields: Any) -> None:
    stream = doors.stream("PublishStream", pb.PublishFrame, pb.PublishFrameReply)
    await stream.write(pb.PublishFrame(topic="orders", acks=acks, **fields))
    reply = await stream.read()
    assert not reply.errors, reply
    await stream.done_writing()


PUBLISHES = (over_http, over_the_wire, in_one_call, in_a_frame, in_a_frame_as_a_block)


# ---------------------------------------------------------------- ways to settle


async def acked_over_http(doors: Doors) -> Callable[[], Awaitable[None]]:
    joined = await doors.client.call("join_group", group="g", client_id="w", topics=["orders"])
    found = await doors.client.call("poll", group="g", member_id=joined["member_id"], timeout=0)

    async def ack() -> None:
        async with Peer(doors.server.endpoints["http"]) as peer:
            await peer.send(post("/messages/ack", {"receipt_handle": found["messages"][0]["receipt_handle"]}))
            assert (await one_answer(peer)).status == 200

    return ack


async def acked_over_the_wire(doors: Doors) -> Callable[[], Awaitable[None]]:
    consumer = await doors.client.consumer("g", ["orders"]).__aenter__()  # closed with its client
    message = await anext(aiter(consumer))

    async def ack() -> None:
        await message.ack(wait=True)

    return ack


async def acked_in_a_stream(doors: Doors) -> Callable[[], Awaitable[None]]:
    stream = doors.stream("Subscribe", pb.SubscribeRequest, pb.SubscribeReply)
    join = pb.JoinGroupRequest(group="g", client_id="w", topics=["orders"])
    await stream.write(pb.SubscribeRequest(subscription=pb.Subscription(join=join), credit=10))
    while not (reply := await stream.read()).HasField("batch"):
        pass
    handle = reply.batch.messages[0].receipt_handle

    async def ack() -> None:
        await stream.write(pb.SubscribeRequest(ack=pb.AckRequest(receipt_handle=handle)))
        while not (await stream.read()).HasField("settled"):
            pass
        await stream.done_writing()

    return ack


SETTLES = (acked_over_http, acked_over_the_wire, acked_in_a_stream)


# ---------------------------------------------------------------- what they are asked


class Way(NamedTuple):
    fsync: str
    acks: str


WAYS = [Way("every", "leader"), Way("interval", "all")]


async def looked_at(doors: Doors, disk: WatchedDisk, log: str, work: Awaitable[None]) -> None:
    """It is not answered as long as the log is not durable."""
    disk.watch()
    disk.hold([log])
    asked = asyncio.ensure_future(work)
    while log not in disk.dirty:
        await asyncio.sleep(0)
    await quiet()
    await doors.live()
    await quiet()
    early = asked.done() and bool(disk.dirty)
    await let_go_one_by_one(disk, asked.done)
    asked.result()
    assert not early, f"it was answered before {log} was durable"
    disk.let_all_go()


@pytest.mark.parametrize("way", WAYS, ids="-".join)
@pytest.mark.parametrize("publish", PUBLISHES)
def test_no_door_answers_a_publish_before_it_is_durable(
    tmp_path: Path, publish: Callable[[Doors, str], Awaitable[None]], way: Way
) -> None:
    async def go() -> None:
        disk = WatchedDisk(tmp_path)
        async with opened_doors(tmp_path, disk, way.fsync) as doors:
            await looked_at(doors, disk, DATA, publish(doors, way.acks))

    run(go())


async def ack(path: Path, settled: Callable[[Doors], Awaitable[Callable[[], Awaitable[None]]]]) -> None:
    disk = WatchedDisk(path)
    async with opened_doors(path, disk, "every") as doors:
        await over_http(doors, "leader")
        work = await settled(doors)
        await quiet()
        await looked_at(doors, disk, SIDE, work())


@pytest.mark.parametrize("settled", SETTLES)
def test_no_door_answers_an_ack_before_it_is_durable(
    tmp_path: Path, settled: Callable[[Doors], Awaitable[Callable[[], Awaitable[None]]]]
) -> None:
    run(ack(tmp_path, settled))


# ---------------------------------------------------------------- bugs that are planted


async def _at_once(*_: Any) -> None:
    """In place of a wait."""


def test_a_door_that_does_not_wait_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def published(publish: Callable[[Doors, str], Awaitable[None]], bug: str) -> None:
        path = tmp_path / f"{publish.__name__}-{bug}"
        disk = WatchedDisk(path)
        async with opened_doors(path, disk, "every") as doors:
            await looked_at(doors, disk, DATA, publish(doors, "leader"))

    whole = Publisher._receipt

    def receipt(*said: Any) -> Any:
        return msgspec.structs.replace(whole(*said), durable_at=None)

    monkeypatch.setattr(Publisher, "_receipt", receipt)
    for publish in PUBLISHES:
        with pytest.raises(AssertionError, match="before"):
            run(published(publish, "receipt"))
    monkeypatch.undo()
    monkeypatch.setattr(Frame, "safe", _at_once)
    with pytest.raises(AssertionError, match="before"):
        run(published(in_a_frame, "frame"))
    monkeypatch.undo()
    monkeypatch.setattr(Pending, "safe", _at_once)
    for settled in SETTLES:
        with pytest.raises(AssertionError, match="before"):
            run(ack(tmp_path / settled.__name__, settled))
