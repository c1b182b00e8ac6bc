"""One group on one partition: what it was delivered, what of that it settled, and what is delivered next.

Every offset of the partition is in exactly one place: *settled*; *leased*, delivered and not settled yet; *ready
again*, below the cursor, because it was given back or passed over; or *ready*, from the cursor on, never delivered.
What is ready again is delivered before anything new.

Invariants: leases and what is ready again lie below the cursor, do not overlap, and hold nothing that is settled. What
is ready again and was never delivered does not end at the cursor: the cursor goes back instead.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from goqueue.delivery.records import Delivered, HeldLease, Leased, Range
from goqueue.delivery.settled import SettledSet
from goqueue.model import limits
from goqueue.model.names import GroupNumber

_NO_EPOCH: Final = 0
_SEPARATE_LEASES: Final = 8
"""How many of the last polls are told apart: whether a reply arrived is known soon."""


class Lease:
    """What one poll was given and has not settled. The oldest lease may stand for several polls."""

    __slots__ = ("deadline", "poll", "ranges")

    def __init__(self, poll: int, deadline: int, ranges: list[Range]) -> None:
        self.poll = poll
        self.deadline = deadline
        self.ranges = ranges


class Delivery:
    """Changed only by what the sidecar log says."""

    __slots__ = ("assignment_epoch", "cursor", "fenced_poll", "leases", "ready_again", "settled")

    def __init__(self, low: int) -> None:
        self.settled = SettledSet(low)
        self.cursor = low
        """Nothing from here on was ever delivered."""
        self.assignment_epoch = _NO_EPOCH
        """Of the owner who was last delivered something."""
        self.leases: list[Lease] = []
        """In the order in which they were made."""
        self.fenced_poll = 0
        """Leases of polls up to this one are of before the last fence, and stay as they are: a late commit may name a
        poll whose lease a power cut took, and must not settle what came after it."""
        self.ready_again: list[Range] = []
        """In the order of their offsets."""

    # --- looking

    @property
    def low(self) -> int:
        return self.settled.low

    @property
    def is_resting(self) -> bool:
        """Whether the low mark says it all: everything below the cursor is settled."""
        return not self.leases and not self.ready_again

    @property
    def in_flight(self) -> int:
        """Offsets that are leased."""
        return sum(piece.size for lease in self.leases for piece in lease.ranges)

    def has_stale_leases(self, assignment_epoch: int) -> bool:
        """Whether an earlier owner still holds something."""
        return bool(self.leases) and self.assignment_epoch < assignment_epoch

    def has_leased_below(self, offset: int, to: int = limits.MAX_OFFSET) -> bool:
        """Whether one of the polls up to `to` holds something below an offset."""
        return any(piece.first < offset for lease in self.leases if lease.poll <= to for piece in lease.ranges)

    def has_leased_to(self, after: int, to: int) -> bool:
        """Whether one of the polls after `after`, up to `to`, holds something."""
        return any(after < lease.poll <= to for lease in self.leases)

    def next_ready(self, start: int) -> Range:
        """What is delivered next: the first offsets that are ready again, else everything from the cursor on.

        `start` is where the partition begins by now. A range without an end has 0 for it.
        """
        for piece in self.ready_again:
            if piece.end > start:
                return piece._replace(first=max(piece.first, start))
        return Range(max(self.cursor, start), 0, 0)

    def is_ready(self, first: int, end: int) -> bool:
        """Whether these offsets are not settled and nobody has them."""
        return first < end and (first >= self.cursor or self._is_ready_again(first, end))

    def may_lease(self, start: int, spans: Iterable[tuple[int, int]]) -> bool:
        """Whether each of these is ready and there is no other; what is new goes on where the group is."""
        new, at = max(self.cursor, start), start
        for first, end in sorted(spans):
            if not at <= first < end:
                return False
            if first == new:
                new = end
            elif not self._is_ready_again(first, end):
                return False
            at = end
        return True

    def _is_ready_again(self, first: int, end: int) -> bool:
        return any(piece.first <= first and end <= piece.end for piece in self.ready_again)

    def deliveries_of(self, first: int) -> int:
        """How often an offset that is ready was delivered before."""
        return next((piece.deliveries for piece in self.ready_again if piece.first <= first < piece.end), 0)

    def overtaken(self, start: int) -> int:
        """How many offsets are ready and lie before `start`, where the partition begins by now."""
        return sum(piece.size for piece in self._ready_below(start))

    def _ready_below(self, end: int) -> list[Range]:
        found = list(_below(self.ready_again, end))
        return found if end <= self.cursor else [*found, Range(self.cursor, end, 0)]

    def unsettled(self, start: int, end: int) -> int:
        """Offsets from `start` up to `end` that are not settled."""
        return max(end - start, 0) - self.settled.count(start, end)

    # --- changing

    def lease(self, event: Leased) -> None:
        if self.has_stale_leases(event.assignment_epoch):
            self.open(event.assignment_epoch)
        self.assignment_epoch = event.assignment_epoch
        self._lift(event.start)
        for piece in event.ranges:
            self._take(piece.first, piece.end)
        self._hold(Lease(event.poll, event.deadline, list(event.ranges)))

    def skip(self, first: int, end: int) -> None:
        self._take(first, end)
        self.settled.add(first, end)

    def open(self, assignment_epoch: int) -> None:
        """Whoever held something no longer does."""
        self._take_back(self.leases, forgiven=0)
        self.leases = []
        self.assignment_epoch = assignment_epoch

    def settle(self, below: int, to: int = limits.MAX_OFFSET) -> None:
        """Of what polls up to `to` were given: a late commit must not settle what came after it."""
        for lease in self.leases:
            if lease.poll > to:
                continue
            for piece in _below(lease.ranges, below):
                self.settled.add(piece.first, piece.end)
            lease.ranges = list(_without(lease.ranges, 0, below))
        self.leases = [lease for lease in self.leases if lease.ranges]

    def give_back(self, after: int, to: int) -> None:
        """As if the replies of these polls had not been made: they do not count as deliveries."""
        self._take_back([lease for lease in self.leases if after < lease.poll <= to], forgiven=1)
        self.leases = [lease for lease in self.leases if not after < lease.poll <= to]

    def clip(self, end: int) -> None:
        """Offsets from `end` on were lost, and will be other messages.

        Then nobody holds anything any more: a late commit of before must find no lease that it could settle.
        """
        self.fenced_poll = self.leases[-1].poll if self.leases else 0
        if end >= self.cursor:
            return
        self.settled.clip(end)
        self.open(self.assignment_epoch)
        self.ready_again = list(_below(self.ready_again, end))
        self.cursor = end
        self._retract()

    def _lift(self, start: int) -> None:
        """Below `start` there is nothing left to deliver: what was ready there counts as settled."""
        for piece in self._ready_below(start):
            self.settled.add(piece.first, piece.end)
        self.ready_again = list(_without(self.ready_again, 0, start))
        self.cursor = max(self.cursor, start)

    def _take(self, first: int, end: int) -> None:
        """These offsets are no longer ready. New ones that are passed over come next."""
        if first > self.cursor:
            self.ready_again.append(Range(self.cursor, first, 0))
        self.ready_again = list(_without(self.ready_again, first, end))
        self.cursor = max(self.cursor, end)

    def _hold(self, lease: Lease) -> None:
        last = self.leases[-1] if self.leases else None
        if last is not None and (last.poll, last.deadline) == (lease.poll, lease.deadline):
            last.ranges = _united(last.ranges, lease.ranges)  # a poll may take several times
            return
        self.leases.append(lease)
        at = sum(each.poll <= self.fenced_poll for each in self.leases)
        if len(self.leases) - at <= _SEPARATE_LEASES:
            return
        older, old = self.leases[at : at + 2]
        if older.deadline == old.deadline:
            merged = Lease(min(older.poll, old.poll), old.deadline, _united(older.ranges, old.ranges))
            self.leases[at : at + 2] = [merged]

    def _take_back(self, leases: Iterable[Lease], *, forgiven: int) -> None:
        pieces = [piece._replace(deliveries=piece.deliveries - forgiven) for lease in leases for piece in lease.ranges]
        self.ready_again = _united(self.ready_again, pieces)
        self._retract()

    def _retract(self) -> None:
        while self.ready_again and self.ready_again[-1].end == self.cursor and not self.ready_again[-1].deliveries:
            self.cursor = self.ready_again.pop().first

    # --- snapshots

    def to_record(self, group: GroupNumber) -> Delivered:
        return Delivered(
            group,
            self.low,
            self.cursor,
            self.assignment_epoch,
            self.settled.to_bytes(),
            tuple(HeldLease(lease.poll, lease.deadline, tuple(lease.ranges)) for lease in self.leases),
            tuple(self.ready_again),
            self.fenced_poll,
        )

    @classmethod
    def from_record(cls, record: Delivered) -> "Delivery":
        """Raises a ValueError when the bitmap in it is none."""
        delivery = cls(record.low)
        delivery.settled = SettledSet(record.low, record.settled)
        delivery.cursor = record.cursor
        delivery.assignment_epoch = record.assignment_epoch
        delivery.leases = [Lease(held.poll, held.deadline, list(held.ranges)) for held in record.leases]
        delivery.ready_again = list(record.ready_again)
        delivery.fenced_poll = record.fenced_poll
        return delivery


def _below(pieces: Iterable[Range], end: int) -> Iterator[Range]:
    """The pieces, as far as they lie before `end`."""
    return (piece._replace(end=min(piece.end, end)) for piece in pieces if piece.first < end)


def _without(pieces: Iterable[Range], first: int, end: int) -> Iterator[Range]:
    """The pieces, less the offsets from `first` up to `end`."""
    for piece in pieces:
        if piece.first < first:
            yield piece._replace(end=min(piece.end, first))
        if piece.end > end:
            yield piece._replace(first=max(piece.first, end))


def _united(pieces: Sequence[Range], others: Sequence[Range]) -> list[Range]:
    """All of them in the order of their offsets; neighbours that were delivered equally often become one."""
    united: list[Range] = []
    for piece in sorted((*pieces, *others)):
        if united and united[-1].end == piece.first and united[-1].deliveries == piece.deliveries:
            piece = united.pop()._replace(end=piece.end)
        united.append(piece)
    return united
