"""Publishing over HTTP with a real broker: what comes back is what was sent, and nothing is there twice."""

from base64 import b64encode
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from goqueue.codec.partitioning import partition_of
from goqueue.model import limits
from tests.support.broker import Answer, RunningBroker, refusal, running_broker

_numbers = count(1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("publish")) as running:
        yield running


@pytest.fixture(scope="module")
def shared(broker: RunningBroker) -> str:
    """A topic with one partition, for tests that look at their own message only."""
    return create(broker)


@pytest.fixture
def topic(broker: RunningBroker) -> str:
    return create(broker)


def create(broker: RunningBroker, partitions: int = 1, **settings: object) -> str:
    name = f"topic-{next(_numbers)}"
    answer = broker.request("POST", "/topics", {"name": name, "num_partitions": partitions, **settings})
    assert answer.status == 201, answer
    return name


def publish(broker: RunningBroker, topic: str, **message: object) -> dict[str, Any]:
    answer = broker.request("POST", f"/topics/{topic}/publish", message)
    assert answer.status == 200, answer
    result: dict[str, Any] = answer.body
    return result


def batch(broker: RunningBroker, topic: str, messages: list[dict[str, Any]], **request: object) -> Answer:
    return broker.request("POST", f"/topics/{topic}/messages", {"messages": messages, **request})


def read(broker: RunningBroker, topic: str, offset: int = 0, partition: int = 0) -> list[dict[str, Any]]:
    """Everything from `offset` on."""
    messages: list[dict[str, Any]] = []
    while True:
        path = f"/topics/{topic}/partitions/{partition}/messages?limit=1000&offset={offset}"
        answer = broker.request("GET", path)
        assert answer.status == 200, answer
        if answer.body["next_offset"] == offset:
            return messages
        messages += answer.body["messages"]
        offset = answer.body["next_offset"]


def values(broker: RunningBroker, topic: str, partition: int = 0) -> list[str]:
    return [message["value"] for message in read(broker, topic, partition=partition)]


def round_trip(broker: RunningBroker, topic: str, **message: object) -> dict[str, Any]:
    """The message as a reader gets it."""
    result = publish(broker, topic, **message)
    found = read(broker, topic, result["offset"])[0]
    assert found["offset"] == result["offset"]
    return found


def b64(data: bytes) -> str:
    return b64encode(data).decode()


# --- what is in a message


@pytest.mark.parametrize(
    "text",
    [
        "", "x", "\0", "\n", "\u20ac", "\U0001f680 \u4f60\u597d \u05e9\u05dc\u05d5\u05dd", "\ufeff", "\u2028\u2029",
        "e\u0301", "\U0010ffff", '"\\/\b\f', "x" * 100_000, '{"nested": "json"}',
    ],
)  # fmt: skip
def test_text_comes_back_as_it_was_sent(broker: RunningBroker, shared: str, text: str) -> None:
    key = text[:1000]
    found = round_trip(broker, shared, key=key, value=text, headers={"h": key})
    assert (found["key"], found["value"], found["headers"]) == (key, text, {"h": key})
    assert "encoding" not in found


@pytest.mark.parametrize("data", [b"\xff\xfe", bytes(range(256)), b"\x80", b"\xed\xa0\x80", b"\xc0\xaf"])
def test_bytes_that_are_no_text_come_back_as_base64(broker: RunningBroker, shared: str, data: bytes) -> None:
    found = round_trip(broker, shared, key=b64(data), value=b64(data), headers={"h": b64(data)}, encoding="base64")
    assert found["encoding"] == "base64"
    assert (found["key"], found["value"], found["headers"]) == (b64(data), b64(data), {"h": b64(data)})


def test_one_part_that_is_no_text_makes_all_of_them_base64(broker: RunningBroker, shared: str) -> None:
    found = round_trip(
        broker, shared, key=b64(b"key"), value=b64(b"\xff"), headers={"h": b64(b"text")}, encoding="base64"
    )
    assert (found["encoding"], found["key"]) == ("base64", b64(b"key"))
    assert found["headers"] == {"h": b64(b"text")}


