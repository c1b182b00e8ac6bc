"""What happens while a poll looks, reads or waits: nothing is slept through, leased to ghosts, or starved."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from goqueue.broker.partition import Partition
from goqueue.model.errors import DiskFull, UnknownGroup, UnknownMember
from goqueue.model.groups import Mode
from goqueue.model.record import Lane
from tests.support.loop import turns
from tests.support.moved_time import run_timed
from tests.support.patience import PATIENCE_S
from tests.unit.broker.brokers import Clock
from tests.unit.broker.consumers import (
    GROUP,
    Consumers,
    consuming,
    handle_of,
    handles_of,
    message,
    numbered,
    read_slowly,
    texts,
)

LONG_MS = 3600 * 1000
SECOND_MS = 1000
SHARING = (Mode.SHARED, Mode.KEY)


def during_the_next_read(to: Consumers, monkeypatch: pytest.MonkeyPatch, work: Callable[[], Awaitable[None]]) -> None:
    real = to.broker.reader.read

    async def read(*asked: Any, **more: Any) -> Any:
        monkeypatch.setattr(to.broker.reader, "read", real)
        found = await real(*asked, **more)
        await work()
        return found

    read_slowly(to, monkeypatch, read)


# --- nothing is slept through


def test_what_an_overtaken_poll_puts_back_the_newer_one_gets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            member = (await to.join("a")).member_id
            to.put("a")
            begun, gate, real = asyncio.Event(), asyncio.Event(), to.broker.reader.read

            async def read(*asked: Any, **more: Any) -> Any:
                begun.set()
                await gate.wait()
                return await real(*asked, **more)

            read_slowly(to, monkeypatch, read)
            older = asyncio.ensure_future(to.poll(member))
            await begun.wait()
            newer = asyncio.ensure_future(to.poll(member, timeout_ms=LONG_MS))
            await turns()
            gate.set()
            assert texts(await older) == []
            assert texts(await newer) == ["a"], "no time passes here by itself"

    run_timed(go())


def test_what_becomes_ready_while_a_poll_looks_elsewhere_wakes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(partitions=2)
            member = (await to.join()).member_id
            to.put("a")
            polled = await to.poll(member)
            to.put("b", partition=1)
            await to.poll(member)
            attendant, looks = to.broker.poller._attendant, asyncio.Event()
            real = attendant.staged

            async def staged(group: Any, partition: Partition, want: int) -> Any:
                if partition.number == 1:
                    await looks.wait()  # for a view, from the disk
                return await real(group, partition, want)

            monkeypatch.setattr(attendant, "staged", staged)
            await to.nack(handle_of(polled, "a"), delay_ms=SECOND_MS)
            waiting = asyncio.ensure_future(to.poll(member, timeout_ms=20 * SECOND_MS))
            await turns()
            await to.pass_by(SECOND_MS)
            looks.set()
            assert texts(await waiting) == ["a"]

    run_timed(go())


def test_what_is_due_wakes_polls_also_when_a_lapse_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            first = (await to.join("a", mode=Mode.SHARED)).member_id
            second = (await to.join("b", mode=Mode.SHARED)).member_id
            to.put("held")
            await to.poll(first, visibility_ms=SECOND_MS)
            to.delay("late", by_ms=SECOND_MS - 10)
            waiting = await to.parked(second)

            def refuse(*_: Any) -> Any:
                raise DiskFull("no space")

            monkeypatch.setattr(to.broker.alarms, "_write", refuse)
            await to.pass_by(SECOND_MS)
            assert texts(await waiting) == ["late"]

    run_timed(go())


@pytest.mark.parametrize("mode", list(Mode))
def test_a_poll_that_waits_has_what_comes_into_a_new_partition(tmp_path: Path, mode: Mode) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            member = (await to.join(mode=mode)).member_id
            await to.poll(member)
            waiting = await to.parked(member)
            await to.grow(2)
            await turns()
            if waiting.done():  # it was told of the new partition
                waiting = await to.parked(member)
            to.put("a", partition=1)
            assert texts(await waiting) == ["a"]

    run_timed(go())


@pytest.mark.parametrize("fails", [False, True])
def test_a_topic_that_is_opened_late_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    clock = Clock()

    async def go() -> None:
        async with consuming(tmp_path, clock=clock) as to:
            await to.create()
            member = (await to.join(session_ms=LONG_MS)).member_id
            to.put("held")
            await to.poll(member)
            to.delay("late", by_ms=SECOND_MS)
        real, failures = Partition.open, [DiskFull("no space")] if fails else []

        def open_(*asked: Any, **more: Any) -> Any:
            if failures:
                raise failures.pop()
            return real(*asked, **more)

        monkeypatch.setattr(Partition, "open", open_)
        async with consuming(tmp_path, clock=clock) as to:
            await to.broker._housekeeping.tick()
            await to.followed()
            for _ in range(3):
                await to.poll(member)
            waiting = await to.parked(member)
            await to.pass_by(SECOND_MS + 10)
            assert texts(await waiting) == ["late"]

    run_timed(go())


# --- nobody is served who is not there


@pytest.mark.parametrize("mode", SHARING)
def test_a_member_that_leaves_while_its_poll_reads_is_given_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            first = (await to.join("a", mode=mode)).member_id
            second = (await to.join("b", mode=mode)).member_id
            to.put("a")
            turn = await to.park(first, 0)
            during_the_next_read(to, monkeypatch, lambda: to.leave(first))
            with pytest.raises(UnknownMember):
                await to.take(first, turn)
            assert await to.texts(second) == ["a"]

    run_timed(go())


@pytest.mark.parametrize("mode", list(Mode))
def test_a_group_that_is_deleted_while_a_poll_reads_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            member = (await to.join(mode=mode)).member_id
            to.put("a")
            turn = await to.park(member, 0)

            async def delete() -> None:
                await to.leave(member)
                await to.broker.groups.delete(GROUP)

            during_the_next_read(to, monkeypatch, delete)
            with pytest.raises(UnknownGroup):
                await to.take(member, turn)
            assert to.deliveries().groups == []

    run_timed(go())


def test_a_late_ack_while_a_poll_reads_takes_only_that_message_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            member = (await to.join()).member_id
            to.put("a")
            polled = await to.poll(member, visibility_ms=SECOND_MS)
            await to.pass_by(SECOND_MS + 10)
            to.put("b", "c")

            async def ack() -> None:
                await to.ack(*handles_of(polled))

            during_the_next_read(to, monkeypatch, ack)
            assert await to.texts(member) == ["b", "c"]

    run_timed(go())


# --- nobody starves, and nothing stands still


@pytest.mark.parametrize("mode", list(Mode))
def test_critical_messages_of_one_partition_do_not_starve_another(tmp_path: Path, mode: Mode) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(partitions=2)
            member = (await to.join(mode=mode, session_ms=LONG_MS)).member_id
            to.put("normal", partition=1)
            found: list[str] = []
            for second in range(40):
                to.send(*(message(f"c{second}", lane=Lane.CRITICAL) for _ in range(20)))
                polled = await to.poll(member, max_messages=10)
                found += texts(polled)
                await to.ack(*handles_of(polled))
                await to.pass_by(SECOND_MS)
            assert "normal" in found
            assert "normal" not in found[: 10 * 25], "what is critical came first"

    run_timed(go())


@pytest.mark.parametrize("mode", list(Mode))
def test_a_partition_is_not_urgent_for_what_was_critical_once(tmp_path: Path, mode: Mode) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(partitions=2)
            member = (await to.join(mode=mode, session_ms=LONG_MS)).member_id
            to.send(message("c", lane=Lane.CRITICAL))
            polled = await to.poll(member)
            await to.ack(*handles_of(polled))
            to.put(*numbered(50))
            to.put(*numbered(50, 100), partition=1)
            seen = set()
            for _ in range(2):
                polled = await to.poll(member, max_messages=10)
                await to.ack(*handles_of(polled))
                seen |= {row.partition for row in polled.rows}
            assert seen == {0, 1}, "they take turns"

    run_timed(go())


def test_critical_messages_that_lie_far_apart_come_before_others_that_do(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            member = (await to.join(max_unacked=50_000)).member_id
            for _ in range(10):
                to.send(*(message("n" + "v" * 10_000) if at % 10 == 0 else late() for at in range(400)))
            to.send(message("c1", lane=Lane.CRITICAL), *(late() for _ in range(50)), message("c2", lane=Lane.CRITICAL))
            assert texts(await to.poll(member, max_messages=500))[:2] == ["c1", "c2"]

    def late() -> Any:
        return message("late", deliver_at=-LONG_MS)

    run_timed(go())


@pytest.mark.parametrize("room", [1, 2])
def test_what_became_ready_in_more_segments_than_have_room_in_memory_comes(tmp_path: Path, room: int) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(segment_bytes=8192)
            member = (await to.join(session_ms=LONG_MS)).member_id
            await to.poll(member)
            for text in numbered(60):
                to.delay(text + "v" * 500, by_ms=60 * SECOND_MS)
            log, cache = to.partition().log, to.broker.store._cache
            log.sync()
            await asyncio.sleep(0.1)
            assert len(log.segments) > 3
            cache._limit = room * max(segment.derived.size for segment in log.segments if segment.derived)
            await to.pass_by(60 * SECOND_MS + 10)
            for segment in log.segments[:-1]:
                cache.drop(segment)
                segment.derived = None
            async with asyncio.timeout(PATIENCE_S):
                assert len(await to.drain(member)) == 60

    run_timed(go())


def test_in_key_mode_a_burst_of_due_messages_is_read_in_slices(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            member = (await to.join(mode=Mode.KEY, session_ms=LONG_MS, max_unacked=50_000)).member_id
            await to.poll(member)
            late = [message(f"k{at % 500}:{at}", key=f"k{at % 500}", deliver_at=-SECOND_MS) for at in range(5000)]
            to.send(*late)
            await to.pass_by(SECOND_MS + 10)
            await turns()
            gathers = 0
            reader = to.broker.reader
            real = reader.gather

            async def gather(*asked: Any, **more: Any) -> Any:
                nonlocal gathers
                gathers += 1
                return await real(*asked, **more)

            reader.gather = gather  # type: ignore[method-assign]
            assert len(await to.texts(member, max_messages=10)) == 10
            assert gathers <= 2
            done: dict[str, list[int]] = {}
            await to.pass_by(31 * SECOND_MS)
            while (polled := await to.poll(member, max_messages=500)).rows:
                for text in texts(polled):
                    key, number = text.split(":")
                    done.setdefault(key, []).append(int(number))
                await to.ack(*handles_of(polled))
            assert all(numbers == sorted(numbers) for numbers in done.values())
            assert sum(map(len, done.values())) == len(late)

    run_timed(go())


def test_alarms_forget_partitions_of_topics_that_are_gone(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            to.delay("late", by_ms=LONG_MS)
            assert len(to.broker.alarms._deadlines) == 1
            await to.delete()
            assert len(to.broker.alarms._deadlines) == 0

    run_timed(go())
