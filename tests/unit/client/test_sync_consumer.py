"""Consuming without a loop, with a real broker in another thread."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

import goqueue
from goqueue.client.member import Member
from goqueue.client.settling import Refused
from goqueue.client.sync.client import Client
from goqueue.client.sync.consumer import Consumer, ConsumerMessage
from goqueue.model.errors import InvalidRequest, StaleHandle, Unavailable, UnknownTopic
from goqueue.wire.settles import Action
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
    """One of the test's own, with the messages 0 to 9 in its only partition; its group has the same name."""
    name = request.node.name.removeprefix("test_")[:60].rstrip("_")
    client.create_topic(name, partitions=1)
    publish(client, name, *range(10))
    return str(name)


def publish(client: Client, topic: str, *numbers: int) -> None:
    with client.producer() as producer:
        for number in numbers:
            producer.enqueue(topic, str(number), partition=0)


def lag(client: Client, group: str) -> int:
    return client.group_lag(group).total_lag


def take(consumer: Consumer, count: int) -> list[ConsumerMessage]:
    return [next(consumer) for _ in range(count)]


def numbers(messages: Any) -> list[int]:
    return [int(each.value or b"") for each in messages]


# --- handing out


def test_every_message_comes_once_and_in_order(client: Client, topic: str) -> None:
    got = []
    with client.consumer(topic, [topic]) as consumer:
        assert consumer.assigned == [f"{topic}-0"]
        for message in consumer:
            got.append(message)
            message.ack()
            if len(got) == 10:
                break
    assert numbers(got) == [*range(10)]
    assert {each.delivery_count for each in got} == {1}
    assert lag(client, topic) == 0


def test_a_poll_after_single_messages_has_the_rest_and_the_other_way_round(client: Client, topic: str) -> None:
    with client.consumer(topic, [topic]) as consumer:
        assert numbers(take(consumer, 2)) == [0, 1]
        batch = consumer.poll(3)
        assert (numbers(batch), len(batch), batch.values()) == ([2, 3, 4], 3, [b"2", b"3", b"4"])
        assert numbers(take(consumer, 1)) == [5]
        assert numbers(consumer.poll()) == [6, 7, 8, 9]
        assert numbers(consumer.poll(timeout=0.02)) == []
        publish(client, topic, 10, 11)
        assert numbers(take(consumer, 1)) == [10]
        assert numbers(consumer.poll(1)) == [11]


def test_a_batch_is_settled_at_once(client: Client, topic: str) -> None:
    with client.consumer(topic, [topic]) as consumer:
        take(consumer, 1)[0].ack()
        consumer.poll(3).ack(wait=True)
        assert lag(client, topic) == 6
        batch = consumer.poll(6)
        batch[0].ack()
        with pytest.raises(StaleHandle):
            batch.ack(wait=True)
        assert lag(client, topic) == 0


# --- settling


def test_an_ack_that_is_waited_for_is_done_and_a_second_one_is_refused(client: Client, topic: str) -> None:
    refused: list[tuple[str, Refused]] = []
    told = threading.Event()

    def on_ack_error(error: Refused) -> None:
        refused.append((threading.current_thread().name, error))
        told.set()

    with client.consumer(topic, [topic], on_ack_error=on_ack_error) as consumer:
        first, second = take(consumer, 2)
        first.ack(wait=True)
        assert lag(client, topic) == 9
        with pytest.raises(StaleHandle):
            first.ack(wait=True)
        first.ack()
        assert told.wait(PATIENCE_S)
        second.ack()
        consumer.flush()
        assert lag(client, topic) == 8
    ((thread, error),) = refused
    assert (thread, error.offset, error.action) == ("goqueue-client", 0, "ack")


def test_what_is_given_back_comes_again(client: Client, topic: str) -> None:
    with client.consumer(topic, [topic]) as consumer:
        messages = take(consumer, 10)
        messages[0].nack(0, wait=True)
        messages[1].release(wait=True)
        messages[2].reject("no good", wait=True)
        again = {numbers([each])[0]: each.delivery_count for each in take(consumer, 2)}
        assert again == {0: 2, 1: 1}
        assert numbers(consumer.poll(timeout=0.02)) == [], "what was rejected does not"


def test_what_is_extended_stays_and_what_lapsed_cannot_be(client: Client, topic: str) -> None:
    with client.consumer(topic, [topic], visibility="1h", max_unacked=2) as consumer:
        first, second = take(consumer, 2)
        first.extend(3600)
        second.extend(0.001)
        (again,) = take(consumer, 1)
        assert (again.offset, again.delivery_count) == (second.offset, 2)
        with pytest.raises(StaleHandle):
            second.extend(60)
        first.ack(wait=True)


