"""The public producer: what becomes of messages, with a real broker; of batches, with one that has faults.

Waits here are for something that happens: a receipt, a flush, a request that came in.
"""

import asyncio
import gc
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from goqueue import codec
from goqueue.client import early, routes, sending
from goqueue.client import producer as publishing
from goqueue.client.client import AsyncClient
from goqueue.client.connection import CLOSE_TIMEOUT_S, Connection
from goqueue.client.line import WINDOW
from goqueue.client.producer import AsyncProducer
from goqueue.client.receipts import Outcome, Receipt
from goqueue.codec.partitioning import partition_of
from goqueue.model import limits
from goqueue.model.errors import (
    BufferFull,
    Busy,
    GoQueueError,
    InvalidRecord,
    InvalidRequest,
    ProducerFenced,
    RequestTimeout,
    TooLarge,
    Unavailable,
    UnknownPartition,
    UnknownTopic,
)
from goqueue.model.names import message_id
from goqueue.model.publishing import Acks
from goqueue.model.record import Lane, Record
from goqueue.wire import blocks, shapes
from goqueue.wire.blocks import PublishReply, PublishRequest
from goqueue.wire.codes import CODES, PUBLISH_BLOCK
from tests.support.broker_server import running_server
from tests.support.loop import run
from tests.support.moved_time import run_timed, when_late
from tests.support.patience import PATIENCE_S
from tests.unit.client.fake_broker import HOST, Fault, Peer, SequenceBroker, serving
from tests.unit.client.watched import watch

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
NEW_YEAR_MS = 1_767_225_600_000


# ---------------------------------------------------------------- with a real broker


class Stage:
    """A broker, a client of it, and what its logs hold."""

    def __init__(self, client: AsyncClient, connection: Connection) -> None:
        self.client = client
        self._connection = connection

    async def records(self, topic: str = "orders") -> list[list[Record]]:
        """Of every partition."""
        found = []
        described = await self.client.describe_topic(topic)
        for partition in range(described.partitions):
            fetched = await self._connection.fetch_block(int(described.topic_id, 16), partition, 0, max_bytes=1 << 25)
            found.append(codec.decode(fetched.block))
        return found

    async def values(self, topic: str = "orders") -> list[list[bytes | None]]:
        return [[record.value for record in partition] for partition in await self.records(topic)]

    async def all_values(self, topic: str = "orders") -> list[bytes | None]:
        return [value for partition in await self.values(topic) for value in partition]


@asynccontextmanager
async def broker_at(path: Path, *, partitions: int = 1, **settings: Any) -> AsyncIterator[Stage]:
    async with running_server(path) as server, AsyncClient(server.endpoints["wire"]) as client:
        host, _, port = server.endpoints["wire"].rpartition(":")
        async with await Connection.connect(host, int(port)) as connection:
            await client.create_topic("orders", partitions=partitions, **settings)
            yield Stage(client, connection)


def test_a_receipt_says_where_the_message_is(tmp_path: Path) -> None:
    async def go() -> None:
        async with broker_at(tmp_path) as stage, stage.client.producer() as producer:
            first = await producer.send("orders", b"a")
            second = await producer.send("orders", b"b")
            assert (first.topic, first.partition, first.offset, first.duplicate) == ("orders", 0, 0, False)
            assert (second.offset, second.durability) == (1, "written")
            assert second.message_id == message_id("orders", 0, 1)
            (records,) = await stage.records()
            assert [record.timestamp for record in records] == [first.timestamp, second.timestamp]

    run(go())


def test_what_a_message_is_made_of_is_in_its_record(tmp_path: Path) -> None:
    async def go() -> None:
        async with broker_at(tmp_path) as stage, stage.client.producer() as producer:
            headers: dict[str, str | bytes] = {"a": "1", "b": b"\xff"}
            await producer.send("orders", "käse", key="k", headers=headers)
            await producer.send("orders", bytearray(b"v"), key=memoryview(b"k"), headers=[("a", b""), ("a", "2")])
            await producer.send("orders", None, key=b"k")
            await producer.send("orders", b"", key=b"")
            ((text, pairs, tombstone, empty),) = await stage.records()
            assert (text.value, text.key, text.headers) == ("käse".encode(), b"k", (("a", b"1"), ("b", b"\xff")))
            assert (pairs.value, pairs.key, pairs.headers) == (b"v", b"k", (("a", b""), ("a", b"2")))
            assert (tombstone.value, tombstone.key) == (None, b"k")
            assert (empty.value, empty.key) == (b"", b"")

    run(go())


def test_a_priority_is_a_name_or_a_number(tmp_path: Path) -> None:
    async def go() -> None:
        async with broker_at(tmp_path) as stage, stage.client.producer() as producer:
            await producer.send("orders", b"")
            for priority in [*(lane.name.lower() for lane in Lane), *map(int, Lane), *Lane]:
                await producer.send("orders", b"", priority=priority)
            (records,) = await stage.records()
            assert [record.priority for record in records] == [Lane.NORMAL, *Lane, *Lane, *Lane]

    run(go())


def test_times_are_in_the_record_and_relative_ones_are_the_brokers_to_resolve(tmp_path: Path) -> None:
    async def go() -> None:
        async with broker_at(tmp_path) as stage, stage.client.producer() as producer:
            receipts = [
                await producer.send("orders", b"", delay=1.5),
                await producer.send("orders", b"", delay=0),
                await producer.send("orders", b"", deliver_at=NEW_YEAR, ttl=2),
                await producer.send("orders", b"", deliver_at="2100-01-01T00:00:00Z", ttl=2),
                await producer.send("orders", b"", ttl=2.5, event_time=NEW_YEAR_MS),
                await producer.send("orders", b"", event_time=NEW_YEAR, headers={"a": "b"}),
            ]
            (records,) = await stage.records()
            found = [record.extension for record in records]
            appended = [receipt.timestamp or 0 for receipt in receipts]
            future = 4_102_444_800_000
            assert [each and (each.deliver_at, each.expires_at, each.event_time) for each in found] == [
                (appended[0] + 1500, None, None),
                (None, None, None),
                (NEW_YEAR_MS, appended[2] + 2000, None),
                (future, future + 2000, None),
                (None, appended[4] + 2500, NEW_YEAR_MS),
                (None, None, NEW_YEAR_MS),
            ]

    run(go())


