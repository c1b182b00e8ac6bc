"""Which partition a message goes to when it has no key and does not say so."""

from itertools import count


class RoundRobin:
    """One partition per batch, the next one for the next batch."""

    def __init__(self) -> None:
        self._turns = count()

    def next(self, partitions: int) -> int:
        return next(self._turns) % partitions
