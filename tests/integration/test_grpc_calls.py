"""The gRPC door of a real broker: calls, errors, deadlines, health, and clients that were made from its description."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_status import rpc_status

from goqueue.api.grpc.door import NAME
from goqueue.api.grpc.streams import SCHEMA
from tests.support.broker import NotReady, RunningBroker, running_broker
from tests.support.grpc_client import GrpcClient, check_log, publish
from tests.support.patience import PATIENCE_S

_health: Any = import_module("grpc_health.v1.health_pb2")
_health_grpc: Any = import_module("grpc_health.v1.health_pb2_grpc")
_reflection: Any = import_module("grpc_reflection.v1alpha.reflection_pb2")
_errors: Any = import_module("google.rpc.error_details_pb2")

PROTO = Path(__file__).parents[2] / "proto" / "goqueue" / "v1"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("grpc"), "--grpc", "127.0.0.1:0") as running:
        yield running
        check_log(running)


@pytest.fixture
def client(broker: RunningBroker) -> Iterator[GrpcClient]:
    with GrpcClient(broker.endpoints["grpc"]) as opened:
        yield opened


def join(client: GrpcClient, group: str, topic: str, **fields: Any) -> str:
    reply = client.call("JoinGroup", group=group, client_id="c", topics=[topic], **fields)
    return str(reply.member_id)


# --- calls


def test_bytes_come_back_as_they_went_in(client: GrpcClient) -> None:
    client.call("CreateTopic", name="bytes", num_partitions=1)
    sent = [
        {"value": b"\xff\x00", "key": b"\x80", "headers": [{"name": "h", "value": b"\xfe"}]},
        {"value": b"", "key": b""},
        {"value": b"text"},
        {"key": b"gone", "tombstone": True},
    ]
    results = client.call("PublishBatch", topic="bytes", messages=sent).results
    assert [result.offset for result in results] == [0, 1, 2, 3]
    read = client.call("ReadPartition", topic="bytes", partition=0).messages
    assert [message.value for message in read] == [b"\xff\x00", b"", b"text", b""]
    assert [message.HasField("value") for message in read] == [True, True, True, False]
    assert [message.HasField("key") for message in read] == [True, True, False, True]
    assert read[0].headers[0].value == b"\xfe"


def test_a_message_whose_value_was_forgotten_deletes_nothing(client: GrpcClient) -> None:
    client.call("CreateTopic", name="forgotten", num_partitions=1)
    error = client.refused("Publish", topic="forgotten", key=b"k")
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "tombstone" in str(error.details())
    results = client.call("PublishBatch", topic="forgotten", messages=[{"key": b"k"}, {"value": b""}]).results
    assert [result.code for result in results] == ["invalid_request", ""]
    stream = client.stream("PublishStream")
    stream.send(topic="forgotten", messages=[{"key": b"k"}, {"value": b"x"}])
    (reply,) = stream.finish()
    assert [(error.index, error.code) for error in reply.errors] == [(0, "invalid_request")]


def test_one_bad_message_of_a_batch_fails_alone(client: GrpcClient) -> None:
    client.call("CreateTopic", name="alone", num_partitions=1)
    messages = [{"value": b"good"}, {"value": b"bad", "priority": "loud"}]
    error = client.refused("PublishBatch", topic="alone", messages=messages)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT  # as over HTTP: it does not fit its shape
    results = client.call(
        "PublishBatch", topic="alone", messages=[{"value": b"x" * 2_000_000}, {"value": b"ok"}]
    ).results
    assert [result.code for result in results] == ["too_large", ""]


def test_dead_letters_come_in_pages_that_clients_take(client: GrpcClient) -> None:
    client.call("CreateTopic", name="dying", num_partitions=1)
    values = [bytes((65 + number,)) * 900_000 for number in range(6)]
    publish(client, "dying", *values)
    member, died = join(client, "undertaker", "dying"), 0
    while died < len(values):
        polled = client.call("Poll", group="undertaker", member_id=member).messages
        client.call("Reject", receipt_handles=[message.receipt_handle for message in polled])
        died += len(polled)
    first = client.call("ListDeadLetters", topic="dying")
    second = client.call("ListDeadLetters", topic="dying", next=first.next)
    assert [letter.value for letter in first.messages] == values[:3]
    assert [letter.value for letter in second.messages] == values[3:]
    assert not second.HasField("next")


def test_messages_and_acks_of_a_transaction_come_together(client: GrpcClient) -> None:
    client.call("CreateTopic", name="asked", num_partitions=1)
    client.call("CreateTopic", name="billed", num_partitions=1)
    publish(client, "asked", b"1", b"2")
    member = join(client, "accountant", "asked")
    first, second = client.call("Poll", group="accountant", member_id=member).messages
    me = client.call("InitProducer", transactional_id="accountant-1")
    mine = {"producer_id": me.producer_id, "epoch": me.epoch}
    begun = client.call("BeginTransaction", **mine, timeout="5m")
    client.call("TransactionPublish", **mine, topic="billed", value=b"\xff bill")
    assert client.call("TransactionAck", **mine, receipt_handle=first.receipt_handle).acknowledged
    assert list(client.call("ReadPartition", topic="billed", partition=0).messages) == []
    shown = client.call("DescribeTransaction", transaction=begun.transaction_id)
    assert [(part.topic, part.messages, part.acks) for part in shown.partitions] == [("asked", 0, 1), ("billed", 1, 0)]
    assert not client.call("CommitTransaction", **mine, messages=1, acks=1).duplicate
    assert [each.value for each in client.call("ReadPartition", topic="billed", partition=0).messages] == [b"\xff bill"]
    assert client.call("CommitTransaction", **mine, transaction_id=begun.transaction_id).duplicate

    client.call("BeginTransaction", **mine, name="nightly")
    client.call("TransactionAck", **mine, receipt_handle=second.receipt_handle)
    listed = client.call("ListTransactions", name="nightly").transactions
    assert [each.state for each in listed] == ["ongoing"]
    assert list(client.call("AbortTransaction", name="nightly").aborted) == [listed[0].transaction_id]
    (again,) = client.call("Poll", group="accountant", member_id=member).messages
    assert (again.value, again.delivery_count) == (b"2", 2)
    assert not client.call("TransactionToken", name="nightly").HasField("number")
    assert not client.call("CommitMany", token={"name": "nightly", "number": 1}, transactions=[]).duplicate
    assert client.call("TransactionToken", name="nightly").number == 1
    assert client.call("TransactionStats").committed >= 1

    client.call("InitProducer", transactional_id="accountant-1")
    error = client.refused("BeginTransaction", **mine)
    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION


@pytest.mark.parametrize("rpc", [rpc for rpc in SCHEMA.rpcs if not rpc.streams], ids=lambda rpc: rpc.name)
def test_every_call_is_answered(client: GrpcClient, rpc: Any) -> None:
    error = client.begin(rpc.name).exception()
    expected = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)
    assert error is None or error.code() in expected, error


def test_what_is_no_protobuf_is_refused(client: GrpcClient) -> None:
    error = client.raw("CreateTopic", b"\xff\xff\xff").exception()
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "not a CreateTopicRequest" in error.details()


def test_a_call_there_is_not_is_unimplemented(client: GrpcClient) -> None:
    error = client.raw("Nothing", b"").exception()
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED


def test_calls_are_counted_under_the_name_of_the_door(broker: RunningBroker, client: GrpcClient) -> None:
    client.call("ListTopics")
    text = broker.request("GET", "/metrics").body
    assert 'goqueue_requests_total{code="ok",door="grpc",operation="list_topics"}' in _sorted_labels(text)


def _sorted_labels(text: str) -> str:
    lines = []
    for line in text.splitlines():
        name, brace, rest = line.partition("{")
        labels, end, value = rest.partition("}")
        lines.append(name + brace + ",".join(sorted(labels.split(","))) + end + value)
    return "\n".join(lines)


def test_an_address_that_is_taken_is_named(broker: RunningBroker, tmp_path: Path) -> None:
    taken = broker.endpoints["grpc"]
    with pytest.raises(NotReady, match=f"the grpc door cannot listen at {taken}"):
        RunningBroker(tmp_path / "data", "--grpc", taken).start()


# --- errors


def test_an_error_tells_programs_what_it_is(client: GrpcClient) -> None:
    error = client.refused("DescribeTopic", topic="nowhere")
    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert "there is no topic 'nowhere'" in error.details()
    status = rpc_status.from_call(error)
    assert status is not None
    (detail,) = status.details
    info = _errors.ErrorInfo.FromString(detail.value)
    assert (info.reason, info.domain, info.metadata["retriable"]) == ("unknown_topic", "goqueue", "false")


def test_a_topic_that_exists_already_exists(client: GrpcClient) -> None:
    client.call("CreateTopic", name="twice")
    assert client.refused("CreateTopic", name="twice").code() is grpc.StatusCode.ALREADY_EXISTS


def test_a_stale_handle_is_a_failed_precondition(client: GrpcClient) -> None:
    client.call("CreateTopic", name="stale", num_partitions=1)
    publish(client, "stale", b"1")
    member = join(client, "stale", "stale")
    (message,) = client.call("Poll", group="stale", member_id=member).messages
    assert client.call("Ack", receipt_handle=message.receipt_handle).acknowledged
    error = client.refused("Ack", receipt_handle=message.receipt_handle)
    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION


# --- deadlines and clients that leave


def test_a_deadline_ends_a_poll_that_waits_and_takes_nothing_with_it(client: GrpcClient) -> None:
    client.call("CreateTopic", name="late", num_partitions=1)
    member = join(client, "late", "late")
    error = client.refused("Poll", group="late", member_id=member, timeout="30s", timeout_s=0.2)
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    publish(client, "late", b"1")
    (message,) = client.call("Poll", group="late", member_id=member).messages
    assert message.delivery_count == 1


def test_a_poll_that_was_given_up_leaves_its_messages_to_the_next(client: GrpcClient) -> None:
    client.call("CreateTopic", name="given-up", num_partitions=1)
    first = join(client, "given-up", "given-up", mode="shared")
    second = join(client, "given-up", "given-up", mode="shared")
    parked = client.begin("Poll", group="given-up", member_id=first, timeout="30s")
    _wait_until(lambda: client.call("RebalanceStats").waiting_polls == 1)
    parked.cancel()
    _wait_until(lambda: client.call("RebalanceStats").waiting_polls == 0)
    publish(client, "given-up", b"1")
    (message,) = client.call("Poll", group="given-up", member_id=second).messages
    assert (message.value, message.delivery_count) == (b"1", 1)


def _wait_until(condition: Any) -> None:
    patience = threading.Event()
    for _ in range(1000):
        if condition():
            return
        patience.wait(0.005)
    raise AssertionError("it never came true")


# --- what every gRPC client knows


@pytest.mark.parametrize("service", ["", NAME])
def test_the_broker_says_that_it_serves(client: GrpcClient, service: str) -> None:
    stub = _health_grpc.HealthStub(client.channel)
    reply = stub.Check(_health.HealthCheckRequest(service=service), timeout=PATIENCE_S)
    assert reply.status == _health.HealthCheckResponse.SERVING


def test_a_service_that_is_not_there_has_no_health(client: GrpcClient) -> None:
    stub = _health_grpc.HealthStub(client.channel)
    error = stub.Check.future(_health.HealthCheckRequest(service="nothing"), timeout=PATIENCE_S).exception()
    assert error.code() is grpc.StatusCode.NOT_FOUND
    watch = stub.Watch(_health.HealthCheckRequest(service="nothing"), timeout=PATIENCE_S)
    assert next(watch).status == _health.HealthCheckResponse.SERVICE_UNKNOWN
    watch.cancel()


GENERATED_CLIENT = """
import sys
import grpc
import goqueue_pb2 as pb
import goqueue_pb2_grpc

