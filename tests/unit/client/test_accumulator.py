"""Messages into buffers: which batch, how large, how much is held, and what a refused message leaves behind."""

from typing import Any

import pytest

from goqueue import codec
from goqueue.client.accumulator import FIRST_BUFFER_BYTES, Accumulator, Batch, Buffers, Place
from goqueue.client.line import Line
from goqueue.client.receipts import Receiver
from goqueue.model.errors import BufferFull, GoQueueError, InvalidRecord, TooLarge
from goqueue.model.record import Lane
from goqueue.wire.blocks import PublishReply

NORMAL = int(Lane.NORMAL)
RECORD = codec.pack_into(bytearray(1000), 0, b"", None, NORMAL)
"""The bytes of a message without content."""


class Collected:
    """An accumulator, a place, and what they tell."""

    def __init__(
        self, *, batch_bytes: int = 1 << 18, batch_messages: int = 10_000, buffer_bytes: int = 1 << 24
    ) -> None:
        self.done: list[tuple[Batch, PublishReply | GoQueueError]] = []
        self.dropped: list[tuple[Batch, GoQueueError, list[Receiver]]] = []
        self.accumulator = Accumulator(
            batch_bytes=batch_bytes,
            batch_messages=batch_messages,
            buffer_bytes=buffer_bytes,
            numbered=True,
            on_done=lambda batch, outcome: self.done.append((batch, outcome)),
        )
        self.place = Place("orders", Line(1, 0), lambda batch, error, told: self.dropped.append((batch, error, told)))

    def add(self, value: bytes, key: bytes | None = None) -> Batch:
        return self.accumulator.add(self.place, value, key, NORMAL)

    def sealed(self) -> list[list[bytes | None]]:
        self.accumulator.seal(self.place)
        return [codec.values(batch.records) for batch in self.place.sealed]

    @property
    def held(self) -> int:
        return self.accumulator.buffers.held


# --- buffers


def test_no_more_is_held_than_may_be_but_one_buffer_always() -> None:
    buffers = Buffers(100)
    large = buffers.take(1000)
    assert (len(large), buffers.held) == (1000, 1000)
    assert not buffers.has_room(1)
    with pytest.raises(BufferFull, match="1000 bytes of messages wait"):
        buffers.take(1)
    assert buffers.held == 1000
    buffers.give(large, again=True)
    first, second = buffers.take(60), buffers.take(40)
    with pytest.raises(BufferFull):
        buffers.take(1)
    assert (len(first), len(second), buffers.held) == (60, 40, 100)


def test_a_buffer_is_used_again_if_it_may_be_and_has_the_size() -> None:
    buffers = Buffers(1000)
    first = buffers.take(100)
    buffers.give(first, again=True)
    assert buffers.take(50) is not first
    assert buffers.take(100) is first
    buffers.give(first, again=False)
    assert buffers.take(100) is not first


def test_idle_buffers_count_and_make_way() -> None:
    buffers = Buffers(100)
    taken = [buffers.take(20) for _ in range(5)]
    for each in taken:
        buffers.give(each, again=True)
    assert (buffers.held, buffers._idle_bytes) == (0, 100)
    buffers.take(50)
    assert (buffers.held, buffers._idle_bytes) == (50, 0)
    large = Buffers(10)
    large.give(large.take(1000), again=True)
    assert large._idle_bytes == 0, "what is above the limit is not kept"


# --- batches


def test_messages_of_a_place_fill_one_batch_in_order() -> None:
    collected = Collected()
    batches = {id(collected.add(b"%d" % number, b"k")) for number in range(100)}
    assert len(batches) == 1
    assert collected.sealed() == [[b"%d" % number for number in range(100)]]
    assert collected.place.sealed[0].count == 100
    assert collected.place.open is None


def test_a_batch_has_no_more_messages_and_no_more_bytes_than_may_be() -> None:
    collected = Collected(batch_messages=3)
    for number in range(7):
        collected.add(b"%d" % number)
    assert collected.sealed() == [[b"0", b"1", b"2"], [b"3", b"4", b"5"], [b"6"]]
    collected = Collected(batch_bytes=2 * RECORD + 10)
    for _ in range(3):
        collected.add(b"55555")
    assert collected.sealed() == [[b"55555", b"55555"], [b"55555"]]
    assert all(len(batch.records) <= 2 * RECORD + 10 for batch in collected.place.sealed)


def test_a_message_larger_than_a_batch_may_be_is_one_alone() -> None:
    collected = Collected(batch_bytes=1000)
    for value in (b"a", bytes(50_000), b"b", bytes(990)):
        collected.add(value)
    assert [[len(value or b"") for value in batch] for batch in collected.sealed()] == [[1], [50_000], [1], [990]]
    assert [len(batch.buffer) for batch in collected.place.sealed] == [1000, 50_000 + RECORD, 1000, 990 + RECORD]
    assert collected.held == sum(len(batch.buffer) for batch in collected.place.sealed)


