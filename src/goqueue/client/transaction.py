"""Transactions of a producer: all of its messages and acks count, or none of them.

While one is open the producer's messages go out by an outlet of its own (`client.outlet`), whose messages carry the
transaction's number and which writes under the identity that began it, and no other. The outlet is used again by the
next transaction if all of it was answered and nothing failed; otherwise it is thrown away, and the identity with it.
So a message is in the transaction in which it was sent, or nowhere.

A message or an ack that failed fails the transaction, whoever has heard of it: it is aborted, not committed.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from enum import Enum
from types import TracebackType
from typing import Final, Self

from goqueue.client.line import Identity
from goqueue.client.messages import DeliveredMessage, gather
from goqueue.client.outlet import Outlet
from goqueue.client.writer import Begun, TransactionWriter, is_over
from goqueue.model.errors import Conflict, GoQueueError, InvalidRequest, TransactionAborted, UnknownTransaction
from goqueue.wire.failures import repeat
from goqueue.wire.settles import Action, Writer

log = logging.getLogger("goqueue.client")

LEAVE_S: Final = 1.0
"""How long one that is left in a hurry tries to abort."""


class _State(Enum):
    NEW = "has not begun; use it in `with`, or `async with`"
    OPEN = "is open"
    ENDING = "is being committed or aborted"
    PREPARED = "is prepared, and takes nothing more"
    COMMITTED = "was committed; begin another one"
    ABORTED = "was aborted; begin another one"
    IN_DOUBT = "was to be committed, and there was no answer; ask describe_transaction"


class TransactionStage:
    """What a producer has for its transactions, one after the other.

    `usual` is the outlet of what is in none of them, and ends with the producer. `use` is told by which outlet messages
    go, None for the usual one; `settle` waits for those that were sent before and have to wait for room.
    """

    def __init__(
        self,
        writer: TransactionWriter,
        usual: Outlet,
        *,
        make_outlet: Callable[[Identity], Outlet],
        use: Callable[[Outlet | None], None],
        settle: Callable[[Outlet], Awaitable[None]],
        flush: Callable[[], Awaitable[None]],
    ) -> None:
        self.writer = writer
        self._usual = usual
        self._make_outlet = make_outlet
        self._use = use
        self._settle = settle
        self._flush = flush
        self._outlet: tuple[Identity, Outlet] | None = None
        self._current: AsyncTransaction | None = None

    @property
    def current(self) -> "AsyncTransaction | None":
        """The one that is open."""
        return self._current

    async def identify(self) -> None:
        await self.writer.identify()

    def take(self, transaction: "AsyncTransaction") -> None:
        """It is the one from now on."""
        self._usual.sender.check_open()
        if self._current is not None:
            raise Conflict(
                f"this producer has {self._current} open; commit or abort it first, or make another producer"
            )
        self._current = transaction

    async def begin(self, *, name: str | None, timeout_ms: int | None) -> tuple[Begun, Outlet]:
        """After what was sent before, outside of it."""
        try:
            await self._flush()
            begun = await self.writer.begin(name=name, timeout_ms=timeout_ms)
        except BaseException as error:
            self._current = None
            if isinstance(error, GoQueueError):
                self.hear(error)
            raise
        if self._outlet is not None and self._outlet[0] is not begun.identity:
            try:
                await self._throw_away(_lost())
            except BaseException:  # cancelled: nobody will know of what was begun
                self._current = self.writer.identity = None
                raise
        if self._outlet is None:
            self._outlet = begun.identity, self._make_outlet(begun.identity)
        outlet = self._outlet[1]
        outlet.published = 0
        outlet.receipts.trouble = None
        outlet.receipts.take_failure()
        outlet.sender.open_for(begun.number)
        self._use(outlet)
        return begun, outlet

    async def close(self, outlet: Outlet, why: GoQueueError) -> GoQueueError | None:
        """Nothing more comes in; what was sent has its answer then. Why a message failed, if one did."""
        await self._settle(outlet)
        outlet.sender.shut(why)
        await outlet.flush()
        return outlet.receipts.trouble

    async def leave(self, *, is_clean: bool, why: GoQueueError) -> None:
        """Messages go out as usual again. What has no answer yet of one that did not end cleanly fails."""
        self._current = None
        self._use(None)
        if not is_clean:
            await self._throw_away(why)

    async def forget(self, begun: Begun) -> None:
        """Nobody knows what became of it: what comes next is begun as somebody else."""
        if self._outlet is not None and self._outlet[0] is begun.identity:
            await self._throw_away(_lost())

    async def _throw_away(self, why: GoQueueError) -> None:
        if self._outlet is None:
            return
        identity, outlet = self._outlet
        self._outlet = None
        if self.writer.identity is identity:
            self.writer.identity = None
        await outlet.end(0.0, why)

    def hear(self, error: GoQueueError) -> None:
        """One that was fenced off is done with, in transactions and outside of them."""
        if is_over(error):
            self._usual.blocks.end(error)

    async def end(self, patience_s: float) -> None:
        """With the producer: what is open is aborted."""
        if self._current is not None:
            log.warning("a producer ended while %s was open: it is aborted", self._current)
            try:
                await self._current.abandon(patience_s)
            except GoQueueError as error:
                log.warning("the broker will abort it when its time is over: %s", error)
        if self._outlet is not None:
            await self._throw_away(_lost())


class AsyncTransaction:
    """Made by `AsyncProducer.transaction`; use it in `async with`, which commits at the end, or aborts after an error.

    What is sent or enqueued on the producer meanwhile belongs to it.
    """

    def __init__(self, stage: TransactionStage, *, name: str | None, timeout_ms: int | None) -> None:
        self._stage = stage
        self._name = name
        self._timeout_ms = timeout_ms
        self._state = _State.NEW
        self._begun: Begun | None = None
        self._outlet: Outlet | None = None
        self._acks = 0
        self._acking: set[asyncio.Future[list[BaseException | None]]] = set()
        self._trouble: GoQueueError | None = None
        """Why an ack failed."""
        self._messages = 0

    @property
    def transaction_id(self) -> str:
        """As the broker calls it, like txn-17."""
        if self._begun is None:
            raise InvalidRequest(f"this transaction {_State.NEW.value}")
        return self._begun.transaction_id

    def __str__(self) -> str:
        return "a transaction that begins" if self._begun is None else self._begun.transaction_id

    async def __aenter__(self) -> Self:
        if self._state is not _State.NEW:
            raise Conflict(f"{self} {self._state.value}")
        self._stage.take(self)
        self._begun, self._outlet = await self._stage.begin(name=self._name, timeout_ms=self._timeout_ms)
        self._state = _State.OPEN
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._state is not _State.OPEN:  # it was committed, aborted or prepared in there
            return
        if error is None:
            try:
                await self.commit()
            except BaseException:  # cancelled, before it was decided
                with suppress(GoQueueError):
                    await self.abandon(LEAVE_S)
                raise
            return
        try:
            await self.abandon(None if isinstance(error, Exception) else LEAVE_S)
        except GoQueueError as also:
            error.add_note(f"and {self} could not be aborted; the broker does it when its time is over: {also}")

    async def ack(self, messages: DeliveredMessage | Iterable[DeliveredMessage]) -> None:
        """Messages of a consumer that are done with if this is committed, and delivered again if not.

        One, several, or a batch. They are not to be acked or extended any more. StaleHandle when one of them is
        somebody else's by now: then this cannot be committed.
        """
        begun, _ = self._check(_State.OPEN)
        places = gather(messages)
        futures: list[asyncio.Future[None]] = []
        writer = Writer(begun.identity.producer_id, begun.identity.epoch)
        for row in places:
            row.settler.turns.check_loop()
        for row, offsets in places.items():
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            futures.append(future)
            row.settler.add(row, sorted(offsets), Action.PLEDGE, begun.number, "", future, writer)
        acking = asyncio.gather(*futures, return_exceptions=True)
        self._acking.add(acking)
        try:
            answers = await acking
        except BaseException:
            self._trouble = self._trouble or TransactionAborted(f"an ack in {self} was given up; do it again")
            raise
        finally:
            self._acking.discard(acking)
        for answer in answers:
            if isinstance(answer, GoQueueError):
                self._trouble = self._trouble or repeat(answer)
                raise answer
        self._acks += sum([len(offsets) for offsets in places.values()])

    async def commit(self) -> None:
        """All of it counts from now on. TransactionAborted, or what else went wrong, when nothing of it does."""
        if self._state is _State.COMMITTED:
            return
        await self.prepare()
        begun, _ = self._check(_State.PREPARED)
        self._state = _State.IN_DOUBT
        try:
            await self._stage.writer.commit(begun, messages=self._messages, acks=self._acks)
        except BaseException as error:
            if isinstance(error, GoQueueError) and not error.retriable:
                self._stage.hear(error)
                self._state = _State.ABORTED
            else:
                await self._stage.forget(begun)
            raise
        self._state = _State.COMMITTED

    async def prepare(self) -> tuple[str, int]:
        """Nothing more comes into it, and all of it has reached the broker: its id, and how many messages it has.

        It stays open, for `commit_many`, or for `commit` or `abort`.
        """
        if self._state is _State.PREPARED:
            return self.transaction_id, self._messages
        _, outlet = self._check(_State.OPEN)
        self._state = _State.ENDING
        ending = Conflict(f"{self} is being committed; begin another one")
        try:
            trouble = await self._stage.close(outlet, ending)
            while self._acking:
                await asyncio.wait(self._acking)
        except BaseException:
            self._state = _State.OPEN
            raise
        trouble = trouble or self._trouble
        if trouble is None:
            self._messages = outlet.published
            self._state = _State.PREPARED
            await self._stage.leave(is_clean=True, why=ending)
            return self.transaction_id, self._messages
        failure = self._explain(trouble)
        try:
            await self._abort(None)
        except GoQueueError as also:
            failure.add_note(f"and {self} could not be aborted; the broker does it when its time is over: {also}")
        raise failure

    async def abort(self) -> None:
        """Nothing of it counts. What was acked in it is delivered again."""
        if self._state is _State.ABORTED:
            return
        if self._state not in (_State.OPEN, _State.PREPARED, _State.IN_DOUBT):
            raise Conflict(f"{self} {self._state.value}")
        await self._abort(None)

    async def abandon(self, patience_s: float | None) -> None:
        """The same, for so long."""
        if self._state is _State.OPEN:
            await self._abort(patience_s)

    async def _abort(self, patience_s: float | None) -> None:
        assert self._begun is not None
        was_open = self._state in (_State.OPEN, _State.ENDING)
        self._state = _State.ABORTED
        why = TransactionAborted(f"{self} was aborted; begin another one and do it again")
        if was_open:
            assert self._outlet is not None
            self._outlet.sender.shut(why)
            is_clean = self._outlet.is_quiet and self._outlet.receipts.trouble is None and not self._acking
            await self._stage.leave(is_clean=is_clean, why=why)
        try:
            await self._stage.writer.abort(self._begun, patience_s)
        except (TransactionAborted, UnknownTransaction):
            pass
        except BaseException as error:
            if isinstance(error, GoQueueError):
                self._stage.hear(error)
                if is_over(error):
                    return
            if not isinstance(error, GoQueueError) or error.retriable:  # it may be open
                await self._stage.forget(self._begun)
            raise

    def _check(self, wanted: _State) -> tuple[Begun, Outlet]:
        if self._state is not wanted:
            raise Conflict(f"{self} {self._state.value}")
        assert self._begun is not None
        assert self._outlet is not None
        return self._begun, self._outlet

    def _explain(self, trouble: GoQueueError) -> GoQueueError:
        self._stage.hear(trouble)
        if isinstance(trouble, UnknownTransaction):
            return TransactionAborted(
                f"the broker does not know {self} any more: it stopped without warning; begin another one, do it again"
            )
        failure = repeat(trouble)
        if not isinstance(trouble, TransactionAborted):
            failure.add_note(f"so {self} was aborted: nothing of it counts")
        return failure


def _lost() -> TransactionAborted:
    return TransactionAborted("the producer has begun again as somebody else; do it again")
