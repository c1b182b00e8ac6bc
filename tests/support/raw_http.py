"""HTTP as bytes: requests spelled out, right or wrong, and answers taken apart."""

import json
import socket
from typing import Any, NamedTuple

from tests.support.hostile import Peer


class Said(NamedTuple):
    status: int
    body: Any


def request(method: str, path: str, body: bytes = b"", *lines: str) -> bytes:
    head = [f"{method} {path} HTTP/1.1", "Host: localhost", *lines]
    if body:
        head.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*head, "", ""]).encode("latin-1") + body


def publish(body: bytes, *lines: str) -> bytes:
    return request("POST", "/topics/orders/publish", body, *lines)


def post(name: str, body: object = None) -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    return request("POST", name, data, *(() if data else ("Content-Length: 0",)))


def answers(peer: socket.socket) -> list[Said]:
    """Everything the broker says until it ends the connection."""
    received = b""
    try:
        while part := peer.recv(1 << 16):
            received += part
    except ConnectionError:
        pass
    found = []
    while received:
        head, _, rest = received.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        status = int(lines[0].split()[1])
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
        size = int(headers.get("content-length", 0))
        body = rest[:size]
        found.append(Said(status, json.loads(body) if headers.get("content-type") == "application/json" else body))
        received = rest[size:]
    return found


async def one_answer(peer: Peer) -> Said:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += await peer.read(1)
    status, size = int(head.split()[1]), int(head.lower().partition(b"content-length: ")[2].split()[0])
    return Said(status, json.loads(await peer.read(size)))