assert not any(name == "goqueue" or name.startswith("goqueue.") for name in sys.modules)
with grpc.insecure_channel(sys.argv[1]) as channel:
    stub = goqueue_pb2_grpc.GoQueueStub(channel)
    print(stub.CreateTopic(pb.CreateTopicRequest(name="generated", num_partitions=1)).partitions)
    frames = [pb.PublishFrame(topic="generated", messages=[pb.Message(value=b"%d" % n) for n in range(100)])] * 3
    print([reply.ranges[0].first_offset for reply in stub.PublishStream(iter(frames))])
    member = stub.JoinGroup(pb.JoinGroupRequest(group="generated", client_id="c", topics=["generated"]))
    polled = stub.Poll(pb.PollRequest(group="generated", member_id=member.member_id, max_messages=5))
    print([message.value for message in polled.messages])
    handles = [message.receipt_handle for message in polled.messages]
    print(len(stub.Ack(pb.AckRequest(receipt_handles=handles)).results))
"""


def test_a_client_generated_from_the_description_works(broker: RunningBroker, tmp_path: Path) -> None:
    protoc = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO}", f"--python_out={tmp_path}"]
    subprocess.run([*protoc, f"--grpc_python_out={tmp_path}", "goqueue.proto"], check=True)
    (tmp_path / "client.py").write_text(GENERATED_CLIENT)
    assert _run(tmp_path / "client.py", broker) == ["1", "[0, 100, 200]", "[b'0', b'1', b'2', b'3', b'4']", "5"]


REFLECTING_CLIENT = """
import sys
import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