def test_delays_that_are_none_are_refused_at_once(client: Client, topic: str) -> None:
    with client.consumer(topic, [topic]) as consumer:
        (message,) = take(consumer, 1)
        with pytest.raises(InvalidRequest):
            message.nack(-1)
        with pytest.raises(InvalidRequest):
            message.extend(-1)
        for each in (message, consumer.poll(1)):
            with pytest.raises(InvalidRequest, match=r"^wait is 'no'; it is True or False"):
                each.ack(wait=cast(bool, "no"))
        message.ack(wait=True)


def test_what_a_slow_user_has_not_reached_is_kept(client: Client, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    extended: list[list[int]] = []
    enough = threading.Event()
    settle = Member.settle

    async def watched(self: Member, action: Action, what: Any, *rest: Any) -> Any:
        if action is Action.EXTEND:
            extended.append([offset for _, offsets in what for offset in offsets])
            if len(extended) == 7:  # every third of the timeout: it would be over twice
                enough.set()
        return await settle(self, action, what, *rest)

    monkeypatch.setattr(Member, "settle", watched)
    with client.consumer(topic, [topic], visibility=0.3, auto_extend=False) as consumer:
        take(consumer, 1)[0].ack()
        assert enough.wait(PATIENCE_S)
        rest = take(consumer, 9)
        assert {each.delivery_count for each in rest} == {1}
        for message in rest:
            message.ack(wait=True)
    assert extended[0] == [*range(1, 10)]
    assert lag(client, topic) == 0


# --- pausing, seeking


def test_a_pause_gives_the_rest_back_and_resuming_brings_it(client: Client, topic: str) -> None:
    with client.consumer(topic, [topic]) as consumer:
        take(consumer, 1)[0].ack()
        consumer.pause()
        assert len(consumer.poll(timeout=0.02)) == 0
        consumer.resume()
        rest = take(consumer, 9)
        assert sorted(numbers(rest)) == [*range(1, 10)]
        assert {each.delivery_count for each in rest} == {1}


def test_seeking_moves_the_group(client: Client, topic: str) -> None:
    with client.consumer(topic, [topic]) as consumer:
        consumer.poll().ack(wait=True)
        assert consumer.seek(topic, to="earliest") == {"0": 0}
        assert numbers(take(consumer, 2)) == [0, 1]
        assert consumer.seek(topic, 0, offset=7) == {"0": 7}
        assert numbers(take(consumer, 3)) == [7, 8, 9]
        with pytest.raises(InvalidRequest, match="name one of"):
            consumer.seek(topic)


# --- groups


def test_two_consumers_share_partitions_and_hear_of_it(client: Client, topic: str) -> None:
    client.add_partitions(topic, 2)
    happened = threading.Condition()
    news: list[tuple[str, str, list[str]]] = []

    def note(who: str, what: str) -> Callable[[list[str]], None]:
        def callback(names: list[str]) -> None:
            assert threading.current_thread().name == "goqueue-client"
            with happened:
                news.append((who, what, sorted(names)))
                happened.notify_all()

        return callback

    def heard(who: str, what: str) -> list[list[str]]:
        return [names for each, kind, names in news if (each, kind) == (who, what)]

    def join(who: str) -> Consumer:
        return client.consumer(
            topic, [topic], session_timeout="1h", on_assigned=note(who, "came"), on_revoked=note(who, "went")
        )

    with join("first") as first:
        assert sorted(first.assigned) == [f"{topic}-0", f"{topic}-1"]
        with join("second") as second:
            with happened:
                assert happened.wait_for(lambda: heard("first", "went") and heard("second", "came"), PATIENCE_S)
            assert heard("first", "went") == heard("second", "came") == [second.assigned]
            assert len(first.assigned) == 1
        with happened:
            assert happened.wait_for(lambda: len(heard("first", "came")) == 2, PATIENCE_S)
        assert sorted(first.assigned) == [f"{topic}-0", f"{topic}-1"]


def test_what_was_not_handed_out_goes_back_untried(client: Client, topic: str) -> None:
    with client.consumer(topic, [topic]) as consumer:
        take(consumer, 3)[0].ack()
    with client.consumer(topic, [topic]) as consumer:
        counts = {numbers([each])[0]: each.delivery_count for each in take(consumer, 9)}
    assert {number: counts[number] for number in range(3, 10)} == dict.fromkeys(range(3, 10), 1)
    assert {counts[1], counts[2]} == {2}, "those were handed out"


def test_an_error_in_the_body_leaves_the_group(client: Client, topic: str) -> None:
    def work() -> None:
        with client.consumer(topic, [topic]) as consumer:
            take(consumer, 1)[0].ack()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert client.describe_group(topic).members == []
    assert lag(client, topic) == 9


def test_a_client_that_is_closed_takes_its_consumers_out_of_their_groups(client: Client, topic: str) -> None:
    with Client(f"{client._inner._endpoint.host}:{client._inner._endpoint.port}") as other:
        consumer = other.consumer(topic, [topic])
        consumer.__enter__()
        take(consumer, 1)[0].ack()
    assert client.describe_group(topic).members == []
    assert lag(client, topic) == 9


# --- callbacks, and the wrong time


def test_a_callback_may_settle_and_may_not_wait(client: Client, topic: str) -> None:
    refusals: list[str] = []
    held: list[ConsumerMessage] = []
    told = threading.Event()

    def on_ack_error(_: Refused) -> None:
        works: tuple[Callable[[], None], ...] = (
            lambda: held[1].ack(wait=True), lambda: held[1].extend(5), consumer.flush, consumer.close,
        )  # fmt: skip
        for work in works:
            try:
                work()
            except Unavailable as error:
                refusals.append(str(error))
        held[2].ack()
        told.set()

    with client.consumer(topic, [topic], on_ack_error=on_ack_error) as consumer:
        held += take(consumer, 3)
        held[0].ack(wait=True)
        held[0].ack()
        assert told.wait(PATIENCE_S)
        consumer.flush()
        assert lag(client, topic) == 8
    assert len(refusals) == 4
    assert all("a callback of this client cannot wait" in each for each in refusals)


def test_a_closed_consumer_gives_nothing_more(client: Client, topic: str) -> None:
    with client.consumer(topic, [topic]) as consumer:
        (message,) = take(consumer, 1)
    consumer.close()
    with pytest.raises(Unavailable, match="closed"):
        next(consumer)
    with pytest.raises(Unavailable, match="closed"):
        consumer.poll(timeout=0)
    with pytest.raises(Unavailable, match="closed before this was decided"):
        message.ack(wait=True)


def test_one_that_has_not_joined_gives_nothing(client: Client, topic: str) -> None:
    consumer = client.consumer(topic, [topic])
    with pytest.raises(InvalidRequest, match="has not joined"):
        consumer.poll(timeout=0)
    consumer.close()


def test_a_topic_that_is_not_there_is_told_when_one_joins(client: Client) -> None:
    with pytest.raises(UnknownTopic), client.consumer("lost", ["nowhere"]):
        pass


# --- a broker that comes back


def test_a_consumer_goes_on_when_the_broker_was_away(tmp_path: Path) -> None:
    with goqueue.embedded(str(tmp_path), grpc="off") as broker:
        address = broker.endpoints["wire"]
        client = Client(address)
        client.create_topic("orders", partitions=1)
        publish(client, "orders", *range(10))
        consumer = client.consumer("billing", ["orders"], visibility=60)
        consumer.__enter__()
        for message in take(consumer, 5):
            message.ack(wait=True)
    with goqueue.embedded(str(tmp_path), wire=address, grpc="off"):
        publish(client, "orders", 10, 11)
        seen: set[int] = set()
        while seen != {*range(5, 12)}:
            for message in consumer.poll(timeout=PATIENCE_S):
                seen.update(numbers([message]))
                message.ack()
        consumer.close()
        assert lag(client, "billing") == 0
        client.close()


def test_what_was_not_handed_out_is_given_back_also_when_the_broker_is_away(tmp_path: Path) -> None:
    with goqueue.embedded(str(tmp_path), grpc="off") as broker:
        address = broker.endpoints["wire"]
        client = Client(address)
        client.create_topic("orders", partitions=1, max_retries=0)
        with client.producer() as producer:
            for number in range(20):
                producer.enqueue("orders", str(number))
        consumer = client.consumer("workers", ["orders"]).__enter__()
        first = consumer.poll(1, timeout=PATIENCE_S)[0]
    first.ack()
    closing = threading.Thread(target=consumer.close)
    closing.start()
    with goqueue.embedded(str(tmp_path), wire=address, grpc="off"):
        closing.join(PATIENCE_S)
        assert not closing.is_alive()
        with client.consumer("workers", ["orders"]) as other:
            again = other.poll(100, timeout=PATIENCE_S)
            assert [(each.text, each.delivery_count) for each in again] == [(str(n), 1) for n in range(1, 20)]
        client.close()
