"""A broker inside the test's process: calls, settings that change under load, deleted topics, damage, the way out."""

import asyncio
import errno
import os
import shutil
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import goqueue
from goqueue import codec
from goqueue.api.operations import BY_NAME
from goqueue.api.service import Service
from goqueue.broker.broker import Broker, BrokerSettings
from goqueue.client.connection import Connection
from goqueue.model.errors import (
    DirectoryLocked,
    InvalidRequest,
    InvalidSetting,
    LogClosed,
    NotBuilt,
    OffsetOutOfRange,
    OutOfSequence,
    Quarantined,
    StaleHandle,
    TooLarge,
    TopicExists,
    Unavailable,
    UnknownDelay,
    UnknownMember,
    UnknownOperation,
    UnknownProducer,
    UnknownTopic,
)
from goqueue.model.record import Record
from goqueue.server.embedded import EmbeddedBroker
from goqueue.telemetry.meters import RequestMeterSet
from tests.support.broker import ENDPOINTS, HttpClient, refusal
from tests.support.broker_server import running_server
from tests.support.faulty_disk import FaultyDisk
from tests.support.loop import run
from tests.support.patience import PATIENCE_S

_HOUR_MS = 3600 * 1000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    with goqueue.embedded(str(tmp_path)) as opened:
        yield opened


def fill(broker: EmbeddedBroker, topic: str, *values: object, **message: object) -> None:
    broker.call("publish_batch", topic=topic, messages=[{"value": f"{value}", **message} for value in values])


def values(broker: EmbeddedBroker, topic: str, partition: int = 0) -> list[str]:
    found: list[str] = []
    offset = 0
    while True:
        page = broker.call("read_partition", topic=topic, partition=partition, offset=offset, limit=1000)
        if page["next_offset"] == offset:
            return found
        found += [message["value"] for message in page["messages"]]
        offset = page["next_offset"]


def logs_of(data_dir: Path, topic: str) -> list[str]:
    """Ids of the topics of this name that have files."""
    return sorted(path.name for path in data_dir.glob(f"logs/{topic}/*"))


# --- calls


def test_a_broker_can_be_part_of_a_program(tmp_path: Path) -> None:
    with goqueue.embedded(str(tmp_path)) as broker:
        assert broker.call("create_topic", name="orders", num_partitions=2)["created"] is True
        result = broker.call("publish", topic="orders", key="k", value="hello", acks="all")
        assert result["durability"] == "durable"
        place = {"topic": "orders", "partition": result["partition"]}
        assert broker.call("read_partition", **place)["messages"][0]["value"] == "hello"
        assert broker.call("list_topics") == {"topics": ["orders"]}
    with goqueue.embedded(str(tmp_path)) as broker:
        assert broker.call("read_partition", **place)["messages"][0]["value"] == "hello"


def test_its_doors_are_open_to_others(broker: EmbeddedBroker, tmp_path: Path) -> None:
    assert broker.endpoints.keys() == {"http", "wire"}
    assert msgspec.json.decode((tmp_path / ENDPOINTS).read_bytes()) == broker.endpoints
    broker.call("create_topic", name="orders")
    with HttpClient(broker.endpoints["http"]) as client:
        assert client.request("GET", "/topics").body == broker.call("list_topics") == {"topics": ["orders"]}


@pytest.mark.parametrize(
    ("operation", "fields", "error"),
    [
        ("create_topic", {"name": "orders"}, TopicExists),
        ("create_topic", {"name": ".."}, InvalidRequest),
        ("create_topic", {"name": "a", "colour": "red"}, InvalidRequest),
        ("create_topic", {"name": "a", "tracing": True}, NotBuilt),
        ("create_topic", {"name": "a", "visibility_timeout": "13h"}, InvalidSetting),
        ("publish", {"topic": "missing", "value": "x"}, UnknownTopic),
        ("publish", {"value": "x"}, InvalidRequest),
        ("publish", {"topic": "orders", "value": "x" * 2_000_000}, TooLarge),
        ("publish", {"topic": "orders", "value": "x", "delay": "soon"}, InvalidRequest),
        ("ack", {"receipt_handle": "nonsense"}, InvalidRequest),
        ("ack", {"receipt_handle": "orders:0:0:1:" + "A" * 32}, StaleHandle),
        ("get_delayed", {"topic": "orders", "partition": 0, "offset": 5}, UnknownDelay),
        ("read_partition", {"topic": "orders", "partition": "0"}, InvalidRequest),
        ("read_partition", {"topic": "orders", "partition": 0, "offset": 5}, OffsetOutOfRange),
        ("subscribe", {}, UnknownOperation),
    ],
)
def test_a_call_that_is_refused_raises(
    broker: EmbeddedBroker, operation: str, fields: dict[str, Any], error: type[Exception]
) -> None:
    broker.call("create_topic", name="orders", num_partitions=1)
    with pytest.raises(error):
        broker.call(operation, **fields)


