"""`goqueue_produce_errors_total`: what fails is counted once, over every door, also what is refused before the log."""

import json
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

import goqueue
from goqueue import codec
from goqueue.client.connection import Connection
from goqueue.model import limits
from goqueue.model.errors import GoQueueError
from goqueue.model.publishing import Acks
from goqueue.model.record import Record
from tests.support.broker import HttpClient, RunningBroker, running_broker
from tests.support.grpc_client import GrpcClient
from tests.support.loop import run
from tests.support.patience import PATIENCE_S
from tests.support.raw_http import answers, request

TOPIC = "small"
LARGE = "x" * 100
MOST_BYTES = 50
TOO_LONG = f"Content-Length: {limits.MAX_BODY_BYTES + 1}"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("data"), "--grpc", "127.0.0.1:0") as running:
        with goqueue.Client(running.endpoints["wire"]) as client:
            client.create_topic(TOPIC, partitions=1, max_message_bytes=MOST_BYTES)
        yield running


def counts(broker: RunningBroker) -> dict[str, int]:
    with HttpClient(broker.endpoints["http"]) as http:
        text = http.request("GET", "/metrics").body
    found = re.findall(r"goqueue_produce_errors_total{error_type=\"(\w+)\",topic=\"(\w+)\"} (\d+)", str(text))
    return {code: int(count) for code, topic, count in found if topic == TOPIC}


def over_http(broker: RunningBroker, path: str, body: Any) -> None:
    with HttpClient(broker.endpoints["http"]) as http:
        http.request("POST", path, body if isinstance(body, bytes) else json.dumps(body).encode())


def at_its_head(broker: RunningBroker, *lines: str, path: str = f"/topics/{TOPIC}/publish") -> None:
    """Only the head of a request is sent, which is enough to refuse it."""
    host, _, port = broker.http.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as peer:
        peer.sendall(request("POST", path, b"", *lines))
        assert answers(peer)


def over_the_wire(broker: RunningBroker, operation: str, **fields: Any) -> None:
    with goqueue.Client(broker.endpoints["wire"]) as client, pytest.raises(GoQueueError):
        client.call(operation, **fields)


def a_block(broker: RunningBroker) -> None:
    async def go() -> None:
        host, _, port = broker.endpoints["wire"].rpartition(":")
        with goqueue.Client(broker.endpoints["wire"]) as client:
            topic_id = int(client.describe_topic(TOPIC).topic_id, 16)
        async with await Connection.connect(host, int(port)) as connection:
            block = bytes(codec.encode([Record(value=LARGE.encode())]))
            with pytest.raises(GoQueueError):
                await connection.publish_block(topic_id, 0, block, acks=Acks.LEADER)

    run(go())


def over_grpc(broker: RunningBroker, rpc: str, **fields: Any) -> None:
    with GrpcClient(broker.endpoints["grpc"]) as client:
        error = client.begin(rpc, **fields).exception()
        assert error is None or isinstance(error, grpc.RpcError)


def in_frames(broker: RunningBroker, *messages: dict[str, Any], **fields: Any) -> None:
    with GrpcClient(broker.endpoints["grpc"]) as client:
        stream = client.stream("PublishStream")
        stream.send(topic=TOPIC, messages=list(messages), **fields)
        (reply,) = stream.finish()
        assert reply.errors


BAD: dict[str, Any] = {"value": LARGE}
GOOD: dict[str, Any] = {"value": "fits"}


@pytest.mark.parametrize(
    ("fail", "counted"),
    [
        (lambda to: over_http(to, f"/topics/{TOPIC}/publish", BAD), {"too_large": 1}),
        (lambda to: over_http(to, f"/topics/{TOPIC}/messages", {"messages": [BAD, GOOD, BAD]}), {"too_large": 2}),
        (
            lambda to: over_http(to, f"/topics/{TOPIC}/publish", {"value": "x", "partition": 7}),
            {"unknown_partition": 1},
        ),
        (lambda to: over_http(to, f"/topics/{TOPIC}/publish", {"value": "x", "delay": "?"}), {"invalid_request": 1}),
        (lambda to: over_http(to, f"/topics/{TOPIC}/publish", b"{nonsense"), {"invalid_request": 1}),
        (lambda to: over_http(to, f"/topics/{TOPIC}/publish", {**GOOD, "producer_id": 1}), {"invalid_request": 1}),
        (lambda to: over_http(to, f"/topics/{TOPIC}/messages", {"messages": [GOOD]}), {}),
        (lambda to: over_http(to, "/topics/nowhere/publish", BAD), {}),
        (lambda to: at_its_head(to, TOO_LONG), {"too_large": 1}),
        (lambda to: at_its_head(to, TOO_LONG, path=f"/topics/{TOPIC}/batch"), {"too_large": 1}),
        (lambda to: at_its_head(to, "Transfer-Encoding: gzip, chunked"), {"unknown_transfer_coding": 1}),
        (lambda to: at_its_head(to, TOO_LONG, "Origin: http://elsewhere.example"), {}),
        (lambda to: at_its_head(to, TOO_LONG, path="/topics"), {}),
        (lambda to: over_the_wire(to, "publish", topic=TOPIC, value=LARGE), {"too_large": 1}),
        (a_block, {"too_large": 1}),
        (lambda to: over_grpc(to, "Publish", topic=TOPIC, value=LARGE.encode()), {"too_large": 1}),
        (lambda to: over_grpc(to, "PublishBatch", topic=TOPIC, messages=[{"value": LARGE.encode()}]), {"too_large": 1}),
        (lambda to: in_frames(to, {"value": LARGE.encode()}, {"value": b"fits"}), {"too_large": 1}),
        (lambda to: in_frames(to, {"value": b"fits"}, partition=9), {"unknown_partition": 1}),
    ],
)
def test_what_fails_is_counted_once_by_its_code(
    broker: RunningBroker, fail: Callable[[RunningBroker], None], counted: dict[str, int]
) -> None:
    before = counts(broker)
    fail(broker)
    after = counts(broker)
    assert {
        code: count - before.get(code, 0) for code, count in after.items() if count > before.get(code, 0)
    } == counted


def test_a_request_that_is_refused_at_its_head_is_a_request_of_its_operation(broker: RunningBroker) -> None:
    def requests(operation: str, code: str) -> float:
        with HttpClient(broker.endpoints["http"]) as http:
            text = str(http.request("GET", "/metrics").body)
        lines = [line for line in text.splitlines() if line.startswith("goqueue_requests_total{")]
        return sum(
            float(line.rpartition(" ")[2]) for line in lines if all(f'"{name}"' in line for name in (operation, code))
        )

    asked = (("publish", f"/topics/{TOPIC}/publish"), ("create_topic", "/topics"), ("other", "/nowhere"))
    for operation, path in asked:
        before = requests(operation, "too_large")
        at_its_head(broker, TOO_LONG, path=path)
        assert requests(operation, "too_large") == before + 1, operation


def test_in_a_transaction_too(broker: RunningBroker, tmp_path: Path) -> None:
    before = counts(broker)
    with goqueue.Client(broker.endpoints["wire"]) as client:
        who = {"producer_id": client.call("init_producer")["producer_id"], "epoch": 0}
        mine = {**who, "transaction_id": client.call("begin_transaction", **who)["transaction_id"]}
        with pytest.raises(GoQueueError):
            client.call("transaction_publish", **mine, topic=TOPIC, value=LARGE)
        client.call("abort_transaction", **mine)
    assert counts(broker)["too_large"] == before.get("too_large", 0) + 1
