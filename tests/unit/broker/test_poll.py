"""Polling: what wakes a poll that waits, what it takes, in which turn, and what is given back."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from goqueue.broker.parks import Parks
from goqueue.model import limits
from goqueue.model.errors import (
    DamagedData,
    DiskFull,
    InvalidRequest,
    LogClosed,
    StorageFailed,
    UnknownGroup,
    UnknownMember,
)
from goqueue.model.groups import Mode, Place
from goqueue.model.record import Record
from goqueue.storage.cleaner import clean
from goqueue.storage.store import Store
from tests.support.faulty_disk import FaultyDisk
from tests.support.loop import turns
from tests.support.moved_time import run_timed
from tests.support.patience import PATIENCE_S
from tests.unit.broker.brokers import T0, block
from tests.unit.broker.consumers import (
    GROUP,
    SESSION_MS,
    Consumers,
    consuming,
    deliveries_of,
    numbered,
    places,
    read_slowly,
    texts,
)

HOUR_MS = 3600 * 1000


def consume(
    tmp_path: Path,
    scenario: Callable[[Consumers, str], Coroutine[Any, Any, None]],
    partitions: int = 1,
    **settings: Any,
) -> None:
    """A topic, and a member that has been told what it has."""

    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(partitions=partitions, **settings)
            member = (await to.join()).member_id
            await to.poll(member)
            await scenario(to, member)

    run_timed(go())


# --- waiting


def test_a_poll_waits_for_a_message_and_has_it_at_once(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        waiting = await to.parked(member)
        to.put("a", partition=1)
        assert places(await waiting) == [("orders", 1, 0)]
        assert len(to.broker.groups.parks) == 0

    consume(tmp_path, scenario, partitions=3)


def test_a_poll_does_not_wait_when_there_is_something(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put("a")
        assert await to.texts(member, timeout_ms=HOUR_MS) == ["a"]

    consume(tmp_path, scenario)


def test_a_poll_that_found_nothing_says_so_when_its_time_is_up(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        waiting = await to.parked(member, 20_000)
        to.time.move(19_000)
        await turns()
        assert not waiting.done()
        to.time.move(1_000)
        polled = await waiting
        assert (polled.rows, polled.view.assigned) == ([], ["orders-0"])

    consume(tmp_path, scenario)


def test_the_first_poll_tells_what_a_member_has_and_does_not_wait(tmp_path: Path) -> None:
    """Unless joining told it: then there is no news."""

    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(partitions=2)
            first = (await to.join("a")).member_id
            second = (await to.join("b")).member_id
            for _ in range(2):
                await to.poll(first)
            polled = await to.poll(second, timeout_ms=HOUR_MS)
            assert len(polled.view.assigned) == 1
            await to.parked(second)

    run_timed(go())


def test_news_wake_a_poll(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        waiting = await to.parked(member)
        other = (await to.join("other")).member_id
        polled = await waiting
        assert len(polled.view.revoke) == 1
        getting = await to.parked(other)
        await to.poll(member)
        assert (await getting).view.assigned == polled.view.revoke

    consume(tmp_path, scenario, partitions=2)


def test_a_reset_wakes_a_poll(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put("a")
        await to.poll(member)
        await to.commit(member, 1)
        waiting = await to.parked(member)
        await to.reset(Place.EARLIEST)
        polled = await waiting
        if not polled.rows:  # it may have been told of something first
            polled = await to.poll(member)
        assert texts(polled) == ["a"]

    consume(tmp_path, scenario)


def test_what_is_given_back_wakes_a_poll(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put("a")
        lost = await to.poll(member)
        waiting = await to.parked(member)
        to.broker.poller.give_back(GROUP, lost.view.member_id, lost.number)
        polled = await waiting
        assert (texts(polled), deliveries_of(polled)) == (["a"], [1])

    consume(tmp_path, scenario)


def test_a_broker_that_stops_sends_everybody_home(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        waiting = await to.parked(member)
        to.broker.drain()
        assert texts(await waiting) == []
        assert texts(await to.poll(member, timeout_ms=HOUR_MS)) == [], "nobody begins to wait"

    consume(tmp_path, scenario)


def test_a_poll_that_was_sent_home_takes_nothing_also_when_messages_come_in_the_same_moment(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        older = asyncio.ensure_future(to.park(member))
        newer = asyncio.ensure_future(to.park(member))
        await turns()
        to.put(*numbered(3))
        first, second = await older, await newer
        assert texts(await to.take(member, first)) == [], "its reply may go where nobody listens any more"
        polled = await to.take(member, second)
        assert texts(polled) == list(numbered(3))
        await to.commit(member, 3, received=polled.number)
        assert await to.offsets() == {"orders": {0: 3}}

    consume(tmp_path, scenario)


def test_a_newer_poll_of_the_same_member_sends_the_older_one_home(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        older = await to.parked(member)
        newer = await to.parked(member)
        assert texts(await older) == []
        to.put("a")
        assert texts(await newer) == ["a"]

    consume(tmp_path, scenario)


def test_a_poll_that_waits_watches_only_what_its_member_is_delivered_from(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        await to.join("other")
        await to.poll(member)
        (revoked,) = (part.partition for part in to.group().revoking(to.member(member)))
        to.member(member).told = frozenset()  # as if it had not heard of it yet, so that it is not released
        waiting = await to.parked(member)
        to.put("not now", partition=revoked)
        await turns()
        assert not waiting.done()
        to.put("now", partition=1 - revoked)
        assert texts(await waiting) == ["now"]

    consume(tmp_path, scenario, partitions=2)


def test_waiting_costs_nothing_that_stays(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        for _ in range(50):
            waiting = await to.parked(member)
            waiting.cancel()
            await asyncio.wait([waiting])
        assert len(to.broker.groups.parks) == 0
        assert [to.partition(number).log.written.waiting for number in range(3)] == [0, 0, 0]
        assert to.member(member).parked == 0

    consume(tmp_path, scenario, partitions=3)


def test_groups_and_members_that_are_not_there_cannot_poll(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        with pytest.raises(UnknownGroup):
            await to.poll(member, group="nope")
        with pytest.raises(UnknownMember):
            await to.poll("nobody-1")
        waiting = await to.parked(member)
        await to.leave(member)
        with pytest.raises(UnknownMember):
            await waiting

    consume(tmp_path, scenario)


# --- how much, and from where


def test_a_poll_takes_no_more_messages_than_it_may(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        for partition in (0, 1):
            to.put(*numbered(10), partition=partition)
        sizes = [len(await to.texts(member, max_messages=7)) for _ in range(4)]
        assert sizes == [7, 7, 6, 0]

    consume(tmp_path, scenario, partitions=2)


def test_a_poll_takes_no_more_bytes_than_it_may_and_at_least_one_message(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        for number in range(6):
            to.put("x" * 1000, partition=number % 2)
        to.put("y" * 5000, partition=0)
        found = []
        for _ in range(5):
            polled = await to.poll(member, max_bytes=2500)
            size = sum(len(row.chunk.data) for row in polled.rows)
            assert size <= 2500 or len(texts(polled)) == 1
            found += texts(polled)
        assert sorted(map(len, found)) == [1000] * 6 + [5000]

    consume(tmp_path, scenario, partitions=2)


def test_a_message_larger_than_asked_for_comes_alone(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put("x" * 5000)
        to.put("y" * 5000, partition=1)
        first, second = await to.texts(member, max_bytes=1), await to.texts(member, max_bytes=1)
        assert sorted([first, second]) == [["x" * 5000], ["y" * 5000]]

    consume(tmp_path, scenario, partitions=2)


def test_every_partition_gets_its_turn(tmp_path: Path) -> None:
    """Also when one of them has more than a poll can take."""

    async def scenario(to: Consumers, member: str) -> None:
        to.put(*numbered(100), partition=0)
        for partition in (1, 2, 3):
            to.put("x", "y", partition=partition)
        found: Counter[int] = Counter()
        for _ in range(8):
            found.update(partition for _, partition, _ in places(await to.poll(member, max_messages=1)))
        assert found == {0: 2, 1: 2, 2: 2, 3: 2}

    consume(tmp_path, scenario, partitions=4)


def test_a_busy_partition_does_not_keep_a_quiet_one_from_its_turn(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put(*numbered(1000), partition=0)
        for number in range(20):
            to.put(f"quiet {number}", partition=1)
            taken = places(await to.poll(member, max_messages=5)) + places(await to.poll(member, max_messages=5))
            assert ("orders", 1, number) in taken

    consume(tmp_path, scenario, partitions=2)


def test_messages_of_a_partition_come_in_their_order(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        log = to.partition().log
        for first in range(0, 60, 6):
            to.put(*numbered(6, first))
            log.roll()
        found: list[str] = []
        while part := await to.texts(member, max_messages=7):
            found += part
        assert found == list(numbered(60))

    consume(tmp_path, scenario)


def test_groups_do_not_see_each_other(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        other = (await to.join(group="audit")).member_id
        to.put("a", "b")
        assert await to.texts(member) == ["a", "b"]
        await to.commit(member, 2)
        assert await to.texts(other, group="audit") == ["a", "b"]

    consume(tmp_path, scenario)


def test_an_empty_partition_gets_no_sidecar_from_a_poll(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        await to.poll(member)
        assert to.partition().sidecar is None
        assert [path.name for path in tmp_path.glob("logs/orders/*/0/*") if path.is_dir()] == []

    consume(tmp_path, scenario)


# --- what is not delivered


def test_nothing_is_delivered_from_a_partition_that_is_to_be_given_up(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        for partition in (0, 1):
            to.put("old", partition=partition)
        await to.poll(member)
        other = (await to.join("other")).member_id
        (revoked,) = (part.partition for part in to.group().revoking(to.member(member)))
        for partition in (0, 1):
            to.put("new", partition=partition)
        assert places(await to.poll(member)) == [("orders", 1 - revoked, 1)]
        assert await to.texts(other) == [], "it is not the other's yet"
        await to.commit(member, 1, partition=revoked)
        await to.poll(member)
        assert places(await to.poll(other)) == [("orders", revoked, 1)]

    consume(tmp_path, scenario, partitions=2)


def test_a_partition_that_moves_while_it_is_read_is_not_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put("a")
        reader = to.broker.reader
        read = reader.read

        async def slowly(*arguments: Any, **more: Any) -> Any:
            chunk = await read(*arguments, **more)
            await to.leave(member)
            return chunk

        read_slowly(to, monkeypatch, slowly)
        try:
            assert (await to.take(member)).rows == []
        except UnknownMember:
            pass  # as good
        monkeypatch.undo()
        other = (await to.join("other")).member_id
        polled = await to.poll(other)
        assert (texts(polled), deliveries_of(polled)) == (["a"], [1])

    consume(tmp_path, scenario)


def test_damaged_messages_are_passed_over(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(fsync="every")
            to.put(*(f"{number}" * 50 for number in range(9)))
            to.partition().log.sync()
            to.partition().log.roll()
            to.put("last")
            segment = next(tmp_path.glob("logs/orders/*/0/*.log"))
        data = bytearray(segment.read_bytes())
        data[data.index(b"4" * 50)] ^= 0xFF
        segment.write_bytes(data)
        async with consuming(tmp_path) as to:
            member = (await to.join()).member_id
            found: list[str] = []
            while part := await to.texts(member):
                found += part
            assert [text[0] for text in found] == ["0", "1", "2", "3", "5", "6", "7", "8", "l"]
            await to.commit(member, 10)
            assert await to.offsets() == {"orders": {0: 10}}, "nothing keeps the group there"
            assert (await to.lag())[0].lag == 0

    run_timed(go())


def test_retention_may_overtake_a_group_which_goes_on_where_the_partition_begins(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        log = to.partition().log
        to.put(*numbered(4))
        assert await to.texts(member, max_messages=2) == ["m0", "m1"]
        log.roll()
        log.sync()
        to.clock.now += 2 * HOUR_MS
        to.put("late")
        clean(log, to.clock())
        assert log.start_offset == 4
        assert await to.texts(member) == ["late"]
        assert to.broker.group_meters.of(GROUP).consumption("orders").missed == 2
        await to.commit(member, 5)
        assert (await to.lag())[0][:3] == (5, 5, 0)

    consume(tmp_path, scenario, retention_hours=1)


def test_retention_may_pass_by_while_a_group_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        log = to.partition().log
        to.put(*numbered(4))
        log.roll()
        log.sync()
        to.clock.now += 2 * HOUR_MS
        to.put("late")
        reader = to.broker.reader
        read = reader.read

        async def later(*arguments: Any, **more: Any) -> Any:
            monkeypatch.undo()
            clean(log, to.clock())
            return await read(*arguments, **more)

        read_slowly(to, monkeypatch, later)
        assert await to.texts(member) == ["late"]

    consume(tmp_path, scenario, retention_hours=1)


def test_what_compaction_removed_is_passed_over(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        log = to.partition().log
        for number in range(12):
            log.append(block(Record(key=b"abc"[number % 3 : number % 3 + 1], value=f"m{number}".encode())), now=T0)
        log.roll()
        log.append(block(Record(key=b"z", value=b"last")), now=T0)
        lost = await to.poll(member, max_messages=8)
        log.sync()
        clean(log, T0 + HOUR_MS)
        to.broker.poller.give_back(GROUP, lost.view.member_id, lost.number)
        found: list[str] = []
        for _ in range(20):
            found += await to.texts(member, max_messages=2)
        assert found == ["m9", "m10", "m11", "last"]
        await to.commit(member, 13)
        assert await to.offsets() == {"orders": {0: 13}}

    consume(tmp_path, scenario, cleanup_policy="compact")


def test_a_topic_that_is_deleted_while_it_is_read_does_not_take_the_others_messages_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            for topic in ("orders", "bills"):
                await to.create(topic)
                to.put(topic, topic=topic)
            member = (await to.join("worker", "orders", "bills")).member_id
            for topic in ("orders", "bills"):
                await to.broker.sidecars.made(to.partition(topic=topic))
            reader = to.broker.reader
            read = reader.read
            reads = 0

            async def interrupted(*arguments: Any, **more: Any) -> Any:
                nonlocal reads
                reads += 1
                chunk = await read(*arguments, **more)
                if reads == 1:
                    monkeypatch.undo()
                    first = arguments[0].log_name.partition("/")[0]
                    await to.delete("bills" if first == "orders" else "orders")
                return chunk

            read_slowly(to, monkeypatch, interrupted)
            polled = await to.take(member)
            assert len(texts(polled)) == 1, "what was leased is told"
            assert reads == 1

    run_timed(go())


def test_a_topic_that_was_deleted_during_a_poll_is_not_delivered_from_while_its_files_are_still_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members that share partitions own none, so nothing of theirs is taken away with it."""
    remove_log, go_on = Store.remove_log, threading.Event()

    def remove_later(store: Store, name: str) -> None:
        go_on.wait(PATIENCE_S)
        remove_log(store, name)

    async def go() -> None:
        async with consuming(tmp_path) as to:
            for topic in ("orders", "bills"):
                await to.create(topic)
                to.put(topic, topic=topic)
            member = (await to.join("worker", "orders", "bills", mode=Mode.SHARED)).member_id
            await to.broker.sidecars.made(to.partition(topic="orders"))
            read = to.broker.reader.read

            async def interrupted(*arguments: Any, **more: Any) -> Any:
                chunk = await read(*arguments, **more)
                if "bills" in to.broker.topics.by_name:
                    await to.delete("bills")
                return chunk

            read_slowly(to, monkeypatch, interrupted)
            monkeypatch.setattr(Store, "remove_log", remove_later)
            polled = await to.take(member)
            assert texts(polled) == ["orders"]
            assert to.member(member).unreadable == {}
            go_on.set()
            await to.broker.topics.finish()
            assert list((tmp_path / "logs").glob("bills*")) == []

    run_timed(go())


