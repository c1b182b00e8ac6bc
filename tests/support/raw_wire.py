"""The wire protocol as bytes: frames spelled out, right or wrong, and a broker to send them to."""

import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from goqueue import codec
from goqueue.api.listening import Listener
from goqueue.codec.layout import CRC_AT
from goqueue.model.limits import MIB
from goqueue.model.publishing import Acks
from goqueue.model.record import Record
from goqueue.server.server import Server
from goqueue.wire import frames
from goqueue.wire.blocks import FetchRequest, PublishRequest
from goqueue.wire.codes import CODES, FETCH_BLOCK, PUBLISH_BLOCK
from tests.support.hostile import Peer, files_of, watched_server


class Reply(NamedTuple):
    operation: int
    status: int
    correlation: int
    payload: bytes

    @property
    def fields(self) -> Any:
        return json.loads(self.payload)

    @property
    def code(self) -> str | None:
        """Of the error, if it is one."""
        if self.status == frames.OK:
            return None
        error = self.fields
        assert set(error) == {"error", "code", "retriable", "details"}
        assert 0 < len(error["error"]) < 1000, "a refusal does not repeat what it refuses"
        return str(error["code"])


def frame(operation: int, payload: bytes = b"", *, correlation: int = 1, status: int = frames.OK) -> bytes:
    return frames.pack_header(operation, status, correlation, len(payload)) + payload


def call(operation: str, /, **fields: object) -> bytes:
    return frame(CODES[operation], json.dumps(fields).encode())


async def read_reply(peer: Peer) -> Reply:
    length, operation, status, correlation = frames.HEADER.unpack(await peer.read(frames.HEADER.size))
    return Reply(operation, status, correlation, await peer.read(length - frames.MIN_FRAME_BYTES))


async def greet(peer: Peer) -> None:
    await peer.send(frames.pack_preface())
    assert frames.unpack_welcome(await peer.read(frames.WELCOME.size)).version == frames.VERSION


class Target:
    """A broker in this process with a topic of one partition."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.broker = server.broker
        self.topic_id = 0

    @asynccontextmanager
    async def client(self, *, receive_bytes: int | None = None) -> AsyncIterator[Peer]:
        """A connection that has exchanged prefaces."""
        async with Peer(self.server.endpoints["wire"], receive_bytes=receive_bytes) as peer:
            await greet(peer)
            yield peer

    async def ask(self, data: bytes) -> Reply:
        """What somebody who behaves is answered."""
        async with self.client() as peer:
            await peer.send(data)
            return await read_reply(peer)

    def publish(self, block: bytes, *, acks: int = Acks.LEADER, partition: int = 0, **others: Any) -> bytes:
        packed = PublishRequest(self.topic_id, partition, Acks.LEADER, **others).pack()
        position = struct.calcsize(">QI")
        return frame(PUBLISH_BLOCK, packed[:position] + bytes([acks]) + packed[position + 1 :] + block)

    def fetch(self, offset: int = 0, *, partition: int = 0, wait_ms: int = 0, most: int = MIB, **others: Any) -> bytes:
        return frame(FETCH_BLOCK, FetchRequest(self.topic_id, partition, offset, most, 10**6, wait_ms).pack(), **others)

    def state(self) -> tuple[object, ...]:
        log = self.broker.topics.named("orders").partition(0).log
        return sorted(self.broker.topics.by_name), log.end_offset, files_of(Path(self.server.data_dir))

    def connections(self) -> list[Any]:
        """Those of the wire door, as it has them."""
        doors = [door for door in self.server._doors if isinstance(door, Listener)]
        (door,) = (door for door in doors if door._name == "wire")
        return list(door._connections)

    async def is_served(self) -> bool:
        """Whether somebody else gets everything as always."""
        described = await self.ask(call("describe_topic", topic="orders"))
        fetched = await self.ask(self.fetch())
        return (described.status, fetched.status) == (frames.OK, frames.OK)


@asynccontextmanager
async def a_target(tmp_path: Path) -> AsyncIterator[Target]:
    async with watched_server(tmp_path) as server:
        target = Target(server)
        created = await target.ask(call("create_topic", name="orders", num_partitions=1))
        target.topic_id = int(created.fields["topic_id"], 16)
        first = await target.ask(target.publish(block(), acks=Acks.ALL))
        assert first.status == frames.OK
        yield target


def block(*records: Record, **fields: Any) -> bytes:
    return bytes(codec.encode(records or [Record(value=b"x", **fields)]))


def resealed(data: bytes) -> bytes:
    """A record whose bytes were changed, with a checksum that fits them again."""
    changed = bytearray(data)
    changed[CRC_AT : CRC_AT + 4] = codec.crc32c(memoryview(changed)[CRC_AT + 4 :]).to_bytes(4)
    return bytes(changed)
