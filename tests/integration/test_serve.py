"""`goqueue serve` as a process: how it starts, what it refuses, how it ends, and what outlives it."""

import asyncio
import json
import re
import shutil
import signal
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from itertools import count
from pathlib import Path

import pytest

from goqueue.client.connection import Connection, Fetched
from goqueue.wire.codes import CODES
from tests.support.broker import ENDPOINTS, HttpClient, NotReady, RunningBroker, refusal, running_broker
from tests.support.loop import run
from tests.support.patience import PATIENCE_S

_PUBLISHERS = 4


def create(broker: RunningBroker, name: str = "orders", **settings: object) -> str:
    answer = broker.request("POST", "/topics", {"name": name, **settings})
    assert answer.status == 201, answer
    topic_id: str = answer.body["topic_id"]
    return topic_id


def publish(broker: RunningBroker, topic: str, *values: object, **message: object) -> None:
    messages = [{"value": f"{value}", **message} for value in values]
    answer = broker.request("POST", f"/topics/{topic}/messages", {"messages": messages})
    assert answer.status == 200, answer


def values(broker: RunningBroker, topic: str, partition: int) -> list[str]:
    found: list[str] = []
    offset = 0
    while True:
        path = f"/topics/{topic}/partitions/{partition}/messages?limit=1000&offset={offset}"
        page = broker.request("GET", path).body
        if page["next_offset"] == offset:
            return found
        found += [message["value"] for message in page["messages"]]
        offset = page["next_offset"]


@contextmanager
def taken_port() -> Iterator[str]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield f"127.0.0.1:{taken.getsockname()[1]}"


# --- starting and stopping


