"""Consumer groups over HTTP with a real broker: members that work, wait, vanish, and live on when the broker dies."""

import json
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.support.broker import Answer, RunningBroker, refusal, running_broker
from tests.support.patience import PATIENCE_S, wait_until
from tests.support.raw_http import request as raw_request

_numbers = count(1)

REPLIES = {
    "join": {"member_id", "generation", "leader", "assigned_partitions", "rebalance_required"},
    "heartbeat": {"state", "generation", "rebalance_required", "assigned_partitions", "revoke"},
    "poll": {"messages", "generation", "assigned_partitions", "revoke"},
    "message": {
        "topic", "partition", "offset", "message_id", "key", "value", "headers", "timestamp", "priority",
        "delivery_count", "receipt_handle",
    },
    "group": {"group_id", "state", "generation", "protocol", "mode", "members"},
    "member": {"member_id", "client_id", "assigned_partitions"},
    "lag": {"committed", "end", "lag", "lag_seconds", "delayed", "in_flight"},
}  # fmt: skip
"""What published clients expect to find."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("groups")) as running:
        yield running


class Member:
    """A consumer with a connection of its own."""

    def __init__(self, broker: RunningBroker, group: str, *topics: str, **fields: object) -> None:
        self.broker = broker
        self.path = f"/groups/{group}"
        self.client = broker.client()
        joining = {"client_id": "worker", "topics": topics, **fields}
        self.joined = good(self.client.request("POST", f"{self.path}/join", joining))
        self.member_id = self.joined["member_id"]

    def ask(self, what: str, **fields: object) -> Answer:
        return self.client.request("POST", f"{self.path}/{what}", {"member_id": self.member_id, **fields})

    def poll(self, **query: object) -> dict[str, Any]:
        return good(self.client.request("GET", self.poll_path(**query)))

    def poll_path(self, **query: object) -> str:
        return f"{self.path}/poll?{urlencode({'member_id': self.member_id, 'timeout': '0', **query})}"

    def values(self, **query: object) -> list[str]:
        return values(self.poll(**query))

    def commit(self, topic: str, below: int, partition: int = 0, **fields: object) -> Answer:
        return self.ask("commit", offsets={topic: {str(partition): below}}, **fields)

    def reconnect(self) -> "Member":
        """To the same broker in its next life."""
        self.client = self.broker.client()
        return self


class Waiting:
    """A poll that waits, in a thread; `answer` is what came of it."""

    def __init__(self, member: Member, **query: object) -> None:
        self.client = member.broker.client()
        path = member.poll_path(**{"timeout": "60s", **query})
        before = waiting_polls(member.broker)
        self._found: list[Answer] = []
        self._thread = threading.Thread(target=lambda: self._found.append(self.client.request("GET", path)))
        self._thread.start()
        wait_until(lambda: waiting_polls(member.broker) > before or not self._thread.is_alive())

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def answer(self) -> Answer:
        self._thread.join(PATIENCE_S)
        assert self._found, "it is not answered"
        return self._found[0]


def good(answer: Answer) -> dict[str, Any]:
    assert answer.status in (200, 201), answer
    body: dict[str, Any] = answer.body
    return body


def values(body: dict[str, Any]) -> list[str]:
    return [message["value"] for message in body["messages"]]


def waiting_polls(broker: RunningBroker) -> int:
    number: int = good(broker.request("GET", "/rebalance/stats"))["waiting_polls"]
    return number


def topic(broker: RunningBroker, partitions: int = 1, **settings: object) -> str:
    name = f"topic-{next(_numbers)}"
    good(broker.request("POST", "/topics", {"name": name, "num_partitions": partitions, **settings}))
    return name


def group() -> str:
    return f"group-{next(_numbers)}"


def publish(broker: RunningBroker, name: str, *texts: object, partition: int = 0) -> None:
    messages = [{"value": f"{text}", "partition": partition} for text in texts]
    good(broker.request("POST", f"/topics/{name}/messages", {"messages": messages}))


# --- the whole story


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_a_group_from_its_beginning_to_its_end(broker: RunningBroker, prefix: str) -> None:
    orders, billing = topic(broker), group()
    path = f"{prefix}/groups/{billing}"
    good(broker.request("POST", f"/topics/{orders}/publish", {"value": "v", "key": "k", "headers": {"a": "b"}}))
    joined = good(broker.request("POST", f"{path}/join", {"client_id": "worker", "topics": [orders]}))
    assert set(joined) >= REPLIES["join"]
    assert (joined["assigned_partitions"], joined["rebalance_required"]) == ([f"{orders}-0"], False)
    member = {"member_id": joined["member_id"]}

    polled = good(broker.request("GET", f"{path}/poll?member_id={member['member_id']}&max_messages=10&timeout=5s"))
    assert set(polled) >= REPLIES["poll"]
    (message,) = polled["messages"]
    assert set(message) >= REPLIES["message"]
    assert (message["topic"], message["message_id"], message["delivery_count"]) == (orders, f"{orders}:0:0", 1)
    assert (message["key"], message["value"], message["headers"]) == ("k", "v", {"a": "b"})

    lag = good(broker.request("GET", f"{path}/lag"))["topics"][orders]["0"]
    assert set(lag) >= REPLIES["lag"]
    assert (lag["committed"], lag["end"], lag["lag"], lag["in_flight"]) == (0, 1, 1, 1)
    for alias in ("offsets", "commit"):
        answer = broker.request("POST", f"{path}/{alias}", {**member, "offsets": {orders: {"0": 1}}})
        assert good(answer) == {"committed": True}
    assert good(broker.request("GET", f"{path}/offsets?topic={orders}")) == {"offsets": {orders: {"0": 1}}}

    beat = good(broker.request("POST", f"{path}/heartbeat", {**member, "generation": joined["generation"]}))
    assert set(beat) >= REPLIES["heartbeat"]
    described = good(broker.request("GET", path))
    assert set(described) >= REPLIES["group"]
    assert set(described["members"][0]) >= REPLIES["member"]
    assert billing in good(broker.request("GET", f"{prefix}/groups"))["groups"]

    refusal(broker.request("DELETE", path), 409, "group_active")
    assert good(broker.request("POST", f"{path}/leave", member)) == {"left": True}
    reset = {"topic": orders, "to": "earliest", "dry_run": True}
    assert good(broker.request("POST", f"{path}/offsets/reset", reset)) == {"offsets": {orders: {"0": 0}}}
    assert good(broker.request("DELETE", path))["deleted"] is True
    refusal(broker.request("GET", path), 404, "unknown_group")


def test_members_share_the_work_and_every_message_is_done_once(broker: RunningBroker) -> None:
    orders, billing = topic(broker, 4), group()
    for partition in range(4):
        publish(broker, orders, *(f"{partition}-{number}" for number in range(50)), partition=partition)
    members = [Member(broker, billing, orders)]
    done: Counter[str] = Counter()
    while sum(done.values()) < 200:
        if len(members) < 3 and sum(done.values()) > 40 * len(members):
            members.append(Member(broker, billing, orders))
        for member in members:
            polled = member.poll(max_messages=7)
            done.update(values(polled))
            ends = {f"{message['partition']}": message["offset"] + 1 for message in polled["messages"]}
            if ends:
                assert good(member.ask("commit", offsets={orders: ends}, generation=polled["generation"]))
    assert set(done.values()) == {1}
    assert good(broker.request("GET", f"/groups/{billing}/lag"))["total_lag"] == 0
    shares = [
        len(member["assigned_partitions"]) for member in good(broker.request("GET", f"/groups/{billing}"))["members"]
    ]
    assert sorted(shares) == [1, 1, 2]


# --- long polls


def test_a_long_poll_is_answered_when_a_message_comes(broker: RunningBroker) -> None:
    orders = topic(broker)
    member = Member(broker, group(), orders)
    waiting = Waiting(member)
    assert not waiting.is_over
    publish(broker, orders, "a")
    assert values(good(waiting.answer())) == ["a"]


def test_a_long_poll_without_messages_ends_empty(broker: RunningBroker) -> None:
    member = Member(broker, group(), topic(broker))
    assert member.values(timeout="50ms") == []


def test_a_long_poll_is_answered_when_partitions_move_and_nobody_else_waits_for_it(broker: RunningBroker) -> None:
    orders, billing = topic(broker, 2), group()
    first = Member(broker, billing, orders)
    waiting = Waiting(first)
    second = Member(broker, billing, orders)
    told = good(waiting.answer())
    assert (len(told["assigned_partitions"]), len(told["revoke"])) == (1, 1)
    gaining = Waiting(second)
    given_up = good(Waiting(first).answer())
    assert (given_up["assigned_partitions"], given_up["revoke"]) == (told["assigned_partitions"], [])
    staying = Waiting(first)
    assert good(gaining.answer())["assigned_partitions"] == told["revoke"]
    third = Member(broker, billing, orders)
    assert third.joined["assigned_partitions"] == [], "there is nothing for it, and nothing moves"
    assert not staying.is_over
    publish(broker, orders, "a", partition=int(told["assigned_partitions"][0].rpartition("-")[2]))
    assert values(good(staying.answer())) == ["a"]


def test_a_newer_poll_sends_the_older_one_home(broker: RunningBroker) -> None:
    orders = topic(broker)
    member = Member(broker, group(), orders)
    older = Waiting(member)
    newer = threading.Thread(target=lambda: found.append(member.poll(timeout="60s")))
    found: list[dict[str, Any]] = []
    newer.start()
    assert values(good(older.answer())) == []
    publish(broker, orders, "a")
    newer.join(PATIENCE_S)
    assert values(found[0]) == ["a"]


def test_many_wait_at_once_and_one_message_wakes_one(broker: RunningBroker) -> None:
    orders = topic(broker, 20)
    billing = group()
    members = [Member(broker, billing, orders, rebalance_timeout="0s") for _ in range(20)]
    wait_until(lambda: all(len(member.poll()["assigned_partitions"]) == 1 for member in members))
    polls = [Waiting(member) for member in members]
    publish(broker, orders, "a", partition=7)
    wait_until(lambda: any(poll.is_over for poll in polls))
    assert [values(good(poll.answer())) for poll in polls if poll.is_over] == [["a"]]
    for partition in range(20):
        publish(broker, orders, "b", partition=partition)
    assert sum(len(values(good(poll.answer()))) for poll in polls) == 20


# --- clients that vanish


def raw(broker: RunningBroker, path: str, *, receive_bytes: int | None = None) -> socket.socket:
    """A connection on which a GET was sent, as a program that is then killed leaves it."""
    host, _, port = broker.http.rpartition(":")
    peer = socket.socket()
    if receive_bytes is not None:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    peer.connect((host, int(port)))
    peer.sendall(raw_request("GET", path))
    return peer


def reset(peer: socket.socket) -> None:
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


@pytest.mark.parametrize("leave", [socket.socket.close, reset])
def test_a_client_that_leaves_while_it_waits_takes_nothing_with_it(
    broker: RunningBroker, leave: Callable[[socket.socket], None]
) -> None:
    orders = topic(broker)
    member = Member(broker, group(), orders)
    peers = [raw(broker, member.poll_path(timeout="60s"))]
    wait_until(lambda: waiting_polls(broker) == 1)
    leave(peers.pop())
    wait_until(lambda: waiting_polls(broker) == 0)
    publish(broker, orders, "a")
    (message,) = member.poll()["messages"]
    assert (message["value"], message["delivery_count"]) == ("a", 1)


def test_a_client_that_leaves_while_it_is_answered_gets_it_again(broker: RunningBroker) -> None:
    """What did not leave the broker was not delivered."""
    orders = topic(broker)
    for number in range(8):
        publish(broker, orders, f"{number}" * 900_000)
    member = Member(broker, group(), orders)
    for _ in range(3):
        peer = raw(broker, member.poll_path(), receive_bytes=4096)
        assert peer.recv(1) == b"H"
        reset(peer)
        wait_until(lambda: good(broker.request("GET", f"{member.path}/lag"))["topics"][orders]["0"]["in_flight"] == 0)
    found: list[dict[str, Any]] = []
    while part := member.poll()["messages"]:
        found += part
    assert [message["value"][0] for message in found] == [f"{number}" for number in range(8)]
    assert {message["delivery_count"] for message in found} == {1}


def test_what_a_client_says_it_did_not_receive_comes_again(broker: RunningBroker) -> None:
    orders = topic(broker)
    publish(broker, orders, *range(6))
    member = Member(broker, group(), orders)
    first = member.poll(max_messages=2, received=0)
    lost = member.poll(max_messages=2, received=first["poll"])
    again = member.poll(received=first["poll"])
    assert (values(first), values(lost), values(again)) == (["0", "1"], ["2", "3"], ["2", "3", "4", "5"])
    assert {message["delivery_count"] for message in again["messages"]} == {1}
    assert good(member.commit(orders, 6, received=first["poll"])) == {"committed": True}
    assert good(broker.request("GET", f"{member.path}/offsets")) == {"offsets": {orders: {"0": 2}}}
    good(member.commit(orders, 6, received=again["poll"]))
    assert good(broker.request("GET", f"{member.path}/lag"))["total_lag"] == 0


# --- members that go


def test_who_falls_silent_is_out_and_its_work_is_done_by_others(broker: RunningBroker) -> None:
    orders, billing = topic(broker), group()
    publish(broker, orders, *range(4))
    silent = Member(broker, billing, orders, session_timeout="1s")
    assert len(silent.values()) == 4
    good(silent.commit(orders, 1))
    other = Member(broker, billing, orders)
    polled = other.poll(timeout="60s")
    if not polled["messages"]:  # news came first
        polled = other.poll(timeout="60s")
    assert values(polled) == ["1", "2", "3"]
    assert {message["delivery_count"] for message in polled["messages"]} == {2}
    for answer in (silent.ask("heartbeat"), silent.commit(orders, 4), silent.ask("leave")):
        refusal(answer, 404, "unknown_member")


def test_a_commit_for_what_moved_is_refused_and_the_rest_of_it_is_done(broker: RunningBroker) -> None:
    orders, billing = topic(broker, 2), group()
    for partition in (0, 1):
        publish(broker, orders, "a", "b", partition=partition)
    first = Member(broker, billing, orders, rebalance_timeout="200ms")
    assert len(first.values()) == 4
    second = Member(broker, billing, orders)
    polled = second.poll(timeout="60s")
    while not polled["messages"]:
        polled = second.poll(timeout="60s")
    (moved,) = polled["assigned_partitions"]
    error = refusal(first.ask("commit", offsets={orders: {"0": 2, "1": 2}}), 409, "not_owner")
    assert error["details"] == {"refused": [moved]}
    number = int(moved.rpartition("-")[2])
    assert good(broker.request("GET", f"{first.path}/offsets"))["offsets"][orders] == {
        f"{number}": 0,
        f"{1 - number}": 2,
    }
    good(second.commit(orders, 2, number, generation=polled["generation"]))


def test_a_new_process_of_an_instance_takes_over(broker: RunningBroker) -> None:
    orders, billing = topic(broker), group()
    publish(broker, orders, "a")
    old = Member(broker, billing, orders, instance_id="pod-1")
    assert old.values() == ["a"]
    new = Member(broker, billing, orders, instance_id="pod-1")
    assert new.joined["assigned_partitions"] == [f"{orders}-0"]
    assert new.values() == ["a"]
    refusal(old.commit(orders, 1), 409, "member_fenced")
    good(new.commit(orders, 1))


def test_a_member_that_commits_by_itself_leaves_nothing_behind(broker: RunningBroker) -> None:
    orders, billing = topic(broker), group()
    publish(broker, orders, *range(3))
    member = Member(broker, billing, orders, auto_commit=True, auto_commit_interval="1h")
    assert len(member.values()) == 3
    good(member.ask("leave"))
    assert Member(broker, billing, orders).values() == []


def test_a_group_is_moved_while_its_member_waits(broker: RunningBroker) -> None:
    orders, billing = topic(broker), group()
    publish(broker, orders, *range(3))
    member = Member(broker, billing, orders, start="latest")
    assert member.values() == []
    waiting = Waiting(member)
    moved = good(broker.request("POST", f"{member.path}/offsets/reset", {"topic": orders, "to": "offset", "value": 1}))
    assert moved == {"offsets": {orders: {"0": 1}}}
    found = values(good(waiting.answer())) or member.values(timeout="60s")
    assert found == ["1", "2"]


def test_a_topic_may_grow_and_go_under_its_members(broker: RunningBroker) -> None:
    orders, bills, billing = topic(broker), topic(broker), group()
    member = Member(broker, billing, orders, bills)
    waiting = Waiting(member)
    good(broker.request("POST", f"/admin/topics/{orders}/partitions", {"count": 2}))
    publish(broker, orders, "a", partition=1)
    found = values(good(waiting.answer())) or member.values(timeout="60s")
    assert found == ["a"]
    waiting = Waiting(member)
    good(broker.request("DELETE", f"/topics/{orders}"))
    good(waiting.answer())
    wait_until(lambda: member.poll()["assigned_partitions"] == [f"{bills}-0"])
    refusal(member.commit(orders, 1, 1), 409, "not_owner")
    good(broker.request("POST", "/topics", {"name": orders, "num_partitions": 1}))
    wait_until(lambda: len(member.poll()["assigned_partitions"]) == 2)
    publish(broker, orders, "new")
    assert member.values(timeout="60s") == ["new"]


# --- the broker goes


def test_after_kill_9_members_go_on_and_commits_are_kept(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        orders, billing = topic(broker, 2), group()
        for partition in (0, 1):
            publish(broker, orders, *(f"{partition}-{number}" for number in range(6)), partition=partition)
        first, second = Member(broker, billing, orders), Member(broker, billing, orders)
        wait_until(
            lambda: all(len(member.poll(max_messages=1)["assigned_partitions"]) == 1 for member in (first, second))
        )
        for _ in range(2):
            wait_until(lambda: first.values(max_messages=1) == [])
            wait_until(lambda: second.values(max_messages=1) == [])
        own = {member: int(member.poll()["assigned_partitions"][0].rpartition("-")[2]) for member in (first, second)}
        good(first.commit(orders, 2, own[first]))
        good(second.commit(orders, 6, own[second]))
        for partition in (0, 1):
            publish(broker, orders, "seen", partition=partition)
        seen = first.poll()
        assert values(seen) == ["seen"]

        broker.kill()
        broker.restart()
        first.reconnect(), second.reconnect()
        assert good(broker.request("GET", f"{first.path}/offsets"))["offsets"][orders] == {
            f"{own[first]}": 2,
            f"{own[second]}": 6,
        }
        assert first.values() == [], "its owner has it, and may still be at it"
        assert second.values() == ["seen"]
        good(first.commit(orders, 4, own[first], generation=seen["generation"]))
        assert first.values(received=0) == [f"{own[first]}-4", f"{own[first]}-5", "seen"], "unless it says it has not"
        publish(broker, orders, "new", partition=own[first])
        assert first.values() == ["new"]
        good(second.commit(orders, 7, own[second]))
        good(second.ask("leave"))

        broker.kill()
        broker.restart()
        first.reconnect()
        assert first.values() == [], "what the other one settled is settled"
        good(first.ask("leave"))
        third = Member(broker, billing, orders)
        polled = third.poll()
        assert values(polled) == [f"{own[first]}-4", f"{own[first]}-5", "seen", "new"], "it has another owner now"
        assert {message["delivery_count"] for message in polled["messages"]} == {2}


def test_a_broker_that_stops_answers_those_who_wait(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        members = [Member(broker, group(), topic(broker)) for _ in range(5)]
        polls = [Waiting(member) for member in members]
        broker.stop()
        for poll in polls:
            assert good(poll.answer())["messages"] == []


# --- nonsense

_JUNK: list[object] = [None, [], {}, -1, 1.5, True, "", "a b", "\x00", "x" * 300, 2**70, [[]], {"a": {"b": "c"}}]

_BAD: dict[str, dict[str, list[object]]] = {
    "join": {
        "client_id": _JUNK,
        "topics": [None, [], {}, "a", 5, ["a b"], [5], ["nope"]],
        "session_timeout": [None, [], {}, "", "soon", "-1s", -1, "10ms", "2h", "1e3", 10**10],
        "rebalance_timeout": [None, "soon", "2h", -1],
        "member_id": [[], 5, "", "x" * 300, "nobody"],
        "instance_id": [[], 5, "", "a b", "x" * 65],
        "mode": ["shared", "key", "", 5],
        "assignor": ["best", "", 5, [], "range"],
        "start": ["", "soon", -1, 1.5, None, [], "2026-01-01", "2026-13-01T00:00:00Z"],
        "auto_commit": ["yes", 5, None],
        "auto_commit_interval": ["soon", "2h", None],
        "visibility": ["soon", 0, "13h", []],
        "max_unacked": [0, -1, "5", 50_001, None],
        "colour": ["red"],
    },
    "heartbeat": {"member_id": [*_JUNK, "nobody"], "generation": ["x", -1, []], "revoked": ["a", 5, {}, [5]]},
    "leave": {"member_id": [*_JUNK, "nobody"], "reason": ["bored"]},
    "commit": {
        "member_id": [*_JUNK, "nobody"],
        "generation": ["x", -1, [], 0],
        "received": ["x", -1, [], 2**63],
        "offsets": [
            None, [], 5, "a", {"nope": {"0": 0}}, {"{topic}": 5}, {"{topic}": {"0": -1}}, {"{topic}": {"0": "1"}},
            {"{topic}": {"x": 1}}, {"{topic}": {"00": 1}}, {"{topic}": {"7": 1}}, {"{topic}": {"0": 99}}, {"a b": {}},
        ],
    },
    "offsets/reset": {
        "topic": [*_JUNK, "nope"],
        "to": ["start", "", None, 5, "offset", "timestamp", "duration"],
        "value": [5, "5", -1, [], {}],
        "partition": [-1, "0", 7, 1.5],
        "dry_run": ["yes", 5],
    },
    "poll": {
        "member_id": ["", "nobody", "x" * 300],
        "max_messages": ["", "x", "0", "-1", "1.5", "10001", "NaN"],
        "max_bytes": ["", "x", "0", "-1", "99999999999"],
        "timeout": ["", "x", "-1", "2m", "1e9", "NaN"],
        "received": ["", "x", "-1", "1.5", str(2**61), str(2**63)],
        "visibility": ["", "x", "0", "13h", "-1"],
        "colour": ["red"],
    },
    "ack": {"receipt_handle": [*_JUNK, "nonsense", "{topic}:0:0:1:" + "A" * 32], "colour": ["red"]},
    "nack": {
        "receipt_handle": [*_JUNK, "nonsense"], "receipt_handles": ["a", [], [5], [""]], "delay": ["soon", "8d", -1],
    },
}  # fmt: skip
"""By operation and field, what cannot be right there. The other fields of the request are right."""


def test_hundreds_of_bad_requests_are_told_what_is_wrong_and_change_nothing(broker: RunningBroker) -> None:
    orders, billing = topic(broker), group()
    publish(broker, orders, *range(5))
    member = Member(broker, billing, orders, session_timeout="1h")
    assert len(member.values(max_messages=3)) == 3
    good(member.commit(orders, 1))
    right: dict[str, dict[str, object]] = {
        "join": {"client_id": "other", "topics": [orders]},
        "heartbeat": {"member_id": member.member_id},
        "leave": {"member_id": member.member_id},
        "commit": {"member_id": member.member_id, "offsets": {orders: {"0": 2}}},
        "offsets/reset": {"topic": orders, "to": "latest"},
        "poll": {"member_id": member.member_id, "timeout": "0"},
        "ack": {},
        "nack": {},
    }

    def state() -> list[object]:
        lag = good(broker.request("GET", f"{member.path}/lag"))
        del lag["topics"][orders]["0"]["lag_seconds"]
        about = [good(broker.request("GET", f"{member.path}{what}")) for what in ("", "/offsets")]
        return [lag, *about, good(broker.request("GET", "/groups"))]

    before = state()
    chance = Random(4)
    statuses: Counter[int] = Counter()
    for number in range(250):
        operation = chance.choice(list(_BAD))
        field = chance.choice(list(_BAD[operation]))
        junk = json.loads(json.dumps(chance.choice(_BAD[operation][field])).replace("{topic}", orders))
        fields = {**right[operation], field: junk}
        path = f"{chance.choice(['', '/v1'])}{member.path}/{operation}"
        if operation == "poll":
            answer = broker.request("GET", f"{path}?{urlencode(fields)}")
        else:
            answer = broker.request("POST", path, fields)
        what = (number, operation, fields, answer)
        assert answer.status in (400, 404, 409), what
        refusal(answer, answer.status, answer.body["code"])
        assert answer.body["retriable"] is False, what
        said = answer.body["error"]
        assert len(said) < 1000, what
        if answer.status == 400 and answer.body["code"] == "invalid_request":
            assert field in said or "is no " in said or "a reset to" in said or "receipt" in said, what
        statuses[answer.status] += 1
        if number % 20 == 19:
            assert state() == before, what
    assert min(statuses[400], statuses[404]) > 10
    assert member.values() == ["3", "4"]
