"""Where features of the broker meet: a test per row of the interplay table whose features exist, named after it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from goqueue.broker.broker import Broker
from goqueue.broker.waiting import GONE
from goqueue.model import limits
from goqueue.model.errors import (
    DiskFull,
    InvalidRequest,
    OutOfSequence,
    TooLarge,
    Unavailable,
    UnknownProducer,
    UnknownTopic,
)
from goqueue.model.publishing import Acks, Durability
from goqueue.model.record import Extension, Producer, Record
from goqueue.model.settings import Fsync
from goqueue.model.topic import TopicSettings
from goqueue.storage.cleaner import clean
from tests.support.faulty_disk import FaultyDisk
from tests.support.held_syncs import syncs_held
from tests.support.loop import run, turns
from tests.unit.api.services import served
from tests.unit.broker.brokers import SETTINGS, T0, block, messages, open_names, opened, topic_directory, values
from tests.unit.broker.images import PhotographedDisk

HOUR_MS = 3600 * 1000


@pytest.fixture(autouse=True)
def no_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Housekeeping comes when a test calls it."""
    for interval in ("TICK_INTERVAL_S", "CLEAN_INTERVAL_S"):
        monkeypatch.setattr(limits, interval, 3600.0)


def stored(broker: Broker, name: str, partition: int = 0) -> list[str]:
    return values(broker.topics.named(name).partition(partition))


async def create(broker: Broker, name: str, partitions: int = 1, settings: TopicSettings = SETTINGS) -> None:
    await broker.topics.create(name, partitions, settings, broker.clock())


# --- topic delete x everything


def test_topic_delete_x_everything(tmp_path: Path) -> None:
    """Nothing of a deleted topic touches a new one of its name: messages, offsets, producers, settings, readers."""

    async def go() -> None:
        async with served(tmp_path) as served_broker:
            broker, call = served_broker.broker, served_broker.call
            created = await call("create_topic", name="orders", num_partitions=2, fsync="none", max_message_bytes=50)
            me = await call("init_producer")
            for sequence in range(3):
                await call("publish", topic="orders", value=f"old {sequence}", partition=0, sequence=sequence, **me)
            old = broker.topics.named("orders")
            reading = asyncio.ensure_future(broker.reader.wait(old.partition(1), 0, 3600.0))
            await turns()

            await call("delete_topic", topic="orders")
            again = await call("create_topic", name="orders", num_partitions=1)
            new = broker.topics.named("orders")

            assert again["topic_id"] != created["topic_id"]
            with pytest.raises(Unavailable, match=GONE):
                await reading
            with pytest.raises(UnknownTopic, match="it may have been deleted: look its name up again"):
                broker.topics.identified(old.meta.topic_id)
            assert broker.topics.identified(new.meta.topic_id) is new
            described = await call("describe_topic", topic="orders")
            assert described["partition_offsets"] == {"0": {"earliest": 0, "latest": 0, "stable": 0}}
            assert described["config"]["max_message_bytes"] == SETTINGS.max_message_bytes
            assert described["config"]["fsync"] == "interval"
            assert (await call("read_topic", topic="orders"))["messages"] == []
            first = await call("publish", topic="orders", value="new", partition=0, sequence=0, **me)
            assert first["offset"] == 0
            assert "duplicate" not in first, "what the producer sent to the old topic is not known here"
            with pytest.raises(OutOfSequence) as caught:
                await call("publish", topic="orders", value="new", partition=0, sequence=3, **me)
            assert caught.value.expected == 1
            assert new.meters.messages_produced == 1
            await broker.topics.finish()
            assert not topic_directory(tmp_path, old).exists()
        async with opened(tmp_path) as broker:
            assert stored(broker, "orders") == ["new"]
            assert broker.topics.named("orders").meta == new.meta

    run(go())


