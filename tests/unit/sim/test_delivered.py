"""What a sidecar shows of a group, taken from its snapshot."""

from typing import Any

import pytest

from goqueue.delivery.deliveries import Deliveries, GiveBack, Lease, Settle
from goqueue.delivery.records import Delivered, HeldLease, Range, encode
from goqueue.model.names import GroupNumber
from sim.checkers import Violation
from sim.checkers.delivered import Shown, show

GROUP = GroupNumber(1)


def make(*commands: Any) -> Deliveries:
    deliveries = Deliveries()
    for command in commands:
        for record in deliveries.decide(command, 0).records:
            deliveries.apply(record, 0)
    return deliveries


def lease(first: int, end: int, poll: int) -> Lease:
    return Lease(GROUP, 1, poll, 0, ((first, end),))


def test_every_offset_is_shown_where_it_is() -> None:
    deliveries = make(lease(0, 2, 7), lease(2, 4, 8), Settle(GROUP, 1))
    assert show(deliveries) == {GROUP: Shown(1, 4, frozenset(), {1: 7, 2: 8, 3: 8}, frozenset())}


def test_a_resting_group_is_its_low_mark() -> None:
    assert show(make(lease(0, 2, 7), Settle(GROUP, 2))) == {GROUP: Shown(2, 2, frozenset(), {}, frozenset())}


def test_what_was_given_back_and_never_delivered_is_as_if_nothing_had_been() -> None:
    assert show(make(lease(0, 2, 7), GiveBack(GROUP, 0, 7))) == {GROUP: Shown(0, 0, frozenset(), {}, frozenset())}


@pytest.mark.parametrize(
    ("leases", "again", "cursor", "what"),
    [
        (((0, 2), (1, 3)), (), 3, "leases overlap"),
        (((0, 2),), ((1, 3),), 3, "leased and ready again"),
        (((0, 2),), ((2, 4),), 3, "the cursor is 3"),
        (((0, 2),), (), 3, "neither settled, leased nor ready again"),
    ],
)
def test_an_offset_in_two_places_or_in_none_is_seen(
    leases: tuple[tuple[int, int], ...], again: tuple[tuple[int, int], ...], cursor: int, what: str
) -> None:
    held = tuple(HeldLease(poll, 0, (Range(*span, 1),)) for poll, span in enumerate(leases))
    deliveries = Deliveries()
    ready_again = tuple(Range(*span, 1) for span in again)
    deliveries.apply(encode(Delivered(GROUP, 0, cursor, 1, b"", held, ready_again, 0)), 0)
    with pytest.raises(Violation, match=what):
        show(deliveries)
