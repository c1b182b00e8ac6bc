"""Where delivery meets other features: a test per row of the interplay table whose features exist, named after it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from goqueue import codec
from goqueue.api.handlers.groups import undo_poll
from goqueue.api.operations import BY_NAME
from goqueue.broker.delayed import DelayState
from goqueue.broker.settle import Fate
from goqueue.broker.topic import OpenTopic
from goqueue.client.connection import Connection
from goqueue.client.member import Member
from goqueue.delivery.handles import Handle
from goqueue.jobs.letters import LetterFilter
from goqueue.model import limits
from goqueue.model.errors import DiskFull, UnknownDelay
from goqueue.model.groups import Mode
from goqueue.model.record import Lane
from goqueue.model.settings import Fsync
from goqueue.model.topic import CleanupPolicy, LanePolicy, OnExpiry
from goqueue.server.server import Server
from goqueue.storage.cleaner import clean
from goqueue.wire.settles import Action
from tests.support.faulty_disk import FaultyDisk
from tests.support.loop import run, turns
from tests.support.moved_time import run_timed
from tests.unit.api.services import served
from tests.unit.broker.brokers import T0, Clock, messages
from tests.unit.broker.consumers import (
    GROUP,
    REBALANCE_MS,
    SESSION_MS,
    TOPIC,
    Consumers,
    consuming,
    deliveries_of,
    handle_of,
    handles_of,
    message,
    numbered,
    records_of,
    refused,
    texts,
)
from tests.unit.broker.images import PhotographedDisk
from tests.unit.client.test_member import create, poll_some, publish, serve, values

SECOND_MS = 1000
HOUR_MS = 3600 * 1000
DAY_MS = 24 * HOUR_MS
TICK_MS = 10
LONG_MS = limits.MAX_SESSION_MS
every_mode = pytest.mark.parametrize("mode", Mode)


@pytest.fixture(autouse=True)
def no_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Housekeeping comes when a test calls it."""
    for interval in ("TICK_INTERVAL_S", "CLEAN_INTERVAL_S"):
        monkeypatch.setattr(limits, interval, 10.0**9)


def topic(to: Consumers) -> OpenTopic:
    return to.broker.topics.named("orders")


def seal(to: Consumers) -> None:
    """What is there becomes old: the cleaner looks at sealed segments only."""
    log = to.partition().log
    log.roll()
    log.sync()


async def release(to: Consumers, *handles: Handle) -> list[Fate]:
    return await to.broker.settlement.release(handles)


def change_number(when: str) -> int:
    return int(when.split("change ")[1].split(",")[0])


# --- delay x retention


def test_delay_x_retention(tmp_path: Path) -> None:
    """A delay of 400 days, a retention of 7: it fires, and the disk does not fill up on its account."""

    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(retention_hours=7 * 24)
            to.delay("far", by_ms=400 * DAY_MS)
            to.delay("moved", by_ms=DAY_MS)
            await to.broker.delayed.move(topic(to), 0, 1, T0 + 402 * DAY_MS)
            log = to.partition().log
            sizes = []
            for week in range(58):
                to.put(*([f"week {week} " + "x" * 500] * 40))
                seal(to)
                await to.pass_by(7 * DAY_MS)
                await to.broker._housekeeping.clean()
                sizes.append(sum(segment.size for segment in log.segments))
                if week == 30:
                    assert [record.value for record in records_of(to.partition())[:2]] == [b"far", b"moved"]
            assert max(sizes[10:]) < 4 * 40 * 700, "only they are kept of their segment"
            member = (await to.join()).member_id
            assert {"far", "moved"} <= set(await to.drain(member, max_messages=500)), "due, and younger than 7 days"
            await to.pass_by(8 * DAY_MS)
            await to.broker._housekeeping.clean()
            assert log.start_offset > 2, "their age runs from when they were due"

    run_timed(go())


# --- unacked x retention


