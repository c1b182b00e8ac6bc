"""Transactions without a loop of one's own: the same ones, decided about in the client's thread."""

from collections.abc import Iterable
from types import TracebackType
from typing import Self

from goqueue.client.messages import DeliveredMessage
from goqueue.client.sync.loop import LoopThread
from goqueue.client.transaction import AsyncTransaction


class Transaction:
    """Made by `Producer.transaction`; use it in `with`, which commits at the end, or aborts after an error.

    What is sent or enqueued on the producer meanwhile, by any thread, belongs to it.
    """

    def __init__(self, loop: LoopThread, inner: AsyncTransaction) -> None:
        self._loop = loop
        self._inner = inner

    @property
    def transaction_id(self) -> str:
        """As the broker calls it, like txn-17."""
        return self._inner.transaction_id

    def ack(self, messages: DeliveredMessage | Iterable[DeliveredMessage]) -> None:
        """Messages of a consumer that are done with if this is committed, and delivered again if not.

        One, several, or a batch. `AsyncTransaction.ack` says more.
        """
        self._loop.run(self._inner.ack(messages))

    def commit(self) -> None:
        """All of it counts from now on. TransactionAborted, or what else went wrong, when nothing of it does."""
        self._loop.run(self._inner.commit())

    def prepare(self) -> tuple[str, int]:
        """Nothing more comes into it, and all of it has reached the broker: its id, and how many messages it has.

        It stays open, for `commit_many`, or for `commit` or `abort`.
        """
        return self._loop.run(self._inner.prepare())

    def abort(self) -> None:
        """Nothing of it counts. What was acked in it is delivered again."""
        self._loop.run(self._inner.abort())

    def __enter__(self) -> Self:
        self._loop.run(self._inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._loop.run(self._inner.__aexit__(kind, error, traceback))
