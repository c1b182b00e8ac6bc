"""Reading without a group and without a loop, with a real broker in another thread."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import goqueue
from goqueue.client.sync.client import Client
from goqueue.model.errors import InvalidRequest, Quarantined, Unavailable, UnknownPartition, UnknownTopic
from tests.unit.client.test_reader import damage


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with (
        goqueue.embedded(str(tmp_path_factory.mktemp("broker")), grpc="off") as broker,
        Client(broker.endpoints["wire"]) as client,
    ):
        yield client


@pytest.fixture
def topic(client: Client, request: pytest.FixtureRequest) -> str:
    """One of the test's own, with two partitions: a to f, and u to z."""
    name = request.node.name.removeprefix("test_")[:60].rstrip("_")
    client.create_topic(name, partitions=2)
    with client.producer() as producer:
        for partition, values in enumerate(("abcdef", "uvwxyz")):
            for value in values:
                producer.enqueue(name, value, partition=partition)
    return str(name)


def test_every_message_is_read_once_and_in_order(client: Client, topic: str) -> None:
    with client.reader(topic) as reader:
        messages = [*reader]
    for partition, expected in enumerate((b"abcdef", b"uvwxyz")):
        mine = [each for each in messages if each.partition == partition]
        assert b"".join(each.value or b"" for each in mine) == expected
        assert [each.offset for each in mine] == [*range(6)]


def test_it_ends_where_the_topic_ended_when_it_was_entered(client: Client, topic: str) -> None:
    with client.reader(topic, partitions=[0]) as reader, client.producer() as producer:
        producer.send(topic, "late", partition=0)
        assert [each.value for each in reader] == [b"a", b"b", b"c", b"d", b"e", b"f"]
        assert reader.read() is None


def test_one_that_is_left_and_taken_up_again_skips_nothing(client: Client, topic: str) -> None:
    with client.reader(topic, partitions=[0]) as reader:
        for message in reader:
            if message.value == b"b":
                break
        assert next(reader).value == b"c"
        assert reader.positions() == {0: 3}
        assert [each.value for each in reader] == [b"d", b"e", b"f"]
        assert reader.positions() == {0: 6}


def test_a_batch_after_single_messages_is_the_rest(client: Client, topic: str) -> None:
    with client.reader(topic, partitions=[1]) as reader:
        assert next(reader).value == b"u"
        batch = reader.read()
        assert batch is not None
        assert batch.values() == [b"v", b"w", b"x", b"y", b"z"]
        assert (batch.partition, batch.next_offset) == (1, 6)
        assert reader.read() is None
        with pytest.raises(StopIteration):
            next(reader)


def test_seeking_drops_what_was_read_ahead(client: Client, topic: str) -> None:
    with client.reader(topic, partitions=[0]) as reader:
        assert next(reader).value == b"a"
        reader.seek(0, 4)
        assert reader.positions() == {0: 4}
        assert [each.value for each in reader] == [b"e", b"f"]
        reader.seek(0, 5)
        assert next(reader).value == b"f"


def test_seeking_in_one_partition_keeps_what_was_read_of_another(client: Client, topic: str) -> None:
    with client.reader(topic) as reader:
        first = next(reader)
        other = 1 - first.partition
        reader.seek(other, 5)
        assert reader.positions() == {first.partition: 1, other: 5}
        rest = [*reader]
        assert len([each for each in rest if each.partition == first.partition]) == 5
        assert [each.offset for each in rest if each.partition == other] == [5]


def test_a_place_that_cannot_be_sought_changes_nothing(client: Client, topic: str) -> None:
    with client.reader(topic, partitions=[0]) as reader:
        assert next(reader).value == b"a"
        with pytest.raises(UnknownPartition):
            reader.seek(1, 0)
        with pytest.raises(InvalidRequest):
            reader.seek(0, -1)
        assert next(reader).value == b"b"


def test_no_message_within_the_timeout_is_none_and_the_next_one_comes(client: Client, topic: str) -> None:
    with client.reader(topic, partitions=[0], from_offset=6, follow=True) as reader, client.producer() as producer:
        assert reader.read(timeout=0.02) is None
        producer.send(topic, "g", partition=0)
        batch = reader.read()
        assert batch is not None
        assert batch.values() == [b"g"]
        producer.send(topic, "h", partition=0)
        assert next(reader).value == b"h"


def test_it_need_not_be_entered(client: Client, topic: str) -> None:
    reader = client.reader(topic, partitions=[0], from_offset=4)
    assert reader.positions() == {0: 4}
    assert [each.value for each in reader] == [b"e", b"f"]
    reader.close()


def test_a_closed_one_reads_nothing_more(client: Client, topic: str) -> None:
    with client.reader(topic, partitions=[0]) as reader:
        assert next(reader).value == b"a"
    reader.close()
    with pytest.raises(Unavailable, match="closed"):
        next(reader)
    with pytest.raises(Unavailable, match="closed"):
        reader.read()


def test_a_topic_that_is_not_there_is_told_when_it_is_entered(client: Client) -> None:
    with pytest.raises(UnknownTopic), client.reader("nowhere"):
        pass


def test_damage_is_raised_in_its_place_and_skipped_by_who_asks_for_it(tmp_path: Path) -> None:
    with (
        goqueue.embedded(str(tmp_path), grpc="off") as broker,
        Client(broker.endpoints["wire"]) as client,
    ):
        client.create_topic("orders", partitions=1, segment_bytes=4096)
        with client.producer() as producer:
            for number in range(20):
                producer.send("orders", str(number).ljust(1000, "."))
        damaged = damage(tmp_path)
        with client.reader("orders") as reader:
            before = [next(reader).offset for _ in range(damaged)]
            with pytest.raises(Quarantined, match=f"offset {damaged} is damaged") as found:
                next(reader)
            assert found.value.partition is not None
            reader.seek(found.value.partition, found.value.next_offset)
            assert before + [message.offset for message in reader] == [each for each in range(20) if each != damaged]
        with client.reader("orders", on_damage="skip") as reader:
            assert len([*reader]) == 19
            assert reader.skipped == 1
