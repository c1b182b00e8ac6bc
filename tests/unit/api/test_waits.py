"""A log that was closed while somebody waited for it is `unavailable`, whatever was asked: one operation after the
other is called while every log that is waited for is closed."""

import ast
from pathlib import Path
from typing import Any

import pytest

from goqueue.api.operations import OPERATIONS
from goqueue.base.mark import Mark
from goqueue.broker import waiting
from goqueue.model import limits
from goqueue.model.errors import GoQueueError, LogClosed, Unavailable
from tests.support.loop import run
from tests.unit.api.services import Served, served

pytestmark = pytest.mark.one_codec

BROKER = Path(waiting.__file__).parent
DO_NOT_WAIT = {
    "read_partition", "read_topic", "offsets", "describe_topic", "metadata", "producer_heartbeat", "health", "live",
    "version", "stats", "cluster", "priority_stats", "delay_stats", "reliability_stats", "rebalance_stats",
    "list_delayed", "get_delayed", "find_delayed", "list_dead_letters", "poll", "transaction_stats", "release",
    "extend_visibility", "begin_transaction", "add_partition", "list_transactions", "transaction_token",
    "describe_transaction",
}  # fmt: skip
"""Operations that answer what is so anyway, or what may be lost in a power cut."""


class Stage:
    """Something of everything that operations are about."""

    def __init__(self, broker: Served) -> None:
        self.call = broker.call
        self.broker = broker.broker

    async def set_up(self) -> None:
        call = self.call
        await call("create_topic", name="orders", num_partitions=1, fsync="every")
        await call("publish_batch", topic="orders", messages=[{"value": str(number)} for number in range(4)])
        await call("publish", topic="orders", value="delayed", delay="1h")
        joined = await call("join_group", group="g", client_id="w", topics=["orders"])
        self.member = joined["member_id"]
        found = await call("poll", group="g", member_id=self.member, timeout=0)
        self.handles = [message["receipt_handle"] for message in found["messages"]]
        await call("join_group", group="idle", client_id="w", topics=["orders"])
        idle = await call("describe_group", group="idle")
        await call("leave_group", group="idle", member_id=idle["members"][0]["member_id"])
        await call("reject", receipt_handle=self.handles.pop())
        await call("list_dead_letters", topic="orders")
        self.producer = (await call("init_producer", transactional_id="p"))["producer_id"]
        self.who = {"producer_id": self.producer, "epoch": 0, "transactional_id": "p"}
        self.transaction = (await call("begin_transaction", **self.who, name="n"))["transaction_id"]
        self.other = (await call("init_producer"))["producer_id"]
        await call("transaction_publish", **self.who, transaction_id=self.transaction, topic="orders", value="x")
        self.schedule = (await call("create_schedule", topic="orders", message={"value": "tick"}, every="1h"))["id"]
        self.redrive = (await call("start_redrive", topic="orders", rate=0.001))["id"]
        await call("put_reader", name="nightly", offsets={"orders": {"0": 0}})
        for group in self.broker.groups.machine.by_name.values():
            group.changed_at = limits.MAX_OFFSET  # what is told of it waits for that

    def request(self, operation: str) -> dict[str, Any]:
        topic, group, member = {"topic": "orders"}, {"group": "g"}, {"member_id": self.member}
        handle = {"receipt_handle": self.handles[0]}
        place = {"topic": "orders", "partition": 0, "offset": 4}
        mine = {**self.who, "transaction_id": self.transaction}
        found: dict[str, dict[str, Any]] = {
            "publish": {**topic, "value": "x"},
            "publish_batch": {
                **topic,
                "producer_id": self.other,
                "sequence": 0,
                "messages": [{"value": "x", "partition": 0}],
            },
            "create_topic": {"name": "others"},
            "change_topic": {**topic, "max_retries": 7},
            "delete_topic": topic,
            "add_partitions": {**topic, "count": 2},
            "commit": {**group, **member, "offsets": {"orders": {"0": 2}}},
            "heartbeat": {**group, **member},
            "join_group": {**group, "client_id": "v", "topics": ["orders"]},
            "leave_group": {**group, **member},
            "group_offsets": group,
            "reset_offsets": {"group": "idle", "topic": "orders", "to": "earliest"},
            "group_lag": group,
            "describe_group": group,
            "delete_group": {"group": "idle"},
            "ack": handle,
            "nack": handle,
            "reject": handle,
            "group_ack": {**group, **handle},
            "group_nack": {**group, **handle},
            "cancel_delayed": place,
            "move_delayed": {**place, "delay": "2h"},
            "cancel_many_delayed": {**topic, "ids": [[0, 4]]},
            "transaction_publish": {**mine, **topic, "value": "x"},
            "transaction_ack": {**mine, **handle},
            "commit_transaction": mine,
            "abort_transaction": mine,
            "commit_many": {"token": {"name": "n", "number": 1}, "transactions": [self.transaction]},
            "put_reader": {"name": "weekly", "offsets": {"orders": {"0": 0}}},
            "get_reader": {"name": "nightly"},
            "delete_reader": {"name": "nightly"},
            "create_schedule": {**topic, "message": {"value": "x"}, "every": "1h"},
            "describe_schedule": {"schedule": self.schedule},
            "change_schedule": {"schedule": self.schedule, "paused": True},
            "delete_schedule": {"schedule": self.schedule},
            "start_redrive": {**topic, "target": "orders", "dry_run": True},
            "describe_redrive": {"redrive": self.redrive},
            "cancel_redrive": {"redrive": self.redrive},
        }
        return found.get(operation, {})


WAITING = [operation.name for operation in OPERATIONS if operation.name not in DO_NOT_WAIT]


@pytest.mark.parametrize("operation", WAITING)
def test_a_log_that_is_closed_under_a_wait_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    async def closed(mark: Mark, threshold: int) -> None:
        raise LogClosed("the log is closed")

    async def go() -> None:
        async with served(tmp_path) as broker:
            stage = Stage(broker)
            await stage.set_up()
            fields = stage.request(operation)
            with monkeypatch.context() as patch:
                patch.setattr(waiting, "reached", closed)
                with pytest.raises(GoQueueError) as caught:
                    await stage.call(operation, **fields)
            assert (caught.value.code, type(caught.value)) == ("unavailable", Unavailable), caught.value
            assert str(caught.value) == waiting.GONE

    run(go())


def test_nothing_else_in_the_broker_waits_on_a_mark() -> None:
    """But housekeeping, which answers nobody and goes past what is closed."""
    users = set()
    for path in BROKER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == "goqueue.io.waiting":
                users.add(path.name)
    assert users == {"waiting.py", "housekeeping.py"}
