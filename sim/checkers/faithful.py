"""No phantom, no reordering: every record read is, byte for byte, what was appended at that offset."""

from sim.checkers import require
from sim.checkers.observed import Observed
from sim.rooms.history import History

RULE = "faithful"


def check(history: History, observed: Observed) -> None:
    last = observed.start - 1
    for offset, _, raw in observed.read:
        require(last < offset < observed.end, RULE, f"offset {offset} is read after {last}, in a log to {observed.end}")
        last = offset
        entry = history.candidate(offset)
        if entry is None:
            require(False, RULE, f"offset {offset} is read although nothing was appended there")
        elif entry.raw != raw:
            require(False, RULE, f"offset {offset} reads {raw[:60]!r}, appended was {entry.raw[:60]!r}")
        require(offset not in history.cleaned, RULE, f"offset {offset} was cleaned away and has come back")
