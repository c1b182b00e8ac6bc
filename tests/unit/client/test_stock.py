"""What was delivered and not handed out: its bounds, what goes back, and what is looked after."""

from collections.abc import Sequence
from typing import Any

import pytest

from goqueue import codec
from goqueue.client.member import Delivered
from goqueue.client.messages import Row
from goqueue.client.stock import Stock
from goqueue.client.turns import LoopTurns
from goqueue.model.record import Record


class Nobody:
    turns = LoopTurns()

    def add(self, *decision: Any) -> None:
        raise AssertionError("the stock settles nothing itself")


def row_of(first: int, end: int, *, topic: str = "orders", partition: int = 0) -> Row:
    block = codec.encode([Record(offset=offset, value=b"v") for offset in range(first, end)])
    delivered = Delivered(topic, partition, 1, 1, end, 1, end - first, memoryview(block), 7, 1, 99)
    return Row(delivered, Nobody(), 0.0)


class Shelf:
    """A stock, and what it says."""

    def __init__(self, *, max_messages: int = 10, max_bytes: int = 1_000_000, keep_handed_out: bool = False) -> None:
        self.returned: list[tuple[str, list[int]]] = []
        self.stored = 0
        self.rooms = 0
        self.stock = Stock(
            max_messages=max_messages,
            max_bytes=max_bytes,
            keep_handed_out=keep_handed_out,
            give_back=self._give_back,
            on_stored=self._on_stored,
            on_room=self._on_room,
        )

    def store(self, *rows: Row) -> None:
        self.stock.store([*rows], self.stock.seeks)

    def take(self, count: int) -> list[int]:
        return [offset for row, begin, end in self.stock.take(count) for offset in row.offsets[begin:end]]

    def held(self) -> list[int]:
        return [offset for _, offsets in self.stock.held() for offset in offsets]

    def _give_back(self, row: Row, offsets: Sequence[int]) -> None:
        self.returned.append((row.name, [*offsets]))

    def _on_stored(self) -> None:
        self.stored += 1

    def _on_room(self) -> None:
        self.rooms += 1


# --- bounds


def test_more_is_wanted_up_to_half_of_the_messages() -> None:
    shelf = Shelf(max_messages=10)
    assert shelf.stock.wants_more
    shelf.store(row_of(0, 5))
    assert shelf.stock.wants_more
    assert shelf.stock.room[0] == 5
    shelf.store(row_of(5, 6))
    assert not shelf.stock.wants_more


def test_more_is_wanted_up_to_half_of_the_bytes() -> None:
    row = row_of(0, 5)
    size = len(row.delivered.block)
    shelf = Shelf(max_messages=100, max_bytes=2 * size)
    shelf.store(row)
    assert shelf.stock.wants_more
    assert shelf.stock.room[1] == size
    shelf.store(row_of(5, 40))
    assert not shelf.stock.wants_more
    assert shelf.stock.room[1] == 1, "one message comes however large it is"


def test_an_eighth_of_either_bound_is_little() -> None:
    shelf = Shelf(max_messages=40)
    shelf.store(row_of(0, 5))
    assert shelf.stock.is_low
    shelf.store(row_of(5, 6))
    assert not shelf.stock.is_low
    row = row_of(0, 5)
    for most, is_low in ((8 * len(row.delivered.block), True), (8 * len(row.delivered.block) - 1, False)):
        shelf = Shelf(max_messages=100, max_bytes=most)
        shelf.store(row)
        assert shelf.stock.is_low is is_low


def test_the_row_that_is_handed_out_is_not_counted() -> None:
    shelf = Shelf(max_messages=10)
    shelf.store(row_of(0, 10))
    assert not shelf.stock.wants_more
    assert shelf.take(1) == [0]
    assert (shelf.stock.messages, shelf.stock.bytes, shelf.rooms) == (0, 0, 1)
    assert shelf.stock.wants_more


# --- handing out


def test_messages_are_handed_out_in_order_and_across_rows() -> None:
    shelf = Shelf()
    shelf.store(row_of(0, 3), row_of(3, 7))
    assert (shelf.take(2), shelf.take(3), shelf.take(9), shelf.take(1)) == ([0, 1], [2, 3, 4], [5, 6], [])
    assert shelf.stored == 1


