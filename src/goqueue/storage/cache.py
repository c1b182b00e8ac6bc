"""Indexes and views of sealed segments kept in memory, the least recently used dropped first.

Shared by the logs of a store, so that memory stays flat however many segments there are.
"""

from collections import OrderedDict
from threading import Lock

from goqueue.model import limits
from goqueue.storage.segment import Segment


class DerivedCache:
    """Invariant: what it keeps is about `limit` bytes at most, or one segment's worth."""

    def __init__(self, limit: int = limits.MAX_CACHED_INDEX_BYTES) -> None:
        self._limit = limit
        self._sizes: OrderedDict[Segment, int] = OrderedDict()
        self._total = 0
        self._lock = Lock()

    def touch(self, segment: Segment) -> None:
        """`segment.derived` was just used, or just set."""
        with self._lock:
            if segment in self._sizes:
                self._sizes.move_to_end(segment)
                return
            size = segment.derived.size if segment.derived is not None else 0
            self._sizes[segment] = size
            self._total += size
            while self._total > self._limit and len(self._sizes) > 1:
                oldest, freed = self._sizes.popitem(last=False)
                oldest.derived = None
                self._total -= freed

    def drop(self, segment: Segment) -> None:
        with self._lock:
            self._total -= self._sizes.pop(segment, 0)
