"""After a kill it is still known what is leased, to which poll; what was being written down is known or not, whole."""

from goqueue.delivery.deliveries import Lease
from goqueue.groups.group import Part
from goqueue.model.names import GroupNumber
from sim.checkers import require
from sim.checkers.delivered import Shown
from sim.rooms.ledger import Ledger

RULE = "leases"


def check(ledger: Ledger, group: GroupNumber, part: Part, shown: Shown | None) -> None:
    """While a broker lives, and after it was killed."""
    account = ledger.accounts[group, part]
    found = set(shown.leased) if shown is not None else set()
    allowed = [set(account.held)]
    command = ledger.doubts.get(part)
    if command is not None and command.group == group:
        more = command.spans if isinstance(command, Lease) else ()
        allowed.append(set(account.after(command)).union(*(range(first, end) for first, end in more)))
    require(found in allowed, RULE, f"group {group} holds {sorted(found)} of {part}, not {allowed} ({command})")
