"""A timer wheel: which of millions of whole-number keys are due, with a handful of bytes for each.

Theory of operation. Time is counted in ticks of 10 ms; a deadline is rounded up to its tick, so that nothing fires
early and nothing later than one tick. The wheel stands at a *position*, a tick. Ticks are written as numbers with
digits: the lowest digit has 8 bits, every other one has 6. A key lies in the level of the highest digit in which its
tick differs from the position, in the slot of that digit's value:

    level 0     256 slots of 10 ms          the same 2.56 s as the position
    level 1      64 slots of 2.56 s         the same 163.84 s, later 2.56 s
    level 2      64 slots of 163.84 s       the same 2.9 hours
    level 3      64 slots of 10485.76 s     the same 7.77 days
    overflow    as many levels of 64 slots as it takes, each slot as long as the whole level below

So everything in a level comes before everything in the level above, and in a level the slots come in their order: the
earliest slot of the lowest level that holds anything is the next one, and the position jumps there, however far it is.
A slot of level 0 is one tick: its keys are due. A slot of a higher level *falls*: its keys are put where the new
position says, into lower levels, a bounded number in one call. A key falls at most once per level.

A slot is two columns, key and tick. Cancelling or moving a key does not look for its entry: it leaves it there, dead.
`_armed` holds the keys that count; `_doubtful` holds those that may have dead entries, and `_ticks` the tick that
counts for each of them that is armed. Dead entries go when they are met, or all at once when there are too many.

Invariants, between any two statements that can call out:
- an armed key has at least one entry that counts; it is disarmed before it fires, so it fires once;
- an entry is dead only if its key is doubtful; of a doubtful key those count whose tick is the one in `_ticks`;
- a doubtful key is in `_ticks` exactly when it is armed;
- `_ready` and `_late` hold ticks that have come; every slot and `_falling` hold ticks after `_done`;
- entries of the same tick lie in the same slot, but for what is falling;
- without dead entries (`_entries == _count`) no doubt is justified, and all of them may be forgotten.

It does not know what the keys stand for, and it has no clock: time comes in and never goes back.
"""

from array import array
from collections.abc import Callable, Sequence
from itertools import compress
from typing import Final

from pyroaring import BitMap64

from goqueue.base.offset_sets import column

TICK_MS: Final = 10

_DIGITS: Final = (8, 6, 6, 6, 6, 6, 6, 6, 6, 6)
"""Bits of each level's digit; from the fifth on it is the overflow."""
_SHIFTS: Final = tuple(sum(_DIGITS[:level]) for level in range(len(_DIGITS)))
_LEVEL_OF: Final = (0, *(level for level, bits in enumerate(_DIGITS) for _ in range(bits)))
"""The level for the number of bits in which a tick differs from the position."""
_MAX_DEADLINE_MS: Final = ((1 << sum(_DIGITS)) - 1) * TICK_MS

_STRIDE: Final = 1 << 12
"""Entries that fall in one call at most: some ten milliseconds' work."""
_SPARE: Final = 64
"""Dead entries that are never worth a sweep."""
_NEVER: Final = 1 << 63
"""A tick that does not come."""

_Slot = tuple["array[int]", "array[int]"]
"""Keys, and the tick of each."""


class _Level(dict[int, _Slot]):
    """The slots that hold anything, by the number of their span (`tick >> shift`); all are of the same turn."""

    __slots__ = ("_last", "_taken", "shift")

    def __init__(self, shift: int, bits: int) -> None:
        super().__init__()
        self.shift = shift
        self._last = (1 << bits) - 1
        self._taken = 0
        """A bit for each slot that is there."""

    def __missing__(self, span: int) -> _Slot:
        slot = self[span] = (array("Q"), array("q"))
        self._taken |= 1 << (span & self._last)
        return slot

    @property
    def first(self) -> int:
        """The earliest span. There must be one."""
        turn = next(iter(self)) & ~self._last
        return turn | ((self._taken & -self._taken).bit_length() - 1)

    def take(self, span: int) -> _Slot:
        self._taken &= ~(1 << (span & self._last))
        return self.pop(span)


