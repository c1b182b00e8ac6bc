"""Simple reads: from memory or aside, waiting for what comes, and topics that go away meanwhile."""

import asyncio
from pathlib import Path

import pytest

from goqueue.broker.partition import Partition
from goqueue.broker.read import PartitionReader
from goqueue.broker.waiting import GONE
from goqueue.io.disk import LocalFile
from goqueue.model.errors import OffsetOutOfRange, Unavailable
from goqueue.model.topic import TopicSettings
from tests.support.loop import run, turns
from tests.unit.broker.brokers import T0, Parts, messages, parts

SMALL = TopicSettings(segment_bytes=4096)
LONG_S = 3600.0


async def three_segments(rig: Parts) -> Partition:
    """Offsets 0, 1 and 2, a second apart, each in a segment of its own."""
    partition = (await rig.create("orders", 1, SMALL)).partition(0)
    for number, text in enumerate("abc"):
        partition.log.roll()
        partition.log.append(messages(text), now=T0 + number * 1000)
    partition.log.sync()
    return partition


def test_the_active_segment_is_read_at_once_and_others_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        monkeypatch.setattr(LocalFile, "is_cached", lambda _, __: False)
        async with parts(tmp_path) as rig:
            partition = await three_segments(rig)
            reader = PartitionReader(rig.aside)
            warm = reader.read_now(partition, 2, max_bytes=1000, max_count=10)
            assert warm is not None
            assert (warm.count, warm.next_offset) == (1, 3)
            assert reader.read_now(partition, 0, max_bytes=1000, max_count=10) is None
            for offset in range(3):
                chunk = await reader.read(partition, offset, max_bytes=1000, max_count=10)
                assert chunk.next_offset == offset + 1

    run(go())


def test_bounds_hold_for_both_ways_of_reading(tmp_path: Path) -> None:
    async def go() -> None:
        async with parts(tmp_path) as rig:
            partition = (await rig.create("orders", 1, SMALL)).partition(0)
            reader = PartitionReader(rig.aside)
            for _ in range(2):
                partition.log.append(messages("a", "b", "c"), now=T0)
                start = partition.log.end_offset - 3
                assert (await reader.read(partition, start, max_bytes=10**6, max_count=2)).count == 2
                assert (await reader.read(partition, start, max_bytes=1, max_count=10)).count == 1
                bounded = await reader.read(partition, start, max_bytes=10**6, max_count=9, to_offset=start + 1)
                assert bounded.count == 1
                partition.log.roll()

    run(go())


def test_an_offset_outside_says_what_there_is(tmp_path: Path) -> None:
    async def go() -> None:
        async with parts(tmp_path) as rig:
            partition = await three_segments(rig)
            with pytest.raises(OffsetOutOfRange) as caught:
                await PartitionReader(rig.aside).read(partition, 4, max_bytes=1, max_count=1)
            assert caught.value.details == {"offset": 4, "earliest": 0, "latest": 3}
            at_end = await PartitionReader(rig.aside).read(partition, 3, max_bytes=1, max_count=1)
            assert (at_end.count, at_end.next_offset) == (0, 3)

    run(go())


def test_a_time_has_the_first_offset_at_or_after_it(tmp_path: Path) -> None:
    async def go() -> None:
        async with parts(tmp_path) as rig:
            partition = await three_segments(rig)
            reader = PartitionReader(rig.aside)
            times = (0, T0, T0 + 1, T0 + 1000, T0 + 2000, T0 + 2001)
            assert [await reader.offset_at(partition, time) for time in times] == [0, 0, 1, 1, 2, 3]

    run(go())


def test_a_wait_ends_when_there_is_a_record(tmp_path: Path) -> None:
    async def go() -> None:
        async with parts(tmp_path) as rig:
            partition = (await rig.create("orders")).partition(0)
            reader = PartitionReader(rig.aside)
            waiting = asyncio.ensure_future(reader.wait(partition, 1, LONG_S))
            partition.log.append(messages("a"), now=T0)
            await turns()
            assert not waiting.done(), "offset 0 is there, 1 is not"
            partition.log.append(messages("b"), now=T0)
            await waiting
            await reader.wait(partition, 0, LONG_S)

    run(go())


def test_a_wait_ends_when_its_time_is_up(tmp_path: Path) -> None:
    async def go() -> None:
        async with parts(tmp_path) as rig:
            partition = (await rig.create("orders")).partition(0)
            await PartitionReader(rig.aside).wait(partition, 0, 0.0)
            assert partition.log.written.waiting == 0

    run(go())


def test_who_reads_or_waits_is_told_when_the_topic_goes_away(tmp_path: Path) -> None:
    async def go() -> None:
        async with parts(tmp_path) as rig:
            partition = await three_segments(rig)
            reader = PartitionReader(rig.aside)
            waiting = asyncio.ensure_future(reader.wait(partition, 9, LONG_S))
            await turns()
            await rig.catalogue.delete("orders", T0)
            with pytest.raises(Unavailable, match=GONE):
                await waiting
            await rig.catalogue.finish()
            for offset in (0, 2):
                with pytest.raises(Unavailable, match=GONE):
                    await reader.read(partition, offset, max_bytes=1, max_count=1)
            with pytest.raises(Unavailable, match=GONE):
                await reader.wait(partition, 9, LONG_S)
            with pytest.raises(Unavailable, match=GONE):
                await reader.offset_at(partition, T0 + 1)

    run(go())
