"""A write or an fsync that fails inside a block, under a broker with its doors: what was promised is there, what was
refused is not, and whoever sends it again under the same sequence gets it appended once.
"""

import asyncio
import errno
import os
import random
import resource
import threading
from pathlib import Path
from typing import Any

import pytest

from goqueue import codec
from goqueue.broker.topic import OpenTopic
from goqueue.client.connection import Connection
from goqueue.model.errors import DiskFull, GoQueueError, StorageFailed
from goqueue.model.limits import KIB, MIB
from goqueue.model.publishing import Acks, Durability
from goqueue.model.record import Extension, Producer, Record
from goqueue.server.server import Server, run
from goqueue.wire.blocks import PublishReply, Range
from goqueue.wire.codes import CODES
from tests.chaos.broker_kill import free_doors
from tests.chaos.broker_load import TOPIC, Load, LoadThread, Plan, create_topic, split
from tests.support import loop
from tests.support.broker import HttpClient, running_broker
from tests.support.broker_ledger import Ledger
from tests.support.broker_reading import fetch_all, fetch_records, offline_all
from tests.support.broker_server import copy_as_killed, running_server, settings_for
from tests.support.faulty_disk import FaultyDisk
from tests.support.patience import PATIENCE_S

DISK_FAILED = 74
BLOCK = 20
"""Messages of a block; each has the same size."""


def block(name: str) -> bytearray:
    """Messages that carry their block's name and their place in it."""
    room = Extension(producer=Producer(0, 0, 0))
    return codec.encode(
        [Record(value=f"{name} {number:03d} ".encode().ljust(200, b"."), extension=room) for number in range(BLOCK)]
    )


RECORD_BYTES = len(block("a")) // BLOCK


class Client:
    """One idempotent producer that numbers by hand, so that it can do again exactly what it did."""

    def __init__(self, server: Server, connection: Connection, topic_id: int, producer_id: int) -> None:
        self.server = server
        self.connection = connection
        self.topic_id = topic_id
        self.producer_id = producer_id

    async def publish(self, name: str, sequence: int, *, acks: Acks = Acks.LEADER, partition: int = 0) -> PublishReply:
        producer = Producer(self.producer_id, 0, sequence)
        return await self.connection.publish_block(self.topic_id, partition, block(name), acks=acks, producer=producer)

    async def post(self, name: str, sequence: int) -> Any:
        """The same over HTTP."""
        values = [(record.value or b"").decode() for record in codec.decode(block(name))]
        body = {
            "messages": [{"value": value, "partition": 0} for value in values],
            "producer_id": self.producer_id,
            "epoch": 0,
            "sequence": sequence,
        }
        with HttpClient(self.server.endpoints["http"]) as client:
            return await asyncio.to_thread(client.request, "POST", f"/topics/{TOPIC}/messages", body)

    async def names(self, partition: int = 0) -> list[str]:
        """Which messages can be read, in order."""
        records = await fetch_records(self.connection, self.topic_id, partition)
        assert [record.offset for record in records] == list(range(len(records)))
        return [" ".join((record.value or b"").decode().split(" ")[:2]) for record in records]


async def connect(
    server: Server, *, topic_id: int | None = None, producer_id: int | None = None, fsync: str = "interval"
) -> Client:
    """A new producer and topic, or one from an earlier life."""
    wire = server.endpoints["wire"]
    if topic_id is None:
        topic_id = await create_topic(wire, segment_bytes=64 * KIB, fsync=fsync)
    connection = await Connection.connect(*split(wire))
    if producer_id is None:
        producer_id = int((await connection.ask(CODES["init_producer"]))["producer_id"])
    return Client(server, connection, topic_id, producer_id)


def of(*names: str) -> list[str]:
    """All messages of these blocks."""
    return [f"{name} {number:03d}" for name in names for number in range(BLOCK)]


def active_file(server: Server, partition: int = 0) -> str:
    topic: OpenTopic = server.broker.topics.named(TOPIC)
    return topic.partition(partition).log.segments[-1].key.path


