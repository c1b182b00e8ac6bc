"""The open topics follow the metadata: in order, only once it is durable, and again after anything went wrong."""

import asyncio
import errno
import threading
from pathlib import Path

import pytest

from goqueue.broker.partition import Partition
from goqueue.metadata.topics import NameCluster
from goqueue.model.errors import (
    DamagedState,
    DiskFull,
    InvalidRequest,
    StorageFailed,
    TopicExists,
    Unavailable,
    UnknownTopic,
)
from goqueue.model.names import TopicId
from goqueue.model.settings import Fsync
from goqueue.model.topic import TopicSettings
from goqueue.telemetry.meters import TopicMeters
from tests.support.faulty_disk import FaultyDisk
from tests.support.loop import run, turns
from tests.support.patience import PATIENCE_S
from tests.unit.broker.brokers import SETTINGS, T0, Parts, messages, open_names, parts, topic_directory, values
from tests.unit.broker.images import PhotographedDisk


def nothing(operation: str, path: str) -> None:
    """Before an operation of the disk."""


def files_under(path: Path) -> list[str]:
    """Of all topics."""
    return sorted(str(found.relative_to(path / "logs")) for found in (path / "logs").rglob("*"))


# --- looking


def test_a_topic_is_found_by_its_name_and_its_id(tmp_path: Path) -> None:
    async def go() -> None:
        async with parts(tmp_path) as rig:
            bills, orders = await rig.create("bills"), await rig.create("a.orders")
            assert rig.catalogue.named("bills") is rig.catalogue.identified(bills.meta.topic_id) is bills
            assert rig.catalogue.identified(orders.meta.topic_id) is orders
            assert await rig.catalogue.names() == open_names(rig.catalogue) == ["a.orders", "bills"]
            assert orders.meta.created_ms == T0

    run(go())


def test_a_topic_that_is_not_there_is_refused(tmp_path: Path) -> None:
    async def go() -> None:
        async with parts(tmp_path) as rig:
            with pytest.raises(UnknownTopic, match="there is no topic 'nope'; create it first"):
                rig.catalogue.named("nope")
            with pytest.raises(UnknownTopic) as caught:
                rig.catalogue.named("x" * 10**6)
            assert len(str(caught.value)) < 200
            with pytest.raises(
                UnknownTopic, match="00000000000000ff; it may have been deleted: look its name up again"
            ):
                rig.catalogue.identified(TopicId(255))

    run(go())


# --- only once it is durable


def test_the_names_are_told_once_they_are_sure(tmp_path: Path) -> None:
    async def go() -> None:
        async with parts(tmp_path, by_hand=True) as rig:
            creating = asyncio.ensure_future(rig.create("orders"))
            await turns()
            listing = asyncio.ensure_future(rig.catalogue.names())
            await turns()
            assert not listing.done()
            rig.meta.sync()
            assert await listing == ["orders"]
            await creating

    run(go())


def test_a_topic_is_there_once_its_record_is_durable(tmp_path: Path) -> None:
    async def go() -> None:
        async with parts(tmp_path, by_hand=True) as rig:
            creating = asyncio.ensure_future(rig.create("orders", 2))
            await turns()
            assert "orders" in rig.machine.by_name
            assert not creating.done()
            assert files_under(tmp_path) == [], "no file before its record is durable"
            with pytest.raises(Unavailable, match="topic 'orders' is being opened; try again"):
                rig.catalogue.named("orders")
            with pytest.raises(Unavailable, match="being opened; try again"):
                rig.catalogue.identified(rig.machine.by_name["orders"].topic_id)
            rig.meta.sync()
            topic = await creating
            assert len(topic.partitions) == 2
            assert rig.catalogue.named("orders") is topic

    run(go())


