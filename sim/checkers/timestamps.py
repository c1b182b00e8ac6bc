"""Append times never decrease along the log, whatever the clock did."""

from itertools import pairwise

from sim.checkers import require
from sim.checkers.observed import Observed

RULE = "timestamps"


def check(observed: Observed) -> None:
    for before, after in pairwise(observed.read):
        require(
            before.timestamp <= after.timestamp,
            RULE,
            f"offset {before.offset} has time {before.timestamp}, offset {after.offset} {after.timestamp}",
        )
