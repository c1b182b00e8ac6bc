"""Statistics of a broker that works: lanes counted exactly, whatever is in memory; delays; how deliveries ended."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from goqueue.broker import statistics
from goqueue.broker.statistics import DelayRow, DeliveryRow, LaneRow
from goqueue.model.groups import Mode, Place
from goqueue.model.record import Lane
from goqueue.model.topic import Backoff, OnExpiry
from goqueue.storage.cleaner import clean
from goqueue.storage.derived import Derived
from goqueue.storage.log import Log
from goqueue.storage.reading import Reader
from goqueue.storage.segment import Segment
from goqueue.telemetry import meters
from goqueue.telemetry.meters import Consumption
from tests.support.moved_time import run_timed
from tests.unit.broker.brokers import T0, Clock
from tests.unit.broker.consumers import GROUP, TOPIC, Consumers, consuming, handles_of, message, numbered

LONG_MS = 3600 * 1000
SECOND_MS = 1000


class Counted(Consumers):
    """Consumers, and somebody who asks for statistics."""

    def __init__(self, consumers: Consumers) -> None:
        super().__init__(consumers.broker, consumers.clock, consumers.time)
        self.statistics = self.broker.statistics

    async def rows(self, group: str | None = None, topic: str | None = None, limit: int = 100) -> list[LaneRow]:
        return (await self.statistics.lanes(group=group, topic=topic, limit=limit))[0]

    async def lanes(self, partition: int = 0, group: str = GROUP) -> LaneRow:
        (row,) = [row for row in await self.rows(group, TOPIC) if row.partition == partition]
        return row

    async def ready(self, partition: int = 0, group: str = GROUP) -> list[int]:
        return [lane.ready for lane in (await self.lanes(partition, group)).lanes]

    async def in_flight(self, partition: int = 0, group: str = GROUP) -> list[int]:
        return [lane.in_flight for lane in (await self.lanes(partition, group)).lanes]

    def from_memory(self, group: str = GROUP) -> list[int] | None:
        """What a scrape finds to be ready."""
        ready = [0] * 5
        for found in self.statistics.counted_lanes(self.group(group)):
            if found is None:
                return None
            ready = [sum(pair) for pair in zip(ready, found[0], strict=True)]
        return ready

    async def ended(self, group: str = GROUP, topic: str = TOPIC) -> DeliveryRow:
        rows = (await self.statistics.reliability()).rows
        return next(row for row in rows if (row.group, row.topic) == (group, topic))

    async def delays(self) -> dict[str, DelayRow]:
        return {row.topic: row for row in await self.statistics.delays()}

    def send_lanes(self, *lanes: Lane, partition: int = 0) -> None:
        self.send(*(message(lane.name, lane=lane) for lane in lanes), partition=partition)


@asynccontextmanager
async def counted(path: Path, *, clock: Clock | None = None) -> AsyncIterator[Counted]:
    async with consuming(path, clock=clock) as consumers:
        yield Counted(consumers)


def counts(counted: Consumption) -> dict[str, Any]:
    """Those that are not zero."""
    names = ("consumed", "missed", "redelivered", "acked", "nacked", "rejected", "lapsed", "expired")
    found = {name: getattr(counted, name) for name in names if getattr(counted, name)}
    return {**found, **({"dead": counted.dead.counts} if counted.dead.counts else {})}


def forget_views(log: Log) -> None:
    for segment in log.segments[:-1]:
        segment.derived = None


# --- lanes


def test_lanes_are_told_by_group_topic_and_partition(tmp_path: Path) -> None:
    async def go() -> None:
        async with counted(tmp_path) as to:
            await to.create(partitions=2)
            to.send_lanes(Lane.HIGH, Lane.LOW, Lane.LOW)
            to.send_lanes(Lane.NORMAL, partition=1)
            member = (await to.join()).member_id
            await to.join(group="audit")
            await to.poll(member)
            rows = await to.rows()
            assert [(row.group, row.partition, [lane.ready for lane in row.lanes]) for row in rows] == [
                ("audit", 0, [0, 1, 0, 2, 0]),
                ("audit", 1, [0, 0, 1, 0, 0]),
                (GROUP, 0, [0] * 5),
                (GROUP, 1, [0] * 5),
            ]
            assert [(lane.in_flight, lane.served) for lane in rows[2].lanes] == [(0, 0), (1, 1), (0, 0), (2, 2), (0, 0)]
            assert [lane.last_served for lane in rows[2].lanes] == [None, T0, None, T0, None]
            assert all(lane.last_served is None and lane.served == 0 for row in rows[:2] for lane in row.lanes)

    run_timed(go())


def test_a_partition_where_no_group_ever_was_has_everything_ready(tmp_path: Path) -> None:
    async def go() -> None:
        async with counted(tmp_path) as to:
            await to.create()
            await to.join()
            assert await to.ready() == [0] * 5
            to.send_lanes(Lane.NORMAL, Lane.NORMAL)
            to.delay("late", by_ms=SECOND_MS)
            assert to.partition().sidecar is None
            assert await to.ready() == to.from_memory() == [0, 0, 2, 0, 0]
            await to.pass_by(SECOND_MS + 10)
            assert await to.ready() == to.from_memory() == [0, 0, 3, 0, 0]

    run_timed(go())


def test_what_a_message_goes_through_moves_the_numbers(tmp_path: Path) -> None:
    async def go() -> None:
        async with counted(tmp_path) as to:
            await to.create(backoff=Backoff(base_ms=5 * SECOND_MS), visibility_ms=30 * SECOND_MS)
            member = (await to.join(session_ms=LONG_MS)).member_id
            to.send_lanes(Lane.NORMAL, Lane.NORMAL, Lane.NORMAL, Lane.LOW)
            polled = await to.poll(member, max_messages=3)
            first, second, third = handles_of(polled)
            assert (await to.ready(), await to.in_flight()) == ([0, 0, 0, 1, 0], [0, 0, 3, 0, 0])
            await to.ack(first)
            await to.nack(second)
            assert (await to.ready(), await to.in_flight()) == ([0, 0, 0, 1, 0], [0, 0, 1, 0, 0])
            assert (await to.ended()).waiting == 1
            await to.pass_by(5 * SECOND_MS + 10)
            assert (await to.ready(), await to.in_flight()) == ([0, 0, 1, 1, 0], [0, 0, 1, 0, 0])
            assert (await to.ended()).waiting == 0
            await to.pass_by(25 * SECOND_MS + 10)
            assert (await to.ready(), await to.in_flight()) == ([0, 0, 2, 1, 0], [0] * 5)
            await to.reject(third)
            assert (await to.ready(), await to.in_flight()) == ([0, 0, 1, 1, 0], [0] * 5), "also after it lapsed"

    run_timed(go())


def test_views_are_loaded_aside_where_they_are_needed_and_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go() -> None:
        async with counted(tmp_path) as to:
            await to.create(fsync="none")
            member = (await to.join(session_ms=LONG_MS)).member_id
            log = to.partition().log
            for _ in range(4):
                to.send_lanes(*[Lane.NORMAL] * 10)
                log.roll()
                log.sync()
            await to.ack(*handles_of(await to.poll(member, max_messages=10)))  # the first segment is settled
            await to.poll(member, max_messages=15)  # of the third a half is out
            await to.lanes()
            forget_views(log)
            assert to.from_memory() is None
            loaded: list[int] = []
            derived = Reader.derived

            def watched(self: Reader, segment: Segment) -> Derived:
                if segment.derived is None:
                    with pytest.raises(RuntimeError):
                        asyncio.get_running_loop()  # it would be on the loop
                    loaded.append(segment.base)
                return derived(self, segment)

            monkeypatch.setattr(Reader, "derived", watched)
            row = await to.lanes()
            assert [(lane.ready, lane.in_flight) for lane in row.lanes] == [(0, 0), (0, 0), (15, 15), (0, 0), (0, 0)]
            assert loaded == [10, 20], "what is settled, and what is ready as a whole, needs no view"
            assert to.from_memory() == [0, 0, 15, 0, 0]

    run_timed(go())


@pytest.mark.parametrize(("start", "left"), [(8, 4), (10, 4)], ids=["a segment", "half a segment"])
def test_what_retention_takes_while_it_is_counted_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: int, left: int
) -> None:
    """Half a segment is counted whole: so it was when the counting began."""

    async def go() -> None:
        async with counted(tmp_path) as to:
            await to.create()
            await to.join()
            log = to.partition().log
            for _ in range(3):
                to.send_lanes(*[Lane.NORMAL] * 4)
                log.roll()
                log.sync()
            forget_views(log)
            for segment in log.segments:
                segment.lane_counts = None
            read = to.broker.reader.read

            async def slow(*arguments: Any, **more: Any) -> Any:
                log.truncate_prefix(start)
                return await read(*arguments, **more)

            monkeypatch.setattr(to.broker.reader, "read", slow)
            assert await to.ready() == [0, 0, left, 0, 0]

    run_timed(go())


def test_a_view_that_never_stays_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        async with counted(tmp_path) as to:
            await to.create()
            await to.join()
            log = to.partition().log
            to.send_lanes(Lane.NORMAL)
            log.roll()
            log.sync()
            log.segments[0].derived = log.segments[0].lane_counts = None

            async def useless(*_: Any, **__: Any) -> None:
                pass

            monkeypatch.setattr(to.broker.reader, "read", useless)
            assert await to.rows() == []

    run_timed(go())


def test_a_compacted_log_is_counted_without_what_is_gone(tmp_path: Path) -> None:
    async def go() -> None:
        async with counted(tmp_path) as to:
            await to.create(cleanup_policy="compact")
            await to.join()
            log = to.partition().log
            for _ in range(3):
                to.send(*(message("v", key=f"k{key}", lane=Lane.LOW) for key in range(4)))
                log.roll()
                log.sync()
            to.send(message("last", key="last"))
            clean(log, now=T0 + 10**10)
            assert sum(segment.count for segment in log.segments) == 5, "the test needs holes"
            assert await to.ready() == [0, 0, 1, 4, 0]

    run_timed(go())


def test_a_wait_is_told_and_ends_when_the_lane_is_served(tmp_path: Path) -> None:
    async def go() -> None:
        async with counted(tmp_path) as to:
            await to.create(lane_policy="strict")
            member = (await to.join(session_ms=LONG_MS)).member_id
            to.send_lanes(Lane.HIGH, Lane.HIGH, Lane.LOW)
            assert [lane.waited_ms for lane in (await to.lanes()).lanes] == [0] * 5
            await to.poll(member, max_messages=1)
            await to.pass_by(4 * SECOND_MS)
            assert [lane.waited_ms for lane in (await to.lanes()).lanes] == [0, 4000, 0, 4000, 0]
            await to.poll(member, max_messages=1)
            await to.pass_by(SECOND_MS)
            assert [lane.waited_ms for lane in (await to.lanes()).lanes] == [0, 0, 0, 5000, 0]
            await to.poll(member)
            row = await to.lanes()
            assert [lane.waited_ms for lane in row.lanes] == [0] * 5
            assert [lane.last_served for lane in row.lanes] == [None, T0 + 4000, None, T0 + 5000, None]

    run_timed(go())


def test_rows_are_chosen_by_name_and_there_are_so_many(tmp_path: Path) -> None:
    async def go() -> None:
        async with counted(tmp_path) as to:
            for topic in ("orders", "users"):
                await to.create(topic, partitions=3)
            for group in ("a", "b"):
                await to.join("worker", "orders", "users", group=group)
            every = [(group, topic, number) for group in "ab" for topic in ("orders", "users") for number in range(3)]
            assert [row[:3] for row in await to.rows()] == every
            assert [row[:3] for row in await to.rows("b")] == [row for row in every if row[0] == "b"]
            assert [row[:3] for row in await to.rows(None, "users")] == [row for row in every if row[1] == "users"]
            assert await to.rows("nobody") == await to.rows(None, "nothing") == []
            for limit in (1, 3, 4, 7, 12):
                rows, left_out = await to.statistics.lanes(group=None, topic=None, limit=limit)
                assert [row[:3] for row in rows] == every[:limit]
                assert left_out == 12 - limit

    run_timed(go())


def test_a_group_that_is_deleted_while_it_is_counted_has_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "_SEGMENTS", 1)

    async def go() -> None:
        async with counted(tmp_path) as to:
            await to.create()
            member = (await to.join()).member_id
            to.put(*numbered(3))
            await to.leave(member)
            asked = asyncio.ensure_future(to.rows())
            await to.broker.groups.delete(GROUP)
            assert await asked == []
            assert list(to.statistics.counted_lanes(await gone(to))) == []

    async def gone(to: Counted) -> Any:
        await to.join(group="other")
        found = to.group("other")
        await to.leave(next(iter(found.members)), group="other")
        await to.broker.groups.delete("other")
        return found

    run_timed(go())


def test_in_key_mode_what_stands_in_line_is_ready(tmp_path: Path) -> None:
    async def go() -> None:
        async with counted(tmp_path) as to:
            await to.create()
            member = (await to.join(mode=Mode.KEY, session_ms=LONG_MS)).member_id
            to.send(*(message("v", key="k") for _ in range(3)))
            await to.poll(member)
            row = await to.lanes()
            assert (row.lanes[Lane.NORMAL].ready, row.lanes[Lane.NORMAL].in_flight) == (2, 1)

    run_timed(go())


# --- delays


def test_delays_are_counted_by_topic(tmp_path: Path) -> None:
    async def go() -> None:
        async with counted(tmp_path) as to:
            await to.create("plain")
            await to.create(partitions=2)
            assert await to.delays() == {}
            to.delay("a", "b", by_ms=SECOND_MS)
            to.delay("c", by_ms=5 * SECOND_MS, partition=1)
            to.delay("d", by_ms=9 * SECOND_MS, partition=1)
            topic = to.broker.topics.named(TOPIC)
            assert await to.delays() == {TOPIC: DelayRow(TOPIC, 4, 4, 0, 0, 0, T0 + SECOND_MS)}
            await to.broker.delayed.cancel(topic, 1, 1)
            await to.broker.delayed.move(topic, 1, 0, T0 + 2 * SECOND_MS)
            await to.pass_by(SECOND_MS + 10)
            found = (await to.delays())[TOPIC]
            assert found[:6] == (TOPIC, 1, 4, 2, 1, 1)
            assert found.next_due is not None
            assert T0 + SECOND_MS + 10 < found.next_due <= T0 + 2 * SECOND_MS
            await to.pass_by(SECOND_MS)
            assert await to.delays() == {TOPIC: DelayRow(TOPIC, 0, 4, 3, 1, 1, None)}

    run_timed(go())


def test_after_a_restart_what_is_pending_is_what_was_scheduled(tmp_path: Path) -> None:
    async def go() -> None:
        clock = Clock()
        async with counted(tmp_path, clock=clock) as to:
            await to.create()
            to.delay("a", "b", "c", by_ms=SECOND_MS)
            await to.broker.delayed.cancel(to.broker.topics.named(TOPIC), 0, 0)
        async with counted(tmp_path, clock=clock) as to:
            assert (await to.delays())[TOPIC][:6] == (TOPIC, 2, 2, 0, 0, 0)
        clock.now += 2 * SECOND_MS
        async with counted(tmp_path, clock=clock) as to:
            assert await to.delays() == {}, "they were due before it started"

    run_timed(go())


def test_lateness_is_observed_once_for_each_slice(tmp_path: Path) -> None:
    async def go() -> None:
        async with counted(tmp_path) as to:
            await to.create()
            await to.create("users")
            to.delay(*numbered(5), by_ms=SECOND_MS)
            to.delay("x", by_ms=SECOND_MS, topic="users")
            lateness = to.broker.alarms.lateness
            assert lateness.count == 0
            await to.pass_by(SECOND_MS + 250)
            assert (lateness.count, lateness.sum) == (2, 0.5)
            to.delay("y", by_ms=SECOND_MS)
            await to.pass_by(SECOND_MS)
            assert (lateness.count, lateness.sum) == (3, 0.5)

    run_timed(go())


# --- how deliveries ended


def test_every_end_of_a_delivery_is_counted_and_every_death_by_its_reason(tmp_path: Path) -> None:
    async def go() -> None:
        async with counted(tmp_path) as to:
            await to.create(max_retries=1, visibility_ms=10 * SECOND_MS, backoff=Backoff(base_ms=0))
            member = (await to.join(session_ms=LONG_MS)).member_id
            to.put(*numbered(10))
            handles = handles_of(await to.poll(member))
            await to.ack(*handles[:3])
            await to.nack(*handles[3:5])
            await to.reject(handles[5])
            assert counts((await to.ended()).counted) == {
                "consumed": 10, "acked": 3, "nacked": 2, "rejected": 1, "dead": {"rejected": 1},
            }  # fmt: skip
            await to.ack(*handles[:6])
            assert (await to.ended()).counted.acked == 3, "refused handles do not count"
            assert (await to.ended()).in_flight == 4
            await to.pass_by(10 * SECOND_MS + 10)
            assert counts((await to.ended()).counted)["lapsed"] == 4
            again = handles_of(await to.poll(member))
            assert len(again) == 6
            await to.nack(*again[:1])
            await to.pass_by(10 * SECOND_MS + 10)
            assert counts((await to.ended()).counted) == {
                "consumed": 16, "redelivered": 6, "acked": 3, "nacked": 3, "rejected": 1, "lapsed": 9,
                "dead": {"rejected": 1, "nacked": 1, "lapsed": 5},
            }  # fmt: skip
            row = await to.ended()
            assert (row.in_flight, row.waiting) == (0, 0)
            await to.buried()
            assert to.broker.meters.total("dead_letters") == len(await to.letters()) == 7
            assert to.broker.topics.named(TOPIC).meters.dead_letters == 7
            assert (await to.statistics.reliability()).outbox == 0

    run_timed(go())


@pytest.mark.parametrize("on_expiry", list(OnExpiry))
def test_what_expires_is_dead_whether_it_becomes_a_letter_or_not(tmp_path: Path, on_expiry: OnExpiry) -> None:
    async def go() -> None:
        async with counted(tmp_path) as to:
            await to.create(message_ttl_ms=SECOND_MS, on_expiry=on_expiry)
            member = (await to.join(session_ms=LONG_MS)).member_id
            to.put(*numbered(3))
            await to.pass_by(2 * SECOND_MS)
            assert await to.ready() == [0, 0, 3, 0, 0], "nobody has looked at them"
            to.put("new")
            assert await to.texts(member) == ["new"]
            assert await to.ready() == [0] * 5
            assert counts((await to.ended()).counted) == {"consumed": 1, "expired": 3, "dead": {"expired": 3}}
            await to.buried()
            assert to.broker.meters.total("dead_letters") == (3 if on_expiry is OnExpiry.DLQ else 0)

    run_timed(go())


def test_dead_letters_that_cannot_be_written_are_in_the_outbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        async with counted(tmp_path) as to:
            await to.create()
            member = (await to.join()).member_id
            to.put("a", "b")
            handles = handles_of(await to.poll(member))
            monkeypatch.setattr(to.broker._undertaker, "notice", lambda _: None)
            await to.reject(*handles)
            found = await to.statistics.reliability()
            assert found.outbox == 2
            assert to.broker.meters.total("dead_letters") == 0
            assert [(row.in_flight, row.waiting) for row in found.rows if row.group == GROUP] == [(0, 0)]

    run_timed(go())


def test_totals_keep_what_groups_and_topics_counted_that_are_gone(tmp_path: Path) -> None:
    async def go() -> None:
        async with counted(tmp_path) as to:
            await to.create()
            await to.create("users")
            for group, topic in (("a", "orders"), ("b", "users")):
                member = (await to.join("worker", topic, group=group)).member_id
                to.put("x", topic=topic)
                await to.ack(*handles_of(await to.poll(member, group=group)))
                await to.leave(member, group=group)
            await to.broker.groups.delete("a")
            await to.delete("users")
            assert to.broker.group_meters.total().acked == 2
            assert {(row.group, row.topic) for row in (await to.statistics.reliability()).rows} == set()

    run_timed(go())


def test_what_is_in_flight_is_told_where_it_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meters, "MAX_SERIES_GROUPS", 1)
    monkeypatch.setattr(meters, "MAX_SERIES_NAMES", 1)

    async def go() -> None:
        async with counted(tmp_path) as to:
            for topic in ("orders", "users"):
                await to.create(topic)
                to.put("x", "y", topic=topic)
            for group in ("a", "b", "c"):
                member = (await to.join("worker", "orders", "users", group=group)).member_id
                await to.poll(member, group=group, max_messages=100)
            rows = (await to.statistics.reliability()).rows
            assert {(row.group, row.topic): (row.counted.consumed, row.in_flight) for row in rows} == {
                ("a", "orders"): (2, 2),
                ("a", "_other"): (2, 2),
                ("_other", "orders"): (4, 4),
                ("_other", "_other"): (4, 4),
            }

    run_timed(go())


def test_a_reset_gives_up_what_is_in_flight_and_keeps_what_was_counted(tmp_path: Path) -> None:
    async def go() -> None:
        async with counted(tmp_path) as to:
            await to.create()
            member = (await to.join()).member_id
            to.put(*numbered(4))
            await to.poll(member)
            assert (await to.ended()).in_flight == 4
            await to.reset(Place.EARLIEST)
            row = await to.ended()
            assert (row.in_flight, row.counted.consumed) == (0, 4)
            assert await to.ready() == [0, 0, 4, 0, 0]
            assert (await to.lanes()).lanes[Lane.NORMAL].served == 4

    run_timed(go())
