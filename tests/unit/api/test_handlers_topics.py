"""Topics as JSON: created, listed, described, changed, deleted, grown; and metadata for clients."""

from pathlib import Path

import pytest

from goqueue.model.errors import (
    DamagedState,
    InvalidRequest,
    InvalidSetting,
    NotBuilt,
    TopicExists,
    UnknownTopic,
)
from goqueue.model.settings import Fsync
from goqueue.model.topic import Backoff, CleanupPolicy, LanePolicy, OnExpiry, TopicSettings
from tests.support.loop import run
from tests.unit.api.services import CLIENT_DEFAULTS, Served, served
from tests.unit.broker.brokers import messages

DEFAULTS = {
    "retention_hours": 168,
    "retention_bytes": None,
    "cleanup_policy": "delete",
    "segment_bytes": 67108864,
    "fsync": "interval",
    "max_message_bytes": 1048576,
    "visibility_timeout": "30s",
    "max_retries": 3,
    "backoff": {"base": "1s", "factor": 2, "max": "1m"},
    "dlq_enabled": True,
    "message_ttl": None,
    "on_expiry": "drop",
    "lane_weights": [50, 25, 15, 7, 3],
    "lane_policy": "weighted",
    "replication_factor": 1,
    "min_insync_replicas": 1,
}


def settings_of(broker: Served, name: str) -> TopicSettings:
    return broker.broker.topics.named(name).meta.settings


# --- creating


def test_a_topic_is_created_with_the_brokers_defaults(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path, partitions=5, topic=TopicSettings(retention_hours=24)) as broker:
            reply = await broker.call("create_topic", name="orders")
            topic = broker.broker.topics.named("orders")
            assert reply == {
                "name": "orders",
                "partitions": 5,
                "created": True,
                "topic_id": f"{topic.meta.topic_id:016x}",
            }
            assert topic.meta.settings == TopicSettings(retention_hours=24)

    run(go())


