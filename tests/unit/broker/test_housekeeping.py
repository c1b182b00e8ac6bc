"""What nobody asks for: rolling, cleaning, forgetting producers, snapshots; by a clock that the test moves."""

import asyncio
import errno
import gc
from pathlib import Path

import pytest

from goqueue.broker.partition import Partition
from goqueue.model import limits
from goqueue.model.errors import DiskFull, StorageFailed
from goqueue.model.record import Producer, Record
from goqueue.model.topic import CleanupPolicy, TopicSettings
from tests.support.faulty_disk import FaultyDisk
from tests.support.loop import run, turns
from tests.support.moved_time import run_timed
from tests.unit.broker.brokers import T0, block, messages, opened, parts, topic_directory, values
from tests.unit.broker.consumers import consuming

HOUR_MS = 3600 * 1000
ONE_HOUR = TopicSettings(retention_hours=1, segment_bytes=4096)
COMPACTED = TopicSettings(cleanup_policy=CleanupPolicy.COMPACT, segment_bytes=4096)


def put(partition: Partition, text: str, *, now: int = T0, key: bytes | None = None) -> None:
    partition.log.append(block(Record(key=key, value=text.encode())), now=now)


def seal(partition: Partition) -> None:
    partition.log.roll()
    partition.log.sync()


# --- bytes in flight


def test_what_nobody_gave_back_is_free_again_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def go() -> None:
        async with opened(tmp_path) as broker:
            kept, lost = broker.replies.take_anyway(5), broker.replies.take_anyway(7)
            del lost
            gc.collect()
            assert broker.replies.held == 12
            broker._housekeeping.reclaim()
            assert (broker.replies.held, broker.replies.lost, kept.size) == (5, 7, 5)
            (said,) = [record for record in caplog.records if "not given back" in record.getMessage()]
            assert said.levelname == "ERROR"
            caplog.clear()
            broker._housekeeping.reclaim()
            assert caplog.records == []
            kept.give()

    run(go())


# --- ticks


def test_a_tick_rolls_a_segment_that_is_old_enough_to_be_cleaned(tmp_path: Path) -> None:
    async def go() -> None:
        async with parts(tmp_path) as rig:
            partition = (await rig.create("orders", 1, ONE_HOUR)).partition(0)
            put(partition, "a")
            rig.clock.now = T0 + HOUR_MS - 1
            await rig.housekeeping.tick()
            assert len(partition.log.segments) == 1
            rig.clock.now = T0 + HOUR_MS
            await rig.housekeeping.tick()
            assert len(partition.log.segments) == 2

    run(go())


def test_a_tick_opens_what_could_not_be_opened(tmp_path: Path) -> None:
    async def go() -> None:
        disk = FaultyDisk()
        async with parts(tmp_path, disk=disk) as rig:
            topic = await rig.create("orders", 1)
            disk.new_file_error, disk.only = errno.ENOSPC, "/1/synced"
            await rig.catalogue.add_partitions("orders", 2, T0)
            await rig.housekeeping.tick()
            assert len(topic.slots) == 1
            disk.new_file_error = None
            await rig.housekeeping.tick()
            assert len(topic.slots) == 2

    run(go())


def test_a_partition_in_trouble_keeps_no_other_from_its_tick(tmp_path: Path) -> None:
    async def go() -> None:
        disk = FaultyDisk()
        async with parts(tmp_path, disk=disk) as rig:
            topic = await rig.create("orders", 3, ONE_HOUR)
            for partition in topic.partitions:
                put(partition, "a")
            disk.new_file_error = errno.ENOSPC
            disk.only = f"{topic_directory(tmp_path, topic)}/0/{1:020d}.log"
            rig.clock.now = T0 + HOUR_MS
            await rig.housekeeping.tick()
            assert [len(partition.log.segments) for partition in topic.partitions] == [1, 2, 2]
            disk.new_file_error = None
            await rig.housekeeping.tick()
            assert [len(partition.log.segments) for partition in topic.partitions] == [2, 2, 2]
            assert rig.failures == []

    run(go())


