"""Publishing without a loop, with a real broker in another thread."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import goqueue
from goqueue.client import sending
from goqueue.client.receipts import Outcome
from goqueue.client.sync.client import Client
from goqueue.model.errors import (
    BufferFull,
    GoQueueError,
    InvalidRequest,
    RequestTimeout,
    TransactionAborted,
    Unavailable,
    UnknownPartition,
    UnknownTopic,
)
from goqueue.model.limits import KIB
from tests.support.patience import PATIENCE_S


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with (
        goqueue.embedded(str(tmp_path_factory.mktemp("broker")), grpc="off") as broker,
        Client(broker.endpoints["wire"]) as client,
    ):
        yield client


@pytest.fixture
def topic(client: Client, request: pytest.FixtureRequest) -> str:
    """One of the test's own, with three partitions."""
    name = request.node.name.removeprefix("test_")[:60].rstrip("_")
    client.create_topic(name, partitions=3)
    return str(name)


def test_the_first_message_to_a_topic_waits_for_a_broker_no_longer_than_it_may() -> None:
    with Client("127.0.0.1:1") as nobody:
        producer = nobody.producer(max_block=0.03)
        with pytest.raises(RequestTimeout, match=r"within 0\.03 s which partitions orders has; nothing was enqueued"):
            producer.enqueue("orders", "x")
        producer.close()


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


def values(client: Client, topic: str, partition: int | None = None) -> list[str]:
    with client.reader(topic, partitions=None if partition is None else [partition]) as reader:
        return [(each.value or b"").decode() for each in reader]


# --- receipts and order


def test_a_receipt_says_where_the_message_is(client: Client, topic: str) -> None:
    with client.producer() as producer:
        receipts = [producer.send(topic, value, partition=1) for value in "abc"]
    assert [(each.topic, each.partition, each.offset) for each in receipts] == [(topic, 1, at) for at in range(3)]
    assert values(client, topic, 1) == ["a", "b", "c"]


def test_after_a_flush_everything_enqueued_is_there_in_order(client: Client, topic: str) -> None:
    expected = [str(number) for number in range(3000)]
    with client.producer(linger=60, batch_bytes=16 * KIB) as producer:  # the flush does not wait for the linger
        for value in expected:
            producer.enqueue(topic, value, partition=0)
        producer.flush()
        assert values(client, topic, 0) == expected


def test_the_end_of_a_with_flushes(client: Client, topic: str) -> None:
    with client.producer(linger=60) as producer:
        producer.enqueue(topic, "a")
    assert values(client, topic) == ["a"]


def test_what_is_enqueued_and_sent_by_one_thread_keeps_its_order(client: Client, topic: str) -> None:
    with client.producer(linger=60) as producer:
        for number in range(0, 20, 2):
            producer.enqueue(topic, str(number), partition=0)
            producer.send(topic, str(number + 1), partition=0)
    assert values(client, topic, 0) == [str(number) for number in range(20)]


def test_four_threads_enqueue_everything_once_and_each_in_order(client: Client, topic: str) -> None:
    count = 1500

    def work(name: str) -> None:
        for number in range(count):
            producer.enqueue(topic, f"{name} {number}", key=f"{name} {number % 5}")

    with client.producer(batch_bytes=16 * KIB, buffer_bytes=128 * KIB) as producer, ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(work, name) for name in "abcd"]:
            done.result(PATIENCE_S)
        producer.flush()
        found: dict[tuple[str, int], list[int]] = {}
        for value in values(client, topic):
            name, number = value.split()
            found.setdefault((name, int(number) % 5), []).append(int(number))
    assert found == {(name, rest): [*range(rest, count, 5)] for name in "abcd" for rest in range(5)}


def test_a_message_that_cannot_be_one_is_refused_at_once(client: Client, topic: str) -> None:
    with client.producer() as producer:
        with pytest.raises(UnknownPartition):
            producer.enqueue(topic, "a", partition=3)
        with pytest.raises(InvalidRequest):
            producer.enqueue(topic, "a", priority="urgent")
        with pytest.raises(UnknownTopic):
            producer.enqueue("nowhere", "a")
        with pytest.raises(UnknownTopic):
            producer.send("nowhere", "a")
        producer.flush()
    assert values(client, topic) == []


# --- room


def test_without_a_broker_room_is_waited_for_and_then_it_is_full(tmp_path: Path) -> None:
    with goqueue.embedded(str(tmp_path), grpc="off") as broker:
        client = Client(broker.endpoints["wire"])
        client.create_topic("orders", partitions=1)
        producer = client.producer(linger=60, batch_bytes=16 * KIB, buffer_bytes=64 * KIB, max_block=0.03)
        producer.send("orders", "a")
    sent: list[int] = []

    def fill() -> None:
        while True:
            producer.enqueue("orders", b"x" * 1000)
            sent.append(1000)

    with pytest.raises(BufferFull, match="no room for more messages"):
        fill()
    assert 30_000 < sum(sent) <= 64 * KIB
    with pytest.raises(BufferFull):
        producer.enqueue("orders", b"x" * 1000)
    close_soon(client)
    client.close()


