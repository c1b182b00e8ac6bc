"""The view file: sections by name, and a refusal of what does not add up."""

from collections.abc import Sequence

import pytest

from goqueue.codec import Scan
from goqueue.io.disk import Buffer
from goqueue.storage.views import View, pack, unpack

GOLDEN = bytes.fromhex("0002 01 61 00000003 010203 04 6c616e65 00000000".replace(" ", ""))
"""Two views: `a` with three bytes, `lane` with none."""


class Fixed:
    """A view that is only its bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def on_append(self, block: Buffer, scan: Scan) -> None: ...

    def on_damage(self, first: int, next_offset: int) -> None: ...

    def inherit(self, older: Sequence[View]) -> None: ...

    def anew(self) -> View:
        return Fixed(self._data)

    @property
    def carries(self) -> bool:
        return False

    def to_bytes(self) -> bytes:
        return self._data

    @property
    def size(self) -> int:
        return len(self._data)


def test_the_bytes_are_the_golden_ones() -> None:
    assert pack({"a": Fixed(b"\1\2\3"), "lane": Fixed(b"")}) == GOLDEN
    assert unpack(GOLDEN) == {"a": b"\1\2\3", "lane": b""}


def test_no_views_are_two_zero_bytes() -> None:
    assert pack({}) == b"\0\0"
    assert unpack(b"\0\0") == {}


def test_sections_that_do_not_add_up_are_refused() -> None:
    for size in range(2, len(GOLDEN)):
        with pytest.raises((ValueError, IndexError)):
            unpack(GOLDEN[:size])
    with pytest.raises(ValueError, match="do not add up"):
        unpack(GOLDEN + b"\0")
