"""One Subscribe stream: a member of a group, its credit, and what it is sent.

Two things go on at once, `read` and `pump`. Requests are done in their order, each through its operation. Meanwhile
messages are polled for as long as there is credit; without credit the member only says that it is there. No poll takes
more than the credit, and what it took is given back if it could not be written.
"""

import asyncio
from collections.abc import Awaitable
from time import perf_counter
from typing import Any, Final, TypeVar

import grpc
import msgspec
from google.protobuf.message import DecodeError
from msgspec import UNSET, UnsetType

from goqueue.api.grpc.caller import Caller
from goqueue.api.grpc.calls import DOOR, count
from goqueue.api.grpc.failures import refusal
from goqueue.api.grpc.held import Held, log
from goqueue.api.grpc.streams import COMPOSED_OF, SUBSCRIBE
from goqueue.api.grpc.translating import check_known, fitting, pb, read_request, write_in_turns, write_reply
from goqueue.api.grpc.weighing import count_values
from goqueue.api.operations import BY_NAME, Operation
from goqueue.api.refusals import refuse
from goqueue.api.service import Service
from goqueue.broker.admission import NOTHING
from goqueue.model import limits
from goqueue.model.errors import Busy, GoQueueError, InvalidRequest, MemberFenced, TooLarge
from goqueue.wire import shapes

T = TypeVar("T")

_REQUEST: Final = "SubscribeRequest"
_POLL: Final = BY_NAME["poll"]
_SETTLING: Final = ("ack", "nack", "reject", "release", "extend_visibility", "commit")
"""What a request may ask for, in the order in which it is done."""


Newest = dict[tuple[str, str], "SubscribeStream"]
"""The streams of a door by group and member: of each member the one that was opened last."""


