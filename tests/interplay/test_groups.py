"""Where groups meet other features: a test per row of the interplay table whose features exist, named after it."""

import asyncio
from pathlib import Path

import pytest

from goqueue.api.handlers.groups import undo_poll
from goqueue.api.operations import BY_NAME
from goqueue.model import limits
from goqueue.model.errors import DiskFull, GoQueueError, NotOwner
from goqueue.model.groups import Place
from goqueue.model.record import Record
from goqueue.model.settings import Fsync
from goqueue.storage.cleaner import clean
from tests.support.faulty_disk import FaultyDisk
from tests.support.held_syncs import syncs_held
from tests.support.loop import run, turns
from tests.support.moved_time import run_timed
from tests.unit.api.services import served
from tests.unit.broker.brokers import T0, Clock, block
from tests.unit.broker.consumers import (
    GROUP,
    LATEST,
    REBALANCE_MS,
    SESSION_MS,
    Consumers,
    consuming,
    deliveries_of,
    numbered,
    texts,
)
from tests.unit.broker.images import PhotographedDisk

HOUR_MS = 3600 * 1000
DAY_MS = 24 * HOUR_MS


@pytest.fixture(autouse=True)
def no_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Housekeeping comes when a test calls it."""
    for interval in ("TICK_INTERVAL_S", "CLEAN_INTERVAL_S"):
        monkeypatch.setattr(limits, interval, 3600.0)


async def drain(to: Consumers, member: str, group: str = GROUP) -> list[str]:
    """Everything there is for a member."""
    found: list[str] = []
    for _ in range(3):  # news may come before messages
        while part := await to.texts(member, group=group):
            found += part
    return found


# --- data log x sidecar log, power cut


def test_data_log_x_sidecar_log_power_cut(tmp_path: Path) -> None:
    """A commit may outlive the messages it names. New messages at their offsets are not born settled."""

    async def go() -> None:
        disk = PhotographedDisk()
        async with consuming(tmp_path, disk=disk) as to:
            await to.create(fsync=Fsync.NONE)
            to.put("safe")
            to.partition().log.sync()
            member = (await to.join()).member_id
            await to.poll(member)
            disk.begin(tmp_path)
            to.put(*("old" * 300 for _ in range(6)))
            delivered = await to.poll(member)
            assert len(texts(delivered)) == 6
            await to.commit(member, 7)
            sidecar = to.partition().sidecar
            assert sidecar is not None
            sidecar.log.sync()
            disk.recording = False
        ends, marks = set(), set()
        for when, image in disk.crashed(range(6)):
            async with consuming(tmp_path, disk=image) as to:
                to.clock.now += 1000
                end = to.partition().log.end_offset
                mark = (await to.offsets()).get("orders", {}).get(0, 0)
                assert mark <= end, when
                ends.add(end)
                marks.add(mark)
                to.put(*numbered(6))
                found = await drain(to, member)
                assert [text for text in found if text.startswith("m")] == list(numbered(6)), when
                # Late, for what was delivered before the power went: it settles nothing that came since.
                if end < 7:
                    try:
                        await to.commit(member, 7, generation=delivered.view.generation, received=delivered.number)
                    except NotOwner:
                        pass
                    assert (await to.offsets())["orders"][0] <= end, when
                await to.leave(member)
                other = (await to.join("other")).member_id
                assert (await drain(to, other))[-6:] == list(numbered(6)), when
        assert {1, 7} <= ends, "no power cut took the messages: this shows nothing"
        assert 7 in marks

    run_timed(go())


# --- unacked x retention


def test_unacked_x_retention(tmp_path: Path) -> None:
    """Retention wins: delivered or not. It is counted, and an operator can see it coming in the lag."""

    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(retention_hours=1)
            log = to.partition().log
            to.put(*numbered(6))
            member = (await to.join()).member_id
            assert await to.texts(member, max_messages=2) == ["m0", "m1"]
            log.roll()
            log.sync()
            to.clock.now += HOUR_MS - 60_000
            to.put("late")
            lag = (await to.lag())[0]
            assert (lag.lag, lag.in_flight, lag.lag_ms) == (7, 2, HOUR_MS - 60_000), "its first message is nearly due"
            to.clock.now += 120_000
            clean(log, to.clock())
            assert log.start_offset == 6
            assert (await to.lag())[0].lag == 1

            assert await to.texts(member) == ["late"]
            counted = to.broker.group_meters.of(GROUP).consumption("orders")
            assert (counted.consumed, counted.missed) == (3, 4)
            await to.commit(member, 7)
            assert await to.offsets() == {"orders": {0: 7}}
            assert (await to.lag())[0][:3] == (7, 7, 0)

    run_timed(go())


def test_unacked_x_retention_of_what_is_to_be_delivered_again(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(retention_hours=1)
            log = to.partition().log
            to.put(*numbered(3))
            member = (await to.join()).member_id
            await to.poll(member)
            log.roll()
            log.sync()
            to.clock.now += 2 * HOUR_MS
            clean(log, to.clock())
            to.put("late")
            await to.leave(member)
            other = (await to.join("other")).member_id
            assert await drain(to, other) == ["late"]
            await to.commit(other, 4)
            assert (await to.lag())[0][:3] == (4, 4, 0)

    run_timed(go())


# --- unacked x compaction


def test_unacked_x_compaction(tmp_path: Path) -> None:
    """An older value goes whether it was settled or not; who has it can still settle it; nobody is kept by the hole."""

    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(cleanup_policy="compact")
            log = to.partition().log
            for number in range(8):
                log.append(block(Record(key=f"k{number % 2}".encode(), value=f"m{number}".encode())), now=T0)
            log.roll()
            log.append(block(Record(key=b"k2", value=b"last")), now=T0)
            log.sync()
            member = (await to.join()).member_id
            assert await to.texts(member, max_messages=3) == ["m0", "m1", "m2"]
            clean(log, T0 + HOUR_MS)
            assert await drain(to, member) == ["m6", "m7", "last"]
            await to.commit(member, 2)
            assert await to.offsets() == {"orders": {0: 2}}
            await to.leave(member)
            other = (await to.join("other")).member_id
            assert await drain(to, other) == ["m6", "m7", "last"], "m2 was not settled, and is no more"
            await to.commit(other, 9)
            assert await to.offsets() == {"orders": {0: 9}}
            assert (await to.lag())[0].lag == 0

    run_timed(go())


# --- lease x restart


def test_lease_x_restart(tmp_path: Path) -> None:
    """After a kill everything is known; after a power cut a lease or a commit may be gone: redelivery, never loss."""

    async def go() -> None:
        disk = PhotographedDisk()
        async with consuming(tmp_path, disk=disk) as to:
            await to.create(fsync=Fsync.NONE)
            to.put(*numbered(6))
            to.partition().log.sync()
            member = (await to.join()).member_id
            disk.begin(tmp_path)
            answered: list[tuple[int, int, int]] = []
            """After so many changes of the disk: how many were delivered, how many of them settled."""
            for taken in (2, 4):
                await to.poll(member, max_messages=2)
                answered.append((len(disk.images), taken, taken - 2))
                await to.commit(member, taken)
                answered.append((len(disk.images), taken, taken))
            disk.recording = False
        kills = 0
        for when, image in disk.crashed(range(4)):
            number = int(when.split("change ")[1].split(",")[0])
            delivered, settled = max(((d, s) for at, d, s in answered if at <= number), default=(0, 0))
            later = min((d for at, d, _ in answered if at > number), default=4)
            async with consuming(tmp_path, disk=image) as to:
                mark = (await to.offsets()).get("orders", {}).get(0, 0)
                found = await drain(to, member)
                if when.startswith("kill"):
                    kills += 1
                    assert settled <= mark <= later, when
                    first = 6 - len(found)
                    assert delivered <= first <= later, (when, "what it has is not delivered again")
                assert found == list(numbered(6))[6 - len(found) :], when
                await to.commit(member, 6)
                assert (await to.offsets())["orders"] == {0: 6}, (when, "old and new deliveries can be settled")
            async with consuming(tmp_path, disk=image) as to:
                await to.leave(member)
                other = (await to.join("other")).member_id
                assert await drain(to, other) == []
        assert kills > 4

    run_timed(go())


def test_lease_x_restart_counts_deliveries(tmp_path: Path) -> None:
    async def go() -> None:
        member, other = "", ""
        async with consuming(tmp_path) as to:
            await to.create()
            to.put("a")
            member = (await to.join()).member_id
            await to.poll(member)
        async with consuming(tmp_path) as to:
            await to.leave(member)
            other = (await to.join()).member_id
            assert deliveries_of(await to.poll(other)) == [2]
        async with consuming(tmp_path) as to:
            await to.leave(other)
            third = (await to.join()).member_id
            assert deliveries_of(await to.poll(third)) == [3]

    run_timed(go())


# --- ack x fsync


@pytest.mark.parametrize("fsync", Fsync)
def test_ack_x_fsync(tmp_path: Path, fsync: Fsync) -> None:
    """The answer to a commit means written under none and interval, durable under every."""

    async def go() -> None:
        disk = FaultyDisk()
        async with consuming(tmp_path, disk=disk) as to:
            await to.create(fsync=fsync)
            to.put(*numbered(2))
            member = (await to.join()).member_id
            await to.poll(member)
            with syncs_held(disk, "/sidecar/") as held:
                committing = asyncio.ensure_future(to.commit(member, 1))
                if fsync is Fsync.EVERY:
                    await held.reached()
                    await turns()
                    assert not committing.done()
                    held.release()
                await committing
            assert await to.offsets() == {"orders": {0: 1}}

    run_timed(go())


def test_ack_x_fsync_a_power_cut_takes_no_commit_that_was_answered_under_every(tmp_path: Path) -> None:
    async def go() -> None:
        disk = PhotographedDisk()
        answered: list[int] = []
        async with consuming(tmp_path, disk=disk) as to:
            await to.create(fsync=Fsync.EVERY)
            to.put(*numbered(4))
            to.partition().log.sync()
            member = (await to.join()).member_id
            await to.poll(member)
            disk.begin(tmp_path)
            for below in range(1, 5):
                await to.commit(member, below)
                answered.append(len(disk.images))
            disk.recording = False
        for when, image in disk.crashed(range(3)):
            number = int(when.split("change ")[1].split(",")[0])
            async with consuming(tmp_path, disk=image) as to:
                mark = (await to.offsets()).get("orders", {}).get(0, 0)
                assert mark >= sum(at <= number for at in answered), when

    run_timed(go())


# --- poll x broken connection


def test_poll_x_broken_connection(tmp_path: Path) -> None:
    """Messages of a reply that could not be written are released, no attempt counted, also for another member."""

    async def go() -> None:
        async with served(tmp_path) as to:
            await to.call("create_topic", name="orders", num_partitions=2)
            for partition in (0, 1):
                await to.call("publish", topic="orders", value=f"m{partition}", partition=partition)
            joined = await to.call("join_group", group="billing", client_id="worker", topics=["orders"])
            asked = {"group": "billing", "member_id": joined["member_id"], "timeout": 0}
            for _ in range(3):
                lost = await BY_NAME["poll"].call(to.service, dict(asked))
                undo_poll(to.service, lost)
            lag = await to.call("group_lag", group="billing")
            assert [found["in_flight"] for found in lag["topics"]["orders"].values()] == [0, 0]
            await to.call("leave_group", group="billing", member_id=joined["member_id"])
            undo_poll(to.service, lost)
            joined = await to.call("join_group", group="billing", client_id="worker", topics=["orders"])
            polled = await to.call("poll", **{**asked, "member_id": joined["member_id"]})
            found = sorted((message["value"], message["delivery_count"]) for message in polled["messages"])
            assert found == [("m0", 1), ("m1", 1)]

    run(go())


# --- rebalance x in-flight, rebalance x commit


def test_rebalance_x_in_flight(tmp_path: Path) -> None:
    """The old owner may commit until its time is up; then that partition is fenced, and only that one."""

    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(partitions=2)
            for partition in (0, 1):
                to.put(*numbered(4), partition=partition)
            old = (await to.join("old", session_ms=10 * REBALANCE_MS)).member_id
            held = await to.poll(old)
            new = (await to.join("new", session_ms=10 * REBALANCE_MS)).member_id
            (moving,) = (part.partition for part in to.group().revoking(to.member(old)))
            await to.heartbeat(old)
            await to.pass_by(REBALANCE_MS - 1)
            await to.heartbeat(old)
            await to.commit(old, 2, partition=moving, generation=held.view.generation)
            assert await to.texts(new) == [], "until then it is the old one's"
            await to.pass_by(1)
            with pytest.raises(NotOwner):
                await to.commit(old, 4, partition=moving, generation=held.view.generation)
            await to.commit(old, 4, partition=1 - moving, generation=held.view.generation)
            polled = await to.poll(new)
            assert (texts(polled), deliveries_of(polled)) == (["m2", "m3"], [2, 2])
            await to.commit(new, 4, partition=moving, generation=polled.view.generation)
            assert await to.offsets() == {"orders": {0: 4, 1: 4}}

    run_timed(go())


def test_rebalance_x_commit(tmp_path: Path) -> None:
    """A member that keeps its partitions never gets a conflict, whatever the others do."""

    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(partitions=6)
            steady = (await to.join("steady")).member_id
            first = (await to.poll(steady)).view.generation
            others: list[str] = []
            kept = set(range(6))
            done: dict[int, int] = {}
            for step in range(30):
                if step % 3 == 2 and others:
                    await to.leave(others.pop(0))
                else:
                    others.append((await to.join(f"other{step}")).member_id)
                    others = others[-2:] if len(others) < 3 else others
                for member in (steady, *others):
                    for _ in range(2):
                        if member in to.group().members:
                            await to.heartbeat(member)
                kept &= set(to.owned(steady))
                assert kept, "something must stay with it all the time, or this shows nothing"
                for partition in kept:
                    to.put(f"m{step}", partition=partition)
                await to.poll(steady, max_messages=1000)
                offsets = {"orders": {partition: to.partition(partition).log.end_offset for partition in kept}}
                await to.commit(steady, offsets, generation=first)
                done = offsets["orders"]
            assert to.group().generation > first + 10
            found = (await to.offsets())["orders"]
            assert {partition: found[partition] for partition in done} == done

    run_timed(go())


# --- topic delete x everything


def test_topic_delete_x_groups(tmp_path: Path) -> None:
    """Offsets, leases and late commits of the old topic never touch a new one of the same name; nor after a restart."""

    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            to.put(*numbered(5))
            member = (await to.join(start=LATEST)).member_id
            await to.reset(Place.EARLIEST)
            await to.poll(member)
            held = await to.poll(member)
            await to.commit(member, 3)
            await to.broker.topics.delete("orders", T0)
            with pytest.raises(NotOwner):
                await to.commit(member, 5)
            await to.create()
            await to.followed()
            assert await to.offsets() == {}
            to.put("n0", "n1", "n2", "n3", "n4", "n5")
            with pytest.raises(NotOwner):
                await to.commit(member, 5, generation=held.view.generation)
            assert len(await drain(to, member)) == 6
            with pytest.raises(NotOwner):
                await to.commit(member, 5, generation=held.view.generation)
            assert await to.offsets() == {"orders": {0: 0}}
            await to.commit(member, 2)
            await to.broker.topics.finish()
            assert len(list(tmp_path.glob("logs/orders/*"))) == 1
        async with consuming(tmp_path) as to:
            assert await to.offsets() == {"orders": {0: 2}}
            await to.leave(member)
            other = (await to.join("other")).member_id
            assert await drain(to, other) == ["n2", "n3", "n4", "n5"]

    run_timed(go())


def test_topic_delete_x_groups_while_the_broker_dies(tmp_path: Path) -> None:
    """Wherever it is cut: the topic is the old one with its offsets, or the new one without."""

    async def go() -> None:
        disk = PhotographedDisk()
        async with consuming(tmp_path, disk=disk) as to:
            await to.create(fsync=Fsync.EVERY)
            to.put("old", "old")
            member = (await to.join()).member_id
            await to.poll(member)
            await to.commit(member, 1)
            disk.begin(tmp_path)
            await to.delete()
            await to.create(fsync=Fsync.EVERY)
            await to.followed()
            await to.broker.topics.finish()
            disk.recording = False
        seen = set()
        for when, image in disk.crashed(range(1)):
            async with consuming(tmp_path, disk=image) as to:
                topic = to.broker.topics.by_name.get("orders")
                offsets = await to.offsets()
                if topic is None:
                    assert offsets == {}, when
                    seen.add("none")
                    continue
                old = topic.partition(0).log.end_offset == 2
                assert offsets == ({"orders": {0: 1}} if old else {}), when
                seen.add("old" if old else "new")
                to.put("x")
                await to.leave(member)
                other = (await to.join("other")).member_id
                assert await drain(to, other) == (["old", "x"] if old else ["x"]), when
        assert seen == {"old", "none", "new"}

    run_timed(go())


# --- disk full x acks


def test_disk_full_x_acks(tmp_path: Path) -> None:
    """Publishing is refused first; polls, commits, joins and resets go on, over a restart too."""

    async def go() -> None:
        disk = FaultyDisk()
        async with consuming(tmp_path, disk=disk) as to:
            await to.create(partitions=2, fsync=Fsync.EVERY)
            await to.create("unseen")
            to.put(*numbered(30))
            to.put("first", topic="unseen")
            member = (await to.join("worker", "orders", "unseen")).member_id
            disk.free = 0
            for below in range(1, 11):
                with pytest.raises(DiskFull):
                    to.put("more")
                await to.poll(member, max_messages=1)
                try:
                    await to.commit(member, below)
                except GoQueueError as error:
                    raise AssertionError(f"commit {below} was refused: {error}") from error
            other = (await to.join("other", "orders")).member_id
            for _ in range(2):
                await to.poll(member, max_messages=1)
                await to.poll(other, max_messages=1)
            await to.leave(other)
        async with consuming(tmp_path, disk=disk) as to:
            assert (await to.offsets())["orders"][0] >= 9
            with pytest.raises(DiskFull):
                to.put("more")
            await to.reset(Place.OFFSET, 20, partition=0)
            found = await drain(to, member)
            assert set(numbered(10, 20)) <= set(found)
            await to.commit(member, 30)
            assert (await to.offsets())["orders"][0] == 30
            disk.free = None
            await to.broker._housekeeping.tick()
            to.put("more")
            assert await drain(to, member) == ["more"]

    run_timed(go())


# --- clock jump x sessions


def test_clock_jump_x_sessions(tmp_path: Path) -> None:
    """Sessions and revoke windows are measured with the clock that is never set; poll numbers grow all the same."""

    async def go() -> None:
        clock = Clock()
        async with consuming(tmp_path, clock=clock) as to:
            await to.create(partitions=2)
            first = (await to.join("a")).member_id
            for partition in (0, 1):
                to.put("x", partition=partition)
            numbers = [(await to.poll(first)).number]
            await to.join("b")
            for step in (DAY_MS, -3 * DAY_MS, 5 * DAY_MS):
                clock.now += step
                await to.followed()
                assert len(to.group().members) == 2
                assert to.owned(first) == [0, 1], "it has its time to give one up"
                to.put("y", partition=0)
                numbers.append((await to.poll(first)).number)
                assert all(lag.lag_ms >= 0 for lag in (await to.lag()).values())
            assert numbers == sorted(set(numbers))
            to.time.move(SESSION_MS)
            await to.followed()
            assert to.group().members == {}

    run_timed(go())
