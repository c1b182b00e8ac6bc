"""The ledger of the groups room: what was leased and settled, what is promised for good, and what a crash may undo."""

from typing import Any

import msgspec
import pytest
from pyroaring import BitMap64

from goqueue.delivery.commands import (
    Bury,
    Cancel,
    Forget,
    GiveBack,
    Lapse,
    Lease,
    Move,
    Nack,
    Open,
    Reject,
    ResetTo,
    Retries,
    Settle,
    Start,
)
from goqueue.delivery.records import HeldDeath, Reason
from goqueue.groups.group import Part
from goqueue.model.dead_letters import DeadLetter, pack_dead_letter
from goqueue.model.limits import OWN_PRODUCERS
from goqueue.model.names import GroupNumber, TopicId
from goqueue.model.record import Extension, Producer, Record
from goqueue.model.topic import Backoff
from sim.checkers import (
    Violation,
    attempts,
    cancelled,
    delivered,
    drained,
    early,
    kept,
    leases,
    letters,
    marks,
    on_time,
    order,
    remembered,
    survivors,
    worked,
)
from sim.checkers.delivered import Shown, Sight
from sim.rooms.ledger import Account, Ledger, Message, Value
from sim.rooms.places import Moment

PART = Part(TopicId(1), 0)
GROUP = GroupNumber(1)
AT = Moment(1000, 10)
RETRIES = Retries(1, Backoff(base_ms=100), True)


def make(messages: int = 6, **more: Any) -> Ledger:
    """Messages 1, 2, 3... at offsets 0, 1, 2..."""
    ledger = Ledger()
    ledger.publish(PART, [ledger.new_value(Message(**more)) for _ in range(messages)], AT)
    return ledger


def write(ledger: Ledger, command: Any, *, position: int = 1, low: int = 0) -> list[Value]:
    """What somebody has settled by it."""
    ledger.begin(PART, command, AT)
    lows = {} if isinstance(command, Forget) else {GROUP: low}
    return ledger.end(PART, position, lows, AT).settled


def lease(first: int, end: int, poll: int) -> Lease:
    offsets = BitMap64(range(first, end))
    return Lease(group=GROUP, poll=poll, holder="m", start=0, offsets=offsets, span_ms=50)


def account(ledger: Ledger) -> Account:
    return ledger.accounts[GROUP, PART]


def shown(low: int, *, leased: dict[int, int] | None = None, **more: Any) -> Shown:
    by_poll = {offset: delivered.Lease(poll, "m", 1050, 50) for offset, poll in (leased or {}).items()}
    return Shown(low, leased=by_poll, **more)


def test_what_is_given_back_taken_back_or_put_elsewhere_is_not_leased() -> None:
    ledger = make()
    write(ledger, lease(0, 2, 7))
    write(ledger, lease(2, 4, 8))
    write(ledger, GiveBack(GROUP, 7, 100))
    assert sorted(account(ledger).places.held) == [0, 1]
    write(ledger, Open(GROUP, 2))
    assert not account(ledger).places.held
    write(ledger, lease(0, 2, 9))
    write(ledger, ResetTo(GROUP, 3))
    assert not account(ledger).places.held


def test_what_is_refused_changes_nothing() -> None:
    ledger = make()
    ledger.begin(PART, lease(0, 2, 7), AT)
    ledger.refused(PART)
    assert not account(ledger).places.held
    assert not ledger.doubts


def test_a_promise_outlives_a_kill_and_a_power_cut_only_if_it_was_durable() -> None:
    ledger = make()
    write(ledger, lease(0, 6, 7))
    assert write(ledger, Settle(GROUP, 2), position=5, low=2) == [1, 2]
    write(ledger, Settle(GROUP, 4), position=6, low=4)
    write(ledger, Settle(GROUP, 6), position=7, low=6)
    ledger.answered(GROUP, PART, [Value(6)])
    ledger.crashed("kill", {PART: 5})
    assert sorted(account(ledger).promised) == [1, 2, 3, 4, 5, 6]
    ledger.crashed("power", {PART: 5})
    assert sorted(account(ledger).promised) == [1, 2, 6]


def test_the_low_mark_may_fall_to_what_was_durable_but_no_further() -> None:
    ledger = make()
    write(ledger, lease(0, 6, 7), position=4)
    write(ledger, Settle(GROUP, 2), position=5, low=2)
    write(ledger, Settle(GROUP, 4), position=6, low=4)
    with pytest.raises(Violation, match="marks"):
        marks.check(ledger, GROUP, PART, shown(3))
    ledger.crashed("power", {PART: 5})
    marks.check(ledger, GROUP, PART, shown(2))
    with pytest.raises(Violation, match="marks"):
        marks.check(ledger, GROUP, PART, shown(1))


