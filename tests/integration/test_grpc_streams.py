"""PublishStream and Subscribe at a real broker: order, refusals, credit, clients that vanish, a broker that stops."""

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import grpc
import pytest

from goqueue import codec
from goqueue.api.grpc.translating import pb
from goqueue.model.record import Record
from tests.support.broker import RunningBroker, running_broker
from tests.support.grpc_client import GrpcClient, Stream, batches, check_log, publish
from tests.support.patience import PATIENCE_S

_health: Any = import_module("grpc_health.v1.health_pb2")
_health_grpc: Any = import_module("grpc_health.v1.health_pb2_grpc")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("grpc"), "--grpc", "127.0.0.1:0") as running:
        yield running
        check_log(running)


@pytest.fixture
def client(broker: RunningBroker) -> Iterator[GrpcClient]:
    with GrpcClient(broker.endpoints["grpc"]) as opened:
        yield opened


@pytest.fixture
def topic(client: GrpcClient, request: pytest.FixtureRequest) -> str:
    """One of its own, with one partition."""
    name = str(request.node.name).replace("[", "-").removesuffix("]")
    client.call("CreateTopic", name=name, num_partitions=1)
    return name


def subscribe(client: GrpcClient, topic: str, *, credit: int = 0, group: str = "", **subscription: Any) -> Stream:
    stream = client.stream("Subscribe")
    join = {"group": group or topic, "client_id": "c", "topics": [topic], "mode": "shared"}
    more = {"credit": credit} if credit else {}
    stream.send(subscription={"join": join, **subscription}, **more)
    return stream


def wait_until(condition: Callable[[], bool]) -> None:
    patience = threading.Event()
    for _ in range(2000):
        if condition():
            return
        patience.wait(0.005)
    raise AssertionError("it never came true")


def offsets(messages: Any) -> list[int]:
    return [message.offset for message in messages]


# --- PublishStream


def test_frames_are_answered_in_their_order(client: GrpcClient, topic: str) -> None:
    stream = client.stream("PublishStream")
    for number in range(50):
        stream.send(topic=topic, messages=[{"value": b"%d" % number}] * 3, acks="all" if number % 7 else "leader")
    replies = stream.finish()
    assert [reply.frame for reply in replies] == list(range(50))
    assert [reply.ranges[0].first_offset for reply in replies] == list(range(0, 150, 3))
    assert {reply.durability for reply in replies} == {"written", "durable"}


def test_a_key_decides_the_partition_and_the_answer_says_which(client: GrpcClient) -> None:
    client.call("CreateTopic", name="keyed", num_partitions=3)
    keys = [b"a", b"b", b"c", b"d", b"e", b"f"]
    stream = client.stream("PublishStream")
    stream.send(topic="keyed", messages=[{"value": b"v", "key": key} for key in keys])
    (reply,) = stream.finish()
    single = [client.call("Publish", topic="keyed", value=b"v", key=key).partition for key in keys]
    assert list(reply.partitions) == single
    assert sum(range_.count for range_ in reply.ranges) == len(keys)


def test_a_producers_frame_that_names_two_partitions_is_refused_and_nothing_is_stored(client: GrpcClient) -> None:
    """Idempotence: one sequence counts for one partition."""
    client.call("CreateTopic", name="two", num_partitions=2)
    producer = client.call("InitProducer").producer_id
    stream = client.stream("PublishStream")
    pair = [{"value": b"a", "partition": 0}, {"value": b"b", "partition": 1}]
    stream.send(topic="two", messages=pair, producer_id=producer, sequence=0)
    stream.send(topic="two", messages=pair[1:] * 2, partition=0, producer_id=producer, sequence=0)
    stream.send(topic="two", messages=[pair[1], {"value": b"c"}], partition=0, producer_id=producer, sequence=2)
    replies = stream.finish()
    assert [bool(reply.errors) for reply in replies] == [True, False, True]
    assert "one partition at a time" in replies[0].errors[0].error
    assert [(each.partition, each.count) for reply in replies for each in reply.ranges] == [(1, 2)]
    found = client.call("DescribeTopic", topic="two").partition_offsets
    assert [found["0"].latest, found["1"].latest] == [0, 2]


def test_messages_without_a_key_take_turns_frame_by_frame_whatever_else_is_in_it(client: GrpcClient) -> None:
    client.call("CreateTopic", name="turns", num_partitions=2)
    stream = client.stream("PublishStream")
    for number in range(8):
        rare = {"priority": "high"} if number % 2 else {}
        stream.send(topic="turns", messages=[{"value": b"x"}, {"value": b"y", **rare}])
    assert [reply.ranges[0].partition for reply in stream.finish()] in ([0, 1] * 4, [1, 0] * 4)