@pytest.mark.parametrize("known", [True, False], ids=["known", "not looked up yet"])
def test_what_cannot_be_a_message_is_refused_and_nothing_is_published(tmp_path: Path, known: bool) -> None:
    refused: list[tuple[type[GoQueueError], str, dict[str, Any]]] = [
        (InvalidRequest, "value is 5; it is bytes or text, not int", {"value": 5}),
        (InvalidRequest, "key is .*bytes or text, not list", {"value": b"", "key": []}),
        (InvalidRequest, "UTF-8", {"value": "\ud800"}),
        (InvalidRequest, "bytes or text, not NoneType", {"value": b"", "headers": {"a": None}}),
        (InvalidRequest, "name of a header is b'a'; it is text", {"value": b"", "headers": {b"a": b""}}),
        (InvalidRequest, "pairs of a name", {"value": b"", "headers": ["name"]}),
        (InvalidRequest, "pairs of a name", {"value": b"", "headers": 5}),
        (InvalidRequest, "priority is .*; it is one of", {"value": b"", "priority": "urgent"}),
        (InvalidRequest, "priority is .*; it is one of", {"value": b"", "priority": 5}),
        (InvalidRequest, "priority is .*; it is one of", {"value": b"", "priority": []}),
        (InvalidRequest, "not both", {"value": b"", "delay": 1, "deliver_at": NEW_YEAR}),
        (InvalidRequest, "delay is -1; it is from 0s", {"value": b"", "delay": -1}),
        (InvalidRequest, "delay is nan; it is seconds", {"value": b"", "delay": float("nan")}),
        (InvalidRequest, "delay: 'soon' is no duration", {"value": b"", "delay": "soon"}),
        (InvalidRequest, r"ttl is \[\]; it is seconds", {"value": b"", "ttl": []}),
        (InvalidRequest, "ttl is .*; it is from 0s", {"value": b"", "ttl": 1e12}),
        (InvalidRequest, "partition is .*; it is a whole number", {"value": b"", "partition": "0"}),
        (InvalidRequest, "partition is .*; it is a whole number", {"value": b"", "partition": 0.0}),
        (InvalidRequest, "partition is .*; it is a whole number", {"value": b"", "partition": True}),
        (InvalidRequest, "no time zone", {"value": b"", "deliver_at": datetime(2026, 1, 1)}),
        (InvalidRequest, "whole number", {"value": b"", "deliver_at": 1e12}),
        (InvalidRequest, "between the years", {"value": b"", "deliver_at": -5000}),
        (InvalidRequest, "between the years", {"value": b"", "event_time": 2**62}),
    ]

    async def go() -> None:
        async with broker_at(tmp_path) as stage, stage.client.producer() as producer:
            published = []
            if known:
                published.append((await producer.send("orders", b"first")).offset)
            for kind, match, message in refused:
                with pytest.raises(kind, match=match):
                    await producer.send("orders", **message)
                with pytest.raises(kind, match=match):
                    producer.enqueue("orders", **message)
            await producer.flush()
            assert producer.sender.accumulator.buffers.held == 0
            assert (await producer.send("orders", b"next")).offset == len(published)

    run(go())


@pytest.mark.parametrize("known", [True, False], ids=["known", "not looked up yet"])
def test_what_breaks_a_limit_of_records_or_names_no_partition_is_refused_alone(tmp_path: Path, known: bool) -> None:
    refused: list[tuple[type[GoQueueError], dict[str, Any]]] = [
        (InvalidRecord, {"key": bytes(limits.MAX_KEY_BYTES + 1)}),
        (InvalidRecord, {"headers": {"a": bytes(limits.MAX_HEADERS_BYTES)}}),
        (UnknownPartition, {"partition": 2}),
        (UnknownPartition, {"partition": -1}),
    ]

    async def go() -> None:
        async with broker_at(tmp_path, partitions=2) as stage:
            async with stage.client.producer() as producer:
                if known:
                    await producer.prepare("orders")
                outcomes = await asyncio.gather(
                    producer.send("orders", b"a", key=b"k"),
                    *(producer.send("orders", b"", **message) for _, message in refused),
                    producer.send("orders", b"b", key=b"k"),
                    return_exceptions=True,
                )
                assert [type(each) for each in outcomes] == [Receipt, *(kind for kind, _ in refused), Receipt]
            assert await stage.all_values() == [b"a", b"b"]

    run(go())


def test_a_key_has_the_partition_that_the_broker_gives_it(tmp_path: Path) -> None:
    async def go() -> None:
        async with broker_at(tmp_path, partitions=5) as stage, stage.client.producer() as producer:
            keys = [f"key{number}" for number in range(40)]
            receipts = await asyncio.gather(*(producer.send("orders", b"", key=key) for key in keys))
            assert [each.partition for each in receipts] == [partition_of(key.encode(), 5) for key in keys]
            theirs = await stage.client.call(
                "publish_batch", topic="orders", messages=[{"value": "", "key": key} for key in keys]
            )
            assert [each["partition"] for each in theirs["results"]] == [each.partition for each in receipts]
            assert (await producer.send("orders", b"", key=b"key0", partition=3)).partition == 3

    run(go())


def test_messages_without_a_key_go_round_batch_by_batch(tmp_path: Path) -> None:
    async def go() -> None:
        async with broker_at(tmp_path, partitions=3) as stage:
            async with stage.client.producer() as producer:
                singles = [(await producer.send("orders", b"")).partition for _ in range(6)]
                assert sorted(singles[:3]) == sorted(singles[3:]) == [0, 1, 2]
            async with stage.client.producer(batch_messages=4) as producer:
                receipts = await asyncio.gather(*(producer.send("orders", b"") for _ in range(12)))
                turns = [{each.partition for each in receipts[at : at + 4]} for at in (0, 4, 8)]
                assert sorted(map(len, turns)) == [1, 1, 1]
                assert set.union(*turns) == {0, 1, 2}

    run(go())


@pytest.mark.parametrize(
    ("acks", "durability", "offset"), [("none", "none", None), ("leader", "written", 0), ("all", "durable", 0)]
)
def test_a_receipt_says_what_the_message_has_reached(
    tmp_path: Path, acks: str, durability: str, offset: int | None
) -> None:
    async def go() -> None:
        async with broker_at(tmp_path) as stage:
            async with stage.client.producer(acks=acks) as producer:
                receipt = await producer.send("orders", b"a")
                assert (receipt.durability, receipt.offset) == (durability, offset)
                assert (receipt.timestamp is None, receipt.message_id is None) == (acks == "none", acks == "none")
                for number in range(100):
                    producer.enqueue("orders", b"%d" % number)
            while len(found := await stage.all_values()) < 101:  # what nobody answers may still be on its way
                await asyncio.sleep(0)
            assert found == [b"a", *(b"%d" % number for number in range(100))]

    run(go())


def test_a_large_message_has_a_batch_of_its_own_and_keeps_its_place(tmp_path: Path) -> None:
    async def go() -> None:
        async with broker_at(tmp_path) as stage:
            outcomes: list[Outcome] = []
            async with stage.client.producer(batch_bytes=1000, on_batch=outcomes.append) as producer:
                sent = [b"a", b"b", b"x" * 50_000, b"c", b"y" * 990]
                for value in sent:
                    producer.enqueue("orders", value)
            assert await stage.all_values() == sent
            assert [(each.messages, each.first_offset) for each in outcomes] == [(2, 0), (1, 2), (1, 3), (1, 4)]

    run(go())


@pytest.mark.parametrize("batch_messages", [100, 2], ids=["in one batch", "with batches behind it"])
def test_a_message_over_the_topics_limit_fails_alone(tmp_path: Path, batch_messages: int) -> None:
    async def go() -> None:
        async with broker_at(tmp_path, max_message_bytes=100) as stage:
            bad = {0, 7, 8, 19}
            async with stage.client.producer(batch_messages=batch_messages) as producer:
                await producer.send("orders", b"first")
                sent = [b"x" * 101 if number in bad else b"%d" % number for number in range(20)]
                replies = await asyncio.gather(
                    *(producer.send("orders", each) for each in sent), return_exceptions=True
                )
                assert [type(each) is TooLarge for each in replies] == [number in bad for number in range(20)]
                offsets = [each.offset for each in replies if isinstance(each, Receipt)]
                assert offsets == list(range(1, 17))
            assert await stage.all_values() == [b"first", *(each for each in sent if len(each) <= 100)]

            outcomes: list[Outcome] = []
            async with stage.client.producer(batch_messages=batch_messages, on_batch=outcomes.append) as producer:
                for each in sent:
                    producer.enqueue("orders", each)
                with pytest.raises(TooLarge, match="101 bytes") as caught:
                    await producer.flush()
                assert caught.value.__notes__[0].startswith("4 enqueued messages failed")
                await producer.flush()
            assert sum(each.messages for each in outcomes if each.error is None) == 16
            assert sum(each.messages for each in outcomes if each.error is not None) == 4
            assert (await stage.all_values())[17:] == [each for each in sent if len(each) <= 100]

    run(go())


