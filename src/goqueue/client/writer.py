"""As whom a producer writes in transactions, and what it asks of the broker about them.

An identity is one of init_producer; with a transactional id it fences off whoever had it before. It is asked for until
there is an answer. The request names the writer's incarnation and the identity it had: so the broker knows one that
comes again, and a writer never fences itself. Beginning may not be done twice: when nobody knows whether a transaction
was begun, the next try is made in another epoch. Committing may: it is asked for until there is an answer.
"""

import secrets
from typing import Any, Final, NamedTuple

from goqueue.client.block_producer import init_producer
from goqueue.client.connection import Connection
from goqueue.client.fields import by_argument, given
from goqueue.client.line import Identity
from goqueue.client.link import Link
from goqueue.model.errors import (
    Busy,
    Conflict,
    Draining,
    GoQueueError,
    InvalidRequest,
    ProducerFenced,
    ProtocolError,
    RequestTimeout,
    TransactionAborted,
    Unavailable,
    UnknownProducer,
)
from goqueue.model.times import show_duration
from goqueue.model.transactions import TransactionState, transaction_number
from goqueue.wire.codes import CODES

_NOT_DONE: Final = (Busy, Draining)
_INCARNATION_BYTES: Final = 16
_COMMITTED: Final = (TransactionState.COMMITTING, TransactionState.COMMITTED)


class Begun(NamedTuple):
    """A transaction, and whose it is."""

    transaction_id: str
    number: int
    identity: Identity


class TransactionWriter:
    """`identity` is None when another one is needed. It is asked for as long as `patience_s`."""

    def __init__(self, link: Link, *, transactional_id: str | None, timeout_ms: int | None, patience_s: float) -> None:
        self._link = link
        self.transactional_id = transactional_id
        self._timeout_ms = timeout_ms
        self._patience_s = patience_s
        self.identity: Identity | None = None
        self._former: Identity | None = None
        """The last one that the broker is known to have given."""
        self._incarnation = secrets.token_hex(_INCARNATION_BYTES)

    async def identify(self) -> None:
        """Become the one that has the transactional id, now: what the one before has left open is aborted."""
        if self.identity is None:
            await self._link.insist(self._identify, timeout_s=self._patience_s)

    async def _identify(self, connection: Connection) -> Identity:
        asked: dict[str, Any] = {}
        if self.transactional_id is not None:
            asked["transactional_id"] = self.transactional_id
            asked["incarnation"] = self._incarnation
            if self._former is not None:  # refused when somebody else has the id by now: it is not taken back
                asked["producer_id"], asked["epoch"] = self._former.producer_id, self._former.epoch
            if self._timeout_ms is not None:
                asked["transaction_timeout"] = show_duration(self._timeout_ms)
        try:
            self.identity = self._former = await init_producer(connection, **asked)
        except InvalidRequest as error:
            raise by_argument(error, asked) from None
        return self.identity

    async def begin(self, *, name: str | None, timeout_ms: int | None) -> Begun:
        wanted_ms = self._timeout_ms if timeout_ms is None else timeout_ms
        asked = given(name=name, timeout=None if wanted_ms is None else show_duration(wanted_ms))
        was_known = self.identity is not None

        async def once(connection: Connection) -> Begun:
            return await self._begin(connection, asked)

        try:
            return await self._link.insist(once, timeout_s=self._patience_s)
        except UnknownProducer:  # the broker has forgotten it, or is another one
            if not was_known:
                raise
            self.identity = None
            return await self._link.insist(once, timeout_s=self._patience_s)

    async def _begin(self, connection: Connection, asked: dict[str, Any]) -> Begun:
        identity = self.identity or await self._identify(connection)
        try:
            reply = await connection.ask(CODES["begin_transaction"], {**self._as(identity), **asked})
            transaction_id = reply["transaction_id"]
            return Begun(transaction_id, transaction_number(transaction_id), identity)
        except InvalidRequest as error:
            raise by_argument(error, asked) from None
        except (KeyError, TypeError, AttributeError) as error:
            raise ProtocolError(f"the reply to begin_transaction is not understood: {error!r}") from error
        except BaseException as error:
            if not isinstance(error, GoQueueError) or (error.retriable and not isinstance(error, _NOT_DONE)):
                self.identity = None  # it may have one open that nobody here knows of
            raise

    async def commit(self, begun: Begun, *, messages: int, acks: int) -> None:
        """Until there is an answer; RequestTimeout when there is none, and it may have been committed."""
        asked = {**self._as(begun.identity), "transaction_id": begun.transaction_id, "messages": messages, "acks": acks}
        try:
            await self._ask("commit_transaction", asked, self._patience_s)
        except ProducerFenced as error:
            if not await self._was_committed(begun, error, self._patience_s):
                raise TransactionAborted(
                    f"{begun.transaction_id} was aborted when this producer began another one; do it again"
                ) from error
        except Unavailable as error:
            raise RequestTimeout(
                f"the broker did not say whether {begun.transaction_id} was committed ({error}); ask "
                "describe_transaction before you do it again"
            ) from error

    async def abort(self, begun: Begun, patience_s: float | None = None) -> None:
        asked = {**self._as(begun.identity), "transaction_id": begun.transaction_id}
        patience_s = self._patience_s if patience_s is None else patience_s
        try:
            await self._ask("abort_transaction", asked, patience_s)
        except ProducerFenced as error:
            if await self._was_committed(begun, error, patience_s):
                raise Conflict(f"{begun.transaction_id} was committed; begin another one") from error

    async def _was_committed(self, begun: Begun, fenced: ProducerFenced, patience_s: float) -> bool:
        """What became of a transaction that this writer ended by taking another epoch. Raises `fenced` otherwise."""
        if begun.identity == self._former:
            raise fenced
        reply = await self._ask("describe_transaction", {"transaction": begun.transaction_id}, patience_s)
        return reply.get("state") in _COMMITTED

    async def _ask(self, operation: str, asked: dict[str, Any], patience_s: float) -> dict[str, Any]:
        return await self._link.insist(lambda connection: connection.ask(CODES[operation], asked), timeout_s=patience_s)

    def _as(self, identity: Identity) -> dict[str, Any]:
        mine = given(transactional_id=self.transactional_id)
        return {"producer_id": identity.producer_id, "epoch": identity.epoch, **mine}


def is_over(error: BaseException | None) -> bool:
    """Whether it says that the producer itself is done with."""
    return isinstance(error, ProducerFenced)
