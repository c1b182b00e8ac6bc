"""How the broker is: health, version, counters, the cluster."""

import errno
import gc
from pathlib import Path

import pytest

from goqueue import __version__, codec
from goqueue.model import limits
from goqueue.model.errors import DamagedState, StorageFailed
from tests.support.faulty_disk import FaultyDisk
from tests.support.loop import run
from tests.unit.api.services import served
from tests.unit.broker.brokers import messages


def test_a_broker_is_ready_until_it_stops_or_fails(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            assert await broker.call("health") == {"status": "ok"}
            broker.broker.drain()
            assert await broker.call("health") == {"status": "draining"}
            broker.broker.report_failure(StorageFailed("the disk is gone"))
            assert await broker.call("health") == {"status": "failing"}
            assert await broker.call("live") == {"status": "ok"}, "a restart would not help"

    run(go())


def test_checks_say_what_is_wrong(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            fine = {"storage": "ok", "partitions": "ok", "in_flight": "ok"}
            assert await broker.call("health", verbose=True) == {"status": "ok", "checks": fine}
            await broker.call("create_topic", name="orders", num_partitions=3)
            broker.broker.topics.named("orders").slots[2] = DamagedState("x")
            broker.broker.report_failure(StorageFailed("the disk is gone"))
            assert (await broker.call("health", verbose=True))["checks"] == {
                "storage": "the disk is gone",
                "partitions": "1 cannot be opened; describe their topics to see why",
                "in_flight": "ok",
            }

    run(go())


def test_a_partition_that_is_closed_to_groups_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=3)
            topic = broker.broker.topics.named("orders")
            topic.partition(1).sidecar_damage = DamagedState("x")

            async def said() -> str:
                found: str = (await broker.call("health", verbose=True))["checks"]["partitions"]
                return found

            assert await said() == "closed to groups: orders-1; describe their topics to see why"
            described = await broker.call("describe_topic", topic="orders")
            assert list(described["unavailable"]) == ["1"]
            assert described["unavailable"]["1"].startswith("closed to groups: x; ")
            assert list(described["partition_offsets"]) == ["0", "1", "2"], "it is read and published to"
            monkeypatch.setattr(limits, "HEALTH_NAMES", 1)
            topic.partition(2).sidecar_damage = DamagedState("y")
            assert await said() == "closed to groups: orders-1 and 1 more; describe their topics to see why"

    run(go())


def test_a_partition_that_is_closed_does_not_make_the_broker_unready(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=1)
            broker.broker.topics.named("orders").slots[0] = DamagedState("x")
            assert await broker.call("health") == {"status": "ok"}

    run(go())


def test_topics_that_wait_to_be_opened_are_told_of(tmp_path: Path) -> None:
    async def go() -> None:
        disk = FaultyDisk()
        async with served(tmp_path, disk=disk) as broker:
            await broker.call("create_topic", name="orders", num_partitions=1)
            disk.new_file_error, disk.only = errno.ENOSPC, "/1/synced"
            await broker.call("add_partitions", topic="orders", count=2)
            disk.new_file_error = None
            found = await broker.call("health", verbose=True)
            assert (found["status"], found["checks"]["partitions"]) == ("ok", "1 topics wait to be opened")
            assert await broker.call("list_topics") == {"topics": ["orders"]}

    run(go())


def test_what_deleted_topics_counted_stays_counted(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=1)
            await broker.call("publish", topic="orders", value="x")
            await broker.call("read_topic", topic="orders")
            await broker.call("delete_topic", topic="orders")
            found = await broker.call("stats")
            assert (found["messages_produced"], found["messages_read"], found["messages"]) == (1, 1, 0)

    run(go())


def test_the_version_says_what_is_running(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            found = await broker.call("version")
            assert found["version"] == __version__
            assert found["codec"] == ("compiled" if codec.COMPILED else "python")
            assert found["wire_version"] == 1

    run(go())


def test_stats_count_over_all_topics(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path, node_id="n1") as broker:
            await broker.call("create_topic", name="orders", num_partitions=2)
            await broker.call("create_topic", name="bills", num_partitions=1)
            me = await broker.call("init_producer")
            for _ in range(2):
                await broker.call("publish", topic="bills", value="x", partition=0, sequence=0, **me)
            await broker.call("publish", topic="orders", value="x", partition=1)
            await broker.call("read_topic", topic="orders")
            found = await broker.call("stats")
            assert found.pop("uptime_seconds") >= 0
            size = len(messages("x")) + broker.broker.topics.named("bills").partition(0).log.segments[0].size
            assert found == {
                "node_id": "n1",
                "cluster_id": broker.broker.cluster_id,
                "topics": 2,
                "partitions": 3,
                "messages": 2,
                "size_bytes": size,
                "messages_produced": 2,
                "bytes_produced": size,
                "duplicates": 1,
                "messages_read": 1,
                "in_flight_bytes": 0,
            }

    run(go())


def test_the_cluster_has_one_node(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path, node_id="n1") as broker:
            broker.service.endpoints["http"] = "127.0.0.1:1"
            node = {"node_id": "n1", "state": "ready", "endpoints": {"http": "127.0.0.1:1"}}
            assert await broker.call("cluster") == {"cluster_id": broker.broker.cluster_id, "nodes": [node]}
            broker.broker.drain()
            assert (await broker.call("cluster"))["nodes"][0]["state"] == "draining"

    run(go())


def test_health_says_that_bytes_in_flight_were_not_given_back(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            assert (await broker.call("health", verbose=True))["checks"]["in_flight"] == "ok"
            broker.broker.requests.take_anyway(77)  # and dropped
            gc.collect()
            broker.broker._housekeeping.reclaim()
            found = await broker.call("health", verbose=True)
            assert (found["status"], found["checks"]["in_flight"][:26]) == ("ok", "77 bytes were not given ba")

    run(go())
