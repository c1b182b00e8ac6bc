"""Clients of the gRPC door that left ended the broker, or took room with them that nobody ever gave back.

The library frees a call once its handler has returned and its client has gone, and crashes the process that asks for
anything of it afterwards. Work that had outlived its handler asked who its client was, to give back what was reserved
for the reply. And of a call that was cancelled before its handler began the library no longer says whose it is: that
looked like another client than the one who had taken the room.

The tests of the door had clients made of Python, which answer for as long as somebody asks them, and clients that left
one at a time, with their replies in memory. `tests/chaos/client_swarm.py` has real ones, many, at every point.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from goqueue import AsyncClient
from goqueue.api.grpc.door import NAME
from goqueue.api.grpc.translating import pb
from tests.support import cold_reads
from tests.support.broker import RunningBroker, running_broker
from tests.support.grpc_client import GrpcClient, check_log
from tests.support.patience import PATIENCE_S, wait_until

SEGMENT_BYTES = 256 * 1024
MESSAGES, MESSAGE_BYTES = 40, 50_000
ROUNDS = 25
OPTIONS = (("grpc.use_local_subchannel_pool", 1),)
"""A connection of its own."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    """With a topic of which all but the end is cold."""
    with running_broker(tmp_path, "--grpc", "127.0.0.1:0", program=cold_reads.PROGRAM) as running:
        created = running.request(
            "POST", "/topics", {"name": "orders", "num_partitions": 1, "segment_bytes": SEGMENT_BYTES}
        )
        assert created.status == 201, created
        for _ in range(MESSAGES):
            assert running.request("POST", "/topics/orders/publish", {"value": "v" * MESSAGE_BYTES}).status == 200
        yield running
        check_log(running)


def in_rounds(broker: RunningBroker, leave: Callable[[grpc.aio.Channel, int], Coroutine[Any, Any, None]]) -> None:
    """Again and again, each time over another connection; in between the broker has to answer."""

    async def one(number: int) -> None:
        async with grpc.aio.insecure_channel(broker.endpoints["grpc"], options=OPTIONS) as channel:
            await leave(channel, number)

    for number in range(ROUNDS):
        asyncio.run(one(number))
        assert broker.request("GET", "/health").status == 200


async def ended(call: Any) -> None:
    """However it did."""
    try:
        await call
    except (grpc.RpcError, asyncio.CancelledError):
        pass


def read(channel: grpc.aio.Channel, timeout_s: float) -> Any:
    call: Any = channel.unary_unary(f"/{NAME}/ReadPartition")
    request = pb.ReadPartitionRequest(topic="orders", partition=0, offset=0, max_bytes=MESSAGES * MESSAGE_BYTES)
    return call(request.SerializeToString(), timeout=timeout_s)


def check_every_door_reads(broker: RunningBroker) -> None:
    """All of it, cold as it is."""
    answer = broker.request("GET", "/topics/orders/partitions/0/messages?offset=0&limit=10")
    assert (answer.status, len(answer.body["messages"])) == (200, 10), answer
    with GrpcClient(broker.endpoints["grpc"]) as client:
        assert len(client.call("ReadPartition", topic="orders", partition=0, limit=10).messages) == 10

    async def over_the_wire() -> int:
        async with AsyncClient(broker.wire) as client, client.reader("orders", from_offset=0) as reader:
            return sum([1 async for _ in reader])

    assert asyncio.run(over_the_wire()) == MESSAGES


def check_nothing_is_reserved(broker: RunningBroker) -> None:
    wait_until(
        lambda: broker.request("GET", "/stats").body["in_flight_bytes"] == 0,
        "something stays reserved for clients that have left",
    )


def test_subscribers_that_leave_while_they_join_do_not_end_the_broker(broker: RunningBroker) -> None:
    dice = random.Random(0)

    async def leave(channel: grpc.aio.Channel, number: int) -> None:
        join = {"group": f"g-{number}", "client_id": "c", "topics": ["orders"]}

        async def requests() -> AsyncIterator[bytes]:
            yield pb.SubscribeRequest(subscription={"join": join}, credit=100).SerializeToString()
            await asyncio.Event().wait()

        call: Any = channel.stream_stream(f"/{NAME}/Subscribe")
        streams = [call(requests(), timeout=PATIENCE_S) for _ in range(4)]
        await asyncio.sleep(dice.uniform(0, 0.012))
        for stream in streams:
            stream.cancel()
        for stream in streams:
            await ended(stream.read())

    in_rounds(broker, leave)
    check_nothing_is_reserved(broker)
    check_every_door_reads(broker)


def test_readers_that_leave_while_the_disk_is_asked_do_not_end_the_broker(broker: RunningBroker) -> None:
    dice = random.Random(0)

    async def leave(channel: grpc.aio.Channel, number: int) -> None:
        calls = [read(channel, PATIENCE_S) for _ in range(8)]
        await asyncio.sleep(dice.uniform(0, 0.012))
        for call in calls:
            call.cancel()
        for call in calls:
            await ended(call)

    in_rounds(broker, leave)
    check_nothing_is_reserved(broker)
    check_every_door_reads(broker)


def test_reads_whose_deadline_is_over_before_they_begin_take_no_room_with_them(broker: RunningBroker) -> None:
    dice = random.Random(0)

    async def leave(channel: grpc.aio.Channel, number: int) -> None:
        for call in [read(channel, dice.uniform(0.0002, 0.003)) for _ in range(16)]:
            await ended(call)

    in_rounds(broker, leave)
    check_nothing_is_reserved(broker)
    check_every_door_reads(broker)