def test_everything_a_message_may_have_goes_over_a_stream(client: GrpcClient, topic: str) -> None:
    stream = client.stream("PublishStream")
    headers = [{"name": "h", "value": b"\xff"}]
    stream.send(
        topic=topic,
        messages=[
            {"value": b"\xfe", "priority": "high", "headers": headers},
            {"value": b"", "key": b""},
            {"key": b"gone", "tombstone": True},
            {"value": b"x" * 100_000},
            {"value": b"later", "delay": "1h", "event_time": "2026-01-31T12:00:00Z"},
        ],
    )
    stream.finish()
    read = client.call("ReadPartition", topic=topic, partition=0, include="delayed").messages
    assert [(message.HasField("key"), message.HasField("value")) for message in read] == [
        (False, True), (True, True), (True, False), (False, True), (False, True),
    ]  # fmt: skip
    assert (read[0].value, read[0].priority, read[0].headers[0].value) == (b"\xfe", "high", b"\xff")
    assert read[4].deliver_at
    assert read[4].event_time == "2026-01-31T12:00:00.000Z"


def test_a_refusal_concerns_its_message_or_its_frame_and_the_stream_goes_on(client: GrpcClient, topic: str) -> None:
    newer = pb.Message.FromString(pb.Message(value=b"x").SerializeToString() + b"\xfa\x3e\x01x")
    stream = client.stream("PublishStream")
    stream.send(topic="nowhere", messages=[{"value": b"1"}])
    stream.send(topic=topic)
    stream.send(topic=topic, acks="some", messages=[{"value": b"1"}])
    stream.send(topic=topic, messages=[{"value": b"ok"}, {"value": b"x" * 2_000_000}, newer, {"value": b"ok"}])
    stream.send(topic=topic, messages=[{"value": b"1", "partition": 9}])
    nowhere, empty, acks, some, partition = stream.finish()
    assert [reply.errors[0].code for reply in (nowhere, empty, acks)] == ["unknown_topic"] + ["invalid_request"] * 2
    assert not nowhere.errors[0].HasField("index")
    assert [(error.index, error.code) for error in some.errors] == [(1, "too_large"), (2, "invalid_request")]
    assert (list(some.partitions), some.ranges[0].count) == ([0, -1, -1, 0], 2)
    assert partition.errors[0].code == "unknown_partition"


def test_a_frame_sent_again_is_stored_once(client: GrpcClient, topic: str) -> None:
    producer = client.call("InitProducer")
    frame = {"topic": topic, "partition": 0, "producer_id": producer.producer_id, "epoch": 0, "sequence": 0}
    stream = client.stream("PublishStream")
    for _ in range(2):
        stream.send(messages=[{"value": b"1"}, {"value": b"2"}], **frame)
    stream.send(messages=[{"value": b"9"}], **{**frame, "sequence": 7})
    first, again, gap = stream.finish()
    assert [reply.ranges[0].first_offset for reply in (first, again)] == [0, 0]
    assert again.ranges[0].duplicate
    assert (gap.errors[0].code, gap.errors[0].details["expected"]) == ("out_of_sequence", "2")
    assert client.call("DescribeTopic", topic=topic).total_messages == 2


def test_a_block_is_taken_as_it_is(client: GrpcClient, topic: str) -> None:
    block = bytes(codec.encode([Record(0, 0, b"k", b"%d" % number) for number in range(3)]))
    stream = client.stream("PublishStream")
    stream.send(topic=topic, partition=0, block=block)
    stream.send(topic=topic, block=block)
    stream.send(topic=topic, partition=0, block=block[:-1])
    good, homeless, torn = stream.finish()
    assert (good.ranges[0].first_offset, good.ranges[0].count) == (0, 3)
    assert homeless.errors[0].code == "invalid_request"
    assert torn.errors[0].code == "invalid_record"


# --- Subscribe


def test_never_more_is_sent_than_there_is_credit_for(client: GrpcClient, topic: str) -> None:
    publish(client, topic, *(b"%d" % number for number in range(20)))
    stream = subscribe(client, topic, credit=3, max_messages=2)
    assert stream.until("member").assigned_partitions == [f"{topic}-0"]
    assert offsets(batches(stream, 3)) == [0, 1, 2]
    in_flight = client.call("GroupLag", group=topic).topics[topic].entries["0"].in_flight
    assert in_flight == 3
    stream.send(credit=17)
    assert offsets(batches(stream, 17)) == list(range(3, 20))
    assert stream.finish() == []