def test_threads_share_room_and_none_is_told_too_early_that_there_is_none(client: Client, topic: str) -> None:
    def work(name: str) -> None:
        for number in range(400):
            producer.enqueue(topic, name.encode() * 500, key=f"{name}{number % 3}")

    with client.producer(batch_bytes=16 * KIB, buffer_bytes=48 * KIB) as producer, ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(work, name) for name in "abcd"]:
            done.result(PATIENCE_S)
    assert len(values(client, topic)) == 1600


def close_soon(client: Client) -> None:
    """Have it not wait for long for a broker that is away."""
    client._inner._endpoint = client._inner._endpoint._replace(call_timeout_s=0.3)


def test_who_waits_for_room_hears_that_the_producer_was_closed(tmp_path: Path) -> None:
    outcomes: list[Outcome] = []
    with goqueue.embedded(str(tmp_path), grpc="off") as broker:
        client = Client(broker.endpoints["wire"])
        client.create_topic("orders", partitions=1)
        producer = client.producer(batch_bytes=16 * KIB, buffer_bytes=32 * KIB, on_batch=outcomes.append)
        producer.send("orders", "a")

    close_soon(client)
    taken: list[int] = []

    def fill() -> None:
        while True:
            producer.enqueue("orders", b"x" * 1000)
            taken.append(1)

    filling = beside(fill)
    while not producer._inner.sender.room.is_wanted:
        pass
    beside(client.close).result(PATIENCE_S)
    with pytest.raises(Unavailable, match="closed"):
        filling.result(PATIENCE_S)
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    assert sum(outcome.messages for outcome in failed) == len(taken) > 0, "all are told what became of them"


# --- failures


def test_a_flush_raises_what_failed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "SWEEP_S", 0.02)
    with goqueue.embedded(str(tmp_path), grpc="off") as broker:
        client = Client(broker.endpoints["wire"])
        client.create_topic("orders", partitions=1)
        producer = client.producer()
        producer.send("orders", "a")
    producer._inner.sender._delivery_timeout_s = 0.1
    producer.enqueue("orders", "b")
    with pytest.raises(GoQueueError):
        producer.flush()
    producer.flush()
    producer.enqueue("orders", "c")
    with pytest.raises(GoQueueError):
        producer.close()
    client.close()


def test_an_error_in_the_body_comes_with_what_could_not_be_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "SWEEP_S", 0.02)

    def work() -> None:
        with client.producer() as producer:
            with broker:
                producer.send("orders", "a")
            producer._inner.sender._delivery_timeout_s = 0.1
            producer.enqueue("orders", "b")
            raise ZeroDivisionError

    broker = goqueue.embedded(str(tmp_path), grpc="off")
    with broker:
        address = broker.endpoints["wire"]
        with Client(address) as first:
            first.create_topic("orders", partitions=1)
    broker = goqueue.embedded(str(tmp_path), wire=address, grpc="off")
    with Client(address) as client:
        with pytest.raises(ZeroDivisionError) as caught:
            work()
        assert "the producer could not publish everything" in caught.value.__notes__[0]


def test_a_closed_producer_publishes_nothing_more(client: Client, topic: str) -> None:
    with client.producer() as producer:
        producer.send(topic, "a")
    producer.close()
    for work in (producer.send, producer.enqueue):
        with pytest.raises(Unavailable, match="closed"):
            work(topic, "b")
    with pytest.raises(Unavailable, match="this producer is closed"), producer:
        pass
    assert values(client, topic) == ["a"]


def test_a_producer_that_is_left_in_a_hurry_publishes_and_is_closed(client: Client, topic: str) -> None:
    producer = client.producer(linger=60)

    def work() -> None:
        with producer:
            for value in "abc":
                producer.enqueue(topic, value, partition=0)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert values(client, topic) == ["a", "b", "c"]
    producer.close()
    with pytest.raises(Unavailable, match="this producer is closed"):
        producer.enqueue(topic, "d")


def test_a_hurry_is_not_hidden_by_a_client_that_was_closed_before() -> None:
    def work() -> None:
        with Client("127.0.0.1:1") as nobody, nobody.producer():
            nobody.close()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()


def test_what_threads_enqueue_while_a_producer_closes_is_published_or_refused(client: Client, topic: str) -> None:
    """Never taken and then forgotten."""

    def work() -> int:
        taken = 0
        try:
            while True:
                producer.enqueue(topic, "x")
                taken += 1
        except Unavailable:
            return taken

    failed: list[int] = []
    taken = 0
    for _ in range(5):
        producer = client.producer(
            linger=0.0, on_batch=lambda outcome: failed.append(outcome.messages) if outcome.error is not None else None
        )
        threads = [beside(work) for _ in range(2)]
        producer.send(topic, "x")
        producer.close()
        taken += 1 + sum(thread.result(PATIENCE_S) for thread in threads)
    published = len(values(client, topic))
    assert published <= taken <= published + sum(failed), "what failed may have been published"


