"""Operations as calls, one request and one reply each, run through the table like at every other door.

A call that was begun is finished for its own sake. Only the wait of an operation that has one ends when the client
leaves or its deadline passes. A reply that could not be written is taken back, where that means something, and a large
one counts until it was read: such an operation writes its reply, so that the door learns of it. On the wire that is no
difference. A request is here before anybody asks for room: it is counted at once, and refused if that is too much.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from time import perf_counter
from typing import Any, Final, TypeVar

import grpc
from google.protobuf.message import DecodeError

from goqueue.api.grpc.caller import Caller, Context
from goqueue.api.grpc.failures import Handler, refuse, refuse_bug
from goqueue.api.grpc.held import Held, forget, log
from goqueue.api.grpc.schema import request_name, rpc_name
from goqueue.api.grpc.translating import pb, read_request, write_in_turns
from goqueue.api.grpc.weighing import check_fields, count_values
from goqueue.api.operations import OPERATIONS, Operation
from goqueue.api.service import Service
from goqueue.broker.admission import NOTHING, Admission, Ticket
from goqueue.broker.broker import Broker
from goqueue.model import limits
from goqueue.model.errors import Busy, GoQueueError, InvalidRequest
from goqueue.wire.shapes import Reply, Request

T = TypeVar("T")

DOOR: Final = "grpc"
"""Its name among the doors."""


class Calls:
    """Every operation of the table."""

    def __init__(self, service: Service, held: Held) -> None:
        self._service = service
        self._held = held

    def handlers(self) -> dict[str, Handler]:
        """By the name of the call."""
        return {rpc_name(operation.name): self._handler(operation) for operation in OPERATIONS}

    def _handler(self, operation: Operation) -> Handler:
        meters = self._service.requests.meters(DOOR, operation.name)

        async def answer(body: bytes, context: Context) -> Any:
            begun, outcome = perf_counter(), "cancelled"
            failure: GoQueueError | None = None
            async with self._held.caller(context) as caller:
                call = Call(self._service, operation, self._held, caller.budget)
                try:
                    told = await call.deliver(caller, await self._finish(call, body))
                    outcome = "ok"
                    return told
                except GoQueueError as error:
                    outcome, failure = error.code, error
                except Exception as error:
                    outcome = GoQueueError.code
                    log.error("a request broke", operation=operation.name, error=error)
                finally:
                    meters.done(outcome, perf_counter() - begun)
                return await (refuse_bug(caller) if failure is None else refuse(caller, failure))

        if writes(operation):
            return grpc.unary_stream_rpc_method_handler(answer)
        return grpc.unary_unary_rpc_method_handler(answer)

    async def _finish(self, call: "Call", body: bytes) -> Reply:
        """Its reply. When the client leaves, the work goes on without it."""
        task = self._held.begin(call.run(body))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            call.leave(task)
            raise


def writes(operation: Operation) -> bool:
    """Whether it matters if its reply could be written."""
    return operation.undo is not None or bool(operation.reply_bytes)


class Call:
    """One request on its way."""

    __slots__ = ("_broker", "_budget", "_held", "_left", "_operation", "_parked", "_room", "_service")

    def __init__(self, service: Service, operation: Operation, held: Held, budget: Admission) -> None:
        self._service = service
        self._broker = service.broker
        self._operation = operation
        self._held = held
        self._budget = budget
        """Of its connection, for the reply."""
        self._room = NOTHING
        """What was taken for the reply."""
        self._parked = False
        self._left = False

    async def run(self, body: bytes) -> Reply:
        """What is reserved for the reply is held until it is delivered, or here if nobody is there any more."""
        operation = self._operation
        if not operation.while_stopping:
            self._broker.check()
        operation.check_size(body)
        counted = count(self._broker, body)
        try:
            if len(body) <= limits.SMALL_JSON_BYTES:
                request, path = read_request(operation, self._decode(body))
            else:
                counted = counted.plus(await self._weigh(body))
                request, path = await self._read_large(body)
            if operation.park is not None:
                counted.give()
                body = b""  # nothing of it is needed any more
                with self._held.place():
                    path["parked"] = await self._park(partial(operation.park, self._service, request, **path))
            if operation.reply_bytes:
                self._room = await self._park(partial(self._held.take, self._budget, operation.reply_bytes))
            try:
                reply: Reply = await operation.handler(self._service, request, **path)
            except BaseException:
                self._room.give()
                raise
        finally:
            counted.give()
        if self._left:
            self._room.give()
            self._undo(reply)
        return reply

    async def _weigh(self, body: bytes) -> Ticket:
        """What it costs beside its bytes; refused if it has more values than it may."""
        operation = self._operation
        async with self._service.turns.turn():
            name = request_name(operation.name)
            weight = operation.weigh(count_values(name, body, operation.request_values))
            if operation.later is not None:
                check_fields(name, body)
            return self._broker.requests.take_anyway(weight)

    async def _read_large(self, body: bytes) -> tuple[Request, dict[str, Any]]:
        turns = self._service.turns
        async with turns.turn():
            message = self._decode(body)
        async with turns.turn():
            return read_request(self._operation, message)

    def _decode(self, body: bytes) -> Any:
        name = request_name(self._operation.name)
        try:
            return getattr(pb, name).FromString(body)
        except DecodeError:
            raise InvalidRequest(f"the request is not a {name} of protobuf") from None

    async def _park(self, begin: Callable[[], Awaitable[T]]) -> T:
        """A wait that holds nothing: it ends when the client leaves, and nobody waits behind one who is gone."""
        if self._left:
            raise asyncio.CancelledError
        self._parked = True
        try:
            return await begin()
        finally:
            self._parked = False

    def leave(self, task: "asyncio.Task[Reply]") -> None:
        """Nobody waits for the reply any more."""
        self._left = True
        if self._parked:
            task.cancel()
        elif task.done() and not task.cancelled() and task.exception() is None:
            self._room.give()
            self._undo(task.result())
        task.add_done_callback(forget)

    async def deliver(self, caller: Caller, reply: Reply) -> Any:
        """To be returned, or written already."""
        turns = self._service.turns
        if not writes(self._operation):
            return (await write_in_turns(turns, reply)).SerializeToString()
        try:
            message = await write_in_turns(turns, reply)
        except BaseException:
            self._room.give()
            self._undo(reply)
            raise
        try:
            await self._held.write(caller, message, room=self._room)
        except BaseException:
            self._undo(reply)
            raise

    def _undo(self, reply: Reply) -> None:
        if self._operation.undo is not None:
            self._operation.undo(self._service, reply)


def count(broker: Broker, body: bytes) -> Ticket:
    """Count a request that is here already; Busy if that is too much.

    It does not wait for room: it would be held all that time.
    """
    size = len(body) if len(body) > limits.SMALL_JSON_BYTES else 0
    requests = broker.requests
    if size and requests.held + size > requests.limit:
        raise Busy(f"{requests.held} bytes are in flight already, the most there may be; try again")
    return requests.take_anyway(size)