def test_a_disk_that_fails_under_a_tick_is_reported(tmp_path: Path) -> None:
    async def go() -> None:
        disk = FaultyDisk()
        async with parts(tmp_path, disk=disk) as rig:
            topic = await rig.create("orders", 2, ONE_HOUR)
            for partition in topic.partitions:
                put(partition, "a")
            disk.new_file_error = errno.EIO
            disk.only = f"/0/{1:020d}.log"
            rig.clock.now = T0 + HOUR_MS
            await rig.housekeeping.tick()
            disk.new_file_error = None
            assert [type(failure) for failure in rig.failures] == [StorageFailed]
            assert len(topic.partition(1).log.segments) == 2

    run(go())


def test_others_get_their_turns_between_slices_of_partitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        async with parts(tmp_path) as rig:
            await rig.create("orders", 6)
            for size, least in ((1, 6), (3, 2), (256, 0)):
                monkeypatch.setattr(limits, "HOUSEKEEPING_SLICE", size)
                tick = asyncio.ensure_future(rig.housekeeping.tick())
                taken = -1
                while not tick.done():
                    await asyncio.sleep(0)
                    taken += 1
                assert taken >= least, f"slices of {size}"

    run(go())


# --- snapshots


def test_the_metadata_log_is_shortened_when_it_has_grown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        monkeypatch.setattr(limits, "RECORDS_PER_SNAPSHOT", 10)
        async with parts(tmp_path) as rig:
            await rig.create("orders")
            starts = []
            for number in range(40):
                await rig.catalogue.change("orders", {"max_message_bytes": 1000 + number}, T0)
                await rig.housekeeping.tick()
                starts.append(rig.meta.start_offset)
            assert starts == sorted(starts)
            assert len(set(starts)) >= 3
            assert rig.meta.end_offset - rig.meta.start_offset < 40
            expected = rig.catalogue.named("orders").meta
        async with parts(tmp_path) as rig:
            assert rig.catalogue.named("orders").meta == expected
            assert expected.settings.max_message_bytes == 1039

    run(go())


def test_nothing_is_forgotten_before_the_snapshot_is_durable(tmp_path: Path) -> None:
    async def go() -> None:
        async with parts(tmp_path, by_hand=True) as rig:
            rig.host.snapshot(T0)
            rig.meta.sync()
            taking = asyncio.ensure_future(rig.housekeeping.snapshot(rig.host))
            await turns()
            assert not taking.done()
            rig.host.snapshot(T0)  # another one in between changes nothing about that
            assert rig.meta.start_offset == 0
            rig.meta.sync()
            await taking
            assert rig.meta.start_offset > 0

    run(go())


def test_a_full_disk_refuses_a_snapshot_and_the_next_tick_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go() -> None:
        monkeypatch.setattr(limits, "RECORDS_PER_SNAPSHOT", 2)
        disk = FaultyDisk()
        async with parts(tmp_path, disk=disk) as rig:
            await rig.create("orders")
            await rig.catalogue.change("orders", {"max_message_bytes": 5}, T0)
            disk.free = 0
            with pytest.raises(DiskFull):
                await rig.housekeeping.tick()
            assert rig.host.wants_snapshot
            disk.free = None
            await rig.housekeeping.tick()
            assert not rig.host.wants_snapshot

    run(go())


