"""Where each message of a partition is for one group, the plain way: a word for every offset.

What every command to a sidecar does to it is said here once more, without bitmaps, records or selections, so that the
product can be compared with it. It never looks at the product.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from goqueue.delivery.commands import (
    Abandon,
    Ack,
    Claims,
    Expire,
    Extend,
    Forget,
    GiveBack,
    GiveUp,
    Lapse,
    Lease,
    Nack,
    Open,
    Reject,
    ResetTo,
    Retries,
    Settle,
    Skip,
    Start,
)

NOBODY = 0
"""A poll that no handle has."""


class Moment(NamedTuple):
    """The time, on the wall and by the clock that never steps."""

    wall: int
    now: int

    def again(self, until: int, span_ms: int) -> int:
        """When something is over that an earlier life meant to end at `until`, after `span_ms`."""
        return self.now + min(max(until - self.wall, 0), span_ms)


class Held(NamedTuple):
    """A lease of one message."""

    poll: int
    holder: str
    until: int
    span_ms: int
    due: int
    """When it lapses, by the clock that never steps."""


class Waiting(NamedTuple):
    """A message that is not tried again before `due`."""

    until: int
    span_ms: int
    due: int


class Tried(NamedTuple):
    """A message that was delivered, and that failed."""

    count: int  # type: ignore[assignment]  # hides tuple.count
    poll: int
    """Whose handle may still settle it."""


class Effects(NamedTuple):
    """What a command ended: by offset."""

    settled: list[int]
    """Somebody said so."""
    dropped: list[int]
    """Nobody will get it."""
    doomed: list[tuple[int, int]]
    """To be written to the dead letters, with how often it was delivered."""


@dataclass(slots=True)
class Places:
    """What is in none of them is ready, if it is there and due."""

    done: set[int] = field(default_factory=set)
    held: dict[int, Held] = field(default_factory=dict)
    waiting: dict[int, Waiting] = field(default_factory=dict)
    """Also those whose time has come and that nobody was leased since."""
    dead: set[int] = field(default_factory=set)
    tries: dict[int, Tried] = field(default_factory=dict)

    def copy(self) -> "Places":
        return Places(set(self.done), dict(self.held), dict(self.waiting), set(self.dead), dict(self.tries))

    # --- looking

    def count(self, offset: int) -> int:
        """How often it was delivered before."""
        tried = self.tries.get(offset)
        return 0 if tried is None else tried.count

    def is_taken(self, offset: int) -> bool:
        return offset in self.held or offset in self.waiting or offset in self.dead

    def is_under_way(self, offset: int) -> bool:
        """Delivered before, and not done with. The dead are."""
        return offset in self.held or (offset in self.tries and offset not in self.dead)

    def settler(self, offset: int, *, lapsed: bool = True) -> int:
        """Whose handle may settle it; without `lapsed` only who still holds it."""
        if offset in self.held:
            return self.held[offset].poll
        tried = self.tries.get(offset)
        return tried.poll if lapsed and tried is not None and not self.is_taken(offset) else NOBODY

    def claimed(self, claims: Claims, *, lapsed: bool = True) -> set[int]:
        """Those for which the right poll is named."""
        return {
            offset
            for poll, offsets in claims.items()
            for offset in offsets
            if self.settler(offset, lapsed=lapsed) == poll
        }

    def below(self, command: Settle) -> set[int]:
        """What a commit settles."""
        held = {
            offset
            for offset, each in self.held.items()
            if offset < command.below and each.poll <= command.to and command.holder in ("", each.holder)
        }
        if command.holder:
            return held
        return held | {
            offset
            for offset, tried in self.tries.items()
            if offset < command.below and NOBODY < tried.poll <= command.to and not self.is_taken(offset)
        }

    # --- changing

    def do(self, command: Any, at: Moment) -> Effects:
        effects = Effects([], [], [])
        match command:
            case Start(low=low) | ResetTo(low=low):
                self._begin(low)
            case Forget():
                self._begin(0)
            case Open():
                self._take_back(self.held)
                self.tries = {offset: tried._replace(poll=NOBODY) for offset, tried in self.tries.items()}
            case Abandon(holder=holder):
                self._take_back([offset for offset, held in self.held.items() if held.holder == holder])
            case Lease():
                self._lease(command, at)
            case GiveBack():
                self._give_back(command)
            case Settle():
                self._settle(self.below(command), effects.settled)
            case Ack(claims=claims):
                self._settle(self.claimed(claims), effects.settled)
            case Skip(first=first, end=end):
                self._settle(range(first, end), effects.dropped)
            case Extend(claims=claims, span_ms=span_ms):
                for offset in self.claimed(claims, lapsed=False):
                    until, due = at.wall + span_ms, at.now + span_ms
                    self.held[offset] = self.held[offset]._replace(until=until, span_ms=span_ms, due=due)
            case Nack():
                self._nack(command, at, effects)
            case Lapse():
                self._lapse(command, effects)
            case Reject(claims=claims, dead_letters=dead_letters):
                self._end(self.claimed(claims), effects, dead_letters=dead_letters)
            case (
                Expire(offsets=offsets, dead_letters=dead_letters) | GiveUp(offsets=offsets, dead_letters=dead_letters)
            ):
                self._end(offsets, effects, dead_letters=dead_letters)
        return effects

    def _begin(self, low: int) -> None:
        self.done = set(range(low))
        self.held, self.waiting, self.dead, self.tries = {}, {}, set(), {}

    def _lease(self, command: Lease, at: Moment) -> None:
        held = Held(command.poll, command.holder, at.wall + command.span_ms, command.span_ms, at.now + command.span_ms)
        for offset in command.offsets:
            self.waiting.pop(offset, None)
            self.held[offset] = held
        for offset in [each for each in self.tries if each < command.start]:
            self.waiting.pop(offset, None)  # retention took it
            if not self.is_taken(offset):
                del self.tries[offset]

    def _give_back(self, command: GiveBack) -> None:
        """As if it had not been delivered: nobody saw it, so nobody can settle it."""
        named = range(command.after + 1, command.to + 1)
        for offset, held in list(self.held.items()):
            if held.poll in named and command.holder in ("", held.holder):
                del self.held[offset]
        if command.holder:
            return
        lapsed = [offset for offset, tried in self.tries.items() if tried.poll in named and not self.is_taken(offset)]
        for offset in lapsed:
            count = self.tries.pop(offset).count - 1
            if count:
                self.tries[offset] = Tried(count, NOBODY)

    def _take_back(self, offsets: Iterable[int]) -> None:
        for offset in list(offsets):
            self._fail(offset, NOBODY)

    def _fail(self, offset: int, poll: int) -> int:
        """How often it has failed by now."""
        self.held.pop(offset, None)
        self.tries[offset] = Tried(self.count(offset) + 1, poll)
        return self.count(offset)

    def _nack(self, command: Nack, at: Moment, effects: Effects) -> None:
        failed = {offset: self._fail(offset, NOBODY) for offset in self.claimed(command.claims, lapsed=False)}
        for offset in sorted(self._exhausted(failed, command.retries, effects)):
            span_ms = command.delay_ms
            if span_ms is None:
                span_ms = command.retries.backoff.delay_ms(failed[offset])
            self.waiting[offset] = Waiting(at.wall + span_ms, span_ms, at.now + span_ms)

    def _lapse(self, command: Lapse, effects: Effects) -> None:
        lapsed = [offset for offset, held in self.held.items() if (held.poll, held.until) in command.leases]
        failed = {offset: self._fail(offset, self.held[offset].poll) for offset in lapsed}
        self._exhausted(failed, command.retries, effects)

    def _exhausted(self, failed: Mapping[int, int], retries: Retries, effects: Effects) -> set[int]:
        """Those that failed too often are ended. The others."""
        ended = {offset for offset, count in failed.items() if count > retries.most}
        self._end(ended, effects, dead_letters=retries.dead_letters)
        return failed.keys() - ended

    def _end(self, offsets: Iterable[int], effects: Effects, *, dead_letters: bool) -> None:
        for offset in sorted(offsets):
            if dead_letters:
                if offset in self.held:
                    self._fail(offset, NOBODY)
                self.waiting.pop(offset, None)
                self.dead.add(offset)
                effects.doomed.append((offset, self.count(offset)))
            else:
                self._settle([offset], effects.dropped)

    def _settle(self, offsets: Iterable[int], settled: list[int]) -> None:
        for offset in sorted(offsets):
            for memory in (self.held, self.waiting, self.tries):
                memory.pop(offset, None)
            self.dead.discard(offset)
            self.done.add(offset)
            settled.append(offset)

    def bury(self, offsets: Iterable[int]) -> None:
        """Their letters are written."""
        self._settle([offset for offset in offsets if offset in self.dead], [])