# --- callbacks


def test_batches_are_told_of_in_a_thread_of_the_client(client: Client, topic: str) -> None:
    told: list[tuple[str, int]] = []

    def on_batch(outcome: Outcome) -> None:
        told.append((threading.current_thread().name, outcome.messages))

    with client.producer(on_batch=on_batch) as producer:
        for number in range(100):
            producer.enqueue(topic, str(number))
    assert {name for name, _ in told} == {"goqueue-client"}
    assert sum(count for _, count in told) == 100


def test_a_callback_may_enqueue_and_may_not_wait(client: Client, topic: str) -> None:
    refusals: list[str] = []
    answered = threading.Event()

    def on_batch(outcome: Outcome) -> None:
        if answered.is_set():
            return
        works: tuple[Callable[[], object], ...] = (
            lambda: producer.send(topic, "b"), producer.flush, producer.close, client.list_topics, client.close,
        )  # fmt: skip
        for work in works:
            try:
                work()
            except Unavailable as error:
                refusals.append(str(error))
        producer.enqueue(topic, "c")
        answered.set()

    with client.producer(on_batch=on_batch) as producer:
        producer.send(topic, "a")
        assert answered.wait(PATIENCE_S)
    assert len(refusals) == 5
    assert all("a callback of this client cannot wait" in each for each in refusals)
    assert sorted(values(client, topic)) == ["a", "c"]


# --- a broker that comes back


def test_nothing_is_lost_or_doubled_when_the_broker_is_away_for_a_while(tmp_path: Path) -> None:
    expected = [str(number) for number in range(600)]
    with goqueue.embedded(str(tmp_path), grpc="off") as broker:
        address = broker.endpoints["wire"]
        client = Client(address)
        client.create_topic("orders", partitions=1)
        producer = client.producer(batch_messages=50)
        for value in expected[:200]:
            producer.enqueue("orders", value)
    for value in expected[200:400]:
        producer.enqueue("orders", value)
    with goqueue.embedded(str(tmp_path), wire=address, grpc="off"):
        for value in expected[400:]:
            producer.enqueue("orders", value)
        producer.close()
        assert values(client, "orders") == expected
        client.close()


# --- transactions


def committed(client: Client, topic: str) -> list[str | None]:
    with client.reader(topic) as reader:
        return sorted([message.text for message in reader], key=str)


def test_a_transaction_is_committed_at_the_end_of_with_or_aborted(client: Client, topic: str) -> None:
    with client.producer(transactional_id=topic) as producer:
        with producer.transaction(timeout="30s") as transaction:
            for number in range(5):
                producer.enqueue(topic, str(number), key=str(number))
            assert producer.send(topic, "sent").offset is not None
            assert committed(client, topic) == []
            assert client.describe_transaction(transaction.transaction_id).transactional_id == topic
        assert committed(client, topic) == ["0", "1", "2", "3", "4", "sent"]

        def fail() -> None:
            with producer.transaction():
                producer.enqueue(topic, "lost")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        with producer.transaction() as transaction:
            producer.enqueue(topic, "aborted")
            transaction.abort()
        with producer.transaction() as transaction:
            producer.enqueue(topic, "again")
            transaction.commit()
            producer.enqueue(topic, "outside")
            producer.flush()
        assert committed(client, topic) == ["0", "1", "2", "3", "4", "again", "outside", "sent"]


def test_messages_are_acked_in_a_transaction(client: Client, topic: str) -> None:
    with client.producer() as producer, client.consumer(f"of-{topic}", [topic]) as consumer:
        for number in range(6):
            producer.enqueue(topic, str(number), key=str(number))
        producer.flush()
        left = 6
        while left:
            batch = consumer.poll(4, timeout=PATIENCE_S)
            with producer.transaction() as transaction:
                transaction.ack(batch[0])
                transaction.ack(batch[1:])
            left -= len(batch)
        consumer.flush()
        assert client.group_lag(f"of-{topic}").total_lag == 0


def test_prepared_transactions_are_committed_by_the_client(client: Client, topic: str) -> None:
    with client.producer() as producer, producer.transaction(name=topic) as transaction:
        producer.enqueue(topic, "a")
        transaction_id, messages = transaction.prepare()
        assert messages == 1
    assert client.transactions(name=topic).transactions[0].state == "ongoing"
    client.commit_many(topic, 1, [transaction_id], messages={transaction_id: messages})
    assert committed(client, topic) == ["a"]
    assert client.transaction_token(topic).number == 1


def test_what_waited_for_room_while_its_transaction_ended_is_not_in_the_next(client: Client, topic: str) -> None:
    with client.producer(batch_bytes=16 * KIB, buffer_bytes=32 * KIB) as producer:
        with producer.transaction():
            producer.send(topic, "a")
        sender = producer._inner.outlet.sender
        with pytest.raises(TransactionAborted, match="has ended while this message waited"):
            sender.check_transaction(17)
        sender.check_transaction(None)
