"""Named readers over HTTP, wire and gRPC with a real broker: every door says the same, and they outlive the broker."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import goqueue
from goqueue.model import limits
from tests.support.broker import Answer, RunningBroker, refusal, running_broker
from tests.support.grpc_client import GrpcClient


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("readers"), "--grpc", "127.0.0.1:0") as running:
        new_topic(running, "orders")
        yield running


def good(answer: Answer, status: int = 200) -> Any:
    assert answer.status == status, answer
    return answer.body


def new_topic(broker: RunningBroker, name: str) -> None:
    """Two partitions, three messages in the first."""
    good(broker.request("POST", "/topics", {"name": name, "num_partitions": 2}), 201)
    messages = [{"value": str(number), "partition": 0} for number in range(3)]
    good(broker.request("POST", f"/topics/{name}/messages", {"messages": messages}))


def put(broker: RunningBroker, name: str, offsets: Any, **fields: Any) -> Answer:
    return broker.request("PUT", f"/readers/{name}", {"offsets": offsets, **fields})


def test_a_reader_is_put_shown_listed_and_deleted(broker: RunningBroker) -> None:
    made = good(put(broker, "nightly", {"orders": {"0": 2}}, if_absent=True))
    assert made.keys() == {"name", "offsets", "created", "created_at", "changed_at"}
    assert (made["name"], made["offsets"], made["created"]) == ("nightly", {"orders": {"0": 2}}, True)
    again = good(put(broker, "nightly", {"orders": {"0": 0, "1": 0}}, if_absent=True))
    assert (again["offsets"], again["created"]) == ({"orders": {"0": 2, "1": 0}}, False)
    del again["created"]
    assert good(broker.request("GET", "/v1/readers/nightly")) == again
    assert good(put(broker, "nightly", {"orders": {"1": 0}}))["offsets"] == {"orders": {"1": 0}}
    good(put(broker, "daily", {"orders": {"0": 0}}))
    page = good(broker.request("GET", "/readers?limit=1"))
    assert ([one["name"] for one in page["readers"]], page["next"]) == (["daily"], "nightly")
    rest = good(broker.request("GET", "/readers?next=nightly"))
    assert ([one["name"] for one in rest["readers"]], "next" in rest) == (["nightly"], False)
    for name in ("daily", "nightly"):
        assert good(broker.request("DELETE", f"/readers/{name}")) == {"deleted": True, "name": name}
        for method in ("GET", "DELETE"):
            refusal(broker.request(method, f"/readers/{name}"), 404, "unknown_reader")
    assert good(broker.request("GET", "/readers")) == {"readers": []}


@pytest.mark.parametrize(
    ("offsets", "status", "code"),
    [
        ({}, 400, "invalid_request"),
        ({"orders": {}}, 400, "invalid_request"),
        ({"orders": {"0": -1}}, 400, "invalid_request"),
        ({"orders": {"x": 1}}, 400, "invalid_request"),
        ({"orders": {"0": 4}}, 400, "offset_out_of_range"),
        ({"orders": {"2": 0}}, 404, "unknown_partition"),
        ({"nope": {"0": 0}}, 404, "unknown_topic"),
        ({f"t{number}": {"0": 0} for number in range(limits.MAX_READER_TOPICS + 1)}, 400, "invalid_request"),
    ],
)
def test_what_cannot_be_put_is_refused(broker: RunningBroker, offsets: Any, status: int, code: str) -> None:
    refusal(put(broker, "wrong", offsets), status, code)
    refusal(broker.request("GET", "/readers/wrong"), 404, "unknown_reader")


def test_a_name_that_cannot_be_is_refused(broker: RunningBroker) -> None:
    refusal(put(broker, "a%20b", {"orders": {"0": 0}}), 400, "invalid_request")
    refusal(broker.request("PUT", "/readers/wrong", {"if_absent": True}), 400, "invalid_request")
    refusal(
        broker.request("PUT", "/readers/wrong", {"offsets": {"orders": {"0": 0}}, "until": 5}), 400, "invalid_request"
    )


def test_every_door_says_the_same(broker: RunningBroker) -> None:
    with goqueue.Client(broker.wire) as client, GrpcClient(broker.endpoints["grpc"]) as grpc:
        made = client.call("put_reader", name="shared", offsets={"orders": {"0": 1}}, if_absent=True)
        assert (made["created"], made["offsets"]) == (True, {"orders": {"0": 1}})
        kind = type(grpc.call("GetReader", name="shared").offsets["orders"])
        reply = grpc.call(
            "PutReader", name="shared", offsets={"orders": kind(entries={"0": 0, "1": 0})}, if_absent=True
        )
        assert (reply.created, dict(reply.offsets["orders"].entries)) == (False, {"0": 1, "1": 0})
        assert reply.created_at == made["created_at"]
        found = good(broker.request("GET", "/readers/shared"))
        assert found == client.call("get_reader", name="shared")
        assert client.list_readers().readers == [client.get_reader("shared")]
        assert [one.name for one in grpc.call("ListReaders").readers] == ["shared"]
        assert grpc.call("DeleteReader", name="shared").deleted
        with pytest.raises(goqueue.errors.UnknownReader):
            client.get_reader("shared")


def test_of_many_that_put_at_the_same_time_one_is_first_and_all_hear_the_same(broker: RunningBroker) -> None:
    with ThreadPoolExecutor(4) as pool:
        answers = list(
            pool.map(lambda at: good(put(broker, "raced", {"orders": {"0": at}}, if_absent=True)), [0, 1, 2, 3])
        )
    assert sorted(answer["created"] for answer in answers) == [False, False, False, True]
    (kept,) = {answer["offsets"]["orders"]["0"] for answer in answers}
    assert kept == next(at for at, answer in enumerate(answers) if answer["created"])
    good(broker.request("DELETE", "/readers/raced"))


def test_killed_again_and_again_it_keeps_what_was_answered(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        new_topic(broker, "orders")
        good(put(broker, "nightly", {"orders": {"0": 3}}, if_absent=True))
        for life in range(3):
            new_topic(broker, f"t{life}")
            answer = good(put(broker, "nightly", {"orders": {"0": 0}, f"t{life}": {"0": life}}, if_absent=True))
            broker.kill()
            broker.restart()
            assert good(broker.request("GET", "/readers/nightly"))["offsets"] == answer["offsets"]
        assert answer["offsets"] == {"orders": {"0": 3}, "t0": {"0": 0}, "t1": {"0": 1}, "t2": {"0": 2}}
        good(broker.request("DELETE", "/topics/t1"))
        broker.kill()
        broker.restart()
        found = good(broker.request("GET", "/readers/nightly"))["offsets"]
        assert found == {"orders": {"0": 3}, "t0": {"0": 0}, "t2": {"0": 2}}
