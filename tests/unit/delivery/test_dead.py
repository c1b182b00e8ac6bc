"""The outbox of dead letters: numbers are never skipped and never used twice."""

from goqueue.delivery.dead import Death, Outbox
from goqueue.delivery.records import HeldDeath, Mourned, Reason
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
    record = outbox.to_record()
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
