"""A delay much longer than the retention: the message is kept for as long as it takes, what lies around it is not."""

from pathlib import Path

from goqueue.model.limits import KIB
from tests.support.moved_time import run_timed
from tests.unit.broker.brokers import T0, Clock
from tests.unit.broker.consumers import TOPIC, Consumers, consuming

HOUR_MS = 3600 * 1000
DAY_MS = 24 * HOUR_MS
DELAY_DAYS = 400
RESTARTED_AFTER = (1, 150, 399)
SEGMENT_BYTES = 16 * KIB
DISK_BYTES = 10 * SEGMENT_BYTES
"""The day's messages, what is delayed, indexes and views; all that was ever published is much more."""
MESSAGES = 200
"""A day."""


async def _live(consumers: Consumers, days: int) -> None:
    """Days with some messages each, at whose end everything older than an hour is gone."""
    for _ in range(days):
        consumers.put(*(f"day to day {number:50d}" for number in range(MESSAGES)))
        await consumers.pass_by(DAY_MS)
        log = consumers.partition().log
        log.tick(consumers.clock())
        log.sync()
        await consumers.broker._housekeeping.clean()


def _bytes_of(path: Path) -> int:
    return sum(each.stat().st_size for each in (path / "logs").rglob("*") if each.is_file())


def test_a_delay_of_four_hundred_days_outlives_a_retention_of_one_hour_and_the_disk_stays_small(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        clock, lived, sizes = Clock(), 0, []
        due = T0 + DELAY_DAYS * DAY_MS
        for until in (*RESTARTED_AFTER, DELAY_DAYS - 1):
            async with consuming(tmp_path, clock=clock) as consumers:
                if not lived:
                    await consumers.create(retention_hours=1, segment_bytes=SEGMENT_BYTES)
                    consumers.delay("late", "moved", "cancelled", by_ms=DELAY_DAYS * DAY_MS)
                    topic = consumers.broker.topics.named(TOPIC)
                    await consumers.broker.delayed.cancel(topic, 0, 2)
                    await consumers.broker.delayed.move(topic, 0, 1, due + 1000)
                for _ in range(lived, until):
                    await _live(consumers, 1)
                    sizes.append(_bytes_of(tmp_path))
                lived = until
        assert max(sizes[2:]) < DISK_BYTES, max(sizes)
        async with consuming(tmp_path, clock=clock) as consumers:
            assert consumers.partition().log.start_offset == 0, "the oldest of all is still there"
            worker = (await consumers.join()).member_id
            assert await consumers.texts(worker) == []
            await consumers.pass_by(due - 1 - clock())
            worker = (await consumers.join()).member_id
            assert await consumers.texts(worker) == []
            await consumers.pass_by(1)
            assert await consumers.texts(worker) == ["late"]
            await consumers.pass_by(999)
            assert await consumers.texts(worker) == []
            await consumers.pass_by(1)
            assert await consumers.texts(worker) == ["moved"]

    run_timed(scenario())


def test_once_it_was_delivered_a_long_delay_is_retained_like_anything_else(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock()
        async with consuming(tmp_path, clock=clock) as consumers:
            await consumers.create(retention_hours=1, segment_bytes=SEGMENT_BYTES)
            consumers.delay("late", by_ms=DELAY_DAYS * DAY_MS)
            await _live(consumers, 2)
            await consumers.pass_by((DELAY_DAYS - 2) * DAY_MS)
            worker = (await consumers.join()).member_id
            assert await consumers.texts(worker) == ["late"]
            await consumers.commit(worker, 1)
            await _live(consumers, 2)
            assert consumers.partition().log.start_offset > 0

    run_timed(scenario())
