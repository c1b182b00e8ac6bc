"""Brokers for the client's tests: one that says what a test tells it to, and one that keeps sequences and has faults.

Both listen on a real socket of this machine and live inside `async with`. What goes wrong in them fails the test.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from enum import Enum
from typing import NamedTuple

import msgspec

from goqueue import codec
from goqueue.model.errors import GoQueueError, OutOfSequence, UnknownProducer
from goqueue.model.publishing import Acks, Durability
from goqueue.model.record import Extension, Producer, Record
from goqueue.wire import blocks, frames
from goqueue.wire.blocks import PublishReply, PublishRequest, Range
from goqueue.wire.codes import CODES, PUBLISH_BLOCK
from goqueue.wire.failures import pack_error
from goqueue.wire.frames import Welcome

HOST = "127.0.0.1"
ROOMY = Welcome(frames.VERSION, 1 << 20, 1 << 20)


class Request(NamedTuple):
    operation: int
    correlation: int
    payload: bytes
    status: int = frames.OK


class Peer:
    """The broker's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def greet(self, welcome: Welcome = ROOMY) -> None:
        preface = frames.unpack_preface(await self._reader.readexactly(frames.PREFACE.size))
        assert frames.choose_version(preface) == frames.VERSION
        self.send(frames.pack_welcome(welcome))

    async def read(self) -> Request:
        """The next request; asyncio.IncompleteReadError when the client has gone."""
        header = await self._reader.readexactly(frames.HEADER.size)
        length, operation, status, correlation = frames.unpack_header(header)
        assert status in (frames.OK, frames.PATIENT)
        payload = await self._reader.readexactly(length + frames.LENGTH_BYTES - len(header))
        return Request(operation, correlation, payload, status)

    async def read_all(self) -> bytes:
        """Everything until the client goes."""
        return await self._reader.read()

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    def reply(self, request: Request, payload: bytes = b"", *, status: int = frames.OK) -> None:
        self.send(frames.pack_header(request.operation, status, request.correlation, len(payload)) + payload)

    def refuse(self, request: Request, error: GoQueueError) -> None:
        self.reply(request, pack_error(error), status=frames.ERROR)

    async def hang_up(self) -> None:
        await self._writer.drain()
        self._writer.close()


Talk = Callable[[Peer], Awaitable[None]]