def fail_inside_a_block(disk: FaultyDisk, path: str, after_bytes: int) -> None:
    """From now on one write to this file takes so many bytes, and the next one fails with EIO."""
    writes = 0

    def before(operation: str, target: str) -> None:
        nonlocal writes
        if operation == "write" and target == path:
            writes += 1
            if writes > 1 or not after_bytes:
                disk.hits += 1
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    disk.only, disk.write_limit, disk.before = path, after_bytes, before


# --- a full disk


@pytest.mark.parametrize("room", [0, 10, RECORD_BYTES, 7 * RECORD_BYTES + 100, BLOCK * RECORD_BYTES - 1])
def test_a_full_disk_inside_a_block_refuses_all_of_it_and_a_retry_is_appended_once(tmp_path: Path, room: int) -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        data_dir = tmp_path / "data"
        async with running_server(data_dir, disk) as server:
            client = await connect(server)
            await client.publish("a", 0)
            disk.only, disk.free = active_file(server), room
            with pytest.raises(DiskFull) as refusal:
                await client.publish("b", BLOCK)
            assert refusal.value.retriable
            answer = await client.post("b", BLOCK)
            assert (answer.status, answer.body["code"], answer.body["retriable"]) == (503, "disk_full", True)
            assert int(answer.headers["retry-after"]) > 0
            assert disk.hits >= 2
            assert await client.names() == of("a"), "something of a refused block can be seen"
            assert not server.broker.failed.is_set()
            copy_as_killed(server.broker, tmp_path / "killed now")
            disk.free = None
            again = await client.publish("b", BLOCK)
            assert [(each.first_offset, each.duplicate) for each in again.ranges] == [(BLOCK, False)]
            once_more = await client.post("b", BLOCK)
            assert {result["duplicate"] for result in once_more.body["results"]} == {True}
            assert [result["offset"] for result in once_more.body["results"]] == list(range(BLOCK, 2 * BLOCK))
            assert await client.names() == of("a", "b")
            await client.connection.close()
        async with running_server(data_dir) as server:
            client = await connect(server, topic_id=client.topic_id, producer_id=client.producer_id)
            assert await client.names() == of("a", "b")
            assert (await client.publish("b", BLOCK)).ranges == (again.ranges[0]._replace(duplicate=True),)
            assert (await client.publish("c", 2 * BLOCK)).ranges[0].first_offset == 2 * BLOCK
            await client.connection.close()
        async with running_server(tmp_path / "killed now") as server:
            client = await connect(server, topic_id=client.topic_id, producer_id=client.producer_id)
            assert await client.names() == of("a")
            assert [each.duplicate for each in (await client.publish("b", BLOCK)).ranges] == [False]
            await client.connection.close()

    loop.run(scenario())


def test_a_full_disk_where_a_segment_must_roll_refuses_the_block_and_a_retry_is_appended_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        async with running_server(tmp_path, disk) as server:
            client = await connect(server)
            disk.only, disk.new_file_error = ".log", errno.ENOSPC
            sent: list[str] = []
            while not disk.hits:
                try:
                    await client.publish(f"block-{len(sent)}", BLOCK * len(sent))
                except DiskFull:
                    break
                sent.append(f"block-{len(sent)}")
            assert disk.hits
            assert len(sent) > 2
            assert await client.names() == of(*sent)
            disk.new_file_error = None
            again = await client.publish(f"block-{len(sent)}", BLOCK * len(sent))
            assert [each.duplicate for each in again.ranges] == [False]
            assert await client.names() == of(*sent, f"block-{len(sent)}")
            await client.connection.close()

    loop.run(scenario())


def test_a_disk_that_is_full_now_and_then_costs_producers_nothing_but_time(tmp_path: Path) -> None:
    """Eight of them; each time it is full, in the middle of somebody's block, there is space again a moment later."""

    async def scenario() -> None:
        disk = FaultyDisk()
        plan = Plan(acks=Acks.LEADER, wire_messages=2000, http_messages=1000)
        ledger = Ledger()
        fills = 0

        def before(operation: str, path: str) -> None:
            nonlocal fills
            if operation == "truncate" and disk.hits > fills:  # the refused block is being cut off
                fills = disk.hits
                disk.release(300 * KIB)

        async with running_server(tmp_path, disk) as server:
            wire, http = server.endpoints["wire"], server.endpoints["http"]
            topic_id = await create_topic(wire)
            disk.only, disk.free, disk.before = ".log", 200 * KIB, before
            await Load(plan, ledger, topic_id=topic_id, wire=wire, http=http).run()
            assert fills >= 3, "the disk was hardly ever full: nothing is shown"
            assert ledger.acknowledged == plan.messages
            ledger.check_all(await fetch_all(wire, topic_id))
        ledger.check_all(offline_all(tmp_path, TOPIC, topic_id))

    loop.run(scenario())


