"""Handles, delays and lanes over HTTP with a real broker: every route under both prefixes, and whole stories."""

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest

from goqueue.api.operations import OPERATIONS, Operation
from tests.support.broker import Answer, RunningBroker, refusal, running_broker
from tests.support.patience import PATIENCE_S, wait_until

_numbers = count(1)
FORGED = "A" * 32

TRIED = [
    operation
    for operation in OPERATIONS
    if operation.paths
    and (operation.name in ("group_ack", "group_nack") or operation.paths[0].startswith("/messages/")
         or "/delayed" in operation.paths[0])
]  # fmt: skip
REPLIES: dict[str, set[str]] = {
    "ack": {"acknowledged"},
    "nack": {"requeued", "visible_at"},
    "reject": {"rejected", "dlq_topic"},
    "extend_visibility": {"extended", "new_deadline"},
    "release": {"released"},
    "group_ack": {"acknowledged"},
    "group_nack": {"requeued", "visible_at"},
    "list_delayed": {"messages", "count"},
    "get_delayed": {"topic", "partition", "offset", "deliver_at", "priority", "key", "state"},
    "find_delayed": {"topic", "partition", "offset", "deliver_at", "priority", "key", "state"},
    "cancel_delayed": {"cancelled"},
    "move_delayed": {"topic", "partition", "offset", "deliver_at", "priority", "key", "state"},
    "cancel_many_delayed": {"cancelled", "failed"},
}
"""Fields that clients in use rely on; a reply may have more."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("delivery")) as running:
        yield running


class Member:
    def __init__(self, broker: RunningBroker, topic: str, **fields: object) -> None:
        self.broker = broker
        self.group = fields.pop("group", None) or f"group-{next(_numbers)}"
        self.path = f"/groups/{self.group}"
        joining = {"client_id": "worker", "topics": [topic], "session_timeout": "1h", **fields}
        self.member_id = good(broker.request("POST", f"{self.path}/join", joining))["member_id"]

    def poll(self, **query: object) -> list[dict[str, Any]]:
        asked = urlencode({"member_id": self.member_id, "timeout": "0", **query})
        messages: list[dict[str, Any]] = good(self.broker.request("GET", f"{self.path}/poll?{asked}"))["messages"]
        return messages

    def wait(self, **query: object) -> list[dict[str, Any]]:
        """A poll that waits until there is something, however often it has news."""
        return wait_until(lambda: self.poll(**{"timeout": "30s", **query}), "nothing comes")

    def lag(self, topic: str) -> dict[str, Any]:
        found: dict[str, Any] = good(self.broker.request("GET", f"{self.path}/lag"))["topics"][topic]["0"]
        return found


def good(answer: Answer) -> dict[str, Any]:
    assert answer.status in (200, 201), answer
    body: dict[str, Any] = answer.body
    return body


def new_topic(broker: RunningBroker, partitions: int = 1, **settings: object) -> str:
    name = f"topic-{next(_numbers)}"
    good(broker.request("POST", "/topics", {"name": name, "num_partitions": partitions, **settings}))
    return name


def publish(broker: RunningBroker, topic: str, *values: str, **fields: object) -> list[dict[str, Any]]:
    messages = [{"value": value, "partition": 0, **fields} for value in values]
    answer = good(broker.request("POST", f"/topics/{topic}/messages", {"messages": messages}))
    results: list[dict[str, Any]] = answer["results"]
    assert not any("error" in result for result in results), results
    return results


def settle(broker: RunningBroker, how: str, *handles: str, **fields: object) -> list[dict[str, Any]]:
    answer = good(broker.request("POST", f"/messages/{how}", {"receipt_handles": handles, **fields}))
    results: list[dict[str, Any]] = answer["results"]
    return results


def handles(messages: list[dict[str, Any]]) -> list[str]:
    return [message["receipt_handle"] for message in messages]


def values(messages: list[dict[str, Any]]) -> list[str]:
    return [message["value"] for message in messages]


# --- routes


def test_every_operation_of_delivery_is_tried_here() -> None:
    assert REPLIES.keys() == {operation.name for operation in TRIED}


@pytest.mark.parametrize("prefix", ["", "/v1"])
@pytest.mark.parametrize("operation", TRIED, ids=lambda one: one.name)
def test_every_route_answers_with_the_fields_clients_know(
    broker: RunningBroker, prefix: str, operation: Operation
) -> None:
    topic = new_topic(broker)
    member = Member(broker, topic)
    publish(broker, topic, "x")
    publish(broker, topic, "late", delay="1h")
    (handle,) = handles(member.wait())
    bodies: dict[str, object] = {
        "extend_visibility": {"receipt_handle": handle, "timeout": "1m"},
        "move_delayed": {"delay": "2h"},
        "cancel_many_delayed": {"ids": [[0, 1]]},
    }
    body = bodies.get(operation.name, {"receipt_handle": handle}) if operation.has_body else None
    for path in operation.paths:
        filled = path.format(topic=topic, partition=0, offset=1, group=member.group)
        answer = broker.request(operation.method, prefix + filled, body)
        assert answer.status == 200, answer
        assert answer.headers["content-type"] == "application/json"
        assert REPLIES[operation.name] <= answer.body.keys()
        msgspec.convert(answer.body, operation.reply)


@pytest.mark.parametrize("operation", TRIED, ids=lambda one: one.name)
def test_an_unknown_field_is_refused_by_name(broker: RunningBroker, operation: Operation) -> None:
    path = operation.paths[0].format(topic="nowhere", partition=0, offset=1, group="nobody")
    if operation.has_body:
        answer = broker.request(operation.method, path, {"colour": "red"})
    else:
        answer = broker.request(operation.method, f"{path}?colour=red")
    assert "colour" in refusal(answer, 400, "invalid_request")["error"]


@pytest.mark.parametrize("operation", [one for one in TRIED if "topic" in one.path_fields], ids=lambda one: one.name)
def test_a_topic_that_is_not_there_is_404(broker: RunningBroker, operation: Operation) -> None:
    path = operation.paths[0].format(topic="missing", partition=0, offset=1)
    body = {"move_delayed": {"delay": 5}, "cancel_many_delayed": {"ids": [[0, 0]]}}.get(operation.name)
    assert "missing" in refusal(broker.request(operation.method, path, body), 404, "unknown_topic")["error"]


def test_what_is_refused_and_how(broker: RunningBroker) -> None:
    topic = new_topic(broker)
    member = Member(broker, topic)
    publish(broker, topic, "x")
    (handle,) = handles(member.wait())
    for how in ("ack", "nack", "reject", "release"):
        forged = {"receipt_handle": f"{topic}:0:0:1:{FORGED}"}
        refusal(broker.request("POST", f"/messages/{how}", forged), 409, "stale_handle")
        refusal(broker.request("POST", f"/messages/{how}", {"receipt_handle": "nonsense"}), 400, "invalid_request")
        refusal(broker.request("POST", f"/messages/{how}", {}), 400, "invalid_request")
    refusal(broker.request("POST", "/groups/nobody/ack", {"receipt_handle": handle}), 404, "unknown_group")
    good(broker.request("POST", "/messages/ack", {"receipt_handle": handle}))
    error = refusal(broker.request("POST", "/messages/ack", {"receipt_handle": handle}), 409, "stale_handle")
    assert error["retriable"] is False
    refusal(broker.request("POST", "/messages/release", {"receipt_handle": handle}), 409, "stale_handle")
    refusal(broker.request("GET", f"/topics/{topic}/delayed/0/0"), 404, "unknown_delay")
    refusal(broker.request("DELETE", f"/topics/{topic}/delayed/0/7"), 404, "unknown_delay")
    refusal(broker.request("GET", f"/topics/{topic}/delayed/x"), 400, "invalid_request")


# --- whole stories


def test_a_worker_that_acks_nacks_and_rejects(broker: RunningBroker) -> None:
    topic = new_topic(broker, max_retries=2, backoff={"base": "50ms", "factor": 1, "max": "50ms"})
    publish(broker, topic, "good", "shaky", "bad", "hopeless")
    member = Member(broker, topic)
    seen: Counter[str] = Counter()
    while member.lag(topic)["lag"]:
        for message in member.poll(timeout="1s"):
            seen[message["value"]] += 1
            assert message["delivery_count"] == seen[message["value"]]
            match message["value"], message["delivery_count"]:
                case ("bad", _):
                    (result,) = settle(broker, "reject", message["receipt_handle"], reason="no such customer")
                    assert result == {"rejected": True, "dlq_topic": f"{topic}.dlq"}
                case ("hopeless", _) | ("shaky", 1 | 2):
                    settle(broker, "nack", message["receipt_handle"])
                case _:
                    settle(broker, "ack", message["receipt_handle"])
    assert seen == {"good": 1, "shaky": 3, "bad": 1, "hopeless": 3}
    dead = good(broker.request("GET", f"/topics/{topic}.dlq/messages"))["messages"]
    assert sorted(values(dead)) == ["bad", "hopeless"]


def test_what_is_released_is_for_others_at_once_and_was_not_tried(broker: RunningBroker) -> None:
    topic = new_topic(broker, max_retries=0, visibility_timeout="1h")
    one = Member(broker, topic, mode="shared")
    other = Member(broker, topic, group=one.group)
    publish(broker, topic, "a", "b", "c")
    a, b, c = handles(one.wait(max_messages=3))
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(other.wait)
        assert broker.request("POST", "/messages/release", {"receipt_handle": b}).body == {"released": True}
        (found,) = waiting.result(PATIENCE_S)
    assert (found["value"], found["delivery_count"]) == ("b", 1)
    refusal(broker.request("POST", "/messages/release", {"receipt_handle": b}), 409, "stale_handle")
    results = settle(broker, "release", a, b, f"{topic}:0:0:1:{FORGED}", c)
    assert [result.get("code", "released") for result in results] == [
        "released", "stale_handle", "stale_handle", "released",
    ]  # fmt: skip
    again = other.wait(max_messages=3)
    assert [(each["value"], each["delivery_count"]) for each in again] == [("a", 1), ("c", 1)]
    assert settle(broker, "ack", *handles(again), found["receipt_handle"]) == [{"acknowledged": True}] * 3
    assert one.lag(topic)["lag"] == 0


def test_handles_live_through_a_kill_and_visibility_goes_on(broker: RunningBroker) -> None:
    topic = new_topic(broker, visibility_timeout="1h")
    publish(broker, topic, "a", "b", "c")
    member = Member(broker, topic)
    a, b, c = handles(member.wait())
    good(broker.request("POST", "/messages/ack", {"receipt_handle": a}))
    broker.kill()
    broker.restart()
    assert member.poll() == [], "they are still its own"
    refusal(broker.request("POST", "/messages/ack", {"receipt_handle": a}), 409, "stale_handle")
    assert settle(broker, "ack", b) == [{"acknowledged": True}]
    (result,) = settle(broker, "nack", c, delay=0)
    assert result["requeued"]
    (again,) = member.wait()
    assert (again["value"], again["delivery_count"]) == ("c", 2)
    assert settle(broker, "ack", again["receipt_handle"]) == [{"acknowledged": True}]
    assert member.lag(topic)["lag"] == 0


def test_a_delayed_message_comes_in_time_also_after_a_kill(broker: RunningBroker) -> None:
    topic = new_topic(broker)
    begun = time.time()
    (soon,) = publish(broker, topic, "soon", delay="1s")
    publish(broker, topic, "never", "later", delay="1h")
    assert soon["delayed"]
    member = Member(broker, topic)
    assert member.poll() == []
    assert member.lag(topic)["delayed"] == 3
    assert broker.request("DELETE", f"/topics/{topic}/delayed/0/1").body == {"cancelled": True}
    broker.kill()
    broker.restart()
    listed = good(broker.request("GET", f"/topics/{topic}/delayed"))
    assert listed["count"] in (1, 2)
    (found,) = member.wait()
    assert found["value"] == "soon"
    assert time.time() >= begun + 1, "not before its time"
    refusal(broker.request("DELETE", f"/topics/{topic}/delayed/0/0"), 409, "already_delivered")
    good(broker.request("PATCH", f"/topics/{topic}/delayed/0/2", {"delay": 0}))
    assert values(member.wait()) == ["later"]
    shown = good(broker.request("GET", f"/topics/{topic}/delayed/1"))
    assert shown["state"] == "cancelled"
    assert values(good(broker.request("GET", f"/topics/{topic}/messages"))["messages"]) == ["soon", "later"]


def test_messages_that_nobody_settles_come_again(broker: RunningBroker) -> None:
    topic = new_topic(broker, visibility_timeout="200ms", max_retries=1)
    publish(broker, topic, "a")
    member = Member(broker, topic)
    (first,) = member.wait()
    (second,) = member.wait()
    assert (first["delivery_count"], second["delivery_count"]) == (1, 2)
    wait_until(lambda: broker.request("GET", f"/topics/{topic}.dlq").status == 200)
    wait_until(lambda: good(broker.request("GET", f"/topics/{topic}.dlq"))["total_messages"] == 1)
    wait_until(lambda: member.lag(topic)["lag"] == 0)


def test_members_that_share_a_partition_do_each_message_once(broker: RunningBroker) -> None:
    topic = new_topic(broker)
    wanted = [f"m{number}" for number in range(400)]
    publish(broker, topic, *wanted)
    group = f"group-{next(_numbers)}"
    members = [Member(broker, topic, group=group, mode="shared") for _ in range(4)]
    done: Counter[str] = Counter()

    def work(member: Member) -> None:
        while messages := member.poll(max_messages=10):
            assert all("acknowledged" in result for result in settle(broker, "ack", *handles(messages)))
            done.update(values(messages))

    with ThreadPoolExecutor(len(members)) as pool:
        for working in [pool.submit(work, member) for member in members]:
            working.result()
    assert sorted(done) == sorted(wanted)
    assert set(done.values()) == {1}


def test_in_key_mode_a_key_is_done_in_order_by_many(broker: RunningBroker) -> None:
    topic = new_topic(broker, visibility_timeout="1h", backoff={"base": "1ms", "max": "1ms"}, max_retries=100)
    keys = "abcdef"
    messages = [{"value": f"{key}{number}", "key": key, "partition": 0} for number in range(30) for key in keys]
    good(broker.request("POST", f"/topics/{topic}/messages", {"messages": messages}))
    group = f"group-{next(_numbers)}"
    members = [Member(broker, topic, group=group, mode="key") for _ in range(4)]
    done: list[str] = []

    def work(member: Member, number: int) -> None:
        failed: set[str] = set()
        while len(done) < len(messages):
            for message in member.poll(max_messages=3, timeout="100ms"):
                text = message["value"]
                if (ord(text[0]) + int(text[1:]) + number) % 5 == 0 and text not in failed:
                    failed.add(text)
                    settle(broker, "nack", message["receipt_handle"])
                    continue
                done.append(text)  # before it is settled: nobody may have the next one yet
                settle(broker, "ack", message["receipt_handle"])

    with ThreadPoolExecutor(len(members)) as pool:
        for working in [pool.submit(work, member, number) for number, member in enumerate(members)]:
            working.result()
    for key in keys:
        assert [text for text in done if text[0] == key] == [f"{key}{number}" for number in range(30)]


def test_what_is_urgent_is_delivered_first_and_the_rest_has_its_share(broker: RunningBroker) -> None:
    topic = new_topic(broker)
    for lane in ("background", "low", "normal", "high", "critical"):
        publish(broker, topic, *([lane] * 200), priority=lane)
    member = Member(broker, topic)
    found = Counter(values(member.wait(max_messages=100)))
    assert found == {"critical": 50, "high": 25, "normal": 15, "low": 7, "background": 3}


def test_a_message_that_is_too_old_is_not_delivered(broker: RunningBroker) -> None:
    topic = new_topic(broker)
    publish(broker, topic, "short", ttl="50ms")
    publish(broker, topic, "long", ttl="1h")
    time.sleep(0.06)
    member = Member(broker, topic)
    assert values(member.wait()) == ["long"]


def test_a_member_that_holds_enough_waits_until_it_settles_something(broker: RunningBroker) -> None:
    topic = new_topic(broker)
    publish(broker, topic, *"abcd")
    member = Member(broker, topic, max_unacked=2)
    first = member.wait()
    assert values(first) == ["a", "b"]
    assert member.poll(timeout="100ms") == []
    settle(broker, "ack", handles(first)[0])
    assert values(member.wait()) == ["c"]
