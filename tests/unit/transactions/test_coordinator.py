"""The coordinator: who may write in a transaction, and what is decided about it."""

from typing import Any

import pytest

from goqueue.model import limits
from goqueue.model.errors import (
    Busy,
    Conflict,
    DamagedData,
    InvalidRequest,
    ProducerFenced,
    StaleToken,
    TransactionAborted,
    UnknownProducer,
    UnknownTransaction,
)
from goqueue.model.transactions import AbortReason, TransactionState
from goqueue.transactions import coordinator
from goqueue.transactions.commands import (
    Abort,
    Commit,
    CommitMany,
    Committed,
    Complete,
    ForgetIdle,
    Identity,
    Start,
    Stop,
)
from goqueue.transactions.coordinator import Transactions, Writer
from tests.unit.transactions.script import HERE, NOW, begin, do, identify, restored

ONGOING, COMMITTING, ABORTING, COMMITTED, ABORTED = TransactionState


@pytest.fixture
def machine() -> Transactions:
    return Transactions()


def many(name: str, token: int, *numbers: int) -> CommitMany:
    return CommitMany(name=name, token=token, numbers=numbers, participants=HERE)


def state(machine: Transactions, number: int) -> TransactionState:
    return machine.transaction(number).state


# --- transactional ids


def test_an_id_belongs_to_one_producer_in_one_epoch_after_another(machine: Transactions) -> None:
    assert identify(machine, fresh=4) == Identity(4, 0, ())
    assert identify(machine, fresh=5) == Identity(4, 1, ())
    assert identify(machine, "other", fresh=6) == Identity(6, 0, ())
    machine.check_epoch(4, 1)
    machine.check_epoch(99, 7)  # nobody's id: its epoch is its own business
    with pytest.raises(ProducerFenced, match=r"producer 4 has been taken over by epoch 1: .*epoch 0 must stop"):
        machine.check_epoch(4, 0)
    with pytest.raises(InvalidRequest, match="producer 4 is in epoch 1; there is no epoch 2"):
        machine.check_epoch(4, 2)


def test_who_does_not_have_the_id_it_names_is_refused(machine: Transactions) -> None:
    identify(machine, fresh=4)
    machine.check_writer(Writer(4, 0, "job"))
    with pytest.raises(UnknownProducer, match="nobody has the transactional id 'none'; initialise a producer with it"):
        machine.check_writer(Writer(4, 0, "none"))
    with pytest.raises(ProducerFenced, match="belongs to producer 4, not to 5"):
        machine.check_writer(Writer(5, 0, "job"))


def test_what_the_one_before_left_open_is_aborted(machine: Transactions) -> None:
    identify(machine, fresh=4)
    number = begin(machine, 4)
    assert identify(machine) == Identity(4, 1, (number,))
    found = machine.transaction(number)
    assert (found.state, found.reason) == (ABORTING, AbortReason.REINITIALISED)
    assert machine.open == []


def test_when_the_epochs_are_used_up_the_id_gets_another_producer(
    machine: Transactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "_LAST_EPOCH", 2)
    for epoch in range(3):
        assert identify(machine, fresh=4 + epoch) == Identity(4, epoch, ())
    number = begin(machine, 4, 2)
    assert identify(machine, fresh=9) == Identity(9, 0, (number,))
    for each in (machine, restored(machine)):
        each.check_epoch(9, 0)
        for epoch in range(3):
            with pytest.raises(ProducerFenced):
                each.check_epoch(4, epoch)
            with pytest.raises(ProducerFenced):
                begin(each, 4, epoch)


