"""Operation names and the codes that stand for them in a frame, for both sides of a connection.

A code is frozen once given: it never changes its meaning and is never used again. 0 is not an operation.
"""

from typing import Final

PUBLISH_BLOCK: Final = 1
FETCH_BLOCK: Final = 2
POLL_BLOCK: Final = 4
SETTLE_BLOCK: Final = 5

CODES: Final[dict[str, int]] = {
    "publish_block": PUBLISH_BLOCK,
    "fetch_block": FETCH_BLOCK,
    "metadata": 3,
    "poll_block": POLL_BLOCK,
    "settle_block": SETTLE_BLOCK,
    "create_topic": 10,
    "list_topics": 11,
    "describe_topic": 12,
    "change_topic": 13,
    "delete_topic": 14,
    "add_partitions": 15,
    "publish": 20,
    "publish_batch": 21,
    "read_partition": 22,
    "read_topic": 23,
    "offsets": 24,
    "init_producer": 30,
    "producer_heartbeat": 31,
    "health": 40,
    "version": 41,
    "stats": 42,
    "cluster": 43,
    "live": 44,
    "join_group": 50,
    "heartbeat": 51,
    "leave_group": 52,
    "poll": 53,
    "commit": 54,
    "group_offsets": 55,
    "reset_offsets": 56,
    "group_lag": 57,
    "list_groups": 58,
    "describe_group": 59,
    "delete_group": 60,
    "rebalance_stats": 61,
    "ack": 70,
    "nack": 71,
    "reject": 72,
    "extend_visibility": 73,
    "group_ack": 74,
    "group_nack": 75,
    "list_delayed": 76,
    "get_delayed": 77,
    "find_delayed": 78,
    "cancel_delayed": 79,
    "move_delayed": 80,
    "cancel_many_delayed": 81,
    "release": 82,
    "create_schedule": 90,
    "list_schedules": 91,
    "describe_schedule": 92,
    "change_schedule": 93,
    "delete_schedule": 94,
    "list_dead_letters": 100,
    "start_redrive": 101,
    "describe_redrive": 102,
    "cancel_redrive": 103,
    "priority_stats": 110,
    "delay_stats": 111,
    "reliability_stats": 112,
    "begin_transaction": 120,
    "transaction_publish": 121,
    "add_partition": 122,
    "transaction_ack": 123,
    "commit_transaction": 124,
    "abort_transaction": 125,
    "commit_many": 126,
    "list_transactions": 127,
    "describe_transaction": 128,
    "transaction_stats": 129,
    "transaction_token": 130,
    "put_reader": 140,
    "get_reader": 141,
    "list_readers": 142,
    "delete_reader": 143,
}
"""Name to code. Those that end in `_block` carry bytes of their own (`wire.blocks`, `wire.polls`, `wire.settles`), the
others JSON."""

PACKED: Final[dict[str, tuple[str, ...]]] = {
    "publish_block": ("publish_batch",),
    "fetch_block": ("read_partition",),
    "poll_block": ("poll",),
    "settle_block": ("ack", "nack", "reject", "release", "extend_visibility"),
}
"""The operations that each of those is another form of: the wire has none of its own."""

NAMES: Final[dict[int, str]] = {code: name for name, code in CODES.items()}