def test_topic_delete_x_a_publish_that_waits_for_the_disk(tmp_path: Path) -> None:
    """It is not answered as durable, and its message is in no topic of that name."""

    async def go() -> None:
        disk = FaultyDisk()
        async with opened(tmp_path, disk=disk) as broker:
            with syncs_held(disk, "/logs/") as held:
                await create(broker, "orders", 1, TopicSettings(fsync=Fsync.EVERY))
                topic = broker.topics.named("orders")
                receipt = broker.publisher.publish(topic, 0, messages("old"), acks=Acks.ALL)
                waiting = asyncio.ensure_future(receipt.safe())
                await held.reached()
                await broker.topics.delete("orders", T0)
                with pytest.raises(Unavailable, match=GONE):
                    await waiting
                held.release()
                await create(broker, "orders")
                assert stored(broker, "orders") == []

    run(go())


# --- ack x fsync


@pytest.mark.parametrize("fsync", Fsync)
@pytest.mark.parametrize("acks", Acks)
def test_ack_x_fsync(tmp_path: Path, acks: Acks, fsync: Fsync) -> None:
    """acks=leader waits for the fsync only under `every`; acks=all always; what was reached is named."""

    async def go() -> None:
        disk = FaultyDisk()
        async with opened(tmp_path, disk=disk) as broker:
            with syncs_held(disk, "/logs/") as held:
                await create(broker, "orders", 1, TopicSettings(fsync=fsync))
                topic = broker.topics.named("orders")
                receipt = broker.publisher.publish(topic, 0, messages("a"), acks=acks)
                answer = asyncio.ensure_future(receipt.safe())
                await turns()
                waits = acks is Acks.ALL or (acks is Acks.LEADER and fsync is Fsync.EVERY)
                assert answer.done() != waits
                if waits:
                    await held.reached()
                    await turns()
                    assert not answer.done()
                    assert receipt.durability is Durability.DURABLE
                else:
                    assert receipt.durability is (Durability.WRITTEN if acks is Acks.LEADER else Durability.NONE)
                assert stored(broker, "orders") == ["a"], "readers see it either way"
                held.release()
                await answer
                assert not waits or receipt.log.durable.value == 1

    run(go())


def test_ack_x_fsync_changed_while_the_topic_is_in_use(tmp_path: Path) -> None:
    async def go() -> None:
        async with opened(tmp_path) as broker:
            await create(broker, "orders", 1, TopicSettings(fsync=Fsync.NONE))
            topic = broker.topics.named("orders")
            assert broker.publisher.publish(topic, 0, messages("a"), acks=Acks.LEADER).durable_at is None
            await broker.topics.change("orders", {"fsync": Fsync.EVERY}, T0)
            receipt = broker.publisher.publish(topic, 0, messages("b"), acks=Acks.LEADER)
            assert (receipt.durability, receipt.durable_at) == (Durability.DURABLE, 2)
            await receipt.safe()
            await broker.topics.change("orders", {"fsync": Fsync.NONE}, T0)
            assert broker.publisher.publish(topic, 0, messages("c"), acks=Acks.LEADER).durable_at is None

    run(go())


# --- disk full x publish