def test_there_are_only_so_many_ids(machine: Transactions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_TRANSACTIONAL_IDS", 2)
    identify(machine, "a", 1)
    identify(machine, "b", 2)
    with pytest.raises(Busy, match="there are 2 transactional ids, which is the most; use fewer, or old ones"):
        identify(machine, "c", 3)
    identify(machine, "a")


def test_ids_that_are_not_used_are_forgotten_unless_something_is_open(machine: Transactions) -> None:
    for producer, name in enumerate(("idle", "used", "open"), 1):
        identify(machine, name, producer)
    number = begin(machine, 2, now=NOW + 10, transactional_id="used")
    do(machine, Abort((number,), AbortReason.ASKED))
    begin(machine, 3, transactional_id="open")
    do(machine, ForgetIdle(NOW))
    assert list(machine.owners) == ["idle", "used", "open"]
    do(machine, ForgetIdle(NOW + 1))
    assert list(machine.owners) == ["used", "open"]
    machine.check_epoch(1, 7)  # nobody's any more
    assert machine.decide(ForgetIdle(NOW + 1), NOW).records == ()


# --- beginning


def test_a_producer_has_one_open_transaction_and_each_has_a_number_of_its_own(machine: Transactions) -> None:
    first, second = begin(machine, 1), begin(machine, 2, name="load", timeout_ms=5)
    assert (first, second) == (1, 2)
    with pytest.raises(Conflict, match="producer 1 has txn-1 open; commit or abort it first, or initialise another"):
        begin(machine, 1)
    found = machine.transaction(second)
    assert (found.name, found.timeout_ms, found.state, found.transaction_id) == ("load", 5, ONGOING, "txn-2")
    assert [each.number for each in machine.named("load")] == [second]
    assert machine.transaction(first).timeout_ms == limits.DEFAULT_TRANSACTION_MS
    do(machine, Commit(first, ()))
    assert begin(machine, 1) == 3


def test_the_timeout_is_that_of_the_transactional_id_unless_it_is_said(machine: Transactions) -> None:
    identify(machine, timeout_ms=777)
    number = begin(machine, transactional_id="job")
    assert machine.transaction(number).timeout_ms == 777
    do(machine, Commit(number, ()))
    assert machine.transaction(begin(machine, transactional_id="job", timeout_ms=5)).timeout_ms == 5


def test_only_so_many_are_open(machine: Transactions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_OPEN_TRANSACTIONS", 2)
    begin(machine, 1)
    begin(machine, 2)
    with pytest.raises(Busy, match="2 transactions are open, which is the most; try again"):
        begin(machine, 3)
    do(machine, Abort((1,), AbortReason.ASKED))
    begin(machine, 3)


def test_numbers_are_reserved_many_at_a_time_and_a_life_gives_out_none_of_the_one_before(
    machine: Transactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "TRANSACTION_NUMBERS_RESERVED", 3)
    reserved = []
    for producer in range(1, 6):
        begin(machine, producer)
        reserved.append(machine.reserved)
    assert reserved == [4, 4, 4, 7, 7]
    machine.begin_life()
    assert begin(machine, 9) == 7


# --- writing


def test_only_its_producer_writes_in_it_and_only_while_it_is_open(machine: Transactions) -> None:
    number = begin(machine, 1)
    assert machine.writing(number, 1, 0).number == number
    with pytest.raises(Conflict, match="txn-1 was begun by another producer; begin one of your own"):
        machine.writing(number, 2, 0)
    with pytest.raises(UnknownTransaction, match="there is no transaction txn-9; of those that have ended the last"):
        machine.writing(9, 1, 0)
    do(machine, Commit(number, HERE))
    with pytest.raises(Conflict, match="txn-1 was committed; begin another one"):
        machine.writing(number, 1, 0)


def test_which_one_is_meant(machine: Transactions) -> None:
    with pytest.raises(Conflict, match="producer 1 has no open transaction; begin one"):
        machine.of(Writer(1, 0), None)
    number = begin(machine, 1)
    assert machine.of(Writer(1, 0), None).number == machine.of(Writer(1, 0), number).number == number
    with pytest.raises(Conflict, match="begun by another producer"):
        machine.of(Writer(2, 0), number)
    with pytest.raises(ProducerFenced, match="txn-1 was begun in epoch 0, not in 1"):
        machine.of(Writer(1, 1), number)


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        (AbortReason.ASKED, "an abort was asked for"),
        (AbortReason.TIMED_OUT, r"it was open for longer than its timeout \(1m\)"),
        (AbortReason.REINITIALISED, "its transactional id was initialised again"),
        (AbortReason.LOST, "the broker's machine crashed and lost some of its messages"),
        (AbortReason.REPLACED, "its batch was committed before"),
    ],
)
def test_who_comes_late_is_told_why_it_was_aborted(machine: Transactions, reason: AbortReason, said: str) -> None:
    number = begin(machine)
    assert do(machine, Abort((number, 99), reason)) == (number,)
    for late in (lambda: machine.writing(number, 1, 0), lambda: do(machine, Commit(number, ()))):
        with pytest.raises(TransactionAborted, match=f"^txn-1 was aborted: {said}; begin another one and do it again$"):
            late()