def test_a_deleted_topic_goes_once_its_record_is_durable(tmp_path: Path) -> None:
    async def go() -> None:
        async with parts(tmp_path, by_hand=True) as rig:
            creating = asyncio.ensure_future(rig.create("orders"))
            await turns()
            rig.meta.sync()
            topic = await creating
            before = files_under(tmp_path)
            deleting = asyncio.ensure_future(rig.catalogue.delete("orders", T0))
            await turns()
            assert not deleting.done()
            assert rig.catalogue.named("orders") is topic, "it may still be undone by a power cut"
            assert files_under(tmp_path) == before
            rig.meta.sync()
            await deleting
            with pytest.raises(UnknownTopic):
                rig.catalogue.named("orders")
            while rig.meta.end_offset < 3:  # the files go first, then the metadata is told
                await asyncio.sleep(0)
            assert files_under(tmp_path) == []
            rig.meta.sync()

    run(go())


def test_a_refusal_is_answered_once_it_is_sure(tmp_path: Path) -> None:
    async def go() -> None:
        async with parts(tmp_path, by_hand=True) as rig:
            first = asyncio.ensure_future(rig.create("orders"))
            second = asyncio.ensure_future(rig.create("orders"))
            await turns()
            assert not second.done(), "the topic it exists beside may be gone after a power cut"
            rig.meta.sync()
            with pytest.raises(TopicExists):
                await second
            await first

    run(go())


def test_a_look_is_answered_once_it_is_sure(tmp_path: Path) -> None:
    async def go() -> None:
        async with parts(tmp_path, by_hand=True) as rig:
            first = asyncio.ensure_future(rig.catalogue.name_cluster(T0))
            look = asyncio.ensure_future(rig.catalogue.run(rig.machine, NameCluster("other"), T0))
            await turns()
            assert not first.done()
            assert not look.done()
            rig.meta.sync()
            assert await first == await look
            assert len(await first) == 16

    run(go())


# --- changing


def test_changed_settings_hold_for_partitions_that_are_open_and_for_new_ones(tmp_path: Path) -> None:
    async def go() -> None:
        async with parts(tmp_path) as rig:
            topic = await rig.create("orders", 2)
            changed = await rig.catalogue.change("orders", {"fsync": Fsync.EVERY, "retention_hours": 1}, T0)
            assert changed is topic
            assert topic.meta.settings == TopicSettings(fsync=Fsync.EVERY, retention_hours=1)
            await rig.catalogue.add_partitions("orders", 3, T0)
            for partition in topic.partitions:
                assert partition.log.settings.fsync is Fsync.EVERY
                assert partition.log.settings.retention_ms == 3600 * 1000

    run(go())


def test_a_refused_change_changes_nothing(tmp_path: Path) -> None:
    async def go() -> None:
        async with parts(tmp_path) as rig:
            topic = await rig.create("orders")
            before = topic.partition(0).log.settings
            with pytest.raises(InvalidRequest):
                await rig.catalogue.change("orders", {"segment_bytes": 1}, T0)
            assert (topic.meta.settings, topic.partition(0).log.settings) == (SETTINGS, before)

    run(go())


def test_added_partitions_leave_the_others_as_they_are(tmp_path: Path) -> None:
    async def go() -> None:
        async with parts(tmp_path) as rig:
            topic = await rig.create("orders", 2)
            old = list(topic.slots)
            topic.partition(1).log.append(messages("a"), now=T0)
            assert await rig.catalogue.add_partitions("orders", 5, T0) == 2
            assert topic.slots[:2] == old
            assert [partition.number for partition in topic.partitions] == [0, 1, 2, 3, 4]
            assert values(topic.partition(1)) == ["a"]

    run(go())


def test_many_changes_at_once_end_in_what_the_metadata_says(tmp_path: Path) -> None:
    async def go() -> None:
        async with parts(tmp_path) as rig:
            await rig.create("orders")
            await asyncio.gather(
                *(rig.catalogue.change("orders", {"max_message_bytes": 1000 + number}, T0) for number in range(20)),
                *(rig.catalogue.add_partitions("orders", total, T0) for total in range(2, 6)),
                *(rig.create(f"topic-{number}") for number in range(10)),
            )
            assert len(open_names(rig.catalogue)) == 11
            for name, topic in rig.catalogue.by_name.items():
                assert topic.meta == rig.machine.by_name[name]
                assert len(topic.slots) == topic.meta.partitions
            assert len(rig.catalogue.named("orders").slots) == 5

    run(go())


