"""One call on its way: what is held is given back, what could not be told is undone, what was begun is finished."""

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import grpc
import pytest

from goqueue.api.batch import STEP
from goqueue.api.grpc import frames, publishing, translating
from goqueue.api.grpc.caller import Caller
from goqueue.api.grpc.calls import Call, Calls
from goqueue.api.grpc.frames import Frame
from goqueue.api.grpc.held import Held
from goqueue.api.grpc.publishing import PublishStreams
from goqueue.api.grpc.schema import request_name, rpc_name
from goqueue.api.grpc.subscribing import SubscribeStreams
from goqueue.api.grpc.translating import pb
from goqueue.api.operations import BY_NAME
from goqueue.broker.admission import Admission
from goqueue.model import limits
from goqueue.model.errors import DamagedState
from tests.support.loop import run, turns
from tests.support.patience import PATIENCE_S
from tests.unit.api.services import Served, served


class Ended(Exception):
    """How a call ended, if not well."""


class Client:
    """The other side of a call."""

    def __init__(self) -> None:
        self.requests: asyncio.Queue[Any] = asyncio.Queue()
        self.written: list[bytes] = []
        self.address = "ipv4:192.0.2.1:7"
        """Empty if the deadline of its call was over when it arrived."""
        self.takes = True
        """Whether it can be written to; None: it just does not read."""
        self.stuck: asyncio.Future[None] | None = None

        self.gone = False
        """Whether it cannot be refused anything any more."""
        self.over = False
        """Whether its handler has returned. Asked for anything from then on, the library crashes the process."""
        self.touched: list[str] = []
        """What it was asked for all the same."""

    async def write(self, data: bytes) -> None:
        self._touch("write")
        if self.stuck is not None:
            await self.stuck
        if not self.takes:
            raise grpc.aio.UsageError("it has gone")
        self.written.append(data)

    async def read(self) -> Any:
        self._touch("read")
        return await self.requests.get()

    def peer(self) -> str:
        self._touch("peer")
        return self.address

    async def abort(self, code: grpc.StatusCode, details: str, trailing: Any) -> None:
        self._touch("abort")
        if self.gone:
            raise grpc.aio.InternalError("it has gone")
        raise Ended(code.name, details)

    def _touch(self, what: str) -> None:
        if self.over:
            self.touched.append(what)


class Door:
    """The calls of a service."""

    def __init__(self, found: Served) -> None:
        self.broker = found.broker
        self.service = found.service
        self.held = Held(found.broker.replies)
        self._calls = Calls(found.service, self.held)
        self._handlers: dict[str, Any] = self._calls.handlers()
        self._clients: list[Client] = []

    def begin(self, operation: str, client: Client, **fields: Any) -> Awaitable[Any]:
        return self.send(operation, client, getattr(pb, request_name(operation))(**fields).SerializeToString())

    def send(self, operation: str, client: Client, body: bytes) -> Awaitable[Any]:
        handler = self._handlers[rpc_name(operation)]
        behaviour: Callable[..., Awaitable[Any]] = handler.unary_unary or handler.unary_stream
        return self._serve(behaviour, body, client)

    def subscribe(self, client: Client) -> Awaitable[Any]:
        return self._serve(SubscribeStreams(self.service, self.held).serve, None, client)

    def publish(self, client: Client) -> Awaitable[Any]:
        return self._serve(PublishStreams(self.service, self.held).serve, None, client)

    async def _serve(self, behaviour: Callable[..., Awaitable[Any]], request: Any, client: Client) -> Any:
        self._clients.append(client)
        try:
            return await behaviour(request, client)
        finally:
            client.over = True

    async def poll(self, client: Client, member: str, timeout: str = "0s") -> Any:
        await self.begin("poll", client, group="g", member_id=member, timeout=timeout)
        return pb.Polled.FromString(client.written[-1])

    async def given_up(self, operation: str) -> None:
        """Until a call has ended for us, whatever its client does."""
        counted = self.service.requests.meters("grpc", operation).codes
        async with asyncio.timeout(PATIENCE_S):
            while not counted.counts:
                await asyncio.sleep(0)

    async def finish(self) -> None:
        """Until nothing goes on, also not without its client."""
        while self.held.busy:
            await asyncio.sleep(0)

    def check_nothing_is_held(self) -> None:
        budgets = self.broker.requests, self.broker.replies
        assert [(budget.held, budget.reclaim()) for budget in budgets] == [(0, 0), (0, 0)]
        assert [client.touched for client in self._clients if client.touched] == []


