"""Leader epochs and the start offset never go back."""

from itertools import pairwise

from sim.checkers import require
from sim.checkers.observed import Observed
from sim.rooms.history import History

RULE = "forward"


def check(history: History, observed: Observed) -> None:
    require(observed.start >= history.start, RULE, f"the log starts at {observed.start}, before it was {history.start}")
    epochs = observed.epochs
    for (epoch, start), (next_epoch, next_start) in pairwise(epochs):
        require(epoch < next_epoch and start <= next_start, RULE, f"leader epochs are out of order: {epochs}")
    allowed = history.allowed_epochs(observed.end)
    require(epochs in allowed, RULE, f"leader epochs are {epochs}; they may be {allowed}")
    require(
        not epochs or epochs[-1][1] <= observed.end,
        RULE,
        f"leader epoch {epochs[-1:]} begins past the end of the log, {observed.end}",
    )
