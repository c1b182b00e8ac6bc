"""Selection in key mode: a key is with one consumer at a time, in order; only that key waits.

Of each key only the oldest message that is not settled can be picked, its *head*; those behind it stand in line. They
are found by reading ahead of the lanes, so whoever asks is told what to read, and feeds it in. How many may stand in
line is bounded: when there are too many, reading ahead waits until some are settled. Lanes are served among the heads.

Keys are told apart by a hash of 32 bits: two keys that share one share a line, which costs time, never order. Messages
without a key are never in line. A delayed message joins its key's line when it is due. An open transaction blocks the
keys of its messages: what is behind its first one waits until it ends, and is then read again, in order. Of that only
sets are kept, because a transaction may be large; and it holds up nobody else.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from pyroaring import BitMap, BitMap64

from goqueue.base.offset_sets import column, cut_below, cut_from, gathered, within
from goqueue.codec import Flag, Scan
from goqueue.delivery.delivery import Delivery
from goqueue.delivery.selection import Held, Selection, lining_up
from goqueue.model import limits
from goqueue.model.record import Lane
from goqueue.storage.lane_index import LaneIndex

_NO_KEY: Final = int(Flag.NO_KEY)
_CONTROL: Final = int(Flag.CONTROL)
_KEYLESS: Final = 0
_HASH_OF_ZERO: Final = 1
"""Stands for a hash that is 0, which means that there is no key."""


class ReadAhead(Exception):
    """The keys of records are needed: read from `first` on, below `end`, and feed them in.

    With `only`, of those between just these, which may be far apart. `unblocked` goes back with what was read.
    """

    def __init__(self, first: int, end: int, unblocked: int, only: BitMap64 | None = None) -> None:
        super().__init__(first, end)
        self.first = first
        self.end = end
        self.unblocked = unblocked
        self.only = only


class _InLine(NamedTuple):
    offset: int
    lane: int


Runs = Sequence[tuple[int, int, int, int]]
"""Which records belong to transactions: transaction, first offset, count and flags of each row."""


class _Block:
    """What an open transaction holds up: messages behind its first one that have the key of one of its own."""

    __slots__ = ("behind", "first", "keys")

    def __init__(self, first: int) -> None:
        self.first = first
        self.keys = BitMap()
        """Hashes."""
        self.behind = BitMap64()


class KeyedSelection(Selection):
    """Of one group in key mode on one partition."""

    __slots__ = (
        "_blocks",
        "_cursor",
        "_has_read",
        "_heads",
        "_heads_of",
        "_in_line",
        "_lines",
        "_start",
        "_unblocked",
        "_uncommitted",
        "_unread",
    )

    def __init__(self, low: int, keys: dict[int, int], uncommitted: BitMap64) -> None:
        """`keys` are those of the messages that were delivered and are not settled: each is its key's head.

        `uncommitted` is looked at: what belongs to open transactions.
        """
        super().__init__(low)
        self._uncommitted = uncommitted
        self._blocks: dict[int, _Block] = {}
        """By open transaction that messages were read of."""
        self._unblocked = 0
        """How often one of them ended: what was read before is read again, or it could overtake what was blocked."""
        self._cursor = low
        """Everything below was read, or is unread: delayed, undecided, or blocked."""
        self._heads: dict[int, int] = {}
        """Offset of a key's head, and the key."""
        self._heads_of: dict[int, int] = {}
        """How many heads a key has: one; after a restart more, where a dead one did not hold up the next."""
        self._lines: dict[int, deque[_InLine]] = {}
        """By key, what is behind its head; a key that has a head is in here."""
        self._in_line = BitMap64()
        """All that are behind a head."""
        self._start = 0
        self._unread = BitMap64()
        """Ready, but their keys are not known."""
        self._has_read = False
        """Whether some of those were read for whoever is looking."""
        for offset, key in keys.items():
            self._lines.setdefault(key, deque())
            self._lead(offset, key)

    # --- what happens outside

    def free(self, offsets: BitMap64) -> None:
        """Heads that were delivered before can be picked again; others were delayed or undecided, and are not known."""
        self.settle(within(offsets, 0, self._start))  # retention went past them while somebody had them
        offsets = within(offsets, self._start, limits.MAX_OFFSET)
        known = BitMap64([offset for offset in column(offsets) if offset in self._heads])
        self._unsorted |= known
        unknown = offsets - known
        cut_from(unknown, self._cursor)  # from there on they are read anyway
        self._unread |= unknown

    def settle(self, offsets: BitMap64) -> None:
        """Whoever is behind them comes next."""
        self.withdraw(offsets)
        heads = self._heads
        gone = [offset for offset in column(offsets) if offset in heads] if len(offsets) <= len(heads) else [
            offset for offset in heads if offset in offsets
        ]  # fmt: skip
        if len(gone) < len(offsets) and offsets.intersect(self._in_line):
            self._leave(offsets)
        for offset in gone:
            self._advance(heads.pop(offset))

    def _leave(self, offsets: BitMap64) -> None:
        """Some may stand in line: cleaned away, or damaged."""
        for key, line in self._lines.items():
            if any(each.offset in offsets for each in line):
                self._lines[key] = deque(each for each in line if each.offset not in offsets)
        self._in_line -= offsets

    def _lead(self, offset: int, key: int) -> None:
        """It is its key's head."""
        self._heads[offset] = key
        self._heads_of[key] = self._heads_of.get(key, 0) + 1

    def _advance(self, key: int) -> None:
        """A head of the key is gone."""
        left = self._heads_of.pop(key) - 1
        if left:
            self._heads_of[key] = left
            return
        line = self._lines[key]
        if line:
            head = line.popleft()
            self._in_line.discard(head.offset)
            self._lead(head.offset, key)
            self._staged[head.lane].add(head.offset)
        else:
            del self._lines[key]

    def unblock(self, transaction: int) -> None:
        """It has ended: what it held up is read again."""
        block = self._blocks.pop(transaction, None)
        if block is not None:
            self._unread |= block.behind
            self._unblocked += 1

    @property
    def is_idle(self) -> bool:
        """Not while keys are blocked: that would have to be found out again."""
        return self._has_nothing and not self._blocks

    @property
    def _has_nothing(self) -> bool:
        return super().is_idle and not self._in_line and not self._unread

    def is_spent(self, end: int) -> bool:
        return self._has_nothing and self._cursor >= end

    def ahead(self, lanes: LaneIndex, delivery: Delivery, held: Held, *, start: int, end: int) -> None:
        """Some of their keys may be with somebody: that is found out one by one."""

    def is_urgent(self, lanes: LaneIndex) -> bool:
        return bool(self._staged[Lane.CRITICAL]) or lanes.has(Lane.CRITICAL, self._cursor)

    # --- staging

    def stage(self, lanes: LaneIndex, delivery: Delivery, held: Held, *, start: int, end: int, want: int) -> None:
        """Raises ReadAhead as long as there is more to be found.

        Many may come due at once: some of them are read each time, and more only if that is not enough.
        """
        if start > self._start:
            self._forget_below(start, delivery)
        self._drop_below(start)
        self._sort(lanes, delivery, held)
        is_short, has_room = sum(map(len, self._staged)) < want, len(self._in_line) < limits.MAX_IN_LINE
        if self._unread and has_room and (is_short or not self._has_read):
            some = self._unread[: limits.GATHERED_AT_ONCE]
            self._has_read = True
            raise ReadAhead(some.min(), some.max() + 1, self._unblocked, some)
        if is_short and has_room and self._cursor < end:
            raise ReadAhead(self._cursor, end, self._unblocked)
        self._has_read = False

    def _forget_below(self, start: int, delivery: Delivery) -> None:
        """Retention went on: what was not delivered and lies below holds up nobody any more."""
        self._start = start
        self._cursor = max(self._cursor, start)
        for offsets in (*self._staged, self._unsorted, self._unread):
            cut_below(offsets, start)
        for key, line in self._lines.items():
            self._lines[key] = deque(each for each in line if each.offset >= start)
        cut_below(self._in_line, start)
        for block in self._blocks.values():
            cut_below(block.behind, start)
        self.settle(BitMap64([offset for offset in self._heads if offset < start and offset not in delivery.taken]))

    def feed(self, wanted: ReadAhead, scan: Scan, following: int, runs: Runs, delivery: Delivery, held: Held) -> None:
        """Records below `following` that were read: each gets into its key's line, if it may be delivered at all.

        `runs` says which of them belong to transactions.
        """
        if wanted.unblocked != self._unblocked:
            return
        read = gathered(scan.offsets)
        if wanted.only is not None:
            some = within(wanted.only, 0, following)
            read &= some & self._unread
            self._unread -= some
        elif wanted.first == self._cursor:  # else another poll was faster
            self._cursor = following
        else:
            return
        self._line_up(scan, lining_up(read, delivery, held), runs)

    def _line_up(self, scan: Scan, wanted: BitMap64, runs: Runs) -> None:
        wanted -= self._reserved
        undecided = self._undecided(wanted, runs)
        for offset, key, lane, flags in zip(scan.offsets, scan.key_hashes, scan.lanes, scan.flags, strict=True):
            if offset not in wanted:
                continue
            key = key or _HASH_OF_ZERO
            if offset in undecided:
                if not flags & _NO_KEY:
                    self._blocks.setdefault(undecided[offset], _Block(offset)).keys.add(key)
            elif flags & (_NO_KEY | _CONTROL) or offset in self._heads:
                self._staged[lane].add(offset)
            elif self._blocks and self._is_blocked(offset, key):
                continue
            elif key not in self._lines:
                self._lines[key] = deque()
                self._lead(offset, key)
                self._staged[lane].add(offset)
            else:
                self._lines[key].append(_InLine(offset, lane))
                self._in_line.add(offset)

    def _undecided(self, wanted: BitMap64, runs: Runs) -> dict[int, int]:
        """Transactions that are open, by offset. Those offsets are freed when they are committed."""
        if not self._uncommitted or not wanted.intersect(self._uncommitted):
            return {}
        return {
            offset: transaction
            for transaction, first, count, _ in runs
            for offset in range(first, first + count)
            if offset in self._uncommitted
        }

    def _is_blocked(self, offset: int, key: int) -> bool:
        """Whether it is behind a message of an open transaction; then that is remembered."""
        for block in self._blocks.values():
            if offset > block.first and key in block.keys:
                block.behind.add(offset)
                return True
        return False

    # --- leasing

    def keys_of(self, offsets: BitMap64) -> list[int]:
        """What a lease writes down of them, for the next life."""
        return [self._heads.get(offset, _KEYLESS) for offset in column(offsets)]