def test_what_is_enqueued_for_a_topic_not_looked_up_yet_goes_before_what_comes_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early, "_TURN", 3)

    async def go() -> None:
        async with broker_at(tmp_path, partitions=2) as stage:
            async with stage.client.producer() as producer:
                expected: list[bytes] = []
                while len(expected) < 200 and (len(expected) < 100 or "orders" not in producer.routes):
                    expected.append(b"%d" % len(expected))
                    producer.enqueue("orders", expected[-1], key=b"k")
                    if len(expected) % 10 == 0:
                        await asyncio.sleep(0)
                last = producer.send("orders", b"sent", key=b"k")
                assert (await last).offset == len(expected)
            assert await stage.all_values() == [*expected, b"sent"]

    run(go())


def test_sends_begun_before_a_topic_is_looked_up_keep_their_order(tmp_path: Path) -> None:
    async def go() -> None:
        async with broker_at(tmp_path) as stage, stage.client.producer() as producer:
            receipts = await asyncio.gather(*(producer.send("orders", b"%d" % number) for number in range(50)))
            assert [each.offset for each in receipts] == list(range(50))
            assert await stage.all_values() == [b"%d" % number for number in range(50)]

    run(go())


def test_a_topic_that_is_not_there_fails_its_messages_only(tmp_path: Path) -> None:
    async def go() -> None:
        async with broker_at(tmp_path) as stage:
            outcomes: list[Outcome] = []
            async with stage.client.producer(on_batch=outcomes.append) as producer:
                for number in range(3):
                    producer.enqueue("orders", b"%d" % number)
                    producer.enqueue("nothing", b"")
                with pytest.raises(UnknownTopic, match="nothing"):
                    await producer.send("nothing", b"")
                with pytest.raises(UnknownTopic, match="create it first") as caught:
                    await producer.flush()
                assert caught.value.__notes__[0].startswith("3 enqueued messages failed")
                await producer.room()
                await stage.client.create_topic("nothing", partitions=1)
                assert (await producer.send("nothing", b"")).offset == 0
            assert await stage.all_values() == [b"0", b"1", b"2"]
            assert {(each.topic, each.messages, type(each.error)) for each in outcomes if each.error} == {
                ("nothing", 3, UnknownTopic)
            }

    run(go())


def test_room_is_there_again_when_a_topic_turns_out_not_to_be(tmp_path: Path) -> None:
    async def go() -> None:
        async with broker_at(tmp_path) as stage, stage.client.producer(buffer_bytes=1000) as producer:
            assert fill(producer, "nothing", 100) > 1
            await producer.room()
            with pytest.raises(UnknownTopic):
                await producer.flush()

    run(go())


def test_a_look_up_that_breaks_is_told_and_the_topic_can_be_published_to_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = routes.Routes.find

    async def broken(*_: Any) -> routes.Route:
        raise TypeError("a bug")

    async def go() -> None:
        async with broker_at(tmp_path) as stage, stage.client.producer() as producer:
            monkeypatch.setattr(routes.Routes, "find", broken)
            producer.enqueue("orders", b"enqueued")
            with pytest.raises(GoQueueError, match="TypeError: a bug"):
                await producer.send("orders", b"sent")
            with pytest.raises(GoQueueError, match="a bug"):
                await producer.flush()
            monkeypatch.setattr(routes.Routes, "find", find)
            assert (await producer.send("orders", b"next")).offset == 0

    run(go())


def test_of_topics_that_are_gone_nothing_is_left(tmp_path: Path) -> None:
    async def go() -> None:
        async with broker_at(tmp_path, partitions=3) as stage, stage.client.producer() as producer:
            for _ in range(3):
                for partition in range(3):
                    assert (await producer.send("orders", b"x", partition=partition)).offset == 0
                await stage.client.delete_topic("orders")
                with pytest.raises(UnknownTopic):
                    await producer.send("orders", b"lost", partition=1)
                await producer.flush()
                assert producer.sender._places == {}
                assert producer.sender._blocks._lines == {}
                assert producer.sender._retired == set()
                await stage.client.create_topic("orders", partitions=3)

    run(go())


@pytest.mark.parametrize("acks", ["leader", "none"])
def test_a_topic_that_is_made_anew_gets_what_comes_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, acks: str
) -> None:
    monkeypatch.setattr(routes, "REFRESH_S", 0.001)

    async def go() -> None:
        async with broker_at(tmp_path, partitions=2) as stage, stage.client.producer(acks=acks) as producer:
            await producer.send("orders", b"old", partition=1)
            old = producer.routes["orders"]
            await stage.client.delete_topic("orders")
            while producer.routes.get("orders") is old:
                await asyncio.sleep(0)
            with pytest.raises(UnknownTopic):
                await producer.send("orders", b"lost")
            await stage.client.create_topic("orders", partitions=1)
            receipt = await producer.send("orders", b"new")
            assert receipt.partition == 0
            while await stage.all_values() != [b"new"]:
                await asyncio.sleep(0)

    run(go())


def test_a_send_to_a_topic_that_is_gone_fails_and_the_next_finds_the_new_one(tmp_path: Path) -> None:
    async def go() -> None:
        async with broker_at(tmp_path, partitions=2) as stage, stage.client.producer() as producer:
            await producer.send("orders", b"old")
            await stage.client.delete_topic("orders")
            await stage.client.create_topic("orders", partitions=1)
            with pytest.raises(UnknownTopic):
                await producer.send("orders", b"lost")
            for number in range(4):
                assert (await producer.send("orders", b"%d" % number)).offset == number

    run(go())


def test_partitions_that_are_added_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "REFRESH_S", 0.001)

    async def go() -> None:
        async with broker_at(tmp_path) as stage, stage.client.producer() as producer:
            await producer.send("orders", b"")
            await stage.client.add_partitions("orders", 3)
            while producer.routes["orders"].count < 3:
                await asyncio.sleep(0)
            assert {(await producer.send("orders", b"")).partition for _ in range(6)} == {0, 1, 2}
            assert (await producer.send("orders", b"", partition=2)).partition == 2
            key = next(b"%d" % number for number in range(99) if partition_of(b"%d" % number, 3) == 2)
            assert (await producer.send("orders", b"", key=key)).partition == 2
            names = [task.get_name() for task in asyncio.all_tasks()]
            assert names.count("refresh") == 1
            assert "look up" not in names

    run(go())


# ---------------------------------------------------------------- with a broker that has faults


DUE_S = 20.0
DUE_MS = 20_000
"""A delivery timeout below that of a request."""


