"""The checker of the delivery rigs: content with what a right broker does, and not with what a wrong one would do."""

from collections.abc import Sequence

import pytest

from tests.chaos.ledger import Lost, Phantom
from tests.support.delivery_ledger import (
    DONE,
    NOT_TOLD,
    STALE,
    Answered,
    AnyEvent,
    Asking,
    DeliveredAgain,
    Early,
    Ended,
    History,
    Letter,
    Place,
    Received,
    Refused,
    Rules,
    Sending,
    Sent,
    Uncounted,
    Verb,
    WrongLetter,
)

AT = Place(0, 7)
LEASE_MS = 100
RULES = Rules(("g",), max_retries=2)


def sent(*, at: int = 0, deliver_at: int = 0, answered: bool = True) -> list[AnyEvent]:
    """Message 1."""
    events: list[AnyEvent] = [Sending(at, 1, deliver_at=deliver_at)]
    return [*events, Sent(at + 1, 1, AT, deliver_at)] if answered else events


def got(at: int, deliveries: int = 1, *, asked_at: int | None = None, place: Place = AT) -> Received:
    asked_at = at - 1 if asked_at is None else asked_at
    return Received(at, asked_at, "g", 1, place, poll=deliveries, deliveries=deliveries, lease_ms=LEASE_MS)


def asked(
    at: int,
    verb: Verb,
    deliveries: int = 0,
    *,
    code: str | None = DONE,
    value: int = 0,
    visible_at: int | None = None,
    answered_at: int | None = None,
) -> list[AnyEvent]:
    """With a handle of that delivery; without a code it had no answer."""
    group = "g" if deliveries else ""
    asking = Asking(at, at, verb, 1, AT, group, deliveries, deliveries, value)
    return [asking] if code is None else [asking, Answered(answered_at or at + 1, at, code, visible_at)]


def acked(at: int, deliveries: int = 1, **more: str | None) -> list[AnyEvent]:
    return asked(at, Verb.ACK, deliveries, **more)  # type: ignore[arg-type]


def nacked(at: int, deliveries: int = 1, visible_at: int | None = None) -> list[AnyEvent]:
    return asked(at, Verb.NACK, deliveries, visible_at=visible_at)


def letter(reason: str = "rejected", deliveries: int = 1, *, group: str = "g", place: Place = AT) -> Letter:
    return Letter(group, 1, place, deliveries, reason)


def check(events: Sequence[AnyEvent], *letters: Letter) -> None:
    History(events, letters, RULES).check()


def three_times() -> list[AnyEvent]:
    """Delivered, nacked, delivered, lapsed, delivered."""
    return [*sent(), got(10), *nacked(20, visible_at=50), got(60, 2), got(200, 3)]


# --- what a right broker does


@pytest.mark.parametrize(
    ("events", "letters"),
    [
        ([*sent(), got(10), *acked(20)], []),
        ([*sent(), got(10), *acked(20, code=None)], []),
        ([*sent(), got(10), *acked(20, code=None), Ended(25), got(200, 2), *acked(210, 2)], []),
        ([*sent(answered=False)], []),
        ([*sent(answered=False), got(10), *acked(20)], []),
        ([*three_times(), *acked(210, 3)], []),
        ([*three_times(), *asked(210, Verb.REJECT, 3)], [letter("rejected", 3)]),
        ([*three_times(), *asked(210, Verb.REJECT, 3, code=None)], [letter("rejected", 3)]),
        ([*three_times(), *nacked(210, 3)], [letter("nacked", 3)]),
        ([*three_times()], [letter("lapsed", 3)]),
        ([*sent(deliver_at=500), *asked(10, Verb.CANCEL)], []),
        ([*sent(deliver_at=500), *asked(10, Verb.CANCEL, code=None)], []),
        ([*sent(deliver_at=500), *asked(10, Verb.CANCEL, code=None), got(501), *acked(510)], []),
        ([*sent(deliver_at=50), got(51), *asked(52, Verb.CANCEL, code="already_delivered"), *acked(60)], []),
        ([*sent(deliver_at=500), *asked(10, Verb.MOVE, value=30), got(30), *acked(40)], []),
        ([*sent(deliver_at=50), *asked(10, Verb.MOVE, value=500, code=None), got(50), *acked(60)], []),
        ([*sent(deliver_at=500), *asked(10, Verb.MOVE, value=50, code=None), got(50), *acked(60)], []),
    ],
)
def test_what_a_right_broker_does_is_right(events: list[AnyEvent], letters: list[Letter]) -> None:
    check(events, *letters)


def test_a_handle_that_may_have_lapsed_may_be_refused() -> None:
    check([*sent(), got(10, asked_at=5), *acked(106, code=STALE), got(110, 2), *acked(120, 2)])


