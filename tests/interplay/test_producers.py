"""Where idempotent producers meet other features, a test per row of the interplay table, named after the row."""

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import goqueue
from goqueue import codec
from goqueue.broker.broker import Broker, BrokerSettings
from goqueue.broker.partition import Partition, Placed
from goqueue.broker.topic import OpenTopic
from goqueue.model.errors import GoQueueError, InvalidRequest, OutOfSequence
from goqueue.model.limits import KIB
from goqueue.model.publishing import Acks
from goqueue.model.record import Extension, Producer, Record
from goqueue.model.settings import Fsync
from goqueue.model.topic import CleanupPolicy, TopicSettings
from goqueue.server.embedded import EmbeddedBroker
from goqueue.storage.cleaner import clean
from tests.support.broker_server import copy_as_killed
from tests.support.loop import run
from tests.unit.storage.logs import drop_companions

T0 = 1_700_000_000_000
HOUR = 3600 * 1000
BATCH = 20
"""Messages of a batch; each has the same size."""
NEVER_SYNCED = TopicSettings(segment_bytes=64 * KIB, fsync=Fsync.NONE)


class Clock:
    def __init__(self) -> None:
        self.now = T0

    def __call__(self) -> int:
        return self.now


def batch(name: str, count: int = BATCH) -> list[Record]:
    """Messages that carry their batch's name and their place in it, each with a key of its own."""
    room = Extension(producer=Producer(0, 0, 0))
    return [
        Record(
            key=f"key {number:03d}".encode(), value=f"{name} {number:03d} ".encode().ljust(100, b"."), extension=room
        )
        for number in range(count)
    ]


RECORD_BYTES = len(codec.encode(batch("a"))) // BATCH


def of(*names: str) -> list[str]:
    return [f"{name} {number:03d}" for name in names for number in range(BATCH)]


def names(partition: Partition) -> list[str]:
    """Which messages are there, in order."""
    found = []
    offset = partition.log.start_offset
    while offset < partition.log.end_offset:
        chunk = partition.log.read(offset, max_bytes=1 << 20)
        found += [" ".join((record.value or b"").decode().split(" ")[:2]) for record in codec.decode(chunk.data)]
        offset = chunk.next_offset
    return found


class Scene:
    """A broker with one topic of one partition."""

    def __init__(self, broker: Broker, topic: OpenTopic) -> None:
        self.broker = broker
        self.topic = topic

    @property
    def partition(self) -> Partition:
        return self.topic.partition(0)

    def publish(self, producer_id: int, sequence: int, records: Sequence[Record], epoch: int = 0) -> list[Placed]:
        block = memoryview(codec.encode(records))
        producer = Producer(producer_id, epoch, sequence)
        receipt = self.broker.publisher.publish(self.topic, 0, block, acks=Acks.LEADER, producer=producer)
        return list(receipt.placed)

    def expected(self, producer_id: int) -> int:
        """The sequence that comes next, as the broker says it when a gap is refused."""
        with pytest.raises(OutOfSequence) as refusal:
            self.publish(producer_id, 2**29, batch("gap"))
        return refusal.value.expected


@asynccontextmanager
async def scene(
    path: Path, settings: TopicSettings = NEVER_SYNCED, *, clock: Clock | None = None
) -> AsyncIterator[Scene]:
    """The next life of the broker in this directory, or the first one."""
    broker = await Broker.open(BrokerSettings(data_dir=str(path)), clock=clock or Clock())
    try:
        if "topic" not in broker.topics.by_name:
            await broker.topics.create("topic", 1, settings, broker.clock())
        yield Scene(broker, broker.topics.named("topic"))
    finally:
        await broker.close()


def in_copy(path: Path, copy: Path, file: str) -> str:
    return str(copy / Path(file).relative_to(path))


def spots(placed: Sequence[Placed]) -> list[tuple[int, int, bool]]:
    return [(each.messages, each.first_offset, each.duplicate) for each in placed]


# --- torn tail


@pytest.mark.parametrize("extra_bytes", [0, 1, RECORD_BYTES - 1])
@pytest.mark.parametrize("kept", [0, 1, 7, BATCH - 1])
def test_idempotence_x_torn_tail(tmp_path: Path, kept: int, extra_bytes: int) -> None:
    """A batch cut in the middle: the retry's overlap is sliced, the rest appended."""

    async def play() -> None:
        path, copy = tmp_path / "data", tmp_path / "killed"
        async with scene(path) as before:
            one, other = [await before.broker.init_producer() for _ in range(2)]
            before.publish(one, 0, batch("a"))
            before.publish(other, 0, batch("b"))
            before.publish(one, BATCH, batch("torn"))
            file = before.partition.log.segments[-1].key.path
            copy_as_killed(before.broker, copy)
        os.truncate(in_copy(path, copy, file), (2 * BATCH + kept) * RECORD_BYTES + extra_bytes)
        async with scene(copy) as after:
            assert names(after.partition) == of("a", "b") + of("torn")[:kept]
            assert after.expected(one) == BATCH + kept
            overlap = [(kept, 2 * BATCH, True)] if kept else []
            placed = after.publish(one, BATCH, batch("torn"))
            assert spots(placed) == [*overlap, (BATCH - kept, 2 * BATCH + kept, False)]
            again = after.publish(one, BATCH, batch("torn"))
            assert sum(each.messages for each in again) == BATCH
            assert all(each.duplicate for each in again)
            assert spots(after.publish(other, 0, batch("b"))) == [(BATCH, BATCH, True)]
            assert spots(after.publish(one, 2 * BATCH, batch("c"))) == [(BATCH, 3 * BATCH, False)]
            assert names(after.partition) == of("a", "b", "torn", "c")
        async with scene(copy) as later:
            assert names(later.partition) == of("a", "b", "torn", "c")
            assert later.expected(one) == 3 * BATCH

    run(play())


