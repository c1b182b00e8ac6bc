"""Operation codes: frozen, unique, the same table in both directions."""

from goqueue.wire import codes, frames

# What is on the wire stays: a code may be added here, never changed.
FROZEN = {
    "publish_block": 1,
    "fetch_block": 2,
    "metadata": 3,
    "poll_block": 4,
    "settle_block": 5,
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


def test_codes_are_frozen() -> None:
    assert {name: codes.CODES.get(name) for name in FROZEN} == FROZEN


def test_no_two_operations_share_a_code_and_every_code_fits_its_field() -> None:
    assert {codes.CODES[name]: name for name in codes.CODES} == codes.NAMES
    assert len(codes.NAMES) == len(codes.CODES)
    assert all(0 < code < 2**16 for code in codes.NAMES)
    assert frames.GOODBYE not in codes.NAMES


def test_the_block_operations_have_names_of_their_own() -> None:
    named = (codes.PUBLISH_BLOCK, codes.FETCH_BLOCK, codes.POLL_BLOCK, codes.SETTLE_BLOCK)
    assert tuple(code for name, code in codes.CODES.items() if name.endswith("_block")) == named