def test_who_is_not_told_what_became_of_a_nack_may_get_the_message_again_or_not() -> None:
    nack = nacked(210, 3, visible_at=NOT_TOLD)
    check([*three_times(), *nack], letter("nacked", 3))
    check([*sent(), got(10), *nacked(20, visible_at=NOT_TOLD), got(30, 2), *acked(40, 2)])


def test_a_reply_of_before_may_be_read_after_the_ack_of_a_later_delivery() -> None:
    check([*sent(), got(300, 2, asked_at=150), *acked(310, 2), got(320, 1, asked_at=5)])


def test_a_lease_that_was_extended_may_end_when_it_says() -> None:
    extend = asked(50, Verb.EXTEND, 1, value=400)
    check([*sent(), got(10), *extend, got(450, 2), *acked(460, 2)])


def test_a_power_cut_forgets_leases_and_counts() -> None:
    check([*sent(), got(10), Ended(15, forgets=True), got(20, asked_at=17), *acked(30)])


def test_what_was_lost_with_the_power_may_be_published_again_in_the_same_place() -> None:
    lost = [*sent(answered=False), got(10), *acked(20), Ended(30, forgets=True)]
    check([*lost, got(40), *acked(50)])
    with pytest.raises(DeliveredAgain):
        check([*sent(), got(10), *acked(20), Ended(30, forgets=True), got(40), *acked(50)])


def test_what_had_no_answer_may_be_lost_with_the_power_after_it_was_rejected() -> None:
    rejected = [*sent(answered=False), got(10), *asked(20, Verb.REJECT, 1)]
    check([*rejected, Ended(30, forgets=True)])
    with pytest.raises(WrongLetter):
        check([*rejected, Ended(30)])


# --- what a wrong one would do


@pytest.mark.parametrize("verb", [Verb.ACK, Verb.REJECT, Verb.NACK])
def test_what_was_settled_must_not_come_again(verb: Verb) -> None:
    settled = [*sent(), got(10), *asked(20, verb, 1)]
    with pytest.raises(DeliveredAgain, match="settled by"):
        check([*settled, got(300, 2)], letter())
    with pytest.raises(DeliveredAgain, match="settled by"):
        check([*settled, Ended(25, forgets=True), got(300, 1)], letter())


@pytest.mark.parametrize("at", [300, 600])
def test_what_was_cancelled_must_not_come(at: int) -> None:
    with pytest.raises(DeliveredAgain, match="was cancelled"):
        check([*sent(deliver_at=200), *asked(100, Verb.CANCEL), got(at), *acked(at + 10)])


def test_what_was_delivered_cannot_be_cancelled() -> None:
    with pytest.raises(DeliveredAgain, match="was cancelled"):
        check([*sent(deliver_at=50), got(60), *asked(70, Verb.CANCEL), *acked(80)])


def test_a_delayed_message_must_not_come_early() -> None:
    with pytest.raises(Early, match="1 ms after"):
        check([*sent(deliver_at=50), got(49), *acked(60)])


def test_a_delayed_message_without_an_answer_must_not_come_early_either() -> None:
    with pytest.raises(Early):
        check([*sent(deliver_at=50, answered=False), got(49), *acked(60)])


def test_a_moved_message_must_not_come_at_its_old_time() -> None:
    with pytest.raises(Early):
        check([*sent(deliver_at=50), *asked(10, Verb.MOVE, value=500), got(60), *acked(70)])


def test_a_move_that_was_refused_changes_nothing() -> None:
    with pytest.raises(Early):
        check([*sent(deliver_at=50), *asked(10, Verb.MOVE, value=20, code="already_delivered"), got(40), *acked(60)])


def test_a_retry_must_not_come_before_the_time_that_was_told() -> None:
    with pytest.raises(Early):
        check([*sent(), got(10), *nacked(20, visible_at=50), got(40, 2), *acked(60, 2)])


def test_deliveries_must_be_counted() -> None:
    again = Received(300, 299, "g", 1, AT, poll=9, deliveries=1, lease_ms=LEASE_MS)
    with pytest.raises(Uncounted, match="two deliveries"):
        check([*sent(), got(10), again, *acked(310)])


@pytest.mark.parametrize("deliveries", [0, 4])
def test_there_must_not_be_more_deliveries_than_the_topic_allows(deliveries: int) -> None:
    with pytest.raises(Uncounted, match="at most 3"):
        check([*three_times(), got(400, deliveries), *acked(410, deliveries or 3)])


