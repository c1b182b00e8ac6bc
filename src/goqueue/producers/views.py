"""The producer view: what was known of the producers at the end of a segment, kept beside it.

Cleaning removes records, never what was learned from them: a view inherits from the segment before, or from
those it replaces. So a restart reads one saved view and the tail, however old the records are that it tells of.
A view is complete when what it inherited is all there was to know. One rebuilt from a segment's records alone
is not: `restore` walks back to one that is, and completes those after it.

It knows no clock: an idle producer goes by the time of the newest record.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

from goqueue import codec
from goqueue.codec import Scan
from goqueue.io.disk import Buffer
from goqueue.model import limits
from goqueue.producers.sequences import ProducerTable
from goqueue.storage.views import View

COMPLETE: Final = 1
"""The only bit of a saved view's first byte; the table follows."""
KEPT_IDLE_MS: Final = 2 * limits.PRODUCER_EXPIRY_MS
"""Longer than the broker remembers an idle producer: it decides who is forgotten, and may be late with it."""


class ProducerView:
    """`inherited` is what was known where the segment begins, `own` what its records tell.

    Of a view that was saved, or that replaces others, all of it is inherited.
    """

    def __init__(self, base: int, inherited: ProducerTable | None = None, *, complete: bool = False) -> None:
        self.base = base
        self.inherited = inherited if inherited is not None else ProducerTable()
        """Never changed, only replaced: views share it."""
        self.complete = complete
        self.own = ProducerTable()

    def on_append(self, block: Buffer, scan: Scan) -> None:
        for run in codec.producer_runs(block, scan):
            self.own.add(run)

    def on_damage(self, first: int, next_offset: int) -> None:
        self.own.lose(first, next_offset)

    def current(self) -> ProducerTable:
        """What is known at the end of the segment: a table of its own."""
        table = self.inherited.copy()
        table.merge(self.own)
        return table

    def begin_complete(self) -> None:
        """There is nothing to know from before this segment: it is the first of its log."""
        self.complete = True

    def inherit(self, older: Sequence[View]) -> None:
        """From views in offset order; it makes this one complete when one of them is."""
        table, complete = ProducerTable(), self.complete
        for view in older:
            assert isinstance(view, ProducerView)
            if view.complete:
                table, complete = view.current(), True
            else:
                table.merge(view.current())
        table.expire(table.last_timestamp - KEPT_IDLE_MS)
        self.inherited, self.complete = table, complete

    def complete_from(self, before: "ProducerView") -> None:
        """Add what the view of the segment before knows to what this one has found out without it."""
        self.own = self.current()
        self.inherit([before])

    def anew(self) -> "ProducerView":
        """Of a saved or rewritten view it is not known what was inherited and what came later: then nothing."""
        if self.inherited.end <= self.base:
            return ProducerView(self.base, self.inherited, complete=self.complete)
        return ProducerViews().empty(self.base)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ProducerView):
            return NotImplemented
        return self.complete == other.complete and self.current() == other.current()

    @property
    def carries(self) -> bool:
        return bool(len(self.inherited) or len(self.own))

    def to_bytes(self) -> bytes:
        return bytes([COMPLETE if self.complete else 0]) + self.current().to_bytes()

    @property
    def size(self) -> int:
        return self.inherited.size + self.own.size


class ProducerViews:
    """Registers producer views with a log."""

    name = "producers"

    def empty(self, base: int) -> ProducerView:
        """Before offset 0 there is nothing to know."""
        return ProducerView(base, complete=base == 0)

    def load(self, base: int, data: bytes) -> ProducerView:
        if not data or data[0] not in (0, COMPLETE):
            raise ValueError("a producer view that does not say whether it is complete")
        return ProducerView(base, ProducerTable.from_bytes(data[1:]), complete=data[0] == COMPLETE)


def restore(newest_first: Iterable[ProducerView]) -> ProducerTable:
    """What a log knows of its producers, from its segments' views. Looks no further back than it has to.

    The views it looked at are complete afterwards: without a complete one the oldest is all there is to know.
    """
    chain: list[ProducerView] = []
    for view in newest_first:
        chain.append(view)
        if view.complete:
            break
    if not chain:
        return ProducerTable()
    chain.reverse()
    chain[0].begin_complete()
    for older, newer in pairwise(chain):
        newer.complete_from(older)
    return chain[-1].current()