def test_text_sent_as_base64_is_text(broker: RunningBroker, shared: str) -> None:
    found = round_trip(broker, shared, key=b64(b"k"), value=b64("\u20ac".encode()), encoding="base64")
    assert (found["key"], found["value"]) == ("k", "\u20ac")
    assert "encoding" not in found


@pytest.mark.parametrize("text", ["!!", "YQ", "YQ=", "YQ==YQ==x", "Y Q==", "YQ==\n", "\u20ac"])
@pytest.mark.parametrize("part", ["value", "key", "header"])
def test_what_is_not_base64_is_refused(broker: RunningBroker, shared: str, text: str, part: str) -> None:
    message: dict[str, Any] = {"value": "YQ==", "encoding": "base64"}
    if part == "header":
        message["headers"] = {"h": text}
    else:
        message[part] = text
    error = refusal(broker.request("POST", f"/topics/{shared}/publish", message), 400, "invalid_request")
    assert part in error["error"]


def test_a_tombstone_is_read_as_null(broker: RunningBroker, shared: str) -> None:
    assert round_trip(broker, shared, key="k", tombstone=True)["value"] is None
    assert round_trip(broker, shared, key="k", value="")["value"] == ""


def test_a_message_needs_a_value(broker: RunningBroker, shared: str) -> None:
    error = refusal(broker.request("POST", f"/topics/{shared}/publish", {"key": "k"}), 400, "invalid_request")
    assert "value" in error["error"]


def test_no_key_and_an_empty_key_are_different(broker: RunningBroker, shared: str) -> None:
    assert round_trip(broker, shared, value="x")["key"] is None
    assert round_trip(broker, shared, key=None, value="x")["key"] is None
    assert round_trip(broker, shared, key="", value="x")["key"] == ""


def test_messages_with_a_key_stay_together_where_other_clients_would_put_them(broker: RunningBroker) -> None:
    topic = create(broker, 7)
    for key in ("", "a", "order-1", "\u20ac", "\0"):
        places = {publish(broker, topic, key=key, value=f"{turn}")["partition"] for turn in range(3)}
        assert places == {partition_of(key.encode(), 7)}
    encoded = publish(broker, topic, key=b64(b"\xff"), value="", encoding="base64")
    assert encoded["partition"] == partition_of(b"\xff", 7)


def test_messages_without_a_key_go_round(broker: RunningBroker) -> None:
    topic = create(broker, 3)
    places = [publish(broker, topic, value="x")["partition"] for _ in range(6)]
    assert places[:3] == places[3:]
    assert sorted(places[:3]) == [0, 1, 2]


def test_a_partition_can_be_named(broker: RunningBroker) -> None:
    topic = create(broker, 3)
    assert [publish(broker, topic, key="k", value="x", partition=number)["partition"] for number in (2, 0, 2)] == [
        2,
        0,
        2,
    ]


@pytest.mark.parametrize(
    ("headers", "shown"),
    [
        (None, {}),
        ({}, {}),
        ([], {}),
        ({"a": "1", "b": ""}, {"a": "1", "b": ""}),
        ([["a", "1"], ["b", "2"]], {"a": "1", "b": "2"}),
        ([["a", "1"], ["b", "2"], ["a", "3"]], [["a", "1"], ["b", "2"], ["a", "3"]]),
        ([["a", "1"], ["a", "1"]], [["a", "1"], ["a", "1"]]),
        ({"\u20ac": "\u20ac", "": "empty"}, {"\u20ac": "\u20ac", "": "empty"}),
    ],
)
def test_headers_are_an_object_or_pairs(broker: RunningBroker, shared: str, headers: object, shown: object) -> None:
    assert round_trip(broker, shared, value="x", headers=headers)["headers"] == shown


