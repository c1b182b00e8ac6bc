"""Messages as users see them, and batches of them: decoded when looked at, once."""

from collections.abc import Callable
from typing import Any

import pytest

from goqueue import codec
from goqueue.client.member import Delivered
from goqueue.client.messages import DeliveredBatch, DeliveredMessage, Message, ReadBatch, Row
from goqueue.client.turns import LoopTurns
from goqueue.model.errors import InvalidRequest
from goqueue.model.record import Extension, Lane, Record
from goqueue.wire.settles import NO_ARGUMENT, Action, Writer


class Settler:
    turns = LoopTurns()

    def __init__(self) -> None:
        self.added: list[tuple[list[int], Action, int, str, Any]] = []

    def add(
        self,
        row: Row,
        offsets: Any,
        action: Action,
        argument: int,
        reason: str,
        receiver: Any,
        writer: Writer | None = None,
    ) -> None:
        self.added.append(([*offsets], action, argument, reason, receiver))


def block_of(*offsets: int) -> memoryview:
    return memoryview(codec.encode([Record(offset=offset, value=b"%d" % offset) for offset in offsets]))


def row_of(*offsets: int, settler: Settler | None = None, deliveries: int = 1) -> Row:
    block = block_of(*offsets)
    delivered = Delivered("orders", 3, 1, 5, offsets[-1] + 1, deliveries, len(offsets), block, 7, 1, 99)
    return Row(delivered, settler or Settler(), 0.0)


def test_a_message_shows_its_record_and_where_it_came_from() -> None:
    record = Record(
        offset=17,
        timestamp=5,
        key=b"k",
        value=b"v" * 100,
        priority=int(Lane.HIGH),
        headers=(("a", b"1"), ("a", b"2")),
        extension=Extension(deliver_at=6, expires_at=7, event_time=8),
    )
    message = Message("orders", 3, record)
    assert (message.topic, message.partition, message.offset, message.timestamp) == ("orders", 3, 17, 5)
    assert (message.key, message.priority, message.headers) == (b"k", Lane.HIGH, (("a", b"1"), ("a", b"2")))
    assert (message.deliver_at, message.expires_at, message.event_time) == (6, 7, 8)
    assert message.message_id == "orders:3:17"
    assert repr(message).startswith("<Message orders:3:17 key=b'k' value=b'vvv")
    assert len(repr(message)) < 150
    plain = Message("orders", 3, Record(offset=1, value=None))
    assert (plain.value, plain.key, plain.deliver_at, plain.expires_at, plain.event_time) == (None,) * 5


def test_a_value_may_be_seen_as_text_or_json() -> None:
    def message(value: bytes | None) -> Message:
        return Message("orders", 3, Record(offset=17, value=value))

    assert (message("käse".encode()).text, message(b"").text, message(None).text) == ("käse", "", None)
    assert message(b'{"a": [1, 2.5, null]}').json() == {"a": [1, 2.5, None]}
    assert message(None).json() is message(b"null").json() is None
    with pytest.raises(InvalidRequest, match="the value of orders:3:17 is no text"):
        assert message(b"\xff").text
    for value in (b"", b"{", b"\xff", b'"\xff"', b"[" * 100_000):
        with pytest.raises(InvalidRequest, match="the value of orders:3:17 is not JSON"):
            message(value).json()


def test_a_batch_is_a_sequence_of_parts_of_rows() -> None:
    first, second = row_of(1, 2, 5, deliveries=2), row_of(7, 8)
    batch = DeliveredBatch(DeliveredMessage, [(first, 1, 3), (second, 0, 1)])
    assert len(batch) == 3
    assert [each.offset for each in batch] == [2, 5, 7]
    assert [each.delivery_count for each in batch] == [2, 2, 1]
    assert batch.values() == [b"2", b"5", b"7"]
    assert batch[0] is batch[0]
    assert [each.offset for each in batch[1:]] == [5, 7]
    assert repr(batch) == "<DeliveredBatch of 3 messages>"
    empty: DeliveredBatch[DeliveredMessage] = DeliveredBatch(DeliveredMessage, [])
    assert (len(empty), bool(empty), [*empty], empty.values()) == (0, False, [], [])


def test_a_row_is_decoded_once_in_however_many_parts_it_is_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[str] = []

    def watch(name: str, real: Callable[[memoryview], Any]) -> None:
        def watched(block: memoryview) -> Any:
            decoded.append(name)
            return real(block)

        monkeypatch.setattr(codec, name, watched)

    for name in ("decode", "values", "scan"):
        watch(name, getattr(codec, name))
    row = row_of(*range(20))
    batches = [DeliveredBatch(DeliveredMessage, [(row, at, at + 1)]) for at in range(20)]
    assert [batch.values() for batch in batches] == [[b"%d" % at] for at in range(20)]
    assert [batch[0].offset for batch in batches] == [*range(20)]
    for batch in batches:
        batch._settle(Action.ACK)
    assert sorted(decoded) == ["decode", "scan", "values"]


def test_what_is_settled_of_a_batch_are_the_offsets_of_its_parts() -> None:
    settler = Settler()
    batch = DeliveredBatch(
        DeliveredMessage, [(row_of(1, 2, 5, settler=settler), 1, 3), (row_of(9, settler=settler), 0, 1)]
    )
    batch._settle(Action.REJECT, reason="bad", receivers=["a", "b"])
    batch[0]._settle(Action.NACK, 7)
    assert settler.added == [
        ([2, 5], Action.REJECT, NO_ARGUMENT, "bad", "a"),
        ([9], Action.REJECT, NO_ARGUMENT, "bad", "b"),
        ([2], Action.NACK, 7, "", None),
    ]


def test_a_row_knows_what_of_it_is_not_settled() -> None:
    row = row_of(1, 2, 5)
    assert (row.name, len(row), row.unsettled) == ("orders-3", 3, [1, 2, 5])
    row.settled.update([2, 5])
    assert row.unsettled == [1]


def test_the_rest_of_a_batch_that_was_read_begins_at_an_offset() -> None:
    batch = ReadBatch("orders", 3, block_of(1, 2, 5, 9), 4, 12)
    rest = batch.rest(3)
    assert ([each.offset for each in rest], len(rest), rest.values(), rest.next_offset) == ([5, 9], 2, [b"5", b"9"], 12)
    assert [each.offset for each in batch] == [1, 2, 5, 9]
