"""The front door: addresses, operations by their names, and what may be asked twice."""

import asyncio
import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

import goqueue
from goqueue.api.operations import BY_NAME
from goqueue.client import client as front_door
from goqueue.client import producer as publishing
from goqueue.client.client import DEFAULT_ADDRESS, REPEATABLE, AsyncClient
from goqueue.client.consumer import AsyncConsumer
from goqueue.client.producer import AsyncProducer
from goqueue.client.reader import AsyncReader
from goqueue.client.settling import Refused
from goqueue.model.errors import InvalidRequest, ProtocolError, Unavailable, UnknownOperation, UnknownTopic
from goqueue.wire.codes import CODES
from tests.support.broker_server import running_server
from tests.support.loop import run
from tests.support.patience import PATIENCE_S
from tests.unit.client.fake_broker import HOST, Peer, serving
from tests.unit.client.misuse import JUNK, Refusals, misuses


def test_the_address_is_that_of_a_broker_as_it_is_started() -> None:
    client = AsyncClient()
    assert f"{client._endpoint.host}:{client._endpoint.port}" == DEFAULT_ADDRESS
    with pytest.raises(InvalidRequest, match="is no address"):
        AsyncClient("nowhere")


def test_any_operation_is_called_by_its_name_with_the_fields_of_its_path(tmp_path: Path) -> None:
    async def go() -> None:
        async with running_server(tmp_path) as server, AsyncClient(server.endpoints["wire"]) as client:
            await client.call("create_topic", name="orders", num_partitions=2)
            assert (await client.call("describe_topic", topic="orders"))["partitions"] == 2
            with pytest.raises(UnknownTopic):
                await client.call("describe_topic", topic="nothing")

    run(go())


@pytest.mark.parametrize("operation", ["", "fly", *(name for name in CODES if name.endswith("_block"))])
def test_what_is_no_operation_with_fields_is_refused_before_it_is_sent(operation: str) -> None:
    async def go() -> None:
        with pytest.raises(UnknownOperation, match="there is no operation"):
            await AsyncClient("127.0.0.1:1").call(operation)

    run(go())


SAME_AGAIN = {"commit_many", "heartbeat", "metadata", "producer_heartbeat", "put_reader"}


def test_only_what_changes_nothing_or_the_same_again_is_asked_twice() -> None:
    assert set(CODES) >= REPEATABLE
    for name in REPEATABLE & set(BY_NAME):
        assert BY_NAME[name].method == "GET" or name in SAME_AGAIN, name


def test_what_reads_is_asked_again_when_the_connection_is_lost_and_what_changes_is_not() -> None:
    async def go() -> None:
        asked: list[int] = []

        async def talk(peer: Peer) -> None:
            request = await peer.read()
            asked.append(request.operation)
            if len(asked) > 1:
                peer.reply(request, msgspec.json.encode({"topics": []}))
                await peer.read_all()

        async with serving(talk) as port:
            async with AsyncClient(f"{HOST}:{port}") as client:
                assert (await client.list_topics()).topics == []
            asked.clear()
            async with AsyncClient(f"{HOST}:{port}") as client:
                with pytest.raises(Unavailable):
                    await client.create_topic("orders")
            assert asked == [CODES["create_topic"]]

    run(go())


def test_a_reply_that_is_not_understood_says_so() -> None:
    async def go() -> None:
        async def talk(peer: Peer) -> None:
            peer.reply(await peer.read(), b'{"topics":5}')
            await peer.read_all()

        async with serving(talk) as port, AsyncClient(f"{HOST}:{port}") as client:
            with pytest.raises(ProtocolError, match="the reply to list_topics is not understood"):
                await client.list_topics()

    run(go())


def test_a_closed_client_asks_nothing_more() -> None:
    async def go() -> None:
        client = AsyncClient("127.0.0.1:1")
        await client.close()
        await client.close()
        with pytest.raises(Unavailable, match="this client is closed"):
            await client.list_topics()

    run(go())


