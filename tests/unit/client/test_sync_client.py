"""The client without a loop, as a whole: threads, the end, and processes that end before it."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import goqueue
from goqueue.client.sync.client import Client
from goqueue.client.sync.loop import LoopThread
from goqueue.model.errors import InvalidRequest, RequestTimeout, Unavailable, UnknownOperation, UnknownTopic
from tests.support.patience import PATIENCE_S
from tests.unit.client.misuse import Refusals, misuses

NOWHERE = "127.0.0.1:1"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with goqueue.embedded(str(tmp_path_factory.mktemp("broker")), grpc="off") as broker:
        yield broker.endpoints["wire"]


@pytest.fixture
def topic(address: str, request: pytest.FixtureRequest) -> str:
    """One of the test's own."""
    name = request.node.name.removeprefix("test_")[:60].rstrip("_[]")
    with Client(address) as client:
        client.create_topic(name, partitions=1)
    return str(name)


def beside(work: Callable[[], Any]) -> "Future[Any]":
    """In a thread of its own; that it does not end does not keep the tests from ending."""
    future: Future[Any] = Future()

    def go() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=go, daemon=True).start()
    return future


def in_time(work: Callable[[], Any]) -> Any:
    """TimeoutError when it hangs."""
    return beside(work).result(PATIENCE_S)


def client_threads() -> int:
    return len([thread for thread in threading.enumerate() if thread.name == "goqueue-client"])


# --- threads


def test_a_client_made_in_one_thread_is_used_in_others(address: str, topic: str) -> None:
    client = in_time(lambda: Client(address))
    with client, ThreadPoolExecutor(4) as threads:
        names = [*threads.map(lambda _: client.describe_topic(topic).name, range(20))]
        assert names == [topic] * 20
        producer = threads.submit(client.producer).result(PATIENCE_S)
        offsets = [*threads.map(lambda number: producer.send(topic, str(number)).offset, range(20))]
        assert sorted(offsets) == [*range(20)]
        threads.submit(producer.close).result(PATIENCE_S)


def test_errors_of_the_broker_are_raised_where_one_waits(address: str) -> None:
    with Client(address) as client:
        with pytest.raises(UnknownTopic):
            client.describe_topic("nowhere")
        with pytest.raises(UnknownOperation):
            client.call("juggle")
        assert client.call("live")


def test_an_address_that_is_none_leaves_no_thread_behind() -> None:
    before = client_threads()
    with pytest.raises(InvalidRequest):
        Client("nonsense:port")
    assert client_threads() == before


def test_arguments_are_checked_when_something_is_made() -> None:
    with Client(NOWHERE) as client:
        with pytest.raises(InvalidRequest):
            client.producer(acks="perhaps")
        with pytest.raises(InvalidRequest):
            client.consumer("billing", "orders")
        with pytest.raises(InvalidRequest):
            client.reader("orders", fetch_bytes=0)


# --- the end


def test_whatever_an_argument_is_only_errors_of_this_tree_are_raised(address: str, topic: str) -> None:
    refusals = Refusals()
    with Client(address) as client:
        with client.producer() as producer:
            producer.send(topic, "x")
            consumers = misuses(client.consumer, "misused", [topic])
            calls = (*misuses(producer.send, topic, "x"), *misuses(producer.enqueue, topic, "x"))
            for what, call in (*misuses(client.producer), *misuses(client.reader, topic), *consumers, *calls):
                with refusals.of(what):
                    call()
        with client.consumer("decided", [topic], on_ack_error=lambda _: None) as consumer:
            batch = consumer.poll(1)
            for each in (batch, batch[0]):
                for what, call in (*misuses(each.nack), *misuses(each.reject), *misuses(each.extend, 5)):
                    with refusals.of(what):
                        call()
            for what, call in misuses(consumer.poll, 1, timeout=0, leave=("timeout",)):
                with refusals.of(what):
                    call()
        with client.reader(topic) as reader:
            for what, call in (*misuses(reader.read), *misuses(reader.seek, 0, 0)):
                with refusals.of(what):
                    call()
    for what, call in misuses(Client, NOWHERE):
        with refusals.of(what):
            call().close()
    assert len(refusals.seen) > 600


def test_what_cannot_be_closed_keeps_nothing_else_open(address: str, topic: str) -> None:
    client = Client(address)
    first, second = client.producer(), client.producer()
    first._inner.sender._loop.call_soon_threadsafe(first._inner.enqueue, "nothing", "lost")
    second.enqueue(topic, "kept")
    with pytest.raises(UnknownTopic, match="nothing"):
        in_time(client.close)
    assert (first._inner.closed, second._inner.closed) == (True, True)
    client.close()
    with Client(address) as other:
        assert other.describe_topic(topic).total_messages == 1


