"""After a kill it is still known what is leased, to which poll and until when; what was being written down is known or
not, whole."""

from goqueue.delivery.commands import Lease
from goqueue.groups.group import Part
from goqueue.model.names import GroupNumber
from sim.checkers import require
from sim.checkers.delivered import Shown
from sim.rooms.ledger import Ledger
from sim.rooms.places import Places

RULE = "leases"


def check(ledger: Ledger, group: GroupNumber, part: Part, shown: Shown | None) -> None:
    """While a broker lives, and after it was killed."""
    found = {offset: tuple(lease) for offset, lease in shown.leased.items()} if shown is not None else {}
    allowed = [_leased(places) for places in ledger.possible(group, part)]
    doubt = ledger.doubts.get(part)
    if doubt is None or isinstance(doubt.command, Lease):
        require(found in allowed, RULE, f"group {group} holds {found} of {part}, not {allowed} ({doubt})")
    for offset in found.keys() | {offset for leased in allowed for offset in leased}:
        may = [leased.get(offset) for leased in allowed]
        require(
            found.get(offset) in may,
            RULE,
            f"offset {offset} of {part} is leased to {found.get(offset)} of group {group}, not {may} ({doubt})",
        )


def _leased(places: Places) -> dict[int, tuple[int, str, int, int]]:
    return {offset: (each.poll, each.holder, each.until, each.span_ms) for offset, each in places.held.items()}