class MessageBroker(SequenceBroker):
    """Knows one topic, orders, and keeps messages one by one. `closed_gate` holds publishes up where they come in."""

    def __init__(self, partitions: int = 1) -> None:
        super().__init__()
        self.partitions = partitions
        self.blocks: list[list[str]] = []
        """The values of every publish that came."""
        self.metadata = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.arrived = 0
        self.refuse: Callable[[PublishRequest, bytes], Fault | GoQueueError] = lambda *_: Fault.NONE
        """What is never appended, whatever else happens."""
        self.looking_up = asyncio.Event()
        self.looking_up.set()

    def close_gate(self) -> None:
        self.gate.clear()

    async def until_arrived(self, publishes: int) -> None:
        while self.arrived < publishes:
            await asyncio.sleep(0)

    async def talk(self, peer: Peer) -> None:
        self.connections += 1
        while True:
            request = await peer.read()
            if request.operation == CODES["init_producer"]:
                self.producers += 1
                peer.reply(request, msgspec.json.encode({"producer_id": 1000 + self.producers, "epoch": 0}))
            elif request.operation == CODES["metadata"]:
                await self.looking_up.wait()
                self.metadata += 1
                topic = shapes.TopicMetadata(
                    name="orders", topic_id=f"{1:032x}", partitions=self.partitions, max_message_bytes=1000
                )
                found = shapes.Metadata(cluster_id="", node_id="", topics=[topic], producer={}, consumer={})
                peer.reply(request, msgspec.json.encode(found))
            else:
                assert request.operation == PUBLISH_BLOCK
                self.arrived += 1
                publish = blocks.unpack_publish_request(request.payload)
                block = request.payload[blocks.PUBLISH_REQUEST.size :]
                values = [record.value or b"" for record in codec.decode(block)]
                self.blocks.append([value.decode() for value in values])
                await self.gate.wait()
                if publish.acks is Acks.NONE:
                    self.logs.setdefault((publish.topic_id, publish.partition), []).extend(self.blocks[-1])
                elif not await self._publish(peer, request):
                    return

    def _append(self, publish: PublishRequest, block: bytes) -> PublishReply:
        log = self.logs.setdefault((publish.topic_id, publish.partition), [])
        before = len(log)
        refused = self.refuse(publish, block)
        if isinstance(refused, GoQueueError):
            raise refused
        reply = super()._append(publish, block)
        if len(log) > before:
            log[before:] = [(record.value or b"").decode() for record in codec.decode(block)]
        return reply


@asynccontextmanager
async def faulty(broker: MessageBroker, **options: Any) -> AsyncIterator[AsyncProducer]:
    """A producer of this broker. Nothing that went wrong in the background stays unseen."""
    loop = asyncio.get_running_loop()
    unseen: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: unseen.append(context))
    async with serving(broker.talk) as port, AsyncClient(f"{HOST}:{port}") as client:
        async with client.producer(**options) as producer:
            producer.sender._blocks._backoff_s = 0.0001
            yield producer
        assert producer.sender.accumulator.buffers.held == 0
        assert producer.sender._outstanding == 0
        assert producer._early.held == 0
    gc.collect()
    assert unseen == []


def names(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{number}" for number in range(count)]


async def send_all(producer: AsyncProducer, *values: str, **options: Any) -> list[Receipt | BaseException]:
    sends = (producer.send("orders", value, **options) for value in values)
    return await asyncio.gather(*sends, return_exceptions=True)


def offsets(replies: list[Receipt | BaseException]) -> list[int | None]:
    return [reply.offset for reply in replies if isinstance(reply, Receipt)]


def fill(producer: AsyncProducer, topic: str, size: int) -> int:
    """Enqueue messages m0, m1, ... of this size until no more are taken; gives how many were."""
    taken = 0
    try:
        while True:
            producer.enqueue(topic, f"m{taken}" + "x" * size)
            taken += 1
    except BufferFull:
        return taken


def refusing(*bad: str) -> Callable[[PublishRequest, bytes], Fault | GoQueueError]:
    """The block is refused for the first message of it that is one of these."""

    def choose(_: PublishRequest, block: bytes) -> Fault | GoQueueError:
        for index, record in enumerate(codec.decode(block)):
            if (record.value or b"").decode() in bad:
                error = TooLarge("it is too large")
                error.index = index
                return error
        return Fault.NONE

    return choose


# --- batches


def test_while_an_answer_is_on_its_way_the_next_messages_share_a_batch() -> None:
    async def go() -> None:
        broker = MessageBroker()
        async with faulty(broker) as producer:
            await producer.prepare("orders")
            broker.close_gate()
            first = asyncio.ensure_future(send_all(producer, "a", "b"))
            await broker.until_arrived(1)
            rest = asyncio.ensure_future(send_all(producer, *names("c", 20)))
            for _ in range(20):
                await asyncio.sleep(0)
            assert broker.blocks == [["a", "b"]]
            broker.gate.set()
            assert offsets(await first) == [0, 1]
            assert offsets(await rest) == list(range(2, 22))
            assert broker.blocks == [["a", "b"], names("c", 20)]

    run(go())


def test_a_batch_that_is_full_does_not_wait_for_answers() -> None:
    async def go() -> None:
        broker = MessageBroker()
        async with faulty(broker, batch_messages=3) as producer:
            await producer.prepare("orders")
            broker.close_gate()
            for name in names("m", 16):
                producer.enqueue("orders", name)
            while len(producer.routes["orders"].places[0].line.under_way) < WINDOW:
                await asyncio.sleep(0)
            broker.gate.set()
            await producer.flush()
            assert broker.blocks == [names("m", 16)[at : at + 3] for at in range(0, 16, 3)]
            assert broker.names() == names("m", 16)

    run(go())


@pytest.mark.parametrize("batch_messages", [1, 1000])
def test_batches_that_somebody_waits_for_leave_one_by_one(batch_messages: int) -> None:
    async def go() -> None:
        broker = MessageBroker(partitions=3)
        async with faulty(broker, batch_messages=batch_messages) as producer:
            await producer.prepare("orders")
            for partition in range(3):
                await producer.send("orders", b"first", partition=partition)
            connection = producer.sender._blocks._connection
            assert connection is not None
            written = watch(connection)
            await asyncio.gather(*[send_all(producer, "s", partition=partition) for partition in range(3)])
            assert len(written) == 3

    run(go())


def test_batches_that_nobody_waits_for_leave_in_one_piece() -> None:
    async def go() -> None:
        broker = MessageBroker(partitions=3)
        async with faulty(broker) as producer:
            await producer.prepare("orders")
            for partition in range(3):
                await producer.send("orders", b"first", partition=partition)
            connection = producer.sender._blocks._connection
            assert connection is not None
            written = watch(connection)
            for flushed in (False, True):
                for number in range(9):
                    producer.enqueue("orders", f"e{number}", partition=number % 3)
                if not flushed:
                    await broker.until_arrived(6)
                await producer.flush()
            assert len(written) == 2
            assert sorted(broker.blocks[3:6]) == sorted(broker.blocks[6:9])
            assert sorted(broker.blocks[3:6]) == [["e0", "e3", "e6"], ["e1", "e4", "e7"], ["e2", "e5", "e8"]]

    run(go())


def test_a_batch_that_lingers_goes_when_its_time_has_come_or_it_is_flushed() -> None:
    async def go() -> None:
        broker = MessageBroker(partitions=2)
        async with faulty(broker, linger=0.02) as producer:
            assert offsets(await send_all(producer, "a", "b", partition=0)) == [0, 1]
            later = asyncio.ensure_future(send_all(producer, "d", partition=1))
            replies = await send_all(producer, "c", partition=0)
            assert offsets(replies + await later) == [2, 0]
            assert sorted(broker.blocks) == [["a", "b"], ["c"], ["d"]]
        broker = MessageBroker()
        async with faulty(broker, linger=3000, batch_messages=4) as producer:
            for name in names("m", 6):
                producer.enqueue("orders", name)
            await producer.flush()
            assert broker.blocks == [names("m", 4), ["m4", "m5"]]
            waiting = asyncio.ensure_future(producer.send("orders", "last"))
            await asyncio.sleep(0)
            await producer.flush()
            assert (await waiting).offset == 6

    run(go())


@pytest.mark.parametrize("order", ["sent", "enqueued"])
def test_bad_messages_leave_their_batches_and_those_behind_are_appended_once_in_order(order: str) -> None:
    async def go() -> None:
        broker = MessageBroker()
        outcomes: list[Outcome] = []
        sent = names("m", 30)
        bad = {"m0", "m7", "m8", "m29", "m3"}
        async with faulty(broker, batch_messages=4, on_batch=outcomes.append) as producer:
            await producer.prepare("orders")
            broker.fault_for = refusing(*bad)
            if order == "sent":
                replies = await send_all(producer, *sent)
                assert [type(each) for each in replies] == [TooLarge if name in bad else Receipt for name in sent]
                assert offsets(replies) == list(range(25))
            else:
                for name in sent:
                    producer.enqueue("orders", name)
                with pytest.raises(TooLarge) as caught:
                    await producer.flush()
                assert caught.value.__notes__[0].startswith("5 enqueued messages failed")
            await producer.flush()
            assert broker.names() == [name for name in sent if name not in bad]
            assert broker.producers == 1, "sequences moved up"
            assert sum(each.messages for each in outcomes if each.error is None) == 25
            assert [each.messages for each in outcomes if each.error is not None] == [1] * 5

    run(go())


def test_a_batch_given_up_that_is_then_refused_for_a_message_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "SWEEP_S", 0.001)

    async def go() -> None:
        broker = MessageBroker()
        outcomes: list[Outcome] = []
        async with faulty(broker, delivery_timeout=DUE_S, on_batch=outcomes.append) as producer:
            await producer.prepare("orders")
            broker.close_gate()
            broker.fault_for = refusing("bad")
            for name in ("a", "bad", "b"):
                producer.enqueue("orders", name)
            with pytest.raises(RequestTimeout, match=r"3 messages had no answer.*may have been appended"):
                await when_late(producer.flush(), lambda: broker.arrived, DUE_MS)
            broker.gate.set()
            assert offsets(await send_all(producer, "next")) == [0]
            assert [(each.messages, type(each.error)) for each in outcomes] == [(3, RequestTimeout), (1, type(None))]
            assert broker.names() == ["next"]
            assert broker.seen[-1][1:] == (1001, 0), "no message of the batch used a sequence"

    run_timed(go())


