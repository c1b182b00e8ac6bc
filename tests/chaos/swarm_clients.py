"""Clients that leave: at every point of a request, at each of the three doors, in every way there is.

What they say is bytes that somebody else made. Over HTTP and the wire they are raw connections. Over gRPC they are the
library's own clients, which cancel, time out and close; what those cannot do, like leaving in the middle of a message,
a relay between them and the broker does.
"""

import asyncio
import json
import random
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from enum import Enum
from typing import Any, Final, NamedTuple

import grpc

from goqueue.wire import frames
from tests.support.hostile import Peer
from tests.support.patience import PATIENCE_S
from tests.support.raw_http import one_answer
from tests.support.raw_wire import read_reply

LONGEST_S: Final = 0.005
"""How long a client waits at most before it leaves while something goes on."""
UNREAD_S: Final = 0.02
_TINY_BYTES: Final = 4096
"""Of a receive buffer."""
_CHANNEL: Final = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    ("grpc.max_receive_message_length", -1),
)
"""A connection of its own."""
_PIECE_BYTES: Final = 1 << 16
_HEAD_BYTES: Final = 700
"""About what a gRPC client sends before, and around, its message."""


class Point(Enum):
    """When a client leaves."""

    BEFORE = "before it said anything"
    REQUEST = "in the middle of its request"
    AFTER = "when it has asked"
    REPLY = "in the middle of the reply"
    UNREAD = "with replies it did not read"
    HALF = "when it has heard the reply to its last words"
    NEVER = "when all is said"


class Way(Enum):
    """How it leaves."""

    CLOSE = "closes"
    RESET = "resets"
    CANCEL = "cancels"
    LATE = "is late"


Learn = Callable[[Any], None]
"""Told a reply as JSON has it."""


# ---------------------------------------------------------------- HTTP and the wire


class RawDoor(NamedTuple):
    """A door for raw connections: what comes first, and how a reply is read."""

    address: str
    greeting: bytes
    is_wire: bool


async def visit(
    door: RawDoor, requests: list[bytes], point: Point, way: Way, dice: random.Random, learn: Learn
) -> None:
    """One connection that ends so. However the broker takes it, it is not an error here."""
    said = door.greeting + b"".join(requests)
    size = _TINY_BYTES if point is Point.UNREAD else None
    with suppress(ConnectionError, OSError):
        async with Peer(door.address, receive_bytes=size) as peer:
            await _act(door, peer, said, len(requests), point, dice, learn)
            if way is Way.RESET:
                peer.vanish()


async def _act(
    door: RawDoor, peer: Peer, said: bytes, count: int, point: Point, dice: random.Random, learn: Learn
) -> None:
    match point:
        case Point.BEFORE:
            return
        case Point.REQUEST:
            await peer.send(said[: dice.randrange(1, len(said))])
            if dice.random() < 0.3:
                peer.finish()
            await asyncio.sleep(dice.uniform(0, LONGEST_S))
            return
    await peer.send(said)
    match point:
        case Point.AFTER:
            await asyncio.sleep(dice.uniform(0, LONGEST_S))
        case Point.UNREAD:
            await asyncio.sleep(dice.uniform(0, UNREAD_S))
        case Point.REPLY:
            async with asyncio.timeout(UNREAD_S):  # there may be less
                await peer.read(dice.choice((1, 10, 100, 5000)))
        case Point.HALF:
            peer.finish()
            await peer.read_to_the_end()
        case Point.NEVER:
            if door.is_wire:
                await peer.read(frames.WELCOME.size)
            for _ in range(count):
                if door.is_wire:
                    reply = await read_reply(peer)
                    if reply.payload.startswith(b"{"):
                        learn(json.loads(reply.payload))
                else:
                    learn((await one_answer(peer)).body)


# ---------------------------------------------------------------- gRPC


class Call(NamedTuple):
    """What is called, with which messages; a stream sends them one after the other and stays."""

    method: str
    messages: list[bytes]
    is_stream: bool


