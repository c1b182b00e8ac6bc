"""Where a group stands in a partition never goes back, but by a reset or with the messages themselves."""

from goqueue.groups.group import Part
from goqueue.model.names import GroupNumber
from sim.checkers import require
from sim.checkers.delivered import Shown
from sim.rooms.ledger import Ledger

RULE = "marks"


def check(ledger: Ledger, group: GroupNumber, part: Part, shown: Shown | None) -> None:
    """While a broker lives, and after it died. Before the partition's first message there is nowhere to stand."""
    content = ledger.contents[part]
    floor = min(ledger.accounts[group, part].floor, content.end)
    low = max(shown.low if shown is not None else 0, content.start)
    require(low >= floor, RULE, f"group {group} has settled {part} up to {low}, it was {floor}")