# --- memory


def test_no_more_is_buffered_than_may_be_and_room_is_waited_for() -> None:
    async def go() -> None:
        broker = MessageBroker()
        limit = 3000
        async with faulty(broker, batch_bytes=1000, buffer_bytes=limit) as producer:
            buffers = producer.sender.accumulator.buffers
            await producer.prepare("orders")
            broker.close_gate()
            taken = fill(producer, "orders", 100)
            held = buffers.held
            assert limit - 1000 < held <= limit
            with pytest.raises(BufferFull):
                producer.enqueue("orders", "refused" + "x" * 1000)
            assert buffers.held == held
            waiting = [asyncio.ensure_future(producer.room()) for _ in range(3)]
            for _ in range(10):
                await asyncio.sleep(0)
            assert not any(each.done() for each in waiting)
            broker.gate.set()
            await asyncio.gather(*waiting)
            producer.enqueue("orders", "last")
            await producer.flush()
            assert [name.rstrip("x") for name in broker.names()] == [*names("m", taken), "last"]
            assert buffers.held == 0

    run(go())


def test_one_message_larger_than_the_whole_buffer_is_taken_when_there_is_no_other() -> None:
    async def go() -> None:
        broker = MessageBroker()
        async with faulty(broker, batch_bytes=500, buffer_bytes=500) as producer:
            replies = await send_all(producer, "a", "x" * 2000, "b", "y" * 3000, "c")
            assert offsets(replies) == [0, 1, 2, 3, 4]
            assert [name[0] for name in broker.names()] == ["a", "x", "b", "y", "c"]

    run(go())


def test_waiting_for_room_is_waiting_for_what_was_refused() -> None:
    async def go() -> None:
        broker = MessageBroker()
        async with faulty(broker, batch_bytes=100, buffer_bytes=3000) as producer:
            await producer.prepare("orders")
            broker.close_gate()
            producer.enqueue("orders", "a" * 2000)
            await broker.until_arrived(1)
            tries = 0
            while True:
                try:
                    producer.enqueue("orders", "b" * 1500)
                    break
                except BufferFull:
                    tries += 1
                    room = asyncio.ensure_future(producer.room())
                    for _ in range(10):
                        await asyncio.sleep(0)
                    assert room.done() is broker.gate.is_set()
                    broker.gate.set()
                    await room
            assert tries == 1
            await producer.flush()
            assert [name[0] for name in broker.names()] == ["a", "b"]

    run(go())


def test_what_is_enqueued_does_not_overtake_sends_that_wait_for_room() -> None:
    async def go() -> None:
        broker = MessageBroker()
        async with faulty(broker, batch_bytes=600, buffer_bytes=1200) as producer:
            await producer.prepare("orders")
            broker.close_gate()
            sent = [f"m{number}/" + "x" * 500 for number in range(8)]
            sends = [asyncio.ensure_future(producer.send("orders", each)) for each in sent]
            await broker.until_arrived(1)
            with pytest.raises(BufferFull, match="sent before"):
                producer.enqueue("orders", "B")
            room = asyncio.ensure_future(producer.room())
            broker.gate.set()
            await room
            producer.enqueue("orders", "B")
            await asyncio.gather(*sends)
            await producer.flush()
            assert broker.names() == [*sent, "B"]

    run(go())


def test_sends_that_wait_for_room_keep_their_order_whatever_their_sizes() -> None:
    async def go() -> None:
        broker = MessageBroker()
        async with faulty(broker, batch_bytes=600, buffer_bytes=1200) as producer:
            sent = [f"m{number}/" + "x" * (500 if number % 3 else 5) for number in range(120)]
            begun = [asyncio.ensure_future(producer.send("orders", each)) for each in sent[:60]]
            while not broker.arrived:
                await asyncio.sleep(0)
            begun += [asyncio.ensure_future(producer.send("orders", each)) for each in sent[60:]]
            begun[30].cancel()
            replies = await asyncio.gather(*begun, return_exceptions=True)
            assert len(offsets(replies)) == 119
            assert [name for name in broker.names() if name != sent[30]] == [*sent[:30], *sent[31:]]
            assert producer._queued == 0

    run(go())


def test_what_waits_for_its_topic_to_be_looked_up_is_bounded_too() -> None:
    async def go() -> None:
        broker = MessageBroker()
        async with faulty(broker, buffer_bytes=10_000) as producer:
            broker.looking_up.clear()
            taken = fill(producer, "orders", 200)
            with pytest.raises(BufferFull, match="which partitions orders has"):
                producer.enqueue("orders", "x" * 210)
            assert 20 < taken < 50
            sending = asyncio.ensure_future(producer.send("orders", "sent"))
            room = asyncio.ensure_future(producer.room())
            for _ in range(10):
                await asyncio.sleep(0)
            assert not room.done()
            broker.looking_up.set()
            await room
            assert (await sending).offset == taken
            assert [name.rstrip("x") for name in broker.names()] == [*names("m", taken), "sent"]

    run(go())


def test_what_waits_for_its_topic_is_published_though_it_needs_more_buffers_than_there_are() -> None:
    async def go() -> None:
        broker = MessageBroker()
        async with faulty(broker, batch_bytes=300, buffer_bytes=20_000) as producer:
            for name in names("m", 70):
                producer.enqueue("orders", name)
            producer.sender.accumulator.buffers.limit = 700
            late = [asyncio.ensure_future(producer.send("orders", name)) for name in names("s", 20)]
            await producer.flush()
            await asyncio.gather(*late)
            assert broker.names() == [*names("m", 70), *names("s", 20)]

    run(go())


def test_a_refused_message_leaves_a_batch_that_is_sent() -> None:
    """The next one is the first of its batch, with its time and its turn, though the batch was opened before."""

    async def go() -> None:
        broker = MessageBroker()
        async with faulty(broker, batch_bytes=500, buffer_bytes=500) as producer:
            await producer.prepare("orders")
            with pytest.raises(InvalidRecord):
                await producer.send("orders", b"", key=bytes(70_000))
            assert producer.sender.accumulator.buffers.held == 0
            await producer.room()
            with pytest.raises(InvalidRecord):
                producer.enqueue("orders", b"", key=bytes(70_000))
            assert offsets(await send_all(producer, "a")) == [0]

    run(go())