@asynccontextmanager
async def _relayed(address: str, cut: "Cut") -> AsyncIterator[str]:
    """An address behind which is the broker, until the relay cuts what goes through it."""
    tasks: set[asyncio.Task[None]] = set()
    left: list[asyncio.StreamWriter] = []
    over = False

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        left.append(writer)
        if over:
            writer.transport.abort()
            return
        host, _, port = address.rpartition(":")
        try:
            broker_reader, broker_writer = await asyncio.open_connection(host, int(port), limit=_PIECE_BYTES)
        except OSError:
            writer.close()
            return
        left.append(broker_writer)
        ends = writer, broker_writer
        ways = [
            asyncio.ensure_future(_pass_on(reader, broker_writer, cut.after_request)),
            asyncio.ensure_future(_pass_on(broker_reader, writer, cut.after_reply)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED, timeout=UNREAD_S)
            await asyncio.sleep(cut.unread_s)
        except asyncio.CancelledError:  # the client has gone
            pass
        finally:
            for way in ways:
                way.cancel()
            for end in ends:
                if cut.resets:
                    linger = struct.pack("ii", 1, 0)
                    end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    end.transport.abort()
                else:
                    end.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, start_serving=False)
    try:
        await server.start_serving()  # whoever is cancelled in here has a server to close
        yield "{}:{}".format(*server.sockets[0].getsockname()[:2])
    finally:
        over = True
        server.close()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for each in left:
            each.transport.abort()  # what was only closed may have something to write, for nobody


class Cut(NamedTuple):
    """After how many bytes of either direction a relay leaves, if not earlier, and how; None: it lets all pass."""

    after_request: int | None = None
    after_reply: int | None = None
    resets: bool = False
    unread_s: float = 0.0
    """For how long the reply is not read any further before that."""


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, most: int | None) -> None:
    passed = 0
    with suppress(ConnectionError):
        while piece := await reader.read(_PIECE_BYTES if most is None else min(_PIECE_BYTES, max(most - passed, 1))):
            writer.write(piece)
            await writer.drain()
            passed += len(piece)
            if most is not None and passed >= most:
                return


async def call(address: str, calls: list[Call], point: Point, way: Way, dice: random.Random) -> None:
    """Calls over one connection, all of which end so."""
    cut = _cut_of(calls, point, way, dice)
    if cut is None:
        await _call(address, calls, point, way, dice)
    else:
        async with _relayed(address, cut) as relay:
            await _call(relay, calls, Point.NEVER, way, dice)


def _cut_of(calls: list[Call], point: Point, way: Way, dice: random.Random) -> Cut | None:
    said = _HEAD_BYTES + sum(len(message) for each in calls for message in each.messages)
    resets = way is Way.RESET
    match point:
        case Point.REQUEST:
            return Cut(after_request=dice.randrange(1, said), resets=resets)
        case Point.REPLY:
            return Cut(after_reply=dice.choice((1, 60, 200, 1000, 20_000, 200_000)), resets=resets)
        case Point.UNREAD:
            return Cut(after_reply=dice.choice((60, 1000)), resets=resets, unread_s=dice.uniform(0, UNREAD_S))
    return None


async def _call(address: str, calls: list[Call], point: Point, way: Way, dice: random.Random) -> None:
    async with grpc.aio.insecure_channel(address, options=_CHANNEL) as channel:
        late_s = dice.uniform(0, LONGEST_S)
        timeout_s = late_s if way is Way.LATE else PATIENCE_S
        ends = point in (Point.NEVER, Point.HALF)
        under_way = [_begin(channel, each, timeout_s) for each in calls]
        pairs = zip(under_way, calls, strict=True)
        rest = [asyncio.ensure_future(_talk(begun, each, ends=ends)) for begun, each in pairs]
        if point in (Point.AFTER, Point.UNREAD):
            await asyncio.sleep(late_s)
        if way is Way.CANCEL and not ends:
            for begun in under_way:
                begun.cancel()
        if ends or way in (Way.CANCEL, Way.LATE):
            await asyncio.wait(rest)
        await channel.close()
        await asyncio.wait(rest)


def _begin(channel: grpc.aio.Channel, call: Call, timeout_s: float) -> Any:
    if call.is_stream:
        both_ways: Any = channel.stream_stream(call.method)
        return both_ways(timeout=timeout_s)
    unary: Any = channel.unary_stream(call.method)
    return unary(call.messages[0], timeout=timeout_s)


async def _say(call: Any, messages: list[bytes], *, ends: bool) -> None:
    with suppress(grpc.RpcError, grpc.aio.BaseError, asyncio.CancelledError, asyncio.InvalidStateError):
        for message in messages:
            await call.write(message)
        if ends:
            await call.done_writing()


async def _talk(begun: Any, call: Call, *, ends: bool) -> None:
    """Until the call ends, in whatever way."""
    saying = asyncio.ensure_future(_say(begun, call.messages, ends=ends)) if call.is_stream else None
    await _hear(begun)
    if saying is not None:
        saying.cancel()  # a write to a call that has ended may wait for ever
        await asyncio.wait((saying,))


async def _hear(call: Any) -> None:
    with suppress(grpc.RpcError, asyncio.CancelledError):
        while await call.read() is not grpc.aio.EOF:
            pass
    with suppress(asyncio.CancelledError):
        await call.code()
