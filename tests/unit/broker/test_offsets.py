"""Offsets: what a commit settles, where a group begins, where it is and goes, and how far it is behind."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from goqueue.broker.offsets import Lag
from goqueue.model import limits
from goqueue.model.errors import DiskFull, InvalidRequest, NotOwner, OffsetOutOfRange, UnknownPartition, UnknownTopic
from goqueue.model.groups import Place, Position
from goqueue.model.settings import Fsync
from goqueue.storage.cleaner import clean
from tests.support.faulty_disk import FaultyDisk
from tests.support.loop import turns
from tests.support.moved_time import run_timed
from tests.unit.broker.brokers import T0
from tests.unit.broker.consumers import (
    GROUP,
    LATEST,
    REBALANCE_MS,
    SESSION_MS,
    Consumers,
    consuming,
    deliveries_of,
    handles_of,
    numbered,
    places,
    texts,
)
from tests.unit.broker.test_poll import consume

HOUR_MS = 3600 * 1000
AUTO_MS = 5000


async def next_owner(to: Consumers, member: str, **more: Any) -> str:
    """Somebody else, after the member was silent for too long."""
    await to.pass_by(SESSION_MS)
    assert member not in to.group().members
    return (await to.join("next", **more)).member_id


# --- committing


def test_a_commit_settles_what_was_delivered_below_an_offset(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put(*numbered(5))
        await to.poll(member)
        await to.commit(member, 3)
        assert await to.offsets() == {"orders": {0: 3}}
        other = await next_owner(to, member)
        assert await to.texts(other) == ["m3", "m4"]

    consume(tmp_path, scenario)


def test_a_commit_settles_nothing_that_was_not_delivered(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put(*numbered(5))
        await to.poll(member, max_messages=2)
        await to.commit(member, 5)
        assert await to.offsets() == {"orders": {0: 2}}
        assert await to.texts(member) == ["m2", "m3", "m4"]

    consume(tmp_path, scenario)


def test_what_was_given_back_is_not_settled_by_a_later_commit(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put(*numbered(6))
        replies = [await to.poll(member, max_messages=2) for _ in range(3)]
        to.broker.poller.give_back(GROUP, replies[1].view.member_id, replies[1].number)
        await to.commit(member, 6)
        assert await to.offsets() == {"orders": {0: 2}}
        assert (await to.lag())[0].lag == 2
        assert await to.texts(member) == ["m2", "m3"]
        await to.commit(member, 4)
        assert await to.offsets() == {"orders": {0: 6}}

    consume(tmp_path, scenario)


def test_a_commit_settles_nothing_that_later_polls_brought_if_it_says_what_it_has_received(tmp_path: Path) -> None:
    """It may be late, and what lies below its offset may have come again meanwhile."""

    async def scenario(to: Consumers, member: str) -> None:
        to.put(*numbered(6))
        first = await to.poll(member, max_messages=2, received=0)
        second = await to.poll(member, max_messages=2, received=first.number)
        await to.commit(member, 6, received=first.number)
        assert await to.offsets() == {"orders": {0: 2}}
        await to.commit(member, 6, received=second.number)
        assert await to.offsets() == {"orders": {0: 4}}

    consume(tmp_path, scenario)


@pytest.mark.parametrize("below", [0, 1, 2])
def test_a_commit_below_one_that_was_made_changes_nothing(tmp_path: Path, below: int) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put(*numbered(3))
        await to.poll(member)
        await to.commit(member, 2)
        await to.commit(member, below)
        assert await to.offsets() == {"orders": {0: 2}}

    consume(tmp_path, scenario)


def test_a_commit_beyond_the_end_is_refused_and_settles_nothing(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        for partition in (0, 1):
            to.put(*numbered(3), partition=partition)
        await to.poll(member)
        with pytest.raises(OffsetOutOfRange) as caught:
            await to.commit(member, {"orders": {0: 3, 1: 4}})
        assert caught.value.details == {"offset": 4, "earliest": 0, "latest": 3}
        assert await to.offsets() == {"orders": {0: 0, 1: 0}}
        await to.commit(member, {"orders": {0: 3, 1: 3}})

    consume(tmp_path, scenario, partitions=2)


def test_a_commit_of_what_is_not_there_is_refused(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put(*numbered(3))
        await to.poll(member)
        with pytest.raises(UnknownPartition):
            await to.commit(member, {"orders": {0: 3, 1: 0}})
        assert await to.offsets() == {"orders": {0: 0}}
        with pytest.raises(NotOwner, match="nope-0"):
            await to.commit(member, {"orders": {0: 3}, "nope": {0: 1}})
        assert await to.offsets() == {"orders": {0: 3}}, "a topic that was deleted does not keep others' work back"

    consume(tmp_path, scenario)


def test_a_commit_about_nothing_is_good(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        await to.commit(member, {})
        await to.commit(member, {"orders": {}})
        await to.commit(member, 0)
        assert await to.offsets() == {}

    consume(tmp_path, scenario)


def test_a_commit_settles_what_is_the_members_and_names_the_rest(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        for partition in (0, 1):
            to.put(*numbered(2), partition=partition)
        await to.poll(member)
        other = (await to.join("other")).member_id
        await to.pass_by(REBALANCE_MS - 1)
        await to.heartbeat(member)
        await to.heartbeat(other)
        await to.pass_by(1)
        (moved,) = to.owned(other)
        with pytest.raises(NotOwner, match=rf"orders-{moved}; poll to see") as caught:
            await to.commit(member, {"orders": {0: 2, 1: 2}})
        assert caught.value.details == {"refused": [f"orders-{moved}"]}
        found = await to.offsets()
        assert found == {"orders": {1 - moved: 2, moved: 0}}
        with pytest.raises(NotOwner):
            await to.commit(other, 2, partition=1 - moved)

    consume(tmp_path, scenario, partitions=2)


def test_a_commit_of_an_earlier_generation_is_refused_for_what_was_got_since(tmp_path: Path) -> None:
    """A zombie: it had the partition, lost it, and got it again; its old work must not settle the new delivery."""

    async def scenario(to: Consumers, member: str) -> None:
        to.put("a", partition=0)
        to.put("b", partition=1)
        old = (await to.poll(member)).view.generation
        other = (await to.join("other")).member_id
        await to.commit(member, {"orders": {0: 1, 1: 1}})
        for _ in range(2):
            await to.poll(member)
        (moved,) = to.owned(other)
        await to.leave(other)
        await to.poll(member)
        assert to.owned(member) == [0, 1]
        to.put("c", partition=0)
        to.put("d", partition=1)
        now = await to.poll(member)
        with pytest.raises(NotOwner) as caught:
            await to.commit(member, {"orders": {0: 2, 1: 2}}, generation=old)
        assert caught.value.details == {"refused": [f"orders-{moved}"]}, "the other one it kept all the time"
        assert (await to.offsets())["orders"] == {1 - moved: 2, moved: 1}
        await to.commit(member, {"orders": {0: 2, 1: 2}}, generation=now.view.generation)
        assert (await to.offsets())["orders"] == {0: 2, 1: 2}

    consume(tmp_path, scenario, partitions=2)


@pytest.mark.parametrize("fsync", Fsync)
def test_a_commit_is_answered_when_it_is_as_safe_as_messages_are(tmp_path: Path, fsync: Fsync) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put(*numbered(3))
        await to.poll(member)
        sidecar = to.partition().sidecar
        assert sidecar is not None
        before = sidecar.log.durable.value
        for below in (1, 2, 3):
            await to.commit(member, below)
            if fsync is Fsync.EVERY:
                assert sidecar.log.durable.value == sidecar.log.end_offset
        if fsync is not Fsync.EVERY:
            assert sidecar.log.durable.value == before, "nobody waited for the disk"

    consume(tmp_path, scenario, fsync=fsync)


def test_commits_are_kept_over_a_restart_under_every_mode(tmp_path: Path) -> None:
    async def go() -> None:
        members = {}
        async with consuming(tmp_path) as to:
            for fsync in Fsync:
                await to.create(fsync, fsync=fsync)
                to.put(*numbered(3), topic=fsync)
                members[fsync] = (await to.join("worker", fsync, group=fsync)).member_id
                await to.poll(members[fsync], group=fsync)
                await to.commit(members[fsync], {fsync: {0: 2}}, group=fsync)
        async with consuming(tmp_path) as to:
            for fsync in Fsync:
                assert await to.offsets(fsync) == {fsync: {0: 2}}
                assert (await to.lag(fsync, topic=fsync))[0].in_flight == 1

    run_timed(go())


def test_on_a_full_disk_publishing_is_refused_and_commits_go_on(tmp_path: Path) -> None:
    async def go() -> None:
        disk = FaultyDisk()
        async with consuming(tmp_path, disk=disk) as to:
            await to.create(fsync=Fsync.EVERY)
            to.put(*numbered(50))
            member = (await to.join()).member_id
            disk.free = 0
            for below in range(1, 51):
                with pytest.raises(DiskFull):
                    to.put("more")
                assert len(await to.texts(member, max_messages=1)) == 1
                await to.commit(member, below)
            assert await to.offsets() == {"orders": {0: 50}}
            disk.free = None
            await to.broker._housekeeping.tick()
            to.put("more")
            assert await to.texts(member) == ["more"]
        async with consuming(tmp_path) as to:
            assert await to.offsets() == {"orders": {0: 50}}

    run_timed(go())


def test_a_broker_started_on_a_full_disk_serves_groups(tmp_path: Path) -> None:
    async def go() -> None:
        disk = FaultyDisk()
        async with consuming(tmp_path, disk=disk) as to:
            await to.create(partitions=2)
            to.put(*numbered(3))
            to.put("first time here", partition=1)
            member = (await to.join()).member_id
            await to.poll(member, max_messages=2)
        disk.free = 0
        async with consuming(tmp_path, disk=disk) as to:
            assert sorted(await to.texts(member)) in (["first time here", "m2"], ["m2"], ["first time here"])
            await to.poll(member)
            await to.commit(member, {"orders": {0: 3, 1: 1}})
            assert await to.offsets() == {"orders": {0: 3, 1: 1}}
            with pytest.raises(DiskFull):
                to.put("more")
            disk.free = None

    run_timed(go())


# --- commits that nobody asks for


def auto(tmp_path: Path, scenario: Any, **settings: Any) -> None:
    """A member whose deliveries are settled by themselves every five seconds."""

    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(**settings)
            member = (await to.join(auto_commit_ms=AUTO_MS)).member_id
            await scenario(to, member)

    run_timed(go())


def test_by_itself_it_happens_at_the_next_poll_when_it_is_time(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put(*numbered(4))
        await to.poll(member, max_messages=2)
        await to.pass_by(AUTO_MS - 1)
        await to.poll(member, max_messages=1)
        assert await to.offsets() == {"orders": {0: 0}}, "it is not time yet"
        await to.pass_by(1)
        assert await to.offsets() == {"orders": {0: 0}}, "time alone does not do it"
        await to.heartbeat(member)
        assert await to.offsets() == {"orders": {0: 0}}, "nor does a heartbeat"
        await to.poll(member, max_messages=1)
        assert await to.offsets() == {"orders": {0: 3}}, "what earlier polls delivered, not what this one does"
        await to.poll(member)
        assert await to.offsets() == {"orders": {0: 3}}, "five seconds later again, not before"
        await to.pass_by(AUTO_MS)
        await to.poll(member)
        assert await to.offsets() == {"orders": {0: 4}}

    auto(tmp_path, scenario)


def test_without_it_nothing_is_settled_by_itself(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put("a")
        await to.poll(member)
        await to.pass_by(SESSION_MS - 1)
        await to.poll(member)
        await to.leave(member)
        other = (await to.join("other")).member_id
        assert await to.texts(other) == ["a"]

    consume(tmp_path, scenario)


def test_a_member_that_is_silent_settles_nothing_by_itself(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put("a")
        await to.poll(member)
        other = await next_owner(to, member)
        assert await to.texts(other) == ["a"]

    auto(tmp_path, scenario)


def test_a_lost_reply_is_not_settled_by_itself_if_the_member_says_what_it_received(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put(*numbered(4))
        first = await to.poll(member, max_messages=2, received=0)
        await to.poll(member, received=first.number)
        await to.pass_by(AUTO_MS)
        assert await to.texts(member, received=first.number) == ["m2", "m3"]
        assert await to.offsets() == {"orders": {0: 2}}

    auto(tmp_path, scenario)


def test_what_is_to_be_given_up_is_settled_at_the_next_poll_whenever_that_is(tmp_path: Path) -> None:
    """Nobody waits for the interval to pass, and nothing of it comes twice."""

    async def scenario(to: Consumers, member: str) -> None:
        for partition in (0, 1):
            to.put("x", partition=partition)
        await to.poll(member)
        other = (await to.join("other")).member_id
        told = await to.poll(member)
        assert len(told.view.revoke) == 1
        await to.poll(member)
        assert await to.texts(other) == []
        assert [f"orders-{number}" for number in to.owned(other)] == told.view.revoke
        (moved,) = to.owned(other)
        assert await to.offsets() == {"orders": {1 - moved: 0, moved: 1}}

    auto(tmp_path, scenario, partitions=2)


# --- where a group begins


@pytest.mark.parametrize(
    ("start", "found"),
    [
        (Position(Place.EARLIEST), ["m0", "m1", "m2", "m3", "new"]),
        (Position(Place.LATEST), ["new"]),
        (Position(Place.OFFSET, 3), ["m3", "new"]),
        (Position(Place.OFFSET, 4), ["new"]),
        (Position(Place.TIMESTAMP, T0 + 2 * HOUR_MS), ["m2", "m3", "new"]),
        (Position(Place.TIMESTAMP, T0 + 900 * HOUR_MS), ["new"]),
        (Position(Place.TIMESTAMP, 0), ["m0", "m1", "m2", "m3", "new"]),
        (Position(Place.DURATION, HOUR_MS), ["m2", "m3", "new"]),
    ],
)
def test_a_new_group_begins_where_it_is_told_to(tmp_path: Path, start: Position, found: list[str]) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            for number in range(4):
                to.clock.now = T0 + number * HOUR_MS
                to.put(f"m{number}")
            member = (await to.join(start=start)).member_id
            to.put("new")
            assert await to.texts(member) == found
            await to.leave(member)
        async with consuming(tmp_path) as to:
            again = (await to.join(start=Position(Place.LATEST))).member_id
            assert await to.texts(again) == found, "a group that was there goes on where it is"

    run_timed(go())


def test_where_a_group_begins_is_kept_though_it_was_delivered_nothing(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(partitions=2)
            to.put("old")
            await to.leave((await to.join(start=LATEST)).member_id)
        async with consuming(tmp_path) as to:
            for partition in (0, 1):
                to.put("new", partition=partition)
            member = (await to.join()).member_id
            assert await to.texts(member) == ["new", "new"]

    run_timed(go())


def test_a_group_begins_in_each_topic_when_it_first_comes_there(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            for topic in ("orders", "bills"):
                await to.create(topic)
                to.put(f"old {topic}", topic=topic)
            member = (await to.join("worker", "orders", start=LATEST)).member_id
            await to.join("worker", "orders", "bills", member_id=member)
            assert await to.texts(member) == ["old bills"]

    run_timed(go())


# --- looking


def test_offsets_are_of_topics_in_which_the_group_began(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            for topic in ("orders", "bills", "other"):
                await to.create(topic)
                to.put("a", "b", topic=topic)
            member = (await to.join("worker", "orders", "bills")).member_id
            await to.poll(member)
            await to.commit(member, {"orders": {0: 1}})
            assert await to.offsets() == {"bills": {0: 0}, "orders": {0: 1}}
            settlement, group = to.broker.offsets, to.group()
            assert await settlement.offsets(group, "orders") == {"orders": {0: 1}}
            assert await settlement.offsets(group, "other") == {}
            with pytest.raises(UnknownTopic):
                await settlement.offsets(group, "nope")

    run_timed(go())


def test_lag_is_what_is_not_settled_and_how_old_its_first_message_is(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        assert (await to.lag())[0] == Lag(0, 0, 0, 0, in_flight=0, delayed=0)
        for number in range(4):
            to.put(f"m{number}")
            to.clock.now += 1000
        assert (await to.lag())[0] == Lag(0, 4, 4, 4000, in_flight=0, delayed=0), "before it was delivered anything"
        await to.poll(member, max_messages=3)
        assert (await to.lag())[0] == Lag(0, 4, 4, 4000, in_flight=3, delayed=0)
        await to.commit(member, 2)
        to.clock.now += 500
        assert (await to.lag())[0] == Lag(2, 4, 2, 2500, in_flight=1, delayed=0)
        await to.poll(member)
        await to.commit(member, 4)
        assert (await to.lag())[0] == Lag(4, 4, 0, 0, in_flight=0, delayed=0)

    consume(tmp_path, scenario)


def test_lag_of_a_group_that_comes_late_counts_from_where_it_begins(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(partitions=2)
            to.put(*numbered(5))
            await to.join(start=LATEST)
            to.put("x")
            to.put("y", partition=1)
            assert {number: lag[:3] for number, lag in (await to.lag()).items()} == {0: (5, 6, 1), 1: (0, 1, 1)}

    run_timed(go())


def test_lag_counts_only_what_retention_has_left(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put(*numbered(4))
        log = to.partition().log
        log.roll()
        log.sync()
        to.clock.now += 2 * HOUR_MS
        to.put("late")
        assert (await to.lag())[0].lag == 5
        clean(log, to.clock())
        lag = (await to.lag())[0]
        assert (lag.end, lag.lag, lag.lag_ms) == (5, 1, 0)

    consume(tmp_path, scenario, retention_hours=1)


# --- moving


@pytest.mark.parametrize(
    ("place", "value", "target"),
    [
        (Place.EARLIEST, 0, 0),
        (Place.LATEST, 0, 5),
        (Place.OFFSET, 3, 3),
        (Place.OFFSET, 10**15, 5),
        (Place.TIMESTAMP, T0 + 2 * HOUR_MS, 2),
        (Place.TIMESTAMP, T0 + 2 * HOUR_MS + 1, 3),
        (Place.TIMESTAMP, 0, 0),
        (Place.TIMESTAMP, limits.LAST_TIME_MS, 5),
        (Place.DURATION, HOUR_MS, 3),
        (Place.DURATION, limits.MAX_DURATION_MS, 0),
        (Place.DURATION, 0, 4),
    ],
)
def test_a_reset_goes_to_any_place_and_a_dry_run_only_says_where(
    tmp_path: Path, place: Place, value: int, target: int
) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            for number in range(5):
                to.clock.now = T0 + number * HOUR_MS
                to.put(f"m{number}")
            member = (await to.join()).member_id
            await to.poll(member, max_messages=2)
            await to.commit(member, 1)
            await to.leave(member)
            assert await to.reset(place, value, dry_run=True) == {0: target}
            assert await to.offsets() == {"orders": {0: 1}}
            assert await to.reset(place, value) == {0: target}
            assert await to.offsets() == {"orders": {0: target}}
        async with consuming(tmp_path) as to:
            other = (await to.join()).member_id
            polled = await to.poll(other)
            assert texts(polled) == list(numbered(5))[target:]
            assert set(deliveries_of(polled)) <= {1}, "a group that was moved counts from there"

    run_timed(go())


def test_a_reset_below_what_is_left_goes_to_the_first_message_there_is(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put(*numbered(3))
        log = to.partition().log
        log.roll()
        log.sync()
        to.clock.now += 2 * HOUR_MS
        to.put("late")
        clean(log, to.clock())
        for place in (Place.OFFSET, Place.EARLIEST, Place.TIMESTAMP):
            assert await to.reset(place, 0, dry_run=True) == {0: 3}

    consume(tmp_path, scenario, retention_hours=1)


def test_a_reset_may_be_about_one_partition(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        for partition in range(3):
            to.put(*numbered(3), partition=partition)
        assert await to.reset(Place.OFFSET, 2, partition=1) == {1: 2}
        assert await to.offsets() == {"orders": {1: 2}}
        with pytest.raises(UnknownPartition):
            await to.reset(Place.EARLIEST, partition=3)
        assert sorted(places(await to.poll(member)))[3] == ("orders", 1, 2)

    consume(tmp_path, scenario, partitions=3)


def test_a_group_that_lives_is_moved_under_its_members(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put(*numbered(4))
        assert await to.texts(member) == list(numbered(4))
        await to.commit(member, 4)
        await to.reset(Place.OFFSET, 2)
        assert await to.offsets() == {"orders": {0: 2}}
        found = await to.texts(member) or await to.texts(member)
        assert found == ["m2", "m3"]
        await to.commit(member, 4)
        assert await to.offsets() == {"orders": {0: 4}}
        to.put("skipped")
        await to.reset(Place.LATEST)
        to.put("new")
        found = await to.texts(member) or await to.texts(member)
        assert found == ["new"]

    consume(tmp_path, scenario)


def test_a_commit_for_what_was_delivered_before_a_reset_does_not_undo_it(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put(*numbered(4))
        before = await to.poll(member)
        await to.reset(Place.EARLIEST)
        with pytest.raises(NotOwner):
            await to.commit(member, 4, generation=before.view.generation)
        again = await to.poll(member)
        assert texts(again) == list(numbered(4))
        with pytest.raises(NotOwner):
            await to.commit(member, 4, generation=before.view.generation)
        assert await to.offsets() == {"orders": {0: 0}}
        await to.commit(member, 4, generation=again.view.generation)
        assert await to.offsets() == {"orders": {0: 4}}

    consume(tmp_path, scenario)


def test_a_reset_of_a_topic_that_is_new_to_the_group_is_where_it_begins(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            for topic in ("orders", "bills"):
                await to.create(topic)
            to.put(*numbered(3))
            member = (await to.join("worker", "bills")).member_id
            await to.reset(Place.OFFSET, 1)
            await to.join("worker", "bills", "orders", member_id=member, start=LATEST)
            assert await to.texts(member) == ["m1", "m2"]

    run_timed(go())


def test_a_topic_that_is_deleted_while_somebody_waits_for_its_disk_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(fsync=Fsync.EVERY)
            to.put("a")
            member = (await to.join()).member_id
            await to.poll(member)
            committing = asyncio.ensure_future(to.commit(member, 1))
            deleting = asyncio.ensure_future(to.broker.topics.delete("orders", T0))
            done = await asyncio.gather(committing, deleting, return_exceptions=True)
            assert done[1] == ["orders"]
            assert done[0] is None or getattr(done[0], "code", None) in ("unavailable", "unknown_topic"), done
            await turns()

    run_timed(go())


def test_a_group_that_would_begin_where_no_partition_is_is_refused(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            to.put(*numbered(3))
            with pytest.raises(InvalidRequest, match="a time is written as text"):
                await to.join(start=Position(Place.OFFSET, 1_794_798_117_966))

    run_timed(go())


def test_a_commit_of_a_generation_that_never_was_is_refused(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put(*numbered(3))
        await to.poll(member)
        with pytest.raises(InvalidRequest, match="there is no 99"):
            await to.commit(member, 3, generation=99)
        assert await to.offsets() == {"orders": {0: 0}}

    consume(tmp_path, scenario)


def test_what_nobody_holds_any_more_is_not_in_flight(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put(*numbered(3))
        await to.poll(member)
        assert (await to.lag())[0].in_flight == 3
        await to.leave(member)
        assert (await to.lag())[0] == Lag(0, 3, 3, 0, in_flight=0, delayed=0)

    consume(tmp_path, scenario)


# --- delayed messages in the lag


def test_what_is_delayed_is_counted_apart(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            to.put(*numbered(3))
            to.delay("late", "later", by_ms=60_000)
            member = (await to.join(session_ms=HOUR_MS)).member_id
            assert (await to.lag())[0] == Lag(0, 5, 3, 0, in_flight=0, delayed=2), "also before anybody was here"
            polled = await to.poll(member)
            assert (await to.lag())[0] == Lag(0, 5, 3, 0, in_flight=3, delayed=2)
            await to.ack(*handles_of(polled))
            assert (await to.lag())[0] == Lag(3, 5, 0, 0, in_flight=0, delayed=2), "nothing that could be delivered"
            await to.broker.delayed.cancel(to.broker.topics.named("orders"), 0, 4)
            assert (await to.lag())[0] == Lag(3, 5, 0, 0, in_flight=0, delayed=1)
            await to.pass_by(60_010)
            assert (await to.lag())[0][2:3] == (1,)
            assert (await to.lag())[0].delayed == 0
            await to.ack(*handles_of(await to.poll(member)))
            assert (await to.lag())[0] == Lag(5, 5, 0, 0, in_flight=0, delayed=0)

    run_timed(go())


def test_the_age_of_the_lag_is_that_of_the_first_message_that_could_be_delivered(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            to.delay("late", by_ms=24 * HOUR_MS)
            to.delay("never", by_ms=24 * HOUR_MS)
            to.put("done")
            member = (await to.join(session_ms=HOUR_MS)).member_id
            await to.ack(*handles_of(await to.poll(member)))
            await to.broker.delayed.cancel(to.broker.topics.named("orders"), 0, 1)
            to.clock.now += HOUR_MS
            to.put("now")
            to.clock.now += 2000
            assert (await to.lag())[0] == Lag(0, 4, 1, 2000, in_flight=0, delayed=1)
            await to.broker.delayed.move(to.broker.topics.named("orders"), 0, 0, to.clock() + 5000)
            await to.pass_by(5010 + 300)
            assert (await to.lag())[0] == Lag(0, 4, 2, 310, in_flight=0, delayed=0), "since it is due"

    run_timed(go())


def test_where_a_group_begins_passes_over_nothing_that_is_delayed(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            to.delay("late", by_ms=5000)
            to.put("now")
            member = (await to.join(start=LATEST, session_ms=HOUR_MS)).member_id
            await to.pass_by(5010)
            assert await to.texts(member) == [], "latest is behind what was published before, delayed or not"
            await to.reset(Place.EARLIEST)
            assert await to.drain(member) == ["late", "now"]

    run_timed(go())
