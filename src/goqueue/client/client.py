"""The front door for Python: one broker, by its wire address."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeVar

import msgspec

from goqueue.client.administration import AsyncAdministration
from goqueue.client.arguments import Duration, check, to_seconds
from goqueue.client.consumer import AsyncConsumer
from goqueue.client.fields import as_fields, by_argument
from goqueue.client.link import Link, parse_endpoint
from goqueue.client.member import Missed
from goqueue.client.membership import PartitionsChanged
from goqueue.client.outgoing import Moment, Start
from goqueue.client.producer import AsyncProducer
from goqueue.client.reader import DEFAULT_FETCH_BYTES, AsyncReader, Isolation, OnDamage
from goqueue.client.receipts import Outcome
from goqueue.client.settling import Refused
from goqueue.model import limits
from goqueue.model.errors import GoQueueError, InvalidRequest, ProtocolError, Unavailable, UnknownOperation
from goqueue.wire import shapes
from goqueue.wire.codes import CODES

log = logging.getLogger("goqueue.client")

Answer = TypeVar("Answer", bound=shapes.Reply)
PartT = TypeVar("PartT", bound="Part")

DEFAULT_ADDRESS: Final = "127.0.0.1:9001"
HURRY_S: Final = 0.2
"""For the consumers and readers of a client that is left in a hurry; its producers have as long as any left so."""


class Part(Protocol):
    """What is made by a client and has connections of its own."""

    @property
    def closed(self) -> bool: ...
    async def close(self) -> None: ...


class AsyncClient(AsyncAdministration):
    """Connects when it is first needed, and again when the connection was lost. Use it in `async with`."""

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        client_id: str = "python",
        connect_timeout: Duration = 10.0,
        request_timeout: Duration = 30.0,
    ) -> None:
        check(address=address, client_id=client_id)
        self._endpoint = parse_endpoint(
            address,
            connect_timeout_s=to_seconds("connect_timeout", connect_timeout, least_ms=1),
            call_timeout_s=to_seconds("request_timeout", request_timeout, least_ms=1),
        )
        self.client_id = client_id
        self._link = self.new_link()
        self._parts: list[Part] = []
        """Producers, consumers and readers that were made here and may be open."""
        self._closed = False

    async def call(self, operation: str, /, **fields: Any) -> dict[str, Any]:
        """Any operation by its name, with the fields it has over HTTP, those of the path included."""
        check(operation=operation)
        code = CODES.get(operation)
        if code is None or operation.endswith("_block"):
            raise UnknownOperation(f"there is no operation {operation!r}")
        return await self._link.ask(code, as_fields(fields), repeatable=operation in REPEATABLE)

    async def _ask(self, operation: str, reply: type[Answer], /, **fields: Any) -> Answer:
        return await self.ask(operation, reply, **fields)

    async def ask(self, operation: str, reply: type[Answer], /, **fields: Any) -> Answer:
        """What `call` does for a method of this class: the reply is a struct of `goqueue.wire.shapes`, and what is
        refused is called as its argument."""
        try:
            return msgspec.convert(await self.call(operation, **fields), reply)
        except InvalidRequest as error:
            raise by_argument(error, fields) from None
        except msgspec.ValidationError as error:
            raise ProtocolError(f"the reply to {operation} is not understood: {error}") from error

    def producer(
        self,
        *,
        acks: str = "leader",
        batch_bytes: int = 256 * limits.KIB,
        batch_messages: int = 10_000,
        linger: Duration = 0.0,
        buffer_bytes: int = 64 * limits.MIB,
        delivery_timeout: Duration = 120.0,
        transactional_id: str | None = None,
        transaction_timeout: Duration | None = None,
        on_batch: Callable[[Outcome], None] | None = None,
    ) -> AsyncProducer:
        """Publishes messages, in transactions if that is wanted (`AsyncProducer.transaction`).

        Of a `transactional_id` there is one producer at a time: when another one begins with it, the one before is
        fenced off and what it left open is aborted. The broker aborts what is open for longer than
        `transaction_timeout`; 60 seconds if left out.
        """
        made = AsyncProducer(
            self._link,
            acks=acks,
            batch_bytes=batch_bytes,
            batch_messages=batch_messages,
            linger=linger,
            buffer_bytes=buffer_bytes,
            delivery_timeout=delivery_timeout,
            transactional_id=transactional_id,
            transaction_timeout=transaction_timeout,
            on_batch=on_batch,
        )
        return self.adopt(made)

    def consumer(
        self,
        group: str,
        topics: Sequence[str],
        *,
        mode: str | None = None,
        start: Start = "earliest",
        assignor: str | None = None,
        instance_id: str | None = None,
        session_timeout: Duration = 30.0,
        visibility: Duration | None = None,
        max_unacked: int = limits.DEFAULT_UNACKED,
        prefetch: int = 500,
        prefetch_bytes: int = 8 * limits.MIB,
        auto_extend: bool = False,
        on_assigned: PartitionsChanged | None = None,
        on_revoked: PartitionsChanged | None = None,
        on_ack_error: Callable[[Refused], None] | None = None,
        on_missed: Callable[[Missed], None] | None = None,
    ) -> AsyncConsumer:
        """A member of a group; use it in `async with`.

        `mode` is partition, shared or key; `start`, where a new group begins: earliest, latest, an offset (a number),
        or a time (a datetime with a zone, or text).
        `visibility` is how long a message may take; what its topic says if left out. The consumer holds up to
        `max_unacked` messages that are not settled. `prefetch` and `prefetch_bytes` bound its stock, what was delivered
        and nobody has asked for; what came together and is being handed out comes on top of that. With `auto_extend` it
        keeps what was handed out for as long as it is not settled. The callbacks are told names of partitions, and what
        acks were refused that nobody waited for. A partition goes when `on_revoked` has returned, or is late by the
        rebalance timeout.
        """
        made = AsyncConsumer(
            self.new_link(),
            group,
            topics,
            client_id=self.client_id,
            mode=mode,
            start=start,
            assignor=assignor,
            instance_id=instance_id,
            session_timeout=session_timeout,
            visibility=visibility,
            max_unacked=max_unacked,
            prefetch=prefetch,
            prefetch_bytes=prefetch_bytes,
            auto_extend=auto_extend,
            on_assigned=on_assigned,
            on_revoked=on_revoked,
            on_ack_error=on_ack_error,
            on_missed=on_missed,
        )
        return self.adopt(made)

    def reader(
        self,
        topic: str,
        *,
        partitions: Iterable[int] | None = None,
        from_offset: int | None = None,
        from_time: Moment | None = None,
        to_time: Moment | None = None,
        follow: bool = False,
        fetch_bytes: int = DEFAULT_FETCH_BYTES,
        isolation: Isolation = "read_committed",
        on_damage: OnDamage = "raise",
    ) -> AsyncReader:
        """Messages of a topic without a group, delayed ones included; nothing is settled.

        Ends where the topic ends now, or at `to_time`; with `follow` it goes on. A `from_offset` past the end of every
        partition is refused when reading begins, with OffsetOutOfRange. What was published in a transaction is read
        once it is committed, and what came behind it in its partition not before; with `isolation` read_uncommitted
        everything is read at once, and what was aborted too. It raises Quarantined where messages are damaged on the
        broker's disk; with `on_damage` skip it goes on behind them, and counts them (`skipped`).
        """
        made = AsyncReader(
            self.new_link(),
            topic,
            partitions=partitions,
            from_offset=from_offset,
            from_time=from_time,
            to_time=to_time,
            follow=follow,
            fetch_bytes=fetch_bytes,
            isolation=isolation,
            on_damage=on_damage,
        )
        return self.adopt(made)

    def new_link(self) -> Link:
        """Another connection to the same broker."""
        return Link(self._endpoint, tells=True)

    def adopt(self, part: PartT) -> PartT:
        """It is closed with this client, unless it was before."""
        if self._closed:
            raise Unavailable("this client is closed; make another one")
        self._parts = [*(each for each in self._parts if not each.closed), part]
        return part

    async def close(self) -> None:
        """Close what was made here and is still open, producers with a flush, then the connection.

        A producer that cannot publish within the request timeout loses what it has, with a warning in the log. What
        cannot be closed keeps nothing else open; the first error is raised after.
        """
        await self._end(in_a_hurry=False)

    async def leave(self) -> None:
        """The same, for who does not want to wait for long: a second at most, for what producers still have."""
        await self._end(in_a_hurry=True)

    async def _end(self, *, in_a_hurry: bool) -> None:
        """One that cannot be closed keeps no other open: the first error is raised when all of them were."""
        self._link.check_loop()
        self._closed = True
        failures: list[BaseException] = []
        try:
            for part in self._parts:
                if in_a_hurry:
                    break
                try:
                    await _close(part, self._endpoint.call_timeout_s)
                except Exception as error:
                    failures.append(error)
                except BaseException as error:  # cancelled: whoever wants to leave now does not wait for the others
                    failures.insert(0, error)
                    in_a_hurry = True
            if in_a_hurry:
                found = await asyncio.gather(*[_leave(part) for part in self._parts], return_exceptions=True)
                failures += [each for each in found if each is not None]
        finally:
            await self._link.close()
        if failures:
            raise failures[0]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
            return
        try:
            if isinstance(error, Exception):
                await self.close()
            else:  # cancelled, or Ctrl-C: whoever wants to leave now does not wait for long
                await self.leave()
        except GoQueueError as also:
            error.add_note(f"and the client could not close what it had made: {also}")


async def _close(part: Part, patience_s: float, level: int = logging.WARNING) -> None:
    try:
        async with asyncio.timeout(patience_s):
            await part.close()
    except TimeoutError:
        log.log(level, "a client was closed, and what it had made could not end within %s s", patience_s)


async def _leave(part: Part) -> None:
    if isinstance(part, AsyncProducer):
        await part.leave()
    else:
        await _close(part, HURRY_S, logging.DEBUG)


REPEATABLE: Final = frozenset(
    {
        "cluster", "commit_many", "delay_stats", "describe_group",
        "describe_redrive", "describe_schedule", "describe_topic", "describe_transaction", "find_delayed",
        "get_delayed", "get_reader", "group_lag", "group_offsets", "health", "heartbeat", "list_dead_letters",
        "list_delayed", "list_groups", "list_readers", "list_schedules", "list_topics", "list_transactions", "live",
        "metadata", "offsets", "priority_stats", "producer_heartbeat", "put_reader", "read_partition", "read_topic",
        "rebalance_stats", "reliability_stats", "stats", "transaction_stats", "transaction_token", "version",
    }
)  # fmt: skip
"""What may be done twice, when nobody knows whether it was done once."""