@pytest.mark.parametrize("headers", ["x", 5, {"a": 1}, {"a": None}, [["a"]], [["a", "b", "c"]], [["a", 1]], [None]])
def test_headers_of_another_shape_are_refused(broker: RunningBroker, shared: str, headers: object) -> None:
    answer = broker.request("POST", f"/topics/{shared}/publish", {"value": "x", "headers": headers})
    assert "headers" in refusal(answer, 400, "invalid_request")["error"]


@pytest.mark.parametrize("number", range(5))
def test_a_priority_has_a_name_and_a_number(broker: RunningBroker, shared: str, number: int) -> None:
    name = ("critical", "high", "normal", "low", "background")[number]
    for priority in (name, number):
        assert publish(broker, shared, value="x", priority=priority)["priority"] == name
        assert round_trip(broker, shared, value="x", priority=priority)["priority"] == name


def test_a_message_is_of_normal_priority_unless_it_says_otherwise(broker: RunningBroker, shared: str) -> None:
    assert round_trip(broker, shared, value="x")["priority"] == "normal"


@pytest.mark.parametrize("priority", [5, -1, "urgent", "HIGH", True, 1.5, None, [1]])
def test_a_priority_that_does_not_exist_is_refused(broker: RunningBroker, shared: str, priority: object) -> None:
    answer = broker.request("POST", f"/topics/{shared}/publish", {"value": "x", "priority": priority})
    assert "priority" in refusal(answer, 400, "invalid_request")["error"]


@pytest.mark.parametrize(
    ("event_time", "shown"),
    [
        ("2026-01-31T12:00:00Z", "2026-01-31T12:00:00.000Z"),
        ("2026-01-31T12:00:00.5+02:00", "2026-01-31T10:00:00.500Z"),
        (1_769_860_800_123, "2026-01-31T12:00:00.123Z"),
        ("1769860800123", "2026-01-31T12:00:00.123Z"),
        (0, "1970-01-01T00:00:00.000Z"),
    ],
)
def test_an_event_time_is_kept_beside_the_append_time(
    broker: RunningBroker, shared: str, event_time: object, shown: str
) -> None:
    found = round_trip(broker, shared, value="x", event_time=event_time)
    assert found["event_time"] == shown
    assert found["timestamp"] != shown


@pytest.mark.parametrize(
    "event_time", [-1, 1.5, "yesterday", "2026-01-31", "2026-01-31T12:00:00", "2026-02-30T00:00:00Z", True, 2**62]
)
def test_an_event_time_that_is_none_is_refused(broker: RunningBroker, shared: str, event_time: object) -> None:
    answer = broker.request("POST", f"/topics/{shared}/publish", {"value": "x", "event_time": event_time})
    refusal(answer, 400, "invalid_request")


@pytest.mark.parametrize(
    ("field", "junk"),
    [
        ("delay", "soon"), ("delay", -1), ("delay", []), ("delay", "1w"), ("delay", 1e12),
        ("deliverAt", "5s"), ("deliverAt", "2026-01-31"), ("deliverAt", -1), ("deliverAt", 2**62), ("deliverAt", 1.5),
        ("ttl", "ever"), ("ttl", {}), ("ttl", True),
    ],
)  # fmt: skip
def test_a_delay_or_a_time_to_live_that_is_none_is_refused_by_name(
    broker: RunningBroker, shared: str, field: str, junk: object
) -> None:
    before = broker.request("GET", f"/topics/{shared}").body["total_messages"]
    message = {"value": "x", field: junk}
    for answer in (
        broker.request("POST", f"/topics/{shared}/publish", message),
        batch(broker, shared, [{"value": "y"}, message]),
        broker.request("POST", f"/topics/{shared}/batch", {"messages": [message]}),
    ):
        assert field in refusal(answer, 400, "invalid_request")["error"]
    assert broker.request("GET", f"/topics/{shared}").body["total_messages"] == before


