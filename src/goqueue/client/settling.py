"""What is to become of delivered messages, on its way to the broker: gathered, and sent until there is an answer.

Decisions are taken from any thread and sent by the loop. One request is under way at a time; what is decided meanwhile
goes with the next. Acks that nobody waits for wait a few milliseconds for others, because a request costs the broker
much the same for one message as for a hundred; anything else goes at once, and takes them along. So do acks where
members share partitions: somebody may wait for the next message of a key. What a user was told is
settled was settled: an ack whose answer was lost is sent again as such, and the broker tells what is settled from what
somebody else has; the same with a pledge, an ack in a transaction. Of other decisions that are sent again what is
refused counts as done, because it may have been.
Every decision has an answer in the end, at the latest when the queue is closed.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from goqueue.client.link import Link, backoff_s
from goqueue.client.member import Delivered, Member
from goqueue.client.messages import Receiver, Row
from goqueue.client.turns import LoopTurns
from goqueue.model import limits
from goqueue.model.errors import Busy, Draining, GoQueueError, StaleHandle, Unavailable
from goqueue.model.names import message_id
from goqueue.wire.failures import repeat
from goqueue.wire.settles import NO_ARGUMENT, Action, Writer

log = logging.getLogger("goqueue.client")


class Refused(NamedTuple):
    """A message that was not settled as asked, and why."""

    topic: str
    partition: int
    offset: int
    action: str
    error: GoQueueError

    @property
    def message_id(self) -> str:
        return message_id(self.topic, self.partition, self.offset)


class _Decision(NamedTuple):
    row: Row
    offsets: Sequence[int]
    action: Action
    argument: int
    reason: str
    receiver: Receiver | None
    writer: Writer | None = None


_STALE: Final = (
    "the message was settled before, given back, delivered again since its visibility timeout was over, or deleted "
    "with its topic; if it took too long, extend it in time or choose a longer timeout"
)
_TOO_LATE: Final = (
    "the consumer was closed before this was decided: what was not settled by then is delivered again; settle messages "
    "before"
)
_AGAIN: Final = {Action.ACK: Action.ACK_AGAIN, Action.PLEDGE: Action.PLEDGE_AGAIN}
_NONE: Final[frozenset[int]] = frozenset()
_GATHER_S: Final = 0.005
"""How long acks wait for others."""


class SettleQueue:
    """Made inside its loop. `wake` calls its argument there, soon, from whatever thread it is called."""

    def __init__(
        self,
        link: Link,
        member: Callable[[], Member | None],
        wake: Callable[[Callable[[], None]], object],
        on_error: Callable[[Refused], None],
        on_settled: Callable[[Row], None],
        *,
        enough: int = 1,
    ) -> None:
        """`enough` acks do not wait for others."""
        self._link = link
        self._member = member
        self._wake = wake
        self._on_error = on_error
        self._on_settled = on_settled
        self._enough = enough
        self._loop = asyncio.get_running_loop()
        self.turns = LoopTurns()
        self._inbox: deque[_Decision] = deque()
        self._under_way: list[_Decision] = []
        self._answered = 0
        """How many decisions have their answer."""
        self._flushes: deque[tuple[int, asyncio.Future[None]]] = deque()
        """Who waits for how many."""
        self._woken = False
        self._gathered = 0
        """Messages decided about since a request was last begun."""
        self._gathering: asyncio.TimerHandle | None = None
        self._is_urgent = False
        """Whether there is something that does not wait."""
        self.extended_until = 0.0
        """The time of the loop at which the last extension is over."""
        self._task: asyncio.Task[None] | None = None
        self._closed: GoQueueError | None = None

    def add(
        self,
        row: Row,
        offsets: Sequence[int],
        action: Action,
        argument: int,
        reason: str,
        receiver: Any,
        writer: Writer | None = None,
    ) -> None:
        """From any thread. Whoever decides twice about a message has the second one refused."""
        self._inbox.append(_Decision(row, offsets, action, argument, reason, receiver, writer))
        self._gathered += len(offsets)
        may_wait = action is Action.ACK and receiver is None and row.delivered.epoch
        if not may_wait or self._gathered >= self._enough:
            self._is_urgent = True
        elif self._gathering is not None:
            return
        if not self._woken:
            self._woken = True
            self._wake(self._start)

    def give_back(self, row: Row, offsets: Sequence[int]) -> None:
        """They were not tried. Nobody waits for the answer."""
        self.add(row, offsets, Action.RELEASE, NO_ARGUMENT, "", self._nobody())

    def extend(self, row: Row, offsets: Sequence[int], span_ms: int) -> asyncio.Future[None]:
        """Hold them for so long from now. The answer may be waited for, and need not be."""
        answer = self._nobody()
        self.add(row, offsets, Action.EXTEND, span_ms, "", answer)
        return answer

    def _nobody(self) -> asyncio.Future[None]:
        """Waits for a settlement, and does not care."""
        ignored: asyncio.Future[None] = self._loop.create_future()
        ignored.add_done_callback(lambda future: future.cancelled() or future.exception())
        return ignored

    async def flush(self) -> None:
        """Wait until everything decided so far has its answer. What is decided meanwhile is not waited for."""
        due = self._answered + len(self._under_way) + len(self._inbox)
        if self._answered < due and self._closed is None:
            if self._inbox:
                self._begin()
            reached: asyncio.Future[None] = self._loop.create_future()
            self._flushes.append((due, reached))
            await reached

    async def close(self) -> None:
        """What has no answer yet is refused."""
        self._closed = Unavailable("the consumer was closed before the broker answered")  # whoever decided by now
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        self._give_up()
        self._closed = Unavailable(_TOO_LATE)

    def _start(self) -> None:
        self._woken = False
        if self._closed is not None:
            self._give_up()
        elif self._is_urgent:
            self._begin()
        elif self._task is None and self._inbox and self._gathering is None:
            self._gathering = self._loop.call_later(_GATHER_S, self._begin)

    def _begin(self) -> None:
        """Nothing waits any longer."""
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        self._is_urgent = True
        if self._task is None and self._inbox and self._closed is None:
            self._task = self._loop.create_task(self._work())

    def _give_up(self) -> None:
        assert self._closed is not None
        while self._under_way or self._inbox:
            decisions = self._under_way or self._take()
            self._refuse(decisions, self._closed)
            self._done(decisions)

    async def _work(self) -> None:
        try:
            while self._inbox and self._is_urgent:
                self._is_urgent = False  # before a look at the inbox: what comes now is urgent by itself
                self._gathered = 0
                due = self._answered + len(self._inbox)
                while self._inbox and self._answered < due:
                    self._under_way = decisions = self._take()
                    await self._settle(decisions)
                    self._done(decisions)
        finally:
            self._task = None
        self._start()

    def _done(self, decisions: list[_Decision]) -> None:
        self._under_way = []
        self._answered += len(decisions)
        while self._flushes and self._flushes[0][0] <= self._answered:
            reached = self._flushes.popleft()[1]
            if not reached.done():
                reached.set_result(None)

    def _take(self) -> list[_Decision]:
        """The next ones that are the same decision, as many as one request may have; order among others is kept."""
        inbox = self._inbox
        first = inbox.popleft()
        taken = [first]
        _, offsets, action, argument, reason, _, _ = first
        count = len(offsets)
        while inbox:
            following = inbox[0]
            if following.action is not action or following.argument != argument or following.reason != reason:
                break
            count += len(following.offsets)
            if count > limits.MAX_HANDLES:
                break
            taken.append(inbox.popleft())
        return taken

    async def _settle(self, decisions: list[_Decision]) -> None:
        _, _, action, argument, reason, _, writer = decisions[0]
        by_row: dict[Row, list[int]] = {}
        for decision in decisions:
            offsets = by_row.get(decision.row)
            if offsets is None:
                by_row[decision.row] = [*decision.offsets]
            else:
                offsets += decision.offsets
        twice = False
        if action is Action.EXTEND:
            self.extended_until = max(self.extended_until, self._loop.time() + argument / 1000)
        else:
            for row, offsets in by_row.items():
                before = len(row.settled)
                row.settled.update(offsets)
                twice |= len(row.settled) - before < len(offsets)
        what = [(row.delivered, offsets) for row, offsets in by_row.items()]
        try:
            refused = await self._send(action, what, argument, reason, writer)
        except Exception as error:
            if action is not Action.EXTEND:
                for row, offsets in by_row.items():
                    row.settled.difference_update(offsets)
            if not isinstance(error, GoQueueError):
                log.exception("settling broke")
                error = GoQueueError(f"settling broke: {type(error).__name__}: {error}")
            self._refuse(decisions, error)
            return
        found: dict[Row, set[int]] = {}
        if refused:
            rows = {id(row.delivered): row for row in by_row}
            found = {rows[id(delivered)]: set(offsets) for delivered, offsets in refused}
            for row, lost in found.items():
                row.settled.update(lost)  # also of an extension: somebody else has them, or nobody
        for row in by_row if action is not Action.EXTEND else found:
            self._on_settled(row)
        self._report(decisions, found, twice)

    async def _send(
        self,
        action: Action,
        what: list[tuple[Delivered, list[int]]],
        argument: int,
        reason: str,
        writer: Writer | None,
    ) -> list[tuple[Delivered, Iterable[int]]]:
        """What was refused. Tried until there is an answer, or one that trying again does not change."""
        failures = 0
        may_be_done = False
        while True:
            sent = False
            try:
                member = self._member()
                if member is None:
                    raise Unavailable("the consumer has not joined its group yet")
                member.connection = await self._link.get()
                sent = True
                if may_be_done and action in _AGAIN:
                    return await member.settle(_AGAIN[action], what, argument, reason, writer)
                refused = await member.settle(action, what, argument, reason, writer)
                return [] if may_be_done and action is not Action.EXTEND else refused
            except GoQueueError as error:
                if not error.retriable or self._closed is not None:
                    raise
                failures += 1
                may_be_done |= sent and not isinstance(error, Busy | Draining)
            await asyncio.sleep(backoff_s(failures))

    def _report(self, decisions: list[_Decision], refused: dict[Row, set[int]], twice: bool) -> None:
        """`twice`: some may be named by two decisions of this request, and the second one is refused."""
        if not refused and not twice:
            for decision in decisions:
                receiver = decision.receiver
                if receiver is not None and not receiver.done():
                    receiver.set_result(None)
            return
        error = StaleHandle(_STALE)
        seen: set[tuple[Row, int]] = set()
        for decision in decisions:
            row = decision.row
            bad = refused.get(row, _NONE)
            mine = [offset for offset in decision.offsets if offset in bad or (row, offset) in seen]
            if twice:
                seen.update([(row, offset) for offset in decision.offsets])
            self._answer(decision, mine, error)

    def _refuse(self, decisions: list[_Decision], error: GoQueueError) -> None:
        for decision in decisions:
            self._answer(decision, decision.offsets, error)

    def _answer(self, decision: _Decision, refused: Sequence[int], error: GoQueueError) -> None:
        receiver = decision.receiver
        if receiver is not None:
            if not receiver.done():
                receiver.set_exception(repeat(error)) if len(refused) else receiver.set_result(None)
            return
        delivered = decision.row.delivered
        for offset in refused:
            try:
                self._on_error(
                    Refused(delivered.topic, delivered.partition, offset, decision.action.name.lower(), repeat(error))
                )
            except Exception:
                log.exception("what was told of a refused %s broke", decision.action.name.lower())