def test_a_topic_created_and_deleted_in_one_breath_leaves_nothing(tmp_path: Path) -> None:
    async def go() -> None:
        async with parts(tmp_path, by_hand=True) as rig:
            creating = asyncio.ensure_future(rig.create("orders", 3))
            await turns()
            deleting = asyncio.ensure_future(rig.catalogue.delete("orders", T0))
            await turns()
            rig.meta.sync()
            with pytest.raises(UnknownTopic):
                await creating
            await deleting
            while rig.meta.end_offset < 3:
                await asyncio.sleep(0)
            rig.meta.sync()
            await rig.catalogue.finish()
            assert (rig.catalogue.by_id, rig.machine.deleted, files_under(tmp_path)) == ({}, {}, [])

    run(go())


# --- who asked has left


def test_a_creation_goes_on_when_who_asked_has_left(tmp_path: Path) -> None:
    async def go() -> None:
        async with parts(tmp_path, by_hand=True) as rig:
            creating = asyncio.ensure_future(rig.create("orders"))
            await turns()
            creating.cancel()
            await asyncio.wait([creating])
            rig.meta.sync()
            await rig.catalogue.finish()
            assert rig.catalogue.named("orders").partitions

    run(go())


def test_a_deletion_goes_on_when_who_asked_has_left(tmp_path: Path) -> None:
    async def go() -> None:
        async with parts(tmp_path) as rig:
            await rig.create("orders")
            deleting = asyncio.ensure_future(rig.catalogue.delete("orders", T0))
            await asyncio.sleep(0)
            deleting.cancel()
            await asyncio.wait([deleting])
            while rig.catalogue.by_id or rig.machine.deleted:
                await asyncio.sleep(0)
            assert files_under(tmp_path) == []

    run(go())


def test_a_refusal_nobody_waits_for_disturbs_nobody(tmp_path: Path) -> None:
    async def go() -> None:
        async with parts(tmp_path, by_hand=True) as rig:
            for _ in range(2):
                creating = asyncio.ensure_future(rig.create("orders"))
                await turns()
                creating.cancel()
            rig.meta.sync()
            await rig.catalogue.finish()
            assert open_names(rig.catalogue) == ["orders"]

    run(go())


# --- deleting


def test_a_deleted_topics_files_go_and_so_does_what_was_remembered_of_it(tmp_path: Path) -> None:
    async def go() -> None:
        async with parts(tmp_path) as rig:
            kept = await rig.create("kept")
            topic = await rig.create("orders", 3)
            topic.partition(0).log.append(messages("a"), now=T0)
            assert topic_directory(tmp_path, topic).is_dir()
            await rig.catalogue.delete("orders", T0)
            await rig.catalogue.finish()
            assert rig.machine.deleted == {}
            assert [found.name for found in (tmp_path / "logs").iterdir()] == ["kept"]
            assert open_names(rig.catalogue) == ["kept"]
            assert values(kept.partition(0)) == []
            with pytest.raises(UnknownTopic):
                await rig.catalogue.delete("orders", T0)

    run(go())


def test_a_deleted_topics_series_end(tmp_path: Path) -> None:
    async def go() -> None:
        async with parts(tmp_path) as rig:
            topic = await rig.create("orders")
            assert rig.meters.shown_as(topic.meters) is topic.meters
            await rig.catalogue.delete("orders", T0)
            assert rig.meters.shown_as(topic.meters) is rig.meters.other
            again = await rig.create("orders")
            assert isinstance(again.meters, TopicMeters)
            assert rig.meters.shown_as(again.meters) is again.meters is not topic.meters

    run(go())


