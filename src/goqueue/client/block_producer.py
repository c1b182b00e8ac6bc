"""Publishing blocks exactly once: numbered per partition, sent again as they were until there is an answer.

Every block ends in one of three ways. Appended, once: there is a reply. Not appended: the error is one of
`line.NOTHING_CHANGED`, or it is a timeout that says so. In doubt, when its deadline passes without an answer or the
broker forgets the producer between two attempts: any other error. What is sent again, and with which sequence,
`client.line` decides; this is the connection, the clock and the backoff.

Blocks are never split, merged or moved to another partition. Their records must have producer fields (any values),
which the broker fills in. Leave a block unchanged until its answer is there.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from goqueue import codec
from goqueue.client.connection import CALL_TIMEOUT_S, CLOSE_TIMEOUT_S, CONNECT_TIMEOUT_S, Connection
from goqueue.client.exchange import Reply
from goqueue.client.line import Block, Identity, Line
from goqueue.client.link import BACKOFF_S, Endpoint, Link, backoff_s
from goqueue.codec.layout import REASONS
from goqueue.model import limits
from goqueue.model.errors import (
    Busy,
    GoQueueError,
    InvalidRecord,
    InvalidRequest,
    ProducerFenced,
    ProtocolError,
    RequestTimeout,
    TransactionAborted,
    Unavailable,
)
from goqueue.model.publishing import Acks, Durability
from goqueue.model.record import Producer
from goqueue.wire import frames
from goqueue.wire.blocks import PublishReply, PublishRequest, unpack_publish_reply
from goqueue.wire.codes import CODES, PUBLISH_BLOCK
from goqueue.wire.failures import repeat, unpack_error
from goqueue.wire.frames import Bytes

DELIVERY_TIMEOUT_S: Final = 120.0
"""From the call to the answer, all attempts included."""
MAX_WAITING_BYTES: Final = limits.MAX_CONNECTION_BYTES
"""Blocks without an answer that a producer holds; one block may always be published."""


class BlockProducer:
    """Connects when it first has something to publish. One event loop, any number of tasks."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        acks: Acks = Acks.ALL,
        identity: Identity | None = None,
        delivery_timeout_s: float = DELIVERY_TIMEOUT_S,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        call_timeout_s: float = CALL_TIMEOUT_S,
        backoff_s: float = BACKOFF_S,
    ) -> None:
        """With an `identity` it is nobody else, ever: blocks that could only be sent under another one fail."""
        self._link = Link(Endpoint(host, port, connect_timeout_s, call_timeout_s), tells=True)
        self._acks = acks
        self.is_answered = acks is not Acks.NONE
        """Whether the broker says what became of blocks."""
        self._delivery_timeout_s = delivery_timeout_s
        self._call_timeout_s = call_timeout_s
        self._backoff_s = backoff_s
        self._connection: Connection | None = None
        self._identity = identity
        self._is_given = identity is not None
        self._preparing = asyncio.Lock()
        self._lines: dict[tuple[int, int], Line] = {}
        self._recoveries: dict[Line, asyncio.Task[None]] = {}
        self._sent: dict[Block, tuple[Connection, float]] = {}
        """Over which connection blocks under way were sent, and when their answers are due; the oldest first."""
        self._watcher: asyncio.TimerHandle | None = None
        self._waiting_bytes = 0
        self._failure: GoQueueError | None = None
        self.on_answered: Callable[[Line], None] = lambda _: None
        """Told of a line that has less to do: under way, or waiting for a connection; of all of them at the end."""

    async def publish(
        self, topic_id: int, partition: int, records: Bytes, *, timeout_s: float | None = None
    ) -> PublishReply:
        """Blocks of a partition are appended in the order in which these calls begin."""
        if self._failure is not None:
            raise repeat(self._failure)
        count = _count(records)
        if self._waiting_bytes and self._waiting_bytes + len(records) > MAX_WAITING_BYTES:
            raise Busy(f"{self._waiting_bytes} bytes wait for their answer; publish more when some have it")
        timeout_s = self._delivery_timeout_s if timeout_s is None else timeout_s
        block = _Awaited(records, count)
        line = self.line(topic_id, partition)
        self._waiting_bytes += len(records)
        self.submit(line, block)
        try:
            async with asyncio.timeout(timeout_s):
                return await block.outcome
        except TimeoutError:
            known = "it may have been appended" if block.may_be_appended else "it was not appended"
            trouble = f"; the last trouble: {line.last_trouble}" if line.last_trouble is not None else ""
            raise RequestTimeout(f"the block had no answer within {timeout_s} s; {known}{trouble}") from None
        finally:
            block.done = True
            self._waiting_bytes -= len(records)

    @property
    def failure(self) -> GoQueueError | None:
        """Why nothing can be published any more; None while something can."""
        return self._failure

    def line(self, topic_id: int, partition: int) -> Line:
        """The blocks of one partition."""
        line = self._lines.get((topic_id, partition))
        if line is None:
            line = self._lines[topic_id, partition] = Line(topic_id, partition)
        return line

    def forget(self, line: Line) -> None:
        """Of a topic that is gone. Lines made later have another producer id, so their sequences are new.

        A line is kept where there is no other id.
        """
        if not self._is_given and self._lines.get((line.topic_id, line.partition)) is line:
            del self._lines[line.topic_id, line.partition]
            self._identity = None

    def submit(self, line: Line, block: Block) -> None:
        """What `publish` does, without waiting, a bound or a deadline: the block hears when it is done."""
        if self._failure is not None:
            block.fail(repeat(self._failure))
            return
        if not line.waiting and not line.under_way:
            self._lines.setdefault((line.topic_id, line.partition), line)  # it may have been forgotten
        line.waiting.append(block)
        self._send(line)

    def together(self) -> AbstractContextManager[None]:
        """Small blocks submitted in here leave in one piece."""
        connection = self._connection
        return nullcontext() if connection is None else connection.together()

    def end(self, error: GoQueueError) -> None:
        """Everything fails with this error, now and later."""
        self._give_up(error)

    async def close(self, patience_s: float = CLOSE_TIMEOUT_S) -> None:
        """What has no answer yet fails; nothing more can be published. What was sent has so long to leave."""
        self._give_up(Unavailable("the producer was closed"))
        if self._watcher is not None:
            self._watcher.cancel()
        recoveries = list(self._recoveries.values())
        for recovery in recoveries:
            recovery.cancel()
        await asyncio.gather(*recoveries, return_exceptions=True)
        await self._link.close(patience_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    # ------------------------------------------------------------------ sending and answers

    def _send(self, line: Line) -> None:
        """Put on the wire what may go now. A line that needs a connection or an id first is recovered."""
        if not line.waiting or line.troubled or line in self._recoveries or self._failure is not None:
            return
        connection = self._connection
        if connection is None or connection.failure is not None or line.identity is None:
            if not line.under_way:  # else the answers to those, which are coming, lead here again
                self._recoveries[line] = asyncio.create_task(self._recover(line))
            return
        while line.waiting and (taken := line.take()) is not None:
            self._send_one(connection, line, *taken)

    def _send_one(self, connection: Connection, line: Line, block: Block, producer: Producer) -> None:
        loop = asyncio.get_running_loop()
        answered = self.is_answered
        try:
            request = PublishRequest(line.topic_id, line.partition, self._acks, producer if answered else None).pack()
            reply = connection.submit(PUBLISH_BLOCK, (request, block.records), answered=answered)
        except GoQueueError as error:
            loop.call_soon(self._on_answer, line, block, error)
            return
        self._sent[block] = connection, loop.time() + self._call_timeout_s
        if self._watcher is None:
            self._watcher = loop.call_later(self._call_timeout_s, self._watch)
        reply.add_done_callback(partial(self._on_reply, connection, line, block))

    def _on_reply(
        self,
        connection: Connection,
        line: Line,
        block: Block,
        reply: asyncio.Future[Reply],
    ) -> None:
        del self._sent[block]
        answer: PublishReply | GoQueueError
        failure = reply.exception()
        if failure is not None:
            answer = Unavailable(str(failure))
        else:
            try:
                answer = _read(reply.result(), block.count) if self.is_answered else _SENT
            except ProtocolError as error:
                connection.abort(str(error))
                answer = Unavailable(str(error))
        self._on_answer(line, block, answer)

    def _watch(self) -> None:
        """Give up a connection that owes an answer for too long. One timer for all blocks: they are sent in order."""
        self._watcher = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        for connection, due in [*self._sent.values()]:
            if due > now:
                self._watcher = loop.call_at(due, self._watch)
                return
            connection.abort(f"no answer within {self._call_timeout_s} s")

    def _on_answer(self, line: Line, block: Block, answer: PublishReply | GoQueueError) -> None:
        line.on_answer(block, answer)
        if isinstance(answer, ProducerFenced):
            self._give_up(answer)
        if self._failure is not None:
            return
        if line.to_settle:
            line.settle()
            if line.waiting:
                self._recoveries[line] = asyncio.create_task(self._recover(line))
        else:
            self._send(line)
        self.on_answered(line)

    def _give_up(self, error: GoQueueError) -> None:
        """The end of this producer: everything fails, now and later."""
        if self._failure is None:
            self._failure = error
            lines = [*self._lines.values()]
            for line in lines:
                line.fail(error)
            for line in lines:
                self.on_answered(line)

    # ------------------------------------------------------------------ getting going again

    async def _recover(self, line: Line) -> None:
        """See to a connection and an identity for this line, as long as somebody waits for one of its blocks."""
        try:
            while line.waiting:
                if line.failures:
                    await asyncio.sleep(backoff_s(line.failures, self._backoff_s))
                try:
                    async with self._preparing:
                        await self._prepare(line)
                except GoQueueError as error:
                    line.last_trouble = repeat(error)  # without the frames that it was raised in
                    line.failures += 1
                    if not error.retriable:
                        line.fail(error)
                line.tidy()
                if line.identity is not None and self._connection is not None and self._connection.failure is None:
                    break
        finally:
            del self._recoveries[line]
        self._send(line)
        self.on_answered(line)

    async def _prepare(self, line: Line) -> None:
        connection = self._connection
        if connection is None or connection.failure is not None:
            connection = self._connection = await self._link.get()
        if line.identity is None:
            if self._is_given and line.former is not None:
                raise TransactionAborted(_LOST_TRACK)
            if self._identity is None or self._identity == line.former:
                self._identity = await init_producer(connection)
            line.identity = self._identity


_LOST_TRACK: Final = (
    "the broker and this producer do not agree about what was published in the transaction, so it cannot go on; begin "
    "another one and do it again"
)
_SENT: Final = PublishReply(Durability.NONE, ())
"""All that is known of a block that nobody answers."""


class _Awaited(Block):
    """A block that somebody awaits."""

    __slots__ = ("outcome",)

    def __init__(self, records: Bytes, count: int) -> None:
        super().__init__(records, count)
        self.outcome: asyncio.Future[PublishReply] = asyncio.get_running_loop().create_future()

    def finish(self, outcome: PublishReply | GoQueueError) -> None:
        if self.outcome.done():  # whoever waited was cancelled a moment ago
            return
        if isinstance(outcome, PublishReply):
            self.outcome.set_result(outcome)
        else:
            self.outcome.set_exception(outcome)


async def init_producer(connection: Connection, **fields: Any) -> Identity:
    reply = await connection.ask(CODES["init_producer"], fields)
    try:
        return msgspec.convert(reply, Identity)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"the reply to init_producer names no producer: {error}") from error


def _count(records: Bytes) -> int:
    """How many records a block has: a wrong count would have the broker take new records for repeated ones."""
    survey = codec.survey(records)
    if survey.problem:
        raise InvalidRecord(REASONS[survey.problem], index=survey.count, position=survey.end)
    if not survey.count:
        raise InvalidRequest("a block without records cannot be published")
    return survey.count


def _read(reply: Reply, count: int) -> PublishReply | GoQueueError:
    """The answer to a block of `count` records; `ProtocolError` when it is none."""
    if reply.status == frames.ERROR:
        return unpack_error(reply.payload)
    answer = unpack_publish_reply(reply.payload)
    if sum([each.records for each in answer.ranges]) != count:
        raise ProtocolError(f"a block of {count} records was answered with {answer.ranges}")
    return answer
