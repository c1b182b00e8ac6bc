"""Serving one partition to one poll: what is too old, gone or damaged is passed over; rows say how often each came."""

import os
from pathlib import Path

import pytest

from goqueue.model import limits
from goqueue.model.groups import Mode
from goqueue.model.record import Lane, Record
from goqueue.model.topic import OnExpiry
from goqueue.storage.cleaner import clean
from tests.support.moved_time import run_timed
from tests.unit.broker.brokers import T0, Clock, block
from tests.unit.broker.consumers import (
    GROUP,
    Consumers,
    consuming,
    deliveries_of,
    handle_of,
    handles_of,
    message,
    numbered,
    places,
    texts,
)
from tests.unit.broker.test_poll import consume

TTL_MS = 5000
HOUR_MS = 3600 * 1000
LONG_MS = limits.MAX_SESSION_MS
every_mode = pytest.mark.parametrize("mode", Mode)


# --- time to live


def test_what_is_older_than_its_own_time_to_live_is_not_delivered(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.send(message("short", expires_at=-TTL_MS), message("long", expires_at=-2 * TTL_MS), message("ever"))
        await to.pass_by(TTL_MS)
        polled = await to.poll(member)
        assert texts(polled) == ["long", "ever"]
        await to.ack(*handles_of(polled))
        assert await to.offsets() == {"orders": {0: 3}}, "what expired holds up nothing"
        assert (await to.lag())[0].lag == 0
        counted = to.broker.group_meters.of(GROUP).consumption("orders")
        assert (counted.expired, counted.consumed, counted.missed) == (1, 2, 0)

    consume(tmp_path, scenario)


def test_until_the_last_moment_it_is_delivered(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.send(message("a", expires_at=-TTL_MS))
        await to.pass_by(TTL_MS - 1)
        assert await to.texts(member) == ["a"]

    consume(tmp_path, scenario)


def test_a_topic_may_have_a_time_to_live_and_the_shorter_one_counts(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.send(message("topic's"), message("own, longer", expires_at=-10 * TTL_MS), message("own", expires_at=-1000))
        await to.pass_by(1000)
        assert "own" not in await to.texts(member, max_messages=1, visibility_ms=1)
        await to.pass_by(TTL_MS)
        to.put("new")
        found = await to.texts(member)
        assert "topic's" not in found
        assert found[-1] == "new"

    consume(tmp_path, scenario, message_ttl_ms=TTL_MS)


def test_the_time_to_live_of_a_topic_counts_from_deliver_at(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.delay("late", by_ms=10 * TTL_MS)
        to.send(message("own", deliver_at=-10 * TTL_MS, expires_at=-TTL_MS))
        for _ in range(2):
            await to.pass_by(5 * TTL_MS)
            await to.heartbeat(member)
        await to.pass_by(TTL_MS - 1)
        assert await to.texts(member) == ["late", "own"]

    consume(tmp_path, scenario, message_ttl_ms=TTL_MS)


def test_a_delayed_message_may_expire_when_it_is_due_and_nobody_comes(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.delay("late", by_ms=TTL_MS)
        await to.pass_by(2 * TTL_MS + 20)
        assert await to.texts(member) == []
        assert await to.offsets() == {"orders": {0: 1}}

    consume(tmp_path, scenario, message_ttl_ms=TTL_MS)


def test_a_setting_counts_for_what_is_there_already(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put("old")
        await to.pass_by(TTL_MS)
        to.put("new")
        await to.change(message_ttl_ms=TTL_MS)
        assert await to.texts(member) == ["new"]

    consume(tmp_path, scenario)


def test_a_retry_may_come_too_late(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put("a", "b")
        polled = await to.poll(member)
        await to.nack(handle_of(polled, "a"), delay_ms=TTL_MS)
        await to.nack(handle_of(polled, "b"), delay_ms=TTL_MS - 100)
        await to.pass_by(TTL_MS - 100)
        assert await to.texts(member) == ["b"]
        await to.pass_by(100)
        assert await to.texts(member) == []
        assert (await to.letters())[0][1].reason == "expired"
        assert (await to.letters())[0][1].deliveries == 1

    consume(tmp_path, scenario, message_ttl_ms=TTL_MS, on_expiry=OnExpiry.DLQ)


def test_expired_messages_without_dead_letters_are_dropped_whatever_on_expiry_says(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put("a")
        await to.pass_by(TTL_MS)
        assert await to.texts(member) == []
        assert await to.letters() == []
        assert await to.offsets() == {"orders": {0: 1}}

    consume(tmp_path, scenario, message_ttl_ms=TTL_MS, on_expiry=OnExpiry.DLQ, dlq_enabled=False)


@every_mode
def test_a_backlog_that_expired_is_passed_over(tmp_path: Path, mode: Mode) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(message_ttl_ms=TTL_MS)
            to.send(*(message(f"m{number}", key=f"k{number % 7}") for number in range(3000)))
            await to.pass_by(TTL_MS)
            to.send(message("new", key="k1"))
            member = (await to.join(mode=mode)).member_id
            found = [text for _ in range(10) for text in await to.texts(member, max_messages=100)]
            assert found == ["new"]
            assert await to.offsets() == {"orders": {0: 3000}}

    run_timed(go())


# --- what is gone


@every_mode
def test_what_compaction_took_is_passed_over(tmp_path: Path, mode: Mode) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(cleanup_policy="compact")
            log = to.partition().log
            for number in range(20):
                log.append(block(Record(key=f"k{number % 3}".encode(), value=f"m{number}".encode())), now=T0)
            log.roll()
            log.append(block(Record(key=b"other", value=b"last")), now=T0)
            log.sync()
            member = (await to.join(mode=mode)).member_id
            first = await to.poll(member, max_messages=2)
            assert texts(first) == ["m0", "m1"]
            clean(log, T0 + HOUR_MS)
            rest = await to.poll(member)
            assert set(texts(rest)) >= {"last"}
            await to.ack(*handles_of(first))
            found = [*texts(rest), *(await to.drain(member))]
            assert sorted(found) == ["last", "m17", "m18", "m19"]
            await to.ack(*handles_of(rest))

    run_timed(go())


@every_mode
def test_what_retention_took_is_passed_over_also_when_it_was_to_come_again(tmp_path: Path, mode: Mode) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(retention_hours=0.5, visibility_ms=5000)
            to.send(*(message(f"m{number}", key=f"k{number}") for number in range(6)))
            member = (await to.join(mode=mode, session_ms=LONG_MS)).member_id
            polled = await to.poll(member, max_messages=4)
            await to.nack(handle_of(polled, "m0"), delay_ms=2 * HOUR_MS)
            await to.nack(handle_of(polled, "m1"), delay_ms=1000)
            log = to.partition().log
            log.roll()
            log.sync()
            await to.pass_by(HOUR_MS // 2 + 1)
            await to.heartbeat(member)
            to.send(message("late", key="other"), message("behind", key="k0"))
            clean(log, to.clock())
            assert log.start_offset == 6
            found = await to.drain(member)
            assert found[0] == "late"
            await to.pass_by(HOUR_MS // 2)
            await to.heartbeat(member)
            for _ in range(3):
                await to.pass_by(HOUR_MS // 2)
                found += await to.drain(member)
            assert set(found) == {"late", "behind"}, "in key mode it waits for m0's time, at most"
            assert to.deliveries().delivery(to.group().number).low >= 6

    run_timed(go())


@every_mode
def test_what_is_damaged_is_passed_over_and_counted(tmp_path: Path, mode: Mode) -> None:
    async def go() -> None:
        clock = Clock()
        async with consuming(tmp_path, clock=clock) as to:
            await to.create()
            for number in range(9):
                to.send(message(f"m{number}" + "x" * 200, key=f"k{number}"))
            log = to.partition().log
            log.roll()
            log.sync()
            (path,) = tmp_path.glob(f"logs/orders/*/0/{0:020}.log")
        with open(path, "r+b") as file:
            file.seek(os.path.getsize(path) // 2)
            file.write(b"\xff" * 50)
        async with consuming(tmp_path, clock=clock) as to:
            to.send(message("last", key="last"))
            member = (await to.join(mode=mode)).member_id
            found = await to.drain(member)
            names = {text[:2] for text in found}
            assert "la" in names
            assert 6 <= len(names) < 10, "all but the damaged ones"
            await to.commit(member, 10)
            assert await to.texts(member) == []
            counted = to.broker.group_meters.of(GROUP).consumption("orders")
            assert counted.missed == 10 - len(names)
            assert (await to.offsets(), (await to.lag())[0].lag) == ({"orders": {0: 10}}, 0), "it is not waited for"

    run_timed(go())


# --- rows


def test_messages_that_came_differently_often_are_in_rows_of_their_own(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put(*numbered(6))
        polled = await to.poll(member)
        await to.nack(handle_of(polled, "m1"), handle_of(polled, "m2"), delay_ms=0)
        await to.pass_by(0)
        again = await to.poll(member)
        await to.nack(handle_of(again, "m2"), delay_ms=0)
        await to.pass_by(0)
        for handle in handles_of(polled):
            await to.nack(handle, delay_ms=0)
        await to.nack(*handles_of(again), delay_ms=0)
        await to.pass_by(0)
        last = await to.poll(member)
        counts = dict(zip(texts(last), deliveries_of(last), strict=True))
        assert counts == {"m0": 2, "m1": 3, "m2": 3, "m3": 2, "m4": 2, "m5": 2}
        for row in last.rows:
            assert row.chunk.count > 0
        assert sorted(places(last)) == [("orders", 0, offset) for offset in range(6)]

    consume(tmp_path, scenario, max_retries=10)


def test_offsets_that_are_far_apart_are_read_without_what_lies_between(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        for number in range(40):
            to.send(message(f"u{number}", lane=Lane.CRITICAL))
            to.put(*(["x" * 100] * 50))
        polled = await to.poll(member, max_messages=30)
        assert [text for text in texts(polled) if text.startswith("u")] == [
            f"u{number}" for number in range(len([text for text in texts(polled) if text.startswith("u")]))
        ]
        rest = [text for text in await to.drain(member, max_messages=500) if text.startswith("u")]
        urgent = [text for text in texts(polled) if text.startswith("u")] + rest
        assert urgent == [f"u{number}" for number in range(40)]

    consume(tmp_path, scenario)


def test_a_poll_over_several_segments_takes_all_of_them(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(segment_bytes=limits.MIN_SEGMENT_BYTES)
            for first in range(0, 500, 10):
                to.put(*numbered(10, first))
            assert len(to.partition().log.segments) > 3
            member = (await to.join()).member_id
            assert await to.texts(member, max_messages=500) == list(numbered(500))

    run_timed(go())
