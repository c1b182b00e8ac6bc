"""Lanes as a group sees them: fair shares over many polls, strict order, nobody starves, the lane is the record's."""

from collections import Counter
from pathlib import Path

import pytest

from goqueue.model import limits
from goqueue.model.groups import Mode
from goqueue.model.record import Lane
from goqueue.model.topic import LanePolicy
from tests.support.moved_time import run_timed
from tests.unit.broker.brokers import Clock
from tests.unit.broker.consumers import Consumers, consuming, handles_of, message, numbered, texts
from tests.unit.broker.test_poll import consume

LONG_MS = limits.MAX_SESSION_MS


def fill(to: Consumers, count: int, *lanes: Lane) -> None:
    """So many messages of each lane, called like it."""
    for lane in lanes or Lane:
        to.send(*(message(lane.name, lane=lane) for _ in range(count)))


async def taken(to: Consumers, member: str, max_messages: int) -> list[str]:
    """What a poll brings; it is acked."""
    polled = await to.poll(member, max_messages=max_messages)
    await to.ack(*handles_of(polled))
    return texts(polled)


# --- weights


@pytest.mark.parametrize("size", [1, 7, 100, 333])
def test_over_many_polls_each_lane_gets_its_share(tmp_path: Path, size: int) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        total = 1000 if size < 10 else 2000
        fill(to, total)
        found: Counter[str] = Counter()
        while sum(found.values()) < total:
            found.update(await taken(to, member, size))
        for lane, weight in zip(Lane, (50, 25, 15, 7, 3), strict=True):
            expected = sum(found.values()) * weight / 100
            assert abs(found[lane.name] - expected) <= max(0.05 * expected, size), (lane, found)
            if size <= 100:
                assert abs(found[lane.name] - expected) <= max(0.05 * expected, weight), (lane, found)

    consume(tmp_path, scenario)