@asynccontextmanager
async def opened(path: Path, *values: str) -> AsyncIterator[tuple[Door, str]]:
    """A door, and a member of a group that has these messages before it."""
    async with served(path) as found:
        await found.call("create_topic", name="orders", num_partitions=1)
        if values:
            await found.call("publish_batch", topic="orders", messages=[{"value": value} for value in values])
        joined = await found.call("join_group", group="g", client_id="c", topics=["orders"])
        yield Door(found), joined["member_id"]


def test_a_reply_that_cannot_be_written_is_taken_back(tmp_path: Path) -> None:
    async def body() -> None:
        async with opened(tmp_path, "1", "2") as (door, member):
            gone = Client()
            gone.takes = False
            with pytest.raises(asyncio.CancelledError):
                await door.poll(gone, member)
            door.check_nothing_is_held()
            polled = await door.poll(Client(), member)
            assert [(message.value, message.delivery_count) for message in polled.messages] == [(b"1", 1), (b"2", 1)]

    run(body())


def test_a_reply_counts_until_it_is_taken(tmp_path: Path) -> None:
    async def body() -> None:
        async with opened(tmp_path, "1") as (door, member):
            slow = Client()
            slow.stuck = asyncio.get_running_loop().create_future()
            polling = asyncio.ensure_future(door.poll(slow, member))
            await turns()
            assert door.broker.replies.held > 0
            slow.stuck.set_result(None)
            assert len((await polling).messages) == 1
            door.check_nothing_is_held()

    run(body())


def test_a_reply_that_is_not_taken_is_undone_and_counts_for_as_long_as_it_is_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "REPLY_TIMEOUT_S", 0.01)
    monkeypatch.setattr(limits, "GRPC_LAST_WORDS_S", 0.01)

    async def body() -> None:
        async with opened(tmp_path, "1") as (door, member):
            slow = Client()
            slow.stuck = asyncio.get_running_loop().create_future()
            polling = asyncio.ensure_future(door.poll(slow, member))
            await door.given_up("poll")
            assert not polling.done(), "it hears of that when it reads"
            assert door.broker.replies.held == BY_NAME["poll"].reply_bytes
            slow.stuck.set_result(None)
            with pytest.raises(Ended, match="DEADLINE_EXCEEDED"):
                await polling
            door.check_nothing_is_held()
            assert len((await door.poll(Client(), member)).messages) == 1

    run(body())


def test_a_request_that_is_too_large_is_refused_whatever_else_is_in_flight(tmp_path: Path) -> None:
    async def body() -> None:
        async with opened(tmp_path) as (door, _):
            full = door.broker.requests.take_anyway(door.broker.requests.limit)
            with pytest.raises(Ended, match="at most"):
                await door.begin("ack", Client(), receipt_handles=["x" * limits.MAX_SMALL_BODY_BYTES])
            full.give()

    run(body())


def test_a_large_request_does_not_wait_for_room_and_a_small_one_needs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ADMISSION_WAIT_S", 10 * PATIENCE_S)

    async def body() -> None:
        async with opened(tmp_path) as (door, _):
            full = door.broker.requests.take_anyway(door.broker.requests.limit)
            with pytest.raises(Ended, match="RESOURCE_EXHAUSTED"):
                await door.begin("publish", Client(), topic="orders", value=b"x" * (limits.SMALL_JSON_BYTES + 1))
            await door.begin("publish", Client(), topic="orders", value=b"x")
            full.give()
            door.check_nothing_is_held()

    run(body())


def test_calls_that_wait_are_so_many_and_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GRPC_PLACES", 1)

    async def body() -> None:
        async with opened(tmp_path) as (door, member):
            first = asyncio.ensure_future(door.poll(Client(), member, "30s"))
            await turns()
            for work in (door.poll(Client(), member), door.publish(Client())):
                with pytest.raises(Ended, match="RESOURCE_EXHAUSTED"):
                    await work
            await door.begin("health", Client())
            await door.begin("list_topics", Client())
            first.cancel()
            await door.finish()
            await door.poll(Client(), member)

    run(body())