def test_closing_twice_is_closing_once(address: str) -> None:
    before = client_threads()
    client = Client(address)
    client.list_topics()
    client.close()
    client.close()
    assert client_threads() == before


def test_a_closed_client_does_nothing_more(address: str) -> None:
    client = Client(address)
    client.close()
    for work in (
        client.list_topics,
        client.producer,
        lambda: client.consumer("billing", ["orders"]),
        lambda: client.reader("orders"),
    ):
        with pytest.raises(Unavailable, match="this client is closed"):
            work()


def test_what_is_still_open_when_a_client_is_closed_says_so(address: str, topic: str) -> None:
    client = Client(address)
    producer, consumer, reader = client.producer(), client.consumer("open", [topic]), client.reader(topic, follow=True)
    for value in "abcd":
        producer.send(topic, value)
    consumer.__enter__()
    message = next(consumer)
    batch = consumer.poll(1)
    assert reader.read()
    in_time(client.close)
    for work in (
        lambda: producer.send(topic, "e"),
        lambda: producer.enqueue(topic, "e"),
        lambda: producer.enqueue(topic, "f"),  # also the second time
        producer.flush,
        producer.close,
        message.ack,
        message.nack,
        lambda: message.ack(wait=True),
        lambda: message.extend(5),
        batch.ack,
        lambda: batch.ack(wait=True),
        consumer.poll,
        consumer.flush,
        reader.read,
        reader.positions,
    ):
        with pytest.raises(Unavailable, match="closed"):
            in_time(work)
    in_time(consumer.close)
    in_time(reader.close)


def test_what_is_closed_before_its_client_may_be_closed_again_after_it(address: str, topic: str) -> None:
    client = Client(address)
    with client.producer() as producer, client.consumer("twice", [topic]) as consumer, client.reader(topic) as reader:
        producer.enqueue(topic, "a")
    client.close()
    producer.close()
    consumer.close()
    reader.close()


def test_whoever_waits_hears_that_the_client_was_closed(address: str, topic: str) -> None:
    client = Client(address)
    reader, consumer = client.reader(topic, follow=True), client.consumer("waits", [topic])
    reader.positions()
    consumer.__enter__()
    waits = [beside(reader.read), beside(consumer.poll)]
    loop = client._loop
    begun = threading.Event()
    loop.wake(begun.set)
    assert begun.wait(PATIENCE_S)
    closing = [beside(client.close) for _ in range(3)]
    for close in closing:
        close.result(PATIENCE_S)
    for wait in waits:
        with pytest.raises(Unavailable, match="closed"):
            wait.result(PATIENCE_S)


def test_a_settlement_that_is_waited_for_ends_with_the_client(tmp_path: Path) -> None:
    with goqueue.embedded(str(tmp_path), grpc="off") as broker:
        client = Client(broker.endpoints["wire"])
        client.create_topic("orders")
        with client.producer() as producer:
            producer.send("orders", "a")
        consumer = client.consumer("billing", ["orders"])
        consumer.__enter__()
        message = next(consumer)
    consumer._core._link.endpoint = consumer._core._link.endpoint._replace(call_timeout_s=0.2)  # how long closing takes
    wait = beside(lambda: message.ack(wait=True))
    while not consumer._core._settling._under_way:  # it is tried until the broker is back
        pass
    in_time(client.close)
    with pytest.raises(Unavailable, match="closed"):
        wait.result(PATIENCE_S)


def test_work_that_comes_while_a_loop_is_closed_is_done_or_refused() -> None:
    """Never taken and forgotten: who gave it would wait for ever."""

    async def work() -> int:
        return 1

    def keep_asking(loop: LoopThread, asked: threading.Event) -> str:
        while True:
            try:
                assert loop.run(work()) == 1
                asked.set()
            except Unavailable as error:
                return str(error)

    for _ in range(20):
        loop = LoopThread()
        events = [threading.Event() for _ in range(3)]
        callers = [beside(partial(keep_asking, loop, asked)) for asked in events]
        for asked in events:
            assert asked.wait(PATIENCE_S)
        in_time(loop.close)
        assert all("closed" in caller.result(PATIENCE_S) for caller in callers)


