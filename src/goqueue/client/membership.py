"""Being in a group, and staying there: joining, polling for the stock, heartbeats, rebalancing, joining again.

One task polls, joins again, and tells users what was assigned and revoked, one after the other; heartbeats go on beside
it, and wake it up when they bring news. A lost connection, a broker that was killed, a membership that was forgotten:
it connects, joins and goes on. What trying again does not help is raised, out of `keep_polling` or `keep_beating`:
whoever runs these two decides what becomes of that. A topic that was deleted is missed, and waited for. Who must join
again meanwhile does so with the topics that are there, or as soon as there is one (`absence`).

A partition is given up when what was in stock of it went back, users were told, and what they had decided has reached
the broker; heartbeats say meanwhile that it is not finished. It knows nothing of how messages are handed out.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, Final

from goqueue.client import topics
from goqueue.client.absence import Absence
from goqueue.client.connection import Connection
from goqueue.client.fields import by_argument
from goqueue.client.link import Link, backoff_s
from goqueue.client.member import Member, Missed, News
from goqueue.client.messages import Row
from goqueue.client.settling import SettleQueue
from goqueue.client.stock import Stock
from goqueue.model.errors import GoQueueError, InvalidRequest, ProtocolError, UnknownGroup, UnknownMember, UnknownTopic
from goqueue.model.names import partition_name

log = logging.getLogger("goqueue.client")

MAX_WAIT_MS: Final = 5000
"""How long one poll waits at the broker."""
LEAVE_S: Final = 5.0
"""How long who leaves waits for a broker that is away, to give back what was not handed out: else it was tried."""
JOIN_S: Final = 0.2
"""How long who leaves while it joins waits for the answer: the broker may have counted it in already."""
BEAT_S: Final = 1.0
"""How often a member that does not poll asks for news: others wait for what it is to give up."""
LOOK_S: Final = 15.0
"""How often it is looked whether the topics are still there."""
MAX_NOT_UNDERSTOOD: Final = 3
"""Replies in a row: a topic that was created again makes one, and the next one tells its id."""

PartitionsChanged = Callable[[list[str]], Awaitable[None] | None]
"""Told names of partitions, like orders-0."""


class Membership:
    """`fields` are those of the join operation. `wanted` is set when the stock wants something."""

    def __init__(
        self,
        link: Link,
        group: str,
        topics: Sequence[str],
        fields: dict[str, Any],
        *,
        session_s: float,
        stock: Stock,
        settling: SettleQueue,
        wanted: asyncio.Event,
        on_assigned: PartitionsChanged | None,
        on_revoked: PartitionsChanged | None,
        on_absent: Callable[[], object],
        on_missed: Callable[[Missed], object],
    ) -> None:
        self.absence = Absence()
        self._on_absent = on_absent
        self._on_missed = on_missed
        self._left_out: set[str] = set()
        """Topics that it joined without: they were not there."""
        self._is_wider = False
        """Whether one of those was seen since."""
        self.member: Member | None = None
        self._joining: asyncio.Task[Member] | None = None
        self.assigned: list[str] = []
        self.session_s = session_s
        self._link = link
        self._group = group
        self._topics = topics
        self._fields = fields
        self._stock = stock
        self._settling = settling
        self._wanted = wanted
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._loop = asyncio.get_running_loop()
        self._heard: News | None = None
        """The last news that was acted on."""
        self._giving_up: list[str] = []
        """Partitions of which users are being told, or what they had decided is on its way."""
        self._heard_at = 0.0
        self._forgotten: Member | None = None
        """One the broker does not know any more."""
        self._is_polling = False
        """Whether the broker may have a poll of this consumer's whose answer did not arrive."""
        self._is_leaving = False

    # ------------------------------------------------------------------ joining and leaving

    async def join(self, timeout_s: float | None, *, without: Collection[str] = ()) -> None:
        wanted = [topic for topic in self._topics if topic not in without]

        async def once(connection: Connection) -> Member:
            return await Member.join(connection, self._group, wanted, **self._fields)

        self._joining = self._loop.create_task(self._link.insist(once, timeout_s=timeout_s), name="goqueue join")
        try:
            self.member = await asyncio.shield(self._joining)
        except InvalidRequest as error:
            raise by_argument(error, self._fields) from None
        self._joining = None
        self._heard_at = self._loop.time()

    async def _end_joining(self) -> Member | None:
        """Who stops waiting for the answer may be a member all the same, which others would wait for."""
        joining, self._joining = self._joining, None
        if joining is None:
            return None
        await asyncio.wait([joining], timeout=JOIN_S)
        joining.cancel()
        (found,) = await asyncio.gather(joining, return_exceptions=True)
        return found if isinstance(found, Member) else None

    async def leave(self) -> None:
        """Give back what is in stock, and what a poll still brings; gone when all that was decided has its answer."""
        self._is_leaving = True
        member = self.member = await self._end_joining() or self.member
        if member is None:
            return
        await self._settling.flush()  # which waits for a broker that is away
        give_back = True
        try:
            await self._link.insist(self._end_poll, timeout_s=LEAVE_S)
        except GoQueueError:
            give_back = False
        self._stock.clear(give_back=give_back)
        await self._settling.flush()
        member.connection = await self._link.get()
        try:
            await member.leave()
        except (UnknownMember, UnknownGroup):
            pass  # who is forgotten has left

    async def _end_poll(self, connection: Connection) -> None:
        """The broker may still have a poll of ours, which would take what is given back now: a newer one ends it, and
        says that its answer did not arrive.
        """
        member = self.member
        assert member is not None
        member.connection = connection
        if self._is_polling:
            for delivered in await member.poll(max_messages=1, max_bytes=1):
                self._stock.give_back(Row(delivered, self._settling, 0.0))

    async def _rejoin(self) -> None:
        """It was silent for too long. What it had is somebody else's. UnknownTopic when no topic is there."""
        if self.absence.reason is None:
            log.warning("group %s has forgotten this consumer; it joins again", self._group)
        self._stock.clear(give_back=False)
        revoked, self.assigned = self.assigned, []
        await self._revoke(revoked)
        self.absence.begin()
        try:
            await self.join(timeout_s=None)
            self._left_out = set()
        except UnknownTopic:
            self._left_out = {*self._topics} - {*await topics.look_up(self._link, [*self._topics])}
            if self._left_out.issuperset(self._topics):
                raise
            await self.join(timeout_s=None, without=self._left_out)
            log.warning(
                "group %s goes on without %s until it is created again", self._group, ", ".join(sorted(self._left_out))
            )
        self.absence.end(None)

    async def _widen(self) -> None:
        """Join with those topics that are there now. What was left out, and is gone again by then, stays left out."""
        self._is_wider = False
        member = self.member
        assert member is not None
        there = await topics.look_up(self._link, [*self._topics])
        if self._left_out.isdisjoint(there):
            return
        member.connection = await self._link.get()
        try:
            await member.join_again([topic for topic in self._topics if topic in there], **self._fields)
        except UnknownTopic:
            return  # it is a member all the same, with the topics that it had
        self._left_out = {*self._topics} - {*there}

    # ------------------------------------------------------------------ staying

    async def keep_polling(self) -> None:
        """Until it leaves."""
        failures = 0
        while not self._is_leaving:  # a callback may close the consumer
            try:
                if self._forgotten is self.member:
                    await self._rejoin()
                elif self._is_wider:
                    await self._widen()
                elif self._has_news:  # before a poll: that would count it as heard of
                    await self.hear()
                elif self._stock.wants_more:
                    await self._poll()
                else:
                    self._wanted.clear()
                    await self._wanted.wait()
                failures = 0
            except (UnknownMember, UnknownGroup):
                self._forgotten = self.member
            except UnknownTopic as error:
                self.absence.end(error)
                self._on_absent()
                await self.absence.pause()
            except GoQueueError as error:
                failures += 1
                if not error.retriable and not (isinstance(error, ProtocolError) and failures < MAX_NOT_UNDERSTOOD):
                    raise
                log.debug("a poll of group %s failed: %s", self._group, error)
                await asyncio.sleep(backoff_s(failures))

    async def _poll(self) -> None:
        member, stock = self.member, self._stock
        assert member is not None
        seeks = stock.seeks
        member.connection = await self._link.get()
        max_messages, max_bytes = stock.room
        self._is_polling = True
        rows = await member.poll(max_messages=max_messages, max_bytes=max_bytes, max_wait_ms=MAX_WAIT_MS)
        self._is_polling = False
        self._heard_at = self._loop.time()
        stock.store([Row(delivered, self._settling, self._heard_at) for delivered in rows], seeks)
        if self._has_news and not self._is_leaving:  # users hear of a partition before they get its messages
            await self.hear()
        if rows and stock.is_low:  # who waits for them has them before more is asked for
            await asyncio.sleep(0)

    async def keep_beating(self) -> None:
        """Say that the member is there while it does not poll, because it has enough or is paused.

        Not for a program that has not come for messages for long: its partitions are for others then, once the time of
        what it has is over, however that was extended.
        """
        while True:
            beat_s = min(BEAT_S, self.session_s / 4)
            await asyncio.sleep(beat_s / 2)
            member, silent_s = self.member, self._loop.time() - self._heard_at
            if member is None or member is self._forgotten:
                continue
            if silent_s < (self.session_s / 4 if self._is_polling else beat_s):
                continue
            if self._stock.is_asleep and self._loop.time() >= self._settling.extended_until:
                continue
            try:
                member.connection = await self._link.get()
                await member.heartbeat(finishing=self._finishing(member))
                self._heard_at = self._loop.time()
            except (UnknownMember, UnknownGroup):
                self._forgotten = member
            except GoQueueError as error:
                if not error.retriable and member is self.member:
                    raise
                continue
            self._wanted.set()

    async def keep_looking(self) -> None:
        """Say it once when a topic was deleted. It may come again, so that ends nothing; but nothing comes from it."""
        gone: set[str] = set()
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                found = await topics.look_up(self._link, [*self._topics])
            except GoQueueError:
                continue
            before, gone = gone, {*self._topics} - {*found}
            if self._left_out - gone:
                self._is_wider = True
                self._wanted.set()
            for topic in sorted(gone - before):
                log.warning(
                    "topic %s was deleted: a consumer of group %s gets nothing from it until it is created again",
                    topic,
                    self._group,
                )

    def _finishing(self, member: Member) -> list[str]:
        """What it was told to give up, and has still to hear of or to finish."""
        unfinished = {*self.assigned, *self._giving_up}
        return [name for name in member.news.revoke if name in unfinished]

    # ------------------------------------------------------------------ rebalancing

    @property
    def _has_news(self) -> bool:
        return self.member is not None and self.member.news is not self._heard

    async def hear(self) -> None:
        """Act on the last news: partitions that came, and those that are to be given up."""
        member = self.member
        assert member is not None
        heard, self._heard = self._heard, member.news
        news = member.news
        for missed in news.damage:
            try:
                self._on_missed(missed)
            except Exception:
                log.exception("what was told of damaged messages broke")
        for closed in news.incomplete:
            if heard is None or closed not in heard.incomplete:
                name = partition_name(closed.topic, closed.partition)
                log.warning("nothing comes from %s until it is repaired on the broker: %s", name, closed.reason)
        given_up = {*news.revoke}
        kept = [name for name in news.assigned_partitions if name not in given_up]
        had, have = {*self.assigned}, {*kept}
        revoked = [name for name in self.assigned if name not in have]
        added = [name for name in kept if name not in had]
        self.assigned = kept
        if revoked:
            gone = {*revoked}
            self._giving_up = revoked
            self._stock.drop(lambda row: row.name in gone)
            await self._revoke(revoked)
            await self._settling.flush()
            self._giving_up = []
        if heard is not None and heard.topics != news.topics:  # one of them may have been made again
            current = {name: int(topic_id, 16) for name, topic_id in news.topics.items()}
            self._stock.drop(lambda row: current.get(row.delivered.topic) != row.delivered.topic_id)
        if added and self._on_assigned is not None:
            await _tell("on_assigned", self._on_assigned, added)
        if revoked and not self._stock.wants_more:  # else the next poll says it
            member.connection = await self._link.get()
            await member.heartbeat(revoked)

    async def _revoke(self, names: list[str]) -> None:
        if names and self._on_revoked is not None:
            await _tell("on_revoked", self._on_revoked, names)


async def _tell(name: str, callback: PartitionsChanged, names: list[str]) -> None:
    """What goes wrong in there ends the consumer, whatever it is."""
    try:
        outcome = callback([*names])
        if inspect.isawaitable(outcome):
            await outcome
    except Exception as error:
        raise GoQueueError(f"{name} of a consumer raised {type(error).__name__}: {error}") from error