def test_a_topic_is_created_with_what_its_creator_says(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call(
                "create_topic",
                name="orders",
                num_partitions=1,
                retention_hours=0.5,
                retention_bytes=10**9,
                cleanup_policy="both",
                segment_bytes=4096,
                fsync="every",
                max_message_bytes=5,
                visibility_timeout="1m30s",
                max_retries=0,
                backoff={"base": "250ms", "factor": 3, "max": 3600},
                dlq_enabled=False,
                message_ttl="7d",
                on_expiry="dlq",
                lane_weights=[5, 4, 3, 2, 1],
                lane_policy="strict",
                replication_factor=1,
                min_insync_replicas=1,
            )
            assert settings_of(broker, "orders") == TopicSettings(
                retention_hours=0.5,
                retention_bytes=10**9,
                cleanup_policy=CleanupPolicy.BOTH,
                segment_bytes=4096,
                fsync=Fsync.EVERY,
                max_message_bytes=5,
                visibility_ms=90_000,
                max_retries=0,
                backoff=Backoff(base_ms=250, factor=3, max_ms=3_600_000),
                dlq_enabled=False,
                message_ttl_ms=7 * 86_400_000,
                on_expiry=OnExpiry.DLQ,
                lane_weights=(5, 4, 3, 2, 1),
                lane_policy=LanePolicy.STRICT,
            )

    run(go())


@pytest.mark.parametrize("unlimited", [None, -1])
def test_a_retention_may_be_without_limit(tmp_path: Path, unlimited: int | None) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", retention_hours=unlimited, retention_bytes=unlimited)
            found = settings_of(broker, "orders")
            assert (found.retention_hours, found.retention_bytes) == (None, None)
            await broker.call("change_topic", topic="orders", retention_hours=0, retention_bytes=0)
            found = settings_of(broker, "orders")
            assert (found.retention_hours, found.retention_bytes) == (0, 0)

    run(go())


@pytest.mark.parametrize(
    ("written", "shown", "kept_ms"),
    [
        ("90m", "1h30m", 5_400_000),
        ("90", "1m30s", 90_000),
        (0.25, "250ms", 250),
        (30, "30s", 30_000),
        ("0.001", "1ms", 1),
    ],
)
def test_durations_are_written_in_any_way_and_shown_in_one(
    tmp_path: Path, written: str | float, shown: str, kept_ms: int
) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            backoff = {"base": written, "max": written}
            fields = {"visibility_timeout": written, "message_ttl": written, "backoff": backoff}
            await broker.call("create_topic", name="orders", **fields)
            kept = settings_of(broker, "orders")
            assert (kept.visibility_ms, kept.message_ttl_ms) == (kept_ms, kept_ms)
            assert kept.backoff == Backoff(base_ms=kept_ms, max_ms=kept_ms)
            before = await broker.call("describe_topic", topic="orders")
            config = before["config"]
            assert (config["visibility_timeout"], config["message_ttl"]) == (shown, shown)
            assert config["backoff"] == {"base": shown, "factor": 2, "max": shown}
            as_shown = {name: config[name] for name in fields}
            assert await broker.call("change_topic", topic="orders", **as_shown) == before

    run(go())


def test_a_ttl_is_taken_away_with_null(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", message_ttl="1h")
            assert settings_of(broker, "orders").message_ttl_ms == 3_600_000
            found = await broker.call("change_topic", topic="orders", message_ttl=None)
            assert found["config"]["message_ttl"] is None
            assert settings_of(broker, "orders").message_ttl_ms is None

    run(go())


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({}, Backoff(base_ms=10, factor=3, max_ms=40_000)),
        ({"base": "2s"}, Backoff(base_ms=2000, factor=3, max_ms=40_000)),
        ({"factor": 1.5}, Backoff(base_ms=10, factor=1.5, max_ms=40_000)),
        ({"max": "5s"}, Backoff(base_ms=10, factor=3, max_ms=5000)),
        ({"base": 0, "max": "0ms"}, Backoff(base_ms=0, factor=3, max_ms=0)),
    ],
)
def test_parts_of_a_backoff_that_are_left_out_stay_as_they_are(
    tmp_path: Path, parts: dict[str, object], expected: Backoff
) -> None:
    """In a topic as it is; for a new one, in the broker's defaults."""

    async def go() -> None:
        before = Backoff(base_ms=10, factor=3, max_ms=40_000)
        async with served(tmp_path, topic=TopicSettings(backoff=before)) as broker:
            await broker.call("create_topic", name="orders", backoff=parts)
            assert settings_of(broker, "orders").backoff == expected
            await broker.call("create_topic", name="bills")
            await broker.call("change_topic", topic="bills", backoff=parts)
            assert settings_of(broker, "bills").backoff == expected

    run(go())


@pytest.mark.parametrize(
    ("fields", "refusal"),
    [
        ({"visibility_timeout": 0}, "visibility_timeout is 0s; it must be from 1ms to 12h"),
        ({"visibility_timeout": "12h1ms"}, "visibility_timeout is 12h1ms; it must be from 1ms to 12h"),
        ({"visibility_timeout": "999999999d"}, "visibility_timeout: '999999999d' is too long"),
        ({"message_ttl": "0ms"}, "message_ttl is 0s; it must be from 1ms to 36500d"),
        ({"backoff": {"base": "8d"}}, "backoff.base is 8d; it must be from 0s to 7d"),
        ({"backoff": {"base": "2m"}}, "backoff.max is 1m; it must be at least backoff.base, which is 2m"),
        ({"backoff": {"max": "999ms"}}, "backoff.max is 999ms; it must be at least backoff.base, which is 1s"),
        ({"backoff": {"max": "99999d"}}, "backoff.max: '99999d' is too long"),
    ],
)
def test_a_duration_out_of_range_is_refused_with_its_bounds(
    tmp_path: Path, fields: dict[str, object], refusal: str
) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="bills")
            for operation, which in (("create_topic", {"name": "orders"}), ("change_topic", {"topic": "bills"})):
                with pytest.raises(InvalidSetting) as caught:
                    await broker.call(operation, **which, **fields)
                assert str(caught.value).startswith(refusal)
            assert await broker.call("list_topics") == {"topics": ["bills"]}
            assert settings_of(broker, "bills") == TopicSettings()

    run(go())


