"""The transaction view: which records of a segment belong to transactions, and which transactions ended in it, how.

What is open, and what was aborted, is told by a log's views together, in offset order: a transaction's records lie
before the marker that ends it. So nothing else has to be kept for that, and a view that is lost is built again.
"""

import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from goqueue import codec
from goqueue.codec import Flag, Scan
from goqueue.io.disk import Buffer
from goqueue.storage.views import View

COMMIT: Final = int(Flag.CONTROL | Flag.COMMIT)
"""The flags of a marker that commits."""
_ROW_BYTES: Final = 17


class Run(NamedTuple):
    """Records in a row that belong to one transaction; or the marker that ends it."""

    transaction: int
    first: int
    records: int
    flags: int
    """CONTROL for a marker, with COMMIT or without."""

    @property
    def is_marker(self) -> bool:
        return bool(self.flags)

    @property
    def commits(self) -> bool:
        return self.flags == COMMIT


class TransactionView:
    """Four columns in offset order: transaction, first offset relative to the base, count, flags."""

    def __init__(self, base: int) -> None:
        self._base = base
        self._transactions = array("q")
        self._firsts = array("I")
        self._counts = array("I")
        self._flags = array("B")

    def on_append(self, block: Buffer, scan: Scan) -> None:
        for transaction, first, count, flags in codec.transaction_runs(block, scan):
            self._add(transaction, first - self._base, count, flags)

    def on_damage(self, first: int, next_offset: int) -> None:
        """What nobody can read is in no view."""

    def _add(self, transaction: int, first: int, count: int, flags: int) -> None:
        """Blocks of one transaction that follow each other are one row: a large transaction is not many."""
        if (
            self._firsts
            and self._transactions[-1] == transaction
            and self._flags[-1] == flags
            and self._firsts[-1] + self._counts[-1] == first
        ):
            self._counts[-1] += count
            return
        self._transactions.append(transaction)
        self._firsts.append(first)
        self._counts.append(count)
        self._flags.append(flags)

    def inherit(self, older: Sequence[View]) -> None:
        """Nothing: a segment's transactions are those of its records."""

    def anew(self) -> "TransactionView":
        return TransactionView(self._base)

    def runs(self) -> Iterator[Run]:
        base = self._base
        return (Run(transaction, base + first, count, flags) for transaction, first, count, flags in self.rows())

    def rows(self) -> Iterator[tuple[int, int, int, int]]:
        """The columns as they are: offsets are relative to the base. For those who look at all of them."""
        return zip(self._transactions, self._firsts, self._counts, self._flags, strict=True)

    @property
    def base(self) -> int:
        return self._base

    def __len__(self) -> int:
        return len(self._transactions)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TransactionView) and list(self.runs()) == list(other.runs())

    @property
    def carries(self) -> bool:
        return False

    def to_bytes(self) -> bytes:
        columns = [self._transactions[:], self._firsts[:], self._counts[:], self._flags]
        if sys.byteorder == "little":
            for each in columns[:3]:
                each.byteswap()
        return b"".join(each.tobytes() for each in columns)

    @property
    def size(self) -> int:
        return 128 + _ROW_BYTES * len(self)


class TransactionViews:
    """Registers transaction views with a log."""

    name = "transactions"

    def empty(self, base: int) -> TransactionView:
        return TransactionView(base)

    def load(self, base: int, data: bytes) -> TransactionView:
        rows, rest = divmod(len(data), _ROW_BYTES)
        if rest:
            raise ValueError("a transaction view whose columns differ in length")
        view = TransactionView(base)
        view._transactions.frombytes(data[: 8 * rows])
        view._firsts.frombytes(data[8 * rows : 12 * rows])
        view._counts.frombytes(data[12 * rows : 16 * rows])
        view._flags.frombytes(data[16 * rows :])
        if sys.byteorder == "little":
            for each in (view._transactions, view._firsts, view._counts):
                each.byteswap()
        return view


def transactions(views: Mapping[str, View]) -> TransactionView:
    view = views[TransactionViews.name]
    assert isinstance(view, TransactionView)
    return view
