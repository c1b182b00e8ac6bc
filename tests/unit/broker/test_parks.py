"""Polls that wait, and what sends them home."""

import asyncio
import threading
from collections.abc import Iterable

import pytest

from goqueue.base.mark import Mark
from goqueue.broker.parks import Parks
from goqueue.groups.group import Group, Member
from goqueue.groups.records import MemberJoined
from goqueue.model.errors import LogClosed
from goqueue.model.groups import Assignor, Mode
from goqueue.model.names import GroupNumber
from tests.support.loop import turns
from tests.support.moved_time import MovedTime, run_timed

LONG_S = 3600.0


class Rig:
    """A group of two, and the place where they wait."""

    def __init__(self) -> None:
        self.parks = Parks()
        self.time = MovedTime()
        self.group = Group(GroupNumber(1), "billing", Mode.PARTITION, Assignor.STICKY)
        self.first, self.second = self.add("a"), self.add("b")

    def add(self, member_id: str) -> Member:
        joined = MemberJoined(
            group=self.group.number,
            member_id=member_id,
            client_id=member_id,
            topics=("orders",),
            session_ms=1000,
            rebalance_ms=1000,
        )
        member = self.group.members[member_id] = Member(joined, 0)
        return member

    async def wait(self, member: Member, *marks: tuple[Mark, int], timeout_s: float = LONG_S) -> "asyncio.Task[bool]":
        deadline = self.parks.deadline(timeout_s)
        task = asyncio.ensure_future(self.parks.wait(self.group, member, marks, deadline, self.parks.rung))
        await turns()
        return task


async def ended(*tasks: "asyncio.Task[bool]") -> Iterable[bool]:
    """Which of them are through."""
    await turns()
    return tuple(task.done() for task in tasks)


def test_a_mark_that_moves_far_enough_ends_the_wait() -> None:
    async def go() -> None:
        rig = Rig()
        one, other = Mark(5), Mark(7)
        task = await rig.wait(rig.first, (one, 6), (other, 9))
        other.advance(8)
        assert await ended(task) == (False,)
        one.advance(6)
        assert await ended(task) == (True,)
        assert task.result(), "there is time left to wait again"
        assert (one.waiting, other.waiting) == (0, 0), "it leaves nothing behind"

    run_timed(go())


def test_a_mark_that_is_there_already_or_fails_ends_the_wait() -> None:
    async def go() -> None:
        rig = Rig()
        gone = Mark(0)
        waiting = await rig.wait(rig.first, (gone, 1))
        gone.fail(LogClosed("the topic was deleted"))
        assert await ended(waiting, await rig.wait(rig.first, (Mark(5), 5))) == (True, True)

    run_timed(go())


def test_a_mark_may_be_moved_by_another_thread() -> None:
    async def go() -> None:
        rig = Rig()
        mark = Mark(0)
        task = await rig.wait(rig.first, (mark, 1))
        thread = threading.Thread(target=mark.advance, args=(1,))
        thread.start()
        await task
        thread.join()

    run_timed(go())


def test_the_time_is_up_when_it_is_up() -> None:
    async def go() -> None:
        rig = Rig()
        task = await rig.wait(rig.first, timeout_s=20)
        rig.time.move(19_000)
        assert await ended(task) == (False,)
        rig.time.move(1_000)
        assert await ended(task) == (True,)
        assert not task.result(), "there is no time left"

    run_timed(go())


def test_who_has_no_time_does_not_wait() -> None:
    async def go() -> None:
        rig = Rig()
        for timeout_s in (0.0, -5.0):
            task = await rig.wait(rig.first, timeout_s=timeout_s)
            assert task.done()
            assert not task.result()
        assert rig.first.parked == 0

    run_timed(go())


