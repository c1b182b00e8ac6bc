"""Any operation over each of the two doors, by its name: with the same fields, the same answers and the same errors.

A caller has one connection at a time and makes another one when it is told to. What has no answer raises `Unavailable`
or `RequestTimeout`: it may have been done.
"""

import asyncio
from http.client import HTTPException
from typing import Any, Protocol
from urllib.parse import quote, urlencode

import msgspec

from goqueue.api.operations import BY_NAME
from goqueue.client.connection import Connection
from goqueue.model.errors import Unavailable
from goqueue.wire.codes import CODES
from goqueue.wire.failures import unpack_error
from tests.chaos.broker_load import split
from tests.support.broker import HttpClient


class Caller(Protocol):
    async def open(self) -> None:
        """Another connection, in place of one that is of no more use."""

    async def ask(self, operation: str, **fields: Any) -> dict[str, Any]: ...
    async def close(self) -> None: ...


class WireCaller:
    """`connection` is there once it was opened."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._connection: Connection | None = None

    @property
    def connection(self) -> Connection:
        assert self._connection is not None, "open it first"
        return self._connection

    async def open(self) -> None:
        await self.close()
        self._connection = await Connection.connect(*split(self._address))

    async def ask(self, operation: str, **fields: Any) -> dict[str, Any]:
        return await self.connection.ask(CODES[operation], fields)

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()


class HttpCaller:
    """One connection in a thread of its own: one request after the other."""

    def __init__(self, address: str) -> None:
        self._client = HttpClient(address)
        self._turn = asyncio.Lock()

    async def open(self) -> None:
        await self.close()
        await self.ask("live")

    async def ask(self, operation: str, **fields: Any) -> dict[str, Any]:
        found = BY_NAME[operation]
        path = found.paths[0].format(**{name: quote(str(fields[name])) for name in found.path_fields})
        rest = {name: value for name, value in fields.items() if name not in found.path_fields}
        if rest and not found.has_body:
            path = f"{path}?{urlencode(rest)}"
        async with self._turn:
            return await asyncio.to_thread(self._ask, found.method, path, rest if found.has_body else None)

    def _ask(self, method: str, path: str, body: object) -> dict[str, Any]:
        try:
            answer = self._client.request(method, path, body)
        except (OSError, HTTPException) as error:
            raise Unavailable(f"no answer to {method} {path}: {error!r}") from error
        if answer.status >= 300:
            raise unpack_error(msgspec.json.encode(answer.body))
        found: dict[str, Any] = answer.body
        return found

    async def close(self) -> None:
        self._client.close()
