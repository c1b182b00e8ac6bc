"""A broker without doors: its start, whether it takes work, producers, its end; and a disk that fails."""

import errno
import re
from pathlib import Path

import pytest

from goqueue.broker.broker import Broker, BrokerSettings
from goqueue.model import limits
from goqueue.model.errors import DamagedState, DirectoryLocked, DiskFull, Draining, StorageFailed
from goqueue.model.publishing import Acks
from goqueue.model.record import Producer
from goqueue.model.settings import Fsync
from goqueue.model.topic import TopicSettings
from goqueue.storage.store import METADATA_LOG
from tests.support.faulty_disk import FaultyDisk
from tests.support.loop import run
from tests.unit.broker.brokers import SETTINGS, T0, Clock, ids, messages, open_names, opened, values


async def create(broker: Broker, name: str, settings: TopicSettings = SETTINGS) -> None:
    await broker.topics.create(name, 1, settings, broker.clock())


def publish(broker: Broker, name: str, text: str, producer: Producer | None = None) -> None:
    broker.publisher.publish(
        broker.topics.named(name), 0, messages(text, producer=producer), acks=Acks.LEADER, producer=producer
    )


def stored(broker: Broker, name: str) -> list[str]:
    return values(broker.topics.named(name).partition(0))


# --- starting


def test_a_cluster_is_named_once(tmp_path: Path) -> None:
    async def go() -> None:
        async with opened(tmp_path / "one") as broker:
            name = broker.cluster_id
            assert re.fullmatch(r"[0-9a-f]{16}", name)
        async with opened(tmp_path / "one") as broker:
            assert broker.cluster_id == name
        async with opened(tmp_path / "other") as broker:
            assert broker.cluster_id != name

    run(go())


def test_everything_is_there_again_after_a_restart(tmp_path: Path) -> None:
    async def go() -> None:
        async with opened(tmp_path) as broker:
            await create(broker, "orders", TopicSettings(fsync=Fsync.NONE))
            for number in range(10):
                publish(broker, "orders", f"message {number}")
        async with opened(tmp_path) as broker:
            assert stored(broker, "orders") == [f"message {number}" for number in range(10)]

    run(go())


def test_what_a_broker_is_told_is_what_its_topics_get(tmp_path: Path) -> None:
    async def go() -> None:
        clock = Clock()
        async with opened(tmp_path, clock=clock, node_id="n7", partitions=5) as broker:
            assert (broker.settings.node_id, broker.settings.partitions, broker.clock()) == ("n7", 5, T0)

    run(go())


def test_a_directory_has_one_broker_and_the_second_does_not_disturb_the_first(tmp_path: Path) -> None:
    async def go() -> None:
        async with opened(tmp_path) as broker:
            await create(broker, "orders")
            with pytest.raises(DirectoryLocked):
                await Broker.open(BrokerSettings(data_dir=str(tmp_path)))
            publish(broker, "orders", "a")
            assert stored(broker, "orders") == ["a"]

    run(go())


def test_a_start_that_is_refused_lets_go_of_the_directory(tmp_path: Path) -> None:
    async def go() -> None:
        async with opened(tmp_path) as broker:
            await create(broker, "orders")
        state = tmp_path / "meta" / METADATA_LOG / "log.state"
        good = state.read_bytes()
        state.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
        for _ in range(2):
            with pytest.raises(DamagedState):
                await Broker.open(BrokerSettings(data_dir=str(tmp_path)))
        state.write_bytes(good)
        async with opened(tmp_path) as broker:
            assert open_names(broker.topics) == ["orders"]

    run(go())


def test_a_first_start_on_a_full_disk_is_refused_and_the_next_one_works(tmp_path: Path) -> None:
    async def go() -> None:
        disk = FaultyDisk()
        disk.free = 0
        with pytest.raises(DiskFull):
            await Broker.open(BrokerSettings(data_dir=str(tmp_path)), disk=disk)
        disk.free = None
        async with opened(tmp_path, disk=disk) as broker:
            assert broker.cluster_id

    run(go())


def test_a_broker_starts_on_a_full_disk_and_can_be_read(tmp_path: Path) -> None:
    async def go() -> None:
        disk = FaultyDisk()
        async with opened(tmp_path, disk=disk) as broker:
            await create(broker, "orders")
            publish(broker, "orders", "a")
        disk.free = 0
        async with opened(tmp_path, disk=disk) as broker:
            assert stored(broker, "orders") == ["a"]
            with pytest.raises(DiskFull):
                publish(broker, "orders", "b")
            disk.free = None
            publish(broker, "orders", "c")
            assert stored(broker, "orders") == ["a", "c"]

    run(go())


# --- whether it works


def test_a_broker_that_stops_takes_no_new_work(tmp_path: Path) -> None:
    async def go() -> None:
        async with opened(tmp_path) as broker:
            broker.check()
            assert not broker.draining
            broker.drain()
            assert broker.draining
            with pytest.raises(Draining, match="the broker is stopping; connect again in a moment, or to another one"):
                broker.check()

    run(go())


