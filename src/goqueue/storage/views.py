"""The registration port for views: what others derive from a segment's records, kept beside it.

A view folds blocks as they are appended, the same code live and when a segment is scanned again, so it can
always be rebuilt; it is saved when the segment is sealed. Storage knows a view only by its name.

A view may know more than its own records tell: what was so where the segment begins. It gets that from the views
before it (`inherit`), once, before it folds anything. One rebuilt from records alone has inherited nothing; who
needs to know then asks the views of earlier segments.
"""

from collections.abc import Sequence
from typing import Protocol

from goqueue.codec import Scan
from goqueue.io.disk import Buffer


class View(Protocol):
    """One segment's worth of something derived."""

    def on_append(self, block: Buffer, scan: Scan) -> None:
        """Fold a block of valid records, in offset order. `scan` has one array entry per record."""

    def on_damage(self, first: int, next_offset: int) -> None:
        """The records at these offsets cannot be read; told where they would have been folded."""

    def inherit(self, older: Sequence["View"]) -> None:
        """Take over what these views, in offset order, know and the records of this segment cannot tell.

        Called before the first record is folded, or not at all. `older` is the view of the segment before; for a
        segment that the cleaner puts in place of others it is theirs, which know all the records that will be folded.
        """

    def anew(self) -> "View":
        """A view of the same segment that has inherited what this one has, and folded nothing."""

    def to_bytes(self) -> bytes: ...

    @property
    def carries(self) -> bool:
        """Whether it knows what the records that follow cannot tell: then its segment is emptied, not removed."""

    @property
    def size(self) -> int:
        """About how many bytes of memory it holds."""


class ViewKind(Protocol):
    """What a log is given at opening: how to begin a view for a segment, and how to load a saved one."""

    @property
    def name(self) -> str: ...

    def empty(self, base: int) -> View: ...

    def load(self, base: int, data: bytes) -> View:
        """ValueError when the bytes make no sense: the view is then rebuilt."""


def pack(views: dict[str, View]) -> bytes:
    """count(2), then per view: name length(1) name, data length(4) data."""
    parts = [len(views).to_bytes(2, "big")]
    for name, view in views.items():
        data = view.to_bytes()
        encoded = name.encode("ascii")
        parts += [len(encoded).to_bytes(1, "big"), encoded, len(data).to_bytes(4, "big"), data]
    return b"".join(parts)


def unpack(data: bytes) -> dict[str, bytes]:
    count = int.from_bytes(data[:2], "big")
    position = 2
    found: dict[str, bytes] = {}
    for _ in range(count):
        name_end = position + 1 + data[position]
        name = data[position + 1 : name_end].decode("ascii")
        position = name_end + 4 + int.from_bytes(data[name_end : name_end + 4], "big")
        found[name] = data[name_end + 4 : position]
    if position != len(data):
        raise ValueError("a view file whose sections do not add up")
    return found
