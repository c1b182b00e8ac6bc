"""Named readers in a broker: checked against its topics, durable before they are told, gone with their topics."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from goqueue.broker.broker import Broker
from goqueue.metadata.readers import Put
from goqueue.model.errors import (
    DiskFull,
    InvalidRequest,
    OffsetOutOfRange,
    UnknownPartition,
    UnknownReader,
    UnknownTopic,
)
from goqueue.model.topic import TopicSettings
from goqueue.storage.cleaner import clean
from goqueue.storage.store import METADATA_LOG
from tests.support.broker_server import copy_as_killed
from tests.support.faulty_disk import FaultyDisk
from tests.support.held_syncs import syncs_held
from tests.support.loop import run, turns
from tests.support.memory_disk import MemoryDisk
from tests.unit.broker.brokers import T0, Clock, messages, opened

Offsets = dict[str, dict[int, int]]


async def create(broker: Broker, name: str = "orders", *, partitions: int = 2, count: int = 3) -> None:
    """With so many messages in partition 0."""
    topic = await broker.topics.create(name, partitions, TopicSettings(), broker.clock())
    if count:
        topic.partition(0).log.append(bytearray(messages(*map(str, range(count)))), now=broker.clock())


async def put(broker: Broker, offsets: Offsets, name: str = "nightly", *, if_absent: bool = False) -> Put:
    return await broker.readers.put(name, offsets, if_absent=if_absent)


async def kept(broker: Broker, name: str = "nightly") -> Offsets:
    return broker.readers.by_topic(await broker.readers.get(name))


def test_what_was_put_is_there_after_a_restart_and_after_a_kill(tmp_path: Path) -> None:
    async def go() -> None:
        async with opened(tmp_path / "data") as broker:
            await create(broker)
            assert (await put(broker, {"orders": {0: 3, 1: 0}}, if_absent=True)).created
            await put(broker, {"orders": {0: 1}}, "gone")
            await broker.readers.delete("gone")
            copy_as_killed(broker, tmp_path / "killed")
        for path in ("data", "killed"):
            async with opened(tmp_path / path) as broker:
                assert await kept(broker) == {"orders": {0: 3, 1: 0}}
                assert [reader.name for reader in await broker.readers.list()] == ["nightly"]
                again = await put(broker, {"orders": {0: 0}}, if_absent=True)
                assert (again.created, again.reader.created_ms) == (False, T0)
                assert await kept(broker) == {"orders": {0: 3, 1: 0}}

    run(go())


def test_a_put_is_answered_and_a_reader_shown_once_it_is_durable(tmp_path: Path) -> None:
    async def go() -> None:
        disk = FaultyDisk(MemoryDisk())
        async with opened(tmp_path, disk=disk) as broker:
            await create(broker)
            with syncs_held(disk, METADATA_LOG) as held:
                first = asyncio.ensure_future(put(broker, {"orders": {0: 2}}, if_absent=True))
                await held.reached()
                second = asyncio.ensure_future(put(broker, {"orders": {0: 3}}, if_absent=True))
                looks = [asyncio.ensure_future(look) for look in (kept(broker), broker.readers.list())]
                await turns()
                assert not any(task.done() for task in (first, second, *looks))
                held.release()
                assert (await first).created
                assert not (await second).created
                assert (await second).reader == (await first).reader, "one is first, and both hear the same"
                assert await looks[0] == {"orders": {0: 2}}

    run(go())


@pytest.mark.parametrize(
    ("offsets", "refusal", "why"),
    [
        ({"nope": {0: 0}}, UnknownTopic, "there is no topic 'nope'"),
        ({"orders": {0: 1}, "nope": {0: 0}}, UnknownTopic, "there is no topic 'nope'"),
        ({"orders": {0: 1, 2: 0}}, UnknownPartition, "orders has no partition 2; it has 2"),
        ({"orders": {0: 4}}, OffsetOutOfRange, "offset 4 is outside orders-0, which holds 0 up to 3"),
        ({"orders": {0: 1, 1: 1}}, OffsetOutOfRange, "offset 1 is outside orders-1"),
        ({}, InvalidRequest, "a reader is put with offsets"),
    ],
)
@pytest.mark.parametrize("if_absent", [False, True])
def test_a_put_that_cannot_be_right_changes_nothing(
    tmp_path: Path, offsets: Offsets, refusal: Any, why: str, if_absent: bool
) -> None:
    async def go() -> None:
        async with opened(tmp_path) as broker:
            await create(broker)
            for name in ("nightly", "new"):
                if name == "nightly":
                    await put(broker, {"orders": {0: 2}})
                with pytest.raises(refusal, match=why):
                    await put(broker, offsets, name, if_absent=if_absent)
            assert await kept(broker) == {"orders": {0: 2}}
            with pytest.raises(UnknownReader):
                await kept(broker, "new")

    run(go())


def test_an_offset_before_the_earliest_is_the_readers_to_judge(tmp_path: Path) -> None:
    async def go() -> None:
        clock = Clock()
        async with opened(tmp_path, clock=clock) as broker:
            settings = TopicSettings(retention_hours=1)
            log = (await broker.topics.create("orders", 1, settings, clock())).partition(0).log
            log.append(bytearray(messages("old")), now=clock())
            await put(broker, {"orders": {0: 0}})
            log.roll()
            log.append(bytearray(messages("new")), now=clock())
            log.sync()
            clock.now += 2 * 3600 * 1000
            clean(log, clock())
            assert log.start_offset == 1
            assert await kept(broker) == {"orders": {0: 0}}
            await put(broker, {"orders": {0: 0}}, "late")
            assert await kept(broker, "late") == {"orders": {0: 0}}

    run(go())


def test_offsets_go_with_their_topic_and_a_new_one_of_its_name_has_none(tmp_path: Path) -> None:
    async def go() -> None:
        async with opened(tmp_path) as broker:
            for name in ("orders", "events"):
                await create(broker, name)
            await put(broker, {"orders": {0: 3}, "events": {0: 1}})
            await put(broker, {"orders": {0: 2}}, "only")
            await broker.topics.delete("orders", broker.clock())
            assert (await kept(broker), await kept(broker, "only")) == ({"events": {0: 1}}, {})
            assert len(broker.readers._machine.topic_ids) == 1, "nothing is kept of a topic that is gone"
            await create(broker, "orders")
            assert (await kept(broker), await kept(broker, "only")) == ({"events": {0: 1}}, {})
            found = await put(broker, {"orders": {0: 1}, "events": {0: 0}}, if_absent=True)
            assert broker.readers.by_topic(found.reader) == {"events": {0: 1}, "orders": {0: 1}}

    run(go())


def test_what_a_full_disk_kept_of_a_deleted_topic_is_told_to_nobody_and_dropped_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go() -> None:
        disk = FaultyDisk(MemoryDisk())
        async with opened(tmp_path, disk=disk) as broker:
            await create(broker)
            await put(broker, {"orders": {0: 3}})
            machine, submit = broker.readers._machine, broker.topics.submit

            def refuse(to: Any, command: Any, now: int) -> Any:
                if to is machine:
                    raise DiskFull("no space")
                return submit(to, command, now)

            monkeypatch.setattr(broker.topics, "submit", refuse)
            await broker.topics.delete("orders", broker.clock())
            await create(broker)
            assert broker.readers.by_topic(machine.reader("nightly")) == {}
            assert len(machine.topic_ids) == 1
            copy = list(machine.snapshot())
            monkeypatch.setattr(broker.topics, "submit", submit)
            await broker._retry()
            assert machine.topic_ids == set()
            for record in copy:  # as after a kill between the two records
                machine.apply(record, 0)
            assert len(machine.topic_ids) == 1
            broker.readers.start()
            assert machine.topic_ids == set()

    run(go())


def test_a_full_disk_refuses_a_put_and_keeps_what_was_there(tmp_path: Path) -> None:
    async def go() -> None:
        disk = FaultyDisk(MemoryDisk())
        async with opened(tmp_path, disk=disk) as broker:
            await create(broker)
            await put(broker, {"orders": {0: 3}})
            disk.free = 0
            with pytest.raises(DiskFull):
                await put(broker, {"orders": {0: 1}})
            disk.free = None
            assert await kept(broker) == {"orders": {0: 3}}

    run(go())


def test_partitions_added_later_begin_where_they_are_first_put(tmp_path: Path) -> None:
    async def go() -> None:
        async with opened(tmp_path) as broker:
            await create(broker, partitions=1)
            await put(broker, {"orders": {0: 3}}, if_absent=True)
            await broker.topics.add_partitions("orders", 2, broker.clock())
            await put(broker, {"orders": {0: 0, 1: 0}}, if_absent=True)
            assert await kept(broker) == {"orders": {0: 3, 1: 0}}

    run(go())