def test_a_transaction_without_its_producer_is_refused(broker: RunningBroker, shared: str) -> None:
    message = {"value": "x", "transaction_id": "txn-1"}
    error = refusal(broker.request("POST", f"/topics/{shared}/publish", message), 400, "invalid_request")
    assert "belongs to a producer_id" in error["error"]


# --- answers


@pytest.mark.parametrize(
    ("fsync", "acks", "durability"),
    [
        ("none", "none", "none"),
        ("none", "leader", "written"),
        ("none", "all", "durable"),
        ("interval", "none", "none"),
        ("interval", "leader", "written"),
        ("interval", "all", "durable"),
        ("every", "none", "none"),
        ("every", "leader", "durable"),
        ("every", "all", "durable"),
    ],
)
def test_an_answer_names_the_durability_it_waited_for(
    broker: RunningBroker, fsync: str, acks: str, durability: str
) -> None:
    topic = create(broker, fsync=fsync)
    results = [
        publish(broker, topic, value="1", acks=acks),
        *batch(broker, topic, [{"value": "2"}, {"value": "3"}], acks=acks).body["results"],
    ]
    for offset, result in enumerate(results):
        assert (result["partition"], result["durability"], result["priority"]) == (0, durability, "normal")
        if acks == "none":
            assert not {"offset", "message_id", "timestamp", "duplicate"} & result.keys()
        else:
            assert (result["offset"], result["message_id"]) == (offset, f"{topic}:0:{offset}")
    assert values(broker, topic) == ["1", "2", "3"]


def test_acks_are_leader_unless_asked_otherwise(broker: RunningBroker, shared: str) -> None:
    assert publish(broker, shared, value="x")["durability"] == "written"
    answer = broker.request("POST", f"/topics/{shared}/publish", {"value": "x", "acks": "some"})
    assert "acks" in refusal(answer, 400, "invalid_request")["error"]


def test_an_answer_has_what_a_reader_finds(broker: RunningBroker, shared: str) -> None:
    result = publish(broker, shared, value="x", priority="high")
    found = read(broker, shared, result["offset"])[0]
    for field in ("partition", "offset", "message_id", "timestamp", "priority"):
        assert result[field] == found[field]


def test_a_message_over_the_topics_limit_is_413(broker: RunningBroker) -> None:
    topic = create(broker, max_message_bytes=100)
    publish(broker, topic, value="x" * 100)
    publish(broker, topic, key="k" * 50, value="x" * 50)
    for message in (
        {"value": "x" * 101},
        {"key": "k" * 50, "value": "x" * 51},
        {"value": "", "headers": {"h": "x" * 100}},
    ):
        refusal(broker.request("POST", f"/topics/{topic}/publish", message), 413, "too_large")
    assert len(values(broker, topic)) == 2


@pytest.mark.parametrize(
    "message", [{"key": "k" * (limits.MAX_KEY_BYTES + 1)}, {"headers": {"h": "x" * limits.MAX_HEADERS_BYTES}}]
)
def test_a_key_or_headers_over_their_limit_are_refused(
    broker: RunningBroker, shared: str, message: dict[str, Any]
) -> None:
    answer = broker.request("POST", f"/topics/{shared}/publish", {"value": "x", **message})
    refusal(answer, 413, "too_large")
    assert round_trip(broker, shared, key="k" * limits.MAX_KEY_BYTES, value="x")["value"] == "x"


# --- batches


@pytest.mark.parametrize("path", ["messages", "batch"])
def test_a_batch_has_a_result_for_each_message_in_order(broker: RunningBroker, path: str) -> None:
    topic = create(broker, 3)
    messages = [{"key": f"{number % 10}", "value": f"{number}"} for number in range(100)]
    answer = broker.request("POST", f"/topics/{topic}/{path}", {"messages": messages, "acks": "all"})
    assert answer.status == 200
    assert answer.body.keys() == {"results"}
    results = answer.body["results"]
    found = {
        (one["partition"], one["offset"]): one for number in range(3) for one in read(broker, topic, partition=number)
    }
    assert len(found) == len(results) == 100
    for message, result in zip(messages, results, strict=True):
        one = found[result["partition"], result["offset"]]
        assert (one["key"], one["value"]) == (message["key"], message["value"])
    for number in range(3):
        mine = [result["offset"] for result in results if result["partition"] == number]
        assert mine == list(range(len(mine)))


