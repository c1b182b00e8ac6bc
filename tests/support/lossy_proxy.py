"""Between clients and a broker: what is asked arrives, some of the answers never do.

Now and then, instead of passing an answer on, it hangs up: each so many, or at random if it has dice. Whoever asked
cannot know whether it was done; a client that asks again asks for the second time.
"""

import asyncio
import random
from typing import Final

from goqueue.wire.frames import WELCOME

_PIECE_BYTES: Final = 1 << 16


class LossyProxy:
    """Made by `LossyProxy.open`; `lost` counts the answers, or lots of them, that were dropped."""

    def __init__(self, host: str, port: int, *, loses_one_in: int, dice: random.Random | None = None) -> None:
        self._target = host, port
        self._loses_one_in = loses_one_in
        self._dice = dice
        self._passed = 0
        self._server: asyncio.Server | None = None
        self._clients: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self.lost = 0

    @classmethod
    async def open(cls, target: str, *, loses_one_in: int, dice: random.Random | None = None) -> "LossyProxy":
        host, _, port = target.rpartition(":")
        proxy = cls(host, int(port), loses_one_in=loses_one_in, dice=dice)
        proxy._server = await asyncio.start_server(proxy._serve, "127.0.0.1", 0)
        return proxy

    @property
    def address(self) -> str:
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()
        return f"{host}:{port}"

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for client in self._clients.values():
            client.transport.abort()
        await asyncio.gather(*self._clients)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients[task] = writer
        to_broker: asyncio.StreamWriter | None = None
        try:
            from_broker, to_broker = await asyncio.open_connection(*self._target)
            asking = asyncio.create_task(_pass_on(reader, to_broker))
            try:
                await self._answer(from_broker, writer)
            finally:
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
        except OSError:
            pass
        finally:
            for end in (writer, to_broker):
                if end is not None:
                    end.transport.abort()
            del self._clients[task]

    async def _answer(self, from_broker: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        to_client.write(await from_broker.read(WELCOME.size))
        while piece := await from_broker.read(_PIECE_BYTES):
            self._passed += 1
            if self._loses():
                self.lost += 1
                return
            to_client.write(piece)
            await to_client.drain()

    def _loses(self) -> bool:
        if self._dice is None:
            return self._passed % self._loses_one_in == 0
        return self._dice.random() * self._loses_one_in < 1


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(_PIECE_BYTES):
        writer.write(piece)
        await writer.drain()
    writer.transport.abort()
