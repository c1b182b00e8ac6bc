"""Bytes in flight, bounded: the one ticket everything large must have on its way through the broker.

A door takes bytes before it holds them and gives them back when it no longer does. When none are left it
stops reading its sockets, or answers `busy`. Requests and replies have budgets of their own, so that clients who
do not read their replies cannot keep others from publishing.

What is taken is a `Ticket`. Giving one back cannot fail, and needs to look up nothing. A ticket that was dropped
without being given back shows a bug: `reclaim` finds it, gives it back all the same, and counts it.
"""

import asyncio
from collections import deque
from time import monotonic
from typing import Final, NamedTuple

from goqueue.model.errors import Busy


class _Share(NamedTuple):
    """A ticket's part of one budget."""

    budget: "Admission"
    number: int
    size: int


class Ticket:
    """Bytes that were taken. Whoever has it last gives it back; giving it back again does nothing."""

    __slots__ = ("_shares",)

    def __init__(self, shares: tuple[_Share, ...] = ()) -> None:
        self._shares = shares

    @property
    def size(self) -> int:
        return sum([share.size for share in self._shares])

    def give(self) -> None:
        """Back to where it was taken from."""
        shares, self._shares = self._shares, ()
        for budget, number, size in shares:
            budget.give(number, size)

    def hand_over(self) -> "Ticket":
        """Move the bytes to a new ticket, which the caller must give back."""
        return NOTHING.plus(self)

    def plus(self, other: "Ticket") -> "Ticket":
        """One for both, which have nothing from now on."""
        both = Ticket(self._shares + other._shares)
        self._shares = other._shares = ()
        return both

    def __del__(self) -> None:  # in any thread: that of a garbage collection is nobody's choice
        for budget, number, size in self._shares:
            budget.dropped.append((number, size))


NOTHING: Final = Ticket()
"""The empty ticket, for zero bytes."""


class Admission:
    """First come, first served. Used from one event loop."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self.lost = 0
        """Bytes that nobody gave back, all in all; `reclaim` did."""
        self.dropped: deque[tuple[int, int]] = deque()
        """Number and size of each ticket that was dropped."""
        self._waiting: deque[tuple[int, asyncio.Future[Ticket]]] = deque()
        self._taken = 0
        self._since: dict[int, float] = {}
        """When each ticket was taken, by its number: the oldest first."""

    def try_take(self, size: int) -> Ticket | None:
        """A ticket for `size` bytes, or None if there are not so many now."""
        if size and (self._waiting or self.held + size > self.limit):
            return None
        return self.take_anyway(size)

    def take_anyway(self, size: int) -> Ticket:
        """For bytes that are here already: others wait the longer."""
        if not size:
            return NOTHING
        self.held += size
        self._taken += 1
        self._since[self._taken] = monotonic()
        return Ticket((_Share(self, self._taken, size),))

    async def take(self, size: int, *, timeout_s: float) -> Ticket:
        """Wait for `size` bytes; Busy when they do not come in time."""
        ticket = self.try_take(size)
        if ticket is not None:
            return ticket
        if size > self.limit:
            raise Busy(f"{size} bytes are more than the {self.limit} that may be in flight; send less at a time")
        future: asyncio.Future[Ticket] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, future))
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except BaseException as error:
            if future.done() and not future.cancelled():  # served, but nobody is here any more to take it
                future.result().give()
            self._waiting = deque(entry for entry in self._waiting if entry[1] is not future)
            self._serve()
            if isinstance(error, TimeoutError):
                raise Busy(f"{self.held} bytes are in flight already, the most there may be; try again") from None
            raise

    def give(self, number: int, size: int) -> None:
        """What a ticket was taken for. Tickets do it."""
        self.held -= size
        del self._since[number]
        if self._waiting:
            self._serve()

    def reclaim(self) -> int:
        """Give back what was taken by somebody who is gone without having done so; how many bytes that were."""
        found = 0
        while self.dropped:
            number, size = self.dropped.popleft()
            self.give(number, size)
            found += size
        self.lost += found
        return found

    @property
    def oldest_s(self) -> float:
        """How long ago the oldest ticket was taken that is not given back; 0 if all are."""
        since = next(iter(self._since.values()), None)
        return 0.0 if since is None else monotonic() - since

    def _serve(self) -> None:
        while self._waiting:
            size, future = self._waiting[0]
            if future.done():
                self._waiting.popleft()
                continue
            if self.held + size > self.limit:
                return
            self._waiting.popleft()
            future.set_result(self.take_anyway(size))


async def take_both(
    own: Admission, shared: Admission, size: int, *, own_timeout_s: float, shared_timeout_s: float
) -> Ticket:
    """One ticket for `size` bytes of each; Busy, and nothing taken, when either does not come in time."""
    ticket = await own.take(size, timeout_s=own_timeout_s)
    try:
        return ticket.plus(await shared.take(size, timeout_s=shared_timeout_s))
    except BaseException:
        ticket.give()
        raise