def test_the_low_mark_may_fall_with_the_messages_themselves() -> None:
    ledger = make()
    write(ledger, lease(0, 6, 7), position=4)
    write(ledger, Settle(GROUP, 6), position=5, low=6)
    ledger.crashed("power", {PART: 5})
    ledger.reread(PART, 0, {0: Value(1)}, 1)
    marks.check(ledger, GROUP, PART, shown(1))


def test_a_reset_in_doubt_may_have_happened() -> None:
    ledger = make()
    write(ledger, lease(0, 6, 7), position=4)
    write(ledger, Settle(GROUP, 6), position=5, low=6)
    ledger.begin(PART, ResetTo(GROUP, 3), AT)
    ledger.crashed("kill", {PART: 5})
    marks.check(ledger, GROUP, PART, shown(3))
    kept.check(ledger, GROUP, PART, shown(3))
    remembered.check(ledger, GROUP, PART, shown(3), now=10)
    with pytest.raises(Violation, match="kept"):
        kept.check(ledger, GROUP, PART, shown(2))
    with pytest.raises(Violation, match="remembered"):
        remembered.check(ledger, GROUP, PART, shown(2), now=10)


def test_a_lease_in_doubt_is_known_as_a_whole_or_not_at_all() -> None:
    ledger = make()
    write(ledger, lease(0, 2, 7))
    ledger.begin(PART, lease(2, 4, 8), AT)
    ledger.crashed("kill", {})
    leases.check(ledger, GROUP, PART, shown(0, leased={0: 7, 1: 7}))
    leases.check(ledger, GROUP, PART, shown(0, leased={0: 7, 1: 7, 2: 8, 3: 8}))
    with pytest.raises(Violation, match="leases"):
        leases.check(ledger, GROUP, PART, shown(0, leased={0: 7, 1: 7, 2: 8}))


def test_a_new_message_at_the_offset_of_a_lost_one_is_not_settled() -> None:
    ledger = make(1)
    write(ledger, lease(0, 1, 7))
    ledger.worked[GROUP].add(Value(1))
    write(ledger, Settle(GROUP, 1), low=1)
    worked.check(ledger, GROUP, PART, shown(1))
    ledger.crashed("power", {PART: 1})
    ledger.reread(PART, 0, {}, 0)
    ledger.publish(PART, [ledger.new_value()], AT)
    with pytest.raises(Violation, match="born settled"):
        worked.check(ledger, GROUP, PART, shown(1))


def test_a_group_that_began_behind_a_message_need_not_be_delivered_it() -> None:
    ledger = make(2)
    write(ledger, Start(GROUP, 1), low=1)
    worked.check(ledger, GROUP, PART, shown(1))
    ledger.received[GROUP].add(Value(2))
    drained.check(ledger, GROUP, PART, shown(2))
    with pytest.raises(Violation, match="not settled"):
        drained.check(ledger, GROUP, PART, shown(1))


def test_what_retention_took_is_missed_by_nobody() -> None:
    ledger = make(2)
    ledger.retain(PART, 2)
    drained.check(ledger, GROUP, PART, None)


def test_a_group_that_is_deleted_leaves_nothing() -> None:
    ledger = make()
    write(ledger, lease(0, 6, 7))
    write(ledger, Forget(GROUP))
    assert (GROUP, PART) not in ledger.accounts


# --- retries


def test_a_failed_delivery_is_counted_once_and_no_more_are_made_than_allowed() -> None:
    ledger = make()
    write(ledger, lease(0, 1, 7))
    write(ledger, Lapse(GROUP, ((7, 1050),), RETRIES))
    attempts.check_delivery(ledger, GROUP, PART, 0, told=2, max_retries=1)
    attempts.check(ledger, GROUP, PART, shown(0, tries={0: (1, 7)}), exact=True)
    with pytest.raises(Violation, match="it failed 1 times"):
        attempts.check_delivery(ledger, GROUP, PART, 0, told=1, max_retries=1)
    with pytest.raises(Violation, match="there are 0 retries"):
        attempts.check_delivery(ledger, GROUP, PART, 0, told=2, max_retries=0)
    with pytest.raises(Violation, match="failed 2 times"):
        attempts.check(ledger, GROUP, PART, shown(0, tries={0: (2, 7)}), exact=True)