def test_one_bad_message_fails_alone(broker: RunningBroker) -> None:
    topic = create(broker, 2, max_message_bytes=70_000)
    good = {"partition": 0, "value": "good"}
    bad = [
        ({"partition": 0, "value": "x" * 70_001}, "too_large"),
        ({"partition": 0, "value": "!!", "encoding": "base64"}, "invalid_request"),
        ({"partition": 7, "value": "x"}, "unknown_partition"),
        ({"partition": 0, "value": "x", "key": "k" * 65_536}, "too_large"),
        ({"partition": 1, "value": "x", "event_time": "2026-02-30T00:00:00Z"}, "invalid_request"),
    ]
    messages = [good] + [message for wrong, _ in bad for message in (wrong, good)]
    answer = batch(broker, topic, messages)
    assert answer.status == 200
    results = answer.body["results"]
    assert len(results) == len(messages)
    assert [result["offset"] for result in results[::2]] == list(range(6))
    for result, (_, code) in zip(results[1::2], bad, strict=True):
        assert result.keys() == {"error", "code", "retriable"}
        assert result["code"] == code
    assert values(broker, topic) == ["good"] * 6
    assert values(broker, topic, 1) == []


def test_a_batch_of_bad_messages_only_is_answered_too(broker: RunningBroker, topic: str) -> None:
    answer = batch(broker, topic, [{"value": "!!", "encoding": "base64"}] * 2)
    assert (answer.status, [result["code"] for result in answer.body["results"]]) == (200, ["invalid_request"] * 2)
    assert values(broker, topic) == []


def test_a_batch_has_from_one_to_ten_thousand_messages(broker: RunningBroker, topic: str) -> None:
    most = limits.MAX_MESSAGES_PER_REQUEST
    results = batch(broker, topic, [{"value": "x"}] * most).body["results"]
    assert [result["offset"] for result in results] == list(range(most))
    for size in (0, most + 1):
        error = refusal(batch(broker, topic, [{"value": "x"}] * size), 400, "invalid_request")
        assert "messages" in error["error"]
    assert broker.request("GET", f"/topics/{topic}").body["total_messages"] == most


def test_append_times_never_go_back(broker: RunningBroker, topic: str) -> None:
    for _ in range(20):
        batch(broker, topic, [{"value": "x"}] * 10)
    times = [message["timestamp"] for message in read(broker, topic)]
    assert len(times) == 200
    assert times == sorted(times)


# --- producers: nothing twice


class Producer:
    """Publishes rows of numbered values to one partition under a producer id of its own."""

    def __init__(self, broker: RunningBroker, topic: str) -> None:
        self.broker = broker
        self.topic = topic
        init = broker.request("POST", "/producers/init").body
        self.producer_id, self.epoch = init["producer_id"], init["epoch"]

    def send(self, sequence: int, number: int = 1, **request: object) -> Answer:
        messages = [{"value": f"{sequence + at}", "partition": 0} for at in range(number)]
        told = {"producer_id": self.producer_id, "epoch": self.epoch, "sequence": sequence, **request}
        return batch(self.broker, self.topic, messages, **told)

    def places(self, sequence: int, number: int = 1, **request: object) -> list[tuple[int, bool]]:
        """Offset, and whether it was there before, of each message."""
        answer = self.send(sequence, number, **request)
        assert answer.status == 200, answer
        return [(result["offset"], result.get("duplicate", False)) for result in answer.body["results"]]


