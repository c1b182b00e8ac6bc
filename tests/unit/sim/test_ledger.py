"""The ledger of the groups room: what was leased and settled, what is promised for good, and what a crash may undo."""

from typing import Any

import pytest

from goqueue.delivery.deliveries import Forget, GiveBack, Lease, Open, ResetTo, Settle, Start
from goqueue.groups.group import Part
from goqueue.model.names import GroupNumber, TopicId
from sim.checkers import Violation, drained, kept, leases, marks, worked
from sim.checkers.delivered import Shown
from sim.rooms.ledger import Account, Ledger, Value

PART = Part(TopicId(1), 0)
GROUP = GroupNumber(1)


def make(messages: int = 6) -> Ledger:
    """Messages 1, 2, 3... at offsets 0, 1, 2..."""
    ledger = Ledger()
    ledger.contents[PART].append(ledger.new_value() for _ in range(messages))
    return ledger


def write(ledger: Ledger, command: Any, *, position: int = 1, low: int = 0) -> list[Value]:
    ledger.begin(PART, command)
    return ledger.end(PART, command, position, low)


def lease(first: int, end: int, poll: int) -> Lease:
    return Lease(GROUP, 1, poll, 0, ((first, end),))


def account(ledger: Ledger) -> Account:
    return ledger.accounts[GROUP, PART]


def shown(low: int, *, cursor: int | None = None, leased: dict[int, int] | None = None) -> Shown:
    return Shown(low, low if cursor is None else cursor, frozenset(), leased or {}, frozenset())


def test_settling_takes_what_is_leased_below_an_offset_by_polls_that_are_meant() -> None:
    ledger = make()
    write(ledger, lease(0, 3, 7))
    write(ledger, lease(3, 5, 8))
    assert write(ledger, Settle(GROUP, 4, 7)) == [1, 2, 3]
    assert sorted(account(ledger).held) == [3, 4]
    assert write(ledger, Settle(GROUP, 4)) == [4]


def test_what_is_given_back_taken_back_or_put_elsewhere_is_not_leased() -> None:
    ledger = make()
    write(ledger, lease(0, 2, 7))
    write(ledger, lease(2, 4, 8))
    write(ledger, GiveBack(GROUP, 7, 100))
    assert sorted(account(ledger).held) == [0, 1]
    write(ledger, Open(GROUP, 2))
    assert not account(ledger).held
    write(ledger, lease(0, 2, 9))
    write(ledger, ResetTo(GROUP, 3))
    assert not account(ledger).held


def test_a_promise_outlives_a_kill_and_a_power_cut_only_if_it_was_durable() -> None:
    ledger = make()
    write(ledger, lease(0, 6, 7))
    write(ledger, Settle(GROUP, 2), position=5, low=2)
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
    ledger.begin(PART, ResetTo(GROUP, 3))
    ledger.crashed("kill", {PART: 5})
    marks.check(ledger, GROUP, PART, shown(3))
    kept.check(ledger, GROUP, PART, shown(3))
    with pytest.raises(Violation, match="kept"):
        kept.check(ledger, GROUP, PART, shown(2))


def test_a_lease_in_doubt_is_known_as_a_whole_or_not_at_all() -> None:
    ledger = make()
    write(ledger, lease(0, 2, 7))
    ledger.begin(PART, lease(2, 4, 8))
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
    ledger.contents[PART].append([ledger.new_value()])
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
    ledger.contents[PART].forget(2)
    drained.check(ledger, GROUP, PART, None)


def test_a_group_that_is_deleted_leaves_nothing() -> None:
    ledger = make()
    write(ledger, lease(0, 6, 7))
    write(ledger, Forget(GROUP))
    assert (GROUP, PART) not in ledger.accounts
