"""The transaction view: which records belong to which transaction, and which ended, live or read back."""

import pytest

from goqueue.codec import Flag
from goqueue.model.record import Extension, Record
from goqueue.producers.views import ProducerViews
from goqueue.storage import views
from goqueue.storage.derived import BUILT_IN, _from_saved
from goqueue.storage.transactions import Run, TransactionView, TransactionViews, transactions
from tests.unit.storage.logs import stamped

ABORT, COMMIT = int(Flag.CONTROL), int(Flag.CONTROL | Flag.COMMIT)
GOLDEN = bytes.fromhex(
    "0000000000000007 0000000000000008 0000000000000007"  # transactions
    "00000001 00000003 00000004"  # first offsets, after the base
    "00000002 00000001 00000001"  # how many
    f"00 00 {COMMIT:02x}"  # flags
)


def record(transaction: int | None, *, marker: bool = False, commits: bool = False) -> Record:
    extension = None if transaction is None else Extension(transaction=transaction)
    return Record(value=b"x", extension=extension, control=marker, commit=commits)


def fold(*records: Record, base: int = 100, first: int = 100, block: int = 1000) -> TransactionView:
    view = TransactionViews().empty(base)
    for start in range(0, len(records), block):
        view.on_append(*stamped(*records[start : start + block], offset=first + start))
    return view


SOME = (record(None), record(7), record(7), record(8), record(7, marker=True, commits=True))


def test_the_bytes_are_the_golden_ones() -> None:
    view = fold(*SOME)
    assert view.to_bytes() == GOLDEN
    assert TransactionViews().load(100, GOLDEN) == view
    assert list(view.runs()) == [Run(7, 101, 2, 0), Run(8, 103, 1, 0), Run(7, 104, 1, COMMIT)]
    assert (len(view), view.carries) == (3, False)


@pytest.mark.parametrize("block", [1, 2, 3])
def test_neighbours_are_one_row_however_they_came(block: int) -> None:
    assert fold(*SOME, block=block) == fold(*SOME)
    assert len(fold(*[record(7)] * 500, block=block)) == 1


def test_markers_are_rows_of_their_own_and_say_how_it_ended() -> None:
    view = fold(record(7), record(7, marker=True), record(7), record(7, marker=True, commits=True))
    assert [(run.is_marker, run.commits) for run in view.runs()] == [
        (False, False), (True, False), (False, False), (True, True),
    ]  # fmt: skip


def test_a_gap_ends_a_row() -> None:
    view = fold(record(7))
    view.on_append(*stamped(record(7), offset=102))
    assert list(view.runs()) == [Run(7, 100, 1, 0), Run(7, 102, 1, 0)]


@pytest.mark.parametrize("data", [GOLDEN[:-1], GOLDEN + b"\0", b"\0"])
def test_bytes_that_make_no_sense_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="columns differ in length"):
        TransactionViews().load(100, data)


def test_nothing_is_inherited() -> None:
    view = fold(*SOME)
    assert len(view.anew()) == 0
    other = TransactionViews().empty(200)
    other.inherit([view])
    assert len(other) == 0


def test_a_view_file_of_before_there_were_transactions_has_none_and_keeps_the_others() -> None:
    """What a producer view carries is in no record any more: it must not be built again for this."""
    kinds = (*BUILT_IN, ProducerViews())
    made = {kind.name: kind.empty(50) for kind in kinds if kind.name != TransactionViews.name}
    saved = views.unpack(views.pack(made))
    found = {kind.name: _from_saved(kind, 50, saved) for kind in kinds}
    assert found["producers"].to_bytes() == made["producers"].to_bytes()
    assert len(transactions(found)) == 0
    with pytest.raises(KeyError):
        _from_saved(ProducerViews(), 50, {})