def test_a_name_is_free_at_once_while_the_old_topics_files_are_still_being_removed(tmp_path: Path) -> None:
    async def go() -> None:
        disk = FaultyDisk()
        async with parts(tmp_path, disk=disk) as rig:
            old = await rig.create("orders", 2)
            old.partition(0).log.append(messages("old"), now=T0)
            go_on, begun = threading.Event(), threading.Event()
            old_directory = str(topic_directory(tmp_path, old))

            def hold(operation: str, path: str) -> None:
                if operation == "remove_directory" and path == f"{old_directory}/1":
                    begun.set()
                    go_on.wait(PATIENCE_S)

            disk.before = hold
            await rig.catalogue.delete("orders", T0)
            await asyncio.to_thread(begun.wait, 30)
            creating = asyncio.ensure_future(rig.create("orders", 2))
            await turns()
            go_on.set()
            new = await creating
            assert new.meta.topic_id != old.meta.topic_id
            assert values(new.partition(0)) == []
            new.partition(0).log.append(messages("new"), now=T0)
            await rig.catalogue.finish()
            assert not topic_directory(tmp_path, old).exists()
            assert values(new.partition(0)) == ["new"]
            assert rig.catalogue.named("orders") is new
            assert rig.machine.deleted == {}
        async with parts(tmp_path) as rig:
            assert values(rig.catalogue.named("orders").partition(0)) == ["new"]

    run(go())


def test_an_old_topics_removal_ends_after_the_new_one_took_its_name(tmp_path: Path) -> None:
    """Both records are written before either is followed: the old one's end must not close the new one."""

    async def go() -> None:
        async with parts(tmp_path, by_hand=True) as rig:
            creating = asyncio.ensure_future(rig.create("orders"))
            await turns()
            rig.meta.sync()
            old = await creating
            deleting = asyncio.ensure_future(rig.catalogue.delete("orders", T0))
            creating = asyncio.ensure_future(rig.create("orders", 3))
            await turns()
            rig.meta.sync()
            await deleting
            new = await creating
            while rig.meta.end_offset < 4:
                await asyncio.sleep(0)
            rig.meta.sync()
            await rig.catalogue.finish()
            assert rig.catalogue.named("orders") is new
            assert old.meta.topic_id not in rig.catalogue.by_id
            assert len(new.partitions) == 3

    run(go())


def test_files_that_cannot_be_removed_now_are_removed_by_the_next_start(tmp_path: Path) -> None:
    async def go() -> None:
        disk = FaultyDisk()
        async with parts(tmp_path, disk=disk) as rig:
            topic = await rig.create("orders", 2)

            def refuse(operation: str, path: str) -> None:
                if operation == "unlink":
                    raise OSError(errno.EIO, "the disk does not want to", path)

            disk.before = refuse
            await rig.catalogue.delete("orders", T0)
            await rig.catalogue.finish()
            assert topic_directory(tmp_path, topic).exists()
            assert list(rig.machine.deleted) == [topic.meta.topic_id]
            with pytest.raises(UnknownTopic):
                rig.catalogue.named("orders")
            again = await rig.create("orders")
            disk.before = nothing
        async with parts(tmp_path) as rig:
            await rig.catalogue.finish()
            assert rig.machine.deleted == {}
            assert not topic_directory(tmp_path, topic).exists()
            assert topic_directory(tmp_path, again).exists()

    run(go())


def test_files_nobody_knows_are_left_alone(tmp_path: Path) -> None:
    async def go() -> None:
        async with parts(tmp_path) as rig:
            topic = await rig.create("orders")
            stranger = topic_directory(tmp_path, topic).parent / "00000000deadbeef" / "0"
            stranger.mkdir(parents=True)
            (stranger / "notes.txt").write_text("mine")
            await rig.catalogue.delete("orders", T0)
            await rig.catalogue.finish()
        async with parts(tmp_path):
            assert files_under(tmp_path) == [
                "orders",
                "orders/00000000deadbeef",
                "orders/00000000deadbeef/0",
                "orders/00000000deadbeef/0/notes.txt",
            ]

    run(go())


# --- starting again


