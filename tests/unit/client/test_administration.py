"""Administration from Python: every operation has its method, every field its argument, every reply its struct.

The fields are looked at without a broker; what becomes of them with a real one.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import msgspec
import pytest
from msgspec import UNSET

import goqueue
from goqueue.api.operations import BY_NAME, OPERATIONS
from goqueue.client.administration import AsyncAdministration
from goqueue.client.client import AsyncClient
from goqueue.client.connection import Connection
from goqueue.client.sync.administration import Administration
from goqueue.model.errors import (
    AlreadyDelivered,
    Conflict,
    GroupActive,
    InvalidRequest,
    InvalidSetting,
    StaleHandle,
    TopicExists,
    UnknownDelay,
    UnknownGroup,
    UnknownReader,
    UnknownRedrive,
    UnknownSchedule,
    UnknownTopic,
)
from goqueue.model.groups import GroupState
from goqueue.model.jobs import Missed, RedriveState
from goqueue.model.record import Lane
from goqueue.model.settings import Fsync
from goqueue.model.topic import CleanupPolicy, LanePolicy
from goqueue.wire import shapes
from goqueue.wire.codes import CODES
from tests.support.broker_server import running_server
from tests.support.loop import run
from tests.unit.client.misuse import Refusals, misuses

Answer = TypeVar("Answer", bound=shapes.Reply)

PRODUCERS = {"publish", "publish_batch", "init_producer", "producer_heartbeat", "metadata"}
WRITERS = {"add_partition", "begin_transaction", "commit_transaction", "transaction_ack", "transaction_publish"}
READERS = {"read_partition", "read_topic"}
CONSUMERS = {"join_group", "heartbeat", "leave_group", "poll", "commit"}
ELSEWHERE = PRODUCERS | WRITERS | READERS | CONSUMERS
"""What producers, their transactions, readers and consumers do."""
OF_WRITERS = {"abort_transaction": {"producer_id", "epoch", "transactional_id"}}
"""Fields that are said by transactions of producers, not by a method here."""

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
NEW_YEAR_MS = 1_767_225_600_000

# --- every operation, every field


class Asked(Exception):
    """Instead of a reply: what was asked."""

    def __init__(self, operation: str, reply: type[shapes.Reply], fields: dict[str, Any]) -> None:
        super().__init__(operation)
        self.operation = operation
        self.reply = reply
        self.fields = fields


class Curious(AsyncAdministration):
    """Asks nobody."""

    async def _ask(self, operation: str, reply: type[Answer], /, **fields: Any) -> Answer:
        raise Asked(operation, reply, fields)


def asked(method: str, /, *args: Any, **named: Any) -> Asked:
    with pytest.raises(Asked) as caught:
        getattr(Curious(), method)(*args, **named).send(None)
    return caught.value


class Use(NamedTuple):
    method: str
    arguments: tuple[Any, ...]
    named: dict[str, Any]


def use(method: str, /, *arguments: Any, **named: Any) -> Use:
    return Use(method, arguments, named)


SETTINGS: dict[str, Any] = {
    "retention_hours": 1.5,
    "retention_bytes": None,
    "cleanup_policy": "compact",
    "segment_bytes": 2**20,
    "fsync": Fsync.EVERY,
    "max_message_bytes": 1000,
    "visibility_timeout": 0.5,
    "max_retries": 2,
    "backoff": {"base": "1s", "factor": 3, "max": 60},
    "dlq_enabled": False,
    "message_ttl": "1h",
    "on_expiry": "dlq",
    "lane_weights": (5, 4, 3, 2, 1),
    "lane_policy": LanePolicy.STRICT,
    "replication_factor": 1,
    "min_insync_replicas": 1,
}
FILTER: dict[str, Any] = {
    "reason": "rejected",
    "group": "billing",
    "key": "k",
    "from_time": NEW_YEAR,
    "to_time": NEW_YEAR_MS + 1,
    "header": {"a": "b"},
    "offsets": {0: range(3)},
}
MESSAGE: dict[str, Any] = {"key": b"k", "partition": 1, "priority": "high", "headers": {"a": "b"}, "ttl": 60}
JOB = "00c0ffee00c0ffee"

USES = (
    use("create_topic", "orders", partitions=2, exist_ok=False, **SETTINGS),
    use("list_topics", internal=True),
    use("describe_topic", "orders"),
    use("change_topic", "orders", **SETTINGS),
    use("delete_topic", "orders", dead_letters=True),
    use("add_partitions", "orders", 5),
    use("offsets", "orders", time=NEW_YEAR),
    use("list_groups"),
    use("describe_group", "billing"),
    use("delete_group", "billing"),
    use("group_lag", "billing"),
    use("group_offsets", "billing", topic="orders"),
    use("reset_offsets", "billing", topic="orders", to="latest"),
    use("reset_offsets", "billing", topic="orders", offset=5),
    use("reset_offsets", "billing", topic="orders", time=NEW_YEAR),
    use("reset_offsets", "billing", topic="orders", ago=90.5, partition=0, dry_run=True),
    use("put_reader", "nightly", {"orders": {0: 5}}, if_absent=True),
    use("get_reader", "nightly"),
    use("list_readers", limit=5, next="nightly"),
    use("delete_reader", "nightly"),
    use("ack_handles", "h", consumer_id="w"),
    use("ack_handles", ["h", "i"]),
    use("ack_handles", "h", group="billing", consumer_id="w"),
    use("ack_handles", ["h"], group="billing"),
    use("nack_handles", "h", delay="1m", consumer_id="w"),
    use("nack_handles", ["h"]),
    use("nack_handles", "h", group="billing", delay=1, consumer_id="w"),
    use("nack_handles", ["h"], group="billing"),
    use("reject_handles", "h", reason="no good", consumer_id="w"),
    use("reject_handles", ["h"]),
    use("release_handles", "h", consumer_id="w"),
    use("release_handles", ["h"]),
    use("extend_handles", "h", timeout=1, consumer_id="w"),
    use("extend_handles", ["h"], timeout="1m"),
    use("list_delayed", "orders", limit=5, skip=1),
    use("get_delayed", "orders", partition=0, offset=1),
    use("find_delayed", "orders", 1),
    use("cancel_delayed", "orders", partition=0, offset=1),
    use("cancel_many_delayed", "orders", [(0, 1), (1, 1)]),
    use("move_delayed", "orders", partition=0, offset=1, delay=5),
    use("move_delayed", "orders", partition=0, offset=1, deliver_at=NEW_YEAR),
    use("create_schedule", "orders", "tick", cron="@daily", time_zone="Europe/Berlin", missed="all", **MESSAGE),
    use("create_schedule", "orders", None, every="1m", paused=True),
    use("list_schedules", topic="orders", limit=5, next=f"5-{JOB}"),
    use("describe_schedule", JOB),
    use("change_schedule", JOB, value="tick", every=60, missed=Missed.ONCE, paused=False, **MESSAGE),
    use("change_schedule", JOB, cron="@daily", time_zone="UTC"),
    use("delete_schedule", JOB),
    use("list_dead_letters", "orders", **FILTER, deleted=True, limit=5, next="0-41"),
    use("start_redrive", "orders", **FILTER, deleted=True, rate=10, dry_run=True, target="others"),
    use("describe_redrive", JOB),
    use("cancel_redrive", JOB),
    use("commit_many", "nightly", 7, ["txn-1"], messages={"txn-1": 5}, acks={"txn-1": 2}),
    use("abort_transaction", "txn-1"),
    use("abort_transactions", "nightly"),
    use("transactions", name="nightly", state="ongoing", limit=5),
    use("describe_transaction", "txn-1"),
    use("transaction_token", "nightly"),
    use("transaction_stats"),
    use("priority_stats", topic="orders", group="billing", limit=5),
    use("delay_stats", topic="orders", limit=5),
    use("reliability_stats", topic="orders", group="billing", limit=5),
    use("rebalance_stats"),
    use("stats"),
    use("health", verbose=True),
    use("live"),
    use("version"),
    use("cluster"),
)
"""Every method; between them, with every argument."""


def test_every_operation_is_a_method_here_or_done_elsewhere() -> None:
    found = {asked(each.method, *each.arguments, **each.named).operation for each in USES}
    names = {operation.name for operation in OPERATIONS}
    assert names >= ELSEWHERE
    assert found == names - ELSEWHERE


def test_every_method_is_tried_with_every_argument() -> None:
    tried: dict[str, set[str]] = {}
    for each in USES:
        bound = inspect.signature(getattr(AsyncAdministration, each.method)).bind(None, *each.arguments, **each.named)
        tried.setdefault(each.method, set()).update(bound.arguments)
    assert tried == {
        name: set(inspect.signature(method).parameters)
        for name, method in vars(AsyncAdministration).items()
        if not name.startswith("_")
    }


@pytest.mark.parametrize("operation", sorted(BY_NAME.keys() - ELSEWHERE))
def test_a_method_can_say_every_field_of_its_operation_and_knows_its_reply(operation: str) -> None:
    entry = BY_NAME[operation]
    said: set[str] = set()
    for each in USES:
        one = asked(each.method, *each.arguments, **each.named)
        if one.operation != operation:
            continue
        assert one.reply is entry.reply
        said |= one.fields.keys()
        fields = msgspec.json.decode(msgspec.json.encode(one.fields))
        path = entry.path_of(fields)
        msgspec.convert({name: value for name, value in fields.items() if name not in path}, entry.request)
    assert said == {*entry.request.__struct_fields__, *entry.path_fields} - OF_WRITERS.get(operation, set())


def test_an_argument_that_was_left_out_is_not_sent() -> None:
    assert asked("create_topic", "orders").fields == {"name": "orders"}
    assert asked("change_topic", "orders", message_ttl=None).fields == {"topic": "orders", "message_ttl": None}
    assert asked("list_dead_letters", "orders", next=UNSET).fields == {"topic": "orders", "limit": 100}
    assert asked("nack_handles", "h").fields == {"receipt_handle": "h"}


def test_one_may_not_be_made_without_a_way_to_ask() -> None:
    assert AsyncAdministration.__abstractmethods__ == Administration.__abstractmethods__ == {"_ask"}


# --- a real broker


class Admin(AsyncAdministration):
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def _ask(self, operation: str, reply: type[Answer], /, **fields: Any) -> Answer:
        return msgspec.convert(await self._connection.ask(CODES[operation], fields), reply)

    async def publish(self, topic: str, *values: str, **fields: Any) -> None:
        await self._ask(
            "publish_batch", shapes.PublishResults, topic=topic, messages=[{"value": each, **fields} for each in values]
        )

    async def join(self, group: str, topic: str) -> str:
        joined = await self._ask("join_group", shapes.MemberReply, group=group, client_id="w", topics=[topic])
        return joined.member_id

    async def leave(self, group: str, member: str) -> None:
        await self._ask("leave_group", shapes.Left, group=group, member_id=member)

    async def poll(self, group: str, member: str) -> dict[str | None, str]:
        """Handles, by value."""
        polled = await self._ask("poll", shapes.Polled, group=group, member_id=member, timeout="10s")
        return {each.value: each.receipt_handle for each in polled.messages}


@asynccontextmanager
async def administered(path: Path, *, partitions: int = 1) -> AsyncIterator[Admin]:
    """With a topic, orders."""
    async with running_server(path) as server:
        host, _, port = server.endpoints["wire"].rpartition(":")
        async with await Connection.connect(host, int(port)) as connection:
            admin = Admin(connection)
            await admin.create_topic("orders", partitions=partitions)
            yield admin


def test_a_topic_is_created_changed_grown_and_deleted(tmp_path: Path) -> None:
    async def go() -> None:
        async with administered(tmp_path) as admin:
            made = await admin.create_topic("events", partitions=2, **SETTINGS)
            assert (made.name, made.partitions, made.created) == ("events", 2, True)
            config = (await admin.describe_topic("events")).config
            assert (config.retention_hours, config.retention_bytes, config.fsync) == (1.5, None, Fsync.EVERY)
            assert (config.visibility_timeout, config.message_ttl) == ("500ms", "1h")
            assert (config.backoff.base, config.backoff.factor, config.backoff.max) == ("1s", 3, "1m")
            assert (config.lane_weights, config.lane_policy) == ((5, 4, 3, 2, 1), LanePolicy.STRICT)
            assert config.cleanup_policy is CleanupPolicy.COMPACT
            with pytest.raises(TopicExists):
                await admin.create_topic("events")
            with pytest.raises(InvalidRequest, match="exist_ok is 'no'; it is True or False"):
                await admin.create_topic("events", exist_ok=cast(bool, "no"))
            again = await admin.create_topic("events", partitions=9, exist_ok=True)
            assert (again.created, again.name, again.partitions, again.topic_id) == (False, "events", 2, made.topic_id)
            assert (await admin.create_topic("orders2", partitions=1, exist_ok=True)).created
            assert (await admin.delete_topic("orders2")).deleted
            assert (await admin.list_topics()).topics == ["events", "orders"]

            changed = await admin.change_topic("events", message_ttl=None, backoff={"max": 5}, dlq_enabled=True)
            assert (changed.config.message_ttl, changed.config.dlq_enabled) == (None, True)
            assert (changed.config.backoff.base, changed.config.backoff.max) == ("1s", "5s")
            assert changed.config.max_retries == 2, "it was left out"
            with pytest.raises(InvalidSetting):
                await admin.change_topic("events", visibility_timeout="9999d")

            grown = await admin.add_partitions("events", 5)
            assert (grown.old_partition_count, grown.new_partition_count) == (2, 5)
            with pytest.raises(InvalidRequest, match="fewer"):
                await admin.add_partitions("events", 1)

            assert (await admin.delete_topic("events")).deleted
            with pytest.raises(UnknownTopic):
                await admin.describe_topic("events")

    run(go())


def test_whatever_an_argument_is_only_errors_of_this_tree_are_raised(tmp_path: Path) -> None:
    async def go() -> None:
        async with running_server(tmp_path) as server, AsyncClient(server.endpoints["wire"]) as client:
            refusals = Refusals()
            for each in USES:
                for what, call in misuses(getattr(client, each.method), *each.arguments, **each.named):
                    with refusals.of(what):
                        await call()
            assert len(refusals.seen) > 1000

    run(go())


@pytest.mark.parametrize(
    ("each", "said"),
    [
        (use("create_topic", "events", partitions=0), "partitions is 0, which is less than 1"),
        (use("create_topic", "a b"), "name is 'a b', which is not written as it may be"),
        (use("create_topic", "events", backoff={"factor": 0}), "backoff.factor is 0, which is less than 1"),
        (use("create_topic", "events", dlq_enabled="false"), "dlq_enabled is 'false', which is text"),
        (use("offsets", "orders", time="x"), "time: 'x' is no time"),
        (use("put_reader", "nightly", {"orders": 5}), "offsets is {'orders': 5}; it is a dict of dicts"),
        (use("put_reader", "nightly", {}), "offsets has fewer than 1 entries"),
        (use("put_reader", "nightly", {"orders": {0: -1}}), "a value of offsets is less than 0"),
        (use("put_reader", "night/ly", {"orders": {0: 0}}), "'night/ly' cannot name a reader"),
        (use("reset_offsets", "g", topic="orders", offset=-1), "offset is -1; it is a whole number"),
        (use("reset_offsets", "g", topic="orders", offset=1 << 62), "offset is 4611686018427387904; it is"),
        (use("move_delayed", "orders", partition=0, offset=0, deliver_at="x"), "deliver_at: 'x' is no time"),
        (use("move_delayed", "orders", partition=0, offset=0), "give either a delay, counted from now, or deliver_at"),
        (use("create_schedule", "orders", "x", every=60, priority=True), "priority is True; it is one of"),
        (use("create_schedule", "orders", "x", every=60, partition=-1), "partition is -1, which is less than 0"),
        (use("create_schedule", "orders", "x", every=60, ttl=0), "ttl is 0"),
        (use("create_schedule", "orders", "x", every=60, paused="false"), "paused is 'false', which is text"),
        (use("start_redrive", "orders", reason="x"), "reason cannot be 'x'"),
        (use("start_redrive", "orders", offsets={0: [-1]}), "offsets[0] is less than 0"),
        (use("ack_handles", ""), "handles has fewer than 1 letters"),
    ],
)
def test_what_is_refused_is_called_as_its_argument(tmp_path: Path, each: Use, said: str) -> None:
    async def go() -> None:
        async with running_server(tmp_path) as server, AsyncClient(server.endpoints["wire"]) as client:
            await client.create_topic("orders", partitions=1)
            with pytest.raises(InvalidRequest) as caught:
                await getattr(client, each.method)(*each.arguments, **each.named)
            assert str(caught.value).startswith(said)
            with pytest.raises(InvalidRequest, match=r"^num_partitions is less than 1"):
                await client.call("create_topic", name="events", num_partitions=0)

    run(go())


def test_offsets_are_found_by_time(tmp_path: Path) -> None:
    async def go() -> None:
        async with administered(tmp_path) as admin:
            await admin.publish("orders", "a", "b")
            assert (await admin.offsets("orders")).offsets == {"0": 2}
            for time in (NEW_YEAR - timedelta(days=9000), 0, "2001-01-01T00:00:00+01:00"):
                assert (await admin.offsets("orders", time=time)).offsets == {"0": 0}
            assert (await admin.offsets("orders", time=datetime(2100, 1, 1, tzinfo=UTC))).offsets == {"0": 2}

    run(go())


def test_a_group_is_described_moved_and_deleted(tmp_path: Path) -> None:
    async def go() -> None:
        async with administered(tmp_path) as admin:
            await admin.publish("orders", "a", "b", "c")
            member = await admin.join("billing", "orders")
            assert (await admin.list_groups()).groups == ["billing"]
            described = await admin.describe_group("billing")
            assert described.state is GroupState.STABLE
            assert [each.assigned_partitions for each in described.members] == [["orders-0"]]
            with pytest.raises(GroupActive):
                await admin.delete_group("billing")

            handles = await admin.poll("billing", member)
            await admin.ack_handles([handles["a"], handles["b"]])
            assert (await admin.group_offsets("billing")).offsets == {"orders": {"0": 2}}
            assert (await admin.group_offsets("billing", topic="orders")).offsets == {"orders": {"0": 2}}
            lag = await admin.group_lag("billing")
            assert (lag.total_lag, lag.topics["orders"]["0"].in_flight) == (1, 1)

            async def reset(**place: Any) -> int:
                found = await admin.reset_offsets("billing", topic="orders", **place)
                return found.offsets["orders"]["0"]

            await admin.leave("billing", member)
            assert await reset(to="latest", dry_run=True) == 3
            assert await reset(offset=1, partition=0) == 1
            assert (await admin.group_offsets("billing")).offsets == {"orders": {"0": 1}}
            assert await reset(time=NEW_YEAR - timedelta(days=9000)) == 0
            assert await reset(time=datetime(2100, 1, 1, tzinfo=UTC)) == 3
            assert await reset(ago=3600.5) == 0
            assert await reset(to="latest") == 3
            with pytest.raises(UnknownTopic):
                await admin.reset_offsets("billing", topic="nope", to="earliest")

            assert (await admin.delete_group("billing")).deleted
            with pytest.raises(UnknownGroup):
                await admin.describe_group("billing")

    run(go())


def test_a_reader_keeps_where_it_began_until_it_is_deleted(tmp_path: Path) -> None:
    async def go() -> None:
        async with administered(tmp_path, partitions=2) as admin:
            await admin._ask("publish", shapes.PublishResult, topic="orders", value="a", partition=0)
            put = await admin.put_reader("nightly", {"orders": {0: 1}}, if_absent=True)
            assert (put.name, put.created, put.offsets) == ("nightly", True, {"orders": {"0": 1}})
            more = await admin.put_reader("nightly", {"orders": {0: 0, 1: 0}}, if_absent=True)
            assert (more.created, more.offsets) == (False, {"orders": {"0": 1, "1": 0}})
            found = await admin.get_reader("nightly")
            assert (found.offsets, found.created_at) == (more.offsets, put.created_at)
            assert (await admin.put_reader("nightly", {"orders": {0: 0}})).offsets == {"orders": {"0": 0}}
            await admin.put_reader("hourly", {"orders": {1: 0}})
            page = await admin.list_readers(limit=1)
            assert ([each.name for each in page.readers], page.next) == (["hourly"], "nightly")
            rest = await admin.list_readers(next=page.next)
            assert ([each.name for each in rest.readers], rest.next) == (["nightly"], UNSET)
            assert (await admin.delete_reader("nightly")).deleted
            with pytest.raises(UnknownReader):
                await admin.get_reader("nightly")

    run(go())


def test_messages_are_settled_by_handles_one_or_many(tmp_path: Path) -> None:
    async def go() -> None:
        async with administered(tmp_path) as admin:
            await admin.publish("orders", "a", "b", "c", "d", "e", "f")
            member = await admin.join("billing", "orders")
            handles = await admin.poll("billing", member)
            assert (await admin.ack_handles(handles["a"], consumer_id="w")).acknowledged is True
            with pytest.raises(StaleHandle):
                await admin.ack_handles(handles["a"])
            many = await admin.ack_handles((handles[each] for each in "ab"), group="billing")
            assert many.results is not UNSET
            first, second = many.results
            assert (first.code, second.acknowledged) == ("stale_handle", True)
            with pytest.raises(UnknownGroup):
                await admin.ack_handles(handles["c"], group="nope")

            assert (await admin.extend_handles(handles["c"], timeout=3600)).extended is True
            assert (await admin.nack_handles(handles["c"], delay=0)).requeued is True
            many = await admin.nack_handles([handles["d"]], delay="0s", group="billing")
            assert many.results is not UNSET
            assert [each.requeued for each in many.results] == [True]
            assert (await admin.poll("billing", member)).keys() == {"c", "d"}
            assert (await admin.release_handles(handles["f"])).released is True
            assert (await admin.poll("billing", member)).keys() == {"f"}
            rejected = await admin.reject_handles(handles["e"], reason="no good")
            assert (rejected.rejected, rejected.dlq_topic) == (True, "orders.dlq")
            assert (await admin.group_lag("billing")).topics["orders"]["0"].in_flight == 3

    run(go())


def test_a_delayed_message_is_found_moved_and_cancelled(tmp_path: Path) -> None:
    async def go() -> None:
        async with administered(tmp_path) as admin:
            await admin.publish("orders", "a", "b", "c", "d", delay="1h")
            await admin.publish("orders", "now")
            listed = await admin.list_delayed("orders", skip=1, limit=2)
            assert (listed.count, [each.offset for each in listed.messages]) == (4, [1, 2])
            assert (await admin.get_delayed("orders", partition=0, offset=1)).state == "pending"
            assert (await admin.find_delayed("orders", 1)).message_id == listed.messages[0].message_id
            with pytest.raises(UnknownDelay):
                await admin.get_delayed("orders", partition=0, offset=4)

            later = datetime(2100, 1, 1, tzinfo=UTC)
            moved = await admin.move_delayed("orders", partition=0, offset=0, deliver_at=later)
            assert moved.deliver_at == "2100-01-01T00:00:00.000Z"
            await admin.move_delayed("orders", partition=0, offset=0, delay=0)
            while (await admin.find_delayed("orders", 0)).state == "pending":
                await asyncio.sleep(0)
            with pytest.raises(AlreadyDelivered):
                await admin.move_delayed("orders", partition=0, offset=0, delay=5)

            assert (await admin.cancel_delayed("orders", partition=0, offset=1)).cancelled
            with pytest.raises(Conflict):
                await admin.cancel_delayed("orders", partition=0, offset=1)
            many = await admin.cancel_many_delayed("orders", [(0, 1), (0, 2), (0, 3)])
            assert (many.cancelled, many.failed) == (2, [[0, 1]])

            stats = await admin.delay_stats(topic="orders")
            assert (stats.pending, stats.cancelled, stats.topics["orders"].scheduled) == (0, 3, 4)

    run(go())


def test_a_schedule_is_made_changed_paused_and_deleted(tmp_path: Path) -> None:
    async def go() -> None:
        async with administered(tmp_path, partitions=2) as admin:
            made = await admin.create_schedule(
                "orders", b"\xff", cron="30 3 * * MON", time_zone="Europe/Berlin", missed="once", paused=True, **MESSAGE
            )
            assert (made.cron, made.time_zone, made.missed) == ("30 3 * * MON", "Europe/Berlin", Missed.ONCE)
            assert (made.paused, made.next_run) == (True, None)
            assert made.message == shapes.ShownMessage(
                value="/w==",
                key="aw==",
                headers={"a": "Yg=="},
                priority="high",
                partition=1,
                ttl="1m",
                encoding="base64",
            )
            other = await admin.create_schedule("orders", None, every="1h", key="gone", priority=Lane.LOW)
            assert (other.message.value, other.message.key, other.message.priority) == (None, "gone", "low")

            page = await admin.list_schedules(topic="orders", limit=1)
            rest = await admin.list_schedules(topic="orders", next=page.next)
            assert {each.id for each in (*page.schedules, *rest.schedules)} == {made.id, other.id}
            assert len(rest.schedules) == 1
            assert (await admin.list_schedules(topic="others")).schedules == []

            changed = await admin.change_schedule(made.id, paused=False, every=90)
            assert (changed.paused, changed.every, changed.message) == (False, "1m30s", made.message)
            changed = await admin.change_schedule(made.id, value="tock", headers=[("a", "1"), ("a", "2")])
            assert changed.message == shapes.ShownMessage(
                value="tock", key=None, headers=[("a", "1"), ("a", "2")], priority="normal"
            )
            assert await admin.describe_schedule(made.id) == changed
            with pytest.raises(InvalidRequest, match="without a value"):
                await admin.change_schedule(made.id, key="k")
            with pytest.raises(InvalidRequest, match="cron"):
                await admin.create_schedule("orders", "tick", cron="often")
            with pytest.raises(UnknownTopic):
                await admin.create_schedule("nope", "tick", every=60)

            assert (await admin.delete_schedule(made.id)).deleted
            with pytest.raises(UnknownSchedule):
                await admin.describe_schedule(made.id)

    run(go())


async def kill(admin: Admin, *values: str) -> None:
    """Until they are in the dead-letter topic."""
    await admin.publish("orders", *values, key="k", headers={"a": "b"})
    member = await admin.join("billing", "orders")
    await admin.reject_handles((await admin.poll("billing", member)).values(), reason="no good")
    await admin.leave("billing", member)
    await until(admin, lambda stats: stats.dead_letters == len(values))


async def until(admin: Admin, is_so: Callable[[shapes.ReliabilityStats], bool]) -> None:
    while not is_so(await admin.reliability_stats()):
        await asyncio.sleep(0)


def test_dead_letters_are_listed_and_redriven(tmp_path: Path) -> None:
    async def go() -> None:
        async with administered(tmp_path) as admin:
            await admin.create_topic("others", partitions=1)
            await kill(admin, "a", "b", "c")
            page = await admin.list_dead_letters("orders", limit=2)
            rest = await admin.list_dead_letters("orders", next=page.next)
            assert [each.value for each in (*page.messages, *rest.messages)] == ["a", "b", "c"]
            assert (rest.next, rest.messages[0].reason, rest.messages[0].detail) == (UNSET, "rejected", "no good")

            found = await admin.list_dead_letters("orders", **{**FILTER, "to_time": "2100-01-01T00:00:00Z"})
            assert len(found.messages) == 3
            for wrong in (
                {"reason": "lapsed"},
                {"key": "j"},
                {"group": "g"},
                {"to_time": NEW_YEAR},
                {"header": {"a": "c"}},
            ):
                assert (await admin.list_dead_letters("orders", **wrong)).messages == [], wrong
            (second,) = (await admin.list_dead_letters("orders", offsets={0: [1]})).messages
            assert second.value == "b"

            tried = await admin.start_redrive("orders", dry_run=True, offsets={0: (1, 2)})
            assert (tried.id, tried.matched) == (None, 2)
            started = await admin.start_redrive("orders", target="others", offsets={0: [1]})
            assert started.id is not None
            while (done := await admin.describe_redrive(started.id)).state is RedriveState.RUNNING:
                await asyncio.sleep(0)
            assert (done.state, done.redriven, done.target) == (RedriveState.DONE, 1, "others")
            assert (await admin.offsets("others")).offsets == {"0": 1}

            slow = await admin.start_redrive("orders", rate=0.001)
            assert slow.id is not None
            with pytest.raises(Conflict, match="running"):
                await admin.start_redrive("orders")
            assert (await admin.cancel_redrive(slow.id)).state is RedriveState.CANCELLED
            with pytest.raises(UnknownRedrive):
                await admin.describe_redrive(JOB)

    run(go())


def test_statistics_count_what_happened(tmp_path: Path) -> None:
    async def go() -> None:
        async with administered(tmp_path) as admin:
            await admin.publish("orders", "a", "b", priority="high")
            member = await admin.join("billing", "orders")
            handles = await admin.poll("billing", member)
            await admin.ack_handles(handles["a"])

            lanes = await admin.priority_stats(topic="orders", group="billing")
            assert (lanes.lanes["high"].served, lanes.lanes["high"].in_flight) == (2, 1)
            reliability = await admin.reliability_stats(topic="orders", group="billing", limit=1)
            assert [(each.group, each.acked, each.in_flight) for each in reliability.groups] == [("billing", 1, 1)]
            assert (await admin.rebalance_stats()).groups["billing"].rebalances == 1
            stats = await admin.stats()
            assert (stats.topics, stats.messages_produced) == (1, 2)

    run(go())


def test_a_broker_says_how_it_is_and_what_it_is(tmp_path: Path) -> None:
    async def go() -> None:
        async with administered(tmp_path) as admin:
            assert await admin.health() == shapes.Health(status="ok")
            assert (await admin.health(verbose=True)).checks == {
                "storage": "ok",
                "partitions": "ok",
                "in_flight": "ok",
            }
            assert (await admin.live()).status == "ok"
            assert (await admin.version()).version == goqueue.__version__
            cluster = await admin.cluster()
            assert cluster.cluster_id == (await admin.stats()).cluster_id
            assert [node.state for node in cluster.nodes] == ["ready"]

    run(go())


class SyncAdmin(Administration):
    """Over a broker in this process."""

    def __init__(self, broker: Any) -> None:
        self._broker = broker

    def _ask(self, operation: str, reply: type[Answer], /, **fields: Any) -> Answer:
        return msgspec.convert(self._broker.call(operation, **fields), reply)


def test_the_twin_without_a_loop_asks_the_same(tmp_path: Path) -> None:
    with goqueue.embedded(str(tmp_path)) as broker:
        admin = SyncAdmin(broker)
        assert admin.create_topic("orders", partitions=1, visibility_timeout=1.5).created
        assert admin.describe_topic("orders").config.visibility_timeout == "1s500ms"
        made = admin.create_schedule("orders", b"tick", every=60, headers={"a": b"\xff"})
        assert admin.list_schedules().schedules == [made]
        assert admin.list_dead_letters("orders", reason="rejected", from_time=NEW_YEAR).messages == []
        assert admin.start_redrive("orders", offsets={0: [1]}).matched == 0
        with pytest.raises(UnknownDelay):
            admin.cancel_delayed("orders", partition=0, offset=5)