# --- a write that fails


@pytest.mark.parametrize("acks", [Acks.LEADER, Acks.ALL], ids=["leader", "all"])
@pytest.mark.parametrize("after_bytes", [0, 10, 3 * RECORD_BYTES, 7 * RECORD_BYTES + 100])
def test_a_write_that_fails_inside_a_block_stops_the_broker_and_a_retry_in_its_next_life_is_appended_once(
    tmp_path: Path, after_bytes: int, acks: Acks
) -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        async with running_server(tmp_path, disk) as server:
            client = await connect(server)
            await client.publish("a", 0, acks=acks)
            await client.publish("other", 0, acks=acks, partition=1)
            fail_inside_a_block(disk, active_file(server), after_bytes)
            with pytest.raises(StorageFailed):
                await client.publish("b", BLOCK, acks=acks)
            assert disk.hits
            assert server.broker.failed.is_set()
            await demand_refusals(client)
            await client.connection.close()
        async with running_server(tmp_path) as server:
            client = await connect(server, topic_id=client.topic_id, producer_id=client.producer_id)
            whole = after_bytes // RECORD_BYTES
            assert await client.names() == of("a") + of("b")[:whole], "a whole record is kept, a torn one is not"
            assert await client.names(1) == of("other")
            reply = await client.publish("b", BLOCK, acks=acks)
            there = [Range(whole, BLOCK, reply.ranges[0].timestamp, True)] if whole else []
            rest = Range(BLOCK - whole, BLOCK + whole, reply.ranges[-1].timestamp, False)
            assert reply.ranges == (*there, rest)
            assert (await client.publish("a", 0, acks=acks)).ranges[0][:2] == (BLOCK, 0)
            assert (await client.publish("c", 2 * BLOCK)).ranges[0].first_offset == 2 * BLOCK
            assert await client.names() == of("a", "b", "c")
            await client.connection.close()

    loop.run(scenario())


async def demand_refusals(client: Client) -> None:
    """Everything that needs the disk is refused, on every partition; what asks how the broker is gets an answer."""
    with pytest.raises(StorageFailed):
        client.server.broker.check()
    for partition in (0, 1):
        with pytest.raises(StorageFailed):
            await client.publish("more", 0, partition=partition)
        with pytest.raises(StorageFailed):
            await client.names(partition)
    with pytest.raises(StorageFailed):
        await client.connection.ask(CODES["init_producer"])
    answer = await client.post("more", 0)
    assert (answer.status, answer.body["code"]) == (503, "storage_failed")
    with HttpClient(client.server.endpoints["http"]) as http:
        for path, status in (("/readyz", 503), ("/livez", 200), (f"/topics/{TOPIC}/messages", 503)):
            assert (await asyncio.to_thread(http.request, "GET", path)).status == status


