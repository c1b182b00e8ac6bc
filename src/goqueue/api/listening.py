"""Listening at an address and looking after the connections: the same for every door.

One sweep finds whoever does not get on; there are no timers per connection.
"""

import asyncio
import socket
from collections.abc import Callable
from time import perf_counter
from typing import Final, Protocol

from goqueue.model import limits

_KEEP_IDLE_S: Final = 60
"""After so much silence the system asks whether anybody is there."""


class Connection(Protocol):
    """What a listener sees of a connection."""

    @property
    def busy(self) -> bool:
        """Whether something is under way that deserves to be waited for."""

    def drain(self) -> None:
        """Take no new work; answer who waits for what may never come."""

    def hang_up(self) -> None: ...

    def sweep(self, now: float) -> None:
        """Cut it off if it does not get on; give back what it does not need."""


def keep_alive(transport: asyncio.Transport) -> None:
    """Let the system find out when the other machine has vanished without a word."""
    sock = transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEP_IDLE_S)


class Listener:
    """One address. `connect` makes the protocol of a new connection."""

    def __init__(
        self, name: str, counts: dict[str, int], connect: Callable[["Listener"], asyncio.BaseProtocol]
    ) -> None:
        self._name = name
        self._counts = counts
        self._connect = connect
        self._draining = False
        self._connections: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None

    async def open(self, host: str, port: int) -> str:
        """The address it listens at."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: self._connect(self), host, port, backlog=1024)
        self._sweeper = loop.create_task(self._sweep())
        bound, number = self._server.sockets[0].getsockname()[:2]
        return f"[{bound}]:{number}" if ":" in bound else f"{bound}:{number}"

    def drain(self) -> None:
        """Let nobody in, answer whoever waits, finish what is under way."""
        self._draining = True
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.drain()

    async def close(self, grace_s: float) -> None:
        """After `drain`: wait for what is under way, then hang up."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        deadline = perf_counter() + grace_s
        while any(connection.busy for connection in self._connections) and perf_counter() < deadline:
            await asyncio.sleep(limits.DRAIN_POLL_S)
        for connection in list(self._connections):
            connection.hang_up()

    def join(self, connection: Connection) -> bool:
        """Whether there is a place for one more."""
        if self._draining or len(self._connections) >= limits.MAX_CONNECTIONS:
            return False
        self._connections.add(connection)
        self._counts[self._name] = len(self._connections)
        return True

    def leave(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._counts[self._name] = len(self._connections)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(limits.SWEEP_INTERVAL_S)
            now = perf_counter()
            for connection in list(self._connections):
                connection.sweep(now)
