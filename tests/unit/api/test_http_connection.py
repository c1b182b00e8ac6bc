"""A connection of the HTTP door on a transport that only notes what it is told."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from goqueue.api.http.connection import HttpConnection
from goqueue.api.listening import Listener
from goqueue.broker.admission import Admission
from goqueue.model import limits
from tests.support.loop import run
from tests.support.raw_http import request

PIECE = b"x" * (256 * limits.KIB)


class Transport:
    """Reads on, or not."""

    def __init__(self) -> None:
        self.reads = True

    def get_extra_info(self, name: str) -> Any:
        return SimpleNamespace(setsockopt=lambda *_: None)

    def set_write_buffer_limits(self, **_: int) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True


def test_others_get_their_turns_while_a_large_body_arrives() -> None:
    async def go() -> None:
        door = SimpleNamespace(broker=SimpleNamespace(requests=Admission(limits.MAX_IN_FLIGHT_BYTES)))
        connection = HttpConnection(cast(Any, door), Listener("http", {}, cast(Any, None)))
        transport = Transport()
        connection.connection_made(cast(asyncio.Transport, transport))
        body = PIECE * (5 * limits.RECEIVED_AT_ONCE_BYTES // len(PIECE))
        head, _, _ = request("POST", "/topics/orders/messages", body).partition(b"x")
        connection.data_received(head)
        for _ in range(4):
            at_once = 0
            while transport.reads:
                connection.data_received(PIECE)
                at_once += len(PIECE)
            assert at_once <= limits.RECEIVED_AT_ONCE_BYTES
            others = asyncio.Event()
            asyncio.get_running_loop().call_soon(others.set)
            await others.wait()
            assert transport.reads, "it reads on when they had their turn"

    run(go())