def test_a_tail_torn_over_several_batches_is_filled_up_in_order(tmp_path: Path) -> None:
    """The later batch is refused until the earlier one has come again: no gap, whoever is first."""

    async def play() -> None:
        path, copy = tmp_path / "data", tmp_path / "killed"
        async with scene(path) as before:
            one = await before.broker.init_producer()
            for at, name in enumerate("abc"):
                before.publish(one, at * BATCH, batch(name))
            file = before.partition.log.segments[-1].key.path
            copy_as_killed(before.broker, copy)
        os.truncate(in_copy(path, copy, file), (BATCH + 5) * RECORD_BYTES + 9)
        async with scene(copy) as after:
            assert names(after.partition) == of("a") + of("b")[:5]
            with pytest.raises(OutOfSequence) as refusal:
                after.publish(one, 2 * BATCH, batch("c"))
            assert refusal.value.expected == BATCH + 5
            assert spots(after.publish(one, BATCH, batch("b"))) == [(5, BATCH, True), (BATCH - 5, BATCH + 5, False)]
            assert spots(after.publish(one, 2 * BATCH, batch("c"))) == [(BATCH, 2 * BATCH, False)]
            assert names(after.partition) == of("a", "b", "c")

    run(play())


# --- restart


@pytest.mark.parametrize("companions", ["kept", "deleted"])
@pytest.mark.parametrize("ending", ["killed", "stopped"])
def test_idempotence_x_restart(tmp_path: Path, ending: str, companions: str) -> None:
    """What the next life finds out from the log is what this one had learned: the same table, the same answers."""

    async def play() -> None:
        path, copy = tmp_path / "data", tmp_path / "killed"
        settings = TopicSettings(segment_bytes=8 * KIB)
        sent: dict[int, list[tuple[int, list[Record]]]] = {}
        async with scene(path, settings) as before:
            producers = [await before.broker.init_producer() for _ in range(8)]
            for turn in range(60):
                producer_id = producers[turn * turn % 7 if turn < 50 else 7]
                batches = sent.setdefault(producer_id, [])
                first = sum(len(records) for _, records in batches)
                records = batch(f"{producer_id}-{turn}", 1 + turn * 5 % 17)
                before.publish(producer_id, first, records)
                batches.append((first, records))
            assert len(before.partition.log.segments) > 5
            live = before.partition.producers.copy()
            found = names(before.partition)
            directory = before.partition.log.directory
            copy_as_killed(before.broker, copy)
        data = copy if ending == "killed" else path
        if companions == "deleted":
            drop_companions(in_copy(path, data, directory))
        async with scene(data) as after:
            assert after.partition.producers == live
            for producer_id, batches in sent.items():
                for first, records in batches[-5:]:
                    assert all(each.duplicate for each in after.publish(producer_id, first, records))
                assert after.expected(producer_id) == sum(len(records) for _, records in batches)
            assert names(after.partition) == found

    run(play())


# --- cleaner


@pytest.mark.parametrize("ending", ["killed", "stopped"])
@pytest.mark.parametrize("policy", [CleanupPolicy.DELETE, CleanupPolicy.COMPACT])
def test_idempotence_x_restart_and_cleaner(tmp_path: Path, policy: CleanupPolicy, ending: str) -> None:
    """Producer states are in the segment views; not lost when their records are cleaned."""

    async def play() -> None:
        path, copy = tmp_path / "data", tmp_path / "killed"
        clock = Clock()
        settings = TopicSettings(segment_bytes=4 * KIB, cleanup_policy=policy, retention_hours=1)
        async with scene(path, settings, clock=clock) as before:
            one, other = [await before.broker.init_producer() for _ in range(2)]
            before.publish(one, 0, batch("a"))
            before.publish(one, BATCH, batch("b"))
            clock.now += 2 * HOUR
            for turn in range(12):
                before.publish(other, turn * BATCH, batch(f"other-{turn}"))
            log = before.partition.log
            log.sync()
            report = clean(log, clock.now)
            assert report.removed_records
            assert not {name.split(" ")[0] for name in names(before.partition)} & {"a", "b"}
            kept = names(before.partition)
            recognised = spots(before.publish(one, BATCH, batch("b")))
            assert recognised == [(BATCH, BATCH, True)]
            copy_as_killed(before.broker, copy)
        async with scene(copy if ending == "killed" else path, clock=clock) as after:
            assert names(after.partition) == kept
            assert spots(after.publish(one, BATCH, batch("b"))) == recognised
            assert spots(after.publish(one, 0, batch("a") + batch("b"))) == [(2 * BATCH, 0, True)]
            assert after.expected(one) == 2 * BATCH
            assert names(after.partition) == kept, "something that was cleaned came back"
            end = after.partition.log.end_offset
            assert spots(after.publish(one, 2 * BATCH, batch("c"))) == [(BATCH, end, False)]

    run(play())


