"""Settling single messages by their handles: ack, nack, reject, extend, release; which handles are good, and when."""

import asyncio
import gc
from functools import partial
from pathlib import Path

import pytest
from pyroaring import BitMap64

from goqueue.broker.settle import ACK, Claim, Fate
from goqueue.delivery.handles import Handle
from goqueue.model.errors import DiskFull, GoQueueError, StaleHandle
from goqueue.model.groups import Mode, Place
from goqueue.model.names import GroupNumber, TopicId
from goqueue.model.settings import Fsync
from goqueue.model.topic import Backoff
from tests.support.faulty_disk import FaultyDisk
from tests.support.held_syncs import syncs_held
from tests.support.loop import turns
from tests.support.moved_time import run_timed
from tests.unit.broker.brokers import T0, Clock
from tests.unit.broker.consumers import (
    GROUP,
    REBALANCE_MS,
    SESSION_MS,
    Consumers,
    consuming,
    deliveries_of,
    handle_of,
    handles_of,
    message,
    numbered,
    refused,
    texts,
)
from tests.unit.broker.test_poll import consume

VISIBLE_MS = 10_000
LONG_MS = 10 * SESSION_MS


async def release(to: Consumers, *handles: Handle) -> list[Fate]:
    return await to.broker.settlement.release(handles)


def _refusal(fate: Fate) -> GoQueueError | None:
    return fate.refusal


# --- ack