class TimerWheel:
    """Keys are from 0 to 2**62, times whole milliseconds from 0. One caller at a time; `fire` may call back into it."""

    __slots__ = (
        "_armed",
        "_count",
        "_done",
        "_doubtful",
        "_doubts",
        "_entries",
        "_fallen",
        "_falling",
        "_late",
        "_levels",
        "_now",
        "_position",
        "_ready",
        "_ticks",
    )

    def __init__(self, now: int) -> None:
        if now < 0:
            raise ValueError(f"the clock of a wheel starts at 0 or later, not at {now}")
        self._now = now
        self._position = self._done = now // TICK_MS
        """`_done` is the last tick whose slot was taken out: the position, or the tick before it."""
        self._levels = tuple(_Level(shift, bits) for shift, bits in zip(_SHIFTS, _DIGITS, strict=True))
        self._falling: _Slot = (array("Q"), array("q"))
        """What is left of a slot that is under way to lower levels. Nothing fires before it is empty."""
        self._fallen = 0
        """How many fell in this call."""
        self._ready = array("Q")
        """Due and about to fire, from the end."""
        self._late = array("Q")
        """Armed with a deadline that had passed: ready when the next call begins, so that no call goes on for ever."""
        self._armed = BitMap64()
        self._count = 0
        """Keys that are armed: counting a bitmap is not free."""
        self._entries = 0
        """Entries anywhere, dead ones too."""
        self._doubtful = BitMap64()
        self._doubts = 0
        """How often a key was put there since it was last empty; never less than it holds."""
        self._ticks: dict[int, int] = {}

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: int) -> bool:
        return key in self._armed

    # --- arming

    def insert(self, key: int, deadline: int) -> None:
        """Fire it at `deadline`, and at no other time it was armed for before. What has passed fires next time."""
        tick = self._tick(deadline)
        if key in self._armed:
            if self._ticks.get(key) == tick:
                return
            self._doubtful.add(key)
            self._doubts += 1
            self._ticks[key] = tick
        else:
            self._armed.add(key)
            self._count += 1
            if self._doubts and key in self._doubtful:
                self._ticks[key] = tick
        self._entries += 1
        if tick <= self._done:
            self._late.append(key)
        else:
            level = self._levels[_LEVEL_OF[(tick ^ self._position).bit_length()]]
            keys, ticks = level[tick >> level.shift]
            keys.append(key)
            ticks.append(tick)
        if self._ticks:
            self._tidy()

    def extend(self, keys: Sequence[int], deadlines: Sequence[int]) -> None:
        """The same as many inserts, faster for keys that are new; of a key named twice the last deadline counts."""
        if len(keys) != len(deadlines):
            raise ValueError(f"{len(keys)} keys cannot have {len(deadlines)} deadlines")
        if not keys:
            return
        _check(max(deadlines))
        column = array("Q", keys)
        fresh = BitMap64(column)
        known = (fresh & self._armed) | (fresh & self._doubtful)
        if len(fresh) < len(column):
            known = fresh  # one of them is named twice
        if known:
            for key, deadline in zip(keys, deadlines, strict=True):
                if key in known:
                    self.insert(key, deadline)
            if len(known) < len(fresh):
                rest = [key not in known for key in keys]
                self.extend(list(compress(keys, rest)), list(compress(deadlines, rest)))
            return
        if min(deadlines) > self._now:
            ticks = array("q", [-(-deadline // TICK_MS) for deadline in deadlines])
            late = array("Q")
        else:
            ticks = array("q", map(self._tick, deadlines))
            late = array("Q", [key for key, tick in zip(column, ticks, strict=True) if tick <= self._done])
            column = array("Q", [key for key, tick in zip(column, ticks, strict=True) if tick > self._done])
            ticks = array("q", [tick for tick in ticks if tick > self._done])
        self._armed |= fresh
        self._count += len(fresh)
        self._entries += len(fresh)
        self._late += late
        self._spread(column, ticks)

    def move(self, key: int, deadline: int) -> bool:
        """Give an armed key a new deadline. False: it is not armed, and stays so."""
        if key not in self._armed:
            return False
        self.insert(key, deadline)
        return True

    def cancel(self, key: int) -> bool:
        """Whether it was armed."""
        if key not in self._armed:
            return False
        self._armed.discard(key)
        self._count -= 1
        self._ticks.pop(key, None)
        self._doubtful.add(key)
        self._doubts += 1
        self._tidy()
        return True

    def cancel_all(self, keys: BitMap64) -> BitMap64:
        """Those of them that were armed."""
        cancelled = self._armed & keys
        if cancelled:
            if self._ticks:
                for key in column(cancelled & self._doubtful):
                    del self._ticks[key]
            self._armed -= cancelled
            self._count -= len(cancelled)
            self._doubtful |= cancelled
            self._doubts += len(cancelled)
            self._tidy()
        return cancelled

    # --- firing

    @property
    def next_deadline(self) -> int | None:
        """When there is something to do: the earliest tick, or earlier when a slot has to fall; now, when it is due."""
        if self._is_due(self._ready) or self._holds(self._falling) or self._is_due(self._late):
            return self._now
        for level in self._levels:
            while level:
                span = level.first
                if self._holds(level[span]):
                    return (span << level.shift) * TICK_MS
                level.take(span)
        return None

    def advance(self, now: int, fire: Callable[[int], None], limit: int) -> bool:
        """Fire what is due, `limit` keys at most, tick after tick. True: call again, there is more to do by now.

        What `fire` arms for a time that has passed fires in the next call at the latest. When `fire` raises, its key
        has fired and the rest is left for the next call. A call in which a large slot falls may fire fewer, or none.
        """
        self._begin(now)
        while self._ready or self._refill():
            while self._is_due(self._ready):
                if limit <= 0:
                    return True
                limit -= 1
                key = self._ready.pop()
                self._entries -= 1
                self._armed.discard(key)
                self._count -= 1
                self._ticks.pop(key, None)
                fire(key)
        return bool(self._falling[0]) or self._is_due(self._late)

    def due(self, now: int, limit: int) -> BitMap64:
        """Disarm and return what is due, `limit` keys at most, those of earlier ticks before those of later ones.

        There is more as long as `next_deadline` is not later than `now`. A call in which a large slot falls may return
        fewer than there are, or none.
        """
        self._begin(now)
        found = BitMap64()
        room = limit
        while self._ready or self._refill():
            if not self._is_due(self._ready):
                continue
            if room <= 0:
                break
            keys = BitMap64(self._ready[-room:])
            self._entries -= min(room, len(self._ready))
            del self._ready[-room:]
            if self._doubts:
                keys &= self._armed
                for key in column(keys & self._doubtful):
                    if self._has_come(key):
                        del self._ticks[key]
                    else:
                        keys.discard(key)
            self._armed -= keys
            self._count -= len(keys)
            room -= len(keys)
            found |= keys
        return found

    def _begin(self, now: int) -> None:
        self._now = max(self._now, now)
        self._fallen = 0
        if self._late:
            # In front of those that wait already: these go first.
            self._late += self._ready
            self._ready = self._late
            self._late = array("Q")
        if self._doubts and self._entries == self._count:
            self._forget_doubts()

    def _refill(self) -> bool:
        """Take out the next slot that is due. False: there is none, or enough fell for one call."""
        target = self._now // TICK_MS
        while True:
            if self._falling[0]:
                if self._fallen >= _STRIDE:
                    return False
                self._fall()
                continue
            level = next(filter(None, self._levels), None)
            if level is None or (start := (span := level.first) << level.shift) > target:
                self._position = self._done = target
                return False
            slot = level.take(span)
            self._position = start
            if level.shift == 0:
                self._done = start
                self._ready = slot[0]
                return True
            self._done = start - 1
            self._falling = slot

    def _fall(self) -> None:
        """Put some of what falls into lower levels."""
        room = _STRIDE - self._fallen
        keys, ticks = (falling[-room:] for falling in self._falling)
        for falling in self._falling:
            del falling[-room:]
        self._fallen += len(keys)
        if self._doubts:
            self._drop_dead(keys, ticks)
        self._spread(keys, ticks)

    def _spread(self, keys: "array[int]", ticks: "array[int]") -> None:
        """Put entries into the slots where they belong, all of them after `_done`."""
        while keys:
            low, high = min(ticks), max(ticks)
            level = self._levels[_LEVEL_OF[(high ^ self._position).bit_length()]]
            shift = level.shift
            if low >> shift == high >> shift:
                its_keys, its_ticks = level[low >> shift]
                its_keys += keys
                its_ticks += ticks
                return
            for key, tick in zip(keys, ticks, strict=True):
                its_keys, its_ticks = level[tick >> shift]
                its_keys.append(key)
                its_ticks.append(tick)
            # What lies in the slot of the position itself belongs to a lower level.
            if shift == 0 or (here := self._position >> shift) not in level:
                return
            keys, ticks = level.take(here)

    def _tick(self, deadline: int) -> int:
        """The tick it fires in. What has passed need not wait for its tick to end."""
        if deadline > self._now:
            _check(deadline)
            return -(-deadline // TICK_MS)
        return min(-(-deadline // TICK_MS), self._now // TICK_MS)

    # --- dead entries

    def _counts(self, key: int, tick: int) -> bool:
        return key not in self._doubtful or self._ticks.get(key) == tick

    def _is_due(self, keys: "array[int]") -> bool:
        """Whether any key of `_ready` or `_late` will fire; the last one does, then."""
        while keys:
            if not self._doubts or self._has_come(keys[-1]):
                return True
            keys.pop()
            self._entries -= 1
        return False

    def _has_come(self, key: int) -> bool:
        """Whether an entry in `_ready` or `_late` counts: any does while the tick of its key has come."""
        return key not in self._doubtful or self._ticks.get(key, _NEVER) <= self._done

    def _holds(self, slot: _Slot) -> bool:
        """Whether anything in it counts."""
        keys, ticks = slot
        while keys:
            if not self._doubts or self._counts(keys[-1], ticks[-1]):
                return True
            keys.pop()
            ticks.pop()
            self._entries -= 1
        return False

    def _tidy(self) -> None:
        """Sweep when too much is dead or in doubt. As many moves or cancels have gone before as it has work."""
        dead = self._entries - self._count
        if (
            dead > self._entries // 2 + _SPARE
            or len(self._ticks) > self._entries // 8 + _SPARE
            or self._doubts > 2 * self._entries + _SPARE
        ):
            self._sweep()

    def _sweep(self) -> None:
        """Leave one entry of each armed key. Columns are changed in place: a call may be under way."""
        ready = BitMap64([key for key in self._ready if self._has_come(key)])
        late = BitMap64([key for key in self._late if self._has_come(key)]) - ready
        self._ready[:] = ready.to_array()
        self._late[:] = late.to_array()
        # Entries of the same key and tick must lie in the same slot, or both would stay.
        falling, self._falling = self._falling, (array("Q"), array("q"))
        self._spread(*falling)
        for level in self._levels:
            for span, slot in list(level.items()):
                self._drop_dead(*slot)
                if not slot[0]:
                    level.take(span)
        self._entries = self._count
        self._forget_doubts()

    def _drop_dead(self, keys: "array[int]", ticks: "array[int]") -> None:
        """Leave one entry of each key that counts here."""
        doubtful, moved = self._doubtful, self._ticks
        if not doubtful.intersect(BitMap64(keys)):
            return
        before = len(keys)
        left = [key not in doubtful or moved.get(key) == tick for key, tick in zip(keys, ticks, strict=True)]
        keys[:] = array("Q", compress(keys, left))
        ticks[:] = array("q", compress(ticks, left))
        if len(BitMap64(keys)) < len(keys):
            # A key was moved to the tick it had.
            once = dict(zip(keys, ticks, strict=True))
            keys[:] = array("Q", once)
            ticks[:] = array("q", once.values())
        self._entries -= before - len(keys)

    def _forget_doubts(self) -> None:
        self._doubtful.clear()
        self._doubts = 0
        self._ticks.clear()


def _check(deadline: int) -> None:
    if deadline > _MAX_DEADLINE_MS:
        raise ValueError(f"a deadline of {deadline} ms is beyond the end of the clock, {_MAX_DEADLINE_MS} ms")
