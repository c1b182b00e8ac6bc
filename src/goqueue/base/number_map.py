"""A map from numbers to numbers that costs sixteen bytes an entry: two sorted arrays instead of objects.

For many entries that are rarely touched. Finding is a bisection; a new key moves those behind it.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterator


class NumberMap:
    """Keys and values fit into 64 bits."""

    __slots__ = ("_keys", "_values")

    def __init__(self) -> None:
        self._keys = array("q")
        self._values = array("q")

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(list(zip(self._keys, self._values, strict=True)))

    def get(self, key: int) -> int | None:
        keys = self._keys
        at = bisect_left(keys, key)
        return self._values[at] if at < len(keys) and keys[at] == key else None

    def set(self, key: int, value: int) -> None:
        keys = self._keys
        at = bisect_left(keys, key)
        if at < len(keys) and keys[at] == key:
            self._values[at] = value
        else:
            keys.insert(at, key)
            self._values.insert(at, value)

    def add(self, key: int, value: int) -> None:
        """To what it has; to 0 when it has nothing."""
        keys = self._keys
        at = bisect_left(keys, key)
        if at < len(keys) and keys[at] == key:
            self._values[at] += value
        else:
            keys.insert(at, key)
            self._values.insert(at, value)

    def pop(self, key: int) -> int | None:
        at = bisect_left(self._keys, key)
        if at == len(self._keys) or self._keys[at] != key:
            return None
        del self._keys[at]
        return self._values.pop(at)
