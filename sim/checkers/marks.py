"""Where a group stands in a partition never goes back, but by a reset or with the messages themselves."""

from goqueue.groups.group import Part
from goqueue.model.names import GroupNumber
from sim.checkers import require
from sim.checkers.delivered import Shown
from sim.rooms.ledger import Ledger

RULE = "marks"


def check(ledger: Ledger, group: GroupNumber, part: Part, shown: Shown | None) -> None:
    """While a broker lives, and after it died."""
    floor = min(ledger.accounts[group, part].floor, ledger.contents[part].end)
    low = shown.low if shown is not None else 0
    require(low >= floor, RULE, f"group {group} has settled {part} up to {low}, it was {floor}")