def test_sidecars_and_the_groups_log_are_kept_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever members do, the logs that say so do not grow for ever, and a restart finds the same."""

    async def go() -> None:
        monkeypatch.setattr(limits, "RECORDS_PER_SNAPSHOT", 20)
        async with consuming(tmp_path) as to:
            await to.create()
            steady = (await to.join("steady", group="audit")).member_id
            for number in range(60):
                to.put(f"m{number}")
                await to.poll(steady, group="audit")
                await to.commit(steady, number, group="audit")
                await to.leave((await to.join()).member_id)
                if number % 10 == 9:
                    await to.broker._housekeeping.tick()
            sidecar = to.partition().sidecar
            assert sidecar is not None
            for log in (sidecar.log, to.broker.groups.host.log):
                assert log.start_offset > 0
                assert log.end_offset - log.start_offset < 100
            before = await to.offsets("audit")
        async with consuming(tmp_path) as to:
            assert await to.offsets("audit") == before == {"orders": {0: 59}}
            assert await to.texts(steady, group="audit") == []
            await to.commit(steady, 60, group="audit")

    run_timed(go())


# --- cleaning


def test_cleaning_removes_what_is_past_its_retention(tmp_path: Path) -> None:
    async def go() -> None:
        async with parts(tmp_path) as rig:
            topic = await rig.create("orders", 2, ONE_HOUR)
            for partition in topic.partitions:
                put(partition, "old")
                seal(partition)
                put(partition, "new", now=T0 + HOUR_MS)
            rig.clock.now = T0 + HOUR_MS
            await rig.housekeeping.clean()
            assert values(topic.partition(0)) == ["old", "new"], "not older than an hour"
            rig.clock.now += 1
            await rig.housekeeping.clean()
            assert [values(partition) for partition in topic.partitions] == [["new"], ["new"]]

    run(go())


def test_ticks_and_cleanings_together_empty_an_idle_topic(tmp_path: Path) -> None:
    async def go() -> None:
        async with parts(tmp_path) as rig:
            partition = (await rig.create("orders", 1, ONE_HOUR)).partition(0)
            put(partition, "a")
            rig.clock.now = T0 + HOUR_MS + 1
            await rig.housekeeping.tick()
            partition.log.sync()
            await rig.housekeeping.clean()
            assert values(partition) == []
            assert (partition.log.start_offset, partition.log.end_offset) == (1, 1)

    run(go())


def test_cleaning_compacts_where_the_topic_asks_for_it(tmp_path: Path) -> None:
    async def go() -> None:
        async with parts(tmp_path) as rig:
            partition = (await rig.create("orders", 1, COMPACTED)).partition(0)
            for text in ("first", "second"):
                put(partition, text, key=b"k")
                seal(partition)
            await rig.housekeeping.clean()
            assert values(partition) == ["second"]

    run(go())


def test_changed_settings_are_what_the_next_cleaning_goes_by(tmp_path: Path) -> None:
    async def go() -> None:
        async with parts(tmp_path) as rig:
            partition = (await rig.create("orders")).partition(0)
            put(partition, "a")
            seal(partition)
            rig.clock.now = T0 + 2 * HOUR_MS
            await rig.housekeeping.clean()
            assert values(partition) == ["a"]
            await rig.catalogue.change("orders", {"retention_hours": 1}, T0)
            await rig.housekeeping.clean()
            assert values(partition) == []

    run(go())


def test_a_partition_that_cannot_be_cleaned_keeps_no_other_from_it(tmp_path: Path) -> None:
    async def go() -> None:
        disk = FaultyDisk()
        async with parts(tmp_path, disk=disk) as rig:
            first = await rig.create("a.compacted", 1, COMPACTED)
            for text in ("first", "second"):
                put(first.partition(0), text, key=b"k")
                seal(first.partition(0))
            second = await rig.create("b.kept.an.hour", 1, ONE_HOUR)
            put(second.partition(0), "old")
            seal(second.partition(0))
            rig.clock.now = T0 + 2 * HOUR_MS
            disk.new_file_error, disk.only = errno.ENOSPC, ".clean"
            await rig.housekeeping.clean()
            assert disk.hits
            assert values(first.partition(0)) == ["first", "second"]
            assert values(second.partition(0)) == []
            disk.new_file_error = None
            await rig.housekeeping.clean()
            assert values(first.partition(0)) == ["second"]
            assert rig.failures == []

    run(go())


def test_a_damaged_segment_is_left_and_the_rest_is_cleaned(tmp_path: Path) -> None:
    async def go() -> None:
        async with parts(tmp_path) as rig:
            topic = await rig.create("orders", 2, COMPACTED)
            for partition in topic.partitions:
                for text in ("first", "second", "third"):
                    put(partition, text, key=b"k")
                    seal(partition)
            segment = topic_directory(tmp_path, topic) / "0" / f"{0:020d}.log"
            data = bytearray(segment.read_bytes())
            data[-1] ^= 1
            segment.write_bytes(data)
            await rig.housekeeping.clean()
            assert values(topic.partition(1)) == ["third"]
            assert segment.read_bytes() == data

    run(go())


def test_a_disk_that_fails_under_the_cleaner_is_reported(tmp_path: Path) -> None:
    async def go() -> None:
        disk = FaultyDisk()
        async with parts(tmp_path, disk=disk) as rig:
            partition = (await rig.create("orders", 1, ONE_HOUR)).partition(0)
            put(partition, "old")
            seal(partition)
            put(partition, "new", now=T0 + HOUR_MS)
            partition.log.sync()
            rig.clock.now = T0 + HOUR_MS + 1
            disk.sync_error_at = 1
            await rig.housekeeping.clean()
            assert {type(failure) for failure in rig.failures} == {StorageFailed}

    run(go())


def test_a_topic_deleted_under_the_cleaner_is_nobodys_trouble(tmp_path: Path) -> None:
    async def go() -> None:
        async with parts(tmp_path) as rig:
            topic = await rig.create("orders", 3, ONE_HOUR)
            for partition in topic.partitions:
                put(partition, "old")
                seal(partition)
            rig.clock.now = T0 + 2 * HOUR_MS
            cleaning = asyncio.ensure_future(rig.housekeeping.clean())
            await asyncio.sleep(0)
            await rig.catalogue.delete("orders", T0)
            await cleaning
            await rig.housekeeping.tick()
            assert rig.failures == []

    run(go())


def test_a_producer_is_forgotten_after_a_day_without_messages(tmp_path: Path) -> None:
    async def go() -> None:
        async with parts(tmp_path) as rig:
            partition = (await rig.create("orders")).partition(0)
            for number, later in ((1, 0), (2, 1000)):
                producer = Producer(number, 0, 0)
                partition.append(messages("a", producer=producer), count=1, now=T0 + later, producer=producer)
            rig.clock.now = T0 + limits.PRODUCER_EXPIRY_MS
            await rig.housekeeping.clean()
            assert len(partition.producers) == 2
            rig.clock.now += 1
            await rig.housekeeping.clean()
            assert len(partition.producers) == 1
            rig.clock.now += 1000
            await rig.housekeeping.clean()
            assert len(partition.producers) == 0

    run(go())


# --- rounds


def test_rounds_come_again_and_again_until_it_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        monkeypatch.setattr(limits, "TICK_INTERVAL_S", 0.0)
        monkeypatch.setattr(limits, "CLEAN_INTERVAL_S", 0.0)
        async with parts(tmp_path) as rig:
            rounds: list[str] = []

            async def tick() -> None:
                rounds.append("tick")

            async def clean() -> None:
                rounds.append("clean")

            monkeypatch.setattr(rig.housekeeping, "tick", tick)
            monkeypatch.setattr(rig.housekeeping, "clean", clean)
            rig.housekeeping.start()
            while rounds.count("tick") < 3 or rounds.count("clean") < 3:
                await asyncio.sleep(0)
            await rig.housekeeping.stop()
            count = len(rounds)
            await turns()
            assert len(rounds) == count

    run(go())


@pytest.mark.parametrize(
    "trouble", [DiskFull("no space"), OSError(errno.EIO, "bad"), RuntimeError("a bug"), StorageFailed("gone")]
)
def test_a_round_that_fails_is_not_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: Exception
) -> None:
    async def go() -> None:
        monkeypatch.setattr(limits, "TICK_INTERVAL_S", 0.0)
        async with parts(tmp_path) as rig:
            rounds: list[int] = []

            async def tick() -> None:
                rounds.append(1)
                raise trouble

            monkeypatch.setattr(rig.housekeeping, "tick", tick)
            rig.housekeeping.start()
            while len(rounds) < 3:
                await asyncio.sleep(0)
            await rig.housekeeping.stop()
            assert bool(rig.failures) == isinstance(trouble, StorageFailed)

    run(go())


def test_stopping_what_never_started_is_nothing(tmp_path: Path) -> None:
    async def go() -> None:
        async with parts(tmp_path) as rig:
            await rig.housekeeping.stop()

    run(go())
