"""Publishing blocks exactly once: numbered per partition, sent again as they were until there is an answer.

Every block ends in one of three ways. Appended, once: there is a reply. Not appended: the error is one of
`line.NOTHING_CHANGED`, or it is a timeout that says so. In doubt, when its deadline passes without an answer or the
broker forgets the producer between two attempts: any other error. What is sent again, and with which sequence,
`client.line` decides; this is the connection, the clock and the backoff.

Blocks are never split, merged or moved to another partition. Their records must have producer fields (any values),
which the broker fills in. Leave a block unchanged until its answer is there.
"""

import asyncio
import random
from functools import partial
from types import TracebackType
from typing import Final, Self

import msgspec

from goqueue import codec
from goqueue.client.connection import CALL_TIMEOUT_S, CONNECT_TIMEOUT_S, Connection
from goqueue.client.exchange import Reply
from goqueue.client.line import Block, Identity, Line
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
    Unavailable,
)
from goqueue.model.publishing import Acks
from goqueue.model.record import Producer
from goqueue.wire import frames
from goqueue.wire.blocks import PublishReply, PublishRequest, unpack_publish_reply
from goqueue.wire.codes import CODES, PUBLISH_BLOCK
from goqueue.wire.failures import repeat, unpack_error
from goqueue.wire.frames import Bytes

DELIVERY_TIMEOUT_S: Final = 120.0
"""From the call to the answer, all attempts included."""
BACKOFF_S: Final = 0.05
MAX_BACKOFF_S: Final = 2.0
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
        delivery_timeout_s: float = DELIVERY_TIMEOUT_S,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        call_timeout_s: float = CALL_TIMEOUT_S,
        backoff_s: float = BACKOFF_S,
    ) -> None:
        if acks is Acks.NONE:
            raise InvalidRequest("a producer that retries needs answers; use acks leader or all")
        self._host = host
        self._port = port
        self._acks = acks
        self._delivery_timeout_s = delivery_timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._call_timeout_s = call_timeout_s
        self._backoff_s = backoff_s
        self._connection: Connection | None = None
        self._identity: Identity | None = None
        self._preparing = asyncio.Lock()
        self._lines: dict[tuple[int, int], Line] = {}
        self._recoveries: dict[Line, asyncio.Task[None]] = {}
        self._waiting_bytes = 0
        self._failure: GoQueueError | None = None

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
        block = Block(records, count, asyncio.get_running_loop().create_future())
        line = self._lines.get((topic_id, partition))
        if line is None:
            line = self._lines[topic_id, partition] = Line(topic_id, partition)
        line.waiting.append(block)
        self._waiting_bytes += len(records)
        self._send(line)
        try:
            async with asyncio.timeout(timeout_s):
                return await block.outcome
        except TimeoutError:
            known = "it may have been appended" if block.may_be_appended else "it was not appended"
            trouble = f"; the last trouble: {line.last_trouble}" if line.last_trouble is not None else ""
            raise RequestTimeout(f"the block had no answer within {timeout_s} s; {known}{trouble}") from None
        finally:
            self._waiting_bytes -= len(records)

    async def close(self) -> None:
        """What has no answer yet fails; nothing more can be published."""
        self._give_up(Unavailable("the producer was closed"))
        recoveries = list(self._recoveries.values())
        for recovery in recoveries:
            recovery.cancel()
        await asyncio.gather(*recoveries, return_exceptions=True)
        if self._connection is not None:
            await self._connection.close()

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
        while (taken := line.take()) is not None:
            self._send_one(connection, line, *taken)

    def _send_one(self, connection: Connection, line: Line, block: Block, producer: Producer) -> None:
        loop = asyncio.get_running_loop()
        try:
            request = PublishRequest(line.topic_id, line.partition, self._acks, producer).pack()
            reply = connection.submit(PUBLISH_BLOCK, (request, block.records))
        except GoQueueError as error:
            loop.call_soon(self._on_answer, line, block, error)
            return
        timer = loop.call_later(self._call_timeout_s, connection.abort, f"no answer within {self._call_timeout_s} s")
        reply.add_done_callback(partial(self._on_reply, connection, line, block, timer))

    def _on_reply(
        self,
        connection: Connection,
        line: Line,
        block: Block,
        timer: asyncio.TimerHandle,
        reply: asyncio.Future[Reply],
    ) -> None:
        timer.cancel()
        answer: PublishReply | GoQueueError
        failure = reply.exception()
        if failure is not None:
            answer = Unavailable(str(failure))
        else:
            try:
                answer = _read(reply.result(), block.count)
            except ProtocolError as error:
                connection.abort(str(error))
                answer = Unavailable(str(error))
        self._on_answer(line, block, answer)

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

    def _give_up(self, error: GoQueueError) -> None:
        """The end of this producer: everything fails, now and later."""
        if self._failure is None:
            self._failure = error
            for line in self._lines.values():
                line.fail(error)

    # ------------------------------------------------------------------ getting going again

    async def _recover(self, line: Line) -> None:
        """See to a connection and an identity for this line, as long as somebody waits for one of its blocks."""
        try:
            while line.waiting:
                if line.failures:
                    await asyncio.sleep(self._delay_s(line.failures))
                try:
                    async with self._preparing:
                        await self._prepare(line)
                except GoQueueError as error:
                    line.last_trouble = error
                    line.failures += 1
                    if not error.retriable:
                        line.fail(error)
                line.tidy()
                if line.identity is not None and self._connection is not None and self._connection.failure is None:
                    break
        finally:
            del self._recoveries[line]
        self._send(line)

    async def _prepare(self, line: Line) -> None:
        connection = self._connection
        if connection is None or connection.failure is not None:
            connection = self._connection = await Connection.connect(
                self._host,
                self._port,
                connect_timeout_s=self._connect_timeout_s,
                call_timeout_s=self._call_timeout_s,
            )
        if line.identity is None:
            if self._identity is None or self._identity == line.former:
                self._identity = await _init_producer(connection)
            line.identity = self._identity

    def _delay_s(self, failures: int) -> float:
        """Doubling up to a bound, and spread out, so that many do not come back at the same moment."""
        return min(MAX_BACKOFF_S, self._backoff_s * float(1 << min(failures - 1, 16))) * random.uniform(0.5, 1.0)


async def _init_producer(connection: Connection) -> Identity:
    reply = await connection.ask(CODES["init_producer"])
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
    if sum(each.records for each in answer.ranges) != count:
        raise ProtocolError(f"a block of {count} records was answered with {answer.ranges}")
    return answer
