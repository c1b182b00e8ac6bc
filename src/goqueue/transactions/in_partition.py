"""What of one partition belongs to transactions: which records are not decided about, and which nobody ever sees.

It folds what the log says, in offset order, and nothing else: when records are appended, and from the views of the
segments at a start. So what was aborted stays aborted for as long as its records are there.
"""

from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pyroaring import BitMap64

from goqueue.base.mark import Mark
from goqueue.base.offset_sets import cut_below
from goqueue.storage.transactions import COMMIT, Run, TransactionView


class Ended(NamedTuple):
    """What a marker did: these records may be read now, or never."""

    transaction: int
    commits: bool
    records: BitMap64
    marker: int


class PartitionTransactions:
    """The two bitmaps are never replaced: others look at them."""

    __slots__ = ("_open", "ended", "hidden", "uncommitted")

    def __init__(self) -> None:
        self._open: dict[int, array[int]] = {}
        """By transaction its records, as pairs: first offset and end of each row."""
        self.uncommitted = BitMap64()
        """Records of all open transactions."""
        self.hidden = BitMap64()
        """Aborted records, and markers."""
        self.ended = Mark()
        """How many ended: for who waits for one to end."""

    # --- looking

    @property
    def open(self) -> list[int]:
        """Transactions that have records here and no marker."""
        return list(self._open)

    def __contains__(self, transaction: int) -> bool:
        return transaction in self._open

    def count(self, transaction: int) -> int:
        """How many records it has here."""
        rows = self._open.get(transaction, ())
        return sum(rows[1::2]) - sum(rows[::2])

    def records(self, transaction: int) -> BitMap64:
        """Those it has here, as long as it is open."""
        found = BitMap64()
        rows = self._open.get(transaction, ())
        for first, end in zip(rows[::2], rows[1::2], strict=True):
            found.add_range(first, end)
        return found

    def stable(self, end: int) -> int:
        """Where ordered reads stop: at the first record that is not decided about; `end` when there is none."""
        return self.uncommitted.min() if self.uncommitted else end

    # --- changing

    def fold(self, runs: Iterable[Run]) -> list[Ended]:
        """Records and markers that were appended. Which transactions that has ended."""
        return [ended for run in runs if (ended := self._fold(run)) is not None]

    def restore(self, views: Iterable[TransactionView]) -> None:
        """The same as folding all that is in these views, for one that has seen nothing; there may be millions.

        What is still open in the end is all that is counted as uncommitted on the way.
        """
        found: dict[int, list[int]] = {}
        for view in views:
            base, hidden = view.base, array("Q")
            for transaction, first, count, flags in view.rows():
                if flags:
                    hidden.append(base + first)
                    rows = found.pop(transaction, None)
                    if rows is not None and flags != COMMIT:
                        self._hide(rows)
                    continue
                rows = found.get(transaction)
                if rows is None:
                    found[transaction] = [base + first, base + first + count]
                elif rows[-1] == base + first:
                    rows[-1] += count
                else:
                    rows += (base + first, base + first + count)
            self.hidden |= BitMap64(hidden)
        for transaction, rows in found.items():
            self._open[transaction] = array("q", rows)
            for first, end in zip(rows[::2], rows[1::2], strict=True):
                self.uncommitted.add_range(first, end)

    def _hide(self, rows: Sequence[int]) -> None:
        for first, end in zip(rows[::2], rows[1::2], strict=True):
            self.hidden.add_range(first, end)

    def _fold(self, run: Run) -> Ended | None:
        transaction, first, count, _ = run
        if run.is_marker:
            return self._end(run)
        rows = self._open.get(transaction)
        if rows is None:
            rows = self._open[transaction] = array("q")
        if rows and rows[-1] == first:
            rows[-1] = first + count
        else:
            rows.extend((first, first + count))
        self.uncommitted.add_range(first, first + count)
        return None

    def _end(self, run: Run) -> Ended:
        records = self.records(run.transaction)
        self._open.pop(run.transaction, None)
        self.uncommitted -= records
        if not run.commits:
            self.hidden |= records
        self.hidden.add_range(run.first, run.first + run.records)
        self.ended.advance(self.ended.value + 1)
        return Ended(run.transaction, run.commits, records, run.first)

    def forget_below(self, start: int) -> None:
        """The log begins there by now."""
        for offsets in (self.hidden, self.uncommitted):
            if offsets and offsets.min() < start:
                cut_below(offsets, start)
