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
    in_force = [_since(entries, observed.start) for entries in allowed]
    require(_since(epochs, observed.start) in in_force, RULE, f"leader epochs are {epochs}; they may be {allowed}")
    require(
        not epochs or epochs[-1][1] <= observed.end,
        RULE,
        f"leader epoch {epochs[-1:]} begins past the end of the log, {observed.end}",
    )


def _since(epochs: list[tuple[int, int]], start: int) -> list[tuple[int, int]]:
    """Those in force at `start` and after: earlier ones may be forgotten with the records they speak of."""
    past = [entry for entry in epochs if entry[1] <= start]
    return past[-1:] + epochs[len(past) :]