def test_a_call_counts_as_ok_once_its_reply_is_taken(tmp_path: Path) -> None:
    async def body() -> None:
        async with opened(tmp_path, "1") as (door, member):
            gone = Client()
            gone.takes = False
            with pytest.raises(asyncio.CancelledError):
                await door.poll(gone, member)
            await door.poll(Client(), member)
            counted = door.service.requests.meters("grpc", "poll").codes
            assert counted.counts == {"cancelled": 1, "ok": 1}

    run(body())


def test_a_client_that_leaves_ends_its_wait(tmp_path: Path) -> None:
    async def body() -> None:
        async with opened(tmp_path) as (door, member):
            polling = asyncio.ensure_future(door.poll(Client(), member, "30s"))
            await turns()
            assert len(door.broker.groups.parks) == 1
            polling.cancel()
            await turns()
            assert polling.cancelled()
            assert len(door.broker.groups.parks) == 0
            door.check_nothing_is_held()

    run(body())


def test_what_was_begun_is_finished_without_its_client(tmp_path: Path) -> None:
    async def body() -> None:
        async with opened(tmp_path) as (door, _):
            creating = asyncio.ensure_future(door.begin("create_topic", Client(), name="later", num_partitions=1))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            creating.cancel()
            while "later" not in door.broker.topics.by_name:
                await asyncio.sleep(0)
            assert creating.cancelled()

    run(body())


@pytest.mark.parametrize("left", [1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144])
def test_whenever_a_client_leaves_its_messages_are_there_for_the_next(tmp_path: Path, left: int) -> None:
    async def body() -> None:
        async with opened(tmp_path, "1") as (door, member):
            client = Client()
            polling = asyncio.ensure_future(door.poll(client, member))
            await turns(left)
            polling.cancel()
            await asyncio.wait((polling,))
            await door.finish()
            door.check_nothing_is_held()
            if polling.cancelled():
                assert len((await door.poll(Client(), member)).messages) == 1
            else:
                assert len(polling.result().messages) == 1

    run(body())


def test_a_broker_that_stops_refuses_calls_but_tells_its_health(tmp_path: Path) -> None:
    async def body() -> None:
        async with opened(tmp_path) as (door, _):
            door.broker.drain()
            with pytest.raises(Ended, match="UNAVAILABLE"):
                await door.begin("list_topics", Client())
            health = pb.HealthReply.FromString(await door.begin("health", Client()))
            assert health.status == "draining"
            door.check_nothing_is_held()

    run(body())


def test_a_bug_is_told_and_disturbs_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        async with opened(tmp_path) as (door, _):
            monkeypatch.setattr(door.broker.groups, "all_sure", None)
            with pytest.raises(Ended, match="a bug in GoQueue"):
                await door.begin("list_groups", Client())
            door.check_nothing_is_held()

    run(body())


def test_a_subscriber_that_does_not_read_holds_one_batch_at_most(tmp_path: Path) -> None:
    async def body() -> None:
        async with opened(tmp_path, *(str(number) for number in range(50))) as (door, member):
            client = Client()
            serving = asyncio.ensure_future(door.subscribe(client))
            subscription = {"group": "g", "member_id": member, "max_messages": 5, "max_bytes": 1000}
            client.requests.put_nowait(pb.SubscribeRequest(subscription=subscription).SerializeToString())
            while not client.written:
                await asyncio.sleep(0)
            client.stuck = asyncio.get_running_loop().create_future()
            client.requests.put_nowait(pb.SubscribeRequest(credit=50).SerializeToString())
            await turns(200)
            assert door.broker.replies.held == 1000
            client.takes = False
            client.stuck.set_result(None)
            await asyncio.wait((serving,))
            await turns(50)
            door.check_nothing_is_held()
            polled = await door.poll(Client(), member)
            assert [message.offset for message in polled.messages] == list(range(50))

    run(body())


