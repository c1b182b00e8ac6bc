"""Virtual time: it moves only when the schedule says so."""

EPOCH_MS = 1_700_000_000_000


class SimClock:
    """Milliseconds. `now` is what a wall clock shows (it may be set back); `elapsed` only grows."""

    def __init__(self, now: int = EPOCH_MS) -> None:
        self.elapsed = 0
        self._wall = now

    @property
    def now(self) -> int:
        return self._wall + self.elapsed

    def advance(self, milliseconds: int) -> None:
        if milliseconds < 0:
            raise ValueError("time does not run backwards; use `step` for a clock that is set")
        self.elapsed += milliseconds

    def step(self, milliseconds: int) -> None:
        """Set the wall clock forward or back, as an operator or a time server does."""
        self._wall += milliseconds