with grpc.insecure_channel(sys.argv[1]) as channel:
    database = ProtoReflectionDescriptorDatabase(channel)
    print(*sorted(database.get_services()))
    service = DescriptorPool(database).FindServiceByName("goqueue.v1.GoQueue")

    def call(rpc, **fields):
        method = service.methods_by_name[rpc]
        request, reply = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        path = f"/{service.full_name}/{rpc}"
        return channel.unary_unary(path, request.SerializeToString, reply.FromString)(request(**fields))

    call("CreateTopic", name="reflected", num_partitions=1)
    print(call("Publish", topic="reflected", value=b"found by reflection").offset)
    member = call("JoinGroup", group="reflected", client_id="c", topics=["reflected"])
    print(call("Poll", group="reflected", member_id=member.member_id).messages[0].value.decode())
"""


def test_a_client_that_knows_nothing_beforehand_works(broker: RunningBroker, tmp_path: Path) -> None:
    (tmp_path / "client.py").write_text(REFLECTING_CLIENT)
    services, *rest = _run(tmp_path / "client.py", broker)
    assert services.split() == [NAME, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"]
    assert rest == ["0", "found by reflection"]


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection_is_there_under_both_of_its_names(client: GrpcClient, version: str) -> None:
    call: Any = client.channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        _reflection.ServerReflectionRequest.SerializeToString,
        _reflection.ServerReflectionResponse.FromString,
    )
    symbols = (NAME, f"{NAME}.Publish", f"{NAME}.Nothing", "no.such.thing")
    asked = ({"list_services": "*"}, *({"file_containing_symbol": symbol} for symbol in symbols))
    listed, found, method, *missing = call(
        iter([_reflection.ServerReflectionRequest(**each) for each in asked]), timeout=PATIENCE_S
    )
    services = [service.name for service in listed.list_services_response.service]
    assert services == [NAME, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"]
    files = [FileDescriptorProto.FromString(each) for each in found.file_descriptor_response.file_descriptor_proto]
    assert NAME in [f"{file.package}.{service.name}" for file in files for service in file.service]
    assert method.file_descriptor_response == found.file_descriptor_response
    assert [each.error_response.error_code for each in missing] == [grpc.StatusCode.NOT_FOUND.value[0]] * 2


def _run(script: Path, broker: RunningBroker) -> list[str]:
    words = [sys.executable, script.name, broker.endpoints["grpc"]]
    done = subprocess.run(words, cwd=script.parent, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