def test_a_subscriber_is_told_of_damage_that_no_message_comes_with(tmp_path: Path) -> None:
    async def body() -> None:
        async with served(tmp_path) as found:
            await found.call("create_topic", name="orders", num_partitions=1, fsync="every")
            await found.call("publish", topic="orders", value="to be damaged", acks="all")
            (path,) = tmp_path.glob("logs/orders/*/0/*.log")
        data = bytearray(path.read_bytes())
        data[data.index(b"to be damaged")] ^= 1
        path.write_bytes(data)
        async with served(tmp_path) as found:
            door, client = Door(found), Client()
            serving = asyncio.ensure_future(door.subscribe(client))
            join = {"group": "g", "client_id": "c", "topics": ["orders"]}
            first = pb.SubscribeRequest(subscription={"join": join}, credit=5)
            client.requests.put_nowait(first.SerializeToString())
            damage: list[Any] = []
            async with asyncio.timeout(PATIENCE_S):
                while not damage:
                    await asyncio.sleep(0)
                    replies = [pb.SubscribeReply.FromString(data) for data in client.written]
                    damage = [each for reply in replies for each in reply.batch.damage]
            assert [(each.topic, each.partition, each.first, each.next_offset) for each in damage] == [
                ("orders", 0, 0, 1)
            ]
            written = len(client.written)
            await turns(200)
            assert len(client.written) == written, "once"
            client.requests.put_nowait(grpc.aio.EOF)
            await serving
            door.check_nothing_is_held()

    run(body())


def test_a_subscriber_is_told_what_is_closed_to_groups(tmp_path: Path) -> None:
    async def body() -> None:
        async with served(tmp_path) as found:
            await found.call("create_topic", name="orders", num_partitions=2)
            await found.call("publish", topic="orders", value="1", partition=0)
            found.broker.topics.named("orders").partition(1).sidecar_damage = DamagedState("it was eaten")
            door, client = Door(found), Client()
            serving = asyncio.ensure_future(door.subscribe(client))
            join = {"group": "g", "client_id": "c", "topics": ["orders"]}
            first = pb.SubscribeRequest(subscription={"join": join}, credit=5)
            client.requests.put_nowait(first.SerializeToString())
            while len(client.written) < 2:
                await asyncio.sleep(0)
            batch = pb.SubscribeReply.FromString(client.written[1]).batch
            assert [message.offset for message in batch.messages] == [0]
            assert [(each.topic, each.partition, each.reason) for each in batch.incomplete] == [
                ("orders", 1, "it was eaten")
            ]
            client.requests.put_nowait(grpc.aio.EOF)
            await serving

    run(body())


def test_what_is_no_frame_is_refused_and_a_frame_holds_nothing(tmp_path: Path) -> None:
    async def body() -> None:
        async with opened(tmp_path) as (door, _):
            sent = pb.PublishFrame(topic="orders", messages=[pb.Message(value=b"1")])
            frame = Frame(door.broker, 3)
            frame.publish(sent.SerializeToString())
            assert not frame.waits
            reply = frame.answer()
            assert (reply.frame, reply.durability, reply.ranges[0].count) == (3, "written", 1)
            with pytest.raises(Exception, match="not a PublishFrame"):
                Frame(door.broker, 0).publish(b"\xff\xff")

    run(body())


@pytest.mark.parametrize("count", [1, 255, 256, 257, 258])
def test_a_publisher_that_reads_nothing_does_not_keep_its_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(limits, "REPLY_TIMEOUT_S", 0.05)
    monkeypatch.setattr(limits, "GRPC_LAST_WORDS_S", 0.01)

    async def body() -> None:
        async with opened(tmp_path) as (door, _):
            client = Client()
            client.stuck = asyncio.get_running_loop().create_future()
            sent = pb.PublishFrame(topic="orders", messages=[pb.Message(value=b"1")]).SerializeToString()
            for _ in range(count):
                client.requests.put_nowait(sent)
            client.requests.put_nowait(grpc.aio.EOF)
            serving = asyncio.ensure_future(door.publish(client))
            while not door.held.busy:
                await asyncio.sleep(0)
            async with asyncio.timeout(PATIENCE_S):
                await door.finish()
            client.stuck.set_result(None)
            with pytest.raises(Ended, match="not taken in time"):
                await serving
            door.check_nothing_is_held()

    run(body())


def test_a_door_that_closes_does_not_wait_for_who_does_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "GRPC_LAST_WORDS_S", 0.05)

    async def body() -> None:
        async with opened(tmp_path) as (door, _):
            client = Client()
            client.stuck = asyncio.get_running_loop().create_future()
            sent = pb.PublishFrame(topic="orders", messages=[pb.Message(value=b"1")]).SerializeToString()
            for _ in range(300):
                client.requests.put_nowait(sent)
            serving = asyncio.ensure_future(door.publish(client))
            await turns(1000)
            door.held.drain()
            async with asyncio.timeout(PATIENCE_S):
                await door.finish()
            client.takes = False
            client.stuck.set_result(None)
            with pytest.raises(Ended, match=r"DEADLINE_EXCEEDED|UNAVAILABLE"):
                await serving
            door.check_nothing_is_held()

    run(body())


