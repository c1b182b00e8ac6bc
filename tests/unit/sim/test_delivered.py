"""What a sidecar shows of its groups, taken from its snapshot."""

from typing import Any

import pytest
from pyroaring import BitMap64

from goqueue.base.offset_sets import pack
from goqueue.delivery.commands import Ack, GiveBack, Lapse, Nack, Reject, Retries, Settle
from goqueue.delivery.commands import Lease as LeaseThem
from goqueue.delivery.deliveries import Deliveries
from goqueue.delivery.records import Delivered, HeldLease, HeldTry, HeldWait, Postponed, encode
from goqueue.model.names import GroupNumber
from goqueue.model.topic import Backoff
from sim.checkers import Violation
from sim.checkers.delivered import Lease, Shown, Sight, show

GROUP = GroupNumber(1)
RETRIES = Retries(3, Backoff(base_ms=100), True)


def make(*commands: Any) -> Deliveries:
    deliveries = Deliveries()
    for command in commands:
        for record in deliveries.decide(command, 0).records:
            deliveries.apply(record, 0)
    return deliveries


def lease(first: int, end: int, poll: int) -> LeaseThem:
    offsets = BitMap64(range(first, end))
    return LeaseThem(group=GROUP, poll=poll, holder="m", start=0, offsets=offsets, span_ms=50, assignment_epoch=1)


def held(*offsets: int, poll: int = 7) -> HeldLease:
    return HeldLease(poll, "m", 50, 50, pack(BitMap64(offsets)))


def test_every_message_is_shown_where_it_is() -> None:
    nacked = Nack(GROUP, {8: BitMap64([2])}, RETRIES)
    deliveries = make(lease(0, 2, 7), lease(2, 5, 8), Settle(GROUP, 1), nacked, Ack(GROUP, {8: BitMap64([4])}))
    assert show(deliveries).groups == {
        GROUP: Shown(
            1,
            frozenset({4}),
            {1: Lease(7, "m", 50, 50), 3: Lease(8, "m", 50, 50)},
            {2: (100, 100)},
            frozenset(),
            {2: (1, 0)},
        )
    }


def test_the_dead_are_shown_with_their_letters() -> None:
    sight = show(make(lease(0, 2, 7), Reject(GROUP, {7: BitMap64([1])}, True)))
    assert sight.groups[GROUP].dead == {1}
    assert sight.groups[GROUP].tries == {1: (1, 0)}
    assert (sight.first_letter, sight.next_letter) == (0, 1)
    assert [(death.group, death.offset, death.deliveries) for death in sight.deaths] == [(GROUP, 1, 1)]


def test_what_was_cancelled_and_moved_is_shown() -> None:
    deliveries = Deliveries()
    deliveries.apply(encode(Postponed(pack(BitMap64([4])), ((5, 700),))), 0)
    assert show(deliveries) == Sight(cancelled=frozenset({4}), moved={5: 700})


def test_a_resting_group_is_its_low_mark() -> None:
    assert show(make(lease(0, 2, 7), Settle(GROUP, 2))).groups == {GROUP: Shown(2)}


def test_what_was_given_back_and_never_delivered_is_as_if_nothing_had_been() -> None:
    assert show(make(lease(0, 2, 7), GiveBack(GROUP, 0, 7))).groups == {GROUP: Shown(0)}


def test_what_lapsed_was_tried() -> None:
    assert show(make(lease(0, 1, 7), Lapse(GROUP, ((7, 50),), RETRIES))).groups[GROUP].tries == {0: (1, 7)}


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"leases": (held(0, 1), held(1, 2, poll=8))}, "leased twice"),
        ({"leases": (held(1),), "waits": (HeldWait(1, 1, pack(BitMap64([1]))),)}, "leased and waiting"),
        ({"leases": (held(1),), "dead": pack(BitMap64([1]))}, "leased and dead"),
        ({"leases": (held(2),), "settled": pack(BitMap64([2]))}, "settled and leased"),
        ({"low": 3, "tries": (HeldTry(2, 1, 0),)}, "settled and tried"),
        ({"waits": (HeldWait(1, 1, pack(BitMap64([1]))),)}, "never delivered"),
        ({"dead": pack(BitMap64([1])), "tries": (HeldTry(1, 1, 0),)}, "without a letter"),
    ],
)
def test_a_message_in_two_places_is_seen(more: dict[str, Any], what: str) -> None:
    fields: dict[str, Any] = {
        "low": 0,
        "settled": b"",
        "leases": (),
        "waits": (),
        "tries": (),
        "dead": pack(BitMap64()),
    } | more
    deliveries = Deliveries()
    deliveries.apply(encode(Delivered(GROUP, assignment_epoch=1, keys=(), **fields)), 0)
    with pytest.raises(Violation, match=what):
        show(deliveries)
