"""A partition's delayed messages that are not due: which they are, and wheels that say when each is.

A view of the log, rebuilt at every start: the due time is in the record. A message is due when the wall's clock has
reached its time and, while the process lives, as much time has really passed as there was left when it came. So a
wheel runs on a clock of its own: the wall's as it was when the wheel was made, driven by a clock that never steps; and
it is advanced no further than the wall is. Messages that come after a step of the wall's clock get a wheel of their
own; one that is empty goes.
"""

from collections.abc import Sequence
from typing import Final

from pyroaring import BitMap64

from goqueue.base.offset_sets import column, cut_below
from goqueue.base.wheel import TimerWheel

_STEP_MS: Final = 5
"""Two readings of two clocks are never made at once: a smaller difference is no step."""


class _Era:
    """The messages that came while the wall's clock was `ahead_ms` ahead of the one that never steps."""

    __slots__ = ("_reached", "ahead_ms", "wheel")

    def __init__(self, wall: int, now: int) -> None:
        self.ahead_ms = wall - now
        self.wheel = TimerWheel(wall)
        self._reached = wall

    def _clock(self, wall: int, now: int) -> int:
        """When the wall's clock has gone back it stands still until that is made up: what was due stays due."""
        clock = min(wall, now + self.ahead_ms)
        return self._reached if self._reached - clock >= _STEP_MS else clock

    def fire(self, wall: int, now: int, limit: int) -> BitMap64:
        clock = self._clock(wall, now)
        if clock < self._reached:
            return BitMap64()
        self._reached = clock
        return self.wheel.due(clock, limit)

    def next_due(self, wall: int, now: int) -> int | None:
        deadline = self.wheel.next_deadline
        if deadline is None:
            return None
        if deadline <= self._reached and self._clock(wall, now) == self._reached:
            return now
        return max(deadline, self._reached) - min(self.ahead_ms, wall - now)


class Delays:
    """`wall` is Unix time, `now` the time of a clock that never steps; both in milliseconds."""

    __slots__ = ("_behind", "_eras", "dropped", "fired", "late_ms", "moved", "pending", "scheduled")

    def __init__(self) -> None:
        self.pending = BitMap64()
        self._eras: list[_Era] = []
        """Each pending message is in the wheel of one of them."""
        self._behind: tuple[int, int] | None = None
        """When the first of those was due that the last `fire` left for the next one, and when that was."""
        self.scheduled = 0
        """Counted since the start, and so are the next three. Each of these is pending, was fired or was dropped."""
        self.fired = 0
        self.dropped = 0
        self.moved = 0
        self.late_ms = 0
        """How long after its tick the first of those that were last fired came: what is fired together came no later.
        A tick ends up to 10 ms after the time a message was to be delivered at."""

    def __len__(self) -> int:
        return len(self.pending)

    def add(self, offsets: Sequence[int], times: Sequence[int], *, wall: int, now: int) -> None:
        """Messages and when they are due. Those that are due already are left out."""
        late = [at for at, time in enumerate(times) if time > wall]
        if not late:
            return
        if len(late) < len(offsets):
            offsets, times = [offsets[at] for at in late], [times[at] for at in late]
        self._era(wall, now).wheel.extend(offsets, times)
        self.pending.update(offsets)
        self.scheduled += len(offsets)

    def _era(self, wall: int, now: int) -> _Era:
        """The one in which messages come now."""
        self._tidy()
        for era in self._eras:
            if abs(wall - now - era.ahead_ms) < _STEP_MS:
                return era
        era = _Era(wall, now)
        self._eras.append(era)
        return era

    def _tidy(self) -> None:
        self._eras = [era for era in self._eras if len(era.wheel)]

    def drop(self, offsets: BitMap64) -> None:
        """They are not to be delivered."""
        for era in self._eras:
            era.wheel.cancel_all(offsets)
        self.dropped += self.pending.intersection_cardinality(offsets)
        self.pending -= offsets

    def move(self, offsets: BitMap64, deliver_at: int, *, wall: int, now: int) -> None:
        """Those that are pending are due at another time; at once, if that has passed."""
        moved = offsets & self.pending
        if not moved:
            return
        current = self._era(wall, now)
        for era in self._eras:
            if era is not current:
                era.wheel.cancel_all(moved)
        for offset in column(moved):
            current.wheel.insert(offset, deliver_at)
        self.moved += len(moved)

    def fire(self, *, wall: int, now: int, limit: int) -> BitMap64:
        """Up to `limit` that are due by now."""
        due = self._first_due(wall, now)
        fired = BitMap64()
        for era in self._eras:
            if len(fired) < limit:
                fired |= era.fire(wall, now, limit - len(fired))
        self.pending -= fired
        self._tidy()
        if fired:
            self.fired += len(fired)
            self.late_ms = max(now - due, 0)
        following = self.next_due(wall=wall, now=now)
        self._behind = (due, now) if following is not None and following <= now else None
        return fired

    def _first_due(self, wall: int, now: int) -> int:
        """When something was due, at the earliest. What the last call left is due now, and was due before that."""
        due = self.next_due(wall=wall, now=now)
        if due is None:
            return now
        return self._behind[0] if self._behind is not None and due <= self._behind[1] else due

    def next_due(self, *, wall: int, now: int) -> int | None:
        """When `fire` has something to do, at the earliest, by the clock that never steps."""
        found = (era.next_due(wall, now) for era in self._eras)
        return min((each for each in found if each is not None), default=None)

    def clip(self, end: int) -> None:
        """Offsets from `end` on were lost."""
        lost = self.pending.copy()
        cut_below(lost, end)
        self.drop(lost)