def test_what_a_subscriber_asks_for_counts_while_it_is_done(tmp_path: Path) -> None:
    async def body() -> None:
        async with opened(tmp_path) as (door, member):
            client = Client()
            serving = asyncio.ensure_future(door.subscribe(client))
            client.requests.put_nowait(
                pb.SubscribeRequest(subscription={"group": "g", "member_id": member}).SerializeToString()
            )
            while not client.written:
                await asyncio.sleep(0)
            client.stuck = asyncio.get_running_loop().create_future()
            asked = pb.SubscribeRequest(ack={"receipt_handles": ["x" * 300] * 300}).SerializeToString()
            client.requests.put_nowait(asked)
            await turns(50)
            assert door.broker.requests.held == len(asked) + 301 * limits.VALUE_BYTES
            client.stuck.set_result(None)
            await turns(50)
            assert door.broker.requests.held == 0
            full = door.broker.requests.take_anyway(door.broker.requests.limit)
            client.requests.put_nowait(asked)
            with pytest.raises(Ended, match="RESOURCE_EXHAUSTED"):
                await serving
            assert door.broker.requests.held == full.size == door.broker.requests.limit

    run(body())


@pytest.mark.parametrize("vanished", [False, True])
def test_a_client_that_vanished_is_told_from_one_that_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vanished: bool
) -> None:
    if vanished:
        monkeypatch.setattr(limits, "GRPC_MOMENT_S", 10 * PATIENCE_S)

    async def body() -> None:
        async with opened(tmp_path) as (door, _):
            client = Client()
            join = {"group": "others", "client_id": "c", "topics": ["orders"]}
            client.requests.put_nowait(pb.SubscribeRequest(subscription={"join": join}).SerializeToString())
            client.requests.put_nowait(grpc.aio.EOF)
            serving = asyncio.ensure_future(door.subscribe(client))
            if vanished:
                while not (client.requests.empty() and client.written):
                    await asyncio.sleep(0)
                await turns()
                serving.cancel()  # the one way in which the library tells of it
            await asyncio.wait((serving,))
            assert len(door.broker.groups.machine.by_name["others"].members) == vanished

    run(body())


def test_an_error_about_the_producer_is_not_blamed_on_the_message(tmp_path: Path) -> None:
    async def body() -> None:
        async with opened(tmp_path) as (door, _):
            producer = {"topic": "orders", "partition": 0, "producer_id": 77, "epoch": 0, "sequence": 5}

            def refused(*values: bytes, **fields: Any) -> Any:
                messages = [pb.Message(value=value) for value in values]
                sent = pb.PublishFrame(messages=messages, **{**producer, **fields})
                frame = Frame(door.broker, 0)
                frame.publish(sent.SerializeToString())
                (error,) = frame.answer().errors
                return error

            for values in ((b"1",), (b"1", b"2")):
                for fields in ({}, {"partition": 9}):
                    error = refused(*values, **fields)
                    assert (error.HasField("index"), "index" in error.details) == (False, False), error
            error = refused(b"1", b"x" * 2_000_000)
            assert (error.code, error.index, error.details["index"]) == ("too_large", 1, "1")

    run(body())


# --- requests of many tiny things

EMPTY = {
    "PublishBatchRequest": ("messages", "publish_batch"),
    "PublishRequest": ("headers", "publish"),
}


@pytest.mark.parametrize("name", EMPTY)
def test_megabytes_of_empty_messages_are_refused_before_anything_is_made_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def decode(*_: Any) -> None:
        raise AssertionError("it was decoded")

    monkeypatch.setattr(Call, "_decode", decode)
    field, operation = EMPTY[name]
    tag = getattr(pb, name).DESCRIPTOR.fields_by_name[field].number << 3 | 2

    async def body() -> None:
        async with opened(tmp_path) as (door, _):
            request = getattr(pb, name)(topic="orders").SerializeToString() + bytes([tag, 0]) * (4 * limits.MIB)
            with pytest.raises(Ended, match="values"):
                await door.send(operation, Client(), request)
            door.check_nothing_is_held()

    run(body())


