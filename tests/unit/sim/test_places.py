"""What commands do to the places of messages, the plain way; and what the checkers see that use it."""

from typing import Any

import pytest
from pyroaring import BitMap64

from goqueue.delivery.commands import (
    Abandon,
    Ack,
    Expire,
    Extend,
    GiveBack,
    GiveUp,
    Lapse,
    Lease,
    Nack,
    Open,
    Reject,
    ResetTo,
    Retries,
    Settle,
    Skip,
)
from goqueue.groups.group import Part
from goqueue.model.names import GroupNumber, TopicId
from goqueue.model.topic import Backoff
from sim.checkers import Violation, handles
from sim.rooms.places import Moment, Places, Tried, Waiting

GROUP = GroupNumber(1)
PART = Part(TopicId(1), 0)
AT = Moment(1000, 10)
RETRIES = Retries(1, Backoff(base_ms=100), True)


def lease(*offsets: int, poll: int = 7, holder: str = "m", start: int = 0) -> Lease:
    return Lease(group=GROUP, poll=poll, holder=holder, start=start, offsets=BitMap64(offsets), span_ms=50)


def claims(*offsets: int, poll: int = 7) -> dict[int, BitMap64]:
    return {poll: BitMap64(offsets)}


def lapse(poll: int = 7) -> Lapse:
    return Lapse(GROUP, ((poll, 1050),), RETRIES)


def make(*commands: Any) -> Places:
    places = Places()
    for command in commands:
        places.do(command, AT)
    return places


def test_a_commit_settles_what_polls_it_speaks_of_were_delivered_below() -> None:
    places = make(lease(0, 1, 2), lease(3, 4, poll=8))
    assert places.do(Settle(GROUP, 4, 7), AT).settled == [0, 1, 2]
    assert places.do(Settle(GROUP, 4), AT).settled == [3]
    assert (sorted(places.held), places.done) == ([4], {0, 1, 2, 3})


def test_a_commit_of_one_who_shares_settles_its_own() -> None:
    places = make(lease(0), lease(1, poll=8, holder="other"))
    assert places.do(Settle(GROUP, 5, 9, "m"), AT).settled == [0]


def test_a_handle_is_good_after_its_lease_lapsed_until_the_message_comes_again() -> None:
    places = make(lease(0, 1), lapse(), lease(1, poll=8))
    assert places.do(Ack(GROUP, claims(0, 1)), AT).settled == [0]
    assert places.do(Ack(GROUP, claims(1, poll=8)), AT).settled == [1]


def test_what_is_nacked_waits_and_has_no_handle() -> None:
    places = make(lease(0), Nack(GROUP, claims(0), RETRIES))
    assert places.waiting == {0: Waiting(1100, 100, 110)}
    assert places.tries == {0: Tried(1, 0)}
    assert not places.do(Ack(GROUP, claims(0)), AT).settled


def test_what_failed_too_often_dies_or_is_dropped() -> None:
    places = make(lease(0, 1), lapse(), lease(0, 1, poll=8))
    assert places.do(Nack(GROUP, claims(0, poll=8), RETRIES), AT).doomed == [(0, 2)]
    assert places.do(Nack(GROUP, claims(1, poll=8), RETRIES._replace(dead_letters=False)), AT).dropped == [1]
    assert (places.dead, places.done) == ({0}, {1})
    places.bury([0])
    assert places == Places(done={0, 1})


def test_what_was_not_received_was_not_delivered() -> None:
    places = make(lease(0, 1), lapse(), lease(1, poll=8), GiveBack(GROUP, 6, 7))
    assert (list(places.held), places.tries) == ([1], {1: Tried(1, 7)})
    places.do(GiveBack(GROUP, 6, 8), AT)
    assert places == Places()


def test_who_loses_its_partition_or_is_gone_loses_what_it_holds() -> None:
    places = make(lease(0), lease(1, poll=8, holder="other"), Abandon(GROUP, "m"))
    assert (list(places.held), places.tries) == ([1], {0: Tried(1, 0)})
    places.do(Open(GROUP, 2), AT)
    assert places.tries == {0: Tried(1, 0), 1: Tried(1, 0)}


def test_an_extended_lease_lapses_later() -> None:
    places = make(lease(0, 1), Extend(GROUP, claims(1), 500))
    assert [held.due for held in places.held.values()] == [60, 510]
    places.do(lapse(), AT)
    assert list(places.held) == [1]


def test_what_is_rejected_expired_or_given_up_dies() -> None:
    places = make(lease(0), Reject(GROUP, claims(0), True), Expire(GROUP, BitMap64([1]), True))
    places.do(GiveUp(GROUP, BitMap64([2]), False), AT)
    places.do(Skip(GROUP, 3, 5), AT)
    assert (places.dead, places.count(0), places.done) == ({0, 1}, 1, {2, 3, 4})


def test_retention_ends_what_was_tried_and_a_reset_everything() -> None:
    places = make(lease(0, 1), lapse(), lease(5, start=1))
    assert list(places.tries) == [1]
    places.do(ResetTo(GROUP, 2), AT)
    assert places == Places(done={0, 1})


def test_a_hold_of_an_earlier_life_lasts_no_longer_than_it_was_to() -> None:
    assert AT.again(until=1030, span_ms=50) == 40
    assert AT.again(until=9000, span_ms=50) == 60
    assert AT.again(until=900, span_ms=50) == 10


def test_a_handle_that_is_taken_or_refused_wrongly_is_seen() -> None:
    places = make(lease(0, 1), Nack(GROUP, claims(1), RETRIES))
    handles.check(places, PART, claims(0, 1), claims(1), lapsed=True)
    with pytest.raises(Violation, match="refused"):
        handles.check(places, PART, claims(0), claims(0), lapsed=True)
    with pytest.raises(Violation, match="taken"):
        handles.check(places, PART, claims(1), {}, lapsed=True)
    with pytest.raises(Violation, match="taken"):
        handles.check(places, PART, claims(0, poll=6), {}, lapsed=True)