# --- HTTP


def results(broker: EmbeddedBroker, messages: Sequence[dict[str, Any]], **fields: Any) -> list[dict[str, Any]]:
    """What each message was answered; the operation is the one HTTP calls."""
    found: list[dict[str, Any]] = broker.call("publish_batch", topic="topic", messages=list(messages), **fields)[
        "results"
    ]
    return found


def contents(broker: EmbeddedBroker, partition: int = 0) -> list[str]:
    found = broker.call("read_partition", topic="topic", partition=partition)["messages"]
    return [message["value"] for message in found]


def to(partition: int, *values: str) -> list[dict[str, Any]]:
    return [{"value": value, "partition": partition} for value in values]


def test_idempotence_x_http(tmp_path: Path) -> None:
    """With `producer_id`, a request names one `partition` and the first `sequence` of its messages."""
    with goqueue.embedded(str(tmp_path)) as broker:
        broker.call("create_topic", name="topic")
        me = {"producer_id": broker.call("init_producer")["producer_id"], "epoch": 0}
        assert [each["offset"] for each in results(broker, to(0, "a", "b"), **me, sequence=0)] == [0, 1]
        overlapping = results(broker, to(0, "a", "b", "c"), **me, sequence=0)
        assert [(each["offset"], each.get("duplicate", False)) for each in overlapping] == [
            (0, True),
            (1, True),
            (2, False),
        ]
        assert [each["offset"] for each in results(broker, to(1, "other"), **me, sequence=0)] == [0]
        single = {"topic": "topic", "value": "d", "partition": 0, **me, "sequence": 3}
        assert [broker.call("publish", **single).get("duplicate", False) for _ in range(2)] == [False, True]
        for wrong in (to(0, "x") + to(1, "y"), [{"value": "x"}], [*to(0, "x"), {"value": "y"}]):
            with pytest.raises(InvalidRequest, match="partition"):
                results(broker, wrong, **me, sequence=4)
        with pytest.raises(OutOfSequence):
            results(broker, to(0, "f"), **me, sequence=5)
        assert (contents(broker, 0), contents(broker, 1)) == (["a", "b", "c", "d"], ["other"])


# --- a bad message

BAD_MESSAGES: dict[str, dict[str, Any]] = {
    "too large": {"value": "x" * 101},
    "not base64": {"value": "!", "encoding": "base64"},
    "header not text": {"value": "x", "headers": {"name": "\ud800"}},
}


@pytest.mark.parametrize("bad", BAD_MESSAGES.values(), ids=BAD_MESSAGES)
def test_idempotence_x_bad_message(tmp_path: Path, bad: dict[str, Any]) -> None:
    """With a producer id the request is refused whole, naming the index; without one a bad message fails alone."""
    with goqueue.embedded(str(tmp_path)) as broker:
        broker.call("create_topic", name="topic", max_message_bytes=100)
        me = {"producer_id": broker.call("init_producer")["producer_id"], "epoch": 0}
        messages = [*to(0, "a", "b"), {**bad, "partition": 0}, *to(0, "c")]
        with pytest.raises(GoQueueError) as refusal:
            results(broker, messages, **me, sequence=0)
        assert not refusal.value.retriable
        assert refusal.value.details["index"] == 2
        assert contents(broker) == [], "something of a refused request is there"
        del messages[refusal.value.details["index"]]
        assert [each["offset"] for each in results(broker, messages, **me, sequence=0)] == [0, 1, 2]
        assert [each["offset"] for each in results(broker, to(0, "d"), **me, sequence=3)] == [3]

        alone = results(broker, [*to(0, "e"), {**bad, "partition": 0}, *to(0, "f")])
        assert ["error" in each for each in alone] == [False, True, False]
        assert contents(broker) == ["a", "b", "c", "d", "e", "f"]


def test_a_bad_record_in_a_block_of_a_producer_refuses_the_block_by_its_index(tmp_path: Path) -> None:
    async def play() -> None:
        async with scene(tmp_path / "data") as now:
            one = await now.broker.init_producer()
            records = batch("a")
            records[3] = Record(value=bytes(2 << 20), extension=records[3].extension)
            with pytest.raises(GoQueueError) as refusal:
                now.publish(one, 0, records)
            assert refusal.value.details["index"] == 3
            assert names(now.partition) == []
            del records[3]
            assert spots(now.publish(one, 0, records)) == [(BATCH - 1, 0, False)]

    run(play())
