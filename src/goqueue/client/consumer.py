"""Consuming as a member of a group, as users see it: messages one by one or by the batch, and what becomes of them.

A consumer is put together here from its parts: the stock of what was delivered and not handed out, the membership that
fills it, the leases that are extended meanwhile, and the queue of what was decided about messages. The parts do not
know it. Errors that trying again does not help end the iteration with that error, and what is in stock then is given
back.
"""

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from time import monotonic
from types import TracebackType
from typing import Any, Final, Self

from goqueue.client.arguments import (
    Duration,
    check,
    to_delay,
    to_extension,
    to_list,
    to_reason,
    to_span_ms,
    to_timeout,
    to_visibility,
)
from goqueue.client.fields import as_place, by_argument, given
from goqueue.client.leases import Leases
from goqueue.client.link import Link, check_loop
from goqueue.client.membership import Membership, PartitionsChanged
from goqueue.client.messages import DeliveredBatch, DeliveredMessage
from goqueue.client.outgoing import Moment, Start, to_start
from goqueue.client.settling import Refused, SettleQueue
from goqueue.client.stock import Part, Stock
from goqueue.client.turns import TURN_S
from goqueue.model import limits
from goqueue.model.errors import GoQueueError, InvalidRequest, Unavailable
from goqueue.model.times import show_duration
from goqueue.wire.codes import CODES
from goqueue.wire.failures import repeat
from goqueue.wire.settles import NO_ARGUMENT, Action

log = logging.getLogger("goqueue.client")

_GATHERED: Final = 4
"""Acks of a fourth of what a consumer may hold do not wait for others: it would run out of work."""

TURN: Final = 64
"""After how many messages in a row the loop gets a turn."""
_CLOSED: Final = "this consumer is closed; make another one"
_NOT_JOINED: Final = "this consumer has not joined its group; use it in `with`, or `async with`"


class AsyncMessage(DeliveredMessage):
    """One that was delivered to a member of a group. It is this member's until its visibility timeout is over."""

    __slots__ = ()

    async def ack(self, *, wait: bool = False) -> None:
        """Done with it. Queued, and sent with others; with `wait`, returns when the broker has it, or raises."""
        await self._decide(Action.ACK, wait=wait)

    async def nack(self, delay: Duration | None = None, *, wait: bool = False) -> None:
        """It failed: deliver it again after so long, or as its topic says; dead when it failed too often."""
        await self._decide(Action.NACK, to_delay(delay), wait=wait)

    async def reject(self, reason: str = "", *, wait: bool = False) -> None:
        """Never deliver it again: to the dead-letter topic, with the reason."""
        await self._decide(Action.REJECT, reason=to_reason(reason), wait=wait)

    async def release(self, *, wait: bool = False) -> None:
        """Give it back untried: others may have it, and this delivery does not count."""
        await self._decide(Action.RELEASE, wait=wait)

    async def extend(self, seconds: Duration) -> None:
        """Keep it for so long from now; raises StaleHandle when it is somebody else's by now."""
        await self._decide(Action.EXTEND, to_extension(seconds), wait=True)

    async def _decide(self, action: Action, argument: int = NO_ARGUMENT, reason: str = "", *, wait: bool) -> None:
        if wait is not False:
            check(wait=wait)
        if not wait:
            self._settle(action, argument, reason)
            turns = self._row.settler.turns
            if monotonic() - turns.last > TURN_S:
                await turns.give()
            return
        future: asyncio.Future[None] = self._row.settler.turns.check_loop().create_future()
        self._settle(action, argument, reason, future)
        await future


class AsyncBatch(DeliveredBatch[AsyncMessage]):
    """Messages that were delivered together, to look at one by one and to settle one by one or all at once."""

    __slots__ = ()

    async def ack(self, *, wait: bool = False) -> None:
        await self._decide(Action.ACK, wait=wait)

    async def nack(self, delay: Duration | None = None, *, wait: bool = False) -> None:
        await self._decide(Action.NACK, to_delay(delay), wait=wait)

    async def reject(self, reason: str = "", *, wait: bool = False) -> None:
        await self._decide(Action.REJECT, reason=to_reason(reason), wait=wait)

    async def release(self, *, wait: bool = False) -> None:
        await self._decide(Action.RELEASE, wait=wait)

    async def extend(self, seconds: Duration) -> None:
        await self._decide(Action.EXTEND, to_extension(seconds), wait=True)

    async def _decide(self, action: Action, argument: int = NO_ARGUMENT, reason: str = "", *, wait: bool) -> None:
        if wait is not False:
            check(wait=wait)
        if not wait:
            self._settle(action, argument, reason)
            return
        futures: list[asyncio.Future[None]] = [
            row.settler.turns.check_loop().create_future() for row, _, _ in self._parts
        ]
        self._settle(action, argument, reason, futures)
        await asyncio.gather(*futures)