@asynccontextmanager
async def serving(talk: Talk, *, greeting: Welcome | None = ROOMY) -> AsyncIterator[int]:
    """A broker at the port given; each connection is greeted, unless told not to, then `talk` has it."""
    talks: set[asyncio.Task[None]] = set()

    async def converse(peer: Peer) -> None:
        try:
            if greeting is not None:
                await peer.greet(greeting)
            await talk(peer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            peer._writer.close()

    def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talks.add(asyncio.get_running_loop().create_task(converse(Peer(reader, writer))))

    server = await asyncio.start_server(on_connection, HOST, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in talks:
            task.cancel()
        ends = await asyncio.gather(*talks, return_exceptions=True)
        await server.wait_closed()
        for end in ends:
            if isinstance(end, Exception):
                raise end


# ---------------------------------------------------------------- one that keeps sequences


def make_block(name: str, records: int = 1) -> bytes:
    """A block of records that an idempotent producer may publish; `name` can be read from it again."""
    empty = Extension(producer=Producer(0, 0, 0))
    return bytes(
        codec.encode([Record(value=f"{name}/{number}".encode(), extension=empty) for number in range(records)])
    )


def block_name(block: bytes) -> str:
    value = codec.decode(block)[0].value
    assert value is not None
    return value.decode().partition("/")[0]


class Fault(Enum):
    """What happens to a publish instead of an answer."""

    NONE = "carried out and answered"
    LOST_BEFORE = "the connection ends before the block is appended"
    LOST_AFTER = "the connection ends after the block is appended"
    LATE = "the connection ends; the block, and those behind it on this connection, are carried out some time later"
    SILENT = "the block is appended, an answer never comes"
    GARBAGE = "the block is appended, the answer makes no sense"
    WRONG_COUNT = "the block is appended, the answer is about other records"


class SequenceBroker:
    """Appends blocks by the rules of sequences. `faults` are used up one per publish that comes, then all is well.

    `fault_for` may choose one by what comes instead. An error among them is the answer.
    """

    def __init__(self) -> None:
        self.faults: deque[Fault | GoQueueError] = deque()
        self.fault_for: Callable[[PublishRequest, bytes], Fault | GoQueueError] | None = None
        self.logs: dict[tuple[int, int], list[str]] = {}
        self.seen: list[tuple[str, int, int]] = []
        """Of every publish that came: name, producer id, sequence."""
        self.connections = 0
        self.producers = 0
        self._known: dict[tuple[int, int, int], dict[int, tuple[int, int]]] = {}
        """Per topic, partition and producer: sequence to offset and count."""
        self._next: dict[tuple[int, int, int], int] = {}
        self._late: deque[tuple[PublishRequest, bytes]] = deque()

    def forget(self, partition: int) -> None:
        """Lose what is known about the producers of a partition; the log stays."""
        for key in [key for key in self._known if key[1] == partition]:
            del self._known[key]
            self._next.pop(key, None)

    def names(self, topic_id: int = 1, partition: int = 0) -> list[str]:
        return self.logs.get((topic_id, partition), [])

    def deliver_late(self) -> None:
        """Carry out what was still on its way when its connection ended."""
        while self._late:
            try:
                self._append(*self._late.popleft())
            except GoQueueError:
                pass

    async def talk(self, peer: Peer) -> None:
        self.connections += 1
        while True:
            request = await peer.read()
            if request.operation == CODES["init_producer"]:
                assert request.payload == b"{}"
                self.producers += 1
                peer.reply(request, msgspec.json.encode({"producer_id": 1000 + self.producers, "epoch": 0}))
            elif not await self._publish(peer, request):
                return

    async def _publish(self, peer: Peer, request: Request) -> bool:
        """Whether the connection goes on."""
        assert request.operation == PUBLISH_BLOCK
        publish, block = _split(request)
        assert publish.producer is not None
        assert publish.acks is not Acks.NONE
        self.seen.append((block_name(block), publish.producer.producer_id, publish.producer.sequence))
        fault: Fault | GoQueueError = Fault.NONE
        if self.fault_for is not None:
            fault = self.fault_for(publish, block)
        elif self.faults:
            fault = self.faults.popleft()
        if isinstance(fault, GoQueueError):
            peer.refuse(request, fault)
            return True
        if fault is Fault.LOST_BEFORE:
            return False
        if fault is Fault.LATE:
            self._late.append((publish, block))
            for _ in range(4):  # those sent behind it are there by now, or were not
                try:
                    async with asyncio.timeout(0):
                        request = await peer.read()
                except (TimeoutError, asyncio.IncompleteReadError):
                    break
                if request.operation == PUBLISH_BLOCK:
                    self._late.append(_split(request))
            return False
        try:
            reply = self._append(publish, block)
        except GoQueueError as error:
            peer.refuse(request, error)
            return True
        if fault is Fault.LOST_AFTER:
            return False
        if fault is Fault.GARBAGE:
            peer.reply(request, b"garbage")
        elif fault is Fault.WRONG_COUNT:
            peer.reply(request, PublishReply(Durability.WRITTEN, (Range(99, 0, 0),)).pack())
        elif fault is Fault.NONE:
            peer.reply(request, reply.pack())
        return True

    def _append(self, publish: PublishRequest, block: bytes) -> PublishReply:
        assert publish.producer is not None
        log = self.logs.setdefault((publish.topic_id, publish.partition), [])
        key = (publish.topic_id, publish.partition, publish.producer.producer_id)
        sequence = publish.producer.sequence
        count = codec.survey(block).count
        known = self._known.setdefault(key, {})
        if sequence in known:
            offset, before = known[sequence]
            assert before == count, "two blocks were sent with the same sequence"
            return PublishReply(Durability.DURABLE, (Range(count, offset, 5, True),))
        if key not in self._next and sequence:
            raise UnknownProducer("who is this?")
        if sequence != self._next.get(key, 0):
            raise OutOfSequence("something is missing", expected=self._next.get(key, 0))
        known[sequence] = (len(log), count)
        self._next[key] = (sequence + count) % 2**31
        log.append(block_name(block))
        return PublishReply(Durability.DURABLE, (Range(count, len(log) - 1, 5),))


def _split(request: Request) -> tuple[PublishRequest, bytes]:
    return blocks.unpack_publish_request(request.payload), request.payload[blocks.PUBLISH_REQUEST.size :]
