"""The outbox of dead letters: numbers are never skipped and never used twice."""

import pytest

from goqueue.delivery import records
from goqueue.delivery.dead import Death, Outbox
from goqueue.delivery.records import MOST_BYTES, HeldDeath, Mourned, Reason
from goqueue.model import limits
from tests.unit.delivery.partitions import T0, A, B


def death(offset: int, *, void: bool = False) -> Death:
    return Death(A, offset, Reason.NACKED, 3, T0, "", void)


def test_letters_are_numbered_in_the_order_in_which_they_come() -> None:
    outbox = Outbox()
    assert (outbox.first, outbox.next, len(outbox), list(outbox)) == (0, 0, 0, [])
    outbox.add([death(9), death(4)])
    outbox.add([death(7)])
    assert (outbox.first, outbox.next, [each.offset for each in outbox]) == (0, 3, [9, 4, 7])


def test_those_that_are_published_go_and_the_others_keep_their_numbers() -> None:
    outbox = Outbox()
    outbox.add(map(death, (9, 4, 7)))
    assert outbox.done(2) == [death(9), death(4)]
    assert outbox.done(2) == []
    assert (outbox.first, outbox.next, list(outbox)) == (2, 3, [death(7)])
    outbox.add([death(8)])
    assert outbox.next == 4


def test_more_cannot_be_done_than_there_are() -> None:
    outbox = Outbox()
    outbox.add([death(9)])
    assert outbox.done(99) == [death(9)]
    assert (outbox.first, outbox.next) == (1, 1)


def test_letters_of_lost_messages_are_void_and_keep_their_numbers() -> None:
    outbox = Outbox()
    outbox.add(map(death, (9, 4, 7)))
    outbox.void(7)
    outbox.add([death(8)])
    assert [(each.offset, each.void) for each in outbox] == [(9, True), (4, False), (7, True), (8, False)]
    outbox.void(100)
    assert [each.void for each in outbox] == [True, False, True, False], "what is void stays so"


def test_its_record_makes_it_again() -> None:
    outbox = Outbox()
    outbox.add([death(9), Death(B, 4, Reason.REJECTED, 1, T0, "no such order")])
    outbox.void(9)
    outbox.add([death(7)])
    outbox.done(1)
    (record,) = outbox.to_records()
    assert record == Mourned(
        1,
        (
            HeldDeath(B, 4, Reason.REJECTED, 1, T0, "no such order", False),
            HeldDeath(A, 7, Reason.NACKED, 3, T0, "", False),
        ),
    )
    other = Outbox()
    other.restore(record)
    assert (other.first, other.next, list(other)) == (1, 3, list(outbox))


def test_an_empty_one_keeps_the_number_of_the_next_letter() -> None:
    outbox = Outbox()
    outbox.add([death(9)])
    outbox.done(1)
    assert list(outbox.to_records()) == [Mourned(1, ())]


@pytest.mark.parametrize("detail", ["", "x" * limits.MAX_REJECT_CHARS, "\U0001f4a3" * limits.MAX_REJECT_CHARS])
def test_many_letters_are_spread_over_records_that_are_not_large(detail: str) -> None:
    far = limits.MAX_OFFSET - 1
    each = Death(A, far, Reason.REJECTED, 2**31, far, detail)
    outbox = Outbox()
    outbox.add([each] * (1 + 3 * MOST_BYTES // len(records.encode(HeldDeath(*each)))))
    outbox.done(1)
    found = list(outbox.to_records())
    assert len(found) >= 3
    assert all(len(records.encode(record)) < MOST_BYTES + 20 for record in found)
    other = Outbox()
    for record in found:
        other.restore(record)
    assert (other.first, other.next, list(other)) == (1, outbox.next, list(outbox))


def test_a_record_that_does_not_go_on_where_the_last_one_ended_is_refused() -> None:
    held = HeldDeath(A, 7, Reason.NACKED, 3, T0, "", False)
    outbox = Outbox()
    outbox.restore(Mourned(5, (held, held)))
    for first in (5, 6, 8):
        with pytest.raises(ValueError, match=f"has number 7, not {first}"):
            outbox.restore(Mourned(first, (held,)))
    outbox.restore(Mourned(7, (held,)))
    assert (outbox.first, outbox.next) == (5, 8)