def test_a_wait_goes_on_until_the_same_deadline_however_often_it_is_ended() -> None:
    async def go() -> None:
        rig = Rig()
        deadline = rig.parks.deadline(20)
        for passed_ms in (5_000, 14_000):
            waiting = asyncio.ensure_future(rig.parks.wait(rig.group, rig.first, (), deadline, rig.parks.rung))
            await turns()
            rig.time.move(passed_ms)
            rig.parks.wake_group(rig.group.number)
            assert await waiting
        last = asyncio.ensure_future(rig.parks.wait(rig.group, rig.first, (), deadline, rig.parks.rung))
        await turns()
        rig.time.move(1_000)
        assert not await last

    run_timed(go())


def test_one_member_can_be_woken() -> None:
    async def go() -> None:
        rig = Rig()
        first, second = await rig.wait(rig.first), await rig.wait(rig.second)
        rig.parks.wake_member(GroupNumber(2), "b")
        rig.parks.wake_member(rig.group.number, "nobody")
        assert await ended(first, second) == (False, False)
        rig.parks.wake_member(rig.group.number, "b")
        assert await ended(first, second) == (False, True)
        assert rig.parks.groups == [rig.group.number], "one of it still waits"

    run_timed(go())


def test_a_newer_poll_of_the_same_member_sends_the_older_one_home() -> None:
    async def go() -> None:
        rig = Rig()
        older = await rig.wait(rig.first)
        other = await rig.wait(rig.second)
        newer = await rig.wait(rig.first)
        assert await ended(older, other, newer) == (True, False, False)
        rig.first.version += 1
        rig.parks.wake_changed(rig.group)
        assert await ended(other, newer) == (False, True), "the newer one is the one that waits"

    run_timed(go())


def test_news_wake_whom_they_concern() -> None:
    async def go() -> None:
        rig = Rig()
        first, second = await rig.wait(rig.first), await rig.wait(rig.second)
        rig.parks.wake_changed(rig.group)
        assert await ended(first, second) == (False, False)
        rig.second.version += 1
        rig.parks.wake_changed(rig.group)
        assert await ended(first, second) == (False, True)

    run_timed(go())


@pytest.mark.parametrize("replaced", [False, True])
def test_a_member_that_is_no_longer_in_the_group_does_not_wait(replaced: bool) -> None:
    async def go() -> None:
        rig = Rig()
        first, second = await rig.wait(rig.first), await rig.wait(rig.second)
        if replaced:
            rig.add("a")
        else:
            del rig.group.members["a"]
        rig.parks.wake_changed(rig.group)
        assert await ended(first, second) == (True, False)

    run_timed(go())


def test_a_whole_group_can_be_woken() -> None:
    async def go() -> None:
        rig = Rig()
        tasks = await rig.wait(rig.first), await rig.wait(rig.second)
        rig.parks.wake_group(GroupNumber(2))
        assert await ended(*tasks) == (False, False)
        rig.parks.wake_group(rig.group.number)
        assert await ended(*tasks) == (True, True)
        assert len(rig.parks) == 0

    run_timed(go())


def test_a_member_counts_as_parked_while_it_waits_whatever_ends_that() -> None:
    async def go() -> None:
        rig = Rig()
        mark = Mark(0)
        older, newer = await rig.wait(rig.first, (mark, 1)), await rig.wait(rig.first, (mark, 1))
        assert older.done()
        assert (rig.first.parked, rig.second.parked, len(rig.parks)) == (1, 0, 1)
        newer.cancel()
        await turns()
        assert newer.cancelled()
        assert (rig.first.parked, len(rig.parks), mark.waiting) == (0, 0, 0)

    run_timed(go())


def test_when_the_broker_stops_nobody_waits_any_more() -> None:
    async def go() -> None:
        rig = Rig()
        tasks = await rig.wait(rig.first), await rig.wait(rig.second)
        rig.parks.close()
        late = await rig.wait(rig.first)
        assert await ended(*tasks, late) == (True, True, True)
        assert not any(task.result() for task in (*tasks, late)), "nobody is to wait again"
        assert (rig.first.parked, len(rig.parks)) == (0, 0)

    run_timed(go())
