"""Deadlines by key: which is the earliest, and which have passed.

Made for deadlines that are nearly always put off before they come, as sessions are: putting one off costs nothing
here. Its owner leaves the old one armed, finds the key among those due, and arms it anew.
"""

import heapq
from collections.abc import Hashable
from itertools import count
from typing import Final, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

_SPARE: Final = 16
"""Entries that no longer count and may lie around, beside as many as there are keys."""


class Deadlines(Generic[Key]):
    """Each key is armed at most once, at the earliest time anybody named for it."""

    __slots__ = ("_armed", "_heap", "_order")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Key]] = []
        """Time, a number so that keys are never compared, key. Entries that are not in `_armed` no longer count."""
        self._armed: dict[Key, tuple[int, int, Key]] = {}
        self._order = count()

    def __len__(self) -> int:
        return len(self._armed)

    def arm(self, key: Key, when: int) -> bool:
        """Have it among those due at `when`, or earlier if it is already armed for earlier; whether that is new."""
        armed = self._armed.get(key)
        is_new = armed is None or when < armed[0]
        if is_new:
            entry = self._armed[key] = (when, next(self._order), key)
            heapq.heappush(self._heap, entry)
            if len(self._heap) > 2 * len(self._armed) + _SPARE:
                self._heap = [entry for entry in self._heap if self._counts(entry)]
                heapq.heapify(self._heap)
        return is_new

    def disarm(self, key: Key) -> None:
        self._armed.pop(key, None)

    @property
    def earliest(self) -> int | None:
        heap, armed = self._heap, self._armed
        while heap:
            entry = heap[0]
            if armed.get(entry[2]) is entry:
                return entry[0]
            heapq.heappop(heap)
        return None

    def due(self, now: int) -> list[Key]:
        """Those whose time has come, earliest first; they are no longer armed."""
        found = []
        while (earliest := self.earliest) is not None and earliest <= now:
            key = heapq.heappop(self._heap)[2]
            del self._armed[key]
            found.append(key)
        return found

    def _counts(self, entry: tuple[int, int, Key]) -> bool:
        return self._armed.get(entry[2]) is entry
