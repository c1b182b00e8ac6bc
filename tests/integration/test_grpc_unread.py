"""Clients of the gRPC door that do not read, over real connections: what they hold is counted, bounded, given up."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from goqueue.api.grpc.door import NAME, GrpcDoor
from goqueue.api.grpc.translating import pb
from goqueue.api.operations import BY_NAME
from goqueue.model import limits
from tests.support.loop import run
from tests.support.patience import PATIENCE_S
from tests.unit.api.services import Served, served

READ = BY_NAME["read_partition"].reply_bytes
MESSAGE = 900_000
OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0))
"""A connection of its own, that takes anything."""


class Opened:
    """A door, and one connection to it."""

    def __init__(self, found: Served, door: GrpcDoor, channel: grpc.aio.Channel, address: str) -> None:
        self.broker = found.broker
        self.door = door
        self.channel = channel
        self.address = address

    def read(self) -> Any:
        """Eight messages that are large, of which nobody reads the first byte."""
        call: Any = self.channel.unary_stream(f"/{NAME}/ReadPartition")
        request = pb.ReadPartitionRequest(topic="orders", partition=0, max_bytes=limits.MAX_JSON_READ_BYTES)
        return call(request.SerializeToString(), timeout=PATIENCE_S)

    def subscribe(self, **subscription: Any) -> Any:
        call: Any = self.channel.stream_stream(f"/{NAME}/Subscribe")
        join = {"group": "g", "client_id": "c", "topics": ["orders"], "mode": "shared"}

        async def requests() -> AsyncIterator[bytes]:
            yield pb.SubscribeRequest(subscription={"join": join, **subscription}, credit=100).SerializeToString()
            await asyncio.Event().wait()

        return call(requests(), timeout=PATIENCE_S)


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[Opened]:
    async with served(path) as found:
        await found.call("create_topic", name="orders", num_partitions=1)
        for _ in range(8):
            await found.call("publish", topic="orders", value="v" * MESSAGE)
        door = GrpcDoor(found.service)
        address = await door.open("127.0.0.1", 0)
        try:
            async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
                yield Opened(found, door, channel, address)
        finally:
            door.drain()
            await door.close(limits.DRAIN_GRACE_S)


async def until(condition: Any) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patience is short."""
    for name in ("REPLY_TIMEOUT_S", "ADMISSION_WAIT_S", "GRPC_LAST_WORDS_S"):
        monkeypatch.setattr(limits, name, 0.1)


def test_a_reply_that_nobody_reads_counts_until_its_connection_ends(tmp_path: Path) -> None:
    async def body() -> None:
        async with opened(tmp_path) as target:
            unread = target.read()
            await until(lambda: target.broker.replies.held == READ)
            await until(lambda: not target.door._held.busy)
            await asyncio.sleep(3 * limits.REPLY_TIMEOUT_S)  # long after the call was given up
            assert target.broker.replies.held == READ
            unread.cancel()
            await until(lambda: target.broker.replies.held == 0)
            await until(lambda: gc.collect() and not target.door._held._budgets)

    run(body())


def test_a_connection_that_does_not_read_is_busy_and_others_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_CONNECTION_BYTES", 2 * READ)

    async def body() -> None:
        async with opened(tmp_path) as target:
            unread = [target.read() for _ in range(8)]
            await until(lambda: sum(call.done() for call in unread) == 6)
            codes = {await call.code() for call in unread if call.done()}
            assert codes == {grpc.StatusCode.RESOURCE_EXHAUSTED}
            assert target.broker.replies.held == 2 * READ
            async with grpc.aio.insecure_channel(target.address, options=OPTIONS) as other:
                call: Any = other.unary_unary(f"/{NAME}/ReadPartition")
                request = pb.ReadPartitionRequest(topic="orders", partition=0)
                assert pb.Messages.FromString(await call(request.SerializeToString(), timeout=PATIENCE_S)).messages

    run(body())


def test_a_subscriber_that_does_not_read_loses_its_stream_and_the_door_closes_at_once(tmp_path: Path) -> None:
    async def body() -> None:
        async with opened(tmp_path) as target:
            unread = target.subscribe(max_bytes=4 * limits.MIB)
            await until(lambda: target.broker.replies.held == 4 * limits.MIB)
            await until(lambda: not target.door._held.busy)
            target.door.drain()
            await target.door.close(10 * PATIENCE_S)  # who waited for that would wait for ever
            await until(lambda: target.broker.replies.held == 0)
            assert unread

    run(body())