def test_a_start_opens_what_there_was(tmp_path: Path) -> None:
    async def go() -> None:
        async with parts(tmp_path) as rig:
            topic = await rig.create("orders", 3, TopicSettings(fsync=Fsync.NONE))
            topic.partition(2).log.append(messages("a", "b"), now=T0)
            await rig.create("bills")
            await rig.catalogue.change("orders", {"retention_hours": None}, T0)
            await rig.catalogue.add_partitions("orders", 4, T0)
        async with parts(tmp_path) as rig:
            again = rig.catalogue.named("orders")
            assert again.meta == topic.meta
            assert again.meta.settings == TopicSettings(fsync=Fsync.NONE, retention_hours=None)
            assert len(again.partitions) == 4
            assert values(again.partition(2)) == ["a", "b"]
            assert open_names(rig.catalogue) == ["bills", "orders"]

    run(go())


def test_a_damaged_partition_leaves_the_others_open(tmp_path: Path) -> None:
    async def go() -> None:
        async with parts(tmp_path) as rig:
            topic = await rig.create("orders", 3)
            for number in range(3):
                topic.partition(number).log.append(messages(f"in {number}"), now=T0)
            await rig.create("bills")
        state = topic_directory(tmp_path, topic) / "1" / "log.state"
        state.write_bytes(state.read_bytes()[:-1] + b"\xff")
        async with parts(tmp_path) as rig:
            again = rig.catalogue.named("orders")
            assert [type(slot) for slot in again.slots] == [Partition, DamagedState, Partition]
            with pytest.raises(DamagedState, match=r"log\.state is damaged"):
                again.partition(1)
            assert [values(again.partition(number)) for number in (0, 2)] == [["in 0"], ["in 2"]]
            assert rig.catalogue.named("bills").partitions
            await rig.catalogue.change("orders", {"fsync": Fsync.EVERY}, T0)
            await rig.catalogue.add_partitions("orders", 4, T0)
            assert again.partition(3).log.settings.fsync is Fsync.EVERY
            await rig.catalogue.retry(T0)
            assert isinstance(again.slots[1], DamagedState), "what is damaged stays so until somebody mends it"
            await rig.catalogue.delete("orders", T0)
            await rig.catalogue.finish()
            assert not topic_directory(tmp_path, topic).exists()

    run(go())


# --- full disks


def refuse_files(disk: FaultyDisk, ending: str) -> None:
    disk.new_file_error, disk.only = errno.ENOSPC, ending


def test_a_topic_whose_partitions_find_no_space_is_not_created(tmp_path: Path) -> None:
    async def go() -> None:
        disk = FaultyDisk()
        async with parts(tmp_path, disk=disk) as rig:
            refuse_files(disk, "/1/synced")
            with pytest.raises(DiskFull):
                await rig.create("orders", 3)
            with pytest.raises(UnknownTopic):
                rig.catalogue.named("orders")
            assert await rig.catalogue.names() == [], "a refusal means that nothing has changed"
            assert rig.catalogue.lagging == []
            disk.new_file_error = None
            topic = await rig.create("orders", 3)
            assert [partition.number for partition in topic.partitions] == [0, 1, 2]

    run(go())


def test_added_partitions_that_had_no_space_are_opened_when_there_is_some(tmp_path: Path) -> None:
    async def go() -> None:
        disk = FaultyDisk()
        async with parts(tmp_path, disk=disk) as rig:
            topic = await rig.create("orders", 1)
            refuse_files(disk, "/2/synced")
            assert await rig.catalogue.add_partitions("orders", 4, T0) == 1
            assert len(topic.slots) == 1, "all of them, or none"
            assert rig.catalogue.lagging == [topic.meta.topic_id]
            topic.partition(0).log.append(messages("a"), now=T0)
            await rig.catalogue.change("orders", {"fsync": Fsync.EVERY}, T0)
            disk.new_file_error = None
            await rig.catalogue.retry(T0)
            assert {partition.log.settings.fsync for partition in topic.partitions} == {Fsync.EVERY}
            assert [partition.number for partition in topic.partitions] == [0, 1, 2, 3]
            assert topic.meta.partitions == 4
            assert values(topic.partition(0)) == ["a"]

    run(go())


