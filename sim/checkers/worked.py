"""Nothing is settled that no member of the group has worked off, unless it died; nothing has a past that it has not.

By value: a new message at the offset of one that a power cut took is born neither settled nor delivered.
"""

from collections.abc import Iterable

from goqueue.groups.group import Part
from goqueue.model.names import GroupNumber
from sim.checkers import require
from sim.checkers.delivered import Shown
from sim.rooms.ledger import Ledger, Value

RULE = "worked"


def check(ledger: Ledger, group: GroupNumber, part: Part, shown: Shown) -> None:
    account = ledger.accounts[group, part]
    cancelled = ledger.postponed[part].cancelled
    worked = ledger.worked[group]
    for offset, value in ledger.contents[part].values.items():
        if shown.is_settled(offset):
            require(
                value in worked or value in account.passed or value in account.ended or value in cancelled,
                RULE,
                f"message {value}, offset {offset} of {part}, is born settled for group {group}: {shown}",
            )
        elif offset in shown.leased or offset in shown.tries:
            fresh = value in account.leased or value in account.passed
            require(fresh, RULE, f"message {value}, offset {offset} of {part}, is born delivered: {shown}")


def check_settled(ledger: Ledger, group: GroupNumber, part: Part, values: Iterable[Value]) -> None:
    """Somebody settled these just now."""
    for value in values:
        known = value in ledger.worked[group]
        require(known, RULE, f"message {value} of {part} is settled for group {group}; nobody has worked it off")