def test_producer_ids_are_given_out_once(broker: RunningBroker) -> None:
    bodies: list[object] = [{}, None, b""]
    given = [broker.request("POST", "/producers/init", body).body for body in bodies for _ in range(5)]
    assert len({init["producer_id"] for init in given}) == 15
    assert {init["epoch"] for init in given} == {0}


@pytest.mark.parametrize("acks", ["leader", "all"])
def test_what_comes_again_is_answered_with_its_first_offset(broker: RunningBroker, topic: str, acks: str) -> None:
    publish(broker, topic, value="before")
    producer = Producer(broker, topic)
    first = producer.send(0, 3, acks=acks)
    assert producer.places(3, 2, acks=acks) == [(4, False), (5, False)]
    again = producer.send(0, 3, acks=acks)
    assert [result.pop("duplicate") for result in again.body["results"]] == [True] * 3
    assert again.body == first.body
    assert all("duplicate" not in result for result in first.body["results"])
    assert values(broker, topic) == ["before", "0", "1", "2", "3", "4"]


def test_a_single_message_that_comes_again_is_recognised(broker: RunningBroker, topic: str) -> None:
    producer = Producer(broker, topic)
    message = {"value": "x", "partition": 0, "producer_id": producer.producer_id, "epoch": 0, "sequence": 0}
    first = publish(broker, topic, **message)
    again = publish(broker, topic, **message)
    assert again == {**first, "duplicate": True}
    del message["epoch"]
    assert publish(broker, topic, **message)["duplicate"] is True
    assert values(broker, topic) == ["x"]


def test_of_a_row_that_is_there_in_part_only_the_rest_is_appended(broker: RunningBroker, topic: str) -> None:
    producer = Producer(broker, topic)
    producer.places(0, 3)
    publish(broker, topic, value="between")
    assert producer.places(1, 4) == [(1, True), (2, True), (4, False), (5, False)]
    assert producer.places(0, 5) == [(0, True), (1, True), (2, True), (4, True), (5, True)]
    assert values(broker, topic) == ["0", "1", "2", "between", "3", "4"]


def test_a_gap_is_refused_with_the_sequence_that_was_expected(broker: RunningBroker, topic: str) -> None:
    producer = Producer(broker, topic)
    producer.places(0, 3)
    error = refusal(producer.send(5), 409, "out_of_sequence")
    assert error["details"] == {"expected": 3}
    assert error["retriable"] is False
    assert values(broker, topic) == ["0", "1", "2"]
    assert producer.places(3) == [(3, False)]


def test_producers_and_partitions_are_counted_apart(broker: RunningBroker) -> None:
    topic = create(broker, 2)
    one, other = Producer(broker, topic), Producer(broker, topic)
    assert one.places(0, 2) == [(0, False), (1, False)]
    assert other.places(0, 2) == [(2, False), (3, False)]
    told = {"producer_id": one.producer_id, "epoch": 0, "sequence": 0}
    results = batch(broker, topic, [{"value": "x", "partition": 1}], **told).body["results"]
    assert (results[0]["offset"], "duplicate" in results[0]) == (0, False)


@pytest.mark.parametrize("producer_id", [10**9, 10**17])
def test_an_id_nobody_was_given_is_404(broker: RunningBroker, shared: str, producer_id: int) -> None:
    told = {"producer_id": producer_id, "epoch": 0, "sequence": 0}
    refusal(batch(broker, shared, [{"value": "x", "partition": 0}], **told), 404, "unknown_producer")
    refusal(broker.request("POST", f"/producers/{producer_id}/heartbeat", {"epoch": 0}), 404, "unknown_producer")


def test_a_producer_that_never_began_cannot_go_on(broker: RunningBroker, topic: str) -> None:
    refusal(Producer(broker, topic).send(1), 404, "unknown_producer")
    assert values(broker, topic) == []