def test_a_failed_write_ends_the_process_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`run` is the whole of `goqueue serve`, but for the exit code it makes of what this returns."""
    disk = FaultyDisk()
    monkeypatch.setattr("goqueue.storage.store.LocalDisk", lambda: disk)
    refusals: list[GoQueueError] = []

    async def publish(server: Server) -> None:
        client = await connect(server)
        fail_inside_a_block(disk, active_file(server), 500)
        try:
            await client.publish("a", 0)
        except GoQueueError as refusal:
            refusals.append(refusal)

    tasks: list[asyncio.Task[None]] = []
    failure = run(settings_for(tmp_path), lambda server: tasks.append(asyncio.ensure_future(publish(server))))
    assert isinstance(failure, StorageFailed)
    assert [type(refusal) for refusal in refusals] == [StorageFailed]
    assert not (tmp_path / "endpoints.json").exists()


def log_sizes(data_dir: Path) -> list[int]:
    return [path.stat().st_size for path in data_dir.rglob("*.log")]


@pytest.mark.parametrize("acks", [Acks.LEADER, Acks.ALL], ids=["leader", "all"])
def test_a_process_whose_write_fails_under_load_ends_with_74_and_nothing_is_lost_or_doubled(
    tmp_path: Path, acks: Acks
) -> None:
    """A hundred thousand messages. The kernel takes the part of a block that fits under the limit, and no more."""
    plan = Plan(acks=acks)
    ledger = Ledger()
    with running_broker(tmp_path, *free_doors(random.Random())) as broker:
        topic_id = asyncio.run(create_topic(broker.wire, segment_bytes=64 * MIB))
        with LoadThread(Load(plan, ledger, topic_id=topic_id, wire=broker.wire, http=broker.http)):
            assert ledger.wait_for(plan.messages // 3)
            most_bytes = max(log_sizes(broker.data_dir)) + MIB + 1
            resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
            broker.wait_for_end(code=DISK_FAILED)
            in_doubt = ledger.in_doubt
            sizes = log_sizes(broker.data_dir)
            broker.start()
        assert most_bytes in sizes, "no block was written in part: nothing is shown"
        assert in_doubt, "nobody had to send anything again: nothing is shown"
        assert ledger.acknowledged == plan.messages >= 100_000
        found = asyncio.run(fetch_all(broker.wire, topic_id))
        ledger.check_all(found)
        assert sum(map(len, found)) == plan.messages
        broker.stop()
        assert offline_all(broker.data_dir, TOPIC, topic_id) == found


# --- an fsync that fails


@pytest.mark.parametrize(("fsync", "acks"), [("interval", Acks.ALL), ("every", Acks.LEADER)])
def test_nobody_is_told_durable_when_the_fsync_they_wait_for_fails(tmp_path: Path, fsync: str, acks: Acks) -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        held = threading.Event()
        told: list[Durability] = []

        def before(operation: str, path: str) -> None:
            if operation == "sync" and path == active:
                held.wait(PATIENCE_S)
                disk.hits += 1
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)

        async with running_server(tmp_path, disk) as server:
            first = await connect(server, fsync=fsync)
            clients = [first]
            clients += [await connect(server, topic_id=first.topic_id) for _ in range(7)]
            assert (await first.publish("safe", 0, acks=acks)).durability is Durability.DURABLE
            active = active_file(server)
            disk.before = before
            waiting = [
                asyncio.create_task(client.publish(f"block-{at}", BLOCK if at == 0 else 0, acks=acks))
                for at, client in enumerate(clients)
            ]
            log = server.broker.topics.named(TOPIC).partition(0).log
            while log.written.value < BLOCK * (1 + len(clients)):
                await asyncio.sleep(0)
            assert log.durable.value == BLOCK
            assert not any(task.done() for task in waiting)
            held.set()
            for outcome in await asyncio.gather(*waiting, return_exceptions=True):
                if isinstance(outcome, PublishReply):
                    told.append(outcome.durability)
                else:
                    assert isinstance(outcome, StorageFailed)
            assert not told, "somebody was told that a message is durable after its fsync failed"
            assert disk.hits == 1, "an fsync that failed was tried again"
            async with asyncio.timeout(PATIENCE_S):  # who waited for the fsync may hear of it before the broker does
                await server.broker.failed.wait()
            await demand_refusals(first)
            for client in clients:
                await client.connection.close()
        async with running_server(tmp_path) as server:
            for at, old in enumerate(clients):
                client = await connect(server, topic_id=old.topic_id, producer_id=old.producer_id)
                reply = await client.publish(f"block-{at}", BLOCK if at == 0 else 0, acks=acks)
                assert reply.durability is Durability.DURABLE
                await client.connection.close()
            client = await connect(server, topic_id=first.topic_id)
            found = await client.names()
            assert found[:BLOCK] == of("safe")
            assert sorted(found[BLOCK:]) == sorted(of(*(f"block-{at}" for at in range(len(clients)))))
            await client.connection.close()

    loop.run(scenario())