@pytest.mark.parametrize(
    "fields",
    [
        {"retention_hours": -0.5},
        {"retention_hours": -2},
        {"retention_hours": 876_001},
        {"retention_hours": "7d"},
        {"retention_bytes": -2},
        {"segment_bytes": 4095},
        {"segment_bytes": -1},
        {"cleanup_policy": "shred"},
        {"cleanup_policy": None},
        {"fsync": "sometimes"},
        {"max_message_bytes": 0},
        {"num_partitions": 0},
        {"num_partitions": 1001},
        {"num_partitions": None},
        {"replication_factor": 2},
        {"min_insync_replicas": 0},
        {"visibility_timeout": "soon"},
        {"visibility_timeout": None},
        {"visibility_timeout": -1},
        {"max_retries": -1},
        {"max_retries": 1001},
        {"max_retries": 1.5},
        {"max_retries": None},
        {"backoff": None},
        {"backoff": "1s"},
        {"backoff": {"base": None}},
        {"backoff": {"factor": 0.9}},
        {"backoff": {"factor": 101}},
        {"backoff": {"factor": "2"}},
        {"backoff": {"max": -1}},
        {"backoff": {"jitter": 1}},
        {"dlq_enabled": 1},
        {"dlq_enabled": None},
        {"message_ttl": -1},
        {"on_expiry": "keep"},
        {"lane_weights": [1, 1, 1, 1]},
        {"lane_weights": [1, 1, 1, 1, 1, 1]},
        {"lane_weights": [0, 1, 1, 1, 1]},
        {"lane_weights": [1, 1, 1, 1, 1001]},
        {"lane_weights": [1, 1, 1, 1, 1.5]},
        {"lane_weights": None},
        {"lane_policy": "fair"},
        {"name": "a" * 242},
        {"name": "a" * 242 + ".dlq"},
        {"name": "__internal"},
        {"name": "synced"},
        {"name": ".."},
        {"name": "a/b"},
    ],
)
def test_what_is_out_of_range_is_refused_and_nothing_is_created(tmp_path: Path, fields: dict[str, object]) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            with pytest.raises(InvalidRequest):
                await broker.call("create_topic", **{"name": "orders", **fields})
            assert await broker.call("list_topics") == {"topics": []}

    run(go())