def test_producers_consumers_and_readers_are_made_without_a_broker() -> None:
    async def go() -> None:
        client = AsyncClient("127.0.0.1:1")
        made: list[Any] = [client.producer(), client.consumer("billing", ["orders"]), client.reader("orders")]
        assert [type(each) for each in made] == [AsyncProducer, AsyncConsumer, AsyncReader]
        assert isinstance(made[0], AsyncProducer)
        await made[0].close()
        assert len(asyncio.all_tasks()) == 1, "nothing goes on behind this"

    run(go())


def test_closing_a_client_flushes_its_producers_and_closes_the_rest(tmp_path: Path) -> None:
    async def go() -> None:
        async with running_server(tmp_path) as server:
            client = AsyncClient(server.endpoints["wire"])
            await client.create_topic("orders", partitions=1)
            producer, reader = client.producer(), client.reader("orders")
            for number in range(100):
                producer.enqueue("orders", str(number))
            await client.close()
            assert (producer.closed, reader.closed) == (True, True)
            with pytest.raises(Unavailable, match="closed"):
                client.producer()
            async with AsyncClient(server.endpoints["wire"]) as other:
                assert (await other.describe_topic("orders")).total_messages == 100

    run(go())


def test_what_cannot_be_closed_keeps_nothing_else_open(tmp_path: Path) -> None:
    async def go() -> None:
        async with running_server(tmp_path) as server:
            client = AsyncClient(server.endpoints["wire"])
            await client.create_topic("orders", partitions=1)
            first, second, reader = client.producer(), client.producer(), client.reader("orders")
            first.enqueue("nothing", "lost")
            second.enqueue("orders", "kept")
            with pytest.raises(UnknownTopic, match="nothing"):
                await client.close()
            assert (first.closed, second.closed, reader.closed) == (True, True, True)
            with pytest.raises(Unavailable, match="closed"):
                await client.version()
            async with AsyncClient(server.endpoints["wire"]) as other:
                assert (await other.describe_topic("orders")).total_messages == 1

    run(go())


def test_who_is_cancelled_while_it_closes_leaves_nothing_open(tmp_path: Path) -> None:
    async def go() -> None:
        async with running_server(tmp_path) as server:
            client = AsyncClient(server.endpoints["wire"])
            client.producer().enqueue("orders", "it is not there yet")
            reader = client.reader("orders")
            closing = asyncio.create_task(client.close())
            await asyncio.sleep(0)
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
            assert reader.closed

    run(go())


async def leave_in_a_hurry(client: AsyncClient, *producers: AsyncProducer) -> None:
    """A program that is cancelled inside a client, whose producers were not entered."""
    begun = asyncio.Event()

    async def program() -> None:
        async with client:
            for producer in producers:
                for number in range(20):
                    producer.enqueue("orders", str(number))
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.ensure_future(program())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert all(producer.closed for producer in producers)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]


def test_who_leaves_a_client_in_a_hurry_publishes_what_was_enqueued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(front_door, "HURRY_S", 0.0)  # of readers and consumers
    monkeypatch.setattr(publishing, "LEAVE_S", PATIENCE_S)

    async def go() -> None:
        async with running_server(tmp_path) as server:
            client = AsyncClient(server.endpoints["wire"])
            await client.create_topic("orders", partitions=1)
            await leave_in_a_hurry(client, client.producer(linger=60), client.producer(linger=60))
            async with AsyncClient(server.endpoints["wire"]) as other:
                assert (await other.describe_topic("orders")).total_messages == 40

    run(go())
    assert warnings_of(caplog) == []


def test_what_a_client_left_in_a_hurry_cannot_publish_is_counted_and_waited_for_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(publishing, "LEAVE_S", 0.1)
    steps: list[str] = []
    leave = AsyncProducer.leave

    async def watched(producer: AsyncProducer) -> None:
        steps.append("begun")
        await leave(producer)
        steps.append("over")

    monkeypatch.setattr(AsyncProducer, "leave", watched)

    async def go() -> None:
        client = AsyncClient("127.0.0.1:1")
        await leave_in_a_hurry(client, *(client.producer() for _ in range(8)))

    run(go())
    assert steps == ["begun"] * 8 + ["over"] * 8, "they do not wait one after the other"
    lost = "a producer ended, and what the broker had not confirmed was discarded: 20 messages"
    assert [each for each in warnings_of(caplog) if "20 messages" in each] == [lost] * 8