def test_the_first_failure_is_the_one_that_is_told(tmp_path: Path) -> None:
    async def go() -> None:
        async with opened(tmp_path) as broker:
            assert broker.failure is None
            assert not broker.failed.is_set()
            first = StorageFailed("first")
            broker.report_failure(first)
            broker.report_failure(StorageFailed("second"))
            assert broker.failure is first
            assert broker.failed.is_set()
            broker.drain()
            for _ in range(2):
                with pytest.raises(StorageFailed, match="first"):
                    broker.check()

    run(go())


async def write(broker: Broker, where: str) -> None:
    if where == "partition":
        await broker.publisher.publish(broker.topics.named("orders"), 0, messages("a"), acks=Acks.ALL).safe()
    else:
        await create(broker, "bills")


@pytest.mark.parametrize("where", ["partition", "metadata"])
def test_a_write_that_fails_stops_the_broker(tmp_path: Path, where: str) -> None:
    async def go() -> None:
        disk = FaultyDisk()
        async with opened(tmp_path, disk=disk) as broker:
            await create(broker, "orders")
            disk.write_error, disk.only = errno.EIO, ".log"
            with pytest.raises(StorageFailed):
                await write(broker, where)
            disk.write_error = None
            await broker.failed.wait()
            with pytest.raises(StorageFailed):
                broker.check()

    run(go())


@pytest.mark.parametrize("where", ["partition", "metadata"])
def test_a_sync_that_fails_stops_the_broker(tmp_path: Path, where: str) -> None:
    async def go() -> None:
        disk = FaultyDisk()
        async with opened(tmp_path, disk=disk) as broker:
            await create(broker, "orders", TopicSettings(fsync=Fsync.EVERY))
            disk.sync_error_at = 1
            with pytest.raises(StorageFailed):
                await write(broker, where)
            await broker.failed.wait()
            with pytest.raises(StorageFailed):
                broker.check()
            assert disk.hits == 1

    run(go())


# --- producers


def test_no_producer_id_is_given_out_twice_across_restarts(tmp_path: Path) -> None:
    async def go() -> None:
        found: list[int] = []
        for _ in range(3):
            async with opened(tmp_path) as broker:
                found += [await broker.init_producer() for _ in range(5)]
        assert len(set(found)) == len(found) == 15
        assert found == sorted(found)

    run(go())


def test_a_producer_id_is_known_once_it_was_given_out(tmp_path: Path) -> None:
    async def go() -> None:
        async with opened(tmp_path) as broker:
            assert not broker.knows_producer(1)
            producer_id = await broker.init_producer()
            assert broker.knows_producer(producer_id)
            assert not broker.knows_producer(producer_id + 1)
        async with opened(tmp_path) as broker:
            assert broker.knows_producer(producer_id)

    run(go())


def test_a_repeated_message_is_recognised_after_a_restart(tmp_path: Path) -> None:
    async def go() -> None:
        async with opened(tmp_path) as broker:
            await create(broker, "orders")
            producer = Producer(await broker.init_producer(), 0, 0)
            publish(broker, "orders", "a", producer)
        async with opened(tmp_path) as broker:
            publish(broker, "orders", "a", producer)
            assert stored(broker, "orders") == ["a"]

    run(go())


# --- the end


def test_closing_makes_everything_durable(tmp_path: Path) -> None:
    async def go() -> None:
        async with opened(tmp_path) as broker:
            await create(broker, "orders", TopicSettings(fsync=Fsync.NONE))
            publish(broker, "orders", "a")
            log = broker.topics.named("orders").partition(0).log
            assert log.durable.value == 0
        assert log.durable.value == 1
        assert broker.draining

    run(go())


def test_closing_waits_for_the_files_of_deleted_topics(tmp_path: Path) -> None:
    async def go() -> None:
        async with opened(tmp_path) as broker:
            for number in range(5):
                await create(broker, f"topic-{number}")
            for number in range(5):
                await broker.topics.delete(f"topic-{number}", T0)
        assert list((tmp_path / "logs").iterdir()) == []

    run(go())


def test_a_disk_that_fails_at_the_very_end_is_told(tmp_path: Path) -> None:
    async def go() -> None:
        disk = FaultyDisk()
        broker = await Broker.open(BrokerSettings(data_dir=str(tmp_path)), disk=disk, entropy=ids)
        await create(broker, "orders", TopicSettings(fsync=Fsync.NONE))
        publish(broker, "orders", "a")
        disk.sync_error_at = 1
        with pytest.raises(StorageFailed):
            await broker.close()
        async with opened(tmp_path) as broker:
            assert open_names(broker.topics) == ["orders"], "the directory was given back"

    run(go())


def test_a_broker_whose_disk_failed_closes_without_another_error(tmp_path: Path) -> None:
    async def go() -> None:
        disk = FaultyDisk()
        async with opened(tmp_path, disk=disk) as broker:
            await create(broker, "orders")
            disk.write_error, disk.only = errno.EIO, ".log"
            with pytest.raises(StorageFailed):
                publish(broker, "orders", "a")
        disk.write_error = None
        async with opened(tmp_path) as broker:
            assert stored(broker, "orders") == []

    run(go())


def test_requests_and_replies_have_budgets_of_their_own(tmp_path: Path) -> None:
    async def go() -> None:
        async with opened(tmp_path) as broker:
            assert broker.requests is not broker.replies
            assert broker.requests.limit == broker.replies.limit == limits.MAX_IN_FLIGHT_BYTES

    run(go())