def test_a_topic_that_cannot_be_opened_keeps_no_other_from_being_opened(tmp_path: Path) -> None:
    async def go() -> None:
        disk = FaultyDisk()
        async with parts(tmp_path, disk=disk) as rig:
            await rig.create("first")
            await rig.create("wide", 1)
            refuse_files(disk, "/1/synced")
            await rig.catalogue.add_partitions("wide", 2, T0)
            disk.new_file_error = None
            await rig.create("last")
        refuse_files(disk, "/1/synced")
        async with parts(tmp_path, disk=disk) as rig:
            assert open_names(rig.catalogue) == ["first", "last"], "the start went through"
            disk.new_file_error = None
            await rig.catalogue.retry(T0)
            assert open_names(rig.catalogue) == ["first", "last", "wide"]

    run(go())


def test_a_full_disk_refuses_a_creation_and_nothing_is_left_of_it(tmp_path: Path) -> None:
    async def go() -> None:
        disk = FaultyDisk()
        async with parts(tmp_path, disk=disk) as rig:
            disk.free = 0
            with pytest.raises(DiskFull):
                await rig.create("orders")
            with pytest.raises(UnknownTopic):
                rig.catalogue.named("orders")
            disk.free = None
            assert await rig.create("orders")

    run(go())


def test_a_topic_can_be_deleted_on_a_full_disk(tmp_path: Path) -> None:
    """How else would there be space again."""

    async def go() -> None:
        disk = FaultyDisk()
        async with parts(tmp_path, disk=disk) as rig:
            topic = await rig.create("orders")
            topic.partition(0).log.append(messages("x" * 100_000), now=T0)
            disk.free = 0
            with pytest.raises(DiskFull):
                topic.partition(0).log.append(messages("y"), now=T0)
            await rig.catalogue.delete("orders", T0)
            await rig.catalogue.finish()
            assert disk.free > 0
            assert not topic_directory(tmp_path, topic).exists()
            assert rig.machine.deleted == {}

    run(go())


def test_nothing_lags_when_nothing_went_wrong(tmp_path: Path) -> None:
    async def go() -> None:
        disk = FaultyDisk()
        async with parts(tmp_path, disk=disk) as rig:
            await rig.create("orders", 3)
            touched: list[str] = []
            disk.before = lambda _, path: touched.append(path)
            await rig.catalogue.retry(T0)
            assert [path for path in touched if "/logs/" in path and "open" in path] == []

    run(go())


# --- failed disks


def test_a_metadata_log_that_fails_is_reported(tmp_path: Path) -> None:
    async def go() -> None:
        disk = FaultyDisk()
        async with parts(tmp_path, disk=disk, by_hand=True) as rig:
            disk.write_error, disk.only = errno.EIO, "/meta/metadata/00000000000000000000.log"
            with pytest.raises(StorageFailed):
                await rig.create("orders")
            disk.write_error = None
            assert [type(failure) for failure in rig.failures] == [StorageFailed]
            with pytest.raises(StorageFailed):
                await rig.create("bills")

    run(go())


def test_a_sync_of_the_metadata_that_fails_is_reported_to_who_waits(tmp_path: Path) -> None:
    async def go() -> None:
        disk = FaultyDisk()
        async with parts(tmp_path, disk=disk, by_hand=True) as rig:
            creating = asyncio.ensure_future(rig.create("orders"))
            await turns()
            disk.sync_error_at = 1
            with pytest.raises(StorageFailed):
                rig.meta.sync()
            with pytest.raises(StorageFailed):
                await creating
            assert rig.failures
            assert files_under(tmp_path) == []

    run(go())


# --- crashes at every step


async def begun(path: Path, disk: PhotographedDisk) -> Parts:
    """With a topic that stays; everything from here on is photographed."""
    rig = Parts(path, disk=disk)
    kept = await rig.create("kept")
    kept.partition(0).log.append(messages("kept"), now=T0)
    kept.partition(0).log.sync()
    disk.begin(path)
    return rig


def names_on(disk: PhotographedDisk, path: Path) -> list[str]:
    """Of the topics that have directories."""
    return disk.list(f"{path}/logs")