def test_disk_full_x_publish(tmp_path: Path) -> None:
    """Publishing is refused, reading goes on, deleting helps, and writing goes on when there is space again."""

    async def go() -> None:
        disk = FaultyDisk()
        async with served(tmp_path, disk=disk) as served_broker:
            broker, call = served_broker.broker, served_broker.call
            await call("create_topic", name="orders", num_partitions=2)
            await call("create_topic", name="bulk", num_partitions=1)
            me = await call("init_producer")
            await call("publish", topic="orders", value="first", partition=0, sequence=0, **me)
            await call("publish", topic="bulk", value="x" * 200_000)
            disk.free = 0

            for _ in range(3):
                with pytest.raises(DiskFull):
                    await call("publish", topic="orders", value="second", partition=0, sequence=1, **me)
            with pytest.raises(DiskFull):
                await call("publish", topic="orders", value="x", partition=1, acks="all")
            reply = await call("publish_batch", topic="orders", messages=[{"value": "y"}, {"value": "z", "key": "k"}])
            assert [result["code"] for result in reply["results"]] == ["disk_full", "disk_full"]
            with pytest.raises(DiskFull):
                await call("create_topic", name="more")
            read = await call("read_topic", topic="orders")
            assert [message["value"] for message in read["messages"]] == ["first"]
            assert await call("health") == {"status": "ok"}, "a full disk is no failed disk"

            await call("delete_topic", topic="bulk")
            await broker.topics.finish()
            assert disk.free > 100_000
            again = await call("publish", topic="orders", value="second", partition=0, sequence=1, **me)
            assert (again["offset"], again.get("duplicate")) == (1, None), "the refusals used up no sequence"
            assert (await call("publish", topic="orders", value="x", partition=1, acks="all"))["offset"] == 0
            disk.free = None
        async with opened(tmp_path) as broker:
            assert stored(broker, "orders") == ["first", "second"]
            assert open_names(broker.topics) == ["orders"]

    run(go())


def test_disk_full_x_retention(tmp_path: Path) -> None:
    """Cleaning works on a full disk, and what it frees can be written to."""

    async def go() -> None:
        disk = FaultyDisk()
        async with opened(tmp_path, disk=disk) as broker:
            await create(broker, "orders", 1, TopicSettings(retention_hours=1, segment_bytes=4096))
            log = broker.topics.named("orders").partition(0).log
            for number in range(10):
                log.append(messages(str(number) * 2000), now=T0)
            log.roll()
            log.sync()
            disk.free = 0
            with pytest.raises(DiskFull):
                log.append(messages("x" * 2000), now=T0 + 2 * HOUR_MS)
            clean(log, T0 + 2 * HOUR_MS)
            assert log.start_offset == 10
            log.append(messages("x" * 2000), now=T0 + 2 * HOUR_MS)
            disk.free = None

    run(go())


# --- idempotence