def test_a_batch_sealed_for_a_message_there_was_no_room_for_is_sent_without_another_call() -> None:
    async def go() -> None:
        broker = MessageBroker()
        outcomes: list[Outcome] = []
        async with faulty(broker, batch_bytes=400, buffer_bytes=900, on_batch=outcomes.append) as producer:
            await producer.prepare("orders")
            broker.close_gate()
            producer.enqueue("orders", "a")
            await broker.until_arrived(1)
            producer.enqueue("orders", "b")
            with pytest.raises(BufferFull):
                producer.enqueue("orders", "x" * 600)
            broker.gate.set()
            while len(outcomes) < 2:
                await asyncio.sleep(0)
            assert broker.names() == ["a", "b"]

    run(go())


def test_buffers_are_used_again_only_when_the_broker_has_answered() -> None:
    async def go() -> None:
        for acks, again in (("leader", True), ("none", False)):
            broker = MessageBroker()
            async with faulty(broker, acks=acks) as producer:
                await send_all(producer, "a")
                idle = producer.sender.accumulator.buffers._idle
                assert any(idle.values()) is again

    run(go())


def test_the_buffer_of_a_batch_that_was_sent_twice_is_not_used_again() -> None:
    async def go() -> None:
        broker = MessageBroker()
        async with faulty(broker) as producer:
            broker.faults.append(Fault.LOST_AFTER)
            assert offsets(await send_all(producer, "a")) == [0]
            assert not any(producer.sender.accumulator.buffers._idle.values())

    run(go())


def test_batches_whose_time_is_up_before_they_were_sent_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "SWEEP_S", 0.001)

    async def go() -> None:
        broker = MessageBroker()
        async with faulty(broker, delivery_timeout=DUE_S, batch_messages=1) as producer:
            await producer.prepare("orders")
            broker.close_gate()
            failed = await when_late(send_all(producer, *names("m", WINDOW + 20)), lambda: broker.arrived, DUE_MS)
            assert {type(each) for each in failed} == {RequestTimeout}
            line = producer.routes["orders"].places[0].line
            await asyncio.sleep(0)
            assert (len(line.under_way), len(line.waiting)) == (WINDOW, 0)
            broker.gate.set()

    run_timed(go())


def test_the_buffer_of_a_batch_given_up_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "SWEEP_S", 0.001)

    async def go() -> None:
        broker = MessageBroker()
        async with faulty(broker, delivery_timeout=DUE_S) as producer:
            await producer.prepare("orders")
            broker.close_gate()
            failed = await when_late(send_all(producer, "a"), lambda: broker.arrived, DUE_MS)
            assert [type(each) for each in failed] == [RequestTimeout]
            assert producer.sender.accumulator.buffers.held == 0
            assert not any(producer.sender.accumulator.buffers._idle.values())
            (block,) = producer.routes["orders"].places[0].line.under_way
            assert [record.value for record in codec.decode(block.records)] == [b"a"], "it may be sent again as it was"
            broker.gate.set()

    run_timed(go())


# --- flush


def test_a_flush_waits_for_what_was_enqueued_before_it_and_not_for_more() -> None:
    async def go() -> None:
        broker = MessageBroker(partitions=2)
        async with faulty(broker) as producer:
            await producer.prepare("orders")
            broker.close_gate()
            producer.enqueue("orders", "a", partition=0)
            producer.enqueue("orders", "b", partition=1)
            flushing = asyncio.ensure_future(producer.flush())
            await broker.until_arrived(1)
            for name in names("c", 5):
                producer.enqueue("orders", name, partition=0)
            assert not flushing.done()
            held: list[str] = []
            broker.fault_for = lambda _, block: Fault.SILENT if b"c0" in block else Fault.NONE
            broker.gate.set()
            await flushing
            assert (broker.names(1, 0)[:1], broker.names(1, 1), held) == (["a"], ["b"], [])
            await broker.until_arrived(3)
            assert producer.sender._outstanding == 1, "what came behind it has no answer, and was not waited for"
            await producer.abort()

    run(go())


def test_a_cancelled_flush_loses_no_message_and_no_error() -> None:
    async def go() -> None:
        broker = MessageBroker()
        async with faulty(broker) as producer:
            await producer.prepare("orders")
            broker.close_gate()
            broker.fault_for = refusing("bad")
            for name in ("a", "bad", "b"):
                producer.enqueue("orders", name)
            flushing = asyncio.ensure_future(producer.flush())
            await broker.until_arrived(1)
            flushing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await flushing
            broker.gate.set()
            with pytest.raises(TooLarge):
                await producer.flush()
            await producer.flush()
            assert broker.names() == ["a", "b"]

    run(go())


def test_a_cancelled_send_does_not_disturb_those_beside_it() -> None:
    async def go() -> None:
        broker = MessageBroker()
        async with faulty(broker) as producer:
            await producer.prepare("orders")
            broker.close_gate()
            sends = [asyncio.ensure_future(producer.send("orders", name)) for name in names("m", 5)]
            await broker.until_arrived(1)
            sends[2].cancel()
            broker.gate.set()
            replies = await asyncio.gather(*sends, return_exceptions=True)
            assert offsets(replies) == [0, 1, 3, 4]
            assert broker.names() == names("m", 5)

    run(go())


def test_what_on_batch_raises_or_enqueues_does_not_disturb_the_producer() -> None:
    async def go() -> None:
        broker = MessageBroker()
        told: list[Outcome] = []

        def on_batch(outcome: Outcome) -> None:
            told.append(outcome)
            if len(told) < 5:
                producer.enqueue("orders", f"again{len(told)}")
            raise ZeroDivisionError

        async with serving(broker.talk) as port, AsyncClient(f"{HOST}:{port}") as client:
            unseen: list[Any] = []
            asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context["exception"]))
            async with client.producer(on_batch=on_batch, batch_messages=1) as producer:
                broker.fault_for = refusing("m1")
                await send_all(producer, "m0", "m1", "m2")
                while len(told) < 7:
                    await asyncio.sleep(0)
            assert sorted(broker.names()) == ["again1", "again2", "again3", "again4", "m0", "m2"]
            assert [type(each) for each in unseen] == [ZeroDivisionError] * 7

    run(go())


# --- connections, deadlines, ends


@pytest.mark.parametrize("fault", [Fault.LOST_BEFORE, Fault.LOST_AFTER, Fault.LATE, Fault.GARBAGE])
def test_what_was_under_way_when_the_connection_was_lost_is_appended_once_in_order(fault: Fault) -> None:
    async def go() -> None:
        broker = MessageBroker(partitions=2)
        sent = names("m", 60)
        async with faulty(broker, batch_messages=3) as producer:
            await producer.prepare("orders")
            broker.faults.extend([Fault.NONE, Fault.NONE, fault, Fault.NONE, Fault.NONE, fault])
            replies = await asyncio.gather(
                *(producer.send("orders", name, partition=number % 2) for number, name in enumerate(sent))
            )
            for partition in range(2):
                assert broker.names(1, partition) == sent[partition::2]
                assert [each.offset for each in replies[partition::2]] == list(range(30))
            broker.deliver_late()
            assert broker.names(1, 0) + broker.names(1, 1) == sent[0::2] + sent[1::2]
            if fault is Fault.LOST_AFTER:
                assert sum(each.duplicate for each in replies) >= 3

    run(go())


