"""What was answered is not lost: a message that is settled, or dead, stays so, and is never delivered again."""

from collections.abc import Iterable

from goqueue.groups.group import Part
from goqueue.model.names import GroupNumber
from sim.checkers import require
from sim.checkers.delivered import Shown
from sim.rooms.ledger import Ledger, Value

RULE = "kept"


def check(ledger: Ledger, group: GroupNumber, part: Part, shown: Shown | None) -> None:
    promised = ledger.accounts[group, part].promised
    for offset, value in ledger.contents[part].values.items():
        if value in promised:
            kept = shown is not None and (shown.is_settled(offset) or offset in shown.dead)
            require(kept, RULE, f"message {value}, offset {offset} of {part}, was settled by group {group}: {shown}")


def check_delivery(ledger: Ledger, group: GroupNumber, part: Part, values: Iterable[Value]) -> None:
    promised = ledger.accounts[group, part].promised
    for value in values:
        require(value not in promised, RULE, f"message {value} of {part} was settled and is delivered again")