def test_groups_can_be_used_from_within_the_program(tmp_path: Path) -> None:
    found: list[Any] = []
    with goqueue.embedded(str(tmp_path)) as broker:
        broker.call("create_topic", name="orders", num_partitions=1)
        joined = broker.call("join_group", group="billing", client_id="worker", topics=["orders"], session_timeout="1h")
        me = {"group": "billing", "member_id": joined["member_id"]}
        waiting = threading.Thread(target=lambda: found.append(broker.call("poll", **me, timeout="60s", received=0)))
        waiting.start()
        fill(broker, "orders", "a", "b")
        waiting.join(PATIENCE_S)
        assert [message["value"] for message in found[0]["messages"]][:1] == ["a"]
        rest = broker.call("poll", **me, timeout=0, received=found[0]["poll"])
        assert broker.call("commit", **me, offsets={"orders": {"0": 1}}) == {"committed": True}
        assert len(found[0]["messages"]) + len(rest["messages"]) == 2
        with pytest.raises(UnknownMember):
            broker.call("heartbeat", group="billing", member_id="nobody")
    with goqueue.embedded(str(tmp_path)) as broker:
        assert broker.call("group_offsets", group="billing") == {"offsets": {"orders": {"0": 1}}}
        assert broker.call("heartbeat", **me)["assigned_partitions"] == ["orders-0"], "the program may go on"
        assert [message["value"] for message in broker.call("poll", **me, timeout=0, received=0)["messages"]] == ["b"]
        broker.call("leave_group", **me)
        broker.call("delete_group", group="billing")


def test_closing_answers_a_poll_that_waits(tmp_path: Path) -> None:
    found: list[Any] = []
    with goqueue.embedded(str(tmp_path)) as broker:
        broker.call("create_topic", name="orders", num_partitions=1)
        joined = broker.call("join_group", group="billing", client_id="worker", topics=["orders"])
        asked = {"group": "billing", "member_id": joined["member_id"], "timeout": "60s"}
        waiting = threading.Thread(target=lambda: found.append(broker.call("poll", **asked)))
        waiting.start()
        while not broker.call("rebalance_stats")["waiting_polls"]:
            pass
    waiting.join(PATIENCE_S)
    assert [polled["messages"] for polled in found] == [[]]


def test_a_directory_has_one_broker(broker: EmbeddedBroker, tmp_path: Path) -> None:
    with pytest.raises(DirectoryLocked, match=str(tmp_path)), goqueue.embedded(str(tmp_path)):
        pass
    assert msgspec.json.decode((tmp_path / ENDPOINTS).read_bytes()) == broker.endpoints
    assert broker.call("health") == {"status": "ok"}


def test_a_closed_broker_refuses_and_can_be_closed_again(tmp_path: Path) -> None:
    with goqueue.embedded(str(tmp_path)) as broker:
        broker.close()
        with pytest.raises(LogClosed):
            broker.call("list_topics")
    with pytest.raises(LogClosed):
        goqueue.embedded(str(tmp_path)).call("list_topics")
    assert not (tmp_path / ENDPOINTS).exists()


def test_settings_are_the_flags_of_serve_and_the_environment_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOQUEUE_NODE_ID", "from-outside")
    with goqueue.embedded(str(tmp_path / "one")) as broker:
        assert broker.call("stats")["node_id"] == "node-1"
    with goqueue.embedded(str(tmp_path / "two"), node_id="seven", http="off") as broker:
        assert broker.call("stats")["node_id"] == "seven"
        assert broker.endpoints.keys() == {"wire"}


# --- settings that change while a topic is in use