def test_without_answers_it_goes_on_after_a_connection_was_lost() -> None:
    async def go() -> None:
        broker = MessageBroker()
        async with faulty(broker, acks="none") as producer:
            await producer.send("orders", "a")
            while not broker.names():
                await asyncio.sleep(0)
            connection = producer.sender._blocks._connection
            assert connection is not None
            connection.abort("a test")
            receipt = await producer.send("orders", "b")
            assert (receipt.offset, receipt.durability) == (None, "none")
            for name in names("c", 10):
                producer.enqueue("orders", name)
            await producer.flush()
            while len(broker.names()) < 12:
                await asyncio.sleep(0)
            assert broker.names() == ["a", "b", *names("c", 10)]

    run(go())


@pytest.mark.parametrize(
    ("fault", "known"),
    [
        (Busy("no room here"), r"appended; the last trouble: no room here"),
        (Fault.LOST_AFTER, r"they may have been appended; the last trouble: "),
    ],
    ids=["refused", "lost"],
)
def test_a_delivery_that_takes_too_long_fails_and_says_what_is_known(
    monkeypatch: pytest.MonkeyPatch, fault: Fault | GoQueueError, known: str
) -> None:
    monkeypatch.setattr(sending, "SWEEP_S", 0.001)

    async def go() -> None:
        broker = MessageBroker()
        async with faulty(broker, delivery_timeout=DUE_S) as producer:
            await producer.prepare("orders")
            broker.fault_for = lambda *_: fault
            with pytest.raises(RequestTimeout, match=rf"1 messages had no answer within 20\.0 s; .*{known}"):
                await when_late(producer.send("orders", "a"), lambda: broker.arrived > 1, DUE_MS)
            broker.fault_for = None
            before = len(broker.names())
            assert offsets(await send_all(producer, "b")) == [before]
            assert broker.names().count("b") == 1

    run_timed(go())


def test_a_batch_that_filled_behind_one_whose_time_was_up_fails_too_when_nobody_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sending, "SWEEP_S", 0.001)

    async def go() -> None:
        broker = MessageBroker()
        async with serving(broker.talk) as port:
            client = AsyncClient(f"{HOST}:{port}")
            producer = client.producer(delivery_timeout=DUE_S)
            await producer.prepare("orders")
        first = asyncio.ensure_future(send_all(producer, "a", "b"))
        for _ in range(5):
            await asyncio.sleep(0)
        line = producer.routes["orders"].places[0].line
        second = when_late(send_all(producer, "c", "d"), lambda: line.last_trouble, DUE_MS)
        replies = [*await second, *await first]
        assert [type(each) for each in replies] == [RequestTimeout] * 4
        assert all("they were not appended; the last trouble: cannot reach" in str(each) for each in replies)
        assert producer.sender.accumulator.buffers.held == 0
        await producer.abort()
        await client.close()

    run_timed(go())


def test_a_fenced_producer_has_come_to_its_end() -> None:
    async def go() -> None:
        broker = MessageBroker(partitions=2)
        async with faulty(broker, linger=0.0) as producer:
            await producer.prepare("orders")
            broker.close_gate()
            broker.fault_for = lambda *_: ProducerFenced("another has taken over")
            under_way = asyncio.ensure_future(send_all(producer, "a", partition=0))
            await broker.until_arrived(1)
            filling = asyncio.ensure_future(send_all(producer, "b", partition=0))
            for _ in range(5):
                await asyncio.sleep(0)
            broker.gate.set()
            assert [type(each) for each in await under_way + await filling] == [ProducerFenced] * 2
            with pytest.raises(ProducerFenced):
                await producer.send("orders", "c")
            with pytest.raises(ProducerFenced):
                producer.enqueue("orders", "d")
            with pytest.raises(ProducerFenced):
                await producer.room()
            await producer.flush()

    run(go())


def test_closing_publishes_what_is_left_and_nothing_can_be_published_then() -> None:
    async def go() -> None:
        broker = MessageBroker()
        async with faulty(broker, linger=3000) as producer:
            for name in names("m", 10):
                producer.enqueue("orders", name)
            await producer.close()
            await producer.close()
            assert broker.names() == names("m", 10)
            uses = (producer.send("orders", b""), producer.room(), producer.prepare("orders"), producer.__aenter__())
            for use in uses:
                with pytest.raises(Unavailable, match="this producer is closed"):
                    await use
            with pytest.raises(Unavailable, match="this producer is closed"):
                producer.enqueue("orders", b"")
            await producer.flush()

    run(go())


def test_aborting_fails_whatever_has_no_answer() -> None:
    async def go() -> None:
        broker = MessageBroker()
        outcomes: list[Outcome] = []
        async with faulty(broker, on_batch=outcomes.append, batch_bytes=300, buffer_bytes=700) as producer:
            await producer.prepare("orders")
            broker.close_gate()
            sends = [asyncio.ensure_future(producer.send("orders", name)) for name in names("m", 40)]
            await broker.until_arrived(1)
            assert producer.sender.room.is_wanted
            await producer.abort()
            replies = await asyncio.gather(*sends, return_exceptions=True)
            assert [type(each) for each in replies] == [Unavailable] * 40
            told = sum(each.messages for each in outcomes)
            assert 0 < told < 40
            assert all(isinstance(each.error, Unavailable) for each in outcomes)
            broker.gate.set()

    run(go())


def test_aborting_fails_what_waits_for_its_topic_to_be_looked_up() -> None:
    async def go() -> None:
        broker = MessageBroker()
        outcomes: list[Outcome] = []
        async with faulty(broker, on_batch=outcomes.append) as producer:
            broker.looking_up.clear()
            sending = asyncio.ensure_future(producer.send("orders", "a"))
            preparing = asyncio.ensure_future(producer.prepare("orders"))
            await asyncio.sleep(0)
            producer.enqueue("orders", "b")
            await producer.abort()
            for each in (sending, preparing):
                with pytest.raises(Unavailable, match="was closed"):
                    await each
            assert [(each.messages, type(each.error)) for each in outcomes] == [(1, Unavailable)]
            assert not {"refresh", "look up"} & {task.get_name() for task in asyncio.all_tasks()}
            broker.looking_up.set()

    run(go())


async def enqueue_and(broker: MessageBroker, value: str, end: Exception | None) -> None:
    async with faulty(broker) as producer:
        producer.enqueue("orders", value)
        if end is not None:
            raise end


def test_an_exception_inside_goes_on_and_what_was_enqueued_is_published() -> None:
    async def go() -> None:
        broker = MessageBroker()
        with pytest.raises(ZeroDivisionError) as caught:
            await enqueue_and(broker, "a", ZeroDivisionError())
        assert broker.names() == ["a"]
        assert not hasattr(caught.value, "__notes__")
        broker.fault_for = refusing("b")
        with pytest.raises(ZeroDivisionError) as caught:
            await enqueue_and(broker, "b", ZeroDivisionError())
        assert caught.value.__notes__ == ["and the producer could not publish everything: it is too large"]

    run(go())


def test_leaving_raises_what_could_not_be_published() -> None:
    async def go() -> None:
        broker = MessageBroker()
        broker.fault_for = refusing("b")
        with pytest.raises(TooLarge):
            await enqueue_and(broker, "b", None)

    run(go())


# ---------------------------------------------------------------- left in a hurry


async def enqueue_and_wait(producer: AsyncProducer, ready: asyncio.Event, count: int) -> None:
    async with producer:
        for name in names("m", count):
            producer.enqueue("orders", name)
        ready.set()
        await asyncio.Event().wait()


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]