def test_a_creation_that_a_crash_interrupts_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    async def go() -> None:
        disk = PhotographedDisk()
        rig = await begun(tmp_path, disk)
        await rig.create("orders", 3)
        disk.recording = False
        await rig.close()
        outcomes = set()
        for when, image in disk.crashed():
            async with parts(tmp_path, disk=image) as rig:
                assert values(rig.catalogue.named("kept").partition(0)) == ["kept"], when
                there = "orders" in rig.catalogue.by_name
                outcomes.add(there)
                if there:
                    topic = rig.catalogue.named("orders")
                    assert len(topic.partitions) == 3, when
                    topic.partition(2).log.append(messages("a"), now=T0)
                else:
                    assert names_on(image, tmp_path) == ["kept"], f"{when}: files without a record"
                    await rig.create("orders", 3)
        assert outcomes == {True, False}

    run(go())


def test_a_deletion_that_a_crash_interrupts_is_finished_by_the_next_start(tmp_path: Path) -> None:
    async def go() -> None:
        disk = PhotographedDisk()
        rig = Parts(tmp_path, disk=disk)
        topic = await rig.create("orders", 2)
        topic.partition(1).log.append(messages("a"), now=T0)
        topic.partition(1).log.roll()
        topic.partition(1).log.sync()
        kept = await rig.create("kept")
        kept.partition(0).log.append(messages("kept"), now=T0)
        kept.partition(0).log.sync()
        disk.begin(tmp_path)
        await rig.catalogue.delete("orders", T0)
        await rig.catalogue.finish()
        disk.recording = False
        await rig.close()
        outcomes = set()
        for when, image in disk.crashed():
            async with parts(tmp_path, disk=image) as rig:
                assert values(rig.catalogue.named("kept").partition(0)) == ["kept"], when
                there = "orders" in rig.catalogue.by_name
                outcomes.add(there)
                if there:
                    assert values(rig.catalogue.named("orders").partition(1)) == ["a"], f"{when}: half deleted"
                    continue
                await rig.catalogue.finish()
                assert names_on(image, tmp_path) == ["kept"], when
                assert rig.machine.deleted == {}, when
        assert outcomes == {True, False}

    run(go())


def test_a_name_used_again_survives_a_crash_at_any_step(tmp_path: Path) -> None:
    async def go() -> None:
        disk = PhotographedDisk()
        rig = await begun(tmp_path, disk)
        old = await rig.create("orders", 1)
        old.partition(0).log.append(messages("old"), now=T0)
        old.partition(0).log.sync()
        await rig.catalogue.delete("orders", T0)
        new = await rig.create("orders", 2)
        new.partition(0).log.append(messages("new"), now=T0)
        new.partition(0).log.sync()
        await rig.catalogue.finish()
        disk.recording = False
        await rig.close()
        outcomes = set()
        for when, image in disk.crashed(range(2)):
            async with parts(tmp_path, disk=image) as rig:
                await rig.catalogue.finish()
                found = rig.catalogue.by_name.get("orders")
                if found is None:
                    outcomes.add("none")
                    continue
                is_old = found.meta.topic_id == old.meta.topic_id
                held = values(found.partition(0))
                assert held in ([], ["old"] if is_old else ["new"]), f"{when}: {held}"
                assert len(found.partitions) == (1 if is_old else 2), when
                outcomes.add("old" if is_old else "new")
                assert rig.machine.deleted == {}, when
        assert outcomes == {"none", "old", "new"}

    run(go())


def test_added_partitions_that_a_crash_interrupts_are_there_all_or_none(tmp_path: Path) -> None:
    async def go() -> None:
        disk = PhotographedDisk()
        rig = await begun(tmp_path, disk)
        await rig.catalogue.add_partitions("kept", 3, T0)
        disk.recording = False
        await rig.close()
        counts = set()
        for when, image in disk.crashed():
            async with parts(tmp_path, disk=image) as rig:
                kept = rig.catalogue.named("kept")
                assert len(kept.partitions) == kept.meta.partitions, when
                assert values(kept.partition(0)) == ["kept"], when
                counts.add(kept.meta.partitions)
        assert counts == {1, 3}

    run(go())
