"""What the frames of a connection ask for, and the answers.

A block to publish is checked, stamped and written in the receive buffer before anything else happens, so it is never
copied and the buffer is free again at once; only its answer may wait.
"""

import asyncio
from collections.abc import Awaitable, Coroutine
from functools import partial
from time import perf_counter
from typing import Any, Final, Protocol

import msgspec

from goqueue.api.bodies import Bodies
from goqueue.api.listening import T, Undo
from goqueue.api.operations import BY_CODE, OPERATIONS, Operation
from goqueue.api.service import Service
from goqueue.api.wire import polling, settling
from goqueue.api.wire.settling import Settled
from goqueue.broker.admission import NOTHING, Ticket
from goqueue.broker.partition import Partition
from goqueue.broker.publish import Receipt
from goqueue.broker.topic import OpenTopic
from goqueue.broker.waiting import GONE
from goqueue.model import limits
from goqueue.model.errors import Busy, GoQueueError, LogClosed, Unavailable, UnknownOperation
from goqueue.model.names import TopicId
from goqueue.model.publishing import Acks
from goqueue.storage.reading import Chunk
from goqueue.telemetry import logs
from goqueue.telemetry.meters import OTHER, RequestMeters
from goqueue.wire import blocks, frames, polls, settles
from goqueue.wire.blocks import FetchReply, FetchRequest
from goqueue.wire.codes import FETCH_BLOCK, NAMES, POLL_BLOCK, PUBLISH_BLOCK, SETTLE_BLOCK
from goqueue.wire.failures import pack_error
from goqueue.wire.frames import Bytes
from goqueue.wire.polls import PollRequest

log = logs.get("wire")

_encode = msgspec.json.Encoder().encode
_BODIES: Final = {operation.name: Bodies(operation, what="the request", has_path=True) for operation in OPERATIONS}


class Connection(Protocol):
    """What requests see of the connection they came on."""

    loop: asyncio.AbstractEventLoop
    drained: asyncio.Event

    def begin(self, size: int = 0) -> Ticket: ...
    def end(self, held: Ticket = NOTHING) -> None: ...
    def try_reserve(self, size: int) -> Ticket | None: ...
    async def reserve(self, size: int) -> Ticket: ...
    def send(
        self,
        operation: int,
        correlation: int,
        *parts: Bytes,
        room: Ticket = NOTHING,
        status: int = frames.OK,
        undo: Undo | None = None,
    ) -> None: ...
    def spawn(self, work: Coroutine[Any, Any, None], *, parked: bool = False) -> None: ...
    async def park(self, work: Awaitable[T]) -> T: ...