def test_a_row_that_was_lost_in_stock_is_passed_over() -> None:
    shelf = Shelf()
    lost = row_of(0, 3)
    shelf.store(lost, row_of(3, 5))
    lost.settled.update(range(3))
    assert shelf.take(9) == [3, 4]


def test_nothing_more_is_handed_out_of_one_that_is_shut_but_what_was_begun() -> None:
    shelf = Shelf()
    shelf.store(row_of(0, 2), row_of(2, 4))
    assert shelf.take(1) == [0]
    shelf.stock.shut()
    assert shelf.take(9) == [1]
    assert shelf.stock.messages == 2


# --- going back


def test_what_is_dropped_goes_back_and_what_was_handed_out_does_not() -> None:
    shelf = Shelf()
    shelf.store(row_of(0, 3), row_of(0, 2, partition=1), row_of(3, 5))
    assert shelf.take(1) == [0]
    shelf.stock.drop(lambda row: row.delivered.partition == 0)
    assert shelf.returned == [("orders-0", [1, 2]), ("orders-0", [3, 4])]
    assert (shelf.stock.messages, shelf.take(9)) == (2, [0, 1])


def test_what_is_somebody_elses_is_dropped_and_not_given_back() -> None:
    shelf = Shelf()
    shelf.store(row_of(0, 3), row_of(3, 5))
    assert shelf.take(1) == [0]
    shelf.stock.clear(give_back=False)
    assert (shelf.returned, shelf.take(9), shelf.stock.messages, shelf.stock.bytes) == ([], [], 0, 0)


def test_a_row_that_was_handed_out_to_its_end_has_nothing_to_give_back() -> None:
    shelf = Shelf()
    shelf.store(row_of(0, 3))
    assert shelf.take(3) == [0, 1, 2]
    shelf.stock.clear()
    assert shelf.returned == []


def test_one_that_is_paused_gives_back_all_and_takes_nothing_in() -> None:
    shelf = Shelf()
    shelf.store(row_of(0, 2))
    shelf.stock.pause()
    shelf.store(row_of(2, 4))
    assert shelf.returned == [("orders-0", [0, 1]), ("orders-0", [2, 3])]
    assert not shelf.stock.wants_more
    stored, rooms = shelf.stored, shelf.rooms
    shelf.stock.resume()
    assert (shelf.stock.wants_more, shelf.stored, shelf.rooms) == (True, stored + 1, rooms + 1)


@pytest.mark.parametrize(("partition", "kept"), [(None, ["mails-0"]), (0, ["orders-1", "mails-0"])])
def test_what_was_asked_for_before_a_seek_is_not_wanted_after_it(partition: int | None, kept: list[str]) -> None:
    shelf = Shelf()
    before = shelf.stock.seeks
    shelf.stock.seek("orders", partition)
    rows = [row_of(0, 2), row_of(0, 2, partition=1), row_of(0, 2, topic="mails")]
    shelf.stock.store(rows, before)
    gone = [row.name for row in rows if row.name not in kept]
    assert [name for name, _ in shelf.returned] == gone
    assert [row.name for row, _ in shelf.stock.held()] == kept
    shelf.store(row_of(5, 6))
    assert len(shelf.returned) == len(gone), "that was asked for after it"


def test_a_seek_drops_what_is_in_stock() -> None:
    shelf = Shelf()
    shelf.store(row_of(0, 2), row_of(0, 2, partition=1))
    shelf.stock.seek("orders", 1)
    assert shelf.returned == [("orders-1", [0, 1])]


# --- what is looked after


def test_what_was_handed_out_is_for_others_to_look_after() -> None:
    shelf = Shelf()
    shelf.store(row_of(0, 3), row_of(3, 5))
    assert shelf.take(1) == [0]
    assert sorted(shelf.held()) == [1, 2, 3, 4]


def test_what_was_handed_out_is_looked_after_until_it_is_settled_if_that_is_wanted() -> None:
    shelf = Shelf(keep_handed_out=True)
    row = row_of(0, 3)
    shelf.store(row)
    assert shelf.take(3) == [0, 1, 2]
    row.settled.add(1)
    shelf.stock.see_settled(row)
    assert shelf.held() == [0, 2]
    row.settled.update([0, 2])
    shelf.stock.see_settled(row)
    assert (shelf.held(), shelf.stock._kept) == ([], {})