def test_what_could_not_be_published_in_time_is_counted_when_a_client_is_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def go() -> None:
        client = AsyncClient("127.0.0.1:1", request_timeout=0.02)
        client.producer().enqueue("orders", "lost")
        await client.close()

    run(go())
    assert [each for each in warnings_of(caplog) if "1 messages" in each]


def test_an_error_in_a_client_goes_on_and_what_could_not_be_closed_is_a_note(tmp_path: Path) -> None:
    async def fail(address: str) -> None:
        async with AsyncClient(address) as client:
            client.producer().enqueue("nothing", "lost")
            raise ZeroDivisionError

    async def go() -> None:
        async with running_server(tmp_path) as server:
            with pytest.raises(ZeroDivisionError) as caught:
                await fail(server.endpoints["wire"])
            assert "could not close" in caught.value.__notes__[0]

    run(go())


async def try_all(refusals: Refusals, misused: Iterable[tuple[str, Callable[[], Any]]]) -> None:
    for what, call in misused:
        with refusals.of(what):
            outcome = call()
            if inspect.isawaitable(outcome):
                await outcome


def test_whatever_options_are_only_errors_of_this_tree_are_raised(tmp_path: Path) -> None:
    async def enter(part: Callable[[], Any]) -> None:
        async with part():
            pass

    async def go() -> None:
        async with running_server(tmp_path) as server, AsyncClient(server.endpoints["wire"]) as client:
            await client.create_topic("orders", partitions=1)
            refusals = Refusals()
            await try_all(refusals, misuses(AsyncClient, "127.0.0.1:1"))
            await try_all(refusals, misuses(client.call, "version"))
            consumers = misuses(client.consumer, "g", ["orders"])
            for what, make in (*misuses(client.producer), *misuses(client.reader, "orders"), *consumers):
                with refusals.of(what):
                    await enter(make)
            assert len(refusals.seen) > 300

    run(go())


def test_whatever_messages_are_made_of_only_errors_of_this_tree_are_raised(tmp_path: Path) -> None:
    async def go() -> None:
        async with running_server(tmp_path) as server, AsyncClient(server.endpoints["wire"]) as client:
            await client.create_topic("orders", partitions=1)
            refusals = Refusals()
            async with client.producer() as producer:
                for _ in ("before its topic was looked up", "after"):
                    await try_all(refusals, misuses(producer.enqueue, "orders", "x"))
                    await try_all(refusals, misuses(producer.send, "orders", "x"))
                with refusals.of("flush"):
                    await producer.flush()  # what was enqueued for a topic that is not there
            assert len(refusals.seen) > 300

    run(go())


def test_whatever_is_decided_and_sought_only_errors_of_this_tree_are_raised(tmp_path: Path) -> None:
    async def go() -> None:
        async with running_server(tmp_path) as server, AsyncClient(server.endpoints["wire"]) as client:
            await client.create_topic("orders", partitions=1)
            async with client.producer() as producer:
                await asyncio.gather(*(producer.send("orders", "x") for _ in range(100)))
            refusals = Refusals()
            async with client.consumer("g", ["orders"], on_ack_error=refused.append) as consumer:
                batch = await consumer.poll(1)
                for each in (batch, batch[0]):
                    for junk in ("no", None, 2):
                        with pytest.raises(InvalidRequest, match=r"^wait is .*; it is True or False"):
                            await each.ack(wait=cast(bool, junk))
                    await try_all(refusals, misuses(each.nack))
                    await try_all(refusals, misuses(each.reject))
                    await try_all(refusals, misuses(each.extend, 5))
                await try_all(refusals, misuses(consumer.poll, 1, timeout=0, leave=("timeout",)))
                for junk in JUNK[1:]:  # without a timeout it would wait
                    with refusals.of(f"poll with timeout={junk!r}"):
                        await consumer.seek("orders", offset=0)
                        await consumer.poll(1, timeout=junk)
                await try_all(refusals, misuses(consumer.seek, "orders", offset=0))
            async with client.reader("orders") as reader:
                await try_all(refusals, misuses(reader.seek, 0, 0))
                await try_all(refusals, misuses(reader.read))
            assert len(refusals.seen) > 100

    refused: list[Refused] = []
    run(go())
    assert refused, "it was settled twice, and that is all"