class Inside:
    """A broker without doors, on a clock of the test's."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._service = Service(broker, requests=RequestMeterSet(doors=(), operations=()), client_defaults={})

    async def call(self, operation: str, **fields: Any) -> Any:
        return msgspec.to_builtins(await BY_NAME[operation].call(self._service, fields))

    async def fill(self, topic: str, *values: object, size: int = 0, **message: object) -> None:
        for value in values:
            await self.call("publish", topic=topic, value=f"{value}".ljust(size, "."), partition=0, **message)

    async def messages(self, topic: str) -> list[dict[str, Any]]:
        earliest = (await self.call("describe_topic", topic=topic))["partition_offsets"]["0"]["earliest"]
        found: list[dict[str, Any]] = []
        offset = earliest
        while True:
            page = await self.call("read_partition", topic=topic, partition=0, offset=offset, limit=1000)
            if page["next_offset"] == offset:
                return found
            found += page["messages"]
            offset = page["next_offset"]

    async def clean(self) -> None:
        """What housekeeping does every half minute, once everything written is sealed."""
        for topic in self.broker.topics.by_id.values():
            for partition in topic.partitions:
                await asyncio.to_thread(partition.log.sync)
        await self.broker._housekeeping.clean()


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000_000

    def __call__(self) -> int:
        return self.now


@asynccontextmanager
async def inside(data_dir: Path, clock: Clock | None = None) -> AsyncIterator[Inside]:
    broker = await Broker.open(BrokerSettings(data_dir=str(data_dir)), clock=clock or Clock())
    try:
        yield Inside(broker)
    finally:
        await broker.close()


def test_fsync_changes_what_the_next_answer_promises(broker: EmbeddedBroker) -> None:
    broker.call("create_topic", name="orders")
    for fsync, durability in (("interval", "written"), ("every", "durable"), ("none", "written")):
        broker.call("change_topic", topic="orders", fsync=fsync)
        assert broker.call("publish", topic="orders", value="x")["durability"] == durability


def test_the_size_of_messages_is_bounded_at_once(broker: EmbeddedBroker) -> None:
    broker.call("create_topic", name="orders")
    broker.call("change_topic", topic="orders", max_message_bytes=10)
    with pytest.raises(TooLarge):
        broker.call("publish", topic="orders", value="x" * 11)
    broker.call("publish", topic="orders", value="x" * 10)
    broker.call("change_topic", topic="orders", max_message_bytes=2_000_000)
    broker.call("publish", topic="orders", value="x" * 2_000_000)


def test_segments_are_of_the_new_size_from_then_on(broker: EmbeddedBroker, tmp_path: Path) -> None:
    broker.call("create_topic", name="orders", num_partitions=1)
    for number in range(60):
        if number == 30:
            assert len(list(tmp_path.glob("logs/orders/*/0/*.log"))) == 1
            broker.call("change_topic", topic="orders", segment_bytes=4096)
        fill(broker, "orders", f"{number}".ljust(1000))
    assert len(list(tmp_path.glob("logs/orders/*/0/*.log"))) > 7
    assert [int(value) for value in values(broker, "orders")] == list(range(60))


def test_retention_by_bytes_takes_effect_at_the_next_cleaning(tmp_path: Path) -> None:
    async def check() -> None:
        async with inside(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=1, segment_bytes=4096)
            await broker.fill("orders", *range(40), size=1000)
            await broker.clean()
            assert len(await broker.messages("orders")) == 40
            changed = await broker.call("change_topic", topic="orders", retention_bytes=8192)
            assert changed["total_messages"] == 40
            await broker.clean()
            described = await broker.call("describe_topic", topic="orders")
            earliest = described["partition_offsets"]["0"]["earliest"]
            assert 0 < described["total_size_bytes"] <= 8192 + 4096
            assert described["partition_offsets"]["0"]["latest"] == 40
            kept = await broker.messages("orders")
            assert [message["offset"] for message in kept] == list(range(earliest, 40))
            with pytest.raises(OffsetOutOfRange) as refused:
                await broker.call("read_partition", topic="orders", partition=0, offset=earliest - 1)
            assert refused.value.details == {"offset": earliest - 1, "earliest": earliest, "latest": 40}
            page = await broker.call("read_partition", topic="orders", partition=0, limit=1)
            assert page["messages"][0]["offset"] == earliest
            await broker.call("change_topic", topic="orders", retention_bytes=None)
            await broker.fill("orders", *range(40, 80), size=1000)
            await broker.clean()
            assert len(await broker.messages("orders")) == 80 - earliest

    run(check())


def test_retention_by_time_takes_effect_at_the_next_cleaning(tmp_path: Path) -> None:
    async def check() -> None:
        clock = Clock()
        async with inside(tmp_path, clock) as broker:
            await broker.call("create_topic", name="orders", num_partitions=1, segment_bytes=4096)
            await broker.fill("orders", *range(20), size=1000)
            clock.now += 2 * _HOUR_MS
            await broker.fill("orders", *range(20, 40), size=1000)
            await broker.clean()
            assert len(await broker.messages("orders")) == 40
            await broker.call("change_topic", topic="orders", retention_hours=1)
            await broker.clean()
            kept = [int(message["value"].rstrip(".")) for message in await broker.messages("orders")]
            assert kept[-20:] == list(range(20, 40))
            assert len(kept) < 25
            await broker.call("change_topic", topic="orders", retention_hours=-1)
            clock.now += 100 * 365 * 24 * _HOUR_MS
            await broker.clean()
            assert len(await broker.messages("orders")) == len(kept)

    run(check())


def test_compaction_can_be_switched_on_and_keeps_the_newest_of_each_key(tmp_path: Path) -> None:
    async def check() -> None:
        clock = Clock()
        async with inside(tmp_path, clock) as broker:
            await broker.call("create_topic", name="orders", num_partitions=1, segment_bytes=4096, retention_hours=1)
            for turn in range(20):
                for key in ("a", "b", "c"):
                    await broker.fill("orders", turn, size=300, key=key)
            await broker.call("publish", topic="orders", partition=0, key="c", tombstone=True)
            await broker.call("change_topic", topic="orders", cleanup_policy="compact")
            clock.now += 2 * _HOUR_MS  # retention does not apply any more
            await broker.fill("orders", *range(20), size=1000, key="last")  # to seal the others
            await broker.clean()
            kept = await broker.messages("orders")
            newest = {message["key"]: message for message in kept}
            assert newest.keys() == {"a", "b", "c", "last"}
            assert [newest[key]["value"] and newest[key]["value"].rstrip(".") for key in "abc"] == ["19", "19", None]
            assert newest["a"]["offset"] == 57
            assert [message["key"] for message in kept].count("a") == 1
            assert len(kept) < 10
            assert (await broker.call("describe_topic", topic="orders"))["partition_offsets"]["0"]["latest"] == 81
            await broker.call("change_topic", topic="orders", cleanup_policy="both")
            await broker.clean()
            assert {message["key"] for message in await broker.messages("orders")} == {"last"}

    run(check())


def test_a_compacted_partition_is_read_to_its_end_page_by_page(tmp_path: Path) -> None:
    async def check() -> None:
        async with inside(tmp_path) as broker:
            await broker.call(
                "create_topic", name="orders", num_partitions=1, segment_bytes=4096, cleanup_policy="compact"
            )
            await broker.fill("orders", "first", key="once")
            await broker.fill("orders", *range(100), size=1000, key="often")
            await broker.clean()
            page = await broker.call("read_partition", topic="orders", partition=0, limit=100)
            assert [message["key"] for message in page["messages"][:2]] == ["once", "often"]
            assert page["messages"][-1]["offset"] == 100
            assert page["next_offset"] == 101

    run(check())


def test_settings_and_what_cleaning_did_outlive_the_broker(tmp_path: Path) -> None:
    async def change() -> Any:
        async with inside(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=1, segment_bytes=4096)
            await broker.fill("orders", *range(40), size=1000)
            await broker.call("change_topic", topic="orders", retention_bytes=8192, fsync="every")
            await broker.clean()
            return await broker.call("describe_topic", topic="orders")

    described = run(change())
    with goqueue.embedded(str(tmp_path)) as broker:
        assert broker.call("describe_topic", topic="orders") == described


def test_producers_are_remembered_beyond_their_cleaned_messages(tmp_path: Path) -> None:
    async def check() -> None:
        async with inside(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=1, segment_bytes=4096, retention_bytes=4096)
            producer_id = (await broker.call("init_producer"))["producer_id"]
            told = {"topic": "orders", "partition": 0, "producer_id": producer_id}
            await broker.call("publish", value="first", sequence=0, **told)
            await broker.fill("orders", *range(40), size=1000)
            await broker.clean()
            described = await broker.call("describe_topic", topic="orders")
            assert described["partition_offsets"]["0"]["earliest"] > 0
            again = await broker.call("publish", value="first", sequence=0, **told)
            assert (again["offset"], again["duplicate"]) == (0, True)
            with pytest.raises(OutOfSequence) as refused:
                await broker.call("publish", value="third", sequence=2, **told)
            assert refused.value.details == {"expected": 1}

    run(check())


# --- deleted topics


def test_a_topic_created_again_at_once_knows_nothing_of_the_old_one(broker: EmbeddedBroker, tmp_path: Path) -> None:
    old_id = broker.call("create_topic", name="orders", num_partitions=2, max_message_bytes=50)["topic_id"]
    producer_id = broker.call("init_producer")["producer_id"]
    told = {"topic": "orders", "partition": 0, "producer_id": producer_id}
    for sequence in range(5):
        broker.call("publish", value="old", sequence=sequence, **told)
    broker.call("delete_topic", topic="orders")
    new_id = broker.call("create_topic", name="orders", num_partitions=1)["topic_id"]
    assert new_id != old_id
    described = broker.call("describe_topic", topic="orders")
    assert (described["partitions"], described["total_messages"]) == (1, 0)
    assert described["config"]["max_message_bytes"] > 50
    assert values(broker, "orders") == []
    with pytest.raises(UnknownProducer):
        broker.call("publish", value="new", sequence=5, **told)
    result = broker.call("publish", value="new", sequence=0, **told)
    assert (result["offset"], result.get("duplicate")) == (0, None)
    assert values(broker, "orders") == ["new"]
    broker.close()  # which waits for what is being removed
    assert logs_of(tmp_path, "orders") == [new_id]


def test_who_holds_the_id_of_a_deleted_topic_is_told(broker: EmbeddedBroker) -> None:
    old_id = int(broker.call("create_topic", name="orders", num_partitions=1)["topic_id"], 16)
    host, port = broker.endpoints["wire"].split(":")

    async def check() -> None:
        block = codec.encode([Record(value=b"x")])
        async with await Connection.connect(host, int(port)) as connection:
            await connection.publish_block(old_id, 0, block)
            waiting = asyncio.ensure_future(connection.fetch_block(old_id, 0, 1, max_wait_ms=60_000))
            await asyncio.to_thread(broker.call, "delete_topic", topic="orders")
            await asyncio.to_thread(broker.call, "create_topic", name="orders", num_partitions=1)
            with pytest.raises((UnknownTopic, Unavailable)):  # it may be told to look again
                await waiting
            with pytest.raises(UnknownTopic):
                await connection.publish_block(old_id, 0, block)
            with pytest.raises(UnknownTopic):
                await connection.fetch_block(old_id, 0, 0)

    run(check())
    assert values(broker, "orders") == []


def test_what_a_kill_left_of_a_deleted_topic_is_removed_by_the_next_start(tmp_path: Path) -> None:
    """A copy of the directory, made while the removal is half done, is what kill -9 leaves."""
    disk = FaultyDisk()
    reached, go_on = threading.Event(), threading.Event()

    def hold_up(operation: str, path: str) -> None:
        if operation == "unlink" and path.endswith("/1/log.state"):
            reached.set()
            assert go_on.wait(PATIENCE_S)

    async def delete_and_copy() -> str:
        async with running_server(tmp_path / "data", disk) as server:

            async def call(operation: str, **fields: Any) -> Any:
                return msgspec.to_builtins(await BY_NAME[operation].call(server.service, fields))

            old = await call("create_topic", name="orders", num_partitions=3)
            for partition in range(3):
                await call("publish", topic="orders", value="old", partition=partition)
            disk.before = hold_up
            await call("delete_topic", topic="orders")
            assert await asyncio.to_thread(reached.wait, 60)
            shutil.copytree(tmp_path / "data", tmp_path / "copy")
            go_on.set()
        topic_id: str = old["topic_id"]
        return topic_id

    old_id = run(delete_and_copy())
    assert logs_of(tmp_path / "data", "orders") == []
    assert logs_of(tmp_path / "copy", "orders") == [old_id]
    with goqueue.embedded(str(tmp_path / "copy")) as broker:
        assert broker.call("list_topics") == {"topics": []}
        new_id = broker.call("create_topic", name="orders", num_partitions=3)["topic_id"]
        fill(broker, "orders", "new", partition=1)
    assert logs_of(tmp_path / "copy", "orders") == [new_id]
    with goqueue.embedded(str(tmp_path / "copy")) as broker:
        assert values(broker, "orders", 1) == ["new"]


def test_files_that_cannot_be_removed_now_are_removed_by_the_next_start(tmp_path: Path) -> None:
    disk = FaultyDisk()

    def refuse(operation: str, path: str) -> None:
        if operation == "unlink" and "/logs/" in path:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES), path)

    async def delete() -> None:
        async with running_server(tmp_path, disk) as server:
            await BY_NAME["create_topic"].call(server.service, {"name": "orders"})
            disk.before = refuse
            await BY_NAME["delete_topic"].call(server.service, {"topic": "orders"})

    run(delete())
    assert len(logs_of(tmp_path, "orders")) == 1
    with goqueue.embedded(str(tmp_path)) as broker:
        assert broker.call("list_topics") == {"topics": []}
    assert logs_of(tmp_path, "orders") == []


# --- damage


def segment_files(data_dir: Path, partition: int) -> list[Path]:
    return sorted(data_dir.glob(f"logs/orders/*/{partition}/*.log"))


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x40
    path.write_bytes(data)


def read_around(broker: EmbeddedBroker) -> tuple[list[int], list[int]]:
    """The values of partition 0 up to offset 30, and the offsets that are damaged."""
    offset = 0
    found: list[int] = []
    damaged: list[int] = []
    while offset < 30:
        try:
            page = broker.call("read_partition", topic="orders", partition=0, offset=offset, limit=1000)
        except Quarantined as error:
            damaged += range(max(offset, error.first), error.next_offset)
            offset = error.next_offset
        else:
            found += [int(message["value"]) for message in page["messages"]]
            offset = page["next_offset"]
    return found, damaged


@pytest.mark.parametrize("which", [0, -1], ids=["a sealed segment", "the active segment"])
def test_a_damaged_range_is_named_and_reading_goes_on_behind_it(tmp_path: Path, which: int) -> None:
    with goqueue.embedded(str(tmp_path)) as broker:
        broker.call("create_topic", name="orders", num_partitions=2, segment_bytes=4096)
        for partition in range(2):
            for number in range(30):
                fill(broker, "orders", f"{number}".ljust(300), partition=partition)
    damaged_file = segment_files(tmp_path, 0)[which]
    flip(damaged_file, damaged_file.stat().st_size // 2)
    with goqueue.embedded(str(tmp_path)) as broker:
        found, damaged = read_around(broker)
        assert len(damaged) == 1
        assert sorted([*found, *damaged]) == list(range(30))
        assert len(values(broker, "orders", 1)) == 30
        with HttpClient(broker.endpoints["http"]) as client:
            path = f"/topics/orders/partitions/0/messages?offset={damaged[0]}"
            details = refusal(client.request("GET", path), 409, "quarantined")["details"]
            assert (details["first"], details["next_offset"]) == (damaged[0], damaged[0] + 1)
            assert client.request("GET", "/readyz").body == {"status": "ok"}
        assert broker.call("publish", topic="orders", value="30", partition=0)["offset"] == 30
    with goqueue.embedded(str(tmp_path)) as broker:
        page = broker.call("read_partition", topic="orders", partition=0, offset=30)
        assert [message["value"] for message in page["messages"]] == ["30"]


@pytest.mark.parametrize("how", ["emptied", "overwritten", "a byte"])
def test_a_partition_without_its_state_is_unavailable_and_the_others_work(tmp_path: Path, how: str) -> None:
    with goqueue.embedded(str(tmp_path)) as broker:
        broker.call("create_topic", name="orders", num_partitions=3)
        broker.call("create_topic", name="others", num_partitions=1)
        for partition in range(3):
            fill(broker, "orders", "x", "y", partition=partition)
    state = next(tmp_path.glob("logs/orders/*/1/log.state"))
    if how == "a byte":
        flip(state, 20)
    else:
        state.write_bytes(b"" if how == "emptied" else b"\xff" * state.stat().st_size)
    with goqueue.embedded(str(tmp_path)) as broker, HttpClient(broker.endpoints["http"]) as client:
        described = client.request("GET", "/topics/orders").body
        assert described["partitions"] == 3
        assert described["partition_offsets"].keys() == {"0", "2"}
        assert described["unavailable"].keys() == {"1"}
        assert described["total_messages"] == 4
        refusal(client.request("GET", "/topics/orders/partitions/1/messages"), 503, "damaged_state")
        message = {"value": "z", "partition": 1}
        refusal(client.request("POST", "/topics/orders/publish", message), 503, "damaged_state")
        for partition in (0, 2):
            message["partition"] = partition
            assert client.request("POST", "/topics/orders/publish", message).status == 200
            assert values(broker, "orders", partition) == ["x", "y", "z"]
        batch = [{"value": "b", "partition": partition} for partition in range(3)]
        results = client.request("POST", "/topics/orders/messages", {"messages": batch}).body["results"]
        assert [result.get("code") for result in results] == [None, "damaged_state", None]
        assert client.request("POST", "/topics/others/publish", {"value": "x"}).status == 200
        told = client.request("GET", "/readyz?verbose").body
        assert told["status"] == "ok"
        assert told["checks"]["partitions"].startswith("1 ")
        assert client.request("GET", "/metrics").status == 200
        assert client.request("DELETE", "/topics/orders").status == 200
        assert client.request("GET", "/readyz?verbose").body["checks"]["partitions"] == "ok"
    assert logs_of(tmp_path, "orders") == []


# --- the way in and the way out


def test_no_endpoints_are_named_while_the_broker_recovers(tmp_path: Path) -> None:
    with goqueue.embedded(str(tmp_path)) as broker:
        broker.call("create_topic", name="orders")
        fill(broker, "orders", *range(10))
    (tmp_path / ENDPOINTS).write_bytes(b'{"http":"127.0.0.1:1"}')  # as kill -9 leaves it
    disk = FaultyDisk()
    seen: list[str] = []

    def look(operation: str, path: str) -> None:
        if not ready and "/logs/" in path and (tmp_path / ENDPOINTS).exists():
            seen.append(path)

    disk.before = look
    ready: list[bool] = []

    async def start() -> None:
        async with running_server(tmp_path, disk) as server:
            ready.append(True)
            assert msgspec.json.decode((tmp_path / ENDPOINTS).read_bytes()) == server.endpoints

    run(start())
    assert seen == []


def test_a_broker_that_stops_says_so_and_takes_no_new_work(tmp_path: Path) -> None:
    async def check() -> None:
        async with running_server(tmp_path) as server:
            await BY_NAME["create_topic"].call(server.service, {"name": "orders"})
            server.broker.drain()
            with HttpClient(server.endpoints["http"]) as client:

                async def ask(method: str, path: str, body: object = None) -> Any:
                    return await asyncio.to_thread(client.request, method, path, body)

                for path in ("/readyz", "/healthz", "/health", "/admin/health"):
                    answer = await ask("GET", path)
                    assert (answer.status, answer.body) == (503, {"status": "draining"})
                assert (await ask("GET", "/livez")).status == 200
                assert (await ask("GET", "/metrics")).status == 200
                assert (await ask("GET", "/admin/cluster")).body["nodes"][0]["state"] == "draining"
                for method, path, body in (
                    ("POST", "/topics/orders/publish", {"value": "x"}),
                    ("GET", "/topics/orders/messages", None),
                    ("DELETE", "/topics/orders", None),
                ):
                    answer = await ask(method, path, body)
                    assert refusal(answer, 503, "draining")["retriable"] is True
                    assert answer.headers["retry-after"] == "1"

    run(check())


def test_a_poll_that_was_interrupted_takes_no_messages_with_it(tmp_path: Path) -> None:
    with goqueue.embedded(str(tmp_path / "data")) as broker:
        broker.call("create_topic", name="orders", num_partitions=1)
        member = broker.call("join_group", group="billing", client_id="worker", topics=["orders"])["member_id"]
        broker.call("poll", group="billing", member_id=member, timeout=0)
        interrupt = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
        try:
            interrupt.start()
            with pytest.raises(KeyboardInterrupt):
                broker.call("poll", group="billing", member_id=member, timeout="30s")
            interrupt.join()
        finally:
            signal.signal(signal.SIGINT, before)
        for value in ("first", "second"):
            broker.call("publish", topic="orders", value=value)
        found: list[str] = []
        while len(found) < 2:
            polled = broker.call("poll", group="billing", member_id=member, timeout="5s")
            found += [message["value"] for message in polled["messages"]]
        assert found == ["first", "second"]
