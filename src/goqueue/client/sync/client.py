"""The front door for Python without a loop: the same methods, over an event loop in a thread of its own."""

from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from goqueue.client.arguments import Duration
from goqueue.client.client import DEFAULT_ADDRESS, AsyncClient
from goqueue.client.consumer import ConsumerCore
from goqueue.client.member import Missed
from goqueue.client.membership import PartitionsChanged
from goqueue.client.outgoing import Moment, Start
from goqueue.client.reader import DEFAULT_FETCH_BYTES, Isolation, OnDamage
from goqueue.client.receipts import Outcome
from goqueue.client.settling import Refused
from goqueue.client.sync.administration import Administration
from goqueue.client.sync.consumer import Consumer
from goqueue.client.sync.loop import LoopThread
from goqueue.client.sync.producer import DEFAULT_LINGER_S, DEFAULT_MAX_BLOCK_S, Producer
from goqueue.client.sync.reader import Reader
from goqueue.model import limits
from goqueue.model.errors import GoQueueError
from goqueue.wire import shapes

Answer = TypeVar("Answer", bound=shapes.Reply)


class Client(Administration):
    """Connects when it is first needed, and again when the connection was lost. Use it in `with`."""

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        client_id: str = "python",
        connect_timeout: Duration = 10.0,
        request_timeout: Duration = 30.0,
    ) -> None:
        self._loop = LoopThread()

        async def make() -> AsyncClient:
            return AsyncClient(
                address, client_id=client_id, connect_timeout=connect_timeout, request_timeout=request_timeout
            )

        try:
            self._inner = self._loop.run(make())
        except BaseException:
            self._loop.close()
            raise
        self._loop.ends[self] = self._inner.close

    def call(self, operation: str, /, **fields: Any) -> dict[str, Any]:
        """Any operation by its name, with the fields it has over HTTP, those of the path included."""
        return self._loop.run(self._inner.call(operation, **fields))

    def _ask(self, operation: str, reply: type[Answer], /, **fields: Any) -> Answer:
        return self._loop.run(self._inner.ask(operation, reply, **fields))

    def producer(
        self,
        *,
        acks: str = "leader",
        batch_bytes: int = 256 * limits.KIB,
        batch_messages: int = 10_000,
        linger: Duration = DEFAULT_LINGER_S,
        buffer_bytes: int = 64 * limits.MIB,
        delivery_timeout: Duration = 120.0,
        transactional_id: str | None = None,
        transaction_timeout: Duration | None = None,
        max_block: Duration = DEFAULT_MAX_BLOCK_S,
        on_batch: Callable[[Outcome], None] | None = None,
    ) -> Producer:
        """Publishes messages. `enqueue` waits for up to `max_block` seconds for room; `on_batch` is called in a thread
        of the client's, and must not wait. `AsyncClient.producer` says what a `transactional_id` is."""

        async def make() -> Producer:
            inner = self._inner.producer(
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
            return Producer(self._loop, inner, max_block=max_block)

        return self._loop.run(make())

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
    ) -> Consumer:
        """A member of a group; use it in `with`. `AsyncClient.consumer` says what the arguments mean.

        The callbacks are called in a thread of the client's, and must not wait.
        """

        async def make() -> ConsumerCore:
            return ConsumerCore(
                self._inner.new_link(),
                group,
                topics,
                client_id=self._inner.client_id,
                wake=self._loop.wake,
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

        return Consumer(self._loop, self._loop.run(make()))

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
    ) -> Reader:
        """Messages of a topic without a group, delayed ones included; nothing is settled.

        Ends where the topic ends now, or at `to_time`; with `follow` it goes on. `AsyncClient.reader` says what
        `isolation` and `on_damage` are.
        """

        async def make() -> Reader:
            inner = self._inner.reader(
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
            return Reader(self._loop, inner)

        return self._loop.run(make())

    def close(self) -> None:
        """Close what was made here and is still open: producers with a flush, consumers leave their groups.

        What cannot be closed keeps nothing else open; the first error is raised after.
        """
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        if not isinstance(error, Exception):
            self._loop.ends[self] = self._inner.leave  # Ctrl-C: whoever wants to leave now does not wait for long
        try:
            self.close()
        except GoQueueError as also:
            error.add_note(f"and the client could not close what it had made: {also}")
