"""What of a partition belongs to transactions: folded from records and markers in offset order."""

from random import Random

import pytest
from pyroaring import BitMap64

from goqueue.codec import Flag
from goqueue.storage.transactions import COMMIT, Run, TransactionView
from goqueue.transactions.in_partition import Ended, PartitionTransactions


def records(transaction: int, first: int, count: int = 1) -> Run:
    return Run(transaction, first, count, 0)


def marker(transaction: int, at: int, *, commits: bool) -> Run:
    return Run(transaction, at, 1, COMMIT if commits else int(Flag.CONTROL))


@pytest.fixture
def here() -> PartitionTransactions:
    """Transaction 7 has offsets 10, 11 and 14, transaction 8 has 12."""
    made = PartitionTransactions()
    assert made.fold([records(7, 10, 2), records(8, 12), records(7, 14)]) == []
    return made


def test_records_of_open_transactions_are_uncommitted(here: PartitionTransactions) -> None:
    assert here.open == [7, 8]
    assert (7 in here, 9 in here) == (True, False)
    assert [here.count(number) for number in (7, 8, 9)] == [3, 1, 0]
    assert (list(here.uncommitted), list(here.hidden)) == ([10, 11, 12, 14], [])
    assert here.stable(20) == 10


def test_what_is_committed_can_be_read_and_its_marker_never(here: PartitionTransactions) -> None:
    assert here.fold([marker(7, 20, commits=True)]) == [Ended(7, True, BitMap64([10, 11, 14]), 20)]
    assert (list(here.uncommitted), list(here.hidden), here.open) == ([12], [20], [8])
    assert here.stable(21) == 12
    here.fold([marker(8, 21, commits=True)])
    assert here.stable(22) == 22
    assert here.ended.value == 2


def test_what_is_aborted_is_hidden(here: PartitionTransactions) -> None:
    assert here.fold([marker(7, 20, commits=False)]) == [Ended(7, False, BitMap64([10, 11, 14]), 20)]
    assert list(here.hidden) == [10, 11, 14, 20]
    assert here.stable(21) == 12


def test_a_marker_of_one_that_has_nothing_here_ends_nothing(here: PartitionTransactions) -> None:
    assert here.fold([marker(9, 20, commits=False)]) == [Ended(9, False, BitMap64(), 20)]
    assert (here.open, list(here.hidden)) == ([7, 8], [20])


def test_blocks_that_follow_each_other_are_one_row() -> None:
    made = PartitionTransactions()
    for at in range(1000):
        made.fold([records(7, at)])
    assert len(made._open[7]) == 2
    assert made.count(7) == 1000


def test_the_bitmaps_stay_the_same_objects(here: PartitionTransactions) -> None:
    """Others look at them."""
    uncommitted, hidden = here.uncommitted, here.hidden
    here.fold([marker(7, 20, commits=False), marker(8, 21, commits=True)])
    here.forget_below(14)
    assert here.uncommitted is uncommitted
    assert here.hidden is hidden


def test_what_is_cleaned_away_is_forgotten(here: PartitionTransactions) -> None:
    here.fold([marker(7, 20, commits=False)])
    here.forget_below(12)
    assert (list(here.hidden), list(here.uncommitted)) == ([14, 20], [12])


def test_it_is_the_same_whatever_is_folded_at_once() -> None:
    runs = [records(7, 0, 3), records(8, 3), marker(7, 4, commits=False), records(7, 5), marker(8, 6, commits=True)]
    whole, single = PartitionTransactions(), PartitionTransactions()
    ended = whole.fold(runs)
    assert ended == [each for run in runs for each in single.fold([run])]
    assert (whole.open, whole.uncommitted, whole.hidden) == (single.open, single.uncommitted, single.hidden)
    assert (whole.open, list(whole.uncommitted), list(whole.hidden)) == ([7], [5], [0, 1, 2, 4, 6])


@pytest.mark.parametrize("seed", range(20))
def test_what_is_restored_from_views_is_what_was_folded(seed: int) -> None:
    """Wherever segments begin, and whatever is open, committed or aborted across them."""
    chance = Random(seed)
    live, views = PartitionTransactions(), [TransactionView(0)]
    ongoing: set[int] = set()
    offset = number = 0
    for _ in range(200):
        if chance.random() < 0.1:
            views.append(TransactionView(offset))
        if ongoing and chance.random() < 0.3:
            run = marker(chance.choice(sorted(ongoing)), offset, commits=chance.random() < 0.5)
            ongoing.discard(run.transaction)
        elif chance.random() < 0.8:
            if not ongoing or chance.random() < 0.3:
                number += 1
                ongoing.add(number)
            run = records(chance.choice(sorted(ongoing)), offset, chance.randint(1, 5))
        else:
            offset += 1
            continue
        live.fold([run])
        views[-1]._add(run.transaction, run.first - views[-1].base, run.records, run.flags)
        offset += run.records
    again = PartitionTransactions()
    again.restore(views)
    assert (again.uncommitted, again.hidden, sorted(again.open)) == (live.uncommitted, live.hidden, sorted(live.open))
    assert {each: again.count(each) for each in again.open} == {each: live.count(each) for each in live.open}