@every_mode
def test_unacked_x_retention(tmp_path: Path, mode: Mode) -> None:
    """Retention wins, whatever the state of a message: it is counted, and nobody waits for it."""

    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(retention_hours=0.5, visibility_ms=LONG_MS)
            to.send(*(message(f"m{number}", key=f"k{number}") for number in range(6)))
            member = (await to.join(mode=mode, session_ms=LONG_MS)).member_id
            polled = await to.poll(member, max_messages=4)
            await to.ack(handle_of(polled, "m0"))
            await to.nack(handle_of(polled, "m1"), delay_ms=LONG_MS)
            seal(to)
            await to.pass_by(HOUR_MS // 2 - 60_000)
            to.send(message("late", key="late"))
            lag = (await to.lag())[0]
            assert (lag.lag, lag.lag_ms) == (6, HOUR_MS // 2 - 60_000), "an operator can see it coming"
            await to.pass_by(120_000)
            await to.broker._housekeeping.clean()
            assert to.partition().log.start_offset == 6
            assert (await to.lag())[0].lag == 1
            assert await to.drain(member) == ["late"]
            counted = to.broker.group_meters.of(GROUP).consumption("orders")
            assert counted.missed >= 2, "those that were never delivered, at least"
            assert refused(await to.ack(handle_of(polled, "m2"))) == [False], "who has it may still settle it"
            await to.pass_by(LONG_MS - 1)
            other = (await to.join("other")).member_id
            assert set(await to.drain(other)) <= {"late"}, "what was given back is gone, too"

    run_timed(go())


# --- unacked or delayed x compaction


@every_mode
def test_unacked_or_delayed_x_compaction(tmp_path: Path, mode: Mode) -> None:
    """An older value goes whether it was acked or not, because the topic asked for it; what is leased stays until its
    lease has ended, a delayed one until it was delivered."""

    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(cleanup_policy=CleanupPolicy.COMPACT, visibility_ms=5000)
            to.send(
                message("a1", key="a"),
                message("b1", key="b"),
                message("a-late", key="a", deliver_at=-DAY_MS),
                message("a2", key="a"),
                message("b2", key="b"),
            )
            seal(to)
            to.send(message("c1", key="c"))
            to.partition().log.sync()
            member = (await to.join(mode=mode, session_ms=LONG_MS)).member_id
            polled = await to.poll(member, max_messages=2)
            assert texts(polled) == ["a1", "b1"]
            await to.ack(handle_of(polled, "b1"))
            clean(to.partition().log, to.clock() + HOUR_MS, to.partition().due_times)
            found: list[str] = []
            for _ in range(6):
                polled = await to.poll(member)
                found += texts(polled)
                await to.ack(*handles_of(polled))
                await to.pass_by(2000)
            assert sorted(found) == ["a1", "a2", "b2", "c1"], "a1 lapsed meanwhile, and came again"
            clean(to.partition().log, to.clock() + HOUR_MS, to.partition().due_times)
            assert records_of(to.partition())[0].value == b"a-late"
            await to.pass_by(DAY_MS)
            other = (await to.join("other")).member_id
            assert await to.drain(other) == ["a-late"], "it fires though a newer value came"

    run_timed(go())


def test_cancelled_x_compaction(tmp_path: Path) -> None:
    """A value that was cancelled replaces none."""

    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(cleanup_policy=CleanupPolicy.COMPACT)
            to.send(message("a1", key="a"), message("never", key="a", deliver_at=-DAY_MS))
            await to.broker.delayed.cancel(to.broker.topics.named(TOPIC), 0, 1)
            seal(to)
            to.send(message("b1", key="b"))
            to.partition().log.sync()
            clean(to.partition().log, to.clock() + HOUR_MS, to.partition().due_times)
            assert [record.value for record in records_of(to.partition())] == [b"a1", b"b1"]
            assert await to.drain((await to.join()).member_id) == ["a1", "b1"]

    run_timed(go())


# --- lanes x commit


def test_lanes_x_commit(tmp_path: Path) -> None:
    """Delivery is out of offset order: a commit at n settles what was delivered below n, nothing else."""

    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(lane_policy=LanePolicy.STRICT)
            to.put(*numbered(5))
            to.send(message("urgent5", lane=Lane.CRITICAL), message("urgent6", lane=Lane.CRITICAL))
            member = (await to.join()).member_id
            first = await to.poll(member, max_messages=3)
            assert texts(first) == ["urgent5", "urgent6", "m0"]
            await to.commit(member, 7)
            assert await to.offsets() == {"orders": {0: 1}}, "m1 to m4 were not delivered"
            assert (await to.lag())[0].lag == 4
            assert await to.texts(member) == ["m1", "m2", "m3", "m4"]
            await to.commit(member, 3)
            assert (await to.offsets(), (await to.lag())[0].lag) == ({"orders": {0: 3}}, 2)
            await to.commit(member, 7)
            assert await to.offsets() == {"orders": {0: 7}}

    run_timed(go())


# --- lanes x huge backlog


def test_lanes_x_huge_backlog(tmp_path: Path) -> None:
    """One critical message behind many normals is in the next poll, and the backlog is not in memory."""

    async def go() -> None:
        clock = Clock()
        async with consuming(tmp_path, clock=clock) as to:
            await to.create(segment_bytes=64 * limits.KIB)
            log = to.partition().log
            for _ in range(60):
                log.append(messages(*(["normal"] * 500)), now=to.clock())
            assert len(log.segments) > 10
            to.send(message("urgent", lane=Lane.CRITICAL))
            log.sync()
        async with consuming(tmp_path, clock=clock) as to:
            member = (await to.join()).member_id
            assert (await to.texts(member, max_messages=10))[0] == "urgent"
            selection = to.deliveries().selection(to.group().number)
            assert sum(map(len, selection._staged)) <= 100, "cursors over the views, not the backlog"
            await to.commit(member, to.partition().log.end_offset)
            to.send(message("another", lane=Lane.CRITICAL))
            assert "another" in await to.texts(member, max_messages=100)

    run_timed(go())


# --- lanes x acks


def test_lanes_x_acks(tmp_path: Path) -> None:
    """Acks of every other message cost bits, not ranges."""

    async def go() -> None:
        clock = Clock()
        count = 20_000
        async with consuming(tmp_path, clock=clock) as to:
            await to.create()
            for first in range(0, count, 2000):
                to.put(*numbered(2000, first))
            member = (await to.join(max_unacked=limits.MAX_UNACKED, session_ms=LONG_MS)).member_id
            for _ in range(count // 5000):
                polled = await to.poll(member, max_messages=5000, max_bytes=1 << 23)
                await to.ack(*handles_of(polled)[1::2])
            delivery = to.deliveries().delivery(to.group().number)
            assert (await to.lag())[0].lag == count // 2
            assert len(delivery.settled.to_bytes()) < 9000, "a bit each, for 65,536 at least"
            sidecar = to.partition().sidecar
            assert sidecar is not None
            await to.broker._housekeeping.snapshot(sidecar.host)
        async with consuming(tmp_path, clock=clock) as to:
            assert (await to.lag())[0].lag == count // 2
            await to.pass_by(30_000)
            again = await to.poll(member, max_messages=5000)
            assert texts(again)[:3] == ["m0", "m2", "m4"]

    run_timed(go())


# --- lanes x key order


def test_lanes_x_key_order(tmp_path: Path) -> None:
    """Lanes may reorder different keys; a key's messages keep their order whatever their lanes."""

    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(lane_policy=LanePolicy.STRICT)
            lanes = (Lane.BACKGROUND, Lane.CRITICAL, Lane.LOW, Lane.HIGH)
            for number, lane in enumerate(lanes):
                to.send(*(message(f"{key}{number}", key=key, lane=lane) for key in "ab"))
            to.send(message("c0", key="c", lane=Lane.CRITICAL))
            members = [(await to.join(name, mode=Mode.KEY)).member_id for name in ("one", "two")]
            seen: list[str] = []
            for _ in range(6):
                for member in members:
                    polled = await to.poll(member, max_messages=2)
                    seen += texts(polled)
                    await to.ack(*handles_of(polled))
            assert seen[0] == "c0", "the most urgent head of all keys"
            for key in "ab":
                assert [text for text in seen if text[0] == key] == [f"{key}{number}" for number in range(4)]

    run_timed(go())


# --- delay x key order


def test_delay_x_key_order(tmp_path: Path) -> None:
    """A message delayed by its publisher joins its key when due; nack, backoff and lease loss do hold the key."""

    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(visibility_ms=20_000)
            to.send(
                message("a-late", key="a", deliver_at=-10_000), message("a1", key="a"), message("a2", key="a"),
                message("b1", key="b"), message("b2", key="b"),
            )  # fmt: skip
            member = (await to.join(mode=Mode.KEY, session_ms=LONG_MS)).member_id
            first = await to.poll(member)
            assert texts(first) == ["a1", "b1"], "a delay holds up nobody"
            await to.nack(handle_of(first, "a1"), delay_ms=15_000)
            await to.pass_by(10_000 + TICK_MS)
            assert await to.texts(member) == [], "due by now, but a1 is to come again first"
            await to.pass_by(5000)
            again = await to.poll(member)
            assert (texts(again), deliveries_of(again)) == (["a1"], [2])
            await to.pass_by(5000)
            lapsed = await to.poll(member)
            assert (texts(lapsed), deliveries_of(lapsed)) == (["b1"], [2]), "b2 is behind what lapsed"
            await to.ack(*handles_of(again), *handles_of(lapsed))
            rest = []
            while polled := await to.poll(member):
                if not polled.rows:
                    break
                rest += texts(polled)
                await to.ack(*handles_of(polled))
            assert [text for text in rest if text[0] == "a"] == ["a2", "a-late"]

    run_timed(go())


# --- delay x groups


def test_delay_x_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One list of what is due for all groups; a burst is delivered in the order of offsets, in slices."""
    monkeypatch.setattr(limits, "FIRED_AT_ONCE", 50)

    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            to.delay(*numbered(300), by_ms=60_000)
            groups = [f"group{number}" for number in range(5)]
            members = {group: (await to.join(group=group, session_ms=LONG_MS)).member_id for group in groups}
            for group, member in members.items():
                assert await to.texts(member, group=group) == []
            assert len(to.partition().delays) == 300, "not one entry per group"
            to.clock.now += 60_000 + TICK_MS
            to.time.move(60_000 + TICK_MS)
            await turns(2)
            assert 0 < len(to.partition().delays) < 300, "others get a turn in between"
            await to.followed()
            while to.partition().delays.pending:
                await turns(2)
            for group, member in members.items():
                assert await to.drain(member, group=group) == list(numbered(300))

    run_timed(go())


# --- delay x simple reads


def test_delay_x_simple_reads(tmp_path: Path) -> None:
    """Raw reads return them with deliver-at; HTTP reads hide what is not yet due unless they are asked for."""

    async def go() -> None:
        async with served(tmp_path) as to:
            await to.call("create_topic", name="orders", num_partitions=1)
            for value, fields in (("a", {}), ("late", {"delay": "1m"}), ("b", {})):
                await to.call("publish", topic="orders", value=value, **fields)
            partition = to.broker.topics.named("orders").partition(0)
            raw = records_of(partition)
            assert [record.value for record in raw] == [b"a", b"late", b"b"]
            assert raw[1].extension is not None
            assert raw[1].extension.deliver_at == T0 + 60_000
            for operation, place in (("read_partition", {"partition": 0}), ("read_topic", {})):
                hidden = await to.call(operation, topic="orders", **place)
                assert [each["value"] for each in hidden["messages"]] == ["a", "b"]
                shown = await to.call(operation, topic="orders", include="delayed", **place)
                assert [each["value"] for each in shown["messages"]] == ["a", "late", "b"]
                assert shown["messages"][1]["deliver_at"] == "2023-11-14T22:14:20.000Z"

    run(go())


# --- delay x TTL


@pytest.mark.parametrize("on_expiry", OnExpiry)
def test_delay_x_ttl(tmp_path: Path, on_expiry: OnExpiry) -> None:
    """A time to live counts from deliver-at, the message's own and the topic's."""

    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(message_ttl_ms=10_000, on_expiry=on_expiry)
            to.send(
                message("own", deliver_at=-60_000, expires_at=-5000),
                message("topic's", deliver_at=-60_000),
                message("other", deliver_at=-60_000, expires_at=-5000),
            )
            member = (await to.join(session_ms=LONG_MS)).member_id
            await to.pass_by(60_000 + TICK_MS)
            assert await to.texts(member, max_messages=1, visibility_ms=LONG_MS) == ["own"]
            await to.pass_by(5000)
            assert await to.texts(member) == ["topic's"]
            letters = [story.offset for _, story in await to.letters()]
            assert letters == ([2] if on_expiry is OnExpiry.DLQ else [])

    run_timed(go())


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("moved_to_ms", [-SECOND_MS, 5 * SECOND_MS, 60 * SECOND_MS])
def test_delay_x_ttl_x_move(tmp_path: Path, own: bool, moved_to_ms: int) -> None:
    """It counts from the time a message was moved to, later or earlier; from now, if that has passed."""

    async def go() -> None:
        async with consuming(tmp_path) as to:
            ttl_ms = 5 * SECOND_MS
            await to.create(message_ttl_ms=None if own else ttl_ms)
            for text in ("in time", "late"):
                to.send(message(text, deliver_at=-20 * SECOND_MS, expires_at=-ttl_ms if own else None))
            topic = to.broker.topics.named(TOPIC)
            for offset in (0, 1):
                await to.broker.delayed.move(topic, 0, offset, to.clock() + moved_to_ms)
            member = (await to.join(session_ms=LONG_MS)).member_id
            await to.pass_by(max(moved_to_ms, 0) + ttl_ms - 100)
            assert await to.texts(member, max_messages=1) == ["in time"]
            await to.pass_by(200)
            assert await to.texts(member) == []

    run_timed(go())


# --- hold: one concept


def test_hold_one_concept(tmp_path: Path) -> None:
    """Due time, backoff, lease, busy key: a record that is not selectable until something happens, and then is."""

    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(visibility_ms=40_000)
            to.send(
                message("due", deliver_at=-10_000), message("backoff"), message("leased"),
                message("head", key="k"), message("behind", key="k"), message("cancelled", deliver_at=-10_000),
            )  # fmt: skip
            member = (await to.join(mode=Mode.KEY, session_ms=LONG_MS)).member_id
            polled = await to.poll(member)
            assert texts(polled) == ["backoff", "leased", "head"]
            await to.nack(handle_of(polled, "backoff"), delay_ms=20_000)
            await to.extend(handle_of(polled, "head"), by_ms=LONG_MS)
            await to.broker.delayed.cancel(topic(to), 0, 5)
            lag = (await to.lag())[0]
            assert (lag.lag, lag.delayed, lag.in_flight) == (4, 1, 2)
            for passed_ms, comes in ((10_000, ["due"]), (10_000, ["backoff"]), (20_000, ["leased"])):
                waiting = await to.parked(member)
                await to.pass_by(passed_ms - 1)
                assert not waiting.done(), comes
                await to.pass_by(1 + TICK_MS)
                found = await waiting
                assert texts(found) == comes
                await to.ack(*handles_of(found))
                to.clock.now -= TICK_MS  # so that the next one is as late as it is said to be
                to.time.move(-TICK_MS)
            waiting = await to.parked(member)
            await to.ack(handle_of(polled, "head"))
            assert texts(await waiting) == ["behind"]

    run_timed(go())


# --- nack x lane, restart


@every_mode
def test_nack_x_lane_restart_redrive(tmp_path: Path, mode: Mode) -> None:
    """Lane, key, headers and attempts survive a retry, a restart, the way to the dead letters and the way back."""

    async def go() -> None:
        clock = Clock()
        sent = message("a", key="k", lane=Lane.HIGH, headers=(("trace", b"1"), ("trace", b"2")))
        async with consuming(tmp_path, clock=clock) as to:
            await to.create(max_retries=3)
            to.send(sent)
            member = (await to.join(mode=mode, session_ms=LONG_MS)).member_id
            await to.nack(*handles_of(await to.poll(member)))
        for count in (2, 3, 4):
            clock.now += 60_000
            async with consuming(tmp_path, clock=clock) as to:
                await to.pass_by(0)
                polled = await to.poll(member)
                assert deliveries_of(polled) == [count]
                (record,) = records_of(to.partition())
                kept = (record.key, record.value, record.priority, record.headers)
                assert kept == (sent.key, sent.value, sent.priority, sent.headers)
                await to.nack(*handles_of(polled))
        async with consuming(tmp_path, clock=clock) as to:
            ((letter, story),) = await to.letters()
            assert (letter.key, letter.value, letter.priority, letter.headers) == kept
            assert (story.deliveries, story.reason) == (4, "nacked")
            await to.broker.redrives.begin(TOPIC, LetterFilter())
            await turns()
            while to.broker.redrives._workers:
                await to.pass_by(10)
            polled = await to.poll(member)
            (record,) = [record for row in polled.rows for record in codec.decode(row.chunk.data)]
            assert (record.key, record.value, record.priority, record.headers) == kept
            assert (record.offset, deliveries_of(polled)) == (1, [1])

    run_timed(go())


# --- lease x restart


def test_lease_x_restart(tmp_path: Path) -> None:
    """After a kill leases, attempts and the delivered set are known and handles work; after a power cut they may be
    gone: redelivery, never loss."""

    async def go() -> None:
        disk = PhotographedDisk()
        async with consuming(tmp_path, disk=disk) as to:
            await to.create(fsync=Fsync.NONE)
            to.put(*numbered(4))
            to.partition().log.sync()
            member = (await to.join()).member_id
            disk.begin(tmp_path)
            first = await to.poll(member, max_messages=2)
            polled_at = len(disk.images)
            await to.ack(handle_of(first, "m0"))
            acked_at = len(disk.images)
            await to.nack(handle_of(first, "m1"))
            nacked_at = len(disk.images)
            await to.poll(member, max_messages=1)
            disk.recording = False
        kills = 0
        for when, image in disk.crashed(range(2)):
            number = change_number(when)
            async with consuming(tmp_path, disk=image) as to:
                if when.startswith("kill"):
                    kills += 1
                    m0, m1 = refused(await to.ack(*handles_of(first)))
                    if number >= polled_at:
                        assert m0 == (number >= acked_at), when
                        assert m1 == (number >= nacked_at), when
                    if number >= nacked_at:
                        await to.pass_by(1000)
                        found = await to.poll(member)
                        assert ("m1", 2) in zip(texts(found), deliveries_of(found), strict=True), when
                        await to.ack(*handles_of(found))
                await to.leave(member)
                await to.pass_by(1000)
                other = (await to.join("other")).member_id
                rest = await to.drain(other)
                assert {"m2", "m3"} <= set(rest) or number >= nacked_at, (when, rest)
                await to.commit(other, 4)
                assert (await to.lag())[0].lag == 0, (when, "nothing is lost, nothing is left behind")
        assert kills > 3

    run_timed(go())


# --- ack x fsync


def test_ack_x_fsync(tmp_path: Path) -> None:
    """Under every, a power cut takes no ack, nack, reject or release that was answered."""

    async def go() -> None:
        disk = PhotographedDisk()
        answered: list[int] = []
        async with consuming(tmp_path, disk=disk) as to:
            await to.create(fsync=Fsync.EVERY, dlq_enabled=False)
            to.put(*numbered(4))
            to.partition().log.sync()
            member = (await to.join()).member_id
            polled = await to.poll(member)
            disk.begin(tmp_path)
            await to.ack(handle_of(polled, "m0"))
            answered.append(len(disk.images))
            await to.reject(handle_of(polled, "m1"))
            answered.append(len(disk.images))
            await to.nack(handle_of(polled, "m2"), delay_ms=HOUR_MS)
            answered.append(len(disk.images))
            await release(to, handle_of(polled, "m3"))
            answered.append(len(disk.images))
            disk.recording = False
        for when, image in disk.crashed(range(3)):
            done = sum(at <= change_number(when) for at in answered)
            async with consuming(tmp_path, disk=image) as to:
                delivery = to.deliveries().delivery(to.group().number)
                assert delivery.low >= min(done, 2), when
                if done >= 3:
                    assert [list(wait.offsets) for wait in delivery.waits] == [[2]], when
                if done == 4:
                    assert (3 in delivery.taken, delivery.deliveries_of(3)) == (False, 0), when

    run_timed(go())


# --- poll x broken connection


@pytest.mark.parametrize("mode", ["partition", "shared", "key"])
def test_poll_x_broken_connection(tmp_path: Path, mode: str) -> None:
    """Messages of a reply that could not be written are released: no attempt counts, and its handles are void."""

    async def go() -> None:
        async with served(tmp_path) as to:
            await to.call("create_topic", name="orders", num_partitions=1, max_retries=0)
            await to.call("publish", topic="orders", value="a", key="k")
            asked = {"client_id": "worker", "topics": ["orders"], "mode": mode}
            member = (await to.call("join_group", group="billing", **asked))["member_id"]
            poll = {"group": "billing", "member_id": member, "timeout": 0}
            handles = []
            for _ in range(3):
                lost = await BY_NAME["poll"].call(to.service, dict(poll))
                undo_poll(to.service, lost)
                handles += [each.receipt_handle for each in getattr(lost, "messages", [])]
            assert len(handles) == 3
            polled = await to.call("poll", **poll)
            assert [each["delivery_count"] for each in polled["messages"]] == [1], "else it would be dead by now"
            reply = await to.call("ack", receipt_handles=handles)
            assert [result["code"] for result in reply["results"]] == ["stale_handle"] * 3
            handle = polled["messages"][0]["receipt_handle"]
            assert await to.call("ack", receipt_handle=handle) == {"acknowledged": True}

    run(go())


# --- rebalance x in-flight


def test_rebalance_x_in_flight(tmp_path: Path) -> None:
    """The old owner may ack until the rebalance timeout; then its handles are stale for that partition only."""

    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(partitions=2, visibility_ms=LONG_MS)
            for partition in (0, 1):
                to.put(*numbered(4), partition=partition)
            old = (await to.join("old", session_ms=LONG_MS)).member_id
            held = handles_of(await to.poll(old))
            new = (await to.join("new", session_ms=LONG_MS)).member_id
            (moving,) = (part.partition for part in to.group().revoking(to.member(old)))
            gone = [handle for handle in held if handle.partition == moving]
            kept = [handle for handle in held if handle.partition != moving]
            await to.heartbeat(old)
            await to.pass_by(REBALANCE_MS - 1)
            assert refused(await to.ack(gone[0])) == [False]
            assert refused(await to.nack(gone[1], delay_ms=0)) == [False]
            assert await to.texts(new) == [], "until then it is the old one's"
            await to.pass_by(1)
            assert refused(await to.ack(*gone[2:], *kept)) == [True, True, False, False, False, False]
            polled = await to.poll(new)
            assert dict(zip(texts(polled), deliveries_of(polled), strict=True)) == {"m1": 2, "m2": 2, "m3": 2}
            assert refused(await to.ack(*gone[1:])) == [True] * 3
            assert refused(await to.ack(*handles_of(polled))) == [False] * 3
            assert await to.offsets() == {"orders": {0: 4, 1: 4}}

    run_timed(go())


# --- release x retries


@every_mode
def test_release_x_max_retries(tmp_path: Path, mode: Mode) -> None:
    """However often a message is released: it is delivered, with the same count, and not dead before its time."""

    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(max_retries=1)
            to.send(message("a", key="k"))
            member = (await to.join(mode=mode)).member_id
            for failed in (0, 1):
                for _ in range(10):
                    polled = await to.poll(member)
                    assert (texts(polled), deliveries_of(polled)) == (["a"], [failed + 1])
                    assert refused(await release(to, *handles_of(polled))) == [False]
                assert await to.letters() == []
                await to.nack(*handles_of(await to.poll(member)), delay_ms=0)
                await to.pass_by(0)
                assert len(await to.letters()) == failed, "when two tries have failed, and not before"

    run_timed(go())


# --- release x restart


@every_mode
def test_release_x_restart(tmp_path: Path, mode: Mode) -> None:
    """What was released is ready in the next life with the count it had; what was not may be released there."""

    async def go() -> None:
        clock = Clock()
        async with consuming(tmp_path, clock=clock) as to:
            await to.create(max_retries=1, visibility_ms=LONG_MS)
            to.send(*(message(text, key=text) for text in ("tried", "new", "held")))
            member = (await to.join(mode=mode, session_ms=LONG_MS)).member_id
            first = await to.poll(member)
            await to.nack(handle_of(first, "tried"), delay_ms=0)
            await to.pass_by(0)
            second = await to.poll(member)
            assert refused(await release(to, handle_of(second, "tried"), handle_of(first, "new"))) == [False, False]
        clock.now += 1
        async with consuming(tmp_path, clock=clock) as to:
            polled = await to.poll(member)
            assert dict(zip(texts(polled), deliveries_of(polled), strict=True)) == {"tried": 2, "new": 1}
            assert refused(await release(to, *handles_of(first), *handles_of(second))) == [True, True, False, True]
            again = await to.poll(member)
            assert (texts(again), deliveries_of(again)) == (["held"], [1])
            assert refused(await release(to, *handles_of(polled), *handles_of(again))) == [False] * 3
        clock.now += 1
        async with consuming(tmp_path, clock=clock) as to:
            polled = await to.poll(member)
            counts = dict(zip(texts(polled), deliveries_of(polled), strict=True))
            assert counts == {"tried": 2, "new": 1, "held": 1}
            await to.nack(*handles_of(polled), delay_ms=0)
            assert [letter.value for letter, _ in await to.letters()] == [b"tried"]

    run_timed(go())


# --- release x rebalance


def test_release_x_rebalance(tmp_path: Path) -> None:
    """What the old owner of a partition releases waits for the new one; with the last of it the partition moves."""

    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(partitions=2, visibility_ms=LONG_MS)
            for partition in (0, 1):
                to.put(*numbered(3), partition=partition)
            old = (await to.join("old", session_ms=LONG_MS)).member_id
            held = handles_of(await to.poll(old))
            new = (await to.join("new", session_ms=LONG_MS)).member_id
            (moving,) = (part.partition for part in to.group().revoking(to.member(old)))
            gone = [handle for handle in held if handle.partition == moving]
            kept = [handle for handle in held if handle.partition != moving]
            await to.heartbeat(old)
            assert await to.drain(new) == []
            assert refused(await release(to, gone[0])) == [False]
            assert await to.drain(old) == await to.drain(new) == [], "the one gives it up, the other has it not yet"
            assert refused(await release(to, *gone)) == [True, False, False]
            assert (to.owned(old), to.owned(new)) == ([1 - moving], [moving])
            polled = await to.poll(new)
            assert (texts(polled), deliveries_of(polled)) == (["m0", "m1", "m2"], [1, 1, 1])
            assert refused(await release(to, *gone, kept[0])) == [True, True, True, False]
            assert await to.drain(old) == ["m0"], "of what it has kept"

    run_timed(go())


def test_release_x_rebalance_timeout(tmp_path: Path) -> None:
    """Too late: what the old owner held when it was taken away counts as a try."""

    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(partitions=2, visibility_ms=LONG_MS)
            for partition in (0, 1):
                to.put("a", partition=partition)
            old = (await to.join("old", session_ms=LONG_MS)).member_id
            held = handles_of(await to.poll(old))
            new = (await to.join("new", session_ms=LONG_MS)).member_id
            (moving,) = (part.partition for part in to.group().revoking(to.member(old)))
            await to.heartbeat(old)
            await to.pass_by(REBALANCE_MS)
            assert refused(await release(to, *held)) == [handle.partition == moving for handle in held]
            assert deliveries_of(await to.poll(new)) == [2]
            assert deliveries_of(await to.poll(old)) == [1]

    run_timed(go())


# --- release x polls that wait


def test_release_x_parked_poll(tmp_path: Path) -> None:
    """Where members share, one that waits has at once what another one releases."""

    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(max_retries=0)
            one = (await to.join("one", mode=Mode.SHARED)).member_id
            two = (await to.join("two")).member_id
            await to.drain(two)
            to.put(*numbered(2))
            polled = await to.poll(one)
            for text in ("m1", "m0"):
                waiting = await to.parked(two)
                assert refused(await release(to, handle_of(polled, text))) == [False]
                found = await waiting
                assert (texts(found), deliveries_of(found)) == ([text], [1])

    run_timed(go())


# --- release x wire


def test_release_x_wire(tmp_path: Path) -> None:
    """A member over a connection releases some of what one poll brought; what it does not hold is refused."""

    async def use(server: Server, connection: Connection) -> None:
        topic_id = await create(connection)
        await publish(connection, topic_id, b"a", b"b", b"c")
        member = await Member.join(connection, "billing", ["orders"])
        (row,) = await poll_some(member)
        assert await member.ack([(row, [1])]) == []
        assert await member.release([(row, [2])]) == []
        (again,) = await poll_some(member)
        assert (values([again]), again.ranges, again.deliveries) == ([b"c"], ((2, 3),), 1)
        assert await member.release([row]) == [(row, [1, 2])], "settled, and delivered again"
        (first,) = await poll_some(member)
        assert (values([first]), first.deliveries) == ([b"a"], 1)
        assert await member.ack([first, again]) == []

    serve(tmp_path, use)


def test_ack_x_lost_answer(tmp_path: Path) -> None:
    """An ack that is sent again is good for what it settled the first time, not for what somebody else has by now."""

    async def use(server: Server, connection: Connection) -> None:
        topic_id = await create(connection)
        await publish(connection, topic_id, b"a", b"b", b"c")
        member = await Member.join(connection, "billing", ["orders"])
        (row,) = await poll_some(member)
        assert await member.ack([(row, [0])]) == []
        assert await member.ack([(row, [0])]) == [(row, [0])], "as a second one it is refused"
        assert await member.settle(Action.ACK_AGAIN, [(row, [0, 1])]) == []
        assert await member.release([(row, [2])]) == []
        (again,) = await poll_some(member)
        assert again.ranges == ((2, 3),)
        assert await member.settle(Action.ACK_AGAIN, [(row, [0, 2])]) == [(row, [2])]
        assert await member.ack([again]) == []

    serve(tmp_path, use)


# --- DLQ x crash


def test_dlq_x_crash(tmp_path: Path) -> None:
    """Intent durable, published under its number, done: each letter once per message and group, whenever it dies."""

    async def go() -> None:
        disk = PhotographedDisk()
        async with consuming(tmp_path, disk=disk) as to:
            await to.create()
            await to.create("orders.dlq")
            to.put(*numbered(2))
            to.partition().log.sync()
            handles = []
            for group in ("one", "two"):
                member = (await to.join(group=group)).member_id
                handles.append(handles_of(await to.poll(member, group=group)))
            sidecar = to.partition().sidecar
            assert sidecar is not None
            sidecar.log.sync()
            disk.begin(tmp_path)
            await to.reject(*handles[0], handles[1][1])
            await to.buried()
            disk.recording = False
        seen = set()
        for when, image in disk.crashed(range(2)):
            async with consuming(tmp_path, disk=image) as to:
                found = [(story.group, story.offset) for _, story in await to.letters()]
                assert len(set(found)) == len(found), (when, "twice")
                assert set(found) <= {("one", 0), ("one", 1), ("two", 1)}, when
                seen.add(len(found))
                for group in ("one", "two"):
                    dead = sum(name == group for name, _ in found)
                    assert (await to.lag(group))[0].lag == 2 - dead, (when, "dead, or still to be delivered")
        assert {0, 3} <= seen, "no crash came in between: this shows nothing"

    run_timed(go())


# --- topic delete x everything


def test_topic_delete_x_everything(tmp_path: Path) -> None:
    """Handles, offsets, retries, delays and dead letters of a deleted topic never touch a new one of the same name."""

    async def go() -> None:
        clock = Clock()
        async with consuming(tmp_path, clock=clock) as to:
            await to.create(visibility_ms=5000)
            to.put(*numbered(4))
            to.delay("late", "never", by_ms=60_000)
            member = (await to.join(session_ms=LONG_MS)).member_id
            polled = await to.poll(member)
            await to.ack(handle_of(polled, "m0"))
            await to.nack(handle_of(polled, "m1"), delay_ms=10_000)
            await to.broker.delayed.cancel(topic(to), 0, 5)
            await to.broker.delayed.move(topic(to), 0, 4, T0 + 30_000)
            rejecting = asyncio.ensure_future(to.reject(handle_of(polled, "m2")))  # its letter is under way
            await turns(1)
            await to.delete()
            await rejecting
            await to.create()
            to.put(*(f"new{number}" for number in range(6)))
            await to.followed()
            assert refused(await to.ack(*handles_of(polled))) == [True] * 4
            assert refused(await to.nack(handle_of(polled, "m3"))) == [True]
            with pytest.raises(UnknownDelay):
                await to.broker.delayed.get(topic(to), 0, 4)
            found = await to.poll(member)
            found = found if found.rows else await to.poll(member)
            assert texts(found) == [f"new{number}" for number in range(6)], "none is settled, waits or is delayed"
            assert deliveries_of(found) == [1] * 6
            await to.pass_by(20_000)
            await to.buried()
        async with consuming(tmp_path, clock=clock) as to:
            await to.pass_by(60_000)
            await to.buried()
            assert (await to.lag())[0][:3] == (0, 6, 6)
            assert refused(await to.ack(*handles_of(polled))) == [True] * 4
            letters = await to.letters()
            assert all(story.topic_id != topic(to).meta.topic_id for _, story in letters), "they say which one it was"

    run_timed(go())


# --- clock jump x delays, leases


def test_clock_jump_x_delays_leases(tmp_path: Path) -> None:
    """Delays: never early by either clock. Leases and retries: by the one that never steps. A step is reported."""

    async def go() -> None:
        clock = Clock()
        async with consuming(tmp_path, clock=clock) as to:
            await to.create(visibility_ms=20_000)
            to.put("leased", "retried")
            to.delay("late", by_ms=30_000)
            member = (await to.join(session_ms=LONG_MS)).member_id
            polled = await to.poll(member)
            await to.nack(handle_of(polled, "retried"), delay_ms=10_000)
            to.clock.now += DAY_MS
            to.broker._housekeeping.check_clock()
            await to.followed()
            assert await to.texts(member) == [], "a step forward ends nothing early"
            await to.pass_by(10_000)
            assert await to.texts(member) == ["retried"]
            to.clock.now -= 2 * DAY_MS
            to.broker._housekeeping.check_clock()
            await to.pass_by(10_000)
            assert await to.texts(member) == ["leased"], "nor does a step back make anything last longer"
            await to.pass_by(10_000 + TICK_MS)
            assert "late" not in await to.texts(member), "by the wall it is not due for a day"
            to.clock.now += DAY_MS
            to.broker._housekeeping.check_clock()
            await to.pass_by(1000)
            found = await to.drain(member)
            assert "late" in found
            to.delay("after a restart", by_ms=HOUR_MS)
        clock.now += HOUR_MS
        async with consuming(tmp_path, clock=clock) as to:
            other = (await to.join("other", session_ms=LONG_MS, group="other")).member_id
            assert "after a restart" in await to.drain(other, group="other"), "then the wall alone counts"

    run_timed(go())


# --- clock jump x retention of delayed messages


@pytest.mark.parametrize("policy", CleanupPolicy)
def test_clock_jump_x_retention_of_delayed(tmp_path: Path, policy: CleanupPolicy) -> None:
    """The wall's clock steps forward and is put right again: what was not delivered meanwhile is still there."""

    async def go() -> None:
        async with consuming(tmp_path) as to:
            retention: dict[str, Any] = {"retention_bytes": 10_000} if policy is not CleanupPolicy.COMPACT else {}
            await to.create(cleanup_policy=policy, **retention)
            to.send(message("late", key="a", deliver_at=-HOUR_MS), message("a1", key="a"), message("b1", key="b"))
            to.send(message("moved", key="b", deliver_at=-HOUR_MS))
            await to.broker.delayed.move(topic(to), 0, 3, T0 + HOUR_MS // 2)
            seal(to)
            to.send(*(message("x" * 1000, key=key) for key in ("a", "b") * 10))
            seal(to)
            to.clock.now += DAY_MS
            await to.broker._housekeeping.clean()
            assert to.partition().log.start_offset <= 3
            kept = [record.value for record in records_of(to.partition())]
            assert kept[:2] == [b"late", b"moved"]
            assert b"a1" not in kept, "it was cleaned"
            to.clock.now -= DAY_MS
            member = (await to.join(session_ms=LONG_MS)).member_id
            assert not {"late", "moved"} & set(await to.drain(member))
            await to.pass_by(HOUR_MS // 2 + TICK_MS)
            assert {"late", "moved"} & set(await to.drain(member)) == {"moved"}
            await to.pass_by(HOUR_MS // 2 + TICK_MS)
            polled = await to.poll(member)
            await to.ack(handle_of(polled, "late"))
            await to.broker._housekeeping.clean()
            assert b"late" not in [record.value for record in records_of(to.partition())]

    run_timed(go())


# --- disk full x acks


def test_disk_full_x_acks(tmp_path: Path) -> None:
    """Publishing is refused first; a reserve keeps everything that ends work going: acks, nacks, lapses, cancelling."""

    async def go() -> None:
        disk = FaultyDisk()
        clock = Clock()
        async with consuming(tmp_path, disk=disk, clock=clock) as to:
            await to.create(visibility_ms=5000)
            to.put(*numbered(40))
            to.delay("late", "never", by_ms=2000)
            member = (await to.join(session_ms=LONG_MS)).member_id
            polled = await to.poll(member)
            handles = handles_of(polled)
            disk.free = 0
            for _ in range(2):
                with pytest.raises(DiskFull):
                    to.put("x" * 1000)
            assert not any(refused(await to.ack(*handles[:10])))
            assert not any(refused(await to.nack(*handles[10:20], delay_ms=1000)))
            assert not any(refused(await to.extend(*handles[20:30], by_ms=LONG_MS)))
            await to.broker.delayed.cancel(topic(to), 0, 41)
            assert (await to.broker.delayed.get(topic(to), 0, 41)).state is DelayState.CANCELLED
            await to.pass_by(1000)
            assert len(await to.texts(member)) == 10, "and what is ready is delivered"
            await to.pass_by(4000)
            found = await to.drain(member)
            assert "late" in found
            assert set(numbered(10, 30)) <= set(found), "what lapsed comes again"
            await to.commit(member, 42)
            disk.free = None
        async with consuming(tmp_path, clock=clock) as to:
            assert (await to.lag())[0].lag == 0
            to.put("room again")
            assert await to.texts(member) == ["room again"]

    run_timed(go())


def test_disk_full_x_dead_letters(tmp_path: Path) -> None:
    """A letter that cannot be written waits, its message is neither lost nor delivered, and it is written later."""

    async def go() -> None:
        disk = FaultyDisk()
        async with consuming(tmp_path, disk=disk) as to:
            await to.create()
            to.put("a", "b")
            member = (await to.join(session_ms=LONG_MS)).member_id
            polled = await to.poll(member)
            disk.free = 0
            assert refused(await to.reject(handle_of(polled, "a"))) == [False]
            await to.ack(handle_of(polled, "b"))
            for _ in range(5):
                await to.pass_by(1000)
                assert await to.texts(member) == []
            assert len(to.deliveries().outbox) == 1
            disk.free = None
            for _ in range(200):
                await to.broker._housekeeping.tick()  # takes the space back that was kept for acks
                await to.pass_by(1000)
                if not to.deliveries().outbox:
                    break
                await asyncio.sleep(0.01)
            ((letter, _),) = await to.letters()
            assert letter.value == b"a"
            await to.pass_by(SESSION_MS)
            assert await to.offsets() == {"orders": {0: 2}}

    run_timed(go())