def test_a_power_cut_may_take_counts_away_but_adds_none() -> None:
    ledger = make()
    write(ledger, lease(0, 1, 7))
    write(ledger, Lapse(GROUP, ((7, 1050),), RETRIES))
    attempts.check(ledger, GROUP, PART, shown(0), exact=False)
    with pytest.raises(Violation, match="failed 3 times"):
        attempts.check(ledger, GROUP, PART, shown(0, tries={0: (3, 7)}), exact=False)


def test_a_retry_does_not_come_before_its_wait_is_over() -> None:
    ledger = make()
    write(ledger, lease(0, 1, 7))
    write(ledger, Nack(GROUP, {7: BitMap64([0])}, RETRIES))
    early.check_delivery(ledger, GROUP, PART, 0, Moment(1100, 110))
    with pytest.raises(Violation, match="early"):
        early.check_delivery(ledger, GROUP, PART, 0, Moment(9000, 109))


def test_a_lease_lapses_when_it_is_time() -> None:
    ledger = make()
    write(ledger, lease(0, 1, 7))
    command = Lapse(GROUP, ((7, 1050),), RETRIES)
    on_time.check(ledger, PART, 59)
    on_time.check_lapse(ledger, PART, command, 60)
    with pytest.raises(Violation, match="on time"):
        on_time.check_lapse(ledger, PART, command, 59)
    with pytest.raises(Violation, match="on time"):
        on_time.check(ledger, PART, 60)


# --- dead letters


def letter(offset: int, value: int) -> Record:
    story = DeadLetter(
        topic="a",
        topic_id=1,
        partition=0,
        offset=offset,
        group="g",
        group_number=GROUP,
        reason="rejected",
        deliveries=1,
        published_at=0,
        died_at=0,
    )
    return numbered(Record(value=b"%d" % value, extension=Extension(blob=pack_dead_letter(story))), offset)


def numbered(record: Record, number: int) -> Record:
    extension = msgspec.structs.replace(record.extension or Extension(), producer=Producer(OWN_PRODUCERS, 0, number))
    return msgspec.structs.replace(record, extension=extension)


def with_two_dead() -> Ledger:
    ledger = make()
    write(ledger, lease(0, 2, 7))
    write(ledger, Reject(GROUP, {7: BitMap64([0, 1])}, True), position=5)
    return ledger


def test_the_log_of_dead_letters_is_what_died_in_order() -> None:
    ledger = with_two_dead()
    letters.check_log(ledger, PART, [], 0)
    letters.check_log(ledger, PART, [letter(0, 1), letter(1, 2)], 2)
    for wrong in ([letter(0, 1)] * 2, [letter(1, 2)], [letter(0, 9)], [letter(0, 1), letter(1, 2), letter(1, 2)]):
        with pytest.raises(Violation, match="letters"):
            letters.check_log(ledger, PART, wrong, 0)


def test_only_damage_takes_letters_away() -> None:
    ledger = with_two_dead()
    letters.check_log(ledger, PART, [letter(0, 1)], 2, damaged=1)
    letters.check_log(ledger, PART, [letter(1, 2)], 0, damaged=1)
    letters.check_log(ledger, PART, [], 2, damaged=2)
    for wrong in ([letter(1, 2), letter(0, 1)], [letter(1, 2)] * 2):
        with pytest.raises(Violation, match="each there once"):
            letters.check_log(ledger, PART, wrong, 2, damaged=2)
    with pytest.raises(Violation, match="letters"):
        letters.check_log(ledger, PART, [], 2, damaged=1)


def test_nothing_is_buried_before_it_is_written() -> None:
    with pytest.raises(Violation, match="2 are buried"):
        letters.check_log(with_two_dead(), PART, [letter(0, 1)], 2)


def test_a_letter_without_its_message_is_right_only_if_that_is_gone() -> None:
    ledger = with_two_dead()
    gone = numbered(Record(key=b"gone", control=True), 0)
    with pytest.raises(Violation, match="letters"):
        letters.check_log(ledger, PART, [gone], 0)
    ledger.retain(PART, 1)
    letters.check_log(ledger, PART, [gone], 0)


def test_what_died_for_sure_is_to_be_written() -> None:
    ledger = with_two_dead()
    deaths = tuple(HeldDeath(GROUP, offset, Reason.REJECTED, 1, 0, "", False) for offset in (0, 1))
    letters.check_outbox(ledger, PART, Sight(deaths=deaths), durable=None)
    letters.check_outbox(ledger, PART, Sight(), durable=4)
    with pytest.raises(Violation, match="died for sure"):
        letters.check_outbox(ledger, PART, Sight(), durable=5)
    with pytest.raises(Violation, match="letter 0"):
        letters.check_outbox(ledger, PART, Sight(deaths=deaths[::-1]), durable=None)


