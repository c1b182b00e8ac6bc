"""One connection to a broker, as calls: publish a block, fetch a block, ask anything else in JSON.

An error from the broker is raised as the class of `model.errors` it was there. A lost connection, or one that was
never made, is `Unavailable`; a call without an answer in time is `RequestTimeout`: in both cases it may have been
done. A connection that failed stays so; reconnecting and retrying is for who knows what may be done twice.

Blocks are sent from where they are: leave one unchanged until its answer is there.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import msgspec

from goqueue.client.arguments import to_json
from goqueue.client.exchange import Exchange, Reply
from goqueue.model import limits
from goqueue.model.errors import GoQueueError, InvalidRequest, ProtocolError, RequestTimeout, Unavailable
from goqueue.model.publishing import Acks, Durability
from goqueue.model.record import Producer
from goqueue.wire import blocks, frames
from goqueue.wire.blocks import FetchRequest, PublishReply, PublishRequest
from goqueue.wire.codes import FETCH_BLOCK, PUBLISH_BLOCK
from goqueue.wire.failures import unpack_error
from goqueue.wire.frames import Bytes

CONNECT_TIMEOUT_S: Final = 10.0
"""To reach the broker and exchange prefaces."""
CALL_TIMEOUT_S: Final = 30.0
"""For one answer, beside what a fetch was told to wait."""
CLOSE_TIMEOUT_S: Final = 5.0
"""For what was sent to leave."""


class Fetched(NamedTuple):
    """Records and where to go on. `block` is its own memory: it stays valid."""

    next_offset: int
    earliest: int
    latest: int
    records: int
    block: memoryview


class Connection:
    """Made by `Connection.connect`; close it, or use it in `async with`."""

    def __init__(self, exchange: Exchange, *, call_timeout_s: float) -> None:
        self._exchange = exchange
        self.call_timeout_s = call_timeout_s
        self.loop = asyncio.get_running_loop()

    @classmethod
    async def connect(
        cls,
        host: str,
        port: int,
        *,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        call_timeout_s: float = CALL_TIMEOUT_S,
    ) -> Self:
        peer = f"{host}:{port}"
        exchange = Exchange(peer)
        try:
            async with asyncio.timeout(connect_timeout_s):
                await _shake_hands(exchange, host, port)
        except TimeoutError:
            raise RequestTimeout(
                f"{peer} did not answer within {connect_timeout_s} s; is it running, and is this its wire port?"
            ) from None
        except UnicodeError as error:
            raise InvalidRequest(f"{host!r} is no name of a host ({error}); write it like broker.example") from error
        except OSError as error:
            raise Unavailable(f"cannot reach a broker at {peer} ({error}); is it running?") from error
        return cls(exchange, call_timeout_s=call_timeout_s)

    @property
    def failure(self) -> GoQueueError | None:
        """Why this connection is of no more use; None while it is."""
        return self._exchange.failure

    @property
    def ended(self) -> bool:
        """Whether nothing is left to close."""
        return self._exchange.closed.done()

    def when_ended(self, tell: Callable[[], object]) -> None:
        """Call this when the connection has ended, for whatever reason."""
        self._exchange.closed.add_done_callback(lambda _: tell())

    def submit(self, operation: int, parts: Sequence[Bytes], *, answered: bool = True) -> asyncio.Future[Reply]:
        """What `call` does, without waiting: calls go out in the order they were submitted in."""
        return self._exchange.submit(operation, parts, answered=answered)

    def together(self) -> AbstractContextManager[None]:
        """Small calls submitted in here leave in one piece."""
        return self._exchange.together()

    async def call(
        self, operation: int, parts: Sequence[Bytes], *, answered: bool = True, timeout_s: float | None = None
    ) -> bytes:
        """The payload of the reply; an error of the broker's is raised."""
        timeout_s = self.call_timeout_s if timeout_s is None else timeout_s
        reply = self.submit(operation, parts, answered=answered)
        try:
            async with asyncio.timeout(timeout_s):
                status, payload = await reply
        except TimeoutError:
            raise RequestTimeout(
                f"no answer from {self._exchange.peer} within {timeout_s} s; operation {operation} may have been done"
            ) from None
        if status == frames.ERROR:
            raise unpack_error(payload)
        return payload

    async def publish_block(
        self,
        topic_id: int,
        partition: int,
        block: Bytes,
        *,
        acks: Acks = Acks.ALL,
        producer: Producer | None = None,
        timeout_s: float | None = None,
    ) -> PublishReply:
        """With acks none there is nothing to wait for: the answer has no ranges, and errors stay unknown."""
        request = PublishRequest(topic_id, partition, acks, producer).pack()
        answered = acks is not Acks.NONE
        payload = await self.call(PUBLISH_BLOCK, (request, block), answered=answered, timeout_s=timeout_s)
        return blocks.unpack_publish_reply(payload) if answered else PublishReply(Durability.NONE, ())

    async def fetch_block(
        self,
        topic_id: int,
        partition: int,
        offset: int,
        *,
        max_bytes: int = limits.MIB,
        max_count: int = limits.MAX_READ_COUNT,
        max_wait_ms: int = 0,
        uncommitted: bool = False,
        timeout_s: float | None = None,
    ) -> Fetched:
        """Records from `offset` on; waits up to `max_wait_ms` when there are none yet, beside the timeout."""
        request = FetchRequest(topic_id, partition, offset, max_bytes, max_count, max_wait_ms, uncommitted).pack()
        timeout_s = (self.call_timeout_s if timeout_s is None else timeout_s) + max_wait_ms / 1000
        payload = await self.call(FETCH_BLOCK, (request,), timeout_s=timeout_s)
        fetched = blocks.unpack_fetch_reply(payload)
        return Fetched(*fetched, memoryview(payload)[blocks.FETCH_REPLY.size :])

    async def ask(
        self, operation: int, request: dict[str, Any] | None = None, *, timeout_s: float | None = None
    ) -> dict[str, Any]:
        """Any operation that carries JSON, by its code (`wire.codes`)."""
        payload = await self.call(operation, (to_json(request or {}),), timeout_s=timeout_s)
        if not payload:
            return {}
        try:
            return msgspec.json.decode(payload, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolError(f"the reply to operation {operation} is not a JSON object ({error})") from error

    def abort(self, reason: str) -> None:
        """Fail everything in flight now; what has not left does not leave."""
        self._exchange.fail(Unavailable(f"the connection to {self._exchange.peer} was given up: {reason}"))

    async def close(self, patience_s: float = CLOSE_TIMEOUT_S) -> None:
        """Let what was sent leave, for so long; calls still in flight fail."""
        self._exchange.fail(Unavailable(f"the connection to {self._exchange.peer} was closed here"), flush=True)
        await asyncio.wait([self._exchange.closed], timeout=patience_s)
        if not self._exchange.closed.done():
            self._exchange.abort()
            await asyncio.wait([self._exchange.closed])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


async def _shake_hands(exchange: Exchange, host: str, port: int) -> None:
    try:
        await asyncio.get_running_loop().create_connection(lambda: exchange, host, port)
        await exchange.welcomed
    except BaseException:
        exchange.welcomed.cancel()
        exchange.fail(Unavailable(f"connecting to {exchange.peer} was given up"))
        raise