def test_what_is_acked_is_settled_in_any_order_and_the_rest_is_not(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put(*numbered(5))
        polled = await to.poll(member)
        assert await to.ack(handle_of(polled, "m3"), handle_of(polled, "m1")) == [Fate(), Fate()]
        assert (await to.lag())[0][:3] == (0, 5, 3)
        assert await to.ack(handle_of(polled, "m0")) == [Fate()]
        assert await to.offsets() == {"orders": {0: 2}}
        await to.pass_by(VISIBLE_MS)
        again = await to.poll(member)
        assert (texts(again), deliveries_of(again)) == (["m2", "m4"], [2, 2])
        assert refused(await to.ack(*handles_of(again))) == [False, False]
        assert await to.offsets() == {"orders": {0: 5}}
        assert to.deliveries().delivery(to.group().number).is_resting, "nothing is remembered of it"

    consume(tmp_path, scenario, visibility_ms=VISIBLE_MS)


def test_a_handle_settles_once(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put("a", "b")
        handle, other = handles_of(await to.poll(member))
        assert refused(await to.ack(handle)) == [False]
        assert refused(await to.ack(handle)) == [True]
        assert refused(await to.nack(handle)) == [True]
        assert refused(await to.reject(handle)) == [True]
        assert refused(await to.extend(handle, by_ms=1000)) == [True]
        assert refused(await release(to, handle)) == [True]
        assert refused(await to.ack(other)) == [False]

    consume(tmp_path, scenario)


def test_of_many_handles_each_has_an_answer_of_its_own(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put(*numbered(4))
        handles = handles_of(await to.poll(member))
        await to.ack(handles[2])
        invented = handles[0]._replace(lease=handles[0].lease + 1)
        nowhere = handles[0]._replace(topic="nope")
        beyond = handles[0]._replace(partition=7)
        nobody = handles[0]._replace(group=GroupNumber(99))
        asked = [handles[3], invented, handles[2], nowhere, handles[0], beyond, nobody, handles[3]]
        assert refused(await to.ack(*asked)) == [False, True, True, True, False, True, True, True]
        assert (await to.lag())[0].lag == 1

    consume(tmp_path, scenario)


@pytest.mark.parametrize("verb", ["ack", "nack", "reject", "release"])
def test_the_same_handle_twice_in_one_request_settles_once(tmp_path: Path, verb: str) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put("a", "b")
        one, other = handles_of(await to.poll(member))
        settle = partial(release, to) if verb == "release" else getattr(to, verb)
        fates = await settle(one, other, one, one)
        assert refused(fates) == [False, False, True, True]
        assert "this handle is not good any more" in str(fates[2].refusal)
        assert [error.code for error in map(_refusal, await to.ack(one, one)) if error] == ["stale_handle"] * 2

    consume(tmp_path, scenario)


def test_twice_in_one_request_it_is_refused_for_its_own_reason_or_extended_twice(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put("a")
        (handle,) = handles_of(await to.poll(member))
        nowhere = handle._replace(topic="nope")
        first, second = await to.ack(nowhere, nowhere)
        assert str(first.refusal) == str(second.refusal) == "the topic 'nope' this handle is of was deleted"
        assert refused(await to.extend(handle, handle, by_ms=1000)) == [False, False], "it stays good"

    consume(tmp_path, scenario)


def test_handles_of_several_partitions_and_groups_go_together(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(partitions=2)
            for partition in (0, 1):
                to.put(*numbered(3), partition=partition)
            handles = []
            for group in ("one", "two"):
                member = (await to.join(group=group)).member_id
                handles += handles_of(await to.poll(member, group=group))
            assert len(handles) == 12
            assert refused(await to.ack(*handles)) == [False] * 12
            for group in ("one", "two"):
                assert await to.offsets(group) == {"orders": {0: 3, 1: 3}}

    run_timed(go())


def test_no_handles_are_settled_at_once(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        assert await to.ack() == []
        assert await to.nack() == []

    consume(tmp_path, scenario)


@pytest.mark.parametrize("fsync", Fsync)
def test_an_ack_is_answered_when_it_is_as_safe_as_the_messages_are(tmp_path: Path, fsync: Fsync) -> None:
    async def go() -> None:
        disk = FaultyDisk()
        async with consuming(tmp_path, disk=disk) as to:
            await to.create(fsync=fsync)
            to.put(*numbered(5))
            member = (await to.join()).member_id
            polled = await to.poll(member)
            asked = (
                to.ack(handle_of(polled, "m0")),
                to.nack(handle_of(polled, "m1")),
                to.reject(handle_of(polled, "m2")),
                to.extend(handle_of(polled, "m3"), by_ms=1000),
                release(to, handle_of(polled, "m4")),
            )
            with syncs_held(disk, "/sidecar/") as held:
                tasks = [asyncio.ensure_future(each) for each in asked]
                if fsync is Fsync.EVERY:
                    await held.reached()
                    await turns()
                    assert not any(task.done() for task in tasks)
                    held.release()
                for task in tasks:
                    assert refused(await task) == [False]

    run_timed(go())


# --- nack


def test_a_message_that_was_given_back_comes_again_after_the_backoff(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put("a")
        for failed, backoff_ms in enumerate((1000, 2000, 4000, 5000, 5000), 1):
            polled = await to.poll(member)
            assert (texts(polled), deliveries_of(polled)) == (["a"], [failed])
            assert await to.nack(*handles_of(polled)) == [Fate(None, to.clock() + backoff_ms)]
            await to.pass_by(backoff_ms - 1)
            assert await to.texts(member) == [], "not a moment early"
            await to.pass_by(1)
        polled = await to.poll(member)
        assert deliveries_of(polled) == [6]
        assert refused(await to.ack(*handles_of(polled))) == [False]

    consume(tmp_path, scenario, max_retries=10, backoff=Backoff(max_ms=5000))


def test_a_delay_that_was_asked_for_replaces_the_backoff(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put("a", "b", "c")
        a, b, c = handles_of(await to.poll(member))
        assert await to.nack(a, delay_ms=0) == [Fate(None, T0)]
        assert await to.nack(b, delay_ms=20_000) == [Fate(None, T0 + 20_000)]
        assert await to.nack(c) == [Fate(None, T0 + 1000)]
        await to.pass_by(0)
        assert await to.texts(member) == ["a"]
        await to.pass_by(1000)
        assert await to.texts(member) == ["c"]
        await to.pass_by(18_999)
        assert await to.texts(member) == []
        await to.pass_by(1)
        assert await to.texts(member) == ["b"]

    consume(tmp_path, scenario)


def test_a_poll_that_waits_has_what_was_given_back_when_its_time_has_come(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put("a")
        await to.nack(*handles_of(await to.poll(member)))
        waiting = await to.parked(member)
        await to.pass_by(999)
        assert not waiting.done()
        await to.pass_by(1)
        assert texts(await waiting) == ["a"]

    consume(tmp_path, scenario)


def test_a_message_that_was_given_back_holds_up_nobody(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put(*numbered(3))
        first = await to.poll(member, max_messages=1)
        await to.nack(*handles_of(first))
        rest = await to.poll(member)
        assert texts(rest) == ["m1", "m2"]
        await to.ack(*handles_of(rest))
        lag = (await to.lag())[0]
        assert (lag.committed, lag.lag, lag.in_flight) == (0, 1, 0)

    consume(tmp_path, scenario)


def test_giving_back_ends_the_handle(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put("a")
        (handle,) = handles_of(await to.poll(member))
        await to.nack(handle)
        assert refused(await to.ack(handle)) == [True]
        await to.pass_by(1000)
        assert refused(await to.ack(handle)) == [True], "not even before it is delivered again"
        assert await to.texts(member) == ["a"]

    consume(tmp_path, scenario)


def test_a_commit_does_not_settle_what_was_given_back(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put(*numbered(3))
        polled = await to.poll(member)
        await to.nack(handle_of(polled, "m1"))
        await to.commit(member, 3)
        assert (await to.offsets(), (await to.lag())[0].lag) == ({"orders": {0: 1}}, 1)
        await to.pass_by(1000)
        assert await to.texts(member) == ["m1"]
        await to.commit(member, 3)
        assert await to.offsets() == {"orders": {0: 3}}

    consume(tmp_path, scenario)


def test_commits_and_acks_go_together(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put(*numbered(6))
        polled = await to.poll(member)
        await to.ack(handle_of(polled, "m4"))
        await to.commit(member, 2)
        assert await to.offsets() == {"orders": {0: 2}}
        assert refused(await to.ack(handle_of(polled, "m0"))) == [True], "the commit has settled it"
        assert refused(await to.ack(handle_of(polled, "m2"), handle_of(polled, "m3"))) == [False, False]
        assert await to.offsets() == {"orders": {0: 5}}
        await to.commit(member, 6)
        assert await to.offsets() == {"orders": {0: 6}}
        assert (await to.lag())[0][2:] == (0, 0, 0, 0)

    consume(tmp_path, scenario)


# --- release


def test_what_was_released_comes_again_at_once_and_was_not_tried(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put(*numbered(3))
        polled = await to.poll(member)
        assert await release(to, handle_of(polled, "m2"), handle_of(polled, "m0")) == [Fate(), Fate()]
        lag = (await to.lag())[0]
        assert (lag.lag, lag.in_flight) == (3, 1)
        again = await to.poll(member)
        assert (texts(again), deliveries_of(again)) == (["m0", "m2"], [1, 1])
        assert refused(await to.ack(*handles_of(polled))) == [True, False, True]
        assert refused(await to.ack(*handles_of(again))) == [False, False]
        assert await to.offsets() == {"orders": {0: 3}}
        counted = to.broker.group_meters.of(GROUP).consumption("orders")
        assert (counted.nacked, counted.redelivered) == (0, 0), "nothing has failed"

    consume(tmp_path, scenario)


def test_a_release_keeps_the_count_of_earlier_tries(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put("a")
        await to.nack(*handles_of(await to.poll(member)), delay_ms=0)
        await to.pass_by(0)
        for _ in range(3):
            polled = await to.poll(member)
            assert deliveries_of(polled) == [2]
            assert refused(await release(to, *handles_of(polled))) == [False]

    consume(tmp_path, scenario, max_retries=1)


def test_what_lapsed_or_was_settled_is_not_released(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put(*numbered(3))
        m0, m1, m2 = handles_of(await to.poll(member))
        await to.ack(m0)
        await to.nack(m1, delay_ms=LONG_MS)
        fates = await release(to, m0, m1)
        assert refused(fates) == [True, True]
        assert "this handle is not good any more" in str(fates[0].refusal)
        await to.pass_by(VISIBLE_MS)
        assert refused(await release(to, m2)) == [True], "it is for anybody by now"
        polled = await to.poll(member)
        assert (texts(polled), deliveries_of(polled)) == (["m2"], [2])
        assert refused(await release(to, m2, *handles_of(polled))) == [True, False]

    consume(tmp_path, scenario, visibility_ms=VISIBLE_MS)


def test_a_poll_of_the_same_member_that_waits_has_what_was_released(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put("a")
        polled = await to.poll(member)
        waiting = await to.parked(member)
        await release(to, *handles_of(polled))
        again = await waiting
        assert (texts(again), deliveries_of(again)) == (["a"], [1])

    consume(tmp_path, scenario)


@pytest.mark.parametrize("mode", [Mode.SHARED, Mode.KEY])
def test_a_poll_of_another_member_that_waits_has_what_was_released(tmp_path: Path, mode: Mode) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            one = (await to.join("one", mode=mode)).member_id
            two = (await to.join("two")).member_id
            for member in (one, two):
                await to.poll(member)
            to.send(message("a", key="k"), message("b", key="k"))
            first = await to.poll(one, max_messages=1)
            if mode is Mode.SHARED:
                await to.ack(*handles_of(await to.poll(two)))
            waiting = await to.parked(two)
            assert refused(await release(to, *handles_of(first))) == [False]
            found = await waiting
            assert (texts(found), deliveries_of(found)) == (["a"], [1])
            assert refused(await release(to, *handles_of(first))) == [True], "another has it"

    run_timed(go())


def test_a_member_that_releases_may_be_given_others(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            to.put(*numbered(2))
            one = (await to.join("one", mode=Mode.SHARED, max_unacked=1)).member_id
            first = await to.poll(one)
            assert texts(first) == ["m0"]
            waiting = await to.parked(one)
            await release(to, *handles_of(first))
            assert texts(await waiting) == ["m0"], "it is the oldest"

    run_timed(go())


def test_releasing_shows_that_the_member_is_there(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put("a", "b")
        a, b = handles_of(await to.poll(member))
        for handle in (a, b):
            await to.pass_by(SESSION_MS - 1)
            assert refused(await release(to, handle)) == [False]
        await to.pass_by(SESSION_MS - 1)
        assert member in to.group().members

    consume(tmp_path, scenario, visibility_ms=LONG_MS)


def test_a_disk_that_is_full_refuses_a_release_and_nothing_changes(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        def fail(*_: object) -> None:
            raise DiskFull("no space")

        to.put("a")
        (handle,) = handles_of(await to.poll(member))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(to.broker.sidecars, "write", fail)
            (fate,) = await release(to, handle)
        assert isinstance(fate.refusal, DiskFull)
        assert (await to.lag())[0].in_flight == 1
        assert refused(await release(to, handle)) == [False]

    consume(tmp_path, scenario)


# --- visibility


def test_what_is_not_settled_in_time_comes_again_at_once_with_a_higher_count(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put("a", "b")
        for count in (1, 2, 3):
            polled = await to.poll(member)
            assert (texts(polled), deliveries_of(polled)) == (["a", "b"], [count, count])
            await to.pass_by(VISIBLE_MS - 1)
            assert await to.texts(member) == []
            await to.pass_by(1)
        assert (await to.lag())[0].in_flight == 0

    consume(tmp_path, scenario, visibility_ms=VISIBLE_MS)


def test_a_poll_that_waits_has_what_lapsed(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put("a")
        await to.poll(member)
        waiting = await to.parked(member)
        await to.pass_by(VISIBLE_MS - 1)
        assert not waiting.done()
        await to.pass_by(1)
        assert deliveries_of(await waiting) == [2]

    consume(tmp_path, scenario, visibility_ms=VISIBLE_MS)


def test_how_long_is_said_by_the_topic_the_member_or_the_poll_and_the_nearest_counts(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(visibility_ms=5000)
            to.put("a")
            plain = (await to.join("plain", group="plain", session_ms=LONG_MS)).member_id
            own = (await to.join("own", group="own", visibility_ms=3000, session_ms=LONG_MS)).member_id
            for group, member, asked_ms, lasts_ms in (
                ("plain", plain, None, 5000),
                ("own", own, None, 3000),
                ("own", own, 7000, 7000),
                ("plain", plain, 1, 1),
            ):
                assert await to.texts(member, group=group, visibility_ms=asked_ms) == ["a"]
                await to.pass_by(lasts_ms - 1)
                assert await to.texts(member, group=group) == []
                await to.pass_by(1)
            await to.change(visibility_ms=60_000)
            assert await to.texts(plain, group="plain") == ["a"]
            await to.pass_by(59_999)
            assert await to.texts(plain, group="plain") == [], "a setting counts for what is delivered from then on"

    run_timed(go())


def test_extending_counts_from_now_and_is_only_for_what_it_names(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put("a", "b", "c")
        a, _, c = handles_of(await to.poll(member))
        await to.pass_by(4000)
        assert await to.extend(a, by_ms=20_000) == [Fate(None, to.clock() + 20_000)]
        assert await to.extend(c, by_ms=1000) == [Fate(None, to.clock() + 1000)], "also for shorter"
        await to.pass_by(1000)
        assert await to.texts(member) == ["c"]
        await to.pass_by(VISIBLE_MS - 5000)
        assert await to.texts(member) == ["b"]
        await to.pass_by(20_000 - 1000 - (VISIBLE_MS - 5000) - 1)
        assert "a" not in await to.texts(member)
        await to.pass_by(1)
        polled = await to.poll(member)
        assert ("a", 2) in zip(texts(polled), deliveries_of(polled), strict=True)

    consume(tmp_path, scenario, visibility_ms=VISIBLE_MS, max_retries=100)


def test_it_may_be_extended_again_and_again_and_acked_then(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put("a", "b")
        a, b = handles_of(await to.poll(member))
        for _ in range(20):
            await to.pass_by(VISIBLE_MS - 1)
            assert refused(await to.extend(a, b, by_ms=VISIBLE_MS)) == [False, False]
            assert await to.texts(member) == []
        assert refused(await to.ack(a)) == [False]
        await to.pass_by(VISIBLE_MS)
        polled = await to.poll(member)
        assert (texts(polled), deliveries_of(polled)) == (["b"], [2])

    consume(tmp_path, scenario, visibility_ms=VISIBLE_MS)


def test_a_lapsed_handle_may_still_ack_and_reject_until_the_message_is_delivered_again(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put(*numbered(4))
        polled = await to.poll(member)
        await to.pass_by(VISIBLE_MS)
        assert refused(await to.ack(handle_of(polled, "m0"))) == [False]
        assert refused(await to.reject(handle_of(polled, "m1"))) == [False]
        assert refused(await to.nack(handle_of(polled, "m2"))) == [True], "it is ready again already"
        assert refused(await to.extend(handle_of(polled, "m2"), by_ms=1000)) == [True]
        again = await to.poll(member)
        assert texts(again) == ["m2", "m3"]
        assert refused(await to.ack(handle_of(polled, "m2"))) == [True]
        assert refused(await to.ack(handle_of(again, "m2"))) == [False]
        await to.buried()
        assert (await to.lag())[0][:3] == (3, 4, 1)

    consume(tmp_path, scenario, visibility_ms=VISIBLE_MS)


def test_visibility_follows_the_clock_that_never_steps(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put("a")
        await to.poll(member)
        to.clock.now += 3600 * 1000
        await to.followed()
        assert await to.texts(member) == [], "the wall's clock stepped, time did not"
        to.clock.now -= 7200 * 1000
        to.time.move(VISIBLE_MS)
        await to.followed()
        assert await to.texts(member) == ["a"]

    consume(tmp_path, scenario, visibility_ms=VISIBLE_MS)


# --- who may settle, and until when


def test_handles_are_good_after_a_restart_until_the_message_is_delivered_again(tmp_path: Path) -> None:
    async def go() -> None:
        clock = Clock()
        async with consuming(tmp_path, clock=clock) as to:
            await to.create(visibility_ms=VISIBLE_MS)
            to.put(*numbered(5))
            member = (await to.join(session_ms=LONG_MS)).member_id
            polled = await to.poll(member)
            await to.nack(handle_of(polled, "m4"), delay_ms=60_000)
        clock.now += 4000
        async with consuming(tmp_path, clock=clock) as to:
            assert await to.texts(member) == [], "they are still the member's"
            assert refused(await to.ack(handle_of(polled, "m0"))) == [False]
            assert refused(await to.extend(handle_of(polled, "m1"), by_ms=30_000)) == [False]
            assert refused(await to.nack(handle_of(polled, "m2"))) == [False]
            assert refused(await to.ack(handle_of(polled, "m4"))) == [True]
            await to.pass_by(VISIBLE_MS - 4000)
            again = await to.poll(member)
            assert (texts(again), deliveries_of(again)) == (["m2", "m3"], [2, 2]), "what was left of its time"
            assert refused(await to.ack(handle_of(polled, "m3"))) == [True]
        async with consuming(tmp_path, clock=clock) as to:
            assert refused(await to.ack(handle_of(polled, "m1"), *handles_of(again))) == [False] * 3
            await to.pass_by(60_000)
            last = await to.poll(member)
            assert (texts(last), deliveries_of(last)) == (["m4"], [2])

    run_timed(go())


def test_a_lapse_that_was_missed_while_the_broker_was_away_is_made_up_for(tmp_path: Path) -> None:
    async def go() -> None:
        clock = Clock()
        async with consuming(tmp_path, clock=clock) as to:
            await to.create(visibility_ms=VISIBLE_MS)
            to.put("a")
            member = (await to.join(session_ms=LONG_MS)).member_id
            await to.poll(member)
        clock.now += VISIBLE_MS + 5
        async with consuming(tmp_path, clock=clock) as to:
            await to.pass_by(0)
            assert deliveries_of(await to.poll(member)) == [2]

    run_timed(go())


def test_a_wall_clock_that_went_back_while_the_broker_was_away_makes_no_lease_longer(tmp_path: Path) -> None:
    async def go() -> None:
        clock = Clock()
        async with consuming(tmp_path, clock=clock) as to:
            await to.create(visibility_ms=VISIBLE_MS)
            to.put("a", "b")
            member = (await to.join(session_ms=LONG_MS)).member_id
            polled = await to.poll(member)
            await to.nack(handle_of(polled, "b"), delay_ms=5000)
        clock.now -= 24 * 3600 * 1000
        async with consuming(tmp_path, clock=clock) as to:
            await to.pass_by(5000)
            assert await to.texts(member) == ["b"]
            await to.pass_by(VISIBLE_MS - 5000)
            assert await to.texts(member) == ["a"]

    run_timed(go())


def test_handles_of_a_deleted_topic_or_group_are_stale(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            await to.create("bills")
            for topic in ("orders", "bills"):
                to.put("a", topic=topic)
            member = (await to.join("worker", "orders", "bills")).member_id
            polled = await to.poll(member)
            orders, bills = sorted(handles_of(polled), key=lambda handle: handle.topic, reverse=True)
            await to.delete("orders")
            (fate,) = await to.ack(orders)
            assert isinstance(fate.refusal, StaleHandle)
            assert "deleted" in str(fate.refusal)
            await to.leave(member)
            await to.broker.groups.delete(GROUP)
            (fate,) = await to.ack(bills)
            assert isinstance(fate.refusal, StaleHandle)
            assert "the group this handle is of was deleted" in str(fate.refusal)

    run_timed(go())


def test_after_a_partition_moved_the_old_owner_settles_nothing_there(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(partitions=2, visibility_ms=LONG_MS)
            for partition in (0, 1):
                to.put(*numbered(3), partition=partition)
            old = (await to.join("old", session_ms=LONG_MS)).member_id
            held = handles_of(await to.poll(old))
            new = (await to.join("new", session_ms=LONG_MS)).member_id
            (moving,) = (part.partition for part in to.group().revoking(to.member(old)))
            mine = [handle for handle in held if handle.partition == moving]
            kept = [handle for handle in held if handle.partition != moving]
            await to.poll(old)
            assert refused(await to.ack(mine[0], kept[0])) == [False, False], "until its time is up it may finish"
            await to.pass_by(REBALANCE_MS)
            assert refused(await to.ack(mine[1], kept[1])) == [True, False]
            assert refused(await to.nack(mine[1])) == [True]
            polled = await to.poll(new)
            assert (texts(polled), deliveries_of(polled)) == (["m1", "m2"], [2, 2])
            assert refused(await to.ack(mine[1], mine[2])) == [True, True]
            assert refused(await to.ack(*handles_of(polled))) == [False, False]

    run_timed(go())


def test_the_last_ack_of_a_partition_that_is_to_be_given_up_gives_it_up(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(partitions=2)
            for partition in (0, 1):
                to.put(*numbered(2), partition=partition)
            old = (await to.join("old")).member_id
            held = handles_of(await to.poll(old))
            new = (await to.join("new")).member_id
            (moving,) = (part.partition for part in to.group().revoking(to.member(old)))
            mine = [handle for handle in held if handle.partition == moving]
            await to.heartbeat(old)
            await to.heartbeat(old)
            await to.ack(mine[0])
            assert to.owned(new) == []
            await to.ack(mine[1])
            assert to.owned(new) == [moving], "at once, not when the rebalance timeout is over"

    run_timed(go())


def test_handles_stay_good_when_their_member_has_left_and_nobody_came_after_it(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put("a", "b")
        a, b = handles_of(await to.poll(member))
        await to.leave(member)
        assert refused(await to.ack(a)) == [False]
        other = (await to.join("other")).member_id
        assert await to.drain(other) == ["b"]
        assert refused(await to.ack(b)) == [True]

    consume(tmp_path, scenario)


@pytest.mark.parametrize("mode", Mode)
def test_settling_shows_that_the_member_is_there(tmp_path: Path, mode: Mode) -> None:
    """Who works long on what one poll brought, and acks message by message, is not taken for gone."""

    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(visibility_ms=LONG_MS)
            to.put(*numbered(6))
            member = (await to.join(mode=mode)).member_id
            handles = handles_of(await to.poll(member))
            for handle in handles[:3]:
                await to.pass_by(SESSION_MS - 1)
                assert refused(await to.ack(handle)) == [False]
            await to.pass_by(SESSION_MS - 1)
            await to.extend(handles[3], by_ms=LONG_MS)
            await to.pass_by(SESSION_MS - 1)
            assert refused(await to.nack(handles[4])) == [False]
            assert member in to.group().members
            await to.pass_by(SESSION_MS)
            assert member not in to.group().members

    run_timed(go())


def test_a_reset_ends_all_handles(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put(*numbered(3))
        handles = handles_of(await to.poll(member))
        await to.nack(handles[2])
        await to.reset(Place.EARLIEST)
        assert refused(await to.ack(*handles)) == [True] * 3
        assert refused(await to.nack(handles[0])) == [True]
        polled = await to.poll(member)
        assert (texts(polled), deliveries_of(polled)) == (["m0", "m1", "m2"], [1, 1, 1])
        assert refused(await to.ack(*handles)) == [True] * 3

    consume(tmp_path, scenario)


def test_settling_goes_on_while_the_disk_is_full(tmp_path: Path) -> None:
    async def go() -> None:
        disk = FaultyDisk()
        async with consuming(tmp_path, disk=disk) as to:
            await to.create()
            to.put(*numbered(30))
            member = (await to.join()).member_id
            polled = await to.poll(member)
            disk.free = 0
            with pytest.raises(DiskFull):
                to.put("x" * 100)
            handles = handles_of(polled)
            assert refused(await to.ack(*handles[:10])) == [False] * 10
            assert refused(await to.nack(*handles[10:20])) == [False] * 10
            assert refused(await to.extend(*handles[20:], by_ms=1000)) == [False] * 10
            disk.free = None

    run_timed(go())


# --- how much a member may hold


def test_a_member_is_given_no_more_than_it_may_hold_until_it_settles_something(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            to.put(*numbered(20))
            member = (await to.join(max_unacked=5, session_ms=LONG_MS)).member_id
            first = await to.poll(member)
            assert texts(first) == list(numbered(5))
            waiting = await to.parked(member)
            to.put("more")
            await turns()
            assert not waiting.done()
            await to.ack(*handles_of(first)[:2])
            assert texts(await waiting) == ["m5", "m6"]
            waiting = await to.parked(member)
            await to.nack(handles_of(first)[2])
            assert texts(await waiting) == ["m7"], "what waits for its retry is not held"
            waiting = await to.parked(member)
            await to.reject(handles_of(first)[3])
            assert texts(await waiting) == ["m8"]
            waiting = await to.parked(member)
            await to.commit(member, 5)
            assert texts(await waiting) == ["m9"]
            assert await to.texts(member) == []

    run_timed(go())


def test_what_lapsed_is_not_held_any_more(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(visibility_ms=VISIBLE_MS)
            to.put(*numbered(6))
            member = (await to.join(max_unacked=3, session_ms=LONG_MS)).member_id
            await to.poll(member)
            waiting = await to.parked(member)
            await to.pass_by(VISIBLE_MS)
            assert texts(await waiting) == ["m0", "m1", "m2"]

    run_timed(go())


def test_what_it_holds_counts_over_all_its_partitions_and_each_member_for_itself(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(partitions=3)
            for partition in range(3):
                to.put(*numbered(10), partition=partition)
            one = (await to.join("one", mode=Mode.SHARED, max_unacked=12)).member_id
            two = (await to.join("two", mode=Mode.SHARED, max_unacked=7)).member_id
            assert len(await to.drain(one)) == 12
            assert len(await to.drain(two)) == 7
            assert (await to.texts(one), await to.texts(two)) == ([], [])

    run_timed(go())


def test_a_member_that_commits_by_itself_is_not_limited(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            to.put(*numbered(30))
            member = (await to.join(max_unacked=5, auto_commit_ms=5000)).member_id
            assert len(await to.texts(member, max_messages=10)) == 10
            assert len(await to.texts(member)) == 20

    run_timed(go())


def test_what_was_settled_is_counted(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put(*numbered(8))
        handles = handles_of(await to.poll(member))
        await to.ack(*handles[:3])
        await to.ack(handles[0])
        await to.nack(*handles[3:5])
        await to.reject(handles[5])
        await to.pass_by(VISIBLE_MS)
        await to.poll(member)
        counted = to.broker.group_meters.of(GROUP).consumption("orders")
        assert (counted.acked, counted.nacked, counted.rejected) == (3, 2, 1)
        assert (counted.consumed, counted.redelivered) == (8 + 4, 4)

    consume(tmp_path, scenario, visibility_ms=VISIBLE_MS)


def test_a_message_with_headers_and_lane_is_the_same_when_it_comes_again(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.send(message("a", key="k", headers=(("h", b"1"), ("h", b"2"))))
        first = await to.poll(member)
        await to.nack(*handles_of(first))
        await to.pass_by(1000)
        again = await to.poll(member)
        assert [bytes(row.chunk.data) for row in first.rows] == [bytes(row.chunk.data) for row in again.rows]

    consume(tmp_path, scenario)


def test_what_was_refused_leaves_nothing_behind(tmp_path: Path) -> None:
    def count() -> int:
        gc.collect()
        return sum(isinstance(found, StaleHandle) for found in gc.get_objects())

    async def scenario(to: Consumers, member: str) -> None:
        before = count()
        for _ in range(50):
            (outcome,), _ = to.broker.settlement.settle(ACK, [Claim(GroupNumber(999), TopicId(1), 0, 5, BitMap64([1]))])
            assert isinstance(outcome.error, StaleHandle)
        del outcome
        assert count() <= before

    consume(tmp_path, scenario)