class ConsumerCore:
    """What both kinds of consumer share: everything but how users wait. Lives in one event loop."""

    def __init__(
        self,
        link: Link,
        group: str,
        topics: Sequence[str],
        *,
        client_id: str,
        wake: Callable[[Callable[[], None]], object],
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
    ) -> None:
        check(
            group=group,
            mode=mode,
            assignor=assignor,
            instance_id=instance_id,
            max_unacked=max_unacked,
            prefetch=prefetch,
            prefetch_bytes=prefetch_bytes,
            auto_extend=auto_extend,
            on_assigned=on_assigned,
            on_revoked=on_revoked,
            on_ack_error=on_ack_error,
        )
        session_ms = to_span_ms("session_timeout", session_timeout)
        visibility_ms = None if visibility is None else to_visibility("visibility", visibility)
        self.group = group
        self.topics = to_list("topics", topics, lambda each: isinstance(each, str), 'a list of names, like ["orders"]')
        self._link = link
        self._loop = asyncio.get_running_loop()
        self._arrived = asyncio.Event()
        wanted = asyncio.Event()
        wanted.set()
        tell_refused = on_ack_error or _complain
        self._settling = SettleQueue(
            link,
            lambda: self._membership.member,
            wake,
            tell_refused,
            lambda row: self.stock.see_settled(row),
            enough=max_unacked // _GATHERED,
        )
        self._settling.turns.loop = self._loop
        self.stock = Stock(
            max_messages=min(prefetch, max_unacked, limits.MAX_POLL_MESSAGES),
            max_bytes=prefetch_bytes,
            keep_handed_out=auto_extend,
            give_back=self._settling.give_back,
            on_stored=self._arrived.set,
            on_room=wanted.set,
        )
        self._leases = Leases(
            self._settling,
            self.stock,
            visibility_s=None if visibility_ms is None else visibility_ms / 1000,
        )
        fields = {
            "client_id": client_id,
            "mode": mode,
            "start": to_start(start),
            "assignor": assignor,
            # Joining twice is joining once: an answer to a join may get lost.
            "instance_id": instance_id or f"{client_id}-{uuid.uuid4().hex[:12]}",
            "session_timeout": show_duration(session_ms),
            "visibility": None if visibility_ms is None else show_duration(visibility_ms),
            "max_unacked": max_unacked,
        }
        self._membership = Membership(
            link,
            group,
            self.topics,
            {name: value for name, value in fields.items() if value is not None},
            session_s=session_ms / 1000,
            stock=self.stock,
            settling=self._settling,
            wanted=wanted,
            on_assigned=on_assigned,
            on_revoked=on_revoked,
            on_absent=self._arrived.set,
        )
        self._failure: GoQueueError | None = None
        self._closed = False
        self._closing: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []

    # ------------------------------------------------------------------ beginning, and what goes on meanwhile

    def check_new(self) -> None:
        """It is entered once."""
        if self._closed:
            raise Unavailable(_CLOSED)
        if self._membership.member is not None:
            raise InvalidRequest("this consumer has joined its group already; make another one")

    async def join(self) -> None:
        await self._membership.join(self._link.endpoint.call_timeout_s)
        await self._leases.learn(self._link, self.topics)
        await self._membership.hear()
        learning = partial(self._leases.keep_learning, self._link, self.topics)
        stay, leases = self._membership, self._leases
        self._tasks = [
            self._loop.create_task(self._keep(work), name=f"goqueue consumer {self.group}")
            for work in (stay.keep_polling, stay.keep_beating, stay.keep_looking, leases.keep, learning)
        ]

    async def _keep(self, work: Callable[[], Awaitable[None]]) -> None:
        """A task that goes on through what passes; what does not ends the consumer."""
        try:
            await work()
        except asyncio.CancelledError:
            raise
        except GoQueueError as error:
            self._fail(error)
        except Exception as error:
            log.exception("a consumer of group %s broke", self.group)
            self._fail(GoQueueError(f"the consumer broke: {type(error).__name__}: {error}"))

    def _fail(self, error: GoQueueError) -> None:
        if self._failure is not None or self._closed:
            return
        self._failure = error
        self._cancel_tasks()
        self.stock.clear()
        self._arrived.set()
        self._membership.absence.end(None)  # nobody tries to join any more

    def _cancel_tasks(self) -> list[asyncio.Task[None]]:
        """All but the one this is called in."""
        others = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        return others

    # ------------------------------------------------------------------ handing out

    async def more(self, *, is_patient: bool) -> None:
        """Wait until there is something to hand out. Of several who wait one may be faster: look again.

        Who is patient waits for topics to be created again; who is not is told that there is none.
        """
        self._settling.turns.check_loop()
        self.stock.wake()
        self.stock.waiting += 1
        try:
            await self._wait_for_more(is_patient=is_patient)
        finally:
            self.stock.waiting -= 1

    async def _wait_for_more(self, *, is_patient: bool) -> None:
        while not self.stock.has_rest:
            if self._failure is not None:
                raise repeat(self._failure) from self._failure.__cause__
            if self._closed:
                raise Unavailable(_CLOSED)
            if self.stock.advance() is not None:
                return
            if self._membership.member is None:
                raise InvalidRequest(_NOT_JOINED)
            if self._membership.absence.reason is not None and not is_patient:
                await self._membership.absence.look()
                continue
            self._arrived.clear()
            await self._arrived.wait()

    async def take(self, max_messages: int, timeout: Duration | None, *, is_patient: bool = False) -> list[Part]:
        """Parts of rows: from where to where. None of them when the time is up.

        UnknownTopic while none of the topics is there, unless who asks is patient.
        """
        check(max_messages=max_messages)
        timeout_s = to_timeout(timeout)
        if not self.stock.has_rest:
            try:
                async with asyncio.timeout(timeout_s):
                    await self.more(is_patient=is_patient)
            except TimeoutError:
                if not is_patient and not self._closed:
                    self._membership.absence.check()
                return []
        return self.stock.take(max_messages)

    # ------------------------------------------------------------------ what users ask for

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    @property
    def assigned(self) -> list[str]:
        """The partitions this consumer is delivered from, like orders-0: its own, or all where members share them."""
        return [*self._membership.assigned]

    def pause(self) -> None:
        """Hand out nothing more, and give back what is in stock. The membership goes on."""
        self.stock.pause()

    def resume(self) -> None:
        self.stock.resume()

    async def flush(self) -> None:
        """Wait until everything that was acked, nacked, rejected or released has reached the broker."""
        self._settling.turns.check_loop()
        await self._settling.flush()

    async def seek(
        self,
        topic: str,
        partition: int | None = None,
        *,
        offset: int | None = None,
        time: Moment | None = None,
        to: str | None = None,
    ) -> dict[str, int]:
        """Move the whole group to an offset, a time, or `to` earliest or latest; gives where it is now, by partition.

        What it had settled behind that place is delivered again, and what it holds is taken back.
        """
        if sum(each is not None for each in (offset, time, to)) != 1:
            raise InvalidRequest("name one of offset, time and to")
        place = as_place(to=to, offset=offset, time=time, ago=None)
        check(topic=topic, **given(partition=partition))
        if self._closed:
            raise Unavailable(_CLOSED)
        if self._membership.member is None:
            raise InvalidRequest(_NOT_JOINED)
        asked = {"group": self.group, "topic": topic, **place, **given(partition=partition)}
        await self._settling.flush()
        try:
            reply = await self._link.ask(CODES["reset_offsets"], asked, repeatable=False)
        except InvalidRequest as error:
            raise by_argument(error, asked) from None
        self.stock.seek(topic, partition)
        moved: dict[str, int] = reply["offsets"].get(topic, {})
        return moved

    async def close(self) -> None:
        """Settle what was decided, give back what was not handed out, and leave the group."""
        if self._closing is None:
            check_loop(self._loop)
            self._closed = True
            self.stock.shut()
            self._arrived.set()
            self._membership.absence.end(None)
            self._closing = self._loop.create_task(self._close(self._cancel_tasks()), name="goqueue close")
        await asyncio.shield(self._closing)  # who is cancelled here can close again, and wait for the same end

    async def _close(self, tasks: list[asyncio.Task[None]]) -> None:
        try:
            if tasks:
                await asyncio.wait(tasks)
            async with asyncio.timeout(self._link.endpoint.call_timeout_s):
                await self._membership.leave()
        except (GoQueueError, TimeoutError) as error:
            level = logging.WARNING if self._failure is None else logging.DEBUG
            log.log(level, "a consumer could not leave group %s: %s", self.group, error)
        finally:
            await self._settling.close()
            await self._link.close()