def test_messages_are_settled_on_the_stream(client: GrpcClient, topic: str) -> None:
    publish(client, topic, *(b"%d" % number for number in range(6)))
    stream = subscribe(client, topic, credit=100)
    handles = [message.receipt_handle for message in batches(stream, 6)]
    stream.send(ack={"receipt_handles": handles[:2]})
    assert [result.acknowledged for result in stream.until("settled").results] == [True, True]
    stream.send(ack={"receipt_handle": handles[0]})
    reply = stream.receive()
    assert (reply.request, reply.refused.code) == (2, "stale_handle")
    stream.send(
        reject={"receipt_handle": handles[2]}, extend_visibility={"receipt_handle": handles[3], "timeout": "1h"}
    )
    assert stream.until("settled").rejected
    assert stream.until("settled").extended
    stream.send(nack={"receipt_handle": handles[4], "delay": "0s"})
    replies = [stream.receive(), stream.receive()]  # in either order
    (settled,) = [reply.settled for reply in replies if reply.HasField("settled")]
    (batch,) = [reply.batch for reply in replies if reply.HasField("batch")]
    assert settled.requeued
    assert [(message.offset, message.delivery_count) for message in batch.messages] == [(4, 2)]
    stream.send(commit={"offsets": {topic: {"entries": {"0": 6}}}})
    assert stream.until("committed").committed
    wait_until(lambda: client.call("GroupLag", group=topic).total_lag == 0)
    stream.finish()


def test_who_ends_the_stream_leaves_the_group_unless_it_wants_to_stay(client: GrpcClient, topic: str) -> None:
    stream = subscribe(client, topic)
    stream.receive()
    assert len(client.call("DescribeGroup", group=topic).members) == 1
    stream.finish()
    assert len(client.call("DescribeGroup", group=topic).members) == 0
    stream = subscribe(client, topic, stay=True)
    member = stream.until("member").member_id
    stream.finish()
    assert [each.member_id for each in client.call("DescribeGroup", group=topic).members] == [member]
    resumed = client.stream("Subscribe")
    resumed.send(subscription={"group": topic, "member_id": member}, credit=1)
    publish(client, topic, b"1")
    assert resumed.until("batch").member_id == member


def test_who_ends_a_stream_that_was_resumed_leaves_no_ghost_behind(client: GrpcClient, topic: str) -> None:
    stream = subscribe(client, topic)
    member = stream.until("member").member_id
    stream.call.cancel()
    for stays in (True, False):
        resumed = client.stream("Subscribe")
        resumed.send(subscription={"group": topic, "member_id": member, "stay": stays})
        resumed.until("member")
        resumed.finish()
        assert [each.member_id for each in client.call("DescribeGroup", group=topic).members] == [member] * stays
    publish(client, topic, b"1")
    assert subscribe(client, topic, credit=1).until("batch").messages[0].offset == 0


def test_who_cancels_the_stream_stays_a_member_and_may_come_back(client: GrpcClient, topic: str) -> None:
    publish(client, topic, b"1")
    stream = subscribe(client, topic, credit=1)
    member = stream.until("member").member_id
    batch = stream.until("batch")
    stream.call.cancel()
    resumed = client.stream("Subscribe")
    resumed.send(subscription={"group": topic, "member_id": member, "received": batch.poll - 1}, credit=1)
    (again,) = resumed.until("batch").messages
    assert (again.offset, again.delivery_count) == (0, 1)


def test_a_member_has_one_stream_at_a_time(client: GrpcClient, topic: str) -> None:
    first = subscribe(client, topic, credit=1)
    member = first.until("member").member_id
    wait_until(lambda: client.call("RebalanceStats").waiting_polls == 1)
    second = client.stream("Subscribe")
    second.send(subscription={"group": topic, "member_id": member}, credit=1)
    error = first.refusal()
    assert (error.code(), "another stream" in error.details()) == (grpc.StatusCode.FAILED_PRECONDITION, True)
    publish(client, topic, b"1")
    assert len(second.until("batch").messages) == 1


@pytest.mark.parametrize("credit", [0, 10])
def test_the_newest_stream_of_a_member_wins_also_without_credit(client: GrpcClient, topic: str, credit: int) -> None:
    first = subscribe(client, topic)
    member = first.until("member").member_id
    second = client.stream("Subscribe")
    second.send(subscription={"group": topic, "member_id": member}, **({"credit": credit} if credit else {}))
    second.until("member")
    first.send(credit=5)
    assert first.refusal().code() is grpc.StatusCode.FAILED_PRECONDITION
    publish(client, topic, b"1")
    second.send(credit=1)
    assert len(second.until("batch").messages) == 1
    assert [each.member_id for each in client.call("DescribeGroup", group=topic).members] == [member]