def test_a_newer_epoch_takes_over(broker: RunningBroker, topic: str) -> None:
    producer = Producer(broker, topic)
    producer.places(0, 2)
    refusal(producer.send(5, epoch=1), 409, "out_of_sequence")
    assert producer.places(0, epoch=1) == [(2, False)]
    refusal(producer.send(2), 409, "producer_fenced")
    assert values(broker, topic) == ["0", "1", "0"]


def test_a_heartbeat_says_whether_the_id_is_good(broker: RunningBroker, shared: str) -> None:
    producer_id = Producer(broker, shared).producer_id
    path = f"/producers/{producer_id}/heartbeat"
    assert broker.request("POST", path, {"epoch": 0}).body == {"producer_id": producer_id, "epoch": 0}
    assert broker.request("POST", path, {"epoch": 3}).body == {"producer_id": producer_id, "epoch": 3}
    refusal(broker.request("POST", path, {}), 400, "invalid_request")


def test_with_a_producer_one_bad_message_refuses_all_of_them(broker: RunningBroker) -> None:
    topic = create(broker, 2, max_message_bytes=70_000)
    producer = Producer(broker, topic)
    told = {"producer_id": producer.producer_id, "epoch": 0, "sequence": 0}
    good = {"value": "x", "partition": 0}
    for bad, status, code in (
        ({"value": "x" * 70_001, "partition": 0}, 413, "too_large"),
        ({"value": "!!", "encoding": "base64", "partition": 0}, 400, "invalid_request"),
        ({"value": "x", "key": "k" * 65_536, "partition": 0}, 413, "too_large"),
        ({"value": "x"}, 400, "invalid_request"),
        ({"value": "x", "key": "k"}, 400, "invalid_request"),
        ({"value": "x", "partition": 1}, 400, "invalid_request"),
    ):
        for messages in ([good, bad, good], [bad, good], [good, bad]):
            refusal(batch(broker, topic, messages, **told), status, code)
    refusal(batch(broker, topic, [{"value": "x", "partition": 2}], **told), 404, "unknown_partition")
    assert broker.request("GET", f"/topics/{topic}").body["total_messages"] == 0
    assert producer.places(0, 3) == [(0, False), (1, False), (2, False)]


@pytest.mark.parametrize(
    "told",
    [
        {"producer_id": 1}, {"sequence": 0}, {"epoch": 0}, {"epoch": 0, "sequence": 0}, {"producer_id": 1, "epoch": 0},
        {"producer_id": 0, "sequence": 0}, {"producer_id": -1, "sequence": 0}, {"producer_id": 1, "sequence": -1},
        {"producer_id": 1, "sequence": 2**31}, {"producer_id": 1, "sequence": 0, "epoch": 2**15},
    ],
)  # fmt: skip
def test_half_a_producer_is_refused(broker: RunningBroker, shared: str, told: dict[str, int]) -> None:
    before = broker.request("GET", f"/topics/{shared}").body["total_messages"]
    refusal(batch(broker, shared, [{"value": "x", "partition": 0}], **told), 400, "invalid_request")
    assert broker.request("GET", f"/topics/{shared}").body["total_messages"] == before


def test_sequences_outlive_the_broker(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        topic = create(broker, segment_bytes=4096)
        producer, idle = Producer(broker, topic), Producer(broker, topic)
        idle.places(0)
        expected = [(offset, False) for offset in range(1, 101)]
        assert producer.places(0, 100) == expected
        sequence = 100
        for end in (broker.stop, broker.kill):
            end()
            broker.restart()
            again = producer.places(sequence - 100, 100)
            assert again == [(offset, True) for offset, _ in expected]
            assert refusal(producer.send(sequence + 1), 409, "out_of_sequence")["details"] == {"expected": sequence}
            assert idle.places(0) == [(0, True)]
            assert Producer(broker, topic).producer_id > idle.producer_id
            expected = producer.places(sequence, 100)
            assert [duplicate for _, duplicate in expected] == [False] * 100
            sequence += 100
        assert values(broker, topic) == ["0", *(f"{number}" for number in range(300))]
