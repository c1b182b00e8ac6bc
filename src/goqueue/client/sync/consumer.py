"""Consuming without a loop of one's own: rows of messages cross over, decisions about them go back in a queue."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from goqueue.client.arguments import Duration, check, to_delay, to_extension, to_reason
from goqueue.client.consumer import ConsumerCore
from goqueue.client.messages import DeliveredBatch, DeliveredMessage, Row
from goqueue.client.outgoing import Moment
from goqueue.client.stock import Part
from goqueue.client.sync.loop import LoopThread
from goqueue.model.record import Record
from goqueue.wire.settles import NO_ARGUMENT, Action


class ConsumerMessage(DeliveredMessage):
    """One that was delivered to a member of a group. It is this member's until its visibility timeout is over."""

    __slots__ = ("_loop",)

    def __init__(self, loop: LoopThread, row: Row, record: Record) -> None:
        super().__init__(row, record)
        self._loop = loop

    def ack(self, *, wait: bool = False) -> None:
        """Done with it. Queued, and sent with others; with `wait`, returns when the broker has it, or raises."""
        self._decide(Action.ACK, wait=wait)

    def nack(self, delay: Duration | None = None, *, wait: bool = False) -> None:
        """It failed: deliver it again after so long, or as its topic says; dead when it failed too often."""
        self._decide(Action.NACK, to_delay(delay), wait=wait)

    def reject(self, reason: str = "", *, wait: bool = False) -> None:
        """Never deliver it again: to the dead-letter topic, with the reason."""
        self._decide(Action.REJECT, reason=to_reason(reason), wait=wait)

    def release(self, *, wait: bool = False) -> None:
        """Give it back untried: others may have it, and this delivery does not count."""
        self._decide(Action.RELEASE, wait=wait)

    def extend(self, seconds: Duration) -> None:
        """Keep it for so long from now; raises StaleHandle when it is somebody else's by now."""
        self._decide(Action.EXTEND, to_extension(seconds), wait=True)

    def _decide(self, action: Action, argument: int = NO_ARGUMENT, reason: str = "", *, wait: bool) -> None:
        if wait is not False:
            check(wait=wait)
        if wait:
            self._loop.run(self._decided(action, argument, reason))
            return
        if self._loop.closed:
            self._loop.check_open()
        self._settle(action, argument, reason)

    async def _decided(self, action: Action, argument: int, reason: str) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._settle(action, argument, reason, future)
        await future


class ConsumerBatch(DeliveredBatch[ConsumerMessage]):
    """Messages that were delivered together, to look at one by one and to settle one by one or all at once."""

    __slots__ = ("_loop",)

    def __init__(self, loop: LoopThread, parts: list[Part]) -> None:
        super().__init__(ConsumerMessage, parts)
        self._loop = loop

    def _decode(self) -> list[ConsumerMessage]:
        loop = self._loop
        return [ConsumerMessage(loop, row, record) for row, at, end in self._parts for record in row.decode()[at:end]]

    def ack(self, *, wait: bool = False) -> None:
        self._decide(Action.ACK, wait=wait)

    def nack(self, delay: Duration | None = None, *, wait: bool = False) -> None:
        self._decide(Action.NACK, to_delay(delay), wait=wait)

    def reject(self, reason: str = "", *, wait: bool = False) -> None:
        self._decide(Action.REJECT, reason=to_reason(reason), wait=wait)

    def release(self, *, wait: bool = False) -> None:
        self._decide(Action.RELEASE, wait=wait)

    def extend(self, seconds: Duration) -> None:
        self._decide(Action.EXTEND, to_extension(seconds), wait=True)

    def _decide(self, action: Action, argument: int = NO_ARGUMENT, reason: str = "", *, wait: bool) -> None:
        if wait is not False:
            check(wait=wait)
        if wait:
            self._loop.run(self._decided(action, argument, reason))
            return
        if self._loop.closed:
            self._loop.check_open()
        self._settle(action, argument, reason)

    async def _decided(self, action: Action, argument: int, reason: str) -> None:
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[None]] = [loop.create_future() for _ in self._parts]
        self._settle(action, argument, reason, futures)
        await asyncio.gather(*futures)


class Consumer:
    """Made by `Client.consumer`; use it in `with`, which joins the group and leaves it. For one thread at a time."""

    def __init__(self, loop: LoopThread, core: ConsumerCore) -> None:
        self._loop = loop
        self._core = core
        self._stock = core.stock
        self._stock.lock = threading.RLock()
        loop.ends[core] = core.close

    @property
    def assigned(self) -> list[str]:
        """The partitions this consumer is delivered from, like orders-0: its own, or all where members share them."""
        return self._core.assigned

    def __iter__(self) -> Iterator[ConsumerMessage]:
        return self

    def __next__(self) -> ConsumerMessage:
        """The next message. Never ends by itself; leave the loop with `break`."""
        found = self._stock.step()
        if found is None:  # the loop is asked per row, not per message
            ((row, at, _),) = self._loop.run(self._core.take(1, None, is_patient=True))
        else:
            row, at = found
        return ConsumerMessage(self._loop, row, row.decode()[at])

    def poll(self, max_messages: int = 500, *, timeout: Duration | None = None) -> ConsumerBatch:
        """Up to so many messages, as soon as there are some; an empty batch when there are none within the timeout."""
        return ConsumerBatch(self._loop, self._loop.run(self._core.take(max_messages, timeout)))

    def pause(self) -> None:
        """Hand out nothing more, and give back what is in stock. The membership goes on."""
        self._loop.run(self._do(self._core.pause))

    def resume(self) -> None:
        self._loop.run(self._do(self._core.resume))

    def flush(self) -> None:
        """Wait until everything that was acked, nacked, rejected or released has reached the broker."""
        self._loop.run(self._core.flush())

    def seek(
        self,
        topic: str,
        partition: int | None = None,
        *,
        offset: int | None = None,
        time: Moment | None = None,
        to: str | None = None,
    ) -> dict[str, int]:
        """Move the whole group to an offset, a time, or `to` earliest or latest; gives where it is now."""
        return self._loop.run(self._core.seek(topic, partition, offset=offset, time=time, to=to))

    def close(self) -> None:
        """Settle what was decided, give back what was not handed out, and leave the group."""
        if not self._loop.closed:
            self._loop.run(self._core.close())
            self._loop.ends.pop(self._core, None)

    def __enter__(self) -> Self:
        self._core.check_new()
        try:
            self._loop.run(self._core.join())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def _do(self, work: Callable[[], None]) -> None:
        work()