def test_nobody_must_be_given_what_another_one_has() -> None:
    with pytest.raises(DeliveredAgain, match="lasts"):
        check([*sent(), got(10), got(50, 2), *acked(60, 2)])
    extend = asked(20, Verb.EXTEND, 1, value=400)
    with pytest.raises(DeliveredAgain, match="lasts"):
        check([*sent(), got(10), *extend, got(200, 2), *acked(210, 2)])


@pytest.mark.parametrize("verb", [Verb.ACK, Verb.NACK, Verb.REJECT, Verb.EXTEND])
def test_a_good_handle_must_not_be_refused(verb: Verb) -> None:
    with pytest.raises(Refused, match="lasts"):
        check([*sent(), got(10), *asked(20, verb, 1, code=STALE), got(200, 2), *acked(210, 2)])


def test_a_handle_must_not_be_refused_for_another_reason() -> None:
    with pytest.raises(Refused):
        check([*sent(), got(10), *acked(20, code="internal"), got(200, 2), *acked(210, 2)])


@pytest.mark.parametrize(
    "letters",
    [
        [letter(), letter()],
        [letter("nacked")],
        [letter("lapsed")],
        [letter("expired")],
        [letter(place=Place(0, 8))],
        [letter(group="other")],
        [],
    ],
)
def test_a_dead_letter_must_be_there_once_and_for_a_reason(letters: list[Letter]) -> None:
    with pytest.raises(WrongLetter):
        check([*sent(), got(10), *asked(20, Verb.REJECT, 1)], *letters)


def test_what_was_acked_must_not_be_dead() -> None:
    with pytest.raises(WrongLetter, match="was acked"):
        check([*three_times(), *acked(210, 3)], letter("lapsed", 3))


def test_what_was_never_delivered_must_not_be_dead() -> None:
    with pytest.raises(WrongLetter, match="was never delivered"):
        check([*sent(deliver_at=500), *asked(5, Verb.CANCEL)], letter("lapsed", 3))


@pytest.mark.parametrize(
    "events",
    [
        [],
        [got(10)],
        [got(10), *nacked(20, visible_at=50)],
        [got(10), *acked(200, code=STALE)],
        [got(10), *asked(20, Verb.EXTEND, 1, value=200)],
    ],
)
def test_what_is_neither_acked_nor_dead_nor_cancelled_is_lost(events: list[AnyEvent]) -> None:
    with pytest.raises(Lost):
        check([*sent(), *events])


def test_what_only_one_group_was_delivered_is_lost_to_the_other() -> None:
    with pytest.raises(Lost, match="to group h"):
        History([*sent(), got(10), *acked(20)], [], Rules(("g", "h"), max_retries=2)).check()


def test_a_cancel_that_was_refused_loses_the_message() -> None:
    with pytest.raises(Lost):
        check([*sent(deliver_at=500), *asked(10, Verb.CANCEL, code="unknown_delay")])


@pytest.mark.parametrize(
    "events",
    [
        [got(10), *acked(20)],
        [*sent(), got(10, place=Place(1, 7)), *acked(20)],
        [*sent(answered=False), got(10), got(200, 2, place=Place(1, 0)), *acked(210, 2)],
        [Sending(0, 1, lane=4), Sent(1, 1, AT), got(10), *acked(20)],
        [Sending(0, 1, key="a"), Sent(1, 1, AT), got(10), *acked(20)],
    ],
)
def test_what_is_delivered_must_be_what_was_published(events: list[AnyEvent]) -> None:
    with pytest.raises(Phantom):
        check(events)


def test_a_dead_letter_may_be_published_again_and_is_then_another_message() -> None:
    dead = [*sent(), got(10), *asked(20, Verb.REJECT, 1)]
    again = Place(2, 0)
    copy = got(300, place=again)
    ack: list[AnyEvent] = [Asking(310, 310, Verb.ACK, 1, again, "g", 1, 1), Answered(311, 310)]
    rules = RULES._replace(redriven=True)
    History([*dead, copy, *ack], [letter()], rules).check()
    with pytest.raises(Lost, match="neither acked"):
        History([*dead, copy], [letter()], rules).check()
    with pytest.raises(Phantom, match="1 letters"):
        History([*dead, copy, *ack, got(500, place=Place(2, 1))], [letter()], rules).check()
    with pytest.raises(Phantom, match="0 letters"):
        History([*dead, copy, *ack], [letter()], RULES).check()
    with pytest.raises(Lost, match="1 letters"):
        History(dead, [letter()], rules).check()


def test_requests_without_an_answer_are_counted() -> None:
    events = [*sent(), Sending(5, 2), got(10), *acked(20, code=None), *nacked(30)]
    history = History(events, [], RULES)
    assert history.unanswered(0, 100) == 2
    assert history.unanswered(6, 19) == 0
    assert [history.done(verb) for verb in (Verb.ACK, Verb.NACK)] == [0, 1]