async def waits_while(to: Consumers, member: str, happens: Callable[[], object], turns_each: int = 3) -> int:
    """How often a poll that is parked waits anew while something happens again and again."""
    waits = 0
    wait = Parks.wait

    async def counted(*arguments: Any) -> bool:
        nonlocal waits
        waits += 1
        return await wait(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Parks, "wait", counted)
        waiting = await to.parked(member)
        for _ in range(20):
            happens()
            await turns(turns_each)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    return waits


def test_a_poll_is_not_woken_by_a_partition_that_it_is_given_nothing_of(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        await to.texts(member)
        to.partition(0).sidecar_damage = DamagedData("planted")
        assert await waits_while(to, member, lambda: to.put("x", partition=0)) == 1

    consume(tmp_path, scenario, partitions=2)


def test_a_poll_beside_a_log_that_has_failed_waits_and_does_not_spin(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        await to.texts(member)
        to.partition(0).log.written.fail(LogClosed("planted"))
        assert await waits_while(to, member, lambda: None) == 1

    consume(tmp_path, scenario, partitions=2)


def test_a_disk_that_fills_up_half_way_does_not_take_messages_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was leased before that is told; the rest comes with the next poll."""

    async def scenario(to: Consumers, member: str) -> None:
        to.put(*numbered(10))
        lost = await to.poll(member, max_messages=4)
        to.broker.poller.give_back(GROUP, lost.view.member_id, lost.number)
        one = await to.poll(member, max_messages=2)
        assert texts(one) == ["m0", "m1"]
        write = to.broker.sidecars.write
        leases = 0

        def refuse_second(sidecar: Any, command: Any) -> Any:
            nonlocal leases
            if type(command).__name__ == "Lease":
                leases += 1
                if leases == 2:
                    raise DiskFull("no space")
            return write(sidecar, command)

        for partition in (0, 1):
            to.put("x", partition=partition)
        monkeypatch.setattr(to.broker.sidecars, "write", refuse_second)
        first = texts(await to.poll(member))
        assert leases == 2
        assert first
        second = texts(await to.poll(member))
        assert sorted([*first, *second]) == sorted([*numbered(8, 2), "x", "x"])

    consume(tmp_path, scenario, partitions=2)


# --- lost replies


def test_a_member_that_says_what_it_received_gets_the_rest_again(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put(*numbered(6))
        first = await to.poll(member, max_messages=2, received=0)
        second = await to.poll(member, max_messages=2, received=first.number)
        assert (texts(first), texts(second)) == (["m0", "m1"], ["m2", "m3"])
        again = await to.poll(member, received=first.number)
        assert texts(again) == ["m2", "m3", "m4", "m5"]
        assert deliveries_of(again) == [1, 1, 1, 1], "it counts as if the lost reply had not been made"
        assert again.number > second.number > first.number
        assert await to.texts(member, received=again.number) == []

    consume(tmp_path, scenario)


def test_a_member_that_received_nothing_gets_everything_again(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put("a")
        for _ in range(3):
            assert await to.texts(member, received=0) == ["a"]

    consume(tmp_path, scenario)


def test_without_a_word_about_it_a_reply_counts_as_received(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put("a")
        assert await to.texts(member) == ["a"]
        assert await to.texts(member) == []

    consume(tmp_path, scenario)


def test_what_was_settled_is_not_given_back(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put(*numbered(4))
        await to.poll(member)
        await to.commit(member, 3)
        assert await to.texts(member, received=0) == ["m3"]

    consume(tmp_path, scenario)


def test_a_reply_that_was_lost_before_a_restart_is_given_back_after_it(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            to.put(*numbered(4))
            member = (await to.join()).member_id
            first = await to.poll(member, max_messages=2, received=0)
            await to.poll(member, received=first.number)
        async with consuming(tmp_path) as to:
            again = await to.poll(member, received=first.number)
            assert (texts(again), deliveries_of(again)) == (["m2", "m3"], [1, 1])
            assert again.number > first.number, "numbers go on growing, also if the clock does not"

    run_timed(go())


def test_a_first_reply_that_was_lost_before_a_restart_is_given_back_after_it(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            to.put("a")
            member = (await to.join()).member_id
            await to.poll(member, received=0)
        async with consuming(tmp_path) as to:
            assert await to.texts(member, received=0) == ["a"]

    run_timed(go())


def test_numbers_grow_over_restarts_also_when_the_clock_goes_back(tmp_path: Path) -> None:
    async def go() -> None:
        numbers: list[int] = []
        for life in range(4):
            async with consuming(tmp_path) as to:
                to.clock.now = T0 - life * HOUR_MS
                if not life:
                    await to.create()
                    member = (await to.join()).member_id
                to.put(f"m{life}")
                numbers.append((await to.poll(member, received=numbers[-1] if numbers else 0)).number)
        assert numbers == sorted(set(numbers))

    run_timed(go())


@pytest.mark.parametrize("received", [limits.MAX_OFFSET - 1, 2**53])
def test_a_number_that_was_never_given_is_refused_and_spoils_nothing(tmp_path: Path, received: int) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put("a")
        before = (await to.poll(member)).number
        with pytest.raises(InvalidRequest, match="no poll has that number"):
            await to.poll(member, received=received)
        to.put("b")
        after = await to.poll(member, received=before)
        assert texts(after) == ["b"]
        assert before < after.number < before + 1000

    consume(tmp_path, scenario)


def test_only_the_reply_that_could_not_be_written_is_given_back(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put(*numbered(6))
        replies = [await to.poll(member, max_messages=2) for _ in range(3)]
        to.broker.poller.give_back(GROUP, replies[1].view.member_id, replies[1].number)
        assert await to.texts(member) == ["m2", "m3"]

    consume(tmp_path, scenario)


def test_a_reply_may_be_given_back_when_group_member_or_topic_are_gone(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put("a")
        lost = await to.poll(member)
        await to.leave(member)
        to.broker.poller.give_back(GROUP, lost.view.member_id, lost.number)
        await to.broker.groups.delete(GROUP)
        to.broker.poller.give_back(GROUP, lost.view.member_id, lost.number)
        again = (await to.join()).member_id
        lost = await to.poll(again)
        await to.delete()
        to.broker.poller.give_back(GROUP, lost.view.member_id, lost.number)

    consume(tmp_path, scenario)


def test_what_an_earlier_owner_was_delivered_is_not_given_back_by_a_later_one(tmp_path: Path) -> None:
    """It comes again anyway, and then it counts as delivered twice."""

    async def scenario(to: Consumers, member: str) -> None:
        to.put("a")
        await to.poll(member)
        await to.leave(member)
        other = (await to.join("other")).member_id
        polled = await to.poll(other, received=0)
        assert (texts(polled), deliveries_of(polled)) == (["a"], [2])

    consume(tmp_path, scenario)


# --- delivered again


def test_deliveries_are_counted(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put("a")
        for times in range(1, 4):
            polled = await to.poll(member)
            assert (texts(polled), deliveries_of(polled)) == (["a"], [times])
            await to.leave(member)
            member = (await to.join()).member_id

    consume(tmp_path, scenario)


def test_what_is_delivered_again_comes_before_what_is_new(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put(*numbered(4))
        await to.poll(member, max_messages=3)
        await to.commit(member, 1)
        await to.pass_by(SESSION_MS)
        other = (await to.join("other")).member_id
        polled = await to.poll(other)
        assert (texts(polled), deliveries_of(polled)) == (["m1", "m2", "m3"], [2, 2, 1])

    consume(tmp_path, scenario)


def test_a_restart_does_not_deliver_again_to_the_same_owner(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            to.put(*numbered(3))
            member = (await to.join()).member_id
            assert await to.texts(member, max_messages=2) == ["m0", "m1"]
        async with consuming(tmp_path) as to:
            assert await to.texts(member) == ["m2"]
            await to.commit(member, 3)
            assert await to.offsets() == {"orders": {0: 3}}, "what was delivered in the life before is settled too"

    run_timed(go())


# --- two polls at once


def test_two_polls_of_one_member_take_each_message_once(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        for partition in range(3):
            to.put(*numbered(30), partition=partition)
        replies = await asyncio.gather(*(to.take(member, max_messages=20) for _ in range(6)))
        found = [place for reply in replies for place in places(reply)]
        while rest := places(await to.poll(member)):
            found += rest
        assert sorted(found) == [("orders", partition, offset) for partition in range(3) for offset in range(30)]

    consume(tmp_path, scenario, partitions=3)


@pytest.mark.parametrize("first_leases", [False, True])
def test_a_poll_that_is_overtaken_by_a_newer_one_takes_nothing_that_nobody_would_hear_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first_leases: bool
) -> None:
    """Its client gave up and asks again. Whatever the older one took is in no reply that arrives."""

    async def scenario(to: Consumers, member: str) -> None:
        for partition in (0, 1):
            to.put(*numbered(4), partition=partition)
        arrived = await to.poll(member, max_messages=1, received=0)
        reader, begun, gate = to.broker.reader, asyncio.Event(), asyncio.Event()
        read = reader.read
        reads = 0

        async def slowly(*arguments: Any, **more: Any) -> Any:
            nonlocal reads
            reads += 1
            chunk = await read(*arguments, **more)
            if reads == 1 + first_leases:
                begun.set()
                await gate.wait()
            return chunk

        read_slowly(to, monkeypatch, slowly)
        older = asyncio.ensure_future(to.poll(member, received=arrived.number))
        await begun.wait()
        newer = await to.poll(member, received=arrived.number, max_messages=2)
        gate.set()
        await older  # and it is lost
        found = [*places(arrived), *places(newer)]
        while (reply := await to.poll(member, received=newer.number)).rows:
            found += places(reply)
            newer = reply
        await to.commit(member, {"orders": {0: 4, 1: 4}}, received=newer.number)
        assert (await to.offsets())["orders"] == {0: 4, 1: 4}
        assert sorted(found) == [("orders", partition, offset) for partition in (0, 1) for offset in range(4)]

    consume(tmp_path, scenario, partitions=2)


def test_a_failed_disk_is_told_and_ends_the_broker(tmp_path: Path) -> None:
    async def go() -> None:
        disk = FaultyDisk()
        async with consuming(tmp_path, disk=disk) as to:
            await to.create()
            to.put("a")
            member = (await to.join()).member_id
            await to.broker.sidecars.made(to.partition())
            disk.only, disk.write_error = ".log", 5
            with pytest.raises(StorageFailed):
                await to.poll(member)
            assert to.broker.failed.is_set()
            disk.write_error = None

    run_timed(go())