def test_buffers_begin_small_grow_with_their_place_and_shrink_again() -> None:
    collected = Collected()
    batch = collected.add(b"x" * 1000)
    assert len(batch.buffer) == FIRST_BUFFER_BYTES
    for _ in range(99):
        assert collected.add(b"x" * 1000) is batch
    assert len(batch.buffer) == 8 * FIRST_BUFFER_BYTES == collected.held
    assert collected.sealed() == [[b"x" * 1000] * 100]
    assert len(collected.add(b"small").buffer) == 8 * FIRST_BUFFER_BYTES
    collected.sealed()
    assert len(collected.add(b"small").buffer) == 4 * FIRST_BUFFER_BYTES


def test_a_batch_that_may_not_grow_is_sealed_instead() -> None:
    collected = Collected(buffer_bytes=2 * FIRST_BUFFER_BYTES)
    first = collected.add(bytes(FIRST_BUFFER_BYTES - 500))
    second = collected.add(bytes(FIRST_BUFFER_BYTES - 500))
    assert first is not second
    assert (list(collected.place.sealed), collected.place.open) == ([first], second)
    assert collected.held == 2 * FIRST_BUFFER_BYTES
    with pytest.raises(BufferFull):
        collected.add(bytes(600))
    assert (list(collected.place.sealed), collected.place.open) == ([first, second], None)
    assert collected.held == 2 * FIRST_BUFFER_BYTES


def test_a_refused_message_changes_nothing() -> None:
    collected = Collected()
    with pytest.raises(InvalidRecord):
        collected.add(b"", bytes(70_000))
    assert (collected.place.open, collected.held) == (None, 0)
    batch = collected.add(b"a")
    used = batch.used
    with pytest.raises(InvalidRecord):
        collected.add(b"", bytes(70_000))
    assert (collected.place.open, batch.used, batch.count) == (batch, used, 1)
    collected.add(b"b")
    assert collected.sealed() == [[b"a", b"b"]]


def test_a_large_message_without_room_leaves_no_empty_batch() -> None:
    collected = Collected(buffer_bytes=3 * FIRST_BUFFER_BYTES)
    collected.add(b"a")
    other = Place("orders", Line(1, 1), collected.place.on_dropped)
    with pytest.raises(BufferFull):
        collected.accumulator.add(other, bytes(4 * FIRST_BUFFER_BYTES), None, NORMAL)
    assert (other.open, collected.held) == (None, FIRST_BUFFER_BYTES)


def test_sealing_nothing_does_nothing() -> None:
    collected = Collected()
    collected.accumulator.seal(collected.place)
    assert not collected.place.sealed


# --- dropping a message


def refusal(index: int | None) -> TooLarge:
    error = TooLarge("it is too large")
    error.index = index
    return error


@pytest.mark.parametrize("index", range(4))
def test_a_refused_message_leaves_its_batch_and_its_receiver_alone_is_told(index: int) -> None:
    collected = Collected()
    receivers: list[Any] = [f"receiver {number}" for number in range(4)]
    for number in range(4):
        batch = collected.add(b"%d" % number)
        if number != 2:
            batch.receivers.append((number, receivers[number]))
    collected.accumulator.seal(collected.place)
    before = bytes(batch.records)
    view = batch.records
    error = refusal(index)
    assert batch.drop(error)
    rest = [number for number in range(4) if number != index]
    assert codec.values(batch.records) == [b"%d" % number for number in rest]
    assert (batch.count, batch.freed) == (3, 1)
    assert batch.receivers == [(at, receivers[number]) for at, number in enumerate(rest) if number != 2]
    assert collected.dropped == [(batch, error, [receivers[index]] if index != 2 else [])]
    assert bytes(view) == before, "what may still be on its way is as it was"
    assert batch.drop(refusal(2))
    assert codec.values(batch.records) == [b"%d" % number for number in rest[:2]]


@pytest.mark.parametrize("index", [None, -1, 2, 99])
def test_what_is_about_no_message_of_the_batch_drops_none(index: int | None) -> None:
    collected = Collected()
    collected.add(b"a")
    batch = collected.add(b"b")
    collected.accumulator.seal(collected.place)
    assert not batch.drop(refusal(index))
    assert (batch.count, batch.freed, collected.dropped) == (2, 0, [])


def test_the_last_message_of_a_batch_is_not_dropped_from_it() -> None:
    collected = Collected()
    batch = collected.add(b"a")
    collected.accumulator.seal(collected.place)
    assert not batch.drop(refusal(0))