class AsyncConsumer(ConsumerCore):
    """Made by `AsyncClient.consumer`; use it in `async with`, which joins the group and leaves it."""

    def __init__(self, link: Link, group: str, topics: Sequence[str], **options: Any) -> None:
        super().__init__(link, group, topics, wake=asyncio.get_running_loop().call_soon, **options)
        self._turn = 0
        self._turns = self._settling.turns

    async def __aenter__(self) -> Self:
        self.check_new()
        try:
            await self.join()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __aiter__(self) -> AsyncIterator[AsyncMessage]:
        return self

    async def __anext__(self) -> AsyncMessage:
        """The next message. Never ends by itself; leave the loop with `break`."""
        self._turn += 1
        if self._turn >= TURN or monotonic() - self._turns.last > TURN_S:
            self._turn = 0
            await self._turns.give()
        while (found := self.stock.step()) is None:
            await self.more(is_patient=True)
        row, at = found
        return AsyncMessage(row, row.decode()[at])

    async def poll(self, max_messages: int = 500, *, timeout: Duration | None = None) -> AsyncBatch:
        """Up to so many messages, as soon as there are some; an empty batch when there are none within the timeout."""
        if monotonic() - self._turns.last > TURN_S:
            await self._turns.give()
        return AsyncBatch(AsyncMessage, await self.take(max_messages, timeout))


def _complain(refused: Refused) -> None:
    """What happens to an ack that nobody waits for, and nobody wants to hear of."""
    log.warning("%s of %s was refused: %s", refused.action, refused.message_id, refused.error)
