"""Operation names and the codes that stand for them in a frame, for both sides of a connection.

A code is frozen once given: it never changes its meaning and is never used again. 0 is not an operation.
"""

from typing import Final

PUBLISH_BLOCK: Final = 1
FETCH_BLOCK: Final = 2

CODES: Final[dict[str, int]] = {
    "publish_block": PUBLISH_BLOCK,
    "fetch_block": FETCH_BLOCK,
    "metadata": 3,
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
}
"""Name to code. Only the first two carry bytes of their own (`wire.blocks`); the others carry JSON."""

NAMES: Final[dict[int, str]] = {code: name for name, code in CODES.items()}
