"""What a sidecar shows of one group: the input of every checker of deliveries. Taken from its snapshot alone."""

from collections.abc import Iterable
from typing import NamedTuple

from pyroaring import BitMap64

from goqueue.delivery import records
from goqueue.delivery.deliveries import Deliveries
from goqueue.delivery.records import Delivered, Resting
from goqueue.model.names import GroupNumber
from sim.checkers import require

RULE = "one place"


class Shown(NamedTuple):
    """A group's delivery on one partition."""

    low: int
    cursor: int
    above: frozenset[int]
    """Offsets above the low mark that are settled."""
    leased: dict[int, int]
    """Offset and number of the poll that took it."""
    again: frozenset[int]

    def is_settled(self, offset: int) -> bool:
        return offset < self.low or offset in self.above


def show(deliveries: Deliveries) -> dict[GroupNumber, Shown]:
    """Every group that was ever here."""
    shown: dict[GroupNumber, Shown] = {}
    for record in deliveries.snapshot():
        event = records.decode(record)
        if isinstance(event, Resting):
            shown.update((group, Shown(low, low, frozenset(), {}, frozenset())) for group, low in event.lows)
        elif isinstance(event, Delivered):
            shown[event.group] = _check(_delivered(event))
    return shown


def _delivered(event: Delivered) -> Shown:
    above = frozenset(BitMap64.deserialize(event.settled)) if event.settled else frozenset[int]()
    leased = {offset: lease.poll for lease in event.leases for offset in _offsets(lease.ranges)}
    require(len(leased) == sum(piece.size for lease in event.leases for piece in lease.ranges), RULE, "leases overlap")
    again = frozenset(_offsets(event.ready_again))
    require(len(again) == sum(piece.size for piece in event.ready_again), RULE, "what is ready again overlaps")
    return Shown(event.low, event.cursor, above, leased, again)


def _check(shown: Shown) -> Shown:
    """Every offset is in one place."""
    leased = shown.leased.keys()
    require(not leased & shown.again, RULE, f"leased and ready again: {sorted(leased & shown.again)}")
    for offset in (*leased, *shown.again):
        require(not shown.is_settled(offset), RULE, f"offset {offset} is settled, and leased or ready again")
        require(offset < shown.cursor, RULE, f"offset {offset} was delivered, and the cursor is {shown.cursor}")
    places = len(leased) + len(shown.again) + sum(1 for offset in shown.above if offset < shown.cursor)
    require(
        places == shown.cursor - shown.low,
        RULE,
        f"of offsets {shown.low} to {shown.cursor} some are neither settled, leased nor ready again",
    )
    return shown


def _offsets(pieces: Iterable[records.Range]) -> Iterable[int]:
    return (offset for first, end, _ in pieces for offset in range(first, end))
