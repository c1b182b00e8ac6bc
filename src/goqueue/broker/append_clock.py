"""When records were appended at the latest, where their append times may say more.

Append times never go back. After the wall's clock was ahead for a while, those of the records that follow stay where it
was until it gets there again, and a time to live that counts from them would be too long. So a partition remembers what
the clock showed: soft state, which a restart replaces by the time of the restart.

Invariant: points ascend, both in their ends and in their times; what lies below an end was appended by its time. So
what is concluded is never too early.
"""

from bisect import bisect_right

from goqueue.model import limits


class AppendClock:
    """Times are Unix milliseconds. Costs nothing while the clock has not been ahead."""

    __slots__ = ("_ends", "_times")

    def __init__(self) -> None:
        self._ends: list[int] = []
        self._times: list[int] = []

    def tell(self, end: int, now: int) -> None:
        """All records below `end` are there, and it is `now`; the append time of the last is later than that."""
        ends, times = self._ends, self._times
        while times and times[-1] >= now:  # the clock was set back further: the new point says more
            ends.pop()
            times.pop()
        if len(times) > 1 and now - times[-2] < limits.APPEND_CLOCK_MS:
            ends.pop()
            times.pop()
        ends.append(end)
        times.append(now)
        if len(ends) > limits.APPEND_CLOCK_POINTS:  # every other one: those below it count as later than they were
            del ends[:-1:2], times[:-1:2]

    def of(self, offset: int, timestamp: int) -> int:
        """When a record with this append time was appended: then or before."""
        at = bisect_right(self._ends, offset)
        return min(timestamp, self._times[at]) if at < len(self._times) else timestamp

    def knows(self, offset: int) -> bool:
        """Whether any record at or after `offset` has an append time ahead of the clock."""
        return bool(self._ends) and offset < self._ends[-1]