def test_what_a_loop_still_does_is_cancelled_when_it_is_closed() -> None:
    loop = LoopThread()
    ended: list[str] = []

    async def linger(name: str, following: str | None) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(name)
            if following is not None:
                kept.append(asyncio.create_task(linger(following, None)))

    kept: list[Any] = []

    async def begin() -> None:
        kept.append(asyncio.create_task(linger("first", "second")))
        await asyncio.sleep(0)

    loop.run(begin())
    in_time(loop.close)
    assert [task.done() for task in kept] == [True, True]
    with pytest.raises(Unavailable):
        loop.wake(lambda: None)


# --- processes


def program(text: str, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-X", "dev", "-c", text, *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip


def interrupted(process: "subprocess.Popen[str]") -> tuple[str, str]:
    """When it says that it waits; what it said after that, and what it complained of."""
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "waiting\n"
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert process.returncode == 0, err
    return out, err


def test_ctrl_c_in_a_poll_leaves_the_group_and_ends_the_program(address: str, topic: str) -> None:
    text = """
import sys, threading, goqueue
address, topic = sys.argv[1:]
try:
    with goqueue.Client(address) as client, client.consumer("interrupted", [topic]) as consumer:
        threading.Timer(0.3, print, ["waiting"], {"flush": True}).start()  # when the next call waits
        consumer.poll()
except KeyboardInterrupt:
    print("interrupted")
"""
    assert interrupted(program(text, address, topic)) == ("interrupted\n", "")
    with Client(address) as client:
        assert client.describe_group("interrupted").members == []


def test_ctrl_c_while_the_broker_is_away_ends_the_program() -> None:
    text = """
import threading, goqueue
try:
    with goqueue.Client("127.0.0.1:1") as client:
        producer = client.producer()
        threading.Timer(0.3, print, ["waiting"], {"flush": True}).start()  # when the next call waits
        producer.send("orders", "a")
except KeyboardInterrupt:
    print("interrupted")
"""
    out, err = interrupted(program(text))
    assert out == "interrupted\n"
    assert [line.partition(": ")[0] for line in err.splitlines()] == [
        "a connection failed, and is made again when it is needed"
    ]


def test_ctrl_c_in_a_producer_publishes_what_was_enqueued(address: str, topic: str) -> None:
    text = """
import sys, threading, goqueue
address, topic = sys.argv[1:]
try:
    with goqueue.Client(address) as client, client.producer(linger=60) as producer:
        for number in range(100):
            producer.enqueue(topic, str(number), partition=0)
        print("waiting", flush=True)
        threading.Event().wait()
except KeyboardInterrupt:
    print("interrupted")
"""
    assert interrupted(program(text, address, topic)) == ("interrupted\n", "")
    with Client(address) as client, client.reader(topic, partitions=[0]) as reader:
        assert [message.text for message in reader] == [str(number) for number in range(100)]


def test_ctrl_c_in_a_client_publishes_what_was_enqueued(address: str, topic: str) -> None:
    text = """
import sys, threading, goqueue, goqueue.client.client
goqueue.client.client.HURRY_S = 0.0  # of readers and consumers
address, topic = sys.argv[1:]
try:
    with goqueue.Client(address) as client:
        producer = client.producer(linger=60)
        for number in range(100):
            producer.enqueue(topic, str(number), partition=0)
        print("waiting", flush=True)
        threading.Event().wait()
except KeyboardInterrupt:
    print("interrupted")
"""
    assert interrupted(program(text, address, topic)) == ("interrupted\n", "")
    with Client(address) as client, client.reader(topic, partitions=[0]) as reader:
        assert [message.text for message in reader] == [str(number) for number in range(100)]


def test_a_program_that_closes_nothing_ends_quietly(address: str, topic: str) -> None:
    text = """
import gc, sys, goqueue
address, topic = sys.argv[1:]
def work(group):
    client = goqueue.Client(address)
    producer = client.producer()
    producer.send(topic, "a")
    producer.enqueue(topic, "b")
    consumer = client.consumer(group, [topic]).__enter__()
    reader = client.reader(topic, follow=True)
    return next(consumer).value, next(reader).value
for group in ("forgotten", "too"):
    print(work(group))
    gc.collect()
"""
    process = program(text, address, topic)
    with process:
        try:
            out, err = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert (process.returncode, err) == (0, "")
    assert out.splitlines() == ["(b'a', b'a')"] * 2


def test_a_broker_that_is_away_is_waited_for_as_long_as_the_client_says() -> None:
    client = Client(NOWHERE, connect_timeout=0.05, request_timeout=0.05)
    with client, pytest.raises((Unavailable, RequestTimeout)):
        client.list_topics()