def test_a_member_without_credit_hears_of_changes_and_keeps_its_session(client: GrpcClient, topic: str) -> None:
    stream = client.stream("Subscribe")
    join = {"group": topic, "client_id": "c", "topics": [topic], "session_timeout": "1s"}
    stream.send(subscription={"join": join})
    assert len(stream.until("member").assigned_partitions) == 1
    client.call("AddPartitions", topic=topic, count=2)
    assert len(stream.until("member").assigned_partitions) == 2
    client.call("AddPartitions", topic=topic, count=3)
    assert len(stream.until("member").assigned_partitions) == 3
    stream.finish()


@pytest.mark.parametrize(
    ("first", "words"),
    [
        ({"credit": 1}, "who subscribes"),
        ({"subscription": {"join": {"group": "begins-badly", "client_id": "c"}}}, "topics"),
        ({"subscription": {"group": "nobody", "member_id": "m"}}, "no group"),
        (
            {"subscription": {"join": {"group": "begins-badly", "client_id": "c", "topics": ["bad"]}, "group": "g"}},
            "not both",
        ),
        (
            {"subscription": {"join": {"group": "begins-badly", "client_id": "c", "topics": ["bad"]}}, "credit": -1},
            "credit",
        ),
    ],
)
def test_a_stream_that_begins_badly_ends_at_once(client: GrpcClient, first: dict[str, Any], words: str) -> None:
    stream = client.stream("Subscribe")
    stream.send(**first)
    assert words in stream.refusal().details()
    assert "begins-badly" not in client.call("ListGroups").groups


def test_what_could_not_be_written_is_given_back_when_its_client_is_killed(
    broker: RunningBroker, client: GrpcClient, topic: str
) -> None:
    publish(client, topic, *[b"x" * 200_000] * 100)
    vanishing = [sys.executable, "-c", VANISHING, broker.endpoints["grpc"], topic]
    with subprocess.Popen(vanishing, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"subscribed\n"
        taken = settled_at(lambda: in_flight(client, topic))
        assert 0 < taken < 100
        process.kill()
    wait_until(lambda: in_flight(client, topic) < taken)
    kept = in_flight(client, topic)
    stream = subscribe(client, topic, credit=1000)
    assert {message.delivery_count for message in batches(stream, 100 - kept)} == {1}
    stream.call.cancel()


VANISHING = """
import sys, time
import grpc
from goqueue.api.grpc.translating import pb

def requests():
    join = {"group": sys.argv[2], "client_id": "c", "topics": [sys.argv[2]], "mode": "shared"}
    yield pb.SubscribeRequest(subscription={"join": join, "max_messages": 5}, credit=1000)
    time.sleep(60)

channel = grpc.insecure_channel(sys.argv[1])
call = channel.stream_stream(
    "/goqueue.v1.GoQueue/Subscribe", pb.SubscribeRequest.SerializeToString, pb.SubscribeReply.FromString
)(requests())
next(call)
print("subscribed", flush=True)
time.sleep(60)
"""


def in_flight(client: GrpcClient, group: str) -> int:
    return int(client.call("ReliabilityStats", group=group).in_flight)


def settled_at(read: Callable[[], int]) -> int:
    """The number that stays for a while: the client's window is full."""
    patience, seen, times = threading.Event(), -1, 0
    while times < 20:
        now = read()
        seen, times = now, times + 1 if now == seen and now > 0 else 0
        patience.wait(0.01)
    return seen


# --- stopping


def test_a_broker_that_stops_ends_streams_and_polls_at_once(tmp_path: Path) -> None:
    with running_broker(tmp_path, "--grpc", "127.0.0.1:0") as broker, GrpcClient(broker.endpoints["grpc"]) as client:
        for name in ("orders", "others"):
            client.call("CreateTopic", name=name, num_partitions=1)
        member = client.call("JoinGroup", group="polling", client_id="c", topics=["orders"]).member_id
        poll = client.begin("Poll", group="polling", member_id=member, timeout="30s")
        waiting, idle = subscribe(client, "orders", credit=10), subscribe(client, "orders", group="idle")
        silent = client.stream("Subscribe")
        publishing = client.stream("PublishStream")
        publishing.send(topic="others", messages=[{"value": b"1"}], acks="all")
        assert publishing.receive().durability == "durable"
        watch = _health_grpc.HealthStub(client.channel).Watch(_health.HealthCheckRequest(), timeout=PATIENCE_S)
        assert next(watch).status == _health.HealthCheckResponse.SERVING
        for stream in (waiting, idle):
            stream.until("member")
        wait_until(lambda: client.call("RebalanceStats").waiting_polls == 2)
        broker.signal(signal.SIGTERM)
        assert next(watch).status == _health.HealthCheckResponse.NOT_SERVING
        for stream in (waiting, idle, silent, publishing):
            assert stream.refusal().code() is grpc.StatusCode.UNAVAILABLE
        poll.exception()
        broker.wait_for_end(code=0)
    check_log(broker)