def test_a_topic_may_have_other_weights_and_change_them(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        fill(to, 1000)
        found: Counter[str] = Counter()
        for _ in range(20):
            found.update(await taken(to, member, 50))
        assert {found[lane.name] for lane in Lane} == {200}
        await to.change(lane_weights=(1, 1, 1, 1, 96))
        found = Counter()
        for _ in range(5):
            found.update(await taken(to, member, 100))
        assert found[Lane.BACKGROUND.name] >= 475

    consume(tmp_path, scenario, lane_weights=(1, 1, 1, 1, 1))


def test_a_lane_that_has_nothing_leaves_its_share_to_the_others(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        fill(to, 300, Lane.HIGH, Lane.BACKGROUND)
        found = Counter(await taken(to, member, 280))
        assert found == {"HIGH": 250, "BACKGROUND": 30}

    consume(tmp_path, scenario)


def test_a_poll_is_filled_as_long_as_there_is_anything(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        fill(to, 3)
        to.send(*(message("x", lane=Lane.BACKGROUND) for _ in range(100)))
        assert len(await taken(to, member, 100)) == 100
        assert len(await taken(to, member, 100)) == 15

    consume(tmp_path, scenario)


def test_in_a_poll_the_most_urgent_come_first_and_a_lane_is_in_order(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        for number in range(3):
            for lane in reversed(Lane):
                to.send(message(f"{lane.name} {number}", lane=lane))
        assert await to.texts(member) == [f"{lane.name} {number}" for lane in Lane for number in range(3)]

    consume(tmp_path, scenario)


def test_strict_takes_what_is_most_urgent_as_long_as_there_is_any(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        fill(to, 30)
        found = [name for _ in range(15) for name in await taken(to, member, 10)]
        assert found == [lane.name for lane in Lane for _ in range(30)]
        await to.change(lane_policy=LanePolicy.WEIGHTED)
        fill(to, 100)
        assert len(set(await taken(to, member, 100))) == 5

    consume(tmp_path, scenario, lane_policy=LanePolicy.STRICT)


def test_shares_are_of_each_partition_and_each_group(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(partitions=2)
            for partition in (0, 1):
                for lane in Lane:
                    to.send(*(message(lane.name, lane=lane) for _ in range(200)), partition=partition)
            for group in ("one", "two"):
                member = (await to.join(group=group)).member_id
                found: Counter[str] = Counter()
                for _ in range(2):
                    found.update(await to.texts(member, group=group, max_messages=100))
                assert [found[lane.name] for lane in Lane] == [100, 50, 30, 14, 6]

    run_timed(go())


# --- nobody starves


@pytest.mark.parametrize("policy", LanePolicy)
def test_a_lane_that_was_not_served_for_long_is_served_next(tmp_path: Path, policy: LanePolicy) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(lane_policy=policy, lane_weights=(1000, 1, 1, 1, 1))
            member = (await to.join(session_ms=LONG_MS)).member_id
            fill(to, 500, Lane.CRITICAL)
            fill(to, 5, Lane.BACKGROUND)
            assert await taken(to, member, 2) == ["CRITICAL"] * 2
            await to.pass_by(limits.STARVING_MS - 1)
            assert await taken(to, member, 2) == ["CRITICAL"] * 2
            await to.pass_by(1)
            assert sorted(await taken(to, member, 2)) == ["BACKGROUND", "CRITICAL"]
            assert await taken(to, member, 2) == ["CRITICAL"] * 2, "one of them, not all"
            await to.pass_by(limits.STARVING_MS // 2)
            assert await taken(to, member, 2) == ["CRITICAL"] * 2
            await to.pass_by(limits.STARVING_MS // 2)
            assert await taken(to, member, 1) == ["BACKGROUND"]

    run_timed(go())


# --- urgent ones behind many others


def test_a_critical_message_behind_many_normal_ones_is_in_the_next_poll(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(segment_bytes=limits.MIN_SEGMENT_BYTES)
            for first in range(0, 3000, 50):
                to.put(*numbered(50, first))
            log = to.partition().log
            assert len(log.segments) > 20
            member = (await to.join(session_ms=LONG_MS)).member_id
            assert len(await taken(to, member, 10)) == 10
            to.send(message("urgent", lane=Lane.CRITICAL))
            assert (await taken(to, member, 10))[0] == "urgent"
            other = (await to.join(group="other")).member_id
            assert (await to.texts(other, group="other", max_messages=10))[0] == "urgent"

    run_timed(go())


def test_also_when_all_of_them_are_in_sealed_segments_whose_views_are_not_in_memory(tmp_path: Path) -> None:
    async def go() -> None:
        clock = Clock()
        async with consuming(tmp_path, clock=clock) as to:
            await to.create(segment_bytes=limits.MIN_SEGMENT_BYTES)
            for first in range(0, 2000, 50):
                to.put(*numbered(50, first))
            to.send(message("urgent", lane=Lane.CRITICAL), message("late", lane=Lane.BACKGROUND))
            to.partition().log.roll()
            to.partition().log.sync()
        async with consuming(tmp_path, clock=clock) as to:
            member = (await to.join(session_ms=LONG_MS)).member_id
            texts = await to.texts(member, max_messages=20)
            assert texts[0] == "urgent"
            assert "late" in texts, "it has its share"

    run_timed(go())


# --- the lane is the record's


def test_the_lane_is_kept_when_a_message_comes_again(tmp_path: Path) -> None:
    async def go() -> None:
        clock = Clock()
        async with consuming(tmp_path, clock=clock) as to:
            await to.create(visibility_ms=5000, lane_policy=LanePolicy.STRICT)
            fill(to, 4, Lane.CRITICAL)
            to.put(*numbered(100))
            member = (await to.join(session_ms=LONG_MS)).member_id
            polled = await to.poll(member, max_messages=4)
            handles = handles_of(polled)
            assert texts(polled) == ["CRITICAL"] * 4
            await to.nack(*handles[:2])
            assert set(await taken(to, member, 10)) <= set(numbered(100))
            await to.pass_by(1000)
            assert (await to.texts(member, max_messages=10))[:2] == ["CRITICAL"] * 2, "given back"
            await to.pass_by(4000)
            assert (await to.texts(member, max_messages=10))[:2] == ["CRITICAL"] * 2, "not settled in time"
            left = member
        clock.now += 60_000
        async with consuming(tmp_path, clock=clock) as to:
            await to.pass_by(0)
            assert (await to.texts(left, max_messages=10))[:4] == ["CRITICAL"] * 4, "after a restart"
            await to.leave(left)
            other = (await to.join("other")).member_id
            await to.poll(other, max_messages=1)
            found = await to.drain(other, max_messages=50)
            assert "CRITICAL" in found

    run_timed(go())


def test_after_a_restart_lanes_go_on_where_they_were(tmp_path: Path) -> None:
    async def go() -> None:
        clock = Clock()
        async with consuming(tmp_path, clock=clock) as to:
            await to.create()
            fill(to, 100)
            member = (await to.join(session_ms=LONG_MS)).member_id
            await taken(to, member, 100)
        async with consuming(tmp_path, clock=clock) as to:
            found = Counter(await to.drain(member, max_messages=100))
            assert found == {"CRITICAL": 50, "HIGH": 75, "NORMAL": 85, "LOW": 93, "BACKGROUND": 97}

    run_timed(go())


@pytest.mark.parametrize("mode", [Mode.SHARED, Mode.KEY])
def test_lanes_are_served_in_every_mode(tmp_path: Path, mode: Mode) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            for lane in reversed(Lane):
                to.send(*(message(f"{lane.name}", lane=lane, key=f"{lane}{number}") for number in range(200)))
            members = [(await to.join(name, mode=mode)).member_id for name in ("a", "b")]
            found: Counter[str] = Counter()
            for _ in range(2):
                for member in members:
                    found.update(await to.texts(member, max_messages=50))
            assert [found[lane.name] for lane in Lane] == [100, 50, 30, 14, 6]

    run_timed(go())


def test_bytes_that_run_out_leave_no_lane_behind_for_ever(tmp_path: Path) -> None:
    """A large message of one lane does not keep smaller ones of others from coming, nor is it passed over for good."""

    async def scenario(to: Consumers, member: str) -> None:
        to.send(*(message("L" * 5000, lane=Lane.HIGH) for _ in range(5)))
        to.send(*(message("small", lane=Lane.NORMAL) for _ in range(100)))
        found: Counter[str] = Counter()
        for _ in range(40):
            polled = await to.poll(member, max_bytes=3000)
            assert polled.rows, "at least one message, however large"
            await to.ack(*handles_of(polled))
            found.update(text[:5] for text in texts(polled))
            if sum(found.values()) == 105:
                break
        assert found == {"LLLLL": 5, "small": 100}

    consume(tmp_path, scenario)