def test_who_is_buried_is_settled() -> None:
    ledger = with_two_dead()
    assert account(ledger).places.dead == {0, 1}
    write(ledger, Bury(1))
    assert (account(ledger).places.dead, account(ledger).places.done) == ({1}, {0})


# --- delayed messages


def test_a_delayed_message_does_not_come_before_its_time_on_the_wall_or_really() -> None:
    ledger = make(1, deliver_at=1500)
    early.check_delivery(ledger, GROUP, PART, 0, Moment(1500, 510))
    for moment in (Moment(1499, 9000), Moment(9000, 500)):
        with pytest.raises(Violation, match="early"):
            early.check_delivery(ledger, GROUP, PART, 0, moment)


def test_what_was_due_when_the_clock_was_set_back_is_due() -> None:
    ledger = make(1, deliver_at=1500)
    ledger.step(Moment(1500, 510))
    early.check_delivery(ledger, GROUP, PART, 0, Moment(600, 511))


def test_a_moved_message_is_due_at_its_new_time() -> None:
    ledger = make(1, deliver_at=1500)
    write(ledger, Move(BitMap64([0]), 2000), position=5)
    with pytest.raises(Violation, match="early"):
        early.check_delivery(ledger, GROUP, PART, 0, Moment(1500, 510))
    early.check(ledger, PART, Sight(moved={0: 2000}), durable=None)
    early.check(ledger, PART, Sight(), durable=4)
    with pytest.raises(Violation, match="is due at 1500"):
        early.check(ledger, PART, Sight(), durable=5)


def test_a_cancelled_message_stays_so_and_comes_to_nobody() -> None:
    ledger = make(2, deliver_at=1500)
    write(ledger, Cancel(BitMap64([0])), position=5)
    cancelled.check(ledger, PART, Sight(cancelled=frozenset({0})), durable=None)
    cancelled.check(ledger, PART, Sight(), durable=4)
    with pytest.raises(Violation, match="was cancelled"):
        cancelled.check(ledger, PART, Sight(), durable=5)
    with pytest.raises(Violation, match="nobody asked"):
        cancelled.check(ledger, PART, Sight(cancelled=frozenset({0, 1})), durable=None)
    with pytest.raises(Violation, match="is delivered"):
        cancelled.check_delivery(ledger, GROUP, PART, 0)
    cancelled.check_delivery(ledger, GROUP, PART, 1)


def test_a_message_that_could_not_be_cancelled_is_not() -> None:
    ledger = make(1, deliver_at=1500)
    ledger.begin(PART, Cancel(BitMap64([0])), AT)
    ledger.end(PART, 1, {}, AT, left=[0])
    cancelled.check(ledger, PART, Sight(), durable=None)


def test_what_is_delayed_outlives_retention_until_it_is_due() -> None:
    ledger = make(2, deliver_at=1500)
    write(ledger, Move(BitMap64([0]), 2000))
    survivors.check(ledger, PART, {0}, wall=1500)
    for left, wall in (({0}, 1499), ({1}, 1500)):
        with pytest.raises(Violation, match="survivors"):
            survivors.check(ledger, PART, left, wall=wall)
    write(ledger, Cancel(BitMap64([0])))
    survivors.check(ledger, PART, {1}, wall=1500)


# --- order


def test_a_key_is_delivered_in_order_and_one_at_a_time() -> None:
    ledger = make(3, key=b"k")
    order.check_keys(ledger, GROUP, PART, {0})
    for wrong in ({1}, {0, 1}):
        with pytest.raises(Violation, match="order"):
            order.check_keys(ledger, GROUP, PART, wrong)
    write(ledger, lease(0, 1, 7))
    with pytest.raises(Violation, match="under way"):
        order.check_keys(ledger, GROUP, PART, {1})
    write(ledger, Settle(GROUP, 1), low=1)
    order.check_keys(ledger, GROUP, PART, {1})


def test_other_keys_and_none_do_not_wait() -> None:
    ledger = make(2)
    order.check_keys(ledger, GROUP, PART, {1})


def test_new_messages_of_a_lane_come_in_order() -> None:
    ledger = make(3)
    order.check_lanes(ledger, GROUP, PART, {0, 1})
    with pytest.raises(Violation, match="of the same lane"):
        order.check_lanes(ledger, GROUP, PART, {1})
    write(ledger, lease(0, 1, 7))
    write(ledger, GiveBack(GROUP, 0, 7))
    order.check_lanes(ledger, GROUP, PART, {1})
