"""Delayed messages: never early, never lost, and what can be done with them before they are due."""

import asyncio
from pathlib import Path
from random import Random

import pytest

from goqueue.broker.delayed import DelayState
from goqueue.broker.topic import OpenTopic
from goqueue.model import limits
from goqueue.model.errors import AlreadyDelivered, Conflict, UnknownDelay, UnknownPartition
from goqueue.model.groups import Mode
from goqueue.model.record import Lane
from goqueue.model.settings import Fsync
from tests.support.loop import turns
from tests.support.moved_time import run_timed
from tests.unit.broker.brokers import T0, Clock
from tests.unit.broker.consumers import (
    SESSION_MS,
    Consumers,
    consuming,
    deliveries_of,
    handles_of,
    message,
    numbered,
    texts,
)
from tests.unit.broker.images import PhotographedDisk
from tests.unit.broker.test_poll import consume

TICK_MS = 10
"""How late a message may be: one tick of the wheel."""
HOUR_MS = 3600 * 1000
DAY_MS = 24 * HOUR_MS
LONG_MS = limits.MAX_SESSION_MS


def topic(to: Consumers) -> OpenTopic:
    return to.broker.topics.named("orders")


async def listed(to: Consumers, *, skip: int = 0, limit: int = 1000) -> list[tuple[int, int]]:
    """Partition and offset of those that are pending."""
    found, _, _ = await to.broker.delayed.list(topic(to), skip=skip, limit=limit)
    assert all(one.state is DelayState.PENDING for one in found)
    return [(one.partition, one.record.offset) for one in found]


async def consumed(to: Consumers, member: str) -> list[str]:
    """What a poll brings; it is acked."""
    polled = await to.poll(member)
    await to.ack(*handles_of(polled))
    return texts(polled)


async def cancel(to: Consumers, offset: int, partition: int = 0) -> None:
    await to.broker.delayed.cancel(topic(to), partition, offset)


async def move(to: Consumers, offset: int, deliver_at: int, partition: int = 0) -> None:
    moved = await to.broker.delayed.move(topic(to), partition, offset, deliver_at)
    assert (moved.deliver_at, moved.record.offset) == (max(deliver_at, to.clock()), offset)


async def state(to: Consumers, offset: int, partition: int = 0) -> DelayState:
    return (await to.broker.delayed.get(topic(to), partition, offset)).state


# --- when they come


