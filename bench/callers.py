"""The client's end of a connection, with as little in it as measuring allows: blocking sockets, no buffers to copy.

A caller waits in the kernel for a bounded time. An answer that is not what was hoped for is an error: a rate of
refused requests would be no figure.
"""

import socket
import struct
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from goqueue.wire import frames
from goqueue.wire.codes import CODES
from goqueue.wire.frames import HEADER, LENGTH_BYTES, Bytes

PATIENCE_S: Final = 60
_TIMEVAL: Final = struct.Struct("@ll")
_HEAD_BYTES: Final = 1 << 16
_HEAD_END: Final = b"\r\n\r\n"


class Refused(Exception):
    """The server answered, but with an error."""


def connect(address: str) -> socket.socket:
    host, port = address.rsplit(":", 1)
    found = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
    found.setblocking(True)  # a Python timeout would cost a poll() before each call; the kernel's own costs nothing
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        found.setsockopt(socket.SOL_SOCKET, option, _TIMEVAL.pack(PATIENCE_S, 0))
    return found


class WireCaller:
    """One connection that speaks frames; replies are taken in the order they come."""

    def __init__(self, address: str) -> None:
        self._socket = connect(address)
        self._head = memoryview(bytearray(HEADER.size))
        self.send([frames.pack_preface()])
        frames.unpack_welcome(self._exactly(memoryview(bytearray(frames.WELCOME.size))))

    def send(self, parts: Sequence[Bytes]) -> None:
        sent = self._socket.sendmsg(parts)
        if sent < sum(map(len, parts)):
            self._socket.sendall(b"".join(parts)[sent:])

    def request(self, operation: int, correlation: int, parts: Sequence[Bytes]) -> None:
        size = sum(map(len, parts))
        self.send([frames.pack_header(operation, frames.OK, correlation, size), *parts])

    def reply(self, into: memoryview) -> tuple[int, memoryview]:
        """Correlation and payload of the next reply; the payload lies in `into`."""
        length, operation, status, correlation = frames.unpack_header(self._exactly(self._head))
        payload = self._exactly(into[: length + LENGTH_BYTES - HEADER.size])
        if status != frames.OK:
            raise Refused(f"operation {operation}: {bytes(payload[:500]).decode(errors='replace')}")
        return correlation, payload

    def ask(self, operation: str, **fields: Any) -> dict[str, Any]:
        self.request(CODES[operation], 0, [msgspec.json.encode(fields)])
        _, payload = self.reply(memoryview(bytearray(1 << 20)))
        return msgspec.json.decode(payload, type=dict[str, Any])

    def close(self) -> None:
        self._socket.close()

    def _exactly(self, into: memoryview) -> memoryview:
        got = 0
        while got < len(into):
            count = self._socket.recv_into(into[got:], 0, socket.MSG_WAITALL)
            if not count:
                raise ConnectionResetError("the server hung up")
            got += count
        return into


class HttpCaller:
    """One connection that is kept alive; a request and its answer at a time."""

    def __init__(self, address: str) -> None:
        self._socket = connect(address)
        self._buffer = memoryview(bytearray(4 << 20))

    def call(self, request: bytes) -> memoryview:
        """The body of the answer; it is valid until the next call."""
        self._socket.sendall(request)
        got = 0
        while (end := bytes(self._buffer[: min(got, _HEAD_BYTES)]).find(_HEAD_END)) < 0:
            got += self._receive(got)
        head = bytes(self._buffer[:end]).lower()
        begin = end + len(_HEAD_END)
        size = int(head.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
        while got < begin + size:
            got += self._receive(got)
        if not head.startswith((b"http/1.1 200", b"http/1.1 201")):
            raise Refused(bytes(self._buffer[: min(got, 500)]).decode(errors="replace"))
        return self._buffer[begin : begin + size]

    def _receive(self, at: int) -> int:
        count = self._socket.recv_into(self._buffer[at:])
        if not count:
            raise ConnectionResetError("the server hung up")
        return count

    def close(self) -> None:
        self._socket.close()


def http_request(method: str, path: str, body: Any) -> bytes:
    data = msgspec.json.encode(body)
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
    )
    return head.encode() + _HEAD_END + data