def test_a_broker_says_where_it_listens_and_takes_it_back_when_it_stops(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        endpoints = json.loads((broker.data_dir / ENDPOINTS).read_bytes())
        assert endpoints.keys() == {"http", "wire"}
        assert all(re.fullmatch(r"127\.0\.0\.1:[1-9]\d*", address) for address in endpoints.values())
        assert broker.request("GET", "/readyz").body == {"status": "ok"}
        create(broker)
        idle = broker.client()
        assert idle.request("GET", "/livez").status == 200  # an open connection does not hold up the end
        broker.stop()
        assert not (broker.data_dir / ENDPOINTS).exists()
        assert broker.stdout.startswith("GoQueue is ready")
        for address in endpoints.values():
            assert address in broker.stdout
            host, port = address.split(":")
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((host, int(port)), timeout=PATIENCE_S)
        lines = broker.stderr.splitlines()
        assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z info  \w+: ", line) for line in lines), lines
        assert re.search(r"topics: topic created topic=orders topic_id=\w{16} partitions=3$", broker.stderr, re.M)
        assert lines[-1].endswith("server: stopped")


def test_logs_are_json_and_metrics_have_a_door_of_their_own(tmp_path: Path) -> None:
    with running_broker(tmp_path, "--log-format", "json", "--metrics", "127.0.0.1:0", "--node-id", "n7") as broker:
        create(broker)
        assert broker.endpoints.keys() == {"http", "wire", "metrics"}
        metrics = broker.client("metrics")
        told = metrics.request("GET", "/metrics")
        assert (told.status, told.headers.get_content_type()) == (200, "text/plain")
        assert "goqueue_" in told.body
        assert metrics.request("GET", "/readyz").body == {"status": "ok"}
        assert metrics.request("GET", "/livez").status == 200
        assert metrics.request("GET", "/version").status == 200
        refusal(metrics.request("GET", "/topics"), 404, "unknown_operation")
        refusal(metrics.request("DELETE", "/topics/orders"), 404, "unknown_operation")
        assert broker.request("GET", "/admin/cluster").body["nodes"][0]["node_id"] == "n7"
        broker.signal(signal.SIGINT)
        broker.wait_for_end(code=0)
        lines = [json.loads(line) for line in broker.stderr.splitlines()]
        assert all(line.keys() >= {"time", "level", "logger", "message", "fields"} for line in lines)
        created = next(line for line in lines if line["message"] == "topic created")
        assert (created["logger"], created["fields"]["topic"]) == ("topics", "orders")


def test_a_second_broker_on_the_same_directory_is_refused_and_does_no_harm(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        create(broker)
        second = RunningBroker(broker.data_dir, stderr=tmp_path / "second.stderr")
        with pytest.raises(NotReady) as refused:
            second.start()
        assert refused.value.code == 1
        (line,) = refused.value.stderr.splitlines()
        assert str(broker.data_dir) in line
        assert json.loads((broker.data_dir / ENDPOINTS).read_bytes()) == broker.endpoints
        publish(broker, "orders", "x")
        broker.stop()
        second.start()
        assert second.request("GET", "/topics/orders").body["total_messages"] == 1
        second.stop()


@pytest.mark.parametrize("door", ["http", "wire", "metrics"])
def test_a_port_in_use_is_refused_by_name_and_nothing_stays_open(tmp_path: Path, door: str) -> None:
    broker = RunningBroker(tmp_path / "data")
    with taken_port() as address:
        broker.flags = (f"--{door}", address)
        with pytest.raises(NotReady) as refused:
            broker.start()
        assert refused.value.code == 1
        problem = refused.value.stderr.splitlines()[-1]
        assert f"the {door} door cannot listen at {address}" in problem
        assert problem.endswith(f"choose another address with --{door}")
        assert "Traceback" not in refused.value.stderr
        assert not (broker.data_dir / ENDPOINTS).exists()
    broker.start()  # the same address and directory: both are free
    assert broker.endpoints[door] == address
    broker.stop()


def test_a_reader_that_waits_is_answered_when_the_broker_stops(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        topic_id = int(create(broker, num_partitions=1), 16)
        host, port = broker.wire.split(":")

        async def wait() -> Fetched:
            async with await Connection.connect(host, int(port)) as connection:
                waiting = asyncio.ensure_future(connection.fetch_block(topic_id, 0, 0, max_wait_ms=60_000))
                await asyncio.sleep(0)  # it is on its way now, and frames are handled in order:
                await connection.ask(CODES["version"])  # when this is answered, that one waits
                broker.signal(signal.SIGTERM)
                return await waiting

        fetched = run(wait())
        assert (fetched.records, fetched.next_offset) == (0, 0)
        broker.wait_for_end(code=0)


# --- what was answered for outlives the broker


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_whatever_was_acknowledged_is_there_after_a_signal_while_publishing(tmp_path: Path, number: int) -> None:
    with running_broker(tmp_path) as broker:
        create(broker, num_partitions=_PUBLISHERS, segment_bytes=4096)
        acknowledged: list[list[str]] = [[] for _ in range(_PUBLISHERS)]
        enough = threading.Barrier(_PUBLISHERS + 1)

        def publish_on(client: HttpClient, partition: int) -> None:
            for turn in count():
                if turn == 20:
                    enough.wait()
                batch = [{"value": f"{turn}.{at}", "partition": partition} for at in range(3)]
                try:
                    answer = client.request("POST", "/topics/orders/messages", {"messages": batch})
                except (OSError, HTTPException):
                    return
                if answer.status == 503:
                    refusal(answer, 503, "draining")
                    return
                assert answer.status == 200
                results = zip(batch, answer.body["results"], strict=True)
                acknowledged[partition] += [str(message["value"]) for message, result in results if "offset" in result]

        def work(partition: int) -> None:
            with HttpClient(broker.http) as client:
                publish_on(client, partition)

        threads = [threading.Thread(target=work, args=(partition,)) for partition in range(_PUBLISHERS)]
        for thread in threads:
            thread.start()
        enough.wait()
        broker.signal(number)
        broker.wait_for_end(code=0 if number == signal.SIGTERM else -number)
        for thread in threads:
            thread.join()
        broker.restart()
        for partition, mine in enumerate(acknowledged):
            found = values(broker, "orders", partition)
            assert len(mine) >= 60
            assert found[: len(mine)] == mine
            assert max(Counter(found).values()) == 1


def test_a_restart_keeps_topics_settings_counts_and_messages(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        create(broker, num_partitions=2, segment_bytes=4096, retention_hours=-1)
        create(broker, "empty", cleanup_policy="compact")
        create(broker, "gone")
        publish(broker, "orders", *range(100), partition=0, headers={"h": "\u20ac"}, priority="high")
        assert broker.request("POST", "/admin/topics/orders/partitions", {"count": 5}).status == 200
        publish(broker, "orders", *range(7), partition=4, key="k", event_time=0)
        broker.request("PATCH", "/topics/orders", {"fsync": "every", "max_message_bytes": 99})
        broker.request("DELETE", "/topics/gone")
        asked = (
            "/topics", "/topics/orders", "/topics/empty", "/topics/orders/offsets",
            *(f"/topics/orders/partitions/{number}/messages?limit=1000" for number in range(5)),
        )  # fmt: skip
        cluster_id = broker.request("GET", "/admin/cluster").body["cluster_id"]
        known = {path: broker.request("GET", path).body for path in asked}
        assert known["/topics"] == {"topics": ["empty", "orders"]}
        assert known["/topics/orders"]["total_messages"] == 107
        for end in (broker.stop, broker.kill):
            end()
            broker.restart()
            assert {path: broker.request("GET", path).body for path in asked} == known
            assert broker.request("GET", "/admin/cluster").body["cluster_id"] == cluster_id
        published = broker.request("POST", "/topics/orders/publish", {"value": "x", "partition": 0}).body
        assert (published["offset"], published["durability"]) == (100, "durable")


def test_a_topic_deleted_and_created_again_begins_anew_also_after_kill_9(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        old_ids = []
        for life in range(3):
            old_ids.append(create(broker, num_partitions=3, segment_bytes=4096))
            for partition in range(3):
                publish(broker, "orders", *(f"old {life} {number}" for number in range(200)), partition=partition)
            assert broker.request("DELETE", "/topics/orders").status == 200
        new_id = create(broker, num_partitions=2)
        publish(broker, "orders", "new", partition=0)
        broker.kill()
        broker.restart()
        described = broker.request("GET", "/topics/orders").body
        assert (described["topic_id"], described["partitions"], described["total_messages"]) == (new_id, 2, 1)
        assert values(broker, "orders", 0) == ["new"]
        assert values(broker, "orders", 1) == []
        broker.stop()  # which waits for what is being removed
        assert [path.name for path in (broker.data_dir / "logs" / "orders").iterdir()] == [new_id]
        assert new_id not in old_ids


def test_a_copy_of_a_killed_brokers_directory_is_as_good(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        create(broker, num_partitions=1)
        publish(broker, "orders", *range(50), partition=0)
        broker.kill()
        assert (broker.data_dir / ENDPOINTS).exists()
        shutil.copytree(broker.data_dir, tmp_path / "copy")
    copy = RunningBroker(tmp_path / "copy")
    copy.start()
    assert values(copy, "orders", 0) == [f"{number}" for number in range(50)]
    copy.stop()


# --- damage


def test_a_damaged_byte_takes_its_range_and_nothing_else(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        create(broker, num_partitions=2, segment_bytes=4096)
        for partition in range(2):
            for number in range(100):
                publish(broker, "orders", f"{number}", partition=partition, key="p" * 100)
        broker.stop()
        first, *_ = sorted((broker.data_dir / "logs").glob("orders/*/0/*.log"))
        data = bytearray(first.read_bytes())
        data[len(data) // 2] ^= 0x10
        first.write_bytes(data)
        broker.start()
        path = "/topics/orders/partitions/0/messages"
        offset = 0
        found: list[str] = []
        damaged: list[int] = []
        while offset < 100:
            answer = broker.request("GET", f"{path}?offset={offset}&limit=10")
            if answer.status == 200:
                assert answer.body["next_offset"] > offset
                found += [message["value"] for message in answer.body["messages"]]
                offset = answer.body["next_offset"]
                continue
            details = refusal(answer, 409, "quarantined")["details"]
            assert details["first"] <= offset < details["next_offset"]
            damaged += range(offset, details["next_offset"])
            offset = details["next_offset"]
        assert len(damaged) == 1
        assert found == [f"{number}" for number in range(100) if number not in damaged]
        assert values(broker, "orders", 1) == [f"{number}" for number in range(100)]
        publish(broker, "orders", "more", partition=0)
        assert broker.request("GET", f"{path}?offset=100").body["messages"][0]["value"] == "more"