class Requests:
    """Those of one connection."""

    __slots__ = ("_broker", "_connection", "_fetching", "_meters", "_publishing", "_service", "_settling")

    def __init__(self, service: Service, meters: dict[str, RequestMeters], connection: Connection) -> None:
        self._service = service
        self._broker = service.broker
        self._meters = meters
        self._connection = connection
        self._publishing = meters["publish_block"]
        self._fetching = meters["fetch_block"]
        self._settling = meters["settle_block"]

    def handle(self, operation: int, correlation: int, payload: memoryview, begun: float) -> None:
        """The payload is the caller's again when this returns."""
        try:
            if operation == PUBLISH_BLOCK:
                self._publish(correlation, payload, begun)
            elif operation == FETCH_BLOCK:
                self._fetch(correlation, payload, begun)
            elif operation == POLL_BLOCK:
                self._poll(correlation, payload, begun)
            elif operation == SETTLE_BLOCK:
                self._settle(correlation, payload, begun)
            else:
                self._call(operation, correlation, bytes(payload), begun)
        except Exception as error:
            self._break(operation, correlation, error, begun)

    def _break(self, operation: int, correlation: int, error: Exception, begun: float) -> None:
        """Something nobody thought of: whoever asked is told so, and nobody else is disturbed."""
        log.error("a request broke", operation=NAMES.get(operation, OTHER), error=error)
        self._refuse(operation, correlation, GoQueueError("this is a bug in GoQueue; see its log"), begun)

    def _refuse(self, operation: int, correlation: int, error: GoQueueError, begun: float) -> None:
        self._meters[NAMES.get(operation, OTHER)].done(error.code, perf_counter() - begun)
        self._connection.send(operation, correlation, pack_error(error), status=frames.ERROR)

    # --- publish_block

    def _publish(self, correlation: int, payload: memoryview, begun: float) -> None:
        acks, topic = Acks.LEADER, None
        try:
            self._broker.check()
            request = blocks.unpack_publish_request(payload)
            acks = request.acks
            topic = self._broker.topics.identified(TopicId(request.topic_id))
            receipt = self._broker.publisher.publish(
                topic, request.partition, payload[blocks.PUBLISH_REQUEST.size :], acks=acks, producer=request.producer
            )
        except GoQueueError as error:
            if topic is not None:
                topic.meters.errors.add(error.code)
            if acks is Acks.NONE:
                self._publishing.done(error.code, perf_counter() - begun)
            else:
                self._refuse(PUBLISH_BLOCK, correlation, error, begun)
            return
        if receipt.durable_at is None:
            self._published(correlation, topic, receipt, begun, None)
            return
        connection = self._connection
        connection.begin()

        def later(error: Exception | None) -> None:
            self._published(correlation, topic, receipt, begun, error)
            connection.end()

        def wake(error: Exception | None) -> None:  # in the thread that synced
            if not connection.loop.is_closed():
                connection.loop.call_soon_threadsafe(later, error)

        receipt.log.durable.when(receipt.durable_at, wake)

    def _published(
        self, correlation: int, topic: OpenTopic, receipt: Receipt, begun: float, error: Exception | None
    ) -> None:
        if error is not None:
            refusal = _as_ours(error)
            topic.meters.errors.add(refusal.code)
            self._refuse(PUBLISH_BLOCK, correlation, refusal, begun)
            return
        took = perf_counter() - begun
        topic.meters.produce_latency.observe(took)
        self._publishing.done("ok", took)
        if receipt.acks is not Acks.NONE:
            reply = blocks.pack_publish_reply(receipt.durability, receipt.placed)
            self._connection.send(PUBLISH_BLOCK, correlation, reply)

    # --- fetch_block

    def _fetch(self, correlation: int, payload: memoryview, begun: float) -> None:
        try:
            self._broker.check()
            request = blocks.unpack_fetch_request(payload)
            topic = self._broker.topics.identified(TopicId(request.topic_id))
            partition = topic.partition(request.partition)
            there = request.offset < _end(partition, request) or not request.max_wait_ms
            if there and partition.reads_warm(request.offset, request.max_bytes):
                room = self._connection.try_reserve(request.max_bytes)
                if room is not None:
                    self._fetch_now(correlation, topic, partition, request, room, begun)
                    return
        except GoQueueError as error:
            self._refuse(FETCH_BLOCK, correlation, _as_ours(error), begun)
            return
        self._connection.begin()
        self._connection.spawn(self._fetch_later(correlation, topic, partition, request, begun), parked=True)

    def _fetch_now(
        self,
        correlation: int,
        topic: OpenTopic,
        partition: Partition,
        request: FetchRequest,
        room: Ticket,
        begun: float,
    ) -> None:
        try:
            chunk = self._broker.reader.ordered_now(
                partition,
                request.offset,
                max_bytes=request.max_bytes,
                max_count=request.max_count,
                uncommitted=request.uncommitted,
            )
        except BaseException:
            room.give()
            raise
        self._fetched(correlation, topic, partition, request, chunk, room, begun)

    async def _fetch_later(
        self, correlation: int, topic: OpenTopic, partition: Partition, request: FetchRequest, begun: float
    ) -> None:
        """For records that are not there yet, lie on disk, or need room for the reply."""
        try:
            if request.max_wait_ms and request.offset >= _end(partition, request):
                await self._wait_for_record(partition, request)
            room = await self._connection.reserve(request.max_bytes)
            try:
                chunk = await self._broker.reader.ordered(
                    partition,
                    request.offset,
                    max_bytes=request.max_bytes,
                    max_count=request.max_count,
                    uncommitted=request.uncommitted,
                )
            except BaseException:
                room.give()
                raise
            self._fetched(correlation, topic, partition, request, chunk, room, begun)
        except GoQueueError as error:
            self._refuse(FETCH_BLOCK, correlation, error, begun)
        except Exception as error:
            self._break(FETCH_BLOCK, correlation, error, begun)
        finally:
            self._connection.end()

    async def _wait_for_record(self, partition: Partition, request: FetchRequest) -> None:
        """Until it is there, the time is up, or the broker stops."""
        work = self._broker.reader.wait(
            partition, request.offset, request.max_wait_ms / 1000, uncommitted=request.uncommitted
        )
        waits = [asyncio.ensure_future(work), asyncio.ensure_future(self._connection.drained.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if waits[0].done():
                await waits[0]
        finally:
            for wait in waits:
                wait.cancel()

    def _fetched(
        self,
        correlation: int,
        topic: OpenTopic,
        partition: Partition,
        request: FetchRequest,
        chunk: Chunk,
        room: Ticket,
        begun: float,
    ) -> None:
        log = partition.log
        topic.meters.messages_read += chunk.count
        topic.meters.bytes_read += len(chunk.data)
        self._fetching.done("ok", perf_counter() - begun)
        head = FetchReply(chunk.next_offset, log.start_offset, _end(partition, request), chunk.count).pack()
        self._connection.send(FETCH_BLOCK, correlation, head, chunk.data, room=room)

    # --- poll_block

    def _poll(self, correlation: int, payload: memoryview, begun: float) -> None:
        try:
            self._broker.check()
            request = polls.unpack_poll_request(payload)
        except GoQueueError as error:
            self._refuse(POLL_BLOCK, correlation, error, begun)
            return
        self._connection.begin()
        self._connection.spawn(self._poll_later(correlation, request, begun))

    async def _poll_later(self, correlation: int, request: PollRequest, begun: float) -> None:
        """Only the wait ends when the client leaves; what was taken is sent, or given back."""
        try:
            turn = await self._connection.park(polling.park(self._broker, request))
            room = await self._connection.reserve(request.max_bytes)
            try:
                polled = await polling.take(self._broker, request, turn)
                undo = partial(self._broker.poller.give_back, request.group, request.member_id, polled.number)
                parts = polling.pack(self._broker, request, polled)
            except BaseException:
                room.give()
                raise
            self._meters["poll_block"].done("ok", perf_counter() - begun)
            given = undo if polled.rows else None
            self._connection.send(POLL_BLOCK, correlation, *parts, room=room, undo=given)
        except GoQueueError as error:
            self._refuse(POLL_BLOCK, correlation, error, begun)
        except Exception as error:
            self._break(POLL_BLOCK, correlation, error, begun)
        finally:
            self._connection.end()

    # --- settle_block

    def _settle(self, correlation: int, payload: memoryview, begun: float) -> None:
        """Written in one piece, like a block that is published; only the answer may wait."""
        try:
            self._broker.check()
            request = settles.unpack_settle_request(payload)
            most = request.largest_reply
            room = self._connection.try_reserve(most) if most > limits.SMALL_JSON_BYTES else NOTHING
            if room is None:
                raise Busy("there is no room for the reply now; settle less at a time, or try again")
        except GoQueueError as error:
            self._refuse(SETTLE_BLOCK, correlation, error, begun)
            return
        try:
            settled = settling.settle(self._broker, request)
        except BaseException:
            room.give()
            raise
        if settled.pending:
            held = self._connection.begin(len(settled.reply))
            self._connection.spawn(self._settle_later(correlation, settled, held, room, begun))
        else:
            self._settled(correlation, settled, room, begun)

    async def _settle_later(self, correlation: int, settled: Settled, held: Ticket, room: Ticket, begun: float) -> None:
        try:
            await settled.pending.safe()
            self._settled(correlation, settled, room.hand_over() if room.size else NOTHING, begun)
        except GoQueueError as error:
            self._refuse(SETTLE_BLOCK, correlation, error, begun)
        except Exception as error:
            self._break(SETTLE_BLOCK, correlation, error, begun)
        finally:
            room.give()
            self._connection.end(held)

    def _settled(self, correlation: int, settled: Settled, room: Ticket, begun: float) -> None:
        if settled.failure is not None:
            room.give()
            self._refuse(SETTLE_BLOCK, correlation, settled.failure, begun)
            return
        self._settling.done("ok", perf_counter() - begun)
        self._connection.send(SETTLE_BLOCK, correlation, settled.reply, room=room)

    # --- the rest of the table, as JSON

    def _call(self, code: int, correlation: int, body: bytes, begun: float) -> None:
        operation = BY_CODE.get(code)
        try:
            if operation is None:
                raise UnknownOperation(f"there is no operation {code}; is the client newer than this broker?")
            if not operation.while_stopping:
                self._broker.check()
            counted = self._broker.requests.try_take(_counted(body))
            if counted is None:
                raise Busy("as many bytes of requests are in flight as there may be; try again")
        except GoQueueError as error:
            self._refuse(code, correlation, error, begun)
            return
        held = self._connection.begin(len(body) + limits.SMALL_JSON_BYTES)
        self._connection.spawn(self._run(operation, correlation, body, held, counted, begun))

    async def _run(
        self, operation: Operation, correlation: int, body: bytes, held: Ticket, counted: Ticket, begun: float
    ) -> None:
        """Finished for its own sake; only the wait of an operation that has one ends when the client leaves."""

        def count(weight: int) -> None:
            nonlocal counted
            counted = counted.plus(self._broker.requests.take_anyway(weight))

        try:
            request, path = await _BODIES[operation.name].read(self._service, body, count)
            if operation.park is not None:
                counted.give()
                body = b""  # nothing of it is needed any more
                path["parked"] = await self._connection.park(operation.park(self._service, request, **path))
            room = await self._connection.reserve(operation.reply_bytes) if operation.reply_bytes else NOTHING
            try:
                reply = await operation.handler(self._service, request, **path)
                packed = _encode(reply)
            except BaseException:
                room.give()
                raise
            self._meters[operation.name].done("ok", perf_counter() - begun)
            undo = None if operation.undo is None else partial(operation.undo, self._service, reply)
            self._connection.send(operation.code, correlation, packed, room=room, undo=undo)
        except GoQueueError as error:
            self._refuse(operation.code, correlation, error, begun)
        except Exception as error:
            self._break(operation.code, correlation, error, begun)
        finally:
            counted.give()
            self._connection.end(held)


def _end(partition: Partition, request: FetchRequest) -> int:
    """As far as it can be read."""
    return partition.log.end_offset if request.uncommitted else partition.stable_end


def _counted(body: bytes) -> int:
    """What a body takes of the broker's budget: the small ones nothing, their number is bounded otherwise."""
    return len(body) if len(body) > limits.SMALL_JSON_BYTES else 0


def _as_ours(error: Exception) -> GoQueueError:
    if isinstance(error, LogClosed):
        return Unavailable(GONE)
    return error if isinstance(error, GoQueueError) else GoQueueError(str(error))