def test_a_call_with_many_messages_is_answered_as_if_it_had_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "TURN_S", -1.0)
    monkeypatch.setattr(limits, "SMALL_JSON_BYTES", 100)

    async def body() -> None:
        async with opened(tmp_path) as (door, _):
            messages = [
                pb.Message(value=b"%d" % number, headers=[pb.Header(name="a", value=b"b")]) for number in range(200)
            ]
            messages[150] = pb.Message(value=b"x" * 2_000_000)
            reply = pb.PublishResults.FromString(
                await door.begin("publish_batch", Client(), topic="orders", messages=messages)
            )
            assert [result.code for result in reply.results if result.code] == ["too_large"]
            assert [result.offset for result in reply.results if not result.code] == list(range(199))
            page = Client()
            await door.begin("read_partition", page, topic="orders", partition=0, limit=500)
            found = pb.Messages.FromString(page.written[0])
            assert [message.value for message in found.messages] == [
                message.value for message in messages if message is not messages[150]
            ]
            assert {(header.name, header.value) for message in found.messages for header in message.headers} == {
                ("a", b"b")
            }
            door.check_nothing_is_held()

    run(body())


def test_a_large_frame_is_answered_in_its_place_also_when_the_door_closes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "TURN_S", -1.0)
    monkeypatch.setattr(limits, "SMALL_JSON_BYTES", 100)
    monkeypatch.setattr(publishing, "FEW_VALUES", 100)

    async def body() -> None:
        async with opened(tmp_path) as (door, _):
            client = Client()
            serving = asyncio.ensure_future(door.publish(client))
            small = pb.PublishFrame(topic="orders", messages=[pb.Message(value=b"x")])
            large = pb.PublishFrame(topic="orders", messages=[pb.Message(value=b"y", ttl="1h")] * 200)
            tiny = pb.PublishFrame(topic="orders", messages=[pb.Message()] * (limits.MAX_VALUES + 1))
            for frame in (small, large, tiny, small, large):
                client.requests.put_nowait(frame.SerializeToString())
            while len(client.written) < 4:
                await asyncio.sleep(0)
            door.held.drain()
            with pytest.raises(Ended, match="UNAVAILABLE"):
                await serving
            replies = [pb.PublishFrameReply.FromString(written) for written in client.written]
            assert [reply.frame for reply in replies] == [0, 1, 2, 3, 4]
            assert [sum(place.count for place in reply.ranges) for reply in replies] == [1, 200, 0, 1, 200]
            assert [error.code for reply in replies for error in reply.errors] == ["too_large"]


# --- frames whose messages are refused


def a_frame_of_empty_messages(count: int = limits.MAX_MESSAGES_PER_REQUEST) -> bytes:
    found: bytes = pb.PublishFrame(topic="orders", messages=[pb.Message()] * count).SerializeToString()
    return found


def test_a_frame_whose_messages_are_refused_takes_turns_for_them_and_for_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "TURN_S", -1.0)  # every step takes longer than a turn may

    async def body() -> None:
        async with opened(tmp_path) as (door, _):
            client, count, others = Client(), 1000, [0]

            async def other() -> None:
                while True:
                    others[0] += 1
                    await asyncio.sleep(0)

            client.requests.put_nowait(a_frame_of_empty_messages(count))
            client.requests.put_nowait(grpc.aio.EOF)
            meanwhile = asyncio.ensure_future(other())
            await door.publish(client)
            meanwhile.cancel()
            assert others[0] > 2 * count // STEP, "once for the messages, and once for the refusals"
            reply = pb.PublishFrameReply.FromString(client.written[0])
            assert [error.index for error in reply.errors] == [*range(count)]
            assert {error.details["index"] for error in reply.errors} == {*map(str, range(count))}
            assert {error.code for error in reply.errors} == {"invalid_request"}
            errors = door.broker.topics.named("orders").meters.errors.counts
            assert errors == {"invalid_request": count}, "each message that was refused"
            door.check_nothing_is_held()

    run(body())


def test_a_few_messages_with_many_headers_take_turns_too(tmp_path: Path) -> None:
    async def body() -> None:
        async with opened(tmp_path) as (door, _):
            many = pb.Message(value=b"x", headers=[pb.Header()] * 500)
            frame = Frame(door.broker, 0)
            left = frame.publish(pb.PublishFrame(topic="orders", messages=[many] * 50).SerializeToString())
            assert left is not None
            await frame.finish(door.service.turns, left)
            assert [(each.count, each.first_offset) for each in frame.answer().ranges] == [(50, 0)]

    run(body())


