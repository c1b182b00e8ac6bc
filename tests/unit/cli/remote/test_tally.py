"""What a `produce` says of many messages."""

from goqueue.cli.remote.tally import Tally, result_of
from goqueue.client.receipts import Outcome, Receipt
from goqueue.model.errors import TooLarge


def test_batches_of_a_partition_are_summed_whatever_their_order() -> None:
    tally = Tally("orders")
    for partition, first in ((0, 10), (0, 0), (1, 5), (0, 20)):
        tally.add_outcome(Outcome("orders", partition, 10, first, None))
    assert tally.sent == 40
    assert tally._summary(2.0)["partitions"] == {
        "0": {"messages": 30, "first_offset": 0, "last_offset": 29},
        "1": {"messages": 10, "first_offset": 5, "last_offset": 14},
    }
    assert tally._summary(2.0)["rate"] == 20.0


def test_without_answers_there_are_no_offsets() -> None:
    tally = Tally("orders")
    tally.add_outcome(Outcome("orders", 0, 10, None, None))
    assert tally._summary(1.0)["partitions"] == {"0": {"messages": 10}}


def test_what_failed_is_counted_with_the_first_reason() -> None:
    tally = Tally("orders")
    tally.many = True
    first = TooLarge("first")
    tally.add_outcome(Outcome("orders", 0, 1, None, first))
    tally.add_outcome(Outcome("orders", 0, 2, None, TooLarge("second")))
    assert (tally.sent, tally.failed, tally.first_error) == (0, 3, first)


def test_a_receipt_reads_like_the_reply_of_the_api() -> None:
    receipt = Receipt("orders", 1, 5, 1000, "written")
    found = {"partition": 1, "offset": 5, "message_id": "orders:1:5", "priority": "low", "durability": "written",
             "timestamp": "1970-01-01T00:00:01.000Z"}  # fmt: skip
    assert result_of(receipt, {"priority": 3, "deliver_at": 999}) == found
    late = {"delayed": True, "deliverAt": "1970-01-01T00:00:03.500Z", "duplicate": True}
    assert result_of(receipt._replace(duplicate=True), {"priority": "low", "delay": 2.5}) == found | late
    assert result_of(Receipt("orders", 1, None, None, "none"), {"delay": 1.0}) == {
        "partition": 1, "priority": "normal", "durability": "none",
    }  # fmt: skip
    assert result_of(TooLarge("big"), {}) == {"error": "big", "code": TooLarge.code, "retriable": False}
