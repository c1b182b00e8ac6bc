"""A member that works: poll, work, commit, and write down everything it sees.

It does what a member should: it commits what it was delivered before it goes on after a revoke, or, if it is always
some replies behind, soon afterwards: a partition is its own until everything is settled. Commits name the generation it
was told last and the reply they are about. What has no answer stays under way, and is committed again on the next
connection.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from goqueue.model.errors import GoQueueError, NotOwner, RequestTimeout, Unavailable, UnknownMember
from tests.support.group_doors import Batch, Door, Standing
from tests.support.group_ledger import (
    DONE,
    LEFT,
    NO_ANSWER,
    Answered,
    AnyEvent,
    Committing,
    Ended,
    Joined,
    Received,
    Released,
    Told,
)

WAIT_MS: Final = 500
"""How long a poll waits."""
now: Final = time.monotonic_ns


class Consumer:
    """Made with a door that is not open yet."""

    def __init__(
        self,
        door: Door,
        write: Callable[[AnyEvent], None],
        *,
        work_s: float = 0.0,
        behind: int = 0,
        beats: bool = False,
        **fields: Any,
    ) -> None:
        """`behind`: how many more replies it takes before it commits one; `beats`: it gives up by heartbeat.

        `fields` are those of a join.
        """
        self._door = door
        self._write = write
        self._work_s = work_s
        self._behind = behind
        self._beats = beats
        self._fields = fields
        self._standing = Standing("", 0, (), ())
        self._since: dict[int, tuple[int, int]] = {}
        """By partition: between which generations it got it."""
        self._is_acknowledged = True
        self.held: dict[int, int] = {}
        """By partition: up to where it has received and not settled."""
        self._replies: list[tuple[dict[int, int], int]] = []
        """The last ones, that brought messages or not: up to where, by partition, and their numbers."""
        self._number = 0
        """Of the last reply that brought messages."""
        self._commits = 0
        self._is_leaving = False

    @property
    def member_id(self) -> str:
        return self._standing.member_id

    # --- coming and going

    async def join(self) -> None:
        await self._door.open()
        standing = await self._door.join(**self._fields)
        self._since.clear()
        self.held.clear()
        self._replies.clear()
        self._write(Joined(now(), standing.member_id, standing.generation, self._fields.get("instance_id")))
        self._standing = Standing("", 0, (), ())
        self._hear(standing)

    async def reconnect(self) -> None:
        await self._door.open()

    def forget(self) -> None:
        """It is no member any more, and joins as another one."""
        self._standing = Standing("", 0, (), ())
        self.held.clear()
        self._replies.clear()

    async def leave(self) -> None:
        """In order: everything is settled first. May be called again when there was no answer."""
        while self.held:
            await self.commit()
        if not self._is_leaving:
            self._is_leaving = True
            self._write(Ended(now(), LEFT))
            await self._door.leave()
        else:
            with suppress(UnknownMember):  # then only the answer was lost
                await self._door.leave()
        await self._door.close()

    async def stop(self, how: str, *, hang_up: bool) -> None:
        """Say nothing to the broker; whether it notices that the connection is gone is another matter."""
        self._write(Ended(now(), how))
        if hang_up:
            await self._door.close()

    async def close(self) -> None:
        await self._door.close()

    # --- working

    async def step(self) -> None:
        """One poll and what follows from it. Raises what the broker, or the connection, does to it."""
        await self._catch_up()  # what had no answer on the last connection
        standing = self._standing
        count = await self.take()
        if self._work_s and count:
            await asyncio.sleep(self._work_s)
        if not count and standing == self._standing:
            await self.commit()  # nothing happens: no reason to wait
        else:
            await self._catch_up()

    async def _catch_up(self) -> None:
        while len(self._replies) > self._behind:
            offsets, number = self._replies[0]
            await self._commit(offsets, received=number)
            self._replies.pop(0)

    async def take(self) -> int:
        """One poll: how many messages it brought. They are held."""
        if not self._is_acknowledged:
            self._is_acknowledged = True
            self._write(Released(now(), self._standing.revoke))
            if self._beats:
                self._hear(await self._door.heartbeat())
        standing, batches = await self._door.poll(WAIT_MS)
        at = now()
        self._hear(standing)
        for batch in batches:
            self._receive(batch, at)
            self._number = batch.poll
        self._replies.append(({batch.partition: batch.end for batch in batches}, self._number))
        return sum(batch.end - batch.first for batch in batches)

    def _hear(self, standing: Standing) -> None:
        if standing == self._standing:
            return
        has = {*standing.assigned, *standing.revoke}
        for partition in has - self._since.keys():
            self._since[partition] = (self._standing.generation + 1, standing.generation)
        for partition in self._since.keys() - has:
            del self._since[partition]
        if standing[2:] != self._standing[2:]:
            self._is_acknowledged = not standing.revoke
            self._write(Told(now(), standing.generation, standing.assigned, standing.revoke))
        self._standing = standing

    def _receive(self, batch: Batch, at: int) -> None:
        low, high = self._since.get(batch.partition, (0, 0)) if batch.epoch is None else (batch.epoch, batch.epoch)
        generation = max(high, self._standing.generation if batch.epoch is None else 0)
        self._write(Received(at, batch.partition, low, high, generation, batch.first, batch.end, batch.deliveries))
        self.held[batch.partition] = max(batch.end, self.held.get(batch.partition, 0))

    async def commit(self) -> None:
        """Settle everything that is held. A refusal is written down, and no error here."""
        await self._commit(dict(self.held), received=self._number)
        self._replies.clear()

    async def _commit(self, offsets: dict[int, int], *, received: int) -> None:
        if not offsets:
            return
        self._commits += 1
        number = self._commits
        self._write(Committing(now(), number, offsets))
        code, refused = DONE, tuple[int, ...]()
        try:
            await self._door.commit(offsets, generation=self._standing.generation, received=received)
        except (Unavailable, RequestTimeout):
            self._write(Answered(now(), number, NO_ANSWER))
            raise
        except GoQueueError as error:
            code, refused = error.code, _refused(error, offsets)
        self._write(Answered(now(), number, code, refused))
        for partition, offset in offsets.items():
            if self.held.get(partition) == offset:
                del self.held[partition]

    async def run(self, until: asyncio.Event) -> None:
        while not until.is_set():
            await self.step()


def _refused(error: GoQueueError, offsets: dict[int, int]) -> tuple[int, ...]:
    if not isinstance(error, NotOwner):
        return ()
    with suppress(AttributeError):
        return tuple(int(name.rpartition("-")[2]) for name in error.refused)
    return tuple(offsets)