class SubscribeStream:
    """One stream."""

    def __init__(self, service: Service, caller: Caller, held: Held, newest: Newest) -> None:
        self._service = service
        self._broker = service.broker
        self._meters = {name: service.requests.meters(DOOR, name) for name in COMPOSED_OF[SUBSCRIBE]}
        self._caller = caller
        self._held = held
        self._newest = newest
        self.replaced = asyncio.Event()
        """Set when another stream goes on as this member."""
        self._writing = asyncio.Lock()
        self._group = self._member_id = ""
        self._stays = False
        self._poll = shapes.Poll(member_id="?")
        self._received: int | None = None
        self._credit = 0
        self._begun = asyncio.Event()
        self._more = asyncio.Event()
        """Set while there is credit."""
        self._requests = 0
        self._counted = NOTHING
        """For the request that is being done."""
        self._told: tuple[Any, ...] = ()
        """What the member was last told that it has."""
        self._incomplete: list[shapes.Incomplete] | UnsetType = UNSET
        """What it was last told is closed to groups."""
        self._idle = False
        """Whether the pump waits, and holds nothing."""
        self._room = NOTHING
        """What was taken for the batch that the pump is about to write."""
        self._left = False

    # --- the first request

    async def _begin(self) -> None:
        request = await self._next()
        if request is None or not request.HasField("subscription"):
            raise InvalidRequest("the first request of a stream says who subscribes, in `subscription`")
        found = request.subscription
        check_known(found)
        if found.HasField("join") and (found.HasField("group") or found.HasField("member_id")):
            raise InvalidRequest("a subscription joins a group, or goes on as a member of `group`; not both")
        poll = _poll_of(found)
        _credit_of(request)  # what is wrong is told before anybody joins
        if found.HasField("join"):
            reply = await self._perform("join_group", found.join)
            self._group = found.join.group
        else:
            self._group = found.group
            reply = await self._perform("heartbeat", pb.HeartbeatRequest(group=found.group, member_id=found.member_id))
        self._member_id = reply.member_id
        self._replace_older()
        self._stays = found.stay
        self._received = found.received if found.HasField("received") else None
        self._poll = msgspec.structs.replace(poll, member_id=reply.member_id)
        await self._tell(reply)
        self._begun.set()
        await self._do(request)

    def _replace_older(self) -> None:
        place = self._group, self._member_id
        older = self._newest.get(place)
        self._newest[place] = self
        if older is not None:
            older.replaced.set()

    async def _next(self) -> Any:
        """The next request; None when there are no more. It counts until the one behind it is asked for."""
        self._counted.give()
        body = await self._caller.read()
        if body is grpc.aio.EOF:
            return None
        if len(body) > limits.MAX_SMALL_BODY_BYTES:
            raise TooLarge(f"a request has at most {limits.MAX_SMALL_BODY_BYTES} bytes, not {len(body)}; settle less")
        self._counted = count(self._broker, body)
        if len(body) > limits.SMALL_JSON_BYTES:
            values = count_values(_REQUEST, body, limits.MAX_SMALL_VALUES)
            if values > limits.MAX_SMALL_VALUES:
                raise TooLarge(f"a request has at most {limits.MAX_SMALL_VALUES} fields in all; settle less")
            self._counted = self._counted.plus(self._broker.requests.take_anyway(values * limits.VALUE_BYTES))
        try:
            request = pb.SubscribeRequest.FromString(body)
        except DecodeError:
            raise InvalidRequest("what was sent is not a SubscribeRequest of protobuf") from None
        check_known(request)
        return request

    # --- requests

    async def read(self) -> None:
        """Until the client has no more to say."""
        try:
            await self._begin()
            while (request := await self._next()) is not None:
                if request.HasField("subscription"):
                    raise InvalidRequest("a stream is for one subscription; open another one")
                await self._do(request)
        finally:
            self._counted.give()

    async def _do(self, request: Any) -> None:
        number, self._requests = self._requests, self._requests + 1
        credit = _credit_of(request)
        if credit:
            self._credit = min(self._credit + credit, limits.MAX_OFFSET)
            self._more.set()
        for name in _SETTLING:
            if not request.HasField(name):
                continue
            asked = getattr(request, name)
            if name == "commit":
                asked.group, asked.member_id = asked.group or self._group, asked.member_id or self._member_id
            try:
                reply = await self._perform(name, asked)
            except GoQueueError as error:
                answer = pb.SubscribeReply(request=number, refused=refusal(error))
            else:
                field = "committed" if name == "commit" else "settled"
                answer = pb.SubscribeReply(request=number, **{field: write_reply(reply)})
            await self._write(answer)

    async def _perform(self, name: str, message: Any) -> Any:
        """An operation, by the table."""
        begun, outcome = perf_counter(), GoQueueError.code
        operation = BY_NAME[name]
        try:
            self._broker.check()
            request, path = read_request(operation, message)
            reply = await self._held.finish(self._run(operation, request, path))
            outcome = "ok"
            return reply
        except GoQueueError as error:
            outcome = error.code
            raise
        finally:
            self._meters[name].done(outcome, perf_counter() - begun)

    async def _run(self, operation: Operation, request: Any, path: dict[str, Any]) -> Any:
        return await operation.handler(self._service, request, **path)

    # --- messages

    async def pump(self) -> None:
        """Until the stream ends: messages while there is credit, else only that the member is there."""
        await self._waiting(self._begun.wait())
        member = self._broker.groups.machine.group(self._group).member(self._member_id)
        interval_s = min(member.joined.session_ms / limits.GRPC_HEARTBEATS, limits.MAX_WAIT_MS) / 1000
        while not self._left:
            self._broker.check()
            if self._credit > 0:
                await self._take(interval_s)
            elif not await self._has_credit(interval_s):
                await self._show_up()

    async def _waiting(self, work: Awaitable[T]) -> T:
        """A wait that holds nothing: it ends when the client leaves."""
        self._idle = True
        try:
            return await work
        finally:
            self._idle = False

    async def _has_credit(self, wait_s: float) -> bool:
        """Whether there is some in time."""
        self._more.clear()
        try:
            async with asyncio.timeout(wait_s):
                await self._waiting(self._more.wait())
        except TimeoutError:
            return False
        return True

    async def _show_up(self) -> None:
        reply = await self._perform("heartbeat", pb.HeartbeatRequest(group=self._group, member_id=self._member_id))
        if _has(reply) != self._told:
            await self._tell(reply)

    async def _take(self, wait_s: float) -> None:
        """One poll: wait, take what there is, at most the credit, and write it."""
        begun, outcome = perf_counter(), "cancelled"
        most = min(self._poll.max_messages, self._credit)
        poll = msgspec.structs.replace(self._poll, timeout=wait_s, received=self._received, max_messages=most)
        assert _POLL.park is not None
        try:
            turn = await self._waiting(_POLL.park(self._service, poll, group=self._group))
            self._broker.check()
            if not turn.is_newest:
                raise MemberFenced("another stream or poll goes on as this member; one at a time")
            try:
                self._room = await self._waiting(self._held.take(self._caller.budget, poll.max_bytes))
            except Busy:
                outcome = Busy.code
                return  # nothing is taken, and it may wait
            try:
                if self._left:
                    return
                reply = await _POLL.handler(self._service, poll, group=self._group, parked=turn)
                await self._send(reply)
                outcome = "ok"
            finally:
                self._room.give()
        except GoQueueError as error:
            outcome = error.code
            raise
        finally:
            self._meters["poll"].done(outcome, perf_counter() - begun)

    async def _send(self, reply: shapes.Polled) -> None:
        news = _has(reply)
        is_old = news == self._told and reply.incomplete == self._incomplete
        if not reply.messages and not reply.damage and is_old:
            self._received = reply.poll
            return
        assert _POLL.undo is not None
        if self._left:
            _POLL.undo(self._service, reply)
            return
        self._credit -= len(reply.messages)
        try:
            async with self._writing:
                message = pb.SubscribeReply(batch=await write_in_turns(self._service.turns, reply))
                await self._held.write(self._caller, message, room=self._room.hand_over())
        except BaseException:
            self._credit += len(reply.messages)
            _POLL.undo(self._service, reply)
            raise
        self._received, self._told, self._incomplete = reply.poll, news, reply.incomplete

    async def _tell(self, reply: shapes.MemberReply) -> None:
        await self._write(pb.SubscribeReply(member=write_reply(reply)))
        self._told = _has(reply)

    async def _write(self, message: Any) -> None:
        async with self._writing:
            await self._held.write(self._caller, message)

    # --- the end

    async def stop(self, pump: "asyncio.Task[None]") -> None:
        """Let a batch that is being written arrive, and poll no more."""
        self.abandon(pump)
        await asyncio.wait((pump,), timeout=limits.DRAIN_GRACE_S)

    async def leave(self) -> None:
        """Unless it was to stay, goes on with another stream, or has vanished, which cancels this within a moment."""
        await asyncio.sleep(limits.GRPC_MOMENT_S)
        if not self._stays and not self.replaced.is_set():
            await self._perform("leave_group", pb.LeaveGroupRequest(group=self._group, member_id=self._member_id))

    def abandon(self, pump: "asyncio.Task[None]") -> None:
        """Poll no more. What the pump has taken and cannot write it gives back by itself."""
        if self._newest.get((self._group, self._member_id)) is self:
            del self._newest[self._group, self._member_id]
        if not self._left:
            self._left = True
            pump.add_done_callback(_forget)
        if self._idle:
            pump.cancel()


def _credit_of(request: Any) -> int:
    if request.HasField("credit") and not 0 < request.credit < limits.MAX_OFFSET:
        raise InvalidRequest("credit is a number of messages above 0")
    return int(request.credit)


def _poll_of(found: Any) -> shapes.Poll:
    """What is asked for, by a member that is not known yet."""
    fields: dict[str, Any] = {"member_id": "?"}
    for name in ("max_messages", "max_bytes", "visibility"):
        if found.HasField(name):
            fields[name] = getattr(found, name)
    try:
        poll = msgspec.convert(fields, shapes.Poll)
    except msgspec.ValidationError as error:
        raise refuse(error, shapes.Poll) from None
    return poll if found.HasField("max_bytes") else fitting(poll, limits.GRPC_BATCH_BYTES)


def _has(reply: shapes.MemberReply | shapes.Polled) -> tuple[Any, ...]:
    """What a member is told that it has."""
    return reply.generation, tuple(reply.assigned_partitions), tuple(reply.revoke)


def _forget(pump: "asyncio.Task[None]") -> None:
    error = None if pump.cancelled() else pump.exception()
    if error is not None and not isinstance(error, GoQueueError):
        log.error("a stream broke", operation=SUBSCRIBE, error=error)
