"""For every operation: which logs its answer speaks of, and what has to be durable before what.

`steps` are the logs that are written, in this order: what a step wrote is durable before anything of the next is
written. `+name` is a directory that is made, `-name` a file of a log that is removed. `always` must be durable when the
answer leaves, `every` where each answer waits for the disk. A row that only `looks` may as well tell what was so before
the change that is under way `beside` it. What an operation sets going is part of its
row, `until` it has come to an end.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from tests.support.durable_stage import Stage, handles, in_turn, kept, of, op

Work = Callable[[Stage], Awaitable[Any]]
Logs = frozenset[str]

DATA: Final = frozenset({"orders/0"})
SIDE: Final = frozenset({"orders/0/sidecar"})
BOTH_DATA: Final = frozenset({"orders/0", "orders/1"})
BOTH_SIDES: Final = frozenset({"orders/0/sidecar", "orders/1/sidecar"})
LETTERS: Final = frozenset({"orders.dlq/0"})
REDRIVEN: Final = frozenset({"orders.dlq/0/sidecar", "+orders.dlq/0/sidecar"})
TOPICS: Final = frozenset({"metadata"})
GROUPS: Final = frozenset({"groups"})
JOBS: Final = frozenset({"jobs"})
TRANSACTIONS: Final = frozenset({"transactions"})
NOTHING: Final = frozenset[str]()


async def _nothing(stage: Stage) -> None:
    """Where there is nothing to do."""


class Row(NamedTuple):
    ask: Work
    steps: tuple[Logs, ...] = ()
    always: Logs = NOTHING
    every: Logs = NOTHING
    prepare: Work = _nothing
    """Done and durable before it is asked."""
    first: Work = _nothing
    """Done before it is asked, and not durable where an answer does not wait for that."""
    beside: Work | None = None
    """Asked just before, and not answered yet."""
    looks: bool = False
    of_first: bool = False
    """What is promised is about the first time that a log is written; that is written again is promised to nobody."""
    until: Callable[[Stage], bool] = lambda _: True


def _looks(ask: Work, beside: Work, *steps: Logs, always: Logs = NOTHING, every: Logs = NOTHING, **more: Any) -> Row:
    return Row(ask, steps, always=always, every=every, beside=beside, looks=True, **more)


def _settles(ask: Work, **more: Any) -> Row:
    return Row(ask, (BOTH_SIDES,), every=BOTH_SIDES, **more)


BOTH: Final = {"receipt_handles": handles(0, 1)}
MEMBER: Final = {"group": "g", "member_id": lambda stage: stage.member}
PLACE: Final = {"topic": "orders", "partition": 0, "offset": 4}
PLACES: Final = {"topic": "orders", "ids": [[0, 4], [1, 4]]}
PUBLISH: Final = {"topic": "orders", "value": "x", "partition": 0}
NUMBERED: Final = {
    "topic": "orders", "messages": [{"value": "x", "partition": 0}], "producer_id": of("p", "producer_id"),
    "sequence": 0,
}  # fmt: skip
WRITER: Final = {"producer_id": of("p", "producer_id"), "epoch": of("p", "epoch"), "transactional_id": "p"}
MINE: Final = {**WRITER, "transaction_id": of("t", "transaction_id")}
TOKEN: Final = {"token": {"name": "n", "number": 1}, "transactions": lambda stage: [stage.kept["t"]["transaction_id"]]}
TICK: Final = {"topic": "orders", "message": {"value": "tick", "partition": 0}, "every": "1h"}
SCHEDULE: Final = {"schedule": of("s", "id")}
NIGHTLY: Final = {"name": "nightly", "offsets": {"orders": {"0": 0}}}

JOINS: Final = op("join_group", group="g", client_id="v", topics=["orders"])
PRODUCER: Final = kept("p", op("init_producer"))
OWNER: Final = kept("p", op("init_producer", transactional_id="p"))
BEGUN: Final = in_turn(OWNER, kept("t", op("begin_transaction", **WRITER, name="n")))
FILLED: Final = in_turn(
    op("transaction_publish", **MINE, **PUBLISH),
    op("transaction_publish", **MINE, **{**PUBLISH, "partition": 1}),
    op("transaction_ack", **MINE, receipt_handle=lambda stage: stage.handles[0][0]),
    op("transaction_ack", **MINE, receipt_handle=lambda stage: stage.handles[1][0]),
)
SCHEDULED: Final = kept("s", op("create_schedule", **TICK))
REDRIVES: Final = kept("r", op("start_redrive", topic="orders"))
SLOW_REDRIVE: Final = in_turn(
    op("reject", **BOTH), lambda stage: stage.until(stage.has_no_deaths),
    kept("r", op("start_redrive", topic="orders", rate=0.001)),
)  # fmt: skip
"""It waits for long, before each letter but the first."""


def _no_deaths(stage: Stage) -> bool:
    return stage.has_no_deaths()


def _no_runs(stage: Stage) -> bool:
    return not stage.broker.schedules._at_work


def _no_redrives(stage: Stage) -> bool:
    return not stage.broker.redrives._workers


async def _a_second_passes(stage: Stage) -> None:
    stage.monotonic.now += 1000


async def _an_hour_passes(stage: Stage) -> None:
    stage.clock.now += 3_600_000
    stage.monotonic.now += 3_600_000
    stage.broker.schedules.look()


async def _transactions_are_late(stage: Stage) -> None:
    stage.monotonic.now += 3_600_000
    stage.broker.transactions._time_out()


async def _all_are_told(stage: Stage) -> None:
    while stage.broker.transactions._told:
        await stage.broker.transactions.look()
        await asyncio.sleep(0)


async def _a_snapshot_is_taken(stage: Stage) -> None:
    await stage.broker._housekeeping.snapshot(stage.broker.groups.host)


DEATH: Final = (SIDE, LETTERS, SIDE)
DECISION: Final = (BOTH_DATA | BOTH_SIDES, TRANSACTIONS, BOTH_DATA | BOTH_SIDES)

ROWS: Final[dict[str, Row]] = {
    "publish": Row(op("publish", **PUBLISH), (DATA,), every=DATA),
    "publish, acks all": Row(op("publish", **PUBLISH, acks="all"), (DATA,), always=DATA),
    "publish, acks none": Row(op("publish", **PUBLISH, acks="none"), (DATA,)),
    "publish_batch": Row(
        op("publish_batch", topic="orders", messages=[{"value": "x", "partition": number} for number in (0, 1)]),
        (BOTH_DATA,), every=BOTH_DATA,
    ),
    "publish_batch, acks all": Row(
        op(
            "publish_batch", topic="orders", messages=[{"value": "x", "partition": number} for number in (0, 1)],
            acks="all",
        ),
        (BOTH_DATA,), always=BOTH_DATA,
    ),
    "publish_batch, the same again": Row(
        op("publish_batch", **NUMBERED), (DATA,), every=DATA, prepare=PRODUCER, beside=op("publish_batch", **NUMBERED)
    ),
    "publish_batch, the same again, acks all": Row(
        op("publish_batch", **NUMBERED, acks="all"), (DATA,), always=DATA, prepare=PRODUCER,
        beside=op("publish_batch", **NUMBERED),
    ),
    "create_topic": Row(
        op("create_topic", name="others", num_partitions=1), (TOPICS, frozenset({"+others/0"})), always=TOPICS
    ),
    "list_topics": _looks(
        op("list_topics"), op("create_topic", name="others", num_partitions=1), TOPICS, frozenset({"+others/0"}),
        always=TOPICS,
    ),
    "describe_topic": _looks(
        op("describe_topic", topic="orders"), op("change_topic", topic="orders", max_retries=7), TOPICS, always=TOPICS
    ),
    "metadata": _looks(
        op("metadata"), op("create_topic", name="others", num_partitions=1), TOPICS, frozenset({"+others/0"}),
        always=TOPICS,
    ),
    "change_topic": Row(op("change_topic", topic="orders", max_retries=7), (TOPICS,), always=TOPICS),
    "delete_topic": Row(
        op("delete_topic", topic="orders", dead_letters=True),
        (
            TOPICS,
            frozenset({"-orders/0", "-orders/0/sidecar", "-orders/1", "-orders/1/sidecar", "-orders.dlq/0",
                       "-orders.dlq/1", "metadata", "groups"}),
        ),
        always=TOPICS, until=lambda stage: not stage.broker.topics._tasks,
    ),
    "add_partitions": Row(
        op("add_partitions", topic="orders", count=3), (TOPICS, frozenset({"+orders/2"}) | GROUPS), always=TOPICS
    ),
    "init_producer": Row(op("init_producer"), (TOPICS,), always=TOPICS),
    "init_producer, for transactions": Row(
        op("init_producer", transactional_id="p"), (TOPICS, TRANSACTIONS), always=TOPICS | TRANSACTIONS
    ),
    "init_producer, who takes over": Row(
        op("init_producer", transactional_id="p"), (TOPICS, TRANSACTIONS, BOTH_DATA | BOTH_SIDES),
        always=TRANSACTIONS, prepare=in_turn(BEGUN, FILLED),
    ),
    "producer_heartbeat": Row(op("producer_heartbeat", producer_id=of("p", "producer_id"), epoch=0), prepare=PRODUCER),
    "poll": Row(op("poll", **MEMBER, timeout=0), (BOTH_SIDES,), prepare=op("publish", **PUBLISH)),
    "poll, what did not arrive": Row(
        op("poll", **MEMBER, timeout=0, received=0), (BOTH_SIDES,), always=BOTH_SIDES, of_first=True
    ),
    "poll, commits by itself": Row(
        op("poll", group="auto", member_id=of("m", "member_id"), timeout=0, received=of("taken", "poll")),
        (BOTH_SIDES,), every=BOTH_SIDES,
        prepare=in_turn(
            kept("m", op("join_group", group="auto", client_id="w", topics=["orders"], auto_commit=True,
                         auto_commit_interval="1ms")),
            kept("taken", op("poll", group="auto", member_id=of("m", "member_id"), timeout=0)),
            _a_second_passes,
        ),
    ),
    "commit": Row(
        op("commit", **MEMBER, offsets={"orders": {"0": 2, "1": 2}}), (BOTH_SIDES,), every=BOTH_SIDES
    ),
    "heartbeat": _looks(op("heartbeat", **MEMBER), JOINS, GROUPS, always=GROUPS),
    "heartbeat, gives up": Row(
        op("heartbeat", group="h", member_id=of("m", "member_id"), revoked=of("m", "revoke")),
        (GROUPS,), always=GROUPS,
        prepare=in_turn(
            kept("m", op("join_group", group="h", client_id="w", topics=["orders"])),
            op("join_group", group="h", client_id="v", topics=["orders"]),
            kept("m", op("heartbeat", group="h", member_id=of("m", "member_id"))),
        ),
    ),
    "join_group": Row(JOINS, (GROUPS,), always=GROUPS),
    "join_group, from the end": Row(
        op("join_group", group="new", client_id="w", topics=["orders"], start="latest"), (GROUPS, BOTH_SIDES, GROUPS),
        always=GROUPS,
    ),
    "leave_group": Row(op("leave_group", **MEMBER), (GROUPS,), always=GROUPS),
    "leave_group, of those that share": Row(
        op("leave_group", group="shared", member_id=of("m", "member_id")), (GROUPS, BOTH_SIDES), always=GROUPS,
        prepare=in_turn(
            kept("m", op("join_group", group="shared", client_id="w", topics=["orders"], mode="shared")),
            op("poll", group="shared", member_id=of("m", "member_id"), timeout=0),
        ),
    ),
    "leave_group, commits by itself": Row(
        op("leave_group", group="auto", member_id=of("m", "member_id")), (BOTH_SIDES | GROUPS,), always=GROUPS,
        every=BOTH_SIDES,
        prepare=in_turn(
            kept("m", op("join_group", group="auto", client_id="w", topics=["orders"], auto_commit=True)),
            op("poll", group="auto", member_id=of("m", "member_id"), timeout=0),
        ),
    ),
    "group_offsets": _looks(
        op("group_offsets", group="g"), op("commit", **MEMBER, offsets={"orders": {"1": 2}}), BOTH_SIDES,
        every=BOTH_SIDES,
    ),
    "group_lag": _looks(
        op("group_lag", group="g"), op("commit", **MEMBER, offsets={"orders": {"1": 2}}), BOTH_SIDES, every=BOTH_SIDES
    ),
    "reset_offsets": Row(
        op("reset_offsets", group="idle", topic="orders", to="latest"), (BOTH_SIDES | GROUPS,),
        always=BOTH_SIDES | GROUPS,
    ),
    "list_groups": _looks(
        op("list_groups"), op("join_group", group="new", client_id="w", topics=["orders"]), GROUPS, always=GROUPS
    ),
    "describe_group": _looks(op("describe_group", group="g"), JOINS, GROUPS, always=GROUPS),
    "delete_group": Row(op("delete_group", group="idle"), (GROUPS, BOTH_SIDES), always=GROUPS),
    "ack": _settles(op("ack", **BOTH)),
    "ack, the same again": _settles(op("ack", **BOTH), beside=op("ack", **BOTH)),
    "nack": _settles(op("nack", **BOTH, delay="1h")),
    "reject": Row(
        op("reject", **BOTH),
        (BOTH_SIDES | {"orders.dlq/0", "orders.dlq/1"},),
        every=BOTH_SIDES, until=_no_deaths,
    ),
    "reject, of one partition": Row(
        op("reject", receipt_handles=handles(0)), DEATH, every=SIDE, until=_no_deaths
    ),
    "reject, the first of its topic": Row(
        op("reject", receipt_handle=lambda stage: stage.kept["polled"]["messages"][0]["receipt_handle"]),
        (
            frozenset({"others/0/sidecar"}), TOPICS, frozenset({"+others.dlq/0"}), frozenset({"others.dlq/0"}),
            frozenset({"others/0/sidecar"}),
        ),
        prepare=in_turn(
            op("create_topic", name="others", num_partitions=1),
            op("publish", topic="others", value="x"),
            kept("m", op("join_group", group="o", client_id="w", topics=["others"])),
            kept("polled", op("poll", group="o", member_id=of("m", "member_id"), timeout=0)),
        ),
        until=lambda stage: not stage.broker.topics.named("others").partitions[0].deliveries.outbox,
    ),
    "extend_visibility": _settles(op("extend_visibility", **BOTH, timeout="1h")),
    "release": _settles(op("release", **BOTH)),
    "group_ack": _settles(op("group_ack", group="g", **BOTH)),
    "group_nack": _settles(op("group_nack", group="g", **BOTH, delay="1h")),
    "list_delayed": _looks(
        op("list_delayed", topic="orders"), op("cancel_delayed", **PLACE), SIDE, every=SIDE
    ),
    "get_delayed": _looks(op("get_delayed", **PLACE), op("cancel_delayed", **PLACE), SIDE, every=SIDE),
    "find_delayed": _looks(
        op("find_delayed", topic="single", offset=0), op("cancel_delayed", topic="single", partition=0, offset=0),
        frozenset({"single/0/sidecar"}), every=frozenset({"single/0/sidecar"}),
        prepare=in_turn(
            op("create_topic", name="single", num_partitions=1, fsync="every"),
            op("publish", topic="single", value="x", delay="1h"),
            op("join_group", group="s", client_id="w", topics=["single"], start="latest"),
        ),
    ),
    "cancel_delayed": Row(op("cancel_delayed", **PLACE), (SIDE,), every=SIDE),
    "cancel_delayed, the same again": Row(
        op("cancel_delayed", **PLACE), (SIDE,), every=SIDE, beside=op("cancel_delayed", **PLACE)
    ),
    "move_delayed": Row(op("move_delayed", **PLACE, delay="2h"), (SIDE,), every=SIDE),
    "move_delayed, of a cancelled one": Row(
        op("move_delayed", **PLACE, delay="2h"), (SIDE,), every=SIDE, beside=op("cancel_delayed", **PLACE)
    ),
    "cancel_many_delayed": Row(op("cancel_many_delayed", **PLACES), (BOTH_SIDES,), every=BOTH_SIDES),
    "cancel_many_delayed, the same again": Row(
        op("cancel_many_delayed", **PLACES), (BOTH_SIDES,), every=BOTH_SIDES, beside=op("cancel_many_delayed", **PLACES)
    ),
    "begin_transaction": Row(op("begin_transaction", **WRITER), (TRANSACTIONS,), always=TRANSACTIONS, prepare=OWNER),
    "transaction_publish": Row(op("transaction_publish", **MINE, **PUBLISH), (DATA,), every=DATA, prepare=BEGUN),
    "add_partition": Row(op("add_partition", **MINE, topic="orders", partition=0), prepare=BEGUN),
    "transaction_ack": _settles(op("transaction_ack", **MINE, **BOTH), prepare=BEGUN),
    "transaction_ack, below an offset": _settles(
        op("transaction_ack", **MINE, **MEMBER, offsets={"orders": {"0": 2, "1": 2}}), prepare=BEGUN
    ),
    "commit_transaction": Row(
        op("commit_transaction", **MINE), DECISION, always=TRANSACTIONS, prepare=BEGUN, first=FILLED
    ),
    "commit_transaction, the same again": Row(
        op("commit_transaction", **MINE), DECISION, always=TRANSACTIONS, prepare=BEGUN, first=FILLED,
        beside=op("commit_transaction", **MINE),
    ),
    "commit_transaction, and what comes after it": Row(
        in_turn(op("commit_transaction", **MINE), _all_are_told), (*DECISION, TRANSACTIONS), prepare=BEGUN,
        first=FILLED, until=lambda stage: not stage.broker.transactions._told,
    ),
    "abort_transaction": Row(
        op("abort_transaction", **MINE), (TRANSACTIONS, BOTH_DATA | BOTH_SIDES), always=TRANSACTIONS,
        prepare=in_turn(BEGUN, FILLED),
    ),
    "abort_transaction, the same again": Row(
        op("abort_transaction", **MINE), (TRANSACTIONS, BOTH_DATA | BOTH_SIDES), always=TRANSACTIONS,
        prepare=in_turn(BEGUN, FILLED), beside=op("abort_transaction", **MINE),
    ),
    "commit_many": Row(op("commit_many", **TOKEN), DECISION, always=TRANSACTIONS, prepare=BEGUN, first=FILLED),
    "commit_many, the same again": Row(
        op("commit_many", **TOKEN), DECISION, always=TRANSACTIONS, prepare=BEGUN, first=FILLED,
        beside=op("commit_many", **TOKEN),
    ),
    "list_transactions": _looks(
        op("list_transactions"), op("commit_transaction", **MINE), *DECISION, always=TRANSACTIONS, prepare=BEGUN
    ),
    "describe_transaction": _looks(
        op("describe_transaction", transaction=of("t", "transaction_id")), op("commit_transaction", **MINE), *DECISION,
        always=TRANSACTIONS, prepare=BEGUN,
    ),
    "transaction_token": _looks(
        op("transaction_token", name="n"), op("commit_many", **TOKEN), *DECISION, always=TRANSACTIONS, prepare=BEGUN
    ),
    "a transaction is open for too long": Row(
        _transactions_are_late, (TRANSACTIONS, BOTH_DATA | BOTH_SIDES), prepare=in_turn(BEGUN, FILLED),
        until=lambda stage: not stage.broker.transactions._tasks,
    ),
    "transactions are left open by a broker that stops": Row(
        lambda stage: stage.broker.transactions.stop(), (BOTH_DATA | BOTH_SIDES, TRANSACTIONS), prepare=BEGUN,
        first=FILLED,
    ),
    "put_reader": Row(op("put_reader", **NIGHTLY), (TOPICS,), always=TOPICS),
    "put_reader, the same again": Row(
        op("put_reader", **NIGHTLY, if_absent=True), (TOPICS,), always=TOPICS,
        beside=op("put_reader", **NIGHTLY, if_absent=True),
    ),
    "get_reader": _looks(op("get_reader", name="nightly"), op("put_reader", **NIGHTLY), TOPICS, always=TOPICS),
    "list_readers": _looks(op("list_readers"), op("put_reader", **NIGHTLY), TOPICS, always=TOPICS),
    "delete_reader": Row(
        op("delete_reader", name="nightly"), (TOPICS,), always=TOPICS, prepare=op("put_reader", **NIGHTLY)
    ),
    "create_schedule": Row(op("create_schedule", **TICK), (JOBS,), always=JOBS),
    "list_schedules": _looks(op("list_schedules"), op("create_schedule", **TICK), JOBS, always=JOBS),
    "describe_schedule": _looks(
        op("describe_schedule", **SCHEDULE), op("change_schedule", **SCHEDULE, paused=True), JOBS, always=JOBS,
        prepare=SCHEDULED,
    ),
    "change_schedule": Row(
        op("change_schedule", **SCHEDULE, paused=True), (JOBS,), always=JOBS, prepare=SCHEDULED
    ),
    "delete_schedule": Row(op("delete_schedule", **SCHEDULE), (JOBS,), always=JOBS, prepare=SCHEDULED),
    "a schedule is due": Row(_an_hour_passes, (JOBS, DATA, JOBS), prepare=SCHEDULED, until=_no_runs),
    "a machine's log is shortened": Row(
        _a_snapshot_is_taken, (GROUPS, frozenset({"-groups"})),
        prepare=in_turn(_a_snapshot_is_taken, _a_snapshot_is_taken),
    ),
    "start_redrive": Row(
        REDRIVES, (LETTERS, JOBS, REDRIVEN | DATA, REDRIVEN, JOBS), always=JOBS, of_first=True, until=_no_redrives
    ),
    "describe_redrive": _looks(
        op("describe_redrive", redrive=of("r", "id")), op("cancel_redrive", redrive=of("r", "id")), JOBS, always=JOBS,
        prepare=SLOW_REDRIVE,
    ),
    "cancel_redrive": Row(
        op("cancel_redrive", redrive=of("r", "id")), (JOBS,), always=JOBS, prepare=SLOW_REDRIVE
    ),
}  # fmt: skip


TELL_WHAT_IS_WRITTEN: Final = {
    "read_partition": "a message is there for readers once it is written",
    "read_topic": "as read_partition",
    "offsets": "as read_partition",
    "list_dead_letters": "as read_partition: letters are messages",
    "priority_stats": "counters",
    "delay_stats": "counters",
    "reliability_stats": "counters",
    "rebalance_stats": "counters",
    "transaction_stats": "counters",
    "stats": "counters",
    "health": "the process as it is now",
    "live": "the process as it is now",
    "version": "the process as it is now",
    "cluster": "the process as it is now",
}
"""Operations that write nothing, and whose answers promise nothing about the disk."""