def test_the_longest_name_and_that_of_its_dead_letters_are_good(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            for name in ("a" * 241, "a" * 241 + ".dlq", "0" * 20, "0" * 20 + ".dlq"):
                await broker.call("create_topic", name=name, num_partitions=1)
                await broker.call("publish", topic=name, value="x")
                assert (await broker.call("describe_topic", topic=name))["total_messages"] == 1
        async with served(tmp_path) as broker:
            for name in ("a" * 241 + ".dlq", "0" * 20 + ".dlq"):
                assert (await broker.call("describe_topic", topic=name))["total_messages"] == 1

    run(go())


@pytest.mark.parametrize("field", ["validation", "tracing"])
def test_a_setting_whose_feature_is_not_built_is_refused_by_name(tmp_path: Path, field: str) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            with pytest.raises(NotBuilt, match=field):
                await broker.call("create_topic", name="orders", **{field: 1})

    run(go())


def test_a_topic_that_exists_is_refused(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders")
            with pytest.raises(TopicExists):
                await broker.call("create_topic", name="orders")

    run(go())


# --- looking


def test_topics_are_listed_by_name(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            for name in ("orders", "bills", "Zebras"):
                await broker.call("create_topic", name=name, num_partitions=1)
            for internal in (False, True):
                assert await broker.call("list_topics", internal=internal) == {"topics": ["Zebras", "bills", "orders"]}

    run(go())


def test_a_description_says_what_is_in_a_topic(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            created = await broker.call("create_topic", name="orders", num_partitions=2)
            await broker.call("publish_batch", topic="orders", messages=[{"value": "x", "partition": 1}] * 3)
            assert await broker.call("describe_topic", topic="orders") == {
                "name": "orders",
                "topic_id": created["topic_id"],
                "partitions": 2,
                "total_messages": 3,
                "total_size_bytes": 3 * len(messages("x")),
                "partition_offsets": {
                    "0": {"earliest": 0, "latest": 0, "stable": 0},
                    "1": {"earliest": 0, "latest": 3, "stable": 3},
                },
                "config": DEFAULTS,
                "created": "2023-11-14T22:13:20.000Z",
            }

    run(go())


def test_a_description_names_the_partitions_that_could_not_be_opened(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=3)
            broker.broker.topics.named("orders").slots[1] = DamagedState("log.state is damaged")
            found = await broker.call("describe_topic", topic="orders")
            assert found["unavailable"] == {"1": "log.state is damaged"}
            assert list(found["partition_offsets"]) == ["0", "2"]
            assert found["partitions"] == 3

    run(go())


# --- changing


def test_a_change_answers_with_the_topic_as_it_is_now(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=1)
            found = await broker.call("change_topic", topic="orders", fsync="every", retention_hours=1)
            assert found["config"] == {**DEFAULTS, "fsync": "every", "retention_hours": 1}
            assert (await broker.call("describe_topic", topic="orders")) == found
            assert broker.broker.topics.named("orders").partition(0).log.settings.fsync is Fsync.EVERY

    run(go())


def test_a_change_of_nothing_is_a_description(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders")
            before = await broker.call("describe_topic", topic="orders")
            assert await broker.call("change_topic", topic="orders") == before
            assert await broker.call("change_topic", topic="orders", replication_factor=1) == before
            assert await broker.call("change_topic", topic="orders", fsync="interval") == before

    run(go())


def test_what_cannot_be_changed_is_refused(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders")
            for fields in ({"name": "bills"}, {"num_partitions": 9}, {"partitions": 9}):
                with pytest.raises(InvalidRequest, match="there is no field"):
                    await broker.call("change_topic", topic="orders", **fields)
            with pytest.raises(InvalidSetting, match=r"retention_hours is -0\.5; it must be at least 0, or -1"):
                await broker.call("change_topic", topic="orders", retention_hours=-0.5)
            for fields in ({}, {"fsync": "none"}):
                with pytest.raises(UnknownTopic):
                    await broker.call("change_topic", topic="bills", **fields)

    run(go())


def test_partitions_are_added(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=2)
            assert await broker.call("add_partitions", topic="orders", count=5) == {
                "success": True,
                "topic_name": "orders",
                "old_partition_count": 2,
                "new_partition_count": 5,
                "partitions_added": 3,
            }
            for count in (5, 1):
                with pytest.raises(InvalidRequest, match="cannot become fewer"):
                    await broker.call("add_partitions", topic="orders", count=count)
            with pytest.raises(UnknownTopic):
                await broker.call("add_partitions", topic="bills", count=5)
            assert (await broker.call("publish", topic="orders", value="x", partition=4))["offset"] == 0

    run(go())


# --- deleting


def test_a_deleted_topic_is_gone(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            created = await broker.call("create_topic", name="orders")
            assert await broker.call("delete_topic", topic="orders") == {"deleted": True, "name": "orders"}
            for operation in ("describe_topic", "delete_topic"):
                with pytest.raises(UnknownTopic):
                    await broker.call(operation, topic="orders")
            assert (await broker.call("create_topic", name="orders"))["topic_id"] != created["topic_id"]

    run(go())


# --- metadata


def test_metadata_tells_clients_what_they_need(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path, node_id="n1") as broker:
            await broker.call("create_topic", name="orders", num_partitions=2, max_message_bytes=77)
            created = await broker.call("create_topic", name="bills")
            found = await broker.call("metadata")
            assert (found["cluster_id"], found["node_id"]) == (broker.broker.cluster_id, "n1")
            assert [topic["name"] for topic in found["topics"]] == ["bills", "orders"]
            assert found["topics"][0] == {
                "name": "bills",
                "topic_id": created["topic_id"],
                "partitions": 3,
                "max_message_bytes": 1048576,
            }
            assert {name: found[name] for name in ("producer", "consumer")} == CLIENT_DEFAULTS

    run(go())


def test_metadata_of_names_leaves_out_what_is_not_there(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders")
            await broker.call("create_topic", name="bills")
            found = await broker.call("metadata", topics=["nope", "orders", "../x"])
            assert [topic["name"] for topic in found["topics"]] == ["orders"]
            assert (await broker.call("metadata", topics=[]))["topics"] == []

    run(go())
