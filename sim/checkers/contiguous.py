"""Every offset from start to end is there, or its absence has a reason: cleaned, or damaged and reported so."""

from sim.checkers import require
from sim.checkers.observed import Observed
from sim.rooms.cleaning import Cleaning
from sim.rooms.history import History

RULE = "contiguous"


def check(history: History, observed: Observed, cleaning: Cleaning) -> None:
    present = {seen.offset for seen in observed.read}
    for offset in range(observed.start, observed.end):
        if offset in present:
            require(
                not observed.is_quarantined(offset), RULE, f"offset {offset} is readable and reported as quarantined"
            )
        elif offset in history.damaged:
            reported = observed.is_quarantined(offset) or cleaning.may_remove(offset)
            require(reported, RULE, f"offset {offset} is damaged, but no read says so")
        else:
            require(
                cleaning.may_remove(offset),
                RULE,
                f"offset {offset} of {observed.start} to {observed.end} is missing without a reason "
                f"(quarantined: {observed.quarantined}, damaged: {sorted(history.damaged)})",
            )
    require(
        observed.start <= history.start_limit or cleaning.may_start_at(observed.start),
        RULE,
        f"the log starts at {observed.start}; asked for was {history.start_limit} and retention does not explain it",
    )
