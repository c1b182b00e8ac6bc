"""A lease lasts as long as it was given, or extended, for: it lapses then, not before, and not much later. A delay is
over when as much time has passed as was asked for, whatever the wall's clock showed before."""

from pyroaring import BitMap64

from goqueue.delivery.commands import Lapse
from goqueue.groups.group import Part
from sim.checkers import require
from sim.rooms.ledger import TOLERANCE_MS, Ledger
from sim.rooms.places import Moment

RULE = "on time"


LATE_MS = 10 + TOLERANCE_MS
"""Delays are over at the end of a tick, which two clocks do not see at once."""


def check_delays(ledger: Ledger, part: Part, pending: BitMap64, at: Moment) -> None:
    """After everything that was due was done."""
    earlier = Moment(at.wall - LATE_MS, at.now - LATE_MS)
    for offset, value in ledger.contents[part].values.items():
        if offset in pending and value in ledger.postponed[part].left:
            late = ledger.is_due(part, value, earlier)
            left = ledger.postponed[part].left[value]
            require(not late, RULE, f"message {value}, offset {offset} of {part}, is pending at {at}, and had {left}")


def check_lapse(ledger: Ledger, part: Part, command: Lapse, now: int) -> None:
    """Its leases are about to lapse."""
    for offset, held in ledger.accounts[command.group, part].places.held.items():
        if (held.poll, held.until) in command.leases:
            require(held.due <= now, RULE, f"offset {offset} of {part} is held by {held} and lapses at {now}")


def check(ledger: Ledger, part: Part, now: int) -> None:
    """After everything that was due by `now` was done."""
    for (group, other), account in ledger.accounts.items():
        if other == part:
            for offset, held in account.places.held.items():
                require(now < held.due, RULE, f"offset {offset} of {part}, group {group}, is held by {held} at {now}")