def test_a_delayed_message_comes_when_it_is_due_and_not_before(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.delay("late", by_ms=5000)
        to.put("now")
        assert await to.texts(member) == ["now"]
        await to.pass_by(4999)
        assert await to.texts(member) == []
        await to.pass_by(1 + TICK_MS)
        polled = await to.poll(member)
        assert (texts(polled), deliveries_of(polled)) == (["late"], [1])

    consume(tmp_path, scenario)


def test_a_poll_that_waits_has_a_delayed_message_when_it_is_due(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.delay("late", by_ms=5000)
        waiting = await to.parked(member)
        await to.pass_by(4999)
        assert not waiting.done()
        await to.pass_by(1 + TICK_MS)
        assert texts(await waiting) == ["late"]

    consume(tmp_path, scenario)


@pytest.mark.parametrize("delay_ms", [1, 9, 10, 2559, 2560, 163_840, 10_485_760, 671_088_640, 3 * 671_088_640])
def test_whatever_the_delay_it_is_never_early_and_never_a_tick_late(tmp_path: Path, delay_ms: int) -> None:
    """Around the borders of the wheel's levels, and beyond its last."""

    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(retention_hours=None)
            to.delay("late", by_ms=delay_ms)
            await to.pass_by(delay_ms - 1)
            member = (await to.join(session_ms=LONG_MS)).member_id
            assert await to.texts(member) == []
            await to.pass_by(1 + TICK_MS)
            assert await to.texts(member) == ["late"]

    run_timed(go())


def test_a_time_that_has_passed_is_at_once(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.send(message("past", deliver_at=T0 - DAY_MS), message("now", deliver_at=T0), message("zero", deliver_at=0))
        assert await to.texts(member) == ["past", "now", "zero"]
        assert await listed(to) == []

    consume(tmp_path, scenario)


def test_they_come_in_the_order_of_their_times_and_hold_up_nobody(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        for text, by_ms in (("c", 3000), ("a", 1000), ("b", 2000)):
            to.delay(text, by_ms=by_ms)
        to.put("x")
        assert await to.texts(member) == ["x"]
        for text in ("a", "b", "c"):
            await to.pass_by(1000 + TICK_MS // 3)
            assert await to.texts(member) == [text]
        await to.commit(member, 4)
        assert await to.offsets() == {"orders": {0: 4}}

    consume(tmp_path, scenario)


def test_each_group_gets_them(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            to.put("first")
            to.delay("late", by_ms=5000)
            groups = {}
            for group in ("one", "two"):
                groups[group] = (await to.join(group=group, session_ms=LONG_MS)).member_id
                assert await to.texts(groups[group], group=group) == ["first"]
            await to.pass_by(5000 + TICK_MS)
            for group, member in groups.items():
                assert await to.texts(member, group=group) == ["late"]
            late = (await to.join(group="three")).member_id
            assert await to.texts(late, group="three") == ["first", "late"], "for who comes later it is one like others"

    run_timed(go())


def test_the_lane_of_a_delayed_message_counts_when_it_is_due(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.send(message("urgent", deliver_at=-5000, lane=Lane.CRITICAL))
        to.put(*numbered(50))
        assert len(await to.texts(member, max_messages=10)) == 10
        await to.pass_by(5000 + TICK_MS)
        assert (await to.texts(member, max_messages=10))[0] == "urgent"

    consume(tmp_path, scenario)


def test_a_burst_is_worked_off_in_slices_and_all_of_it_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FIRED_AT_ONCE", 7)
    monkeypatch.setattr(limits, "SORTED_AT_ONCE", 5)

    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(partitions=2)
            for partition in (0, 1):
                to.delay(*numbered(100), by_ms=5000, partition=partition)
            member = (await to.join(session_ms=LONG_MS)).member_id
            assert await to.texts(member) == []
            to.clock.now += 5000 + TICK_MS
            to.time.move(5000 + TICK_MS)
            found: list[str] = []
            for _ in range(200):
                await turns(2)
                found += await to.texts(member)
            assert sorted(found) == sorted([*numbered(100), *numbered(100)])
            assert len(to.partition(0).delays) == len(to.partition(1).delays) == 0

    run_timed(go())


# --- clocks


def test_a_clock_that_steps_forward_makes_nothing_early(tmp_path: Path) -> None:
    """Both clocks must agree: by the wall an hour has passed, and in truth none has."""

    async def scenario(to: Consumers, member: str) -> None:
        to.delay("late", by_ms=HOUR_MS)
        to.clock.now += 2 * HOUR_MS
        await to.followed()
        assert await to.texts(member) == []
        to.broker._housekeeping.check_clock()
        await to.followed()
        assert await to.texts(member) == []
        to.time.move(10_000)
        to.clock.now += 10_000
        await to.followed()
        assert await to.texts(member) == []
        to.time.move(HOUR_MS)
        to.clock.now += HOUR_MS
        await to.followed()
        member = (await to.join()).member_id
        assert await to.drain(member) == ["late"]

    consume(tmp_path, scenario)


def test_a_clock_that_steps_back_makes_it_wait_until_the_wall_says_so(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            to.delay("late", by_ms=10_000)
            member = (await to.join(session_ms=LONG_MS)).member_id
            to.clock.now -= 600_000
            await to.pass_by(10_000 + TICK_MS)
            assert await to.texts(member) == [], "the wall's clock has not come there"
            to.broker._housekeeping.check_clock()
            await to.pass_by(599_900)
            assert await to.texts(member) == []
            await to.pass_by(100 + TICK_MS)
            assert await to.texts(member) == ["late"]

    run_timed(go())


def test_what_comes_after_a_step_goes_by_the_new_time(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            member = (await to.join(session_ms=LONG_MS)).member_id
            to.delay("before", by_ms=60_000)
            to.clock.now += 1_000_000
            to.delay("after", by_ms=5000)
            await to.pass_by(4999)
            assert await to.texts(member) == []
            await to.pass_by(1 + TICK_MS)
            assert await to.texts(member) == ["after"]
            to.clock.now -= 900_000
            to.send(message("back", deliver_at=to.clock() + 5000))
            await to.pass_by(4999)
            assert await to.texts(member) == []
            await to.pass_by(1 + 2 * TICK_MS)
            assert await to.texts(member) == ["back"]

    run_timed(go())


@pytest.mark.parametrize("seed", range(20))
def test_however_the_clock_jumps_nothing_is_early_and_everything_comes(tmp_path: Path, seed: int) -> None:
    async def go() -> None:
        chance = Random(seed)
        async with consuming(tmp_path) as to:
            await to.create()
            member = (await to.join(session_ms=LONG_MS)).member_id
            due: dict[str, tuple[int, int]] = {}
            """By the wall, and by the clock that never steps at the earliest."""
            found: list[str] = []
            for step in range(60):
                if chance.random() < 0.5:
                    text, by_ms = f"m{step}", chance.choice([5, 50, 500, 5000, 50_000])
                    to.delay(text, by_ms=by_ms)
                    due[text] = to.clock() + by_ms, to.time() + by_ms
                if chance.random() < 0.2:
                    to.clock.now += chance.choice([-100_000, -1000, -50, 50, 1000, 100_000])
                    if chance.random() < 0.5:
                        to.broker._housekeeping.check_clock()
                await to.pass_by(chance.choice([0, 1, 10, 100, 1000, 10_000]))
                for text in await consumed(to, member):
                    wall, monotonic = due[text]
                    assert to.clock() >= wall, (text, "by the wall it is not due")
                    assert to.time() >= monotonic, (text, "its time has not passed")
                    found.append(text)
            to.broker._housekeeping.check_clock()
            to.clock.now = max([to.clock(), *(wall for wall, _ in due.values())])
            to.broker._housekeeping.check_clock()
            for _ in range(10):
                await to.pass_by(200_000)
                to.broker._housekeeping.check_clock()
                found += await consumed(to, member)
            assert sorted(found) == sorted(due), "none is lost, none comes twice"

    run_timed(go())


# --- over a restart


def test_they_are_still_pending_after_a_restart_and_come_when_they_are_due(tmp_path: Path) -> None:
    async def go() -> None:
        clock = Clock()
        async with consuming(tmp_path, clock=clock) as to:
            await to.create()
            to.delay("a", by_ms=5000)
            to.partition().log.roll()
            to.delay("b", by_ms=HOUR_MS)
            member = (await to.join(session_ms=LONG_MS)).member_id
            assert await to.texts(member) == []
        clock.now += 3000
        async with consuming(tmp_path, clock=clock) as to:
            assert await listed(to) == [(0, 0), (0, 1)]
            assert await to.texts(member) == []
            await to.pass_by(2000 + TICK_MS)
            assert await to.texts(member) == ["a"]
        clock.now += 2 * HOUR_MS
        async with consuming(tmp_path, clock=clock) as to:
            assert await to.texts(member) == ["b"], "what fell due meanwhile is there at once"

    run_timed(go())


def test_what_was_cancelled_or_moved_is_so_after_a_restart(tmp_path: Path) -> None:
    async def go() -> None:
        clock = Clock()
        async with consuming(tmp_path, clock=clock) as to:
            await to.create()
            to.delay(*numbered(4), by_ms=5000)
            member = (await to.join(session_ms=LONG_MS)).member_id
            await cancel(to, 0)
            await move(to, 1, T0 + HOUR_MS)
            await move(to, 2, T0 + 1000)
            await to.pass_by(1000 + TICK_MS)
            assert await to.texts(member) == ["m2"]
        for _ in range(2):
            async with consuming(tmp_path, clock=clock) as to:
                assert await listed(to) == [(0, 1), (0, 3)]
                assert await state(to, 0) is DelayState.CANCELLED
                (one, _), _, _ = await to.broker.delayed.list(topic(to), skip=0, limit=10)
                assert one.deliver_at == T0 + HOUR_MS
                sidecar = to.partition().sidecar
                assert sidecar is not None
                await to.broker._housekeeping.snapshot(sidecar.host)
        async with consuming(tmp_path, clock=clock) as to:
            await to.pass_by(4000 + TICK_MS)
            assert await to.texts(member) == ["m3"]
            await to.pass_by(HOUR_MS - SESSION_MS)
            await to.pass_by(SESSION_MS)
            member = (await to.join("other")).member_id
            assert "m1" in await to.drain(member)
            assert "m0" not in await to.drain(member)

    run_timed(go())


def test_a_cancellation_that_was_answered_outlives_a_power_cut_under_every(tmp_path: Path) -> None:
    async def go() -> None:
        disk = PhotographedDisk()
        answered: list[int] = []
        async with consuming(tmp_path, disk=disk) as to:
            await to.create(fsync=Fsync.EVERY)
            to.delay(*numbered(3), by_ms=5000)
            to.partition().log.sync()
            disk.begin(tmp_path)
            for offset in (0, 1):
                await cancel(to, offset)
                answered.append(len(disk.images))
            await move(to, 2, T0 + DAY_MS)
            answered.append(len(disk.images))
            disk.recording = False
        seen = set()
        for when, image in disk.crashed(range(1)):
            number = int(when.split("change ")[1].split(",")[0])
            done = sum(at <= number for at in answered)
            async with consuming(tmp_path, disk=image) as to:
                states = [await state(to, offset) for offset in range(3)]
                assert all(one is DelayState.CANCELLED for one in states[: min(done, 2)]), when
                assert states[2] is DelayState.PENDING, when
                if done == 3:
                    assert (await to.broker.delayed.get(topic(to), 0, 2)).deliver_at == T0 + DAY_MS, when
                seen.add(tuple(states))
        assert len(seen) == 3, "no crash came in between: this shows nothing"

    run_timed(go())


# --- looking


def test_they_are_listed_page_by_page_over_all_partitions(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(partitions=3)
            expected = []
            for partition, count in enumerate((5, 0, 7)):
                to.put("x", partition=partition)
                for number in range(count):
                    to.delay(f"m{number}", by_ms=HOUR_MS, partition=partition)
                expected += [(partition, offset) for offset in range(1, count + 1)]
            assert await listed(to) == expected
            for size in (1, 4, 5, 6, 12, 100):
                pages = [await listed(to, skip=skip, limit=size) for skip in range(0, 15, size)]
                assert [one for page in pages for one in page] == expected
                assert max(map(len, pages)) <= size
            _, count, _ = await to.broker.delayed.list(topic(to), skip=100, limit=1)
            assert count == 12, "of all there are"

    run_timed(go())


def test_what_is_shown_of_one(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.send(message("a", key="k", lane=Lane.HIGH, deliver_at=-5000))
        one = await to.broker.delayed.get(topic(to), 0, 0)
        assert (one.topic, one.partition, one.deliver_at, one.state) == ("orders", 0, T0 + 5000, "pending")
        assert (one.record.value, one.record.key, one.record.priority) == (b"a", b"k", Lane.HIGH)

    consume(tmp_path, scenario)


def test_the_states_of_a_delayed_message(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.delay("a", "b", by_ms=5000)
        to.send(message("c", deliver_at=-5000, expires_at=-1000))
        await cancel(to, 1)
        assert [await state(to, offset) for offset in range(3)] == ["pending", "cancelled", "pending"]
        await to.pass_by(5000 + TICK_MS)
        assert [await state(to, offset) for offset in range(3)] == ["delivered", "cancelled", "delivered"]
        await to.pass_by(1000)
        assert await state(to, 2) is DelayState.EXPIRED

    consume(tmp_path, scenario)


def test_the_time_to_live_of_a_moved_message_counts_from_its_new_time(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.send(
            message("later", deliver_at=-5000, expires_at=-1000), message("sooner", deliver_at=-HOUR_MS, expires_at=-1)
        )
        await move(to, 0, T0 + 20_000)
        await move(to, 1, T0 + 1000)
        await to.pass_by(1000 + TICK_MS)
        assert [await state(to, offset) for offset in (0, 1)] == ["pending", "expired"]
        await to.pass_by(19_000)
        assert await state(to, 0) is DelayState.DELIVERED
        await to.pass_by(1000)
        assert await state(to, 0) is DelayState.EXPIRED

    consume(tmp_path, scenario)


def test_the_time_to_live_of_the_topic_counts_for_those_that_have_none(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.delay("plain", "moved", by_ms=5000)
        to.send(message("own", deliver_at=-5000, expires_at=-HOUR_MS))
        await move(to, 1, T0 + 10_000)
        await to.pass_by(6999)
        assert [await state(to, offset) for offset in range(3)] == ["delivered", "pending", "delivered"]
        await to.pass_by(1)
        assert [await state(to, offset) for offset in range(3)] == ["expired", "pending", "delivered"]
        await to.pass_by(3000 + TICK_MS)
        assert await state(to, 1) is DelayState.DELIVERED
        await to.pass_by(2000)
        assert await state(to, 1) is DelayState.EXPIRED

    consume(tmp_path, scenario, message_ttl_ms=2000)


def test_what_was_never_delayed_or_is_not_there_is_unknown(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put("plain")
        to.delay("late", by_ms=5000)
        for offset in (0, 2, 10**6):
            with pytest.raises(UnknownDelay, match=f"no delayed message at offset {offset} of partition 0"):
                await to.broker.delayed.get(topic(to), 0, offset)
            with pytest.raises(UnknownDelay):
                await cancel(to, offset)
            with pytest.raises(UnknownDelay):
                await move(to, offset, T0 + 1)
        with pytest.raises(UnknownPartition):
            await to.broker.delayed.get(topic(to), 5, 0)

    consume(tmp_path, scenario)


# --- cancelling


def test_what_is_cancelled_never_comes_and_holds_up_nothing(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            to.delay(*numbered(3), by_ms=5000)
            to.put("x")
            member = (await to.join(session_ms=LONG_MS)).member_id
            await to.poll(member)
            await cancel(to, 1)
            for again in (cancel(to, 1), move(to, 1, T0 + HOUR_MS)):
                with pytest.raises(Conflict, match="offset 1 of partition 0 of orders was cancelled") as told:
                    await again
                assert told.value.code == "conflict", "it was not delivered"
            assert to.partition().delays.dropped == 1, "a second time changes nothing"
            await to.pass_by(5000 + TICK_MS)
            assert await to.texts(member) == ["m0", "m2"]
            await to.commit(member, 4)
            assert await to.offsets() == {"orders": {0: 4}}
            assert (await to.lag())[0][2:] == (0, 0, 0, 0)
            late = (await to.join(group="late")).member_id
            assert await to.texts(late, group="late") == ["m0", "m2", "x"]

    run_timed(go())


def test_it_may_be_cancelled_by_two_at_the_same_time(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            to.delay("a", by_ms=5000)
            assert to.partition().sidecar is None, "so that both have to wait for it"
            told = await asyncio.gather(*(cancel(to, 0) for _ in range(3)), return_exceptions=True)
            assert [type(each) for each in told].count(Conflict) == 2
            assert None in told
            assert to.partition().delays.dropped == 1
            assert await state(to, 0) is DelayState.CANCELLED

    run_timed(go())


def test_it_is_too_late_to_cancel_or_move_what_is_due(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.delay("a", by_ms=5000)
        await to.pass_by(5000 + TICK_MS)
        for _ in range(2):
            with pytest.raises(AlreadyDelivered, match="the message at offset 0 of partition 0 of orders is due"):
                await cancel(to, 0)
            with pytest.raises(AlreadyDelivered):
                await move(to, 0, T0 + HOUR_MS)
            assert await to.texts(member) in (["a"], [])
        assert (to.partition().delays.dropped, to.partition().delays.moved) == (0, 0)

    consume(tmp_path, scenario)


def test_many_are_cancelled_at_once_and_those_that_could_not_be_are_named(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(partitions=2)
            for partition in (0, 1):
                to.put("x", partition=partition)
                to.delay(*numbered(10), by_ms=5000, partition=partition)
            ids = [(0, 1), (0, 0), (1, 5), (1, 99), (7, 0), (0, 2), (0, 1)]
            failed = await to.broker.delayed.cancel_all(topic(to), ids)
            assert failed == {(0, 0), (1, 99), (7, 0)}
            assert sum(partition.delays.dropped for partition in topic(to).partitions) == 3
            assert len(await listed(to)) == 17
            assert await to.broker.delayed.cancel_all(topic(to), [(0, 1)]) == {(0, 1)}

    run_timed(go())


def test_cancelled_messages_are_forgotten_when_retention_has_taken_them(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(retention_hours=1)
            to.delay(*numbered(5), by_ms=DAY_MS)
            assert not await to.broker.delayed.cancel_all(topic(to), [(0, offset) for offset in range(5)])
            log = to.partition().log
            log.roll()
            log.sync()
            to.clock.now += 2 * HOUR_MS
            to.put("x")
            await to.broker._housekeeping.clean()
            assert log.start_offset == 5, "a cancelled one need not be kept until its time"
            assert not to.deliveries().cancelled

    run_timed(go())


# --- moving


def test_it_may_be_moved_to_an_earlier_and_to_a_later_time_again_and_again(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            to.delay("a", "b", by_ms=5000)
            member = (await to.join(session_ms=LONG_MS, visibility_ms=HOUR_MS)).member_id
            await move(to, 0, T0 + HOUR_MS)
            await move(to, 0, T0 + 60_000)
            await move(to, 1, T0 + DAY_MS)
            await move(to, 1, T0 + 2000)
            await to.pass_by(1999)
            assert await to.texts(member) == []
            await to.pass_by(1 + TICK_MS)
            assert await to.texts(member) == ["b"]
            await to.pass_by(57_000)
            assert await to.texts(member) == [], "its old time has passed"
            await to.pass_by(1000)
            assert await to.texts(member) == ["a"]
            assert to.partition().delays.moved == 4

    run_timed(go())


def test_moved_to_a_time_that_has_passed_it_comes_at_once(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.delay("a", by_ms=DAY_MS)
        waiting = await to.parked(member)
        await move(to, 0, T0 - HOUR_MS)
        await to.pass_by(TICK_MS)
        assert texts(await waiting) == ["a"]

    consume(tmp_path, scenario)


def test_what_was_moved_later_is_kept_until_then(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(retention_hours=1)
            to.delay("moved", "gone", by_ms=5000)
            await move(to, 0, T0 + 10 * DAY_MS)
            log = to.partition().log
            log.roll()
            log.sync()
            await to.pass_by(2 * HOUR_MS)
            to.put("x")
            await to.broker._housekeeping.clean()
            assert await listed(to) == [(0, 0)]
            await to.pass_by(10 * DAY_MS - 2 * HOUR_MS + TICK_MS)
            member = (await to.join(session_ms=LONG_MS)).member_id
            assert await to.drain(member) == ["moved", "x"]

    run_timed(go())


def test_in_key_mode_too_they_are_cancelled_moved_and_delivered(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            to.send(*(message(text, key="k", deliver_at=-5000) for text in ("a", "b", "c")), message("now", key="k"))
            member = (await to.join(mode=Mode.KEY, session_ms=LONG_MS)).member_id
            polled = await to.poll(member)
            assert texts(polled) == ["now"]
            await cancel(to, 0)
            await move(to, 1, T0 + HOUR_MS)
            await to.pass_by(5000 + TICK_MS)
            assert await to.texts(member) == [], "its key is busy"
            await to.ack(*handles_of(polled))
            polled = await to.poll(member)
            assert texts(polled) == ["c"]
            await to.ack(*handles_of(polled))
            await to.pass_by(HOUR_MS)
            member = (await to.join("other")).member_id
            assert await to.drain(member) == ["b"]

    run_timed(go())
