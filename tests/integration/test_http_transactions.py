"""Transactions over HTTP with a real broker: every route under both prefixes, and whole stories."""

from collections.abc import Iterator
from itertools import count
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest

from goqueue.api.operations import OPERATIONS, Operation
from tests.support.broker import Answer, RunningBroker, refusal, running_broker

_numbers = count(1)

TRIED = [operation for operation in OPERATIONS if operation.paths and operation.paths[0].startswith("/transactions")]
REPLIES: dict[str, set[str]] = {
    "begin_transaction": {"transaction_id", "expires_at"},
    "transaction_publish": {"partition", "offset"},
    "add_partition": {"transaction_id", "topic", "partition"},
    "transaction_ack": {"acknowledged"},
    "commit_transaction": {"transaction_id", "committed", "duplicate"},
    "abort_transaction": {"aborted"},
    "commit_many": {"committed", "duplicate", "transactions", "aborted"},
    "list_transactions": {"transactions", "total"},
    "transaction_stats": {"ongoing", "ending", "begun", "committed", "aborted"},
    "transaction_token": {"name", "number"},
    "describe_transaction": {"transaction_id", "state", "producer_id", "epoch", "began_at"},
}
"""Fields that clients in use rely on; a reply may have more."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("transactions")) as running:
        yield running


def good(answer: Answer) -> dict[str, Any]:
    assert answer.status in (200, 201), answer
    body: dict[str, Any] = answer.body
    return body


class Writer:
    """A producer and a topic of its own with two partitions."""

    def __init__(self, broker: RunningBroker, *, topic: str = "", **init: object) -> None:
        self.broker = broker
        self.me = good(broker.request("POST", "/producers/init", init))
        self.topic = topic or f"topic-{next(_numbers)}"
        if not topic:
            good(broker.request("POST", "/topics", {"name": self.topic, "num_partitions": 2}))
        self.transaction = ""

    def ask(self, what: str, **fields: object) -> Answer:
        return self.broker.request("POST", f"/transactions/{what}", {**self.me, **fields})

    def begin(self, **fields: object) -> "Writer":
        self.transaction = good(self.ask("begin", **fields))["transaction_id"]
        return self

    def put(self, value: str, partition: int = 0, **fields: object) -> dict[str, Any]:
        return good(self.ask("publish", topic=self.topic, value=value, partition=partition, **fields))

    def read(self, partition: int = 0, **query: object) -> list[str]:
        path = f"/topics/{self.topic}/partitions/{partition}/messages?{urlencode({'offset': 0, **query})}"
        return [message["value"] for message in good(self.broker.request("GET", path))["messages"]]

    def described(self) -> dict[str, Any]:
        return good(self.broker.request("GET", f"/transactions/{self.transaction}"))


class Member:
    def __init__(self, broker: RunningBroker, topic: str) -> None:
        self.broker = broker
        self.group = f"group-{next(_numbers)}"
        joining = {"client_id": "worker", "topics": [topic], "session_timeout": "1h"}
        self.member_id = good(broker.request("POST", f"/groups/{self.group}/join", joining))["member_id"]

    def poll(self, wanted: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while len(found) < wanted:
            asked = urlencode({"member_id": self.member_id, "timeout": "5s"})
            found += good(self.broker.request("GET", f"/groups/{self.group}/poll?{asked}"))["messages"]
        return found

    def offset(self, topic: str, partition: int = 0) -> int:
        found = good(self.broker.request("GET", f"/groups/{self.group}/offsets"))["offsets"]
        offset: int = found[topic][str(partition)]
        return offset


# --- routes


def test_every_operation_of_transactions_is_tried_here() -> None:
    assert REPLIES.keys() == {operation.name for operation in TRIED}


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_every_route_answers_with_the_fields_clients_know(broker: RunningBroker, prefix: str) -> None:
    writer, name = Writer(broker), f"load-{next(_numbers)}"
    broker.request("POST", f"/topics/{writer.topic}/publish", {"value": "x", "partition": 0})
    handle = Member(broker, writer.topic).poll(1)[0]["receipt_handle"]
    bodies: dict[str, dict[str, object]] = {
        "begin_transaction": {**writer.me, "name": name, "timeout": "5m"},
        "transaction_publish": {**writer.me, "topic": writer.topic, "value": "a", "key": "k"},
        "add_partition": {**writer.me, "topic": writer.topic, "partition": 1},
        "transaction_ack": {**writer.me, "receipt_handle": handle},
        "commit_transaction": {**writer.me, "messages": 1, "acks": 1},
        "abort_transaction": {"name": name},
        "commit_many": {"token": {"name": name, "number": 1}, "transactions": []},
    }
    for operation in TRIED:
        body = bodies.get(operation.name)
        path = prefix + operation.paths[0].format(transaction=writer.transaction, name=name)
        answer = broker.request(operation.method, path, body)
        assert answer.status == 200, answer
        assert REPLIES[operation.name] <= answer.body.keys()
        msgspec.convert(answer.body, operation.reply)
        if operation.name == "begin_transaction":
            writer.transaction = answer.body["transaction_id"]


@pytest.mark.parametrize("operation", TRIED, ids=lambda one: one.name)
def test_an_unknown_field_is_refused_by_name(broker: RunningBroker, operation: Operation) -> None:
    path = operation.paths[0].format(transaction="txn-1", name="load")
    if operation.has_body:
        answer = broker.request(operation.method, path, {"colour": "red"})
    else:
        answer = broker.request(operation.method, f"{path}?colour=red")
    assert "colour" in refusal(answer, 400, "invalid_request")["error"]


def test_what_is_refused_and_how(broker: RunningBroker) -> None:
    writer = Writer(broker)
    refusal(writer.ask("publish", topic=writer.topic, value="a"), 409, "conflict")
    refusal(writer.ask("begin", producer_id=10**9), 404, "unknown_producer")
    refusal(writer.ask("begin", timeout="1ms"), 400, "invalid_request")
    writer.begin()
    refusal(writer.ask("begin"), 409, "conflict")
    refusal(writer.ask("publish", topic="missing", value="a"), 404, "unknown_topic")
    refusal(writer.ask("publish", topic=writer.topic, value="a", partition=2), 404, "unknown_partition")
    refusal(writer.ask("commit", transaction_id="txn-999999"), 404, "unknown_transaction")
    refusal(writer.ask("ack", receipt_handle="nonsense"), 400, "invalid_request")
    refusal(writer.ask("ack", group="missing", member_id="m", offsets={"t": {"0": 1}}), 404, "unknown_group")
    refusal(broker.request("GET", "/transactions/txn-999999"), 404, "unknown_transaction")
    refusal(broker.request("GET", "/transactions/nonsense"), 404, "unknown_transaction")
    refusal(broker.request("POST", "/transactions/abort", {}), 400, "invalid_request")
    wrong = refusal(writer.ask("commit", messages=5), 409, "conflict")
    assert wrong["retriable"] is False
    good(writer.ask("abort"))
    refusal(writer.ask("commit", transaction_id=writer.transaction), 409, "transaction_aborted")
    refusal(writer.ask("commit"), 409, "transaction_aborted")


# --- whole stories


def test_messages_of_several_partitions_and_acks_come_together(broker: RunningBroker) -> None:
    orders, writer = Writer(broker), Writer(broker, transactional_id=f"job-{next(_numbers)}")
    orders.begin().put("one")
    orders.put("two")
    good(orders.ask("commit", messages=2))
    member = Member(broker, orders.topic)
    first, second = member.poll(2)
    writer.begin()
    good(writer.ask("add-partition", topic=writer.topic, partition=1))
    writer.put("bill one", 0)
    writer.put("bill two", 1)
    good(writer.ask("ack", receipt_handle=first["receipt_handle"]))
    mine = {"group": member.group, "member_id": member.member_id}
    good(writer.ask("ack", **mine, offsets={orders.topic: {"0": second["offset"] + 1}}))
    assert writer.described()["partitions"] == sorted(
        [
            {"topic": orders.topic, "partition": 0, "messages": 0, "acks": 2},
            {"topic": writer.topic, "partition": 0, "messages": 1, "acks": 0},
            {"topic": writer.topic, "partition": 1, "messages": 1, "acks": 0},
        ],
        key=lambda part: (part["topic"], part["partition"]),
    )
    assert (writer.read(0), writer.read(1), member.offset(orders.topic)) == ([], [], 0)
    assert good(writer.ask("commit", messages=2, acks=2))["duplicate"] is False
    assert (writer.read(0), writer.read(1)) == (["bill one"], ["bill two"])
    assert member.offset(orders.topic) >= 2
    assert good(writer.ask("commit", transaction_id=writer.transaction))["duplicate"] is True
    assert writer.described()["state"] == "committed"


def test_an_abort_leaves_nothing_behind(broker: RunningBroker) -> None:
    orders, writer = Writer(broker), Writer(broker)
    broker.request("POST", f"/topics/{orders.topic}/publish", {"value": "one", "partition": 0})
    member = Member(broker, orders.topic)
    (message,) = member.poll(1)
    writer.begin().put("never")
    good(writer.ask("ack", receipt_handles=[message["receipt_handle"]]))
    assert good(writer.ask("abort"))["aborted"] == [writer.transaction]
    assert writer.read() == []
    assert writer.read(isolation="read_uncommitted") == ["never"]
    (again,) = member.poll(1)
    assert (again["value"], again["delivery_count"]) == ("one", 2)


def test_the_ordinary_route_publishes_in_a_transaction(broker: RunningBroker) -> None:
    writer = Writer(broker).begin()
    body = {**writer.me, "transaction_id": writer.transaction, "value": "a", "partition": 0, "sequence": 0}
    path = f"/topics/{writer.topic}/publish"
    assert good(broker.request("POST", path, body))["offset"] == 0
    assert good(broker.request("POST", path, body))["duplicate"] is True
    described = good(broker.request("GET", f"/topics/{writer.topic}"))["partition_offsets"]["0"]
    assert described == {"earliest": 0, "latest": 1, "stable": 0}
    good(writer.ask("commit", messages=1))
    refusal(broker.request("POST", path, {**body, "sequence": 1}), 409, "conflict")
    assert writer.read() == ["a"]


def test_a_batch_is_committed_once_and_operators_drop_what_is_left(broker: RunningBroker) -> None:
    name = f"load-{next(_numbers)}"
    tasks = [Writer(broker) for _ in range(3)]
    for task in tasks:
        task.begin(name=name).put("a")
    listed = [task.transaction for task in tasks[:2]]
    asked = {"token": {"name": name, "number": 4}, "transactions": listed}
    assert good(broker.request("GET", f"/transactions/tokens/{name}"))["number"] is None
    assert good(broker.request("POST", "/transactions/commit-many", asked))["duplicate"] is False
    assert good(broker.request("POST", "/transactions/commit-many", asked))["duplicate"] is True
    asked["token"] = {"name": name, "number": 3}
    refusal(broker.request("POST", "/transactions/commit-many", asked), 409, "stale_token")
    assert good(broker.request("GET", f"/transactions/tokens/{name}"))["number"] == 4
    listing = good(broker.request("GET", f"/transactions?name={name}&state=ongoing"))
    assert [shown["transaction_id"] for shown in listing["transactions"]] == [tasks[2].transaction]
    assert good(broker.request("POST", "/transactions/abort", {"name": name}))["aborted"] == [tasks[2].transaction]
    assert [task.read() for task in tasks] == [["a"], ["a"], []]
    stats = good(broker.request("GET", "/transactions/stats"))
    assert stats["committed"] >= 2
    assert stats["aborted"]["asked"] >= 1


def test_who_was_replaced_is_fenced_and_a_kill_takes_nothing_back(broker: RunningBroker) -> None:
    job = f"job-{next(_numbers)}"
    zombie = Writer(broker, transactional_id=job).begin()
    zombie.put("of the zombie")
    heir = Writer(broker, topic=zombie.topic, transactional_id=job)
    assert heir.me["epoch"] == zombie.me["epoch"] + 1
    refusal(zombie.ask("publish", topic=zombie.topic, value="late"), 409, "producer_fenced")
    refusal(zombie.ask("commit"), 409, "producer_fenced")
    heir.begin().put("done")
    good(heir.ask("commit", messages=1))
    open_one = Writer(broker, topic=zombie.topic).begin()
    open_one.put("open")
    broker.kill()
    broker.start()
    assert heir.read() == ["done"]
    assert good(heir.ask("commit", transaction_id=heir.transaction))["duplicate"] is True
    refusal(open_one.ask("commit"), 409, "conflict")
    good(open_one.ask("commit", messages=1, acks=0))
    assert heir.read() == ["done", "open"]
