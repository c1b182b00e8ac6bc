"""A connection that is made when it is needed, and again when it was lost.

`get` gives one or says why there is none; `insist` goes on trying. Who uses a connection of a link does not close it.
Where that is wanted, the log says when one is lost or cannot be made, once, and when there is one again.
"""

import asyncio
import logging
import random
import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from goqueue.client.connection import CLOSE_TIMEOUT_S, Connection
from goqueue.model.errors import Busy, Draining, GoQueueError, InvalidRequest, RequestTimeout, Unavailable

log = logging.getLogger("goqueue.client")

T = TypeVar("T")

BACKOFF_S: Final = 0.05
MAX_BACKOFF_S: Final = 2.0
LAST_TRY_S: Final = 0.25
"""What is left of the time for the last try."""
QUIET_S: Final = 10.0
"""How long a link says nothing of another loss: a broker that hangs up again and again would fill the log."""
_ADDRESS: Final = re.compile(r"(?:\[([^\[\]]+)\]|([^\[\]:]+)):([0-9]{1,5})")
_MAX_PORT: Final = 0xFFFF


class Endpoint(NamedTuple):
    """Where a broker listens, and how long it may take to answer."""

    host: str
    port: int
    connect_timeout_s: float
    call_timeout_s: float


def parse_endpoint(address: str, *, connect_timeout_s: float, call_timeout_s: float) -> Endpoint:
    """Of `host:port`, or `[ip6]:port`."""
    found = _ADDRESS.fullmatch(address)
    if found is None or not 0 < int(found[3]) <= _MAX_PORT:
        raise InvalidRequest(f"{address!r} is no address; write host:port, like 127.0.0.1:9001")
    return Endpoint(found[1] or found[2], int(found[3]), connect_timeout_s, call_timeout_s)


def backoff_s(failures: int, base_s: float = BACKOFF_S) -> float:
    """Doubling up to a bound, and spread out, so that many do not come back at the same moment."""
    return min(MAX_BACKOFF_S, base_s * float(1 << min(failures - 1, 16))) * random.uniform(0.5, 1.0)


def check_loop(loop: asyncio.AbstractEventLoop) -> None:
    """InvalidRequest when another one is running, or none: what is awaited there would never be heard of."""
    if loop is not asyncio._get_running_loop():
        raise InvalidRequest(
            "a client belongs to one event loop, and what it makes with it: make another one in each asyncio.run, and "
            "close it there; threads share a goqueue.Client"
        )


class Link:
    """Used from one event loop, by any number of tasks."""

    def __init__(self, endpoint: Endpoint, *, tells: bool = False) -> None:
        """With `tells` the log hears of losses; without it that is for who made the link."""
        self.endpoint = endpoint
        self._tells = tells
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()
        self._closed = False
        self._told_lost = False
        self._quiet_until = float("-inf")

    async def get(self) -> Connection:
        """The connection; made now if there is none that works."""
        connection = self._connection
        if connection is not None:
            check_loop(connection.loop)
            if connection.failure is None:
                return connection
        async with self._connecting:
            if self._closed:
                raise Unavailable("this client is closed; make another one")
            connection = self._connection
            if connection is None or connection.failure is not None:
                is_first = connection is None
                connection = self._connection = await self._connect()
                if self._closed:  # meanwhile, when there was no connection to close yet
                    await connection.close()
                    raise Unavailable("this client was closed while it connected")
                self._tell_back(is_first=is_first)
                connection.when_ended(partial(self._see_end, connection))
            return connection

    async def _connect(self) -> Connection:
        former = self._connection
        if former is not None and former.failure is not None:
            self._tell_lost(former.failure)
        host, port, connect_timeout_s, call_timeout_s = self.endpoint
        try:
            return await Connection.connect(
                host, port, connect_timeout_s=connect_timeout_s, call_timeout_s=call_timeout_s
            )
        except GoQueueError as error:
            self._tell_lost(error)
            raise

    def _see_end(self, connection: Connection) -> None:
        if connection is self._connection and connection.failure is not None:
            self._tell_lost(connection.failure)

    def _tell_lost(self, reason: GoQueueError) -> None:
        """Once, until there is a connection again."""
        now = asyncio.get_running_loop().time()
        if self._tells and not self._closed and not self._told_lost and now >= self._quiet_until:
            self._told_lost = True
            self._quiet_until = now + QUIET_S
            log.warning("a connection failed, and is made again when it is needed: %s", reason)

    def _tell_back(self, *, is_first: bool) -> None:
        if self._told_lost:
            self._told_lost = False
            again = "" if is_first else " again"
            log.warning("the connection to %s:%d works%s", self.endpoint.host, self.endpoint.port, again)

    async def insist(
        self, work: Callable[[Connection], Awaitable[T]], *, timeout_s: float | None, repeatable: bool = True
    ) -> T:
        """Do something; again while it fails in ways that pass, until the time is up.

        What is not `repeatable` is done again only when it certainly was not done: there was no connection, or the
        broker said so.
        """
        deadline = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
        failures = 0
        trouble = ""
        is_last = False
        while True:
            sent = False
            try:
                async with asyncio.timeout_at(deadline):
                    connection = await self.get()
                    sent = True
                    return await work(connection)
            except TimeoutError:
                where = f"{self.endpoint.host}:{self.endpoint.port}"
                done = "; it may have been done" if sent and not repeatable else ""
                raise RequestTimeout(f"no answer from {where} within {timeout_s} s{done}{trouble}") from None
            except GoQueueError as error:
                again = repeatable or not sent or isinstance(error, Busy | Draining)
                if not error.retriable or not again or self._closed or is_last:
                    raise
                failures += 1
                pause_s = backoff_s(failures)
                if deadline is not None:
                    left_s = deadline - asyncio.get_running_loop().time()
                    if left_s <= 0:
                        raise
                    if pause_s + LAST_TRY_S >= left_s:  # once more, when there is just time for it
                        is_last = True
                        pause_s = max(left_s / 2, left_s - LAST_TRY_S)
                trouble = f"; the last trouble: {error}"
            await asyncio.sleep(pause_s)

    async def ask(
        self, operation: int, fields: dict[str, Any], *, repeatable: bool, timeout_s: float | None = None
    ) -> dict[str, Any]:
        """One operation as JSON. What may not be done twice is tried again only as long as it was not done."""
        timeout_s = self.endpoint.call_timeout_s if timeout_s is None else timeout_s
        return await self.insist(
            lambda connection: connection.ask(operation, fields, timeout_s=timeout_s),
            timeout_s=timeout_s,
            repeatable=repeatable,
        )

    async def close(self, patience_s: float = CLOSE_TIMEOUT_S) -> None:
        """Let what was sent leave, for so long."""
        self.check_loop()
        self._closed = True
        if self._connection is not None and not self._connection.ended:
            await self._connection.close(patience_s)

    def check_loop(self) -> None:
        """InvalidRequest when it cannot be closed in this event loop."""
        if self._connection is not None and not self._connection.ended:
            check_loop(self._connection.loop)
