"""An operation that waits before it answers, and doors on loopback that have it."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, Protocol, cast

import msgspec
import pytest

from goqueue.api import operations
from goqueue.api.bodies import Bodies
from goqueue.api.http.connection import HttpConnection
from goqueue.api.http.door import HttpDoor
from goqueue.api.listening import ClientConnection, Listener
from goqueue.api.operations import Operation
from goqueue.api.service import Service
from goqueue.api.wire import requests
from goqueue.api.wire.connection import WireConnection, wire_meters
from goqueue.model import limits
from goqueue.wire import codes, frames, shapes
from tests.support import hostile, loop
from tests.support.hostile import Peer, until
from tests.support.raw_http import one_answer, request
from tests.support.raw_wire import frame, greet, read_reply
from tests.unit.api.services import served

REPLY_BYTES = 64 * limits.KIB
WAIT, PLAIN = 60_001, 60_002
"""Their codes on the wire."""


class Run(Protocol):
    def __call__(self, work: Coroutine[Any, Any, None]) -> None: ...


through_both_doors = pytest.mark.parametrize("door", ["http", "wire"])
on_both_loops = pytest.mark.parametrize("run", [hostile.run, loop.run], ids=["uvloop", "asyncio"])


class Ask(shapes.Request, frozen=True, kw_only=True):
    chars: int = 1
    """Of the reply."""
    padding: str = ""


class Told(shapes.Reply, frozen=True, kw_only=True):
    text: str


class Waiting:
    """`wait` waits for `bell` and then works until `gate` opens; `plain` only does the latter. `events` is what was."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.bell = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()
        self.refusal: Exception | None = None
        self.undone: list[Told] = []
        path = "/{topic}/wait"
        self.wait = Operation(
            "wait", "Wait", "POST", (path,), Ask, Told, self.answer, reply_bytes=REPLY_BYTES, park=self.park,
            undo=self.undo,
        )  # fmt: skip
        self.plain = Operation("plain", "Do not", "POST", ("/{topic}/plain",), Ask, Told, self.do)

    async def park(self, service: Service, request: Ask, topic: str) -> str:
        self.events.append("parked")
        try:
            await self.bell.wait()
        except asyncio.CancelledError:
            self.events.append("left")
            raise
        if self.refusal is not None:
            raise self.refusal
        return f"{topic} rang"

    async def answer(self, service: Service, request: Ask, topic: str, parked: str) -> Told:
        assert parked == f"{topic} rang"
        return await self.do(service, request, topic)

    async def do(self, service: Service, request: Ask, topic: str) -> Told:
        self.events.append("begun")
        await self.gate.wait()
        self.events.append("done")
        return Told(text="x" * request.chars)

    def undo(self, service: Service, reply: Told) -> None:
        self.events.append("undone")
        self.undone.append(reply)

    async def until(self, *events: str) -> None:
        await until(lambda: self.events == list(events))


class Answer(NamedTuple):
    good: bool
    fields: Any


class Client:
    """Somebody who speaks through one of the doors, and asks for `wait` or `plain`."""

    def __init__(self, door: str, peer: Peer) -> None:
        self._door = door
        self.peer = peer

    async def ask(self, name: str = "wait", *, chars: int = 1, padding: str = "") -> None:
        await self.peer.send(self.request(name, chars=chars, padding=padding))

    def request(self, name: str = "wait", *, chars: int = 1, padding: str = "") -> bytes:
        fields = {"chars": chars, "padding": padding}
        if self._door == "http":
            return request("POST", f"/orders/{name}", msgspec.json.encode(fields))
        return frame(codes.CODES[name], msgspec.json.encode({"topic": "orders", **fields}))

    async def answer(self) -> Answer:
        if self._door == "http":
            said = await one_answer(self.peer)
            return Answer(said.status == 200, said.body)
        reply = await read_reply(self.peer)
        return Answer(reply.status == frames.OK, reply.fields)

    def vanish(self) -> None:
        """Leave at once: the other side is reset."""
        self.peer.vanish()

    def finish(self) -> None:
        """Send nothing more."""
        self.peer.finish()

    def close(self) -> None:
        """Leave as everybody does."""
        self.peer._socket.close()


class Doors:
    """Both of them, and what waits behind."""

    def __init__(self, service: Service, waiting: Waiting, listeners: dict[str, Listener]) -> None:
        self.service = service
        self.waiting = waiting
        self.listeners = listeners
        self.addresses: dict[str, str] = {}

    @asynccontextmanager
    async def client(self, door: str, *, receive_bytes: int | None = None) -> AsyncIterator[Client]:
        async with Peer(self.addresses[door], receive_bytes=receive_bytes) as peer:
            if door == "wire":
                await greet(peer)
            yield Client(door, peer)

    def connections(self, door: str) -> list[ClientConnection]:
        return [cast(ClientConnection, connection) for connection in self.listeners[door]._connections]

    async def the_connection(self, door: str) -> ClientConnection:
        await until(lambda: len(self.connections(door)) == 1)
        return self.connections(door)[0]

    def sweep(self, after_s: float) -> None:
        for door in self.listeners:
            for connection in self.connections(door):
                connection.sweep(perf_counter() + after_s)

    @property
    def held(self) -> tuple[int, int]:
        """Of the broker's budgets."""
        return self.service.broker.requests.held, self.service.broker.replies.held


@asynccontextmanager
async def doors(path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Doors]:
    """At the end nothing is held, before the doors are closed and after."""
    async with served(path) as broker:
        service, waiting = broker.service, Waiting()
        for code, operation in ((WAIT, waiting.wait), (PLAIN, waiting.plain)):
            monkeypatch.setitem(codes.CODES, operation.name, code)
            monkeypatch.setitem(codes.NAMES, code, operation.name)
            monkeypatch.setitem(operations.BY_CODE, code, operation)
            bodies = Bodies(operation, what="the request", has_path=True)
            monkeypatch.setitem(requests._BODIES, operation.name, bodies)
        door = HttpDoor("http", service, cast(Any, None), (waiting.wait, waiting.plain))
        meters = wire_meters(service)
        found = Doors(
            service,
            waiting,
            {
                "http": Listener("http", service.connections, lambda listener: HttpConnection(door, listener)),
                "wire": Listener(
                    "wire", service.connections, lambda listener: WireConnection(service, meters, listener)
                ),
            },
        )
        for name, listener in found.listeners.items():
            found.addresses[name] = await listener.open("127.0.0.1", 0)
        try:
            yield found
            await until(lambda: found.held == (0, 0))
        finally:
            for listener in found.listeners.values():
                listener.drain()
                await listener.close(0)
            waiting.gate.set()
            await until(lambda: not any(service.connections.values()))
        assert found.held == (0, 0)
