"""Clients that keep to no protocol, and a broker in this process that is watched for every slip.

`watched_server` fails a test when an exception got as far as the event loop, when the broker logged an error, or when
something is left after everybody has gone: a connection, bytes of a budget, a task.
"""

import asyncio
import gc
import logging
import socket
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, Final, Self, TypeVar

import uvloop

from goqueue.server.server import Server
from tests.support.broker_server import running_server
from tests.support.patience import PATIENCE_S

T = TypeVar("T")

_POLL_S: Final = 0.005
_READ_BYTES: Final = 64 * 1024


def run(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine, on the kind of loop the broker has in earnest; TimeoutError when it hangs."""

    async def watched() -> T:
        async with asyncio.timeout(PATIENCE_S):
            return await work

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(watched())


async def until(condition: Callable[[], object]) -> None:
    """Wait for something that must come about; `run` gives up when it does not."""
    while not condition():
        await asyncio.sleep(_POLL_S)


@asynccontextmanager
async def watched_server(data_dir: Path, **flags: str) -> AsyncIterator[Server]:
    slips: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: slips.append(repr(context)))
    errors = _Errors()
    logging.getLogger().addHandler(errors)
    try:
        async with running_server(data_dir, **flags) as server:
            tasks, broker = len(asyncio.all_tasks()), server.broker
            yield server
            await until(lambda: not any(server.service.connections.values()))
            await until(lambda: (broker.requests.held, broker.replies.held) == (0, 0))
            await until(lambda: len(asyncio.all_tasks()) <= tasks)
        gc.collect()  # a task that failed tells of it when it goes
        await asyncio.sleep(0)
    finally:
        logging.getLogger().removeHandler(errors)
    assert slips == []
    assert errors.lines == []


def sweep(server: Server, *, after_s: float) -> None:
    """Look at all connections as if that much time had passed."""
    now = perf_counter() + after_s
    for door in server._doors:
        for connection in list(door._connections):
            connection.sweep(now)


class _Errors(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.getMessage()} {record.exc_info}")


class Peer:
    """A raw connection. Use it in `async with`; it reads only when told to."""

    def __init__(self, address: str, *, receive_bytes: int | None = None) -> None:
        host, _, port = address.rpartition(":")
        self._address = (host, int(port))
        self._socket = socket.socket()
        self._socket.setblocking(False)
        if receive_bytes is not None:  # only before it connects
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self._loop = asyncio.get_running_loop()

    async def __aenter__(self) -> Self:
        await self._loop.sock_connect(self._socket, self._address)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._socket.close()

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self._socket, data)

    def finish(self) -> None:
        """Nothing more will be sent; answers are still welcome."""
        self._socket.shutdown(socket.SHUT_WR)

    def vanish(self) -> None:
        """Leave at once: what is on its way is lost, and the other side is reset."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    async def read(self, count: int) -> bytes:
        """Exactly that many bytes; ConnectionError when there are not so many."""
        found = bytearray()
        while len(found) < count:
            part = await self._loop.sock_recv(self._socket, min(count - len(found), 1 << 20))
            if not part:
                raise ConnectionError(f"the other side ended after {len(found)} of {count} bytes")
            found += part
        return bytes(found)

    async def some(self) -> bytes:
        """Whatever there is; nothing when the other side has ended the connection."""
        return await self._loop.sock_recv(self._socket, _READ_BYTES)

    async def read_to_the_end(self) -> bytes:
        """Everything until the other side ends, or resets, the connection."""
        found = bytearray()
        try:
            while part := await self._loop.sock_recv(self._socket, _READ_BYTES):
                found += part
        except ConnectionError:
            pass
        return bytes(found)


def resident_bytes(pid: int) -> int:
    """Memory of a process that is really there."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"process {pid} has no memory to speak of")


def files_of(data_dir: Path) -> dict[str, int]:
    """Every file of a data directory with its size."""
    return {str(path.relative_to(data_dir)): path.stat().st_size for path in data_dir.rglob("*") if path.is_file()}
