"""What was cancelled stays so, and is delivered to nobody; unless a group had it already, and the wall's clock was set
back to before it was due."""

from goqueue.delivery.commands import Cancel
from goqueue.groups.group import Part
from goqueue.model.names import GroupNumber
from sim.checkers import require
from sim.checkers.delivered import Sight
from sim.rooms.ledger import Ledger

RULE = "cancelled"


def check(ledger: Ledger, part: Part, sight: Sight, *, durable: int | None) -> None:
    """`durable`: what is not may be lost."""
    asked = ledger.postponed[part].cancelled
    doubt = ledger.doubts.get(part)
    more = doubt.command.offsets if doubt is not None and isinstance(doubt.command, Cancel) else ()
    for offset, value in ledger.contents[part].values.items():
        if value in asked:
            kept = offset in sight.cancelled or (durable is not None and asked[value] > durable)
            require(kept, RULE, f"message {value}, offset {offset} of {part}, was cancelled")
        else:
            right = offset not in sight.cancelled or offset in more
            require(right, RULE, f"message {value}, offset {offset} of {part}, is cancelled; nobody asked for that")


def check_delivery(ledger: Ledger, group: GroupNumber, part: Part, offset: int) -> None:
    for value in ledger.contents[part].find([offset]):
        had = value in ledger.accounts[group, part].leased
        gone = value in ledger.postponed[part].cancelled
        require(had or not gone, RULE, f"message {value}, offset {offset} of {part}, was cancelled and is delivered")