def test_idempotence_x_http(tmp_path: Path) -> None:
    """With a producer id a request names one partition and the first sequence of its messages."""

    async def go() -> None:
        async with served(tmp_path) as served_broker:
            call = served_broker.call
            await call("create_topic", name="orders", num_partitions=3)
            me = await call("init_producer")

            async def send(*batch: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
                reply = await call("publish_batch", topic="orders", messages=list(batch), **more)
                results: list[dict[str, Any]] = reply["results"]
                return results

            to_one = [{"value": text, "partition": 1} for text in "abcd"]
            with pytest.raises(InvalidRequest, match="names no partition"):
                await send({"value": "a", "key": "k"}, sequence=0, **me)
            with pytest.raises(InvalidRequest, match="different partitions"):
                await send(to_one[0], {"value": "b", "partition": 2}, sequence=0, **me)
            with pytest.raises(InvalidRequest, match="belong together"):
                await send(to_one[0], **me)
            with pytest.raises(UnknownProducer):
                await send(to_one[0], sequence=1, **me)

            await send(*to_one[:2], sequence=0, **me)
            for sequence, batch, fresh in ((0, to_one[:2], 0), (1, to_one[1:3], 1), (0, to_one, 1), (2, to_one[2:], 0)):
                results = await send(*batch, sequence=sequence, **me)
                assert [result["offset"] for result in results] == list(range(sequence, sequence + len(batch)))
                assert sum("duplicate" not in result for result in results) == fresh
            other = await send({"value": "a", "partition": 2}, sequence=0, **me)
            assert "duplicate" not in other[0], "each partition counts for itself"
            read = await call("read_partition", topic="orders", partition=1)
            assert [message["value"] for message in read["messages"]] == ["a", "b", "c", "d"]

    run(go())


def test_idempotence_x_bad_message(tmp_path: Path) -> None:
    """With a producer id a bad message refuses all, is named, and nothing is appended; without one it fails alone."""

    async def go() -> None:
        async with served(tmp_path) as served_broker:
            call = served_broker.call
            await call("create_topic", name="orders", num_partitions=1, max_message_bytes=10)
            me = await call("init_producer")
            batch = [{"value": text, "partition": 0} for text in ("a", "much too large", "b")]

            with pytest.raises(TooLarge) as caught:
                await call("publish_batch", topic="orders", messages=batch, sequence=0, **me)
            assert caught.value.details["index"] == 1
            assert stored(served_broker.broker, "orders") == []
            del batch[caught.value.details["index"]]
            results = (await call("publish_batch", topic="orders", messages=batch, sequence=0, **me))["results"]
            assert [result["offset"] for result in results] == [0, 1], "without the bad one, the rest goes through"

            batch.insert(1, {"value": "much too large", "partition": 0})
            results = (await call("publish_batch", topic="orders", messages=batch))["results"]
            assert [result.get("code") for result in results] == [None, "too_large", None]
            assert stored(served_broker.broker, "orders") == ["a", "b", "a", "b"]

    run(go())


def test_idempotence_x_bad_message_in_a_block(tmp_path: Path) -> None:
    """The same for a block that a client made."""

    async def go() -> None:
        async with opened(tmp_path) as broker:
            await create(broker, "orders", 1, TopicSettings(max_message_bytes=10))
            me = Producer(await broker.init_producer(), 0, 0)
            topic = broker.topics.named("orders")
            with pytest.raises(TooLarge) as caught:
                broker.publisher.publish(
                    topic, 0, messages("a", "much too large", "b", producer=me), acks=Acks.LEADER, producer=me
                )
            assert caught.value.details["index"] == 1
            assert stored(broker, "orders") == []
            receipt = broker.publisher.publish(topic, 0, messages("a", "b", producer=me), acks=Acks.LEADER, producer=me)
            assert receipt.placed[0][:2] == (2, 0)

    run(go())


def large(*texts: str, producer: Producer) -> memoryview:
    """Messages that lie over several sectors of a disk, so that a power cut can take some of them."""
    return block(
        *(Record(key=text.encode(), value=bytes(700), extension=Extension(producer=producer)) for text in texts)
    )


def keys(broker: Broker) -> list[str]:
    log = broker.topics.named("orders").partition(0).log
    records = log.records(log.start_offset, max_bytes=1 << 20)
    return [(record.key or b"").decode() for record in records]


def test_idempotence_x_torn_tail(tmp_path: Path) -> None:
    """A batch cut in the middle: the retry's overlap is sliced, the rest appended; every message is there once."""

    async def go() -> None:
        disk = PhotographedDisk()
        texts = ["a", "b", "c", "d", "e", "f"]
        async with opened(tmp_path, disk=disk) as broker:
            await create(broker, "orders", 1, TopicSettings(fsync=Fsync.NONE))
            producer_id = await broker.init_producer()
            first, me = Producer(producer_id, 0, 0), Producer(producer_id, 0, 1)
            topic = broker.topics.named("orders")
            receipt = broker.publisher.publish(topic, 0, large("first", producer=first), acks=Acks.ALL, producer=first)
            await receipt.safe()
            disk.begin(tmp_path)
            broker.publisher.publish(topic, 0, large(*texts, producer=me), acks=Acks.LEADER, producer=me)
            receipt.log.sync()
            disk.recording = False
        found = set()
        for when, image in disk.crashed(range(20)):
            async with opened(tmp_path, disk=image) as broker:
                survived = keys(broker)
                assert survived == ["first", *texts][: len(survived)], when
                found.add(len(survived) - 1)
                topic = broker.topics.named("orders")
                receipt = broker.publisher.publish(topic, 0, large(*texts, producer=me), acks=Acks.LEADER, producer=me)
                assert sum(place.messages for place in receipt.placed if place.duplicate) == len(survived) - 1, when
                assert keys(broker) == ["first", *texts], when
        assert {0, 6} <= found
        assert found - {0, 6}, "no power cut left a part of the batch: this shows nothing"

    run(go())


def test_idempotence_x_restart_cleaner(tmp_path: Path) -> None:
    """What is known of a producer outlives its records, also when retention has removed all there were."""

    async def go() -> None:
        me = Producer(1, 0, 0)
        async with opened(tmp_path) as broker:
            await create(broker, "orders", 1, TopicSettings(retention_hours=1))
            assert await broker.init_producer() == 1
            topic = broker.topics.named("orders")
            broker.publisher.publish(topic, 0, messages("a", producer=me), acks=Acks.LEADER, producer=me)
            log = topic.partition(0).log
            log.tick(T0 + HOUR_MS)
            log.sync()
            clean(log, T0 + HOUR_MS + 1)
            assert values(topic.partition(0)) == []
        for _ in range(2):
            async with opened(tmp_path) as broker:
                topic = broker.topics.named("orders")
                again = broker.publisher.publish(topic, 0, messages("a", producer=me), acks=Acks.LEADER, producer=me)
                assert [place.duplicate for place in again.placed] == [True]
                late = Producer(1, 0, 2)
                with pytest.raises(OutOfSequence) as caught:
                    broker.publisher.publish(topic, 0, messages("c", producer=late), acks=Acks.LEADER, producer=late)
                assert caught.value.expected == 1

    run(go())


# --- data log x metadata


def test_data_log_x_metadata(tmp_path: Path) -> None:
    """Power cuts between a topic's record and its files: it never half exists, what was answered holds, and no file
    goes without a tombstone."""

    async def go() -> None:
        disk = PhotographedDisk()
        answered: dict[str, int] = {}
        """What was told, and how many images had been taken by then."""

        def told(what: str) -> None:
            answered[what] = len(disk.images)

        async def put(broker: Broker, name: str, text: str) -> None:
            receipt = broker.publisher.publish(broker.topics.named(name), 0, messages(text), acks=Acks.ALL)
            await receipt.safe()
            told(f"{name}: {text}")

        async with opened(tmp_path, disk=disk) as broker:
            disk.begin(tmp_path)
            await create(broker, "orders", 2)
            told("create orders")
            await put(broker, "orders", "one")
            await broker.topics.add_partitions("orders", 3, T0)
            told("grow orders")
            await create(broker, "bills", 1)
            told("create bills")
            await put(broker, "bills", "two")
            broker.topics.named("orders").partition(0).log.roll()
            await put(broker, "orders", "three")
            begun_deleting = len(disk.images)
            await broker.topics.delete("orders", T0)
            told("delete orders")
            await put(broker, "bills", "four")
            await broker.topics.finish()
            disk.recording = False

        def held(what: str, number: int) -> bool:
            return what in answered and number >= answered[what]

        for when, image in disk.crashed():
            number = int(when.split()[3].rstrip(","))
            files = image.list(f"{tmp_path}/logs")
            async with opened(tmp_path, disk=image) as broker:
                names = open_names(broker.topics)
                if held("create orders", number) and number < begun_deleting:
                    assert "orders" in names, when
                if held("delete orders", number):
                    assert "orders" not in names, when
                if held("create bills", number):
                    assert "bills" in names, when
                for name in names:
                    topic = broker.topics.named(name)
                    assert len(topic.partitions) == topic.meta.partitions, f"{when}: {name} half exists: {topic.slots}"
                    for what in answered:
                        topic_name, _, text = what.partition(": ")
                        if topic_name == name and held(what, number):
                            assert text in stored(broker, name), f"{when}: {what} was answered and is gone"
                if "orders" in names and held("grow orders", number):
                    assert len(broker.topics.named("orders").partitions) == 3, when
                for name in files:
                    known = {*names, *(gone.name for gone in broker.topics._machine.deleted.values())}
                    assert name in known, f"{when}: files of {name}, which nobody knows"
                await broker.topics.finish()
                assert image.list(f"{tmp_path}/logs") == sorted(names), when

    run(go())