def test_what_is_kept_of_refused_messages_is_one_error_that_holds_nothing(tmp_path: Path) -> None:
    async def body() -> None:
        async with opened(tmp_path) as (door, _):
            frame = Frame(door.broker, 0)
            left = frame.publish(a_frame_of_empty_messages())
            assert left is not None
            await frame.finish(door.service.turns, left)
            assert frame._batch is not None
            (refused,) = frame._batch.refused
            assert len(refused.ordinals) == refused.failures == limits.MAX_MESSAGES_PER_REQUEST
            error = refused.error
            assert (error.__traceback__, error.__context__, error.__cause__) == (None, None, None)
            unknown = Frame(door.broker, 1)
            unknown.publish(pb.PublishFrame(topic="nowhere", messages=[pb.Message(value=b"1")]).SerializeToString())
            assert unknown._failure is not None
            assert unknown._failure.__traceback__ is None

    run(body())


def test_no_more_frames_are_read_while_answers_that_are_not_taken_hold_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame, count = a_frame_of_empty_messages(1000), 80
    monkeypatch.setattr(limits, "GRPC_PENDING_BYTES", 10 * 1000)

    async def body() -> None:
        async with opened(tmp_path) as (door, _):
            client = Client()
            client.stuck = asyncio.get_running_loop().create_future()
            for _ in range(count):
                client.requests.put_nowait(frame)
            client.requests.put_nowait(grpc.aio.EOF)
            serving = asyncio.ensure_future(door.publish(client))
            await turns(100 * count)
            assert client.requests.qsize() > count - 10, "each holds two bytes a message, and what is said of them"
            client.stuck.set_result(None)
            await serving
            assert [pb.PublishFrameReply.FromString(each).frame for each in client.written] == [*range(count)]
            door.check_nothing_is_held()

    run(body())


def test_a_value_beside_tombstone_is_refused_in_a_frame_as_in_a_call(tmp_path: Path) -> None:
    async def body() -> None:
        async with opened(tmp_path) as (door, _):
            both = pb.Message(key=b"k", value=b"v", tombstone=True)
            frame = Frame(door.broker, 0)
            frame.publish(pb.PublishFrame(topic="orders", messages=[both]).SerializeToString())
            (error,) = frame.answer().errors
            assert (error.code, error.error) == (
                "invalid_request", "a tombstone has no value; leave out one of the two",
            )  # fmt: skip
            assert door.broker.topics.named("orders").partition(0).log.end_offset == 0

    run(body())


# --- unknown fields

UNKNOWN = bytes([0x98, 0x06, 1])
"""A field of number 99."""


@pytest.mark.parametrize("name", ["PublishBatchRequest", "PublishFrame"])
def test_very_many_unknown_fields_are_refused_before_anybody_looks_which_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def look(*_: Any) -> None:
        raise AssertionError("it was looked")

    for module in (translating, frames):
        monkeypatch.setattr(module, "UnknownFieldSet", look)

    async def body() -> None:
        async with opened(tmp_path) as (door, _):
            client = Client()
            beside = getattr(pb, name)(topic="orders").SerializeToString() + UNKNOWN * 100_000
            if name == "PublishFrame":
                for sent in (beside, grpc.aio.EOF):
                    client.requests.put_nowait(sent)
                await door.publish(client)
                (error,) = pb.PublishFrameReply.FromString(client.written[0]).errors
                assert (error.code, "more fields than it may" in error.error) == ("too_large", True)
            else:
                with pytest.raises(Ended, match="more fields than it may"):
                    await door.send("publish_batch", client, beside)
            door.check_nothing_is_held()

    run(body())


def test_a_message_with_very_many_unknown_fields_is_refused_alone(tmp_path: Path) -> None:
    async def body() -> None:
        async with opened(tmp_path) as (door, _):
            one = pb.Message.FromString(pb.Message(value=b"1").SerializeToString() + UNKNOWN * 30_000)
            sent = pb.PublishFrame(topic="orders", messages=[one, pb.Message(value=b"2")]).SerializeToString()
            frame = Frame(door.broker, 0)
            left = frame.publish(sent)
            assert left is not None
            await frame.finish(door.service.turns, left)
            reply = frame.answer()
            assert [(error.code, error.index) for error in reply.errors] == [("too_large", 0)]
            client = Client()
            told = await door.begin("publish_batch", client, topic="orders", messages=[one, pb.Message(value=b"3")])
            results = pb.PublishResults.FromString(told).results
            assert [result.code for result in results] == ["too_large", ""]

    run(body())