@pytest.mark.parametrize("is_known", [True, False])
def test_who_is_cancelled_publishes_what_was_enqueued(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_known: bool
) -> None:
    monkeypatch.setattr(publishing, "LEAVE_S", PATIENCE_S)

    async def go() -> None:
        broker = MessageBroker()
        ready = asyncio.Event()
        async with faulty(broker, linger=60) as producer:
            if is_known:
                await producer.prepare("orders")
            task = asyncio.ensure_future(enqueue_and_wait(producer, ready, 20))
            await ready.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert producer.closed
        assert broker.names() == names("m", 20)

    run(go())
    assert warnings_of(caplog) == []


def test_a_timeout_around_a_producer_is_still_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(publishing, "LEAVE_S", PATIENCE_S)

    async def go() -> None:
        broker = MessageBroker()
        async with faulty(broker, linger=60) as producer:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await enqueue_and_wait(producer, asyncio.Event(), 3)
        assert broker.names() == names("m", 3)

    run(go())
    assert warnings_of(caplog) == []


@pytest.mark.parametrize("is_known", [True, False])
def test_what_cannot_be_published_in_a_hurry_is_discarded_and_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_known: bool
) -> None:
    monkeypatch.setattr(publishing, "LEAVE_S", 0.02)

    async def go() -> None:
        broker = MessageBroker()
        ready = asyncio.Event()
        outcomes: list[Outcome] = []
        async with faulty(broker, on_batch=outcomes.append) as producer:
            if is_known:
                await producer.prepare("orders")
            broker.close_gate()
            broker.looking_up.clear()
            task = asyncio.ensure_future(enqueue_and_wait(producer, ready, 20))
            await ready.wait()
            waiting = asyncio.ensure_future(producer.send("orders", "beside"))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            with pytest.raises(Unavailable):
                await waiting
            broker.gate.set()
            broker.looking_up.set()
        assert {type(each.error) for each in outcomes} == {Unavailable}

    run(go())
    assert warnings_of(caplog) == [
        "a producer ended, and what the broker had not confirmed was discarded: 20 messages"
    ], "who waits for a message hears of it"


def test_what_was_sent_and_is_not_read_is_not_waited_for_beyond_the_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "LEAVE_S", 0.02)
    patience: list[float] = []
    close = Connection.close

    async def watched(connection: Connection, patience_s: float = CLOSE_TIMEOUT_S) -> None:
        patience.append(patience_s)
        await close(connection, patience_s)

    monkeypatch.setattr(Connection, "close", watched)

    async def go() -> None:
        broker = MessageBroker()
        async with faulty(broker) as producer:
            await producer.prepare("orders")
            await producer.send("orders", "first")
            broker.close_gate()
            producer.enqueue("orders", "never answered")
            patience.clear()
            await producer.leave()
            assert [each <= publishing.LEAVE_S for each in patience] == [True]
            broker.gate.set()

    run(go())


def test_who_is_cancelled_twice_does_not_wait(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(publishing, "LEAVE_S", 10 * PATIENCE_S)

    async def go() -> None:
        broker = MessageBroker()
        ready = asyncio.Event()
        async with faulty(broker) as producer:
            await producer.prepare("orders")
            broker.close_gate()
            task = asyncio.ensure_future(enqueue_and_wait(producer, ready, 5))
            await ready.wait()
            task.cancel()
            await broker.until_arrived(1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):  # who waited would wait for ever
                await task
            broker.gate.set()

    run(go())
    assert [each for each in warnings_of(caplog) if "5 messages" in each] == warnings_of(caplog) != []


@pytest.mark.parametrize(
    "options",
    [
        {"acks": "some"},
        {"batch_bytes": 0},
        {"batch_bytes": limits.APPENDED_AT_ONCE_BYTES + 1},
        {"batch_messages": 0},
        {"buffer_bytes": 0},
        {"linger": -1},
        {"delivery_timeout": 0},
    ],
)
def test_options_out_of_bounds_are_refused(options: dict[str, Any]) -> None:
    async def go() -> None:
        with pytest.raises(InvalidRequest):
            AsyncClient().producer(**options)

    run(go())


# --- everything at once


@pytest.mark.parametrize("seed", range(8))
def test_whatever_goes_wrong_a_receipt_is_true_and_every_message_is_accounted_for(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Random faults, sizes and ends over three partitions: what has a receipt is at its offset and nowhere else, in the
    order it was sent in; nothing is there twice; what was enqueued is told of, once."""
    monkeypatch.setattr(sending, "SWEEP_S", 0.001)
    chance = random.Random(seed)

    async def go() -> None:
        broker = MessageBroker(partitions=3)
        faults: list[Fault | GoQueueError] = [Fault.LOST_BEFORE, Fault.LOST_AFTER, Fault.LATE, Fault.GARBAGE]
        faults += [Busy("later"), UnknownPartition("?")]
        bad = {f"m{number}" for number in range(0, 1000, 41)}
        broker.refuse = refusing(*bad)

        def choose(publish: PublishRequest, block: bytes) -> Fault | GoQueueError:
            if chance.random() < 0.3:
                broker.deliver_late()
            return chance.choice(faults) if chance.random() < 0.1 else Fault.NONE

        broker.fault_for = choose
        outcomes: list[Outcome] = []
        sends: list[tuple[str, int, asyncio.Future[Receipt]]] = []
        enqueued = 0
        options = {"batch_messages": chance.choice((3, 1000)), "buffer_bytes": chance.choice((2000, 1 << 20))}
        timeout = chance.choice((60.0, 60.0, 0.02))
        async with faulty(
            broker, batch_bytes=700, delivery_timeout=timeout, on_batch=outcomes.append, **options
        ) as producer:
            for number in range(1000):
                name, partition = f"m{number}", chance.randrange(3)
                if chance.random() < 0.5:
                    sends.append(
                        (name, partition, asyncio.ensure_future(producer.send("orders", name, partition=partition)))
                    )
                else:
                    try:
                        producer.enqueue("orders", name, partition=partition)
                        enqueued += 1
                    except BufferFull:
                        await producer.room()
                if chance.random() < 0.1:
                    await asyncio.sleep(0)
                if sends and chance.random() < 0.005:
                    sends[-1][2].cancel()
            replies = await asyncio.gather(*(future for *_, future in sends), return_exceptions=True)
            with suppress(GoQueueError):
                await producer.flush()
            await producer.flush()
        broker.deliver_late()
        for partition in range(3):
            log = broker.names(1, partition)
            assert len(set(log)) == len(log), "a message is there twice"
            known = [
                (reply.offset, name)
                for (name, where, _), reply in zip(sends, replies, strict=True)
                if where == partition and isinstance(reply, Receipt)
            ]
            assert [log[offset or 0] for offset, _ in known] == [name for _, name in known]
            assert known == sorted(known)
            assert not bad & set(log)
        assert sum(isinstance(reply, Receipt) for reply in replies) > (len(sends) / 3 if timeout > 1 else 0)
        told = sum(outcome.messages for outcome in outcomes)
        assert enqueued <= told <= enqueued + len(sends)

    run(go())


def test_who_has_just_got_a_receipt_still_reaches_the_next_batch() -> None:
    async def go() -> None:
        broker = MessageBroker()
        async with faulty(broker) as producer:
            await producer.prepare("orders")
            broker.close_gate()

            async def one_after_the_other() -> None:
                await producer.send("orders", "a")
                await producer.send("orders", "c")

            both = asyncio.ensure_future(one_after_the_other())
            await broker.until_arrived(1)
            behind = asyncio.ensure_future(producer.send("orders", "b"))
            await asyncio.sleep(0)
            broker.gate.set()
            await asyncio.gather(both, behind)
            assert broker.blocks == [["a"], ["b", "c"]]

    run(go())
