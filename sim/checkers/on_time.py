"""A lease lasts as long as it was given, or extended, for: it lapses then, not before, and not much later."""

from goqueue.delivery.commands import Lapse
from goqueue.groups.group import Part
from sim.checkers import require
from sim.rooms.ledger import Ledger

RULE = "on time"


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
