"""Polls that wait: for a message in one of their partitions, for news about the group, or for their time to be up.

A poll that waits holds a place here, a callback on each mark it watches, and one timer; nothing runs until one of them
calls. A member waits once: a newer poll of the same member sends the older one home.
"""

import asyncio
from collections.abc import Iterable
from threading import get_ident

from goqueue.base.mark import Mark
from goqueue.groups.group import Group, Member
from goqueue.model.names import GroupNumber


class Park:
    """One poll that waits."""

    __slots__ = ("_future", "_loop", "_thread", "member", "version")

    def __init__(self, member: Member) -> None:
        self.member = member
        self.version = member.version
        self._loop = asyncio.get_running_loop()
        self._thread = get_ident()
        self._future: asyncio.Future[None] = self._loop.create_future()

    def wake(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    def wake_from_anywhere(self, error: Exception | None) -> None:
        """A mark moved, or failed: appends happen on the loop, other things elsewhere."""
        if get_ident() == self._thread:
            self.wake()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.wake)

    async def wait(self, marks: Iterable[tuple[Mark, int]], deadline: float) -> None:
        """Until one of the marks reaches its threshold, somebody wakes it, or the time is up."""
        waiters = [mark.when(threshold, self.wake_from_anywhere) for mark, threshold in marks]
        timer = self._loop.call_at(deadline, self.wake)
        try:
            await self._future
        finally:
            timer.cancel()
            for waiter in waiters:
                waiter.cancel()


class Parks:
    """All that wait, by group and member."""

    def __init__(self) -> None:
        self._by_group: dict[GroupNumber, dict[str, Park]] = {}
        self._closed = False
        self.rung = 0
        """How often something became ready that no mark tells of, for anybody."""

    def __len__(self) -> int:
        return sum(map(len, self._by_group.values()))

    def deadline(self, timeout_s: float) -> float:
        return asyncio.get_running_loop().time() + timeout_s

    async def wait(
        self, group: Group, member: Member, marks: Iterable[tuple[Mark, int]], deadline: float, rung: int
    ) -> bool:
        """While it waits the member is there: its session does not end. False when the time is up.

        `rung` is from before it was found that there is nothing: what became ready since is not slept through.
        """
        if self._closed or asyncio.get_running_loop().time() >= deadline:
            return False
        if self.rung != rung:
            return True
        self.send_home(group, member)
        parks = self._by_group.setdefault(group.number, {})
        park = parks[member.member_id] = Park(member)
        member.parked += 1
        try:
            await park.wait(marks, deadline)
        finally:
            member.parked -= 1
            if parks.get(member.member_id) is park:
                del parks[member.member_id]
                if not parks:
                    self._by_group.pop(group.number, None)
        return not self._closed and asyncio.get_running_loop().time() < deadline

    def send_home(self, group: Group, member: Member) -> None:
        """The member polls anew: an earlier poll of it need not wait any more."""
        earlier = self._by_group.get(group.number, {}).get(member.member_id)
        if earlier is not None:
            earlier.wake()

    def wake_member(self, number: GroupNumber, member_id: str) -> None:
        """It may hold more than before."""
        self.rung += 1
        park = self._by_group.get(number, {}).get(member_id)
        if park is not None:
            park.wake()

    def wake_changed(self, group: Group) -> None:
        """Wake members for whom there is news, or who are no longer in the group."""
        for member_id, park in list(self._by_group.get(group.number, {}).items()):
            if group.members.get(member_id) is not park.member or park.version != park.member.version:
                park.wake()

    def wake_group(self, number: GroupNumber) -> None:
        """Wake all of a group: something is ready that no mark tells of."""
        self.rung += 1
        for park in list(self._by_group.get(number, {}).values()):
            park.wake()

    @property
    def groups(self) -> list[GroupNumber]:
        """Those of which somebody waits."""
        return list(self._by_group)

    def close(self) -> None:
        """Send everybody home; nobody waits any more."""
        self._closed = True
        for number in list(self._by_group):
            self.wake_group(number)