# --- ending


def test_a_commit_is_decided_once_and_nothing_takes_it_back(machine: Transactions) -> None:
    number = begin(machine)
    assert do(machine, Commit(number, HERE), NOW + 5) == Committed((number,), False)
    found = machine.transaction(number)
    assert (found.state, found.decided_at, found.participants) == (COMMITTING, NOW + 5, HERE)
    assert machine.deciding == [found]
    assert do(machine, Commit(number, ())) == Committed((number,), True)
    assert do(machine, Abort((number,), AbortReason.ASKED)) == ()
    do(machine, Complete((number, 99)))
    assert (found.state, machine.deciding) == (COMMITTED, [])
    assert do(machine, Commit(number, ())) == Committed((number,), True)


def test_one_that_is_open_is_not_complete(machine: Transactions) -> None:
    number = begin(machine)
    do(machine, Complete((number,)))
    assert state(machine, number) is ONGOING
    do(machine, Abort((number,), AbortReason.ASKED))
    do(machine, Complete((number,)))
    assert state(machine, number) is ABORTED


def test_of_those_that_ended_the_last_are_remembered(machine: Transactions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TRANSACTIONS_REMEMBERED", 2)
    numbers = [begin(machine, producer) for producer in range(1, 6)]
    for number in (numbers[3], numbers[0], numbers[4]):
        do(machine, Commit(number, ()))
        do(machine, Complete((number,)))
    for each in (machine, restored(machine)):
        assert sorted(each.by_number) == sorted([numbers[0], numbers[4], numbers[1], numbers[2]])
        with pytest.raises(UnknownTransaction):
            each.transaction(numbers[3])
        do(each, Abort((numbers[1],), AbortReason.ASKED))
        do(each, Complete((numbers[1],)))
        assert numbers[0] not in each.by_number, "the order in which they ended is kept"


# --- several as one


def test_a_token_commits_all_that_it_lists_once(machine: Transactions) -> None:
    numbers = [begin(machine, producer, name="load") for producer in (1, 2, 3)]
    assert do(machine, many("load", 7, *numbers[:2])) == Committed((numbers[0], numbers[1]), False)
    assert [state(machine, number) for number in numbers] == [COMMITTING, COMMITTING, ONGOING]
    assert machine.tokens == {"load": 7}
    assert do(machine, many("load", 7, *numbers)) == Committed((), True, (numbers[2],))
    assert machine.transaction(numbers[2]).reason is AbortReason.REPLACED
    assert do(machine, many("load", 7)) == Committed((), True)
    with pytest.raises(StaleToken, match="7 was committed under 'load', and 6 is lower: it is too late for it"):
        do(machine, many("load", 6))
    assert do(machine, many("load", 8)) == Committed((), False), "an empty batch counts as well"


def test_all_of_a_batch_or_none(machine: Transactions) -> None:
    mine, other, ended = (begin(machine, 1, name="load"), begin(machine, 2, name="x"), begin(machine, 3, name="load"))
    with pytest.raises(Conflict, match="txn-2 was begun under 'x', not under 'load'"):
        do(machine, many("load", 1, mine, other))
    do(machine, Abort((ended,), AbortReason.TIMED_OUT))
    with pytest.raises(TransactionAborted):
        do(machine, many("load", 1, mine, ended))
    with pytest.raises(UnknownTransaction):
        do(machine, many("load", 1, mine, 99))
    assert (machine.tokens, state(machine, mine)) == ({}, ONGOING)


def test_of_a_batch_that_came_before_only_its_own_are_dropped(machine: Transactions) -> None:
    other = begin(machine, 1, name="x")
    do(machine, many("load", 1))
    assert do(machine, many("load", 1, other, 99)) == Committed((), True, ())
    assert state(machine, other) is ONGOING


def test_names_of_tokens_that_were_used_last_are_remembered(
    machine: Transactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_TOKENS", 2)
    do(machine, many("query", 1))
    do(machine, many("once", 1))
    do(machine, many("query", 2))
    do(machine, many("another", 1))
    assert [*machine.tokens.items()] == [("query", 2), ("another", 1)]
    again = restored(machine)
    do(again, many("last", 1))
    assert [*again.tokens] == ["another", "last"]


# --- lives


def test_whether_all_was_durable_at_the_end_is_the_last_thing_that_was_said(machine: Transactions) -> None:
    assert machine.decide(Start(), NOW).records == (), "nothing has to be taken back"
    do(machine, Stop())
    assert machine.is_stopped
    do(machine, Start())
    assert not machine.is_stopped
    do(machine, Stop())
    begin(machine)
    assert not machine.is_stopped


def test_the_time_that_is_left_goes_on_in_another_life_and_is_never_longer(machine: Transactions) -> None:
    found = machine.transaction(begin(machine, timeout_ms=1000))
    for passed, left in ((400, 600), (1000, 0), (5000, 0), (-9999, 1000)):
        assert found.end_again(50, NOW + passed) == 50 + left


def test_where_it_was_is_forgotten_when_all_have_it(machine: Transactions) -> None:
    """A batch of many, each with all partitions of all, would fill every snapshot."""
    numbers = tuple(begin(machine, producer, name="load") for producer in (1, 2))
    do(machine, many("load", 1, *numbers))
    assert [machine.transaction(number).participants for number in numbers] == [HERE, HERE]
    do(machine, Complete(numbers))
    for each in (machine, restored(machine)):
        assert [each.transaction(number).participants for number in numbers] == [(), ()]


def test_a_snapshot_says_it_all(machine: Transactions) -> None:
    identify(machine, "a", 1)
    identify(machine, "b", 2, timeout_ms=5)
    for producer in range(1, 7):
        begin(machine, producer, name="load" if producer > 4 else "", transactional_id="a" if producer == 1 else "")
    do(machine, Commit(2, HERE))
    do(machine, Commit(3, HERE))
    do(machine, Complete((3,)))
    do(machine, Abort((4,), AbortReason.TIMED_OUT))
    do(machine, many("load", 3, 5))
    other = restored(machine)
    for name in ("owners", "by_number", "by_producer", "tokens", "reserved", "_ended", "_epochs"):
        assert getattr(other, name) == getattr(machine, name), name
    assert list(other._ended) == list(machine._ended)
    assert sorted(other.snapshot()) == sorted(machine.snapshot())


@pytest.mark.parametrize("record", [b"", b"\x91\x63", b"\x92\x05\x01", b"\x94\x04\x91\x09\x90\x01"])
def test_what_is_no_record_is_refused_with_its_offset(machine: Transactions, record: Any) -> None:
    with pytest.raises(DamagedData, match="offset 41 of the transactions log is not understood"):
        machine.apply(record, 41)
