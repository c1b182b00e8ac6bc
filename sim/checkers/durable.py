"""Nothing the log called durable is missing; after a kill, nothing it took is missing."""

from sim.checkers import require
from sim.checkers.observed import Observed
from sim.rooms.history import History

RULE = "durable"


def check(history: History, observed: Observed) -> None:
    require(
        any(low <= observed.end <= high for low, high in history.ends()),
        RULE,
        f"the log ends at {observed.end}; it may end in {history.ends()} "
        f"(written {history.end}, durable {history.durable}, in doubt {len(history.appending)})",
    )
    require(observed.durable <= observed.end, RULE, f"durable {observed.durable} is past the end {observed.end}")