def test_a_subscriber_that_sends_too_many_fields_is_refused_before_they_are_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Request:
        @staticmethod
        def FromString(_: bytes) -> None:  # noqa: N802
            raise AssertionError("it was decoded")

    async def body() -> None:
        async with opened(tmp_path) as (door, _):
            monkeypatch.setattr(pb, "SubscribeRequest", Request)
            client = Client()
            client.requests.put_nowait(UNKNOWN * (limits.MAX_SMALL_VALUES + 1))
            with pytest.raises(Ended, match="fields in all"):
                await door.subscribe(client)
            door.check_nothing_is_held()

    run(body())


def test_who_leaves_while_it_waits_for_room_stands_in_nobody_s_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ADMISSION_WAIT_S", 10 * PATIENCE_S)

    async def body() -> None:
        async with opened(tmp_path, "1") as (door, _):
            replies = door.broker.replies
            full = replies.take_anyway(replies.limit)
            reading = asyncio.ensure_future(door.begin("read_partition", Client(), topic="orders", partition=0))
            while not replies._waiting:
                await asyncio.sleep(0)
            reading.cancel()
            await asyncio.wait((reading,))
            await door.finish()
            assert not replies._waiting
            full.give()
            door.check_nothing_is_held()

    run(body())


def test_calls_whose_deadline_was_over_take_no_room_from_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_CONNECTION_BYTES", BY_NAME["read_partition"].reply_bytes)
    monkeypatch.setattr(limits, "ADMISSION_WAIT_S", 10 * PATIENCE_S)

    async def body() -> None:
        async with opened(tmp_path, "1") as (door, _):
            late = [Client() for _ in range(3)]
            for client in late:
                client.address, client.stuck = "", asyncio.get_running_loop().create_future()
            calls = [
                asyncio.ensure_future(door.begin("read_partition", client, topic="orders", partition=0))
                for client in late
            ]
            await turns()
            assert door.broker.replies.held == limits.MAX_CONNECTION_BYTES, "they have one budget"
            somebody = Client()
            await door.begin("read_partition", somebody, topic="orders", partition=0)
            assert len(pb.Messages.FromString(somebody.written[0]).messages) == 1
            for call in calls:
                call.cancel()
            for client in late:
                assert client.stuck is not None
                client.stuck.cancel()
            await asyncio.wait(calls)
            await door.finish()
            door.check_nothing_is_held()

    run(body())


def test_a_write_that_fails_when_nobody_waits_for_it_any_more_is_no_error() -> None:
    """Its client has left, which its handler has heard already."""
    slips: list[dict[str, Any]] = []

    async def body() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: slips.append(context))
        client = Client()
        client.stuck, client.takes = asyncio.get_running_loop().create_future(), False

        async def handle() -> None:
            async with Caller(cast(Any, client), Admission(1)) as caller:
                await caller.write(b"x")

        handling = asyncio.ensure_future(handle())
        await turns()
        handling.cancel()
        await turns()
        client.stuck.set_result(None)
        await asyncio.wait((handling,))
        assert handling.cancelled()

    run(body())
    gc.collect()  # a task that failed tells of it when it goes
    assert slips == []


def test_who_has_left_before_it_is_refused_is_no_error(tmp_path: Path) -> None:
    async def body() -> None:
        async with opened(tmp_path) as (door, _):
            client = Client()
            client.gone = True
            with pytest.raises(asyncio.CancelledError):
                await door.begin("describe_topic", client, topic="nowhere")
            door.check_nothing_is_held()

    run(body())


def test_who_leaves_while_its_request_is_read_does_not_wait_for_room_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ADMISSION_WAIT_S", 10 * PATIENCE_S)

    async def body() -> None:
        async with opened(tmp_path) as (door, _):
            replies = door.broker.replies
            full = replies.take_anyway(replies.limit)
            many = ["x" * 200] * (limits.SMALL_JSON_BYTES // 200 + 1)
            async with door.service.turns.turn():
                asking = asyncio.ensure_future(door.begin("metadata", Client(), topics=many))
                await turns()
                asking.cancel()
                await asyncio.wait((asking,))
            await door.finish()
            full.give()
            door.check_nothing_is_held()

    run(body())