def test_each_lost_connection_of_a_client_is_told_and_none_that_was_closed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def go() -> None:
        async with running_server(tmp_path) as server, AsyncClient(server.endpoints["wire"]) as client:
            await client.create_topic("orders")
            async with client.producer() as producer, client.reader("orders") as reader:
                await producer.send("orders", "x")
                for link in (client._link, producer._usual.blocks._link, reader._link):
                    assert caplog.messages == []
                    connection = await link.get()
                    ended = asyncio.Event()
                    connection.when_ended(ended.set)
                    connection.abort("a test")
                    await ended.wait()
                    await link.get()
                    assert [each.levelname for each in caplog.records] == ["WARNING"] * 2  # lost, and back
                    caplog.clear()
        assert caplog.messages == []

    run(go())


def test_a_client_belongs_to_one_event_loop(tmp_path: Path) -> None:
    made: list[AsyncClient] = []

    async def use(address: str) -> None:
        if not made:
            made.append(AsyncClient(address))
        await made[0].version()

    with goqueue.embedded(str(tmp_path)) as broker, asyncio.Runner() as first:
        first.run(use(broker.endpoints["wire"]))
        with pytest.raises(InvalidRequest, match="one event loop"):
            asyncio.run(use(broker.endpoints["wire"]))
        first.run(made[0].close())


def test_a_producer_takes_nothing_in_another_event_loop_or_in_none(tmp_path: Path) -> None:
    async def make(address: str) -> tuple[AsyncClient, AsyncProducer]:
        client = AsyncClient(address)
        await client.create_topic("orders", partitions=1)
        producer = client.producer()
        await producer.send("orders", "first")
        return client, producer

    async def enqueue(producer: AsyncProducer) -> None:
        producer.enqueue("orders", "elsewhere")

    with goqueue.embedded(str(tmp_path)) as broker, asyncio.Runner() as home:
        client, producer = home.run(make(broker.endpoints["wire"]))
        for use in (enqueue(producer), producer.send("orders", "elsewhere"), producer.flush(), producer.room()):
            with pytest.raises(InvalidRequest, match="one event loop"):
                asyncio.run(use)
        with pytest.raises(InvalidRequest, match="one event loop"):
            producer.enqueue("orders", "in none")
        home.run(client.close())
        assert [each["value"] for each in broker.call("read_partition", topic="orders", partition=0)["messages"]] == [
            "first"
        ]


@pytest.mark.parametrize("part", [None, "producer", "reader", "consumer"])
def test_what_lives_in_one_event_loop_is_not_closed_in_another(tmp_path: Path, part: str | None) -> None:
    async def use(address: str) -> tuple[AsyncClient, AsyncClient | front_door.Part]:
        client = AsyncClient(address)
        await client.create_topic("orders")
        if part == "producer":
            producer = client.producer()
            await producer.send("orders", "x")
            return client, producer
        if part == "reader":
            reader = client.reader("orders", follow=True)
            await reader.positions()
            await reader.read(timeout=0)
            return client, reader
        if part == "consumer":
            return client, await client.consumer("g", ["orders"]).__aenter__()
        return client, client

    with goqueue.embedded(str(tmp_path)) as broker, asyncio.Runner() as first:
        client, made = first.run(use(broker.endpoints["wire"]))
        for close in (made.close, client.close, client.leave):
            with pytest.raises(InvalidRequest, match="close it there"):
                asyncio.run(close())
        first.run(client.version())
        for close in (made.close, client.close):
            first.run(close())
            asyncio.run(close())
