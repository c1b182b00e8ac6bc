"""How much of the gRPC door there is, over real connections: connections, calls, and what may be sent ahead.

The library holds what arrives of a request before anybody can count it, so these numbers are what bounds it.
"""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from goqueue.api.grpc.door import NAME, GrpcDoor
from goqueue.api.grpc.translating import pb
from goqueue.model import limits
from tests.support.loop import run
from tests.support.patience import PATIENCE_S
from tests.unit.api.services import served

OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 100),
)
"""A connection of its own, that is tried again soon."""
_FRAME_HEAD = 9
_SETTINGS = 4
_MAX_STREAMS, _WINDOW, _FRAME_SIZE = 3, 4, 5


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[tuple[GrpcDoor, str]]:
    """A door, and where it listens."""
    async with served(path) as found:
        door = GrpcDoor(found.service)
        try:
            yield door, await door.open("127.0.0.1", 0)
        finally:
            door.drain()
            await door.close(limits.DRAIN_GRACE_S)


async def list_topics(channel: grpc.aio.Channel) -> grpc.StatusCode:
    """How it went."""
    call: Any = channel.unary_unary(f"/{NAME}/ListTopics")(
        pb.ListTopicsRequest().SerializeToString(), timeout=PATIENCE_S
    )
    code: grpc.StatusCode = await call.code()
    return code


async def until(channel: grpc.aio.Channel, code: grpc.StatusCode) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await list_topics(channel) is not code:
            await asyncio.sleep(0.005)


def test_a_connection_too_many_is_hung_up_on_until_another_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "GRPC_CONNECTIONS", 2)

    async def body() -> None:
        async with opened(tmp_path) as (_, address):
            channels = [grpc.aio.insecure_channel(address, options=OPTIONS) for _ in range(3)]
            codes = [await list_topics(channel) for channel in channels]
            assert codes == [grpc.StatusCode.OK, grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE]
            await channels[0].close()
            await until(channels[2], grpc.StatusCode.OK)
            for channel in channels[1:]:
                await channel.close()

    run(body())


def test_a_call_too_many_is_refused_whoever_makes_it_until_another_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "GRPC_CALLS", 2)

    async def body() -> None:
        async with (
            opened(tmp_path) as (door, address),
            grpc.aio.insecure_channel(address, options=OPTIONS) as one,
            grpc.aio.insecure_channel(address, options=OPTIONS) as other,
        ):
            silent = []
            for _ in range(2):
                call: Any = one.stream_stream(f"/{NAME}/PublishStream")
                silent.append(call(timeout=PATIENCE_S))
                await silent[-1].wait_for_connection()
            async with asyncio.timeout(PATIENCE_S):
                while door._held._places < len(silent):
                    await asyncio.sleep(0.005)
            assert await list_topics(other) is grpc.StatusCode.RESOURCE_EXHAUSTED
            silent[0].cancel()
            await until(other, grpc.StatusCode.OK)
            silent[1].cancel()

    run(body())


def test_a_client_is_told_how_much_it_may_send_ahead(tmp_path: Path) -> None:
    async def body() -> None:
        async with opened(tmp_path) as (_, address):
            host, _, port = address.rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _settings())
            head = await reader.readexactly(_FRAME_HEAD)
            assert head[3] == _SETTINGS
            told = dict(struct.iter_unpack(">HI", await reader.readexactly(int.from_bytes(head[:3], "big"))))
            assert told[_MAX_STREAMS] == limits.GRPC_STREAMS_PER_CONNECTION
            assert told[_WINDOW] == limits.GRPC_WINDOW_BYTES
            assert told[_FRAME_SIZE] == limits.GRPC_HTTP2_FRAME_BYTES
            writer.close()

    run(body())


def _settings() -> bytes:
    """A frame of them, empty."""
    return bytes((0, 0, 0, _SETTINGS, 0, 0, 0, 0, 0))
